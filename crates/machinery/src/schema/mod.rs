//! What fields a type has: one form for built-in kinds and custom resources.
//!
//! A [`Table`] holds the types of one source (all built-in kinds, or one custom resource). A
//! [`Type`] is a handle that owns a share of its table; a [`TypeRef`] borrows it and is what
//! decoding, encoding, merging and the walks of OpenAPI pass around.
//!
//! ```text
//! Deployment ── spec ─► DeploymentSpec ── template ─► PodTemplateSpec ── spec ─► PodSpec
//!                                                                                 │ containers
//!                         Container ◄── List, merge key "name", list keys [name] ◄┘
//! ```

mod build;
mod parse;
mod table;
pub(crate) use build::{Builder, NewField, NewType, ShapeId};
pub(crate) use parse::MAX_FIELDS;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

/// A piece of the table's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    start: u32,
    len: u16,
}

/// The types of one source, as compact arrays over one text.
pub struct Table {
    text: std::borrow::Cow<'static, str>,
    packages: Vec<PackageRow>,
    types: Vec<TypeRow>,
    fields: Vec<FieldRow>,
    /// Per type with many fields: the indices of its fields sorted by name.
    sorted: Vec<u16>,
    /// Per type: the indices of its declared fields sorted by protobuf tag.
    by_tag: Vec<u16>,
    shapes: Vec<ShapeRow>,
    extras: Vec<Extra>,
    /// `(package, type)` in the order of their names.
    index: Vec<u16>,
    /// The table is of custom resources: values may be of any type until they are validated. The type
    /// that says nothing of its value.
    loose: Option<u16>,
}

#[derive(Clone, Copy)]
struct PackageRow {
    name: Span,
    group: Span,
}

#[derive(Clone, Copy)]
struct TypeRow {
    name: Span,
    package: u16,
    /// The fields of the JSON object: embedded structs are flattened.
    json: (u16, u16),
    /// The fields as declared, embedded structs as one field.
    declared: (u16, u16),
    sorted: u32,
    by_tag: u32,
    atomic: bool,
    union: bool,
    /// It has `kind` and `apiVersion` of its own.
    root: bool,
    /// Fields that it does not have are kept.
    preserves: bool,
}

#[derive(Clone, Copy)]
struct FieldRow {
    name: Span,
    tag: u16,
    shape: u16,
    extra: u16,
    flags: u8,
}

const OMITEMPTY: u8 = 1;
const OMITZERO: u8 = 2;
const POINTER: u8 = 4;
const REQUIRED: u8 = 8;
const OPTIONAL: u8 = 16;
const EMBEDDED: u8 = 32;
const NULLABLE: u8 = 64;

/// What most fields have none of.
#[derive(Clone, Default, PartialEq)]
struct Extra {
    merge: Merge,
    merge_key: Span,
    list: ListType,
    keys: Vec<Span>,
    /// The field is marked as one value: a map, a struct, or a list.
    map_atomic: bool,
    /// The field is marked as one whose parts are owned apart.
    granular: bool,
    default: Span,
    gates: Vec<Span>,
}

/// The name of a type as Go prints it; empty for a list or map without a name of its own.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct GoName {
    package: Option<u16>,
    name: Span,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ShapeRow {
    Scalar(Scalar, GoName),
    Raw(GoName),
    Struct(u16),
    List(u16, GoName),
    Map { key: u16, element: u16, name: GoName },
    OrArray(u16, GoName),
    OrBool(u16, GoName),
    OrStrings(u16, GoName),
}

/// A JSON value that is neither an object nor a list, or is written as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    String,
    Bool,
    Int32,
    Int64,
    Float64,
    /// Base64 in JSON.
    Bytes,
    /// `100m`; also read from a number, always written as a canonical string.
    Quantity,
    /// `80` or `"http"`.
    IntOrString,
    /// RFC 3339 to the second, in UTC.
    Time,
    /// RFC 3339 to the microsecond, in UTC.
    MicroTime,
    /// `1h0m0s`.
    Duration,
}

