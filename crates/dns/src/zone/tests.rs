//! What a cluster's names answer, as tables of text.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

pub fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

fn settings() -> Settings {
    Settings {
        domain: name("cluster.local"),
        ttl: 5,
        ranges: vec!["10.96.0.0/12".parse().expect("a range"), "10.244.0.0/16".parse().expect("a range")],
        servers: vec!["10.96.0.10".parse().expect("an address")],
    }
}

fn set(zone: &mut Zone, key: &str, service: Value, slices: &[Value]) -> bool {
    let (namespace, service_name) = key.split_once('/').expect("a key");
    let service: Service = serde_json::from_value(service).expect("a Service");
    let slices: Vec<Slice> = slices.iter().map(|s| serde_json::from_value(s.clone()).expect("a slice")).collect();
    let records = decide((namespace, service_name), &service, slices.iter(), &zone.settings.domain);
    zone.set(&Key::new(namespace, service_name), records)
}

fn cluster() -> Zone {
    let mut zone = Zone::new(settings(), 7);
    zone.set_namespace("default", true);
    zone.set_namespace("empty", true);
    let ports =
        json!([{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
    let web = json!({"spec": {"type": "ClusterIP", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"], "ports": ports}});
    let slice = json!({"endpoints": [{"addresses": ["10.244.0.9"]}], "ports": [{"name": "http", "port": 8080}]});
    set(&mut zone, "default/web", web, &[slice]);
    let db = json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}});
    let v4 = json!({
        "endpoints": [
            {"addresses": ["10.244.0.5"], "hostname": "DB-0", "conditions": {"ready": true}},
            {"addresses": ["10.244.0.6"], "hostname": "db-1", "conditions": {}},
            {"addresses": ["10.244.0.7"], "conditions": {"ready": null}},
            {"addresses": ["10.244.0.8"], "hostname": "db-3", "conditions": {"ready": false}},
            {"addresses": ["not an address"], "hostname": "db-4"},
            {"addresses": null},
        ],
        "ports": [{"name": "pg", "port": 5432, "protocol": "TCP"}],
    });
    let v6 =
        json!({"endpoints": [{"addresses": ["fd00::5"], "hostname": "db-0"}], "ports": [{"name": "pg", "port": 5433}]});
    set(&mut zone, "default/db", db, &[v4, v6]);
    set(
        &mut zone,
        "default/none",
        json!({"spec": {"clusterIP": "None"}}),
        &[json!({"endpoints": null, "ports": null})],
    );
    let bare = json!({"endpoints": [{"addresses": ["10.244.0.11"]}], "ports": []});
    set(&mut zone, "default/bare", json!({"spec": {"clusterIP": "None"}}), &[bare]);
    set(&mut zone, "default/other", json!({"spec": {"type": "ExternalName", "externalName": "Example.org"}}), &[]);
    set(&mut zone, "default/ip", json!({"spec": {"type": "ExternalName", "externalName": "1.2.3.4"}}), &[]);
    zone
}

pub fn text(record: &Record) -> String {
    let data = match &record.data {
        Data::A(ip) => format!("A {ip}"),
        Data::Aaaa(ip) => format!("AAAA {ip}"),
        Data::Cname(name) => format!("CNAME {name}"),
        Data::Ns(name) => format!("NS {name}"),
        Data::Ptr(name) => format!("PTR {name}"),
        Data::Soa(soa) => format!("SOA {} {} {}", soa.primary, soa.mailbox, soa.minimum),
        Data::Srv { priority, weight, port, target } => format!("SRV {priority} {weight} {port} {target}"),
        Data::Txt(text) => format!("TXT {text}"),
        Data::Other { kind, data } => format!("TYPE{kind} {}", String::from_utf8_lossy(data)),
    };
    format!("{} {data}", record.name)
}

fn ask(zone: &Zone, question: &str, kind: u16, turn: usize) -> String {
    let asked = name(question);
    let asked = Asked { name: asked.bytes(), kind, turn, most: 100 };
    let texts = |records: &[Record]| records.iter().map(text).collect::<Vec<_>>().join(", ");
    match zone.find(asked) {
        Found::NotOurs => "somebody else's".into(),
        Found::Alias(record, other) => format!("{} then {other}", text(&record)),
        Found::Reply(reply) => {
            assert!(reply.authoritative);
            let mut out = texts(&reply.answers);
            if reply.answers.is_empty() {
                assert!(reply.authority[0].ttl == 5 && reply.authority.len() == 1, "{reply:?}");
                out = format!("{} {}", rcode::text(reply.code), reply.authority[0].name);
            }
            if !reply.additional.is_empty() {
                out += &format!(" with {}", texts(&reply.additional));
            }
            out
        }
    }
}

#[test]
fn what_names_answer() {
    use kind::*;
    let zone = cluster();
    let (none, nodata) = ("NXDOMAIN cluster.local.", "NOERROR cluster.local.");
    let rows: &[(&str, u16, &str)] = &[
        // A Service with addresses of its own.
        ("web.default.svc.cluster.local", A, "web.default.svc.cluster.local. A 10.96.0.7"),
        ("WEB.default.SVC.cluster.LOCAL", A, "web.default.svc.cluster.local. A 10.96.0.7"),
        ("web.default.svc.cluster.local", AAAA, "web.default.svc.cluster.local. AAAA fd00::7"),
        ("web.default.svc.cluster.local", MX, nodata),
        ("web.default.svc.cluster.local", ANY, "web.default.svc.cluster.local. TYPE13 \u{7}RFC8482\0"),
        (
            "web.default.svc.cluster.local",
            SRV,
            "web.default.svc.cluster.local. SRV 0 50 80 web.default.svc.cluster.local., \
             web.default.svc.cluster.local. SRV 0 50 53 web.default.svc.cluster.local. with \
             web.default.svc.cluster.local. A 10.96.0.7, web.default.svc.cluster.local. AAAA fd00::7",
        ),
        (
            "_http._tcp.web.default.svc.cluster.local",
            SRV,
            "_http._tcp.web.default.svc.cluster.local. SRV 0 100 80 web.default.svc.cluster.local. with \
             web.default.svc.cluster.local. A 10.96.0.7, web.default.svc.cluster.local. AAAA fd00::7",
        ),
        ("_http._tcp.web.default.svc.cluster.local", A, "_http._tcp.web.default.svc.cluster.local. A 10.96.0.7"),
        ("_http._udp.web.default.svc.cluster.local", SRV, none),
        ("http.tcp.web.default.svc.cluster.local", SRV, none),
        ("_nope._tcp.web.default.svc.cluster.local", SRV, none),
        ("10-244-0-9.web.default.svc.cluster.local", A, "10-244-0-9.web.default.svc.cluster.local. A 10.244.0.9"),
        ("10-244-0-8.web.default.svc.cluster.local", A, none),
        // A headless one: endpoints that are ready, by their names.
        (
            "db.default.svc.cluster.local",
            A,
            "db.default.svc.cluster.local. A 10.244.0.5, db.default.svc.cluster.local. A 10.244.0.6, \
             db.default.svc.cluster.local. A 10.244.0.7",
        ),
        ("db.default.svc.cluster.local", AAAA, "db.default.svc.cluster.local. AAAA fd00::5"),
        ("db.default.svc.cluster.local", TXT, nodata),
        ("db-0.db.default.svc.cluster.local", A, "db-0.db.default.svc.cluster.local. A 10.244.0.5"),
        ("db-0.db.default.svc.cluster.local", AAAA, "db-0.db.default.svc.cluster.local. AAAA fd00::5"),
        ("db-1.db.default.svc.cluster.local", AAAA, nodata),
        ("db-3.db.default.svc.cluster.local", A, none),
        ("10-244-0-7.db.default.svc.cluster.local", A, "10-244-0-7.db.default.svc.cluster.local. A 10.244.0.7"),
        ("10-244-0-5.db.default.svc.cluster.local", A, none),
        (
            "_pg._tcp.db.default.svc.cluster.local",
            SRV,
            "_pg._tcp.db.default.svc.cluster.local. SRV 0 25 5432 db-0.db.default.svc.cluster.local., \
             _pg._tcp.db.default.svc.cluster.local. SRV 0 25 5432 db-1.db.default.svc.cluster.local., \
             _pg._tcp.db.default.svc.cluster.local. SRV 0 25 5432 10-244-0-7.db.default.svc.cluster.local., \
             _pg._tcp.db.default.svc.cluster.local. SRV 0 25 5433 db-0.db.default.svc.cluster.local. with \
             db-0.db.default.svc.cluster.local. A 10.244.0.5, db-1.db.default.svc.cluster.local. A 10.244.0.6, \
             10-244-0-7.db.default.svc.cluster.local. A 10.244.0.7, db-0.db.default.svc.cluster.local. AAAA fd00::5",
        ),
        ("_pg._udp.db.default.svc.cluster.local", SRV, none),
        ("none.default.svc.cluster.local", A, none),
        ("bare.default.svc.cluster.local", A, "bare.default.svc.cluster.local. A 10.244.0.11"),
        ("bare.default.svc.cluster.local", SRV, nodata),
        // Another name.
        ("other.default.svc.cluster.local", A, "other.default.svc.cluster.local. CNAME example.org. then example.org."),
        ("other.default.svc.cluster.local", CNAME, "other.default.svc.cluster.local. CNAME example.org."),
        ("web.other.default.svc.cluster.local", A, none),
        ("_a._tcp.other.default.svc.cluster.local", SRV, none),
        ("ip.default.svc.cluster.local", A, none),
        // What names lead to names.
        ("cluster.local", A, nodata),
        ("svc.cluster.local", A, nodata),
        ("pod.cluster.local", A, nodata),
        ("dns.cluster.local", A, nodata),
        ("default.svc.cluster.local", A, nodata),
        ("empty.svc.cluster.local", A, nodata),
        ("gone.svc.cluster.local", A, none),
        ("web.gone.svc.cluster.local", A, none),
        ("default.pod.cluster.local", A, nodata),
        ("gone.pod.cluster.local", A, none),
        ("foo.cluster.local", A, none),
        ("a.b.c.d.e.f.g.h.cluster.local", A, none),
        ("web.default.svc.cluster.local.default.svc.cluster.local", A, none),
        // No wildcards.
        ("*.default.svc.cluster.local", A, none),
        ("web.*.svc.cluster.local", A, none),
        ("any.default.svc.cluster.local", A, none),
        // Pods by their address.
        ("10-244-0-9.default.pod.cluster.local", A, "10-244-0-9.default.pod.cluster.local. A 10.244.0.9"),
        ("10-244-0-9.default.pod.cluster.local", AAAA, nodata),
        ("fd00--9.default.pod.cluster.local", AAAA, "fd00--9.default.pod.cluster.local. AAAA fd00::9"),
        ("10-244-0-9.gone.pod.cluster.local", A, none),
        ("web.default.pod.cluster.local", A, none),
        ("a.10-244-0-9.default.pod.cluster.local", A, none),
        // The zone itself.
        ("dns-version.cluster.local", TXT, "dns-version.cluster.local. TXT 1.1.0"),
        ("dns-version.cluster.local", A, nodata),
        ("cluster.local", SOA, "cluster.local. SOA ns.dns.cluster.local. hostmaster.cluster.local. 5"),
        ("cluster.local", NS, "cluster.local. NS ns.dns.cluster.local. with ns.dns.cluster.local. A 10.96.0.10"),
        ("ns.dns.cluster.local", A, "ns.dns.cluster.local. A 10.96.0.10"),
        // Names of addresses.
        ("7.0.96.10.in-addr.arpa", PTR, "7.0.96.10.in-addr.arpa. PTR web.default.svc.cluster.local."),
        ("7.0.96.10.in-addr.arpa", A, "NOERROR in-addr.arpa."),
        ("6.0.244.10.in-addr.arpa", PTR, "6.0.244.10.in-addr.arpa. PTR db-1.db.default.svc.cluster.local."),
        ("8.0.244.10.in-addr.arpa", PTR, "NXDOMAIN in-addr.arpa."),
        ("8.8.8.8.in-addr.arpa", PTR, "somebody else's"),
        ("in-addr.arpa", NS, "somebody else's"),
        // Somebody else's.
        ("local", A, "somebody else's"),
        ("xcluster.local", A, "somebody else's"),
        ("cluster.local.example.org", A, "somebody else's"),
        (".", NS, "somebody else's"),
    ];
    for (question, kind, want) in rows {
        assert_eq!(ask(&zone, question, *kind, 0), *want, "{question} {}", kind::text(*kind));
    }
}

#[test]
fn one_number_over_two_protocols_is_one_record() {
    let mut zone = cluster();
    let ports = json!([{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}]);
    set(&mut zone, "default/both", json!({"spec": {"clusterIP": "10.96.0.9", "ports": ports}}), &[]);
    let both = "both.default.svc.cluster.local";
    let want = format!("{both}. SRV 0 100 53 {both}. with {both}. A 10.96.0.9");
    assert_eq!(ask(&zone, both, kind::SRV, 0), want);
}

#[test]
fn everybody_begins_with_another_one() {
    let zone = cluster();
    let first = |turn| ask(&zone, "db.default.svc.cluster.local", kind::A, turn).split(", ").next().map(str::to_owned);
    let firsts: std::collections::BTreeSet<_> = (0..4).map(first).collect();
    assert_eq!(firsts.len(), 3);
}

#[test]
fn what_is_gone_answers_nothing() {
    let mut zone = cluster();
    let before = zone.serial;
    for key in ["default/web", "default/db", "default/none", "default/bare", "default/other"] {
        let (namespace, name) = key.split_once('/').expect("a key");
        assert!(zone.set(&Key::new(namespace, name), None), "{key}");
        assert!(!zone.set(&Key::new(namespace, name), None), "{key}");
    }
    assert_eq!(zone.serial, before + 5);
    assert!(zone.clusters.is_empty() && zone.endpoints.is_empty());
    assert_eq!(ask(&zone, "7.0.96.10.in-addr.arpa", kind::PTR, 0), "NXDOMAIN in-addr.arpa.");
    assert_eq!(ask(&zone, "web.default.svc.cluster.local", kind::A, 0), "NXDOMAIN cluster.local.");
    zone.set_namespace("default", false);
    zone.set_namespace("empty", false);
    assert!(zone.namespaces.is_empty());
}

#[test]
fn an_address_belongs_to_who_has_it_now() {
    let mut zone = cluster();
    let service = |ip: &str| json!({"spec": {"clusterIP": ip, "clusterIPs": [ip]}});
    // The new owner is heard of before the old one's end.
    set(&mut zone, "default/new", service("10.96.0.7"), &[]);
    zone.set(&Key::new("default", "web"), None);
    let want = "7.0.96.10.in-addr.arpa. PTR new.default.svc.cluster.local.";
    assert_eq!(ask(&zone, "7.0.96.10.in-addr.arpa", kind::PTR, 0), want);
    assert!(!set(&mut zone, "default/new", service("10.96.0.7"), &[]), "the same again is no change");
    assert!(set(&mut zone, "default/new", service("10.96.0.8"), &[]));
    assert_eq!(ask(&zone, "8.0.96.10.in-addr.arpa", kind::PTR, 0), want.replace('7', "8"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Endpoints that come and go one by one leave the names that a zone has which was told of the last state only.
    #[test]
    fn any_history_ends_as_a_fresh_zone(
        history in proptest::collection::vec((0..3_usize, proptest::option::of(proptest::collection::vec((0..6_u8, 0..3_u8), 0..6))), 1..20),
    ) {
        let service = |endpoints: &[(u8, u8)]| {
            let all: Vec<Value> = endpoints
                .iter()
                .map(|(address, host)| json!({"addresses": [format!("10.244.0.{address}")], "hostname": format!("h{host}")}))
                .collect();
            (json!({"spec": {"clusterIP": "None"}}), json!({"endpoints": all, "ports": []}))
        };
        let keys = ["default/a", "default/b", "other/a"];
        let told = |zone: &mut Zone, key: &str, endpoints: &Option<Vec<(u8, u8)>>| match endpoints {
            Some(endpoints) => {
                let (service, slice) = service(endpoints);
                set(zone, key, service, &[slice]);
            }
            None => {
                let (namespace, name) = key.split_once('/').expect("a key");
                zone.set(&Key::new(namespace, name), None);
            }
        };
        let (mut zone, mut last) = (Zone::new(settings(), 1), BTreeMap::new());
        for (key, endpoints) in &history {
            told(&mut zone, keys[*key], endpoints);
            last.insert(keys[*key], endpoints.clone());
        }
        let mut fresh = Zone::new(settings(), 1);
        last.iter().for_each(|(key, endpoints)| told(&mut fresh, key, endpoints));
        let said = |zone: &Zone| {
            let mut all: Vec<(IpAddr, Vec<String>)> = zone
                .endpoints
                .iter()
                .map(|(address, names)| {
                    let mut names: Vec<String> = names.iter().map(|(key, name)| format!("{key} {name}")).collect();
                    names.sort();
                    (*address, names)
                })
                .collect();
            all.sort();
            all
        };
        prop_assert_eq!(said(&zone), said(&fresh));
    }
}
