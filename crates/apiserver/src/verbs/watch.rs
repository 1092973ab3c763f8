//! `watch`: the changes of a collection as they happen, each once, in order.
//!
//! ```text
//!  resourceVersion   sendInitialEvents   begins with
//!  (none)                                ADDED for every object of the newest state
//!  0                                     ADDED for every object the cache has
//!  N                                     the changes after N
//!  any, NotOlderThan true                ADDED for every object of a state not older, then a BOOKMARK
//!  any, NotOlderThan false               the changes after that revision (none: from now on)
//! ```
//!
//! Once the stream has begun, what goes wrong is told in it: an ERROR event with a Status.

use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, future, stream};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use kinds::AnyKind;
use machinery::status::{self, Status};
use stdx::SharedClock;
use transport::{BodyError, Response};

use super::list;
use super::options::ListOptions;
use crate::cacher::{Delivery, WatchItem, WatchOptions, Watcher};
use crate::chain::Call;
use crate::encode::json::{ListMeta, partial};
use crate::encode::negotiate::{Offer, View};
use crate::encode::table::{self, Include};
use crate::encode::{self, own_form};
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
    let mut options = ListOptions::parse(&call.query, true)?;
    let name = call.info.name.as_str();
    if !name.is_empty() {
        if options.fields.is_empty() {
            options.fields = machinery::fields::Selector::exact("metadata.name", name);
        } else if options.fields.requires_exact("metadata.name") != Some(name) {
            return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
    }
    list::check_fields(resource, &options)?;
    let form = Form {
        kind: resource.kind,
        view: accepted.view,
        include: Include::parse(&call.query)?,
        clock: call.server.clock.clone(),
    };
    let frames = match begin(call, resource, &options).await {
        Ok(watcher) => frames(watcher, form, resource.clone(), options).left_stream(),
        Err(status) => stream::iter([error(&status)]).right_stream(),
    };
    let body = transport::stream(frames.map(Ok::<_, BodyError>).take_until(call.server.stopped()));
    let mut response = http::Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

async fn begin(call: &Call, resource: &Resource, options: &ListOptions) -> status::Result<Watcher> {
    let cacher = resource.cacher()?;
    let asked = options.revision;
    let named = asked.filter(|revision| *revision > 0);
    resource.settle(asked).await?;
    let after = match (named, options.initial_events) {
        (_, Some(true)) => None,
        (Some(revision), _) => Some(revision),
        (None, Some(false)) => Some(cacher.revision()),
        (None, None) => None,
    };
    let seconds = match options.timeout_seconds {
        None | Some(0) => SHORTEST + call.server.rng.below(SHORTEST),
        Some(seconds) => seconds.min(LONGEST),
    };
    cacher.watch(WatchOptions {
        filter: list::filter(call, resource, options),
        after,
        initial_events: options.initial_events == Some(true),
        bookmarks: options.bookmarks,
        timeout: Some(Duration::from_secs(seconds)),
    })
}

/// How a watch's objects are shown.
struct Form {
    kind: &'static dyn AnyKind,
    view: View,
    include: Include,
    clock: SharedClock,
}

fn frames(watcher: Watcher, form: Form, resource: Resource, options: ListOptions) -> impl Stream<Item = Bytes> + Send {
    let mut columns = true;
    let items = watcher.into_stream().filter(move |item| {
        future::ready(match item {
            WatchItem::Event(delivery) => resource.selects(&options.fields, &delivery.object),
            WatchItem::Bookmark { .. } => options.bookmarks,
            WatchItem::Error(_) => true,
        })
    });
    // What cannot be shown ends the watch: its client must not believe that nothing happened.
    items
        .map(move |item| match form.frame(&item, &mut columns) {
            Ok(frame) => (frame, true),
            Err(status) => (error(&status), false),
        })
        .scan(true, |going, (frame, more)| {
            let shown = std::mem::replace(going, *going && more);
            future::ready(shown.then_some(frame))
        })
}

impl Form {
    fn frame(&self, item: &WatchItem, columns: &mut bool) -> status::Result<Bytes> {
        match item {
            WatchItem::Event(delivery) => self.event(delivery, columns),
            WatchItem::Bookmark { revision, initial_events_end } => {
                Ok(self.bookmark(*revision, *initial_events_end, columns))
            }
            WatchItem::Error(status) => Err(status.clone()),
        }
    }

    fn event(&self, delivery: &Delivery, columns: &mut bool) -> status::Result<Bytes> {
        let object = &delivery.object;
        if self.view == View::Whole && self.kind.stored_as().is_none() && object.damage.is_none() {
            return Ok(delivery.frame());
        }
        let json = own_form(self.kind, object)?;
        let shown = match self.view {
            View::Whole => json,
            View::Metadata => partial(&json).into(),
            View::Table => {
                let mut out = self.table(object.revision, columns);
                table::row(&mut out, self.kind, &json, self.include, self.clock.wall());
                out.extend_from_slice(table::CLOSE);
                out.into()
            }
        };
        Ok(line(delivery.what.as_str(), &shown))
    }

    fn table(&self, revision: u64, columns: &mut bool) -> Vec<u8> {
        table::open(self.kind, &ListMeta { revision, ..ListMeta::default() }, std::mem::take(columns))
    }

    fn bookmark(&self, revision: u64, end: bool, columns: &mut bool) -> Bytes {
        if self.view == View::Table {
            let mut out = self.table(revision, columns);
            out.extend_from_slice(table::CLOSE);
            return line("BOOKMARK", &out);
        }
        let shape = self.kind.shape();
        let (kind, api_version) = match self.view {
            View::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
            _ => (shape.kind, shape.api_version()),
        };
        let annotations = if end { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
        let object = format!(
            r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{{"resourceVersion":"{revision}"{annotations}}}}}"#
        );
        line("BOOKMARK", object.as_bytes())
    }
}

fn error(status: &Status) -> Bytes {
    line("ERROR", encode::status_json(status).as_bytes())
}

fn line(what: &str, object: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(object.len() + 32);
    out.extend_from_slice(br#"{"type":""#);
    out.extend_from_slice(what.as_bytes());
    out.extend_from_slice(br#"","object":"#);
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
    out.into()
}
