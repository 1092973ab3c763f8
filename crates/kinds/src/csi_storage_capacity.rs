//! CSIStorageCapacity: how much a driver can still give, for a class and some nodes.

use api::types::storage::v1 as storage;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::old_labels;
use crate::shape::Shape;
use crate::storage as rules;

pub struct CSIStorageCapacity;

impl Kind for CSIStorageCapacity {
    type Object = storage::CSIStorageCapacity;
    const SHAPE: Shape = Shape::namespaced("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities")
        .singular("csistoragecapacity")
        .conditional_update();
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn validate(_ctx: &Ctx, capacity: &Self::Object, errors: &mut FieldErrors) {
        if let Some(nodes) = &capacity.node_topology {
            check::selector(nodes, &Path::new("nodeTopology"), errors);
        }
        let class = capacity.storage_class_name.as_str();
        check::all(names::dns1123_subdomain(class), &Path::new("storageClassName"), class, errors);
        if let Some(amount) = &capacity.capacity {
            rules::not_negative(amount, &Path::new("capacity"), errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        check::immutable(&new.node_topology, &old.node_topology, &Path::new("nodeTopology"), errors);
        let path = Path::new("storageClassName");
        check::immutable(&new.storage_class_name, &old.storage_class_name, &path, errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let Some(nodes) = &new.node_topology else { return Vec::new() };
        let path = Path::new("nodeTopology");
        let mut out = Vec::new();
        for (i, expression) in nodes.match_expressions.iter().flatten().enumerate() {
            if let Some(advice) = old_labels::advice(&expression.key) {
                let path = path.child("matchExpressions").index(i).child("key");
                out.push(format!("{path}: {} is {advice}", expression.key));
            }
        }
        for key in nodes.match_labels.iter().flatten().map(|(key, _)| key) {
            if let Some(advice) = old_labels::advice(key) {
                out.push(format!("{}: {advice}", path.child("matchLabels").child(key)));
            }
        }
        out
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("StorageClassName", "The class it is about."),
                    Column::text("Capacity", "How much there is left."),
                ]
            },
            row: |capacity, _| {
                let left = capacity.capacity.as_ref().map_or("<unset>".to_owned(), |amount| amount.0.clone());
                let row =
                    vec![cells::name(&capacity.metadata), capacity.storage_class_name.clone().into(), left.into()];
                (row, Vec::new())
            },
        }
    }
}
