//! The mistakes in a Service, and in its changes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::types::core::v1::{Service, ServicePort, ServiceSpec};
use machinery::field::{FieldErrors, Path};
use machinery::names;
use serde_json::json;

use super::claims::is_none;
use super::{is_external, is_headless, needs_health_check, type_of};
use crate::check;

const OLD_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const HINTS: &str = "service.kubernetes.io/topology-mode";

const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const POLICIES: &[&str] = &["Cluster", "Local"];
const FAMILIES: &[&str] = &["IPv4", "IPv6"];
const FAMILY_POLICIES: &[&str] = &["PreferDualStack", "RequireDualStack", "SingleStack"];
const DISTRIBUTIONS: &[&str] = &["PreferClose", "PreferSameNode", "PreferSameZone"];
const BALANCERS_ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
const SET_ONCE: &str = "may not change once set";
const AFFINITY_MAX: i32 = 86_400;

/// The mistakes in a Service, beyond metadata.
pub fn service(service: &Service, errors: &mut FieldErrors) {
    let none = ServiceSpec::default();
    let spec = service.spec.as_ref().unwrap_or(&none);
    let path = Path::new("spec");
    let kind = type_of(spec);
    let said = |key: &str| service.metadata.annotations.as_ref().and_then(|all| all.get(key));
    if let (Some(mode), Some(old)) = (said(HINTS), said(OLD_HINTS))
        && mode != old
    {
        let wrong = format!("must match annotations[{OLD_HINTS}] when both are specified");
        errors.invalid(&Path::new("metadata").child("annotations").key(HINTS), mode.as_str(), wrong);
    }
    if spec.ports.as_ref().is_none_or(Vec::is_empty) && !is_headless(spec) && kind != "ExternalName" {
        errors.required(&path.child("ports"), "");
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(spec) => {
            let wrong = format!("may not be set to 'None' for {kind} services");
            errors.invalid(&path.child("clusterIPs").index(0), "None", wrong);
        }
        "ExternalName" => external_name(spec, &path, errors),
        _ => {}
    }
    let requires_name = spec.ports.as_ref().is_some_and(|ports| ports.len() > 1);
    ports(spec, requires_name, &path.child("ports"), errors);
    let selector = spec.selector.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
    crate::metadata::validate_labels(selector, &path.child("selector"), errors);
    affinity(spec, &path, errors);
    addresses(spec, &path, errors);
    for (i, ip) in spec.external_ips.iter().flatten().enumerate() {
        let path = path.child("externalIPs").index(i);
        match ip.parse::<IpAddr>() {
            Err(_) => errors.invalid(&path, ip.as_str(), check::IP_ADDRESS),
            Ok(address) => check::routable(address, ip, &path, errors),
        }
    }
    check::one_of(spec.type_.as_deref(), TYPES, &path.child("type"), errors);
    node_ports(spec, &path.child("ports"), errors);
    balancer(spec, &path, errors);
    traffic(spec, &path, errors);
}

fn external_name(spec: &ServiceSpec, path: &Path, errors: &mut FieldErrors) {
    let not_here = "may not be set for ExternalName services";
    if spec.cluster_ips.as_ref().is_some_and(|ips| !ips.is_empty()) {
        errors.forbidden(&path.child("clusterIPs"), not_here);
    }
    if spec.ip_families.as_ref().is_some_and(|families| !families.is_empty()) {
        errors.forbidden(&path.child("ipFamilies"), not_here);
    }
    if spec.ip_family_policy.is_some() {
        errors.forbidden(&path.child("ipFamilyPolicy"), not_here);
    }
    let name = spec.external_name.as_deref().unwrap_or_default();
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        errors.required(&path.child("externalName"), "");
    } else {
        check::all(names::dns1123_subdomain(name), &path.child("externalName"), name, errors);
    }
}

fn ports(spec: &ServiceSpec, requires_name: bool, path: &Path, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, port) in spec.ports.iter().flatten().enumerate() {
        let path = path.index(i);
        let name = port.name.as_deref().unwrap_or_default();
        if name.is_empty() {
            if requires_name {
                errors.required(&path.child("name"), "");
            }
        } else {
            check::all(names::dns1123_label(name), &path.child("name"), name, errors);
            if !seen.insert(name) {
                errors.duplicate(&path.child("name"), name);
            }
        }
        check::port(port.port, &path.child("port"), errors);
        check::one_of(port.protocol.as_deref(), PROTOCOLS, &path.child("protocol"), errors);
        if let Some(target) = &port.target_port {
            check::port_or_name(target, &path.child("targetPort"), errors);
        }
        if let Some(protocol) = port.app_protocol.as_deref() {
            check::all(names::qualified_name(protocol), &path.child("appProtocol"), protocol, errors);
        }
    }
}

