//! What is sent to the kernel, and what is done when it refuses.

use std::collections::BTreeSet;

use net::ruleset::Family;
use parking_lot::Mutex;
use serde_json::json;

use super::*;
use crate::cases;

/// Records what it takes; says no to everything while `broken`, and to what names one of `hated`.
#[derive(Default)]
struct Recorder {
    broken: Mutex<bool>,
    hated: Mutex<BTreeSet<String>>,
    seen: Mutex<Vec<String>>,
}

impl Recorder {
    fn judge(&self, text: &str) -> Result<(), Error> {
        let no = *self.broken.lock() || self.hated.lock().iter().any(|h| text.contains(h.as_str()));
        if no { Err(Error::Refused("no".into())) } else { Ok(()) }
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock())
    }
}

#[async_trait::async_trait]
impl Kernel for Recorder {
    async fn apply(&self, transaction: &str) -> Result<(), Error> {
        self.judge(transaction)?;
        self.seen.lock().push(transaction.to_owned());
        Ok(())
    }

    async fn check(&self, transaction: &str) -> Result<(), Error> {
        self.judge(transaction)
    }

    async fn sets(&self, _: Family) -> Result<String, Error> {
        Ok(String::new())
    }

    async fn changed(&self, _: &[&str]) -> std::io::Result<()> {
        std::future::pending().await
    }
}

fn applied() -> (Arc<Recorder>, Applied) {
    let kernel = Arc::new(Recorder::default());
    (kernel.clone(), Applied::new(kernel))
}

fn pods() -> Vec<Change> {
    cases::golden()[1].1.clone()
}

/// Lets everything through at one port.
fn open(name: &str, port: u16) -> Change {
    cases::policy("shop", name, json!({"podSelector": {}, "ingress": [{"ports": [{"port": port}]}]}))
}

fn verdicts(applied: &Applied) -> Vec<String> {
    applied.table().whole(Family::Ip).sets["ingress-pods"].elements.keys().cloned().collect()
}

#[tokio::test]
async fn a_refused_policy_isolates_and_starves_nobody() {
    let (kernel, mut applied) = applied();
    applied.change(&pods()).await.expect("loaded");
    kernel.hated.lock().insert("dport 666 ".into());
    kernel.take();
    let changes = [open("a", 80), open("bad", 666), open("c", 443)];
    applied.change(&changes).await.expect("the others are taken");
    assert_eq!(applied.refused().keys().map(|k| k.name.as_str()).collect::<Vec<_>>(), ["bad"]);
    let texts = kernel.take().concat();
    assert!(texts.contains("dport 80 accept") && texts.contains("dport 443 accept"), "{texts}");
    assert!(!applied.needs_load());
    // Alone it isolates whom it selects.
    let gone = |name: &str| Change::Policy(Key::new("shop", name), None);
    applied.change(&[gone("a"), gone("c")]).await.expect("taken");
    assert_eq!(verdicts(&applied), ["10.244.0.7", "10.244.0.8"]);
    // Tried again it is as the kernel says then.
    kernel.hated.lock().clear();
    kernel.take();
    applied.change(&[open("bad", 666)]).await.expect("taken");
    assert!(applied.refused().is_empty());
    assert!(kernel.take().concat().contains("dport 666 accept"));
}

#[tokio::test]
async fn a_load_finds_what_is_refused() {
    let (kernel, mut applied) = applied();
    kernel.hated.lock().extend(["dport 666 ".into(), "dport 667 ".into()]);
    let policies = (660..670).map(|port| open(&format!("p{port}"), port));
    let all: Vec<Change> = pods().into_iter().chain(policies).collect();
    applied.change(&all).await.expect("the others are taken");
    assert_eq!(applied.refused().keys().map(|k| k.name.as_str()).collect::<Vec<_>>(), ["p666", "p667"]);
    let texts = kernel.take();
    assert!(texts.len() == 1 && texts[0].contains("dport 665 accept") && !texts[0].contains("dport 666"), "{texts:?}");
    // Closed they stay when all is loaded again.
    applied.forget();
    applied.change(&[]).await.expect("loaded");
    assert_eq!(applied.refused().len(), 2);
}

#[tokio::test]
async fn what_a_failure_held_up_comes_with_the_next_load() {
    let (kernel, mut applied) = applied();
    applied.change(&pods()).await.expect("loaded");
    *kernel.broken.lock() = true;
    let changes = [open("a", 80), cases::pod("shop", "new", &[], &["10.244.0.50"], true)];
    applied.change(&changes).await.expect_err("nothing is taken");
    assert!(applied.needs_load());
    *kernel.broken.lock() = false;
    kernel.take();
    applied.change(&[]).await.expect("loaded");
    let texts = kernel.take();
    assert!(texts.len() == 1 && texts[0].starts_with("table ip pintle-policy\ndelete table ip pintle-policy\n"));
    assert!(texts[0].contains("10.244.0.50"), "{texts:?}");
}

#[tokio::test]
async fn what_makes_no_difference_is_not_sent() {
    let (kernel, mut applied) = applied();
    applied.change(&pods()).await.expect("loaded");
    kernel.take();
    applied.change(&[cases::pod("ops", "other", &[], &["10.244.0.60"], true)]).await.expect("known");
    assert_eq!(kernel.take(), Vec::<String>::new(), "no policy concerns it");
    applied.change(&[open("a", 80), open("a2", 80)]).await.expect("taken");
    assert_eq!(kernel.take().len(), 1);
}
