//! Both families' tables as the kernel has them, and what changes of pods, namespaces and policies change
//! in them; pure.
//!
//! ```text
//!  pod 10.244.0.7 {app: db} is relabelled {app: web}
//!    its elements are taken out of every set, its labels exchanged, its elements put back:
//!      pods-41…  − 10.244.0.7        (peers app=db)
//!      pods-c0…  + 10.244.0.7        (peers app=web)
//!      ingress-pods  10.244.0.7 : goto ingress-pods-9f…  ⇒  : drop
//!    what was taken out and put back alike is no difference
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use client::Key;
use net::ruleset::{Family, Transaction};

use super::draft::Draft;
use super::render::{self, OWN};
use crate::model::policy::{Direction, Group, Policy, Protocol};
use crate::model::ranges::{Ranges, family};
use crate::model::{Labels, NamedPort, Namespaces, Pod, Precedence};

/// What became of one object; `None`: it is gone.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Namespace(String, Option<Labels>),
    Pod(Key, Option<Arc<Pod>>),
    Policy(Key, Option<Arc<Policy>>),
}

/// Something that several policies or pods use.
#[derive(Clone, Debug)]
struct Shared<T> {
    users: usize,
    is: T,
}

/// Where a pod is in the tables.
#[derive(Clone, Debug, Default)]
struct Place {
    /// Those of its addresses that it has.
    addresses: Vec<IpAddr>,
    /// The choices whose chains it needs.
    choices: Vec<String>,
}

/// Everything that is known, and the rules it makes.
#[derive(Clone, Debug)]
pub struct Table {
    names: Vec<IpAddr>,
    drafts: [Draft; 2],
    namespaces: Namespaces,
    pods: BTreeMap<Key, Arc<Pod>>,
    policies: BTreeMap<Key, Arc<Policy>>,
    places: BTreeMap<Key, Place>,
    /// Who names an address; the first has it.
    holders: BTreeMap<IpAddr, BTreeSet<(Precedence, Key)>>,
    groups: BTreeMap<String, Shared<Arc<Group>>>,
    nets: BTreeMap<(usize, String), Shared<()>>,
    ports: BTreeMap<NamedPort, Shared<String>>,
    choices: BTreeMap<String, Shared<()>>,
}

fn index(family: Family) -> usize {
    usize::from(family == Family::Ip6)
}

const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];

impl Default for Table {
    fn default() -> Self {
        Self::new(&[])
    }
}

/// The DNS as policies know it upstream: pods of that namespace with this label, and ports with these names.
fn dns(names: &[IpAddr]) -> (Key, Arc<Pod>) {
    let port = |name: &str, protocol, number| (NamedPort { name: name.into(), protocol }, number);
    let pod = Pod {
        labels: [("k8s-app".to_owned(), "kube-dns".to_owned())].into_iter().collect(),
        addresses: names.to_vec(),
        ports: vec![
            port("dns", Protocol::Udp, 53),
            port("dns-tcp", Protocol::Tcp, 53),
            port("metrics", Protocol::Tcp, 9153),
        ],
        ..Pod::default()
    };
    // No pod is called so.
    (Key::new("kube-system", "kube-dns/service"), Arc::new(pod))
}

impl Table {
    /// A table without policies. What pods ask at `names`, the addresses of a DNS that is no pod, is judged as if it
    /// was one, labelled `k8s-app: kube-dns` in `kube-system`.
    pub fn new(names: &[IpAddr]) -> Self {
        let mut table = Self {
            names: names.to_vec(),
            drafts: FAMILIES.map(|family| Draft::new(render::base(family, names))),
            namespaces: Namespaces::new(),
            pods: BTreeMap::new(),
            policies: BTreeMap::new(),
            places: BTreeMap::new(),
            holders: BTreeMap::new(),
            groups: BTreeMap::new(),
            nets: BTreeMap::new(),
            ports: BTreeMap::new(),
            choices: BTreeMap::new(),
        };
        if !names.is_empty() {
            let (key, pod) = dns(names);
            table.change(&[Change::Pod(key, Some(pod))]);
        }
        table
    }

