//! Security contexts as the runtime takes them: the container's setting, else the pod's. Pure.

use std::path::Path;

use ::cri::v1;
use api::types::core::v1 as core;

use crate::pod::BoundPod;
use crate::runtime::Image;

const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

fn int(value: Option<i64>) -> Option<v1::Int64Value> {
    value.map(|value| v1::Int64Value { value })
}

/// A container's security context; the error is the message of CreateContainerConfigError.
pub fn container(
    pod: &BoundPod,
    container: &core::Container,
    image: &Image,
    seccomp_root: &Path,
) -> Result<v1::LinuxContainerSecurityContext, String> {
    let whole = pod.spec().security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let user = own.run_as_user.or(whole.run_as_user);
    if own.run_as_non_root.or(whole.run_as_non_root) == Some(true) {
        non_root(pod, container, user, image)?;
    }
    let privileged = own.privileged.unwrap_or(false);
    let masked = !privileged && own.proc_mount.as_deref() != Some("Unmasked");
    let paths = |list: &[&str]| if masked { list.iter().map(|p| (*p).to_owned()).collect() } else { Vec::new() };
    let capabilities = own.capabilities.map(|c| v1::Capability {
        add_capabilities: c.add.unwrap_or_default(),
        drop_capabilities: c.drop.unwrap_or_default(),
        ..v1::Capability::default()
    });
    let image_user = if user.is_none() && image.uid.is_none() { image.username.clone() } else { String::new() };
    Ok(v1::LinuxContainerSecurityContext {
        capabilities,
        privileged,
        namespace_options: Some(namespaces(pod)),
        selinux_options: selinux(own.se_linux_options.as_ref().or(whole.se_linux_options.as_ref())),
        run_as_user: int(user.or(image.uid)),
        run_as_username: image_user,
        run_as_group: int(own.run_as_group.or(whole.run_as_group)),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: groups(&whole),
        supplemental_groups_policy: policy(&whole),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(MASKED),
        readonly_paths: paths(READ_ONLY),
        seccomp: Some(if privileged {
            unconfined()
        } else {
            seccomp(own.seccomp_profile.as_ref().or(whole.seccomp_profile.as_ref()), seccomp_root)
        }),
        apparmor: apparmor(own.app_armor_profile.as_ref().or(whole.app_armor_profile.as_ref())),
    })
}

/// A sandbox's security context.
pub fn sandbox(pod: &BoundPod, seccomp_root: &Path) -> v1::LinuxSandboxSecurityContext {
    let whole = pod.spec().security_context.clone().unwrap_or_default();
    let privileged = pod.all_containers().any(|c| c.security_context.as_ref().and_then(|s| s.privileged) == Some(true));
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod)),
        selinux_options: selinux(whole.se_linux_options.as_ref()),
        run_as_user: int(whole.run_as_user),
        run_as_group: int(whole.run_as_group),
        supplemental_groups: groups(&whole),
        supplemental_groups_policy: policy(&whole),
        privileged,
        // The pause process does next to nothing: the runtime's own profile always suits it.
        seccomp: Some(match whole.seccomp_profile.as_ref() {
            Some(profile) => seccomp(Some(profile), seccomp_root),
            None => v1::SecurityProfile {
                profile_type: v1::security_profile::ProfileType::RuntimeDefault as i32,
                ..v1::SecurityProfile::default()
            },
        }),
        ..v1::LinuxSandboxSecurityContext::default()
    }
}

/// Which namespaces the pod's containers share, with each other or with the node.
pub fn namespaces(pod: &BoundPod) -> v1::NamespaceOption {
    let spec = pod.spec();
    let or_pod = |host: Option<bool>| if host == Some(true) { v1::NamespaceMode::Node } else { v1::NamespaceMode::Pod };
    let pid = match (spec.host_pid, spec.share_process_namespace) {
        (Some(true), _) => v1::NamespaceMode::Node,
        (_, Some(true)) => v1::NamespaceMode::Pod,
        _ => v1::NamespaceMode::Container,
    };
    v1::NamespaceOption {
        network: or_pod(spec.host_network) as i32,
        ipc: or_pod(spec.host_ipc) as i32,
        pid: pid as i32,
        ..v1::NamespaceOption::default()
    }
}

fn non_root(pod: &BoundPod, container: &core::Container, user: Option<i64>, image: &Image) -> Result<(), String> {
    let place = format!("(pod: \"{}\", container: {})", pod.full_name(), container.name);
    match (user, image.uid, image.username.as_str()) {
        (Some(0), ..) => Err(format!("container's runAsUser breaks non-root policy {place}")),
        (Some(_), ..) => Ok(()),
        (None, Some(0), _) | (None, None, "") => {
            Err(format!("container has runAsNonRoot and image will run as root {place}"))
        }
        (None, Some(_), _) => Ok(()),
        (None, None, name) => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root {place}"
        )),
    }
}

fn groups(whole: &core::PodSecurityContext) -> Vec<i64> {
    let mut out = Vec::new();
    out.extend(whole.fs_group);
    out.extend(whole.supplemental_groups.iter().flatten());
    out
}

fn policy(whole: &core::PodSecurityContext) -> i32 {
    let strict = whole.supplemental_groups_policy.as_deref() == Some("Strict");
    (if strict { v1::SupplementalGroupsPolicy::Strict } else { v1::SupplementalGroupsPolicy::Merge }) as i32
}

