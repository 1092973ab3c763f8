//! The loop against an API server in memory and a kernel that takes its time.

use std::collections::VecDeque;

use api::types::core::v1 as core;
use client::fake::Fake;
use jiff::Timestamp;
use net::nft::{Error, Kernel};
use net::ruleset::Family;
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::Clock;
use stdx::clock::ManualClock;
use stdx::metrics::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot};

use super::*;
use crate::gate::Record;

/// A transaction, and where its answer is waited for.
type Asked = (String, oneshot::Sender<Result<(), Error>>);

/// Transactions stay with the test until it answers them.
#[derive(Default)]
struct Slow {
    asked: Mutex<VecDeque<Asked>>,
    drift: Notify,
}

#[async_trait::async_trait]
impl Kernel for Slow {
    async fn apply(&self, transaction: &str) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.asked.lock().push_back((transaction.to_owned(), answer));
        answered.await.unwrap_or(Ok(()))
    }

    async fn check(&self, _: &str) -> Result<(), Error> {
        Err(Error::Refused("nothing is checked here".into()))
    }

    async fn sets(&self, _: Family) -> Result<String, Error> {
        Ok(String::new())
    }

    async fn changed(&self, tables: &[&str]) -> std::io::Result<()> {
        assert_eq!(tables, ["pintle-policy"]);
        self.drift.notified().await;
        Ok(())
    }
}

/// The answer, once more.
fn asked<T: Clone>(answer: &Mutex<(Option<T>, u32)>) -> Option<T> {
    let mut answer = answer.lock();
    answer.1 += 1;
    answer.0.clone()
}

struct Bench {
    fake: Fake,
    client: Client,
    clock: ManualClock,
    kernel: Arc<Slow>,
    registry: Registry,
    stage: Stage,
    folder: tempfile::TempDir,
    /// What the plugin remembers, while it can be read, and how often it was asked.
    sandboxes: Arc<Mutex<(Option<BTreeSet<String>>, u32)>>,
    /// What rules do not see, and how often that was asked.
    unseen: Arc<Mutex<(Option<String>, u32)>>,
}

const ADD: &str =
    r#"{"op":"add","containerID":"c1","namespace":"n","name":"p","uid":"UID","addresses":["10.244.0.7"]}"#;
const DEL: &str = r#"{"op":"del","containerID":"c1","namespace":"n","name":"p"}"#;

impl Bench {
    async fn start() -> Self {
        Self::with(Vec::new()).await
    }

    /// Started where the plugin remembers this; the first load is over.
    async fn with(records: Vec<Record>) -> Self {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let shared: SharedClock = Arc::new(clock.clone());
        let resources = vec![
            Resource::of::<core::Pod>(),
            Resource::of::<core::Namespace>(),
            Resource::of::<core::Event>(),
            Resource::of::<NetworkPolicy>(),
            client::waits::resource(),
        ];
        let fake = Fake::new(resources, shared.clone(), Rng::seeded(1));
        let (client, kernel, stage) = (Client::new(fake.handler(), "test"), Arc::new(Slow::default()), Stage::new());
        let (registry, folder) = (Registry::default(), tempfile::tempdir().expect("a folder"));
        let (sandboxes, unseen) = (Arc::new(Mutex::new((None, 0))), Arc::new(Mutex::new((None, 0))));
        let (own_sandboxes, own_unseen) = (sandboxes.clone(), unseen.clone());
        let options = Options {
            node_name: "here".into(),
            kernel: kernel.clone(),
            registry: registry.clone(),
            gate: Some(gate::bind(&folder.path().join("gate")).expect("bound")),
            records: Arc::new(move || records.clone()),
            sandboxes: Arc::new(move || {
                let present: Option<BTreeSet<String>> = asked(&own_sandboxes);
                Box::pin(async move { present.ok_or_else(|| std::io::Error::other("a disk")) })
            }),
            unseen: Arc::new(move |_| asked(&own_unseen)),
            names: Vec::new(),
        };
        let (own, inner) = (client.clone(), stage.clone());
        stage.spawn(async move { run(own, shared, Rng::seeded(2), options, &inner).await });
        let bench = Self { fake, client, clock, kernel, registry, stage, folder, sandboxes, unseen };
        bench.answer("delete table ip pintle-policy", Ok(())).await;
        bench
    }

