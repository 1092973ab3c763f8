//! NetworkPolicies and load balancers of a whole cluster, tried with real pods: what is let through, when it
//! begins, what outlives the process, and what somebody outside reaches.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use e2e::cluster::Cluster;
use e2e::images;
use e2e::registry::Registry;
use serde_json::Value;
use tokio::process::Command;

/// The outside: a network namespace behind a link of its own.
struct Outside;

const OUTSIDE: &str = "pintle-e2e-out";

async fn ip(line: &str) -> Result<()> {
    let output = Command::new("ip").args(line.split_whitespace()).output().await?;
    ensure!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

impl Outside {
    async fn build() -> Result<Self> {
        // What a killed test left.
        let _ = ip(&format!("netns del {OUTSIDE}")).await;
        let outside = Self;
        ip(&format!("netns add {OUTSIDE}")).await?;
        ip(&format!("link add pe2e-out type veth peer name eth0 netns {OUTSIDE}")).await?;
        ip("addr add 198.18.7.1/30 dev pe2e-out").await?;
        ip("link set pe2e-out up").await?;
        ip(&format!("-n {OUTSIDE} addr add 198.18.7.2/30 dev eth0")).await?;
        ip(&format!("-n {OUTSIDE} link set eth0 up")).await?;
        ip(&format!("-n {OUTSIDE} route add default via 198.18.7.1")).await?;
        Ok(outside)
    }

    /// Fetches a page from there.
    async fn get(&self, url: &str) -> Result<String> {
        let output = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{OUTSIDE}"))
            .args(["curl", "--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", "3", url])
            .output()
            .await?;
        ensure!(output.status.success(), "{url}: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // The link goes with its other end. It may be gone already.
        let _ = std::process::Command::new("ip").args(["netns", "del", OUTSIDE]).stderr(Stdio::null()).status();
    }
}

/// A pod with these labels that runs a shell script.
fn pod(name: &str, app: &str, image: &str, script: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels: {{app: {app}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {image}
    command: ["sh", "-c", {script:?}]
---
"#
    )
}

/// A page that says who serves it, with a probe that its node asks.
fn server(image: &str) -> String {
    let script = "mkdir /w && echo web > /w/index.html && exec httpd -f -p 8080 -h /w";
    let web = pod("web", "web", image, script).replace("---\n", "");
    format!(
        "{web}    ports: [{{name: http, containerPort: 8080}}]\n    readinessProbe: {{httpGet: {{path: /, port: http}}, periodSeconds: 1, failureThreshold: 1}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec:\n  selector: {{app: web}}\n  ports: [{{port: 80, targetPort: http}}]\n---\n"
    )
}

fn policy(name: &str, spec: &str) -> String {
    format!("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}}}\nspec: {spec}\n---\n")
}

struct World {
    cluster: Cluster,
    /// The Service's page.
    url: String,
}

impl World {
    /// Does this pod get the page?
    async fn gets(&self, from: &str) -> Result<bool> {
        let script = format!("timeout 2 wget -q -O - {} || true", self.url);
        Ok(self.cluster.kubectl(&["exec", from, "--", "sh", "-c", &script]).await?.trim() == "web")
    }

    async fn until(&self, from: &str, wanted: bool, why: &str) -> Result<()> {
        let check = || async move {
            let gets = self.gets(from).await?;
            ensure!(gets == wanted, "{from} gets the page: {gets}");
            Ok(())
        };
        self.cluster.eventually(why, check).await
    }
}

async fn ruleset() -> Result<String> {
    let output = Command::new("nft").args(["list", "tables"]).output().await?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_and_load_balancers() -> Result<()> {
    let registry = Registry::start(&[images::busybox("busybox:1")?]).await?;
    let cluster = Cluster::start(&[]).await?;
    cluster.trust_registry(&registry)?;
    let image = registry.reference("busybox:1");
    let sleeper = |name: &str| pod(name, name, &image, "exec sleep 100000");
    cluster.apply(&(server(&image) + &sleeper("friend") + &sleeper("stranger"))).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s"]).await?;
    let address = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]).await?;
    let mut world = World { cluster, url: format!("http://{address}/") };
    world.until("friend", true, "without policies everybody gets it").await?;
    what_policies_say_happens(&world).await.context("what policies say happens")?;
    somebody_outside_reaches_a_load_balancer(&world).await.context("a load balancer from outside")?;
    rules_outlive_the_process(&mut world).await.context("rules outlive the process")?;
    rules_are_there_before_the_first_packet(&world, &image).await.context("before the first packet")?;
    without_the_component_nothing_is_left(&mut world).await.context("without the component")?;
    Ok(())
}

async fn what_policies_say_happens(world: &World) -> Result<()> {
    let cluster = &world.cluster;
    cluster.apply(&policy("deny", "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}")).await?;
    world.until("friend", false, "nobody gets it").await?;
    let allow = "{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}], ports: [{port: http}]}]}";
    cluster.apply(&policy("allow", allow)).await?;
    world.until("friend", true, "who is named gets it").await?;
    ensure!(!world.gets("stranger").await?, "and nobody else");
    cluster.kubectl(&["label", "pod", "stranger", "app=friend", "--overwrite"]).await?;
    world.until("stranger", true, "who gets the label gets it").await?;
    cluster.kubectl(&["label", "pod", "stranger", "app=stranger", "--overwrite"]).await?;
    world.until("stranger", false, "who loses it does not").await?;
    let out = "{podSelector: {matchLabels: {app: friend}}, policyTypes: [Egress]}";
    cluster.apply(&policy("quiet", out)).await?;
    world.until("friend", false, "both ends decide").await?;
    cluster.kubectl(&["delete", "networkpolicy", "quiet"]).await?;
    world.until("friend", true, "and do so no more").await?;
    // Its own node asks all the while.
    let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    ensure!(cluster.kubectl(&["get", "pod", "web", "-o", ready]).await? == "True");
    let waits = cluster.json(&["get", "waits", "-A"]).await?;
    let held = waits["items"].as_array().into_iter().flatten().filter(|w| w["object"]["kind"] == "NetworkPolicy");
    ensure!(held.count() == 0, "{waits:#}");
    cluster.kubectl(&["delete", "networkpolicy", "allow", "deny"]).await?;
    world.until("stranger", true, "without policies everybody gets it").await?;
    Ok(())
}

/// A pod that is selected by a policy tries from its first moment on and never gets through; one that no
/// policy selects does.
async fn rules_are_there_before_the_first_packet(world: &World, image: &str) -> Result<()> {
    let cluster = &world.cluster;
    cluster.apply(&policy("early", "{podSelector: {matchLabels: {app: early}}, policyTypes: [Egress]}")).await?;
    let before = asked(cluster).await?;
    let tries =
        format!("for i in $(seq 5); do timeout 1 wget -q -O - {} && echo got $i && exit 3; done; exit 0", world.url);
    for round in 0..3 {
        let names = [format!("early-{round}"), format!("free-{round}")];
        let pods = pod(&names[0], "early", image, &tries) + &pod(&names[1], "free", image, &tries);
        cluster.apply(&pods.replace("spec:\n", "spec:\n  restartPolicy: Never\n")).await?;
        for (name, phase) in names.iter().zip(["Succeeded", "Failed"]) {
            let wait = format!("--for=jsonpath={{.status.phase}}={phase}");
            let ended = cluster.kubectl(&["wait", &wait, "pod", name, "--timeout=90s"]).await;
            if ended.is_err() {
                let log = cluster.kubectl(&["logs", name]).await?;
                ended.with_context(|| format!("{name}: {log}"))?;
            }
        }
    }
    let after = asked(cluster).await?;
    ensure!(after >= before + 6, "the network plugin asked {after} times, {before} before six pods began");
    Ok(())
}

/// How often the network plugin asked for a pod's rules, or told that it is gone, and was answered well.
async fn asked(cluster: &Cluster) -> Result<u64> {
    let page = cluster.kubectl(&["get", "--raw", "/metrics"]).await?;
    let line = "network_policy_gate_duration_seconds_count{result=\"ok\"} ";
    // After a restart nobody has asked yet.
    page.lines().find_map(|l| l.strip_prefix(line)).map_or(Ok(0), |count| Ok(count.parse()?))
}

async fn somebody_outside_reaches_a_load_balancer(world: &World) -> Result<()> {
    let (cluster, outside) = (&world.cluster, Outside::build().await?);
    let node = cluster.node_ip().await?;
    let balancer = "apiVersion: v1\nkind: Service\nmetadata: {name: balanced}\nspec:\n  type: LoadBalancer\n  selector: {app: web}\n  ports: [{port: 8088, targetPort: http}]\n";
    cluster.apply(balancer).await?;
    let url = format!("http://{node}:8088/");
    let reached = || async {
        let page = outside.get(&url).await?;
        ensure!(page.trim() == "web", "{page:?} is another page");
        Ok(())
    };
    cluster.eventually("it is reached from outside", reached).await?;
    let service = cluster.json(&["get", "service", "balanced"]).await?;
    let ingress = &service["status"]["loadBalancer"]["ingress"];
    let ports = serde_json::json!([{"port": 8088, "protocol": "TCP"}]);
    let told = serde_json::json!([{"ip": node.to_string(), "ipMode": "VIP", "ports": ports}]);
    ensure!(*ingress == told, "{service:#}");
    // Policies see who is outside.
    let block = |cidr: &str| {
        format!("{{podSelector: {{matchLabels: {{app: web}}}}, ingress: [{{from: [{{ipBlock: {{cidr: {cidr}}}}}]}}]}}")
    };
    cluster.apply(&policy("outside", &block("203.0.113.0/24"))).await?;
    let refused = || async {
        ensure!(outside.get(&url).await.is_err(), "it is reached");
        Ok(())
    };
    cluster.eventually("a policy keeps it out", refused).await?;
    cluster.apply(&policy("outside", &block("198.18.7.0/30"))).await?;
    cluster.eventually("a policy lets it in", reached).await?;
    // So do the Service's own ranges.
    let ranges = |cidr: &str| format!("{{\"spec\":{{\"loadBalancerSourceRanges\":[\"{cidr}\"]}}}}");
    cluster.kubectl(&["patch", "service", "balanced", "-p", &ranges("203.0.113.0/24")]).await?;
    cluster.eventually("its ranges keep it out", refused).await?;
    cluster.kubectl(&["patch", "service", "balanced", "-p", &ranges("198.18.7.0/30")]).await?;
    cluster.eventually("its ranges let it in", reached).await?;
    // What the node needs is not to be had.
    cluster.apply(&balancer.replace("balanced", "greedy").replace("8088", "6443")).await?;
    let told = || async {
        let waits = cluster.json(&["get", "waits"]).await?;
        let mut texts = waits["items"].as_array().into_iter().flatten().filter_map(|w| w["text"].as_str());
        ensure!(texts.any(|t| t.contains("belongs to the API server")), "{waits:#}");
        Ok(())
    };
    if cluster_port(cluster).await? == "6443" {
        cluster.eventually("the API server's port is kept", told).await?;
    }
    cluster.apply(&balancer.replace("balanced", "greedy").replace("8088", "22")).await?;
    let told = || async {
        let events = cluster.kubectl(&["get", "events", "--field-selector=reason=SyncLoadBalancerFailed"]).await?;
        ensure!(events.contains("port 22/TCP") && events.contains("belongs to those who log in (SSH)"), "{events}");
        let shown = cluster.kubectl(&["get", "service", "greedy"]).await?;
        ensure!(shown.contains("<pending>"), "{shown}");
        Ok(())
    };
    cluster.eventually("nobody is locked out", told).await?;
    cluster.kubectl(&["delete", "service", "balanced", "greedy"]).await?;
    cluster.kubectl(&["delete", "networkpolicy", "outside"]).await?;
    Ok(())
}

/// Where the API server listens.
async fn cluster_port(cluster: &Cluster) -> Result<String> {
    let slice: Value = cluster.json(&["get", "endpointslice", "kubernetes"]).await?;
    Ok(slice["ports"][0]["port"].to_string())
}

async fn rules_outlive_the_process(world: &mut World) -> Result<()> {
    world.cluster.apply(&policy("deny", "{podSelector: {matchLabels: {app: web}}}")).await?;
    world.until("stranger", false, "nobody gets it").await?;
    world.cluster.stop().await?;
    ensure!(ruleset().await?.contains("pintle-policy"), "the rules stay");
    world.cluster.kill().await.ok();
    world.cluster.up(&[]).await?;
    ensure!(!world.gets("stranger").await?, "nobody gets it after a restart");
    world.cluster.kubectl(&["delete", "networkpolicy", "deny"]).await?;
    world.until("stranger", true, "the restarted process goes on").await?;
    Ok(())
}

async fn without_the_component_nothing_is_left(world: &mut World) -> Result<()> {
    world.cluster.apply(&policy("deny", "{podSelector: {matchLabels: {app: web}}}")).await?;
    world.until("stranger", false, "nobody gets it").await?;
    world.cluster.stop().await?;
    world.cluster.up(&["--disable=network-policy"]).await?;
    ensure!(!ruleset().await?.contains("pintle-policy"), "without the component there are no rules");
    world.until("stranger", true, "and everybody gets it").await
}
