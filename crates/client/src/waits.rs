//! The reason is state: what an object waits for, published as a `Wait` while it waits.
//!
//! [`Publisher::publish`] says what should be seen, [`Publisher::withdraw`] that it is over; both
//! return at once. A wait becomes visible only after 100 ms, so a start that goes well publishes
//! none. A task of its own makes the server agree with what was said, and tries again after errors
//! until it does. One Wait per object, layer and code; its name follows from them, so a component
//! that starts again finds and mends what its predecessor left.

use std::collections::{BTreeSet, HashMap, HashSet};
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

impl Entry {
    /// When there is something to do about it; `None` while the server has it as it should be.
    fn due(&self) -> Option<Instant> {
        match self {
            Self::Over => Some(Instant::default()),
            Self::Wanted { wanted, shown: Shown::Yes(shown), .. } if **shown == *wanted => None,
            Self::Wanted { from, .. } => Some(*from),
        }
    }
}

/// What one object is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Whose {
    kind: String,
    namespace: String,
    name: String,
    uid: String,
}

impl Whose {
    fn of(object: &Reference) -> Self {
        let Reference { kind, namespace, name, uid, .. } = object.clone();
        Self { kind, namespace, name, uid }
    }
}

/// Everything that is to be shown or removed, in the order it is due and by object: a component may
/// have thousands, and each step looks at one.
#[derive(Default)]
struct State {
    entries: HashMap<Key, Entry>,
    due: BTreeSet<(Instant, Key)>,
    by_object: HashMap<Whose, BTreeSet<Key>>,
    /// When the server was last asked what it holds: at the start, for what a predecessor left, and
    /// now and then while something is shown, because the server keeps Waits in memory only.
    swept: Option<Instant>,
}

impl State {
    /// The only way entries change: `change` gets the present one and returns what it becomes.
    fn change(&mut self, key: &Key, change: impl FnOnce(Option<Entry>) -> Option<Entry>) {
        let old = self.entries.remove(key);
        if let Some(due) = old.as_ref().and_then(Entry::due) {
            self.due.remove(&(due, key.clone()));
        }
        let before = old.as_ref().and_then(Self::whose);
        let new = change(old);
        let after = new.as_ref().and_then(Self::whose);
        if before != after {
            if let Some(whose) = before
                && let Some(keys) = self.by_object.get_mut(&whose)
            {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_object.remove(&whose);
                }
            }
            if let Some(whose) = after {
                self.by_object.entry(whose).or_default().insert(key.clone());
            }
        }
        let Some(new) = new else { return };
        if let Some(due) = new.due() {
            self.due.insert((due, key.clone()));
        }
        self.entries.insert(key.clone(), new);
    }

    fn whose(entry: &Entry) -> Option<Whose> {
        match entry {
            Entry::Wanted { wanted, .. } => Some(Whose::of(&wanted.object)),
            Entry::Over => None,
        }
    }

    /// True when there is something to do about it now.
    fn withdraw(&mut self, key: &Key) -> bool {
        let mut told = false;
        self.change(key, |entry| match entry? {
            Entry::Wanted { shown: Shown::No, .. } => None,
            Entry::Wanted { .. } => {
                told = true;
                Some(Entry::Over)
            }
            Entry::Over => Some(Entry::Over),
        });
        told
    }
}

