//! Where a sandbox's processes are on the network, as its runtime tells. Pure.

use std::path::PathBuf;

use serde_json::Value;

/// Runtimes whose sandboxes are processes of this host: what is done in their namespaces is done by its kernel.
/// Others (virtual machines) have a namespace as well, and nobody listens in it.
const OF_THIS_KERNEL: [&str; 2] = ["io.containerd.runc.v2", "io.containerd.runc.v1"];

/// The network that a sandbox's processes are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// The node's own.
    Node,
    /// The namespace at this path.
    Namespace(PathBuf),
}

impl Network {
    /// Reads what containerd tells beside a sandbox's status, in JSON; `None` for what tells nothing, or of a sandbox
    /// that only its runtime reaches. `on_node`: the sandbox was made on the node's network.
    pub fn shown(on_node: bool, info: &str) -> Option<Self> {
        let info: Value = serde_json::from_str(info).ok()?;
        info["runtimeType"].as_str().filter(|kind| OF_THIS_KERNEL.contains(kind))?;
        if on_node {
            return Some(Self::Node);
        }
        let namespaces = info.pointer("/runtimeSpec/linux/namespaces")?.as_array()?;
        let path = namespaces.iter().find(|namespace| namespace["type"] == "network")?["path"].as_str()?;
        path.starts_with('/').then(|| Self::Namespace(path.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_runtime_tells() {
        let told = |kind: &str, namespaces: Value| {
            json!({"runtimeType": kind, "runtimeSpec": {"linux": {"namespaces": namespaces}}}).to_string()
        };
        let runc = |namespaces: Value| told("io.containerd.runc.v2", namespaces);
        let own = json!([{"type": "pid"}, {"type": "network", "path": "/run/netns/a"}]);
        let here = Some(Network::Namespace("/run/netns/a".into()));
        for (on_node, info, want) in [
            (false, runc(own.clone()), here),
            (true, runc(json!([])), Some(Network::Node)),
            (true, told("io.containerd.kata.v2", json!([])), None),
            (false, told("io.containerd.kata.v2", own.clone()), None),
            (false, runc(json!([])), None),
            (false, runc(json!([{"type": "network"}])), None),
            (false, runc(json!([{"type": "network", "path": "run/netns/a"}])), None),
            (false, json!({"runtimeSpec": {"linux": {"namespaces": own}}}).to_string(), None),
            (true, "{}".to_owned(), None),
            (false, String::new(), None),
        ] {
            assert_eq!(Network::shown(on_node, &info), want, "{on_node} {info}");
        }
    }
}
