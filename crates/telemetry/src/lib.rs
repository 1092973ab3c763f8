//! What a process says of its work while it works: lines of a log, and spans of traces.
//!
//! ```text
//!  tracing's events ─► levels.rs (is it wanted?) ─► line.rs ─► standard error, as text or JSON
//!  tracing's spans of the target "trace" ─► otlp/mod.rs ─► a bounded queue ─► otlp/export.rs ─► a collector
//! ```
//!
//! Where the time goes a process tells when it is asked ([`profile`]).
//!
//! Who works knows nothing of this: it makes events and spans of the crate `tracing`. A span of the target
//! [`TRACE`] is a part of a trace; its fields are on every line that is written within it.
//!
//! # Invariants
//!
//! * A line of the log is one line, whatever is in it. [src/line.rs: a_line_is_one_line]
//! * A collector that is slow or gone costs nothing but its spans, which are counted.
//!   [src/otlp/tests.rs: a_collector_that_is_gone_costs_its_spans]
//! * A profile names who worked and who called it, and is taken one at a time. [src/profile/mod.rs:
//!   a_busy_thread_is_found_with_those_who_called_it]

pub mod levels;
pub mod line;
pub mod otlp;
pub mod profile;

use std::sync::Arc;

use levels::{Filter, Verbosity};
use line::{Format, Lines};
use stdx::SharedClock;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The target of spans that are parts of traces.
pub const TRACE: &str = "trace";

/// Starts saying it on standard error, at that verbosity, and to a collector where there is one. What was
/// started first in a process stays.
pub fn start(format: Format, verbosity: &Verbosity, spans: Option<otlp::Spans>, clock: &SharedClock) {
    let lines = Lines::new(
        format,
        clock.clone(),
        Arc::new(|line: &str| {
            use std::io::Write;
            // Nobody can be told that nothing can be told.
            drop(std::io::stderr().lock().write_all(line.as_bytes()));
        }),
    );
    verbosity.trace(spans.is_some());
    // An earlier subscriber stays.
    drop(tracing_subscriber::registry().with(Filter(verbosity.clone())).with(lines).with(spans).try_init());
}
