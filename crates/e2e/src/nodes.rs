//! Several nodes on one machine: network namespaces, each with a container runtime, `pintle kubelet`,
//! `pintle kube-proxy`, `pintle network` and `pintle network-policy` of its own, where it is wanted a `pintle dns`,
//! too, joined by hand to one API server.
//!
//! ```text
//!   host: pintle up without a node   10.88.0.254
//!      │ bridge pintle-e2e (10.88.0.0/24)
//!      ├── n1 10.88.0.1   ├── n2 10.88.0.2   … nodes on one layer-2 network
//!      ├── out 10.88.0.100: somebody outside the cluster
//!      └── router 10.88.0.253 ── 10.89.0.254/24 ── far nodes: f1 10.89.0.1 …
//! ```
//!
//! Images are imported, not pulled: namespaces need no registry. Dropping it ends everything and takes it away.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use host::containerd;
use host::image::Image;
use host::journal::Journal;
use host::layout::Layout;
use host::process::ProcessId;
use host::reset::{self, Step};
use net::namespace::Namespace;
use pki::Request;
use pki::layout::Purpose;
use serde_json::json;
use stdx::{ClockExt, SharedClock};
use tokio::process::{Child, Command};

use crate::cluster::{Cluster, NEARLY_FULL_DISK, PATIENCE};
use crate::{abandoned, runtime};

/// What names of namespaces and links begin with.
const PREFIX: &str = "pintle-e2e";
/// The host's address on the bridge, where the API server is.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 254);
/// The port of the API server.
const PORT: u16 = 7443;
/// Where the nodes' own ranges come from.
pub const PODS: &str = "10.244.0.0/16";

/// A node that is to be.
#[derive(Clone, Debug)]
pub struct Spec {
    pub name: &'static str,
    /// Its address: 10.88.0.x, or of a far node, behind the router, 10.89.0.x.
    pub address: Ipv4Addr,
    /// More flags of its kubelet.
    pub kubelet: Vec<String>,
    /// More flags of its kube-proxy.
    pub proxy: Vec<String>,
    /// Flags of a DNS of its own; `None`: its pods ask those of other nodes.
    pub dns: Option<Vec<String>>,
}

impl Spec {
    /// One on the same network as the host.
    pub fn near(name: &'static str, number: u8) -> Self {
        Self { name, address: Ipv4Addr::new(10, 88, 0, number), kubelet: Vec::new(), proxy: Vec::new(), dns: None }
    }

    /// One behind the router.
    pub fn far(name: &'static str, number: u8) -> Self {
        Self { address: Ipv4Addr::new(10, 89, 0, number), ..Self::near(name, number) }
    }

    fn is_far(&self) -> bool {
        is_far(self.address)
    }
}

fn is_far(address: Ipv4Addr) -> bool {
    address.octets()[1] == 89
}

/// A node that runs.
pub struct Node {
    pub spec: Spec,
    pub address: Ipv4Addr,
    folder: PathBuf,
    parts: Vec<Child>,
}

/// The nodes and their control plane.
pub struct Nodes {
    /// Ends last.
    pub cluster: Cluster,
    pub nodes: Vec<Node>,
    images: Vec<PathBuf>,
}

/// The name of a node's network namespace.
pub fn namespace(name: &str) -> String {
    format!("{PREFIX}-{name}")
}

fn netns(name: &str) -> PathBuf {
    Path::new("/run/netns").join(namespace(name))
}

