//! DeviceClass: devices that an administrator offers under one name.

use api::types::resource::v1 as resource;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::devices as rules;
use crate::kind::{Column, Columns, Ctx, Kind, Verb};
use crate::resources;
use crate::shape::Shape;

pub struct DeviceClass;

impl Kind for DeviceClass {
    type Object = resource::DeviceClass;
    const SHAPE: Shape =
        Shape::cluster("resource.k8s.io", "v1", "DeviceClass", "deviceclasses").singular("deviceclass").generation();
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn validate(ctx: &Ctx, class: &Self::Object, errors: &mut FieldErrors) {
        if ctx.verb == Verb::Create {
            spec(class, None, errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        spec(new, Some(old), errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const { &[Column::NAME, Column::AGE] },
            row: |class, now| (vec![cells::name(&class.metadata), cells::of(&class.metadata, now)], Vec::new()),
        }
    }
}

/// Everything wrong with a class; what is stored already is taken as it is.
fn spec(class: &resource::DeviceClass, old: Option<&resource::DeviceClass>, errors: &mut FieldErrors) {
    let Some(spec) = &class.spec else { return };
    let path = Path::new("spec");
    let before = old.and_then(|old| old.spec.as_ref());
    let stored = before.is_some_and(|old| old.config == spec.config);
    let chosen = before.is_some_and(|old| old.selectors == spec.selectors);
    rules::selectors(spec.selectors.as_ref(), chosen, &path.child("selectors"), errors);
    let configs = spec.config.as_deref().unwrap_or_default();
    rules::list(configs, rules::CONFIGS, &path.child("config"), errors, |config, path, errors| {
        rules::opaque(config.opaque.as_ref(), stored, path, errors);
    });
    if let Some(name) = spec.extended_resource_name.as_deref().filter(|name| !is_extended(name)) {
        errors.invalid(&path.child("extendedResourceName"), name, "must be a valid extended resource name");
    }
}

/// True for the names of resources that somebody else defines.
fn is_extended(name: &str) -> bool {
    !resources::is_native(name)
        && !name.contains("kubernetes.io/")
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}
