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

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use machinery::status::{self, Status};
use serde::{Deserialize, Serialize};
use transport::Response;

use super::options::{ListOptions, Match};
use crate::cacher::{CachedObject, Filter, Scan, Snapshot};
use crate::chain::Call;
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
    encode::list(call, resource.kind, accepted, &page.meta, page.objects).await
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
    let mut scan = Scan::new(filter, snapshot, start.as_deref());
    let mut objects: Vec<Arc<CachedObject>> = Vec::new();
    // One more than wanted tells whether there is more.
    while objects.len() <= limit && !scan.is_over() {
        scan.step(limit.saturating_add(1) - objects.len(), &mut objects);
        tokio::task::consume_budget().await;
    }
    let snapshot = scan.snapshot();
    let mut meta = ListMeta { revision: snapshot.revision, ..ListMeta::default() };
    let more = objects.len() > limit;
    objects.truncate(limit);
    if let Some(last) = objects.last().filter(|_| more) {
        let suffix = last.key.strip_prefix(&prefix).unwrap_or_default();
        let next = Token { v: VERSION.into(), rv: signed(snapshot.revision), start: format!("{suffix}\0") };
        meta.continue_token = Some(next.write());
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

const VERSION: &str = "meta.k8s.io/v1";

fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// Where a list goes on, and in which state; opaque to clients.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
struct Token {
    v: String,
    /// -1: the newest.
    rv: i64,
    /// What the first key of the next part has after the prefix of the collection.
    start: String,
}

impl Token {
    fn write(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::json!({ "v": self.v, "rv": self.rv, "start": self.start }).to_string())
    }

    fn read(text: &str, revision: Option<u64>) -> status::Result<Self> {
        let wrong =
            |why: &str| Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| wrong(&error.to_string()))?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|error| wrong(&error.to_string()))?;
        if token.v != VERSION {
            return Err(wrong(&format!("server does not recognize this encoded version {}", token.v)));
        }
        if token.rv == 0 {
            return Err(wrong("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
        }
        if token.start.is_empty() {
            return Err(wrong("encoded start key empty (version meta.k8s.io/v1)"));
        }
        // A key that means something else once it is cleaned might leave the collection.
        let inside = token.start.strip_prefix('/').unwrap_or(&token.start);
        if inside.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(wrong(&token.start));
        }
        if revision.is_some_and(|revision| revision > 0) {
            let why = "specifying resource version is not allowed when using continue";
            return Err(Status::bad_request(why));
        }
        Ok(Self { start: inside.to_owned(), ..token })
    }

    /// A 410 lets the client go on in the newest state, if it can live with the inconsistency.
    fn expired(&self, status: Box<Status>) -> Box<Status> {
        if status.code != 410 {
            return status;
        }
        let mut expired = Status::expired(CONTINUE_EXPIRED);
        expired.continue_token = Some(Self { rv: -1, ..self.clone() }.write());
        expired
    }
}

const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. \
    You can start a new list without the continue parameter, or use the continue token in this response to retrieve \
    the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that \
    were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_way_and_nonsense_is_refused() {
        let token = Token { v: VERSION.into(), rv: 7, start: "default/a\0".into() };
        assert_eq!(Token::read(&token.write(), None), Ok(token.clone()));
        assert_eq!(Token::read(&token.write(), Some(0)), Ok(token.clone()));
        assert_eq!(Token::read(&token.write(), Some(1)).map_err(|s| s.code), Err(400));
        let encoded = |text: &str| URL_SAFE_NO_PAD.encode(text);
        for bad in [
            "!".to_owned(),
            encoded("{"),
            encoded(r#"{"v":"v2","rv":1,"start":"a"}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":1,"start":""}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../x"}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"a/./x"}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"a//x"}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":1.5,"start":"a"}"#),
            encoded("[1]"),
        ] {
            assert_eq!(Token::read(&bad, None).map_err(|s| s.code), Err(400), "{bad}");
        }
        let expired = token.expired(Status::expired("x"));
        let next = Token::read(expired.continue_token.as_deref().expect("token"), None).expect("reads");
        assert_eq!((next.rv, next.start), (-1, token.start));
    }
}
