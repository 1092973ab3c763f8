//! One Service port → its chains, and its rules in the chains all share; pure.
//!
//! ```text
//!  KUBE-SERVICES  -d 10.96.7.1 --dport 80 ─► KUBE-SVC-…  ─► KUBE-SEP-… (one an endpoint): DNAT
//!                 -d 192.0.2.9 --dport 80 ─► KUBE-EXT-…  ─► mark, KUBE-SVC-… or KUBE-SVL-… (policy Local)
//!                 -d balancer  --dport 80 ─► KUBE-FW-…   ─► sources that may: KUBE-EXT-…
//!  KUBE-NODEPORTS --dport 30080           ─► KUBE-EXT-…
//! ```

use std::net::{IpAddr, SocketAddr};

use client::Key;
use net::ruleset::Family;

use super::names::{self, EXTERNAL_SERVICES, FIREWALL, MARK_FOREIGN, MARK_MASQ, NODEPORTS, SERVICES};
use super::rules::{Counts, Place, Table};
use crate::model::{LocalPods, Policy, PortName, ServicePort, ServiceRules, Settings, Target};

/// A rule in a chain that all Services share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shared {
    pub table: Table,
    pub chain: &'static str,
    pub place: Place,
    pub rule: String,
}

/// What one Service port adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// Of the table `nat`.
    pub chains: Vec<(String, Vec<String>)>,
    pub shared: Vec<Shared>,
}

impl Piece {
    /// Adds the numbers of its rules, or takes them away.
    pub fn count(&self, counts: &mut Counts, by: fn(usize, usize) -> usize) {
        let of_chains: usize = self.chains.iter().map(|(_, rules)| rules.len()).sum();
        for (table, rules) in self.shared.iter().map(|s| (s.table, 1)).chain([(Table::Nat, of_chains)]) {
            let count = counts.entry(table).or_default();
            *count = by(*count, rules);
        }
    }
}

/// What one Service adds that is of none of its ports: load balancers ask this node how it is, and
/// who closes everything but what is named must let them in.
pub(super) fn of_service(key: &Key, rules: &ServiceRules, family: Family) -> Piece {
    let port = rules.health_check.filter(|_| !rules.of(family).is_empty()).map(|check| check.port);
    let shared = port.map(|port| Shared {
        table: Table::Filter,
        chain: NODEPORTS,
        place: Place::Last,
        rule: format!("{} -m tcp -p tcp --dport {port} -j ACCEPT", comment(&format!("{key} health check node port"))),
    });
    Piece { chains: Vec::new(), shared: shared.into_iter().collect() }
}

/// Renders one port.
pub(super) fn render(name: &PortName, port: &ServicePort, settings: &Settings, family: Family) -> Piece {
    let tail = names::of_port(name);
    let mut context = Context { name, port, settings, family, tail, out: Piece::default() };
    context.within();
    context.outside();
    // What is refused at an address is refused once, whoever it is of.
    context.out.shared.sort();
    context.out.shared.dedup();
    context.out
}

/// The conditions that a packet comes from a pod of this node, of which one must hold; none when it
/// is not known. One rule each: what `iptables` makes of several in one is several rules.
pub(super) fn local_pods(settings: &Settings, family: Family) -> Vec<String> {
    match &settings.local_pods {
        LocalPods::Unknown => Vec::new(),
        LocalPods::Ranges(ranges) => Settings::of_family(ranges, family).map(|r| format!("-s {r}")).collect(),
        LocalPods::Bridge(name) => vec![format!("-i {name}")],
        LocalPods::Interfaces(prefix) => vec![format!("-i {prefix}+")],
    }
}

struct Context<'a> {
    name: &'a PortName,
    port: &'a ServicePort,
    settings: &'a Settings,
    family: Family,
    tail: String,
    out: Piece,
}

fn comment(text: &str) -> String {
    format!("-m comment --comment \"{text}\"")
}

