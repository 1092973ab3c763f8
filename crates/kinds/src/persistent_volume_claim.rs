//! PersistentVolumeClaim: the wish for a volume of some size, class and way of use.

use std::collections::BTreeMap;

use api::meta::api::resource::Quantity as Amount;
use api::types::core::v1 as core;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use machinery::quantity::Quantity;

use crate::cells;
use crate::check;
use crate::differences::differences;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::resources;
use crate::shape::Shape;
use crate::storage;

const PENDING: &str = "Pending";
const BOUND: &str = "Bound";
const IMMUTABLE: &str =
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
const RESIZING: &[&str] = &[
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

pub struct PersistentVolumeClaim;

impl Kind for PersistentVolumeClaim {
    type Object = core::PersistentVolumeClaim;
    const SHAPE: Shape = Shape::namespaced("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        .singular("persistentvolumeclaim")
        .short(&["pvc"])
        .status_without_generation();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, claim: &mut Self::Object) {
        let spec = claim.spec.get_or_insert_default();
        spec.volume_mode.get_or_insert_with(|| "Filesystem".into());
        if let Some(resources) = &mut spec.resources {
            resources::round(&mut resources.limits);
            resources::round(&mut resources.requests);
        }
        let status = claim.status.get_or_insert_default();
        if status.phase.as_deref().unwrap_or_default().is_empty() {
            status.phase = Some(PENDING.into());
        }
        resources::round(&mut status.capacity);
        resources::round(&mut status.allocated_resources);
    }

    fn prepare_create(_ctx: &Ctx, claim: &mut Self::Object) {
        claim.status.get_or_insert_default().phase = Some(PENDING.into());
        if let Some(spec) = &mut claim.spec {
            sources(spec, None);
        }
    }

    fn prepare_update(ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        if ctx.subresource != "status"
            && let Some(spec) = &mut new.spec
        {
            sources(spec, old.spec.as_ref());
        }
    }

    fn validate(_ctx: &Ctx, claim: &Self::Object, errors: &mut FieldErrors) {
        let none = Default::default();
        spec(claim.spec.as_ref().unwrap_or(&none), &Path::new("spec"), errors);
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let (new_spec, old_spec) = (new.spec.clone().unwrap_or_default(), old.spec.clone().unwrap_or_default());
        keep_what_was_taken(&old_spec, errors);
        change(new, old, &new_spec, &old_spec, errors);
        sizes(&new_spec, &old_spec, old, errors);
        check::immutable(&new_spec.volume_mode, &old_spec.volume_mode, &Path::new("volumeMode"), errors);
        let applied = old.status.as_ref().and_then(|status| status.current_volume_attributes_class_name.as_ref());
        let class = new_spec.volume_attributes_class_name.as_deref();
        if applied.is_some() && class != old_spec.volume_attributes_class_name.as_deref() {
            let to = match class {
                None => Some("nil"),
                Some("") => Some("empty string"),
                Some(_) => None,
            };
            if let Some(to) = to {
                let path = Path::new("spec").child("volumeAttributesClassName");
                let wrong =
                    format!("update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil");
                errors.forbidden(&path, wrong);
            }
        }
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        let Some(status) = &new.status else { return };
        let path = Path::new("status");
        for (name, amount) in status.capacity.iter().flatten() {
            storage::amount(amount, &path.child("capacity").key(name), errors);
        }
        let resizing = path.child("allocatedResourceStatus");
        for (name, state) in status.allocated_resource_statuses.iter().flatten() {
            resource_key(name, &resizing, errors);
            if !RESIZING.contains(&state.as_str()) {
                errors.not_supported(&resizing, name.as_str(), RESIZING);
            }
        }
        let allocated = path.child("allocatedResources");
        for (name, amount) in status.allocated_resources.iter().flatten() {
            if resource_key(name, &allocated, errors) {
                storage::amount(amount, &allocated.key(name), errors);
            }
        }
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let mut out = Vec::new();
        if new.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(storage::CLASS_ANNOTATION)) {
            let path = Path::new("metadata").child("annotations").key(storage::CLASS_ANNOTATION);
            out.push(format!("{path}: deprecated since v1.8; use \"storageClassName\" attribute instead"));
        }
        out.extend(new.spec.iter().flat_map(|spec| amount_warnings(spec, &Path::new("spec"))));
        out
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Status", "Whether it has a volume."),
                    Column::text("Volume", "The volume it has."),
                    Column::text("Capacity", "How large that is."),
                    Column::text("Access Modes", "How it can be mounted."),
                    Column::text("StorageClass", "The class it asks for."),
                    Column::text("VolumeAttributesClass", "The attributes it asks for."),
                    Column::AGE,
                    Column::text("VolumeMode", "Whether it is a file system or a device.").wide(),
                ]
            },
            row: |claim, now| {
                let spec = claim.spec.clone().unwrap_or_default();
                let status = claim.status.clone().unwrap_or_default();
                let going = claim.metadata.deletion_timestamp.is_some();
                let phase = if going { "Terminating".into() } else { status.phase.clone().unwrap_or_default() };
                let volume = spec.volume_name.clone().unwrap_or_default();
                let (capacity, modes) = match volume.is_empty() {
                    true => (String::new(), String::new()),
                    false => (
                        status.capacity.as_ref().and_then(|all| all.get("storage")).map_or("0".into(), |a| a.0.clone()),
                        storage::access_modes_cell(status.access_modes.as_deref()),
                    ),
                };
                let unset = || "<unset>".to_owned();
                let annotations = claim.metadata.annotations.as_ref();
                let row = vec![
                    cells::name(&claim.metadata),
                    phase.into(),
                    volume.into(),
                    capacity.into(),
                    modes.into(),
                    storage::class(annotations, spec.storage_class_name.as_deref()).into(),
                    spec.volume_attributes_class_name.clone().unwrap_or_else(unset).into(),
                    cells::of(&claim.metadata, now),
                    spec.volume_mode.clone().unwrap_or_else(unset).into(),
                ];
                (row, Vec::new())
            },
        }
    }
}

