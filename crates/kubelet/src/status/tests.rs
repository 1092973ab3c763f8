//! Whole statuses as tables: runtime state in, one line out.

use api::types::core::v1::PodStatus;
use jiff::Timestamp;
use serde_json::json;

use super::containers::Waiting;
use super::generate::{Inputs, generate};
use crate::pod::BoundPod;
use crate::pod::tests::pod;
use crate::probe::threshold::{Kind, Verdict};
use crate::runtime::{Container, ContainerState, PodState, Sandbox, fake};
use crate::sync::lifecycle::{Cause, Phase};
use crate::sync::plan::Verdicts;

fn sandbox() -> Sandbox {
    Sandbox {
        id: "sb".into(),
        attempt: 0,
        ready: true,
        created_at: Timestamp::UNIX_EPOCH,
        ips: vec!["10.0.0.9".into()],
        host_network: false,
    }
}

fn container(pod: &BoundPod, name: &str, state: ContainerState, code: i32) -> Container {
    fake::container(pod.container(name).expect("a container"), "sb", state, code)
}

struct Case<'a> {
    pod: &'a BoundPod,
    seen: PodState,
    verdicts: Verdicts,
    waiting: Waiting,
    life: Phase,
    before: PodStatus,
}

impl<'a> Case<'a> {
    fn new(pod: &'a BoundPod, containers: Vec<Container>) -> Self {
        let seen = PodState { sandboxes: vec![sandbox()], containers };
        let (verdicts, waiting) = Default::default();
        Self { pod, seen, verdicts, waiting, life: Phase::Running, before: pod.status().clone() }
    }

    fn status(&self) -> PodStatus {
        generate(&Inputs {
            pod: self.pod,
            seen: &self.seen,
            verdicts: &self.verdicts,
            waiting: &self.waiting,
            actuated: &Default::default(),
            resizing: &Default::default(),
            life: &self.life,
            before: &self.before,
            host_ips: &["192.0.2.1".into()],
            runtime: "containerd",
            now: Timestamp::from_second(1000).expect("a time"),
        })
    }

    /// `Running ready=True a:running:ready:0`.
    fn line(&self) -> String {
        let status = self.status();
        let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready").expect("a Ready condition");
        let mut out = format!("{} ready={}", status.phase.as_deref().unwrap_or(""), ready.status);
        for c in status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten()) {
            let state = c.state.clone().unwrap_or_default();
            let state = match (state.running, state.waiting, state.terminated) {
                (Some(_), ..) => "running".to_owned(),
                (_, Some(w), _) => w.reason.unwrap_or_default(),
                (.., Some(t)) => format!("{}={}", t.reason.unwrap_or_default(), t.exit_code),
                _ => "none".into(),
            };
            let ready = if c.ready { "+" } else { "-" };
            let last = c.last_state.as_ref().and_then(|s| s.terminated.as_ref());
            let last = last.map(|t| format!("<{}", t.exit_code)).unwrap_or_default();
            out += &format!(" {}:{state}{ready}{}{last}", c.name, c.restart_count);
        }
        out
    }
}

fn two(policy: &str) -> std::sync::Arc<BoundPod> {
    pod(json!({"spec": {"restartPolicy": policy, "containers": [{"name": "b", "image": "i"},
        {"name": "a", "image": "i", "readinessProbe": {"tcpSocket": {"port": 1}}}]}}))
}

use ContainerState::{Created, Exited, Running, Unknown};

