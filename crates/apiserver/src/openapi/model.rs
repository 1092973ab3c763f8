//! Types of the schema as definitions: names, properties, and how lists and structs merge; pure.

use std::collections::BTreeMap;

use machinery::schema::{Field, Inner, ListType, Merge, Scalar, Shape, TypeRef};
use serde_json::{Map, Value, json};

/// Which OpenAPI a definition is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    V2,
    V3,
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const RAW: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";

/// The kinds of a document that the types every group knows (`DeleteOptions`) belong to.
pub type Served<'a> = &'a [(&'a str, &'a str)];

/// The name of a type, as clients know it: `io.k8s.api.core.v1.Pod`.
pub fn name(t: TypeRef<'_>) -> String {
    let prefix = match t.package() {
        "meta/v1" => META.to_owned(),
        "apiextensions/v1" => EXTENSIONS.to_owned(),
        "apiregistration/v1" => "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1".to_owned(),
        package => {
            let root = if t.group().ends_with(".pintle.dev") { "dev.pintle" } else { "io.k8s.api" };
            format!("{root}.{}", package.replace('/', "."))
        }
    };
    format!("{prefix}.{}", t.name())
}

/// A reference to a definition.
pub fn reference(form: Form, name: &str) -> Value {
    let place = match form {
        Form::V2 => "#/definitions/",
        Form::V3 => "#/components/schemas/",
    };
    json!({"$ref": format!("{place}{name}")})
}

/// Definitions of types that are not structs, in a form's words; by name.
fn special(form: Form) -> [(&'static str, Value); 14] {
    let two = form == Form::V3;
    let text = || json!({"type": "string"});
    let either = |other: &str| json!({"oneOf": [{"type": "string"}, {"type": other}]});
    let any_of = |other: Value| if two { json!({"oneOf": [{"type": "object"}, other]}) } else { json!({}) };
    let mut int_or_string = if two { either("integer") } else { text() };
    int_or_string["format"] = json!("int-or-string");
    let time = || json!({"type": "string", "format": "date-time"});
    [
        (QUANTITY, if two { either("number") } else { text() }),
        (INT_OR_STRING, int_or_string),
        (RAW, json!({"type": "object"})),
        ("io.k8s.apimachinery.pkg.apis.meta.v1.Time", time()),
        ("io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime", time()),
        ("io.k8s.apimachinery.pkg.apis.meta.v1.Duration", text()),
        ("io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1", json!({"type": "object"})),
        ("io.k8s.apimachinery.pkg.apis.meta.v1.Patch", json!({"type": "object"})),
        ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON", json!({})),
        (
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray",
            any_of(json!({"type": "array", "items": {"type": "object"}})),
        ),
        (
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool",
            any_of(json!({"type": "boolean"})),
        ),
        (
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray",
            any_of(json!({"type": "array", "items": {"type": "string"}})),
        ),
        ("io.k8s.apimachinery.pkg.version.Info", json!({"type": "object"})),
        ("io.k8s.apimachinery.pkg.apis.meta.v1.Table", json!({"type": "object"})),
    ]
}

/// Everything the roots reach, by name. The walk looks at each type once.
pub fn reach<'a>(roots: impl IntoIterator<Item = TypeRef<'a>>) -> BTreeMap<String, TypeRef<'a>> {
    let mut found = BTreeMap::new();
    let mut open: Vec<TypeRef<'a>> = roots.into_iter().collect();
    while let Some(t) = open.pop() {
        if found.insert(name(t), t).is_none() {
            for field in t.fields() {
                open.extend(inner_type(field.shape()));
            }
        }
    }
    found
}

fn inner_type(shape: Shape<'_>) -> Option<TypeRef<'_>> {
    match shape {
        Shape::Struct(t) => Some(t),
        Shape::List(inner) | Shape::Map(inner) => inner_type(inner.shape()),
        // Written as what they are, without naming their parts.
        Shape::Scalar(_) | Shape::Raw | Shape::OrArray(_) | Shape::OrBool(_) | Shape::OrStrings(_) => None,
    }
}

/// The definitions of the types reached, with those of the plain types they use, in name order.
pub fn definitions<'a>(
    types: &'a BTreeMap<String, TypeRef<'a>>,
    form: Form,
    served: Served<'a>,
) -> impl Iterator<Item = (String, Value)> + 'a {
    let mut all: BTreeMap<String, Option<TypeRef<'a>>> = types.iter().map(|(n, t)| (n.clone(), Some(*t))).collect();
    let plain: BTreeMap<&str, Value> = special(form).into_iter().collect();
    for name in plain.keys() {
        all.entry((*name).to_owned()).or_insert(None);
    }
    all.into_iter().map(move |(name, t)| {
        let value = match t {
            Some(t) => definition(t, form, served),
            None => plain.get(name.as_str()).cloned().unwrap_or_default(),
        };
        (name, value)
    })
}

