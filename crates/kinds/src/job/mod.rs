//! Job: pods that end, until enough of them have ended well.

mod indexes;
mod validate;
mod validate_status;

use api::meta::apis::meta::v1::{LabelSelector, ObjectMeta};
use api::types::batch::v1 as batch;
use jiff::Timestamp;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use serde_json::Value;

use crate::cells;
use crate::kind::{Column, Columns, Ctx, Kind, Selectable, Verb};
use crate::pod;
use crate::replica_set::{CONTAINERS, IMAGES, SELECTOR};
use crate::shape::Shape;

pub use validate::template as validate_template;

/// Labels that tell a Job's pods from all others, with their older names.
pub const UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
pub const NAME_LABEL: &str = "batch.kubernetes.io/job-name";
const OLD_UID_LABEL: &str = "controller-uid";
const OLD_NAME_LABEL: &str = "job-name";

const INDEXED: &str = "Indexed";
const NON_INDEXED: &str = "NonIndexed";
/// What is tried again per index is not counted for the whole Job.
const UNLIMITED: i32 = i32::MAX;
/// More than this is more than the status can tell of.
const COMPLETIONS_SOFT_LIMIT: i32 = 100_000;
const PARALLELISM_SOFT_LIMIT: i32 = 10_000;

pub struct Job;

impl Kind for Job {
    type Object = batch::Job;
    const SHAPE: Shape =
        Shape::namespaced("batch", "v1", "Job", "jobs").singular("job").categories(&["all"]).status().orphans();
    const SELECTABLE: &'static [Selectable] = &[Selectable::at("status.successful", &["/status/succeeded"]).or("0")];

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn unknown_field(field: &str) -> String {
        format!(r#"field label "{field}" not supported for Job"#)
    }

    fn defaults(_ctx: &Ctx, job: &mut Self::Object) {
        let spec = job.spec.get_or_insert_default();
        if spec.completions.is_none() && spec.parallelism.is_none() {
            spec.completions = Some(1);
        }
        spec.parallelism.get_or_insert(1);
        spec.backoff_limit.get_or_insert(if spec.backoff_limit_per_index.is_some() { UNLIMITED } else { 6 });
        spec.completion_mode.get_or_insert_with(|| NON_INDEXED.into());
        spec.suspend.get_or_insert(false);
        let replace = if spec.pod_failure_policy.is_some() { "Failed" } else { "TerminatingOrFailed" };
        spec.pod_replacement_policy.get_or_insert_with(|| replace.into());
        spec.manual_selector.get_or_insert(false);
        if let Some(policy) = &mut spec.pod_failure_policy {
            conditions(policy);
        }
        pod::defaults::template(&mut spec.template);
        if job.metadata.labels.as_ref().is_none_or(|labels| labels.is_empty()) {
            let labels = pod::defaults::template_labels(&spec.template);
            if !labels.is_empty() {
                job.metadata.labels = Some(labels);
            }
        }
    }

    fn prepare_create(_ctx: &Ctx, job: &mut Self::Object) {
        let Some(spec) = &mut job.spec else { return };
        // Groups of pods that are scheduled together are behind a gate that is off.
        spec.scheduling = None;
        if spec.manual_selector != Some(true) {
            generate_selector(&job.metadata, spec);
        }
    }

    fn prepare_update(_ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        let used = old.spec.as_ref().is_some_and(|spec| spec.scheduling.is_some());
        if let Some(spec) = new.spec.as_mut().filter(|_| !used) {
            spec.scheduling = None;
        }
    }

    fn validate(ctx: &Ctx, job: &Self::Object, errors: &mut FieldErrors) {
        let none = batch::JobSpec::default();
        let spec = job.spec.as_ref().unwrap_or(&none);
        validate::generated(&job.metadata, spec, ctx.verb == Verb::Create, errors);
        validate::job(ctx, spec, &Path::new("spec"), errors);
        let last = spec.completions.filter(|n| *n > 0 && spec.completion_mode.as_deref() == Some(INDEXED));
        if let Some(last) = last.map(|n| n - 1) {
            let name = job.metadata.name.as_deref().unwrap_or_default();
            let host = format!("{name}-{last}");
            if !names::dns1123_label(&host).is_empty() {
                let wrong = format!("will not able to create pod with invalid DNS label: {host}");
                errors.invalid(&Path::new("metadata").child("name"), name, wrong);
            }
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        validate::update(new, old, errors);
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        validate_status::change(new, old, errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        let mut out = Vec::new();
        if old.is_none() {
            out.extend(name_warning(&new.metadata));
        }
        let changed = old.is_none_or(|old| old.spec != new.spec);
        out.extend(new.spec.iter().filter(|_| changed).flat_map(|spec| warnings(spec, &Path::new("spec"))));
        out
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Status", "How far it is."),
                    Column::text("Completions", "Pods that ended well, of those wanted."),
                    Column::text("Duration", "Time from its start to its end, or to now."),
                    Column::AGE,
                    CONTAINERS,
                    IMAGES,
                    SELECTOR,
                ]
            },
            row: |job, now| {
                let none = batch::JobSpec::default();
                let spec = job.spec.as_ref().unwrap_or(&none);
                let template = spec.template.spec.as_ref();
                let row = vec![
                    cells::name(&job.metadata),
                    state(job).into(),
                    completions(job, spec).into(),
                    duration(job, now).into(),
                    cells::of(&job.metadata, now),
                    cells::container_names(template),
                    cells::container_images(template),
                    selector_cell(spec),
                ];
                (row, Vec::new())
            },
        }
    }
}

