//! Somebody who watches and compares: each revision once, in order, nothing missing, whatever
//! happens to the watch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use client::watch::{Event, Frames};
use client::{Api, Client, Error, Resource, WatchParams};
use machinery::labels::Selector;
use machinery::meta;
use serde_json::Value;
use stdx::clock::ClockExt;
use stdx::{Rng, SharedClock};

use super::recorder::{Commit, Recorder};
use super::trace::Trace;
use super::view;

/// What an observer watches.
#[derive(Clone)]
pub struct Scope {
    pub resource: Resource,
    /// Empty: everything.
    pub labels: String,
    /// `spec.nodeName`, for pods only; empty: any.
    pub node: String,
}

/// Watches until dropped.
pub struct Observer {
    pub scope: Scope,
    pub client: Client,
    pub recorder: Arc<Recorder>,
    pub trace: Arc<Trace>,
    pub clock: SharedClock,
    pub rng: Rng,
    /// How far it has come; 0 before its first list.
    pub reached: Arc<AtomicU64>,
}

/// What a watch has to say about a commit.
type Expected = (u64, &'static str, Arc<Value>);

/// True when the scope holds the object.
fn holds(scope: &Scope, selector: &Selector, object: &Value) -> bool {
    selector.matches(&meta::labels(object))
        && (scope.node.is_empty() || view::text(object, "/spec/nodeName") == scope.node)
}

fn expected(scope: &Scope, selector: &Selector, commit: &Commit) -> Option<Expected> {
    if commit.key.plural != &*scope.resource.plural {
        return None;
    }
    let of = |object: &Option<Arc<Value>>| object.clone().filter(|o| holds(scope, selector, o));
    let (kind, object) = match (of(&commit.before), of(&commit.after)) {
        (None, Some(new)) => ("ADDED", new),
        (Some(_), Some(new)) => ("MODIFIED", new),
        // Leaving the scope, the object is shown as it was, at the revision that took it away.
        (Some(old), None) => ("DELETED", old),
        (None, None) => return None,
    };
    Some((commit.revision, kind, object))
}

/// An object without what a watch adds to it.
fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    object
}

impl Observer {
    fn selector(&self) -> Selector {
        Selector::parse(&self.scope.labels).unwrap_or_else(|_| Selector::everything())
    }

    /// The first commit after `revision` that this observer must be told of.
    pub fn next_after(recorder: &Recorder, scope: &Scope, revision: u64) -> Option<u64> {
        let selector = Selector::parse(&scope.labels).unwrap_or_else(|_| Selector::everything());
        recorder.next(revision, |commit| expected(scope, &selector, commit)).map(|(revision, ..)| revision)
    }

    fn broken(&self, what: std::fmt::Arguments<'_>) {
        let Scope { resource, labels, node } = &self.scope;
        self.trace.broken(format_args!("the watch of {resource} {labels}{node}: {what}"));
    }

    /// Watches, again and again.
    pub async fn run(self) {
        let api = self.client.dynamic(self.scope.resource.clone());
        let mut after: Option<u64> = None;
        loop {
            let is_expired = match self.watch(&api, &mut after).await {
                Ok(()) => false,
                Err(error) => error.is_expired(),
            };
            if is_expired {
                after = None;
            }
            let pause = Duration::from_millis(20 + self.rng.below(400));
            self.clock.sleep(pause).await;
        }
    }

    fn params(&self, after: Option<u64>) -> WatchParams {
        let node = &self.scope.node;
        WatchParams {
            label_selector: self.scope.labels.clone(),
            field_selector: if node.is_empty() { String::new() } else { format!("spec.nodeName={node}") },
            after,
            initial_events: after.is_none(),
            bookmarks: true,
            timeout_seconds: Some(30 + u32::try_from(self.rng.below(600)).unwrap_or_default()),
        }
    }

