//! The names of a cluster: who they belong to, and what they answer (Kubernetes DNS-Based Service Discovery
//! 1.1.0, and what CoreDNS answers beyond it).
//!
//! ```text
//!   cluster.local                        SOA, NS
//!   dns-version.cluster.local            TXT "1.1.0"
//!   web.default.svc.cluster.local        A, AAAA, SRV of all ports; CNAME for an ExternalName
//!   _http._tcp.web.default.svc…          SRV
//!   web-0.web.default.svc…               an endpoint: its hostname, or 10-244-0-7
//!   10-244-0-7.default.pod.cluster.local the address that the name says
//!   7.0.244.10.in-addr.arpa              PTR
//! ```
//!
//! Everything here is pure: [`Zone`] is brought up to date Service by Service, and answers from what it holds.

mod objects;
mod records;
mod reverse;

pub use objects::{SERVICE_NAME, Service, Slice};
pub use records::{Endpoint, Port, Records, Target, decide};

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use client::Key;
use ipnet::IpNet;

use crate::wire::{Data, Name, Record, Reply, Soa, kind, rcode};

/// The version of the specification.
const VERSION: &str = "1.1.0";
/// Addresses of targets that an SRV answer brings along.
const GLUE: usize = 64;

/// What a zone is made with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `cluster.local`
    pub domain: Name,
    /// Seconds for which an answer may be kept, and that there is no such name.
    pub ttl: u32,
    /// Ranges of Services and pods: what is not known there is not known to anybody else.
    pub ranges: Vec<IpNet>,
    /// Addresses of the cluster's DNS.
    pub servers: Vec<IpAddr>,
}

/// What a question is about.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The name's bytes, in small letters.
    pub name: &'a [u8],
    pub kind: u16,
    /// Which of several records comes first.
    pub turn: usize,
    /// As many records as an answer can hold.
    pub most: usize,
}

/// What the zone says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The name is somebody else's.
    NotOurs,
    Reply(Reply),
    /// The name stands for another one, which is to be resolved, too.
    Alias(Record, Name),
}

#[derive(Debug, Default)]
struct Namespace {
    exists: bool,
    services: HashMap<Box<[u8]>, Arc<Records>>,
}

/// The addresses of a Service's endpoints with the name of each.
fn endpoints(records: Option<&Records>) -> HashSet<(IpAddr, &[u8])> {
    let all = records.into_iter().flat_map(|records| &records.endpoints);
    all.map(|endpoint| (endpoint.address, endpoint.name.bytes())).collect()
}

/// The names of a cluster.
#[derive(Debug)]
pub struct Zone {
    settings: Settings,
    /// Who is named in SOA: `ns.dns.cluster.local` and `hostmaster.cluster.local`.
    primary: Name,
    mailbox: Name,
    namespaces: HashMap<Box<[u8]>, Namespace>,
    /// Names of addresses: of a Service's own, and of endpoints, each with the Service that says so.
    clusters: HashMap<IpAddr, (Key, Name)>,
    endpoints: HashMap<IpAddr, Vec<(Key, Name)>>,
    /// How often it has changed.
    serial: u32,
}

/// What is asked of a Service.
enum Part<'a> {
    Whole,
    Host(&'a [u8]),
    Port(&'a [u8], &'a [u8]),
}

impl Zone {
    /// A zone without Services. `serial` is where its count of changes begins, later than ever before.
    pub fn new(settings: Settings, serial: u32) -> Self {
        let below = |labels: &[&[u8]]| {
            let labels = labels.iter().copied().chain(settings.domain.labels());
            Name::of(labels).unwrap_or_else(|_| settings.domain.clone())
        };
        let (primary, mailbox) = (below(&[b"ns", b"dns"]), below(&[b"hostmaster"]));
        let (namespaces, clusters, endpoints) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { settings, primary, mailbox, namespaces, clusters, endpoints, serial }
    }

    /// One as this was made, without Services; its count of changes goes on.
    pub fn begun_again(&self) -> Self {
        Self::new(self.settings.clone(), self.serial.wrapping_add(1))
    }

    /// How it was made.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A namespace is there, or gone.
    pub fn set_namespace(&mut self, name: &str, exists: bool) {
        let key = name.as_bytes();
        self.namespaces.entry(key.into()).or_default().exists = exists;
        self.tidy(key);
        self.serial = self.serial.wrapping_add(1);
    }

    /// Forgets a namespace of which nothing is known.
    fn tidy(&mut self, key: &[u8]) {
        if self.namespaces.get(key).is_some_and(|ns| !ns.exists && ns.services.is_empty()) {
            self.namespaces.remove(key);
        }
    }

