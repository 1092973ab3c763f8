//! The events of a watch as bytes.
//!
//! ```text
//!  JSON      {"type":"ADDED","object":{…}}\n
//!  protobuf  length in 4 bytes, the event: type, object with its envelope
//! ```
//!
//! What many watchers of one change are shown is made once. Of large objects no event is a copy: the
//! object's own bytes go out between a beginning and an end.

use bytes::Bytes;
use kinds::SharedKind;
use machinery::proto;
use machinery::schema::Type;
use machinery::status::{self, Status};
use stdx::SharedClock;

use super::json::{ListMeta, partial};
use super::negotiate::{Accepted, Format, META_V1, View};
use super::table::{self, Include};
use super::{own_form, protobuf, status_json};
use crate::cacher::{CachedObject, Delivery, Shared, WatchItem, What};

/// Objects from this size on are not copied into their event.
const LARGE: usize = 16 * 1024;

/// One event as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Whole(Bytes),
    /// The same in three parts.
    Parts([Bytes; 3]),
}

impl Frame {
    /// How many bytes it is.
    pub fn size(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Parts(parts) => parts.iter().map(Bytes::len).sum(),
        }
    }

    /// The bytes, in order.
    pub fn parts(self) -> impl Iterator<Item = Bytes> + Send {
        let parts = match self {
            Self::Whole(bytes) => [Some(bytes), None, None],
            Self::Parts(parts) => parts.map(Some),
        };
        parts.into_iter().flatten()
    }
}

/// How a watch's objects are shown.
pub struct Form {
    kind: SharedKind,
    accepted: Accepted,
    include: Include,
    clock: SharedClock,
    api_version: String,
    schema: Type,
    /// The type of what is sent of an object's metadata.
    meta: Type,
    /// The next Table defines the columns.
    columns: bool,
}

impl Form {
    /// For the objects of a kind.
    ///
    /// # Errors
    /// 500 when a type is not in the table.
    pub fn new(kind: SharedKind, accepted: Accepted, include: Include, clock: SharedClock) -> status::Result<Self> {
        let (api_version, schema) = (kind.shape().api_version(), kind.schema());
        let meta = protobuf::meta_type(accepted.meta_version, "PartialObjectMetadata")?;
        Ok(Self { kind, accepted, include, clock, api_version, schema, meta, columns: true })
    }

    /// An item of the watch.
    ///
    /// # Errors
    /// What cannot be shown, and what the watch itself says went wrong.
    pub fn frame(&mut self, item: &WatchItem) -> status::Result<Frame> {
        match item {
            WatchItem::Event(delivery) if self.accepted.format == Format::Protobuf => self.protobuf(delivery),
            WatchItem::Event(delivery) => self.json(delivery),
            WatchItem::Bookmark { revision, initial_events_end } => Ok(self.bookmark(*revision, *initial_events_end)),
            WatchItem::Error(status) => Err(status.clone()),
        }
    }

    /// The event that ends a watch.
    pub fn error(&self, status: &Status) -> Frame {
        self.other("ERROR", status_json(status).as_bytes())
    }

    fn json(&mut self, delivery: &Delivery) -> status::Result<Frame> {
        let (object, what) = (&*delivery.object, delivery.what.as_str());
        let view = self.accepted.view;
        let stored = self.kind.stored_as().is_none() && object.damage.is_none();
        if view == View::Whole && stored {
            if object.json.len() >= LARGE {
                return Ok(Frame::Parts([begin(delivery.what), object.json.clone(), Bytes::from_static(LINE_END)]));
            }
            return delivery.frame(Shared::Json, || Ok(line(what, &object.json))).map(Frame::Whole);
        }
        if view == View::Metadata && stored && self.accepted.meta_version == META_V1 {
            let made = || Ok(line(what, &partial(&object.json, META_V1)));
            return delivery.frame(Shared::MetadataJson, made).map(Frame::Whole);
        }
        let json = own_form(&*self.kind, object)?;
        let shown = match view {
            View::Whole => json.into_owned(),
            View::Metadata => partial(&json, self.accepted.meta_version),
            View::Table => {
                let mut out = self.table(object.revision);
                let meta_version = self.accepted.meta_version;
                table::row(&mut out, &*self.kind, &json, self.include, meta_version, self.clock.wall());
                out.extend_from_slice(table::CLOSE);
                out
            }
        };
        Ok(Frame::Whole(line(what, &shown)))
    }

