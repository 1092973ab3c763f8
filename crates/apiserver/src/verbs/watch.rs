//! `watch`: the changes of a collection as they happen, each once, in order.
//!
//! ```text
//!  resourceVersion   sendInitialEvents   begins with
//!  (none)                                ADDED for every object of the newest state, then a BOOKMARK
//!  0                                     ADDED for every object the cache has, then a BOOKMARK
//!  N                                     the changes after N
//!  any, NotOlderThan true                ADDED for every object of a state not older, then a BOOKMARK
//!  any, NotOlderThan false               the changes after that revision (none: from now on)
//! ```
//!
//! Bookmarks come to those who asked for them. Once the stream has begun, what goes wrong is told in it: an ERROR event with a Status.

use std::time::Duration;

use futures::{Stream, StreamExt, future, stream};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use machinery::status::{self, Status};
use transport::{BodyError, Response};

use super::list;
use super::options::ListOptions;
use crate::cacher::{WatchOptions, Watcher};
use crate::chain::Call;
use crate::encode::event::{Form, Frame};
use crate::encode::negotiate::Offer;
use crate::encode::table::Include;
use crate::registry::catalogue::Resource;

/// A watch that names no end ends after this and up to as much again, so that they do not all end at once.
const SHORTEST: u64 = 1800;
/// No watch is longer.
const LONGEST: u64 = 24 * 3600;

/// Serves the request.
///
/// # Errors
/// 400, 406 and 422 for what was asked; all else comes in the stream.
pub async fn run(call: &Call, resource: &Resource) -> status::Result<Response> {
    let accepted = call.accept(Offer::Watch)?;
    // The older paths say that it is a watch, not the query: there nothing but a list's options is known.
    let mut options = ListOptions::parse(&call.query, call.query.flag("watch"))?;
    let name = call.info.name.as_str();
    if !name.is_empty() {
        if options.fields.is_empty() {
            options.fields = machinery::fields::Selector::exact("metadata.name", name);
        } else if options.fields.requires_exact("metadata.name") != Some(name) {
            return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
    }
    list::check_fields(resource, &options)?;
    let form = Form::new(resource.kind, accepted, Include::parse(&call.query)?, call.server.clock.clone())?;
    let frames = match begin(call, resource, &options).await {
        Ok(watcher) => frames(watcher, form).left_stream(),
        Err(status) => stream::iter([form.error(&status)]).right_stream(),
    };
    let bytes = frames.flat_map(|frame| stream::iter(frame.parts())).map(Ok::<_, BodyError>);
    let mut response = http::Response::new(transport::stream(bytes.take_until(call.server.stopped())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(accepted.format.stream_type()));
    Ok(response)
}

async fn begin(call: &Call, resource: &Resource, options: &ListOptions) -> status::Result<Watcher> {
    let cacher = resource.cacher()?;
    let asked = options.revision;
    let named = asked.filter(|revision| *revision > 0);
    let after = match (named, options.initial_events) {
        // Changes after a revision that has yet to come are waited for with the stream open.
        (Some(revision), None | Some(false)) => Some(revision),
        (_, begin) => {
            resource.settle(asked).await?;
            (begin == Some(false)).then(|| cacher.revision())
        }
    };
    let seconds = match options.timeout_seconds {
        None | Some(0) => SHORTEST + call.server.rng.below(SHORTEST),
        Some(seconds) => u64::try_from(seconds).unwrap_or(0).min(LONGEST),
    };
    cacher.watch(WatchOptions {
        filter: list::filter(call, resource, options),
        after,
        marks_end: options.initial_events == Some(true),
        bookmarks: options.bookmarks,
        timeout: Some(Duration::from_secs(seconds)),
    })
}

fn frames(watcher: Watcher, mut form: Form) -> impl Stream<Item = Frame> + Send {
    // What cannot be shown ends the watch: its client must not believe that nothing happened.
    let items = watcher.into_stream().map(move |item| match form.frame(&item) {
        Ok(frame) => (frame, true),
        Err(status) => (form.error(&status), false),
    });
    items.scan(true, |going, (frame, more)| {
        let shown = std::mem::replace(going, *going && more);
        future::ready(shown.then_some(frame))
    })
}
