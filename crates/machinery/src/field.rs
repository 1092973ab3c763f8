//! Field paths and the mistakes found at them, in upstream's grammar.
//!
//! ```text
//! spec.containers[0].image: Required value
//! spec.replicas: Invalid value: -1: must be greater than or equal to 0
//! ```

use std::fmt;

use serde_json::Value;

/// A path to a field: `spec.containers[0].ports[http]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(String);

impl Path {
    /// A path that starts at the field `name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The object itself. Its children start a path.
    pub fn root() -> Self {
        Self(String::new())
    }

    /// `self.name`.
    #[must_use]
    pub fn child(&self, name: impl AsRef<str>) -> Self {
        let name = name.as_ref();
        if self.0.is_empty() { Self(name.to_owned()) } else { Self(format!("{}.{name}", self.0)) }
    }

    /// `self[index]`.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// `self[key]`.
    #[must_use]
    pub fn key(&self, key: impl fmt::Display) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

/// What is wrong with a field. The names are `field.ErrorType` of upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorType {
    Required,
    Invalid,
    Duplicate,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    TooFew,
    NotFound,
    TypeInvalid,
    Internal,
}

impl ErrorType {
    /// The text in a message.
    pub fn text(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::Duplicate => "Duplicate value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::TooFew => "Too few",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        }
    }

    /// The reason of a cause in a Status.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TooFew => "FieldValueTooFew",
            Self::NotFound => "FieldValueNotFound",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Internal => "InternalError",
        }
    }
}

/// One mistake at one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub kind: ErrorType,
    pub path: Path,
    /// Printed unless the type hides it or it is `None`.
    pub value: Option<Value>,
    pub detail: String,
}

impl FieldError {
    /// The message without the path: what a cause carries.
    pub fn body(&self) -> String {
        let mut out = self.kind.text().to_owned();
        if let Some(value) = &self.value {
            out.push_str(": ");
            out.push_str(&print(value));
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

/// Strings quoted, numbers and booleans plain, the rest as JSON; long values are cut.
fn print(value: &Value) -> String {
    const LIMIT: usize = 10_000;
    let mut text = match value {
        Value::Null => "null".to_owned(),
        other => other.to_string(),
    };
    if text.len() > LIMIT {
        let cut = (0..=LIMIT).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(cut);
        text.push_str("...");
    }
    text
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

/// No more mistakes than this are kept of one object: a body of 3 MiB can hold a million of them, and
/// nobody reads the second thousand.
pub const MAX_ERRORS: usize = 1000;

/// The mistakes found in one object, in the order they were found; at most [`MAX_ERRORS`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldErrors(pub Vec<FieldError>);

impl FieldErrors {
    /// No mistakes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// True when nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many mistakes there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    fn add(&mut self, kind: ErrorType, path: &Path, value: Option<Value>, detail: impl Into<String>) {
        if self.0.len() < MAX_ERRORS {
            self.0.push(FieldError { kind, path: path.clone(), value, detail: detail.into() });
        }
    }

    /// The field must be there. `detail` may be empty.
    pub fn required(&mut self, path: &Path, detail: impl Into<String>) {
        self.add(ErrorType::Required, path, None, detail);
    }

    /// The value breaks a rule.
    pub fn invalid(&mut self, path: &Path, value: impl Into<Value>, detail: impl Into<String>) {
        self.add(ErrorType::Invalid, path, Some(value.into()), detail);
    }

    /// The same, with a value that is not shown, or is shown in the detail because it is no JSON.
    pub fn invalid_unprinted(&mut self, path: &Path, detail: impl Into<String>) {
        self.add(ErrorType::Invalid, path, None, detail);
    }

    /// The value appears twice where it must be unique.
    pub fn duplicate(&mut self, path: &Path, value: impl Into<Value>) {
        self.add(ErrorType::Duplicate, path, Some(value.into()), "");
    }

    /// The value is none of `supported`.
    pub fn not_supported(&mut self, path: &Path, value: impl Into<Value>, supported: &[&str]) {
        let mut detail = String::new();
        if !supported.is_empty() {
            let quoted: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
            detail = format!("supported values: {}", quoted.join(", "));
        }
        self.add(ErrorType::NotSupported, path, Some(value.into()), detail);
    }

    /// The field may not be set, or not changed, here.
    pub fn forbidden(&mut self, path: &Path, detail: impl Into<String>) {
        self.add(ErrorType::Forbidden, path, None, detail);
    }

    /// The text exceeds `max` bytes; the value is not printed.
    pub fn too_long(&mut self, path: &Path, max: usize) {
        let bytes = if max == 1 { "byte" } else { "bytes" };
        self.add(ErrorType::TooLong, path, None, format!("may not be more than {max} {bytes}"));
    }

    /// The list has `actual` items and may have `max`.
    pub fn too_many(&mut self, path: &Path, actual: usize, max: usize) {
        let items = if max == 1 { "item" } else { "items" };
        self.add(ErrorType::TooMany, path, Some(actual.into()), format!("must have at most {max} {items}"));
    }

    /// What the field names does not exist.
    pub fn not_found(&mut self, path: &Path, value: impl Into<Value>) {
        self.add(ErrorType::NotFound, path, Some(value.into()), "");
    }

    /// The value has the wrong type.
    pub fn type_invalid(&mut self, path: &Path, value: impl Into<Value>, detail: impl Into<String>) {
        self.add(ErrorType::TypeInvalid, path, Some(value.into()), detail);
    }

    /// The check itself failed.
    pub fn internal(&mut self, path: &Path, detail: impl Into<String>) {
        self.add(ErrorType::Internal, path, None, detail);
    }

    /// Takes over another object's mistakes.
    pub fn extend(&mut self, other: FieldErrors) {
        let room = MAX_ERRORS.saturating_sub(self.0.len());
        self.0.extend(other.0.into_iter().take(room));
    }
}

impl fmt::Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        match texts.as_slice() {
            [one] => f.write_str(one),
            many => write!(f, "[{}]", many.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_without_end_are_cut() {
        let (mut errors, mut more) = (FieldErrors::new(), FieldErrors::new());
        for i in 0..2 * MAX_ERRORS {
            errors.required(&Path::new("list").index(i), "");
            more.required(&Path::new("more").index(i), "");
        }
        errors.extend(more);
        assert_eq!(errors.len(), MAX_ERRORS);
    }

    #[test]
    fn messages_have_upstreams_grammar() {
        let spec = Path::new("spec");
        let mut errors = FieldErrors::new();
        errors.required(&spec.child("containers").index(0).child("image"), "");
        errors.invalid(&spec.child("replicas"), -1, "must be greater than or equal to 0");
        errors.not_supported(&spec.child("type"), "X", &["A", "B"]);
        errors.too_many(&spec.child("items"), 3, 2);
        let texts: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.containers[0].image: Required value",
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                "spec.type: Unsupported value: \"X\": supported values: \"A\", \"B\"",
                "spec.items: Too many: 3: must have at most 2 items",
            ]
        );
    }
}