/// The shape of a value.
#[derive(Clone, Copy, Debug)]
pub enum Shape<'a> {
    Scalar(Scalar),
    /// Any JSON, passed through: an object inside another (`RawExtension`), `fieldsV1`, `JSON`.
    Raw,
    Struct(TypeRef<'a>),
    List(Inner<'a>),
    /// Keys are strings.
    Map(Inner<'a>),
    /// Of CRD schemas: one schema or a list of them.
    OrArray(TypeRef<'a>),
    /// Of CRD schemas: a schema or a boolean.
    OrBool(TypeRef<'a>),
    /// Of CRD schemas: a schema or a list of strings.
    OrStrings(TypeRef<'a>),
}

/// The shape of the elements of a list or map, looked at when asked.
#[derive(Clone, Copy)]
pub struct Inner<'a> {
    table: &'a Table,
    shape: u16,
}

impl<'a> Inner<'a> {
    /// The shape of the elements.
    pub fn shape(self) -> Shape<'a> {
        self.table.shape(self.shape)
    }

    /// The Go name of the elements' type, as error texts print it.
    pub fn go_name(self) -> String {
        self.table.go_name(self.shape)
    }

    pub(crate) fn shape_ref(self) -> ShapeRef<'a> {
        ShapeRef { table: self.table, shape: self.shape }
    }
}

impl fmt::Debug for Inner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.go_name())
    }
}

/// A shape with its place in the table, so that its Go name can be told.
#[derive(Clone, Copy)]
pub(crate) struct ShapeRef<'a> {
    table: &'a Table,
    shape: u16,
}

impl<'a> ShapeRef<'a> {
    pub(crate) fn shape(self) -> Shape<'a> {
        self.table.shape(self.shape)
    }

    pub(crate) fn go_name(self) -> String {
        self.table.go_name(self.shape)
    }
}

/// How a strategic merge patch treats a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merge {
    /// Structs and maps are merged, lists replaced.
    #[default]
    Default,
    /// Lists are merged: by key when the field has a merge key, else as a set of scalars.
    Merge,
    /// Like `Merge`, and the patch may carry `$retainKeys`.
    MergeRetainKeys,
    /// A struct that may carry `$retainKeys`.
    RetainKeys,
    /// The value is replaced as a whole.
    Replace,
}

/// How server-side apply treats a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    #[default]
    Atomic,
    Set,
    Map,
}

/// One field of a type.
#[derive(Clone, Copy)]
pub struct Field<'a> {
    table: &'a Table,
    row: &'a FieldRow,
}

impl<'a> Field<'a> {
    /// The name in JSON.
    pub fn name(self) -> &'a str {
        self.table.str(self.row.name)
    }

    /// The number in protobuf; 0 when the field has none.
    pub fn tag(self) -> u32 {
        u32::from(self.row.tag)
    }

    /// The shape of the value.
    pub fn shape(self) -> Shape<'a> {
        self.table.shape(self.row.shape)
    }

    pub(crate) fn shape_ref(self) -> ShapeRef<'a> {
        ShapeRef { table: self.table, shape: self.row.shape }
    }

    /// A list that is a message of its own in protobuf. (In maps every list is.)
    pub(crate) fn wrapped_list(self) -> bool {
        match self.table.shapes[usize::from(self.row.shape)] {
            ShapeRow::List(_, name) => matches!(self.table.str(name.name), "Verbs" | "ExtraValue"),
            _ => false,
        }
    }

    /// The Go name of the field's type, as error texts print it: `int32`, `v1.RestartPolicy`.
    pub fn go_name(self) -> String {
        self.table.go_name(self.row.shape)
    }

    /// The encoder leaves it out when it is empty (`omitempty`).
    pub fn omitempty(self) -> bool {
        self.row.flags & OMITEMPTY != 0
    }

    /// The encoder leaves it out when it is zero, also a time (`omitzero`).
    pub fn omitzero(self) -> bool {
        self.row.flags & OMITZERO != 0
    }

    /// Absent differs from zero.
    pub fn pointer(self) -> bool {
        self.row.flags & POINTER != 0
    }

    /// A client must send it.
    pub fn required(self) -> bool {
        self.row.flags & REQUIRED != 0 || self.row.flags & (OPTIONAL | OMITEMPTY) == 0
    }

    /// A null is a value of its own, kept and written (`nullable` of a custom resource's schema).
    pub fn nullable(self) -> bool {
        self.row.flags & NULLABLE != 0
    }

    /// An embedded struct: its fields belong to the parent's JSON object. Only among
    /// [`TypeRef::declared`] fields.
    pub fn embedded(self) -> bool {
        self.row.flags & EMBEDDED != 0
    }

    fn extra(self) -> &'a Extra {
        &self.table.extras[usize::from(self.row.extra)]
    }

    /// How a strategic merge patch treats it.
    pub fn merge(self) -> Merge {
        self.extra().merge
    }

    /// The key by which a strategic merge patch pairs the elements of the list.
    pub fn merge_key(self) -> Option<&'a str> {
        let span = self.extra().merge_key;
        (span.len > 0).then(|| self.table.str(span))
    }

    /// How server-side apply treats the list.
    pub fn list_type(self) -> ListType {
        self.extra().list
    }

    /// The keys by which server-side apply pairs the elements of the list.
    pub fn list_keys(self) -> impl ExactSizeIterator<Item = &'a str> + Clone {
        let table = self.table;
        self.extra().keys.iter().map(move |k| table.str(*k))
    }

    /// How server-side apply treats the list, when the field says so itself: a list that is atomic
    /// because nothing is said is none.
    pub fn declared_list_type(self) -> Option<ListType> {
        let extra = self.extra();
        (extra.list != ListType::Atomic || extra.map_atomic).then_some(extra.list)
    }

    /// Whether server-side apply owns the map or struct as a whole, when the field says so itself
    /// (the type of the value may say it too).
    pub fn declared_atomic(self) -> Option<bool> {
        let extra = self.extra();
        (extra.map_atomic || extra.granular).then_some(!extra.granular)
    }

    /// Server-side apply owns the map, or the struct, as a whole.
    pub fn atomic(self) -> bool {
        let extra = self.extra();
        let whole = extra.map_atomic || matches!(self.shape(), Shape::Struct(t) if t.atomic());
        whole && !extra.granular
    }

    /// The declared default, as JSON text.
    pub fn default_json(self) -> Option<&'a str> {
        let span = self.extra().default;
        (span.len > 0).then(|| self.table.str(span))
    }

    /// The feature gates that must be on for the field to be used.
    pub fn gates(self) -> impl ExactSizeIterator<Item = &'a str> + Clone {
        let table = self.table;
        self.extra().gates.iter().map(move |g| table.str(*g))
    }
}