    /// What a Service says now; `None` when it is gone or says nothing. False when that is known already.
    pub fn set(&mut self, key: &Key, records: Option<Records>) -> bool {
        let (namespace, name) = (key.namespace.as_bytes(), key.name.as_bytes());
        let known = self.namespaces.get(namespace).and_then(|ns| ns.services.get(name));
        if known.map(|known| &**known) == records.as_ref() {
            return false;
        }
        self.serial = self.serial.wrapping_add(1);
        let old = self.namespaces.get_mut(namespace).and_then(|ns| ns.services.remove(name));
        self.exchange_addresses(key, old.as_deref(), records.as_ref());
        if let Some(new) = records {
            self.namespaces.entry(namespace.into()).or_default().services.insert(name.into(), Arc::new(new));
        }
        self.tidy(namespace);
        true
    }

    /// Names of addresses as a Service says them now. Of its endpoints only what differs is touched: one that comes
    /// or goes among thousands holds up no question.
    fn exchange_addresses(&mut self, key: &Key, old: Option<&Records>, new: Option<&Records>) {
        let clusters = |records: Option<&Records>| match records.map(|records| &records.target) {
            Some(Target::Cluster(addresses, _)) => addresses.clone(),
            _ => Vec::new(),
        };
        for address in clusters(old) {
            if self.clusters.get(&address).is_some_and(|(owner, _)| owner == key) {
                self.clusters.remove(&address);
            }
        }
        for (address, records) in clusters(new).into_iter().zip(new.into_iter().cycle()) {
            self.clusters.insert(address, (key.clone(), records.name.clone()));
        }
        let (before, after) = (endpoints(old), endpoints(new));
        for (address, name) in before.difference(&after) {
            if let Some(names) = self.endpoints.get_mut(address) {
                names.retain(|(owner, said)| owner != key || said.bytes() != *name);
                if names.is_empty() {
                    self.endpoints.remove(address);
                }
            }
        }
        for endpoint in new.into_iter().flat_map(|records| &records.endpoints) {
            if before.contains(&(endpoint.address, endpoint.name.bytes())) {
                continue;
            }
            let names = self.endpoints.entry(endpoint.address).or_default();
            if !names.iter().any(|(owner, said)| owner == key && *said == endpoint.name) {
                names.push((key.clone(), endpoint.name.clone()));
                names.sort_by(|a, b| a.1.bytes().cmp(b.1.bytes()));
            }
        }
    }

    /// What the zone says of a name.
    pub fn find(&self, asked: Asked<'_>) -> Found {
        // Nobody has more labels below the domain than a port of a Service.
        let (mut labels, mut count, mut rest) = ([&[][..]; 6], 0, asked.name);
        let domain = self.settings.domain.bytes();
        while rest.len() > domain.len() {
            let (label, after) = rest[1..].split_at(usize::from(rest[0]).min(rest.len() - 1));
            if let Some(place) = labels.get_mut(count) {
                *place = label;
            }
            count += 1;
            rest = after;
        }
        if rest == domain {
            return match labels.get(..count) {
                Some(labels) => self.inside(asked, labels),
                None => self.nothing(rcode::NXDOMAIN),
            };
        }
        reverse::address(asked.name).map_or(Found::NotOurs, |address| self.pointer(asked, address))
    }

    fn inside(&self, asked: Asked<'_>, labels: &[&[u8]]) -> Found {
        let name =
            || Name::of(labels.iter().copied().chain(self.settings.domain.labels())).unwrap_or_else(|_| Name::root());
        match labels {
            [] => self.apex(asked.kind),
            [b"dns-version"] => {
                let text = Record { name: name(), ttl: self.settings.ttl, data: Data::Txt(VERSION.into()) };
                self.of_kind(asked, vec![text])
            }
            // Who is named in SOA.
            [b"ns", b"dns"] => {
                let own = name();
                let servers = self.settings.servers.iter();
                self.of_kind(asked, servers.map(|ip| Record::address(own.clone(), self.settings.ttl, *ip)).collect())
            }
            [b"dns" | b"svc" | b"pod"] => self.nothing(rcode::NOERROR),
            [rest @ .., namespace, b"svc"] => match (self.namespaces.get(*namespace), rest) {
                (Some(ns), []) if ns.exists => self.nothing(rcode::NOERROR),
                (Some(ns), [service]) => self.service(asked, ns, service, Part::Whole),
                (Some(ns), [host, service]) => self.service(asked, ns, service, Part::Host(host)),
                (Some(ns), [port, protocol, service]) => match (port.strip_prefix(b"_"), protocol.strip_prefix(b"_")) {
                    (Some(port), Some(protocol)) => self.service(asked, ns, service, Part::Port(port, protocol)),
                    _ => self.nothing(rcode::NXDOMAIN),
                },
                _ => self.nothing(rcode::NXDOMAIN),
            },
            [rest @ .., namespace, b"pod"] => {
                let exists = self.namespaces.get(*namespace).is_some_and(|ns| ns.exists);
                match rest {
                    [] if exists => self.nothing(rcode::NOERROR),
                    [pod] if exists => match reverse::dashed(pod) {
                        Some(ip) => self.of_kind(asked, vec![Record::address(name(), self.settings.ttl, ip)]),
                        None => self.nothing(rcode::NXDOMAIN),
                    },
                    _ => self.nothing(rcode::NXDOMAIN),
                }
            }
            _ => self.nothing(rcode::NXDOMAIN),
        }
    }

