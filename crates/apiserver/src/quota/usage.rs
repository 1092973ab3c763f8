//! What an object takes of a quota, and which quotas it is in; pure.
//!
//! ```text
//!  a Pod asking for 500m    count/pods 1, pods 1, cpu 500m, requests.cpu 500m
//!  a Service of type NodePort with two ports   count/services 1, services 1, services.nodeports 2
//!  a Deployment             count/deployments.apps 1
//!  a ResourceClaim of two devices   count/resourceclaims.resource.k8s.io 1, CLASS.deviceclass.resource.k8s.io/devices 2
//! ```

use std::collections::{BTreeMap, BTreeSet};

use api::resources::{self, Resources};
use api::types::core::v1::{Container, PersistentVolumeClaim, Pod, PodAffinityTerm, ResourceRequirements};
use jiff::{SignedDuration, Timestamp};
use kinds::resources as names;
use machinery::meta;
use machinery::quantity::{Format, Quantity};
use serde::Deserialize;
use serde_json::Value;

/// What the objects of a resource are measured by.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Measure {
    Pods,
    Services,
    Claims,
    Devices,
    /// Nothing but their number.
    Number,
}

/// A resource whose objects are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    measure: Measure,
    /// `count/deployments.apps`.
    count: String,
    /// The older name of the same, for some of the core group.
    alias: &'static str,
    /// Names of extended resources by the device class that stands for them.
    extended: BTreeMap<String, String>,
}

const ALIASES: &[&str] =
    &["configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services"];
