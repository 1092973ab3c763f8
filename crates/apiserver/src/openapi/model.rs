//! Types of the schema as definitions: names, texts, properties, and how lists and structs merge; pure.

use std::collections::BTreeMap;

use kinds::{AnyKind, AnyShape, SharedKind};
use machinery::schema::{Field, Inner, ListType, Merge, Scalar, Shape, Type, TypeRef};
use machinery::structural::open_api::Head;
use serde_json::{Map, Value, json};

use super::texts::Texts;

pub use kinds::kind::OpenApi as Form;

/// What every object has, and every list.
pub const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
pub const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";

/// What is sent as a patch.
pub const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
/// What `/version` answers.
pub const VERSION: &str = "io.k8s.apimachinery.pkg.version.Info";

/// The name of a type, as clients know it: `io.k8s.api.core.v1.Pod`.
pub fn name(t: TypeRef<'_>) -> String {
    let prefix = match t.package() {
        "meta/v1" => META.to_owned(),
        "apiextensions/v1" => EXTENSIONS.to_owned(),
        "apiregistration/v1" => "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1".to_owned(),
        "metrics/v1beta1" => "io.k8s.metrics.pkg.apis.metrics.v1beta1".to_owned(),
        package => {
            let root = if t.group().ends_with(".pintle.dev") { "dev.pintle" } else { "io.k8s.api" };
            format!("{root}.{}", package.replace('/', "."))
        }
    };
    format!("{prefix}.{}", t.name())
}

/// The name of a custom kind's definition: `com.example.stable.v1.CronTab`.
pub fn custom_name(group: &str, version: &str, kind: &str) -> String {
    let parts: Vec<&str> = group.rsplit('.').collect();
    format!("{}.{version}.{kind}", parts.join("."))
}

/// A reference to a definition.
pub fn reference(form: Form, name: &str) -> Value {
    let place = match form {
        Form::V2 => "#/definitions/",
        Form::V3 => "#/components/schemas/",
    };
    json!({"$ref": format!("{place}{name}")})
}

/// A type that is no struct of the schema and has a definition all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plain {
    Quantity,
    IntOrString,
    Raw,
    Time,
    MicroTime,
    Duration,
    FieldsV1,
    Json,
    OrArray,
    OrBool,
    OrStrings,
    Patch,
    Version,
}

impl Plain {
    fn name(self) -> String {
        match self {
            Self::Quantity => "io.k8s.apimachinery.pkg.api.resource.Quantity".to_owned(),
            Self::IntOrString => "io.k8s.apimachinery.pkg.util.intstr.IntOrString".to_owned(),
            Self::Raw => "io.k8s.apimachinery.pkg.runtime.RawExtension".to_owned(),
            Self::Time => format!("{META}.Time"),
            Self::MicroTime => format!("{META}.MicroTime"),
            Self::Duration => format!("{META}.Duration"),
            Self::FieldsV1 => format!("{META}.FieldsV1"),
            Self::Json => format!("{EXTENSIONS}.JSON"),
            Self::OrArray => format!("{EXTENSIONS}.JSONSchemaPropsOrArray"),
            Self::OrBool => format!("{EXTENSIONS}.JSONSchemaPropsOrBool"),
            Self::OrStrings => format!("{EXTENSIONS}.JSONSchemaPropsOrStringArray"),
            Self::Patch => PATCH.to_owned(),
            Self::Version => VERSION.to_owned(),
        }
    }

    fn definition(self, form: Form, texts: &Texts) -> Value {
        let either = |types: [&str; 2]| match form {
            Form::V2 => json!({"type": "string"}),
            Form::V3 => json!({"oneOf": types.map(|t| json!({"type": t}))}),
        };
        match self {
            Self::Quantity => either(["string", "number"]),
            Self::IntOrString => {
                let mut out = either(["integer", "string"]);
                out["format"] = json!("int-or-string");
                out
            }
            Self::Raw | Self::FieldsV1 | Self::Patch => json!({"type": "object"}),
            Self::Time | Self::MicroTime => json!({"type": "string", "format": "date-time"}),
            Self::Duration => json!({"type": "string"}),
            Self::Json | Self::OrArray | Self::OrBool | Self::OrStrings => json!({}),
            Self::Version => version_info(form, texts),
        }
    }
}

