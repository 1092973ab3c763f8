//! Node: a machine that runs pods.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use api::types::core::v1 as core;
use machinery::field::{ErrorType, FieldError, FieldErrors, Path};
use machinery::names;
use serde_json::Value;

use crate::addresses;
use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind, Selectable};
use crate::only::Part;
use crate::resources;
use crate::shape::{PROXIED, Shape, Subresource};

const ROLE: &str = "node-role.kubernetes.io/";
const OLD_ROLE: &str = "kubernetes.io/role";
const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
/// The longest name of a feature.
const FEATURE: usize = 253;

pub struct Node;

impl Kind for Node {
    type Object = core::Node;
    const SHAPE: Shape = Shape::cluster("", "v1", "Node", "nodes")
        .singular("node")
        .short(&["no"])
        .prefix("minions")
        .status_without_generation()
        .status_on_create()
        .subresources(&[Subresource {
            name: "proxy",
            group: "",
            version: "",
            kind: "NodeProxyOptions",
            verbs: PROXIED,
        }]);
    const SELECTABLE: &'static [Selectable] =
        &[Selectable::at("spec.unschedulable", &["/spec/unschedulable"]).or("false")];

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, node: &mut Self::Object) {
        if let Some(spec) = &mut node.spec {
            let first = spec.pod_cidrs.as_ref().and_then(|cidrs| cidrs.first().cloned());
            match (&spec.pod_cidr, first) {
                (Some(cidr), first) if !cidr.is_empty() && first.as_deref() != Some(cidr) => {
                    spec.pod_cidrs = Some(vec![cidr.clone()]);
                }
                (_, first) => spec.pod_cidr = first,
            }
        }
        if let Some(status) = &mut node.status {
            resources::round(&mut status.capacity);
            resources::round(&mut status.allocatable);
            if status.allocatable.is_none() && status.capacity.is_some() {
                status.allocatable.clone_from(&status.capacity);
            }
        }
    }

    fn prepare_create(_ctx: &Ctx, node: &mut Self::Object) {
        if let Some(spec) = &mut node.spec {
            spec.config_source = None;
        }
        if let Some(status) = &mut node.status {
            status.config = None;
        }
    }

    fn validate(_ctx: &Ctx, node: &Self::Object, errors: &mut FieldErrors) {
        let none = core::NodeSpec::default();
        let spec = node.spec.as_ref().unwrap_or(&none);
        taints(spec.taints.as_deref().unwrap_or_default(), &Path::new("metadata").child("taints"), errors);
        let cidrs = spec.pod_cidrs.as_deref().unwrap_or_default();
        let path = Path::new("spec").child("podCIDRs");
        for (i, cidr) in cidrs.iter().enumerate() {
            addresses::network(cidr, &[], &path.index(i), errors);
        }
        let odd = cidrs.iter().enumerate().find(|(_, cidr)| addresses::read_network(cidr).is_none());
        if let Some((i, cidr)) = odd.filter(|_| cidrs.len() > 1) {
            let wrong = format!(
                "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{i}]: {cidr} (invalid CIDR \
                 address: {cidr})"
            );
            errors.internal(&path, wrong);
        }
        let v6 = |cidr: &String| addresses::read_network(cidr).is_some_and(|net| net.addr().is_ipv6());
        let is_dual = odd.is_none() && cidrs.iter().any(v6) && !cidrs.iter().all(v6);
        if cidrs.len() > 2 || (cidrs.len() == 2 && !is_dual) {
            let wrong = "may specify no more than one CIDR for each IP family";
            errors.invalid(&path, check::value(&cidrs), wrong);
        }
        amounts(node, errors);
        swap(node, errors);
        features(node, errors);
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        let none = core::NodeSpec::default();
        let (new, old) = (new.spec.as_ref().unwrap_or(&none), old.spec.as_ref().unwrap_or(&none));
        let path = Path::new("spec");
        let before = old.pod_cidrs.as_deref().unwrap_or_default();
        if !before.is_empty() && new.pod_cidrs.as_deref().unwrap_or_default() != before {
            let wrong = "node updates may not change podCIDR except from \"\" to valid";
            errors.forbidden(&path.child("podCIDRs"), wrong);
        }
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (before, after) = (text(&old.provider_id), text(&new.provider_id));
        if !before.is_empty() && before != after {
            let wrong = if after.is_empty() { "cleared" } else { "modified" };
            let wrong = format!("field cannot be {wrong} once set");
            errors.invalid(&path.child("providerID"), Value::Null, wrong);
        }
        if text(&new.external_id) != text(&old.external_id) {
            errors.forbidden(&path.child("externalID"), "may not be updated");
        }
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        amounts(new, errors);
        features(new, errors);
        let addresses = new.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default();
        let mut seen = BTreeSet::new();
        for (i, address) in addresses.iter().enumerate() {
            if !seen.insert((&address.type_, &address.address)) {
                errors.duplicate(&Path::new("status").child("addresses").index(i), check::value(address));
            }
        }
    }

    const SHOWN: &'static [Part] = &[
        Part("metadata", &[Part::whole("name"), Part::whole("creationTimestamp"), Part::whole("labels")]),
        Part("spec", &[Part::whole("unschedulable")]),
        Part(
            "status",
            &[
                Part("conditions", &[Part::whole("type"), Part::whole("status")]),
                Part::whole("addresses"),
                Part::whole("nodeInfo"),
            ],
        ),
    ];

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let Some(spec) = &new.spec else { return Vec::new() };
        let mut out = Vec::new();
        if spec.config_source.is_some() {
            out.push("spec.configSource: the feature is removed".to_owned());
        }
        if spec.external_id.as_ref().is_some_and(|id| !id.is_empty()) {
            out.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".to_owned());
        }
        for (i, range) in spec.pod_cidrs.iter().flatten().enumerate() {
            out.extend(addresses::network_warnings(range, &Path::new("spec").child("podCIDRs").index(i)));
        }
        out
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("Status", "Whether it can run pods, and takes new ones."),
                    Column::text("Roles", "What it is for, by its labels."),
                    Column::AGE,
                    Column::text("Version", "The version its kubelet reports."),
                    Column::text("Internal-IP", "Its address inside the cluster.").wide(),
                    Column::text("External-IP", "Its address outside the cluster.").wide(),
                    Column::text("OS-Image", "Its operating system.").wide(),
                    Column::text("Kernel-Version", "Its kernel.").wide(),
                    Column::text("Container-Runtime", "What runs its containers.").wide(),
                ]
            },
            row: |node, now| {
                let status = node.status.clone().unwrap_or_default();
                let info = status.node_info.clone().unwrap_or_default();
                let address = |kind: &str| {
                    let found = status.addresses.iter().flatten().find(|address| address.type_ == kind);
                    cells::or_none(found.map(|address| address.address.clone()).unwrap_or_default())
                };
                let known = |text: &str| if text.is_empty() { "<unknown>".into() } else { text.into() };
                let row = vec![
                    cells::name(&node.metadata),
                    state(node).into(),
                    roles(node),
                    cells::of(&node.metadata, now),
                    info.kubelet_version.clone().into(),
                    address("InternalIP"),
                    address("ExternalIP"),
                    known(&info.os_image),
                    known(&info.kernel_version),
                    known(&info.container_runtime_version),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn taints(taints: &[core::Taint], path: &Path, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, taint) in taints.iter().enumerate() {
        let path = path.index(i);
        check::all(names::qualified_name(&taint.key), &path.child("key"), &taint.key, errors);
        let value = taint.value.as_deref().unwrap_or_default();
        check::all(names::label_value(value), &path.child("value"), value, errors);
        check::one_of(Some(&taint.effect), EFFECTS, &path.child("effect"), errors);
        if !seen.insert((&taint.effect, &taint.key)) {
            errors.0.push(FieldError {
                kind: ErrorType::Duplicate,
                path,
                value: Some(check::value(taint)),
                detail: "taints must be unique by key and effect pair".into(),
            });
        }
    }
}

fn amounts(node: &core::Node, errors: &mut FieldErrors) {
    let Some(status) = &node.status else { return };
    for (list, field) in [(&status.capacity, "capacity"), (&status.allocatable, "allocatable")] {
        for (name, amount) in list.iter().flatten() {
            if resources::parse(amount).is_some_and(|quantity| quantity.is_negative()) {
                let path = Path::new("status").child(field).key(name);
                errors.invalid(&path, amount.0.as_str(), check::NOT_NEGATIVE);
            }
        }
    }
}

fn swap(node: &core::Node, errors: &mut FieldErrors) {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    if let Some(capacity) = info.and_then(|info| info.swap.as_ref()?.capacity).filter(|capacity| *capacity <= 0) {
        // Told as a part of the metadata, where it is not.
        let path = Path::new("metadata").child("nodeSwapStatus").child("capacity");
        errors.invalid(&path, capacity, "must be greater than zero");
    }
}

/// What the kubelet says it can do, in the order of the alphabet.
fn features(node: &core::Node, errors: &mut FieldErrors) {
    let path = Path::new("status").child("declaredFeatures");
    let features = node.status.as_ref().and_then(|status| status.declared_features.as_deref()).unwrap_or_default();
    for (i, feature) in features.iter().enumerate() {
        if feature.len() > FEATURE {
            let wrong = format!("invalid feature name {feature:?}: must be no more than {FEATURE} characters");
            errors.invalid(&path.index(i), feature.as_str(), wrong);
        } else if !is_feature(feature) {
            let wrong = format!(
                "invalid feature name {feature:?}: must start with an UpperCamelCase segment, with subsequent segments \
                 separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric \
                 characters and slashes"
            );
            errors.invalid(&path.index(i), feature.as_str(), wrong);
        }
        let Some(next) = features.get(i + 1) else { continue };
        match feature.cmp(next) {
            Ordering::Less => {}
            Ordering::Equal => errors.duplicate(&path.index(i + 1), next.as_str()),
            Ordering::Greater => {
                errors.invalid(&path.index(i + 1), next.as_str(), "list must be sorted alphabetically");
            }
        }
    }
}

fn is_feature(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.split('/').all(|part| {
            part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.bytes().all(|c| c.is_ascii_alphanumeric())
        })
}

fn state(node: &core::Node) -> String {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    let mut out = match ready.map(|condition| condition.status.as_str()) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true)) {
        out.push_str(",SchedulingDisabled");
    }
    out
}

fn roles(node: &core::Node) -> serde_json::Value {
    let mut roles = BTreeSet::new();
    for (key, value) in node.metadata.labels.iter().flatten() {
        if let Some(role) = key.strip_prefix(ROLE).filter(|role| !role.is_empty()) {
            roles.insert(role.to_owned());
        } else if key == OLD_ROLE && !value.is_empty() {
            roles.insert(value.clone());
        }
    }
    cells::or_none(roles.into_iter().collect::<Vec<_>>().join(","))
}
