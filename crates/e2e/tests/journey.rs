//! From `kubectl apply` to a Ready pod behind a Service, and what users do next: one cluster, real
//! kubectl, real containers, real kernel rules.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use e2e::cluster::{Cluster, guard_drops};
use e2e::registry::Registry;
use e2e::{images, manifests};
use machinery::quantity::Quantity;
use serde_json::Value;

struct World {
    cluster: Cluster,
    nginx: String,
    nginx_next: String,
    busybox: String,
    registry: Registry,
}

impl World {
    async fn new() -> Result<Self> {
        let images = [images::nginx("nginx:1")?, images::nginx("nginx:2")?, images::busybox("busybox:1")?];
        let registry = Registry::start(&images).await?;
        let cluster = Cluster::start(&[]).await?;
        cluster.trust_registry(&registry)?;
        let [nginx, nginx_next, busybox] = ["nginx:1", "nginx:2", "busybox:1"].map(|n| registry.reference(n));
        Ok(Self { cluster, nginx, nginx_next, busybox, registry })
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().cloned().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_path() -> Result<()> {
    let world = World::new().await?;
    apply_becomes_ready(&world).await.context("apply becomes ready")?;
    events_tell_the_story(&world).await.context("events tell the story")?;
    services_answer(&world).await.context("services answer")?;
    users_look_around(&world).await.context("users look around")?;
    a_roll_loses_no_request(&world).await.context("a roll loses no request")?;
    a_bad_tag_stalls_and_undo_mends(&world).await.context("a bad tag stalls and undo mends")?;
    too_many_cpus_are_named(&world).await.context("too many CPUs are named")?;
    a_released_pod_is_replaced(&world).await.context("a released pod is replaced")?;
    a_bare_pod_stays_deleted(&world).await.context("a bare pod stays deleted")?;
    deletion_propagates_as_asked(&world).await.context("deletion propagates as asked")?;
    ensure!(guard_drops().await? == 0, "packets for cluster addresses left the host");
    Ok(())
}

async fn apply_becomes_ready(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let manifest = manifests::web("web", &world.nginx, 3, 30080);
    let out = cluster.apply(&manifest).await?;
    ensure!(out.contains("deployment.apps/web created") && out.contains("service/web created"), "{out}");
    let out = cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await?;
    ensure!(out.contains("successfully rolled out"), "{out}");
    let again = cluster.apply(&manifest).await?;
    ensure!(again.contains("deployment.apps/web unchanged"), "a second apply changes nothing: {again}");

    // Pod → ReplicaSet → Deployment.
    let deployment = cluster.json(&["get", "deployment", "web"]).await?;
    let sets = items(&cluster.json(&["get", "rs", "-l", "app=web"]).await?);
    ensure!(sets.len() == 1, "one ReplicaSet");
    ensure!(text(&sets[0], "/metadata/ownerReferences/0/uid") == text(&deployment, "/metadata/uid"));
    let pods = items(&cluster.json(&["get", "pods", "-l", "app=web"]).await?);
    ensure!(pods.len() == 3, "three pods");
    for pod in &pods {
        ensure!(text(pod, "/metadata/ownerReferences/0/uid") == text(&sets[0], "/metadata/uid"));
        ensure!(pod.pointer("/metadata/ownerReferences/0/controller") == Some(&Value::Bool(true)));
        ensure!(
            text(pod, "/metadata/labels/pod-template-hash") == text(&sets[0], "/metadata/labels/pod-template-hash")
        );
    }

    // Endpoints are exactly the ready pods.
    let mut want: Vec<&str> = pods.iter().map(|p| text(p, "/status/podIP")).collect();
    want.sort_unstable();
    cluster
        .eventually("the EndpointSlice lists the ready pods", || async {
            let slices =
                items(&cluster.json(&["get", "endpointslices", "-l", "kubernetes.io/service-name=web"]).await?);
            let endpoints = slices.iter().flat_map(|s| s["endpoints"].as_array().cloned().unwrap_or_default());
            let mut have: Vec<String> = endpoints
                .filter(|e| e["conditions"]["ready"] == true)
                .map(|e| text(&e, "/addresses/0").to_owned())
                .collect();
            have.sort_unstable();
            ensure!(have == want, "{have:?} instead of {want:?}");
            Ok(())
        })
        .await?;
    let endpoints = cluster.json(&["get", "endpoints", "web"]).await?;
    ensure!(endpoints["subsets"][0]["addresses"].as_array().is_some_and(|a| a.len() == 3), "{endpoints}");
    Ok(())
}

async fn events_tell_the_story(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let pods = items(&cluster.json(&["get", "pods", "-l", "app=web"]).await?);
    let pod = text(&pods[0], "/metadata/name").to_owned();
    let wanted = [
        ("ScalingReplicaSet", "deployment-controller"),
        ("SuccessfulCreate", "replicaset-controller"),
        ("Scheduled", "default-scheduler"),
        ("Pulling", "kubelet"),
        ("Pulled", "kubelet"),
        ("Created", "kubelet"),
        ("Started", "kubelet"),
    ];
    cluster
        .eventually("the events in order", || async {
            let events = items(&cluster.json(&["get", "events", "--sort-by=.metadata.creationTimestamp"]).await?);
            let mut at: BTreeMap<&str, (String, String)> = BTreeMap::new();
            for event in &events {
                let about = text(event, "/involvedObject/name");
                let reason = text(event, "/reason");
                let ours = about == pod
                    || text(event, "/message").contains(&pod)
                    || (about == "web" && reason == "ScalingReplicaSet");
                let Some((name, _)) = wanted.iter().find(|(r, _)| *r == reason && ours) else { continue };
                let when = text(event, "/metadata/resourceVersion").to_owned();
                let who = [text(event, "/source/component"), text(event, "/reportingComponent")];
                let who = who.into_iter().find(|w| !w.is_empty()).unwrap_or_default();
                at.entry(name).or_insert((when, who.to_owned()));
            }
            let mut last = 0u64;
            for (reason, component) in wanted {
                // Only the pod that pulled first has Pulling; the others may find the image there.
                let Some((when, who)) = at.get(reason) else {
                    if reason == "Pulling" {
                        continue;
                    }
                    bail!("no event {reason}");
                };
                ensure!(who == component, "{reason} is reported by {who}");
                let when: u64 = when.parse()?;
                if reason != "ScalingReplicaSet" && reason != "SuccessfulCreate" && reason != "Scheduled" {
                    ensure!(when > last, "{reason} came too early");
                    last = when;
                }
            }
            Ok(())
        })
        .await?;
    let selected = cluster
        .kubectl(&[
            "get",
            "events",
            "--field-selector",
            &format!("involvedObject.name={pod},reason=Started"),
            "-o",
            "name",
        ])
        .await?;
    ensure!(selected.lines().count() == 1, "field selector: {selected}");
    let message = cluster
        .kubectl(&[
            "get",
            "events",
            "--field-selector",
            &format!("involvedObject.name={pod},reason=Scheduled"),
            "-o",
            "jsonpath={.items[0].message}",
        ])
        .await?;
    ensure!(message.starts_with(&format!("Successfully assigned default/{pod} to ")), "{message}");
    Ok(())
}

async fn services_answer(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let service = cluster.json(&["get", "service", "web"]).await?;
    let ip = text(&service, "/spec/clusterIP").to_owned();
    let node = cluster.node_ip().await?;
    for url in [format!("http://{ip}/"), format!("http://{node}:30080/")] {
        cluster
            .eventually(&format!("{url} answers"), || async {
                let page = cluster.http_get(&url).await?;
                ensure!(page.contains("nginx"), "{page}");
                Ok(())
            })
            .await?;
    }
    // Every pod gets requests.
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..200 {
        names.insert(cluster.http_get(&format!("http://{ip}/hostname")).await?);
        if names.len() == 3 {
            break;
        }
    }
    ensure!(names.len() == 3, "requests reach {names:?}");
    // From another pod.
    let script = format!(
        "set -e; for i in 1 2 3 4 5 6 7 8; do timeout 5 wget -qO- http://{ip}/ | grep -q nginx; done; \
         timeout 5 wget -qO- http://{node}:30080/ | grep -q nginx; echo reached"
    );
    cluster.apply(&manifests::script("caller", &world.busybox, &script)).await?;
    cluster
        .eventually("a pod reaches the Service", || async {
            let log = cluster.kubectl(&["logs", "caller"]).await?;
            ensure!(log.contains("reached"), "{log}");
            Ok(())
        })
        .await?;
    // From a pod of a Service to itself, through the Service.
    cluster.kubectl(&["create", "service", "clusterip", "mirror", "--tcp=80:8080"]).await?;
    let own = cluster.kubectl(&["get", "service", "mirror", "-o", "jsonpath={.spec.clusterIP}"]).await?;
    let script = format!(
        "mkdir /www; echo itself > /www/index.html; httpd -p 8080 -h /www; \
         until timeout 5 wget -qO- http://{own}/; do sleep 0.1; done; sleep 1000"
    );
    let mirror = manifests::script("mirror", &world.busybox, &script)
        .replace("  name: mirror\n", "  name: mirror\n  labels: {app: mirror}\n");
    cluster.apply(&mirror).await?;
    cluster
        .eventually("a pod reaches itself through its Service", || async {
            let log = cluster.kubectl(&["logs", "mirror"]).await?;
            ensure!(log.ends_with("itself\n"), "{log}");
            Ok(())
        })
        .await?;
    cluster.kubectl(&["delete", "pod/mirror", "service/mirror"]).await?;
    // A load balancer has the node's address; one of a class that nobody here gives says so, as long as it waits.
    cluster.kubectl(&["create", "service", "loadbalancer", "balanced", "--tcp=8088:80"]).await?;
    let node = cluster.node_ip().await?.to_string();
    cluster
        .eventually("the Service has an address", || async {
            let address = ["get", "service", "balanced", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"];
            let address = cluster.kubectl(&address).await?;
            ensure!(address == node, "{address}");
            Ok(())
        })
        .await?;
    let elsewhere = "apiVersion: v1\nkind: Service\nmetadata: {name: elsewhere}\nspec: {type: LoadBalancer, \
                     loadBalancerClass: example.com/other, ports: [{port: 80}]}\n";
    cluster.apply(elsewhere).await?;
    let waits = || async { cluster.kubectl(&["get", "waits", "-A"]).await };
    cluster
        .eventually("the Service says what it waits for", || async {
            let waits = waits().await?;
            ensure!(waits.contains("elsewhere") && waits.contains("no provider of the class"), "{waits}");
            Ok(())
        })
        .await?;
    cluster.kubectl(&["delete", "service", "balanced", "elsewhere"]).await?;
    cluster
        .eventually("the Wait is withdrawn", || async {
            let waits = waits().await?;
            ensure!(!waits.contains("elsewhere"), "{waits}");
            Ok(())
        })
        .await?;
    // An address that no Service owns is refused here, at once.
    let refused = cluster.http_get("http://10.100.200.200/").await;
    ensure!(
        refused.as_ref().is_err_and(|e| e.to_string().contains("refused") || e.to_string().contains("connect")),
        "{refused:?}"
    );
    let refused = cluster.http_get("http://10.244.0.250/").await;
    ensure!(refused.is_err(), "a pod address that no pod has: {refused:?}");
    Ok(())
}

async fn users_look_around(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let wide = cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", "wide"]).await?;
    for word in ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "NOMINATED NODE", "1/1", "Running"] {
        ensure!(wide.contains(word), "{word} is missing from\n{wide}");
    }
    let yaml = cluster.kubectl(&["get", "deployment", "web", "-o", "yaml"]).await?;
    ensure!(yaml.contains("progressDeadlineSeconds: 600") && !yaml.contains("managedFields"), "{yaml}");
    let fields = cluster.kubectl(&["get", "deployment", "web", "-o", "yaml", "--show-managed-fields"]).await?;
    ensure!(fields.contains("manager: kubectl-client-side-apply") && fields.contains("f:replicas"), "{fields}");
    let custom =
        cluster.kubectl(&["get", "deploy", "web", "-o", "custom-columns=N:.metadata.name,R:.spec.replicas"]).await?;
    ensure!(custom.lines().nth(1).is_some_and(|l| l.split_whitespace().eq(["web", "3"])), "{custom}");
    let node = cluster.kubectl(&["describe", "node"]).await?;
    for word in ["Allocated resources:", "kubelet is posting ready status", "default", "web-"] {
        ensure!(node.contains(word), "{word} is missing from\n{node}");
    }
    // Of three pods; the shares are the machine's.
    let machine = cluster.json(&["get", "nodes"]).await?;
    let allocatable = |what: &str| -> Result<Quantity> {
        Ok(text(&machine, &format!("/items/0/status/allocatable/{what}")).parse()?)
    };
    let share = |part: i128, whole: i128| format!("({}%)", part * 100 / whole);
    let cpu_share = share(30, allocatable("cpu")?.milli());
    let memory_share = share(48 << 20, allocatable("memory")?.value());
    let row = |what: &str| {
        let allocated = node.lines().skip_while(|l| !l.starts_with("Allocated"));
        let row =
            allocated.map(|l| l.split_whitespace().collect::<Vec<_>>()).find(|words| words.first() == Some(&what));
        row.unwrap_or_default()
    };
    ensure!(row("cpu") == ["cpu", "30m", &cpu_share, "0", "(0%)"], "{:?}", row("cpu"));
    ensure!(row("memory") == ["memory", "48Mi", &memory_share, "0", "(0%)"], "{:?}", row("memory"));
    let pods = items(&cluster.json(&["get", "pods", "-l", "app=web"]).await?);
    let pod = text(&pods[0], "/metadata/name");
    let described = cluster.kubectl(&["describe", "pod", pod]).await?;
    for word in
        ["Controlled By:  ReplicaSet/web-", "State:          Running", "Ready:          True", "Successfully assigned"]
    {
        ensure!(described.contains(word), "{word:?} is missing from\n{described}");
    }
    let logs = cluster.kubectl(&["logs", pod, "--tail=1", "--timestamps"]).await?;
    ensure!(logs.contains("\"GET / HTTP/1.1\" 200") && logs.lines().count() == 1, "{logs}");
    ensure!(logs.starts_with("20"), "a timestamp first: {logs}");
    let can = cluster.kubectl(&["auth", "can-i", "create", "deployments"]).await?;
    ensure!(can.trim() == "yes", "{can}");
    let cannot = cluster.kubectl_output(&["auth", "can-i", "create", "pods", "--as=nobody"]).await?;
    ensure!(!cannot.status.success(), "impersonation is refused until it exists");
    let manifest = manifests::web("dry", &world.nginx, 1, 30099);
    let dry = cluster.kubectl_with_input(&["apply", "--dry-run=server", "-f", "-"], &manifest).await?;
    ensure!(dry.contains("created (server dry run)"), "{dry}");
    ensure!(
        cluster.kubectl(&["get", "deploy", "-o", "name"]).await?.trim() == "deployment.apps/web",
        "nothing was kept"
    );
    let mut diff = cluster.kubectl_command(&["diff", "-f", "-"]);
    let output = with_input(&mut diff, &manifests::web("web", &world.nginx, 4, 30080)).await?;
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        shown.contains("-  replicas: 3") && shown.contains("+  replicas: 4"),
        "{shown}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    ensure!(!cluster.kubectl(&["get", "waits", "-A"]).await?.contains("web-"), "a pod that is ready waits for nothing");
    Ok(())
}

async fn with_input(command: &mut tokio::process::Command, input: &str) -> Result<std::process::Output> {
    use tokio::io::AsyncWriteExt;
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).await?;
    }
    Ok(child.wait_with_output().await?)
}

