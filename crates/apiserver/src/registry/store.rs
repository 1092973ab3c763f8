//! The one write path: every create, update and delete of every kind goes through here, subresources
//! and dry runs included.
//!
//! ```text
//!  decode (strict when asked) ─► defaults ─► managed fields ─► mutating admission ─► claims
//!     ─► prepare, validate ─► validating admission ─► quotas ─► compare-and-swap ─► reply
//!            ▲                                                        │ swap failed and no
//!            └────────────── the same steps on the fresh object ──────┘ resourceVersion was demanded
//! ```
//!
//! A dry run is the same with a store that does not write and claims that are not taken.

mod swap;

use bytes::Bytes;
use kinds::{AnyKind, Claim, Ctx, User, Verb};
use machinery::managed::{self, Manager};
use machinery::status::{self, Status};
use machinery::{meta, names};
use serde_json::Value;
use storage::Expect;

use self::swap::Swap;
use super::catalogue::Resource;
use super::claims::{Fulfilled, Owner};
use super::{deletion, metadata};
use crate::admission::{self, Attributes};
use crate::audit::causes::{Cause, Causes, Record};
use crate::crd::convert;
use crate::quota::{self, Charge};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::verbs::options::DeleteOptions;

/// How often a write is tried anew on a fresh object; a hotter object than that is a 409.
const ATTEMPTS: usize = 32;
/// How many generated names are tried.
const NAMES: usize = 8;

/// How much of the path a write takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// All of it.
    #[default]
    Full,
    /// Admission and the swap only: the caller has built the stored form itself (Binding).
    Direct,
}

/// One write: who, what, how.
pub struct Write<'a> {
    pub server: &'a ApiServer,
    pub resource: &'a Resource,
    pub request: &'a RequestInfo,
    pub user: &'a User,
    pub causes: &'a Causes,
    /// Empty at cluster scope.
    pub namespace: &'a str,
    /// Empty on create.
    pub name: &'a str,
    /// Empty for the main resource.
    pub subresource: &'a str,
    pub dry_run: bool,
    /// Who the changed fields belong to; empty when the caller has noted it itself (apply).
    pub manager: &'a str,
    pub depth: Depth,
}

/// What a write led to.
#[derive(Clone, Debug)]
pub struct Written {
    /// In the kind's own form, with resourceVersion.
    pub object: Value,
    /// The same as clients get it, where it was written as it is.
    pub json: Option<Bytes>,
    pub created: bool,
    /// False for an update that changed nothing.
    pub changed: bool,
    pub warnings: Vec<String>,
}

/// What a delete led to.
#[derive(Clone, Debug)]
pub enum Deleted {
    /// The object as it was last.
    Gone(Value),
    /// It stays, marked, until its finalizers or its grace have ended.
    Marked(Value),
}

/// The object a change starts from.
struct Current {
    /// In the kind's own form, with resourceVersion.
    object: Value,
    revision: u64,
    /// Read from the store, not from the cache.
    fresh: bool,
}

