//! Log lines on standard error, as text.

use tracing_subscriber::EnvFilter;

/// Starts logging at upstream's verbosity levels: 0 to 1 warnings, 2 to 3 information, 4 and 5
/// debugging, above that everything. A second call changes nothing.
pub fn start(verbosity: u8) {
    let level = match verbosity {
        0..=1 => "warn",
        2..=3 => "info",
        4..=5 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::new(format!("{level},hyper=warn,h2=warn,rustls=warn,tonic=warn"));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // An earlier subscriber stays.
    let _ = subscriber.try_init();
}
