//! A control plane in one process, over lines that may be bad, with a stand-in for nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apiserver::{ApiServer, Config, authn};
use client::{Client, DeleteParams, ListParams, Patch, Propagation, Resource};
use controllers::{Identities, Options};
use jiff::Timestamp;
use kinds::User;
use serde_json::{Value, json};
use stdx::clock::{Clock, ManualClock};
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use transport::{Handler, Request, Responding, SharedHandler};

/// Clients of the server in this process, each under its own identity, perhaps over a bad line.
struct InProcess(Arc<ApiServer>, Option<Faults>);

/// A line that loses requests and answers, ends watches and answers for the server, by a seed.
#[derive(Clone)]
pub struct Faults {
    pub rng: Rng,
    /// Of a thousand requests, so many go wrong in each way.
    pub rate: Arc<AtomicU64>,
}

struct BadLine {
    inner: SharedHandler,
    faults: Faults,
}

impl Handler for BadLine {
    fn call(&self, request: Request) -> Responding {
        let (faults, inner) = (self.faults.clone(), self.inner.clone());
        Box::pin(async move {
            let hits = || faults.rng.below(1000) < faults.rate.load(Ordering::Relaxed);
            let is_write = request.method() != http::Method::GET;
            let is_watch = request.uri().query().is_some_and(|q| q.contains("watch=1"));
            if hits() {
                return Err(transport::Error::Connect("lost on the way there".into()));
            }
            if hits() {
                let status = match faults.rng.below(3) {
                    0 if is_write => machinery::status::Status::new(409, "Conflict", "scripted"),
                    1 => machinery::status::Status::too_many_requests("scripted", 1),
                    _ => machinery::status::Status::unavailable("scripted"),
                };
                let mut response = http::Response::new(transport::full(status.to_value().to_string()));
                *response.status_mut() = http::StatusCode::from_u16(status.code).expect("a code");
                return Ok(response);
            }
            let response = inner.call(request).await?;
            if is_write && hits() {
                return Err(transport::Error::Broken("lost on the way back".into()));
            }
            if is_watch && hits() {
                let frames = usize::try_from(faults.rng.below(6)).unwrap_or(0);
                let (parts, body) = response.into_parts();
                let body = http_body_util::BodyDataStream::new(body);
                return Ok(http::Response::from_parts(
                    parts,
                    transport::stream(futures::StreamExt::take(body, frames)),
                ));
            }
            Ok(response)
        })
    }
}

impl InProcess {
    fn line(&self, who: User) -> SharedHandler {
        let inner = self.0.handler(who);
        match &self.1 {
            Some(faults) => Arc::new(BadLine { inner, faults: faults.clone() }),
            None => inner,
        }
    }
}

fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..User::default() }
}

impl Identities for InProcess {
    fn component(&self) -> Client {
        let who = user("system:kube-controller-manager", &["system:authenticated"]);
        Client::new(self.line(who), "kube-controller-manager")
    }

    fn service_account(&self, name: &str) -> Client {
        let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
        let who = user(&format!("system:serviceaccount:kube-system:{name}"), &groups);
        Client::new(self.line(who), name)
    }
}

pub struct World {
    pub clock: ManualClock,
    pub stage: Stage,
    pub root: Client,
    pub api: Arc<ApiServer>,
    /// Play the kubelet of `n1`?
    pub kubelet: bool,
    /// Images that never become ready.
    pub broken: Vec<&'static str>,
    pub faults: Option<Faults>,
    pub controllers: Stage,
}

pub fn resource(plural: &str) -> Resource {
    match plural {
        "deployments" => Resource::new("apps", "v1", plural, "Deployment", true),
        "replicasets" => Resource::new("apps", "v1", plural, "ReplicaSet", true),
        "endpointslices" => Resource::new("discovery.k8s.io", "v1", plural, "EndpointSlice", true),
        "jobs" => Resource::new("batch", "v1", plural, "Job", true),
        "poddisruptionbudgets" => Resource::new("policy", "v1", plural, "PodDisruptionBudget", true),
        "servicecidrs" => Resource::new("networking.k8s.io", "v1", plural, "ServiceCIDR", false),
        "leases" => Resource::new("coordination.k8s.io", "v1", plural, "Lease", true),
        "nodes" => Resource::new("", "v1", plural, "Node", false),
        "namespaces" => Resource::new("", "v1", plural, "Namespace", false),
        _ => Resource::new("", "v1", plural, "", true),
    }
}