fn selinux(options: Option<&core::SELinuxOptions>) -> Option<v1::SeLinuxOption> {
    options.map(|o| v1::SeLinuxOption {
        user: o.user.clone().unwrap_or_default(),
        role: o.role.clone().unwrap_or_default(),
        r#type: o.type_.clone().unwrap_or_default(),
        level: o.level.clone().unwrap_or_default(),
    })
}

fn unconfined() -> v1::SecurityProfile {
    v1::SecurityProfile {
        profile_type: v1::security_profile::ProfileType::Unconfined as i32,
        ..v1::SecurityProfile::default()
    }
}

fn seccomp(profile: Option<&core::SeccompProfile>, root: &Path) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType;
    let Some(profile) = profile else { return unconfined() };
    match profile.type_.as_str() {
        "RuntimeDefault" => {
            v1::SecurityProfile { profile_type: ProfileType::RuntimeDefault as i32, ..v1::SecurityProfile::default() }
        }
        "Localhost" => v1::SecurityProfile {
            profile_type: ProfileType::Localhost as i32,
            localhost_ref: root
                .join(profile.localhost_profile.as_deref().unwrap_or_default())
                .to_string_lossy()
                .into_owned(),
        },
        _ => unconfined(),
    }
}

fn apparmor(profile: Option<&core::AppArmorProfile>) -> Option<v1::SecurityProfile> {
    use v1::security_profile::ProfileType;
    let profile = profile?;
    let profile_type = match profile.type_.as_str() {
        "RuntimeDefault" => ProfileType::RuntimeDefault,
        "Localhost" => ProfileType::Localhost,
        _ => ProfileType::Unconfined,
    };
    let localhost_ref = profile.localhost_profile.clone().unwrap_or_default();
    Some(v1::SecurityProfile { profile_type: profile_type as i32, localhost_ref })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    fn render(whole: Value, own: Value, image: Image) -> Result<v1::LinuxContainerSecurityContext, String> {
        let pod =
            pod(json!({"spec": {"securityContext": whole, "containers": [{"name": "c", "securityContext": own}]}}));
        container(&pod, &pod.containers()[0], &image, Path::new("/seccomp"))
    }

    #[test]
    fn the_containers_setting_wins() {
        let whole = json!({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4],
            "seccompProfile": {"type": "RuntimeDefault"}});
        let found = render(
            whole,
            json!({"runAsUser": 9, "seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}}),
            Image::default(),
        )
        .expect("a context");
        assert_eq!(found.run_as_user.map(|v| v.value), Some(9));
        assert_eq!(found.run_as_group.map(|v| v.value), Some(2));
        assert_eq!(found.supplemental_groups, [3, 4]);
        assert_eq!(found.seccomp.map(|s| s.localhost_ref).as_deref(), Some("/seccomp/p.json"));
        assert_eq!(found.masked_paths.len(), MASKED.len());
    }

    #[test]
    fn the_images_user_is_the_default() {
        let named = Image { username: "www".into(), ..Image::default() };
        assert_eq!(render(json!({}), json!({}), named).map(|c| c.run_as_username).as_deref(), Ok("www"));
        let number = Image { uid: Some(33), ..Image::default() };
        assert_eq!(render(json!({}), json!({}), number).map(|c| c.run_as_user.map(|v| v.value)), Ok(Some(33)));
    }

    #[test]
    fn a_privileged_container_sees_everything() {
        let found = render(json!({}), json!({"privileged": true}), Image::default()).expect("a context");
        assert!(found.privileged && found.masked_paths.is_empty() && found.readonly_paths.is_empty());
        assert_eq!(found.seccomp.map(|s| s.profile_type), Some(v1::security_profile::ProfileType::Unconfined as i32));
    }

    #[test]
    fn run_as_non_root_is_checked_against_the_image() {
        let non_root = || json!({"runAsNonRoot": true});
        let rows = [
            (json!({"runAsUser": 0}), Image::default(), Some("container's runAsUser breaks non-root policy")),
            (json!({"runAsUser": 5}), Image::default(), None),
            (json!({}), Image::default(), Some("container has runAsNonRoot and image will run as root")),
            (json!({}), Image { uid: Some(7), ..Image::default() }, None),
            (
                json!({}),
                Image { username: "www".into(), ..Image::default() },
                Some("container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root"),
            ),
        ];
        for (own, image, want) in rows {
            let got = render(non_root(), own, image).err();
            let want = want.map(|w| format!("{w} (pod: \"web_default(u-1)\", container: c)"));
            assert_eq!(got, want);
        }
    }

    #[test]
    fn namespaces_follow_the_pod() {
        let of = |spec: Value| {
            let mut spec = spec;
            spec["containers"] = json!([]);
            let n = namespaces(&pod(json!({"spec": spec})));
            (n.network, n.pid, n.ipc)
        };
        use v1::NamespaceMode::{Container, Node, Pod};
        assert_eq!(of(json!({})), (Pod as i32, Container as i32, Pod as i32));
        assert_eq!(of(json!({"shareProcessNamespace": true})), (Pod as i32, Pod as i32, Pod as i32));
        assert_eq!(
            of(json!({"hostNetwork": true, "hostPID": true, "hostIPC": true})),
            (Node as i32, Node as i32, Node as i32)
        );
    }
}
