//! Ports of the host that lead to pods: all of them as two nftables tables of the plugin's own, written anew
//! from the records each time, so that no call can leave half of them. The records of one place make one pair of
//! tables: networks whose records are elsewhere, as another cluster's on this host, have another.
//!
//! ```text
//!  to an address of this host ─► ports ─► map address . protocol . port ─► pod's address . port
//!                                    └──► map protocol . port ───────────► pod's address . port
//!  from 127.0.0.1, or from the pod to itself ─► masquerade
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use net::conntrack::{AT_ONCE, Entry, remove_udp};
use net::nft;
use net::rtnl::Rtnl;
use net::ruleset::{Chain, Family, Ruleset, Set};

use crate::error::{Error, INPUT_OUTPUT};
use crate::records::{Held, Record, Records};

/// What the tables' names begin with, and the whole name in the usual place: earlier versions had one for all.
pub const TABLE: &str = "pintle-hostports";
/// The usual place of records.
const USUAL: &str = "/var/lib/pintle/cni";

/// The name of the tables of networks whose records are in this folder.
pub fn table(data_dir: &Path) -> String {
    if data_dir == Path::new(USUAL) {
        return TABLE.to_owned();
    }
    // However its path is written.
    let parts = data_dir.components().flat_map(|part| part.as_os_str().as_encoded_bytes().iter().copied().chain([0]));
    let digest =
        parts.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{TABLE}-{digest:016x}")
}

/// The table of one family; `None` where no pod has a port. The later record has a port that two have.
pub fn render(table: &str, family: Family, records: &[Record]) -> Option<Ruleset> {
    let v4 = family == Family::Ip;
    let mut sorted: Vec<&Record> = records.iter().filter(|record| !record.leaves).collect();
    sorted.sort_by_key(|r| (r.made, &r.container_id));
    let (mut any, mut only, mut own) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for record in sorted {
        let Some(pod) = record.addresses.iter().find(|a| a.is_ipv4() == v4) else { continue };
        for port in record.ports.iter().filter(|p| p.is_of(v4)) {
            let key = format!("{} . {}", port.protocol, port.host_port);
            let to = format!("{pod} . {}", port.container_port);
            match port.only_at() {
                Some(address) => only.insert(format!("{address} . {key}"), to),
                None => any.insert(key, to),
            };
            own.insert(format!("{pod} . {pod}"), String::new());
        }
    }
    if own.is_empty() {
        return None;
    }
    let (word, kind) = if v4 { ("ip", "ipv4_addr") } else { ("ip6", "ipv6_addr") };
    let mut out = Ruleset::new(family, table);
    let mut set = |name: &str, keyword, declaration: String, elements| {
        out.sets.insert(name.into(), Set { keyword, declaration, elements });
    };
    set("any", "map", format!("type inet_proto . inet_service : {kind} . inet_service"), any);
    set("only", "map", format!("type {kind} . inet_proto . inet_service : {kind} . inet_service"), only);
    set("own", "set", format!("type {kind} . {kind}"), own);
    let mut chain = |name: &str, hook: &str, rules: &[&str]| {
        let rules = rules.iter().map(ToString::to_string).collect();
        out.chains.insert(name.into(), Chain { hook: hook.into(), rules });
    };
    let only = format!("dnat {word} addr . port to {word} daddr . meta l4proto . th dport map @only");
    let any = format!("dnat {word} addr . port to meta l4proto . th dport map @any");
    chain("ports", "", &[&only, &any]);
    let local = ["fib daddr type local jump ports"];
    chain("prerouting", "type nat hook prerouting priority -101", &local);
    // No answer by a pod's link is taken for ::1, whatever is set: better refused than waited for.
    let own = if v4 { local } else { ["ip6 daddr != ::1 fib daddr type local jump ports"] };
    chain("output", "type nat hook output priority -101", &own);
    let own = format!("{word} saddr . {word} daddr @own masquerade");
    let mut masquerade = vec![own.as_str()];
    if v4 {
        masquerade.insert(0, "ip saddr 127.0.0.0/8 oifname != \"lo\" ct status dnat masquerade");
        // Links of pods with ports take answers to 127.0.0.1; nothing else may come to it that way.
        chain("guard", "type filter hook prerouting priority -300", &["iifname \"veth*\" ip daddr 127.0.0.0/8 drop"]);
        chain("postrouting", "type nat hook postrouting priority 99", &masquerade);
    } else {
        chain("postrouting", "type nat hook postrouting priority 99", &masquerade);
    }
    Some(out)
}

