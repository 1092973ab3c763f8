//! Any object of any kind is the same in JSON and in protobuf, whichever way it goes.

use base64::Engine as _;
use machinery::decode::{self, Format, Strictness};
use machinery::schema::{Field, Scalar, Shape, Type, TypeRef};
use machinery::{encode, proto};
use proptest::prelude::*;
use proptest::test_runner::TestRng;
use serde_json::{Map, Value, json};

/// Every type that is an object of its own and has a protobuf form.
fn kinds() -> Vec<Type> {
    api::schema::all()
        .filter(|t| t.get().is_root() && t.get().declared().any(|f| !f.embedded() && f.tag() > 0))
        .collect()
}

/// Makes objects; what it picks comes from a seed.
struct Maker {
    rng: TestRng,
    /// Fields that may yet be set, so that no object is without bounds.
    left: usize,
}

impl Maker {
    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.rng.next_u32() as usize % n
    }

    fn byte(&mut self) -> u8 {
        self.rng.next_u32() as u8
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    fn object(&mut self, t: TypeRef<'_>, depth: usize) -> Value {
        let mut map = Map::new();
        for field in t.fields() {
            let of_envelope = t.is_root() && matches!(field.name(), "kind" | "apiVersion");
            let wanted = !of_envelope && self.left > 0 && depth < 14 && self.below(5) < 2;
            if wanted && has_tag(t, field) {
                self.left -= 1;
                let value = self.value(field.shape(), field.omitempty(), depth);
                map.insert(field.name().to_owned(), value);
            }
        }
        Value::Object(map)
    }

    fn value(&mut self, shape: Shape<'_>, empties: bool, depth: usize) -> Value {
        match shape {
            Shape::Scalar(scalar) => self.scalar(scalar),
            Shape::Raw => self.pick(&[json!({}), json!({"a": [1, null, "\u{e9}"], "f:b": {".": {}}})]).clone(),
            Shape::Struct(t) => self.object(t, depth + 1),
            Shape::List(inner) => {
                let shape = inner.shape();
                (0..self.count(empties)).map(|_| self.value(shape, false, depth)).collect()
            }
            Shape::Map(inner) => {
                let shape = inner.shape();
                let keys = ["", "a", "b/c", "\u{1F980}"];
                let count = self.count(empties);
                keys.iter()
                    .take(count)
                    .map(|key| ((*key).to_owned(), self.value(shape, true, depth)))
                    .collect::<Map<_, _>>()
                    .into()
            }
            Shape::OrArray(t) if self.coin() => json!([self.object(t, depth + 1)]),
            Shape::OrBool(_) if self.coin() => json!(self.coin()),
            Shape::OrStrings(_) if self.coin() => json!(["x", ""]),
            Shape::OrArray(t) | Shape::OrBool(t) | Shape::OrStrings(t) => self.object(t, depth + 1),
        }
    }

    /// Where a field is written also when it is empty, protobuf cannot tell that it is not absent.
    fn count(&mut self, empties: bool) -> usize {
        self.below(2) + self.below(2).max(usize::from(!empties))
    }

    fn scalar(&mut self, scalar: Scalar) -> Value {
        match scalar {
            Scalar::String => json!(self.pick(&["", "a", "\"\\\n\u{0}\u{7f}", "\u{e9}\u{1F980}", &"long ".repeat(40)])),
            Scalar::Bool => json!(self.coin()),
            Scalar::Int32 => json!(self.pick(&[0, 1, -1, 80, i32::MAX, i32::MIN])),
            Scalar::Int64 => json!(self.pick(&[0, 1, -1, i64::MAX, i64::MIN])),
            Scalar::Float64 => json!(self.pick(&[0.5, -2.25, 1e300])),
            Scalar::Bytes => json!(base64::engine::general_purpose::STANDARD.encode([0, 0xff, self.byte()])),
            Scalar::Quantity => json!(self.pick(&["0", "100m", "1", "1500m", "10Mi", "1Gi", "2k", "-3"])),
            Scalar::IntOrString => self.pick(&[json!(0), json!(-5), json!("http"), json!("25%"), json!("80")]).clone(),
            Scalar::Time => json!(self.pick(&["2026-01-02T03:04:05Z", "1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z"])),
            Scalar::MicroTime => json!(self.pick(&["2026-01-02T03:04:05.000006Z", "2026-01-02T03:04:05.000000Z"])),
            Scalar::Duration => json!(self.pick(&["0s", "1h2m3.5s", "-1.5ms", "15m0s", "7ns"])),
        }
    }
}

