//! Slices as tables: pods and slices in, writes out; and the churn stays small.

use super::*;
use crate::views::cached;

fn service(extra: Value) -> Cached<ServiceView> {
    let mut object = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "s", "labels": {"team": "x"}},
        "spec": {"clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"], "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    });
    for (key, value) in extra.as_object().cloned().unwrap_or_default() {
        object["spec"][key] = value;
    }
    cached(&object)
}

fn pod(n: usize) -> Value {
    let ip = format!("10.244.{}.{}", n / 250, n % 250);
    json!({
        "metadata": {"name": format!("p{n}"), "namespace": "default", "uid": format!("u{n}")},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

struct World {
    service: Cached<ServiceView>,
    pods: Vec<Value>,
    slices: Vec<Value>,
    per_slice: usize,
    zone: Option<String>,
    /// Other nodes and their zones.
    nodes: HashMap<String, Option<String>>,
    /// What zones are to have.
    zones: Option<Zones>,
    names: usize,
}

impl World {
    fn new(pods: usize) -> Self {
        Self {
            service: service(json!({})),
            pods: (0..pods).map(pod).collect(),
            slices: Vec::new(),
            per_slice: 3,
            zone: Some("z1".into()),
            nodes: HashMap::new(),
            zones: None,
            names: 0,
        }
    }

    /// One pass: plans, applies to the world, says how many creations, updates and deletions.
    fn pass(&mut self) -> (usize, usize, usize) {
        let pods: Vec<_> = self.pods.iter().map(|p| Arc::new(cached::<PodView>(p))).collect();
        let mut nodes = self.nodes.clone();
        nodes.insert("n1".to_owned(), self.zone.clone());
        let slices = self.slices.iter().map(|s| Slice::of(s.clone()).expect("a slice")).collect();
        let seen = Seen {
            service: &self.service,
            pods: &pods,
            nodes: &nodes,
            slices,
            per_slice: self.per_slice,
            trigger: None,
            zones: self.zones.as_ref(),
        };
        let plan = plan(seen);
        let counts = (plan.create.len(), plan.update.len(), plan.delete.len());
        self.slices.retain(|s| !plan.delete.contains(&s["metadata"]["name"].as_str().unwrap_or("").to_owned()));
        for slice in plan.update {
            let name = slice["metadata"]["name"].clone();
            let old = self.slices.iter_mut().find(|s| s["metadata"]["name"] == name).expect("there");
            *old = slice;
        }
        for mut slice in plan.create {
            self.names += 1;
            slice["metadata"]["name"] = json!(format!("web-{}", self.names));
            self.slices.push(slice);
        }
        counts
    }

    fn sizes(&self) -> Vec<usize> {
        self.slices.iter().map(|s| s["endpoints"].as_array().map_or(0, Vec::len)).collect()
    }
}

#[test]
fn a_service_without_pods_has_an_empty_slice() {
    let mut world = World::new(0);
    assert_eq!(world.pass(), (1, 0, 0));
    assert_eq!(world.pass(), (0, 0, 0));
    assert_eq!(world.sizes(), [0]);
    world.pods = vec![pod(1)];
    assert_eq!(world.pass(), (0, 1, 0), "the empty slice is reused");
    world.pods.clear();
    assert_eq!(world.pass(), (0, 1, 0));
    assert_eq!(world.sizes(), [0]);
}

#[test]
fn slices_are_bounded_and_churn_is_small() {
    let mut world = World::new(7);
    assert_eq!(world.pass(), (3, 0, 0));
    assert_eq!(world.sizes(), [3, 3, 1]);
    assert_eq!(world.pass(), (0, 0, 0));
    world.pods.push(pod(8));
    assert_eq!(world.pass(), (0, 1, 0), "the slice with room takes it");
    assert_eq!(world.sizes(), [3, 3, 2]);
    world.pods.remove(0);
    assert_eq!(world.pass(), (0, 1, 0));
    assert_eq!(world.sizes(), [2, 3, 2]);
    world.pods.extend([pod(20), pod(21), pod(22)]);
    let (created, updated, deleted) = world.pass();
    assert_eq!((created, updated, deleted), (1, 0, 0), "what fits no slice gets one of its own");
}

#[test]
fn one_change_is_one_update() {
    let mut world = World::new(6);
    world.pass();
    world.pods[4]["status"]["conditions"][0]["status"] = json!("False");
    assert_eq!(world.pass(), (0, 1, 0));
    let all: Vec<Value> =
        world.slices.iter().flat_map(|s| s["endpoints"].as_array().cloned().unwrap_or_default()).collect();
    let one = all.iter().find(|e| e["targetRef"]["name"] == "p4").expect("there");
    assert_eq!(one["conditions"], json!({"ready": false, "serving": false, "terminating": false}));
    assert_eq!((&one["nodeName"], &one["zone"]), (&json!("n1"), &json!("z1")));
}

#[test]
fn conditions_of_pods_that_are_going() {
    let mut world = World::new(1);
    world.pods[0]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    world.pass();
    assert_eq!(
        world.slices[0]["endpoints"][0]["conditions"],
        json!({"ready": false, "serving": true, "terminating": true})
    );
    world.service = service(json!({"publishNotReadyAddresses": true}));
    assert_eq!(world.pass(), (0, 1, 0));
    assert_eq!(world.slices[0]["endpoints"][0]["conditions"]["ready"], true);
    world.pods[0]["status"]["phase"] = json!("Failed");
    world.pass();
    assert_eq!(world.sizes(), [0]);
}

#[test]
fn pods_with_other_ports_get_slices_of_their_own() {
    let mut world = World::new(2);
    world.service = service(json!({"ports": [{"name": "http", "port": 80, "targetPort": "web"}]}));
    for (n, port) in [(0, 8080), (1, 9090)] {
        world.pods[n]["spec"]["containers"] = json!([{"name": "c", "ports": [{"name": "web", "containerPort": port}]}]);
    }
    assert_eq!(world.pass(), (2, 0, 0));
    let ports: Vec<_> = world.slices.iter().map(|s| s["ports"][0]["port"].clone()).collect();
    assert_eq!(ports, [json!(8080), json!(9090)]);
}

#[test]
fn labels_owner_and_headless() {
    let mut world = World::new(1);
    world.service = service(json!({"clusterIP": "None", "trafficDistribution": "PreferSameNode"}));
    world.pods[0]["spec"]["hostname"] = json!("h");
    world.pods[0]["spec"]["subdomain"] = json!("web");
    world.pass();
    let slice = &world.slices[0];
    assert_eq!(
        slice["metadata"]["labels"],
        json!({"team": "x", SERVICE_NAME: "web", MANAGED_BY: MANAGER, HEADLESS: ""})
    );
    assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "s");
    assert_eq!(slice["metadata"]["generateName"], "web-");
    assert_eq!(slice["endpoints"][0]["hostname"], "h");
    assert_eq!(slice["endpoints"][0]["hints"], json!({"forNodes": [{"name": "n1"}], "forZones": [{"name": "z1"}]}));
}

#[test]
fn hints_say_who_comes_first() {
    let (zone, node) = (json!([{"name": "z1"}]), json!([{"name": "n1"}]));
    for (wish, has_zone, want) in [
        ("PreferClose", true, json!({"forZones": zone})),
        ("PreferSameZone", true, json!({"forZones": zone})),
        ("PreferSameNode", true, json!({"forZones": zone, "forNodes": node})),
        ("PreferSameNode", false, json!({"forNodes": node})),
        ("PreferSameZone", false, Value::Null),
        ("PreferSomethingElse", true, Value::Null),
    ] {
        let mut world = World::new(2);
        world.service = service(json!({"trafficDistribution": wish}));
        world.zone = world.zone.filter(|_| has_zone);
        // Who gets no connections is meant for nobody.
        world.pods[1]["status"]["conditions"][0]["status"] = json!("False");
        world.pass();
        let hints = |at: usize| world.slices[0]["endpoints"][at].get("hints").cloned().unwrap_or_default();
        assert_eq!((hints(0), hints(1)), (want, Value::Null), "{wish}, zone {has_zone}");
        // Without the wish they go, and nothing else changes.
        world.service = service(json!({}));
        let changed = usize::from(!world.slices[0]["endpoints"][0]["hints"].is_null());
        assert_eq!(world.pass(), (0, changed, 0), "{wish}");
    }
}

#[test]
fn each_family_has_slices_of_its_own() {
    let mut world = World::new(2);
    world.service = service(json!({"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "RequireDualStack"}));
    world.pods[0]["status"]["podIPs"] = json!([{"ip": "10.244.0.0"}, {"ip": "fd00::1"}]);
    world.pass();
    let mut shown: Vec<String> = world
        .slices
        .iter()
        .map(|s| {
            let ips: Vec<&str> =
                s["endpoints"].as_array().into_iter().flatten().filter_map(|e| e["addresses"][0].as_str()).collect();
            format!("{} {}", s["addressType"].as_str().unwrap_or_default(), ips.join(","))
        })
        .collect();
    shown.sort();
    assert_eq!(shown, ["IPv4 10.244.0.0,10.244.0.1", "IPv6 fd00::1"]);
    // With one family less its slices go, and the others stay as they are.
    world.service = service(json!({"ipFamilies": ["IPv4"]}));
    assert_eq!(world.pass(), (0, 0, 1));
    assert_eq!(world.slices[0]["addressType"], "IPv4");
}

#[test]
fn a_pod_whose_node_is_unknown_is_left_out_and_named() {
    let mut world = World::new(2);
    world.pods[1]["spec"]["nodeName"] = json!("nowhere");
    let pods: Vec<_> = world.pods.iter().map(|p| Arc::new(cached::<PodView>(p))).collect();
    let nodes = [("n1".to_owned(), None)].into();
    let seen = Seen {
        service: &world.service,
        pods: &pods,
        nodes: &nodes,
        slices: vec![],
        per_slice: 3,
        trigger: None,
        zones: None,
    };
    let plan = plan(seen);
    assert_eq!(plan.skipped, ["p1"]);
    assert_eq!(plan.create[0]["endpoints"].as_array().map(Vec::len), Some(1));
    world.per_slice = 1;
}

#[test]
fn hints_in_proportion_cover_every_slice_and_stay() {
    let mut world = World::new(6);
    let auto = |spec: Value| {
        let mut object = json!({"metadata": {"name": "web", "namespace": "default", "uid": "s",
                "annotations": {"service.kubernetes.io/topology-mode": "Auto"}},
            "spec": {"clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"], "selector": {"app": "web"},
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
        for (key, value) in spec.as_object().cloned().unwrap_or_default() {
            object["spec"][key] = value;
        }
        cached::<ServiceView>(&object)
    };
    let hints = |world: &World| -> Vec<String> {
        let endpoints = world.slices.iter().flat_map(|s| s["endpoints"].as_array().cloned().unwrap_or_default());
        let hint = |e: Value| e.pointer("/hints/forZones/0/name").and_then(Value::as_str).unwrap_or("-").to_owned();
        let mut all: Vec<String> = endpoints.map(hint).collect();
        all.sort();
        all
    };
    // The annotation comes before the field.
    world.service = auto(json!({"trafficDistribution": "PreferSameZone"}));
    world.nodes = [("n2".to_owned(), Some("z2".to_owned()))].into();
    world.pass();
    assert_eq!(hints(&world), ["-", "-", "-", "-", "-", "-"], "nothing is known of zones");
    // All are in one of two zones, which have as much each.
    let node = |zone: &str| {
        let status = json!({"allocatable": {"cpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}]});
        Arc::new(cached(
            &json!({"metadata": {"name": zone, "labels": {crate::endpointslice::ZONE: zone}}, "status": status}),
        ))
    };
    world.zones = Zones::of([node("z1"), node("z2")].iter());
    assert_eq!(world.pass(), (0, 2, 0));
    assert_eq!(hints(&world), ["z1", "z1", "z1", "z2", "z2", "z2"]);
    assert_eq!(world.pass(), (0, 0, 0));
    // One that is not ready has none, and the five that are left cannot be shared out.
    world.pods[0]["status"]["conditions"][0]["status"] = json!("False");
    assert_eq!(world.pass(), (0, 2, 0));
    assert_eq!(hints(&world), ["-", "-", "-", "-", "-", "-"]);
    // Without the annotation the field counts.
    world.service = service(json!({"trafficDistribution": "PreferSameZone"}));
    world.pass();
    assert_eq!(hints(&world), ["-", "z1", "z1", "z1", "z1", "z1"]);
}

#[test]
fn slices_of_a_service_that_had_the_name_before_go_with_it() {
    let mut world = World::new(2);
    world.pass();
    let mut object = json!({"metadata": {"name": "web", "namespace": "default", "uid": "another"}});
    object["spec"] = json!({"clusterIP": "10.96.0.1", "ipFamilies": ["IPv4"], "selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": 8080}]});
    world.service = cached(&object);
    assert_eq!(world.pass(), (1, 0, 1));
    assert_eq!(world.slices[0]["metadata"]["ownerReferences"][0]["uid"], "another");
    assert_eq!(world.sizes(), [2]);
}

#[test]
fn a_pod_of_an_unknown_node_is_published_where_readiness_does_not_matter() {
    let mut world = World::new(1);
    world.pods[0]["spec"]["nodeName"] = json!("nowhere");
    world.service = service(json!({"publishNotReadyAddresses": true}));
    world.pass();
    assert_eq!(world.sizes(), [1]);
}