/// One struct.
fn definition(t: TypeRef<'_>, form: Form, served: Served<'_>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in t.fields() {
        properties.insert(field.name().to_owned(), property(field, form));
        if field.required() {
            required.push(field.name());
        }
    }
    let mut out = json!({"type": "object"});
    if !properties.is_empty() {
        out["properties"] = Value::Object(properties);
    }
    if !required.is_empty() {
        required.sort_unstable();
        out["required"] = json!(required);
    }
    if t.atomic() {
        out["x-kubernetes-map-type"] = json!("atomic");
    }
    if t.is_root() {
        out["x-kubernetes-group-version-kind"] = group_version_kinds(t, served);
    }
    out
}

fn group_version_kinds(t: TypeRef<'_>, served: Served<'_>) -> Value {
    let gvk = |group: &str, version: &str| json!({"group": group, "kind": t.name(), "version": version});
    match (t.package(), t.name()) {
        ("meta/v1", "DeleteOptions" | "WatchEvent") => served.iter().map(|(g, v)| gvk(g, v)).collect(),
        ("meta/v1", _) => json!([gvk("", "v1")]),
        _ => json!([gvk(t.group(), t.version())]),
    }
}

fn property(field: Field<'_>, form: Form) -> Value {
    let mut out = schema(field.shape(), &|| field.go_name(), form);
    let mut extra = Map::new();
    if matches!(field.shape(), Shape::List(_)) {
        let list = match field.list_type() {
            ListType::Atomic => "atomic",
            ListType::Set => "set",
            ListType::Map => "map",
        };
        extra.insert("x-kubernetes-list-type".into(), json!(list));
        if field.list_keys().len() > 0 {
            extra.insert("x-kubernetes-list-map-keys".into(), field.list_keys().collect());
        }
    } else if field.atomic() {
        extra.insert("x-kubernetes-map-type".into(), json!("atomic"));
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
    if let Some(default) = field.default_json().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
        extra.insert("default".into(), default);
    }
    if extra.is_empty() {
        return out;
    }
    // Beside a reference v3 allows nothing: it is wrapped.
    if form == Form::V3 && out.get("$ref").is_some() {
        out = json!({"allOf": [out]});
    }
    if let Some(fields) = out.as_object_mut() {
        fields.append(&mut extra);
    }
    out
}

fn element(inner: Inner<'_>, form: Form) -> Value {
    schema(inner.shape(), &|| inner.go_name(), form)
}

fn schema(shape: Shape<'_>, go_name: &dyn Fn() -> String, form: Form) -> Value {
    let plain = |t: &str, format: &str| {
        if format.is_empty() { json!({"type": t}) } else { json!({"type": t, "format": format}) }
    };
    let to = |name: &str| reference(form, name);
    match shape {
        Shape::Scalar(scalar) => match scalar {
            Scalar::String => plain("string", ""),
            Scalar::Bool => plain("boolean", ""),
            Scalar::Int32 => plain("integer", "int32"),
            Scalar::Int64 => plain("integer", "int64"),
            Scalar::Float64 => plain("number", "double"),
            Scalar::Bytes => plain("string", "byte"),
            Scalar::Quantity => to(QUANTITY),
            Scalar::IntOrString => to(INT_OR_STRING),
            Scalar::Time => to(&format!("{META}.Time")),
            Scalar::MicroTime => to(&format!("{META}.MicroTime")),
            Scalar::Duration => to(&format!("{META}.Duration")),
        },
        Shape::Raw => {
            let name = go_name();
            match name.rsplit('.').next().unwrap_or_default() {
                "FieldsV1" => to(&format!("{META}.FieldsV1")),
                "JSON" => to(&format!("{EXTENSIONS}.JSON")),
                _ => to(RAW),
            }
        }
        Shape::Struct(t) => to(&name(t)),
        Shape::List(inner) => json!({"type": "array", "items": element(inner, form)}),
        Shape::Map(inner) => json!({"type": "object", "additionalProperties": element(inner, form)}),
        Shape::OrArray(_) => to(&format!("{EXTENSIONS}.JSONSchemaPropsOrArray")),
        Shape::OrBool(_) => to(&format!("{EXTENSIONS}.JSONSchemaPropsOrBool")),
        Shape::OrStrings(_) => to(&format!("{EXTENSIONS}.JSONSchemaPropsOrStringArray")),
    }
}
