//! Who owns whom, as the caches have seen it. Pure: events in, work out.
//!
//! ```text
//!   uid ─► Node { what, owners, dependents, deleting, waits_for_dependents, virtual }
//! ```
//!
//! An owner that somebody names but nobody has seen is a *virtual* node; work on it finds out
//! whether it exists. The graph says only what to look at; whether an object is really to be
//! deleted is decided on fresh reads.

use std::collections::{BTreeSet, HashMap, HashSet};

use client::{Key, Meta, OwnerRef, Resource};

pub(super) const ORPHAN: &str = "orphan";
pub(super) const FOREGROUND: &str = "foregroundDeletion";

/// Something to look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Work {
    /// Perhaps this object must be deleted, or may be at last.
    Delete(String),
    /// This object is going and lets its dependents live.
    Orphan(String),
}

/// Where an object is found. For a virtual node it is what its dependents say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Seen {
        resource: Resource,
        key: Key,
    },
    /// apiVersion, kind, name, and the namespace of the dependent that names it.
    Named {
        api_version: String,
        kind: String,
        key: Key,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub place: Place,
    pub owners: Vec<OwnerRef>,
    pub dependents: HashSet<String>,
    pub deleting: bool,
    pub waits_for_dependents: bool,
    pub orphans: bool,
}

impl Node {
    pub(super) fn is_virtual(&self) -> bool {
        matches!(self.place, Place::Named { .. })
    }
}

#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: HashMap<String, Node>,
}

impl Graph {
    pub(super) fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    /// How many objects are known.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// An object is there, new or changed.
    pub(super) fn applied(&mut self, resource: &Resource, meta: &Meta) -> BTreeSet<Work> {
        let mut work = BTreeSet::new();
        let uid = meta.uid.clone();
        let deleting = meta.is_deleting();
        let waits = deleting && meta.has_finalizer(FOREGROUND);
        let orphans = deleting && meta.has_finalizer(ORPHAN);
        let place = Place::Seen { resource: resource.clone(), key: meta.key() };
        let was_virtual = self.nodes.get(&uid).is_some_and(Node::is_virtual);
        let node = self.nodes.entry(uid.clone()).or_insert_with(|| Node {
            place: place.clone(),
            owners: Vec::new(),
            dependents: HashSet::new(),
            deleting: false,
            waits_for_dependents: false,
            orphans: false,
        });
        node.place = place;
        let old = std::mem::replace(&mut node.owners, meta.owner_references.clone());
        let (started_waiting, started_orphaning) = (waits && !node.waits_for_dependents, orphans && !node.orphans);
        (node.deleting, node.waits_for_dependents, node.orphans) = (deleting, waits, orphans);
        if started_waiting {
            work.extend(node.dependents.iter().cloned().map(Work::Delete));
            work.insert(Work::Delete(uid.clone()));
        }
        if started_orphaning {
            work.insert(Work::Orphan(uid.clone()));
        }
        if was_virtual {
            // Dependents may have named it in another namespace or kind: each is judged anew.
            work.extend(node.dependents.iter().cloned().map(Work::Delete));
        }
        self.relink(&uid, meta, &old, &mut work);
        work
    }

    fn relink(&mut self, uid: &str, meta: &Meta, old: &[OwnerRef], work: &mut BTreeSet<Work>) {
        let new = &meta.owner_references;
        for owner in old {
            let still = new.iter().find(|o| o.uid == owner.uid);
            if still.is_none() {
                self.unlink(&owner.uid, uid);
            }
            // An owner that waited for this object may wait no longer.
            let unblocked = owner.block_owner_deletion && still.is_none_or(|o| !o.block_owner_deletion);
            if unblocked && self.nodes.get(&owner.uid).is_some_and(|n| n.waits_for_dependents) {
                work.insert(Work::Delete(owner.uid.clone()));
            }
        }
        for owner in new {
            let named = Place::Named {
                api_version: owner.api_version.clone(),
                kind: owner.kind.clone(),
                key: Key::new(meta.namespace.clone(), owner.name.clone()),
            };
            let is_new_link = !old.iter().any(|o| o.uid == owner.uid);
            // It may have been looked for already, and not found: whoever names it anew asks anew.
            if is_new_link && self.nodes.get(&owner.uid).is_some_and(Node::is_virtual) {
                work.insert(Work::Delete(owner.uid.clone()));
            }
            let node = self.nodes.entry(owner.uid.clone()).or_insert_with(|| {
                work.insert(Work::Delete(owner.uid.clone()));
                Node {
                    place: named,
                    owners: Vec::new(),
                    dependents: HashSet::new(),
                    deleting: false,
                    waits_for_dependents: false,
                    orphans: false,
                }
            });
            node.dependents.insert(uid.to_owned());
            // An owner on its way out, or one that is not what the reference says, needs a look.
            let is_mismatch = is_mismatch(&node.place, owner, meta);
            if is_new_link && (node.waits_for_dependents || is_mismatch) {
                work.insert(Work::Delete(uid.to_owned()));
            }
        }
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        let is_over = self.nodes.get_mut(owner).is_some_and(|node| {
            node.dependents.remove(dependent);
            node.is_virtual() && node.dependents.is_empty()
        });
        if is_over {
            self.nodes.remove(owner);
        }
    }

