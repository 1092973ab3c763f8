//! Pods end when the node is short of memory, disk or process ids.
//!
//! ```text
//!  levels ─► Gauge ─► due? ── disk: dead containers go first, then images that nobody uses ─► still? ─┐
//!    ▲       (pure)                                                                                   ▼
//!    └────────── every 10 s, or when that pod has ended ◄────────── one pod ends ◄───────────────── rank
//! ```
//!
//! What pods use is read only when one has to end. At most one ends at a time: what it gives back is counted
//! before the next is chosen.

pub mod message;
pub mod rank;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use client::events::Type;
use stdx::ClockExt;
use tokio::sync::watch;

use crate::context::{Context, blocking};
use crate::image::collector::Relief;
use crate::node::facts::{Levels, Places};
use crate::node::thresholds::{Signal, Threshold};
use crate::pods::Pods;
use crate::stats::disk::{PodDisk, Used};
use crate::stats::numbers::Detail;
use crate::stats::{PodStats, Stats};
use crate::sync::lifecycle::Cause;
use crate::sync::worker::View;
use rank::{Candidate, ContainerUsage, Usage};

/// Why a pod that ended for this or that ended, in its status and in an event.
pub const REASON: &str = "Evicted";
/// What an evicted pod's containers have to end at most, in seconds, when there is no time.
pub const AT_ONCE: i64 = 1;
/// How often the node is looked at.
const LOOK: Duration = Duration::from_secs(10);
/// How long a pod that was told to end is waited for before the node is looked at again.
const CLEANUP: Duration = Duration::from_secs(30);
/// How long the files of pods are counted before one is chosen by what is known.
const COUNTED: Duration = Duration::from_secs(20);
/// How long pods that have just become known may take to learn what runs of them: of whom nothing is known ends
/// first.
const LOOKED_AT: Duration = Duration::from_secs(10);
/// How long dead containers may take to go, and then images: a runtime that hangs keeps no pod from being ended.
const RECLAIM: Duration = Duration::from_secs(60);
/// How often it is asked whether that is so.
const STEP: Duration = Duration::from_millis(500);

/// The one that watches.
pub struct Evictor {
    ctx: Arc<Context>,
    pods: Arc<Pods>,
    stats: Stats,
    places: Places,
    /// Seconds.
    max_pod_grace: u32,
    relief: Relief,
}

impl Evictor {
    /// Acts on what `ctx.gauge` sees. A pod that ends for what lasted has at most `max_pod_grace` seconds.
    pub fn new(
        ctx: Arc<Context>,
        pods: Arc<Pods>,
        stats: Stats,
        places: Places,
        max_pod_grace: u32,
        relief: Relief,
    ) -> Self {
        Self { ctx, pods, stats, places, max_pod_grace, relief }
    }

    /// Watches for as long as it is polled, once all pods that are wanted are known.
    pub async fn run(mut self, mut all_shown: watch::Receiver<bool>) {
        if all_shown.wait_for(|shown| *shown).await.is_err() {
            return;
        }
        let clock = self.ctx.clock.clone();
        loop {
            match self.look().await {
                // One that takes longer is not waited for: the next look may find another.
                Some(uid) => drop(clock.timeout(CLEANUP, self.pods.is_cleared(&uid)).await),
                None => clock.sleep(LOOK).await,
            }
        }
    }

    /// Looks at the node; the pod that ends for what was found.
    async fn look(&mut self) -> Option<String> {
        let mut levels = self.levels().await;
        let mut due = self.ctx.gauge.observe(&levels, self.ctx.clock.now()).due;
        let resource = due.first()?.signal.resource();
        self.ctx.report.node_event(Type::Warning, "EvictionThresholdMet", format!("Attempting to reclaim {resource}"));
        let mut tried = Vec::new();
        while let Some(means) = untried(&due, self.places.images_are_apart(), &mut tried) {
            levels = self.reclaim(means).await;
            due.retain(|threshold| threshold.is_crossed(&levels, true));
        }
        let threshold = *due.first()?;
        let mut candidates = self.candidates(threshold.signal).await;
        let apart = self.places.images_are_apart();
        rank::rank(threshold.signal, apart, &mut candidates);
        let chosen = candidates.iter().find(|candidate| !candidate.pod.is_critical());
        if chosen.is_none() {
            tracing::warn!(resource, "the node is short of this, and there is no pod that may end for it");
        }
        self.evict(chosen?, threshold, &due, &levels)
    }

    /// Gives back what no pod has to end for; what is free then.
    async fn reclaim(&mut self, means: Means) -> Levels {
        let clock = self.ctx.clock.clone();
        if clock.timeout(RECLAIM, self.pods.give_back()).await.is_err() {
            tracing::warn!("dead containers are not gone yet; the node's disk is looked at without them");
        }
        if means == Means::ContainersAndImages {
            if clock.timeout(RECLAIM, self.relief.ask()).await.is_err() {
                tracing::warn!("images are not gone yet; the node's disk is looked at without them");
            }
        }
        self.levels().await
    }

    fn evict(&self, chosen: &Candidate, threshold: Threshold, due: &[Threshold], levels: &Levels) -> Option<String> {
        let pod = &chosen.pod;
        let said = message::render(threshold.signal, due, levels, chosen);
        let own = pod.spec().termination_grace_period_seconds.unwrap_or(30);
        let grace = if threshold.is_hard() { AT_ONCE } else { own.min(self.max_pod_grace.into()) };
        let message = said.text;
        let cause = Cause { reason: REASON.into(), message: message.clone(), disruption: Some(message.clone()) };
        if !self.pods.evict(&pod.uid, cause, grace) {
            return None;
        }
        tracing::info!(pod = %pod.full_name(), message, "the node is short of something; evicting a pod");
        self.ctx.report.annotated_event(pod, Type::Warning, REASON, message, said.annotations);
        self.ctx.metrics.evictions.inc(&[threshold.signal.name()]);
        Some(pod.uid.clone())
    }

