//! What another server serves, fetched in the background and kept: clients are answered from what is kept.
//!
//! A server that cannot be had keeps what it had, marked as stale. What it may send is bounded in size and in
//! time, and a document that is read whole is read alone.

use std::sync::Arc;
use std::time::Duration;

use machinery::status::Status;
use serde_json::Value;
use stdx::ClockExt;
use stdx::backoff::Policy;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::discovered::{self, Found};
use super::remote::{Ask, Fetched, Remote};
use super::{Shown, openapi_v2, openapi_v3};
use crate::discovery::Elsewhere;
use crate::openapi::{Foreign, Made};
use crate::server::ApiServer;

/// How often what is served is asked for.
const AGAIN: Duration = Duration::from_secs(60);
/// How soon, after that failed.
const RETRY: Policy = Policy { initial: Duration::from_millis(500), max: AGAIN };
/// How long a list of resources may take, and how long it may be.
const SOON: Duration = Duration::from_secs(5);
const LIST: usize = 2 << 20;
/// The same of a document of OpenAPI.
const LATER: Duration = Duration::from_secs(60);
const DOCUMENT: usize = 8 << 20;

/// How many reasons are told of one list.
const TOLD: usize = 3;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const JSON: &str = "application/json";

/// Large documents take many times their size while they are read: one at a time, whoever sends them.
static READING: Semaphore = Semaphore::const_new(1);

/// What is known of one server.
#[derive(Default)]
struct Kept {
    resources: Vec<Value>,
    /// What was told of entries that are no resources.
    dropped: Vec<String>,
    /// Of the document that the resources are in.
    list_tag: String,
    is_fresh: bool,
    /// Where its document of OpenAPI v3 is, below this server.
    v3: Option<String>,
    v2: Option<Arc<openapi_v2::Part>>,
    v2_tag: String,
    /// A document of v3 made of that, when the server knows none at all.
    made: Option<Arc<Made>>,
    lacks_v3: bool,
}

/// Fetches until `ends` comes.
pub(super) async fn run(server: Arc<ApiServer>, remote: Arc<Remote>, ends: CancellationToken) {
    let work = async {
        let (mut kept, mut failures) = (Kept::default(), 0);
        let mut shown = None;
        loop {
            // What it had is shown from the beginning, and before documents that take long.
            show(&server, &remote, &kept, &mut shown, &ends);
            let mut outcome = Ok(());
            if remote.is_available() {
                outcome = list(&server, &remote, &mut kept).await;
                kept.is_fresh = outcome.is_ok();
                show(&server, &remote, &kept, &mut shown, &ends);
                if outcome.is_ok() {
                    outcome = documents(&server, &remote, &mut kept).await;
                }
            } else {
                kept.is_fresh = false;
            }
            show(&server, &remote, &kept, &mut shown, &ends);
            let pause = match &outcome {
                Ok(()) => {
                    failures = 0;
                    AGAIN
                }
                Err(why) => {
                    failures += 1;
                    tracing::debug!(name = remote.name, why, "what an aggregated API serves is not known");
                    RETRY.delay(failures)
                }
            };
            tokio::select! {
                () = remote.fetch.notified() => {}
                () = server.clock.sleep(pause) => {}
            }
        }
    };
    tokio::select! {
        () = ends.cancelled() => {}
        () = work => {}
    }
}

/// Shows what is kept, if that is not what was shown last.
fn show(
    server: &ApiServer,
    remote: &Remote,
    kept: &Kept,
    last: &mut Option<(Elsewhere, Foreign)>,
    ends: &CancellationToken,
) {
    let (group, version) = (remote.group.clone(), remote.version.clone());
    let discovery = Elsewhere {
        group: group.clone(),
        version: version.clone(),
        group_priority: remote.group_priority,
        version_priority: remote.version_priority,
        resources: kept.resources.clone(),
        is_fresh: kept.is_fresh,
    };
    let made = kept.made.clone();
    let documents = Foreign { group, version, v3: kept.v3.clone(), v2: kept.v2.clone(), made };
    if last.as_ref().is_some_and(|(old, other)| *old == discovery && other.is_as(&documents)) {
        return;
    }
    *last = Some((discovery.clone(), documents.clone()));
    let shown = Shown { discovery: Arc::new(discovery), documents: Arc::new(documents) };
    server.aggregation.show(server, &remote.name, shown, ends);
}

fn wrong(path: &str, fetched: &Fetched) -> String {
    format!("{path}: the server answered {}", fetched.code)
}