    fn apex(&self, asked: u16) -> Found {
        let domain = self.settings.domain.clone();
        match asked {
            kind::SOA | kind::ANY => self.reply(vec![self.soa(domain)], Vec::new()),
            kind::NS => {
                let server = self.primary.clone();
                let servers = self.settings.servers.iter();
                let glue = servers.map(|ip| Record::address(server.clone(), self.settings.ttl, *ip)).collect();
                self.reply(vec![Record { name: domain, ttl: self.settings.ttl, data: Data::Ns(server) }], glue)
            }
            _ => self.nothing(rcode::NOERROR),
        }
    }

    fn service(&self, asked: Asked<'_>, namespace: &Namespace, service: &[u8], part: Part<'_>) -> Found {
        let Some(records) = namespace.services.get(service) else { return self.nothing(rcode::NXDOMAIN) };
        let ttl = self.settings.ttl;
        match (&records.target, part) {
            (Target::External(other), Part::Whole) => {
                let alias = Record { name: records.name.clone(), ttl, data: Data::Cname(other.clone()) };
                if asked.kind == kind::CNAME || asked.kind == kind::ANY {
                    return self.reply(vec![alias], Vec::new());
                }
                Found::Alias(alias, other.clone())
            }
            (Target::External(_), _) => self.nothing(rcode::NXDOMAIN),
            (Target::Cluster(addresses, ports), Part::Whole) => {
                self.cluster(asked, &records.name, addresses, &mut ports.iter())
            }
            (Target::Cluster(addresses, ports), Part::Port(name, protocol)) => {
                let mut named = ports.iter().filter(|port| port.is_named((name, protocol))).peekable();
                if named.peek().is_none() {
                    return self.nothing(rcode::NXDOMAIN);
                }
                self.cluster(asked, &records.name, addresses, &mut named)
            }
            (_, Part::Host(host)) => {
                let found = records.hosts.get(host).into_iter().flatten();
                let found: Vec<&Endpoint> = found.filter_map(|at| records.endpoints.get(*at as usize)).collect();
                self.hosts(asked, &found, |_| true)
            }
            (Target::Headless, Part::Whole) => {
                let all: Vec<&Endpoint> = records.endpoints.iter().collect();
                self.hosts(asked, &all, |_| true)
            }
            (Target::Headless, Part::Port(name, protocol)) => {
                let is_named = |port: &Port| port.is_named((name, protocol));
                let found: Vec<&Endpoint> =
                    records.endpoints.iter().filter(|endpoint| endpoint.ports.iter().any(is_named)).collect();
                self.hosts(asked, &found, is_named)
            }
        }
    }

    /// What a Service with addresses of its own answers.
    fn cluster(
        &self,
        asked: Asked<'_>,
        name: &Name,
        addresses: &[IpAddr],
        ports: &mut dyn Iterator<Item = &Port>,
    ) -> Found {
        let address = |ip: &IpAddr| Record::address(own_name(asked), self.settings.ttl, *ip);
        if asked.kind != kind::SRV {
            return self.of_kind(asked, addresses.iter().map(address).collect());
        }
        let ports: Vec<(&Name, u16)> = ports.map(|port| (name, port.port)).collect();
        let glue = addresses.iter().map(|ip| Record::address(name.clone(), self.settings.ttl, *ip)).collect();
        self.services(asked, &ports, glue)
    }

