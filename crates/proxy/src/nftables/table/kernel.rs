//! The real kernel takes every text, and holds after any history what a fresh load gives. In network
//! namespaces of the test's own, each of which goes with the command that asked for it.

use std::io::Write;
use std::process::{Command, Stdio};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};
use rustix::process::geteuid;

use super::*;
use crate::cases;

/// Feeds texts to `nft`, one transaction each, in a new namespace; the ruleset they leave, without
/// handles and counters.
fn leave(texts: &[String]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let mut script = String::from("set -e\n");
    for (i, text) in texts.iter().enumerate() {
        let file = folder.path().join(i.to_string());
        std::fs::write(&file, text).expect("written");
        script += &format!("nft -f {} || {{ cat {0} >&2; exit 1; }}\n", file.display());
    }
    script += "nft -s list ruleset\n";
    let mut command = Command::new("unshare");
    if !geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let mut child = command
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

/// The same ruleset, whatever order it came about in: its chains and sets, those with their elements
/// in order.
fn sorted(listing: &str) -> Vec<String> {
    let mut blocks: Vec<Vec<&str>> = Vec::new();
    for line in listing.lines().filter(|line| !matches!(line.trim(), "" | "}")) {
        let starts = line.starts_with('\t') && !line.starts_with("\t\t") && line.ends_with('{');
        match blocks.last_mut() {
            Some(block) if !starts => block.push(line.trim()),
            _ => blocks.push(vec![line.trim()]),
        }
    }
    let whole = |block: Vec<&str>| {
        if !block.iter().any(|line| line.starts_with("elements")) {
            return block.join("\n");
        }
        let all = block.join(", ");
        let all = all.replace("elements = { ", "");
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
        let mut table = Table::new(family, cases::settings());
        let mut texts = vec![table.whole().load()];
        texts.extend(history.iter().map(|step| table.change(step)));
        let services = table.services().iter().map(|(key, rules)| (key.clone(), Some(rules.clone())));
        let fresh = Table::with(family, cases::settings(), services).whole().load();
        // A fresh load over what is there is a restart.
        let mut restarted = texts.clone();
        restarted.push(fresh.clone());
        let want = sorted(&leave(&[fresh]));
        assert_eq!(sorted(&leave(&texts)), want, "{history:?}");
        assert_eq!(sorted(&leave(&restarted)), want, "{history:?}");
    }
}
