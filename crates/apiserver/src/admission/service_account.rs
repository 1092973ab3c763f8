//! Every pod runs as a ServiceAccount that exists, and finds its token where clients look for it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kinds::Verb;
use machinery::{meta, names, status};
use serde_json::{Value, json};
use stdx::{Rng, SharedClock};

use super::{Attributes, Plugin};
use crate::objects::{self, Objects};

const MIRROR: &str = "kubernetes.io/config.mirror";
const VOLUME: &str = "kube-api-access-";
const MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// How long a token is asked for. The odd number marks tokens whose holder may not know that they
/// end; the server gives those a year.
pub const TOKEN_SECONDS: i64 = 3607;

/// How long a pod may wait for the account `default` of a namespace made a moment ago.
const PATIENCE: Duration = Duration::from_secs(1);

/// The plugin.
pub struct ServiceAccount {
    objects: Arc<dyn Objects>,
    clock: SharedClock,
    rng: Rng,
}

impl ServiceAccount {
    /// Over the objects given.
    pub fn new(objects: Arc<dyn Objects>, clock: SharedClock, rng: Rng) -> Self {
        Self { objects, clock, rng }
    }
}

/// What a mirror pod may not have; the text of the refusal.
fn judge_mirror(pod: &Value) -> Result<(), &'static str> {
    let spec = &pod["spec"];
    if spec.get("serviceAccountName").and_then(Value::as_str).is_some_and(|n| !n.is_empty()) {
        return Err("a mirror pod may not reference service accounts");
    }
    if crate::authz::node::references(pod).iter().any(|(kind, _)| *kind == crate::authz::node::Reference::Secret) {
        return Err("a mirror pod may not reference secrets");
    }
    let projected = |v: &Value| v.pointer("/projected/sources").and_then(Value::as_array).cloned().unwrap_or_default();
    let volumes = spec.get("volumes").and_then(Value::as_array).into_iter().flatten();
    if volumes.flat_map(projected).any(|s| s.get("serviceAccountToken").is_some()) {
        return Err("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

/// Gives a pod its account's pull secrets and, unless either says no, its token. `suffix` completes
/// the volume's name.
fn equip(pod: &mut Value, account: &Value, volume: impl FnOnce() -> String) {
    let wants = |object: &Value, pointer: &str| object.pointer(pointer).and_then(Value::as_bool);
    let mount = wants(pod, "/spec/automountServiceAccountToken")
        .or_else(|| wants(account, "/automountServiceAccountToken"))
        .unwrap_or(true);
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if mount {
        let volumes = spec.get("volumes").and_then(Value::as_array).into_iter().flatten();
        let existing = volumes.filter_map(|v| v.get("name")?.as_str()).find(|n| n.starts_with(VOLUME));
        let (name, exists) = existing.map_or_else(|| (volume(), false), |found| (found.to_owned(), true));
        let mut needed = false;
        for list in ["initContainers", "containers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                needed |= mount_token(container, &name);
            }
        }
        if needed && !exists {
            push(spec.entry("volumes").or_insert_with(|| json!([])), token_volume(&name));
        }
    }
    let own = spec.get("imagePullSecrets").and_then(Value::as_array).is_some_and(|s| !s.is_empty());
    if let Some(secrets) = account.get("imagePullSecrets").and_then(Value::as_array).filter(|s| !own && !s.is_empty()) {
        spec.insert("imagePullSecrets".into(), secrets.clone().into());
    }
}

/// Mounts the volume unless something is mounted there already; true when it did.
fn mount_token(container: &mut Value, volume: &str) -> bool {
    let Some(container) = container.as_object_mut() else { return false };
    let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
    let mut paths = mounts.as_array().into_iter().flatten().filter_map(|m| m.get("mountPath")?.as_str());
    if paths.any(|path| path == MOUNT) {
        return false;
    }
    push(mounts, json!({"name": volume, "readOnly": true, "mountPath": MOUNT}));
    true
}

fn push(list: &mut Value, item: Value) {
    match list.as_array_mut() {
        Some(list) => list.push(item),
        None => *list = json!([item]),
    }
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}})
}

