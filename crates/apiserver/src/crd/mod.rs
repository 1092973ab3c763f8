//! Custom resources come and go with their CustomResourceDefinitions: one loop follows the definitions,
//! judges their names, serves what is accepted, says so in their status, and empties what is deleted.
//!
//! ```text
//!  definition ─► names.rs: which it can have ─► served.rs: compiled, cached, in catalogue, discovery, OpenAPI
//!                                   └─► conditions.rs: NamesAccepted, Established ─► its status
//!  deleted    ─► instances.rs: its objects go first ─► its finalizer ─► no longer served
//! ```
//!
//! There is one loop, so that no name is given twice.

mod conditions;
pub mod convert;
mod instances;
mod names;
mod served;
mod webhook;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kinds::custom_resource_definition::{
    CLEANUP_FINALIZER, Condition, Definition, ESTABLISHED, NAMES_ACCEPTED, Names, TERMINATING,
};
use machinery::meta;
use machinery::status;
use serde_json::{Value, json};
use stdx::ClockExt;
use stdx::backoff::Policy;
use tokio::sync::RwLock;
use transport::SharedHandler;

use self::names::{Taken, Verdict};
use self::served::{Print, Served, light};
use crate::bootstrap;
use crate::cacher::{CachedObject, Cacher, WatchItem, WatchOptions, What};
use crate::server::ApiServer;

pub use served::Custom;

/// Where definitions are.
const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";
/// After a status could not be written.
const RETRY: Policy = Policy { initial: Duration::from_millis(50), max: Duration::from_secs(10) };

/// Serves what is defined already, and follows the definitions from then on.
///
/// # Errors
/// When the store cannot be read.
pub async fn start(server: &Arc<ApiServer>) -> status::Result<()> {
    let Some(cacher) = server.cachers.find(GROUP, PLURAL).cloned() else { return Ok(()) };
    let door = server.handler(bootstrap::myself());
    let (known, failures) = (HashMap::new(), HashMap::new());
    let mut keeper = Keeper { server: server.clone(), door, cacher: cacher.clone(), known, failures };
    let snapshot = cacher.snapshot();
    for slot in snapshot.objects().values() {
        keeper.take(&slot.object);
    }
    let names: BTreeSet<String> = keeper.known.keys().cloned().collect();
    for name in &names {
        keeper.restore(name).await?;
    }
    keeper.show();
    server.stage().run(async move { keeper.run(&cacher, snapshot.revision, names).await });
    Ok(())
}

/// Everything the loop knows of one definition.
struct Known {
    /// Without schemas, which are read when they are compiled.
    definition: Arc<Definition>,
    print: Print,
    /// Tells which of two is newer.
    revision: u64,
    served: Option<Served>,
    /// Whether objects may be created.
    open: Arc<RwLock<bool>>,
    /// Its objects are being deleted.
    emptying: Option<tokio::task::JoinHandle<()>>,
}

struct Keeper {
    server: Arc<ApiServer>,
    door: SharedHandler,
    /// Of the definitions.
    cacher: Arc<Cacher>,
    known: HashMap<String, Known>,
    /// How often in a row the status of a definition could not be written.
    failures: HashMap<String, u32>,
}

impl Drop for Known {
    fn drop(&mut self) {
        if let Some(task) = &self.emptying {
            task.abort();
        }
    }
}

impl Keeper {
    /// Follows the definitions for ever.
    async fn run(mut self, cacher: &Arc<Cacher>, revision: u64, names: BTreeSet<String>) {
        self.follow(cacher, Some(revision), names).await;
        loop {
            // The cache began anew: what is gone since then nobody tells.
            let there = cacher.snapshot();
            let gone: Vec<String> = self.known.keys().filter(|name| there.get(name).is_none()).cloned().collect();
            let mut names: BTreeSet<String> = self.known.keys().cloned().collect();
            for name in gone {
                names.extend(self.forget(&name));
            }
            self.follow(cacher, None, names).await;
        }
    }

