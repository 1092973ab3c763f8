//! Which kernel settings a pod may have: upstream's safe ones, and what the administrator allows
//! beside them (`--allowed-unsafe-sysctls`). Pure.

use crate::pod::BoundPod;

/// Settings that reach no further than the pod, and since which kernel they do.
const SAFE: &[(&str, (u32, u32))] = &[
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

/// What the kernel keeps a setting apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

impl Namespace {
    fn of(sysctl: &str) -> Option<Self> {
        let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."];
        match sysctl {
            "kernel.sem" => Some(Self::Ipc),
            name if ipc.iter().any(|p| name.starts_with(p)) => Some(Self::Ipc),
            name if name.starts_with("net.") => Some(Self::Net),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ipc => "ipc",
            Self::Net => "net",
        }
    }
}

/// The settings that pods may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    names: Vec<(String, Namespace)>,
    prefixes: Vec<(String, Namespace)>,
}

impl Allowed {
    /// The safe settings of a kernel (`6.1.0-18-amd64`) and those of `more`, where a trailing `*`
    /// stands for anything.
    ///
    /// # Errors
    /// When one of `more` is not known to be kept apart between pods: the text names it.
    pub fn new(kernel: &str, more: &[String]) -> Result<Self, String> {
        let kernel = version(kernel);
        let safe = SAFE.iter().filter(|(_, since)| kernel >= *since).map(|(name, _)| *name);
        let mut out = Self::default();
        for name in safe.chain(more.iter().map(String::as_str)) {
            let name = dotted(name);
            let prefix = name.strip_suffix('*');
            let Some(namespace) = Namespace::of(prefix.unwrap_or(&name)) else {
                return Err(format!("the sysctl \"{name}\" is not known to be namespaced"));
            };
            match prefix {
                Some(prefix) => out.prefixes.push((prefix.to_owned(), namespace)),
                None => out.names.push((name, namespace)),
            }
        }
        Ok(out)
    }

    /// Why the pod may not have one of its settings: the message of `SysctlForbidden`.
    pub fn forbids(&self, pod: &BoundPod) -> Option<String> {
        let spec = pod.spec();
        let wanted = spec.security_context.iter().flat_map(|s| s.sysctls.iter().flatten());
        wanted.map(|s| dotted(&s.name)).find_map(|name| {
            let exact = self.names.iter().find(|(known, _)| *known == name);
            let found = exact.or_else(|| self.prefixes.iter().find(|(prefix, _)| name.starts_with(prefix)));
            let Some((_, namespace)) = found else {
                return Some(format!("forbidden sysctl: \"{name}\" not allowlisted"));
            };
            let shared = match namespace {
                Namespace::Ipc => spec.host_ipc == Some(true),
                Namespace::Net => pod.host_network(),
            };
            let space = namespace.name();
            shared.then(|| format!("forbidden sysctl: \"{name}\" not allowed with host {space} enabled"))
        })
    }
}

/// The first two numbers of a kernel's release; zeros where there are none.
fn version(release: &str) -> (u32, u32) {
    let digits = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
    let mut parts = release.split('.').map(digits);
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// `net/ipv4/conf/eth0.1/x` as `net.ipv4.conf.eth0/1.x`: whichever separator comes first is it.
fn dotted(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name[at..].starts_with('/') => {
            let swap = |c| match c {
                '/' => '.',
                '.' => '/',
                other => other,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn only_what_reaches_no_further_than_the_pod() {
        let more = ["kernel.msg*".to_owned(), "net/core/somaxconn".to_owned()];
        let allowed = Allowed::new("6.1.0-18-amd64", &more).expect("allowed");
        let old = Allowed::new("4.4.0", &[]).expect("allowed");
        let rows = [
            (&allowed, "net.ipv4.tcp_syncookies", json!({}), None),
            (&allowed, "net/ipv4/tcp_syncookies", json!({}), None),
            (&allowed, "net.ipv4.tcp_wmem", json!({}), None),
            (&old, "net.ipv4.tcp_wmem", json!({}), Some("\"net.ipv4.tcp_wmem\" not allowlisted")),
            (&old, "net.ipv4.ip_local_reserved_ports", json!({}), None),
            (&allowed, "kernel.msgmax", json!({}), None),
            (&allowed, "net.core.somaxconn", json!({}), None),
            (&old, "net.core.somaxconn", json!({}), Some("\"net.core.somaxconn\" not allowlisted")),
            (&allowed, "vm.swappiness", json!({}), Some("\"vm.swappiness\" not allowlisted")),
            (
                &allowed,
                "net.ipv4.tcp_syncookies",
                json!({"hostNetwork": true}),
                Some("\"net.ipv4.tcp_syncookies\" not allowed with host net enabled"),
            ),
            (
                &allowed,
                "kernel.msgmax",
                json!({"hostIPC": true}),
                Some("\"kernel.msgmax\" not allowed with host ipc enabled"),
            ),
        ];
        for (allowed, name, spec, want) in rows {
            let mut spec = spec;
            spec["containers"] = json!([]);
            spec["securityContext"] = json!({"sysctls": [{"name": name, "value": "1"}]});
            let want = want.map(|w| format!("forbidden sysctl: {w}"));
            assert_eq!(allowed.forbids(&pod(json!({"spec": spec}))), want, "{name}");
        }
    }

    #[test]
    fn what_belongs_to_the_whole_machine_is_never_allowed() {
        let refused = Allowed::new("6.1", &["vm.swappiness".to_owned()]);
        assert_eq!(refused, Err("the sysctl \"vm.swappiness\" is not known to be namespaced".into()));
        assert!(Allowed::new("6.1", &["kernel.*".to_owned()]).is_err());
    }
}
