//! What may change or refuse a write: one file per plugin, in upstream's order.

use async_trait::async_trait;
use kinds::{AnyKind, User, Verb};
use machinery::status;
use serde_json::Value;

use crate::request::RequestInfo;

/// The write that is asked about.
pub struct Attributes<'a> {
    pub kind: &'static dyn AnyKind,
    pub request: &'a RequestInfo,
    pub user: &'a User,
    /// Create, Update or Delete; `Update` also for patches.
    pub verb: Verb,
    pub namespace: &'a str,
    /// May be empty on a create with generateName.
    pub name: &'a str,
    pub dry_run: bool,
    /// The object before; `None` on create.
    pub old: Option<&'a Value>,
}

/// One admission plugin. Both methods default to agreeing.
#[async_trait]
pub trait Plugin: Send + Sync + 'static {
    /// Upstream's name of the plugin.
    fn name(&self) -> &'static str;

    /// May change the object (`None` on delete) or refuse.
    async fn mutate(&self, _attributes: &Attributes<'_>, _object: Option<&mut Value>) -> status::Result<()> {
        Ok(())
    }

    /// May refuse; sees the object as it would be stored.
    async fn validate(&self, _attributes: &Attributes<'_>, _object: Option<&Value>) -> status::Result<()> {
        Ok(())
    }
}
