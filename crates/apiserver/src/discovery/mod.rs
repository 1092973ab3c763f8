//! What is served: `/api`, `/apis` and below, legacy and aggregated, from the list of kinds.
//!
//! ```text
//!  /api            core versions            (aggregated: every core resource)
//!  /apis           groups                   (aggregated: every resource of every group)
//!  /apis/G         one group
//!  /api/v1, /apis/G/V                       resources of one version
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use kinds::{AnyKind, AnyShape, Keep, Names, SharedKind};
use machinery::version::rank;
use machinery::{encode, proto, status};
use parking_lot::RwLock;
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
    pub(crate) name: String,
    pub(crate) kinds: Vec<SharedKind>,
}

/// One group with its versions, the preferred one first.
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) versions: Vec<Version>,
}

/// The kinds as groups and versions, in upstream's order.
pub(crate) fn groups(kinds: impl IntoIterator<Item = SharedKind>) -> Vec<Group> {
    let mut groups: BTreeMap<String, BTreeMap<String, Vec<SharedKind>>> = BTreeMap::new();
    for kind in kinds {
        let (group, version) = (kind.shape().group.to_owned(), kind.shape().version.to_owned());
        groups.entry(group).or_default().entry(version).or_default().push(kind);
    }
    let version = |(name, mut kinds): (String, Vec<SharedKind>)| {
        kinds.sort_by(|a, b| a.shape().plural.cmp(b.shape().plural));
        Version { name, kinds }
    };
    let group = |(name, versions): (String, BTreeMap<_, _>)| {
        let mut versions: Vec<Version> = versions.into_iter().map(version).collect();
        versions.sort_by_key(|v| std::cmp::Reverse(rank(&v.name)));
        Group { name, versions }
    };
    let mut groups: Vec<Group> = groups.into_iter().map(group).collect();
    groups.sort_by_key(|g| ORDER.iter().position(|o| *o == g.name).unwrap_or(ORDER.len()));
    groups
}

/// A subresource as both forms of discovery show it.
pub(crate) struct Sub<'a> {
    pub(crate) name: &'static str,
    /// Empty when they are the parent's.
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'a str,
    pub(crate) verbs: &'static [&'static str],
}

/// Every subresource of a kind, sorted.
pub(crate) fn subresources<'a>(shape: &AnyShape<'a>) -> Vec<Sub<'a>> {
    const GENERIC: &[&str] = &["get", "patch", "update"];
    let mut all: Vec<Sub<'a>> = shape
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
fn storage_version_hash(kind: &dyn AnyKind) -> Option<String> {
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
    /// Where clients outside reach the server, `10.0.0.1:6443`.
    address: String,
    served: RwLock<Arc<Served>>,
}

/// What is served at one time.
struct Served {
    groups: Vec<Group>,
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
    pub fn new(kinds: impl IntoIterator<Item = SharedKind>, address: impl Into<String>) -> Self {
        Self { address: address.into(), served: RwLock::new(Arc::new(Served::new(kinds))) }
    }

    /// Shows these kinds from now on.
    pub fn show(&self, kinds: impl IntoIterator<Item = SharedKind>) {
        let served = Arc::new(Served::new(kinds));
        *self.served.write() = served;
    }

    /// Every group with its versions.
    pub fn group_versions(&self) -> Vec<(String, Vec<String>)> {
        let served = self.served.read().clone();
        let versions = |group: &Group| group.versions.iter().map(|v| v.name.clone()).collect();
        served.groups.iter().map(|group| (group.name.clone(), versions(group))).collect()
    }

    /// Answers a GET of a discovery path; `None` for other paths and for groups not served.
    pub fn respond(&self, path: &str, headers: &HeaderMap) -> Option<status::Result<transport::Response>> {
        let served = self.served.read().clone();
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let body = match parts.as_slice() {
            [root @ ("api" | "apis")] => {
                let core = *root == "api";
                let offers = [&[AGGREGATED_PROTOBUF, AGGREGATED], FORMS].concat();
                match answer::choose(headers, &offers) {
                    Some(form @ 0..2) => return Some(Ok(served.aggregated(core, form == 0, headers))),
                    _ if core => legacy::versions(&self.address),
                    _ => legacy::group_list(&served.groups),
                }
            }
            ["apis", group] => {
                let group = served.groups.iter().find(|g| !g.name.is_empty() && g.name == *group)?;
                legacy::group(group, true)
            }
            ["api", version] => legacy::resources("", served.version("", version)?),
            ["apis", group, version] if !group.is_empty() => legacy::resources(group, served.version(group, version)?),
            _ => return None,
        };
        Some(answer::in_form(headers, FORMS, &body))
    }
}

impl Served {
    fn new(kinds: impl IntoIterator<Item = SharedKind>) -> Self {
        Self { groups: groups(kinds), core: OnceLock::new(), rest: OnceLock::new() }
    }

    fn version(&self, group: &str, version: &str) -> Option<&Version> {
        self.groups.iter().find(|g| g.name == group)?.versions.iter().find(|v| v.name == version)
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
pub(crate) fn singular(shape: &AnyShape<'_>) -> String {
    if shape.singular.is_empty() { shape.kind.to_ascii_lowercase() } else { shape.singular.to_owned() }
}

/// A version's name as clients write it: `v1`, `apps/v1`.
fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// `{"a": b}` where `b` is not empty.
fn put_list(object: &mut Value, key: &str, list: Names<'_>) {
    let list: Vec<&str> = list.iter().collect();
    if !list.is_empty() {
        object[key] = json!(list);
    }
}
