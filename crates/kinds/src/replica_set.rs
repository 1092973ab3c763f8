//! ReplicaSet: a number of pods from one template.

use api::types::apps::v1 as apps;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::job;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::only::Part;
use crate::pod;
use crate::shape::{ScalePaths, Shape};

/// Where Deployments and ReplicaSets keep what `scale` shows.
pub const SCALE: ScalePaths =
    ScalePaths { spec_replicas: "/spec/replicas", status_replicas: "/status/replicas", selector: "/spec/selector" };

pub const CONTAINERS: Column = Column::text("Containers", "Names of the template's containers.").wide();
pub const IMAGES: Column = Column::text("Images", "Images of the template's containers.").wide();
pub const SELECTOR: Column = Column::text("Selector", "Which pods it looks after.").wide();

pub struct ReplicaSet;

impl Kind for ReplicaSet {
    type Object = apps::ReplicaSet;
    const SHAPE: Shape = Shape::namespaced("apps", "v1", "ReplicaSet", "replicasets")
        .singular("replicaset")
        .short(&["rs"])
        .categories(&["all"])
        .status()
        .scale(SCALE);
    const REQUIRED: &'static [(&'static str, &'static str)] = &[("/spec/selector", ""), ("/spec/template", "")];

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, set: &mut Self::Object) {
        let spec = &mut set.spec;
        spec.replicas.get_or_insert(1);
        if let Some(template) = &mut spec.template {
            pod::defaults::template(template);
        }
    }

    fn validate(ctx: &Ctx, set: &Self::Object, errors: &mut FieldErrors) {
        let spec = &set.spec;
        let path = Path::new("spec");
        check::not_negative(spec.replicas, &path.child("replicas"), errors);
        check::not_negative(spec.min_ready_seconds, &path.child("minReadySeconds"), errors);
        let selector = path.child("selector");
        check::selector(&spec.selector, &selector, errors);
        if check::is_empty_selector(&spec.selector) {
            errors.invalid(&selector, check::value(&spec.selector), "empty selector is invalid for deployment");
        }
        if let Some(template) = &spec.template
            && check::is_readable(&spec.selector, "invalid label selector", &selector, errors)
        {
            pod::template::validate(ctx, template, &spec.selector, "ReplicaSet", &path.child("template"), errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        check::immutable(&new.spec.selector, &old.spec.selector, &Path::new("spec").child("selector"), errors);
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        let Some(status) = &new.status else { return };
        let path = Path::new("status");
        for (number, name) in [
            (Some(status.replicas), "replicas"),
            (status.fully_labeled_replicas, "fullyLabeledReplicas"),
            (status.ready_replicas, "readyReplicas"),
            (status.available_replicas, "availableReplicas"),
            (status.terminating_replicas, "terminatingReplicas"),
        ] {
            check::not_negative(number, &path.child(name), errors);
        }
        check::not_negative(status.observed_generation, &path.child("observedGeneration"), errors);
        for (number, name) in [
            (status.fully_labeled_replicas, "fullyLabeledReplicas"),
            (status.ready_replicas, "readyReplicas"),
            (status.available_replicas, "availableReplicas"),
        ] {
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
        let named = old.is_none().then(|| job::name_warning(&new.metadata)).flatten();
        let changed = old.is_none_or(|old| old.spec != new.spec);
        let template = new.spec.template.iter().filter(|_| changed);
        let template = template.flat_map(|t| pod::template::warnings(t, &Path::new("spec.template")));
        named.into_iter().chain(template).collect()
    }

    const SHOWN: &'static [Part] = &[
        Part::METADATA,
        Part("spec", &[Part::whole("replicas"), Part::whole("selector"), Part::TEMPLATE]),
        Part("status", &[Part::whole("replicas"), Part::whole("readyReplicas")]),
    ];

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
            row: |set, now| {
                let spec = &set.spec;
                let status = set.status.clone().unwrap_or_default();
                let template = spec.template.as_ref().and_then(|template| template.spec.as_ref());
                let row = vec![
                    cells::name(&set.metadata),
                    spec.replicas.unwrap_or(0).into(),
                    status.replicas.into(),
                    status.ready_replicas.unwrap_or(0).into(),
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
