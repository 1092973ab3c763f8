//! Events about objects: a bounded queue in front of a task that correlates and writes.
//!
//! Recording never waits and never fails: at [`CAPACITY`] the event is dropped and counted, as in
//! every Kubernetes component. Two dialects, as each upstream component speaks: `core/v1` (count,
//! source) and `events.k8s.io/v1` (series, reporting controller).

mod correlate;
mod series;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Event as CoreEvent;
use k8s_openapi::api::events::v1::Event as SeriesEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};
use tokio::sync::mpsc;

use crate::causes::Scope;
use crate::client::Client;
use crate::error::Error;
use crate::object::Meta;
use crate::params::Patch;
use crate::resource::Resource;
use correlate::{Correlated, Correlator};
use series::{Series, Step};

/// Events waiting to be written; more are dropped.
pub const CAPACITY: usize = 1000;
/// How often a write is tried when the server cannot be reached.
const TRIES: u32 = 12;
/// How long lies between two tries; the first is shorter, by chance, so that components that lost
/// the same server do not come back together.
const BETWEEN: Duration = Duration::from_secs(10);

/// Normal or Warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    Normal,
    Warning,
}

impl Type {
    /// The word itself.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The object an event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reference {
    pub api_version: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// `spec.containers{web}`.
    pub field_path: String,
}

impl Reference {
    /// From an object's metadata and its resource.
    pub fn of(resource: &Resource, meta: &Meta) -> Self {
        Self {
            api_version: resource.api_version(),
            kind: resource.kind.to_string(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            resource_version: if meta.revision == 0 { String::new() } else { meta.revision.to_string() },
            field_path: String::new(),
        }
    }

    /// From a typed object.
    pub fn to<K: api::Object>(object: &K) -> Self {
        let meta = object.metadata();
        let text = |s: &Option<String>| s.clone().unwrap_or_default();
        Self {
            api_version: K::API_VERSION.into(),
            kind: K::KIND.into(),
            namespace: text(&meta.namespace),
            name: text(&meta.name),
            uid: text(&meta.uid),
            resource_version: text(&meta.resource_version),
            field_path: String::new(),
        }
    }

    /// The same, about one field of the object.
    #[must_use]
    pub fn field(mut self, path: impl Into<String>) -> Self {
        self.field_path = path.into();
        self
    }

    /// Events about objects without a namespace are kept in `default`.
    fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }

    fn object_reference(&self) -> k8s_openapi::api::core::v1::ObjectReference {
        let some = |s: &String| (!s.is_empty()).then(|| s.clone());
        k8s_openapi::api::core::v1::ObjectReference {
            api_version: some(&self.api_version),
            kind: some(&self.kind),
            namespace: some(&self.namespace),
            name: some(&self.name),
            uid: some(&self.uid),
            resource_version: some(&self.resource_version),
            field_path: some(&self.field_path),
        }
    }
}

/// Who reports, and in which dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `core/v1`: `source.component` and `source.host`.
    Core { component: String, host: String },
    /// `events.k8s.io/v1`: `reportingController` and `reportingInstance`.
    Series { controller: String, instance: String },
}

/// An event before it is correlated.
#[derive(Clone, Debug)]
pub struct Event {
    pub regarding: Reference,
    pub kind: Type,
    pub reason: String,
    pub message: String,
    /// Only in the `events.k8s.io` dialect.
    pub action: String,
    pub related: Option<Reference>,
    pub annotations: Vec<(String, String)>,
}

impl Event {
    /// An event with what every event has.
    pub fn new(regarding: Reference, kind: Type, reason: &str, message: impl Into<String>) -> Self {
        Self {
            regarding,
            kind,
            reason: reason.into(),
            message: message.into(),
            action: String::new(),
            related: None,
            annotations: Vec::new(),
        }
    }

    #[must_use]
    pub fn action(mut self, action: &str) -> Self {
        self.action = action.into();
        self
    }

    #[must_use]
    pub fn related(mut self, related: Reference) -> Self {
        self.related = Some(related);
        self
    }
}

/// Records events. Clones share the queue.
#[derive(Clone)]
pub struct Recorder {
    queue: mpsc::Sender<(Event, Option<Scope>)>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    /// Starts the writing task, which ends with the stage.
    pub fn start(client: Client, source: Source, clock: SharedClock, rng: Rng, stage: &Stage) -> Self {
        let (queue, events) = mpsc::channel(CAPACITY);
        let writer = Writer { client, clock, rng };
        let stopped = stage.stopped();
        stage.spawn(async move {
            tokio::select! {
                () = writer.run(source, events) => {}
                () = stopped => {}
            }
        });
        Self { queue, dropped: Arc::default() }
    }

    /// Records that something happened to an object.
    pub fn event(&self, regarding: &Reference, kind: Type, reason: &str, message: impl Into<String>) {
        self.record(Event::new(regarding.clone(), kind, reason, message));
    }

