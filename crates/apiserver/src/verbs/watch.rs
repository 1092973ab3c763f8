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

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt, stream};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use machinery::status::{self, GroupResource, Status};
use transport::websocket::{self, Protocols, Refused, Said, Takeover};
use transport::{BodyError, Response};

use super::list;
use super::options::ListOptions;
use crate::cacher::{Delivery, Filter, WatchItem, WatchOptions, Watcher};
use crate::chain::Call;
use crate::crd::convert;
use crate::encode::event::{Form, Frame};
use crate::encode::negotiate::{Format, Offer};
use crate::encode::table::Include;
use crate::metrics::watches::Watched;
use crate::registry::catalogue::Resource;
use crate::server::ApiServer;

/// A watch that names no end ends after this and up to as much again, so that they do not all end at once.
const SHORTEST: u64 = 1800;
/// No watch is longer.
const LONGEST: u64 = 24 * 3600;
/// How long a WebSocket's client may leave a message unread.
pub const UNREAD: Duration = Duration::from_secs(60);

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
    let form = Form::new(resource.kind.clone(), accepted, Include::parse(&call.query)?, call.server.clock.clone())?;
    let (server, resource) = (call.server.clone(), resource.clone());
    let filter = list::filter(call, &resource, &options);
    let judge = convert::is_judge(&resource, &filter).then(|| Arc::new(filter.clone()));
    let walked = judge.as_deref().map_or(filter, convert::coarse);
    let counted = server.metrics.watches.of(&call.info.group, &call.info.version, &call.info.resource);
    let mut events = Events { watcher: None, first: None, form, server, resource, judge, converting: None, counted };
    match begin(call, &events.resource, &options, walked).await {
        Ok(watcher) => events.watcher = Some(watcher),
        Err(status) => events.first = Some(events.form.error(&status)),
    }
    let asked = websocket::is_asked(&call.headers);
    if let Some(takeover) = call.takeover.clone().filter(|_| asked) {
        let (response, _) = upgrade(&takeover, call, Protocols::Named)?;
        call.server.stage().spawn(websocket::send(
            takeover,
            events.messages(accepted.format),
            call.server.clock.clone(),
            UNREAD,
        ));
        return Ok(response);
    }
    let mut response = http::Response::new(transport::stream(events.bytes().map(Ok::<_, BodyError>)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(accepted.format.stream_type()));
    Ok(response)
}

/// Answers a WebSocket's handshake: the subprotocol that is spoken.
///
/// # Errors
/// 400 for a handshake that is none, 403 when the client speaks nothing that is spoken here.
pub fn upgrade(takeover: &Takeover, call: &Call, spoken: Protocols) -> status::Result<(Response, String)> {
    websocket::accept(takeover, &call.headers, spoken).map_err(|refused| match refused {
        Refused::Wrong(why) => Status::bad_request(why),
        Refused::Protocol(why) => Status::forbidden(&GroupResource::default(), "", why),
    })
}

async fn begin(call: &Call, resource: &Resource, options: &ListOptions, filter: Filter) -> status::Result<Watcher> {
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
        filter,
        after,
        marks_end: options.initial_events == Some(true),
        bookmarks: options.bookmarks,
        timeout: Some(Duration::from_secs(seconds)),
    })
}

/// An event with its object in the version of the resource.
async fn converted(
    server: Arc<ApiServer>,
    resource: Resource,
    delivery: Delivery,
) -> status::Result<Option<WatchItem>> {
    let object = convert::object(&server, &resource, delivery.object.clone()).await?;
    Ok(Some(WatchItem::Event(delivery.with(object))))
}

