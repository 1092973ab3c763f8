//! `GET /`: every path the server answers to outside resources, sorted.

use std::collections::BTreeSet;

use crate::chain::Call;
use crate::encode;

/// Answers.
pub fn respond(call: &Call) -> transport::Response {
    let server = &call.server;
    let mut paths: BTreeSet<String> = [
        "/.well-known/openid-configuration",
        "/api",
        "/apis",
        "/apis/",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/",
        "/openid/v1/jwks",
        "/version",
    ]
    .map(str::to_owned)
    .into();
    for (group, versions) in server.discovery.group_versions() {
        let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
        paths.extend(versions.iter().map(|version| format!("{root}/{version}")));
        paths.insert(root);
    }
    for endpoint in ["healthz", "livez", "readyz"] {
        paths.insert(format!("/{endpoint}"));
        let checks = server.health.checks.iter().filter(|c| endpoint == "readyz" || !c.ready_only);
        paths.extend(checks.map(|check| format!("/{endpoint}/{}", check.name)));
    }
    let lines: Vec<String> = paths.iter().map(|path| format!("    {}", encode::json::quoted(path))).collect();
    encode::with_type(200, "application/json", format!("{{\n  \"paths\": [\n{}\n  ]\n}}", lines.join(",\n")))
}
