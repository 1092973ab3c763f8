//! What is allowed in a pod, and yet likely not meant.

use std::collections::{BTreeMap, HashMap, HashSet};

use api::types::core::v1::{Container, ContainerPort, NodeSelectorTerm, Pod, PodAffinityTerm, PodSpec};
use machinery::field::Path;
use machinery::names;

use super::{validate_app_armor, warnings_volume};
use crate::addresses;
use crate::old_labels;
use crate::resources::{self, List};

type Annotations = BTreeMap<String, String>;

/// Annotations that do nothing any more.
const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        r#"non-functional in v1.16+; use the "priorityClassName" field instead"#,
    ),
    ("security.alpha.kubernetes.io/sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
    ("security.alpha.kubernetes.io/unsafe-sysctls", r#"non-functional in v1.11+; use the "sysctls" field instead"#),
];
const SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_OF: &str = "container.seccomp.security.alpha.kubernetes.io/";
const NO_SECCOMP: &str = r#"non-functional in v1.27+; use the "seccompProfile" field instead"#;
const NO_POD: &str = "a null labelSelector results in matching no pod";

/// Warnings for a pod that is created.
pub fn pod(pod: &Pod) -> Vec<String> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let wrong = names::dns1123_label(pod.metadata.name.as_deref().unwrap_or_default());
    let told = "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label \
                is recommended";
    let named = (!wrong.is_empty()).then(|| format!("{told}: [{}]", wrong.join(" ")));
    let rest = self::spec(spec, pod.metadata.annotations.as_ref(), &Path::root());
    named.into_iter().chain(rest).collect()
}

/// Warnings for what the kubelet says of a pod.
pub fn status(pod: &Pod) -> Vec<String> {
    let Some(status) = &pod.status else { return Vec::new() };
    let path = Path::new("status");
    let own = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).enumerate();
    let hosts = status.host_ips.iter().flatten().map(|ip| ip.ip.as_str()).enumerate();
    let own = own.map(|(i, ip)| (path.child("podIPs").index(i), ip));
    let hosts = hosts.map(|(i, ip)| (path.child("hostIPs").index(i), ip));
    own.chain(hosts).filter_map(|(path, ip)| addresses::address_warnings(ip, &path.child("ip"))).collect()
}

