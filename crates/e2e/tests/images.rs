//! Who may fetch an image, and who may use one that another pod has fetched. One cluster, real
//! kubectl, a registry that asks who is there, and a plugin that knows.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, guard};
use e2e::registry::Registry;
use e2e::{images, manifests};
use host::layout::Layout;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_and_who_may_have_them() -> Result<()> {
    let [secret, account, plugins] = ["secret:1", "account:1", "plugin:1"].map(images::busybox);
    // The others are one image with three names.
    let registry = Registry::start(&[secret?, account?, plugins?, images::nginx("kept:1")?]).await?;
    registry.admit_only("user", "pass word");
    guard().await?;
    let mut cluster = Cluster::prepare()?;
    let (config, folder) = plugin(&cluster, &registry)?;
    let flags = [
        format!("--image-credential-provider-config={config}"),
        format!("--image-credential-provider-bin-dir={folder}"),
    ];
    cluster.trust_registry(&registry)?;
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    cluster.up(&flags).await?;
    only_who_could_fetch_may_use(&cluster, &registry).await.context("only who could fetch may use")?;
    accounts_have_secrets(&cluster, &registry).await.context("accounts have secrets")?;
    a_plugin_knows(&cluster, &registry).await.context("a plugin knows")?;
    what_nobody_uses_goes(&mut cluster, &registry, &flags).await.context("what nobody uses goes")?;
    a_node_without_memory_ends_its_pods(&mut cluster).await.context("a node without memory ends its pods")?;
    a_node_without_disk_or_pids_ends_its_pods(&mut cluster, &registry, &flags)
        .await
        .context("a node without disk or pids")
}

/// A plugin that knows the registry's user for one image only; it notes what it is asked.
fn plugin(cluster: &Cluster, registry: &Registry) -> Result<(String, String)> {
    let folder = cluster.root().join("plugins");
    std::fs::create_dir_all(&folder)?;
    let image = registry.reference("plugin");
    let auth = json!({image.clone(): {"username": "user", "password": "pass word"}});
    let answer = json!({"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "cacheKeyType": "Image", "cacheDuration": "1h", "auth": auth});
    let program = folder.join("knows");
    std::fs::write(&program, format!("#!/bin/sh\ncat >> {}\necho '{answer}'\n", folder.join("asked").display()))?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    let config = json!({"kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1", "providers": [
        {"name": "knows", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "matchImages": [image],
            "defaultCacheDuration": "1m"}]});
    let path = cluster.root().join("plugins.json");
    std::fs::write(&path, config.to_string())?;
    Ok((path.display().to_string(), folder.display().to_string()))
}

fn pod(name: &str, image: &str, secret: Option<&str>, policy: &str) -> Value {
    let secrets: Vec<Value> = secret.iter().map(|name| json!({"name": name})).collect();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "terminationGracePeriodSeconds": 1, "imagePullSecrets": secrets, "containers": [{"name": "main",
            "image": image, "imagePullPolicy": policy, "command": ["sleep", "1000"]}]}})
}

async fn login(cluster: &Cluster, registry: &Registry, name: &str, password: &str) -> Result<()> {
    let (server, password) = (format!("--docker-server={}", registry.address), format!("--docker-password={password}"));
    let args = ["create", "secret", "docker-registry", name, "--docker-username=user", &server, &password];
    cluster.kubectl(&args).await.map(drop)
}

async fn ready(cluster: &Cluster, pod: &str) -> Result<()> {
    cluster.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=60s"]).await.map(drop)
}

/// The pod's container waits for one of these reasons, with that text.
async fn waits(cluster: &Cluster, pod: &str, reasons: &[&str], text: &str) -> Result<()> {
    cluster
        .eventually(&format!("pod {pod} waits for its image"), || async {
            let object = cluster.json(&["get", "pod", pod]).await?;
            let waiting = object.pointer("/status/containerStatuses/0/state/waiting").cloned().unwrap_or_default();
            let fits = reasons.iter().any(|r| waiting["reason"] == *r)
                && waiting["message"].as_str().is_some_and(|m| m.contains(text));
            ensure!(fits, "{:#}", object["status"]);
            Ok(())
        })
        .await
}

