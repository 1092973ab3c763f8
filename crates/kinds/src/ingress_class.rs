//! IngressClass: which controller serves the Ingresses that name it.

use api::types::networking::v1 as networking;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

const MAX_CONTROLLER: usize = 250;

pub struct IngressClass;

impl Kind for IngressClass {
    type Object = networking::IngressClass;
    const SHAPE: Shape = Shape::cluster("networking.k8s.io", "v1", "IngressClass", "ingressclasses")
        .singular("ingressclass")
        .generation();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, class: &mut Self::Object) {
        if let Some(parameters) = class.spec.as_mut().and_then(|spec| spec.parameters.as_mut()) {
            parameters.scope.get_or_insert_with(|| "Cluster".into());
        }
    }

    fn validate(_ctx: &Ctx, class: &Self::Object, errors: &mut FieldErrors) {
        let path = Path::new("spec");
        let controller = path.child("controller");
        match self::controller(class) {
            "" => errors.required(&controller, ""),
            text => {
                if text.len() > MAX_CONTROLLER {
                    errors.too_long(&controller, MAX_CONTROLLER);
                }
                for (part, wrong) in names::domain_prefixed_path(text) {
                    errors.invalid(&controller, part, wrong);
                }
            }
        }
        if let Some(parameters) = class.spec.as_ref().and_then(|spec| spec.parameters.as_ref()) {
            self::parameters(parameters, &path.child("parameters"), errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let path = Path::new("spec").child("controller");
        check::immutable(controller(new), controller(old), &path, errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Controller", "Who serves its Ingresses."),
                    Column::text("Parameters", "What the controller is to read further."),
                    Column::AGE,
                ]
            },
            row: |class, now| {
                let parameters = class.spec.as_ref().and_then(|spec| spec.parameters.as_ref());
                let text = parameters.map(|parameters| {
                    let group = parameters.api_group.as_ref().map(|group| format!(".{group}")).unwrap_or_default();
                    format!("{}{group}/{}", parameters.kind, parameters.name)
                });
                let row = vec![
                    cells::name(&class.metadata),
                    controller(class).into(),
                    cells::or_none(text.unwrap_or_default()),
                    cells::of(&class.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn controller(class: &networking::IngressClass) -> &str {
    class.spec.as_ref().and_then(|spec| spec.controller.as_deref()).unwrap_or_default()
}

/// A reference to an object of some kind: its group, kind and name.
pub fn reference(group: Option<&str>, kind: &str, name: &str, path: &Path, errors: &mut FieldErrors) {
    if let Some(group) = group {
        check::all(names::dns1123_subdomain(group), &path.child("apiGroup"), group, errors);
    }
    for (text, field) in [(kind, "kind"), (name, "name")] {
        match text {
            "" => errors.required(&path.child(field), ""),
            text => check::all(names::path_segment(text), &path.child(field), text, errors),
        }
    }
}

fn parameters(parameters: &networking::IngressClassParametersReference, path: &Path, errors: &mut FieldErrors) {
    reference(parameters.api_group.as_deref(), &parameters.kind, &parameters.name, path, errors);
    let namespace = path.child("namespace");
    match (parameters.scope.as_deref(), parameters.namespace.as_deref()) {
        (None, _) => errors.required(&path.child("scope"), ""),
        (Some("Namespace"), None) => errors.required(&namespace, "`parameters.scope` is set to 'Namespace'"),
        (Some("Namespace"), Some(text)) => check::all(names::dns1123_label(text), &namespace, text, errors),
        (Some("Cluster"), Some(_)) => errors.forbidden(&namespace, "`parameters.scope` is set to 'Cluster'"),
        (Some("Cluster"), None) => {}
        (Some(other), _) => errors.not_supported(&path.child("scope"), other, &["Cluster", "Namespace"]),
    }
}
