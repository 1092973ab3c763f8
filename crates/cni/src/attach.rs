//! ADD, DEL and CHECK of a pod.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use net::namespace::Namespace;
use net::rtnl::link::{Mac, Veth};
use net::rtnl::neighbour::Neighbour;
use net::rtnl::queue::Bucket;
use net::rtnl::route::{Route, STATIC};
use net::rtnl::{self, Rtnl};
use serde_json::Value;

use crate::call::Environment;
use crate::config::{Bandwidth, Config, PortMapping};
use crate::error::{CONFIGURATION, EXHAUSTED, Error, NOT_AS_MADE, TRY_AGAIN, UNKNOWN_CONTAINER};
use crate::output::{self, Made};
use crate::records::{Claim, Held, Key, Record, Records};
use crate::{collect, gate, ports};

/// How large packets may be where nobody says.
const MTU: u32 = 1500;

/// Names of an attachment that follow from its key, so that they are known after any crash: FNV-1a.
fn digest(network: &str, key: &Key) -> u64 {
    let bytes = network.bytes().chain([0]).chain(key.as_str().bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The host's end of the pair.
pub fn link_name(network: &str, key: &Key) -> String {
    format!("veth{:011x}", digest(network, key) & 0x0fff_ffff_ffff)
}

/// The Ethernet addresses of the host's end and the pod's.
fn macs(network: &str, key: &Key) -> (Mac, Mac) {
    let [_, _, _, a, b, c, d, e] = digest(network, key).to_be_bytes();
    // Locally administered, to one machine.
    ([0x0a, a, b, c, d, e], [0x0e, a, b, c, d, e])
}

fn whole(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

fn default(v4: bool) -> IpNet {
    let none = if v4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    IpNet::new_assert(none, 0)
}

/// ADD: its result.
///
/// # Errors
/// When something refuses; nothing of the attachment is left then.
pub fn add(config: &Config, environment: &Environment, made: u64) -> Result<Value, Error> {
    let records = Records::of(&config.data_dir, &config.name);
    let key = Key::new(&environment.container_id, &environment.ifname);
    let ports = config.ports.clone()?;
    let namespace = open(&environment.netns)?;
    records.prepare().map_err(Error::io(format!("the folder {}", config.data_dir.display())))?;
    let mut held = records.hold(key.clone()).map_err(Error::io("the attachment's record"))?;
    let rtnl = Rtnl::open().map_err(Error::io("netlink"))?;
    let before = held.read();
    if let Some(record) = &before {
        let same = record.complete && record.netns == environment.netns && record.ports == ports;
        if same && verify(&rtnl, &namespace, record).is_ok() {
            return Ok(answer(config, record, &key));
        }
    }
    let is_new = held.is_new().map_err(Error::io("the attachment's record"))?;
    // An ADD that was killed: what it had got is still its own, whatever it had written down.
    let kept = if is_new { Vec::new() } else { given(&records, &key)? };
    match make(config, environment, made, &records, &mut held, kept, ports, &rtnl, &namespace) {
        Ok(record) => Ok(answer(config, &record, &key)),
        Err(error) => {
            // What cannot be undone now is undone by the DEL that follows.
            let _ = undo(config, &records, held, is_new);
            Err(error)
        }
    }
}

fn open(netns: &Path) -> Result<Namespace, Error> {
    Namespace::open(netns).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error {
            code: UNKNOWN_CONTAINER,
            message: "the container's network namespace does not exist".into(),
            details: error.to_string(),
        },
        _ => Error::io(format!("the network namespace {}", netns.display()))(error),
    })
}

fn answer(config: &Config, record: &Record, key: &Key) -> Value {
    let (link_mac, mac) = macs(&config.name, key);
    let made = Made {
        link: &record.link,
        link_mac,
        ifname: &record.ifname,
        mac,
        namespace: &record.netns,
        addresses: &record.addresses,
        mtu: record.mtu,
    };
    output::result(config.version, &made)
}

#[allow(clippy::too_many_arguments, reason = "what one call works with; a struct of it would be used here only")]
fn make(
    config: &Config,
    environment: &Environment,
    made: u64,
    records: &Records,
    held: &mut Held,
    kept: Vec<IpAddr>,
    ports: Vec<PortMapping>,
    rtnl: &Rtnl,
    namespace: &Namespace,
) -> Result<Record, Error> {
    let mut record = Record {
        container_id: environment.container_id.clone(),
        ifname: environment.ifname.clone(),
        netns: environment.netns.clone(),
        namespace: environment.pod("K8S_POD_NAMESPACE"),
        name: environment.pod("K8S_POD_NAME"),
        uid: environment.pod("K8S_POD_UID"),
        addresses: Vec::new(),
        link: link_name(&config.name, &held.key),
        mtu: mtu(config, rtnl),
        ports: Vec::new(),
        made,
        complete: false,
        leaves: false,
    };
    // The record is there before any address is its own.
    held.write(&record).map_err(Error::io("the attachment's record"))?;
    for range in &config.ranges {
        record.addresses.push(claim(config, rtnl, records, held, *range, &kept)?);
    }
    let unused: Vec<IpAddr> = kept.into_iter().filter(|a| !record.addresses.contains(a)).collect();
    records.release(&held.key, &unused).map_err(Error::io("the addresses"))?;
    record.ports = ports;
    held.write(&record).map_err(Error::io("the attachment's record"))?;
    if let Some(socket) = &config.gate {
        gate::open(socket, &record)?;
    }
    link(config, &record, &held.key, rtnl, namespace)?;
    if !record.ports.is_empty() {
        ports::sync(records)?;
        ports::forget_udp(&record, false).map_err(Error::io("connections to host ports"))?;
    }
    record.complete = true;
    held.write(&record).map_err(Error::io("the attachment's record"))?;
    Ok(record)
}

/// The addresses of an attachment, as they are given out.
fn given(records: &Records, key: &Key) -> Result<Vec<IpAddr>, Error> {
    let all = records.given().map_err(Error::io("the addresses"))?;
    Ok(all.into_iter().filter(|(_, k)| k == key).map(|(address, _)| address).collect())
}

fn claim(
    config: &Config,
    rtnl: &Rtnl,
    records: &Records,
    held: &Held,
    range: IpNet,
    kept: &[IpAddr],
) -> Result<IpAddr, Error> {
    let refused = |error: Claim| match error {
        Claim::Exhausted(..) => Error::new(EXHAUSTED, error.to_string()),
        Claim::Io(error) => Error::io("an address")(error),
    };
    if let Some(own) = kept.iter().find(|a| range.contains(*a)) {
        return Ok(*own);
    }
    // What cannot be asked is found when the route is made.
    let is_taken = |address| rtnl.is_routed_alone(address).unwrap_or(false);
    match records.claim(held, range, is_taken) {
        Err(Claim::Exhausted(..)) => {
            // Some may be of pods that are long gone.
            collect::vanished(records, &config.name)?;
            records.claim(held, range, is_taken).map_err(refused)
        }
        other => other.map_err(refused),
    }
}

/// As large as packets may be on the way out of this host, unless it is said.
fn mtu(config: &Config, rtnl: &Rtnl) -> u32 {
    let outside = |range: &IpNet| {
        let anywhere = if range.addr().is_ipv4() {
            IpAddr::from([192, 0, 2, 1])
        } else {
            [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into()
        };
        // A host without a way out has none to ask.
        rtnl.route_to(anywhere).and_then(|(link, _)| rtnl.link_of(link)).ok().flatten().map(|link| link.mtu)
    };
    config.mtu.or_else(|| config.ranges.iter().filter_map(outside).min()).unwrap_or(MTU).min(65_535)
}

fn bucket(rate: u64, burst: u64) -> Option<Bucket> {
    (rate > 0).then_some(Bucket { rate: rate.div_ceil(8), burst: burst / 8 })
}

fn link(config: &Config, record: &Record, key: &Key, rtnl: &Rtnl, namespace: &Namespace) -> Result<(), Error> {
    use std::os::fd::AsFd;
    let (mac, peer_mac) = macs(&config.name, key);
    let bandwidth = config.bandwidth.unwrap_or_default();
    let veth =
        Veth { name: &record.link, mac, peer: &record.ifname, peer_mac, namespace: namespace.as_fd(), mtu: record.mtu };
    match rtnl.add_veth(&veth) {
        Err(error) if rtnl::is_there(&error) => {
            // One that an earlier call left: its name is this attachment's alone.
            rtnl.delete_link(&record.link).and_then(|_| rtnl.add_veth(&veth))
        }
        other => other,
    }
    .map_err(|error| match rtnl::is_there(&error) {
        true => Error::new(CONFIGURATION, format!("the container has a link {} already", record.ifname)),
        false => Error::io(format!("the link {}", record.link))(error),
    })?;
    let what = format!("the link {}", record.link);
    let own = rtnl.link(&record.link).map_err(Error::io(what.clone()))?;
    let own = own.ok_or_else(|| Error::new(TRY_AGAIN, format!("{what} vanished")))?;
    take_nothing(&record.link).and_then(|()| rtnl.set_up(own.index)).map_err(Error::io(what.clone()))?;
    let inside = || within(record, mac, bandwidth);
    namespace.run(inside).map_err(Error::io(format!("the link {} of the container", record.ifname)))?;
    outside(record, own.index, peer_mac, bandwidth, rtnl).map_err(|error| match rtnl::is_there(&error) {
        true => Error::new(TRY_AGAIN, format!("one of {:?} leads to another link of this host", record.addresses)),
        false => Error::io(what)(error),
    })
}

/// The pod's end, in its namespace.
fn within(record: &Record, gateway_mac: Mac, bandwidth: Bandwidth) -> io::Result<()> {
    let rtnl = Rtnl::open()?;
    let link = rtnl.link(&record.ifname)?.ok_or(io::ErrorKind::NotFound)?.index;
    if record.addresses.iter().any(IpAddr::is_ipv6) {
        enable_ipv6(&record.ifname)?;
    }
    for address in &record.addresses {
        rtnl.add_address(link, whole(*address))?;
    }
    if let Some(bucket) = bucket(bandwidth.egress_rate, bandwidth.egress_burst) {
        rtnl.limit(link, bucket)?;
    }
    rtnl.set_up(link)?;
    for v4 in record.addresses.iter().map(IpAddr::is_ipv4) {
        let gateway = output::gateway(v4);
        rtnl.set_neighbour(&Neighbour { link, address: gateway, mac: gateway_mac })?;
        rtnl.add_route(&Route::through(link, default(v4), gateway, STATIC))?;
    }
    Ok(())
}

/// Before the host's end is up: what a pod says is no advice for the host. A router that it announces, or a better
/// way, would get what the host sends elsewhere (CVE-2020-13401). The settings go with the link.
fn take_nothing(link: &str) -> io::Result<()> {
    for (family, setting) in [("ipv6", "accept_ra"), ("ipv6", "accept_redirects"), ("ipv4", "accept_redirects")] {
        let path = PathBuf::from("/proc/sys/net").join(family).join("conf").join(link).join(setting);
        match std::fs::read_to_string(&path) {
            Ok(value) if value.trim() == "0" => {}
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => std::fs::write(path, "0")?,
        }
    }
    Ok(())
}

/// Some runtimes begin a pod without IPv6.
fn enable_ipv6(ifname: &str) -> io::Result<()> {
    let path = PathBuf::from("/proc/sys/net/ipv6/conf").join(ifname).join("disable_ipv6");
    if std::fs::read_to_string(&path).is_ok_and(|value| value.trim() == "0") {
        return Ok(());
    }
    std::fs::write(path, "0")
}

/// The host's end.
fn outside(record: &Record, link: u32, mac: Mac, bandwidth: Bandwidth, rtnl: &Rtnl) -> io::Result<()> {
    if record.ports.iter().any(|p| p.is_of(true)) && record.addresses.iter().any(IpAddr::is_ipv4) {
        // What this machine sends from 127.0.0.1 to one of its own ports goes to the pod, and comes back. The
        // setting goes with the link.
        let path = PathBuf::from("/proc/sys/net/ipv4/conf").join(&record.link).join("route_localnet");
        std::fs::write(path, "1")?;
    }
    if let Some(bucket) = bucket(bandwidth.ingress_rate, bandwidth.ingress_burst) {
        rtnl.limit(link, bucket)?;
    }
    for address in &record.addresses {
        rtnl.set_neighbour(&Neighbour { link, address: *address, mac })?;
        rtnl.add_route(&Route::on(link, whole(*address), STATIC))?;
    }
    Ok(())
}

/// DEL. What is gone already is fine.
///
/// # Errors
/// When something refuses; another DEL goes on.
pub fn delete(config: &Config, container_id: &str, ifname: &str) -> Result<(), Error> {
    let records = Records::of(&config.data_dir, &config.name);
    let key = Key::new(container_id, ifname);
    match records.hold_existing(key.clone()).map_err(Error::io("the attachment's record"))? {
        Some(held) => remove(&records, &config.name, config.gate.as_deref(), held),
        // Its link has no record: somebody took the records away.
        None => delete_link(&config.name, &key),
    }
}

pub(crate) fn delete_link(network: &str, key: &Key) -> Result<(), Error> {
    let name = link_name(network, key);
    let deleted = Rtnl::open().and_then(|rtnl| rtnl.delete_link(&name));
    deleted.map(drop).map_err(Error::io(format!("the link {name}")))
}

/// Takes an attachment away: what leads to it first, its record last.
pub(crate) fn remove(records: &Records, network: &str, gate: Option<&Path>, mut held: Held) -> Result<(), Error> {
    let found = held.read();
    match &found {
        Some(record) if !record.ports.is_empty() => ports::close(records, &mut held, record)?,
        Some(record) if record.complete => {}
        // A record that cannot be read may have had ports, too.
        _ => ports::sync(records)?,
    }
    delete_link(network, &held.key)?;
    if let (Some(record), Some(socket)) = (&found, gate) {
        gate::close(socket, record);
    }
    match &found {
        Some(record) if record.complete => records.release(&held.key, &record.addresses),
        _ => records.release_all(&held.key),
    }
    .map_err(Error::io("the addresses"))?;
    held.remove().map_err(Error::io("the attachment's record"))
}

fn undo(config: &Config, records: &Records, held: Held, is_new: bool) -> Result<(), Error> {
    if is_new && config.ports.as_ref().is_ok_and(Vec::is_empty) {
        delete_link(&config.name, &held.key)?;
        if let (Some(record), Some(socket)) = (held.read(), &config.gate) {
            if !record.addresses.is_empty() {
                gate::close(socket, &record);
            }
        }
        records.release_all(&held.key).map_err(Error::io("the addresses"))?;
        return held.remove().map_err(Error::io("the attachment's record"));
    }
    remove(records, &config.name, config.gate.as_deref(), held)
}

/// CHECK: everything is as ADD made it.
///
/// # Errors
/// Says what is not.
pub fn check(config: &Config, environment: &Environment) -> Result<(), Error> {
    let records = Records::of(&config.data_dir, &config.name);
    let key = Key::new(&environment.container_id, &environment.ifname);
    let namespace = open(&environment.netns)?;
    let held = records.hold_existing(key).map_err(Error::io("the attachment's record"))?;
    let record = held.as_ref().and_then(Held::read).filter(|record| record.complete);
    let record = record.ok_or_else(|| Error::new(NOT_AS_MADE, "the container was not added to this network"))?;
    if let Some(previous) = &config.previous {
        let said: Vec<&str> =
            previous["ips"].as_array().into_iter().flatten().filter_map(|ip| ip["address"].as_str()).collect();
        let own = |address: &IpAddr| said.iter().any(|s| s.split('/').next() == Some(address.to_string().as_str()));
        // Plugins before this one in the list may have added some of their own.
        if !record.addresses.iter().all(own) {
            return Err(Error::new(NOT_AS_MADE, format!("prevResult does not name all of {:?}", record.addresses)));
        }
    }
    let rtnl = Rtnl::open().map_err(Error::io("netlink"))?;
    verify(&rtnl, &namespace, &record).map_err(|what| Error::new(NOT_AS_MADE, what))
}

/// Looks at both ends.
fn verify(rtnl: &Rtnl, namespace: &Namespace, record: &Record) -> Result<(), String> {
    let unread = |error: io::Error| error.to_string();
    let link = rtnl.link(&record.link).map_err(unread)?;
    let link = link.filter(|l| l.up).ok_or_else(|| format!("the link {} is not there, or not up", record.link))?;
    let routes = rtnl.routes().map_err(unread)?;
    for address in &record.addresses {
        if !routes.iter().any(|r| r.destination == whole(*address) && r.link == link.index) {
            return Err(format!("{address} does not lead to {}", record.link));
        }
    }
    let inside = || {
        let rtnl = Rtnl::open()?;
        let Some(link) = rtnl.link(&record.ifname)?.filter(|l| l.up) else { return Ok(None) };
        let addresses = rtnl.addresses()?.into_iter().filter(|a| a.link == link.index);
        let routes = rtnl.routes()?.into_iter().filter(|r| r.link == link.index && r.destination.prefix_len() == 0);
        let defaults: Vec<bool> = routes.map(|r| r.destination.addr().is_ipv4()).collect();
        Ok(Some((addresses.map(|a| a.net.addr()).collect::<Vec<_>>(), defaults)))
    };
    let (addresses, defaults) = namespace
        .run(inside)
        .map_err(unread)?
        .ok_or_else(|| format!("the container's link {} is not there, or not up", record.ifname))?;
    for address in &record.addresses {
        if !addresses.contains(address) {
            return Err(format!("the container's link {} does not have {address}", record.ifname));
        }
        if !defaults.contains(&address.is_ipv4()) {
            return Err(format!("the container's link {} has no default route", record.ifname));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_from_the_attachment_and_fit() {
        let name = |id: &str| link_name("pintle", &Key::new(id, "eth0"));
        assert_eq!(name("a"), name("a"));
        assert_ne!(name("a"), name("b"));
        assert!(name("a").starts_with("veth") && name("a").len() == 15, "{}", name("a"));
        let (host, pod) = macs("pintle", &Key::new("a", "eth0"));
        assert!(host != pod && host[0] & 3 == 2 && pod[0] & 3 == 2);
    }
}
