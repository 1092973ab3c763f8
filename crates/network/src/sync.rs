//! The loop: nodes, links, addresses or routes changed, so what is there is compared with what should be.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1 as core;
use client::{Client, Informer, Resource};
use net::rtnl::Rtnl;
use net::rtnl::monitor::Monitor;
use stdx::backoff::Policy;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};
use tokio::sync::Notify;

use crate::nodes::{Node, NodeView};
use crate::plan::{self, Mode, Wanted};
use crate::{Options, Own, kernel};

/// How long to wait before what was refused is tried again.
const RETRY: Policy = Policy { initial: Duration::from_millis(200), max: Duration::from_secs(30) };

/// How long what the kernel tells is gathered.
const SETTLE: Duration = Duration::from_millis(100);

/// Runs until the stage stops. What it made stays.
pub async fn run(client: Client, clock: SharedClock, rng: Rng, options: Options, stage: &Stage) {
    tokio::select! {
        () = sync(client, clock, rng, options, stage) => {}
        () = stage.stopped() => {}
    }
}

/// Why the loop goes on.
enum Event {
    Nodes,
    Kernel,
    Due,
}

async fn sync(client: Client, clock: SharedClock, rng: Rng, options: Options, stage: &Stage) {
    let nodes = Informer::<NodeView>::builder(client, Resource::of::<core::Node>()).without_json().start(
        clock.clone(),
        rng,
        stage,
    );
    let wake = Arc::new(Notify::new());
    nodes.subscribe({
        let wake = wake.clone();
        move |change| {
            // Conditions and leases change all the time.
            let same =
                change.old().is_some_and(|old| !Arc::ptr_eq(old, change.object()) && old.view == change.object().view);
            if !same {
                wake.notify_one();
            }
        }
    });
    let mut monitor = match Monitor::start() {
        Ok(monitor) => monitor,
        Err(error) => {
            tracing::error!(%error, "the kernel does not tell of links and routes: there will be no routes to other nodes");
            return;
        }
    };
    // Until all nodes are known what an earlier process made stays.
    nodes.synced().await;
    let mut state = State { options, told: None, complained: BTreeSet::new() };
    let mut failures = 0;
    loop {
        let all = nodes.list().iter().map(|n| Node::of(&n.meta.name, &n.view)).collect::<Vec<_>>();
        let due = match state.pass(all).await {
            Ok(()) => {
                failures = 0;
                None
            }
            Err(error) => {
                tracing::warn!(%error, "not all routes to other nodes are in the kernel");
                failures += 1;
                Some(RETRY.delay(failures))
            }
        };
        let later = async {
            match due {
                Some(delay) => clock.sleep(delay).await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            () = wake.notified() => Event::Nodes,
            heard = monitor.changed() => match heard {
                Ok(()) => Event::Kernel,
                Err(error) => {
                    tracing::error!(%error, "the kernel no longer tells of links and routes");
                    return;
                }
            },
            () = later => Event::Due,
        };
        if matches!(event, Event::Kernel) {
            // A pod that comes or goes is several changes, and none of them is one of ours.
            clock.sleep(SETTLE).await;
        }
    }
}

struct State {
    options: Options,
    /// What was told of this node's own pods.
    told: Option<Own>,
    /// Nodes that cannot be reached were named in the log.
    complained: BTreeSet<(String, &'static str)>,
}

impl State {
    async fn pass(&mut self, nodes: Vec<Node>) -> io::Result<()> {
        let (name, mode) = (self.options.node_name.clone(), self.options.mode);
        let own = nodes.iter().find(|n| n.name == name).map(|n| n.pod_cidrs.clone()).unwrap_or_default();
        let work = tokio::task::spawn_blocking(move || apply(&name, &nodes, mode));
        let (wanted, failure) = work.await.map_err(io::Error::other)??;
        let unreached: BTreeSet<(String, &'static str)> = wanted.unreached.iter().cloned().collect();
        for (node, why) in unreached.difference(&self.complained) {
            tracing::warn!(node, why, "pods of this node cannot be reached");
        }
        self.complained = unreached;
        if !own.is_empty() {
            let own = Own { pod_cidrs: own, mtu: wanted.device.as_ref().map(|d| d.mtu) };
            if self.told.as_ref() != Some(&own) {
                if let Some(tell) = &self.options.own {
                    tell(&own)?;
                }
                self.told = Some(own);
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

/// One pass. What one step is refused holds up no other.
fn apply(name: &str, nodes: &[Node], mode: Mode) -> io::Result<(Wanted, Option<io::Error>)> {
    let rtnl = Rtnl::open()?;
    let seen = kernel::look(&rtnl)?;
    let wanted = plan::plan(name, nodes, &seen, mode);
    let mut failure = None;
    let mut run = |actions: &[plan::Action]| {
        for action in actions {
            match kernel::apply(&rtnl, action) {
                Ok(()) => tracing::debug!(?action, "done"),
                Err(error) => failure = Some(io::Error::new(error.kind(), format!("{action:?}: {error}"))),
            }
        }
        !actions.is_empty()
    };
    let changed = run(&plan::device(&seen, &wanted));
    let seen = if changed { kernel::look(&rtnl)? } else { seen };
    run(&plan::difference(&seen, &wanted));
    Ok((wanted, failure))
}
