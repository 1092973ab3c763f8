//! Binding: the scheduler's word that a pod goes to a node. Answered, never stored.

use api::types::core::v1 as core;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::check;
use crate::kind::{Columns, Ctx, Kind};
use crate::shape::{Keep, Shape};

pub struct Binding;

impl Kind for Binding {
    type Object = core::Binding;
    const SHAPE: Shape =
        Shape::namespaced("", "v1", "Binding", "bindings").singular("binding").keep(Keep::Virtual).verbs(&["create"]);
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn validate(_ctx: &Ctx, binding: &Self::Object, errors: &mut FieldErrors) {
        let target = Path::new("target");
        let kind = binding.target.kind.as_deref().unwrap_or_default();
        if !matches!(kind, "" | "Node") {
            errors.not_supported(&target.child("kind"), kind, &["Node", "<empty>"]);
        }
        match binding.target.name.as_deref().unwrap_or_default() {
            "" => errors.required(&target.child("name"), ""),
            name => check::all(names::dns1123_subdomain(name), &target.child("name"), name, errors),
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns::plain()
    }
}
