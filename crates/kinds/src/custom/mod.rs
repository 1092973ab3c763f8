//! Custom resources: kinds that a CustomResourceDefinition brings, served like those of the program.
//!
//! ```text
//!  CustomResourceDefinition ──CustomKind::compile──► one kind a version
//!  the schema of a version  ──structural───────────► what is pruned, defaulted, validated
//! ```

mod columns;

use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use machinery::field::{ErrorType, FieldErrors, Path};
use machinery::jsonpath::JsonPath;
use machinery::schema::Type;
use machinery::status::{self, Status};
use machinery::structural::{self, Structural, open_api};
use machinery::{managed, meta, names, version};
use rules::crd::Rules;
use serde_json::{Value, json};

use self::columns::Columns;
use crate::custom_resource_definition::{Definition, Names, Scale, TERMINATING, Version};
use crate::kind::{AnyKind, Cell, Claim, Claims, Column, Ctx, Fields, Finished, OpenApi, RowConditions};
use crate::metadata;
use crate::shape::{self, AnyShape, Keep, ScalePaths, Scope};

/// What can be done with a custom resource, in the order that discovery shows.
const VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
/// The same while its definition is being deleted.
const ENDING_VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "watch"];

/// One version of a custom resource.
pub struct CustomKind {
    group: String,
    version: String,
    /// Both in one.
    api_version: String,
    names: Names,
    scope: Scope,
    /// Below `/registry/`.
    prefix: String,
    /// The other versions it is served in, with their group.
    also_in: Vec<String>,
    deprecation: String,
    /// Its definition is being deleted.
    ending: AtomicBool,
    has_status: bool,
    scale: Option<ScaleOf>,
    columns: Columns,
    selectable: Vec<Selectable>,
    structural: Structural,
    types: Type,
    /// In CEL.
    rules: Rules,
    /// A webhook converts from other versions: what is stored in one of them is not for this schema.
    has_webhook: bool,
    /// As it was written, for OpenAPI.
    schema: Box<str>,
}

/// Where the scale is, as the definition writes it and as pointers.
struct ScaleOf {
    written: Scale,
    spec_replicas: String,
    status_replicas: String,
    selector: String,
}

/// A field that objects can be selected by: what selectors call it, and where it is.
struct Selectable {
    field: String,
    path: JsonPath,
}

/// `.spec.replicas` → `/spec/replicas`.
fn pointer(path: &str) -> String {
    if path.is_empty() { String::new() } else { path.replace('.', "/") }
}

impl CustomKind {
    /// The kind of one version of a definition, under the names that are accepted.
    ///
    /// # Errors
    /// What is wrong with the schema.
    pub fn compile(definition: &Definition, version: &Version, names: &Names) -> Result<Self, String> {
        let spec = &definition.spec;
        let schema = version.open_api_v3_schema().cloned().unwrap_or_else(|| json!({"type": "object"}));
        let structural = Structural::compile(&schema).map_err(|errors| errors.to_string())?;
        let object_meta = api::schema::find("meta/v1", "ObjectMeta").ok_or_else(|| "no ObjectMeta".to_owned())?;
        let of = structural::Names { group: &spec.group, version: &version.name, kind: &names.kind };
        let types = structural.types(of, &object_meta).or_else(|_| {
            // Of a schema that no table holds, apply knows what it knows of any object.
            let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
            let anything = Structural::compile(&anything).map_err(|errors| errors.to_string())?;
            anything.types(of, &object_meta)
        })?;
        let others = spec.versions.iter().filter(|other| other.served && other.name != version.name);
        let scale = version.subresources.as_ref().and_then(|subresources| subresources.scale.clone());
        let scale = scale.map(|written| ScaleOf {
            spec_replicas: pointer(&written.spec_replicas_path),
            status_replicas: pointer(&written.status_replicas_path),
            selector: written.label_selector_path.as_deref().map(pointer).unwrap_or_default(),
            written,
        });
        let selectable = version.selectable_fields.iter().filter_map(|selectable| {
            let path = JsonPath::parse(&selectable.json_path).ok()?;
            Some(Selectable { field: selectable.json_path.trim_start_matches('.').to_owned(), path })
        });
        Ok(Self {
            group: spec.group.clone(),
            version: version.name.clone(),
            api_version: format!("{}/{}", spec.group, version.name),
            names: names.clone(),
            scope: if spec.scope == "Cluster" { Scope::Cluster } else { Scope::Namespaced },
            prefix: format!("{}/{}", spec.group, spec.names.plural),
            also_in: others.map(|other| format!("{}/{}", spec.group, other.name)).collect(),
            deprecation: deprecation(definition, version),
            ending: AtomicBool::new(definition.is(TERMINATING)),
            has_status: version.has_status(),
            scale,
            columns: Columns::new(&version.additional_printer_columns),
            selectable: selectable.collect(),
            has_webhook: spec.conversion.as_ref().is_some_and(|conversion| conversion.strategy == "Webhook"),
            types,
            rules: Rules::compile(&schema),
            schema: schema.to_string().into(),
            structural,
        })
    }
}

