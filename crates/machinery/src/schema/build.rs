//! Makes a table piece by piece, for types that are known at run time only.
//!
//! Such a table is *loose*: its objects are trees whose values may be of any type until they are
//! validated, and whose members are written in the order of their names.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::{
    Extra, FieldRow, GoName, ListType, NULLABLE, OMITEMPTY, OPTIONAL, POINTER, PackageRow, Scalar, ShapeRow, Span,
    Table, Type, TypeRef, TypeRow, parse,
};

/// Why a table cannot hold a type.
type Result<T> = std::result::Result<T, String>;

/// The package of the types that are taken over.
const META: u16 = 1;

fn id(index: usize) -> Result<u16> {
    u16::try_from(index).map_err(|_| "the schema has too many parts".to_owned())
}

/// The id of a shape in the table that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShapeId(u16);

/// A field to be.
#[derive(Debug)]
pub(crate) struct NewField<'n> {
    pub name: &'n str,
    pub shape: ShapeId,
    pub list: ListType,
    pub keys: &'n [Box<str>],
    /// Server-side apply owns the map, or the struct, as a whole.
    pub atomic: bool,
    /// The value of a key that an item does not have, as JSON.
    pub default: Option<String>,
}

/// A struct to be.
#[derive(Debug)]
pub(crate) struct NewType<'n> {
    pub name: &'n str,
    /// Sorted by name.
    pub fields: Vec<NewField<'n>>,
    pub atomic: bool,
    pub preserves: bool,
}

/// A table in the making.
pub(crate) struct Builder {
    table: Table,
    text: String,
    shapes: HashMap<ShapeRow, u16>,
    grafted: HashMap<u16, u16>,
}

impl Builder {
    /// A table of one group and version.
    pub(crate) fn new(group: &str, version: &str) -> Result<Self> {
        let table = Table {
            text: Cow::Borrowed(""),
            packages: Vec::new(),
            types: Vec::new(),
            fields: Vec::new(),
            sorted: Vec::new(),
            by_tag: Vec::new(),
            shapes: Vec::new(),
            extras: vec![Extra::default()],
            index: Vec::new(),
            loose: Some(0),
        };
        let mut builder = Self { table, text: String::new(), shapes: HashMap::new(), grafted: HashMap::new() };
        let package = builder.span(&format!("{group}/{version}"))?;
        let group = builder.span(group)?;
        builder.table.packages.push(PackageRow { name: package, group });
        // What is taken over keeps its names.
        let (name, group) = (builder.span("meta/v1")?, builder.span("meta.k8s.io")?);
        builder.table.packages.push(PackageRow { name, group });
        // What a type that preserves says of fields it does not know: nothing.
        builder.add(&NewType { name: "", fields: Vec::new(), atomic: false, preserves: true })?;
        Ok(builder)
    }

    fn span(&mut self, text: &str) -> Result<Span> {
        if text.is_empty() {
            return Ok(Span::default());
        }
        let start = u32::try_from(self.text.len()).map_err(|_| "the schema is too long")?;
        let len = u16::try_from(text.len()).map_err(|_| "a name in the schema is too long")?;
        self.text.push_str(text);
        Ok(Span { start, len })
    }

    fn shape(&mut self, row: ShapeRow) -> Result<ShapeId> {
        if let Some(known) = self.shapes.get(&row) {
            return Ok(ShapeId(*known));
        }
        let new = id(self.table.shapes.len())?;
        self.table.shapes.push(row);
        self.shapes.insert(row, new);
        Ok(ShapeId(new))
    }

    /// A scalar.
    pub(crate) fn scalar(&mut self, scalar: Scalar) -> Result<ShapeId> {
        self.shape(ShapeRow::Scalar(scalar, GoName::default()))
    }

    /// Anything at all.
    pub(crate) fn any(&mut self) -> Result<ShapeId> {
        self.shape(ShapeRow::Struct(0))
    }

    /// A list.
    pub(crate) fn list(&mut self, element: ShapeId) -> Result<ShapeId> {
        self.shape(ShapeRow::List(element.0, GoName::default()))
    }

    /// A map from strings.
    pub(crate) fn map(&mut self, element: ShapeId) -> Result<ShapeId> {
        let key = self.scalar(Scalar::String)?.0;
        self.shape(ShapeRow::Map { key, element: element.0, name: GoName::default() })
    }

    /// A struct.
    pub(crate) fn structure(&mut self, new: &NewType<'_>) -> Result<ShapeId> {
        let index = self.add(new)?;
        self.shape(ShapeRow::Struct(index))
    }

    fn add(&mut self, new: &NewType<'_>) -> Result<u16> {
        let start = id(self.table.fields.len())?;
        for field in &new.fields {
            let name = self.span(field.name)?;
            let extra = self.extra(field)?;
            let flags = OMITEMPTY | POINTER | OPTIONAL | NULLABLE;
            self.table.fields.push(FieldRow { name, tag: 0, shape: field.shape.0, extra, flags });
        }
        let end = id(self.table.fields.len())?;
        let name = self.span(new.name)?;
        self.row(TypeRow {
            name,
            package: 0,
            json: (start, end),
            declared: (start, end),
            sorted: 0,
            by_tag: 0,
            atomic: new.atomic,
            union: false,
            root: false,
            preserves: new.preserves,
        })
    }

