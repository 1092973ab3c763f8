//! The loop: nodes, links, addresses or routes changed, so what is there is compared with what should be.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1 as core;
use client::events::Reference;
use client::waits::Publisher;
use client::{Client, Informer, Meta, Resource};
use ipnet::IpNet;
use net::rtnl::Rtnl;
use net::rtnl::monitor::Monitor;
use stdx::backoff::Policy;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};
use tokio::sync::Notify;

use crate::metrics::Metrics;
use crate::nodes::{Node, NodeView};
use crate::plan::{self, Mode, Wanted};
use crate::{Options, Own, kernel};

/// How long to wait before what was refused is tried again.
const RETRY: Policy = Policy { initial: Duration::from_millis(200), max: Duration::from_secs(30) };

/// The codes of Waits: nodes whose pods nothing leads to, and what the kernel refused.
const UNREACHED: &str = "PodsUnreachable";
const NOT_IN_KERNEL: &str = "RoutesNotInKernel";

/// How long what the kernel tells is gathered: while pods come and go it tells all the time, and to be asked for
/// all its links and routes costs it more the more pods there are.
const SETTLE: Duration = Duration::from_secs(1);

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
    let waits = Publisher::start_on_node(&client, "network", &options.node_name, clock.clone(), stage);
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
    let metrics = Metrics::new(&options.registry);
    let mut state = State { options, told: None, complained: BTreeSet::new() };
    let mut failures = 0;
    // Opened again with every pass until the kernel tells.
    let mut monitor = None;
    loop {
        let unheard = if monitor.is_none() { open(&mut monitor).err() } else { None };
        let all = nodes.list().iter().map(|n| Node::of(&n.meta.name, created(&n.meta), &n.view)).collect::<Vec<_>>();
        let (count, begun) = (all.len(), clock.now());
        let done = state.pass(all).await.and(unheard.map_or(Ok(()), Err));
        metrics.passed(clock.now().since(begun), done.is_ok());
        metrics.nodes(count, state.complained.len());
        if let Some(own) = nodes.find("", &state.options.node_name) {
            tell(
                &waits,
                &Reference::of(&Resource::of::<core::Node>(), &own.meta),
                &state.complained,
                done.as_ref().err(),
            );
        }
        let due = match done {
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
            // A node that is new is not kept waiting by pods that come and go.
            tokio::select! {
                () = clock.sleep(SETTLE) => {}
                () = wake.notified() => {}
            }
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

/// Says what this Node waits for, as far as pods of others are concerned.
fn tell(waits: &Publisher, own: &Reference, unreached: &BTreeSet<(String, &'static str)>, error: Option<&io::Error>) {
    match unreached_text(unreached) {
        Some(text) => waits.publish(own, UNREACHED, "other nodes", text),
        None => waits.withdraw(own, UNREACHED),
    }
    match error {
        Some(error) => waits.publish(own, NOT_IN_KERNEL, "the kernel", format!("the kernel refused: {error}")),
        None => waits.withdraw(own, NOT_IN_KERNEL),
    }
}

/// Names the first few.
fn unreached_text(unreached: &BTreeSet<(String, &'static str)>) -> Option<String> {
    const NAMED: usize = 3;
    let named: Vec<String> = unreached.iter().take(NAMED).map(|(node, why)| format!("{node} ({why})")).collect();
    let more = unreached.len().saturating_sub(NAMED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| format!("pods of these nodes cannot be reached: {}{rest}", named.join(", ")))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_few_are_named() {
        let of = |names: &[&str]| unreached_text(&names.iter().map(|n| ((*n).to_owned(), "why")).collect());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["b", "a"]).as_deref(), Some("pods of these nodes cannot be reached: a (why), b (why)"));
        let many = of(&["a", "b", "c", "d", "e"]).expect("a text");
        assert!(many.ends_with("c (why) and 2 more"), "{many}");
    }
}
