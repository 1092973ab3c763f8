//! From a claim to the volume it is bound to. Pure: the objects are handed in.

use api::affinity::{self, NodeFacts};
use api::types::core::v1 as core;

use super::source::{self, Source, Wanted};
use crate::pod::BoundPod;

/// The claim that a volume of the pod stands for: its name, and whether the pod only reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    pub claim: String,
    pub read_only: bool,
    /// The claim is made for this pod and must be its own.
    pub ephemeral: bool,
}

/// Why a claim's volume cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The claim is not ready: nothing here can change that.
    Claim(String),
    /// The volume of that name cannot be mounted: the step that fails, and why.
    Volume { name: String, step: &'static str, why: String },
}

/// The claim behind a volume, if there is one.
pub fn of(pod: &BoundPod, volume: &core::Volume) -> Option<Use> {
    if let Some(source) = &volume.persistent_volume_claim {
        let read_only = source.read_only == Some(true);
        return Some(Use { claim: source.claim_name.clone(), read_only, ephemeral: false });
    }
    volume.ephemeral.as_ref()?;
    Some(Use { claim: format!("{}-{}", pod.name, volume.name), read_only: false, ephemeral: true })
}

/// A claim's protection: with it a claim that is being deleted stays as long as pods use it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The name of the volume that the claim is bound to.
pub fn volume_name(pod: &BoundPod, used: &Use, claim: Option<&core::PersistentVolumeClaim>) -> Result<String, Problem> {
    let place = format!("{}/{}", pod.namespace, used.claim);
    let failed = |why: &str| Err(Problem::Claim(format!("error processing PVC {place}: {why}")));
    let Some(claim) = claim else {
        let name = &used.claim;
        return failed(&format!("failed to fetch PVC from API server: persistentvolumeclaims \"{name}\" not found"));
    };
    let protected = claim.metadata.finalizers.iter().flatten().any(|f| f == PROTECTION);
    if claim.metadata.deletion_timestamp.is_some() && !protected {
        return failed("PVC is being deleted");
    }
    if claim.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Bound") {
        return failed("PVC is not bound");
    }
    let name = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).filter(|n| !n.is_empty());
    let Some(name) = name else { return failed("PVC has empty pvc.Spec.VolumeName") };
    if used.ephemeral && !api::owner::is_controlled_by(&claim.metadata, &pod.uid) {
        return Err(Problem::Claim(format!(
            "PVC {place} was not created for pod {}/{} (pod is not owner)",
            pod.namespace, pod.name
        )));
    }
    Ok(name)
}

/// How the pod uses the volume: what else is looked at.
pub struct Look<'a> {
    pub pod: &'a BoundPod,
    pub used: &'a Use,
    /// The volume's name in the pod.
    pub volume: &'a str,
    pub node: NodeFacts<'a>,
}

/// The bound volume as something to be made.
pub fn wanted(
    look: &Look,
    claim: &core::PersistentVolumeClaim,
    name: &str,
    found: Option<&core::PersistentVolume>,
) -> Result<Wanted, Problem> {
    let place = format!("{}/{}", look.pod.namespace, look.used.claim);
    let failed = |why: String| Err(Problem::Claim(format!("error processing PVC {place}: {why}")));
    let Some(found) = found else {
        return failed(format!("failed to fetch PV {name} from API server: persistentvolumes \"{name}\" not found"));
    };
    let spec = found.spec.clone().unwrap_or_default();
    let (owner, uid) = (spec.claim_ref.as_ref(), claim.metadata.uid.as_deref().unwrap_or_default());
    let Some(owner) = owner else {
        return failed(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    };
    let bound = owner.uid.as_deref().unwrap_or_default();
    if bound != uid {
        return failed(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {bound} does not point to claim.UID {uid}"
        ));
    }
    let mode = spec.volume_mode.as_deref().unwrap_or("Filesystem");
    let volume = look.volume;
    let containers = || look.pod.all_containers();
    if mode != "Filesystem" && containers().any(|c| c.volume_mounts.iter().flatten().any(|m| m.name == volume)) {
        let text = format!("volume {volume} has volumeMode {mode}, but is specified in volumeMounts");
        return Err(Problem::Claim(text));
    }
    if mode != "Block" && containers().any(|c| c.volume_devices.iter().flatten().any(|d| d.name == volume)) {
        let text = format!("volume {volume} has volumeMode {mode}, but is specified in volumeDevices");
        return Err(Problem::Claim(text));
    }
    let refused = |step, why: String| Problem::Volume { name: name.to_owned(), step, why };
    let required = spec.node_affinity.as_ref().and_then(|a| a.required.as_ref());
    if required.is_some_and(|selector| !affinity::selector_matches(selector, look.node)) {
        return Err(refused("MountVolume.NodeAffinity check failed", "no matching NodeSelectorTerms".into()));
    }
    let options = spec.mount_options.clone().unwrap_or_default();
    let unsupported = |what: &str| {
        let text = format!("persistent volumes of kind {what} are not supported by this kubelet");
        refused("MountVolume.SetUp failed", text)
    };
    if mode == "Block" {
        return Err(unsupported("Block (volumeMode)"));
    }
    let source = match &spec {
        s if s.host_path.is_some() => {
            let host = s.host_path.clone().unwrap_or_default();
            if !options.is_empty() {
                let text = "Mount options are not supported for this volume type".to_owned();
                return Err(refused("MountVolume.MountOptionSupport check failed", text));
            }
            Source::Host { path: host.path.into(), kind: host.type_.unwrap_or_default() }
        }
        s if s.local.is_some() => Source::Local { path: s.local.clone().unwrap_or_default().path.into() },
        s if s.nfs.is_some() => {
            let nfs = s.nfs.clone().unwrap_or_default();
            source::nfs(&nfs, &options, look.used.read_only || nfs.read_only == Some(true))
        }
        s => return Err(unsupported(kind(s))),
    };
    let read_only = look.used.read_only || spec.nfs.as_ref().and_then(|n| n.read_only) == Some(true);
    Ok(Wanted { volume: volume.to_owned(), shown: name.to_owned(), source, read_only })
}

