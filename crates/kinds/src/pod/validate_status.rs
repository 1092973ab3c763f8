//! The mistakes in what a node or another reporter says of a pod.

use std::collections::BTreeSet;

use api::meta::api::resource::Quantity as Amount;
use api::types::core::v1::{
    Container, ContainerRestartRule, ContainerStatus, Pod, PodCondition, PodExtendedResourceClaimStatus,
    PodResourceClaimStatus, PodSpec, PodStatus, ResourceStatus, VolumeMountStatus,
};
use machinery::field::{FieldErrors, Path};
use machinery::names;
use serde_json::json;

use crate::addresses;
use crate::check;
use crate::resources;

const NOT_NEGATIVE: &str = "must be a non-negative integer";
/// Conditions whose names are shorter than the rule asks.
const SYSTEM: &[&str] = &["Initialized", "PodScheduled", "Ready"];
const CLAIM: &str = "claim:";
/// The longest message about the health of a device, the longest reference to an image.
const HEALTH_MESSAGE: usize = 1024;
const IMAGE_REFERENCE: usize = 256;

/// The mistakes in a change of status.
pub fn update(new: &Pod, old: &Pod, errors: &mut FieldErrors) {
    let path = Path::new("status");
    let none = PodSpec::default();
    let (spec, old_spec) = (new.spec.as_ref().unwrap_or(&none), old.spec.as_ref().unwrap_or(&none));
    let nothing = PodStatus::default();
    let (status, old_status) = (new.status.as_ref().unwrap_or(&nothing), old.status.as_ref().unwrap_or(&nothing));
    conditions(status.conditions.as_deref().unwrap_or_default(), &path.child("conditions"), errors);
    let node = |spec: &PodSpec| spec.node_name.clone().unwrap_or_default();
    if node(spec) != node(old_spec) {
        errors.forbidden(&path.child("nodeName"), "may not be changed directly");
    }
    let nominated = |status: &PodStatus| status.nominated_node_name.clone().unwrap_or_default();
    let name = nominated(status);
    if !name.is_empty() && name != nominated(old_status) {
        let path = path.child("nominatedNodeName");
        check::all(names::dns1123_subdomain(&name), &path, &name, errors);
        if !node(old_spec).is_empty() {
            errors.forbidden(&path, "may not be set on pods that are already bound to a node");
        }
    }
    if let Some(generation) = status.observed_generation.filter(|n| *n < 0) {
        errors.invalid(&path.child("observedGeneration"), generation, NOT_NEGATIVE);
    }
    check::immutable(&status.qos_class, &old_status.qos_class, &path.child("qosClass"), errors);
    ends(status, old_status, old_spec, &path, errors);
    let claims = status.resource_claim_statuses.as_deref().unwrap_or_default();
    self::claims(claims, spec, &path.child("resourceClaimStatuses"), errors);
    if let Some(claim) = &status.extended_resource_claim_status {
        extended(claim, spec, &path.child("extendedResourceClaimStatus"), errors);
    }
    pod_ips(status, old_status, &path.child("podIPs"), errors);
    host_ips(status, old_status, &path.child("hostIPs"), errors);
    containers(status, spec, &path, errors);
}

fn conditions(conditions: &[PodCondition], path: &Path, errors: &mut FieldErrors) {
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        if let Some(generation) = condition.observed_generation.filter(|n| *n < 0) {
            errors.invalid(&path.child("observedGeneration"), generation, NOT_NEGATIVE);
        }
        if !SYSTEM.contains(&condition.type_.as_str()) {
            check::all(names::qualified_name(&condition.type_), &path.child("Type"), &condition.type_, errors);
        }
    }
}

