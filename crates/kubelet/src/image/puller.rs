//! Fetching images: a few at a time, each only once at a time, with upstream's events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ::cri::v1;
use api::types::core::v1::Secret;
use client::events::Type;
use parking_lot::Mutex;
use stdx::backoff::{Backoff, Policy as Delays};
use stdx::clock::Instant;
use stdx::metrics::{Histogram, Registry};
use stdx::{ClockExt, SharedClock};
use tokio::sync::Semaphore;

use super::credentials::{Credential, Origin};
use super::policy::{Policy, Step, back_off_message, go_duration};
use super::provider::Providers;
use super::rate::{self, Bucket, Rate};
use super::records::{Begun, Records};
use super::verify::Verification;
use super::{credentials, reference};
use crate::context::blocking;
use crate::metrics;
use crate::pod::BoundPod;
use crate::report::Report;
use crate::runtime::{Error, Image, Result as RuntimeResult, Runtime};

/// Images fetched at a time.
const PARALLEL: usize = 5;
/// A try that failed shows as such for so long before it shows as waiting for the next.
const SHOWN: Duration = Duration::from_secs(1);
/// How often the progress of a download is asked for.
const LOOK: Duration = Duration::from_secs(1);
/// Upstream's times.
const DELAYS: Delays = Delays { initial: Duration::from_secs(10), max: Duration::from_secs(300) };

/// Failed tries of one pod, by image.
#[derive(Debug)]
pub struct Tries {
    delays: Backoff<String>,
    errors: HashMap<String, String>,
    /// How long images were fetched for the pod, and until when.
    pulling: (Duration, Instant),
}

impl Tries {
    /// An image was fetched, or was not, in that time. What was fetched at one time took its time once.
    fn fetched(&mut self, asked: Instant, ended: Instant) {
        let (sum, until) = self.pulling;
        self.pulling = (sum + ended.since(asked.max(until)), ended.max(until));
    }

    /// How long images were fetched for the pod.
    pub fn pulling(&self) -> Duration {
        self.pulling.0
    }
}

impl Default for Tries {
    fn default() -> Self {
        Self { delays: Backoff::new(DELAYS), errors: HashMap::new(), pulling: Default::default() }
    }
}

/// An image that is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    pub image: Image,
    /// What containers are created with.
    pub reference: String,
}

/// Why there is no image: reason and message of the waiting container, and when to try again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub reason: &'static str,
    pub message: String,
    pub retry: Option<Instant>,
}

/// What is wanted.
pub struct Wish<'a> {
    pub pod: &'a BoundPod,
    /// The container it is for; `None` when the pod itself wants it.
    pub container: Option<&'a str>,
    /// The image as the pod names it.
    pub image: &'a str,
    pub policy: Policy,
    pub secrets: &'a [Arc<Secret>],
    pub missing_secrets: &'a [String],
    pub sandbox: &'a v1::PodSandboxConfig,
    pub tries: &'a Mutex<Tries>,
    /// Told while a download is under way: bytes so far and in all, when known.
    pub progress: &'a (dyn Fn(Option<(u64, u64)>) + Send + Sync),
}

/// The one that fetches.
pub struct Puller {
    runtime: Arc<dyn Runtime>,
    report: Arc<dyn Report>,
    clock: SharedClock,
    /// How many fetches there are at a time.
    parallel: usize,
    slots: Semaphore,
    rate: Bucket,
    records: Arc<Records>,
    providers: Option<Providers>,
    busy: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// How long pulls take, for whoever counts that.
    pulls: Option<Histogram>,
}

impl Puller {
    /// Nothing is being fetched yet.
    pub fn new(runtime: Arc<dyn Runtime>, report: Arc<dyn Report>, clock: SharedClock) -> Self {
        let records = Arc::new(Records::in_memory(Verification::default()));
        let (slots, busy) = (Semaphore::new(PARALLEL), Mutex::default());
        Self {
            runtime,
            report,
            clock,
            parallel: PARALLEL,
            slots,
            rate: Bucket::new(None),
            records,
            providers: None,
            busy,
            pulls: None,
        }
    }

    /// The same, whose pulls are counted there.
    pub fn counted(self, registry: &Registry) -> Self {
        Self { pulls: Some(metrics::image_pulls(registry)), ..self }
    }

