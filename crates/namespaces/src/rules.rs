//! What `nft` takes, and what it says there is.

use std::io::Write;
use std::process::{Command, Stdio};

/// What `nft` says.
///
/// # Panics
/// When it refuses.
pub fn nft(args: &[&str]) -> String {
    let output = Command::new("nft").args(args).output().unwrap_or_else(|error| panic!("nft: {error}"));
    assert!(output.status.success(), "nft {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Feeds texts to `nft`, one transaction each, in a new namespace; the ruleset they leave, without
/// handles and counters.
///
/// # Panics
/// When one is refused.
pub fn leave(texts: &[String]) -> String {
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("a folder: {error}"));
    let mut script = String::from("set -e\n");
    for (i, text) in texts.iter().enumerate() {
        let file = folder.path().join(i.to_string());
        std::fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        script += &format!("nft -f {} || {{ cat {0} >&2; exit 1; }}\n", file.display());
    }
    script += "nft -s list ruleset\n";
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "sh", "-s"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = || -> std::io::Result<std::process::Output> {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(script.as_bytes())?;
        }
        child.wait_with_output()
    };
    let output = { run }().unwrap_or_else(|error| panic!("unshare: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The same ruleset, whatever order it came about in: the chains and sets of each table, those with their elements
/// in order.
pub fn sorted(listing: &str) -> Vec<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_no_difference_and_everything_else_is() {
        let one = "table ip t {\n\tset s {\n\t\ttype ipv4_addr\n\t\telements = { 10.0.0.1, 10.0.0.2 }\n\t}\n\n\tchain c {\n\t\tdrop\n\t\taccept\n\t}\n}\n";
        let same = "table ip t {\n\tchain c {\n\t\tdrop\n\t\taccept\n\t}\n\n\tset s {\n\t\ttype ipv4_addr\n\t\telements = { 10.0.0.2,\n\t\t\t     10.0.0.1 }\n\t}\n}\n";
        assert_eq!(sorted(one), sorted(same));
        for (from, to) in [("ip t", "ip6 t"), ("10.0.0.2", "10.0.0.3"), ("drop\n\t\taccept", "accept\n\t\tdrop")] {
            assert_ne!(sorted(one), sorted(&one.replace(from, to)), "{from}");
        }
    }
}
