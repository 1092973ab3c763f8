//! What a crash between a claim and its object left behind: planned purely, applied by
//! compare-and-swap, so that several servers may repair at once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kinds::{AnyKind, ClaimKind};
use serde_json::Value;
use stdx::clock::{ClockExt, Instant};
use stdx::shutdown::Stage;
use storage::{Error, Page, RangeOptions};

use super::{ADDRESSES, Claims, Owner, PORTS, key, owner_of};

/// How long a claim may be without its object: the time a create may be under way.
const GRACE: Duration = Duration::from_secs(60);

/// Between looks while nothing is suspect; claims go wrong only when a server dies.
const CALM: Duration = Duration::from_secs(600);

/// A claim that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    key: Bytes,
    revision: u64,
    /// `None`: not a Service's, and none of ours.
    owner: Option<Owner>,
}

/// A claim that an object needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Needed {
    key: Bytes,
    kind: ClaimKind,
    owner: Owner,
}

/// Claims without an object, and when that was first seen.
type Suspects = BTreeMap<(Bytes, u64), Instant>;

#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// Claims nobody has needed for [`GRACE`].
    free: Vec<(Bytes, u64)>,
    /// Claims that should exist.
    create: Vec<Needed>,
    /// Two objects need the same: the one who has it not.
    clashes: Vec<(Needed, Owner)>,
    suspects: Suspects,
}

/// Compares what is stored with what is needed, both of one revision.
fn plan(stored: &[Stored], needed: &[Needed], suspects: &Suspects, now: Instant) -> Plan {
    let mut plan = Plan::default();
    let mut first: HashMap<&Bytes, &Needed> = HashMap::new();
    let holder: HashMap<&Bytes, &Stored> = stored.iter().map(|claim| (&claim.key, claim)).collect();
    let all: HashSet<(&Bytes, &Owner)> = needed.iter().map(|need| (&need.key, &need.owner)).collect();
    for need in needed {
        // Who holds it has it; else the first who needs it gets it.
        let owner = match (holder.get(&need.key).and_then(|claim| claim.owner.as_ref()), first.get(&need.key)) {
            (Some(owner), _) if all.contains(&(&need.key, owner)) => Some(owner),
            (_, Some(other)) => Some(&other.owner),
            _ => None,
        };
        match owner {
            Some(owner) if *owner == need.owner => {}
            Some(owner) => plan.clashes.push((need.clone(), owner.clone())),
            None => {
                first.insert(&need.key, need);
                if !holder.contains_key(&need.key) {
                    plan.create.push(need.clone());
                }
            }
        }
    }
    for claim in stored {
        let Some(owner) = &claim.owner else { continue };
        if all.contains(&(&claim.key, owner)) {
            continue;
        }
        let id = (claim.key.clone(), claim.revision);
        let since = suspects.get(&id).copied().unwrap_or(now);
        if now.since(since) >= GRACE {
            plan.free.push(id);
        } else {
            plan.suspects.insert(id, since);
        }
    }
    plan
}

impl Claims {
    /// Repairs until the stage stops: soon again while something is suspect, else rarely. `kind` is
    /// the kind whose objects hold claims.
    pub async fn repair(self: Arc<Self>, kind: &'static dyn AnyKind, stage: Stage) {
        let mut suspects = Suspects::new();
        loop {
            match self.repair_once(kind, &mut suspects).await {
                Ok(()) => {}
                Err(Error::Closed(_)) => return,
                Err(error) => tracing::warn!(%error, "claims were not repaired"),
            }
            let pause = if suspects.is_empty() { CALM } else { GRACE };
            tokio::select! {
                () = stage.stopped() => return,
                () = self.clock.sleep(pause) => {}
            }
        }
    }

