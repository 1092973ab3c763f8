//! One watch: a bounded queue the cache fills, and the stream that empties it.
//!
//! ```text
//!  initial state (if asked for) ─► bookmark "initial events end" ─► queue … with a bookmark a minute
//! ```
//!
//! A watcher whose queue is full is dropped from the cache. It delivers what it has and ends; its
//! client comes back with the last revision it saw. No watcher ever waits for another.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use machinery::status::Status;
use machinery::{fields, labels};
use stdx::SharedClock;
use stdx::clock::Instant;
use tokio::sync::{mpsc, watch};

use super::change::{Change, Delivery, Frames};
use super::object::CachedObject;
use super::snapshot::Snapshot;

/// What is seen of a kind.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Empty for all namespaces.
    pub namespace: String,
    /// Empty for all names.
    pub name: String,
    pub labels: labels::Selector,
    pub fields: fields::Selector,
}

impl Default for Filter {
    fn default() -> Self {
        let (labels, fields) = (labels::Selector::everything(), fields::Selector::everything());
        Self { namespace: String::new(), name: String::new(), labels, fields }
    }
}

impl Filter {
    /// True for objects it lets through. A damaged object passes: nobody may think it is gone.
    pub fn passes(&self, object: &CachedObject) -> bool {
        (self.namespace.is_empty() || self.namespace == object.namespace())
            && (self.name.is_empty() || self.name == object.name())
            && (object.damage.is_some()
                || (self.labels.matches(&*object.labels) && self.fields.matches(&*object.fields)))
    }

    /// The one name it lets through, if it is only one.
    fn exact_name(&self) -> Option<&str> {
        if self.name.is_empty() { self.fields.requires_exact("metadata.name") } else { Some(&self.name) }
    }

    /// True when it restricts nothing but the namespace: what remains of a list can then be counted.
    pub fn is_namespace_only(&self) -> bool {
        self.name.is_empty() && self.labels.is_empty() && self.fields.is_empty()
    }

    /// The objects it lets through, in key order, from `start` on; by an index where one serves.
    pub fn select<'a>(&'a self, snapshot: &'a Snapshot, start: Option<&'a str>) -> super::snapshot::Iter<'a> {
        let from = move |object: &&Arc<CachedObject>| start.is_none_or(|start| *object.key >= *start);
        for field in self.fields.fields() {
            let exact = self.fields.requires_exact(field).filter(|value| !value.is_empty());
            if let Some(found) = exact.and_then(|value| snapshot.by_field(field, value)) {
                return Box::new(found.filter(from).filter(|object| self.passes(object)));
            }
        }
        Box::new(snapshot.range(&self.namespace, start).filter(|object| self.passes(object)))
    }
}

/// How a watch begins and what it carries.
#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    pub filter: Filter,
    /// Changes after this revision; `None`: the current state as ADDED events, then changes.
    pub after: Option<u64>,
    /// With bookmarks: one that marks the end of the state the watch begins with.
    pub marks_end: bool,
    /// Bookmarks now and then.
    pub bookmarks: bool,
    /// The stream ends after this time.
    pub timeout: Option<Duration>,
}

/// One item of a watch.
#[derive(Clone, Debug)]
pub enum WatchItem {
    Event(Delivery),
    /// Everything up to this revision has been delivered.
    Bookmark {
        revision: u64,
        initial_events_end: bool,
    },
    /// An object that cannot be read; the watch ends.
    Error(Box<Status>),
}

/// Which changes a watcher must be shown: each is in one bucket, so that a change looks only at those
/// who may care. A node's kubelet, for example, is in the bucket of `spec.nodeName=<node>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Bucket {
    All,
    Namespace(String),
    Name(String),
    Field(String, String),
}

impl Bucket {
    fn of(filter: &Filter) -> Self {
        let exact = |field| filter.fields.requires_exact(field).map(|value| (field, value));
        if let Some(name) = filter.exact_name() {
            return Self::Name(name.to_owned());
        }
        if let Some((field, value)) = filter.fields.fields().find_map(exact) {
            return Self::Field(field.to_owned(), value.to_owned());
        }
        if filter.namespace.is_empty() { Self::All } else { Self::Namespace(filter.namespace.clone()) }
    }
}

struct Registered {
    filter: Filter,
    queue: mpsc::Sender<Delivery>,
}

/// The watchers of one kind.
#[derive(Default)]
pub(super) struct Watchers {
    buckets: HashMap<Bucket, HashMap<u64, Registered>>,
    /// How many buckets there are of each field.
    fields: HashMap<String, usize>,
    next: u64,
}

