//! The server's own readers (authorization, admission, tokens) over the watch cache.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use imbl::ordmap::DiffItem;
use machinery::status;
use serde_json::Value;

use super::Cachers;
use super::object::CachedObject;
use super::snapshot::Objects as Table;
use crate::objects::{Change, Objects, Resource, Seen};

/// How long a reader waits for the cache to show what has been acknowledged.
const PATIENCE: Duration = Duration::from_secs(3);

fn tree(object: &CachedObject) -> Option<Arc<Value>> {
    // A damaged object was reported when it was read.
    object.value().ok().map(Arc::new)
}

#[async_trait]
impl Objects for Cachers {
    fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let cacher = self.find(resource.group, resource.plural)?;
        let found = if cacher.kind.shape().is_namespaced() {
            cacher.get(&format!("{namespace}/{name}"))
        } else {
            cacher.get(name)
        };
        found.as_deref().and_then(tree)
    }

    fn changes(&self, resource: Resource, seen: &mut Seen) -> Vec<Change> {
        let Some(cacher) = self.find(resource.group, resource.plural) else { return Vec::new() };
        let before = seen.0.take().and_then(|seen| seen.downcast::<Table>().ok()).unwrap_or_default();
        let now = cacher.snapshot().objects().clone();
        // Maps that share structure are compared only where they differ.
        let mut changes = Vec::new();
        for difference in before.diff(&now) {
            match difference {
                DiffItem::Add(_, object) | DiffItem::Update { new: (_, object), .. } => {
                    changes.extend(tree(object).map(Change::Put));
                }
                DiffItem::Remove(_, object) => {
                    let (namespace, name) = (object.namespace().to_owned(), object.name().to_owned());
                    changes.push(Change::Gone { namespace, name });
                }
            }
        }
        seen.0 = Some(Box::new(now));
        changes
    }

    async fn settle(&self, resource: Resource) -> status::Result<()> {
        match self.find(resource.group, resource.plural) {
            Some(cacher) => cacher.wait_current(PATIENCE).await,
            None => Ok(()),
        }
    }
}