    async fn repair_once(&self, kind: &'static dyn AnyKind, suspects: &mut Suspects) -> Result<(), Error> {
        let prefix = format!("/registry/{}/", kind.shape().prefix);
        let objects = self.store.range(prefix.as_bytes(), RangeOptions::default()).await?;
        // All of one revision: what is seen without its other half really is.
        let options = RangeOptions { revision: Some(objects.revision), ..RangeOptions::default() };
        let mut stored = Vec::new();
        for prefix in [ADDRESSES, PORTS] {
            let page = self.store.range(prefix.as_bytes(), options.clone()).await?;
            stored.extend(page.entries.into_iter().map(|entry| Stored {
                owner: owner_of(&entry),
                revision: entry.mod_revision,
                key: entry.key,
            }));
        }
        let Some(needed) = needed(kind, &prefix, &objects) else {
            tracing::error!("an object cannot be read, so claims are not repaired: it may hold some");
            return Ok(());
        };
        let plan = plan(&stored, &needed, suspects, self.clock.now());
        for (key, revision) in plan.free {
            tracing::warn!(?key, "freed a claim that no object holds");
            self.free(key, revision).await;
        }
        for Needed { key, kind, owner } in plan.create {
            tracing::warn!(?key, ?owner, "created a claim that was lost");
            match self.create(&owner, &kind, key).await {
                Ok(_) | Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        for (need, owner) in plan.clashes {
            tracing::error!(key = ?need.key, loser = ?need.owner, ?owner, "two objects hold the same claim");
        }
        *suspects = plan.suspects;
        Ok(())
    }
}

/// What the stored objects hold; `None` when one of them cannot be read.
fn needed(kind: &dyn AnyKind, prefix: &str, objects: &Page) -> Option<Vec<Needed>> {
    let mut needed = Vec::new();
    for entry in &objects.entries {
        let object: Value = serde_json::from_slice(&entry.value).ok()?;
        let path = std::str::from_utf8(entry.key.get(prefix.len()..)?).ok()?;
        let (namespace, name) = path.rsplit_once('/').unwrap_or(("", path));
        let owner = Owner { namespace: namespace.to_owned(), name: name.to_owned() };
        for claim in kind.held(&object).ok()? {
            if let Some(key) = claim.wanted.as_deref().and_then(|wanted| key(&claim.kind, wanted)) {
                needed.push(Needed { key, kind: claim.kind, owner: owner.clone() });
            }
        }
    }
    Some(needed)
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

    fn stored(key: &'static str, owner_name: &str) -> Stored {
        Stored { key: key.into(), revision: 1, owner: Some(owner(owner_name)) }
    }

    fn need(key: &'static str, owner_name: &str) -> Needed {
        Needed { key: key.into(), kind: ClaimKind::NodePort { protocol: "TCP" }, owner: owner(owner_name) }
    }

    #[test]
    fn what_matches_is_left_alone() {
        let found = plan(&[stored("1", "a")], &[need("1", "a")], &Suspects::new(), at(100));
        assert_eq!(found, Plan::default());
        let foreign = Stored { owner: None, ..stored("2", "") };
        assert_eq!(plan(&[foreign], &[], &Suspects::new(), at(100)), Plan::default());
    }

    #[test]
    fn a_claim_without_an_object_is_freed_after_its_grace() {
        let claims = [stored("1", "a")];
        let first = plan(&claims, &[], &Suspects::new(), at(100));
        assert!(first.free.is_empty() && first.suspects.len() == 1);
        let second = plan(&claims, &[], &first.suspects, at(159));
        assert!(second.free.is_empty() && second.suspects == first.suspects);
        let third = plan(&claims, &[], &second.suspects, at(160));
        assert_eq!(third.free, [(Bytes::from("1"), 1)]);
        // Taken anew in between: its time begins anew.
        let again = [Stored { revision: 2, ..stored("1", "a") }];
        assert!(plan(&again, &[], &second.suspects, at(160)).free.is_empty());
    }

    #[test]
    fn a_lost_claim_is_created_once_and_clashes_are_told() {
        let found = plan(&[], &[need("1", "a"), need("1", "b"), need("2", "b")], &Suspects::new(), at(0));
        assert_eq!(found.create, [need("1", "a"), need("2", "b")]);
        assert_eq!(found.clashes, [(need("1", "b"), owner("a"))]);
        // Who holds it keeps it, also when another comes first.
        let found = plan(&[stored("1", "b")], &[need("1", "a"), need("1", "b")], &Suspects::new(), at(0));
        assert_eq!((found.create.len(), found.clashes), (0, vec![(need("1", "a"), owner("b"))]));
    }

    #[test]
    fn a_claim_of_a_dead_owner_is_freed_before_its_successor_gets_it() {
        let (claims, needs) = ([stored("1", "dead")], [need("1", "a")]);
        let found = plan(&claims, &needs, &Suspects::new(), at(0));
        assert!(found.create.is_empty() && found.clashes.is_empty() && found.suspects.len() == 1);
        assert_eq!(plan(&claims, &needs, &found.suspects, at(60)).free.len(), 1);
        assert_eq!(plan(&[], &needs, &Suspects::new(), at(61)).create, needs);
    }
}
