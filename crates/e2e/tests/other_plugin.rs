//! A network plugin that the user brings: a bridge, by a configuration that comes before ours. Its pods run, Services
//! reach them, and policies hold where the kernel shows the rules what goes over a bridge; where it does not, that is
//! told.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Result, ensure};
use e2e::cluster::{Cluster, guard};
use e2e::images;
use e2e::registry::Registry;
use serde_json::json;

const BRIDGE: &str = "pintle-e2e-cni";
/// Whether rules see packets of bridges.
const SHOWN: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

/// The bridge is the user's, and gone when this is dropped.
struct Bridge;

impl Drop for Bridge {
    fn drop(&mut self) {
        // Where no pod began there is none.
        let _ = std::process::Command::new("ip").args(["link", "delete", BRIDGE]).stderr(Stdio::null()).status();
    }
}

/// The setting, put back when this is dropped; a kernel without the module has none.
struct Setting(Option<String>);

impl Setting {
    fn begin() -> Self {
        Self(fs::read_to_string(SHOWN).ok())
    }

    fn set(&self, value: &str) -> Result<()> {
        if self.0.is_some() {
            fs::write(SHOWN, value)?;
        }
        Ok(())
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // The host comparison says so if it fails.
            let _ = fs::write(SHOWN, before.trim());
        }
    }
}

fn configuration(records: &Path) -> String {
    let addresses = json!({"type": "host-local", "dataDir": records, "ranges": [[{"subnet": "10.244.77.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}]});
    let bridge = json!({"type": "bridge", "bridge": BRIDGE, "isGateway": true, "hairpinMode": true, "ipam": addresses});
    json!({"cniVersion": "0.4.0", "name": "mine", "plugins": [bridge]}).to_string()
}

fn pod(name: &str, image: &str, script: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\nspec:\n  \
         terminationGracePeriodSeconds: 0\n  containers:\n  - name: main\n    image: {image}\n    \
         command: [sh, -c, {script:?}]\n"
    )
}

const SERVICE: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\n\
    spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}\n";
const NOBODY: &str = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: nobody}\n\
    spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}\n";

struct World {
    // Goes first: the host is compared when the cluster goes.
    _bridge: Bridge,
    cluster: Cluster,
    /// Of the page's pod.
    address: String,
}

impl World {
    async fn gets(&self, url: &str) -> Result<bool> {
        let script = format!("timeout 2 wget -q -O - {url} || true");
        Ok(self.cluster.kubectl(&["exec", "client", "--", "sh", "-c", &script]).await?.trim() == "web")
    }

    async fn until(&self, url: &str, wanted: bool, why: &str) -> Result<()> {
        let check = || async move {
            ensure!(self.gets(url).await? == wanted, "the client gets {url}: {}", !wanted);
            Ok(())
        };
        self.cluster.eventually(why, check).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_of_the_users_own() -> Result<()> {
    let registry = Registry::start(&[images::busybox("busybox:1")?]).await?;
    guard().await?;
    let mut world = World { _bridge: Bridge, cluster: Cluster::prepare()?, address: String::new() };
    let cluster = &mut world.cluster;
    let folder = cluster.root().join("config/cni");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("05-mine.conflist"), configuration(&cluster.root().join("addresses")))?;
    cluster.up(&[]).await?;
    cluster.trust_registry(&registry)?;
    let image = registry.reference("busybox:1");
    let web = pod("web", &image, "mkdir /w; echo web > /w/index.html; exec httpd -f -p 8080 -h /w");
    cluster.apply(&(web + &pod("client", &image, "exec sleep 100000") + SERVICE)).await?;
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s"]).await?;
    world.address = cluster.kubectl(&["get", "pod", "web", "-o", "jsonpath={.status.podIP}"]).await?;
    ensure!(world.address.starts_with("10.244.77."), "{} is none of the user's network", world.address);
    tried(&world).await?;
    world.cluster.kubectl(&["delete", "pod", "--all"]).await?;
    Ok(())
}

async fn tried(world: &World) -> Result<()> {
    let direct = format!("http://{}:8080/", world.address);
    let shown = Setting::begin();
    shown.set("1")?;
    world.until(&direct, true, "pods reach pods").await?;
    if shown.0.is_some() {
        world.until("http://web/", true, "and a Service by its name").await?;
    }
    shown.set("0")?;
    world.cluster.apply(NOBODY).await?;
    let mend = if shown.0.is_some() { "`sysctl -w net.bridge." } else { "`modprobe br_netfilter`" };
    let told = || async {
        let events = world.cluster.kubectl(&["get", "events", "--field-selector=reason=NetworkPolicyNotSeen"]).await?;
        ensure!(events.contains(BRIDGE) && events.contains(mend), "{events}");
        Ok(())
    };
    world.cluster.eventually("what no rule sees is told", told).await?;
    ensure!(world.gets(&direct).await?, "no rule sees it");
    if shown.0.is_none() {
        return Ok(());
    }
    // As the event says.
    shown.set("1")?;
    world.until(&direct, false, "the policy holds").await?;
    world.until("http://web/", false, "and for the Service").await?;
    world.cluster.kubectl(&["delete", "networkpolicy", "nobody"]).await?;
    world.until(&direct, true, "and no more").await
}
