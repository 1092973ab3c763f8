//! What is wrong between the claims that are stored and the objects that need them, and what to do about
//! it: pure. The tales are what the objects' owners are told, in the words that operators search for.
//!
//! ```text
//!  object ── needs ──► claim
//!    10.96.0.7           none                       create, and tell
//!    10.96.0.7           of something that is none  replace, and tell
//!    10.96.0.7           of another that needs it   tell the loser; nobody's address is taken away
//!    (none)              of an object               after a minute: free, and tell
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use kinds::ClaimKind;
use stdx::clock::Instant;

use super::{Owner, Parent};

/// How long a claim may be without its object: the time a create may be under way.
pub(super) const GRACE: Duration = Duration::from_secs(60);

/// A claim that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub key: Bytes,
    pub revision: u64,
    pub parent: Parent,
    /// Taken by this allocator: others keep theirs, whatever they refer to.
    pub ours: bool,
    /// Its labels say its family, and that it is ours.
    pub labelled: bool,
}

/// A claim that an object needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Needed {
    pub key: Bytes,
    pub kind: ClaimKind,
    /// As a person reads it: `10.96.0.7`, `30080`.
    pub number: String,
    pub owner: Owner,
    /// No range has it.
    pub outside: bool,
}

/// All of one revision.
#[derive(Debug, Default)]
pub(super) struct World {
    pub stored: Vec<Stored>,
    pub needed: Vec<Needed>,
    /// Every object that can need something.
    pub owners: HashSet<Owner>,
    /// Objects with something that can be nobody's claim.
    pub unreadable: Vec<(Owner, String)>,
    /// The node ports there are, inclusive.
    pub ports: (u16, u16),
}

/// Claims without an object, and when that was first seen.
pub(super) type Suspects = BTreeMap<(Bytes, u64), Instant>;

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum About {
    Service(Owner),
    Address(String),
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tale {
    pub about: About,
    pub reason: &'static str,
    pub action: &'static str,
    pub note: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Claims nobody needs.
    pub free: Vec<(Bytes, u64)>,
    /// Claims that should be another's, by the revision they have.
    pub replace: Vec<(u64, Needed)>,
    /// Claims that should exist.
    pub create: Vec<Needed>,
    pub tales: BTreeSet<Tale>,
    pub suspects: Suspects,
}

/// Compares what is stored with what is needed.
pub(super) fn plan(world: &World, suspects: &Suspects, now: Instant) -> Plan {
    let mut plan = Plan::default();
    let holders: HashMap<&Bytes, &Stored> = world.stored.iter().map(|claim| (&claim.key, claim)).collect();
    let all: HashSet<(&Bytes, &Owner)> = world.needed.iter().map(|need| (&need.key, &need.owner)).collect();
    for (owner, number) in &world.unreadable {
        let note = format!("Cluster IP {number} is not a valid IP; please recreate Service");
        plan.tell_service(owner, "ClusterIPNotValid", "ClusterIPValidation", note);
    }
    // Who gets a claim that nobody has, or that its holder does not need.
    let mut first: HashMap<&Bytes, &Needed> = HashMap::new();
    for need in &world.needed {
        if need.outside {
            plan.tell_outside(need, world.ports);
            continue;
        }
        let holder = holders.get(&need.key).copied();
        match holder.map(|claim| &claim.parent) {
            Some(Parent::Service(owner)) if *owner == need.owner => {
                if let Some(claim) = holder.filter(|claim| !claim.labelled) {
                    plan.replace.push((claim.revision, need.clone()));
                }
            }
            Some(Parent::Service(owner)) if all.contains(&(&need.key, owner)) => plan.tell_clash(need),
            _ => match first.get(&need.key) {
                Some(other) if other.owner != need.owner => plan.tell_clash(need),
                Some(_) => {}
                None => {
                    first.insert(&need.key, need);
                    match holder {
                        None => {
                            plan.tell_lost(need);
                            plan.create.push(need.clone());
                        }
                        Some(Stored { parent: Parent::Other(_), revision, .. }) => {
                            plan.tell_wrong(need);
                            plan.replace.push((*revision, need.clone()));
                        }
                        // Its owner may be about to be written: below.
                        Some(_) => {}
                    }
                }
            },
        }
    }
    for claim in world.stored.iter().filter(|claim| claim.ours) {
        let owner = match &claim.parent {
            Parent::Service(owner) if all.contains(&(&claim.key, owner)) => continue,
            Parent::Service(owner) => owner,
            Parent::Other(_) if first.contains_key(&claim.key) => continue,
            Parent::Other(shown) => {
                let note = format!(
                    "IPAddress {} appears to have been modified, not referencing a Service {shown}: cleaning up",
                    claim.number()
                );
                plan.tell_address(claim, "IPAddressNotAllocated", note);
                plan.free.push((claim.key.clone(), claim.revision));
                continue;
            }
        };
        let id = (claim.key.clone(), claim.revision);
        let since = suspects.get(&id).copied().unwrap_or(now);
        if now.since(since) < GRACE {
            plan.suspects.insert(id, since);
            continue;
        }
        if let Some(need) = first.get(&claim.key) {
            plan.tell_wrong(need);
            plan.replace.push((claim.revision, (*need).clone()));
            continue;
        }
        let of = format!("IPAddress: {} for Service {}/{}", claim.number(), owner.namespace, owner.name);
        if world.owners.contains(owner) {
            let note = format!("{of} has a wrong reference; cleaning up");
            plan.tell_address(claim, "IPAddressWrongReference", note);
        } else {
            plan.tell_address(claim, "IPAddressNotAllocated", format!("{of} appears to have leaked: cleaning up"));
        }
        plan.free.push(id);
    }
    plan
}

fn family(number: &str) -> &'static str {
    if number.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) { "IPv6" } else { "IPv4" }
}

