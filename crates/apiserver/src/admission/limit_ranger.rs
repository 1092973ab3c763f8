//! What pods and claims ask for when they do not say, and the least and the most they may ask for, as the
//! LimitRanges of their namespace have it.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::resources::{self, Resources};
use api::types::core::v1::{Container, LimitRangeItem, LimitRangeSpec, PersistentVolumeClaim, Pod};
use async_trait::async_trait;
use kinds::Verb;
use kinds::resources::List;
use machinery::quantity::Quantity;
use machinery::{meta, status};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Attributes, Plugin};
use crate::objects::{self, Change, Objects, Resource, Seen};

const CLAIMS: Resource = Resource { group: "", plural: "persistentvolumeclaims" };
const ANNOTATION: &str = "kubernetes.io/limit-ranger";
/// Beyond this thousandths are not counted.
const MAX_MILLI: i128 = (i64::MAX / 1000) as i128;

/// The items of LimitRanges by namespace and name.
type Ranges = BTreeMap<(String, String), Arc<Vec<LimitRangeItem>>>;

#[derive(Default)]
struct Known {
    ranges: Ranges,
    seen: Seen,
}

/// The plugin.
pub struct LimitRanger {
    objects: Arc<dyn Objects>,
    known: Mutex<Known>,
}

impl LimitRanger {
    /// Over the objects given.
    pub fn new(objects: Arc<dyn Objects>) -> Self {
        Self { objects, known: Mutex::default() }
    }

    /// The ranges of a namespace, by name.
    async fn ranges(&self, namespace: &str) -> status::Result<Vec<Arc<Vec<LimitRangeItem>>>> {
        self.objects.settle(objects::LIMIT_RANGES).await?;
        let mut known = self.known.lock();
        let mut seen = std::mem::take(&mut known.seen);
        for change in self.objects.changes(objects::LIMIT_RANGES, &mut seen) {
            match change {
                Change::Put(range) => {
                    let spec = range.get("spec").and_then(|spec| LimitRangeSpec::deserialize(spec).ok());
                    let key = (meta::namespace(&range).to_owned(), meta::name(&range).to_owned());
                    known.ranges.insert(key, Arc::new(spec.map(|spec| spec.limits).unwrap_or_default()));
                }
                Change::Gone { namespace, name } => drop(known.ranges.remove(&(namespace, name))),
            }
        }
        known.seen = seen;
        let from = (namespace.to_owned(), String::new());
        let own = known.ranges.range(from..).take_while(|((space, _), _)| space == namespace);
        Ok(own.map(|(_, items)| items.clone()).collect())
    }
}

/// True for writes that are looked at.
fn concerns(a: &Attributes<'_>) -> bool {
    if a.verb == Verb::Delete || a.old.is_some_and(meta::is_deleting) {
        return false;
    }
    let resized = a.verb == Verb::Update && a.is_for(objects::PODS, "resize");
    resized || (a.verb == Verb::Create && a.is_for(objects::PODS, "")) || a.is_for(CLAIMS, "")
}

