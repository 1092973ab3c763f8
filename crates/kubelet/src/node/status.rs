//! The Node's object and status, from the machine's facts. Pure.

use std::collections::BTreeMap;

use api::meta::api::resource::Quantity as Text;
use api::meta::apis::meta::v1::{ObjectMeta, Time};
use api::types::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeStatus, NodeSystemInfo,
};
use jiff::Timestamp;

use super::facts::{Machine, Pressure};
use crate::runtime::{Health, Image};

/// The annotation that tells one machine from another of the same name.
pub const MACHINE_ID: &str = "pintle.dev/machine-id";
/// Images a status names at most, and names of one of them.
const MAX_IMAGES: usize = 50;
const MAX_NAMES: usize = 5;
/// What memory must be left, as upstream's eviction threshold has it.
const MEMORY_RESERVE: u64 = 100 << 20;
/// A disk with so much left is not full, whatever share of it that is.
const PLENTY: u64 = 10 << 30;

/// What a status is made of.
pub struct Inputs<'a> {
    pub name: &'a str,
    pub ips: &'a [String],
    pub port: u16,
    pub max_pods: u32,
    pub version: &'a str,
    pub machine: &'a Machine,
    pub pressure: Pressure,
    pub runtime: Option<&'a Health>,
    /// Why the runtime cannot be asked, or is not listed any more.
    pub problems: &'a [String],
    pub images: &'a [Image],
    pub now: Timestamp,
}

/// The labels every node has.
pub fn labels(name: &str, architecture: &str) -> BTreeMap<String, String> {
    [
        ("beta.kubernetes.io/arch", architecture),
        ("beta.kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture),
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", "linux"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// The object to register.
pub fn node(inputs: &Inputs, machine_id: &str, more_labels: &BTreeMap<String, String>) -> Node {
    let mut labels = labels(inputs.name, &inputs.machine.architecture);
    labels.extend(more_labels.clone());
    let annotations = [
        (MACHINE_ID.to_owned(), machine_id.to_owned()),
        ("volumes.kubernetes.io/controller-managed-attach-detach".to_owned(), "true".to_owned()),
    ];
    Node {
        metadata: ObjectMeta {
            name: Some(inputs.name.to_owned()),
            labels: Some(labels),
            annotations: Some(annotations.into()),
            ..ObjectMeta::default()
        },
        spec: None,
        status: Some(status(inputs, &NodeStatus::default())),
    }
}

/// The status; conditions keep their times until they change.
pub fn status(inputs: &Inputs, before: &NodeStatus) -> NodeStatus {
    let machine = inputs.machine;
    let mut addresses: Vec<NodeAddress> =
        inputs.ips.iter().map(|ip| NodeAddress { address: ip.clone(), type_: "InternalIP".into() }).collect();
    addresses.push(NodeAddress { address: inputs.name.to_owned(), type_: "Hostname".into() });
    let runtime = inputs.runtime.cloned().unwrap_or_default();
    let handlers: Vec<NodeRuntimeHandler> = runtime
        .handlers
        .iter()
        .map(|(name, recursive, user)| NodeRuntimeHandler {
            name: Some(name.clone()),
            features: Some(NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(*recursive),
                user_namespaces: Some(*user),
            }),
        })
        .collect();
    NodeStatus {
        addresses: Some(addresses),
        capacity: Some(capacity(inputs)),
        allocatable: Some(allocatable(inputs)),
        conditions: Some(conditions(inputs, before)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(inputs.port) }),
        }),
        images: Some(images(inputs.images)),
        node_info: Some(NodeSystemInfo {
            architecture: machine.architecture.clone(),
            boot_id: machine.boot_id.clone(),
            container_runtime_version: format!("{}://{}", runtime.name, runtime.version),
            kernel_version: machine.kernel.clone(),
            kube_proxy_version: String::new(),
            kubelet_version: inputs.version.to_owned(),
            machine_id: machine.machine_id.clone(),
            operating_system: "linux".into(),
            os_image: machine.os_image.clone(),
            system_uuid: machine.system_uuid.clone(),
            ..NodeSystemInfo::default()
        }),
        runtime_handlers: Some(handlers).filter(|h| !h.is_empty()),
        ..before.clone()
    }
}

fn capacity(inputs: &Inputs) -> BTreeMap<String, Text> {
    let machine = inputs.machine;
    let mut out: BTreeMap<String, Text> = [
        ("cpu".to_owned(), Text(machine.cpus.to_string())),
        ("memory".to_owned(), Text(format!("{}Ki", machine.memory_kib))),
        ("ephemeral-storage".to_owned(), Text(format!("{}Ki", inputs.pressure.disk_total / 1024))),
        ("pods".to_owned(), Text(inputs.max_pods.to_string())),
    ]
    .into();
    for (size, kib) in &machine.huge_pages {
        out.insert(format!("hugepages-{}", print_kib(*size)), Text(print_kib(*kib)));
    }
    out
}

