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

/// Writes the configuration and the plugin's links, before the runtime starts.
pub fn prepare(layout: &Layout, range: IpNet, journal: &mut Journal) -> Result<()> {
    record(journal)?;
    let program = std::env::current_exe().context("where this program is")?;
    link(&layout.cni_plugins(), &program)?;
    configure(layout, &layout.cni_config(), &[range], None).context("the configuration of the pod network")
}

fn configure(layout: &Layout, folder: &Path, ranges: &[IpNet], mtu: Option<u32>) -> io::Result<()> {
    let (state, gate) = (layout.cni_state(), layout.policy_socket());
    let network = Network { plugin: ::cni::PLUGIN, ranges, state: &state, gate: Some(&gate), mtu };
    cni::write(folder, &cni::render(&network))
}

/// Configures the network of this node's pods as its Node says. IPv6 is passed on where pods have it.
pub fn told(layout: &Layout, folder: &Path, own: &Own) -> io::Result<()> {
    if own.pod_cidrs.iter().any(|cidr| cidr.addr().is_ipv6()) {
        let mut journal = Journal::open(&layout.journal())?;
        sysctl::set(&mut journal, "net.ipv6.conf.all.forwarding", "1")?;
    }
    configure(layout, folder, &own.pod_cidrs, own.mtu)
}

/// What leads to other nodes' pods.
pub fn record_routes(journal: &mut Journal) -> Result<()> {
    journal.record(Mutation::Link { name: network::DEVICE.into() })?;
    Ok(journal.record(Mutation::Routes { protocol: net::rtnl::route::PROTOCOL })?)
}

/// Every plugin in one folder: ours, and those of the distribution.
pub fn link(folder: &Path, program: &Path) -> Result<()> {
    cni::link_plugins(folder, program, &::cni::NAMES, PLUGIN_FOLDERS).context("the CNI plugins")
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