struct Shared {
    layer: &'static str,
    /// Where the component runs, when there is one on each node that waits for the same objects.
    node: Option<String>,
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
        Self::begin(client, layer, None, Box::new(is_own), clock, stage)
    }

    /// The same for a component of which each node has one, all of which wait for the same objects: what each waits
    /// on is said to be on its node, and those of other nodes are left alone.
    pub fn start_on_node(client: &Client, layer: &'static str, node: &str, clock: SharedClock, stage: &Stage) -> Self {
        let suffix = on_node("", node);
        let is_own = move |wait: &Value| wait["on"].as_str().is_some_and(|on| on.ends_with(&suffix));
        Self::begin(client, layer, Some(node.to_owned()), Box::new(is_own), clock, stage)
    }

    fn begin(
        client: &Client,
        layer: &'static str,
        node: Option<String>,
        is_own: Box<dyn Fn(&Value) -> bool + Send + Sync>,
        clock: SharedClock,
        stage: &Stage,
    ) -> Self {
        let shared = Shared { layer, node, clock, state: Mutex::new(State::default()), wake: Notify::new() };
        let shared = Arc::new(shared);
        let task = Task { shared: shared.clone(), api: client.dynamic(resource()), is_own };
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
        let key = self.shared.key(object, code);
        let (now, wall) = (self.shared.clock.now(), self.shared.clock.wall());
        let on = match &self.shared.node {
            Some(node) => on_node(&on.into(), node),
            None => on.into(),
        };
        let mut wanted = Wanted { object: object.clone(), code: code.into(), on, text: text.into(), since: wall };
        wanted.object.resource_version = String::new();
        let from = now + VISIBLE_AFTER;
        let mut changed = true;
        let mut state = self.shared.state.lock();
        let is_full = state.entries.len() >= CAPACITY;
        state.change(&key, |entry| match entry {
            Some(Entry::Wanted { wanted: old, from, shown }) => {
                wanted.since = old.since;
                changed = old != wanted;
                Some(Entry::Wanted { wanted, from, shown })
            }
            // The server may still hold the old one.
            Some(Entry::Over) => Some(Entry::Wanted { wanted, from, shown: Shown::Maybe }),
            None if is_full => None,
            None => Some(Entry::Wanted { wanted, from, shown: Shown::No }),
        });
        drop(state);
        if changed {
            self.shared.wake.notify_one();
        }
    }

    /// Says that the wait is over.
    pub fn withdraw(&self, object: &Reference, code: &str) {
        let key = self.shared.key(object, code);
        let changed = self.shared.state.lock().withdraw(&key);
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
        let ours: Vec<Key> = state.by_object.get(&Whose::of(object)).into_iter().flatten().cloned().collect();
        let mut changed = false;
        for key in ours {
            let kept = match state.entries.get(&key) {
                Some(Entry::Wanted { wanted, .. }) => codes.contains(&wanted.code.as_str()),
                _ => true,
            };
            changed |= !kept && state.withdraw(&key);
        }
        drop(state);
        if changed {
            self.shared.wake.notify_one();
        }
    }
}

impl Shared {
    fn key(&self, object: &Reference, code: &str) -> Key {
        key(self.layer, self.node.as_deref(), object, code)
    }
}

fn on_node(on: &str, node: &str) -> String {
    format!("{on} on node {node}")
}

/// The name of a Wait: readable, and one per object, layer, code and, where it is said, node.
fn key(layer: &str, node: Option<&str>, object: &Reference, code: &str) -> Key {
    let node = node.map(|node| format!("\n{node}")).unwrap_or_default();
    let identity = format!("{layer}\n{}\n{}\n{}\n{code}{node}", object.kind, object.name, object.uid);
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
                self.shared.state.lock().change(&key, |entry| match entry? {
                    Entry::Over => None,
                    Entry::Wanted { wanted, from, .. } => Some(Entry::Wanted { wanted, from, shown: Shown::No }),
                });
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
        self.shared.state.lock().change(key, |entry| match entry? {
            Entry::Wanted { wanted, from, .. } => Some(Entry::Wanted { wanted, from, shown: now }),
            Entry::Over => Some(Entry::Over),
        });
    }

    fn choose(&self) -> Act {
        let state = self.shared.state.lock();
        let now = self.shared.clock.now();
        let Some(swept) = state.swept else { return Act::Sweep };
        let next = state.due.first();
        if let Some((due, key)) = next
            && *due <= now
        {
            return match state.entries.get(key) {
                Some(Entry::Wanted { wanted, .. }) => Act::Show(key.clone(), Box::new(wanted.clone())),
                Some(Entry::Over) | None => Act::Remove(key.clone()),
            };
        }
        let next = next.map(|(due, _)| *due);
        // Something is shown as it should be: does the server still have it?
        if state.entries.len() > state.due.len() {
            let again = swept + SWEEP;
            if again <= now {
                return Act::Sweep;
            }
            return Act::Sleep(Some(next.map_or(again, |next| next.min(again))));
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
                state.change(&key, |entry| entry.or(Some(Entry::Over)));
                held.insert(key);
            }
        }
        let lost: Vec<Key> = state.entries.keys().filter(|key| !held.contains(*key)).cloned().collect();
        for key in lost {
            state.change(&key, |entry| match entry? {
                Entry::Wanted { wanted, from, .. } => Some(Entry::Wanted { wanted, from, shown: Shown::No }),
                Entry::Over => Some(Entry::Over),
            });
        }
        state.swept = Some(self.shared.clock.now());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