/// The same for a filter that looks at objects in that version: what it does not let through is not there,
/// before the change and after it.
async fn judged(
    server: Arc<ApiServer>,
    resource: Resource,
    judge: Arc<Filter>,
    delivery: Delivery,
) -> status::Result<Option<WatchItem>> {
    let (before, after) = delivery.sides();
    let mut seen = [None, None];
    for (side, seen) in [before, after].into_iter().zip(&mut seen) {
        *seen = convert::filtered(&server, &resource, &judge, side.into_iter().collect()).await?.pop();
    }
    let [before, after] = seen;
    Ok(delivery.between(before, after).map(WatchItem::Event))
}

/// The events of a watch, in the form its client gets.
struct Events {
    /// `None` once it has ended.
    watcher: Option<Watcher>,
    /// What comes before all else: why it did not begin.
    first: Option<Frame>,
    form: Form,
    server: Arc<ApiServer>,
    resource: Resource,
    /// Looks at objects in the version of the resource; `None` when the watcher's own filter is enough.
    judge: Option<Arc<Filter>>,
    /// An event whose object is being converted to the version of the resource.
    converting: Option<BoxFuture<'static, status::Result<Option<WatchItem>>>>,
    /// Counts what goes out.
    counted: Arc<Watched>,
}

impl Events {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        loop {
            let Some(watcher) = self.watcher.as_mut().filter(|_| !self.server.is_stopping()) else {
                return Poll::Ready(None);
            };
            if self.converting.is_none() {
                let Some(item) = ready!(watcher.poll_next(cx)) else { return Poll::Ready(None) };
                let (server, resource) = (self.server.clone(), self.resource.clone());
                match (item, &self.judge) {
                    (WatchItem::Event(delivery), Some(judge)) => {
                        self.converting = Some(judged(server, resource, judge.clone(), delivery).boxed());
                    }
                    (WatchItem::Event(delivery), None) if convert::is_needed(&resource, &delivery.object) => {
                        self.converting = Some(converted(server, resource, delivery).boxed());
                    }
                    (item, _) => return Poll::Ready(Some(self.frame(&item))),
                }
            }
            let Some(converting) = &mut self.converting else { return Poll::Pending };
            let item = ready!(converting.poll_unpin(cx));
            self.converting = None;
            match item {
                // Nothing for this client.
                Ok(None) => {}
                Ok(Some(item)) => return Poll::Ready(Some(self.frame(&item))),
                Err(status) => return Poll::Ready(Some(self.end(&status))),
            }
        }
    }

    fn frame(&mut self, item: &WatchItem) -> Frame {
        // What cannot be shown ends the watch: its client must not believe that nothing happened.
        match self.form.frame(item) {
            Ok(frame) => {
                self.counted.sent(frame.size());
                frame
            }
            Err(status) => self.end(&status),
        }
    }

    fn end(&mut self, status: &Status) -> Frame {
        self.watcher = None;
        self.form.error(status)
    }

    /// As the bytes of a body. Nothing is allocated for an event that others share.
    fn bytes(mut self) -> impl Stream<Item = Bytes> + Send {
        let mut parts = None;
        stream::poll_fn(move |cx| {
            loop {
                if let Some(part) = parts.as_mut().and_then(Iterator::next) {
                    return Poll::Ready(Some(part));
                }
                match ready!(self.poll(cx)) {
                    Some(frame) => parts = Some(frame.parts()),
                    None => return Poll::Ready(None),
                }
            }
        })
    }

    /// As messages: an event each, which needs no length before it.
    fn messages(mut self, format: Format) -> impl Stream<Item = Said> + Send {
        stream::poll_fn(move |cx| {
            let Some(frame) = ready!(self.poll(cx)) else { return Poll::Ready(None) };
            let mut whole = frame.parts().collect::<Vec<_>>().concat();
            if format != Format::Protobuf {
                return Poll::Ready(Some(Said::Text(whole.into())));
            }
            whole.drain(..whole.len().min(LENGTH));
            Poll::Ready(Some(Said::Binary(whole.into())))
        })
    }
}

/// The bytes before an event in protobuf that say how long it is.
const LENGTH: usize = 4;
