//! Namespace: a space for names, which empties itself before it goes.

use api::types::core::v1 as core;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use serde_json::{Value, json};

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind, Selectable};
use crate::shape::{Shape, Subresource};

/// The label every namespace carries, with its name.
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Holds a namespace until its content is gone.
pub const FINALIZER: &str = "kubernetes";

pub struct Namespace;

impl Kind for Namespace {
    type Object = core::Namespace;
    const SHAPE: Shape = Shape::cluster("", "v1", "Namespace", "namespaces")
        .singular("namespace")
        .short(&["ns"])
        .verbs(&["create", "delete", "get", "list", "patch", "update", "watch"])
        .status_without_generation()
        .subresources(&[Subresource {
            name: "finalize",
            group: "",
            version: "",
            kind: "Namespace",
            verbs: &["update"],
        }]);
    const SELECTABLE: &'static [Selectable] = &[Selectable::at("status.phase", &["/status/phase"])];

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_label(name)
    }

    fn defaults(_ctx: &Ctx, namespace: &mut Self::Object) {
        label(namespace);
        let phase = &mut namespace.status.get_or_insert_default().phase;
        if phase.as_deref().unwrap_or_default().is_empty() {
            *phase = Some("Active".into());
        }
    }

    fn prepare_create(_ctx: &Ctx, namespace: &mut Self::Object) {
        // A generated name is known only now.
        label(namespace);
        namespace.status = Some(core::NamespaceStatus { phase: Some("Active".into()), ..Default::default() });
        let finalizers = namespace.spec.get_or_insert_default().finalizers.get_or_insert_default();
        if !finalizers.iter().any(|f| f == FINALIZER) {
            finalizers.push(FINALIZER.into());
        }
    }

    fn prepare_update(ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        match ctx.subresource {
            "" => new.spec.clone_from(&old.spec),
            "finalize" => new.status.clone_from(&old.status),
            _ => {}
        }
        label(new);
    }

    fn validate(_ctx: &Ctx, namespace: &Self::Object, errors: &mut FieldErrors) {
        let finalizers = namespace.spec.iter().flat_map(|spec| spec.finalizers.iter().flatten());
        for finalizer in finalizers {
            let path = Path::new("spec").child("finalizers");
            check::all(names::qualified_name(finalizer), &path, finalizer, errors);
            if !finalizer.contains('/') && finalizer != FINALIZER {
                let wrong = "name is neither a standard finalizer name nor is it fully qualified";
                errors.invalid(&path, finalizer.as_str(), wrong);
            }
        }
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        let phase = new.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
        let path = Path::new("status").child("Phase");
        match (new.metadata.deletion_timestamp.is_some(), phase) {
            (false, "Active") | (true, "Terminating") => {}
            (false, _) => errors.invalid(&path, phase, "may only be 'Active' if `deletionTimestamp` is empty"),
            (true, _) => errors.invalid(&path, phase, "may only be 'Terminating' if `deletionTimestamp` is not empty"),
        }
    }

    fn begin_deletion(namespace: &mut Value) {
        if let Some(namespace) = namespace.as_object_mut() {
            let status = namespace.entry("status").or_insert_with(|| json!({}));
            if let Some(status) = status.as_object_mut() {
                status.insert("phase".into(), "Terminating".into());
            }
        }
    }

    fn is_held(namespace: &Value) -> bool {
        namespace.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|list| !list.is_empty())
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[Column::NAME, Column::text("Status", "Whether it is in use or on its way out."), Column::AGE]
            },
            row: |namespace, now| {
                let phase = namespace.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
                let row = vec![cells::name(&namespace.metadata), phase.into(), cells::of(&namespace.metadata, now)];
                (row, Vec::new())
            },
        }
    }
}

fn label(namespace: &mut core::Namespace) {
    let Some(name) = namespace.metadata.name.clone().filter(|name| !name.is_empty()) else { return };
    namespace.metadata.labels.get_or_insert_default().insert(NAME_LABEL.into(), name);
}
