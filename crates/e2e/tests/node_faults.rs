//! What surrounds pods fails: the API server is gone, the disk takes nothing more or may only be read, a mount
//! hangs as it is made or as it ends, a manifest cannot be read. It is told, pods go on, and nothing is to be done once it is over.
//!
//! The kubelet runs alone beside the rest of the cluster: it is to outlive that, and its disk is its own.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use e2e::cluster::{Cluster, PATIENCE};
use e2e::registry::Registry;
use e2e::{images, manifests, runtime};
use host::reset::{self, Step};
use serde_json::{Value, json};
use stdx::ClockExt;
use tokio::process::Child;

const REST: &[&str] = &["--disable=kubelet"];
const FORWARD: &str = "net.ipv4.ip_forward";
/// Where this system keeps programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

struct Node {
    cluster: Cluster,
    endpoint: String,
    busybox: String,
    kubelet: Option<Child>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_are_told_and_outlived() -> Result<()> {
    let forwards = host::sysctl::get(FORWARD)?;
    let registry = Registry::start(&[images::busybox("busybox:1")?]).await?;
    let cluster = Cluster::start(REST).await?;
    cluster.trust_registry(&registry)?;
    let endpoint = runtime::start(cluster.root(), &cluster.clock).await?;
    let disk = Disk::mount(cluster.root().join("state/kubelet"))?;
    let mut node = Node { cluster, endpoint, busybox: registry.reference("busybox:1"), kubelet: None };
    let works = node.all(&disk).await.with_context(|| node.cluster.tail("kubelet.log"));
    // What it left may be the next to be told, instead of this.
    works.as_ref().err().into_iter().for_each(|error| eprintln!("{error:?}"));
    node.kill().await?;
    let stopped = node.cluster.pintle(&["down", "--pods"]).await?;
    ensure!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    drop(disk);
    reset::apply(&Step::RemoveCgroup("/kubepods".into()))?;
    reset::apply(&Step::RestoreSysctl { name: FORWARD.into(), old: forwards })?;
    works
}

/// A small disk that is the kubelet's alone, until it is dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&at)?;
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "small"]).arg(&at).status()?;
        ensure!(done.success(), "mount: {done}");
        Ok(Self(at))
    }

    /// Takes all room that is left; the file that has it.
    fn fill(&self) -> Result<PathBuf> {
        let path = self.0.join("ballast");
        let mut file = std::fs::File::create(&path)?;
        loop {
            match file.write(&[b'x'; 4096]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(path),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn remount(&self, how: &str) -> Result<()> {
        let done = Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&self.0).output()?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A test that failed leaves volumes mounted on it. Where it stays, the cluster's end says so.
        let _ = Command::new("umount").arg("--recursive").arg(&self.0).status();
    }
}

fn ready(pod: &Value) -> bool {
    let all = pod.pointer("/status/conditions").and_then(Value::as_array);
    all.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let all = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
    all.into_iter().flatten().find(|c| c["name"] == name).unwrap_or(&Value::Null)
}

impl Node {
    async fn all(&mut self, disk: &Disk) -> Result<()> {
        std::fs::create_dir_all(self.manifests())?;
        self.start()?;
        let node = self.cluster.eventually("the Node is Ready", || async {
            let nodes = self.cluster.json(&["get", "nodes"]).await?;
            let all = nodes.pointer("/items/0/status/conditions").and_then(Value::as_array);
            let is_ready = all.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True");
            ensure!(is_ready, "{nodes:#}");
            Ok(())
        });
        node.await?;
        without_an_api_server_pods_go_on(self).await.context("without an API server")?;
        a_disk_that_takes_nothing_is_told_and_waited_for(self, disk).await.context("a full disk")?;
        a_disk_that_may_only_be_read_is_too(self, disk).await.context("a disk that may only be read")?;
        a_mount_that_hangs_holds_up_its_own_pod_alone(self).await.context("a mount that hangs")?;
        a_mount_that_hangs_when_it_ends_holds_up_nobody(self).await.context("a mount that hangs at its end")?;
        what_cannot_be_read_ends_nothing(self).await.context("manifests that cannot be read")
    }

    fn manifests(&self) -> PathBuf {
        self.cluster.root().join("static")
    }

    /// Programs that the kubelet finds before the system's.
    fn programs(&self) -> PathBuf {
        self.cluster.root().join("programs")
    }

    fn start(&mut self) -> Result<()> {
        let root = self.cluster.root();
        let below = |name: &str| root.join(name).display().to_string();
        let log = std::fs::OpenOptions::new().create(true).append(true).open(root.join("kubelet.log"))?;
        let child = self
            .cluster
            .pintle_command(&["kubelet", "--kubeconfig", &below("config/kubelet.kubeconfig")])
            .args(["--container-runtime-endpoint", &self.endpoint, "--root-dir", &below("state/kubelet")])
            .args(["--pod-logs-dir", &below("state/pod-logs"), "--pod-manifest-path", &below("static")])
            // The disk is as small and as full as this test wants it.
            .args(["--cluster-dns=10.96.0.10", "--eviction-hard=memory.available<1Mi"])
            .env("PATH", format!("{}:{PATH}", self.programs().display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        self.kubelet = Some(child);
        Ok(())
    }

    async fn kill(&mut self) -> Result<()> {
        if let Some(mut kubelet) = self.kubelet.take() {
            kubelet.kill().await?;
        }
        Ok(())
    }

    /// A pod with these containers and volumes.
    async fn apply(&self, name: &str, containers: Value, volumes: Value) -> Result<()> {
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": containers, "volumes": volumes});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string();
        // The controllers make what a pod needs first: its namespace's ServiceAccount.
        self.cluster.eventually("the pod is accepted", || self.cluster.apply(&pod)).await.map(drop)
    }

    /// A pod that shows what a ConfigMap says.
    async fn apply_reader(&self, name: &str) -> Result<()> {
        let main = json!({"name": "c", "image": self.busybox, "command": ["sh", "-c", "cat /words/it; exec sleep 1000"],
            "volumeMounts": [{"name": "words", "mountPath": "/words"}]});
        self.apply(name, json!([main]), json!([{"name": "words", "configMap": {"name": "words"}}])).await
    }

    async fn until(&self, name: &str, what: &str, check: impl Fn(&Value) -> bool) -> Result<Value> {
        let check = &check;
        let found = self.cluster.eventually(what, move || async move {
            let pod = self.cluster.json(&["get", "pod", name]).await?;
            ensure!(check(&pod), "{pod:#}");
            Ok(pod)
        });
        found.await
    }

    /// The object has a Wait with that code and text.
    async fn waits(&self, name: &str, code: &str, text: &str) -> Result<()> {
        let told = self.cluster.eventually("its Wait", || async {
            let list = self.cluster.json(&["get", "waits", "-A"]).await?;
            let all = list["items"].as_array().cloned().unwrap_or_default();
            let has = |w: &Value, key: &str| w[key].as_str().is_some_and(|t| t.contains(text));
            let found = all
                .iter()
                .any(|w| w["object"]["name"] == name && w["code"] == code && (has(w, "text") || has(w, "on")));
            ensure!(found, "no {code} {text:?} of {name} in {all:#?}");
            Ok(())
        });
        told.await
    }

    /// The pod's volume cannot be made for that reason, and an event and a Wait say so.
    async fn is_not_mounted(&self, name: &str, why: &str) -> Result<()> {
        self.waits(name, "Mount", why).await?;
        let of = format!("involvedObject.name={name},reason=FailedMount");
        let told = self.cluster.eventually("its event", || async {
            let events = self.cluster.kubectl(&["get", "events", "--field-selector", &of]).await?;
            ensure!(events.contains(why), "{events}");
            Ok(())
        });
        told.await
    }

    async fn remove(&self, pods: &[&str]) -> Result<()> {
        self.cluster.kubectl(&[&["delete", "pod", "--grace-period=1"], pods].concat()).await.map(drop)
    }
}

/// Containers end, are probed and begin again; what became of them is told once somebody hears it.
async fn without_an_api_server_pods_go_on(node: &mut Node) -> Result<()> {
    let seen = node.cluster.root().join("gone");
    std::fs::create_dir_all(&seen)?;
    let lives = async |node: &Node, name: &str, count: usize| {
        let path = seen.join(name);
        let begun = node.cluster.eventually("it lives again", || async {
            let lives = std::fs::read_to_string(&path)?.lines().count();
            ensure!(lives == count, "{name} has lived {lives} times, not {count}");
            Ok(())
        });
        begun.await
    };
    let say = |name: &str| std::fs::write(seen.join(name), "");
    let main = |name: &str, more: Value| {
        let script = format!(
            "rm -f /seen/{name}-sick; echo life >> /seen/{name}; until [ -e /seen/{name}-ends ]; do sleep 0.1; done; \
             rm /seen/{name}-ends; exit 3"
        );
        let mut container = json!({"name": name, "image": node.busybox, "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "seen", "mountPath": "/seen"}]});
        if let (Some(all), Value::Object(more)) = (container.as_object_mut(), more) {
            all.extend(more);
        }
        container
    };
    let probe = json!({"exec": {"command": ["test", "!", "-e", "/seen/sick-sick"]}, "periodSeconds": 1,
        "failureThreshold": 1});
    let containers = json!([main("ends", json!({})), main("sick", json!({"livenessProbe": probe}))]);
    let volumes = json!([{"name": "seen", "hostPath": {"path": seen, "type": "Directory"}}]);
    node.apply("alone", containers, volumes).await?;
    let before = node.until("alone", "it is ready", ready).await?;

    node.cluster.stop().await?;
    // Twice: a back-off lies between.
    for count in [2, 3] {
        say("ends-ends")?;
        lives(node, "ends", count).await?;
    }
    say("sick-sick")?;
    lives(node, "sick", 2).await?;
    // Another kubelet that hears of no pods ends none.
    node.kill().await?;
    node.start()?;
    node.cluster.up(REST).await?;
    let told = |pod: &Value| {
        let count = |name: &str| container(pod, name)["restartCount"].as_i64();
        ready(pod) && count("ends") == Some(2) && count("sick") == Some(1)
    };
    let after = node.until("alone", "it is told what became of it", told).await?;
    ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "{after:#}");
    for (name, count) in [("ends", 3), ("sick", 2)] {
        lives(node, name, count).await?;
    }
    // The probes of the new kubelet go on.
    say("sick-sick")?;
    lives(node, "sick", 3).await?;
    node.remove(&["alone"]).await
}

async fn a_disk_that_takes_nothing_is_told_and_waited_for(node: &mut Node, disk: &Disk) -> Result<()> {
    let words = "w".repeat(64 << 10);
    node.cluster.kubectl(&["create", "configmap", "words", &format!("--from-literal=it={words}")]).await?;
    node.apply_reader("early").await?;
    let before = node.until("early", "it is ready", ready).await?;
    let ballast = disk.fill()?;
    node.apply_reader("late").await?;
    node.is_not_mounted("late", "No space left on device").await?;
    // Who begins on a full disk finds what is there.
    node.kill().await?;
    node.start()?;
    node.apply_reader("later").await?;
    node.is_not_mounted("later", "No space left on device").await?;
    let after = node.until("early", "it is ready still", ready).await?;
    ensure!(container(&after, "c")["containerID"] == container(&before, "c")["containerID"], "{after:#}");
    std::fs::remove_file(ballast)?;
    for name in ["late", "later"] {
        node.until(name, "it is ready once there is room", ready).await?;
    }
    node.remove(&["late", "later"]).await
}

async fn a_disk_that_may_only_be_read_is_too(node: &mut Node, disk: &Disk) -> Result<()> {
    let before = node.until("early", "it is ready", ready).await?;
    // Not while somebody writes there.
    node.cluster.eventually("it may only be read", || async { disk.remount("ro") }).await?;
    node.apply_reader("late").await?;
    node.is_not_mounted("late", "Read-only file system").await?;
    let after = node.until("early", "it is ready still", ready).await?;
    ensure!(container(&after, "c")["containerID"] == container(&before, "c")["containerID"], "{after:#}");
    // One that ends leaves its directory, and says so.
    node.cluster.kubectl(&["delete", "pod", "early", "--wait=false", "--grace-period=1"]).await?;
    node.waits("early", "Unmount", "Read-only file system").await?;
    disk.remount("rw")?;
    node.cluster.kubectl(&["wait", "--for=delete", "pod/early", "--timeout=60s"]).await?;
    node.until("late", "it is ready once it can be", ready).await?;
    node.remove(&["late"]).await?;
    node.cluster.kubectl(&["delete", "configmap", "words"]).await.map(drop)
}

/// The system's mount program never comes to an end, as with a server that does not answer.
async fn a_mount_that_hangs_holds_up_its_own_pod_alone(node: &mut Node) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let (programs, pid) = (node.programs(), node.cluster.root().join("mounting"));
    std::fs::create_dir_all(&programs)?;
    let program = programs.join("mount");
    std::fs::write(&program, format!("#!/bin/sh\necho $$ > {}\nexec sleep 1000\n", pid.display()))?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    let main = json!({"name": "c", "image": node.busybox, "command": ["sleep", "1000"],
        "volumeMounts": [{"name": "far", "mountPath": "/far"}]});
    let volumes = json!([{"name": "far", "nfs": {"server": "192.0.2.1", "path": "/x"}}]);
    node.apply("hangs", json!([main]), volumes).await?;
    node.waits("hangs", "Mount", "192.0.2.1:/x is being mounted").await?;
    node.waits("hangs", "Mount", "volume far").await?;
    let other = json!({"name": "c", "image": node.busybox, "command": ["sleep", "1000"]});
    node.apply("other", json!([other]), json!([])).await?;
    node.until("other", "it is ready", ready).await?;
    let mounting = std::fs::read_to_string(&pid)?.trim().to_owned();
    // Nobody waits for the program's end, and none is left.
    node.remove(&["hangs", "other"]).await?;
    ensure!(!Path::new("/proc").join(&mounting).exists(), "the mount program runs on as {mounting}");
    Ok(std::fs::remove_file(program)?)
}

/// A file system whose server says nothing any more: the kernel asks it at the end of the mount, and waits.
struct Silent {
    /// Both ends of it: who mounted it answers by this.
    server: std::fs::File,
    device: String,
}

impl Silent {
    const INIT: u32 = 26;
    const DESTROY: u32 = 38;
    /// What the kernel wants no answer to: that it forgets something, and that it waits no longer.
    const UNANSWERED: [u32; 3] = [2, 36, 42];
    const NOT_SUPPORTED: i32 = -38;

    /// Mounts one at `at`.
    fn mount(at: &Path, image: &Path) -> Result<Self> {
        std::fs::File::create(image)?.set_len(1 << 20)?;
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(image).output()?;
        ensure!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
        let device = String::from_utf8(attached.stdout)?.trim().to_owned();
        let server = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        // Ends the device, too, should the mount fail.
        let this = Self { server, device };
        let mut mounting = Command::new("mount");
        mounting.args(["--internal-only", "--types", "fuseblk", "-o", "fd=0,rootmode=40000,user_id=0,group_id=0"]);
        let done = mounting.arg(&this.device).arg(at).stdin(this.server.try_clone()?).output()?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let asked = this.asked()?;
        ensure!(asked.0 == Self::INIT, "the kernel asks {} first", asked.0);
        // Protocol 7.31; the rest of what may be agreed upon is as small as it may be.
        let mut agreed = [0; 64];
        agreed[..4].copy_from_slice(&7_u32.to_le_bytes());
        agreed[4..8].copy_from_slice(&31_u32.to_le_bytes());
        agreed[20..24].copy_from_slice(&4096_u32.to_le_bytes());
        this.answer(asked.1, 0, &agreed)?;
        Ok(this)
    }

    /// What the kernel asks next, and the number of its question. Blocks.
    fn asked(&self) -> Result<(u32, u64)> {
        use std::io::Read;
        let mut question = vec![0; 1 << 20];
        let length = (&self.server).read(&mut question)?;
        let head = question.get(..length.min(16)).filter(|h| h.len() == 16).context("half a question")?;
        Ok((u32::from_le_bytes(head[4..8].try_into()?), u64::from_le_bytes(head[8..16].try_into()?)))
    }

    fn answer(&self, question: u64, error: i32, text: &[u8]) -> Result<()> {
        let length = u32::try_from(16 + text.len())?;
        let all = [&length.to_le_bytes()[..], &error.to_le_bytes(), &question.to_le_bytes(), text].concat();
        Ok((&self.server).write_all(&all)?)
    }

    /// Says to everything else that it cannot be done, until the mount is to end: the number of that question.
    fn until_its_end(&self) -> Result<u64> {
        loop {
            match self.asked()? {
                (Self::DESTROY, question) => return Ok(question),
                (asked, _) if Self::UNANSWERED.contains(&asked) => {}
                (_, question) => self.answer(question, Self::NOT_SUPPORTED, &[])?,
            }
        }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Where it stays, the cluster's end says so.
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
    }
}

/// It is told of while it hangs, others end beside it, and its pod leaves nothing once it is over.
async fn a_mount_that_hangs_when_it_ends_holds_up_nobody(node: &mut Node) -> Result<()> {
    let main = json!({"name": "c", "image": node.busybox, "command": ["sleep", "1000"],
        "volumeMounts": [{"name": "room", "mountPath": "/room"}]});
    let room = json!([{"name": "room", "emptyDir": {}}]);
    node.apply("stuck", json!([main]), room.clone()).await?;
    node.apply("beside", json!([main]), room).await?;
    node.until("beside", "it is ready", ready).await?;
    let pod = node.until("stuck", "it is ready", ready).await?;
    let uid = pod.pointer("/metadata/uid").and_then(Value::as_str).context("a uid")?;
    let root = node.cluster.root().join("state/kubelet/pods").join(uid);
    // As a container would that may pass mounts on to the node.
    let inner = root.join("volumes/kubernetes.io~empty-dir/room/inner");
    std::fs::create_dir(&inner)?;
    let silent = Silent::mount(&inner, &node.cluster.root().join("silent.img"))?;
    node.cluster.kubectl(&["delete", "pod", "stuck", "--wait=false", "--grace-period=1"]).await?;
    let (tell, told) = tokio::sync::oneshot::channel();
    // A thread that nobody has to wait for: should the kernel never ask, this test fails without it.
    std::thread::spawn(move || tell.send(silent.until_its_end().map(|question| (silent, question))).is_ok());
    let (silent, question) =
        node.cluster.clock.timeout(PATIENCE, told).await.context("the mount is not ended")???;
    // It hangs from here on; another pod comes to its end as ever.
    node.remove(&["beside"]).await?;
    ensure!(root.exists(), "its directory went before its mount has ended");
    node.waits("stuck", "Unmount", "hangs").await?;
    silent.answer(question, 0, &[])?;
    node.cluster.kubectl(&["wait", "--for=delete", "pod/stuck", "--timeout=60s"]).await?;
    node.cluster
        .eventually("its directory is gone", || async {
            ensure!(!root.exists(), "{} is there", root.display());
            Ok(())
        })
        .await
}

/// A link that leads to itself cannot be read by anybody, a pipe has no end.
async fn what_cannot_be_read_ends_nothing(node: &mut Node) -> Result<()> {
    let at = node.manifests().join("web.yaml");
    let beside = |name: &str| node.manifests().join(name);
    std::fs::write(&at, manifests::script("web", &node.busybox, "exec sleep 1000"))?;
    let nodes = node.cluster.json(&["get", "nodes"]).await?;
    let name = nodes.pointer("/items/0/metadata/name").and_then(Value::as_str).context("a node")?.to_owned();
    let web = format!("web-{name}");
    let shown = node.cluster.eventually("its mirror is there", || async {
        let pod = node.cluster.json(&["get", "pod", &web]).await?;
        ensure!(ready(&pod), "{pod:#}");
        Ok(pod)
    });
    let before = shown.await?;
    let made = Command::new("mkfifo").arg(beside("pipe.yaml")).status()?;
    ensure!(made.success(), "mkfifo: {made}");
    // In one step from what it was to what cannot be read.
    std::os::unix::fs::symlink("web.yaml", beside(".loop"))?;
    std::fs::rename(beside(".loop"), &at)?;
    node.waits(&name, "StaticPod", "web.yaml").await?;
    // Others are read all the same.
    std::fs::write(beside("db.yaml"), manifests::script("db", &node.busybox, "exec sleep 1000"))?;
    let db = format!("db-{name}");
    node.cluster
        .eventually("the other one is there", || async {
            let pod = node.cluster.json(&["get", "pod", &db]).await?;
            ensure!(ready(&pod), "{pod:#}");
            Ok(())
        })
        .await?;
    let after = node.until(&web, "it runs on", ready).await?;
    let id = |pod: &Value| container(pod, "main")["containerID"].clone();
    ensure!(id(&before) == id(&after), "{before:#} {after:#}");
    for name in ["web.yaml", "db.yaml", "pipe.yaml"] {
        std::fs::remove_file(beside(name))?;
    }
    node.cluster
        .eventually("what has no manifest ends", || async {
            let pods = node.cluster.kubectl(&["get", "pods", "-o", "name"]).await?;
            ensure!(pods.is_empty(), "{pods}");
            Ok(())
        })
        .await
}
