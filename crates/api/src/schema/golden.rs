//! Every kind with every field set: decoded strictly and encoded again, not a byte may change.
//!
//! The objects come from a folder `shared/golden` beside the repository when there is one; the ones
//! below travel with it.

use std::path::PathBuf;

use machinery::decode::{self, Format, Strictness};
use machinery::encode;
use machinery::proto;
use machinery::schema::Type;
use serde_json::Value;

use super::of;

fn schema_of(value: &Value) -> Option<Type> {
    let (version, kind) = (value["apiVersion"].as_str()?, value["kind"].as_str()?);
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    of(group, version, kind)
}

/// The text without white space between tokens.
fn compact(text: &str) -> String {
    let (mut out, mut quoted, mut escaped) = (String::new(), false, false);
    for c in text.chars() {
        if quoted || !c.is_whitespace() {
            out.push(c);
        }
        quoted = if escaped || c != '"' { quoted } else { !quoted };
        escaped = quoted && c == '\\' && !escaped;
    }
    out
}

fn round_trip(name: &str, text: &str) -> Result<(), String> {
    let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let schema = schema_of(&value).ok_or_else(|| format!("{name}: no schema"))?;
    let decoded = decode::decode(text.as_bytes(), Format::Json, &schema, Strictness::Strict)
        .map_err(|e| format!("{name}: {e}"))?;
    let encoded = String::from_utf8(encode::json(&decoded.value, &schema)).map_err(|e| e.to_string())?;
    let expected = compact(text);
    if encoded != expected {
        let at = encoded.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count();
        let window = |s: &str| s.chars().skip(at.saturating_sub(60)).take(160).collect::<String>();
        return Err(format!("{name}:\n  have {}\n  want {}", window(&encoded), window(&expected)));
    }
    Ok(())
}

pub(super) fn folder() -> Option<PathBuf> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().map(|a| a.join("shared/golden")).find(|p| p.is_dir())
}

#[test]
fn golden_objects_round_trip() {
    let Some(folder) = folder() else { return };
    let mut failures = Vec::new();
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the folder opens") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".WatchEvent.json") {
            continue; // A frame around an object, not an object.
        }
        count += 1;
        let text = std::fs::read_to_string(&path).expect("the file opens");
        failures.extend(round_trip(&name, &text).err());
        let yaml = std::fs::read(path.with_extension("yaml")).expect("the YAML opens");
        failures.extend(same_from_yaml(&name, &text, &yaml).err());
    }
    assert!(failures.is_empty(), "{} of {count} failed:\n{}", failures.len(), failures.join("\n"));
    assert!(count > 100, "{count} objects");
}

fn same_from_yaml(name: &str, text: &str, yaml: &[u8]) -> Result<(), String> {
    let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let schema = schema_of(&value).ok_or_else(|| format!("{name}: no schema"))?;
    let read = |bytes: &[u8], format| {
        decode::decode(bytes, format, &schema, Strictness::Strict).map_err(|e| format!("{name}: {format:?}: {e}"))
    };
    if read(text.as_bytes(), Format::Json)? != read(yaml, Format::Yaml)? {
        return Err(format!("{name}: YAML reads as something else"));
    }
    let written = machinery::yaml::write(&value).map_err(|e| format!("{name}: {e}"))?;
    if written.as_bytes() == yaml { Ok(()) } else { Err(format!("{name}: YAML is written otherwise:\n{written}")) }
}

#[test]
fn our_own_fixtures_round_trip() {
    for text in [
        r#"{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"a"},"spec":{"finalizers":["kubernetes"]},"status":{"phase":"Active"}}"#,
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","creationTimestamp":"2026-01-02T03:04:05Z"},"data":{"a":"1","b":""}}"#,
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"volumes":[{"name":"v","emptyDir":{}}],"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}],"resources":{"limits":{"cpu":"500m","memory":"1Gi"}},"livenessProbe":{"httpGet":{"path":"/","port":"http"},"periodSeconds":5}}],"terminationGracePeriodSeconds":0},"status":{}}"#,
        r#"{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"a"},"spec":{"replicas":0,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","resources":{}}]}},"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"25%"}}},"status":{}}"#,
        r#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"a"},"spec":{"ports":[{"port":80,"targetPort":0}]},"status":{"loadBalancer":{}}}"#,
        r#"{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"a"},"addressType":"IPv4","endpoints":null,"ports":null}"#,
        r#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"a"},"involvedObject":{"kind":"Pod"},"source":{},"firstTimestamp":null,"lastTimestamp":null,"eventTime":"2026-01-02T03:04:05.000006Z","reportingComponent":"","reportingInstance":""}"#,
        r#"{"kind":"Wait","apiVersion":"explain.pintle.dev/v1alpha1","metadata":{"name":"a"},"layer":"scheduler","code":"NoNode","object":{"kind":"Pod","name":"p"},"since":"2026-01-02T03:04:05Z"}"#,
        r#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{"name":"a"},"spec":{"group":"g","names":{"plural":"as","kind":"A"},"scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","default":{"b":1,"c":[null]},"items":{"type":"string"},"additionalProperties":true,"x-kubernetes-preserve-unknown-fields":true}}}},"subresources":{"status":{}}}]},"status":{"conditions":null,"acceptedNames":{"plural":"","kind":""},"storedVersions":null}}"#,
    ] {
        round_trip(&text[..40], text).expect("the same bytes");
    }
}

