//! Which lines are wanted: upstream's verbosity, for all and for single files, changed while the process runs.
//!
//! ```text
//!  verbosity   warnings and errors always; and
//!  0, 1        nothing more
//!  2, 3        information
//!  4, 5        what is for debugging
//!  6 and more  everything
//! ```

use std::sync::Arc;

use parking_lot::RwLock;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Libraries that say too much: of them only warnings are wanted.
const TALKATIVE: [&str; 4] = ["hyper", "h2", "rustls", "tonic"];

/// How much is said. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Verbosity(Arc<RwLock<State>>);

#[derive(Debug, Default)]
struct State {
    all: i32,
    /// Of files whose names fit, the first that does.
    modules: Vec<(String, i32)>,
    /// Parts of traces are wanted.
    traced: bool,
}

impl Verbosity {
    /// That much for all, and so much for single files.
    pub fn new(all: i32, modules: Vec<(String, i32)>) -> Self {
        Self(Arc::new(RwLock::new(State { all, modules, traced: false })))
    }

    /// From now on that much.
    pub fn set(&self, all: i32) {
        self.0.write().all = all;
        // Places that were told that nobody listens ask again.
        tracing::callsite::rebuild_interest_cache();
    }

    /// That much at present.
    pub fn get(&self) -> i32 {
        self.0.read().all
    }

    /// From now on, as the text says.
    ///
    /// # Errors
    /// What is no number, in Go's words.
    pub fn set_text(&self, text: &str) -> Result<(), String> {
        let number = text.parse::<i64>().map_err(|_| format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))?;
        let number =
            i32::try_from(number).map_err(|_| format!("strconv.ParseInt: parsing {text:?}: value out of range"))?;
        self.set(number);
        Ok(())
    }

    /// Whether parts of traces are wanted.
    pub fn trace(&self, traced: bool) {
        self.0.write().traced = traced;
    }

    fn of(&self, file: Option<&str>) -> i32 {
        let state = self.0.read();
        let of_file = |file: &str| state.modules.iter().find(|(pattern, _)| is_meant(pattern, file)).map(|(_, v)| *v);
        // Nothing is compared where nothing is asked for.
        file.filter(|_| !state.modules.is_empty()).and_then(of_file).unwrap_or(state.all)
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        if target == crate::TRACE {
            // What is for all requests is on their lines; what is within them is of traces only.
            return self.0.read().traced || *metadata.level() <= Level::INFO;
        }
        let is_talkative = TALKATIVE.iter().any(|name| target.starts_with(name));
        *metadata.level() <= if is_talkative { LevelFilter::WARN } else { level(self.of(metadata.file())) }
    }
}

fn level(verbosity: i32) -> LevelFilter {
    match verbosity {
        ..=1 => LevelFilter::WARN,
        2..=3 => LevelFilter::INFO,
        4..=5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// The verbosity of a line, as upstream counts.
pub fn verbosity(level: Level) -> i32 {
    match level {
        Level::ERROR | Level::WARN => 0,
        Level::INFO => 2,
        Level::DEBUG => 4,
        Level::TRACE => 6,
    }
}

/// Does the pattern mean the file? Without a slash it is compared with the file's name alone, which for a
/// `mod.rs` is its folder's.
fn is_meant(pattern: &str, file: &str) -> bool {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let subject = if pattern.contains('/') { path } else { path.rsplit('/').next().unwrap_or(path) };
    fits(pattern.as_bytes(), subject.as_bytes())
}

/// `*` is any text, `?` any one letter.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    // Where to go on when what was tried since the last star does not fit: linear in the texts' product.
    let (mut at, mut from, mut star) = (0, 0, None);
    while from < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(p) if *p == b'?' || *p == text[from] => {
                at += 1;
                from += 1;
            }
            _ => {
                let Some((starred, tried)) = star else { return false };
                star = Some((starred, tried + 1));
                (at, from) = (starred + 1, tried + 1);
            }
        }
    }
    pattern[at..].iter().all(|p| *p == b'*')
}

/// Reads `pattern=N,…`.
///
/// # Errors
/// What is not of that form.
pub fn modules(text: &str) -> Result<Vec<(String, i32)>, String> {
    let one = |part: &str| {
        let (pattern, level) = part.split_once('=').unwrap_or_default();
        let level = level.trim().parse::<i32>().ok().filter(|level| *level >= 0);
        level.filter(|_| !pattern.is_empty()).map(|level| (pattern.trim().to_owned(), level))
    };
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts.map(|part| one(part).ok_or_else(|| format!("{part:?} is not of the form pattern=N"))).collect()
}

/// Lets through what is wanted.
pub(crate) struct Filter(pub Verbosity);

impl<S: Subscriber> Layer<S> for Filter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.0.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.0.wants(metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_meant_by_their_names() {
        for (pattern, file, meant) in [
            ("chain", "crates/apiserver/src/chain.rs", true),
            ("ch*n", "crates/apiserver/src/chain.rs", true),
            ("ch?in", "crates/apiserver/src/chain.rs", true),
            ("chain?", "crates/apiserver/src/chain.rs", false),
            ("stats", "crates/kubelet/src/stats/mod.rs", true),
            ("mod", "crates/kubelet/src/stats/mod.rs", false),
            ("*/stats/*", "crates/kubelet/src/stats/disk.rs", true),
            ("disk", "crates/kubelet/src/stats/disk.rs", true),
            ("", "crates/kubelet/src/stats/disk.rs", false),
            ("*a*a*a*a*b", &"a".repeat(2000), false),
        ] {
            assert_eq!(is_meant(pattern, file), meant, "{pattern} {file}");
        }
    }

    #[test]
    fn lists_of_files_are_read() {
        assert_eq!(modules("chain=6, st*=4,"), Ok(vec![("chain".to_owned(), 6), ("st*".to_owned(), 4)]));
        assert_eq!(modules(""), Ok(vec![]));
        for bad in ["chain", "chain=", "=4", "chain=x", "chain=-1"] {
            assert!(modules(bad).is_err(), "{bad}");
        }
        let verbosity = Verbosity::new(2, vec![("chain".to_owned(), 6)]);
        assert_eq!((verbosity.of(Some("a/chain.rs")), verbosity.of(Some("a/b.rs")), verbosity.of(None)), (6, 2, 2));
    }

    #[test]
    fn what_is_no_number_changes_nothing() {
        let verbosity = Verbosity::new(2, Vec::new());
        let why = verbosity.set_text("much").expect_err("refused");
        assert_eq!(why, "strconv.ParseInt: parsing \"much\": invalid syntax");
        assert!(verbosity.set_text("99999999999").expect_err("refused").ends_with("value out of range"));
        assert_eq!(verbosity.get(), 2);
        verbosity.set_text("6").expect("taken");
        assert_eq!((verbosity.get(), level(6), level(-3)), (6, LevelFilter::TRACE, LevelFilter::WARN));
    }
}
