//! What happened to an object at one revision, and how a watcher sees it.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;

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

/// The frames of one change by type: built for the first watcher, shared by the others, and gone
/// when the last of them has sent it (the ring of recent changes does not keep them).
#[derive(Debug, Default)]
pub(super) struct Frames([OnceLock<Bytes>; 3]);

impl Change {
    pub fn new(revision: u64, old: Option<Arc<CachedObject>>, new: Option<Arc<CachedObject>>) -> Self {
        Self { revision, old, new, gone: OnceLock::new() }
    }

    /// Bytes it keeps in memory, about. The old object is mostly the new one of an earlier change.
    pub fn cost(&self) -> usize {
        512 + self.new.as_ref().or(self.old.as_ref()).map_or(0, |object| object.json.len())
    }

    /// How it looks to one who sees only some objects: the old one or not, the new one or not.
    pub fn seen(&self, old: bool, new: bool, frames: &Arc<Frames>) -> Option<Delivery> {
        let old_seen = self.old.as_ref().filter(|_| old);
        let new_seen = self.new.as_ref().filter(|_| new);
        let (what, object) = match (old_seen, new_seen) {
            (None, None) => return None,
            (None, Some(new)) => (What::Added, new.clone()),
            (Some(_), Some(new)) => (What::Modified, new.clone()),
            (Some(old), None) => (What::Deleted, self.gone.get_or_init(|| Arc::new(old.at(self.revision))).clone()),
        };
        Some(Delivery { what, object, revision: self.revision, frames: frames.clone() })
    }
}

/// An event for one watcher: from the stream of changes, or from the state it began with.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub what: What,
    pub object: Arc<CachedObject>,
    /// The revision at which it happened; 0 for the initial state.
    pub(super) revision: u64,
    frames: Arc<Frames>,
}

impl Delivery {
    /// An object that was there before the watch began.
    pub(super) fn initial(object: Arc<CachedObject>) -> Self {
        Self { what: What::Added, object, revision: 0, frames: Arc::default() }
    }

    /// The event as JSON on a line, `{"type":…,"object":…}`. Watchers of one change share the bytes.
    pub fn frame(&self) -> Bytes {
        self.frames.0[self.what as usize].get_or_init(|| frame(self.what, &self.object.json)).clone()
    }
}

fn frame(what: What, json: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(json.len() + 32);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(what.as_str().as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    out.extend_from_slice(json);
    out.extend_from_slice(b"}\n");
    out.into()
}
