//! Amounts of resources in objects: rounding, sums, and which names may stand where.

use std::borrow::Cow;
use std::collections::BTreeMap;

use api::meta::api::resource::Quantity as Amount;
use api::types::core::v1::{PodSpec, ResourceRequirements};
use machinery::field::{FieldErrors, Path};
use machinery::names;
use machinery::quantity::Quantity;

use crate::check;

/// A list of amounts as objects carry it.
pub type List = BTreeMap<String, Amount>;

/// The amount, when it can be read.
pub fn parse(amount: &Amount) -> Option<Quantity> {
    amount.0.parse().ok()
}

/// Rounds every amount up to thousandths; what is not finer keeps its form.
pub fn round(list: &mut Option<List>) {
    for amount in list.iter_mut().flatten().map(|(_, amount)| amount) {
        let Some(quantity) = parse(amount) else { continue };
        let rounded = quantity.rounded_to_milli();
        let text = if rounded == quantity {
            machinery::quantity::canonical(&amount.0).map(Cow::into_owned).unwrap_or_default()
        } else {
            rounded.to_string()
        };
        if text != amount.0 {
            amount.0 = text;
        }
    }
}

/// Both lists of a container.
pub fn round_requirements(resources: &mut Option<ResourceRequirements>) {
    if let Some(resources) = resources {
        round(&mut resources.limits);
        round(&mut resources.requests);
    }
}

/// What the containers of a pod ask for together: the larger of all that run at once and of each
/// init container with the sidecars started before it.
pub fn sum_of_requests(spec: &PodSpec) -> BTreeMap<String, Quantity> {
    sum(spec, |resources| resources.requests.as_ref())
}

/// What they may use together, in the same way.
pub fn sum_of_limits(spec: &PodSpec) -> BTreeMap<String, Quantity> {
    sum(spec, |resources| resources.limits.as_ref())
}

fn sum(spec: &PodSpec, of: fn(&ResourceRequirements) -> Option<&List>) -> BTreeMap<String, Quantity> {
    let mut sum: BTreeMap<String, Quantity> = BTreeMap::new();
    let mut peak: BTreeMap<String, Quantity> = BTreeMap::new();
    let amounts = |resources: &Option<ResourceRequirements>| -> Vec<(String, Quantity)> {
        let list = resources.as_ref().and_then(of);
        list.into_iter().flatten().filter_map(|(n, a)| Some((n.clone(), parse(a)?))).collect()
    };
    for container in spec.init_containers.iter().flatten() {
        let sidecar = container.restart_policy.as_deref() == Some("Always");
        for (name, amount) in amounts(&container.resources) {
            let running = sum.get(&name).copied().unwrap_or(Quantity::ZERO);
            let together = running.add(&amount);
            if sidecar {
                sum.insert(name.clone(), together);
            }
            let highest = peak.entry(name).or_insert(together);
            if together > *highest {
                *highest = together;
            }
        }
    }
    for container in &spec.containers {
        for (name, amount) in amounts(&container.resources) {
            let together = sum.get(&name).map_or(amount, |running| running.add(&amount));
            sum.insert(name, together);
        }
    }
    for (name, highest) in peak {
        let total = sum.entry(name).or_insert(highest);
        if highest > *total {
            *total = highest;
        }
    }
    sum
}

/// The name of anything that there is an amount of; `path` leads to it.
pub fn name(name: &str, path: &Path, errors: &mut FieldErrors) {
    let wrong = names::qualified_name(name);
    if !wrong.is_empty() {
        check::all(wrong, path, name, errors);
    } else if !name.contains('/') && !is_standard(name) {
        errors.invalid(path, name, "must be a standard resource type or fully qualified");
    }
}

/// The name of what a container may ask for; `path` leads to it.
pub fn container_name(name: &str, path: &Path, errors: &mut FieldErrors) {
    check::all(names::qualified_name(name), path, name, errors);
    if !name.contains('/') {
        if !is_standard(name) {
            errors.invalid(path, name, "must be a standard resource type or fully qualified");
        }
        if !is_standard_for_containers(name) {
            errors.invalid(path, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && name.starts_with("requests.") {
        errors.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

/// Resources every container may ask for.
pub fn is_standard_for_containers(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
}

/// Names without a domain that mean something somewhere.
pub fn is_standard(name: &str) -> bool {
    is_standard_for_containers(name)
        || name.starts_with("requests.")
        || name.starts_with("limits.")
        || matches!(
            name,
            "storage"
                | "pods"
                | "services"
                | "replicationcontrollers"
                | "resourcequotas"
                | "secrets"
                | "configmaps"
                | "persistentvolumeclaims"
                | "services.loadbalancers"
                | "services.nodeports"
        )
}

/// Names the project itself defines: without a domain, or of its own.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.split('/').next().is_some_and(|d| d == "kubernetes.io" || d.ends_with(".kubernetes.io"))
}

/// Resources whose amounts are whole numbers.
pub fn is_whole(name: &str) -> bool {
    !is_native(name) || matches!(name, "pods" | "services" | "secrets" | "configmaps" | "resourcequotas")
}

/// Resources that can be promised only once: a request equals its limit.
pub fn is_exclusive(name: &str) -> bool {
    !is_native(name) || name.starts_with("hugepages-")
}
