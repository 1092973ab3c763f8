//! What a file says of how the kubelet is observed: its log and its traces.

use super::reader::Reader;

/// `logging`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logging {
    /// `text` or `json`.
    pub format: Option<String>,
    pub verbosity: Option<i32>,
    /// `vmodule`: patterns of names, and a verbosity each.
    pub modules: Vec<(String, i32)>,
}

/// `tracing`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracing {
    /// Where traces go.
    pub endpoint: Option<String>,
    /// How many of a million are told.
    pub per_million: u32,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Module {
    file_pattern: String,
    verbosity: i32,
}

/// Takes `logging`. How lines are held back and split is not there: they are not.
pub(super) fn logging(file: &mut Reader) -> Result<Logging, String> {
    let Some(mut logging) = file.object("logging")? else { return Ok(Logging::default()) };
    let format = logging.text("format")?;
    if let Some(format) = format.as_ref().filter(|format| !["text", "json"].contains(&format.as_str())) {
        return Err(format!("logging.format (got: {format:?}) must be text or json"));
    }
    let modules: Vec<Module> = logging.typed("vmodule")?.unwrap_or_default();
    if modules.iter().any(|module| module.file_pattern.is_empty() || module.verbosity < 0) {
        return Err("logging.vmodule: a pattern must not be empty, nor its verbosity negative".to_owned());
    }
    // Nothing waits, so that nothing is to be flushed: a time in Go's words, or its nanoseconds.
    let _: Option<serde_json::Value> = logging.typed("flushFrequency")?;
    logging.only("options", &[""])?;
    let found = Logging {
        format,
        // As upstream, nought is what is so when nothing is said.
        verbosity: logging.number("verbosity", 0..=i64::from(i32::MAX))?.filter(|verbosity| *verbosity > 0),
        modules: modules.into_iter().map(|module| (module.file_pattern, module.verbosity)).collect(),
    };
    logging.end()?;
    Ok(found)
}

/// Takes `tracing`.
pub(super) fn tracing(file: &mut Reader) -> Result<Option<Tracing>, String> {
    let Some(mut tracing) = file.object("tracing")? else { return Ok(None) };
    let (endpoint, rate) = (tracing.text("endpoint")?, tracing.number("samplingRatePerMillion", 0..=1_000_000)?);
    tracing.end()?;
    Ok((endpoint.is_some() || rate.is_some()).then(|| Tracing { endpoint, per_million: rate.unwrap_or_default() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FileConfig, parse};

    fn of(rest: &str) -> Result<FileConfig, String> {
        parse(format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{rest}").as_bytes())
    }

    #[test]
    fn logs_and_traces_are_read() {
        let file = of(
            "logging: {format: json, verbosity: 4, flushFrequency: 5s, vmodule: [{filePattern: st*, verbosity: 6}]}\n\
             tracing: {endpoint: 'collector:4317', samplingRatePerMillion: 100}\n",
        )
        .expect("a file");
        assert_eq!((file.logging.format.as_deref(), file.logging.verbosity), (Some("json"), Some(4)));
        assert_eq!(file.logging.modules, [("st*".to_owned(), 6)]);
        assert_eq!(file.tracing, Some(Tracing { endpoint: Some("collector:4317".into()), per_million: 100 }));
        assert_eq!(of("logging: {flushFrequency: 0, verbosity: 0}\ntracing: {}"), Ok(FileConfig::default()));
        assert_eq!(of("tracing: {samplingRatePerMillion: 0}").map(|f| f.tracing), Ok(Some(Tracing::default())));
    }
}
