//! The addresses and ports a Service needs, and what becomes of them when it changes.
//!
//! ```text
//!  type ClusterIP, clusterIP unset        take    /spec/clusterIPs/0 (any)
//!  the same, now type NodePort            take    /spec/ports/0/nodePort (any)
//!  the same, now clusterIP: 10.96.0.7     refused by validation: may not change once set
//!  the same, now type ExternalName        release the address and the port, drop the fields
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::types::core::v1::{Service, ServicePort, ServiceSpec};
use machinery::field::{FieldErrors, Path};

use super::validate::given_addresses;
use super::{HEADLESS, is_external, is_headless, needs_health_check, type_of};
use crate::check;
use crate::kind::{Claim, ClaimKind, Claims, Ctx};

const V4: &str = "IPv4";
const V6: &str = "IPv6";
const SINGLE: &str = "SingleStack";
const PREFER_DUAL: &str = "PreferDualStack";
const REQUIRE_DUAL: &str = "RequireDualStack";

/// Fills families, carries over what the client left out, and says what to take and to release.
pub fn of(ctx: &Ctx, new: &mut Service, old: Option<&Service>, errors: &mut FieldErrors) -> Claims {
    let none = ServiceSpec::default();
    let old = old.map(|old| old.spec.as_ref().unwrap_or(&none));
    let spec = new.spec.get_or_insert_default();
    match old {
        Some(old) => {
            carry_over(spec, old);
            sync_addresses(spec, old);
        }
        None => first_address(spec),
    }
    if type_of(spec) != "ExternalName" {
        families(ctx, spec, old, errors);
    }
    if !errors.is_empty() {
        return Claims::default();
    }
    share_node_ports(spec);
    Claims { take: taken(spec, old), release: old.map(|old| released(spec, old)).unwrap_or_default() }
}

/// What a stored Service holds.
pub fn held(service: &Service) -> Vec<Claim> {
    service.spec.as_ref().map(holds).unwrap_or_default()
}

/// A single address given the old way is the first of the list.
fn first_address(spec: &mut ServiceSpec) {
    let Some(ip) = spec.cluster_ip.clone().filter(|ip| !ip.is_empty()) else { return };
    if spec.cluster_ips.as_ref().is_none_or(Vec::is_empty) {
        spec.cluster_ips = Some(vec![ip]);
    }
}

/// A client that sends an older form of the object does not mean to give up what was allocated.
fn carry_over(new: &mut ServiceSpec, old: &ServiceSpec) {
    if type_of(new) != "ExternalName" && type_of(old) != "ExternalName" {
        if new.cluster_ip.as_deref().unwrap_or_default().is_empty() {
            if new.cluster_ips.as_ref().is_none_or(Vec::is_empty) {
                new.cluster_ips.clone_from(&old.cluster_ips);
            }
            new.cluster_ip.clone_from(&old.cluster_ip);
        } else if new.cluster_ips.as_ref().is_none_or(Vec::is_empty) && new.cluster_ip == old.cluster_ip {
            new.cluster_ips.clone_from(&old.cluster_ips);
        }
    }
    if needs_node_ports(new) && needs_node_ports(old) {
        let mut used: BTreeSet<(String, i32)> =
            ports(new).filter_map(|port| Some((protocol(port).to_owned(), node_port(port)?))).collect();
        for port in new.ports.iter_mut().flatten() {
            if node_port(port).is_some() {
                continue;
            }
            let before = ports(old).find(|before| before.name == port.name && before.port == port.port);
            let before = before.or_else(|| ports(old).find(|before| before.name == port.name));
            if let Some(number) = before.and_then(node_port) {
                if used.insert((protocol(port).to_owned(), number)) {
                    port.node_port = Some(number);
                }
            }
        }
    }
    if needs_health_check(new) && needs_health_check(old) && new.health_check_node_port.unwrap_or(0) == 0 {
        new.health_check_node_port = old.health_check_node_port;
    }
}

/// The single address and the list say the same; what the client changed decides.
fn sync_addresses(new: &mut ServiceSpec, old: &ServiceSpec) {
    let ip = |spec: &ServiceSpec| spec.cluster_ip.clone().unwrap_or_default();
    let ips = |spec: &ServiceSpec| spec.cluster_ips.clone().unwrap_or_default();
    let (new_ip, old_ip) = (ip(new), ip(old));
    if ips(new).is_empty() && !new_ip.is_empty() {
        new.cluster_ips = Some(vec![new_ip]);
    } else if ips(new) == ips(old) && new_ip != old_ip {
        new.cluster_ips = (!new_ip.is_empty()).then(|| vec![new_ip]);
    }
}

