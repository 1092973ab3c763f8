//! What an unset field of a pod (or of a pod template) means.

use std::collections::BTreeMap;

use api::meta::api::resource::Quantity as Amount;
use api::types::core::v1::{
    Container, EnvVar, EphemeralContainer, Lifecycle, LifecycleHandler, Pod, PodIP, PodSpec, PodStatus,
    PodTemplateSpec, Probe, ResourceRequirements, Volume,
};

use crate::resources;

/// Fills an absent or empty text.
fn text(field: &mut Option<String>, default: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(default.to_owned());
    }
}

/// Fills an absent number, and for probes also zero.
fn number(field: &mut Option<i32>, default: i32) {
    if field.unwrap_or(0) == 0 {
        *field = Some(default);
    }
}

/// `Always` for a reference that can move (`latest`, or neither tag nor digest).
pub fn pull_policy(image: &str) -> &'static str {
    let name = image.split('@').next().unwrap_or_default();
    let last = name.rsplit('/').next().unwrap_or_default();
    let tag = last.split_once(':').map(|(_, tag)| tag);
    let moves = match tag {
        Some(tag) => tag == "latest",
        None => !image.is_empty() && !image.contains('@'),
    };
    if moves { "Always" } else { "IfNotPresent" }
}

/// The defaults of a pod.
pub fn pod(pod: &mut Pod) {
    {
        let spec = pod.spec.get_or_insert_default();
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            requests_from_limits(&mut container.resources);
        }
        if spec.enable_service_links.is_none() {
            spec.enable_service_links = Some(true);
        }
        if spec.host_network == Some(true) {
            host_ports(spec);
        }
        if spec.termination_grace_period_seconds.is_some_and(|s| s < 0) {
            spec.termination_grace_period_seconds = Some(1);
        }
        pod_spec(spec);
        pod_level_requests(spec);
    }
    if let Some(status) = &mut pod.status {
        addresses(status);
        for container in status
            .container_statuses
            .iter_mut()
            .chain(&mut status.init_container_statuses)
            .chain(&mut status.ephemeral_container_statuses)
            .flatten()
        {
            resources::round(&mut container.allocated_resources);
            resources::round_requirements(&mut container.resources);
        }
    }
}

/// The defaults of a pod template.
pub fn template(template: &mut PodTemplateSpec) {
    pod_spec(template.spec.get_or_insert_default());
}

/// `podIP` and the first of `podIPs` are one address; the single one wins when they differ.
fn addresses(status: &mut PodStatus) {
    let first = status.pod_ips.iter().flatten().next().map(|ip| ip.ip.clone());
    match (&status.pod_ip, first) {
        (Some(ip), first) if !ip.is_empty() && first.as_deref() != Some(ip) => {
            status.pod_ips = Some(vec![PodIP { ip: ip.clone() }]);
        }
        (_, first) => status.pod_ip = first,
    }
}

fn host_ports(spec: &mut PodSpec) {
    let containers = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
    for port in containers.flat_map(|container| container.ports.iter_mut().flatten()) {
        if port.host_port.unwrap_or(0) == 0 {
            port.host_port = Some(port.container_port);
        }
    }
}

fn requests_from_limits(resources: &mut Option<ResourceRequirements>) {
    let Some(resources) = resources else { return };
    for (name, limit) in resources.limits.iter().flatten() {
        let requests = resources.requests.get_or_insert_default();
        if !requests.contains_key(name) {
            requests.insert(name.clone(), limit.clone());
        }
    }
}

/// With limits for the whole pod, what is asked for the whole pod is the sum of what its containers
/// ask, else the limit.
fn pod_level_requests(spec: &mut PodSpec) {
    let Some(limits) = spec.resources.as_ref().and_then(|r| r.limits.clone()).filter(|l| !l.is_empty()) else { return };
    let sums = resources::sum_of_requests(spec);
    let Some(resources) = &mut spec.resources else { return };
    let requests = resources.requests.get_or_insert_default();
    for name in ["cpu", "memory"] {
        if requests.contains_key(name) {
            continue;
        }
        if let Some(amount) = sums.get(name) {
            requests.insert(name.into(), Amount(amount.to_string()));
        }
    }
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

/// The defaults a pod and a pod template share.
fn pod_spec(spec: &mut PodSpec) {
    text(&mut spec.dns_policy, "ClusterFirst");
    text(&mut spec.restart_policy, "Always");
    text(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    spec.termination_grace_period_seconds.get_or_insert(30);
    service_account(spec);
    resources::round(&mut spec.overhead);
    resources::round_requirements(&mut spec.resources);
    for volume in spec.volumes.iter_mut().flatten() {
        self::volume(volume);
    }
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        self::container(container);
    }
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        ephemeral(container);
    }
}

/// The account has two names; the newer one decides, the older one follows it.
pub fn service_account(spec: &mut PodSpec) {
    let given = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    let name = given(&spec.service_account_name).or_else(|| given(&spec.service_account));
    if name.is_some() {
        spec.service_account_name.clone_from(&name);
    }
    spec.service_account = name;
}

fn container(container: &mut Container) {
    let image = container.image.as_deref().unwrap_or_default();
    text(&mut container.image_pull_policy, pull_policy(image));
    text(&mut container.termination_message_path, "/dev/termination-log");
    text(&mut container.termination_message_policy, "File");
    resources::round_requirements(&mut container.resources);
    for port in container.ports.iter_mut().flatten() {
        text(&mut port.protocol, "TCP");
    }
    for env in container.env.iter_mut().flatten() {
        self::env(env);
    }
    for probe in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe] {
        self::probe(probe);
    }
    lifecycle(&mut container.lifecycle);
}