/// A field without a number has no place in protobuf.
fn has_tag(t: TypeRef<'_>, field: Field<'_>) -> bool {
    let own = t.declared().find(|declared| !declared.embedded() && declared.name() == field.name());
    own.is_none_or(|declared| declared.tag() > 0)
}

fn shown(object: &Value, t: &Type) -> String {
    String::from_utf8_lossy(&encode::json(object, t)).into_owned()
}

fn check(t: &Type, object: &Value) -> Result<(), TestCaseError> {
    let (json, text) = (encode::json(object, t), shown(object, t));
    let read = decode::decode(&json, Format::Json, t, Strictness::Strict);
    let read = read.map_err(|status| TestCaseError::fail(format!("{}: {text}", status.message)))?.value;
    prop_assert_eq!(&shown(&read, t), &text, "JSON to JSON");
    let bytes = proto::encode(&read, t);
    let back = proto::decode(&bytes, t);
    let back = back.map_err(|status| TestCaseError::fail(format!("{}: {text}", status.message)))?.value;
    prop_assert_eq!(&shown(&back, t), &text, "protobuf to JSON");
    prop_assert_eq!(&proto::encode(&back, t), &bytes, "protobuf to protobuf");
    let straight = proto::transcode(&json, t).map_err(|status| TestCaseError::fail(status.message))?;
    prop_assert_eq!(&proto::seal(&encode_version(&read), t.name(), &straight), &bytes, "without a tree: {}", text);
    Ok(())
}

fn encode_version(object: &Value) -> String {
    object["apiVersion"].as_str().unwrap_or_default().to_owned()
}

/// A sound object with some of its bytes spoiled, cut off or added to.
fn spoil(maker: &mut Maker, bytes: &mut Vec<u8>) {
    for _ in 0..1 + maker.below(3) {
        let at = maker.below(bytes.len().max(1));
        match maker.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), maker.byte()),
            2 => bytes.extend_from_slice(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = maker.byte();
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_object_is_the_same_in_every_form(rng in Just(()).prop_perturb(|(), rng| rng)) {
        let mut maker = Maker { rng, left: 0 };
        for t in kinds() {
            maker.left = 120;
            let object = maker.object(t.get(), 0);
            check(&t, &object)?;
        }
    }

    #[test]
    fn spoiled_objects_are_refused_or_read(rng in Just(()).prop_perturb(|(), rng| rng)) {
        let mut maker = Maker { rng, left: 0 };
        for t in kinds() {
            maker.left = 60;
            let object = maker.object(t.get(), 0);
            let mut bytes = proto::encode(&object, &t);
            spoil(&mut maker, &mut bytes);
            match proto::decode(&bytes, &t) {
                Err(status) => prop_assert!((400..500).contains(&status.code), "{:?}", status),
                // What was read can be written, and reads as the same.
                Ok(read) => {
                    let again = proto::encode(&read.value, &t);
                    let back = proto::decode(&again, &t).map_err(|status| TestCaseError::fail(status.message))?;
                    prop_assert_eq!(encode::json(&back.value, &t), encode::json(&read.value, &t));
                }
            }
        }
    }
}

#[test]
fn there_are_kinds() {
    assert!(kinds().len() > 150, "{}", kinds().len());
}

/// Upstream's own objects, where they are at hand, straight from JSON to the bytes upstream writes, and
/// as the YAML upstream writes.
#[test]
fn golden_objects_need_no_tree() {
    let here = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let Some(folder) = here.ancestors().map(|a| a.join("shared/golden")).find(|p| p.is_dir()) else { return };
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the folder opens") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|e| e != "json") || path.to_string_lossy().contains(".WatchEvent.") {
            continue;
        }
        let value: Value = serde_json::from_slice(&std::fs::read(&path).expect("the file opens")).expect("JSON");
        let version = value["apiVersion"].as_str().expect("a version");
        let (group, plain) = version.split_once('/').unwrap_or(("", version));
        let kind = value["kind"].as_str().expect("a kind");
        let t = api::schema::of(group, plain, kind).unwrap_or_else(|| panic!("{path:?} has no schema"));
        let made = proto::seal(version, kind, &proto::transcode(&encode::json(&value, &t), &t).expect("is JSON"));
        assert!(made == std::fs::read(path.with_extension("pb")).expect("the file opens"), "{path:?}");
        let yaml = std::fs::read_to_string(path.with_extension("yaml")).expect("the file opens");
        let sent: Value = serde_json::from_slice(&encode::json(&value, &t)).expect("JSON");
        assert_eq!(String::from_utf8_lossy(&encode::yaml(&sent)), yaml, "{path:?}");
        count += 1;
    }
    assert!(count > 100, "{count} objects");
}