fn family(ip: &str) -> Option<&'static str> {
    match ip.parse().ok()? {
        IpAddr::V4(_) => Some(V4),
        IpAddr::V6(_) => Some(V6),
    }
}

/// Decides policy and families as far as the client left them open, and refuses wishes that the
/// cluster cannot meet.
fn families(ctx: &Ctx, spec: &mut ServiceSpec, old: Option<&ServiceSpec>, errors: &mut FieldErrors) {
    if old.is_some_and(|old| keeps_what_it_prefers(spec, old)) {
        return;
    }
    let path = Path::new("spec");
    let mut configured: Vec<&str> = Vec::new();
    for cidr in &ctx.options.service_cidrs {
        let family = if cidr.addr().is_ipv4() { V4 } else { V6 };
        if !configured.contains(&family) {
            configured.push(family);
        }
    }
    let default = configured.first().copied().unwrap_or(V4);
    let unselected_headless = is_headless(spec) && spec.selector.as_ref().is_none_or(BTreeMap::is_empty);

    // A default that nobody asked for must never change between one and two families.
    let before = old.and_then(|old| old.ip_family_policy.clone());
    let fresh = if unselected_headless { REQUIRE_DUAL } else { SINGLE };
    let policy = spec.ip_family_policy.get_or_insert_with(|| before.unwrap_or_else(|| fresh.to_owned())).clone();
    given_addresses(spec, &path, errors);
    if !errors.is_empty() {
        return;
    }
    if let Some(old) = old {
        release_the_second(spec, old, policy == SINGLE, errors);
    }
    let policy_path = path.child("ipFamilyPolicy");
    if policy == SINGLE {
        for (list, what) in [(&spec.cluster_ips, "cluster IPs"), (&spec.ip_families, "IP families")] {
            if count(list) == 2 {
                let wrong =
                    format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
                errors.invalid(&policy_path, SINGLE, wrong);
            }
        }
    }
    let ips = spec.cluster_ips.clone().unwrap_or_default();
    let families = spec.ip_families.get_or_insert_default();
    for (i, family) in ips.iter().enumerate().map_while(|(i, ip)| Some((i, family(ip)?))) {
        if i < families.len() {
            continue;
        }
        if configured.contains(&family) {
            families.push(family.to_owned());
        } else {
            let wrong = format!("{family} is not configured on this cluster");
            errors.invalid(&path.child("clusterIPs").index(i), check::value(&ips), wrong);
        }
    }
    if !errors.is_empty() {
        return;
    }
    if !unselected_headless {
        if policy == REQUIRE_DUAL && configured.len() < 2 {
            errors.invalid(&policy_path, policy.as_str(), "this cluster is not configured for dual-stack services");
        }
        for (i, family) in families.iter().enumerate().filter(|(_, family)| !configured.contains(&family.as_str())) {
            errors.invalid(&path.child("ipFamilies").index(i), family.as_str(), "not configured on this cluster");
        }
        if !errors.is_empty() {
            return;
        }
    }
    if families.is_empty() {
        families.push(default.to_owned());
    }
    // Whoever brings endpoints of their own may have both families on any cluster.
    if families.len() == 1 && policy != SINGLE && (configured.len() == 2 || unselected_headless) {
        families.push(if families[0] == V4 { V6 } else { V4 }.to_owned());
    }
}

fn count(list: &Option<Vec<String>>) -> usize {
    list.as_ref().map_or(0, Vec::len)
}

/// Lists that are unset or empty are the same.
fn same(a: &Option<Vec<String>>, b: &Option<Vec<String>>) -> bool {
    a.as_deref().unwrap_or_default() == b.as_deref().unwrap_or_default()
}

/// A Service that prefers two families keeps what it has when the cluster gains or loses one: it
/// changes only when somebody changes its policy or its lists.
fn keeps_what_it_prefers(new: &ServiceSpec, old: &ServiceSpec) -> bool {
    let prefers = |spec: &ServiceSpec| spec.ip_family_policy.as_deref() == Some(PREFER_DUAL);
    type_of(new) == type_of(old)
        && prefers(new)
        && (prefers(old) || old.ip_family_policy.is_none())
        && same(&new.cluster_ips, &old.cluster_ips)
        && same(&new.ip_families, &old.ip_families)
}