fn ephemeral(container: &mut EphemeralContainer) {
    let image = container.image.as_deref().unwrap_or_default();
    text(&mut container.image_pull_policy, pull_policy(image));
    text(&mut container.termination_message_path, "/dev/termination-log");
    text(&mut container.termination_message_policy, "File");
    resources::round_requirements(&mut container.resources);
    for port in container.ports.iter_mut().flatten() {
        text(&mut port.protocol, "TCP");
    }
    for env in container.env.iter_mut().flatten() {
        self::env(env);
    }
    for probe in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe] {
        self::probe(probe);
    }
    lifecycle(&mut container.lifecycle);
}

fn env(env: &mut EnvVar) {
    let Some(from) = &mut env.value_from else { return };
    if let Some(field) = &mut from.field_ref {
        text(&mut field.api_version, "v1");
    }
    if let Some(file) = &mut from.file_key_ref {
        file.optional.get_or_insert(false);
    }
}

fn probe(probe: &mut Option<Probe>) {
    let Some(probe) = probe else { return };
    number(&mut probe.timeout_seconds, 1);
    number(&mut probe.period_seconds, 10);
    number(&mut probe.success_threshold, 1);
    number(&mut probe.failure_threshold, 3);
    if let Some(get) = &mut probe.http_get {
        text(&mut get.path, "/");
        text(&mut get.scheme, "HTTP");
    }
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn lifecycle(lifecycle: &mut Option<Lifecycle>) {
    let Some(lifecycle) = lifecycle else { return };
    let http = |handler: &mut Option<LifecycleHandler>| {
        if let Some(get) = handler.as_mut().and_then(|handler| handler.http_get.as_mut()) {
            text(&mut get.path, "/");
            text(&mut get.scheme, "HTTP");
        }
    };
    http(&mut lifecycle.post_start);
    http(&mut lifecycle.pre_stop);
}

/// The mode of a file from a Secret, ConfigMap and the like.
const FILE_MODE: i32 = 0o644;
/// How long a projected token lives.
const TOKEN_SECONDS: i64 = 3600;

fn volume(volume: &mut Volume) {
    if super::volume_sources(volume).is_empty() {
        volume.empty_dir = Some(Default::default());
    }
    if let Some(image) = &mut volume.image {
        let reference = image.reference.clone().unwrap_or_default();
        text(&mut image.pull_policy, pull_policy(&reference));
    }
    if let Some(secret) = &mut volume.secret {
        secret.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(map) = &mut volume.config_map {
        map.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(downward) = &mut volume.downward_api {
        downward.default_mode.get_or_insert(FILE_MODE);
        for field in downward.items.iter_mut().flatten().filter_map(|item| item.field_ref.as_mut()) {
            text(&mut field.api_version, "v1");
        }
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(FILE_MODE);
        for source in projected.sources.iter_mut().flatten() {
            if let Some(token) = &mut source.service_account_token {
                token.expiration_seconds.get_or_insert(TOKEN_SECONDS);
            }
            let items = source.downward_api.iter_mut().flat_map(|downward| downward.items.iter_mut().flatten());
            for field in items.filter_map(|item| item.field_ref.as_mut()) {
                text(&mut field.api_version, "v1");
            }
        }
    }
    if let Some(path) = &mut volume.host_path {
        path.type_.get_or_insert_default();
    }
    if let Some(claim) = volume.ephemeral.as_mut().and_then(|e| e.volume_claim_template.as_mut()) {
        claim.spec.volume_mode.get_or_insert_with(|| "Filesystem".into());
    }
    remote_disks(volume);
}

/// Kinds of storage that no part of this cluster mounts itself, but whose objects may be kept here.
fn remote_disks(volume: &mut Volume) {
    if let Some(iscsi) = &mut volume.iscsi {
        text(&mut iscsi.iscsi_interface, "default");
    }
    if let Some(rbd) = &mut volume.rbd {
        text(&mut rbd.pool, "rbd");
        text(&mut rbd.user, "admin");
        text(&mut rbd.keyring, "/etc/ceph/keyring");
    }
    if let Some(disk) = &mut volume.azure_disk {
        disk.caching_mode.get_or_insert_with(|| "ReadWrite".into());
        disk.fs_type.get_or_insert_with(|| "ext4".into());
        disk.read_only.get_or_insert(false);
        disk.kind.get_or_insert_with(|| "Shared".into());
    }
    if let Some(scale) = &mut volume.scale_io {
        text(&mut scale.storage_mode, "ThinProvisioned");
        text(&mut scale.fs_type, "xfs");
    }
}

/// Labels of a template, for the kinds that look at them.
pub fn template_labels(template: &PodTemplateSpec) -> BTreeMap<String, String> {
    template.metadata.as_ref().and_then(|metadata| metadata.labels.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_that_can_move_is_always_pulled() {
        for (image, want) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.25", "IfNotPresent"),
            ("localhost:5000/nginx", "Always"),
            ("localhost:5000/nginx:1", "IfNotPresent"),
            ("nginx@sha256:abc", "IfNotPresent"),
            ("nginx:latest@sha256:abc", "Always"),
            ("", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), want, "{image}");
        }
    }
}
