//! A pod that is bound to this node, with what every part asks of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::meta::apis::meta::v1::ObjectMeta;
use api::pod::QosClass;
use api::types::core::v1::{Container, ContainerRestartRule, EphemeralContainer, Pod, PodSpec, PodStatus};
use machinery::quantity::Quantity;

/// A pod whose name, namespace and uid are fit for file paths and whose spec is present.
///
/// Paths of volumes, logs and cgroups are made of these three, so they are checked here once.
#[derive(Clone, Debug)]
pub struct BoundPod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    object: Arc<Pod>,
    is_static: bool,
    /// The ephemeral containers as containers, and whose processes each wants to see.
    ephemeral: Vec<(Container, Option<String>)>,
}

/// What a container's exit means for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    fn parse(text: Option<&str>) -> Self {
        match text {
            Some("Never") => Self::Never,
            Some("OnFailure") => Self::OnFailure,
            _ => Self::Always,
        }
    }
}

impl BoundPod {
    /// The pod, if it is whole and its names are safe.
    pub fn parse(object: Arc<Pod>) -> Option<Arc<Self>> {
        Self::checked(object, false)
    }

    /// The same for a pod that a manifest on the node describes: what annotations say counts for nothing.
    pub fn parse_static(object: Arc<Pod>) -> Option<Arc<Self>> {
        Self::checked(object, true)
    }

    fn checked(object: Arc<Pod>, is_static: bool) -> Option<Arc<Self>> {
        let name = object.metadata.name.clone()?;
        let namespace = object.metadata.namespace.clone()?;
        let uid = object.metadata.uid.clone()?;
        object.spec.as_ref()?;
        let safe = |text: &str| {
            (1..=253).contains(&text.len())
                && !text.starts_with('.')
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
        };
        let ephemeral =
            object.spec.iter().flat_map(|s| s.ephemeral_containers.iter().flatten()).map(ephemeral).collect();
        (safe(&name) && safe(&namespace) && safe(&uid))
            .then(|| Arc::new(Self { namespace, name, uid, object, is_static, ephemeral }))
    }

    /// True when a manifest on the node describes it, and an object in the API at most shows it.
    pub fn is_static(&self) -> bool {
        self.is_static
    }

    /// The object as the API server has it, or as the manifest says.
    pub fn object(&self) -> &Arc<Pod> {
        &self.object
    }

    /// `metadata`.
    pub fn meta(&self) -> &ObjectMeta {
        &self.object.metadata
    }

    /// `metadata.resourceVersion`; 0 when it has none.
    pub fn revision(&self) -> u64 {
        client::object::revision_of(&*self.object)
    }

    /// `spec`.
    pub fn spec(&self) -> &PodSpec {
        static NONE: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.object.spec.as_ref().unwrap_or(&NONE)
    }

    /// `status`, empty when absent.
    pub fn status(&self) -> &PodStatus {
        static NONE: std::sync::LazyLock<PodStatus> = std::sync::LazyLock::new(PodStatus::default);
        self.object.status.as_ref().unwrap_or(&NONE)
    }

    /// `name_namespace(uid)`, as upstream's texts name pods.
    pub fn full_name(&self) -> String {
        format!("{}_{}({})", self.name, self.namespace, self.uid)
    }

    /// Containers that run before the others.
    pub fn init_containers(&self) -> &[Container] {
        self.spec().init_containers.as_deref().unwrap_or_default()
    }

    /// The containers.
    pub fn containers(&self) -> &[Container] {
        &self.spec().containers
    }

    /// Ephemeral containers, in the order of the spec.
    pub fn ephemeral_containers(&self) -> impl ExactSizeIterator<Item = &Container> {
        self.ephemeral.iter().map(|(container, _)| container)
    }

    /// True when `name` is an ephemeral container.
    pub fn is_ephemeral(&self, name: &str) -> bool {
        self.ephemeral_containers().any(|c| c.name == name)
    }

    /// The container whose processes the ephemeral container `name` wants to see.
    pub fn target_of(&self, name: &str) -> Option<&str> {
        let found = self.ephemeral.iter().find(|(container, _)| container.name == name);
        found?.1.as_deref().filter(|target| !target.is_empty())
    }

