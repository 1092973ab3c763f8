//! Container statuses from what the runtime shows and what was reported before. Pure.

use std::collections::BTreeMap;

use api::meta::apis::meta::v1::Time;
use api::types::core::v1 as core;
use jiff::Timestamp;

use crate::pod::{BoundPod, is_restartable_init};
use crate::probe::threshold::{Kind, Verdict};
use crate::resize::Actuated;
use crate::runtime::{Container, ContainerState, PodState};
use crate::sync::plan::{Verdicts, should_start};

/// Why a container that should run does not: reason and message of its waiting state.
pub type Waiting = BTreeMap<String, (String, String)>;

/// What container statuses are made of.
pub struct Facts<'a> {
    pub pod: &'a BoundPod,
    pub seen: &'a PodState,
    pub verdicts: &'a Verdicts,
    pub waiting: &'a Waiting,
    /// What containers have that is not what they are allocated.
    pub actuated: &'a Actuated,
    /// What was reported last, from which restart counts and past ends are kept.
    pub before: &'a core::PodStatus,
    /// No container will run any more.
    pub terminal: bool,
    /// All containers of the pod are starting anew.
    pub restarting: bool,
    /// `containerd`, for container ids.
    pub runtime: &'a str,
}

const UNKNOWN: &str = "ContainerStatusUnknown";
const RESTARTING: &str = "RestartingAllContainers";

/// The statuses of the containers, ordered by name as upstream orders them.
pub fn containers(facts: &Facts) -> Vec<core::ContainerStatus> {
    let before = facts.before.container_statuses.as_deref().unwrap_or_default();
    let mut out: Vec<_> = facts.pod.containers().iter().map(|c| one(facts, c, before, Sort::Regular)).collect();
    out.sort_by(|a, b| a.name.cmp(&b.name));
    out
}

/// The statuses of the init containers, in the spec's order.
pub fn init_containers(facts: &Facts) -> Vec<core::ContainerStatus> {
    let before = facts.before.init_container_statuses.as_deref().unwrap_or_default();
    facts.pod.init_containers().iter().map(|c| one(facts, c, before, Sort::Init)).collect()
}

/// The statuses of the ephemeral containers, ordered by name.
pub fn ephemeral_containers(facts: &Facts) -> Vec<core::ContainerStatus> {
    let before = facts.before.ephemeral_container_statuses.as_deref().unwrap_or_default();
    let mut out: Vec<_> = facts.pod.ephemeral_containers().map(|c| one(facts, c, before, Sort::Ephemeral)).collect();
    out.sort_by(|a, b| a.name.cmp(&b.name));
    out
}

/// Which list a container is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Regular,
    Init,
    /// Nobody waits for it and nobody asks how it does: it is never ready, and never said to have started.
    Ephemeral,
}

fn one(
    facts: &Facts,
    container: &core::Container,
    before: &[core::ContainerStatus],
    sort: Sort,
) -> core::ContainerStatus {
    let before = before.iter().find(|s| s.name == container.name);
    let mut found = facts.seen.containers.iter().filter(|c| c.name == container.name);
    let mut status = match found.next() {
        Some(newest) => {
            let mut status = from_runtime(facts, container, newest);
            let past = found.next().map(|older| state(facts, older)).filter(|s| s.terminated.is_some());
            status.last_state = past.or_else(|| before.and_then(|b| past_of(b, &status)));
            if let Some(before) = before {
                status.restart_count = status.restart_count.max(before.restart_count);
            }
            status
        }
        None => absent(facts, container, before),
    };
    wait(facts, container, &mut status, sort);
    if facts.terminal && status.state.as_ref().is_none_or(|s| s.terminated.is_none()) {
        let ever = facts.seen.container(&container.name).is_some() || before.is_some_and(|b| b.container_id.is_some());
        if sort == Sort::Regular || ever {
            let message = "The container could not be located when the pod was terminated";
            status.state = Some(located_nowhere(message));
        }
    }
    if sort != Sort::Ephemeral {
        readiness(facts, container, &mut status, sort == Sort::Init);
    }
    status
}

