//! The two faces of a kind: [`Kind`], which its file implements over a typed view, and [`AnyKind`],
//! which the write path calls with a JSON tree. A blanket implementation turns one into the other.

use std::collections::BTreeMap;

use jiff::Timestamp;
use machinery::field::FieldErrors;
use machinery::status;
use machinery::structural::open_api;
use serde_json::Value;

use crate::only::Part;
use crate::shape::{AnyShape, Shape};
use crate::view;

/// Which OpenAPI is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenApi {
    V2,
    V3,
}

/// Who asks, as authentication and impersonation decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What a request wants, in the words RBAC rules use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    /// The word itself.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// Options of the whole cluster that defaults and validation depend on.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Where Service addresses come from.
    pub service_cidrs: Vec<ipnet::IpNet>,
    /// Where node ports come from, inclusive.
    pub node_ports: (u16, u16),
}

/// The ranges of a cluster for which nobody named any.
impl Default for ClusterOptions {
    fn default() -> Self {
        let services = ipnet::Ipv4Net::new_assert([10, 96, 0, 0].into(), 12);
        Self { service_cidrs: vec![services.into()], node_ports: (30000, 32767) }
    }
}

/// What a kind may know of the request it serves. No I/O, no clock: `now` was read once.
#[derive(Clone, Debug)]
pub struct Ctx<'a> {
    pub user: &'a User,
    pub verb: Verb,
    /// Empty for the main resource.
    pub subresource: &'a str,
    pub dry_run: bool,
    pub now: Timestamp,
    pub options: &'a ClusterOptions,
}

/// What an object needs that must be unique in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimKind {
    /// An address of the Service range; `v6` says of which family.
    ClusterIp { v6: bool },
    /// A port of the node port range, asked for under a protocol (`TCP`, `UDP`, `SCTP`). A number is
    /// given to one Service at a time whatever the protocol.
    NodePort { protocol: &'static str },
}

/// One claim: the write path fulfils it and writes the result at `pointer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub kind: ClaimKind,
    /// JSON pointer into the object, for example `/spec/clusterIPs/0`. What it leads to may not be
    /// there yet: [`Claim::write`] makes it.
    pub pointer: String,
    /// Further pointers that get the same value (one node port for a port number under two protocols).
    pub also: Vec<String>,
    /// The field path error messages name, for example `spec.clusterIPs`.
    pub field: String,
    /// The value the user asked for; `None` lets the server choose.
    pub wanted: Option<String>,
}

impl Claim {
    /// Writes what was taken into the object, at every pointer of the claim.
    pub fn write(&self, object: &mut Value, taken: &str) {
        let value = match self.kind {
            ClaimKind::ClusterIp { .. } => Value::from(taken),
            ClaimKind::NodePort { .. } => taken.parse::<u16>().map_or(Value::Null, Value::from),
        };
        for pointer in std::iter::once(&self.pointer).chain(&self.also) {
            put(object, pointer, value.clone());
        }
    }
}

/// Sets the value a JSON pointer leads to, making the objects and lists on the way.
fn put(object: &mut Value, pointer: &str, value: Value) {
    let mut at = object;
    let mut parts = pointer.trim_start_matches('/').split('/').peekable();
    while let Some(part) = parts.next() {
        let index = part.parse::<usize>().ok();
        if at.is_null() {
            *at = if index.is_some() { Value::Array(Vec::new()) } else { Value::Object(serde_json::Map::new()) };
        }
        at = match (at, index) {
            (Value::Array(items), Some(index)) if index <= items.len() => {
                if index == items.len() {
                    items.push(Value::Null);
                }
                &mut items[index]
            }
            (Value::Object(map), _) => map.entry(part).or_insert(Value::Null),
            _ => return,
        };
        if parts.peek().is_none() {
            *at = value;
            return;
        }
    }
}

/// Claims to take before validation, and those of the old object to give back after the write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    pub take: Vec<Claim>,
    pub release: Vec<Claim>,
}

/// Fields a client may select on, beyond labels: path to value.
pub type Fields = BTreeMap<String, String>;

