//! An APIService for each version that this server answers for itself: those it came with, and those that
//! definitions of custom resources bring. A version that somebody has registered otherwise is theirs.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use futures::stream::{self, StreamExt};
use kinds::api_service;
use machinery::meta;
use machinery::status::{self, Status};
use serde_json::{Value, json};
use stdx::ClockExt;
use stdx::backoff::Policy;
use transport::SharedHandler;

use super::availability::Condition;
use super::{API_SERVICES, priorities};
use crate::bootstrap;
use crate::cacher::{WatchItem, WatchOptions};
use crate::server::ApiServer;

/// Says that an APIService is kept by this server: as it was at the start of a process, or always.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Writes at once.
const AT_ONCE: usize = 32;
const RETRY: Policy = Policy { initial: Duration::from_millis(100), max: Duration::from_secs(10) };

/// How long this server minds an APIService of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Once after it has started.
    OnStart,
    Always,
}

impl Mode {
    fn label(self) -> &'static str {
        match self {
            Self::OnStart => "onstart",
            Self::Always => "true",
        }
    }

    fn of(label: Option<&str>) -> Option<Self> {
        [Self::OnStart, Self::Always].into_iter().find(|mode| Some(mode.label()) == label)
    }
}

/// An APIService that should be there.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    mode: Mode,
    spec: Value,
    /// Whoever names a Service for it has it for as long as they do.
    yields: bool,
}

/// What is there: who minds it, and what it says.
struct Found<'a> {
    mode: Option<Mode>,
    spec: &'a Value,
}

/// What to do about one APIService.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Nothing,
    Create,
    Update,
    Delete,
}

/// `at_start`: it was there when this process began. `done`: it has been seen to since then.
fn decide(wanted: Option<&Wanted>, found: Option<&Found<'_>>, at_start: bool, done: bool) -> Act {
    let once = Some(Mode::OnStart);
    match (wanted, found) {
        (None, None) => Act::Nothing,
        (Some(wanted), _) if wanted.mode == Mode::OnStart && done => Act::Nothing,
        (Some(_), None) => Act::Create,
        (_, Some(found)) if found.mode.is_none() => Act::Nothing,
        (Some(wanted), Some(found)) if wanted.yields && found.spec.get("service").is_some() => Act::Nothing,
        (_, Some(found)) if found.mode == once && (!at_start || done) => Act::Nothing,
        (None, Some(_)) => Act::Delete,
        (Some(wanted), Some(found)) if *found.spec == wanted.spec => Act::Nothing,
        (Some(_), Some(_)) => Act::Update,
    }
}

fn name(group: &str, version: &str) -> String {
    format!("{version}.{group}")
}

fn spec(group: &str, version: &str, (of_group, of_version): (i32, i32)) -> Value {
    let mut spec = json!({"version": version, "groupPriorityMinimum": of_group, "versionPriority": of_version});
    if !group.is_empty() {
        spec["group"] = json!(group);
    }
    spec
}

/// What should be there.
fn wanted(server: &ApiServer) -> BTreeMap<String, Wanted> {
    let mut all = BTreeMap::new();
    for kind in server.catalogue.custom_kinds() {
        let shape = kind.shape();
        let spec = spec(shape.group, shape.version, priorities::CUSTOM);
        all.insert(name(shape.group, shape.version), Wanted { mode: Mode::Always, spec, yields: false });
    }
    for kind in kinds::ALL.iter().filter(|kind| kind.shape().group != api_service::GROUP) {
        let (group, version) = (kind.shape().group, kind.shape().version);
        let spec = spec(group, version, priorities::of(group, version));
        let yields = group == priorities::METRICS;
        let mode = if yields { Mode::Always } else { Mode::OnStart };
        all.insert(name(group, version), Wanted { mode, spec, yields });
    }
    all
}

struct Keeper {
    server: Arc<ApiServer>,
    door: SharedHandler,
    /// Those that were there when this process began.
    at_start: HashSet<String>,
    /// Those that have been seen to.
    done: HashSet<String>,
}

