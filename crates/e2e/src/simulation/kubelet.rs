//! A kubelet without containers: registers its node, renews its Lease, and walks its pods through
//! their lives after random delays. What "runs" survives the kubelet, as real containers do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::informer::Cached;
use client::{Client, DeleteParams, Error, Informer, Key, Patch, Queue, Resource, lease};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use machinery::meta;
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::clock::{ClockExt, Instant};
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use tokio::sync::Notify;

use super::view::{self, at, number, text};

/// What a pod's containers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// The image is pulled, the sandbox set up.
    Starting {
        until: Instant,
    },
    /// They run; the probe succeeds from then on.
    Running {
        ready: Instant,
    },
    /// They crashed and wait for their next start.
    Crashed {
        until: Instant,
    },
    /// They were told to stop.
    Stopping {
        until: Instant,
    },
    Stopped,
    /// The node had no room for them any more.
    Evicted,
}

struct Containers {
    key: Key,
    doing: Doing,
    restarts: i64,
    address: String,
    ready: bool,
    /// When `ready` changed last.
    changed: Timestamp,
}

#[derive(Default)]
struct Runtime {
    /// By the pod's uid.
    pods: BTreeMap<String, Containers>,
    addresses: u32,
    poked: Vec<Key>,
}

/// A machine: what a kubelet finds again when it restarts.
pub struct Machine {
    pub name: String,
    pub index: usize,
    pub cpu: &'static str,
    pub pods: u32,
    runtime: Mutex<Runtime>,
    poke: Notify,
}

/// What is to be done about a pod now.
enum Step {
    Nothing(Option<Duration>),
    Report(Value, Option<Duration>),
    Remove,
}

impl Machine {
    /// A machine without pods.
    pub fn new(index: usize, cpu: &'static str, pods: u32) -> Self {
        let (runtime, poke) = (Mutex::default(), Notify::new());
        Self { name: format!("node-{index}"), index, cpu, pods, runtime, poke }
    }

    /// Changes what runs from outside: a container fails, the node evicts. True when it ran.
    fn disturb(&self, uid: &str, doing: Doing) -> bool {
        let mut runtime = self.runtime.lock();
        let Some(containers) = runtime.pods.get_mut(uid) else { return false };
        if !matches!(containers.doing, Doing::Running { .. }) {
            return false;
        }
        containers.doing = doing;
        let key = containers.key.clone();
        runtime.poked.push(key);
        drop(runtime);
        self.poke.notify_one();
        true
    }

    /// The pod's container ends with a failure and starts again at `until`.
    pub fn crash(&self, uid: &str, until: Instant) -> bool {
        self.disturb(uid, Doing::Crashed { until })
    }

    /// The pod is ended for good.
    pub fn evict(&self, uid: &str) -> bool {
        self.disturb(uid, Doing::Evicted)
    }