/// Runs `ip` with the words of a line.
fn ip(line: &str) -> Result<()> {
    run("ip", &line.split_whitespace().collect::<Vec<_>>())
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = std::process::Command::new(program).args(args).output()?;
    ensure!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// A command that runs in a namespace of ours.
pub fn inside(name: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", netns(name).display())).arg("--").arg(program);
    command.kill_on_drop(true);
    command
}

impl Nodes {
    /// Starts a control plane with extra flags, the networks and the nodes, and waits until all are Ready.
    /// `images` can be used in pods by their names.
    pub async fn start(flags: &[&str], specs: &[Spec], images: &[(&str, Image)]) -> Result<Self> {
        crate::cluster::guard().await?;
        // Everything of the nodes is in namespaces of their own: clusters of the host may be beside them.
        let mut cluster = Cluster::prepare_server()?;
        let parent = cluster.root().parent().context("a folder of folders")?;
        for folder in abandoned::abandoned(parent)?.iter().filter(|folder| folder.join("nodes").is_dir()) {
            reset(cluster.binary(), folder)?;
        }
        clear()?;
        let mut archives = Vec::new();
        for (at, (_, image)) in images.iter().enumerate() {
            let path = cluster.root().join(format!("image-{at}.tar"));
            std::fs::write(&path, image.archive()?)?;
            archives.push(path);
        }
        build_networks()?;
        let address = format!("--node-ip={HOST}");
        let bind = format!("--bind-address={HOST}");
        let port = format!("--secure-port={PORT}");
        let usual = ["--disable=kubelet,kube-proxy,dns", &address, &bind, &port];
        let up = cluster.up(&[&usual, flags].concat()).await;
        let mut nodes = Self { cluster, nodes: Vec::new(), images: archives };
        up?;
        for spec in specs {
            nodes.add(spec.clone()).await?;
        }
        nodes.ready().await?;
        Ok(nodes)
    }

    /// The clock.
    pub fn clock(&self) -> &SharedClock {
        &self.cluster.clock
    }

    /// A node by its name.
    pub fn node(&self, name: &str) -> Result<&Node> {
        self.nodes.iter().find(|n| n.spec.name == name).with_context(|| format!("a node {name}"))
    }

    /// Joins one more node.
    pub async fn add(&mut self, spec: Spec) -> Result<()> {
        plug(&spec)?;
        let folder = self.cluster.root().join("nodes").join(spec.name);
        std::fs::create_dir_all(&folder)?;
        let layout = Layout::below(&folder);
        let mut journal = Journal::open(&layout.journal())?;
        for own in [&layout.state, &layout.config, &layout.run] {
            journal.make_folder(own)?;
        }
        let clock = self.cluster.clock.clone();
        // The runtime, its images and every pod are in the node's namespace, as what starts it is.
        let (name, archives) = (spec.name, self.images.clone());
        let start = move || {
            let alone = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            alone.block_on(start_runtime(&layout, &archives, &clock)).map_err(std::io::Error::other)
        };
        let started = tokio::task::spawn_blocking(move || Namespace::open(&netns(name))?.run(start)).await?;
        started.with_context(|| format!("the runtime of {name}"))?;
        let address = spec.address;
        let mut node = Node { spec, address, folder, parts: Vec::new() };
        self.start_parts(&mut node)?;
        self.nodes.push(node);
        Ok(())
    }

    /// Certificates for a node and its parts, as an administrator makes them.
    fn credentials(&self, node: &Node) -> Result<PathBuf> {
        let keys = pki::Layout::open(self.cluster.root().join("state/pki"))?;
        let now = self.cluster.clock.wall();
        let ca = keys.authority(Purpose::Cluster, now)?;
        let own = pki::Layout::open(node.folder.join("certs"))?;
        let user = format!("system:node:{}", node.spec.name);
        let serving = Request::server(user.clone(), [node.spec.name]).with_addresses([node.address.into()]);
        // The name of the files is that of the address: another address is another certificate.
        own.identity(&format!("serving-{}", node.address), &ca, &serving, now)?;
        std::fs::write(own.path("cluster-ca.crt"), ca.certificate())?;
        for (file, user, group) in [
            ("kubelet", user.as_str(), "system:nodes"),
            ("proxy", "system:kube-proxy", ""),
            ("policy", "system:network-policy", ""),
            ("dns", "system:pintle:dns", ""),
        ] {
            own.identity(file, &ca, &Request::client(user, group), now)?;
            let path = |suffix: &str| own.path(&format!("{file}.{suffix}")).display().to_string();
            let config = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "c", "cluster": {
                    "server": format!("https://{HOST}:{PORT}"),
                    "certificate-authority": own.path("cluster-ca.crt").display().to_string(),
                }}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {"client-certificate": path("crt"), "client-key": path("key")}}],
            });
            client::kubeconfig::write(&own.path(&format!("{file}.kubeconfig")), &config)?;
        }
        Ok(node.folder.join("certs"))
    }

    fn start_parts(&self, node: &mut Node) -> Result<()> {
        let certs = self.credentials(node)?;
        let name = node.spec.name;
        let layout = Layout::below(&node.folder);
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let host_name = format!("--hostname-override={name}");
        let mut kubelet = vec![
            flag("kubeconfig", &certs.join("kubelet.kubeconfig")),
            host_name.clone(),
            format!("--node-ip={}", node.address),
            flag("root-dir", &layout.kubelet()),
            flag("pod-logs-dir", &layout.pod_logs()),
            flag("client-ca-file", &certs.join("cluster-ca.crt")),
            flag("tls-cert-file", &certs.join(format!("serving-{}.crt", node.address))),
            flag("tls-private-key-file", &certs.join(format!("serving-{}.key", node.address))),
            format!("--container-runtime-endpoint=unix://{}", layout.containerd_socket().display()),
            format!("--cgroup-root={}", cgroup(name)),
            NEARLY_FULL_DISK.into(),
            // What was imported is in no registry: it would not come back.
            "--image-gc-high-threshold=100".into(),
        ];
        kubelet.extend(node.spec.kubelet.clone());
        let mut proxy = vec![
            flag("kubeconfig", &certs.join("proxy.kubeconfig")),
            host_name.clone(),
            "--proxy-mode=nftables".into(),
            "--masquerade-egress".into(),
            "--pod-interfaces=veth*".into(),
            "--nodeport-addresses=0.0.0.0/0".into(),
            format!("--cluster-cidr={PODS}"),
        ];
        proxy.extend(node.spec.proxy.clone());
        let mut network = vec![flag("kubeconfig", &certs.join("proxy.kubeconfig")), host_name.clone()];
        network.extend(abandoned::roots(&node.folder));
        network.push(format!("--container-runtime-endpoint=unix://{}", layout.containerd_socket().display()));
        let mut policy = vec![flag("kubeconfig", &certs.join("policy.kubeconfig")), host_name.clone()];
        policy.extend(abandoned::roots(&node.folder));
        policy.push("--cluster-dns=10.96.0.10".into());
        let mut parts =
            vec![("network-policy", policy), ("network", network), ("kubelet", kubelet), ("kube-proxy", proxy)];
        if let Some(more) = &node.spec.dns {
            let own = [flag("kubeconfig", &certs.join("dns.kubeconfig")), host_name];
            parts.push(("dns", own.into_iter().chain(more.iter().cloned()).collect()));
        }
        for (command, flags) in parts {
            node.parts.push(self.part(name, &node.folder, command, &flags)?);
        }
        Ok(())
    }

    /// Starts one part of a node: `pintle COMMAND FLAGS` in its namespace, with its log in the node's folder.
    fn part(&self, name: &str, folder: &Path, command: &str, flags: &[String]) -> Result<Child> {
        let path = folder.join(format!("{command}.log"));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        let mut process = inside(name, self.cluster.binary());
        process.arg(command).args(flags).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(process.spawn()?)
    }

    /// Waits until every node is Ready.
    pub async fn ready(&self) -> Result<()> {
        for node in &self.nodes {
            let name = format!("node/{}", node.spec.name);
            let exists = || async { self.cluster.kubectl(&["get", &name, "-o", "name"]).await };
            self.cluster.eventually(&format!("{name} is there"), exists).await.with_context(|| self.logs(node))?;
            let waited = self.cluster.kubectl(&["wait", "--for=condition=Ready", &name, "--timeout=90s"]).await;
            waited.with_context(|| self.logs(node))?;
        }
        Ok(())
    }

    /// The ends of a node's logs, for messages.
    pub fn logs(&self, node: &Node) -> String {
        let tail = |part: &str| {
            let text = std::fs::read_to_string(node.folder.join(format!("{part}.log"))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("{} {part}:\n{}\n", node.spec.name, lines[lines.len().saturating_sub(25)..].join("\n"))
        };
        ["network", "kubelet", "kube-proxy", "network-policy", "dns"].map(tail).concat()
    }

    /// What a command says in a namespace of ours: a node's, `out`, `router`.
    pub async fn says(&self, name: &str, command: &[&str]) -> Result<String> {
        let (program, args) = command.split_first().context("a command")?;
        let output = inside(name, program).args(args).output();
        let output = self.cluster.clock.timeout(Duration::from_secs(30), output).await.context("no end")??;
        let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "{name}: {command:?}: {} {}", said.trim(), errors.trim());
        Ok(said.into_owned())
    }

    /// A page over HTTP, asked for in a namespace of ours.
    pub async fn get(&self, name: &str, url: &str) -> Result<String> {
        self.says(name, &["curl", "--silent", "--show-error", "--fail", "--max-time", "5", url]).await
    }

    /// Gives a node on the host's network another address, and starts its parts anew, as somebody does who
    /// has moved it.
    pub async fn readdress(&mut self, name: &str, number: u8) -> Result<()> {
        let at = self.nodes.iter().position(|n| n.spec.name == name).with_context(|| format!("a node {name}"))?;
        let mut node = self.nodes.swap_remove(at);
        for mut part in std::mem::take(&mut node.parts) {
            part.kill().await?;
        }
        let (before, after) = (node.address, Ipv4Addr::new(10, 88, 0, number));
        node.address = after;
        let space = namespace(name);
        ip(&format!("-n {space} address delete {before}/24 dev eth0"))?;
        ip(&format!("-n {space} address add {after}/24 dev eth0"))?;
        for line in routes(after) {
            ip(&format!("-n {space} route replace {line}"))?;
        }
        self.start_parts(&mut node)?;
        self.nodes.push(node);
        Ok(())
    }

    /// Ends a node as a power loss does: parts, runtime, pods and links, at once.
    pub async fn kill(&mut self, name: &str) -> Result<()> {
        let at = self.nodes.iter().position(|n| n.spec.name == name).with_context(|| format!("a node {name}"))?;
        for part in &mut self.nodes[at].parts {
            part.kill().await?;
        }
        ip(&format!("-n {} link set eth0 down", namespace(name)))
    }
}

