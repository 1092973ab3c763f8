//! In which order groups stand, and versions within one: what this server answers itself has upstream's
//! priorities.

/// Group, its priority, and its versions with theirs.
type Entry = (&'static str, i32, &'static [(&'static str, i32)]);

const BUILT_IN: &[Entry] = &[
    ("", 18_000, &[("v1", 1)]),
    ("apps", 17_800, &[("v1", 15)]),
    ("events.k8s.io", 17_750, &[("v1", 15)]),
    ("authentication.k8s.io", 17_700, &[("v1", 15)]),
    ("authorization.k8s.io", 17_600, &[("v1", 15)]),
    ("autoscaling", 17_500, &[("v2", 30), ("v1", 15)]),
    ("batch", 17_400, &[("v1", 15)]),
    ("certificates.k8s.io", 17_300, &[("v1", 15)]),
    ("networking.k8s.io", 17_200, &[("v1", 15)]),
    ("policy", 17_100, &[("v1", 15)]),
    ("rbac.authorization.k8s.io", 17_000, &[("v1", 15)]),
    ("storage.k8s.io", 16_800, &[("v1", 15)]),
    ("admissionregistration.k8s.io", 16_700, &[("v1", 15)]),
    ("apiextensions.k8s.io", 16_700, &[("v1", 15)]),
    ("scheduling.k8s.io", 16_600, &[("v1", 15)]),
    ("coordination.k8s.io", 16_500, &[("v1", 15)]),
    ("node.k8s.io", 16_300, &[("v1", 15)]),
    ("discovery.k8s.io", 16_200, &[("v1", 15)]),
    ("resource.k8s.io", 16_200, &[("v1", 21)]),
    ("flowcontrol.apiserver.k8s.io", 16_100, &[("v1", 21)]),
    ("internal.apiserver.k8s.io", 16_000, &[("v1alpha1", 9)]),
    ("storagemigration.k8s.io", 15_800, &[("v1", 15)]),
    // What the APIService of upstream's metrics-server says.
    (METRICS, 100, &[("v1beta1", 100)]),
];

/// The group of what nodes and pods use, which another server may answer for.
pub const METRICS: &str = api::resource_metrics::GROUP;

/// Of what a definition of custom resources brings, and of what else has no place of its own: behind
/// everything that came with the server.
pub const CUSTOM: (i32, i32) = (1000, 100);
/// The group of APIServices is before all others, and cannot be registered.
const FIRST: (i32, i32) = (20_001, 1);

/// The priorities of a version that this server answers itself: the group's, and its own within that.
pub fn of(group: &str, version: &str) -> (i32, i32) {
    if group == kinds::api_service::GROUP {
        return FIRST;
    }
    let Some((_, of_group, versions)) = BUILT_IN.iter().find(|(name, ..)| *name == group) else { return CUSTOM };
    let found = versions.iter().find(|(name, _)| *name == version);
    (*of_group, found.map_or(1, |(_, priority)| *priority))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_version_has_its_place() {
        for kind in kinds::ALL.iter().map(|kind| kind.shape()).filter(|shape| shape.group != "explain.pintle.dev") {
            assert_ne!(of(kind.group, kind.version), CUSTOM, "{}/{}", kind.group, kind.version);
            assert!(of(kind.group, kind.version).1 > 0);
        }
        assert_eq!(of("example.com", "v1"), CUSTOM);
    }
}
