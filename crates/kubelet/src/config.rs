//! A file of kind `KubeletConfiguration`, as far as this kubelet goes by it. What it does not know it
//! refuses: a setting that does nothing is worse than none.

use std::time::Duration;

use serde::Deserialize;

/// What a file can say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileConfig {
    /// `crashLoopBackOff.maxContainerRestartPeriod`.
    pub max_container_restart_period: Option<Duration>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Raw {
    api_version: String,
    kind: String,
    #[serde(default)]
    crash_loop_back_off: CrashLoopBackOff,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CrashLoopBackOff {
    max_container_restart_period: Option<String>,
}

/// Reads a file's text, YAML or JSON.
pub fn parse(text: &[u8]) -> Result<FileConfig, String> {
    let tree = machinery::yaml::read(text).map_err(|e| e.to_string())?;
    let raw: Raw = serde_json::from_value(tree).map_err(|e| e.to_string())?;
    let (version, kind) = ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration");
    if raw.api_version != version || raw.kind != kind {
        return Err(format!("it is of kind {} in {}, not {kind} in {version}", raw.kind, raw.api_version));
    }
    let period = raw.crash_loop_back_off.max_container_restart_period;
    let period = match period {
        None => None,
        Some(text) => {
            let nanos = machinery::time::read_duration(&text)?;
            let found = Duration::from_nanos(u64::try_from(nanos).unwrap_or(0));
            if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&found) {
                return Err(format!(
                    "crashLoopBackOff.maxContainerRestartPeriod (got: {text}) must be between 1s and 300s"
                ));
            }
            Some(found)
        }
    };
    Ok(FileConfig { max_container_restart_period: period })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_says() {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let of = |rest: &str| parse(format!("{head}{rest}").as_bytes()).map(|c| c.max_container_restart_period);
        let period = |text: &str| of(&format!("crashLoopBackOff: {{maxContainerRestartPeriod: {text}}}"));
        assert_eq!(of(""), Ok(None));
        assert_eq!(period("1m30s"), Ok(Some(Duration::from_secs(90))));
        for (found, part) in [
            (period("500ms"), "must be between 1s and 300s"),
            (period("10m"), "must be between 1s and 300s"),
            (period("soon"), "soon"),
            (of("maxPods: 3"), "unknown field `maxPods`"),
            (of("crashLoopBackOff: {other: 1}"), "unknown field `other`"),
            (parse(b"apiVersion: v1\nkind: Pod\n").map(|_| None), "it is of kind Pod in v1"),
            (parse(b"{").map(|_| None), ""),
        ] {
            let why = found.expect_err("refused");
            assert!(why.contains(part), "{part:?} in {why}");
        }
    }
}
