//! What is rendered, and that differences lead where a load does.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::cases;

#[test]
fn golden() {
    for (name, settings, model) in cases::golden() {
        for family in [Family::Ip, Family::Ip6] {
            let changes = model.iter().map(|(key, rules)| (key.clone(), Some(rules.clone())));
            let rules = Rules::with(family, settings.clone(), changes);
            if family == Family::Ip6 && rules.services.is_empty() {
                continue;
            }
            insta::with_settings!({ snapshot_path => "../../../testdata/iptables", prepend_module_to_snapshot => false }, {
                insta::assert_snapshot!(format!("{name}.{}", family.as_str()), rules.whole(&Present::default()));
            });
        }
    }
}

/// Chains of tables, as the kernel holds them.
type Kernel = BTreeMap<(String, String), Vec<String>>;

/// Carries out text for `iptables-restore --noflush`, as the kernel would; says no where it would.
fn carry_out(kernel: &mut Kernel, text: &str) -> Result<(), String> {
    let mut table = String::new();
    for line in text.lines() {
        let no = || format!("{table}: {line}: no");
        if let Some(name) = line.strip_prefix('*') {
            table = name.to_owned();
            continue;
        }
        if line == "COMMIT" {
            continue;
        }
        if let Some(name) = line.strip_prefix(':').and_then(|l| l.split(' ').next()) {
            kernel.insert((table.clone(), name.to_owned()), Vec::new());
            continue;
        }
        let (verb, rest) = line.split_once(' ').ok_or_else(no)?;
        let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        let place = (table.clone(), chain.to_owned());
        if verb == "-X" {
            let gone = kernel.remove(&place).ok_or_else(no)?;
            let used = kernel
                .iter()
                .any(|((t, _), rules)| *t == table && rules.iter().any(|r| r.rsplit("-j ").next() == Some(chain)));
            if !gone.is_empty() || used {
                return Err(no());
            }
            continue;
        }
        let target = rule.rsplit("-j ").next().and_then(|t| t.split(' ').next()).unwrap_or_default();
        if target.starts_with("KUBE-") && !kernel.contains_key(&(table.clone(), target.to_owned())) {
            return Err(no());
        }
        let built_in = ["INPUT", "OUTPUT", "FORWARD", "PREROUTING", "POSTROUTING"].contains(&chain);
        let rules = if built_in { kernel.entry(place).or_default() } else { kernel.get_mut(&place).ok_or_else(no)? };
        match verb {
            "-A" => rules.push(rule.to_owned()),
            "-I" => rules.insert(0, rule.strip_prefix("1 ").unwrap_or(rule).to_owned()),
            "-D" => {
                let at = rules.iter().position(|r| r == rule).ok_or_else(no)?;
                rules.remove(at);
            }
            _ => return Err(no()),
        }
    }
    Ok(())
}

