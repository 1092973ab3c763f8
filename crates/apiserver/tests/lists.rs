//! Lists: which state, which part, in which form.

mod common;

use apiserver::cacher::Limits;
use common::{Client, MAPS, Server, config_map};
use serde_json::{Value, json};

const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json");

async fn filled(server: &Server, names: &[&str]) {
    for name in names {
        let mut object = config_map(name, "1");
        object["metadata"]["labels"] = json!({"name": name, "all": "yes"});
        server.root.post(MAPS, &object).await.ok();
    }
}

fn names(list: &Value) -> String {
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items.iter().filter_map(|i| i["metadata"]["name"].as_str()).collect::<Vec<_>>().join(" ")
}

async fn listed(client: &Client, query: &str) -> String {
    let answer = client.get(&format!("{MAPS}?{query}")).await;
    if answer.code == 200 { names(&answer.json()) } else { answer.failure() }
}

#[tokio::test]
async fn selectors_choose() {
    let server = Server::start().await;
    filled(&server, &["a", "b", "c"]).await;
    for (query, want) in [
        ("", "a b c"),
        ("labelSelector=name%3Da", "a"),
        ("labelSelector=name%20in%20(a,c)", "a c"),
        ("labelSelector=name!%3Da", "b c"),
        ("labelSelector=nothing", ""),
        ("fieldSelector=metadata.name%3Db", "b"),
        ("fieldSelector=metadata.name!%3Db", "a c"),
        ("fieldSelector=metadata.name%3Db&labelSelector=name%3Da", ""),
        ("fieldSelector=metadata.namespace%3Dother", ""),
        (
            "fieldSelector=spec.x%3Db",
            r#"400 BadRequest: "spec.x" is not a known field selector: only "metadata.name", "metadata.namespace""#,
        ),
    ] {
        assert_eq!(listed(&server.root, query).await, want, "{query}");
    }
    let everywhere = server.root.get("/api/v1/configmaps").await.ok();
    assert_eq!(names(&everywhere), "a b c");
    let item = &everywhere["items"][0];
    assert!(item.get("kind").is_none() && item["metadata"]["uid"].is_string(), "{item}");
    assert_eq!((&everywhere["kind"], &everywhere["apiVersion"]), (&json!("ConfigMapList"), &json!("v1")));
}

