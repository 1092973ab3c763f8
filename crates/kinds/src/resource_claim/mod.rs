//! ResourceClaim: the wish for devices, and which were given.

mod status;

use api::types::resource::v1 as resource;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::devices as rules;
use crate::kind::{Column, Columns, Ctx, Kind, Verb};
use crate::shape::Shape;

pub struct ResourceClaim;

impl Kind for ResourceClaim {
    type Object = resource::ResourceClaim;
    const SHAPE: Shape = Shape::namespaced("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims")
        .singular("resourceclaim")
        .status_without_generation()
        .status_keeps(&["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"])
        .status_resets(&[&["metadata"], &["spec"]]);

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, claim: &mut Self::Object) {
        rules::default_claim(claim.spec.as_mut());
    }

    fn prepare_update(ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        if ctx.subresource == "status" {
            status::drop_deallocated(new, old);
        }
    }

    fn validate(ctx: &Ctx, claim: &Self::Object, errors: &mut FieldErrors) {
        if ctx.verb == Verb::Create {
            rules::claim(claim.spec.as_ref(), &Path::new("spec"), errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        check::immutable(&new.spec, &old.spec, &Path::new("spec"), errors);
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        status::change(new, old, errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("State", "Whether devices were given, and whether somebody may use them."),
                    Column::AGE,
                ]
            },
            row: |claim, now| {
                (vec![cells::name(&claim.metadata), state(claim).into(), cells::of(&claim.metadata, now)], Vec::new())
            },
        }
    }
}

fn state(claim: &resource::ResourceClaim) -> String {
    let (status, deleted) = (claim.status.as_ref(), claim.metadata.deletion_timestamp.is_some());
    let allocated = status.is_some_and(|status| status.allocation.is_some());
    let reserved = status.is_some_and(|status| status.reserved_for.as_ref().is_some_and(|users| !users.is_empty()));
    let states = [
        ("deleted", deleted),
        ("pending", !allocated && !deleted),
        ("allocated", allocated),
        ("reserved", allocated && reserved),
    ];
    states.iter().filter(|(_, holds)| *holds).map(|(state, _)| *state).collect::<Vec<_>>().join(",")
}
