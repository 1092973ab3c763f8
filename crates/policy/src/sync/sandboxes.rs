//! Pods as rules see them: what the API says of them, what the runtime told of their sandboxes, and sandboxes
//! that are there although their pod's object is gone, or another's by the same name.
//!
//! ```text
//!  n/p (uid 1) is deleted at once, and n/p (uid 2) made; the sandbox of uid 1 is still there:
//!    n/p    what uid 2 is
//!    n/p/1  what uid 1 was, until its DEL
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use client::{Cached, Key};

use crate::gate::Claims;
use crate::model::{Pod, Rank, objects};

/// Is the pod the runtime's one of this uid? A static pod has its own there.
pub(super) fn is_of(pod: &Cached<objects::Pod>, uid: &str) -> bool {
    !uid.is_empty() && (pod.meta.uid == uid || pod.view.mirror() == uid)
}

/// A pod as it was last seen here.
struct Seen {
    uid: String,
    mirror: String,
    pod: Pod,
}

/// What is remembered of this node's pods; bounded by its pods and sandboxes.
pub(super) struct Sandboxes {
    node: String,
    seen: BTreeMap<Key, Seen>,
    /// Sandboxes whose pods have no object any more, by the uid.
    left: BTreeMap<Key, BTreeSet<String>>,
}

impl Sandboxes {
    pub(super) fn new(node: String) -> Self {
        Self { node, seen: BTreeMap::new(), left: BTreeMap::new() }
    }

    /// What became of everything by that name; `None`: it has no address of its own, or is gone.
    pub(super) fn look(
        &mut self,
        key: &Key,
        cached: Option<&Cached<objects::Pod>>,
        claims: &Claims,
    ) -> Vec<(Key, Option<Arc<Pod>>)> {
        let mut out = Vec::new();
        let claimed: BTreeSet<&str> = claims.uids(key).filter(|uid| !uid.is_empty()).collect();
        let mut left = self.left.remove(key).unwrap_or_default();
        left.retain(|uid| {
            let stays = claimed.contains(&**uid);
            if !stays {
                out.push((beside(key, uid), None));
            }
            stays
        });
        if let Some(seen) = self.seen.get(key) {
            let is_gone =
                |uid: &str| (uid == seen.uid || uid == seen.mirror) && cached.is_none_or(|pod| !is_of(pod, uid));
            for uid in claimed.into_iter().filter(|uid| is_gone(uid)) {
                let Some((told, addresses)) = claims.of(key, |own| own == uid) else { continue };
                let rank = Rank { told: Reverse(told), ..seen.pod.rank };
                let pod = Pod { addresses: addresses.to_vec(), is_here: true, rank, ..seen.pod.clone() };
                out.push((beside(key, uid), Some(Arc::new(pod))));
                left.insert(uid.to_owned());
            }
        }
        if !left.is_empty() {
            self.left.insert(key.clone(), left);
        }
        let pod = cached.and_then(|pod| facts(pod, &self.node, claims));
        match (cached, &pod) {
            (Some(cached), Some(pod)) if pod.is_here => {
                let (uid, mirror) = (cached.meta.uid.clone(), cached.view.mirror().to_owned());
                self.seen.insert(key.clone(), Seen { uid, mirror, pod: pod.clone() });
            }
            _ => drop(self.seen.remove(key)),
        }
        out.push((key.clone(), pod.filter(|pod| !pod.addresses.is_empty()).map(Arc::new)));
        out
    }
}

/// No pod is called so.
fn beside(key: &Key, uid: &str) -> Key {
    Key::new(key.namespace.clone(), format!("{}/{uid}", key.name))
}

/// What rules need to know of a pod; `None` when it has no network of its own.
fn facts(pod: &Cached<objects::Pod>, node: &str, claims: &Claims) -> Option<Pod> {
    if pod.view.spec.host_network {
        return None;
    }
    // A record of an earlier version may tell no uid.
    let (told, addresses) = match claims.of(&pod.meta.key(), |uid| uid.is_empty() || is_of(pod, uid)) {
        Some((told, addresses)) => (told, addresses.to_vec()),
        // Its containers may run on while its sandbox is there.
        None if pod.view.has_ended() => return None,
        None => (0, pod.view.addresses()),
    };
    let rank = Rank {
        told: Reverse(told),
        is_deleting: pod.meta.is_deleting(),
        created: Reverse(pod.meta.creation_timestamp.map_or(0, |at| at.as_second())),
    };
    // The runtime's word is this node's, whatever the API has told yet.
    let is_here = told > 0 || &*pod.view.spec.node_name == node;
    let (labels, ports) = (pod.meta.labels.clone(), pod.view.named_ports());
    Some(Pod { labels, addresses, ports, is_here, rank })
}