    /// What endpoints answer; that there is no such name, when there are none.
    fn hosts(&self, asked: Asked<'_>, endpoints: &[&Endpoint], is_meant: impl Fn(&Port) -> bool) -> Found {
        if endpoints.is_empty() {
            return self.nothing(rcode::NXDOMAIN);
        }
        // Each begins with another one; what finds no place is left out here already.
        let from = asked.turn % endpoints.len();
        let turned = || endpoints[from..].iter().chain(&endpoints[..from]);
        if asked.kind != kind::SRV {
            let wanted = turned()
                .filter(|e| matches!((e.address, asked.kind), (IpAddr::V4(_), kind::A) | (IpAddr::V6(_), kind::AAAA)));
            let mut records: Vec<Record> = Vec::new();
            // An address may have several names.
            let mut seen = std::collections::HashSet::new();
            for endpoint in wanted.filter(|e| seen.insert(e.address)).take(asked.most) {
                records.push(Record::address(own_name(asked), self.settings.ttl, endpoint.address));
            }
            // The type is right for all of them.
            return if asked.kind == kind::ANY || !records.is_empty() {
                self.of_kind(asked, records)
            } else {
                self.nothing(rcode::NOERROR)
            };
        }
        let ports = turned().flat_map(|e| e.ports.iter().filter(|p| is_meant(p)).map(|port| (&e.name, port.port)));
        let ports: Vec<(&Name, u16)> = ports.take(asked.most).collect();
        let glue = turned().take(GLUE).map(|e| Record::address(e.name.clone(), self.settings.ttl, e.address)).collect();
        self.services(asked, &ports, glue)
    }

    /// SRV records of equal weight: together as near to a hundred as whole numbers are, as CoreDNS weighs them.
    fn services(&self, asked: Asked<'_>, ports: &[(&Name, u16)], glue: Vec<Record>) -> Found {
        // The same number over two protocols, or of an endpoint with two addresses, is one record.
        let mut seen = std::collections::HashSet::new();
        let ports: Vec<(&Name, u16)> = ports.iter().copied().filter(|port| seen.insert(*port)).collect();
        if ports.is_empty() {
            return self.nothing(rcode::NOERROR);
        }
        let weight = u16::try_from((100 / ports.len()).max(1)).unwrap_or(1);
        let record = |(target, port): &(&Name, u16)| Record {
            name: own_name(asked),
            ttl: self.settings.ttl,
            data: Data::Srv { priority: 0, weight, port: *port, target: (*target).clone() },
        };
        self.reply(ports.iter().map(record).collect(), glue)
    }

    fn pointer(&self, asked: Asked<'_>, address: IpAddr) -> Found {
        let one = self.clusters.get(&address).map(|(_, name)| name);
        let many = self.endpoints.get(&address).into_iter().flatten().map(|(_, name)| name);
        let names: Vec<&Name> = match one {
            Some(name) => vec![name],
            None => many.take(asked.most.min(GLUE)).collect(),
        };
        if names.is_empty() {
            // What is ours and unknown is nobody's business outside.
            let ours = self.settings.ranges.iter().any(|range| range.contains(&address));
            return if ours { self.nothing_below(rcode::NXDOMAIN, reverse::zone(address)) } else { Found::NotOurs };
        }
        if asked.kind != kind::PTR {
            return self.nothing_below(rcode::NOERROR, reverse::zone(address));
        }
        let record =
            |name: &&Name| Record { name: own_name(asked), ttl: self.settings.ttl, data: Data::Ptr((*name).clone()) };
        self.reply(names.iter().map(record).collect(), Vec::new())
    }

    /// Those of the records that are of the type that is asked for; none is an answer, too.
    fn of_kind(&self, asked: Asked<'_>, mut records: Vec<Record>) -> Found {
        if asked.kind == kind::ANY {
            // RFC 8482: whoever asks for everything is told that there is something.
            let data = Data::Other { kind: kind::HINFO, data: Box::from(&b"\x07RFC8482\x00"[..]) };
            return self.reply(vec![Record { name: own_name(asked), ttl: self.settings.ttl, data }], Vec::new());
        }
        records.retain(|record| record.kind() == asked.kind);
        if records.is_empty() {
            return self.nothing(rcode::NOERROR);
        }
        let from = asked.turn % records.len();
        records.rotate_left(from);
        self.reply(records, Vec::new())
    }

    fn reply(&self, answers: Vec<Record>, additional: Vec<Record>) -> Found {
        Found::Reply(Reply { authoritative: true, answers, additional, ..Reply::default() })
    }

    /// There is nothing of that type (no error), or no such name.
    fn nothing(&self, code: u16) -> Found {
        self.nothing_below(code, self.settings.domain.clone())
    }

    fn nothing_below(&self, code: u16, zone: Name) -> Found {
        Found::Reply(Reply { authoritative: true, authority: vec![self.soa(zone)], ..Reply::code(code) })
    }

    fn soa(&self, zone: Name) -> Record {
        let soa = Soa {
            primary: self.primary.clone(),
            mailbox: self.mailbox.clone(),
            serial: self.serial,
            refresh: 7200,
            retry: 1800,
            expire: 86_400,
            minimum: self.settings.ttl,
        };
        Record { name: zone, ttl: self.settings.ttl, data: Data::Soa(soa) }
    }
}

/// The name that was asked for.
fn own_name(asked: Asked<'_>) -> Name {
    Name::read(asked.name, 0).map_or_else(|_| Name::root(), |(name, _)| name)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub use tests::text as tests_text;
