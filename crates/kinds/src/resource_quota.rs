//! ResourceQuota: how much of what the objects of a namespace may take together.

use std::collections::BTreeSet;

use api::types::core::v1 as core;
use api::types::core::v1::ResourceQuotaSpec;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use machinery::quantity::Quantity;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::resources::{self, List};
use crate::shape::Shape;

const SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];
/// Scopes that an object is in or not, whatever the values.
const BARE_SCOPES: &[&str] =
    &["BestEffort", "CrossNamespacePodAffinity", "NotBestEffort", "NotTerminating", "Terminating"];
const CONFLICTS: &[[&str; 2]] = &[["BestEffort", "NotBestEffort"], ["NotTerminating", "Terminating"]];
const COMPUTE: &[&str] = &["cpu", "limits.cpu", "limits.memory", "memory", "pods", "requests.cpu", "requests.memory"];
const NOT_FOR_RESOURCE: &str = "unsupported scope applied to resource";

pub struct ResourceQuota;

impl Kind for ResourceQuota {
    type Object = core::ResourceQuota;
    const SHAPE: Shape = Shape::namespaced("", "v1", "ResourceQuota", "resourcequotas")
        .singular("resourcequota")
        .short(&["quota"])
        .answers_deleted()
        .status_without_generation();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, quota: &mut Self::Object) {
        if let Some(spec) = &mut quota.spec {
            resources::round(&mut spec.hard);
        }
        if let Some(status) = &mut quota.status {
            resources::round(&mut status.hard);
            resources::round(&mut status.used);
        }
    }

    fn validate(_ctx: &Ctx, quota: &Self::Object, errors: &mut FieldErrors) {
        let Some(spec) = &quota.spec else { return };
        let path = Path::new("spec");
        amounts(&spec.hard, &path.child("hard"), errors);
        scopes(spec, &path.child("scopes"), errors);
        selector(spec, &path.child("scopeSelector").child("matchExpressions"), errors);
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let set = |quota: &Self::Object| -> BTreeSet<String> {
            quota.spec.iter().flat_map(|spec| spec.scopes.iter().flatten().cloned()).collect()
        };
        if set(new) != set(old) {
            let shown = new.spec.as_ref().and_then(|spec| spec.scopes.clone()).unwrap_or_default();
            errors.invalid(&Path::new("spec").child("scopes"), shown, check::IMMUTABLE);
        }
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        let Some(status) = &new.status else { return };
        let path = Path::new("status");
        amounts(&status.hard, &path.child("hard"), errors);
        amounts(&status.used, &path.child("used"), errors);
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        let hard = new.spec.as_ref().and_then(|spec| spec.hard.as_ref()).filter(|_| old.is_none());
        let Some(hard) = hard else { return Vec::new() };
        let amount = |name: String| {
            let amount = hard.get(&name).and_then(resources::parse)?;
            Some((name, amount))
        };
        let mut out = Vec::new();
        for name in ["cpu", "memory", "storage", "ephemeral-storage"] {
            // The older names of requests.
            let bare = || amount(name.to_owned()).filter(|_| matches!(name, "cpu" | "memory"));
            let request = amount(format!("requests.{name}")).or_else(bare);
            if let (Some((of, request)), Some((than, limit))) = (request, amount(format!("limits.{name}"))) {
                if request > limit {
                    out.push(format!("ResourceQuota {of} ({request}) should be less than {than} ({limit})"));
                }
            }
        }
        out
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Request", "What is used of what may be asked for."),
                    Column::text("Limit", "What is used of the limits."),
                    Column::AGE,
                ]
            },
            row: |quota, now| {
                let (mut requests, mut limits) = (Vec::new(), Vec::new());
                let status = quota.status.clone().unwrap_or_default();
                for (name, hard) in status.hard.iter().flatten() {
                    let used = status.used.as_ref().and_then(|used| used.get(name));
                    let used = used.map_or("0", |used| used.0.as_str());
                    let list = if name.starts_with("limits.") { &mut limits } else { &mut requests };
                    list.push(format!("{name}: {used}/{}", hard.0));
                }
                let cells = [requests.join(", ").into(), limits.join(", ").into()];
                let [requests, limits] = cells;
                (vec![cells::name(&quota.metadata), requests, limits, cells::of(&quota.metadata, now)], Vec::new())
            },
        }
    }
}