impl Stored {
    fn number(&self) -> String {
        let key = String::from_utf8_lossy(&self.key);
        key.rsplit('/').next().unwrap_or_default().to_owned()
    }
}

impl Plan {
    fn tell_service(&mut self, owner: &Owner, reason: &'static str, action: &'static str, note: String) {
        self.tales.insert(Tale { about: About::Service(owner.clone()), reason, action, note });
    }

    /// Ports have no objects that events could be about.
    fn tell_address(&mut self, claim: &Stored, reason: &'static str, note: String) {
        if claim.key.starts_with(super::ADDRESSES.as_bytes()) {
            let about = About::Address(claim.number());
            self.tales.insert(Tale { about, reason, action: "IPAddressAllocation", note });
        }
    }

    /// Tells the owner of `need` in the words for an address, or in those for a port.
    fn tell(&mut self, need: &Needed, address: (&'static str, String), port: (&'static str, String)) {
        let ((reason, note), action) = match need.kind {
            ClaimKind::ClusterIp { .. } => (address, "ClusterIPAllocation"),
            ClaimKind::NodePort { .. } => (port, "PortAllocation"),
        };
        self.tell_service(&need.owner, reason, action, note);
    }

    fn tell_outside(&mut self, need: &Needed, (low, high): (u16, u16)) {
        let Needed { number, .. } = need;
        let address = format!(
            "Cluster IP [{}]: {number} is not within any configured Service CIDR; please recreate service",
            family(number)
        );
        let port = format!("Port {number} is not within the port range {low}-{high}; please recreate service");
        self.tell(need, ("ClusterIPOutOfRange", address), ("PortOutOfRange", port));
    }

    fn tell_lost(&mut self, need: &Needed) {
        let Needed { number, .. } = need;
        let address = format!("Cluster IP [{}]: {number} is not allocated; repairing", family(number));
        let port = format!("Port {number} is not allocated; repairing");
        self.tell(need, ("ClusterIPNotAllocated", address), ("PortNotAllocated", port));
    }

    fn tell_wrong(&mut self, need: &Needed) {
        let Needed { number, owner, .. } = need;
        let address = format!(
            "the ClusterIP [{}]: {number} for Service {}/{} has a wrong reference; repairing",
            family(number),
            owner.namespace,
            owner.name
        );
        let port = format!("Port {number} is not allocated; repairing");
        self.tell(need, ("ClusterIPNotAllocated", address), ("PortNotAllocated", port));
    }