/// The two ways to say what a volume begins with say the same; what only the older one names, and is
/// neither claim nor snapshot, was never looked at and is dropped.
fn sources(spec: &mut core::PersistentVolumeClaimSpec, old: Option<&core::PersistentVolumeClaimSpec>) {
    let in_use = old.is_some_and(|old| old.data_source_ref.is_some());
    let crosses = |to: &core::TypedObjectReference| to.namespace.as_ref().is_some_and(|text| !text.is_empty());
    if !in_use && spec.data_source_ref.as_ref().is_some_and(crosses) {
        spec.data_source_ref = None;
    }
    let had_one = old.is_some_and(|old| old.data_source.is_some() || old.data_source_ref.is_some());
    if !had_one && spec.data_source_ref.is_none() {
        spec.data_source = spec.data_source.take().filter(|source| {
            let group = source.api_group.as_deref().unwrap_or_default();
            matches!(
                (source.kind.as_str(), group),
                ("PersistentVolumeClaim", "") | ("VolumeSnapshot", "snapshot.storage.k8s.io")
            )
        });
    }
    match (&spec.data_source, &spec.data_source_ref) {
        (Some(source), None) => {
            spec.data_source_ref = Some(core::TypedObjectReference {
                api_group: source.api_group.clone(),
                kind: source.kind.clone(),
                name: source.name.clone(),
                namespace: None,
            });
        }
        (None, Some(source)) if !crosses(source) => {
            spec.data_source = Some(core::TypedLocalObjectReference {
                api_group: source.api_group.clone(),
                kind: source.kind.clone(),
                name: source.name.clone(),
            });
        }
        _ => {}
    }
}