/// Warnings for a spec; `path` leads to what holds it, and is the root for a pod.
pub fn spec(spec: &PodSpec, annotations: Option<&Annotations>, path: &Path) -> Vec<String> {
    let none = Annotations::new();
    let annotations = annotations.unwrap_or(&none);
    let (top, path) = (path.child("metadata").child("annotations"), path.child("spec"));
    let mut out = Vec::new();
    nodes(spec, &path, &mut out);
    for (key, told) in OLD_ANNOTATIONS.iter().filter(|(key, _)| annotations.contains_key(*key)) {
        out.push(format!("{}: {told}", top.key(key)));
    }
    warnings_volume::volumes(spec, &path, &mut out);
    twice(spec, &path, &mut out);
    if let Some(overhead) = &spec.overhead {
        for name in ["memory", "ephemeral-storage"] {
            fraction(Some(overhead), name, &path.child("overhead"), &mut out);
        }
    }
    let security = spec.security_context.as_ref();
    if security.is_none_or(|security| security.seccomp_profile.is_none()) && annotations.contains_key(SECCOMP) {
        out.push(format!("{}: {NO_SECCOMP}", top.key(SECCOMP)));
    }
    let of_pod = security.and_then(|security| security.app_armor_profile.as_ref());
    let containers = containers(spec, &path);
    let is_template = top.as_str() != "metadata.annotations";
    for (container, path) in &containers {
        let security = container.security_context.as_ref();
        let key = format!("{SECCOMP_OF}{}", container.name);
        if security.is_none_or(|s| s.seccomp_profile.is_none()) && annotations.contains_key(&key) {
            out.push(format!("{}: {NO_SECCOMP}", top.key(&key)));
        }
        let key = format!("{}{}", validate_app_armor::ANNOTATION, container.name);
        if let Some(said) = annotations.get(&key).filter(|_| is_template)
            && security.is_none_or(|s| s.app_armor_profile.is_none())
            && (of_pod.is_none() || of_pod != validate_app_armor::said(said).as_ref())
        {
            out.push(format!("{}: deprecated since v1.30; use the \"appArmorProfile\" field instead", top.key(&key)));
        }
        amounts(container, path, &mut out);
        environment(container, path, &mut out);
    }
    ports(&containers, &mut out);
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        let path = path.child("terminationGracePeriodSeconds");
        out.push(format!("{path}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    affinity(spec, &path.child("affinity"), &mut out);
    let servers = spec.dns_config.iter().flat_map(|dns| dns.nameservers.iter().flatten()).enumerate();
    let at = path.child("dnsConfig").child("nameservers");
    out.extend(servers.filter_map(|(i, server)| addresses::address_warnings(server, &at.index(i))));
    let aliases = spec.host_aliases.iter().flatten().enumerate();
    let at = path.child("hostAliases");
    out.extend(aliases.filter_map(|(i, alias)| addresses::address_warnings(&alias.ip, &at.index(i).child("ip"))));
    out
}

/// Every container with its path, in the order in which they are told.
pub(super) fn containers(spec: &PodSpec, path: &Path) -> Vec<(Container, Path)> {
    let started = spec.init_containers.iter().flatten().cloned().enumerate();
    let started = started.map(|(i, container)| (container, path.child("initContainers").index(i)));
    let main = spec.containers.iter().cloned().enumerate();
    let main = main.map(|(i, container)| (container, path.child("containers").index(i)));
    started.chain(main).collect()
}

/// Old names of labels of nodes, and selectors of nothing.
fn nodes(spec: &PodSpec, path: &Path, out: &mut Vec<String>) {
    for key in spec.node_selector.iter().flatten().map(|(key, _)| key) {
        if let Some(advice) = old_labels::advice(key) {
            out.push(format!("{}: {advice}", path.child("nodeSelector").key(key)));
        }
    }
    if let Some(affinity) = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref()) {
        let path = path.child("affinity").child("nodeAffinity");
        let required = affinity.required_during_scheduling_ignored_during_execution.as_ref();
        let at = path.child("requiredDuringSchedulingIgnoredDuringExecution").child("nodeSelectorTerms");
        for (i, one) in required.iter().flat_map(|required| &required.node_selector_terms).enumerate() {
            term(one, false, &at.index(i), out);
        }
        let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        let at = path.child("preferredDuringSchedulingIgnoredDuringExecution");
        for (i, one) in preferred.enumerate() {
            term(&one.preference, true, &at.index(i).child("preference"), out);
        }
    }
    for (i, constraint) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        let path = path.child("topologySpreadConstraints").index(i);
        if let Some(advice) = old_labels::advice(&constraint.topology_key) {
            out.push(format!("{}: {} is {advice}", path.child("topologyKey"), constraint.topology_key));
        }
        if constraint.label_selector.is_none() {
            out.push(format!("{}: {NO_POD}", path.child("labelSelector")));
        }
    }
}

/// A term that is only preferred may hold values that no label can have.
pub(crate) fn term(term: &NodeSelectorTerm, values: bool, path: &Path, out: &mut Vec<String>) {
    for (i, expression) in term.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(i);
        if let Some(advice) = old_labels::advice(&expression.key) {
            out.push(format!("{}: {} is {advice}", path.child("key"), expression.key));
        }
        for (i, value) in expression.values.iter().flatten().enumerate().filter(|_| values) {
            for wrong in names::label_value(value) {
                out.push(format!("{}: {value} is invalid, {wrong}", path.child("values").index(i)));
            }
        }
    }
}

