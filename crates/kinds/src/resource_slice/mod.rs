//! ResourceSlice: devices of one pool, as their driver offers them.

mod device;

use api::types::resource::v1 as resource;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::devices as rules;
use crate::kind::{Column, Columns, Ctx, Kind, Selectable, Verb};
use crate::pod::validate_scheduling;
use crate::shape::Shape;

const DEVICES: usize = 128;
/// When devices have taints, share counters or have attributes of several values.
const ADVANCED_DEVICES: usize = 64;
const COUNTER_SETS: usize = 8;
const ONE_PLACE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";

pub struct ResourceSlice;

impl Kind for ResourceSlice {
    type Object = resource::ResourceSlice;
    const SHAPE: Shape = Shape::cluster("resource.k8s.io", "v1", "ResourceSlice", "resourceslices")
        .singular("resourceslice")
        .generation()
        .indexed(&["spec.nodeName"]);
    const SELECTABLE: &'static [Selectable] =
        &[Selectable::at("spec.nodeName", &["/spec/nodeName"]), Selectable::at("spec.driver", &["/spec/driver"])];

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(ctx: &Ctx, slice: &mut Self::Object) {
        for device in slice.spec.devices.iter_mut().flatten() {
            device.taints.iter_mut().flatten().for_each(|taint| rules::default_taint(taint, ctx.now));
        }
    }

    fn prepare_create(_ctx: &Ctx, slice: &mut Self::Object) {
        drop_disabled(&mut slice.spec, None);
    }

    fn prepare_update(_ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        drop_disabled(&mut new.spec, Some(&old.spec));
    }

    fn validate(ctx: &Ctx, slice: &Self::Object, errors: &mut FieldErrors) {
        if ctx.verb == Verb::Create {
            spec(&slice.spec, None, errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        spec(&new.spec, Some(&old.spec), errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let driver = new.spec.driver.as_str();
        if driver == driver.to_lowercase() {
            return Vec::new();
        }
        let why = "driver names should be lowercase";
        vec![format!("spec.driver: {why}; {driver:?} contains uppercase characters")]
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Node", "The node the devices are on, when it is one."),
                    Column::text("Driver", "Who offers them."),
                    Column::text("Pool", "The pool they belong to."),
                    Column::AGE,
                ]
            },
            row: |slice, now| {
                let spec = &slice.spec;
                let row = vec![
                    cells::name(&slice.metadata),
                    spec.node_name.clone().unwrap_or_default().into(),
                    spec.driver.clone().into(),
                    spec.pool.name.clone().into(),
                    cells::of(&slice.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}

/// Fields of features that are off by default go, unless the stored object uses them.
fn drop_disabled(spec: &mut resource::ResourceSliceSpec, old: Option<&resource::ResourceSliceSpec>) {
    let in_use = |uses: fn(&resource::Device) -> bool| old.is_some_and(|old| old.devices.iter().flatten().any(uses));
    let (resources, lists) = (in_use(|device| device.node_allocatable_resources.is_some()), in_use(device::has_lists));
    for device in spec.devices.iter_mut().flatten() {
        if !resources {
            device.node_allocatable_resources = None;
        }
        for attribute in device.attributes.iter_mut().flat_map(|map| map.values_mut()).filter(|_| !lists) {
            (attribute.bools, attribute.ints, attribute.strings, attribute.versions) = (None, None, None, None);
        }
    }
    if old.is_none_or(|old| old.partition_type_attribute.is_none()) {
        spec.partition_type_attribute = None;
    }
    if old.is_none_or(|old| old.skip_node_operations.is_none()) {
        spec.skip_node_operations = None;
    }
}

fn spec(spec: &resource::ResourceSliceSpec, old: Option<&resource::ResourceSliceSpec>, errors: &mut FieldErrors) {
    let path = Path::new("spec");
    rules::driver(&spec.driver, &path.child("driver"), errors);
    let pool = path.child("pool");
    rules::pool(&spec.pool.name, &pool.child("name"), errors);
    if spec.pool.resource_slice_count <= 0 {
        let count = spec.pool.resource_slice_count;
        errors.invalid(&pool.child("resourceSliceCount"), count, "must be greater than zero");
    }
    if spec.pool.generation < 0 {
        let wrong = "must be greater than or equal to zero";
        errors.invalid(&pool.child("generation"), spec.pool.generation, wrong);
    }
    if let Some(old) = old {
        check::immutable(&spec.pool.name, &old.pool.name, &pool.child("name"), errors);
        check::immutable(&spec.driver, &old.driver, &path.child("driver"), errors);
        check::immutable(&spec.node_name, &old.node_name, &path.child("nodeName"), errors);
    }
    place(spec, &path, errors);
    let devices = spec.devices.as_deref().unwrap_or_default();
    if spec.shared_counters.is_some() && spec.devices.is_some() {
        errors.invalid(&path, "", "only one of `sharedCounters` or `devices` is allowed");
    }
    let old_devices = old.and_then(|old| old.devices.as_deref()).unwrap_or_default();
    let selected = spec.per_device_node_selection.unwrap_or(false);
    let max = if devices.iter().any(device::is_advanced) { ADVANCED_DEVICES } else { DEVICES };
    let check_device = |device: &resource::Device, path: &Path, errors: &mut FieldErrors| {
        let old = old_devices.iter().find(|old| old.name == device.name);
        device::validate(device, old, selected, path, errors);
    };
    rules::set(devices, max, &path.child("devices"), errors, check_device, |device| device.name.clone());
    let sets = spec.shared_counters.as_deref().unwrap_or_default();
    let check_set = |set: &resource::CounterSet, path: &Path, errors: &mut FieldErrors| {
        device::counters(&set.name, "name", &set.counters, path, errors);
    };
    rules::set(sets, COUNTER_SETS, &path.child("sharedCounters"), errors, check_set, |set| set.name.clone());
}

/// The slice says in one way where its devices are.
fn place(spec: &resource::ResourceSliceSpec, path: &Path, errors: &mut FieldErrors) {
    let mut ways = Vec::new();
    if let Some(name) = &spec.node_name {
        let path = path.child("nodeName");
        if name.is_empty() {
            errors.invalid(&path, "", "must be either unset or set to a non-empty string");
        } else {
            ways.push("`nodeName`");
            check::all(names::dns1123_subdomain(name), &path, name, errors);
        }
    }
    if let Some(selector) = &spec.node_selector {
        ways.push("`nodeSelector`");
        let path = path.child("nodeSelector");
        validate_scheduling::node_selector(selector, &path, errors);
        if selector.node_selector_terms.len() != 1 {
            let terms = check::value(&selector.node_selector_terms);
            errors.invalid(&path.child("nodeSelectorTerms"), terms, "must have exactly one node selector term");
        }
    }
    for (flag, field, way) in [
        (spec.all_nodes, "allNodes", "`allNodes`"),
        (spec.per_device_node_selection, "perDeviceNodeSelection", "`perDeviceNodeSelection`"),
    ] {
        match flag {
            None => {}
            Some(true) => ways.push(way),
            Some(false) => errors.invalid(&path.child(field), false, "must be either unset or set to true"),
        }
    }
    match ways.len() {
        0 => errors.required(path, ONE_PLACE),
        1 => {}
        _ => {
            let wrong = format!("{ONE_PLACE}, but multiple fields are set");
            errors.invalid(path, format!("{{{}}}", ways.join(", ")), wrong);
        }
    }
}
