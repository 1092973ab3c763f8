//! Leases: a node's sign of life, and who leads among several of one component.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use stdx::backoff::Policy;
use stdx::clock::Instant;
use stdx::{ClockExt, Rng, SharedClock};

use crate::api::Api;
use crate::client::Client;
use crate::error::Result;
use crate::object::Key;

const RETRY: Policy = Policy { initial: Duration::from_millis(200), max: Duration::from_secs(7) };

/// Keeps a Lease fresh for as long as the future runs: `kube-node-lease/<node>`, 40 s, every 10 s.
pub struct Renewal {
    pub client: Client,
    pub key: Key,
    pub holder: String,
    pub duration: Duration,
    pub every: Duration,
    pub owner: Option<OwnerReference>,
    pub clock: SharedClock,
    pub rng: Rng,
}

impl Renewal {
    /// The Lease of a node, with upstream's times.
    pub fn node(client: Client, node: &str, owner: Option<OwnerReference>, clock: SharedClock, rng: Rng) -> Self {
        Self {
            client,
            key: Key::new("kube-node-lease", node),
            holder: node.to_owned(),
            duration: Duration::from_secs(40),
            every: Duration::from_secs(10),
            owner,
            clock,
            rng,
        }
    }

    /// Renews until dropped. A failed renewal is tried again sooner than the next is due.
    pub async fn run(self) {
        let mut known: Option<Lease> = None;
        let mut failures = 0;
        loop {
            match self.renew(known.take()).await {
                Ok(lease) => {
                    known = Some(lease);
                    failures = 0;
                    // A little early by chance, so that nodes started together drift apart.
                    self.clock.sleep(self.every.mul_f64(1.0 - 0.04 * self.rng.unit())).await;
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(lease = %self.key, %error, "lease not renewed; trying again");
                    self.clock.sleep(RETRY.delay(failures)).await;
                }
            }
        }
    }

    /// One renewal, from the Lease as it was last seen.
    pub async fn renew(&self, known: Option<Lease>) -> Result<Lease> {
        let api = self.client.api::<Lease>().namespace(&self.key.namespace);
        let mut lease = match known {
            Some(lease) => lease,
            None => match api.find(&self.key.name).await? {
                Some(lease) => lease,
                None => return api.create(&self.fresh()).await,
            },
        };
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(self.holder.clone());
        spec.lease_duration_seconds = Some(seconds(self.duration));
        spec.renew_time = Some(MicroTime(self.clock.wall()));
        if let Some(owner) = &self.owner {
            // Another uid is that of an owner that is gone: the Lease would be collected with it.
            let owners = lease.metadata.owner_references.get_or_insert_default();
            if !owners.iter().any(|o| o.uid == owner.uid) {
                *owners = vec![owner.clone()];
            }
        }
        api.update(&lease).await
    }

    fn fresh(&self) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(self.key.name.clone()),
                namespace: Some(self.key.namespace.clone()),
                owner_references: self.owner.clone().map(|o| vec![o]),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.holder.clone()),
                lease_duration_seconds: Some(seconds(self.duration)),
                renew_time: Some(MicroTime(self.clock.wall())),
                ..LeaseSpec::default()
            }),
        }
    }
}

fn seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)
}

/// Leader election over a Lease, with upstream's times.
pub struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    clock: SharedClock,
    rng: Rng,
    times: Times,
    /// The record as last seen, and when it was seen to change: expiry is judged by our own
    /// monotonic clock, never by comparing wall clocks of two machines.
    seen: Option<(LeaseSpec, Instant)>,
}

/// The times of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// A leader that has not renewed for this long may be replaced.
    pub lease: Duration,
    /// A leader that could not renew for this long gives up.
    pub renew: Duration,
    pub retry: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self { lease: s(15), renew: s(10), retry: s(2) }
    }
}

impl Election {
    /// An election for `namespace/name`; `identity` must be unique among the candidates.
    pub fn new(client: &Client, key: &Key, identity: String, times: Times, clock: SharedClock, rng: Rng) -> Self {
        let api = client.api::<Lease>().namespace(&key.namespace);
        Self { api, name: key.name.clone(), identity, clock, rng, times, seen: None }
    }

    /// Ends when this candidate leads.
    pub async fn acquire(&mut self) {
        loop {
            match self.attempt().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(lease = self.name, %error, "leader election"),
            }
            // Jitter of 1.2, as upstream.
            self.clock.sleep(self.times.retry.mul_f64(1.0 + 1.2 * self.rng.unit())).await;
        }
    }

    /// Renews; ends when this candidate no longer leads, which must end what it leads.
    pub async fn keep(&mut self) {
        let mut renewed = self.clock.now();
        loop {
            self.clock.sleep(self.times.retry).await;
            let left = (renewed + self.times.renew).since(self.clock.now());
            let clock = self.clock.clone();
            match clock.timeout(left, self.attempt()).await {
                Ok(Ok(true)) => renewed = self.clock.now(),
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(lease = self.name, %error, "leadership not renewed"),
                Err(_) => return,
            }
            if self.clock.now().since(renewed) >= self.times.renew {
                return;
            }
        }
    }

    /// Gives the leadership up, so that another candidate need not wait.
    pub async fn release(&mut self) -> Result<()> {
        let Some(mut lease) = self.api.find(&self.name).await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(self.clock.wall()));
        self.api.update(&lease).await.map(drop)
    }

    /// One try; true when this candidate leads now.
    pub async fn attempt(&mut self) -> Result<bool> {
        let now = self.clock.now();
        let Some(mut lease) = self.api.find(&self.name).await? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.taken(&LeaseSpec::default())) };
            return self.won(self.api.create(&lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(old, _)| *old != spec) {
            self.seen = Some((spec.clone(), now));
        }
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let held_for = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs);
        let held_for = held_for.unwrap_or(self.times.lease);
        let since = self.seen.as_ref().map_or(now, |(_, at)| *at);
        if !holder.is_empty() && holder != self.identity && now.since(since) < held_for {
            return Ok(false);
        }
        lease.spec = Some(self.taken(&spec));
        self.won(self.api.update(&lease).await)
    }

    fn won(&mut self, written: Result<Lease>) -> Result<bool> {
        match written {
            Ok(lease) => {
                self.seen = Some((lease.spec.unwrap_or_default(), self.clock.now()));
                Ok(true)
            }
            Err(error) if error.is_conflict() || error.is_already_exists() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn taken(&self, old: &LeaseSpec) -> LeaseSpec {
        let now = MicroTime(self.clock.wall());
        let is_mine = old.holder_identity.as_deref() == Some(&self.identity);
        let transitions = old.lease_transitions.unwrap_or(0);
        let is_change = !is_mine && old.holder_identity.is_some();
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(seconds(self.times.lease)),
            acquire_time: if is_mine { old.acquire_time.clone() } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(if is_change { transitions.saturating_add(1) } else { transitions }),
            ..old.clone()
        }
    }
}

#[cfg(test)]
mod tests;
