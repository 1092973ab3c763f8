//! LimitRange: what pods, containers and claims of a namespace ask for when they do not say, and the
//! least and the most they may ask for.

use std::collections::{BTreeMap, BTreeSet};

use api::types::core::v1 as core;
use api::types::core::v1::LimitRangeItem;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use machinery::quantity::{Format, Quantity};

use crate::check;
use crate::kind::{Columns, Ctx, Kind};
use crate::resources::{self, List};
use crate::shape::Shape;

const TYPES: &[&str] = &["Pod", "Container", "PersistentVolumeClaim"];
/// Beyond this thousandths are not counted.
const MAX_MILLI: i128 = (i64::MAX / 1000) as i128;

pub struct LimitRange;

impl Kind for LimitRange {
    type Object = core::LimitRange;
    const SHAPE: Shape = Shape::namespaced("", "v1", "LimitRange", "limitranges")
        .singular("limitrange")
        .short(&["limits"])
        .create_on_update()
        .names_the_nameless();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, range: &mut Self::Object) {
        for item in range.spec.iter_mut().flat_map(|spec| &mut spec.limits) {
            for list in [
                &mut item.max,
                &mut item.min,
                &mut item.default,
                &mut item.default_request,
                &mut item.max_limit_request_ratio,
            ] {
                resources::round(list);
            }
            if item.type_ != "Container" {
                continue;
            }
            // What may be at most is what is had when nobody says anything; and so on down.
            fill(&mut item.default, &item.max);
            fill(&mut item.default_request, &item.default);
            fill(&mut item.default_request, &item.min);
        }
    }

    fn validate(_ctx: &Ctx, range: &Self::Object, errors: &mut FieldErrors) {
        let limits = Path::new("spec").child("limits");
        let mut seen = BTreeSet::new();
        for (i, item) in range.spec.iter().flat_map(|spec| &spec.limits).enumerate() {
            let path = limits.index(i);
            type_name(&item.type_, &path.child("type"), errors);
            if !seen.insert(item.type_.as_str()) {
                errors.duplicate(&path.child("type"), item.type_.as_str());
            }
            names_of(item, &path, errors);
            amounts(item, &path, errors);
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns::plain()
    }
}

/// Gives `list` what only `from` has.
fn fill(list: &mut Option<List>, from: &Option<List>) {
    for (name, amount) in from.iter().flatten() {
        list.get_or_insert_default().entry(name.clone()).or_insert_with(|| amount.clone());
    }
}

fn type_name(name: &str, path: &Path, errors: &mut FieldErrors) {
    let wrong = names::qualified_name(name);
    if !wrong.is_empty() {
        check::all(wrong, path, name, errors);
    } else if !name.contains('/') && !TYPES.contains(&name) {
        errors.invalid(path, name, "must be a standard limit type or fully qualified");
    }
}

fn names_of(item: &LimitRangeItem, path: &Path, errors: &mut FieldErrors) {
    let of_pod = item.type_ == "Pod";
    let list = |field: &str, list: &Option<List>, errors: &mut FieldErrors| {
        for name in list.iter().flatten().map(|(name, _)| name) {
            let path = path.child(field).key(name);
            match item.type_.as_str() {
                "Pod" | "Container" => resources::container_name(name, &path, errors),
                _ => resources::name(name, &path, errors),
            }
        }
    };
    list("max", &item.max, errors);
    list("min", &item.min, errors);
    if !of_pod {
        list("default", &item.default, errors);
        list("defaultRequest", &item.default_request, errors);
    }
    for (field, given) in [("default", &item.default), ("defaultRequest", &item.default_request)] {
        if of_pod && given.as_ref().is_some_and(|list| !list.is_empty()) {
            errors.forbidden(&path.child(field), "may not be specified when `type` is 'Pod'");
        }
    }
    let bounds = |list: &Option<List>| list.as_ref().is_some_and(|list| list.contains_key("storage"));
    if item.type_ == "PersistentVolumeClaim" && !bounds(&item.min) && !bounds(&item.max) {
        let wrong = "either minimum or maximum storage value is required, but neither was provided";
        errors.required(&path.child("limits"), wrong);
    }
    list("maxLimitRequestRatio", &item.max_limit_request_ratio, errors);
}

fn amounts(item: &LimitRangeItem, path: &Path, errors: &mut FieldErrors) {
    let read = |list: &Option<List>| -> BTreeMap<String, Quantity> {
        list.iter().flatten().filter_map(|(name, amount)| Some((name.clone(), resources::parse(amount)?))).collect()
    };
    let (min, max, ratio) = (read(&item.min), read(&item.max), read(&item.max_limit_request_ratio));
    let of_pod = item.type_ == "Pod";
    let unless_pod = |list: &Option<List>| if of_pod { BTreeMap::new() } else { read(list) };
    let (default, request) = (unless_pod(&item.default), unless_pod(&item.default_request));
    let all: BTreeSet<&String> =
        [&min, &max, &ratio, &default, &request].into_iter().flat_map(BTreeMap::keys).collect();
    for name in all {
        let [min, max, ratio, default, request] = [&min, &max, &ratio, &default, &request].map(|list| list.get(name));
        let mut above =
            |lower: Option<&Quantity>, upper: Option<&Quantity>, field: &str, shown: bool, words: [&str; 2]| {
                let (Some(lower), Some(upper)) = (lower, upper) else { return };
                if lower > upper {
                    let wrong = format!("{} {lower} is greater than {} {upper}", words[0], words[1]);
                    let shown = if shown { upper } else { lower };
                    errors.invalid(&path.child(field).key(name), shown.to_string(), wrong);
                }
            };
        above(min, max, "min", false, ["min value", "max value"]);
        above(min, request, "defaultRequest", true, ["min value", "default request value"]);
        above(request, max, "defaultRequest", false, ["default request value", "max value"]);
        above(request, default, "defaultRequest", false, ["default request value", "default limit value"]);
        above(min, default, "default", false, ["min value", "default value"]);
        above(default, max, "default", true, ["default value", "max value"]);
        if let Some(ratio) = ratio {
            ratio_of(ratio, min.zip(max), &path.child("maxLimitRequestRatio").key(name), errors);
        }
        if let (true, Some(default), Some(request)) = (resources::is_exclusive(name), default, request) {
            if default != request {
                let wrong = format!("default value {default} must equal to defaultRequest value {request} in {name}");
                errors.invalid(&path.child("defaultRequest").key(name), request.to_string(), wrong);
            }
        }
    }
}

fn ratio_of(ratio: &Quantity, bounds: Option<(&Quantity, &Quantity)>, path: &Path, errors: &mut FieldErrors) {
    if *ratio < Quantity::from_value(1, Format::Decimal) {
        errors.invalid(path, ratio.to_string(), format!("ratio {ratio} is less than 1"));
    }
    let Some((min, max)) = bounds else { return };
    let fine = ratio.value() < MAX_MILLI && min.value() < MAX_MILLI && max.value() < MAX_MILLI;
    let (wanted, min, max) = if fine {
        (ratio.milli() as f64 / 1000.0, min.milli(), max.milli())
    } else {
        (ratio.value() as f64, min.value(), max.value())
    };
    let most = max as f64 / min as f64;
    if wanted > most {
        errors.invalid(path, ratio.to_string(), format!("ratio {ratio} is greater than max/min = {most:.6}"));
    }
}
