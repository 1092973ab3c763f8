//! What the pods of one node are allocated, and who waits for more.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::change::{Actuated, POD};
use super::fit::{self, Refusal};
use super::record::{Allocation, Record};
use crate::admit::Place;
use crate::pod::BoundPod;
use crate::sync::lifecycle::Cause;
use crate::sync::mailbox::Mailbox;

/// The other pods of the node that have not ended.
#[derive(Debug, Default)]
pub struct Others<'a> {
    pub stay: Vec<&'a BoundPod>,
    /// They end for a critical pod, and have what they have until then.
    pub yielding: Vec<&'a BoundPod>,
}

/// A pod that the node has taken.
struct Entry {
    /// As it is allocated.
    pod: Arc<BoundPod>,
    record: Record,
    /// It ends for a critical pod, which has its room already.
    yields: bool,
    /// What it wishes for and cannot have yet, and whom to tell when that may have changed.
    waits: Option<(Arc<BoundPod>, Arc<Mailbox>)>,
}

#[derive(Default)]
struct Inner {
    place: Place,
    /// Records of pods that nobody has shown yet.
    found: BTreeMap<String, Record>,
    pods: BTreeMap<String, Entry>,
}

/// The allocations of one node. What is decided here is decided under one lock, so that two pods are
/// never given the same room.
pub struct Allocations {
    /// Where the directories of pods are.
    directory: PathBuf,
    inner: Mutex<Inner>,
}

impl Allocations {
    /// With the records that pods beneath `directory` have.
    pub fn open(directory: &Path) -> Self {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let uids = entries.filter_map(|e| e.file_name().into_string().ok());
        let found = uids.filter_map(|uid| Record::read(&directory.join(&uid)).map(|record| (uid, record))).collect();
        Self { directory: directory.to_owned(), inner: Mutex::new(Inner { found, ..Inner::default() }) }
    }

    /// The node's object changed.
    pub fn set_place(&self, place: Place) {
        let mut inner = self.inner.lock();
        if inner.place != place {
            inner.place = place;
            inner.wake();
        }
    }

