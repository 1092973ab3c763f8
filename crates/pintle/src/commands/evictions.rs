//! Flags for what a node does when it is short of memory, disk or process ids, beside `--eviction-hard`.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use kubelet::config::FileConfig;
use kubelet::node::thresholds::{Bounds, Graces, Thresholds};

/// When pods are evicted for what lasts, and what has to become free.
#[derive(Args, Clone, Debug)]
pub struct Evictions {
    /// Below what pods are evicted when it lasts, e.g. `memory.available<500Mi`.
    #[arg(long, value_name = "SIGNAL<AMOUNT", value_parser = Bounds::limits)]
    eviction_soft: Option<Bounds>,
    /// How long it has to last, e.g. `memory.available=1m30s`.
    #[arg(long, value_name = "SIGNAL=DURATION", value_parser = Graces::graces)]
    eviction_soft_grace_period: Option<Graces>,
    /// The most seconds that a pod has to end then [default: 0].
    #[arg(long, value_name = "SECONDS")]
    eviction_max_pod_grace_period: Option<u32>,
    /// How much more than the bound has to become free once it was crossed, e.g. `nodefs.available=500Mi`.
    #[arg(long, value_name = "SIGNAL=AMOUNT", value_parser = Bounds::reclaims)]
    eviction_minimum_reclaim: Option<Bounds>,
    /// How long pressure has to be away before the node says so [default: 5m].
    #[arg(long, value_name = "DURATION", value_parser = kubelet::config::duration)]
    eviction_pressure_transition_period: Option<Duration>,
}

impl Evictions {
    /// As the kubelet takes them: what a flag does not say, `file` does.
    pub fn thresholds(&self, hard: Bounds, file: &FileConfig) -> Result<Thresholds> {
        let usual = Thresholds::hard(hard);
        let period = self.eviction_pressure_transition_period.or(file.eviction_pressure_transition_period);
        let thresholds = Thresholds {
            hard,
            soft: self.eviction_soft.or(file.eviction_soft).unwrap_or(usual.soft),
            soft_grace: self.eviction_soft_grace_period.or(file.eviction_soft_grace_period).unwrap_or(usual.soft_grace),
            reclaim: self.eviction_minimum_reclaim.or(file.eviction_minimum_reclaim).unwrap_or(usual.reclaim),
            max_pod_grace: self
                .eviction_max_pod_grace_period
                .or(file.eviction_max_pod_grace)
                .unwrap_or(usual.max_pod_grace),
            transition: period.unwrap_or(usual.transition),
        };
        thresholds.check().map_err(anyhow::Error::msg)?;
        Ok(thresholds)
    }
}
