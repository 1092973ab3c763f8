//! From a manifest's bytes to static pods: named after the node, told apart by what they say and
//! where they come from, with defaults, and free of references to the API server. Pure.

use std::path::PathBuf;

use api::types::core::v1 as core;
use jiff::Timestamp;
use kinds::kind::{AnyKind, ClusterOptions, Ctx, Verb};
use machinery::decode::{self, Format, Strictness};
use machinery::yaml;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;

use crate::pod::BoundPod;

/// What a static pod's manifest was read from.
pub const SOURCE: &str = "kubernetes.io/config.source";
/// Tells one version of a static pod from another.
pub const HASH: &str = "kubernetes.io/config.hash";
/// When the kubelet first saw it.
pub const SEEN: &str = "kubernetes.io/config.seen";
/// Marks the object in the API that shows a static pod; its value is that pod's hash.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// Pods that one list may have.
const MAX_PODS: usize = 500;

/// Where a manifest comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    File(PathBuf),
    Url(String),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Url(url) => f.write_str(url),
        }
    }
}

impl Origin {
    fn source(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Url(_) => "http",
        }
    }
}

/// The pods that a manifest describes; the error says what is wrong with it. A file holds one pod, an
/// URL may answer with a list.
pub fn parse(bytes: &[u8], origin: &Origin, node: &str, now: Timestamp) -> Result<Vec<Arc<BoundPod>>, String> {
    let format = match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
        None => return Err("it is empty".to_owned()),
        Some(b'{') => Format::Json,
        Some(_) => Format::Yaml,
    };
    let pod = kinds::by_kind("", "v1", "Pod").ok_or("pods are not known")?;
    if let (Origin::Url(_), Some(items)) = (origin, list(bytes, format)) {
        if items.len() > MAX_PODS {
            return Err(format!("it lists {} pods, more than {MAX_PODS}", items.len()));
        }
        return items
            .into_iter()
            .map(|item| {
                let decoded = decode::tree(item, &pod.schema(), Strictness::Warn).map_err(|e| e.message.to_string())?;
                one(pod, decoded.value, origin, node, now)
            })
            .collect();
    }
    let decoded = decode::decode(bytes, format, &pod.schema(), Strictness::Warn).map_err(|e| e.message.to_string())?;
    for warning in &decoded.warnings {
        tracing::warn!(manifest = %origin, warning, "a field of a static pod's manifest is not read");
    }
    Ok(vec![one(pod, decoded.value, origin, node, now)?])
}

/// The items of a list of pods; `None` for whatever else it is.
fn list(bytes: &[u8], format: Format) -> Option<Vec<Value>> {
    if bytes.len() > decode::MAX_BYTES {
        return None;
    }
    let mut value = match format {
        Format::Json => serde_json::from_slice(bytes).ok()?,
        Format::Yaml => yaml::read(bytes).ok()?,
    };
    decode::check_depth(&value).ok()?;
    let kind = value.get("kind").and_then(Value::as_str)?;
    if !matches!(kind, "PodList" | "List") {
        return None;
    }
    match value.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => Some(items),
        _ => Some(Vec::new()),
    }
}

