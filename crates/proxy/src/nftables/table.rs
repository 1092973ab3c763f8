//! One table as the kernel has it, and what changes of Services change in it; pure.
//!
//! Text is made from the Services that change and nothing else: their chains as they were and as
//! they will be, and the elements of shared maps that they claim. Of two that claim the same
//! element one has it; when it goes the other gets it.
//!
//! ```text
//!   changes ──► old part │ new part ──► difference ──► text
//!                        └── claims of shared elements
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use client::Key;
use net::ruleset::{self, Family, Ruleset, Transaction};

use super::base;
use super::names::{self, SERVICE_IPS, SERVICE_NODEPORTS, TABLE};
use super::port::{self, Rank, Value};
use super::shared::{self, Kind};
use crate::model::{PortName, ServiceRules, Settings};

/// A map or set, and a key in it.
type Element = (&'static str, String);
/// Who claims it, the one who has it first, and what it would say.
type Claims = BTreeMap<(Rank, PortName), Value>;

/// A Service with what it asks for; `None` when it asks for nothing any more.
pub type Change = (Key, Option<Arc<ServiceRules>>);

/// One family's table.
#[derive(Clone, Debug)]
pub struct Table {
    family: Family,
    settings: Settings,
    base: Ruleset,
    services: BTreeMap<Key, Arc<ServiceRules>>,
    claims: BTreeMap<Element, Claims>,
    /// How many elements lead to each shared chain.
    users: BTreeMap<Kind, usize>,
    /// In which order the endpoints came that clients stay with.
    arrived: BTreeMap<PortName, Vec<SocketAddr>>,
    /// Numbers of those that have left, by the set that still has their clients.
    left: BTreeMap<String, BTreeSet<u32>>,
}

impl Table {
    /// A table without Services.
    pub fn new(family: Family, settings: Settings) -> Self {
        let base = base::render(&settings, family);
        Self {
            family,
            settings,
            base,
            services: BTreeMap::new(),
            claims: BTreeMap::new(),
            users: BTreeMap::new(),
            arrived: BTreeMap::new(),
            left: BTreeMap::new(),
        }
    }

    /// A table with these.
    pub fn with(family: Family, settings: Settings, services: impl IntoIterator<Item = Change>) -> Self {
        let mut table = Self::new(family, settings);
        let changes: Vec<Change> = services.into_iter().collect();
        table.change(&changes);
        table
    }

    /// The Services in it.
    pub fn services(&self) -> &BTreeMap<Key, Arc<ServiceRules>> {
        &self.services
    }

    /// What it holds.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The whole table.
    pub fn whole(&self) -> Ruleset {
        let mut out = self.base.clone();
        for rules in self.services.values() {
            self.put(Some(&**rules), &mut out);
        }
        for element in self.claims.keys() {
            self.show(element, &mut out);
        }
        for kind in self.users.keys() {
            self.share(*kind, &mut out);
        }
        out
    }

    /// Takes in which endpoints, of those that clients stay with, a Service has by now.
    fn arrive(&mut self, before: Option<&ServiceRules>, after: Option<&ServiceRules>) {
        let before = before.map_or(&[][..], |rules| rules.of(self.family));
        let after = after.map_or(&[][..], |rules| rules.of(self.family));
        let known = before.iter().filter_map(|(name, _)| self.arrived.remove_entry(name));
        let known: BTreeMap<PortName, Vec<SocketAddr>> = known.collect();
        for (name, port) in after.iter().filter(|(_, port)| port.affinity.is_some()) {
            let arrived = port::arrived(known.get(name).map(Vec::as_slice).unwrap_or_default(), port);
            self.arrived.insert(name.clone(), arrived);
        }
        for (name, before) in known {
            let set = names::of_affinity(&name);
            // A set that goes takes everything along.
            let Some(now) = self.arrived.get(&name).filter(|now| !now.is_empty()) else {
                self.left.remove(&set);
                continue;
            };
            let numbers = |endpoints: &[SocketAddr]| -> BTreeSet<u32> {
                endpoints.iter().map(|endpoint| names::number(&name, endpoint)).collect()
            };
            let mut left = self.left.remove(&set).unwrap_or_default();
            left.extend(numbers(&before));
            let now = numbers(now);
            left.retain(|number| !now.contains(number));
            if !left.is_empty() {
                self.left.insert(set, left);
            }
        }
    }

    /// The sets of who has which endpoint, with the numbers of those that there are.
    pub fn numbers(&self) -> BTreeMap<String, BTreeSet<u32>> {
        let set = |(name, endpoints): (&PortName, &Vec<SocketAddr>)| {
            let numbers = endpoints.iter().map(|endpoint| names::number(name, endpoint)).collect();
            (names::of_affinity(name), numbers)
        };
        self.arrived.iter().map(set).collect()
    }

    /// The numbers of endpoints that have left, of so many sets, whose clients are to be forgotten.
    pub fn take_left(&mut self, sets: usize) -> Vec<(String, BTreeSet<u32>)> {
        std::iter::from_fn(|| self.left.pop_first()).take(sets).collect()
    }

    /// Is there any?
    pub fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// Puts what a Service has by itself into a part; answers what it claims of what is shared.
    fn put(&self, rules: Option<&ServiceRules>, part: &mut Ruleset) -> Vec<(PortName, port::Element)> {
        let mut claimed = Vec::new();
        for (name, port) in rules.map_or(&[][..], |rules| rules.of(self.family)) {
            let arrived = self.arrived.get(name).map(Vec::as_slice).unwrap_or_default();
            let piece = port::render(name, port, arrived, &self.settings, self.family);
            part.chains.extend(piece.chains);
            part.sets.extend(piece.sets);
            claimed.extend(piece.elements.into_iter().map(|element| (name.clone(), element)));
        }
        claimed
    }

    /// What undoes `changes` when they are not made after all.
    pub fn inverse(&self, changes: &[Change]) -> Vec<Change> {
        changes.iter().map(|(key, _)| (key.clone(), self.services.get(key).cloned())).collect()
    }

    /// Takes changes in and returns what makes them in the kernel; empty when they make no difference
    /// to this family.
    pub fn change(&mut self, changes: &[Change]) -> Transaction {
        let (mut old, mut new) = (Ruleset::new(self.family, TABLE), Ruleset::new(self.family, TABLE));
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        for (key, rules) in changes {
            let before = match rules {
                Some(rules) if !rules.of(self.family).is_empty() => self.services.insert(key.clone(), rules.clone()),
                _ => self.services.remove(key),
            };
            let after = self.services.get(key).cloned();
            gone.extend(self.put(before.as_deref(), &mut old));
            self.arrive(before.as_deref(), after.as_deref());
            come.extend(self.put(after.as_deref(), &mut new));
        }
        let touched: BTreeSet<Element> =
            gone.iter().chain(&come).map(|(_, element)| (element.set, element.key.clone())).collect();
        let before: Vec<Kind> = touched.iter().filter_map(|element| self.show(element, &mut old)).collect();
        for (name, element) in gone {
            let place = (element.set, element.key);
            let claims = self.claims.entry(place.clone()).or_default();
            claims.remove(&(element.rank, name));
            if claims.is_empty() {
                self.claims.remove(&place);
            }
        }
        for (name, element) in come {
            let claims = self.claims.entry((element.set, element.key)).or_default();
            claims.insert((element.rank, name), element.value);
        }
        let after: Vec<Kind> = touched.iter().filter_map(|element| self.show(element, &mut new)).collect();
        let kinds: BTreeSet<Kind> = before.iter().chain(&after).copied().collect();
        for kind in kinds.iter().filter(|kind| self.users.contains_key(*kind)) {
            self.share(*kind, &mut old);
        }
        for kind in after {
            *self.users.entry(kind).or_default() += 1;
        }
        for kind in before {
            if let Some(users) = self.users.get_mut(&kind) {
                *users -= 1;
            }
        }
        self.users.retain(|_, users| *users > 0);
        for kind in kinds.iter().filter(|kind| self.users.contains_key(*kind)) {
            self.share(*kind, &mut new);
        }
        ruleset::difference(&old, &new)
    }

    /// Puts the present value of an element into a part; answers which shared chain it leads to.
    fn show(&self, element: &Element, part: &mut Ruleset) -> Option<Kind> {
        let (set, key) = element;
        // Shared sets are there whatever is in them.
        let by_address = shared::maps_by_address().filter(|_| *set == SERVICE_IPS);
        let by_port = shared::maps_by_port().filter(|_| *set == SERVICE_NODEPORTS);
        for set in [*set].into_iter().chain(by_address).chain(by_port) {
            part.sets.entry(set.into()).or_insert_with(|| base::set(set, self.family));
        }
        let mut put = |set: &'static str, key: String, value: String| {
            if let Some(set) = part.sets.get_mut(set) {
                set.elements.insert(key, value);
            }
        };
        let ((_, name), value) = self.claims.get(element)?.first_key_value()?;
        match value {
            Value::Nothing => None,
            Value::Text(text) => {
                put(set, key.clone(), text.clone());
                None
            }
            Value::Balanced(to) => {
                to.elements(key, name.protocol).for_each(|(map, key, value)| put(map, key, value));
                let kind = to.kind(name.protocol);
                put(set, key.clone(), format!("goto {}", kind.name()));
                Some(kind)
            }
        }
    }

    /// Puts a chain that Service ports share into a part.
    fn share(&self, kind: Kind, part: &mut Ruleset) {
        part.chains.insert(kind.name(), kind.chain(&self.settings, self.family));
    }

    /// Do these settings change no rule of a Service?
    pub fn can_adapt(&self, settings: &Settings) -> bool {
        let others = |s: &Settings| Settings { remote_pod_cidrs: Vec::new(), ..s.clone() };
        others(&self.settings) == others(settings)
    }

    /// Takes other settings in where that [can be done](Self::can_adapt), and returns the text that
    /// makes them in the kernel; otherwise `None`, and the table must be loaded anew.
    pub fn adapt(&mut self, settings: &Settings) -> Option<String> {
        if !self.can_adapt(settings) {
            return None;
        }
        let base = base::render(settings, self.family);
        let text = ruleset::transaction(&self.base, &base).unwrap_or_default();
        (self.settings, self.base) = (settings.clone(), base);
        Some(text)
    }
}

#[cfg(test)]
mod kernel;
#[cfg(test)]
mod tests;
