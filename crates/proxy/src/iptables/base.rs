//! The chains there are whichever Services there are, and how the kernel comes to them; pure.

use net::ruleset::Family;

use super::names::{EXTERNAL_SERVICES, FIREWALL, FORWARD, MARK_FOREIGN, MARK_MASQ, NODEPORTS, POSTROUTING, SERVICES};
use super::rules::{Present, Table};
use crate::model::{LocalPods, NodePortAddresses, Settings};

/// A rule of ours in a chain of the kernel's.
pub(super) struct Jump {
    pub chain: &'static str,
    pub rule: String,
    table: Table,
    target: &'static str,
}

impl Jump {
    /// Is it there already?
    pub fn is_in(&self, present: &Present) -> bool {
        let Self { chain, target, table, .. } = self;
        let is_it = |(t, rule): &(Table, String)| {
            t == table && rule.starts_with(&format!("{chain} ")) && rule.ends_with(&format!("-j {target}"))
        };
        present.jumps.iter().any(is_it)
    }
}

/// Our chains of one table, but those of Services.
pub(super) fn chains(table: Table) -> &'static [&'static str] {
    match table {
        Table::Filter => &[SERVICES, EXTERNAL_SERVICES, FORWARD, NODEPORTS, FIREWALL],
        Table::Nat => &[SERVICES, NODEPORTS, POSTROUTING, MARK_MASQ, MARK_FOREIGN],
    }
}

/// Is that a chain of ours that the kernel's chains jump to?
pub(super) fn is_ours(name: &str) -> bool {
    [Table::Filter, Table::Nat].iter().any(|table| chains(*table).contains(&name))
}

/// How the kernel comes to them; the last is first in its chain.
pub(super) fn jumps(table: Table) -> impl Iterator<Item = Jump> {
    const NEW: &str = "-m conntrack --ctstate NEW ";
    let all: &[(&str, &str, &str, &str)] = match table {
        Table::Filter => &[
            ("FORWARD", "", "kubernetes forwarding rules", FORWARD),
            ("INPUT", "", "kubernetes health check service ports", NODEPORTS),
            ("FORWARD", NEW, "kubernetes service portals", SERVICES),
            ("OUTPUT", NEW, "kubernetes service portals", SERVICES),
            ("INPUT", NEW, "kubernetes externally-visible service portals", EXTERNAL_SERVICES),
            ("FORWARD", NEW, "kubernetes externally-visible service portals", EXTERNAL_SERVICES),
            ("INPUT", NEW, "kubernetes load balancer firewall", FIREWALL),
            ("OUTPUT", NEW, "kubernetes load balancer firewall", FIREWALL),
            ("FORWARD", NEW, "kubernetes load balancer firewall", FIREWALL),
        ],
        Table::Nat => &[
            ("OUTPUT", "", "kubernetes service portals", SERVICES),
            ("PREROUTING", "", "kubernetes service portals", SERVICES),
            // Before others' rules, which may accept what is to be masqueraded.
            ("POSTROUTING", "", "kubernetes postrouting rules", POSTROUTING),
        ],
    };
    all.iter().map(move |(chain, condition, said, target)| Jump {
        chain,
        rule: format!("{condition}-m comment --comment \"{said}\" -j {target}"),
        table,
        target,
    })
}

fn comment(text: &str) -> String {
    format!("-m comment --comment \"{text}\"")
}

/// The rules of one of our chains that hang on no Service.
pub(super) fn rules(table: Table, chain: &str, settings: &Settings, family: Family) -> Vec<String> {
    let mark = settings.mark();
    match (table, chain) {
        (Table::Filter, FORWARD) => vec![
            "-m conntrack --ctstate INVALID -j DROP".into(),
            format!("{} -m mark --mark {mark}/{mark} -j ACCEPT", comment("kubernetes forwarding rules")),
            format!(
                "{} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
                comment("kubernetes forwarding conntrack rule")
            ),
        ],
        // What is still addressed to the Service range belongs to nobody.
        (Table::Filter, SERVICES) => Settings::of_family(&settings.service_cidrs, family)
            .map(|range| format!("{} -d {range} -j REJECT", comment("no Service has this address and port")))
            .collect(),
        (Table::Nat, SERVICES) => node_ports(settings, family),
        (Table::Nat, POSTROUTING) => vec![
            format!("-m mark ! --mark {mark}/{mark} -j RETURN"),
            format!("-j MARK --xor-mark {mark}"),
            format!("{} -j MASQUERADE --random-fully", comment("kubernetes service traffic requiring SNAT")),
        ],
        (Table::Nat, MARK_MASQ) => vec![format!("-j MARK --or-mark {mark}")],
        (Table::Nat, MARK_FOREIGN) => {
            let LocalPods::Ranges(ranges) = &settings.local_pods else { return Vec::new() };
            let local = Settings::of_family(ranges, family).map(|range| format!("-s {range} -j RETURN"));
            local.chain([format!("-j {MARK_MASQ}")]).collect()
        }
        _ => Vec::new(),
    }
}

fn node_ports(settings: &Settings, family: Family) -> Vec<String> {
    let said = comment("kubernetes service nodeports");
    let jump = format!("-m addrtype --dst-type LOCAL -j {NODEPORTS}");
    match &settings.node_ports {
        NodePortAddresses::All => {
            let loopback = if family == Family::Ip { "127.0.0.0/8" } else { "::1/128" };
            vec![format!("{said} ! -d {loopback} {jump}")]
        }
        NodePortAddresses::Ranges(ranges) => {
            Settings::of_family(ranges, family).map(|range| format!("{said} -d {range} {jump}")).collect()
        }
    }
}
