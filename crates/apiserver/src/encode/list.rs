//! Collections as bytes. What fits into one piece is sent whole; a longer list is made while it is sent,
//! so that a client that reads slowly, or not at all, holds the cache's own objects and no copy of them.

use std::borrow::Cow;
use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, stream};
use http::HeaderValue;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use kinds::{AnyKind, SharedKind};
use machinery::proto;
use machinery::schema::Type;
use machinery::status::{self, Status};
use serde_json::{Map, Value};
use transport::{BodyError, Response};

use super::json::{self, ListMeta, Pretty};
use super::negotiate::{self, Accepted, Format, View};
use super::protobuf::{self, Around};
use super::table::{self, Include};
use super::{own_form, plain};
use crate::cacher::CachedObject;
use crate::chain::Call;

/// Lists are made and sent in pieces of about this size.
const PIECE: usize = 128 * 1024;
/// Objects looked at between two points where others get their turn.
const TURN: usize = 64;

/// Objects as a list.
///
/// # Errors
/// 500 when one cannot be read, 400 for a query that asks for a Table in an unknown form.
pub async fn list(
    call: &Call,
    kind: SharedKind,
    accepted: Accepted,
    meta: &ListMeta,
    objects: Vec<Arc<CachedObject>>,
) -> status::Result<Response> {
    let include = Include::parse(&call.query)?;
    for damaged in objects.iter().filter(|object| object.damage.is_some()) {
        own_form(&*kind, damaged)?;
    }
    let mut items = Items::new(kind, accepted, include, meta, call.server.clock.wall(), objects).await?;
    let first = items.piece()?;
    if items.done {
        return Ok(plain(call, 200, accepted.format.media_type(), first.into()).await);
    }
    let zipped = negotiate::takes_gzip(call.header(ACCEPT_ENCODING));
    let length = items.length.filter(|_| !zipped);
    let mut response = http::Response::new(transport::stream(pieces(first, items, zipped)));
    let headers = response.headers_mut();
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(accepted.format.media_type()));
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
    if zipped {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(response)
}

/// The pieces of a list as its body, compressed if wanted.
fn pieces(first: Vec<u8>, items: Items, zipped: bool) -> impl Stream<Item = Result<Bytes, BodyError>> + Send {
    let zip = zipped.then(|| flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(1)));
    stream::unfold(Some((Some(first), items, zip)), |state| async move {
        let (first, mut items, zip) = state?;
        let plain = match first {
            Some(first) => first,
            None => match items.piece() {
                Ok(piece) => piece,
                // The head is out: the connection breaks, so that nobody takes the part for the whole.
                Err(status) => return Some((Err(status.message.into()), None)),
            },
        };
        let Some(mut zip) = zip else {
            let more = !items.done;
            return Some((Ok(Bytes::from(plain)), more.then_some((None, items, None))));
        };
        if let Err(error) = zip.write_all(&plain) {
            return Some((Err(error.into()), None));
        }
        if items.done {
            return Some((zip.finish().map(Bytes::from).map_err(Into::into), None));
        }
        let out = Bytes::from(std::mem::take(zip.get_mut()));
        Some((Ok(out), Some((None, items, Some(zip)))))
    })
}

/// A list on its way to a client.
struct Items {
    form: Form,
    objects: std::vec::IntoIter<Arc<CachedObject>>,
    /// What stands before the first item, and after the last.
    open: Option<Vec<u8>>,
    close: Vec<u8>,
    /// Indents what would otherwise be one line.
    pretty: Option<Pretty>,
    first: bool,
    done: bool,
    /// Of the whole list, where that can be told before it is made.
    length: Option<usize>,
}

/// A list in YAML around its items: what stands before the first, and what follows the last. Keys are
/// sorted, so that items stand before what else is told of objects, and rows after it.
fn yaml_around(
    kind: &dyn AnyKind,
    view: View,
    list: &str,
    api_version: &str,
    meta_version: &str,
    meta: &ListMeta,
    empty: bool,
) -> status::Result<(Vec<u8>, Vec<u8>)> {
    let (json, key) = match view {
        View::Table => (table::open(kind, meta_version, meta, true), "rows"),
        _ => (json::open_list(list, api_version, meta), "items"),
    };
    let whole = [&json, json::CLOSE_LIST].concat();
    let mut fields: Map<String, Value> = serde_json::from_slice(&whole).map_err(Status::internal)?;
    if empty {
        return Ok((machinery::encode::yaml(&fields.into()), Vec::new()));
    }
    fields.remove(key);
    let (before, after): (Map<_, _>, Map<_, _>) = fields.into_iter().partition(|(name, _)| name.as_str() < key);
    let mut open = machinery::encode::yaml(&before.into());
    open.extend_from_slice(key.as_bytes());
    open.extend_from_slice(b":\n");
    let close = if after.is_empty() { Vec::new() } else { machinery::encode::yaml(&after.into()) };
    Ok((open, close))
}

/// How each item is shown.
struct Form {
    kind: SharedKind,
    accepted: Accepted,
    include: Include,
    now: jiff::Timestamp,
    /// How the bytes of each object begin, which a list says once for all.
    head: String,
    /// The type of an item, and its tag in the list.
    item: Type,
    tag: u32,
}

