//! The nodes as the scheduler believes them to be, kept up to date event by event.
//!
//! Only the loop changes it, between decisions; a decision borrows it. A pod that was chosen a node
//! is put there at once (assumed), so the next decision sees the room taken before the API server
//! says so.

use std::collections::HashMap;
use std::sync::Arc;

use crate::node::{NodeFacts, NodeInfo};
use crate::pod::{PodInfo, Uid};

/// A slot outlives its node while pods are still known to be on it.
#[derive(Clone, Debug, Default)]
struct Slot {
    present: bool,
    info: NodeInfo,
}

/// All nodes, the pods on them, and the nominations of preemptors.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    slots: Vec<Slot>,
    index: HashMap<String, usize>,
    present: usize,
    /// Which node each pod is on.
    place: HashMap<Uid, String>,
    /// On how many nodes an image is present.
    images: HashMap<String, usize>,
    /// Preemptors that wait for room on a node, by node.
    nominated: HashMap<String, Vec<Arc<PodInfo>>>,
}

impl Snapshot {
    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.present
    }

    /// True without nodes.
    pub fn is_empty(&self) -> bool {
        self.present == 0
    }

    /// The node of that name.
    pub fn get(&self, name: &str) -> Option<&NodeInfo> {
        let slot = &self.slots[*self.index.get(name)?];
        slot.present.then_some(&slot.info)
    }

    /// All nodes, beginning with the one at `start` (modulo their number) and coming around.
    pub fn nodes_from(&self, start: usize) -> impl Iterator<Item = &NodeInfo> {
        let start = if self.slots.is_empty() { 0 } else { start % self.slots.len() };
        let around = self.slots[start..].iter().chain(&self.slots[..start]);
        around.filter(|s| s.present).map(|s| &s.info)
    }

    /// On how many nodes the image is present.
    pub fn nodes_with_image(&self, image: &str) -> usize {
        self.images.get(image).copied().unwrap_or_default()
    }

    fn slot(&mut self, name: &str) -> &mut Slot {
        let at = match self.index.get(name) {
            Some(at) => *at,
            None => {
                self.slots.push(Slot::default());
                self.index.insert(name.to_owned(), self.slots.len() - 1);
                self.slots.len() - 1
            }
        };
        &mut self.slots[at]
    }

    fn drop_if_unused(&mut self, name: &str) {
        let Some(&at) = self.index.get(name) else { return };
        if self.slots[at].present || !self.slots[at].info.pods.is_empty() {
            return;
        }
        self.index.remove(name);
        self.slots.swap_remove(at);
        // Whoever moved into the gap is found by the pods or facts it has; the index must follow.
        if at < self.slots.len() {
            let last = self.slots.len();
            if let Some(moved) = self.index.values_mut().find(|i| **i == last) {
                *moved = at;
            }
        }
    }

    fn count_images(&mut self, facts: &NodeFacts, up: bool) {
        for image in facts.images.keys() {
            let count = self.images.entry(image.clone()).or_default();
            *count = if up { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                self.images.remove(image);
            }
        }
    }

    /// Adds or changes a node; returns what it was.
    pub fn set_node(&mut self, facts: NodeFacts) -> Option<Arc<NodeFacts>> {
        self.count_images(&facts, true);
        let name = facts.name.clone();
        let slot = self.slot(&name);
        let was = slot.present;
        slot.present = true;
        let old = std::mem::replace(&mut slot.info.facts, Arc::new(facts));
        if !was {
            self.present += 1;
            return None;
        }
        self.count_images(&old, false);
        Some(old)
    }

    /// Removes a node. Pods on it stay known until they go.
    pub fn remove_node(&mut self, name: &str) {
        let Some(slot) = self.index.get(name).map(|at| &mut self.slots[*at]).filter(|s| s.present) else { return };
        slot.present = false;
        self.present -= 1;
        let facts = std::mem::take(&mut slot.info.facts);
        self.count_images(&facts, false);
        self.drop_if_unused(name);
    }

    /// Puts a pod on a node (and off any other); returns what was known of it.
    pub fn place(&mut self, pod: Arc<PodInfo>, node: &str) -> Option<Arc<PodInfo>> {
        let old = self.displace(&pod.uid);
        self.place.insert(pod.uid.clone(), node.to_owned());
        self.slot(node).info.add(pod);
        old
    }

    /// Takes a pod off its node.
    pub fn displace(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let node = self.place.remove(uid)?;
        let pod = self.slot(&node).info.remove(uid);
        self.drop_if_unused(&node);
        pod
    }

    /// Notes that `pod` waits for room on `node`; an empty `node` forgets the nomination.
    pub fn nominate(&mut self, pod: &Arc<PodInfo>, node: &str) {
        self.forget_nomination(&pod.uid);
        if !node.is_empty() {
            self.nominated.entry(node.to_owned()).or_default().push(pod.clone());
        }
    }

    /// Forgets a nomination.
    pub fn forget_nomination(&mut self, uid: &str) {
        self.nominated.retain(|_, pods| {
            pods.retain(|p| p.uid != uid);
            !pods.is_empty()
        });
    }

    /// The preemptors that wait for room on a node.
    pub fn nominated(&self, node: &str) -> &[Arc<PodInfo>] {
        self.nominated.get(node).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amounts::Amounts;

    fn node(name: &str, image: &str) -> NodeFacts {
        NodeFacts { name: name.into(), images: [(image.to_owned(), 1)].into(), ..NodeFacts::default() }
    }

    fn pod(uid: &str, cpu: i64) -> Arc<PodInfo> {
        let requests = Amounts { cpu, ..Amounts::default() };
        Arc::new(PodInfo { uid: uid.into(), requests, ..PodInfo::default() })
    }

    #[test]
    fn sums_follow_every_change() {
        let mut snapshot = Snapshot::default();
        // A pod may be known before its node.
        snapshot.place(pod("p1", 100), "a");
        assert!(snapshot.is_empty() && snapshot.get("a").is_none());
        assert!(snapshot.set_node(node("a", "x")).is_none());
        assert!(snapshot.set_node(node("b", "x")).is_none());
        assert!(snapshot.set_node(node("c", "y")).is_none());
        assert_eq!((snapshot.len(), snapshot.nodes_with_image("x")), (3, 2));
        let cpu = |s: &Snapshot, n: &str| s.get(n).map(|n| n.requested.cpu);
        assert_eq!(cpu(&snapshot, "a"), Some(100));
        snapshot.place(pod("p1", 300), "a");
        snapshot.place(pod("p2", 50), "a");
        assert_eq!(cpu(&snapshot, "a"), Some(350));
        snapshot.place(pod("p2", 50), "b");
        assert_eq!((cpu(&snapshot, "a"), cpu(&snapshot, "b")), (Some(300), Some(50)));
        // The node goes before its pod, and comes back.
        snapshot.remove_node("a");
        assert_eq!((snapshot.len(), snapshot.nodes_with_image("x")), (2, 1));
        snapshot.set_node(node("a", "z"));
        assert_eq!(cpu(&snapshot, "a"), Some(300));
        snapshot.displace("p1");
        snapshot.remove_node("a");
        assert_eq!(cpu(&snapshot, "b"), Some(50));
        assert_eq!(cpu(&snapshot, "c"), Some(0));
        let names: Vec<&str> = snapshot.nodes_from(1).map(|n| n.name.as_str()).collect();
        assert_eq!(names.len(), 2);
        snapshot.remove_node("b");
        snapshot.remove_node("c");
        snapshot.displace("p2");
        assert_eq!((snapshot.slots.len(), snapshot.index.len(), snapshot.images.len()), (0, 0, 0));
    }
}
