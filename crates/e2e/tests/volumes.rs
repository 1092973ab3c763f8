//! Volumes as containers see them, and what is said of those that cannot be made. One cluster, real
//! kubectl, real containers.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::cluster::Cluster;
use e2e::registry::Registry;
use e2e::{images, manifests};
use serde_json::{Value, json};

struct World {
    cluster: Cluster,
    busybox: String,
    nginx: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_and_their_troubles() -> Result<()> {
    let registry = Registry::start(&[images::busybox("busybox:1")?, images::nginx("nginx:1")?]).await?;
    // Before the node says how many it has.
    let huge = HugePages::reserve();
    let cluster = Cluster::start(&[]).await?;
    cluster.trust_registry(&registry)?;
    let (busybox, nginx) = (registry.reference("busybox:1"), registry.reference("nginx:1"));
    let world = World { cluster, busybox, nginx };
    // Looked at last: who uses too much is found every ten seconds.
    let greedy = uses_too_much(&world).await.context("uses too much")?;
    every_kind_is_seen_from_inside(&world).await.context("every kind is seen from inside")?;
    match huge {
        Some(_) => huge_pages_are_a_volume(&world).await.context("huge pages are a volume")?,
        None => eprintln!("this machine gives no huge pages: no pod has had some"),
    }
    authorities_follow_their_bundles(&world).await.context("authorities follow their bundles")?;
    claims_show_their_volumes(&world).await.context("claims show their volumes")?;
    an_image_is_a_volume(&world).await.context("an image is a volume")?;
    no_link_leads_out_of_a_volume(&world).await.context("no link leads out of a volume")?;
    mounts_are_passed_on(&world).await.context("mounts are passed on")?;
    what_cannot_be_mounted_says_why(&world).await.context("what cannot be mounted says why")?;
    a_busy_mount_is_named(&world).await.context("a busy mount is named")?;
    is_evicted(&world, greedy).await.context("is evicted")
}

impl World {
    /// A pod with one container of that script.
    fn pod(&self, name: &str, script: &str, mounts: Value, volumes: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "volumes": volumes,
            "containers": [{"name": "main", "image": self.busybox, "command": ["sh", "-c", script],
                "volumeMounts": mounts}]}})
    }

    async fn apply(&self, object: &Value) -> Result<()> {
        self.cluster.apply(&object.to_string()).await.map(drop)
    }

    /// What a pod's container printed when it ended well.
    async fn said(&self, pod: &str) -> Result<Vec<String>> {
        self.cluster
            .eventually(&format!("pod {pod} ends"), || async {
                let object = self.cluster.json(&["get", "pod", pod]).await?;
                let status = &object["status"];
                ensure!(status["phase"] == "Succeeded" || status["phase"] == "Failed", "{status:#}");
                Ok(())
            })
            .await?;
        let log = self.cluster.kubectl(&["logs", pod]).await?;
        let object = self.cluster.json(&["get", "pod", pod]).await?;
        ensure!(object["status"]["phase"] == "Succeeded", "{log}\n{:#}", object["status"]);
        Ok(log.lines().map(str::to_owned).collect())
    }

    async fn remove(&self, pods: &[&str]) -> Result<()> {
        self.cluster.kubectl(&[&["delete", "pod", "--grace-period=1"], pods].concat()).await.map(drop)
    }

    /// The pod has a Wait of the kubelet's with that code, and an event of that reason and text.
    async fn says(&self, pod: &str, code: &str, on: &str, text: &str, event: Option<(&str, &str)>) -> Result<()> {
        self.cluster
            .eventually(&format!("pod {pod} waits on {on}"), || async {
                let list = self.cluster.json(&["get", "waits", "-A"]).await?;
                let all = list["items"].as_array().cloned().unwrap_or_default();
                let found = all.iter().any(|w| {
                    let has = |key: &str, part: &str| w[key].as_str().is_some_and(|t| t.contains(part));
                    w["object"]["name"] == pod && w["code"] == code && has("on", on) && has("text", text)
                });
                ensure!(found, "{all:#?}");
                let Some((reason, text)) = event else { return Ok(()) };
                let list = self.cluster.json(&["get", "events"]).await?;
                let all = list["items"].as_array().cloned().unwrap_or_default();
                let told = |e: &Value| {
                    e["involvedObject"]["name"] == pod
                        && e["reason"] == reason
                        && e["message"].as_str().is_some_and(|m| m.contains(text))
                };
                ensure!(all.iter().any(told), "no event {reason} {text} in {all:#?}");
                Ok(())
            })
            .await
    }

    /// A folder of the host for this test.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.cluster.root().join("host").join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