    /// A table of these.
    pub fn with(changes: &[Change]) -> Self {
        let mut table = Self::default();
        table.change(changes);
        table
    }

    /// One as this was made, without policies.
    pub fn begun_again(&self) -> Self {
        Self::new(&self.names)
    }

    /// The text that replaces whatever the kernel has by all of it.
    pub fn load(&self) -> String {
        self.drafts.iter().map(|draft| draft.whole().load()).collect()
    }

    /// What it holds of one family.
    pub fn whole(&self, family: Family) -> &net::ruleset::Ruleset {
        self.drafts[index(family)].whole()
    }

    /// The text that removes it, present or not.
    pub fn remove() -> String {
        FAMILIES.map(|family| render::base(family, &[]).remove()).concat()
    }

    /// The addresses of one pod of this node, if it has any that is known.
    pub fn one_here(&self) -> Vec<IpAddr> {
        let here = self.places.iter().find(|(key, _)| self.pods.get(key).is_some_and(|pod| pod.is_here));
        here.map(|(_, place)| place.addresses.clone()).unwrap_or_default()
    }

    /// The policies in it.
    pub fn policies(&self) -> &BTreeMap<Key, Arc<Policy>> {
        &self.policies
    }

    /// Everything in it, as changes of an empty table.
    pub fn everything(&self) -> Vec<Change> {
        let namespaces =
            self.namespaces.iter().map(|(name, labels)| Change::Namespace(name.clone(), Some(labels.clone())));
        let pods = self.pods.iter().map(|(key, pod)| Change::Pod(key.clone(), Some(pod.clone())));
        let policies = self.policies.iter().map(|(key, policy)| Change::Policy(key.clone(), Some(policy.clone())));
        namespaces.chain(policies).chain(pods).collect()
    }

    /// What undoes `changes` when they are not made after all; of one object there is one change.
    pub fn inverse(&self, changes: &[Change]) -> Vec<Change> {
        let back = |change: &Change| match change {
            Change::Namespace(name, _) => Change::Namespace(name.clone(), self.namespaces.get(name).cloned()),
            Change::Pod(key, _) => Change::Pod(key.clone(), self.pods.get(key).cloned()),
            Change::Policy(key, _) => Change::Policy(key.clone(), self.policies.get(key).cloned()),
        };
        changes.iter().map(back).collect()
    }

    /// Takes changes in and returns what makes them in the kernel, one difference for each family that it is one
    /// for.
    pub fn change(&mut self, changes: &[Change]) -> Vec<Transaction> {
        for change in changes {
            match change {
                Change::Namespace(name, labels) => self.change_namespace(name, labels.as_ref()),
                Change::Pod(key, pod) => self.change_pod(key, pod.as_ref()),
                Change::Policy(key, policy) => self.change_policy(key, policy.as_ref()),
            }
        }
        self.drafts.iter_mut().map(Draft::difference).filter(|change| !change.is_empty()).collect()
    }

    fn keys_in(&self, namespace: &str) -> Vec<Key> {
        let from = Key::new(namespace, "");
        self.pods.range(from..).map(|(key, _)| key).take_while(|key| key.namespace == namespace).cloned().collect()
    }

    fn change_namespace(&mut self, name: &str, labels: Option<&Labels>) {
        if self.namespaces.get(name) == labels {
            return;
        }
        let keys = self.keys_in(name);
        keys.iter().for_each(|key| self.unplace(key));
        match labels {
            Some(labels) => drop(self.namespaces.insert(name.to_owned(), labels.clone())),
            None => drop(self.namespaces.remove(name)),
        }
        keys.iter().for_each(|key| self.place(key));
    }

