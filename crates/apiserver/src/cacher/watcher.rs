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
use std::task::{Context, Poll};
use std::time::Duration;

use machinery::labels::Lookup as _;
use machinery::status::Status;
use machinery::{fields, labels};
use stdx::SharedClock;
use stdx::clock::{Instant, Sleep};
use tokio::sync::{mpsc, watch};

use super::change::{Change, Delivery, Frames};
use super::object::CachedObject;
use super::scan::Scan;
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

    /// The key of the one object it can let through, where that is known.
    pub(super) fn key(&self, namespaced: bool) -> Option<String> {
        let name = self.exact_name()?;
        match self.range_namespace(namespaced) {
            "" if namespaced => None,
            namespace if namespaced => Some(format!("{namespace}/{name}")),
            _ => Some(name.to_owned()),
        }
    }

    /// The one namespace it lets through; empty when there may be several, or none.
    pub(super) fn range_namespace(&self, namespaced: bool) -> &str {
        let selected = self.fields.requires_exact("metadata.namespace").filter(|_| namespaced);
        if self.namespace.is_empty() { selected.unwrap_or_default() } else { &self.namespace }
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
            let values = objects().map(|o| o.fields.text(field).unwrap_or_default().to_owned());
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
    scan: Scan,
    ready: VecDeque<Arc<CachedObject>>,
    marks_end: bool,
}

/// Objects of the initial state held ready.
const CHUNK: usize = 256;

/// A running watch.
pub struct Watcher {
    initial: Option<Initial>,
    /// Changes that happened between `after` and the registration.
    backlog: VecDeque<Delivery>,
    queue: mpsc::Receiver<Delivery>,
    reached: watch::Receiver<u64>,
    clock: SharedClock,
    bookmarks: Option<Bookmarks>,
    ends: Option<Instant>,
    /// Wakes it for its end or a bookmark; set anew only when that moves.
    timer: Option<(Instant, Sleep)>,
    /// Where it began: there is nothing to say of that.
    begun: u64,
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
        let seen = options.after.filter(|_| from_revision).unwrap_or(0);
        let begun = parts.snapshot.as_ref().map_or(seen, |snapshot| snapshot.revision);
        let initial = parts.snapshot.map(|snapshot| Initial {
            scan: Scan::new(options.filter, snapshot, None),
            ready: VecDeque::new(),
            marks_end: options.marks_end && options.bookmarks,
        });
        let mut watcher = Self {
            initial,
            backlog: parts.backlog,
            queue: parts.queue,
            reached: parts.reached,
            clock: parts.clock,
            bookmarks,
            ends,
            timer: None,
            begun,
            seen,
            broken: false,
        };
        watcher.plan_last_bookmark(now);
        watcher
    }

    /// The next item; `None` when the watch has ended: its time is over, it was too slow, or the
    /// cache began anew. The client resumes from the last revision it saw.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        if self.broken {
            return Poll::Ready(None);
        }
        if self.initial.is_some() {
            match self.poll_initial(cx) {
                Poll::Ready(Some(item)) => return Poll::Ready(Some(item)),
                Poll::Ready(None) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
        if let Some(delivery) = self.backlog.pop_front() {
            return Poll::Ready(Some(self.item(delivery)));
        }
        loop {
            if self.ends.is_some_and(|ends| ends <= self.clock.now()) {
                return Poll::Ready(None);
            }
            // Read before the queue: what was reached has been queued.
            let reached = *self.reached.borrow();
            match self.queue.poll_recv(cx) {
                // A client may name a revision that this server has yet to reach.
                Poll::Ready(Some(delivery)) if delivery.revision > self.seen => {
                    return Poll::Ready(Some(self.item(delivery)));
                }
                Poll::Ready(Some(_)) => continue,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {}
            }
            let bookmark = self.bookmarks.as_ref().map(|b| b.next);
            let Some(wake) = [self.ends, bookmark].into_iter().flatten().min() else { return Poll::Pending };
            let timer = match self.timer.take().filter(|(at, _)| *at == wake) {
                Some((_, timer)) => timer,
                None => self.clock.sleep_until(wake),
            };
            let (_, timer) = self.timer.insert((wake, timer));
            std::task::ready!(timer.as_mut().poll(cx));
            self.timer = None;
            if bookmark == Some(wake) {
                self.plan_bookmark(self.clock.now());
                if reached > self.begun {
                    self.seen = self.seen.max(reached);
                    let revision = self.seen;
                    return Poll::Ready(Some(WatchItem::Bookmark { revision, initial_events_end: false }));
                }
            }
        }
    }

    /// [`poll_next`](Watcher::poll_next) as a future.
    pub async fn next(&mut self) -> Option<WatchItem> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next item of the state it begins with; `None` at its end.
    fn poll_initial(&mut self, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        let Some(initial) = &mut self.initial else { return Poll::Ready(None) };
        if initial.ready.is_empty() && !initial.scan.is_over() {
            initial.scan.step(CHUNK, &mut initial.ready);
        }
        if let Some(object) = initial.ready.pop_front() {
            return Poll::Ready(Some(self.item(Delivery::initial(object))));
        }
        if !initial.scan.is_over() {
            // Nothing matched in a long stretch: others first.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let (revision, marks_end) = (initial.scan.snapshot().revision, initial.marks_end);
        self.initial = None;
        self.seen = revision;
        Poll::Ready(marks_end.then_some(WatchItem::Bookmark { revision, initial_events_end: true }))
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
}
