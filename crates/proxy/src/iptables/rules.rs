//! All rules as data, and the text for `iptables-restore` that makes them: as a whole, or what
//! changes of Services change in them; pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use client::Key;
use net::ruleset::Family;

use super::base::{self, Jump};
use super::names::OF_SERVICES;
use super::port::{self, Piece, Shared};
use crate::model::{ServiceRules, Settings};
use crate::nftables::table::Change;

/// The kernel's tables, of which each is changed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    Filter,
    Nat,
}

/// A number for each table.
pub type Counts = BTreeMap<Table, usize>;

/// How many rules a text writes.
pub fn written(text: &str) -> Counts {
    let (mut out, mut table) = (Counts::new(), None);
    for line in text.lines() {
        match line {
            "*nat" => table = Some(Table::Nat),
            "*filter" => table = Some(Table::Filter),
            _ => {}
        }
        if let Some(table) = table.filter(|_| line.starts_with("-A ") || line.starts_with("-I ")) {
            *out.entry(table).or_default() += 1;
        }
    }
    out
}

impl Table {
    /// As `iptables` calls it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

/// Where in a shared chain a rule stands: whose own an address is comes before who else claims it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    First,
    Last,
}

/// One family's rules.
#[derive(Clone, Debug)]
pub struct Rules {
    family: Family,
    settings: Settings,
    services: BTreeMap<Key, Arc<ServiceRules>>,
    /// How many rules there are of Services.
    counts: Counts,
}

/// What stands in the kernel of ours, whoever put it there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Chains of Services, all in `nat`.
    pub chains: BTreeSet<String>,
    /// Jumps from the kernel's chains to ours, as `iptables-save` writes them.
    pub jumps: BTreeSet<(Table, String)>,
    /// How many rules each of our chains has.
    pub counts: BTreeMap<(Table, String), usize>,
}

impl Present {
    /// Reads what `iptables-save` says.
    pub fn read(saved: &str) -> Self {
        let mut out = Self::default();
        let mut table = None;
        for line in saved.lines() {
            match line {
                "*nat" => table = Some(Table::Nat),
                "*filter" => table = Some(Table::Filter),
                _ if line.starts_with('*') => table = None,
                _ => {}
            }
            let Some(table) = table else { continue };
            if let Some(name) = line.strip_prefix(':').and_then(|l| l.split(' ').next()) {
                let of_service = OF_SERVICES.iter().any(|p| name.starts_with(p));
                if of_service {
                    out.chains.insert(name.into());
                }
                if of_service || base::chains(table).contains(&name) {
                    out.counts.insert((table, name.into()), 0);
                }
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let (chain, target) = (rule.split(' ').next().unwrap_or_default(), rule.rsplit("-j ").next());
                let ours = target.is_some_and(|t| base::is_ours(t.split(' ').next().unwrap_or_default()));
                if let Some(count) = out.counts.get_mut(&(table, chain.into())) {
                    *count += 1;
                } else if !chain.starts_with("KUBE-") && ours {
                    out.jumps.insert((table, rule.into()));
                }
            }
        }
        out
    }
}

impl Rules {
    /// Rules for no Service.
    pub fn new(family: Family, settings: Settings) -> Self {
        Self { family, settings, services: BTreeMap::new(), counts: Counts::new() }
    }

    /// Rules for these.
    pub fn with(family: Family, settings: Settings, services: impl IntoIterator<Item = Change>) -> Self {
        let mut out = Self::new(family, settings);
        for (key, rules) in services {
            out.put(&key, rules.as_ref());
        }
        let pieces = out.services.iter().flat_map(|(key, rules)| out.pieces(key, rules));
        out.counts = pieces.fold(Counts::new(), |mut counts, piece| {
            piece.count(&mut counts, usize::saturating_add);
            counts
        });
        out
    }

    /// How many rules there are in a table.
    pub fn total(&self, table: Table) -> usize {
        let fixed =
            base::chains(table).iter().map(|chain| base::rules(table, chain, &self.settings, self.family).len());
        let of_services = self.counts.get(&table).copied().unwrap_or_default();
        fixed.sum::<usize>() + base::jumps(table).count() + of_services
    }

    /// What they depend on.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes one Service in; what was there before.
    fn put(&mut self, key: &Key, rules: Option<&Arc<ServiceRules>>) -> Option<Arc<ServiceRules>> {
        match rules {
            Some(rules) if !rules.of(self.family).is_empty() => self.services.insert(key.clone(), rules.clone()),
            _ => self.services.remove(key),
        }
    }

    fn pieces<'a>(&'a self, key: &Key, rules: &'a ServiceRules) -> impl Iterator<Item = Piece> + use<'a> {
        let whole = port::of_service(key, rules, self.family);
        let ports =
            rules.of(self.family).iter().map(|(name, port)| port::render(name, port, &self.settings, self.family));
        ports.chain([whole])
    }

