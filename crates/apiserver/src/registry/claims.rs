//! Addresses and ports that must be unique in the cluster: taken by compare-and-swap, one object each,
//! and repaired after crashes.
//!
//! ```text
//!  write path: take ─► write the Service ─► release what the old one no longer needs
//!                 └─ failed: give back       (a crash in between leaves a claim without a Service)
//!  repair:     claims without an owner for a minute are freed, owners without a claim get one
//! ```
//!
//! A cluster IP is an IPAddress object, as upstream has it, so that `kubectl get ipaddresses` shows
//! them. A node port is a key of our own; upstream keeps all of them in one bitmap.

mod networks;
mod plan;
mod range;
pub mod repair;
mod tell;
#[cfg(test)]
mod tests;
pub mod wake;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use ipnet::IpNet;
use kinds::kind::ClusterOptions;
use kinds::{Claim, ClaimKind};
use machinery::field::{FieldErrors, Path};
use machinery::status::{self, Status};
use machinery::{encode, time};
use serde_json::{Value, json};
use stdx::{Rng, SharedClock};
use storage::{Entry, Error, Expect, Op, RangeOptions, Store, Urgency};

use networks::Networks;
use range::Range;

use crate::objects::Objects;

const ADDRESSES: &str = "/registry/ipaddresses/";
const PORTS: &str = "/registry/pintle/nodeports/";

/// How many taken numbers are met before all that are taken are looked up.
const PATIENCE: usize = 3;

/// The Service that holds a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub namespace: String,
    pub name: String,
}

/// What was taken; it is to be written into the object, or given back.
#[derive(Debug, Default)]
pub struct Fulfilled {
    values: Vec<(Vec<String>, Value)>,
    taken: Vec<(Bytes, u64)>,
}

impl Fulfilled {
    /// Writes each value where its claim says.
    pub fn write(&self, object: &mut Value) {
        for (pointers, value) in &self.values {
            pointers.iter().for_each(|pointer| write_at(object, pointer, value));
        }
    }
}

/// Sets the value at a JSON pointer; lists that are too short and fields that are missing grow.
fn write_at(object: &mut Value, pointer: &str, value: &Value) {
    let mut at = object;
    for part in pointer.split('/').skip(1) {
        let index = part.parse::<usize>().ok();
        if at.is_null() {
            *at = if index.is_some() { json!([]) } else { json!({}) };
        }
        at = match at {
            Value::Array(list) => {
                let index = index.unwrap_or(list.len()).min(list.len());
                if index == list.len() {
                    list.push(Value::Null);
                }
                &mut list[index]
            }
            Value::Object(map) => map.entry(part).or_insert(Value::Null),
            // A scalar in the way: validation will say so.
            _ => return,
        };
    }
    *at = value.clone();
}

/// Why one claim cannot be had.
enum Refusal {
    /// The user's mistake: 422 at the claim's field.
    Invalid(String),
    /// Nothing is left, or the store failed.
    Status(Box<Status>),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Status(Status::internal(error))
    }
}

/// One request under way.
struct Taking<'a> {
    owner: &'a Owner,
    dry_run: bool,
    /// Keys taken by this request, or that a dry run would have taken.
    mine: HashSet<Bytes>,
    fulfilled: Fulfilled,
}

/// The claims of the cluster.
pub struct Claims {
    store: Arc<dyn Store>,
    clock: SharedClock,
    rng: Rng,
    networks: Networks,
    ports: (u16, u16),
}

impl Claims {
    /// Claims kept in `store`, out of the ranges that `options` names and those that `objects` adds.
    pub fn new(
        store: Arc<dyn Store>,
        objects: Arc<dyn Objects>,
        clock: SharedClock,
        rng: Rng,
        options: &ClusterOptions,
    ) -> Self {
        let networks = Networks::new(options.service_cidrs.clone(), objects);
        Self { store, clock, rng, networks, ports: options.node_ports }
    }

    /// Takes all claims for `owner`, or none. What the user asked for comes first, so that the
    /// server's own choices do not get in its way. A dry run takes nothing. `object` is what the user
    /// wrote, for the messages.
    pub async fn take(
        &self,
        owner: &Owner,
        claims: &[Claim],
        object: &Value,
        dry_run: bool,
    ) -> status::Result<Fulfilled> {
        let mut taking = Taking { owner, dry_run, mine: HashSet::new(), fulfilled: Fulfilled::default() };
        let (asked, open): (Vec<_>, Vec<_>) = claims.iter().partition(|claim| claim.wanted.is_some());
        for claim in asked.into_iter().chain(open) {
            let found = match &claim.wanted {
                Some(wanted) => self.take_wanted(&mut taking, claim, wanted).await,
                None => self.take_any(&mut taking, claim).await,
            };
            match found {
                Ok(value) => {
                    let pointers = [&claim.pointer].into_iter().chain(&claim.also).cloned().collect();
                    taking.fulfilled.values.push((pointers, value));
                }
                Err(refusal) => {
                    self.give_back(taking.fulfilled).await;
                    return Err(match refusal {
                        Refusal::Invalid(why) => invalid(owner, claim, object, why),
                        Refusal::Status(status) => status,
                    });
                }
            }
        }
        Ok(taking.fulfilled)
    }

