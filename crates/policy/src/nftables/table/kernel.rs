//! The real kernel takes every text, and holds after any history what a fresh load gives. In network
//! namespaces of the test's own, each of which goes with the command that asked for it.

use namespaces::Own;
use namespaces::rules::{leave, nft, sorted};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};

use super::tests::texts as written;
use super::*;
use crate::cases::{self, World};

#[test]
#[ignore = "needs root: ./dev test runs it"]
fn golden_cases_are_taken() {
    for (_, changes) in cases::golden() {
        leave(&[Table::with(&changes).load()]);
    }
    let names = [[10, 96, 0, 10].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 10].into()];
    leave(&[Table::new(&names).load()]);
}

#[test]
#[ignore = "needs root: ./dev test runs it"]
fn any_history_is_taken_and_ends_as_a_fresh_load() {
    let mut runner = TestRunner::new(Config::default());
    for _ in 0..16 {
        let history = cases::any_history().new_tree(&mut runner).expect("a history").current();
        let (mut world, mut table) = (World::default(), Table::default());
        let mut texts = vec![table.load()];
        for steps in &history {
            let changes: Vec<Change> = steps.iter().map(|step| world.step(step)).collect();
            texts.push(written(&table.change(&changes)));
        }
        let fresh = Table::with(&table.everything()).load();
        // A fresh load over what is there is a restart.
        let mut restarted = texts.clone();
        restarted.push(fresh.clone());
        let want = sorted(&leave(&[fresh]));
        assert_eq!(sorted(&leave(&texts)), want, "{history:?}");
        assert_eq!(sorted(&leave(&restarted)), want, "{history:?}");
    }
}

#[test]
#[ignore = "needs root: ./dev test runs it"]
fn thousands_of_peers_are_taken() {
    use serde_json::json;
    // Networks that overlap, hold each other and touch; selectors that nobody has.
    let nets = (0..3000_u32).map(|i| {
        let net = format!("10.{}.{}.0/{}", i / 200, i % 200, 20 + i % 5);
        json!({"ipBlock": {"cidr": net, "except": [format!("10.{}.{}.128/26", i / 200, i % 200)]}})
    });
    let selectors = (0..2000).map(|i| json!({"podSelector": {"matchLabels": {"app": format!("a{i}")}}}));
    let peers: Vec<_> = nets.chain(selectors).collect();
    let spec = json!({"podSelector": {}, "ingress": [{"from": peers.clone()}], "egress": [{"to": peers}]});
    let mut changes = cases::golden()[1].1.clone();
    changes.push(cases::policy("shop", "huge", spec));
    let mut table = Table::default();
    let mut texts = vec![table.load(), written(&table.change(&changes))];
    texts.push(written(&table.change(&[Change::Policy(Key::new("shop", "huge"), None)])));
    leave(&texts);
}

/// Set where this program is in a network namespace of its own.
const INSIDE: &str = "PINTLE_POLICY_KERNEL_TEST";

/// Is this process in a network namespace of its own? If not, the test is run in one.
fn is_inside(test: &str) -> bool {
    namespaces::is_inside(INSIDE, &format!("nftables::table::kernel::{test}"), Own::Network)
}

