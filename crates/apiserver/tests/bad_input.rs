//! Whatever is sent, a Status (or a plain refusal) comes back: no panic, no half write.

mod common;

use std::sync::atomic::Ordering;

use common::custom::{DEFINITIONS, definition, establish, gone};
use common::{JSON, MAPS, Server, config_map};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn bodies_that_are_not_objects() {
    let server = Server::start().await;
    let deep = format!("{}1{}", r#"{"data":"#.repeat(10_000), "}".repeat(10_000));
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f]\n";
    let (json, yaml) = ("application/json", "application/yaml");
    for (content, body) in [
        (json, ""),
        (json, " "),
        (json, "{"),
        (json, "[]"),
        (json, "7"),
        (json, "\"ConfigMap\""),
        (json, "{\"metadata\":7}"),
        (json, "{\"metadata\":{\"name\":7}}"),
        (json, "{\"metadata\":{\"name\":\"a\"},\"data\":{\"k\":1}}"),
        (json, "{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"}}"),
        (json, "{\"kind\":\"Nothing\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"}}"),
        (json, "{\"metadata\":{\"name\":\"a\"}}{\"metadata\":{\"name\":\"b\"}}"),
        (json, "{\"metadata\":{\"name\":\"a\"}} trailing"),
        (json, "\u{feff}{}"),
        (json, &deep),
        (yaml, "a: b: c"),
        (yaml, "- a\n- b\n"),
        (yaml, "metadata: {name: a"),
        (yaml, bomb),
    ] {
        let answer = server.root.send("POST", MAPS, &[("content-type", content)], body.to_owned()).await;
        let shown: String = body.chars().take(60).collect();
        assert_eq!(answer.code, 400, "{content} {shown}: {}", answer.text());
        answer.failure();
    }
    let bytes = server.root.send("POST", MAPS, JSON, &b"{\"metadata\":{\"name\":\"\xff\xfe\"}}"[..]).await;
    assert_eq!(bytes.code, 422, "{}", bytes.text());
    // What nobody knows is passed over, however deep.
    let unknown = format!(r#"{{"metadata":{{"name":"a"}},"x":{}1{}}}"#, "[".repeat(2000), "]".repeat(2000));
    assert_eq!(server.root.send("POST", &format!("{MAPS}?dryRun=All"), JSON, unknown).await.code, 201);
    let empty = server.root.get(MAPS).await.ok();
    assert_eq!(empty["items"], json!([]), "nothing was written");
    assert_eq!(server.api.panics.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn objects_that_are_wrong() {
    let server = Server::start().await;
    let root = &server.root;
    let named = |name: &str| json!({"metadata": {"name": name}});
    for (body, want) in [
        (json!({}), r#"ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required"#),
        (
            named("A"),
            r#"ConfigMap "A" is invalid: metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain must"#,
        ),
        (named("a/b"), r#"ConfigMap "a/b" is invalid: metadata.name: Invalid value: "a/b": "#),
        (named(".."), r#"ConfigMap ".." is invalid: metadata.name: Invalid value: "..": "#),
        (named(&"a".repeat(254)), "must be no more than 253 characters"),
        (json!({"metadata": {"name": "a", "labels": {"-": "x"}}}), "metadata.labels: Invalid value"),
        (json!({"metadata": {"name": "a", "labels": {"x": "not a label"}}}), "metadata.labels: Invalid value"),
        (
            json!({"metadata": {"name": "a", "annotations": {"x": "y".repeat(300_000)}}}),
            "metadata.annotations: Too long",
        ),
        (json!({"metadata": {"name": "a", "finalizers": ["x y"]}}), "metadata.finalizers"),
        (json!({"metadata": {"name": "a"}, "data": {"a b": "x"}}), "data[a b]: Invalid value"),
    ] {
        let answer = root.post(MAPS, &body).await;
        let text = answer.failure();
        assert!(text.starts_with("422 Invalid: ") && text.contains(want), "{text}\n  wanted {want}");
        assert!(answer.json()["details"]["causes"].as_array().is_some_and(|c| !c.is_empty()));
    }
    let replicas = json!({"metadata": {"name": "w"}, "spec": {"replicas": "3"}});
    let text = root.post("/apis/apps/v1/namespaces/default/deployments", &replicas).await.failure();
    assert!(
        text.contains("json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"),
        "{text}"
    );
    let absent = root.post("/api/v1/namespaces/nowhere/configmaps", &config_map("a", "1")).await.failure();
    assert_eq!(absent, r#"404 NotFound: namespaces "nowhere" not found"#);
}

#[tokio::test]
async fn bodies_that_are_too_large() {
    let server = Server::start().await;
    let huge = config_map("a", &"x".repeat(3 * 1024 * 1024)).to_string();
    for (method, uri) in [("POST", MAPS.to_owned()), ("PUT", format!("{MAPS}/a")), ("DELETE", format!("{MAPS}/a"))] {
        let answer = server.root.send(method, &uri, JSON, huge.clone()).await;
        assert_eq!(answer.failure(), "413 RequestEntityTooLarge: Request entity too large: limit is 3145728");
    }
    let fits = config_map("a", &"x".repeat(900_000));
    assert_eq!(server.root.post(MAPS, &fits).await.code, 201);
}

#[tokio::test]
async fn content_types_that_are_not_spoken() {
    let server = Server::start().await;
    let body = config_map("a", "1").to_string();
    let post = server.root.send("POST", MAPS, &[("content-type", "text/plain")], body.clone()).await.failure();
    let text = "the body of the request was in an unknown format - accepted media types include: ";
    assert!(post.starts_with(&format!("415 UnsupportedMediaType: {text}application/json, application/yaml")), "{post}");
    server.root.post(MAPS, &config_map("a", "1")).await.ok();
    let patch = server.root.send("PATCH", &format!("{MAPS}/a"), JSON, body).await.failure();
    assert!(patch.starts_with(&format!("415 UnsupportedMediaType: {text}application/json-patch+json, ")), "{patch}");
}

#[tokio::test]
async fn patches_that_cannot_be_applied() {
    let server = Server::start().await;
    let root = &server.root;
    let before = root.post(MAPS, &config_map("a", "1")).await.ok();
    let one = format!("{MAPS}/a");
    for (kind, body, code) in [
        ("json", json!([{"op": "remove", "path": "/data/none"}]), 422),
        ("json", json!([{"op": "test", "path": "/data/k", "value": "2"}]), 422),
        ("json", json!([{"op": "explode", "path": "/data/k"}]), 422),
        ("json", json!({"data": {}}), 400),
        ("json", json!([{"op": "replace", "path": "/metadata/name", "value": "b"}]), 400),
        ("merge", json!([1]), 400),
        ("merge", json!({"data": 7}), 422),
        ("merge", json!({"metadata": null}), 400),
        ("merge", json!({"metadata": {"name": "b"}}), 400),
        ("merge", json!({"metadata": {"resourceVersion": "1"}}), 409),
        ("merge", json!({"metadata": {"resourceVersion": "x"}}), 400),
        ("merge", json!({"metadata": {"uid": "x"}}), 422),
        ("merge", json!({"kind": "Secret"}), 422),
        ("strategic-merge", json!({"data": ["a"]}), 422),
        ("strategic-merge", json!({"data": {"$patch": "explode"}}), 400),
        ("strategic-merge", json!(7), 400),
    ] {
        let answer = root.patch(kind, &one, &body).await;
        assert_eq!(answer.code, code, "{kind} {body}: {}", answer.text());
        answer.failure();
    }
    let many: Vec<Value> = (0..20_000).map(|_| json!({"op": "test", "path": "/data/k", "value": "1"})).collect();
    assert!(root.patch("json", &one, &Value::from(many)).await.code >= 400);
    assert_eq!(root.get(&one).await.ok(), before);
    assert_eq!(root.patch("merge", &format!("{MAPS}/none"), &json!({})).await.code, 404);
    assert_eq!(server.api.panics.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn paths_that_lead_nowhere() {
    let server = Server::start().await;
    let long = format!("{MAPS}/{}", "a".repeat(5000));
    for (method, uri, code) in [
        ("GET", "/nothing", 404),
        ("GET", "/api/v2/pods", 404),
        ("GET", "/api/v1/nothings", 404),
        ("GET", "/apis/nothing.example.com/v1/things", 404),
        ("GET", "/api/v1/namespaces/%2e%2e/pods", 404),
        ("GET", "/api/v1/namespaces/default/pods/..%2f..%2fsecrets", 404),
        ("GET", "/api/v1/namespaces//pods", 404),
        ("GET", "/api/v1/pods/a%00b", 400),
        ("GET", "/api/v1/pods/%ff", 400),
        ("GET", &long, 400),
        ("GET", "/api/v1/pods/a", 404),
        ("GET", "/api/v1/namespaces/default/nodes", 404),
        ("GET", "/api/v1/namespaces/default/pods/a/exec", 404),
        ("POST", "/api/v1/pods", 405),
        ("POST", "/api/v1/namespaces/default/pods/a", 405),
        ("PUT", PODS, 405),
        ("PATCH", PODS, 405),
        ("OPTIONS", PODS, 405),
        ("TRACE", "/api/v1/namespaces/default/pods/a", 405),
        ("POST", "/api/v1/namespaces/default/pods/a/log", 405),
        ("GET", "/api/v1/namespaces/default/pods/a/binding", 405),
        ("POST", "/healthz", 404),
        ("GET", "/api/v1/proxy/namespaces/default/pods/a", 405),
    ] {
        let answer = server.root.send(method, uri, &[], "").await;
        let shown: String = uri.chars().take(60).collect();
        assert_eq!(answer.code, code, "{method} {shown}: {}", answer.text());
    }
    let text = server.root.get("/nothing").await;
    assert_eq!(text.text(), "404 page not found\n");
    assert_eq!(server.root.get(&format!("{PODS}?timeout=soon")).await.code, 400);
    assert_eq!(server.api.panics.load(Ordering::Relaxed), 0);
}

/// Bytes changed here and there in requests that are right: any answer but a panic or a 5xx.
#[tokio::test]
async fn mangled_requests() {
    let server = Server::start().await;
    let account = json!({"metadata": {"name": "default"}});
    server.root.post("/api/v1/namespaces/default/serviceaccounts", &account).await.ok();
    let rng = stdx::Rng::seeded(42);
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}],
            "resources": {"limits": {"cpu": "100m", "memory": "1Gi"}}}]}});
    let deployment = json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod["spec"]}}});
    let service = json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "s"},
        "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080, "targetPort": "http"}]}});
    let pieces: &[&[u8]] = &[
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\"",
        b"null",
        b"-1",
        b"1e999",
        b"\\u0000",
        b"\xff",
        b"{}",
        b"[]",
        b"99999999999999999999",
    ];
    let targets = [
        (PODS, &pod),
        ("/apis/apps/v1/namespaces/default/deployments", &deployment),
        ("/api/v1/namespaces/default/services", &service),
    ];
    for round in 0..600u64 {
        let (uri, object) = targets[rng.below(targets.len() as u64) as usize];
        let mut body = object.to_string().into_bytes();
        for _ in 0..=rng.below(3) {
            let at = rng.below(body.len() as u64) as usize;
            let piece = pieces[rng.below(pieces.len() as u64) as usize];
            let end = (at + rng.below(8) as usize).min(body.len());
            body.splice(at..end, piece.iter().copied());
        }
        let shown = String::from_utf8_lossy(&body).into_owned();
        let answer = server.root.send("POST", &format!("{uri}?dryRun=All"), JSON, body).await;
        assert!(answer.code < 500, "round {round}: {} {}\n{shown}", answer.code, answer.text());
    }
    assert_eq!(server.api.panics.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_body_that_never_ends_is_not_waited_for() {
    let server = Server::start().await;
    let body = transport::stream(futures::stream::pending());
    let request = http::Request::post(format!("{MAPS}?timeout=50ms")).body(body).expect("request");
    let response = server.root.0.call(request).await.expect("answered");
    assert_eq!(response.status(), 504);
    let broken = futures::stream::iter([Ok("{".into()), Err("the line went dead".into())]);
    let request = http::Request::post(MAPS).body(transport::stream(broken)).expect("request");
    assert_eq!(server.root.0.call(request).await.expect("answered").status(), 400);
}

/// A patch or a protobuf body may put together what no reader takes apart again: it is not stored.
#[tokio::test]
async fn nothing_is_stored_that_cannot_be_read() {
    let server = Server::start().await;
    let root = &server.root;
    let nested = |n: usize| format!("{}{{}}{}", r#"{"f:a":"#.repeat(n), "}".repeat(n));
    let entry = json!({"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:a": {}}});
    let bytes = |tag: u8, bytes: &[u8]| {
        let mut out = vec![(tag << 3) | 2];
        if tag > 15 {
            out = vec![((tag << 3) & 0x7f) | 2 | 0x80, tag >> 4];
        }
        let mut length = bytes.len();
        while length > 0x7f {
            out.push(0x80 | (length & 0x7f) as u8);
            length >>= 7;
        }
        out.push(length as u8);
        out.extend_from_slice(bytes);
        out
    };
    for n in 105..130 {
        let name = format!("a{n}");
        let map = json!({"metadata": {"name": name, "managedFields": [entry]}});
        root.post(MAPS, &map).await.ok();
        let path = "/metadata/managedFields/0/fieldsV1/f:a/f:b";
        let patch = format!(r#"[{{"op":"add","path":"{path}","value":{}}}]"#, nested(n));
        let media = [("content-type", "application/json-patch+json")];
        let answer = root.send("PATCH", &format!("{MAPS}/{name}"), &media, patch).await;
        assert!(matches!(answer.code, 200 | 400 | 422), "{}", answer.text());
        let managed = [
            bytes(1, b"m"),
            bytes(2, b"Update"),
            bytes(3, b"v1"),
            bytes(6, b"FieldsV1"),
            bytes(7, &bytes(1, nested(n).as_bytes())),
        ];
        let metadata = [bytes(1, format!("b{n}").as_bytes()), bytes(17, &managed.concat())].concat();
        let head = bytes(1, &[bytes(1, b"v1"), bytes(2, b"ConfigMap")].concat());
        let body = [b"k8s\0".to_vec(), head, bytes(2, &bytes(1, &metadata))].concat();
        let media = [("content-type", "application/vnd.kubernetes.protobuf")];
        let answer = root.send("POST", MAPS, &media, body).await;
        assert!(matches!(answer.code, 201 | 400), "{n}: {}", answer.text());
        assert_eq!(root.get(MAPS).await.code, 200, "{n}");
    }
    assert_eq!(root.delete(MAPS).await.code, 200);
}

/// A definition whose schema of `spec` is this.
fn defined(name: &str, spec: &Value) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    definition(name, "Odd", &schema)
}

/// What definitions bring that would hold the server up: each is refused in time, in upstream's words where it
/// has any, and what is refused leaves nothing.
#[tokio::test]
async fn definitions_that_are_meant_to_harm() {
    let server = Server::start().await;
    let nested = |depth: usize| {
        (0..depth).fold(json!({"type": "string"}), |inner, _| json!({"type": "object", "properties": {"a": inner}}))
    };
    let wide = |depth: usize| {
        (0..depth).fold(
            json!({"type": "string"}),
            |inner, _| json!({"type": "object", "properties": {"a": inner, "b": inner}}),
        )
    };
    let rule = |schema: Value, rule: &str| {
        let mut schema = schema;
        schema["x-kubernetes-validations"] = json!([{"rule": rule}]);
        schema
    };
    let lists = json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, "s": {"type": "string"}}});
    let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
    for (title, spec, want) in [
        ("deep", nested(50), "201"),
        (
            "deeper",
            json!({"type": "array", "items": nested(1000)}),
            "400 BadRequest: CustomResourceDefinition in version \"v1\" cannot be handled as a CustomResourceDefinition: exceeded max depth",
        ),
        ("wide", wide(12), "201"),
        (
            "repeats",
            text("(((a{1,1000}){1,1000}){1,1000}){1,1000}"),
            "error parsing regexp: invalid repeat count: `{1,1000}`",
        ),
        (
            "unclosed",
            text("(a"),
            "must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `(a`",
        ),
        ("looks", text("(?=a)"), "error parsing regexp: invalid or unsupported Perl syntax: `(?=`"),
        (
            "cubic",
            rule(lists.clone(), "self.l.all(a, self.l.all(b, self.l.all(c, a == b && b == c)))"),
            "Forbidden: estimated rule cost exceeds budget by factor of more than 100x",
        ),
        (
            "matches",
            rule(lists.clone(), "self.l.all(a, a.all(b, b.matches(self.s)))"),
            "Forbidden: estimated rule cost exceeds budget by factor of more than 100x",
        ),
        (
            "long",
            rule(lists.clone(), &("true".to_owned() + &" && true".repeat(20_000))),
            "expression code point size exceeds limit",
        ),
        (
            "closed",
            rule(lists.clone(), &("(".repeat(300) + "true" + &")".repeat(300))),
            "expression recursion limit exceeded: 250",
        ),
        (
            "grows",
            rule(lists, "lists.range(1000000).map(a, lists.range(1000000)).size() > 0"),
            "Forbidden: estimated rule cost exceeds budget by factor of more than 100x",
        ),
    ] {
        let answer = server.root.post(DEFINITIONS, &defined("odds", &spec)).await;
        let said = if answer.code == 201 { "201".to_owned() } else { answer.failure() };
        assert!(said.contains(want), "{title}: {said}");
        if answer.code == 201 {
            server.root.delete(&format!("{DEFINITIONS}/odds.stable.example.com")).await.ok();
            gone(&server, &format!("{DEFINITIONS}/odds.stable.example.com")).await;
        }
    }
    assert_eq!(server.root.get(DEFINITIONS).await.ok()["items"], json!([]));
}

