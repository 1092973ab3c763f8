//! PersistentVolume: a piece of storage that a claim can have.

pub mod sources;

use api::meta::apis::meta::v1::Time;
use api::types::core::v1 as core;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::differences::differences;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::old_labels;
use crate::pod::validate_scheduling;
use crate::resources;
use crate::shape::Shape;
use crate::storage;

const PENDING: &str = "Pending";
const RECLAIM: &[&str] = &["Delete", "Recycle", "Retain"];
const MOUNT_OPTIONS_ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";
const INLINE: &str = "may not be specified in the context of inline volumes";

pub struct PersistentVolume;

impl Kind for PersistentVolume {
    type Object = core::PersistentVolume;
    const SHAPE: Shape = Shape::cluster("", "v1", "PersistentVolume", "persistentvolumes")
        .singular("persistentvolume")
        .short(&["pv"])
        .status_without_generation();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, volume: &mut Self::Object) {
        let status = volume.status.get_or_insert_default();
        if status.phase.as_deref().unwrap_or_default().is_empty() {
            status.phase = Some(PENDING.into());
        }
        let spec = volume.spec.get_or_insert_default();
        if spec.persistent_volume_reclaim_policy.as_deref().unwrap_or_default().is_empty() {
            spec.persistent_volume_reclaim_policy = Some("Retain".into());
        }
        defaults(spec);
    }

    fn prepare_create(ctx: &Ctx, volume: &mut Self::Object) {
        let status = volume.status.get_or_insert_default();
        status.phase = Some(PENDING.into());
        status.last_phase_transition_time = Some(Time(ctx.now));
    }

    fn prepare_update(ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        if ctx.subresource != "status" {
            return;
        }
        let before = old.status.clone().unwrap_or_default();
        let status = new.status.get_or_insert_default();
        let untouched = status.last_phase_transition_time == before.last_phase_transition_time;
        if status.phase == before.phase {
            if status.last_phase_transition_time.is_none() {
                status.last_phase_transition_time = before.last_phase_transition_time;
            }
        } else if status.last_phase_transition_time.is_none() || untouched {
            status.last_phase_transition_time = Some(Time(ctx.now));
        }
    }

    fn validate(_ctx: &Ctx, volume: &Self::Object, errors: &mut FieldErrors) {
        let none = Default::default();
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        spec(volume.spec.as_ref().unwrap_or(&none), name, false, &Path::new("spec"), errors);
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let (new, old) = (new.spec.clone().unwrap_or_default(), old.spec.clone().unwrap_or_default());
        let path = Path::new("spec");
        let (mut after, before) = (sources::only(&new), sources::only(&old));
        // How a volume is grown may be learned later.
        if let (Some(after), Some(before)) = (&mut after.csi, &before.csi)
            && before.controller_expand_secret_ref.is_none()
        {
            after.controller_expand_secret_ref = None;
        }
        let lines = differences(&check::value(&before), &check::value(&after));
        if !lines.is_empty() {
            let wrong = format!("spec.persistentvolumesource is immutable after creation\n{}", lines.join("\n"));
            errors.forbidden(&path.child("persistentvolumesource"), wrong);
        }
        check::immutable(&new.volume_mode, &old.volume_mode, &Path::new("volumeMode"), errors);
        if let Some(before) = &old.node_affinity
            && new.node_affinity.as_ref().is_none_or(|after| with_new_labels(before, after) != *after)
        {
            let wrong = "field is immutable, except for updating from beta label to GA";
            errors.invalid(&Path::new("nodeAffinity"), check::value(&new.node_affinity), wrong);
        }
        if old.volume_attributes_class_name.is_some() && new.volume_attributes_class_name.is_none() {
            let path = path.child("volumeAttributesClassName");
            errors.forbidden(&path, "update from non-nil value to nil is forbidden");
        }
        keep_what_was_taken(&old, errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let Some(spec) = &new.spec else { return Vec::new() };
        let mut out = Vec::new();
        let path = Path::new("spec");
        let terms = spec.node_affinity.iter().flat_map(|affinity| &affinity.required);
        for (i, term) in terms.flat_map(|selector| &selector.node_selector_terms).enumerate() {
            let path = path.child("nodeAffinity").child("required").child("nodeSelectorTerms").index(i);
            for (j, requirement) in term.match_expressions.iter().flatten().enumerate() {
                if let Some(advice) = old_labels::advice(&requirement.key) {
                    let path = path.child("matchExpressions").index(j).child("key");
                    out.push(format!("{path}: {} is {advice}", requirement.key));
                }
            }
        }
        for (annotation, since, field) in [
            (storage::CLASS_ANNOTATION, "v1.8", "storageClassName"),
            (MOUNT_OPTIONS_ANNOTATION, "v1.31", "mountOptions"),
        ] {
            if new.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(annotation)) {
                let path = Path::new("metadata").child("annotations").key(annotation);
                out.push(format!("{path}: deprecated since {since}; use \"{field}\" attribute instead"));
            }
        }
        if spec.persistent_volume_reclaim_policy.as_deref() == Some("Recycle") {
            let path = path.child("persistentVolumeReclaimPolicy");
            out.push(format!(
                "{path}: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic \
                 provisioning."
            ));
        }
        out.extend(sources::warnings(spec, &path));
        out
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Capacity", "How large it is."),
                    Column::text("Access Modes", "How it can be mounted."),
                    Column::text("Reclaim Policy", "What becomes of it when its claim is gone."),
                    Column::text("Status", "Whether a claim has it."),
                    Column::text("Claim", "The claim that has it."),
                    Column::text("StorageClass", "The class it is of."),
                    Column::text("VolumeAttributesClass", "The attributes it has."),
                    Column::text("Reason", "Why it is in that state."),
                    Column::AGE,
                    Column::text("VolumeMode", "Whether it is a file system or a device.").wide(),
                ]
            },
            row: |volume, now| {
                let spec = volume.spec.clone().unwrap_or_default();
                let status = volume.status.clone().unwrap_or_default();
                let going = volume.metadata.deletion_timestamp.is_some();
                let phase = if going { "Terminating".into() } else { status.phase.clone().unwrap_or_default() };
                let part = |text: &Option<String>| text.clone().unwrap_or_default();
                let claim = spec.claim_ref.as_ref().map(|to| format!("{}/{}", part(&to.namespace), part(&to.name)));
                let size = spec.capacity.as_ref().and_then(|all| all.get("storage"));
                let unset = || "<unset>".to_owned();
                let annotations = volume.metadata.annotations.as_ref();
                let row = vec![
                    cells::name(&volume.metadata),
                    size.map_or("0".to_owned(), |amount| amount.0.clone()).into(),
                    storage::access_modes_cell(spec.access_modes.as_deref()).into(),
                    part(&spec.persistent_volume_reclaim_policy).into(),
                    phase.into(),
                    claim.unwrap_or_default().into(),
                    storage::class(annotations, spec.storage_class_name.as_deref()).into(),
                    spec.volume_attributes_class_name.clone().unwrap_or_else(unset).into(),
                    part(&status.reason).into(),
                    cells::of(&volume.metadata, now),
                    spec.volume_mode.clone().unwrap_or_else(unset).into(),
                ];
                (row, Vec::new())
            },
        }
    }
}

