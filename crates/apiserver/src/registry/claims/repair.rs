//! What a crash between a claim and its object left behind, and what others changed: planned purely,
//! applied by compare-and-swap, so that several servers may repair at once, and told in events.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use kinds::{AnyKind, ClaimKind};
use serde_json::Value;
use stdx::clock::{ClockExt, Instant};
use stdx::shutdown::Stage;
use storage::{Error, Op, Page, RangeOptions};
use tokio::sync::Notify;
use transport::SharedHandler;

use super::plan::{GRACE, Needed, Stored, Suspects, Tale, World, plan};
use super::{ADDRESSES, Claims, Expect, Owner, PORTS, Urgency, key, parent_of, tell};

/// Between looks while nothing is suspect; claims go wrong only when a server dies or somebody writes
/// an IPAddress by hand, and that wakes.
const CALM: Duration = Duration::from_secs(600);
/// After what may have broken a claim: what else happens in the meantime is looked at with it.
const GATHER: Duration = Duration::from_secs(1);
/// How long what was told is remembered, as an event is.
const TOLD: Duration = Duration::from_secs(3600);

/// The loop that repairs claims.
pub struct Repair {
    pub claims: Arc<Claims>,
    /// The kind whose objects hold claims.
    pub kind: &'static dyn AnyKind,
    /// Where events are written.
    pub door: SharedHandler,
    /// Something happened that may have broken a claim.
    pub touched: Arc<Notify>,
}

/// What is remembered from one look to the next.
#[derive(Default)]
struct Memory {
    suspects: Suspects,
    told: BTreeMap<Tale, Instant>,
}

impl Repair {
    /// Repairs until the stage stops: soon again while something is suspect, else rarely.
    pub async fn run(self, stage: Stage) {
        let mut memory = Memory::default();
        loop {
            match self.once(&mut memory).await {
                Ok(()) => {}
                Err(Error::Closed(_)) => return,
                Err(error) => tracing::warn!(%error, "claims were not repaired"),
            }
            let pause = if memory.suspects.is_empty() { CALM } else { GRACE };
            let clock = &self.claims.clock;
            let next = async {
                tokio::select! {
                    () = clock.sleep(pause) => {}
                    () = self.touched.notified() => clock.sleep(GATHER).await,
                }
            };
            tokio::select! {
                () = stage.stopped() => return,
                () = next => {}
            }
        }
    }

    async fn once(&self, memory: &mut Memory) -> Result<(), Error> {
        let Self { claims, kind, .. } = self;
        let prefix = format!("/registry/{}/", kind.shape().prefix);
        let Ok(ranges) = claims.networks.every().await else {
            // What is in no range cannot be told while it is not known what ranges there are.
            tracing::warn!("ServiceCIDRs cannot be read, so claims are not repaired");
            return Ok(());
        };
        let objects = claims.store.range(prefix.as_bytes(), RangeOptions::default()).await?;
        // All of one revision: what is seen without its other half really is.
        let options = RangeOptions { revision: Some(objects.revision), ..RangeOptions::default() };
        let mut world = World { ports: claims.ports, ..World::default() };
        for prefix in [ADDRESSES, PORTS] {
            let page = claims.store.range(prefix.as_bytes(), options.clone()).await?;
            world.stored.extend(page.entries.iter().map(|entry| stored(entry.key.clone(), entry)));
        }
        if !gather(*kind, &prefix, &objects, &ranges, &mut world) {
            tracing::error!("an object cannot be read, so claims are not repaired: it may hold some");
            return Ok(());
        }
        let now = claims.clock.now();
        let plan = plan(&world, &memory.suspects, now);
        memory.told.retain(|tale, at| now.since(*at) < TOLD && plan.tales.contains(tale));
        for tale in &plan.tales {
            if !memory.told.contains_key(tale) {
                memory.told.insert(tale.clone(), now);
                tell::tell(self, tale, &prefix).await;
            }
        }
        for (key, revision) in plan.free {
            tracing::warn!(?key, "freed a claim that no object holds");
            claims.free(key, revision).await;
        }
        for (revision, need) in plan.replace {
            tracing::warn!(key = ?need.key, owner = ?need.owner, "a claim was another's");
            let value = claims.value(&need.owner, &need.kind, &need.key).into();
            let expect = Expect::At(revision);
            claims.put(Op::Put { key: need.key, value, expect, urgency: Urgency::Now }).await?;
        }
        for Needed { key, kind, owner, .. } in plan.create {
            tracing::warn!(?key, ?owner, "created a claim that was lost");
            let value = claims.value(&owner, &kind, &key).into();
            claims.put(Op::Put { key, value, expect: Expect::Absent, urgency: Urgency::Now }).await?;
        }
        memory.suspects = plan.suspects;
        Ok(())
    }
}

impl Claims {
    /// Somebody who was faster is right as well: the next look shows it.
    async fn put(&self, op: Op) -> Result<(), Error> {
        match self.store.commit(op).await {
            Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn stored(key: bytes::Bytes, entry: &storage::Entry) -> Stored {
    let parent = parent_of(entry);
    let (ours, labelled) = if key.starts_with(PORTS.as_bytes()) {
        (true, true)
    } else {
        let object: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        let label = |name: &str| object["metadata"]["labels"][name].as_str();
        let ours = label("ipaddress.kubernetes.io/managed-by") == Some("ipallocator.k8s.io");
        let family = if key[ADDRESSES.len()..].contains(&b':') { "IPv6" } else { "IPv4" };
        (ours, ours && label("ipaddress.kubernetes.io/ip-family") == Some(family))
    };
    Stored { key, revision: entry.mod_revision, parent, ours, labelled }
}

/// Adds what the stored objects hold; false when one of them cannot be read.
fn gather(kind: &dyn AnyKind, prefix: &str, objects: &Page, ranges: &[IpNet], world: &mut World) -> bool {
    for entry in &objects.entries {
        let Ok(object) = serde_json::from_slice::<Value>(&entry.value) else { return false };
        let path = entry.key.get(prefix.len()..).and_then(|path| std::str::from_utf8(path).ok());
        let (Some(path), Ok(held)) = (path, kind.held(&object)) else { return false };
        let (namespace, name) = path.rsplit_once('/').unwrap_or(("", path));
        let owner = Owner { namespace: namespace.to_owned(), name: name.to_owned() };
        for claim in held {
            let Some(wanted) = claim.wanted else { continue };
            let Some(key) = key(&claim.kind, &wanted) else {
                world.unreadable.push((owner.clone(), wanted));
                continue;
            };
            let prefix = if matches!(claim.kind, ClaimKind::ClusterIp { .. }) { ADDRESSES } else { PORTS };
            let number = String::from_utf8_lossy(&key[prefix.len()..]).into_owned();
            let outside = match claim.kind {
                ClaimKind::ClusterIp { .. } => {
                    number.parse().is_ok_and(|at: IpAddr| !ranges.iter().any(|range| range.contains(&at)))
                }
                ClaimKind::NodePort { .. } => {
                    number.parse::<u16>().is_ok_and(|port| !(world.ports.0..=world.ports.1).contains(&port))
                }
            };
            world.needed.push(Needed { key, kind: claim.kind, number, owner: owner.clone(), outside });
        }
        world.owners.insert(owner);
    }
    true
}