    async fn deny_all(&self, name: &str) {
        let policy = json!({"metadata": {"name": name, "namespace": "n"},
            "spec": {"podSelector": {"matchLabels": {"app": "p"}}, "policyTypes": ["Ingress", "Egress"]}});
        self.client.dynamic(Resource::of::<NetworkPolicy>()).namespace("n").create(&policy).await.expect("made");
    }

    async fn pod(&self, ip: Option<&str>) -> String {
        self.make(json!({}), ip).await
    }

    /// A pod that is like the others but for `more`; its uid.
    async fn make(&self, more: Value, ip: Option<&str>) -> String {
        let mut pod = json!({"metadata": {"name": "p", "namespace": "n", "labels": {"app": "p"}},
            "spec": {"nodeName": "here", "containers": []}, "status": {"phase": "Running", "podIP": ip}});
        for (path, value) in more.as_object().expect("paths") {
            let (parent, name) = path.rsplit_once('/').expect("a path");
            pod.pointer_mut(parent).expect("it is there")[name] = value.clone();
        }
        let made = self.client.dynamic(Resource::of::<core::Pod>()).namespace("n").create(&pod).await.expect("made");
        made.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// Asks at the gate.
    fn ask(&self, text: String) -> tokio::task::JoinHandle<String> {
        let path = self.folder.path().join("gate");
        tokio::spawn(async move {
            let mut stream = UnixStream::connect(path).await.expect("connected");
            stream.write_all(format!("{text}\n").as_bytes()).await.expect("written");
            let mut out = String::new();
            stream.read_to_string(&mut out).await.expect("answered");
            out
        })
    }

    /// Lets tasks run and timers fire until `done` holds.
    async fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..5_000 {
            if done(self) {
                return;
            }
            tokio::task::yield_now().await;
            if let Some(at) = self.clock.next_timer() {
                self.clock.advance(at.since(self.clock.now()).min(Duration::from_millis(20)));
            }
        }
        panic!("never: {what}; waits {:?}", self.waits());
    }

    /// The kernel answers the next transaction, which names `part`.
    async fn answer(&self, part: &str, answer: Result<(), Error>) {
        self.until(part, |b| !b.kernel.asked.lock().is_empty()).await;
        let (text, waits) = self.kernel.asked.lock().pop_front().expect("there is one");
        assert!(text.contains(part), "{part} is not in {text}");
        waits.send(answer).expect("it is waited for");
    }

    /// Everything that is on its way has arrived.
    async fn settle(&self) {
        let revisions = |b: &Self| {
            let page = b.registry.page();
            let shown = |resource: &str, name: &str| {
                let all = b.fake.objects(resource);
                let newest = all.iter().filter_map(|o| o.pointer("/metadata/resourceVersion")?.as_str()?.parse().ok());
                let newest: u64 = newest.max().unwrap_or(0);
                let line = format!("network_policy_programmed_revision{{resource=\"{name}\"}} ");
                let told = page.lines().find_map(|l| l.strip_prefix(&line)?.parse::<f64>().ok());
                told.is_some_and(|told| told >= newest as f64)
            };
            shown("pods", "pods") && shown("networkpolicies.networking.k8s.io", "networkpolicies")
        };
        self.until("everything has arrived", revisions).await;
    }

    /// So many wait at the gate for their pod.
    async fn unknown(&self, count: usize) {
        let line = format!("network_policy_gate_unknown_pods {count}");
        self.until(&line, |b| b.registry.page().lines().any(|l| l == line)).await;
    }

    fn waits(&self) -> Vec<String> {
        let text = |w: &Value, p: &str| w.pointer(p).and_then(Value::as_str).unwrap_or_default().to_owned();
        let line = |w: &Value| {
            let parts = ["/object/kind", "/object/name", "/code", "/text"].map(|p| text(w, p));
            parts.join(" ")
        };
        self.fake.objects("waits.explain.pintle.dev").iter().map(line).collect()
    }
}

