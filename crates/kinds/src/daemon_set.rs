//! DaemonSet: one pod on every node that fits.

use api::meta::util::intstr::IntOrString;
use api::types::apps::v1 as apps;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::pod;
use crate::replica_set::{CONTAINERS, IMAGES, SELECTOR};
use crate::shape::Shape;

const ROLL: &str = "RollingUpdate";
const ON_DELETE: &str = "OnDelete";
/// How often the template changed, as upstream keeps it: a field of older versions that lives on as an
/// annotation.
pub const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

pub struct DaemonSet;

impl Kind for DaemonSet {
    type Object = apps::DaemonSet;
    const SHAPE: Shape = Shape::namespaced("apps", "v1", "DaemonSet", "daemonsets")
        .singular("daemonset")
        .short(&["ds"])
        .categories(&["all"])
        .status();
    const REQUIRED: &'static [(&'static str, &'static str)] = &[("/spec/selector", "")];

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, set: &mut Self::Object) {
        let spec = &mut set.spec;
        let strategy = spec.update_strategy.get_or_insert_default();
        if strategy.type_.as_deref().unwrap_or_default().is_empty() {
            strategy.type_ = Some(ROLL.into());
        }
        if strategy.type_.as_deref() == Some(ROLL) {
            let rolling = strategy.rolling_update.get_or_insert_default();
            rolling.max_unavailable.get_or_insert(IntOrString::Int(1));
            rolling.max_surge.get_or_insert(IntOrString::Int(0));
        }
        spec.revision_history_limit.get_or_insert(10);
        pod::defaults::template(&mut spec.template);
    }

    fn prepare_create(_ctx: &Ctx, set: &mut Self::Object) {
        if let Ok(number) = template_generation(set) {
            number_template(set, number.max(1));
        }
    }

    fn prepare_update(_ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        let before = template_generation(old).unwrap_or(1).max(1);
        let changed = !same_template(new, old);
        number_template(new, if changed { before.saturating_add(1) } else { before });
    }

    fn validate(ctx: &Ctx, set: &Self::Object, errors: &mut FieldErrors) {
        let spec = &set.spec;
        if let Err(text) = template_generation(set) {
            let path = Path::new("metadata").child("annotations").key(TEMPLATE_GENERATION);
            errors.invalid(&path, text, "must be an integer");
        }
        let path = Path::new("spec");
        let selector = path.child("selector");
        check::selector(&spec.selector, &selector, errors);
        if check::is_empty_selector(&spec.selector) {
            errors.invalid(&selector, check::value(&spec.selector), "empty selector is invalid for daemonset");
        }
        pod::template::validate(ctx, &spec.template, &spec.selector, "DaemonSet", &path.child("template"), errors);
        check::not_negative(spec.min_ready_seconds, &path.child("minReadySeconds"), errors);
        strategy(spec, &path.child("updateStrategy"), errors);
        check::not_negative(spec.revision_history_limit, &path.child("revisionHistoryLimit"), errors);
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let (new, old) = (&new.spec, &old.spec);
        check::immutable(&new.selector, &old.selector, &Path::new("spec").child("selector"), errors);
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let Some(status) = &new.status else { return };
        let path = Path::new("status");
        for (number, name) in [
            (Some(status.current_number_scheduled), "currentNumberScheduled"),
            (Some(status.number_misscheduled), "numberMisscheduled"),
            (Some(status.desired_number_scheduled), "desiredNumberScheduled"),
            (Some(status.number_ready), "numberReady"),
        ] {
            check::not_negative(number, &path.child(name), errors);
        }
        check::not_negative(status.observed_generation, &path.child("observedGeneration"), errors);
        for (number, name) in [
            (status.updated_number_scheduled, "updatedNumberScheduled"),
            (status.number_available, "numberAvailable"),
            (status.number_unavailable, "numberUnavailable"),
            (status.collision_count, "collisionCount"),
        ] {
            check::not_negative(number, &path.child(name), errors);
        }
        let before = old.status.as_ref().and_then(|status| status.collision_count);
        check::not_decremented(status.collision_count, before, &path.child("collisionCount"), errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        let changed = old.is_none_or(|old| old.spec != new.spec);
        let template = changed.then(|| pod::template::warnings(&new.spec.template, &Path::new("spec.template")));
        template.unwrap_or_default()
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::number("Desired", "Nodes that should run its pod."),
                    Column::number("Current", "Nodes that run its pod and should."),
                    Column::number("Ready", "Nodes whose pod is ready."),
                    Column::number("Up-to-date", "Nodes whose pod is made from the present template."),
                    Column::number("Available", "Nodes whose pod has been ready for long enough."),
                    Column::text("Node Selector", "Which nodes it is for."),
                    Column::AGE,
                    CONTAINERS,
                    IMAGES,
                    SELECTOR,
                ]
            },
            row: |set, now| {
                let spec = &set.spec;
                let status = set.status.clone().unwrap_or_default();
                let template = spec.template.spec.as_ref();
                let row = vec![
                    cells::name(&set.metadata),
                    status.desired_number_scheduled.into(),
                    status.current_number_scheduled.into(),
                    status.number_ready.into(),
                    status.updated_number_scheduled.unwrap_or(0).into(),
                    status.number_available.unwrap_or(0).into(),
                    cells::labels(template.and_then(|pod| pod.node_selector.as_ref())),
                    cells::of(&set.metadata, now),
                    cells::container_names(template),
                    cells::container_images(template),
                    cells::selector(&spec.selector),
                ];
                (row, Vec::new())
            },
        }
    }
}

