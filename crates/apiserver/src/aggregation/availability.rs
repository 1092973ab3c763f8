//! Whether the server behind an APIService is there: what its Service and endpoints say, and whether it answers.
//! Said in the condition `Available`, and written only when that changes.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use api::meta::apis::meta::v1::Time;
use apiregistration::{APIService, APIServiceCondition};
use futures::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use kinds::api_service::{AVAILABLE, LOCAL};
use serde_json::Value;
use stdx::ClockExt;
use stdx::backoff::Policy;
use tokio_util::sync::CancellationToken;

use super::remote::{Ask, Place, Remote};
use super::{SERVICES, resolve};
use crate::server::ApiServer;

/// How often a server that answers is asked again: what happens between it and here no object tells.
const AGAIN: Duration = Duration::from_secs(30);
/// How soon one is that does not answer.
const RETRY: Policy = Policy { initial: Duration::from_millis(50), max: AGAIN };
/// How many times a server is asked at once: one answer is enough, as one of its endpoints may be gone.
const ATTEMPTS: usize = 5;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// No message is longer: what others say is in it.
const LONGEST: usize = 1024;

/// What the condition `Available` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    status: String,
    reason: String,
    message: String,
}

impl Condition {
    pub(super) fn new(status: &str, reason: &str, message: impl Into<String>) -> Self {
        Self { status: status.into(), reason: reason.into(), message: message.into() }
    }

    fn not(reason: &str, message: impl Into<String>) -> Self {
        Self::new("False", reason, message)
    }

    /// Of a version that this server answers for itself.
    pub fn local() -> Self {
        Self::new("True", LOCAL.0, LOCAL.1)
    }

    fn passed() -> Self {
        Self::new("True", "Passed", "all checks passed")
    }

    /// What an APIService says.
    pub fn of(api_service: &APIService) -> Option<Self> {
        let mut conditions = api_service.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let found = conditions.find(|condition| condition.type_ == AVAILABLE)?;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Some(Self { status: found.status.clone(), reason: text(&found.reason), message: text(&found.message) })
    }

    /// Why it is so.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// True when requests are passed on.
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}

/// The conditions with this one in its place; `None` when it is there already.
pub(super) fn conditions(
    api_service: &APIService,
    condition: &Condition,
    now: Timestamp,
) -> Option<Vec<APIServiceCondition>> {
    if Condition::of(api_service).as_ref() == Some(condition) {
        return None;
    }
    let mut all = api_service.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let new = APIServiceCondition {
        type_: AVAILABLE.into(),
        status: condition.status.clone(),
        last_transition_time: Some(Time(now)),
        reason: Some(condition.reason.clone()),
        message: Some(condition.message.clone()),
    };
    match all.iter_mut().find(|old| old.type_ == AVAILABLE) {
        Some(old) => {
            let since = old.last_transition_time.take().filter(|_| old.status == new.status);
            *old = APIServiceCondition { last_transition_time: since.or(new.last_transition_time.clone()), ..new };
        }
        None => all.push(new),
    }
    Some(all)
}

/// What is wrong with the Service; `None` when its server is to be asked.
fn judge(place: &Place, service: Option<&Value>, slices: &[Value]) -> Option<Condition> {
    let Place { namespace, name, port: number } = place;
    let Some(service) = service else {
        return Some(Condition::not("ServiceNotFound", format!("service/{name} in {namespace:?} is not present")));
    };
    let kind = service.pointer("/spec/type").and_then(Value::as_str).unwrap_or("ClusterIP");
    if kind != "ClusterIP" {
        return None;
    }
    let Some(port) = resolve::port(service, place) else {
        let why = format!("service/{name} in {namespace:?} is not listening on port {number}");
        return Some(Condition::not("ServicePortError", why));
    };
    if slices.is_empty() {
        let why = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return Some(Condition::not("EndpointsNotFound", why));
    }
    let port = port["name"].as_str().unwrap_or_default();
    if !slices.iter().any(|slice| serves(slice, port)) {
        let why =
            format!("endpointslices for service/{name} in {namespace:?} have no addresses with port name {port:?}");
        return Some(Condition::not("MissingEndpoints", why));
    }
    None
}

/// True for a slice with an endpoint that is ready, and a port of the name.
fn serves(slice: &Value, port: &str) -> bool {
    let list = |field: &str| slice[field].as_array().map(Vec::as_slice).unwrap_or_default();
    let ready = |e: &Value| e.pointer("/conditions/ready") != Some(&Value::Bool(false));
    let named = |p: &Value| p["name"].as_str().unwrap_or_default() == port && p["port"].is_u64();
    list("endpoints").iter().any(ready) && list("ports").iter().any(named)
}

