//! The mistakes in the containers of a pod.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::types::core::v1::{
    Container, ContainerPort, EnvFromSource, EnvVar, Lifecycle, LifecycleHandler, PodSpec, Probe, ResourceRequirements,
    SecurityContext, VolumeDevice, VolumeMount,
};
use machinery::field::{FieldErrors, Path};
use machinery::names;
use machinery::quantity::Quantity;

use super::{validate_app_armor, validate_claims, validate_os, validate_restart, validate_seccomp, validate_volume};
use crate::check;
use crate::resources;

const PULL: &[&str] = &["Always", "IfNotPresent", "Never"];
const MESSAGE: &[&str] = &["FallbackToLogsOnError", "File"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const SCHEMES: &[&str] = &["HTTP", "HTTPS"];

/// What the containers may refer to.
struct Around<'a> {
    volumes: BTreeSet<&'a str>,
    /// Those that can be devices.
    blocks: BTreeSet<&'a str>,
    /// Those that are directories of the pod's own.
    empty: BTreeSet<&'a str>,
    claims: BTreeSet<&'a str>,
    policy: Option<&'a str>,
    grace: i64,
    host_users: bool,
}

impl<'a> Around<'a> {
    fn of(spec: &'a PodSpec) -> Self {
        Self {
            volumes: spec.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect(),
            blocks: spec
                .volumes
                .iter()
                .flatten()
                .filter(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some())
                .map(|volume| volume.name.as_str())
                .collect(),
            empty: spec
                .volumes
                .iter()
                .flatten()
                .filter(|volume| volume.empty_dir.is_some())
                .map(|volume| volume.name.as_str())
                .collect(),
            claims: validate_claims::names_of(spec),
            policy: spec.restart_policy.as_deref(),
            grace: spec.termination_grace_period_seconds.unwrap_or(30),
            host_users: spec.host_users != Some(false),
        }
    }
}

/// What every container of a spec must have right.
pub fn one(container: &Container, spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    common(container, &Around::of(spec), path, errors);
}

/// All containers of a spec.
pub fn all(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let around = Around::of(spec);
    let mut names_seen = BTreeSet::new();
    let containers = path.child("containers");
    if spec.containers.is_empty() {
        errors.required(&containers, "");
    }
    for (i, container) in spec.containers.iter().enumerate() {
        let path = containers.index(i);
        common(container, &around, &path, errors);
        if !names_seen.insert(container.name.as_str()) {
            errors.duplicate(&path.child("name"), container.name.as_str());
        }
        if let Some(lifecycle) = &container.lifecycle {
            self::lifecycle(lifecycle, &around, &path.child("lifecycle"), errors);
        }
        probes(container, &around, &path, errors);
        validate_restart::policy(container, &path, errors);
    }
    for (i, container) in spec.init_containers.iter().flatten().enumerate() {
        let path = path.child("initContainers").index(i);
        let sidecar = api::pod::is_sidecar(container);
        common(container, &around, &path, errors);
        validate_restart::policy(container, &path, errors);
        if !names_seen.insert(container.name.as_str()) {
            errors.duplicate(&path.child("name"), container.name.as_str());
        }
        if sidecar {
            if let Some(lifecycle) = &container.lifecycle {
                self::lifecycle(lifecycle, &around, &path.child("lifecycle"), errors);
            }
            probes(container, &around, &path, errors);
            continue;
        }
        for (i, policy) in container.resize_policy.iter().flatten().enumerate() {
            if policy.restart_policy == "RestartContainer" {
                let path = path.child("resizePolicy").index(i).child("restartPolicy");
                let wrong = "must not be set to 'RestartContainer' for non-sidecar initContainers";
                errors.invalid(&path, policy.restart_policy.as_str(), wrong);
            }
        }
        let runs_once = "may not be set for init containers without restartPolicy=Always";
        for (given, field) in [
            (container.lifecycle.is_some(), "lifecycle"),
            (container.liveness_probe.is_some(), "livenessProbe"),
            (container.readiness_probe.is_some(), "readinessProbe"),
            (container.startup_probe.is_some(), "startupProbe"),
        ] {
            if given {
                errors.forbidden(&path.child(field), runs_once);
            }
        }
    }
}

