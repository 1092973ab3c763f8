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
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

mod aggregated;
pub mod answer;
mod legacy;

use crate::aggregation::priorities;

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
    /// Who answers for it, when it is another server.
    elsewhere: Option<Arc<Elsewhere>>,
}

/// A version of a group that another server answers for, as that was last told.
#[derive(Clone, Debug, PartialEq)]
pub struct Elsewhere {
    pub group: String,
    pub version: String,
    pub group_priority: i32,
    pub version_priority: i32,
    /// In the new form of discovery.
    pub resources: Vec<Value>,
    /// False when the server cannot be asked at present.
    pub is_fresh: bool,
}

/// One group with its versions, the preferred one first.
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) versions: Vec<Version>,
}

/// The kinds as groups and versions, in the order in which clients look a name up when the group is not said.
pub(crate) fn groups(kinds: impl IntoIterator<Item = SharedKind>) -> Vec<Group> {
    merged(kinds, &[])
}

/// The same with what other servers answer for, which is theirs also where this server could answer.
fn merged(kinds: impl IntoIterator<Item = SharedKind>, elsewhere: &[Arc<Elsewhere>]) -> Vec<Group> {
    let mut groups: BTreeMap<String, BTreeMap<String, Version>> = BTreeMap::new();
    let empty = |name: &str| Version { name: name.to_owned(), kinds: Vec::new(), elsewhere: None };
    for kind in kinds {
        let (group, version) = (kind.shape().group.to_owned(), kind.shape().version.to_owned());
        let versions = groups.entry(group).or_default();
        versions.entry(version).or_insert_with_key(|version| empty(version)).kinds.push(kind);
    }
    for one in elsewhere {
        let version = Version { elsewhere: Some(one.clone()), ..empty(&one.version) };
        groups.entry(one.group.clone()).or_default().insert(one.version.clone(), version);
    }
    let mut ranked: Vec<(i32, Group)> = Vec::new();
    for (name, versions) in groups {
        let mut versions: Vec<((i32, i32), Version)> =
            versions.into_values().map(|version| (version.priorities(&name), version)).collect();
        versions.sort_by_key(|((_, own), version)| std::cmp::Reverse((*own, rank(&version.name))));
        let of_group = versions.iter().map(|((of_group, _), _)| *of_group).max().unwrap_or_default();
        let mut versions: Vec<Version> = versions.into_iter().map(|(_, version)| version).collect();
        for version in &mut versions {
            version.kinds.sort_by(|a, b| a.shape().plural.cmp(b.shape().plural));
        }
        ranked.push((of_group, Group { name, versions }));
    }
    // By name where they are equal.
    ranked.sort_by_key(|(of_group, _)| std::cmp::Reverse(*of_group));
    ranked.into_iter().map(|(_, group)| group).collect()
}

impl Version {
    /// The group's priority, and the version's within it.
    fn priorities(&self, group: &str) -> (i32, i32) {
        match &self.elsewhere {
            Some(elsewhere) => (elsewhere.group_priority, elsewhere.version_priority),
            None => priorities::of(group, &self.name),
        }
    }
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

/// Discovery over a list of kinds and what other servers answer for. Aggregated bodies are made when first asked
/// for and kept.
pub struct Discovery {
    /// Where clients outside reach the server, `10.0.0.1:6443`.
    address: String,
    /// What is served here and elsewhere.
    all: Mutex<(Vec<SharedKind>, Vec<Arc<Elsewhere>>)>,
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
        let kinds: Vec<SharedKind> = kinds.into_iter().collect();
        let served = RwLock::new(Arc::new(Served::new(&kinds, &[])));
        Self { address: address.into(), all: Mutex::new((kinds, Vec::new())), served }
    }

    /// Shows these kinds from now on.
    pub fn show(&self, kinds: impl IntoIterator<Item = SharedKind>) {
        let mut all = self.all.lock();
        all.0 = kinds.into_iter().collect();
        *self.served.write() = Arc::new(Served::new(&all.0, &all.1));
    }

    /// Shows from now on what other servers answer for.
    pub fn show_elsewhere(&self, elsewhere: Vec<Arc<Elsewhere>>) {
        let mut all = self.all.lock();
        if all.1 != elsewhere {
            all.1 = elsewhere;
            *self.served.write() = Arc::new(Served::new(&all.0, &all.1));
        }
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
    fn new(kinds: &[SharedKind], elsewhere: &[Arc<Elsewhere>]) -> Self {
        let groups = merged(kinds.iter().cloned(), elsewhere);
        Self { groups, core: OnceLock::new(), rest: OnceLock::new() }
    }

    /// A version that this server answers for.
    fn version(&self, group: &str, version: &str) -> Option<&Version> {
        let versions = &self.groups.iter().find(|g| g.name == group)?.versions;
        versions.iter().find(|v| v.name == version && v.elsewhere.is_none())
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
