//! Lines of the log, in the two formats upstream writes: what reads upstream's logs reads these.
//!
//! ```text
//!  text  I1201 02:31:00.123456    4711 kubelet/pods.rs:228] "ending it" pod="default/web" err="no such file"
//!  json  {"ts":1796092260123.456,"caller":"kubelet/pods.rs:228","msg":"ending it","v":2,"pod":{"name":"web",…}}
//! ```
//!
//! What spans around a line have as fields is on the line, the outermost first.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use stdx::SharedClock;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::levels;

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    Json,
}

impl Format {
    /// By upstream's name of it.
    ///
    /// # Errors
    /// What is no format.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "text" | "" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("Unsupported log format: \"text\" and \"json\" are there".to_owned()),
        }
    }
}

/// Texts longer than this are cut: an error may quote what somebody sent.
const LONGEST: usize = 16 << 10;

type Write = dyn Fn(&str) + Send + Sync;

/// Writes lines.
pub struct Lines {
    format: Format,
    clock: SharedClock,
    write: Arc<Write>,
}

impl Lines {
    /// Gives each line, with its end, to `write`.
    pub fn new(format: Format, clock: SharedClock, write: Arc<Write>) -> Self {
        Self { format, clock, write }
    }
}

/// What is known, each in the form of its format, and the message apart.
struct Fields {
    format: Format,
    /// Of a span: what has a point in its name is for traces, not for lines.
    of_span: bool,
    out: String,
    message: String,
}

impl Fields {
    fn new(format: Format, of_span: bool) -> Self {
        Self { format, of_span, out: String::new(), message: String::new() }
    }

    fn raw(&mut self, name: &str, value: fmt::Arguments<'_>) {
        if self.of_span && name.contains('.') {
            return;
        }
        let name = if name == "error" { "err" } else { name };
        // Writing into a String does not fail.
        let _ = match self.format {
            Format::Text => write!(self.out, " {name}={value}"),
            Format::Json => write!(self.out, ",{}:{value}", json(name)),
        };
    }

    fn text(&mut self, field: &Field, value: &str) {
        match (field.name(), self.format) {
            ("message", _) => cut(value).clone_into(&mut self.message),
            ("pod", Format::Json) if value.contains('/') => {
                let (namespace, name) = value.split_once('/').unwrap_or_default();
                self.raw("pod", format_args!("{{\"name\":{},\"namespace\":{}}}", json(name), json(namespace)));
            }
            // Go quotes as JSON does, as far as anybody reads it back.
            (name, _) => self.raw(name, format_args!("{}", json(cut(value)))),
        }
    }
}

fn cut(text: &str) -> &str {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.text(field, &value.to_string());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.raw(field.name(), format_args!("{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.raw(field.name(), format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.raw(field.name(), format_args!("{value}"));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        match value.is_finite() {
            true => self.raw(field.name(), format_args!("{value}")),
            false => self.text(field, &value.to_string()),
        }
    }
}

/// The fields of a span, as they are on its lines.
struct OfSpan(String);

/// A file as upstream names it: its folder and its own name.
fn place(metadata: &Metadata<'_>) -> String {
    let file = metadata.file().unwrap_or_default();
    let mut parts = file.rsplit('/').filter(|part| *part != "src");
    match (parts.next(), parts.next()) {
        (Some(name), Some(folder)) => format!("{folder}/{name}:{}", metadata.line().unwrap_or_default()),
        _ => format!("{file}:{}", metadata.line().unwrap_or_default()),
    }
}

/// One line, with its end.
fn line(format: Format, now: Timestamp, metadata: &Metadata<'_>, spans: &str, fields: &Fields) -> String {
    let (place, message) = (place(metadata), json(&fields.message));
    let level = *metadata.level();
    match format {
        Format::Text => {
            let letter = match level {
                Level::ERROR => 'E',
                Level::WARN => 'W',
                _ => 'I',
            };
            let now = TimeZone::UTC.to_datetime(now);
            let micros = now.subsec_nanosecond() / 1000;
            let (month, day, hour, minute, second) = (now.month(), now.day(), now.hour(), now.minute(), now.second());
            let id = std::process::id();
            format!(
                "{letter}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06} {id:>7} {place}] \
                 {message}{spans}{}\n",
                fields.out
            )
        }
        Format::Json => {
            let nanos = now.as_nanosecond();
            let (millis, rest) = (nanos.div_euclid(1_000_000), nanos.rem_euclid(1_000_000));
            // Errors have no verbosity.
            let v = if level == Level::ERROR { String::new() } else { format!(",\"v\":{}", levels::verbosity(level)) };
            format!(
                "{{\"ts\":{millis}.{rest:06},\"caller\":{},\"msg\":{message}{v}{spans}{}}}\n",
                json(&place),
                fields.out
            )
        }
    }
}