fn common(container: &Container, around: &Around<'_>, path: &Path, errors: &mut FieldErrors) {
    if container.name.is_empty() {
        errors.required(&path.child("name"), "");
    } else {
        check::all(names::dns1123_label(&container.name), &path.child("name"), &container.name, errors);
    }
    let image = container.image.as_deref().unwrap_or_default();
    if image.is_empty() {
        errors.required(&path.child("image"), "");
    } else if image.trim() != image {
        errors.invalid(&path.child("image"), image, "must not have leading or trailing whitespace");
    }
    let policy = container.termination_message_policy.as_deref();
    check::one_of(policy, MESSAGE, &path.child("terminationMessagePolicy"), errors);
    ports(container.ports.as_deref().unwrap_or_default(), &path.child("ports"), errors);
    for (i, variable) in container.env.iter().flatten().enumerate() {
        env(variable, around, &path.child("env").index(i), errors);
    }
    for (i, source) in container.env_from.iter().flatten().enumerate() {
        env_from(source, &path.child("envFrom").index(i), errors);
    }
    let devices = container.volume_devices.as_deref().unwrap_or_default();
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let privileged = container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true));
    self::mounts(mounts, devices, (&around.volumes, privileged), &path.child("volumeMounts"), errors);
    self::devices(devices, mounts, around, &path.child("volumeDevices"), errors);
    check::one_of(container.image_pull_policy.as_deref(), PULL, &path.child("imagePullPolicy"), errors);
    if let Some(resources) = &container.resources {
        let path = path.child("resources");
        requirements(resources, &path, errors);
        let claims = resources.claims.as_deref().unwrap_or_default();
        validate_claims::of_container(claims, &around.claims, &path.child("claims"), errors);
    }
    validate_restart::resize(container, around.policy, path, errors);
    if let Some(context) = &container.security_context {
        security(context, around, &path.child("securityContext"), errors);
    }
}

fn ports(ports: &[ContainerPort], path: &Path, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let wrong = names::port_name(name);
            if wrong.is_empty() && !seen.insert(name) {
                errors.duplicate(&path.child("name"), name);
            }
            check::all(wrong, &path.child("name"), name, errors);
        }
        if port.container_port == 0 {
            errors.required(&path.child("containerPort"), "");
        } else {
            check::port(port.container_port, &path.child("containerPort"), errors);
        }
        if let Some(host) = port.host_port.filter(|port| *port != 0) {
            check::port(host, &path.child("hostPort"), errors);
        }
        check::one_of(port.protocol.as_deref(), PROTOCOLS, &path.child("protocol"), errors);
        if let Some(ip) = port.host_ip.as_deref().filter(|ip| !ip.is_empty()) {
            if ip.parse::<IpAddr>().is_err() {
                errors.invalid(&path.child("hostIP"), ip, check::IP_ADDRESS);
            }
        }
    }
}

