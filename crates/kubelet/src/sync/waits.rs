//! What a pod waits for, from what its task knows. Pure.

use std::collections::BTreeMap;

use super::leave::LEAVING;
use super::lifecycle::Phase;
use crate::pod::BoundPod;
use crate::probe::prober::Told;
use crate::probe::threshold::{Kind, Verdict};
use crate::report::Wait;
use crate::runtime::{ContainerState, PodState};
use crate::status::containers::Waiting;

/// The code of a mount that cannot be removed: the only thing that a pod waits for when it has ended.
pub const UNMOUNT: &str = "Unmount";

/// What is looked at.
pub struct Facts<'a> {
    pub pod: &'a BoundPod,
    pub life: &'a Phase,
    pub seen: &'a PodState,
    pub activity: Option<&'a Wait>,
    pub waiting: &'a Waiting,
    pub told: &'a BTreeMap<(String, Kind), Told>,
    /// Why the runtime cannot be asked.
    pub runtime_error: Option<&'a str>,
    /// A start is under way.
    pub starting: bool,
    /// What it had on the node is being taken away.
    pub cleaning: bool,
}

/// All that the pod waits for, one entry per code.
pub fn waits(facts: &Facts) -> Vec<Wait> {
    let mut out: Vec<Wait> = Vec::new();
    if let Some(error) = facts.runtime_error {
        push(&mut out, Wait { code: "Runtime", on: "the container runtime".into(), text: error.to_owned() });
    }
    match facts.life {
        Phase::Terminated { .. } => {
            out.extend(facts.activity.filter(|wait| wait.code == UNMOUNT).cloned());
            if out.is_empty() && facts.cleaning {
                let on = "what the pod had on this node".to_owned();
                push(&mut out, Wait { code: "Termination", on, text: "being removed".into() });
            }
            return out;
        }
        Phase::Terminating { grace, .. } => {
            out.extend(facts.activity.filter(|wait| wait.code == LEAVING).cloned());
            if facts.starting {
                let text = "a start that was under way has not ended yet".to_owned();
                push(&mut out, Wait { code: "Termination", on: "the container runtime".into(), text });
            }
            for container in facts.seen.containers.iter().filter(|c| c.may_run()) {
                let text = format!("ends within {grace} s");
                push(&mut out, Wait { code: "Termination", on: format!("container {}", container.name), text });
            }
            if out.is_empty() && facts.seen.sandboxes.iter().any(|s| s.ready) {
                let on = "the pod's sandbox".to_owned();
                push(&mut out, Wait { code: "Termination", on, text: "being stopped".into() });
            }
            return out;
        }
        Phase::Running => {}
    }
    if let Some(activity) = facts.activity {
        push(&mut out, activity.clone());
    }
    for (name, (reason, message)) in facts.waiting {
        if facts.seen.container(name).is_some_and(|c| c.state == ContainerState::Running) {
            continue;
        }
        let image = facts.pod.container(name).and_then(|c| c.image.as_deref()).unwrap_or_default();
        let (code, on) = match reason.as_str() {
            "ErrImagePull" | "ImagePullBackOff" | "ErrImageNeverPull" | "InvalidImageName" | "ImageInspectError" => {
                ("ImagePull", format!("image {image}"))
            }
            "CrashLoopBackOff" => ("CrashLoop", format!("container {name}")),
            "CreateContainerConfigError" => ("ContainerConfig", format!("container {name}")),
            _ => ("ContainerStart", format!("container {name}")),
        };
        push(&mut out, Wait { code, on, text: message.clone() });
    }
    for told in facts.told.values() {
        let running = facts.seen.by_id(&told.container_id).is_some_and(|c| c.state == ContainerState::Running);
        let waits = match told.kind {
            Kind::Liveness => false,
            Kind::Readiness | Kind::Startup => told.verdict != Some(Verdict::Success),
        };
        if running && waits {
            let on = format!("{} probe of container {}", told.kind.title().to_lowercase(), told.container);
            push(&mut out, Wait { code: "Probe", on, text: told.text.clone() });
        }
    }
    for container in facts.pod.init_containers() {
        let found = facts.seen.container(&container.name);
        let runs = found.is_some_and(|c| c.state == ContainerState::Running);
        if runs && !crate::pod::is_restartable_init(container) {
            let on = format!("init container {}", container.name);
            push(&mut out, Wait { code: "InitContainer", on, text: "it has not ended yet".into() });
        }
    }
    out
}