/// The transaction that makes the kernel's rules those of all records.
pub fn transaction(table: &str, records: &[Record]) -> String {
    [Family::Ip, Family::Ip6]
        .map(|family| match render(table, family, records) {
            Some(rules) => rules.load(),
            None => Ruleset::new(family, table).remove(),
        })
        .concat()
}

/// The tables of an earlier version, which every place shared, once: another place's stay, and lead no more to pods of
/// this one.
fn leave_shared() -> Result<(), Error> {
    let is_there = |family: &str| nft::run(&format!("list table {family} {TABLE}\n"), nft::Mode::Apply).is_ok();
    let usual = Path::new(USUAL);
    if !["ip", "ip6"].into_iter().any(is_there) {
        return Ok(());
    }
    if usual.is_dir() {
        return sync(&Records::of(usual, "any"));
    }
    nft::run(&transaction(TABLE, &[]), nft::Mode::Apply).map_err(|error| Error {
        code: INPUT_OUTPUT,
        message: "rules of host ports of an earlier version".into(),
        details: error.to_string(),
    })
}

/// Writes the rules of all records to the kernel, those of other networks beside this one included; one call at a
/// time.
///
/// # Errors
/// When the disk or the kernel refuses.
pub fn sync(records: &Records) -> Result<(), Error> {
    let lock = records.hold_ports().map_err(Error::io("the lock of host ports"))?;
    let mut all = Vec::new();
    for network in records.beside().map_err(Error::io("the records"))? {
        all.extend(network.all().map_err(Error::io("the records"))?);
    }
    let table = table(records.place());
    nft::run_locked(&transaction(&table, &all), lock).map_err(|error| Error {
        code: INPUT_OUTPUT,
        message: "the rules of host ports".into(),
        details: error.to_string(),
    })?;
    if table != TABLE && !records.has_own_ports() {
        leave_shared()?;
        records.set_own_ports().map_err(Error::io("the records"))?;
    }
    Ok(())
}

/// Ends what leads to the ports of an attachment that goes: rules first, then connections that the kernel translates
/// still. It may be done again, whenever it stopped.
///
/// # Errors
/// When the disk or the kernel refuses.
pub fn close(records: &Records, held: &mut Held, record: &Record) -> Result<(), Error> {
    let leaves = Record { leaves: true, complete: false, ..record.clone() };
    held.write(&leaves).map_err(Error::io("the attachment's record"))?;
    sync(records)?;
    forget_udp(record, true).map_err(Error::io("connections to host ports"))
}

/// Writes them again where any pod has a port of the host, for whoever sees that they may be gone.
///
/// # Errors
/// When the disk or the kernel refuses.
pub fn restore(records: &Records) -> Result<(), Error> {
    let mut any = false;
    for network in records.beside().map_err(Error::io("the records"))? {
        let all = network.all().map_err(Error::io("the records"))?;
        any |= all.iter().any(|record| !record.ports.is_empty() && !record.leaves);
    }
    if any { sync(records) } else { Ok(()) }
}

