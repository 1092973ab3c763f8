//! Which pod ends first when the node is short of something. Pure.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::node::thresholds::Signal;
use crate::pod::BoundPod;
use crate::preempt::request;
use crate::stats::disk::Used;

/// What one container uses, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    pub name: String,
    /// Bytes that cannot be given back without pain.
    pub memory: Option<u64>,
    pub logs: Option<Used>,
    /// What it wrote beside its volumes.
    pub layer: Option<Used>,
}

/// What one pod uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub memory: u64,
    pub processes: u64,
    /// Those on the node's disk.
    pub volumes: Used,
    pub containers: Vec<ContainerUsage>,
}

/// A pod that may have to end.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub pod: Arc<BoundPod>,
    /// `None` where nothing is known.
    pub usage: Option<Usage>,
}

impl Candidate {
    /// What it uses of what `signal` is about. `apart`: images and layers have a disk of their own.
    fn amount(&self, signal: Signal, apart: bool) -> i128 {
        let Some(usage) = &self.usage else { return 0 };
        let count = |of: fn(Used) -> u64| {
            let containers = |of_one: fn(&ContainerUsage) -> Option<Used>| -> i128 {
                usage.containers.iter().filter_map(of_one).map(|used| i128::from(of(used))).sum()
            };
            let beside = containers(|c| c.logs) + i128::from(of(usage.volumes));
            let layers = containers(|c| c.layer);
            match signal {
                Signal::Data | Signal::DataInodes if apart => beside,
                Signal::Images | Signal::ImagesInodes if apart => layers,
                _ => beside + layers,
            }
        };
        match signal {
            Signal::Memory => usage.memory.into(),
            Signal::Pids => usage.processes.into(),
            Signal::Data | Signal::Images => count(|used| used.bytes),
            Signal::DataInodes | Signal::ImagesInodes => count(|used| used.inodes),
        }
    }
}

/// Sorts those first that end first: who uses more than was asked for, then who is less urgent, then who uses
/// most beyond what was asked for. Of whom nothing is known comes before all of the same; process ids are
/// asked for by nobody.
pub fn rank(signal: Signal, apart: bool, candidates: &mut [Candidate]) {
    let resource = signal.resource();
    // As upstream, also inodes are held against the bytes that were asked for.
    let asked = if signal == Signal::Memory { "memory" } else { "ephemeral-storage" };
    let unknown_first = |a: &Candidate, b: &Candidate| a.usage.is_some().cmp(&b.usage.is_some());
    let priority = |c: &Candidate| c.pod.spec().priority.unwrap_or(0);
    let exceeds = |c: &Candidate| c.amount(signal, apart) > request(&c.pod, resource);
    let beyond = |c: &Candidate| c.amount(signal, apart) - request(&c.pod, asked);
    let order = |a: &Candidate, b: &Candidate| -> Ordering {
        let by_priority = priority(a).cmp(&priority(b));
        if signal == Signal::Pids {
            let by_count = b.amount(signal, apart).cmp(&a.amount(signal, apart));
            return by_priority.then_with(|| unknown_first(a, b)).then(by_count);
        }
        unknown_first(a, b)
            .then_with(|| exceeds(b).cmp(&exceeds(a)))
            .then(by_priority)
            .then_with(|| beyond(b).cmp(&beyond(a)))
    };
    // What is equal goes by the uid, so that two looks choose the same.
    candidates.sort_by(|a, b| order(a, b).then_with(|| a.pod.uid.cmp(&b.pod.uid)));
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::json;

    /// `name priority requested used/logs/layer`: bytes of memory and of disk, `-` for nothing known.
    pub fn read(text: &str) -> Candidate {
        let words: Vec<&str> = text.split_whitespace().collect();
        let requests = json!({"memory": words[2], "ephemeral-storage": words[2]});
        let pod = pod(json!({
            "metadata": {"uid": words[0], "name": words[0]},
            "spec": {"priority": words[1].parse::<i64>().expect("a number"),
                "containers": [{"name": "c", "resources": {"requests": requests}}]},
        }));
        let numbers: Vec<u64> = words[3].split('/').filter_map(|n| n.parse().ok()).collect();
        let usage = (!numbers.is_empty()).then(|| {
            let at = |at: usize| numbers.get(at).copied().unwrap_or(0);
            let used = |bytes| Some(Used { bytes, inodes: bytes / 10 });
            let container =
                ContainerUsage { name: "c".into(), memory: Some(at(0)), logs: used(at(1)), layer: used(at(2)) };
            Usage { memory: at(0), processes: at(0), volumes: Used::default(), containers: vec![container] }
        });
        Candidate { pod, usage }
    }

    fn check(signal: Signal, apart: bool, pods: &[&str], want: &str) {
        let mut candidates: Vec<_> = pods.iter().map(|text| read(text)).collect();
        rank(signal, apart, &mut candidates);
        let found: Vec<&str> = candidates.iter().map(|c| c.pod.uid.as_str()).collect();
        assert_eq!(found.join(" "), want, "{signal:?} {apart}: {pods:?}");
    }

    #[test]
    fn memory() {
        let beyond = ["a 0 100 150", "b 0 100 300", "c 0 100 90", "d 0 500 600"];
        check(Signal::Memory, false, &beyond, "b d a c");
        check(Signal::Memory, false, &["a 0 100 50", "b 9 100 101", "c 5 100 900"], "c b a");
        check(Signal::Memory, false, &["a 0 100 50", "b 9 100 -", "c 5 0 900"], "b c a");
        check(Signal::Memory, false, &["b 0 0 1", "a 0 0 1"], "a b");
    }

    #[test]
    fn disk() {
        let pods = ["a 0 100 0/500/10", "b 0 100 0/10/600", "c 0 100 0/80/10"];
        check(Signal::Data, false, &pods, "b a c");
        check(Signal::Images, false, &pods, "b a c");
        check(Signal::Data, true, &pods, "a c b");
        check(Signal::Images, true, &pods, "b a c");
        // Nobody asks for inodes: whoever has some has more.
        check(Signal::DataInodes, false, &["a 0 0 0/500/0", "b 0 0 0/0/0", "c 1 0 0/900/0"], "a c b");
    }

    #[test]
    fn process_ids() {
        check(Signal::Pids, false, &["a 5 0 900", "b 0 0 3", "c 0 0 7", "d 0 0 -"], "d c b a");
    }
}