fn one(kind: &dyn AnyKind, value: Value, origin: &Origin, node: &str, now: Timestamp) -> Result<Arc<BoundPod>, String> {
    let hash = hash(&value, origin, node);
    let typed = |value: &Value| kinds::pod::read(value).map_err(|e| format!("invalid pod: {e}"));
    let mut pod = typed(&value)?;
    let meta = &mut pod.metadata;
    let name = meta.name.clone().filter(|n| !n.is_empty()).ok_or("invalid pod: name is needed for the pod")?;
    let uid = meta.uid.clone().filter(|u| !u.is_empty()).unwrap_or(hash);
    meta.name = Some(format!("{name}-{}", node.to_lowercase()));
    meta.uid = Some(uid.clone());
    if meta.namespace.as_deref().unwrap_or_default().is_empty() {
        meta.namespace = Some("default".into());
    }
    // What an API server sets is nobody else's to say.
    (meta.deletion_timestamp, meta.deletion_grace_period_seconds) = (None, None);
    (meta.owner_references, meta.resource_version, meta.generate_name) = (None, None, None);
    let annotations = meta.annotations.get_or_insert_default();
    annotations.remove(MIRROR);
    for (key, text) in [(HASH, uid), (SOURCE, origin.source().to_owned()), (SEEN, now.to_string())] {
        annotations.insert(key.to_owned(), text);
    }
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node.to_owned());
    if matches!(origin, Origin::File(_)) {
        tolerate_everything(spec);
    }
    pod.status = None;

    let mut value = serde_json::to_value(&pod).map_err(|e| e.to_string())?;
    value["apiVersion"] = json!("v1");
    value["kind"] = json!("Pod");
    let (user, options) = (kinds::User::default(), ClusterOptions::default());
    let ctx = Ctx { user: &user, verb: Verb::Create, subresource: "", dry_run: false, now, options: &options };
    kind.defaults(&ctx, &mut value).map_err(|e| e.message.to_string())?;
    let errors = kind.validate(&ctx, &value, None).map_err(|e| e.message.to_string())?;
    if !errors.is_empty() {
        return Err(format!("invalid pod: {errors}"));
    }
    let mut pod = typed(&value)?;
    if let Some(resource) = reference(&pod) {
        return Err(format!("static pods may not reference {resource}"));
    }
    pod.status = Some(core::PodStatus { phase: Some("Pending".into()), ..core::PodStatus::default() });
    BoundPod::parse_static(Arc::new(pod)).ok_or_else(|| "invalid pod: its uid is not fit for a file's name".to_owned())
}

