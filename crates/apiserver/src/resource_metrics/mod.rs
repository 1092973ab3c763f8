//! What nodes and pods use (`metrics.k8s.io`), with nothing installed: what kubelets tell, twice, and the
//! difference.
//!
//! ```text
//!  who asks ─► ResourceMetrics::current ─► scrape.rs: /metrics/resource of each node's kubelet
//!                                     └─► usage.rs: two of them → processors and memory (pure)
//! ```
//!
//! Kubelets are asked only when somebody asks here, and at most every [`RESOLUTION`]: all who ask meanwhile
//! get the same answer, and nothing is done while nobody asks. Kubelets are asked by tasks of the server's own:
//! whoever goes away meanwhile ends nothing for the others.
//!
//! Each node is asked by itself, with a limit of its own, and the answer is made of what each told last. Who
//! asks waits for those that answered last time, and no longer than [`WAIT`]: a node that keeps silent (one that
//! is Ready and lets every packet go, for one) is asked all the same, by a task that nobody waits for.

mod scrape;
mod usage;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use parking_lot::Mutex;
use stdx::ClockExt;
use stdx::clock::Instant;
use tokio::sync::watch;

use crate::server::ApiServer;
use scrape::{AT_ONCE, Found};
use usage::{NodeSample, Sample, difference};
pub use usage::{NodeUsage, PodUsage, Usage, Used};

/// What was found is good for so long.
const RESOLUTION: Duration = Duration::from_secs(15);
/// A sample that is older is no base for an average.
const LONGEST: Duration = Duration::from_secs(120);
/// Between two samples of a node where there was none: kubelets tell the same for a second. So long, too, it is
/// good that nobody tells anything.
const SHORTEST: Duration = Duration::from_millis(1100);
/// Nobody waits longer for a pass: two samples of a node that has told nothing yet, and room.
const WAIT: Duration = Duration::from_millis(2500);

/// What kubelets told last.
#[derive(Default)]
pub struct ResourceMetrics {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    found: Option<(Instant, Arc<Usage>)>,
    nodes: Nodes,
    /// Those who ask while kubelets are being asked wait for the same answer.
    asking: Option<watch::Receiver<Option<Arc<Usage>>>>,
}

/// What each node told last.
#[derive(Default)]
struct Nodes(BTreeMap<String, Told>);

#[derive(Default)]
struct Told {
    /// The base of the next difference.
    sample: Option<(Instant, NodeSample)>,
    /// What it used when it told last.
    usage: Option<(Instant, Usage)>,
    /// It told nothing when it was asked last.
    is_silent: bool,
    /// It is being asked.
    is_asked: bool,
}

impl Nodes {
    /// A sample that is a base at that time.
    fn base(&self, name: &str, now: Instant) -> Option<&NodeSample> {
        let (at, sample) = self.0.get(name)?.sample.as_ref()?;
        (now.since(*at) < LONGEST).then_some(sample)
    }

    /// A node has told something.
    fn add(&mut self, name: &str, now: Instant, sample: NodeSample) {
        let base: Sample = self.base(name, now).cloned().map(|base| (name.to_owned(), base)).into_iter().collect();
        let told: Sample = [(name.to_owned(), sample.clone())].into();
        let usage = difference(&base, &told);
        let node = self.0.entry(name.to_owned()).or_default();
        node.sample = Some((now, sample));
        node.is_silent = false;
        if !usage.nodes.is_empty() || !usage.pods.is_empty() {
            node.usage = Some((now, usage));
        }
    }

