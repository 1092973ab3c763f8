//! The cluster of a simulation: its parts, each of which can be killed and started again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apiserver::cacher::Limits;
use apiserver::{ApiServer, Config, authn};
use client::{Client, Resource};
use controllers::Identities;
use jiff::Timestamp;
use k8s_openapi::api::{apps, core, discovery};
use kinds::User;
use kinds::kind::ClusterOptions;
use parking_lot::Mutex;
use stdx::clock::{Clock, ClockExt, ManualClock};
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use storage::Store;
use tokio_util::sync::CancellationToken;

use super::faults::{Door, Link, Network, Rates};
use super::kubelet::{self, Machine};
use super::observer::{Observer, Scope};
use super::recorder::{Pace, Recorded, Recorder};
use super::trace::Trace;

/// A part that can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Server,
    Controllers,
    Scheduler,
    Kubelet(usize),
}

/// One life of a part.
struct Life {
    stage: Stage,
    killed: CancellationToken,
}

/// See the module.
pub struct World {
    pub clock: ManualClock,
    pub shared: SharedClock,
    pub rng: Rng,
    pub trace: Arc<Trace>,
    pub network: Arc<Network>,
    pub recorder: Arc<Recorder>,
    pub machines: Vec<Arc<Machine>>,
    store: Arc<storage::Memory>,
    pace: Pace,
    token_key: Arc<pki::SigningKey>,
    lives: Mutex<BTreeMap<Part, Life>>,
    observers: Mutex<Vec<(Scope, Arc<AtomicU64>)>>,
    /// Of what lives as long as the world.
    pub stage: Stage,
}

/// The time every world begins.
const BEGIN: &str = "2026-01-01T00:00:00Z";

fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..User::default() }
}

/// The identities of the controllers, over links of one life.
struct Controllers {
    world: Arc<World>,
    killed: CancellationToken,
}

impl Identities for Controllers {
    fn component(&self) -> Client {
        let user = user("system:kube-controller-manager", &[]);
        self.world.client("controllers", user, &self.killed)
    }

    fn service_account(&self, name: &str) -> Client {
        let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system"];
        let user = user(&format!("system:serviceaccount:kube-system:{name}"), &groups);
        self.world.client(name, user, &self.killed)
    }
}

impl World {
    /// A world in which nothing runs yet.
    ///
    /// # Errors
    /// When the keys of the API server cannot be made.
    pub fn new(seed: u64, loud: bool) -> anyhow::Result<Arc<Self>> {
        let clock = ManualClock::new(BEGIN.parse::<Timestamp>()?);
        let shared: SharedClock = Arc::new(clock.clone());
        let rng = Rng::seeded(seed);
        let trace = Arc::new(Trace::new(clock.clone(), loud));
        let rates = Mutex::new(Rates::default());
        let network = Network { clock: clock.clone(), trace: trace.clone(), door: Door::default(), rates };
        let network = Arc::new(network);
        let recorder = Arc::new(Recorder::new(clock.clone(), trace.clone()));
        let (dice, rates) = (Rng::seeded(seed ^ 0x5704e), network.clone());
        // Commits take time only while anything goes wrong: a calm world is a quick one.
        let pace: Pace = Arc::new(move || {
            let is_slow = rates.rates.lock().slow > 0 && dice.below(20) == 0;
            if is_slow { Duration::from_micros(dice.below(300_000)) } else { Duration::ZERO }
        });
        let store = Arc::new(storage::Memory::new(shared.clone()));
        let machines = (0..3).map(|i| Arc::new(Machine::new(i, ["2", "1", "1500m"][i], 12))).collect();
        let key = pki::SigningKey::from_pem(&pki::SigningKey::generate()?)?;
        Ok(Arc::new(Self {
            clock,
            shared,
            rng,
            trace,
            network,
            recorder,
            machines,
            store,
            pace,
            token_key: Arc::new(key),
            lives: Mutex::default(),
            observers: Mutex::default(),
            stage: Stage::new(),
        }))
    }

    fn new_rng(&self) -> Rng {
        Rng::seeded(self.rng.below(u64::MAX))
    }

    fn client(&self, name: &str, user: User, killed: &CancellationToken) -> Client {
        let link = Link {
            network: self.network.clone(),
            name: name.to_owned(),
            user,
            rng: self.new_rng(),
            killed: killed.clone(),
            faulty: true,
        };
        Client::new(Arc::new(link), name)
    }

