//! The resolver configuration of a pod, from its policy, the cluster's DNS and the node's own. Pure.

use ::cri::v1;

use crate::pod::BoundPod;

/// What a resolver keeps of each.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;

/// The resolver configuration of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolver {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

/// The cluster's DNS; without servers there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterDns {
    pub servers: Vec<String>,
    pub domain: String,
}

/// A pod's resolver configuration, and whether it had to do without the cluster's DNS.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    pub config: v1::DnsConfig,
    pub missing_cluster_dns: bool,
}

impl Resolver {
    /// Reads a resolv.conf.
    pub fn parse(text: &str) -> Self {
        let mut out = Self::default();
        for line in text.lines() {
            let mut words = line.split(['#', ';']).next().unwrap_or_default().split_whitespace();
            match words.next() {
                Some("nameserver") => out.servers.extend(words.next().map(str::to_owned)),
                Some("search" | "domain") => out.searches = words.map(str::to_owned).collect(),
                Some("options") => out.options.extend(words.map(str::to_owned)),
                _ => {}
            }
        }
        out
    }
}

/// The text of the MissingClusterDNS event.
pub fn missing_cluster_dns(pod: &BoundPod) -> String {
    format!("pod: \"{}\". {}", pod.full_name(), MISSING_CLUSTER_DNS)
}

/// The same as the node's event says it.
pub const MISSING_CLUSTER_DNS: &str = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
     \"ClusterFirst\" policy. Falling back to \"Default\" policy.";

/// Renders the configuration.
pub fn render(pod: &BoundPod, cluster: &ClusterDns, node: &Resolver) -> Rendered {
    let policy = pod.spec().dns_policy.as_deref().unwrap_or("ClusterFirst");
    let wants_cluster = match policy {
        "ClusterFirst" => !pod.host_network(),
        "ClusterFirstWithHostNet" => true,
        _ => false,
    };
    let mut out = Rendered { missing_cluster_dns: wants_cluster && cluster.servers.is_empty(), ..Rendered::default() };
    let mut dns = if policy == "None" {
        Resolver::default()
    } else if wants_cluster && !cluster.servers.is_empty() {
        let domain = &cluster.domain;
        let mut searches = vec![format!("{}.svc.{domain}", pod.namespace), format!("svc.{domain}"), domain.clone()];
        searches.extend(node.searches.iter().filter(|s| *s != ".").cloned());
        Resolver { servers: cluster.servers.clone(), searches, options: vec!["ndots:5".into()] }
    } else {
        node.clone()
    };
    if let Some(own) = &pod.spec().dns_config {
        dns.servers.extend(own.nameservers.iter().flatten().cloned());
        dns.searches.extend(own.searches.iter().flatten().cloned());
        for option in own.options.iter().flatten() {
            let Some(name) = option.name.as_deref().filter(|n| !n.is_empty()) else { continue };
            dns.options.retain(|known| known.split(':').next() != Some(name));
            dns.options.push(match &option.value {
                Some(value) => format!("{name}:{value}"),
                None => name.to_owned(),
            });
        }
    }
    out.config = v1::DnsConfig {
        servers: first(dns.servers, MAX_SERVERS),
        searches: first(dns.searches, MAX_SEARCHES),
        options: dns.options,
    };
    out
}

/// The first few different ones.
fn first(list: Vec<String>, limit: usize) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for item in list {
        if !out.contains(&item) && out.len() < limit {
            out.push(item);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    fn check(spec: Value, cluster: &[&str], want: &str, missing: bool) {
        let mut spec = spec;
        spec["containers"] = json!([]);
        let cluster =
            ClusterDns { servers: cluster.iter().map(|s| (*s).to_owned()).collect(), domain: "cluster.local".into() };
        let node = Resolver::parse("# x\nnameserver 9.9.9.9\nsearch lan corp ; y\noptions ndots:2 rotate\n");
        let found = render(&pod(json!({"spec": spec})), &cluster, &node);
        let c = &found.config;
        let text = format!("{} | {} | {}", c.servers.join(" "), c.searches.join(" "), c.options.join(" "));
        assert_eq!((text.as_str(), found.missing_cluster_dns), (want, missing));
    }

    #[test]
    fn policies() {
        let node = "9.9.9.9 | lan corp | ndots:2 rotate";
        let cluster = "10.96.0.10 | default.svc.cluster.local svc.cluster.local cluster.local lan corp | ndots:5";
        check(json!({"dnsPolicy": "Default"}), &["10.96.0.10"], node, false);
        check(json!({"dnsPolicy": "ClusterFirst"}), &["10.96.0.10"], cluster, false);
        check(json!({}), &[], node, true);
        check(json!({"hostNetwork": true}), &["10.96.0.10"], node, false);
        check(json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), &["10.96.0.10"], cluster, false);
        check(
            json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1", "1.1.1.1"], "searches": ["a"],
                "options": [{"name": "ndots", "value": "1"}, {"name": "edns0"}]}}),
            &[],
            "1.1.1.1 | a | ndots:1 edns0",
            false,
        );
        check(
            json!({"dnsPolicy": "Default", "dnsConfig": {"options": [{"name": "ndots", "value": "7"}]}}),
            &[],
            "9.9.9.9 | lan corp | rotate ndots:7",
            false,
        );
    }
}
