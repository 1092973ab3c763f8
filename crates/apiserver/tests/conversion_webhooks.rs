//! Versions that a webhook converts: what it says is what clients of the other version get, and what it may
//! not say is refused.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use common::custom::{DEFINITIONS, cron_tab, cron_tabs, establish, until};
use common::{Answer, Server};
use http_body_util::BodyExt;
use pki::{Authority, Request};
use serde_json::{Value, json};
use stdx::clock::RealClock;
use stdx::shutdown::Stage;
use transport::serve::Limits;
use transport::tls::{self, Identity};
use transport::{Handler, Responding};

const TABS: &str = "/apis/stable.example.com/v1/namespaces/default/crontabs";
const OLD: &str = "/apis/stable.example.com/v1beta1/namespaces/default/crontabs";

/// Calls `cronSpec` `schedule` in `v1beta1`; the label `lie` of an object says how to convert it wrongly.
#[derive(Default)]
struct Converter {
    asked: AtomicUsize,
}

impl Converter {
    fn convert(mut object: Value, wanted: &str) -> Value {
        let (from, to) = if wanted.ends_with("/v1") { ("schedule", "cronSpec") } else { ("cronSpec", "schedule") };
        object["apiVersion"] = json!(wanted);
        if let Some(spec) = object["spec"].as_object_mut()
            && let Some(value) = spec.remove(from)
        {
            spec.insert(to.into(), value);
        }
        match object["metadata"]["labels"]["lie"].as_str() {
            Some("name") => object["metadata"]["name"] = json!("other"),
            Some("version") => object["apiVersion"] = json!("stable.example.com/v9"),
            Some("metadata") => drop(object.as_object_mut().map(|o| o.remove("metadata"))),
            _ => {}
        }
        object
    }
}

impl Handler for Converter {
    fn call(&self, request: transport::Request) -> Responding {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let body = request.into_body().collect().await.map_err(|e| transport::Error::Invalid(e.to_string()))?;
            let mut review: Value = serde_json::from_slice(&body.to_bytes()).expect("a review");
            let request = review["request"].take();
            let wanted = request["desiredAPIVersion"].as_str().unwrap_or_default();
            let objects = request["objects"].as_array().cloned().unwrap_or_default();
            let refuses = objects.iter().any(|o| o["metadata"]["labels"]["lie"] == "refuse");
            let converted: Vec<Value> = objects.into_iter().map(|o| Self::convert(o, wanted)).collect();
            let result = match refuses {
                true => json!({"status": "Failure", "message": "I will not"}),
                false => json!({"status": "Success"}),
            };
            review["response"] = json!({"uid": request["uid"], "convertedObjects": converted, "result": result});
            Ok(http::Response::new(transport::full(review.to_string())))
        })
    }
}

struct World {
    server: Server,
    converter: Arc<Converter>,
    serving: Stage,
}

/// A server whose crontabs have two versions between which a webhook converts.
async fn world() -> World {
    let clock = RealClock::shared();
    let authority = Authority::generate("test", clock.wall()).expect("authority");
    let issued = authority.issue(&Request::server("webhook", ["127.0.0.1"]), clock.wall()).expect("issued");
    let identity = Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).expect("identity");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    let config = tls::server(&clock, identity).expect("TLS");
    let (serving, converter) = (Stage::new(), Arc::new(Converter::default()));
    let (stage, handler) = (serving.clone(), converter.clone());
    serving.spawn(async move {
        transport::serve::serve(listener, config, handler, Limits::default(), clock, &stage).await.expect("serves");
    });
    let bundle = base64::engine::general_purpose::STANDARD.encode(authority.certificate());
    let mut tabs = cron_tabs();
    tabs["spec"]["versions"][0].as_object_mut().expect("a version").remove("selectableFields");
    let mut beta = tabs["spec"]["versions"][0].clone();
    beta["name"] = json!("v1beta1");
    beta["storage"] = json!(false);
    beta["schema"]["openAPIV3Schema"]["properties"]["spec"] = json!({"type": "object", "required": ["schedule"],
        "properties": {"schedule": {"type": "string"}, "image": {"type": "string"}, "replicas": {"type": "integer"}}});
    tabs["spec"]["versions"].as_array_mut().expect("versions").push(beta);
    tabs["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
        "clientConfig": {"url": format!("https://127.0.0.1:{port}/convert"), "caBundle": bundle}}});
    let server = Server::start().await;
    establish(&server, &tabs).await;
    World { server, converter, serving }
}

