//! What happened to an object at one revision, and how a watcher sees it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use machinery::status;

use super::object::CachedObject;

/// The type of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Added,
    Modified,
    Deleted,
}

impl What {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One commit, with what it replaced.
#[derive(Debug)]
pub(super) struct Change {
    pub revision: u64,
    pub old: Option<Arc<CachedObject>>,
    pub new: Option<Arc<CachedObject>>,
    /// The old object under this revision, for those to whom it is gone.
    gone: OnceLock<Arc<CachedObject>>,
}

/// The forms of an event that its watchers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    Json,
    Protobuf,
    /// Of the object's metadata only.
    MetadataJson,
    MetadataProtobuf,
}

/// How many there are.
const FORMS: usize = 4;

/// The frames of one change by form and type: built for the first watcher, shared by the others, and
/// gone when the last of them has sent it (the ring of recent changes does not keep them).
#[derive(Debug, Default)]
pub(super) struct Frames([[OnceLock<Bytes>; 3]; FORMS]);

impl Change {
    pub fn new(revision: u64, old: Option<Arc<CachedObject>>, new: Option<Arc<CachedObject>>) -> Self {
        Self { revision, old, new, gone: OnceLock::new() }
    }

    /// Bytes it keeps in memory, about. The old object is mostly the new one of an earlier change.
    pub fn cost(&self) -> usize {
        512 + self.new.as_ref().or(self.old.as_ref()).map_or(0, |object| object.json.len())
    }

    /// How it looks to one who sees only some objects: the old one or not, the new one or not.
    pub fn seen(&self, old: bool, new: bool, frames: Option<&Arc<Frames>>) -> Option<Delivery> {
        let old_seen = self.old.as_ref().filter(|_| old);
        let new_seen = self.new.as_ref().filter(|_| new);
        let (what, object) = match (old_seen, new_seen) {
            (None, None) => return None,
            (None, Some(new)) => (What::Added, new.clone()),
            (Some(_), Some(new)) => (What::Modified, new.clone()),
            (Some(old), None) => (What::Deleted, self.gone.get_or_init(|| Arc::new(old.at(self.revision))).clone()),
        };
        let before = self.old.clone();
        Some(Delivery { what, object, before, revision: self.revision, frames: frames.cloned() })
    }
}

/// An event for one watcher: from the stream of changes, or from the state it began with.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub what: What,
    pub object: Arc<CachedObject>,
    /// What a change replaced, whoever saw it.
    before: Option<Arc<CachedObject>>,
    /// The revision at which it happened; 0 for the initial state.
    pub(super) revision: u64,
    /// What the watchers of the change share; an object of the initial state is one watcher's own.
    frames: Option<Arc<Frames>>,
}

impl Delivery {
    /// An object that was there before the watch began.
    pub(super) fn initial(object: Arc<CachedObject>) -> Self {
        Self { what: What::Added, object, before: None, revision: 0, frames: None }
    }

    /// The same event of the object in another form, which nobody shares.
    #[must_use]
    pub fn with(self, object: Arc<CachedObject>) -> Self {
        Self { object, frames: None, ..self }
    }

    /// The object before and after the change.
    pub fn sides(&self) -> (Option<Arc<CachedObject>>, Option<Arc<CachedObject>>) {
        (self.before.clone(), (self.what != What::Deleted).then(|| self.object.clone()))
    }

    /// The event for one who sees these forms of the object before and after the change, or does not.
    #[must_use]
    pub fn between(self, before: Option<Arc<CachedObject>>, after: Option<Arc<CachedObject>>) -> Option<Self> {
        let (what, object) = match (before, after) {
            (None, None) => return None,
            (None, Some(after)) => (What::Added, after),
            (Some(_), Some(after)) => (What::Modified, after),
            (Some(before), None) => (What::Deleted, Arc::new(before.at(self.revision))),
        };
        Some(Self { what, object, frames: None, ..self })
    }

    /// The event in a form: what another watcher of the same change has made, else what `make` makes.
    ///
    /// # Errors
    /// As `make`.
    pub fn frame(&self, form: Shared, make: impl FnOnce() -> status::Result<Bytes>) -> status::Result<Bytes> {
        let Some(frames) = &self.frames else { return make() };
        let slot = &frames.0[form as usize][self.what as usize];
        match slot.get() {
            Some(made) => Ok(made.clone()),
            None => {
                let made = make()?;
                Ok(slot.get_or_init(|| made).clone())
            }
        }
    }
}
