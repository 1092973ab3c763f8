//! What is logged and traced, as flags and files say: upstream's names for both.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::{ArgAction, Args};
use serde_json::Value;
use stdx::metrics::{Page, Registry, Type};
use stdx::shutdown::Stage;
use stdx::trace::Sampler;
use stdx::{Rng, SharedClock};
use telemetry::levels::{self, Verbosity};
use telemetry::line::Format;
use telemetry::otlp::{self, Counts, Exporter};
use transport::debug::Debug;

/// How much is logged, and how.
#[derive(Args, Clone, Debug, Default)]
pub struct Logging {
    /// Verbosity of the log: 0 warnings, 2 information, 4 what is for debugging, 6 everything [default: 2].
    #[arg(short, long, value_name = "LEVEL", allow_negative_numbers = true)]
    v: Option<i32>,
    /// Verbosity of single files: PATTERN=LEVEL (comma separated), by the names of their sources.
    #[arg(long, value_name = "LIST", value_parser = levels::modules)]
    vmodule: Option<Modules>,
    /// How lines are written: text or json [default: text].
    #[arg(long, value_name = "FORMAT", value_parser = Format::parse)]
    logging_format: Option<Format>,
    /// Taken for upstream's sake: nothing is held back here.
    #[arg(long, value_name = "DURATION", value_parser = kubelet::config::duration)]
    log_flush_frequency: Option<Duration>,
}

/// Patterns of names, and a verbosity each.
pub type Modules = Vec<(String, i32)>;

/// Whether a process shows itself below `/debug`.
#[derive(Args, Clone, Debug)]
pub struct Profiling {
    /// Serve /debug/pprof/ and /debug/flags/v to whom it is allowed.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
        default_missing_value = "true")]
    profiling: bool,
}

/// Where traces go.
#[derive(Args, Clone, Debug, Default)]
pub struct Tracing {
    /// A file of kind TracingConfiguration: where traces go, over OTLP, and how many of a million.
    #[arg(long, value_name = "FILE")]
    tracing_config_file: Option<PathBuf>,
}

/// What a file of a component's own says of the same.
#[derive(Clone, Debug, Default)]
pub struct FromFile {
    pub verbosity: Option<i32>,
    pub modules: Modules,
    pub format: Option<Format>,
    pub tracing: Option<otlp::Options>,
}

/// What runs of it once it is started.
pub struct Started {
    verbosity: Verbosity,
    /// Which requests begin traces, where any are told of.
    pub sampler: Option<Sampler>,
    exporter: Option<Exporter>,
    counts: Option<Arc<Counts>>,
    clock: SharedClock,
}

impl Logging {
    /// Starts; what a flag does not say, `file` does. A second call changes nothing.
    pub fn start(&self, file: FromFile, clock: &SharedClock) -> Started {
        let all = self.v.or(file.verbosity).unwrap_or(2);
        let modules = self.vmodule.clone().unwrap_or(file.modules);
        let verbosity = Verbosity::new(all, modules);
        let format = self.logging_format.or(file.format).unwrap_or_default();
        let sampler = file.tracing.as_ref().map(|options| options.sampler);
        let opened = file.tracing.map(|options| otlp::open(options, Rng::from_os(), clock));
        let (spans, exporter) = opened.unzip();
        telemetry::start(format, &verbosity, spans, clock);
        let counts = exporter.as_ref().map(Exporter::counts);
        Started { verbosity, sampler, exporter, counts, clock: clock.clone() }
    }
}

impl Tracing {
    /// What its file says, for that component.
    pub fn read(&self, service: &str) -> Result<Option<otlp::Options>> {
        self.tracing_config_file.as_deref().map(|path| read(path, service)).transpose()
    }
}

impl Profiling {
    /// What is below `/debug` of a process.
    pub fn debug(&self, started: &Started) -> Debug {
        if self.profiling { started.debug() } else { Debug::none() }
    }
}

impl Started {
    /// What is below `/debug`: all there is.
    pub fn debug(&self) -> Debug {
        let verbosity = self.verbosity.clone();
        let debug = Debug::none().with_level(move |text| verbosity.set_text(text)).with_profiling(std::env::args());
        let clock = self.clock.clone();
        debug.with_profile(move |length| {
            let clock = clock.clone();
            Box::pin(async move { telemetry::profile::take(length, &clock).await.map_err(|error| error.to_string()) })
        })
    }