    fn step(&self, key: &Key, pod: Option<&Cached<Value>>, clock: &SharedClock, rng: &Rng) -> Step {
        let (now, wall) = (clock.now(), clock.wall());
        let mut runtime = self.runtime.lock();
        let uid = pod.map(|p| p.meta.uid.clone()).unwrap_or_default();
        runtime.pods.retain(|other, containers| containers.key != *key || *other == uid);
        let Some(pod) = pod else { return Step::Nothing(None) };
        let after = |limit: Duration| now + limit.mul_f64(rng.unit());
        if !runtime.pods.contains_key(&uid) {
            if view::is_terminal(&pod.view) {
                return if pod.meta.is_deleting() { Step::Remove } else { Step::Nothing(None) };
            }
            runtime.addresses += 1;
            let address = format!("10.244.{}.{}", self.index, runtime.addresses);
            let doing = Doing::Starting { until: after(Duration::from_secs(4)) };
            let containers = Containers { key: key.clone(), doing, restarts: 0, address, ready: false, changed: wall };
            runtime.pods.insert(uid.clone(), containers);
        }
        let Some(containers) = runtime.pods.get_mut(&uid) else { return Step::Nothing(None) };
        let is_over = matches!(containers.doing, Doing::Stopping { .. } | Doing::Stopped | Doing::Evicted);
        if pod.meta.is_deleting() && !is_over {
            let grace = u64::try_from(pod.meta.deletion_grace_period_seconds.unwrap_or(30)).unwrap_or_default();
            containers.doing = Doing::Stopping { until: after(Duration::from_secs(grace.min(8))) };
        }
        // What is due happens, one thing after the other.
        let next = loop {
            let (due, then) = match containers.doing {
                Doing::Starting { until } => (until, Doing::Running { ready: after(Duration::from_secs(3)) }),
                Doing::Crashed { until } => (until, Doing::Running { ready: after(Duration::from_secs(3)) }),
                Doing::Stopping { until } => (until, Doing::Stopped),
                Doing::Running { ready } if now < ready => break Some(ready),
                Doing::Running { .. } | Doing::Stopped | Doing::Evicted => break None,
            };
            if now < due {
                break Some(due);
            }
            if matches!(containers.doing, Doing::Crashed { .. }) {
                containers.restarts += 1;
            }
            containers.doing = then;
        };
        let ready = matches!(containers.doing, Doing::Running { ready } if now >= ready);
        if ready != containers.ready {
            (containers.ready, containers.changed) = (ready, wall);
        }
        if pod.meta.is_deleting() && matches!(containers.doing, Doing::Stopped | Doing::Evicted) {
            return Step::Remove;
        }
        let wait = next.map(|at| at.since(now));
        match report(containers, &pod.view, wall) {
            Some(status) => Step::Report(json!({"metadata": {"uid": uid}, "status": status}), wait),
            None => Step::Nothing(wait),
        }
    }
}

/// The pod's status, when it is not what the server has.
fn report(containers: &Containers, pod: &Value, now: Timestamp) -> Option<Value> {
    let phase = match containers.doing {
        Doing::Starting { .. } => "Pending",
        Doing::Evicted => "Failed",
        Doing::Running { .. } | Doing::Crashed { .. } | Doing::Stopping { .. } | Doing::Stopped => "Running",
    };
    let address = if phase == "Pending" { "" } else { &containers.address };
    let told = |pointer: &str| text(pod, pointer);
    let is_known = told("/status/phase") == phase
        && told("/status/podIP") == address
        && view::has_condition(pod, "Ready") == containers.ready
        && at(pod, "/status/startTime").is_string()
        && number(pod, "/status/containerStatuses/0/restartCount") == containers.restarts;
    if is_known || view::is_terminal(pod) {
        return None;
    }
    let stamp = machinery::time::rfc3339(containers.changed);
    let condition = |kind: &str, is_true: bool| json!({"type": kind, "status": if is_true { "True" } else { "False" }, "lastTransitionTime": stamp});
    let container = json!({
        "name": text(pod, "/spec/containers/0/name"), "image": text(pod, "/spec/containers/0/image"), "imageID": "",
        "ready": containers.ready, "restartCount": containers.restarts,
    });
    let mut status = json!({
        "phase": phase,
        "conditions": [condition("Ready", containers.ready), condition("ContainersReady", containers.ready)],
        "containerStatuses": [container],
    });
    if told("/status/startTime").is_empty() {
        status["startTime"] = json!(machinery::time::rfc3339(now));
    }
    if !address.is_empty() {
        status["podIP"] = json!(address);
        status["podIPs"] = json!([{"ip": address}]);
    }
    if phase == "Failed" {
        status["reason"] = json!("Evicted");
    }
    Some(status)
}

