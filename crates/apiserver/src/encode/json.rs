//! JSON text as text: indenting, envelopes, the metadata of stored bytes without a tree.

/// Indents JSON for eyes, keeping the order of fields. The input must be JSON.
pub fn pretty(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 2);
    Pretty::default().push(json, &mut out);
    out
}

/// Indents JSON that comes in pieces, which may be cut anywhere.
#[derive(Debug, Default)]
pub struct Pretty {
    depth: usize,
    in_text: bool,
    escaped: bool,
    /// The last thing that came was the beginning of a list or an object.
    opened: bool,
}

impl Pretty {
    /// Takes the next piece.
    pub fn push(&mut self, json: &[u8], out: &mut Vec<u8>) {
        for byte in json.iter().copied() {
            if self.in_text {
                out.push(byte);
                self.in_text = self.escaped || byte != b'"';
                self.escaped = !self.escaped && byte == b'\\';
                continue;
            }
            let closes = matches!(byte, b'}' | b']');
            if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                continue;
            }
            // What holds nothing stays on its line.
            match (std::mem::take(&mut self.opened), closes) {
                (true, false) => {
                    self.depth += 1;
                    self.line(out);
                }
                (false, true) => {
                    self.depth = self.depth.saturating_sub(1);
                    self.line(out);
                }
                _ => {}
            }
            out.push(byte);
            match byte {
                b'"' => self.in_text = true,
                b'{' | b'[' => self.opened = true,
                b',' => self.line(out),
                b':' => out.push(b' '),
                _ => {}
            }
        }
    }

    fn line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.resize(out.len() + 2 * self.depth, b' ');
    }
}

/// `text` as a JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The bytes of `metadata` in an object's bytes, which stands before what is long.
pub fn metadata(object: &[u8]) -> Option<&[u8]> {
    machinery::encode::field(object, "metadata")
}

/// A PartialObjectMetadata of an object's bytes, in a version of `meta.k8s.io`.
pub fn append_partial(out: &mut Vec<u8>, object: &[u8], meta_version: &str) {
    out.extend_from_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":""#);
    out.extend_from_slice(meta_version.as_bytes());
    out.extend_from_slice(br#"","metadata":"#);
    out.extend_from_slice(metadata(object).unwrap_or(b"{}"));
    out.push(b'}');
}

/// The same by itself.
pub fn partial(object: &[u8], meta_version: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    append_partial(&mut out, object, meta_version);
    out
}

/// How the bytes of every object of a kind begin.
pub fn head(kind: &str, api_version: &str) -> String {
    format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","#)
}

/// The metadata of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListMeta {
    /// None of a list that is computed and is no state of a store.
    pub revision: Option<u64>,
    pub continue_token: Option<String>,
    pub remaining: Option<usize>,
}

impl ListMeta {
    /// As a tree.
    pub fn to_value(&self) -> serde_json::Value {
        serde_json::json!({
            "resourceVersion": self.revision.map(|revision| revision.to_string()),
            "continue": self.continue_token,
            "remainingItemCount": self.remaining,
        })
    }

    /// As JSON.
    pub fn to_json(&self) -> String {
        let version = self.revision.map(|revision| format!(r#""resourceVersion":"{revision}""#));
        let token = self.continue_token.as_ref().map(|token| format!(r#""continue":{}"#, quoted(token)));
        let remaining = self.remaining.map(|remaining| format!(r#""remainingItemCount":{remaining}"#));
        let fields: Vec<String> = version.into_iter().chain(token).chain(remaining).collect();
        format!("{{{}}}", fields.join(","))
    }
}

/// The beginning of a list, up to its first item.
pub fn open_list(kind: &str, api_version: &str, meta: &ListMeta) -> Vec<u8> {
    format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{},"items":["#, meta.to_json()).into_bytes()
}

/// The end of a list.
pub const CLOSE_LIST: &[u8] = b"]}";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn indenting_keeps_order_and_texts() {
        let json = br#"{"b":[],"a":{"x":"{\"q\": [1,2]}","y":[1,{"z":null}]},"e":{}}"#;
        let want = "{\n  \"b\": [],\n  \"a\": {\n    \"x\": \"{\\\"q\\\": [1,2]}\",\n    \"y\": [\n      1,\n      {\n        \"z\": null\n      }\n    ]\n  },\n  \"e\": {}\n}";
        assert_eq!(String::from_utf8_lossy(&pretty(json)), want);
    }

    #[test]
    fn parts_of_objects() {
        let pod = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"spec":{"metadata":1}}"#;
        let want = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}}"#;
        assert_eq!(String::from_utf8_lossy(&partial(pod, "meta.k8s.io/v1")), want);
        let mut list = open_list(
            "PodList",
            "v1",
            &ListMeta { revision: Some(7), continue_token: Some("t".into()), remaining: Some(2) },
        );
        let head = head("Pod", "v1");
        list.push(b'{');
        list.extend_from_slice(pod.strip_prefix(head.as_bytes()).expect("a head"));
        list.extend_from_slice(CLOSE_LIST);
        let want = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"t","remainingItemCount":2},"items":[{"metadata":{"name":"a"},"spec":{"metadata":1}}]}"#;
        assert_eq!(String::from_utf8_lossy(&list), want);
    }

    proptest! {
        #[test]
        fn indenting_changes_no_value(cut in 1usize..40, text in "\\PC{0,20}", n in any::<i64>(), keys in prop::collection::btree_map("\\PC{0,5}", "[\"\\\\{}:, ]{0,6}", 0..4)) {
            let value = serde_json::json!({"a": [text, n, {"k": keys}], "b": {}});
            let text = value.to_string();
            let whole = pretty(text.as_bytes());
            let again: serde_json::Value = serde_json::from_slice(&whole).expect("JSON");
            prop_assert_eq!(again, value);
            // However it is cut.
            let (mut pieces, mut pretty) = (Vec::new(), Pretty::default());
            for piece in text.as_bytes().chunks(cut) {
                pretty.push(piece, &mut pieces);
            }
            prop_assert_eq!(pieces, whole);
        }
    }
}
