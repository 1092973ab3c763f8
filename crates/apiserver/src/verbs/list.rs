//! `list`: which state of the collection, which part of it, and where the next part begins.
//!
//! ```text
//!  resourceVersion   match         state
//!  (none)                          the newest: every write acknowledged before the request is in it
//!  0                               what the cache has
//!  N                 NotOlderThan  the cache, once it has N
//!  N                 Exact         the state at N, or 410
//!  N with a limit                  the state at N, or 410
//!  continue token                  the state the first part was read from, or 410 with a token that
//!                                  goes on in the newest state
//! ```

use std::sync::Arc;

use machinery::status::{self, Status};
use transport::Response;

use super::continue_token::Token;
use super::options::{ListOptions, Match};
use crate::cacher::{CachedObject, Filter, Scan, Snapshot};
use crate::chain::Call;
use crate::crd::convert;
use crate::encode;
use crate::encode::json::ListMeta;
use crate::encode::negotiate::Offer;
use crate::registry::catalogue::Resource;

/// A part of a collection.
pub struct Page {
    pub meta: ListMeta,
    pub objects: Vec<Arc<CachedObject>>,
}

/// Serves the request.
///
/// # Errors
/// 400 and 422 for options, 410 for a state that is gone, 504 for one that has not come.
pub async fn run(call: &Call, resource: &Resource) -> status::Result<Response> {
    let accepted = call.accept(Offer::Objects { list: true })?;
    let page = page(call, resource, &ListOptions::parse(&call.query, false)?).await?;
    let objects = convert::objects(&call.server, resource, page.objects).await?;
    encode::list(call, resource.kind.clone(), accepted, &page.meta, objects).await
}

/// The objects a list shows.
///
/// # Errors
/// As [`run`].
pub async fn page(call: &Call, resource: &Resource, options: &ListOptions) -> status::Result<Page> {
    check_fields(resource, options)?;
    let token = match options.continue_token.as_str() {
        "" => None,
        text => Some(Token::read(text, options.revision)?),
    };
    let snapshot = state(resource, options, token.as_ref()).await?;
    let prefix = match call.info.namespace.as_str() {
        namespace if resource.shape().is_namespaced() && !namespace.is_empty() => format!("{namespace}/"),
        _ => String::new(),
    };
    let filter = filter(call, resource, options);
    let start = token.as_ref().map(|token| format!("{prefix}{}", token.start));
    let limited = options.limit > 0 && options.revision != Some(0);
    let limit = if limited { options.limit } else { usize::MAX };
    let countable = filter.is_namespace_only();
    let namespace = filter.namespace.clone();
    let judge = convert::is_judge(resource, &filter).then(|| filter.clone());
    let walked = judge.as_ref().map_or(filter, convert::coarse);
    let mut scan = Scan::new(walked, snapshot, start.as_deref());
    let mut objects: Vec<Arc<CachedObject>> = Vec::new();
    // One more than wanted tells whether there is more.
    while objects.len() <= limit && !scan.is_over() {
        let more = limit.saturating_add(1) - objects.len();
        match &judge {
            None => scan.step(more, &mut objects),
            Some(judge) => {
                let mut found = Vec::new();
                scan.step(more, &mut found);
                objects.extend(convert::filtered(&call.server, resource, judge, found).await?);
            }
        }
        tokio::task::consume_budget().await;
    }
    let snapshot = scan.snapshot();
    let mut meta = ListMeta { revision: Some(snapshot.revision), ..ListMeta::default() };
    let more = objects.len() > limit;
    objects.truncate(limit);
    if let Some(last) = objects.last().filter(|_| more) {
        let suffix = last.key.strip_prefix(&prefix).unwrap_or_default();
        meta.continue_token = Some(Token::after(snapshot.revision, suffix).write());
        if countable {
            meta.remaining = Some(snapshot.range(&namespace, &format!("{}\0", last.key)).count());
        }
        resource.cacher()?.keep(snapshot);
    }
    Ok(Page { meta, objects })
}

/// What a list or watch lets through, in the words of the stored kind.
pub fn filter(call: &Call, resource: &Resource, options: &ListOptions) -> Filter {
    let shape = resource.shape();
    Filter {
        namespace: if shape.is_namespaced() { call.info.namespace.clone() } else { String::new() },
        name: String::new(),
        labels: options.labels.clone(),
        fields: options.fields.renamed(|field| resource.kind.stored_field(field)),
    }
}

/// A field selector may name only what the kind says it may.
///
/// # Errors
/// 400.
pub fn check_fields(resource: &Resource, options: &ListOptions) -> status::Result<()> {
    match options.fields.fields().find(|field| !resource.kind.is_selectable(field)) {
        Some(field) => Err(Status::bad_request(resource.kind.unknown_field(field))),
        None => Ok(()),
    }
}

/// The state the list is read from.
async fn state(resource: &Resource, options: &ListOptions, token: Option<&Token>) -> status::Result<Snapshot> {
    let cacher = resource.cacher()?;
    if let Some(token) = token {
        let Ok(revision) = u64::try_from(token.rv) else {
            resource.settle(None).await?;
            return Ok(cacher.snapshot());
        };
        // Also a token may name what has not happened yet; the answer must not claim that it has.
        resource.settle(Some(revision)).await?;
        return cacher.snapshot_at(revision).map_err(|status| token.expired(status));
    }
    let exact = options.matching == Some(Match::Exact) || (options.matching.is_none() && options.limit > 0);
    match options.revision {
        Some(revision) if revision > 0 && exact => {
            resource.settle(Some(revision)).await?;
            cacher.snapshot_at(revision)
        }
        asked => {
            resource.settle(asked).await?;
            Ok(cacher.snapshot())
        }
    }
}
