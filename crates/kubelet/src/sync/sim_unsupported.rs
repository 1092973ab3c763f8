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
    let class = "runtime classes are not supported by this kubelet: the pod asks for \"kata\"";
    let claims = "resource claims are not supported by this kubelet: the pod asks for gpu";
    let users = "user namespaces (hostUsers: false) are not supported by this kubelet";
    let rules = "restart rules with action RestartAllContainers are not supported by this kubelet: container r has one";
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
            with(json!({"initContainers": [{"name": "r", "image": "x:1", "restartPolicyRules": [
                {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [3]}}]}]})),
            "Sandbox",
            format!("!FailedCreatePodSandBox Failed to create pod sandbox: {rules}"),
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

#[tokio::test]
async fn an_ephemeral_container_says_that_it_will_not_start() {
    let sim = Sim::new(11, two("Always"));
    sim.until("ready", |s| s.is_ready()).await;
    sim.cluster.change(|pod| pod["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "x:1"}]));
    sim.show();
    sim.until("told", |s| {
        let status = s.cluster.status();
        let told = status.ephemeral_container_statuses.iter().flatten().find(|c| c.name == "debug");
        told.and_then(|c| c.state.as_ref()?.waiting.as_ref()?.reason.clone()).as_deref()
            == Some("CreateContainerConfigError")
    })
    .await;
    let event = "!Failed [debug] Error: ephemeral containers are not supported by this kubelet";
    assert_eq!(sim.report.events.lock().iter().filter(|e| *e == event).count(), 1);
    let waits = sim.report.waiting.lock().get(UID).cloned().unwrap_or_default();
    assert_eq!(
        waits.iter().map(|w| (w.code, w.on.as_str())).collect::<Vec<_>>(),
        [("ContainerConfig", "ephemeral container debug")]
    );
    assert!(sim.is_ready(), "the others run on");
}
