//! What a table answers: the text of a span, the shape of an id, the type of a name.

use std::sync::Arc;

use super::{GoName, Inner, Shape, ShapeRow, Span, Table, Type, TypeRef};

impl Table {
    pub(super) fn str(&self, span: Span) -> &str {
        let start = span.start as usize;
        &self.text[start..start + usize::from(span.len)]
    }

    pub(super) fn shape(&self, id: u16) -> Shape<'_> {
        let inner = |shape| Inner { table: self, shape };
        let of = |index| TypeRef { table: self, index };
        match self.shapes[usize::from(id)] {
            ShapeRow::Scalar(scalar, _) => Shape::Scalar(scalar),
            ShapeRow::Raw(_) => Shape::Raw,
            ShapeRow::Struct(index) => Shape::Struct(of(index)),
            ShapeRow::List(element, _) => Shape::List(inner(element)),
            ShapeRow::Map { element, .. } => Shape::Map(inner(element)),
            ShapeRow::OrArray(index, _) => Shape::OrArray(of(index)),
            ShapeRow::OrBool(index, _) => Shape::OrBool(of(index)),
            ShapeRow::OrStrings(index, _) => Shape::OrStrings(of(index)),
        }
    }

    pub(super) fn go_name(&self, id: u16) -> String {
        let named = |name: GoName| {
            let plain = self.str(name.name);
            match name.package {
                Some(package) => {
                    let package = self.str(self.packages[usize::from(package)].name);
                    format!("{}.{plain}", package.rsplit('/').next().unwrap_or_default())
                }
                None => plain.rsplit('/').next().unwrap_or_default().to_owned(),
            }
        };
        match self.shapes[usize::from(id)] {
            ShapeRow::List(element, name) if name == GoName::default() => format!("[]{}", self.go_name(element)),
            ShapeRow::Map { key, element, name } if name == GoName::default() => {
                format!("map[{}]{}", self.go_name(key), self.go_name(element))
            }
            ShapeRow::Struct(index) => {
                let t = TypeRef { table: self, index };
                format!("{}.{}", t.version(), t.name())
            }
            ShapeRow::Scalar(_, name)
            | ShapeRow::Raw(name)
            | ShapeRow::List(_, name)
            | ShapeRow::Map { name, .. }
            | ShapeRow::OrArray(_, name)
            | ShapeRow::OrBool(_, name)
            | ShapeRow::OrStrings(_, name) => named(name),
        }
    }

    /// The types, in the order of their packages and names.
    pub fn types(self: &Arc<Self>) -> impl Iterator<Item = Type> {
        let table = Arc::clone(self);
        self.index.clone().into_iter().map(move |index| Type { table: Arc::clone(&table), index })
    }

    /// The type `name` of `package` (`core/v1`).
    pub fn find(self: &Arc<Self>, package: &str, name: &str) -> Option<Type> {
        self.lookup(package, name).map(|index| Type { table: Arc::clone(self), index })
    }

    fn lookup(&self, package: &str, name: &str) -> Option<u16> {
        let key = |index: &u16| {
            let t = TypeRef { table: self, index: *index };
            (t.package(), t.name())
        };
        let found = self.index.binary_search_by(|i| key(i).cmp(&(package, name))).ok()?;
        Some(self.index[found])
    }

    /// The type of a kind by its group and version; types that every group has (`DeleteOptions`,
    /// `Status`, …) are found under `meta.k8s.io/v1`.
    pub fn of(self: &Arc<Self>, group: &str, version: &str, kind: &str) -> Option<Type> {
        let package = self.packages.iter().find(|p| {
            let name = self.str(p.name);
            self.str(p.group) == group && name.rsplit('/').next() == Some(version)
        });
        let own = package.and_then(|p| self.find(self.str(p.name), kind));
        own.filter(|t| t.get().is_root()).or_else(|| {
            let generic = matches!(
                kind,
                "DeleteOptions"
                    | "CreateOptions"
                    | "UpdateOptions"
                    | "PatchOptions"
                    | "ListOptions"
                    | "GetOptions"
                    | "ApplyOptions"
                    | "Status"
                    | "List"
                    | "Table"
                    | "PartialObjectMetadata"
                    | "PartialObjectMetadataList"
                    | "APIGroup"
                    | "APIGroupList"
                    | "APIResourceList"
                    | "APIVersions"
            );
            if generic { self.find("meta/v1", kind) } else { None }
        })
    }
}
