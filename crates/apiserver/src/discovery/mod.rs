//! What is served: `/api`, `/apis` and below, legacy and aggregated, from the list of kinds.
//!
//! ```text
//!  /api            core versions            (aggregated: every core resource)
//!  /apis           groups                   (aggregated: every resource of every group)
//!  /apis/G         one group
//!  /api/v1, /apis/G/V                       resources of one version
//! ```

use std::sync::OnceLock;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use kinds::{AnyKind, Keep, Shape};
use machinery::{encode, proto, status};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

mod aggregated;
pub mod answer;
mod legacy;

/// The order in which clients look a name up when the group is not said: upstream's.
const ORDER: &[&str] = &[
    "",
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "storagemigration.k8s.io",
];

/// Aggregated discovery as JSON and as protobuf.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const AGGREGATED_PROTOBUF: &str =
    "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// What a client gets that names none of them comes last.
const FORMS: &[&str] = &["application/vnd.kubernetes.protobuf", "application/yaml", "application/json"];

/// One version of a group with its kinds, sorted by plural.
pub(crate) struct Version {
    pub(crate) name: &'static str,
    pub(crate) kinds: Vec<&'static dyn AnyKind>,
}

/// One group with its versions, the preferred one first.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) versions: Vec<Version>,
}

/// The kinds as groups and versions, in upstream's order.
pub(crate) fn groups(kinds: &[&'static dyn AnyKind]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for kind in kinds {
        let shape = kind.shape();
        let at = groups.iter().position(|g| g.name == shape.group).unwrap_or_else(|| {
            groups.push(Group { name: shape.group, versions: Vec::new() });
            groups.len() - 1
        });
        let versions = &mut groups[at].versions;
        let at = versions.iter().position(|v| v.name == shape.version).unwrap_or_else(|| {
            versions.push(Version { name: shape.version, kinds: Vec::new() });
            versions.len() - 1
        });
        versions[at].kinds.push(*kind);
    }
    let place = |name: &str| ORDER.iter().position(|o| *o == name).unwrap_or(ORDER.len());
    groups.sort_by_key(|g| (place(g.name), g.name));
    for group in &mut groups {
        group.versions.sort_by_key(|v| std::cmp::Reverse(rank(v.name)));
        for version in &mut group.versions {
            version.kinds.sort_by_key(|k| k.shape().plural);
        }
    }
    groups
}

/// How mature a version is: `v2` > `v1` > `v1beta2` > `v1beta1` > `v1alpha1` > anything else.
fn rank(version: &str) -> (u8, u32, u32) {
    let number = |text: &str| text.parse::<u32>().ok();
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    for (word, maturity) in [("alpha", 1), ("beta", 2)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return match (number(major), number(minor)) {
                (Some(major), Some(minor)) => (maturity, major, minor),
                _ => (0, 0, 0),
            };
        }
    }
    number(rest).map_or((0, 0, 0), |major| (3, major, 0))
}

/// A subresource as both forms of discovery show it.
pub(crate) struct Sub {
    pub(crate) name: &'static str,
    /// Empty when they are the parent's.
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) verbs: &'static [&'static str],
}

/// Every subresource of a kind, sorted.
pub(crate) fn subresources(shape: &'static Shape) -> Vec<Sub> {
    const GENERIC: &[&str] = &["get", "patch", "update"];
    let mut all: Vec<Sub> = shape
        .subresources
        .iter()
        .map(|s| Sub { name: s.name, group: s.group, version: s.version, kind: s.kind, verbs: s.verbs })
        .collect();
    if shape.has_status {
        all.push(Sub { name: "status", group: "", version: "", kind: shape.kind, verbs: GENERIC });
    }
    if shape.scale.is_some() {
        all.push(Sub { name: "scale", group: "autoscaling", version: "v1", kind: "Scale", verbs: GENERIC });
    }
    all.sort_by_key(|s| s.name);
    all
}

/// What the kind's objects are stored as, hashed: a client that sees it change lists again.
fn storage_version_hash(kind: &'static dyn AnyKind) -> Option<String> {
    use base64::Engine as _;
    if kind.shape().keep == Keep::Virtual {
        return None;
    }
    let stored = kind.stored_as().unwrap_or(kind).shape();
    let digest = Sha256::digest(format!("{}/{}/{}", stored.group, stored.version, stored.kind));
    Some(base64::engine::general_purpose::STANDARD.encode(&digest[..8]))
}

