//! Where an emptyDir lives, and how large it may grow. Pure.

use std::collections::BTreeSet;

use api::types::core::v1::EmptyDirVolumeSource;
use machinery::quantity::Quantity;

use crate::cgroup;
use crate::pod::BoundPod;

/// What an emptyDir is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    Disk,
    /// Bytes at most; `None` leaves it to the kernel.
    Memory {
        size: Option<u64>,
    },
    /// The size of a page.
    HugePages {
        page: u64,
    },
}

/// The medium of one of the pod's volumes; `allocatable` is the node's memory for pods. The error is
/// why there can be none.
pub fn medium(pod: &BoundPod, empty: &EmptyDirVolumeSource, allocatable: Option<u64>) -> Result<Medium, String> {
    match empty.medium.as_deref().unwrap_or_default() {
        "" => Ok(Medium::Disk),
        "Memory" => Ok(Medium::Memory { size: memory(pod, empty, allocatable) }),
        medium if medium == HUGE || medium.starts_with("HugePages-") => {
            page(pod, medium).map(|page| Medium::HugePages { page })
        }
        other => Err(format!("unknown storage medium {other:?}")),
    }
}

/// The permission bits of its directory.
pub fn mode(empty: &EmptyDirVolumeSource) -> u32 {
    empty.mode.and_then(|m| u32::try_from(m).ok()).map_or(0o777, |m| m & 0o7777)
}

/// The limit that its usage on disk is held to.
pub fn disk_limit(empty: &EmptyDirVolumeSource) -> Option<(u64, String)> {
    let text = &empty.size_limit.as_ref()?.0;
    Some((positive(text)?, machinery::quantity::canonical(text).ok()?.into_owned()))
}

fn positive(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<Quantity>().ok()?.value()).ok().filter(|n| *n > 0)
}

/// The smallest of what the node has for pods, what the pod may have, and what the volume may have.
fn memory(pod: &BoundPod, empty: &EmptyDirVolumeSource, allocatable: Option<u64>) -> Option<u64> {
    let pods = u64::try_from(cgroup::allowance(pod).memory).ok().filter(|n| *n > 0);
    let own = empty.size_limit.as_ref().and_then(|q| positive(&q.0));
    [allocatable, pods, own].into_iter().flatten().filter(|n| *n > 0).min()
}

/// The medium without a size of its pages.
const HUGE: &str = "HugePages";

/// The page size of a medium: that which the pod asks for.
fn page(pod: &BoundPod, medium: &str) -> Result<u64, String> {
    let whole = pod.spec().resources.as_ref().and_then(|r| r.requests.as_ref());
    let own = pod.all_containers().filter_map(|c| c.resources.as_ref()?.requests.as_ref());
    let names = whole.into_iter().chain(own).flat_map(|list| list.keys());
    let sizes: BTreeSet<u64> = names.filter_map(|n| positive(n.strip_prefix("hugepages-")?)).collect();
    let found = match medium.strip_prefix("HugePages-") {
        Some(wanted) => {
            let wanted = positive(wanted).ok_or_else(|| format!("unknown storage medium {medium:?}"))?;
            sizes.contains(&wanted).then_some(wanted)
        }
        None if sizes.len() > 1 => {
            return Err(format!("medium: {medium} can't be used if container requests multiple huge page sizes"));
        }
        None => sizes.first().copied(),
    };
    found.ok_or_else(|| {
        format!("medium {medium}: hugePages storage requested, but there is no resource request for huge pages")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    fn check(spec: Value, empty: Value, want: Result<Medium, &str>) {
        let pod = pod(json!({"spec": spec}));
        let source = serde_json::from_value(empty.clone()).expect("a source");
        assert_eq!(medium(&pod, &source, Some(1 << 30)), want.map_err(str::to_owned), "{empty}");
    }

    #[test]
    fn the_smallest_limit_counts() {
        let with = |limits: &[Option<&str>]| {
            let container = |(i, memory): (usize, &Option<&str>)| {
                let limits = memory.map(|m| json!({"limits": {"memory": m}}));
                json!({"name": format!("c{i}"), "resources": limits})
            };
            json!({"containers": limits.iter().enumerate().map(container).collect::<Vec<_>>()})
        };
        let memory = |size| Ok(Medium::Memory { size: Some(size) });
        let of = |limit: Option<&str>| json!({"medium": "Memory", "sizeLimit": limit});
        check(with(&[None]), of(None), memory(1 << 30));
        check(with(&[None]), of(Some("16Mi")), memory(16 << 20));
        check(with(&[None]), of(Some("2Gi")), memory(1 << 30));
        check(with(&[Some("64Mi"), Some("64Mi")]), of(None), memory(128 << 20));
        check(with(&[Some("64Mi"), None]), of(None), memory(1 << 30));
        check(with(&[Some("64Mi")]), of(Some("128Mi")), memory(64 << 20));
        check(with(&[None]), of(Some("0")), memory(1 << 30));
        check(with(&[None]), json!({"sizeLimit": "1Mi"}), Ok(Medium::Disk));
        check(with(&[None]), json!({"medium": "Tape"}), Err("unknown storage medium \"Tape\""));
    }

    #[test]
    fn pages_are_those_that_the_pod_asks_for() {
        let with = |names: &[&str]| {
            let requests: serde_json::Map<_, _> = names.iter().map(|n| ((*n).to_owned(), json!("4Mi"))).collect();
            json!({"containers": [{"name": "c", "resources": {"requests": requests}}]})
        };
        let of = |medium: &str| json!({"medium": medium});
        let two = with(&["hugepages-2Mi"]);
        check(two.clone(), of("HugePages"), Ok(Medium::HugePages { page: 2 << 20 }));
        check(two.clone(), of("HugePages-2Mi"), Ok(Medium::HugePages { page: 2 << 20 }));
        let none = "hugePages storage requested, but there is no resource request for huge pages";
        check(two, of("HugePages-1Gi"), Err(&format!("medium HugePages-1Gi: {none}")));
        check(with(&[]), of("HugePages"), Err(&format!("medium HugePages: {none}")));
        check(
            with(&["hugepages-2Mi", "hugepages-1Gi"]),
            of("HugePages"),
            Err("medium: HugePages can't be used if container requests multiple huge page sizes"),
        );
    }

    #[test]
    fn limits_on_disk() {
        let limit = |value: Value| disk_limit(&serde_json::from_value(value).expect("a source"));
        assert_eq!(limit(json!({"sizeLimit": "1024Ki"})), Some((1 << 20, "1Mi".into())));
        assert_eq!((limit(json!({})), limit(json!({"sizeLimit": "0"}))), (None, None));
    }
}
