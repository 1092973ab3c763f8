//! The only writer of the controllers: requests as one service account, and the events about them.

use client::events::{Recorder, Reference, Source, Type};
use client::{Bounds, Client, DeleteParams, Patch, Resource, Result};
use serde_json::Value;

use crate::context::Context;

/// Writes as one controller.
#[derive(Clone)]
pub(crate) struct Writer {
    pub client: Client,
    recorder: Recorder,
}

impl Writer {
    pub(crate) fn new(client: Client, source: Source, context: &Context) -> Self {
        let (clock, rng) = (context.clock.clone(), context.rng.clone());
        let recorder = Recorder::start(client.clone(), source, clock, rng, &context.stage);
        Self { client, recorder }
    }

    /// The same for what other servers answer for: it reads no more of an answer than it has to, and few answers
    /// at a time.
    pub(crate) fn of_foreign(&self, at_once: usize) -> Self {
        let client = self.client.clone().with_bounds(Bounds::FOREIGN).taking_turns(at_once);
        Self { client, recorder: self.recorder.clone() }
    }

    /// Records an event.
    pub(crate) fn event_about(&self, about: &Reference, kind: Type, reason: &str, message: impl Into<String>) {
        self.recorder.event(about, kind, reason, message);
    }

    pub(crate) async fn create(&self, resource: &Resource, namespace: &str, object: &Value) -> Result<Value> {
        self.client.dynamic(resource.clone()).namespace(namespace).create(object).await
    }

    pub(crate) async fn update(&self, resource: &Resource, object: &Value) -> Result<Value> {
        let namespace = machinery::meta::namespace(object);
        self.client.dynamic(resource.clone()).namespace(namespace).update(object).await
    }

    pub(crate) async fn update_status(&self, resource: &Resource, object: &Value) -> Result<Value> {
        let namespace = machinery::meta::namespace(object);
        self.client.dynamic(resource.clone()).namespace(namespace).update_status(object).await
    }

    pub(crate) async fn patch(&self, resource: &Resource, namespace: &str, name: &str, patch: &Patch) -> Result<Value> {
        self.client.dynamic(resource.clone()).namespace(namespace).patch(name, patch).await
    }

    pub(crate) async fn patch_status(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        patch: &Patch,
    ) -> Result<Value> {
        self.client.dynamic(resource.clone()).namespace(namespace).patch_status(name, patch).await
    }

    /// Deletes; an object that is gone already is fine and gives `None`.
    pub(crate) async fn delete(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        params: &DeleteParams,
    ) -> Result<Option<Value>> {
        match self.client.dynamic(resource.clone()).namespace(namespace).delete(name, params).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The revision an answer carries; 0 when it carries none.
pub(crate) fn revision(object: &Value) -> u64 {
    machinery::meta::revision(object).unwrap_or(0)
}
