//! What must hold after every single commit, whatever goes wrong around it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use machinery::meta;
use serde_json::Value;

use super::recorder::{Commit, Objects};
use super::view::{self, at, number, text};

/// A pod that has been ready for so many seconds is known to everybody who looks at all.
const KNOWN: i64 = 90;

/// How many pods a Deployment or ReplicaSet may have had, and had to keep, since the last quiet
/// point: a controller may still act on what was wanted a moment ago.
#[derive(Clone, Copy, Debug)]
struct Bound {
    most: i64,
    least: i64,
}

/// The judge of commits.
#[derive(Debug, Default)]
pub struct Safety {
    /// By the uid of the Deployment or ReplicaSet.
    bounds: BTreeMap<String, Bound>,
    /// Nothing goes wrong at the moment: then a Deployment's pods themselves are counted. Otherwise
    /// the pods of one ReplicaSet may still be on their way out when those of the next come.
    pub is_calm: bool,
    /// Deployments that were paused since the last quiet point: resizing one whose sets are all
    /// empty fills the newest, whatever still stops.
    paused: BTreeSet<String>,
    /// Deployments whose pods were taken, relabelled or broken by others than controllers.
    disturbed: BTreeSet<String>,
    /// Commits since the start.
    pub commits: u64,
    /// The wall clock of the latest commit, for ages.
    pub now: Timestamp,
}

type Rules = Vec<String>;

impl Safety {
    /// Everything has converged: what was wanted before no longer excuses anything.
    pub fn settle(&mut self, objects: &Objects) {
        self.disturbed.clear();
        self.paused.clear();
        self.bounds.clear();
        for deployment in view::all(objects, "deployments") {
            self.allow(deployment, view::bounds(deployment));
        }
        for set in view::all(objects, "replicasets") {
            self.allow(set, (number(set, "/spec/replicas"), 0));
        }
    }

    /// Pods of this Deployment may vanish, fail or leave it: a user or a node did that.
    pub fn disturb(&mut self, deployment: &str) {
        self.disturbed.insert(deployment.to_owned());
    }

    /// The same by a pod or ReplicaSet of the Deployment.
    pub fn disturb_owner(&mut self, object: &Value, objects: &Objects) {
        let set = match view::controller(object).and_then(|uid| view::by_uid(objects, "replicasets", uid)) {
            Some(set) => set,
            None => object,
        };
        if let Some(uid) = view::controller(set) {
            self.disturbed.insert(uid.to_owned());
        }
    }

    /// Every Deployment there is.
    pub fn disturb_all(&mut self, objects: &Objects) {
        self.disturbed.extend(view::all(objects, "deployments").map(|d| meta::uid(d).to_owned()));
    }

    fn allow(&mut self, workload: &Value, (most, least): (i64, i64)) {
        let bound = self.bounds.entry(meta::uid(workload).to_owned()).or_insert(Bound { most, least });
        *bound = Bound { most: bound.most.max(most), least: bound.least.min(least) };
    }

    /// The rules a commit breaks; `objects` is the state after it.
    pub fn judge(&mut self, commit: &Commit, objects: &Objects) -> Rules {
        self.commits += 1;
        let mut broken = Rules::new();
        object(commit, &mut broken);
        match commit.key.plural {
            "pods" => {
                placed_once(commit, objects, &mut broken);
                self.replicas(commit, objects, &mut broken);
            }
            "deployments" | "replicasets" => match &commit.after {
                Some(deployment) if commit.key.plural == "deployments" => {
                    self.allow(deployment, view::bounds(deployment));
                    if at(deployment, "/spec/paused") == true {
                        self.paused.insert(meta::uid(deployment).to_owned());
                    }
                }
                Some(set) => {
                    self.allow(set, (number(set, "/spec/replicas"), 0));
                    self.surge(commit, set, objects, &mut broken);
                }
                None => drop(self.bounds.remove(meta::uid(commit.object()))),
            },
            "services" => addresses(commit, objects, &mut broken),
            "nodes" => pod_ranges(commit, objects, &mut broken),
            "namespaces" => emptied(commit, objects, &mut broken),
            _ => {}
        }
        dependents(commit, objects, &mut broken);
        broken
    }

