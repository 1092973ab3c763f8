//! Gathering from a machine of files.

use std::time::Duration;

use serde_json::json;
use stdx::clock::ManualClock;

use super::numbers::tests::{version_1_at, write};
use super::*;
use crate::runtime::{ContainerState, Sandbox};

/// A machine with one pod of two containers, of which one runs.
pub struct Bench {
    pub dir: tempfile::TempDir,
    pub clock: ManualClock,
    pub stats: Stats,
    pub view: View,
}

const POD: &str = "/kubepods/besteffort/podu-1";

impl Bench {
    pub fn new(host_network: bool) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let clock = ManualClock::new(Timestamp::from_second(1_800_000_000).expect("a time"));
        let cgroups = Cgroups::new(version_1_at(&dir.path().join("cg")), "");
        let stats = Stats::new("n1", dir.path(), Some(cgroups), Arc::new(clock.clone()));
        let pod = crate::pod::tests::pod(json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u-1"},
            "spec": {"hostNetwork": host_network, "containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "i"}]},
        }));
        let mut running = crate::runtime::fake::container(&pod.containers()[0], "s", ContainerState::Running, 0);
        running.id = "cid".into();
        running.started_at = Timestamp::from_second(1_799_999_999).ok();
        let ended = crate::runtime::fake::container(&pod.containers()[1], "s", ContainerState::Exited, 0);
        let sandbox = Sandbox {
            id: "sid".into(),
            attempt: 0,
            ready: true,
            created_at: Timestamp::from_second(1_799_999_990).expect("a time"),
            ips: Vec::new(),
            host_network,
        };
        let seen = PodState { sandboxes: vec![sandbox], containers: vec![running, ended] };
        let view = View { pod, seen: Arc::new(seen), status: Arc::default(), looked: true, cleaned: false };
        let bench = Self { dir, clock, stats, view };
        bench.use_up(1_000_000_000, 100);
        let net = bench.dir.path().join("proc/77/net");
        std::fs::create_dir_all(&net).expect("made");
        std::fs::write(net.join("dev"), "h\nh\neth0: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n").expect("written");
        bench
    }

    /// So much processor time was used by the container and, in ticks, by the machine.
    pub fn use_up(&self, nanos: u64, ticks: u64) {
        let root = self.dir.path();
        machine::tests::write(root, ticks);
        let at = root.join("cg");
        for (cgroup, nanos) in [(POD.to_owned(), nanos + 5), (format!("{POD}/cid"), nanos), (format!("{POD}/sid"), 5)] {
            write(&at, "cpu,cpuacct", &cgroup, &[("cpuacct.usage", &format!("{nanos}\n"))]);
            let memory =
                [("memory.usage_in_bytes", "4096\n"), ("memory.stat", "total_rss 1024\ntotal_inactive_file 96\n")];
            write(&at, "memory", &cgroup, &memory);
            write(&at, "pids", &cgroup, &[("pids.current", "3\n")]);
        }
        write(&at, "memory", &format!("{POD}/sid"), &[("cgroup.procs", "77\n")]);
        write(&at, "cpu,cpuacct", "/kubepods", &[("cpuacct.usage", "9\n")]);
    }

    pub async fn gather(&self, detail: Detail) -> Arc<Gathered> {
        self.stats.gather(vec![self.view.clone()], detail).await.expect("gathered")
    }
}

#[tokio::test]
async fn a_cgroup_is_read_once_a_second_and_its_rate_is_the_difference() {
    let bench = Bench::new(false);
    let first = bench.gather(Detail::Usage).await;
    assert_eq!((first.pods[0].containers.len(), first.pods[0].containers[0].measured.rate), (1, None));
    bench.use_up(1_500_000_000, 300);
    bench.clock.advance(Duration::from_millis(500));
    assert!(Arc::ptr_eq(&first, &bench.gather(Detail::Usage).await), "what is fresh is not read again");
    // More detail is read at once, and has no rate over so little time.
    let all = bench.gather(Detail::All).await;
    assert_eq!((all.pods[0].containers[0].measured.rate, all.pods[0].sandbox.is_some()), (None, true));
    bench.use_up(2_500_000_000, 500);
    bench.clock.advance(Duration::from_secs(2));
    let third = bench.gather(Detail::Usage).await;
    assert_eq!(third.pods[0].containers[0].measured.rate, Some(500_000_000));
    assert_eq!(third.node.rate, Some(1_000_000_000));
    // A pod that is gone leaves nothing.
    bench.clock.advance(Duration::from_secs(2));
    let none = bench.stats.gather(Vec::new(), Detail::Usage).await.expect("gathered");
    assert!(none.pods.is_empty() && none.used().len() == 2);
}

