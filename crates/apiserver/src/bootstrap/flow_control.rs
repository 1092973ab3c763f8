//! The flow schemas and priority levels of a cluster: mandatory ones stay as they are, suggested ones
//! until somebody makes them their own. And every schema says whether its level is there. Nothing is served
//! by them yet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kinds::flow_control::{AUTO_UPDATE, mandatory, suggested};
use machinery::status::Status;
use machinery::{meta, status};
use serde_json::{Value, json};
use stdx::{ClockExt, SharedClock};
use transport::SharedHandler;

use super::{Completing, Mend, Writer, flow_schema};
use crate::cacher::{Cachers, WatchItem, WatchOptions};
use crate::objects::{Objects, Resource};
use crate::verbs::apply::TYPE as APPLY;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const LEVELS: Resource = Resource { group: GROUP, plural: "prioritylevelconfigurations" };
const SCHEMAS: Resource = Resource { group: GROUP, plural: "flowschemas" };
/// Whose the conditions of schemas are, as upstream calls it.
const MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";
/// After a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Every object with what completes an existing one, levels before the schemas that name them.
pub fn wanted() -> Vec<(Value, Completing)> {
    let fixed = mandatory().into_iter().map(|object| (object, mend_mandatory as Completing));
    let mut all: Vec<_> =
        suggested().into_iter().map(|object| (object, mend_suggested as Completing)).chain(fixed).collect();
    all.sort_by_key(|(object, _)| meta::kind(object) == "FlowSchema");
    all
}

/// A mandatory object always is as it should be; what an exempt level lends is its owner's to say.
fn mend_mandatory(existing: &Value, wanted: &Value) -> Mend {
    let mut spec = wanted["spec"].clone();
    if spec.get("exempt").is_some() {
        spec["exempt"] = existing["spec"]["exempt"].clone();
        if spec["exempt"].is_null() {
            spec["exempt"] = wanted["spec"]["exempt"].clone();
        }
    }
    mend(existing, &spec, true)
}

/// A suggested object is kept up to date until its owner says otherwise, or has changed it before
/// anybody said anything.
fn mend_suggested(existing: &Value, wanted: &Value) -> Mend {
    let said = meta::annotation(existing, AUTO_UPDATE).and_then(parse_bool);
    let ours = said.unwrap_or_else(|| existing.pointer("/metadata/generation") == Some(&json!(1)));
    mend(existing, &wanted["spec"], ours)
}

fn mend(existing: &Value, spec: &Value, ours: bool) -> Mend {
    let mut next = existing.clone();
    if ours && next["spec"] != *spec {
        next["spec"] = spec.clone();
    }
    if meta::annotation(existing, AUTO_UPDATE).and_then(parse_bool) != Some(ours) {
        next["metadata"]["annotations"][AUTO_UPDATE] = ours.to_string().into();
    }
    if next == *existing { Mend::Keep } else { Mend::Update(next) }
}

/// As Go reads one.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// True for an object that an older server kept, and this one does not know.
fn is_left_over(object: &Value) -> bool {
    let known = wanted()
        .iter()
        .any(|(wanted, _)| meta::kind(wanted) == meta::kind(object) && meta::name(wanted) == meta::name(object));
    !known && meta::annotation(object, AUTO_UPDATE).and_then(parse_bool) == Some(true)
}

/// What keeps the objects: the server's own door, its caches and its clock.
pub struct Keeper {
    pub handler: SharedHandler,
    pub objects: Arc<dyn Objects>,
    pub cachers: Arc<Cachers>,
    pub clock: SharedClock,
}

impl Keeper {
    /// Keeps them for ever: whatever happens to one of them is looked at.
    pub async fn run(self) {
        loop {
            self.follow().await;
            self.clock.sleep(PAUSE).await;
        }
    }

    /// Until a watch ends or a write fails.
    async fn follow(&self) {
        let watch = |resource: Resource| {
            let cacher = self.cachers.find(resource.group, resource.plural)?;
            cacher.watch(WatchOptions::default()).ok()
        };
        let (Some(mut levels), Some(mut schemas)) = (watch(LEVELS), watch(SCHEMAS)) else { return };
        loop {
            if let Err(status) = self.settle().await {
                tracing::warn!(%status, "flow schemas and priority levels are not as they should be");
                return;
            }
            let item = tokio::select! {
                item = levels.next() => item,
                item = schemas.next() => item,
            };
            if !matches!(item, Some(WatchItem::Event(_) | WatchItem::Bookmark { .. })) {
                return;
            }
        }
    }

