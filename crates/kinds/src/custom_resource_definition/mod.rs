//! CustomResourceDefinition: a kind that a client brings.
//!
//! Its schemas are checked here, so that every stored one can be compiled; serving the kind it defines
//! is the API server's work.

mod conversion;
mod defaults;
mod open_api;
mod ratchet;
mod validate;
mod view;
mod warnings;

use machinery::field::{FieldErrors, Path};
use machinery::{meta, names};
use serde_json::{Value, json};

pub use view::{
    Condition, Conversion, Definition, Names, PrinterColumn, Scale, Schema, SelectableField, Spec, Status,
    Subresources, Version, WebhookConversion,
};

use ratchet::Kept;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

pub struct CustomResourceDefinition;

/// The condition of a definition whose kind is served.
pub const ESTABLISHED: &str = "Established";
/// The condition of a definition whose names nobody else has.
pub const NAMES_ACCEPTED: &str = "NamesAccepted";
/// The condition of a definition whose instances are being deleted.
pub const TERMINATING: &str = "Terminating";
/// The condition of a definition with a schema that is not structural.
pub const NON_STRUCTURAL_SCHEMA: &str = "NonStructuralSchema";
/// The condition of a definition in a group of the community's.
pub const APPROVAL: &str = "KubernetesAPIApprovalPolicyConformant";
/// Holds a definition until its instances are gone.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

impl Kind for CustomResourceDefinition {
    type Object = Definition;
    const SHAPE: Shape =
        Shape::cluster("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
            .singular("customresourcedefinition")
            .short(&["crd", "crds"])
            .categories(&["api-extensions"])
            .prefix("apiextensions.k8s.io/customresourcedefinitions")
            .status()
            .conditional_update();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, definition: &mut Self::Object) {
        let spec = &mut definition.spec;
        if spec.names.singular.is_empty() {
            spec.names.singular = spec.names.kind.to_lowercase();
        }
        if spec.names.list_kind.is_empty() && !spec.names.kind.is_empty() {
            spec.names.list_kind = format!("{}List", spec.names.kind);
        }
        let conversion = spec.conversion.get_or_insert_with(|| Conversion { strategy: "None".into(), webhook: None });
        let client = conversion.webhook.as_mut().and_then(|webhook| webhook.client_config.as_mut());
        if let Some(service) = client.and_then(|client| client.service.as_mut()) {
            service.port.get_or_insert(443);
        }
        let storage = definition.storage_version().map(|version| version.name.clone());
        if let (Some(status), Some(storage)) = (&mut definition.status, storage)
            && status.stored_versions.is_empty()
        {
            status.stored_versions.push(storage);
        }
    }

    fn prepare_create(_ctx: &Ctx, definition: &mut Self::Object) {
        definition.status = Some(Status::default());
        remember_storage_version(definition);
    }

    fn prepare_update(ctx: &Ctx, new: &mut Self::Object, _old: &Self::Object) {
        if ctx.subresource.is_empty() {
            remember_storage_version(new);
        }
    }

    fn validate(_ctx: &Ctx, definition: &Self::Object, errors: &mut FieldErrors) {
        validate::definition(definition, &Kept::default(), errors);
    }

    const JUDGES_CHANGES: bool = true;

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        validate::definition(new, &Kept::of(new, old), errors);
        let path = Path::new("spec");
        let names = path.child("names");
        if old.is(ESTABLISHED) {
            check::immutable(&new.spec.scope, &old.spec.scope, &path.child("scope"), errors);
            check::immutable(&new.spec.names.kind, &old.spec.names.kind, &names.child("kind"), errors);
            conversion::bundle(new.spec.conversion.as_ref(), old.spec.conversion.as_ref(), &path, errors);
        }
        check::immutable(&new.spec.group, &old.spec.group, &path.child("group"), errors);
        check::immutable(&new.spec.names.plural, &old.spec.names.plural, &names.child("plural"), errors);
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        validate::status(new, errors);
    }

    /// One that is not being deleted yet is held by the objects it may have.
    fn is_held(definition: &Value) -> bool {
        !meta::is_deleting(definition)
    }

    fn begin_deletion(definition: &mut Value) {
        let mut finalizers: Vec<String> = meta::finalizers(definition).into_iter().map(str::to_owned).collect();
        if finalizers.iter().any(|finalizer| finalizer == CLEANUP_FINALIZER) {
            return;
        }
        finalizers.push(CLEANUP_FINALIZER.to_owned());
        meta::set_finalizers(definition, &finalizers.iter().map(String::as_str).collect::<Vec<_>>());
        let now = meta::deletion_timestamp(definition).map(machinery::time::rfc3339);
        let condition = json!({"type": TERMINATING, "status": "True", "lastTransitionTime": now,
            "reason": "InstanceDeletionPending",
            "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"});
        let Some(definition) = definition.as_object_mut() else { return };
        let status = definition.entry("status").or_insert_with(|| json!({}));
        match status.get_mut("conditions").and_then(Value::as_array_mut) {
            Some(conditions) => {
                conditions.retain(|condition| condition["type"] != TERMINATING);
                conditions.push(condition);
            }
            None => status["conditions"] = json!([condition]),
        }
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        let known = old.map(warnings::of).unwrap_or_default();
        let mut found = warnings::of(new);
        found.retain(|warning| !known.contains(warning));
        found
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Scope", "Whether its objects live in namespaces."),
                    Column::text("Versions", "The versions that are served."),
                    Column {
                        name: "Created At",
                        kind: "date",
                        format: "",
                        description: "When the object was created.",
                        priority: 0,
                    },
                    Column::text("Group", "The API group.").wide(),
                    Column::text("Kind", "The kind of its objects.").wide(),
                    Column::text("ShortNames", "Short names.").wide(),
                    Column {
                        name: "Established",
                        kind: "boolean",
                        format: "",
                        description: "Whether its objects are served.",
                        priority: 1,
                    },
                ]
            },
            row: |definition, _| {
                let spec = &definition.spec;
                let served = spec.versions.iter().filter(|version| version.served);
                let mut versions: Vec<String> = served
                    .map(|version| format!("{}{}", version.name, if version.storage { "(storage)" } else { "" }))
                    .collect();
                versions.sort_unstable();
                let created = definition.metadata.creation_timestamp.as_ref();
                let row = vec![
                    cells::name(&definition.metadata),
                    spec.scope.clone().into(),
                    versions.join(",").into(),
                    created.map_or(Value::Null, |at| machinery::time::rfc3339(at.0).into()),
                    spec.group.clone().into(),
                    spec.names.kind.clone().into(),
                    spec.names.short_names.join(",").into(),
                    definition.is(ESTABLISHED).into(),
                ];
                (row, Vec::new())
            },
        }
    }
}

/// What is stored once may be there until somebody says it is not.
fn remember_storage_version(definition: &mut Definition) {
    let Some(storage) = definition.storage_version().map(|version| version.name.clone()) else { return };
    let status = definition.status.get_or_insert_default();
    if !status.stored_versions.contains(&storage) {
        status.stored_versions.push(storage);
    }
}
