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
//! ```

use std::collections::BTreeMap;

use crate::pod::{BoundPod, RestartPolicy, is_restartable_init};
use crate::probe::threshold::{Kind, Verdict};
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
}

/// What to do, in this order: kill, sandbox, init containers, containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub sandbox: Sandbox,
    pub kill: Vec<Kill>,
    /// Indexes of init containers to start.
    pub init: Vec<usize>,
    /// Indexes of containers to start.
    pub start: Vec<usize>,
}

impl Plan {
    fn finish() -> Self {
        Self { sandbox: Sandbox::Finish, kill: Vec::new(), init: Vec::new(), start: Vec::new() }
    }

    /// True when there is nothing to do.
    pub fn is_idle(&self) -> bool {
        matches!(self.sandbox, Sandbox::Keep(_))
            && self.kill.is_empty()
            && self.init.is_empty()
            && self.start.is_empty()
    }
}

/// Decides.
pub fn plan(pod: &BoundPod, seen: &PodState, verdicts: &Verdicts) -> Plan {
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
    let mut plan = Plan { sandbox: Sandbox::Keep(sandbox), kill: Vec::new(), init: Vec::new(), start: Vec::new() };
    match init(pod, seen, verdicts, &mut plan) {
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
        match complaint(container, running, verdicts) {
            None => kept += 1,
            Some(why) => {
                let restart = why == Why::Changed || pod.restarts_after(container, 137);
                let suffix = if restart { ", will be restarted" } else { "" };
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
        Plan { sandbox, kill: Vec::new(), init: Vec::new(), start }
    } else {
        Plan { sandbox, kill: Vec::new(), init: vec![0], start: Vec::new() }
    }
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
        }
    }
}

fn complaint(container: &api::types::core::v1::Container, running: &Container, verdicts: &Verdicts) -> Option<Why> {
    let failed = |kind| verdicts.get(&(running.id.clone(), kind)) == Some(&Verdict::Failure);
    if labels::is_changed(container, running) {
        Some(Why::Changed)
    } else if container.liveness_probe.is_some() && failed(Kind::Liveness) {
        Some(Why::Liveness)
    } else if container.startup_probe.is_some() && failed(Kind::Startup) {
        Some(Why::Startup)
    } else {
        None
    }
}

enum Init {
    Done,
    UnderWay,
    Failed,
}

