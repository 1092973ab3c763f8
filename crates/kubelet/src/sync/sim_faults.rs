//! What surrounds a pod's task fails: clocks are set, the API server is gone, the disk takes nothing.

use std::time::Duration;

use serde_json::json;
use stdx::clock::{Clock, Instant};

use super::sim::{Sim, UID, two};
use crate::runtime::{Happened, Hint};

fn hours(hours: i64) -> jiff::SignedDuration {
    jiff::SignedDuration::from_hours(hours)
}

fn restarts(sim: &Sim, name: &str) -> Option<i32> {
    let status = sim.cluster.status();
    status.container_statuses.iter().flatten().find(|c| c.name == name).map(|c| c.restart_count)
}

#[tokio::test]
async fn a_clock_that_is_set_fires_no_probe() {
    let mut spec = two("Always");
    spec["containers"][0]["livenessProbe"] = json!({"exec": {"command": ["x"]}, "initialDelaySeconds": 1000});
    // The runtime's clock is half a century behind: its containers seem to have run for as long.
    let sim = Sim::new(20, spec);
    sim.until("ready", |s| s.is_ready()).await;
    sim.clock.jump_wall(sim.clock.wall() + hours(10));
    sim.mail.runtime();
    let probed = sim.runtime.take_log().iter().any(|l| l.starts_with("exec"));
    assert!(!probed, "it was probed before its time");
    sim.until("the probe", |s| s.runtime.take_log().iter().any(|l| l.starts_with("exec"))).await;
    assert!(sim.clock.now() >= Instant(Duration::from_secs(1000)), "{:?}", sim.clock.now());
}

#[tokio::test]
async fn a_clock_that_is_set_ends_no_back_off() {
    let sim = Sim::new(21, two("Always"));
    sim.until("ready", |s| s.is_ready()).await;
    assert!(sim.exit("a", 7));
    sim.until("restarted at once", |s| restarts(s, "a") == Some(1) && s.runs("a")).await;
    let before = sim.clock.now();
    let ended = sim.clock.wall();
    assert!(sim.runtime.exit(UID, "a", 7, ended));
    sim.clock.jump_wall(ended + hours(10));
    sim.mail.runtime();
    sim.until("restarted", |s| s.runs("a")).await;
    assert!(sim.clock.now().since(before) >= Duration::from_secs(10), "it waited no ten seconds");
}

#[tokio::test]
async fn a_clock_that_is_set_ends_no_pod() {
    let mut spec = two("Always");
    spec["activeDeadlineSeconds"] = json!(5000);
    let sim = Sim::new(22, spec);
    sim.until("ready", |s| s.is_ready()).await;
    sim.clock.jump_wall(sim.clock.wall() + hours(10));
    sim.cluster.change(|pod| pod["metadata"]["labels"] = json!({"a": "b"}));
    sim.show();
    sim.until("over its deadline", |s| s.cluster.status().reason.as_deref() == Some("DeadlineExceeded")).await;
    assert!(sim.clock.now() >= Instant(Duration::from_secs(5000)), "{:?}", sim.clock.now());
}

#[tokio::test]
async fn without_an_api_server_containers_are_restarted_and_the_status_catches_up() {
    let sim = Sim::new(23, two("Always"));
    sim.until("ready", |s| s.is_ready()).await;
    *sim.cluster.refuse.lock() = true;
    for _ in 0..3 {
        assert!(sim.exit("a", 7));
        sim.until("restarted", |s| s.runs("a")).await;
    }
    sim.clock.advance(Duration::from_secs(3600));
    assert_eq!(restarts(&sim, "a"), Some(0), "nobody could be told");
    *sim.cluster.refuse.lock() = false;
    sim.until("told", |s| restarts(s, "a") == Some(3) && s.is_ready()).await;
}

#[tokio::test]
async fn a_disk_that_takes_nothing_is_told_and_waited_for() {
    let sim = Sim::new(24, two("Always"));
    // Root may write everywhere: what it cannot do is make a folder of a file.
    let place = sim.root.path().join("pods");
    std::fs::write(&place, "").expect("written");
    let told = |s: &Sim| s.report.events.lock().iter().any(|e| e.starts_with("!FailedMount "));
    sim.until("told", told).await;
    let waits = |s: &Sim| s.report.waiting.lock().get(UID).is_some_and(|w| w.iter().any(|w| w.code == "Mount"));
    sim.until("it waits", waits).await;
    std::fs::remove_file(&place).expect("removed");
    sim.until("ready", |s| s.is_ready()).await;
}

/// The runtime's events run ahead of its records: an end may be told of before anybody has seen the container run.
#[tokio::test]
async fn an_end_is_found_that_was_told_of_too_early() {
    let sim = Sim::new(25, two("Always"));
    let door = sim.runtime.hold("start_container");
    sim.until("one is about to start", |s| s.runtime.is_held("start_container")).await;
    sim.mail.runtime();
    let is_seen = |s: &Sim| {
        let status = s.cluster.status();
        status.container_statuses.iter().flatten().any(|c| c.container_id.is_some())
    };
    sim.until("it is seen before it runs", is_seen).await;
    let id = sim.runtime.seen(UID).container("a").map(|c| c.id.clone()).expect("it is there");
    sim.mail.hint(&Hint { id, what: Happened::Ended });
    drop(door);
    sim.until("both run", |s| s.runs("a") && s.runs("b")).await;
    // Now the records say so, too, and nobody tells of it.
    assert!(sim.runtime.exit(UID, "a", 7, sim.clock.wall()));
    sim.until("it is found", |s| restarts(s, "a") == Some(1)).await;
}