impl CustomKind {
    /// Every mistake in an object, or in its change.
    fn check(&self, ctx: &Ctx, new: &Value, old: Option<&Value>) -> Finished {
        let mut errors = FieldErrors::new();
        let shape = self.shape();
        let of = structural::Names { group: &self.group, version: &self.version, kind: &self.names.kind };
        Structural::validate_head(of, new, &mut errors);
        if !errors.is_empty() {
            return Finished { errors, warnings: Vec::new() };
        }
        match old {
            None => metadata::validate(&shape, names::dns1123_subdomain, new, &mut errors),
            Some(old) => metadata::validate_update(ctx, new, old, &mut errors),
        }
        let status_only = ctx.subresource == "status";
        if status_only {
            self.structural.validate_status(new, old, &mut errors);
        } else {
            self.structural.validate(new, old, &mut errors);
        }
        if let Some(scale) = &self.scale {
            scale.validate(status_only, new, &mut errors);
        }
        if !status_only {
            self.structural.validate_embedded(new, &metadata::validate_embedded, &mut errors);
        }
        self.structural.validate_lists(new, old, &mut errors);
        let mut warnings = Vec::new();
        if !self.rules.is_empty() {
            self.apply_rules(new, old, &mut errors, &mut warnings);
        }
        Finished { errors, warnings }
    }

    /// Rules look at an object that is what its schema says.
    fn apply_rules(&self, new: &Value, old: Option<&Value>, errors: &mut FieldErrors, warnings: &mut Vec<String>) {
        use ErrorType::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
        let blocks = |kind| matches!(kind, NotSupported | Required | TooLong | TooMany | TypeInvalid);
        if errors.0.iter().any(|error| blocks(error.kind)) {
            let why = "some validation rules were not checked because the object was invalid; correct the existing \
                       errors to complete validation";
            errors.invalid(&Path::new("<nil>"), Value::Null, why);
            return;
        }
        let mut budget = rules::crd::BUDGET;
        errors.extend(self.rules.validate(new, old, &Path::root(), &mut budget, warnings));
    }

    /// `v1`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// From now on its definition is being deleted. False when that was so before.
    pub fn begin_ending(&self) -> bool {
        !self.ending.swap(true, Ordering::Relaxed)
    }

    /// `stable.example.com/v1`.
    pub fn api_version(&self) -> &str {
        &self.api_version
    }
}

