//! Sessions in a shell as text: what is typed, and what must be answered.
//!
//! ```text
//! ## A remark.
//! $ kubectl create configmap a
//! configmap/a created
//! $ kubectl create -f - <<E
//! > kind: Namespace
//! > E
//! error: …
//! [exit 1]
//! ```
//!
//! Standard output and standard error are one stream. What differs from run to run is veiled on
//! both sides: `UID`, `TIME`, `AGE`, `RV`, `RAND` (the end of a generated name), `ADDRESS` (of a
//! Service), `NODEPORT`, `TOKEN`, `DIGEST`, `FILE`, `PORT`, `ROOT`; columns stand three spaces apart.
//! With `UPDATE_EXPECT=1` a session is written as it went.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use stdx::ClockExt;
use tokio::process::Command;

use crate::clients::tool;
use crate::cluster::Cluster;

/// How long one command may take.
const LIMIT: Duration = Duration::from_secs(180);

/// A remark, or a command with what it must answer.
enum Block {
    Remark(String),
    Command { typed: Vec<String>, answer: String },
}

fn parse(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    for line in text.lines() {
        match blocks.last_mut() {
            _ if line.starts_with("## ") => blocks.push(Block::Remark(line.to_owned())),
            _ if line.starts_with("$ ") => {
                blocks.push(Block::Command { typed: vec![line[2..].to_owned()], answer: String::new() });
            }
            Some(Block::Command { typed, answer }) if answer.is_empty() && (line == ">" || line.starts_with("> ")) => {
                typed.push(line.get(2..).unwrap_or_default().to_owned());
            }
            Some(Block::Command { answer, .. }) => {
                answer.push_str(line);
                answer.push('\n');
            }
            _ => blocks.push(Block::Remark(line.to_owned())),
        }
    }
    blocks
}

fn render(blocks: &[Block]) -> String {
    let mut text = String::new();
    for block in blocks {
        match block {
            Block::Remark(line) => text.push_str(&format!("{line}\n")),
            Block::Command { typed, answer } => {
                for (index, line) in typed.iter().enumerate() {
                    text.push_str(format!("{} {line}", if index == 0 { '$' } else { '>' }).trim_end());
                    text.push('\n');
                }
                text.push_str(answer);
            }
        }
    }
    text
}

/// Types a session into a shell that has `kubectl`, and compares.
pub async fn play(cluster: &Cluster, path: &Path) -> Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut blocks = parse(&text);
    let bin = cluster.root().join("bin");
    let work = cluster.root().join("work");
    std::fs::create_dir_all(&bin)?;
    std::fs::create_dir_all(&work)?;
    if !bin.join("kubectl").exists() {
        std::os::unix::fs::symlink(tool("kubectl")?, bin.join("kubectl"))?;
    }
    let mut differences = Vec::new();
    for block in &mut blocks {
        let Block::Command { typed, answer } = block else { continue };
        let got = answer_of(cluster, &bin, &work, typed).await?;
        if got != *answer {
            differences.push(format!("$ {}\n--- wanted\n{answer}--- got\n{got}", typed.join("\n> ")));
            *answer = got;
        }
    }
    #[allow(clippy::disallowed_methods, reason = "the usual switch of tests that write down what they see")]
    let update = std::env::var("UPDATE_EXPECT").is_ok_and(|value| value == "1");
    if differences.is_empty() {
        return Ok(());
    }
    if update {
        return std::fs::write(path, render(&blocks)).context("the session");
    }
    bail!("{}:\n{}\nthe server:\n{}", path.display(), differences.join("\n"), cluster.log_tail())
}

async fn answer_of(cluster: &Cluster, bin: &Path, work: &Path, typed: &[String]) -> Result<String> {
    let script = format!("exec 2>&1\n{}", typed.join("\n"));
    let mut command = Command::new("bash");
    command.args(["-c", &script]).current_dir(work).stdin(Stdio::null()).kill_on_drop(true);
    command.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", bin.display()));
    command.env("KUBECONFIG", cluster.kubeconfig()).env("HOME", cluster.root());
    command.env("TERM", "dumb").env("TZ", "UTC").env_remove("KUBE_EDITOR").env_remove("EDITOR");
    // A group of its own, so that what a command started ends with it.
    let child = command.process_group(0).stdout(Stdio::piped()).spawn()?;
    let group = child.id().map(|pid| format!("-{pid}")).unwrap_or_default();
    let ended = cluster.clock.timeout(LIMIT, child.wait_with_output()).await;
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status().await;
    let output = ended.with_context(|| format!("{typed:?} still runs\n{}", cluster.log_tail()))??;
    let root = cluster.root().display().to_string();
    let mut answer = veil(&String::from_utf8_lossy(&output.stdout).replace(&root, "ROOT"));
    if !answer.is_empty() && !answer.ends_with('\n') {
        answer.push('\n');
    }
    if !output.status.success() {
        answer.push_str(&format!("[exit {}]\n", output.status.code().unwrap_or(-1)));
    }
    Ok(answer)
}

/// Replaces what differs from run to run, and the spaces that fill a column.
pub fn veil(text: &str) -> String {
    text.split_inclusive('\n').map(veil_line).collect()
}

