//! Bodies over HTTP: what is unknown, doubled or of the wrong type is told in upstream's words, in JSON
//! and YAML.

use common::{JSON, MAPS, Server};

mod common;

const YAML: &[(&str, &str)] = &[("content-type", "application/yaml")];
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// A Deployment with something wrong at every depth.
const SLOPPY: &str = r#"{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"NAME","nope":1},
    "spec":{"replicas":1,"replicas":2,"selector":{"matchLabels":{"a":"b"}},
        "template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i","foo":1}]}}},
    "Status":{}}"#;

const FOUND: [&str; 4] = [
    r#"unknown field "metadata.nope""#,
    r#"duplicate field "spec.replicas""#,
    r#"unknown field "spec.template.spec.containers[0].foo""#,
    r#"unknown field "Status""#,
];

#[tokio::test]
async fn unknown_and_doubled_fields() {
    let server = Server::start().await;
    let send = |query: &'static str, name: &'static str| {
        let body = SLOPPY.replace("NAME", name);
        let root = server.root.clone();
        async move { root.send("POST", &format!("{DEPLOYMENTS}{query}"), JSON, body).await }
    };
    let strict = send("?fieldValidation=Strict", "strict").await;
    assert_eq!(
        strict.failure(),
        format!(
            "400 BadRequest: Deployment in version \"v1\" cannot be handled as a Deployment: strict decoding error: {}",
            FOUND.join(", ")
        )
    );
    for query in ["", "?fieldValidation=Warn"] {
        let warned = send(query, if query.is_empty() { "default" } else { "warned" }).await;
        assert_eq!(warned.ok()["spec"]["replicas"], 2);
        let want: Vec<String> = FOUND.iter().map(|f| format!("299 - \"{}\"", f.replace('"', "\\\""))).collect();
        assert_eq!(warned.warnings(), want);
    }
    let ignored = send("?fieldValidation=Ignore", "ignored").await;
    assert_eq!((ignored.ok()["metadata"]["nope"].is_null(), ignored.warnings()), (true, vec![]));
    // A refusal tells it, too: the object was read before it was judged.
    let refused = send("", "Not-A-Name").await;
    assert_eq!((refused.code, refused.warnings().len()), (422, FOUND.len()), "{}", refused.text());
    let wrong = send("?fieldValidation=Loose", "loose").await;
    assert_eq!(
        wrong.failure(),
        "422 Invalid: CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Loose\": \
         supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
    );
}

#[tokio::test]
async fn there_are_at_most_so_many_warnings() {
    let server = Server::start().await;
    let body = |count: usize, width: usize| {
        let fields: Vec<String> = (0..count).map(|i| format!("\"f{i:04}{}\":1", "x".repeat(width))).collect();
        format!("{{\"metadata\":{{\"generateName\":\"a-\"}},{}}}", fields.join(","))
    };
    let hundred = server.root.send("POST", MAPS, JSON, body(150, 0)).await;
    assert_eq!((hundred.code, hundred.warnings().len()), (201, 100));
    // More than 4096 characters: each is cut to 256.
    let cut = server.root.send("POST", MAPS, JSON, body(20, 500)).await;
    assert_eq!((cut.code, cut.warnings().len()), (201, 16));
    assert!(cut.warnings().iter().all(|w| w.len() < 256 + 12), "{:?}", cut.warnings());
    let strict = server.root.send("POST", &format!("{MAPS}?fieldValidation=Strict"), JSON, body(150, 0)).await;
    assert_eq!(strict.failure().matches("unknown field").count(), 100);
}

#[tokio::test]
async fn what_does_not_fit() {
    let server = Server::start().await;
    let bad = "400 BadRequest: Deployment in version \"v1\" cannot be handled as a Deployment: ";
    for (body, want) in [
        (
            r#"{"spec":{"replicas":"3"}}"#,
            format!("{bad}json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"),
        ),
        (
            r#"{"spec":{"replicas":1e3}}"#,
            format!(
                "{bad}json: cannot unmarshal number 1e3 into Go struct field DeploymentSpec.spec.replicas of type int32"
            ),
        ),
        (
            r#"{"spec":{"template":{"spec":{"containers":[{"env":[{"value":1}]}]}}}}"#,
            format!(
                "{bad}json: cannot unmarshal number into Go struct field \
                 EnvVar.spec.template.spec.containers.env.value of type string"
            ),
        ),
        (
            r#"{"spec":{"template":{"spec":{"volumes":[{"hostPath":5}]}}}}"#,
            format!(
                "{bad}json: cannot unmarshal number into Go struct field \
                 Volume.spec.template.spec.volumes.VolumeSource.hostPath of type v1.HostPathVolumeSource"
            ),
        ),
        (
            r#"{"metadata":{"creationTimestamp":"now"}}"#,
            format!("{bad}parsing time \"now\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"now\" as \"2006\""),
        ),
        (
            r#"{"kind":"Pod","apiVersion":"v1"}"#,
            "400 BadRequest: Pod in version \"v1\" cannot be handled as a Deployment: converting (v1.Pod) to \
             (apps.Deployment): unknown conversion"
                .to_owned(),
        ),
        (
            r#"{"kind":"Deployment","apiVersion":"apps/v9"}"#,
            "400 BadRequest: Deployment in version \"v9\" cannot be handled as a Deployment: no kind \"Deployment\" is \
             registered for version \"apps/v9\" in scheme \"pintle\""
                .to_owned(),
        ),
        (
            r#"{"spec":{},}"#,
            "400 BadRequest: the object provided is unrecognized (must be of type Deployment): couldn't get \
             version/kind; json parse error: invalid character '}' looking for beginning of object key string \
             ({\"spec\":{},})"
                .to_owned(),
        ),
        (
            "\u{feff}{}",
            "400 BadRequest: the object provided is unrecognized (must be of type Deployment): couldn't get \
             version/kind; json parse error: invalid character 'ï' looking for beginning of value (efbbbf7b7d)"
                .to_owned(),
        ),
    ] {
        assert_eq!(server.root.send("POST", DEPLOYMENTS, JSON, body).await.failure(), want);
    }
    let nul = r#"{"metadata":{"name":"a\u0000b"}}"#;
    assert_eq!(server.root.send("POST", MAPS, JSON, nul).await.code, 422);
    let broken: &[u8] = b"{\"metadata\":{\"name\":\"\xff\"}}";
    assert_eq!(server.root.send("POST", MAPS, JSON, broken).await.code, 422);
}