/// What the manifest says and where it comes from, as 32 hexadecimal digits. The defaults are left
/// out: a kubelet with others restarts no pod.
fn hash(value: &Value, origin: &Origin, node: &str) -> String {
    let mut hasher = Sha256::new();
    hasher.update(value.to_string());
    match origin {
        Origin::File(path) => hasher.update(format!("host:{node}file:{}", path.display())),
        Origin::Url(url) => hasher.update(format!("url:{url}")),
    }
    hasher.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Trouble of the node ends no static pod.
fn tolerate_everything(spec: &mut core::PodSpec) {
    let wanted =
        core::Toleration { operator: Some("Exists".into()), effect: Some("NoExecute".into()), ..Default::default() };
    let tolerations = spec.tolerations.get_or_insert_default();
    if !tolerations.contains(&wanted) {
        tolerations.push(wanted);
    }
}

/// The first sort of object of the API server that the pod needs: it must run without one.
pub fn reference(pod: &core::Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    let given = |text: &Option<String>| text.as_deref().is_some_and(|t| !t.is_empty());
    if given(&spec.service_account_name) || given(&spec.service_account) {
        return Some("serviceaccounts");
    }
    let containers = || spec.init_containers.iter().flatten().chain(&spec.containers);
    let variables = || containers().flat_map(|c| c.env.iter().flatten()).filter_map(|v| v.value_from.as_ref());
    let bulk = || containers().flat_map(|c| c.env_from.iter().flatten());
    let secret = spec.image_pull_secrets.as_ref().is_some_and(|s| !s.is_empty())
        || variables().any(|v| v.secret_key_ref.is_some())
        || bulk().any(|e| e.secret_ref.is_some());
    if secret {
        return Some("secrets");
    }
    if variables().any(|v| v.config_map_key_ref.is_some()) || bulk().any(|e| e.config_map_ref.is_some()) {
        return Some("configmaps");
    }
    if spec.resource_claims.as_ref().is_some_and(|c| !c.is_empty()) {
        return Some("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(volume_reference)
}

fn volume_reference(volume: &core::Volume) -> Option<&'static str> {
    // Drivers that keep their credentials in a Secret name it; without one they need no API server.
    let credentials = volume.cephfs.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.rbd.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.flex_volume.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.iscsi.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.cinder.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.storageos.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.scale_io.is_some();
    match volume {
        v if v.config_map.is_some() => Some("configmaps (via configmap volumes)"),
        v if v.secret.is_some() => Some("secrets (via secret volumes)"),
        v if v.csi.is_some() => Some("csidrivers (via CSI volumes)"),
        v if v.glusterfs.is_some() => Some("endpoints (via glusterFS volumes)"),
        v if v.persistent_volume_claim.is_some() => Some("persistentvolumeclaims"),
        v if v.ephemeral.is_some() => Some("persistentvolumeclaims (via ephemeral volumes)"),
        v if v.azure_file.is_some() => Some("secrets (via azureFile volumes)"),
        _ if credentials => Some("secrets"),
        v => v.projected.iter().flat_map(|p| p.sources.iter().flatten()).find_map(|source| match source {
            s if s.config_map.is_some() => Some("configmaps (via projected volumes)"),
            s if s.secret.is_some() => Some("secrets (via projected volumes)"),
            s if s.service_account_token.is_some() => Some("serviceaccounts (via projected volumes)"),
            s if s.cluster_trust_bundle.is_some() => Some("clustertrustbundles"),
            s if s.pod_certificate.is_some() => Some("podcertificates"),
            _ => None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  labels: {app: web}\nspec:\n  containers:\n  - name: c\n    image: x:1\n";

    fn file() -> Origin {
        Origin::File("/etc/manifests/web.yaml".into())
    }

    fn read(text: &str, origin: &Origin) -> Result<Vec<Arc<BoundPod>>, String> {
        parse(text.as_bytes(), origin, "node-1", Timestamp::from_second(1_700_000_000).expect("a time"))
    }

    #[test]
    fn a_file_becomes_a_pod_of_this_node() {
        let pods = read(WEB, &file()).expect("a pod");
        let pod = &pods[0];
        assert!(pod.is_static() && pod.is_critical());
        assert_eq!((pod.name.as_str(), pod.namespace.as_str(), pod.uid.len()), ("web-node-1", "default", 32));
        let annotations = pod.meta().annotations.clone().expect("annotations");
        assert_eq!(annotations[HASH], pod.uid);
        assert_eq!(annotations[SOURCE], "file");
        assert_eq!(annotations[SEEN], "2023-11-14T22:13:20Z");
        let spec = pod.spec();
        assert_eq!(spec.node_name.as_deref(), Some("node-1"));
        assert_eq!(spec.restart_policy.as_deref(), Some("Always"), "defaults are filled in");
        let tolerations = serde_json::to_value(&spec.tolerations).expect("a tree");
        assert_eq!(tolerations, json!([{"operator": "Exists", "effect": "NoExecute"}]));
        assert_eq!(pod.status().phase.as_deref(), Some("Pending"));
        assert!(!crate::pod::tests::pod(json!({"spec": {"containers": []}})).is_static());
    }

    #[test]
    fn what_it_says_and_where_it_is_tell_pods_apart() {
        let uid = |text: &str, origin: &Origin| read(text, origin).expect("a pod")[0].uid.clone();
        let first = uid(WEB, &file());
        assert_eq!(first, uid(&format!("# a comment\n{WEB}"), &file()), "a comment says nothing");
        let json = r#"{"kind":"Pod","apiVersion":"v1","spec":{"containers":[{"image":"x:1","name":"c"}]},
            "metadata":{"labels":{"app":"web"},"name":"web"}}"#;
        assert_eq!(first, uid(json, &file()), "the same as JSON");
        assert_ne!(first, uid(&WEB.replace("x:1", "x:2"), &file()));
        assert_ne!(first, uid(WEB, &Origin::File("/etc/manifests/other.yaml".into())));
        assert_eq!(uid(&WEB.replace("name: web\n", "name: web\n  uid: mine\n"), &file()), "mine");
    }

    #[test]
    fn an_url_may_list_pods() {
        let url = Origin::Url("http://example.invalid/pods".into());
        let pod =
            |name: &str| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
        let list = json!({"apiVersion": "v1", "kind": "PodList", "items": [pod("a"), pod("b")]}).to_string();
        let pods = read(&list, &url).expect("pods");
        let names: Vec<_> = pods.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["a-node-1", "b-node-1"]);
        assert_eq!(pods[0].meta().annotations.as_ref().expect("annotations")[SOURCE], "http");
        assert_eq!(pods[0].spec().tolerations, None, "only files say that nothing may end them");
        assert!(read(&list, &file()).is_err(), "a file holds one pod");
    }

    #[test]
    fn what_is_no_pod_is_told() {
        let rows = [
            ("", "it is empty"),
            ("spec: {containers: []}", "invalid pod: name is needed for the pod"),
            ("kind: Pod\nmetadata: {name: a/b}\nspec: {containers: [{name: c, image: x}]}", "invalid pod: "),
            ("kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}", "spec.containers[0].image"),
            ("kind: Pod\nmetadata: {name: a, uid: ../x}\nspec: {containers: [{name: c, image: x}]}", "uid"),
            ("kind: Pod\nmetadata: {name: a}\nspec: {containers: []}", "spec.containers"),
            ("kind: Deployment\nmetadata: {name: a}", "Deployment"),
            ("{", ""),
            ("a: [", ""),
            ("\u{0}\u{1}", ""),
        ];
        for (text, want) in rows {
            let error = read(text, &file()).expect_err(text);
            assert!(error.contains(want), "{text:?}: {error}");
        }
    }

    #[test]
    fn nothing_of_the_api_server_may_be_needed() {
        let volume = |source: Value| json!({"volumes": [source]});
        let projected = |source: Value| volume(json!({"name": "v", "projected": {"sources": [source]}}));
        let env = |from: Value| json!({"containers": [{"name": "c", "image": "x", "env": [{"name": "A", "valueFrom": from}]}]});
        let rows = [
            (json!({}), None),
            (volume(json!({"name": "v", "hostPath": {"path": "/x"}})), None),
            (projected(json!({"downwardAPI": {"items": []}})), None),
            (json!({"serviceAccountName": "x"}), Some("serviceaccounts")),
            (json!({"serviceAccount": "x"}), Some("serviceaccounts")),
            (json!({"imagePullSecrets": [{"name": "x"}]}), Some("secrets")),
            (env(json!({"secretKeyRef": {"name": "x", "key": "k"}})), Some("secrets")),
            (env(json!({"configMapKeyRef": {"name": "x", "key": "k"}})), Some("configmaps")),
            (json!({"resourceClaims": [{"name": "x"}]}), Some("resourceclaims")),
            (volume(json!({"name": "v", "configMap": {"name": "x"}})), Some("configmaps (via configmap volumes)")),
            (volume(json!({"name": "v", "secret": {"secretName": "x"}})), Some("secrets (via secret volumes)")),
            (volume(json!({"name": "v", "persistentVolumeClaim": {"claimName": "x"}})), Some("persistentvolumeclaims")),
            (volume(json!({"name": "v", "csi": {"driver": "x"}})), Some("csidrivers (via CSI volumes)")),
            (projected(json!({"serviceAccountToken": {"path": "t"}})), Some("serviceaccounts (via projected volumes)")),
            (projected(json!({"clusterTrustBundle": {"path": "t"}})), Some("clustertrustbundles")),
        ];
        for (more, want) in rows {
            let mut spec = json!({"containers": [{"name": "c", "image": "x"}]});
            more.as_object().expect("an object").iter().for_each(|(k, v)| spec[k] = v.clone());
            let pod = serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).expect("a pod");
            assert_eq!(reference(&pod), want, "{more}");
        }
    }
}