    fn protobuf(&self, delivery: &Delivery) -> status::Result<Frame> {
        let object = &*delivery.object;
        if self.accepted.view == View::Metadata {
            let made = || self.partial(delivery.what, object);
            return match self.accepted.meta_version {
                META_V1 if self.kind.stored_as().is_none() => delivery.frame(Shared::MetadataProtobuf, made),
                _ => made(),
            }
            .map(Frame::Whole);
        }
        let (what, kind) = (delivery.what.as_str(), self.kind.shape().kind);
        if self.kind.stored_as().is_none() {
            let body = object.protobuf(&self.schema)?;
            if body.len() >= LARGE {
                let begin = sealed_begin(what, &self.api_version, kind, body.len());
                return Ok(Frame::Parts([begin.into(), body.clone(), Bytes::from_static(proto::SEAL_END)]));
            }
        }
        let body = protobuf::whole(&*self.kind, &self.schema, object)?;
        let made = || Ok(sealed(what, &self.api_version, kind, &body));
        match self.kind.stored_as() {
            None => delivery.frame(Shared::Protobuf, made),
            Some(_) => made(),
        }
        .map(Frame::Whole)
    }

    fn partial(&self, what: What, object: &CachedObject) -> status::Result<Bytes> {
        let body = protobuf::partial(&*self.kind, &self.meta, object)?;
        Ok(sealed(what.as_str(), self.accepted.meta_version, "PartialObjectMetadata", &body))
    }

    fn table(&mut self, revision: u64) -> Vec<u8> {
        let meta = ListMeta { revision: Some(revision), ..ListMeta::default() };
        table::open(&*self.kind, self.accepted.meta_version, &meta, std::mem::take(&mut self.columns))
    }

    fn bookmark(&mut self, revision: u64, end: bool) -> Frame {
        if self.accepted.view == View::Table {
            let mut out = self.table(revision);
            out.extend_from_slice(table::CLOSE);
            return Frame::Whole(line("BOOKMARK", &out));
        }
        let (kind, api_version) = match self.accepted.view {
            View::Metadata => ("PartialObjectMetadata", self.accepted.meta_version),
            _ => (self.kind.shape().kind, self.api_version.as_str()),
        };
        let annotations = if end { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
        let object = format!(
            r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{{"resourceVersion":"{revision}"{annotations}}}}}"#
        );
        self.other("BOOKMARK", object.as_bytes())
    }

    /// An event around JSON that says what it is.
    fn other(&self, what: &str, json: &[u8]) -> Frame {
        let object = if self.accepted.format == Format::Protobuf { protobuf::of_json(json) } else { None };
        Frame::Whole(match object {
            None => line(what, json),
            Some(object) => {
                let mut out = proto::watch_event_begin(what, object.len());
                out.extend_from_slice(&object);
                out.into()
            }
        })
    }
}

/// What stands before an object of which no copy is made.
fn begin(what: What) -> Bytes {
    Bytes::from_static(match what {
        What::Added => br#"{"type":"ADDED","object":"#,
        What::Modified => br#"{"type":"MODIFIED","object":"#,
        What::Deleted => br#"{"type":"DELETED","object":"#,
    })
}

const LINE_END: &[u8] = b"}\n";

/// An event around an object's JSON.
pub fn line(what: &str, object: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(object.len() + 32);
    out.extend_from_slice(br#"{"type":""#);
    out.extend_from_slice(what.as_bytes());
    out.extend_from_slice(br#"","object":"#);
    out.extend_from_slice(object);
    out.extend_from_slice(LINE_END);
    out.into()
}

/// An event around an object's protobuf, which gets its envelope, up to that.
fn sealed_begin(what: &str, api_version: &str, kind: &str, body: usize) -> Vec<u8> {
    let envelope = proto::seal_begin(api_version, kind, body);
    let mut out = proto::watch_event_begin(what, envelope.len() + body + proto::SEAL_END.len());
    out.extend_from_slice(&envelope);
    out
}

fn sealed(what: &str, api_version: &str, kind: &str, body: &[u8]) -> Bytes {
    let mut out = sealed_begin(what, api_version, kind, body.len());
    out.reserve_exact(body.len() + proto::SEAL_END.len());
    out.extend_from_slice(body);
    out.extend_from_slice(proto::SEAL_END);
    out.into()
}
