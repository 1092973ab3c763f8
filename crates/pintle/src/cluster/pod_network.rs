//! The network of this node's pods: its configuration, the plugin, and what calls of it left that were killed.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use host::cni::{self, Network, PLUGIN_FOLDERS};
use host::journal::{Journal, Mutation};
use host::layout::Layout;
use host::sysctl;
use ipnet::IpNet;
use net::rtnl::Rtnl;
use net::rtnl::link::Link;
use net::rtnl::route::{ANNOUNCED, Route};
use network::Own;
use stdx::SharedClock;

use super::pod_upkeep::Attachments;

/// Writes the configuration and the plugin's links, before the runtime starts. What the Node has said before stays:
/// `first` are only what it will probably say, of the cluster's `ranges`. Where policies are kept (`gate`) the plugin
/// asks before a pod gets its network.
pub fn prepare(layout: &Layout, first: &[IpNet], ranges: &[IpNet], gate: bool, journal: &mut Journal) -> Result<()> {
    record(layout, journal)?;
    pass_on(first, journal).context("IPv6 between pods")?;
    let program = std::env::current_exe().context("where this program is")?;
    cni::link_plugins(&layout.cni_plugins(), &program, &::cni::NAMES, PLUGIN_FOLDERS).context("the CNI plugins")?;
    let (state, gate) = (layout.cni_state(), gate.then(|| layout.policy_socket()));
    let network = Network { plugin: ::cni::PLUGIN, ranges: first, state: &state, gate: gate.as_deref(), mtu: None };
    let old = std::fs::read_to_string(layout.cni_config().join(cni::CONFIGURATION)).unwrap_or_default();
    if cni::is_kept(&old, &network, ranges) {
        return Ok(());
    }
    cni::write(&layout.cni_config(), &cni::render(&network)).context("the configuration of the pod network")
}

/// Configures the network of this node's pods as its Node says. IPv6 is passed on where pods have it.
pub fn told(layout: &Layout, folder: &Path, gate: bool, own: &Own) -> io::Result<()> {
    let mut journal = Journal::open(&layout.journal())?;
    if *folder != layout.cni_config() {
        journal.record(Mutation::ForeignFile { path: folder.join(cni::CONFIGURATION), target: None })?;
    }
    pass_on(&own.pod_cidrs, &mut journal)?;
    let (state, gate) = (layout.cni_state(), gate.then(|| layout.policy_socket()));
    let (plugin, ranges) = (::cni::PLUGIN, &own.pod_cidrs);
    let network = Network { plugin, ranges, state: &state, gate: gate.as_deref(), mtu: own.mtu };
    cni::write(folder, &cni::render(&network))
}

/// IPv6 is passed on where pods have it. A host that does so is a router, and routers take no default route from
/// others' announcements unless their link says so twice: links that have one keep it.
fn pass_on(ranges: &[IpNet], journal: &mut Journal) -> io::Result<()> {
    let (forwarding, on) = sysctl::FORWARD_V6;
    if ranges.iter().all(|range| range.addr().is_ipv4()) || sysctl::get(forwarding)? == on {
        return Ok(());
    }
    let rtnl = Rtnl::open()?;
    let (links, routes) = (rtnl.links()?, rtnl.routes()?);
    for name in announced(&links, &routes) {
        if sysctl::get_of_link(name, "accept_ra")? == "1" {
            sysctl::set_of_link(journal, name, "accept_ra", "2")?;
        }
    }
    sysctl::set(journal, forwarding, on)
}

/// The links by which a router's announcements have made routes.
fn announced<'a>(links: &'a [Link], routes: &[Route]) -> BTreeSet<&'a str> {
    let by = |link: &&Link| routes.iter().any(|r| r.link == link.index && r.protocol == ANNOUNCED);
    links.iter().filter(by).map(|link| link.name.as_str()).collect()
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
pub fn record(layout: &Layout, journal: &mut Journal) -> Result<()> {
    let own = ::cni::ports::table(&layout.cni_state());
    for family in ["ip", "ip6"] {
        journal.record(Mutation::NftTable { family: family.into(), name: own.clone() })?;
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

/// Which sandboxes have a network, or something of one.
pub fn sandboxes(layout: &Layout) -> policy::Sandboxes {
    let records = ::cni::records::Records::of(&layout.cni_state(), cni::NETWORK);
    Arc::new(move || {
        let records = records.clone();
        let look = move || -> io::Result<BTreeSet<String>> {
            let mut found = BTreeSet::new();
            for network in records.beside()? {
                found.extend(network.keys()?.into_iter().map(|(key, _)| key.container_id().to_owned()));
            }
            Ok(found)
        };
        Box::pin(async move { tokio::task::spawn_blocking(look).await? })
    })
}

/// Takes away what belongs to no pod that the runtime knows. What fails is told: pods start without it.
pub async fn collect(attachments: &Attachments, clock: &SharedClock) {
    match try_collect(attachments, clock).await {
        Ok(count) => tell_collected(count),
        Err(error) => tracing::warn!(error = format!("{error:#}"), "what pods left of their network stays"),
    }
}

/// Tells how many went.
pub fn tell_collected(count: usize) {
    if count > 0 {
        tracing::info!(count, "attachments to the pod network were left by pods that are gone");
    }
}

/// Takes away what belongs to no pod that the runtime knows; how many went.
///
/// # Errors
/// When the runtime, the disk or the kernel says no.
pub async fn try_collect(attachments: &Attachments, clock: &SharedClock) -> Result<usize> {
    let client = cri::Client::new(&attachments.runtime, clock.clone())?;
    let known: BTreeSet<String> = client.list_pod_sandbox(None).await?.into_iter().map(|s| s.id).collect();
    let (Attachments { state, gate, .. }, now) = (attachments.clone(), clock.wall());
    let collect = move || ::cni::collect::unknown(&state, cni::NETWORK, gate.as_deref(), &known, now.into());
    Ok(tokio::task::spawn_blocking(collect).await??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_a_router_told_of_routes_are_named() {
        let link = |index: u32, name: &str| Link {
            index,
            name: name.into(),
            kind: String::new(),
            mac: None,
            mtu: 1500,
            up: true,
            local: None,
        };
        let route = |link: u32, protocol: u8| Route::on(link, "fd00::/64".parse().expect("a network"), protocol);
        let links = [link(1, "lo"), link(2, "eth0"), link(3, "eth1.7")];
        let routes = [route(2, net::rtnl::route::STATIC), route(3, ANNOUNCED), route(3, ANNOUNCED)];
        assert_eq!(announced(&links, &routes), BTreeSet::from(["eth1.7"]));
    }
}