/// What `/version` answers, which the schema table does not know: it is no object of the API.
fn version_info(form: Form, texts: &Texts) -> Value {
    let required =
        ["major", "minor", "gitVersion", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"];
    let optional = ["emulationMajor", "emulationMinor", "minCompatibilityMajor", "minCompatibilityMinor"];
    let mut properties = Map::new();
    for (name, needed) in required.iter().map(|n| (n, true)).chain(optional.iter().map(|n| (n, false))) {
        let mut property = json!({"type": "string"});
        if needed && form == Form::V3 {
            property["default"] = json!("");
        }
        if let Some(text) = texts.field(VERSION, name, false) {
            property["description"] = json!(text);
        }
        properties.insert((*name).to_owned(), property);
    }
    json!({"type": "object", "properties": properties, "required": required})
}

/// Something that has a definition.
#[derive(Clone, Copy)]
enum Found<'a> {
    Struct(TypeRef<'a>),
    Plain(Plain),
    /// An object of a custom kind.
    Custom(&'a SharedKind),
    /// A list of them.
    CustomList(&'a SharedKind),
}

/// What a document defines, by name.
#[derive(Default)]
pub struct Reach<'a>(BTreeMap<String, Found<'a>>);

impl<'a> Reach<'a> {
    /// Everything the types reach. The walk looks at each type once.
    pub fn of(roots: impl IntoIterator<Item = &'a Type>) -> Self {
        let mut found = BTreeMap::new();
        let mut open: Vec<Found<'a>> = roots.into_iter().map(|t| Found::Struct(t.get())).collect();
        while let Some(next) = open.pop() {
            match next {
                Found::Plain(plain) => {
                    found.insert(plain.name(), next);
                }
                Found::Custom(_) | Found::CustomList(_) => {}
                Found::Struct(t) => {
                    if found.insert(name(t), next).is_none() {
                        open.extend(t.fields().filter_map(|f| inner(f.shape(), &|| f.go_name())));
                    }
                }
            }
        }
        Self(found)
    }

    /// With the definitions that operations name and no type does.
    pub fn and(mut self, names: impl IntoIterator<Item = String>) -> Self {
        for name in names {
            let plain = match name.as_str() {
                PATCH => Plain::Patch,
                VERSION => Plain::Version,
                _ => continue,
            };
            self.0.insert(name, Found::Plain(plain));
        }
        self
    }

    /// With the definitions of custom kinds.
    pub fn and_custom(mut self, kinds: impl Iterator<Item = &'a SharedKind>) -> Self {
        for kind in kinds {
            let shape = kind.shape();
            let name = |kind: &str| custom_name(shape.group, shape.version, kind);
            self.0.insert(name(shape.kind), Found::Custom(kind));
            self.0.insert(name(&shape.list_kind()), Found::CustomList(kind));
        }
        self
    }

    /// The definitions in the order of their names.
    pub fn definitions(
        &self,
        form: Form,
        texts: &Texts,
        registered: &Registered,
    ) -> impl Iterator<Item = (&str, Value)> {
        self.0.iter().map(move |(name, found)| {
            let mut value = match found {
                Found::Struct(t) => definition(name, *t, form, texts, registered),
                Found::Plain(plain) => plain.definition(form, texts),
                Found::Custom(kind) => return (name.as_str(), custom(&***kind, form, texts)),
                Found::CustomList(kind) => return (name.as_str(), custom_list(&***kind, form, texts)),
            };
            if let Some(text) = texts.about(name) {
                value["description"] = json!(text);
            }
            (name.as_str(), value)
        })
    }
}

/// What a text says of a field that every object or list has; no custom kind says it itself.
fn common(texts: &Texts, list: bool, field: &str) -> Value {
    let of = if list { "io.k8s.api.core.v1.PodList" } else { "io.k8s.api.core.v1.Pod" };
    json!({"type": "string", "description": texts.field(of, field, true).unwrap_or_default()})
}

fn gvk(shape: &AnyShape<'_>, kind: &str) -> Value {
    json!([{"group": shape.group, "kind": kind, "version": shape.version}])
}

/// A reference with a text beside it.
fn described(form: Form, name: &str, texts: &Texts, list: bool) -> Value {
    let of = if list { "io.k8s.api.core.v1.PodList" } else { "io.k8s.api.core.v1.Pod" };
    let mut out = reference(form, name);
    let mut extra = Map::new();
    extra.insert("description".into(), json!(texts.field(of, "metadata", true).unwrap_or_default()));
    attach(&mut out, extra, form);
    out
}

/// An object of a custom kind: what its definition says of it, and what is true of every object.
fn custom(kind: &dyn AnyKind, form: Form, texts: &Texts) -> Value {
    let shape = kind.shape();
    let head = Head {
        api_version: common(texts, false, "apiVersion"),
        kind: common(texts, false, "kind"),
        metadata: described(form, OBJECT_META, texts, false),
    };
    let mut out = kind.openapi(form, &head, &head);
    out["x-kubernetes-group-version-kind"] = gvk(&shape, shape.kind);
    out
}

fn custom_list(kind: &dyn AnyKind, form: Form, texts: &Texts) -> Value {
    let shape = kind.shape();
    let item = reference(form, &custom_name(shape.group, shape.version, shape.kind));
    let list = shape.list_kind();
    json!({
        "description": format!("{list} is a list of {}", shape.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": common(texts, true, "apiVersion"),
            "items": {"description": format!("List of {}.", shape.plural), "type": "array", "items": item},
            "kind": common(texts, true, "kind"),
            "metadata": described(form, LIST_META, texts, true),
        },
        "x-kubernetes-group-version-kind": gvk(&shape, &list),
    })
}

/// The groups and versions that know a kind under the names of all of them, like `DeleteOptions`.
pub struct Registered(pub Vec<(String, String)>);

impl Registered {
    /// Of a document about one group and version: that one, and the first of all.
    pub fn only(group: &str, version: &str) -> Self {
        let mut all = vec![(String::new(), "v1".to_owned()), (group.to_owned(), version.to_owned())];
        all.dedup();
        Self(all)
    }

    /// Every group and version there are types of.
    pub fn all() -> Self {
        // What is never sent to a server as an object of a group of its own.
        let internal = ["apidiscovery.k8s.io", "meta.k8s.io", "metrics.k8s.io"];
        let types: Vec<Type> = api::schema::all().collect();
        let places = types.iter().map(|t| (t.get().group().to_owned(), t.get().version().to_owned()));
        let mut all: Vec<(String, String)> = places.filter(|(g, _)| !internal.contains(&g.as_str())).collect();
        all.sort();
        all.dedup();
        Self(all)
    }
}

/// What a value is made of, when that has a definition.
fn inner<'a>(shape: Shape<'a>, go_name: &dyn Fn() -> String) -> Option<Found<'a>> {
    match shape {
        Shape::Struct(t) => Some(Found::Struct(t)),
        Shape::List(element) | Shape::Map(element) => inner(element.shape(), &|| element.go_name()),
        shape => plain(shape, go_name).map(Found::Plain),
    }
}

