//! The mistakes in a pod or in the pod part of a template.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::types::core::v1::{Pod, PodDNSConfig, PodSecurityContext, PodSpec, ResourceRequirements};
use machinery::field::{FieldErrors, Path};
use machinery::names;

use super::{
    validate_annotations, validate_app_armor, validate_claims, validate_container, validate_os, validate_scheduling,
    validate_seccomp, validate_volume, warnings,
};
use crate::check;
use crate::resources;

/// Whether a spec stands alone or in a template, where some things are decided later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    Pod,
    Template,
}

const RESTART: &[&str] = &["Always", "OnFailure", "Never"];
const DNS: &[&str] = &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
const NAMESERVERS: usize = 3;
const SEARCHES: usize = 32;
const SEARCH_CHARS: usize = 2048;
/// What the kernel takes.
const HOSTNAME: usize = 64;

/// The mistakes in a pod, which may be new, beyond metadata.
pub fn pod(pod: &Pod, is_new: bool, errors: &mut FieldErrors) {
    let path = Path::new("spec");
    let none = PodSpec::default();
    let own = pod.spec.as_ref().unwrap_or(&none);
    let annotations = Path::new("metadata").child("annotations");
    validate_annotations::all(pod.metadata.annotations.as_ref(), own, is_new, &annotations, errors);
    if api::pod::is_mirror(pod) && own.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        errors.forbidden(&Path::new("[]"), "static pods do not support resource claims");
    }
    spec(own, Where::Pod, &path, errors);
    claim_names(pod, own, &path.child("volumes"), errors);
    if own.service_account_name.as_deref().unwrap_or_default().is_empty() {
        for (i, volume) in own.volumes.iter().flatten().enumerate() {
            let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
            for (j, _) in sources.enumerate().filter(|(_, source)| source.service_account_token.is_some()) {
                let path = path.child("volumes").index(i).child("projected").child("sources").index(j);
                let wrong = "must not be specified when serviceAccountName is not set";
                errors.forbidden(&path.child("serviceAccountToken"), wrong);
            }
        }
    }
}

/// The names of the claims that are made for the pod.
fn claim_names(pod: &Pod, spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let made = |volume: &str| format!("{}-{volume}", pod.metadata.name.as_deref().unwrap_or_default());
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    let ephemeral = volumes.iter().filter(|volume| volume.ephemeral.is_some());
    let names: BTreeSet<String> = ephemeral.map(|volume| made(&volume.name)).collect();
    for (i, volume) in volumes.iter().enumerate() {
        let path = path.index(i);
        if volume.ephemeral.is_some() && !volume.name.is_empty() {
            let name = made(&volume.name);
            for wrong in names::dns1123_subdomain(&name) {
                errors.invalid(&path.child("name"), volume.name.as_str(), format!("PVC name {name:?}: {wrong}"));
            }
        }
        if let Some(claim) = volume.persistent_volume_claim.as_ref().filter(|claim| names.contains(&claim.claim_name)) {
            let wrong = "must not reference a PVC that gets created for an ephemeral volume";
            errors.invalid(&path.child("persistentVolumeClaim").child("claimName"), claim.claim_name.as_str(), wrong);
        }
    }
}

/// What a pod may not bring along.
pub fn new_pod(pod: &Pod, errors: &mut FieldErrors) {
    // They come through their own subresource, never with the pod.
    let containers = pod.spec.as_ref().and_then(|spec| spec.ephemeral_containers.as_ref());
    if containers.is_some_and(|containers| !containers.is_empty()) {
        errors.forbidden(&Path::new("spec").child("ephemeralContainers"), "cannot be set on create");
    }
    if let Some(spec) = &pod.spec {
        validate_seccomp::alike(pod.metadata.annotations.as_ref(), spec, &Path::new("spec"), errors);
        validate_app_armor::alike(pod.metadata.annotations.as_ref(), spec, &Path::new("spec"), errors);
    }
}

