//! A whole cluster in one thread, in virtual time, from one seed.
//!
//! ```text
//!   users, crashes, compactions          observers compare what watches say ┐
//!          │                                                                 ▼
//!   controllers ─┐                                              ┌── recorder (history, safety)
//!   scheduler  ──┼─ Link: loses, delays, refuses ─► API server ─┤
//!   kubelets   ──┘                                              └── store in memory
//!
//!   idle::run: when no task can run, the clock moves to the next timer
//! ```
//!
//! After every commit [`safety`] judges what must hold whatever goes wrong; whenever the faults
//! stop and everything has come to rest, [`converged`] judges what must have become of it. The same
//! seed gives the same run to the last byte: in a process whose randomness [`entropy`] has fixed,
//! every task, timer, map and name comes in the same order.

pub mod converged;
pub mod entropy;
pub mod faults;
pub mod idle;
pub mod keys;
pub mod kubelet;
pub mod observer;
pub mod recorder;
pub mod safety;
pub mod trace;
pub mod user;
pub mod view;
pub mod world;

use std::sync::Arc;
use std::time::Duration;

use stdx::clock::{Clock, Instant};

use faults::Rates;
use user::{Act, GENTLE, ROUGH, User};
use world::{Part, World};

/// How much happens in a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    /// Quiet points, each after a stretch of trouble.
    pub phases: u64,
    /// What users do in a stretch.
    pub acts: u64,
    /// Print every line of the trace.
    pub loud: bool,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Over every line of the trace: equal runs have equal hashes.
    pub hash: u64,
    pub lines: u64,
    /// How much virtual time passed.
    pub lasted: Duration,
    /// The rules that were broken; none in a good run.
    pub broken: Vec<String>,
    /// The last lines of the trace.
    pub recent: Vec<String>,
}

/// Nothing but signs of life for so long: the cluster has come to rest. Longer than any back-off
/// and any wait for a cache, so that nothing more is to come.
const REST: Duration = Duration::from_secs(330);
/// By then it must have.
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs a cluster through everything `options` says. Panics in any task are for the caller to catch.
///
/// # Errors
/// When the world cannot be built.
pub fn run(options: Options) -> anyhow::Result<Report> {
    let world = World::new(options.seed, options.loud)?;
    let (clock, trace) = (world.clock.clone(), world.trace.clone());
    idle::run(|idle| async move {
        let script = tokio::spawn(script(world.clone(), options));
        loop {
            idle.reached().await;
            if script.is_finished() || !world.trace.is_clean() {
                break;
            }
            let Some(at) = world.clock.next_timer() else {
                world.trace.broken(format_args!("nothing runs and nothing will"));
                break;
            };
            let now = world.clock.now();
            world.clock.advance(at.since(now));
            let wall = world.clock.wall();
            world.recorder.tell(|safety, _| safety.now = wall);
        }
    })?;
    let (hash, lines) = trace.hash();
    let lasted = clock.now().since(Instant::default());
    Ok(Report { hash, lines, lasted, broken: trace.all_broken(), recent: trace.recent() })
}

/// How a stretch of trouble goes.
struct Mood {
    rates: Rates,
    acts: &'static [Act],
    /// One in so many acts is the death of a part; 0: none.
    deaths: u64,
    /// Seconds between acts, at most.
    pause: u64,
}

fn mood(world: &World, phase: u64) -> Mood {
    // The first stretch goes by without faults: what it breaks is broken for everybody.
    let dice = if phase == 0 { 0 } else { 1 + world.rng.below(5) };
    let pause = [0, 2, 10, 30][usize::try_from(world.rng.below(4)).unwrap_or_default()];
    match dice {
        0 => Mood { rates: Rates::default(), acts: GENTLE, deaths: 0, pause },
        1 => Mood { rates: Rates::LIGHT, acts: GENTLE, deaths: 6, pause },
        2 => Mood { rates: Rates::LIGHT, acts: ROUGH, deaths: 0, pause },
        3 => Mood { rates: Rates::HEAVY, acts: GENTLE, deaths: 0, pause },
        4 => Mood { rates: Rates::HEAVY, acts: ROUGH, deaths: 6, pause },
        _ => Mood { rates: Rates::LIGHT, acts: ROUGH, deaths: 3, pause },
    }
}

async fn script(world: Arc<World>, options: Options) {
    world.start(Part::Server);
    world.sleep(Duration::from_secs(1)).await;
    let user = User::new(world.clone());
    user.prepare().await;
    world.observe();
    world.start_all();
    world.sleep_up_to(Duration::from_secs(30)).await;
    for act in [Act::CreateDeployment, Act::CreateService, Act::CreateDeployment] {
        user.act(act).await;
    }
    for phase in 0..options.phases {
        trouble(&world, &user, phase, options.acts).await;
        rest(&world, &user).await;
        if !world.trace.is_clean() {
            return;
        }
    }
    world.stop().await;
}

async fn trouble(world: &Arc<World>, user: &User, phase: u64, acts: u64) {
    let mood = mood(world, phase);
    *world.network.rates.lock() = mood.rates;
    world.trace.line(format_args!("phase {phase}: {:?}", mood.rates));
    world.recorder.tell(|safety, _| safety.is_calm = mood.rates.slow == 0 && mood.deaths == 0);
    for _ in 0..acts {
        world.sleep_up_to(Duration::from_secs(mood.pause)).await;
        if mood.deaths > 0 && world.rng.below(mood.deaths) == 0 {
            death(world).await;
            continue;
        }
        if mood.rates.slow > 0 && world.rng.below(8) == 0 {
            world.compact().await;
        }
        if mood.deaths > 0 && world.rng.below(10) == 0 {
            world.jump();
        }
        let which = usize::try_from(world.rng.below(mood.acts.len() as u64)).unwrap_or_default();
        user.act(mood.acts[which]).await;
    }
}

/// A part dies; mostly it comes back at once, sometimes after a while, sometimes only when the
/// trouble is over.
async fn death(world: &Arc<World>) {
    let parts = world.parts();
    let part = parts[usize::try_from(world.rng.below(parts.len() as u64)).unwrap_or_default()];
    world.kill(part);
    // What it had sent is done by then, as its successor will see.
    world.sleep(Duration::from_secs(3)).await;
    match world.rng.below(4) {
        0 if part != Part::Server => {
            // Others may take what it leaves, and it may be missed.
            world.recorder.tell(|safety, objects| safety.disturb_all(objects));
            return;
        }
        1 => world.sleep_up_to(Duration::from_secs(20)).await,
        _ => {}
    }
    world.start(part);
}

/// No more faults: everything must come to rest, and be as it was asked to be.
async fn rest(world: &Arc<World>, user: &User) {
    *world.network.rates.lock() = Rates::default();
    world.start_all();
    world.sleep(Duration::from_secs(1)).await;
    user.resume_all().await;
    let begin = world.clock.now();
    world.trace.line(format_args!("rest"));
    loop {
        world.sleep(Duration::from_secs(5)).await;
        let now = world.clock.now();
        if now.since(world.recorder.changed().max(begin)) >= REST {
            break;
        }
        if now.since(begin) >= LIMIT {
            world.trace.broken(format_args!("it does not come to rest"));
            return;
        }
    }
    let objects = world.recorder.objects();
    let rules = converged::judge(&objects).into_iter().chain(world.unseen());
    for rule in rules.chain(user.look(&objects).await) {
        world.trace.broken(format_args!("at rest: {rule}"));
    }
    world.recorder.tell(safety::Safety::settle);
}