    /// An object is gone: seen by a cache, or found out by a read.
    pub(super) fn deleted(&mut self, uid: &str) -> BTreeSet<Work> {
        let mut work = BTreeSet::new();
        let Some(node) = self.nodes.get(uid).cloned() else { return work };
        for owner in &node.owners {
            self.unlink(&owner.uid, uid);
            if self.nodes.get(&owner.uid).is_some_and(|n| n.waits_for_dependents) {
                work.insert(Work::Delete(owner.uid.clone()));
            }
        }
        work.extend(node.dependents.iter().cloned().map(Work::Delete));
        if node.dependents.is_empty() {
            self.nodes.remove(uid);
        } else if let Some(left) = self.nodes.get_mut(uid) {
            // Its dependents still name it: it stays, as something not seen.
            if let Place::Seen { resource, key } = &left.place {
                let (api_version, kind) = (resource.api_version(), resource.kind.to_string());
                left.place = Place::Named { api_version, kind, key: key.clone() };
            }
            left.owners.clear();
            (left.deleting, left.waits_for_dependents, left.orphans) = (false, false, false);
        }
        work
    }

    /// The objects of a resource that caches have shown.
    pub(super) fn of_resource(&self, group: &str, plural: &str) -> Vec<String> {
        let is_of = |node: &Node| match &node.place {
            Place::Seen { resource, .. } => *resource.group == *group && *resource.plural == *plural,
            Place::Named { .. } => false,
        };
        self.nodes.iter().filter(|(_, node)| is_of(node)).map(|(uid, _)| uid.clone()).collect()
    }

    /// Dependents that hold up the foreground deletion of their owner: uid, and whether the
    /// dependent itself waits for its own.
    pub(super) fn blocking(&self, uid: &str) -> Vec<(String, bool)> {
        let Some(node) = self.nodes.get(uid) else { return Vec::new() };
        let blocks = |d: &&String| {
            let owners = self.nodes.get(*d).map(|n| n.owners.as_slice()).unwrap_or_default();
            owners.iter().any(|o| o.uid == uid && o.block_owner_deletion)
        };
        let waits = |d: &String| self.nodes.get(d).is_some_and(|n| n.waits_for_dependents);
        node.dependents.iter().filter(blocks).map(|d| (d.clone(), waits(d))).collect()
    }

    /// The dependents of an object that have been seen.
    pub(super) fn dependents(&self, uid: &str) -> Vec<(String, Node)> {
        let node = self.nodes.get(uid);
        let uids = node.iter().flat_map(|n| &n.dependents);
        uids.filter_map(|d| Some((d.clone(), self.nodes.get(d)?.clone()))).filter(|(_, n)| !n.is_virtual()).collect()
    }

    /// Does a dependent wait for its own dependents? Then its owner may be part of a circle.
    pub(super) fn has_waiting_dependent(&self, uid: &str) -> bool {
        let node = self.nodes.get(uid);
        node.is_some_and(|n| n.dependents.iter().any(|d| self.nodes.get(d).is_some_and(|n| n.waits_for_dependents)))
    }
}

