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
    /// Frames by type: built for the first watcher, shared by the others.
    frames: [OnceLock<Bytes>; 3],
}

impl Change {
    pub fn new(revision: u64, old: Option<Arc<CachedObject>>, new: Option<Arc<CachedObject>>) -> Self {
        Self { revision, old, new, gone: OnceLock::new(), frames: Default::default() }
    }

    /// Bytes it keeps in memory, about: its objects, the frames of them, the structures.
    pub fn cost(&self) -> usize {
        let json = |object: &Option<Arc<CachedObject>>| object.as_ref().map_or(0, |o| o.json.len());
        512 + 2 * json(&self.old).max(json(&self.new))
    }

    /// How it looks to one who sees only some objects: the old one or not, the new one or not.
    pub fn seen(self: &Arc<Self>, old: bool, new: bool) -> Option<Delivery> {
        let old_seen = self.old.as_ref().filter(|_| old);
        let new_seen = self.new.as_ref().filter(|_| new);
        let (what, object) = match (old_seen, new_seen) {
            (None, None) => return None,
            (None, Some(new)) => (What::Added, new.clone()),
            (Some(_), Some(new)) => (What::Modified, new.clone()),
            (Some(old), None) => (What::Deleted, self.gone.get_or_init(|| Arc::new(old.at(self.revision))).clone()),
        };
        Some(Delivery { what, object, change: Some(self.clone()) })
    }
}

/// An event for one watcher: from the stream of changes, or from the state it began with.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub what: What,
    pub object: Arc<CachedObject>,
    change: Option<Arc<Change>>,
}

impl Delivery {
    /// An object that was there before the watch began.
    pub(super) fn initial(object: Arc<CachedObject>) -> Self {
        Self { what: What::Added, object, change: None }
    }

    /// The revision at which it happened; 0 for the initial state.
    pub(super) fn revision(&self) -> u64 {
        self.change.as_ref().map_or(0, |change| change.revision)
    }

    /// The event as JSON on a line, `{"type":…,"object":…}`. Watchers of one change share the bytes.
    pub fn frame(&self) -> Bytes {
        match &self.change {
            Some(change) => {
                change.frames[self.what as usize].get_or_init(|| frame(self.what, &self.object.json)).clone()
            }
            None => frame(self.what, &self.object.json),
        }
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
