//! The readers of whatever comes from outside, each as a function of any bytes: it returns, whatever
//! they are, and what was understood can be written and understood again. `./dev fuzz` drives these
//! with libFuzzer, `crates/apiserver/tests/hostile.rs` with bytes by chance.

use std::sync::LazyLock;

use apiserver::request::{self, Query};
use apiserver::verbs::continue_token::Token;
use apiserver::verbs::options::{DeleteOptions, ListOptions, Validation, WriteOptions};
use apiserver::verbs::patch::Patch;
use machinery::decode::{self, Format, Strictness};
use machinery::field::{FieldErrors, Path};
use machinery::schema::Type;
use machinery::structural::Structural;
use machinery::{encode, fields, labels, managed, proto, quantity, time, yaml};
use serde_json::{Value, json};
use transport::spdy::frame::{Decoder, Encoder, PIECE};
use transport::websocket::Said;

/// A reader under its name.
pub type Entry = (&'static str, fn(&[u8]));

/// All of them.
pub const ALL: [Entry; 15] = [
    ("json", json),
    ("yaml", yaml),
    ("protobuf", protobuf),
    ("patch", patch),
    ("apply", apply),
    ("selector", selector),
    ("continue_token", continue_token),
    ("quantity", quantity),
    ("request", request),
    ("schema", schema),
    ("rule", rule),
    ("spdy", spdy),
    ("channels", channels),
    ("dns", dns),
    ("cni", cni),
];

/// Types with everything there is: structs, lists, maps, numbers, times, quantities, raw JSON.
static TYPES: LazyLock<Vec<Type>> = LazyLock::new(|| {
    let named = [
        ("", "v1", "Pod"),
        ("apps", "v1", "Deployment"),
        ("", "v1", "Secret"),
        ("", "v1", "Node"),
        ("apps", "v1", "ControllerRevision"),
        ("events.k8s.io", "v1", "Event"),
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
        ("", "v1", "DeleteOptions"),
    ];
    named.into_iter().filter_map(|(group, version, kind)| api::schema::of(group, version, kind)).collect()
});

/// The first byte chooses, the others are the input.
fn choose<'d, T>(data: &'d [u8], among: &[T]) -> Option<(T, u8, &'d [u8])>
where
    T: Clone,
{
    let (first, rest) = data.split_first()?;
    let at = usize::from(*first) % among.len().max(1);
    Some((among.get(at)?.clone(), *first, rest))
}

fn strictness(byte: u8) -> Strictness {
    [Strictness::Ignore, Strictness::Warn, Strictness::Strict][usize::from(byte >> 5) % 3]
}

/// What was read is written, and read again as the same.
fn survives(value: &Value, schema: &Type) {
    let written = encode::json(value, schema);
    let again = decode::decode(&written, Format::Json, schema, Strictness::Ignore);
    let again = again.unwrap_or_else(|status| panic!("{}: {}", status.message, String::from_utf8_lossy(&written)));
    assert_eq!(
        String::from_utf8_lossy(&encode::json(&again.value, schema)),
        String::from_utf8_lossy(&written),
        "another object came back"
    );
}

/// JSON bodies.
pub fn json(data: &[u8]) {
    let Some((schema, byte, body)) = choose(data, &TYPES) else { return };
    if let Ok(read) = decode::decode(body, Format::Json, &schema, strictness(byte)) {
        survives(&read.value, &schema);
    }
    // What is wrong with options is told in a text.
    drop(decode::options(body, Format::Json, &schema));
}

/// YAML bodies.
pub fn yaml(data: &[u8]) {
    let Some((schema, byte, body)) = choose(data, &TYPES) else { return };
    if let Ok(read) = decode::decode(body, Format::Yaml, &schema, strictness(byte)) {
        survives(&read.value, &schema);
    }
    if let Ok(value) = yaml::read(body) {
        drop(yaml::write(&value));
    }
}

/// Protobuf bodies, with their envelope and without.
pub fn protobuf(data: &[u8]) {
    let Some((schema, _, body)) = choose(data, &TYPES) else { return };
    let bare = proto::decode_body(body, &schema);
    let sealed = proto::decode(body, &schema).map(|read| read.value);
    for value in [bare, sealed].into_iter().flatten() {
        let again = proto::decode_body(&proto::encode_body(&value, &schema), &schema);
        again.unwrap_or_else(|status| panic!("{}: {value}", status.message));
    }
    drop(proto::read_watch_event(body));
}

static OBJECT: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "kind": "Deployment", "apiVersion": "apps/v1",
        "metadata": {"name": "web", "labels": {"a": "b"}, "finalizers": ["x/y", "x/z"]},
        "spec": {
            "replicas": 3, "selector": {"matchLabels": {"a": "b"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
                "containers": [
                    {"name": "a", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}]},
                    {"name": "b", "image": "j", "env": [{"name": "E", "value": "1"}]},
                ],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "tolerations": [{"key": "k", "operator": "Exists"}],
            }},
        },
    })
});

