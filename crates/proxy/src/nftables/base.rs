//! What every table has, whichever Services there are; pure.
//!
//! ```text
//!  prerouting, output ─► firewall-check (source ranges of load balancers)       before the NAT
//!                     ─► services ─► @service-ips, @service-nodeports ─► …tcp-endpoints-…, service-…, external-…
//!  input, forward,    ─► @no-endpoint-nodeports, @no-endpoint-services: reject or drop
//!  output             ─► cluster-ips-check: what is still addressed to the Service range: reject
//!                     ─► pods-check: pod addresses that no interface of a pod has: reject
//!  postrouting        ─► masquerading: marked, or a pod that reaches itself
//! ```

use ipnet::IpNet;
use net::ruleset::{Chain, Family, Ruleset, Set};

use super::names::{
    CLUSTER_IPS, FIREWALL_IPS, HAIRPIN, NO_ENDPOINT_NODEPORTS, NO_ENDPOINT_SERVICES, NODEPORT_IPS, REJECT, SERVICE_IPS,
    SERVICE_NODEPORTS, TABLE,
};
use super::shared;
use crate::model::{LocalPods, NodePortAddresses, Settings};

fn address_type(family: Family) -> &'static str {
    match family {
        Family::Ip => "ipv4_addr",
        Family::Ip6 => "ipv6_addr",
    }
}

fn one_of(networks: impl Iterator<Item = IpNet>) -> Option<String> {
    let texts: Vec<String> = networks.map(|n| n.to_string()).collect();
    match texts.as_slice() {
        [] => None,
        // A set of one's own for one range is one set too many where every Service asks.
        [one] => Some(one.clone()),
        many => Some(format!("{{ {} }}", many.join(", "))),
    }
}

/// So many clients of one Service port are remembered, thirty megabytes of the kernel's at most; those beyond are sent
/// anywhere each time. (The kernel's own bound is 65,535; upstream has that for each endpoint.)
const CLIENTS: usize = 1 << 18;

/// An empty set or map of the table, as it is declared.
pub(super) fn set(name: &str, family: Family) -> Set {
    let address = address_type(family);
    let (keyword, declaration) = match name {
        CLUSTER_IPS => ("set", format!("type {address}")),
        HAIRPIN => ("set", format!("type {address} . {address} . inet_proto . inet_service")),
        NODEPORT_IPS => ("set", format!("type {address}; flags interval")),
        SERVICE_NODEPORTS | NO_ENDPOINT_NODEPORTS => ("map", "type inet_proto . inet_service : verdict".into()),
        SERVICE_IPS | NO_ENDPOINT_SERVICES | FIREWALL_IPS => {
            ("map", format!("type {address} . inet_proto . inet_service : verdict"))
        }
        _ => match shared::declaration(name, family) {
            Some(declaration) => ("map", declaration),
            // Who has which endpoint, for as long as each entry says.
            None => {
                let key = format!("typeof {} saddr . numgen inc mod 2", family.as_str());
                ("set", format!("{key}; flags dynamic,timeout; size {CLIENTS}"))
            }
        },
    };
    Set { keyword, declaration, elements: Default::default() }
}

/// The rules' condition that a packet comes from a pod of this node, and that it does not; `None`
/// when it is not known.
pub(super) fn local_pods(settings: &Settings, family: Family) -> Option<(String, String)> {
    let ip = family.as_str();
    match &settings.local_pods {
        LocalPods::Unknown => None,
        LocalPods::Ranges(ranges) => {
            let ranges = one_of(Settings::of_family(ranges, family))?;
            Some((format!("{ip} saddr {ranges}"), format!("{ip} saddr != {ranges}")))
        }
        LocalPods::Bridge(name) => Some((format!("iifname \"{name}\""), format!("iifname != \"{name}\""))),
        LocalPods::Interfaces(prefix) => Some((format!("iifname \"{prefix}*\""), format!("iifname != \"{prefix}*\""))),
    }
}

/// The condition that a packet is addressed to this node at an address where node ports answer.
fn to_node_port(settings: &Settings, family: Family) -> String {
    match (&settings.node_ports, family) {
        (NodePortAddresses::All, Family::Ip) => "fib daddr type local ip daddr != 127.0.0.0/8".into(),
        (NodePortAddresses::All, Family::Ip6) => "fib daddr type local ip6 daddr != ::1".into(),
        (NodePortAddresses::Ranges(_), _) => format!("{} daddr @{NODEPORT_IPS} fib daddr type local", family.as_str()),
    }
}

