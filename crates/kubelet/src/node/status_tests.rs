//! The Node's status, by example.

use super::*;

fn machine() -> Machine {
    Machine {
        cpus: 2,
        memory: 4 << 30,
        swap: 0,
        storage: 1000 << 10,
        huge_pages: [(2 << 20, 0)].into(),
        kernel: "6.1".into(),
        apparmor: false,
        os_image: "Some Linux".into(),
        boot_id: "boot".into(),
        system_uuid: String::new(),
        architecture: "amd64",
        operating_system: "linux",
    }
}

fn identity() -> Identity {
    Identity { node_name: "n1".into(), machine_id: "m".into() }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

struct Case {
    machine: Machine,
    identity: Identity,
    problems: Vec<Problem>,
    pressure: Pressure,
    images: Vec<Image>,
    addresses: Vec<String>,
    health: Health,
}

impl Case {
    fn new() -> Self {
        Self {
            machine: machine(),
            identity: identity(),
            problems: Vec::new(),
            pressure: Pressure::default(),
            images: Vec::new(),
            addresses: vec!["10.0.0.1".into(), "fd00::1".into()],
            health: Health { name: "containerd".into(), version: "1.6.20".into(), ..Health::default() },
        }
    }

    fn render(&self, old: &NodeStatus, now: i64) -> (NodeStatus, Vec<&'static str>) {
        let inputs = Inputs {
            identity: &self.identity,
            machine: &self.machine,
            addresses: &self.addresses,
            port: 10250,
            max_pods: 110,
            kubelet_version: "v1.37.1+x",
            reserved: Reserved { milli_cpu: 100, ..Reserved::default() },
            thresholds: &Thresholds::default(),
            health: Some(&self.health),
            problems: &self.problems,
            pressure: self.pressure,
            images: Some(&self.images),
            now: at(now),
        };
        render(&inputs, old)
    }
}

#[test]
fn a_new_node() {
    let (status, events) = Case::new().render(&NodeStatus::default(), 5);
    let value = tree(&status);
    assert_eq!(
        value["addresses"],
        json!([{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "InternalIP", "address": "fd00::1"},
               {"type": "Hostname", "address": "n1"}])
    );
    assert_eq!(
        value["capacity"],
        json!({"cpu": "2", "memory": "4Gi", "ephemeral-storage": "1000Ki", "pods": "110", "hugepages-2Mi": "0"})
    );
    assert_eq!(
        value["allocatable"],
        json!({"cpu": "1900m", "memory": "3996Mi", "ephemeral-storage": "921600", "pods": "110", "hugepages-2Mi": "0"})
    );
    assert_eq!(value["nodeInfo"]["containerRuntimeVersion"], "containerd://1.6.20");
    assert_eq!(value["nodeInfo"]["systemUUID"], "m");
    assert_eq!(value["daemonEndpoints"]["kubeletEndpoint"]["Port"], 10250);
    let all: Vec<String> = status
        .conditions
        .iter()
        .flatten()
        .map(|c| {
            format!(
                "{}={} {}: {}",
                c.type_,
                c.status,
                c.reason.clone().unwrap_or_default(),
                c.message.clone().unwrap_or_default()
            )
        })
        .collect();
    assert_eq!(
        all,
        [
            "MemoryPressure=False KubeletHasSufficientMemory: kubelet has sufficient memory available",
            "DiskPressure=False KubeletHasNoDiskPressure: kubelet has no disk pressure",
            "PIDPressure=False KubeletHasSufficientPID: kubelet has sufficient PID available",
            "Ready=True KubeletReady: kubelet is posting ready status",
        ]
    );
    assert_eq!(events, ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"]);
}

#[test]
fn times_and_events_of_transitions() {
    let mut case = Case::new();
    let problem = Problem { code: "NetworkNotReady", text: "container runtime network not ready: x".into() };
    case.problems = vec![problem];
    let (first, events) = case.render(&NodeStatus::default(), 1);
    assert!(!events.contains(&"NodeNotReady"), "it never was ready");
    case.problems.clear();
    let (second, events) = case.render(&first, 2);
    assert_eq!(events, ["NodeReady"]);
    case.pressure.disk = true;
    let (third, events) = case.render(&second, 3);
    assert_eq!(events, ["NodeHasDiskPressure"]);
    let times = |status: &NodeStatus, kind: &str| {
        let all = status.conditions.clone().unwrap_or_default();
        let c = all.into_iter().find(|c| c.type_ == kind).expect("there");
        let second = |t: Option<Time>| t.map(|t| t.0.as_second());
        (second(c.last_heartbeat_time), second(c.last_transition_time))
    };
    assert_eq!(times(&third, "Ready"), (Some(3), Some(2)));
    assert_eq!(times(&third, "DiskPressure"), (Some(3), Some(3)));
    assert_eq!(times(&third, "MemoryPressure"), (Some(3), Some(1)));
    // What the node controller wrote when nothing was heard of the node.
    let mut unknown = third.clone();
    unknown.conditions.iter_mut().flatten().for_each(|c| c.status = "Unknown".into());
    case.pressure.disk = false;
    let (_, events) = case.render(&unknown, 4);
    assert_eq!(events, ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"]);
}

#[test]
fn only_changes_are_urgent_and_patched() {
    let mut case = Case::new();
    let (old, _) = case.render(&NodeStatus::default(), 1);
    let (new, _) = case.render(&old, 2);
    let found = diff(&old, &new);
    assert!(!found.is_urgent);
    let keys =
        |d: &Difference| -> Vec<String> { d.patch["status"].as_object().expect("a map").keys().cloned().collect() };
    assert_eq!(keys(&found), ["conditions"]);
    // The same amount, written otherwise; and a resource that somebody else advertises.
    let mut other = old.clone();
    let capacity = other.capacity.get_or_insert_default();
    capacity.insert("memory".into(), Text("4194304Ki".into()));
    capacity.insert("example.com/gpu".into(), Text("4".into()));
    assert!(!diff(&other, &new).is_urgent);
    case.images = vec![Image { id: "a".into(), tags: vec!["a:1".into()], size: 7, ..Image::default() }];
    case.addresses.truncate(1);
    let (new, _) = case.render(&old, 3);
    let found = diff(&old, &new);
    assert!(found.is_urgent);
    assert_eq!(keys(&found), ["addresses", "conditions", "images"]);
    assert_eq!(patched(&old, &found), new);
    case.problems = vec![Problem { code: "x", text: "y".into() }];
    let (worse, _) = case.render(&new, 4);
    assert!(diff(&new, &worse).is_urgent);
}

/// The server's status once it took the patch, by the merge that it uses itself.
fn patched(old: &NodeStatus, found: &Difference) -> NodeStatus {
    let mut node = json!({"status": old});
    let schema = api::schema::of("", "v1", "Node").expect("nodes have a schema");
    let patch = found.patch.as_object().expect("an object");
    machinery::patch::strategic(&mut node, patch, &schema).expect("the patch applies");
    serde_json::from_value(node["status"].take()).expect("a status")
}

#[test]
fn a_patch_leads_to_the_status() {
    type Change = fn(&mut NodeStatus);
    let changes: [Change; 9] = [
        |s| s.addresses.get_or_insert_default().truncate(1),
        |s| s.addresses.get_or_insert_default().retain(|a| a.type_ == "Hostname"),
        |s| s.addresses.get_or_insert_default().reverse(),
        |s| s.addresses.get_or_insert_default().iter_mut().for_each(|a| a.address.push('9')),
        |s| s.node_info.get_or_insert_default().swap = Some(NodeSwapStatus { capacity: Some(1) }),
        |s| {
            let image = ContainerImage { names: Some(vec!["a".into()]), size_bytes: Some(1) };
            s.images = Some(vec![image.clone(), image]);
        },
        |s| {
            let handler = NodeRuntimeHandler { name: Some("runsc".into()), features: None };
            s.runtime_handlers = Some(vec![handler]);
        },
        |s| s.features = Some(NodeFeatures { supplemental_groups_policy: None }),
        |s| {
            for all in [&mut s.capacity, &mut s.allocatable] {
                all.get_or_insert_default().insert("hugepages-7Mi".into(), Text("7Mi".into()));
            }
        },
    ];
    let (mut base, _) = Case::new().render(&NodeStatus::default(), 1);
    // An empty list is none.
    base.images = None;
    let mut all = vec![base.clone()];
    for change in changes {
        let mut status = base.clone();
        change(&mut status);
        all.push(status);
    }
    for old in &all {
        for new in &all {
            assert_eq!(&patched(old, &diff(old, new)), new);
        }
    }
}

#[test]
fn the_largest_images_are_named() {
    let image = |n: u64| Image {
        id: format!("sha256:{n}"),
        tags: (0..4).map(|t| format!("i{n}:{t}")).collect(),
        digests: vec![format!("i{n}@sha256:1"), format!("i{n}@sha256:2")],
        size: n,
        ..Image::default()
    };
    let many: Vec<Image> = (0..60).map(image).collect();
    let named = images(&many);
    assert_eq!((named.len(), named[0].size_bytes), (50, Some(59)));
    assert_eq!(named[0].names.clone().unwrap_or_default(), ["i59@sha256:1", "i59@sha256:2", "i59:0", "i59:1", "i59:2"]);
}
