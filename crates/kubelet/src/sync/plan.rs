//! What to do next about a running pod: spec and runtime state in, actions out. Pure.
//!
//! A worked example, two containers, restartPolicy Always:
//!
//! ```text
//!  nothing there            → sandbox Create{attempt 0}, start [0, 1]
//!  sandbox ready, 0 runs    → keep, start [1]
//!  1 exited                 → keep, start [1]          (whether its back-off allows it is asked later)
//!  0 failed liveness        → keep, kill 0, start [0]
//!  sandbox died             → sandbox Create{attempt 1, replacing the old}, start [0, 1]
//!  ephemeral one asked for  → keep, ephemeral [0]      (once: whatever becomes of it, it is not started again)
//! ```

use std::collections::BTreeMap;

use crate::pod::{BoundPod, RestartPolicy, is_restartable_init};
use crate::probe::threshold::{Kind, Verdict};
use crate::resize::Actuated;
use crate::resize::change::{self, Change};
use crate::runtime::{Container, ContainerState, PodState, labels};

/// What the probes have established, by container id.
pub type Verdicts = BTreeMap<(String, Kind), Verdict>;

/// What happens to the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sandbox {
    /// It serves; the id.
    Keep(String),
    /// A new one. What runs in older ones is killed first; `changed` when there was one.
    Create { attempt: u32, changed: bool },
    /// The pod has nothing to run any more: everything ends.
    Finish,
}

/// A container to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    pub id: String,
    pub name: String,
    /// The event's text.
    pub message: String,
    pub why: Why,
}

/// Why a container is ended while its pod goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Changed,
    Liveness,
    Startup,
    Unknown,
    Resized,
}

/// A running container whose cgroup is to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    pub id: String,
    pub name: String,
    /// Its memory becomes less.
    pub shrinks: bool,
}

/// What to do, in this order: kill, resize, sandbox, ephemeral containers, init containers, containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub sandbox: Sandbox,
    pub kill: Vec<Kill>,
    /// Ids of containers that go with all their traces, so that the pod begins anew in its sandbox: in
    /// this order, those whose end asked for it last.
    pub reset: Vec<String>,
    /// Running containers to resize, those that shrink first.
    pub update: Vec<Update>,
    /// The pod as a whole is to be resized.
    pub whole: bool,
    /// Indexes of ephemeral containers to start.
    pub ephemeral: Vec<usize>,
    /// Indexes of init containers to start.
    pub init: Vec<usize>,
    /// Indexes of containers to start.
    pub start: Vec<usize>,
}

impl Plan {
    fn finish() -> Self {
        Self::of(Sandbox::Finish)
    }

    fn of(sandbox: Sandbox) -> Self {
        Self {
            sandbox,
            kill: Vec::new(),
            reset: Vec::new(),
            update: Vec::new(),
            whole: false,
            ephemeral: Vec::new(),
            init: Vec::new(),
            start: Vec::new(),
        }
    }

    /// True when there is nothing to do.
    pub fn is_idle(&self) -> bool {
        matches!(self.sandbox, Sandbox::Keep(_))
            && self.kill.is_empty()
            && self.reset.is_empty()
            && self.update.is_empty()
            && !self.whole
            && self.ephemeral.is_empty()
            && self.init.is_empty()
            && self.start.is_empty()
    }
}

/// Decides.
pub fn plan(pod: &BoundPod, seen: &PodState, verdicts: &Verdicts, actuated: &Actuated) -> Plan {
    let mut plan = starts(pod, seen, verdicts, actuated);
    plan.update.sort_by_key(|update| !update.shrinks);
    plan
}

fn starts(pod: &BoundPod, seen: &PodState, verdicts: &Verdicts, actuated: &Actuated) -> Plan {
    let (sandbox, attempt) = match sandbox(pod, seen) {
        Ok(id) => (id, 0),
        Err(attempt) => {
            if pod.restart_policy() == RestartPolicy::Never && attempt > 0 && !seen.containers.is_empty() {
                return Plan::finish();
            }
            return fresh(pod, seen, attempt);
        }
    };
    debug_assert_eq!(attempt, 0);
    let mut plan = Plan::of(Sandbox::Keep(sandbox));
    if restarts_all(pod, seen) {
        plan.reset = reset(pod, seen);
        return plan;
    }
    // They help where a pod does not get on, so that they wait for no initialization.
    plan.ephemeral = ephemeral(pod, seen);
    plan.whole = actuated.contains_key(change::POD);
    match init(pod, seen, verdicts, actuated, &mut plan) {
        Init::Failed => return Plan::finish(),
        Init::UnderWay => return plan,
        Init::Done => {}
    }
    let mut kept = 0;
    for (index, container) in pod.containers().iter().enumerate() {
        let found = seen.container(&container.name);
        let Some(running) = found.filter(|c| c.state == ContainerState::Running) else {
            if should_start(pod, container, found) {
                plan.start.push(index);
                plan.kill.extend(found.and_then(lost));
            }
            continue;
        };
        match complaint(pod, container, running, verdicts, actuated) {
            None => {
                kept += 1;
                plan.update.extend(update(pod, container, running, actuated));
            }
            Some(why) => {
                let restart = matches!(why, Why::Changed | Why::Resized) || pod.restarts_after(container, 137);
                let suffix = if restart && why != Why::Resized { ", will be restarted" } else { "" };
                let message = format!("Container {} {}{suffix}", container.name, why.text());
                plan.kill.push(Kill { id: running.id.clone(), name: container.name.clone(), message, why });
                if restart {
                    plan.start.push(index);
                }
            }
        }
    }
    if kept == 0 && plan.start.is_empty() { Plan::finish() } else { plan }
}