/// Starts a runtime in the namespace of the thread, with the images.
async fn start_runtime(layout: &Layout, archives: &[PathBuf], clock: &SharedClock) -> Result<()> {
    containerd::ensure(layout, &runtime::settings(layout)?, clock).await?;
    containerd::import_pause(layout).await?;
    for archive in archives {
        let name = archive.display().to_string();
        containerd::import(&layout.containerd_socket(), &name, archive).await?;
    }
    Ok(())
}

fn cgroup(name: &str) -> String {
    format!("/{PREFIX}-{name}")
}

/// The bridge, the router behind it, and somebody outside.
fn build_networks() -> Result<()> {
    ip(&format!("link add {PREFIX} type bridge"))?;
    ip(&format!("address add {HOST}/24 dev {PREFIX}"))?;
    ip(&format!("link set {PREFIX} up"))?;
    ip(&format!("route add 10.89.0.0/24 via 10.88.0.253 dev {PREFIX}"))?;
    let router = namespace("router");
    add_namespace("router")?;
    wire("router", "eth0", "10.88.0.253/24")?;
    ip(&format!("-n {router} link add far type bridge"))?;
    ip(&format!("-n {router} address add 10.89.0.254/24 dev far"))?;
    ip(&format!("-n {router} link set far up"))?;
    Namespace::open(&netns("router"))?.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))?;
    add_namespace("out")?;
    wire("out", "eth0", "10.88.0.100/24")?;
    for line in routes(Ipv4Addr::new(10, 88, 0, 100)) {
        ip(&format!("-n {} route add {line}", namespace("out")))?;
    }
    Ok(())
}

