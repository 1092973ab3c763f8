//! A table that remembers what of it was touched: the difference to the kernel costs what changed, not
//! what there is.

use std::collections::BTreeMap;

use net::ruleset::{self, Chain, Family, Ruleset, Set, Transaction};

/// A table, and how what was touched since the last difference was before.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    now: Ruleset,
    /// Whether sets that came or went were there.
    sets: BTreeMap<String, Option<String>>,
    elements: BTreeMap<String, BTreeMap<String, Option<String>>>,
    chains: BTreeMap<String, Option<Chain>>,
}

impl Draft {
    /// A table that holds this.
    pub(super) fn new(now: Ruleset) -> Self {
        Self { now, sets: BTreeMap::new(), elements: BTreeMap::new(), chains: BTreeMap::new() }
    }

    pub(super) fn family(&self) -> Family {
        self.now.family
    }

    /// What it holds.
    pub(super) fn whole(&self) -> &Ruleset {
        &self.now
    }

    /// An empty set (`set`: elements have no values).
    pub(super) fn add_set(&mut self, name: &str, declaration: String) {
        if self.now.sets.contains_key(name) {
            return;
        }
        self.sets.entry(name.to_owned()).or_insert(None);
        let set = Set { keyword: "set", declaration, elements: BTreeMap::new() };
        self.now.sets.insert(name.to_owned(), set);
    }

    pub(super) fn remove_set(&mut self, name: &str) {
        let Some(set) = self.now.sets.remove(name) else { return };
        let touched = self.elements.entry(name.to_owned()).or_default();
        for (key, value) in set.elements {
            touched.entry(key).or_insert(Some(value));
        }
        self.sets.entry(name.to_owned()).or_insert(Some(set.declaration));
    }

    /// An element of a set or map that is there; its value is empty in a set.
    pub(super) fn put(&mut self, set: &str, key: &str, value: &str) {
        let Some(held) = self.now.sets.get_mut(set) else { return };
        let before = held.elements.insert(key.to_owned(), value.to_owned());
        self.elements.entry(set.to_owned()).or_default().entry(key.to_owned()).or_insert(before);
    }

    pub(super) fn take(&mut self, set: &str, key: &str) {
        let Some(held) = self.now.sets.get_mut(set) else { return };
        if let Some(before) = held.elements.remove(key) {
            self.elements.entry(set.to_owned()).or_default().entry(key.to_owned()).or_insert(Some(before));
        }
    }

    pub(super) fn set_chain(&mut self, name: &str, rules: Vec<String>) {
        let before = self.now.chains.insert(name.to_owned(), Chain { hook: String::new(), rules });
        self.chains.entry(name.to_owned()).or_insert(before);
    }

    pub(super) fn remove_chain(&mut self, name: &str) {
        if let Some(before) = self.now.chains.remove(name) {
            self.chains.entry(name.to_owned()).or_insert(Some(before));
        }
    }

    /// What brings the kernel from the last difference to now; empty when it is there.
    pub(super) fn difference(&mut self) -> Transaction {
        let empty = || Ruleset::new(self.now.family, self.now.table.clone());
        let (mut old, mut new) = (empty(), empty());
        let sets = std::mem::take(&mut self.sets);
        let mut elements = std::mem::take(&mut self.elements);
        for name in sets.keys() {
            elements.entry(name.clone()).or_default();
        }
        for (name, touched) in elements {
            let present = self.now.sets.get(&name);
            let was = match sets.get(&name) {
                Some(was) => was.clone(),
                None => present.map(|set| set.declaration.clone()),
            };
            let keyword = present.map_or("set", |set| set.keyword);
            if let Some(set) = present {
                let held = |key: &String| Some((key.clone(), set.elements.get(key)?.clone()));
                let elements = touched.keys().filter_map(held).collect();
                new.sets.insert(name.clone(), Set { keyword, declaration: set.declaration.clone(), elements });
            }
            if let Some(declaration) = was {
                let elements = touched.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
                old.sets.insert(name, Set { keyword, declaration, elements });
            }
        }
        for (name, before) in std::mem::take(&mut self.chains) {
            if let Some(chain) = self.now.chains.get(&name) {
                new.chains.insert(name.clone(), chain.clone());
            }
            if let Some(before) = before {
                old.chains.insert(name, before);
            }
        }
        ruleset::difference(&old, &new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_as_before_is_not_sent() {
        let mut draft = Draft::new(Ruleset::new(Family::Ip, "t"));
        draft.add_set("a", "type ipv4_addr".into());
        draft.put("a", "10.0.0.1", "");
        draft.set_chain("c", vec!["drop".into()]);
        let text = "add set ip t a { type ipv4_addr; }\nadd chain ip t c\nadd rule ip t c drop\nadd element ip t a { 10.0.0.1 }\n";
        assert_eq!(draft.difference().text(), text);
        draft.take("a", "10.0.0.1");
        draft.put("a", "10.0.0.1", "");
        draft.remove_set("a");
        draft.remove_chain("c");
        draft.add_set("a", "type ipv4_addr".into());
        draft.put("a", "10.0.0.1", "");
        draft.set_chain("c", vec!["drop".into()]);
        assert_eq!(draft.difference().text(), "");
        draft.add_set("b", "type ipv4_addr".into());
        draft.remove_set("b");
        assert_eq!(draft.difference().text(), "");
        draft.put("a", "10.0.0.2", "");
        draft.take("a", "10.0.0.1");
        let text = "delete element ip t a { 10.0.0.1 }\nadd element ip t a { 10.0.0.2 }\n";
        assert_eq!(draft.difference().text(), text);
        draft.remove_set("a");
        // A set that goes takes its elements along.
        assert_eq!(draft.difference().text(), "delete set ip t a\n");
    }
}
