//! Gathers the texts that `kubectl explain` shows: what each type and field of the API is for. They are
//! the doc comments of `k8s-openapi`'s sources, which cargo has on disk for the types we use anyway; they
//! are packed into the binary and never committed.
//!
//! `src/openapi/texts.rs` unpacks what is written here: one record a type, ended by `\x01`, with
//! the parts `definition, text, field, text, field, text, …` between `\0`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

#[allow(clippy::disallowed_methods, reason = "cargo speaks to build scripts through the environment")]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../Cargo.lock");
    let env = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let mut records = Vec::new();
    gather(&sources(&env("CARGO"), &env("TARGET")), &mut records);
    assert!(records.len() > 500, "only {} types have texts: k8s-openapi has changed its form", records.len());
    // Versions of one type stand together: they compress to little more than one of them.
    records.sort_by(|(a, _), (b, _)| (a.rsplit('.').next(), a).cmp(&(b.rsplit('.').next(), b)));
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    for (_, record) in records {
        packed.write_all(record.as_bytes()).expect("memory takes it");
    }
    let out = PathBuf::from(env("OUT_DIR")).join("texts.z");
    fs::write(out, packed.finish().expect("memory takes it")).expect("cargo's folder takes it");
}

/// The folder of the one version of Kubernetes that `k8s-openapi` is built for. Cargo itself is asked,
/// which knows registries, vendored folders and patches, and needs no network.
fn sources(cargo: &str, target: &str) -> PathBuf {
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--offline", "--frozen", "--filter-platform", target])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let list = |pointer: &str| metadata.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let package = list("/packages").find(|p| p["name"] == "k8s-openapi").expect("k8s-openapi is a dependency");
    let node = list("/resolve/nodes").find(|n| n["id"] == package["id"]).expect("every package is resolved");
    let features = node["features"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let version = features.into_iter().find(|f| f.starts_with("v1_")).expect("a version is chosen by a feature");
    let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
    manifest.parent().expect("a folder").join("src").join(version)
}

fn gather(folder: &Path, out: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            gather(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.extend(record(&fs::read_to_string(&path).expect("a source file")));
        }
    }
}

/// The record of the type a file declares; `None` for a file that declares none.
fn record(source: &str) -> Option<(String, String)> {
    let definition = source.lines().next()?.strip_prefix("// Generated from definition ")?;
    // What follows the declaration is code.
    let declaration = source.split("\nimpl").next().unwrap_or_default();
    let mut parts = vec![definition.to_owned()];
    let mut comment = Vec::new();
    for line in declaration.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push(text.strip_prefix(' ').unwrap_or(text));
        } else if line.starts_with("pub struct ") || line.starts_with("pub enum ") {
            parts.push(plain(&comment));
            comment.clear();
        } else if let Some((field, _)) = line.strip_prefix("pub ").and_then(|l| l.split_once(": ")) {
            let text = plain(&comment);
            comment.clear();
            if let Some(name) = json_name(source, field.trim_start_matches("r#")).filter(|_| !text.is_empty()) {
                parts.extend([name.to_owned(), text]);
            }
        } else if !line.starts_with("#[") {
            comment.clear();
        }
    }
    (parts.len() > 1).then(|| (definition.to_owned(), parts.join("\0") + "\x01"))
}

/// The name of a field in JSON, as the code that reads it knows it: `"envFrom" => Field::Key_env_from`.
fn json_name<'s>(source: &'s str, field: &str) -> Option<&'s str> {
    let end = source.find(&format!("\" => Field::Key_{field},"))?;
    source[..end].rsplit('"').next()
}

/// A comment as the text it was made from: without the marks that keep it from being read as Markdown.
fn plain(comment: &[&str]) -> String {
    let text = comment.join("\n");
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let escapes = letter == '\\' && letters.peek().is_some_and(|next| "<>[]`*_".contains(*next));
        if !escapes {
            out.push(letter);
        }
    }
    out
}