async fn only_who_could_fetch_may_use(cluster: &Cluster, registry: &Registry) -> Result<()> {
    let image = registry.reference("secret:1");
    let apply = |object: Value| async move { cluster.apply(&object.to_string()).await };
    login(cluster, registry, "right", "pass word").await?;
    login(cluster, registry, "wrong", "guessed").await?;
    let unpulled = ["ErrImagePull", "ImagePullBackOff"];
    apply(pod("nobody", &image, None, "IfNotPresent")).await?;
    waits(cluster, "nobody", &unpulled, "failed to pull and unpack image").await?;
    apply(pod("somebody", &image, Some("right"), "IfNotPresent")).await?;
    ready(cluster, "somebody").await?;
    // The image is here now: that is nobody's business who could not fetch it.
    apply(pod("guesser", &image, Some("wrong"), "IfNotPresent")).await?;
    waits(cluster, "guesser", &unpulled, "failed to pull and unpack image").await?;
    apply(pod("never", &image, None, "Never")).await?;
    waits(cluster, "never", &["ErrImageNeverPull"], "is not present with pull policy of Never").await?;
    apply(pod("another", &image, Some("right"), "Never")).await?;
    ready(cluster, "another").await?;
    cluster.kubectl(&["delete", "pod", "nobody", "somebody", "guesser", "never", "another"]).await.map(drop)
}

async fn accounts_have_secrets(cluster: &Cluster, registry: &Registry) -> Result<()> {
    cluster.kubectl(&["create", "serviceaccount", "puller"]).await?;
    let patch = "{\"imagePullSecrets\":[{\"name\":\"right\"}]}";
    cluster.kubectl(&["patch", "serviceaccount", "puller", "-p", patch]).await?;
    let mut object = pod("account", &registry.reference("account:1"), None, "Always");
    object["spec"]["serviceAccountName"] = json!("puller");
    cluster.apply(&object.to_string()).await?;
    ready(cluster, "account").await?;
    cluster.kubectl(&["delete", "pod", "account"]).await.map(drop)
}

async fn a_plugin_knows(cluster: &Cluster, registry: &Registry) -> Result<()> {
    let image = registry.reference("plugin:1");
    for name in ["plugged", "again"] {
        cluster.apply(&manifests::script(name, &image, "exec sleep 1000")).await?;
        ready(cluster, name).await?;
    }
    let asked = std::fs::read_to_string(cluster.root().join("plugins/asked"))?;
    let request: Value = serde_json::from_str(&asked).context("one question, and its answer held")?;
    ensure!(request["kind"] == "CredentialProviderRequest", "{asked}");
    ensure!(request["image"] == registry.reference("plugin"), "{asked}");
    cluster.kubectl(&["delete", "pod", "plugged", "again"]).await.map(drop)
}

