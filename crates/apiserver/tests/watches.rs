//! Watches: what they begin with, what they carry, how they end.

mod common;

use apiserver::cacher::Limits;
use common::{MAPS, Server, config_map};
use serde_json::json;

fn revision(object: &serde_json::Value) -> String {
    object["metadata"]["resourceVersion"].as_str().expect("revision").to_owned()
}

#[tokio::test]
async fn changes_come_once_and_in_order() {
    let server = Server::start().await;
    let root = &server.root;
    let made = root.post(MAPS, &config_map("a", "1")).await.ok();
    let mut all = root.watch(&format!("{MAPS}?watch=1")).await;
    let mut later = root.watch(&format!("{MAPS}?watch=1&resourceVersion={}", revision(&made))).await;
    let updated = root.put(&format!("{MAPS}/a"), &config_map("a", "2")).await.ok();
    root.post(MAPS, &config_map("b", "1")).await.ok();
    root.delete(&format!("{MAPS}/a")).await.ok();
    assert_eq!(all.line("/data/k").await, "ADDED a 1");
    for watch in [&mut all, &mut later] {
        let event = watch.next().await.expect("event");
        assert_eq!((&event["type"], &event["object"]), (&json!("MODIFIED"), &updated));
        assert_eq!(watch.line("/kind").await, "ADDED b ConfigMap");
        let gone = watch.next().await.expect("event");
        assert_eq!((&gone["type"], &gone["object"]["data"]["k"]), (&json!("DELETED"), &json!("2")));
        assert!(revision(&gone["object"]).parse::<u64>().ok() > revision(&updated).parse::<u64>().ok());
    }
}

#[tokio::test]
async fn what_stops_matching_is_gone_and_what_starts_is_new() {
    let server = Server::start().await;
    let root = &server.root;
    let mut watch = root.watch(&format!("{MAPS}?watch=1&labelSelector=on")).await;
    root.post(MAPS, &config_map("a", "1")).await.ok();
    let one = format!("{MAPS}/a");
    for labels in [json!({"on": "1"}), json!({"on": "2"}), json!({"on": null})] {
        root.patch("merge", &one, &json!({"metadata": {"labels": labels}})).await.ok();
    }
    assert_eq!(watch.line("/metadata/labels/on").await, "ADDED a 1");
    assert_eq!(watch.line("/metadata/labels/on").await, "MODIFIED a 2");
    assert_eq!(watch.line("/metadata/labels/on").await, "DELETED a 2");
    let mut named = root.watch(&format!("{MAPS}?watch=1&fieldSelector=metadata.name%3Db")).await;
    root.post(MAPS, &config_map("c", "1")).await.ok();
    root.post(MAPS, &config_map("b", "1")).await.ok();
    assert_eq!(named.line("/kind").await, "ADDED b ConfigMap");
}

