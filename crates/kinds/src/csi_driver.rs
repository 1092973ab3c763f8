//! CSIDriver: what a driver of volumes can do, and what it wants done for it.

use std::collections::BTreeSet;

use api::types::storage::v1 as storage;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

const GROUP_POLICIES: &[&str] = &["File", "None", "ReadWriteOnceWithFSType"];
const MODES: &[&str] = &["Persistent", "Ephemeral"];
/// The shortest and the longest life of a token, in seconds.
const TOKEN_SECONDS: std::ops::RangeInclusive<i64> = 600..=1 << 32;
/// How often a node may be asked at most what it can still hold, in seconds.
const MIN_UPDATE_PERIOD: i64 = 10;
const IN_SECRETS: &str = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";

pub struct CSIDriver;

impl Kind for CSIDriver {
    type Object = storage::CSIDriver;
    const SHAPE: Shape =
        Shape::cluster("storage.k8s.io", "v1", "CSIDriver", "csidrivers").singular("csidriver").conditional_update();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, driver: &mut Self::Object) {
        let spec = &mut driver.spec;
        spec.attach_required.get_or_insert(true);
        spec.pod_info_on_mount.get_or_insert(false);
        spec.storage_capacity.get_or_insert(false);
        spec.requires_republish.get_or_insert(false);
        spec.se_linux_mount.get_or_insert(false);
        spec.fs_group_policy.get_or_insert_with(|| "ReadWriteOnceWithFSType".into());
        if spec.volume_lifecycle_modes.as_ref().is_none_or(Vec::is_empty) {
            spec.volume_lifecycle_modes = Some(vec!["Persistent".into()]);
        }
    }

    fn prepare_create(_ctx: &Ctx, driver: &mut Self::Object) {
        // Nobody looks at it yet: nodes do not count their volumes.
        driver.spec.prevent_pod_scheduling_if_missing = None;
    }

    fn prepare_update(_ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        if old.spec.prevent_pod_scheduling_if_missing.is_none() {
            new.spec.prevent_pod_scheduling_if_missing = None;
        }
        // A new driver has no generation, a changed one has.
        if new.spec != old.spec {
            new.metadata.generation = Some(old.metadata.generation.unwrap_or(0) + 1);
        }
    }

    fn validate(_ctx: &Ctx, driver: &Self::Object, errors: &mut FieldErrors) {
        let spec = &driver.spec;
        let path = Path::new("spec");
        let policy = spec.fs_group_policy.as_deref();
        check::one_of_or_absent(policy, GROUP_POLICIES, &path.child("fsGroupPolicy"), errors);
        tokens(spec, &path.child("tokenRequests"), errors);
        let modes = path.child("volumeLifecycleModes");
        for mode in spec.volume_lifecycle_modes.iter().flatten() {
            check::one_of_or_absent(Some(mode), MODES, &modes, errors);
        }
        if let Some(seconds) = spec.node_allocatable_update_period_seconds.filter(|n| *n < MIN_UPDATE_PERIOD) {
            let path = path.child("nodeAllocatableUpdatePeriodSeconds");
            errors.invalid(&path, seconds, "must be greater than or equal to 10 seconds");
        }
        if spec.service_account_token_in_secrets.is_some() && spec.token_requests.as_ref().is_none_or(Vec::is_empty) {
            let path = path.child("serviceAccountTokenInSecrets");
            errors.invalid(&path, check::value(&spec.service_account_token_in_secrets), IN_SECRETS);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let path = Path::new("spec");
        let (new, old) = (&new.spec, &old.spec);
        check::immutable(&new.attach_required, &old.attach_required, &path.child("attachedRequired"), errors);
        let modes = path.child("volumeLifecycleModes");
        check::immutable(&new.volume_lifecycle_modes, &old.volume_lifecycle_modes, &modes, errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        let (spec, tokens) = (&new.spec, &new.spec.token_requests);
        let changed = old.is_none_or(|old| old.spec.token_requests != *tokens);
        let asks = tokens.as_ref().is_some_and(|tokens| !tokens.is_empty());
        let told = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to \
                    prevent possible logging of tokens in volume attributes";
        let warned = changed && asks && spec.service_account_token_in_secrets.is_none();
        warned.then(|| told.to_owned()).into_iter().collect()
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column {
                        kind: "boolean",
                        ..Column::text("AttachRequired", "Whether its volumes are attached before they are mounted.")
                    },
                    Column {
                        kind: "boolean",
                        ..Column::text("PodInfoOnMount", "Whether it is told which pod mounts a volume.")
                    },
                    Column {
                        kind: "boolean",
                        ..Column::text("StorageCapacity", "Whether it says how much there is left.")
                    },
                    Column::text("TokenRequests", "For whom it gets tokens of the pod's account."),
                    Column {
                        kind: "boolean",
                        ..Column::text("RequiresRepublish", "Whether volumes are published again and again.")
                    },
                    Column::text("Modes", "Which kinds of volumes it serves."),
                    Column::AGE,
                ]
            },
            row: |driver, now| {
                let spec = &driver.spec;
                let audiences = spec.token_requests.as_ref().map(|requests| {
                    requests.iter().map(|request| request.audience.as_str()).collect::<Vec<_>>().join(",")
                });
                let row = vec![
                    cells::name(&driver.metadata),
                    spec.attach_required.unwrap_or(true).into(),
                    spec.pod_info_on_mount.unwrap_or(false).into(),
                    spec.storage_capacity.unwrap_or(false).into(),
                    audiences.unwrap_or_else(|| "<unset>".into()).into(),
                    spec.requires_republish.unwrap_or(false).into(),
                    cells::or_none(spec.volume_lifecycle_modes.as_deref().unwrap_or_default().join(",")),
                    cells::of(&driver.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}

/// One token for each audience, of a sensible life.
fn tokens(spec: &storage::CSIDriverSpec, path: &Path, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, request) in spec.token_requests.iter().flatten().enumerate() {
        let path = path.index(i);
        if !seen.insert(request.audience.as_str()) {
            errors.duplicate(&path.child("audience"), request.audience.as_str());
            continue;
        }
        let Some(seconds) = request.expiration_seconds else { continue };
        let path = path.child("expirationSeconds");
        if seconds < *TOKEN_SECONDS.start() {
            errors.invalid(&path, seconds, "may not specify a duration less than 10 minutes");
        }
        if seconds > *TOKEN_SECONDS.end() {
            errors.invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds");
        }
    }
}