    /// A ReplicaSet that grows does not take its Deployment above the surge.
    fn surge(&self, commit: &Commit, set: &Value, objects: &Objects, broken: &mut Rules) {
        let wants = |set: &Value| number(set, "/spec/replicas");
        let Some(uid) = view::controller(set).filter(|uid| !self.disturbed.contains(*uid)) else { return };
        if commit.before.as_deref().map_or(0, wants) >= wants(set) {
            return;
        }
        let Some(bound) = self.bounds.get(uid) else { return };
        let own = |s: &&Value| view::controller(s) == Some(uid);
        let all: i64 = view::all(objects, "replicasets").filter(own).map(wants).sum();
        if all > bound.most {
            broken.push(format!("{} grows, now {all} pods are asked for, at most {} may be", commit.key, bound.most));
        }
    }

    /// A Deployment has at most its surge, and its controller never takes what must stay.
    fn replicas(&self, commit: &Commit, objects: &Objects, broken: &mut Rules) {
        let Some(set_uid) = view::controller(commit.object()) else { return };
        let Some(set) = view::by_uid(objects, "replicasets", set_uid) else { return };
        let Some(uid) = view::controller(set) else { return };
        let Some(deployment) = view::by_uid(objects, "deployments", uid) else { return };
        if self.disturbed.contains(uid) || meta::is_deleting(deployment) {
            return;
        }
        let Some(bound) = self.bounds.get(uid) else { return };
        let sets: Vec<&Value> =
            view::all(objects, "replicasets").filter(|s| view::controller(s) == Some(uid)).collect();
        let pods: Vec<&Value> = view::all(objects, "pods")
            .filter(|p| {
                let of = |s: &&&Value| view::controller(p) == Some(meta::uid(s)) && view::selects(s, p);
                view::is_active(p) && sets.iter().find(of).is_some()
            })
            .collect();
        let count = i64::try_from(pods.len()).unwrap_or(i64::MAX);
        let name = meta::name(deployment);
        let of_set = pods.iter().filter(|p| view::controller(p) == Some(set_uid)).count();
        let of_set = i64::try_from(of_set).unwrap_or(i64::MAX);
        let most = self.bounds.get(set_uid).map_or(0, |b| b.most);
        if commit.before.is_none() && of_set > most {
            broken.push(format!("replicaset {} has {of_set} pods, at most {most} may be", meta::name(set)));
        }
        if commit.before.is_none() && self.is_calm && count > bound.most {
            broken.push(format!("deployment {name} has {count} pods, at most {} may be", bound.most));
        }
        let is_recreate = text(deployment, "/spec/strategy/type") == "Recreate";
        if commit.before.is_none() && is_recreate && !self.paused.contains(uid) {
            let hashes: BTreeSet<&str> = pods.iter().map(|p| text(p, "/metadata/labels/pod-template-hash")).collect();
            if hashes.len() > 1 {
                broken.push(format!("deployment {name} recreates, and has pods of {hashes:?}"));
            }
        }
        let before = commit.before.as_deref().filter(|p| view::is_serving(p));
        let taken = commit.after.as_deref().is_none_or(meta::is_deleting);
        let Some(victim) = before.filter(|_| taken) else { return };
        let serving = i64::try_from(pods.iter().filter(|p| view::is_serving(p)).count()).unwrap_or(i64::MAX);
        let known = view::ready_since(victim).is_some_and(|t| self.now.as_second() - t.as_second() >= KNOWN);
        if known && serving < bound.least {
            let pod = meta::name(victim);
            broken
                .push(format!("deployment {name} lost {pod} to its controller: {serving} serve, {} must", bound.least));
        }
    }
}

/// What is true of every object.
fn object(commit: &Commit, broken: &mut Rules) {
    let key = &commit.key;
    let mut say = |what: String| broken.push(format!("{key} {what}"));
    if let Some(new) = commit.after.as_deref() {
        if meta::name(new) != key.name || meta::namespace(new) != key.namespace {
            say(format!("is stored as {}/{}", meta::namespace(new), meta::name(new)));
        }
        if meta::uid(new).is_empty() {
            say("has no uid".into());
        }
        let owners = meta::owner_references(new);
        let controllers = at(new, "/metadata/ownerReferences").as_array().into_iter().flatten();
        let controllers = controllers.filter(|o| o["controller"] == true).count();
        if controllers > 1 {
            say(format!("has {controllers} controllers among {} owners", owners.len()));
        }
    }
    let (Some(old), Some(new)) = (commit.before.as_deref(), commit.after.as_deref()) else {
        // One that is being deleted goes with the write that lets go of the last finalizer.
        let held = commit.before.as_deref().filter(|o| !meta::is_deleting(o)).map(meta::finalizers);
        if let Some(held) = held.filter(|held| !held.is_empty() && commit.after.is_none()) {
            say(format!("is gone although {held:?} hold it"));
        }
        return;
    };
    if meta::uid(old) != meta::uid(new) {
        say(format!("changed its uid from {} to {}", meta::uid(old), meta::uid(new)));
    }
    if meta::is_deleting(old) && !meta::is_deleting(new) {
        say("is no longer being deleted".into());
    }
    let (was, is) = (meta::generation(old), meta::generation(new));
    let begins_deletion = meta::is_deleting(new) != meta::is_deleting(old);
    if is < was {
        say(format!("went back from generation {was} to {is}"));
    }
    let wish = |object: &Value| {
        let fields = object.as_object().into_iter().flatten();
        let of_users = |(name, _): &(&String, &Value)| !matches!(name.as_str(), "metadata" | "status");
        let fields: Vec<(String, Value)> = fields.filter(of_users).map(|(k, v)| (k.clone(), v.clone())).collect();
        (fields, at(object, "/metadata/annotations").clone())
    };
    if is != was && wish(old) == wish(new) && !begins_deletion {
        say(format!("is of generation {is} after {was}, and nothing changed"));
    }
}

