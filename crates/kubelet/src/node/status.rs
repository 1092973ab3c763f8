//! A Node's status from what is known of the machine and its runtime. Pure.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use api::meta::api::resource::Quantity as Text;
use api::meta::apis::meta::v1::Time;
use api::types::core::v1::{
    ContainerImage, DaemonEndpoint, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use jiff::Timestamp;
use machinery::quantity::{Format, Quantity};
use machinery::schema::Type;
use serde_json::{Map, Value, json};

use super::facts::Machine;
use super::identity::Identity;
use super::pressure::Pressure;
use super::runtime_state::{Problem, join};
use super::thresholds::{Signal, Thresholds};
use crate::runtime::{Handler, Health, Image};

#[expect(clippy::expect_used, reason = "the table of types is part of the program; a test reads it")]
static STATUS: LazyLock<Type> =
    LazyLock::new(|| api::schema::find("core/v1", "NodeStatus").expect("a node's status has a schema"));

/// Images a Node names, and names of each.
pub(crate) const MAX_IMAGES: usize = 50;
const MAX_NAMES: usize = 5;

/// What is kept from pods for the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    pub milli_cpu: u64,
    pub memory: u64,
    pub storage: u64,
}

/// What a Node's status is made of.
pub struct Inputs<'a> {
    pub identity: &'a Identity,
    pub machine: &'a Machine,
    /// The preferred address first.
    pub addresses: &'a [String],
    pub port: u16,
    pub max_pods: u32,
    pub kubelet_version: &'a str,
    pub reserved: Reserved,
    pub thresholds: &'a Thresholds,
    pub health: Option<&'a Health>,
    pub problems: &'a [Problem],
    pub pressure: Pressure,
    /// `None` when they are not known; the old list stays.
    pub images: Option<&'a [Image]>,
    pub now: Timestamp,
}

/// The status, and the reasons of the events that its changes ask for.
pub fn render(inputs: &Inputs<'_>, old: &NodeStatus) -> (NodeStatus, Vec<&'static str>) {
    let (conditions, events) = conditions(inputs, old.conditions.as_deref().unwrap_or_default());
    let status = NodeStatus {
        addresses: Some(addresses(inputs)),
        capacity: Some(texts(capacity(inputs))),
        allocatable: Some(texts(allocatable(inputs))),
        conditions: Some(conditions),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: inputs.port.into() }),
        }),
        node_info: Some(info(inputs, old.node_info.as_ref())),
        images: inputs.images.map_or_else(|| old.images.clone(), |i| Some(images(i))),
        runtime_handlers: inputs.health.map_or_else(|| old.runtime_handlers.clone(), handlers),
        features: inputs.health.map_or_else(
            || old.features.clone(),
            |health| {
                let groups = health.features.supplemental_groups_policy;
                Some(NodeFeatures { supplemental_groups_policy: Some(groups) })
            },
        ),
        ..NodeStatus::default()
    };
    (status, events)
}

fn addresses(inputs: &Inputs<'_>) -> Vec<NodeAddress> {
    let address = |type_: &str, address: String| NodeAddress { type_: type_.into(), address };
    let mut all: Vec<_> = inputs.addresses.iter().map(|ip| address("InternalIP", ip.clone())).collect();
    all.push(address("Hostname", inputs.identity.node_name.clone()));
    all
}

pub(crate) fn binary(bytes: u64) -> Quantity {
    Quantity::from_value(i64::try_from(bytes).unwrap_or(i64::MAX), Format::Binary)
}

pub(crate) fn count(number: u64) -> Quantity {
    Quantity::from_value(i64::try_from(number).unwrap_or(i64::MAX), Format::Decimal)
}

fn texts(amounts: BTreeMap<String, Quantity>) -> BTreeMap<String, Text> {
    amounts.into_iter().map(|(name, amount)| (name, Text(amount.to_string()))).collect()
}

/// What the machine has.
pub fn capacity(inputs: &Inputs<'_>) -> BTreeMap<String, Quantity> {
    let machine = inputs.machine;
    let mut all = BTreeMap::from([
        ("cpu".to_owned(), count(machine.cpus)),
        ("memory".to_owned(), binary(machine.memory)),
        ("ephemeral-storage".to_owned(), binary(machine.storage)),
        ("pods".to_owned(), count(inputs.max_pods.into())),
    ]);
    for (page, bytes) in &machine.huge_pages {
        all.insert(format!("hugepages-{}", binary(*page)), binary(*bytes));
    }
    all
}

