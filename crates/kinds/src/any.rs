//! Every [`Kind`] is an [`AnyKind`]: the typed rules of its file, called on the JSON tree of the
//! write path, with what the [`Shape`] says done first on the tree itself.

use jiff::Timestamp;
use machinery::encode::alike;
use machinery::field::{FieldErrors, Path};
use machinery::schema;
use machinery::schema::Type;
use machinery::status::{self, Status};
use serde_json::{Map, Value};

use crate::kind::{AnyKind, Cell, Claim, Claims, Column, Ctx, Fields, Finished, Kind, RowConditions};
use crate::metadata;
use crate::shape::{AnyShape, Keep};
use crate::sketch;
use crate::view;

impl<K: Kind> AnyKind for K {
    fn shape(&self) -> AnyShape<'_> {
        K::SHAPE
    }

    fn schema(&self) -> schema::Type {
        let shape = self.shape();
        match api::schema::of(shape.group, shape.version, shape.kind) {
            Some(schema) => schema,
            // The walk over all kinds (tests/all.rs) proves that each is in the table.
            None => unreachable!("{} has no schema", shape.kind),
        }
    }

    fn round_trip(&self, object: &mut Value) -> status::Result<()> {
        view::edit(object, |_: &mut K::Object| ())
    }

    fn defaults(&self, ctx: &Ctx, object: &mut Value) -> status::Result<()> {
        if !K::HAS_DEFAULTS {
            return Ok(());
        }
        view::edit(object, |view: &mut K::Object| <K as Kind>::defaults(ctx, view))
    }

    fn claims(&self, ctx: &Ctx, new: &mut Value, old: Option<&Value>) -> status::Result<Claims> {
        if !K::CLAIMS {
            return Ok(Claims::default());
        }
        let old: Option<K::Object> = old.map(view::read).transpose()?;
        let mut errors = FieldErrors::new();
        let claims = view::edit(new, |new: &mut K::Object| <K as Kind>::claims(ctx, new, old.as_ref(), &mut errors))?;
        if errors.is_empty() {
            return Ok(claims);
        }
        let shape = self.shape();
        Err(Status::invalid(shape.group, shape.kind, text(new, "/metadata/name"), &errors))
    }

    fn held(&self, object: &Value) -> status::Result<Vec<Claim>> {
        if !K::CLAIMS {
            return Ok(Vec::new());
        }
        Ok(<K as Kind>::held(&view::read(object)?))
    }

    fn prepare_create(&self, ctx: &Ctx, object: &mut Value) -> status::Result<()> {
        prepare_create(&self.shape(), object);
        view::edit(object, |view: &mut K::Object| <K as Kind>::prepare_create(ctx, view))
    }

    fn prepare_update(&self, ctx: &Ctx, new: &mut Value, old: &Value) -> status::Result<()> {
        let old_view: K::Object = view::read(old)?;
        keep_from_old(&self.shape(), ctx.subresource, new, old);
        view::edit(new, |view: &mut K::Object| <K as Kind>::prepare_update(ctx, view, &old_view))?;
        move_generation(&self.shape(), &self.schema(), ctx.subresource, new, old);
        Ok(())
    }

    fn validate(&self, ctx: &Ctx, new: &Value, old: Option<&Value>) -> status::Result<FieldErrors> {
        let old_view: Option<K::Object> = old.map(view::read).transpose()?;
        Ok(validate::<K>(ctx, new, &view::read(new)?, old.zip(old_view.as_ref()), missing::<K>(new)))
    }

    fn warnings(&self, ctx: &Ctx, new: &Value, old: Option<&Value>) -> Vec<String> {
        let Ok(new) = view::read(new) else { return Vec::new() };
        let old: Option<K::Object> = old.and_then(|old| view::read(old).ok());
        <K as Kind>::warnings(ctx, &new, old.as_ref())
    }

    fn finish(&self, ctx: &Ctx, new: &mut Value, old: Option<&Value>) -> status::Result<Finished> {
        let shape = self.shape();
        let old_view: Option<K::Object> = old.map(view::read).transpose()?;
        match old {
            None => prepare_create(&shape, new),
            Some(old) => keep_from_old(&shape, ctx.subresource, new, old),
        }
        let missing = missing::<K>(new);
        let managed = take_managed_fields(new);
        let mut view: K::Object = view::read(new)?;
        let mut warnings = Vec::new();
        match &old_view {
            None => {
                warnings = <K as Kind>::early_warnings(ctx, &view);
                <K as Kind>::prepare_create(ctx, &mut view);
            }
            Some(old) => <K as Kind>::prepare_update(ctx, &mut view, old),
        }
        view::write(new, &view)?;
        if let Some(managed) = managed {
            put_managed_fields(new, managed);
        }
        if let Some(old) = old {
            move_generation(&shape, &self.schema(), ctx.subresource, new, old);
        }
        warnings.extend(match ctx.subresource {
            "status" => <K as Kind>::status_warnings(ctx, &view),
            other if is_main(other) => <K as Kind>::warnings(ctx, &view, old_view.as_ref()),
            _ => Vec::new(),
        });
        Ok(Finished { errors: validate::<K>(ctx, new, &view, old.zip(old_view.as_ref()), missing), warnings })
    }

    fn grace(&self, object: &Value, asked: Option<i64>) -> Option<i64> {
        <K as Kind>::grace(object, asked)
    }

    fn begin_deletion(&self, object: &mut Value) {
        <K as Kind>::begin_deletion(object);
    }

    fn is_held(&self, object: &Value) -> bool {
        <K as Kind>::is_held(object)
    }

    fn fields(&self, object: &Value) -> Fields {
        let mut fields = Fields::new();
        fields.insert("metadata.name".into(), text(object, "/metadata/name").into());
        if self.shape().is_namespaced() {
            fields.insert("metadata.namespace".into(), text(object, "/metadata/namespace").into());
        }
        for selectable in K::SELECTABLE {
            fields.insert(selectable.field.into(), selectable.read(object));
        }
        fields
    }

    fn sketch(&self, json: &[u8]) -> serde_json::Result<Value> {
        sketch::read(json, K::SELECTABLE.iter().flat_map(|selectable| selectable.pointers).copied())
    }

    fn is_selectable(&self, field: &str) -> bool {
        matches!(field, "metadata.name" | "metadata.namespace") || K::SELECTABLE.iter().any(|s| s.field == field)
    }

    fn unknown_field(&self, field: &str) -> String {
        <K as Kind>::unknown_field(field)
    }

    fn columns(&self) -> Vec<Column<'_>> {
        <K as Kind>::columns().columns.to_vec()
    }

    fn row(&self, object: &Value, now: Timestamp) -> status::Result<(Vec<Cell>, RowConditions)> {
        Ok((<K as Kind>::columns().row)(&view::read(object)?, now))
    }

    fn row_of_bytes(&self, object: &[u8], now: Timestamp) -> status::Result<(Vec<Cell>, RowConditions)> {
        Ok((<K as Kind>::columns().row)(&<K as Kind>::shown(object)?, now))
    }

    fn stored_as(&self) -> Option<&'static dyn AnyKind> {
        <K as Kind>::stored_as()
    }

    fn stored_field(&self, field: &str) -> String {
        <K as Kind>::stored_field(field)
    }

    fn to_stored(&self, object: &mut Value) {
        <K as Kind>::to_stored(object);
    }

    fn from_stored(&self, object: &mut Value) {
        <K as Kind>::from_stored(object);
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Required fields that the tree lacks. Asked before the view is written back, which fills them.
fn missing<K: Kind>(tree: &Value) -> Vec<(Path, &'static str)> {
    let absent = |pointer: &str| tree.pointer(pointer).is_none_or(Value::is_null);
    let path = |pointer: &str| Path::new(pointer.trim_start_matches('/').replace('/', "."));
    K::REQUIRED.iter().filter(|(p, _)| absent(p)).map(|(p, detail)| (path(p), *detail)).collect()
}

/// The mistakes in one object, or in its change from `old` (tree and view).
fn validate<K: Kind>(
    ctx: &Ctx,
    tree: &Value,
    view: &K::Object,
    old: Option<(&Value, &K::Object)>,
    missing: Vec<(Path, &'static str)>,
) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let shape = &K::SHAPE;
    if shape.keep != Keep::Virtual {
        match old {
            None => metadata::validate(shape, <K as Kind>::name_rule, tree, &mut errors),
            Some((old, _)) => metadata::validate_update(ctx, tree, old, &mut errors),
        }
        if shape.group != "apiextensions.k8s.io" {
            metadata::validate_plain_finalizers(tree, &mut errors);
        }
    }
    match old {
        Some((_, old)) if ctx.subresource == "status" => {
            <K as Kind>::validate_status(ctx, view, old, &mut errors);
            return errors;
        }
        Some((_, old)) if !is_main(ctx.subresource) => {
            <K as Kind>::validate_subresource(ctx, view, old, &mut errors);
            return errors;
        }
        _ => {}
    }
    for (path, detail) in &missing {
        errors.required(path, *detail);
    }
    let mut own = FieldErrors::new();
    if old.is_none() || !K::JUDGES_CHANGES {
        <K as Kind>::validate(ctx, view, &mut own);
    }
    if let Some((_, old)) = old {
        <K as Kind>::validate_update(ctx, view, old, &mut own);
    }
    own.0.retain(|error| !missing.iter().any(|(path, _)| *path == error.path));
    errors.extend(own);
    // The same mistake may be found on the way to the new object and in the change.
    let mut unique: Vec<machinery::field::FieldError> = Vec::with_capacity(errors.len());
    for error in errors.0 {
        if !unique.contains(&error) {
            unique.push(error);
        }
    }
    FieldErrors(unique)
}

/// A scale write is a write of the whole object by other means.
fn is_main(subresource: &str) -> bool {
    matches!(subresource, "" | "scale")
}

fn root(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    match object {
        Value::Object(map) => map,
        _ => unreachable!("just made an object"),
    }
}

fn metadata_of(object: &mut Value) -> &mut Map<String, Value> {
    let metadata = root(object).entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    root(metadata)
}

fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

fn put_managed_fields(object: &mut Value, managed: Value) {
    metadata_of(object).insert("managedFields".into(), managed);
}

fn prepare_create(shape: &AnyShape<'_>, object: &mut Value) {
    if shape.has_status && !shape.status_on_create {
        root(object).remove("status");
    }
    if shape.keep == Keep::Virtual {
        return;
    }
    let metadata = metadata_of(object);
    if shape.has_generation {
        metadata.insert("generation".into(), 1.into());
    } else {
        metadata.remove("generation");
    }
}

/// What the subresource (or its absence) may not write comes from the stored object.
fn keep_from_old(shape: &AnyShape<'_>, subresource: &str, new: &mut Value, old: &Value) {
    match subresource {
        "status" => {
            let kept = |key: &str| !matches!(key, "metadata" | "status" | "kind" | "apiVersion");
            let new = root(new);
            new.retain(|key, _| !kept(key));
            for (key, value) in old.as_object().into_iter().flatten().filter(|(key, _)| kept(key)) {
                new.insert(key.clone(), value.clone());
            }
        }
        _ if is_main(subresource) && shape.has_status => restore(root(new), "status", old.get("status")),
        _ => {}
    }
    let null = Value::Null;
    let old = old.get("metadata").unwrap_or(&null);
    let metadata = metadata_of(new);
    restore(metadata, "generation", old.get("generation"));
    if subresource == "status" {
        for field in shape.status_keeps {
            restore(metadata, field, old.get(field));
        }
    }
}

fn restore(map: &mut Map<String, Value>, key: &str, old: Option<&Value>) {
    match old {
        Some(old) => {
            if map.get(key) != Some(old) {
                map.insert(key.to_owned(), old.clone());
            }
        }
        None => {
            map.remove(key);
        }
    }
}

/// The generation grows when what the user wants changed.
fn move_generation(shape: &AnyShape<'_>, schema: &Type, subresource: &str, new: &mut Value, old: &Value) {
    if !shape.has_generation || !is_main(subresource) {
        return;
    }
    let counted = shape.metadata_counts.iter().any(|field| {
        let read = |object: &'_ Value| object.get("metadata").and_then(|metadata| metadata.get(field)).cloned();
        !same(&read(new).unwrap_or_default(), &read(old).unwrap_or_default())
    });
    let changed = counted || wish_differs(schema, new, old);
    if changed {
        let before = old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
        metadata_of(new).insert("generation".into(), before.saturating_add(1).into());
    }
}

/// True when anything but metadata and status differs in what is written of it.
fn wish_differs(schema: &Type, new: &Value, old: &Value) -> bool {
    let empty = Map::new();
    let (new, old) = (new.as_object().unwrap_or(&empty), old.as_object().unwrap_or(&empty));
    let counts = |key: &str| !matches!(key, "metadata" | "status" | "kind" | "apiVersion");
    let null = Value::Null;
    let keys = new.keys().chain(old.keys().filter(|key| !new.contains_key(*key))).filter(|key| counts(key));
    let (new, old) = (|key: &str| new.get(key), |key: &str| old.get(key));
    keys.into_iter().any(|key| {
        !same(new(key).unwrap_or(&null), old(key).unwrap_or(&null)) && !alike(key, new(key), old(key), schema)
    })
}

/// Equal in meaning: an absent list or map is an empty one; an absent struct is not an empty one,
/// but the tree cannot tell `{}` of a map from that of a struct, so `{}` counts as there.
fn same(a: &Value, b: &Value) -> bool {
    let nothing = |v: &Value| v.is_null() || v.as_array().is_some_and(Vec::is_empty);
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.iter().all(|(key, value)| same(value, b.get(key).unwrap_or(&Value::Null)))
                && b.iter().all(|(key, value)| a.contains_key(key) || nothing(value))
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        _ => a == b || (nothing(a) && nothing(b)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equality_is_of_meaning() {
        for (a, b, want) in [
            (json!({"a": []}), json!({}), true),
            (json!({"a": null, "b": 1}), json!({"b": 1}), true),
            (json!({"a": {}}), json!({}), false),
            (json!([1, 2]), json!([2, 1]), false),
        ] {
            assert_eq!(same(&a, &b), want, "{a} {b}");
            assert_eq!(same(&b, &a), want, "{b} {a}");
        }
    }
}
