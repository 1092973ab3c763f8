//! How a write reaches the store: the form an object is stored in, the compare-and-swap, and what the
//! store's refusals are called.

use bytes::Bytes;
use kinds::{AnyKind as _, Keep};
use machinery::status::{self, Status};
use machinery::{encode, meta};
use serde_json::Value;
use storage::{Expect, Op, Urgency};
use tracing::{Instrument, Span};

use super::Write;
use crate::crd::convert;
use crate::quota::{self, Charge};
use crate::traces;

/// What became of a compare-and-swap.
pub(super) enum Swap {
    /// It happened, at this revision (a dry run has none), and this was written.
    Done(Option<u64>, Bytes),
    /// Somebody else wrote first.
    Lost,
}

/// The part of a trace that a write of the store is.
fn commit_span(expect: Expect) -> Span {
    if expect == Expect::Absent {
        return tracing::debug_span!(target: traces::TARGET, "Create store");
    }
    tracing::debug_span!(target: traces::TARGET, "GuaranteedUpdate store")
}

impl Write<'_> {
    /// The stored form of an object: no resourceVersion, the stored kind's fields in their order.
    async fn stored(&self, object: &mut Value) -> status::Result<Bytes> {
        let kind = &*self.resource.kind;
        if kind.is_custom() && !self.resource.is_stored_form() {
            let mut stored = object.clone();
            meta::set_resource_version(&mut stored, "");
            let (stored, kind) = convert::stored(self.server, self.resource, stored).await?;
            return Ok(encode::json(&stored, &kind.schema()).into());
        }
        if let Some(stored_as) = kind.stored_as() {
            let mut stored = object.clone();
            meta::set_resource_version(&mut stored, "");
            kind.to_stored(&mut stored);
            return Ok(encode::json(&stored, &stored_as.schema()).into());
        }
        // Without a copy of the object for the sake of one field.
        let version = meta::metadata_mut(object).remove("resourceVersion");
        let stored = encode::json(object, &kind.schema()).into();
        if let Some(version) = version {
            meta::metadata_mut(object).insert("resourceVersion".to_owned(), version);
        }
        Ok(stored)
    }

    /// What was written as clients get it: it need not be encoded a second time.
    pub(super) fn answer(&self, stored: Bytes, revision: Option<u64>) -> Option<Bytes> {
        if stored.is_empty() || !self.resource.is_stored_form() {
            return None;
        }
        Some(match revision {
            Some(revision) => encode::splice_resource_version(&stored, revision).into(),
            None => stored,
        })
    }

    /// Swaps the object in.
    pub(super) async fn put(&self, object: &mut Value, expect: Expect, name: &str) -> status::Result<Swap> {
        // What could not be read again would break every list it is in.
        machinery::decode::check_depth(object)?;
        let key = self.resource.key(self.namespace, name);
        let value = self.stored(object).await?;
        if self.dry_run {
            let lost = expect == Expect::Absent && self.exists(&key).await?;
            return Ok(if lost { Swap::Lost } else { Swap::Done(None, value) });
        }
        let urgency = if self.resource.shape().keep == Keep::Relaxed { Urgency::Relaxed } else { Urgency::Now };
        let op = Op::Put { key: Bytes::from(key.into_bytes()), value: value.clone(), expect, urgency };
        match self.resource.store()?.commit(op).instrument(commit_span(expect)).await {
            Ok(committed) => Ok(Swap::Done(Some(committed.revision), value)),
            Err(storage::Error::Conflict { .. }) => Ok(Swap::Lost),
            Err(error) => Err(self.storage_error(error)),
        }
    }

    /// The 409 of a create whose name is taken.
    pub(super) async fn taken(&self, wanted: &Value, name: &str) -> status::Result<Box<Status>> {
        let resource = self.resource.group_resource();
        let mut status = if meta::generate_name(wanted).is_empty() {
            Status::already_exists(&resource, name)
        } else {
            Status::name_not_generated(&resource, name)
        };
        let key = self.resource.key(self.namespace, name);
        let found = self.resource.store()?.get(key.as_bytes()).await.map_err(|e| self.storage_error(e))?;
        let found: Option<Value> = found.and_then(|entry| serde_json::from_slice(&entry.value).ok());
        if found.is_some_and(|object| meta::is_deleting(&object)) {
            status.message = format!("object is being deleted: {}", status.message);
        }
        Ok(status)
    }

    async fn exists(&self, key: &str) -> status::Result<bool> {
        let found = self.resource.store()?.get(key.as_bytes()).await;
        found.map(|entry| entry.is_some()).map_err(|error| self.storage_error(error))
    }

    /// Removes the object and gives back what it held.
    pub(super) async fn remove(&self, object: &Value, revision: u64) -> status::Result<Swap> {
        if self.dry_run {
            return Ok(Swap::Done(None, Bytes::new()));
        }
        let key = Bytes::from(self.resource.key(self.namespace, self.name).into_bytes());
        let op = Op::Delete { key, expect: Expect::At(revision) };
        let span = tracing::debug_span!(target: traces::TARGET, "Delete store");
        match self.resource.store()?.commit(op).instrument(span).await {
            Ok(committed) => {
                self.record("delete", object, committed.revision);
                quota::landed(self, Charge::default(), Some(object), None);
                match self.resource.kind.held(object) {
                    Ok(held) if held.is_empty() => {}
                    Ok(held) => self.server.claims.release(&self.owner(self.name), &held).await,
                    // It is gone all the same; what it held the repair loop finds.
                    Err(error) => tracing::warn!(name = self.name, %error, "cannot tell what a deleted object held"),
                }
                Ok(Swap::Done(Some(committed.revision), Bytes::new()))
            }
            Err(storage::Error::Conflict { current: Some(_) }) => Ok(Swap::Lost),
            Err(storage::Error::Conflict { current: None }) => {
                Err(Status::not_found(&self.resource.group_resource(), self.name))
            }
            Err(error) => Err(self.storage_error(error)),
        }
    }

    pub(super) fn storage_error(&self, error: storage::Error) -> Box<Status> {
        match error {
            storage::Error::TooLarge { limit, .. } => Status::too_large(limit),
            storage::Error::Corrupt(text) => Status::new(500, "StorageReadError", text),
            storage::Error::Closed(_) => Status::unavailable("the store is closed"),
            other => Status::internal(other),
        }
    }
}