    /// Brings everything up to date once.
    async fn settle(&self) -> status::Result<()> {
        let writer = Writer { handler: &self.handler, read: &self.objects };
        for (object, mend) in wanted() {
            writer.ensure(&object, mend).await?;
        }
        for resource in [SCHEMAS, LEVELS] {
            for object in self.all(resource)? {
                if is_left_over(&object) {
                    let path = format!("/apis/{}/v1/{}/{}", resource.group, resource.plural, meta::name(&object));
                    gone(super::send(&self.handler, "DELETE", &path, "application/json", None).await)?;
                }
            }
        }
        self.settle_conditions().await
    }

    /// Has every schema say whether its level is there.
    async fn settle_conditions(&self) -> status::Result<()> {
        let levels = self.all(LEVELS)?;
        let levels: BTreeSet<&str> = levels.iter().map(meta::name).collect();
        for schema in self.all(SCHEMAS)? {
            let is_there = |level: &str| levels.contains(level);
            let Some(condition) = flow_schema::condition(&schema, is_there, self.clock.wall()) else { continue };
            let name = meta::name(&schema);
            let path = format!("/apis/{GROUP}/v1/flowschemas/{name}/status?fieldManager={MANAGER}&force=true");
            let applied = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "FlowSchema", "metadata": {"name": name},
                "status": {"conditions": [condition]}});
            gone(super::send(&self.handler, "PATCH", &path, APPLY, Some(&applied)).await)?;
        }
        Ok(())
    }

    fn all(&self, resource: Resource) -> status::Result<Vec<Value>> {
        let Some(cacher) = self.cachers.find(resource.group, resource.plural) else { return Ok(Vec::new()) };
        cacher.snapshot().objects().values().map(|slot| slot.object.value()).collect()
    }
}

/// Somebody else has deleted it in the meantime.
fn gone(outcome: status::Result<Value>) -> Result<(), Box<Status>> {
    match outcome {
        Err(status) if status.code != 404 => Err(status),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(kind: &str, name: &str) -> (Value, Completing) {
        let is_it = |(object, _): &(Value, Completing)| meta::kind(object) == kind && meta::name(object) == name;
        wanted().into_iter().find(is_it).unwrap()
    }

    #[test]
    fn a_suggested_object_is_ours_until_it_is_changed() {
        let (wanted, mend) = find("PriorityLevelConfiguration", "system");
        assert_eq!(mend(&wanted, &wanted), Mend::Keep);
        let changed = |annotation: Option<&str>, generation: i64| {
            let mut object = wanted.clone();
            object["spec"]["limited"]["nominalConcurrencyShares"] = json!(1);
            object["metadata"]["generation"] = generation.into();
            match annotation {
                Some(text) => object["metadata"]["annotations"][AUTO_UPDATE] = text.into(),
                None => object["metadata"]["annotations"] = json!({}),
            }
            object
        };
        let shares = |mended: Mend| match mended {
            Mend::Update(object) => Some((
                object["spec"]["limited"]["nominalConcurrencyShares"].as_i64().unwrap(),
                object["metadata"]["annotations"][AUTO_UPDATE].as_str().unwrap().to_owned(),
            )),
            _ => None,
        };
        for (annotation, generation, want) in [
            (Some("true"), 2, Some((30, "true".to_owned()))),
            (Some("false"), 2, None),
            (None, 1, Some((30, "true".to_owned()))),
            (None, 2, Some((1, "false".to_owned()))),
            (Some("perhaps"), 2, Some((1, "false".to_owned()))),
        ] {
            assert_eq!(shares(mend(&changed(annotation, generation), &wanted)), want, "{annotation:?} {generation}");
        }
    }

    #[test]
    fn a_mandatory_object_is_always_ours_but_for_what_the_exempt_lend() {
        let (wanted, mend) = find("FlowSchema", "catch-all");
        let mut changed = wanted.clone();
        changed["metadata"]["annotations"][AUTO_UPDATE] = json!("false");
        assert_eq!(mend(&changed, &wanted), Mend::Update(wanted.clone()));
        let (wanted, mend) = find("PriorityLevelConfiguration", "exempt");
        let mut lends = wanted.clone();
        lends["spec"]["exempt"]["lendablePercent"] = json!(50);
        assert_eq!(mend(&lends, &wanted), Mend::Keep);
    }

    #[test]
    fn what_an_older_server_kept_goes() {
        let object = |name: &str, annotations: Value| json!({"kind": "FlowSchema", "metadata": {"name": name, "annotations": annotations}});
        for (object, want) in [
            (object("old", json!({AUTO_UPDATE: "true"})), true),
            (object("old", json!({AUTO_UPDATE: "false"})), false),
            (object("mine", json!({})), false),
            (object("probes", json!({AUTO_UPDATE: "true"})), false),
        ] {
            assert_eq!(is_left_over(&object), want, "{object}");
        }
    }
}
