//! What is rendered, that differences lead where a load does, and that rules let through what the API says.

use std::collections::BTreeMap;
use std::net::IpAddr;

use net::ruleset::Ruleset;
use proptest::prelude::*;

use super::*;
use crate::cases::reference::{self, Packet};
use crate::cases::{self, World};
use crate::model::policy::Protocol;

#[test]
fn golden() {
    for (name, changes) in cases::golden() {
        let table = Table::with(&changes);
        insta::with_settings!({ snapshot_path => "../../../testdata", prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!(name, table.load());
        });
    }
}

/// A DNS that is no pod is one to policies: by labels, by ports and their names, where nobody has translated yet.
#[test]
fn the_dns_is_a_pod_to_policies() {
    let names: [IpAddr; 2] = [[10, 96, 0, 10].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 10].into()];
    let mut table = Table::new(&names);
    let labels = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let to = serde_json::json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{
        "to": [{"namespaceSelector": {"matchLabels": {"system": "yes"}}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}],
        "ports": [{"protocol": "UDP", "port": "dns"}, {"protocol": "TCP", "port": 53}],
    }]});
    let mut changes = cases::golden()[1].1.clone();
    changes.push(Change::Namespace("kube-system".into(), Some(labels(&[("system", "yes")]))));
    changes.push(cases::policy("shop", "names", to));
    table.change(&changes);
    for (family, address) in FAMILIES.into_iter().zip(["10.96.0.10", "fd00::a"]) {
        let whole = table.whole(family);
        let ip = family.as_str();
        assert_eq!(whole.chains["egress-names"].rules, [format!("{ip} daddr @names {ip} saddr vmap @egress-pods")]);
        assert!(whole.chains["egress"].rules.contains(&format!("ct original {ip} daddr @names accept")));
        assert_eq!(whole.sets["names"].elements.keys().collect::<Vec<_>>(), [address]);
        let holds = |set: &str, element: &str| {
            whole.sets.iter().any(|(name, s)| name.starts_with(set) && s.elements.contains_key(element))
        };
        assert!(holds("pods-", address) && holds("port-", &format!("{address} . 53")), "{}", whole.load());
    }
    // What is loaded anew is the same.
    let mut again = table.begun_again();
    again.change(&table.everything());
    assert_eq!(wholes(&again), wholes(&table));
    assert!(!Table::default().whole(Family::Ip).sets.contains_key("names"));
}

/// What the kernel would do with a packet that begins a connection.
pub(super) struct Interpreter<'a>(pub(super) &'a Ruleset);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Accept,
    Drop,
}

