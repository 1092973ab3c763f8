//! One NetworkPolicy, read: every word of it resolved to what can be compared with a packet.
//!
//! ```text
//!  spec.ingress[0].from: [podSelector a, namespaceSelector b, ipBlock c except d], ports: [80, web]
//!    └─► Rule { pods: Group{a, b}, nets: c − d, ports: tcp 80, tcp "web" }
//! ```
//!
//! What cannot be read (an older server may have taken it) lets nothing through and is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::meta::util::intstr::IntOrString;
use api::types::networking::v1 as networking;
use ipnet::IpNet;
use machinery::labels::Selector;
use net::ruleset::Family;
use sha2::{Digest, Sha256};

use super::ranges::{Range, Ranges, family};
use super::{Labels, NamedPort};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    pub const BOTH: [Self; 2] = [Self::Ingress, Self::Egress];

    /// As names of chains begin.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// What ports are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// Of the API's word; nothing is TCP.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "" | "TCP" => Self::Tcp,
            "UDP" => Self::Udp,
            "SCTP" => Self::Sctp,
            _ => return None,
        })
    }

    /// As rules spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// Which pods one peer names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPeer {
    pub namespaces: Namespaces,
    pub pods: Selector,
}

/// In which namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// The policy's own.
    One(String),
    Matching(Selector),
}

impl PodPeer {
    fn matches(&self, namespace: &str, of_namespace: Option<&Labels>, labels: &Labels) -> bool {
        let inside = match &self.namespaces {
            Namespaces::One(name) => name == namespace,
            // What is not known of a namespace lets nobody in.
            Namespaces::Matching(selector) => of_namespace.is_some_and(|of| selector.matches(of)),
        };
        inside && self.pods.matches(labels)
    }

    /// A label that each of its pods has, if it asks for one.
    fn label(&self) -> Option<(String, String)> {
        let exact = |key: &str| self.pods.requires_exact(key).map(|value| (key.to_owned(), value.to_owned()));
        self.pods.requirements().iter().find_map(|requirement| exact(&requirement.key))
    }
}

/// The pods that the peers of a rule name. Rules that name the same share it.
#[derive(Debug)]
pub struct Group {
    /// What its set is called: by what is in it.
    pub name: String,
    /// By a label that they ask for: a rule may have thousands, and each pod is looked at by each group.
    labelled: BTreeMap<String, BTreeMap<String, Vec<PodPeer>>>,
    others: Vec<PodPeer>,
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Group {}

impl Group {
    fn new(mut peers: Vec<(String, PodPeer)>) -> Self {
        peers.sort_by(|a, b| a.0.cmp(&b.0));
        peers.dedup_by(|a, b| a.0 == b.0);
        let name = format!("pods-{}", hash(peers.iter().map(|(text, _)| text.as_str())));
        let mut group = Self { name, labelled: BTreeMap::new(), others: Vec::new() };
        for (_, peer) in peers {
            match peer.label() {
                Some((key, value)) => {
                    group.labelled.entry(key).or_default().entry(value).or_default().push(peer);
                }
                None => group.others.push(peer),
            }
        }
        group
    }

    /// Is a pod with these labels one of them, in this namespace with those labels?
    pub fn matches(&self, namespace: &str, of_namespace: Option<&Labels>, labels: &Labels) -> bool {
        let labelled = labels.iter().filter_map(|(key, value)| self.labelled.get(key)?.get(value));
        let mut peers = labelled.flatten().chain(&self.others);
        peers.any(|peer| peer.matches(namespace, of_namespace, labels))
    }
}

/// Which ports, of all protocols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Every port of these.
    pub whole: BTreeSet<Protocol>,
    pub numbers: BTreeMap<Protocol, Ranges>,
    /// Whatever number the pod that is spoken to gives this name.
    pub named: BTreeSet<NamedPort>,
}

/// One rule: what fits both its peers and its ports is let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// `None`: whoever it is.
    pub peers: Option<Peers>,
    /// `None`: whatever is said, in whichever protocol.
    pub ports: Option<Ports>,
}

/// The other end: a pod of the group, or an address of the networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    pub pods: Option<Arc<Group>>,
    pub v4: Ranges,
    pub v6: Ranges,
}

impl Peers {
    /// The networks of one family.
    pub fn nets(&self, family: Family) -> &Ranges {
        if family == Family::Ip { &self.v4 } else { &self.v6 }
    }
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whom it isolates, in its own namespace.
    pub pods: Selector,
    /// `None`: it says nothing of that direction. Without rules nothing is let through.
    pub ingress: Option<Vec<Rule>>,
    pub egress: Option<Vec<Rule>>,
    /// What of it cannot be read.
    pub unreadable: Vec<String>,
}

impl Policy {
    /// What it says of a direction.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    /// The same pods isolated, and nothing let through: what remains of a policy that the kernel refuses.
    #[must_use]
    pub fn closed(&self) -> Self {
        let shut = |rules: &Option<Vec<Rule>>| rules.as_ref().map(|_| Vec::new());
        Self { ingress: shut(&self.ingress), egress: shut(&self.egress), ..self.clone() }
    }
}

