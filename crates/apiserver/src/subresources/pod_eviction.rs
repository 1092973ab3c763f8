//! `pods/eviction`: a delete that asks the pod's disruption budget first.
//!
//! ```text
//!  ended, pending or going ─────────────────────────────────────────────► delete
//!  no budget ───────────────────────────────────────────────────────────► delete
//!  one budget, not ready, budget met or AlwaysAllow ─────────────────────► delete, only as it was seen
//!  one budget ─► disruptionsAllowed − 1, name noted (compare-and-swap) ──► delete
//!                    └─ none left: 429
//! ```

use jiff::Timestamp;
use kinds::Verb;
use machinery::labels::Selector;
use machinery::status::{self, GroupResource, Status};
use machinery::{meta, time};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Endpoint, Responding};
use crate::admission::{self, Attributes};
use crate::bootstrap;
use crate::chain::Call;
use crate::encode;
use crate::encode::negotiate::Offer;
use crate::registry::catalogue::Resource;
use crate::registry::deletion;
use crate::registry::store::{self, Depth, Write};
use crate::verbs::body;
use crate::verbs::options::{DeleteOptions, WriteOptions};
use crate::verbs::write;

pub static CREATE: Endpoint = Endpoint {
    group: "",
    resource: "pods",
    subresource: "eviction",
    verb: "create",
    run: |call| -> Responding<'_> { Box::pin(run(call)) },
};

/// Evictions a budget's controller may be behind with.
const MAX_DISRUPTED: usize = 2000;
/// How often an eviction begins anew when somebody changes the pod or its budget meanwhile.
const ATTEMPTS: usize = 20;
const BLOCKED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

async fn run(call: &Call) -> status::Result<transport::Response> {
    let accepted = call.accept(Offer::Plain)?;
    let options = WriteOptions::parse(&call.query, "CreateOptions", false, call.user_agent())?;
    let schema = api::schema::of("policy", "v1", "Eviction");
    let schema = schema.ok_or_else(|| Status::internal("Eviction has no schema"))?;
    let sent = body::read(call, &schema, options.validation)?;
    check_identity(call, &sent.value)?;
    let mut how = DeleteOptions::parse(&call.query, sent.value.get("deleteOptions").filter(|o| !o.is_null()))?;
    how.dry_run |= options.dry_run;
    let eviction = Eviction { call, pods: &*call.resource()?, how };
    eviction.admit(&sent.value).await?;
    eviction.run().await?;
    let mut response = encode::success(call, accepted, 201, &Value::Null).await;
    encode::warn(&mut response, &sent.warnings);
    Ok(response)
}