    /// The same with so many fetches at a time, who fetched what, and plugins that know credentials.
    pub fn with(self, parallel: usize, records: Records, providers: Option<Providers>) -> Self {
        let parallel = parallel.clamp(1, Semaphore::MAX_PERMITS);
        Self { parallel, slots: Semaphore::new(parallel), records: Arc::new(records), providers, ..self }
    }

    /// The same, no more often than that.
    pub fn at_rate(self, rate: Option<Rate>) -> Self {
        Self { rate: Bucket::new(rate), ..self }
    }

    /// An image was removed.
    pub async fn forget(&self, id: &str) {
        let (records, id) = (self.records.clone(), id.to_owned());
        if let Err(error) = blocking(move || records.forget(&id)).await {
            tracing::warn!(%error, "the record of an image that is gone is not removed");
        }
    }

    /// What the pod may try to fetch the image with.
    async fn credentials(&self, wish: &Wish<'_>, name: &str) -> Vec<Credential> {
        let Ok(parsed) = reference::parse(name) else { return Vec::new() };
        let secrets: Vec<&Secret> = wish.secrets.iter().map(|s| &**s).collect();
        let mut found = credentials::fitting(&secrets, &parsed);
        if let Some(providers) = &self.providers {
            found.extend(providers.credentials(wish.pod, &parsed).await);
        }
        found
    }

    /// Whether the pod must fetch an image that is here, to show that it could.
    async fn must_fetch(&self, wish: &Wish<'_>, name: &str, image: &Image) -> bool {
        if let Some(answer) = self.records.must_fetch(name, image, None) {
            return answer;
        }
        let found = self.credentials(wish, name).await;
        let origins: Vec<Origin> = found.into_iter().map(|c| c.origin).collect();
        self.records.must_fetch(name, image, Some(&origins)).unwrap_or(true)
    }

    /// Makes sure that a container's image is here.
    pub async fn ensure(&self, wish: &Wish<'_>) -> Result<Ready, Problem> {
        let given = wish.image;
        let event = |kind, reason: &str, message: String| {
            self.report.event(wish.pod, wish.container, kind, reason, message);
        };
        let name = match reference::with_tag(given) {
            Ok(name) => name,
            Err(why) => {
                let text = format!("Failed to apply default image tag \"{given}\": {why}");
                event(Type::Warning, "InspectFailed", text.clone());
                event(Type::Warning, "Failed", "Error: InvalidImageName".into());
                return Err(Problem { reason: "InvalidImageName", message: text, retry: None });
            }
        };
        // Two containers that want the same image: the second finds it when the first has it.
        let lock = self.busy.lock().entry(name.clone()).or_default().clone();
        let held = lock.clone().lock_owned().await;
        let result = self.ensure_alone(wish, given, &name, wish.policy, &event).await;
        drop(held);
        let mut busy = self.busy.lock();
        // Ours and the table's: nobody else waits.
        if Arc::strong_count(&lock) <= 2 {
            busy.remove(&name);
        }
        result
    }

    async fn ensure_alone(
        &self,
        wish: &Wish<'_>,
        given: &str,
        name: &str,
        policy: Policy,
        event: &(dyn Fn(Type, &str, String) + Send + Sync),
    ) -> Result<Ready, Problem> {
        let present = match self.runtime.image(name).await {
            Ok(present) => present,
            Err(error) => {
                let text = format!("Failed to inspect image \"{given}\": {error}");
                event(Type::Warning, "InspectFailed", text.clone());
                event(Type::Warning, "Failed", "Error: ImageInspectError".into());
                return Err(Problem { reason: "ImageInspectError", message: text, retry: self.soon() });
            }
        };
        let present = match present {
            // Who may not have it learns nothing of its being here.
            Some(image) if policy != Policy::Always && self.must_fetch(wish, name, &image).await => None,
            present => present,
        };
        let remaining = wish.tries.lock().delays.remaining(&name.to_owned(), self.clock.now());
        match (policy.choose(present.is_some(), remaining), present) {
            (Step::Use, Some(image)) => {
                let text =
                    format!("Container image \"{given}\" already present on machine and can be accessed by the pod");
                event(Type::Normal, "Pulled", text);
                Ok(ready(image))
            }
            (Step::Never | Step::Use, _) => {
                let text = format!("Container image \"{given}\" is not present with pull policy of Never");
                event(Type::Warning, "ErrImageNeverPull", text.clone());
                event(Type::Warning, "Failed", "Error: ErrImageNeverPull".into());
                Err(Problem { reason: "ErrImageNeverPull", message: text, retry: self.soon() })
            }
            (Step::Wait(remaining), _) => {
                event(Type::Normal, "BackOff", format!("Back-off pulling image \"{given}\""));
                event(Type::Warning, "Failed", "Error: ImagePullBackOff".into());
                let message = back_off_message(given, &self.last_error(wish, name));
                Err(Problem { reason: "ImagePullBackOff", message, retry: Some(self.clock.now() + remaining) })
            }
            (Step::Pull, _) => self.pull(wish, given, name, event).await,
        }
    }