    /// What all of them use, as far as that is known and not long ago.
    fn usage(&self, now: Instant) -> Usage {
        let mut all = Usage::default();
        let recent = |told: &&(Instant, Usage)| now.since(told.0) < LONGEST;
        for (_, usage) in self.0.values().filter_map(|node| node.usage.as_ref()).filter(recent) {
            all.nodes.extend(usage.nodes.iter().map(|(name, usage)| (name.clone(), *usage)));
            for (pod, usage) in &usage.pods {
                // While a pod ends its namesake may have begun elsewhere: what was told last counts.
                if all.pods.get(pod).is_none_or(|other| other.at < usage.at) {
                    all.pods.insert(pod.clone(), usage.clone());
                }
            }
        }
        all
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

    async fn ask(&self, server: &Arc<ApiServer>) -> Arc<Usage> {
        let nodes = scrape::nodes(server);
        let (silent, prompt): (Vec<_>, Vec<_>) = {
            let mut state = self.state.lock();
            state.nodes.0.retain(|name, _| nodes.iter().any(|node| node.name() == name));
            // A node that is still being asked by the pass before is not asked twice.
            let free = nodes.into_iter().filter(|node| {
                let told = state.nodes.0.entry(node.name().to_owned()).or_default();
                !std::mem::replace(&mut told.is_asked, true)
            });
            free.collect::<Vec<_>>().into_iter().partition(|node| state.nodes.0[node.name()].is_silent)
        };
        let (done, all) = tokio::sync::oneshot::channel::<()>();
        let asked: Vec<_> = prompt.into_iter().map(|node| Asked::new(server, node)).collect();
        server.stage().run(async move {
            each(asked).await;
            // Who asked may have stopped waiting.
            let _ = done.send(());
        });
        let asked: Vec<_> = silent.into_iter().map(|node| Asked::new(server, node)).collect();
        server.stage().run(each(asked));
        // What comes later is for those who ask later.
        let _ = server.clock.timeout(WAIT, all).await;
        let (mut state, now) = (self.state.lock(), server.clock.now());
        let usage = Arc::new(state.nodes.usage(now));
        state.found = Some((now, usage.clone()));
        state.asking = None;
        usage
    }
}

async fn each(asked: Vec<Asked>) {
    stream::iter(asked).map(Asked::run).buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
}

/// A node that is being asked; it may be asked again when this is gone, however it ended.
struct Asked {
    server: Arc<ApiServer>,
    node: Found,
}

impl Asked {
    fn new(server: &Arc<ApiServer>, node: Found) -> Self {
        Self { server: server.clone(), node }
    }

    async fn run(self) {
        let (server, name) = (&self.server, self.node.name());
        let work = async {
            let metrics = &server.resource_metrics.state;
            let has_base = metrics.lock().nodes.base(name, server.clock.now()).is_some();
            if !has_base {
                let first = self.node.sample(server).await?;
                metrics.lock().nodes.add(name, server.clock.now(), first);
                server.clock.sleep(SHORTEST).await;
            }
            let sample = self.node.sample(server).await?;
            metrics.lock().nodes.add(name, server.clock.now(), sample);
            Ok::<_, String>(())
        };
        let why = match server.clock.timeout(self.node.patience(), Box::pin(work)).await {
            Ok(Ok(())) => return,
            Ok(Err(why)) => why,
            Err(_) => "it does not tell in time".to_owned(),
        };
        tracing::debug!(node = name, why, "what is used on a node is not known");
        if let Some(told) = server.resource_metrics.state.lock().nodes.0.get_mut(name) {
            told.is_silent = true;
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(told) = self.server.resource_metrics.state.lock().nodes.0.get_mut(self.node.name()) {
            told.is_asked = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::clock::{Clock, ManualClock};

    #[test]
    fn a_node_that_is_silent_keeps_what_it_told_for_a_while() {
        let clock = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let sample = |at: i64, cpu: f64| {
            let (seconds, bytes) = ("node_cpu_usage_seconds_total", "node_memory_working_set_bytes");
            let page =
                format!("# TYPE {seconds} counter\n{seconds} {cpu} {at}\n# TYPE {bytes} gauge\n{bytes} 1 {at}\n");
            NodeSample::of(&stdx::metrics::read::read(&page).expect("a page"))
        };
        let mut nodes = Nodes::default();
        let known = |nodes: &Nodes, now| nodes.usage(now).nodes.into_keys().collect::<Vec<_>>();
        for name in ["a", "b"] {
            nodes.add(name, clock.now(), sample(1000, 1.0));
        }
        assert_eq!(known(&nodes, clock.now()), [""; 0]);
        for name in ["a", "b"] {
            nodes.add(name, clock.now(), sample(3000, 2.0));
        }
        assert_eq!(known(&nodes, clock.now()), ["a", "b"]);
        clock.advance(Duration::from_secs(100));
        nodes.add("b", clock.now(), sample(103_000, 52.0));
        // What was told a moment ago is no news.
        nodes.add("b", clock.now(), sample(103_000, 52.0));
        assert_eq!(known(&nodes, clock.now()), ["a", "b"]);
        assert_eq!(nodes.usage(clock.now()).nodes["b"].used.cpu, 500_000_000);
        clock.advance(Duration::from_secs(30));
        assert_eq!(known(&nodes, clock.now()), ["b"]);
        assert!(nodes.base("a", clock.now()).is_none() && nodes.base("b", clock.now()).is_some());
    }
}
