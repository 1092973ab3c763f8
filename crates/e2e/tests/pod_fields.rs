//! That fields of a PodSpec do what they say, seen from inside real containers. One cluster, real
//! kubectl, few pods with many containers.

use anyhow::{Context, Result, ensure};
use e2e::cluster::Cluster;
use e2e::registry::Registry;
use e2e::{images, manifests};
use serde_json::{Value, json};

struct World {
    cluster: Cluster,
    busybox: String,
}

/// A container's name, its security context, and what of the defaults differs inside.
type Row<'a> = (&'a str, Value, &'a [&'a str]);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_do_what_they_say() -> Result<()> {
    let registry = Registry::start(&[images::busybox("busybox:1")?]).await?;
    let cluster = Cluster::start(&[]).await?;
    cluster.trust_registry(&registry)?;
    let busybox = registry.reference("busybox:1");
    let world = World { cluster, busybox };
    // Each has pods of its own: one that fails hides no other.
    let parts = [
        an_ephemeral_container_sees_its_target(&world).await.context("an ephemeral container sees its target"),
        a_class_names_the_handler(&world).await.context("a class names the handler"),
        a_pod_is_resized_while_it_runs(&world).await.context("a pod is resized while it runs"),
        security_contexts_from_inside(&world).await.context("security contexts from inside"),
        what_is_unsafe_does_not_start(&world).await.context("what is unsafe does not start"),
        names_and_namespaces(&world).await.context("names and namespaces"),
        variables_from_everywhere(&world).await.context("variables from everywhere"),
        containers_end_and_begin_as_told(&world).await.context("containers end and begin as told"),
    ];
    let wrong: Vec<String> = parts.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    Ok(())
}

impl World {
    async fn until_ready(&self, pod: &str) -> Result<()> {
        let name = format!("pod/{pod}");
        self.cluster.kubectl(&["wait", "--for=condition=Ready", &name, "--timeout=60s"]).await.map(drop)
    }

    async fn pod(&self, name: &str) -> Result<Value> {
        self.cluster.json(&["get", "pod", name]).await
    }

    /// Waits until the pod's object is as `check` wants it.
    async fn until(&self, name: &str, what: &str, check: impl Fn(&Value) -> bool) -> Result<Value> {
        let check = &check;
        let found = self.cluster.eventually(what, move || async move {
            let pod = self.pod(name).await?;
            ensure!(check(&pod), "{pod:#}");
            Ok(pod)
        });
        found.await
    }

    async fn log_has(&self, args: &[&str], want: &str) -> Result<()> {
        let found = self.cluster.eventually("the log", || async {
            let log = self.cluster.kubectl(&[&["logs"], args].concat()).await?;
            ensure!(log.contains(want), "{want:?} in {log:?}");
            Ok(())
        });
        found.await
    }

    async fn remove(&self, pod: &str) -> Result<()> {
        self.cluster.kubectl(&["delete", "pod", pod, "--grace-period=1"]).await.map(drop)
    }
}

async fn an_ephemeral_container_sees_its_target(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    cluster.apply(&manifests::script("stuck", &world.busybox, "exec sleep 77777")).await?;
    world.until_ready("stuck").await?;
    let before = world.pod("stuck").await?;
    let image = format!("--image={}", world.busybox);
    let look = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f; echo; done; cat /etc/hostname; exit 4";
    let debug = ["debug", "stuck", &image, "--target=main", "-c", "look", "--", "sh", "-c", look];
    cluster.kubectl(&debug).await?;
    let ended = |pod: &Value| {
        let end = pod.pointer("/status/ephemeralContainerStatuses/0/state/terminated/exitCode");
        end.and_then(Value::as_i64) == Some(4)
    };
    let after = world.until("stuck", "the ephemeral container has ended", ended).await?;
    world.log_has(&["stuck", "-c", "look"], "sleep 77777").await?;
    world.log_has(&["stuck", "-c", "look"], "stuck\n").await?;
    let parts = ["/status/phase", "/status/containerStatuses/0/containerID", "/status/containerStatuses/0/ready"];
    for part in parts {
        ensure!(before.pointer(part) == after.pointer(part), "{part}: {:#}", after["status"]);
    }
    let status = &after["status"]["ephemeralContainerStatuses"][0];
    ensure!(status["name"] == "look" && status["ready"] == false && status["restartCount"] == 0, "{status:#}");
    // One that shares the pod's processes anyway, and one that wants to see what is not there.
    let nowhere = ["debug", "stuck", &image, "--target=main", "-c", "again", "--", "sh", "-c", "sleep 1000"];
    cluster.kubectl(&nowhere).await?;
    let runs = |pod: &Value| pod.pointer("/status/ephemeralContainerStatuses/0/state/running").is_some();
    world.until("stuck", "a second one runs", runs).await?;
    world.remove("stuck").await
}