    /// The text that replaces everything of ours in the kernel by this, table by table.
    pub fn whole(&self, present: &Present) -> String {
        let mut chains = BTreeMap::new();
        let mut shared: Vec<Shared> = Vec::new();
        for piece in self.services.iter().flat_map(|(key, rules)| self.pieces(key, rules)) {
            chains.extend(piece.chains);
            shared.extend(piece.shared);
        }
        shared.sort();
        let mut out = String::new();
        for table in [Table::Filter, Table::Nat] {
            let of_services = table == Table::Nat;
            let _ = writeln!(out, "*{}", table.as_str());
            for name in base::chains(table) {
                let _ = writeln!(out, ":{name} - [0:0]");
            }
            let stale: Vec<&String> =
                present.chains.iter().filter(|n| of_services && !chains.contains_key(*n)).collect();
            let named = chains.keys().filter(|_| of_services).chain(stale.iter().copied());
            for name in named {
                let _ = writeln!(out, ":{name} - [0:0]");
            }
            let own = |place: Place, chain: &str| {
                let here = move |s: &&Shared| s.table == table && s.place == place;
                shared.iter().filter(here).filter(|s| s.chain == chain).fold(String::new(), |mut text, s| {
                    let _ = writeln!(text, "-A {chain} {}", s.rule);
                    text
                })
            };
            for chain in base::chains(table) {
                out += &own(Place::First, chain);
                for rule in base::rules(table, chain, &self.settings, self.family) {
                    let _ = writeln!(out, "-A {chain} {rule}");
                }
                out += &own(Place::Last, chain);
            }
            for (name, rules) in chains.iter().filter(|_| of_services) {
                for rule in rules {
                    let _ = writeln!(out, "-A {name} {rule}");
                }
            }
            for Jump { chain, rule, .. } in base::jumps(table).filter(|j| !j.is_in(present)) {
                let _ = writeln!(out, "-I {chain} 1 {rule}");
            }
            for name in stale {
                let _ = writeln!(out, "-X {name}");
            }
            out.push_str("COMMIT\n");
        }
        out
    }

    /// Does the kernel have what it should, as far as can be told without reading every word of it?
    pub fn is_in(&self, present: &Present) -> bool {
        let wanted = Present::read(&self.whole(&Present::default()));
        let jumps = [Table::Filter, Table::Nat].into_iter().flat_map(base::jumps);
        wanted.counts == present.counts && jumps.into_iter().all(|jump| jump.is_in(present))
    }

    /// Takes changes in and returns the text that makes them; empty when they make no difference to
    /// this family.
    pub fn change(&mut self, changes: &[Change]) -> String {
        let (mut old, mut new) = (Piece::default(), Piece::default());
        for (key, rules) in changes {
            let before = self.put(key, rules.as_ref());
            for (rules, all) in [(before.as_ref(), &mut old), (self.services.get(key), &mut new)] {
                for piece in rules.into_iter().flat_map(|rules| self.pieces(key, rules)) {
                    all.chains.extend(piece.chains);
                    all.shared.extend(piece.shared);
                }
            }
        }
        old.count(&mut self.counts, usize::saturating_sub);
        new.count(&mut self.counts, usize::saturating_add);
        difference(old, new)
    }
}

fn difference(old: Piece, new: Piece) -> String {
    let (chains, wanted): (BTreeMap<_, _>, BTreeMap<_, _>) =
        (old.chains.into_iter().collect(), new.chains.into_iter().collect());
    let (shared, claimed): (BTreeSet<Shared>, BTreeSet<Shared>) =
        (old.shared.into_iter().collect(), new.shared.into_iter().collect());
    let changed: Vec<_> = wanted.iter().filter(|(name, rules)| chains.get(*name) != Some(*rules)).collect();
    let stale: Vec<&String> = chains.keys().filter(|name| !wanted.contains_key(*name)).collect();
    let mut out = String::new();
    for table in [Table::Filter, Table::Nat] {
        let mut body = String::new();
        if table == Table::Nat {
            for name in changed.iter().map(|(name, _)| *name).chain(stale.iter().copied()) {
                let _ = writeln!(body, ":{name} - [0:0]");
            }
        }
        for gone in shared.difference(&claimed).filter(|s| s.table == table) {
            let _ = writeln!(body, "-D {} {}", gone.chain, gone.rule);
        }
        if table == Table::Nat {
            for (name, rules) in &changed {
                for rule in *rules {
                    let _ = writeln!(body, "-A {name} {rule}");
                }
            }
        }
        for come in claimed.difference(&shared).filter(|s| s.table == table) {
            let verb = if come.place == Place::First { "-I" } else { "-A" };
            let _ = writeln!(body, "{verb} {} {}", come.chain, come.rule);
        }
        if table == Table::Nat {
            for name in &stale {
                let _ = writeln!(body, "-X {name}");
            }
        }
        if !body.is_empty() {
            let _ = write!(out, "*{}\n{body}COMMIT\n", table.as_str());
        }
    }
    out
}

/// The text that removes everything of ours.
pub(super) fn remove(present: &Present) -> String {
    let mut out = String::new();
    for table in [Table::Filter, Table::Nat] {
        let of_services = present.chains.iter().map(String::as_str).filter(|_| table == Table::Nat);
        let chains: Vec<&str> = base::chains(table).iter().copied().chain(of_services).collect();
        let _ = writeln!(out, "*{}", table.as_str());
        for name in &chains {
            let _ = writeln!(out, ":{name} - [0:0]");
        }
        for (_, rule) in present.jumps.iter().filter(|(t, _)| *t == table) {
            let _ = writeln!(out, "-D {rule}");
        }
        for name in &chains {
            let _ = writeln!(out, "-X {name}");
        }
        out.push_str("COMMIT\n");
    }
    out
}

#[cfg(test)]
mod tests;