/// Walks the init containers from the last to the first: the latest that has a trace in the runtime
/// tells how far initialization is. Once a pod is initialized, only the restartable ones matter.
fn init(pod: &BoundPod, seen: &PodState, verdicts: &Verdicts, plan: &mut Plan) -> Init {
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
                if let Some(why) = complaint(container, found, verdicts) {
                    let message = format!("Init container {} {}", container.name, why.text());
                    plan.kill.push(Kill { id: found.id.clone(), name: container.name.clone(), message, why });
                    plan.init.push(index);
                    continue;
                }
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
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use crate::runtime::Sandbox as Found;
    use jiff::Timestamp;
    use serde_json::json;
    use std::sync::Arc;

    fn two(policy: &str) -> Arc<BoundPod> {
        pod(json!({"spec": {"restartPolicy": policy, "containers": [
            {"name": "a", "image": "i", "livenessProbe": {"tcpSocket": {"port": 1}}},
            {"name": "b", "image": "i", "startupProbe": {"tcpSocket": {"port": 1}}}]}}))
    }

    fn with_init() -> Arc<BoundPod> {
        pod(json!({"spec": {"restartPolicy": "Always", "initContainers": [
            {"name": "x", "image": "i"},
            {"name": "w", "image": "i", "restartPolicy": "Always", "startupProbe": {"tcpSocket": {"port": 1}}},
            {"name": "y", "image": "i"}], "containers": [{"name": "a", "image": "i"}]}}))
    }

    /// `"S0 a+ b:1"`: sandbox attempt 0 ready (`s0` not ready), a runs, b exited with 1, `c*` created, `d?` unknown.
    fn seen(pod: &BoundPod, text: &str) -> PodState {
        let mut state = PodState::default();
        for word in text.split_whitespace() {
            if let Some(attempt) = word.strip_prefix(['S', 's']) {
                let attempt: u32 = attempt.parse().expect("a number");
                state.sandboxes.insert(
                    0,
                    Found {
                        id: format!("sb{attempt}"),
                        attempt,
                        ready: word.starts_with('S'),
                        created_at: Timestamp::UNIX_EPOCH,
                        ips: vec!["10.0.0.1".into()],
                        host_network: false,
                    },
                );
                continue;
            }
            let (name, state_text) = word.split_at(1);
            let (container_state, code) = match state_text {
                "+" => (ContainerState::Running, 0),
                "*" => (ContainerState::Created, 0),
                "?" => (ContainerState::Unknown, 0),
                code => (ContainerState::Exited, code[1..].parse().expect("a code")),
            };
            let spec = pod.container(name).expect("a container of the pod");
            let sandbox_id = state.sandboxes.first().map(|s| s.id.clone()).unwrap_or_default();
            state.containers.insert(0, crate::runtime::fake::container(spec, &sandbox_id, container_state, code));
        }
        state
    }

    /// `"keep sb0 kill a start 0 1"`.
    fn render(plan: &Plan) -> String {
        let mut out = match &plan.sandbox {
            Sandbox::Keep(id) => format!("keep {id}"),
            Sandbox::Create { attempt, changed } => {
                format!("create {attempt}{}", if *changed { " changed" } else { "" })
            }
            Sandbox::Finish => "finish".into(),
        };
        for kill in &plan.kill {
            out += &format!(" kill {}", kill.name);
        }
        for index in &plan.init {
            out += &format!(" init {index}");
        }
        for index in &plan.start {
            out += &format!(" start {index}");
        }
        out
    }

    fn check(pod: &BoundPod, text: &str, verdicts: &[(&str, Kind, Verdict)], want: &str) {
        let state = seen(pod, text);
        let verdicts = verdicts
            .iter()
            .filter_map(|(name, kind, v)| Some(((state.container(name)?.id.clone(), *kind), *v)))
            .collect();
        assert_eq!(render(&plan(pod, &state, &verdicts)), want, "{text}");
    }

    #[test]
    fn containers_start_stay_and_restart() {
        let always = two("Always");
        check(&always, "", &[], "create 0 start 0 start 1");
        check(&always, "S0", &[], "keep sb0 start 0 start 1");
        check(&always, "S0 a+", &[], "keep sb0 start 1");
        check(&always, "S0 a+ b+", &[], "keep sb0");
        check(&always, "S0 a:0 b+", &[], "keep sb0 start 0");
        check(&always, "S0 a* b+", &[], "keep sb0 start 0");
        check(&always, "S0 a? b+", &[], "keep sb0 kill a start 0");
        let failure = two("OnFailure");
        check(&failure, "S0 a:0 b+", &[], "keep sb0");
        check(&failure, "S0 a:1 b+", &[], "keep sb0 start 0");
        check(&failure, "S0 a:0 b:0", &[], "finish");
        let never = two("Never");
        check(&never, "S0 a:1 b+", &[], "keep sb0");
        check(&never, "S0 a:1 b:0", &[], "finish");
        check(&never, "S0 a:1", &[], "keep sb0 start 1");
    }

    #[test]
    fn probes_kill_and_only_their_own_probe_counts() {
        let always = two("Always");
        check(&always, "S0 a+ b+", &[("a", Kind::Liveness, Verdict::Failure)], "keep sb0 kill a start 0");
        check(&always, "S0 a+ b+", &[("b", Kind::Startup, Verdict::Failure)], "keep sb0 kill b start 1");
        check(&always, "S0 a+ b+", &[("a", Kind::Readiness, Verdict::Failure)], "keep sb0");
        let never = two("Never");
        check(&never, "S0 a+ b+", &[("a", Kind::Liveness, Verdict::Failure)], "keep sb0 kill a");
    }

    #[test]
    fn a_lost_sandbox_is_replaced() {
        let always = two("Always");
        check(&always, "s0 a:137 b:137", &[], "create 1 changed start 0 start 1");
        check(&always, "S0 S1 a+ b+", &[], "create 2 changed start 0 start 1");
        check(&two("Never"), "s0 a:137 b:137", &[], "finish");
        check(&two("Never"), "s0", &[], "create 1 changed start 0 start 1");
        check(&two("OnFailure"), "s0 a:0 b:137", &[], "create 1 changed start 1");
        check(&two("OnFailure"), "s0 a:0 b:0", &[], "finish");
    }

    #[test]
    fn a_deleted_pod_starts_nothing() {
        let pod = pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [{"name": "a", "image": "i"}]}}));
        check(&pod, "S0 a:1", &[], "finish");
    }

    #[test]
    fn init_containers_run_in_order_and_sidecars_stay() {
        let pod = with_init();
        let started = [("w", Kind::Startup, Verdict::Success)];
        check(&pod, "", &[], "create 0 init 0");
        check(&pod, "S0", &[], "keep sb0 init 0");
        check(&pod, "S0 x+", &[], "keep sb0");
        check(&pod, "S0 x:1", &[], "keep sb0 init 0");
        check(&pod, "S0 x:0", &[], "keep sb0 init 1");
        check(&pod, "S0 x:0 w+", &[], "keep sb0");
        check(&pod, "S0 x:0 w+", &started, "keep sb0 init 2");
        check(&pod, "S0 x:0 w:1", &[], "keep sb0 init 1");
        check(&pod, "S0 x:0 w+ y+", &started, "keep sb0");
        check(&pod, "S0 x:0 w:1 y+", &[], "keep sb0 init 1");
        check(&pod, "S0 x:0 w+ y:0", &started, "keep sb0 start 0");
        check(&pod, "S0 x:0 w+ y:0 a+", &started, "keep sb0");
        check(&pod, "S0 x:0 w:0 y:0 a+", &[], "keep sb0 init 1");
        check(&pod, "S0 w+ a+", &started, "keep sb0");
        check(&pod, "S0 a+", &[], "keep sb0 init 1");
        check(&pod, "S0 x:0 w+ y:0 a:1", &started, "keep sb0 start 0");
    }

    #[test]
    fn a_failed_init_container_ends_a_pod_that_never_restarts() {
        let pod = pod(json!({"spec": {"restartPolicy": "Never", "initContainers": [{"name": "x", "image": "i"}],
            "containers": [{"name": "a", "image": "i"}]}}));
        check(&pod, "S0 x:1", &[], "finish");
        check(&pod, "S0 x:0", &[], "keep sb0 start 0");
    }

    #[test]
    fn containers_of_an_earlier_sandbox_do_not_count_as_initialization() {
        let pod = pod(json!({"spec": {"restartPolicy": "Always", "initContainers": [{"name": "x", "image": "i"}],
            "containers": [{"name": "a", "image": "i"}]}}));
        check(&pod, "s0 x:0 a:137 S1", &[], "keep sb1 init 0");
    }

    #[test]
    fn texts() {
        let always = two("Always");
        let state = seen(&always, "S0 a+ b+");
        let id = state.container("a").expect("a").id.clone();
        let verdicts = [((id, Kind::Liveness), Verdict::Failure)].into_iter().collect();
        let plan = plan(&always, &state, &verdicts);
        assert_eq!(plan.kill[0].message, "Container a failed liveness probe, will be restarted");
    }
}