/// A container that has ended for good stays ended.
fn ends(new: &PodStatus, old: &PodStatus, spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let none = [];
    let inits = spec.init_containers.as_deref().unwrap_or(&none);
    let rules = inits.iter().chain(&spec.containers).flat_map(|c| c.restart_policy_rules.iter().flatten());
    // An end of one container may start all others again.
    let all_may_start = rules.into_iter().any(|rule| rule.action == "RestartAllContainers");
    let lists: [(_, _, _, Option<&[Container]>); 3] = [
        ("containerStatuses", &new.container_statuses, &old.container_statuses, Some(&spec.containers)),
        ("initContainerStatuses", &new.init_container_statuses, &old.init_container_statuses, Some(inits)),
        ("ephemeralContainerStatuses", &new.ephemeral_container_statuses, &old.ephemeral_container_statuses, None),
    ];
    for (field, new, old, of) in lists.into_iter().filter(|(.., of)| of.is_none() || !all_may_start) {
        for (i, before) in old.iter().flatten().enumerate() {
            let Some(ended) = before.state.as_ref().and_then(|state| state.terminated.as_ref()) else { continue };
            let after = new.iter().flatten().find(|after| after.name == before.name);
            let goes_on =
                after.is_some_and(|after| after.state.as_ref().is_none_or(|state| state.terminated.is_none()));
            let container = of.into_iter().flatten().find(|container| container.name == before.name);
            if goes_on && !container.is_some_and(|container| starts_again(container, spec, ended.exit_code)) {
                let path = path.child(field).index(i).child("state");
                errors.forbidden(&path, "may not be transitioned to non-terminated state");
            }
        }
    }
}

fn starts_again(container: &Container, spec: &PodSpec, code: i32) -> bool {
    let is_about = |rule: &&ContainerRestartRule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.iter().flatten().any(|value| *value == code);
            (codes.operator == "In" && listed) || (codes.operator == "NotIn" && !listed)
        })
    };
    let by = |policy: &str| match policy {
        "OnFailure" => code != 0,
        "Never" => false,
        _ => true,
    };
    match container.restart_policy.as_deref() {
        Some(own) => container.restart_policy_rules.iter().flatten().any(|rule| is_about(&rule)) || by(own),
        None => by(spec.restart_policy.as_deref().unwrap_or_default()),
    }
}

fn claims(claims: &[PodResourceClaimStatus], spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, claim) in claims.iter().enumerate() {
        let (name, path) = (claim.name.as_str(), path.index(i));
        if !spec.resource_claims.iter().flatten().any(|one| one.name == name) {
            let wrong = "must match the name of an entry in `spec.resourceClaims`";
            errors.invalid(&path.child("name"), name, wrong);
        }
        if !seen.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
        if let Some(given) = claim.resource_claim_name.as_deref() {
            check::all(names::dns1123_subdomain(given), &path.child("resourceClaimName"), given, errors);
        }
    }
}

/// The claim that stands for devices asked for by the names of resources.
fn extended(claim: &PodExtendedResourceClaimStatus, spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let mappings = path.child("requestMappings");
    if claim.request_mappings.is_empty() {
        errors.required(&mappings, "at least one request mapping is required");
    }
    let mut seen = BTreeSet::new();
    for (i, one) in claim.request_mappings.iter().enumerate() {
        let at = mappings.index(i);
        let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        match all.find(|container| container.name == one.container_name) {
            None => {
                let wrong = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                errors.invalid(&at.child("containerName"), one.container_name.as_str(), wrong);
            }
            Some(container) if request(container, &one.resource_name).is_none() => {
                let wrong = "must match the extended resource name of an entry in \
                             spec.initContainers.resources.requests or spec.containers.resources.requests";
                errors.invalid(&at.child("resourceName"), one.resource_name.as_str(), wrong);
            }
            Some(_) => {}
        }
        // The index is not part of this path.
        let name = one.request_name.as_str();
        check::all(names::dns1123_label(name), &path.child("requestName"), name, errors);
        if !seen.insert((&one.container_name, &one.resource_name, &one.request_name)) {
            errors.duplicate(&at.child("containerName"), one.container_name.as_str());
            errors.duplicate(&at.child("resourceName"), one.resource_name.as_str());
            errors.duplicate(&at.child("requestName"), one.request_name.as_str());
        }
    }
    let (name, path) = (claim.resource_claim_name.as_str(), path.child("resourceClaimName"));
    match name {
        "" => errors.required(&path, ""),
        _ => check::all(names::dns1123_subdomain(name), &path, name, errors),
    }
}

