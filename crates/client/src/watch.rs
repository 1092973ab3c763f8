//! Watch streams: lines of JSON cut out of a body, without copying what arrives as one piece.

use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use machinery::status::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use transport::Body;

use crate::error::{Error, Result};

/// No event may be longer; an object is at most a few MiB.
const MAX_LINE: usize = 64 << 20;

/// What happened to an object.
#[derive(Clone, Debug)]
pub enum Event<T> {
    Added(T),
    Modified(T),
    Deleted(T),
    /// Only its resourceVersion (and annotations) mean something.
    Bookmark(Bytes),
    Error(Box<Status>),
}

/// A watch as the objects' bytes.
pub struct Frames {
    body: Body,
    buffer: BytesMut,
    /// A piece that has not been cut up yet.
    piece: Bytes,
    ended: bool,
    longest: usize,
}

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl Frames {
    /// No event may be longer than `longest`, nor than any of this server's own is.
    pub(crate) fn new(body: Body, longest: usize) -> Self {
        Self { body, buffer: BytesMut::new(), piece: Bytes::new(), ended: false, longest: longest.min(MAX_LINE) }
    }

    /// The next event; `None` when the server ended the stream. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Event<Bytes>>> {
        let line = match self.line().await? {
            Ok(line) => line,
            Err(error) => return Some(Err(error)),
        };
        Some(parse(&line))
    }

    async fn line(&mut self) -> Option<Result<Bytes>> {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.piece) {
                let whole = end + 1 == self.piece.len();
                let mut line = self.piece.split_to(end + 1);
                line.truncate(end);
                if !self.buffer.is_empty() {
                    self.buffer.extend_from_slice(&line);
                    line = self.buffer.split().freeze();
                } else if !whole || !self.piece.is_empty() {
                    line = Bytes::copy_from_slice(&line);
                }
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Some(Ok(line));
            }
            let rest = std::mem::take(&mut self.piece);
            self.buffer.extend_from_slice(&rest);
            if self.buffer.len() > self.longest {
                (self.ended, self.buffer) = (true, BytesMut::new());
                return Some(Err(Error::Interrupted("a watch event is too long".into())));
            }
            if self.ended {
                return None;
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.piece = data;
                    }
                }
                Some(Err(error)) => {
                    self.ended = true;
                    return Some(Err(Error::Interrupted(format!("the watch broke: {error}"))));
                }
                None => {
                    self.ended = true;
                    if self.buffer.iter().all(u8::is_ascii_whitespace) {
                        return None;
                    }
                    // A last line without its line feed.
                    return Some(Ok(self.buffer.split().freeze()));
                }
            }
        }
    }
}

fn parse(line: &Bytes) -> Result<Event<Bytes>> {
    let frame: Frame = serde_json::from_slice(line).map_err(Error::decode)?;
    let object = line.slice_ref(frame.object.get().as_bytes());
    Ok(match frame.kind {
        "ADDED" => Event::Added(object),
        "MODIFIED" => Event::Modified(object),
        "DELETED" => Event::Deleted(object),
        "BOOKMARK" => Event::Bookmark(object),
        "ERROR" => {
            let value = serde_json::from_slice(&object).map_err(Error::decode)?;
            let unnamed = || Status::new(500, "InternalError", "the watch failed without a Status");
            Event::Error(Status::from_value(&value).unwrap_or_else(unnamed))
        }
        other => return Err(Error::Decode(format!("unknown watch event type {other:?}"))),
    })
}

/// A watch as typed objects.
pub struct TypedFrames<K> {
    frames: Frames,
    kind: PhantomData<fn() -> K>,
}

impl<K: DeserializeOwned> TypedFrames<K> {
    pub(crate) fn new(frames: Frames) -> Self {
        Self { frames, kind: PhantomData }
    }

    /// The next event; `None` when the server ended the stream. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Event<K>>> {
        Some(self.frames.next().await?.and_then(|event| {
            let typed = |bytes: Bytes| serde_json::from_slice(&bytes).map_err(Error::decode);
            Ok(match event {
                Event::Added(bytes) => Event::Added(typed(bytes)?),
                Event::Modified(bytes) => Event::Modified(typed(bytes)?),
                Event::Deleted(bytes) => Event::Deleted(typed(bytes)?),
                Event::Bookmark(bytes) => Event::Bookmark(bytes),
                Event::Error(status) => Event::Error(status),
            })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(pieces: &[&'static str]) -> Vec<String> {
        let pieces: Vec<_> = pieces.iter().map(|p| Ok(Bytes::from_static(p.as_bytes()))).collect();
        let mut frames = Frames::new(transport::stream(futures::stream::iter(pieces)), MAX_LINE);
        let mut out = Vec::new();
        while let Some(event) = frames.next().await {
            out.push(match event {
                Ok(Event::Added(b)) => format!("A{}", String::from_utf8_lossy(&b)),
                Ok(Event::Error(s)) => format!("E{}", s.code),
                Ok(_) => "?".into(),
                Err(e) => format!("!{}", matches!(e, Error::Decode(_))),
            });
        }
        out
    }

    #[tokio::test]
    async fn lines_are_cut_wherever_pieces_end() {
        let added = r#"{"type":"ADDED","object":{"a":1}}"#;
        let one = read(&["{\"type\":\"ADDED\",\"object\":{\"a\":1}}\n"]).await;
        assert_eq!(one, ["A{\"a\":1}"]);
        let split =
            read(&["{\"type\":\"ADD", "ED\",\"object\":{\"a\":1}}\n{\"type\":\"ADDED\",", "\"object\":{}}\n\n"]).await;
        assert_eq!(split, ["A{\"a\":1}", "A{}"]);
        assert_eq!(read(&[added]).await, ["A{\"a\":1}"]);
        let error = "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\"}}\n";
        assert_eq!(read(&[error, "{\"type\":"]).await, ["E410", "!true"]);
    }
}
