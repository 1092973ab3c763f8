//! Watching the runtime: its hints at once, and lists of everything as a safety net.
//!
//! With hints a list every half minute finds what a lost hint hid; without them, one every second
//! is the only way to learn that a container ended. A hint about an id that nobody knows asks for a
//! list where it begins something, unless somebody knows it a second later: the start that makes it
//! hears its id after the hint.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::cri::v1;
use parking_lot::Mutex;
use stdx::backoff::Policy;
use stdx::clock::Instant;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};
use tokio::sync::mpsc;

use crate::context::Context;
use crate::pods::Pods;
use crate::runtime::{Error, Happened, Hint, Summary};

const WITH_HINTS: Duration = Duration::from_secs(30);
const WITHOUT: Duration = Duration::from_secs(1);
/// What the runtime has forgotten is looked for at most so often: that is a walk over all processes.
const TIDY: Duration = Duration::from_secs(20);
/// Hints about what nobody knows that are kept; at the bound a list is taken at once.
const UNKNOWN: usize = 1024;
/// Hints that wait to be read; at the bound the stream waits.
const CAPACITY: usize = 256;
const RECONNECT: Policy = Policy { initial: Duration::from_millis(100), max: Duration::from_secs(10) };

/// When the runtime was last listed, and why it cannot be.
#[derive(Clone, Debug, Default)]
pub struct Health {
    pub listed: Option<Instant>,
    pub error: Option<String>,
}

/// A runtime that was not listed for so long is not well.
const STALE: Duration = Duration::from_secs(3 * 60);

impl Health {
    /// Whether the runtime is still being listed.
    pub fn is_recent(&self, now: Instant) -> bool {
        self.listed.is_none_or(|at| now.since(at) < STALE)
    }
}

/// Watches the runtime of one node.
pub struct Relist {
    ctx: Arc<Context>,
    pods: Arc<Pods>,
    /// The API server has shown all pods: what it did not show is an orphan.
    pub all_shown: tokio::sync::watch::Receiver<bool>,
    health: Arc<Mutex<Health>>,
}

enum Event {
    Hint(Hint),
    /// The stream of hints has begun or broken.
    Stream(bool),
    Due,
}

impl Relist {
    /// Begins with the list that was taken at the start.
    pub fn new(
        ctx: Arc<Context>,
        pods: Arc<Pods>,
        all_shown: tokio::sync::watch::Receiver<bool>,
        health: Arc<Mutex<Health>>,
    ) -> Self {
        Self { ctx, pods, all_shown, health }
    }

    /// Watches until the stage stops.
    pub async fn run(mut self, stage: Stage) {
        let (streams, mut stream) = mpsc::channel(4);
        let (hints, mut hint) = mpsc::channel(CAPACITY);
        {
            let (runtime, clock) = (self.ctx.runtime.clone(), self.ctx.clock.clone());
            let stopped = stage.stopped();
            stage.spawn(async move {
                tokio::select! {
                    () = listen(runtime, clock, hints, streams) => {}
                    () = stopped => {}
                }
            });
        }
        let mut stopped = std::pin::pin!(stage.stopped());
        let mut known = BTreeMap::new();
        let (mut streaming, mut due) = (false, self.ctx.clock.now());
        let (mut shown, mut tidied) = (false, None);
        let mut unknown = Unknown::default();
        loop {
            let wake = unknown.due.map_or(due, |at| at.min(due));
            let event = tokio::select! {
                biased;
                () = &mut stopped => return,
                Some(began) = stream.recv() => Event::Stream(began),
                Some(hint) = hint.recv() => Event::Hint(hint),
                changed = self.all_shown.changed(), if !shown => {
                    shown = changed.is_err() || *self.all_shown.borrow();
                    due = self.ctx.clock.now();
                    Event::Due
                }
                () = self.ctx.clock.sleep_until(wake) => Event::Due,
            };
            let now = self.ctx.clock.now();
            match event {
                Event::Hint(hint) => {
                    if self.is_told(&hint) || unknown.keep(hint, now) {
                        continue;
                    }
                    due = now;
                }
                Event::Stream(began) => {
                    streaming = began;
                    // What happened before it began is not told.
                    due = now;
                    continue;
                }
                Event::Due => {}
            }
            let has_forgotten = self.ctx.owners.has_forgotten();
            if !unknown.settle(|hint| self.is_told(hint)) && now < due && !has_forgotten {
                continue;
            }
            self.list(&mut known, shown, &mut tidied).await;
            due = self.ctx.clock.now() + if streaming { WITH_HINTS } else { WITHOUT };
        }
    }

