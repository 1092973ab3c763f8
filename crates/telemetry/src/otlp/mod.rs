//! Spans of traces, and how they come to a collector.
//!
//! A span of the target [`crate::TRACE`] whose field `otel.context` says which place in which trace it has is
//! that place; `otel.caller` is the span that asked for it. One within such a span is a part of it, and one within none
//! begins a trace of its own, as the sampler says; but a request (level INFO) is no part of a trace before it
//! is told its place. Its fields are attributes, except these:
//!
//! ```text
//!  otel.context   the place: `00-TRACE-SPAN-01`    otel.kind    `server` or `client`
//!  otel.caller    who asked: `00-TRACE-SPAN-01`    otel.name    what it is called, instead of the span's own name
//!  error          why it failed
//! ```

mod export;
pub mod message;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stdx::trace::{Context as Place, Sampler};
use stdx::{Rng, SharedClock};
use tokio::sync::mpsc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use message::{KeyValue, Kind, Span, Status, Value};

/// Spans that wait to be sent; what is beyond is dropped and counted.
const WAITING: usize = 2048;
/// Attributes of a span, and letters of one.
const ATTRIBUTES: usize = 32;
const LETTERS: usize = 1024;

/// Where spans go, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `host:port` of a collector that takes OTLP over gRPC, in plain text.
    pub endpoint: String,
    pub sampler: Sampler,
    /// Whose spans they are: `kube-apiserver`.
    pub service: String,
}

/// Upstream's endpoint where none is named.
pub const ENDPOINT: &str = "localhost:4317";

/// What became of spans.
#[derive(Debug, Default)]
pub struct Counts {
    pub sent: AtomicU64,
    pub dropped: AtomicU64,
}

/// Gathers spans.
pub struct Spans {
    queue: mpsc::Sender<Span>,
    counts: Arc<Counts>,
    sampler: Sampler,
    rng: Rng,
    clock: SharedClock,
}

/// Sends what is gathered.
pub struct Exporter {
    queue: mpsc::Receiver<Span>,
    counts: Arc<Counts>,
    options: Options,
    clock: SharedClock,
}

/// The two ends of the queue.
pub fn open(options: Options, rng: Rng, clock: &SharedClock) -> (Spans, Exporter) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let counts = Arc::new(Counts::default());
    let spans = Spans { queue: sender, counts: counts.clone(), sampler: options.sampler, rng, clock: clock.clone() };
    (spans, Exporter { queue: receiver, counts, options, clock: clock.clone() })
}

impl Exporter {
    /// What became of spans so far.
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }
}

/// A span that goes on.
#[derive(Default)]
struct Open {
    place: Option<Place>,
    parent: u64,
    began: u64,
    name: String,
    kind: Option<Kind>,
    failed: Option<String>,
    attributes: Vec<KeyValue>,
}

impl Open {
    fn text(&mut self, name: &str, value: &str) {
        let value = value.char_indices().nth(LETTERS).map_or(value, |(end, _)| &value[..end]);
        match name {
            "otel.context" => self.place = Place::parse(value),
            "otel.caller" => self.parent = Place::parse(value).map_or(0, |place| place.span),
            "otel.name" => value.clone_into(&mut self.name),
            "otel.kind" if value == "server" => self.kind = Some(Kind::Server),
            "otel.kind" => self.kind = Some(Kind::Client),
            "error" => self.failed = Some(value.to_owned()),
            _ => self.attribute(name, Value::Text(value.to_owned())),
        }
    }

    fn attribute(&mut self, name: &str, value: Value) {
        if self.attributes.len() < ATTRIBUTES {
            self.attributes.push(KeyValue::new(name, value));
        }
    }
}

impl Visit for Open {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.text(field.name(), &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.attribute(field.name(), Value::Whole(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.attribute(field.name(), Value::Whole(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.attribute(field.name(), Value::Truth(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.attribute(field.name(), Value::Number(value));
    }
}

impl Spans {
    fn now(&self) -> u64 {
        u64::try_from(self.clock.wall().as_nanosecond()).unwrap_or_default()
    }
}

impl<S> Layer<S> for Spans
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|span| span.metadata().target() == crate::TRACE) else { return };
        let mut open = Open { began: self.now(), name: span.name().to_owned(), ..Open::default() };
        attributes.record(&mut open);
        let around = span.scope().skip(1).find(|outer| outer.metadata().target() == crate::TRACE);
        if open.place.is_none() {
            let outer = around.map(|outer| outer.extensions().get::<Open>().and_then(|open| open.place));
            open.place = match outer {
                // Of what has no place nothing has.
                Some(outer) => outer.map(|place| place.child(&self.rng)),
                None if *span.metadata().level() <= Level::INFO => None,
                None => Some(self.sampler.begin(None, &self.rng)),
            };
            open.parent = outer.flatten().map_or(0, |place| place.span);
        }
        span.extensions_mut().insert(open);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<Open>() {
            values.record(open);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<Open>() else { return };
        let Some(place) = open.place.filter(|place| place.sampled) else { return };
        let bytes = |number: u64| if number == 0 { Vec::new() } else { number.to_be_bytes().to_vec() };
        let span = Span {
            trace_id: place.trace.to_be_bytes().to_vec(),
            span_id: bytes(place.span),
            parent_span_id: bytes(open.parent),
            name: open.name,
            kind: open.kind.unwrap_or(Kind::Internal).into(),
            start_time_unix_nano: open.began,
            // A clock that was set does not make time run backwards.
            end_time_unix_nano: self.now().max(open.began),
            attributes: open.attributes,
            status: open.failed.map(|message| Status { message, code: 2 }),
        };
        if self.queue.try_send(span).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
