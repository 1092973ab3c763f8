//! One nftables table as data, and the text that turns one state of it into another.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The protocol family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Ip,
    Ip6,
}

impl Family {
    /// The word rules use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
        }
    }
}

/// A set, or a map when its elements have values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// `set` or `map`.
    pub keyword: &'static str,
    /// For example `type ipv4_addr . inet_proto . inet_service : verdict`.
    pub declaration: String,
    /// Key to value; the value is empty in a set.
    pub elements: BTreeMap<String, String>,
}

/// A chain; `hook` makes it a base chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// For example `type nat hook output priority -100`.
    pub hook: String,
    pub rules: Vec<String>,
}

/// Everything in one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruleset {
    pub family: Family,
    pub table: String,
    pub sets: BTreeMap<String, Set>,
    pub chains: BTreeMap<String, Chain>,
}

impl Ruleset {
    /// An empty table.
    pub fn new(family: Family, table: impl Into<String>) -> Self {
        Self { family, table: table.into(), sets: BTreeMap::new(), chains: BTreeMap::new() }
    }

    /// The text that replaces whatever the table holds by this, atomically.
    pub fn load(&self) -> String {
        let mut out = self.remove();
        let _ = writeln!(out, "table {} {} {{", self.family.as_str(), self.table);
        for (name, set) in &self.sets {
            let _ = writeln!(out, "\t{} {name} {{\n\t\t{}", set.keyword, set.declaration);
            if !set.elements.is_empty() {
                let _ = writeln!(out, "\t\telements = {{ {} }}", elements(set.elements.iter()));
            }
            out.push_str("\t}\n");
        }
        for (name, chain) in &self.chains {
            let _ = writeln!(out, "\tchain {name} {{");
            if !chain.hook.is_empty() {
                let _ = writeln!(out, "\t\t{}", chain.hook);
            }
            for rule in &chain.rules {
                let _ = writeln!(out, "\t\t{rule}");
            }
            out.push_str("\t}\n");
        }
        out.push_str("}\n");
        out
    }

    /// The text that removes the table, present or not.
    pub fn remove(&self) -> String {
        let (family, table) = (self.family.as_str(), &self.table);
        format!("table {family} {table}\ndelete table {family} {table}\n")
    }
}

fn elements<'a>(items: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let texts: Vec<String> =
        items.map(|(key, value)| if value.is_empty() { key.clone() } else { format!("{key} : {value}") }).collect();
    texts.join(", ")
}

/// One step of a [`Transaction`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    AddSet {
        name: String,
        keyword: &'static str,
        declaration: String,
    },
    AddChain {
        name: String,
        hook: String,
    },
    DeleteElements {
        set: String,
        declaration: String,
        keys: Vec<String>,
    },
    /// Removes every rule of a chain.
    FlushChain(String),
    AddRule {
        chain: String,
        rule: String,
    },
    /// Keys with their values, which are empty in a set.
    AddElements {
        set: String,
        declaration: String,
        elements: Vec<(String, String)>,
    },
    DeleteChain(String),
    DeleteSet {
        name: String,
        keyword: &'static str,
    },
}

/// Changes of one table that the kernel makes together or not at all, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    pub family: Family,
    pub table: String,
    pub steps: Vec<Step>,
}

impl Transaction {
    /// Does it change nothing?
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// One step as `nft` reads it, with the end of its line.
    pub fn line(&self, step: &Step) -> String {
        let at = format!("{} {}", self.family.as_str(), self.table);
        match step {
            Step::AddSet { name, keyword, declaration } => format!("add {keyword} {at} {name} {{ {declaration}; }}\n"),
            Step::AddChain { name, hook } if hook.is_empty() => format!("add chain {at} {name}\n"),
            Step::AddChain { name, hook } => format!("add chain {at} {name} {{ {hook}; }}\n"),
            Step::DeleteElements { set, keys, .. } => format!("delete element {at} {set} {{ {} }}\n", keys.join(", ")),
            Step::FlushChain(name) => format!("flush chain {at} {name}\n"),
            Step::AddRule { chain, rule } => format!("add rule {at} {chain} {rule}\n"),
            Step::AddElements { set, elements: all, .. } => {
                format!("add element {at} {set} {{ {} }}\n", elements(all.iter().map(|(key, value)| (key, value))))
            }
            Step::DeleteChain(name) => format!("delete chain {at} {name}\n"),
            Step::DeleteSet { name, keyword } => format!("delete {keyword} {at} {name}\n"),
        }
    }

    /// The text that makes it.
    pub fn text(&self) -> String {
        self.steps.iter().map(|step| self.line(step)).collect()
    }
}

/// The text that turns `old` into `new`: only the difference, in an order in which nothing is
/// named before it exists or removed while it is named. `None` when they are equal. A change of a
/// declaration or hook, which nftables cannot make in place, gives a full load.
pub fn transaction(old: &Ruleset, new: &Ruleset) -> Option<String> {
    if old == new {
        return None;
    }
    Some(if needs_load(old, new) { new.load() } else { difference(old, new).text() })
}