fn env(variable: &EnvVar, around: &Around<'_>, path: &Path, errors: &mut FieldErrors) {
    if variable.name.is_empty() {
        errors.required(&path.child("name"), "");
    } else {
        check::all(names::env_var_name(&variable.name), &path.child("name"), &variable.name, errors);
    }
    let Some(from) = &variable.value_from else { return };
    let path = path.child("valueFrom");
    let mut sources = 0;
    if let Some(field) = &from.field_ref {
        sources += 1;
        validate_volume::field_ref(field, validate_volume::ENV_FIELDS, &path.child("fieldRef"), errors);
    }
    if let Some(resource) = &from.resource_field_ref {
        sources += 1;
        validate_volume::resource_ref(resource, false, &path.child("resourceFieldRef"), errors);
    }
    let key = |name: &str, key: &str, path: Path, errors: &mut FieldErrors| {
        check::all(names::dns1123_subdomain(name), &path.child("name"), name, errors);
        if key.is_empty() {
            errors.required(&path.child("key"), "");
        } else {
            check::all(names::config_map_key(key), &path.child("key"), key, errors);
        }
    };
    if let Some(map) = &from.config_map_key_ref {
        sources += 1;
        key(&map.name, &map.key, path.child("configMapKeyRef"), errors);
    }
    if let Some(secret) = &from.secret_key_ref {
        sources += 1;
        key(&secret.name, &secret.key, path.child("secretKeyRef"), errors);
    }
    if let Some(file) = &from.file_key_ref {
        sources += 1;
        let path = path.child("fileKeyRef");
        if file.key.is_empty() {
            errors.required(&path.child("key"), "");
        } else {
            check::all(names::env_var_name(&file.key), &path.child("key"), &file.key, errors);
        }
        if file.volume_name.is_empty() {
            errors.required(&path.child("volumeName"), "");
        } else if !around.volumes.contains(file.volume_name.as_str()) {
            errors.not_found(&path.child("volumeName"), file.volume_name.as_str());
        } else if !around.empty.contains(file.volume_name.as_str()) {
            let wrong = "referenced volume must be of type emptyDir";
            errors.invalid(&path.child("volumeName"), file.volume_name.as_str(), wrong);
        }
        if file.path.is_empty() {
            errors.required(&path.child("path"), "");
        } else {
            validate_volume::inner_path(&file.path, &path.child("path"), errors);
        }
    }
    if sources == 0 {
        let wrong =
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errors.invalid(&path, "", wrong);
    } else if variable.value.as_deref().is_some_and(|value| !value.is_empty()) {
        errors.invalid(&path, "", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        errors.invalid(&path, "", "may not have more than one field specified at a time");
    }
}

fn env_from(source: &EnvFromSource, path: &Path, errors: &mut FieldErrors) {
    if let Some(prefix) = source.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        check::all(names::env_var_name(prefix), &path.child("prefix"), prefix, errors);
    }
    let named = |name: &str, path: Path, errors: &mut FieldErrors| {
        if name.is_empty() {
            errors.required(&path.child("name"), "");
        } else {
            check::all(names::dns1123_subdomain(name), &path.child("name"), name, errors);
        }
    };
    if let Some(map) = &source.config_map_ref {
        named(&map.name, path.child("configMapRef"), errors);
    }
    if let Some(secret) = &source.secret_ref {
        named(&secret.name, path.child("secretRef"), errors);
    }
    match (source.config_map_ref.is_some(), source.secret_ref.is_some()) {
        (false, false) => errors.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`"),
        (true, true) => errors.invalid(path, "", "may not have more than one field specified at a time"),
        _ => {}
    }
}

fn mounts(
    mounts: &[VolumeMount],
    devices: &[VolumeDevice],
    (volumes, privileged): (&BTreeSet<&str>, bool),
    path: &Path,
    errors: &mut FieldErrors,
) {
    let mut seen = BTreeSet::new();
    for (i, mount) in mounts.iter().enumerate() {
        let path = path.index(i);
        if mount.name.is_empty() {
            errors.required(&path.child("name"), "");
        }
        if !volumes.contains(mount.name.as_str()) {
            errors.not_found(&path.child("name"), mount.name.as_str());
        }
        if mount.mount_path.is_empty() {
            errors.required(&path.child("mountPath"), "");
        }
        if !seen.insert(mount.mount_path.as_str()) {
            errors.invalid(&path.child("mountPath"), mount.mount_path.as_str(), "must be unique");
        }
        if devices.iter().any(|device| device.name == mount.name) {
            errors.invalid(&path.child("name"), mount.name.as_str(), "must not already exist in volumeDevices");
        }
        if devices.iter().any(|device| device.device_path == mount.mount_path) {
            let wrong = "must not already exist as a path in volumeDevices";
            errors.invalid(&path.child("mountPath"), mount.mount_path.as_str(), wrong);
        }
        let sub_path = mount.sub_path.as_deref().unwrap_or_default();
        if !sub_path.is_empty() {
            validate_volume::inner_path(sub_path, &path.child("subPath"), errors);
        }
        if let Some(expression) = mount.sub_path_expr.as_deref().filter(|expression| !expression.is_empty()) {
            if !sub_path.is_empty() {
                let wrong = "subPathExpr and subPath are mutually exclusive";
                errors.invalid(&path.child("subPathExpr"), expression, wrong);
            }
            validate_volume::inner_path(expression, &path.child("subPathExpr"), errors);
        }
        if let Some(propagation) = mount.mount_propagation.as_deref() {
            let supported = ["Bidirectional", "HostToContainer", "None"];
            let path = path.child("mountPropagation");
            check::one_of(Some(propagation), &supported, &path, errors);
            if propagation == "Bidirectional" && !privileged {
                errors.forbidden(&path, "Bidirectional mount propagation is available only to privileged containers");
            }
        }
        if let Some(recursive) = mount.recursive_read_only.as_deref() {
            let path = path.child("recursiveReadOnly");
            let supported = ["Disabled", "Enabled", "IfPossible"];
            check::one_of(Some(recursive), &supported, &path, errors);
            if recursive != "Disabled" && mount.read_only != Some(true) {
                errors.forbidden(&path, "may only be specified when readOnly is true");
            }
            if recursive != "Disabled" && mount.mount_propagation.as_deref().is_some_and(|how| how != "None") {
                errors.forbidden(&path, "may only be specified when mountPropagation is None or not specified");
            }
        }
    }
}

fn devices(
    devices: &[VolumeDevice],
    mounts: &[VolumeMount],
    around: &Around<'_>,
    path: &Path,
    errors: &mut FieldErrors,
) {
    let (mut names_seen, mut paths_seen) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in devices.iter().enumerate() {
        let path = path.index(i);
        if device.name.is_empty() {
            errors.required(&path.child("name"), "");
        }
        if !names_seen.insert(device.name.as_str()) {
            errors.invalid(&path.child("name"), device.name.as_str(), "must be unique");
        }
        if !around.volumes.contains(device.name.as_str()) {
            errors.not_found(&path.child("name"), device.name.as_str());
        } else if !around.blocks.contains(device.name.as_str()) {
            let wrong = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
            errors.invalid(&path.child("name"), device.name.as_str(), wrong);
        }
        if device.device_path.is_empty() {
            errors.required(&path.child("devicePath"), "");
        }
        if !paths_seen.insert(device.device_path.as_str()) {
            errors.invalid(&path.child("devicePath"), device.device_path.as_str(), "must be unique");
        }
        if device.device_path.split('/').any(|part| part == "..") {
            errors.invalid(&path.child("devicePath"), device.device_path.as_str(), "can not contain backsteps ('..')");
        }
        if mounts.iter().any(|mount| mount.name == device.name) {
            errors.invalid(&path.child("name"), device.name.as_str(), "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|mount| mount.mount_path == device.device_path) {
            let wrong = "must not already exist as a path in volumeMounts";
            errors.invalid(&path.child("devicePath"), device.device_path.as_str(), wrong);
        }
    }
}

fn probes(container: &Container, around: &Around<'_>, path: &Path, errors: &mut FieldErrors) {
    if let Some(liveness) = &container.liveness_probe {
        let path = path.child("livenessProbe");
        probe(liveness, around, &path, errors);
        only_one_success(liveness, &path, errors);
    }
    if let Some(readiness) = &container.readiness_probe {
        let path = path.child("readinessProbe");
        probe(readiness, around, &path, errors);
        if let Some(seconds) = readiness.termination_grace_period_seconds {
            let path = path.child("terminationGracePeriodSeconds");
            errors.invalid(&path, seconds, "must not be set for readinessProbes");
        }
    }
    if let Some(startup) = &container.startup_probe {
        let path = path.child("startupProbe");
        probe(startup, around, &path, errors);
        only_one_success(startup, &path, errors);
    }
}

fn only_one_success(probe: &Probe, path: &Path, errors: &mut FieldErrors) {
    if let Some(threshold) = probe.success_threshold.filter(|threshold| *threshold != 1) {
        errors.invalid(&path.child("successThreshold"), threshold, "must be 1");
    }
}

fn probe(probe: &Probe, around: &Around<'_>, path: &Path, errors: &mut FieldErrors) {
    let handler = LifecycleHandler {
        exec: probe.exec.clone(),
        http_get: probe.http_get.clone(),
        tcp_socket: probe.tcp_socket.clone(),
        sleep: None,
    };
    handle(&handler, probe.grpc.as_ref().map(|grpc| grpc.port), around, path, errors);
    for (number, field) in [
        (probe.initial_delay_seconds, "initialDelaySeconds"),
        (probe.timeout_seconds, "timeoutSeconds"),
        (probe.period_seconds, "periodSeconds"),
        (probe.success_threshold, "successThreshold"),
        (probe.failure_threshold, "failureThreshold"),
    ] {
        check::not_negative(number, &path.child(field), errors);
    }
    if let Some(seconds) = probe.termination_grace_period_seconds.filter(|seconds| *seconds <= 0) {
        errors.invalid(&path.child("terminationGracePeriodSeconds"), seconds, "must be greater than 0");
    }
}

fn lifecycle(lifecycle: &Lifecycle, around: &Around<'_>, path: &Path, errors: &mut FieldErrors) {
    for (handler, field) in [(&lifecycle.post_start, "postStart"), (&lifecycle.pre_stop, "preStop")] {
        if let Some(handler) = handler {
            handle(handler, None, around, &path.child(field), errors);
        }
    }
}

fn handle(handler: &LifecycleHandler, grpc: Option<i32>, around: &Around<'_>, path: &Path, errors: &mut FieldErrors) {
    let mut given = 0;
    let mut next = |field: &str, errors: &mut FieldErrors| {
        given += 1;
        if given > 1 {
            errors.forbidden(&path.child(field), "may not specify more than 1 handler type");
        }
        given == 1
    };
    if let Some(exec) = &handler.exec {
        if next("exec", errors) && exec.command.as_ref().is_none_or(Vec::is_empty) {
            errors.required(&path.child("exec").child("command"), "");
        }
    }
    if let Some(get) = &handler.http_get {
        if next("httpGet", errors) {
            let path = path.child("httpGet");
            if get.path.as_deref().unwrap_or_default().is_empty() {
                errors.required(&path.child("path"), "");
            }
            check::port_or_name(&get.port, &path.child("port"), errors);
            check::one_of(get.scheme.as_deref(), SCHEMES, &path.child("scheme"), errors);
            for (i, header) in get.http_headers.iter().flatten().enumerate() {
                let fits = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
                if header.name.is_empty() || !header.name.bytes().all(fits) {
                    let wrong = "a valid HTTP header must consist of alphanumeric characters or '-' \
                                 (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
                    errors.invalid(&path.child("httpHeaders").index(i).child("name"), header.name.as_str(), wrong);
                }
            }
        }
    }
    if let Some(socket) = &handler.tcp_socket {
        if next("tcpSocket", errors) {
            check::port_or_name(&socket.port, &path.child("tcpSocket").child("port"), errors);
        }
    }
    if let Some(port) = grpc {
        if next("grpc", errors) {
            check::port(port, &path.child("grpc").child("port"), errors);
        }
    }
    if let Some(sleep) = &handler.sleep {
        if next("sleep", errors) && !(0..=around.grace).contains(&sleep.seconds) {
            let wrong = format!("must be non-negative and less than terminationGracePeriodSeconds ({})", around.grace);
            errors.invalid(&path.child("sleep"), sleep.seconds, wrong);
        }
    }
    if given == 0 {
        errors.required(path, "must specify a handler type");
    }
}

/// The amounts a container asks for and may use.
pub fn requirements(resources: &ResourceRequirements, path: &Path, errors: &mut FieldErrors) {
    let (limits, requests) = (path.child("limits"), path.child("requests"));
    let empty = resources::List::new();
    let limit_list = resources.limits.as_ref().unwrap_or(&empty);
    let request_list = resources.requests.as_ref().unwrap_or(&empty);
    for (list, path) in [(limit_list, &limits), (request_list, &requests)] {
        for (name, amount) in list {
            resources::container_name(name, &path.key(name), errors);
            let Some(quantity) = resources::parse(amount) else { continue };
            if quantity.is_negative() {
                errors.invalid(&path.key(name), quantity.to_string(), check::NOT_NEGATIVE);
            } else if resources::is_whole(name) && quantity.milli() % 1000 != 0 {
                errors.invalid(&path.key(name), quantity.to_string(), "must be an integer");
            }
            if let Some(size) = name.strip_prefix("hugepages-").and_then(|size| size.parse::<Quantity>().ok()) {
                // Thousandths on both sides.
                if size.milli() <= 0 || quantity.milli() % size.milli() != 0 {
                    let wrong = format!("{quantity} is not positive integer multiple of {name}");
                    errors.invalid(&path.key(name), quantity.to_string(), wrong);
                }
            }
        }
    }
    for (name, amount) in request_list {
        let Some(wanted) = resources::parse(amount) else { continue };
        match limit_list.get(name).and_then(resources::parse) {
            Some(limit) if resources::is_exclusive(name) && wanted != limit => {
                let wrong = format!("must be equal to {name} limit of {limit}");
                errors.invalid(&requests, wanted.to_string(), wrong);
            }
            Some(limit) if wanted > limit => {
                let wrong = format!("must be less than or equal to {name} limit of {limit}");
                errors.invalid(&requests, wanted.to_string(), wrong);
            }
            Some(_) => {}
            None if resources::is_exclusive(name) => {
                errors.required(&limits, "Limit must be set for non overcommitable resources");
            }
            None => {}
        }
    }
    let asked = || limit_list.keys().chain(request_list.keys());
    let computes = asked().any(|name| matches!(name.as_str(), "cpu" | "memory"));
    if !computes && asked().any(|name| name.starts_with("hugepages-")) {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
}

fn security(context: &SecurityContext, around: &Around<'_>, path: &Path, errors: &mut FieldErrors) {
    for (id, field) in [(context.run_as_user, "runAsUser"), (context.run_as_group, "runAsGroup")] {
        if let Some(id) = id.filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
            errors.invalid(&path.child(field), id, check::ID_RANGE);
        }
    }
    if let Some(mount) = context.proc_mount.as_deref() {
        check::one_of(Some(mount), &["Default", "Unmasked"], &path.child("procMount"), errors);
        if around.host_users && mount == "Unmasked" {
            errors.invalid(&path.child("procMount"), mount, "`hostUsers` must be false to use `Unmasked`");
        }
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
    if context.allow_privilege_escalation == Some(false) {
        if context.privileged == Some(true) {
            let wrong = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.invalid(path, check::value(context), wrong);
        }
        let added = context.capabilities.iter().flat_map(|capabilities| capabilities.add.iter().flatten());
        if added.into_iter().any(|capability| capability == "CAP_SYS_ADMIN") {
            let wrong = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.invalid(path, check::value(context), wrong);
        }
    }
}