    fn last_error(&self, wish: &Wish<'_>, name: &str) -> String {
        wish.tries.lock().errors.get(name).cloned().unwrap_or_default()
    }

    /// When to try again what is not under a back-off of its own.
    fn soon(&self) -> Option<Instant> {
        Some(self.clock.now() + DELAYS.initial)
    }

    async fn pull(
        &self,
        wish: &Wish<'_>,
        given: &str,
        name: &str,
        event: &(dyn Fn(Type, &str, String) + Send + Sync),
    ) -> Result<Ready, Problem> {
        let asked = self.clock.now();
        event(Type::Normal, "Pulling", format!("Pulling image \"{given}\""));
        (wish.progress)(None);
        let slot = self.slots.acquire().await;
        let begun = self.clock.now();
        let (records, noted) = (self.records.clone(), name.to_owned());
        let pulled = if self.rate.take(begun) {
            let pulled = match blocking(move || records.begin(&noted)).await.and_then(|done| done) {
                Ok(intent) => self.recorded(intent, self.fetch(wish, name).await).await,
                Err(error) => {
                    let text = format!("Failed to record image pull intent for container image \"{given}\": {error}");
                    Err(Error::Failed { code: "Internal", message: text })
                }
            };
            pulled.map_err(|error| error.to_string())
        } else {
            Err(rate::EXCEEDED.to_owned())
        };
        drop(slot);
        let now = self.clock.now();
        wish.tries.lock().fetched(asked, now);
        match pulled {
            Ok((image, _)) => {
                let (took, with_wait) = (go_duration(now.since(begun)), go_duration(now.since(asked)));
                let size = image.size;
                let text = format!(
                    "Successfully pulled image \"{given}\" in {took} ({with_wait} including waiting). Image size: {size} bytes."
                );
                event(Type::Normal, "Pulled", text);
                if let Some(pulls) = &self.pulls {
                    pulls.took(&[metrics::image_size(size)], now.since(asked));
                }
                let mut tries = wish.tries.lock();
                tries.delays.forget(&name.to_owned());
                tries.errors.remove(name);
                Ok(ready(image))
            }
            Err(message) => {
                if !wish.missing_secrets.is_empty() {
                    let text = format!(
                        "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                        wish.missing_secrets.join(", ")
                    );
                    self.report.event(wish.pod, None, Type::Warning, "FailedToRetrieveImagePullSecret", text);
                }
                event(Type::Warning, "Failed", format!("Failed to pull image \"{given}\": {message}"));
                event(Type::Warning, "Failed", "Error: ErrImagePull".into());
                let mut tries = wish.tries.lock();
                let delay = tries.delays.fail(&name.to_owned(), now);
                tries.errors.insert(name.to_owned(), message.clone());
                Err(Problem { reason: "ErrImagePull", message, retry: Some(now + delay.min(SHOWN)) })
            }
        }
    }

    /// Writes down what became of a fetch. Where nobody can say, its intent stays.
    async fn recorded(
        &self,
        intent: Begun,
        fetched: Result<(Image, Origin), Missed>,
    ) -> RuntimeResult<(Image, Origin)> {
        let (known, out) = match fetched {
            Ok(found) => (Some((found.0.id.clone(), found.1.clone())), Ok(found)),
            Err(Missed { error, may_be_here: false }) => (None, Err(error)),
            Err(Missed { error, may_be_here: true }) => return Err(error),
        };
        let (records, now) = (self.records.clone(), self.clock.wall());
        let work = move || records.end(&intent, known.as_ref().map(|(id, origin)| (id.as_str(), origin)), now);
        if let Err(error) = blocking(work).await {
            tracing::warn!(%error, "what became of a fetch is not written down");
        }
        out
    }

