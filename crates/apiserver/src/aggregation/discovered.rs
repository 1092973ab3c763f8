//! What another server says it serves, read from either form of discovery into what clients are shown. Of what
//! it sends only what discovery knows is kept; pure.

use std::collections::{HashMap, HashSet};

use machinery::names;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What one version has.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Found {
    pub resources: Vec<Value>,
    /// Why entries are not among them.
    pub dropped: Vec<String>,
}

#[derive(Deserialize)]
struct Groups {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(default)]
    items: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Version {
    version: String,
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Kind {
    group: String,
    version: String,
    kind: String,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    resource: String,
    /// Clients of some versions need one.
    #[serde(default)]
    response_kind: Kind,
    #[serde(default = "namespaced")]
    scope: String,
    #[serde(default)]
    singular_resource: String,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    short_names: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    categories: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    subresources: Vec<Subresource>,
}

fn namespaced() -> String {
    "Namespaced".to_owned()
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Subresource {
    subresource: String,
    #[serde(default)]
    response_kind: Kind,
    #[serde(default)]
    verbs: Vec<String>,
}

/// Why nobody could ask for what has this name: it cannot be part of a path. Metrics have names with capitals,
/// colons and underscores.
fn wrong(name: &str) -> Option<&'static str> {
    match name {
        "" => Some("it has no name"),
        name if !names::path_segment(name).is_empty() => Some("its name cannot be part of a path"),
        _ => None,
    }
}

/// Without what nobody could ask for, and what is there already: the first of a name counts.
fn sift(resources: Vec<Resource>) -> Found {
    let mut found = Found::default();
    let mut seen = HashSet::new();
    for mut resource in resources {
        let name = resource.resource.clone();
        let twice = || (!seen.insert(name.clone())).then_some("it is there twice");
        if let Some(why) = wrong(&name).or_else(twice) {
            found.dropped.push(format!("{name:?}: {why}"));
            continue;
        }
        let mut parts = HashSet::new();
        resource.subresources.retain(|part| {
            let twice = || (!parts.insert(part.subresource.clone())).then_some("it is there twice");
            // A part may have parts.
            let why = part.subresource.split('/').find_map(wrong).or_else(twice);
            found.dropped.extend(why.map(|why| format!("{:?}: {why}", format!("{name}/{}", part.subresource))));
            why.is_none()
        });
        found.resources.extend(serde_json::to_value(resource));
    }
    found
}

/// So many resources one version may have, parts of resources counted too: far more than any has, and few
/// enough that neither reading nor showing them takes long.
const MOST: usize = 1000;

fn bounded(count: usize) -> Result<(), String> {
    if count > MOST { Err(format!("{count} resources in one version, more than {MOST}")) } else { Ok(()) }
}

/// The resources of one version, in a document about everything the server has.
///
/// # Errors
/// When it is no such document.
pub(super) fn aggregated(body: &[u8], group: &str, version: &str) -> Result<Found, String> {
    let groups: Groups = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if groups.kind != "APIGroupDiscoveryList" || groups.api_version != "apidiscovery.k8s.io/v2" {
        return Err(format!("{} of {} is no discovery", groups.kind, groups.api_version));
    }
    let of_group = groups.items.into_iter().filter(|item| item.metadata.name == group);
    let found = of_group.flat_map(|item| item.versions).find(|item| item.version == version);
    let resources = found.map(|found| found.resources).unwrap_or_default();
    bounded(resources.iter().map(|resource| 1 + resource.subresources.len()).sum())?;
    Ok(sift(resources))
}

#[derive(Deserialize)]
struct List {
    kind: String,
    #[serde(default)]
    resources: Vec<Entry>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Entry {
    name: String,
    singular_name: String,
    namespaced: bool,
    group: String,
    version: String,
    kind: String,
    verbs: Vec<String>,
    short_names: Vec<String>,
    categories: Vec<String>,
}

/// The same of a document of the old form, which is about one version.
///
/// # Errors
/// When it is no such document.
pub(super) fn legacy(body: &[u8]) -> Result<Found, String> {
    let list: List = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if list.kind != "APIResourceList" {
        return Err(format!("{} is no list of resources", list.kind));
    }
    bounded(list.resources.len())?;
    let mut out: Vec<Resource> = Vec::new();
    // Where the parts of a name go, whether they come before or after it.
    let mut places: HashMap<String, usize> = HashMap::new();
    for entry in list.resources {
        let kind = Kind { group: entry.group, version: entry.version, kind: entry.kind };
        let scope = if entry.namespaced { namespaced() } else { "Cluster".to_owned() };
        let Some((parent, subresource)) = entry.name.split_once('/') else {
            let new = Resource {
                resource: entry.name.clone(),
                response_kind: kind,
                scope,
                singular_resource: entry.singular_name,
                verbs: entry.verbs,
                short_names: entry.short_names,
                categories: entry.categories,
                subresources: Vec::new(),
            };
            match places.get(&entry.name).map(|at| &mut out[*at]) {
                // So far it has had only parts.
                Some(place) if place.verbs.is_empty() && place.response_kind.kind.is_empty() => {
                    let subresources = std::mem::take(&mut place.subresources);
                    *place = Resource { subresources, ..new };
                }
                place => {
                    if place.is_none() {
                        places.insert(entry.name, out.len());
                    }
                    out.push(new);
                }
            }
            continue;
        };
        let subresource = Subresource { subresource: subresource.to_owned(), response_kind: kind, verbs: entry.verbs };
        let at = *places.entry(parent.to_owned()).or_insert_with(|| {
            // Some have only parts.
            out.push(Resource {
                resource: parent.to_owned(),
                response_kind: Kind::default(),
                scope,
                singular_resource: String::new(),
                verbs: Vec::new(),
                short_names: Vec::new(),
                categories: Vec::new(),
                subresources: Vec::new(),
            });
            out.len() - 1
        });
        out[at].subresources.push(subresource);
    }
    Ok(sift(out))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nobody_has_more_resources_than_can_be_shown() {
        let list = |count: usize| {
            let resources: Vec<_> = (0..count).map(|n| json!({"name": format!("r{n}")})).collect();
            json!({"kind": "APIResourceList", "resources": resources}).to_string()
        };
        assert_eq!(legacy(list(MOST).as_bytes()).map(|found| found.resources.len()), Ok(MOST));
        let refused = legacy(list(MOST + 1).as_bytes()).expect_err("refused");
        assert_eq!(refused, "1001 resources in one version, more than 1000");
        let whole = |count: usize| {
            let parts: Vec<_> = (1..count).map(|n| json!({"subresource": format!("p{n}")})).collect();
            json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": [{"metadata":
                {"name": "g"}, "versions": [{"version": "v1", "resources": [{"resource": "r", "subresources": parts}]}]}]})
            .to_string()
        };
        assert_eq!(aggregated(whole(MOST).as_bytes(), "g", "v1").map(|found| found.resources.len()), Ok(1));
        assert!(aggregated(whole(MOST + 1).as_bytes(), "g", "v1").is_err());
    }

    #[test]
    fn of_everything_one_version_is_taken() {
        let foos = json!({"resource": "foos", "responseKind": {"group": "", "version": "", "kind": "Foo"},
            "scope": "Cluster", "singularResource": "foo", "verbs": ["get"], "shortNames": ["f"]});
        let mut sent = foos.clone();
        sent["lie"] = json!("x".repeat(100));
        let body = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": [
            {"metadata": {"name": "other"}, "versions": [{"version": "v1", "resources": [{"resource": "bars"}]}]},
            {"metadata": {"name": "g"}, "versions": [{"version": "v1", "resources": [sent]}]}]})
        .to_string();
        let only = |resources| Ok(Found { resources, dropped: Vec::new() });
        assert_eq!(aggregated(body.as_bytes(), "g", "v1"), only(vec![foos]));
        assert_eq!(aggregated(body.as_bytes(), "g", "v2"), only(Vec::new()));
        for lie in ["", "{}", "[1]", r#"{"kind":"APIGroupList","apiVersion":"v1"}"#, &body[..body.len() - 1]] {
            assert!(aggregated(lie.as_bytes(), "g", "v1").is_err(), "{lie}");
        }
        // Nothing is nested deeper than anybody means.
        let deep = format!("{{\"kind\":{}", "[".repeat(100_000));
        assert!(aggregated(deep.as_bytes(), "g", "v1").is_err());
    }

    #[test]
    fn the_old_form_says_the_same() {
        let body = json!({"kind": "APIResourceList", "groupVersion": "g/v1", "resources": [
            {"name": "foos", "singularName": "foo", "namespaced": true, "kind": "Foo", "verbs": ["get"]},
            {"name": "foos/status", "namespaced": true, "kind": "Foo", "verbs": ["get", "update"]},
            {"name": "pods/metric", "namespaced": true, "kind": "Value", "group": "x", "version": "v2", "verbs": ["get"]},
        ]})
        .to_string();
        let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
        let want = vec![
            json!({"resource": "foos", "responseKind": kind("", "", "Foo"), "scope": "Namespaced",
                "singularResource": "foo", "verbs": ["get"], "subresources": [
                    {"subresource": "status", "responseKind": kind("", "", "Foo"), "verbs": ["get", "update"]}]}),
            json!({"resource": "pods", "responseKind": kind("", "", ""), "scope": "Namespaced",
                "singularResource": "", "verbs": [], "subresources": [
                    {"subresource": "metric", "responseKind": kind("x", "v2", "Value"), "verbs": ["get"]}]}),
        ];
        assert_eq!(legacy(body.as_bytes()), Ok(Found { resources: want, dropped: Vec::new() }));
        assert!(legacy(b"{\"kind\":\"Status\"}").is_err());
    }

    #[test]
    fn what_nobody_could_ask_for_is_dropped() {
        let names = ["foos", "", "foos", "a/b", "..", "Some_metric:rate"];
        let resources: Vec<_> = names
            .iter()
            .map(|name| {
                json!({"resource": name, "subresources": [
            {"subresource": "status"}, {"subresource": ""}, {"subresource": "status"}, {"subresource": "x/y"}]})
            })
            .collect();
        let body = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": [
            {"metadata": {"name": "g"}, "versions": [{"version": "v1", "resources": resources}]}]});
        let found = aggregated(body.to_string().as_bytes(), "g", "v1").expect("read");
        let kept = |found: &Found| -> Vec<String> {
            let name = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
            found
                .resources
                .iter()
                .flat_map(|r| {
                    let parts = r["subresources"].as_array().into_iter().flatten();
                    let of = name(r, "resource");
                    let parts = parts.map(move |part| format!("{of}/{}", name(part, "subresource")));
                    std::iter::once(name(r, "resource")).chain(parts)
                })
                .collect()
        };
        let want =
            ["foos", "foos/status", "foos/x/y", "Some_metric:rate", "Some_metric:rate/status", "Some_metric:rate/x/y"];
        assert_eq!(kept(&found), want);
        assert_eq!(
            &found.dropped[..5],
            [
                "\"foos/\": it has no name",
                "\"foos/status\": it is there twice",
                "\"\": it has no name",
                "\"foos\": it is there twice",
                "\"a/b\": its name cannot be part of a path"
            ]
        );
        let entries: Vec<_> = ["bars/status", "bars", "bars", "", "/status", "bars/status", "bars/"]
            .iter()
            .map(|name| json!({"name": name, "kind": "Bar", "verbs": ["get"]}))
            .collect();
        let body = json!({"kind": "APIResourceList", "resources": entries}).to_string();
        let found = legacy(body.as_bytes()).expect("read");
        assert_eq!(kept(&found), ["bars", "bars/status"]);
        assert_eq!(found.dropped.len(), 4, "{:?}", found.dropped);
    }
}
