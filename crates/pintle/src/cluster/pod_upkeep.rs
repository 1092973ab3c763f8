//! What goes on beside the calls of the network plugin: attachments that nobody will take away are collected, and
//! rules of host ports that somebody removed are written again.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use cni::ports;
use cni::records::Records;
use net::monitor::{Monitor, Own};
use stdx::backoff::Policy;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};

use super::pod_network;

/// How often what calls left that were killed is looked for: the runtime does not say that it began anew.
const COLLECT: Duration = Duration::from_secs(600);
/// How long to wait where the runtime, the disk or the kernel said no.
const RETRY: Policy = Policy { initial: Duration::from_secs(1), max: Duration::from_secs(60) };
/// How long what happens to the rules is gathered: who flushes them flushes many tables.
const SETTLE: Duration = Duration::from_millis(100);

/// Where the plugin keeps its records, whom it asks, and which runtime knows the pods.
#[derive(Clone, Debug)]
pub struct Attachments {
    pub state: PathBuf,
    pub gate: Option<PathBuf>,
    /// `unix:///path`
    pub runtime: String,
}

/// Does all of it until the stage stops.
pub async fn keep(attachments: Attachments, clock: &SharedClock, stage: &Stage) {
    tokio::select! {
        () = collect(&attachments, clock) => {}
        () = keep_ports(&attachments, clock) => {}
        () = stage.stopped() => {}
    }
}

async fn collect(attachments: &Attachments, clock: &SharedClock) {
    let mut failures = 0;
    loop {
        match pod_network::try_collect(attachments, clock).await {
            Ok(count) => {
                failures = 0;
                pod_network::tell_collected(count);
                clock.sleep(COLLECT).await;
            }
            Err(error) => {
                failures += 1;
                tracing::debug!(error = format!("{error:#}"), failures, "what pods left of their network stays");
                clock.sleep(RETRY.delay(failures)).await;
            }
        }
    }
}

/// Every writer of these rules is the plugin, which writes them whole: what changes a part of them is somebody else.
async fn keep_ports(attachments: &Attachments, clock: &SharedClock) {
    let mut failures = 0;
    loop {
        let error = match try_keep_ports(attachments, clock, &mut failures).await {
            Ok(()) => continue,
            Err(error) => error,
        };
        failures += 1;
        tracing::warn!(%error, failures, "the rules of host ports may be missing");
        clock.sleep(RETRY.delay(failures)).await;
    }
}

/// One round: they are as the records say, and then somebody disturbs them.
async fn try_keep_ports(attachments: &Attachments, clock: &SharedClock, failures: &mut u32) -> Result<()> {
    // Before they are written, so that nothing is missed.
    let mut monitor = Monitor::start(Own::default())?;
    loop {
        let (records, table) = (Records::of(&attachments.state, host::cni::NETWORK), ports::table(&attachments.state));
        tokio::task::spawn_blocking(move || ports::restore(&records)).await??;
        *failures = 0;
        monitor.disturbed(&[&table]).await?;
        tracing::info!("somebody changed the rules of host ports: writing them again");
        clock.sleep(SETTLE).await;
    }
}
