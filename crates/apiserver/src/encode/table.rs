//! Tables: the columns `kubectl get` shows, computed here so that every client shows the same.

use jiff::Timestamp;
use kinds::AnyKind;
use kinds::kind::Column;
use machinery::status::{self, Status};
use serde_json::{Value, json};

use super::json::{ListMeta, append_partial};
use crate::request::Query;

/// What of each object a row carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Include {
    None,
    #[default]
    Metadata,
    Object,
}

impl Include {
    /// From `includeObject`.
    ///
    /// # Errors
    /// 400 for a word that is none of the three.
    pub fn parse(query: &Query) -> status::Result<Self> {
        match query.text("includeObject") {
            None | Some("Metadata") => Ok(Self::Metadata),
            Some("None") => Ok(Self::None),
            Some("Object") => Ok(Self::Object),
            Some(other) => Err(Status::bad_request(format!("unrecognized includeObject value: {other:?}"))),
        }
    }
}

/// The beginning of a Table, up to its first row. In a watch only the first Table defines columns.
pub fn open(kind: &dyn AnyKind, meta_version: &str, meta: &ListMeta, columns: bool) -> Vec<u8> {
    let columns = if columns { kind.columns() } else { Vec::new() };
    let definitions: Vec<String> = columns.iter().map(definition).collect();
    format!(
        r#"{{"kind":"Table","apiVersion":"{meta_version}","metadata":{},"columnDefinitions":[{}],"rows":["#,
        meta.to_json(),
        definitions.join(",")
    )
    .into_bytes()
}

fn definition(column: &Column<'_>) -> String {
    let text = super::json::quoted;
    format!(
        r#"{{"name":{},"type":{},"format":{},"description":{},"priority":{}}}"#,
        text(column.name),
        text(column.kind),
        text(column.format),
        text(column.description),
        column.priority
    )
}

/// The end of a Table.
pub const CLOSE: &[u8] = b"]}";

/// One row, for an object's bytes in the kind's own form. An object that cannot be shown has a row
/// with its name only: one bad object never hides the others.
pub fn row(out: &mut Vec<u8>, kind: &dyn AnyKind, object: &[u8], include: Include, meta_version: &str, now: Timestamp) {
    let (cells, conditions) = kind.row_of_bytes(object, now).unwrap_or_else(|error| {
        tracing::warn!(%error, kind = kind.shape().kind, "an object cannot be shown in a table");
        (unreadable(kind, object), Vec::new())
    });
    out.extend_from_slice(br#"{"cells":"#);
    out.extend_from_slice(Value::from(cells).to_string().as_bytes());
    if !conditions.is_empty() {
        out.extend_from_slice(br#","conditions":"#);
        out.extend_from_slice(Value::from(conditions).to_string().as_bytes());
    }
    out.extend_from_slice(br#","object":"#);
    match include {
        Include::None => out.extend_from_slice(b"null"),
        Include::Metadata => append_partial(out, object, meta_version),
        Include::Object => out.extend_from_slice(object),
    }
    out.push(b'}');
}

fn unreadable(kind: &dyn AnyKind, object: &[u8]) -> Vec<Value> {
    let metadata: Value =
        super::json::metadata(object).and_then(|m| serde_json::from_slice(m).ok()).unwrap_or_default();
    let name = metadata.get("name").cloned().unwrap_or(json!("<unknown>"));
    let cell = |column: &Column<'_>| if column.format == "name" { name.clone() } else { json!("<unknown>") };
    kind.columns().iter().map(cell).collect()
}
