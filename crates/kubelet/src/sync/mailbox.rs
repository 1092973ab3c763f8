//! What a pod's task is told, coalesced: however much happens while it is busy, it finds the newest
//! state of everything once. Bounded by the pod's own size.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::lifecycle::Cause;
use crate::pod::BoundPod;
use crate::probe::prober::Told;
use crate::probe::threshold::Kind;
use crate::report::Wait;
use crate::runtime::{Happened, Hint, Sandbox};

/// Everything that was put in since the last look.
#[derive(Default)]
pub struct Inbox {
    /// The pod's object changed.
    pub pod: Option<Arc<BoundPod>>,
    /// The pod's object is gone.
    pub gone: bool,
    /// The object that shows a static pod, or that there is none.
    pub mirror: Option<Option<Arc<BoundPod>>>,
    /// Something happened in the runtime.
    pub runtime: bool,
    /// Sandboxes and containers that were reported to run.
    pub started: BTreeSet<String>,
    /// The sandbox that the start under way has made.
    pub made: Option<Sandbox>,
    /// Sandboxes and containers that were reported to have ended.
    pub ended: BTreeSet<String>,
    /// A ConfigMap or Secret of the pod changed.
    pub objects: bool,
    /// The node wants the pod gone, in so many seconds.
    pub evict: Option<(Cause, i64)>,
    /// The node is short of disk: a pod that has ended keeps no records and logs.
    pub give_back: bool,
    /// What nothing of the pod may begin before, or that it may.
    pub held: Option<Option<Wait>>,
    /// What probes found.
    pub told: BTreeMap<(String, Kind), Told>,
    /// Containers that wait (reason and message) or no longer do.
    pub waiting: BTreeMap<String, Option<(String, String)>>,
    /// Why containers could not be resized.
    pub resize_failed: Option<String>,
    /// What the step under way is waiting for.
    pub activity: Option<Option<Wait>>,
}

impl Inbox {
    /// Nothing but what the step under way waits for was put in.
    pub fn is_activity_alone(&self) -> bool {
        let Self {
            pod,
            gone,
            mirror,
            runtime,
            started,
            made,
            ended,
            objects,
            evict,
            give_back,
            held,
            told,
            waiting,
            resize_failed,
            activity: _,
        } = self;
        let nothing = pod.is_none() && mirror.is_none() && made.is_none() && evict.is_none() && held.is_none();
        let silent = started.is_empty() && ended.is_empty() && told.is_empty() && waiting.is_empty();
        nothing && silent && resize_failed.is_none() && !(*gone || *runtime || *objects || *give_back)
    }
}

/// The box.
#[derive(Default)]
pub struct Mailbox {
    inbox: Mutex<Inbox>,
    notify: Notify,
}

impl Mailbox {
    /// Puts something in.
    pub fn put(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut self.inbox.lock());
        self.notify.notify_one();
    }

    /// Something happened in the runtime.
    pub fn runtime(&self) {
        self.put(|inbox| inbox.runtime = true);
    }

    /// What the runtime tells of a sandbox or container.
    pub fn hint(&self, hint: &Hint) {
        self.put(|inbox| match hint.what {
            Happened::Started => drop(inbox.started.insert(hint.id.clone())),
            Happened::Ended => drop(inbox.ended.insert(hint.id.clone())),
            Happened::Other => inbox.runtime = true,
        });
    }

    /// A container waits, or no longer does.
    pub fn waiting(&self, container: &str, why: Option<(&str, String)>) {
        let why = why.map(|(reason, message)| (reason.to_owned(), message));
        self.put(|inbox| drop(inbox.waiting.insert(container.to_owned(), why)));
    }

    /// What the step under way is waiting for.
    pub fn activity(&self, wait: Option<Wait>) {
        self.put(|inbox| inbox.activity = Some(wait));
    }

    /// Takes everything out.
    pub fn take(&self) -> Inbox {
        std::mem::take(&mut self.inbox.lock())
    }

    /// Ends when something has been put in since it last ended.
    pub async fn filled(&self) {
        self.notify.notified().await;
    }
}
