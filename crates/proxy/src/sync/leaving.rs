//! Endpoints of this node that have left the rules while their pods are about to end, told to the kubelet by a
//! Lease: see [`api::leaving`]. Who still answers somebody has not left, for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::leaving::{LEFT, Left, NAMESPACE, lease, write};
use api::types::coordination::v1 as coordination;
use client::{Api, Client, Error, Key, Resource};
use net::conntrack::Connections;
use serde_json::{Value, json};
use stdx::backoff::Policy;
use stdx::clock::Instant;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};
use tokio::sync::watch;

use super::caches::Leaver;
use crate::options::Options;

/// How long to wait before the Lease is written again after a failure.
const RETRY: Policy = Policy { initial: Duration::from_millis(50), max: Duration::from_secs(10) };
/// How long to wait before connections are looked at again.
const LOOK: Policy = Policy { initial: Duration::from_millis(10), max: Duration::from_millis(200) };
/// Looking takes one part in so many of a processor at most.
const SHARE: u32 = 10;
/// For so long connections that were there may go on; the kubelet waits no longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who is no longer in the rules, and where they answer.
type Gone = BTreeMap<Left, BTreeSet<SocketAddr>>;

/// What the Lease should come to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// The Node's: with it the Lease goes.
    node_uid: String,
    gone: Gone,
}

/// Who has left. It is told when somebody is added: of who has ended nobody asks.
pub(super) struct Leaving {
    /// By Service; of the kernel as it is after the next transaction that goes well.
    seen: BTreeMap<Key, Gone>,
    node_uid: String,
    wanted: watch::Sender<Wanted>,
}

impl Leaving {
    /// Starts the task that writes the Lease, which ends with the stage.
    pub(super) fn start(client: &Client, options: &Options, clock: SharedClock, stage: &Stage) -> Self {
        let (wanted, news) = watch::channel(Wanted::default());
        let mut writer = Writer {
            leases: client.dynamic(Resource::of::<coordination::Lease>()).namespace(NAMESPACE),
            connections: options.connections.clone(),
            clock,
            node: options.node_name.clone(),
            known: None,
            told: BTreeSet::new(),
            since: BTreeMap::new(),
            rests: Instant::default(),
        };
        let stopped = stage.stopped();
        stage.spawn(async move {
            tokio::select! {
                () = writer.run(news) => {}
                () = stopped => {}
            }
        });
        Self { seen: BTreeMap::new(), node_uid: String::new(), wanted }
    }

    /// This node's uid.
    pub(super) fn on(&mut self, node_uid: &str) {
        node_uid.clone_into(&mut self.node_uid);
    }

    /// To whom connections by this Service go no more, once the kernel has its present rules.
    pub(super) fn observe(&mut self, key: &Key, pods: impl Iterator<Item = Leaver>) {
        let mut gone = Gone::new();
        for Leaver { uid, at, .. } in pods {
            let left = Left { namespace: key.namespace.clone(), service: key.name.clone(), uid };
            // One of both families is two endpoints.
            gone.entry(left).or_default().extend(at);
        }
        if gone.is_empty() {
            self.seen.remove(key);
        } else {
            self.seen.insert(key.clone(), gone);
        }
    }

    /// The kernel has the present rules of the Services that `has` says yes to.
    pub(super) fn in_kernel(&mut self, has: impl Fn(&Key) -> bool) {
        let there = self.seen.iter().filter(|(key, _)| has(key)).map(|(_, gone)| gone);
        self.wanted.send_if_modified(|wanted| {
            let is_new = there.clone().flatten().any(|(left, _)| !wanted.gone.contains_key(left));
            if is_new {
                let gone = there.flatten().map(|(left, at)| (left.clone(), at.clone())).collect();
                *wanted = Wanted { node_uid: self.node_uid.clone(), gone };
            }
            is_new
        });
    }
}

/// Those that have left, of those that are gone from the rules; pure.
fn left(gone: &Gone, since: &BTreeMap<Left, Instant>, open: &BTreeSet<SocketAddr>, now: Instant) -> BTreeSet<Left> {
    let is_over = |left: &Left| since.get(left).is_none_or(|at| now.since(*at) >= PATIENCE);
    gone.iter().filter(|(left, at)| at.is_disjoint(open) || is_over(left)).map(|(left, _)| left.clone()).collect()
}

