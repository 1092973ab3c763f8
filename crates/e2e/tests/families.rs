//! Both families in one cluster: pods, Services, names and policies have IPv4 and IPv6 where the ranges say so.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use e2e::cluster::Cluster;
use e2e::images;
use e2e::registry::Registry;
use serde_json::Value;

const PODS: &str = "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56";
const SERVICES: &str = "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112";

fn pod(name: &str, image: &str, script: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\nspec:\n  \
         terminationGracePeriodSeconds: 0\n  containers:\n  - name: main\n    image: {image}\n    \
         command: [sh, -c, {script:?}]\n"
    )
}

/// Services of the one pod that serves: of both families, of the second only, and without an address.
const OBJECTS: &str = "apiVersion: v1
kind: Service
metadata: {name: both}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: six}
spec:
  ipFamilies: [IPv6]
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: bare}
spec:
  clusterIP: None
  ipFamilyPolicy: PreferDualStack
  selector: {app: web}
  ports: [{port: 8080}]
";

struct World {
    cluster: Cluster,
    /// The page's pod, and who asks: an address of each family.
    web: [IpAddr; 2],
    client: [IpAddr; 2],
}

/// As URLs have it.
fn host(address: IpAddr) -> String {
    if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
}

fn both(list: &Value) -> Result<[IpAddr; 2]> {
    let texts = list.as_array().into_iter().flatten().filter_map(|v| v.as_str().or_else(|| v["ip"].as_str()));
    let all: Vec<IpAddr> = texts.map(str::parse).collect::<Result<_, _>>()?;
    let both: [IpAddr; 2] = all.try_into().map_err(|all| anyhow::anyhow!("not two addresses: {all:?}"))?;
    ensure!(both[0].is_ipv4() && both[1].is_ipv6(), "{both:?}");
    Ok(both)
}

impl World {
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

    /// It comes to be so that the client gets the page by these families of the pod's addresses.
    async fn gets(&self, why: &str, wanted: [bool; 2]) -> Result<()> {
        let check = || async {
            let mut got = [false; 2];
            for (got, address) in got.iter_mut().zip(self.web) {
                let script = format!("timeout 2 wget -q -O - http://{}:8080/ || true", host(address));
                *got = self.run("client", &script).await?.contains("hello");
            }
            ensure!(got == wanted, "IPv4 and IPv6: {got:?}");
            Ok(())
        };
        self.cluster.eventually(why, check).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_services_names_and_policies_of_both_families() -> Result<()> {
    let registry = Registry::start(&[images::busybox("busybox:1")?, images::glibc("glibc:1")?]).await?;
    let cluster = Cluster::start(&[PODS, SERVICES]).await?;
    cluster.trust_registry(&registry)?;
    let (image, glibc) = (registry.reference("busybox:1"), registry.reference("glibc:1"));
    let serve = "mkdir /w; echo hello > /w/index.html; exec httpd -f -p 8080 -h /w";
    let sleep = "exec sleep 100000";
    let pods = [pod("web", &image, serve), pod("client", &image, sleep), pod("glibc", &glibc, sleep)];
    cluster.apply(&format!("{OBJECTS}{}", pods.concat())).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s"]).await?;
    let addresses = async |pod: &str| both(&cluster.json(&["get", "pod", pod]).await?["status"]["podIPs"]);
    let (web, client) = (addresses("web").await?, addresses("client").await?);
    let world = World { cluster, web, client };
    let node = world.cluster.json(&["get", "nodes"]).await?;
    both(
        &node["items"][0]["spec"]["podCIDRs"]
            .as_array()
            .map(|all| all.iter().filter_map(|c| Some(Value::from(c.as_str()?.split('/').next()?))).collect())
            .unwrap_or_default(),
    )
    .context("the node's ranges")?;
    pods_and_services(&world).await.context("pods and Services")?;
    policies(&world).await.context("policies")
}

async fn pods_and_services(world: &World) -> Result<()> {
    world.gets("pods reach pods", [true, true]).await?;
    let service = async |name: &str| world.cluster.json(&["get", "service", name]).await;
    let of_both = both(&service("both").await?["spec"]["clusterIPs"])?;
    let six = service("six").await?;
    let six: IpAddr = six["spec"]["clusterIP"].as_str().context("an address")?.parse()?;
    ensure!(six.is_ipv6(), "{six}");
    for address in [of_both[0], of_both[1], six] {
        let url = format!("http://{}/", host(address));
        world.says("client", &format!("wget -q -O - {url}"), &["hello"]).await?;
        // From the host, too.
        let reached = || async {
            let page = world.cluster.http_get(&url).await?;
            ensure!(page.contains("hello"), "{page}");
            Ok(())
        };
        world.cluster.eventually(&format!("the host reaches {url}"), reached).await?;
    }
    let [four, also_six] = of_both.map(|a| a.to_string());
    let [web4, web6] = world.web.map(|a| a.to_string());
    for (pod, command, parts) in [
        ("glibc", "getent ahostsv4 both".to_owned(), vec![&*four]),
        ("glibc", "getent ahostsv6 both".into(), vec![&*also_six]),
        ("glibc", "getent ahosts bare".into(), vec![&*web4, &*web6]),
        ("glibc", format!("getent hosts {also_six}"), vec!["both.default.svc.cluster.local"]),
        ("client", "nslookup -type=aaaa six.default.svc.cluster.local".into(), vec![&*six.to_string()]),
        ("client", "wget -q -O - http://six/".into(), vec!["hello"]),
    ] {
        world.says(pod, &command, &parts).await?;
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
    world.gets("nobody is let in", [false, false]).await?;
    apply(ingress("{from: [{podSelector: {matchLabels: {app: client}}}]}")).await?;
    world.gets("pods are let in by both of their addresses", [true, true]).await?;
    for (at, wanted) in [(0, [true, false]), (1, [false, true])] {
        let address = world.client[at];
        let length = if at == 0 { 32 } else { 128 };
        apply(ingress(&format!("{{from: [{{ipBlock: {{cidr: '{address}/{length}'}}}}]}}"))).await?;
        world.gets(&format!("{address} is let in"), wanted).await?;
    }
    world.cluster.kubectl(&["delete", "networkpolicy", "p"]).await?;
    world.gets("and again everybody", [true, true]).await
}
