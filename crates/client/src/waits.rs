//! The reason is state: what an object waits for, published as a `Wait` while it waits.
//!
//! [`Publisher::publish`] says what should be seen, [`Publisher::withdraw`] that it is over; both
//! return at once. A wait becomes visible only after 100 ms, so a start that goes well publishes
//! none. A task of its own makes the server agree with what was said, and tries again after errors
//! until it does. One Wait per object, layer and code; its name follows from them, so a component
//! that starts again finds and mends what its predecessor left.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::backoff::Policy;
use stdx::clock::Instant;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};
use tokio::sync::Notify;

use crate::api::Api;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::events::Reference;
use crate::object::Key;
use crate::params::{DeleteParams, ListParams};
use crate::resource::Resource;

/// Waits shorter than this are nobody's concern.
pub const VISIBLE_AFTER: Duration = Duration::from_millis(100);
/// Waits a component may have at a time; more are not published.
pub const CAPACITY: usize = 20_000;
/// How often the server is asked whether it still holds what is shown.
const SWEEP: Duration = Duration::from_secs(60);
const RETRY: Policy = Policy { initial: Duration::from_millis(200), max: Duration::from_secs(30) };

/// The resource of Waits.
pub fn resource() -> Resource {
    Resource::new("explain.pintle.dev", "v1alpha1", "waits", "Wait", true)
}

/// What a publisher is told to show.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    object: Reference,
    code: String,
    on: String,
    text: String,
    since: Timestamp,
}

/// What the server has of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    No,
    /// A write was begun; its outcome is not known.
    Maybe,
    Yes(Box<Wanted>),
}

#[allow(clippy::large_enum_variant, reason = "entries that are over live for one request only")]
enum Entry {
    /// To be shown from this time on.
    Wanted { wanted: Wanted, from: Instant, shown: Shown },
    /// To be removed from the server.
    Over,
}

struct State {
    entries: HashMap<Key, Entry>,
    /// When the server was last asked what it holds: at the start, for what a predecessor left, and
    /// now and then while something is shown, because the server keeps Waits in memory only.
    swept: Option<Instant>,
}

struct Shared {
    layer: &'static str,
    clock: SharedClock,
    state: Mutex<State>,
    wake: Notify,
}

/// Publishes what one component's objects wait for. Clones share it.
#[derive(Clone)]
pub struct Publisher {
    shared: Arc<Shared>,
}

impl Publisher {
    /// Starts the publishing task, which ends with the stage. `scope` selects which Waits of this
    /// layer are this component's own (a kubelet owns those of its node's pods only): Waits for
    /// which it is false are left alone.
    pub fn start(
        client: &Client,
        layer: &'static str,
        is_own: impl Fn(&Value) -> bool + Send + Sync + 'static,
        clock: SharedClock,
        stage: &Stage,
    ) -> Self {
        let state = State { entries: HashMap::new(), swept: None };
        let shared = Arc::new(Shared { layer, clock, state: Mutex::new(state), wake: Notify::new() });
        let task = Task { shared: shared.clone(), api: client.dynamic(resource()), is_own: Box::new(is_own) };
        let stopped = stage.stopped();
        stage.spawn(async move {
            tokio::select! {
                () = task.run() => {}
                () = stopped => {}
            }
        });
        Self { shared }
    }