    /// A user who may do everything and whose requests get through.
    pub fn admin(&self) -> Client {
        let link = Link {
            network: self.network.clone(),
            name: "user".into(),
            user: user("root", &["system:masters"]),
            rng: self.new_rng(),
            killed: CancellationToken::new(),
            faulty: false,
        };
        Client::new(Arc::new(link), "kubectl")
    }

    /// True while the part runs.
    pub fn is_running(&self, part: Part) -> bool {
        self.lives.lock().contains_key(&part)
    }

    /// Starts a part that does not run.
    pub fn start(self: &Arc<Self>, part: Part) {
        if self.is_running(part) {
            return;
        }
        self.trace.line(format_args!("start {part:?}"));
        let (stage, killed) = (Stage::new(), CancellationToken::new());
        match part {
            Part::Server => self.serve(&stage, &killed),
            Part::Controllers => {
                let identities = Arc::new(Controllers { world: self.clone(), killed: killed.clone() });
                let options =
                    controllers::Options { root_ca_pem: "a bundle".into(), ..controllers::Options::default() };
                controllers::run(identities, self.shared.clone(), self.new_rng(), options, &stage);
            }
            Part::Scheduler => {
                let client = self.client("scheduler", user("system:kube-scheduler", &[]), &killed);
                let (clock, rng, own) = (self.shared.clone(), self.new_rng(), stage.clone());
                let run = async move { scheduler::run(client, clock, rng, scheduler::Options::new("sim"), &own).await };
                stage.spawn(run);
            }
            Part::Kubelet(index) => {
                let machine = self.machines[index].clone();
                let user = user(&format!("system:node:{}", machine.name), &["system:nodes"]);
                let client = self.client(&machine.name, user, &killed);
                kubelet::start(client, machine, self.shared.clone(), self.new_rng(), &stage);
            }
        }
        self.lives.lock().insert(part, Life { stage, killed });
    }

    /// Ends a part at once, wherever it is.
    pub fn kill(&self, part: Part) {
        let Some(life) = self.lives.lock().remove(&part) else { return };
        self.trace.line(format_args!("kill {part:?}"));
        if part == Part::Server {
            *self.network.door.current.lock() = None;
        }
        life.killed.cancel();
        life.stage.stop();
        self.expect_end(part, life.stage);
    }

    /// A part that was told to end does so, with all its tasks.
    fn expect_end(&self, part: Part, stage: Stage) {
        let (clock, trace) = (self.shared.clone(), self.trace.clone());
        self.stage.spawn(async move {
            if !stage.finish(&clock, Duration::from_secs(30)).await {
                trace.broken(format_args!("tasks of {part:?} outlive it"));
            }
        });
    }

    fn serve(self: &Arc<Self>, stage: &Stage, killed: &CancellationToken) {
        let (world, own, gone) = (self.clone(), stage.clone(), killed.clone());
        let rng = self.new_rng();
        stage.spawn(async move {
            let clock = world.shared.clone();
            let memory = Arc::new(storage::Memory::new(clock.clone()));
            let store = Recorded {
                inner: world.store.clone(),
                recorder: Some(world.recorder.clone()),
                clock: world.clock.clone(),
                pace: world.pace.clone(),
                killed: gone.clone(),
            };
            let accounts = authn::service_account::Options::standard("cluster.local", world.token_key.clone());
            let config = Config {
                memory,
                options: ClusterOptions {
                    service_cidrs: vec![ipnet::IpNet::V4(ipnet::Ipv4Net::new_assert([10, 96, 0, 0].into(), 24))],
                    node_ports: (30000, 30063),
                },
                // A short memory, so that watches expire.
                limits: Limits { changes: 60, queue: 64, bookmark: Duration::from_secs(20), ..Limits::default() },
                version: "v1.37.1+pintle.0".into(),
                address: "10.0.0.1:6443".into(),
                ..Config::new(Arc::new(store), clock, rng, accounts)
            };
            let started = tokio::select! {
                biased;
                () = own.stopped() => return,
                started = ApiServer::start(config, &own) => started,
            };
            match started {
                Ok(server) => *world.network.door.current.lock() = Some((server, gone)),
                Err(error) => world.trace.broken(format_args!("the server did not start: {error}")),
            }
        });
    }