/// The mistakes in a spec.
pub fn spec(spec: &PodSpec, place: Where, path: &Path, errors: &mut FieldErrors) {
    validate_volume::all(spec, &path.child("volumes"), errors);
    validate_claims::of_pod(spec, &path.child("resourceClaims"), errors);
    validate_container::all(spec, path, errors);
    check::one_of(spec.restart_policy.as_deref(), RESTART, &path.child("restartPolicy"), errors);
    check::one_of(spec.dns_policy.as_deref(), DNS, &path.child("dnsPolicy"), errors);
    let selector = spec.node_selector.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
    crate::metadata::validate_labels(selector, &path.child("nodeSelector"), errors);
    if let Some(context) = &spec.security_context {
        security(spec, context, place, path, errors);
    }
    validate_os::host_processes(spec, path, errors);
    for (i, secret) in spec.image_pull_secrets.iter().flatten().enumerate() {
        if secret.name.is_empty() {
            errors.required(&path.child("imagePullSecrets").index(i).child("name"), "");
        }
    }
    validate_scheduling::affinity(spec.affinity.as_ref(), &path.child("affinity"), errors);
    dns(spec.dns_config.as_ref(), spec.dns_policy.as_deref(), &path.child("dnsConfig"), errors);
    for (i, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let path = path.child("readinessGates").index(i).child("conditionType");
        check::all(names::qualified_name(&gate.condition_type), &path, &gate.condition_type, errors);
    }
    validate_scheduling::spread(spec, &path.child("topologySpreadConstraints"), errors);
    gates(spec, path, errors);
    host_aliases(spec, &path.child("hostAliases"), errors);
    let named = |name: &Option<String>, field: &str, rule: fn(&str) -> Vec<String>, errors: &mut FieldErrors| {
        if let Some(name) = name.as_deref().filter(|name| !name.is_empty()) {
            check::all(rule(name), &path.child(field), name, errors);
        }
    };
    named(&spec.service_account_name, "serviceAccountName", names::dns1123_subdomain, errors);
    named(&spec.node_name, "nodeName", names::dns1123_subdomain, errors);
    if let Some(seconds) = spec.active_deadline_seconds {
        if !(1..=i64::from(i32::MAX)).contains(&seconds) {
            let wrong = "must be between 1 and 2147483647, inclusive";
            errors.invalid(&path.child("activeDeadlineSeconds"), seconds, wrong);
        }
    }
    named(&spec.hostname, "hostname", names::dns1123_label, errors);
    named(&spec.subdomain, "subdomain", names::dns1123_label, errors);
    hostname_override(spec, &path.child("hostnameOverride"), errors);
    host_users(spec, path, errors);
    validate_scheduling::tolerations(&spec.tolerations, &path.child("tolerations"), errors);
    named(&spec.priority_class_name, "priorityClassName", names::dns1123_subdomain, errors);
    named(&spec.runtime_class_name, "runtimeClassName", names::dns1123_subdomain, errors);
    let preemption = ["PreemptLowerPriority", "Never"];
    if spec.preemption_policy.is_some() {
        check::one_of(spec.preemption_policy.as_deref(), &preemption, &path.child("preemptionPolicy"), errors);
    }
    for (name, amount) in spec.overhead.iter().flatten() {
        if resources::parse(amount).is_some_and(|quantity| quantity.is_negative()) {
            let path = path.child("overhead").key(name);
            errors.invalid(&path, amount.0.as_str(), check::NOT_NEGATIVE);
        }
    }
    if let Some(whole) = &spec.resources {
        self::whole(spec, whole, &path.child("resources"), errors);
    }
    if let Some(os) = &spec.os {
        check::one_of(Some(&os.name), &["linux", "windows"], &path.child("os").child("name"), errors);
    }
    validate_os::all(spec, path, errors);
    if place == Where::Pod {
        host_ports(spec, path, errors);
    }
}

