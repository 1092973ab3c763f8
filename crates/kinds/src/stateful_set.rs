//! StatefulSet: pods with names and volumes of their own, one after the other.

use api::meta::util::intstr::IntOrString;
use api::types::apps::v1 as apps;
use api::types::core::v1::{PodTemplateSpec, Volume};
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind, Verb};
use crate::persistent_volume_claim;
use crate::pod;
use crate::replica_set::{CONTAINERS, IMAGES, SCALE};
use crate::resources;
use crate::shape::Shape;

const ROLL: &str = "RollingUpdate";
const ON_DELETE: &str = "OnDelete";
const MANAGEMENT: [&str; 2] = ["OrderedReady", "Parallel"];
const RETENTION: &[&str] = &["Retain", "Delete"];
const FIXED: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                     'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                     'minReadySeconds' are forbidden";

pub struct StatefulSet;

impl Kind for StatefulSet {
    type Object = apps::StatefulSet;
    const SHAPE: Shape = Shape::namespaced("apps", "v1", "StatefulSet", "statefulsets")
        .singular("statefulset")
        .short(&["sts"])
        .categories(&["all"])
        .status()
        .scale(SCALE);
    const REQUIRED: &'static [(&'static str, &'static str)] = &[("/spec/selector", "")];

    /// Pods are named after it, and their names are host names.
    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_label(name)
    }

    fn defaults(_ctx: &Ctx, set: &mut Self::Object) {
        let spec = &mut set.spec;
        let text = |field: &mut Option<String>, default: &str| {
            if field.as_deref().unwrap_or_default().is_empty() {
                *field = Some(default.to_owned());
            }
        };
        text(&mut spec.pod_management_policy, MANAGEMENT[0]);
        let strategy = spec.update_strategy.get_or_insert_default();
        if strategy.type_.as_deref().unwrap_or_default().is_empty() {
            strategy.type_ = Some(ROLL.into());
            strategy.rolling_update.get_or_insert_default();
        }
        if strategy.type_.as_deref() == Some(ROLL) {
            if let Some(rolling) = &mut strategy.rolling_update {
                rolling.partition.get_or_insert(0);
                rolling.max_unavailable.get_or_insert(IntOrString::Int(1));
            }
        }
        let retention = spec.persistent_volume_claim_retention_policy.get_or_insert_default();
        text(&mut retention.when_deleted, RETENTION[0]);
        text(&mut retention.when_scaled, RETENTION[0]);
        spec.replicas.get_or_insert(1);
        spec.revision_history_limit.get_or_insert(10);
        for claim in spec.volume_claim_templates.iter_mut().flatten() {
            text(&mut claim.status.get_or_insert_default().phase, "Pending");
            if let Some(claim) = &mut claim.spec {
                claim.volume_mode.get_or_insert_with(|| "Filesystem".into());
                if let Some(amounts) = &mut claim.resources {
                    resources::round(&mut amounts.limits);
                    resources::round(&mut amounts.requests);
                }
            }
        }
        pod::defaults::template(&mut spec.template);
    }

    fn validate(ctx: &Ctx, set: &Self::Object, errors: &mut FieldErrors) {
        let spec = &set.spec;
        let path = Path::new("spec");
        let management = path.child("podManagementPolicy");
        match spec.pod_management_policy.as_deref().unwrap_or_default() {
            "" => errors.required(&management, ""),
            policy if MANAGEMENT.contains(&policy) => {}
            policy => {
                errors.invalid(&management, policy, format!("must be '{}' or '{}'", MANAGEMENT[0], MANAGEMENT[1]));
            }
        }
        strategy(spec, &path.child("updateStrategy"), errors);
        if let Some(retention) = &spec.persistent_volume_claim_retention_policy {
            let path = path.child("persistentVolumeClaimRetentionPolicy");
            for (policy, field) in [(&retention.when_deleted, "whenDeleted"), (&retention.when_scaled, "whenScaled")] {
                let policy = Some(policy.as_deref().unwrap_or_default());
                check::one_of_or_absent(policy, RETENTION, &path.child(field), errors);
            }
        }
        check::not_negative(spec.replicas, &path.child("replicas"), errors);
        check::not_negative(spec.min_ready_seconds, &path.child("minReadySeconds"), errors);
        let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start);
        check::not_negative(start, &path.child("ordinals.start"), errors);
        if ctx.verb == Verb::Create {
            // Neither can change later, so what older versions let in is not held against an update.
            if let Some(service) = spec.service_name.as_deref().filter(|name| !name.is_empty()) {
                check::all(names::dns1123_label(service), &path.child("serviceName"), service, errors);
            }
            for (i, template) in spec.volume_claim_templates.iter().flatten().enumerate() {
                let none = Default::default();
                let path = path.child("volumeClaimTemplates").index(i).child("spec");
                persistent_volume_claim::spec(template.spec.as_ref().unwrap_or(&none), &path, errors);
            }
        }
        let selector = path.child("selector");
        check::selector(&spec.selector, &selector, errors);
        if check::is_empty_selector(&spec.selector) {
            errors.invalid(&selector, check::value(&spec.selector), "empty selector is invalid for statefulset");
        }
        if ctx.verb == Verb::Create {
            template(ctx, spec, errors);
        }
    }

    fn validate_update(ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let (new, old) = (&new.spec, &old.spec);
        // A template that was let in before templates were checked may stay wrong.
        let mut before = FieldErrors::new();
        template(ctx, old, &mut before);
        if before.is_empty() {
            template(ctx, new, errors);
        }
        let movable = apps::StatefulSetSpec {
            replicas: old.replicas,
            ordinals: old.ordinals.clone(),
            template: old.template.clone(),
            update_strategy: old.update_strategy.clone(),
            revision_history_limit: old.revision_history_limit,
            persistent_volume_claim_retention_policy: old.persistent_volume_claim_retention_policy.clone(),
            min_ready_seconds: old.min_ready_seconds,
            ..new.clone()
        };
        if movable != *old {
            errors.forbidden(&Path::new("spec"), FIXED);
        }
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let Some(status) = &new.status else { return };
        let path = Path::new("status");
        let all = Some(status.replicas);
        let counts = [
            (status.ready_replicas, "readyReplicas"),
            (status.current_replicas, "currentReplicas"),
            (status.updated_replicas, "updatedReplicas"),
            (status.available_replicas, "availableReplicas"),
        ];
        for (number, name) in [(all, "replicas")].into_iter().chain(counts) {
            check::not_negative(number, &path.child(name), errors);
        }
        check::not_negative(status.observed_generation, &path.child("observedGeneration"), errors);
        check::not_negative(status.collision_count, &path.child("collisionCount"), errors);
        for (number, name) in counts {
            if let Some(number) = number.filter(|n| *n > status.replicas) {
                errors.invalid(&path.child(name), number, "cannot be greater than status.replicas");
            }
        }
        let ready = status.ready_replicas.unwrap_or(0);
        if let Some(number) = status.available_replicas.filter(|n| *n > ready) {
            errors.invalid(&path.child("availableReplicas"), number, "cannot be greater than status.readyReplicas");
        }
        let before = old.status.as_ref().and_then(|status| status.collision_count);
        check::not_decremented(status.collision_count, before, &path.child("collisionCount"), errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        let (spec, path) = (&new.spec, Path::new("spec"));
        let mut out = Vec::new();
        if old.is_none_or(|old| old.spec != *spec) {
            out.extend(pod::template::warnings(&spec.template, &path.child("template")));
        }
        for (i, claim) in spec.volume_claim_templates.iter().flatten().enumerate() {
            let at = path.child("volumeClaimTemplates").index(i);
            // Clients know the path of an update with a capital letter.
            let at = if old.is_some() { at.child("Spec") } else { at };
            out.extend(claim.spec.iter().flat_map(|claim| persistent_volume_claim::amount_warnings(claim, &at)));
        }
        if spec.revision_history_limit.is_some_and(|limit| limit < 0) {
            let why = "a negative value retains all historical revisions; a value >= 0 is recommended";
            out.push(format!("spec.revisionHistoryLimit: {why}"));
        }
        out
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Ready", "Pods that are ready, of those wanted."),
                    Column::AGE,
                    CONTAINERS,
                    IMAGES,
                ]
            },
            row: |set, now| {
                let ready = set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
                let wanted = set.spec.replicas.unwrap_or(0);
                let template = set.spec.template.spec.as_ref();
                let row = vec![
                    cells::name(&set.metadata),
                    format!("{ready}/{wanted}").into(),
                    cells::of(&set.metadata, now),
                    cells::container_names(template),
                    cells::container_images(template),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn strategy(spec: &apps::StatefulSetSpec, path: &Path, errors: &mut FieldErrors) {
    let none = apps::StatefulSetUpdateStrategy::default();
    let strategy = spec.update_strategy.as_ref().unwrap_or(&none);
    let rolling_path = path.child("rollingUpdate");
    match (strategy.type_.as_deref().unwrap_or_default(), &strategy.rolling_update) {
        ("", _) => errors.required(path, ""),
        (ON_DELETE, Some(rolling)) => {
            let wrong = format!("only allowed for updateStrategy '{ROLL}'");
            errors.invalid(&rolling_path, check::value(rolling), wrong);
        }
        (ROLL, Some(rolling)) => {
            check::not_negative(rolling.partition, &rolling_path.child("partition"), errors);
            if let Some(amount) = &rolling.max_unavailable {
                let path = rolling_path.child("maxUnavailable");
                check::count_or_percent(amount, &path, errors);
                if check::is_zero(amount) {
                    errors.invalid(&path, check::value(amount), "cannot be 0");
                }
                check::at_most_all(amount, &path, errors);
            }
        }
        (ON_DELETE | ROLL, None) => {}
        _ => errors.invalid(path, check::value(strategy), format!("must be '{ROLL}' or '{ON_DELETE}'")),
    }
}

/// The mistakes in the pod template, in which every claim template stands for a volume.
fn template(ctx: &Ctx, spec: &apps::StatefulSetSpec, errors: &mut FieldErrors) {
    let mut template: PodTemplateSpec = spec.template.clone();
    let pod = template.spec.get_or_insert_default();
    let claims = spec.volume_claim_templates.iter().flatten().filter_map(|claim| claim.metadata.name.as_deref());
    for name in claims.filter(|name| names::dns1123_label(name).is_empty()) {
        let volumes = pod.volumes.get_or_insert_default();
        if volumes.iter().all(|volume| volume.name != name) {
            let empty_dir = Some(Default::default());
            volumes.push(Volume { name: name.to_owned(), empty_dir, ..Volume::default() });
        }
    }
    let path = Path::new("spec").child("template");
    pod::template::validate(ctx, &template, &spec.selector, "StatefulSet", &path, errors);
}