    /// Init containers, then the containers, then the ephemeral ones.
    pub fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers().iter().chain(self.containers()).chain(self.ephemeral_containers())
    }

    /// A container of any sort by name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.all_containers().find(|c| c.name == name)
    }

    /// True when `name` is an init container.
    pub fn is_init(&self, name: &str) -> bool {
        self.init_containers().iter().any(|c| c.name == name)
    }

    /// `spec.restartPolicy`.
    pub fn restart_policy(&self) -> RestartPolicy {
        RestartPolicy::parse(self.spec().restart_policy.as_deref())
    }

    /// Whether `container` starts again after it ended with `exit_code`.
    pub fn restarts_after(&self, container: &Container, exit_code: i32) -> bool {
        if self.is_ephemeral(&container.name) {
            return false;
        }
        if is_restartable_init(container) && self.is_init(&container.name) {
            return true;
        }
        if matching_rule(container, exit_code).is_some_and(|action| matches!(action, RESTART | RESTART_ALL)) {
            return true;
        }
        let policy = match container.restart_policy.as_deref() {
            Some(own) => RestartPolicy::parse(Some(own)),
            None => self.restart_policy(),
        };
        match policy {
            RestartPolicy::Always => !self.is_init(&container.name) || exit_code != 0,
            RestartPolicy::OnFailure => exit_code != 0,
            RestartPolicy::Never => false,
        }
    }

    /// A container's limit: its own, else that of the whole pod.
    pub fn limit(&self, container: &Container, name: &str) -> Option<Quantity> {
        let whole = || amount(self.spec().resources.as_ref()?.limits.as_ref(), name);
        limit(container, name).or_else(whole)
    }

    /// The same pod with another spec.
    pub fn with_spec(&self, change: impl FnOnce(&mut PodSpec)) -> Arc<Self> {
        let mut object = Pod::clone(&self.object);
        if let Some(spec) = &mut object.spec {
            change(spec);
        }
        Arc::new(Self { object: Arc::new(object), ..self.clone() })
    }

    /// Whether `container`'s end with `exit_code` restarts all containers of its pod.
    pub fn restarts_all_after(&self, container: &Container, exit_code: i32) -> bool {
        !self.is_ephemeral(&container.name) && matching_rule(container, exit_code) == Some(RESTART_ALL)
    }

    /// True for pods that an end of a container may restart as a whole.
    pub fn may_restart_all(&self) -> bool {
        let all = self.init_containers().iter().chain(self.containers());
        all.flat_map(|c| c.restart_policy_rules.iter().flatten()).any(|rule| rule.action == RESTART_ALL)
    }

    /// True once somebody asked for the pod's deletion.
    pub fn is_deleted(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    /// True when the API server has recorded that it ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.status().phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    /// True when the pod shares the node's network.
    pub fn host_network(&self) -> bool {
        self.spec().host_network.unwrap_or(false)
    }

    /// The seconds a pod may take to end: what the deletion granted, else what the spec says.
    pub fn grace_seconds(&self) -> i64 {
        let spec = self.spec().termination_grace_period_seconds.unwrap_or(30);
        let asked = self.meta().deletion_timestamp.as_ref().and(self.meta().deletion_grace_period_seconds);
        asked.unwrap_or(spec).max(0)
    }

    /// The domain beneath the cluster's that the pod's own hostname has, if it has one. A hostname that
    /// is overridden is whole as it is.
    pub fn domain(&self, cluster_domain: &str) -> Option<String> {
        let spec = self.spec();
        let subdomain = spec.subdomain.as_deref().filter(|s| !s.is_empty() && spec.hostname_override.is_none())?;
        Some(format!("{subdomain}.{}.svc.{cluster_domain}", self.namespace))
    }

    /// The hostname that processes in the pod see.
    pub fn hostname(&self) -> String {
        let spec = self.spec();
        let name = spec.hostname_override.as_ref().or(spec.hostname.as_ref()).filter(|h| !h.is_empty());
        let name = name.map_or(self.name.as_str(), String::as_str);
        // A hostname has at most 63 characters; what is cut must not end in a separator.
        name.get(..63).unwrap_or(name).trim_end_matches(['-', '.']).to_owned()
    }

    /// True for pods that the node may not end for lack of resources: static ones, whatever their
    /// priority, and those of a system class.
    pub fn is_critical(&self) -> bool {
        self.is_static || self.spec().priority.is_some_and(|p| p >= 2_000_000_000)
    }

    /// True for the critical pods that the kernel is to end last.
    pub fn is_node_critical(&self) -> bool {
        self.is_critical() && self.spec().priority_class_name.as_deref() == Some("system-node-critical")
    }

    /// The pod's class, from its containers' requests and limits for cpu and memory.
    pub fn qos(&self) -> QosClass {
        api::pod::qos_class(&self.object)
    }
}

/// The action of a restart rule that restarts its container.
const RESTART: &str = "Restart";
/// The action of a restart rule that restarts its whole pod in place.
const RESTART_ALL: &str = "RestartAllContainers";

/// The action of the first of the container's rules that is about this end.
fn matching_rule(container: &Container, exit_code: i32) -> Option<&str> {
    let is_about = |rule: &&ContainerRestartRule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.iter().flatten().any(|v| *v == exit_code);
            match codes.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    };
    container.restart_policy_rules.iter().flatten().find(is_about).map(|rule| rule.action.as_str())
}

