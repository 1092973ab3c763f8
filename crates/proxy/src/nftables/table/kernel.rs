//! The real kernel takes every text, and holds after any history what a fresh load gives. In network
//! namespaces of the test's own, each of which goes with the command that asked for it.

use namespaces::Own;
use namespaces::rules::{leave, nft, sorted};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::cases;

#[test]
#[ignore = "needs root: ./dev test runs it"]
fn golden_cases_are_taken() {
    for (_, settings, model) in cases::golden() {
        for family in [Family::Ip, Family::Ip6] {
            let changes = model.iter().map(|(key, rules)| (key.clone(), Some(rules.clone())));
            leave(&[Table::with(family, settings.clone(), changes).whole().load()]);
        }
    }
}

#[test]
#[ignore = "needs root: ./dev test runs it"]
fn any_history_is_taken_and_ends_as_a_fresh_load() {
    let mut runner = TestRunner::new(Config::default());
    for round in 0..12 {
        let history = cases::any_history().new_tree(&mut runner).expect("a history").current();
        let family = if round % 2 == 0 { Family::Ip } else { Family::Ip6 };
        let settings = settings(round);
        let mut table = Table::new(family, settings.clone());
        let mut texts = vec![table.whole().load()];
        texts.extend(history.iter().map(|step| table.change(step).text()));
        let services = table.services().iter().map(|(key, rules)| (key.clone(), Some(rules.clone())));
        let mut fresh = Table::with(family, settings, services);
        fresh.arrived.clone_from(&table.arrived);
        let fresh = fresh.whole().load();
        // A fresh load over what is there is a restart.
        let mut restarted = texts.clone();
        restarted.push(fresh.clone());
        let want = sorted(&leave(&[fresh]));
        assert_eq!(sorted(&leave(&texts)), want, "{history:?}");
        assert_eq!(sorted(&leave(&restarted)), want, "{history:?}");
    }
}

/// Those of one round after the other.
fn settings(round: usize) -> Settings {
    let all = cases::varied();
    all[round % all.len()].clone()
}

/// Set where the test runs in a network namespace of its own.
const INSIDE: &str = "PINTLE_NF_TABLES";

#[test]
#[ignore = "needs root: ./dev test runs it"]
fn messages_say_what_texts_say() {
    if !namespaces::is_inside(INSIDE, "nftables::table::kernel::messages_say_what_texts_say", Own::Network) {
        return;
    }
    let (own, mut sender) = (net::monitor::Own::default(), net::nf_tables::Sender::default());
    let send = |text: &str| net::nft::run(text, net::nft::Mode::Apply).expect("taken");
    let mut runner = TestRunner::new(Config::default());
    for round in 0..24 {
        let history = cases::any_history().new_tree(&mut runner).expect("a history").current();
        let family = if round % 2 == 0 { Family::Ip } else { Family::Ip6 };
        let mut table = Table::new(family, settings(round));
        nft(&["flush", "ruleset"]);
        send(&table.whole().load());
        let mut texts = vec![table.whole().load()];
        for step in &history {
            let change = table.change(step);
            texts.push(change.text());
            let batch = net::nf_tables::encode(&change).unwrap_or_else(|| panic!("not said: {}", change.text()));
            let sent = sender.send(&batch, &own).expect("sent");
            sent.unwrap_or_else(|no| panic!("{}", no.told(&change)));
        }
        let said = nft(&["-s", "list", "ruleset"]);
        nft(&["flush", "ruleset"]);
        texts.iter().for_each(|text| send(text));
        assert_eq!(sorted(&said), sorted(&nft(&["-s", "list", "ruleset"])), "{history:?}");
    }
    // What the kernel does not take is named, and nothing of it happens.
    let table = Table::new(Family::Ip, cases::settings());
    send(&table.whole().load());
    let before = nft(&["-s", "list", "ruleset"]);
    let elements = vec![("10.96.0.1 . tcp . 80".to_owned(), "goto nowhere".to_owned())];
    let set = table.whole().sets.remove("service-ips").expect("there");
    let steps = vec![
        ruleset::Step::AddChain { name: "somewhere".into(), hook: String::new() },
        ruleset::Step::AddElements { set: "service-ips".into(), declaration: set.declaration, elements },
    ];
    let change = Transaction { family: Family::Ip, table: TABLE.into(), steps };
    let batch = net::nf_tables::encode(&change).expect("said");
    let refused = sender.send(&batch, &own).expect("sent").expect_err("refused");
    assert!(refused.told(&change).contains("goto nowhere"), "{}", refused.told(&change));
    assert_eq!(nft(&["-s", "list", "ruleset"]), before);
}
