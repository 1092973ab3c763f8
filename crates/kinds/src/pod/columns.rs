//! How a pod looks in `kubectl get pods`: one word for where it stands.

use std::collections::BTreeSet;

use api::meta::apis::meta::v1::Time;
use api::types::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodSpec, PodStatus};
use jiff::Timestamp;
use serde_json::json;

use crate::cells;
use crate::kind::{Cell, Column, RowConditions};
use crate::only::Part;

pub const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Ready", "Containers that are ready, of all that keep running."),
    Column::text("Status", "Where the pod stands, in one word."),
    Column::text("Restarts", "How often its containers were started again, and when last."),
    Column::AGE,
    Column::text("IP", "The pod's address.").wide(),
    Column::text("Node", "The node it runs on.").wide(),
    Column::text("Nominated Node", "The node where others are being moved out of its way.").wide(),
    Column::text("Readiness Gates", "Conditions of the user's own that hold, of those asked for.").wide(),
];

const NAME: Part = Part::whole("name");

const STATUS: &[Part] = &[
    NAME,
    Part::whole("ready"),
    Part::whole("started"),
    Part::whole("restartCount"),
    Part::whole("state"),
    Part::whole("lastState"),
];

/// What of a pod its columns read.
pub const SHOWN: &[Part] = &[
    Part("metadata", &[NAME, Part::whole("creationTimestamp"), Part::whole("deletionTimestamp")]),
    Part(
        "spec",
        &[
            Part("containers", &[NAME]),
            Part("initContainers", &[NAME, Part::whole("restartPolicy")]),
            Part::whole("nodeName"),
            Part::whole("readinessGates"),
        ],
    ),
    Part(
        "status",
        &[
            Part::whole("phase"),
            Part::whole("reason"),
            Part("conditions", &[Part::whole("type"), Part::whole("status"), Part::whole("reason")]),
            Part("initContainerStatuses", STATUS),
            Part("containerStatuses", STATUS),
            Part::whole("podIPs"),
            Part::whole("nominatedNodeName"),
        ],
    ),
];

/// What the containers say about the pod.
struct Summary {
    word: String,
    ready: usize,
    total: usize,
    restarts: i32,
    last_restart: Option<Timestamp>,
}

/// One row.
pub fn row(pod: &Pod, now: Timestamp) -> (Vec<Cell>, RowConditions) {
    let (no_spec, no_status) = (PodSpec::default(), PodStatus::default());
    let (spec, status) = (pod.spec.as_ref().unwrap_or(&no_spec), pod.status.as_ref().unwrap_or(&no_status));
    let summary = summarize(pod, status);
    let restarts = match summary.last_restart {
        Some(at) if summary.restarts != 0 => format!("{} ({} ago)", summary.restarts, cells::since(Some(at), now)),
        _ => summary.restarts.to_string(),
    };
    let ip = status.pod_ips.iter().flatten().next().map(|ip| ip.ip.clone()).unwrap_or_default();
    let gates = spec.readiness_gates.as_deref().unwrap_or_default();
    let open = gates.iter().filter(|gate| condition_holds(status, &gate.condition_type)).count();
    let gates = if gates.is_empty() { String::new() } else { format!("{open}/{}", gates.len()) };
    let row = vec![
        cells::name(&pod.metadata),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.word.into(),
        restarts.into(),
        cells::of(&pod.metadata, now),
        cells::or_none(ip),
        cells::or_none(spec.node_name.clone().unwrap_or_default()),
        cells::or_none(status.nominated_node_name.clone().unwrap_or_default()),
        cells::or_none(gates),
    ];
    (row, conditions(status))
}

fn conditions(status: &PodStatus) -> RowConditions {
    let (reason, message) = match status.phase.as_deref() {
        Some("Succeeded") => ("Succeeded", "The pod has completed successfully."),
        Some("Failed") => ("Failed", "The pod failed."),
        _ => return Vec::new(),
    };
    vec![json!({"type": "Completed", "status": "True", "reason": reason, "message": message})]
}

