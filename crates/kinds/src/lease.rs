//! Lease: who holds something, and until when.

use api::types::coordination::v1 as coordination;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::{Keep, Shape};

pub struct Lease;

impl Kind for Lease {
    type Object = coordination::Lease;
    const SHAPE: Shape = Shape::namespaced("coordination.k8s.io", "v1", "Lease", "leases")
        .singular("lease")
        .keep(Keep::Relaxed)
        .create_on_update()
        .conditional_update();
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn prepare_create(_ctx: &Ctx, lease: &mut Self::Object) {
        if let Some(spec) = &mut lease.spec {
            spec.strategy = None;
            spec.preferred_holder = None;
        }
    }

    fn prepare_update(_ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        // Coordinated election is off; what a stored Lease has of it stays.
        let old = old.spec.as_ref();
        if let Some(spec) = &mut new.spec {
            if old.is_none_or(|old| old.strategy.is_none()) {
                spec.strategy = None;
            }
            if old.is_none_or(|old| old.preferred_holder.is_none()) {
                spec.preferred_holder = None;
            }
        }
    }

    fn validate(_ctx: &Ctx, lease: &Self::Object, errors: &mut FieldErrors) {
        let Some(spec) = &lease.spec else { return };
        let path = Path::new("spec");
        if let Some(seconds) = spec.lease_duration_seconds.filter(|seconds| *seconds <= 0) {
            errors.invalid(&path.child("leaseDurationSeconds"), seconds, "must be greater than 0");
        }
        check::not_negative(spec.lease_transitions, &path.child("leaseTransitions"), errors);
        if spec.holder_identity.as_deref() == Some("") && spec.strategy.is_some() {
            errors.required(&path.child("holderIdentity"), "");
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const { &[Column::NAME, Column::text("Holder", "Who holds it."), Column::AGE] },
            row: |lease, now| {
                let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default();
                (vec![cells::name(&lease.metadata), holder.into(), cells::of(&lease.metadata, now)], Vec::new())
            },
        }
    }
}