impl<S> Layer<S> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::new(self.format, true);
        // What is within a request says nothing more of whose it is.
        if *attributes.metadata().level() <= Level::INFO {
            attributes.record(&mut fields);
        }
        span.extensions_mut().insert(OfSpan(fields.out));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|span| *span.metadata().level() <= Level::INFO) else { return };
        let mut fields = Fields::new(self.format, true);
        values.record(&mut fields);
        if let Some(of) = span.extensions_mut().get_mut::<OfSpan>() {
            of.0.push_str(&fields.out);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::new(self.format, false);
        event.record(&mut fields);
        let mut around = String::new();
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(of) = span.extensions().get::<OfSpan>() {
                around.push_str(&of.0);
            }
        }
        (self.write)(&line(self.format, self.clock.wall(), event.metadata(), &around, &fields));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use stdx::clock::ManualClock;
    use tracing_subscriber::layer::SubscriberExt;

    /// The lines that `work` writes.
    fn written(format: Format, work: impl FnOnce()) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (to, time) = (lines.clone(), Timestamp::from_millisecond(1_796_092_260_123).expect("a time"));
        let write = Arc::new(move |line: &str| to.lock().push(line.to_owned()));
        let layer = Lines::new(format, Arc::new(ManualClock::new(time)), write);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
        let lines = lines.lock();
        lines.clone()
    }

    fn work() {
        let request = tracing::info_span!(target: crate::TRACE, "request", "audit-ID" = "a-1", "otel.context" = "00-…", n = tracing::field::Empty);
        request.record("n", 7);
        let _entered = request.enter();
        tracing::debug_span!("within", hidden = 1).in_scope(|| {
            tracing::info!(pod = %"default/web", count = 3, well = true, "it \"ends\"");
        });
        tracing::error!(error = %"no such file", "gone\nwrong");
    }

    #[test]
    fn lines_are_upstreams_json() {
        let lines = written(Format::Json, work);
        let read: Vec<serde_json::Value> =
            lines.iter().map(|l| serde_json::from_str(l.trim_end()).expect("JSON")).collect();
        let at = |n: usize| read[n]["caller"].as_str().expect("a place").rsplit_once(':').expect("a line").0.to_owned();
        assert_eq!((at(0), at(1)), ("telemetry/line.rs".to_owned(), "telemetry/line.rs".to_owned()));
        assert!(lines[0].starts_with("{\"ts\":1796092260123.000000,\"caller\":\"telemetry/line.rs:"), "{}", lines[0]);
        for (name, want) in [
            ("msg", serde_json::json!("it \"ends\"")),
            ("v", serde_json::json!(2)),
            ("audit-ID", serde_json::json!("a-1")),
            ("n", serde_json::json!(7)),
            ("pod", serde_json::json!({"name": "web", "namespace": "default"})),
            ("count", serde_json::json!(3)),
            ("well", serde_json::json!(true)),
        ] {
            assert_eq!(read[0][name], want, "{name}");
        }
        assert_eq!((&read[1]["err"], read[1].get("v")), (&serde_json::json!("no such file"), None));
        assert!(
            read.iter().all(|line| line.get("otel.context").is_none() && line.get("hidden").is_none()),
            "{lines:?}"
        );
    }

    #[test]
    fn a_line_is_one_line() {
        let lines = written(Format::Text, work);
        let id = format!("{:>7}", std::process::id());
        let rest = |n: usize| lines[n].split_once("] ").expect("a head").1.to_owned();
        assert_eq!(rest(0), "\"it \\\"ends\\\"\" audit-ID=\"a-1\" n=7 pod=\"default/web\" count=3 well=true\n");
        assert_eq!(rest(1), "\"gone\\nwrong\" audit-ID=\"a-1\" n=7 err=\"no such file\"\n");
        assert!(lines[1].starts_with(&format!("E1201 02:31:00.123000 {id} telemetry/line.rs:")), "{}", lines[1]);
        let long = "é".repeat(LONGEST + 9);
        let lines = written(Format::Text, || tracing::warn!(long, "W"));
        assert!(lines[0].len() < 2 * LONGEST + 200 && lines[0].starts_with('W') && lines[0].lines().count() == 1);
    }
}
