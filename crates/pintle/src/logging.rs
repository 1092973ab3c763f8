//! Log lines on standard error, as text.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

/// Libraries that say too much.
const TALKATIVE: [&str; 4] = ["hyper", "h2", "rustls", "tonic"];

/// Starts logging at upstream's verbosity levels: 0 to 1 warnings, 2 to 3 information, 4 and 5
/// debugging, above that everything. A second call changes nothing.
pub fn start(verbosity: u8) {
    let level = match verbosity {
        0..=1 => LevelFilter::WARN,
        2..=3 => LevelFilter::INFO,
        4..=5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let filter = Targets::new().with_default(level).with_targets(TALKATIVE.map(|name| (name, LevelFilter::WARN)));
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    // An earlier subscriber stays.
    let _ = registry().with(filter).with(lines).try_init();
}