/// One selectable field, as data: the watch cache reads it off the tree without a typed view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selectable {
    /// What a field selector calls it.
    pub field: &'static str,
    /// JSON pointers into the object; the first that leads to a value counts.
    pub pointers: &'static [&'static str],
    /// Its value when none does.
    pub absent: &'static str,
}

impl Selectable {
    /// The field at `pointer`, empty when absent.
    pub const fn at(field: &'static str, pointers: &'static [&'static str]) -> Self {
        Self { field, pointers, absent: "" }
    }

    /// The same with another value for the absent field.
    #[must_use]
    pub const fn or(mut self, absent: &'static str) -> Self {
        self.absent = absent;
        self
    }

    /// The field's value in an object.
    pub fn read(&self, object: &Value) -> String {
        for pointer in self.pointers {
            match object.pointer(pointer) {
                Some(Value::String(text)) if !text.is_empty() => return text.clone(),
                Some(Value::Bool(flag)) => return flag.to_string(),
                Some(Value::Number(number)) => return number.to_string(),
                _ => {}
            }
        }
        self.absent.to_owned()
    }
}

/// What one pass over an object after admission found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finished {
    /// Every mistake; the write must be refused when there is one.
    pub errors: FieldErrors,
    /// Sent to the client as headers.
    pub warnings: Vec<String>,
}

/// A column of the Table that `kubectl get` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column<'a> {
    pub name: &'a str,
    /// `string`, `integer`, `date`, …
    pub kind: &'a str,
    /// `name` for the name column, else empty.
    pub format: &'a str,
    pub description: &'a str,
    /// 0 always shown, 1 with `-o wide`.
    pub priority: i32,
}

impl<'a> Column<'a> {
    /// The name column, with the description every kind gives it.
    pub const NAME: Self =
        Self { name: "Name", kind: "string", format: "name", description: "The object's name.", priority: 0 };

    /// The age column.
    pub const AGE: Self = Self::text("Age", "Time since the object was created.");

    /// A column of text that is always shown.
    pub const fn text(name: &'a str, description: &'a str) -> Self {
        Self { name, kind: "string", format: "", description, priority: 0 }
    }

    /// A column of whole numbers that is always shown.
    pub const fn number(name: &'a str, description: &'a str) -> Self {
        Self { name, kind: "integer", format: "", description, priority: 0 }
    }

    /// The same column, shown with `-o wide` only.
    #[must_use]
    pub const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }
}

/// One cell of a row.
pub type Cell = Value;

/// A row's conditions, as JSON objects (`{"type":"Completed",…}`).
pub type RowConditions = Vec<Value>;

/// How a kind prints itself.
pub struct Columns<T> {
    pub columns: &'static [Column<'static>],
    /// One cell per column; ages are relative to the time given.
    pub row: fn(&T, Timestamp) -> (Vec<Cell>, RowConditions),
}

impl<T: api::Object> Columns<T> {
    /// Name and time of creation: what a kind shows that has nothing else to show.
    pub fn plain() -> Self {
        const CREATED: Column = Column {
            name: "Created At",
            kind: "date",
            format: "",
            description: "When the object was created.",
            priority: 0,
        };
        Self {
            columns: const { &[Column::NAME, CREATED] },
            row: |object, _| {
                let metadata = object.metadata();
                let created = metadata.creation_timestamp.as_ref().map(|at| machinery::time::rfc3339(at.0));
                (vec![crate::cells::name(metadata), created.map_or(Value::Null, Value::from)], Vec::new())
            },
        }
    }
}