/// A hostname that is whole as it is goes with nothing else that makes one.
fn hostname_override(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let Some(name) = spec.hostname_override.as_deref() else { return };
    if spec.set_hostname_as_fqdn == Some(true) {
        errors.forbidden(path, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec.host_network == Some(true) {
        errors.forbidden(path, "may not be specified when hostNetwork is true");
    }
    if name.len() > HOSTNAME {
        errors.too_long(path, HOSTNAME);
    }
    check::all(names::dns1123_subdomain(name), path, name, errors);
}

/// Users of its own go with no other part of the host.
fn host_users(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    if spec.host_users != Some(false) {
        return;
    }
    let wrong = "when `hostUsers` is false";
    for (field, given) in [("hostNetwork", spec.host_network), ("HostPID", spec.host_pid), ("HostIPC", spec.host_ipc)] {
        if given == Some(true) {
            errors.forbidden(&path.child(field), wrong);
        }
    }
    for (container, path) in warnings::containers(spec, path) {
        if container.volume_devices.is_some_and(|devices| !devices.is_empty()) {
            errors.forbidden(&path.child("volumeDevices"), wrong);
        }
    }
}

/// What a pod is given as a whole: enough for what its containers ask for, and no container may use more.
fn whole(spec: &PodSpec, whole: &ResourceRequirements, path: &Path, errors: &mut FieldErrors) {
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return errors.forbidden(path, "may not be set for a windows pod");
    }
    if whole.claims.is_some() {
        errors.forbidden(&path.child("claims"), "claims may not be set for Resources at pod-level");
    }
    validate_container::requirements(whole, path, errors);
    let amount = |list: &Option<resources::List>, name: &str| list.as_ref()?.get(name).and_then(resources::parse);
    for (name, together) in resources::sum_of_requests(spec) {
        if let Some(given) = amount(&whole.requests, &name).filter(|given| together > *given) {
            let wrong = format!("must be greater than or equal to aggregate container requests of {together}");
            errors.invalid(&path.child("requests").key(&name), given.to_string(), wrong);
        }
    }
    // Of huge pages a pod cannot use more than it asks for: the pod's limit holds all containers'.
    let pages = resources::sum_of_limits(spec).into_iter().filter(|(name, _)| name.starts_with("hugepages-"));
    for (name, together) in pages {
        if let Some(given) = amount(&whole.limits, &name).filter(|given| together > *given) {
            let wrong = format!("must be greater than or equal to aggregate container limits of {together}");
            errors.invalid(&path.child("limits").key(&name), given.to_string(), wrong);
        }
    }
    for (i, container) in spec.containers.iter().enumerate() {
        let limits = container.resources.iter().flat_map(|resources| resources.limits.iter().flatten());
        for (name, limit) in limits.filter_map(|(name, limit)| Some((name, resources::parse(limit)?))) {
            if let Some(given) = amount(&whole.limits, name).filter(|given| limit > *given) {
                let path = path.child("containers").index(i).key(name).child("limits");
                errors.invalid(
                    &path,
                    limit.to_string(),
                    format!("must be less than or equal to pod limits of {given}"),
                );
            }
        }
    }
}

fn gates(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        let path = path.child("schedulingGates").index(i);
        check::all(names::qualified_name(&gate.name), &path, &gate.name, errors);
        if !seen.insert(&gate.name) {
            errors.duplicate(&path, gate.name.as_str());
        }
    }
    if !seen.is_empty() && spec.node_name.as_deref().is_some_and(|name| !name.is_empty()) {
        errors.forbidden(&path.child("nodeName"), "cannot be set until all schedulingGates have been cleared");
    }
}

fn host_aliases(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = path.index(i);
        if alias.ip.parse::<IpAddr>().is_err() {
            errors.invalid(&path.child("ip"), alias.ip.as_str(), check::IP_ADDRESS);
        }
        for (j, name) in alias.hostnames.iter().flatten().enumerate() {
            check::all(names::dns1123_subdomain(name), &path.child("hostnames").index(j), name, errors);
        }
    }
}

fn dns(config: Option<&PodDNSConfig>, policy: Option<&str>, path: &Path, errors: &mut FieldErrors) {
    let nameservers = config.and_then(|config| config.nameservers.as_deref()).unwrap_or_default();
    if policy == Some("None") {
        if config.is_none() {
            errors.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
            return;
        }
        if nameservers.is_empty() {
            let wrong = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.required(&path.child("nameservers"), wrong);
            return;
        }
    }
    let Some(config) = config else { return };
    if nameservers.len() > NAMESERVERS {
        let wrong = format!("must not have more than {NAMESERVERS} nameservers");
        errors.invalid(&path.child("nameservers"), check::value(&nameservers), wrong);
    }
    for (i, server) in nameservers.iter().enumerate() {
        if server.parse::<IpAddr>().is_err() {
            errors.invalid(&path.child("nameservers").index(i), server.as_str(), check::IP_ADDRESS);
        }
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    let searches_path = path.child("searches");
    if searches.len() > SEARCHES {
        let wrong = format!("must not have more than {SEARCHES} search paths");
        errors.invalid(&searches_path, check::value(&searches), wrong);
    }
    if searches.join(" ").len() > SEARCH_CHARS {
        let wrong = format!("must not have more than {SEARCH_CHARS} characters (including spaces) in the search list");
        errors.invalid(&searches_path, check::value(&searches), wrong);
    }
    for (i, search) in searches.iter().enumerate() {
        let name = search.strip_suffix('.').unwrap_or(search).replace('_', "-");
        if search != "." {
            check::all(names::dns1123_subdomain(&name), &searches_path.index(i), search, errors);
        }
    }
    for (i, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            errors.required(&path.child("options").index(i), "must not be empty");
        }
    }
}