/// Creates an object.
///
/// # Errors
/// 409 when it exists, 422 when it is wrong, and whatever admission says.
pub async fn create(write: &Write<'_>, object: Value) -> status::Result<Written> {
    let server = write.server;
    let kind = &*write.resource.kind;
    let _open = write.resource.begin_create().await?;
    let now = server.clock.wall();
    let ctx = write.ctx(Verb::Create, now);
    let mut object = object;
    let mut warnings = metadata::drop_duplicate_owners(&mut object);
    metadata::begin(&mut object, &write.resource.shape(), write.namespace, now, &server.rng.uuid())?;
    kind.defaults(&ctx, &mut object)?;
    write.manage(None, &mut object, now);
    write.admit(Verb::Create, None, &mut object).await?;
    metadata::drop_duplicate_owners(&mut object);
    let base = meta::generate_name(&object).to_owned();
    if write.resource.shape().names_the_nameless && meta::name(&object).is_empty() && base.is_empty() {
        meta::set_name(&mut object, &server.rng.uuid());
    }
    let generated = meta::name(&object).is_empty() && !base.is_empty();
    for attempt in 1.. {
        // Only a name that may be taken needs the object a second time.
        let mut named = if generated { object.clone() } else { std::mem::take(&mut object) };
        if generated {
            meta::set_name(&mut named, &names::generate(&base, &server.rng));
        }
        let name = meta::name(&named).to_owned();
        let claimed = write.claim(&ctx, &mut named, None).await?;
        let outcome: status::Result<_> = async {
            let finished = kind.finish(&ctx, &mut named, None)?;
            write.refuse(&named, &finished.errors)?;
            write.validate(Verb::Create, None, Some(&named), &name).await?;
            let charge = quota::charge(write, None, &named).await?;
            match write.put(&mut named, Expect::Absent, &name).await {
                Ok(Swap::Done(revision, json)) => {
                    quota::landed(write, charge, None, Some(&named));
                    Ok((finished.warnings, revision, json))
                }
                Ok(Swap::Lost) => {
                    quota::refund(write, charge).await;
                    Err(write.taken(&named, &name).await?)
                }
                Err(status) => {
                    quota::refund(write, charge).await;
                    Err(status)
                }
            }
        }
        .await;
        match outcome {
            Ok((more, revision, json)) => {
                warnings.extend(more);
                write.keep(claimed).await;
                if let Some(revision) = revision {
                    meta::set_resource_version(&mut named, &revision.to_string());
                    write.record("create", &named, revision);
                }
                let json = write.answer(json, revision);
                return Ok(Written { object: named, json, created: true, changed: true, warnings });
            }
            Err(status) => {
                write.give_back(claimed).await;
                if !(generated && status.is("AlreadyExists")) || attempt >= NAMES {
                    return Err(status);
                }
            }
        }
    }
    Err(Status::internal("no name was tried"))
}