/// What a kind's file says. Every method has the answer of a kind without rules of its own.
pub trait Kind: Send + Sync + 'static {
    /// The typed view.
    type Object: api::Object;

    /// Names, prefix, scope, subresources.
    const SHAPE: Shape;

    /// Fills unset fields, on create, update and read.
    fn defaults(_ctx: &Ctx, _object: &mut Self::Object) {}

    /// What the server itself sets on create, after admission.
    fn prepare_create(_ctx: &Ctx, _object: &mut Self::Object) {}

    /// What an update may not change, taken from the old object, after admission.
    fn prepare_update(_ctx: &Ctx, _new: &mut Self::Object, _old: &Self::Object) {}

    /// True for a kind that claims addresses or ports.
    const CLAIMS: bool = false;

    /// Fills the fields that allocation depends on, and says which addresses and ports the object
    /// needs and which of the old object it no longer needs.
    fn claims(_ctx: &Ctx, _new: &mut Self::Object, _old: Option<&Self::Object>, _errors: &mut FieldErrors) -> Claims {
        Claims::default()
    }

    /// What a stored object holds: to give back when it is deleted, and to compare in the repair loop.
    fn held(_object: &Self::Object) -> Vec<Claim> {
        Vec::new()
    }

    /// False spares the decoding when the kind has no defaults.
    const HAS_DEFAULTS: bool = true;

    /// Pointers to fields that must be there and whose absence the typed view cannot show, with the
    /// detail of the message. Other mistakes at the same path are then left out.
    const REQUIRED: &'static [(&'static str, &'static str)] = &[];

    /// Every mistake in the object, beyond metadata (which is checked for all kinds).
    fn validate(_ctx: &Ctx, _object: &Self::Object, _errors: &mut FieldErrors) {}

    /// True for a kind whose `validate_update` looks at the whole object itself, since some of what was
    /// there before may stay though nobody may bring it anew.
    const JUDGES_CHANGES: bool = false;

    /// Every mistake in the change.
    fn validate_update(_ctx: &Ctx, _new: &Self::Object, _old: &Self::Object, _errors: &mut FieldErrors) {}

    /// Every mistake in a change of status, through the `status` subresource.
    fn validate_status(_ctx: &Ctx, _new: &Self::Object, _old: &Self::Object, _errors: &mut FieldErrors) {}

    /// Every mistake in a change through another subresource that writes the same object; `ctx` says which.
    fn validate_subresource(_ctx: &Ctx, _new: &Self::Object, _old: &Self::Object, _errors: &mut FieldErrors) {}

    /// Warnings about a new object as it was sent, before `prepare_create`.
    fn early_warnings(_ctx: &Ctx, _new: &Self::Object) -> Vec<String> {
        Vec::new()
    }

    /// Warnings for the client, sent as headers.
    fn warnings(_ctx: &Ctx, _new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        Vec::new()
    }

    /// The same for a change of status, through the `status` subresource.
    fn status_warnings(_ctx: &Ctx, _new: &Self::Object) -> Vec<String> {
        Vec::new()
    }

    /// How a name of this kind must look; the messages of what is wrong with it.
    fn name_rule(name: &str) -> Vec<String>;

    /// The fields a field selector may name, beyond `metadata.name` and `metadata.namespace`.
    const SELECTABLE: &'static [Selectable] = &[];

    /// True when the kind's field selectors are checked by its own list, which words the refusal of
    /// an unknown field differently.
    const OWN_FIELD_LABELS: bool = !Self::SELECTABLE.is_empty();

    /// The 400 text for a field selector that names an unknown field.
    fn unknown_field(field: &str) -> String {
        if Self::OWN_FIELD_LABELS {
            format!("field label not supported: {field}")
        } else {
            format!(r#""{field}" is not a known field selector: only "metadata.name", "metadata.namespace""#)
        }
    }

    /// The kind whose form is stored, when it is not this one.
    fn stored_as() -> Option<&'static dyn AnyKind> {
        None
    }

    /// What the stored kind calls a selectable field of this one.
    fn stored_field(field: &str) -> String {
        field.to_owned()
    }

    /// This kind's form to the stored one.
    fn to_stored(_object: &mut Value) {}

    /// The stored form to this kind's.
    fn from_stored(_object: &mut Value) {}

    /// How many seconds an object stays once its deletion was asked for (`asked` is the client's wish);
    /// `None` for kinds whose objects go at once unless finalizers hold them.
    fn grace(_object: &Value, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// What the beginning of a deletion changes beside `metadata`.
    fn begin_deletion(_object: &mut Value) {}

    /// True while something beside `metadata.finalizers` holds a deleted object.
    fn is_held(_object: &Value) -> bool {
        false
    }

    /// What of an object its columns read; nothing named stands for everything.
    const SHOWN: &'static [Part] = &[];

    /// Reads those from bytes. Kinds of which whole screens are listed do so without a tree in between, with
    /// [`view::read_parts`], and pay for it with a second copy of what reads them in the binary.
    fn shown(json: &[u8]) -> status::Result<Self::Object> {
        view::read(&view::seen(json, Self::SHOWN)?)
    }

    /// The columns of its Table.
    fn columns() -> Columns<Self::Object>;
}