fn kind(spec: &core::PersistentVolumeSpec) -> &'static str {
    match spec {
        s if s.csi.is_some() => "csi",
        s if s.iscsi.is_some() => "iscsi",
        s if s.fc.is_some() => "fc",
        s if s.flex_volume.is_some() => "flexvolume",
        s if s.rbd.is_some() => "rbd",
        s if s.cephfs.is_some() => "cephfs",
        s if s.azure_file.is_some() => "azure-file",
        s if s.azure_disk.is_some() => "azure-disk",
        s if s.aws_elastic_block_store.is_some() => "aws-ebs",
        s if s.gce_persistent_disk.is_some() => "gce-pd",
        s if s.vsphere_volume.is_some() => "vsphere-volume",
        s if s.cinder.is_some() => "cinder",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    fn check(claim: Value, volume: Value, spec: Value, want: Result<&str, &str>) {
        let mut source = json!({"name": "data", "persistentVolumeClaim": {"claimName": "c"}});
        if spec["readOnly"] == true {
            source["persistentVolumeClaim"]["readOnly"] = json!(true);
        }
        if spec["ephemeral"] == true {
            source = json!({"name": "data", "ephemeral": {}});
        }
        let by = if spec["device"] == true { "volumeDevices" } else { "volumeMounts" };
        let pod = pod(json!({"metadata": {"name": "web", "uid": "u-1"}, "spec": {"volumes": [source],
            "containers": [{"name": "c", by: [{"name": "data", "mountPath": "/d", "devicePath": "/d"}]}]}}));
        let (labels, name) = (BTreeMap::from([("zone".to_owned(), "a".to_owned())]), "n1");
        let object = |v: &Value| (!v.is_null()).then(|| v.clone());
        let read = |v: &Value| object(v).map(|v| serde_json::from_value(v).expect("a claim"));
        let used = of(&pod, &pod.spec().volumes.as_ref().expect("volumes")[0]).expect("a claim");
        let claim: Option<core::PersistentVolumeClaim> = read(&claim);
        let found: Option<core::PersistentVolume> =
            object(&volume).map(|v| serde_json::from_value(v).expect("a volume"));
        let node = NodeFacts { name, labels: &labels };
        let look = Look { pod: &pod, used: &used, volume: "data", node };
        let got = volume_name(&pod, &used, claim.as_ref())
            .and_then(|name| wanted(&look, claim.as_ref().expect("a claim"), &name, found.as_ref()))
            .map(|w| format!("{} {} {:?}", w.shown, w.read_only, w.source))
            .map_err(|problem| match problem {
                Problem::Claim(why) => why,
                Problem::Volume { name, step, why } => format!("{step} for volume \"{name}\" : {why}"),
            });
        assert_eq!(got, want.map(str::to_owned).map_err(str::to_owned));
    }

    fn claim(change: Value) -> Value {
        let mut claim = json!({"metadata": {"name": "c", "uid": "cu"}, "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound"}});
        json_patch(&mut claim, change);
        claim
    }

    fn volume(spec: Value) -> Value {
        let mut volume = json!({"metadata": {"name": "pv"}, "spec": {"claimRef": {"uid": "cu"}}});
        json_patch(&mut volume["spec"], spec);
        volume
    }

    fn json_patch(into: &mut Value, from: Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                from.into_iter().for_each(|(k, v)| json_patch(into.entry(k).or_insert(Value::Null), v));
            }
            (into, from) => *into = from,
        }
    }

    #[test]
    fn claims_that_are_not_ready() {
        let none = || json!({});
        let at = |why: &str| format!("error processing PVC default/c: {why}");
        let table = [
            (Value::Null, "failed to fetch PVC from API server: persistentvolumeclaims \"c\" not found"),
            (claim(json!({"status": {"phase": "Pending"}})), "PVC is not bound"),
            (claim(json!({"spec": {"volumeName": ""}})), "PVC has empty pvc.Spec.VolumeName"),
            (claim(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})), "PVC is being deleted"),
        ];
        for (claim, why) in table {
            check(claim, Value::Null, none(), Err(&at(why)));
        }
        let missing = "failed to fetch PV pv from API server: persistentvolumes \"pv\" not found";
        check(claim(none()), Value::Null, none(), Err(&at(missing)));
        let owned = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [PROTECTION]});
        check(claim(json!({"metadata": owned})), Value::Null, none(), Err(&at(missing)));
        let text = "found PV object pv but its pv.Spec.ClaimRef.UID other does not point to claim.UID cu";
        check(claim(none()), volume(json!({"claimRef": {"uid": "other"}})), none(), Err(&at(text)));
        let text = "found PV object pv but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim";
        check(claim(none()), volume(json!({"claimRef": null})), none(), Err(&at(text)));
        check(
            claim(none()),
            Value::Null,
            json!({"ephemeral": true}),
            Err("PVC default/web-data was not created for pod default/web (pod is not owner)"),
        );
    }

    #[test]
    fn volumes_that_can_be_made() {
        let host = json!({"hostPath": {"path": "/h", "type": "Directory"}});
        let local = json!({"local": {"path": "/l"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}});
        let nfs = json!({"nfs": {"server": "s", "path": "/x"}, "mountOptions": ["vers=4.2"]});
        let read_only = || json!({"readOnly": true});
        let bound = || claim(json!({}));
        check(bound(), volume(host.clone()), json!({}), Ok("pv false Host { path: \"/h\", kind: \"Directory\" }"));
        check(bound(), volume(host), read_only(), Ok("pv true Host { path: \"/h\", kind: \"Directory\" }"));
        check(bound(), volume(local), json!({}), Ok("pv false Local { path: \"/l\" }"));
        let export = |options: &str| format!("Nfs {{ server: \"s\", path: \"/x\", options: [{options}] }}");
        check(bound(), volume(nfs.clone()), json!({}), Ok(&format!("pv false {}", export("\"vers=4.2\""))));
        check(bound(), volume(nfs), read_only(), Ok(&format!("pv true {}", export("\"vers=4.2\", \"ro\""))));
    }

    #[test]
    fn volumes_that_cannot() {
        let bound = || claim(json!({}));
        let elsewhere = json!({"local": {"path": "/l"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}}});
        let text = "MountVolume.NodeAffinity check failed for volume \"pv\" : no matching NodeSelectorTerms";
        check(bound(), volume(elsewhere), json!({}), Err(text));
        let driver = json!({"csi": {"driver": "d", "volumeHandle": "h"}});
        let text = "MountVolume.SetUp failed for volume \"pv\" : persistent volumes of kind csi are not supported by \
                    this kubelet";
        check(bound(), volume(driver), json!({}), Err(text));
        let block = json!({"local": {"path": "/dev/x"}, "volumeMode": "Block"});
        let text = "volume data has volumeMode Block, but is specified in volumeMounts";
        check(bound(), volume(block), json!({}), Err(text));
        let text = "volume data has volumeMode Filesystem, but is specified in volumeDevices";
        check(bound(), volume(json!({"hostPath": {"path": "/h"}})), json!({"device": true}), Err(text));
        let options = json!({"hostPath": {"path": "/h"}, "mountOptions": ["noatime"]});
        let text = "MountVolume.MountOptionSupport check failed for volume \"pv\" : Mount options are not supported \
                    for this volume type";
        check(bound(), volume(options), json!({}), Err(text));
    }
}