fn veil_line(line: &str) -> String {
    let (mut out, mut rest, versioned) = (String::with_capacity(line.len()), line, line.contains("resourceVersion"));
    while let Some(begin) = rest.find(|c: char| c.is_ascii_alphanumeric()) {
        let (before, word) = rest.split_at(begin);
        out.push_str(before);
        let end = word.find(|c: char| !(c.is_ascii_alphanumeric() || "-:._+".contains(c))).unwrap_or(word.len());
        let end = word[..end].trim_end_matches([':', '.']).len();
        let (word, after) = word.split_at(end);
        out.push_str(name_of(word, versioned).as_deref().unwrap_or(word));
        rest = after;
    }
    out.push_str(rest);
    let indented = out.len() - out.trim_start_matches(' ').len();
    let mut columns = out.split_off(indented);
    while columns.contains("    ") {
        columns = columns.replace("    ", "   ");
    }
    let end = if columns.ends_with('\n') { "\n" } else { "" };
    out + columns.trim_end_matches([' ', '\n']) + end
}

/// What a word that differs from run to run is called.
fn name_of(word: &str, versioned: bool) -> Option<String> {
    let shape: String = word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let is_hex = |text: &str| text.chars().all(|c| c.is_ascii_hexdigit());
    let parts: Vec<&str> = word.split('-').collect();
    if let [a, b, c, d, e] = parts.as_slice()
        && [a.len(), b.len(), c.len(), d.len(), e.len()] == [8, 4, 4, 4, 12]
        && is_hex(&parts.concat())
    {
        return Some("UID".into());
    }
    if shape.starts_with("0000-00-00T00:00:00") && shape.ends_with('Z') {
        return Some("TIME".into());
    }
    let age = shape.strip_suffix('s').is_some_and(|number| !number.is_empty() && number.chars().all(|c| c == '0'));
    if age || shape.ends_with("m00s") || shape.ends_with("m0s") {
        return Some("AGE".into());
    }
    if versioned && !word.is_empty() && word.chars().all(|c| c.is_ascii_digit()) {
        return Some("RV".into());
    }
    if let Some(port) = word.strip_prefix("127.0.0.1:") {
        return port.parse::<u16>().is_ok().then(|| "127.0.0.1:PORT".into());
    }
    if word.starts_with("eyJ") && word.len() > 100 {
        return Some("TOKEN".into());
    }
    if word.len() == 64 && is_hex(word) {
        return Some("DIGEST".into());
    }
    if shape.ends_with(":00000") && word.starts_with(|c: char| c.is_ascii_digit()) {
        return Some(format!("{}NODEPORT", &word[..word.len() - 5]));
    }
    if word.starts_with("kubectl-edit-") {
        return Some("FILE".into());
    }
    if let Ok(std::net::IpAddr::V4(ip)) = word.parse()
        && (ip.octets()[0], ip.octets()[1] & 0xf0) == (10, 96)
        && !["10.96.0.0", "10.96.0.1"].contains(&word)
    {
        return Some("ADDRESS".into());
    }
    // A generated end: of letters that spell nothing, behind a hash or after a dash.
    let (front, end) = word.rsplit_once(['-', '.'])?;
    let generated = end.len() == 5 && end.chars().all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c));
    if generated {
        return Some(format!("{front}-RAND"));
    }
    (end.len() == 16 && is_hex(end)).then(|| format!("{front}.RAND"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_written_as_it_was_read() {
        let text = "## Remark.\n\n$ a <<E\n> b\n>\n> E\nout\n\n  more\n[exit 1]\n$ c\n";
        let blocks = parse(text);
        assert_eq!(render(&blocks), text);
        assert!(matches!(&blocks[2], Block::Command { typed, .. } if typed[..] == ["a <<E", "b", "", "E"]));
    }

    #[test]
    fn only_what_differs_is_veiled() {
        for (given, want) in [
            ("uid: 5be3a1c0-1234-4abc-8def-0123456789ab\n", "uid: UID\n"),
            ("at: \"2026-11-29T20:00:00Z\", 2026-11-29T20:00:00.123456Z\n", "at: \"TIME\", TIME\n"),
            ("a     1      12s   x\n", "a   1   AGE   x\n"),
            ("a     1      1s    x\n", "a   1   AGE   x\n"),
            ("  resourceVersion: \"12\"\n  replicas: 12\n", "  resourceVersion: \"RV\"\n  replicas: 12\n"),
            ("pod/web-5c689d88bb-x7k2d created\n", "pod/web-5c689d88bb-RAND created\n"),
            ("web     ClusterIP   10.98.7.6    <none>\n", "web   ClusterIP   ADDRESS   <none>\n"),
            ("  indented: x\n", "  indented: x\n"),
            ("at 2026-11-29T20:00:00Z:\n", "at TIME:\n"),
            ("lb   443:31692/TCP   1s\n", "lb   443:NODEPORT/TCP   AGE\n"),
            ("kubernetes 10.96.0.1\n", "kubernetes 10.96.0.1\n"),
            ("web-app config-maps in-use\n", "web-app config-maps in-use\n"),
            ("a   2m30s   \n", "a   AGE\n"),
        ] {
            assert_eq!(veil(given), want);
        }
    }
}
