//! The part of the node's pods that manifests describe, and the objects that show them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use api::types::core::v1::Pod;

use super::{Handle, Name, Pods, name_of};
use crate::pod::BoundPod;
use crate::static_pods::mirror::{self, Mirrored};

impl Pods {
    /// All static pods that are wanted now: others end, and one whose name another one of its has
    /// waits for that one's end. `all_read`: no other manifest remains to be read.
    pub fn set_static(self: &Arc<Self>, wanted: Vec<Arc<BoundPod>>, all_read: bool) {
        let mut handles = self.handles.lock();
        let wanted = wanted.into_iter().map(|pod| (name_of(&pod), pod)).collect();
        {
            let mut statics = self.statics.lock();
            (statics.wanted, statics.all_read) = (wanted, all_read);
            for (uid, handle) in handles.iter_mut().filter(|(_, h)| h.pod.is_static() && !h.gone) {
                match statics.wanted.get(&name_of(&handle.pod)).filter(|w| w.uid == *uid) {
                    None => {
                        handle.gone = true;
                        handle.mail.put(|inbox| inbox.gone = true);
                    }
                    Some(pod) if Arc::ptr_eq(pod, &handle.pod) => {}
                    Some(pod) => {
                        // Its author chose the uid: it is the same pod with another content.
                        handle.pod = pod.clone();
                        self.ctx.allocations.applied(pod);
                        handle.mail.put(|inbox| inbox.pod = Some(pod.clone()));
                    }
                }
            }
        }
        self.begin_static(&mut handles);
        self.ctx.weigh();
    }

    /// Begins the static pods that are wanted and whose name is free.
    pub(super) fn begin_static(self: &Arc<Self>, handles: &mut HashMap<String, Handle>) {
        self.mirrors_due.notify_one();
        let wanted: Vec<_> = self.statics.lock().wanted.values().cloned().collect();
        for pod in wanted.into_iter().filter(|_| !self.stage.is_stopped()) {
            if handles.contains_key(&pod.uid) {
                continue;
            }
            // What an earlier kubelet ran under this name is an earlier version of the pod.
            let older: Vec<_> = {
                let mut adopted = self.adopted.lock();
                let named = adopted.iter().filter(|(uid, summary)| {
                    **uid != pod.uid && summary.namespace == pod.namespace && summary.name == pod.name
                });
                let uids: Vec<String> = named.map(|(uid, _)| uid.clone()).collect();
                uids.into_iter().filter_map(|uid| adopted.remove(&uid).map(|summary| (uid, summary))).collect()
            };
            for (uid, summary) in older {
                self.end_orphan(handles, &uid, &summary);
            }
            let name = name_of(&pod);
            if handles.values().any(|h| (h.pod.is_static() || h.gone) && name_of(&h.pod) == name) {
                continue;
            }
            tracing::info!(pod = %pod.full_name(), "static pod begins");
            self.admit(handles, pod.clone());
            let mirror = self.statics.lock().mirrors.get(&name).cloned();
            self.show_mirror(handles, &name, mirror.as_ref());
        }
    }

    /// The object that shows a static pod, or that there is none of that name.
    pub(super) fn mirror_shown(&self, handles: &HashMap<String, Handle>, name: Name, mirror: Option<Arc<Pod>>) {
        let before = {
            let mut statics = self.statics.lock();
            match &mirror {
                Some(mirror) => statics.mirrors.insert(name.clone(), mirror.clone()),
                None => statics.mirrors.remove(&name),
            }
        };
        if before.is_some() || mirror.is_some() {
            self.show_mirror(handles, &name, mirror.as_ref());
            self.mirrors_due.notify_one();
        }
    }

    pub(super) fn show_mirror(&self, handles: &HashMap<String, Handle>, name: &Name, mirror: Option<&Arc<Pod>>) {
        for handle in handles.values().filter(|h| h.pod.is_static() && name_of(&h.pod) == *name) {
            let own = mirror.filter(|m| mirror::shows(m, &handle.pod)).cloned().and_then(BoundPod::parse);
            handle.mail.put(|inbox| inbox.mirror = Some(own));
        }
    }

    /// Ends when a mirror pod may be other than it should be.
    pub async fn mirrors_due(&self) {
        self.mirrors_due.notified().await;
    }

    /// Every name that a static pod has, or that an object says one has.
    pub fn mirrored(&self) -> Vec<Mirrored> {
        let handles = self.handles.lock();
        let statics = self.statics.lock();
        let names: BTreeSet<&Name> = statics.wanted.keys().chain(statics.mirrors.keys()).collect();
        let one = |name: &Name| {
            let wanted = statics.wanted.get(name);
            let is_wanted = |h: &Handle| !h.gone && wanted.is_some_and(|w| w.uid == h.pod.uid);
            let ending = handles.values().any(|h| h.pod.is_static() && name_of(&h.pod) == *name && !is_wanted(h));
            Mirrored {
                namespace: name.0.clone(),
                name: name.1.clone(),
                wanted: wanted.cloned(),
                shown: statics.mirrors.get(name).cloned(),
                ending,
                all_read: statics.all_read,
            }
        };
        names.into_iter().map(one).collect()
    }

    /// The Node's uid, by which mirror pods belong to it.
    pub fn node_uid(&self) -> String {
        self.node_uid.read().clone()
    }

    /// The node is registered under this uid.
    pub fn set_node_uid(&self, uid: &str) {
        if *self.node_uid.read() != uid {
            uid.clone_into(&mut self.node_uid.write());
            self.mirrors_due.notify_one();
        }
    }
}