#[tokio::test]
async fn rules_are_there_before_a_pods_first_packet() {
    let bench = Bench::start().await;
    bench.deny_all("deny").await;
    let uid = bench.pod(None).await;
    bench.settle().await;
    let asked = bench.ask(ADD.replace("UID", &uid));
    bench.until("the rules", |b| !b.kernel.asked.lock().is_empty()).await;
    assert!(!asked.is_finished(), "the kernel has not answered");
    bench.answer("add element ip pintle-policy ingress-pods { 10.244.0.7 : drop }", Ok(())).await;
    assert_eq!(asked.await.expect("asked"), "{\"ok\":true}\n");
    // The status that tells the same changes nothing.
    bench.fake.change("pods", "n", "p", |pod| pod["status"]["podIP"] = json!("10.244.0.7"));
    bench.settle().await;
    // Whoever takes the object away does not free the pod: its sandbox is still there.
    let at_once = client::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    let pods = bench.client.dynamic(Resource::of::<core::Pod>()).namespace("n");
    pods.delete("p", &at_once).await.expect("deleted");
    bench.settle().await;
    assert!(bench.kernel.asked.lock().is_empty());
    let asked = bench.ask(DEL.into());
    bench.answer("delete element ip pintle-policy ingress-pods { 10.244.0.7 }", Ok(())).await;
    assert_eq!(asked.await.expect("asked"), "{\"ok\":true}\n");
    bench.stage.stop();
}

#[tokio::test]
async fn a_pod_that_nothing_selects_costs_no_transaction() {
    let bench = Bench::start().await;
    let uid = bench.pod(None).await;
    bench.settle().await;
    assert_eq!(bench.ask(ADD.replace("UID", &uid)).await.expect("asked"), "{\"ok\":true}\n");
    assert!(bench.kernel.asked.lock().is_empty());
    bench.stage.stop();
}

#[tokio::test]
async fn a_pod_that_is_not_known_yet_is_waited_for() {
    let bench = Bench::start().await;
    bench.deny_all("deny").await;
    bench.settle().await;
    // A static pod: the runtime knows it by another uid than its mirror has.
    let asked = bench.ask(ADD.replace("UID", "hash"));
    bench.unknown(1).await;
    bench.make(json!({"/metadata/annotations": {"kubernetes.io/config.mirror": "hash"}}), None).await;
    bench.answer("ingress-pods { 10.244.0.7 : drop }", Ok(())).await;
    assert_eq!(asked.await.expect("asked"), "{\"ok\":true}\n");
    bench.unknown(0).await;
    // Of another pod's sandbox nothing is said until its time is over.
    let asked = bench.ask(ADD.replace("UID", "another").replace("c1", "c2"));
    bench.until("it is over", |_| asked.is_finished()).await;
    assert!(asked.await.expect("asked").contains("were not in the kernel in time"));
    bench.stage.stop();
}

#[tokio::test]
async fn what_is_not_bound_here_yet_is_not_let_through() {
    let bench = Bench::start().await;
    bench.deny_all("deny").await;
    let uid = bench.make(json!({"/spec/nodeName": null}), None).await;
    bench.settle().await;
    let asked = bench.ask(ADD.replace("UID", &uid));
    // The runtime's word counts at once, and who asked waits for the API's.
    bench.answer("ingress-pods { 10.244.0.7 : drop }", Ok(())).await;
    bench.unknown(1).await;
    assert!(!asked.is_finished());
    bench.fake.change("pods", "n", "p", |pod| pod["spec"]["nodeName"] = json!("here"));
    bench.unknown(0).await;
    assert_eq!(asked.await.expect("asked"), "{\"ok\":true}\n");
    // What has ended gets no network.
    bench.fake.change("pods", "n", "p", |pod| pod["status"]["phase"] = json!("Failed"));
    bench.settle().await;
    let asked = bench.ask(ADD.replace("c1", "c2").replace("UID", &uid));
    assert_eq!(asked.await.expect("asked"), "{\"error\":\"pod n/p has ended\"}\n");
    bench.stage.stop();
}