/// The number in the annotation, zero without one; its text when it is not a number.
fn template_generation(set: &apps::DaemonSet) -> Result<i64, &str> {
    match set.metadata.annotations.as_ref().and_then(|all| all.get(TEMPLATE_GENERATION)) {
        None => Ok(0),
        Some(text) => text.parse().map_err(|_| text.as_str()),
    }
}

/// Equal as they are written: an empty struct that is absent in one of them is no change.
fn same_template(new: &apps::DaemonSet, old: &apps::DaemonSet) -> bool {
    let written = |set: &apps::DaemonSet| {
        let schema = api::schema::find("core/v1", "PodTemplateSpec")?;
        Some(machinery::encode::json(&check::value(&set.spec.template), &schema))
    };
    new.spec.template == old.spec.template || written(new) == written(old)
}

fn number_template(set: &mut apps::DaemonSet, number: i64) {
    set.metadata.annotations.get_or_insert_default().insert(TEMPLATE_GENERATION.into(), number.to_string());
}

fn strategy(spec: &apps::DaemonSetSpec, path: &Path, errors: &mut FieldErrors) {
    let none = apps::DaemonSetUpdateStrategy::default();
    let strategy = spec.update_strategy.as_ref().unwrap_or(&none);
    let path = match strategy.type_.as_deref().unwrap_or_default() {
        ON_DELETE => return,
        ROLL => path.child("rollingUpdate"),
        _ => return errors.not_supported(path, check::value(strategy), &[ROLL, ON_DELETE]),
    };
    let Some(rolling) = &strategy.rolling_update else { return errors.required(&path, "") };
    let zero = IntOrString::Int(0);
    let unavailable = (rolling.max_unavailable.as_ref().unwrap_or(&zero), path.child("maxUnavailable"));
    let surge = (rolling.max_surge.as_ref().unwrap_or(&zero), path.child("maxSurge"));
    for (amount, path) in [&unavailable, &surge] {
        check::count_or_percent(amount, path, errors);
    }
    for (amount, path) in [&unavailable, &surge] {
        check::at_most_all(amount, path, errors);
    }
    // Either the old pod goes first or the new one comes first.
    match (check::is_zero(unavailable.0), check::is_zero(surge.0)) {
        (false, false) => {
            errors.invalid(&surge.1, check::value(surge.0), "may not be set when maxUnavailable is non-zero");
        }
        (true, true) => errors.required(&unavailable.1, "cannot be 0 when maxSurge is 0"),
        _ => {}
    }
}