/// The same for two states of a part of a table, whose declarations and hooks are equal: nothing but
/// what they hold is touched. Empty when they are equal.
pub fn difference(old: &Ruleset, new: &Ruleset) -> Transaction {
    let mut steps = Vec::new();
    for (name, set) in new.sets.iter().filter(|(n, _)| !old.sets.contains_key(*n)) {
        let (name, keyword, declaration) = (name.clone(), set.keyword, set.declaration.clone());
        steps.push(Step::AddSet { name, keyword, declaration });
    }
    for (name, chain) in new.chains.iter().filter(|(n, _)| !old.chains.contains_key(*n)) {
        steps.push(Step::AddChain { name: name.clone(), hook: chain.hook.clone() });
    }
    let empty = BTreeMap::new();
    for (name, set) in &old.sets {
        let Some(wanted) = new.sets.get(name) else { continue };
        let is_gone = |(key, value): &(&String, &String)| wanted.elements.get(*key) != Some(*value);
        let keys: Vec<String> = set.elements.iter().filter(is_gone).map(|(key, _)| key.clone()).collect();
        if !keys.is_empty() {
            steps.push(Step::DeleteElements { set: name.clone(), declaration: set.declaration.clone(), keys });
        }
    }
    for (name, chain) in &new.chains {
        let before = old.chains.get(name);
        if before.is_some_and(|c| c.rules == chain.rules) {
            continue;
        }
        if before.is_some() {
            steps.push(Step::FlushChain(name.clone()));
        }
        steps.extend(chain.rules.iter().map(|rule| Step::AddRule { chain: name.clone(), rule: rule.clone() }));
    }
    for (name, set) in &new.sets {
        let before = old.sets.get(name).map_or(&empty, |s| &s.elements);
        let is_new = |(key, value): &(&String, &String)| before.get(*key) != Some(*value);
        let elements: Vec<(String, String)> =
            set.elements.iter().filter(is_new).map(|(key, value)| (key.clone(), value.clone())).collect();
        if !elements.is_empty() {
            steps.push(Step::AddElements { set: name.clone(), declaration: set.declaration.clone(), elements });
        }
    }
    let removed = || old.chains.keys().filter(|n| !new.chains.contains_key(*n)).cloned();
    steps.extend(removed().map(Step::FlushChain));
    steps.extend(removed().map(Step::DeleteChain));
    for (name, set) in old.sets.iter().filter(|(n, _)| !new.sets.contains_key(*n)) {
        steps.push(Step::DeleteSet { name: name.clone(), keyword: set.keyword });
    }
    Transaction { family: new.family, table: new.table.clone(), steps }
}

fn needs_load(old: &Ruleset, new: &Ruleset) -> bool {
    (old.family, &old.table) != (new.family, &new.table)
        || old.sets.iter().any(|(name, set)| {
            new.sets.get(name).is_some_and(|n| (n.keyword, &n.declaration) != (set.keyword, &set.declaration))
        })
        || old.chains.iter().any(|(name, chain)| new.chains.get(name).is_some_and(|n| n.hook != chain.hook))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ruleset(services: &[(&str, &str)]) -> Ruleset {
        let mut rules = Ruleset::new(Family::Ip, "t");
        let elements =
            services.iter().map(|(ip, chain)| (format!("{ip} . tcp . 80"), format!("goto {chain}"))).collect();
        let declaration = "type ipv4_addr . inet_proto . inet_service : verdict".to_owned();
        rules.sets.insert("ips".into(), Set { keyword: "map", declaration, elements });
        let hook = "type nat hook output priority -100".to_owned();
        rules.chains.insert("out".into(), Chain { hook, rules: vec!["jump x".into()] });
        for (_, chain) in services {
            rules.chains.insert((*chain).into(), Chain { hook: String::new(), rules: vec![format!("{chain} rule")] });
        }
        rules
    }

    #[test]
    fn only_the_difference_is_sent_and_nothing_is_named_before_it_exists() {
        let old = ruleset(&[("10.96.0.1", "a"), ("10.96.0.2", "b")]);
        let new = ruleset(&[("10.96.0.1", "a"), ("10.96.0.2", "c")]);
        assert_eq!(transaction(&old, &old), None);
        let want = "\
            add chain ip t c\n\
            delete element ip t ips { 10.96.0.2 . tcp . 80 }\n\
            add rule ip t c c rule\n\
            add element ip t ips { 10.96.0.2 . tcp . 80 : goto c }\n\
            flush chain ip t b\n\
            delete chain ip t b\n";
        assert_eq!(transaction(&old, &new).as_deref(), Some(want));
    }

    #[test]
    fn a_changed_declaration_replaces_the_table_in_one_go() {
        let old = ruleset(&[]);
        let mut new = ruleset(&[]);
        new.chains.get_mut("out").expect("a chain").hook = "type nat hook output priority 0".into();
        let text = transaction(&old, &new).expect("a change");
        assert!(text.starts_with("table ip t\ndelete table ip t\ntable ip t {\n"), "{text}");
    }
}
