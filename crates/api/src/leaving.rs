//! Endpoints that leave a node's rules before their pod ends: how a Service asks for it, and how the node's
//! service proxy tells its kubelet that they have.
//!
//! ```text
//!  Service  pintle.dev/leave-before-stop: "true"
//!  pod deleted ─► slice: terminating ─► proxy of the node: kernel ─► Lease kube-public/kube-proxy-NODE
//!                                                                        │ default/web/UID
//!                                  kubelet: hooks, then signals ◄────────┘ (or its patience has ended)
//! ```

/// The annotation of a Service whose endpoints are to leave first; its value is `true`.
pub const WANTED: &str = "pintle.dev/leave-before-stop";
/// The namespace of the Leases: one without those by which controllers, schedulers and nodes are led, so that who
/// may write these may write no others.
pub const NAMESPACE: &str = "kube-public";
/// The annotation of a Lease that names the endpoints that have left, one a line.
pub const LEFT: &str = "pintle.dev/endpoints-left";
/// At most so many are named: 160 kB, of which an object may have 256 of annotations. For those beyond, kubelets
/// wait as long as they do where nobody tells them anything.
pub const CAPACITY: usize = 1000;

/// Does the value of [`WANTED`] ask for it?
pub fn is_wanted(value: Option<&str>) -> bool {
    value == Some("true")
}

/// The name of the Lease by which a node's proxy tells what has left.
pub fn lease(node: &str) -> String {
    format!("kube-proxy-{node}")
}

/// An endpoint of a pod, by the Service it was one of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Left {
    pub namespace: String,
    pub service: String,
    /// The pod's.
    pub uid: String,
}

impl Left {
    fn line(&self) -> String {
        let Self { namespace, service, uid } = self;
        format!("{namespace}/{service}/{uid}")
    }

    /// Is it among those that the value of [`LEFT`] names?
    pub fn is_in(&self, value: &str) -> bool {
        let line = self.line();
        value.lines().any(|known| known == line)
    }
}

/// The value of [`LEFT`] that names these.
pub fn write<'a>(all: impl Iterator<Item = &'a Left>) -> String {
    let lines: Vec<String> = all.take(CAPACITY).map(Left::line).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_found_and_nothing_else() {
        let left =
            |service: &str, uid: &str| Left { namespace: "default".into(), service: service.into(), uid: uid.into() };
        let all = [left("web", "u-1"), left("web", "u-22"), left("db", "u-3")];
        let text = write(all.iter());
        assert!(all.iter().all(|one| one.is_in(&text)), "{text}");
        for other in [left("web", "u-2"), left("db", "u-1"), left("we", "b/u-1"), left("", "")] {
            assert!(!other.is_in(&text), "{other:?}");
        }
        assert!(!left("web", "u-1").is_in(""));
        let many: Vec<Left> = (0..CAPACITY + 5).map(|i| left(&"s".repeat(63), &format!("{i:036}"))).collect();
        let text = write(many.iter());
        assert_eq!(text.lines().count(), CAPACITY);
        assert!(text.len() < 200 << 10, "{}", text.len());
    }

    #[test]
    fn only_true_asks_for_it() {
        for (value, wanted) in [(Some("true"), true), (Some("false"), false), (Some("True"), false), (None, false)] {
            assert_eq!(is_wanted(value), wanted, "{value:?}");
        }
    }
}
