//! Laws of the architecture that can be read off the sources.

use std::fs;
use std::path::{Path, PathBuf};

use crate::tidy::root;

/// Every Rust file below a folder of the repository, without tests' own folders.
pub fn sources(folder: &str) -> Vec<PathBuf> {
    fn walk(folder: &Path, out: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                if !path.ends_with("tests") && !path.ends_with("target") {
                    walk(&path, out);
                }
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
                out.push(path);
            }
        }
    }
    let mut out = Vec::new();
    walk(&root().join(folder), &mut out);
    out.sort();
    out
}

/// A file's code: without its test module and without comments.
pub fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// `path: what` for every file whose code holds one of `words`.
pub fn found(files: &[PathBuf], words: &[&str]) -> Vec<String> {
    let mut out = Vec::new();
    for path in files {
        let code = code(path);
        for word in words.iter().filter(|w| stands_in(&code, w)) {
            out.push(format!("{}: {word}", path.strip_prefix(root()).unwrap_or(path).display()));
        }
    }
    out
}

/// A word is not found within another one, nor as a part of another's path: `volume::storage::` is no
/// `storage::`.
fn stands_in(code: &str, word: &str) -> bool {
    let starts_a_name = word.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].strip_suffix("::").unwrap_or(&code[..at]);
        let inside = |text: &str| text.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        !starts_a_name || !(inside(before) || inside(&code[..at]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_ones_own_is_nobody_elses() {
        let rows = [
            ("use storage::Store;", true),
            ("use ::storage::Store;", true),
            ("x(storage::open())", true),
            ("use crate::volume::storage::Storage;", false),
            ("my_storage::open()", false),
            ("use crate::volume::storage::X; use storage::Y;", true),
        ];
        for (code, want) in rows {
            assert_eq!(stands_in(code, "storage::"), want, "{code}");
        }
        assert!(stands_in("x.sleep(1)", ".sleep("));
    }

    /// Plurals and kinds that a verb might be tempted to name.
    const KINDS: &[&str] =
        &["\"pods\"", "\"Pod\"", "\"deployments\"", "\"services\"", "\"Service\"", "\"nodes\"", "\"namespaces\""];

    #[test]
    fn verbs_know_no_kinds() {
        let files = sources("crates/apiserver/src/verbs");
        assert!(files.len() > 5, "the verbs have moved");
        assert_eq!(found(&files, KINDS), [""; 0]);
    }

    #[test]
    fn kinds_know_no_verbs_no_http_and_no_storage() {
        let files = sources("crates/kinds/src");
        assert!(files.len() > 20, "the kinds have moved");
        assert_eq!(found(&files, &["http::", "hyper::", "tokio::", "async fn"]), [""; 0]);
        // `storage` is also the name of an API group; a crate that is not declared cannot be named.
        let manifest = fs::read_to_string(root().join("crates/kinds/Cargo.toml")).expect("the manifest of the kinds");
        assert!(manifest.contains("machinery.workspace") && !manifest.contains("storage"), "{manifest}");
    }

    #[test]
    fn deciders_are_pure() {
        let names = [
            "admit.rs",
            "choose.rs",
            "core.rs",
            "correlate.rs",
            "deletion.rs",
            "generate.rs",
            "graph.rs",
            "lifecycle.rs",
            "metadata.rs",
            "model.rs",
            "plan.rs",
            "policy.rs",
            "preempt.rs",
            "render.rs",
            "ruleset.rs",
            "threshold.rs",
        ];
        let files: Vec<PathBuf> = sources("crates")
            .into_iter()
            .filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(|n| names.contains(&n)))
            .collect();
        assert!(files.len() > 10, "only {} deciders", files.len());
        let words = [".await", "async fn", "Clock", ".wall()", "clock.now()", "Informer", "std::fs"];
        assert_eq!(found(&files, &words), [""; 0]);
    }

    #[test]
    fn one_write_path() {
        let files: Vec<PathBuf> = sources("crates/apiserver/src")
            .into_iter()
            .filter(|p| !p.components().any(|c| c.as_os_str() == "registry"))
            // It stands around the store and counts what goes by.
            .filter(|p| !p.ends_with("metrics/storage.rs"))
            .collect();
        assert_eq!(found(&files, &["Op::Put", "Op::Delete"]), [""; 0]);
    }

    /// Where other programs are started: the host's own tools, each for one purpose.
    #[test]
    fn processes_are_started_where_it_is_known() {
        let known = [
            "crates/host/",
            "crates/kubelet/src/program.rs",
            "crates/net/src/nft.rs",
            "crates/net/src/iptables.rs",
            // Tests' own network namespaces.
            "crates/namespaces/src/",
            "crates/pintle/src/commands/up.rs",
            "crates/demo/src/",
            "crates/e2e/src/",
            "crates/apiserver/build.rs",
            "crates/pintle/build.rs",
        ];
        let files = found(&sources("crates"), &["Command::new("]);
        let elsewhere: Vec<&String> = files.iter().filter(|f| !known.iter().any(|k| f.starts_with(k))).collect();
        assert!(elsewhere.is_empty(), "{elsewhere:?}");
        assert!(files.len() >= known.len() - 1, "a place is listed that starts nothing: {files:?}");
    }

    #[test]
    fn queues_between_tasks_are_bounded() {
        let files: Vec<PathBuf> = sources("crates").into_iter().filter(|p| !p.ends_with("fake.rs")).collect();
        assert_eq!(found(&files, &["unbounded_channel", "unbounded()"]), [""; 0]);
    }

    /// An error is matched by its variant or reason; its text is for people.
    #[test]
    fn no_error_is_known_by_its_text() {
        let words = [
            "error.to_string().contains",
            "error.to_string().starts_with",
            "e.to_string().contains",
            "error.message.contains",
            "status.message.contains",
            "status.message.starts_with",
        ];
        assert_eq!(found(&sources("crates"), &words), [""; 0]);
    }

    /// One controller, scheduler, proxy or kubelet reads and writes as a client only: even the names
    /// of the server's parts are unknown to it.
    #[test]
    fn components_are_clients() {
        for component in ["controllers", "scheduler", "kubelet", "proxy", "policy", "dns", "explain", "client"] {
            let files = sources(&format!("crates/{component}/src"));
            assert!(!files.is_empty(), "{component} has moved");
            assert_eq!(found(&files, &["apiserver::", "storage::", "InProcess"]), [""; 0]);
        }
    }

    /// Controllers write through one door, which carries identity and causes: elsewhere a client only
    /// reads.
    #[test]
    fn controllers_write_through_one_writer() {
        let writes = [".create(", ".update(", ".update_status(", ".patch(", ".patch_status(", ".delete("];
        let mut out = Vec::new();
        for path in sources("crates/controllers/src").into_iter().filter(|p| !p.ends_with("writer.rs")) {
            let code = code(&path);
            for door in [".api::<", ".dynamic("] {
                let statements = code.split(door).skip(1).map(|rest| rest.split(';').next().unwrap_or_default());
                out.extend(statements.filter(|s| writes.iter().any(|w| s.contains(w))).map(str::to_owned));
            }
        }
        assert_eq!(out, [""; 0]);
    }

    /// In one process the node's components run where no request of the API server can hold them up.
    #[test]
    fn the_node_and_the_stores_writer_have_threads_of_their_own() {
        let wiring = code(&root().join("crates/pintle/src/cluster/run.rs"));
        assert!(wiring.contains("threads(\"pintle-node\")"));
        let mut seen = 0;
        for component in ["kubelet::run(", "proxy::run(", "policy::run(", "dns::run("] {
            for (at, _) in wiring.match_indices(component) {
                let statement = wiring[..at].rsplit(';').next().unwrap_or_default();
                assert!(statement.contains("node.spawn("), "{component} runs among requests");
                seen += 1;
            }
        }
        assert!(seen > 0, "the wiring has moved");
        assert!(
            code(&root().join("crates/storage/src/embedded/mod.rs")).contains(".name(\"store-writer\".into()).spawn(")
        );
    }

    #[test]
    fn every_exception_to_a_lint_says_why() {
        let mut silent = Vec::new();
        for path in sources("crates").into_iter().chain(sources("xtask")) {
            let code = code(&path);
            for exception in code.split("[allow(").skip(1) {
                if !exception.split(")]").next().unwrap_or_default().contains("reason") {
                    silent.push(path.display().to_string());
                }
            }
        }
        assert_eq!(silent, [""; 0]);
    }

    #[test]
    fn time_and_randomness_are_injected() {
        let clippy = fs::read_to_string(root().join("clippy.toml")).expect("clippy.toml");
        for banned in ["std::time::Instant::now", "std::time::SystemTime::now", "tokio::time::sleep", "rand::random"] {
            assert!(clippy.contains(banned), "{banned} is not banned");
        }
    }
}