/// An amount of KiB in the largest unit that divides it.
fn print_kib(kib: u64) -> String {
    match kib {
        0 => "0".into(),
        n if n % (1 << 20) == 0 => format!("{}Gi", n >> 20),
        n if n % (1 << 10) == 0 => format!("{}Mi", n >> 10),
        n => format!("{n}Ki"),
    }
}

fn allocatable(inputs: &Inputs) -> BTreeMap<String, Text> {
    let huge: u64 = inputs.machine.huge_pages.iter().map(|(_, kib)| kib).sum();
    let memory = inputs.machine.memory_kib.saturating_sub(MEMORY_RESERVE / 1024).saturating_sub(huge);
    let mut out = capacity(inputs);
    out.insert("memory".into(), Text(format!("{memory}Ki")));
    // Ten parts of a hundred are kept free.
    let disk = inputs.pressure.disk_total / 10 * 9;
    out.insert("ephemeral-storage".into(), Text(disk.to_string()));
    out
}

fn images(images: &[Image]) -> Vec<ContainerImage> {
    let mut all: Vec<&Image> = images.iter().filter(|i| !(i.tags.is_empty() && i.digests.is_empty())).collect();
    all.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    let image = |i: &&Image| ContainerImage {
        names: Some(i.digests.iter().chain(&i.tags).take(MAX_NAMES).cloned().collect()),
        size_bytes: Some(i64::try_from(i.size).unwrap_or(i64::MAX)),
    };
    all.iter().take(MAX_IMAGES).map(image).collect()
}

fn conditions(inputs: &Inputs, before: &NodeStatus) -> Vec<NodeCondition> {
    let p = inputs.pressure;
    let low_memory = p.memory_available > 0 && p.memory_available < MEMORY_RESERVE;
    let few_bytes = p.disk_available < PLENTY && p.disk_available < p.disk_total / 10;
    let few_inodes = p.inodes > 0 && p.inodes_free < p.inodes / 20;
    let few_pids = p.max_pids > 0 && p.pids > p.max_pids / 10 * 9;
    let pressure = |bad: bool, kind: &str, (bad_reason, bad_text): (&str, &str), (reason, text): (&str, &str)| {
        let (status, reason, text) = if bad { ("True", bad_reason, bad_text) } else { ("False", reason, text) };
        condition(kind, status, reason, &format!("kubelet has {text}"))
    };
    let mut out = vec![
        pressure(
            low_memory,
            "MemoryPressure",
            ("KubeletHasInsufficientMemory", "insufficient memory available"),
            ("KubeletHasSufficientMemory", "sufficient memory available"),
        ),
        pressure(
            few_bytes || few_inodes,
            "DiskPressure",
            ("KubeletHasDiskPressure", "disk pressure"),
            ("KubeletHasNoDiskPressure", "no disk pressure"),
        ),
        pressure(
            few_pids,
            "PIDPressure",
            ("KubeletHasInsufficientPID", "insufficient PID available"),
            ("KubeletHasSufficientPID", "sufficient PID available"),
        ),
        ready(inputs),
    ];
    let kept = before.conditions.iter().flatten();
    for condition in &mut out {
        let old = kept.clone().find(|c| c.type_ == condition.type_);
        let same = old.filter(|o| o.status == condition.status);
        condition.last_heartbeat_time = Some(Time(inputs.now));
        let since = same.and_then(|o| o.last_transition_time.clone());
        condition.last_transition_time = since.or(Some(Time(inputs.now)));
    }
    // What others say of the node stays, before what we say.
    let ours = |c: &&NodeCondition| out.iter().any(|o| o.type_ == c.type_);
    let others: Vec<NodeCondition> = kept.filter(|c| !ours(c)).cloned().collect();
    others.into_iter().chain(out).collect()
}