/// Amounts that are no whole number of bytes.
pub fn amount_warnings(spec: &core::PersistentVolumeClaimSpec, path: &Path) -> Vec<String> {
    let Some(wanted) = &spec.resources else { return Vec::new() };
    let mut out = Vec::new();
    for (field, list) in [("requests", &wanted.requests), ("limits", &wanted.limits)] {
        let Some(amount) = list.as_ref().and_then(|list| list.get("storage")) else { continue };
        if resources::parse(amount).is_some_and(|quantity| quantity.milli() % 1000 != 0) {
            let path = path.child("resources").child(field).key("storage");
            out.push(format!("{path}: fractional byte value {:?} is invalid, must be an integer", amount.0));
        }
    }
    out
}

/// The mistakes in what is wished for, in a claim or in a template of claims.
pub fn spec(spec: &core::PersistentVolumeClaimSpec, path: &Path, errors: &mut FieldErrors) {
    let modes = path.child("accessModes");
    storage::access_modes(spec.access_modes.as_deref(), "at least 1 access mode is required", &modes, errors);
    if let Some(selector) = &spec.selector {
        check::selector(selector, &path.child("selector"), errors);
    }
    let size = path.child("resources").key("storage");
    match storage_of(spec.resources.as_ref().and_then(|wanted| wanted.requests.as_ref())) {
        None => errors.required(&size, ""),
        Some(amount) => storage::positive(amount, &size, errors),
    }
    let class = |name: Option<&str>, field: &str, errors: &mut FieldErrors| {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            check::all(names::dns1123_subdomain(name), &path.child(field), name, errors);
        }
    };
    class(spec.storage_class_name.as_deref(), "storageClassName", errors);
    let mode = spec.volume_mode.as_deref();
    check::one_of_or_absent(mode, storage::VOLUME_MODES, &path.child("volumeMode"), errors);
    if let Some(from) = &spec.data_source {
        let group = from.api_group.as_deref();
        source(group, &from.kind, &from.name, &path.child("dataSource"), errors);
    }
    let mut crosses = false;
    if let Some(from) = &spec.data_source_ref {
        let path = path.child("dataSourceRef");
        source(from.api_group.as_deref(), &from.kind, &from.name, &path, errors);
        if let Some(namespace) = from.namespace.as_deref().filter(|namespace| !namespace.is_empty()) {
            crosses = true;
            check::all(names::dns1123_label(namespace), &path.child("namespace"), namespace, errors);
        }
    }
    if let (Some(a), Some(b)) = (&spec.data_source, &spec.data_source_ref) {
        let same = (&a.api_group, &a.kind, &a.name) == (&b.api_group, &b.kind, &b.name);
        let name = path.child("dataSource").to_string();
        if crosses {
            errors.invalid(path, name, "may not be specified when dataSourceRef.namespace is specified");
        } else if !same {
            errors.invalid(path, name, "must match dataSourceRef");
        }
    }
    class(spec.volume_attributes_class_name.as_deref(), "volumeAttributesClassName", errors);
}

