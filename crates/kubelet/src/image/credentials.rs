//! Which credentials of a pod's pull secrets fit an image. Pure.

use ::cri::v1;
use api::types::core::v1::Secret;
use base64::Engine as _;
use serde::Deserialize;
use std::collections::BTreeMap;

use super::matching::covers;
use super::reference::Reference;

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    #[serde(rename = "identitytoken")]
    identity_token: String,
}

/// A way to fetch an image, and who may go it.
#[derive(Clone, Debug, PartialEq)]
pub struct Credential {
    pub auth: v1::AuthConfig,
    pub origin: Origin,
}

/// Where a credential came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The node has it: every pod on it may use what it fetches.
    Node,
    /// A pull secret; the hash is that of what is in it.
    Secret { uid: String, namespace: String, name: String, hash: String },
    /// A plugin gave it to a service account.
    Account { uid: String, namespace: String, name: String },
}

/// The credentials to try for an image, the most specific first. A secret that cannot be read gives
/// none: the image may not need it.
pub fn fitting(secrets: &[&Secret], image: &Reference) -> Vec<Credential> {
    let mut found: Vec<(usize, Credential)> = Vec::new();
    for (secret, (server, entry)) in secrets.iter().flat_map(|s| entries(s).into_iter().map(move |e| (*s, e))) {
        if !covers(&server, image) {
            continue;
        }
        let Some((username, password)) = user(&entry) else { continue };
        let auth =
            v1::AuthConfig { username, password, identity_token: entry.identity_token, ..v1::AuthConfig::default() };
        if found.iter().any(|(_, known)| known.auth == auth) {
            continue;
        }
        let meta = &secret.metadata;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let origin = Origin::Secret {
            uid: text(&meta.uid),
            namespace: text(&meta.namespace),
            name: text(&meta.name),
            hash: hash(&auth),
        };
        found.push((server.len(), Credential { auth, origin }));
    }
    found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    found.into_iter().map(|(_, auth)| auth).collect()
}

/// What tells one credential from another without telling it.
fn hash(auth: &v1::AuthConfig) -> String {
    // Lengths first, so that no two credentials are written alike.
    let parts = [&auth.username, &auth.password, &auth.identity_token];
    let text: String = parts.iter().map(|part| format!("{}:{part}", part.len())).collect();
    sha256(text.as_bytes())
}

/// SHA-256 in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn entries(secret: &Secret) -> Vec<(String, Entry)> {
    let data = |key: &str| secret.data.as_ref().and_then(|d| d.get(key));
    if let Some(bytes) = data(".dockerconfigjson") {
        return serde_json::from_slice::<DockerConfig>(&bytes.0)
            .map(|c| c.auths.into_iter().collect())
            .unwrap_or_default();
    }
    if let Some(bytes) = data(".dockercfg") {
        let parsed = serde_json::from_slice::<BTreeMap<String, Entry>>(&bytes.0);
        return parsed.map(|m| m.into_iter().collect()).unwrap_or_default();
    }
    Vec::new()
}

fn user(entry: &Entry) -> Option<(String, String)> {
    if !entry.username.is_empty() || !entry.identity_token.is_empty() {
        return Some((entry.username.clone(), entry.password.clone()));
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(entry.auth.trim()).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.trim_end_matches('\0').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::reference::parse;
    use serde_json::json;

    fn check(config: serde_json::Value, image: &str, users: &[&str]) {
        let encoded = base64::engine::general_purpose::STANDARD.encode(config.to_string());
        let secret = serde_json::from_value(json!({"data": {".dockerconfigjson": encoded}})).expect("a secret");
        let found = fitting(&[&secret], &parse(image).expect("a name"));
        assert_eq!(found.iter().map(|a| a.auth.username.as_str()).collect::<Vec<_>>(), users, "{image}");
    }

    #[test]
    fn the_most_specific_comes_first() {
        let config = json!({"auths": {
            "https://index.docker.io/v1/": {"auth": "aHViOnB3"},
            "reg.io": {"username": "host", "password": "p"},
            "reg.io/team": {"username": "team", "password": "p"},
            "*.reg.io": {"username": "any", "password": "p"},
            "broken": {"auth": "%%%"}}});
        check(config.clone(), "nginx", &["hub"]);
        check(config.clone(), "reg.io/team/app:1", &["team", "host"]);
        // As upstream: the path is a beginning, not a folder.
        check(config.clone(), "reg.io/teams/app:1", &["team", "host"]);
        check(config.clone(), "eu.reg.io/x", &["any"]);
        check(config, "broken.io/x", &[]);
    }

    #[test]
    fn old_configurations_and_where_they_are_from() {
        let encoded = base64::engine::general_purpose::STANDARD.encode(json!({"reg.io": {"auth": "dTpw"}}).to_string());
        let secret = |name: &str| {
            serde_json::from_value::<Secret>(json!({"metadata": {"name": name, "namespace": "ns", "uid": "1"},
                "type": "kubernetes.io/dockercfg", "data": {".dockercfg": encoded}}))
            .expect("a secret")
        };
        let image = parse("reg.io/x").expect("a name");
        let found = fitting(&[&secret("a"), &secret("b")], &image);
        assert_eq!(found.len(), 1, "the same credential is tried once");
        assert_eq!((found[0].auth.username.as_str(), found[0].auth.password.as_str()), ("u", "p"));
        let Origin::Secret { name, hash: of, .. } = &found[0].origin else { panic!("{found:?}") };
        assert_eq!((name.as_str(), of.len()), ("a", 64));
        let auth = |user: &str, password: &str| v1::AuthConfig {
            username: user.into(),
            password: password.into(),
            ..v1::AuthConfig::default()
        };
        assert_ne!(hash(&auth("ab", "c")), hash(&auth("a", "bc")));
    }
}
