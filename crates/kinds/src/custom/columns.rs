//! The columns of a custom resource's Table: its name, and what the definition's paths find.

use jiff::Timestamp;
use machinery::jsonpath::JsonPath;
use machinery::time;
use serde_json::Value;

use crate::custom_resource_definition::PrinterColumn;
use crate::kind::{Cell, Column};

/// The columns of one version.
#[derive(Clone, Debug, Default)]
pub(super) struct Columns(Vec<Own>);

#[derive(Clone, Debug)]
struct Own {
    column: PrinterColumn,
    path: JsonPath,
}

impl Columns {
    /// As the definition says; a column whose path cannot be read ends them. Without any there is the age.
    pub fn new(columns: &[PrinterColumn]) -> Self {
        if columns.is_empty() {
            let age = PrinterColumn {
                name: "Age".into(),
                kind: "date".into(),
                description: "When the object was created.".into(),
                json_path: ".metadata.creationTimestamp".into(),
                ..PrinterColumn::default()
            };
            return Self::new(&[age]);
        }
        let mut own = Vec::with_capacity(columns.len());
        for column in columns {
            let Ok(path) = JsonPath::parse(&column.json_path) else { break };
            let mut column = column.clone();
            if column.description.is_empty() {
                column.description =
                    format!("Custom resource definition column (in JSONPath format): {}", column.json_path);
            }
            own.push(Own { column, path });
        }
        Self(own)
    }

    /// What each is, the name first.
    pub fn columns(&self) -> Vec<Column<'_>> {
        let own = self.0.iter().map(|Own { column, .. }| Column {
            name: &column.name,
            kind: &column.kind,
            format: &column.format,
            description: &column.description,
            priority: column.priority,
        });
        std::iter::once(Column::NAME).chain(own).collect()
    }

    /// The row of an object.
    pub fn row(&self, object: &Value, now: Timestamp) -> Vec<Cell> {
        let name = machinery::meta::name(object).into();
        let cell = |own: &Own| {
            let found = own.path.find(object);
            found.first().map_or(Value::Null, |value| cell(&own.column.kind, value, now))
        };
        std::iter::once(name).chain(self.0.iter().map(cell)).collect()
    }
}

/// A value as a column of the type shows it; null when it is of another type.
fn cell(kind: &str, value: &Value, now: Timestamp) -> Cell {
    match (kind, value) {
        ("string", Value::String(_)) => value.clone(),
        ("string", Value::Null) => Value::Null,
        ("string", Value::Number(number)) if number.is_f64() => {
            machinery::go::float(number.as_f64().unwrap_or_default()).into()
        }
        ("string", other) => other.to_string().into(),
        ("integer", Value::Number(number)) => {
            #[expect(clippy::cast_possible_truncation, reason = "it shows what fits, as Go's conversion does")]
            let whole = number.as_i64().or_else(|| number.as_f64().map(|f| f as i64));
            whole.into()
        }
        ("number", Value::Number(number)) => number.as_f64().into(),
        ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) => match time::parse(text) {
            Some(at) => time::age(at, now).into(),
            None => "<invalid>".into(),
        },
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_show_what_fits_their_column() {
        let now: Timestamp = "2030-01-01T00:02:00Z".parse().expect("time");
        for (kind, value, want) in [
            ("string", json!("a"), json!("a")),
            ("string", json!(7), json!("7")),
            ("string", json!(true), json!("true")),
            ("string", json!({"a": [1]}), json!(r#"{"a":[1]}"#)),
            ("string", Value::Null, Value::Null),
            ("integer", json!(7), json!(7)),
            ("integer", json!(7.9), json!(7)),
            ("integer", json!("7"), Value::Null),
            ("number", json!(7), json!(7.0)),
            ("boolean", json!(false), json!(false)),
            ("boolean", json!("false"), Value::Null),
            ("date", json!("2030-01-01T00:00:00Z"), json!("2m")),
            ("date", json!("yesterday"), json!("<invalid>")),
            ("date", json!(1), Value::Null),
        ] {
            assert_eq!(cell(kind, &value, now), want, "{kind} {value}");
        }
    }

    #[test]
    fn without_columns_there_is_the_age() {
        let now: Timestamp = "2030-01-01T01:00:00Z".parse().expect("time");
        let object = json!({"metadata": {"name": "a", "creationTimestamp": "2030-01-01T00:00:00Z"}});
        let columns = Columns::new(&[]);
        let names: Vec<&str> = columns.columns().iter().map(|column| column.name).collect();
        assert_eq!((names, columns.row(&object, now)), (vec!["Name", "Age"], vec![json!("a"), json!("60m")]));
    }
}
