//! One probe of one container, from its start to its end.
//!
//! The first question is asked as soon as the initial delay allows. While nothing listens yet, a
//! readiness or startup probe asks again soon, more and more slowly, instead of wasting its whole
//! period; these extra questions can only succeed: their failures are not counted and not reported.

use std::sync::Arc;
use std::time::Duration;

use client::events::Type;
use stdx::clock::Instant;
use stdx::{ClockExt, SharedClock};

use super::threshold::{Kind, Threshold, Verdict};
use super::{Answer, Target, seconds};
use crate::metrics::Metrics;
use crate::pod::BoundPod;
use crate::report::Report;
use crate::runtime::Runtime;

/// The first extra question comes this long after a connection was refused.
const SOON: Duration = Duration::from_millis(20);
/// Extra questions are at most this far apart.
const LESS_SOON: Duration = Duration::from_secs(1);
/// How often a question that itself failed is asked again at once.
const RETRIES: usize = 3;

/// What a probe tells the pod it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub container_id: String,
    pub container: String,
    pub kind: Kind,
    /// What holds now; `None` while there is no verdict.
    pub verdict: Option<Verdict>,
    /// The last answer, empty for success.
    pub text: String,
}

/// A probe at work.
pub struct Prober {
    pub kind: Kind,
    pub target: Target,
    pub pod: Arc<BoundPod>,
    /// How long the container has been running already.
    pub running_for: Duration,
    pub runtime: Arc<dyn Runtime>,
    pub report: Arc<dyn Report>,
    pub metrics: Metrics,
    pub clock: SharedClock,
}

impl Prober {
    /// Asks until a verdict ends the container or, for a startup probe, until it has started.
    pub async fn run(self, tell: impl Fn(Told) + Send + Sync) {
        let probe = &self.target.probe;
        let period = seconds(probe.period_seconds, 10);
        let delay = Duration::from_secs(u64::try_from(probe.initial_delay_seconds.unwrap_or(0)).unwrap_or(0));
        let wait = delay.saturating_sub(self.running_for);
        if wait > Duration::ZERO {
            self.clock.sleep(wait).await;
        }
        let mut threshold = Threshold::new(probe.success_threshold, probe.failure_threshold);
        let mut state = State { verdict: None, text: String::new(), ever_succeeded: false };
        let first = self.clock.now();
        let mut due = first;
        loop {
            let started = self.clock.now();
            let mut answer = self.ask().await;
            due = next(due, started, period);
            if self.may_ask_soon(&state) {
                // What it waits for is told at once, not when the period has passed.
                self.publish(&mut state, None, &answer, &tell);
                if let Some(better) = self.ask_soon(&answer, due).await {
                    answer = better;
                }
                let nobody_yet = matches!(answer, Answer::Failure { refused: true, .. });
                if nobody_yet && self.clock.now().since(first) <= period {
                    self.publish(&mut state, None, &answer, &tell);
                    self.clock.sleep_until(due).await;
                    continue;
                }
            }
            let verdict = threshold.count(self.judge(&answer));
            state.ever_succeeded |= matches!(answer, Answer::Success | Answer::Warning(_));
            self.publish(&mut state, verdict, &answer, &tell);
            if self.is_over(verdict) {
                return;
            }
            self.clock.sleep_until(due).await;
        }
    }

    fn may_ask_soon(&self, state: &State) -> bool {
        let network = self.target.probe.exec.is_none();
        network && self.kind != Kind::Liveness && !state.ever_succeeded
    }

    /// Asks again while nobody listens, until `due`.
    async fn ask_soon(&self, answer: &Answer, due: Instant) -> Option<Answer> {
        let mut last = None;
        let mut pause = SOON;
        let mut refused = matches!(answer, Answer::Failure { refused: true, .. });
        while refused && self.clock.now() + pause < due {
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(LESS_SOON);
            let answer = self.ask().await;
            refused = matches!(answer, Answer::Failure { refused: true, .. });
            last = Some(answer);
        }
        last
    }

    async fn ask(&self) -> Answer {
        let mut answer = Answer::Error(String::new());
        for _ in 0..RETRIES {
            let began = self.clock.now();
            answer = self.target.ask(&self.runtime, &self.clock).await;
            let result = match &answer {
                Answer::Success | Answer::Warning(_) => "successful",
                Answer::Failure { .. } => "failed",
                Answer::Error(_) => "unknown",
            };
            let took = self.clock.now().since(began);
            self.metrics.probed(&self.pod, &self.target.container.name, self.kind, result, took);
            if !matches!(answer, Answer::Error(_)) {
                break;
            }
        }
        answer
    }