impl Items {
    async fn new(
        kind: SharedKind,
        accepted: Accepted,
        include: Include,
        meta: &ListMeta,
        now: jiff::Timestamp,
        objects: Vec<Arc<CachedObject>>,
    ) -> status::Result<Self> {
        let shape = kind.shape();
        let (own_version, meta_version) = (shape.api_version(), accepted.meta_version);
        let (list, api_version, item) = match accepted.view {
            View::Metadata => {
                let item = protobuf::meta_type(meta_version, "PartialObjectMetadata")?;
                ("PartialObjectMetadataList".to_owned(), meta_version, item)
            }
            _ => (shape.list_kind(), own_version.as_str(), kind.schema()),
        };
        let head = json::head(shape.kind, &own_version);
        let mut form = Form { kind: kind.clone(), accepted, include, now, head, item, tag: 0 };
        let mut size = 0;
        let (open, close) = match (accepted.format, accepted.view) {
            (Format::Protobuf, view) => {
                let list_type = match view {
                    View::Metadata => protobuf::meta_type(meta_version, &list)?,
                    _ => protobuf::list_type(&*kind)?,
                };
                form.tag = proto::tag(&list_type, "items");
                size = form.size(&objects).await?;
                let Around { before, after } = Around::new(&list_type, api_version, &list, meta, size);
                (before, after)
            }
            (Format::Yaml, view) => {
                yaml_around(&*kind, view, &list, api_version, meta_version, meta, objects.is_empty())?
            }
            (_, View::Table) => (table::open(&*kind, meta_version, meta, true), json::CLOSE_LIST.to_vec()),
            _ => (json::open_list(&list, api_version, meta), json::CLOSE_LIST.to_vec()),
        };
        let pretty = (accepted.format == Format::Json && accepted.pretty).then(Pretty::default);
        let line_end: &[u8] = if accepted.format == Format::Json && pretty.is_none() { b"\n" } else { b"" };
        let close = [&close, line_end].concat();
        let items = match (accepted.format, accepted.view) {
            (Format::Protobuf, _) => Some(size),
            (Format::Json, View::Whole) if pretty.is_none() => form.json_size(&objects),
            _ => None,
        };
        let length = items.map(|items| open.len() + items + close.len());
        let objects = objects.into_iter();
        Ok(Self { form, objects, open: Some(open), close, pretty, first: true, done: false, length })
    }

    /// The next bytes: one piece, or all that is left.
    fn piece(&mut self) -> status::Result<Vec<u8>> {
        let mut out = self.open.take().unwrap_or_else(|| Vec::with_capacity(PIECE + PIECE / 4));
        while out.len() < PIECE {
            let Some(object) = self.objects.next() else {
                self.done = true;
                out.extend_from_slice(&self.close);
                break;
            };
            let first = std::mem::take(&mut self.first);
            self.form.append(&mut out, first, &object)?;
        }
        Ok(match &mut self.pretty {
            None => out,
            Some(pretty) => {
                let mut indented = Vec::with_capacity(out.len() * 2);
                pretty.push(&out, &mut indented);
                indented
            }
        })
    }
}

impl Form {
    /// How many bytes the items take in a list in protobuf, which says so before the first of them.
    async fn size(&self, objects: &[Arc<CachedObject>]) -> status::Result<usize> {
        let mut size = 0;
        for turn in objects.chunks(TURN) {
            for object in turn {
                size += proto::item_len(self.tag, self.protobuf(object)?.len());
            }
            tokio::task::yield_now().await;
        }
        Ok(size)
    }

    /// What of the bytes of the cache stands in a list; `None` where they have to be made first.
    fn item<'o>(&self, object: &'o CachedObject) -> Option<&'o [u8]> {
        object.item().filter(|_| self.kind.stored_as().is_none())
    }

    /// How many bytes the items take in a list in JSON, with the commas between them.
    fn json_size(&self, objects: &[Arc<CachedObject>]) -> Option<usize> {
        let items: Option<usize> = objects.iter().map(|object| Some(self.item(object)?.len() + 1)).sum();
        Some(items? + objects.len().saturating_sub(1))
    }

    fn protobuf<'o>(&self, object: &'o CachedObject) -> status::Result<Cow<'o, [u8]>> {
        match self.accepted.view {
            View::Metadata => protobuf::partial(&*self.kind, &self.item, object),
            _ => protobuf::whole(&*self.kind, &self.item, object),
        }
    }

    fn append(&self, out: &mut Vec<u8>, first: bool, object: &CachedObject) -> status::Result<()> {
        match self.accepted.format {
            Format::Protobuf => proto::append_item(out, self.tag, &self.protobuf(object)?),
            Format::Yaml => {
                let mut json = Vec::with_capacity(object.json.len());
                self.json(&mut json, object)?;
                machinery::encode::yaml_item(out, &serde_json::from_slice(&json).map_err(Status::internal)?);
            }
            Format::Json => {
                if !first {
                    out.push(b',');
                }
                self.json(out, object)?;
            }
        }
        Ok(())
    }

    fn json(&self, out: &mut Vec<u8>, object: &CachedObject) -> status::Result<()> {
        if self.accepted.view == View::Whole
            && let Some(item) = self.item(object)
        {
            out.push(b'{');
            out.extend_from_slice(item);
            return Ok(());
        }
        let json = own_form(&*self.kind, object)?;
        let meta_version = self.accepted.meta_version;
        match self.accepted.view {
            View::Whole => match json.strip_prefix(self.head.as_bytes()) {
                Some(item) => {
                    out.push(b'{');
                    out.extend_from_slice(item);
                }
                None => out.extend_from_slice(&json),
            },
            View::Metadata => json::append_partial(out, &json, meta_version),
            View::Table => table::row(out, &*self.kind, &json, self.include, meta_version, self.now),
        }
        Ok(())
    }
}