async fn every_kind_is_seen_from_inside(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let host = world.folder("seen")?;
    std::fs::write(host.join("file"), "of the host")?;
    world
        .apply(&json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "seen"}, "immutable": true,
                "data": {"k": "v", "other": "x"}},
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "seen"}, "stringData": {"p": "pw"}}]}))
        .await?;
    let script = "
        echo disk $(stat -c %a /disk); echo memory $(df -k /memory | awk 'NR==2 {print $2}')
        echo whole $(df -k /whole | awk 'NR==2 {print $2}')
        echo map $(ls /map) $(stat -L -c %a /map/d/x) $(cat /map/d/x)
        echo secret $(stat -L -c %a /secret/p) $(cat /secret/p) $(awk '$2==\"/secret\" {print $3}' /proc/mounts)
        echo none $(ls /none | wc -l)
        echo all $(cat /all/name) $(cat /all/p) $(cat /all/ns) $(test -s /all/token && echo token)
        echo host $(cat /host/file); echo part $(cat /part); echo own $(cat /own/who)
        (echo no > /fixed/x) 2>/dev/null || echo fixed
        (echo no > /map/x) 2>/dev/null || echo of objects";
    let mounts = json!([
        {"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"},
        {"name": "whole", "mountPath": "/whole"}, {"name": "map", "mountPath": "/map"},
        {"name": "secret", "mountPath": "/secret"}, {"name": "none", "mountPath": "/none"},
        {"name": "all", "mountPath": "/all"}, {"name": "host", "mountPath": "/host"},
        {"name": "host", "mountPath": "/part", "subPath": "file"},
        {"name": "all", "mountPath": "/own/who", "subPathExpr": "$(WHAT)"},
        {"name": "disk", "mountPath": "/fixed", "readOnly": true, "recursiveReadOnly": "IfPossible"}]);
    let volumes = json!([
        {"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
        {"name": "whole", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}},
        {"name": "map", "configMap": {"name": "seen", "items": [{"key": "k", "path": "d/x", "mode": 0o440}]}},
        {"name": "secret", "secret": {"secretName": "seen", "defaultMode": 0o400}},
        {"name": "none", "configMap": {"name": "no-such", "optional": true}},
        {"name": "all", "projected": {"sources": [
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"secret": {"name": "seen"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca"}]}},
            {"downwardAPI": {"items": [{"path": "ns", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
            {"serviceAccountToken": {"path": "token", "audience": "somebody"}}]}},
        {"name": "host", "hostPath": {"path": host, "type": "Directory"}}]);
    let mut pod = world.pod("seen", script, mounts, volumes);
    pod["spec"]["containers"][0]["env"] = json!([{"name": "WHAT", "value": "name"}]);
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "64Mi"}});
    world.apply(&pod).await?;
    let said = world.said("seen").await?;
    let want = [
        "disk 777",
        "memory 8192",
        // What the pod may have is less than what the volume may.
        "whole 65536",
        "map d 440 v",
        "secret 400 pw tmpfs",
        "none 0",
        "all seen pw default token",
        "host of the host",
        "part of the host",
        "own seen",
        "fixed",
        "of objects",
    ];
    ensure!(said == want, "{said:#?}");
    let object = cluster.json(&["get", "pod", "seen"]).await?;
    let shown = object.pointer("/status/containerStatuses/0/volumeMounts").cloned().unwrap_or_default();
    let fixed = shown.as_array().and_then(|l| l.iter().find(|m| m["mountPath"] == "/fixed")).cloned();
    let fixed = fixed.unwrap_or_default();
    ensure!(fixed["readOnly"] == true && fixed["recursiveReadOnly"] == "Disabled", "{shown:#}");
    world.remove(&["seen"]).await
}

const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Huge pages of this machine, as many as a pod here takes and one; given back at the end.
struct HugePages(String);

impl HugePages {
    /// `None` where the kernel has none to give.
    fn reserve() -> Option<Self> {
        let old = Self(std::fs::read_to_string(HUGE_PAGES).ok()?);
        let count: u64 = old.0.trim().parse().ok()?;
        std::fs::write(HUGE_PAGES, (count + 3).to_string()).ok()?;
        let now: u64 = std::fs::read_to_string(HUGE_PAGES).ok()?.trim().parse().ok()?;
        (now == count + 3).then_some(old)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // Nobody here could do anything about it.
        let _ = std::fs::write(HUGE_PAGES, self.0.trim());
    }
}

async fn huge_pages_are_a_volume(world: &World) -> Result<()> {
    let script = "
        echo $(awk '$2==\"/huge\" {print $3}' /proc/mounts) $(awk '$2==\"/huge\" {print $4}' /proc/mounts | tr , '\\n' | grep pagesize)
        before=$(awk '/HugePages_Free/ {print $2}' /proc/meminfo)
        fallocate -l 4M /huge/pages && echo taken $(($before - $(awk '/HugePages_Free/ {print $2}' /proc/meminfo)))";
    let mounts = json!([{"name": "huge", "mountPath": "/huge"}]);
    let volumes = json!([{"name": "huge", "emptyDir": {"medium": "HugePages"}}]);
    let mut pod = world.pod("huge", script, mounts, volumes);
    let limits = json!({"hugepages-2Mi": "4Mi", "memory": "32Mi", "cpu": "100m"});
    pod["spec"]["containers"][0]["resources"] = json!({"limits": limits});
    world.apply(&pod).await?;
    let said = world.said("huge").await?;
    ensure!(said == ["hugetlbfs pagesize=2M", "taken 2"], "{said:#?}");
    world.remove(&["huge"]).await
}

/// An authority's certificate.
fn authority(world: &World, name: &str) -> Result<String> {
    let authority = pki::Authority::generate(name, world.cluster.clock.wall())?;
    Ok(authority.certificate().to_owned())
}

async fn authorities_follow_their_bundles(world: &World) -> Result<()> {
    let bundle = |name: &str, signer: Option<&str>, text: &str| {
        json!({"apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle",
            "metadata": {"name": name, "labels": {"live": "yes"}}, "spec": {"signerName": signer, "trustBundle": text}})
    };
    let (one, two) = (authority(world, "one")?, authority(world, "two")?);
    world.apply(&bundle("plain", None, &one)).await?;
    let signer = "example.com/signer";
    let script = "
        echo $(grep -c BEGIN /trust/plain) $(grep -c BEGIN /trust/signed)
        until [ \"$(grep -c BEGIN /trust/plain) $(grep -c BEGIN /trust/signed)\" = '2 1' ]; do sleep 0.1; done; echo live";
    let sources = json!([
        {"clusterTrustBundle": {"name": "plain", "path": "plain"}},
        {"clusterTrustBundle": {"signerName": signer, "labelSelector": {"matchLabels": {"live": "yes"}},
            "path": "signed", "optional": true}}]);
    let volumes = json!([{"name": "trust", "projected": {"sources": sources}}]);
    world.apply(&world.pod("trusts", script, json!([{"name": "trust", "mountPath": "/trust"}]), volumes)).await?;
    world.cluster.kubectl(&["wait", "--for=condition=Ready", "pod/trusts", "--timeout=60s"]).await?;
    world.apply(&bundle("plain", None, &format!("{one}{two}"))).await?;
    world.apply(&bundle("example.com:signer:live", Some(signer), &two)).await?;
    let said = world.said("trusts").await?;
    ensure!(said == ["1 0", "live"], "{said:?}");
    world.remove(&["trusts"]).await
}

/// A claim bound by hand to a volume of that source.
async fn bind(world: &World, claim: &str, source: Value) -> Result<()> {
    let volume = format!("pv-{claim}");
    let object = world.cluster.json(&["get", "pvc", claim]).await?;
    let uid = &object["metadata"]["uid"];
    let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": "default", "name": claim, "uid": uid}});
    for (key, value) in source.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let object = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec});
    world.apply(&object).await?;
    let patch = |kind: &'static str, name: String| async move {
        let text = "{\"status\":{\"phase\":\"Bound\"}}";
        world.cluster.kubectl(&["patch", kind, &name, "--subresource=status", "-p", text]).await
    };
    patch("pv", volume).await?;
    patch("pvc", claim.to_owned()).await.map(drop)
}

