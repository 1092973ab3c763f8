//! HorizontalPodAutoscaler in its older form: one metric, the CPU, and annotations for all others.

use api::types::autoscaling::{v1 as older, v2 as newer};
use machinery::field::{FieldErrors, Path};
use machinery::names;
use serde_json::Value;

use super::{COLUMNS, convert, row, validate};
use crate::check;
use crate::kind::{AnyKind, Columns, Ctx, Kind};
use crate::shape::Shape;
use crate::view;

pub struct HorizontalPodAutoscaler;

impl Kind for HorizontalPodAutoscaler {
    type Object = older::HorizontalPodAutoscaler;
    const SHAPE: Shape = Shape::namespaced("autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
        .also_in(&["autoscaling/v2"])
        .singular("horizontalpodautoscaler")
        .short(&["hpa"])
        .categories(&["all"])
        .status_without_generation();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, scaler: &mut Self::Object) {
        scaler.spec.min_replicas.get_or_insert(1);
    }

    fn prepare_create(_ctx: &Ctx, scaler: &mut Self::Object) {
        for part in [convert::CURRENT_METRICS, convert::CONDITIONS] {
            keep(part, scaler, None);
        }
    }

    /// Annotations that are parts of the status, or of the spec, go the way of these.
    fn prepare_update(ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        let kept = match ctx.subresource {
            "status" => [convert::METRICS, convert::BEHAVIOR],
            _ => [convert::CURRENT_METRICS, convert::CONDITIONS],
        };
        for part in kept {
            keep(part, new, Some(old));
        }
    }

    fn validate(ctx: &Ctx, scaler: &Self::Object, errors: &mut FieldErrors) {
        match stored(scaler) {
            Ok(scaler) => validate::object(ctx, &scaler, errors),
            Err(wrong) => errors.invalid(&Path::new("metadata").child("annotations"), Value::Null, wrong),
        }
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        match stored(new) {
            Ok(scaler) => validate::status(&scaler, errors),
            Err(wrong) => errors.invalid(&Path::new("metadata").child("annotations"), Value::Null, wrong),
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns { columns: COLUMNS, row: |scaler, now| row(&stored(scaler).unwrap_or_default(), now) }
    }

    fn stored_as() -> Option<&'static dyn AnyKind> {
        Some(&super::HorizontalPodAutoscaler)
    }

    fn to_stored(object: &mut Value) {
        convert::to_v2(object);
    }

    fn from_stored(object: &mut Value) {
        convert::to_v1(object);
    }
}

/// The stored form, or why the annotations cannot be read as what they stand for.
fn stored(scaler: &older::HorizontalPodAutoscaler) -> Result<newer::HorizontalPodAutoscaler, String> {
    let mut tree = check::value(scaler);
    convert::to_v2(&mut tree);
    view::read(&tree).map_err(|status| status.message)
}

/// Takes an annotation from the old object, which may not have it.
fn keep(key: &str, new: &mut older::HorizontalPodAutoscaler, old: Option<&older::HorizontalPodAutoscaler>) {
    let before = old.and_then(|old| old.metadata.annotations.as_ref()).and_then(|all| all.get(key));
    match before {
        Some(value) => {
            new.metadata.annotations.get_or_insert_default().insert(key.to_owned(), value.clone());
        }
        None => {
            if let Some(annotations) = &mut new.metadata.annotations {
                annotations.remove(key);
            }
        }
    }
}