    /// Tries the credentials that fit, or none when there are none; gives what fetched it, too.
    async fn fetch(&self, wish: &Wish<'_>, name: &str) -> Result<(Image, Origin), Missed> {
        let fitting = self.credentials(wish, name).await;
        let mut tries: Vec<(Option<v1::AuthConfig>, Origin)> =
            fitting.into_iter().map(|c| (Some(c.auth), c.origin)).collect();
        if tries.is_empty() {
            tries.push((None, Origin::Node));
        }
        let mut result = Err(Error::Unavailable(String::new()));
        let mut may_be_here = false;
        for (auth, origin) in tries {
            let pulled = self.watched(self.runtime.pull(name, auth, Some(wish.sandbox.clone())), wish).await;
            result = pulled.map(|id| (id, origin));
            match &result {
                Ok(_) => break,
                // Whoever did not hear the end of it may have had it all the same.
                Err(Error::Unavailable(_) | Error::DeadlineExceeded(_)) => may_be_here = true,
                Err(_) => {}
            }
        }
        let (id, origin) = result.map_err(|error| Missed { error, may_be_here })?;
        let here = |error| Missed { error, may_be_here: true };
        let found = self.runtime.image(&id).await.map_err(here)?;
        let image = match found {
            Some(image) => image,
            None => self.runtime.image(name).await.map_err(here)?.unwrap_or(Image { id, ..Image::default() }),
        };
        Ok((image, origin))
    }

    /// Looks at the progress while a download runs. It is told only while it is the only one: the
    /// runtime counts all downloads together.
    async fn watched<T>(&self, download: impl Future<Output = T> + Send, wish: &Wish<'_>) -> T {
        let mut download = std::pin::pin!(download);
        loop {
            tokio::select! {
                biased;
                out = &mut download => return out,
                () = self.clock.sleep(LOOK) => {}
            }
            let alone = self.slots.available_permits() + 1 >= self.parallel;
            let bytes = if alone { self.runtime.downloading().await.ok().flatten() } else { None };
            (wish.progress)(bytes);
        }
    }
}

/// A fetch that brought nothing, as far as is known.
struct Missed {
    error: Error,
    /// The image may have come nevertheless.
    may_be_here: bool,
}

