//! What the scheduler keeps of a pod: the facts decisions need, worked out once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use api::pod::HostPort;
use api::resources::Resources;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeAffinity, Pod, Toleration};
use machinery::quantity::{Format, Quantity};
use serde::Deserialize;

use crate::amounts::Amounts;

/// A pod's uid.
pub type Uid = String;

/// The facts of one pod. It deserializes from a Pod and forgets the rest.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Pod")]
pub struct PodInfo {
    pub namespace: String,
    pub name: String,
    pub uid: Uid,
    pub revision: u64,
    pub generation: Option<i64>,
    pub scheduler_name: String,
    pub priority: i32,
    /// `preemptionPolicy: Never`.
    pub never_preempts: bool,
    /// Empty until bound.
    pub node: String,
    /// `status.nominatedNodeName`; empty without a nomination.
    pub nominated: String,
    pub created: Option<Timestamp>,
    pub started: Option<Timestamp>,
    pub deleting: bool,
    /// Being deleted because a scheduler preempted it.
    pub preempted: bool,
    /// Succeeded or Failed: it holds nothing any more.
    pub terminal: bool,
    pub gates: Vec<String>,
    pub requests: Amounts,
    /// The same with something assumed for containers that ask for no cpu or memory.
    pub assumed_cpu: i64,
    pub assumed_memory: i64,
    pub ports: Vec<HostPort>,
    pub tolerations: Vec<Toleration>,
    pub node_selector: BTreeMap<String, String>,
    pub node_affinity: Option<Box<NodeAffinity>>,
    /// Images of all containers.
    pub images: Vec<String>,
    /// The PodScheduled condition as reason and message, when it is False.
    pub unscheduled: Option<(String, String)>,
}

/// What a container that asks for nothing is assumed to take, so that such pods spread too.
static ASSUMED: LazyLock<Resources> = LazyLock::new(|| {
    Resources::from([
        ("cpu".to_owned(), Quantity::from_milli(100, Format::Decimal)),
        ("memory".to_owned(), Quantity::from_value(200 * 1024 * 1024, Format::Binary)),
    ])
});

impl From<Pod> for PodInfo {
    fn from(pod: Pod) -> Self {
        Self::from(&pod)
    }
}

impl From<&Pod> for PodInfo {
    fn from(pod: &Pod) -> Self {
        let (metadata, spec, status) = (&pod.metadata, pod.spec.as_ref(), pod.status.as_ref());
        let text = |field: Option<&String>| field.cloned().unwrap_or_default();
        let assumed = Amounts::of(&api::pod::effective_requests_assuming(pod, &ASSUMED));
        let preempted = api::pod::condition(pod, "DisruptionTarget")
            .is_some_and(|c| c.status == "True" && c.reason.as_deref() == Some("PreemptionByScheduler"));
        let unscheduled = api::pod::condition(pod, "PodScheduled")
            .filter(|c| c.status == "False")
            .map(|c| (text(c.reason.as_ref()), text(c.message.as_ref())));
        let containers = spec.into_iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
        Self {
            namespace: text(metadata.namespace.as_ref()),
            name: text(metadata.name.as_ref()),
            uid: text(metadata.uid.as_ref()),
            revision: metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or_default(),
            generation: metadata.generation,
            scheduler_name: text(spec.and_then(|s| s.scheduler_name.as_ref())),
            priority: api::pod::priority(pod),
            never_preempts: spec.is_some_and(|s| s.preemption_policy.as_deref() == Some("Never")),
            node: api::pod::node_name(pod).to_owned(),
            nominated: text(status.and_then(|s| s.nominated_node_name.as_ref())),
            created: metadata.creation_timestamp.as_ref().map(|t| t.0),
            started: status.and_then(|s| s.start_time.as_ref()).map(|t| t.0),
            deleting: api::pod::is_deleting(pod),
            preempted,
            terminal: api::pod::is_terminal(pod),
            gates: spec
                .and_then(|s| s.scheduling_gates.as_ref())
                .into_iter()
                .flatten()
                .map(|g| g.name.clone())
                .collect(),
            requests: Amounts::of(&api::pod::effective_requests(pod)),
            assumed_cpu: assumed.cpu,
            assumed_memory: assumed.memory,
            ports: api::pod::host_ports(pod),
            tolerations: spec.and_then(|s| s.tolerations.clone()).unwrap_or_default(),
            node_selector: spec.and_then(|s| s.node_selector.clone()).unwrap_or_default(),
            node_affinity: api::affinity::node_affinity(pod).cloned().map(Box::new),
            images: containers.filter_map(|c| c.image.clone()).collect(),
            unscheduled,
        }
    }
}

impl PodInfo {
    /// True when something that may change whether it fits differs; status alone does not.
    pub fn asks_differently(&self, old: &Self) -> bool {
        self.gates != old.gates
            || self.requests != old.requests
            || self.tolerations != old.tolerations
            || self.node_selector != old.node_selector
            || self.node_affinity != old.node_affinity
            || self.priority != old.priority
    }
}

impl fmt::Display for PodInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