/// Names and amounts of what is counted.
fn amounts(list: &Option<List>, path: &Path, errors: &mut FieldErrors) {
    for (name, amount) in list.iter().flatten() {
        let path = path.key(name);
        resources::name(name, &path, errors);
        if !name.contains('/') && !is_standard(name) {
            errors.invalid(&path, name.as_str(), "must be a standard resource for quota");
        }
        let Some(quantity) = resources::parse(amount) else { continue };
        if quantity < Quantity::ZERO {
            errors.invalid(&path, quantity.to_string(), check::NOT_NEGATIVE);
        }
        if is_whole(name) && quantity.milli() % 1000 != 0 {
            errors.invalid(&path, quantity.to_string(), "must be an integer");
        }
    }
}

/// Names without a domain that are counted.
fn is_standard(name: &str) -> bool {
    COMPUTE.contains(&name)
        || matches!(
            name,
            "ephemeral-storage"
                | "requests.ephemeral-storage"
                | "limits.ephemeral-storage"
                | "requests.storage"
                | "resourcequotas"
                | "services"
                | "replicationcontrollers"
                | "secrets"
                | "persistentvolumeclaims"
                | "configmaps"
                | "services.nodeports"
                | "services.loadbalancers"
        )
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

fn is_whole(name: &str) -> bool {
    let counted = matches!(
        name,
        "pods"
            | "resourcequotas"
            | "services"
            | "replicationcontrollers"
            | "secrets"
            | "configmaps"
            | "persistentvolumeclaims"
            | "services.nodeports"
            | "services.loadbalancers"
    );
    counted || (!resources::is_native(name) && !name.starts_with("requests."))
}

/// True when a scope makes sense for what is counted under a standard name.
fn fits(scope: &str, name: &str) -> bool {
    match scope {
        "BestEffort" => name == "pods",
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            COMPUTE.contains(&name)
        }
        "VolumeAttributesClass" => matches!(name, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

fn misfits(spec: &ResourceQuotaSpec, scope: &str) -> usize {
    let names = spec.hard.iter().flatten().map(|(name, _)| name);
    names.filter(|name| is_standard(name) && !fits(scope, name)).count()
}

fn scopes(spec: &ResourceQuotaSpec, path: &Path, errors: &mut FieldErrors) {
    let scopes = spec.scopes.as_deref().unwrap_or_default();
    let shown = || check::value(&scopes);
    for scope in scopes {
        if !SCOPES.contains(&scope.as_str()) {
            errors.invalid(path, shown(), "unsupported scope");
        }
        for _ in 0..misfits(spec, scope) {
            errors.invalid(path, shown(), NOT_FOR_RESOURCE);
        }
    }
    for pair in CONFLICTS {
        if pair.iter().all(|scope| scopes.iter().any(|given| given == scope)) {
            errors.invalid(path, shown(), "conflicting scopes");
        }
    }
}

fn selector(spec: &ResourceQuotaSpec, path: &Path, errors: &mut FieldErrors) {
    let Some(selector) = &spec.scope_selector else { return };
    let terms = selector.match_expressions.as_deref().unwrap_or_default();
    for term in terms {
        let scope = term.scope_name.as_str();
        if !SCOPES.contains(&scope) {
            errors.invalid(&path.child("scopeName"), scope, "unsupported scope");
        }
        for _ in 0..misfits(spec, scope) {
            errors.invalid(path, check::value(selector), NOT_FOR_RESOURCE);
        }
        if BARE_SCOPES.contains(&scope) && term.operator != "Exists" {
            let wrong = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                         ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
                         ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(&path.child("operator"), term.operator.as_str(), wrong);
        }
        let values = term.values.as_deref().unwrap_or_default();
        match term.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                let wrong = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.required(&path.child("values"), wrong);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let wrong = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.invalid(&path.child("values"), check::value(&values), wrong);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
    }
    for pair in CONFLICTS {
        if pair.iter().all(|scope| terms.iter().any(|term| term.scope_name == *scope)) {
            errors.invalid(path, check::value(&spec.scopes), "conflicting scopes");
        }
    }
}
