//! `/stats/summary`: everything that is known of what is used, as one document.

use jiff::Timestamp;
use machinery::time::rfc3339;
use serde_json::{Map, Value, json};

use super::disk::{PodDisk, Used};
use super::network::Interface;
use super::numbers::{Numbers, Pressure, Waiting};
use super::{ContainerStats, Gathered, Measured, PodStats};
use crate::node::facts::Disk;

/// What is known of file systems.
#[derive(Default)]
pub struct Disks {
    /// Those of pods, by uid.
    pub pods: std::collections::HashMap<String, std::sync::Arc<PodDisk>>,
    /// The one with volumes and logs.
    pub node: Option<Disk>,
    /// The one with images, and what they use.
    pub images: Option<(Used, Disk)>,
}

/// The whole document. Without disks it is of processors and memory only.
pub fn render(node_name: &str, gathered: &Gathered, disks: Option<&Disks>) -> Value {
    let at = gathered.at;
    let machine = &gathered.machine;
    let boot = machine.booted.and_then(|s| Timestamp::from_second(s).ok()).unwrap_or(at);
    let mut node = usage(&gathered.node, at);
    put(&mut node, "nodeName", json!(node_name));
    put(&mut node, "startTime", json!(rfc3339(boot)));
    let mut system = usage(&gathered.all_pods, at);
    if !system.is_empty() {
        put(&mut system, "name", json!("pods"));
        put(&mut system, "startTime", json!(rfc3339(boot)));
        put(&mut node, "systemContainers", json!([system]));
    }
    if let Some(disks) = disks {
        put(&mut node, "network", network(&machine.interfaces, at));
        if let Some(disk) = disks.node {
            put(&mut node, "fs", file_system(whole(&disk), &disk, at));
        }
        if let Some((used, disk)) = &disks.images {
            let images = file_system(*used, disk, at);
            put(&mut node, "runtime", json!({"imageFs": images, "containerFs": images}));
        }
        put(
            &mut node,
            "rlimit",
            json!({"time": rfc3339(at), "maxpid": machine.most_processes, "curproc": machine.numbers.processes}),
        );
    }
    let pods: Vec<Value> = gathered.pods.iter().map(|pod| one(pod, at, disks)).collect();
    json!({"node": node, "pods": pods})
}

