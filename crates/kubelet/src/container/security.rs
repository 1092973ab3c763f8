//! Security contexts as the runtime takes them: the container's setting, else the pod's. Pure.

use std::path::Path;

use ::cri::v1;
use api::types::core::v1 as core;

use crate::pod::BoundPod;
use crate::runtime::Image;
use crate::users::Block;

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

/// What a container's security context is made of.
pub struct Inputs<'a> {
    pub pod: &'a BoundPod,
    pub container: &'a core::Container,
    pub image: &'a Image,
    /// The container whose processes it sees beside its own.
    pub target: Option<&'a str>,
    /// The pod's users, where they are not the node's.
    pub users: Option<Block>,
    pub seccomp_root: &'a Path,
}

/// A container's security context; the error is the message of CreateContainerConfigError.
pub fn container(inputs: &Inputs) -> Result<v1::LinuxContainerSecurityContext, String> {
    let Inputs { pod, container, image, seccomp_root, .. } = *inputs;
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
    // An image that names no user runs as root; said so, because a group alone is refused.
    let user = user.or(image.uid).or(image_user.is_empty().then_some(0));
    let mut namespaces = namespaces(pod, inputs.users);
    if let Some(id) = inputs.target.filter(|_| namespaces.pid == v1::NamespaceMode::Container as i32) {
        namespaces.pid = v1::NamespaceMode::Target as i32;
        id.clone_into(&mut namespaces.target_id);
    }
    Ok(v1::LinuxContainerSecurityContext {
        capabilities,
        privileged,
        namespace_options: Some(namespaces),
        selinux_options: selinux(own.se_linux_options.as_ref().or(whole.se_linux_options.as_ref())),
        run_as_user: int(user),
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
            seccomp(own.seccomp_profile.as_ref().or(whole.seccomp_profile.as_ref()), seccomp_root)?
        }),
        apparmor: apparmor(own.app_armor_profile.as_ref().or(whole.app_armor_profile.as_ref()))?,
    })
}

/// A sandbox's security context.
pub fn sandbox(pod: &BoundPod, users: Option<Block>) -> v1::LinuxSandboxSecurityContext {
    let whole = pod.spec().security_context.clone().unwrap_or_default();
    let privileged = pod.all_containers().any(|c| c.security_context.as_ref().and_then(|s| s.privileged) == Some(true));
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod, users)),
        selinux_options: selinux(whole.se_linux_options.as_ref()),
        run_as_user: int(whole.run_as_user),
        run_as_group: int(whole.run_as_group),
        supplemental_groups: groups(&whole),
        supplemental_groups_policy: policy(&whole),
        privileged,
        // The pause process does next to nothing: the runtime's own profile always suits it, and a
        // pod's own, made for what the pod does, need not let it begin.
        seccomp: Some(v1::SecurityProfile {
            profile_type: v1::security_profile::ProfileType::RuntimeDefault as i32,
            ..v1::SecurityProfile::default()
        }),
        ..v1::LinuxSandboxSecurityContext::default()
    }
}

/// Which namespaces the pod's containers share, with each other or with the node.
pub fn namespaces(pod: &BoundPod, users: Option<Block>) -> v1::NamespaceOption {
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
        userns_options: users.map(|block| v1::UserNamespace {
            mode: v1::NamespaceMode::Pod as i32,
            uids: vec![block.mapping()],
            gids: vec![block.mapping()],
        }),
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

/// A profile that is not what it should be is an error, never no profile.
fn seccomp(profile: Option<&core::SeccompProfile>, root: &Path) -> Result<v1::SecurityProfile, String> {
    use v1::security_profile::ProfileType;
    let Some(profile) = profile else { return Ok(unconfined()) };
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(v1::SecurityProfile {
            profile_type: ProfileType::RuntimeDefault as i32,
            ..v1::SecurityProfile::default()
        }),
        "Localhost" => {
            let file = profile.localhost_profile.as_deref().filter(|file| !file.is_empty());
            let file = file.ok_or("localhostProfile must be set if seccompProfile type is Localhost.")?;
            // Names of this folder only, whoever made the pod.
            let plain = |part| matches!(part, std::path::Component::Normal(_));
            if !Path::new(file).components().all(plain) {
                return Err(format!("seccompProfile.localhostProfile {file:?} leads out of the profiles' folder"));
            }
            let localhost_ref = root.join(file).to_string_lossy().into_owned();
            Ok(v1::SecurityProfile { profile_type: ProfileType::Localhost as i32, localhost_ref })
        }
        "Unconfined" => Ok(unconfined()),
        other => Err(format!("seccompProfile type {other:?} is not known")),
    }
}

