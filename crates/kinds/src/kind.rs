//! The two faces of a kind: [`Kind`], which its file implements over a typed view, and [`AnyKind`],
//! which the write path calls with a JSON tree. A blanket implementation turns one into the other.

use std::collections::BTreeMap;

use jiff::Timestamp;
use machinery::field::FieldErrors;
use machinery::status;
use serde_json::Value;

use crate::shape::Shape;

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
    /// A port of the node port range for a protocol (`TCP`, `UDP`, `SCTP`).
    NodePort { protocol: &'static str },
}

/// One claim: the write path fulfils it and writes the result at `pointer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub kind: ClaimKind,
    /// JSON pointer into the object, for example `/spec/clusterIPs/0`.
    pub pointer: String,
    /// The field path error messages name, for example `spec.clusterIPs`.
    pub field: String,
    /// The value the user asked for; `None` lets the server choose.
    pub wanted: Option<String>,
}

/// Claims to take before validation, and those of the old object to give back after the write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    pub take: Vec<Claim>,
    pub release: Vec<Claim>,
}

/// Fields a client may select on, beyond labels: path to value.
pub type Fields = BTreeMap<String, String>;

/// A column of the Table that `kubectl get` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    /// `string`, `integer`, `date`, …
    pub kind: &'static str,
    /// `name` for the name column, else empty.
    pub format: &'static str,
    pub description: &'static str,
    /// 0 always shown, 1 with `-o wide`.
    pub priority: i32,
}

/// One cell of a row.
pub type Cell = Value;

/// A row's conditions, as JSON objects (`{"type":"Completed",…}`).
pub type RowConditions = Vec<Value>;

/// How a kind prints itself.
pub struct Columns<T> {
    pub columns: &'static [Column],
    /// One cell per column; ages are relative to the time given.
    pub row: fn(&T, Timestamp) -> (Vec<Cell>, RowConditions),
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

    /// Addresses and ports the object needs.
    fn claims(_ctx: &Ctx, _new: &Self::Object, _old: Option<&Self::Object>) -> Claims {
        Claims::default()
    }

    /// Every mistake in the object, beyond metadata (which is checked for all kinds).
    fn validate(_ctx: &Ctx, _object: &Self::Object, _errors: &mut FieldErrors) {}

    /// Every mistake in the change.
    fn validate_update(_ctx: &Ctx, _new: &Self::Object, _old: &Self::Object, _errors: &mut FieldErrors) {}

    /// Warnings for the client, sent as headers.
    fn warnings(_ctx: &Ctx, _new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        Vec::new()
    }

    /// How a name of this kind must look; the messages of what is wrong with it.
    fn name_rule(name: &str) -> Vec<String>;

    /// Selectable fields beyond `metadata.name` and `metadata.namespace`.
    fn selectable(_object: &Self::Object) -> Fields {
        Fields::new()
    }

    /// The fields a field selector may name, beyond `metadata.name` and `metadata.namespace`.
    const SELECTABLE: &'static [&'static str] = &[];

    /// The columns of its Table.
    fn columns() -> Columns<Self::Object>;
}

/// A kind as the write path sees it: JSON trees in and out. Built-in and custom kinds alike.
///
/// The order of one write is: [`defaults`](AnyKind::defaults) → mutating admission →
/// [`claims`](AnyKind::claims) → `prepare_*` → [`validate`](AnyKind::validate) → validating admission.
pub trait AnyKind: Send + Sync + 'static {
    fn shape(&self) -> &'static Shape;

    /// The schema of the whole object; encoding, decoding and patches are driven by it.
    fn schema(&self) -> machinery::schema::Type;

    /// Fills unset fields. Fails only when the tree does not fit the type.
    fn defaults(&self, ctx: &Ctx, object: &mut Value) -> status::Result<()>;

    /// Drops status, sets generation, then the kind's own rules.
    fn prepare_create(&self, ctx: &Ctx, object: &mut Value) -> status::Result<()>;

    /// Keeps status (or spec, for `/status`), moves generation, then the kind's own rules.
    fn prepare_update(&self, ctx: &Ctx, new: &mut Value, old: &Value) -> status::Result<()>;

    fn claims(&self, ctx: &Ctx, new: &Value, old: Option<&Value>) -> status::Result<Claims>;

    /// Metadata and the kind's own rules, for create (`old` is `None`) and update; all mistakes.
    fn validate(&self, ctx: &Ctx, new: &Value, old: Option<&Value>) -> status::Result<FieldErrors>;

    fn warnings(&self, ctx: &Ctx, new: &Value, old: Option<&Value>) -> Vec<String>;

    /// Selectable fields, `metadata.name` and `metadata.namespace` included.
    fn fields(&self, object: &Value) -> Fields;

    /// True when a field selector may name `field`.
    fn is_selectable(&self, field: &str) -> bool;

    fn columns(&self) -> &'static [Column];

    /// One row of the Table.
    fn row(&self, object: &Value, now: Timestamp) -> status::Result<(Vec<Cell>, RowConditions)>;
}
