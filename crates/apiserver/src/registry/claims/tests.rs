//! Claims over a memory store: messages, bands, dry runs, giving back, repair.

use std::time::Duration;

use futures::FutureExt;
use kinds::kind::ClusterOptions;
use stdx::clock::ManualClock;
use stdx::shutdown::Stage;
use storage::Memory;

use super::*;
use crate::objects::{SERVICE_CIDRS, fixed::Fixed};

struct World {
    store: Arc<Memory>,
    clock: ManualClock,
    objects: Arc<Fixed>,
    claims: Arc<Claims>,
}

fn world(networks: &[&str], ports: (u16, u16)) -> World {
    let clock = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
    let shared: SharedClock = Arc::new(clock.clone());
    let store = Arc::new(Memory::new(shared.clone()));
    let options = ClusterOptions {
        service_cidrs: networks.iter().map(|n| n.parse().expect("a network")).collect(),
        node_ports: ports,
    };
    let objects = Arc::new(Fixed::default());
    let claims = Arc::new(Claims::new(store.clone(), objects.clone(), shared, Rng::seeded(1), &options));
    World { store, clock, objects, claims }
}

fn owner(name: &str) -> Owner {
    Owner { namespace: "default".into(), name: name.into() }
}

fn address(wanted: Option<&str>) -> Claim {
    let v6 = wanted.is_some_and(|w| w.contains(':'));
    Claim {
        kind: ClaimKind::ClusterIp { v6 },
        pointer: "/spec/clusterIPs/0".into(),
        also: Vec::new(),
        field: "spec.clusterIPs".into(),
        wanted: wanted.map(str::to_owned),
    }
}

fn port(index: usize, wanted: Option<u16>) -> Claim {
    Claim {
        kind: ClaimKind::NodePort { protocol: "TCP" },
        pointer: format!("/spec/ports/{index}/nodePort"),
        also: Vec::new(),
        field: format!("spec.ports[{index}].nodePort"),
        wanted: wanted.map(|port| port.to_string()),
    }
}

impl World {
    async fn take(&self, name: &str, claims: &[Claim]) -> status::Result<Fulfilled> {
        let asked: Vec<_> = claims.iter().filter_map(|claim| claim.wanted.clone()).collect();
        self.claims.take(&owner(name), claims, &json!({"spec": {"clusterIPs": asked}}), false).await
    }

    async fn refusal(&self, claims: &[Claim]) -> (u16, String) {
        let status = self.take("late", claims).await.expect_err("is refused");
        (status.code, status.message)
    }

    async fn keys(&self) -> Vec<String> {
        let page = self.store.range(b"/registry/", RangeOptions::default()).await.expect("reads");
        page.entries.iter().map(|e| String::from_utf8_lossy(&e.key["/registry/".len()..]).into_owned()).collect()
    }
}

#[tokio::test]
async fn a_claimed_address_is_an_object() {
    let world = world(&["10.96.0.0/12"], (30000, 32767));
    world.take("web", &[address(Some("10.96.0.1"))]).await.expect("is free");
    let entry = world.store.get(b"/registry/ipaddresses/10.96.0.1").await.expect("reads").expect("is there");
    let object: Value = serde_json::from_slice(&entry.value).expect("is JSON");
    assert_eq!(object["spec"]["parentRef"], json!({"resource": "services", "namespace": "default", "name": "web"}));
    assert_eq!(object["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"], "IPv4");
    assert_eq!(object["metadata"]["labels"]["ipaddress.kubernetes.io/managed-by"], "ipallocator.k8s.io");
    assert_eq!(object["metadata"]["creationTimestamp"], "1970-01-01T00:00:00Z");
    assert_eq!(owner_of(&entry), Some(owner("web")));
}

#[tokio::test]
async fn refusals_have_upstreams_words() {
    let world = world(&["10.96.0.0/12"], (30000, 32767));
    world.take("web", &[address(Some("10.96.0.1")), port(0, Some(30080))]).await.expect("are free");
    for (claim, code, message) in [
        (
            address(Some("10.96.0.1")),
            422,
            "Service \"late\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.1\"]: failed to allocate IP 10.96.0.1: \
             provided IP is already allocated",
        ),
        (
            address(Some("10.95.0.1")),
            422,
            "Service \"late\" is invalid: spec.clusterIPs: Invalid value: [\"10.95.0.1\"]: failed to allocate IP 10.95.0.1: \
             the provided network does not match the current range",
        ),
        (
            address(Some("fd00::1")),
            422,
            "Service \"late\" is invalid: spec.clusterIPs: Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster",
        ),
        (
            port(2, Some(30080)),
            422,
            "Service \"late\" is invalid: spec.ports[2].nodePort: Invalid value: 30080: provided port is already allocated",
        ),
        (
            port(0, Some(80)),
            422,
            "Service \"late\" is invalid: spec.ports[0].nodePort: Invalid value: 80: \
             provided port is not in the valid range. The range of valid ports is 30000-32767",
        ),
    ] {
        assert_eq!(world.refusal(&[claim]).await, (code, message.to_owned()));
    }
}

