//! All pods of the node: one task each, begun when the API server or the runtime shows a pod, ended
//! when nothing of it is left.

#[path = "pods_disk.rs"]
mod disk;
#[path = "pods_static.rs"]
mod statics;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::meta::apis::meta::v1::ObjectMeta;
use api::types::core::v1::{Pod, PodSpec};
use client::events::Type;
use parking_lot::{Mutex, RwLock};
use stdx::ClockExt;
use stdx::shutdown::Stage;
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::admit;
use crate::context::{Context, blocking};
use crate::logs::rotate::rotate;
use crate::pod::BoundPod;
use crate::preempt;
use crate::report::Wait;
use crate::resize::allocations::Others;
use crate::runtime::{Hint, Summary};
use crate::sync::lifecycle::Cause;
use crate::sync::mailbox::Mailbox;
use crate::sync::worker::{View, Worker};
use crate::volume::held::Holds;

/// After a pod's task panicked, the next one begins this much later.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// A pod's task, from outside.
struct Handle {
    pod: Arc<BoundPod>,
    mail: Arc<Mailbox>,
    view: watch::Receiver<View>,
    /// Nobody wants it any more; it ends.
    gone: bool,
    /// The node wants it gone, in so many seconds.
    evict: Option<(Cause, i64)>,
    /// What nothing of it may begin before.
    held: Option<Wait>,
}

impl Handle {
    /// Ends the pod, unless it ends for another cause already.
    fn evict(&mut self, cause: Cause, grace: i64) {
        let evict = self.evict.get_or_insert((cause, grace)).clone();
        self.mail.put(|inbox| inbox.evict = Some(evict));
    }

    /// Nobody wants it to end yet.
    fn may_be_evicted(&self) -> bool {
        let has_ended = has_ended(&self.view.borrow());
        !(self.gone || has_ended || self.evict.is_some() || self.pod.has_ended() || self.pod.is_deleted())
    }
}