    fn extra(&mut self, field: &NewField<'_>) -> Result<u16> {
        let extra = Extra {
            list: field.list,
            keys: field.keys.iter().map(|key| self.span(key)).collect::<Result<_>>()?,
            map_atomic: field.atomic,
            default: self.span(field.default.as_deref().unwrap_or_default())?,
            ..Extra::default()
        };
        if extra == Extra::default() {
            return Ok(0);
        }
        let new = id(self.table.extras.len())?;
        self.table.extras.push(extra);
        Ok(new)
    }

    /// Adds a type with its indices.
    fn row(&mut self, mut row: TypeRow) -> Result<u16> {
        let index = id(self.table.types.len())?;
        let fields = &self.table.fields[usize::from(row.json.0)..usize::from(row.json.1)];
        let places = || (0..fields.len()).filter_map(|i| u16::try_from(i).ok());
        row.by_tag = u32::try_from(self.table.by_tag.len()).map_err(|_| "too many fields")?;
        let mut by_tag: Vec<u16> = places().collect();
        by_tag.sort_by_key(|i| fields[usize::from(*i)].tag);
        if fields.len() > parse::LINEAR {
            row.sorted = u32::try_from(self.table.sorted.len()).map_err(|_| "too many fields")?;
            let mut order: Vec<u16> = places().collect();
            let name = |i: &u16| {
                let span = fields[usize::from(*i)].name;
                &self.text[span.start as usize..span.start as usize + usize::from(span.len)]
            };
            order.sort_by(|a, b| name(a).cmp(name(b)));
            self.table.sorted.append(&mut order);
        }
        self.table.by_tag.append(&mut by_tag);
        self.table.types.push(row);
        Ok(index)
    }

    /// A type of another table, with all that it holds.
    pub(crate) fn graft(&mut self, t: TypeRef<'_>) -> Result<ShapeId> {
        let index = self.graft_type(t)?;
        self.shape(ShapeRow::Struct(index))
    }

    fn graft_type(&mut self, t: TypeRef<'_>) -> Result<u16> {
        if let Some(known) = self.grafted.get(&t.index) {
            return Ok(*known);
        }
        let (table, source) = (t.table, *t.row());
        let mut rows = Vec::new();
        for field in t.rows(source.json) {
            let extra = &table.extras[usize::from(field.extra)];
            let new = NewField {
                name: table.str(field.name),
                shape: self.graft_shape(table, field.shape)?,
                list: extra.list,
                keys: &extra.keys.iter().map(|key| table.str(*key).into()).collect::<Vec<Box<str>>>(),
                atomic: extra.map_atomic,
                default: None,
            };
            let (name, extra) = (self.span(new.name)?, self.extra(&new)?);
            rows.push(FieldRow { name, tag: field.tag, shape: new.shape.0, extra, flags: field.flags });
        }
        let start = id(self.table.fields.len())?;
        self.table.fields.append(&mut rows);
        let end = id(self.table.fields.len())?;
        let name = self.span(t.name())?;
        let new = self.row(TypeRow { name, package: META, json: (start, end), declared: (start, end), ..source })?;
        self.grafted.insert(t.index, new);
        Ok(new)
    }

    fn graft_shape(&mut self, table: &Table, shape: u16) -> Result<ShapeId> {
        let row = match table.shapes[usize::from(shape)] {
            ShapeRow::Scalar(scalar, name) => ShapeRow::Scalar(scalar, self.graft_name(table, name)?),
            ShapeRow::Raw(name) => ShapeRow::Raw(self.graft_name(table, name)?),
            ShapeRow::Struct(index) => ShapeRow::Struct(self.graft_type(TypeRef { table, index })?),
            ShapeRow::List(element, _) => ShapeRow::List(self.graft_shape(table, element)?.0, GoName::default()),
            ShapeRow::Map { key, element, .. } => ShapeRow::Map {
                key: self.graft_shape(table, key)?.0,
                element: self.graft_shape(table, element)?.0,
                name: GoName::default(),
            },
            ShapeRow::OrArray(..) | ShapeRow::OrBool(..) | ShapeRow::OrStrings(..) => {
                return Err("a type that cannot be taken over".to_owned());
            }
        };
        self.shape(row)
    }

    fn graft_name(&mut self, table: &Table, name: GoName) -> Result<GoName> {
        let plain = table.str(name.name).to_owned();
        Ok(GoName { package: name.package.map(|_| META), name: self.span(&plain)? })
    }

    /// The finished table; `root` is the type of its objects.
    pub(crate) fn finish(mut self, root: ShapeId) -> Result<Type> {
        let ShapeRow::Struct(index) = self.table.shapes[usize::from(root.0)] else {
            return Err("an object must be an object".to_owned());
        };
        self.table.types[usize::from(index)].root = true;
        self.table.index = vec![index];
        self.table.text = Cow::Owned(self.text);
        Ok(Type { table: Arc::new(self.table), index })
    }
}
