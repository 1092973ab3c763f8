//! ClusterRole: what its holders may do anywhere.

use api::types::rbac::v1 as rbac;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::check;
use crate::kind::{Columns, Ctx, Kind};
use crate::rbac as shared;
use crate::shape::Shape;

pub struct ClusterRole;

impl Kind for ClusterRole {
    type Object = rbac::ClusterRole;
    const SHAPE: Shape =
        Shape::cluster(shared::GROUP, "v1", "ClusterRole", "clusterroles").singular("clusterrole").create_on_update();
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn validate(_ctx: &Ctx, role: &Self::Object, errors: &mut FieldErrors) {
        shared::rules(role.rules.as_deref().unwrap_or_default(), false, errors);
        let Some(aggregation) = &role.aggregation_rule else { return };
        let path = Path::new("aggregationRule").child("clusterRoleSelectors");
        let selectors = aggregation.cluster_role_selectors.as_deref().unwrap_or_default();
        if selectors.is_empty() {
            errors.required(&path, "at least one clusterRoleSelector required if aggregationRule is non-nil");
        }
        for (i, selector) in selectors.iter().enumerate() {
            check::selector(selector, &path.index(i), errors);
            check::is_readable(selector, "invalid label selector.", &path.index(i), errors);
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns::plain()
    }
}
