//! Simulated clusters, one process a seed: `SEED=7 cargo test -p e2e --test simulation` repeats the
//! seventh with every line of its trace, `SEEDS=500` runs so many, from `FIRST` on.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;

use e2e::simulation::{self, Options, Report, entropy};

/// Seeds that every run of the tests goes through.
const SEEDS: u64 = 20;
/// Set for the processes that run one seed each.
const CHILD: &str = "PINTLE_SIMULATION";

#[allow(clippy::disallowed_methods, reason = "this test is a program, and these are its flags")]
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What panicked in this process: servers and controllers survive it, a simulation does not.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// What was logged as an error: a state that must not be.
struct Errors;

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Errors {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!(" {}={value:?}", field.name()));
            }
        }
        if *event.metadata().level() == tracing::Level::ERROR {
            let mut text = Text(format!("logged by {}:", event.metadata().target()));
            event.record(&mut text);
            PANICS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(text.0);
        }
    }
}

/// The body of a process for one seed; does nothing in the process that runs the tests.
#[test]
fn one_seed() {
    let Some(seed) = variable(CHILD) else { return };
    entropy::fix(seed);
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::force_capture();
        PANICS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(format!("{panic}\n{backtrace}"));
    }));
    use tracing_subscriber::layer::SubscriberExt;
    let subscriber = tracing_subscriber::registry().with(Errors.with_filter(LevelFilter::ERROR));
    tracing::subscriber::set_global_default(subscriber).expect("the first");
    let (phases, acts) = (variable("PHASES").unwrap_or(3), variable("ACTS").unwrap_or(12));
    let options = Options { seed, phases, acts, loud: variable("LOUD").is_some() };
    // A thread of its own: the order of its maps does not depend on what ran before.
    let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(move || simulation::run(options));
    let outcome = thread.expect("a thread").join();
    let mut report = match outcome {
        Ok(run) => run.expect("the world can be built"),
        Err(_) => Report { hash: 0, lines: 0, lasted: Default::default(), broken: Vec::new(), recent: Vec::new() },
    };
    report.broken.extend(PANICS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).drain(..));
    if report.broken.is_empty() {
        println!("hash {:016x} of {} lines in {:?}", report.hash, report.lines, report.lasted);
        return;
    }
    for line in &report.recent {
        println!("{}", line.get(..400).unwrap_or(line));
    }
    for what in &report.broken {
        println!("BROKEN {what}");
    }
    std::process::exit(1);
}

/// Runs a seed in a process of its own; what it printed, and whether it went well.
fn run(seed: u64, loud: bool) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["one_seed", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, seed.to_string()).stdin(Stdio::null());
    if loud {
        command.env("LOUD", "1").stderr(Stdio::inherit());
    }
    let output = command.output().expect("a process");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn hash(output: &str) -> Option<&str> {
    output.lines().find_map(|line| line.split("hash ").nth(1))
}

#[test]
fn seeds_run_clean() {
    if variable(CHILD).is_some() {
        return;
    }
    if let Some(seed) = variable("SEED") {
        let (good, output) = run(seed, true);
        assert!(good, "{output}");
        return;
    }
    let first = variable("FIRST").unwrap_or(1);
    let seeds: Vec<u64> = (first..first + variable("SEEDS").unwrap_or(SEEDS)).collect();
    let next = Mutex::new(seeds.into_iter());
    let failed = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some(seed) = next.lock().expect("no panic").next() else { return };
                    let (good, output) = run(seed, false);
                    if !good {
                        failed.lock().expect("no panic").insert(seed, output);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic");
    for (seed, output) in &failed {
        let tail: Vec<&str> = output.lines().rev().take(40).collect();
        println!("SEED={seed} cargo test -p e2e --test simulation");
        tail.iter().rev().for_each(|line| println!("    {line}"));
    }
    assert!(failed.is_empty(), "seeds {:?} failed", failed.keys());
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    if variable(CHILD).is_some() || variable("SEED").is_some() {
        return;
    }
    let (first, second) = (run(3, false), run(3, false));
    assert!(hash(&first.1).is_some(), "{}", first.1);
    assert_eq!(hash(&first.1), hash(&second.1));
}
