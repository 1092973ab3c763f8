//! StorageVersionMigration: the wish that all objects of a resource be written anew, and how far that is.

use api::meta::apis::meta::v1::Condition;
use api::types::storagemigration::v1 as migration;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::admission_rules::joined;
use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

/// How a migration ends. What is true of them stays so.
const SUCCEEDED: &str = "Succeeded";
const FAILED: &str = "Failed";

pub struct StorageVersionMigration;

impl Kind for StorageVersionMigration {
    type Object = migration::StorageVersionMigration;
    const SHAPE: Shape =
        Shape::cluster("storagemigration.k8s.io", "v1", "StorageVersionMigration", "storageversionmigrations")
            .singular("storageversionmigration")
            .status_without_generation()
            .conditional_update()
            .status_keeps(&["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"])
            .status_resets(&[&["metadata"], &["spec"]]);
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn validate(_ctx: &Ctx, migration: &Self::Object, errors: &mut FieldErrors) {
        let none = migration::StorageVersionMigrationSpec::default();
        let wanted = &migration.spec.as_ref().unwrap_or(&none).resource;
        let path = Path::new("spec").child("resource");
        match wanted.resource.as_str() {
            "" => errors.required(&path.child("resource"), "resource is required to be set"),
            name => joined(names::dns1035_label(name), "", name, &path.child("resource"), errors),
        }
        if !wanted.group.is_empty() {
            joined(names::dns1123_subdomain(&wanted.group), "", &wanted.group, &path.child("group"), errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        check::immutable(&new.spec, &old.spec, &Path::new("spec"), errors);
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let none = migration::StorageVersionMigrationStatus::default();
        let (status, before) = (new.status.as_ref().unwrap_or(&none), old.status.as_ref().unwrap_or(&none));
        let path = Path::new("status");
        let version =
            |status: &migration::StorageVersionMigrationStatus| status.resource_version.clone().unwrap_or_default();
        let (at, now) = (path.child("resourceVersion"), version(status));
        if !now.is_empty() {
            let digits = now.bytes().all(|byte| byte.is_ascii_digit());
            if !digits || (now.starts_with('0') && now != "0") {
                errors.invalid(&at, now.as_str(), format!("resource version is not well formed: {now}"));
            }
        }
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let conditions_path = path.child("conditions");
        check::conditions(conditions, &conditions_path, errors);
        if !version(before).is_empty() && version(before) != now {
            errors.invalid(&at, now, check::IMMUTABLE);
        }
        let mut wrong = |detail: &str| errors.invalid(&conditions_path, check::value(&conditions), detail);
        if is_true(conditions, SUCCEEDED) && is_true(conditions, FAILED) {
            wrong("Both success and failed conditions cannot be true at the same time");
        }
        let before = before.conditions.as_deref().unwrap_or_default();
        for (type_, detail) in [
            (SUCCEEDED, "Success condition cannot be set to false once it is true"),
            (FAILED, "Failed condition cannot be set to false once it is true"),
        ] {
            if is_true(before, type_) && !is_true(conditions, type_) {
                wrong(detail);
            }
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Resource", "What is to be written anew."),
                    Column::text("Status", "Whether it runs, or how it ended."),
                ]
            },
            row: |migration, _| {
                let wanted = migration.spec.as_ref().map(|spec| &spec.resource);
                let resource = wanted.map_or_else(String::new, |wanted| match wanted.group.as_str() {
                    "" => wanted.resource.clone(),
                    group => format!("{}.{group}", wanted.resource),
                });
                let mut conditions = migration.status.iter().flat_map(|status| status.conditions.iter().flatten());
                let told = |condition: &&Condition| {
                    condition.status == "True" && matches!(condition.type_.as_str(), "Running" | SUCCEEDED | FAILED)
                };
                let state = conditions.rfind(told).map_or("Unknown", |condition| condition.type_.as_str());
                (vec![cells::name(&migration.metadata), resource.into(), state.into()], Vec::new())
            },
        }
    }
}

fn is_true(conditions: &[Condition], type_: &str) -> bool {
    conditions.iter().any(|condition| condition.type_ == type_ && condition.status == "True")
}
