//! Which resources the server has: read from the discovery endpoints every server speaks.

use std::collections::HashSet;

use machinery::names;
use serde::Deserialize;
use serde_json::Value;

use crate::client::{Bounds, Call, Client};
use crate::error::{Error, Result};
use crate::resource::Resource;

/// A resource with the verbs it answers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    pub resource: Resource,
    pub verbs: Vec<String>,
    /// What else people call it: the singular and the short names.
    pub names: Vec<String>,
}

impl Served {
    /// True when the resource answers to all of `verbs`.
    pub fn can(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|v| self.verbs.iter().any(|have| have == v))
    }
}

/// What the server has, each resource once in its preferred version; and the groups that failed.
#[derive(Clone, Debug, Default)]
pub struct Discovered {
    pub resources: Vec<Served>,
    /// Group and version with the error, of those that could not be read.
    pub failed: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Versions {
    versions: Vec<String>,
}

#[derive(Deserialize)]
struct Groups {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    name: String,
    versions: Vec<GroupVersion>,
    preferred_version: Option<GroupVersion>,
}

#[derive(Clone, Deserialize, PartialEq)]
struct GroupVersion {
    version: String,
}

#[derive(Deserialize)]
struct Resources {
    /// Read one by one: another server's list may hold anything.
    #[serde(default)]
    resources: Option<Vec<Value>>,
}

/// No document of discovery is longer.
const LONGEST: usize = 8 << 20;
/// How many reasons are told of one list.
const TOLD: usize = 3;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    name: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    singular_name: String,
    #[serde(default)]
    short_names: Vec<String>,
}

/// Reads everything the server has. Fails only when the list of groups cannot be read.
pub async fn discover(client: &Client) -> Result<Discovered> {
    let mut out = Discovered::default();
    let core: Versions = read(client, "/api").await?;
    let groups: Groups = read(client, "/apis").await?;
    for version in &core.versions {
        add(client, "", version, &mut out).await;
    }
    for group in &groups.groups {
        // The preferred version first: a resource is taken from the first version that has it.
        let preferred = group.preferred_version.iter();
        let others = group.versions.iter().filter(|v| Some(*v) != group.preferred_version.as_ref());
        for version in preferred.chain(others) {
            add(client, &group.name, &version.version, &mut out).await;
        }
    }
    Ok(out)
}

/// Reads what the server has of one version of a group.
///
/// # Errors
/// When the list of its resources cannot be read.
pub async fn discover_version(client: &Client, group: &str, version: &str) -> Result<Vec<Served>> {
    let path = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    let list: Resources = read(client, &path).await?;
    let (served, dropped) = sift(group, version, list.resources.unwrap_or_default());
    if !dropped.is_empty() {
        let (count, some) = (dropped.len(), &dropped[..dropped.len().min(TOLD)]);
        tracing::warn!(path, count, ?some, "entries of a list of resources are passed over");
    }
    Ok(served)
}

/// The resources of a list, and why entries of it are none: one that is odd hides none of the others.
fn sift(group: &str, version: &str, entries: Vec<Value>) -> (Vec<Served>, Vec<String>) {
    let (mut out, mut dropped) = (Vec::<Served>::new(), Vec::new());
    let mut seen = HashSet::new();
    for (at, entry) in entries.into_iter().enumerate() {
        let entry = match Entry::deserialize(entry) {
            Ok(entry) => entry,
            Err(error) => {
                dropped.push(format!("resources[{at}]: {error}"));
                continue;
            }
        };
        let name = entry.name;
        // Parts of resources are not looked for.
        if name.contains('/') {
            continue;
        }
        let wrong = match () {
            () if name.is_empty() => Some("it has no name".to_owned()),
            () if entry.kind.is_empty() => Some(format!("{name:?} has no kind")),
            () if !names::path_segment(&name).is_empty() => Some(format!("{name:?} cannot be part of a path")),
            () if !seen.insert(name.clone()) => Some(format!("{name:?} is there twice")),
            () => None,
        };
        if let Some(wrong) = wrong {
            dropped.push(format!("resources[{at}]: {wrong}"));
            continue;
        }
        let resource = Resource::new(group, version, &name, &entry.kind, entry.namespaced);
        let mut names = entry.short_names;
        names.push(entry.singular_name);
        out.push(Served { resource, verbs: entry.verbs, names });
    }
    (out, dropped)
}

async fn add(client: &Client, group: &str, version: &str, out: &mut Discovered) {
    let all = match discover_version(client, group, version).await {
        Ok(all) => all,
        Err(error) => {
            let name = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
            out.failed.push((name, error.to_string()));
            return;
        }
    };
    for served in all {
        let (group, plural) = (&served.resource.group, &served.resource.plural);
        if !out.resources.iter().any(|s| s.resource.group == *group && s.resource.plural == *plural) {
            out.resources.push(served);
        }
    }
}

async fn read<T: serde::de::DeserializeOwned>(client: &Client, path: &str) -> Result<T> {
    let client = client.clone().with_bounds(Bounds { answer: LONGEST, ..client.bounds() });
    serde_json::from_slice(&client.send(Call::get(path)).await?).map_err(Error::decode)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_odd_entry_hides_no_other() {
        let entries = json!([
            {"name": "foos", "kind": "Foo", "namespaced": true, "verbs": ["get"]},
            {"name": "", "kind": "Foo"},
            {"kind": "Foo"},
            {"name": "bars"},
            {"name": 5, "kind": "Foo"},
            {"name": "foos", "kind": "Other"},
            {"name": "foos/status", "kind": "Foo"},
            {"name": "..", "kind": "Foo"},
            "what",
            {"name": "bazes", "kind": "Baz", "verbs": []},
        ]);
        let (served, dropped) = sift("g", "v1", serde_json::from_value(entries).expect("a list"));
        let names: Vec<(&str, &str)> = served.iter().map(|s| (&*s.resource.plural, &*s.resource.kind)).collect();
        assert_eq!(names, [("foos", "Foo"), ("bazes", "Baz")]);
        assert_eq!(
            dropped,
            [
                "resources[1]: it has no name",
                "resources[2]: missing field `name`",
                "resources[3]: \"bars\" has no kind",
                "resources[4]: invalid type: integer `5`, expected a string",
                "resources[5]: \"foos\" is there twice",
                "resources[7]: \"..\" cannot be part of a path",
                "resources[8]: invalid type: string \"what\", expected struct Entry",
            ]
        );
    }
}
