//! The network of this node's pods: its configuration, the plugin, and what calls of it left that were killed.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use host::cni::{self, Network, PLUGIN_FOLDERS};
use host::journal::{Journal, Mutation};
use host::layout::Layout;
use host::sysctl;
use ipnet::IpNet;
use network::Own;
use stdx::SharedClock;

/// Writes the configuration and the plugin's links, before the runtime starts. What the Node has said before stays:
/// `range` is only what it will probably say, of the cluster's `ranges`.
pub fn prepare(layout: &Layout, range: IpNet, ranges: IpNet, journal: &mut Journal) -> Result<()> {
    record(journal)?;
    let program = std::env::current_exe().context("where this program is")?;
    cni::link_plugins(&layout.cni_plugins(), &program, &::cni::NAMES, PLUGIN_FOLDERS).context("the CNI plugins")?;
    let (state, gate) = (layout.cni_state(), layout.policy_socket());
    let network = Network { plugin: ::cni::PLUGIN, ranges: &[range], state: &state, gate: Some(&gate), mtu: None };
    let old = std::fs::read_to_string(layout.cni_config().join(cni::CONFIGURATION)).unwrap_or_default();
    if cni::is_kept(&old, &network, &[ranges]) {
        return Ok(());
    }
    cni::write(&layout.cni_config(), &cni::render(&network)).context("the configuration of the pod network")
}

/// Configures the network of this node's pods as its Node says. IPv6 is passed on where pods have it.
pub fn told(layout: &Layout, folder: &Path, own: &Own) -> io::Result<()> {
    let mut journal = Journal::open(&layout.journal())?;
    if *folder != layout.cni_config() {
        journal.record(Mutation::ForeignFile { path: folder.join(cni::CONFIGURATION), target: None })?;
    }
    if own.pod_cidrs.iter().any(|cidr| cidr.addr().is_ipv6()) {
        sysctl::set(&mut journal, "net.ipv6.conf.all.forwarding", "1")?;
    }
    let (state, gate) = (layout.cni_state(), layout.policy_socket());
    let network =
        Network { plugin: ::cni::PLUGIN, ranges: &own.pod_cidrs, state: &state, gate: Some(&gate), mtu: own.mtu };
    cni::write(folder, &cni::render(&network))
}

/// What leads to other nodes' pods.
pub fn record_routes(journal: &mut Journal) -> Result<()> {
    journal.record(Mutation::Link { name: network::DEVICE.into() })?;
    Ok(journal.record(Mutation::Routes { protocol: net::rtnl::route::PROTOCOL })?)
}

/// Our plugin where the runtime looks for plugins. In our own folder are those of the distribution, too; one that
/// is somebody else's keeps what is in it.
pub fn link(layout: &Layout, folder: Option<&Path>, program: &Path, journal: &mut Journal) -> Result<()> {
    let own = layout.cni_plugins();
    let Some(folder) = folder.filter(|folder| **folder != own) else {
        return cni::link_plugins(&own, program, &::cni::NAMES, PLUGIN_FOLDERS).context("the CNI plugins");
    };
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for path in cni::foreign_links(folder, ::cni::PLUGIN, &::cni::NAMES) {
        journal.record(Mutation::ForeignFile { path: path.clone(), target: Some(program.to_owned()) })?;
        cni::link(&path, program).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The plugin makes these when a pod has a port of the host.
pub fn record(journal: &mut Journal) -> Result<()> {
    for family in ["ip", "ip6"] {
        journal.record(Mutation::NftTable { family: family.into(), name: ::cni::ports::TABLE.into() })?;
    }
    Ok(())
}

/// The pods that have a network, and their addresses: what keeps policies begins with these.
pub fn records(layout: &Layout) -> Vec<policy::Record> {
    let found = ::cni::records::Records::of(&layout.cni_state(), cni::NETWORK).all();
    let found = found.unwrap_or_else(|error| {
        tracing::warn!(%error, "the records of the pod network cannot be read");
        Vec::new()
    });
    let known = found.into_iter().filter(|record| record.complete && !record.name.is_empty());
    known
        .map(|record| policy::Record {
            container: record.container_id,
            namespace: record.namespace,
            name: record.name,
            uid: record.uid,
            addresses: record.addresses,
        })
        .collect()
}

/// Takes away what belongs to no pod that the runtime knows. What fails is told: pods start without it.
pub async fn collect(layout: &Layout, clock: &SharedClock) {
    match try_collect(layout, clock).await {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "attachments to the pod network were left by pods that are gone"),
        Err(error) => tracing::warn!(error = format!("{error:#}"), "what pods left of their network stays"),
    }
}

async fn try_collect(layout: &Layout, clock: &SharedClock) -> Result<usize> {
    let endpoint = format!("unix://{}", layout.containerd_socket().display());
    let client = cri::Client::new(&endpoint, clock.clone())?;
    let known: BTreeSet<String> = client.list_pod_sandbox(None).await?.into_iter().map(|s| s.id).collect();
    let (state, gate, now) = (layout.cni_state(), layout.policy_socket(), clock.wall());
    let collect = move || ::cni::collect::unknown(&state, cni::NETWORK, Some(&gate), &known, now.into());
    Ok(tokio::task::spawn_blocking(collect).await??)
}
