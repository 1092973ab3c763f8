//! How containers begin and end, seen from inside and from outside: hooks, the order of sidecars, graces,
//! probes that fail, last words, names of images, and what a pod has as a whole. One cluster, real kubectl.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use e2e::cluster::Cluster;
use e2e::images;
use e2e::registry::Registry;
use host::reset;
use serde_json::{Value, json};

struct World {
    cluster: Cluster,
    busybox: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_begin_and_end() -> Result<()> {
    let registry = Registry::start(&[images::busybox("busybox:1")?]).await?;
    let cluster = Cluster::start(&[]).await?;
    cluster.trust_registry(&registry)?;
    let busybox = registry.reference("busybox:1");
    let world = World { cluster, busybox };
    // Each has pods of its own: one that fails hides no other.
    let parts = [
        hooks_run_and_end(&world).await.context("hooks run"),
        sidecars_come_first_and_go_last(&world).await.context("sidecars come first and go last"),
        what_probes_find_ends_containers(&world).await.context("what probes find"),
        last_words_are_kept(&world).await.context("last words"),
        what_does_not_fit_now_is_deferred(&world).await.context("a resize that does not fit now"),
        a_pod_has_resources_of_its_own(&world).await.context("a pod has resources of its own"),
        images_have_good_names_and_digests(&world).await.context("images have good names and digests"),
    ];
    let wrong: Vec<String> = parts.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    Ok(())
}

impl World {
    async fn apply(&self, name: &str, spec: Value) -> Result<()> {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        self.cluster.apply(&pod.to_string()).await.map(drop)
    }

    fn container(&self, name: &str, script: &str, more: Value) -> Value {
        let mut container = json!({"name": name, "image": self.busybox, "command": ["sh", "-c", script]});
        if let (Some(all), Value::Object(more)) = (container.as_object_mut(), more) {
            all.extend(more);
        }
        container
    }

    /// Waits until the pod's object is as `check` wants it.
    async fn until(&self, name: &str, what: &str, check: impl Fn(&Value) -> bool) -> Result<Value> {
        let check = &check;
        let found = self.cluster.eventually(what, move || async move {
            let pod = self.cluster.json(&["get", "pod", name]).await?;
            ensure!(check(&pod), "{pod:#}");
            Ok(pod)
        });
        found.await
    }

    async fn events(&self, pod: &str) -> Result<Vec<(String, String)>> {
        let of = format!("involvedObject.name={pod}");
        let events = self.cluster.json(&["get", "events", "--field-selector", &of]).await?;
        let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let items = events["items"].as_array().cloned().unwrap_or_default();
        Ok(items.iter().map(|event| (text(event, "reason"), text(event, "message"))).collect())
    }

    async fn has_event(&self, pod: &str, reason: &str, part: &str) -> Result<()> {
        let told = self.cluster.eventually(reason, || async {
            let events = self.events(pod).await?;
            ensure!(events.iter().any(|(r, m)| r == reason && m.contains(part)), "{reason} {part:?} in {events:?}");
            Ok(())
        });
        told.await
    }

    /// A folder of the node that containers write to, and the pod's volume of it. What hooks and ends do is
    /// written there: their container is gone before anybody could ask it.
    fn folder(&self, name: &str) -> Result<(PathBuf, Value)> {
        let folder = self.cluster.root().join(name);
        std::fs::create_dir_all(&folder)?;
        let volume = json!({"name": "seen", "hostPath": {"path": folder, "type": "Directory"}});
        Ok((folder, volume))
    }

    async fn remove(&self, pod: &str) -> Result<()> {
        self.cluster.kubectl(&["delete", "pod", pod, "--grace-period=1"]).await.map(drop)
    }
}

fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let all = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
    all.into_iter().flatten().find(|c| c["name"] == name).unwrap_or(&Value::Null)
}

