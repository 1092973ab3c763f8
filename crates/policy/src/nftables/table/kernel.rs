//! The real kernel takes every text, and holds after any history what a fresh load gives. In network
//! namespaces of the test's own, each of which goes with the command that asked for it.

use std::io::Write;
use std::process::{Command, Stdio};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::cases::{self, World};

/// Feeds texts to `nft`, one transaction each, in a new namespace; the ruleset they leave.
fn leave(texts: &[String]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let mut script = String::from("set -e\n");
    for (i, text) in texts.iter().enumerate() {
        let file = folder.path().join(i.to_string());
        std::fs::write(&file, text).expect("written");
        script += &format!("nft -f {} || {{ cat {0} >&2; exit 1; }}\n", file.display());
    }
    script += "nft -s list ruleset\n";
    let mut child = Command::new("unshare")
        .args(["--net", "sh", "-s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare runs");
    child.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The same ruleset, whatever order it came about in.
fn sorted(listing: &str) -> Vec<String> {
    let mut blocks: Vec<Vec<&str>> = Vec::new();
    let mut table = "";
    for line in listing.lines().filter(|line| !matches!(line.trim(), "" | "}")) {
        if line.starts_with("table") {
            table = line;
            continue;
        }
        let starts = line.starts_with('\t') && !line.starts_with("\t\t") && line.ends_with('{');
        match blocks.last_mut() {
            Some(block) if !starts => block.push(line.trim()),
            _ => blocks.push(vec![table, line.trim()]),
        }
    }
    let whole = |block: Vec<&str>| {
        if !block.iter().any(|line| line.starts_with("elements")) {
            return block.join("\n");
        }
        let all = block.join(", ").replace("elements = { ", "");
        let mut words: Vec<&str> = all.split(", ").map(|w| w.trim_matches([' ', '{', '}', ','])).collect();
        words.sort_unstable();
        words.join(", ")
    };
    let mut blocks: Vec<String> = blocks.into_iter().map(whole).collect();
    blocks.sort();
    blocks
}

#[test]
#[ignore = "needs root: ./dev test runs it"]
fn golden_cases_are_taken() {
    for (_, changes) in cases::golden() {
        leave(&[Table::with(&changes).load()]);
    }
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
            texts.push(table.change(&changes));
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
    let mut texts = vec![table.load(), table.change(&changes)];
    texts.push(table.change(&[Change::Policy(Key::new("shop", "huge"), None)]));
    leave(&texts);
}
