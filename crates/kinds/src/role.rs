//! Role: what its holders may do in one namespace.

use api::types::rbac::v1 as rbac;
use machinery::field::FieldErrors;
use machinery::names;

use crate::kind::{Columns, Ctx, Kind};
use crate::rbac as shared;
use crate::shape::Shape;

pub struct Role;

impl Kind for Role {
    type Object = rbac::Role;
    const SHAPE: Shape = Shape::namespaced(shared::GROUP, "v1", "Role", "roles").singular("role").create_on_update();
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn validate(_ctx: &Ctx, role: &Self::Object, errors: &mut FieldErrors) {
        shared::rules(role.rules.as_deref().unwrap_or_default(), true, errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns::plain()
    }
}
