//! DeviceTaintRule: a taint that an administrator puts on devices, whatever their driver says.

use api::types::resource::v1 as resource;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::devices as rules;
use crate::kind::{Column, Columns, Ctx, Kind, Verb};
use crate::shape::Shape;

const CONDITIONS: usize = 8;

pub struct DeviceTaintRule;

impl Kind for DeviceTaintRule {
    type Object = resource::DeviceTaintRule;
    const SHAPE: Shape = Shape::cluster("resource.k8s.io", "v1", "DeviceTaintRule", "devicetaintrules")
        .singular("devicetaintrule")
        .status()
        .status_keeps(&["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"])
        .status_resets(&[&["metadata"], &["spec"]]);

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(ctx: &Ctx, rule: &mut Self::Object) {
        rules::default_taint(&mut rule.spec.taint, ctx.now);
    }

    fn prepare_update(ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        let (taint, before) = (&mut new.spec.taint, &old.spec.taint);
        if ctx.subresource.is_empty() && taint.effect != before.effect && taint.time_added == before.time_added {
            taint.time_added = None;
            rules::default_taint(taint, ctx.now);
        }
    }

    fn validate(ctx: &Ctx, rule: &Self::Object, errors: &mut FieldErrors) {
        if ctx.verb == Verb::Create {
            spec(&rule.spec, None, errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        spec(&new.spec, Some(&old.spec), errors);
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        let conditions = new.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let path = Path::new("status").child("conditions");
        check::conditions(conditions, &path, errors);
        if conditions.len() > CONDITIONS {
            errors.too_many(&path, conditions.len(), CONDITIONS);
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Key", "The key of the taint."),
                    Column::text("Value", "Its value."),
                    Column::text("Effect", "What it keeps away."),
                    Column::text("TimeAdded", "Time since it holds."),
                    Column::AGE,
                ]
            },
            row: |rule, now| {
                let taint = &rule.spec.taint;
                let added = taint.time_added.as_ref().map(|at| cells::since(Some(at.0), now));
                let row = vec![
                    cells::name(&rule.metadata),
                    taint.key.clone().into(),
                    taint.value.clone().unwrap_or_default().into(),
                    taint.effect.clone().into(),
                    added.unwrap_or_default().into(),
                    cells::of(&rule.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn spec(spec: &resource::DeviceTaintRuleSpec, old: Option<&resource::DeviceTaintRuleSpec>, errors: &mut FieldErrors) {
    let path = Path::new("spec");
    if let Some(selector) = &spec.device_selector {
        let path = path.child("deviceSelector");
        if let Some(driver) = &selector.driver {
            rules::driver(driver, &path.child("driver"), errors);
        }
        if let Some(pool) = &selector.pool {
            rules::pool(pool, &path.child("pool"), errors);
        }
        if let Some(device) = &selector.device {
            rules::label(device, &path.child("device"), errors);
        }
    }
    rules::taint(&spec.taint, old.map(|old| &old.taint), &path.child("taint"), errors);
}