fn plain(shape: Shape<'_>, go_name: &dyn Fn() -> String) -> Option<Plain> {
    Some(match shape {
        Shape::Scalar(Scalar::Quantity) => Plain::Quantity,
        Shape::Scalar(Scalar::IntOrString) => Plain::IntOrString,
        Shape::Scalar(Scalar::Time) => Plain::Time,
        Shape::Scalar(Scalar::MicroTime) => Plain::MicroTime,
        Shape::Scalar(Scalar::Duration) => Plain::Duration,
        Shape::OrArray(_) => Plain::OrArray,
        Shape::OrBool(_) => Plain::OrBool,
        Shape::OrStrings(_) => Plain::OrStrings,
        Shape::Raw => match go_name().rsplit('.').next().unwrap_or_default() {
            "FieldsV1" => Plain::FieldsV1,
            "JSON" => Plain::Json,
            _ => Plain::Raw,
        },
        Shape::Scalar(_) | Shape::Struct(_) | Shape::List(_) | Shape::Map(_) => return None,
    })
}

/// One struct.
fn definition(name: &str, t: TypeRef<'_>, form: Form, texts: &Texts, registered: &Registered) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in t.fields() {
        let text = texts.field(name, field.name(), t.is_root());
        properties.insert(field.name().to_owned(), property(field, form, text));
        if field.required() {
            required.push(field.name());
        }
    }
    let mut out = json!({"type": "object"});
    if !properties.is_empty() {
        out["properties"] = Value::Object(properties);
    }
    if !required.is_empty() {
        out["required"] = json!(required);
    }
    if t.atomic() {
        out["x-kubernetes-map-type"] = json!("atomic");
    }
    if t.union() {
        out["x-kubernetes-unions"] = json!([union(t)]);
    }
    if has_kind(t) {
        out["x-kubernetes-group-version-kind"] = group_version_kinds(t, registered);
    }
    out
}