/// Adds to the entry of the same code, if there is one.
fn push(out: &mut Vec<Wait>, wait: Wait) {
    match out.iter_mut().find(|w| w.code == wait.code) {
        Some(known) if known.on == wait.on => known.text = wait.text,
        Some(known) => {
            known.on = format!("{}, {}", known.on, wait.on);
            known.text = format!("{}; {}", known.text, wait.text);
        }
        None => out.push(wait),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use crate::runtime::fake;
    use serde_json::json;

    #[test]
    fn every_reason_is_named_once() {
        let pod = pod(json!({"spec": {"containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:1"},
            {"name": "c", "image": "z:1"}]}}));
        let running = fake::container(&pod.containers()[2], "sb", ContainerState::Running, 0);
        let told = Told {
            container_id: running.id.clone(),
            container: "c".into(),
            kind: Kind::Readiness,
            verdict: None,
            text: "connection refused".into(),
        };
        let seen = PodState { sandboxes: vec![], containers: vec![running] };
        let waiting: Waiting = [
            ("a".to_owned(), ("ErrImagePull".to_owned(), "not found".to_owned())),
            ("b".to_owned(), ("ImagePullBackOff".to_owned(), "later".to_owned())),
            ("c".to_owned(), ("ContainerStart".to_owned(), "it runs by now".to_owned())),
        ]
        .into();
        let told = [((told.container_id.clone(), told.kind), told)].into();
        let mut facts = Facts {
            pod: &pod,
            life: &Phase::Running,
            seen: &seen,
            activity: None,
            waiting: &waiting,
            told: &told,
            runtime_error: None,
            starting: false,
            cleaning: false,
        };
        let lines = |facts: &Facts| {
            waits(facts).into_iter().map(|w| format!("{}: {}: {}", w.code, w.on, w.text)).collect::<Vec<_>>()
        };
        assert_eq!(
            lines(&facts),
            [
                "ImagePull: image x:1, image y:1: not found; later",
                "Probe: readiness probe of container c: connection refused"
            ]
        );
        let life = Phase::Terminating { grace: 7, cause: None };
        facts.life = &life;
        assert_eq!(lines(&facts), ["Termination: container c: ends within 7 s"]);
        let busy = Wait { code: UNMOUNT, on: "/v".into(), text: "/v is busy: process 7 (sh) uses it".into() };
        let other = Wait { code: "Mount", on: "volume v".into(), text: "an old failure".into() };
        let ended = Phase::Terminated { cause: None };
        (facts.life, facts.activity) = (&ended, Some(&busy));
        assert_eq!(lines(&facts), ["Unmount: /v: /v is busy: process 7 (sh) uses it"]);
        facts.activity = Some(&other);
        assert!(lines(&facts).is_empty());
        (facts.life, facts.activity) = (&life, None);
        let nothing = PodState::default();
        (facts.seen, facts.starting) = (&nothing, true);
        let want = "Termination: the container runtime: a start that was under way has not ended yet";
        assert_eq!(lines(&facts), [want]);
        let sandbox = crate::runtime::Sandbox {
            id: "s".into(),
            attempt: 0,
            ready: true,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            ips: vec![],
            host_network: false,
        };
        let stopping = PodState { sandboxes: vec![sandbox], containers: vec![] };
        (facts.seen, facts.starting) = (&stopping, false);
        assert_eq!(lines(&facts), ["Termination: the pod's sandbox: being stopped"]);
        let life = Phase::Terminated { cause: None };
        (facts.life, facts.cleaning) = (&life, true);
        assert_eq!(lines(&facts), ["Termination: what the pod had on this node: being removed"]);
        facts.cleaning = false;
        assert_eq!(lines(&facts), Vec::<String>::new());
    }
}