#[test]
fn phases_follow_containers() {
    type Row<'a> = (&'a str, &'a [(&'a str, ContainerState, i32)], &'a str);
    let rows: &[Row] = &[
        ("Always", &[], "Pending ready=False a:ContainerCreating-0 b:ContainerCreating-0"),
        ("Always", &[("a", Created, 0)], "Pending ready=False a:ContainerCreating-0 b:ContainerCreating-0"),
        ("Always", &[("a", Running, 0)], "Pending ready=False a:running-0 b:ContainerCreating-0"),
        ("Always", &[("a", Running, 0), ("b", Running, 0)], "Running ready=False a:running-0 b:running+0"),
        ("Always", &[("a", Running, 0), ("b", Exited, 1)], "Running ready=False a:running-0 b:Error=1-0"),
        ("Always", &[("a", Exited, 0), ("b", Exited, 0)], "Running ready=False a:Completed=0-0 b:Completed=0-0"),
        ("Never", &[("a", Exited, 0), ("b", Exited, 0)], "Succeeded ready=False a:Completed=0-0 b:Completed=0-0"),
        ("Never", &[("a", Exited, 0), ("b", Exited, 3)], "Failed ready=False a:Completed=0-0 b:Error=3-0"),
        ("OnFailure", &[("a", Exited, 0), ("b", Exited, 3)], "Running ready=False a:Completed=0-0 b:Error=3-0"),
        ("OnFailure", &[("a", Exited, 0), ("b", Exited, 0)], "Succeeded ready=False a:Completed=0-0 b:Completed=0-0"),
        (
            "Always",
            &[("a", Running, 0), ("b", Unknown, 0)],
            "Running ready=False a:running-0 b:ContainerStatusUnknown=137-0",
        ),
    ];
    for (policy, containers, want) in rows {
        let pod = two(policy);
        let containers = containers.iter().map(|(name, state, code)| container(&pod, name, *state, *code)).collect();
        let mut case = Case::new(&pod, containers);
        if want.starts_with("Succeeded") || want.starts_with("Failed") {
            case.life = Phase::Terminated { cause: None };
        }
        assert_eq!(case.line(), *want, "{policy}");
    }
}

#[test]
fn an_end_is_told_when_nothing_runs() {
    let pod = two("Never");
    let mut case = Case::new(&pod, vec![container(&pod, "a", Exited, 0), container(&pod, "b", Exited, 1)]);
    case.before.phase = Some("Running".into());
    let line = |phase: &str| format!("{phase} ready=False a:Completed=0-0 b:Error=1-0");
    assert_eq!(case.line(), line("Running"), "its sandbox may still end");
    case.life = Phase::Terminating { grace: 1, cause: None };
    assert_eq!(case.line(), line("Running"));
    case.life = Phase::Terminated { cause: None };
    assert_eq!(case.line(), line("Failed"));
    let cause = Some(Cause { reason: "Evicted".into(), message: "m".into(), disruption: None });
    case.life = Phase::Terminating { grace: 1, cause: cause.clone() };
    let status = case.status();
    assert_eq!((status.phase.as_deref(), status.reason), (Some("Running"), None));
    case.life = Phase::Terminated { cause };
    let status = case.status();
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("Evicted")));
}

#[test]
fn readiness_is_the_probes_verdict() {
    let pod = two("Always");
    let mut case = Case::new(&pod, vec![container(&pod, "a", Running, 0), container(&pod, "b", Running, 0)]);
    case.verdicts.insert(("a-sb".into(), Kind::Readiness), Verdict::Success);
    assert_eq!(case.line(), "Running ready=True a:running+0 b:running+0");
    case.verdicts.insert(("a-sb".into(), Kind::Readiness), Verdict::Failure);
    assert_eq!(case.line(), "Running ready=False a:running-0 b:running+0");
}

#[test]
fn waiting_reasons_push_the_end_into_the_past() {
    let pod = two("Always");
    let mut case = Case::new(&pod, vec![container(&pod, "a", Exited, 1), container(&pod, "b", Running, 0)]);
    case.waiting.insert("a".into(), ("CrashLoopBackOff".into(), "back-off 10s".into()));
    case.waiting.insert("b".into(), ("ErrImagePull".into(), "of an earlier time".into()));
    assert_eq!(case.line(), "Running ready=False a:CrashLoopBackOff-0<1 b:running+0");
}

