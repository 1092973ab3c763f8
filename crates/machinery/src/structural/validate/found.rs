//! One mistake, until it is told.

use serde_json::Value;

use crate::field::{ErrorType, FieldError, FieldErrors, Path};
use crate::go;

/// How a mistake is told.
#[derive(Debug)]
pub(super) enum What {
    Required,
    Enum(Vec<String>),
    TooLong(i64),
    TooMany { actual: i64, max: i64 },
    Type,
    Other,
}

/// A mistake and where it is; without a path it is one of the whole.
#[derive(Debug)]
pub(super) struct Found {
    what: What,
    path: Option<String>,
    value: Option<Value>,
    pub message: String,
}

impl Found {
    pub(super) fn of(what: What, path: String, value: Option<Value>, message: String) -> Self {
        Self { what, path: Some(path), value, message }
    }

    /// A mistake that is told without its place.
    pub(super) fn plain(message: String) -> Self {
        Self { what: What::Other, path: None, value: None, message }
    }

    /// A value that is of another type or form.
    pub(super) fn misfit(path: String, wanted: &str, found: &str) -> Self {
        let message = format!("{path} in body must be of type {wanted}: {}", go::quote(found));
        Self { what: What::Type, path: Some(path), value: Some(found.into()), message }
    }

    /// Adds it to the mistakes of an object; `base` is where the value that was checked stands.
    pub(super) fn tell(self, base: &Path, errors: &mut FieldErrors) {
        let own = self.path.as_deref().unwrap_or_default();
        let own = own.strip_prefix('.').unwrap_or(own);
        let path = if own.is_empty() { base.clone() } else { base.child(own) };
        let empty = || Value::String(String::new());
        match self.what {
            What::Required => errors.required(&path, ""),
            What::Enum(values) => {
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                errors.not_supported(&path, self.value.unwrap_or_default(), &values);
            }
            What::TooLong(max) => errors.too_long(&path, usize::try_from(max).unwrap_or(0)),
            What::TooMany { actual, max } => {
                let items = if max == 1 { "item" } else { "items" };
                let detail = format!("must have at most {max} {items}");
                errors.extend(FieldErrors(vec![FieldError {
                    kind: ErrorType::TooMany,
                    path,
                    value: Some(actual.into()),
                    detail,
                }]));
            }
            What::Type => errors.type_invalid(&path, self.value.unwrap_or_else(empty), self.message),
            What::Other => errors.invalid(&path, self.value.unwrap_or_else(empty), self.message),
        }
    }
}
