//! Pods whose endpoints leave the rules of their node before they end.

use std::time::Duration;

use serde_json::json;
use stdx::clock::{Clock as _, Instant};

use super::leave::LEAVING;
use super::sim::{Sim, two};

/// A pod that is ready, and whose endpoint is to leave the rules of a Service first.
async fn exposed(seed: u64) -> Sim {
    let sim = Sim::new(seed, two("Always"));
    *sim.cluster.leaves.lock() = vec!["web".into()];
    sim.until("ready", |s| s.is_ready()).await;
    sim.runtime.take_log();
    sim
}

fn delete(sim: &Sim, grace: i64) -> Instant {
    sim.cluster.change(|pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
    });
    sim.show();
    sim.clock.now()
}

/// How many seconds the first container that was ended had.
fn stopped_with(sim: &Sim) -> u64 {
    let log = sim.runtime.take_log();
    let stop = log.iter().find(|line| line.starts_with("stop_container")).unwrap_or_else(|| panic!("{log:?}"));
    stop.rsplit(' ').next().and_then(|seconds| seconds.parse().ok()).expect("seconds")
}

fn says(sim: &Sim) -> bool {
    sim.report.waiting.lock().values().flatten().any(|wait| wait.code == LEAVING)
}

#[tokio::test]
async fn nothing_of_a_pod_ends_before_its_endpoints_have_left() {
    let sim = exposed(61).await;
    delete(&sim, 30);
    sim.until("it waits", says).await;
    assert!(sim.runs("a") && sim.runs("b"), "nothing has ended");
    assert!(!sim.runtime.take_log().iter().any(|line| line.starts_with("stop_container")));
    sim.cluster.left.send_replace(true);
    sim.until("gone", |s| s.cluster.is_gone() && s.task.is_finished()).await;
    assert!(stopped_with(&sim) >= 29, "it was told, and waited no longer");
    assert!(!says(&sim));
}

#[tokio::test]
async fn where_nobody_tells_it_ends_all_the_same_and_within_its_grace() {
    for (seed, grace, least) in [(62, 30, 2_000), (63, 2, 1_000), (64, 0, 0)] {
        let sim = exposed(seed).await;
        sim.runtime.be_deaf();
        let begun = delete(&sim, i64::try_from(grace).expect("small"));
        sim.until("gone", |s| s.cluster.is_gone() && s.task.is_finished()).await;
        let took = sim.clock.now().since(begun);
        assert!(took >= Duration::from_millis(least), "{grace} s: {took:?}");
        // What it waited is not added to what its containers have.
        let want = Duration::from_secs(grace).saturating_sub(Duration::from_millis(least)).as_secs();
        assert_eq!(stopped_with(&sim), want, "{grace} s");
    }
}

#[tokio::test]
async fn a_quicker_end_is_waited_for_no_longer_than_it_allows() {
    let sim = exposed(65).await;
    delete(&sim, 30);
    sim.until("it waits", says).await;
    delete(&sim, 0);
    sim.until("gone", |s| s.cluster.is_gone() && s.task.is_finished()).await;
    assert_eq!(stopped_with(&sim), 0);
}

/// A grace that the wait has left a part of is not none: that would be to be killed at once.
#[tokio::test]
async fn what_is_left_of_a_second_is_a_second() {
    for (seed, grace) in [(66, 1), (67, 30)] {
        let sim = exposed(seed).await;
        delete(&sim, grace);
        sim.until("it waits", says).await;
        sim.clock.advance(Duration::from_millis(50));
        sim.cluster.left.send_replace(true);
        sim.until("gone", |s| s.cluster.is_gone() && s.task.is_finished()).await;
        assert_eq!(i64::try_from(stopped_with(&sim)), Ok(grace));
    }
}

#[tokio::test]
async fn a_wait_that_was_given_up_is_said_no_more() {
    let sim = exposed(68).await;
    let door = sim.runtime.hold("stop_container");
    delete(&sim, 30);
    sim.until("it waits", says).await;
    delete(&sim, 0);
    sim.until("it is being ended", |s| s.runtime.is_held("stop_container")).await;
    sim.until("it says so no more", |s| !says(s)).await;
    drop(door);
    sim.until("gone", |s| s.cluster.is_gone() && s.task.is_finished()).await;
    // However many turns it took, and though a quicker end took the place of the first.
    let worked = |operation| sim.ctx.metrics.worker_duration.count(&[operation]);
    assert_eq!([worked("create"), worked("kill")], [1, 1]);
}
