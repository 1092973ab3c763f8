//! APIs that other servers answer for: an APIService names a group, a version and the Service of the server
//! that answers; requests for it are authenticated and authorized here and passed on there.
//!
//! ```text
//!  APIService ─► Remote ─► availability.rs: is it there? ─► condition Available ─┐
//!     │            ├─────► documents.rs: what does it serve? ─► discovery, OpenAPI │
//!     │            └─────► proxy.rs: requests, as long as it is available  ◄───────┘
//!     └─ without a Service: registration.rs, one for each version this server answers itself
//! ```
//!
//! Each server that is asked has tasks of its own, and clients get what was last fetched: one that is dead,
//! slow or lying costs its own requests and nobody else's.
//!
//! # Invariants
//!
//! * Who may not is refused before anything is passed on. [tests/aggregation.rs: who_may_not_is_refused_here]
//! * A server that is dead, slow or lying breaks nothing. [tests/aggregation.rs:
//!   what_is_dead_slows_nothing_and_is_stale; tests/aggregation.rs: lies_cost_a_bounded_amount]

mod availability;
mod discovered;
mod documents;
mod openapi_v2;
mod openapi_v3;
pub mod priorities;
pub mod proxy;
mod registration;
pub mod remote;
mod resolve;
pub mod unavailable;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use kinds::api_service;
use machinery::labels::Lookup as _;
use parking_lot::{Mutex, RwLock};
use rustls::client::ResolvesClientCert;
use stdx::ClockExt;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::availability::Condition;
pub use self::openapi_v2::{Part, add};
use self::remote::Remote;
use crate::bootstrap;
use crate::cacher::{CachedObject, WatchItem, WatchOptions, Watcher, What};
use crate::discovery::Elsewhere;
use crate::objects::Resource;
use crate::openapi::Foreign;
use crate::request::RequestInfo;
use crate::server::ApiServer;

const API_SERVICES: Resource = Resource { group: api_service::GROUP, plural: "apiservices" };
const SERVICES: Resource = Resource { group: "", plural: "services" };
const SLICES: Resource = Resource { group: "discovery.k8s.io", plural: "endpointslices" };
/// The label that says whose endpoints a slice has.
const OF_SERVICE: &str = "kubernetes.io/service-name";
/// After a watch has ended.
const PAUSE: Duration = Duration::from_millis(100);

/// How other servers are reached.
#[derive(Clone, Default)]
pub struct Options {
    /// What this server shows them, so that they believe whom it speaks for.
    pub identity: Option<Arc<dyn ResolvesClientCert>>,
    /// Dials endpoints of a Service and not its address, which takes a service proxy on this host.
    pub to_endpoints: bool,
}

type Remotes = HashMap<(String, String), Arc<Remote>>;

/// The APIs that others answer for.
pub struct Aggregation {
    options: Options,
    remotes: RwLock<Arc<Remotes>>,
    /// What was fetched of each, by the name of its APIService.
    shown: Mutex<BTreeMap<String, Shown>>,
    /// Told when the versions that this server answers for itself have changed.
    locals: Notify,
    unavailable: unavailable::Unavailable,
}

/// What clients are shown of an API.
#[derive(Clone)]
struct Shown {
    discovery: Arc<Elsewhere>,
    documents: Arc<Foreign>,
}