    /// Sends traces until the stage stops, and shows in that registry what became of them.
    pub fn export(&mut self, registry: &Registry, stage: &Stage) {
        let (Some(exporter), Some(counts)) = (self.exporter.take(), self.counts.clone()) else { return };
        stage.spawn(exporter.run(stage.clone()));
        registry.collect(move |page: &mut Page| {
            let name = "pintle_trace_spans_total";
            page.family(name, Type::Counter, "Parts of traces, by what became of them.");
            for (result, count) in [("sent", &counts.sent), ("dropped", &counts.dropped)] {
                page.sample(name, &[("result", result)], count.load(Ordering::Relaxed) as f64);
            }
        });
    }
}

fn read(path: &Path, service: &str) -> Result<otlp::Options> {
    let of = |why: String| anyhow!("{}: {why}", path.display());
    let text = std::fs::read(path).map_err(|error| of(error.to_string()))?;
    let tree = machinery::yaml::read(&text).map_err(|error| of(error.to_string()))?;
    let found = (tree["apiVersion"].as_str().unwrap_or_default(), tree["kind"].as_str().unwrap_or_default());
    const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
    let is_known = VERSIONS.iter().any(|version| found.0 == format!("apiserver.config.k8s.io/{version}"));
    if !is_known || found.1 != "TracingConfiguration" {
        bail!(of(format!(
            "it is of kind {} in {}, not TracingConfiguration in apiserver.config.k8s.io",
            found.1, found.0
        )));
    }
    let known = ["apiVersion", "kind", "endpoint", "samplingRatePerMillion"];
    if let Some(unknown) = tree.as_object().and_then(|tree| tree.keys().find(|key| !known.contains(&key.as_str()))) {
        bail!(of(format!("unknown field {unknown:?}")));
    }
    options(&tree, service).map_err(of)
}

/// What a TracingConfiguration says.
///
/// # Errors
/// In upstream's words.
pub fn options(tree: &Value, service: &str) -> Result<otlp::Options, String> {
    let endpoint = match &tree["endpoint"] {
        Value::Null => otlp::ENDPOINT.to_owned(),
        Value::String(text) => text.clone(),
        other => return Err(format!("endpoint: {other} is no text")),
    };
    let rate = match &tree["samplingRatePerMillion"] {
        Value::Null => 0,
        value => value.as_i64().ok_or_else(|| format!("samplingRatePerMillion: {value} is no number"))?,
    };
    let why = match rate {
        ..0 => "sampling rate must be positive",
        0..=1_000_000 => "",
        _ => "sampling rate per million must be less than or equal to one million",
    };
    if !why.is_empty() {
        return Err(format!("samplingRatePerMillion: Invalid value: {rate}: {why}"));
    }
    let per_million = u32::try_from(rate).unwrap_or_default();
    Ok(otlp::Options { endpoint, sampler: Sampler { per_million }, service: service.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        logging: Logging,
        #[command(flatten)]
        profiling: Profiling,
    }

    #[test]
    fn flags_are_upstreams() {
        let line = |flags: &[&str]| Line::try_parse_from(["x"].iter().chain(flags));
        let all = line(&["-v=4", "--vmodule=chain=6,st*=5", "--logging-format=json", "--log-flush-frequency=5s"]);
        let logging = all.expect("flags").logging;
        assert_eq!((logging.v, logging.logging_format), (Some(4), Some(Format::Json)));
        assert_eq!(logging.vmodule, Some(vec![("chain".to_owned(), 6), ("st*".to_owned(), 5)]));
        assert_eq!(line(&["--v", "10"]).expect("a long name").logging.v, Some(10));
        assert!(!line(&["--profiling=false"]).expect("a flag").profiling.profiling);
        assert!(line(&[]).expect("nothing").profiling.profiling);
        for bad in ["--logging-format=xml", "--vmodule=x", "-v=much"] {
            assert!(line(&[bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_says_where_traces_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tracing.yaml");
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";
        let read = |text: &str| {
            std::fs::write(&path, text).expect("written");
            let tracing = Tracing { tracing_config_file: Some(path.clone()) };
            tracing.read("kube-apiserver").map_err(|error| error.to_string())
        };
        let found = read(&format!("{head}endpoint: collector:4317\nsamplingRatePerMillion: 100\n"))
            .expect("read")
            .expect("a file");
        assert_eq!((found.endpoint.as_str(), found.sampler.per_million), ("collector:4317", 100));
        assert_eq!(read(head).expect("read").expect("a file").endpoint, "localhost:4317");
        for (text, why) in [
            (format!("{head}samplingRatePerMillion: -1\n"), "must be positive"),
            (format!("{head}samplingRatePerMillion: 1000001\n"), "less than or equal to one million"),
            (format!("{head}samplingRate: 1\n"), "unknown field \"samplingRate\""),
            ("kind: Pod\n".to_owned(), "it is of kind Pod"),
        ] {
            let error = read(&text).expect_err("refused");
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(Tracing::default().read("x").expect("nothing"), None);
    }
}