/// Gives the containers of a pod what a range says, and notes that.
fn fill(pod: &mut Value, items: &[LimitRangeItem]) {
    let (mut requests, mut limits) = (Map::new(), Map::new());
    for item in items.iter().filter(|item| item.type_ == "Container") {
        let add = |into: &mut Map<String, Value>, list: &Option<List>| {
            into.extend(list.iter().flatten().map(|(name, amount)| (name.clone(), json!(amount.0))));
        };
        add(&mut requests, &item.default_request);
        add(&mut limits, &item.default);
    }
    let mut notes = Vec::new();
    for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
        let containers = pod.get_mut("spec").and_then(|spec| spec.get_mut(list)).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            // Limits first, as they are given; told the other way round.
            let limits = set(container, "limits", &limits);
            let requests = set(container, "requests", &requests);
            for (given, kind) in [(requests, "request"), (limits, "limit")] {
                if !given.is_empty() {
                    notes.push(format!("{} {kind} for {what} {name}", given.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        meta::set_annotation(pod, ANNOTATION, Some(&note));
    }
}

/// Sets what is not there; the names of what was set.
fn set(container: &mut Value, list: &str, defaults: &Map<String, Value>) -> Vec<String> {
    if defaults.is_empty() || !container.is_object() {
        return Vec::new();
    }
    if !container["resources"].is_object() {
        container["resources"] = json!({});
    }
    if !container["resources"][list].is_object() {
        container["resources"][list] = json!({});
    }
    let mut given = Vec::new();
    for (name, amount) in defaults {
        if container["resources"][list].get(name).is_none() {
            container["resources"][list][name] = amount.clone();
            given.push(name.clone());
        }
    }
    given.sort();
    given
}

/// The three numbers on one scale: thousandths where all fit.
fn scaled(request: Quantity, limit: Quantity, bound: Quantity) -> [i128; 3] {
    let all = [request, limit, bound];
    if all.iter().all(|amount| amount.value() <= MAX_MILLI) {
        all.map(|amount| amount.milli())
    } else {
        all.map(|amount| amount.value())
    }
}

/// The text of the refusal, if a bound is not kept.
type Judge = fn(&Bound<'_>) -> Option<String>;

/// One bound of one item, and what was asked for.
struct Bound<'a> {
    of: &'a str,
    name: &'a str,
    bound: Quantity,
    request: Option<Quantity>,
    limit: Option<Quantity>,
}

impl Bound<'_> {
    fn numbers(&self) -> [i128; 3] {
        scaled(self.request.unwrap_or_default(), self.limit.unwrap_or_default(), self.bound)
    }

    fn least(&self) -> Option<String> {
        let [request, limit, bound] = self.numbers();
        let head = format!("minimum {} usage per {} is {}", self.name, self.of, self.bound);
        match (self.request, self.limit) {
            (None, _) => Some(format!("{head}.  No request is specified")),
            (Some(asked), _) if request < bound => Some(format!("{head}, but request is {asked}")),
            (_, Some(asked)) if limit < bound => Some(format!("{head}, but limit is {asked}")),
            _ => None,
        }
    }

    fn most(&self) -> Option<String> {
        let [request, limit, bound] = self.numbers();
        let head = format!("maximum {} usage per {} is {}", self.name, self.of, self.bound);
        match (self.limit, self.request) {
            (None, _) => Some(format!("{head}.  No limit is specified")),
            (Some(asked), _) if limit > bound => Some(format!("{head}, but limit is {asked}")),
            (_, Some(asked)) if request > bound => Some(format!("{head}, but request is {asked}")),
            _ => None,
        }
    }

    /// The same where there is no limit to look at.
    fn most_requested(&self) -> Option<String> {
        let [request, _, bound] = self.numbers();
        let head = format!("maximum {} usage per {} is {}", self.name, self.of, self.bound);
        match self.request {
            None => Some(format!("{head}.  No request is specified")),
            Some(asked) if request > bound => Some(format!("{head}, but request is {asked}")),
            Some(_) => None,
        }
    }

    fn ratio(&self) -> Option<String> {
        let [request, limit, _] = self.numbers();
        let head = format!("{} max limit to request ratio per {} is {}", self.name, self.of, self.bound);
        if request == 0 {
            return Some(format!("{head}, but no request is specified or request is 0"));
        }
        if limit == 0 {
            return Some(format!("{head}, but no limit is specified or limit is 0"));
        }
        let found = limit as f64 / request as f64;
        let (scaled, most) = if self.bound.value() <= MAX_MILLI {
            (found * 1000.0, self.bound.milli() as f64)
        } else {
            (found, self.bound.value() as f64)
        };
        (scaled > most).then(|| format!("{head}, but provided ratio is {found:.6}"))
    }
}

/// What asks for amounts.
struct Asking {
    requests: Resources,
    limits: Resources,
}

impl Asking {
    fn container(container: &Container) -> Self {
        let list = |list: Option<&List>| list.map(resources::parse).unwrap_or_default();
        let all = container.resources.as_ref();
        Self {
            requests: list(all.and_then(|r| r.requests.as_ref())),
            limits: list(all.and_then(|r| r.limits.as_ref())),
        }
    }

    fn judge(&self, item: &LimitRangeItem, out: &mut Vec<String>) {
        let kinds: [(&Option<List>, Judge); 3] = [
            (&item.min, |bound| bound.least()),
            (&item.max, |bound| bound.most()),
            (&item.max_limit_request_ratio, |bound| bound.ratio()),
        ];
        for (list, judge) in kinds {
            out.extend(list.iter().flatten().filter_map(|(name, bound)| {
                judge(&Bound {
                    of: &item.type_,
                    name,
                    bound: resources::amount(bound),
                    request: self.requests.get(name).copied(),
                    limit: self.limits.get(name).copied(),
                })
            }));
        }
    }
}

fn judge_pod(pod: &Pod, items: &[LimitRangeItem]) -> Vec<String> {
    let mut out = Vec::new();
    let Some(spec) = &pod.spec else { return out };
    for item in items {
        match item.type_.as_str() {
            "Container" => {
                for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
                    Asking::container(container).judge(item, &mut out);
                }
            }
            "Pod" => {
                let [requests, limits] = api::pod::wished(pod);
                Asking { requests, limits }.judge(item, &mut out);
            }
            _ => {}
        }
    }
    out
}

fn judge_claim(claim: &PersistentVolumeClaim, items: &[LimitRangeItem]) -> Vec<String> {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()).and_then(|r| r.requests.as_ref());
    let requests = requests.map(resources::parse).unwrap_or_default();
    let mut out = Vec::new();
    for item in items.iter().filter(|item| item.type_ == "PersistentVolumeClaim") {
        let kinds: [(&Option<List>, Judge); 2] =
            [(&item.min, |bound| bound.least()), (&item.max, |bound| bound.most_requested())];
        for (list, judge) in kinds {
            out.extend(list.iter().flatten().filter_map(|(name, bound)| {
                let (of, bound, request) = (&*item.type_, resources::amount(bound), requests.get(name).copied());
                judge(&Bound { of, name, bound, request, limit: None })
            }));
        }
    }
    out
}

