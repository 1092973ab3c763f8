//! Values that the golden objects do not have, and bytes that nobody should send; the codec itself is
//! proven on every kind in `api`.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::Table;

const TABLE: &str = "\
package apps/v1 apps
alias ExtraValue []string
type Web
 (TypeMeta) - meta/v1.TypeMeta -
 metadata 1 meta/v1.ObjectMeta oi
 spec 2 WebSpec oi
type WebSpec
 replicas 1 int32 opi
 total 20 int64 oi
 ports 3 []int32 oi
 extra 4 map[string]ExtraValue oi
 cpu 5 resource.Quantity opi
 port 7 intstr.IntOrString opi
 at 8 meta/v1.Time opi
 micro 9 meta/v1.MicroTime opi
 window 10 meta/v1.Duration opi
 data 11 map[string][]byte oi
 raw 13 runtime.RawExtension oi
 ratio 14 float64 opi
 times 15 map[string]meta/v1.Time oi
 inner 16 WebSpec opi
 (Base) 17 Base -
 verbs 18 meta/v1.Verbs oi
type Base
 paused 1 bool oi
 strict 2 bool opi
package meta/v1 meta.k8s.io
alias Verbs []string
type ObjectMeta
 name 1 string oi
type TypeMeta
 kind 1 string oi
 apiVersion 2 string oi
";

fn web() -> Type {
    let table = Arc::new(Table::parse(TABLE).expect("the table parses"));
    table.of("apps", "v1", "Web").expect("Web")
}

fn object(spec: Value) -> Value {
    json!({"kind": "Web", "apiVersion": "apps/v1", "metadata": {"name": "a"}, "spec": spec})
}

#[test]
fn values_survive_the_way_there_and_back() {
    for spec in [
        json!({"replicas": 0, "total": -5, "ports": [1, -1, 2147483647]}),
        json!({"extra": {"a": ["x", "y"], "b": []}, "verbs": ["get"]}),
        json!({"cpu": "100m", "port": "http", "at": "2026-01-02T03:04:05Z", "micro": "2026-01-02T03:04:05.000006Z"}),
        json!({"port": 0, "window": "1h2m3.5s", "ratio": 0.5, "data": {"a": "AAE=", "b": ""}}),
        json!({"window": "-1.5ms", "ratio": -3, "raw": {"a": [1, null]}, "times": {"a": "1969-12-31T23:59:59Z"}}),
        json!({"inner": {"inner": {"paused": true}}, "strict": false}),
        json!({"inner": {}}),
    ] {
        let value = object(spec.clone());
        let bytes = encode(&value, &web());
        let back = decode(&bytes, &web()).expect("decodes").value;
        assert_eq!(back, value, "{spec}");
        assert_eq!(encode(&back, &web()), bytes, "{spec}");
        let json = crate::encode::json(&value, &web());
        assert_eq!(transcode(&json, &web()).expect("is JSON"), encode_body(&value, &web()), "{spec}");
    }
}

#[test]
fn numbers_may_come_packed() {
    let mut body = Vec::new();
    let at = wire::begin(&mut body, 2);
    wire::bytes(&mut body, 3, &[1, 2, 0x80, 1]);
    wire::end(&mut body, at);
    let value = decode_body(&body, &web()).expect("decodes");
    assert_eq!(value, json!({"spec": {"ports": [1, 2, 128]}}));
}

#[test]
fn envelopes_open_and_close() {
    let sealed = seal("apps/v1", "Web", b"");
    let envelope = open(&sealed).expect("opens");
    assert_eq!((envelope.api_version.as_str(), envelope.kind.as_str()), ("apps/v1", "Web"));
    assert_eq!(open(b"{}"), None);
    assert_eq!(open(b"k8s\0\x0a\x7f"), None);
    for sealed in [sealed, seal("apps/v1", "Web", &vec![0x12; 20_000])] {
        let event = [watch_event_begin("ADDED", sealed.len()), sealed.clone()].concat();
        let (length, event) = event.split_first_chunk::<4>().expect("a length");
        assert_eq!(u32::from_be_bytes(*length) as usize, event.len());
        assert_eq!(read_watch_event(event), Some(("ADDED".to_owned(), &sealed[..])));
    }
    let refused = decode(&seal("apps/v1", "Nope", b""), &web()).expect_err("refused");
    assert_eq!(refused.code, 400);
    let refused = decode(b"{}", &web()).expect_err("refused");
    assert_eq!(
        refused.message,
        "the object provided is unrecognized (must be of type Web): provided data does not appear to be a protobuf message"
    );
}

#[test]
fn nesting_is_bounded() {
    let mut body = Vec::new();
    for _ in 0..2_000 {
        let mut outer = Vec::new();
        wire::bytes(&mut outer, 16, &body);
        body = outer;
    }
    let mut spec = Vec::new();
    wire::bytes(&mut spec, 2, &body);
    assert!(decode_body(&spec, &web()).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_body(&bytes, &web());
        let _ = decode(&bytes, &web());
        let mut spec = Vec::new();
        wire::bytes(&mut spec, 2, &bytes);
        let _ = decode(&seal("apps/v1", "Web", &spec), &web());
        let _ = read_watch_event(&bytes);
    }

    #[test]
    fn spoiled_bytes_are_answered(at in 0usize..120, byte in any::<u8>()) {
        let value = object(json!({"extra": {"a": ["x"]}, "cpu": "1", "port": "p", "at": "2026-01-02T03:04:05Z",
            "window": "1s", "data": {"a": "AA=="}, "raw": {"a": 1}, "ratio": 0.5, "inner": {"paused": true}}));
        let mut bytes = encode(&value, &web());
        if let Some(slot) = bytes.get_mut(at) {
            *slot = byte;
        }
        let _ = decode(&bytes, &web());
    }
}