fn affinity(spec: &ServiceSpec, path: &Path, errors: &mut FieldErrors) {
    let affinity = spec.session_affinity.as_deref();
    check::one_of(affinity, &["ClientIP", "None"], &path.child("sessionAffinity"), errors);
    let path = path.child("sessionAffinityConfig");
    match affinity {
        Some("ClientIP") => {
            let client = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
            let Some(seconds) = client.and_then(|client| client.timeout_seconds) else {
                errors.required(&path, "when session affinity type is ClientIP");
                return;
            };
            if !(1..=AFFINITY_MAX).contains(&seconds) {
                let wrong = format!("must be greater than 0 and less than {AFFINITY_MAX}");
                errors.invalid(&path.child("clientIP").child("timeoutSeconds"), seconds, wrong);
            }
        }
        Some("None") if spec.session_affinity_config.is_some() => {
            errors.forbidden(&path, "must not be set when session affinity is None");
        }
        _ => {}
    }
}

fn addresses(spec: &ServiceSpec, path: &Path, errors: &mut FieldErrors) {
    if type_of(spec) != "ExternalName" {
        given_addresses(spec, path, errors);
    }
}

/// What must hold of addresses, families and policy, also before addresses are allocated.
pub fn given_addresses(spec: &ServiceSpec, path: &Path, errors: &mut FieldErrors) {
    let families = spec.ip_families.as_deref().unwrap_or_default();
    let ips = spec.cluster_ips.as_deref().unwrap_or_default();
    let list = path.child("clusterIPs");
    match (ips.first(), spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty())) {
        (None, Some(_)) => errors.required(&list, ""),
        (Some(_), None) => {
            errors.invalid(&list, check::value(&ips), "must be empty when `clusterIP` is not specified");
        }
        (Some(first), Some(ip)) if first != ip => {
            errors.invalid(&list, check::value(&ips), "first value must match `clusterIP`");
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for (i, family) in families.iter().enumerate() {
        let path = path.child("ipFamilies").index(i);
        if !FAMILIES.contains(&family.as_str()) {
            errors.not_supported(&path, family.as_str(), FAMILIES);
        }
        if !seen.insert(family) {
            errors.duplicate(&path, family.as_str());
        }
    }
    let policy = spec.ip_family_policy.as_deref();
    check::one_of_or_absent(policy, FAMILY_POLICIES, &path.child("ipFamilyPolicy"), errors);
    let mut parsed = Vec::new();
    for (i, ip) in ips.iter().enumerate() {
        if i == 0 && is_none(ip) {
            if ips.len() > 1 {
                errors.invalid(&list, check::value(&ips), "'None' must be the first and only value");
            }
            continue;
        }
        match ip.parse::<IpAddr>() {
            Err(_) => errors.invalid(&list.index(i), ip.as_str(), check::IP_ADDRESS),
            Ok(address) => parsed.push(address),
        }
    }
    if ips.len() > 2 {
        errors.invalid(&list, check::value(&ips), "may only hold up to 2 values");
    }
    // With one that is none, the places of the others say nothing.
    if parsed.len() != ips.len() {
        return;
    }
    let both = parsed.iter().any(IpAddr::is_ipv4) && parsed.iter().any(IpAddr::is_ipv6);
    if parsed.len() > 1 && !both {
        errors.invalid(&list, check::value(&ips), "may specify no more than one IP for each IP family");
    }
    for (i, (address, family)) in parsed.iter().zip(families).enumerate() {
        let expected = match family.as_str() {
            "IPv4" => address.is_ipv4(),
            "IPv6" => address.is_ipv6(),
            _ => true,
        };
        if !expected {
            let wrong = format!("expected an {family} value as indicated by `ipFamilies[{i}]`");
            errors.invalid(&list.index(i), ips[i].as_str(), wrong);
        }
    }
}

fn node_ports(spec: &ServiceSpec, path: &Path, errors: &mut FieldErrors) {
    let given = |port: &ServicePort| port.node_port.filter(|number| *number != 0);
    let (mut numbers, mut pairs) = (BTreeSet::new(), BTreeSet::new());
    for (i, port) in spec.ports.iter().flatten().enumerate() {
        let path = path.index(i);
        let protocol = port.protocol.as_deref().unwrap_or_default();
        if let Some(number) = given(port) {
            if type_of(spec) == "ClusterIP" {
                errors.forbidden(&path.child("nodePort"), "may not be used when `type` is 'ClusterIP'");
            } else if !numbers.insert((protocol, number)) {
                errors.duplicate(&path.child("nodePort"), number);
            }
        }
        if !pairs.insert((protocol, port.port)) {
            errors.duplicate(&path, json!({"port": port.port, "protocol": protocol}));
        }
    }
}

fn balancer(spec: &ServiceSpec, path: &Path, errors: &mut FieldErrors) {
    let balanced = type_of(spec) == "LoadBalancer";
    if let Some(ranges) = spec.load_balancer_source_ranges.as_ref().filter(|ranges| !ranges.is_empty()) {
        let path = path.child("LoadBalancerSourceRanges");
        if !balanced {
            errors.forbidden(&path, BALANCERS_ONLY);
        }
        for (i, range) in ranges.iter().enumerate() {
            if range.trim().parse::<ipnet::IpNet>().is_err() {
                let wrong = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
                errors.invalid(&path.index(i), range.as_str(), wrong);
            }
        }
    }
    let ports = path.child("allocateLoadBalancerNodePorts");
    match (balanced, spec.allocate_load_balancer_node_ports) {
        (true, None) => errors.required(&ports, ""),
        (false, Some(_)) => errors.forbidden(&ports, BALANCERS_ONLY),
        _ => {}
    }
    if let Some(class) = spec.load_balancer_class.as_deref() {
        let path = path.child("loadBalancerClass");
        if balanced {
            check::all(names::qualified_name(class), &path, class, errors);
        } else {
            errors.forbidden(&path, BALANCERS_ONLY);
        }
    }
}

fn traffic(spec: &ServiceSpec, path: &Path, errors: &mut FieldErrors) {
    let external = path.child("externalTrafficPolicy");
    let policy = spec.external_traffic_policy.as_deref().filter(|policy| !policy.is_empty());
    match (is_external(spec), policy) {
        (true, policy) => check::one_of(policy, POLICIES, &external, errors),
        (false, Some(policy)) => {
            errors.invalid(&external, policy, "may only be set for externally-accessible services");
        }
        (false, None) => {}
    }
    let health = path.child("healthCheckNodePort");
    let number = spec.health_check_node_port.unwrap_or(0);
    if needs_health_check(spec) {
        if number < 0 {
            errors.invalid(&health, number, check::PORT_RANGE);
        }
    } else if number != 0 {
        let wrong = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.invalid(&health, number, wrong);
    }
    if type_of(spec) != "ExternalName" {
        check::one_of(spec.internal_traffic_policy.as_deref(), POLICIES, &path.child("internalTrafficPolicy"), errors);
    }
    if spec.traffic_distribution.is_some() {
        let distribution = spec.traffic_distribution.as_deref();
        check::one_of(distribution, DISTRIBUTIONS, &path.child("trafficDistribution"), errors);
    }
}

/// The mistakes in a change.
pub fn change(new: &Service, old: &Service, errors: &mut FieldErrors) {
    let none = ServiceSpec::default();
    let (new, old) = (new.spec.as_ref().unwrap_or(&none), old.spec.as_ref().unwrap_or(&none));
    let path = Path::new("spec");
    let named = type_of(new) == "ExternalName" || type_of(old) == "ExternalName";
    let headless = is_headless(new) && is_headless(old);
    if !named && !headless {
        let policy = new.ip_family_policy.as_deref() == Some("SingleStack");
        kept(&new.cluster_ips, &old.cluster_ips, ["clusterIPs", "clusterIP"], policy, &path, errors);
        kept(&new.ip_families, &old.ip_families, ["ipFamilies", "ipFamily"], policy, &path, errors);
    }
    let balanced = |spec: &ServiceSpec| type_of(spec) == "LoadBalancer";
    if balanced(new) && balanced(old) && new.load_balancer_class != old.load_balancer_class {
        errors.invalid(&path.child("loadBalancerClass"), check::value(&new.load_balancer_class), SET_ONCE);
    }
    let number = |spec: &ServiceSpec| spec.health_check_node_port.unwrap_or(0);
    if needs_health_check(new) && needs_health_check(old) && number(old) != 0 && number(new) != number(old) {
        errors.forbidden(&path.child("healthCheckNodePort"), check::IMMUTABLE);
    }
}

/// The first of a list stays; the second may only be given up together with the policy.
fn kept(
    new: &Option<Vec<String>>,
    old: &Option<Vec<String>>,
    [list, one]: [&str; 2],
    single: bool,
    path: &Path,
    errors: &mut FieldErrors,
) {
    let (new, old) = (new.as_deref().unwrap_or_default(), old.as_deref().unwrap_or_default());
    let list = path.child(list);
    match (old.first().filter(|value| !value.is_empty()), new.first()) {
        (Some(_), None) => {
            errors.invalid(&list.index(0), check::value(&new), format!("primary {one} can not be unset"));
        }
        (Some(old), Some(new)) if old != new => errors.invalid(&list.index(0), check::value(&[new]), SET_ONCE),
        _ => {}
    }
    match (old.get(1), new.get(1)) {
        (Some(_), None) if !single => {
            let wrong = format!("must be set to 'SingleStack' when releasing the secondary {one}");
            errors.invalid(&path.child("ipFamilyPolicy"), "", wrong);
        }
        (Some(old), Some(new)) if old != new => errors.invalid(&list.index(1), check::value(&[new]), SET_ONCE),
        _ => {}
    }
}

/// The mistakes in what the load balancer reports.
pub fn status(new: &Service, errors: &mut FieldErrors) {
    let balancer = new.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default();
    let path = Path::new("status").child("loadBalancer").child("ingress");
    let balanced = new.spec.as_ref().is_some_and(|spec| type_of(spec) == "LoadBalancer");
    if !balanced && !ingress.is_empty() {
        errors.forbidden(&path, "may only be used when `spec.type` is 'LoadBalancer'");
    }
    for (i, entry) in ingress.iter().enumerate() {
        let path = path.index(i);
        if let Some(ip) = entry.ip.as_deref().filter(|ip| !ip.is_empty()) {
            if ip.parse::<IpAddr>().is_err() {
                errors.invalid(&path.child("ip"), ip, check::IP_ADDRESS);
            }
        }
        let has_ip = entry.ip.as_deref().is_some_and(|ip| !ip.is_empty());
        match entry.ip_mode.as_deref() {
            None if has_ip => errors.required(&path.child("ipMode"), "must be specified when `ip` is set"),
            None => {}
            Some(_) if !has_ip => errors.forbidden(&path.child("ipMode"), "may not be specified when `ip` is not set"),
            mode => check::one_of_or_absent(mode, &["Proxy", "VIP"], &path.child("ipMode"), errors),
        }
        if let Some(name) = entry.hostname.as_deref().filter(|name| !name.is_empty()) {
            check::all(names::dns1123_subdomain(name), &path.child("hostname"), name, errors);
            if name.parse::<IpAddr>().is_ok() {
                errors.invalid(&path.child("hostname"), name, "must be a DNS name, not an IP address");
            }
        }
    }
}

/// What is allowed in a Service, and yet likely not meant.
pub fn warnings(service: &Service) -> Vec<String> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let mut out = Vec::new();
    if service.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(OLD_HINTS)) {
        out.push(format!("annotation {OLD_HINTS} is deprecated, please use {HINTS} instead"));
    }
    let (path, kind) = (Path::new("spec"), type_of(spec));
    let headless = is_headless(spec) && kind == "ClusterIP";
    let externals = spec.external_ips.as_deref().unwrap_or_default();
    let balancer = spec.load_balancer_ip.as_deref().unwrap_or_default();
    if !is_headless(spec) {
        for (i, address) in spec.cluster_ips.iter().flatten().enumerate() {
            out.extend(crate::addresses::address_warnings(address, &path.child("clusterIPs").index(i)));
        }
    }
    if headless {
        let affinity = spec.session_affinity.as_deref().is_some_and(|affinity| affinity != "None");
        let ignored = [
            (!balancer.is_empty(), "loadBalancerIP"),
            (!externals.is_empty(), "externalIPs"),
            (affinity, "SessionAffinity"),
        ];
        let ignored = ignored.iter().filter(|(is_set, _)| *is_set);
        out.extend(ignored.map(|(_, field)| format!("spec.{field} is ignored for headless services")));
    }
    for (i, address) in externals.iter().enumerate() {
        out.extend(crate::addresses::address_warnings(address, &path.child("externalIPs").index(i)));
    }
    if !externals.is_empty() && !headless && kind != "ExternalName" {
        out.push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".to_owned());
    }
    if !balancer.is_empty() {
        out.extend(crate::addresses::address_warnings(balancer, &path.child("loadBalancerIP")));
    }
    for (i, range) in spec.load_balancer_source_ranges.iter().flatten().enumerate() {
        out.extend(crate::addresses::network_warnings(range, &path.child("loadBalancerSourceRanges").index(i)));
    }
    if kind == "ExternalName" && !externals.is_empty() {
        out.push(r#"spec.externalIPs is ignored when spec.type is "ExternalName""#.to_owned());
    }
    if kind != "ExternalName" && spec.external_name.as_ref().is_some_and(|name| !name.is_empty()) {
        out.push(r#"spec.externalName is ignored when spec.type is not "ExternalName""#.to_owned());
    }
    if spec.traffic_distribution.as_deref() == Some("PreferClose") {
        out.push(r#"spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone""#.to_owned());
    }
    out
}