/// The selector cell; a Job without a selector selects nothing.
pub fn selector_cell(spec: &batch::JobSpec) -> Value {
    spec.selector.as_ref().map_or_else(|| cells::or_none(""), cells::selector)
}

/// A pattern of a pod's condition means the condition to be true, unless it says otherwise.
pub fn conditions(policy: &mut batch::PodFailurePolicy) {
    for pattern in policy.rules.iter_mut().flat_map(|rule| rule.on_pod_conditions.iter_mut().flatten()) {
        if pattern.status.as_deref().unwrap_or_default().is_empty() {
            pattern.status = Some("True".into());
        }
    }
}

/// Labels the template with the Job's name and uid, and selects by the uid. What the user set stays, and
/// is found wrong if it does not fit.
fn generate_selector(metadata: &ObjectMeta, spec: &mut batch::JobSpec) {
    let name = metadata.name.clone().unwrap_or_default();
    let uid = metadata.uid.clone().unwrap_or_default();
    let labels = spec.template.metadata.get_or_insert_default().labels.get_or_insert_default();
    for (label, value) in [(OLD_NAME_LABEL, &name), (NAME_LABEL, &name), (OLD_UID_LABEL, &uid), (UID_LABEL, &uid)] {
        labels.entry(label.to_owned()).or_insert_with(|| value.clone());
    }
    let selector: &mut LabelSelector = spec.selector.get_or_insert_default();
    selector.match_labels.get_or_insert_default().entry(UID_LABEL.to_owned()).or_insert(uid);
}

/// The name is the beginning of host names, where not every name is good.
pub fn name_warning(metadata: &ObjectMeta) -> Option<String> {
    let wrong = names::dns1123_label(metadata.name.as_deref().unwrap_or_default());
    let told = "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; \
                a DNS label is recommended";
    (!wrong.is_empty()).then(|| format!("{told}: [{}]", wrong.join(" ")))
}

/// What is allowed in a Job's spec, and yet likely not meant.
pub fn warnings(spec: &batch::JobSpec, path: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let (completions, parallelism) = (spec.completions.unwrap_or(0), spec.parallelism.unwrap_or(0));
    let indexed = spec.completion_mode.as_deref() == Some(INDEXED);
    if indexed && completions > COMPLETIONS_SOFT_LIMIT && parallelism > PARALLELISM_SOFT_LIMIT {
        out.push(format!(
            "{}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, \
             Kubernetes might not be able to track completedIndexes when a big number of indexes fail",
            path.as_str()
        ));
    }
    out.extend(pod::template::warnings(&spec.template, &path.child("template")));
    out
}

/// True when a condition of the type is true.
fn holds(job: &batch::Job, kind: &str) -> bool {
    says(job, kind, "True")
}

/// True when a condition of the type has the status.
fn says(job: &batch::Job, kind: &str, status: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == kind && condition.status == status)
}

fn state(job: &batch::Job) -> &'static str {
    match () {
        () if holds(job, "Complete") => "Complete",
        () if holds(job, "Failed") => "Failed",
        () if job.metadata.deletion_timestamp.is_some() => "Terminating",
        () if holds(job, "Suspended") => "Suspended",
        () if holds(job, "FailureTarget") => "FailureTarget",
        () if holds(job, "SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

fn completions(job: &batch::Job, spec: &batch::JobSpec) -> String {
    let done = job.status.as_ref().and_then(|status| status.succeeded).unwrap_or(0);
    match (spec.completions, spec.parallelism.unwrap_or(0)) {
        (Some(wanted), _) => format!("{done}/{wanted}"),
        (None, many) if many > 1 => format!("{done}/1 of {many}"),
        (None, _) => format!("{done}/1"),
    }
}

fn duration(job: &batch::Job, now: Timestamp) -> String {
    let Some(status) = &job.status else { return String::new() };
    let end = status.completion_time.as_ref().map_or(now, |at| at.0);
    status.start_time.as_ref().map(|at| machinery::time::age(at.0, end)).unwrap_or_default()
}