async fn a_roll_loses_no_request(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let service = cluster.json(&["get", "service", "web"]).await?;
    let url = format!("http://{}/", text(&service, "/spec/clusterIP"));
    let stop = Arc::new(AtomicBool::new(false));
    let (good, bad) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let load = {
        let (stop, good, bad, url) = (stop.clone(), good.clone(), bad.clone(), url.clone());
        tokio::task::spawn_blocking(move || {
            while !stop.load(Ordering::Relaxed) {
                let status = std::process::Command::new("curl")
                    .args(["--silent", "--fail", "--output", "/dev/null", "--noproxy", "*", "--max-time", "5", &url])
                    .status();
                let counter = if status.is_ok_and(|s| s.success()) { &good } else { &bad };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let rolled = async {
        cluster.kubectl(&["set", "image", "deployment/web", &format!("nginx={}", world.nginx_next)]).await?;
        cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]).await?;
        cluster
            .eventually("the old pods are gone", || async {
                let pods = items(&cluster.json(&["get", "pods", "-l", "app=web"]).await?);
                ensure!(pods.len() == 3, "{} pods", pods.len());
                ensure!(pods.iter().all(|p| text(p, "/spec/containers/0/image") == world.nginx_next));
                Ok(())
            })
            .await
    }
    .await;
    stop.store(true, Ordering::Relaxed);
    load.await?;
    rolled?;
    let (good, bad) = (good.load(Ordering::Relaxed), bad.load(Ordering::Relaxed));
    ensure!(bad == 0 && good > 20, "{bad} of {} requests failed during the roll", good + bad);
    let history = cluster.kubectl(&["rollout", "history", "deployment/web"]).await?;
    ensure!(history.contains("1 ") && history.contains("2 "), "{history}");
    Ok(())
}

async fn a_bad_tag_stalls_and_undo_mends(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let missing = world.registry.reference("nginx:missing");
    cluster.kubectl(&["set", "image", "deployment/web", &format!("nginx={missing}")]).await?;
    cluster
        .eventually("the new pod cannot pull", || async {
            let pods = cluster.kubectl(&["get", "pods", "-l", "app=web", "--no-headers"]).await?;
            ensure!(pods.contains("ImagePullBackOff") || pods.contains("ErrImagePull"), "{pods}");
            ensure!(pods.matches("1/1").count() == 3, "the old pods serve: {pods}");
            let waits = cluster.kubectl(&["get", "waits", "-A"]).await?;
            ensure!(waits.contains("kubelet") && waits.contains(&missing), "{waits}");
            Ok(())
        })
        .await?;
    let pods = items(&cluster.json(&["get", "pods", "-l", "app=web"]).await?);
    let stuck = pods.iter().find(|p| text(p, "/spec/containers/0/image") == missing).context("the new pod")?;
    let why = cluster.pintle(&["why", &format!("pod/{}", text(stuck, "/metadata/name"))]).await?;
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    ensure!(why.contains(&missing), "{why}");
    // The same is told of whatever the pod is below.
    for whole in ["deploy/web", "service/web"] {
        let why = cluster.pintle(&["why", whole]).await?;
        let why = String::from_utf8_lossy(&why.stdout).into_owned();
        ensure!(why.contains(&missing) && why.contains("3 of 4 pods are well"), "{whole}: {why}");
    }
    let service = cluster.json(&["get", "service", "web"]).await?;
    cluster.http_get(&format!("http://{}/", text(&service, "/spec/clusterIP"))).await?;
    cluster.kubectl(&["rollout", "undo", "deployment/web"]).await?;
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=90s"]).await?;
    let deployment = cluster.json(&["get", "deployment", "web"]).await?;
    ensure!(text(&deployment, "/spec/template/spec/containers/0/image") == world.nginx_next);
    Ok(())
}

async fn too_many_cpus_are_named(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let pod = manifests::script("huge", &world.busybox, "sleep 1000")
        .replace("    image:", "    resources: {requests: {cpu: \"64\"}}\n    image:");
    cluster.apply(&pod).await?;
    cluster
        .eventually("FailedScheduling says why", || async {
            let message = cluster
                .kubectl(&[
                    "get",
                    "events",
                    "--field-selector",
                    "involvedObject.name=huge,reason=FailedScheduling",
                    "-o",
                    "jsonpath={.items[0].message}",
                ])
                .await?;
            let want = "0/1 nodes are available: 1 Insufficient cpu. ";
            ensure!(message.starts_with(want) && message.contains("preemption: 0/1 nodes are available:"), "{message}");
            let waits = cluster.kubectl(&["get", "waits", "-A"]).await?;
            ensure!(waits.contains("scheduler") && waits.contains("huge") && waits.contains("cpu"), "{waits}");
            Ok(())
        })
        .await?;
    let condition = cluster
        .kubectl(&["get", "pod", "huge", "-o", "jsonpath={.status.conditions[?(@.type==\"PodScheduled\")].reason}"])
        .await?;
    ensure!(condition == "Unschedulable", "{condition}");
    cluster.kubectl(&["delete", "pod", "huge"]).await?;
    cluster
        .eventually("the Wait is withdrawn", || async {
            let waits = cluster.kubectl(&["get", "waits", "-A"]).await?;
            ensure!(!waits.contains("huge"), "{waits}");
            Ok(())
        })
        .await
}

/// Ends when the controllers of Deployment and ReplicaSet have worked on `web` again after everything
/// that happened before: what they had to say to that, they have said. The marker is a change of
/// something that makes and ends no pod.
async fn controllers_have_passed(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let now = cluster.json(&["get", "deployment", "web"]).await?;
    let marker = now.pointer("/spec/minReadySeconds").and_then(Value::as_i64).map_or(1, |seconds| 1 - seconds);
    let patch = format!("{{\"spec\":{{\"minReadySeconds\":{marker}}}}}");
    cluster.kubectl(&["patch", "deployment", "web", "-p", &patch]).await?;
    cluster
        .eventually("both controllers have passed the marker", || async {
            let deployment = cluster.json(&["get", "deployment", "web"]).await?;
            let sets = items(&cluster.json(&["get", "rs", "-l", "app=web"]).await?);
            let set = sets.iter().find(|s| s["spec"]["replicas"] != 0).context("the ReplicaSet in use")?;
            for object in [&deployment, set] {
                let seen = object.pointer("/spec/minReadySeconds").and_then(Value::as_i64).unwrap_or_default();
                ensure!(seen == marker, "{}: not there yet", text(object, "/kind"));
                ensure!(
                    object["status"]["observedGeneration"] == object["metadata"]["generation"],
                    "{}: not observed",
                    text(object, "/kind")
                );
            }
            Ok(())
        })
        .await
}

async fn a_released_pod_is_replaced(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let pods = items(&cluster.json(&["get", "pods", "-l", "app=web"]).await?);
    let released = text(&pods[0], "/metadata/name").to_owned();
    cluster.kubectl(&["label", "pod", &released, "app=other", "--overwrite"]).await?;
    let count = || async {
        let pods =
            items(&cluster.json(&["get", "pods", "-l", "app=web", "--field-selector=status.phase=Running"]).await?);
        ensure!(pods.len() == 3, "{} pods", pods.len());
        let freed = cluster.json(&["get", "pod", &released]).await?;
        ensure!(freed.pointer("/metadata/ownerReferences").is_none(), "still owned");
        Ok(())
    };
    cluster.eventually("a replacement appears", count).await?;
    let pods = || async { cluster.kubectl(&["get", "pods", "-o", "name"]).await };
    let before = pods().await?;
    cluster.kubectl(&["delete", "pod", &released]).await?;
    controllers_have_passed(world).await?;
    let (gone, after) = (format!("pod/{released}\n"), pods().await?);
    ensure!(before.replace(&gone, "") == after, "deleting {released} of {before:?} left {after:?}");
    Ok(())
}

async fn a_bare_pod_stays_deleted(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    cluster
        .apply(&manifests::script("bare", &world.busybox, "trap 'exit 0' TERM; while :; do sleep 1 & wait; done"))
        .await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/bare", "--timeout=60s"]).await?;
    let before = cluster.kubectl(&["get", "pods", "-o", "name"]).await?;
    cluster.kubectl(&["delete", "pod", "bare"]).await?;
    // Whoever would bring it back has had the occasion: the controllers, and with a pod of the same
    // node that is made and runs after it the scheduler and the kubelet.
    controllers_have_passed(world).await?;
    cluster.apply(&manifests::script("after", &world.busybox, "sleep 1000")).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/after", "--timeout=60s"]).await?;
    let gone = cluster.kubectl_fails(&["get", "pod", "bare"]).await?;
    ensure!(gone.contains("pods \"bare\" not found"), "{gone}");
    cluster.kubectl(&["delete", "pod", "after", "--grace-period=1"]).await?;
    let after = cluster.kubectl(&["get", "pods", "-o", "name"]).await?;
    ensure!(before.replace("pod/bare\n", "") == after, "{before:?} became {after:?}");
    Ok(())
}

async fn deletion_propagates_as_asked(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    for (mode, leaves) in [("background", false), ("foreground", false), ("orphan", true)] {
        let name = format!("del-{mode}");
        let manifest = manifests::web(&name, &world.nginx, 1, 30090);
        let deployment = manifest.split("---").next().unwrap_or_default();
        cluster.apply(deployment).await?;
        cluster.kubectl(&["rollout", "status", &format!("deployment/{name}"), "--timeout=60s"]).await?;
        cluster.kubectl(&["delete", "deployment", &name, &format!("--cascade={mode}")]).await?;
        let selector = format!("app={name}");
        if leaves {
            let sets = items(&cluster.json(&["get", "rs", "-l", &selector]).await?);
            ensure!(sets.len() == 1 && sets[0].pointer("/metadata/ownerReferences").is_none(), "orphaned ReplicaSet");
            cluster.kubectl(&["delete", "rs", "-l", &selector]).await?;
        }
        cluster
            .eventually(&format!("{mode}: dependents are gone"), || async {
                let left = cluster.kubectl(&["get", "rs,pods", "-l", &selector, "-o", "name"]).await?;
                ensure!(left.is_empty(), "{left}");
                Ok(())
            })
            .await?;
    }
    Ok(())
}
