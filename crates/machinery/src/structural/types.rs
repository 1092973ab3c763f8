//! The structural schema as the schema that decoding, patches, apply and encoding use.
//!
//! ```text
//! properties      ──►  struct         additionalProperties  ──►  map        items  ──►  list
//! type: string …  ──►  scalar         neither type nor structure  ──►  anything
//! ```

use serde_json::Value;

use super::{Additional, ListType, MapType, Node, Structural, Type};
use crate::schema::{self, Builder, NewField, NewType, Scalar, ShapeId};

type Result<T> = std::result::Result<T, String>;

/// Whose schema it is.
#[derive(Clone, Copy, Debug)]
pub struct Names<'n> {
    pub group: &'n str,
    pub version: &'n str,
    pub kind: &'n str,
}

impl Structural {
    /// The type of the objects. `object_meta` is the type of `metadata`.
    ///
    /// # Errors
    /// When the schema has more parts than a table can hold.
    pub fn types(&self, names: Names<'_>, object_meta: &schema::Type) -> Result<schema::Type> {
        let builder = Builder::new(names.group, names.version)?;
        let mut maker = Maker { builder, object_meta };
        let root = maker.structure(self.root(), names.kind, true)?;
        maker.builder.finish(root)
    }
}

struct Maker<'m> {
    builder: Builder,
    object_meta: &'m schema::Type,
}

impl Maker<'_> {
    fn shape(&mut self, node: &Node) -> Result<ShapeId> {
        if node.int_or_string {
            return self.builder.scalar(Scalar::IntOrString);
        }
        match node.kind {
            Some(Type::String) => self.builder.scalar(Scalar::String),
            Some(Type::Integer) => self.builder.scalar(Scalar::Int64),
            Some(Type::Number) => self.builder.scalar(Scalar::Float64),
            Some(Type::Boolean) => self.builder.scalar(Scalar::Bool),
            Some(Type::Array) => {
                let element = match &node.items {
                    Some(items) => self.shape(items)?,
                    None => self.builder.any()?,
                };
                self.builder.list(element)
            }
            Some(Type::Object) => self.object(node),
            None if node.embedded_resource || !node.properties.is_empty() => self.structure(node, "", false),
            None => self.builder.any(),
        }
    }

    fn object(&mut self, node: &Node) -> Result<ShapeId> {
        match &node.additional_properties {
            Some(Additional::Schema(inner)) if node.properties.is_empty() => {
                let element = self.shape(inner)?;
                self.builder.map(element)
            }
            // Nothing is said of the values, but what they contain is not specified.
            Some(Additional::Allowed(true)) if node.properties.is_empty() && !node.preserve_unknown_fields => {
                let element = self.builder.structure(&NewType {
                    name: "",
                    fields: Vec::new(),
                    atomic: false,
                    preserves: false,
                })?;
                self.builder.map(element)
            }
            _ => self.structure(node, "", false),
        }
    }

    fn structure(&mut self, node: &Node, name: &str, is_root: bool) -> Result<ShapeId> {
        let has_head = is_root || node.embedded_resource;
        let mut fields = Vec::with_capacity(node.properties.len() + 3);
        if has_head {
            let (text, meta) = (self.builder.scalar(Scalar::String)?, self.builder.graft(self.object_meta.get())?);
            let plain = |name, shape| NewField {
                name,
                shape,
                list: schema::ListType::Atomic,
                keys: &[],
                atomic: false,
                default: None,
            };
            fields.extend([plain("apiVersion", text), plain("kind", text), plain("metadata", meta)]);
        }
        for (name, property) in node.properties.iter() {
            if !(has_head && matches!(name, "apiVersion" | "kind" | "metadata")) {
                fields.push(self.field(name, property)?);
            }
        }
        fields.sort_by(|a, b| a.name.cmp(b.name));
        let open = matches!(node.additional_properties, Some(Additional::Allowed(true)));
        self.builder.structure(&NewType {
            name,
            fields,
            atomic: node.map_type == Some(MapType::Atomic),
            preserves: node.preserve_unknown_fields || open,
        })
    }

    fn field<'n>(&mut self, name: &'n str, node: &'n Node) -> Result<NewField<'n>> {
        let default = node.default_value().filter(|default| !matches!(default, Value::Object(_) | Value::Array(_)));
        Ok(NewField {
            name,
            shape: self.shape(node)?,
            list: match node.list_type {
                Some(ListType::Set) => schema::ListType::Set,
                Some(ListType::Map) => schema::ListType::Map,
                Some(ListType::Atomic) | None => schema::ListType::Atomic,
            },
            keys: match node.list_type {
                Some(ListType::Map) => node.list_map_keys(),
                _ => &[],
            },
            atomic: node.map_type == Some(MapType::Atomic),
            default: default.map(Value::to_string),
        })
    }
}
