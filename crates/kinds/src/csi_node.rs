//! CSINode: which drivers of volumes a node has, and what they call it.

use std::collections::BTreeSet;

use api::types::storage::v1 as storage;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;
use crate::storage as rules;

const MAX_NODE_ID: usize = 256;

pub struct CSINode;

impl Kind for CSINode {
    type Object = storage::CSINode;
    const SHAPE: Shape =
        Shape::cluster("storage.k8s.io", "v1", "CSINode", "csinodes").singular("csinode").conditional_update();
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn validate(_ctx: &Ctx, node: &Self::Object, errors: &mut FieldErrors) {
        let mut seen = BTreeSet::new();
        for (i, driver) in node.spec.drivers.iter().enumerate() {
            let path = drivers().index(i);
            let (name, id) = (path.child("name"), path.child("nodeID"));
            rules::driver_name(&driver.name, &name, errors);
            if driver.node_id.is_empty() {
                errors.required(&id, "");
            }
            if driver.node_id.len() > MAX_NODE_ID {
                errors.invalid(&id, driver.node_id.as_str(), format!("must be {MAX_NODE_ID} characters or less"));
            }
            let count = driver.allocatable.as_ref().and_then(|allocatable| allocatable.count);
            check::not_negative(count, &path.child("allocatable").child("count"), errors);
            if !seen.insert(driver.name.as_str()) {
                errors.duplicate(&name, driver.name.as_str());
            }
            keys(driver.topology_keys.as_deref().unwrap_or_default(), &path, errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        // How many volumes a node can hold may change, the rest of a driver does not.
        let fixed = |driver: &storage::CSINodeDriver| storage::CSINodeDriver { allocatable: None, ..driver.clone() };
        for before in &old.spec.drivers {
            for after in new.spec.drivers.iter().filter(|after| after.name == before.name) {
                check::immutable(&fixed(after), &fixed(before), &drivers(), errors);
            }
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const { &[Column::NAME, Column::number("Drivers", "How many drivers it has."), Column::AGE] },
            row: |node, now| {
                let row =
                    vec![cells::name(&node.metadata), node.spec.drivers.len().into(), cells::of(&node.metadata, now)];
                (row, Vec::new())
            },
        }
    }
}

fn drivers() -> Path {
    Path::new("spec").child("drivers")
}

/// Labels that say where a node is; none twice.
fn keys(keys: &[String], path: &Path, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for key in keys {
        if key.is_empty() {
            errors.required(path, "");
        }
        if !seen.insert(key) {
            errors.duplicate(path, key.as_str());
        }
        check::all(names::qualified_name(key), path, key, errors);
    }
}