fn request<'a>(container: &'a Container, name: &str) -> Option<&'a Amount> {
    container.resources.as_ref()?.requests.as_ref()?.get(name)
}

fn pod_ips(new: &PodStatus, old: &PodStatus, path: &Path, errors: &mut FieldErrors) {
    let list = |status: &PodStatus| -> Vec<String> {
        status.pod_ips.iter().flatten().map(|address| address.ip.clone()).collect()
    };
    let (addresses, before) = (list(new), list(old));
    families(&addresses, &before, path, errors);
    let (one, first) = (new.pod_ip.as_deref().unwrap_or_default(), addresses.first());
    match first {
        None if one.is_empty() => {}
        Some(first) if !one.is_empty() => {
            if first != one {
                errors.invalid(&path.index(0).child("ip"), first.as_str(), "must be equal to `podIP`");
            }
        }
        _ => {
            let wrong = "podIP and podIPs must either both be set or both be unset";
            errors.invalid(path, printed(&addresses), wrong);
        }
    }
}

fn host_ips(new: &PodStatus, old: &PodStatus, path: &Path, errors: &mut FieldErrors) {
    let list = |status: &PodStatus| -> Vec<String> {
        status.host_ips.iter().flatten().map(|address| address.ip.clone()).collect()
    };
    let (addresses, before) = (list(new), list(old));
    let one = new.host_ip.as_deref().unwrap_or_default();
    if let Some(first) = addresses.first().filter(|first| *first != one) {
        errors.invalid(&path.index(0).child("ip"), first.as_str(), "must be equal to `hostIP`");
    }
    families(&addresses, &before, path, errors);
}

fn printed(addresses: &[String]) -> serde_json::Value {
    addresses.iter().map(|ip| json!({"IP": ip})).collect()
}

/// Sound addresses, and of two one of each family. What was there before is not looked at.
fn families(addresses: &[String], before: &[String], path: &Path, errors: &mut FieldErrors) {
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    for (i, address) in addresses.iter().enumerate() {
        addresses::address(address, &before, &path.index(i), errors);
    }
    if addresses.len() < 2 {
        return;
    }
    let mut v6 = BTreeSet::new();
    for (i, address) in addresses.iter().enumerate() {
        match addresses::read(address) {
            Some(address) => drop(v6.insert(address.is_ipv6())),
            None => {
                let wrong = format!("failed to check for dual stack with error:invalid IP[{i}]: {address}");
                errors.internal(path, wrong);
                v6.clear();
                break;
            }
        }
    }
    if v6.len() != 2 || addresses.len() > 2 {
        errors.invalid(path, printed(addresses), "may specify no more than one IP for each IP family");
    }
}

/// What is told of single containers.
fn containers(status: &PodStatus, spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let windows = spec.os.as_ref().is_some_and(|os| os.name == "windows");
    let claim = status.extended_resource_claim_status.as_ref();
    let lists = [
        ("containerStatuses", &status.container_statuses, Some(&spec.containers)),
        ("initContainerStatuses", &status.init_container_statuses, spec.init_containers.as_ref()),
        ("ephemeralContainerStatuses", &status.ephemeral_container_statuses, None),
    ];
    for (field, statuses, of) in lists {
        for (i, status) in statuses.iter().flatten().enumerate() {
            let path = path.child(field).index(i);
            user(status, windows, &path.child("user").child("linux"), errors);
            let mounts = status.volume_mounts.as_deref().unwrap_or_default();
            self::mounts(mounts, &path.child("volumeMounts"), errors);
            let allocated = status.allocated_resources_status.as_deref().unwrap_or_default();
            let path = path.child("allocatedResourcesStatus");
            if field == "ephemeralContainerStatuses" {
                if !allocated.is_empty() {
                    errors.forbidden(&path, "must not be specified in container status");
                }
                continue;
            }
            let container = of.into_iter().flatten().find(|container| container.name == status.name);
            for (j, one) in allocated.iter().enumerate() {
                self::allocated(one, container, claim, &path.index(j), errors);
            }
        }
    }
}