impl Watchers {
    pub fn add(&mut self, filter: Filter, queue: mpsc::Sender<Delivery>) {
        self.next += 1;
        let bucket = Bucket::of(&filter);
        if let (Bucket::Field(field, _), false) = (&bucket, self.buckets.contains_key(&bucket)) {
            *self.fields.entry(field.clone()).or_default() += 1;
        }
        self.buckets.entry(bucket).or_default().insert(self.next, Registered { filter, queue });
    }

    pub fn len(&self) -> usize {
        self.buckets.values().map(HashMap::len).sum()
    }

    /// Ends all of them.
    pub fn clear(&mut self) {
        *self = Self { next: self.next, ..Self::default() };
    }

    /// Forgets those whose clients have gone.
    pub fn sweep(&mut self) {
        for bucket in self.buckets.values_mut() {
            bucket.retain(|_, watcher| !watcher.queue.is_closed());
        }
        let empty: Vec<_> = self.buckets.iter().filter(|(_, b)| b.is_empty()).map(|(k, _)| k.clone()).collect();
        empty.iter().for_each(|bucket| self.remove_bucket(bucket));
    }

    fn remove_bucket(&mut self, bucket: &Bucket) {
        self.buckets.remove(bucket);
        if let Bucket::Field(field, _) = bucket {
            if let Some(count) = self.fields.get_mut(field) {
                *count -= 1;
                if *count == 0 {
                    self.fields.remove(field);
                }
            }
        }
    }

    /// Shows a change to those it concerns.
    pub fn deliver(&mut self, change: &Change) {
        if self.buckets.is_empty() {
            return;
        }
        let frames = Arc::new(Frames::default());
        for bucket in self.concerned(change) {
            let Some(watchers) = self.buckets.get_mut(&bucket) else { continue };
            watchers.retain(|_, watcher| {
                let passes =
                    |object: &Option<Arc<CachedObject>>| object.as_ref().is_some_and(|o| watcher.filter.passes(o));
                match change.seen(passes(&change.old), passes(&change.new), Some(&frames)) {
                    // Full or gone: it ends, and loses nothing it cannot ask for again.
                    Some(delivery) => watcher.queue.try_send(delivery).is_ok(),
                    None => true,
                }
            });
            if watchers.is_empty() {
                self.remove_bucket(&bucket);
            }
        }
    }

    fn concerned(&self, change: &Change) -> Vec<Bucket> {
        let objects = || [&change.old, &change.new].into_iter().flatten();
        let mut buckets = vec![Bucket::All];
        if let Some(object) = objects().next() {
            buckets.push(Bucket::Namespace(object.namespace().to_owned()));
            buckets.push(Bucket::Name(object.name().to_owned()));
        }
        for field in self.fields.keys() {
            let values = objects().map(|o| o.fields.get(field).cloned().unwrap_or_default());
            let first = buckets.len();
            for value in values {
                let bucket = Bucket::Field(field.clone(), value);
                if !buckets[first..].contains(&bucket) {
                    buckets.push(bucket);
                }
            }
        }
        // A damaged object has no fields; all who may have known it hear of it.
        if objects().any(|o| o.damage.is_some()) {
            buckets.extend(self.buckets.keys().filter(|b| matches!(b, Bucket::Field(..))).cloned());
            let mut seen = std::collections::HashSet::new();
            buckets.retain(|bucket| seen.insert(bucket.clone()));
        }
        buckets
    }
}

/// The state a watch begins with, read bit by bit.
struct Initial {
    snapshot: Snapshot,
    next: Option<String>,
    ready: VecDeque<Arc<CachedObject>>,
    marks_end: bool,
}

/// Objects of the initial state looked up at a time.
const CHUNK: usize = 256;

impl Initial {
    fn pop(&mut self, filter: &Filter) -> Option<Arc<CachedObject>> {
        if self.ready.is_empty() {
            let start = self.next.take()?;
            self.ready.extend(filter.select(&self.snapshot, Some(&start)).take(CHUNK).cloned());
            if self.ready.len() == CHUNK {
                // The key that follows the last one.
                self.next = self.ready.back().map(|last| format!("{}\0", last.key));
            }
        }
        self.ready.pop_front()
    }
}

/// A running watch.
pub struct Watcher {
    filter: Filter,
    initial: Option<Initial>,
    /// Changes that happened between `after` and the registration.
    backlog: VecDeque<Delivery>,
    queue: mpsc::Receiver<Delivery>,
    reached: watch::Receiver<u64>,
    clock: SharedClock,
    bookmarks: Option<Bookmarks>,
    ends: Option<Instant>,
    /// Everything up to here has been delivered, or was known to the client before.
    seen: u64,
    broken: bool,
}