/// Going back to one family keeps the first of each list that the client left as it was; a list that
/// lost its second entry needs the policy that says so.
fn release_the_second(spec: &mut ServiceSpec, old: &ServiceSpec, single: bool, errors: &mut FieldErrors) {
    for (new, old, what) in [
        (&mut spec.cluster_ips, &old.cluster_ips, "cluster IP"),
        (&mut spec.ip_families, &old.ip_families, "IP family"),
    ] {
        let (had, has) = (count(old), count(new));
        if single && same(new, old) {
            new.iter_mut().for_each(|list| list.truncate(1));
        } else if !single && has > 0 && has < had {
            let wrong = format!("must be 'SingleStack' to release the secondary {what}");
            let policy = spec.ip_family_policy.as_deref();
            errors.invalid(&Path::new("spec").child("ipFamilyPolicy"), policy.unwrap_or_default(), wrong);
        }
    }
}

fn ports(spec: &ServiceSpec) -> impl Iterator<Item = &ServicePort> {
    spec.ports.iter().flatten()
}

fn node_port(port: &ServicePort) -> Option<i32> {
    port.node_port.filter(|number| *number != 0)
}

fn protocol(port: &ServicePort) -> &'static str {
    match port.protocol.as_deref() {
        Some("UDP") => "UDP",
        Some("SCTP") => "SCTP",
        _ => "TCP",
    }
}

fn needs_node_ports(spec: &ServiceSpec) -> bool {
    matches!(type_of(spec), "NodePort" | "LoadBalancer")
}

/// True when a port without a node port gets one.
fn allocates_node_ports(spec: &ServiceSpec) -> bool {
    match type_of(spec) {
        "NodePort" => true,
        "LoadBalancer" => spec.allocate_load_balancer_node_ports != Some(false),
        _ => false,
    }
}

/// One port number under two protocols has one node port.
fn share_node_ports(spec: &mut ServiceSpec) {
    if !allocates_node_ports(spec) {
        return;
    }
    let asked: BTreeMap<i32, i32> = ports(spec).filter_map(|port| Some((port.port, node_port(port)?))).collect();
    for port in spec.ports.iter_mut().flatten() {
        if node_port(port).is_none() {
            port.node_port = asked.get(&port.port).copied();
        }
    }
}

fn address_claim(index: usize, ip: Option<&str>, family: &str) -> Claim {
    Claim {
        kind: ClaimKind::ClusterIp { v6: family == V6 },
        pointer: format!("/spec/clusterIPs/{index}"),
        also: Vec::new(),
        field: "spec.clusterIPs".into(),
        wanted: ip.map(str::to_owned),
    }
}

fn port_claim(index: usize, port: &ServicePort) -> Claim {
    Claim {
        kind: ClaimKind::NodePort { protocol: protocol(port) },
        pointer: format!("/spec/ports/{index}/nodePort"),
        also: Vec::new(),
        field: format!("spec.ports[{index}].nodePort"),
        wanted: node_port(port).map(|number| number.to_string()),
    }
}

fn health_claim(number: Option<i32>) -> Claim {
    Claim {
        kind: ClaimKind::NodePort { protocol: "TCP" },
        pointer: "/spec/healthCheckNodePort".into(),
        also: Vec::new(),
        field: "spec.healthCheckNodePort".into(),
        wanted: number.filter(|number| *number != 0).map(|number| number.to_string()),
    }
}

/// Claims for all that the Service names.
fn holds(spec: &ServiceSpec) -> Vec<Claim> {
    let mut out = Vec::new();
    if type_of(spec) != "ExternalName" && !is_headless(spec) {
        let ips = spec.cluster_ips.clone().filter(|ips| !ips.is_empty());
        let ips = ips.unwrap_or_else(|| spec.cluster_ip.clone().into_iter().collect());
        for (i, ip) in ips.iter().enumerate() {
            // What is no address is held as such: somebody has to be told.
            out.push(address_claim(i, Some(ip), family(ip).unwrap_or(V4)));
        }
    }
    if needs_node_ports(spec) {
        let mut seen = BTreeSet::new();
        for (i, port) in ports(spec).enumerate() {
            if node_port(port).is_some_and(|number| seen.insert(number)) {
                out.push(port_claim(i, port));
            }
        }
    }
    if needs_health_check(spec) && spec.health_check_node_port.unwrap_or(0) != 0 {
        out.push(health_claim(spec.health_check_node_port));
    }
    out
}

fn same_thing(a: &Claim, b: &Claim) -> bool {
    std::mem::discriminant(&a.kind) == std::mem::discriminant(&b.kind) && a.wanted == b.wanted
}