impl Interpreter<'_> {
    pub(super) fn is_let_through(&self, packet: &Packet) -> bool {
        ["egress", "ingress"].into_iter().all(|base| self.chain(base, packet) != Some(Verdict::Drop))
    }

    /// `None`: it returns to where it came from.
    fn chain(&self, name: &str, packet: &Packet) -> Option<Verdict> {
        self.0.chains[name].rules.iter().find_map(|rule| self.rule(rule, packet))
    }

    fn verdict(&self, words: &[&str], packet: &Packet) -> Option<Verdict> {
        match words {
            ["accept"] => Some(Verdict::Accept),
            ["drop"] => Some(Verdict::Drop),
            ["jump", chain] => self.chain(chain, packet),
            // Where it was gone to ends where it came from: at the base chain's policy.
            ["goto", chain] => Some(self.chain(chain, packet).unwrap_or(Verdict::Accept)),
            other => panic!("{other:?}"),
        }
    }

    fn rule(&self, rule: &str, packet: &Packet) -> Option<Verdict> {
        let words: Vec<&str> = rule.split(' ').collect();
        let mut words = words.as_slice();
        let address = |side: &str| if side == "saddr" { packet.source } else { packet.destination };
        let set = |name: &str| &self.0.sets[name.trim_start_matches('@')];
        loop {
            let (matches, rest) = match words {
                // A connection that begins is no answer.
                ["ct", "direction", "reply", rest @ ..] | ["ct", "state", "related", rest @ ..] => (false, rest),
                ["icmpv6", "type", "{", ..] => return None,
                ["ip" | "ip6", "saddr", ".", "ip" | "ip6", "daddr", name, rest @ ..] => {
                    (set(name).elements.contains_key(&format!("{} . {}", packet.source, packet.destination)), rest)
                }
                ["ip" | "ip6", side, "vmap", name] => {
                    let value = set(name).elements.get(&address(side).to_string())?;
                    return self.verdict(&value.split(' ').collect::<Vec<_>>(), packet);
                }
                ["ip" | "ip6", "daddr", ".", "th", "dport", name, rest @ ..] => {
                    let key = |port| format!("{} . {port}", packet.destination);
                    (packet.port.is_some_and(|(_, port)| set(name).elements.contains_key(&key(port))), rest)
                }
                ["ip" | "ip6", side, name, rest @ ..] => {
                    let address = address(side);
                    let inside = |range: &String| {
                        let (first, last) = range.split_once('-').unwrap_or((range, range));
                        let parse = |text: &str| text.parse::<IpAddr>().expect("an address");
                        parse(first) <= address && address <= parse(last)
                    };
                    (set(name).elements.keys().any(inside), rest)
                }
                ["meta", "l4proto", name, rest @ ..] => (packet.port.is_some_and(|(p, _)| p.as_str() == *name), rest),
                [protocol, "dport", rest @ ..] => {
                    let end = rest.iter().position(|w| *w == "}").map_or(1, |at| at + 1);
                    let (numbers, rest) = rest.split_at(end);
                    let inside = |port: u16| {
                        numbers.iter().filter(|w| !matches!(**w, "{" | "}")).any(|word| {
                            let word = word.trim_end_matches(',');
                            let (first, last) = word.split_once('-').unwrap_or((word, word));
                            (first.parse().expect("a port")..=last.parse().expect("a port")).contains(&port)
                        })
                    };
                    (packet.port.is_some_and(|(p, port)| p.as_str() == *protocol && inside(port)), rest)
                }
                verdict => return self.verdict(verdict, packet),
            };
            if !matches {
                return None;
            }
            words = rest;
        }
    }
}

/// Packets between every two addresses there may be.
fn packets() -> Vec<Packet> {
    let v4 = (1..8).map(|i| format!("10.0.0.{i}")).chain(["192.0.2.1".to_owned()]).collect::<Vec<_>>();
    let v6 = (1..8).map(|i| format!("fd00::{i}")).collect::<Vec<_>>();
    let mut ports = vec![None];
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        ports.extend([79, 80, 81, 91].map(|port| Some((protocol, port))));
    }
    let mut out = Vec::new();
    for all in [v4, v6] {
        let all: Vec<IpAddr> = all.iter().map(|a| a.parse().expect("an address")).collect();
        for source in &all {
            for destination in &all {
                out.extend(ports.iter().map(|port| Packet { source: *source, destination: *destination, port: *port }));
            }
        }
    }
    out
}

/// Differences as `nft` reads them.
pub(super) fn texts(changes: &[Transaction]) -> String {
    changes.iter().map(Transaction::text).collect()
}