impl Context<'_> {
    /// Connections to an address at this Service port.
    fn to(&self, ip: &IpAddr) -> String {
        let (bits, protocol) = (if self.family == Family::Ip { 32 } else { 128 }, self.name.protocol.as_str());
        format!("-m {protocol} -p {protocol} -d {ip}/{bits} --dport {}", self.port.port)
    }

    fn share(&mut self, table: Table, chain: &'static str, place: Place, rule: String) {
        self.out.shared.push(Shared { table, chain, place, rule });
    }

    fn chain_of(&self, policy: Policy) -> String {
        match policy {
            Policy::Cluster => format!("KUBE-SVC-{}", self.tail),
            Policy::Local => format!("KUBE-SVL-{}", self.tail),
        }
    }

    /// What comes from within the cluster, and the chains that pick an endpoint.
    fn within(&mut self) {
        let port = self.port;
        let to_own = self.to(&port.cluster_ip);
        let said = comment(&format!("{} cluster IP", self.name));
        let internal = match port.internal() {
            Target::Endpoints(policy, _) => {
                let chain = self.chain_of(policy);
                self.share(Table::Nat, SERVICES, Place::First, format!("{said} {to_own} -j {chain}"));
                Some(policy)
            }
            refused => {
                // Without endpoints of its own, an address is still nobody else's.
                self.share(Table::Nat, SERVICES, Place::First, format!("{said} {to_own} -j RETURN"));
                let rule = self.refuse(refused, &to_own);
                self.share(Table::Filter, SERVICES, Place::First, rule);
                None
            }
        };
        let endpoints = &port.endpoints;
        for (policy, chosen) in endpoints.chosen() {
            let mut rules = Vec::new();
            if internal == Some(policy) {
                rules.extend(self.masquerade(&format!("{said} {to_own}")));
            }
            rules.extend(self.pick(chosen));
            let chain = self.chain_of(policy);
            self.out.chains.push((chain, rules));
        }
        for endpoint in endpoints.all() {
            let chain = self.endpoint_chain(&endpoint);
            let rules = self.endpoint(&endpoint, &chain);
            self.out.chains.push((chain, rules));
        }
    }

    fn masquerade(&self, packets: &str) -> Option<String> {
        if self.settings.masquerade_all {
            return Some(format!("{packets} -j {MARK_MASQ}"));
        }
        match local_pods(self.settings, self.family).as_slice() {
            [] => None,
            [one] => Some(format!("{packets} ! {one} -j {MARK_MASQ}")),
            _ => Some(format!("{packets} -j {MARK_FOREIGN}")),
        }
    }

    fn refuse(&self, target: Target, packets: &str) -> String {
        let (why, verdict) = match target {
            Target::Drop => ("has no local endpoints", "DROP"),
            Target::Reject | Target::Endpoints(..) => ("has no endpoints", "REJECT"),
        };
        format!("{} {packets} -j {verdict}", comment(&format!("{} {why}", self.name)))
    }

    fn endpoint_chain(&self, endpoint: &SocketAddr) -> String {
        format!("KUBE-SEP-{}", names::of_endpoint(self.name, endpoint))
    }

    /// The rules that pick one of the endpoints, each with the same chance.
    fn pick(&self, endpoints: &[SocketAddr]) -> Vec<String> {
        let mut rules = Vec::new();
        let said = |endpoint: &SocketAddr| comment(&format!("{} -> {endpoint}", self.name));
        if let Some(seconds) = self.port.affinity {
            for endpoint in endpoints {
                let chain = self.endpoint_chain(endpoint);
                let known = format!("-m recent --name {chain} --rcheck --seconds {seconds} --reap");
                rules.push(format!("{} {known} -j {chain}", said(endpoint)));
            }
        }
        for (i, endpoint) in endpoints.iter().enumerate() {
            let left = endpoints.len() - i;
            let chance = match left {
                1 => String::new(),
                _ => format!(" -m statistic --mode random --probability {:.10}", 1.0 / left as f64),
            };
            rules.push(format!("{}{chance} -j {}", said(endpoint), self.endpoint_chain(endpoint)));
        }
        rules
    }

    fn endpoint(&self, endpoint: &SocketAddr, chain: &str) -> Vec<String> {
        let (said, protocol) = (comment(&self.name.to_string()), self.name.protocol.as_str());
        let bits = if self.family == Family::Ip { 32 } else { 128 };
        let known = self.port.affinity.map(|_| format!(" -m recent --name {chain} --set")).unwrap_or_default();
        vec![
            // A pod that reaches itself must see another's address.
            format!("{said} -s {}/{bits} -j {MARK_MASQ}", endpoint.ip()),
            format!("{said}{known} -m {protocol} -p {protocol} -j DNAT --to-destination {endpoint}"),
        ]
    }

    /// What comes from outside.
    fn outside(&mut self) {
        let port = self.port;
        if !port.is_external() {
            return;
        }
        let external = format!("KUBE-EXT-{}", self.tail);
        if port.endpoints.any {
            let rules = self.outside_rules();
            self.out.chains.push((external.clone(), rules));
        }
        let target = port.external();
        let refused = !matches!(target, Target::Endpoints(..));
        let firewall = !port.source_ranges.is_empty() && !port.load_balancer_ips.is_empty();
        for (ips, kind, guarded) in
            [(&port.external_ips, "external IP", false), (&port.load_balancer_ips, "loadbalancer IP", firewall)]
        {
            for ip in ips {
                let to = self.to(ip);
                let said = comment(&format!("{} {kind}", self.name));
                if port.endpoints.any {
                    let chain = if guarded { format!("KUBE-FW-{}", self.tail) } else { external.clone() };
                    self.share(Table::Nat, SERVICES, Place::Last, format!("{said} {to} -j {chain}"));
                }
                if guarded && port.endpoints.any {
                    let said = comment(&format!("{} traffic not accepted by KUBE-FW-{}", self.name, self.tail));
                    self.share(Table::Filter, FIREWALL, Place::Last, format!("{said} {to} -j DROP"));
                }
                if refused {
                    let rule = self.refuse(target, &to);
                    self.share(Table::Filter, EXTERNAL_SERVICES, Place::Last, rule);
                }
            }
        }
        if firewall && port.endpoints.any {
            let rules = self.firewall(&external);
            self.out.chains.push((format!("KUBE-FW-{}", self.tail), rules));
        }
        if let Some(number) = port.node_port {
            let protocol = self.name.protocol.as_str();
            let to = format!("-m {protocol} -p {protocol} --dport {number}");
            if port.endpoints.any {
                let said = comment(&self.name.to_string());
                self.share(Table::Nat, NODEPORTS, Place::Last, format!("{said} {to} -j {external}"));
            }
            if refused {
                let rule = self.refuse(target, &format!("-m addrtype --dst-type LOCAL {to}"));
                self.share(Table::Filter, EXTERNAL_SERVICES, Place::Last, rule);
            }
        }
    }

    fn outside_rules(&self) -> Vec<String> {
        let (port, name) = (self.port, self.name);
        let mut rules = Vec::new();
        if port.external_local {
            if !port.endpoints.cluster.is_empty() {
                let anywhere = format!("-j {}", self.chain_of(Policy::Cluster));
                let said = comment(&format!("pod traffic for {name} external destinations"));
                let local = local_pods(self.settings, self.family);
                rules.extend(local.iter().map(|local| format!("{said} {local} {anywhere}")));
                let own = "-m addrtype --src-type LOCAL";
                let masquerade = comment(&format!("masquerade LOCAL traffic for {name} external destinations"));
                let route = comment(&format!("route LOCAL traffic for {name} external destinations"));
                rules.push(format!("{masquerade} {own} -j {MARK_MASQ}"));
                rules.push(format!("{route} {own} {anywhere}"));
            }
        } else {
            rules.push(format!(
                "{} -j {MARK_MASQ}",
                comment(&format!("masquerade traffic for {name} external destinations"))
            ));
        }
        if let Target::Endpoints(policy, _) = port.external() {
            rules.push(format!("-j {}", self.chain_of(policy)));
        }
        rules
    }

    /// Sources that may use a load balancer's addresses; what others send is dropped later.
    fn firewall(&self, external: &str) -> Vec<String> {
        let said = comment(&format!("{} loadbalancer IP", self.name));
        let ranges = ipnet::IpNet::aggregate(&self.port.source_ranges);
        let mut sources: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        // A node that is admitted may have the balancer's address as its source.
        if self.settings.node_ips.iter().any(|ip| ranges.iter().any(|r| r.contains(ip))) {
            sources.extend(self.port.load_balancer_ips.iter().map(ToString::to_string));
        }
        sources.iter().map(|source| format!("{said} -s {source} -j {external}")).collect()
    }
}
