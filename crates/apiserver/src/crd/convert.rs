//! Objects of a custom resource between its versions. What is kept is what was stored; the other versions are
//! made for those who ask, and kept beside it for the next who asks.

use std::sync::Arc;

use kinds::AnyKind as _;
use kinds::custom::CustomKind;
use machinery::status::{self, Status};
use machinery::{encode, meta};
use serde_json::Value;

use super::Custom;
use super::webhook::AT_ONCE;
use crate::cacher::{CachedObject, Filter};
use crate::registry::catalogue::Resource;
use crate::server::ApiServer;

/// Objects of the cache in the version of the resource.
///
/// # Errors
/// 500 when the webhook does not convert them.
pub async fn objects(
    server: &ApiServer,
    resource: &Resource,
    mut objects: Vec<Arc<CachedObject>>,
) -> status::Result<Vec<Arc<CachedObject>>> {
    let Some((custom, kind)) = wanted(resource) else { return Ok(objects) };
    // Where each is that has to be converted, and its tree.
    let mut open: Vec<(usize, Value)> = Vec::new();
    for (at, object) in objects.iter_mut().enumerate() {
        if object.damage.is_some() || is_as_wanted(custom, kind, &object.json) {
            continue;
        }
        match object.other_form(kind.version()) {
            Some(made) => *object = made,
            None => open.push((at, object.value()?)),
        }
    }
    for some in open.chunks_mut(AT_ONCE) {
        let trees = some.iter_mut().map(|(_, tree)| std::mem::take(tree)).collect();
        let converted = convert(server, custom, kind, trees).await?;
        for ((at, _), tree) in some.iter().zip(converted) {
            let json = encode::json(&tree, &kind.schema());
            objects[*at] = objects[*at].keep_form(kind.version(), &**kind, &tree, json);
        }
        tokio::task::consume_budget().await;
    }
    Ok(objects)
}

/// One object of the cache in the version of the resource.
///
/// # Errors
/// As [`objects`].
pub async fn object(
    server: &ApiServer,
    resource: &Resource,
    object: Arc<CachedObject>,
) -> status::Result<Arc<CachedObject>> {
    if !is_needed(resource, &object) {
        return Ok(object);
    }
    let mut converted = objects(server, resource, vec![object.clone()]).await?;
    Ok(converted.pop().unwrap_or(object))
}

/// True when the object is in another version than the resource.
pub fn is_needed(resource: &Resource, object: &CachedObject) -> bool {
    wanted(resource).is_some_and(|(custom, kind)| object.damage.is_none() && !is_as_wanted(custom, kind, &object.json))
}

/// True when a filter must look at objects in the version of the resource: it selects by what a version
/// names, or a webhook may change.
pub fn is_judge(resource: &Resource, filter: &Filter) -> bool {
    let by_head = |field: &str| matches!(field, "metadata.name" | "metadata.namespace");
    let selects = !filter.labels.is_empty() || filter.fields.fields().any(|field| !by_head(field));
    selects && resource.custom_parts().is_some_and(Custom::has_several_versions)
}

/// What a filter lets through in any version.
pub fn coarse(filter: &Filter) -> Filter {
    let named = filter.fields.requires_exact("metadata.name").unwrap_or_default();
    let name = if filter.name.is_empty() { named } else { &filter.name };
    Filter { namespace: filter.namespace.clone(), name: name.to_owned(), ..Filter::default() }
}

/// The objects that a filter lets through in the version of the resource, in that version.
///
/// # Errors
/// As [`objects`].
pub async fn filtered(
    server: &ApiServer,
    resource: &Resource,
    filter: &Filter,
    objects: Vec<Arc<CachedObject>>,
) -> status::Result<Vec<Arc<CachedObject>>> {
    let mut converted = self::objects(server, resource, objects).await?;
    converted.retain(|object| filter.passes(object));
    Ok(converted)
}

/// A tree in the version of the resource.
///
/// # Errors
/// As [`objects`].
pub async fn own(server: &ApiServer, resource: &Resource, tree: Value) -> status::Result<Value> {
    match wanted(resource) {
        Some((custom, kind)) => one(server, custom, kind, tree).await,
        None => Ok(tree),
    }
}

/// A tree as it is stored, with the kind in whose form that is.
///
/// # Errors
/// As [`objects`].
pub async fn stored<'r>(
    server: &ApiServer,
    resource: &'r Resource,
    tree: Value,
) -> status::Result<(Value, &'r CustomKind)> {
    let custom = resource.custom_parts().ok_or_else(|| Status::internal("not a custom resource"))?;
    let kind = custom.storage();
    Ok((one(server, custom, kind, tree).await?, kind))
}

async fn one(server: &ApiServer, custom: &Custom, kind: &Arc<CustomKind>, tree: Value) -> status::Result<Value> {
    let mut converted = convert(server, custom, kind, vec![tree]).await?;
    converted.pop().ok_or_else(|| Status::internal("nothing was converted"))
}

/// The versions of a resource that has several, and the one wanted.
fn wanted(resource: &Resource) -> Option<(&Custom, &Arc<CustomKind>)> {
    let custom = resource.custom_parts()?;
    Some((custom, custom.version(resource.shape().version)?))
}

/// True for an object that is what is wanted: in the version, and with the fields that it names, which are
/// those of the version that is stored today.
fn is_as_wanted(custom: &Custom, kind: &CustomKind, json: &[u8]) -> bool {
    is_in(kind, json) && kind.version() == custom.storage().version()
}

/// Objects of custom resources are written with their version first.
fn is_in(kind: &CustomKind, json: &[u8]) -> bool {
    let rest = json.strip_prefix(br#"{"apiVersion":""#);
    rest.and_then(|rest| rest.strip_prefix(kind.api_version().as_bytes())).is_some_and(|rest| rest.starts_with(b"\""))
}

async fn convert(
    server: &ApiServer,
    custom: &Custom,
    kind: &Arc<CustomKind>,
    mut trees: Vec<Value>,
) -> status::Result<Vec<Value>> {
    let version = kind.api_version();
    match &custom.webhook {
        // The kind itself gives them its version.
        None => {}
        Some(webhook) => {
            let (done, open): (Vec<_>, Vec<_>) =
                trees.into_iter().enumerate().partition(|(_, tree)| meta::api_version(tree) == version);
            let (places, open): (Vec<usize>, Vec<Value>) = open.into_iter().unzip();
            let converted = match open.is_empty() {
                true => Vec::new(),
                // Upstream says it without a reason.
                false => webhook.convert(server, &open, version).await.map_err(|why| Status::new(500, "", why))?,
            };
            let mut all: Vec<(usize, Value)> = done.into_iter().chain(places.into_iter().zip(converted)).collect();
            all.sort_by_key(|(at, _)| *at);
            trees = all.into_iter().map(|(_, tree)| tree).collect();
        }
    }
    for tree in &mut trees {
        kind.refresh(tree)?;
        machinery::decode::check_depth(tree)?;
    }
    Ok(trees)
}
