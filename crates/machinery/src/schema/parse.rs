//! Reads a schema table from its text.

use std::borrow::Cow;
use std::collections::HashMap;

use super::{
    EMBEDDED, Extra, FieldRow, GoName, ListType, Merge, NULLABLE, OMITEMPTY, OMITZERO, OPTIONAL, POINTER, PackageRow,
    REQUIRED, Scalar, ShapeRow, Span, Table, TypeRef, TypeRow,
};

/// Types with more fields than this are searched by name in a sorted index.
pub(super) const LINEAR: usize = 4;

/// A decoder keeps a bit per field.
pub(crate) const MAX_FIELDS: usize = 128;

type Result<T> = std::result::Result<T, String>;

impl Table {
    /// Reads a table.
    ///
    /// ```text
    /// package core/v1 -                       name of the package, its API group (- is the core group)
    /// alias ResourceName string               a named scalar, list, map or struct
    /// type PodSpec [atomic] [union]           a struct; its fields follow, one a line; `preserve`
    ///                                         keeps fields that it does not have
    ///  containers 2 []Container - merge=name keys=name
    ///  (VolumeSource) 2 VolumeSource -        an embedded struct
    /// ```
    ///
    /// A field is: name, protobuf tag (`-` for none), type, flags (`o` omitempty, `z` omitzero, `p`
    /// pointer, `r` required, `i` optional, `n` nullable, `-` for none), then any of `merge[=KEY]`, `retain`,
    /// `replace` (strategic merge); `set`, `keys=A,B`, `atomic`, `granular` (server-side apply, where
    /// the field says it); `gate=A,B`; `default=JSON`. A type of another package is written
    /// `core/v1.PodSpec`.
    pub fn parse(text: impl Into<Cow<'static, str>>) -> Result<Self> {
        let text = text.into();
        let mut table = Self {
            text: Cow::Borrowed(""),
            packages: Vec::new(),
            types: Vec::new(),
            fields: Vec::new(),
            sorted: Vec::new(),
            by_tag: Vec::new(),
            shapes: Vec::new(),
            extras: vec![Extra::default()],
            index: Vec::new(),
            loose: None,
        };
        let source = Source { text: &text };
        let lines = source.lines(&mut table)?;
        let mut reader = Reader {
            source,
            aliases: lines.aliases,
            structs: lines.structs,
            packages: lines.packages,
            known: HashMap::new(),
            shapes: HashMap::new(),
            extras: HashMap::new(),
        };
        for (index, (package, fields)) in lines.fields.iter().enumerate() {
            reader.declare(&mut table, index, package, fields)?;
        }
        drop(reader);
        table.text = text;
        table.flatten()?;
        table.sort()?;
        Ok(table)
    }

    /// Gives every type with embedded structs a second range of fields, as its JSON has them.
    fn flatten(&mut self) -> Result<()> {
        for index in 0..self.types.len() {
            let (start, end) = self.types[index].declared;
            let declared = &self.fields[usize::from(start)..usize::from(end)];
            if !declared.iter().any(|f| f.flags & EMBEDDED != 0) {
                self.types[index].json = (start, end);
                continue;
            }
            let mut flat = Vec::new();
            self.collect(index, &mut flat, 0)?;
            let start = u16::try_from(self.fields.len()).map_err(|_| "too many fields")?;
            self.fields.append(&mut flat);
            let end = u16::try_from(self.fields.len()).map_err(|_| "too many fields")?;
            self.types[index].json = (start, end);
        }
        Ok(())
    }

    fn collect(&self, index: usize, out: &mut Vec<FieldRow>, depth: usize) -> Result<()> {
        if depth > 4 {
            return Err("embedded structs nest too deep".to_owned());
        }
        let (start, end) = self.types[index].declared;
        for field in &self.fields[usize::from(start)..usize::from(end)] {
            if field.flags & EMBEDDED == 0 {
                out.push(*field);
                continue;
            }
            match self.shapes[usize::from(field.shape)] {
                ShapeRow::Struct(inner) => self.collect(usize::from(inner), out, depth + 1)?,
                _ => return Err(format!("{} embeds what is no struct", self.str(self.types[index].name))),
            }
        }
        Ok(())
    }

