//! Both families in one cluster, whichever is first, and IPv6 alone: pods, Services, names, probes, ports of the
//! host, load balancers and policies have IPv4 and IPv6 where the ranges say so.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use e2e::cluster::Cluster;
use e2e::images;
use e2e::registry::Registry;
use serde_json::Value;
use tokio::process::Command;

const V4: [&str; 2] = ["10.244.0.0/16", "10.96.0.0/16"];
const V6: [&str; 2] = ["fd00:10:244::/56", "fd00:10:96::/112"];

/// The flags of a cluster of these ranges, each those of pods and of Services.
fn flags(ranges: &[[&str; 2]]) -> [String; 2] {
    let of = |at: usize| ranges.iter().map(|range| range[at]).collect::<Vec<_>>().join(",");
    [format!("--cluster-cidr={}", of(0)), format!("--service-cluster-ip-range={}", of(1))]
}

/// Where the page's pod is reached at the node, and its load balancer.
const HOST_PORT: u16 = 8087;
const BALANCED: u16 = 8088;

fn pod(name: &str, image: &str, script: &str, more: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\nspec:\n  \
         terminationGracePeriodSeconds: 0\n  containers:\n  - name: main\n    image: {image}\n    \
         command: [sh, -c, {script:?}]\n{more}"
    )
}

/// It is ready when it answers the kubelet, by its first address.
fn served() -> String {
    format!(
        "    readinessProbe: {{httpGet: {{path: /, port: 8080}}, periodSeconds: 1}}\n    \
         startupProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}\n    \
         ports: [{{containerPort: 8080, hostPort: {HOST_PORT}}}]\n"
    )
}

/// Services of the one pod that serves: of every family, of IPv6 only, without an address, and from outside.
fn services() -> String {
    let of = |name: &str, spec: &str, ports: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
             spec: {{selector: {{app: web}}, {spec}, ports: [{{{ports}}}]}}\n"
        )
    };
    [
        of("both", "ipFamilyPolicy: PreferDualStack", "port: 80, targetPort: 8080"),
        of("six", "ipFamilies: [IPv6]", "port: 80, targetPort: 8080"),
        of("bare", "clusterIP: None, ipFamilyPolicy: PreferDualStack", "port: 8080"),
        of(
            "outer",
            "type: LoadBalancer, ipFamilyPolicy: PreferDualStack",
            &format!("port: {BALANCED}, targetPort: 8080"),
        ),
    ]
    .concat()
}

struct World {
    cluster: Cluster,
    /// Is it of IPv4? In the order of the cluster's ranges.
    families: Vec<bool>,
    /// The page's pod, who asks, and the node: an address of each family, in that order.
    web: Vec<IpAddr>,
    client: Vec<IpAddr>,
    node: Vec<IpAddr>,
}

/// As URLs have it.
fn host(address: IpAddr) -> String {
    if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
}

/// Addresses, or the first ones of ranges, of a list of texts or of objects.
fn addresses(list: &Value, families: &[bool]) -> Result<Vec<IpAddr>> {
    let texts = list.as_array().into_iter().flatten().filter_map(|v| v.as_str().or_else(|| v["ip"].as_str()));
    let all: Vec<IpAddr> =
        texts.map(|text| text.split('/').next().unwrap_or(text).parse()).collect::<Result<_, _>>()?;
    let found: Vec<bool> = all.iter().map(IpAddr::is_ipv4).collect();
    ensure!(found == families, "{all:?}; IPv4: {families:?}");
    Ok(all)
}

