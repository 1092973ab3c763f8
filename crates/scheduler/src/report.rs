//! Writes why a pod has no node into its status: the newest report of each pod, until it is written.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use client::controller::{Next, Pass, Reconcile};
use client::{Client, Error, Patch, Queue};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::SharedClock;

use crate::core::Report;
use crate::pod::{PodInfo, Uid};

/// Reports in flight are told apart by so many locks.
const STRIPES: usize = 64;

/// What is to be written about one pod.
#[derive(Clone, Debug, PartialEq)]
struct Pending {
    pod: Arc<PodInfo>,
    report: Report,
}

#[derive(Default)]
struct State {
    pending: HashMap<Uid, Pending>,
    /// What was last written of pods that still wait: reason and message.
    written: HashMap<Uid, (String, String)>,
}

/// See the module.
pub struct Reporter {
    client: Client,
    clock: SharedClock,
    pub queue: Arc<Queue<Uid>>,
    state: Mutex<State>,
    stripes: Vec<tokio::sync::Mutex<()>>,
}

impl Reporter {
    /// Writes through `client`; a controller runs it.
    pub fn new(client: Client, clock: SharedClock) -> Arc<Self> {
        let queue = Queue::new(clock.clone());
        let stripes = (0..STRIPES).map(|_| tokio::sync::Mutex::default()).collect();
        Arc::new(Self { client, clock, queue, state: Mutex::default(), stripes })
    }

    /// Says why a pod has no node.
    pub fn report(&self, pod: &Arc<PodInfo>, report: &Report) {
        let pending = Pending { pod: pod.clone(), report: report.clone() };
        self.state.lock().pending.insert(pod.uid.clone(), pending);
        self.queue.add(pod.uid.clone());
    }

    /// The pod waits no more; nothing is written any more about it.
    pub fn forget(&self, uid: &str) {
        let mut state = self.state.lock();
        state.pending.remove(uid);
        state.written.remove(uid);
    }

    /// The same, and ends when no report is on its way: so that none overtakes the Binding that
    /// sets the condition right.
    pub async fn settle(&self, uid: &str) {
        self.forget(uid);
        drop(self.stripe(uid).lock().await);
    }

    fn stripe(&self, uid: &str) -> &tokio::sync::Mutex<()> {
        let sum = uid.bytes().fold(0usize, |sum, b| sum.wrapping_mul(31).wrapping_add(usize::from(b)));
        &self.stripes[sum % STRIPES]
    }

    fn next(&self, uid: &str) -> Option<Pending> {
        self.state.lock().pending.get(uid).cloned()
    }

    /// True when the condition already says so.
    fn is_known(&self, pending: &Pending) -> bool {
        let said = (pending.report.reason, pending.report.message.as_str());
        match self.state.lock().written.get(&pending.pod.uid) {
            Some((reason, message)) => (reason.as_str(), message.as_str()) == said,
            None => pending.pod.unscheduled.as_ref().is_some_and(|(r, m)| (r.as_str(), m.as_str()) == said),
        }
    }
}

/// The patch of the status. The time of transition is set only where the condition was not False.
fn render(pod: &PodInfo, report: &Report, was_false: bool, now: Timestamp) -> Value {
    let mut condition = json!({
        "type": "PodScheduled", "status": "False", "reason": report.reason, "message": report.message,
        "lastProbeTime": null,
    });
    if let Some(generation) = pod.generation {
        condition["observedGeneration"] = json!(generation);
    }
    if !was_false {
        condition["lastTransitionTime"] = json!(machinery::time::rfc3339(now));
    }
    let mut status = json!({ "conditions": [condition] });
    if let Some(node) = &report.nominate {
        status["nominatedNodeName"] = if node.is_empty() { Value::Null } else { json!(node) };
    }
    json!({"metadata": {"uid": pod.uid}, "status": status})
}

#[async_trait]
impl Reconcile for Reporter {
    type Key = Uid;

    async fn reconcile(&self, uid: &Uid, _: &Pass) -> Result<Next, Error> {
        let _guard = self.stripe(uid).lock().await;
        let Some(pending) = self.next(uid) else { return Ok(Next::Done) };
        let Pending { pod, report } = &pending;
        if report.nominate.is_none() && self.is_known(&pending) {
            return Ok(Next::Done);
        }
        let was_false = pod.unscheduled.is_some() || self.state.lock().written.contains_key(uid);
        let patch = Patch::Strategic(render(pod, report, was_false, self.clock.wall()));
        let api = self.client.api::<Pod>().namespace(&pod.namespace);
        match api.patch_status(&pod.name, &patch).await {
            Ok(_) => {
                let mut state = self.state.lock();
                // A pod that was bound or went meanwhile is remembered no more.
                if state.pending.contains_key(uid) {
                    state.written.insert(uid.clone(), (report.reason.to_owned(), report.message.clone()));
                }
                if state.pending.get(uid) == Some(&pending) {
                    state.pending.remove(uid);
                }
                Ok(Next::Done)
            }
            // Gone, or another pod of that name.
            Err(error) if error.is_not_found() || error.is_conflict() || error.is_invalid() => {
                self.forget(uid);
                Ok(Next::Done)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patch_names_the_pod_and_keeps_the_time_of_transition() {
        let pod = PodInfo { uid: "u".into(), generation: Some(2), ..PodInfo::default() };
        let report =
            Report { reason: "Unschedulable", message: "m".into(), on: String::new(), nominate: Some("n".into()) };
        assert_eq!(
            render(&pod, &report, false, Timestamp::UNIX_EPOCH),
            json!({"metadata": {"uid": "u"}, "status": {"nominatedNodeName": "n", "conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m",
                "lastProbeTime": null, "observedGeneration": 2, "lastTransitionTime": "1970-01-01T00:00:00Z"}]}})
        );
        let again = render(&pod, &Report { nominate: Some(String::new()), ..report }, true, Timestamp::UNIX_EPOCH);
        assert_eq!(again["status"]["nominatedNodeName"], Value::Null);
        assert!(again["status"]["conditions"][0].get("lastTransitionTime").is_none());
    }
}