    /// Says that `object` waits on `on`. Saying it again changes on and text, not since when.
    pub fn publish(&self, object: &Reference, code: &str, on: impl Into<String>, text: impl Into<String>) {
        let key = key(self.shared.layer, object, code);
        let (now, wall) = (self.shared.clock.now(), self.shared.clock.wall());
        let mut wanted =
            Wanted { object: object.clone(), code: code.into(), on: on.into(), text: text.into(), since: wall };
        wanted.object.resource_version = String::new();
        let mut state = self.shared.state.lock();
        let is_full = state.entries.len() >= CAPACITY;
        match state.entries.get_mut(&key) {
            Some(Entry::Wanted { wanted: old, .. }) => {
                wanted.since = old.since;
                if *old == wanted {
                    return;
                }
                *old = wanted;
            }
            // The server may still hold the old one.
            Some(entry @ Entry::Over) => {
                *entry = Entry::Wanted { wanted, from: now + VISIBLE_AFTER, shown: Shown::Maybe };
            }
            None if is_full => return,
            None => {
                let entry = Entry::Wanted { wanted, from: now + VISIBLE_AFTER, shown: Shown::No };
                state.entries.insert(key, entry);
            }
        }
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Says that the wait is over.
    pub fn withdraw(&self, object: &Reference, code: &str) {
        let key = key(self.shared.layer, object, code);
        let mut state = self.shared.state.lock();
        let changed = withdraw(&mut state.entries, &key);
        drop(state);
        if changed {
            self.shared.wake.notify_one();
        }
    }

    /// Says that the object waits for nothing any more, or is gone.
    pub fn withdraw_all(&self, object: &Reference) {
        self.keep_only(object, &[]);
    }

    /// Says that the object waits for nothing but these codes.
    pub fn keep_only(&self, object: &Reference, codes: &[&str]) {
        let mut state = self.shared.state.lock();
        let ours: Vec<Key> = state
            .entries
            .iter()
            .filter_map(|(key, entry)| match entry {
                Entry::Wanted { wanted, .. } if is_same(&wanted.object, object) => {
                    (!codes.contains(&wanted.code.as_str())).then(|| key.clone())
                }
                _ => None,
            })
            .collect();
        let mut changed = false;
        for key in ours {
            changed |= withdraw(&mut state.entries, &key);
        }
        drop(state);
        if changed {
            self.shared.wake.notify_one();
        }
    }
}

fn is_same(a: &Reference, b: &Reference) -> bool {
    a.kind == b.kind && a.namespace == b.namespace && a.name == b.name && a.uid == b.uid
}

fn withdraw(entries: &mut HashMap<Key, Entry>, key: &Key) -> bool {
    match entries.get_mut(key) {
        Some(Entry::Wanted { shown: Shown::No, .. }) => {
            entries.remove(key);
            false
        }
        Some(entry @ Entry::Wanted { .. }) => {
            *entry = Entry::Over;
            true
        }
        Some(Entry::Over) | None => false,
    }
}

/// The name of a Wait: readable, and one per object, layer and code.
fn key(layer: &str, object: &Reference, code: &str) -> Key {
    let identity = format!("{layer}\n{}\n{}\n{}\n{code}", object.kind, object.name, object.uid);
    // FNV-1a, 64 bits.
    let hash = identity.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let cut = object.name.len().min(200);
    let name = object.name.get(..cut).unwrap_or("object").trim_end_matches(['.', '-']);
    let namespace = if object.namespace.is_empty() { "default" } else { &object.namespace };
    Key::new(namespace, format!("{name}.{hash:016x}"))
}

fn render(layer: &str, key: &Key, wanted: &Wanted) -> Value {
    json!({
        "kind": "Wait", "apiVersion": "explain.pintle.dev/v1alpha1",
        "metadata": {"name": key.name, "namespace": key.namespace},
        "layer": layer, "code": wanted.code, "on": wanted.on, "text": wanted.text,
        "since": machinery::time::rfc3339(wanted.since),
        "object": {
            "kind": wanted.object.kind, "namespace": wanted.object.namespace,
            "name": wanted.object.name, "uid": wanted.object.uid,
        },
    })
}

/// What the task does next.
enum Act {
    Sweep,
    Show(Key, Box<Wanted>),
    Remove(Key),
    Sleep(Option<Instant>),
}

struct Task {
    shared: Arc<Shared>,
    api: Api<Value>,
    is_own: Box<dyn Fn(&Value) -> bool + Send + Sync>,
}

impl Task {
    async fn run(&self) {
        let mut failures = 0;
        loop {
            match self.step().await {
                Ok(()) => failures = 0,
                Err(error) => {
                    failures += 1;
                    tracing::debug!(layer = self.shared.layer, %error, "waits not published; trying again");
                    self.shared.clock.sleep(RETRY.delay(failures)).await;
                }
            }
        }
    }