impl AnyKind for CustomKind {
    fn shape(&self) -> AnyShape<'_> {
        let (names, group, version) = (&self.names, self.group.as_str(), self.version.as_str());
        let is_ending = self.ending.load(Ordering::Relaxed);
        let shape = match self.scope {
            Scope::Namespaced => AnyShape::namespaced(group, version, &names.kind, &names.plural),
            Scope::Cluster => AnyShape::cluster(group, version, &names.kind, &names.plural),
        };
        AnyShape {
            singular: &names.singular,
            list_kind: &names.list_kind,
            short_names: shape::Names::Read(&names.short_names),
            categories: shape::Names::Read(&names.categories),
            keep: Keep::Durable,
            prefix: &self.prefix,
            verbs: if is_ending { ENDING_VERBS } else { VERBS },
            is_ending,
            has_status: self.has_status,
            scale: self.scale.as_ref().map(|scale| ScalePaths {
                spec_replicas: &scale.spec_replicas,
                status_replicas: &scale.status_replicas,
                selector: &scale.selector,
            }),
            has_generation: true,
            also_in: shape::Names::Read(&self.also_in),
            unconditional_update: false,
            deprecation: &self.deprecation,
            ..shape
        }
    }

    fn is_custom(&self) -> bool {
        true
    }

    fn openapi(&self, form: OpenApi, own: &open_api::Head, embedded: &open_api::Head) -> Value {
        let schema: Option<Value> = serde_json::from_str(&self.schema).ok();
        let form = match form {
            OpenApi::V2 => open_api::Form::V2,
            OpenApi::V3 => open_api::Form::V3,
        };
        open_api::publish(schema.as_ref(), form, own, embedded)
    }

    fn schema(&self) -> Type {
        self.types.clone()
    }

    fn round_trip(&self, _object: &mut Value) -> status::Result<()> {
        Ok(())
    }

    fn refresh(&self, object: &mut Value) -> status::Result<()> {
        if meta::api_version(object) != self.api_version {
            if self.has_webhook {
                return Ok(());
            }
            if let Some(fields) = object.as_object_mut() {
                fields.insert("apiVersion".to_owned(), self.api_version.as_str().into());
            }
        }
        self.structural.prune(object);
        self.structural.default(object)
    }

    fn defaults(&self, _ctx: &Ctx, object: &mut Value) -> status::Result<()> {
        self.refresh(object)
    }

    fn claims(&self, _ctx: &Ctx, _new: &mut Value, _old: Option<&Value>) -> status::Result<Claims> {
        Ok(Claims::default())
    }

    fn held(&self, _object: &Value) -> status::Result<Vec<Claim>> {
        Ok(Vec::new())
    }

    fn prepare_create(&self, _ctx: &Ctx, object: &mut Value) -> status::Result<()> {
        if self.has_status
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status");
        }
        meta::set_generation(object, 1);
        Ok(())
    }

    fn prepare_update(&self, ctx: &Ctx, new: &mut Value, old: &Value) -> status::Result<()> {
        if ctx.subresource == "status" {
            keep_all_but_status(new, old);
            return Ok(());
        }
        if self.has_status
            && let Some(fields) = new.as_object_mut()
        {
            match old.get("status") {
                Some(status) => drop(fields.insert("status".to_owned(), status.clone())),
                None => drop(fields.remove("status")),
            }
        }
        let before = meta::generation(old);
        meta::set_generation(new, if wish(new).eq(wish(old)) { before } else { before.saturating_add(1) });
        Ok(())
    }

    fn validate(&self, ctx: &Ctx, new: &Value, old: Option<&Value>) -> status::Result<FieldErrors> {
        Ok(self.check(ctx, new, old).errors)
    }

    fn warnings(&self, _ctx: &Ctx, _new: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    fn finish(&self, ctx: &Ctx, new: &mut Value, old: Option<&Value>) -> status::Result<Finished> {
        match old {
            None => self.prepare_create(ctx, new)?,
            Some(old) => self.prepare_update(ctx, new, old)?,
        }
        Ok(self.check(ctx, new, old))
    }

    fn fields(&self, object: &Value) -> Fields {
        let mut fields = Fields::new();
        fields.insert("metadata.name".into(), meta::name(object).into());
        if self.scope == Scope::Namespaced {
            fields.insert("metadata.namespace".into(), meta::namespace(object).into());
        }
        for selectable in &self.selectable {
            let value = match selectable.path.find(object).first() {
                Some(Value::String(text)) => text.clone(),
                None | Some(Value::Null) => String::new(),
                Some(other) => other.to_string(),
            };
            fields.insert(selectable.field.clone(), value);
        }
        fields
    }

    /// All of it: whether it has the form of the schema today is seen by no less.
    fn sketch(&self, json: &[u8]) -> serde_json::Result<Value> {
        managed::from_slice(json)
    }

    fn is_selectable(&self, field: &str) -> bool {
        field == "metadata.name"
            || field == "metadata.namespace"
            || self.selectable.iter().any(|selectable| selectable.field == field)
    }

    fn unknown_field(&self, field: &str) -> String {
        format!("field label not supported: {field}")
    }

    fn columns(&self) -> Vec<Column<'_>> {
        self.columns.columns()
    }

    fn row(&self, object: &Value, now: Timestamp) -> status::Result<(Vec<Cell>, RowConditions)> {
        Ok((self.columns.row(object, now), Vec::new()))
    }

    fn row_of_bytes(&self, object: &[u8], now: Timestamp) -> status::Result<(Vec<Cell>, RowConditions)> {
        let object: Value =
            machinery::managed::from_slice(object).map_err(|error| Status::bad_request(error.to_string()))?;
        self.row(&object, now)
    }

    fn stored_as(&self) -> Option<&'static dyn AnyKind> {
        None
    }

    fn stored_field(&self, field: &str) -> String {
        field.to_owned()
    }

    fn to_stored(&self, _object: &mut Value) {}

    fn from_stored(&self, _object: &mut Value) {}
}