/// Registers everything, and keeps it so from then on.
///
/// # Errors
/// The first write that failed for another reason than a race.
pub(super) async fn start(server: &Arc<ApiServer>) -> status::Result<()> {
    let Some(cacher) = server.cachers.find(API_SERVICES.group, API_SERVICES.plural) else { return Ok(()) };
    let at_start = cacher.snapshot().objects().keys().map(|key| key.to_string()).collect();
    let door = server.handler(bootstrap::myself());
    let mut keeper = Keeper { server: server.clone(), door, at_start, done: HashSet::new() };
    keeper.settle().await?;
    server.stage().run(async move { keeper.run().await });
    Ok(())
}

impl Keeper {
    async fn run(&mut self) {
        let mut failures = 0;
        loop {
            if let Err(status) = self.follow(&mut failures).await {
                tracing::warn!(%status, "an APIService of this server's was not written; trying again");
            }
            failures += 1;
            self.server.clock.sleep(RETRY.delay(failures)).await;
        }
    }

    /// Until the watch ends or a write fails.
    async fn follow(&mut self, failures: &mut u32) -> status::Result<()> {
        let server = self.server.clone();
        let Some(cacher) = server.cachers.find(API_SERVICES.group, API_SERVICES.plural) else {
            return std::future::pending().await;
        };
        let mut watch = cacher.watch(WatchOptions { after: Some(cacher.revision()), ..WatchOptions::default() })?;
        loop {
            self.settle().await?;
            *failures = 0;
            tokio::select! {
                () = server.aggregation.locals.notified() => {}
                item = watch.next() => match item {
                    Some(WatchItem::Event(_) | WatchItem::Bookmark { .. }) => {}
                    Some(WatchItem::Error(_)) | None => return Ok(()),
                },
            }
        }
    }

    /// Brings everything up to date once.
    async fn settle(&mut self) -> status::Result<()> {
        let mut wanted = wanted(&self.server);
        let Some(cacher) = self.server.cachers.find(API_SERVICES.group, API_SERVICES.plural) else { return Ok(()) };
        let snapshot = cacher.snapshot();
        let mut found: BTreeMap<String, Option<Value>> =
            snapshot.objects().values().map(|slot| (slot.object.name().to_owned(), slot.object.value().ok())).collect();
        let names: BTreeSet<String> = wanted.keys().chain(found.keys()).cloned().collect();
        let mut acts = Vec::new();
        for name in names {
            let object = match found.remove(&name) {
                // What cannot be read is there all the same.
                Some(None) => continue,
                Some(object) => object,
                None => None,
            };
            let wanted = wanted.remove(&name);
            let there = object.as_ref().map(|object| Found {
                mode: Mode::of(meta::labels(object).get(MANAGED).map(String::as_str)),
                spec: &object["spec"],
            });
            let (at_start, done) = (self.at_start.contains(&name), self.done.contains(&name));
            let act = decide(wanted.as_ref(), there.as_ref(), at_start, done);
            acts.push(see_to(self.server.clone(), self.door.clone(), name, act, wanted, object));
        }
        let mut outcomes = stream::iter(acts).buffer_unordered(AT_ONCE);
        let mut first = Ok(());
        while let Some((name, outcome)) = outcomes.next().await {
            match outcome {
                Ok(()) => drop(self.done.insert(name)),
                Err(status) => first = first.and(Err(status)),
            }
        }
        first
    }
}

async fn see_to(
    server: Arc<ApiServer>,
    door: SharedHandler,
    name: String,
    act: Act,
    wanted: Option<Wanted>,
    object: Option<Value>,
) -> (String, status::Result<()>) {
    let outcome = carry_out(&door, &name, act, wanted.as_ref(), object.as_ref()).await;
    if let Some(object) = object.filter(|_| act == Act::Nothing) {
        mind_condition(&server, &name, &object).await;
    }
    (name, outcome)
}

/// The condition of a version that this server answers for is always the same.
async fn mind_condition(server: &Arc<ApiServer>, name: &str, object: &Value) {
    if !object["spec"]["service"].is_null() {
        return;
    }
    let is_told = kinds::view::read::<apiregistration::APIService>(object)
        .is_ok_and(|api_service| Condition::of(&api_service).as_ref() == Some(&Condition::local()));
    if !is_told {
        super::tell(server, name, &Condition::local()).await;
    }
}