fn add_namespace(name: &str) -> Result<()> {
    ip(&format!("netns add {}", namespace(name)))?;
    // A new namespace has the host's own setting, which is another while a cluster runs there.
    Namespace::open(&netns(name))?.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "0"))?;
    ip(&format!("-n {} link set lo up", namespace(name)))
}

/// A link from the host's bridge into a namespace.
fn wire(name: &str, link: &str, address: &str) -> Result<()> {
    let space = namespace(name);
    ip(&format!("link add pe-{name} type veth peer name {link} netns {space}"))?;
    ip(&format!("link set pe-{name} master {PREFIX} up"))?;
    ip(&format!("-n {space} link set {link} up"))?;
    ip(&format!("-n {space} address add {address} dev {link}"))
}

/// The routes of who has that address.
fn routes(address: Ipv4Addr) -> Vec<String> {
    if is_far(address) {
        vec!["default via 10.89.0.254".into()]
    } else {
        vec![format!("default via {HOST}"), "10.89.0.0/24 via 10.88.0.253".into()]
    }
}

/// A namespace for a node, on its network.
fn plug(spec: &Spec) -> Result<()> {
    add_namespace(spec.name)?;
    let (space, address) = (namespace(spec.name), spec.address);
    if spec.is_far() {
        let router = namespace("router");
        ip(&format!("-n {router} link add pe-{} type veth peer name eth0 netns {space}", spec.name))?;
        ip(&format!("-n {router} link set pe-{} master far up", spec.name))?;
        ip(&format!("-n {space} link set eth0 up"))?;
        ip(&format!("-n {space} address add {address}/24 dev eth0"))?;
    } else {
        wire(spec.name, "eth0", &format!("{address}/24"))?;
    }
    for line in routes(address) {
        ip(&format!("-n {space} route add {line}"))?;
    }
    Ok(())
}

