//! `/version`: the Kubernetes version that is spoken, and ours.

use transport::Response;

use crate::encode;

/// Answers for a version text like `v1.37.1+pintle.0.1.0`.
pub fn respond(version: &str) -> Response {
    let mut numbers = version.trim_start_matches('v').split(['.', '+', '-']);
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let before = minor.parse::<u32>().map(|n| n.saturating_sub(1).to_string()).unwrap_or_default();
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let fields = [
        ("major", major),
        ("minor", minor),
        ("emulationMajor", major),
        ("emulationMinor", minor),
        ("minCompatibilityMajor", major),
        ("minCompatibilityMinor", &before),
        ("gitVersion", version),
        ("gitCommit", ""),
        ("gitTreeState", "clean"),
        ("buildDate", "1970-01-01T00:00:00Z"),
        ("goVersion", ""),
        ("compiler", "rustc"),
        ("platform", &format!("{}/{machine}", std::env::consts::OS)),
    ];
    let lines: Vec<String> = fields.iter().map(|(k, v)| format!("  \"{k}\": {}", encode::json::quoted(v))).collect();
    encode::with_type(200, "application/json", format!("{{\n{}\n}}", lines.join(",\n")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn clients_find_major_and_minor() {
        let body = respond("v1.37.1+pintle.0.1.0").into_body().collect().await.expect("body").to_bytes();
        let value: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!((&value["major"], &value["minor"]), (&"1".into(), &"37".into()));
        assert_eq!(value["gitVersion"], "v1.37.1+pintle.0.1.0");
        assert_eq!(value["minCompatibilityMinor"], "36");
    }
}
