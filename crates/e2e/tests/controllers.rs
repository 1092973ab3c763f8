//! The controllers against the real API server, in one process and one thread, under a clock that
//! moves only when told to. A stand-in binds pods to a node and plays its kubelet.

#[path = "controllers/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use client::{DeleteParams, Propagation};
use serde_json::{Value, json};
use stdx::Rng;
use stdx::shutdown::Stage;
use world::{Faults, World, resource, settle};
fn web(replicas: i64, image: &str) -> Value {
    json!({
        "kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}},
    })
}

fn image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
}

#[tokio::test]
async fn a_rollout_an_undo_a_resize_and_a_service() {
    let mut world = World::start().await;
    let service = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    world.create("services", "default", &service).await;
    world.create("deployments", "default", &web(3, "one")).await;
    world.until("three of one", async |w| w.is_rolled_out("one", 3).await).await;
    let deployment = world.get("deployments", "default", "web").await.expect("there");
    assert_eq!(deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    let conditions = deployment["status"]["conditions"].to_string();
    assert!(
        conditions.contains("NewReplicaSetAvailable") && conditions.contains("MinimumReplicasAvailable"),
        "{conditions}"
    );
    let ready = async |w: &World| {
        let slices = w.list("endpointslices", "default").await;
        let endpoints = slices.iter().flat_map(|s| s["endpoints"].as_array().cloned().unwrap_or_default());
        endpoints.filter(|e| e["conditions"]["ready"] == true && e["zone"] == "z").count()
    };
    world.until("three endpoints", async |w| ready(w).await == 3).await;
    let endpoints = world.get("endpoints", "default", "web").await.expect("there");
    assert_eq!(endpoints["subsets"][0]["addresses"].as_array().map(Vec::len), Some(3));

    world.merge("deployments", "web", image("two")).await;
    world.until("three of two", async |w| w.is_rolled_out("two", 3).await).await;

    world.broken.push("bad");
    world.merge("deployments", "web", image("bad")).await;
    world
        .until("the bad one stalls", async |w| w.pods().await == BTreeMap::from([("two".into(), 3), ("bad".into(), 1)]))
        .await;
    world.pass(Duration::from_secs(610)).await;
    let stalled = world.get("deployments", "default", "web").await.expect("there");
    assert!(stalled["status"]["conditions"].to_string().contains("ProgressDeadlineExceeded"), "{}", stalled["status"]);
    // Undone as kubectl does it: the template of the old ReplicaSet.
    world.merge("deployments", "web", image("two")).await;
    world.until("back to two", async |w| w.is_rolled_out("two", 3).await).await;
    let undone = world.get("deployments", "default", "web").await.expect("there");
    assert_eq!(undone["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "4");

    world.merge("deployments", "web", json!({"spec": {"replicas": 5}})).await;
    world.until("five", async |w| w.is_rolled_out("two", 5).await).await;
    world.until("five endpoints", async |w| ready(w).await == 5).await;
    let events = world.events().await;
    let first: Vec<&String> = events.iter().filter(|e| e.starts_with("Deployment")).collect();
    assert!(
        first
            .first()
            .is_some_and(|e| e.contains("ScalingReplicaSet Scaled up replica set web-") && e.ends_with("from 0 to 3")),
        "{events:?}"
    );
    assert!(events.iter().any(|e| e.contains("ReplicaSet SuccessfulCreate Created pod: web-")), "{events:?}");
    world.stage.stop();
}

#[tokio::test]
async fn pods_are_adopted_released_and_replaced() {
    let world = World::start().await;
    world.create("deployments", "default", &web(2, "one")).await;
    world.until("two", async |w| w.is_rolled_out("one", 2).await).await;
    let pod = world.list("pods", "default").await.remove(0);
    let name = machinery::meta::name(&pod).to_owned();
    world.merge("pods", &name, json!({"metadata": {"labels": {"app": "other"}}})).await;
    world
        .until("released and replaced", async |w| {
            let pod = w.get("pods", "default", &name).await.expect("it lives");
            machinery::meta::owner_references(&pod).is_empty() && w.list("pods", "default").await.len() == 3
        })
        .await;
    world.delete("pods", &name, Propagation::Background).await;
    world.until("gone for good", async |w| w.list("pods", "default").await.len() == 2).await;
    world.pass(Duration::from_secs(10)).await;
    assert_eq!(world.list("pods", "default").await.len(), 2);
    // A fitting orphan is adopted, and one pod too many goes.
    let set = world.list("replicasets", "default").await.remove(0);
    let labels = set["spec"]["template"]["metadata"]["labels"].clone();
    let orphan = json!({"metadata": {"name": "orphan", "namespace": "default", "labels": labels}, "spec": {"containers": [{"name": "c", "image": "one"}]}});
    world.create("pods", "default", &orphan).await;
    world.until("two again", async |w| w.pods().await == BTreeMap::from([("one".into(), 2)])).await;
    world.stage.stop();
}

#[tokio::test]
async fn the_three_ways_to_delete() {
    let world = World::start().await;
    for (propagation, sets, pods) in
        [(Propagation::Background, 0, 0), (Propagation::Foreground, 0, 0), (Propagation::Orphan, 1, 2)]
    {
        world.create("deployments", "default", &web(2, "one")).await;
        world.until("two", async |w| w.is_rolled_out("one", 2).await).await;
        world.delete("deployments", "web", propagation).await;
        world.until("the Deployment is gone", async |w| w.get("deployments", "default", "web").await.is_none()).await;
        world
            .until("the rest as asked", async |w| {
                (w.list("replicasets", "default").await.len(), w.list("pods", "default").await.len()) == (sets, pods)
            })
            .await;
    }
    world.pass(Duration::from_secs(10)).await;
    let set = world.list("replicasets", "default").await.remove(0);
    assert!(machinery::meta::owner_references(&set).is_empty(), "{set}");
    // A Deployment that comes back adopts what it finds.
    world.create("deployments", "default", &web(2, "one")).await;
    world
        .until("adopted", async |w| {
            w.is_rolled_out("one", 2).await && w.list("replicasets", "default").await.len() == 1
        })
        .await;
    world.stage.stop();
}

#[tokio::test]
async fn a_namespace_takes_its_content_with_it() {
    let world = World::start().await;
    world.create("namespaces", "", &json!({"metadata": {"name": "team"}})).await;
    world
        .until("furnished", async |w| {
            w.get("configmaps", "team", "kube-root-ca.crt").await.is_some()
                && w.get("serviceaccounts", "team", "default").await.is_some()
        })
        .await;
    let mut deployment = web(2, "one");
    deployment["metadata"]["namespace"] = json!("team");
    world.create("deployments", "team", &deployment).await;
    // Kinds that nothing acts on yet go, too.
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "one"}]}});
    let job = json!({"metadata": {"name": "once", "namespace": "team"}, "spec": {"template": template}});
    world.create("jobs", "team", &job).await;
    world
        .until("two pods", async |w| {
            w.list("pods", "team").await.iter().filter(|p| p["status"]["podIP"].is_string()).count() == 2
        })
        .await;
    world.root.dynamic(resource("namespaces")).delete("team", &DeleteParams::default()).await.expect("deleted");
    world.until("gone", async |w| w.get("namespaces", "", "team").await.is_none()).await;
    for plural in ["pods", "replicasets", "deployments", "jobs", "configmaps", "serviceaccounts"] {
        assert!(world.list(plural, "team").await.is_empty(), "{plural}");
    }
    world.stage.stop();
}

