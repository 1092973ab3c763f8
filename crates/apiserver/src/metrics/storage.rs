//! How long the store takes and how large it is, under the names that etcd's client has upstream: dashboards and
//! alerts look for them, whatever the store is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use stdx::SharedClock;
use stdx::clock::Instant;
use stdx::metrics::hot::Hot;
use stdx::metrics::{Page, Type};
use storage::{Committed, Entry, Error, Expect, Op, RangeOptions, Revision, Store, WatchStream};

use super::BUCKETS;

/// Resources that are told apart; what is beyond is counted under none.
const SERIES: usize = 1024;
/// Before every key of an object.
const ROOT: &str = "/registry/";
/// What a request to the store does, by upstream's names.
const OPERATIONS: [&str; 5] = ["get", "list", "create", "update", "delete"];

#[derive(Clone, Copy)]
enum Operation {
    Get,
    List,
    Create,
    Update,
    Delete,
}

impl From<&Op> for Operation {
    fn from(op: &Op) -> Self {
        match op {
            Op::Put { expect: Expect::Absent, .. } => Self::Create,
            Op::Put { .. } => Self::Update,
            Op::Delete { .. } => Self::Delete,
        }
    }
}

/// What was asked of the store about one resource.
struct Asked {
    group: String,
    resource: String,
    took: [Hot; OPERATIONS.len()],
    failed: [AtomicU64; OPERATIONS.len()],
    /// Entries that lists have read.
    listed: AtomicU64,
}

impl Asked {
    fn about(group: &str, resource: &str) -> Arc<Self> {
        Arc::new(Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
            took: std::array::from_fn(|_| Hot::new(&BUCKETS)),
            failed: std::array::from_fn(|_| AtomicU64::new(0)),
            listed: AtomicU64::new(0),
        })
    }
}

/// What is counted. Clones share it.
#[derive(Clone, Default)]
pub struct Storage(Arc<Mutex<BTreeMap<String, Arc<Asked>>>>);

impl Storage {
    /// Of built-in kinds the names are known; those of custom ones stand in their keys.
    pub fn new() -> Self {
        let known = kinds::stored().map(|kind| {
            let shape = kind.shape();
            (shape.prefix.to_owned(), Asked::about(shape.group, shape.plural))
        });
        Self(Arc::new(Mutex::new(known.collect())))
    }

    /// A store whose work is counted here.
    pub fn measure(&self, store: Arc<dyn Store>, clock: &SharedClock) -> Arc<dyn Store> {
        Arc::new(Measured { store, clock: clock.clone(), counts: self.clone() })
    }

    /// Where what is done to a key is counted.
    fn of(&self, key: &[u8]) -> Arc<Asked> {
        let key = std::str::from_utf8(key).ok().and_then(|key| key.strip_prefix(ROOT)).unwrap_or_default();
        let first = key.split('/').next().unwrap_or_default();
        // The prefix of a kind is one part of the key, or two.
        let both = key[first.len()..].strip_prefix('/').and_then(|rest| rest.split('/').next()).unwrap_or_default();
        let both = if both.is_empty() { first } else { &key[..=first.len() + both.len()] };
        let mut all = self.0.lock();
        if let Some(asked) = all.get(both).or_else(|| all.get(first)) {
            return asked.clone();
        }
        let (group, resource) = both.split_once('/').unwrap_or_default();
        let (name, group, resource) = if all.len() < SERIES { (both, group, resource) } else { ("", "", "") };
        all.entry(name.to_owned()).or_insert_with(|| Asked::about(group, resource)).clone()
    }

