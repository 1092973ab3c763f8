//! Removes images that nobody uses: when the disk they are on is nearly full, when they are too old, and all
//! that can go when whoever watches the node's disk asks for it ([`Relief`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use client::events::Type;
use stdx::ClockExt;
use tokio::sync::{mpsc, oneshot, watch};

use super::collect::{self, Ages, Policy};
use super::records::is_called;
use crate::context::{Context, blocking};
use crate::node::facts::{Disk, Places};
use crate::pods::Pods;
use crate::runtime::{Error, Image};

/// How often images are looked at.
const PERIOD: Duration = Duration::from_secs(5 * 60);

/// Asks for everything that can go.
#[derive(Clone)]
pub struct Relief(mpsc::Sender<oneshot::Sender<()>>);

impl Relief {
    /// Whoever asks, and what a collector hears of it.
    pub fn new() -> (Self, mpsc::Receiver<oneshot::Sender<()>>) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), receiver)
    }

    /// Returns when it is gone, or when there is no collector any more.
    pub async fn ask(&self) {
        let (done, told) = oneshot::channel();
        if self.0.send(done).await.is_ok() {
            // It may have ended meanwhile.
            let _ = told.await;
        }
    }
}

/// The one that removes.
pub struct Collector {
    ctx: Arc<Context>,
    pods: Arc<Pods>,
    policy: Policy,
    places: Places,
    ages: Ages,
    failures: u32,
}

impl Collector {
    /// Nothing has been seen yet.
    pub fn new(ctx: Arc<Context>, pods: Arc<Pods>, policy: Policy, places: Places) -> Self {
        let ages = Ages::new(ctx.clock.now());
        Self { ctx, pods, policy, places, ages, failures: 0 }
    }

    /// Removes them for as long as it is polled, once all pods that are wanted are known.
    pub async fn run(mut self, mut all_shown: watch::Receiver<bool>, mut asked: mpsc::Receiver<oneshot::Sender<()>>) {
        if all_shown.wait_for(|shown| *shown).await.is_err() {
            return;
        }
        let clock = self.ctx.clock.clone();
        let mut due = clock.now();
        loop {
            let wait = due.since(clock.now());
            tokio::select! {
                Some(done) = asked.recv() => {
                    let result = self.collect(None, Some(&done)).await;
                    self.tell(result);
                    // Who asked may have ended meanwhile.
                    let _ = done.send(());
                }
                () = clock.sleep(wait) => {
                    due = clock.now() + PERIOD;
                    let disk = self.disk().await;
                    let result = self.collect(disk, None).await;
                    self.tell(result);
                }
            }
        }
    }

    /// A failure that comes alone is no news: the runtime may just be starting.
    fn tell(&mut self, result: Result<(), String>) {
        let Err(why) = result else {
            self.failures = 0;
            return;
        };
        tracing::warn!(why, "images were not collected");
        self.failures = self.failures.saturating_add(1);
        if self.failures > 1 {
            self.ctx.report.node_event(Type::Warning, "ImageGCFailed", why);
        }
    }

    async fn disk(&mut self) -> Option<Disk> {
        self.places.find_images(&*self.ctx.runtime).await;
        let places = self.places.clone();
        let levels = blocking(move || places.levels()).await.unwrap_or_default();
        levels.image_disk()
    }

    /// Looks at all images and removes those that are to go: all that can when the node is short of disk, for as
    /// long as who asked for that waits for it.
    async fn collect(&mut self, disk: Option<Disk>, asked: Option<&oneshot::Sender<()>>) -> Result<(), String> {
        let is_given_up = || asked.is_some_and(oneshot::Sender::is_closed);
        if is_given_up() {
            return Ok(());
        }
        let told = |error: Error| format!("the images are not known: {error}");
        let images = self.ctx.runtime.images().await.map_err(told)?;
        let used = self.ctx.runtime.images_in_use().await.map_err(told)?;
        let named = self.pods.images();
        let now = self.ctx.clock.now();
        self.ages.observe(&images, |image| is_used(image, &used, &named), now);
        let mut problems = Vec::new();
        let mut gone = BTreeSet::new();
        for image in self.ages.outdated(&images, &self.policy, now) {
            match self.remove(image, "nobody has used it for long").await {
                Ok(()) => drop(gone.insert(image.id.clone())),
                Err(problem) => problems.push(problem),
            }
        }
        let usage = disk.map(|disk| (disk, collect::usage(&disk, &self.policy)));
        let to_free = match usage {
            Some((disk, None)) => {
                let text = format!("invalid capacity {} on image filesystem", disk.capacity);
                self.ctx.report.node_event(Type::Warning, "InvalidDiskCapacity", text.clone());
                return Err(text);
            }
            Some((_, Some(usage))) => usage.to_free,
            None => 0,
        };
        let mut freed = 0;
        for image in self.ages.removable(&images, &self.policy, now) {
            if gone.contains(&image.id) || (freed >= to_free && asked.is_none()) {
                continue;
            }
            if is_given_up() {
                break;
            }
            match self.remove(image, "the disk is nearly full").await {
                Ok(()) => freed = u64::saturating_add(freed, image.size),
                Err(problem) => problems.push(problem),
            }
        }
        if !problems.is_empty() {
            return Err(format!("wanted to free {to_free} bytes, but freed {freed}: {}", problems.join(", ")));
        }
        if let Some((disk, Some(usage))) = usage.filter(|_| freed < to_free) {
            let text = collect::too_little(&usage, disk.capacity, freed);
            self.ctx.report.node_event(Type::Warning, "FreeDiskSpaceFailed", text.clone());
            return Err(text);
        }
        Ok(())
    }