/// A node whose disk counts as full keeps the images that pods have, and the one its sandboxes are made of.
async fn what_nobody_uses_goes(cluster: &mut Cluster, registry: &Registry, flags: &[&str]) -> Result<()> {
    let mut keeper = pod("keeper", &registry.reference("kept:1"), Some("right"), "IfNotPresent");
    keeper["spec"]["containers"][0]["command"].take();
    cluster.apply(&keeper.to_string()).await?;
    ready(cluster, "keeper").await?;
    let endpoint = format!("unix://{}", Layout::below(cluster.root()).containerd_socket().display());
    let client = cri::Client::new(&endpoint, cluster.clock.clone())?;
    let names = async || -> Result<BTreeSet<String>> {
        Ok(client.list_images().await?.into_iter().flat_map(|image| image.repo_tags).collect())
    };
    let before = names().await?;
    ensure!(before.contains(&registry.reference("plugin:1")), "{before:?}");
    cluster.stop().await?;
    let full = ["--image-gc-high-threshold=1", "--image-gc-low-threshold=0", "--minimum-image-ttl-duration=0s"];
    cluster.up(&[flags, &full].concat()).await?;
    cluster
        .eventually("what nobody uses is gone", || async {
            let now = names().await?;
            let left = ["account:1", "plugin:1"].map(|name| registry.reference(name));
            ensure!(left.iter().all(|name| !now.contains(name)), "{now:?}");
            ensure!(now.contains(&registry.reference("kept:1")), "{now:?}");
            Ok(())
        })
        .await?;
    cluster
        .eventually("it is told that this was too little", || async {
            let events = cluster.kubectl(&["get", "events", "--field-selector", "involvedObject.kind=Node"]).await?;
            ensure!(events.contains("FreeDiskSpaceFailed"), "{events}");
            Ok(())
        })
        .await?;
    // A sandbox can still be made, and what is gone is fetched again.
    cluster.apply(&manifests::script("anew", &registry.reference("plugin:1"), "exec sleep 1000")).await?;
    ready(cluster, "anew").await
}

/// The pods that are there, one after the other, each with what it used: no machine has so much memory.
async fn a_node_without_memory_ends_its_pods(cluster: &mut Cluster) -> Result<()> {
    cluster.stop().await?;
    let grace = "--eviction-soft-grace-period=memory.available=0s";
    cluster.up(&["--eviction-soft=memory.available<1Pi", grace]).await?;
    let cluster = &*cluster;
    for name in ["keeper", "anew"] {
        cluster
            .eventually("it is evicted", || async {
                let status = cluster.json(&["get", "pod", name]).await?["status"].clone();
                ensure!(status["phase"] == "Failed" && status["reason"] == "Evicted", "{status:#}");
                let said = status["message"].as_str().unwrap_or_default();
                let low = "The node was low on resource: memory. Threshold quantity: 1Pi, available: ";
                ensure!(said.starts_with(low), "{said}");
                ensure!(
                    said.contains("Container main was using ") && said.contains(", request is 0, has larger"),
                    "{said}"
                );
                Ok(())
            })
            .await?;
    }
    cluster
        .eventually("events tell of it", || async {
            let events = cluster.json(&["get", "events", "--field-selector", "reason=Evicted"]).await?;
            let starved = events.pointer("/items/0/metadata/annotations/starved_resource");
            ensure!(starved == Some(&json!("memory")), "{events:#}");
            Ok(())
        })
        .await?;
    let pressure = "jsonpath={.items[0].status.conditions[?(@.type==\"MemoryPressure\")].status}";
    let pressure = cluster.kubectl(&["get", "nodes", "-o", pressure]).await?;
    ensure!(pressure == "True", "{pressure}");
    // What they wrote is given back though their objects stay: logs, and with their containers their layers.
    cluster
        .eventually("nothing of them is on the node", || async {
            let logs = std::fs::read_dir(cluster.root().join("state/pod-logs"))?.flatten();
            let left: Vec<_> = logs.filter(|e| e.metadata().is_ok_and(|m| m.is_dir())).map(|e| e.path()).collect();
            ensure!(left.is_empty(), "{left:?}");
            let status = cluster.json(&["get", "pod", "keeper"]).await?["status"].clone();
            ensure!(status["reason"] == "Evicted" && !status["containerStatuses"][0]["state"].is_null(), "{status:#}");
            Ok(())
        })
        .await?;
    cluster.kubectl(&["delete", "pod", "keeper", "anew"]).await.map(drop)
}