    /// Tells whoever cares for what the hint is about; false when nobody does.
    fn is_told(&self, hint: &Hint) -> bool {
        self.ctx.owners.of(&hint.id).is_some_and(|uid| self.pods.hinted(&uid, hint))
    }

    async fn list(&self, known: &mut BTreeMap<String, Summary>, shown: bool, tidied: &mut Option<Instant>) {
        let (metrics, began) = (&self.ctx.metrics, self.ctx.clock.now());
        if let Some(last) = self.health.lock().listed {
            metrics.relist_interval.took(&[], began.since(last));
        }
        let found = match self.ctx.runtime.list().await {
            Ok(found) => found,
            Err(error) => {
                self.health.lock().error = Some(error.to_string());
                return;
            }
        };
        let now = self.ctx.clock.now();
        *self.health.lock() = Health { listed: Some(now), error: None };
        metrics.relist_duration.took(&[], now.since(began));
        metrics.relist_last_seen.set(&[], self.ctx.clock.wall().as_second() as f64);
        let gone = known.keys().filter(|uid| !found.contains_key(*uid));
        for uid in gone {
            self.pods.hint(uid);
        }
        for (uid, summary) in &found {
            self.ctx.owners.learn_ids(uid, summary.sandboxes.keys().chain(summary.containers.keys()));
            let cared_for = match news(known.get(uid), summary) {
                News::None => self.pods.knows(uid),
                News::Grown(ids) => {
                    let hints = ids.into_iter().map(|id| Hint { id, what: Happened::Started });
                    // Each is told, whoever listens to the first.
                    hints.filter(|hint| !self.pods.hinted(uid, hint)).count() == 0
                }
                News::Changed => self.pods.hint(uid),
            };
            if !cared_for && shown {
                self.pods.orphan(uid, summary);
            }
        }
        if tidied.is_none_or(|at| now.since(at) >= TIDY) {
            self.ctx.runtime.tidy(&found).await;
            *tidied = Some(now);
        }
        *known = found;
    }
}

/// Hints about what nobody knew when they came.
#[derive(Default)]
struct Unknown {
    hints: Vec<Hint>,
    /// When to look whether somebody knows by then, or who is whose was forgotten.
    due: Option<Instant>,
}

impl Unknown {
    /// Keeps a hint for later; false when there are too many.
    fn keep(&mut self, hint: Hint, now: Instant) -> bool {
        // Nobody misses what is gone, and what is about to begin is told once more when it begins.
        if hint.what != Happened::Other {
            self.due.get_or_insert(now + WITHOUT);
            self.hints.push(hint);
        }
        self.hints.len() < UNKNOWN
    }

    /// Tells them once more. True when something has begun that still nobody knows.
    fn settle(&mut self, mut is_told: impl FnMut(&Hint) -> bool) -> bool {
        self.due = None;
        let mut left = std::mem::take(&mut self.hints);
        left.retain(|hint| !is_told(hint));
        left.iter().any(|hint| hint.what == Happened::Started)
    }
}

/// What a list says of a pod beyond the list before.
#[derive(Debug, PartialEq, Eq)]
enum News {
    None,
    /// Only what a start makes: these sandboxes and containers are new, or run by now. Whoever is making them
    /// looks when it has made them.
    Grown(Vec<String>),
    Changed,
}

/// Compares two lists as to one pod.
fn news(before: Option<&Summary>, now: &Summary) -> News {
    let none = Summary::default();
    let before = before.unwrap_or(&none);
    let (created, running) = (v1::ContainerState::ContainerCreated as i32, v1::ContainerState::ContainerRunning as i32);
    let is_gone = before.sandboxes.keys().any(|id| !now.sandboxes.contains_key(id))
        || before.containers.keys().any(|id| !now.containers.contains_key(id));
    let mut grown = Vec::new();
    for (id, ready) in &now.sandboxes {
        match before.sandboxes.get(id) {
            Some(before) if before == ready => {}
            None if *ready => grown.push(id.clone()),
            _ => return News::Changed,
        }
    }
    for (id, state) in &now.containers {
        match before.containers.get(id) {
            Some(before) if before == state => {}
            None if [created, running].contains(state) => grown.push(id.clone()),
            Some(before) if (*before, *state) == (created, running) => grown.push(id.clone()),
            _ => return News::Changed,
        }
    }
    match (is_gone, grown.is_empty()) {
        (true, _) => News::Changed,
        (false, true) => News::None,
        (false, false) => News::Grown(grown),
    }
}