    async fn remove(&self, image: &Image, why: &str) -> Result<(), String> {
        tracing::info!(image = image.id, names = ?image.tags, bytes = image.size, why, "an image is removed");
        self.ctx.runtime.remove_image(&image.id).await.map_err(|error| format!("{}: {error}", image.id))?;
        self.ctx.puller.forget(&image.id).await;
        Ok(())
    }
}

/// `used` are ids and names that the runtime uses, `named` names that pods have.
fn is_used(image: &Image, used: &BTreeSet<String>, named: &BTreeSet<String>) -> bool {
    let mut own = std::iter::once(&image.id).chain(&image.tags).chain(&image.digests);
    own.any(|name| used.contains(name)) || used.iter().chain(named).any(|name| is_called(image, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::facts::ImagePlace;
    use crate::runtime::Runtime;
    use crate::sync::sim::Sim;
    use serde_json::json;
    use std::collections::BTreeMap;
    use stdx::shutdown::Stage;

    async fn names(sim: &Sim) -> Vec<String> {
        sim.runtime.images().await.expect("the images").into_iter().flat_map(|image| image.tags).collect()
    }

    #[tokio::test]
    async fn what_nobody_uses_goes_when_it_must() {
        let sim = Sim::new(41, json!({"containers": [{"name": "a", "image": "x:1"}]}));
        sim.until("ready", |s| s.is_ready()).await;
        sim.runtime.pull("old:1", None, None).await.expect("pulled");
        let pods = Pods::new(sim.ctx.clone(), Stage::new(), BTreeMap::new());
        let places = Places {
            root: "/".into(),
            data: sim.root.path().into(),
            images: ImagePlace::Folder(sim.root.path().into()),
        };
        let mut collector = Collector::new(sim.ctx.clone(), pods, Policy::default(), places);
        let disk = |available| Some(Disk { capacity: 1000, available, ..Disk::default() });
        assert_eq!(collector.collect(disk(500), None).await, Ok(()));
        assert_eq!(names(&sim).await, ["old:1", "x:1"]);

        // An image has seven bytes: that is too little, and is told.
        sim.runtime.pull("new:1", None, None).await.expect("pulled");
        let why = collector.collect(disk(150), None).await.expect_err("too little");
        assert!(why.contains("(85% of 1000.0 B used)") && why.contains("(freed 7 bytes)"), "{why}");
        assert_eq!(names(&sim).await, ["new:1", "x:1"], "what is used stays, and what is young");
        assert!(sim.report.events.lock().iter().any(|e| e.starts_with("!node FreeDiskSpaceFailed")));

        // A node that is short of disk gives up all that is old enough.
        sim.clock.advance(Duration::from_secs(120));
        let (done, told) = oneshot::channel();
        drop(told);
        assert_eq!(collector.collect(disk(500), Some(&done)).await, Ok(()));
        assert_eq!(names(&sim).await, ["new:1", "x:1"], "who asked has gone: nobody is short any more");
        let (done, _told) = oneshot::channel();
        assert_eq!(collector.collect(disk(500), Some(&done)).await, Ok(()));
        assert_eq!(names(&sim).await, ["x:1"]);

        // A failure is news when it comes again.
        sim.runtime.fail("images_in_use", Error::Unavailable("away".into()));
        for told in [0, 1] {
            let result = collector.collect(disk(0), None).await;
            collector.tell(result);
            let events = sim.report.events.lock().iter().filter(|e| e.starts_with("!node ImageGCFailed")).count();
            assert_eq!(events, told);
        }
        let odd = collector.collect(disk(0), None).await;
        assert!(odd.is_err_and(|why| why.contains("away")));
    }
}