impl Aggregation {
    /// Of a server that has not looked yet.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            remotes: RwLock::default(),
            shown: Mutex::default(),
            locals: Notify::new(),
            unavailable: Default::default(),
        }
    }

    /// Who answers for a version of a group, when it is another.
    pub fn find(&self, group: &str, version: &str) -> Option<Arc<Remote>> {
        let remotes = self.remotes.read();
        if remotes.is_empty() {
            return None;
        }
        remotes.get(&(group.to_owned(), version.to_owned())).cloned()
    }

    /// Who answers a request, when it is another: for objects, for the list of its resources, and for its
    /// document of OpenAPI v3.
    pub fn answering(&self, info: &RequestInfo) -> Option<Arc<Remote>> {
        if self.remotes.read().is_empty() {
            return None;
        }
        if info.is_resource {
            return self.find(&info.group, &info.version);
        }
        let path = info.path.trim_matches('/');
        let (path, is_document) = match path.strip_prefix("openapi/v3/") {
            Some(path) => (path, true),
            None => (path, false),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let remote = match parts.as_slice() {
            ["api", version] => self.find("", version),
            ["apis", group, version] => self.find(group, version),
            _ => None,
        }?;
        // A document that is made of another is had here.
        (!is_document || self.is_document_elsewhere(&remote.name)).then_some(remote)
    }

    fn is_document_elsewhere(&self, name: &str) -> bool {
        self.shown.lock().get(name).is_some_and(|shown| shown.documents.is_elsewhere())
    }

    /// The versions that this server answers for itself have changed.
    pub fn locals_changed(&self) {
        self.locals.notify_one();
    }

    /// Shows what was fetched, if `ends` has not come.
    fn show(&self, server: &ApiServer, name: &str, shown: Shown, ends: &CancellationToken) {
        let mut all = self.shown.lock();
        if !ends.is_cancelled() {
            all.insert(name.to_owned(), shown);
            publish(server, &all);
        }
    }

    fn hide(&self, server: &ApiServer, name: &str) {
        let mut all = self.shown.lock();
        if all.remove(name).is_some() {
            publish(server, &all);
        }
    }
}

/// Under the lock: what is published last is what is last.
fn publish(server: &ApiServer, all: &BTreeMap<String, Shown>) {
    server.discovery.show_elsewhere(all.values().map(|shown| shown.discovery.clone()).collect());
    server.openapi.show_foreign(all.values().map(|shown| shown.documents.clone()).collect());
}

/// Registers what this server answers itself, and follows what others answer. Returns when what is
/// registered already is known.
///
/// # Errors
/// When an APIService of this server's own cannot be written.
pub async fn start(server: &Arc<ApiServer>) -> machinery::status::Result<()> {
    registration::start(server).await?;
    let mut keeper = Keeper { server: server.clone(), known: HashMap::new() };
    let Some(cacher) = server.cachers.find(API_SERVICES.group, API_SERVICES.plural) else { return Ok(()) };
    for slot in cacher.snapshot().objects().values() {
        keeper.take(&slot.object);
    }
    server.stage().run(async move { keeper.run().await });
    Ok(())
}

/// Everything the loop knows of one APIService that names a Service.
struct Known {
    spec: apiregistration::APIServiceSpec,
    revision: u64,
    remote: Arc<Remote>,
    _ends: DropGuard,
}

struct Keeper {
    server: Arc<ApiServer>,
    known: HashMap<String, Known>,
}

impl Keeper {
    async fn run(&mut self) {
        loop {
            self.follow().await;
            self.server.clock.sleep(PAUSE).await;
        }
    }

    fn watch(&self, resource: Resource, only_changes: bool) -> Option<Watcher> {
        let cacher = self.server.cachers.find(resource.group, resource.plural)?;
        let after = only_changes.then(|| cacher.revision());
        cacher.watch(WatchOptions { after, ..WatchOptions::default() }).ok()
    }

    /// Until a watch ends.
    async fn follow(&mut self) {
        let Some(registered) = self.server.cachers.find(API_SERVICES.group, API_SERVICES.plural).cloned() else {
            return std::future::pending().await;
        };
        let (own, services) = (self.watch(API_SERVICES, false), self.watch(SERVICES, true));
        let (Some(mut own), Some(mut services), Some(mut slices)) = (own, services, self.watch(SLICES, true)) else {
            return;
        };
        // What is gone since the last watch nobody tells.
        let there = registered.snapshot();
        let gone: Vec<String> = self.known.keys().filter(|name| there.get(name).is_none()).cloned().collect();
        gone.iter().for_each(|name| self.forget(name));
        self.known.values().for_each(|known| known.remote.look_again());
        loop {
            tokio::select! {
                item = own.next() => match item {
                    Some(WatchItem::Event(event)) if event.what == What::Deleted => self.forget(event.object.name()),
                    Some(WatchItem::Event(event)) => self.take(&event.object),
                    Some(WatchItem::Bookmark { .. }) => {}
                    Some(WatchItem::Error(_)) | None => return,
                },
                item = services.next() => match item {
                    Some(WatchItem::Event(event)) => self.touched(event.object.namespace(), event.object.name()),
                    Some(WatchItem::Bookmark { .. }) => {}
                    Some(WatchItem::Error(_)) | None => return,
                },
                item = slices.next() => match item {
                    Some(WatchItem::Event(event)) => {
                        let of = event.object.labels.text(OF_SERVICE).unwrap_or_default();
                        self.touched(event.object.namespace(), of);
                    }
                    Some(WatchItem::Bookmark { .. }) => {}
                    Some(WatchItem::Error(_)) | None => return,
                },
            }
        }
    }