/// What nobody needs goes first where the disk is short: the container of a pod that has ended, then its image.
/// As above, no machine has so much of either.
async fn a_node_without_disk_or_pids_ends_its_pods(
    cluster: &mut Cluster,
    registry: &Registry,
    flags: &[&str],
) -> Result<()> {
    let endpoint = format!("unix://{}", Layout::below(cluster.root()).containerd_socket().display());
    let client = cri::Client::new(&endpoint, cluster.clock.clone())?;
    for (signal, bound, resource, condition) in [
        ("nodefs.available", "1Pi", "ephemeral-storage", "DiskPressure"),
        ("pid.available", "1G", "pids", "PIDPressure"),
    ] {
        cluster.stop().await?;
        cluster.up(flags).await?;
        let mut done = pod("done", &registry.reference("kept:1"), Some("right"), "IfNotPresent");
        (done["spec"]["restartPolicy"], done["spec"]["containers"][0]["command"]) = (json!("Never"), json!(["true"]));
        cluster.apply(&done.to_string()).await?;
        cluster.apply(&manifests::script("writer", &registry.reference("plugin:1"), "exec sleep 1000")).await?;
        ready(cluster, "writer").await?;
        cluster
            .eventually("it has ended", || async {
                let status = cluster.json(&["get", "pod", "done"]).await?["status"].clone();
                // The image has no program of that name, where it has no shell: to have ended is enough.
                ensure!(["Succeeded", "Failed"].iter().any(|phase| status["phase"] == *phase), "{status:#}");
                Ok(())
            })
            .await?;
        cluster.stop().await?;
        let soft = [format!("--eviction-soft={signal}<{bound}"), format!("--eviction-soft-grace-period={signal}=0s")];
        cluster.up(&[soft[0].as_str(), soft[1].as_str()]).await?;
        let cluster = &*cluster;
        cluster
            .eventually("it is evicted", || async {
                let status = cluster.json(&["get", "pod", "writer"]).await?["status"].clone();
                ensure!(status["phase"] == "Failed" && status["reason"] == "Evicted", "{status:#}");
                let said = status["message"].as_str().unwrap_or_default();
                let low = format!("The node was low on resource: {resource}. Threshold quantity: {bound}, available: ");
                ensure!(said.starts_with(&low), "{said}");
                Ok(())
            })
            .await?;
        let short = format!("jsonpath={{.items[0].status.conditions[?(@.type==\"{condition}\")].status}}");
        cluster
            .eventually("the Node says so", || async {
                let found = cluster.kubectl(&["get", "nodes", "-o", &short]).await?;
                ensure!(found == "True", "{found}");
                Ok(())
            })
            .await?;
        let left = client.list_containers(None).await?;
        let of_done = left.iter().any(|c| c.labels.get("io.kubernetes.pod.name").is_some_and(|name| name == "done"));
        let images = client.list_images().await?;
        let its_image = images.iter().any(|i| i.repo_tags.contains(&registry.reference("kept:1")));
        let is_short_of_disk = resource == "ephemeral-storage";
        ensure!(of_done != is_short_of_disk && its_image != is_short_of_disk, "{signal}: {left:?} {images:?}");
        cluster.kubectl(&["delete", "pod", "done", "writer"]).await?;
    }
    Ok(())
}