#[test]
fn an_absent_part_is_written_as_go_writes_it() {
    for (text, expected) in [
        (
            r#"{"metadata":{"name":"a"}}"#,
            r#"{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"a"},"spec":{"selector":null,"template":{"metadata":{},"spec":{"containers":null}},"strategy":{}},"status":{}}"#,
        ),
        (
            r#"{"spec":{"replicas":null,"paused":false,"template":{"spec":{"containers":[],"nodeSelector":{},"priority":0}}}}"#,
            r#"{"kind":"Deployment","apiVersion":"apps/v1","metadata":{},"spec":{"selector":null,"template":{"metadata":{},"spec":{"containers":null,"priority":0}},"strategy":{}},"status":{}}"#,
        ),
    ] {
        let schema = of("apps", "v1", "Deployment").expect("Deployment");
        let decoded = decode::decode(text.as_bytes(), Format::Json, &schema, Strictness::Strict).expect("decodes");
        assert_eq!(String::from_utf8_lossy(&encode::json(&decoded.value, &schema)), expected);
    }
    let list = of("", "v1", "PodList").expect("PodList");
    let text = encode::json(&serde_json::json!({"items": []}), &list);
    assert_eq!(String::from_utf8_lossy(&text), r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}"#);
}

#[test]
fn golden_objects_are_the_same_in_protobuf() {
    let Some(folder) = folder() else { return };
    let mut failures = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder opens") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|e| e != "pb") || path.to_string_lossy().contains(".WatchEvent.") {
            continue;
        }
        let text = std::fs::read_to_string(path.with_extension("json")).expect("the file opens");
        let bytes = std::fs::read(&path).expect("the file opens");
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        failures.extend(same_from_protobuf(&name, &text, &bytes).err());
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

/// A frame around an object: no object itself, so that neither its envelope nor its JSON says what it is.
fn same_frame(text: &str, yaml: &str, bytes: &[u8]) -> Result<(), String> {
    let schema = super::find("meta/v1", "WatchEvent").ok_or("no schema")?;
    let read = |text: &str, format| {
        decode::decode(text.as_bytes(), format, &schema, Strictness::Strict).map_err(|e| e.to_string())
    };
    let tree = read(text, Format::Json)?.value;
    if tree != read(yaml, Format::Yaml)?.value {
        return Err("YAML reads as something else".to_owned());
    }
    let envelope = proto::open(bytes).ok_or("no envelope")?;
    let from_protobuf = proto::decode_body(envelope.body, &schema).map_err(|e| e.to_string())?;
    if from_protobuf != tree {
        return Err(format!("protobuf reads as {from_protobuf}"));
    }
    let written = proto::seal("", "", &proto::encode_body(&tree, &schema));
    let json = String::from_utf8_lossy(&encode::json(&tree, &schema)).into_owned();
    if written != bytes || json != compact(text) {
        return Err(format!("written as {json} and {}", written.escape_ascii()));
    }
    Ok(())
}

#[test]
fn a_frame_around_an_object_is_the_same_in_all_forms() {
    let text = r#"{"type":"ADDED","object":{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}}"#;
    let yaml = "type: ADDED\nobject: {kind: Node, apiVersion: v1, metadata: {name: a}}\n";
    let object = br#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}"#;
    let raw = [&[0x0a, object.len() as u8], object.as_slice()].concat();
    let body = [b"\x0a\x05ADDED\x12".as_slice(), &[raw.len() as u8], &raw].concat();
    assert_eq!(same_frame(text, yaml, &proto::seal("", "", &body)), Ok(()));
    let Some(folder) = folder() else { return };
    let file =
        |ending: &str| std::fs::read(folder.join(format!("core.v1.WatchEvent.{ending}"))).expect("the file opens");
    let text = |ending: &str| String::from_utf8(file(ending)).expect("text");
    assert_eq!(same_frame(&text("json"), &text("yaml"), &file("pb")), Ok(()));
}