impl fmt::Debug for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.go_name())
    }
}

/// A type of a table, borrowed.
#[derive(Clone, Copy)]
pub struct TypeRef<'a> {
    table: &'a Table,
    index: u16,
}

impl<'a> TypeRef<'a> {
    fn row(self) -> &'a TypeRow {
        &self.table.types[usize::from(self.index)]
    }

    /// `PodSpec`.
    pub fn name(self) -> &'a str {
        self.table.str(self.row().name)
    }

    /// `core/v1`.
    pub fn package(self) -> &'a str {
        self.table.str(self.table.packages[usize::from(self.row().package)].name)
    }

    /// The API group: empty for the core group.
    pub fn group(self) -> &'a str {
        self.table.str(self.table.packages[usize::from(self.row().package)].group)
    }

    /// `v1`.
    pub fn version(self) -> &'a str {
        self.package().rsplit('/').next().unwrap_or_default()
    }

    /// `apps/v1`, `v1`.
    pub fn api_version(self) -> String {
        match self.group() {
            "" => self.version().to_owned(),
            group => format!("{group}/{}", self.version()),
        }
    }

    /// True for a type that is an object of its own, with `kind` and `apiVersion`.
    pub fn is_root(self) -> bool {
        self.row().root
    }

    /// Server-side apply owns values of the type as a whole.
    pub fn atomic(self) -> bool {
        self.row().atomic
    }

    /// At most one of the fields is set.
    pub fn union(self) -> bool {
        self.row().union
    }

    /// Fields that the type does not have are kept as they are, not dropped
    /// (`x-kubernetes-preserve-unknown-fields`).
    pub fn preserves(self) -> bool {
        self.row().preserves
    }

    /// The objects of the table are custom resources: their values may be of any type until they are
    /// validated, and their members are written in the order of their names.
    pub fn is_loose(self) -> bool {
        self.table.loose.is_some()
    }

    /// Of a custom resource: nothing is said of the value's type; an object is one of such values.
    pub(crate) fn is_open(self) -> bool {
        self.is_loose() && self.width() == 0
    }

    /// The type of the fields that are not its own, when those are kept and nothing is said of them.
    pub(crate) fn open_child(self) -> Option<Self> {
        let index = self.table.loose.filter(|_| self.preserves())?;
        Some(Self { table: self.table, index })
    }

    /// The embedded structs that lead to the field of this name: none for a field of the type's own.
    pub(crate) fn embedding(self, name: &str) -> Vec<&'a str> {
        let mut found = Vec::new();
        self.embedding_into(name, &mut found);
        found
    }

    fn embedding_into(self, name: &str, out: &mut Vec<&'a str>) -> bool {
        for field in self.declared() {
            if !field.embedded() {
                if field.name() == name {
                    return true;
                }
                continue;
            }
            let Shape::Struct(inner) = field.shape() else { continue };
            out.push(field.name());
            if inner.embedding_into(name, out) {
                return true;
            }
            out.pop();
        }
        false
    }

    fn rows(self, range: (u16, u16)) -> &'a [FieldRow] {
        &self.table.fields[usize::from(range.0)..usize::from(range.1)]
    }

    /// The fields of the JSON object in declaration order, embedded structs flattened.
    pub fn fields(self) -> impl ExactSizeIterator<Item = Field<'a>> + Clone {
        let table = self.table;
        self.rows(self.row().json).iter().map(move |row| Field { table, row })
    }

    /// The fields as declared, embedded structs as one field each: the form of protobuf.
    pub fn declared(self) -> impl ExactSizeIterator<Item = Field<'a>> + Clone {
        let table = self.table;
        self.rows(self.row().declared).iter().map(move |row| Field { table, row })
    }

    /// The fields as declared, in the order of their protobuf tags.
    pub(crate) fn tagged(self) -> impl ExactSizeIterator<Item = Field<'a>> + Clone {
        self.tagged_at().map(|(_, field)| field)
    }

    /// The same, each with its place among [`Self::declared`].
    pub(crate) fn tagged_at(self) -> impl ExactSizeIterator<Item = (usize, Field<'a>)> + Clone {
        let (table, rows) = (self.table, self.rows(self.row().declared));
        let start = self.row().by_tag as usize;
        let by_tag = table.by_tag[start..start + rows.len()].iter();
        by_tag.map(move |i| (usize::from(*i), Field { table, row: &rows[usize::from(*i)] }))
    }

    /// The field of this name in JSON.
    pub fn field(self, name: &str) -> Option<Field<'a>> {
        self.position(name).map(|i| self.at(i))
    }

    /// The position among [`Self::fields`] of the field of this name.
    pub(crate) fn position(self, name: &str) -> Option<usize> {
        let (table, rows) = (self.table, self.rows(self.row().json));
        if rows.len() <= parse::LINEAR {
            return rows.iter().position(|row| table.str(row.name) == name);
        }
        let start = self.row().sorted as usize;
        let sorted = table.sorted.get(start..start + rows.len())?;
        let found = sorted.binary_search_by(|i| table.str(rows[usize::from(*i)].name).cmp(name)).ok()?;
        Some(usize::from(sorted[found]))
    }

    /// The field at a position of [`Self::fields`].
    pub(crate) fn at(self, position: usize) -> Field<'a> {
        Field { table: self.table, row: &self.rows(self.row().json)[position] }
    }

    /// How many fields the JSON object has.
    pub(crate) fn width(self) -> usize {
        self.rows(self.row().json).len()
    }
}

impl fmt::Debug for TypeRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.package(), self.name())
    }
}

impl PartialEq for TypeRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.table, other.table) && self.index == other.index
    }
}

/// A handle to one type of a schema table. Cheap to clone.
#[derive(Clone)]
pub struct Type {
    table: Arc<Table>,
    index: u16,
}

impl Type {
    /// The type, borrowed: what functions pass around.
    pub fn get(&self) -> TypeRef<'_> {
        TypeRef { table: &self.table, index: self.index }
    }

    /// `PodSpec`.
    pub fn name(&self) -> &str {
        self.get().name()
    }

    /// The type of another kind of the same table.
    pub(crate) fn sibling(&self, group: &str, version: &str, kind: &str) -> Option<Self> {
        self.table.of(group, version, kind)
    }

    /// The fields of the JSON object in declaration order, embedded structs flattened.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = Field<'_>> + Clone {
        self.get().fields()
    }

    /// The field of this name in JSON.
    pub fn field(&self, name: &str) -> Option<Field<'_>> {
        self.get().field(name)
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl PartialEq for Type {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.table, &other.table) && self.index == other.index
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table of {} types", self.types.len())
    }
}
