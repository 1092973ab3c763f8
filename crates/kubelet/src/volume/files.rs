//! Volumes that are files made from objects: configMap, secret, downwardAPI, projected. Pure: what
//! they need, and their contents once that is there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::types::certificates::v1::ClusterTrustBundle;
use api::types::core::v1 as core;

use super::atomic::{File, Payload};
use super::trust;
use crate::container::downward::{self, Place};
use crate::container::env::Objects;
use crate::pod::BoundPod;

/// A token that a volume asks for: audience (empty for the API server's own) and seconds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenKey {
    pub audience: String,
    pub seconds: i64,
}

/// Objects and tokens that a pod refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
    pub tokens: BTreeSet<TokenKey>,
    /// Bundles of authorities, whichever.
    pub bundles: bool,
}

/// What the pod's volumes, environments and pull secrets refer to.
pub fn needs(pod: &BoundPod) -> Needs {
    let mut out = Needs::default();
    for volume in pod.spec().volumes.iter().flatten() {
        for part in volume_parts(volume) {
            match part {
                Part::ConfigMap { name, .. } => drop(out.config_maps.insert(name)),
                Part::Secret { name, .. } => drop(out.secrets.insert(name)),
                Part::Token { key, .. } => drop(out.tokens.insert(key)),
                Part::Trust { .. } => out.bundles = true,
                Part::Downward { .. } => {}
            }
        }
    }
    for container in pod.all_containers() {
        for source in container.env_from.iter().flatten() {
            out.config_maps.extend(source.config_map_ref.iter().map(|r| r.name.clone()));
            out.secrets.extend(source.secret_ref.iter().map(|r| r.name.clone()));
        }
        for from in container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()) {
            out.config_maps.extend(from.config_map_key_ref.iter().map(|r| r.name.clone()));
            out.secrets.extend(from.secret_key_ref.iter().map(|r| r.name.clone()));
        }
    }
    out.secrets.extend(pull_secrets(pod));
    out.config_maps.remove("");
    out.secrets.remove("");
    out
}

/// The names of the pod's pull secrets.
pub fn pull_secrets(pod: &BoundPod) -> impl Iterator<Item = String> {
    pod.spec().image_pull_secrets.iter().flatten().map(|r| r.name.clone()).filter(|n| !n.is_empty())
}

/// Why a volume of files cannot be made, whatever exists: the message of `FailedMount`.
pub fn unsupported(volume: &core::Volume) -> Option<String> {
    let mut sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
    let certificate = sources.any(|s| s.pod_certificate.is_some());
    certificate.then(|| "projected source podCertificate is not supported by this kubelet".to_owned())
}

/// True for volumes whose contents come from objects.
pub fn is_files(volume: &core::Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
}

/// True for volumes that must not reach a disk.
pub fn is_private(volume: &core::Volume) -> bool {
    volume.config_map.is_none() && is_files(volume)
}

enum Part {
    ConfigMap { name: String, optional: bool, items: Option<Vec<core::KeyToPath>>, mode: u32 },
    Secret { name: String, optional: bool, items: Option<Vec<core::KeyToPath>>, mode: u32 },
    Downward { items: Vec<core::DownwardAPIVolumeFile>, mode: u32 },
    Token { key: TokenKey, path: String, mode: u32 },
    Trust { wanted: core::ClusterTrustBundleProjection, mode: u32 },
}

fn mode(mode: Option<i32>) -> u32 {
    mode.and_then(|m| u32::try_from(m).ok()).map_or(0o644, |m| m & 0o777)
}

fn volume_parts(volume: &core::Volume) -> Vec<Part> {
    let yes = |flag: Option<bool>| flag == Some(true);
    if let Some(s) = &volume.config_map {
        let (items, mode) = (s.items.clone(), mode(s.default_mode));
        return vec![Part::ConfigMap { name: s.name.clone(), optional: yes(s.optional), items, mode }];
    }
    if let Some(s) = &volume.secret {
        let name = s.secret_name.clone().unwrap_or_default();
        return vec![Part::Secret {
            name,
            optional: yes(s.optional),
            items: s.items.clone(),
            mode: mode(s.default_mode),
        }];
    }
    if let Some(s) = &volume.downward_api {
        return vec![Part::Downward { items: s.items.clone().unwrap_or_default(), mode: mode(s.default_mode) }];
    }
    let Some(projected) = &volume.projected else { return Vec::new() };
    let mode = mode(projected.default_mode);
    let mut out = Vec::new();
    for source in projected.sources.iter().flatten() {
        if let Some(s) = &source.config_map {
            let items = s.items.clone();
            out.push(Part::ConfigMap { name: s.name.clone(), optional: yes(s.optional), items, mode });
        }
        if let Some(s) = &source.secret {
            out.push(Part::Secret { name: s.name.clone(), optional: yes(s.optional), items: s.items.clone(), mode });
        }
        if let Some(s) = &source.downward_api {
            out.push(Part::Downward { items: s.items.clone().unwrap_or_default(), mode });
        }
        if let Some(s) = &source.service_account_token {
            let audience = s.audience.clone().unwrap_or_default();
            let key = TokenKey { audience, seconds: s.expiration_seconds.unwrap_or(3600) };
            out.push(Part::Token { key, path: s.path.clone(), mode });
        }
        if let Some(s) = &source.cluster_trust_bundle {
            out.push(Part::Trust { wanted: s.clone(), mode });
        }
    }
    out
}