/// What the last report said of an earlier run, when the runtime no longer has it.
fn past_of(before: &core::ContainerStatus, now: &core::ContainerStatus) -> Option<core::ContainerState> {
    let is_end = |s: &core::ContainerState| s.terminated.is_some();
    if before.container_id == now.container_id {
        return before.last_state.clone().filter(is_end);
    }
    before.state.clone().filter(is_end).or_else(|| before.last_state.clone().filter(is_end))
}

/// The status of a container the runtime does not have.
fn absent(facts: &Facts, container: &core::Container, before: Option<&core::ContainerStatus>) -> core::ContainerStatus {
    let reason = if facts.pod.init_containers().is_empty() { "ContainerCreating" } else { "PodInitializing" };
    let mut status = core::ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(waiting(reason, "")),
        last_state: None,
        ..core::ContainerStatus::default()
    };
    let Some(before) = before else { return status };
    if facts.restarting && before.state.as_ref().is_some_and(|s| s.waiting.is_none()) {
        let text = "The container is removed because RestartAllContainers in place";
        status.state = Some(waiting(RESTARTING, text));
        status.last_state = Some(ended(RESTARTING, text));
        status.restart_count = before.restart_count.saturating_add(1);
        return status;
    }
    if before.state.as_ref().is_some_and(|s| s.terminated.is_some()) {
        return before.clone();
    }
    status.restart_count = before.restart_count;
    status.last_state.clone_from(&before.last_state);
    // It ran when it was last seen and vanished with its record: that was an end, too.
    if before.state.as_ref().is_some_and(|s| s.running.is_some()) {
        if status.last_state.as_ref().is_none_or(|s| s.terminated.is_none()) {
            let text = "The container could not be located when the pod was deleted.  The container used to be Running";
            status.last_state = Some(located_nowhere(text));
        }
        if !facts.pod.is_deleted() {
            status.restart_count = status.restart_count.saturating_add(1);
        }
    }
    status
}

fn located_nowhere(message: &str) -> core::ContainerState {
    ended(UNKNOWN, message)
}

fn ended(reason: &str, message: &str) -> core::ContainerState {
    let terminated = core::ContainerStateTerminated {
        reason: Some(reason.into()),
        message: Some(message.into()),
        exit_code: 137,
        ..core::ContainerStateTerminated::default()
    };
    core::ContainerState { terminated: Some(terminated), ..core::ContainerState::default() }
}

fn waiting(reason: &str, message: &str) -> core::ContainerState {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let waiting = core::ContainerStateWaiting { reason: text(reason), message: text(message) };
    core::ContainerState { waiting: Some(waiting), ..core::ContainerState::default() }
}

/// The status of a container as the runtime shows it.
fn from_runtime(facts: &Facts, container: &core::Container, found: &Container) -> core::ContainerStatus {
    let mut status = core::ContainerStatus {
        name: container.name.clone(),
        image: found.image.clone(),
        image_id: found.image_ref.clone(),
        container_id: Some(container_id(facts.runtime, &found.id)),
        restart_count: i32::try_from(found.attempt).unwrap_or(i32::MAX),
        state: Some(state(facts, found)),
        ..core::ContainerStatus::default()
    };
    // A runtime that knows of no such signal has it sent by us.
    let own = || container.lifecycle.as_ref()?.stop_signal.clone();
    status.stop_signal = found.stop_signal.clone().or_else(own);
    if found.may_run() {
        let has = facts.actuated.get(&found.id).or(container.resources.as_ref());
        // Also where there are none: who reports them can change them.
        status.resources = Some(has.cloned().unwrap_or_default());
        status.allocated_resources = container.resources.as_ref().and_then(|r| r.requests.clone());
        status.user = found.user.as_ref().map(|user| core::ContainerUser {
            linux: Some(core::LinuxContainerUser {
                uid: user.uid,
                gid: user.gid,
                supplemental_groups: (!user.supplemental_groups.is_empty()).then(|| user.supplemental_groups.clone()),
            }),
        });
    }
    let mounts = container.volume_mounts.iter().flatten().map(|mount| {
        let recursive = found.recursive_read_only.contains(&mount.mount_path);
        let mode = if recursive { "Enabled" } else { "Disabled" };
        core::VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only.filter(|r| *r),
            recursive_read_only: mount.read_only.filter(|r| *r).map(|_| mode.to_owned()),
            ..core::VolumeMountStatus::default()
        }
    });
    status.volume_mounts = Some(mounts.collect::<Vec<_>>()).filter(|m| !m.is_empty());
    status
}