async fn claim(world: &World, name: &str) -> Result<()> {
    world
        .apply(&json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {"volumeName": format!("pv-{name}"), "storageClassName": "", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}}))
        .await
}

async fn claims_show_their_volumes(world: &World) -> Result<()> {
    let (disk, path) = (world.folder("disk")?, world.folder("path")?);
    std::fs::write(disk.join("old"), "kept")?;
    for name in ["local", "path"] {
        claim(world, name).await?;
    }
    let mounts = json!([{"name": "l", "mountPath": "/l"}, {"name": "p", "mountPath": "/p"},
        {"name": "l", "mountPath": "/deep", "subPath": "made/here"}]);
    let volumes = json!([{"name": "l", "persistentVolumeClaim": {"claimName": "local"}},
        {"name": "p", "persistentVolumeClaim": {"claimName": "path", "readOnly": true}}]);
    let script = "
        echo $(cat /l/old) $(stat -c %g /l/old) $(id -G); echo new > /l/new; echo deep > /deep/x
        (echo no > /p/x) 2>/dev/null || echo only read";
    let mut pod = world.pod("claims", script, mounts, volumes);
    pod["spec"]["securityContext"] = json!({"fsGroup": 4711});
    // Bound by hand: nothing here schedules by claims yet.
    let node = world.cluster.json(&["get", "nodes"]).await?;
    pod["spec"]["nodeName"] = node["items"][0]["metadata"]["name"].clone();
    world.apply(&pod).await?;
    let why = "error processing PVC default/local: PVC is not bound";
    let event = "Unable to attach or mount volumes: unmounted volumes=[l], unattached volumes=[], failed to process \
                 volumes=[l]: error processing PVC default/local: PVC is not bound";
    world.says("claims", "Claim", "persistentvolumeclaim local", why, Some(("FailedMount", event))).await?;
    let host = node["items"][0]["metadata"]["labels"]["kubernetes.io/hostname"].clone();
    let here = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]}});
    bind(world, "local", json!({"local": {"path": disk}, "nodeAffinity": here})).await?;
    bind(world, "path", json!({"hostPath": {"path": path, "type": "Directory"}})).await?;
    let said = world.said("claims").await?;
    ensure!(said == ["kept 4711 0 4711", "only read"], "{said:?}");
    world.remove(&["claims"]).await?;
    ensure!(std::fs::read_to_string(disk.join("new"))? == "new\n", "what it wrote is there");
    ensure!(std::fs::read_to_string(disk.join("made/here/x"))? == "deep\n", "beneath, too");

    // A file that was given away meanwhile is given back, unless the volume's root stands for all of it.
    std::os::unix::fs::chown(disk.join("old"), None, Some(0))?;
    for (name, policy, group) in [("mismatch", "OnRootMismatch", "0"), ("always", "Always", "4711")] {
        let mounts = json!([{"name": "l", "mountPath": "/l"}]);
        let volumes = json!([{"name": "l", "persistentVolumeClaim": {"claimName": "local"}}]);
        let mut pod = world.pod(name, "stat -c %g /l/old", mounts, volumes);
        pod["spec"]["securityContext"] = json!({"fsGroup": 4711, "fsGroupChangePolicy": policy});
        pod["spec"]["nodeName"] = node["items"][0]["metadata"]["name"].clone();
        world.apply(&pod).await?;
        let said = world.said(name).await?;
        ensure!(said == [group], "{policy}: {said:?}");
        world.remove(&[name]).await?;
    }
    Ok(())
}