fn user(status: &ContainerStatus, windows: bool, path: &Path, errors: &mut FieldErrors) {
    let Some(user) = status.user.as_ref().and_then(|user| user.linux.as_ref()) else { return };
    if windows {
        errors.forbidden(path, "cannot be set for a windows pod");
        return;
    }
    // Of a runtime, which may know more users than a pod can ask for.
    if !(0..=i64::from(u32::MAX)).contains(&user.uid) {
        let wrong = format!("must be between 0 and {}, inclusive", u32::MAX);
        errors.invalid(&path.child("uid"), user.uid, wrong);
    }
    let groups = user.supplemental_groups.iter().flatten().enumerate();
    let groups = groups.map(|(i, group)| (*group, path.child("supplementalGroups").index(i)));
    for (group, path) in std::iter::once((user.gid, path.child("gid"))).chain(groups) {
        if !(0..=i64::from(i32::MAX)).contains(&group) {
            errors.invalid(&path, group, check::ID_RANGE);
        }
    }
}

fn mounts(mounts: &[VolumeMountStatus], path: &Path, errors: &mut FieldErrors) {
    for (i, mount) in mounts.iter().enumerate() {
        let Some(image) = mount.volume_status.as_ref().and_then(|status| status.image.as_ref()) else { continue };
        let path = path.index(i).child("volumeStatus").child("imageVolumeStatus").child("imageRef");
        if image.image_ref.is_empty() {
            errors.required(&path, "imageRef must not be empty");
        } else if image.image_ref.len() > IMAGE_REFERENCE {
            errors.too_long(&path, IMAGE_REFERENCE);
        }
    }
}

/// The health of what a container was given.
fn allocated(
    one: &ResourceStatus,
    container: Option<&Container>,
    extended: Option<&PodExtendedResourceClaimStatus>,
    path: &Path,
    errors: &mut FieldErrors,
) {
    // A container that is not there is not looked for: a status may be older than a change.
    if let Some(container) = container {
        let (found, wrong) = if one.name.starts_with(CLAIM) {
            let claims = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
            let named = |claim: &api::types::core::v1::ResourceClaim| match claim.request.as_deref() {
                None | Some("") => format!("{CLAIM}{}", claim.name),
                Some(request) => format!("{CLAIM}{}/{request}", claim.name),
            };
            let found = claims.into_iter().any(|claim| named(claim) == one.name);
            let wrong = "must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when \
                         container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty";
            (found || stands_for(&one.name, container, extended), wrong)
        } else {
            (request(container, &one.name).is_some(), "must match one of the container's resource requests")
        };
        if !found {
            errors.invalid(&path.child("name"), one.name.as_str(), wrong);
        }
    }
    let mut seen = BTreeSet::new();
    for (i, health) in one.resources.iter().flatten().enumerate() {
        let path = path.child("resources").index(i);
        let states = ["Healthy", "Unhealthy", "Unknown"];
        let said = health.health.as_deref().unwrap_or_default();
        check::one_of_or_absent(Some(said), &states, &path.child("health"), errors);
        match health.message.as_deref() {
            Some("") => errors.required(&path.child("message"), "must be non-empty if specified"),
            Some(text) if text.len() > HEALTH_MESSAGE => errors.too_long(&path.child("message"), HEALTH_MESSAGE),
            _ => {}
        }
        if !seen.insert(health.resource_id.as_str()) {
            errors.duplicate(&path.child("resourceID"), health.resource_id.as_str());
        }
    }
}

/// True for `claim:NAME/REQUEST` where that request was made for a resource the container asks for by name.
fn stands_for(name: &str, container: &Container, claim: Option<&PodExtendedResourceClaimStatus>) -> bool {
    let parts = name.strip_prefix(CLAIM).and_then(|rest| rest.split_once('/'));
    let (Some(claim), Some((of, asked))) = (claim, parts) else { return false };
    of == claim.resource_claim_name
        && !asked.is_empty()
        && claim.request_mappings.iter().any(|one| {
            one.container_name == container.name
                && one.request_name == asked
                && request(container, &one.resource_name)
                    .and_then(resources::parse)
                    .is_some_and(|amount| amount.milli() != 0)
        })
}
