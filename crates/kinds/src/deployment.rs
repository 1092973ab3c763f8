//! Deployment: pods from a template, replaced step by step when the template changes.

use api::meta::util::intstr::IntOrString;
use api::types::apps::v1 as apps;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::job;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::only::Part;
use crate::pod;
use crate::replica_set::{CONTAINERS, IMAGES, SCALE, SELECTOR};
use crate::shape::Shape;

const REPLACE: &str = "Recreate";
const ROLL: &str = "RollingUpdate";

pub struct Deployment;

impl Kind for Deployment {
    type Object = apps::Deployment;
    const SHAPE: Shape = Shape::namespaced("apps", "v1", "Deployment", "deployments")
        .singular("deployment")
        .short(&["deploy"])
        .categories(&["all"])
        .status()
        .metadata_counts(&["annotations"])
        .status_keeps(&["labels"])
        .status_resets(&[&["spec"], &["metadata", "labels"]])
        .scale(SCALE);
    const REQUIRED: &'static [(&'static str, &'static str)] = &[("/spec/selector", "")];

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, deployment: &mut Self::Object) {
        let spec = &mut deployment.spec;
        spec.replicas.get_or_insert(1);
        spec.revision_history_limit.get_or_insert(10);
        spec.progress_deadline_seconds.get_or_insert(600);
        let strategy = spec.strategy.get_or_insert_default();
        if strategy.type_.as_deref().unwrap_or_default().is_empty() {
            strategy.type_ = Some(ROLL.into());
        }
        if strategy.type_.as_deref() == Some(ROLL) {
            let rolling = strategy.rolling_update.get_or_insert_default();
            rolling.max_unavailable.get_or_insert_with(|| IntOrString::String("25%".into()));
            rolling.max_surge.get_or_insert_with(|| IntOrString::String("25%".into()));
        }
        pod::defaults::template(&mut spec.template);
    }

    fn validate(ctx: &Ctx, deployment: &Self::Object, errors: &mut FieldErrors) {
        let spec = &deployment.spec;
        let path = Path::new("spec");
        check::not_negative(spec.replicas, &path.child("replicas"), errors);
        let selector = path.child("selector");
        check::selector(&spec.selector, &selector, errors);
        if check::is_empty_selector(&spec.selector) {
            errors.invalid(&selector, check::value(&spec.selector), "empty selector is invalid for deployment");
        }
        if check::is_readable(&spec.selector, "invalid label selector", &selector, errors) {
            pod::template::validate(ctx, &spec.template, &spec.selector, "ReplicaSet", &path.child("template"), errors);
        }
        validate_strategy(spec, &path.child("strategy"), errors);
        check::not_negative(spec.min_ready_seconds, &path.child("minReadySeconds"), errors);
        check::not_negative(spec.revision_history_limit, &path.child("revisionHistoryLimit"), errors);
        let deadline = path.child("progressDeadlineSeconds");
        check::not_negative(spec.progress_deadline_seconds, &deadline, errors);
        if let Some(seconds) = spec.progress_deadline_seconds.filter(|s| *s <= spec.min_ready_seconds.unwrap_or(0)) {
            errors.invalid(&deadline, seconds, "must be greater than minReadySeconds");
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        check::immutable(&new.spec.selector, &old.spec.selector, &Path::new("spec").child("selector"), errors);
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let Some(status) = &new.status else { return };
        let path = Path::new("status");
        check::not_negative(status.observed_generation, &path.child("observedGeneration"), errors);
        for (number, name) in [
            (status.replicas, "replicas"),
            (status.updated_replicas, "updatedReplicas"),
            (status.ready_replicas, "readyReplicas"),
            (status.available_replicas, "availableReplicas"),
            (status.unavailable_replicas, "unavailableReplicas"),
            (status.terminating_replicas, "terminatingReplicas"),
            (status.collision_count, "collisionCount"),
        ] {
            check::not_negative(number, &path.child(name), errors);
        }
        let all = status.replicas.unwrap_or(0);
        let ready = status.ready_replicas.unwrap_or(0);
        for (number, name) in [
            (status.updated_replicas, "updatedReplicas"),
            (status.ready_replicas, "readyReplicas"),
            (status.available_replicas, "availableReplicas"),
        ] {
            if let Some(number) = number.filter(|n| *n > all) {
                errors.invalid(&path.child(name), number, "cannot be greater than status.replicas");
            }
        }
        if let Some(number) = status.available_replicas.filter(|n| *n > ready) {
            errors.invalid(&path.child("availableReplicas"), number, "cannot be greater than readyReplicas");
        }
        let count = |status: Option<&apps::DeploymentStatus>| status.and_then(|s| s.collision_count);
        match (count(new.status.as_ref()), count(old.status.as_ref())) {
            (None, Some(_)) => errors.invalid(
                &path.child("collisionCount"),
                serde_json::Value::Null,
                "collisionCount cannot be decremented",
            ),
            (Some(new), Some(old)) if new < old => {
                errors.invalid(&path.child("collisionCount"), new, "collisionCount cannot be decremented");
            }
            _ => {}
        }
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        let named = old.is_none().then(|| job::name_warning(&new.metadata)).flatten();
        let changed =
            old.is_none_or(|old| old.spec != new.spec || old.metadata.annotations != new.metadata.annotations);
        let template = changed.then(|| pod::template::warnings(&new.spec.template, &Path::new("spec.template")));
        named.into_iter().chain(template.unwrap_or_default()).collect()
    }

    const SHOWN: &'static [Part] = &[
        Part::METADATA,
        Part("spec", &[Part::whole("replicas"), Part::whole("selector"), Part::TEMPLATE]),
        Part(
            "status",
            &[Part::whole("readyReplicas"), Part::whole("updatedReplicas"), Part::whole("availableReplicas")],
        ),
    ];

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Ready", "Pods that are ready, of those wanted."),
                    Column::text("Up-to-date", "Pods made from the present template."),
                    Column::text("Available", "Pods that have been ready for long enough."),
                    Column::AGE,
                    CONTAINERS,
                    IMAGES,
                    SELECTOR,
                ]
            },
            row: |deployment, now| {
                let status = deployment.status.clone().unwrap_or_default();
                let wanted = deployment.spec.replicas.unwrap_or(0);
                let template = deployment.spec.template.spec.as_ref();
                let row = vec![
                    cells::name(&deployment.metadata),
                    format!("{}/{wanted}", status.ready_replicas.unwrap_or(0)).into(),
                    status.updated_replicas.unwrap_or(0).into(),
                    status.available_replicas.unwrap_or(0).into(),
                    cells::of(&deployment.metadata, now),
                    cells::container_names(template),
                    cells::container_images(template),
                    cells::selector(&deployment.spec.selector),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn validate_strategy(spec: &apps::DeploymentSpec, path: &Path, errors: &mut FieldErrors) {
    let Some(strategy) = &spec.strategy else { return };
    let rolling_path = path.child("rollingUpdate");
    match (strategy.type_.as_deref().unwrap_or_default(), &strategy.rolling_update) {
        (REPLACE, Some(_)) => {
            errors.forbidden(&rolling_path, "may not be specified when strategy `type` is 'Recreate'");
        }
        (REPLACE, None) => {}
        (ROLL, None) => errors.required(&rolling_path, "this should be defaulted and never be nil"),
        (ROLL, Some(rolling)) => {
            let zero = IntOrString::Int(0);
            let unavailable = rolling.max_unavailable.as_ref().unwrap_or(&zero);
            let surge = rolling.max_surge.as_ref().unwrap_or(&zero);
            check::count_or_percent(unavailable, &rolling_path.child("maxUnavailable"), errors);
            check::count_or_percent(surge, &rolling_path.child("maxSurge"), errors);
            let none = |amount: &IntOrString| match amount {
                IntOrString::Int(number) => *number == 0,
                IntOrString::String(text) => check::percent(text) == Some(0),
            };
            if none(unavailable) && none(surge) {
                errors.invalid(
                    &rolling_path.child("maxUnavailable"),
                    check::value(unavailable),
                    "may not be 0 when `maxSurge` is 0",
                );
            }
            check::at_most_all(unavailable, &rolling_path.child("maxUnavailable"), errors);
        }
        (other, _) => errors.not_supported(&path.child("type"), other, &[REPLACE, ROLL]),
    }
}