    /// Until the watch ends.
    async fn follow(&mut self, cacher: &Arc<Cacher>, after: Option<u64>, mut names: BTreeSet<String>) {
        let Ok(mut watch) = cacher.watch(WatchOptions { after, ..WatchOptions::default() }) else {
            // What it knew is forgotten: everything is read anew.
            return self.server.clock.sleep(RETRY.initial).await;
        };
        loop {
            while let Some(name) = names.pop_first() {
                let more = self.step(&name).await;
                names.extend(more);
            }
            let retry = self.failures.values().max().map(|failures| RETRY.delay(*failures));
            let item = match retry {
                None => watch.next().await,
                Some(pause) => match self.server.clock.timeout(pause, watch.next()).await {
                    Ok(item) => item,
                    Err(_) => {
                        names.extend(self.failures.keys().cloned());
                        continue;
                    }
                },
            };
            match item {
                Some(WatchItem::Event(event)) if event.what == What::Deleted => {
                    names.extend(self.forget(event.object.name()));
                }
                Some(WatchItem::Event(event)) => {
                    if self.take(&event.object) {
                        names.insert(event.object.name().to_owned());
                    }
                }
                Some(WatchItem::Bookmark { .. }) => {}
                Some(WatchItem::Error(status)) => {
                    tracing::error!(%status, "a definition cannot be read");
                    return self.server.clock.sleep(RETRY.max).await;
                }
                None => return,
            }
        }
    }

    /// Notes a definition; false when what is known is newer.
    fn take(&mut self, object: &CachedObject) -> bool {
        let read = object.value().map_err(|status| status.message.clone());
        match read.and_then(|tree| light(tree).map_err(|status| status.message.clone())) {
            Ok((definition, print)) => self.put(definition, print, object.revision),
            Err(error) => {
                tracing::error!(name = object.name(), error, "a definition cannot be read; it stays as it was");
                false
            }
        }
    }

    fn put(&mut self, definition: Definition, print: Print, revision: u64) -> bool {
        let name = name_of(&definition).to_owned();
        match self.known.get_mut(&name) {
            Some(known) if known.revision > revision => false,
            Some(known) => {
                known.definition = Arc::new(definition);
                (known.print, known.revision) = (print, revision);
                true
            }
            None => {
                let (definition, open) = (Arc::new(definition), Arc::new(RwLock::new(true)));
                self.known.insert(name, Known { definition, print, revision, served: None, open, emptying: None });
                true
            }
        }
    }

    /// Serves a definition as it was served before this process began.
    async fn restore(&mut self, name: &str) -> status::Result<()> {
        let Some((known, stored)) = self.known.get_mut(name).zip(self.cacher.get(name)) else { return Ok(()) };
        if known.definition.is(NAMES_ACCEPTED) || known.definition.is(ESTABLISHED) {
            let accepted = accepted(&known.definition);
            match Served::begin(&self.server, stored, &accepted, &known.open).await? {
                Ok(served) => known.served = Some(served),
                Err(error) => tracing::error!(name, error, "a custom resource cannot be served"),
            }
        }
        Ok(())
    }

    /// Names that others have in the definition's group, built-in resources included.
    fn taken(&self, name: &str, group: &str) -> Taken {
        let mut taken = Taken::default();
        for kind in kinds::ALL.iter().filter(|kind| kind.shape().group == group) {
            let shape = kind.shape();
            taken.add(&Names {
                plural: shape.plural.to_owned(),
                singular: crate::discovery::singular(&shape),
                short_names: shape.short_names.iter().map(str::to_owned).collect(),
                kind: shape.kind.to_owned(),
                list_kind: shape.list_kind(),
                categories: Vec::new(),
            });
        }
        let others = self.known.iter().filter(|(other, known)| *other != name && known.definition.spec.group == group);
        others.for_each(|(_, known)| taken.add(&accepted(&known.definition)));
        taken
    }

    /// Those of a group that do not have the names they want.
    fn waiting(&self, group: &str) -> Vec<String> {
        let waits = |known: &Known| {
            let definition = &known.definition;
            definition.spec.group == group && definition.spec.names != accepted(definition)
        };
        self.known.iter().filter(|(_, known)| waits(known)).map(|(name, _)| name.clone()).collect()
    }

    /// One step for one definition; the definitions that have to be looked at again because of it.
    async fn step(&mut self, name: &str) -> Vec<String> {
        let Some(known) = self.known.get(name) else { return Vec::new() };
        let (definition, revision) = (known.definition.clone(), known.revision);
        let has = accepted(&definition);
        let verdict = match has == definition.spec.names {
            // What it has nobody takes from it.
            true => Verdict { accepted: has.clone(), refused: None },
            false => names::judge(&definition, &self.taken(name, &definition.spec.group)),
        };
        self.serve(name, &definition, &verdict).await;
        let served = self.known.get(name).is_some_and(|known| known.served.is_some());
        let now = self.server.clock.wall();
        let conditions = conditions::of(&definition, &verdict, served, now);
        let renamed = verdict.accepted != has;
        let said = definition.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        if renamed || conditions != said {
            let written = self.write(&definition, revision, &verdict.accepted, &conditions).await;
            if !written {
                return Vec::new();
            }
        }
        self.failures.remove(name);
        self.empty(name);
        // A name that is given up may be what another waits for.
        let given_up = renamed && !has.plural.is_empty();
        if given_up { self.waiting(&definition.spec.group) } else { Vec::new() }
    }