    fn tell_clash(&mut self, need: &Needed) {
        let Needed { number, .. } = need;
        let address = format!(
            "Cluster IP [{}]:{number} was assigned to multiple services; please recreate service",
            family(number)
        );
        let port = format!("Port {number} was assigned to multiple services; please recreate service");
        self.tell(need, ("ClusterIPAlreadyAllocated", address), ("PortAlreadyAllocated", port));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant(Duration::from_secs(seconds))
    }

    fn owner(name: &str) -> Owner {
        Owner { namespace: "default".into(), name: name.into() }
    }

    fn key(number: &str) -> Bytes {
        let prefix = if number.contains(['.', ':']) { super::super::ADDRESSES } else { super::super::PORTS };
        format!("{prefix}{number}").into()
    }

    /// `10.0.0.1 of a`, `10.0.0.1 other`; then `foreign` and `unlabelled`.
    fn stored(text: &str) -> Stored {
        let words: Vec<&str> = text.split(' ').collect();
        let parent = match words[1] {
            "of" => Parent::Service(owner(words[2])),
            other => Parent::Other(format!("&{other}")),
        };
        let (ours, labelled) = (!text.contains("foreign"), !text.contains("foreign") && !text.contains("unlabelled"));
        Stored { key: key(words[0]), revision: 1, parent, ours, labelled }
    }

    /// `10.0.0.1 by a`, then `outside`.
    fn needed(text: &str) -> Needed {
        let words: Vec<&str> = text.split(' ').collect();
        let kind = match words[0].contains(['.', ':']) {
            true => ClaimKind::ClusterIp { v6: words[0].contains(':') },
            false => ClaimKind::NodePort { protocol: "TCP" },
        };
        let outside = text.contains("outside");
        Needed { key: key(words[0]), kind, number: words[0].into(), owner: owner(words[2]), outside }
    }

    fn world(claims: &[&str], needs: &[&str]) -> World {
        let needed: Vec<_> = needs.iter().map(|text| needed(text)).collect();
        World {
            stored: claims.iter().map(|text| stored(text)).collect(),
            owners: needed.iter().map(|need| need.owner.clone()).chain([owner("idle")]).collect(),
            needed,
            unreadable: Vec::new(),
            ports: (30000, 32767),
        }
    }

    fn show(plan: &Plan) -> String {
        let mut lines = Vec::new();
        let tail = |key: &[u8]| String::from_utf8_lossy(key).rsplit('/').next().unwrap_or_default().to_owned();
        lines.extend(plan.free.iter().map(|(key, _)| format!("free {}", tail(key))));
        lines.extend(plan.replace.iter().map(|(_, need)| format!("replace {} {}", need.number, need.owner.name)));
        lines.extend(plan.create.iter().map(|need| format!("create {} {}", need.number, need.owner.name)));
        lines.extend(plan.suspects.keys().map(|(key, _)| format!("suspect {}", tail(key))));
        lines.extend(plan.tales.iter().map(|tale| {
            let about = match &tale.about {
                About::Service(owner) => owner.name.clone(),
                About::Address(name) => name.clone(),
            };
            format!("{about}: {} {}: {}", tale.reason, tale.action, tale.note)
        }));
        lines.join("\n")
    }