/// An init container that stays beside the others (`restartPolicy: Always`).
pub fn is_restartable_init(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// An ephemeral container as the container it is, and its target.
fn ephemeral(found: &EphemeralContainer) -> (Container, Option<String>) {
    let EphemeralContainer {
        args,
        command,
        env,
        env_from,
        image,
        image_pull_policy,
        lifecycle,
        liveness_probe,
        name,
        ports,
        readiness_probe,
        resize_policy,
        resources,
        restart_policy,
        restart_policy_rules,
        security_context,
        startup_probe,
        stdin,
        stdin_once,
        target_container_name,
        termination_message_path,
        termination_message_policy,
        tty,
        volume_devices,
        volume_mounts,
        working_dir,
    } = found.clone();
    let container = Container {
        args,
        command,
        env,
        env_from,
        image,
        image_pull_policy,
        lifecycle,
        liveness_probe,
        name,
        ports,
        readiness_probe,
        resize_policy,
        resources,
        restart_policy,
        restart_policy_rules,
        security_context,
        startup_probe,
        stdin,
        stdin_once,
        termination_message_path,
        termination_message_policy,
        tty,
        volume_devices,
        volume_mounts,
        working_dir,
    };
    (container, target_container_name)
}

type Resources = BTreeMap<String, api::meta::api::resource::Quantity>;

/// A positive amount in a resource list.
pub fn amount(list: Option<&Resources>, name: &str) -> Option<Quantity> {
    let quantity: Quantity = list?.get(name)?.0.parse().ok()?;
    (!quantity.is_zero()).then_some(quantity)
}

/// A container's request: what it asks for, else its limit.
pub fn request(container: &Container, name: &str) -> Option<Quantity> {
    let resources = container.resources.as_ref()?;
    amount(resources.requests.as_ref(), name).or_else(|| amount(resources.limits.as_ref(), name))
}

/// A container's limit.
pub fn limit(container: &Container, name: &str) -> Option<Quantity> {
    amount(container.resources.as_ref()?.limits.as_ref(), name)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A pod from YAML-like JSON with the metadata that tests do not care about filled in.
    pub fn pod(value: serde_json::Value) -> Arc<BoundPod> {
        let mut value = value;
        let meta = value.as_object_mut().expect("an object").entry("metadata").or_insert_with(|| serde_json::json!({}));
        for (key, text) in [("name", "web"), ("namespace", "default"), ("uid", "u-1")] {
            meta.as_object_mut().expect("an object").entry(key).or_insert_with(|| text.into());
        }
        let object: Pod = serde_json::from_value(value).expect("a pod");
        BoundPod::parse(Arc::new(object)).expect("a whole pod")
    }

    #[test]
    fn names_that_could_leave_their_directory_are_refused() {
        for (name, uid) in [("../x", "u"), ("a/b", "u"), ("ok", ".."), ("ok", ""), ("ok", "a/../b")] {
            let object: Pod = serde_json::from_value(serde_json::json!({
                "metadata": {"name": name, "namespace": "d", "uid": uid}, "spec": {"containers": []}
            }))
            .expect("a pod");
            assert!(BoundPod::parse(Arc::new(object)).is_none(), "{name} {uid}");
        }
    }

    #[test]
    fn restart_rules_win_over_policies() {
        let pod = pod(serde_json::json!({"spec": {"restartPolicy": "Never", "containers": [
            {"name": "a"},
            {"name": "b", "restartPolicy": "OnFailure"},
            {"name": "c", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]},
            {"name": "d", "restartPolicy": "Never", "restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}},
                {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0, 2]}}]},
        ], "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]}}));
        let restarts = |name, code| pod.restarts_after(pod.container(name).expect("a container"), code);
        assert!(!restarts("a", 1));
        assert!(restarts("b", 1) && !restarts("b", 0));
        assert!(restarts("c", 42) && !restarts("c", 1));
        assert!(restarts("d", 1) && restarts("d", 3) && !restarts("d", 0) && !restarts("d", 2));
        let all = |name, code| pod.restarts_all_after(pod.container(name).expect("a container"), code);
        assert!(all("d", 3) && !all("d", 1) && !all("d", 2) && !all("c", 42), "the first rule that matches counts");
        assert!(pod.may_restart_all());
        assert!(!restarts("i", 1));
        assert!(restarts("s", 0));
    }

    #[test]
    fn long_hostnames_are_cut_where_a_hostname_may_end() {
        let name = format!("{}-tail", "a".repeat(62));
        let pod = pod(serde_json::json!({"metadata": {"name": name}, "spec": {"containers": []}}));
        assert_eq!(pod.hostname(), "a".repeat(62));
    }
}
