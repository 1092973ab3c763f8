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
//! samples a second apart.

mod scrape;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use stdx::ClockExt;
use stdx::clock::Instant;
use tokio::sync::Mutex;

use crate::server::ApiServer;
pub use usage::{NodeUsage, PodUsage, Usage, Used};
use usage::{Sample, difference};

/// What was found is good for so long.
const RESOLUTION: Duration = Duration::from_secs(15);
/// A sample that is older is no base for an average.
const LONGEST: Duration = Duration::from_secs(120);
/// Between two samples where there was none: kubelets tell the same for a second.
const SHORTEST: Duration = Duration::from_millis(1100);

/// What kubelets told last.
#[derive(Default)]
pub struct ResourceMetrics {
    last: Mutex<Option<Last>>,
}

struct Last {
    at: Instant,
    sample: Sample,
    usage: Arc<Usage>,
}

impl ResourceMetrics {
    /// What is used, no older than [`RESOLUTION`].
    pub async fn current(&self, server: &ApiServer) -> Arc<Usage> {
        let mut last = self.last.lock().await;
        let clock = &server.clock;
        if let Some(known) = last.as_ref().filter(|l| clock.now().since(l.at) < RESOLUTION) {
            return known.usage.clone();
        }
        let before = match last.take().filter(|l| clock.now().since(l.at) < LONGEST) {
            Some(known) => known.sample,
            None => {
                let sample = scrape::every_node(server).await;
                if sample.is_empty() {
                    // Nobody tells anything; whoever begins to tells it next time.
                    return Arc::default();
                }
                clock.sleep(SHORTEST).await;
                sample
            }
        };
        let sample = scrape::every_node(server).await;
        let usage = Arc::new(difference(&before, &sample));
        *last = Some(Last { at: clock.now(), sample, usage: usage.clone() });
        usage
    }
}
