//! What nodes and pods use (`metrics.k8s.io`), with nothing installed: what kubelets tell, twice, and the
//! difference.
//!
//! ```text
//!  who asks ─► ResourceMetrics::current ─► scrape.rs: /metrics/resource of each node's kubelet
//!                                     └─► usage.rs: two of them → processors and memory (pure)
//! ```
//!
//! Kubelets are asked only when somebody asks here, and at most every [`RESOLUTION`]: all who ask meanwhile
//! get the same answer, and nothing is done while nobody asks. Who asks after a long silence waits for two
//! samples a second apart. Kubelets are asked by a task of the server's own: whoever goes away meanwhile ends
//! nothing for the others.

mod scrape;
mod usage;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdx::ClockExt;
use stdx::clock::Instant;
use tokio::sync::watch;

use crate::server::ApiServer;
use usage::{NodeSample, Sample, difference};
pub use usage::{NodeUsage, PodUsage, Usage, Used};

/// What was found is good for so long.
const RESOLUTION: Duration = Duration::from_secs(15);
/// A sample that is older is no base for an average.
const LONGEST: Duration = Duration::from_secs(120);
/// Between two samples where there was none: kubelets tell the same for a second. So long, too, it is good
/// that nobody tells anything.
const SHORTEST: Duration = Duration::from_millis(1100);

/// What kubelets told last.
#[derive(Default)]
pub struct ResourceMetrics {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    found: Option<(Instant, Arc<Usage>)>,
    told: Told,
    /// Those who ask while kubelets are being asked wait for the same answer.
    asking: Option<watch::Receiver<Option<Arc<Usage>>>>,
}

/// What each node told last, and when.
#[derive(Default)]
struct Told(BTreeMap<String, (Instant, NodeSample)>);

impl Told {
    /// What is no base any more is forgotten; the rest.
    fn base(&mut self, now: Instant) -> Sample {
        self.0.retain(|_, (at, _)| now.since(*at) < LONGEST);
        self.0.iter().map(|(name, (_, sample))| (name.clone(), sample.clone())).collect()
    }

    /// A node that told nothing this time keeps what it told before.
    fn add(&mut self, now: Instant, sample: Sample) {
        self.0.extend(sample.into_iter().map(|(name, sample)| (name, (now, sample))));
    }
}

impl ResourceMetrics {
    /// What is used, no older than [`RESOLUTION`].
    pub async fn current(&self, server: &Arc<ApiServer>) -> Arc<Usage> {
        let mut asking = {
            let mut state = self.state.lock();
            if let Some((at, usage)) = &state.found {
                let good = if usage.nodes.is_empty() && usage.pods.is_empty() { SHORTEST } else { RESOLUTION };
                if server.clock.now().since(*at) < good {
                    return usage.clone();
                }
            }
            // One that ended without an answer panicked, or the server stops.
            match state.asking.clone().filter(|asking| asking.has_changed().is_ok()) {
                Some(asking) => asking,
                None => {
                    let (answer, asking) = watch::channel(None);
                    state.asking = Some(asking.clone());
                    let server = server.clone();
                    let stage = server.stage().clone();
                    stage.run(async move {
                        let usage = server.resource_metrics.ask(&server).await;
                        answer.send_replace(Some(usage));
                    });
                    asking
                }
            }
        };
        let answer = asking.wait_for(Option::is_some).await;
        answer.ok().and_then(|usage| usage.clone()).unwrap_or_default()
    }

    async fn ask(&self, server: &ApiServer) -> Arc<Usage> {
        let clock = &server.clock;
        let mut base = self.state.lock().told.base(clock.now());
        let asked_twice = base.is_empty();
        if asked_twice {
            base = scrape::nodes(server, |_| true).await;
            if !base.is_empty() {
                clock.sleep(SHORTEST).await;
            }
        }
        // Who told nothing a second ago is not waited for again.
        let sample = scrape::nodes(server, |name| !asked_twice || base.contains_key(name)).await;
        let usage = Arc::new(difference(&base, &sample));
        let (mut state, now) = (self.state.lock(), clock.now());
        state.told.add(now, sample);
        state.found = Some((now, usage.clone()));
        state.asking = None;
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::clock::{Clock, ManualClock};

    #[test]
    fn a_node_that_is_silent_keeps_its_base_for_a_while() {
        let clock = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let of =
            |names: &[&str]| -> Sample { names.iter().map(|n| ((*n).to_owned(), NodeSample::default())).collect() };
        let mut told = Told::default();
        let names = |told: &mut Told, now| told.base(now).into_keys().collect::<Vec<_>>();
        told.add(clock.now(), of(&["a", "b"]));
        clock.advance(Duration::from_secs(100));
        told.add(clock.now(), of(&["b"]));
        assert_eq!(names(&mut told, clock.now()), ["a", "b"]);
        told.add(clock.now(), of(&[]));
        clock.advance(Duration::from_secs(30));
        assert_eq!(names(&mut told, clock.now()), ["b"]);
    }
}