async fn an_image_is_a_volume(world: &World) -> Result<()> {
    let script = "
        echo $(ls /image/usr/sbin/nginx); echo $(ls /page); (echo no > /image/x) 2>/dev/null || echo only read";
    let mounts = json!([{"name": "web", "mountPath": "/image"},
        {"name": "web", "mountPath": "/page", "subPath": "usr/share/nginx/html"}]);
    let volumes = json!([{"name": "web", "image": {"reference": world.nginx, "pullPolicy": "IfNotPresent"}}]);
    world.apply(&world.pod("image", script, mounts.clone(), volumes)).await?;
    let said = world.said("image").await?;
    ensure!(said.len() == 3 && said[0] == "/image/usr/sbin/nginx" && said[2] == "only read", "{said:?}");
    ensure!(said[1].contains("index"), "{said:?}");
    let never = json!([{"name": "web", "image": {"reference": "pintle.invalid/no/such:1", "pullPolicy": "Never"}}]);
    world.apply(&world.pod("no-image", script, mounts, never)).await?;
    let text = "Container image \"pintle.invalid/no/such:1\" is not present with pull policy of Never";
    world.says("no-image", "ImagePull", "", text, Some(("ErrImageNeverPull", text))).await?;
    let object = world.cluster.json(&["get", "pod", "no-image"]).await?;
    let waiting = object.pointer("/status/containerStatuses/0/state/waiting/reason").cloned();
    ensure!(waiting == Some(json!("ErrImageNeverPull")), "{:#}", object["status"]);
    world.remove(&["image", "no-image"]).await
}

