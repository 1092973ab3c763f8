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

fn nft(args: &[&str]) -> String {
    let output = Command::new("nft").args(args).output().expect("nft runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "needs root: ./dev test runs it"]
#[allow(clippy::disallowed_methods, reason = "says that this process is the one inside")]
fn messages_say_what_texts_say() {
    if std::env::var(INSIDE).is_err() {
        let mut command = Command::new("unshare");
        if !geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--net", "--"]).arg(std::env::current_exe().expect("this program"));
        let name = "nftables::table::kernel::messages_say_what_texts_say";
        command.args([name, "--exact", "--ignored", "--nocapture"]).env(INSIDE, "1");
        assert!(command.status().expect("unshare runs").success(), "inside; see above");
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