async fn a_class_names_the_handler(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    let class = |name: &str, handler: &str| {
        format!("apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {{name: {name}}}\nhandler: {handler}\n---\n")
    };
    let overhead = class("known", "default").replace("handler:", "overhead: {podFixed: {memory: 8Mi}}\nhandler:");
    let pod = manifests::script("classy", &world.busybox, "sleep 1000");
    cluster.apply(&format!("{overhead}{pod}  runtimeClassName: known\n")).await?;
    world.until_ready("classy").await?;
    let found = world.pod("classy").await?;
    ensure!(found.pointer("/spec/overhead/memory") == Some(&json!("8Mi")), "{:#}", found["spec"]);
    let pod = manifests::script("classless", &world.busybox, "true");
    let refused = cluster.apply(&format!("{pod}  runtimeClassName: nowhere\n")).await;
    let refused = refused.err().context("a class that is not there")?.to_string();
    ensure!(refused.contains("RuntimeClass \"nowhere\" not found"), "{refused}");
    world.remove("classy").await?;
    cluster.kubectl(&["delete", "runtimeclass", "known"]).await.map(drop)
}

async fn a_pod_is_resized_while_it_runs(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    // Says what its cgroup allows whenever that changes.
    let watch = "m=/sys/fs/cgroup/memory/memory.limit_in_bytes; [ -e $m ] || m=/sys/fs/cgroup/memory.max; last=; \
                 while :; do now=$(cat $m); [ \"$now\" = \"$last\" ] || echo memory $now; last=$now; sleep 0.1; done";
    let container = |name: &str, policy: &str| {
        json!({"name": name, "image": world.busybox, "command": ["sh", "-c", watch],
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": "32Mi"}},
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}]})
    };
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "grows"}, "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [container("live", "NotRequired"), container("anew", "RestartContainer")]}});
    cluster.apply(&pod.to_string()).await?;
    world.until_ready("grows").await?;
    world.log_has(&["grows", "-c", "live"], "memory 33554432").await?;
    let before = world.pod("grows").await?;

    let resize = |name: &str, cpu: &str, memory: &str| {
        let resources =
            json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": "900m", "memory": memory}});
        json!({"spec": {"containers": [{"name": name, "resources": resources}]}}).to_string()
    };
    let patch = |patch: String| async move {
        cluster.kubectl(&["patch", "pod", "grows", "--subresource=resize", "-p", &patch]).await
    };
    patch(resize("live", "20m", "48Mi")).await?;
    let has = |pod: &Value, name: &str, memory: &str| {
        let all = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let found = all.into_iter().find(|c| c["name"] == name).unwrap_or_default();
        found["resources"]["limits"]["memory"] == memory && found["allocatedResources"]["memory"] == memory
    };
    let resizing = |pod: &Value| {
        let all = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"].as_str().is_some_and(|t| t.starts_with("PodResize")))
    };
    let done = |pod: &Value| has(pod, "live", "48Mi") && resizing(pod).is_none();
    let after = world.until("grows", "it has more", done).await?;
    world.log_has(&["grows", "-c", "live"], "memory 33554432\nmemory 50331648").await?;
    let ids = |pod: &Value, name: &str| {
        let all = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["name"] == name).map(|c| (c["containerID"].clone(), c["restartCount"].clone()))
    };
    ensure!(ids(&after, "live") == ids(&before, "live") && ids(&after, "anew") == ids(&before, "anew"), "{after:#}");
    ensure!(after["status"]["observedGeneration"] == after["metadata"]["generation"], "{after:#}");

    patch(resize("anew", "20m", "40Mi")).await?;
    let done = |pod: &Value| {
        has(pod, "anew", "40Mi") && resizing(pod).is_none() && ids(pod, "anew").is_some_and(|(_, n)| n == 1)
    };
    let after = world.until("grows", "one is restarted", done).await?;
    ensure!(ids(&after, "live") == ids(&before, "live"), "{after:#}");
    world.log_has(&["grows", "-c", "anew"], "memory 41943040").await?;

    patch(resize("live", "500", "48Mi").replace("900m", "500")).await?;
    let never = |pod: &Value| {
        resizing(pod).is_some_and(|c| {
            let message = c["message"].as_str().unwrap_or_default();
            let text = "Node didn't have enough capacity: cpu, requested: 500020, capacity: ";
            c["type"] == "PodResizePending" && c["reason"] == "Infeasible" && message.starts_with(text)
        })
    };
    let pending = world.until("grows", "too much is refused", never).await?;
    ensure!(has(&pending, "live", "48Mi"), "it has what it had: {:#}", pending["status"]);
    for reason in ["ResizeStarted", "ResizeCompleted", "ResizeInfeasible"] {
        let fields = format!("involvedObject.name=grows,reason={reason}");
        let found = cluster.eventually("its event", || async {
            let events = cluster.kubectl(&["get", "events", "--field-selector", &fields, "-o", "name"]).await?;
            ensure!(!events.is_empty(), "no {reason}");
            Ok(())
        });
        found.await?;
    }
    world.remove("grows").await
}