/// Fills what a volume does not say, in a volume of its own or within an attachment.
pub fn defaults(spec: &mut core::PersistentVolumeSpec) {
    spec.volume_mode.get_or_insert_with(|| "Filesystem".into());
    resources::round(&mut spec.capacity);
    sources::defaults(spec);
}

/// The mistakes in what a volume is. `inline` is one that is written into an attachment: it has a
/// driver, and nothing that only a claim would ask for.
pub fn spec(spec: &core::PersistentVolumeSpec, name: &str, inline: bool, path: &Path, errors: &mut FieldErrors) {
    if inline {
        let filled = spec.capacity.as_ref().is_some_and(|capacity| !capacity.is_empty());
        for (given, field) in [(spec.claim_ref.is_some(), "claimRef"), (filled, "capacity")] {
            if given {
                errors.forbidden(&path.child(field), INLINE);
            }
        }
        if spec.csi.is_none() {
            errors.required(&path.child("csi"), "has to be specified in the context of inline volumes");
        }
    }
    storage::access_modes(spec.access_modes.as_deref(), "", &path.child("accessModes"), errors);
    if !inline {
        capacity(spec, &path.child("capacity"), errors);
    }
    let policy = spec.persistent_volume_reclaim_policy.as_deref().unwrap_or_default();
    let reclaim = path.child("persistentVolumeReclaimPolicy");
    match (policy, inline) {
        ("", _) | ("Retain", true) => {}
        (_, true) => errors.forbidden(&reclaim, "may only be Retain in the context of inline volumes"),
        (policy, false) => check::one_of(Some(policy), RECLAIM, &reclaim, errors),
    }
    if let Some(affinity) = &spec.node_affinity {
        let path = path.child("nodeAffinity");
        match &affinity.required {
            _ if inline => errors.forbidden(&path, INLINE),
            Some(selector) => validate_scheduling::node_selector(selector, &path.child("required"), errors),
            None => errors.required(&path.child("required"), "must specify required node constraints"),
        }
    }
    sources::validate(spec, name, path, errors);
    let whole = spec.host_path.as_ref().is_some_and(|host| sources::is_root(&host.path));
    if whole && policy == "Recycle" {
        errors.forbidden(&reclaim, "may not be 'recycle' for a hostPath mount of '/'");
    }
    if let Some(class) = spec.storage_class_name.as_deref().filter(|class| !class.is_empty()) {
        let path = path.child("storageClassName");
        match inline {
            true => errors.forbidden(&path, INLINE),
            false => check::all(names::dns1123_subdomain(class), &path, class, errors),
        }
    }
    let mode = path.child("volumeMode");
    match spec.volume_mode.as_deref() {
        None | Some("Filesystem") => {}
        Some(_) if inline => {
            errors
                .forbidden(&mode, "may not specify volumeMode other than Filesystem in the context of inline volumes");
        }
        other => check::one_of_or_absent(other, storage::VOLUME_MODES, &mode, errors),
    }
    if let Some(class) = spec.volume_attributes_class_name.as_deref().filter(|_| !inline) {
        let at = path.child("volumeAttributesClassName");
        match class {
            "" => errors.required(&at, "an empty string is disallowed"),
            class => check::all(names::dns1123_subdomain(class), &at, class, errors),
        }
        if spec.csi.is_none() {
            errors.required(&path.child("csi"), "has to be specified when using volumeAttributesClassName");
        }
    }
}