/// Looks until `ends` comes: at once when something changes, now and then when nothing does.
pub(super) async fn run(server: Arc<ApiServer>, remote: Arc<Remote>, ends: CancellationToken) {
    let work = async {
        let mut failures = 0;
        loop {
            let condition = look(&server, &remote).await;
            remote.should_say(&condition);
            let written = super::tell(&server, &remote.name, &condition).await;
            let failed = !written || condition.reason == "FailedDiscoveryCheck";
            failures = if failed { failures + 1 } else { 0 };
            let pause = if failed { RETRY.delay(failures) } else { AGAIN };
            tokio::select! {
                () = remote.look.notified() => {}
                () = server.clock.sleep(pause) => {}
            }
        }
    };
    tokio::select! {
        () = ends.cancelled() => {}
        () = work => {}
    }
}

async fn look(server: &ApiServer, remote: &Remote) -> Condition {
    let Place { namespace, name, .. } = &remote.place;
    let service = match server.security.objects.find(SERVICES, namespace, name).await {
        Ok(service) => service,
        Err(status) => {
            let why = format!("service/{name} in {namespace:?} cannot be checked due to: {}", status.message);
            return Condition::new("Unknown", "ServiceAccessError", why);
        }
    };
    if let Some(wrong) = judge(&remote.place, service.as_deref(), &resolve::slices(server, &remote.place)) {
        return wrong;
    }
    let mut attempts: FuturesUnordered<_> = (0..ATTEMPTS).map(|_| probe(server, remote)).collect();
    let mut why = String::new();
    while let Some(outcome) = attempts.next().await {
        match outcome {
            Ok(()) => return Condition::passed(),
            Err(error) => why = error,
        }
    }
    Condition::not("FailedDiscoveryCheck", why.chars().take(LONGEST).collect::<String>())
}

/// Asks for what every server must serve.
async fn probe(server: &ApiServer, remote: &Remote) -> Result<(), String> {
    let path = remote.path();
    let ask = Ask { path: &path, accept: "*/*", known: None, limit: 0, patience: PATIENCE };
    let (url, response) = remote.ask(server, ask).await?;
    let code = response.status();
    if code.is_success() {
        return Ok(());
    }
    Err(format!("failing or missing response from {url}: bad status from {url}: {}", code.as_u16()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(service: Option<Value>, slices: &[Value], want: Option<(&str, &str)>) {
        let place = Place { namespace: "n".into(), name: "s".into(), port: 443 };
        let got = judge(&place, service.as_ref(), slices);
        assert_eq!(got, want.map(|(reason, message)| Condition::not(reason, message)), "{service:?} {slices:?}");
    }

    #[test]
    fn a_service_without_anybody_is_not_asked() {
        let service = json!({"spec": {"ports": [{"name": "https", "port": 443}]}});
        let ready = json!({"endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"name": "https", "port": 8443}]});
        let mut unready = ready.clone();
        unready["endpoints"][0]["conditions"] = json!({"ready": false});
        let other = json!({"endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"name": "http", "port": 80}]});
        let missing = "endpointslices for service/s in \"n\" have no addresses with port name \"https\"";
        check(None, &[], Some(("ServiceNotFound", "service/s in \"n\" is not present")));
        let port = json!({"spec": {"ports": [{"port": 80}]}});
        check(Some(port), &[], Some(("ServicePortError", "service/s in \"n\" is not listening on port 443")));
        let none = "cannot find endpointslices for service/s in \"n\"";
        check(Some(service.clone()), &[], Some(("EndpointsNotFound", none)));
        check(Some(service.clone()), &[unready.clone()], Some(("MissingEndpoints", missing)));
        check(Some(service.clone()), &[other], Some(("MissingEndpoints", missing)));
        check(Some(service), &[unready, ready], None);
        check(Some(json!({"spec": {"type": "ExternalName"}})), &[], None);
    }

    #[test]
    fn the_time_is_that_of_the_last_change_of_status() {
        let (then, now) = ("2029-01-01T00:00:00Z", "2030-01-01T00:00:00Z".parse().expect("time"));
        let with = |condition: Value| -> APIService {
            let status = json!({"conditions": [{"type": "Other", "status": "True"}, condition]});
            serde_json::from_value(json!({"metadata": {}, "status": status})).expect("an APIService")
        };
        let old = |status: &str, reason: &str| {
            with(json!({"type": AVAILABLE, "status": status, "reason": reason, "message": "all checks passed",
                "lastTransitionTime": then}))
        };
        let at = |api_service: &APIService| {
            let all = conditions(api_service, &Condition::passed(), now)?;
            assert_eq!((all.len(), all[0].type_.as_str()), (2, "Other"), "others stay where they are");
            all[1].last_transition_time.as_ref().map(|at| machinery::time::rfc3339(at.0))
        };
        assert_eq!(at(&old("True", "Passed")), None);
        assert_eq!(at(&old("True", "Other")).as_deref(), Some(then));
        assert_eq!(at(&old("False", "Passed")).as_deref(), Some("2030-01-01T00:00:00Z"));
    }
}
