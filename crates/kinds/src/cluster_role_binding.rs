//! ClusterRoleBinding: gives a role everywhere.

use api::types::rbac::v1 as rbac;
use machinery::field::FieldErrors;
use machinery::names;

use crate::cells;
use crate::kind::{Columns, Ctx, Kind};
use crate::rbac as shared;
use crate::shape::Shape;

pub struct ClusterRoleBinding;

impl Kind for ClusterRoleBinding {
    type Object = rbac::ClusterRoleBinding;
    const SHAPE: Shape = Shape::cluster(shared::GROUP, "v1", "ClusterRoleBinding", "clusterrolebindings")
        .singular("clusterrolebinding")
        .create_on_update();

    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn defaults(_ctx: &Ctx, binding: &mut Self::Object) {
        shared::default_groups(&mut binding.role_ref, &mut binding.subjects);
    }

    fn validate(_ctx: &Ctx, binding: &Self::Object, errors: &mut FieldErrors) {
        shared::binding(&binding.role_ref, &["ClusterRole"], binding.subjects.as_ref(), false, errors);
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        shared::same_role(&new.role_ref, &old.role_ref, errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: shared::BINDING_COLUMNS,
            row: |binding, now| {
                let mut row = vec![
                    cells::name(&binding.metadata),
                    shared::role_cell(&binding.role_ref),
                    cells::of(&binding.metadata, now),
                ];
                row.extend(shared::subject_cells(binding.subjects.as_ref()));
                (row, Vec::new())
            },
        }
    }
}
