//! What a Deployment does next: which ReplicaSet is made, which grow, shrink or go, and what the
//! status says. Pure; the order of decisions is upstream's.
//!
//! ```text
//!   paused or resized ──► share the replicas out among the sets that have pods
//!   Recreate          ──► old sets to 0 → their pods gone → the new set to full size
//!   RollingUpdate     ──► new set up within maxSurge, else old sets down within maxUnavailable
//!                         (broken replicas first)
//!   complete          ──► old sets beyond revisionHistoryLimit go
//! ```

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DeploymentStatus;
use serde_json::{Value, json};

use super::model::{REVISION, Rollout, Set};
use super::status;
use crate::templates::{self, HASH_LABEL};

/// A ReplicaSet that changed size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scaled {
    pub set: String,
    pub from: i32,
    pub to: i32,
}

impl Scaled {
    pub(super) fn message(&self) -> String {
        let direction = if self.to > self.from { "up" } else { "down" };
        format!("Scaled {direction} replica set {} from {} to {}", self.set, self.from, self.to)
    }
}

/// What to write, in this order.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// The new ReplicaSet.
    pub create: Option<Set>,
    /// ReplicaSets that change, with the change of size if there is one.
    pub update: Vec<(Set, Option<Scaled>)>,
    /// Names and uids of ReplicaSets that go.
    pub delete: Vec<(String, String)>,
    /// The Deployment's own revision annotation, when it changes.
    pub revision: Option<String>,
    pub status: DeploymentStatus,
    /// When the deadline must be looked at again.
    pub check_at: Option<Timestamp>,
}

/// What is true now.
pub(super) struct Seen {
    pub deployment: Rollout,
    /// Its ReplicaSets.
    pub sets: Vec<Set>,
    /// The uid of the owning set of every pod that is neither Succeeded nor Failed.
    pub pod_owners: Vec<String>,
    pub now: Timestamp,
}

pub(super) fn plan(seen: Seen) -> Plan {
    let before = seen.sets.clone();
    let mut work = Work::new(seen);
    work.decide();
    work.finish(&before)
}

struct Work {
    d: Rollout,
    now: Timestamp,
    pod_owners: Vec<String>,
    new: Option<Set>,
    is_created: bool,
    old: Vec<Set>,
    delete: Vec<(String, String)>,
    revision: Option<String>,
    progress: Option<status::Progress>,
}

impl Work {
    fn new(seen: Seen) -> Self {
        let Seen { deployment: d, sets, pod_owners, now } = seen;
        let uid = d.newest(&sets).map(|s| s.uid.clone());
        let (new, old): (Vec<_>, Vec<_>) = sets.into_iter().partition(|s| Some(&s.uid) == uid.as_ref());
        let new = new.into_iter().next();
        Self { d, now, pod_owners, new, is_created: false, old, delete: Vec::new(), revision: None, progress: None }
    }

    fn decide(&mut self) {
        if self.d.deleting {
            self.sync_new(false);
            return;
        }
        status::note_pause(&mut self.d, self.now);
        self.sync_new(false);
        if self.d.paused {
            self.share_out();
            self.clean_up();
            return;
        }
        if self.is_resized() {
            self.share_out();
            return;
        }
        if self.d.is_rolling {
            self.roll();
        } else {
            self.recreate();
        }
    }

    /// Brings the new set's annotations up to date, or makes it.
    fn sync_new(&mut self, create: bool) {
        let revision = self.old.iter().map(Set::revision).max().unwrap_or(0) + 1;
        if let Some(new) = &mut self.new {
            if self.is_created {
                return;
            }
            let had_condition = self.d.condition(status::PROGRESSING).is_some();
            new.annotate(&self.d, revision);
            if new.object.pointer("/spec/minReadySeconds").and_then(Value::as_i64).unwrap_or(0)
                != i64::from(self.d.min_ready_seconds)
            {
                new.object["spec"]["minReadySeconds"] = self.d.min_ready_seconds.into();
            }
            if !had_condition && !self.d.deleting {
                self.progress = Some(status::Progress::Found(new.name.clone()));
            }
            self.revision = new.annotation(REVISION).map(str::to_owned);
        } else if create {
            let mut set = self.fresh();
            let size = self.new_size(&set);
            set.scale(size);
            set.annotate(&self.d, revision);
            set.note_size(self.d.replicas, self.d.max_pods());
            self.progress = Some(status::Progress::Created(set.name.clone()));
            self.revision = Some(revision.to_string());
            self.new = Some(set);
            self.is_created = true;
        }
        if let Some(progress) = self.progress.take() {
            status::note_progress(&mut self.d, &progress, self.now);
        }
    }