/// The sandbox to keep, or the attempt number of the one to create.
fn sandbox<'a>(pod: &BoundPod, seen: &'a PodState) -> Result<String, u32> {
    let Some(newest) = seen.sandboxes.first() else { return Err(0) };
    let next = seen.sandboxes.iter().map(|s| s.attempt).max().unwrap_or(0).saturating_add(1);
    let ready = |s: &&'a crate::runtime::Sandbox| s.ready;
    let one = seen.sandboxes.iter().filter(ready).count() == 1;
    let same_network = newest.host_network == pod.host_network();
    let addressed = pod.host_network() || !newest.ips.is_empty();
    if newest.ready && one && same_network && addressed { Ok(newest.id.clone()) } else { Err(next) }
}

/// The plan when the pod needs a new sandbox.
fn fresh(pod: &BoundPod, seen: &PodState, attempt: u32) -> Plan {
    let succeeded =
        |name: &str| seen.container(name).is_some_and(|c| c.state == ContainerState::Exited && c.exit_code == 0);
    let start: Vec<usize> = pod
        .containers()
        .iter()
        .enumerate()
        .filter(|(_, c)| pod.restarts_after(c, 0) || !succeeded(&c.name))
        .map(|(index, _)| index)
        .collect();
    let began = pod.containers().iter().any(|c| seen.container(&c.name).is_some());
    if start.is_empty() && began {
        return Plan::finish();
    }
    let sandbox = Sandbox::Create { attempt, changed: !seen.sandboxes.is_empty() };
    if pod.init_containers().is_empty() {
        Plan { start, ..Plan::of(sandbox) }
    } else {
        Plan { init: vec![0], ..Plan::of(sandbox) }
    }
}

/// Whether the end of a container asks for all of the pod's to start anew.
pub fn restarts_all(pod: &BoundPod, seen: &PodState) -> bool {
    let asks = |c: &api::types::core::v1::Container| {
        let found = seen.container(&c.name).filter(|f| f.state == ContainerState::Exited);
        found.is_some_and(|f| pod.restarts_all_after(c, f.exit_code))
    };
    !pod.is_deleted() && pod.init_containers().iter().chain(pod.containers()).any(asks)
}

/// Every container of the pod but the ephemeral ones. Whoever asked for it goes last, so that a kubelet
/// that begins anew in between still sees why.
fn reset(pod: &BoundPod, seen: &PodState) -> Vec<String> {
    let asked = |c: &&Container| {
        let spec = pod.container(&c.name);
        c.state == ContainerState::Exited && spec.is_some_and(|spec| pod.restarts_all_after(spec, c.exit_code))
    };
    let of = |specs: &[api::types::core::v1::Container], sources: bool| {
        let named = |name: &str| specs.iter().any(|spec| spec.name == name);
        let found = seen.containers.iter().filter(|c| named(&c.name) && asked(c) == sources);
        found.map(|c| c.id.clone()).collect::<Vec<_>>()
    };
    let (init, regular) = (pod.init_containers(), pod.containers());
    [of(regular, false), of(init, false), of(regular, true), of(init, true)].concat()
}

/// The ephemeral containers that have never run.
fn ephemeral(pod: &BoundPod, seen: &PodState) -> Vec<usize> {
    let ran = |name: &str| {
        let statuses = pod.status().ephemeral_container_statuses.iter().flatten();
        let mut told = statuses.filter(|s| s.name == name && s.container_id.is_some());
        seen.container(name).is_some_and(|c| c.state != ContainerState::Created) || told.next().is_some()
    };
    let all = pod.ephemeral_containers().enumerate();
    all.filter(|(_, c)| !pod.is_deleted() && !ran(&c.name)).map(|(index, _)| index).collect()
}

/// Whether `container`, which does not run now, is to be started (again).
pub fn should_start(pod: &BoundPod, container: &api::types::core::v1::Container, found: Option<&Container>) -> bool {
    if pod.is_deleted() {
        return false;
    }
    match found {
        None => true,
        Some(c) => match c.state {
            ContainerState::Running => false,
            ContainerState::Created | ContainerState::Unknown => true,
            ContainerState::Exited => pod.restarts_after(container, c.exit_code),
        },
    }
}