fn check_identity(call: &Call, eviction: &Value) -> status::Result<()> {
    if !matches!(meta::api_version(eviction), "" | "policy/v1" | "policy/v1beta1") {
        let found = meta::api_version(eviction);
        return Err(Status::bad_request(format!(
            "the API version in the data ({found}) does not match the expected API version (policy/v1)"
        )));
    }
    if !matches!(meta::name(eviction), name if name.is_empty() || name == call.info.name) {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    if !matches!(meta::namespace(eviction), space if space.is_empty() || space == call.info.namespace) {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// One eviction under way.
struct Eviction<'a> {
    call: &'a Call,
    pods: &'a Resource,
    how: DeleteOptions,
}

/// What a look at the budgets led to.
enum Leave {
    /// The pod may go whatever becomes of it.
    Go,
    /// It may go as it was seen: it does not count while it is not ready.
    AsSeen,
}

impl Eviction<'_> {
    /// Asks admission about the Eviction itself.
    async fn admit(&self, sent: &Value) -> status::Result<()> {
        let info = &self.call.info;
        let mut object = sent.clone();
        let attributes = Attributes {
            kind: &*self.pods.kind,
            request: info,
            user: &self.call.user,
            verb: Verb::Create,
            namespace: &info.namespace,
            name: &info.name,
            dry_run: self.how.dry_run,
            old: None,
        };
        admission::mutate(&self.call.server, &attributes, Some(&mut object)).await?;
        admission::validate(&self.call.server, &attributes, Some(&object)).await
    }

    /// What it returns when all attempts meet somebody else's change is the last conflict.
    async fn run(&self) -> status::Result<()> {
        let demanded = self.how.revision.is_some();
        let mut last = Status::modified(&self.pods.group_resource(), &self.call.info.name);
        for _ in 0..ATTEMPTS {
            let pod = self.pod().await?;
            // Before anything is charged for a pod that is not meant.
            deletion::check(&self.how, &pod, &self.pods.shape())?;
            if ignores_budgets(&pod) {
                // A pod that is about to become ready must not slip past its budget.
                let bound = !demanded && !is_over(&pod);
                match self.remove(&pod, bound).await {
                    Err(status) if status.is("Conflict") && !demanded => last = status,
                    outcome => return outcome,
                }
                continue;
            }
            let budget = self.budget(&pod).await?;
            let leave = match &budget {
                None => Leave::Go,
                Some(budget) if excuses(budget, &pod) => Leave::AsSeen,
                Some(budget) => self.charge(meta::name(budget), &pod).await.map(|()| Leave::Go)?,
            };
            let bound = matches!(leave, Leave::AsSeen);
            return match self.remove(&pod, bound && !demanded).await {
                Err(status) if status.is("Conflict") && bound && !demanded => {
                    Err(unsettled(budget.as_ref().map_or("", |budget| meta::name(budget))))
                }
                outcome => outcome,
            };
        }
        Err(last)
    }

    async fn pod(&self) -> status::Result<Value> {
        let info = &self.call.info;
        self.pods.settle(None).await?;
        let missing = || Status::not_found(&self.pods.group_resource(), &info.name);
        self.pods.cached(&info.namespace, &info.name).ok_or_else(missing)?.value()
    }

    fn budgets(&self) -> status::Result<std::sync::Arc<Resource>> {
        let found = self.call.server.catalogue.find("policy", "v1", "poddisruptionbudgets");
        found.ok_or_else(Status::no_such_path)
    }

    /// The budget of the pod; 500 when there are several.
    async fn budget(&self, pod: &Value) -> status::Result<Option<Value>> {
        let budgets = self.budgets()?;
        budgets.settle(None).await?;
        let labels = meta::labels(pod);
        let mut found = None;
        for slot in budgets.cacher()?.snapshot().range(&self.call.info.namespace, "") {
            let budget = slot.object.value()?;
            if !selects(&budget, &labels) {
                continue;
            }
            if found.replace(budget).is_some() {
                let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not \
                           support.";
                return Err(Status::new(500, "", why));
            }
        }
        Ok(found)
    }

    /// Takes one disruption off the budget, by compare-and-swap.
    async fn charge(&self, budget: &str, pod: &Value) -> status::Result<()> {
        let (server, user) = (&self.call.server, bootstrap::myself());
        let (budgets, name, now) = (self.budgets()?, meta::name(pod), server.clock.wall());
        let write = Write {
            server,
            resource: &budgets,
            request: &self.call.info,
            user: &user,
            causes: &self.call.causes,
            namespace: &self.call.info.namespace,
            name: budget,
            subresource: "status",
            dry_run: self.how.dry_run,
            manager: "kube-apiserver",
            depth: Depth::Direct,
        };
        for _ in 0..ATTEMPTS {
            match store::update(&write, |budget| charged(budget, name, now)).await {
                Err(status) if status.is("Conflict") => {}
                outcome => return outcome.map(drop),
            }
        }
        let why = format!("couldn't update PodDisruptionBudget {budget:?} due to conflicts");
        Err(Status::timeout(why).retry_after(10))
    }

    /// Notes on the pod why it goes, and deletes it; when `bound`, only as it was seen.
    async fn remove(&self, pod: &Value, bound: bool) -> status::Result<()> {
        let call = self.call;
        let plain = WriteOptions { dry_run: self.how.dry_run, ..WriteOptions::default() };
        let mut how = self.how.clone();
        if bound {
            how.revision = Some(meta::resource_version(pod).to_owned());
        }
        if !how.dry_run {
            let mut write = write(call, self.pods, &call.info.name, "status", &plain);
            write.depth = Depth::Direct;
            write.manager = "kube-apiserver";
            let now = call.server.clock.wall();
            let shape = self.pods.shape();
            let noted = store::update(&write, |pod| {
                deletion::check(&how, pod, &shape)?;
                Ok(disrupted(pod, now))
            })
            .await?;
            if how.revision.is_some() {
                // We are the one who has changed it.
                how.revision = Some(meta::resource_version(&noted.object).to_owned());
            }
        }
        store::delete(&write(call, self.pods, &call.info.name, "", &plain), &how).await.map(drop)
    }
}

fn phase(pod: &Value) -> &str {
    pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default()
}

/// Whatever becomes of it, it takes nothing away from its application.
fn ignores_budgets(pod: &Value) -> bool {
    is_over(pod) || phase(pod) == "Pending"
}

fn is_over(pod: &Value) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed") || meta::is_deleting(pod)
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// A budget without a selector, or with one that cannot be read, selects nothing.
fn selects(budget: &Value, labels: &std::collections::BTreeMap<String, String>) -> bool {
    let Some(selector) = budget.pointer("/spec/selector").filter(|selector| !selector.is_null()) else { return false };
    let selector = api::meta::apis::meta::v1::LabelSelector::deserialize(selector);
    let selector: Option<Selector> = selector.ok().and_then(|selector| api::selector(&selector).ok());
    selector.is_some_and(|selector| selector.matches(labels))
}

fn number(budget: &Value, field: &str) -> i64 {
    budget["status"].get(field).and_then(Value::as_i64).unwrap_or(0)
}

/// A pod that is not ready may go although the budget allows no disruption: it does not count anyway.
fn excuses(budget: &Value, pod: &Value) -> bool {
    if is_ready(pod) {
        return false;
    }
    let always = budget.pointer("/spec/unhealthyPodEvictionPolicy").and_then(Value::as_str) == Some("AlwaysAllow");
    let (healthy, desired) = (number(budget, "currentHealthy"), number(budget, "desiredHealthy"));
    always || (healthy >= desired && desired > 0)
}

/// The budget's controller has not seen all yet: 429, soon again.
fn unsettled(budget: &str) -> Box<Status> {
    let why = format!("The disruption budget {budget} is still being processed by the server.");
    Status::too_many_requests(BLOCKED, 10).cause("DisruptionBudget", why, "")
}

/// The budget with one disruption less, and the pod noted that causes it.
fn charged(budget: &Value, pod: &str, now: Timestamp) -> status::Result<Value> {
    let name = meta::name(budget);
    let forbidden = |why: &str| Err(Status::forbidden(&GroupResource::new("policy", "poddisruptionbudget"), name, why));
    if number(budget, "observedGeneration") < meta::generation(budget) {
        return Err(unsettled(name));
    }
    let allowed = number(budget, "disruptionsAllowed");
    if allowed < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    let noted = budget.pointer("/status/disruptedPods").and_then(Value::as_object).map_or(0, |pods| pods.len());
    if noted > MAX_DISRUPTED {
        return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed == 0 {
        let (desired, healthy) = (number(budget, "desiredHealthy"), number(budget, "currentHealthy"));
        let why = format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently");
        return Err(Status::too_many_requests(BLOCKED, 0).cause("DisruptionBudget", why, ""));
    }
    let mut new = budget.clone();
    let status = &mut new["status"];
    status["disruptionsAllowed"] = json!(allowed - 1);
    if !status["disruptedPods"].is_object() {
        status["disruptedPods"] = json!({});
    }
    status["disruptedPods"][pod] = json!(time::rfc3339(now));
    if allowed == 1 {
        exhausted(status, meta::generation(budget), now);
    }
    Ok(new)
}

/// The condition of a budget that allows no disruption.
fn exhausted(status: &mut Value, generation: i64, now: Timestamp) {
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return };
    let mut wanted = json!({"type": "DisruptionAllowed", "status": "False", "observedGeneration": generation,
        "lastTransitionTime": time::rfc3339(now), "reason": "InsufficientPods", "message": ""});
    match conditions.iter_mut().find(|c| c["type"] == wanted["type"]) {
        Some(found) => {
            if found["status"] == wanted["status"] {
                wanted["lastTransitionTime"] = found["lastTransitionTime"].clone();
            }
            *found = wanted;
        }
        None => conditions.push(wanted),
    }
}

/// The pod with the condition that says why it goes.
fn disrupted(pod: &Value, now: Timestamp) -> Value {
    let mut new = pod.clone();
    if !new["status"].is_object() {
        new["status"] = json!({});
    }
    let status = &mut new["status"];
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return new };
    let mut wanted = json!({"type": "DisruptionTarget", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": time::rfc3339(now), "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting"});
    match conditions.iter_mut().find(|c| c["type"] == wanted["type"]) {
        Some(found) => {
            if found["status"] == wanted["status"] {
                wanted["lastTransitionTime"] = found["lastTransitionTime"].clone();
            }
            *found = wanted;
        }
        None => conditions.push(wanted),
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(allowed: i64, healthy: i64, desired: i64) -> Value {
        json!({"metadata": {"name": "b", "generation": 2}, "spec": {"selector": {"matchLabels": {"app": "a"}}},
            "status": {"observedGeneration": 2, "disruptionsAllowed": allowed, "currentHealthy": healthy,
                "desiredHealthy": desired}})
    }

    fn check(budget: &Value) -> Result<Value, String> {
        let refused = |s: Box<Status>| {
            let details = s.details.clone().unwrap_or_default();
            let cause = details.causes.first().map(|c| c.message.clone()).unwrap_or_default();
            format!("{} {} | {cause} | {:?}", s.code, s.message, details.retry_after_seconds)
        };
        charged(budget, "p", Timestamp::UNIX_EPOCH).map_err(refused)
    }

    #[test]
    fn a_budget_gives_what_it_has() {
        let new = check(&budget(2, 3, 1)).expect("allowed");
        assert_eq!(new["status"]["disruptionsAllowed"], 1);
        assert_eq!(new["status"]["disruptedPods"]["p"], "1970-01-01T00:00:00Z");
        assert!(new["status"].get("conditions").is_none());
        let last = check(&budget(1, 2, 1)).expect("allowed");
        assert_eq!(last["status"]["conditions"][0]["reason"], "InsufficientPods");
        let mut behind = budget(1, 2, 1);
        behind["metadata"]["generation"] = json!(3);
        for (budget, want) in [
            (
                budget(0, 1, 1),
                format!("429 {BLOCKED} | The disruption budget b needs 1 healthy pods and has 1 currently | 0"),
            ),
            (behind, format!("429 {BLOCKED} | The disruption budget b is still being processed by the server. | 10")),
            (
                budget(-1, 1, 1),
                "403 poddisruptionbudget.policy \"b\" is forbidden: pdb disruptions allowed is negative |  | 0".into(),
            ),
        ] {
            assert_eq!(check(&budget).expect_err("refused"), want);
        }
    }

    #[test]
    fn who_is_not_ready_does_not_count() {
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let unready = json!({"status": {}});
        let mut always = budget(0, 0, 3);
        always["spec"]["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
        for (budget, pod, want) in [
            (budget(0, 3, 3), &ready, false),
            (budget(0, 3, 3), &unready, true),
            (budget(0, 2, 3), &unready, false),
            (budget(0, 0, 0), &unready, false),
            (always.clone(), &unready, true),
            (always, &ready, false),
        ] {
            assert_eq!(excuses(&budget, pod), want, "{budget} {pod}");
        }
    }

    #[test]
    fn selectors_select() {
        let labels = [("app".to_owned(), "a".to_owned())].into();
        for (selector, want) in [
            (json!({"matchLabels": {"app": "a"}}), true),
            (json!({"matchLabels": {"app": "b"}}), false),
            (json!({}), true),
            (json!(null), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "Bad"}]}), false),
        ] {
            assert_eq!(selects(&json!({"spec": {"selector": selector}}), &labels), want, "{selector}");
        }
    }
}