#[tokio::test]
async fn yaml_is_read_as_upstream_reads_it() {
    let server = Server::start().await;
    let text = "# a comment\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: yaml, labels: &l {a: 'yes'}}\n\
                immutable: no\ndata:\n  <<: *l\n  b: \"on\"\n  c: |\n    1\n---\nkind: Ignored\n";
    let created = server.root.send("POST", MAPS, YAML, text).await.ok();
    assert_eq!(created["data"], serde_json::json!({"a": "yes", "b": "on", "c": "1\n"}));
    assert_eq!((&created["metadata"]["labels"]["a"], &created["immutable"]), (&"yes".into(), &false.into()));
    let bad = "400 BadRequest: ConfigMap in version \"v1\" cannot be handled as a ConfigMap: ";
    for (text, want) in [
        ("data: {a: yes}", format!("{bad}json: cannot unmarshal bool into Go struct field ConfigMap.data of type string")),
        ("data: {a: 0o17}", format!("{bad}json: cannot unmarshal number into Go struct field ConfigMap.data of type string")),
        (
            "data:\n  a: x\n  a: z\nkind: ConfigMap\nnope: 1\n",
            format!(
                "{bad}strict decoding error: yaml: unmarshal errors:\n  line 3: key \"a\" already set in map, unknown \
                 field \"nope\""
            ),
        ),
        (
            "a: b: c",
            "400 BadRequest: the object provided is unrecognized (must be of type ConfigMap): yaml: mapping values are \
             not allowed in this context (613a20623a2063)"
                .to_owned(),
        ),
    ] {
        let uri = format!("{MAPS}?fieldValidation=Strict");
        assert_eq!(server.root.send("POST", &uri, YAML, text).await.failure(), want);
    }
    let doubled = "metadata: {name: doubled}\ndata:\n  a: x\n  a: z\n  b: x\n  b: z\n";
    let warned = server.root.send("POST", MAPS, YAML, doubled).await;
    assert_eq!(warned.ok()["data"]["a"], "z");
    let want =
        ["299 - \"line 4: key \\\"a\\\" already set in map\"", "299 - \"line 6: key \\\"b\\\" already set in map\""];
    assert_eq!(warned.warnings(), want);
    let bomb = format!(
        "a: &a [{}]\nb: &b [{}]\nc: [{}]\n",
        vec!["x"; 99].join(","),
        vec!["*a"; 99].join(","),
        vec!["*b"; 99].join(",")
    );
    let refused = server.root.send("POST", MAPS, YAML, bomb).await.failure();
    assert!(refused.contains("yaml: document contains excessive aliasing"), "{refused}");
}

#[tokio::test]
async fn amounts_and_times_keep_the_form_that_upstream_keeps() {
    let server = Server::start().await;
    let pod = r#"{"metadata":{"name":"forms"},"spec":{"containers":[{"name":"c","image":"i","resources":{"limits":
        {"cpu":1.500,"memory":"1100Ki","ephemeral-storage":"1000000","hugepages-2Mi":"1024Ki"}}}]}}"#;
    let uri = "/api/v1/namespaces/default/pods?dryRun=All";
    let answer = server.root.send("POST", uri, JSON, pod.replace("1.500", "\"1.500\"")).await;
    let created = answer.json();
    // Whether the pod may be is another question: its account does not exist here.
    if answer.code < 300 {
        assert_eq!(created["spec"]["containers"][0]["resources"]["limits"]["cpu"], "1.500");
    }
    let lease = r#"{"metadata":{"name":"l"},"spec":{"acquireTime":"2026-01-02T03:04:05.000006+01:00"}}"#;
    let uri = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let created = server.root.send("POST", uri, JSON, lease).await.ok();
    assert_eq!(created["spec"]["acquireTime"], "2026-01-02T02:04:05.000006Z");
    let refused = server.root.send("POST", uri, JSON, lease.replace(".000006", "")).await.failure();
    assert!(
        refused.contains("parsing time \"2026-01-02T03:04:05+01:00\" as \"2006-01-02T15:04:05.000000Z07:00\""),
        "{refused}"
    );
}