impl World {
    /// A cluster of these ranges, the first first, with its pods.
    async fn begin(ranges: &[[&str; 2]]) -> Result<(Registry, Self)> {
        let registry = Registry::start(&[images::busybox("busybox:1")?, images::glibc("glibc:1")?]).await?;
        let flags = flags(ranges);
        let cluster = Cluster::start(&flags.each_ref().map(String::as_str)).await?;
        cluster.trust_registry(&registry)?;
        let (image, glibc) = (registry.reference("busybox:1"), registry.reference("glibc:1"));
        let serve = "mkdir /w; echo hello > /w/index.html; exec httpd -f -p 8080 -h /w";
        let sleep = "exec sleep 100000";
        let slow = "metadata: {annotations: {kubernetes.io/ingress-bandwidth: 8M}, ";
        let slow = pod("glibc", &glibc, sleep, "").replace("metadata: {", slow);
        let pods = [pod("web", &image, serve, &served()), pod("client", &image, sleep, ""), slow];
        cluster.apply(&format!("{}{}", services(), pods.concat())).await?;
        cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s"]).await?;
        let families: Vec<bool> = ranges.iter().map(|[pods, _]| pods.contains('.')).collect();
        let of = async |pod: &str| addresses(&cluster.json(&["get", "pod", pod]).await?["status"]["podIPs"], &families);
        let (web, client) = (of("web").await.context("web")?, of("client").await.context("client")?);
        let nodes = cluster.json(&["get", "nodes"]).await?;
        let node = &nodes["items"][0];
        addresses(&node["spec"]["podCIDRs"], &families).context("the node's ranges")?;
        let inner = node["status"]["addresses"].as_array().into_iter().flatten().filter(|a| a["type"] == "InternalIP");
        let inner: Value = inner.map(|a| a["address"].clone()).collect::<Vec<_>>().into();
        let node = addresses(&inner, &families).context("the node's addresses")?;
        Ok((registry, Self { cluster, families, web, client, node }))
    }

