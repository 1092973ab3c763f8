//! What a body says it is, and what is told when that is something else.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::Decoded;
use crate::go;
use crate::schema::Type;
use crate::status::{Result, Status};

/// How the reader of `kind` and `apiVersion` begins to complain.
pub(super) const NO_HEAD: &str = "couldn't get version/kind; json parse error: ";

/// The Go type it reads into.
const HEAD: &str = "Go value of type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; \
                    Kind string \"json:\\\"kind,omitempty\\\"\" }";

/// `kind` and `apiVersion`, each empty when absent.
#[derive(Debug, Default)]
pub(super) struct Head {
    kind: String,
    api_version: String,
}

impl Head {
    pub(super) fn new(kind: &str, api_version: &str) -> Self {
        Self { kind: kind.to_owned(), api_version: api_version.to_owned() }
    }

    /// Reads them from a body, as exactly as upstream does before it looks at anything else.
    ///
    /// # Errors
    /// When they are no texts, or no object is there to have them.
    pub(super) fn of_json(bytes: &[u8]) -> std::result::Result<Self, String> {
        /// Keeps the head alone of what may be very large.
        struct Reader;
        impl<'de> serde::de::Visitor<'de> for Reader {
            type Value = Map<String, Value>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut access: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut out = Map::new();
                while let Some(key) = access.next_key::<String>()? {
                    if field(&key).is_some() {
                        out.insert(key, access.next_value()?);
                    } else {
                        access.next_value::<serde::de::IgnoredAny>()?;
                    }
                }
                Ok(out)
            }
        }
        use serde::Deserializer as _;
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        match reader.deserialize_map(Reader) {
            Ok(map) => Self::of_tree(&Value::Object(map)),
            Err(_) => match serde_json::from_slice(bytes) {
                Ok(Value::Object(_)) | Err(_) => Ok(Self::default()),
                Ok(other) => Self::of_tree(&other),
            },
        }
    }

    /// Reads them from a tree.
    ///
    /// # Errors
    /// When they are no texts, or no object is there to have them.
    pub(super) fn of_tree(value: &Value) -> std::result::Result<Self, String> {
        let map = match value {
            Value::Object(map) => map,
            Value::Null => return Ok(Self::default()),
            other => {
                let found = crate::patch::type_name(other);
                return Err(format!("{NO_HEAD}json: cannot unmarshal {found} into {HEAD}"));
            }
        };
        let mut head = Self::default();
        for (key, value) in map {
            let Some(name) = field(key) else { continue };
            match value {
                Value::Null => {}
                Value::String(text) if name == "kind" => head.kind.clone_from(text),
                Value::String(text) => head.api_version.clone_from(text),
                other => {
                    let found = crate::patch::type_name(other);
                    return Err(format!(
                        "{NO_HEAD}json: cannot unmarshal {found} into Go struct field .{name} of type string"
                    ));
                }
            }
        }
        if head.api_version.matches('/').count() > 1 {
            return Err(format!("unexpected GroupVersion string: {}", head.api_version));
        }
        Ok(head)
    }

    /// True for an object whose `apiVersion` is of no form that one can have.
    pub(super) fn is_odd(value: Option<&Value>) -> bool {
        let version = value.and_then(|v| v.get("apiVersion")).and_then(Value::as_str).unwrap_or_default();
        version.bytes().filter(|b| *b == b'/').count() > 1
    }

    /// Of an object that has been read as its type says.
    pub(super) fn lenient(value: &Value) -> Self {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        Self::new(text("kind"), text("apiVersion"))
    }

    /// Group and version, filled in from the type where the body leaves them out.
    fn group_version(&self, schema: &Type) -> (String, String) {
        let t = schema.get();
        let own = crate::encode::api_version(t);
        let split = |text: &str| match text.split_once('/') {
            Some((group, version)) => (group.to_owned(), version.to_owned()),
            None => (String::new(), text.to_owned()),
        };
        let (own_group, own_version) = split(&own);
        match split(&self.api_version) {
            (group, version) if group.is_empty() && version.is_empty() => (own_group, own_version),
            (group, version) if version.is_empty() && group == own_group => (group, own_version),
            found => found,
        }
    }

    /// Refuses a body of another kind, or of the same kind in another version. `read` reads it as what it
    /// says it is: what is wrong with it as such is told first.
    ///
    /// # Errors
    /// 400.
    pub(super) fn check(&self, schema: &Type, read: impl Fn(&Type) -> Result<Decoded>) -> Result<()> {
        let t = schema.get();
        if !t.is_root() || (self.kind.is_empty() || self.kind == t.name()) && self.is_own_version(schema) {
            return Ok(());
        }
        match self.other(schema) {
            Err(text) => Err(self.cannot_be_handled(schema, &text)),
            Ok(None) => Ok(()),
            Ok(Some(other)) => {
                if let Err(status) = read(&other) {
                    let text = status.message.strip_prefix(&self.prefix(&other)).unwrap_or(&status.message);
                    return Err(self.cannot_be_handled(schema, text));
                }
                if other.name() == t.name() {
                    return Err(Status::bad_request(format!(
                        "the API version in the data ({}) does not match the expected API version ({})",
                        crate::encode::api_version(other.get()),
                        crate::encode::api_version(t)
                    )));
                }
                let internal = t.package().split('/').next().unwrap_or_default();
                let text = format!(
                    "converting ({}.{}) to ({internal}.{}): unknown conversion",
                    other.get().version(),
                    other.name(),
                    t.name()
                );
                Err(self.cannot_be_handled(schema, &text))
            }
        }
    }

    /// Refuses a custom resource of another version; of another kind it is invalid, not unreadable.
    ///
    /// # Errors
    /// 400.
    pub(super) fn check_version(&self, schema: &Type) -> Result<()> {
        if self.is_own_version(schema) {
            return Ok(());
        }
        Err(Status::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({})",
            self.api_version,
            crate::encode::api_version(schema.get())
        )))
    }

    /// The same for what a patch made of an object.
    ///
    /// # Errors
    /// Why it is of no kind that fits.
    pub(super) fn check_kind(&self, schema: &Type) -> std::result::Result<(), String> {
        match self.check(schema, |_| Ok(Decoded::default())) {
            Ok(()) => Ok(()),
            Err(status) => {
                let prefix = self.prefix(schema);
                Err(status.message.strip_prefix(&prefix).unwrap_or(&status.message).to_owned())
            }
        }
    }

    /// Options may be of any version.
    ///
    /// # Errors
    /// When they are options of another kind, or no options.
    pub(super) fn check_options(&self, schema: &Type) -> std::result::Result<(), String> {
        if self.kind.is_empty() || self.kind == schema.name() {
            return Ok(());
        }
        let version = if self.api_version.is_empty() { "v1" } else { &self.api_version };
        Err(not_registered(&self.kind, version))
    }

    fn is_own_version(&self, schema: &Type) -> bool {
        self.api_version.is_empty() || self.api_version == crate::encode::api_version(schema.get())
    }

    /// The type that the body says it is, when that is another one.
    fn other(&self, schema: &Type) -> std::result::Result<Option<Type>, String> {
        let (group, version) = self.group_version(schema);
        let kind = if self.kind.is_empty() { schema.name() } else { &self.kind };
        if version.is_empty() {
            return Err(format!("Object 'apiVersion' is missing in '{}'", self.api_version));
        }
        match schema.sibling(&group, &version, kind) {
            Some(other) if other == *schema => Ok(None),
            Some(other) => Ok(Some(other)),
            None => {
                let version = if group.is_empty() { version } else { format!("{group}/{version}") };
                Err(not_registered(kind, &version))
            }
        }
    }

    fn prefix(&self, schema: &Type) -> String {
        let kind = if self.kind.is_empty() { schema.name() } else { &self.kind };
        let (_, version) = self.group_version(schema);
        format!("{kind} in version {} cannot be handled as a {}: ", go::quote(&version), schema.name())
    }

    /// 400 for a body that does not fit.
    pub(super) fn cannot_be_handled(&self, schema: &Type, text: &str) -> Box<Status> {
        Status::bad_request(format!("{}{text}", self.prefix(schema)))
    }
}