/// The resources, from the document about everything or else from that about this version.
async fn list(server: &ApiServer, remote: &Remote, kept: &mut Kept) -> Result<(), String> {
    let known = Some(kept.list_tag.as_str());
    let ask = Ask { path: "/apis", accept: AGGREGATED, known, limit: LIST, patience: SOON };
    let fetched = remote.fetch(server, ask).await?;
    match fetched.code {
        304 if !kept.list_tag.is_empty() => return Ok(()),
        503 => return Err(wrong(ask.path, &fetched)),
        200 if is_aggregated(&fetched.media) => {
            let (group, version) = (remote.group.clone(), remote.version.clone());
            let found = reading(move || discovered::aggregated(&fetched.body, &group, &version)).await?;
            keep(remote, kept, found);
            kept.list_tag = tag(fetched.tag);
            return Ok(());
        }
        _ => {}
    }
    let path = remote.path();
    let ask = Ask { path: &path, accept: JSON, known: None, limit: LIST, patience: SOON };
    let fetched = remote.fetch(server, ask).await?;
    if fetched.code != 200 {
        return Err(wrong(&path, &fetched));
    }
    let found = reading(move || discovered::legacy(&fetched.body)).await?;
    keep(remote, kept, found);
    kept.list_tag = String::new();
    Ok(())
}

/// Says once why entries are no resources.
fn keep(remote: &Remote, kept: &mut Kept, found: Found) {
    if kept.dropped != found.dropped && !found.dropped.is_empty() {
        let (count, some) = (found.dropped.len(), &found.dropped[..found.dropped.len().min(TOLD)]);
        tracing::warn!(name = remote.name, count, ?some, "entries of an aggregated API's list are passed over");
    }
    (kept.resources, kept.dropped) = (found.resources, found.dropped);
}

fn is_aggregated(media: &str) -> bool {
    let mut parts = media.split(';').map(|part| part.trim().to_ascii_lowercase());
    let is_json = parts.next().is_some_and(|media| media == JSON);
    let parts: Vec<String> = parts.collect();
    let has = |part: &str| parts.iter().any(|p| p == part);
    is_json && has("g=apidiscovery.k8s.io") && has("v=v2") && has("as=apigroupdiscoverylist")
}

/// A tag that can be sent back.
fn tag(tag: String) -> String {
    if tag.len() <= 256 { tag } else { String::new() }
}

/// What OpenAPI says. A server without it is no failure.
async fn documents(server: &ApiServer, remote: &Remote, kept: &mut Kept) -> Result<(), String> {
    let ask = Ask { path: "/openapi/v3", accept: JSON, known: None, limit: LIST, patience: SOON };
    let index = remote.fetch(server, ask).await?;
    kept.lacks_v3 = index.code == 404;
    kept.v3 = match index.code {
        200 => {
            let path = remote.path();
            reading(move || openapi_v3::place(&index.body, &path)).await?
        }
        404 => None,
        _ => return Err(wrong(ask.path, &index)),
    };
    let known = Some(kept.v2_tag.as_str());
    let ask = Ask { path: "/openapi/v2", accept: JSON, known, limit: DOCUMENT, patience: LATER };
    let fetched = remote.fetch(server, ask).await?;
    match fetched.code {
        304 if !kept.v2_tag.is_empty() => {}
        200 => {
            let path = remote.path();
            let group_version = (remote.group.clone(), remote.version.clone());
            let part = reading(move || openapi_v2::part(&fetched.body, &path, &group_version)).await?;
            // The same part again is no news, whatever else has changed.
            if kept.v2.as_ref().is_none_or(|old| **old != part) {
                (kept.v2, kept.made) = (Some(Arc::new(part)), None);
            }
            kept.v2_tag = tag(fetched.tag);
        }
        404 | 406 => (kept.v2, kept.v2_tag) = (None, String::new()),
        _ => return Err(wrong(ask.path, &fetched)),
    }
    kept.made = match &kept.v2 {
        Some(part) if kept.lacks_v3 => kept.made.take().or_else(|| Some(Arc::new(Made::of(part.clone())))),
        _ => None,
    };
    Ok(())
}

/// Reads a document on a thread where that holds up nobody. The turn ends with the reading, which goes on
/// when nobody waits for it any more.
async fn reading<T: Send + 'static>(read: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    let turn = READING.acquire().await.map_err(|error| error.to_string())?;
    let read = move || {
        let _turn = turn;
        read()
    };
    let done = tokio::task::spawn_blocking(read).await;
    done.map_err(|error| Status::internal(error).message.clone())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_form_is_known_by_its_parameters() {
        for (media, want) in [
            ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", true),
            ("application/json; as=APIGroupDiscoveryList; v=v2; g=apidiscovery.k8s.io; charset=utf-8", true),
            ("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", false),
            ("application/json", false),
            ("text/html", false),
            ("", false),
        ] {
            assert_eq!(is_aggregated(media), want, "{media}");
        }
    }
}
