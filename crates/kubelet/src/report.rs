//! What the kubelet says about pods beside their status: events, and what they wait for.

use std::collections::BTreeMap;

use api::types::core::v1::Pod;
use client::events::{Event, Recorder, Reference, Type};
use client::waits::Publisher;
use parking_lot::Mutex;

use crate::pod::BoundPod;

/// One thing that a pod waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub code: &'static str,
    pub on: String,
    pub text: String,
}

/// Where events and Waits go.
pub trait Report: Send + Sync + 'static {
    /// Something happened to a pod, or to one of its containers.
    fn event(&self, pod: &BoundPod, container: Option<&str>, kind: Type, reason: &str, message: String);
    /// The same, with notes for programs beside the text.
    fn annotated_event(
        &self,
        pod: &BoundPod,
        kind: Type,
        reason: &str,
        message: String,
        _annotations: Vec<(String, String)>,
    ) {
        self.event(pod, None, kind, reason, message);
    }
    /// Something happened to the node.
    fn node_event(&self, kind: Type, reason: &str, message: String);
    /// All that the pod waits for now; what is not listed is over.
    fn waits(&self, pod: &BoundPod, waits: &[Wait]);
    /// All that the node waits for now.
    fn node_waits(&self, uid: &str, waits: &[Wait]);
    /// All that a part of the node beside its own object waits for now; shown once the node is known.
    fn node_waits_beside(&self, part: &'static str, waits: Vec<Wait>);
}

/// Reports to the API server.
pub struct ApiReport {
    pub recorder: Recorder,
    pub waits: Publisher,
    pub node: Reference,
    pub said: Mutex<NodeWaits>,
}

/// What the node waits for, by the part that says so: an object's Waits are told as a whole.
#[derive(Debug, Default)]
pub struct NodeWaits {
    /// Waits name the node by its uid; empty until it is known.
    uid: String,
    parts: BTreeMap<&'static str, Vec<Wait>>,
}

/// A pod as events refer to it.
pub fn reference(pod: &BoundPod) -> Reference {
    Reference::to::<Pod>(pod.object())
}

/// Where in the pod's spec a container is.
pub fn field_path(pod: &BoundPod, container: &str) -> String {
    let list = match container {
        name if pod.is_init(name) => "initContainers",
        name if pod.is_ephemeral(name) => "ephemeralContainers",
        _ => "containers",
    };
    format!("spec.{list}{{{container}}}")
}

impl ApiReport {
    fn publish(&self, object: &Reference, waits: &[Wait]) {
        for wait in waits {
            self.waits.publish(object, wait.code, wait.on.clone(), wait.text.clone());
        }
        let codes: Vec<&str> = waits.iter().map(|w| w.code).collect();
        self.waits.keep_only(object, &codes);
    }
}

impl Report for ApiReport {
    fn event(&self, pod: &BoundPod, container: Option<&str>, kind: Type, reason: &str, message: String) {
        let mut regarding = reference(pod);
        if let Some(container) = container {
            regarding = regarding.field(field_path(pod, container));
        }
        self.recorder.event(&regarding, kind, reason, message);
    }

    fn annotated_event(
        &self,
        pod: &BoundPod,
        kind: Type,
        reason: &str,
        message: String,
        annotations: Vec<(String, String)>,
    ) {
        self.recorder.record(Event { annotations, ..Event::new(reference(pod), kind, reason, message) });
    }

    fn node_event(&self, kind: Type, reason: &str, message: String) {
        self.recorder.event(&self.node, kind, reason, message);
    }

    fn waits(&self, pod: &BoundPod, waits: &[Wait]) {
        self.publish(&reference(pod), waits);
    }

    fn node_waits(&self, uid: &str, waits: &[Wait]) {
        uid.clone_into(&mut self.said.lock().uid);
        self.node_waits_beside("node", waits.to_vec());
    }

    fn node_waits_beside(&self, part: &'static str, waits: Vec<Wait>) {
        let mut said = self.said.lock();
        said.parts.insert(part, waits);
        if said.uid.is_empty() {
            return;
        }
        // Events know the node by its name, Waits by its uid as every other object.
        let object = Reference { uid: said.uid.clone(), ..self.node.clone() };
        self.publish(&object, &merged(said.parts.values().flatten()));
    }
}

/// One Wait for each code: that is what the API can show of an object.
fn merged<'a>(waits: impl Iterator<Item = &'a Wait>) -> Vec<Wait> {
    let mut out: Vec<Wait> = Vec::new();
    for wait in waits {
        match out.iter_mut().find(|w| w.code == wait.code) {
            Some(known) => {
                known.on = format!("{}, {}", known.on, wait.on);
                known.text = format!("{}; {}", known.text, wait.text);
            }
            None => out.push(wait.clone()),
        }
    }
    out
}

/// Reports to the log: there is no API server.
pub struct LogReport;

impl Report for LogReport {
    fn event(&self, pod: &BoundPod, container: Option<&str>, _: Type, reason: &str, message: String) {
        tracing::info!(pod = %pod.full_name(), container, reason, message);
    }

    fn node_event(&self, _: Type, reason: &str, message: String) {
        tracing::info!(reason, message);
    }

    fn waits(&self, pod: &BoundPod, waits: &[Wait]) {
        for wait in waits {
            tracing::debug!(pod = %pod.full_name(), code = wait.code, on = wait.on, text = wait.text, "it waits");
        }
    }

    fn node_waits(&self, _: &str, waits: &[Wait]) {
        self.node_waits_beside("node", waits.to_vec());
    }

    fn node_waits_beside(&self, _: &'static str, waits: Vec<Wait>) {
        for wait in waits {
            tracing::debug!(code = wait.code, on = wait.on, text = wait.text, "the node waits");
        }
    }
}

/// Keeps what was reported, for tests.
#[cfg(test)]
#[derive(Clone, Default)]
pub struct FakeReport {
    pub events: std::sync::Arc<parking_lot::Mutex<Vec<String>>>,
    pub waiting: std::sync::Arc<parking_lot::Mutex<std::collections::BTreeMap<String, Vec<Wait>>>>,
}

#[cfg(test)]
impl Report for FakeReport {
    fn event(&self, _: &BoundPod, container: Option<&str>, kind: Type, reason: &str, message: String) {
        let container = container.map(|c| format!("[{c}] ")).unwrap_or_default();
        let kind = if matches!(kind, Type::Warning) { "!" } else { "" };
        self.events.lock().push(format!("{kind}{reason} {container}{message}"));
    }

    fn node_event(&self, kind: Type, reason: &str, message: String) {
        let kind = if matches!(kind, Type::Warning) { "!" } else { "" };
        self.events.lock().push(format!("{kind}node {reason} {message}"));
    }

    fn waits(&self, pod: &BoundPod, waits: &[Wait]) {
        self.waiting.lock().insert(pod.uid.clone(), waits.to_vec());
    }

    fn node_waits(&self, _: &str, waits: &[Wait]) {
        self.waiting.lock().insert("node".into(), waits.to_vec());
    }

    fn node_waits_beside(&self, part: &'static str, waits: Vec<Wait>) {
        self.waiting.lock().insert(part.into(), waits);
    }
}