fn capacity(spec: &core::PersistentVolumeSpec, path: &Path, errors: &mut FieldErrors) {
    let capacity = spec.capacity.clone().unwrap_or_default();
    if capacity.is_empty() {
        errors.required(path, "");
    }
    if !capacity.contains_key("storage") || capacity.len() > 1 {
        errors.not_supported(path, check::value(&spec.capacity), &["storage"]);
    }
    for (name, amount) in &capacity {
        storage::amount(amount, &path.key(name), errors);
        storage::positive(amount, &path.key(name), errors);
    }
}

/// What was required of nodes, with the newer names of labels where they are used now.
fn with_new_labels(before: &core::VolumeNodeAffinity, after: &core::VolumeNodeAffinity) -> core::VolumeNodeAffinity {
    let mut out = before.clone();
    let terms = out.required.iter_mut().flat_map(|selector| &mut selector.node_selector_terms);
    let newer = after.required.iter().flat_map(|selector| &selector.node_selector_terms);
    for (term, newer) in terms.zip(newer) {
        let expressions = term.match_expressions.iter_mut().flatten();
        for (expression, newer) in expressions.zip(newer.match_expressions.iter().flatten()) {
            let renamed = old_labels::OLD_LABELS.iter().any(|(a, _, b)| *a == expression.key && *b == newer.key);
            if renamed {
                expression.key.clone_from(&newer.key);
            }
        }
    }
    out
}

/// Values of labels that an older server took may stay.
fn keep_what_was_taken(old: &core::PersistentVolumeSpec, errors: &mut FieldErrors) {
    let values = |path: &str| path.starts_with("spec.nodeAffinity.required.") && path.contains("].values[");
    let mut before = FieldErrors::new();
    spec(old, "", false, &Path::new("spec"), &mut before);
    if before.0.iter().any(|error| values(error.path.as_str())) {
        errors.0.retain(|error| !values(error.path.as_str()));
    }
}