/// Runs a kubelet on a machine until the stage stops.
pub fn start(client: Client, machine: Arc<Machine>, clock: SharedClock, rng: Rng, stage: &Stage) {
    let pods = Informer::<Value>::builder(client.clone(), Resource::of::<Pod>())
        .fields(format!("spec.nodeName={}", machine.name))
        .start(clock.clone(), rng.clone(), stage);
    let queue = Queue::new(clock.clone());
    let changed = queue.clone();
    pods.subscribe(move |change| {
        changed.add(change.object().meta.key());
    });
    let options = controller::Options {
        name: "kubelet",
        workers: 4,
        clock: clock.clone(),
        rng: rng.clone(),
        metrics: Default::default(),
    };
    let worker = Worker {
        client: client.clone(),
        machine: machine.clone(),
        pods: pods.clone(),
        clock: clock.clone(),
        rng: rng.clone(),
    };
    controller::run(options, queue.clone(), Arc::new(worker), pods.synced(), stage);
    let (poked, own) = (machine.clone(), stage.clone());
    stage.spawn(async move {
        loop {
            for key in std::mem::take(&mut poked.runtime.lock().poked) {
                queue.add(key);
            }
            tokio::select! {
                () = poked.poke.notified() => {}
                () = own.stopped() => return,
            }
        }
    });
    let own = stage.clone();
    stage.spawn(async move {
        tokio::select! {
            () = live(client, machine, clock, rng) => {}
            () = own.stopped() => {}
        }
    });
}

struct Worker {
    client: Client,
    machine: Arc<Machine>,
    pods: Informer<Value>,
    clock: SharedClock,
    rng: Rng,
}

#[async_trait]
impl Reconcile for Worker {
    type Key = Key;

    async fn reconcile(&self, key: &Key, pass: &Pass) -> Result<Next, Error> {
        let pod = self.pods.get(key);
        let api = self.client.dynamic(Resource::of::<Pod>()).namespace(&key.namespace);
        let wait = match self.machine.step(key, pod.as_deref(), &self.clock, &self.rng) {
            Step::Nothing(wait) => wait,
            Step::Report(patch, wait) => {
                match api.patch_status(&key.name, &Patch::Strategic(patch)).await {
                    Ok(written) => pass.hold(self.pods.reached(meta::revision(&written).unwrap_or(0))),
                    // None any more: the cache will say so.
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
                wait
            }
            Step::Remove => {
                let uid = pod.map(|p| p.meta.uid.clone()).unwrap_or_default();
                match api.delete(&key.name, &DeleteParams::of_uid(uid).grace(0)).await {
                    Ok(_) => {}
                    Err(error) if error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
                None
            }
        };
        Ok(wait.map_or(Next::Done, Next::After))
    }
}

/// Registers the node, then keeps it and its Lease fresh.
async fn live(client: Client, machine: Arc<Machine>, clock: SharedClock, rng: Rng) {
    let api = client.dynamic(Resource::of::<Node>());
    let mut lease: Option<futures::future::BoxFuture<'static, ()>> = None;
    loop {
        let wait = match register(&api, &machine, &clock).await {
            Ok(uid) => {
                if lease.is_none() {
                    let owner = OwnerReference {
                        api_version: "v1".into(),
                        kind: "Node".into(),
                        name: machine.name.clone(),
                        uid,
                        ..OwnerReference::default()
                    };
                    let renewal =
                        lease::Renewal::node(client.clone(), &machine.name, Some(owner), clock.clone(), rng.clone());
                    lease = Some(Box::pin(renewal.run()));
                }
                Duration::from_secs(60)
            }
            Err(_) => Duration::from_secs(1),
        };
        let sleep = clock.sleep(wait);
        match &mut lease {
            None => sleep.await,
            Some(renewal) => tokio::select! {
                () = sleep => {}
                () = renewal => lease = None,
            },
        }
    }
}

async fn register(api: &client::Api<Value>, machine: &Machine, clock: &SharedClock) -> Result<String, Error> {
    let now = machinery::time::rfc3339(clock.wall());
    let node = match api.find(&machine.name).await? {
        Some(node) => node,
        None => {
            let amounts = json!({"cpu": machine.cpu, "memory": "8Gi", "pods": machine.pods.to_string()});
            let node = json!({
                "metadata": {"name": machine.name, "labels": {"kubernetes.io/hostname": machine.name}},
                "status": {"capacity": amounts, "allocatable": amounts},
            });
            api.create(&node).await?
        }
    };
    let was_ready = view::has_condition(&node, "Ready");
    let mut ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": now});
    if !was_ready {
        ready["lastTransitionTime"] = json!(now);
    }
    let patch = json!({"status": {"conditions": [ready]}});
    let node = api.patch_status(&machine.name, &Patch::Strategic(patch)).await?;
    Ok(meta::uid(&node).to_owned())
}