/// The table without any Service.
pub(super) fn render(settings: &Settings, family: Family) -> Ruleset {
    let mut out = Ruleset::new(family, TABLE);
    let maps = [CLUSTER_IPS, HAIRPIN, SERVICE_IPS, SERVICE_NODEPORTS, NO_ENDPOINT_SERVICES, NO_ENDPOINT_NODEPORTS];
    for name in maps.into_iter().chain([FIREWALL_IPS]).chain(shared::maps_by_address()).chain(shared::maps_by_port()) {
        out.sets.insert(name.into(), set(name, family));
    }
    if let NodePortAddresses::Ranges(ranges) = &settings.node_ports {
        let mut ips = set(NODEPORT_IPS, family);
        // Intervals of a set may not overlap.
        let ranges: Vec<IpNet> = Settings::of_family(ranges, family).collect();
        ips.elements = IpNet::aggregate(&ranges).iter().map(|n| (n.to_string(), String::new())).collect();
        out.sets.insert(NODEPORT_IPS.into(), ips);
    }
    hooks(&mut out, settings, family);
    checks(&mut out, settings, family);
    let (ip, mark) = (family.as_str(), settings.mark());
    let node_port = to_node_port(settings, family);
    let services = vec![
        format!("{ip} daddr . meta l4proto . th dport vmap @{SERVICE_IPS}"),
        format!("{node_port} meta l4proto . th dport vmap @{SERVICE_NODEPORTS}"),
    ];
    let masquerading = vec![
        format!("{ip} saddr . {ip} daddr . meta l4proto . th dport @{HAIRPIN} masquerade fully-random"),
        format!("meta mark & {mark} == 0 return"),
        format!("meta mark set meta mark ^ {mark}"),
        "masquerade fully-random".to_owned(),
    ];
    let mut chain = |name: &str, rules| out.chains.insert(name.into(), Chain { hook: String::new(), rules });
    chain("services", services);
    chain("masquerading", masquerading);
    chain(REJECT, vec!["reject".into()]);
    out
}

/// The chains the kernel calls.
fn hooks(out: &mut Ruleset, settings: &Settings, family: Family) {
    let new = |chain: &str| format!("ct state new jump {chain}");
    let mut chain = |name: &str, hook: &str, rules: Vec<String>| {
        out.chains.insert(name.into(), Chain { hook: hook.into(), rules });
    };
    let firewall = vec![new("firewall-check")];
    chain("filter-prerouting-pre-dnat", "type filter hook prerouting priority -110", firewall.clone());
    chain("filter-output-pre-dnat", "type filter hook output priority -110", firewall);
    let input = vec![new("nodeport-endpoints-check"), new("service-endpoints-check")];
    chain("filter-input", "type filter hook input priority 0", input);
    let mut forward = vec![new("service-endpoints-check"), new("cluster-ips-check")];
    let mut output = forward.clone();
    if let Some(stray) = stray(settings, family) {
        forward.push("jump pods-check".into());
        // A packet that was given a new destination on its way out still shows the old interface in
        // the output hook; whether it is stray is seen after routing, where it can only be dropped.
        output.push(format!("ct state new ct status & dnat == 0 {stray} goto {REJECT}"));
        chain("filter-postrouting", "type filter hook postrouting priority 0", vec![format!("{stray} drop")]);
        // A connection whose pod is gone ends at once; of other protocols only the first packet can
        // be told from what is under way.
        let gone = format!("meta l4proto tcp {stray} reject with tcp reset");
        chain("pods-check", "", vec![gone, format!("ct state new {stray} goto {REJECT}")]);
    }
    chain("filter-forward", "type filter hook forward priority 0", forward);
    chain("filter-output", "type filter hook output priority 0", output);
    chain("nat-prerouting", "type nat hook prerouting priority -100", vec!["jump services".into()]);
    chain("nat-output", "type nat hook output priority -100", vec!["jump services".into()]);
    chain("nat-postrouting", "type nat hook postrouting priority 100", vec!["jump masquerading".into()]);
}

/// The condition that a packet is addressed to a pod of this node that is not there.
fn stray(settings: &Settings, family: Family) -> Option<String> {
    let (ip, pods) = (family.as_str(), settings.pod_interfaces.as_ref()?);
    let range = one_of(Settings::of_family(&settings.cluster_cidrs, family))?;
    let remote = one_of(Settings::of_family(&settings.remote_pod_cidrs, family));
    let except = remote.map(|r| format!(" {ip} daddr != {r}")).unwrap_or_default();
    Some(format!("{ip} daddr {range}{except} oifname != \"{pods}\" oifname != \"lo\""))
}

/// What refuses connections.
fn checks(out: &mut Ruleset, settings: &Settings, family: Family) {
    let ip = family.as_str();
    let by_address = |map: &str| vec![format!("{ip} daddr . meta l4proto . th dport vmap @{map}")];
    let mut cluster_ips = vec![format!("{ip} daddr @{CLUSTER_IPS} goto {REJECT}")];
    if let Some(range) = one_of(Settings::of_family(&settings.service_cidrs, family)) {
        cluster_ips.push(format!("{ip} daddr {range} goto {REJECT}"));
    }
    let node_port = to_node_port(settings, family);
    let node_ports = vec![format!("{node_port} meta l4proto . th dport vmap @{NO_ENDPOINT_NODEPORTS}")];
    let mut chain = |name: &str, rules| out.chains.insert(name.into(), Chain { hook: String::new(), rules });
    chain("firewall-check", by_address(FIREWALL_IPS));
    chain("service-endpoints-check", by_address(NO_ENDPOINT_SERVICES));
    chain("nodeport-endpoints-check", node_ports);
    chain("cluster-ips-check", cluster_ips);
}