#[tokio::test]
async fn what_isolates_a_pod_does_so_until_its_sandbox_is_gone() {
    let bench = Bench::start().await;
    bench.deny_all("deny").await;
    let uid = bench.pod(None).await;
    bench.settle().await;
    let asked = bench.ask(ADD.replace("UID", &uid));
    bench.answer("ingress-pods { 10.244.0.7 : drop }", Ok(())).await;
    assert_eq!(asked.await.expect("asked"), "{\"ok\":true}\n");
    // Its containers may run on although it is said to have ended.
    bench.fake.change("pods", "n", "p", |pod| pod["status"]["phase"] = json!("Failed"));
    bench.settle().await;
    // And although its name is another's, whom nothing isolates.
    let at_once = client::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    let pods = bench.client.dynamic(Resource::of::<core::Pod>()).namespace("n");
    pods.delete("p", &at_once).await.expect("deleted");
    bench.make(json!({"/metadata/labels": {"app": "other"}}), None).await;
    bench.settle().await;
    assert!(bench.kernel.asked.lock().is_empty(), "{:?}", bench.kernel.asked.lock());
    // Policies still find it.
    let change = |policy: &mut Value| policy["spec"]["policyTypes"] = json!(["Egress"]);
    bench.fake.change("networkpolicies.networking.k8s.io", "n", "deny", change);
    bench.answer("delete element ip pintle-policy ingress-pods { 10.244.0.7 }", Ok(())).await;
    bench.settle().await;
    let asked = bench.ask(DEL.into());
    bench.answer("delete element ip pintle-policy egress-pods { 10.244.0.7 }", Ok(())).await;
    assert_eq!(asked.await.expect("asked"), "{\"ok\":true}\n");
    bench.stage.stop();
}

#[tokio::test]
async fn what_is_said_of_another_nodes_pod_frees_none() {
    let bench = Bench::start().await;
    bench.deny_all("deny").await;
    bench.pod(Some("10.244.0.7")).await;
    bench.answer("ingress-pods { 10.244.0.7 : drop }", Ok(())).await;
    bench
        .make(json!({"/metadata/name": "a", "/metadata/labels": {}, "/spec/nodeName": "there"}), Some("10.244.0.7"))
        .await;
    bench.settle().await;
    assert!(bench.kernel.asked.lock().is_empty(), "{:?}", bench.kernel.asked.lock());
    bench.stage.stop();
}

#[tokio::test]
async fn a_kernel_that_refuses_is_an_answer() {
    let bench = Bench::start().await;
    bench.deny_all("deny").await;
    let uid = bench.pod(None).await;
    bench.settle().await;
    let asked = bench.ask(ADD.replace("UID", &uid));
    let no = || Err(Error::Refused("Operation not supported".into()));
    bench.answer("10.244.0.7", no()).await;
    bench.answer("10.244.0.7", no()).await;
    let want = "{\"error\":\"the kernel refused the rules: Operation not supported\"}\n";
    assert_eq!(asked.await.expect("asked"), want);
    bench.answer("delete table ip pintle-policy", Ok(())).await;
    bench.stage.stop();
}

#[tokio::test]
async fn after_a_restart_the_plugins_records_count_until_the_sandbox_is_gone() {
    let record = |container: &str, address: &str| Record {
        container: container.into(),
        namespace: "n".into(),
        name: "p".into(),
        uid: String::new(),
        addresses: vec![address.parse().expect("an address")],
    };
    let bench = Bench::with(vec![record("c1", "10.244.0.7")]).await;
    bench.pod(Some("10.244.0.99")).await;
    bench.settle().await;
    bench.deny_all("deny").await;
    bench.answer("ingress-pods { 10.244.0.7 : drop }", Ok(())).await;
    let asked = bench.ask(DEL.into());
    bench.answer("ingress-pods { 10.244.0.99 : drop }", Ok(())).await;
    assert_eq!(asked.await.expect("asked"), "{\"ok\":true}\n");
    bench.stage.stop();
}

#[tokio::test]
async fn what_somebody_else_changed_is_loaded_again() {
    let bench = Bench::start().await;
    let began = bench.clock.now();
    for _ in 0..10 {
        bench.kernel.drift.notify_one();
        bench.answer("delete table ip pintle-policy", Ok(())).await;
    }
    // However often it happens, pods are never open for long.
    let took = bench.clock.now().since(began);
    assert!(took <= Duration::from_secs(10), "{took:?}");
    bench.stage.stop();
}