impl World {
    async fn get(&self, path: &str) -> Answer {
        self.server.root.get(path).await
    }

    async fn end(self) {
        self.serving.finish(&self.server.clock, std::time::Duration::from_secs(5)).await;
    }
}

#[tokio::test]
async fn a_webhook_converts_both_ways() {
    let world = world().await;
    let root = &world.server.root;
    let mut watch = root.watch(&format!("{OLD}?watch=1")).await;
    let mut old = cron_tab("a");
    old["apiVersion"] = json!("stable.example.com/v1beta1");
    old["spec"] = json!({"schedule": "x"});
    let made = root.post(OLD, &old).await.ok();
    assert_eq!((&made["apiVersion"], &made["spec"]["schedule"]), (&json!("stable.example.com/v1beta1"), &json!("x")));
    let new = world.get(&format!("{TABS}/a")).await.ok();
    assert_eq!((&new["spec"]["cronSpec"], new["spec"].get("schedule")), (&json!("x"), None));
    assert_eq!(watch.next().await.expect("an event")["object"]["spec"]["schedule"], "x");
    for name in ["b", "c"] {
        root.post(TABS, &cron_tab(name)).await.ok();
    }
    let list = world.get(OLD).await.ok();
    let schedules: Vec<&Value> =
        list["items"].as_array().expect("items").iter().map(|i| &i["spec"]["schedule"]).collect();
    assert_eq!(schedules, [&json!("x"), &json!("* * * * */5"), &json!("* * * * */5")]);
    // What was converted for one is kept for the next.
    let asked = world.converter.asked.load(Ordering::SeqCst);
    assert_eq!(world.get(OLD).await.ok(), list);
    assert_eq!(world.converter.asked.load(Ordering::SeqCst), asked);
    let patched = root.patch("merge", &format!("{OLD}/b"), &json!({"spec": {"schedule": "y"}})).await.ok();
    assert_eq!(patched["spec"]["schedule"], "y");
    assert_eq!(world.get(&format!("{TABS}/b")).await.ok()["spec"]["cronSpec"], "y");
    root.delete(&format!("{OLD}/a")).await.ok();
    world.end().await;
}

#[tokio::test]
async fn a_webhook_that_lies_is_refused() {
    let world = world().await;
    let who = "conversion webhook for stable.example.com/v1, Kind=CronTab";
    for (lie, want) in [
        ("refuse", format!("500 : {who} failed: I will not")),
        (
            "name",
            format!("500 : {who} returned invalid converted object at index 0: must have the same name: name != other"),
        ),
        (
            "version",
            format!(
                "500 : {who} returned invalid converted object at index 0: invalid groupVersion (expected \
                 stable.example.com/v1beta1, received stable.example.com/v9)"
            ),
        ),
        (
            "metadata",
            format!("500 : {who} returned invalid converted object at index 0: must have the same name: metadata != "),
        ),
    ] {
        let mut object = cron_tab(lie);
        object["metadata"]["labels"] = json!({ "lie": lie });
        world.server.root.post(TABS, &object).await.ok();
        assert_eq!(world.get(&format!("{OLD}/{lie}")).await.failure(), want);
        // Its own version is as it was, and it can be deleted.
        assert_eq!(world.get(&format!("{TABS}/{lie}")).await.code, 200);
        world.server.root.delete(&format!("{TABS}/{lie}")).await.ok();
    }
    world.end().await;
}