/// What is to be taken: all the Service needs and does not hold already.
fn taken(spec: &ServiceSpec, old: Option<&ServiceSpec>) -> Vec<Claim> {
    let mut wanted = Vec::new();
    if type_of(spec) != "ExternalName" && !is_headless(spec) {
        let ips = spec.cluster_ips.as_deref().unwrap_or_default();
        for (i, family) in spec.ip_families.iter().flatten().enumerate() {
            wanted.push(address_claim(i, ips.get(i).map(String::as_str).filter(|ip| !ip.is_empty()), family));
        }
    }
    if needs_node_ports(spec) {
        let mut numbers = BTreeSet::new();
        let mut open: BTreeMap<i32, usize> = BTreeMap::new();
        for (i, port) in ports(spec).enumerate() {
            match node_port(port) {
                Some(number) if numbers.insert(number) => wanted.push(port_claim(i, port)),
                Some(_) => {}
                None if allocates_node_ports(spec) => match open.get(&port.port) {
                    Some(at) => wanted[*at].also.push(format!("/spec/ports/{i}/nodePort")),
                    None => {
                        open.insert(port.port, wanted.len());
                        wanted.push(port_claim(i, port));
                    }
                },
                None => {}
            }
        }
    }
    if needs_health_check(spec) {
        wanted.push(health_claim(spec.health_check_node_port));
    }
    let held = old.map(holds).unwrap_or_default();
    wanted.retain(|claim| claim.wanted.is_none() || !held.iter().any(|held| same_thing(claim, held)));
    wanted
}

/// What the old Service holds and the new one does not name.
fn released(spec: &ServiceSpec, old: &ServiceSpec) -> Vec<Claim> {
    let kept = holds(spec);
    let mut out = holds(old);
    out.retain(|claim| !kept.iter().any(|kept| same_thing(claim, kept)));
    out
}

/// After allocation: the single address is the first of the list.
pub fn settle(service: &mut Service) {
    let Some(spec) = &mut service.spec else { return };
    if type_of(spec) == "ExternalName" {
        return;
    }
    if let Some(first) = spec.cluster_ips.as_ref().and_then(|ips| ips.first()) {
        spec.cluster_ip = Some(first.clone());
    }
}

/// Fields that belong to the old type go with it, unless the client set them anew.
pub fn drop_what_the_type_has_not(new: &mut Service, old: &Service) {
    let none = ServiceSpec::default();
    let old_spec = old.spec.as_ref().unwrap_or(&none);
    let spec = new.spec.get_or_insert_default();
    if type_of(spec) == "ExternalName" && type_of(old_spec) != "ExternalName" {
        if spec.cluster_ip == old_spec.cluster_ip && spec.cluster_ips == old_spec.cluster_ips {
            spec.cluster_ip = None;
            spec.cluster_ips = None;
        }
        if spec.ip_families == old_spec.ip_families {
            spec.ip_families = None;
        }
        if spec.ip_family_policy == old_spec.ip_family_policy {
            spec.ip_family_policy = None;
        }
    }
    if needs_node_ports(old_spec) && !needs_node_ports(spec) {
        let before: BTreeSet<i32> = ports(old_spec).filter_map(node_port).collect();
        for port in spec.ports.iter_mut().flatten() {
            if node_port(port).is_none_or(|number| before.contains(&number)) {
                port.node_port = None;
            }
        }
    }
    if needs_health_check(old_spec) && !needs_health_check(spec) {
        if spec.health_check_node_port == old_spec.health_check_node_port {
            spec.health_check_node_port = None;
        }
    }
    let balanced = |spec: &ServiceSpec| type_of(spec) == "LoadBalancer";
    if balanced(old_spec) && !balanced(spec) {
        if spec.allocate_load_balancer_node_ports == old_spec.allocate_load_balancer_node_ports {
            spec.allocate_load_balancer_node_ports = None;
        }
        if spec.load_balancer_class == old_spec.load_balancer_class {
            spec.load_balancer_class = None;
        }
    }
    if is_external(old_spec) && !is_external(spec) && spec.external_traffic_policy == old_spec.external_traffic_policy {
        spec.external_traffic_policy = None;
    }
    if type_of(spec) == "ExternalName" && spec.internal_traffic_policy == old_spec.internal_traffic_policy {
        spec.internal_traffic_policy = None;
    }
    let is_balanced = balanced(spec);
    if let (false, Some(status)) = (is_balanced, &mut new.status) {
        if status.load_balancer.as_ref().is_some_and(|balancer| balancer.ingress.is_some()) {
            status.load_balancer = Some(Default::default());
        }
    }
}

/// True when the field asks for no address at all.
pub fn is_none(ip: &str) -> bool {
    ip == HEADLESS
}