#[tokio::test]
async fn a_streaming_list_ends_with_its_bookmark() {
    let server = Server::start().await;
    let root = &server.root;
    root.post(MAPS, &config_map("a", "1")).await.ok();
    root.post(MAPS, &config_map("b", "1")).await.ok();
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = root.watch(&format!("{MAPS}?{query}")).await;
    assert_eq!(watch.line("/kind").await, "ADDED a ConfigMap");
    assert_eq!(watch.line("/kind").await, "ADDED b ConfigMap");
    let end = watch.next().await.expect("bookmark");
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!((&end["object"]["kind"], &end["object"]["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    assert_eq!(end["object"]["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    let current = root.get(MAPS).await.ok();
    assert_eq!(revision(&end["object"]), revision(&current));
    let mut from_now = root
        .watch(&format!(
            "{MAPS}?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        ))
        .await;
    root.post(MAPS, &config_map("c", "1")).await.ok();
    assert_eq!(watch.line("/kind").await, "ADDED c ConfigMap");
    assert_eq!(from_now.line("/kind").await, "ADDED c ConfigMap");
}

#[tokio::test]
async fn a_watch_of_the_whole_state_marks_its_end_for_those_who_know_bookmarks() {
    let server = Server::start().await;
    let root = &server.root;
    root.post(MAPS, &config_map("a", "1")).await.ok();
    for query in ["allowWatchBookmarks=true", "allowWatchBookmarks=true&resourceVersion=0"] {
        let mut watch = root.watch(&format!("{MAPS}?watch=1&{query}")).await;
        assert_eq!(watch.line("/kind").await, "ADDED a ConfigMap", "{query}");
        let end = watch.next().await.expect("bookmark");
        assert_eq!(end["object"]["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}), "{query}");
    }
    let mut plain = root.watch(&format!("{MAPS}?watch=1&resourceVersion=0")).await;
    assert_eq!(plain.line("/kind").await, "ADDED a ConfigMap");
    root.post(MAPS, &config_map("b", "1")).await.ok();
    assert_eq!(plain.line("/kind").await, "ADDED b ConfigMap");
}

#[tokio::test]
async fn a_watch_may_begin_where_nothing_has_happened_yet() {
    let server = Server::start().await;
    let root = &server.root;
    let made = root.post(MAPS, &config_map("a", "1")).await.ok();
    let future = revision(&made).parse::<u64>().expect("a number") + 2;
    let mut watch = root.watch(&format!("{MAPS}?watch=1&resourceVersion={future}&allowWatchBookmarks=true")).await;
    for name in ["b", "c", "d"] {
        root.post(MAPS, &config_map(name, "1")).await.ok();
    }
    assert_eq!(watch.line("/kind").await, "ADDED d ConfigMap");
    // A whole state that has yet to come is waited for a while, then told in the stream.
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=1000000";
    let mut never = root.watch(&format!("{MAPS}?watch=1&{query}")).await;
    let event = never.next().await.expect("event");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(504)));
    assert_eq!(event["object"]["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(never.next().await, None);
}

#[tokio::test]
async fn events_enter_and_leave_a_selector_in_both_versions() {
    let server = Server::start().await;
    let root = &server.root;
    let events = "/api/v1/namespaces/default/events";
    let mut event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default", "name": "web"},
        "reason": "Started", "type": "Normal"});
    let newer = "/apis/events.k8s.io/v1/namespaces/default/events";
    let mut old =
        root.watch(&format!("{events}?watch=1&fieldSelector=involvedObject.name%3Dweb,reason%3DStarted")).await;
    let mut new = root.watch(&format!("{newer}?watch=1&fieldSelector=regarding.name%3Dweb,reason%3DStarted")).await;
    let one = format!("{events}/e");
    let mut other = event.clone();
    other["metadata"]["name"] = json!("f");
    other["involvedObject"]["name"] = json!("other");
    root.post(events, &other).await.ok();
    root.post(events, &event).await.ok();
    event["reason"] = json!("Stopped");
    root.put(&one, &event).await.ok();
    assert_eq!(old.line("/involvedObject/name").await, "ADDED e web");
    assert_eq!(new.line("/regarding/name").await, "ADDED e web");
    assert_eq!(old.line("/reason").await, "DELETED e Started");
    assert_eq!(new.line("/reason").await, "DELETED e Started");
}

#[tokio::test]
async fn a_forgotten_revision_is_told_in_the_stream() {
    let server = Server::start_with(|config| {
        config.limits = Limits { changes: 2, ..Limits::default() };
    })
    .await;
    let root = &server.root;
    let made = root.post(MAPS, &config_map("a", "1")).await.ok();
    for i in 0..5 {
        root.put(&format!("{MAPS}/a"), &config_map("a", &format!("{i}+"))).await.ok();
    }
    let mut watch = root.watch(&format!("{MAPS}?watch=1&resourceVersion={}", revision(&made))).await;
    let event = watch.next().await.expect("event");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(event["object"]["reason"], "Expired");
    let text = event["object"]["message"].as_str().expect("message");
    assert!(text.starts_with(&format!("too old resource version: {} (", revision(&made))), "{text}");
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_watch_ends_when_its_time_is_over_or_the_server_stops() {
    let server = Server::start().await;
    let mut short = server.root.watch(&format!("{MAPS}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true")).await;
    while short.next().await.is_some() {}
    let mut long = server.root.watch(&format!("{MAPS}?watch=1")).await;
    server.stage.stop();
    assert_eq!(long.next().await, None);
}

#[tokio::test]
async fn a_watch_may_show_tables_or_metadata() {
    let server = Server::start().await;
    let root = &server.root;
    root.post(MAPS, &config_map("a", "1")).await.ok();
    root.post(MAPS, &config_map("b", "1")).await.ok();
    let open = |kind: &'static str| {
        let root = root.clone();
        async move {
            let accept = format!("application/json;as={kind};v=v1;g=meta.k8s.io,application/json");
            let uri = format!("{MAPS}?watch=1&timeoutSeconds=1");
            let response = root.open("GET", &uri, &[("accept", &accept)], "").await;
            let frames = common::frames(response.into_body()).await;
            frames.iter().map(|f| serde_json::from_slice(f).expect("event")).collect::<Vec<serde_json::Value>>()
        }
    };
    let tables = open("Table").await;
    let seen: Vec<_> = tables
        .iter()
        .map(|e| {
            (e["object"]["columnDefinitions"].as_array().map(Vec::len), e["object"]["rows"][0]["cells"][0].clone())
        })
        .collect();
    assert_eq!(seen, [(Some(3), json!("a")), (Some(0), json!("b"))]);
    let metadata = open("PartialObjectMetadata").await;
    assert_eq!(metadata[0]["object"]["kind"], "PartialObjectMetadata");
    assert!(metadata[0]["object"].get("data").is_none());
}

#[tokio::test]
async fn nonsense_is_refused_before_the_stream_begins() {
    let server = Server::start().await;
    for (query, code) in [
        ("sendInitialEvents=true", 422),
        ("sendInitialEvents=false", 422),
        ("sendInitialEvents=true&resourceVersionMatch=Exact", 422),
        ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=x", 422),
        ("resourceVersionMatch=NotOlderThan", 422),
        ("resourceVersion=x", 400),
        ("labelSelector=a%20b%20c", 400),
        ("fieldSelector=no.such%3Dx", 400),
    ] {
        let answer = server.root.get(&format!("{MAPS}?watch=1&{query}")).await;
        assert_eq!(answer.code, code, "{query}: {}", answer.text());
    }
    let yaml = server.root.send("GET", &format!("{MAPS}?watch=1"), &[("accept", "application/yaml")], "").await;
    assert_eq!(yaml.code, 406);
}

#[tokio::test]
async fn the_older_watch_paths_serve_too() {
    let server = Server::start().await;
    let root = &server.root;
    root.post(MAPS, &config_map("a", "1")).await.ok();
    root.post(MAPS, &config_map("b", "1")).await.ok();
    let mut one = root.watch("/api/v1/watch/namespaces/default/configmaps/b").await;
    assert_eq!(one.line("/kind").await, "ADDED b ConfigMap");
    let mut all = root.watch("/api/v1/watch/configmaps").await;
    assert_eq!(all.line("/kind").await, "ADDED a ConfigMap");
}