#[tokio::test]
async fn a_base_of_long_ago_is_none() {
    let bench = Bench::new(false);
    bench.gather(Detail::Usage).await;
    bench.use_up(9_000_000_000, 300);
    bench.clock.advance(LONGEST);
    assert_eq!(bench.gather(Detail::Usage).await.pods[0].containers[0].measured.rate, None);
    bench.use_up(10_000_000_000, 500);
    bench.clock.advance(Duration::from_secs(10));
    assert_eq!(bench.gather(Detail::Usage).await.pods[0].containers[0].measured.rate, Some(100_000_000));
}

#[tokio::test]
async fn the_network_is_the_pods_own() {
    let own = Bench::new(false).gather(Detail::Usage).await;
    let interfaces = own.pods[0].interfaces.as_ref().expect("interfaces");
    assert_eq!((interfaces[0].name.as_str(), interfaces[0].sent.bytes), ("eth0", 20));
    assert_eq!(Bench::new(true).gather(Detail::Usage).await.pods[0].interfaces, None);
}

#[tokio::test]
async fn the_summary() {
    let bench = Bench::new(false);
    bench.gather(Detail::Usage).await;
    bench.use_up(3_000_000_000, 300);
    bench.clock.advance(Duration::from_secs(2));
    let gathered = bench.gather(Detail::Usage).await;
    let used = |bytes| disk::Used { bytes, inodes: 1 };
    let of = crate::node::facts::Disk { capacity: 100, available: 60, inodes: 10, inodes_free: 4 };
    let volume = |name: &str, claim: Option<&str>, ephemeral| disk::Volume {
        name: name.into(),
        claim: claim.map(str::to_owned),
        used: used(7),
        of,
        ephemeral,
    };
    let layer = crate::runtime::Layer { pod: "u-1".into(), bytes: 5, inodes: 1 };
    let pod = disk::PodDisk {
        at: gathered.at,
        volumes: vec![volume("e", None, true), volume("v", Some("claim"), false)],
        logs: [("c".to_owned(), used(3))].into(),
        layers: [("cid".to_owned(), layer)].into(),
        whole: true,
    };
    let disks = summary::Disks {
        pods: [("u-1".to_owned(), Arc::new(pod))].into(),
        node: Some(of),
        images: Some((used(50), of)),
    };
    let found = summary::render("n1", &gathered, Some(&disks));
    let at = "2027-01-15T08:00:02Z";
    let node = &found["node"];
    assert_eq!((node["nodeName"].as_str(), node["startTime"].as_str()), (Some("n1"), Some("2023-11-14T22:13:20Z")));
    assert_eq!(node["cpu"]["usageCoreNanoSeconds"], 4_000_000_000_u64);
    assert_eq!(node["cpu"]["psi"]["some"]["total"], 5);
    assert_eq!((&node["memory"]["availableBytes"], &node["swap"]["swapUsageBytes"]), (&json!(51_200), &json!(2048)));
    assert_eq!((&node["fs"]["usedBytes"], &node["fs"]["inodesUsed"]), (&json!(40), &json!(6)));
    assert_eq!(node["runtime"]["imageFs"]["usedBytes"], 50);
    assert_eq!(node["rlimit"], json!({"time": at, "maxpid": 100, "curproc": 43}));
    assert_eq!(node["systemContainers"][0]["name"], "pods");
    let pod = &found["pods"][0];
    assert_eq!(pod["podRef"], json!({"name": "p", "namespace": "ns", "uid": "u-1"}));
    assert_eq!(pod["startTime"], "2027-01-15T07:59:50Z");
    assert_eq!(pod["process_stats"]["process_count"], 3);
    assert_eq!((&pod["network"]["name"], &pod["network"]["rxBytes"]), (&json!("eth0"), &json!(10)));
    assert_eq!(pod["ephemeral-storage"]["usedBytes"], 7 + 3 + 5);
    assert_eq!((&pod["volume"][1]["name"], &pod["volume"][1]["pvcRef"]["name"]), (&json!("v"), &json!("claim")));
    let container = &pod["containers"][0];
    assert_eq!(
        container["cpu"],
        json!({"time": at, "usageCoreNanoSeconds": 3_000_000_000_u64, "usageNanoCores": 1_000_000_000})
    );
    assert_eq!(container["memory"]["workingSetBytes"], 4000);
    assert_eq!(container["memory"].get("availableBytes"), None, "there is no limit");
    assert_eq!((&container["rootfs"]["usedBytes"], &container["logs"]["usedBytes"]), (&json!(5), &json!(3)));
    let less = summary::render("n1", &gathered, None);
    let of = |value: &serde_json::Value| value.as_object().map(|o| o.keys().cloned().collect::<Vec<_>>());
    let usage = ["containers", "cpu", "memory", "podRef", "startTime", "swap"].map(str::to_owned).to_vec();
    assert_eq!(of(&less["pods"][0]), Some(usage));
}