    async fn watch(&self, api: &Api<Value>, after: &mut Option<u64>) -> Result<(), Error> {
        let mut frames = api.watch_raw(&self.params(*after)).await?;
        let mut at = match *after {
            Some(revision) => revision,
            None => match self.initial(&mut frames).await? {
                Some(revision) => revision,
                None => return Ok(()),
            },
        };
        *after = Some(at);
        self.reached.store(at, Ordering::SeqCst);
        while let Some(event) = frames.next().await {
            at = match event? {
                Event::Added(bytes) => self.change(at, "ADDED", &bytes),
                Event::Modified(bytes) => self.change(at, "MODIFIED", &bytes),
                Event::Deleted(bytes) => self.change(at, "DELETED", &bytes),
                Event::Bookmark(bytes) => self.bookmark(at, &bytes),
                Event::Error(status) => return Err(Error::Api(status)),
            };
            *after = Some(at);
            self.reached.store(at, Ordering::SeqCst);
        }
        Ok(())
    }

    /// The state a watch begins with is that of the revision it names.
    async fn initial(&self, frames: &mut Frames) -> Result<Option<u64>, Error> {
        let mut objects: BTreeMap<(String, String), Value> = BTreeMap::new();
        while let Some(event) = frames.next().await {
            let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap_or_default();
            match event? {
                Event::Added(bytes) => {
                    let object = read(&bytes);
                    let key = (meta::namespace(&object).to_owned(), meta::name(&object).to_owned());
                    if objects.insert(key.clone(), bare(&object)).is_some() {
                        self.broken(format_args!("it began with {key:?} twice"));
                    }
                }
                Event::Bookmark(bytes) => {
                    let mark = read(&bytes);
                    if meta::annotation(&mark, "k8s.io/initial-events-end").is_none() {
                        continue;
                    }
                    let revision = meta::revision(&mark).unwrap_or_default();
                    self.compare(revision, &objects);
                    return Ok(Some(revision));
                }
                Event::Error(status) => return Err(Error::Api(status)),
                Event::Modified(_) | Event::Deleted(_) => {
                    self.broken(format_args!("a change came before the state was complete"))
                }
            }
        }
        Ok(None)
    }

    fn compare(&self, revision: u64, objects: &BTreeMap<(String, String), Value>) {
        let selector = self.selector();
        let wanted: BTreeMap<(String, String), Value> = self
            .recorder
            .state_at(revision, &self.scope.resource.plural)
            .into_iter()
            .filter(|(_, object)| holds(&self.scope, &selector, object))
            .map(|(key, object)| ((key.namespace, key.name), bare(&object)))
            .collect();
        if wanted != *objects {
            let names = |of: &BTreeMap<(String, String), Value>| of.keys().map(|k| k.1.clone()).collect::<Vec<_>>();
            self.broken(format_args!(
                "at {revision} it began with {:?}, stored were {:?}",
                names(objects),
                names(&wanted)
            ));
        }
    }

    fn change(&self, after: u64, kind: &str, bytes: &[u8]) -> u64 {
        let object: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let revision = meta::revision(&object).unwrap_or_default();
        let selector = self.selector();
        let wanted = self.recorder.next(after, |commit| expected(&self.scope, &selector, commit));
        match wanted {
            Some((r, k, o)) if r == revision && k == kind && bare(&o) == bare(&object) => {}
            Some((r, k, o)) => self.broken(format_args!(
                "after {after} came {kind} {} at {revision}, due was {k} {} at {r}\n  came {object}\n  due  {o}",
                meta::name(&object),
                meta::name(&o)
            )),
            None => self.broken(format_args!("after {after} came {kind} at {revision}, nothing was due")),
        }
        revision
    }

    fn bookmark(&self, after: u64, bytes: &[u8]) -> u64 {
        let mark: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let revision = meta::revision(&mark).unwrap_or_default();
        if revision < after {
            self.broken(format_args!("a bookmark at {revision} after {after}"));
        }
        let missed = Self::next_after(&self.recorder, &self.scope, after);
        if let Some(missed) = missed.filter(|m| *m <= revision) {
            self.broken(format_args!("a bookmark at {revision} hides {missed}"));
        }
        revision
    }
}