/// What of it pods may have: less what is reserved, and less what eviction keeps free.
pub fn allocatable(inputs: &Inputs<'_>) -> BTreeMap<String, Quantity> {
    let (machine, reserved) = (inputs.machine, inputs.reserved);
    let mut all = capacity(inputs);
    let milli = machine.cpus.saturating_mul(1000).saturating_sub(reserved.milli_cpu);
    all.insert("cpu".into(), Quantity::from_milli(i64::try_from(milli).unwrap_or(i64::MAX), Format::Decimal));
    let huge: u64 = machine.huge_pages.values().sum();
    let held = |signal, all: u64| inputs.thresholds.hard.get(signal).map_or(0, |b| b.of(all));
    let free = held(Signal::Memory, machine.memory);
    let kept = reserved.memory.saturating_add(free).saturating_add(huge);
    all.insert("memory".into(), binary(machine.memory.saturating_sub(kept)));
    let free = held(Signal::Data, machine.storage);
    let kept = reserved.storage.saturating_add(free);
    all.insert("ephemeral-storage".into(), count(machine.storage.saturating_sub(kept)));
    all
}

fn info(inputs: &Inputs<'_>, old: Option<&NodeSystemInfo>) -> NodeSystemInfo {
    let (machine, identity) = (inputs.machine, inputs.identity);
    let runtime = match inputs.health {
        Some(health) => format!("{}://{}", health.name, health.version),
        None => old.map(|o| o.container_runtime_version.clone()).unwrap_or_default(),
    };
    let uuid = &machine.system_uuid;
    let swap = i64::try_from(machine.swap).unwrap_or(i64::MAX);
    NodeSystemInfo {
        architecture: machine.architecture.into(),
        boot_id: machine.boot_id.clone(),
        container_runtime_version: runtime,
        kernel_version: machine.kernel.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: inputs.kubelet_version.into(),
        machine_id: identity.machine_id.clone(),
        operating_system: machine.operating_system.into(),
        os_image: machine.os_image.clone(),
        system_uuid: if uuid.is_empty() { identity.machine_id.clone() } else { uuid.clone() },
        swap: (swap > 0).then_some(NodeSwapStatus { capacity: Some(swap) }),
        running_in_user_namespace: None,
    }
}

/// The largest images, each with the digests and tags it has.
fn images(all: &[Image]) -> Vec<ContainerImage> {
    let mut sorted: Vec<&Image> = all.iter().collect();
    sorted.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    let render = |image: &&Image| ContainerImage {
        names: Some(image.digests.iter().chain(&image.tags).take(MAX_NAMES).cloned().collect()),
        size_bytes: Some(i64::try_from(image.size).unwrap_or(i64::MAX)),
    };
    sorted.iter().take(MAX_IMAGES).map(render).collect()
}

fn handlers(health: &Health) -> Option<Vec<NodeRuntimeHandler>> {
    let render = |handler: &Handler| NodeRuntimeHandler {
        name: Some(handler.name.clone()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(handler.recursive_read_only),
            user_namespaces: Some(handler.user_namespaces),
        }),
    };
    let handlers = &health.features.handlers;
    (!handlers.is_empty()).then(|| handlers.iter().map(render).collect())
}

/// One condition of pressure: its type, and reason and message without and with it.
struct Wording {
    kind: &'static str,
    good: (&'static str, &'static str),
    bad: (&'static str, &'static str),
    /// The events' reasons.
    events: (&'static str, &'static str),
}

const MEMORY: Wording = Wording {
    kind: "MemoryPressure",
    good: ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    bad: ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
    events: ("NodeHasSufficientMemory", "NodeHasInsufficientMemory"),
};
const DISK: Wording = Wording {
    kind: "DiskPressure",
    good: ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    bad: ("KubeletHasDiskPressure", "kubelet has disk pressure"),
    events: ("NodeHasNoDiskPressure", "NodeHasDiskPressure"),
};
const PIDS: Wording = Wording {
    kind: "PIDPressure",
    good: ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    bad: ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
    events: ("NodeHasSufficientPID", "NodeHasInsufficientPID"),
};

