//! Pods that ask for what this kubelet cannot do.

use serde_json::{Value, json};

use super::sim::{Sim, UID, two};

#[tokio::test]
async fn what_nothing_here_can_do_is_said() {
    let with = |more: Value| {
        let mut spec = two("Always");
        let fields = more.as_object().expect("an object").clone();
        spec.as_object_mut().expect("an object").extend(fields);
        spec
    };
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = json!("v");
        with(json!({"volumes": [volume]}))
    };
    let unsupported = |kind: &str| format!("volumes of kind {kind} are not supported by this kubelet");
    let mount = |why: &str| format!("!FailedMount MountVolume.SetUp failed for volume \"v\" : {why}");
    let huge = "medium HugePages: hugePages storage requested, but there is no resource request for huge pages";
    let certificate = "projected source podCertificate is not supported by this kubelet";
    let bundle = "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"b\" not found";
    let claim = |name: &str| {
        format!(
            "!FailedMount Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to \
             process volumes=[v]: error processing PVC default/{name}: failed to fetch PVC from API server: \
             persistentvolumeclaims \"{name}\" not found"
        )
    };
    let export = "mount failed: exec: \"mount\": executable file not found in $PATH\nMounting command: \
                  mount\nMounting arguments: -t nfs -- s:/";
    let class = "runtimeclass.node.k8s.io \"kata\" not found";
    let claims = "resource claims are not supported by this kubelet: the pod asks for gpu";
    let users = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    let rows = [
        (volume(json!({"persistentVolumeClaim": {"claimName": "c"}})), "Claim", claim("c")),
        (volume(json!({"csi": {"driver": "d"}})), "Mount", mount(&unsupported("csi"))),
        (volume(json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}})), "Claim", claim("web-v")),
        (volume(json!({"nfs": {"server": "s", "path": "/"}})), "Mount", mount(export)),
        (volume(json!({"emptyDir": {"medium": "HugePages"}})), "Mount", mount(huge)),
        (
            volume(json!({"projected": {"sources": [{"clusterTrustBundle": {"name": "b", "path": "p"}}]}})),
            "Mount",
            mount(bundle),
        ),
        (
            volume(json!({"projected": {"sources": [{"podCertificate": {"signerName": "s", "keyType": "ED25519"}}]}})),
            "Mount",
            mount(certificate),
        ),
        (
            with(json!({"runtimeClassName": "kata"})),
            "Sandbox",
            format!("!FailedCreatePodSandBox Failed to create pod sandbox: {class}"),
        ),
        (
            with(json!({"hostUsers": false})),
            "Sandbox",
            format!("!FailedCreatePodSandBox Failed to create pod sandbox: {users}"),
        ),
        (
            with(json!({"resourceClaims": [{"name": "gpu"}]})),
            "Devices",
            format!("!FailedPrepareDynamicResources Failed to prepare dynamic resources: {claims}"),
        ),
    ];
    for (spec, code, event) in rows {
        let sim = Sim::new(10, spec.clone());
        sim.until(&event, |s| {
            let waits = s.report.waiting.lock().get(UID).cloned().unwrap_or_default();
            s.report.events.lock().iter().any(|e| e.starts_with(&event)) && waits.iter().any(|w| w.code == code)
        })
        .await;
        assert!(sim.runtime.seen(UID).containers.is_empty(), "nothing runs: {spec}");
        assert_eq!(sim.cluster.status().phase.as_deref(), Some("Pending"));
    }
}