/// What files are made of.
pub struct Inputs<'a> {
    pub pod: &'a BoundPod,
    pub objects: &'a Objects,
    pub tokens: &'a BTreeMap<TokenKey, String>,
    /// `None` while they are not known.
    pub bundles: Option<&'a [Arc<ClusterTrustBundle>]>,
    pub place: &'a Place,
}

/// The files of a volume; the error names what is missing.
pub fn render(volume: &core::Volume, inputs: &Inputs) -> Result<Payload, String> {
    let mut out = Payload::new();
    let security = inputs.pod.spec().security_context.as_ref();
    let group = security.and_then(|s| s.fs_group);
    let user = sole_user(inputs.pod);
    for part in volume_parts(volume) {
        match part {
            Part::ConfigMap { name, optional, items, mode } => {
                let found = inputs.objects.config_maps.get(&name);
                if found.is_none() && !optional {
                    return Err(format!("configmap \"{name}\" not found"));
                }
                let data = found.map(|m| {
                    let text = m.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
                    let binary = m.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()));
                    text.chain(binary).collect()
                });
                keys(&mut out, data.unwrap_or_default(), items, mode, optional, "config")?;
            }
            Part::Secret { name, optional, items, mode } => {
                let found = inputs.objects.secrets.get(&name);
                if found.is_none() && !optional {
                    return Err(format!("secret \"{name}\" not found"));
                }
                let data = found.map(|s| s.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect());
                keys(&mut out, data.unwrap_or_default(), items, mode, optional, "secret")?;
            }
            Part::Downward { items, mode } => {
                for item in items {
                    let text = if let Some(r) = &item.field_ref {
                        downward::field(inputs.pod, inputs.place, &r.field_path)?
                    } else if let Some(r) = &item.resource_field_ref {
                        downward::resource(inputs.pod, inputs.place, r, None)?
                    } else {
                        continue;
                    };
                    let mode = item.mode.map_or(mode, |m| self::mode(Some(m)));
                    out.insert(item.path, File { data: text.into_bytes(), mode, user: None });
                }
            }
            Part::Token { key, path, mode } => {
                let Some(token) = inputs.tokens.get(&key) else {
                    return Err(format!("no token for audience \"{}\" yet", key.audience));
                };
                // Readable by exactly one who is known, else by whatever user the processes have.
                let mode = if user.is_some() || group.is_some() { 0o600 } else { mode };
                out.insert(path, File { data: token.clone().into_bytes(), mode, user });
            }
            Part::Trust { wanted, mode } => {
                let Some(bundles) = inputs.bundles else {
                    return Err("ClusterTrustBundle informer has not yet synced".into());
                };
                let data = trust::anchors(bundles, &wanted)?.into_bytes();
                let mode = if user.is_some() || group.is_some() { 0o600 } else { mode };
                out.insert(wanted.path, File { data, mode, user });
            }
        }
    }
    if group.is_some() {
        // The volume's group reads what its owner reads.
        out.values_mut().for_each(|file| file.mode |= (file.mode & 0o600) >> 3);
    }
    Ok(out)
}

/// The one user that all containers run as, if it is one.
fn sole_user(pod: &BoundPod) -> Option<u32> {
    let whole = pod.spec().security_context.as_ref().and_then(|s| s.run_as_user);
    let mut users = pod.all_containers().map(|c| c.security_context.as_ref().and_then(|s| s.run_as_user).or(whole));
    let first = users.next()??;
    users.all(|u| u == Some(first)).then(|| u32::try_from(first).ok()).flatten()
}