/// Carries out the text of a difference, as the kernel would; says no where it would.
pub(super) fn carry_out(tables: &mut BTreeMap<String, Ruleset>, text: &str) -> Result<(), String> {
    for line in text.lines() {
        let no = || format!("{line}: no");
        let words: Vec<&str> = line.splitn(6, ' ').collect();
        let [verb, what, family, _, name, ..] = words.as_slice() else { return Err(no()) };
        let table = tables.get_mut(*family).ok_or_else(no)?;
        let rest = words.get(5).copied().unwrap_or_default();
        let inner = || rest.trim_start_matches("{ ").trim_end_matches(" }").to_owned();
        let is_named = |table: &Ruleset| {
            let (set, jump) = (format!("@{name} "), format!(" {name}"));
            let verdicts = table.sets.values().flat_map(|s| s.elements.values());
            let mut rules = table.chains.values().flat_map(|c| &c.rules).chain(verdicts);
            rules.any(|rule| rule.contains(&set) || rule.ends_with(&jump))
        };
        match (*verb, *what) {
            ("add", "chain") if rest.is_empty() && !table.chains.contains_key(*name) => {
                table.chains.insert((*name).into(), Default::default());
            }
            ("add", "set") if !table.sets.contains_key(*name) => {
                let declaration = inner().trim_end_matches(';').to_owned();
                let set = net::ruleset::Set { keyword: "set", declaration, elements: BTreeMap::new() };
                table.sets.insert((*name).into(), set);
            }
            ("add", "rule") => table.chains.get_mut(*name).ok_or_else(no)?.rules.push(rest.into()),
            ("flush", "chain") => table.chains.get_mut(*name).ok_or_else(no)?.rules.clear(),
            ("delete", "chain") if !is_named(table) => drop(table.chains.remove(*name).ok_or_else(no)?),
            ("delete", "set") if !is_named(table) => drop(table.sets.remove(*name).ok_or_else(no)?),
            ("add", "element") => {
                for element in inner().split(", ") {
                    let (key, value) = element.split_once(" : ").unwrap_or((element, ""));
                    if table.sets.get_mut(*name).ok_or_else(no)?.elements.insert(key.into(), value.into()).is_some() {
                        return Err(no());
                    }
                }
            }
            ("delete", "element") => {
                for key in inner().split(", ") {
                    table.sets.get_mut(*name).ok_or_else(no)?.elements.remove(key).ok_or_else(no)?;
                }
            }
            _ => return Err(no()),
        }
    }
    Ok(())
}

fn wholes(table: &Table) -> BTreeMap<String, Ruleset> {
    FAMILIES.into_iter().map(|f| (f.as_str().to_owned(), table.whole(f).clone())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_history_ends_as_a_fresh_load(history in cases::any_history()) {
        let (mut world, mut table) = (World::default(), Table::default());
        let mut kernel = wholes(&table);
        for steps in &history {
            let changes: Vec<Change> = steps.iter().map(|step| world.step(step)).collect();
            let inverse = table.inverse(&changes);
            let before = wholes(&table);
            let text = texts(&table.change(&changes));
            // What is taken back leaves nothing.
            let back = texts(&table.change(&inverse));
            prop_assert_eq!(&wholes(&table), &before, "{}", back);
            prop_assert_eq!(texts(&table.change(&changes)), text.clone());
            carry_out(&mut kernel, &text).map_err(TestCaseError::fail)?;
            prop_assert_eq!(&kernel, &wholes(&table));
        }
        let fresh = Table::with(&table.everything());
        prop_assert_eq!(kernel, wholes(&fresh));
        // Everything that goes leaves an empty table.
        let gone: Vec<Change> = Table::default().inverse(&table.everything());
        table.change(&gone);
        prop_assert_eq!(wholes(&table), wholes(&Table::default()));
        prop_assert!(table.places.is_empty() && table.holders.is_empty() && table.choices.is_empty());
    }

    #[test]
    fn rules_let_through_what_the_api_says(history in cases::any_history()) {
        let (mut world, mut table) = (World::default(), Table::default());
        for steps in &history {
            let changes: Vec<Change> = steps.iter().map(|step| world.step(step)).collect();
            table.change(&changes);
        }
        for packet in packets() {
            let family = if packet.source.is_ipv4() { Family::Ip } else { Family::Ip6 };
            let passes = Interpreter(table.whole(family)).is_let_through(&packet);
            prop_assert_eq!(passes, reference::is_allowed(&world, &packet), "{:?} in {:#?}", packet, table.whole(family));
        }
    }
}