/// Changes an object: `change` gets it as it is (own form, with resourceVersion) and returns it as it
/// should be. It may be called again, on a fresher object.
///
/// # Errors
/// 404, 409 when another resourceVersion was demanded, 422, and whatever `change` and admission say.
pub async fn update<F>(write: &Write<'_>, change: F) -> status::Result<Written>
where
    F: Fn(&Value) -> status::Result<Value> + Send + Sync,
{
    let mut current = write.current(false).await?;
    for _ in 0..ATTEMPTS {
        match write.try_update(&current, &change).await {
            Ok(Some(written)) => return Ok(written),
            // The swap failed.
            Ok(None) => {}
            // The refusal may be about a state that is past.
            Err(_) if !current.fresh => {}
            Err(status) => return Err(status),
        }
        current = write.current(true).await?;
    }
    Err(Status::modified(&write.resource.group_resource(), write.name))
}

/// Deletes an object, or begins to.
///
/// # Errors
/// 404, 409 when the preconditions do not hold, and whatever admission says.
pub async fn delete(write: &Write<'_>, options: &DeleteOptions) -> status::Result<Deleted> {
    let mut current = write.current(false).await?;
    for _ in 0..ATTEMPTS {
        match write.try_delete(&current, options, &*write.resource.kind).await {
            Ok(Some(deleted)) => return Ok(deleted),
            Ok(None) => {}
            Err(_) if !current.fresh => {}
            Err(status) => return Err(status),
        }
        current = write.current(true).await?;
    }
    Err(Status::modified(&write.resource.group_resource(), write.name))
}

/// Deletes an object that cannot be read, without looking at what it cannot say: neither finalizers nor
/// admission are asked.
///
/// # Errors
/// 404, and 409 when the object can be read after all.
pub async fn delete_unreadable(write: &Write<'_>) -> status::Result<()> {
    let key = write.resource.key(write.namespace, write.name);
    let gone = || Status::not_found(&write.resource.group_resource(), write.name);
    for _ in 0..ATTEMPTS {
        let entry = write.resource.store()?.get(key.as_bytes()).await.map_err(|e| write.storage_error(e))?;
        let entry = entry.ok_or_else(gone)?;
        if matches!(serde_json::from_slice(&entry.value), Ok(Value::Object(_))) {
            let why = "unsafe deletion is not allowed because the object is decodable from storage";
            return Err(metadata::not_that_object(write.resource, write.namespace, write.name, why));
        }
        let named = serde_json::json!({ "metadata": { "name": write.name } });
        if let Swap::Done(..) = write.remove(&named, entry.mod_revision).await? {
            return Ok(());
        }
    }
    Err(Status::modified(&write.resource.group_resource(), write.name))
}

impl<'a> Write<'a> {
    fn ctx(&self, verb: Verb, now: jiff::Timestamp) -> Ctx<'a> {
        Ctx {
            user: self.user,
            verb,
            subresource: self.subresource,
            dry_run: self.dry_run,
            now,
            options: &self.server.options,
        }
    }

    /// The object as it is: from the cache (it may be behind) or from the store.
    async fn current(&self, fresh: bool) -> status::Result<Current> {
        let kind = &*self.resource.kind;
        let key = self.resource.key(self.namespace, self.name);
        if !fresh {
            if let Some(cached) = self.resource.cached(self.namespace, self.name).filter(|c| c.damage.is_none()) {
                let revision = cached.revision;
                let cached = convert::object(self.server, self.resource, cached).await?;
                let mut object = managed::from_slice(&cached.json).map_err(Status::internal)?;
                if kind.stored_as().is_some() {
                    kind.from_stored(&mut object);
                }
                return Ok(Current { object, revision, fresh: false });
            }
        }
        let entry = self.resource.store()?.get(key.as_bytes()).await.map_err(|e| self.storage_error(e))?;
        let entry = entry.ok_or_else(|| Status::not_found(&self.resource.group_resource(), self.name))?;
        let mut object = managed::from_slice(&entry.value).map_err(|error| {
            Status::new(500, "StorageReadError", format!("unable to decode an object from storage: {key}: {error}"))
        })?;
        meta::set_resource_version(&mut object, &entry.mod_revision.to_string());
        if kind.stored_as().is_some() {
            kind.from_stored(&mut object);
        }
        let object = convert::own(self.server, self.resource, object).await?;
        Ok(Current { object, revision: entry.mod_revision, fresh: true })
    }

    /// One pass over one state. `None`: the swap failed, look again.
    async fn try_update<F>(&self, current: &Current, change: &F) -> status::Result<Option<Written>>
    where
        F: Fn(&Value) -> status::Result<Value> + Send + Sync,
    {
        let old = &current.object;
        let kind = &*self.resource.kind;
        let now = self.server.clock.wall();
        let ctx = self.ctx(Verb::Update, now);
        let mut new = change(old)?;
        let mut warnings = metadata::drop_duplicate_owners(&mut new);
        metadata::carry(self.resource, &mut new, old)?;
        if self.depth == Depth::Full {
            kind.defaults(&ctx, &mut new)?;
        }
        self.manage(Some(old), &mut new, now);
        self.admit(Verb::Update, Some(old), &mut new).await?;
        metadata::drop_duplicate_owners(&mut new);
        metadata::carry(self.resource, &mut new, old)?;
        let claimed = self.claim(&ctx, &mut new, Some(old)).await?;
        match self.finish_update(&ctx, current, &mut new, &mut warnings).await {
            Ok(Some((json, revision))) => {
                self.keep(claimed).await;
                let changed = json.is_some();
                // Of what changes nothing the times are the old ones too.
                let mut object = if changed { new } else { old.clone() };
                meta::set_resource_version(&mut object, &revision.to_string());
                let json = json.and_then(|json| self.answer(json, Some(revision)));
                Ok(Some(Written { object, json, created: false, changed, warnings }))
            }
            Ok(None) => {
                self.give_back(claimed).await;
                Ok(None)
            }
            Err(status) => {
                self.give_back(claimed).await;
                Err(status)
            }
        }
    }

    async fn finish_update(
        &self,
        ctx: &Ctx<'_>,
        current: &Current,
        new: &mut Value,
        warnings: &mut Vec<String>,
    ) -> status::Result<Option<(Option<Bytes>, u64)>> {
        let (old, kind) = (&current.object, &*self.resource.kind);
        if self.depth == Depth::Full {
            let finished = kind.finish(ctx, new, Some(old))?;
            warnings.extend(finished.warnings);
            self.refuse(new, &finished.errors)?;
        }
        self.validate(Verb::Update, Some(old), Some(new), self.name).await?;
        if metadata::same(new, old, &kind.schema()) {
            // What seems to change nothing must be compared with what is there now.
            return Ok(current.fresh.then_some((None, current.revision)));
        }
        let released = deletion::is_released(kind, new);
        let swap = if released {
            self.remove(old, current.revision).await?
        } else {
            let charge = quota::charge(self, Some(old), new).await?;
            match self.put(new, Expect::At(current.revision), self.name).await {
                Ok(Swap::Done(revision, json)) => {
                    quota::landed(self, charge, Some(old), Some(new));
                    Swap::Done(revision, json)
                }
                Ok(Swap::Lost) => {
                    quota::refund(self, charge).await;
                    Swap::Lost
                }
                Err(status) => {
                    quota::refund(self, charge).await;
                    return Err(status);
                }
            }
        };
        let Swap::Done(revision, json) = swap else { return Ok(None) };
        let revision = revision.unwrap_or(current.revision);
        if !released {
            self.record("update", new, revision);
        }
        Ok(Some((Some(json), revision)))
    }

    async fn try_delete(
        &self,
        current: &Current,
        options: &DeleteOptions,
        kind: &dyn AnyKind,
    ) -> status::Result<Option<Deleted>> {
        let object = &current.object;
        deletion::check(options, object, &kind.shape())?;
        self.admit_delete(object).await?;
        match deletion::plan(kind, object, options, self.server.clock.wall()) {
            // As the cache has it, which may be behind.
            deletion::Step::Pending if !current.fresh => Ok(None),
            deletion::Step::Pending => Ok(Some(Deleted::Marked(object.clone()))),
            deletion::Step::Remove => {
                let Swap::Done(revision, _) = self.remove(object, current.revision).await? else {
                    return Ok(None);
                };
                let mut last = object.clone();
                meta::set_resource_version(&mut last, &revision.unwrap_or(current.revision).to_string());
                Ok(Some(Deleted::Gone(last)))
            }
            deletion::Step::Mark(mut marked) => {
                let swap = self.put(&mut marked, Expect::At(current.revision), self.name).await?;
                let Swap::Done(revision, _) = swap else { return Ok(None) };
                let revision = revision.unwrap_or(current.revision);
                quota::landed(self, Charge::default(), Some(object), Some(&marked));
                self.record("delete", &marked, revision);
                meta::set_resource_version(&mut marked, &revision.to_string());
                Ok(Some(Deleted::Marked(marked)))
            }
        }
    }

    /// Takes what the object needs that must be unique, and writes it into the object.
    async fn claim(&self, ctx: &Ctx<'_>, object: &mut Value, old: Option<&Value>) -> status::Result<Claimed> {
        // Only a write of the object itself can need more than it has.
        if self.depth == Depth::Direct || !matches!(self.subresource, "" | "scale") {
            return Ok(Claimed::default());
        }
        let claims = self.resource.kind.claims(ctx, object, old)?;
        let mut claimed = Claimed { release: claims.release, ..Claimed::default() };
        if !claims.take.is_empty() {
            let owner = self.owner(meta::name(object));
            claimed.taken = self.server.claims.take(&owner, &claims.take, object, self.dry_run).await?;
            claimed.taken.write(object);
        }
        Ok(claimed)
    }

    /// The write happened: what it no longer needs is free.
    async fn keep(&self, claimed: Claimed) {
        if !claimed.release.is_empty() && !self.dry_run {
            self.server.claims.release(&self.owner(self.name), &claimed.release).await;
        }
    }

    /// The write did not happen: what it took is free.
    async fn give_back(&self, claimed: Claimed) {
        self.server.claims.give_back(claimed.taken).await;
    }

    fn owner(&self, name: &str) -> Owner {
        Owner { namespace: self.namespace.to_owned(), name: name.to_owned() }
    }

    /// Notes whose fields these are. What a write cannot change it does not own.
    fn manage(&self, old: Option<&Value>, new: &mut Value, now: jiff::Timestamp) {
        if self.manager.is_empty() {
            return;
        }
        let shape = self.resource.shape();
        let manager = Manager {
            name: self.manager.to_owned(),
            api_version: shape.api_version(),
            also: shape.also_in.iter().map(str::to_owned).collect(),
            subresource: self.subresource.to_owned(),
            reset: shape.resets(self.subresource),
            now,
        };
        managed::update(old, new, &self.resource.kind.schema(), &manager);
    }

    fn attributes<'b>(&'b self, verb: Verb, old: Option<&'b Value>, name: &'b str) -> Attributes<'b> {
        Attributes {
            kind: &*self.resource.kind,
            request: self.request,
            user: self.user,
            verb,
            namespace: self.namespace,
            name,
            dry_run: self.dry_run,
            old,
        }
    }

    async fn admit(&self, verb: Verb, old: Option<&Value>, object: &mut Value) -> status::Result<()> {
        let name = if self.name.is_empty() { meta::name(object).to_owned() } else { self.name.to_owned() };
        let attributes = self.attributes(verb, old, &name);
        admission::mutate(self.server, &attributes, Some(object)).await
    }

    async fn validate(&self, verb: Verb, old: Option<&Value>, new: Option<&Value>, name: &str) -> status::Result<()> {
        let attributes = self.attributes(verb, old, name);
        admission::validate(self.server, &attributes, new).await
    }

    async fn admit_delete(&self, old: &Value) -> status::Result<()> {
        let attributes = self.attributes(Verb::Delete, Some(old), self.name);
        admission::mutate(self.server, &attributes, None).await?;
        self.validate(Verb::Delete, Some(old), None, self.name).await
    }

    fn refuse(&self, object: &Value, errors: &machinery::field::FieldErrors) -> status::Result<()> {
        if errors.is_empty() {
            return Ok(());
        }
        let shape = self.resource.shape();
        Err(Status::invalid(shape.group, shape.kind, meta::name(object), errors))
    }

    /// Writes the journal.
    fn record(&self, verb: &str, object: &Value, revision: u64) {
        if self.dry_run {
            return;
        }
        let mut key = format!("{}/", self.resource.group_resource());
        if !self.namespace.is_empty() {
            key.push_str(self.namespace);
            key.push('/');
        }
        key.push_str(meta::name(object));
        if !self.subresource.is_empty() {
            key.push('/');
            key.push_str(self.subresource);
        }
        let mut causes = self.causes.clone();
        if causes.list.is_empty() {
            causes.list = self.owners(object);
        }
        let (actor, time) = (self.user.name.clone(), self.server.clock.wall());
        self.server.journal.add(Record { revision, actor, verb: verb.to_owned(), key, causes, time });
    }

    /// The object's controller, as the cause of a write for which the client names none.
    fn owners(&self, object: &Value) -> Vec<Cause> {
        let owners = meta::owner_references(object).into_iter().filter(|owner| owner.controller);
        let cause = |owner: meta::OwnerReference<'_>| {
            let (group, version) = owner.api_version.split_once('/').unwrap_or(("", owner.api_version));
            let resource = self.server.catalogue.of_kind(group, version, owner.kind)?;
            let revision = resource.cached(self.namespace, owner.name).map_or(0, |cached| cached.revision);
            let name = resource.cache_key(self.namespace, owner.name);
            Some(Cause { resource: resource.group_resource().to_string(), name, revision })
        };
        owners.filter_map(cause).collect()
    }
}

/// What a write has taken, and what it will no longer need once it has happened.
#[derive(Default)]
struct Claimed {
    taken: Fulfilled,
    release: Vec<Claim>,
}