/// The same whatever order Services came in: rules of shared chains before and behind those that
/// hang on no Service.
fn sorted(kernel: &Kernel, rules: &Rules) -> Kernel {
    let mut out = kernel.clone();
    for table in [Table::Filter, Table::Nat] {
        for chain in base::chains(table) {
            let fixed = base::rules(table, chain, &rules.settings, rules.family);
            let Some(all) = out.get_mut(&(table.as_str().to_owned(), (*chain).to_owned())) else { continue };
            let first = fixed.first().and_then(|f| all.iter().position(|r| r == f)).unwrap_or(0);
            all[..first].sort();
            let after = (first + fixed.len()).min(all.len());
            all[after..].sort();
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_history_ends_as_a_fresh_load(
        history in cases::any_history(), settings in cases::any_settings(), v6 in any::<bool>()
    ) {
        let family = if v6 { Family::Ip6 } else { Family::Ip };
        let mut rules = Rules::new(family, settings.clone());
        let mut kernel = Kernel::new();
        carry_out(&mut kernel, &rules.whole(&Present::default())).map_err(TestCaseError::fail)?;
        for step in history {
            let text = rules.change(&step);
            carry_out(&mut kernel, &text).map_err(TestCaseError::fail)?;
            let mut fresh = Kernel::new();
            carry_out(&mut fresh, &rules.whole(&Present::default())).map_err(TestCaseError::fail)?;
            prop_assert_eq!(sorted(&kernel, &rules), sorted(&fresh, &rules));
            for table in [Table::Filter, Table::Nat] {
                let there = kernel.iter().filter(|((t, _), _)| t == table.as_str()).map(|(_, rules)| rules.len());
                prop_assert_eq!(rules.total(table), there.sum::<usize>());
            }
        }
        // A restart finds everything in its place, and nothing of what is gone stays.
        let present = Present {
            chains: kernel.keys().filter(|(t, n)| t == "nat" && OF_SERVICES.iter().any(|p| n.starts_with(p))).map(|(_, n)| n.clone()).collect(),
            jumps: kernel.iter().filter(|((_, n), _)| !n.starts_with("KUBE-")).flat_map(|((t, n), rules)| {
                let table = if t == "nat" { Table::Nat } else { Table::Filter };
                rules.iter().map(move |r| (table, format!("{n} {r}")))
            }).collect(),
            counts: BTreeMap::new(),
        };
        let before = sorted(&kernel, &rules);
        carry_out(&mut kernel, &rules.whole(&present)).map_err(TestCaseError::fail)?;
        prop_assert_eq!(sorted(&kernel, &rules), before);
        carry_out(&mut kernel, &Rules::new(family, settings).whole(&present)).map_err(TestCaseError::fail)?;
        prop_assert!(!kernel.keys().any(|(_, n)| OF_SERVICES.iter().any(|p| n.starts_with(p))));
        carry_out(&mut kernel, &remove(&present)).map_err(TestCaseError::fail)?;
        prop_assert!(kernel.iter().all(|((_, n), rules)| !n.starts_with("KUBE-") && rules.is_empty()), "{:?}", kernel);
    }
}

#[test]
fn what_is_there_is_read_from_what_iptables_saves() {
    let saved = "*mangle\n:KUBE-SVC-NOT - [0:0]\nCOMMIT\n*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SVC-ABC - [0:0]\n:CNI-HOSTPORT - [0:0]\n\
        -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
        -A PREROUTING -j CNI-HOSTPORT\n-A KUBE-SERVICES -j KUBE-SVC-ABC\nCOMMIT\n";
    let present = Present::read(saved);
    assert_eq!(present.chains.iter().collect::<Vec<_>>(), ["KUBE-SVC-ABC"]);
    assert_eq!(present.jumps.len(), 1);
    assert_eq!(present.counts, [((Table::Nat, "KUBE-SVC-ABC".to_owned()), 0)].into());
    let text = Rules::new(Family::Ip, cases::settings()).whole(&present);
    assert!(!text.contains("-I PREROUTING") && text.contains("-I OUTPUT 1"), "{text}");
    assert!(text.contains(":KUBE-SVC-ABC - [0:0]\n") && text.contains("-X KUBE-SVC-ABC\n"), "{text}");
}

#[test]
fn what_somebody_else_took_away_is_missed() {
    let (_, settings, model) = cases::golden().remove(0);
    let rules = Rules::with(Family::Ip, settings, model.iter().map(|(key, rules)| (key.clone(), Some(rules.clone()))));
    // The kernel shows jumps as rules, first in their chains.
    let saved = rules.whole(&Present::default()).replace("-I ", "-A ").replace(" 1 ", " ");
    assert!(rules.is_in(&Present::read(&saved)));
    for part in ["-A KUBE-SERVICES", "-A PREROUTING", "-A KUBE-SEP-", ":KUBE-SVC-"] {
        let at = saved.lines().position(|l| l.starts_with(part)).expect("there");
        let damaged: Vec<&str> = saved.lines().enumerate().filter(|(i, _)| *i != at).map(|(_, l)| l).collect();
        assert!(!rules.is_in(&Present::read(&damaged.join("\n"))), "{part}");
    }
}