fn ready(inputs: &Inputs) -> NodeCondition {
    let mut problems: Vec<String> = Vec::new();
    match inputs.runtime {
        None => problems.push("container runtime is down".into()),
        Some(health) => {
            problems.extend(health.runtime_problem.iter().map(|p| format!("container runtime not ready: {p}")));
            problems.extend(health.network_problem.iter().map(|p| format!("container runtime network not ready: {p}")));
        }
    }
    problems.extend(inputs.problems.iter().cloned());
    match problems.as_slice() {
        [] => condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        [one] => condition("Ready", "False", "KubeletNotReady", one),
        many => condition("Ready", "False", "KubeletNotReady", &format!("[{}]", many.join(", "))),
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> NodeCondition {
    NodeCondition {
        type_: kind.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        ..NodeCondition::default()
    }
}

/// The status without what changes with every look: equal ones need no write.
pub fn lasting(status: &NodeStatus) -> NodeStatus {
    let mut status = status.clone();
    for condition in status.conditions.iter_mut().flatten() {
        condition.last_heartbeat_time = None;
    }
    status
}

/// The events that a change from one status to the next is worth: reason only, the texts all read
/// `Node <n> status is now: <reason>`.
pub fn changes(before: &NodeStatus, after: &NodeStatus) -> Vec<&'static str> {
    let status =
        |s: &NodeStatus, kind: &str| s.conditions.iter().flatten().find(|c| c.type_ == kind).map(|c| c.status.clone());
    let mut out = Vec::new();
    for (kind, on, off) in [
        ("MemoryPressure", "NodeHasInsufficientMemory", "NodeHasSufficientMemory"),
        ("DiskPressure", "NodeHasDiskPressure", "NodeHasNoDiskPressure"),
        ("PIDPressure", "NodeHasInsufficientPID", "NodeHasSufficientPID"),
        ("Ready", "NodeReady", "NodeNotReady"),
    ] {
        let (old, new) = (status(before, kind), status(after, kind));
        if old != new && !(kind == "Ready" && old.is_none() && new.as_deref() == Some("False")) {
            out.push(if new.as_deref() == Some("True") { on } else { off });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs<'a>(machine: &'a Machine, runtime: Option<&'a Health>, problems: &'a [String]) -> Inputs<'a> {
        Inputs {
            name: "n1",
            ips: &[],
            port: 10250,
            max_pods: 110,
            version: "v1.37.1",
            machine,
            pressure: Pressure {
                memory_available: 1 << 30,
                disk_total: 100 << 30,
                disk_available: 50 << 30,
                ..Pressure::default()
            },
            runtime,
            problems,
            images: &[],
            now: Timestamp::from_second(100).expect("a time"),
        }
    }

    fn lines(status: &NodeStatus) -> Vec<String> {
        let conditions = status.conditions.iter().flatten();
        conditions.map(|c| format!("{}={} {}", c.type_, c.status, c.message.clone().unwrap_or_default())).collect()
    }

    #[test]
    fn conditions_have_upstreams_texts() {
        let machine = Machine { cpus: 2, memory_kib: 4 << 20, ..Machine::default() };
        let well = Health { name: "containerd".into(), version: "1.6.20".into(), ..Health::default() };
        let first = status(&inputs(&machine, Some(&well), &[]), &NodeStatus::default());
        assert_eq!(
            lines(&first),
            [
                "MemoryPressure=False kubelet has sufficient memory available",
                "DiskPressure=False kubelet has no disk pressure",
                "PIDPressure=False kubelet has sufficient PID available",
                "Ready=True kubelet is posting ready status",
            ]
        );
        let network = "NetworkReady=false reason:NetworkPluginNotReady message:cni plugin not initialized";
        let ill = Health { network_problem: Some(network.into()), ..well };
        let second = status(&inputs(&machine, Some(&ill), &["PLEG is not healthy".into()]), &first);
        assert_eq!(
            lines(&second)[3],
            format!("Ready=False [container runtime network not ready: {network}, PLEG is not healthy]")
        );
        assert_eq!(lines(&status(&inputs(&machine, None, &[]), &first))[3], "Ready=False container runtime is down");
        assert_eq!(changes(&first, &second), ["NodeNotReady"]);
        assert_eq!(
            changes(&NodeStatus::default(), &first),
            ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"]
        );
    }

    #[test]
    fn heartbeats_alone_are_no_change() {
        let machine = Machine::default();
        let first = status(&inputs(&machine, None, &[]), &NodeStatus::default());
        let later = Inputs { now: Timestamp::from_second(200).expect("a time"), ..inputs(&machine, None, &[]) };
        let second = status(&later, &first);
        assert_ne!(first, second);
        assert_eq!(lasting(&first), lasting(&second));
    }

    #[test]
    fn a_full_disk_is_pressure_only_when_little_is_left() {
        let machine = Machine::default();
        let of = |total: u64, available: u64| {
            let mut inputs = inputs(&machine, None, &[]);
            inputs.pressure.disk_total = total << 30;
            inputs.pressure.disk_available = available << 30;
            lines(&status(&inputs, &NodeStatus::default()))[1].starts_with("DiskPressure=True")
        };
        assert_eq!([of(100, 50), of(100, 9), of(1000, 50), of(20, 1)], [false, true, false, true]);
    }

    #[test]
    fn resources_and_images() {
        let machine = Machine {
            cpus: 2,
            memory_kib: 4 << 20,
            huge_pages: vec![(2048, 0), (1 << 20, 1 << 20)],
            ..Machine::default()
        };
        let images: Vec<Image> = (0..60)
            .map(|n| Image { id: n.to_string(), tags: vec![format!("i:{n}")], size: n, ..Image::default() })
            .collect();
        let mut inputs = inputs(&machine, None, &[]);
        inputs.images = &images;
        let found = status(&inputs, &NodeStatus::default());
        let text = |list: &Option<BTreeMap<String, Text>>, name: &str| {
            list.as_ref().and_then(|l| l.get(name)).map(|q| q.0.clone())
        };
        assert_eq!(text(&found.capacity, "cpu").as_deref(), Some("2"));
        assert_eq!(text(&found.capacity, "hugepages-1Gi").as_deref(), Some("1Gi"));
        assert_eq!(text(&found.capacity, "hugepages-2Mi").as_deref(), Some("0"));
        assert_eq!(text(&found.allocatable, "memory"), Some(format!("{}Ki", (4 << 20) - (100 << 10) - (1 << 20))));
        let images = found.images.expect("images");
        assert_eq!((images.len(), images[0].size_bytes), (50, Some(59)));
    }
}
