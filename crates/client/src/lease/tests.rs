//! One leads at a time; a leader that is gone is replaced after its lease, one that leaves at once.

use super::*;
use crate::fake::Fake;
use crate::resource::Resource;
use jiff::Timestamp;
use machinery::status::Status;
use std::sync::Arc;
use stdx::clock::ManualClock;

fn bench() -> (Fake, ManualClock, SharedClock) {
    let clock = ManualClock::new(Timestamp::from_second(1).expect("in range"));
    let shared: SharedClock = Arc::new(clock.clone());
    (Fake::new(vec![Resource::of::<Lease>()], shared.clone(), Rng::seeded(1)), clock, shared)
}

fn candidate(fake: &Fake, clock: &SharedClock, identity: &str) -> Election {
    let client = Client::new(fake.handler(), "test");
    let key = Key::new("kube-system", "kube-scheduler");
    Election::new(&client, &key, identity.into(), Times::default(), clock.clone(), Rng::seeded(1))
}

#[tokio::test]
async fn one_leads_until_it_is_silent_for_its_lease() {
    let (fake, clock, shared) = bench();
    let (mut a, mut b) = (candidate(&fake, &shared, "a"), candidate(&fake, &shared, "b"));
    assert!(a.attempt().await.expect("answered"));
    assert!(!b.attempt().await.expect("answered"));
    clock.advance(Duration::from_secs(14));
    assert!(!b.attempt().await.expect("answered"));
    // A wall clock far ahead gives nobody the lead.
    clock.jump_wall(Timestamp::from_second(1_000_000).expect("in range"));
    assert!(!b.attempt().await.expect("answered"));
    assert!(a.attempt().await.expect("answered"), "the leader renews");
    clock.advance(Duration::from_secs(14));
    assert!(!b.attempt().await.expect("answered"));
    clock.advance(Duration::from_secs(15));
    assert!(b.attempt().await.expect("answered"));
    assert!(!a.attempt().await.expect("answered"));
    let lease = fake.object("leases.coordination.k8s.io", "kube-system", "kube-scheduler").expect("there");
    assert_eq!(lease["spec"]["holderIdentity"], "b");
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
    b.release().await.expect("released");
    assert!(a.attempt().await.expect("answered"));
}

#[tokio::test]
async fn a_leader_that_cannot_renew_gives_up() {
    let (fake, clock, shared) = bench();
    let mut a = candidate(&fake, &shared, "a");
    a.acquire().await;
    for _ in 0..20 {
        fake.fail("GET", "leases", Status::unavailable("away"));
    }
    let task = tokio::spawn(async move { a.keep().await });
    for second in 0..30 {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        if task.is_finished() {
            assert!(second >= 10, "too soon: {second}");
            return;
        }
        clock.advance(Duration::from_secs(1));
    }
    panic!("it still believes to lead");
}

#[tokio::test]
async fn a_node_lease_is_made_and_renewed() {
    let (fake, clock, shared) = bench();
    let client = Client::new(fake.handler(), "kubelet");
    let task = tokio::spawn(Renewal::node(client, "n1", None, shared, Rng::seeded(1)).run());
    let mut renewals = std::collections::BTreeSet::new();
    for _ in 0..35 {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        if let Some(lease) = fake.object("leases.coordination.k8s.io", "kube-node-lease", "n1") {
            assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
            renewals.insert(lease["spec"]["renewTime"].to_string());
        }
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(renewals.len(), 4);
    task.abort();
}