    async fn run(&self, pod: &str, command: &str) -> Result<String> {
        let output = self.cluster.kubectl_output(&["exec", pod, "--", "sh", "-c", command]).await?;
        Ok(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
    }

    async fn says(&self, pod: &str, command: &str, parts: &[&str]) -> Result<()> {
        let check = || async {
            let text = self.run(pod, command).await?;
            ensure!(parts.iter().all(|part| text.contains(part)), "not {parts:?}: {text}");
            Ok(())
        };
        self.cluster.eventually(&format!("{command} in {pod}"), check).await
    }

    /// It comes to be so that this machine gets the page there.
    async fn is_got_at(&self, what: &str, url: &str) -> Result<()> {
        let reached = || async {
            let page = self.cluster.http_get(url).await?;
            ensure!(page.contains("hello"), "{page}");
            Ok(())
        };
        self.cluster.eventually(&format!("{what}: {url}"), reached).await
    }

    /// It comes to be so that the client gets the page by these of the pod's addresses.
    async fn gets(&self, why: &str, wanted: impl Fn(&IpAddr) -> bool) -> Result<()> {
        let wanted: Vec<bool> = self.web.iter().map(wanted).collect();
        let check = || async {
            let mut got = Vec::new();
            for address in &self.web {
                let script = format!("timeout 2 wget -q -O - http://{}:8080/ || true", host(*address));
                got.push(self.run("client", &script).await?.contains("hello"));
            }
            ensure!(got == wanted, "{:?}: {got:?}, not {wanted:?}", self.web);
            Ok(())
        };
        self.cluster.eventually(why, check).await
    }
}

async fn whole(ranges: &[[&str; 2]]) -> Result<()> {
    let (_registry, world) = World::begin(ranges).await?;
    pods_and_services(&world).await.context("pods and Services")?;
    from_outside(&world).await.context("from outside")?;
    policies(&world).await.context("policies")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_services_names_and_policies_of_both_families() -> Result<()> {
    whole(&[V4, V6]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipv6_may_be_first() -> Result<()> {
    whole(&[V6, V4]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipv6_may_be_alone() -> Result<()> {
    whole(&[V6]).await
}

async fn pods_and_services(world: &World) -> Result<()> {
    world.gets("pods reach pods", |_| true).await?;
    let service = async |name: &str| world.cluster.json(&["get", "service", name]).await;
    let of_both = addresses(&service("both").await?["spec"]["clusterIPs"], &world.families)?;
    let six = addresses(&service("six").await?["spec"]["clusterIPs"], &[false])?;
    for address in of_both.iter().chain(&six) {
        let url = format!("http://{}/", host(*address));
        world.says("client", &format!("wget -q -O - {url}"), &["hello"]).await?;
        // From the host, too.
        world.is_got_at("the host reaches", &url).await?;
    }
    for (address, pod) in of_both.iter().zip(&world.web) {
        let table = if address.is_ipv4() { "ahostsv4" } else { "ahostsv6" };
        world.says("glibc", &format!("getent {table} both"), &[&address.to_string()]).await?;
        world.says("glibc", "getent ahosts bare", &[&pod.to_string()]).await?;
        world.says("glibc", &format!("getent hosts {address}"), &["both.default.svc.cluster.local"]).await?;
    }
    world.says("client", "nslookup -type=aaaa six.default.svc.cluster.local", &[&six[0].to_string()]).await?;
    world.says("client", "wget -q -O - http://six/", &["hello"]).await?;
    // What the pod's annotation says of its bandwidth.
    let queues = Command::new("tc").args(["qdisc", "show"]).output().await?.stdout;
    let limited = String::from_utf8_lossy(&queues).lines().filter(|l| l.contains("tbf") && l.contains("8Mbit")).count();
    ensure!(limited == 1, "{}", String::from_utf8_lossy(&queues));
    // The first family is that of what has one only.
    let first = &world.families[..1];
    addresses(&service("kubernetes").await?["spec"]["clusterIPs"], first).context("the API server")?;
    world.says("client", "echo | timeout 5 nc kubernetes.default 443 && echo reached", &["reached"]).await?;
    let dns = world.cluster.json(&["get", "service", "-n", "kube-system", "kube-dns"]).await?;
    let dns = addresses(&dns["spec"]["clusterIPs"], first).context("the DNS")?;
    world.says("client", "cat /etc/resolv.conf", &[&format!("nameserver {}", dns[0])]).await?;
    world.says("client", "cat /etc/hosts", &[&world.client[0].to_string()]).await
}

/// The node's ports, and load balancers at its addresses.
async fn from_outside(world: &World) -> Result<()> {
    let outer = || async {
        let service = world.cluster.json(&["get", "service", "outer"]).await?;
        let given = addresses(&service["status"]["loadBalancer"]["ingress"], &world.families)?;
        ensure!(given == world.node, "{given:?}, not {:?}", world.node);
        Ok(service)
    };
    world.cluster.eventually("the load balancer has every address", || async { outer().await.map(drop) }).await?;
    let node_port = &outer().await?["spec"]["ports"][0]["nodePort"];
    for address in &world.node {
        let host = host(*address);
        world.is_got_at("the pod's port of the host", &format!("http://{host}:{HOST_PORT}/")).await?;
        world.is_got_at("the load balancer", &format!("http://{host}:{BALANCED}/")).await?;
        world.is_got_at("the Service's port of the node", &format!("http://{host}:{node_port}/")).await?;
        // Metrics and health of the node's parts, where others ask for them.
        let health = format!("http://{host}:10256/healthz");
        world.cluster.eventually(&health, || async { world.cluster.http_get(&health).await.map(drop) }).await?;
        // By IPv6 no kernel has a way from ::1 to a pod and back.
        if address.is_ipv4() {
            world.is_got_at("this machine's own", &format!("http://127.0.0.1:{HOST_PORT}/")).await?;
        }
    }
    Ok(())
}

async fn policies(world: &World) -> Result<()> {
    let apply = |spec: String| async move {
        let policy =
            format!("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p}}\nspec: {spec}\n");
        world.cluster.apply(&policy).await
    };
    let ingress = |rule: &str| {
        format!("{{podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Ingress], ingress: [{rule}]}}")
    };
    apply(ingress("")).await?;
    world.gets("nobody is let in", |_| false).await?;
    apply(ingress("{from: [{podSelector: {matchLabels: {app: client}}}]}")).await?;
    world.gets("pods are let in by every address", |_| true).await?;
    for address in &world.client {
        let length = if address.is_ipv4() { 32 } else { 128 };
        apply(ingress(&format!("{{from: [{{ipBlock: {{cidr: '{address}/{length}'}}}}]}}"))).await?;
        world.gets(&format!("{address} is let in"), |to| to.is_ipv4() == address.is_ipv4()).await?;
    }
    // Names are asked for, and the kubelet asks, whatever isolates a pod.
    apply(
        "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: \
           {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}]}]}"
            .into(),
    )
    .await?;
    world.gets("nobody may ask", |_| false).await?;
    world.says("glibc", "getent ahosts bare", &[&world.web[0].to_string()]).await?;
    world.cluster.kubectl(&["delete", "networkpolicy", "p"]).await?;
    world.gets("and again everybody", |_| true).await
}