    /// A pod that was not known before; it counts from now on unless `judge` names a reason against it
    /// beside the others. Gives the uids of those that `judge` says end before it begins.
    pub fn admit(
        &self,
        pod: &Arc<BoundPod>,
        judge: impl FnOnce(&BoundPod, &Place, &Others<'_>) -> Result<Vec<String>, Cause>,
    ) -> Result<Vec<String>, Cause> {
        let mut inner = self.inner.lock();
        let record = inner.found.get(&pod.uid).cloned();
        let record = record.unwrap_or_else(|| Record { allocated: Allocation::wished(pod), ..Record::default() });
        let allocated = record.allocated.apply(pod);
        let ends = {
            let of = |yields: bool| {
                let others = inner.others(&pod.uid).filter(move |e| e.yields == yields);
                others.map(|e| &*e.pod).collect()
            };
            judge(&allocated, &inner.place, &Others { stay: of(false), yielding: of(true) })?
        };
        for uid in &ends {
            if let Some(entry) = inner.pods.get_mut(uid) {
                entry.yields = true;
            }
        }
        inner.found.remove(&pod.uid);
        inner.pods.insert(pod.uid.clone(), Entry { pod: allocated, record, yields: false, waits: None });
        Ok(ends)
    }

    /// The newest object of a pod, as it is allocated. A pod that was not admitted is what it is.
    pub fn applied(&self, pod: &Arc<BoundPod>) -> Arc<BoundPod> {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.pods.get_mut(&pod.uid) else { return pod.clone() };
        let ends = pod.has_ended() && !entry.pod.has_ended();
        entry.pod = entry.record.allocated.apply(pod);
        let applied = entry.pod.clone();
        if ends {
            inner.wake();
        }
        applied
    }

    /// The pod is gone: what it had is free.
    pub fn forget(&self, uid: &str) {
        let mut inner = self.inner.lock();
        inner.found.remove(uid);
        if inner.pods.remove(uid).is_some() {
            inner.wake();
        }
    }

    /// The pods that count, as they are allocated.
    pub fn pods(&self) -> Vec<Arc<BoundPod>> {
        self.inner.lock().pods.values().map(|e| e.pod.clone()).collect()
    }

    /// What of the pod's containers differs from what is allocated to them.
    pub fn actuated(&self, uid: &str) -> Actuated {
        self.inner.lock().pods.get(uid).map(|e| e.record.actuated.clone()).unwrap_or_default()
    }

    /// Grants what `wish` (the pod as its spec has it) asks for, if it fits: the pod as it is allocated
    /// then. `running` are the ids and names of its running containers, which have what they had.
    /// While it does not fit, `mail` is woken whenever that may have changed.
    pub fn grant(
        &self,
        wish: &Arc<BoundPod>,
        running: &[(String, String)],
        mail: &Arc<Mailbox>,
    ) -> Result<Arc<BoundPod>, Refusal> {
        let mut inner = self.inner.lock();
        let uid = wish.uid.as_str();
        let Some(entry) = inner.pods.get(uid) else { return Ok(wish.clone()) };
        let mine = fit::rank(wish, &entry.pod);
        let refused = inner.refuse(wish).or_else(|| {
            // Whoever is to be served before and would fit goes first, and wakes the others.
            let before = inner.pods.iter().filter(|(other, _)| *other != uid).find(|(_, e)| {
                e.waits.as_ref().is_some_and(|(w, _)| fit::rank(w, &e.pod) > mine && inner.refuse(w).is_none())
            })?;
            let message = format!("pod {} is resized first", before.1.pod.full_name());
            Some(Refusal { reason: fit::DEFERRED, message })
        });
        let entry = inner.pods.get_mut(uid);
        if let Some(refusal) = refused {
            if let Some(entry) = entry {
                let waits = refusal.reason == fit::DEFERRED;
                entry.waits = waits.then(|| (wish.clone(), mail.clone()));
            }
            return Err(refusal);
        }
        if let Some(entry) = entry {
            entry.waits = None;
            let (had, new) = (&entry.record.allocated, Allocation::wished(wish));
            for (id, name) in running {
                if let Some(own) = had.containers.get(name) {
                    entry.record.actuated.entry(id.clone()).or_insert_with(|| own.clone());
                }
            }
            if had.pod != new.pod {
                let whole = had.pod.clone().unwrap_or_default();
                entry.record.actuated.entry(POD.to_owned()).or_insert(whole);
            }
            entry.record.allocated = new;
            entry.pod = wish.clone();
            inner.wake();
        }
        Ok(wish.clone())
    }

    /// The container (or the pod as a whole) has what is allocated to it.
    pub fn done(&self, uid: &str, id: &str) {
        if let Some(entry) = self.inner.lock().pods.get_mut(uid) {
            entry.record.actuated.remove(id);
        }
    }

    /// Forgets containers that do not run any more. True when there were any.
    pub fn keep_only(&self, uid: &str, running: impl Fn(&str) -> bool) -> bool {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.pods.get_mut(uid) else { return false };
        let before = entry.record.actuated.len();
        entry.record.actuated.retain(|id, _| id == POD || running(id));
        entry.record.actuated.len() != before
    }

    /// Writes the pod's record down, durably: whoever waits for a resize, or has had one, has what it has.
    pub fn write(&self, uid: &str) -> io::Result<()> {
        self.record(uid).map_or(Ok(()), |record| record.write(&self.directory.join(uid)))
    }

    /// The same for a pod that begins, which has what it wishes for: nobody waits for the disk.
    pub fn write_soon(&self, uid: &str) -> io::Result<()> {
        self.record(uid).map_or(Ok(()), |record| record.write_soon(&self.directory.join(uid)))
    }

    fn record(&self, uid: &str) -> Option<Record> {
        self.inner.lock().pods.get(uid).map(|e| e.record.clone())
    }
}

impl Inner {
    fn others<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.pods.iter().filter(move |(other, e)| *other != uid && !e.pod.has_ended()).map(|(_, e)| e)
    }

    fn refuse(&self, wish: &BoundPod) -> Option<Refusal> {
        // Those that yield have their room until they have ended, and who waits is woken then.
        let others: Vec<&BoundPod> = self.others(&wish.uid).map(|e| &*e.pod).collect();
        fit::refuse(wish, &self.place, &others)
    }

    fn wake(&self) {
        for (_, mail) in self.pods.values().filter_map(|e| e.waits.as_ref()) {
            mail.put(|_| {});
        }
    }
}