#[tokio::test]
async fn a_silent_node_is_tainted_and_comes_back() {
    let mut world = World::start().await;
    world.create("nodes", "", &json!({"metadata": {"name": "n2"}})).await;
    world
        .until("ranges", async |w| {
            let nodes = w.list("nodes", "").await;
            let mut ranges: Vec<_> =
                nodes.iter().map(|n| n["spec"]["podCIDR"].as_str().unwrap_or("").to_owned()).collect();
            ranges.sort();
            ranges == ["10.244.0.0/24", "10.244.1.0/24"]
        })
        .await;
    world.create("deployments", "default", &web(1, "one")).await;
    world.until("one", async |w| w.is_rolled_out("one", 1).await).await;
    world.pass(Duration::from_secs(120)).await;
    let ready = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().find(|c| c["type"] == "Ready").map(|c| c["status"].as_str().unwrap_or("").to_owned())
    };
    let n1 = world.get("nodes", "", "n1").await.expect("there");
    assert_eq!(ready(&n1).as_deref(), Some("True"), "a node that speaks stays ready: {n1}");
    assert!(n1["spec"]["taints"].is_null(), "{n1}");
    let n2 = world.get("nodes", "", "n2").await.expect("there");
    assert!(n2["status"]["conditions"].to_string().contains("NodeStatusNeverUpdated"), "{n2}");
    world.kubelet = false;
    world.pass(Duration::from_secs(35)).await;
    assert_eq!(ready(&world.get("nodes", "", "n1").await.expect("there")).as_deref(), Some("True"), "within the grace");
    world.pass(Duration::from_secs(20)).await;
    let n1 = world.get("nodes", "", "n1").await.expect("there");
    assert_eq!(ready(&n1).as_deref(), Some("Unknown"));
    assert!(n1["spec"]["taints"].to_string().contains("unreachable"), "{n1}");
    let pod = world.list("pods", "default").await.remove(0);
    assert_eq!(pod["status"]["conditions"][0]["status"], "False", "{pod}");
    world.kubelet = true;
    world.beat().await;
    world
        .until("no taints", async |w| w.get("nodes", "", "n1").await.is_some_and(|n| n["spec"]["taints"].is_null()))
        .await;
    world.stage.stop();
}