fn keys(
    out: &mut Payload,
    mut data: BTreeMap<String, Vec<u8>>,
    items: Option<Vec<core::KeyToPath>>,
    default_mode: u32,
    optional: bool,
    what: &str,
) -> Result<(), String> {
    let Some(items) = items.filter(|i| !i.is_empty()) else {
        out.extend(data.into_iter().map(|(key, data)| (key, File { data, mode: default_mode, user: None })));
        return Ok(());
    };
    for item in items {
        let Some(data) = data.get_mut(&item.key) else {
            if optional {
                continue;
            }
            return Err(format!("references non-existent {what} key: {}", item.key));
        };
        let mode = item.mode.map_or(default_mode, |m| mode(Some(m)));
        out.insert(item.path, File { data: data.clone(), mode, user: None });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    fn check(spec: Value, volume: Value, want: Result<&[&str], &str>) {
        let mut spec = spec;
        let mut volume = volume;
        volume["name"] = json!("v");
        spec["volumes"] = json!([volume]);
        spec.as_object_mut().expect("a spec").entry("containers").or_insert(json!([]));
        let pod = pod(json!({"metadata": {"labels": {"a": "b"}}, "spec": spec}));
        let map = |v: Value| Arc::new(serde_json::from_value::<core::ConfigMap>(v).expect("a ConfigMap"));
        let secret = |v: Value| Arc::new(serde_json::from_value::<core::Secret>(v).expect("a Secret"));
        let objects = Objects {
            config_maps: [("cm".to_owned(), map(json!({"data": {"k": "1"}, "binaryData": {"b": "Mg=="}})))].into(),
            secrets: [("s".to_owned(), secret(json!({"data": {"p": "cHc="}})))].into(),
        };
        let tokens = [(TokenKey { audience: String::new(), seconds: 3607 }, "tok".to_owned())].into();
        let inputs =
            Inputs { pod: &pod, objects: &objects, tokens: &tokens, bundles: Some(&[]), place: &Place::default() };
        let got = render(&pod.spec().volumes.as_ref().expect("volumes")[0], &inputs);
        let got = got.map(|files| {
            let line = |(path, f): (&String, &File)| {
                let user = f.user.map(|u| format!(" {u}")).unwrap_or_default();
                format!("{path}={} {:o}{user}", String::from_utf8_lossy(&f.data), f.mode)
            };
            files.iter().map(line).collect::<Vec<_>>()
        });
        let want = want.map(|w| w.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()).map_err(str::to_owned);
        assert_eq!(got, want);
    }

    #[test]
    fn config_maps_and_secrets() {
        check(json!({}), json!({"configMap": {"name": "cm"}}), Ok(&["b=2 644", "k=1 644"]));
        check(
            json!({}),
            json!({"configMap": {"name": "cm", "defaultMode": 256, "items": [{"key": "k", "path": "d/x"}]}}),
            Ok(&["d/x=1 400"]),
        );
        check(json!({}), json!({"configMap": {"name": "no"}}), Err("configmap \"no\" not found"));
        check(json!({}), json!({"configMap": {"name": "no", "optional": true}}), Ok(&[]));
        check(
            json!({}),
            json!({"secret": {"secretName": "s", "items": [{"key": "no", "path": "x"}]}}),
            Err("references non-existent secret key: no"),
        );
        check(
            json!({"securityContext": {"fsGroup": 7}}),
            json!({"secret": {"secretName": "s", "defaultMode": 256}}),
            Ok(&["p=pw 440"]),
        );
    }

    #[test]
    fn the_service_account_volume() {
        let volume = json!({"projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "cm", "items": [{"key": "k", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]}});
        check(json!({}), volume.clone(), Ok(&["ca.crt=1 644", "namespace=default 644", "token=tok 644"]));
        let user = json!({"containers": [{"name": "c", "securityContext": {"runAsUser": 5}}]});
        check(user, volume, Ok(&["ca.crt=1 644", "namespace=default 644", "token=tok 600 5"]));
    }

    #[test]
    fn needs_name_everything_once() {
        let pod = pod(json!({"spec": {
            "imagePullSecrets": [{"name": "pull"}],
            "volumes": [{"name": "v", "projected": {"sources": [
                {"serviceAccountToken": {"path": "t"}}, {"secret": {"name": "s1"}}, {"configMap": {"name": "c1"}}]}},
                {"name": "w", "configMap": {"name": "c1"}}],
            "containers": [{"name": "c", "envFrom": [{"secretRef": {"name": "s2"}}],
                "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c2", "key": "k"}}}]}]}}));
        let found = needs(&pod);
        let list = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!((list(&found.config_maps).as_str(), list(&found.secrets).as_str()), ("c1 c2", "pull s1 s2"));
        assert_eq!(found.tokens.len(), 1);
    }
}