    fn sort(&mut self) -> Result<()> {
        for index in 0..self.types.len() {
            let (start, end) = self.types[index].declared;
            let rows = &self.fields[usize::from(start)..usize::from(end)];
            let mut order: Vec<u16> = (0..rows.len()).filter_map(|i| u16::try_from(i).ok()).collect();
            order.sort_by_key(|i| rows[usize::from(*i)].tag);
            self.types[index].by_tag = u32::try_from(self.by_tag.len()).map_err(|_| "too many fields")?;
            self.by_tag.append(&mut order);
        }
        for index in 0..self.types.len() {
            let (start, end) = self.types[index].json;
            let rows = &self.fields[usize::from(start)..usize::from(end)];
            if rows.len() > MAX_FIELDS {
                return Err(format!("{} has too many fields", self.str(self.types[index].name)));
            }
            if rows.len() <= LINEAR {
                continue;
            }
            let mut order: Vec<u16> = (0..rows.len()).filter_map(|i| u16::try_from(i).ok()).collect();
            order.sort_by_key(|i| self.str(rows[usize::from(*i)].name));
            self.types[index].sorted = u32::try_from(self.sorted.len()).map_err(|_| "too many fields")?;
            self.sorted.append(&mut order);
        }
        let mut index: Vec<u16> = (0..self.types.len()).filter_map(|i| u16::try_from(i).ok()).collect();
        index.sort_by(|a, b| {
            let key = |i: &u16| {
                let t = TypeRef { table: self, index: *i };
                (t.package(), t.name())
            };
            key(a).cmp(&key(b))
        });
        self.index = index;
        self.fields.shrink_to_fit();
        self.sorted.shrink_to_fit();
        self.types.shrink_to_fit();
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Source<'t> {
    text: &'t str,
}

/// The lines of a table, by what they declare.
struct Lines<'t> {
    aliases: HashMap<(&'t str, &'t str), &'t str>,
    structs: HashMap<(&'t str, &'t str), u16>,
    packages: HashMap<&'t str, u16>,
    fields: Vec<(&'t str, Vec<&'t str>)>,
}

impl<'t> Source<'t> {
    fn span(self, part: &str) -> Result<Span> {
        let start = (part.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        if part.is_empty() {
            return Ok(Span::default());
        }
        let (start, len) = (u32::try_from(start), u16::try_from(part.len()));
        match (start, len) {
            (Ok(start), Ok(len)) if start as usize + part.len() <= self.text.len() => Ok(Span { start, len }),
            _ => Err(format!("{part:?} is too long, or not of the text")),
        }
    }

    fn lines(self, table: &mut Table) -> Result<Lines<'t>> {
        let mut lines =
            Lines { aliases: HashMap::new(), structs: HashMap::new(), packages: HashMap::new(), fields: Vec::new() };
        let mut package = None;
        for line in self.text.lines() {
            if let Some(field) = line.strip_prefix(' ') {
                lines.fields.last_mut().ok_or("a field before any type")?.1.push(field);
                continue;
            }
            let words: Vec<&'t str> = line.split(' ').collect();
            match (&words[..], package) {
                (["package", name, group], _) => {
                    package = Some(*name);
                    let group = if *group == "-" { "" } else { group };
                    let id = u16::try_from(table.packages.len()).map_err(|_| "too many packages")?;
                    lines.packages.insert(name, id);
                    table.packages.push(PackageRow { name: self.span(name)?, group: self.span(group)? });
                }
                (["alias", name, target], Some(package)) => {
                    lines.aliases.insert((package, name), target);
                }
                (["type", name, markers @ ..], Some(owner)) => {
                    let id = u16::try_from(table.types.len()).map_err(|_| "too many types")?;
                    if lines.structs.insert((owner, name), id).is_some() {
                        return Err(format!("{owner}.{name} is declared twice"));
                    }
                    let package = u16::try_from(table.packages.len() - 1).map_err(|_| "too many packages")?;
                    table.types.push(TypeRow {
                        name: self.span(name)?,
                        package,
                        json: (0, 0),
                        declared: (0, 0),
                        sorted: 0,
                        by_tag: 0,
                        atomic: markers.contains(&"atomic"),
                        union: markers.contains(&"union"),
                        root: false,
                        preserves: markers.contains(&"preserve"),
                    });
                    lines.fields.push((owner, Vec::new()));
                }
                ([first, ..], _) if first.is_empty() || first.starts_with('#') => {}
                _ => return Err(format!("line {line:?}")),
            }
        }
        Ok(lines)
    }
}