/// Keeps the stream of hints open; tells when it begins and breaks.
async fn listen(
    runtime: Arc<dyn crate::runtime::Runtime>,
    clock: SharedClock,
    hints: mpsc::Sender<Hint>,
    streams: mpsc::Sender<bool>,
) {
    let mut failures = 0;
    loop {
        let begun = clock.now();
        if streams.send(true).await.is_err() {
            return;
        }
        let ended = runtime.hints(hints.clone()).await;
        if streams.send(false).await.is_err() || hints.is_closed() {
            return;
        }
        match ended {
            Err(Error::Unimplemented(_)) => return,
            Err(error) => tracing::debug!(%error, "the runtime's events have ended; asking again"),
            Ok(()) => {}
        }
        failures = if clock.now().since(begun) > RECONNECT.max { 1 } else { failures + 1 };
        clock.sleep(RECONNECT.delay(failures)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `s` a sandbox that is ready, `S` one that is not; `c`, `r`, `e`: a container that is created, runs, ended.
    fn summary(text: &str) -> Summary {
        let mut out = Summary::default();
        for part in text.split_whitespace() {
            let (kind, id) = part.split_at(1);
            let state = match kind {
                "s" | "S" => {
                    out.sandboxes.insert(id.to_owned(), kind == "s");
                    continue;
                }
                "c" => v1::ContainerState::ContainerCreated,
                "r" => v1::ContainerState::ContainerRunning,
                _ => v1::ContainerState::ContainerExited,
            };
            out.containers.insert(id.to_owned(), state as i32);
        }
        out
    }

    #[test]
    fn only_what_begins_for_nobody_asks_for_a_list() {
        let check = |hints: &[(&str, Happened)], known: &str, want: bool| {
            let (mut unknown, mut told) = (Unknown::default(), Vec::new());
            for (id, what) in hints {
                assert!(unknown.keep(Hint { id: (*id).to_owned(), what: *what }, Instant::default()), "{id}");
            }
            let asks = unknown.settle(|hint| {
                let is_known = known.contains(&hint.id);
                told.extend(is_known.then(|| hint.id.clone()));
                is_known
            });
            assert_eq!((asks, unknown.due, unknown.hints.len()), (want, None, 0), "{hints:?} {known}");
            told.join(" ")
        };
        use Happened::{Ended, Other, Started};
        assert_eq!(check(&[("a", Started), ("b", Ended)], "a b", false), "a b");
        assert_eq!(check(&[("a", Started), ("b", Started)], "a", true), "a");
        assert_eq!(check(&[("a", Ended), ("b", Other)], "", false), "");
        let mut unknown = Unknown::default();
        let hint = |what| Hint { id: "a".into(), what };
        assert!(unknown.keep(hint(Other), Instant::default()) && unknown.due.is_none());
        let kept = (0..UNKNOWN).filter(|_| unknown.keep(hint(Started), Instant::default())).count();
        assert_eq!((kept, unknown.due), (UNKNOWN - 1, Some(Instant::default() + WITHOUT)));
    }

    #[test]
    fn what_a_start_makes_is_told_from_what_ends() {
        let check = |before: &str, now: &str, want: Option<&str>| {
            let found = match news(Some(&summary(before)), &summary(now)) {
                News::None => Some(String::new()),
                News::Grown(ids) => Some(ids.join(" ")),
                News::Changed => None,
            };
            assert_eq!(found.as_deref(), want, "{before:?} {now:?}");
        };
        check("s1 r2 e3", "s1 r2 e3", Some(""));
        check("", "s1 c2 r3", Some("1 2 3"));
        check("s1 c2", "s1 r2 c3", Some("2 3"));
        check("s1", "S1", None);
        check("s1 r2", "s1 e2", None);
        check("s1 r2", "s1 c2", None);
        check("s1 r2", "s1", None);
        check("s1 r2", "s4 r2", None);
        check("s1", "s1 e2", None);
        check("", "S1", None);
        assert_eq!(news(None, &summary("s1")), News::Grown(vec!["1".into()]));
        assert_eq!(news(None, &Summary::default()), News::None);
    }
}