fn not_registered(kind: &str, version: &str) -> String {
    format!("no kind {} is registered for version {} in scheme \"pintle\"", go::quote(kind), go::quote(version))
}

/// The field that a key of any case is taken for.
fn field(key: &str) -> Option<&'static str> {
    match () {
        () if key.eq_ignore_ascii_case("kind") => Some("kind"),
        () if key.eq_ignore_ascii_case("apiVersion") => Some("apiVersion"),
        () => None,
    }
}

/// The bytes with the replacement character for what is no UTF-8, and for halves of surrogate pairs: Go
/// reads them so.
pub(crate) fn mend(bytes: &[u8]) -> Cow<'_, [u8]> {
    let text = String::from_utf8_lossy(bytes);
    let changed = matches!(text, Cow::Owned(_));
    let mut out = Vec::new();
    let (mut from, mut at) = (0, 0);
    let raw = text.as_bytes();
    let unit = |at: usize| {
        let digits = raw.get(at..at + 6).filter(|d| d.starts_with(b"\\u"))?;
        u32::from_str_radix(std::str::from_utf8(&digits[2..]).ok()?, 16).ok()
    };
    while at < raw.len() {
        if raw[at] != b'\\' {
            at += 1;
            continue;
        }
        match (unit(at), unit(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => at += 12,
            (Some(0xd800..=0xdfff), _) => {
                out.extend_from_slice(&raw[from..at]);
                out.extend_from_slice(b"\\ufffd");
                at += 6;
                from = at;
            }
            _ => at += 2,
        }
    }
    if from == 0 {
        return if changed { Cow::Owned(text.into_owned().into_bytes()) } else { Cow::Borrowed(bytes) };
    }
    out.extend_from_slice(&raw[from.min(raw.len())..]);
    Cow::Owned(out)
}