    /// Counts an answer and reports what a user should know of it.
    fn judge(&self, answer: &Answer) -> Verdict {
        let title = self.kind.title();
        let event = |kind, reason: &str, message: String| {
            self.report.event(&self.pod, Some(&self.target.container.name), kind, reason, message);
        };
        match answer {
            Answer::Success => Verdict::Success,
            Answer::Warning(text) => {
                event(Type::Warning, "ProbeWarning", format!("{title} probe warning: {text}"));
                Verdict::Success
            }
            Answer::Failure { text, .. } => {
                event(Type::Warning, "Unhealthy", format!("{title} probe failed: {text}"));
                Verdict::Failure
            }
            Answer::Error(text) => {
                let message = format!("{title} probe errored and resulted in unknown state: {text}");
                event(Type::Warning, "Unhealthy", message);
                Verdict::Failure
            }
        }
    }

    fn publish(&self, state: &mut State, verdict: Option<Verdict>, answer: &Answer, tell: &(impl Fn(Told) + Sync)) {
        let text = match answer {
            Answer::Success => String::new(),
            Answer::Warning(text) | Answer::Failure { text, .. } | Answer::Error(text) => text.clone(),
        };
        let verdict = verdict.or(state.verdict);
        if verdict == state.verdict && text == state.text {
            return;
        }
        (state.verdict, state.text) = (verdict, text.clone());
        tell(Told {
            container_id: self.target.container_id.clone(),
            container: self.target.container.name.clone(),
            kind: self.kind,
            verdict,
            text,
        });
    }

    fn is_over(&self, verdict: Option<Verdict>) -> bool {
        match self.kind {
            Kind::Readiness => false,
            Kind::Liveness => verdict == Some(Verdict::Failure),
            Kind::Startup => verdict.is_some(),
        }
    }
}

struct State {
    verdict: Option<Verdict>,
    text: String,
    ever_succeeded: bool,
}

/// When the next question is due: one period after the last was, or after it was asked when that
/// was late.
fn next(due: Instant, asked: Instant, period: Duration) -> Instant {
    (due + period).max(asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use crate::report::FakeReport;
    use crate::runtime::fake::Fake;
    use serde_json::json;
    use stdx::clock::RealClock;
    use tokio::sync::mpsc;

    fn prober(kind: Kind, port: u16, report: &FakeReport) -> Prober {
        let container = json!({"name": "c"});
        Prober {
            kind,
            target: Target {
                probe: serde_json::from_value(json!({"tcpSocket": {"port": port}, "periodSeconds": 60}))
                    .expect("a probe"),
                container: serde_json::from_value(container.clone()).expect("a container"),
                container_id: "id".into(),
                ip: "127.0.0.1".into(),
            },
            pod: pod(json!({"spec": {"containers": [container]}})),
            running_for: Duration::ZERO,
            runtime: Arc::new(Fake::default()),
            report: Arc::new(report.clone()),
            metrics: Metrics::default(),
            clock: RealClock::shared(),
        }
    }

    #[tokio::test]
    async fn a_port_that_opens_late_is_found_without_waiting_a_period() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("an address").port();
        let report = FakeReport::default();
        let (tx, mut rx) = mpsc::unbounded_channel();
        let task = tokio::spawn(prober(Kind::Readiness, free, &report).run(move |told| drop(tx.send(told))));
        // Let the first question be refused, then listen.
        tokio::task::yield_now().await;
        let _listener = tokio::net::TcpListener::bind(("127.0.0.1", free)).await.expect("bound");
        let told = loop {
            let told = rx.recv().await.expect("told");
            if told.verdict.is_some() {
                break told;
            }
        };
        assert_eq!(told.verdict, Some(Verdict::Success));
        assert!(report.events.lock().is_empty(), "nobody need know: {:?}", report.events.lock());
        task.abort();
    }

    #[tokio::test]
    async fn a_startup_probe_ends_with_its_success() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let (tx, mut rx) = mpsc::unbounded_channel();
        prober(Kind::Startup, port, &FakeReport::default()).run(move |told| drop(tx.send(told))).await;
        assert_eq!(rx.recv().await.and_then(|t| t.verdict), Some(Verdict::Success));
    }

    #[tokio::test]
    async fn a_failing_liveness_probe_is_reported_and_ends() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("an address").port();
        let report = FakeReport::default();
        let mut prober = prober(Kind::Liveness, free, &report);
        prober.target.probe.failure_threshold = Some(1);
        let (tx, mut rx) = mpsc::unbounded_channel();
        prober.run(move |told| drop(tx.send(told))).await;
        assert_eq!(rx.recv().await.and_then(|t| t.verdict), Some(Verdict::Failure));
        let want =
            format!("!Unhealthy [c] Liveness probe failed: dial tcp 127.0.0.1:{free}: connect: connection refused");
        assert_eq!(*report.events.lock(), [want]);
    }
}