/// JSON, merge and strategic merge patches.
pub fn patch(data: &[u8]) {
    const MEDIA: [&str; 3] =
        ["application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json"];
    let Some((media, byte, body)) = choose(data, &MEDIA) else { return };
    let Some(schema) = api::schema::of("apps", "v1", "Deployment") else { return };
    let validation = [Validation::Ignore, Validation::Warn, Validation::Strict][usize::from(byte >> 5) % 3];
    let Ok(patch) = Patch::read(Some(media), &MEDIA, body, validation) else { return };
    if let Ok(patched) = patch.apply(&OBJECT, &schema) {
        survives(&patched.object, &schema);
    }
}

/// Configurations of server-side apply.
pub fn apply(data: &[u8]) {
    drop(managed::config::read(data));
}

/// Label and field selectors.
pub fn selector(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(selector) = labels::Selector::parse(&text) {
        let written = selector.to_string();
        let again = labels::Selector::parse(&written).unwrap_or_else(|why| panic!("{written}: {why}"));
        assert_eq!(again.to_string(), written);
    }
    if let Ok(selector) = fields::Selector::parse(&text) {
        assert!(selector.terms().len() <= text.len() + 1);
    }
}

/// Continue tokens.
pub fn continue_token(data: &[u8]) {
    if let Ok(token) = Token::read(&String::from_utf8_lossy(data), None) {
        assert!(!token.start.split('/').any(|part| matches!(part, "" | "." | "..")), "{}", token.start);
        assert_eq!(Token::read(&token.write(), None).ok(), Some(token));
    }
}

/// Quantities and times.
pub fn quantity(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(canonical) = quantity::canonical(&text) {
        let again = quantity::canonical(&canonical).map(|text| text.into_owned());
        assert_eq!(again.ok().as_deref(), Some(&*canonical), "of {text:?}");
    }
    if let Some(time) = time::parse(&text) {
        drop(time::rfc3339_micro(time));
    }
    drop(time::read_duration(&text));
}

/// Paths and queries.
pub fn request(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (path, query) = text.split_once(['?', '\n']).unwrap_or((&text, ""));
    let query = Query::parse(query);
    for method in [&http::Method::GET, &http::Method::POST, &http::Method::DELETE] {
        if let Ok(info) = request::parse(method, path, &query) {
            let parts = [&info.group, &info.version, &info.namespace, &info.resource, &info.name];
            assert!(parts.iter().all(|part| !part.contains('/')), "{info:?}");
        }
    }
    for watch in [false, true] {
        drop(ListOptions::parse(&query, watch));
    }
    for kind in ["CreateOptions", "UpdateOptions", "PatchOptions"] {
        drop(WriteOptions::parse(&query, kind, false, "fuzz/1"));
    }
    drop(DeleteOptions::parse(&query, None));
}