/// Which field says what the union is, and which word of it stands for which other field.
fn union(t: TypeRef<'_>) -> Value {
    let capital = |name: &str| name[..1].to_ascii_uppercase() + &name[1..];
    let discriminator = t.fields().find(|f| f.required());
    let members = t.fields().filter(|f| !f.required());
    let mut out = json!({
        "fields-to-discriminateBy": members.map(|f| (f.name().to_owned(), json!(capital(f.name())))).collect::<Map<_, _>>(),
    });
    if let Some(field) = discriminator {
        out["discriminator"] = json!(field.name());
    }
    out
}

/// `WatchEvent` is known as a kind though it does not say so itself.
fn has_kind(t: TypeRef<'_>) -> bool {
    t.is_root() || (t.package(), t.name()) == ("meta/v1", "WatchEvent")
}

fn group_version_kinds(t: TypeRef<'_>, registered: &Registered) -> Value {
    let gvk = |group: &str, version: &str| json!({"group": group, "kind": t.name(), "version": version});
    match (t.package(), t.name()) {
        ("meta/v1", "DeleteOptions" | "WatchEvent") => registered.0.iter().map(|(g, v)| gvk(g, v)).collect(),
        ("meta/v1", _) => json!([gvk("", "v1")]),
        _ => json!([gvk(t.group(), t.version())]),
    }
}

