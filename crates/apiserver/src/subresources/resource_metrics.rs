//! `metrics.k8s.io`: what nodes and pods use, of those that there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kinds::SharedKind;
use machinery::encode as encoder;
use machinery::quantity::canonical;
use machinery::status::{self, GroupResource, Status};
use machinery::time::{go_duration, rfc3339};
use serde_json::{Value, json};
use transport::Response;

use super::{Endpoint, Responding};
use crate::cacher::{CachedObject, Filter};
use crate::chain::Call;
use crate::encode;
use crate::encode::json::ListMeta;
use crate::encode::negotiate::Offer;
use crate::resource_metrics::{Usage, Used};
use crate::verbs::options::ListOptions;

const GROUP: &str = api::resource_metrics::GROUP;

pub static NODES: Endpoint = Endpoint {
    group: GROUP,
    resource: "nodes",
    subresource: "",
    verb: "list",
    run: |call| -> Responding<'_> { Box::pin(list(call, node)) },
};
pub static NODE: Endpoint =
    Endpoint { verb: "get", run: |call| -> Responding<'_> { Box::pin(get(call, node)) }, ..NODES };
pub static PODS: Endpoint =
    Endpoint { resource: "pods", run: |call| -> Responding<'_> { Box::pin(list(call, pod)) }, ..NODES };
pub static POD: Endpoint = Endpoint { verb: "get", run: |call| -> Responding<'_> { Box::pin(get(call, pod)) }, ..PODS };

/// What is told of an object; `None` while that is not known.
type Told = fn(&Usage, &CachedObject, Timestamp) -> Option<Value>;

fn kind(call: &Call) -> status::Result<SharedKind> {
    let info = &call.info;
    let found = call.server.catalogue.find(&info.group, &info.version, &info.resource);
    found.map(|resource| resource.kind.clone()).ok_or_else(Status::no_such_path)
}

async fn get(call: &Call, told: Told) -> status::Result<Response> {
    let accepted = call.accept(Offer::Objects { list: false })?;
    let (kind, info) = (kind(call)?, &call.info);
    let of = call.server.catalogue.find("", "v1", &info.resource).ok_or_else(Status::no_such_path)?;
    let full = if info.namespace.is_empty() { info.name.clone() } else { format!("{}/{}", info.namespace, info.name) };
    let missing = || Status::not_found(&GroupResource::new(GROUP, kind.shape().singular), &full);
    let object = of.cached(&info.namespace, &info.name).ok_or_else(missing)?;
    let usage = call.server.resource_metrics.current(&call.server).await;
    let tree = told(&usage, &object, call.server.clock.wall()).ok_or_else(missing)?;
    let json = encoder::json(&tree, &kind.schema());
    encode::one(call, &*kind, accepted, 200, &json, None).await
}

async fn list(call: &Call, told: Told) -> status::Result<Response> {
    let accepted = call.accept(Offer::Objects { list: true })?;
    let (kind, options) = (kind(call)?, ListOptions::parse(&call.query, false)?);
    if let Some(field) = options.fields.fields().find(|field| !kind.is_selectable(field)) {
        return Err(Status::bad_request(kind.unknown_field(field)));
    }
    let namespace = call.info.namespace.clone();
    let filter = Filter { namespace, labels: options.labels, fields: options.fields, ..Filter::default() };
    let usage = call.server.resource_metrics.current(&call.server).await;
    let cacher = call.server.cachers.find("", &call.info.resource).ok_or_else(Status::no_such_path)?;
    let (snapshot, now) = (cacher.snapshot(), call.server.clock.wall());
    let objects = snapshot.objects().values().filter_map(|slot| {
        let object = &slot.object;
        if !filter.namespace.is_empty() && object.namespace() != filter.namespace {
            return None;
        }
        let tree = told(&usage, object, now)?;
        let object = Arc::new(CachedObject::computed(&*kind, &object.key, &tree));
        filter.passes(&object).then_some(object)
    });
    let objects = objects.collect();
    encode::list(call, kind.clone(), accepted, &ListMeta::default(), objects).await
}

fn node(usage: &Usage, object: &CachedObject, now: Timestamp) -> Option<Value> {
    let found = usage.nodes.get(object.name())?;
    let mut tree = common("NodeMetrics", object, now, (found.at, found.window));
    tree["usage"] = used(&found.used);
    Some(tree)
}

fn pod(usage: &Usage, object: &CachedObject, now: Timestamp) -> Option<Value> {
    let found = usage.pods.get(&(object.namespace().to_owned(), object.name().to_owned()))?;
    let mut tree = common("PodMetrics", object, now, (found.at, found.window));
    tree["metadata"]["namespace"] = object.namespace().into();
    let container = |(name, of): (&String, &Used)| json!({"name": name, "usage": used(of)});
    tree["containers"] = found.containers.iter().map(container).collect();
    Some(tree)
}

fn common(kind: &str, object: &CachedObject, now: Timestamp, (at, window): (i64, i64)) -> Value {
    let at = Timestamp::from_millisecond(at).unwrap_or(now);
    let mut metadata = json!({"name": object.name(), "creationTimestamp": rfc3339(now)});
    let labels: BTreeMap<&str, &str> = object.labels.iter().collect();
    if !labels.is_empty() {
        metadata["labels"] = json!(labels);
    }
    json!({
        "kind": kind,
        "apiVersion": api::resource_metrics::API_VERSION,
        "metadata": metadata,
        "timestamp": rfc3339(at),
        "window": go_duration(window.saturating_mul(1_000_000)),
    })
}

fn used(used: &Used) -> Value {
    let cpu = format!("{}n", used.cpu);
    let cpu = canonical(&cpu).map(|c| c.into_owned()).unwrap_or(cpu);
    json!(BTreeMap::from([("cpu", cpu), ("memory", binary(used.memory))]))
}

/// An amount of bytes with the largest binary suffix that keeps it whole.
fn binary(bytes: u64) -> String {
    let (mut amount, mut suffixes) = (bytes, ["", "Ki", "Mi", "Gi", "Ti", "Pi"].into_iter());
    let mut suffix = suffixes.next().unwrap_or_default();
    while amount != 0 && amount % 1024 == 0 {
        let Some(next) = suffixes.next() else { break };
        (amount, suffix) = (amount / 1024, next);
    }
    format!("{amount}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_quantities() {
        for (cpu, memory, want) in [
            (0, 0, json!({"cpu": "0", "memory": "0"})),
            (1_500_000_000, 4 << 20, json!({"cpu": "1500m", "memory": "4Mi"})),
            (1_234_567, 1025, json!({"cpu": "1234567n", "memory": "1025"})),
            (2_000_000_000, 6144, json!({"cpu": "2", "memory": "6Ki"})),
        ] {
            assert_eq!(used(&Used { cpu, memory }), want);
        }
    }
}