    /// Records an event.
    pub fn record(&self, event: Event) {
        if self.queue.try_send((event, Scope::current())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many events were dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

struct Writer {
    client: Client,
    clock: SharedClock,
    rng: Rng,
}

impl Writer {
    async fn run(&self, source: Source, events: mpsc::Receiver<(Event, Option<Scope>)>) {
        match source {
            Source::Core { component, host } => self.run_core(&component, &host, events).await,
            Source::Series { controller, instance } => self.run_series(&controller, &instance, events).await,
        }
    }

    async fn run_core(&self, component: &str, host: &str, mut events: mpsc::Receiver<(Event, Option<Scope>)>) {
        let mut correlator = Correlator::new(component.to_owned(), host.to_owned());
        while let Some((event, scope)) = events.recv().await {
            let (now, wall) = (self.clock.now(), self.clock.wall());
            let Some(correlated) = correlator.correlate(&event, now, wall) else { continue };
            let work = self.write_core(correlated.clone());
            let written = match scope {
                Some(scope) => scope.enter(work).await,
                None => work.await,
            };
            if let Some(name) = written {
                correlator.written(&correlated, name);
            }
        }
    }

    /// Writes; the name the event has on the server when it is there.
    async fn write_core(&self, mut correlated: Correlated) -> Option<String> {
        let api = self.client.api::<CoreEvent>().namespace(correlated.namespace());
        let mut first = true;
        let mut names = Names::default();
        for _ in 0..TRIES {
            self.between(&mut first).await;
            let result = match &correlated.known {
                Some(name) => match api.patch(name, &Patch::Strategic(correlated.patch())).await {
                    Err(error) if error.is_not_found() => api.create(&correlated.event).await,
                    result => result,
                },
                None => api.create(&correlated.event).await,
            };
            match result {
                Ok(event) => return event.metadata.name,
                Err(error) if is_retryable(&error) => names.lost |= error.is_outcome_unknown(),
                Err(error) if error.is_already_exists() && names.bump(&mut correlated.event.metadata.name) => {
                    first = true;
                }
                Err(error) if error.is_already_exists() => return correlated.event.metadata.name,
                Err(error) => {
                    tracing::debug!(%error, reason = correlated.event.reason, "event not taken");
                    return None;
                }
            }
        }
        None
    }

    async fn run_series(&self, controller: &str, instance: &str, mut events: mpsc::Receiver<(Event, Option<Scope>)>) {
        let mut series = Series::new(controller.to_owned(), instance.to_owned());
        loop {
            let due = series.next_due();
            let received = tokio::select! {
                received = events.recv() => Some(received),
                () = async { match due { Some(at) => self.clock.sleep_until(at).await, None => std::future::pending().await } } => None,
            };
            let (now, wall) = (self.clock.now(), self.clock.wall());
            let (step, scope) = match received {
                None => {
                    for mut step in series.expire(now) {
                        self.write_series(&mut step).await;
                    }
                    continue;
                }
                Some(None) => return,
                Some(Some((event, scope))) => (series.observe(&event, now, wall), scope),
            };
            let Some(mut step) = step else { continue };
            match scope {
                Some(scope) => scope.enter(self.write_series(&mut step)).await,
                None => self.write_series(&mut step).await,
            }
            series.written(&step);
        }
    }

    /// Writes; the event with the name it got when that is another than was planned.
    async fn write_series(&self, step: &mut Step) {
        let mut first = true;
        let mut names = Names::default();
        for _ in 0..TRIES {
            self.between(&mut first).await;
            let event = &step.event;
            let api = self.client.api::<SeriesEvent>().namespace(event.metadata.namespace.clone().unwrap_or_default());
            let name = event.metadata.name.clone().unwrap_or_default();
            let result = if step.is_known {
                let patch = json!({"series": event.series, "note": event.note});
                match api.patch(&name, &Patch::Strategic(patch)).await {
                    Err(error) if error.is_not_found() => api.create(event).await,
                    result => result,
                }
            } else {
                api.create(event).await
            };
            match result {
                Ok(_) => return,
                Err(error) if is_retryable(&error) => names.lost |= error.is_outcome_unknown(),
                Err(error) if error.is_already_exists() && names.bump(&mut step.event.metadata.name) => {
                    first = true;
                }
                Err(error) => {
                    tracing::debug!(%error, reason = step.event.reason, "event not taken");
                    return;
                }
            }
        }
    }

    async fn between(&self, first: &mut bool) {
        if std::mem::take(first) {
            return;
        }
        self.clock.sleep(BETWEEN.mul_f64(0.5 + self.rng.unit() / 2.0)).await;
    }
}

/// Names end in the time of the event; two of one instant get different ones.
#[derive(Default)]
struct Names {
    /// A try whose outcome is unknown was made: a name that is taken may be our own.
    lost: bool,
}

impl Names {
    /// Moves on to the next name; false when the present one may be ours already.
    fn bump(&self, name: &mut Option<String>) -> bool {
        let parts = name.as_deref().and_then(|n| n.rsplit_once('.'));
        let next = parts.and_then(|(base, hex)| {
            let nanos = u64::from_str_radix(hex, 16).ok()?.wrapping_add(1);
            Some(format!("{base}.{nanos:x}"))
        });
        if self.lost || next.is_none() {
            return false;
        }
        *name = next;
        true
    }
}

/// What the server refused stays refused; what it never saw is tried again.
fn is_retryable(error: &Error) -> bool {
    match error {
        Error::Transport(transport::Error::Invalid(_)) | Error::Invalid(_) | Error::Decode(_) => false,
        Error::Transport(_) | Error::Interrupted(_) => true,
        Error::Api(status) => matches!(status.code, 429 | 503),
    }
}

fn event_meta(regarding: &Reference, wall: jiff::Timestamp, annotations: &[(String, String)]) -> ObjectMeta {
    let nanos = u64::try_from(wall.as_nanosecond()).unwrap_or(0);
    ObjectMeta {
        name: Some(format!("{}.{nanos:x}", regarding.name)),
        namespace: Some(regarding.event_namespace().to_owned()),
        annotations: (!annotations.is_empty()).then(|| annotations.iter().cloned().collect()),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests;
