//! Static pods: pods that the node runs because a manifest on it (or behind an URL) says so, whether
//! there is an API server or not.
//!
//! ```text
//!  folder ─ inotify, re-read ─┐
//!                             ├─► set (pure) ─► Pods: one task each, as for every pod
//!  URL ─── fetched ───────────┘                   │
//!                                                 └─► mirror: an object in the API shows each
//! ```
//!
//! A pod of another content is another pod: it has another uid, and begins when the one before it has
//! ended. A manifest that is damaged changes nothing and is told; one that is gone ends its pod.

pub mod folder;
pub mod manifest;
pub mod mirror;
pub mod set;
pub mod url;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use client::events::Type;
use parking_lot::Mutex;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};
use tokio::sync::watch;

use crate::context::blocking;
use crate::pods::Pods;
use crate::report::{Report, Wait};
use folder::Watch;
use manifest::Origin;
use set::{Manifest, Place, Problem, Set};
use url::Url;

/// How often manifests are read again, unless told otherwise.
pub const CHECK: Duration = Duration::from_secs(20);

/// Where manifests are.
#[derive(Clone, Debug)]
pub struct Options {
    /// A folder of manifests, or one.
    pub path: Option<PathBuf>,
    pub url: Option<Url>,
    /// How often the folder is read without being told of a change.
    pub file_check: Duration,
    pub http_check: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { path: None, url: None, file_check: CHECK, http_check: CHECK }
    }
}

/// How often something is read, in Go's words; at least every second, as upstream wants it.
pub fn frequency(text: &str) -> Result<Duration, String> {
    let nanos = machinery::time::read_duration(text)?;
    let found = Duration::from_nanos(u64::try_from(nanos).unwrap_or(0));
    if found < Duration::from_secs(1) { Err(format!("{text} is less than a second")) } else { Ok(found) }
}

/// Reads manifests and keeps the node's pods as they say.
pub struct Sources {
    options: Options,
    node: String,
    pods: Arc<Pods>,
    report: Arc<dyn Report>,
    clock: SharedClock,
    state: Mutex<State>,
    /// Each place was read once: what no manifest describes is nobody's.
    ready: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    set: Set,
    told: Vec<Problem>,
    folder_read: bool,
    url_read: bool,
}

impl Sources {
    /// Nothing is read yet.
    pub fn new(
        options: Options,
        node: &str,
        pods: Arc<Pods>,
        report: Arc<dyn Report>,
        clock: SharedClock,
    ) -> Arc<Self> {
        let state = State { folder_read: options.path.is_none(), url_read: options.url.is_none(), ..State::default() };
        let ready = watch::Sender::new(state.folder_read && state.url_read);
        Arc::new(Self { options, node: node.to_owned(), pods, report, clock, state: Mutex::new(state), ready })
    }

    /// True once every place was read.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Follows the places until the stage stops.
    pub async fn run(self: Arc<Self>, stage: Stage) {
        let stopped = stage.stopped();
        tokio::select! {
            () = stopped => {}
            () = async { tokio::join!(self.follow_folder(), self.follow_url()); } => {}
        }
    }

    async fn follow_folder(&self) {
        let Some(path) = &self.options.path else { return };
        let (mut watch, mut told) = (None, false);
        loop {
            // Watched first: no change is lost in between.
            if watch.is_none() {
                watch = match Watch::on(path) {
                    Ok(watch) => Some(watch),
                    Err(error) => {
                        if !std::mem::replace(&mut told, true) {
                            let path = path.display();
                            tracing::info!(%path, %error, "not told of changes of static pods; reading them now and then");
                        }
                        None
                    }
                };
            }
            self.read_folder(path).await;
            let changed = async {
                match &mut watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = changed => if changed.is_err() {
                    watch = None;
                },
                () = self.clock.sleep(self.options.file_check) => {}
            }
        }
    }

    async fn read_folder(&self, path: &std::path::Path) {
        let (at, node, now) = (path.to_owned(), self.node.clone(), self.clock.wall());
        let read = blocking(move || folder::read(&at, &node, now)).await.and_then(|read| read);
        self.change(|state| match read {
            Ok(manifests) => {
                state.folder_read = true;
                state.set.put(Place::Folder, manifests);
            }
            Err(error) => state.set.fail(Place::Folder, path.display().to_string(), error.to_string()),
        });
    }

    async fn follow_url(&self) {
        let Some(url) = &self.options.url else { return };
        loop {
            let origin = Origin::Url(url.text());
            match url.fetch(&self.clock).await {
                Ok(bytes) => {
                    // An empty answer is an answer: there are no pods.
                    let pods = match bytes.is_empty() {
                        true => Ok(Vec::new()),
                        false => manifest::parse(&bytes, &origin, &self.node, self.clock.wall()),
                    };
                    self.change(|state| {
                        state.url_read = true;
                        state.set.put(Place::Url, vec![Manifest { origin, pods }]);
                    });
                }
                Err(why) => self.change(|state| state.set.fail(Place::Url, origin.to_string(), why)),
            }
            self.clock.sleep(self.options.http_check).await;
        }
    }

    /// Takes something in, and makes the node's pods what is wanted then.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        let (wanted, problems) = state.set.wanted();
        let is_ready = state.folder_read && state.url_read;
        for problem in problems.iter().filter(|p| !state.told.contains(p)) {
            tracing::warn!(manifest = problem.origin, why = problem.why, "a static pod's manifest cannot be used");
            let text = format!("static pod manifest {}: {}", problem.origin, problem.why);
            self.report.node_event(Type::Warning, "InvalidStaticPod", text);
        }
        let wait = |p: &Problem| Wait {
            code: "StaticPod",
            on: format!("static pod manifest {}", p.origin),
            text: p.why.clone(),
        };
        self.report.node_waits_beside("manifests", problems.iter().map(wait).collect());
        state.told = problems;
        drop(state);
        self.pods.set_static(wanted, is_ready);
        self.ready.send_if_modified(|ready| !std::mem::replace(ready, is_ready) && is_ready);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_are_gos_durations() {
        assert_eq!(frequency("20s"), Ok(Duration::from_secs(20)));
        assert_eq!(frequency("1m30s"), Ok(Duration::from_secs(90)));
        for wrong in ["0s", "500ms", "-1s", "20", "x"] {
            assert!(frequency(wrong).is_err(), "{wrong}");
        }
    }
}
