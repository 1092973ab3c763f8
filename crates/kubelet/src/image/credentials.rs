//! Which credentials of a pod's pull secrets fit an image. Pure.

use ::cri::v1;
use api::types::core::v1::Secret;
use base64::Engine as _;
use serde::Deserialize;
use std::collections::BTreeMap;

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

/// The credentials to try for an image, the most specific first. A secret that cannot be read gives
/// none: the image may not need it.
pub fn fitting(secrets: &[&Secret], image: &Reference) -> Vec<v1::AuthConfig> {
    let mut found: Vec<(usize, v1::AuthConfig)> = Vec::new();
    for entry in secrets.iter().flat_map(|s| entries(s)) {
        let (server, entry) = entry;
        let Some(length) = covers(&server, image) else { continue };
        let Some((username, password)) = user(&entry) else { continue };
        let auth = v1::AuthConfig {
            username,
            password,
            identity_token: entry.identity_token,
            server_address: String::new(),
            ..v1::AuthConfig::default()
        };
        if !found.iter().any(|(_, known)| *known == auth) {
            found.push((length, auth));
        }
    }
    found.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    found.into_iter().map(|(_, auth)| auth).collect()
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

/// How many characters of a server entry cover the image; `None` when it is for another place.
fn covers(server: &str, image: &Reference) -> Option<usize> {
    let server = server.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    // The name of the public registry's login endpoint.
    let server = match server {
        "index.docker.io/v1" | "index.docker.io" | "registry-1.docker.io" => "docker.io",
        other => other,
    };
    let (host, path) = server.split_once('/').unwrap_or((server, ""));
    let path = path.trim_start_matches("v1/").trim_start_matches("v2/");
    let path = if path == "v1" || path == "v2" { "" } else { path };
    let host_fits = match host.strip_prefix("*.") {
        Some(tail) => image.host.split_once('.').is_some_and(|(_, rest)| rest == tail),
        None => host == image.host,
    };
    let path_fits = path.is_empty()
        || image.path == path
        || image.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    (host_fits && path_fits).then_some(server.len())
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
        assert_eq!(found.iter().map(|a| a.username.as_str()).collect::<Vec<_>>(), users, "{image}");
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
        check(config.clone(), "reg.io/teams/app:1", &["host"]);
        check(config.clone(), "eu.reg.io/x", &["any"]);
        check(config, "broken.io/x", &[]);
    }
}
