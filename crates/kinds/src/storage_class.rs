//! StorageClass: who makes the volumes of claims that name it, and how.

use std::collections::{BTreeMap, BTreeSet};

use api::types::core::v1::TopologySelectorTerm;
use api::types::storage::v1 as storage;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::old_labels;
use crate::shape::Shape;
use crate::storage as rules;

/// Annotations of the class that claims get which name none.
const DEFAULT_ANNOTATIONS: &[&str] =
    &["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

pub struct StorageClass;

impl Kind for StorageClass {
    type Object = storage::StorageClass;
    const SHAPE: Shape = Shape::cluster("storage.k8s.io", "v1", "StorageClass", "storageclasses")
        .singular("storageclass")
        .short(&["sc"]);

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, class: &mut Self::Object) {
        class.reclaim_policy.get_or_insert_with(|| "Delete".into());
        class.volume_binding_mode.get_or_insert_with(|| "Immediate".into());
    }

    fn validate(_ctx: &Ctx, class: &Self::Object, errors: &mut FieldErrors) {
        rules::provisioner(&class.provisioner, &Path::new("provisioner"), errors);
        rules::parameters(class.parameters.as_ref(), &Path::new("parameters"), errors);
        let policy = class.reclaim_policy.as_deref().filter(|policy| !policy.is_empty());
        check::one_of_or_absent(policy, &["Delete", "Retain"], &Path::new("reclaimPolicy"), errors);
        let path = Path::new("volumeBindingMode");
        let mode = class.volume_binding_mode.as_deref();
        check::one_of_or_absent(mode, &["Immediate", "WaitForFirstConsumer"], &path, errors);
        topologies(class.allowed_topologies.as_deref().unwrap_or_default(), errors);
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let filled = |class: &storage::StorageClass| class.parameters.clone().unwrap_or_default();
        check::immutable(&filled(new), &filled(old), &Path::new("parameters"), errors);
        check::immutable(&new.provisioner, &old.provisioner, &Path::new("provisioner"), errors);
        check::immutable(&new.reclaim_policy, &old.reclaim_policy, &Path::new("reclaimPolicy"), errors);
        check::immutable(&new.volume_binding_mode, &old.volume_binding_mode, &Path::new("volumeBindingMode"), errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let mut out = Vec::new();
        for (i, term) in new.allowed_topologies.iter().flatten().enumerate() {
            let path = Path::new("allowedTopologies").index(i).child("matchLabelExpressions");
            for (j, requirement) in term.match_label_expressions.iter().flatten().enumerate() {
                if let Some(advice) = old_labels::advice(&requirement.key) {
                    out.push(format!("{}: {} is {advice}", path.index(j).child("key"), requirement.key));
                }
            }
        }
        out
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Provisioner", "Who makes its volumes."),
                    Column::text("ReclaimPolicy", "What becomes of a volume when its claim is gone."),
                    Column::text("VolumeBindingMode", "When a volume is made and bound."),
                    Column::text("AllowVolumeExpansion", "Whether its volumes may grow."),
                    Column::AGE,
                ]
            },
            row: |class, now| {
                let annotations = class.metadata.annotations.as_ref();
                let chosen =
                    |key: &&&str| annotations.and_then(|all| all.get(**key)).is_some_and(|text| text == "true");
                let name = class.metadata.name.clone().unwrap_or_default();
                let mark = if DEFAULT_ANNOTATIONS.iter().any(|key| chosen(&key)) { " (default)" } else { "" };
                let row = vec![
                    format!("{name}{mark}").into(),
                    class.provisioner.clone().into(),
                    class.reclaim_policy.clone().unwrap_or_else(|| "Delete".into()).into(),
                    class.volume_binding_mode.clone().unwrap_or_else(|| "Immediate".into()).into(),
                    class.allow_volume_expansion.unwrap_or(false).into(),
                    cells::of(&class.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}

/// Each term names keys once with values, and no term says what another says.
fn topologies(terms: &[TopologySelectorTerm], errors: &mut FieldErrors) {
    let mut seen: Vec<BTreeMap<&str, BTreeSet<&str>>> = Vec::new();
    for (i, term) in terms.iter().enumerate() {
        let path = Path::new("allowedTopologies").index(i).child("matchLabelExpressions");
        let mut whole: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (i, requirement) in term.match_label_expressions.iter().flatten().enumerate() {
            let path = path.index(i);
            let values = path.child("values");
            if requirement.values.is_empty() {
                errors.required(&values, "");
            }
            let mut set = BTreeSet::new();
            for (i, value) in requirement.values.iter().enumerate() {
                if !set.insert(value.as_str()) {
                    errors.duplicate(&values.index(i), value.as_str());
                }
            }
            check::all(names::qualified_name(&requirement.key), &path.child("key"), &requirement.key, errors);
            if whole.insert(&requirement.key, set).is_some() {
                errors.duplicate(&path.child("key"), requirement.key.as_str());
            }
        }
        // A term that says nothing is like any other that says nothing.
        if whole.is_empty() || seen.contains(&whole) {
            errors.duplicate(&path, "");
        }
        seen.push(whole);
    }
}