fn source(group: Option<&str>, kind: &str, name: &str, path: &Path, errors: &mut FieldErrors) {
    for (text, field) in [(name, "name"), (kind, "kind")] {
        if text.is_empty() {
            errors.required(&path.child(field), "");
        }
    }
    match group.unwrap_or_default() {
        "" if kind != "PersistentVolumeClaim" => {
            errors.invalid(path, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup");
        }
        "" => {}
        group => check::all(names::dns1123_subdomain(group), &path.child("apiGroup"), group, errors),
    }
}

fn storage_of(list: Option<&BTreeMap<String, Amount>>) -> Option<&Amount> {
    list?.get("storage")
}

/// What an older server took may stay.
fn keep_what_was_taken(old: &core::PersistentVolumeClaimSpec, errors: &mut FieldErrors) {
    let path = Path::new("spec");
    let group = |source: Option<&Option<String>>| source.is_some_and(Option::is_some);
    if group(old.data_source.as_ref().map(|source| &source.api_group))
        || group(old.data_source_ref.as_ref().map(|source| &source.api_group))
    {
        let kept = ["dataSource", "dataSourceRef"].map(|field| path.child(field).child("apiGroup"));
        errors.0.retain(|error| !kept.contains(&error.path));
    }
    let mut before = FieldErrors::new();
    if let Some(selector) = &old.selector {
        check::selector(selector, &path.child("selector"), &mut before);
    }
    if !before.is_empty() {
        let values = |path: &str| path.starts_with("spec.selector.matchExpressions[") && path.contains("].values[");
        errors.0.retain(|error| !values(error.path.as_str()));
    }
}

/// Only the volume may be filled in, the class where there was none, and of a bound claim size and
/// attributes may be changed.
fn change(
    new: &core::PersistentVolumeClaim,
    old: &core::PersistentVolumeClaim,
    new_spec: &core::PersistentVolumeClaimSpec,
    old_spec: &core::PersistentVolumeClaimSpec,
    errors: &mut FieldErrors,
) {
    let (mut after, mut before) = (new_spec.clone(), old_spec.clone());
    if before.volume_name.as_deref().unwrap_or_default().is_empty() {
        before.volume_name.clone_from(&after.volume_name);
    }
    let annotation = |claim: &core::PersistentVolumeClaim| -> Option<String> {
        claim.metadata.annotations.as_ref()?.get(storage::CLASS_ANNOTATION).cloned()
    };
    let (newer, older) = (annotation(new), annotation(old));
    let moves = older.is_some()
        && before.storage_class_name.is_none()
        && after.storage_class_name == older
        && (newer.is_none() || newer == older);
    if moves {
        after.storage_class_name = None;
    } else {
        if newer != older {
            let path = Path::new("metadata").child("annotations").child(storage::CLASS_ANNOTATION);
            errors.invalid(&path, newer.clone().unwrap_or_default(), check::IMMUTABLE);
        }
        let fills = before.storage_class_name.is_none() && after.storage_class_name.is_some();
        if fills && (older.is_none() || after.storage_class_name == older) {
            after.storage_class_name = None;
        }
    }
    if new.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(BOUND) {
        let size = storage_of(before.resources.as_ref().and_then(|wanted| wanted.requests.as_ref())).cloned();
        if let Some(requests) = after.resources.as_mut().and_then(|wanted| wanted.requests.as_mut()) {
            requests.insert("storage".into(), size.unwrap_or_else(|| Amount("0".into())));
        }
        after.volume_attributes_class_name.clone_from(&before.volume_attributes_class_name);
    }
    let lines = differences(&check::value(&before), &check::value(&after));
    if !lines.is_empty() {
        errors.forbidden(&Path::new("spec"), format!("{IMMUTABLE}\n{}", lines.join("\n")));
    }
}

/// A claim may ask for less again, as long as that is more than it has.
fn sizes(
    new: &core::PersistentVolumeClaimSpec,
    old: &core::PersistentVolumeClaimSpec,
    claim: &core::PersistentVolumeClaim,
    errors: &mut FieldErrors,
) {
    let size =
        |list: Option<&BTreeMap<String, Amount>>| storage_of(list).and_then(resources::parse).unwrap_or(Quantity::ZERO);
    let wanted = |spec: &core::PersistentVolumeClaimSpec| {
        size(spec.resources.as_ref().and_then(|wanted| wanted.requests.as_ref()))
    };
    let has = size(claim.status.as_ref().and_then(|status| status.capacity.as_ref()));
    if wanted(new) < wanted(old) && wanted(new) <= has {
        let path = Path::new("spec").child("resources").child("requests").child("storage");
        errors.forbidden(&path, "field can not be less than status.capacity");
    }
}

/// The name of a resource a claim has: storage, or one with a domain. False when it is not one.
fn resource_key(name: &str, path: &Path, errors: &mut FieldErrors) -> bool {
    let wrong = names::qualified_name(name);
    if !wrong.is_empty() {
        check::all(wrong, path, name, errors);
        return false;
    }
    if resources::is_native(name) && name != "storage" {
        errors.not_supported(path, name, &["storage"]);
        return false;
    }
    true
}