/// Our own objects with what is special in protobuf: amounts, times, numbers or texts, raw objects, lists in
/// maps, schemas that are booleans.
#[test]
fn special_forms_are_the_same_in_protobuf() {
    for text in [
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","creationTimestamp":"2026-01-02T03:04:05Z"},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"1.500","memory":"1100Ki"}},"readinessProbe":{"httpGet":{"port":"http"}},"livenessProbe":{"tcpSocket":{"port":80}}}]}}"#,
        r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"a"},"spec":{"acquireTime":"2026-01-02T03:04:05.000006Z","leaseDurationSeconds":-1}}"#,
        r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"data":{"a":"YWI=","b":""}}"#,
        r#"{"kind":"ControllerRevision","apiVersion":"apps/v1","metadata":{"name":"a"},"data":{"x":[1,null,"y"]},"revision":9223372036854775807}"#,
        r#"{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","metadata":{},"spec":{"user":"u","extra":{"k":["a","b"]}},"status":{"allowed":true}}"#,
        r#"{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{"name":"a"},"spec":{"group":"g","names":{"plural":"as","kind":"A"},"scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","maximum":1.5,"additionalProperties":false,"enum":[1,"a",null]}}}]},"status":{"acceptedNames":{"plural":"","kind":""}}}"#,
    ] {
        let value: Value = serde_json::from_str(text).expect("JSON");
        let schema = schema_of(&value).expect("a schema");
        let json = decode::decode(text.as_bytes(), Format::Json, &schema, Strictness::Strict).expect("decodes").value;
        let bytes = proto::encode(&json, &schema);
        let read = proto::decode(&bytes, &schema).expect("reads").value;
        assert_eq!(
            String::from_utf8_lossy(&encode::json(&read, &schema)),
            String::from_utf8_lossy(&encode::json(&json, &schema))
        );
        assert_eq!(proto::encode(&read, &schema), bytes, "{text}");
        let yaml = machinery::yaml::write(&json).expect("written");
        let again = decode::decode(yaml.as_bytes(), Format::Yaml, &schema, Strictness::Strict).expect("decodes").value;
        assert_eq!(again, json, "{yaml}");
    }
}

fn same_from_protobuf(name: &str, text: &str, bytes: &[u8]) -> Result<(), String> {
    let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let schema = schema_of(&value).ok_or_else(|| format!("{name}: no schema"))?;
    let json = decode::decode(text.as_bytes(), Format::Json, &schema, Strictness::Strict)
        .map_err(|e| format!("{name}: {e}"))?
        .value;
    let read = proto::decode(bytes, &schema).map_err(|e| format!("{name}: {e}"))?.value;
    // The trees may differ in what the encoder writes anyway.
    if encode::json(&read, &schema) != encode::json(&json, &schema) {
        return Err(format!("{name}: reads as something else:\n{}", difference(&json, &read, String::new())));
    }
    let written = proto::encode(&json, &schema);
    if written != bytes {
        let at = written.iter().zip(bytes).take_while(|(a, b)| a == b).count();
        let show = |b: &[u8]| b[at.saturating_sub(24)..(at + 24).min(b.len())].escape_ascii().to_string();
        return Err(format!("{name}: at {at}\n  have {}\n  want {}", show(&written), show(bytes)));
    }
    Ok(())
}

/// The first place where two trees differ.
fn difference(a: &Value, b: &Value, path: String) -> String {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let keys = x.keys().chain(y.keys());
            let none = Value::Null;
            let at = keys.into_iter().find(|k| x.get(*k) != y.get(*k)).cloned().unwrap_or_default();
            difference(x.get(&at).unwrap_or(&none), y.get(&at).unwrap_or(&none), format!("{path}.{at}"))
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
            let at = x.iter().zip(y).position(|(a, b)| a != b).unwrap_or(0);
            difference(&x[at], &y[at], format!("{path}[{at}]"))
        }
        _ => format!("  {path}: json {a} protobuf {b}"),
    }
}