/// What is named twice where once is enough.
fn twice(spec: &PodSpec, path: &Path, out: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        if !seen.insert(alias.ip.as_str()) {
            out.push(format!("{}: duplicate ip {:?}", path.child("hostAliases").index(i).child("ip"), alias.ip));
        }
    }
    let secrets = || {
        let names = spec.image_pull_secrets.iter().flatten().map(|secret| secret.name.as_str());
        names.enumerate().map(|(i, name)| (path.child("imagePullSecrets").index(i).child("name"), name))
    };
    let mut seen = HashSet::new();
    for (path, name) in secrets() {
        if !seen.insert(name) {
            out.push(format!("{path}: duplicate name {name:?}"));
        }
    }
    out.extend(
        secrets()
            .filter(|(_, name)| name.is_empty())
            .map(|(path, name)| format!("{path}: invalid empty name {name:?}")),
    );
}

fn fraction(list: Option<&List>, name: &str, path: &Path, out: &mut Vec<String>) {
    let amount = list.and_then(|list| list.get(name)).and_then(resources::parse);
    if let Some(amount) = amount.filter(|amount| amount.milli() % 1000 != 0) {
        let amount = amount.to_string();
        out.push(format!("{}: fractional byte value {amount:?} is invalid, must be an integer", path.key(name)));
    }
}

fn amounts(container: &Container, path: &Path, out: &mut Vec<String>) {
    let Some(all) = &container.resources else { return };
    for name in ["memory", "ephemeral-storage"] {
        fraction(all.limits.as_ref(), name, &path.child("resources").child("limits"), out);
        fraction(all.requests.as_ref(), name, &path.child("resources").child("requests"), out);
    }
}

/// A variable that is set again hides the first, unless it goes on with it: `$(PATH):/more`.
fn environment(container: &Container, path: &Path, out: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for (i, variable) in container.env.iter().flatten().enumerate() {
        let name = &variable.name;
        if seen.insert(name.as_str()) {
            continue;
        }
        let (first, value) = (format!("$({name})"), variable.value.as_deref().unwrap_or_default());
        if variable.value_from.is_some() || value == first || !value.contains(&first) {
            let path = path.child("env").index(i);
            out.push(format!("{path}: hides previous definition of {name:?}, which may be dropped when using apply"));
        }
    }
}

/// Ports of all containers: those that are one, those that may be, and names that are two.
fn ports(containers: &[(Container, Path)], out: &mut Vec<String>) {
    let all = || {
        containers.iter().flat_map(|(container, path)| {
            let ports = container.ports.iter().flatten().enumerate();
            ports.map(move |(i, port)| (port, path.child("ports").index(i)))
        })
    };
    let ip = |port: &ContainerPort| port.host_ip.clone().unwrap_or_default();
    let host = |port: &ContainerPort| port.host_port.unwrap_or(0);
    let protocol = |port: &ContainerPort| port.protocol.clone().unwrap_or_default();
    let mut seen: HashMap<(i32, String), Vec<(&ContainerPort, Path)>> = HashMap::new();
    for (port, path) in all() {
        if !ip(port).is_empty() && host(port) == 0 {
            let name = port.name.as_deref().unwrap_or_default();
            out.push(format!(
                "{path}: hostIP set without hostPort: {{Name:{name} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{}}}",
                port.container_port,
                protocol(port),
                ip(port)
            ));
        }
        let others = seen.entry((port.container_port, protocol(port))).or_default();
        for (other, at) in others.iter() {
            let one_is_open = ip(port).is_empty() != ip(other).is_empty();
            if ip(port) == ip(other) && host(port) == host(other) {
                out.push(format!("{path}: duplicate port definition with {at}"));
            } else if host(port) == 0 || host(other) == 0 {
                out.push(format!("{path}: overlapping port definition with {at}"));
            } else if host(port) == host(other) && one_is_open {
                out.push(format!("{path}: dangerously ambiguous port definition with {at}"));
            }
        }
        others.push((port, path));
    }
    let mut named: HashMap<&str, Path> = HashMap::new();
    for (port, path) in all() {
        let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) else { continue };
        match named.get(name) {
            Some(first) => out.push(format!(
                "{path}: duplicate port name {name:?} with {first}, services and probes that select ports by name will \
                 use {first}"
            )),
            None => drop(named.insert(name, path)),
        }
    }
}

