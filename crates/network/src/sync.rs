//! The loop: nodes, links, addresses or routes changed, so what is there is compared with what should be.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1 as core;
use client::{Client, Informer, Meta, Resource};
use ipnet::IpNet;
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
    // Until all nodes are known what an earlier process made stays.
    nodes.synced().await;
    let mut state = State { options, told: None, complained: BTreeSet::new() };
    let mut failures = 0;
    // Opened again with every pass until the kernel tells.
    let mut monitor = None;
    loop {
        let unheard = if monitor.is_none() { open(&mut monitor).err() } else { None };
        let all = nodes.list().iter().map(|n| Node::of(&n.meta.name, created(&n.meta), &n.view)).collect::<Vec<_>>();
        let due = match state.pass(all).await.and(unheard.map_or(Ok(()), Err)) {
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
            heard = changed(&mut monitor) => match heard {
                Ok(()) => Event::Kernel,
                Err(error) => {
                    tracing::warn!(%error, "the kernel no longer tells of links and routes; it is asked again");
                    monitor = None;
                    failures += 1;
                    clock.sleep(RETRY.delay(failures)).await;
                    Event::Due
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

fn open(monitor: &mut Option<Monitor>) -> io::Result<()> {
    *monitor = Some(Monitor::start()?);
    Ok(())
}

async fn changed(monitor: &mut Option<Monitor>) -> io::Result<()> {
    match monitor {
        Some(monitor) => monitor.changed().await,
        None => std::future::pending().await,
    }
}

/// A Node without a time is younger than all others.
fn created(meta: &Meta) -> i128 {
    meta.creation_timestamp.map_or(i128::MAX, |time| time.as_nanosecond())
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
        let ranges = self.options.ranges.clone();
        let work = tokio::task::spawn_blocking(move || apply(&name, &nodes, mode, &ranges));
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
fn apply(name: &str, nodes: &[Node], mode: Mode, ranges: &[IpNet]) -> io::Result<(Wanted, Option<io::Error>)> {
    let rtnl = Rtnl::open()?;
    let seen = kernel::look(&rtnl)?;
    let wanted = plan::plan(name, nodes, &seen, mode, ranges);
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
