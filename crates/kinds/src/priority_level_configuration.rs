//! PriorityLevelConfiguration: how many requests of a level are served at once, and what happens to the rest.

use api::types::flowcontrol::v1 as flow;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use serde_json::Value;

use crate::cells;
use crate::check;
use crate::flow_control;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

/// The level that knows no limit.
const EXEMPT: &str = "exempt";
const TYPES: &[&str] = &["Exempt", "Limited"];
const RESPONSES: &[&str] = &["Queue", "Reject"];
const MAX_QUEUES: i32 = 10_000_000;
/// A hash of a flow has so many bits to deal a hand of queues with.
const MAX_HASH_BITS: i32 = 60;
const DEFAULT_SHARES: i32 = 30;
const DEFAULT_HAND: i32 = 8;
const DEFAULT_QUEUES: i32 = 64;
const DEFAULT_LENGTH: i32 = 50;
const PERCENT: &str = "must be between 0 and 100, inclusive";
const ZERO_KEPT: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

pub struct PriorityLevelConfiguration;

impl Kind for PriorityLevelConfiguration {
    type Object = flow::PriorityLevelConfiguration;
    const SHAPE: Shape = Shape::cluster(
        "flowcontrol.apiserver.k8s.io",
        "v1",
        "PriorityLevelConfiguration",
        "prioritylevelconfigurations",
    )
    .singular("prioritylevelconfiguration")
    .status()
    .status_keeps(flow_control::STATUS_KEEPS)
    .status_resets(&[&["spec"], &["metadata"]]);

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, level: &mut Self::Object) {
        if let Some(exempt) = &mut level.spec.exempt {
            exempt.nominal_concurrency_shares.get_or_insert(0);
            exempt.lendable_percent.get_or_insert(0);
        }
        if let Some(limited) = &mut level.spec.limited {
            limited.nominal_concurrency_shares.get_or_insert(DEFAULT_SHARES);
            limited.lendable_percent.get_or_insert(0);
            if let Some(queuing) = &mut limited.limit_response.queuing {
                for (field, default) in [
                    (&mut queuing.hand_size, DEFAULT_HAND),
                    (&mut queuing.queues, DEFAULT_QUEUES),
                    (&mut queuing.queue_length_limit, DEFAULT_LENGTH),
                ] {
                    if field.unwrap_or(0) == 0 {
                        *field = Some(default);
                    }
                }
            }
        }
    }

    fn validate(_ctx: &Ctx, level: &Self::Object, errors: &mut FieldErrors) {
        let name = level.metadata.name.as_deref().unwrap_or_default();
        if level.metadata.annotations.iter().flatten().any(|(key, _)| key == ZERO_KEPT) {
            let path = Path::new("metadata").child("annotations");
            errors.forbidden(&path, format!("annotation '{ZERO_KEPT}' is forbidden"));
        }
        let path = Path::new("spec");
        spec(name, &level.spec, &path, errors);
        let Some(fixed) = flow_control::fixed_level(name) else { return };
        if name == EXEMPT {
            let given = flow::PriorityLevelConfigurationSpec { exempt: fixed.exempt.clone(), ..level.spec.clone() };
            if given != fixed {
                let wrong = format!("spec of '{name}' except the 'spec.exempt' field must equal the fixed value");
                errors.invalid(&path, check::value(&level.spec), wrong);
            }
        } else if level.spec != fixed {
            let wrong = format!("spec of '{name}' must equal the fixed value");
            errors.invalid(&path, check::value(&level.spec), wrong);
        }
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        let conditions = new.status.iter().flat_map(|status| status.conditions.iter().flatten());
        flow_control::condition_types(conditions.map(|condition| condition.type_.as_str()), errors);
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Type", "Whether its requests are limited."),
                    Column::text("NominalConcurrencyShares", "Its share of the requests served at once."),
                    Column::text("Queues", "Over how many queues waiting requests are spread."),
                    Column::text("HandSize", "From how many queues a flow is dealt."),
                    Column::text("QueueLengthLimit", "How many requests may wait in one queue."),
                    Column::AGE,
                ]
            },
            row: |level, now| {
                let limited = level.spec.limited.as_ref();
                let queuing = limited.and_then(|limited| limited.limit_response.queuing.as_ref());
                let shares = limited.map(|limited| limited.nominal_concurrency_shares.unwrap_or(0));
                let cell = |number: Option<i32>| number.map_or_else(|| "<none>".into(), Value::from);
                let row = vec![
                    cells::name(&level.metadata),
                    level.spec.type_.clone().into(),
                    cell(shares),
                    cell(queuing.map(|queuing| queuing.queues.unwrap_or(0))),
                    cell(queuing.map(|queuing| queuing.hand_size.unwrap_or(0))),
                    cell(queuing.map(|queuing| queuing.queue_length_limit.unwrap_or(0))),
                    cells::of(&level.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn spec(name: &str, spec: &flow::PriorityLevelConfigurationSpec, path: &Path, errors: &mut FieldErrors) {
    let type_ = spec.type_.as_str();
    if (name == EXEMPT) != (type_ == "Exempt") {
        errors.invalid(&path.child("type"), type_, "must be 'Exempt' if and only if `name` is 'exempt'");
    }
    match type_ {
        "Exempt" => {
            if spec.limited.is_some() {
                errors.forbidden(&path.child("limited"), "must be nil if the type is not Limited");
            }
            if let Some(exempt) = &spec.exempt {
                let path = path.child("exempt");
                shares(exempt.nominal_concurrency_shares, &path, errors);
                percent(exempt.lendable_percent, &path, errors);
            }
        }
        "Limited" => {
            if spec.exempt.is_some() {
                errors.forbidden(&path.child("exempt"), "must be nil if the type is Limited");
            }
            match &spec.limited {
                None => errors.required(&path.child("limited"), "must not be empty when type is Limited"),
                Some(limited) => self::limited(limited, &path.child("limited"), errors),
            }
        }
        _ => errors.not_supported(&path.child("type"), type_, TYPES),
    }
}

fn shares(shares: Option<i32>, path: &Path, errors: &mut FieldErrors) {
    if let Some(shares) = shares.filter(|n| *n < 0) {
        errors.invalid(&path.child("nominalConcurrencyShares"), shares, "must be a non-negative integer");
    }
}

fn percent(percent: Option<i32>, path: &Path, errors: &mut FieldErrors) {
    if let Some(percent) = percent.filter(|n| !(0..=100).contains(n)) {
        errors.invalid(&path.child("lendablePercent"), percent, PERCENT);
    }
}

fn limited(limited: &flow::LimitedPriorityLevelConfiguration, path: &Path, errors: &mut FieldErrors) {
    shares(limited.nominal_concurrency_shares, path, errors);
    response(&limited.limit_response, &path.child("limitResponse"), errors);
    percent(limited.lendable_percent, path, errors);
    if let Some(percent) = limited.borrowing_limit_percent.filter(|n| *n < 0) {
        let wrong = "if specified, must be a non-negative integer";
        errors.invalid(&path.child("borrowingLimitPercent"), percent, wrong);
    }
}

fn response(response: &flow::LimitResponse, path: &Path, errors: &mut FieldErrors) {
    match (response.type_.as_str(), &response.queuing) {
        ("Reject", Some(_)) => {
            errors.forbidden(&path.child("queuing"), "must be nil if limited.limitResponse.type is not Limited")
        }
        ("Reject", None) => {}
        ("Queue", None) => {
            errors.required(&path.child("queuing"), "must not be empty if limited.limitResponse.type is Limited");
        }
        ("Queue", Some(queuing)) => self::queuing(queuing, &path.child("queuing"), errors),
        (other, _) => errors.not_supported(&path.child("type"), other, RESPONSES),
    }
}

fn queuing(queuing: &flow::QueuingConfiguration, path: &Path, errors: &mut FieldErrors) {
    let (length, queues) = (queuing.queue_length_limit.unwrap_or(0), queuing.queues.unwrap_or(0));
    if length <= 0 {
        errors.invalid(&path.child("queueLengthLimit"), length, "must be positive");
    }
    if queues <= 0 {
        errors.invalid(&path.child("queues"), queues, "must be positive");
    } else if queues > MAX_QUEUES {
        errors.invalid(&path.child("queues"), queues, format!("must not be greater than {MAX_QUEUES}"));
    }
    let (hand, path) = (queuing.hand_size.unwrap_or(0), path.child("handSize"));
    if hand <= 0 {
        errors.invalid(&path, hand, "must be positive");
    } else if hand > queues {
        errors.invalid(&path, hand, format!("should not be greater than queues ({queues})"));
    } else if (f64::from(queues).log2() * f64::from(hand)).ceil() > f64::from(MAX_HASH_BITS) {
        let wrong = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {MAX_HASH_BITS}"
        );
        errors.invalid(&path, hand, wrong);
    }
}