    #[test]
    fn what_is_found_is_told_and_mended() {
        for (claims, needs, want) in [
            (vec!["1.0.0.1 of a", "30001 of a"], vec!["1.0.0.1 by a", "30001 by a"], ""),
            (
                vec![],
                vec!["1.0.0.1 by a", "fd00::1 by a", "30001 by b"],
                "create 1.0.0.1 a\ncreate fd00::1 a\ncreate 30001 b\n\
                 a: ClusterIPNotAllocated ClusterIPAllocation: Cluster IP [IPv4]: 1.0.0.1 is not allocated; repairing\n\
                 a: ClusterIPNotAllocated ClusterIPAllocation: Cluster IP [IPv6]: fd00::1 is not allocated; repairing\n\
                 b: PortNotAllocated PortAllocation: Port 30001 is not allocated; repairing",
            ),
            (
                vec!["1.0.0.1 of b", "30001 of b"],
                vec!["1.0.0.1 by a", "1.0.0.1 by b", "30001 by a", "30001 by b"],
                "a: ClusterIPAlreadyAllocated ClusterIPAllocation: Cluster IP [IPv4]:1.0.0.1 was assigned to multiple \
                 services; please recreate service\n\
                 a: PortAlreadyAllocated PortAllocation: Port 30001 was assigned to multiple services; please recreate \
                 service",
            ),
            (
                vec![],
                vec!["30001 by a", "30001 by b"],
                "create 30001 a\na: PortNotAllocated PortAllocation: Port 30001 is not allocated; repairing\n\
                 b: PortAlreadyAllocated PortAllocation: Port 30001 was assigned to multiple services; please recreate \
                 service",
            ),
            (
                vec!["9.0.0.1 of a"],
                vec!["9.0.0.1 by a outside", "80 by a outside"],
                "a: ClusterIPOutOfRange ClusterIPAllocation: Cluster IP [IPv4]: 9.0.0.1 is not within any configured \
                 Service CIDR; please recreate service\n\
                 a: PortOutOfRange PortAllocation: Port 80 is not within the port range 30000-32767; please recreate \
                 service",
            ),
            (
                vec!["1.0.0.1 gateway", "1.0.0.2 gateway", "1.0.0.3 gateway foreign"],
                vec!["1.0.0.1 by a"],
                "free 1.0.0.2\nreplace 1.0.0.1 a\n\
                 a: ClusterIPNotAllocated ClusterIPAllocation: the ClusterIP [IPv4]: 1.0.0.1 for Service default/a has a \
                 wrong reference; repairing\n\
                 1.0.0.2: IPAddressNotAllocated IPAddressAllocation: IPAddress 1.0.0.2 appears to have been modified, \
                 not referencing a Service &gateway: cleaning up",
            ),
            (vec!["1.0.0.1 of a unlabelled"], vec!["1.0.0.1 by a"], "replace 1.0.0.1 a"),
            (vec!["1.0.0.1 of a foreign"], vec![], ""),
        ] {
            assert_eq!(show(&plan(&world(&claims, &needs), &Suspects::new(), at(100))), want, "{claims:?} {needs:?}");
        }
        let mut broken = world(&[], &[]);
        broken.unreadable.push((owner("a"), "10.0.0".into()));
        let told =
            "a: ClusterIPNotValid ClusterIPValidation: Cluster IP 10.0.0 is not a valid IP; please recreate Service";
        assert_eq!(show(&plan(&broken, &Suspects::new(), at(0))), told);
    }

    #[test]
    fn a_claim_without_an_object_is_freed_after_its_grace() {
        let mut seen = world(&["30001 of a", "1.0.0.1 of a", "1.0.0.2 of idle"], &[]);
        let first = plan(&seen, &Suspects::new(), at(100));
        assert_eq!(show(&first), "suspect 1.0.0.1\nsuspect 1.0.0.2\nsuspect 30001");
        let second = plan(&seen, &first.suspects, at(159));
        assert_eq!((show(&second), &second.suspects), (show(&first), &first.suspects));
        assert_eq!(
            show(&plan(&seen, &second.suspects, at(160))),
            "free 30001\nfree 1.0.0.1\nfree 1.0.0.2\n\
             1.0.0.1: IPAddressNotAllocated IPAddressAllocation: IPAddress: 1.0.0.1 for Service default/a appears to have \
             leaked: cleaning up\n\
             1.0.0.2: IPAddressWrongReference IPAddressAllocation: IPAddress: 1.0.0.2 for Service default/idle has a wrong \
             reference; cleaning up"
        );
        // Taken anew in between: its time begins anew.
        seen.stored.iter_mut().for_each(|claim| claim.revision = 2);
        assert!(plan(&seen, &second.suspects, at(160)).free.is_empty());
    }

    #[test]
    fn a_claim_of_a_dead_owner_becomes_its_successors() {
        let seen = world(&["30001 of dead"], &["30001 by a", "30001 by b"]);
        let found = plan(&seen, &Suspects::new(), at(0));
        let clash = "b: PortAlreadyAllocated PortAllocation: Port 30001 was assigned to multiple services; please recreate \
                     service";
        assert_eq!(show(&found), format!("suspect 30001\n{clash}"));
        assert_eq!(
            show(&plan(&seen, &found.suspects, at(60))),
            format!(
                "replace 30001 a\na: PortNotAllocated PortAllocation: Port 30001 is not allocated; repairing\n{clash}"
            )
        );
    }
}