    fn change_pod(&mut self, key: &Key, pod: Option<&Arc<Pod>>) {
        let before = self.pods.get(key).cloned();
        if before.as_ref() == pod {
            return;
        }
        // Whoever else names one of the addresses may get or lose it.
        let mut touched = BTreeSet::from([key.clone()]);
        let addresses = before.iter().chain(pod).flat_map(|p| &p.addresses);
        let holders = addresses.filter_map(|address| self.holders.get(address)).flatten();
        touched.extend(holders.map(|(_, key)| key.clone()));
        touched.iter().for_each(|key| self.unplace(key));
        if let Some(before) = before {
            for address in &before.addresses {
                if let Some(all) = self.holders.get_mut(address) {
                    all.remove(&(before.precedence(), key.clone()));
                    if all.is_empty() {
                        self.holders.remove(address);
                    }
                }
            }
        }
        match pod {
            Some(pod) => {
                for address in &pod.addresses {
                    self.holders.entry(*address).or_default().insert((pod.precedence(), key.clone()));
                }
                self.pods.insert(key.clone(), pod.clone());
            }
            None => drop(self.pods.remove(key)),
        }
        touched.iter().for_each(|key| self.place(key));
    }

    fn change_policy(&mut self, key: &Key, policy: Option<&Arc<Policy>>) {
        let before = self.policies.get(key).cloned();
        if before.as_ref() == policy {
            return;
        }
        let isolated = |p: &Policy, labels: &Labels| p.pods.matches(labels);
        let mut keys = self.keys_in(&key.namespace);
        keys.retain(|key| {
            let pod = self.pods.get(key).filter(|pod| pod.is_here);
            pod.is_some_and(|pod| before.iter().chain(policy).any(|p| isolated(p, &pod.labels)))
        });
        keys.iter().for_each(|key| self.set_free(key));
        if let Some(policy) = policy {
            self.acquire(policy);
        }
        if let Some(before) = &before {
            self.release(before);
        }
        for direction in Direction::BOTH {
            let name = render::policy_chain(direction, key);
            for draft in &mut self.drafts {
                match policy.filter(|p| has_chain(p, direction)) {
                    Some(policy) => draft.set_chain(&name, render::rules(policy, direction, draft.family())),
                    None => draft.remove_chain(&name),
                }
            }
        }
        match policy {
            Some(policy) => drop(self.policies.insert(key.clone(), policy.clone())),
            None => drop(self.policies.remove(key)),
        }
        keys.iter().for_each(|key| self.isolate(key));
    }

    /// Everything a policy names is there.
    fn acquire(&mut self, policy: &Policy) {
        for rule in Direction::BOTH.into_iter().flat_map(|d| policy.rules(d).unwrap_or_default()) {
            if let Some(peers) = &rule.peers {
                if let Some(group) = &peers.pods {
                    self.acquire_group(group);
                }
                for family in FAMILIES {
                    self.acquire_nets(peers.nets(family), family);
                }
            }
            for port in rule.ports.iter().flat_map(|ports| &ports.named) {
                self.acquire_port(port);
            }
        }
    }

    fn acquire_group(&mut self, group: &Arc<Group>) {
        let shared = self.groups.entry(group.name.clone()).or_insert_with(|| Shared { users: 0, is: group.clone() });
        shared.users += 1;
        if shared.users > 1 {
            return;
        }
        for draft in &mut self.drafts {
            draft.add_set(&group.name, format!("type {}", render::address(draft.family())));
        }
        let mut found = Vec::new();
        for (key, place) in &self.places {
            if self.pods.get(key).is_some_and(|pod| self.is_in(group, key, pod)) {
                found.extend_from_slice(&place.addresses);
            }
        }
        found.into_iter().for_each(|address| self.put(address, &group.name, &address.to_string(), ""));
    }

    fn acquire_nets(&mut self, nets: &Ranges, family: Family) {
        if nets.is_empty() || nets.is_whole(family) {
            return;
        }
        let name = render::nets_set(nets, family);
        let shared = self.nets.entry((index(family), name.clone())).or_insert(Shared { users: 0, is: () });
        shared.users += 1;
        if shared.users > 1 {
            return;
        }
        let draft = &mut self.drafts[index(family)];
        draft.add_set(&name, format!("type {}; flags interval", render::address(family)));
        nets.texts(family).for_each(|range| draft.put(&name, &range, ""));
    }