#[tokio::test]
async fn pages_show_one_state_whatever_happens_meanwhile() {
    let server = Server::start().await;
    let root = &server.root;
    filled(&server, &["a", "b", "c", "d", "e"]).await;
    let first = root.get(&format!("{MAPS}?limit=2")).await.ok();
    assert_eq!((names(&first).as_str(), &first["metadata"]["remainingItemCount"]), ("a b", &json!(3)));
    let revision = first["metadata"]["resourceVersion"].clone();
    filled(&server, &["bb"]).await;
    root.delete(&format!("{MAPS}/d")).await.ok();
    let token = |list: &Value| list["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    let second = root.get(&format!("{MAPS}?limit=2&continue={}", token(&first))).await.ok();
    assert_eq!((names(&second).as_str(), &second["metadata"]["resourceVersion"]), ("c d", &revision));
    let third = root.get(&format!("{MAPS}?limit=2&continue={}", token(&second))).await.ok();
    assert_eq!((names(&third).as_str(), token(&third).as_str()), ("e", ""));
    assert!(third["metadata"].get("remainingItemCount").is_none());
    let selected = root.get(&format!("{MAPS}?limit=2&labelSelector=all")).await.ok();
    assert!(!token(&selected).is_empty() && selected["metadata"].get("remainingItemCount").is_none());
    for (query, code) in [
        (format!("continue={}&resourceVersion=5", token(&first)), 400),
        ("continue=nonsense".to_owned(), 400),
        (format!("continue={}&resourceVersion=5&resourceVersionMatch=Exact", token(&first)), 422),
    ] {
        assert_eq!(root.get(&format!("{MAPS}?{query}")).await.code, code, "{query}");
    }
}

#[tokio::test]
async fn a_page_too_late_is_told_how_to_go_on() {
    let server = Server::start_with(|config| {
        config.limits = Limits { changes: 2, pages: 1, ..Limits::default() };
    })
    .await;
    let root = &server.root;
    filled(&server, &["a", "b", "c"]).await;
    let first = root.get(&format!("{MAPS}?limit=1")).await.ok();
    let token = first["metadata"]["continue"].as_str().expect("more").to_owned();
    for i in 0..5 {
        filled(&server, &[&format!("x{i}")]).await;
        // Another page pushes the first one's state out.
        root.get(&format!("{MAPS}?limit=1")).await.ok();
    }
    let late = root.get(&format!("{MAPS}?limit=2&continue={token}")).await;
    assert!(late.failure().starts_with("410 Expired: The provided continue parameter is too old"), "{}", late.text());
    let fresh = late.json()["metadata"]["continue"].as_str().expect("a way on").to_owned();
    assert_eq!(listed(root, &format!("limit=2&continue={fresh}")).await, "b c");
}

#[tokio::test]
async fn resource_versions_name_states() {
    let server = Server::start_with(|config| {
        config.limits = Limits { changes: 3, pages: 1, ..Limits::default() };
    })
    .await;
    let root = &server.root;
    filled(&server, &["a"]).await;
    let early = root.get(MAPS).await.ok()["metadata"]["resourceVersion"].as_str().expect("revision").to_owned();
    filled(&server, &["b"]).await;
    assert_eq!(listed(root, "").await, "a b");
    let exact = format!("resourceVersion={early}&resourceVersionMatch=Exact");
    assert_eq!(listed(root, &exact).await, "a");
    assert_eq!(listed(root, &format!("resourceVersion={early}&limit=9")).await, "a");
    assert_eq!(listed(root, &format!("resourceVersion={early}")).await, "a b");
    assert_eq!(listed(root, &format!("resourceVersion={early}&resourceVersionMatch=NotOlderThan")).await, "a b");
    assert_eq!(listed(root, "resourceVersion=0").await, "a b");
    filled(&server, &["c", "d", "e", "f"]).await;
    assert_eq!(listed(root, "").await, "a b c d e f");
    let gone = listed(root, &exact).await;
    assert_eq!(gone, "410 Expired: The resourceVersion for the provided list is too old.");
    let wrong = listed(root, "resourceVersion=1&resourceVersionMatch=Sometimes").await;
    assert!(wrong.contains("resourceVersionMatch: Unsupported value"), "{wrong}");
    let nonsense = listed(root, "resourceVersion=x").await;
    let want = "400 BadRequest: invalid resource version: resourceVersion: Invalid value: \"x\": \
                strconv.ParseUint: parsing \"x\": invalid syntax";
    assert_eq!(nonsense, want);
    // What is asked of the cache as it is comes whole.
    assert_eq!(listed(root, "resourceVersion=0&limit=2").await, "a b c d e f");
}

#[tokio::test]
async fn mistakes_in_selectors_and_tokens_are_told_in_the_usual_words() {
    use base64::Engine as _;
    let server = Server::start().await;
    let token = |text: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text);
    let key = "invalid continue token: continue key is not valid";
    for (query, want) in [
        ("labelSelector=a%20b".to_owned(), "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt".to_owned()),
        (
            "labelSelector=a/b/c".to_owned(),
            "unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a valid label key must consist of alphanumeric \
             characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or \
             'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an \
             optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
                .to_owned(),
        ),
        ("labelSelector=,".to_owned(), "found ',', expected: !, identifier, or 'end of string'".to_owned()),
        ("fieldSelector=a".to_owned(), "invalid selector: 'a'; can't understand 'a'".to_owned()),
        ("limit=x".to_owned(), "strconv.ParseInt: parsing \"x\": invalid syntax".to_owned()),
        (format!("continue={}", token(r#"{"v":"v9","rv":1,"start":"a"}"#)), format!("{key}: server does not recognize this encoded version v9")),
        (
            format!("continue={}", token(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#)),
            format!("{key}: incorrect encoded start resourceVersion (version meta.k8s.io/v1)"),
        ),
        (
            format!("continue={}", token(r#"{"v":"meta.k8s.io/v1","rv":1,"start":""}"#)),
            format!("{key}: encoded start key empty (version meta.k8s.io/v1)"),
        ),
        (format!("continue={}", token(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../kube-system/a"}"#)), format!("{key}: ../kube-system/a")),
        (
            format!("resourceVersion=5&continue={}", token(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"a"}"#)),
            "specifying resource version is not allowed when using continue".to_owned(),
        ),
    ] {
        assert_eq!(listed(&server.root, &query).await, format!("400 BadRequest: {want}"), "{query}");
    }
}

#[tokio::test]
async fn fields_are_those_the_kind_names() {
    let server = Server::start().await;
    let root = &server.root;
    let pods = "/api/v1/namespaces/default/pods";
    for (uri, query, want) in [
        (pods, "spec.host%3Dn", "200"),
        (pods, "status.podIPs%3D", "200"),
        (pods, "spec.hostNetwork%3Dfalse", "200"),
        (pods, "metadata.labels%3Dx", "400 BadRequest: field label not supported: metadata.labels"),
        ("/api/v1/nodes", "spec.unschedulable%3Dfalse", "200"),
        ("/api/v1/namespaces", "status.phase%3DActive", "200"),
        ("/api/v1/namespaces/default/secrets", "type%3Dx", "200"),
        ("/api/v1/namespaces/default/services", "spec.clusterIP%3Dx", "200"),
        ("/api/v1/namespaces/default/events", "source%3Dx", "200"),
        (
            "/api/v1/namespaces/default/events",
            "regarding.name%3Dx",
            "400 BadRequest: field label not supported: regarding.name",
        ),
        ("/apis/events.k8s.io/v1/namespaces/default/events", "regarding.name%3Dx", "200"),
        (
            "/apis/events.k8s.io/v1/namespaces/default/events",
            "source%3Dx",
            "400 BadRequest: field label not supported: source",
        ),
        (
            "/apis/apps/v1/namespaces/default/replicasets",
            "status.replicas%3D1",
            r#"400 BadRequest: "status.replicas" is not a known field selector: only "metadata.name", "metadata.namespace""#,
        ),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", "metadata.namespace%3D", "200"),
    ] {
        let answer = root.get(&format!("{uri}?fieldSelector={query}")).await;
        let got = if answer.code == 200 { "200".to_owned() } else { answer.failure() };
        assert_eq!(got, want, "{uri} {query}");
    }
}

#[tokio::test]
async fn a_state_that_has_not_come_is_not_waited_for_for_ever() {
    let server = Server::start().await;
    let answer = server.root.get(&format!("{MAPS}?resourceVersion=1000000")).await;
    let text = answer.failure();
    assert!(text.starts_with("504 Timeout: Timeout: Too large resource version: 1000000, current: "), "{text}");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(answer.json()["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
}

#[tokio::test]
async fn tables_and_metadata() {
    let server = Server::start().await;
    let root = &server.root;
    filled(&server, &["a", "b"]).await;
    let table = root.send("GET", &format!("{MAPS}?limit=1"), &[TABLE], "").await.ok();
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    let columns: Vec<&str> =
        table["columnDefinitions"].as_array().expect("columns").iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(columns, ["Name", "Data", "Age"]);
    let row = &table["rows"][0];
    assert_eq!((&row["cells"][0], &row["cells"][1]), (&json!("a"), &json!(1)));
    assert_eq!((&row["object"]["kind"], row["object"].get("data")), (&json!("PartialObjectMetadata"), None));
    assert_eq!(table["metadata"]["remainingItemCount"], 1);
    for (include, kind) in [("Object", json!("ConfigMap")), ("None", json!(null))] {
        let one = root.send("GET", &format!("{MAPS}/a?includeObject={include}"), &[TABLE], "").await.ok();
        assert_eq!((one["rows"].as_array().map(Vec::len), &one["rows"][0]["object"]["kind"]), (Some(1), &kind));
    }
    let wrong = root.send("GET", &format!("{MAPS}?includeObject=Some"), &[TABLE], "").await.failure();
    assert_eq!(wrong, r#"400 BadRequest: unrecognized includeObject value: "Some""#);
    let accept = |kind: &str| format!("application/json;as={kind};v=v1;g=meta.k8s.io");
    let list = root.send("GET", MAPS, &[("accept", &accept("PartialObjectMetadataList"))], "").await.ok();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!((&list["items"][1]["metadata"]["name"], list["items"][1].get("data")), (&json!("b"), None));
    let one = root.send("GET", &format!("{MAPS}/a"), &[("accept", &accept("PartialObjectMetadata"))], "").await.ok();
    assert_eq!((&one["kind"], &one["metadata"]["name"]), (&json!("PartialObjectMetadata"), &json!("a")));
}

#[tokio::test]
async fn the_form_follows_the_client() {
    let server = Server::start().await;
    let root = &server.root;
    filled(&server, &["a"]).await;
    let protobuf = "application/vnd.kubernetes.protobuf";
    let both = root.send("GET", MAPS, &[("accept", &format!("{protobuf},application/json"))], "").await;
    assert_eq!((both.code, both.header("content-type")), (200, protobuf));
    let pretty = root.get(&format!("{MAPS}/a?pretty=true")).await;
    assert!(pretty.text().starts_with("{\n  \"kind\": \"ConfigMap\",\n  \"apiVersion\": \"v1\","), "{}", pretty.text());
    assert_eq!(pretty.json(), root.get(&format!("{MAPS}/a")).await.ok());
}

#[tokio::test]
async fn long_answers_are_compressed_when_asked() {
    let server = Server::start().await;
    let root = &server.root;
    root.post(MAPS, &config_map("a", &"long ".repeat(40_000))).await.ok();
    let plain = root.get(MAPS).await;
    assert_eq!(plain.header("content-encoding"), "");
    let zipped = root.send("GET", MAPS, &[("accept-encoding", "gzip")], "").await;
    assert_eq!(zipped.header("content-encoding"), "gzip");
    assert!(zipped.body.len() < plain.body.len() / 10);
    let mut back = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&zipped.body[..]), &mut back).expect("gzip");
    assert_eq!(back, plain.body);
    let short = root.send("GET", "/api/v1/namespaces", &[("accept-encoding", "gzip")], "").await;
    assert_eq!(short.header("content-encoding"), "");
}

#[tokio::test]
async fn reads_see_what_was_written() {
    let server = Server::start().await;
    let root = &server.root;
    for i in 0..50 {
        let name = format!("m{i:02}");
        root.post(MAPS, &config_map(&name, "1")).await.ok();
        assert_eq!(root.get(&format!("{MAPS}/{name}")).await.code, 200);
        assert_eq!(names(&root.get(MAPS).await.ok()).split(' ').count(), i + 1);
    }
}

/// A token that names a revision that has not happened: nobody may be told that it has.
#[tokio::test]
async fn a_token_from_the_future_is_refused() {
    use base64::Engine as _;
    let server = Server::start().await;
    server.root.post(MAPS, &config_map("a", "1")).await.ok();
    let token = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .encode(r#"{"v":"meta.k8s.io/v1","rv":99999999999,"start":"a"}"#);
    let answer = server.root.get(&format!("{MAPS}?continue={token}")).await.failure();
    assert!(answer.starts_with("504 Timeout: Timeout: Too large resource version: 99999999999"), "{answer}");
}

/// A long list is made while it is sent: who does not read holds no copy of it.
#[tokio::test]
async fn a_long_list_comes_in_pieces() {
    use http_body_util::BodyExt as _;
    use std::io::Read as _;
    let server = Server::start().await;
    let names: Vec<String> = (0..10).map(|i| format!("m{i}")).collect();
    for name in &names {
        let mut map = config_map(name, "1");
        map["data"]["big"] = json!("x".repeat(100_000));
        server.root.post(MAPS, &map).await.ok();
    }
    for headers in [vec![], vec![("accept-encoding", "gzip")], vec![TABLE]] {
        let response = server.root.open("GET", MAPS, &headers, "").await;
        let zipped = response.headers().contains_key("content-encoding");
        let mut body = response.into_body();
        let (mut whole, mut longest) = (Vec::new(), 0);
        while let Some(frame) = body.frame().await {
            let data = frame.expect("frame").into_data().unwrap_or_default();
            longest = longest.max(data.len());
            whole.extend_from_slice(&data);
        }
        assert!(longest < 300_000, "{headers:?}: {longest} bytes at once");
        let mut text = Vec::new();
        if zipped {
            flate2::read::GzDecoder::new(&whole[..]).read_to_end(&mut text).expect("gzip");
        } else {
            text = whole;
        }
        let list: Value = serde_json::from_slice(&text).expect("JSON");
        let count = |key: &str| list[key].as_array().map_or(0, Vec::len);
        assert_eq!(count("items") + count("rows"), 10, "{headers:?}");
        assert_eq!(zipped, headers.contains(&("accept-encoding", "gzip")));
    }
}
