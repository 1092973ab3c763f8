//! What `up` needs of the host, given its flags; everything missing is said at once.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Result, bail};
use host::preflight::{POD_RANGE, Problem, SERVICE_RANGE, Wanted, ask_runtime, judge, look, silent_runtime, warnings};
use host::sysctl;
use ipnet::IpNet;
use stdx::SharedClock;

use crate::cluster::{address, families};
use crate::commands::up::{Component, Up};

/// The kubelet's port.
pub const KUBELET_PORT: u16 = 10250;

#[allow(clippy::disallowed_methods, reason = "PATH is how programs are found; the binary reads it once")]
pub fn path() -> String {
    std::env::var("PATH").unwrap_or_default()
}

/// Fails with every problem and its mend. Nothing is changed.
pub fn check(args: &Up, clock: &SharedClock) -> Result<()> {
    let node = args.has(Component::Kubelet);
    let rules = args.has(Component::Proxy) || args.runs_policy();
    let own_runtime = node && args.container_runtime_endpoint.is_none();
    let mut programs = Vec::new();
    if own_runtime {
        programs.extend(["containerd", "ctr", "setsid", "runc"]);
    }
    // Ports of the host are rules, too.
    if rules || own_runtime {
        programs.push("nft");
    }
    let addresses = families::node_addresses(&args.node_ip, &args.cluster_cidr, address::outward_of);
    let listens_at = SocketAddr::new(families::listens_at(args.bind_address, &addresses), args.secure_port);
    let mut ports = vec![(listens_at, "API server".to_owned())];
    if node {
        ports.push((SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), KUBELET_PORT), "kubelet".to_owned()));
    }
    let runtime_endpoint = args.container_runtime_endpoint.clone().filter(|_| node);
    families::check(POD_RANGE, &args.cluster_cidr)?;
    families::check(SERVICE_RANGE, &args.service_cluster_ip_range)?;
    families::check_order(&args.cluster_cidr, &args.service_cluster_ip_range)?;
    if node {
        families::check_node(&addresses, &args.cluster_cidr)?;
    }
    let pod_network =
        own_runtime.then(|| (families::first_ranges(&args.cluster_cidr), args.roots.layout().cni_state()));
    let pods = args.cluster_cidr.iter().map(|range| (POD_RANGE, *range));
    let ranges: Vec<(&str, IpNet)> =
        pods.chain(args.service_cluster_ip_range.iter().map(|range| (SERVICE_RANGE, *range))).collect();
    let mut settings = if args.has(Component::Proxy) { sysctl::NEEDED.to_vec() } else { Vec::new() };
    if own_runtime && args.cluster_cidr.iter().any(|range| range.addr().is_ipv6()) {
        settings.push(sysctl::FORWARD_V6);
    }
    let wanted = Wanted {
        programs,
        ports,
        nftables: rules,
        containers: own_runtime,
        runtime_endpoint,
        pod_network,
        is_known: args.roots.layout().store().exists(),
        ranges: if node { ranges } else { Vec::new() },
        settings,
    };
    // No further thread: this process may only be there to start another one.
    let asking = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let facts = asking.block_on(look(&wanted, &path(), clock));
    let mut problems = judge(&facts);
    for Problem { what, mend } in warnings(&facts) {
        // No log is there yet.
        let _ = writeln!(std::io::stderr(), "  ! {what}\n    → {mend}");
    }
    let store = args.roots.layout().store();
    if let Err(error) = storage::check(&store) {
        problems.push(Problem {
            what: format!("the store in {} cannot be opened: {error}", store.display()),
            mend: "start the pintle that wrote it, or move that folder away for a new cluster".into(),
        });
    }
    refuse(&problems)
}

/// The same for a kubelet alone: its runtime must answer.
pub async fn check_runtime(endpoint: &str, clock: &SharedClock) -> Result<()> {
    let silent = ask_runtime(endpoint, clock).await.map(|why| silent_runtime(endpoint, &why));
    refuse(silent.as_slice())
}

fn refuse(problems: &[Problem]) -> Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = problems.iter().map(|p| format!("  ✘ {}\n    → {}", p.what, p.mend)).collect();
    bail!("this machine is not ready; nothing was changed:\n{}", lines.join("\n"))
}