async fn no_link_leads_out_of_a_volume(world: &World) -> Result<()> {
    let volumes = json!([{"name": "v", "emptyDir": {}}]);
    let mount = |sub: &str| json!([{"name": "v", "mountPath": "/v", "subPath": sub}]);
    let mut pod = world.pod("links", "echo reached; ls /v", mount("out"), volumes);
    pod["spec"]["initContainers"] = json!([{"name": "plant", "image": world.busybox,
        "command": ["sh", "-c", "ln -s / /v/out; mkdir /v/real; ln -s real /v/in"],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]);
    let main = pod["spec"]["containers"][0].clone();
    let mut other = main.clone();
    (other["name"], other["volumeMounts"]) = (json!("inside"), mount("in"));
    other["command"] = json!(["sh", "-c", "echo reached"]);
    pod["spec"]["containers"] = json!([main, other]);
    world.apply(&pod).await?;
    let text = "failed to prepare subPath for volumeMount \"v\" of container \"main\"";
    world.says("links", "ContainerConfig", "container main", text, Some(("Failed", text))).await?;
    world
        .cluster
        .eventually("a link within the volume is followed", || async {
            let log = world.cluster.kubectl(&["logs", "links", "-c", "inside"]).await?;
            ensure!(log == "reached\n", "{log}");
            Ok(())
        })
        .await?;
    world.remove(&["links"]).await
}

/// A folder that is a shared mount of its own, until it is dropped.
struct Shared(PathBuf);

impl Shared {
    fn new(folder: PathBuf) -> Result<Self> {
        let run = |args: &[&str]| -> Result<()> {
            ensure!(Command::new("mount").args(args).arg(&folder).status()?.success(), "mount {args:?}");
            Ok(())
        };
        run(&["--bind", &folder.to_string_lossy()])?;
        let shared = Self(folder.clone());
        run(&["--make-rshared"])?;
        Ok(shared)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What a pod mounted in it goes first.
        let _ = Command::new("umount").arg("--recursive").arg(&self.0).status();
    }
}

async fn mounts_are_passed_on(world: &World) -> Result<()> {
    let shared = Shared::new(world.folder("shared")?)?;
    for name in ["made", "given"] {
        std::fs::create_dir_all(shared.0.join(name))?;
    }
    let volumes = json!([{"name": "v", "hostPath": {"path": shared.0, "type": "Directory"}}]);
    let mount = |how: &str| json!([{"name": "v", "mountPath": "/v", "mountPropagation": how}]);
    let script = "mount -t tmpfs made /v/made && echo made > /v/made/x; until [ -e /v/done ]; do sleep 0.1; done; umount /v/made";
    let mut gives = world.pod("gives", script, mount("Bidirectional"), volumes.clone());
    gives["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    let script = "until [ -e /v/made/x ]; do sleep 0.1; done; cat /v/made/x; touch /v/done";
    world.apply(&world.pod("takes", script, mount("HostToContainer"), volumes.clone())).await?;
    let script = "until [ -e /v/done ]; do sleep 0.1; done; ls /v/made | wc -l";
    world.apply(&world.pod("apart", script, mount("None"), volumes)).await?;
    world.cluster.kubectl(&["wait", "--for=condition=Ready", "pod/takes", "pod/apart", "--timeout=60s"]).await?;
    world.apply(&gives).await?;
    let said = world.said("takes").await?;
    ensure!(said == ["made"], "{said:?}");
    let said = world.said("apart").await?;
    ensure!(said == ["0"], "{said:?}");
    world.said("gives").await?;
    world.remove(&["gives", "takes", "apart"]).await
}

async fn what_cannot_be_mounted_says_why(world: &World) -> Result<()> {
    let file = world.folder("file")?.join("f");
    std::fs::write(&file, "")?;
    let mount = json!([{"name": "v", "mountPath": "/v"}]);
    let at = file.display();
    let rows = [
        (
            "not-dir",
            json!({"hostPath": {"path": file, "type": "Directory"}}),
            format!("hostPath type check failed: {at} is not a directory"),
        ),
        ("no-map", json!({"configMap": {"name": "missing"}}), "configmap \"missing\" not found".to_owned()),
        (
            "no-pages",
            json!({"emptyDir": {"medium": "HugePages"}}),
            "hugePages storage requested, but there is no resource request for huge pages".to_owned(),
        ),
        (
            "no-export",
            json!({"nfs": {"server": "127.0.0.1", "path": "/nowhere"}}),
            "Mounting arguments: -t nfs -- 127.0.0.1:/nowhere".to_owned(),
        ),
    ];
    for (name, source, _) in &rows {
        let mut volume = source.clone();
        volume["name"] = json!("v");
        world.apply(&world.pod(name, "true", mount.clone(), json!([volume]))).await?;
    }
    for (name, _, text) in &rows {
        let event = format!("MountVolume.SetUp failed for volume \"v\" : {text}");
        let event = if name.starts_with("not") || *name == "no-map" { event } else { text.clone() };
        world.says(name, "Mount", "volume v", text, Some(("FailedMount", &event))).await?;
    }
    // Nothing that hangs keeps another pod from starting, and none keeps itself from being deleted.
    world.apply(&world.pod("well", "echo well", json!([]), json!([]))).await?;
    ensure!(world.said("well").await? == ["well"]);
    world.remove(&["not-dir", "no-map", "no-pages", "no-export", "well"]).await
}

async fn a_busy_mount_is_named(world: &World) -> Result<()> {
    let volumes = json!([{"name": "busy", "emptyDir": {"medium": "Memory"}}]);
    let mounts = json!([{"name": "busy", "mountPath": "/busy"}]);
    world.apply(&world.pod("busy", "echo x > /busy/x; exec sleep 1000", mounts, volumes)).await?;
    world.cluster.kubectl(&["wait", "--for=condition=Ready", "pod/busy", "--timeout=60s"]).await?;
    let object = world.cluster.json(&["get", "pod", "busy"]).await?;
    let uid = object["metadata"]["uid"].as_str().context("a uid")?;
    let place = world.cluster.root().join(format!("state/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/busy"));
    let held = std::fs::File::open(place.join("x")).with_context(|| place.display().to_string())?;
    world.cluster.kubectl(&["delete", "pod", "busy", "--wait=false", "--grace-period=1"]).await?;
    let by = format!("is busy: process {}", std::process::id());
    world.says("busy", "Unmount", "kubernetes.io~empty-dir/busy", &by, None).await?;
    // Others come and go meanwhile.
    world.cluster.apply(&manifests::script("other", &world.busybox, "exec sleep 1000")).await?;
    world.cluster.kubectl(&["wait", "--for=condition=Ready", "pod/other", "--timeout=60s"]).await?;
    world.remove(&["other"]).await?;
    drop(held);
    world.cluster.kubectl(&["wait", "--for=delete", "pod/busy", "--timeout=60s"]).await?;
    ensure!(!place.exists(), "nothing is left");
    Ok(())
}

/// Two pods that write more than they may: into a volume, and into their own files.
async fn uses_too_much(world: &World) -> Result<[(&'static str, &'static str); 2]> {
    let volumes = json!([{"name": "small", "emptyDir": {"sizeLimit": "1Mi"}}]);
    let mounts = json!([{"name": "small", "mountPath": "/small"}]);
    let script = "dd if=/dev/zero of=/small/x bs=1M count=3; exec sleep 1000";
    world.apply(&world.pod("fills", script, mounts, volumes)).await?;
    let script = "dd if=/dev/zero of=/x bs=1M count=3; exec sleep 1000";
    let mut pod = world.pod("writes", script, json!([]), json!([]));
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {"ephemeral-storage": "1Mi"}});
    world.apply(&pod).await?;
    Ok([
        ("fills", "Usage of EmptyDir volume \"small\" exceeds the limit \"1Mi\". "),
        ("writes", "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "),
    ])
}

async fn is_evicted(world: &World, greedy: [(&str, &str); 2]) -> Result<()> {
    for (pod, why) in greedy {
        world
            .cluster
            .eventually(&format!("pod {pod} is evicted"), || async {
                let object = world.cluster.json(&["get", "pod", pod]).await?;
                let status = &object["status"];
                ensure!(status["phase"] == "Failed" && status["reason"] == "Evicted", "{status:#}");
                ensure!(status["message"] == why, "{status:#}");
                Ok(())
            })
            .await?;
    }
    world.remove(&["fills", "writes"]).await
}