impl World {
    pub async fn start() -> Self {
        Self::start_over(None).await
    }

    pub async fn start_over(faults: Option<Faults>) -> Self {
        let clock = ManualClock::new(Timestamp::from_second(1_800_000_000).expect("in range"));
        let shared: SharedClock = Arc::new(clock.clone());
        let stage = Stage::new();
        let key = pki::SigningKey::generate().expect("a key");
        let key = Arc::new(pki::SigningKey::from_pem(&key).expect("a key"));
        let accounts = authn::service_account::Options::standard("cluster.local", key);
        let store = Arc::new(storage::Memory::new(shared.clone()));
        let config = Config::new(store, shared.clone(), Rng::seeded(1), accounts);
        let api = {
            let starting = ApiServer::start(config, &stage);
            tokio::pin!(starting);
            loop {
                tokio::select! {
                    biased;
                    api = &mut starting => break api.expect("starts"),
                    () = settle() => clock.advance(Duration::from_millis(10)),
                }
            }
        };
        let root = Client::new(api.handler(user("root", &["system:masters", "system:authenticated"])), "test");
        let world =
            Self { clock, stage, root, api, kubelet: true, broken: Vec::new(), faults, controllers: Stage::new() };
        world.control(2, &world.controllers);
        if world.get("namespaces", "", "default").await.is_none() {
            let made = world.create("namespaces", "", &json!({"metadata": {"name": "default"}})).await;
            assert_eq!(made["status"]["phase"], "Active");
        }
        world
            .until("the default ServiceAccount", async |w| {
                w.get("serviceaccounts", "default", "default").await.is_some()
            })
            .await;
        world
            .create("nodes", "", &json!({"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z"}}}))
            .await;
        world.beat().await;
        world
    }

    /// Starts controllers.
    pub fn control(&self, seed: u64, stage: &Stage) {
        let options = Options { root_ca_pem: "CA".into(), ..Options::default() };
        let identities = Arc::new(InProcess(self.api.clone(), self.faults.clone()));
        let clock: SharedClock = Arc::new(self.clock.clone());
        controllers::run(identities, clock, Rng::seeded(seed), options, stage);
    }

    pub async fn create(&self, plural: &str, namespace: &str, object: &Value) -> Value {
        let made = self.root.dynamic(resource(plural)).namespace(namespace).create(object).await;
        made.unwrap_or_else(|e| panic!("creating in {plural}: {e}\n{object}"))
    }

    pub async fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.root.dynamic(resource(plural)).namespace(namespace).find(name).await.expect("readable")
    }

    pub async fn list(&self, plural: &str, namespace: &str) -> Vec<Value> {
        self.root.dynamic(resource(plural)).namespace(namespace).list(&ListParams::all()).await.expect("listable").items
    }

    pub async fn merge(&self, plural: &str, name: &str, change: Value) {
        let api = self.root.dynamic(resource(plural)).namespace("default");
        api.patch(name, &Patch::Merge(change)).await.unwrap_or_else(|e| panic!("patching {name}: {e}"));
    }

    pub async fn delete(&self, plural: &str, name: &str, propagation: Propagation) {
        let params = DeleteParams::default().propagation(propagation);
        let api = self.root.dynamic(resource(plural)).namespace("default");
        api.delete(name, &params).await.unwrap_or_else(|e| panic!("deleting {name}: {e}"));
    }

    /// The node speaks: its Lease and its conditions.
    pub async fn beat(&self) {
        let now = machinery::time::rfc3339_micro(self.clock.wall());
        let lease = json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 40, "renewTime": now}});
        let leases = self.root.dynamic(resource("leases")).namespace("kube-node-lease");
        if leases.find("n1").await.expect("readable").is_some() {
            leases.patch("n1", &Patch::Merge(lease)).await.expect("renewed");
        } else {
            leases.create(&lease).await.expect("made");
        }
        let node = self.get("nodes", "", "n1").await.expect("there");
        let is_ready = node["status"]["conditions"]
            .as_array()
            .is_some_and(|c| c.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"));
        if !is_ready {
            let now = machinery::time::rfc3339(self.clock.wall());
            let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "Kubelet", "lastHeartbeatTime": now, "lastTransitionTime": now});
            let status = json!({"status": {"conditions": [condition("MemoryPressure", "False"), condition("DiskPressure", "False"), condition("PIDPressure", "False"), condition("Ready", "True")]}});
            self.root.dynamic(resource("nodes")).patch_status("n1", &Patch::Strategic(status)).await.expect("said");
        }
    }

    /// Binds pods, starts them, ends those that are being deleted.
    pub async fn play(&self) {
        for pod in self.root.dynamic(resource("pods")).list(&ListParams::all()).await.expect("listable").items {
            let name = machinery::meta::name(&pod);
            let api = self.root.dynamic(resource("pods")).namespace(machinery::meta::namespace(&pod));
            if machinery::meta::is_deleting(&pod) {
                let params = DeleteParams::of_uid(machinery::meta::uid(&pod)).grace(0);
                let _gone = api.delete(name, &params).await;
            } else if pod.pointer("/spec/nodeName").and_then(Value::as_str).is_none() {
                let binding = json!({"kind": "Binding", "apiVersion": "v1", "metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}});
                api.create_subresource(name, "binding", &binding).await.expect("bound");
            } else if pod.pointer("/status/podIP").is_none() {
                let image = pod["spec"]["containers"][0]["image"].as_str().unwrap_or("").to_owned();
                let ready = if self.broken.contains(&image.as_str()) { "False" } else { "True" };
                let number: u32 =
                    machinery::meta::uid(&pod).bytes().fold(7, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
                let ip = format!("10.244.0.{}", number % 250 + 1);
                let now = machinery::time::rfc3339(self.clock.wall());
                let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                    "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": now}]}});
                let _raced = api.patch_status(name, &Patch::Strategic(status)).await;
            }
        }
    }

    pub async fn step(&self) {
        settle().await;
        if self.kubelet {
            self.play().await;
        }
        settle().await;
        self.clock.advance(Duration::from_millis(20));
    }

    pub async fn until(&self, what: &str, done: impl AsyncFn(&Self) -> bool) {
        // A busy machine gets less done in a step: half a minute of real time is given in any case.
        let real = stdx::clock::RealClock::shared();
        let (mut steps, limit) = (0, real.now() + Duration::from_secs(30));
        while steps < 600 || real.now() < limit {
            if done(self).await {
                return;
            }
            self.step().await;
            steps += 1;
        }
        let mut seen = String::new();
        for plural in ["deployments", "replicasets", "pods", "events"] {
            for object in self.list(plural, "default").await {
                let (name, status) = (machinery::meta::name(&object), &object["status"]);
                seen += &format!("{plural} {name} {status} {}\n", object["message"]);
            }
        }
        panic!("never: {what}\n{seen}");
    }

    pub async fn pass(&self, time: Duration) {
        for _ in 0..time.as_secs() / 5 {
            if self.kubelet {
                self.beat().await;
            }
            self.step().await;
            self.clock.advance(Duration::from_secs(5));
        }
        self.step().await;
    }

    /// `image=count` of pods that are ready, and the sizes of the ReplicaSets by revision.
    pub async fn pods(&self) -> BTreeMap<String, usize> {
        let mut images = BTreeMap::new();
        for pod in self.list("pods", "default").await {
            if !machinery::meta::is_deleting(&pod) {
                *images.entry(pod["spec"]["containers"][0]["image"].as_str().unwrap_or("").to_owned()).or_default() +=
                    1;
            }
        }
        images
    }

    pub async fn is_rolled_out(&self, image: &str, replicas: i64) -> bool {
        let Some(d) = self.get("deployments", "default", "web").await else { return false };
        let status = |key: &str| d["status"][key].as_i64().unwrap_or(0);
        let complete = [status("replicas"), status("updatedReplicas"), status("availableReplicas")] == [replicas; 3]
            && status("observedGeneration") == d["metadata"]["generation"].as_i64().unwrap_or(-1);
        complete && self.pods().await == BTreeMap::from([(image.to_owned(), usize::try_from(replicas).unwrap_or(0))])
    }

    pub async fn events(&self) -> Vec<String> {
        let mut events = self.list("events", "default").await;
        events.sort_by_key(machinery::meta::revision);
        events
            .iter()
            .map(|e| format!("{} {} {}", e["involvedObject"]["kind"], e["reason"], e["message"]).replace('"', ""))
            .collect()
    }
}

/// Lets every task run until none has anything to do (or long enough).
pub async fn settle() {
    for _ in 0..400 {
        tokio::task::yield_now().await;
    }
}