#[tokio::test]
async fn all_or_nothing_and_full_ranges() {
    let world = world(&["10.0.0.0/29"], (30000, 30001));
    for i in 0..6 {
        world.take(&format!("s{i}"), &[address(None)]).await.expect("is free");
    }
    let full = "Internal error occurred: failed to allocate a serviceIP for Service \"late\": range is full";
    assert_eq!(world.refusal(&[port(0, None), address(None)]).await, (500, full.to_owned()));
    assert_eq!(world.keys().await.len(), 6, "the port was given back");
    let full = "Internal error occurred: failed to allocate a nodePort: range is full";
    assert_eq!(world.refusal(&[port(0, None), port(1, None), port(2, None)]).await, (500, full.to_owned()));
    assert_eq!(world.keys().await.len(), 6);
}

#[tokio::test]
async fn what_was_asked_for_comes_before_what_is_chosen() {
    let world = world(&["10.0.0.0/24"], (30000, 30002));
    let claims = [port(0, None), port(1, None), port(2, Some(30001))];
    let fulfilled = world.take("web", &claims).await.expect("are free");
    let mut object = json!({"spec": {"ports": [{"port": 1}, {"port": 2}, {"port": 3}]}});
    fulfilled.write(&mut object);
    assert_eq!(object["spec"]["ports"][2]["nodePort"], 30001);
    let mut ports: Vec<_> = (0..3).filter_map(|i| object["spec"]["ports"][i]["nodePort"].as_u64()).collect();
    ports.sort_unstable();
    assert_eq!(ports, [30000, 30001, 30002]);
}

#[test]
fn values_are_written_where_claims_say() {
    let mut object = json!({"spec": {"clusterIPs": ["a"]}});
    write_at(&mut object, "/spec/clusterIPs/1", &json!("b"));
    write_at(&mut object, "/spec/ports/0/nodePort", &json!(1));
    write_at(&mut object, "/spec/healthCheckNodePort", &json!(2));
    let expected = json!({"spec": {"clusterIPs": ["a", "b"], "ports": [{"nodePort": 1}], "healthCheckNodePort": 2}});
    assert_eq!(object, expected);
    write_at(&mut object, "/spec/healthCheckNodePort/deeper", &json!(3));
    assert_eq!(object, expected, "a scalar in the way stays");
}

#[tokio::test]
async fn a_dry_run_takes_nothing() {
    let world = world(&["10.0.0.0/24"], (30000, 30001));
    let claims = [address(None), port(0, None), port(1, None)];
    let fulfilled = world.claims.take(&owner("web"), &claims, &json!({}), true).await.expect("are free");
    let mut object = json!({"spec": {}});
    fulfilled.write(&mut object);
    let port = |i: usize| object["spec"]["ports"][i]["nodePort"].as_u64();
    assert!(port(0).is_some() && port(0) != port(1));
    assert_eq!(world.store.revision(), 0);
    let status = world.claims.take(&owner("web"), &[super::tests::port(0, Some(1))], &json!({}), true).await;
    assert_eq!(status.expect_err("is refused").code, 422);
}