fn property(field: Field<'_>, form: Form, text: Option<&str>) -> Value {
    let mut out = schema(field.shape(), &|| field.go_name(), form);
    let mut extra = Map::new();
    if let Some(text) = text {
        extra.insert("description".into(), json!(text));
    }
    // Bytes are a list to Go, and one field says how it is merged.
    let is_list = matches!(field.shape(), Shape::List(_) | Shape::Scalar(Scalar::Bytes));
    if let Some(list) = field.declared_list_type().filter(|_| is_list) {
        let list = match list {
            ListType::Atomic => "atomic",
            ListType::Set => "set",
            ListType::Map => "map",
        };
        extra.insert("x-kubernetes-list-type".into(), json!(list));
        if field.list_keys().len() > 0 {
            extra.insert("x-kubernetes-list-map-keys".into(), field.list_keys().collect());
        }
    }
    if let Some(atomic) = field.declared_atomic().filter(|_| !is_list) {
        extra.insert("x-kubernetes-map-type".into(), json!(if atomic { "atomic" } else { "granular" }));
    }
    let strategy = match field.merge() {
        Merge::Default => None,
        Merge::Merge => Some("merge"),
        Merge::MergeRetainKeys => Some("merge,retainKeys"),
        Merge::RetainKeys => Some("retainKeys"),
        Merge::Replace => Some("replace"),
    };
    if let Some(strategy) = strategy {
        extra.insert("x-kubernetes-patch-strategy".into(), json!(strategy));
    }
    if let Some(key) = field.merge_key() {
        extra.insert("x-kubernetes-patch-merge-key".into(), json!(key));
    }
    if let Some(default) = default(field).filter(|_| form == Form::V3) {
        extra.insert("default".into(), default);
    }
    attach(&mut out, extra, form);
    out
}

/// Puts more fields beside those of a schema. Beside a reference v3 allows nothing: it is wrapped.
fn attach(schema: &mut Value, mut extra: Map<String, Value>, form: Form) {
    if extra.is_empty() {
        return;
    }
    if form == Form::V3 && schema.get("$ref").is_some() {
        *schema = json!({"allOf": [schema.take()]});
    }
    if let Some(fields) = schema.as_object_mut() {
        fields.append(&mut extra);
    }
}

/// What an absent field is: what is declared, else the zero value of what is always written.
fn default(field: Field<'_>) -> Option<Value> {
    let declared = field.default_json().and_then(|text| serde_json::from_str::<Value>(text).ok());
    declared.or_else(|| if field.pointer() { None } else { zero(field.shape(), field.omitempty()) })
}

/// The zero value of a shape that cannot be absent: a struct always is, a scalar unless it is left out
/// when empty. What has its own way of being read (times, quantities) has none.
fn zero(shape: Shape<'_>, omitempty: bool) -> Option<Value> {
    match shape {
        Shape::Struct(_) => Some(json!({})),
        Shape::Scalar(_) if omitempty => None,
        Shape::Scalar(Scalar::String) => Some(json!("")),
        Shape::Scalar(Scalar::Bool) => Some(json!(false)),
        Shape::Scalar(Scalar::Int32 | Scalar::Int64) => Some(json!(0)),
        Shape::Scalar(Scalar::Float64) => Some(json!(0.0)),
        _ => None,
    }
}

fn element(inner: Inner<'_>, form: Form) -> Value {
    let mut out = schema(inner.shape(), &|| inner.go_name(), form);
    let mut extra = Map::new();
    if let Some(zero) = zero(inner.shape(), false).filter(|_| form == Form::V3) {
        extra.insert("default".into(), zero);
    }
    attach(&mut out, extra, form);
    out
}

fn schema(shape: Shape<'_>, go_name: &dyn Fn() -> String, form: Form) -> Value {
    let formatted = |t: &str, format: &str| json!({"type": t, "format": format});
    if let Some(plain) = plain(shape, go_name) {
        return reference(form, &plain.name());
    }
    match shape {
        Shape::Scalar(Scalar::Bool) => json!({"type": "boolean"}),
        Shape::Scalar(Scalar::Int32) => formatted("integer", "int32"),
        Shape::Scalar(Scalar::Int64) => formatted("integer", "int64"),
        Shape::Scalar(Scalar::Float64) => formatted("number", "double"),
        Shape::Scalar(Scalar::Bytes) => formatted("string", "byte"),
        Shape::Struct(t) => reference(form, &name(t)),
        Shape::List(inner) => json!({"type": "array", "items": element(inner, form)}),
        Shape::Map(inner) => json!({"type": "object", "additionalProperties": element(inner, form)}),
        // Strings, and what `plain` has answered for.
        _ => json!({"type": "string"}),
    }
}