/// All mistakes as one text, each once: containers with the same mistake are told it together.
fn told(wrong: Vec<String>) -> Option<String> {
    let mut once: Vec<String> = Vec::new();
    for one in wrong {
        if !once.contains(&one) {
            once.push(one);
        }
    }
    match once.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("[{}]", many.join(", "))),
    }
}

#[async_trait]
impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    async fn mutate(&self, a: &Attributes<'_>, object: Option<&mut Value>) -> status::Result<()> {
        let Some(pod) = object.filter(|_| concerns(a) && !a.is_for(CLAIMS, "")) else { return Ok(()) };
        for items in self.ranges(a.namespace).await? {
            fill(pod, &items);
        }
        Ok(())
    }

    async fn validate(&self, a: &Attributes<'_>, object: Option<&Value>) -> status::Result<()> {
        let Some(object) = object.filter(|_| concerns(a)) else { return Ok(()) };
        for items in self.ranges(a.namespace).await? {
            let wrong = if a.is_for(CLAIMS, "") {
                PersistentVolumeClaim::deserialize(object).map(|claim| judge_claim(&claim, &items))
            } else {
                kinds::pod::read(object).map(|pod| judge_pod(&pod, &items))
            };
            if let Some(why) = told(wrong.map_err(status::Status::internal)?) {
                return Err(a.forbidden(Some(object), why));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(items: Value) -> Vec<LimitRangeItem> {
        serde_json::from_value(items).expect("items")
    }

    fn pod(resources: &Value) -> Value {
        json!({"spec": {"containers": [{"name": "c", "resources": resources}]}})
    }

    #[test]
    fn defaults_fill_what_is_not_said() {
        let items = items(json!([{"type": "Container", "default": {"cpu": "1", "memory": "1Gi"},
            "defaultRequest": {"cpu": "500m"}}]));
        let mut pod = json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}],
            "initContainers": [{"name": "i"}]}});
        fill(&mut pod, &items);
        let of = |list: &str| pod["spec"][list][0]["resources"].clone();
        assert_eq!(of("containers"), json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "500m"}}));
        assert_eq!(of("initContainers"), json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}));
        assert_eq!(
            meta::annotation(&pod, ANNOTATION),
            Some(
                "LimitRanger plugin set: cpu request for container c; memory limit for container c; cpu request for \
                 init container i; cpu, memory limit for init container i"
            )
        );
        let mut full = json!({"spec": {"containers": []}});
        fill(&mut full, &items);
        assert_eq!(full, json!({"spec": {"containers": []}}));
    }

    #[test]
    fn bounds_are_kept() {
        let bounds = items(json!([{"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "1", "memory": "1Gi"},
            "maxLimitRequestRatio": {"cpu": "2"}}]));
        for (asked, want) in [
            (json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "1Gi"}}), vec![]),
            (
                json!({"requests": {"cpu": "50m"}, "limits": {"cpu": "90m", "memory": "2Gi"}}),
                vec![
                    "minimum cpu usage per Container is 100m, but request is 50m",
                    "maximum memory usage per Container is 1Gi, but limit is 2Gi",
                ],
            ),
            (
                json!({}),
                vec![
                    "minimum cpu usage per Container is 100m.  No request is specified",
                    "maximum cpu usage per Container is 1.  No limit is specified",
                    "maximum memory usage per Container is 1Gi.  No limit is specified",
                    "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
                ],
            ),
            (
                json!({"requests": {"cpu": "300m"}, "limits": {"cpu": "1", "memory": "1"}}),
                vec!["cpu max limit to request ratio per Container is 2, but provided ratio is 3.333333"],
            ),
        ] {
            let pod = Pod::deserialize(&pod(&asked)).expect("a pod");
            assert_eq!(judge_pod(&pod, &bounds), want, "{asked}");
        }
        let whole = items(json!([{"type": "Pod", "max": {"cpu": "1"}}]));
        let two = json!({"spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "600m"}}},
            {"name": "b", "resources": {"limits": {"cpu": "600m"}}}]}});
        let two = Pod::deserialize(&two).expect("a pod");
        assert_eq!(judge_pod(&two, &whole), ["maximum cpu usage per Pod is 1, but limit is 1200m"]);
    }

    #[test]
    fn claims_have_bounds_too() {
        let bounds = items(json!([{"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"},
            "max": {"storage": "2Gi"}}]));
        for (storage, want) in [
            ("1Gi", vec![]),
            ("1Mi", vec!["minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"]),
            ("3Gi", vec!["maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"]),
        ] {
            let claim = json!({"spec": {"resources": {"requests": {"storage": storage}}}});
            let claim = PersistentVolumeClaim::deserialize(&claim).expect("a claim");
            assert_eq!(judge_claim(&claim, &bounds), want, "{storage}");
        }
    }
}