fn is_ready(pod: &Value) -> bool {
    let all = pod.pointer("/status/conditions").and_then(Value::as_array);
    all.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

async fn hooks_run_and_end(world: &World) -> Result<()> {
    let (seen, volume) = world.folder("hooks")?;
    let mount = json!([{"name": "seen", "mountPath": "/seen"}]);
    let serve = "httpd -p 8080 -h /seen; trap 'echo term >> /seen/web; exit 0' TERM; while :; do sleep 0.1; done";
    let exec = |text: &str| json!({"exec": {"command": ["sh", "-c", text]}});
    // In this order: the hook, then the signal.
    let containers = json!([
        world.container(
            "web",
            serve,
            json!({"volumeMounts": mount, "lifecycle": {
                "postStart": exec("echo begun >> /seen/web"),
                "preStop": exec("echo before >> /seen/web"),
            }})
        ),
        world.container(
            "asked",
            "sleep 1000",
            json!({"volumeMounts": mount, "lifecycle": {
            "preStop": {"httpGet": {"port": 8080, "path": "/web", "host": "127.0.0.1"}}}})
        ),
        world.container(
            "waits",
            "trap 'echo term >> /seen/waits; exit 0' TERM; while :; do sleep 0.1; done",
            json!({"volumeMounts": mount, "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}})
        ),
    ]);
    world
        .apply("hooks", json!({"terminationGracePeriodSeconds": 10, "containers": containers, "volumes": [volume]}))
        .await?;
    world.until("hooks", "it is ready", is_ready).await?;
    let read = |name: &str| std::fs::read_to_string(seen.join(name)).unwrap_or_default();
    ensure!(read("web") == "begun\n", "{:?}", read("web"));
    world.cluster.kubectl(&["delete", "pod", "hooks"]).await?;
    ensure!(read("web") == "begun\nbefore\nterm\n", "{:?}", read("web"));
    ensure!(read("waits") == "term\n", "{:?}", read("waits"));
    // Nobody serves at the address that it is sent to: the node itself has no such port open.
    world.has_event("hooks", "FailedPreStopHook", "PreStopHook failed").await?;

    // A hook that fails ends its container; the pod goes on trying.
    let fails = world.container("c", "sleep 1000", json!({"lifecycle": {"postStart": exec("exit 3")}}));
    world.apply("unlucky", json!({"terminationGracePeriodSeconds": 1, "containers": [fails]})).await?;
    world.has_event("unlucky", "FailedPostStartHook", "PostStartHook failed").await?;
    world.until("unlucky", "it is tried again", |pod| container(pod, "c")["restartCount"].as_i64() > Some(0)).await?;
    world.remove("unlucky").await
}

/// Each sidecar begins once the one before has started, the main container after all of them; at the end it is
/// the other way round, one after the other.
async fn sidecars_come_first_and_go_last(world: &World) -> Result<()> {
    let (seen, volume) = world.folder("order")?;
    let mount = json!([{"name": "seen", "mountPath": "/seen"}]);
    let script = |name: &str| {
        format!(
            "echo {name} begins >> /seen/order; trap 'sleep 1; echo {name} ends >> /seen/order; exit 0' TERM; \
             touch /up; while :; do sleep 0.1; done"
        )
    };
    let started = json!({"exec": {"command": ["test", "-e", "/up"]}, "periodSeconds": 1, "failureThreshold": 60});
    let sidecar = |name: &str| {
        let more = json!({"restartPolicy": "Always", "startupProbe": started, "volumeMounts": mount});
        world.container(name, &script(name), more)
    };
    let first = world.container("first", "echo first >> /seen/order", json!({"volumeMounts": mount}));
    let main = world.container("main", &script("main"), json!({"volumeMounts": mount}));
    let spec = json!({"terminationGracePeriodSeconds": 60, "initContainers": [sidecar("logs"), first, sidecar("net")],
        "containers": [main], "volumes": [volume]});
    world.apply("order", spec).await?;
    world.until("order", "it is ready", is_ready).await?;
    world.cluster.kubectl(&["delete", "pod", "order"]).await?;
    let order = std::fs::read_to_string(seen.join("order"))?;
    let wanted = "logs begins\nfirst\nnet begins\nmain begins\nmain ends\nnet ends\nlogs ends\n";
    ensure!(order == wanted, "{order:?}");

    // One that would stay for ever does not keep a pod that is done.
    let sidecar = world.container("stays", "trap 'exit 0' TERM; sleep 1000 & wait", json!({"restartPolicy": "Always"}));
    let main = world.container("c", "exit 0", Value::Null);
    let spec = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "initContainers": [sidecar],
        "containers": [main]});
    world.apply("helped", spec).await?;
    world.until("helped", "it has ended well", |pod| pod["status"]["phase"] == "Succeeded").await?;
    world.remove("helped").await
}

async fn what_probes_find_ends_containers(world: &World) -> Result<()> {
    let deaf = "trap '' TERM; while :; do sleep 0.1; done";
    let fast = |probe: Value| {
        let mut probe = probe;
        (probe["periodSeconds"], probe["failureThreshold"]) = (json!(1), json!(1));
        probe
    };
    let slow = fast(json!({"exec": {"command": ["sleep", "30"]}, "timeoutSeconds": 1}));
    let closed = fast(json!({"tcpSocket": {"port": 81}, "terminationGracePeriodSeconds": 1}));
    let open = fast(json!({"tcpSocket": {"port": 8080}}));
    let containers = json!([
        world.container("slow", "sleep 1000", json!({"readinessProbe": slow})),
        // It hears no signal, and its pod's grace is longer than this test waits.
        world.container("closed", deaf, json!({"livenessProbe": closed})),
        world.container("open", "httpd -f -p 8080", json!({"livenessProbe": open, "readinessProbe": open})),
    ]);
    world.apply("probed", json!({"terminationGracePeriodSeconds": 3600, "containers": containers})).await?;
    world.has_event("probed", "Unhealthy", "Readiness probe failed: command timed out").await?;
    world.has_event("probed", "Unhealthy", "Liveness probe failed: dial tcp ").await?;
    world.has_event("probed", "Killing", "Container closed failed liveness probe, will be restarted").await?;
    let pod = world
        .until("probed", "it is restarted within the probe's own grace", |pod| {
            container(pod, "closed")["restartCount"].as_i64() > Some(0)
        })
        .await?;
    let ended = container(&pod, "closed").pointer("/lastState/terminated/exitCode");
    ensure!(ended == Some(&json!(137)), "{pod:#}");
    ensure!(container(&pod, "open")["ready"] == true && container(&pod, "slow")["ready"] == false, "{pod:#}");
    world.remove("probed").await
}

async fn last_words_are_kept(world: &World) -> Result<()> {
    let fallback = json!({"terminationMessagePolicy": "FallbackToLogsOnError"});
    let mut absent = world.container("absent", "", Value::Null);
    absent["command"] = json!(["/no/such/program"]);
    let containers = json!([
        world.container("file", "echo -n said > /words; exit 0", json!({"terminationMessagePath": "/words"})),
        world.container("log", "echo last words; exit 3", fallback.clone()),
        world.container("fine", "echo not these; exit 0", fallback),
        absent,
    ]);
    world.apply("words", json!({"restartPolicy": "Never", "containers": containers})).await?;
    let pod = world.until("words", "it has failed", |pod| pod["status"]["phase"] == "Failed").await?;
    let end = |name: &str| {
        let ended = container(&pod, name).pointer("/state/terminated").cloned().unwrap_or_default();
        let text = |key: &str| ended[key].as_str().unwrap_or_default().to_owned();
        (ended["exitCode"].as_i64(), text("reason"), text("message"))
    };
    let is = |name: &str, code, reason: &str, message: &str| {
        let found = end(name);
        ensure!(found == (Some(code), reason.to_owned(), message.to_owned()), "{name}: {found:?}");
        Ok(())
    };
    is("file", 0, "Completed", "said")?;
    is("log", 3, "Error", "last words\n")?;
    is("fine", 0, "Completed", "")?;
    let (code, reason, message) = end("absent");
    ensure!((code, reason.as_str()) == (Some(128), "StartError"), "{code:?} {reason}");
    ensure!(message.contains("/no/such/program"), "{message}");
    world.remove("words").await
}

/// A pod that wishes for what another one has waits for it, and has it once that one is gone.
async fn what_does_not_fit_now_is_deferred(world: &World) -> Result<()> {
    let cpus = world.cluster.json(&["get", "nodes"]).await?;
    let all = cpus.pointer("/items/0/status/allocatable/cpu").and_then(Value::as_str).context("the node has cpus")?;
    let all: i64 = all.parse::<i64>().map(|n| n * 1000).or_else(|_| all.trim_end_matches('m').parse())?;
    let asks = |milli: i64| json!({"resources": {"requests": {"cpu": format!("{milli}m")}}});
    let half = all / 2 - 100;
    for name in ["wishes", "holds"] {
        let c = world.container("c", "sleep 1000", asks(half));
        world.apply(name, json!({"terminationGracePeriodSeconds": 1, "containers": [c]})).await?;
        world.until(name, "it is ready", is_ready).await?;
    }
    let more = json!({"spec": {"containers": [{"name": "c", "resources": asks(all - 400)["resources"]}]}}).to_string();
    world.cluster.kubectl(&["patch", "pod", "wishes", "--subresource=resize", "-p", &more]).await?;
    let is_pending = |pod: &Value, reason: &str| {
        let all = pod.pointer("/status/conditions").and_then(Value::as_array);
        all.into_iter().flatten().any(|c| c["type"] == "PodResizePending" && c["reason"] == reason)
    };
    world.until("wishes", "it is deferred", |pod| is_pending(pod, "Deferred")).await?;
    world.remove("holds").await?;
    let pod = world.until("wishes", "it has more", |pod| {
        let has = container(pod, "c").pointer("/resources/requests/cpu").and_then(Value::as_str);
        has == Some(format!("{}m", all - 400).as_str()) && !is_pending(pod, "Deferred")
    });
    ensure!(container(&pod.await?, "c")["restartCount"] == 0, "it was restarted");
    world.remove("wishes").await
}

/// The numbers in files of that name below the pod's cgroups.
fn numbers(folder: &Path, name: &str) -> Result<Vec<String>> {
    let all = reset::below_hierarchies(folder)?;
    Ok(all.iter().filter_map(|f| std::fs::read_to_string(f.join(name)).ok()).map(|t| t.trim().to_owned()).collect())
}

/// What is given to the whole pod bounds its cgroup, and a container that names nothing of its own.
async fn a_pod_has_resources_of_its_own(world: &World) -> Result<()> {
    let look = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; exec sleep 1000";
    let own = json!({"resources": {"limits": {"memory": "16Mi"}}});
    let containers = json!([world.container("lent", look, Value::Null), world.container("own", look, own)]);
    let resources = json!({"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}});
    let spec = json!({"terminationGracePeriodSeconds": 1, "resources": resources, "containers": containers});
    world.apply("whole", spec).await?;
    let pod = world.until("whole", "it is ready", is_ready).await?;
    ensure!(pod["status"]["qosClass"] == "Burstable", "{:#}", pod["status"]);
    for (name, limit) in [("lent", "67108864"), ("own", "16777216")] {
        let said = world.cluster.eventually("it says what it has", || async {
            let said = world.cluster.kubectl(&["logs", "whole", "-c", name]).await?;
            ensure!(!said.is_empty(), "nothing yet");
            Ok(said)
        });
        let said = said.await?;
        ensure!(said.trim() == limit, "{name}: {said}");
    }
    let uid = pod["metadata"]["uid"].as_str().context("a uid")?;
    let folder = PathBuf::from(format!("/kubepods/burstable/pod{uid}"));
    let memory = [numbers(&folder, "memory.limit_in_bytes")?, numbers(&folder, "memory.max")?].concat();
    let cpu = [numbers(&folder, "cpu.cfs_quota_us")?, numbers(&folder, "cpu.max")?].concat();
    ensure!(memory.contains(&"67108864".to_owned()), "{memory:?}");
    ensure!(cpu.iter().any(|c| c == "20000" || c == "20000 100000"), "{cpu:?}");
    world.remove("whole").await
}

/// An image by its digest is that image; a name that is none is said to be none, and is not tried again.
async fn images_have_good_names_and_digests(world: &World) -> Result<()> {
    let container = world.container("c", "exec sleep 1000", Value::Null);
    world.apply("tagged", json!({"terminationGracePeriodSeconds": 1, "containers": [container.clone()]})).await?;
    let pod = world.until("tagged", "it is ready", is_ready).await?;
    let id = self::container(&pod, "c")["imageID"].clone();
    ensure!(id.as_str().is_some_and(|id| id.contains("/busybox@sha256:")), "{id}");
    let by = |image: &Value| {
        let mut container = container.clone();
        container["image"] = image.clone();
        json!({"terminationGracePeriodSeconds": 1, "containers": [container]})
    };
    world.apply("digest", by(&id)).await?;
    let pod = world.until("digest", "it is ready", is_ready).await?;
    ensure!(self::container(&pod, "c")["imageID"] == id, "{:#}", pod["status"]);

    world.apply("misnamed", by(&json!("BAD//name::x"))).await?;
    let waits = |pod: &Value| {
        let waiting = self::container(pod, "c").pointer("/state/waiting").cloned().unwrap_or_default();
        let says = |part: &str| waiting["message"].as_str().is_some_and(|m| m.contains(part));
        waiting["reason"] == "InvalidImageName" && says("Failed to apply default image tag \"BAD//name::x\"")
    };
    world.until("misnamed", "its image has a bad name", waits).await?;
    world.has_event("misnamed", "InspectFailed", "BAD//name::x").await?;
    world.has_event("misnamed", "Failed", "Error: InvalidImageName").await?;
    for pod in ["tagged", "digest", "misnamed"] {
        world.remove(pod).await?;
    }
    Ok(())
}