struct Reader<'t> {
    source: Source<'t>,
    aliases: HashMap<(&'t str, &'t str), &'t str>,
    structs: HashMap<(&'t str, &'t str), u16>,
    packages: HashMap<&'t str, u16>,
    /// Shapes by package and the text of the type.
    known: HashMap<(&'t str, &'t str), u16>,
    shapes: HashMap<ShapeRow, u16>,
    extras: HashMap<Vec<&'t str>, u16>,
}

impl<'t> Reader<'t> {
    fn declare(&mut self, table: &mut Table, index: usize, package: &'t str, fields: &[&'t str]) -> Result<()> {
        let start = u16::try_from(table.fields.len()).map_err(|_| "too many fields")?;
        for line in fields {
            let row = self.field(table, package, line).map_err(|e| format!("{package}: {line:?}: {e}"))?;
            table.fields.push(row);
            if line.starts_with("(TypeMeta) ") {
                table.types[index].root = true;
            }
        }
        let end = u16::try_from(table.fields.len()).map_err(|_| "too many fields")?;
        table.types[index].declared = (start, end);
        Ok(())
    }

    fn field(&mut self, table: &mut Table, package: &'t str, line: &'t str) -> Result<FieldRow> {
        let mut words = line.split(' ');
        let mut next = || words.next().ok_or("too few words");
        let (name, tag, go_type, letters) = (next()?, next()?, next()?, next()?);
        let tag = if tag == "-" { 0 } else { tag.parse().map_err(|_| "the tag is no number")? };
        let mut flags = 0;
        for letter in letters.chars() {
            flags |= match letter {
                'o' => OMITEMPTY,
                'z' => OMITZERO,
                'p' => POINTER,
                'r' => REQUIRED,
                'i' => OPTIONAL,
                'n' => NULLABLE,
                '-' => 0,
                other => return Err(format!("flag {other:?}")),
            };
        }
        let mut plain = name;
        if let Some(inner) = name.strip_prefix('(').and_then(|n| n.strip_suffix(')')) {
            flags |= EMBEDDED;
            plain = inner;
        }
        let extra = self.extra(table, words.collect())?;
        let shape = self.shape(table, package, go_type, 0)?;
        Ok(FieldRow { name: self.source.span(plain)?, tag, shape, extra, flags })
    }

    fn extra(&mut self, table: &mut Table, words: Vec<&'t str>) -> Result<u16> {
        if words.is_empty() {
            return Ok(0);
        }
        if let Some(known) = self.extras.get(&words) {
            return Ok(*known);
        }
        let mut extra = Extra::default();
        let list = |names: &str| names.split(',').map(|n| self.source.span(n)).collect::<Result<Vec<_>>>();
        for word in &words {
            match (*word, word.split_once('=')) {
                ("merge", _) | (_, Some(("merge", _))) => {
                    extra.merge = if extra.merge == Merge::RetainKeys { Merge::MergeRetainKeys } else { Merge::Merge };
                    if let Some((_, key)) = word.split_once('=') {
                        extra.merge_key = self.source.span(key)?;
                    }
                }
                ("retain", _) => extra.merge = Merge::RetainKeys,
                ("replace", _) => extra.merge = Merge::Replace,
                ("set", _) => extra.list = ListType::Set,
                ("atomic", _) => extra.map_atomic = true,
                ("granular", _) => extra.granular = true,
                (_, Some(("keys", keys))) => {
                    extra.list = ListType::Map;
                    extra.keys = list(keys)?;
                }
                (_, Some(("gate", gates))) => extra.gates = list(gates)?,
                (_, Some(("default", json))) => extra.default = self.source.span(json)?,
                _ => return Err(format!("word {word:?}")),
            }
        }
        let id = u16::try_from(table.extras.len()).map_err(|_| "too many kinds of fields")?;
        table.extras.push(extra);
        self.extras.insert(words, id);
        Ok(id)
    }

    fn add(&mut self, table: &mut Table, row: ShapeRow) -> Result<u16> {
        if let Some(id) = self.shapes.get(&row) {
            return Ok(*id);
        }
        let id = u16::try_from(table.shapes.len()).map_err(|_| "too many shapes")?;
        table.shapes.push(row);
        self.shapes.insert(row, id);
        Ok(id)
    }

    fn shape(&mut self, table: &mut Table, package: &'t str, text: &'t str, depth: usize) -> Result<u16> {
        if depth > 8 {
            return Err(format!("{text:?} does not end"));
        }
        if let Some(id) = self.known.get(&(package, text)) {
            return Ok(*id);
        }
        let name = GoName { package: None, name: self.source.span(text)? };
        let none = GoName::default();
        let row = if let Some(scalar) = scalar_of(text) {
            ShapeRow::Scalar(scalar, name)
        } else if matches!(text, "runtime.RawExtension" | "interface{}") {
            ShapeRow::Raw(name)
        } else if let Some(element) = text.strip_prefix("[]") {
            ShapeRow::List(self.shape(table, package, element, depth + 1)?, none)
        } else if let Some(rest) = text.strip_prefix("map[") {
            let (key, element) = rest.split_once(']').ok_or("a map without ]")?;
            let key = self.shape(table, package, key, depth + 1)?;
            ShapeRow::Map { key, element: self.shape(table, package, element, depth + 1)?, name: none }
        } else {
            return self.named(table, package, text, depth);
        };
        let id = self.add(table, row)?;
        self.known.insert((package, text), id);
        Ok(id)
    }

    /// A type by its name, in this package or another.
    fn named(&mut self, table: &mut Table, package: &'t str, text: &'t str, depth: usize) -> Result<u16> {
        let (owner, name) = match text.split_once('.') {
            Some((owner, name)) => (owner, name),
            None => (package, text),
        };
        // The alias keeps its own name, which error texts print.
        let named = GoName { package: self.packages.get(owner).copied(), name: self.source.span(name)? };
        let row = match (owner.split('/').next(), name) {
            (Some("meta"), "Time") => ShapeRow::Scalar(Scalar::Time, named),
            (Some("meta"), "MicroTime") => ShapeRow::Scalar(Scalar::MicroTime, named),
            (Some("meta"), "Duration") => ShapeRow::Scalar(Scalar::Duration, named),
            (Some("meta"), "FieldsV1") | (Some("apiextensions"), "JSON") => ShapeRow::Raw(named),
            (Some("apiextensions"), "JSONSchemaPropsOrArray") => ShapeRow::OrArray(self.props(owner)?, named),
            (Some("apiextensions"), "JSONSchemaPropsOrBool") => ShapeRow::OrBool(self.props(owner)?, named),
            (Some("apiextensions"), "JSONSchemaPropsOrStringArray") => ShapeRow::OrStrings(self.props(owner)?, named),
            _ => {
                if let Some(id) = self.structs.get(&(owner, name)) {
                    ShapeRow::Struct(*id)
                } else {
                    let target = self.aliases.get(&(owner, name)).copied();
                    let target = target.ok_or_else(|| format!("no type {owner}.{name}"))?;
                    let inner = self.shape(table, owner, target, depth + 1)?;
                    match table.shapes[usize::from(inner)] {
                        ShapeRow::Scalar(scalar, _) => ShapeRow::Scalar(scalar, named),
                        ShapeRow::List(element, _) => ShapeRow::List(element, named),
                        ShapeRow::Map { key, element, .. } => ShapeRow::Map { key, element, name: named },
                        other => other,
                    }
                }
            }
        };
        let id = self.add(table, row)?;
        self.known.insert((package, text), id);
        Ok(id)
    }

    fn props(&self, owner: &'t str) -> Result<u16> {
        self.structs.get(&(owner, "JSONSchemaProps")).copied().ok_or_else(|| format!("no {owner}.JSONSchemaProps"))
    }
}

fn scalar_of(text: &str) -> Option<Scalar> {
    Some(match text {
        "string" | "types.UID" | "types.NodeName" => Scalar::String,
        "bool" => Scalar::Bool,
        "int32" => Scalar::Int32,
        "int64" => Scalar::Int64,
        "float64" => Scalar::Float64,
        "[]byte" => Scalar::Bytes,
        "resource.Quantity" => Scalar::Quantity,
        "intstr.IntOrString" => Scalar::IntOrString,
        _ => return None,
    })
}