/// One policy of ten thousand peers, networks with exceptions among them, and a thousand pods: the kernel takes it in
/// the messages of every day, holds all of it, and gives it back.
#[test]
#[ignore = "needs root: ./dev test runs it"]
fn ten_thousand_peers_go_as_messages() {
    use serde_json::json;
    if !is_inside("ten_thousand_peers_go_as_messages") {
        return;
    }
    let (own, mut sender) = (net::monitor::Own::default(), net::nf_tables::Sender::default());
    let send = |text: &str| net::nft::run(text, net::nft::Mode::Apply).expect("taken");
    let mut go = |table: &mut Table, changes: &[Change]| {
        let changes = table.change(changes);
        let batch = net::nf_tables::encode_all(&changes).expect("it can be said");
        let sent = sender.send(&batch, &own).expect("sent");
        sent.unwrap_or_else(|no| panic!("{}", no.told_of(&changes)));
    };
    let nets = (0..5000_u32).map(|i| {
        let net = |last: &str| format!("{}.{}.{}.{last}", 20 + i / 2500, i / 25 % 100, i % 25);
        json!({"ipBlock": {"cidr": net("0/24"), "except": [net("64/26"), net("200/32")]}})
    });
    let selectors = (0..5000).map(|i| json!({"podSelector": {"matchLabels": {"app": format!("a{i}")}}}));
    let spec = json!({"podSelector": {"matchLabels": {"app": "a1"}}, "ingress": [{"from": nets.chain(selectors).collect::<Vec<_>>()}]});
    let pod = |i: u32| {
        let (name, address) = (format!("p{i}"), format!("10.244.{}.{}", i / 200, 2 + i % 200));
        cases::pod("shop", &name, &[("app", &format!("a{}", i * 7 % 6000))], &[&address], i.is_multiple_of(9))
    };
    let mut table = Table::default();
    send(&table.load());
    let empty = sorted(&nft(&["-s", "list", "ruleset"]));
    let namespace = Change::Namespace("shop".into(), Some(Labels::new()));
    go(&mut table, &std::iter::once(namespace).chain((0..1000).map(pod)).collect::<Vec<_>>());
    go(&mut table, &[cases::policy("shop", "huge", spec)]);
    // 715 of the pods have labels up to a4999 among those; the last one comes later.
    let whole = table.whole(Family::Ip);
    let count = |prefix: &str| {
        let sets = whole.sets.iter().filter(|(name, _)| name.starts_with(prefix));
        sets.map(|(_, set)| set.elements.len()).sum::<usize>()
    };
    assert!(count("nets-") > 5000 && count("pods-") > 700, "{} {}", count("nets-"), count("pods-"));
    let said = sorted(&nft(&["-s", "list", "ruleset"]));
    nft(&["flush", "ruleset"]);
    send(&table.load());
    assert!(said == sorted(&nft(&["-s", "list", "ruleset"])), "the messages left something else");
    go(&mut table, &[Change::Policy(Key::new("shop", "huge"), None)]);
    assert_eq!(sorted(&nft(&["-s", "list", "ruleset"])), empty);
}

/// The messages that go to the kernel leave the rules that the texts leave, and every difference can be said in them.
#[test]
#[ignore = "needs root: ./dev test runs it"]
fn messages_say_what_texts_say() {
    if !is_inside("messages_say_what_texts_say") {
        return;
    }
    let (own, mut sender) = (net::monitor::Own::default(), net::nf_tables::Sender::default());
    let mut runner = TestRunner::new(Config::default());
    let send = |text: &str| net::nft::run(text, net::nft::Mode::Apply).expect("taken");
    let golden: Vec<Vec<Vec<Change>>> = cases::golden().into_iter().map(|(_, changes)| vec![changes]).collect();
    let histories = (0..16).map(|_| {
        let history = cases::any_history().new_tree(&mut runner).expect("a history").current();
        let mut world = World::default();
        history.iter().map(|steps| steps.iter().map(|step| world.step(step)).collect()).collect()
    });
    for history in golden.into_iter().chain(histories.collect::<Vec<_>>()) {
        let mut table = Table::default();
        nft(&["flush", "ruleset"]);
        send(&table.load());
        let mut texts = vec![table.load()];
        for changes in &history {
            let changes = table.change(changes);
            texts.push(written(&changes));
            let batch = net::nf_tables::encode_all(&changes).unwrap_or_else(|| panic!("not said: {changes:?}"));
            let sent = sender.send(&batch, &own).expect("sent");
            sent.unwrap_or_else(|no| panic!("{}", no.told_of(&changes)));
        }
        let said = nft(&["-s", "list", "ruleset"]);
        nft(&["flush", "ruleset"]);
        texts.iter().filter(|text| !text.is_empty()).for_each(|text| send(text));
        assert_eq!(sorted(&said), sorted(&nft(&["-s", "list", "ruleset"])), "{history:?}");
    }
}