fn condition_holds(status: &PodStatus, kind: &str) -> bool {
    status.conditions.iter().flatten().any(|condition| condition.type_ == kind && condition.status == "True")
}

fn terminated(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    container.state.as_ref().and_then(|state| state.terminated.as_ref())
}

fn waiting(container: &ContainerStatus) -> Option<&str> {
    let reason = container.state.as_ref()?.waiting.as_ref()?.reason.as_deref()?;
    (!reason.is_empty()).then_some(reason)
}

fn end(terminated: &ContainerStateTerminated) -> String {
    match (terminated.reason.as_deref().unwrap_or_default(), terminated.signal.unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", terminated.exit_code),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// Restarts of containers, and when the last one ended before its restart.
#[derive(Default)]
struct Restarts {
    count: i32,
    last: Option<Timestamp>,
}

impl Restarts {
    fn add(&mut self, container: &ContainerStatus) {
        self.count = self.count.saturating_add(container.restart_count);
        let ended = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        let ended = ended.and_then(|terminated| terminated.finished_at.as_ref()).map(|Time(at)| *at);
        self.last = self.last.max(ended);
    }
}

fn summarize(pod: &Pod, status: &PodStatus) -> Summary {
    let spec = pod.spec.as_ref();
    let inits: &[_] = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let sidecars: BTreeSet<&str> =
        inits.iter().filter(|c| api::pod::is_sidecar(c)).map(|container| container.name.as_str()).collect();
    let total = spec.map_or(0, |spec| spec.containers.len()) + sidecars.len();

    let phase = status.phase.clone().unwrap_or_default();
    let reason = status.reason.clone().unwrap_or_default();
    let mut word = if reason.is_empty() { phase.clone() } else { reason.clone() };
    let gated = |c: &api::types::core::v1::PodCondition| {
        c.type_ == "PodScheduled" && c.reason.as_deref() == Some("SchedulingGated")
    };
    if status.conditions.iter().flatten().any(gated) {
        word = "SchedulingGated".into();
    }

    let mut ready = 0;
    let (mut restarts, mut sidecar_restarts) = (Restarts::default(), Restarts::default());
    let mut initializing = false;
    for (i, container) in status.init_container_statuses.iter().flatten().enumerate() {
        let sidecar = sidecars.contains(container.name.as_str());
        restarts.add(container);
        if sidecar {
            sidecar_restarts.add(container);
        }
        if terminated(container).is_some_and(|terminated| terminated.exit_code == 0) {
            continue;
        }
        if sidecar && container.started == Some(true) {
            ready += usize::from(container.ready);
            continue;
        }
        word = match (terminated(container), waiting(container)) {
            (Some(terminated), _) => format!("Init:{}", end(terminated)),
            (None, Some(reason)) if reason != "PodInitializing" => format!("Init:{reason}"),
            _ => format!("Init:{i}/{}", inits.len()),
        };
        initializing = true;
        break;
    }

    if !initializing || condition_holds(status, "Initialized") {
        restarts = sidecar_restarts;
        let mut running = false;
        let mut trouble = None;
        for container in status.container_statuses.iter().flatten().rev() {
            restarts.add(container);
            if let Some(reason) = waiting(container) {
                word = reason.to_owned();
                trouble = Some(word.clone());
            } else if let Some(terminated) = terminated(container) {
                word = end(terminated);
                if word != "Completed" {
                    trouble = Some(word.clone());
                }
            } else if container.ready && container.state.as_ref().is_some_and(|state| state.running.is_some()) {
                running = true;
                ready += 1;
            }
        }
        // Some have done their work while others go on: that is not the end of the pod.
        if word == "Completed" && running {
            word = match trouble {
                _ if condition_holds(status, "Ready") => "Running".into(),
                Some(trouble) => trouble,
                None => "NotReady".into(),
            };
        }
    }

    if pod.metadata.deletion_timestamp.is_some() {
        if reason == "NodeLost" {
            word = "Unknown".into();
        } else if !matches!(phase.as_str(), "Succeeded" | "Failed") {
            word = "Terminating".into();
        }
    }
    Summary { word, ready, total, restarts: restarts.count, last_restart: restarts.last }
}