fn security(spec: &PodSpec, context: &PodSecurityContext, place: Where, path: &Path, errors: &mut FieldErrors) {
    if spec.host_network == Some(true) {
        for (field, containers) in
            [("containers", Some(&spec.containers)), ("initContainers", spec.init_containers.as_ref())]
        {
            for (i, container) in containers.into_iter().flatten().enumerate() {
                for (j, port) in container.ports.iter().flatten().enumerate() {
                    // In a template it may be left out: it is filled in when a pod is made.
                    let host = port.host_port.unwrap_or(0);
                    if (place == Where::Pod || host != 0) && host != port.container_port {
                        errors.invalid(
                            &path.child(field).index(i).child("ports").index(j).child("hostPort"),
                            host,
                            "must match `containerPort` when `hostNetwork` is true",
                        );
                    }
                }
            }
        }
    }
    let path = path.child("securityContext");
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        errors.invalid(
            &path.child("shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    for (id, field) in
        [(context.fs_group, "fsGroup"), (context.run_as_user, "runAsUser"), (context.run_as_group, "runAsGroup")]
    {
        if let Some(id) = id.filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
            errors.invalid(&path.child(field), id, check::ID_RANGE);
        }
    }
    for (i, id) in context.supplemental_groups.iter().flatten().enumerate() {
        if !(0..=i64::from(i32::MAX)).contains(id) {
            errors.invalid(&path.child("supplementalGroups").index(i), *id, check::ID_RANGE);
        }
    }
    let mut seen = BTreeSet::new();
    for (i, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let path = path.child("sysctls").index(i).child("name");
        if sysctl.name.is_empty() {
            errors.required(&path, "");
        } else if !is_sysctl(&sysctl.name) {
            let wrong = "must have at most 253 characters and match regex \
                         ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            errors.invalid(&path, sysctl.name.as_str(), wrong);
        } else if !seen.insert(&sysctl.name) {
            errors.duplicate(&path, sysctl.name.as_str());
        } else if let Some(of_host) = shared_with_host(spec, &sysctl.name) {
            let wrong = format!("may not be specified when '{of_host}' is true");
            errors.invalid(&path, sysctl.name.as_str(), wrong);
        }
    }
    if let Some(policy) = context.fs_group_change_policy.as_deref() {
        let supported = ["Always", "OnRootMismatch"];
        check::one_of(Some(policy), &supported, &path.child("fsGroupChangePolicy"), errors);
    }
    if let Some(policy) = context.supplemental_groups_policy.as_deref() {
        let supported = ["Merge", "Strict"];
        check::one_of(Some(policy), &supported, &path.child("supplementalGroupsPolicy"), errors);
    }
    if let Some(profile) = &context.seccomp_profile {
        validate_seccomp::field(profile, &path.child("seccompProfile"), errors);
    }
    if let Some(options) = &context.windows_options {
        validate_os::options(options, &path.child("windowsOptions"), errors);
    }
    if let Some(profile) = &context.app_armor_profile {
        validate_app_armor::field(profile, &path.child("appArmorProfile"), errors);
    }
    if let Some(policy) = context.se_linux_change_policy.as_deref() {
        let supported = ["MountOption", "Recursive"];
        check::one_of(Some(policy), &supported, &path.child("seLinuxChangePolicy"), errors);
    }
}

/// Why a setting would be the host's: the pod is in the namespace of the host that it belongs to.
fn shared_with_host(spec: &PodSpec, name: &str) -> Option<&'static str> {
    let name = name.replace('/', ".");
    let of_ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|start| name.starts_with(start));
    match () {
        () if spec.host_network == Some(true) && name.starts_with("net.") => Some("hostNetwork"),
        () if spec.host_ipc == Some(true) && (of_ipc || name == "kernel.sem") => Some("hostIPC"),
        () => None,
    }
}

fn is_sysctl(name: &str) -> bool {
    name.len() <= 253
        && name.split(['.', '/']).all(|part| {
            let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
            edge(part.bytes().next())
                && edge(part.bytes().last())
                && part.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-_".contains(&c))
        })
}

/// A port of the node serves one container.
fn host_ports(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    for (field, containers) in
        [("containers", Some(&spec.containers)), ("initContainers", spec.init_containers.as_ref())]
    {
        let mut seen = BTreeSet::new();
        for (i, container) in containers.into_iter().flatten().enumerate() {
            for (j, port) in container.ports.iter().flatten().enumerate() {
                let Some(host) = port.host_port.filter(|port| *port != 0) else { continue };
                let protocol = port.protocol.as_deref().unwrap_or("TCP");
                let key = format!("{protocol}/{}/{host}", port.host_ip.as_deref().unwrap_or_default());
                if !seen.insert(key.clone()) {
                    let path = path.child(field).index(i).child("ports").index(j).child("hostPort");
                    errors.duplicate(&path, key);
                }
            }
        }
    }
}