/// Ends what the kernel still translates of UDP by rules that are no longer: to others than the pods that have
/// these ports now.
pub fn forget_udp(record: &Record, is_gone: bool) -> std::io::Result<()> {
    let ports: BTreeSet<u16> = record.ports.iter().filter(|p| p.protocol == "udp").map(|p| p.host_port).collect();
    if ports.is_empty() {
        return Ok(());
    }
    let local: BTreeSet<IpAddr> = Rtnl::open()?.addresses()?.into_iter().map(|a| a.net.addr()).collect();
    for family in [Family::Ip, Family::Ip6] {
        let v4 = family == Family::Ip;
        let pod = record.addresses.iter().find(|a| a.is_ipv4() == v4);
        let is_stale = |entry: &Entry| {
            let (to, by) = (entry.destination, entry.answers.ip());
            ports.contains(&to.port()) && local.contains(&to.ip()) && (pod == Some(&by)) == is_gone
        };
        // So many at a time, until there are no more.
        while remove_udp(family, &is_stale)? >= AT_ONCE {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PortMapping;

    fn record(name: &str, made: u64, address: &str, ports: &[(u16, &str, &str)]) -> Record {
        let ports = ports.iter().map(|(port, protocol, host_ip)| PortMapping {
            host_port: *port,
            container_port: 80,
            protocol: (*protocol).into(),
            host_ip: (*host_ip).into(),
        });
        Record {
            container_id: name.into(),
            made,
            addresses: vec![address.parse().expect("an address")],
            ports: ports.collect(),
            ..Record::default()
        }
    }

    #[test]
    fn each_place_has_tables_of_its_own() {
        let of = |path: &str| table(Path::new(path));
        assert_eq!(of("/var/lib/pintle/cni"), "pintle-hostports");
        assert_eq!([of("/var/lib/pintle/cni/"), of("/var/lib/pintle/./cni")], [TABLE, TABLE]);
        let (one, other) = (of("/a/bc"), of("/ab/c"));
        assert!(one.starts_with("pintle-hostports-") && one.len() == TABLE.len() + 17, "{one}");
        assert_ne!(one, other);
        assert_eq!(one, of("/a/bc/"));
    }

    #[test]
    fn ports_lead_to_pods_and_the_later_one_has_them() {
        let records = [
            record("b", 2, "10.244.0.5", &[(8080, "tcp", ""), (53, "udp", "192.0.2.1"), (9, "sctp", "::")]),
            record("a", 1, "10.244.0.4", &[(8080, "tcp", "0.0.0.0"), (8081, "tcp", "")]),
            record("c", 3, "fd00::6", &[(8080, "tcp", ""), (1, "tcp", "192.0.2.1")]),
            record("d", 3, "10.244.0.9", &[]),
        ];
        let rules = render(TABLE, Family::Ip, &records).expect("rules");
        let elements = |name: &str| {
            rules.sets[name].elements.iter().map(|(k, v)| format!("{k} : {v}")).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(elements("any"), "tcp . 8080 : 10.244.0.5 . 80, tcp . 8081 : 10.244.0.4 . 80");
        assert_eq!(elements("only"), "192.0.2.1 . udp . 53 : 10.244.0.5 . 80");
        assert_eq!(rules.chains["output"].rules, ["fib daddr type local jump ports"]);
        let rules = render(TABLE, Family::Ip6, &records).expect("rules");
        assert_eq!(rules.chains["output"].rules, ["ip6 daddr != ::1 fib daddr type local jump ports"]);
        assert_eq!(rules.sets["any"].elements["tcp . 8080"], "fd00::6 . 80");
        assert!(rules.sets["only"].elements.is_empty() && !rules.chains.contains_key("guard"));
        assert_eq!(render(TABLE, Family::Ip, &records[3..]), None);
        let leaves = Record { leaves: true, ..records[1].clone() };
        assert_eq!(render(TABLE, Family::Ip, &[leaves]), None, "its ports lead nowhere any more");
        let none = transaction(TABLE, &[]);
        assert!(!none.contains('{') && none.contains("delete table ip6 pintle-hostports"), "{none}");
    }
}