    /// A Service, or endpoints of it, have changed.
    fn touched(&self, namespace: &str, name: &str) {
        let of = |known: &&Known| known.remote.place.name == name && known.remote.place.namespace == namespace;
        self.known.values().filter(of).for_each(|known| known.remote.look_again());
    }

    /// An APIService as it is now.
    fn take(&mut self, object: &CachedObject) {
        let name = object.name();
        let read = object.value().and_then(|tree| kinds::view::read::<apiregistration::APIService>(&tree));
        let api_service = match read {
            Ok(api_service) => api_service,
            Err(status) => return tracing::error!(name, %status, "an APIService cannot be read; it stays as it was"),
        };
        let condition = Condition::of(&api_service);
        let spec = api_service.spec.unwrap_or_default();
        if let Some(known) = self.known.get_mut(name)
            && (known.revision > object.revision || known.spec == spec)
        {
            if known.revision <= object.revision {
                known.revision = object.revision;
                known.remote.said(condition.as_ref());
            }
            return;
        }
        let Some(service) = spec.service.as_ref() else { return self.forget(name) };
        self.forget(name);
        let remote = Arc::new(Remote::new(name, &spec, service, &self.server));
        remote.said(condition.as_ref());
        let ends = self.server.stage().token();
        let (server, stage) = (self.server.clone(), self.server.stage());
        stage.spawn(availability::run(server.clone(), remote.clone(), ends.clone()));
        if !remote.is_nobodys() {
            stage.spawn(documents::run(server.clone(), remote.clone(), ends.clone()));
        }
        let known = Known { spec, revision: object.revision, remote, _ends: ends.drop_guard() };
        self.known.insert(name.to_owned(), known);
        self.publish();
    }

    /// Nobody else answers for it any more.
    fn forget(&mut self, name: &str) {
        if let Some(known) = self.known.remove(name) {
            drop(known);
            self.server.aggregation.hide(&self.server, name);
            self.publish();
        }
    }

    fn publish(&self) {
        let all = self.known.values().map(|known| known.remote.clone()).filter(|remote| !remote.is_nobodys());
        let all: Remotes = all.map(|remote| ((remote.group.clone(), remote.version.clone()), remote)).collect();
        *self.server.aggregation.remotes.write() = Arc::new(all);
    }
}

/// Where an APIService's status is written.
fn status_path(name: &str) -> String {
    format!("/apis/{}/v1/{}/{name}/status", API_SERVICES.group, API_SERVICES.plural)
}

/// Writes the condition `Available` of an APIService where it is another. False when that has to be done
/// again.
async fn tell(server: &Arc<ApiServer>, name: &str, condition: &Condition) -> bool {
    let cacher = server.cachers.find(API_SERVICES.group, API_SERVICES.plural);
    let Some(object) = cacher.and_then(|cacher| cacher.get(name)) else { return true };
    let read = object.value().and_then(|tree| kinds::view::read::<apiregistration::APIService>(&tree));
    let Ok(api_service) = read else { return true };
    let Some(conditions) = availability::conditions(&api_service, condition, server.clock.wall()) else { return true };
    let patch = serde_json::json!({
        "metadata": {"resourceVersion": object.revision.to_string(), "uid": api_service.metadata.uid},
        "status": {"conditions": conditions},
    });
    let door = server.handler(bootstrap::myself());
    let media = "application/merge-patch+json";
    match bootstrap::send(&door, "PATCH", &status_path(name), media, Some(&patch)).await {
        Ok(_) => {
            server.aggregation.unavailable.changed(name, Condition::of(&api_service).as_ref(), condition);
            true
        }
        Err(status) if status.code == 404 => true,
        Err(status) => {
            tracing::debug!(name, %status, "the status of an APIService was not written; trying again");
            false
        }
    }
}