#[test]
fn restart_counts_and_ends_outlive_the_runtimes_memory() {
    let pod = two("Always");
    let mut case = Case::new(&pod, vec![container(&pod, "a", Running, 0), container(&pod, "b", Running, 0)]);
    case.before = serde_json::from_value(json!({"containerStatuses": [
        {"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 4, "containerID": "containerd://old",
         "state": {"terminated": {"exitCode": 9}}, "lastState": {"terminated": {"exitCode": 8}}},
        {"name": "b", "image": "", "imageID": "", "ready": true, "restartCount": 2, "containerID": "containerd://b-sb",
         "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 7}}}]}))
    .expect("a status");
    assert_eq!(case.line(), "Running ready=False a:running-4<9 b:running+2<7");
    case.seen.containers.clear();
    assert_eq!(case.line(), "Running ready=False a:=9-4<8 b:ContainerCreating-3<7");
}

#[test]
fn a_terminated_pod_has_only_ends() {
    let pod = two("Always");
    let mut case = Case::new(&pod, vec![container(&pod, "a", Exited, 0)]);
    case.life = Phase::Terminated { cause: None };
    assert_eq!(case.line(), "Failed ready=False a:Completed=0-0 b:ContainerStatusUnknown=137-0");
    case.seen.containers.push(container(&pod, "b", Exited, 0));
    assert_eq!(case.line(), "Succeeded ready=False a:Completed=0-0 b:Completed=0-0");
    let cause = Cause { reason: "DeadlineExceeded".into(), message: "too long".into(), disruption: None };
    case.life = Phase::Terminated { cause: Some(cause) };
    let status = case.status();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    // What is terminal stays terminal.
    case.before = status;
    case.life = Phase::Running;
    case.seen.containers = vec![container(&pod, "a", Running, 0), container(&pod, "b", Running, 0)];
    assert!(case.line().starts_with("Failed "), "{}", case.line());
}

#[test]
fn init_containers_hold_the_pod_pending() {
    let pod = pod(json!({"spec": {"restartPolicy": "Always", "initContainers": [{"name": "x", "image": "i"}],
        "containers": [{"name": "a", "image": "i"}]}}));
    let line = |containers| Case::new(&pod, containers).line();
    assert_eq!(line(vec![]), "Pending ready=False x:PodInitializing-0 a:PodInitializing-0");
    assert_eq!(line(vec![container(&pod, "x", Running, 0)]), "Pending ready=False x:running-0 a:PodInitializing-0");
    assert_eq!(line(vec![container(&pod, "x", Exited, 1)]), "Pending ready=False x:Error=1-0 a:PodInitializing-0");
    let done = vec![container(&pod, "x", Exited, 0), container(&pod, "a", Running, 0)];
    assert_eq!(line(done), "Running ready=True x:Completed=0+0 a:running+0");
}

#[test]
fn times_move_only_when_a_status_changes() {
    let pod = two("Always");
    let mut case = Case::new(&pod, vec![container(&pod, "a", Running, 0), container(&pod, "b", Running, 0)]);
    case.before = case.status();
    assert_eq!(case.status(), case.before, "a second look changes nothing");
    let time = |status: &PodStatus, kind: &str| {
        let found = status.conditions.iter().flatten().find(|c| c.type_ == kind).cloned();
        found.and_then(|c| c.last_transition_time).map(|t| t.0.as_second())
    };
    for condition in case.before.conditions.iter_mut().flatten() {
        condition.last_transition_time = Some(api::meta::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    }
    case.verdicts.insert(("a-sb".into(), Kind::Readiness), Verdict::Success);
    let status = case.status();
    assert_eq!(time(&status, "Ready"), Some(1000));
    assert_eq!(time(&status, "Initialized"), Some(0));
}

#[test]
fn addresses_and_generation() {
    let pod = pod(json!({"metadata": {"generation": 3}, "spec": {"hostNetwork": true, "containers": [{"name": "a"}]},
        "status": {"qosClass": "Guaranteed"}}));
    let status = Case::new(&pod, vec![]).status();
    assert_eq!(status.pod_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(status.host_ips.map(|l| l.len()), Some(1));
    assert_eq!(status.observed_generation, Some(3));
    assert_eq!(status.qos_class.as_deref(), Some("Guaranteed"));
    assert!(status.conditions.iter().flatten().all(|c| c.observed_generation == Some(3)));
}

#[test]
fn a_refused_pod_says_why_and_nothing_else() {
    let pod = two("Always");
    let mut case = Case::new(&pod, vec![]);
    case.seen = PodState::default();
    let message = "Pod was rejected: Node didn't have enough resource: cpu, requested: 1, used: 1, capacity: 1";
    case.life = Phase::Terminated {
        cause: Some(Cause { reason: "OutOfcpu".into(), message: message.into(), disruption: None }),
    };
    let status = case.status();
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("OutOfcpu"));
    assert_eq!(status.message.as_deref(), Some(message));
    assert!(status.container_statuses.is_none());
}
