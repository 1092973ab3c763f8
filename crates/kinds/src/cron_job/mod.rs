//! CronJob: a Job at every time a schedule names.

mod schedule;

use api::types::batch::v1 as batch;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::job;
use crate::kind::{Column, Columns, Ctx, Kind, Verb};
use crate::pod;
use crate::replica_set::{CONTAINERS, IMAGES, SELECTOR};
use crate::shape::Shape;

const CONCURRENCY: &[&str] = &["Allow", "Forbid", "Replace"];
/// Jobs are named after it, with eleven characters more.
const NAME_LIMIT: usize = 52;

pub struct CronJob;

impl Kind for CronJob {
    type Object = batch::CronJob;
    const SHAPE: Shape = Shape::namespaced("batch", "v1", "CronJob", "cronjobs")
        .singular("cronjob")
        .short(&["cj"])
        .categories(&["all"])
        .status();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, cron: &mut Self::Object) {
        let spec = &mut cron.spec;
        if spec.concurrency_policy.as_deref().unwrap_or_default().is_empty() {
            spec.concurrency_policy = Some(CONCURRENCY[0].into());
        }
        spec.suspend.get_or_insert(false);
        spec.successful_jobs_history_limit.get_or_insert(3);
        spec.failed_jobs_history_limit.get_or_insert(1);
        // What a Job leaves open is filled when there is one.
        let job = spec.job_template.spec.get_or_insert_default();
        if let Some(policy) = &mut job.pod_failure_policy {
            job::conditions(policy);
        }
        pod::defaults::template(&mut job.template);
    }

    fn prepare_create(_ctx: &Ctx, cron: &mut Self::Object) {
        if let Some(job) = &mut cron.spec.job_template.spec {
            job.scheduling = None;
        }
    }

    fn prepare_update(_ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        let used = old.spec.job_template.spec.as_ref().is_some_and(|job| job.scheduling.is_some());
        if let Some(job) = new.spec.job_template.spec.as_mut().filter(|_| !used) {
            job.scheduling = None;
        }
    }

    fn validate(ctx: &Ctx, cron: &Self::Object, errors: &mut FieldErrors) {
        let spec = &cron.spec;
        let path = Path::new("spec");
        if ctx.verb == Verb::Create {
            validate_schedule(spec, false, errors);
            validate_zone(spec, errors);
        }
        check::not_negative(spec.starting_deadline_seconds, &path.child("startingDeadlineSeconds"), errors);
        let policy = spec.concurrency_policy.as_deref();
        check::one_of(policy, CONCURRENCY, &path.child("concurrencyPolicy"), errors);
        let job_path = path.child("jobTemplate").child("spec");
        let none = batch::JobSpec::default();
        let job = spec.job_template.spec.as_ref().unwrap_or(&none);
        job::validate_template(ctx, job, &job_path, errors);
        if let Some(selector) = &job.selector {
            let path = job_path.child("selector");
            errors.invalid(&path, check::value(selector), "`selector` will be auto-generated");
        }
        if job.manual_selector == Some(true) {
            errors.not_supported(&job_path.child("manualSelector"), true, &["nil", "false"]);
        }
        for (limit, name) in [
            (spec.successful_jobs_history_limit, "successfulJobsHistoryLimit"),
            (spec.failed_jobs_history_limit, "failedJobsHistoryLimit"),
        ] {
            check::not_negative(limit, &path.child(name), errors);
        }
        let name = cron.metadata.name.as_deref().unwrap_or_default();
        if ctx.verb == Verb::Create && name.len() > NAME_LIMIT {
            let wrong = format!("must be no more than {NAME_LIMIT} characters");
            errors.invalid(&Path::new("metadata").child("name"), name, wrong);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        // A zone in the schedule was let in once, and may stay.
        validate_schedule(&new.spec, old.spec.schedule.contains("TZ"), errors);
        if new.spec.time_zone != old.spec.time_zone {
            validate_zone(&new.spec, errors);
        }
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        let mut out = Vec::new();
        if old.is_none() {
            out.extend(job::name_warning(&new.metadata));
        }
        let changed = old.is_none_or(|old| old.spec != new.spec);
        let job = new.spec.job_template.spec.iter().filter(|_| changed);
        out.extend(job.flat_map(|job| job::warnings(job, &Path::new("spec.jobTemplate.spec"))));
        if old.is_some() && new.spec.schedule.contains("TZ") {
            let more = "https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/";
            out.push(format!(
                "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see {more} for more details"
            ));
        }
        out
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Schedule", "When it makes a Job."),
                    Column::text("Timezone", "Where the schedule's clock stands."),
                    Column { kind: "boolean", ..Column::text("Suspend", "Whether it makes no Jobs for now.") },
                    Column::number("Active", "Jobs that run."),
                    Column::text("Last Schedule", "Time since it last made a Job."),
                    Column::AGE,
                    CONTAINERS,
                    IMAGES,
                    SELECTOR,
                ]
            },
            row: |cron, now| {
                let spec = &cron.spec;
                let none = batch::JobSpec::default();
                let job = spec.job_template.spec.as_ref().unwrap_or(&none);
                let template = job.template.spec.as_ref();
                let status = cron.status.clone().unwrap_or_default();
                let last = status.last_schedule_time.map(|at| machinery::time::age(at.0, now));
                let suspend = match spec.suspend {
                    None => "<unset>",
                    Some(true) => "True",
                    Some(false) => "False",
                };
                let row = vec![
                    cells::name(&cron.metadata),
                    spec.schedule.clone().into(),
                    spec.time_zone.clone().unwrap_or_else(|| "<none>".into()).into(),
                    suspend.into(),
                    status.active.map_or(0, |active| active.len()).into(),
                    last.unwrap_or_else(|| "<none>".into()).into(),
                    cells::of(&cron.metadata, now),
                    cells::container_names(template),
                    cells::container_images(template),
                    job::selector_cell(job),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn validate_schedule(spec: &batch::CronJobSpec, zone_allowed: bool, errors: &mut FieldErrors) {
    let path = Path::new("spec").child("schedule");
    let text = spec.schedule.as_str();
    if text.is_empty() {
        return errors.required(&path, "");
    }
    if let Err(wrong) = schedule::check(text) {
        errors.invalid(&path, text, wrong);
    }
    if !text.contains("TZ") {
        return;
    }
    if !zone_allowed {
        errors.invalid(&path, text, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead");
    } else if spec.time_zone.is_some() {
        errors.invalid(&path, text, "cannot use both timeZone field and TZ or CRON_TZ in schedule");
    }
}

fn validate_zone(spec: &batch::CronJobSpec, errors: &mut FieldErrors) {
    let Some(zone) = spec.time_zone.as_deref() else { return };
    let path = Path::new("spec").child("timeZone");
    if zone.is_empty() {
        return errors.invalid(&path, "", "timeZone must be nil or non-empty string");
    }
    if zone.eq_ignore_ascii_case("Local") {
        let wrong = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.invalid(&path, zone, wrong);
    }
    // The letter case counts, as it does for files.
    if zone != "Local" && !schedule::is_zone(zone) {
        errors.invalid(&path, zone, format!("unknown time zone {zone}"));
    }
}