    /// A ReplicaSet of the Deployment's template.
    fn fresh(&self) -> Set {
        let d = &self.d.object;
        let hash = templates::hash(self.d.template(), self.d.collisions());
        let mut template = self.d.template().clone();
        template["metadata"]["labels"][HASH_LABEL] = json!(hash);
        let mut selector = d.pointer("/spec/selector").cloned().unwrap_or_else(|| json!({}));
        selector["matchLabels"][HASH_LABEL] = json!(hash);
        let name = &self.d.name;
        // The whole must remain a name.
        let cut = (0..=name.len().min(252 - hash.len())).rev().find(|i| name.is_char_boundary(*i)).unwrap_or(0);
        let owner = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": machinery::meta::uid(d),
            "controller": true, "blockOwnerDeletion": true,
        });
        let labels = template.pointer("/metadata/labels").cloned().unwrap_or_default();
        let mut spec = json!({"replicas": 0, "selector": selector, "template": template});
        if self.d.min_ready_seconds != 0 {
            spec["minReadySeconds"] = self.d.min_ready_seconds.into();
        }
        Set::of(json!({
            "kind": "ReplicaSet", "apiVersion": "apps/v1",
            "metadata": {
                "name": format!("{}-{hash}", &name[..cut]), "namespace": machinery::meta::namespace(d),
                "labels": labels, "ownerReferences": [owner],
            },
            "spec": spec,
        }))
    }

    fn total(&self) -> i32 {
        self.old.iter().chain(&self.new).map(|s| s.replicas).sum()
    }

    /// How large the new set may be now.
    fn new_size(&self, new: &Set) -> i32 {
        if !self.d.is_rolling {
            return self.d.replicas;
        }
        let others: i32 = self.old.iter().map(|s| s.replicas).sum();
        let room = self.d.max_pods() - others - new.replicas;
        if room <= 0 { new.replicas } else { new.replicas + room.min(self.d.replicas - new.replicas) }
    }

    /// Was the Deployment resized since a set that has pods was last written?
    fn is_resized(&self) -> bool {
        let mut active = self.old.iter().chain(&self.new).filter(|s| s.replicas > 0);
        active.any(|s| s.desired().is_some_and(|desired| desired != self.d.replicas))
    }

    fn resize(set: &mut Set, d: &Rollout, replicas: i32) {
        set.scale(replicas);
        set.note_size(d.replicas, d.max_pods());
    }

    fn share_out(&mut self) {
        // One set with pods, or none: it gets all of them.
        if let Some(name) = self.active_or_latest() {
            let d = &self.d;
            let sets = self.old.iter_mut().chain(&mut self.new);
            // Also one that has the size already is told, or it would count as resized for ever.
            let is_told = |s: &&mut Set| s.replicas == d.replicas && s.desired().is_none_or(|n| n == d.replicas);
            if let Some(set) = sets.into_iter().find(|s| s.name == name).filter(|s| !is_told(s)) {
                Self::resize(set, d, d.replicas);
            }
            return;
        }
        let d = &self.d;
        let is_saturated = self.new.as_ref().is_some_and(|s| {
            s.replicas == d.replicas && s.desired() == Some(d.replicas) && s.status.available_replicas == d.replicas
        });
        if is_saturated {
            for set in self.old.iter_mut().filter(|s| s.replicas > 0) {
                Self::resize(set, d, 0);
            }
            return;
        }
        if d.is_rolling {
            self.share_out_in_proportion();
        }
    }

    fn active_or_latest(&self) -> Option<String> {
        let all: Vec<&Set> = self.old.iter().chain(&self.new).collect();
        let active: Vec<&&Set> = all.iter().filter(|s| s.replicas > 0).collect();
        match active.as_slice() {
            [] => {
                let latest = self.old.iter().max_by(|a, b| (a.created, &b.name).cmp(&(b.created, &a.name)));
                self.new.as_ref().or(latest).map(|s| s.name.clone())
            }
            [one] => Some(one.name.clone()),
            _ => None,
        }
    }

    /// A resize in the middle of a rollout keeps the sets' proportions; what rounding leaves over
    /// goes to the largest.
    fn share_out_in_proportion(&mut self) {
        let d = &self.d;
        let mut sets: Vec<&mut Set> = self.old.iter_mut().chain(&mut self.new).filter(|s| s.replicas > 0).collect();
        let total: i32 = sets.iter().map(|s| s.replicas).sum();
        let allowed = if d.replicas > 0 { d.max_pods() } else { 0 };
        let to_add = allowed - total;
        if to_add > 0 {
            sets.sort_by(|a, b| b.replicas.cmp(&a.replicas).then(b.created.cmp(&a.created)).then(b.name.cmp(&a.name)));
        } else {
            sets.sort_by(|a, b| b.replicas.cmp(&a.replicas).then(a.created.cmp(&b.created)).then(a.name.cmp(&b.name)));
        }
        let mut added = 0;
        let mut sizes: Vec<i32> = Vec::new();
        for set in &sets {
            let share = proportion(set, d, to_add, added);
            added += share;
            sizes.push(set.replicas + share);
        }
        if let Some(first) = sizes.first_mut() {
            *first = (*first + to_add - added).max(0);
        }
        for (set, size) in sets.into_iter().zip(sizes) {
            Self::resize(set, d, size);
        }
    }

    fn roll(&mut self) {
        self.sync_new(true);
        if self.grow_new() || self.shrink_old() {
            return;
        }
        if status::is_complete(&self.d, &self.counted()) {
            self.clean_up();
        }
    }

    fn grow_new(&mut self) -> bool {
        let Some(new) = &self.new else { return false };
        let size = match new.replicas.cmp(&self.d.replicas) {
            std::cmp::Ordering::Equal => return false,
            std::cmp::Ordering::Greater => self.d.replicas,
            std::cmp::Ordering::Less => self.new_size(new),
        };
        if size == new.replicas {
            return false;
        }
        let d = &self.d;
        if let Some(new) = &mut self.new {
            Self::resize(new, d, size);
        }
        true
    }

    fn shrink_old(&mut self) -> bool {
        let old_pods: i32 = self.old.iter().map(|s| s.replicas).sum();
        let Some(new) = &self.new else { return false };
        if old_pods == 0 {
            return false;
        }
        let min_available = self.d.replicas - self.d.max_unavailable();
        let new_unavailable = new.replicas - serving(new);
        let most = self.total() - min_available - new_unavailable;
        if most <= 0 {
            return false;
        }
        let available_new = serving(new);
        self.old.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
        let d = &self.d;
        let mut shrunk = 0;
        // Replicas that do not work go first: they serve nobody.
        for set in &mut self.old {
            let broken = set.replicas - serving(set);
            if shrunk >= most || set.replicas == 0 || broken <= 0 {
                continue;
            }
            let count = broken.min(most - shrunk);
            Self::resize(set, d, set.replicas - count);
            shrunk += count;
        }
        let available: i32 = self.old.iter().map(serving).sum::<i32>() + available_new;
        let mut surplus = available - min_available;
        for set in self.old.iter_mut().filter(|s| s.replicas > 0) {
            if surplus <= 0 {
                break;
            }
            let count = set.replicas.min(surplus);
            Self::resize(set, d, set.replicas - count);
            surplus -= count;
            shrunk += count;
        }
        shrunk > 0
    }

    fn recreate(&mut self) {
        let d = &self.d;
        let mut shrunk = false;
        for set in self.old.iter_mut().filter(|s| s.replicas > 0) {
            Self::resize(set, d, 0);
            shrunk = true;
        }
        if shrunk || self.old_pods_run() {
            return;
        }
        self.sync_new(true);
        if !self.is_created {
            let d = &self.d;
            if let Some(new) = self.new.as_mut().filter(|s| s.replicas != d.replicas) {
                Self::resize(new, d, d.replicas);
            }
        }
        if status::is_complete(&self.d, &self.counted()) {
            self.clean_up();
        }
    }

    fn old_pods_run(&self) -> bool {
        let new = self.new.as_ref().map(|s| s.uid.as_str());
        self.old.iter().any(|s| s.status.replicas > 0) || self.pod_owners.iter().any(|uid| Some(uid.as_str()) != new)
    }

    /// Old sets beyond the limit go, oldest revision first; never one that still has pods.
    fn clean_up(&mut self) {
        let Some(limit) = self.d.history else { return };
        let mut old: Vec<&Set> = self.old.iter().filter(|s| !s.deleting).collect();
        let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        old.sort_by(|a, b| (a.revision(), a.created, &a.name).cmp(&(b.revision(), b.created, &b.name)));
        let idle =
            |s: &&&Set| s.status.replicas == 0 && s.replicas == 0 && s.generation <= s.status.observed_generation;
        let gone = old.iter().take(surplus).filter(idle).map(|s| (s.name.clone(), s.uid.clone()));
        self.delete = gone.collect();
    }

    fn counted(&self) -> DeploymentStatus {
        let all: Vec<&Set> = self.old.iter().chain(&self.new).collect();
        status::count(&self.d, &all, self.new.as_ref(), self.now)
    }

    fn finish(self, before: &[Set]) -> Plan {
        let all: Vec<&Set> = self.old.iter().chain(&self.new).collect();
        let counted = self.counted();
        // Paused, resized and deleted Deployments only count; rollouts also judge progress.
        let judges = !self.d.deleting && !self.d.paused && !is_resized(before, &self.d);
        let status = if judges { status::judge(&self.d, counted, &all, self.new.as_ref(), self.now) } else { counted };
        let check_at = if judges { status::check_at(&self.d, &status) } else { None };
        let mut update = Vec::new();
        for set in self.old.iter().chain(self.new.iter().filter(|_| !self.is_created)) {
            let Some(was) = before.iter().find(|b| b.uid == set.uid).filter(|b| b.object != set.object) else {
                continue;
            };
            let scaled = (was.replicas != set.replicas).then(|| Scaled {
                set: set.name.clone(),
                from: was.replicas,
                to: set.replicas,
            });
            if !self.delete.iter().any(|(_, uid)| *uid == set.uid) {
                update.push((set.clone(), scaled));
            }
        }
        let known = machinery::meta::annotation(&self.d.object, REVISION);
        Plan {
            revision: self.revision.filter(|r| known != Some(r)),
            create: self.new.filter(|_| self.is_created),
            update,
            delete: self.delete,
            status,
            check_at,
        }
    }
}