/// Schemas of custom resources: whatever is taken prunes, checks and declares any object.
pub fn schema(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (written, object) = text.split_once('\n').unwrap_or((text, "{}"));
    // Read as bodies are: no deeper than any may be.
    let Some(definition) = api::schema::of("apiextensions.k8s.io", "v1", "CustomResourceDefinition") else { return };
    let body = format!(r#"{{"spec":{{"versions":[{{"name":"v1","schema":{{"openAPIV3Schema":{written}}}}}]}}}}"#);
    let Ok(read) = decode::decode(body.as_bytes(), Format::Json, &definition, Strictness::Ignore) else { return };
    let Some(written) = read.value.pointer("/spec/versions/0/schema/openAPIV3Schema") else { return };
    let path = Path::root();
    drop(rules::crd::check(written, &path, false));
    let Ok(schema) = Structural::compile(written) else { return };
    let mut object: Value = serde_json::from_str(object).unwrap_or_else(|_| json!({"a": [1, {"b": null}], "c": "d"}));
    let node = schema.root();
    node.prune(&mut object);
    let (before, mut errors) = (object.clone(), FieldErrors::new());
    node.prune(&mut object);
    assert_eq!(object, before, "what is pruned stays as it is");
    node.validate(&path, &object, Some(&before), &mut errors);
    let mut budget = rules::crd::BUDGET;
    drop(rules::crd::Rules::compile(written).validate(&object, None, &path, &mut budget, &mut Vec::new()));
}

/// Rules in CEL: whatever is written is refused, or ends within what it may cost.
pub fn rule(data: &[u8]) {
    const LIMIT: u64 = 10_000;
    let Ok(text) = std::str::from_utf8(data) else { return };
    let written = json!({"type": "object", "properties": {
        "s": {"type": "string"}, "n": {"type": "integer"}, "d": {"x-kubernetes-int-or-string": true},
        "l": {"type": "array", "items": {"type": "integer"}},
        "m": {"type": "object", "additionalProperties": {"type": "string"}},
    }});
    let object = json!({"s": "text", "n": 3, "d": "5", "l": [1, 2, 3], "m": {"a": "b"}});
    let decl = rules::schema::declare(&written, false);
    let environment = rules::env::Env::new().with("self", decl.type_of()).with_bind();
    let Ok(checked) = environment.compile(text) else { return };
    let _ = rules::estimate(&checked, &[("self", &decl)]);
    let Ok(program) = rules::Program::new(&checked, vec!["self".to_owned()]) else { return };
    let variables = [decl.read(&object).ok()];
    let outcome = program.run(&variables, LIMIT);
    assert!(outcome.cost <= LIMIT || outcome.value.is_err(), "{text} went on");
}

/// Frames of SPDY, in packets of any size: the first byte says which.
pub fn spdy(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let (mut decoder, mut encoder) = (Decoder::default(), Encoder::default());
    let mut input = bytes::BytesMut::new();
    for packet in rest.chunks(usize::from(*first) + 1) {
        input.extend_from_slice(packet);
        loop {
            match decoder.next(&mut input) {
                Ok(Some(frame)) => {
                    if let transport::spdy::frame::Frame::Data { bytes, .. } = &frame {
                        assert!(bytes.len() <= PIECE, "{} bytes at once", bytes.len());
                    }
                    // What was understood can be said.
                    encoder.write(&frame, &mut Vec::new()).unwrap_or_else(|why| panic!("{why}: {frame:?}"));
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(input.len() <= 128 * 1024, "{} bytes wait", input.len());
    }
}

/// Messages of a WebSocket that carry channels.
pub fn channels(data: &[u8]) {
    for protocol in transport::channels::ALL {
        let Some(spoken) = transport::channels::Spoken::of(protocol) else { continue };
        for said in [Said::Binary(data.to_vec().into()), Said::Text(data.to_vec().into())] {
            if let Ok(Some(transport::channels::Heard::Data(channel @ 0..10, bytes))) = spoken.read(said) {
                let again = spoken.read(spoken.write(channel, &bytes));
                assert_eq!(again, Ok(Some(transport::channels::Heard::Data(channel, bytes))), "{protocol}");
            }
        }
    }
}

/// A message of the domain system, as a question and as another server's answer: what is told back is no longer
/// than it may be, and what was understood is understood again.
pub fn dns(data: &[u8]) {
    use ::dns::wire::{Query, Reply, encode, read, refuse};
    let mut out = Vec::new();
    let asked = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x01a\x03org\0\0\x01\0\x01";
    match Query::read(data) {
        Ok(query) => {
            encode(&query, &Reply::code(0), query.limit(), &mut out);
            assert!(out.len() <= query.limit(), "a longer answer than was asked for");
        }
        Err(refusal) => assert!(!refuse(refusal, &mut out) || out.len() <= data.len() + 11, "more than came"),
    }
    let (Ok(message), Ok(query)) = (read(data), Query::read(asked)) else { return };
    let reply = Reply { answers: message.answers, authority: message.authority, ..Reply::default() };
    encode(&query, &reply, usize::from(u16::MAX), &mut out);
    if out[2] & 2 == 0 {
        let again = read(&out).expect("what we write can be read");
        assert_eq!((again.answers, again.authority), (reply.answers, reply.authority), "another message came back");
    }
}

/// A call of the CNI plugin: its environment in the first line, its configuration in the others. What is taken can
/// be used: as a name of a file, as a link's, as numbers of ports.
pub fn cni(data: &[u8]) {
    use ::cni::{Environment, config};
    let text = String::from_utf8_lossy(data);
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let words: Vec<&str> = first.split(' ').collect();
    let names = ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_ARGS"];
    for command in ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"] {
        let variable = |name: &str| match names.iter().position(|known| *known == name)? {
            0 => Some(command.to_owned()),
            at => words.get(at).map(|word| (*word).to_owned()),
        };
        let Ok(environment) = Environment::read(variable) else { continue };
        let used = matches!(command, "ADD" | "DEL" | "CHECK");
        let is_file = |name: &str| !name.contains('/') && !name.contains('\0') && !matches!(name, "" | "." | "..");
        assert!(!used || is_file(&environment.container_id) && is_file(&environment.ifname), "{environment:?}");
    }
    drop(config::version_of(rest.as_bytes()));
    for text in [data, rest.as_bytes()] {
        let Ok(read) = config::parse(text) else { continue };
        assert!(read.data_dir.is_absolute() && (1..=2).contains(&read.ranges.len()), "{read:?}");
        assert!(read.ranges.iter().all(|range| *range == range.trunc()), "{read:?}");
        assert!(!read.name.contains('/') && read.mtu.is_none_or(|mtu| mtu >= 576), "{read:?}");
        if let Ok(ports) = &read.ports {
            assert!(ports.iter().all(|port| port.host_port > 0 && port.container_port > 0), "{ports:?}");
        }
    }
}
