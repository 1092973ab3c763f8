//! Collections as bytes. What fits into one piece is sent whole; a longer list is made while it is sent,
//! so that a client that reads slowly, or not at all, holds the cache's own objects and no copy of them.

use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, stream};
use http::HeaderValue;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use kinds::AnyKind;
use machinery::proto;
use machinery::schema::Type;
use machinery::status;
use transport::{BodyError, Response};

use super::json::{self, ListMeta, Pretty};
use super::negotiate::{self, Accepted, Format, View};
use super::protobuf::{self, Around};
use super::table::{self, Include};
use super::{body, own_form, plain};
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
    kind: &'static dyn AnyKind,
    accepted: Accepted,
    meta: &ListMeta,
    objects: Vec<Arc<CachedObject>>,
) -> status::Result<Response> {
    let include = Include::parse(&call.query)?;
    for damaged in objects.iter().filter(|object| object.damage.is_some()) {
        own_form(kind, damaged)?;
    }
    let mut items = Items::new(kind, accepted, include, meta, call.server.clock.wall(), objects).await?;
    let first = items.piece()?;
    if items.done || accepted.format == Format::Yaml {
        let mut whole = first;
        while !items.done {
            whole.append(&mut items.piece()?);
        }
        return Ok(match accepted.format {
            Format::Yaml => body(call, accepted, 200, whole.into()).await,
            _ => plain(call, 200, accepted.format.media_type(), whole.into()).await,
        });
    }
    let zipped = negotiate::takes_gzip(call.header(ACCEPT_ENCODING));
    let mut response = http::Response::new(transport::stream(pieces(first, items, zipped)));
    let headers = response.headers_mut();
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
}

/// How each item is shown.
struct Form {
    kind: &'static dyn AnyKind,
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
        kind: &'static dyn AnyKind,
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
            _ => (format!("{}List", shape.kind), own_version.as_str(), kind.schema()),
        };
        let head = json::head(shape.kind, &own_version);
        let mut form = Form { kind, accepted, include, now, head, item, tag: 0 };
        let (open, close) = match (accepted.format, accepted.view) {
            (Format::Protobuf, view) => {
                let list_type = match view {
                    View::Metadata => protobuf::meta_type(meta_version, &list)?,
                    _ => protobuf::list_type(kind)?,
                };
                form.tag = proto::tag(&list_type, "items");
                let size = form.size(&objects).await?;
                let Around { before, after } = Around::new(&list_type, api_version, &list, meta, size);
                (before, after)
            }
            (_, View::Table) => (table::open(kind, meta_version, meta, true), json::CLOSE_LIST.to_vec()),
            _ => (json::open_list(&list, api_version, meta), json::CLOSE_LIST.to_vec()),
        };
        let pretty = (accepted.format == Format::Json && accepted.pretty).then(Pretty::default);
        let line_end: &[u8] = if accepted.format == Format::Json && pretty.is_none() { b"\n" } else { b"" };
        let close = [&close, line_end].concat();
        Ok(Self { form, objects: objects.into_iter(), open: Some(open), close, pretty, first: true, done: false })
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

    fn protobuf(&self, object: &CachedObject) -> status::Result<Bytes> {
        match self.accepted.view {
            View::Metadata => protobuf::partial(self.kind, &self.item, object),
            _ => protobuf::whole(self.kind, &self.item, object),
        }
    }

    fn append(&self, out: &mut Vec<u8>, first: bool, object: &CachedObject) -> status::Result<()> {
        if self.accepted.format == Format::Protobuf {
            proto::append_item(out, self.tag, &self.protobuf(object)?);
            return Ok(());
        }
        if !first {
            out.push(b',');
        }
        let json = own_form(self.kind, object)?;
        let meta_version = self.accepted.meta_version;
        match self.accepted.view {
            View::Whole => json::append_item(out, &json, &self.head),
            View::Metadata => out.extend_from_slice(&json::partial(&json, meta_version)),
            View::Table => table::row(out, self.kind, &json, self.include, meta_version, self.now),
        }
        Ok(())
    }
}