    /// Frees what was taken for a write that did not happen.
    pub async fn give_back(&self, fulfilled: Fulfilled) {
        for (key, revision) in fulfilled.taken {
            self.free(key, revision).await;
        }
    }

    /// Frees claims that a written object no longer needs, or that a deleted one held.
    pub async fn release(&self, owner: &Owner, claims: &[Claim]) {
        for claim in claims {
            let Some(key) = claim.wanted.as_deref().and_then(|wanted| key(&claim.kind, wanted)) else { continue };
            match self.store.get(&key).await {
                Ok(Some(entry)) if owner_of(&entry).as_ref() == Some(owner) => {
                    self.free(key, entry.mod_revision).await;
                }
                // Already free, or somebody else's by now.
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, ?key, "a claim was not released; the repair will do it"),
            }
        }
    }

    async fn free(&self, key: Bytes, revision: u64) {
        let op = Op::Delete { key: key.clone(), expect: Expect::At(revision) };
        match self.store.commit(op).await {
            Ok(_) | Err(Error::Conflict { .. }) => {}
            Err(error) => tracing::warn!(%error, ?key, "a claim was not released; the repair will do it"),
        }
    }

    async fn take_wanted(&self, taking: &mut Taking<'_>, claim: &Claim, wanted: &str) -> Result<Value, Refusal> {
        let value = match claim.kind {
            ClaimKind::ClusterIp { v6 } => {
                let refuse = |why: String| Refusal::Invalid(format!("failed to allocate IP {wanted}: {why}"));
                let networks = self.networks(v6).await?;
                let address = wanted.parse::<IpAddr>().ok().filter(|address| address.is_ipv6() == v6);
                let of = address.and_then(|address| networks.iter().find(|network| network.contains(&address)));
                let (Some(address), Some(network)) = (address, of) else {
                    return Err(refuse("the provided network does not match the current range".into()));
                };
                if !Range::of_network(network).contains(range::number(address)) {
                    return Err(refuse(format!(
                        "the provided IP ({wanted}) is not in the valid range. The range of valid IPs is {network}"
                    )));
                }
                json!(wanted)
            }
            ClaimKind::NodePort { .. } => {
                let number = wanted.parse::<u16>().ok().filter(|n| Range::of_ports(self.ports).contains((*n).into()));
                let Some(number) = number else {
                    let (first, last) = self.ports;
                    return Err(Refusal::Invalid(format!(
                        "provided port is not in the valid range. The range of valid ports is {first}-{last}"
                    )));
                };
                json!(number)
            }
        };
        let Some(key) = key(&claim.kind, wanted) else {
            return Err(Refusal::Invalid("it cannot be claimed".into()));
        };
        // The same number twice in one object is one claim.
        if taking.mine.contains(&key) || self.try_take(taking, claim, key).await? {
            return Ok(value);
        }
        Err(Refusal::Invalid(match claim.kind {
            ClaimKind::ClusterIp { .. } => format!("failed to allocate IP {wanted}: provided IP is already allocated"),
            ClaimKind::NodePort { .. } => "provided port is already allocated".into(),
        }))
    }

    async fn take_any(&self, taking: &mut Taking<'_>, claim: &Claim) -> Result<Value, Refusal> {
        let ranges = match claim.kind {
            ClaimKind::ClusterIp { v6 } => self.networks(v6).await?.iter().map(Range::of_network).collect(),
            ClaimKind::NodePort { .. } => vec![Range::of_ports(self.ports)],
        };
        let mut met = 0;
        let mut taken: Option<HashSet<Bytes>> = None;
        // The next range is for when the one before is full.
        let random = self.rng.below(u64::MAX);
        for number in ranges.into_iter().flat_map(|range| range.order(random)) {
            let (text, value) = match claim.kind {
                ClaimKind::ClusterIp { v6 } => {
                    let text = range::address(number, v6).to_string();
                    (text.clone(), json!(text))
                }
                ClaimKind::NodePort { .. } => (number.to_string(), json!(number as u64)),
            };
            let Some(key) = key(&claim.kind, &text) else { continue };
            if taking.mine.contains(&key) || taken.as_ref().is_some_and(|taken| taken.contains(&key)) {
                continue;
            }
            if self.try_take(taking, claim, key).await? {
                return Ok(value);
            }
            met += 1;
            if met == PATIENCE {
                taken = Some(self.all_taken(&claim.kind).await?);
            }
        }
        Err(Refusal::Status(Status::internal(match claim.kind {
            ClaimKind::ClusterIp { .. } => {
                format!("failed to allocate a serviceIP for Service \"{}\": range is full", taking.owner.name)
            }
            ClaimKind::NodePort { .. } => "failed to allocate a nodePort: range is full".into(),
        })))
    }

    /// Takes one key if it is free.
    async fn try_take(&self, taking: &mut Taking<'_>, claim: &Claim, key: Bytes) -> Result<bool, Refusal> {
        if taking.dry_run {
            let free = self.store.get(&key).await?.is_none();
            return Ok(free && taking.mine.insert(key));
        }
        match self.create(taking.owner, &claim.kind, key.clone()).await {
            Ok(revision) => {
                taking.fulfilled.taken.push((key.clone(), revision));
                taking.mine.insert(key);
                Ok(true)
            }
            Err(Error::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn create(&self, owner: &Owner, kind: &ClaimKind, key: Bytes) -> Result<u64, Error> {
        let value = self.value(owner, kind, &key).into();
        let op = Op::Put { key, value, expect: Expect::Absent, urgency: Urgency::Now };
        Ok(self.store.commit(op).await?.revision)
    }

    /// What is stored for a claim.
    fn value(&self, owner: &Owner, kind: &ClaimKind, key: &[u8]) -> Vec<u8> {
        match kind {
            ClaimKind::ClusterIp { .. } => self.address_object(owner, key),
            ClaimKind::NodePort { .. } => {
                json!({"namespace": owner.namespace, "name": owner.name}).to_string().into_bytes()
            }
        }
    }

    fn address_object(&self, owner: &Owner, key: &[u8]) -> Vec<u8> {
        let name = String::from_utf8_lossy(&key[ADDRESSES.len()..]);
        let v6 = name.contains(':');
        let object = json!({
            "kind": "IPAddress",
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {
                "name": name,
                "uid": self.rng.uuid(),
                "creationTimestamp": time::rfc3339(self.clock.wall()),
                "labels": {
                    "ipaddress.kubernetes.io/ip-family": if v6 { "IPv6" } else { "IPv4" },
                    "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
                },
            },
            "spec": {
                "parentRef": {"resource": "services", "namespace": owner.namespace, "name": owner.name},
            },
        });
        match api::schema::of("networking.k8s.io", "v1", "IPAddress") {
            Some(schema) => encode::json(&object, &schema),
            None => object.to_string().into_bytes(),
        }
    }

    async fn all_taken(&self, kind: &ClaimKind) -> Result<HashSet<Bytes>, Error> {
        let prefix = match kind {
            ClaimKind::ClusterIp { .. } => ADDRESSES,
            ClaimKind::NodePort { .. } => PORTS,
        };
        let page = self.store.range(prefix.as_bytes(), RangeOptions::default()).await?;
        Ok(page.entries.into_iter().map(|entry| entry.key).collect())
    }

    /// The ranges of a family, at least one.
    async fn networks(&self, v6: bool) -> Result<Vec<IpNet>, Refusal> {
        let found = self.networks.of(v6).await.map_err(Refusal::Status)?;
        let family = if v6 { "IPv6" } else { "IPv4" };
        if found.is_empty() {
            return Err(Refusal::Invalid(format!("{family} is not configured on this cluster")));
        }
        Ok(found)
    }
}

/// The key of a claim; `None` for what is no address or port.
fn key(kind: &ClaimKind, wanted: &str) -> Option<Bytes> {
    let key = match kind {
        // The canonical form: two ways to write one address are one claim.
        ClaimKind::ClusterIp { .. } => format!("{ADDRESSES}{}", wanted.parse::<IpAddr>().ok()?),
        ClaimKind::NodePort { .. } => format!("{PORTS}{}", wanted.parse::<u16>().ok()?),
    };
    Some(key.into())
}

/// Whom a stored claim names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Parent {
    Service(Owner),
    /// Something else, as it is shown.
    Other(String),
}

fn parent_of(entry: &Entry) -> Parent {
    let value: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
    let is_port = entry.key.starts_with(PORTS.as_bytes());
    let parent = if is_port { &value } else { &value["spec"]["parentRef"] };
    let text = |field: &str| parent[field].as_str().unwrap_or_default();
    let (group, resource, namespace, name) = (text("group"), text("resource"), text("namespace"), text("name"));
    if is_port || (resource == "services" && group.is_empty()) {
        return Parent::Service(Owner { namespace: namespace.to_owned(), name: name.to_owned() });
    }
    let shown = format!("&ParentReference{{Group:{group},Resource:{resource},Namespace:{namespace},Name:{name},}}");
    Parent::Other(shown)
}

/// Whose a stored claim is, when it is a Service's.
fn owner_of(entry: &Entry) -> Option<Owner> {
    match parent_of(entry) {
        Parent::Service(owner) => Some(owner),
        Parent::Other(_) => None,
    }
}

/// The 422 for a claim the user asked for. It shows what the user wrote at the field.
fn invalid(owner: &Owner, claim: &Claim, object: &Value, why: String) -> Box<Status> {
    let shown = match claim.kind {
        ClaimKind::ClusterIp { .. } => object.pointer("/spec/clusterIPs").filter(|list| list.is_array()).cloned(),
        ClaimKind::NodePort { .. } => claim.wanted.as_ref().and_then(|w| w.parse::<i64>().ok()).map(Value::from),
    };
    let shown = shown.unwrap_or_else(|| json!(claim.wanted));
    let mut errors = FieldErrors::new();
    errors.invalid(&Path::new(claim.field.clone()), shown, why);
    Status::invalid("", "Service", &owner.name, &errors)
}
