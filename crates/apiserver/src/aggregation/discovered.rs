//! What another server says it serves, read from either form of discovery into what clients are shown. Of what
//! it sends only what discovery knows is kept; pure.

use serde::{Deserialize, Serialize};
use serde_json::Value;

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

fn values(resources: Vec<Resource>) -> Vec<Value> {
    resources.into_iter().filter_map(|resource| serde_json::to_value(resource).ok()).collect()
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
pub(super) fn aggregated(body: &[u8], group: &str, version: &str) -> Result<Vec<Value>, String> {
    let groups: Groups = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if groups.kind != "APIGroupDiscoveryList" || groups.api_version != "apidiscovery.k8s.io/v2" {
        return Err(format!("{} of {} is no discovery", groups.kind, groups.api_version));
    }
    let of_group = groups.items.into_iter().filter(|item| item.metadata.name == group);
    let found = of_group.flat_map(|item| item.versions).find(|item| item.version == version);
    let resources = found.map(|found| found.resources).unwrap_or_default();
    bounded(resources.iter().map(|resource| 1 + resource.subresources.len()).sum())?;
    Ok(values(resources))
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
pub(super) fn legacy(body: &[u8]) -> Result<Vec<Value>, String> {
    let list: List = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if list.kind != "APIResourceList" {
        return Err(format!("{} is no list of resources", list.kind));
    }
    bounded(list.resources.len())?;
    let mut out: Vec<Resource> = Vec::new();
    for entry in list.resources {
        let kind = Kind { group: entry.group, version: entry.version, kind: entry.kind };
        let scope = if entry.namespaced { namespaced() } else { "Cluster".to_owned() };
        let Some((parent, subresource)) = entry.name.split_once('/') else {
            let parts = out.iter().position(|r| r.resource == entry.name).map(|at| out.swap_remove(at).subresources);
            out.push(Resource {
                resource: entry.name,
                response_kind: kind,
                scope,
                singular_resource: entry.singular_name,
                verbs: entry.verbs,
                short_names: entry.short_names,
                categories: entry.categories,
                subresources: parts.unwrap_or_default(),
            });
            continue;
        };
        let subresource = Subresource { subresource: subresource.to_owned(), response_kind: kind, verbs: entry.verbs };
        match out.iter_mut().rev().find(|r| r.resource == parent) {
            Some(parent) => parent.subresources.push(subresource),
            // Some have only parts.
            None => out.push(Resource {
                resource: parent.to_owned(),
                response_kind: Kind::default(),
                scope,
                singular_resource: String::new(),
                verbs: Vec::new(),
                short_names: Vec::new(),
                categories: Vec::new(),
                subresources: vec![subresource],
            }),
        }
    }
    Ok(values(out))
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
        assert_eq!(legacy(list(MOST).as_bytes()).map(|found| found.len()), Ok(MOST));
        let refused = legacy(list(MOST + 1).as_bytes()).expect_err("refused");
        assert_eq!(refused, "1001 resources in one version, more than 1000");
        let whole = |count: usize| {
            let parts: Vec<_> = (1..count).map(|n| json!({"subresource": format!("p{n}")})).collect();
            json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": [{"metadata":
                {"name": "g"}, "versions": [{"version": "v1", "resources": [{"resource": "r", "subresources": parts}]}]}]})
            .to_string()
        };
        assert_eq!(aggregated(whole(MOST).as_bytes(), "g", "v1").map(|found| found.len()), Ok(1));
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
        assert_eq!(aggregated(body.as_bytes(), "g", "v1"), Ok(vec![foos]));
        assert_eq!(aggregated(body.as_bytes(), "g", "v2"), Ok(Vec::new()));
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
        assert_eq!(legacy(body.as_bytes()), Ok(want));
        assert!(legacy(b"{\"kind\":\"Status\"}").is_err());
    }
}
