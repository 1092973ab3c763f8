//! PodDisruptionBudget: how many pods of an application may be taken away at a time.

use api::meta::util::intstr::IntOrString;
use api::types::policy::v1 as policy;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

const UNHEALTHY: &[&str] = &["AlwaysAllow", "IfHealthyBudget"];

pub struct PodDisruptionBudget;

impl Kind for PodDisruptionBudget {
    type Object = policy::PodDisruptionBudget;
    const SHAPE: Shape = Shape::namespaced("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
        .singular("poddisruptionbudget")
        .short(&["pdb"])
        .status()
        .conditional_update();
    const HAS_DEFAULTS: bool = false;

    fn name_rule(name: &str) -> Vec<String> {
        names::path_segment(name)
    }

    fn validate(_ctx: &Ctx, budget: &Self::Object, errors: &mut FieldErrors) {
        let none = policy::PodDisruptionBudgetSpec::default();
        let spec = budget.spec.as_ref().unwrap_or(&none);
        let path = Path::new("spec");
        if spec.min_available.is_some() && spec.max_unavailable.is_some() {
            let wrong = "minAvailable and maxUnavailable cannot be both set";
            errors.invalid(&path, check::value(spec), wrong);
        }
        for (amount, name) in [(&spec.min_available, "minAvailable"), (&spec.max_unavailable, "maxUnavailable")] {
            if let Some(amount) = amount {
                check::count_or_percent(amount, &path.child(name), errors);
                check::at_most_all(amount, &path.child(name), errors);
            }
        }
        if let Some(selector) = &spec.selector {
            check::selector(selector, &path.child("selector"), errors);
        }
        let unhealthy = path.child("unhealthyPodEvictionPolicy");
        check::one_of_or_absent(spec.unhealthy_pod_eviction_policy.as_deref(), UNHEALTHY, &unhealthy, errors);
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        let Some(status) = &new.status else { return };
        let path = Path::new("status");
        check::conditions(status.conditions.as_deref().unwrap_or_default(), &path.child("conditions"), errors);
        for (number, name) in [
            (status.disruptions_allowed, "disruptionsAllowed"),
            (status.current_healthy, "currentHealthy"),
            (status.desired_healthy, "desiredHealthy"),
            (status.expected_pods, "expectedPods"),
        ] {
            check::not_negative(number, &path.child(name), errors);
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Min Available", "Pods that must stay."),
                    Column::text("Max Unavailable", "Pods that may be missing."),
                    Column::number("Allowed Disruptions", "Pods that may be taken away now."),
                    Column::AGE,
                ]
            },
            row: |budget, now| {
                let spec = budget.spec.clone().unwrap_or_default();
                let amount = |amount: Option<IntOrString>| match amount {
                    None => "N/A".to_owned(),
                    Some(IntOrString::Int(number)) => number.to_string(),
                    Some(IntOrString::String(text)) => text,
                };
                let allowed = budget.status.as_ref().and_then(|status| status.disruptions_allowed);
                let row = vec![
                    cells::name(&budget.metadata),
                    amount(spec.min_available).into(),
                    amount(spec.max_unavailable).into(),
                    allowed.unwrap_or(0).into(),
                    cells::of(&budget.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}