/// Discovery over a list of kinds. Aggregated bodies are made when first asked for and kept.
pub struct Discovery {
    groups: Vec<Group>,
    /// Where clients outside reach the server, `10.0.0.1:6443`.
    address: String,
    core: OnceLock<Aggregated>,
    rest: OnceLock<Aggregated>,
}

/// One aggregated document in both its forms.
struct Aggregated {
    json: Bytes,
    protobuf: Bytes,
    tag: HeaderValue,
}

impl Discovery {
    /// Of the kinds given. `address` is where clients reach the server (`10.0.0.1:6443`).
    pub fn new(kinds: &[&'static dyn AnyKind], address: impl Into<String>) -> Self {
        Self { groups: groups(kinds), address: address.into(), core: OnceLock::new(), rest: OnceLock::new() }
    }

    fn version(&self, group: &str, version: &str) -> Option<&Version> {
        self.groups.iter().find(|g| g.name == group)?.versions.iter().find(|v| v.name == version)
    }

    /// Every group with its versions.
    pub fn group_versions(&self) -> Vec<(String, Vec<String>)> {
        let versions = |group: &Group| group.versions.iter().map(|v| v.name.to_owned()).collect();
        self.groups.iter().map(|group| (group.name.to_owned(), versions(group))).collect()
    }

    /// Answers a GET of a discovery path; `None` for other paths and for groups not served.
    pub fn respond(&self, path: &str, headers: &HeaderMap) -> Option<status::Result<transport::Response>> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let body = match parts.as_slice() {
            [root @ ("api" | "apis")] => {
                let core = *root == "api";
                let offers = [&[AGGREGATED_PROTOBUF, AGGREGATED], FORMS].concat();
                match answer::choose(headers, &offers) {
                    Some(form @ 0..2) => return Some(Ok(self.aggregated(core, form == 0, headers))),
                    _ if core => legacy::versions(&self.address),
                    _ => legacy::group_list(&self.groups),
                }
            }
            ["apis", group] => {
                let group = self.groups.iter().find(|g| !g.name.is_empty() && g.name == *group)?;
                legacy::group(group, true)
            }
            ["api", version] => legacy::resources("", self.version("", version)?),
            ["apis", group, version] if !group.is_empty() => legacy::resources(group, self.version(group, version)?),
            _ => return None,
        };
        Some(answer::in_form(headers, FORMS, &body))
    }

    fn aggregated(&self, core: bool, as_protobuf: bool, headers: &HeaderMap) -> transport::Response {
        let cell = if core { &self.core } else { &self.rest };
        let made = cell.get_or_init(|| {
            let list = aggregated::list(self.groups.iter().filter(|g| g.name.is_empty() == core));
            let schema = api::schema::of("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList");
            let json = schema.as_ref().map_or_else(|| list.to_string().into_bytes(), |s| encode::json(&list, s));
            let protobuf = schema.as_ref().map(|s| proto::encode(&list, s)).unwrap_or_default();
            let tag = answer::etag(&json);
            Aggregated { json: json.into(), protobuf: protobuf.into(), tag }
        });
        let (media, body) = if as_protobuf { (AGGREGATED_PROTOBUF, &made.protobuf) } else { (AGGREGATED, &made.json) };
        let mut response = answer::cached(headers, media, body, &made.tag);
        // It may be kept, if it is asked about each time.
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
        response
    }
}

/// The singular name: the lower-cased kind unless the shape says another.
pub(crate) fn singular(shape: &Shape) -> String {
    if shape.singular.is_empty() { shape.kind.to_ascii_lowercase() } else { shape.singular.to_owned() }
}

/// A version's name as clients write it: `v1`, `apps/v1`.
fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// `{"a": b}` where `b` is not empty.
fn put_list(object: &mut Value, key: &str, list: &[&str]) {
    if !list.is_empty() {
        object[key] = json!(list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_rank_by_maturity() {
        let mut versions = ["v1alpha1", "v1", "other", "v2", "v1beta1", "v1beta2", "v10", "v2alpha1"];
        versions.sort_by_key(|v| std::cmp::Reverse(rank(v)));
        assert_eq!(versions, ["v10", "v2", "v1", "v1beta2", "v1beta1", "v2alpha1", "v1alpha1", "other"]);
    }
}
