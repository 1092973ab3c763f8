//! What no compiler checks: the crate table against the manifests, the laws against their tests,
//! licences, and how every file begins.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// Runs every check and prints what is wrong.
pub fn run() -> Result<()> {
    let mut problems = Vec::new();
    let architecture = fs::read_to_string(root().join("docs/architecture.md"))?;
    let metadata = metadata()?;
    problems.extend(wrong_arrows(&crate_table(&architecture), &arrows(&metadata)));
    problems.extend(missing_checks(&architecture, &root()));
    problems.extend(wrong_licences(&metadata, &allowed_licences(&fs::read_to_string(root().join("deny.toml"))?)));
    problems.extend(files_without_purpose()?);
    problems.extend(missing_invariants(&root())?);
    for problem in &problems {
        println!("{problem}");
    }
    if problems.is_empty() { Ok(()) } else { bail!("{} problems", problems.len()) }
}

fn metadata() -> Result<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--offline", "--filter-platform"])
        // What other platforms need is not on this machine's disk.
        .arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
        .current_dir(root())
        .output()
        .context("cargo metadata")?;
    serde_json::from_slice(&output.stdout).context("cargo metadata prints JSON")
}

/// Crate → what the table allows it to depend on; `None` for all.
type Table = BTreeMap<String, Option<BTreeSet<String>>>;

fn crate_table(text: &str) -> Table {
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let section = text.split("## Crates").nth(1).and_then(|t| t.split("\n## ").next()).unwrap_or_default();
    section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .filter_map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let name = names(cells.first()?).pop()?;
            let allowed = (*cells.get(2)? != "all").then(|| names(cells[2]).into_iter().collect());
            Some((name, allowed))
        })
        .collect()
}

/// Crate → workspace crates it depends on, outside its tests.
fn arrows(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let own: Vec<&Value> = packages.iter().filter(|p| p["source"].is_null()).collect();
    let names: BTreeSet<&str> = own.iter().filter_map(|p| p["name"].as_str()).collect();
    own.iter()
        .filter_map(|package| {
            let dependencies = package["dependencies"].as_array()?;
            let used = dependencies
                .iter()
                .filter(|d| d["kind"] != "dev")
                .filter_map(|d| d["name"].as_str())
                .filter(|name| names.contains(name))
                .map(str::to_owned)
                .collect();
            Some((package["name"].as_str()?.to_owned(), used))
        })
        .collect()
}

fn wrong_arrows(table: &Table, arrows: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut out = Vec::new();
    for name in table.keys().filter(|n| !arrows.contains_key(*n)) {
        out.push(format!("docs/architecture.md lists crate {name}, which does not exist"));
    }
    for (name, used) in arrows {
        match table.get(name) {
            None => out.push(format!("crate {name} is not in the table of docs/architecture.md")),
            Some(None) => {}
            Some(Some(allowed)) => out.extend(
                used.difference(allowed)
                    .map(|d| format!("crate {name} depends on {d}, which the table does not allow")),
            ),
        }
    }
    out
}

/// Law lines name their checks as `[path: test]`, several separated by `; `.
fn missing_checks(text: &str, root: &Path) -> Vec<String> {
    let section = text.split("## Laws").nth(1).and_then(|t| t.split("\n## ").next()).unwrap_or_default();
    let laws = section.lines().filter(|l| l.chars().next().is_some_and(|c| c.is_ascii_digit()));
    let mut out = Vec::new();
    for law in laws {
        out.extend(missing_checks_of(law, root));
    }
    out
}

/// What is wrong with the checks that a law or an invariant ends with.
fn missing_checks_of(law: &str, folder: &Path) -> Vec<String> {
    let Some(checks) = law.rsplit_once('[').and_then(|(_, rest)| rest.strip_suffix(']')) else {
        return vec![format!("a law names no check and does not say [unchecked]: {law}")];
    };
    let exists = |check: &&str| {
        check
            .split_once(": ")
            .is_some_and(|(path, name)| fs::read_to_string(folder.join(path)).is_ok_and(|text| text.contains(name)))
    };
    let missing = checks.split("; ").filter(|c| *c != "unchecked").filter(|c| !exists(c));
    missing.map(|check| format!("the check {check} does not exist")).collect()
}