fn container_id(runtime: &str, id: &str) -> String {
    format!("{runtime}://{id}")
}

fn state(facts: &Facts, found: &Container) -> core::ContainerState {
    let time = |t: Option<Timestamp>| t.map(|t| Time(whole(t)));
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    match found.state {
        ContainerState::Running => core::ContainerState {
            running: Some(core::ContainerStateRunning { started_at: time(found.started_at) }),
            ..core::ContainerState::default()
        },
        ContainerState::Created => {
            let reason = if facts.pod.init_containers().is_empty() { "ContainerCreating" } else { "PodInitializing" };
            waiting(reason, "")
        }
        ContainerState::Exited => core::ContainerState {
            terminated: Some(core::ContainerStateTerminated {
                container_id: Some(container_id(facts.runtime, &found.id)),
                exit_code: found.exit_code,
                reason: text(&found.reason),
                message: text(cut(&found.message, facts)),
                started_at: time(found.started_at),
                finished_at: time(found.finished_at),
                signal: None,
            }),
            ..core::ContainerState::default()
        },
        ContainerState::Unknown => {
            let mut lost = located_nowhere("The container could not be located");
            if let Some(t) = &mut lost.terminated {
                t.container_id = Some(container_id(facts.runtime, &found.id));
                t.started_at = time(found.started_at);
            }
            lost
        }
    }
}

/// The longest termination messages of all containers of a pod together.
const MAX_MESSAGES: usize = 12 << 10;

/// A container's share of what a pod may say at its end.
fn cut<'a>(message: &'a str, facts: &Facts) -> &'a str {
    let mut at = (MAX_MESSAGES / facts.pod.all_containers().count().max(1)).min(message.len());
    while !message.is_char_boundary(at) {
        at -= 1;
    }
    &message[..at]
}

/// `metav1.Time` knows whole seconds; comparing anything finer would report changes forever.
pub fn whole(t: Timestamp) -> Timestamp {
    Timestamp::from_second(t.as_second()).unwrap_or(t)
}

/// A container that is to start again waits, and says for what.
fn wait(facts: &Facts, container: &core::Container, status: &mut core::ContainerStatus, sort: Sort) {
    let found = facts.seen.container(&container.name);
    let completed = found.is_some_and(|c| c.state == ContainerState::Exited && c.exit_code == 0);
    if facts.terminal || (sort == Sort::Init && completed && !is_restartable_init(container)) {
        return;
    }
    if !should_start(facts.pod, container, found) {
        return;
    }
    let Some((reason, message)) = facts.waiting.get(&container.name) else { return };
    if status.state.as_ref().is_some_and(|s| s.terminated.is_some()) {
        status.last_state = status.state.take();
    }
    status.state = Some(waiting(reason, message));
}

fn readiness(facts: &Facts, container: &core::Container, status: &mut core::ContainerStatus, init: bool) {
    let running = facts.seen.container(&container.name).filter(|c| c.state == ContainerState::Running);
    let running = running.filter(|_| status.state.as_ref().is_some_and(|s| s.running.is_some()));
    let verdict = |id: &str, kind| facts.verdicts.get(&(id.to_owned(), kind)).copied();
    let started = running
        .is_some_and(|c| container.startup_probe.is_none() || verdict(&c.id, Kind::Startup) == Some(Verdict::Success));
    status.started = Some(started);
    status.ready = if init && !is_restartable_init(container) {
        status.state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0)
    } else {
        started
            && running.is_some_and(|c| {
                container.readiness_probe.is_none() || verdict(&c.id, Kind::Readiness) == Some(Verdict::Success)
            })
    };
}
