//! ReplicationController: a number of pods from one template, from before ReplicaSets.

use api::meta::apis::meta::v1::LabelSelector;
use api::types::core::v1 as core;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::job;
use crate::kind::{Column, Columns, Ctx, Kind, Selectable};
use crate::pod;
use crate::replica_set::{CONTAINERS, IMAGES, SCALE, SELECTOR};
use crate::shape::Shape;

pub struct ReplicationController;

impl Kind for ReplicationController {
    type Object = core::ReplicationController;
    const SHAPE: Shape = Shape::namespaced("", "v1", "ReplicationController", "replicationcontrollers")
        .singular("replicationcontroller")
        .short(&["rc"])
        .categories(&["all"])
        .prefix("controllers")
        .status()
        .orphans()
        .scale(SCALE);
    const SELECTABLE: &'static [Selectable] = &[Selectable::at("status.replicas", &["/status/replicas"]).or("0")];

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, controller: &mut Self::Object) {
        let spec = controller.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        let Some(template) = &mut spec.template else { return };
        pod::defaults::template(template);
        let labels = pod::defaults::template_labels(template);
        if labels.is_empty() {
            return;
        }
        for own in [&mut spec.selector, &mut controller.metadata.labels] {
            if own.as_ref().is_none_or(|own| own.is_empty()) {
                *own = Some(labels.clone());
            }
        }
    }

    fn validate(ctx: &Ctx, controller: &Self::Object, errors: &mut FieldErrors) {
        let none = core::ReplicationControllerSpec::default();
        let spec = controller.spec.as_ref().unwrap_or(&none);
        let path = Path::new("spec");
        check::not_negative(spec.min_ready_seconds, &path.child("minReadySeconds"), errors);
        if spec.selector.as_ref().is_none_or(|selector| selector.is_empty()) {
            errors.required(&path.child("selector"), "");
        }
        check::not_negative(spec.replicas, &path.child("replicas"), errors);
        let selector = LabelSelector { match_labels: spec.selector.clone(), match_expressions: None };
        let path = path.child("template");
        match &spec.template {
            None => errors.required(&path, ""),
            Some(template) => {
                pod::template::validate(ctx, template, &selector, "ReplicationController", &path, errors);
            }
        }
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        let Some(status) = &new.status else { return };
        let path = Path::new("status");
        let counts = [
            (status.fully_labeled_replicas, "fullyLabeledReplicas"),
            (status.ready_replicas, "readyReplicas"),
            (status.available_replicas, "availableReplicas"),
        ];
        for (number, name) in [(Some(status.replicas), "replicas")].into_iter().chain(counts) {
            check::not_negative(number, &path.child(name), errors);
        }
        check::not_negative(status.observed_generation, &path.child("observedGeneration"), errors);
        for (number, name) in counts {
            if let Some(number) = number.filter(|n| *n > status.replicas) {
                errors.invalid(&path.child(name), number, "cannot be greater than status.replicas");
            }
        }
        let ready = status.ready_replicas.unwrap_or(0);
        if let Some(number) = status.available_replicas.filter(|n| *n > ready) {
            errors.invalid(&path.child("availableReplicas"), number, "cannot be greater than readyReplicas");
        }
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        let mut out = Vec::new();
        if old.is_none() {
            out.extend(job::name_warning(&new.metadata));
        }
        let changed = old.is_none_or(|old| old.spec != new.spec);
        let template = new.spec.as_ref().and_then(|spec| spec.template.as_ref()).filter(|_| changed);
        out.extend(template.iter().flat_map(|t| pod::template::warnings(t, &Path::new("spec").child("template"))));
        out
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::number("Desired", "Pods wanted."),
                    Column::number("Current", "Pods there."),
                    Column::number("Ready", "Pods that are ready."),
                    Column::AGE,
                    CONTAINERS,
                    IMAGES,
                    SELECTOR,
                ]
            },
            row: |controller, now| {
                let spec = controller.spec.clone().unwrap_or_default();
                let status = controller.status.clone().unwrap_or_default();
                let template = spec.template.as_ref().and_then(|template| template.spec.as_ref());
                let row = vec![
                    cells::name(&controller.metadata),
                    spec.replicas.unwrap_or(0).into(),
                    status.replicas.into(),
                    status.ready_replicas.unwrap_or(0).into(),
                    cells::of(&controller.metadata, now),
                    cells::container_names(template),
                    cells::container_images(template),
                    cells::labels(spec.selector.as_ref()),
                ];
                (row, Vec::new())
            },
        }
    }
}
