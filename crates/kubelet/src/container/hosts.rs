//! `/etc/hosts` of a pod. Pure.

use crate::pod::BoundPod;

const LOCAL: &str = "\
# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
";

/// The file's text. A pod on the node's network sees the node's own names.
pub fn render(pod: &BoundPod, pod_ips: &[String], cluster_domain: &str, node_hosts: &str) -> String {
    let mut out = if pod.host_network() {
        format!("# Kubernetes-managed hosts file (host network).\n{node_hosts}")
    } else {
        let hostname = pod.hostname();
        let names = match full_name(pod, cluster_domain) {
            Some(full) => format!("{full}\t{hostname}"),
            None => hostname,
        };
        let own: String = pod_ips.iter().map(|ip| format!("{ip}\t{names}\n")).collect();
        format!("{LOCAL}{own}")
    };
    let aliases = pod.spec().host_aliases.as_deref().unwrap_or_default();
    if !aliases.is_empty() {
        out.push_str("\n# Entries added by HostAliases.\n");
        for alias in aliases {
            let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
            out.push_str(&format!("{}\t{names}\n", alias.ip));
        }
    }
    out
}

/// The name a pod with a subdomain has in the cluster's DNS.
pub fn full_name(pod: &BoundPod, cluster_domain: &str) -> Option<String> {
    Some(format!("{}.{}", pod.hostname(), pod.domain(cluster_domain)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn texts() {
        let plain = pod(json!({"spec": {"containers": []}}));
        let text = render(&plain, &["10.0.0.2".into(), "fd00::2".into()], "cluster.local", "");
        assert_eq!(text, format!("{LOCAL}10.0.0.2\tweb\nfd00::2\tweb\n"));
        let named = pod(json!({"spec": {"hostname": "h", "subdomain": "s", "containers": [],
            "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]}}));
        let text = render(&named, &["10.0.0.2".into()], "cluster.local", "");
        assert_eq!(
            text,
            format!(
                "{LOCAL}10.0.0.2\th.s.default.svc.cluster.local\th\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"
            )
        );
        let whole = pod(
            json!({"spec": {"hostname": "h", "subdomain": "s", "hostnameOverride": "my.own.name", "containers": []}}),
        );
        let text = render(&whole, &["10.0.0.2".into()], "cluster.local", "");
        assert_eq!(text, format!("{LOCAL}10.0.0.2\tmy.own.name\n"));
        let host = pod(json!({"spec": {"hostNetwork": true, "containers": []}}));
        let text = render(&host, &[], "cluster.local", "127.0.0.1 localhost\n");
        assert_eq!(text, "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n");
    }
}