struct Writer {
    leases: Api<Value>,
    connections: Arc<dyn Connections>,
    clock: SharedClock,
    node: String,
    /// The Lease as it was written last.
    known: Option<Value>,
    /// Who it says have left.
    told: BTreeSet<Left>,
    /// When each of those that are gone from the rules was first seen to be.
    since: BTreeMap<Left, Instant>,
    /// Until then connections are not looked at: where there are very many, that takes its time.
    rests: Instant,
}

impl Writer {
    async fn run(&mut self, mut news: watch::Receiver<Wanted>) {
        let (mut looks, mut failures) = (0, 0);
        while news.has_changed().is_ok() {
            let wanted = news.borrow_and_update().clone();
            let left = self.look(&wanted.gone).await;
            let is_new = !left.is_subset(&self.told);
            let pause = match if is_new { self.tell(&wanted.node_uid, left).await } else { Ok(()) } {
                Err(error) => {
                    failures += 1;
                    tracing::debug!(%error, failures, "the kubelet is not told yet which endpoints have left");
                    Some(RETRY.delay(failures))
                }
                Ok(()) => {
                    failures = 0;
                    looks += 1;
                    wanted.gone.keys().any(|gone| !self.told.contains(gone)).then(|| LOOK.delay(looks))
                }
            };
            let changed = async { news.changed().await.is_ok() };
            let pause = async {
                match pause {
                    Some(pause) => self.clock.sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                goes_on = changed => {
                    if !goes_on {
                        return;
                    }
                    looks = 0;
                }
                () = pause => {}
            }
        }
    }

    /// Who has left by now.
    async fn look(&mut self, gone: &Gone) -> BTreeSet<Left> {
        let now = self.clock.now();
        self.since.retain(|left, _| gone.contains_key(left));
        for left in gone.keys() {
            self.since.entry(left.clone()).or_insert(now);
        }
        let asked: BTreeSet<SocketAddr> =
            gone.iter().filter(|(left, _)| !self.told.contains(*left)).flat_map(|(_, at)| at).copied().collect();
        if asked.is_empty() {
            return left(gone, &self.since, &asked, now);
        }
        self.clock.sleep_until(self.rests).await;
        let begun = self.clock.now();
        let open = self.connections.open_tcp(asked).await;
        let done = self.clock.now();
        self.rests = done + done.since(begun) * SHARE;
        let open = open.unwrap_or_else(|error| {
            tracing::warn!(%error, "who still answers somebody cannot be seen");
            BTreeSet::new()
        });
        left(gone, &self.since, &open, self.clock.now())
    }

    async fn tell(&mut self, node_uid: &str, left: BTreeSet<Left>) -> Result<(), Error> {
        let (name, text) = (lease(&self.node), write(left.iter()));
        // After a failure, somebody else's write among them, it is read again.
        let known = match self.known.take() {
            Some(known) => Some(known),
            None => self.leases.find(&name).await?,
        };
        let written = match known {
            Some(mut known) => {
                machinery::meta::set_annotation(&mut known, LEFT, Some(&text));
                self.leases.update(&known).await?
            }
            None => {
                let mut lease = json!({
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": name, "namespace": NAMESPACE, "annotations": {LEFT: text}},
                    "spec": {"holderIdentity": self.node},
                });
                if !node_uid.is_empty() {
                    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": node_uid});
                    lease["metadata"]["ownerReferences"] = json!([owner]);
                }
                self.leases.create(&lease).await?
            }
        };
        (self.known, self.told) = (Some(written), left);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_left() {
        let name = |uid: &str| Left { namespace: "default".into(), service: "web".into(), uid: uid.into() };
        let at = |byte: u8| SocketAddr::from(([10, 244, 0, byte], 80));
        let gone: Gone = (1..=4).map(|i| (name(&i.to_string()), [at(i)].into())).collect();
        let second = |n: u64| Instant(Duration::from_secs(n));
        // The second is busy, the third was for too long, the fourth was never heard of.
        let since = [(name("1"), second(10)), (name("2"), second(10)), (name("3"), second(9))].into();
        let open = [at(2), at(3), at(4), at(5)].into();
        let got: Vec<String> = left(&gone, &since, &open, second(11)).into_iter().map(|left| left.uid).collect();
        assert_eq!(got, ["1", "3", "4"]);
        assert!(left(&Gone::new(), &since, &open, second(11)).is_empty());
    }
}