/// What a container sees of how it is confined, one fact a line.
const CONFINED: &str = r#"
echo "user $(id -u) $(id -g)"
echo "groups $(id -G)"
sed -n 's/^CapEff:[[:space:]]*0*/caps /p; s/^NoNewPrivs:[[:space:]]*/nnp /p; s/^Seccomp:[[:space:]]*/seccomp /p' /proc/self/status
if touch /probe 2>/dev/null; then echo root rw; else echo root ro; fi
if [ -c /proc/keys ]; then echo proc masked; else echo proc plain; fi
if grep -q ' /proc/sys proc ro' /proc/mounts; then echo sys ro; else echo sys rw; fi
if mkdir $(mktemp -u /data/XXXXXX) 2>/dev/null; then echo mkdir works; else echo mkdir fails; fi
"#;

/// A pod whose containers each say what they see and end; what they said by name.
async fn said(world: &World, name: &str, spec: Value) -> Result<Vec<(String, String)>> {
    let cluster = &world.cluster;
    let mut spec = spec;
    spec["restartPolicy"] = json!("Never");
    spec["terminationGracePeriodSeconds"] = json!(1);
    let names: Vec<String> = spec["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|c| c["name"].as_str().unwrap_or_default().to_owned())
        .collect();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "seen"},
        "annotations": {"note": "a \"b\""}}, "spec": spec});
    cluster.apply(&pod.to_string()).await?;
    world.until(name, "every container has said its own", |pod| pod["status"]["phase"] == "Succeeded").await?;
    let mut out = Vec::new();
    for container in names {
        let log = cluster.kubectl(&["logs", name, "-c", &container]).await?;
        out.push((container, log));
    }
    world.remove(name).await?;
    Ok(out)
}

/// Where the cluster's kubelet looks for seccomp profiles.
fn seccomp_profile(world: &World, name: &str, text: &str) -> Result<()> {
    let folder = world.cluster.root().join("state/kubelet/seccomp");
    std::fs::create_dir_all(&folder)?;
    Ok(std::fs::write(folder.join(name), text)?)
}