    /// Serves the definition as it is now.
    async fn serve(&mut self, name: &str, definition: &Arc<Definition>, verdict: &Verdict) {
        let accepted = verdict.refused.is_none() || definition.is(ESTABLISHED);
        let Some(known) = self.known.get_mut(name) else { return };
        let current = known.served.as_ref().filter(|served| served.is_of(known.print, &verdict.accepted));
        if !accepted || current.is_some() {
            if definition.is(TERMINATING) && current.is_some_and(Served::begin_ending) {
                self.show();
            }
            return;
        }
        // What was just written may be yet to come to the cache, which has the same schemas.
        let Some(stored) = self.cacher.get(name) else { return };
        match Served::begin(&self.server, stored, &verdict.accepted, &known.open).await {
            Ok(Ok(served)) => {
                known.served = Some(served);
                self.show();
            }
            Ok(Err(error)) => tracing::error!(name, error, "a custom resource cannot be served"),
            Err(status) => tracing::error!(name, %status, "a custom resource cannot be read"),
        }
    }

    /// Discovery and OpenAPI say what is served.
    fn show(&self) {
        let custom = self.server.catalogue.custom_kinds();
        let all = || kinds::ALL.iter().copied().map(kinds::SharedKind::from).chain(custom.iter().cloned());
        self.server.discovery.show(all());
        self.server.openapi.show(all());
        self.server.aggregation.locals_changed();
    }

    /// Writes a status; false when that has to be done again.
    async fn write(&mut self, definition: &Definition, revision: u64, names: &Names, conditions: &[Condition]) -> bool {
        let name = name_of(definition);
        let accepted = json!({
            "plural": names.plural, "singular": none_if_empty(&names.singular), "kind": names.kind,
            "listKind": none_if_empty(&names.list_kind),
            "shortNames": Some(&names.short_names).filter(|list| !list.is_empty()),
            "categories": Some(&names.categories).filter(|list| !list.is_empty()),
        });
        let patch = json!({
            "metadata": {"resourceVersion": revision.to_string(), "uid": definition.metadata.uid},
            "status": {"acceptedNames": accepted, "conditions": conditions},
        });
        match patch_status(&self.door, name, &patch).await {
            Ok(written) => {
                let revision = meta::revision(&written).unwrap_or_default();
                if let Ok((definition, print)) = light(written) {
                    self.put(definition, print, revision);
                }
                true
            }
            // What changed it in the meantime comes as an event.
            Err(status) if matches!(status.code, 404 | 409) => false,
            Err(status) => {
                tracing::warn!(name, %status, "the status of a definition could not be written; trying again");
                *self.failures.entry(name.to_owned()).or_default() += 1;
                false
            }
        }
    }

    /// Begins to delete the objects of a definition that is being deleted.
    fn empty(&mut self, name: &str) {
        let Some(known) = self.known.get_mut(name) else { return };
        let definition = &known.definition;
        let leaves = definition.metadata.deletion_timestamp.is_some();
        if !leaves
            || !definition.metadata.finalizers.iter().flatten().any(|f| f == CLEANUP_FINALIZER)
            || known.emptying.is_some()
        {
            return;
        }
        let custom = known.served.as_ref().map(|served| served.custom.clone());
        let work = instances::empty(self.server.clone(), self.door.clone(), definition.clone(), custom);
        known.emptying = Some(tokio::spawn(work));
    }

    /// A definition is gone; those who may want its names now.
    fn forget(&mut self, name: &str) -> Vec<String> {
        self.failures.remove(name);
        let Some(mut known) = self.known.remove(name) else { return Vec::new() };
        if let Some(served) = known.served.take() {
            served.end(&self.server);
            self.show();
        }
        self.waiting(&known.definition.spec.group)
    }
}

/// What a definition is called.
fn name_of(definition: &Definition) -> &str {
    definition.metadata.name.as_deref().unwrap_or_default()
}

/// The names it has.
fn accepted(definition: &Definition) -> Names {
    definition.status.as_ref().map(|status| status.accepted_names.clone()).unwrap_or_default()
}

fn none_if_empty(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Changes the status of a definition, and what else its subresource lets through.
async fn patch_status(door: &SharedHandler, name: &str, patch: &Value) -> status::Result<Value> {
    let path = format!("/apis/{GROUP}/v1/{PLURAL}/{name}/status");
    bootstrap::send(door, "PATCH", &path, "application/merge-patch+json", Some(patch)).await
}