/// Is the object with the owner's uid another than the reference names?
fn is_mismatch(place: &Place, owner: &OwnerRef, dependent: &Meta) -> bool {
    match place {
        Place::Named { .. } => false,
        Place::Seen { resource, key } => {
            let group = |api_version: &str| api_version.split_once('/').map_or("", |(g, _)| g).to_owned();
            let other_kind = *resource.kind != *owner.kind || *resource.group != *group(&owner.api_version);
            let other_place = !key.namespace.is_empty() && key.namespace != dependent.namespace;
            other_kind || other_place || key.name != owner.name
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn resource(kind: &str) -> Resource {
        Resource::new("", "v1", &format!("{}s", kind.to_lowercase()), kind, true)
    }

    /// `uid`, owners as `uid` or `uid!` (blocking), finalizer when it is being deleted.
    fn meta(uid: &str, owners: &[&str], deleting: Option<&str>) -> Meta {
        let owner = |o: &&str| OwnerRef {
            api_version: "v1".into(),
            kind: "Thing".into(),
            name: o.trim_end_matches('!').into(),
            uid: o.trim_end_matches('!').into(),
            controller: true,
            block_owner_deletion: o.ends_with('!'),
        };
        Meta {
            name: uid.into(),
            namespace: "default".into(),
            uid: uid.into(),
            owner_references: owners.iter().map(owner).collect(),
            deletion_timestamp: deleting.map(|_| Timestamp::UNIX_EPOCH),
            finalizers: deleting.filter(|f| !f.is_empty()).map(str::to_owned).into_iter().collect(),
            ..Meta::default()
        }
    }

    fn words(work: BTreeSet<Work>) -> String {
        let one = |w: Work| match w {
            Work::Delete(uid) => format!("delete {uid}"),
            Work::Orphan(uid) => format!("orphan {uid}"),
        };
        work.into_iter().map(one).collect::<Vec<_>>().join(", ")
    }

    struct World(Graph);

    impl World {
        fn put(&mut self, uid: &str, owners: &[&str], deleting: Option<&str>) -> String {
            words(self.0.applied(&resource("Thing"), &meta(uid, owners, deleting)))
        }
    }

    #[test]
    fn an_owner_that_was_never_seen_is_looked_for() {
        let mut world = World(Graph::default());
        assert_eq!(world.put("child", &["gone"], None), "delete gone");
        assert!(world.0.get("gone").is_some_and(Node::is_virtual));
        assert_eq!(words(world.0.deleted("gone")), "delete child");
        // It may come after all.
        assert_eq!(world.put("gone", &[], None), "delete child");
        assert!(!world.0.get("gone").expect("there").is_virtual());
    }

    #[test]
    fn a_deleted_owner_takes_a_look_at_each_dependent() {
        let mut world = World(Graph::default());
        world.put("owner", &[], None);
        assert_eq!(world.put("a", &["owner"], None), "");
        world.put("b", &["owner"], None);
        assert_eq!(words(world.0.deleted("owner")), "delete a, delete b");
        assert_eq!(words(world.0.deleted("a")), "");
        assert_eq!(words(world.0.deleted("b")), "");
        assert_eq!(world.0.len(), 0);
    }

    #[test]
    fn a_dependent_seen_after_its_owner_went_is_not_forgotten() {
        let mut world = World(Graph::default());
        world.put("owner", &[], None);
        world.put("a", &["owner"], None);
        assert_eq!(words(world.0.deleted("owner")), "delete a");
        // Its own watch was slower; `a` still stops, so the owner is still a node.
        assert_eq!(world.put("b", &["owner"], None), "delete owner");
        assert_eq!(words(world.0.deleted("owner")), "delete a, delete b");
    }

    #[test]
    fn foreground_waits_for_those_that_block() {
        let mut world = World(Graph::default());
        world.put("owner", &[], None);
        world.put("a", &["owner!"], None);
        world.put("b", &["owner"], None);
        assert_eq!(world.put("owner", &[], Some(FOREGROUND)), "delete a, delete b, delete owner");
        assert_eq!(world.put("owner", &[], Some(FOREGROUND)), "");
        assert_eq!(world.0.blocking("owner"), [("a".to_owned(), false)]);
        assert_eq!(words(world.0.deleted("a")), "delete owner");
        assert!(world.0.blocking("owner").is_empty());
    }

    #[test]
    fn a_dependent_that_stops_blocking_lets_its_owner_go() {
        let mut world = World(Graph::default());
        world.put("owner", &[], None);
        world.put("a", &["owner!"], None);
        world.put("owner", &[], Some(FOREGROUND));
        assert_eq!(world.put("a", &["owner"], None), "delete owner");
        assert_eq!(world.put("a", &[], None), "");
        assert!(world.0.get("owner").expect("there").dependents.is_empty());
    }

    #[test]
    fn orphaning_is_asked_for_once() {
        let mut world = World(Graph::default());
        world.put("owner", &[], None);
        assert_eq!(world.put("owner", &[], Some(ORPHAN)), "orphan owner");
        assert_eq!(world.put("owner", &[], Some(ORPHAN)), "");
    }

    #[test]
    fn a_reference_to_another_kind_or_namespace_needs_a_look() {
        let mut world = World(Graph::default());
        world.put("owner", &[], None);
        let mut stranger = meta("x", &["owner"], None);
        stranger.namespace = "other".into();
        assert_eq!(words(world.0.applied(&resource("Thing"), &stranger)), "delete x");
    }
}