/// What passes the estimate is stopped while it runs, and what is declared bounds the rest.
#[tokio::test]
async fn objects_that_are_meant_to_harm() {
    let server = Server::start().await;
    let rules = json!([
        {"rule": "self.l.all(a, self.l.all(b, a == b))", "message": "all are alike"},
    ]);
    let spec = json!({"type": "object", "x-kubernetes-validations": rules, "properties": {
        "l": {"type": "array", "maxItems": 1000, "items": {"type": "string", "maxLength": 5}},
        "p": {"type": "string", "pattern": "^(a+)+$"},
        "o": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }});
    establish(&server, &defined("odds", &spec)).await;
    let path = "/apis/stable.example.com/v1/namespaces/default/odds";
    let object = |spec: Value| json!({"kind": "Odd", "apiVersion": "stable.example.com/v1", "metadata": {"name": "a"}, "spec": spec});
    let nested = (0..200).fold(json!(1), |inner, _| json!({"a": inner}));
    for (title, spec, want) in [
        (
            "rules",
            json!({"l": vec!["x"; 1000]}),
            "operation cancelled: actual cost limit exceeded': no further validation rules will be run",
        ),
        ("pattern", json!({"p": "a".repeat(50_000) + "!"}), "spec.p: Invalid value"),
        (
            "nested",
            json!({"o": nested}),
            "400 BadRequest: Odd in version \"v1\" cannot be handled as a Odd: exceeded max depth",
        ),
        ("many", json!({"l": vec!["x"; 100_000]}), "spec.l: Too many: 100000: must have at most 1000 items"),
    ] {
        let answer = server.root.post(path, &object(spec)).await;
        let said = if answer.code == 201 { "201".to_owned() } else { answer.failure() };
        assert!(said.contains(want), "{title}: {said}");
    }
}