/// Every `lib.rs` opens with its invariants, each ending with its check.
fn missing_invariants(root: &Path) -> Result<Vec<String>> {
    let mut out = Vec::new();
    for entry in fs::read_dir(root.join("crates"))? {
        let folder = entry?.path();
        let Ok(text) = fs::read_to_string(folder.join("src/lib.rs")) else { continue };
        let page: Vec<&str> = text.lines().map_while(|l| l.strip_prefix("//!")).map(str::trim).collect();
        let page = page.join(" ");
        let Some((_, invariants)) = page.split_once("# Invariants") else {
            out.push(format!("{} names no invariants", folder.join("src/lib.rs").display()));
            continue;
        };
        let listed = invariants.split(" * ").map(str::trim).filter(|i| !i.is_empty());
        out.extend(listed.flat_map(|invariant| missing_checks_of(invariant, &folder)));
    }
    Ok(out)
}

fn allowed_licences(deny: &str) -> BTreeSet<String> {
    let list = deny.split("allow = [").nth(1).and_then(|t| t.split(']').next()).unwrap_or_default();
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn wrong_licences(metadata: &Value, allowed: &BTreeSet<String>) -> Vec<String> {
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    packages
        .iter()
        .filter_map(|package| {
            let licence = package["license"].as_str().unwrap_or_default();
            let fine = licence.split(" OR ").flat_map(|l| l.split('/')).any(|choice| {
                choice.split(" AND ").all(|part| allowed.contains(part.trim_matches(|c| "() ".contains(c))))
            });
            (!fine).then(|| format!("{} {}: licence {licence:?} is not allowed", package["name"], package["version"]))
        })
        .collect()
}

fn files_without_purpose() -> Result<Vec<String>> {
    let output = Command::new("git").args(["ls-files", "*.rs"]).current_dir(root()).output().context("git")?;
    let text = String::from_utf8(output.stdout)?;
    let mut out = Vec::new();
    for path in text.lines() {
        let full = root().join(path);
        let Ok(content) = fs::read_to_string(&full) else { continue };
        if !content.starts_with("//!") {
            out.push(format!("{path} does not say in its first line why it exists (//!)"));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn architecture() -> String {
        fs::read_to_string(root().join("docs/architecture.md")).expect("docs/architecture.md")
    }

    #[test]
    fn only_allowed_arrows() {
        let metadata = metadata().expect("cargo metadata");
        assert_eq!(wrong_arrows(&crate_table(&architecture()), &arrows(&metadata)), [""; 0]);
    }

    #[test]
    fn a_new_arrow_or_a_stale_row_is_found() {
        let table = crate_table("## Crates\n| `a` | x | `b` |\n| `gone` | x | |\n");
        let arrows = [("a".to_owned(), ["b".to_owned(), "c".to_owned()].into()), ("new".to_owned(), BTreeSet::new())];
        assert_eq!(wrong_arrows(&table, &arrows.into()).len(), 3);
    }

    #[test]
    fn every_law_names_a_check_that_exists() {
        assert_eq!(missing_checks(&architecture(), &root()), [""; 0]);
        let stale = "## Laws\n1. x. [xtask/src/tidy.rs: no_such_name_\u{200b}]\n2. y.\n";
        assert_eq!(missing_checks(stale, &root()).len(), 2);
    }

    #[test]
    fn every_crate_opens_with_its_invariants() {
        assert_eq!(missing_invariants(&root()).expect("crates"), [""; 0]);
    }

    #[test]
    fn licences_are_on_the_list() {
        let allowed = allowed_licences(&fs::read_to_string(root().join("deny.toml")).expect("deny.toml"));
        assert_eq!(wrong_licences(&metadata().expect("cargo metadata"), &allowed), [""; 0]);
    }

    #[test]
    fn every_file_says_why_it_exists() {
        assert_eq!(files_without_purpose().expect("git"), [""; 0]);
    }
}