const OF_PODS: &[&str] = &[
    "count/pods",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "pods",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
/// A quota on one of these demands that every container names its amount.
const NAMED: &[&str] = &["cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"];
const BY_CLASS: &str = ".storageclass.storage.k8s.io/";
/// Devices of a class.
const OF_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// The same for a class that stands for an extended resource.
const IMPLICIT: &str = "requests.deviceclass.resource.kubernetes.io/";
/// What an extended resource is called that has no other name than its class.
const DEVICE_CLASS: &str = "deviceclass.resource.kubernetes.io/";
/// On a claim that was made for a pod which asks for devices by the name of a resource.
const FOR_A_POD: &str = "resource.kubernetes.io/extended-resource-claim";
/// What a claim for all devices counts as: as many as one can be given.
const ALL_DEVICES: i64 = 32;
const OF_CLAIMS: &[&str] = &["persistentvolumeclaims", "requests.storage"];

/// How a resource's objects are counted; `None` for those that are not.
pub fn counted(group: &str, plural: &str) -> Option<Counted> {
    if plural == "events" && matches!(group, "" | "events.k8s.io") {
        return None;
    }
    let measure = match (group, plural) {
        ("", "pods") => Measure::Pods,
        ("", "services") => Measure::Services,
        ("", "persistentvolumeclaims") => Measure::Claims,
        ("resource.k8s.io", "resourceclaims") => Measure::Devices,
        _ => Measure::Number,
    };
    let count = if group.is_empty() { format!("count/{plural}") } else { format!("count/{plural}.{group}") };
    let alias = ALIASES.iter().find(|alias| group.is_empty() && **alias == plural).copied().unwrap_or_default();
    Some(Counted { measure, count, alias, extended: BTreeMap::new() })
}

fn one() -> Quantity {
    Quantity::from_value(1, Format::Decimal)
}

impl Counted {
    /// True when device classes say what more these objects count as.
    pub fn depends_on_classes(&self) -> bool {
        self.measure == Measure::Devices
    }

    /// With the device classes there are.
    #[must_use]
    pub fn with_classes(mut self, classes: impl Iterator<Item = Value>) -> Self {
        let name_of =
            |class: &Value| class.pointer("/spec/extendedResourceName").and_then(Value::as_str).map(str::to_owned);
        self.extended = classes.filter_map(|class| Some((meta::name(&class).to_owned(), name_of(&class)?))).collect();
        self
    }

    /// True when a write may take more than before; `old` is what an update replaces.
    pub fn is_charged(&self, old: Option<&Value>, new: &Value, subresource: &str) -> bool {
        let create = old.is_none();
        match (&self.measure, subresource) {
            (_, "") if create => true,
            // Into another scope.
            (Measure::Pods, "") => old.is_some_and(|old| ends(old) != ends(new)),
            (Measure::Services | Measure::Claims | Measure::Devices, "") => true,
            (Measure::Pods, "resize") | (Measure::Claims, "status") => !create,
            _ => false,
        }
    }

    /// True when the amount under this name depends on these objects.
    pub fn tracks(&self, name: &str) -> bool {
        if name == self.count || (!self.alias.is_empty() && name == self.alias) {
            return true;
        }
        match self.measure {
            Measure::Number => false,
            Measure::Devices => {
                let stands_for = |wanted: &str| self.extended.values().any(|name| name == wanted);
                name.ends_with(OF_CLASS)
                    || name.strip_prefix(IMPLICIT).is_some_and(|class| self.extended.contains_key(class))
                    || name.strip_prefix("requests.").is_some_and(stands_for)
            }
            Measure::Services => matches!(name, "services.nodeports" | "services.loadbalancers"),
            Measure::Claims => {
                let of_class = name.split_once(BY_CLASS).map(|(_, rest)| rest);
                OF_CLAIMS.contains(&of_class.unwrap_or(name))
            }
            Measure::Pods => {
                OF_PODS.contains(&name)
                    || name.starts_with("hugepages-")
                    || name.starts_with("requests.hugepages-")
                    || (name.starts_with("requests.") && !names::is_native(name))
                    || name.starts_with(IMPLICIT)
            }
        }
    }

    /// What an object takes.
    pub fn usage(&self, object: &Value, now: Timestamp) -> Resources {
        let mut out = Resources::from([(self.count.clone(), one())]);
        if !self.alias.is_empty() {
            out.insert(self.alias.to_owned(), one());
        }
        match self.measure {
            Measure::Number => {}
            Measure::Devices => self.of_devices(object, &mut out),
            Measure::Services => of_service(object, &mut out),
            Measure::Claims => of_claim(object, &mut out),
            Measure::Pods => {
                // One that cannot be read has been refused already.
                if let Some(pod) = kinds::pod::read(object).ok().filter(|pod| !is_over(pod, now)) {
                    resources::add(
                        &mut out,
                        &of_lists(api::pod::effective_requests(&pod), api::pod::effective_limits(&pod)),
                    );
                }
            }
        }
        out
    }

    /// What a quota on `hard` demands of an object; the text of the refusal.
    pub fn demand(&self, hard: &Resources, object: &Value) -> Result<(), String> {
        if self.measure != Measure::Pods {
            return Ok(());
        }
        let Ok(pod) = kinds::pod::read(object) else { return Ok(()) };
        let Some(spec) = &pod.spec else { return Ok(()) };
        // A pod that is given something as a whole need not say what each container gets of it.
        if api::pod::has_resources_of_its_own(&pod) {
            return Ok(());
        }
        let demanded = || NAMED.iter().filter(|name| hard.contains_key(**name));
        let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        for Container { name, resources, .. } in containers {
            let given = keys(resources.as_ref());
            for wanted in demanded().filter(|wanted| !given.contains(**wanted)) {
                missing.entry(wanted).or_default().insert(name);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let list = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(",");
        let parts: Vec<String> = missing.into_iter().map(|(what, who)| format!("{what} for: {}", list(who))).collect();
        Err(format!("must specify {}", parts.join("; ")))
    }

    /// True when an object is in a scope.
    pub fn is_in(&self, scope: &Scope, object: &Value) -> bool {
        match self.measure {
            Measure::Pods => kinds::pod::read(object).is_ok_and(|pod| pod_is_in(scope, &pod)),
            Measure::Claims if scope.name == "VolumeAttributesClass" => {
                let at = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).filter(|n| !n.is_empty());
                let named = [
                    "/spec/volumeAttributesClassName",
                    "/status/currentVolumeAttributesClassName",
                    "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
                ];
                let named: Vec<&str> = named.into_iter().filter_map(at).collect();
                if named.is_empty() { scope.takes(None) } else { named.into_iter().any(|name| scope.takes(Some(name))) }
            }
            _ => false,
        }
    }
}

impl Counted {
    /// Devices by class, in the worst case: all that a request may be given, and of alternatives the
    /// largest of each class.
    fn of_devices(&self, claim: &Value, out: &mut Resources) {
        let number = |request: &Value| match request["allocationMode"].as_str() {
            Some("ExactCount") => request["count"].as_i64().unwrap_or(0),
            Some("All") => ALL_DEVICES,
            _ => 0,
        };
        let class = |request: &Value| request["deviceClassName"].as_str().unwrap_or_default().to_owned();
        let mut devices: BTreeMap<String, i64> = BTreeMap::new();
        let requests = claim.pointer("/spec/devices/requests").and_then(Value::as_array);
        for request in requests.into_iter().flatten() {
            let mut most: BTreeMap<String, i64> = BTreeMap::new();
            let alternatives = request["firstAvailable"].as_array().filter(|list| !list.is_empty());
            let exactly = request.get("exactly").filter(|exactly| exactly.is_object() && alternatives.is_none());
            for one in alternatives.into_iter().flatten().chain(exactly) {
                let count = most.entry(class(one)).or_default();
                *count = number(one).max(*count);
            }
            for (class, count) in most {
                let sum = devices.entry(class).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        for (class, count) in devices {
            let amount = Quantity::from_value(count, Format::Decimal);
            if let Some(name) = self.extended.get(&class) {
                resources::add(out, &Resources::from([(format!("requests.{name}"), amount)]));
            }
            out.insert(format!("{IMPLICIT}{class}"), amount);
            out.insert(format!("{class}{OF_CLASS}"), amount);
        }
    }
}

/// Who owns a claim that was made for what a pod asks for by the names of resources: the pod's name and uid.
pub fn made_for(claim: &Value) -> Option<(&str, &str)> {
    if meta::annotation(claim, FOR_A_POD) != Some("true") {
        return None;
    }
    let owners = claim.pointer("/metadata/ownerReferences").and_then(Value::as_array)?;
    let owner = owners.iter().find(|owner| owner["controller"] == Value::Bool(true))?;
    let is_pod = owner["kind"] == "Pod" && owner["apiVersion"] == "v1";
    owner["name"].as_str().zip(owner["uid"].as_str()).filter(|_| is_pod)
}

/// True when `claim` is the one of the pod's: the one it names, else the oldest of those made for it.
pub fn is_claim_of<'a>(pod: &Value, claim: &Value, mut others: impl Iterator<Item = &'a Value>) -> bool {
    if let Some(named) = pod.pointer("/status/extendedResourceClaimStatus/resourceClaimName").and_then(Value::as_str) {
        return named == meta::name(claim);
    }
    let uid = meta::uid(pod);
    // Times are written alike, and so are ordered as texts.
    let age = |claim: &Value| {
        let made = claim.pointer("/metadata/creationTimestamp").and_then(Value::as_str).unwrap_or_default();
        (made.to_owned(), meta::name(claim).to_owned())
    };
    let own = age(claim);
    !others.any(|other| made_for(other).is_some_and(|(_, owner)| owner == uid) && age(other) < own)
}

/// What a claim takes under the names of extended resources is less what its pod was charged for the same.
pub fn less_what_the_pod_took(claim: &mut Resources, pod: &Resources) {
    claim.retain(|name, amount| {
        let Some(taken) = name.starts_with("requests.").then(|| pod.get(name)).flatten() else { return true };
        *amount = amount.sub(taken);
        *amount > Quantity::ZERO
    });
}

/// True for a pod that is to end by itself.
fn ends(pod: &Value) -> bool {
    pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds >= 0)
}

/// One condition that narrows what a quota counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Scope {
    #[serde(rename = "scopeName")]
    pub name: String,
    pub operator: String,
    pub values: Vec<String>,
}

impl Scope {
    /// True when the operator takes this value; `None` is an object without one.
    fn takes(&self, value: Option<&str>) -> bool {
        let named = value.is_some_and(|value| self.values.iter().any(|v| v == value));
        match self.operator.as_str() {
            "In" => named,
            "NotIn" => !named,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

fn pod_is_in(scope: &Scope, pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let ends = spec.and_then(|spec| spec.active_deadline_seconds).is_some_and(|seconds| seconds >= 0);
    let best_effort = || api::pod::qos_class(pod) == api::pod::QosClass::BestEffort;
    match scope.name.as_str() {
        "Terminating" => ends,
        "NotTerminating" => !ends,
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => {
            let class = spec.and_then(|spec| spec.priority_class_name.as_deref());
            scope.takes(class.filter(|class| !class.is_empty()))
        }
        "CrossNamespacePodAffinity" => looks_elsewhere(pod),
        _ => false,
    }
}

/// True when the pod wants to be near, or far from, pods of other namespaces.
fn looks_elsewhere(pod: &Pod) -> bool {
    let Some(affinity) = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()) else { return false };
    let elsewhere = |term: &PodAffinityTerm| {
        term.namespaces.as_ref().is_some_and(|list| !list.is_empty()) || term.namespace_selector.is_some()
    };
    let near = affinity.pod_affinity.as_ref().map(|a| {
        (
            &a.required_during_scheduling_ignored_during_execution,
            &a.preferred_during_scheduling_ignored_during_execution,
        )
    });
    let far = affinity.pod_anti_affinity.as_ref().map(|a| {
        (
            &a.required_during_scheduling_ignored_during_execution,
            &a.preferred_during_scheduling_ignored_during_execution,
        )
    });
    near.into_iter().chain(far).any(|(required, preferred)| {
        required.iter().flatten().any(elsewhere)
            || preferred.iter().flatten().any(|weighted| elsewhere(&weighted.pod_affinity_term))
    })
}

/// Nothing of it runs any more, or should.
fn is_over(pod: &Pod, now: Timestamp) -> bool {
    let stuck = pod.metadata.deletion_timestamp.as_ref().zip(pod.metadata.deletion_grace_period_seconds);
    let stuck = stuck
        .is_some_and(|(at, grace)| at.0.saturating_add(SignedDuration::from_secs(grace)).is_ok_and(|end| now > end));
    api::pod::is_terminal(pod) || stuck
}

fn keys(resources: Option<&ResourceRequirements>) -> BTreeSet<String> {
    let list = |list: Option<&names::List>| list.map(resources::parse).unwrap_or_default();
    let of = |f: fn(&ResourceRequirements) -> Option<&names::List>| list(resources.and_then(f));
    of_lists(of(|r| r.requests.as_ref()), of(|r| r.limits.as_ref())).into_keys().collect()
}

/// What requests and limits are called in a quota.
fn of_lists(requests: Resources, limits: Resources) -> Resources {
    let mut out = Resources::from([("pods".to_owned(), one())]);
    for (name, amount) in requests {
        let plain = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
        if plain || !names::is_native(&name) || name.starts_with(DEVICE_CLASS) {
            out.insert(format!("requests.{name}"), amount);
        }
        if plain {
            out.insert(name, amount);
        }
    }
    for (name, amount) in limits {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            out.insert(format!("limits.{name}"), amount);
        }
    }
    out
}

fn of_service(service: &Value, out: &mut Resources) {
    let spec = &service["spec"];
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = ports.iter().filter(|port| port["nodePort"].as_i64().unwrap_or(0) != 0).count();
    let (ports, balancers) = match spec["type"].as_str() {
        Some("NodePort") => (ports.len(), 0),
        Some("LoadBalancer") if spec["allocateLoadBalancerNodePorts"] == Value::Bool(false) => (named, 1),
        Some("LoadBalancer") => (ports.len(), 1),
        _ => (0, 0),
    };
    let number = |n: usize| Quantity::from_value(i64::try_from(n).unwrap_or(i64::MAX), Format::Decimal);
    out.insert("services.nodeports".into(), number(ports));
    out.insert("services.loadbalancers".into(), number(balancers));
}

fn of_claim(object: &Value, out: &mut Resources) {
    let Ok(claim) = PersistentVolumeClaim::deserialize(object) else { return };
    let spec = claim.spec.unwrap_or_default();
    let class = kinds::storage_class_of(claim.metadata.annotations.as_ref(), spec.storage_class_name.as_deref());
    let asked = spec.resources.and_then(|r| r.requests).and_then(|list| list.get("storage").map(resources::amount));
    let given = claim.status.and_then(|s| s.allocated_resources);
    let given = given.and_then(|list| list.get("storage").map(resources::amount));
    let whole = |amount: Quantity| {
        // Counted in whole bytes.
        let bytes = i64::try_from(amount.value()).unwrap_or(i64::MAX);
        let rounded = Quantity::from_value(bytes, amount.format());
        if rounded == amount { amount } else { rounded }
    };
    let storage = asked.map(|asked| whole(given.filter(|given| *given > asked).unwrap_or(asked)));
    if !class.is_empty() {
        out.insert(format!("{class}{BY_CLASS}persistentvolumeclaims"), one());
    }
    if let Some(storage) = storage {
        out.insert("requests.storage".into(), storage);
        if !class.is_empty() {
            out.insert(format!("{class}{BY_CLASS}requests.storage"), storage);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn known(group: &str, plural: &str) -> Counted {
        let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
        counted(group, plural).expect("counted").with_classes([class, json!({"metadata": {"name": "net"}})].into_iter())
    }

    fn check(group: &str, plural: &str, object: &Value) -> String {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().expect("a time");
        let usage = known(group, plural).usage(object, now);
        usage.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_objects_take() {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": "500m", "example.com/gpu": "2",
            "hugepages-2Mi": "4Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}});
        for (group, plural, object, want) in [
            ("apps", "deployments", json!({}), "count/deployments.apps=1"),
            ("", "secrets", json!({}), "count/secrets=1 secrets=1"),
            (
                "",
                "pods",
                json!({"spec": {"containers": [container, {"name": "d", "resources": {"requests": {"cpu": "1"}}}]}}),
                "count/pods=1 cpu=1500m hugepages-2Mi=4Mi limits.cpu=1 limits.memory=1Gi pods=1 requests.cpu=1500m \
                 requests.example.com/gpu=2 requests.hugepages-2Mi=4Mi",
            ),
            ("", "pods", json!({"spec": {"containers": [container]}, "status": {"phase": "Failed"}}), "count/pods=1"),
            (
                "",
                "pods",
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30},
                    "spec": {"containers": []}}),
                "count/pods=1",
            ),
            (
                "",
                "services",
                json!({"spec": {"type": "NodePort", "ports": [{}, {}]}}),
                "count/services=1 services=1 services.loadbalancers=0 services.nodeports=2",
            ),
            (
                "",
                "services",
                json!({"spec": {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
                    "ports": [{}, {"nodePort": 30001}]}}),
                "count/services=1 services=1 services.loadbalancers=1 services.nodeports=1",
            ),
            (
                "",
                "persistentvolumeclaims",
                json!({"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "1Gi"}}},
                    "status": {"allocatedResources": {"storage": "2Gi"}}}),
                "count/persistentvolumeclaims=1 gold.storageclass.storage.k8s.io/persistentvolumeclaims=1 \
                 gold.storageclass.storage.k8s.io/requests.storage=2Gi persistentvolumeclaims=1 requests.storage=2Gi",
            ),
            (
                "resource.k8s.io",
                "resourceclaims",
                json!({"spec": {"devices": {"requests": [
                    {"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}},
                    {"name": "b", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}},
                    {"name": "c", "firstAvailable": [
                        {"name": "x", "deviceClassName": "net", "allocationMode": "ExactCount", "count": 1},
                        {"name": "y", "deviceClassName": "net", "allocationMode": "ExactCount", "count": 3},
                        {"name": "z", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1},
                    ]},
                ]}}}),
                "count/resourceclaims.resource.k8s.io=1 gpu.deviceclass.resource.k8s.io/devices=35 \
                 net.deviceclass.resource.k8s.io/devices=3 requests.deviceclass.resource.kubernetes.io/gpu=35 \
                 requests.deviceclass.resource.kubernetes.io/net=3 requests.example.com/gpu=35",
            ),
            ("widgets.example.com", "widgets", json!({}), "count/widgets.widgets.example.com=1"),
        ] {
            assert_eq!(check(group, plural, &object), want, "{plural} {object}");
        }
        assert_eq!(counted("", "events"), None);
    }

    #[test]
    fn names_are_tracked_by_those_they_depend_on() {
        let tracks = |group: &str, plural: &str, name: &str| known(group, plural).tracks(name);
        for (group, plural, name, want) in [
            ("", "pods", "requests.cpu", true),
            ("", "pods", "requests.example.com/gpu", true),
            ("", "pods", "example.com/gpu", false),
            ("", "pods", "requests.storage", false),
            ("", "persistentvolumeclaims", "gold.storageclass.storage.k8s.io/requests.storage", true),
            ("", "persistentvolumeclaims", "requests.storage", true),
            ("", "services", "services.nodeports", true),
            ("", "services", "count/services", true),
            ("apps", "deployments", "count/deployments.apps", true),
            ("apps", "deployments", "deployments", false),
            ("", "secrets", "secrets", true),
            ("resource.k8s.io", "resourceclaims", "gpu.deviceclass.resource.k8s.io/devices", true),
            ("resource.k8s.io", "resourceclaims", "count/resourceclaims.resource.k8s.io", true),
            ("resource.k8s.io", "resourceclaims", "requests.deviceclass.resource.kubernetes.io/gpu", true),
            ("resource.k8s.io", "resourceclaims", "requests.deviceclass.resource.kubernetes.io/net", false),
            ("resource.k8s.io", "resourceclaims", "requests.example.com/gpu", true),
            ("resource.k8s.io", "resourceclaims", "requests.example.com/other", false),
            ("resource.k8s.io", "resourceclaims", "resourceclaims", false),
        ] {
            assert_eq!(tracks(group, plural, name), want, "{plural} {name}");
        }
    }

    #[test]
    fn writes_that_may_take_more_are_charged() {
        let (plain, ending) = (json!({"spec": {}}), json!({"spec": {"activeDeadlineSeconds": 0}}));
        for (group, plural, old, new, subresource, want) in [
            ("", "pods", None, &plain, "", true),
            ("", "pods", Some(&plain), &plain, "", false),
            ("", "pods", Some(&plain), &ending, "", true),
            ("", "pods", Some(&plain), &plain, "resize", true),
            ("", "pods", Some(&plain), &plain, "status", false),
            ("", "pods", None, &plain, "binding", false),
            ("", "services", Some(&plain), &plain, "", true),
            ("", "persistentvolumeclaims", Some(&plain), &plain, "status", true),
            ("resource.k8s.io", "resourceclaims", Some(&plain), &plain, "", true),
            ("resource.k8s.io", "resourceclaims", Some(&plain), &plain, "status", false),
            ("apps", "deployments", Some(&plain), &plain, "", false),
        ] {
            let found = known(group, plural).is_charged(old, new, subresource);
            assert_eq!(found, want, "{plural} {subresource} {new}");
        }
    }

    #[test]
    fn scopes_narrow() {
        let pods = counted("", "pods").expect("counted");
        let scope = |name: &str, operator: &str, values: &[&str]| Scope {
            name: name.into(),
            operator: operator.into(),
            values: values.iter().map(|v| (*v).to_owned()).collect(),
        };
        let plain = json!({"spec": {"containers": [{"name": "c"}]}});
        let urgent = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
            "priorityClassName": "high", "activeDeadlineSeconds": 5,
            "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "k", "namespaces": ["x"]}]}}}});
        for (scope, in_plain, in_urgent) in [
            (scope("Terminating", "Exists", &[]), false, true),
            (scope("NotTerminating", "Exists", &[]), true, false),
            (scope("BestEffort", "Exists", &[]), true, false),
            (scope("NotBestEffort", "Exists", &[]), false, true),
            (scope("PriorityClass", "Exists", &[]), false, true),
            (scope("PriorityClass", "DoesNotExist", &[]), true, false),
            (scope("PriorityClass", "In", &["high"]), false, true),
            (scope("PriorityClass", "NotIn", &["high"]), true, false),
            (scope("CrossNamespacePodAffinity", "Exists", &[]), false, true),
        ] {
            assert_eq!((pods.is_in(&scope, &plain), pods.is_in(&scope, &urgent)), (in_plain, in_urgent), "{scope:?}");
        }
        let claims = counted("", "persistentvolumeclaims").expect("counted");
        let gold = json!({"spec": {"volumeAttributesClassName": "gold"}});
        assert!(claims.is_in(&scope("VolumeAttributesClass", "In", &["gold"]), &gold));
        assert!(!claims.is_in(&scope("Terminating", "Exists", &[]), &gold));
    }

    #[test]
    fn amounts_that_are_limited_must_be_named() {
        let pods = counted("", "pods").expect("counted");
        let hard = ["limits.memory", "requests.cpu"].map(|name| (name.to_owned(), one())).into();
        let pod =
            json!({"spec": {"containers": [{"name": "b", "resources": {"requests": {"cpu": "1"}}}, {"name": "a"}]}});
        let want = Err("must specify limits.memory for: a,b; requests.cpu for: a".to_owned());
        assert_eq!(pods.demand(&hard, &pod), want);
        let whole = json!({"spec": {"containers": [{"name": "b"}], "resources": {"requests": {"cpu": "1"},
            "limits": {"memory": "1Gi"}}}});
        assert_eq!(pods.demand(&hard, &whole), Ok(()));
    }
}