/// A container that the runtime lost sight of must be certainly dead before its successor starts.
fn lost(found: &Container) -> Option<Kill> {
    (found.state == ContainerState::Unknown).then(|| Kill {
        id: found.id.clone(),
        name: found.name.clone(),
        message: format!("Container {} is in unknown state, try killing it before restart", found.name),
        why: Why::Unknown,
    })
}

impl Why {
    fn text(self) -> &'static str {
        match self {
            Self::Changed => "definition changed",
            Self::Liveness => "failed liveness probe",
            Self::Startup => "failed startup probe",
            Self::Unknown => "is in unknown state",
            Self::Resized => "resize requires restart",
        }
    }
}

fn complaint(
    pod: &BoundPod,
    container: &api::types::core::v1::Container,
    running: &Container,
    verdicts: &Verdicts,
    actuated: &Actuated,
) -> Option<Why> {
    let failed = |kind| verdicts.get(&(running.id.clone(), kind)) == Some(&Verdict::Failure);
    if labels::is_changed(container, running) {
        Some(Why::Changed)
    } else if container.liveness_probe.is_some() && failed(Kind::Liveness) {
        Some(Why::Liveness)
    } else if container.startup_probe.is_some() && failed(Kind::Startup) {
        Some(Why::Startup)
    } else if change::change(pod, container, actuated.get(&running.id)) == Change::Restart {
        Some(Why::Resized)
    } else {
        None
    }
}

fn update(
    pod: &BoundPod,
    container: &api::types::core::v1::Container,
    running: &Container,
    actuated: &Actuated,
) -> Option<Update> {
    let Change::Update { shrinks } = change::change(pod, container, actuated.get(&running.id)) else { return None };
    Some(Update { id: running.id.clone(), name: container.name.clone(), shrinks })
}

enum Init {
    Done,
    UnderWay,
    Failed,
}

/// Walks the init containers from the last to the first: the latest that has a trace in the runtime
/// tells how far initialization is. Once a pod is initialized, only the restartable ones matter.
fn init(pod: &BoundPod, seen: &PodState, verdicts: &Verdicts, actuated: &Actuated, plan: &mut Plan) -> Init {
    let all = pod.init_containers();
    if all.is_empty() {
        return Init::Done;
    }
    // A container that exited proves nothing: after a reboot it may be of an earlier sandbox.
    let began = pod.containers().iter().filter_map(|c| seen.container(&c.name));
    let mut done = began.into_iter().any(|c| c.state != ContainerState::Exited || in_current(c, plan));
    let mut found_latest = done;
    for (index, container) in all.iter().enumerate().rev() {
        let restartable = is_restartable_init(container);
        let found = seen.container(&container.name).filter(|c| in_current(c, plan) || c.may_run());
        let Some(found) = found else {
            if found_latest && restartable {
                plan.init.push(index);
            }
            continue;
        };
        if found_latest && !restartable {
            continue;
        }
        let latest = !std::mem::replace(&mut found_latest, true);
        let advance = |plan: &mut Plan, done: &mut bool| {
            if latest && index + 1 < all.len() {
                plan.init.push(index + 1);
            } else if latest {
                *done = true;
            }
        };
        match found.state {
            ContainerState::Running if restartable => {
                if let Some(why) = complaint(pod, container, found, verdicts, actuated) {
                    let what = if why == Why::Resized { "Container" } else { "Init container" };
                    let message = format!("{what} {} {}", container.name, why.text());
                    plan.kill.push(Kill { id: found.id.clone(), name: container.name.clone(), message, why });
                    plan.init.push(index);
                    continue;
                }
                plan.update.extend(update(pod, container, found, actuated));
                let started = container.startup_probe.is_none()
                    || verdicts.get(&(found.id.clone(), Kind::Startup)) == Some(&Verdict::Success);
                if started {
                    advance(plan, &mut done);
                }
            }
            ContainerState::Running => {}
            ContainerState::Exited if restartable => {
                plan.init.push(index);
            }
            ContainerState::Exited if found.exit_code == 0 => advance(plan, &mut done),
            ContainerState::Exited => {
                if !pod.restarts_after(container, found.exit_code) {
                    return Init::Failed;
                }
                plan.init.push(index);
            }
            ContainerState::Created => plan.init.push(index),
            ContainerState::Unknown => {
                plan.kill.extend(lost(found));
                plan.init.push(index);
            }
        }
    }
    if !found_latest {
        plan.init.push(0);
    }
    plan.init.sort_unstable();
    if done { Init::Done } else { Init::UnderWay }
}

/// True when the container belongs to the sandbox that is kept.
fn in_current(container: &Container, plan: &Plan) -> bool {
    matches!(&plan.sandbox, Sandbox::Keep(id) if *id == container.sandbox_id)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
