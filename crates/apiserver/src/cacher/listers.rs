//! The server's own readers (authorization, admission, tokens) over the watch cache.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use imbl::ordmap::DiffItem;
use machinery::status;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use stdx::ClockExt;

use super::object::CachedObject;
use super::snapshot::Objects as Table;
use super::{Cacher, Cachers, Filter, WatchItem, WatchOptions, What};
use crate::objects::{Change, Objects, Resource, Seen};

/// How long a reader waits for the cache to show what has been acknowledged.
const PATIENCE: Duration = Duration::from_secs(3);

/// What changes by somebody's wish, as the text that stands in the object.
#[derive(Deserialize, PartialEq)]
struct Wished<'a> {
    #[serde(borrow)]
    metadata: Notes<'a>,
    #[serde(borrow, default)]
    spec: Text<'a>,
}

#[derive(Deserialize, PartialEq)]
struct Notes<'a> {
    #[serde(borrow, default)]
    annotations: Text<'a>,
}

/// A piece of JSON as it is written; empty where there is none.
#[derive(Default, PartialEq)]
struct Text<'a>(&'a str);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&'de RawValue>::deserialize(deserializer).map(|raw| Self(raw.get()))
    }
}

/// The second of two states of an object says the same in its spec and its annotations. False where that cannot be
/// read.
fn wishes_the_same(before: &CachedObject, now: &CachedObject) -> bool {
    let read = |object: &CachedObject| object.damage.is_none();
    let (Ok(a), Ok(b)) =
        (serde_json::from_slice::<Wished<'_>>(&before.json), serde_json::from_slice::<Wished<'_>>(&now.json))
    else {
        return false;
    };
    read(before) && read(now) && before.uid == now.uid && a == b
}

/// What differs between two states of a kind, but for what `is_same` says of both states of an object.
fn differences(
    cacher: &Cacher,
    seen: &mut Seen,
    is_same: impl Fn(&CachedObject, &CachedObject) -> bool,
) -> Vec<Change> {
    let before = seen.0.take().and_then(|seen| seen.downcast::<Table>().ok()).unwrap_or_default();
    let now = cacher.snapshot().objects().clone();
    // Maps that share structure are compared only where they differ.
    let mut changes = Vec::new();
    for difference in before.diff(&now) {
        match difference {
            DiffItem::Update { old: (_, old), new: (_, new) } if is_same(&old.object, &new.object) => {}
            DiffItem::Add(_, slot) | DiffItem::Update { new: (_, slot), .. } => {
                changes.extend(tree(&slot.object).map(Change::Put));
            }
            DiffItem::Remove(_, slot) => {
                let object = &slot.object;
                let (namespace, name) = (object.namespace().to_owned(), object.name().to_owned());
                changes.push(Change::Gone { namespace, name });
            }
        }
    }
    seen.0 = Some(Box::new(now));
    changes
}

fn tree(object: &CachedObject) -> Option<Arc<Value>> {
    // A damaged object was reported when it was read.
    object.value().ok().map(Arc::new)
}

#[async_trait]
impl Objects for Cachers {
    fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let cacher = self.find(resource.group, resource.plural)?;
        if cacher.kind.shape().is_namespaced() {
            cacher.tree(&format!("{namespace}/{name}"))
        } else {
            cacher.tree(name)
        }
    }

    fn changes(&self, resource: Resource, seen: &mut Seen) -> Vec<Change> {
        let Some(cacher) = self.find(resource.group, resource.plural) else { return Vec::new() };
        differences(cacher, seen, |_, _| false)
    }

    fn changes_of_spec(&self, resource: Resource, seen: &mut Seen) -> Vec<Change> {
        let Some(cacher) = self.find(resource.group, resource.plural) else { return Vec::new() };
        differences(cacher, seen, wishes_the_same)
    }

    async fn settle(&self, resource: Resource) -> status::Result<()> {
        match self.find(resource.group, resource.plural) {
            Some(cacher) => cacher.wait_current(PATIENCE).await,
            None => Ok(()),
        }
    }

    async fn appears(&self, resource: Resource, namespace: &str, name: &str) -> status::Result<Arc<Value>> {
        let Some(cacher) = self.find(resource.group, resource.plural) else {
            return std::future::pending().await;
        };
        loop {
            // The state first, so that nothing is missed; a watch that ends is begun anew.
            let filter = Filter { namespace: namespace.into(), name: name.into(), ..Filter::default() };
            let mut watch = cacher.watch(WatchOptions { filter, ..WatchOptions::default() })?;
            while let Some(item) = watch.next().await {
                match item {
                    WatchItem::Event(delivery) if delivery.what != What::Deleted => {
                        return delivery.object.value().map(Arc::new);
                    }
                    WatchItem::Error(status) => return Err(status),
                    WatchItem::Event(_) | WatchItem::Bookmark { .. } => {}
                }
            }
            cacher.clock().sleep(Duration::from_millis(10)).await;
        }
    }
}