    /// Writes the families; `size` is how large the store is.
    pub fn render(&self, page: &mut Page, size: u64) {
        let all: Vec<Arc<Asked>> = self.0.lock().values().cloned().collect();
        let mut told = Vec::new();
        for asked in &all {
            for (at, operation) in OPERATIONS.iter().enumerate().filter(|(at, _)| asked.took[*at].count() > 0) {
                let labels =
                    [("operation", *operation), ("group", asked.group.as_str()), ("resource", asked.resource.as_str())];
                told.push((labels, &asked.took[at], asked.failed[at].load(Ordering::Relaxed)));
            }
        }
        let name = "etcd_request_duration_seconds";
        page.family(name, Type::Histogram, "Store request latency in seconds for each operation and object type.");
        told.iter().for_each(|(labels, hot, _)| hot.render(page, name, labels));
        let name = "etcd_requests_total";
        page.family(name, Type::Counter, "Store request counts for each operation and object type.");
        told.iter().for_each(|(labels, hot, _)| page.sample(name, labels, hot.count() as f64));
        let name = "etcd_request_errors_total";
        page.family(name, Type::Counter, "Store failed request counts for each operation and object type.");
        told.iter().for_each(|(labels, _, failed)| page.sample(name, labels, *failed as f64));
        let lists: Vec<_> = all.iter().filter(|asked| asked.took[Operation::List as usize].count() > 0).collect();
        let mut family = |name: &str, help: &str, value: &dyn Fn(&Asked) -> u64| {
            page.family(name, Type::Counter, help);
            for asked in &lists {
                let labels = [("group", asked.group.as_str()), ("resource", asked.resource.as_str())];
                page.sample(name, &labels, value(asked) as f64);
            }
        };
        let count = |asked: &Asked| asked.took[Operation::List as usize].count();
        family("apiserver_storage_list_total", "Number of LIST requests served from storage", &count);
        // Selectors are asked by the cache: what the store reads it returns.
        let listed = |asked: &Asked| asked.listed.load(Ordering::Relaxed);
        for (what, help) in [
            ("fetched", "Number of objects read from storage in the course of serving a LIST request"),
            ("evaluated", "Number of objects tested in the course of serving a LIST request from storage"),
            ("returned", "Number of objects returned for a LIST request from storage"),
        ] {
            family(&format!("apiserver_storage_list_{what}_objects_total"), help, &listed);
        }
        let name = "apiserver_storage_size_bytes";
        page.family(name, Type::Gauge, "Size of the storage database file physically allocated in bytes.");
        page.sample(name, &[("storage_cluster_id", "embedded")], size as f64);
    }
}

/// A store, and a look at the clock before and after.
struct Measured {
    store: Arc<dyn Store>,
    clock: SharedClock,
    counts: Storage,
}