/// A kind as the write path sees it: JSON trees in and out. Built-in and custom kinds alike.
///
/// The order of one write is: [`defaults`](AnyKind::defaults) → mutating admission →
/// [`claims`](AnyKind::claims) → [`finish`](AnyKind::finish) (prepare, validate, warn: one decode) →
/// validating admission → [`to_stored`](AnyKind::to_stored) → encode.
///
/// The stored object of an update keeps what a client cannot set: `prepare_*` restores generation,
/// status and the like, but name, uid, resourceVersion and timestamps of `metadata` are the write
/// path's.
pub trait AnyKind: Send + Sync + 'static {
    fn shape(&self) -> AnyShape<'_>;

    /// True for a kind that a CustomResourceDefinition brought.
    fn is_custom(&self) -> bool {
        false
    }

    /// What OpenAPI says of an object of a custom kind, whose head, and that of objects inside of it, are given;
    /// null for kinds of the schema table.
    fn openapi(&self, _form: OpenApi, _own: &open_api::Head, _embedded: &open_api::Head) -> Value {
        Value::Null
    }

    /// The schema of the whole object; encoding, decoding and patches are driven by it.
    fn schema(&self) -> machinery::schema::Type;

    /// Reads the typed view and writes it back: the tree stays as it was unless it does not fit.
    fn round_trip(&self, object: &mut Value) -> status::Result<()>;

    /// Brings an object that was stored under an earlier schema, or comes from a conversion, into the form
    /// of its schema today. What the program itself knows has only one.
    ///
    /// # Errors
    /// 413 when defaults would make it too large.
    fn refresh(&self, _object: &mut Value) -> status::Result<()> {
        Ok(())
    }

    /// Fills unset fields. Fails only when the tree does not fit the type.
    fn defaults(&self, ctx: &Ctx, object: &mut Value) -> status::Result<()>;

    /// Fills what allocation depends on and says what to claim; fails with 422 when the wish itself
    /// is wrong. Without claims of its own a kind answers at once, without decoding.
    fn claims(&self, ctx: &Ctx, new: &mut Value, old: Option<&Value>) -> status::Result<Claims>;

    /// What a stored object holds.
    fn held(&self, object: &Value) -> status::Result<Vec<Claim>>;

    /// Drops status, sets generation, then the kind's own rules.
    fn prepare_create(&self, ctx: &Ctx, object: &mut Value) -> status::Result<()>;

    /// Keeps status (or spec, for `/status`), moves generation, then the kind's own rules.
    fn prepare_update(&self, ctx: &Ctx, new: &mut Value, old: &Value) -> status::Result<()>;

    /// Metadata and the kind's own rules, for create (`old` is `None`) and update; all mistakes.
    fn validate(&self, ctx: &Ctx, new: &Value, old: Option<&Value>) -> status::Result<FieldErrors>;

    fn warnings(&self, ctx: &Ctx, new: &Value, old: Option<&Value>) -> Vec<String>;

    /// `prepare_create` or `prepare_update`, `validate` and `warnings` in one pass that decodes each
    /// object once. The write path uses this one.
    fn finish(&self, ctx: &Ctx, new: &mut Value, old: Option<&Value>) -> status::Result<Finished>;

    /// How many seconds an object stays once its deletion was asked for; `None`: it goes at once.
    fn grace(&self, _object: &Value, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// What the beginning of a deletion changes beside `metadata`.
    fn begin_deletion(&self, _object: &mut Value) {}

    /// True while something beside `metadata.finalizers` holds a deleted object.
    fn is_held(&self, _object: &Value) -> bool {
        false
    }

    /// Selectable fields, `metadata.name` and (for namespaced kinds) `metadata.namespace` included.
    fn fields(&self, object: &Value) -> Fields;

    /// As much of a stored object as [`fields`](AnyKind::fields) reads, with its name, uid, labels and
    /// owners.
    ///
    /// # Errors
    /// When it is no JSON.
    fn sketch(&self, json: &[u8]) -> serde_json::Result<Value>;

    /// True when a field selector may name `field`.
    fn is_selectable(&self, field: &str) -> bool;

    /// The 400 text for a field selector that names an unknown field.
    fn unknown_field(&self, field: &str) -> String;

    fn columns(&self) -> Vec<Column<'_>>;

    /// One row of the Table.
    fn row(&self, object: &Value, now: Timestamp) -> status::Result<(Vec<Cell>, RowConditions)>;

    /// The same straight from bytes in the kind's own form, which spares the tree.
    fn row_of_bytes(&self, object: &[u8], now: Timestamp) -> status::Result<(Vec<Cell>, RowConditions)>;

    /// The kind whose form is stored, when it is not this one: then reads convert with
    /// [`from_stored`](AnyKind::from_stored), and there is one watch cache, the stored kind's.
    fn stored_as(&self) -> Option<&'static dyn AnyKind>;

    /// What the stored kind calls a selectable field of this one: field selectors are translated
    /// before they meet the watch cache.
    fn stored_field(&self, field: &str) -> String;

    /// This kind's form to the stored one, `kind` and `apiVersion` included.
    fn to_stored(&self, object: &mut Value);

    /// The stored form to this kind's, `kind` and `apiVersion` included.
    #[expect(clippy::wrong_self_convention, reason = "it is the kind that knows the way, not the object")]
    fn from_stored(&self, object: &mut Value);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(mut object: Value, kind: ClaimKind, pointers: [&str; 2], taken: &str) -> Value {
        let [pointer, also] = pointers.map(str::to_owned);
        let claim = Claim { kind, pointer, also: vec![also], field: String::new(), wanted: None };
        claim.write(&mut object, taken);
        object
    }

    #[test]
    fn what_was_taken_is_written_where_the_claim_says() {
        let address = ClaimKind::ClusterIp { v6: false };
        let pointers = ["/spec/clusterIPs/0", "/spec/clusterIP"];
        for spec in [json!({}), json!({"clusterIPs": []}), json!({"clusterIPs": ["old"]})] {
            assert_eq!(
                check(json!({"spec": spec}), address, pointers, "10.0.0.1"),
                json!({"spec": {"clusterIPs": ["10.0.0.1"], "clusterIP": "10.0.0.1"}})
            );
        }
        let port = ClaimKind::NodePort { protocol: "TCP" };
        assert_eq!(
            check(json!({"ports": [{}, {"nodePort": 1}]}), port, ["/ports/0/nodePort", "/ports/1/nodePort"], "30000"),
            json!({"ports": [{"nodePort": 30000}, {"nodePort": 30000}]})
        );
    }

    #[test]
    fn a_pointer_that_leads_nowhere_writes_nothing() {
        let address = ClaimKind::ClusterIp { v6: false };
        let object = json!({"a": [1], "b": "text"});
        assert_eq!(check(object.clone(), address, ["/a/5", "/b/c"], "x"), object);
    }

    #[test]
    fn a_selectable_field_is_the_first_that_is_there() {
        let field = Selectable::at("x", &["/a", "/b"]).or("none");
        for (object, want) in [
            (json!({"a": "1", "b": "2"}), "1"),
            (json!({"a": "", "b": true}), "true"),
            (json!({"b": 3}), "3"),
            (json!({"a": null}), "none"),
        ] {
            assert_eq!(field.read(&object), want, "{object}");
        }
    }
}
