//! What is rendered, and that differences lead where a load does.

use proptest::prelude::*;

use super::*;
use crate::cases;

#[test]
fn golden() {
    for (name, settings, model) in cases::golden() {
        for family in [Family::Ip, Family::Ip6] {
            let changes = model.iter().map(|(key, rules)| (key.clone(), Some(rules.clone())));
            let table = Table::with(family, settings.clone(), changes);
            if family == Family::Ip6 && table.services().is_empty() {
                continue;
            }
            insta::with_settings!({ snapshot_path => "../../../testdata/nftables", prepend_module_to_snapshot => false }, {
                insta::assert_snapshot!(format!("{name}.{}", family.as_str()), table.whole().load());
            });
        }
    }
}

/// Carries out the text of a difference, as the kernel would; says no where it would.
fn carry_out(table: &mut Ruleset, text: &str) -> Result<(), String> {
    for line in text.lines() {
        let no = || format!("{line}: no");
        let words: Vec<&str> = line.splitn(6, ' ').collect();
        let [verb, what, _, _, name, ..] = words.as_slice() else { return Err(no()) };
        let rest = words.get(5).copied().unwrap_or_default();
        let inner = || rest.trim_start_matches("{ ").trim_end_matches(" }").to_owned();
        match (*verb, *what) {
            ("add", "chain") if rest.is_empty() && !table.chains.contains_key(*name) => {
                table.chains.insert((*name).into(), Default::default());
            }
            ("add", "set" | "map") if !table.sets.contains_key(*name) => {
                let set = base::set(name, table.family);
                assert_eq!(inner(), format!("{};", set.declaration));
                table.sets.insert((*name).into(), set);
            }
            ("add", "rule") => table.chains.get_mut(*name).ok_or_else(no)?.rules.push(rest.into()),
            ("flush", "chain") => table.chains.get_mut(*name).ok_or_else(no)?.rules.clear(),
            ("delete", "chain") => drop(table.chains.remove(*name).ok_or_else(no)?),
            ("delete", "set" | "map") => drop(table.sets.remove(*name).ok_or_else(no)?),
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

/// Every chain and set that is named exists.
fn is_whole(table: &Ruleset) -> Result<(), String> {
    let verdicts = table.sets.values().flat_map(|s| s.elements.values());
    for text in verdicts.chain(table.chains.values().flat_map(|c| &c.rules)) {
        let words: Vec<&str> = text.split([' ', ',']).collect();
        for pair in words.windows(2) {
            let missing = match pair {
                ["goto" | "jump", chain] => !table.chains.contains_key(*chain),
                [_, set] if set.starts_with('@') => !table.sets.contains_key(set.trim_start_matches('@')),
                _ => false,
            };
            if missing {
                return Err(format!("{text}: there is no {}", pair[1]));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn any_history_ends_as_a_fresh_load(
        history in cases::any_history(), settings in cases::any_settings(), v6 in any::<bool>()
    ) {
        let family = if v6 { Family::Ip6 } else { Family::Ip };
        let mut table = Table::new(family, settings.clone());
        let mut kernel = table.whole();
        for step in history {
            let before = table.inverse(&step);
            let text = table.change(&step).text();
            carry_out(&mut kernel, &text).map_err(TestCaseError::fail)?;
            let services = table.services().iter().map(|(key, rules)| (key.clone(), Some(rules.clone())));
            let mut fresh = Table::with(family, settings.clone(), services);
            // What nobody else remembers is in which order endpoints came.
            fresh.arrived.clone_from(&table.arrived);
            prop_assert_eq!(&kernel, &fresh.whole());
            is_whole(&kernel).map_err(TestCaseError::fail)?;
            // There and back again.
            let mut undone = table.clone();
            let back = undone.change(&before).text();
            let mut other = kernel.clone();
            carry_out(&mut other, &back).map_err(TestCaseError::fail)?;
            prop_assert_eq!(other, undone.whole());
            let ports = table.services().values().flat_map(|rules| rules.of(family));
            let sticky: BTreeMap<_, BTreeSet<_>> = ports
                .filter(|(_, port)| port.affinity.is_some())
                .map(|(name, port)| (name.clone(), port.endpoints.all()))
                .collect();
            let arrived = table.arrived.iter().map(|(name, all)| (name.clone(), all.iter().copied().collect()));
            prop_assert_eq!(arrived.collect::<BTreeMap<_, _>>(), sticky);
        }
    }
}

#[test]
fn only_the_changed_service_is_sent() {
    let mut all: Vec<Change> = Vec::new();
    for (i, name) in ["a", "b", "c"].into_iter().enumerate() {
        let spec = serde_json::json!({"clusterIP": format!("10.96.0.{}", i + 1), "ports": [{"port": 80}]});
        let slice = serde_json::json!({"endpoints": [{"addresses": ["10.244.0.2"]}], "ports": [{"port": 80}]});
        all.push((Key::new("default", name), Some(cases::rules(name, spec, serde_json::json!({}), slice))));
    }
    let mut table = Table::with(Family::Ip, cases::settings(), all.iter().cloned());
    assert!(table.change(&all).is_empty(), "nothing has changed");
    let text = table.change(&[(all[1].0.clone(), None)]).text();
    assert!(text.contains("10.96.0.2 ") && !text.contains("10.96.0.1 ") && !text.contains("10.96.0.3 "), "{text}");
    let nodes = Settings { remote_pod_cidrs: vec!["10.244.1.0/24".parse().expect("a range")], ..cases::settings() };
    let text = table.adapt(&nodes).expect("no rule of a Service hangs on it");
    assert!(text.contains("10.244.1.0/24") && !text.contains("10.96.0.1 "), "{text}");
    assert_eq!(table.adapt(&Settings { masquerade_all: true, ..nodes }), None);
}

/// Who had the first, was sent to the second while the first was away, and comes when the first is back, stays.
#[test]
fn clients_stay_with_who_was_there_all_the_time() {
    let service = |bytes: &[u8]| {
        let spec =
            serde_json::json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}], "sessionAffinity": "ClientIP"});
        let endpoints: Vec<_> =
            bytes.iter().map(|b| serde_json::json!({"addresses": [format!("10.244.0.{b}")]})).collect();
        let slice = serde_json::json!({"endpoints": endpoints, "ports": [{"port": 80}]});
        (Key::new("default", "web"), Some(cases::rules("web", spec, serde_json::json!({}), slice)))
    };
    let mut table = Table::new(Family::Ip, cases::settings());
    for (endpoints, want) in [
        (&[2, 3, 4][..], "234"),
        (&[3, 4], "34"),
        (&[2, 3, 4], "342"),
        (&[1, 2, 4], "421"),
        (&[], ""),
        (&[1, 2, 4], "124"),
    ] {
        let text = table.change(&[service(endpoints)]).text();
        // A rule of who had one names the set twice: it looks there, and takes note.
        let had = text.lines().filter(|line| line.starts_with("add rule") && line.matches('@').count() == 2);
        let order: String = had.filter_map(|line| line.split("10.244.0.").nth(1)?.chars().next()).collect();
        assert_eq!(order, want, "{text}");
    }
}

/// A Service of many that gains or loses one keeps its chain: only what is drawn from changes.
#[test]
fn most_changes_of_how_many_there_are_change_no_verdict() {
    let service = |count: u32| {
        let spec = serde_json::json!({"type": "NodePort", "clusterIP": "10.96.0.1",
            "ports": [{"port": 80, "nodePort": 30080}]});
        let endpoints: Vec<_> =
            (0..count).map(|i| serde_json::json!({"addresses": [format!("10.244.0.{i}")]})).collect();
        let slice = serde_json::json!({"endpoints": endpoints, "ports": [{"port": 80}]});
        (Key::new("default", "web"), Some(cases::rules("web", spec, serde_json::json!({}), slice)))
    };
    let mut table = Table::new(Family::Ip, cases::settings());
    for (count, leads_anew) in [(10, true), (9, false), (10, false), (11, true), (12, false), (3, true), (4, true)] {
        let text = table.change(&[service(count)]).text();
        assert_eq!(text.contains("goto"), leads_anew, "{count}: {text}");
        assert!(text.contains("service-endpoints-tcp") && text.contains("nodeport-endpoints-tcp"), "{count}: {text}");
    }
}
