//! What a pod may ask of the operating system it names, and what Windows knows alone.

use api::types::core::v1::{PodSpec, WindowsSecurityContextOptions};
use machinery::field::{FieldErrors, Path};
use machinery::names;

use super::warnings::containers;
use crate::check;

const NOT_WINDOWS: &str = "cannot be set for a windows pod";
const NOT_LINUX: &str = "windows options cannot be set for a linux pod";
/// Of a credential spec, in KiB; of a user's domain and name.
const SPEC: usize = 64;
const DOMAIN: usize = 256;
const USER: usize = 104;

/// The mistakes in a spec that names its operating system.
pub fn all(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    match spec.os.as_ref().map(|os| os.name.as_str()) {
        Some("linux") => linux(spec, path, errors),
        Some("windows") => windows(spec, path, errors),
        _ => {}
    }
}

fn linux(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    if spec.security_context.as_ref().is_some_and(|context| context.windows_options.is_some()) {
        errors.forbidden(&path.child("securityContext").child("windowsOptions"), NOT_LINUX);
    }
    for (container, path) in containers(spec, path) {
        if container.security_context.as_ref().is_some_and(|context| context.windows_options.is_some()) {
            errors.forbidden(&path.child("securityContext").child("windowsOptions"), NOT_LINUX);
        }
    }
}

fn windows(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let mut refuse = |given: &[(bool, &str)], path: &Path| {
        for (_, field) in given.iter().filter(|(given, _)| *given) {
            errors.forbidden(&path.child(field), NOT_WINDOWS);
        }
    };
    if let Some(context) = &spec.security_context {
        let given = [
            (context.app_armor_profile.is_some(), "appArmorProfile"),
            (context.se_linux_options.is_some(), "seLinuxOptions"),
            (context.seccomp_profile.is_some(), "seccompProfile"),
            (context.fs_group.is_some(), "fsGroup"),
            (context.fs_group_change_policy.is_some(), "fsGroupChangePolicy"),
            (context.sysctls.as_ref().is_some_and(|all| !all.is_empty()), "sysctls"),
            (context.run_as_user.is_some(), "runAsUser"),
            (context.run_as_group.is_some(), "runAsGroup"),
            (context.supplemental_groups.is_some(), "supplementalGroups"),
            (context.supplemental_groups_policy.is_some(), "supplementalGroupsPolicy"),
            (context.se_linux_change_policy.is_some(), "seLinuxChangePolicy"),
        ];
        refuse(&given, &path.child("securityContext"));
    }
    let given = [
        (spec.host_users.is_some(), "hostUsers"),
        (spec.host_pid == Some(true), "hostPID"),
        (spec.host_ipc == Some(true), "hostIPC"),
        (spec.share_process_namespace.is_some(), "shareProcessNamespace"),
    ];
    refuse(&given, path);
    for (container, path) in containers(spec, path) {
        let Some(context) = &container.security_context else { continue };
        let given = [
            (context.app_armor_profile.is_some(), "appArmorProfile"),
            (context.se_linux_options.is_some(), "seLinuxOptions"),
            (context.seccomp_profile.is_some(), "seccompProfile"),
            (context.capabilities.is_some(), "capabilities"),
            (context.read_only_root_filesystem.is_some(), "readOnlyRootFilesystem"),
            (context.privileged.is_some(), "privileged"),
            (context.allow_privilege_escalation.is_some(), "allowPrivilegeEscalation"),
            (context.proc_mount.is_some(), "procMount"),
            (context.run_as_user.is_some(), "runAsUser"),
            (context.run_as_group.is_some(), "runAsGroup"),
        ];
        refuse(&given, &path.child("securityContext"));
    }
}

/// Containers that are processes of the host are that all together, in the host's network.
pub fn host_processes(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let asked = |options: Option<&WindowsSecurityContextOptions>| options.and_then(|options| options.host_process);
    let of_pod = asked(spec.security_context.as_ref().and_then(|context| context.windows_options.as_ref()));
    let all = containers(spec, path);
    let mut count = 0;
    for (container, path) in &all {
        let context = container.security_context.as_ref();
        let own = asked(context.and_then(|context| context.windows_options.as_ref()));
        if let (Some(of_pod), Some(own)) = (of_pod, own)
            && of_pod != own
        {
            let wrong = format!("pod hostProcess value must be identical if both are specified, was {of_pod}");
            let path = path.child("securityContext").child("windowsOptions").child("hostProcess");
            errors.invalid(&path, own, wrong);
        }
        count += usize::from(own.or(of_pod) == Some(true));
    }
    if count == 0 {
        return;
    }
    if count != all.len() {
        let wrong = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.invalid(path, "", wrong);
    }
    if spec.host_network != Some(true) {
        let wrong = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.invalid(&path.child("hostNetwork"), false, wrong);
    }
}

/// The mistakes in what Windows knows alone.
pub fn options(options: &WindowsSecurityContextOptions, path: &Path, errors: &mut FieldErrors) {
    if let Some(name) = options.gmsa_credential_spec_name.as_deref() {
        check::all(names::dns1123_subdomain(name), &path.child("gmsaCredentialSpecName"), name, errors);
    }
    if let Some(spec) = options.gmsa_credential_spec.as_deref() {
        let path = path.child("gmsaCredentialSpec");
        if spec.is_empty() {
            errors.invalid(&path, spec, "gmsaCredentialSpec cannot be an empty string");
        } else if spec.len() > SPEC * 1024 {
            errors.invalid(&path, spec, format!("gmsaCredentialSpec size must be under {SPEC} KiB"));
        }
    }
    if let Some(name) = options.run_as_user_name.as_deref() {
        user_name(name, &path.child("runAsUserName"), errors);
    }
}

/// `DOMAIN\USER`, or `USER`.
fn user_name(name: &str, path: &Path, errors: &mut FieldErrors) {
    let mut wrong = |why: &str| errors.invalid(path, name, why);
    let parts: Vec<&str> = name.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        _ if name.is_empty() => return wrong("runAsUserName cannot be an empty string"),
        _ if name.bytes().any(|byte| byte.is_ascii_control()) => {
            return wrong("runAsUserName cannot contain control characters");
        }
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return wrong("runAsUserName cannot contain more than one backslash"),
    };
    if let Some(domain) = domain {
        if domain.len() >= DOMAIN {
            wrong("runAsUserName's Domain length must be under 256 characters");
        }
        if !is_net_bios(domain) && !is_dns(domain) {
            wrong("runAsUserName's Domain doesn't match the NetBios nor the DNS format");
        }
    }
    if user.is_empty() {
        wrong("runAsUserName's User cannot be empty");
    } else if user.len() > USER {
        wrong("runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.bytes().all(|byte| matches!(byte, b'.' | b' ')) {
        wrong("runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        wrong("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
}

fn is_net_bios(domain: &str) -> bool {
    (1..=15).contains(&domain.chars().count())
        && !domain.starts_with('.')
        && !domain.contains(['\\', '/', ':', '*', '?', '"', '<', '>', '|'])
}

fn is_dns(domain: &str) -> bool {
    domain.split('.').all(|label| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len()) && label.bytes().all(fits) && !label.starts_with('-') && !label.ends_with('-')
    })
}