async fn security_contexts_from_inside(world: &World) -> Result<()> {
    let no_mkdir = r#"{"defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}"#;
    seccomp_profile(world, "no-mkdir.json", no_mkdir)?;
    let all: u64 = {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let line = status.lines().find_map(|l| l.strip_prefix("CapEff:")).context("capabilities")?;
        u64::from_str_radix(line.trim(), 16)?
    };
    let local = json!({"type": "Localhost", "localhostProfile": "no-mkdir.json"});
    // The pod's setting, each container's, and what differs from what a container without any sees.
    let usual = [
        "user 0 0",
        "groups 0",
        "caps a80425fb",
        "nnp 0",
        "seccomp 0",
        "root rw",
        "proc masked",
        "sys ro",
        "mkdir works",
    ];
    let whole = json!({"runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000],
        "seccompProfile": {"type": "RuntimeDefault"}});
    let privileged = format!("caps {all:x}");
    let rows: [(Value, &[Row<'_>]); 2] = [
        (
            json!({}),
            &[
                ("plain", json!({}), &[]),
                ("user", json!({"runAsUser": 7}), &["user 7 0", "caps ", "root ro"]),
                ("group", json!({"runAsGroup": 8}), &["user 0 8", "groups 8"]),
                ("readonly", json!({"readOnlyRootFilesystem": true}), &["root ro"]),
                ("drop", json!({"capabilities": {"drop": ["ALL"]}}), &["caps "]),
                ("add", json!({"capabilities": {"add": ["NET_ADMIN"]}}), &["caps a80435fb"]),
                ("one", json!({"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}}), &["caps 1"]),
                ("still", json!({"allowPrivilegeEscalation": false}), &["nnp 1"]),
                ("default", json!({"seccompProfile": {"type": "RuntimeDefault"}}), &["seccomp 2"]),
                ("local", json!({"seccompProfile": local}), &["seccomp 2", "mkdir fails"]),
                ("none", json!({"seccompProfile": {"type": "Unconfined"}}), &[]),
                ("privileged", json!({"privileged": true}), &[&privileged, "proc plain", "sys rw"]),
            ],
        ),
        (
            whole,
            &[
                ("inherits", json!({}), &["user 1000 2000", "groups 2000 3000 4000", "caps ", "seccomp 2", "root ro"]),
                ("own", json!({"runAsUser": 0, "runAsGroup": 5}), &["user 0 5", "groups 5 3000 4000", "seccomp 2"]),
                (
                    "unconfined",
                    json!({"seccompProfile": {"type": "Unconfined"}, "runAsUser": 9}),
                    &["user 9 2000", "groups 2000 3000 4000", "caps ", "root ro"],
                ),
            ],
        ),
    ];
    for (index, (whole, containers)) in rows.into_iter().enumerate() {
        let specs: Vec<Value> = containers
            .iter()
            .map(|(name, context, _)| {
                json!({"name": name, "image": world.busybox, "command": ["sh", "-c", CONFINED],
                    "securityContext": context, "volumeMounts": [{"name": "tmp", "mountPath": "/data"}]})
            })
            .collect();
        let spec = json!({"securityContext": whole, "containers": specs, "volumes": [{"name": "tmp", "emptyDir": {}}]});
        let found = said(world, &format!("confined-{index}"), spec).await?;
        for ((name, log), (_, _, differs)) in found.iter().zip(containers) {
            let topic = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
            let wanted: Vec<String> = usual
                .iter()
                .map(|line| differs.iter().find(|d| topic(d) == topic(line)).unwrap_or(line).trim_end().to_owned())
                .collect();
            let lines: Vec<&str> = log.lines().map(str::trim_end).collect();
            ensure!(lines == wanted, "container {name} says {lines:#?} instead of {wanted:#?}");
        }
    }
    Ok(())
}

async fn what_is_unsafe_does_not_start(world: &World) -> Result<()> {
    let container = |name: &str, context: Value| json!({"name": name, "image": world.busybox, "command": ["sh", "-c", "exit 0"], "securityContext": context});
    let local = |file: &str| json!({"seccompProfile": {"type": "Localhost", "localhostProfile": file}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "unsafe"}, "spec": {
        "terminationGracePeriodSeconds": 1, "containers": [
            container("a-root", json!({"runAsNonRoot": true})),
            container("b-zero", json!({"runAsNonRoot": true, "runAsUser": 0})),
            container("c-gone", local("none.json")),
            container("d-empty", local("empty.json"))]}});
    seccomp_profile(world, "empty.json", "")?;
    // A pod that says of itself that it is no root cannot say that it is: the API server lets it.
    world.cluster.apply(&pod.to_string()).await?;
    let wants = [
        ("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"),
        ("CreateContainerConfigError", "container's runAsUser breaks non-root policy"),
        ("CreateContainerError", "none.json"),
        ("CreateContainerError", "empty.json"),
    ];
    let is_told = |pod: &Value| {
        let states = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        states.len() == wants.len()
            && states.iter().zip(wants).all(|(status, (reason, text))| {
                let waiting = &status["state"]["waiting"];
                let message = waiting["message"].as_str().unwrap_or_default();
                let fails = reason == "CreateContainerError" && message.contains("seccomp");
                waiting["reason"] == reason && (message.contains(text) || fails)
            })
    };
    world.until("unsafe", "each says why", is_told).await?;
    world.remove("unsafe").await?;

    let strict = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "strict"}, "spec": {
        "securityContext": {"supplementalGroupsPolicy": "Strict"},
        "containers": [container("c", json!({}))]}});
    let nodes = world.cluster.json(&["get", "nodes"]).await?;
    if nodes.pointer("/items/0/status/features/supplementalGroupsPolicy") != Some(&json!(true)) {
        world.cluster.apply(&strict.to_string()).await?;
        let refused = |pod: &Value| pod["status"]["reason"] == "SupplementalGroupsPolicyNotSupported";
        world.until("strict", "a runtime that passes over it is not asked", refused).await?;
        world.remove("strict").await?;
    }
    Ok(())
}

async fn names_and_namespaces(world: &World) -> Result<()> {
    let container =
        |name: &str, script: &str| json!({"name": name, "image": world.busybox, "command": ["sh", "-c", script]});
    let look = "hostname; cat /etc/hosts /etc/resolv.conf; echo ports $(cat /proc/sys/net/ipv4/ip_local_port_range)";
    let sysctls = json!({"sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "32100 60100"}]});
    let spec = json!({"securityContext": sysctls, "hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true,
        "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["seven", "sept"]}], "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["my.test"], "options": [{"name": "ndots", "value": "3"}]},
        "shareProcessNamespace": true,
        "containers": [container("look", look),
            container("see", "until grep -q '9876[5]' /proc/[0-9]*/cmdline; do sleep 0.1; done; echo seen; touch /gate/ok"),
            container("be", "sleep 98765 & until [ -e /gate/ok ]; do sleep 0.1; done")],
        "volumes": [{"name": "gate", "emptyDir": {}}]});
    let mut spec = spec;
    for index in [1, 2] {
        spec["containers"][index]["volumeMounts"] = json!([{"name": "gate", "mountPath": "/gate"}]);
    }
    let found = said(world, "named", spec).await?;
    let full = "h.s.default.svc.cluster.local";
    let (log, seen) = (&found[0].1, &found[1].1);
    ensure!(log.starts_with(&format!("{full}\n")), "{log}");
    for part in [
        &format!("\t{full}\th\n"),
        "192.0.2.7\tseven\tsept\n",
        "nameserver 192.0.2.53\n",
        "search my.test\n",
        "options ndots:3\n",
        "ports 32100 60100\n",
    ] {
        ensure!(log.contains(part), "{part:?} in {log}");
    }
    ensure!(seen == "seen\n", "{seen}");

    let link = |kind: &str| Ok::<_, anyhow::Error>(std::fs::read_link(format!("/proc/self/ns/{kind}"))?);
    let spaces = "for n in ipc net pid uts; do echo $n $(readlink /proc/self/ns/$n); done; hostname";
    let spec = json!({"hostIPC": true, "hostPID": true, "hostNetwork": true, "containers": [container("on", spaces)]});
    let on = said(world, "on-the-node", spec).await?.remove(0).1;
    let spec = json!({"hostnameOverride": "my.own.name", "containers": [container("own", spaces)]});
    let own = said(world, "on-its-own", spec).await?.remove(0).1;
    for kind in ["ipc", "net", "pid"] {
        let line = format!("{kind} {}\n", link(kind)?.display());
        ensure!(on.contains(&line) && !own.contains(&line), "{line:?}: {on} {own}");
    }
    ensure!(own.ends_with("\nmy.own.name\n"), "{own}");
    Ok(())
}

async fn variables_from_everywhere(world: &World) -> Result<()> {
    world.cluster.kubectl(&["create", "service", "clusterip", "my-links", "--tcp=80:8080"]).await?;
    world.cluster.kubectl(&["create", "configmap", "vars", "--from-literal=a=1", "--from-literal=2.b-c=two"]).await?;
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let resource = |name: &str, resource: &str, divisor: &str| json!({"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}});
    let file = |name: &str, key: &str| {
        json!({"name": name, "valueFrom": {"fileKeyRef":
            {"volumeName": "made", "path": "env/file", "key": key, "optional": true}}})
    };
    let env = json!([
        field("NAME", "metadata.name"), field("NAMESPACE", "metadata.namespace"), field("LABEL", "metadata.labels['app']"),
        field("NOTE", "metadata.annotations['note']"), field("ACCOUNT", "spec.serviceAccountName"),
        field("NODE", "spec.nodeName"), field("IP", "status.podIP"), field("HOST", "status.hostIP"),
        resource("CPU", "limits.cpu", "1m"), resource("MEMORY", "limits.memory", "1Mi"),
        resource("REQUEST", "requests.memory", "1Ki"), resource("DISK", "limits.ephemeral-storage", "1Mi"),
        file("WRITTEN", "K"), file("ABSENT", "L"), {"name": "x.y-z", "value": "$(NAME)/$$(NAME)"}]);
    let spec = json!({
        "initContainers": [{"name": "writes", "image": world.busybox,
            "command": ["sh", "-c", "mkdir /made/env; echo \"K='by another'\" > /made/env/file"],
            "volumeMounts": [{"name": "made", "mountPath": "/made"}]}],
        "containers": [{"name": "reads", "image": world.busybox, "command": ["env"], "env": env,
            "envFrom": [{"configMapRef": {"name": "vars"}, "prefix": "p."}],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"},
                "limits": {"cpu": "250m", "memory": "32Mi", "ephemeral-storage": "64Mi"}}}],
        "volumes": [{"name": "made", "emptyDir": {}}]});
    let log = said(world, "variables", spec).await?.remove(0).1;
    let has = |line: &str| log.lines().any(|l| l == line);
    for line in [
        "NAME=variables",
        "NAMESPACE=default",
        "LABEL=seen",
        "NOTE=a \"b\"",
        "ACCOUNT=default",
        "CPU=250",
        "MEMORY=32",
        "REQUEST=16384",
        "DISK=64",
        "WRITTEN=by another",
        "x.y-z=variables/$(NAME)",
        "p.a=1",
        "p.2.b-c=two",
    ] {
        ensure!(has(line), "{line} in {log}");
    }
    let host = format!("HOST={}", world.cluster.node_ip().await?);
    ensure!(has(&host) && log.contains("\nIP=10.") && !log.contains("ABSENT"), "{host} in {log}");

    // Services are found by variables, too, unless the pod wants none; the API server's is always there.
    let ip = world.cluster.kubectl(&["get", "service", "my-links", "-o", "jsonpath={.spec.clusterIP}"]).await?;
    let links = [
        format!("MY_LINKS_SERVICE_HOST={ip}"),
        "MY_LINKS_SERVICE_PORT=80".to_owned(),
        "MY_LINKS_SERVICE_PORT_80_8080=80".to_owned(),
        format!("MY_LINKS_PORT=tcp://{ip}:80"),
        format!("MY_LINKS_PORT_80_TCP_ADDR={ip}"),
        "KUBERNETES_SERVICE_HOST=10.96.0.1".to_owned(),
    ];
    for line in &links {
        ensure!(has(line), "{line} in {log}");
    }
    let spec = json!({"enableServiceLinks": false,
        "containers": [{"name": "reads", "image": world.busybox, "command": ["env"]}]});
    let log = said(world, "unlinked", spec).await?.remove(0).1;
    ensure!(!log.contains("MY_LINKS") && log.contains("KUBERNETES_SERVICE_HOST=10.96.0.1\n"), "{log}");
    world.cluster.kubectl(&["delete", "service", "my-links"]).await?;
    world.cluster.kubectl(&["delete", "configmap", "vars"]).await.map(drop)
}

async fn containers_end_and_begin_as_told(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    // One end restarts the container, the next one the whole pod.
    let asks = "echo life >> /data/lives; case $(wc -l < /data/lives) in 1) exit 3;; 2) exit 42;; *) sleep 1000;; esac";
    let mount = json!([{"name": "data", "mountPath": "/data"}]);
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}},
        {"action": "Restart", "exitCodes": {"operator": "In", "values": [3]}}]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "anew"}, "spec": {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "initContainers": [{"name": "first", "image": world.busybox, "command": ["sh", "-c", "echo begun >> /data/begun"],
            "volumeMounts": mount}],
        "containers": [
            {"name": "asks", "image": world.busybox, "command": ["sh", "-c", asks], "volumeMounts": mount,
                "restartPolicy": "Never", "restartPolicyRules": rules},
            {"name": "stays", "image": world.busybox, "command": ["sh", "-c", "cat /data/begun; sleep 1000"],
                "volumeMounts": mount}],
        "volumes": [{"name": "data", "emptyDir": {}}]}});
    cluster.apply(&pod.to_string()).await?;
    let begun = |pod: &Value| {
        let all = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        let ready = all.iter().all(|c| c["ready"] == true && c["restartCount"].as_i64() > Some(0));
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let told = conditions.iter().any(|c| c["type"] == "AllContainersRestarting" && c["status"] == "False");
        all.len() == 2 && ready && told
    };
    let found = world.until("anew", "the pod begins anew", begun).await?;
    world.log_has(&["anew", "-c", "stays"], "begun\nbegun\n").await?;
    let last = found.pointer("/status/containerStatuses/1/lastState/terminated/reason");
    ensure!(last == Some(&json!("RestartingAllContainers")), "{:#}", found["status"]);
    world.remove("anew").await
}