#[tokio::test]
async fn rules_the_kernel_does_not_have_are_a_wait_and_refused_ones_an_event() {
    let bench = Bench::start().await;
    bench.pod(Some("10.244.0.7")).await;
    bench.settle().await;
    bench.deny_all("slow").await;
    let wait = "NetworkPolicy slow RulesNotInKernel the kernel does not have this NetworkPolicy's present rules yet";
    bench.until("the Wait", |b| b.waits() == [wait]).await;
    bench.deny_all("next").await;
    bench.until("the second Wait", |b| b.waits().len() == 2).await;
    bench.answer("10.244.0.7", Ok(())).await;
    bench.until("both are over", |b| b.waits().is_empty()).await;
    let open = |policy: &mut Value| policy["spec"]["ingress"] = json!([{"ports": [{"port": 666}]}]);
    bench.fake.change("networkpolicies.networking.k8s.io", "n", "next", open);
    for _ in 0..2 {
        bench.answer("dport 666", Err(Error::Refused("no".into()))).await;
    }
    // Closed it is what it was: nothing is sent.
    bench
        .until("it is told", |b| {
            b.waits() == ["NetworkPolicy next RulesNotInKernel the kernel refused the rules: no"]
                && b.fake.objects("events").iter().any(|e| e["reason"] == "RulesRefused")
        })
        .await;
    bench.answer("dport 666", Ok(())).await;
    bench.until("it is over", |b| b.waits().is_empty()).await;
    bench.stage.stop();
}

#[tokio::test]
async fn a_sandbox_whose_end_was_not_told_is_forgotten() {
    let bench = Bench::start().await;
    bench.deny_all("deny").await;
    let uid = bench.pod(None).await;
    bench.settle().await;
    let asked = bench.ask(ADD.replace("UID", &uid));
    bench.answer("add element ip pintle-policy ingress-pods { 10.244.0.7 : drop }", Ok(())).await;
    assert_eq!(asked.await.expect("asked"), "{\"ok\":true}\n");
    let at_once = client::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    let pods = bench.client.dynamic(Resource::of::<core::Pod>()).namespace("n");
    pods.delete("p", &at_once).await.expect("deleted");
    bench.settle().await;
    // As long as nobody can say, or it is another network's for all that is known, or the plugin remembers it, it is
    // there.
    let known = Some(BTreeSet::from(["c1".to_owned()]));
    for (times, present) in [(1, None), (2, Some(BTreeSet::new())), (3, known)] {
        bench.sandboxes.lock().0 = present;
        bench.clock.advance(COMPARE);
        bench.until("it is compared", |b| b.sandboxes.lock().1 == times).await;
        bench.settle().await;
        assert!(bench.kernel.asked.lock().is_empty(), "{:?}", bench.kernel.asked.lock());
    }
    bench.sandboxes.lock().0 = Some(BTreeSet::new());
    bench.clock.advance(COMPARE);
    bench.answer("delete element ip pintle-policy ingress-pods { 10.244.0.7 }", Ok(())).await;
    bench.stage.stop();
}

#[tokio::test]
async fn what_no_rule_sees_is_told_once() {
    let bench = Bench::start().await;
    bench.unseen.lock().0 = Some("there is a bridge".into());
    let told = |b: &Bench| {
        let all = b.fake.objects("events");
        all.iter().filter(|e| e["reason"] == "NetworkPolicyNotSeen").map(|e| e["message"].clone()).collect::<Vec<_>>()
    };
    // Without policies nobody expects anything of rules.
    bench.pod(Some("10.244.0.7")).await;
    bench.settle().await;
    assert_eq!(bench.unseen.lock().1, 0);
    bench.deny_all("deny").await;
    bench.answer("10.244.0.7", Ok(())).await;
    bench.until("it is told", |b| told(b) == ["there is a bridge"]).await;
    bench.clock.advance(LOOK);
    let outward = |policy: &mut Value| policy["spec"]["policyTypes"] = json!(["Egress"]);
    bench.fake.change("networkpolicies.networking.k8s.io", "n", "deny", outward);
    bench.answer("delete element ip pintle-policy ingress-pods", Ok(())).await;
    bench.until("it is asked again", |b| b.unseen.lock().1 == 2).await;
    bench.settle().await;
    assert_eq!(told(&bench), ["there is a bridge"]);
    bench.stage.stop();
}