fn one(stats: &PodStats, at: Timestamp, disks: Option<&Disks>) -> Value {
    let pod = &stats.pod;
    let mut out = usage(&stats.measured, at);
    put(&mut out, "podRef", json!({"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}));
    put(&mut out, "startTime", json!(rfc3339(stats.started)));
    let disk = disks.and_then(|disks| Some((disks.pods.get(&pod.uid)?, disks.node)));
    let containers: Vec<Value> = stats.containers.iter().map(|c| container(c, at, disk)).collect();
    put(&mut out, "containers", json!(containers));
    if disks.is_some() {
        if let Some(interfaces) = stats.interfaces.as_ref().filter(|i| !i.is_empty()) {
            put(&mut out, "network", network(interfaces, at));
        }
        if let Some(count) = stats.measured.numbers.processes {
            put(&mut out, "process_stats", json!({"process_count": count}));
        }
    }
    if let Some((disk, node)) = disk {
        let volume = |v: &super::disk::Volume| {
            let mut found = file_system(v.used, &v.of, disk.at);
            found["name"] = json!(v.name);
            if let Some(claim) = &v.claim {
                found["pvcRef"] = json!({"name": claim, "namespace": pod.namespace});
            }
            found
        };
        let volumes: Vec<Value> = disk.volumes.iter().map(volume).collect();
        if !volumes.is_empty() {
            put(&mut out, "volume", json!(volumes));
        }
        if let Some(node) = node {
            put(&mut out, "ephemeral-storage", file_system(disk.ephemeral(), &node, disk.at));
        }
    }
    Value::Object(out)
}

fn container(stats: &ContainerStats, at: Timestamp, disk: Option<(&std::sync::Arc<PodDisk>, Option<Disk>)>) -> Value {
    let container = &stats.container;
    let mut out = usage(&stats.measured, at);
    put(&mut out, "name", json!(container.name));
    put(&mut out, "startTime", json!(rfc3339(container.started_at.unwrap_or(container.created_at))));
    if let Some((disk, Some(node))) = disk {
        if let Some(layer) = disk.layers.get(&container.id) {
            let used = Used { bytes: layer.bytes, inodes: layer.inodes };
            put(&mut out, "rootfs", file_system(used, &node, disk.at));
        }
        if let Some(used) = disk.logs.get(&container.name) {
            put(&mut out, "logs", file_system(*used, &node, disk.at));
        }
    }
    Value::Object(out)
}

fn put(out: &mut Map<String, Value>, key: &str, value: Value) {
    out.insert(key.to_owned(), value);
}

/// Processors, memory, swap and what tasks waited for; empty where nothing is known.
fn usage(measured: &Measured, at: Timestamp) -> Map<String, Value> {
    let Numbers { cpu, memory, pressure, .. } = &measured.numbers;
    let time = rfc3339(at);
    let mut out = Map::new();
    if let Some(cpu) = cpu {
        let mut found = json!({"time": time, "usageCoreNanoSeconds": cpu.used});
        if let Some(rate) = measured.rate {
            found["usageNanoCores"] = json!(rate);
        }
        if let Some(waiting) = &pressure.cpu {
            found["psi"] = psi(waiting);
        }
        put(&mut out, "cpu", found);
    }
    if let Some(memory) = memory {
        let mut found = json!({
            "time": time,
            "usageBytes": memory.used,
            "workingSetBytes": memory.working_set(),
            "rssBytes": memory.rss,
            "pageFaults": memory.faults,
            "majorPageFaults": memory.major_faults,
        });
        if let Some(available) = memory.available() {
            found["availableBytes"] = json!(available);
        }
        if let Some(waiting) = &pressure.memory {
            found["psi"] = psi(waiting);
        }
        put(&mut out, "memory", found);
        let mut swap = json!({"time": time, "swapUsageBytes": memory.swap});
        if let Some(limit) = memory.swap_limit {
            swap["swapAvailableBytes"] = json!(limit.saturating_sub(memory.swap));
        }
        put(&mut out, "swap", swap);
    }
    if let Some(waiting) = &pressure.io {
        put(&mut out, "io", json!({"time": time, "psi": psi(waiting)}));
    }
    out
}

fn psi(waiting: &Waiting) -> Value {
    let one = |p: &Pressure| json!({"total": p.total, "avg10": p.averages[0], "avg60": p.averages[1], "avg300": p.averages[2]});
    json!({"full": one(&waiting.full), "some": one(&waiting.some)})
}

fn network(interfaces: &[Interface], at: Timestamp) -> Value {
    let one = |i: &Interface| {
        json!({
            "name": i.name,
            "rxBytes": i.received.bytes,
            "rxErrors": i.received.errors,
            "txBytes": i.sent.bytes,
            "txErrors": i.sent.errors,
        })
    };
    let mut out = interfaces.first().map_or_else(|| json!({"name": ""}), one);
    out["time"] = json!(rfc3339(at));
    out["interfaces"] = interfaces.iter().map(one).collect();
    out
}

/// All that is used of a file system, by whomever.
fn whole(disk: &Disk) -> Used {
    Used { bytes: disk.capacity.saturating_sub(disk.available), inodes: disk.inodes.saturating_sub(disk.inodes_free) }
}

fn file_system(used: Used, of: &Disk, at: Timestamp) -> Value {
    json!({
        "time": rfc3339(at),
        "availableBytes": of.available,
        "capacityBytes": of.capacity,
        "usedBytes": used.bytes,
        "inodesFree": of.inodes_free,
        "inodes": of.inodes,
        "inodesUsed": used.inodes,
    })
}