#[async_trait]
impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Value>) -> status::Result<()> {
        let Some(pod) = object.filter(|_| attributes.verb == Verb::Create && attributes.is_for(objects::PODS, ""))
        else {
            return Ok(());
        };
        if meta::annotation(pod, MIRROR).is_some() {
            return judge_mirror(pod).map_err(|why| attributes.forbidden(Some(pod), why));
        }
        let name = match pod.pointer("/spec/serviceAccountName").and_then(Value::as_str) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => {
                if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
                    spec.insert("serviceAccountName".into(), json!("default"));
                    spec.insert("serviceAccount".into(), json!("default"));
                }
                "default".to_owned()
            }
        };
        let patience = if name == "default" { PATIENCE } else { Duration::ZERO };
        let found =
            self.objects.expect(objects::SERVICE_ACCOUNTS, attributes.namespace, &name, patience, &self.clock).await?;
        let Some(account) = found else {
            let namespace = attributes.namespace;
            let why = format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
            return Err(attributes.forbidden(Some(pod), why));
        };
        equip(pod, &account, || names::generate(VOLUME, &self.rng));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mut pod: Value, account: Value) -> Value {
        equip(&mut pod, &account, || "kube-api-access-x".to_owned());
        pod
    }

    fn volumes(pod: &Value) -> Vec<&str> {
        pod["spec"]["volumes"].as_array().into_iter().flatten().filter_map(|v| v["name"].as_str()).collect()
    }

    #[test]
    fn a_token_is_mounted_unless_somebody_objects() {
        let pod = || json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        let out = run(pod(), json!({}));
        assert_eq!(volumes(&out), ["kube-api-access-x"]);
        for pointer in ["/spec/containers/0", "/spec/containers/1", "/spec/initContainers/0"] {
            let mount = out.pointer(&format!("{pointer}/volumeMounts/0")).cloned();
            assert_eq!(mount, Some(json!({"name": "kube-api-access-x", "readOnly": true, "mountPath": MOUNT})));
        }
        assert_eq!(
            out["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"],
            3607
        );
        let objects = |pod_says: Value, account_says: Value| {
            let mut pod = pod();
            if !pod_says.is_null() {
                pod["spec"]["automountServiceAccountToken"] = pod_says;
            }
            volumes(&run(pod, json!({"automountServiceAccountToken": account_says}))).len()
        };
        for (pod_says, account_says, want) in [
            (json!(null), json!(null), 1),
            (json!(false), json!(true), 0),
            (json!(true), json!(false), 1),
            (json!(null), json!(false), 0),
        ] {
            assert_eq!(objects(pod_says.clone(), account_says.clone()), want, "{pod_says} {account_says}");
        }
    }

    #[test]
    fn what_is_there_is_kept() {
        let taken = json!({"spec": {"containers": [{"volumeMounts": [{"name": "own", "mountPath": MOUNT}]}]}});
        assert_eq!(run(taken.clone(), json!({})), taken);
        let again = json!({"spec": {"volumes": [{"name": "kube-api-access-abc"}], "containers": [{"name": "a"}]}});
        let out = run(again, json!({}));
        assert_eq!(volumes(&out), ["kube-api-access-abc"]);
        assert_eq!(out["spec"]["containers"][0]["volumeMounts"][0]["name"], "kube-api-access-abc");
    }

    #[test]
    fn pull_secrets_come_from_the_account() {
        let account = json!({"imagePullSecrets": [{"name": "s"}], "automountServiceAccountToken": false});
        assert_eq!(run(json!({"spec": {}}), account.clone())["spec"]["imagePullSecrets"], json!([{"name": "s"}]));
        let own = json!({"spec": {"imagePullSecrets": [{"name": "own"}]}});
        assert_eq!(run(own.clone(), account), own);
    }

    #[test]
    fn mirror_pods_refer_to_nothing_secret() {
        for (spec, want) in [
            (json!({}), Ok(())),
            (json!({"serviceAccountName": "x"}), Err("a mirror pod may not reference service accounts")),
            (json!({"volumes": [{"secret": {"secretName": "x"}}]}), Err("a mirror pod may not reference secrets")),
            (
                json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
                Err("a mirror pod may not use ServiceAccountToken volume projections"),
            ),
        ] {
            assert_eq!(judge_mirror(&json!({"spec": spec})), want, "{spec}");
        }
    }
}