    fn acquire_port(&mut self, port: &NamedPort) {
        let name = render::port_set(port);
        let shared = self.ports.entry(port.clone()).or_insert_with(|| Shared { users: 0, is: name.clone() });
        shared.users += 1;
        if shared.users > 1 {
            return;
        }
        for draft in &mut self.drafts {
            draft.add_set(&name, format!("type {} . inet_service", render::address(draft.family())));
        }
        let mut found = Vec::new();
        for (key, place) in &self.places {
            let ports = self.pods.get(key).into_iter().flat_map(|pod| &pod.ports);
            for (_, number) in ports.filter(|(named, _)| named == port) {
                found.extend(place.addresses.iter().map(|address| (*address, *number)));
            }
        }
        for (address, number) in found {
            self.put(address, &name, &format!("{address} . {number}"), "");
        }
    }

    /// A policy names all this no more.
    fn release(&mut self, policy: &Policy) {
        for rule in Direction::BOTH.into_iter().flat_map(|d| policy.rules(d).unwrap_or_default()) {
            if let Some(peers) = &rule.peers {
                if let Some(group) = &peers.pods
                    && is_last(&mut self.groups, &group.name)
                {
                    self.drafts.iter_mut().for_each(|draft| draft.remove_set(&group.name));
                }
                for family in FAMILIES {
                    let nets = peers.nets(family);
                    if nets.is_empty() || nets.is_whole(family) {
                        continue;
                    }
                    let name = render::nets_set(nets, family);
                    if is_last(&mut self.nets, &(index(family), name.clone())) {
                        self.drafts[index(family)].remove_set(&name);
                    }
                }
            }
            for port in rule.ports.iter().flat_map(|ports| &ports.named) {
                if is_last(&mut self.ports, port) {
                    self.drafts.iter_mut().for_each(|draft| draft.remove_set(&render::port_set(port)));
                }
            }
        }
    }

    fn is_in(&self, group: &Group, key: &Key, pod: &Pod) -> bool {
        group.matches(&key.namespace, self.namespaces.get(&key.namespace), &pod.labels)
    }

    /// The addresses a pod names and has.
    fn held(&self, key: &Key, pod: &Pod) -> Vec<IpAddr> {
        let has = |address: &&IpAddr| {
            self.holders.get(*address).and_then(|all| all.first()).is_some_and(|(_, holder)| holder == key)
        };
        pod.addresses.iter().filter(has).copied().collect()
    }

    fn put(&mut self, of: IpAddr, set: &str, element: &str, value: &str) {
        self.drafts[index(family(of))].put(set, element, value);
    }

    /// Takes a pod out of everything.
    fn unplace(&mut self, key: &Key) {
        self.set_free(key);
        let Some(place) = self.places.remove(key) else { return };
        for address in place.addresses {
            let (draft, element) = (&mut self.drafts[index(family(address))], address.to_string());
            self.groups.keys().for_each(|group| draft.take(group, &element));
            for (named, number) in self.pods.get(key).into_iter().flat_map(|pod| &pod.ports) {
                if let Some(port) = self.ports.get(named) {
                    draft.take(&port.is, &format!("{element} . {number}"));
                }
            }
        }
    }

    /// Nothing isolates a pod any more.
    fn set_free(&mut self, key: &Key) {
        let Some(place) = self.places.get_mut(key) else { return };
        for address in &place.addresses {
            let (draft, element) = (&mut self.drafts[index(family(*address))], address.to_string());
            Direction::BOTH.into_iter().for_each(|direction| draft.take(render::pods_of(direction), &element));
            draft.take(OWN, &format!("{element} . {element}"));
        }
        for choice in std::mem::take(&mut place.choices) {
            if is_last(&mut self.choices, &choice) {
                self.drafts.iter_mut().for_each(|draft| draft.remove_chain(&choice));
            }
        }
    }