async fn carry_out(
    door: &SharedHandler,
    name: &str,
    act: Act,
    wanted: Option<&Wanted>,
    object: Option<&Value>,
) -> status::Result<()> {
    let all = format!("/apis/{}/v1/{}", API_SERVICES.group, API_SERVICES.plural);
    let one = format!("{all}/{name}");
    let outcome = match (act, wanted, object) {
        (Act::Create, Some(wanted), _) => {
            let object = json!({
                "apiVersion": format!("{}/v1", API_SERVICES.group), "kind": "APIService",
                "metadata": {"name": name, "labels": {MANAGED: wanted.mode.label()}}, "spec": wanted.spec,
            });
            bootstrap::send(door, "POST", &all, "application/json", Some(&object)).await
        }
        (Act::Update, Some(wanted), Some(object)) => {
            let mut object = object.clone();
            object["spec"] = wanted.spec.clone();
            bootstrap::send(door, "PUT", &one, "application/json", Some(&object)).await
        }
        (Act::Delete, _, Some(object)) => {
            let options = json!({"kind": "DeleteOptions", "apiVersion": "v1",
                "preconditions": {"uid": meta::uid(object)}});
            bootstrap::send(door, "DELETE", &one, "application/json", Some(&options)).await
        }
        _ => return Ok(()),
    };
    match outcome {
        Ok(_) => Ok(()),
        // Somebody was faster; what they did comes as an event.
        Err(status) if matches!(status.code, 404 | 409) => Ok(()),
        Err(status) => Err(named(status, &one)),
    }
}

fn named(mut status: Box<Status>, path: &str) -> Box<Status> {
    status.message = format!("{path}: {}", status.message);
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_is_kept_and_what_is_not_is_left() {
        let (spec, other) = (json!({"version": "v1"}), json!({"version": "v2"}));
        let wanted = |mode| Some(Wanted { mode, spec: spec.clone(), yields: false });
        let found = |mode, changed: bool| Some((mode, if changed { &other } else { &spec }));
        let (once, always) = (Some(Mode::OnStart), Some(Mode::Always));
        for (wanted, found, at_start, done, want) in [
            (None, None, false, false, Act::Nothing),
            (wanted(Mode::OnStart), None, false, false, Act::Create),
            (wanted(Mode::OnStart), None, true, true, Act::Nothing),
            (wanted(Mode::Always), None, true, true, Act::Create),
            // Somebody else's.
            (None, found(None, true), true, false, Act::Nothing),
            (wanted(Mode::Always), found(None, true), true, false, Act::Nothing),
            // Of an earlier process.
            (None, found(once, false), true, false, Act::Delete),
            (None, found(once, false), false, false, Act::Nothing),
            (None, found(always, false), false, true, Act::Delete),
            (wanted(Mode::OnStart), found(once, true), true, false, Act::Update),
            (wanted(Mode::OnStart), found(once, true), true, true, Act::Nothing),
            (wanted(Mode::Always), found(always, true), false, true, Act::Update),
            (wanted(Mode::Always), found(always, false), false, true, Act::Nothing),
        ] {
            let found = found.map(|(mode, spec)| Found { mode, spec });
            let got = decide(wanted.as_ref(), found.as_ref(), at_start, done);
            let mode = found.as_ref().map(|found| found.mode);
            assert_eq!(got, want, "{wanted:?} {mode:?} at_start={at_start} done={done}");
        }
    }

    #[test]
    fn what_another_server_may_answer_for_is_left_to_it() {
        let (ours, theirs) = (json!({"version": "v1"}), json!({"version": "v1", "service": {"name": "s"}}));
        let wanted = Wanted { mode: Mode::Always, spec: ours, yields: true };
        for (found, want) in
            [(Some(&theirs), Act::Nothing), (Some(&json!({"version": "v2"})), Act::Update), (None, Act::Create)]
        {
            let found = found.map(|spec| Found { mode: Some(Mode::Always), spec });
            assert_eq!(decide(Some(&wanted), found.as_ref(), true, false), want);
        }
    }
}