#[tokio::test]
async fn controllers_that_start_late_converge() {
    let world = World::start().await;
    world.create("deployments", "default", &web(3, "one")).await;
    world.until("three", async |w| w.is_rolled_out("one", 3).await).await;
    // A second set of controllers beside the first: nothing may be made twice.
    let second = Stage::new();
    world.control(9, &second);
    world.merge("deployments", "web", image("two")).await;
    world.until("three of two", async |w| w.is_rolled_out("two", 3).await).await;
    world.pass(Duration::from_secs(20)).await;
    assert_eq!(world.list("replicasets", "default").await.len(), 2);
    assert_eq!(world.list("pods", "default").await.len(), 3);
    second.stop();
    world.stage.stop();
}

/// Rolls from one image to the next while requests are lost, answers are lost, watches end, and the
/// controllers are killed and started again; checks after every step that no more pods are wanted
/// than the surge allows, none are made twice, and no fewer serve than were asked for.
async fn storm(seed: u64) {
    let rng = Rng::seeded(seed);
    let faults = Faults { rng: rng.clone(), rate: Arc::new(AtomicU64::new(0)) };
    let mut world = World::start_over(Some(faults.clone())).await;
    let mut web = web(3, "image-0");
    web["spec"]["strategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    world.create("deployments", "default", &web).await;
    world.until("the first three", async |w| w.is_rolled_out("image-0", 3).await).await;
    faults.rate.store(60, Ordering::Relaxed);
    let mut had: BTreeMap<String, u64> = BTreeMap::new();
    for round in 1..=4 {
        let next = format!("image-{round}");
        world.merge("deployments", "web", image(&next)).await;
        let mut steps = 0;
        while !world.is_rolled_out(&next, 3).await {
            steps += 1;
            assert!(steps < 4000, "seed {seed}: round {round} does not end: {:?}", world.pods().await);
            world.step().await;
            world.clock.advance(Duration::from_millis(rng.below(2000)));
            // Sets may change while the pods are listed: what one wanted before or after is what it may have.
            let earlier = world.list("replicasets", "default").await;
            let pods = world.list("pods", "default").await;
            let alive: Vec<_> = pods.iter().filter(|p| !machinery::meta::is_deleting(p)).collect();
            let serving = alive.iter().filter(|p| p["status"]["podIP"].is_string()).count();
            let sets = world.list("replicasets", "default").await;
            let size = |set: &Value| set["spec"]["replicas"].as_u64().unwrap_or(0);
            let wanted: u64 = sets.iter().map(size).sum();
            assert!(wanted <= 4, "seed {seed}: {wanted} pods wanted");
            // A set that has more pods than it wants is shrinking: it makes no more.
            for set in &sets {
                let uid = machinery::meta::uid(set);
                let owned = |p: &&&Value| machinery::meta::owner_references(p).iter().any(|o| o.uid == uid);
                let count = alive.iter().filter(owned).count() as u64;
                let before = had.insert(uid.to_owned(), count).unwrap_or(0);
                let wanted = earlier.iter().filter(|e| machinery::meta::uid(e) == uid).map(size).max().unwrap_or(0);
                assert!(
                    count <= size(set).max(wanted).max(before),
                    "seed {seed}: {count} pods of {}",
                    machinery::meta::name(set)
                );
            }
            assert!(serving >= 3, "seed {seed}: {serving} serve");
            if rng.below(100) < 3 {
                world.controllers.stop();
                // What the dead had sent arrives before the living begin: nobody can fence that off.
                settle().await;
                world.controllers = Stage::new();
                world.control(rng.below(1 << 32), &world.controllers);
            }
        }
    }
    faults.rate.store(0, Ordering::Relaxed);
    world.delete("deployments", "web", Propagation::Foreground).await;
    world
        .until("everything gone", async |w| {
            let left = [
                w.list("deployments", "default").await,
                w.list("replicasets", "default").await,
                w.list("pods", "default").await,
            ];
            left.iter().all(Vec::is_empty)
        })
        .await;
    world.controllers.stop();
    world.stage.stop();
}

#[tokio::test]
async fn rollouts_converge_in_a_storm() {
    for seed in 1..=6 {
        storm(seed).await;
    }
}

#[tokio::test]
async fn every_write_tells_its_cause() {
    let world = World::start().await;
    world.create("deployments", "default", &web(1, "one")).await;
    world.until("one", async |w| w.is_rolled_out("one", 1).await).await;
    let pod = world.list("pods", "default").await.remove(0);
    let set = world.list("replicasets", "default").await.remove(0);
    let causes = |key: String| {
        let question = apiserver::audit::causes::Question { key, limit: 10, ..Default::default() };
        let records = world.api.journal.query(&question);
        let first = records.first().map(|r| serde_json::to_string(r).expect("prints"));
        first.unwrap_or_default()
    };
    let cause = |resource: &str, name: &str| format!("\"resource\":\"{resource}\",\"name\":\"default/{name}\"");
    let made = causes(format!("pods/default/{}", machinery::meta::name(&pod)));
    assert!(made.contains(&cause("replicasets.apps", machinery::meta::name(&set))), "{made}");
    let made = causes(format!("replicasets.apps/default/{}", machinery::meta::name(&set)));
    assert!(made.contains(&cause("deployments.apps", "web")), "{made}");
    world.stage.stop();
}

#[tokio::test]
async fn a_budget_counts_its_pods_and_a_range_waits_for_its_addresses() {
    let world = World::start().await;
    let budget = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    world.create("poddisruptionbudgets", "default", &budget).await;
    world.create("deployments", "default", &web(3, "one")).await;
    let status = async |w: &World| {
        let budget = w.get("poddisruptionbudgets", "default", "web").await.expect("there");
        let number = |field: &str| budget["status"][field].as_i64().unwrap_or(-1);
        [number("expectedPods"), number("desiredHealthy"), number("currentHealthy"), number("disruptionsAllowed")]
    };
    world.until("three of three", async |w| status(w).await == [3, 2, 3, 1]).await;
    // Evicted: the budget is charged, and counts anew once the pod is replaced.
    let pod = world.list("pods", "default").await.remove(0);
    let name = machinery::meta::name(&pod).to_owned();
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    let pods = world.root.dynamic(resource("pods")).namespace("default");
    pods.create_subresource(&name, "eviction", &eviction).await.expect("allowed");
    world
        .until("replaced and counted", async |w| {
            w.get("pods", "default", &name).await.is_none() && status(w).await == [3, 2, 3, 1]
        })
        .await;
    world.merge("deployments", "web", json!({"spec": {"replicas": 5}})).await;
    world.until("five of five", async |w| status(w).await == [5, 4, 5, 1]).await;

    let range = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.250.0.0/29"]}});
    world.create("servicecidrs", "", &range).await;
    let ready = async |w: &World| {
        let range = w.get("servicecidrs", "", "more").await.unwrap_or_default();
        let condition = range["status"]["conditions"][0].clone();
        format!("{} {}", condition["status"].as_str().unwrap_or("-"), condition["reason"].as_str().unwrap_or("-"))
    };
    world.until("the range is ready", async |w| ready(w).await == "True ").await;
    let made = world.get("servicecidrs", "", "more").await.expect("there");
    assert_eq!(machinery::meta::finalizers(&made), ["networking.k8s.io/service-cidr-finalizer"]);
    let service = json!({"metadata": {"name": "far", "namespace": "default"}, "spec": {"clusterIP": "10.250.0.5", "ports": [{"port": 80}]}});
    world.create("services", "default", &service).await;
    world.delete("servicecidrs", "more", Propagation::Background).await;
    world.until("the range waits", async |w| ready(w).await == "False Terminating").await;
    world.pass(Duration::from_secs(30)).await;
    assert!(world.get("servicecidrs", "", "more").await.is_some(), "its address is in use");
    world.delete("services", "far", Propagation::Background).await;
    world.until("the range is gone", async |w| w.get("servicecidrs", "", "more").await.is_none()).await;
    world.stage.stop();
}

#[tokio::test]
async fn an_idle_cluster_is_quiet() {
    let world = World::start().await;
    let service = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    world.create("services", "default", &service).await;
    world.create("deployments", "default", &web(3, "one")).await;
    world.until("three", async |w| w.is_rolled_out("one", 3).await).await;
    world.pass(Duration::from_secs(30)).await;
    let all = || world.api.journal.query(&apiserver::audit::causes::Question { limit: 1, ..Default::default() });
    let after = all().last().map_or(0, |r| r.revision);
    world.pass(Duration::from_secs(1200)).await;
    let question = apiserver::audit::causes::Question { after, limit: 1000, ..Default::default() };
    let written = world.api.journal.query(&question);
    let ours: Vec<_> =
        written.iter().filter(|r| r.actor != "root").map(|r| format!("{} {} {}", r.actor, r.verb, r.key)).collect();
    assert!(ours.is_empty(), "{ours:?}");
    world.stage.stop();
}

#[tokio::test]
async fn load_balancers_have_the_addresses_of_nodes() {
    let world = World::start().await;
    let addresses = json!([{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "n1"}]);
    let status = json!({"status": {"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}});
    let nodes = world.root.dynamic(resource("nodes"));
    nodes.patch_status("n1", &client::Patch::Strategic(status)).await.expect("said");
    let service = |name: &str, port: u16, more: Value| {
        let mut spec = json!({"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": port}]});
        for (key, value) in more.as_object().expect("an object") {
            spec[key] = value.clone();
        }
        json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    };
    let ingress = async |w: &World, name: &str| {
        w.get("services", "default", name).await.map(|s| s["status"]["loadBalancer"]["ingress"].clone())
    };
    let given = json!([{"ip": "192.0.2.1", "ipMode": "VIP", "ports": [{"port": 80, "protocol": "TCP"}]}]);
    world.create("services", "default", &service("old", 80, json!({}))).await;
    world.until("an address", async |w| ingress(w, "old").await == Some(given.clone())).await;
    let old = world.get("services", "default", "old").await.expect("there");
    // Its end waits for nobody, and what an earlier version set goes.
    assert_eq!(old["metadata"]["finalizers"], Value::Null);
    let finalizers = json!({"metadata": {"finalizers": ["service.kubernetes.io/load-balancer-cleanup"]}});
    world.merge("services", "old", finalizers).await;
    world
        .until("it is taken away", async |w| {
            w.get("services", "default", "old").await.is_some_and(|s| s["metadata"]["finalizers"].is_null())
        })
        .await;
    // The port is taken, also for a younger one of our class; the kubelet's is not to be had.
    world.pass(Duration::from_secs(5)).await;
    let class = json!({"loadBalancerClass": "pintle.dev/node-addresses"});
    world.create("services", "default", &service("young", 80, class)).await;
    world.create("services", "default", &service("greedy", 10250, json!({}))).await;
    let told = |who: &str, why: &str| {
        format!(
            "Service SyncLoadBalancerFailed Error syncing load balancer: port {who} of node n1 (192.0.2.1) belongs to {why}"
        )
    };
    let wanted = [told("80/TCP", "Service default/old"), told("10250/TCP", "the kubelet")];
    world
        .until("why not", async |w| {
            let events = w.events().await;
            wanted.iter().all(|wanted| events.contains(wanted))
        })
        .await;
    assert_eq!(ingress(&world, "young").await, Some(Value::Null));
    // Another class is somebody else's.
    world.create("services", "default", &service("other", 81, json!({"loadBalancerClass": "x.example/y"}))).await;
    world.pass(Duration::from_secs(5)).await;
    let other = world.get("services", "default", "other").await.expect("there");
    assert_eq!((&other["status"]["loadBalancer"], &other["metadata"]["finalizers"]), (&json!({}), &Value::Null));
    // The port becomes free when the older one wants none any more.
    world.merge("services", "old", json!({"spec": {"type": "ClusterIP"}})).await;
    world.until("the younger has it", async |w| ingress(w, "young").await == Some(given.clone())).await;
    world
        .until("nothing is left", async |w| {
            let old = w.get("services", "default", "old").await.expect("there");
            old["metadata"]["finalizers"].is_null() && old["status"]["loadBalancer"] == json!({})
        })
        .await;
    // A node that is to carry none carries none.
    let label = "node.kubernetes.io/exclude-from-external-load-balancers";
    let labelled = |value: Value| client::Patch::Merge(json!({"metadata": {"labels": {label: value}}}));
    nodes.patch("n1", &labelled(json!(""))).await.expect("labelled");
    world.until("it has none", async |w| ingress(w, "young").await == Some(Value::Null)).await;
    nodes.patch("n1", &labelled(Value::Null)).await.expect("labelled");
    world.until("it has it again", async |w| ingress(w, "young").await == Some(given.clone())).await;
    // Where only endpoints of the node may, there must be one; who has the address already keeps it until then.
    let local = json!({"externalTrafficPolicy": "Local"});
    world.merge("services", "young", json!({"spec": local})).await;
    world.create("services", "default", &service("local", 82, local)).await;
    world.pass(Duration::from_secs(5)).await;
    assert_eq!(ingress(&world, "local").await, Some(Value::Null));
    assert_eq!(ingress(&world, "young").await, Some(given.clone()));
    world.create("deployments", "default", &web(1, "one")).await;
    let at_82 = json!([{"ip": "192.0.2.1", "ipMode": "VIP", "ports": [{"port": 82, "protocol": "TCP"}]}]);
    world.until("its node has one", async |w| ingress(w, "local").await == Some(at_82.clone())).await;
    assert_eq!(ingress(&world, "young").await, Some(given.clone()));
    // What is deleted goes.
    world.delete("services", "young", Propagation::Background).await;
    world.until("it is gone", async |w| w.get("services", "default", "young").await.is_none()).await;
    let events = world.events().await;
    for reason in ["EnsuringLoadBalancer", "EnsuredLoadBalancer", "DeletingLoadBalancer", "DeletedLoadBalancer"] {
        assert!(events.iter().any(|e| e.contains(reason)), "{reason}: {events:?}");
    }
    let waits = world.root.dynamic(client::waits::resource()).namespace("default");
    let waits = waits.list(&client::ListParams::all()).await.expect("listable").items;
    let mut named: Vec<&str> = waits.iter().filter_map(|w| w.pointer("/object/name")?.as_str()).collect();
    named.sort_unstable();
    assert_eq!(named, ["greedy", "other"]);
}