struct Bookmarks {
    every: Duration,
    next: Instant,
}

/// How long before its end a watch sends a last bookmark.
const BEFORE_END: Duration = Duration::from_secs(2);

pub(super) struct Parts {
    pub snapshot: Option<Snapshot>,
    pub backlog: VecDeque<Delivery>,
    pub queue: mpsc::Receiver<Delivery>,
    pub reached: watch::Receiver<u64>,
    pub clock: SharedClock,
    /// The usual time between bookmarks.
    pub every: Duration,
}

impl Watcher {
    pub(super) fn new(options: WatchOptions, parts: Parts) -> Self {
        let now = parts.clock.now();
        let ends = options.timeout.map(|timeout| now + timeout);
        let bookmarks = options.bookmarks.then(|| Bookmarks { every: parts.every, next: now + parts.every });
        let from_revision = parts.snapshot.is_none();
        let initial = parts.snapshot.map(|snapshot| Initial {
            snapshot,
            next: Some(String::new()),
            ready: VecDeque::new(),
            marks_end: options.marks_end && options.bookmarks,
        });
        let mut watcher = Self {
            filter: options.filter,
            initial,
            backlog: parts.backlog,
            queue: parts.queue,
            reached: parts.reached,
            clock: parts.clock,
            bookmarks,
            ends,
            seen: options.after.filter(|_| from_revision).unwrap_or(0),
            broken: false,
        };
        watcher.plan_last_bookmark(now);
        watcher
    }

    /// The next item; `None` when the watch has ended: its time is over, it was too slow, or the
    /// cache began anew. The client resumes from the last revision it saw.
    pub async fn next(&mut self) -> Option<WatchItem> {
        if self.broken {
            return None;
        }
        if let Some(initial) = &mut self.initial {
            if let Some(object) = initial.pop(&self.filter) {
                return Some(self.item(Delivery::initial(object)));
            }
            let (revision, marks_end) = (initial.snapshot.revision, initial.marks_end);
            self.initial = None;
            self.seen = revision;
            if marks_end {
                return Some(WatchItem::Bookmark { revision, initial_events_end: true });
            }
        }
        if let Some(delivery) = self.backlog.pop_front() {
            return Some(self.item(delivery));
        }
        loop {
            let now = self.clock.now();
            if self.ends.is_some_and(|ends| ends <= now) {
                return None;
            }
            let wake = [self.ends, self.bookmarks.as_ref().map(|b| b.next)].into_iter().flatten().min();
            let delivery = if self.bookmarks.as_ref().is_some_and(|b| b.next <= now) {
                // Read before the queue: what was reached has been queued.
                let reached = *self.reached.borrow();
                match self.queue.try_recv() {
                    Ok(delivery) => Some(delivery),
                    Err(mpsc::error::TryRecvError::Disconnected) => None,
                    Err(mpsc::error::TryRecvError::Empty) => {
                        self.plan_bookmark(now);
                        self.seen = self.seen.max(reached);
                        return Some(WatchItem::Bookmark { revision: self.seen, initial_events_end: false });
                    }
                }
            } else if let Some(wake) = wake {
                tokio::select! {
                    biased;
                    delivery = self.queue.recv() => delivery,
                    () = self.clock.sleep_until(wake) => continue,
                }
            } else {
                self.queue.recv().await
            };
            let delivery = delivery?;
            // A client may name a revision that this server has yet to reach.
            if delivery.revision > self.seen {
                return Some(self.item(delivery));
            }
        }
    }

    fn item(&mut self, delivery: Delivery) -> WatchItem {
        self.seen = self.seen.max(delivery.revision);
        match &delivery.object.damage {
            Some(damage) => {
                self.broken = true;
                WatchItem::Error(Status::internal(damage))
            }
            None => WatchItem::Event(delivery),
        }
    }

    fn plan_bookmark(&mut self, now: Instant) {
        if let Some(bookmarks) = &mut self.bookmarks {
            bookmarks.next = now + bookmarks.every;
        }
        self.plan_last_bookmark(now);
    }

    /// Brings the next bookmark forward to shortly before the end, unless that has passed.
    fn plan_last_bookmark(&mut self, now: Instant) {
        if let (Some(bookmarks), Some(ends)) = (&mut self.bookmarks, self.ends) {
            let last = Instant(ends.0.saturating_sub(BEFORE_END));
            if last > now && last < bookmarks.next {
                bookmarks.next = last;
            }
        }
    }

    /// The items as a stream.
    pub fn into_stream(self) -> impl Stream<Item = WatchItem> + Send {
        futures::stream::unfold(self, |mut watcher| async move { watcher.next().await.map(|item| (item, watcher)) })
    }
}