fn ready(image: Image) -> Ready {
    Ready { reference: image.id.clone(), image }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use crate::report::FakeReport;
    use crate::runtime::fake::Fake;
    use serde_json::json;
    use stdx::clock::ManualClock;

    #[test]
    fn what_is_fetched_at_one_time_takes_its_time_once() {
        let at = |seconds| Instant(Duration::from_secs(seconds));
        let mut tries = Tries::default();
        for (asked, ended) in [(10, 20), (12, 18), (15, 25), (40, 41)] {
            tries.fetched(at(asked), at(ended));
        }
        assert_eq!(tries.pulling(), Duration::from_secs(16));
    }

    #[tokio::test]
    async fn texts_and_back_off() {
        let (fake, report) = (Fake::default(), FakeReport::default());
        let clock = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let puller = Puller::new(Arc::new(fake.clone()), Arc::new(report.clone()), Arc::new(clock.clone()));
        let pod = pod(json!({"spec": {"containers": [{"name": "c", "image": "x:1"}, {"name": "d", "image": "Bad"}]}}));
        let (tries, sandbox) = (Mutex::default(), v1::PodSandboxConfig::default());
        let wish = |index: usize| Wish {
            pod: &pod,
            container: Some(&pod.containers()[index].name),
            image: pod.containers()[index].image.as_deref().unwrap_or_default(),
            policy: Policy::of(&pod.containers()[index]),
            secrets: &[],
            missing_secrets: &[],
            sandbox: &sandbox,
            tries: &tries,
            progress: &|_| {},
        };
        let events = || std::mem::take(&mut *report.events.lock());
        fake.no_image("x:1");
        let text = "rpc error: code = NotFound desc = failed to pull and unpack image \"x:1\": x:1: not found";
        let problem = puller.ensure(&wish(0)).await.expect_err("no image");
        assert_eq!((problem.reason, problem.message.as_str()), ("ErrImagePull", text));
        assert_eq!(
            events(),
            [
                "Pulling [c] Pulling image \"x:1\"".to_owned(),
                format!("!Failed [c] Failed to pull image \"x:1\": {text}"),
                "!Failed [c] Error: ErrImagePull".to_owned(),
            ]
        );
        let problem = puller.ensure(&wish(0)).await.expect_err("not yet");
        assert_eq!(problem.reason, "ImagePullBackOff");
        assert_eq!(problem.message, format!("Back-off pulling image \"x:1\": ErrImagePull: {text}"));
        assert_eq!(events(), ["BackOff [c] Back-off pulling image \"x:1\"", "!Failed [c] Error: ImagePullBackOff"]);
        fake.offer_image("x:1");
        clock.advance(Duration::from_secs(10));
        puller.ensure(&wish(0)).await.expect("there now");
        assert_eq!(
            events(),
            [
                "Pulling [c] Pulling image \"x:1\"",
                "Pulled [c] Successfully pulled image \"x:1\" in 0s (0s including waiting). Image size: 7 bytes."
            ]
        );
        puller.ensure(&wish(0)).await.expect("there still");
        assert_eq!(
            events(),
            ["Pulled [c] Container image \"x:1\" already present on machine and can be accessed by the pod"]
        );
        // Another pod without the credentials that fetched it must fetch it itself.
        let origin = Origin::Secret { uid: "u".into(), namespace: "n".into(), name: "s".into(), hash: "h".into() };
        let image = puller.runtime.image("x:1").await.expect("asked").expect("there");
        let id = image.id.clone();
        let guarded = Puller::new(Arc::new(fake.clone()), Arc::new(report.clone()), Arc::new(clock.clone()));
        let noted = |records: &Records| {
            records.end(&records.begin("x:1").expect("noted"), Some((&id, &origin)), jiff::Timestamp::UNIX_EPOCH);
        };
        noted(&guarded.records);
        guarded.ensure(&wish(0)).await.expect("fetched");
        assert_eq!(events()[0], "Pulling [c] Pulling image \"x:1\"");
        guarded.ensure(&wish(0)).await.expect("without credentials anybody may have it");
        assert_eq!(events().len(), 1);
        let hidden = Puller::new(Arc::new(fake.clone()), Arc::new(report.clone()), Arc::new(clock.clone()));
        noted(&hidden.records);
        let never = Wish { policy: Policy::Never, ..wish(0) };
        let problem = hidden.ensure(&never).await.expect_err("not for this pod");
        assert_eq!(problem.reason, "ErrImageNeverPull");
        events();
        // A fetch that is given up, or whose runtime is gone: who has no credentials must ask again.
        let given_up = Puller::new(Arc::new(fake.clone()), Arc::new(report.clone()), Arc::new(clock.clone()));
        let must = || given_up.records.must_fetch("x:1", &image, Some(&[]));
        let always = Wish { policy: Policy::Always, ..wish(0) };
        assert_eq!(must(), Some(false), "it was here before");
        let door = fake.hold("pull");
        {
            let mut fetch = std::pin::pin!(given_up.ensure(&always));
            while !fake.is_held("pull") {
                assert!(futures::poll!(&mut fetch).is_pending());
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(must(), Some(true), "it may come yet");
        drop(door);
        given_up.ensure(&always).await.expect("fetched");
        assert_eq!(must(), Some(false), "anybody could");
        let gone = Puller::new(Arc::new(fake.clone()), Arc::new(report.clone()), Arc::new(clock.clone()));
        fake.fail("pull", Error::Unavailable("gone".into()));
        gone.ensure(&always).await.expect_err("no runtime");
        assert_eq!(gone.records.must_fetch("x:1", &image, Some(&[])), Some(true));
        fake.mend("pull");
        tries.lock().delays.forget(&"x:1".to_owned());
        events();
        let problem = puller.ensure(&wish(1)).await.expect_err("no name");
        assert_eq!(problem.reason, "InvalidImageName");
        assert!(puller.busy.lock().is_empty());
    }
}