fn is_resized(sets: &[Set], d: &Rollout) -> bool {
    sets.iter().filter(|s| s.replicas > 0).any(|s| s.desired().is_some_and(|desired| desired != d.replicas))
}

/// How many replicas a set gains (or loses) of those to be shared out.
fn proportion(set: &Set, d: &Rollout, to_add: i32, added: i32) -> i32 {
    if set.replicas == 0 || to_add == 0 || to_add == added {
        return 0;
    }
    let fraction = fraction(set, d);
    let left = to_add - added;
    if to_add > 0 { fraction.min(left) } else { fraction.max(left) }
}

/// The replicas of a set that serve and will go on: what it has beyond its size is on its way out,
/// although its status may still count it.
fn serving(set: &Set) -> i32 {
    set.status.available_replicas.min(set.replicas)
}

fn fraction(set: &Set, d: &Rollout) -> i32 {
    if d.replicas == 0 {
        return -set.replicas;
    }
    let before = set.max().filter(|m| *m != 0).or(d.status.replicas).unwrap_or(0);
    if before == 0 {
        return 0;
    }
    let size = f64::from(set.replicas) * f64::from(d.max_pods()) / f64::from(before);
    #[allow(
        clippy::cast_possible_truncation,
        reason = "both factors are i32 and the quotient is bounded by their product"
    )]
    let rounded = size.round() as i32;
    rounded - set.replicas
}

#[cfg(test)]
mod tests;