/// Reads a policy of a namespace.
pub fn read(namespace: &str, policy: &networking::NetworkPolicy) -> Policy {
    let none = networking::NetworkPolicySpec::default();
    let spec = policy.spec.as_ref().unwrap_or(&none);
    let mut reader = Reader { namespace, unreadable: Vec::new() };
    let types = spec.policy_types.as_deref().unwrap_or_default();
    let has = |direction: &str| types.iter().any(|t| t == direction);
    let egress = spec.egress.as_deref().unwrap_or_default();
    let (inward, outward) = if types.is_empty() { (true, !egress.is_empty()) } else { (has("Ingress"), has("Egress")) };
    // Whom it is about must not be guessed too small.
    let pods = match spec.pod_selector.as_ref().map(api::selector) {
        None => Selector::everything(),
        Some(Ok(selector)) => selector,
        Some(Err(why)) => {
            reader.unreadable.push(format!("spec.podSelector: {why}"));
            Selector::everything()
        }
    };
    let ingress = spec.ingress.iter().flatten().map(|r| reader.rule(r.from.as_deref(), r.ports.as_deref()));
    let ingress = inward.then(|| ingress.collect());
    let egress = egress.iter().map(|r| reader.rule(r.to.as_deref(), r.ports.as_deref()));
    let egress = outward.then(|| egress.collect());
    Policy { pods, ingress, egress, unreadable: reader.unreadable }
}

struct Reader<'a> {
    namespace: &'a str,
    unreadable: Vec<String>,
}

impl Reader<'_> {
    fn rule(
        &mut self,
        peers: Option<&[networking::NetworkPolicyPeer]>,
        ports: Option<&[networking::NetworkPolicyPort]>,
    ) -> Rule {
        Rule {
            peers: peers.filter(|all| !all.is_empty()).map(|all| self.peers(all)),
            ports: ports.filter(|all| !all.is_empty()).map(|all| self.ports(all)),
        }
    }

    fn peers(&mut self, all: &[networking::NetworkPolicyPeer]) -> Peers {
        let (mut pods, mut v4, mut v6) = (Vec::new(), Vec::new(), Vec::new());
        for peer in all {
            if let Some(block) = &peer.ip_block {
                match self.block(block) {
                    Ok((Family::Ip, ranges)) => v4.extend(ranges),
                    Ok((Family::Ip6, ranges)) => v6.extend(ranges),
                    Err(why) => self.unreadable.push(format!("ipBlock: {why}")),
                }
            } else {
                match self.pods(peer) {
                    Ok(peer) => pods.push((format!("{peer:?}"), peer)),
                    Err(why) => self.unreadable.push(format!("a selector of a peer: {why}")),
                }
            }
        }
        let pods = (!pods.is_empty()).then(|| Arc::new(Group::new(pods)));
        Peers { pods, v4: Ranges::union(v4), v6: Ranges::union(v6) }
    }

    fn block(&self, block: &networking::IPBlock) -> Result<(Family, Vec<Range>), String> {
        let parse = |text: &str| text.parse::<IpNet>().map_err(|_| format!("{text:?} is no network"));
        let net = parse(&block.cidr)?;
        let mut except = Vec::new();
        for text in block.except.iter().flatten() {
            let other = parse(text)?;
            // Of the other family: it takes nothing away.
            if family(other.addr()) == family(net.addr()) {
                except.push(Ranges::network(other));
            }
        }
        Ok((family(net.addr()), Ranges::union(except).without(Ranges::network(net))))
    }

    fn pods(&self, peer: &networking::NetworkPolicyPeer) -> Result<PodPeer, String> {
        let pods = match &peer.pod_selector {
            Some(selector) => api::selector(selector)?,
            None if peer.namespace_selector.is_some() => Selector::everything(),
            None => return Err("it names nobody".to_owned()),
        };
        let namespaces = match &peer.namespace_selector {
            Some(selector) => Namespaces::Matching(api::selector(selector)?),
            None => Namespaces::One(self.namespace.to_owned()),
        };
        Ok(PodPeer { namespaces, pods })
    }

    fn ports(&mut self, all: &[networking::NetworkPolicyPort]) -> Ports {
        let mut out = Ports::default();
        let mut numbers: BTreeMap<Protocol, Vec<Range>> = BTreeMap::new();
        for port in all {
            let text = port.protocol.as_deref().unwrap_or_default();
            let Some(protocol) = Protocol::parse(text) else {
                self.unreadable.push(format!("protocol {text:?} is not known"));
                continue;
            };
            let of = |number: i32| u16::try_from(number).ok().filter(|n| *n > 0).map(u128::from);
            match &port.port {
                None => drop(out.whole.insert(protocol)),
                Some(IntOrString::String(name)) => {
                    out.named.insert(NamedPort { name: name.clone(), protocol });
                }
                Some(IntOrString::Int(first)) => match (of(*first), of(port.end_port.unwrap_or(*first))) {
                    (Some(first), Some(last)) if first <= last => {
                        numbers.entry(protocol).or_default().push((first, last));
                    }
                    _ => self.unreadable.push(format!("{first} to {:?} are no ports", port.end_port)),
                },
            }
        }
        // Of a protocol that is let through whole nothing more is to be said.
        numbers.retain(|protocol, _| !out.whole.contains(protocol));
        out.named.retain(|port| !out.whole.contains(&port.protocol));
        out.numbers = numbers.into_iter().map(|(protocol, ranges)| (protocol, Ranges::union(ranges))).collect();
        out
    }
}

/// 128 bits of what these texts say, as letters: nobody finds two of the same.
pub fn hash<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let mut digest = Sha256::new();
    for text in texts {
        digest.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(text.as_bytes());
    }
    digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