fn conditions(inputs: &Inputs<'_>, old: &[NodeCondition]) -> (Vec<NodeCondition>, Vec<&'static str>) {
    let (mut all, mut events) = (Vec::new(), Vec::new());
    // The API server keeps whole seconds.
    let now = Timestamp::from_second(inputs.now.as_second()).unwrap_or(inputs.now);
    let mut add = |kind: &str, status: bool, reason: &str, message: &str, event: &'static str| {
        let before = old.iter().find(|c| c.type_ == kind);
        let status = if status { "True" } else { "False" };
        let same = before.filter(|c| c.status == status);
        // A Node that starts out as not ready has not become so.
        if same.is_none() && !(before.is_none() && event == "NodeNotReady") {
            events.push(event);
        }
        all.push(NodeCondition {
            type_: kind.into(),
            status: status.into(),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: same.and_then(|c| c.last_transition_time.clone()).or(Some(Time(now))),
            reason: Some(reason.into()),
            message: Some(message.into()),
        });
    };
    let pressure = inputs.pressure;
    for (wording, is_short) in [(MEMORY, pressure.memory), (DISK, pressure.disk), (PIDS, pressure.pids)] {
        let (reason, message) = if is_short { wording.bad } else { wording.good };
        let event = if is_short { wording.events.1 } else { wording.events.0 };
        add(wording.kind, is_short, reason, message, event);
    }
    if inputs.problems.is_empty() {
        add("Ready", true, "KubeletReady", "kubelet is posting ready status", "NodeReady");
    } else {
        add("Ready", false, "KubeletNotReady", &join(inputs.problems), "NodeNotReady");
    }
    (all, events)
}

/// What a patch of the status says, and whether more than heartbeats changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub patch: Value,
    pub is_urgent: bool,
}

/// From the status that the API server has to the one it should have. What others wrote (further
/// conditions, extended resources) is left alone.
pub fn diff(old: &NodeStatus, new: &NodeStatus) -> Difference {
    let mut patch = machinery::patch::difference(&ours(old), &ours(new), &STATUS);
    for (name, old, new) in
        [("capacity", &old.capacity, &new.capacity), ("allocatable", &old.allocatable, &new.allocatable)]
    {
        let none = BTreeMap::new();
        let before = old.as_ref().unwrap_or(&none);
        let changed = |(name, amount): &(&String, &Text)| !before.get(*name).is_some_and(|b| is_same(b, amount));
        let mut changed: Map<String, Value> =
            new.iter().flatten().filter(changed).map(|(name, amount)| (name.clone(), json!(amount.0))).collect();
        // Sizes of pages that the kernel has no more; other resources may be somebody else's.
        let has = |name: &str| new.as_ref().is_some_and(|new| new.contains_key(name));
        let gone = before.keys().filter(|name| name.starts_with("hugepages-") && !has(name));
        changed.extend(gone.map(|name| (name.clone(), Value::Null)));
        if !changed.is_empty() {
            patch.insert(name.into(), Value::Object(changed));
        }
    }
    let said = |all: &Option<Vec<NodeCondition>>| -> BTreeMap<String, (String, Option<String>, Option<String>)> {
        let told = |c: &NodeCondition| (c.type_.clone(), (c.status.clone(), c.reason.clone(), c.message.clone()));
        all.iter().flatten().map(told).collect()
    };
    let before = said(&old.conditions);
    let is_urgent = !patch.is_empty() || said(&new.conditions).iter().any(|(kind, now)| before.get(kind) != Some(now));
    patch.insert("conditions".into(), tree(&new.conditions));
    Difference { patch: json!({"status": patch}), is_urgent }
}

/// What only the kubelet writes, other than resources and conditions.
fn ours(status: &NodeStatus) -> Map<String, Value> {
    let all = [
        ("addresses", tree(&status.addresses)),
        ("daemonEndpoints", tree(&status.daemon_endpoints)),
        ("nodeInfo", tree(&status.node_info)),
        ("images", tree(&status.images)),
        ("features", tree(&status.features)),
        ("runtimeHandlers", tree(&status.runtime_handlers)),
    ];
    let says = |value: &Value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty());
    all.into_iter().filter(|(_, value)| says(value)).map(|(name, value)| (name.to_owned(), value)).collect()
}

fn is_same(a: &Text, b: &Text) -> bool {
    a == b || a.0.parse::<Quantity>().ok().zip(b.0.parse::<Quantity>().ok()).is_some_and(|(a, b)| a == b)
}

fn tree<T: serde::Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