    /// Every part of a cluster, for when nothing is to be missing.
    pub fn parts(&self) -> Vec<Part> {
        let kubelets = (0..self.machines.len()).map(Part::Kubelet);
        [Part::Server, Part::Controllers, Part::Scheduler].into_iter().chain(kubelets).collect()
    }

    /// Starts whatever does not run.
    pub fn start_all(self: &Arc<Self>) {
        for part in self.parts() {
            self.start(part);
        }
    }

    /// Ends everything, in order.
    pub async fn stop(&self) {
        let mut lives = std::mem::take(&mut *self.lives.lock());
        let server = lives.remove(&Part::Server);
        for (part, life) in lives {
            if !life.stage.finish(&self.shared, Duration::from_secs(30)).await {
                self.trace.broken(format_args!("tasks of {part:?} do not end when told to"));
            }
        }
        if let Some(life) = server {
            if !life.stage.finish(&self.shared, Duration::from_secs(30)).await {
                self.trace.broken(format_args!("tasks of the server do not end when told to"));
            }
        }
        self.stage.finish(&self.shared, Duration::from_secs(60)).await;
    }

    /// Those who compare what watches say with what was stored.
    pub fn observe(&self) {
        let all = |resource: Resource| Scope { resource, labels: String::new(), node: String::new() };
        let scopes = [
            all(Resource::of::<core::v1::Pod>()),
            Scope { labels: "app=web-0".into(), ..all(Resource::of::<core::v1::Pod>()) },
            Scope { node: "node-1".into(), ..all(Resource::of::<core::v1::Pod>()) },
            all(Resource::of::<apps::v1::Deployment>()),
            all(Resource::of::<apps::v1::ReplicaSet>()),
            all(Resource::of::<core::v1::Service>()),
            all(Resource::of::<discovery::v1::EndpointSlice>()),
            all(Resource::of::<core::v1::Node>()),
            all(Resource::of::<core::v1::Namespace>()),
        ];
        for scope in scopes {
            let reached = Arc::new(AtomicU64::new(0));
            let observer = Observer {
                scope: scope.clone(),
                client: self.client("observer", user("observer", &["system:masters"]), &CancellationToken::new()),
                recorder: self.recorder.clone(),
                trace: self.trace.clone(),
                clock: self.shared.clone(),
                rng: self.new_rng(),
                reached: reached.clone(),
            };
            let stage = self.stage.clone();
            self.stage.spawn(async move {
                tokio::select! {
                    () = observer.run() => {}
                    () = stage.stopped() => {}
                }
            });
            self.observers.lock().push((scope, reached));
        }
    }

    /// What observers have not been told although there was time.
    pub fn unseen(&self) -> Vec<String> {
        let observers = self.observers.lock();
        let behind = observers.iter().filter_map(|(scope, reached)| {
            let at = reached.load(Ordering::SeqCst);
            let missed = Observer::next_after(&self.recorder, scope, at)?;
            Some(format!(
                "the watch of {} {}{} stands at {at} and has not seen {missed}",
                scope.resource, scope.labels, scope.node
            ))
        });
        behind.collect()
    }

    /// Forgets history up to a moment ago.
    pub async fn compact(&self) {
        let revision = self.store.revision().saturating_sub(self.rng.below(30)).max(self.store.compacted());
        self.trace.line(format_args!("compact {revision}"));
        if let Err(error) = self.store.compact(revision).await {
            self.trace.broken(format_args!("compaction to {revision}: {error}"));
        }
    }

    /// Somebody sets the clock on the wall; what runs by a monotonic one must not care.
    pub fn jump(&self) {
        let seconds = match self.rng.below(2) {
            0 => i64::try_from(self.rng.below(7200)).unwrap_or_default(),
            _ => -i64::try_from(self.rng.below(60)).unwrap_or_default(),
        };
        self.trace.line(format_args!("jump {seconds} s"));
        // How long a pod has been ready is no longer told by what is written.
        self.recorder.tell(|safety, objects| safety.disturb_all(objects));
        let to = self.clock.wall().saturating_add(jiff::SignedDuration::from_secs(seconds));
        self.clock.jump_wall(to.unwrap_or(Timestamp::MAX));
    }

    /// Lets time pass.
    pub async fn sleep(&self, time: Duration) {
        self.shared.sleep(time).await;
    }

    /// Lets up to `limit` pass.
    pub async fn sleep_up_to(&self, limit: Duration) {
        self.sleep(limit.mul_f64(self.rng.unit())).await;
    }
}