    /// Puts a pod where it belongs.
    fn place(&mut self, key: &Key) {
        let Some(pod) = self.pods.get(key).cloned() else { return };
        let addresses = self.held(key, &pod);
        if addresses.is_empty() {
            return;
        }
        let mut sets: Vec<(String, Option<u16>)> = Vec::new();
        let groups = self.groups.values().filter(|shared| self.is_in(&shared.is, key, &pod));
        sets.extend(groups.map(|shared| (shared.is.name.clone(), None)));
        let ports =
            pod.ports.iter().filter_map(|(named, number)| Some((self.ports.get(named)?.is.clone(), Some(*number))));
        sets.extend(ports);
        for address in &addresses {
            for (set, number) in &sets {
                let element = number.map_or_else(|| address.to_string(), |number| format!("{address} . {number}"));
                self.put(*address, set, &element, "");
            }
        }
        self.places.insert(key.clone(), Place { addresses, choices: Vec::new() });
        self.isolate(key);
    }

    /// Isolates a pod that nothing isolates yet as the policies say that are there.
    fn isolate(&mut self, key: &Key) {
        let Some(pod) = self.pods.get(key).filter(|pod| pod.is_here).cloned() else { return };
        let Some(addresses) = self.places.get(key).map(|place| place.addresses.clone()) else { return };
        let mut choices = Vec::new();
        for direction in Direction::BOTH {
            let Some(chains) = self.isolated(key, &pod, direction) else { continue };
            let verdict = if chains.is_empty() {
                "drop".to_owned()
            } else {
                let name = self.acquire_choice(direction, chains);
                let verdict = format!("goto {name}");
                choices.push(name);
                verdict
            };
            for address in &addresses {
                self.put(*address, render::pods_of(direction), &address.to_string(), &verdict);
                self.put(*address, OWN, &format!("{address} . {address}"), "");
            }
        }
        if let Some(place) = self.places.get_mut(key) {
            place.choices = choices;
        }
    }

    /// The chains of policies that may let through what a pod sends or gets; `None`: nothing isolates it.
    fn isolated(&self, key: &Key, pod: &Pod, direction: Direction) -> Option<Vec<String>> {
        let from = Key::new(key.namespace.clone(), "");
        let near = self.policies.range(from..).take_while(|(k, _)| k.namespace == key.namespace);
        let mut chosen = near.filter(|(_, p)| p.rules(direction).is_some() && p.pods.matches(&pod.labels)).peekable();
        chosen.peek()?;
        let open = chosen.filter(|(_, policy)| has_chain(policy, direction));
        Some(open.map(|(key, _)| render::policy_chain(direction, key)).collect())
    }

    /// The chain that tries these, for one more pod.
    fn acquire_choice(&mut self, direction: Direction, chains: Vec<String>) -> String {
        let name = render::choice_chain(direction, &chains);
        let shared = self.choices.entry(name.clone()).or_insert(Shared { users: 0, is: () });
        shared.users += 1;
        if shared.users == 1 {
            let last = ["drop".to_owned()];
            let rules: Vec<String> = chains.into_iter().map(|chain| format!("jump {chain}")).chain(last).collect();
            self.drafts.iter_mut().for_each(|draft| draft.set_chain(&name, rules.clone()));
        }
        name
    }
}

/// A policy that lets nothing through needs none.
fn has_chain(policy: &Policy, direction: Direction) -> bool {
    policy.rules(direction).is_some_and(|rules| !rules.is_empty())
}

/// One user less; true when it was the last.
fn is_last<K: Ord, T>(all: &mut BTreeMap<K, Shared<T>>, key: &K) -> bool {
    let Some(shared) = all.get_mut(key) else { return false };
    shared.users = shared.users.saturating_sub(1);
    shared.users == 0 && all.remove(key).is_some()
}

#[cfg(test)]
mod kernel;
#[cfg(test)]
mod tests;