fn has_ended(view: &View) -> bool {
    matches!(view.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// A namespace and a name in it.
type Name = (String, String);

fn name_of(pod: &BoundPod) -> Name {
    (pod.namespace.clone(), pod.name.clone())
}

/// The static pods that are wanted, and the objects in the API that show some.
#[derive(Default)]
struct Statics {
    wanted: BTreeMap<Name, Arc<BoundPod>>,
    mirrors: BTreeMap<Name, Arc<Pod>>,
    /// Every manifest was read at least once.
    all_read: bool,
}

/// The pods.
pub struct Pods {
    ctx: Arc<Context>,
    stage: Stage,
    handles: Mutex<HashMap<String, Handle>>,
    /// Pods that the runtime held when this process began: they are not refused now.
    adopted: Mutex<BTreeMap<String, Summary>>,
    /// What the runtime held at the start has found its tasks: what begins from now on is new to it.
    settled: AtomicBool,
    /// Locked after `handles`, never before.
    statics: Mutex<Statics>,
    mirrors_due: Notify,
    /// The Node's uid; empty until it is registered.
    node_uid: RwLock<String>,
    /// The uids of pods whose use of the disk is being looked at.
    looks: Holds,
}

impl Pods {
    /// No pods yet.
    pub fn new(ctx: Arc<Context>, stage: Stage, adopted: BTreeMap<String, Summary>) -> Arc<Self> {
        for (uid, summary) in &adopted {
            ctx.owners.learn_ids(uid, summary.sandboxes.keys().chain(summary.containers.keys()));
        }
        Arc::new(Self {
            ctx,
            stage,
            handles: Mutex::default(),
            adopted: Mutex::new(adopted),
            settled: AtomicBool::new(false),
            statics: Mutex::default(),
            mirrors_due: Notify::new(),
            node_uid: RwLock::default(),
            looks: Holds::default(),
        })
    }

    /// The node's object changed.
    pub fn set_place(&self, place: admit::Place) {
        self.ctx.allocations.set_place(place);
    }

    /// The API server's newest word on the pod of that name.
    pub fn shown(self: &Arc<Self>, namespace: &str, name: &str, object: Option<Arc<Pod>>) {
        let (mirror, current) = match object {
            Some(object) if api::pod::is_mirror(&object) => (Some(object), None),
            other => (None, other.and_then(BoundPod::parse)),
        };
        let mut handles = self.handles.lock();
        self.mirror_shown(&handles, (namespace.to_owned(), name.to_owned()), mirror);
        // A namesake with another uid is another pod; the one before is gone.
        let named = |h: &Handle| !h.pod.is_static() && h.pod.namespace == namespace && h.pod.name == name;
        for (uid, handle) in handles.iter_mut().filter(|(_, h)| named(h)) {
            if current.as_ref().is_none_or(|c| c.uid != *uid) {
                handle.gone = true;
                handle.mail.put(|inbox| inbox.gone = true);
            }
        }
        let Some(pod) = current else { return };
        if let Some(handle) = handles.get_mut(&pod.uid) {
            handle.pod = pod.clone();
            // What it has counts when room for others is reckoned, from now on as it is shown.
            self.ctx.allocations.applied(&pod);
            handle.mail.put(|inbox| inbox.pod = Some(pod));
            return;
        }
        tracing::debug!(pod = %pod.full_name(), "pod shown");
        self.admit(&mut handles, pod);
        self.ctx.weigh();
    }

    /// Begins a pod that is wanted, unless the node refuses it. Others may have to end for a critical one.
    fn admit(self: &Arc<Self>, handles: &mut HashMap<String, Handle>, pod: Arc<BoundPod>) {
        let known = self.adopted.lock().remove(&pod.uid).is_some();
        let ended = pod.has_ended() || pod.is_deleted();
        let judge = |pod: &BoundPod, place: &admit::Place, others: &Others<'_>| {
            if known || ended {
                return Ok(Vec::new());
            }
            match admit::groups_forbidden(pod, &self.ctx.features.read()) {
                Some(cause) => Err(cause),
                None => {
                    let (pressure, kernel) = (self.ctx.gauge.pressure(), &self.ctx.settings.kernel);
                    preempt::judge(pod, admit::Ground { place, pressure, kernel }, others)
                }
            }
        };
        match self.ctx.allocations.admit(&pod, judge) {
            Ok(ends) if ends.is_empty() => self.begin(handles, pod, None, false),
            Ok(ends) => self.make_room(handles, pod, &ends),
            Err(cause) => {
                self.ctx.metrics.admission_rejections.inc(&[&cause.reason]);
                let bare = cause.message.strip_prefix("Pod was rejected: ").unwrap_or(&cause.message);
                self.ctx.report.event(&pod, None, Type::Warning, &cause.reason, bare.to_owned());
                self.begin(handles, pod, Some(cause), false);
            }
        }
    }

    /// Ends the pods `ends` for `pod`, which starts nothing before they have ended.
    fn make_room(self: &Arc<Self>, handles: &mut HashMap<String, Handle>, pod: Arc<BoundPod>, ends: &[String]) {
        let mut names = Vec::new();
        for uid in ends {
            let Some(handle) = handles.get_mut(uid) else { continue };
            let victim = &handle.pod;
            names.push(format!("pod {}", victim.full_name()));
            if handle.evict.is_none() {
                tracing::info!(pod = %victim.full_name(), critical = %pod.full_name(), "a pod ends for a critical one");
                self.ctx.report.event(victim, None, Type::Warning, preempt::REASON, preempt::MESSAGE.into());
                let grace = victim.spec().termination_grace_period_seconds.unwrap_or(30);
                handle.evict(preempt::cause(), grace);
            }
        }
        let text = "they end, because it needs what they have".to_owned();
        let (uid, wait) = (pod.uid.clone(), Wait { code: "Preemption", on: names.join(", "), text });
        self.begin_held(handles, pod, None, false, Some(wait));
        let (this, ends) = (self.clone(), ends.to_vec());
        self.stage.spawn(async move {
            for uid in &ends {
                this.has_ended(uid).await;
            }
            if let Some(handle) = this.handles.lock().get_mut(&uid).filter(|_| !this.stage.is_stopped()) {
                handle.held = None;
                handle.mail.put(|inbox| inbox.held = Some(None));
            }
        });
    }

    /// Waits until nothing of the pod runs any more, whatever becomes of its task; no longer than this
    /// kubelet runs.
    pub(crate) async fn has_ended(&self, uid: &str) {
        self.until(uid, |view| has_ended(view) && !view.seen.may_run()).await;
    }

    /// Waits until nothing of an evicted pod is on the node any more.
    pub(crate) async fn is_cleared(&self, uid: &str) {
        self.until(uid, |view| has_ended(view) && view.cleaned && view.seen.is_empty()).await;
    }

    async fn until(&self, uid: &str, is_so: impl Fn(&View) -> bool) {
        loop {
            let Some(mut view) = self.handles.lock().get(uid).map(|h| h.view.clone()) else { return };
            if view.wait_for(|view| is_so(view)).await.is_ok() || self.stage.is_stopped() {
                return;
            }
            // Its task is over: the pod with it, or it panicked and another begins.
            self.ctx.clock.sleep(AFTER_PANIC).await;
        }
    }

    /// Removes the containers and logs of pods that have ended. Returns when they are gone.
    pub(crate) async fn give_back(&self) {
        let ended: Vec<_> = {
            let handles = self.handles.lock();
            let ended = handles.iter().filter(|(_, handle)| handle.pod.has_ended());
            // At once for all: each gives back what it has as soon as it runs no more, whatever others do.
            ended
                .map(|(uid, handle)| {
                    handle.mail.put(|inbox| inbox.give_back = true);
                    (uid.clone(), handle.view.clone())
                })
                .collect()
        };
        let gone = ended.into_iter().map(|(uid, mut view)| async move {
            // What a kubelet that has just started has not looked at yet may be there as well as not. An error: its
            // worker is gone, and the pod with it.
            let looked = view.wait_for(|view| view.looked).await;
            let runs = looked.is_ok_and(|view| view.seen.may_run() || !has_ended(&view));
            // One that was told to have ended and still runs is not waited for: it may do so for long.
            if !runs {
                self.is_cleared(&uid).await;
            }
        });
        futures::future::join_all(gone).await;
    }

    /// Ends a pod because the node wants it; false when it ends already.
    pub(crate) fn evict(&self, uid: &str, cause: Cause, grace: i64) -> bool {
        let mut handles = self.handles.lock();
        let Some(handle) = handles.get_mut(uid).filter(|handle| handle.may_be_evicted()) else { return false };
        handle.evict(cause, grace);
        true
    }

    /// The pods that the node may want to end.
    pub(crate) fn evictable(&self) -> Vec<View> {
        let handles = self.handles.lock();
        handles.values().filter(|handle| handle.may_be_evicted()).map(|handle| handle.view.borrow().clone()).collect()
    }

    /// A pod that the runtime has and the API server does not know: it is ended and removed.
    pub fn orphan(self: &Arc<Self>, uid: &str, summary: &Summary) {
        self.end_orphan(&mut self.handles.lock(), uid, summary);
    }

    fn end_orphan(self: &Arc<Self>, handles: &mut HashMap<String, Handle>, uid: &str, summary: &Summary) {
        if handles.contains_key(uid) {
            return;
        }
        let metadata = ObjectMeta {
            name: Some(summary.name.clone()),
            namespace: Some(summary.namespace.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectMeta::default()
        };
        let object = Pod { metadata, spec: Some(PodSpec::default()), ..Pod::default() };
        let Some(pod) = BoundPod::parse(Arc::new(object)) else { return };
        tracing::info!(pod = %pod.full_name(), "the runtime has a pod that nobody knows; ending it");
        self.begin(handles, pod, None, true);
    }

    /// Pods that the runtime had at the start and nobody has claimed.
    pub fn unclaimed(&self) -> BTreeMap<String, Summary> {
        self.settled.store(true, Ordering::Relaxed);
        std::mem::take(&mut *self.adopted.lock())
    }

    fn begin(
        self: &Arc<Self>,
        handles: &mut HashMap<String, Handle>,
        pod: Arc<BoundPod>,
        rejected: Option<Cause>,
        gone: bool,
    ) {
        self.begin_held(handles, pod, rejected, gone, None);
    }

    /// `held`: what it starts nothing before, until it is told that this is over.
    fn begin_held(
        self: &Arc<Self>,
        handles: &mut HashMap<String, Handle>,
        pod: Arc<BoundPod>,
        rejected: Option<Cause>,
        gone: bool,
        held: Option<Wait>,
    ) {
        let uid = pod.uid.clone();
        let may_be_there = gone || !self.settled.load(Ordering::Relaxed);
        let (worker, view, mail) = Worker::new(self.ctx.clone(), pod.clone(), rejected.clone(), may_be_there);
        mail.put(|inbox| (inbox.gone, inbox.held) = (gone, held.clone().map(Some)));
        handles.insert(uid.clone(), Handle { pod, mail, view, gone, evict: None, held });
        let (this, stage) = (self.clone(), self.stage.clone());
        self.stage.spawn(async move { this.attend(uid, worker, rejected, stage).await });
    }

    /// Runs a pod's task, and another one should it panic: one bad object stops no other pod.
    async fn attend(self: Arc<Self>, uid: String, mut worker: Worker, rejected: Option<Cause>, stage: Stage) {
        loop {
            let task = AbortOnDropHandle::new(tokio::spawn(worker.run(stage.clone())));
            match task.await {
                Ok(()) => break,
                Err(error) if error.is_panic() && !stage.is_stopped() => {
                    tracing::error!(uid, %error, "the task of a pod panicked; beginning again");
                }
                Err(_) => break,
            }
            self.ctx.clock.sleep(AFTER_PANIC).await;
            let mut handles = self.handles.lock();
            let Some(handle) = handles.get_mut(&uid) else { return };
            let (next, view, mail) = Worker::new(self.ctx.clone(), handle.pod.clone(), rejected.clone(), true);
            mail.put(|inbox| {
                inbox.gone = handle.gone;
                inbox.evict.clone_from(&handle.evict);
                inbox.held = handle.held.clone().map(Some);
            });
            (handle.view, handle.mail) = (view, mail);
            if handle.pod.is_static() {
                let name = name_of(&handle.pod);
                let mirror = self.statics.lock().mirrors.get(&name).cloned();
                self.show_mirror(&handles, &name, mirror.as_ref());
            }
            worker = next;
        }
        if !stage.is_stopped() {
            let mut handles = self.handles.lock();
            if let Some(handle) = handles.remove(&uid) {
                self.ctx.metrics.forget(&handle.pod);
            }
            // A static pod of its name may have waited for its end.
            self.ctx.allocations.forget(&uid);
            self.begin_static(&mut handles);
            self.ctx.weigh();
        }
    }

    /// Something happened to a pod in the runtime. False when no task cares for it.
    pub fn hint(&self, uid: &str) -> bool {
        self.tell(uid, |mail| mail.runtime())
    }

    /// What the runtime tells of a sandbox or container of the pod. False when no task cares for it.
    pub fn hinted(&self, uid: &str, hint: &Hint) -> bool {
        self.tell(uid, |mail| mail.hint(hint))
    }

    /// An object that the pod refers to changed.
    pub fn objects_changed(&self, uid: &str) {
        self.tell(uid, |mail| mail.put(|inbox| inbox.objects = true));
    }

    fn tell(&self, uid: &str, what: impl FnOnce(&Mailbox)) -> bool {
        let handles = self.handles.lock();
        let Some(handle) = handles.get(uid) else { return false };
        what(&handle.mail);
        true
    }

    /// True while a task cares for the pod.
    pub fn knows(&self, uid: &str) -> bool {
        self.handles.lock().contains_key(uid)
    }

    /// A pod by name, as others may see it.
    pub fn find(&self, namespace: &str, name: &str) -> Option<watch::Receiver<View>> {
        let handles = self.handles.lock();
        let mut named: Vec<&Handle> =
            handles.values().filter(|h| h.pod.namespace == namespace && h.pod.name == name).collect();
        // While one ends its namesake may have begun: the younger is meant.
        named.sort_by_key(|h| h.pod.meta().creation_timestamp.as_ref().map(|t| t.0));
        named.last().map(|h| h.view.clone())
    }

    /// Every pod, as others may see it.
    pub fn all(&self) -> Vec<View> {
        self.handles.lock().values().map(|h| h.view.borrow().clone()).collect()
    }

    /// The images that pods which have not ended name, of their containers and their volumes.
    pub fn images(&self) -> BTreeSet<String> {
        let handles = self.handles.lock();
        let pods = handles.values().map(|h| &h.pod).filter(|pod| !pod.has_ended());
        let of = |pod: &Arc<BoundPod>| {
            let volumes = pod.spec().volumes.iter().flatten().filter_map(|v| v.image.as_ref()?.reference.clone());
            pod.all_containers().filter_map(|c| c.image.clone()).chain(volumes).collect::<Vec<_>>()
        };
        pods.flat_map(of).collect()
    }

    /// Logs of running containers: what may have to be rotated.
    pub fn running_logs(&self) -> Vec<(String, String)> {
        let views = self.all();
        let containers = views.iter().flat_map(|v| v.seen.containers.iter());
        containers
            .filter(|c| c.may_run() && !c.log_path.is_empty())
            .map(|c| (c.id.clone(), c.log_path.clone()))
            .collect()
    }

    /// Rotates logs that have grown too large.
    pub async fn rotate_logs(&self) {
        for (id, path) in self.running_logs() {
            let now = self.ctx.clock.wall();
            let log = std::path::PathBuf::from(&path);
            let (size, files) = self.ctx.settings.log_limits;
            match blocking(move || rotate(&log, size, files, now)).await.and_then(|done| done) {
                Ok(false) => {}
                Ok(true) => {
                    if let Err(error) = self.ctx.runtime.reopen_log(&id).await {
                        tracing::warn!(path, %error, "the runtime does not open a log anew");
                    }
                }
                Err(error) => tracing::warn!(path, %error, "log not rotated"),
            }
        }
    }
}