/// A disk in memory, until it is dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&at)?;
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", "size=256m", "images"]).arg(&at).status()?;
        ensure!(done.success(), "mount: {done}");
        Ok(Self(at))
    }

    fn unmount(&self) -> Result<()> {
        let done = Command::new("umount").arg("--recursive").arg(&self.0).output()?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A test that failed leaves containers mounted on it. Where it stays, the cluster's end says so.
        let _ = self.unmount();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_have_a_disk_of_their_own() -> Result<()> {
    let registry = Registry::start(&[images::busybox("box:1")?, images::nginx("kept:1")?]).await?;
    guard().await?;
    let mut cluster = Cluster::prepare()?;
    cluster.trust_registry(&registry)?;
    let disk = Disk::mount(Layout::below(cluster.root()).containerd_root())?;
    let works = a_short_disk_of_images(&mut cluster, &registry, &disk).await;
    // What it left may be the next to be told, instead of this.
    works.as_ref().err().into_iter().for_each(|error| eprintln!("{error:?}"));
    let stopped = cluster.pintle(&["down", "--pods"]).await?;
    ensure!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    // What has ended holds it for a moment longer.
    let gone = cluster.eventually("the disk is let go of", || async { disk.unmount() }).await;
    works.and(gone)
}

/// It is looked at by itself: images that nobody needs go first, then pods; the disk of the pods has room.
async fn a_short_disk_of_images(cluster: &mut Cluster, registry: &Registry, disk: &Disk) -> Result<()> {
    let soft = ["--eviction-soft=imagefs.available<50%", "--eviction-soft-grace-period=imagefs.available=0s"];
    let at_once = ["--eviction-pressure-transition-period=1s", "--minimum-image-ttl-duration=0s"];
    cluster.up(&[soft, at_once].concat()).await?;
    let cluster = &*cluster;
    let mut done = pod("done", &registry.reference("kept:1"), None, "IfNotPresent");
    (done["spec"]["restartPolicy"], done["spec"]["containers"][0]["command"]) = (json!("Never"), json!(["true"]));
    cluster.apply(&done.to_string()).await?;
    cluster.apply(&manifests::script("writer", &registry.reference("box:1"), "exec sleep 1000")).await?;
    ready(cluster, "writer").await?;
    cluster
        .eventually("the other one has ended", || async {
            let status = cluster.json(&["get", "pod", "done"]).await?["status"].clone();
            // The image has no program of that name, where it has no shell: to have ended is enough.
            ensure!(["Succeeded", "Failed"].iter().any(|phase| status["phase"] == *phase), "{status:#}");
            Ok(())
        })
        .await?;
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]).await?;
    let summary = cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/stats/summary")]).await?;
    let summary: Value = serde_json::from_str(&summary)?;
    let size = |at: &str| summary.pointer(at).and_then(Value::as_u64).unwrap_or_default();
    ensure!(size("/node/runtime/imageFs/capacityBytes") == 256 << 20, "{summary:#}");
    ensure!(size("/node/fs/capacityBytes") > 256 << 20, "{summary:#}");

    let ballast = disk.0.join("ballast");
    std::fs::write(&ballast, vec![b'x'; 128 << 20])?;
    let says = async |pressure: &str| {
        let path = "jsonpath={.items[0].status.conditions[?(@.type==\"DiskPressure\")].status}";
        cluster
            .eventually("the Node says so", || async {
                let found = cluster.kubectl(&["get", "nodes", "-o", path]).await?;
                ensure!(found == pressure, "{found}");
                Ok(())
            })
            .await
    };
    cluster
        .eventually("it is evicted", || async {
            let status = cluster.json(&["get", "pod", "writer"]).await?["status"].clone();
            ensure!(status["phase"] == "Failed" && status["reason"] == "Evicted", "{status:#}");
            let said = status["message"].as_str().unwrap_or_default();
            let low = "The node was low on resource: ephemeral-storage. Threshold quantity: ";
            ensure!(said.starts_with(low), "{said}");
            Ok(())
        })
        .await?;
    says("True").await?;
    let endpoint = format!("unix://{}", Layout::below(cluster.root()).containerd_socket().display());
    let client = cri::Client::new(&endpoint, cluster.clock.clone())?;
    let left = client.list_images().await?;
    let kept = registry.reference("kept:1");
    ensure!(!left.iter().any(|i| i.repo_tags.contains(&kept)), "{left:?}");
    // Once there is room, pods may come again.
    std::fs::remove_file(ballast)?;
    says("False").await?;
    cluster.apply(&manifests::script("anew", &registry.reference("box:1"), "exec sleep 1000")).await?;
    ready(cluster, "anew").await
}