/// Takes away what a test left that was killed: namespaces with their links, and the bridge.
fn clear() -> Result<()> {
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&format!("{PREFIX}-")) {
            ip(&format!("netns delete {name}"))?;
        }
    }
    if Path::new("/sys/class/net").join(PREFIX).exists() {
        ip(&format!("link delete {PREFIX}"))?;
    }
    Ok(())
}

/// Ends the runtimes and pods of the nodes below a cluster's folder, each in its namespace where that is left.
pub fn reset(binary: &Path, folder: &Path) -> Result<()> {
    let mut failed = Vec::new();
    for entry in std::fs::read_dir(folder.join("nodes")).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let space = netns(&name);
        // Where the namespace is gone there are no routes and rules of the node, and the host's are not its own.
        let (program, enter) = if space.exists() {
            ("nsenter", format!("--net={}", space.display()))
        } else {
            ("unshare", "--net".to_owned())
        };
        let mut command = std::process::Command::new(program);
        let output =
            command.arg(enter).arg("--").arg(binary).arg("reset").args(abandoned::roots(&entry.path())).output()?;
        if !output.status.success() {
            failed.push(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        reset::apply(&Step::RemoveCgroup(cgroup(&name).into()))?;
    }
    if failed.is_empty() { Ok(()) } else { bail!("nodes were not reset: {}", failed.join("; ")) }
}

impl Nodes {
    /// What `pintle reset` leaves on a node: routes, rules, links and settings.
    async fn left(&self, name: &str) -> Result<String> {
        let mut left = self.says(name, &["ip", "route", "show", "proto", "113"]).await?;
        left += &self.says(name, &["nft", "list", "tables"]).await?;
        left += &self.says(name, &["ip", "-o", "link", "show", "type", "vxlan"]).await?;
        let links = self.says(name, &["ip", "-o", "link", "show", "type", "veth"]).await?;
        left += &links.lines().filter(|line| line.contains(": veth")).collect::<String>();
        if self.says(name, &["cat", "/proc/sys/net/ipv4/ip_forward"]).await?.trim() != "0" {
            left += "it passes packets on";
        }
        Ok(left)
    }

    /// Ends a node in order and shows what is left on it: nothing but its link and, where it forwards, why.
    pub async fn reset(&mut self, name: &str) -> Result<String> {
        let at = self.nodes.iter().position(|n| n.spec.name == name).with_context(|| format!("a node {name}"))?;
        for mut part in std::mem::take(&mut self.nodes[at].parts) {
            if let Some(pid) = part.id() {
                Command::new("kill").arg(pid.to_string()).status().await?;
            }
            self.cluster.clock.timeout(PATIENCE, part.wait()).await.context("an orderly end")??;
        }
        let (binary, roots) = (self.cluster.binary().to_owned(), abandoned::roots(&self.nodes[at].folder));
        // Rules of a proxy that ran alone are nobody's in the journal.
        let kubeconfig = self.nodes[at].folder.join("certs/proxy.kubeconfig");
        let cleanup = inside(name, &binary).args(["kube-proxy", "--cleanup", "--kubeconfig"]).arg(kubeconfig).status();
        ensure!(cleanup.await?.success(), "kube-proxy --cleanup");
        let output = inside(name, &binary).arg("reset").args(roots).output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.left(name).await
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // Parts get SIGKILL when they are dropped.
        self.nodes.iter_mut().for_each(|node| node.parts.clear());
        let wait = self.nodes.iter().filter_map(|n| ProcessId::load_alive(&Layout::below(&n.folder).containerd_pid()));
        let runtimes = wait.count();
        let ended = reset(self.cluster.binary(), self.cluster.root()).and_then(|()| clear());
        if let Err(error) = ended {
            eprintln!("{runtimes} nodes were not ended in order: {error:#}");
            assert!(std::thread::panicking(), "the test left traces");
        }
    }
}