#[tokio::test]
async fn a_webhook_that_is_not_there_stops_nothing_else() {
    let world = world().await;
    world.server.root.post(TABS, &cron_tab("a")).await.ok();
    world.serving.finish(&world.server.clock, std::time::Duration::from_secs(5)).await;
    let answer = world.get(&format!("{OLD}/a")).await;
    assert_eq!(answer.code, 500);
    assert!(
        answer.failure().contains("conversion webhook for stable.example.com/v1, Kind=CronTab failed"),
        "{}",
        answer.text()
    );
    assert_eq!(world.get(&format!("{TABS}/a")).await.code, 200);
    assert_eq!(world.get("/api/v1/namespaces").await.code, 200);
}

/// `ADDED a`, `DELETED b`: the next events.
async fn events(watch: &mut common::Watch, count: usize) -> Vec<String> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let event = watch.next().await.expect("an event");
        let object = &event["object"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        seen.push(format!("{} {}", text(&event["type"]), text(&object["metadata"]["name"])));
    }
    seen
}

#[tokio::test]
async fn selectors_see_objects_in_the_version_that_is_asked_for() {
    let world = world().await;
    let root = &world.server.root;
    // The older version can be selected by a field that the newer one has not.
    let patch = json!([
        {"op": "add", "path": "/spec/versions/0/selectableFields", "value": [{"jsonPath": ".spec.cronSpec"}]},
        {"op": "add", "path": "/spec/versions/1/selectableFields", "value": [{"jsonPath": ".spec.schedule"}]},
    ]);
    let definition = format!("{DEFINITIONS}/crontabs.stable.example.com");
    root.patch("json", &definition, &patch).await.ok();
    let selector = "fieldSelector=spec.schedule%3Dx";
    until(&world.server, &format!("{OLD}?{selector}"), |code, _| code == 200).await;
    let tab = |name: &str, schedule: &str| {
        let mut tab = cron_tab(name);
        tab["spec"]["cronSpec"] = json!(schedule);
        tab
    };
    for (name, schedule) in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "x")] {
        root.post(TABS, &tab(name, schedule)).await.ok();
    }
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().into_iter().flatten();
        items.map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(names(&world.get(&format!("{OLD}?{selector}")).await.ok()), ["a", "c", "d"]);
    assert_eq!(names(&world.get(&format!("{TABS}?fieldSelector=spec.cronSpec%3Dy")).await.ok()), ["b"]);
    let unknown = world.get(&format!("{TABS}?{selector}")).await;
    assert_eq!(unknown.code, 400, "{}", unknown.text());
    // Part by part.
    let first = world.get(&format!("{OLD}?{selector}&limit=2")).await.ok();
    assert_eq!(names(&first), ["a", "c"]);
    let token = first["metadata"]["continue"].as_str().expect("there is more");
    let rest = world.get(&format!("{OLD}?{selector}&limit=2&continue={token}")).await.ok();
    assert_eq!((names(&rest), rest["metadata"].get("continue")), (vec!["d".to_owned()], None));
    // What comes to match is added, what no longer does is deleted, and the rest is not seen.
    let mut watch = root.watch(&format!("{OLD}?watch=1&{selector}")).await;
    assert_eq!(events(&mut watch, 3).await, ["ADDED a", "ADDED c", "ADDED d"]);
    let change = async |name: &str, spec: Value| {
        root.patch("merge", &format!("{TABS}/{name}"), &json!({"spec": spec})).await.ok();
    };
    change("b", json!({"replicas": 7})).await;
    change("b", json!({"cronSpec": "x"})).await;
    change("a", json!({"replicas": 7})).await;
    change("a", json!({"cronSpec": "y"})).await;
    root.delete(&format!("{TABS}/c")).await.ok();
    assert_eq!(events(&mut watch, 4).await, ["ADDED b", "MODIFIED a", "DELETED a", "DELETED c"]);
    // A collection is deleted by the same measure.
    root.delete(&format!("{OLD}?{selector}")).await.ok();
    assert_eq!(names(&world.get(TABS).await.ok()), ["a"]);
    world.end().await;
}