/// What of an object counts for its generation: everything but its metadata.
fn wish(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten().filter(|(key, _)| *key != "metadata")
}

/// The old object with the status of the new one, and with who owns what as the new one says.
fn keep_all_but_status(new: &mut Value, old: &Value) {
    let take = |object: &mut Value, key: &str| object.as_object_mut().and_then(|fields| fields.remove(key));
    let status = take(new, "status");
    let managed = new.get_mut("metadata").and_then(|metadata| take(metadata, "managedFields"));
    *new = old.clone();
    let Some(fields) = new.as_object_mut() else { return };
    match status {
        Some(status) => drop(fields.insert("status".to_owned(), status)),
        None => drop(fields.remove("status")),
    }
    let metadata = meta::metadata_mut(new);
    match managed {
        Some(managed) => drop(metadata.insert("managedFields".to_owned(), managed)),
        None => drop(metadata.remove("managedFields")),
    }
}

impl ScaleOf {
    /// Replicas must be numbers that a Scale can tell, and the selector a text.
    fn validate(&self, status_only: bool, object: &Value, errors: &mut FieldErrors) {
        if !status_only {
            count(&self.written.spec_replicas_path, object.pointer(&self.spec_replicas), errors);
        }
        count(&self.written.status_replicas_path, object.pointer(&self.status_replicas), errors);
        let Some(path) = &self.written.label_selector_path else { return };
        if let Some(value) = object.pointer(&self.selector).filter(|value| !value.is_string()) {
            let why = format!("{path} accessor error: {} is of the type {}, expected string", print(value), go(value));
            errors.invalid(&Path::new(path.as_str()), "", why);
        }
    }
}

fn count(path: &str, value: Option<&Value>, errors: &mut FieldErrors) {
    let Some(value) = value else { return };
    let at = Path::new(path);
    match value.as_i64() {
        None => {
            let why = format!("{path} accessor error: {} is of the type {}, expected int64", print(value), go(value));
            errors.invalid(&at, 0, why);
        }
        Some(n) if n < 0 => errors.invalid(&at, n, "should be a non-negative integer"),
        Some(n) if n > i64::from(i32::MAX) => {
            errors.invalid(&at, n, format!("should be less than or equal to {}", i32::MAX));
        }
        Some(_) => {}
    }
}

/// A value and its type as Go prints them.
fn print(value: &Value) -> String {
    machinery::go::print(value)
}

fn go(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// What whoever uses the version is warned of; empty when it is not deprecated.
fn deprecation(definition: &Definition, version: &Version) -> String {
    if version.deprecated != Some(true) {
        return String::new();
    }
    if let Some(warning) = &version.deprecation_warning {
        return warning.clone();
    }
    let (group, kind) = (&definition.spec.group, &definition.spec.names.kind);
    let own = version::rank(&version.name);
    let better = definition.spec.versions.iter().filter(|v| v.served && v.deprecated != Some(true));
    let better = better.map(|v| (version::rank(&v.name), &v.name)).filter(|(rank, _)| *rank > own).max();
    let instead = better.map(|(_, name)| format!("; use {group}/{name} {kind}")).unwrap_or_default();
    format!("{group}/{} {kind} is deprecated{instead}", version.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deprecated_version_says_what_to_use_instead() {
        let definition = |versions: Value| -> Definition {
            let names = json!({"plural": "as", "kind": "A"});
            let spec = json!({"group": "b.c", "names": names, "versions": versions});
            serde_json::from_value(json!({"metadata": {"name": "as.b.c"}, "spec": spec})).expect("a definition")
        };
        for (versions, want) in [
            (json!([{"name": "v1", "served": true}]), ""),
            (json!([{"name": "v1", "deprecated": true, "deprecationWarning": "no"}]), "no"),
            (json!([{"name": "v1", "deprecated": true}]), "b.c/v1 A is deprecated"),
            (
                json!([{"name": "v1beta1", "deprecated": true}, {"name": "v1", "served": true}, {"name": "v2"}]),
                "b.c/v1beta1 A is deprecated; use b.c/v1 A",
            ),
            (
                json!([{"name": "v1", "deprecated": true}, {"name": "v1beta1", "served": true}]),
                "b.c/v1 A is deprecated",
            ),
        ] {
            let definition = definition(versions);
            assert_eq!(deprecation(&definition, &definition.spec.versions[0]), want);
        }
    }
}
