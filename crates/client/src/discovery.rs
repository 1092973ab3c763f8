//! Which resources the server has: read from the discovery endpoints every server speaks.

use serde::Deserialize;

use crate::client::{Call, Client};
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
    resources: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    name: String,
    kind: String,
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
    let entries = list.resources.into_iter().filter(|entry| !entry.name.contains('/'));
    let served = |entry: Entry| {
        let resource = Resource::new(group, version, &entry.name, &entry.kind, entry.namespaced);
        let mut names = entry.short_names;
        names.push(entry.singular_name);
        Served { resource, verbs: entry.verbs, names }
    };
    Ok(entries.map(served).collect())
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
    serde_json::from_slice(&client.send(Call::get(path)).await?).map_err(Error::decode)
}