#[tokio::test]
async fn ranges_are_added_and_taken_away() {
    let world = world(&["10.0.0.0/30"], (30000, 32767));
    let range = |ready: &str, deleting: bool| {
        let mut range = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.1.0.0/30", "fd00::/126"]},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}});
        if deleting {
            range["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        range
    };
    let any = || [address(None)];
    let refused = "is refused";
    assert!(world.take("six", &[address(Some("fd00::1"))]).await.is_err(), "no such family");
    for i in 0..2 {
        world.take(&format!("a{i}"), &any()).await.expect("is free");
    }
    assert_eq!(world.take("full", &any()).await.expect_err(refused).code, 500);
    world.objects.put(SERVICE_CIDRS, range("False", false));
    assert_eq!(world.take("full", &any()).await.expect_err(refused).code, 500);
    world.objects.put(SERVICE_CIDRS, range("True", false));
    world.take("b0", &any()).await.expect("is free");
    world.take("b1", &[address(Some("10.1.0.2"))]).await.map(drop).unwrap_or_default();
    world.take("six", &[address(Some("fd00::1"))]).await.expect("is free");
    let edge = world.take("edge", &[address(Some("10.1.0.3"))]).await.expect_err(refused).message;
    assert!(
        edge.contains("the provided IP (10.1.0.3) is not in the valid range. The range of valid IPs is 10.1.0.0/30"),
        "{edge}"
    );
    world.objects.put(SERVICE_CIDRS, range("True", true));
    let gone = world.take("late", &[address(Some("10.1.0.1"))]).await.expect_err(refused).message;
    assert!(gone.contains("the provided network does not match the current range"), "{gone}");
}

#[tokio::test]
async fn only_the_owner_releases() {
    let world = world(&["10.0.0.0/24"], (30000, 30001));
    let claims = [address(Some("10.0.0.9")), port(0, Some(30000))];
    world.take("web", &claims).await.expect("are free");
    world.claims.release(&owner("other"), &claims).await;
    assert_eq!(world.keys().await, ["ipaddresses/10.0.0.9", "pintle/nodeports/30000"]);
    world.claims.release(&owner("web"), &claims).await;
    assert!(world.keys().await.is_empty());
    world.claims.release(&owner("web"), &claims).await;
}

/// A door that shows what is written through it.
#[derive(Clone, Default)]
struct Showing(Arc<parking_lot::Mutex<Vec<Value>>>);

impl transport::Handler for Showing {
    fn call(&self, request: transport::Request) -> transport::Responding {
        use http_body_util::BodyExt;
        let shown = self.0.clone();
        Box::pin(async move {
            let bytes = request.into_body().collect().await.expect("a body").to_bytes();
            shown.lock().push(serde_json::from_slice(&bytes).expect("JSON"));
            Ok(http::Response::new(transport::full("{}")))
        })
    }
}

#[tokio::test]
async fn a_crash_is_repaired() {
    let world = world(&["10.0.0.0/24"], (30000, 32767));
    let kind = kinds::find("", "v1", "services").expect("is a kind");
    // A claim whose Service was never written, and a Service whose claims are gone.
    world.take("lost", &[address(Some("10.0.0.9")), port(0, Some(30000))]).await.expect("are free");
    let service = json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "type": "NodePort", "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "ipFamilies": ["IPv4"],
            "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30007}],
        },
    });
    let key = Bytes::from(kind.shape().key("default", "web"));
    let value = service.to_string().into_bytes().into();
    let put = Op::Put { key, value, expect: Expect::Absent, urgency: Urgency::Now };
    world.store.commit(put).await.expect("commits");

    let stage = Stage::new();
    let door = Showing::default();
    let repair = repair::Repair {
        claims: world.claims.clone(),
        kind,
        door: Arc::new(door.clone()),
        touched: Arc::new(tokio::sync::Notify::new()),
    };
    stage.spawn(repair.run(stage.clone()));
    let until = async |expected: &[&str]| {
        while world.keys().await != expected {
            tokio::task::yield_now().await;
        }
    };
    until(&[
        "ipaddresses/10.0.0.7",
        "ipaddresses/10.0.0.9",
        "pintle/nodeports/30000",
        "pintle/nodeports/30007",
        "services/specs/default/web",
    ])
    .await;
    while world.clock.next_timer().is_none() {
        tokio::task::yield_now().await;
    }
    world.clock.advance(Duration::from_secs(60));
    until(&["ipaddresses/10.0.0.7", "pintle/nodeports/30007", "services/specs/default/web"]).await;
    stage.stop();
    let mut tales = Vec::new();
    for event in door.0.lock().iter() {
        assert_eq!((&event["type"], &event["kind"]), (&json!("Warning"), &json!("Event")));
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        tales.push(format!("{} {} {}", text("/regarding/name"), text("/reason"), text("/reportingController")));
        assert!(text("/metadata/name").starts_with(&text("/regarding/name")));
    }
    assert_eq!(
        tales,
        [
            "web ClusterIPNotAllocated ipallocator-repair-controller",
            "web PortNotAllocated portallocator-repair-controller",
            "10.0.0.9 IPAddressNotAllocated ipallocator-repair-controller",
        ]
    );
    assert!(world.take("late", &[address(Some("10.0.0.7"))]).now_or_never().is_some_and(|taken| taken.is_err()));
}