fn apparmor(profile: Option<&core::AppArmorProfile>) -> Result<Option<v1::SecurityProfile>, String> {
    use v1::security_profile::ProfileType;
    let Some(profile) = profile else { return Ok(None) };
    let name = profile.localhost_profile.clone().unwrap_or_default();
    let (profile_type, localhost_ref) = match profile.type_.as_str() {
        "RuntimeDefault" => (ProfileType::RuntimeDefault, String::new()),
        "Localhost" if name.is_empty() => {
            return Err("localhostProfile must be set if appArmorProfile type is Localhost.".into());
        }
        "Localhost" => (ProfileType::Localhost, name),
        "Unconfined" => (ProfileType::Unconfined, String::new()),
        other => return Err(format!("appArmorProfile type {other:?} is not known")),
    };
    Ok(Some(v1::SecurityProfile { profile_type: profile_type as i32, localhost_ref }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::{Value, json};

    fn render(whole: Value, own: Value, image: Image) -> Result<v1::LinuxContainerSecurityContext, String> {
        let pod =
            pod(json!({"spec": {"securityContext": whole, "containers": [{"name": "c", "securityContext": own}]}}));
        let container_spec = &pod.containers()[0];
        let seccomp_root = Path::new("/seccomp");
        container(&Inputs {
            pod: &pod,
            container: container_spec,
            image: &image,
            target: None,
            users: None,
            seccomp_root,
        })
    }

    #[test]
    fn a_profile_that_is_not_there_confines_all_the_more() {
        let seccomp = |profile: Value| render(json!({"seccompProfile": profile}), json!({}), Image::default());
        let app_armor = |profile: Value| render(json!({}), json!({"appArmorProfile": profile}), Image::default());
        let local = |file: &str| json!({"type": "Localhost", "localhostProfile": file});
        let rows = [
            (
                seccomp(json!({"type": "Localhost"})),
                "localhostProfile must be set if seccompProfile type is Localhost.",
            ),
            (seccomp(local("")), "localhostProfile must be set if seccompProfile type is Localhost."),
            (seccomp(local("../x")), "seccompProfile.localhostProfile \"../x\" leads out of the profiles' folder"),
            (seccomp(local("/x")), "seccompProfile.localhostProfile \"/x\" leads out of the profiles' folder"),
            (seccomp(json!({"type": "Other"})), "seccompProfile type \"Other\" is not known"),
            (app_armor(local("")), "localhostProfile must be set if appArmorProfile type is Localhost."),
            (app_armor(json!({"type": ""})), "appArmorProfile type \"\" is not known"),
        ];
        for (found, want) in rows {
            assert_eq!(found.err().as_deref(), Some(want));
        }
        let found = seccomp(json!({"type": "Unconfined"})).map(|c| c.seccomp.map(|s| s.profile_type));
        assert_eq!(found, Ok(Some(v1::security_profile::ProfileType::Unconfined as i32)));
    }

    #[test]
    fn a_target_counts_where_every_container_has_processes_of_its_own() {
        let of = |spec: Value| {
            let mut spec = spec;
            spec["containers"] = json!([{"name": "c"}]);
            let (pod, image) = (pod(json!({"spec": spec})), Image::default());
            let inputs = Inputs {
                pod: &pod,
                container: &pod.containers()[0],
                image: &image,
                target: Some("id-1"),
                users: None,
                seccomp_root: Path::new("/seccomp"),
            };
            let found = container(&inputs).expect("a context").namespace_options.expect("namespaces");
            (found.pid, found.target_id)
        };
        use v1::NamespaceMode::{Node, Pod, Target};
        assert_eq!(of(json!({})), (Target as i32, "id-1".into()));
        assert_eq!(of(json!({"shareProcessNamespace": true})), (Pod as i32, String::new()));
        assert_eq!(of(json!({"hostPID": true})), (Node as i32, String::new()));
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
        // The runtime refuses a group without a user.
        let nobody = render(json!({"runAsGroup": 7}), json!({}), Image::default()).expect("a context");
        assert_eq!((nobody.run_as_user.map(|v| v.value), nobody.run_as_group.map(|v| v.value)), (Some(0), Some(7)));
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
            let n = namespaces(&pod(json!({"spec": spec})), None);
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