/// A pod stays where it is, and fits.
fn placed_once(commit: &Commit, objects: &Objects, broken: &mut Rules) {
    let (Some(new), key) = (commit.after.as_deref(), &commit.key) else { return };
    let node = text(new, "/spec/nodeName");
    let was = commit.before.as_deref().map(|old| text(old, "/spec/nodeName")).unwrap_or_default();
    if !was.is_empty() && was != node {
        broken.push(format!("{key} moved from {was} to {node}"));
    }
    if node.is_empty() || !was.is_empty() {
        return;
    }
    // A node may be deleted while a pod is on its way to it.
    let Some(host) = view::all(objects, "nodes").find(|n| meta::name(n) == node) else { return };
    let (taken, has) = (view::taken_on(objects, node), view::Room::allocatable(host));
    if !taken.fits(&has) {
        broken.push(format!("{key} does not fit on {node}: {taken:?} of {has:?}"));
    }
}

/// No two Services have one address or node port.
fn addresses(commit: &Commit, objects: &Objects, broken: &mut Rules) {
    let Some(new) = commit.after.as_deref() else { return };
    let address = text(new, "/spec/clusterIP");
    let ports = |service: &Value| -> BTreeSet<i64> {
        let ports = at(service, "/spec/ports").as_array();
        ports.into_iter().flatten().filter_map(|p| p["nodePort"].as_i64()).filter(|p| *p > 0).collect()
    };
    for (key, other) in objects.iter().filter(|(key, _)| key.plural == "services" && **key != commit.key) {
        if !matches!(address, "" | "None") && text(other, "/spec/clusterIP") == address {
            broken.push(format!("{} and {key} both have {address}", commit.key));
        }
        if ports(new).intersection(&ports(other)).next().is_some() {
            broken.push(format!("{} and {key} share a node port", commit.key));
        }
    }
}

/// No two nodes have one range for their pods.
fn pod_ranges(commit: &Commit, objects: &Objects, broken: &mut Rules) {
    let Some(range) = commit.after.as_deref().map(|n| text(n, "/spec/podCIDR")).filter(|r| !r.is_empty()) else {
        return;
    };
    for (key, other) in objects.iter().filter(|(key, _)| key.plural == "nodes" && **key != commit.key) {
        if text(other, "/spec/podCIDR") == range {
            broken.push(format!("{} and {key} both have {range}", commit.key));
        }
    }
}

/// A namespace goes last.
fn emptied(commit: &Commit, objects: &Objects, broken: &mut Rules) {
    if commit.after.is_some() {
        return;
    }
    let rest: Vec<String> = objects
        .keys()
        .filter(|k| k.namespace == commit.key.name && k.plural != "events")
        .map(ToString::to_string)
        .collect();
    if !rest.is_empty() {
        broken.push(format!("{} is gone before {rest:?}", commit.key));
    }
}

/// An owner deleted in the foreground goes after those that block it.
fn dependents(commit: &Commit, objects: &Objects, broken: &mut Rules) {
    let (Some(old), None) = (commit.before.as_deref(), commit.after.as_deref()) else { return };
    if !meta::finalizers(old).contains(&"foregroundDeletion") {
        return;
    }
    let uid = meta::uid(old);
    let blocks = |object: &Value| {
        let owners = at(object, "/metadata/ownerReferences").as_array();
        owners.into_iter().flatten().any(|o| o["uid"] == uid && o["blockOwnerDeletion"] == true)
    };
    if let Some((key, _)) = objects.iter().find(|(_, object)| blocks(object)) {
        broken.push(format!("{} is gone before {key}, which blocks it", commit.key));
    }
}