impl Measured {
    fn done<T>(&self, key: &[u8], operation: Operation, began: Instant, outcome: &Result<T, Error>) {
        let (asked, at) = (self.counts.of(key), operation as usize);
        asked.took[at].observe(self.clock.now().since(began).as_secs_f64());
        // Who was overtaken was answered in order.
        if outcome.as_ref().is_err_and(|error| !matches!(error, Error::Conflict { .. })) {
            asked.failed[at].fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[async_trait]
impl Store for Measured {
    async fn get(&self, key: &[u8]) -> Result<Option<Entry>, Error> {
        let began = self.clock.now();
        let found = self.store.get(key).await;
        self.done(key, Operation::Get, began, &found);
        found
    }

    async fn range(&self, prefix: &[u8], options: RangeOptions) -> Result<storage::Page, Error> {
        let began = self.clock.now();
        let found = self.store.range(prefix, options).await;
        self.done(prefix, Operation::List, began, &found);
        if let Ok(page) = &found {
            self.counts.of(prefix).listed.fetch_add(page.entries.len() as u64, Ordering::Relaxed);
        }
        found
    }

    async fn commit(&self, op: Op) -> Result<Committed, Error> {
        let (began, key, operation) = (self.clock.now(), op.key().clone(), Operation::from(&op));
        let committed = self.store.commit(op).await;
        self.done(&key, operation, began, &committed);
        committed
    }

    fn watch(&self, prefix: &[u8], after: Revision) -> Result<WatchStream, Error> {
        self.store.watch(prefix, after)
    }

    fn revision(&self) -> Revision {
        self.store.revision()
    }

    async fn compact(&self, before: Revision) -> Result<(), Error> {
        self.store.compact(before).await
    }

    fn compacted(&self) -> Revision {
        self.store.compacted()
    }

    fn size(&self) -> u64 {
        self.store.size()
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use storage::{Memory, Urgency};

    #[test]
    fn keys_tell_whose_they_are_and_there_are_not_too_many() {
        let counts = Storage::new();
        let named = |key: &str| {
            let asked = counts.of(key.as_bytes());
            format!("{}/{}", asked.group, asked.resource)
        };
        for (key, want) in [
            ("/registry/pods/default/p", "/pods"),
            ("/registry/pods/", "/pods"),
            ("/registry/deployments/default/d", "apps/deployments"),
            ("/registry/services/specs/default/s", "/services"),
            ("/registry/services/endpoints/default/s", "/endpoints"),
            ("/registry/example.com/widgets/default/w", "example.com/widgets"),
            ("/elsewhere", "/"),
            ("", "/"),
        ] {
            assert_eq!(named(key), want, "{key}");
        }
        (0..2 * SERIES).for_each(|n| drop(counts.of(format!("/registry/g/r{n}/x").as_bytes())));
        assert!(counts.0.lock().len() <= SERIES + 1);
        assert_eq!(named("/registry/h/new/x"), "/");
    }

    #[tokio::test]
    async fn what_is_asked_of_the_store_is_counted() {
        let clock: SharedClock = Arc::new(stdx::clock::ManualClock::new(jiff::Timestamp::UNIX_EPOCH));
        let counts = Storage::new();
        let store = counts.measure(Arc::new(Memory::new(clock.clone())), &clock);
        let put = |expect| Op::Put {
            key: Bytes::from_static(b"/registry/pods/default/p"),
            value: Bytes::from_static(b"{}"),
            expect,
            urgency: Urgency::Now,
        };
        let done = store.commit(put(Expect::Absent)).await.expect("created");
        assert!(store.commit(put(Expect::Absent)).await.is_err());
        store.commit(put(Expect::At(done.revision))).await.expect("updated");
        assert!(store.get(b"/registry/pods/default/p").await.expect("read").is_some());
        for _ in 0..2 {
            store.range(b"/registry/pods/", RangeOptions::default()).await.expect("listed");
        }
        let huge = Op::Put {
            key: Bytes::from(vec![b'k'; storage::MAX_KEY + 1]),
            value: Bytes::new(),
            expect: Expect::Absent,
            urgency: Urgency::Now,
        };
        assert!(store.commit(huge).await.is_err());
        let mut page = Page::new();
        counts.render(&mut page, 7);
        let text = page.finish();
        for want in [
            "etcd_requests_total{operation=\"create\",group=\"\",resource=\"pods\"} 2",
            "etcd_request_errors_total{operation=\"create\",group=\"\",resource=\"pods\"} 0",
            "etcd_requests_total{operation=\"update\",group=\"\",resource=\"pods\"} 1",
            "etcd_request_duration_seconds_count{operation=\"get\",group=\"\",resource=\"pods\"} 1",
            "etcd_request_errors_total{operation=\"create\",group=\"\",resource=\"\"} 1",
            "apiserver_storage_list_total{group=\"\",resource=\"pods\"} 2",
            "apiserver_storage_list_fetched_objects_total{group=\"\",resource=\"pods\"} 2",
            "apiserver_storage_list_evaluated_objects_total{group=\"\",resource=\"pods\"} 2",
            "apiserver_storage_list_returned_objects_total{group=\"\",resource=\"pods\"} 2",
            "apiserver_storage_size_bytes{storage_cluster_id=\"embedded\"} 7",
        ] {
            assert!(text.lines().any(|line| line == want), "{want} is not in\n{text}");
        }
    }
}
