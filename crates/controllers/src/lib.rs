//! The controllers: each a loop that brings the cluster closer to what one kind of object asks for.
//!
//! ```text
//!   API server ──watch──► shared caches (as system:kube-controller-manager)
//!                             │ changes
//!                             ▼
//!        one folder per controller:  mod.rs   what it watches; observe → plan → apply
//!                                    plan.rs  pure: what is → what to do; table tests
//!                             │ writes (each as its own service account)
//!                             ▼
//!                         API server
//! ```
//!
//! A controller is level-triggered: killed at any instruction and started again, it converges,
//! because what it does next depends only on what it reads. After its own writes a key is held back
//! until the caches show them. [`ALL`] lists the controllers; [`run`] starts those that are enabled.
//!
//! # Invariants
//!
//! * A rollout converges whatever the numbers and whatever goes wrong.
//!   [src/deployment/plan/tests.rs: a_rollout_converges_whatever_the_numbers;
//!   ../e2e/tests/simulation.rs: seeds_run_clean]
//! * Plans are pure. [../../xtask/src/laws.rs: deciders_are_pure]
//! * All writes go through one writer. [../../xtask/src/laws.rs:
//!   controllers_write_through_one_writer]

mod claims;
mod context;
mod deployment;
mod disruption;
mod endpoints;
mod endpointslice;
mod garbage_collector;
mod namespace;
mod node_ipam;
mod node_lifecycle;
mod pod_gc;
mod replicaset;
mod root_ca_publisher;
mod service_cidrs;
mod service_lb;
mod service_pods;
mod serviceaccount;
mod storage_protection;
mod templates;
mod unscheduled;
mod views;
mod writer;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use client::{Client, Key, SharedHandler};
use context::Context;
use stdx::metrics::Registry;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};

pub use service_lb::Listening;

/// Where clients come from: caches read as the component, writes are made as service accounts.
pub trait Identities: Send + Sync + 'static {
    /// The client of `system:kube-controller-manager`.
    fn component(&self) -> Client;
    /// The client of `system:serviceaccount:kube-system:<name>`.
    fn service_account(&self, name: &str) -> Client;
}

/// Identities made out of one: tokens of the service accounts are asked for as the component.
#[derive(Clone)]
pub struct TokenIdentities {
    pub component: Client,
    /// The way to the API server that carries no identity.
    pub bare: SharedHandler,
    pub clock: SharedClock,
}

impl Identities for TokenIdentities {
    fn component(&self) -> Client {
        self.component.clone()
    }

    fn service_account(&self, name: &str) -> Client {
        let account = Key::new("kube-system", name);
        Client::as_service_account(self.bare.clone(), self.component.clone(), account, self.clock.clone())
    }
}

/// What can be set about the controllers.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of controllers that do not run.
    pub disabled: BTreeSet<String>,
    /// The bundle published as `kube-root-ca.crt` in every namespace; empty publishes none.
    pub root_ca_pem: String,
    /// Where nodes get their pod ranges from.
    pub cluster_cidrs: Vec<ipnet::IpNet>,
    /// The size of a node's range, per family: IPv4, IPv6.
    pub node_masks: (u8, u8),
    /// Endpoints a slice holds at most.
    pub endpoints_per_slice: usize,
    /// A node that has not shown a sign of life for this long is not known to be ready.
    pub node_grace: Duration,
    /// The same for a node that has never shown one.
    pub node_startup_grace: Duration,
    /// Finished pods that are kept.
    pub finished_pods: usize,
    /// Ports that this host needs for itself: no load balancer gets them.
    pub listening: Option<Listening>,
    /// Where controllers count what they do.
    pub registry: Registry,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            disabled: BTreeSet::new(),
            root_ca_pem: String::new(),
            cluster_cidrs: vec![ipnet::IpNet::V4(ipnet::Ipv4Net::new_assert([10, 244, 0, 0].into(), 16))],
            node_masks: (24, 64),
            endpoints_per_slice: 100,
            node_grace: Duration::from_secs(50),
            node_startup_grace: Duration::from_secs(60),
            finished_pods: 12_500,
            listening: None,
            registry: Registry::default(),
        }
    }
}

/// One controller of the list.
struct Entry {
    name: &'static str,
    start: fn(&Context),
}

/// Every controller, by upstream's name for it.
const ALL: &[Entry] = &[
    Entry { name: "deployment-controller", start: deployment::start },
    Entry { name: "replicaset-controller", start: replicaset::start },
    Entry { name: "disruption-controller", start: disruption::start },
    Entry { name: "endpointslice-controller", start: endpointslice::start },
    Entry { name: "endpoints-controller", start: endpoints::start },
    Entry { name: "serviceaccount-controller", start: serviceaccount::start },
    Entry { name: "root-ca-certificate-publisher-controller", start: root_ca_publisher::start },
    Entry { name: "namespace-controller", start: namespace::start },
    Entry { name: "garbage-collector-controller", start: garbage_collector::start },
    Entry { name: "node-lifecycle-controller", start: node_lifecycle::start },
    Entry { name: "taint-eviction-controller", start: node_lifecycle::eviction::start },
    Entry { name: "node-ipam-controller", start: node_ipam::start },
    Entry { name: "pod-garbage-collector-controller", start: pod_gc::start },
    Entry { name: "persistentvolumeclaim-protection-controller", start: storage_protection::start_claims },
    Entry { name: "persistentvolume-protection-controller", start: storage_protection::start_volumes },
    Entry { name: "volumeattributesclass-protection-controller", start: storage_protection::start_classes },
    Entry { name: "service-cidr-controller", start: service_cidrs::start },
    Entry { name: "service-lb-controller", start: service_lb::start },
    // Our own: it writes nothing but Waits.
    Entry { name: "unscheduled-pod-controller", start: unscheduled::start },
];

/// The names of all controllers, for flags and their help.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|e| e.name)
}

/// Starts the enabled controllers. They end with the stage; nothing here waits.
pub fn run(identities: Arc<dyn Identities>, clock: SharedClock, rng: Rng, options: Options, stage: &Stage) {
    let context = Context::new(identities, clock, rng, options, stage.clone());
    for entry in ALL {
        if context.options.disabled.contains(entry.name) {
            tracing::info!(controller = entry.name, "disabled");
            continue;
        }
        (entry.start)(&context);
    }
}