/// Terms that can match no pod.
fn affinity(spec: &PodSpec, path: &Path, out: &mut Vec<String>) {
    let Some(affinity) = &spec.affinity else { return };
    let near = affinity.pod_affinity.as_ref().map(|affinity| {
        let required = &affinity.required_during_scheduling_ignored_during_execution;
        ("podAffinity", required, &affinity.preferred_during_scheduling_ignored_during_execution)
    });
    let far = affinity.pod_anti_affinity.as_ref().map(|affinity| {
        let required = &affinity.required_during_scheduling_ignored_during_execution;
        ("podAntiAffinity", required, &affinity.preferred_during_scheduling_ignored_during_execution)
    });
    let is_open = |term: &PodAffinityTerm| term.label_selector.is_none();
    for (name, required, preferred) in near.into_iter().chain(far) {
        let path = path.child(name);
        let at = path.child("requiredDuringSchedulingIgnoredDuringExecution");
        for (i, _) in required.iter().flatten().enumerate().filter(|(_, term)| is_open(term)) {
            out.push(format!("{}: {NO_POD}", at.index(i).child("labelSelector")));
        }
        let at = path.child("preferredDuringSchedulingIgnoredDuringExecution");
        let open = preferred.iter().flatten().enumerate().filter(|(_, one)| is_open(&one.pod_affinity_term));
        out.extend(
            open.map(|(i, _)| format!("{}: {NO_POD}", at.index(i).child("podAffinityTerm").child("labelSelector"))),
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(annotations: Value, pod: Value, path: &Path) -> String {
        let annotations: Annotations = serde_json::from_value(annotations).expect("annotations");
        let mut pod = pod;
        if pod.get("containers").is_none() {
            pod["containers"] = json!([{"name": "c"}]);
        }
        let read: PodSpec = serde_json::from_value(pod).expect("a spec");
        spec(&read, Some(&annotations), path).join("\n")
    }

    #[test]
    fn what_is_likely_not_meant_is_told() {
        let term = json!({"topologyKey": "k"});
        for (pod, want) in [
            (json!({}), ""),
            (
                json!({"nodeSelector": {"node-role.kubernetes.io/master": "x"}, "topologySpreadConstraints": [{"maxSkew": 1,
                    "topologyKey": "beta.kubernetes.io/os", "whenUnsatisfiable": "DoNotSchedule"}]}),
                "spec.nodeSelector[node-role.kubernetes.io/master]: use \"node-role.kubernetes.io/control-plane\" instead\n\
                 spec.topologySpreadConstraints[0].topologyKey: beta.kubernetes.io/os is deprecated since v1.14; use \
                 \"kubernetes.io/os\" instead\n\
                 spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
            ),
            (
                json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1,
                    "preference": {"matchExpressions": [{"key": "beta.kubernetes.io/arch", "operator": "In", "values": ["-"]}]}}]}}}),
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0]\
                 .key: beta.kubernetes.io/arch is deprecated since v1.14; use \"kubernetes.io/arch\" instead\n\
                 spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0]\
                 .values[0]: - is invalid, a valid label must be an empty string or consist of alphanumeric characters, '-', '_' \
                 or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', \
                 regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            ),
            (
                json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
                    "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}}),
                "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: a null labelSelector \
                 results in matching no pod\n\
                 spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.labelSelector: a \
                 null labelSelector results in matching no pod",
            ),
            (
                json!({"hostAliases": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.1"}], "imagePullSecrets": [{"name": "a"},
                    {"name": "a"}, {}], "overhead": {"memory": "100m"}, "dnsConfig": {"nameservers": ["FE80::1"]}}),
                "spec.hostAliases[1].ip: duplicate ip \"10.0.0.1\"\n\
                 spec.imagePullSecrets[1].name: duplicate name \"a\"\n\
                 spec.imagePullSecrets[2].name: invalid empty name \"\"\n\
                 spec.overhead[memory]: fractional byte value \"100m\" is invalid, must be an integer\n\
                 spec.dnsConfig.nameservers[0]: IPv6 address \"FE80::1\" should be in RFC 5952 canonical format (\"fe80::1\")",
            ),
            (
                json!({"containers": [
                    {"name": "a", "env": [{"name": "P", "value": "1"}, {"name": "P", "value": "$(P):2"}, {"name": "P", "value": "3"}],
                        "ports": [{"name": "x", "containerPort": 80, "protocol": "TCP", "hostIP": "10.0.0.1"}]},
                    {"name": "b", "ports": [{"name": "x", "containerPort": 80, "protocol": "TCP"},
                        {"containerPort": 90, "protocol": "TCP", "hostPort": 9, "hostIP": "10.0.0.1"},
                        {"containerPort": 90, "protocol": "TCP", "hostPort": 9},
                        {"containerPort": 90, "protocol": "TCP", "hostPort": 9}]}]}),
                "spec.containers[0].env[2]: hides previous definition of \"P\", which may be dropped when using apply\n\
                 spec.containers[0].ports[0]: hostIP set without hostPort: {Name:x HostPort:0 ContainerPort:80 Protocol:TCP \
                 HostIP:10.0.0.1}\n\
                 spec.containers[1].ports[0]: overlapping port definition with spec.containers[0].ports[0]\n\
                 spec.containers[1].ports[2]: dangerously ambiguous port definition with spec.containers[1].ports[1]\n\
                 spec.containers[1].ports[3]: dangerously ambiguous port definition with spec.containers[1].ports[1]\n\
                 spec.containers[1].ports[3]: duplicate port definition with spec.containers[1].ports[2]\n\
                 spec.containers[1].ports[0]: duplicate port name \"x\" with spec.containers[0].ports[0], services and probes that \
                 select ports by name will use spec.containers[0].ports[0]",
            ),
            (
                json!({"volumes": [
                    {"name": "g", "glusterfs": {"endpoints": "e", "path": "p"}},
                    {"name": "m", "configMap": {"name": "cm", "items": [{"key": "a", "path": "x"}, {"key": "b", "path": "x/y"}]}},
                    {"name": "p", "projected": {"sources": [{}, {"serviceAccountToken": {"path": "t/token"}},
                        {"secret": {"name": "s", "items": [{"key": "a", "path": "t"}]}}]}}]}),
                "spec.volumes[0].glusterfs: deprecated in v1.25, non-functional in v1.26+\n\
                 volume \"m\" (ConfigMap \"cm\"): overlapping paths: \"x/y\" with \"x\"\n\
                 volume \"p\" (Projected) has no sources provided\n\
                 volume \"p\" (Projected): overlapping paths: \"t\" (Secret \"s\") with \"t/token\" (ServiceAccountToken)",
            ),
        ] {
            assert_eq!(told(json!({}), pod.clone(), &Path::root()), want, "{pod}");
        }
    }

    #[test]
    fn annotations_of_old_are_told() {
        let annotations = json!({
            "scheduler.alpha.kubernetes.io/critical-pod": "", "seccomp.security.alpha.kubernetes.io/pod": "x",
            "container.apparmor.security.beta.kubernetes.io/c": "runtime/default",
        });
        let path = Path::new("spec.template");
        let critical = "spec.template.metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; \
                        use the \"priorityClassName\" field instead";
        let seccomp = "spec.template.metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use \
                       the \"seccompProfile\" field instead";
        let app_armor = "spec.template.metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: deprecated since \
                         v1.30; use the \"appArmorProfile\" field instead";
        assert_eq!(told(annotations.clone(), json!({}), &path), format!("{critical}\n{seccomp}\n{app_armor}"));
        let profiles = json!({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"},
            "appArmorProfile": {"type": "RuntimeDefault"}}});
        assert_eq!(told(annotations, profiles, &path), critical);
    }
}
