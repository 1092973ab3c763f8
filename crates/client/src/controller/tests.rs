//! The loop survives errors and panics of one key, and holds keys back for their own writes.

use super::*;
use futures::channel::oneshot;
use jiff::Timestamp;
use stdx::clock::ManualClock;

struct Scripted {
    log: Mutex<Vec<String>>,
    hold: Mutex<Option<oneshot::Receiver<()>>>,
}

#[async_trait]
impl Reconcile for Scripted {
    type Key = &'static str;

    async fn reconcile(&self, key: &&'static str, pass: &Pass) -> Result<Next, Error> {
        self.log.lock().push(format!("{key} {}", pass.failures));
        match (*key, pass.failures) {
            ("panics", 0) => panic!("scripted"),
            ("fails", 0..2) => Err(Error::Invalid("scripted".into())),
            ("later", 0) if self.log.lock().len() == 1 => Ok(Next::After(Duration::from_secs(5))),
            ("held", _) => {
                if let Some(receiver) = self.hold.lock().take() {
                    pass.hold(async move { receiver.await.expect("the test lets go") });
                }
                Ok(Next::Done)
            }
            _ => Ok(Next::Done),
        }
    }
}

struct Bench {
    clock: ManualClock,
    queue: Arc<Queue<&'static str>>,
    scripted: Arc<Scripted>,
    counters: Arc<Counters>,
    stage: Stage,
}

impl Bench {
    fn new(hold: Option<oneshot::Receiver<()>>) -> Self {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        let shared: SharedClock = Arc::new(clock.clone());
        let queue = Queue::new(shared.clone());
        let scripted = Arc::new(Scripted { log: Mutex::new(Vec::new()), hold: Mutex::new(hold) });
        let stage = Stage::new();
        let options =
            Options { name: "scripted", workers: 2, clock: shared, rng: Rng::seeded(1), metrics: Default::default() };
        let counters = run(options, queue.clone(), scripted.clone(), std::future::ready(()), &stage);
        Self { clock, queue, scripted, counters, stage }
    }

    async fn settle(&self) {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    fn log(&self) -> Vec<String> {
        self.scripted.log.lock().clone()
    }
}

#[tokio::test]
async fn a_panic_or_an_error_delays_only_its_own_key() {
    let bench = Bench::new(None);
    for key in ["panics", "fails", "fine"] {
        bench.queue.add(key);
    }
    bench.settle().await;
    assert_eq!(bench.log(), ["panics 0", "fails 0", "fine 0"]);
    assert_eq!(bench.counters.panics.load(Ordering::Relaxed), 1);
    for _ in 0..4 {
        bench.clock.advance(Duration::from_millis(10));
        bench.settle().await;
    }
    let mut rest = bench.log().split_off(3);
    rest.sort();
    assert_eq!(rest, ["fails 1", "fails 2", "panics 1"]);
    bench.stage.stop();
}

#[tokio::test]
async fn a_pass_may_ask_for_another_later() {
    let bench = Bench::new(None);
    bench.queue.add("later");
    bench.settle().await;
    bench.clock.advance(Duration::from_secs(4));
    bench.settle().await;
    assert_eq!(bench.log().len(), 1);
    bench.clock.advance(Duration::from_secs(1));
    bench.settle().await;
    assert_eq!(bench.log().len(), 2);
}

#[tokio::test]
async fn a_key_is_held_back_until_its_writes_are_seen() {
    let (seen, hold) = oneshot::channel();
    let bench = Bench::new(Some(hold));
    bench.queue.add("held");
    bench.settle().await;
    bench.queue.add("held");
    bench.settle().await;
    assert_eq!(bench.log(), ["held 0"]);
    seen.send(()).expect("the pass waits");
    bench.settle().await;
    assert_eq!(bench.log(), ["held 0", "held 0"]);
}
