//! What differs between two objects, as lines for the message that refuses the change.

use serde_json::Value;

/// How many differences a message shows.
const DIFFERENCES: usize = 20;

/// One line per field that differs: `  spec.nodeName: "a" -> "b"`.
pub fn differences(old: &Value, new: &Value) -> Vec<String> {
    let mut out = Vec::new();
    compare(old, new, "", &mut out);
    if out.len() > DIFFERENCES {
        let more = out.len() - DIFFERENCES;
        out.truncate(DIFFERENCES);
        out.push(format!("  … and {more} more"));
    }
    out
}

fn compare(old: &Value, new: &Value, path: &str, out: &mut Vec<String>) {
    let nothing = |v: &Value| v.is_null() || v.as_array().is_some_and(Vec::is_empty);
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                compare(a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null), &path, out);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for i in 0..a.len().max(b.len()) {
                let path = format!("{path}[{i}]");
                compare(a.get(i).unwrap_or(&Value::Null), b.get(i).unwrap_or(&Value::Null), &path, out);
            }
        }
        _ if old == new || (nothing(old) && nothing(new)) => {}
        _ => {
            if !nothing(old) {
                out.push(format!("- {path}: {old}"));
            }
            if !nothing(new) {
                out.push(format!("+ {path}: {new}"));
            }
        }
    }
}