    async fn step(&self) -> Result<()> {
        let woken = self.shared.wake.notified();
        match self.choose() {
            Act::Sweep => self.sweep().await?,
            Act::Show(key, wanted) => {
                self.mark(&key, Shown::Maybe);
                match self.show(&key, &wanted).await {
                    // One that the server will never take must not hold up the others.
                    Err(error) if error.is_invalid() => {
                        tracing::warn!(layer = self.shared.layer, %key, %error, "a wait is refused by the server");
                    }
                    shown => shown?,
                }
                self.mark(&key, Shown::Yes(wanted));
            }
            Act::Remove(key) => {
                let api = self.api.clone().namespace(&key.namespace);
                match api.delete(&key.name, &DeleteParams::default()).await {
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => {}
                }
                let mut state = self.shared.state.lock();
                if let Some(Entry::Over) = state.entries.get(&key) {
                    state.entries.remove(&key);
                } else if let Some(Entry::Wanted { shown, .. }) = state.entries.get_mut(&key) {
                    *shown = Shown::No;
                }
            }
            Act::Sleep(Some(until)) => tokio::select! {
                () = woken => {}
                () = self.shared.clock.sleep_until(until) => {}
            },
            Act::Sleep(None) => woken.await,
        }
        Ok(())
    }

    /// Notes what the server has of an entry, unless it was withdrawn meanwhile.
    fn mark(&self, key: &Key, now: Shown) {
        let mut state = self.shared.state.lock();
        if let Some(Entry::Wanted { shown, .. }) = state.entries.get_mut(key) {
            *shown = now;
        }
    }

    fn choose(&self) -> Act {
        let state = self.shared.state.lock();
        let now = self.shared.clock.now();
        let Some(swept) = state.swept else { return Act::Sweep };
        let mut next: Option<Instant> = None;
        for (key, entry) in &state.entries {
            match entry {
                Entry::Over => return Act::Remove(key.clone()),
                Entry::Wanted { wanted, shown: Shown::Yes(shown), .. } if **shown == *wanted => {
                    let again = swept + SWEEP;
                    if again <= now {
                        return Act::Sweep;
                    }
                    next = Some(next.map_or(again, |n| n.min(again)));
                }
                Entry::Wanted { wanted, from, .. } if *from <= now => {
                    return Act::Show(key.clone(), Box::new(wanted.clone()));
                }
                Entry::Wanted { from, .. } => next = Some(next.map_or(*from, |n| n.min(*from))),
            }
        }
        Act::Sleep(next)
    }

    async fn show(&self, key: &Key, wanted: &Wanted) -> Result<()> {
        let api = self.api.clone().namespace(&key.namespace);
        let mut object = render(self.shared.layer, key, wanted);
        match api.create(&object).await {
            Err(error) if error.is_already_exists() => {}
            // The object's namespace is going or gone: there is nobody left to tell.
            Err(error) if error.is_not_found() || error.is_forbidden() && error.is_namespace_terminating() => {
                return Ok(());
            }
            result => return result.map(drop),
        }
        let current = api.get(&key.name).await?;
        if let Some(revision) = current.pointer("/metadata/resourceVersion") {
            object["metadata"]["resourceVersion"] = revision.clone();
        }
        api.update(&object).await.map(drop)
    }

    /// Compares with what the server holds: what a predecessor left goes, what got lost is shown anew.
    async fn sweep(&self) -> Result<(), Error> {
        let items = match self.api.list_all(&ListParams::all()).await {
            Ok(list) => list.items,
            // A server that does not serve Waits holds none.
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error),
        };
        let mut held = HashSet::new();
        let mut state = self.shared.state.lock();
        for wait in items {
            let ours = wait.get("layer").and_then(Value::as_str) == Some(self.shared.layer) && (self.is_own)(&wait);
            let text = |pointer: &str| wait.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            let key = Key::new(text("/metadata/namespace"), text("/metadata/name"));
            if ours {
                held.insert(key.clone());
                state.entries.entry(key).or_insert(Entry::Over);
            }
        }
        for (key, entry) in &mut state.entries {
            if let Entry::Wanted { shown, .. } = entry {
                if !held.contains(key) {
                    *shown = Shown::No;
                }
            }
        }
        state.swept = Some(self.shared.clock.now());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