    async fn levels(&mut self) -> Levels {
        self.places.find_images(&*self.ctx.runtime).await;
        let places = self.places.clone();
        blocking(move || places.levels()).await.unwrap_or_default()
    }

    /// The pods that could end, with what they use.
    async fn candidates(&self, signal: Signal) -> Vec<Candidate> {
        let views = self.views().await;
        let disks = if signal.is_of_disk() { self.disks(&views).await } else { HashMap::new() };
        let gathered = self.stats.gather(views.clone(), Detail::All).await;
        let gathered = gathered.inspect_err(|error| tracing::warn!(%error, "what pods use is not known")).ok();
        let of = |view: View| {
            let stats = gathered.iter().flat_map(|g| &g.pods).find(|stats| stats.pod.uid == view.pod.uid);
            let usage = usage(stats, disks.get(&view.pod.uid).map(|disk| &**disk));
            Candidate { usage, pod: view.pod }
        };
        views.into_iter().map(of).collect()
    }

    /// The pods that could end, once it is known what runs of them.
    async fn views(&self) -> Vec<View> {
        let deadline = self.ctx.clock.now() + LOOKED_AT;
        loop {
            let views = self.pods.evictable();
            if views.iter().all(|view| view.looked) || self.ctx.clock.now() >= deadline {
                return views;
            }
            self.ctx.clock.sleep(STEP).await;
        }
    }

    /// What pods have on disk: waited for, so that the right one ends.
    async fn disks(&self, views: &[View]) -> HashMap<String, Arc<PodDisk>> {
        let pods: Vec<_> = views.iter().map(|view| view.pod.clone()).collect();
        let deadline = self.ctx.clock.now() + COUNTED;
        loop {
            let found = self.stats.disks.of(&self.ctx, &pods).await;
            if pods.iter().all(|pod| found.get(&pod.uid).is_some_and(|disk| disk.whole))
                || self.ctx.clock.now() >= deadline
            {
                return found;
            }
            self.ctx.clock.sleep(STEP).await;
        }
    }
}

/// What gives back disk without the end of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    /// Containers and logs of pods that have ended.
    Containers,
    ContainersAndImages,
}

/// What is to be tried for what is to be answered first; `None` when that has been, and for what nothing helps.
/// Images on a disk of their own help nothing else, and what was due first may be due no more: then what comes next
/// is helped, before a pod ends for it.
fn untried(due: &[Threshold], apart: bool, tried: &mut Vec<Means>) -> Option<Means> {
    let signal = due.first()?.signal;
    // Without a disk of their own images are on that of everything else.
    let means = if signal.is_of_images() || !apart { Means::ContainersAndImages } else { Means::Containers };
    if !signal.is_of_disk() || tried.contains(&means) {
        return None;
    }
    tried.push(means);
    Some(means)
}

fn usage(stats: Option<&PodStats>, disk: Option<&PodDisk>) -> Option<Usage> {
    if stats.is_none() && disk.is_none() {
        return None;
    }
    let numbers = stats.map(|stats| &stats.measured.numbers);
    let volumes = disk.into_iter().flat_map(|disk| &disk.volumes).filter(|volume| volume.ephemeral);
    let container = |c: &crate::stats::ContainerStats| {
        let name = c.container.name.clone();
        let layer = disk.and_then(|disk| disk.layers.get(&c.container.id));
        ContainerUsage {
            memory: c.measured.numbers.memory.map(|memory| memory.working_set()),
            logs: disk.and_then(|disk| disk.logs.get(&name)).copied(),
            layer: layer.map(|layer| Used { bytes: layer.bytes, inodes: layer.inodes }),
            name,
        }
    };
    Some(Usage {
        memory: numbers.and_then(|n| n.memory).map_or(0, |memory| memory.working_set()),
        processes: numbers.and_then(|n| n.processes).unwrap_or(0),
        volumes: volumes.map(|volume| volume.used).fold(Used::default(), Used::plus),
        containers: stats.iter().flat_map(|stats| &stats.containers).map(container).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::thresholds::{Bounds, Thresholds};

    #[test]
    fn no_pod_ends_before_all_that_helps_was_tried() {
        let of = |text: &str| Thresholds::hard(Bounds::limits(text).expect("bounds")).all().collect::<Vec<_>>();
        let (data, images, memory) = (of("nodefs.available<1"), of("imagefs.inodesFree<1"), of("memory.available<1"));
        let both = [&data[..], &images].concat();
        let (few, all) = (Some(Means::Containers), Some(Means::ContainersAndImages));
        // What is due at each look, and what is tried for it.
        let check = |apart: bool, steps: &[(&[Threshold], Option<Means>)]| {
            let mut tried = Vec::new();
            for (due, want) in steps {
                assert_eq!(untried(due, apart, &mut tried), *want, "{apart} {due:?} {tried:?}");
            }
        };
        check(true, &[(&both, few), (&images, all), (&images, None)]);
        check(true, &[(&both, few), (&both, None)]);
        check(true, &[(&images, all), (&[], None)]);
        check(false, &[(&both, all), (&images, None)]);
        check(true, &[(&memory, None)]);
        check(true, &[(&[], None)]);
    }
}
