//! Asking containers whether they have started, live and are ready.

pub mod grpc;
pub mod http;
pub mod prober;
pub mod threshold;

use std::sync::Arc;
use std::time::Duration;

use api::meta::util::intstr::IntOrString;
use api::types::core::v1::{Container, Probe};
use stdx::{ClockExt, SharedClock};

use crate::runtime::{Error, Runtime};

/// What came of asking once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Success,
    /// It answers, with something to remark.
    Warning(String),
    Failure {
        text: String,
        /// Nobody listens (yet).
        refused: bool,
    },
    /// The question itself failed.
    Error(String),
}

/// Everything a probe needs to ask one container.
#[derive(Clone)]
pub struct Target {
    pub probe: Probe,
    pub container: Container,
    pub container_id: String,
    /// The pod's address.
    pub ip: String,
}

impl Target {
    /// How long an answer may take.
    pub fn timeout(&self) -> Duration {
        seconds(self.probe.timeout_seconds, 1)
    }

    /// Asks once.
    pub async fn ask(&self, runtime: &Arc<dyn Runtime>, clock: &SharedClock) -> Answer {
        let limit = self.timeout();
        if let Some(action) = &self.probe.http_get {
            return match http::Get::of(action, &self.container, &self.ip) {
                Ok(get) => http::probe(&get, limit, clock).await,
                Err(text) => Answer::Error(text),
            };
        }
        if let Some(action) = &self.probe.tcp_socket {
            let host = action.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| self.ip.clone());
            return match port(&action.port, &self.container) {
                Ok(port) => tcp(&host, port, limit, clock).await,
                Err(text) => Answer::Error(text),
            };
        }
        if let Some(action) = &self.probe.exec {
            let command = action.command.clone().unwrap_or_default();
            return exec(runtime, &self.container_id, &command, limit, clock).await;
        }
        if let Some(action) = &self.probe.grpc {
            let service = action.service.as_deref().unwrap_or_default();
            let Ok(port) = u16::try_from(action.port) else { return Answer::Error("invalid port".into()) };
            return grpc::probe(&self.ip, port, service, limit, clock).await;
        }
        Answer::Error("missing probe handler".into())
    }
}

/// A positive number of seconds, or the default.
pub fn seconds(value: Option<i32>, default: u64) -> Duration {
    Duration::from_secs(value.and_then(|v| u64::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(default))
}

/// The port an action means: a number, or the name of one of the container's ports.
pub fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let ports = container.ports.as_deref().unwrap_or_default();
            let named = ports.iter().find(|p| p.name.as_deref() == Some(name)).map(|p| p.container_port);
            named.or_else(|| name.parse().ok())
        }
    };
    let number = number.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
    number.ok_or_else(|| match port {
        IntOrString::Int(n) => format!("invalid port number: {n}"),
        IntOrString::String(name) => format!("couldn't find port: {name}"),
    })
}

/// A failed connection as Go words it.
pub fn dial_error(host: &str, port: u16, error: &std::io::Error) -> String {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    let place = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    match error.kind() {
        ConnectionRefused => format!("dial tcp {place}: connect: connection refused"),
        HostUnreachable => format!("dial tcp {place}: connect: no route to host"),
        NetworkUnreachable => format!("dial tcp {place}: connect: network is unreachable"),
        TimedOut => format!("dial tcp {place}: i/o timeout"),
        _ if !http::is_address(host) => format!("dial tcp: lookup {host}: no such host"),
        _ => format!("dial tcp {place}: {error}"),
    }
}

async fn tcp(host: &str, port: u16, limit: Duration, clock: &SharedClock) -> Answer {
    match clock.timeout(limit, tokio::net::TcpStream::connect((host, port))).await {
        Ok(Ok(_)) => Answer::Success,
        Ok(Err(error)) => {
            let refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
            Answer::Failure { text: dial_error(host, port, &error), refused }
        }
        Err(_) => {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            Answer::Failure { text: dial_error(host, port, &late), refused: false }
        }
    }
}

/// How much of a command's output an answer quotes.
const MAX_OUTPUT: usize = 10 << 10;

async fn exec(
    runtime: &Arc<dyn Runtime>,
    id: &str,
    command: &[String],
    limit: Duration,
    clock: &SharedClock,
) -> Answer {
    let late = || {
        let text = format!(
            "command timed out: \"{}\" timed out after {}",
            command.join(" "),
            crate::image::policy::go_duration(limit)
        );
        Answer::Failure { text, refused: false }
    };
    // The runtime ends the command itself; our own limit is for a runtime that does not.
    let output = clock.timeout(limit + Duration::from_secs(2), runtime.exec(id, command, limit)).await;
    match output {
        Err(_) | Ok(Err(Error::DeadlineExceeded(_))) => late(),
        Ok(Err(error)) => Answer::Error(error.to_string()),
        Ok(Ok(output)) if output.exit_code == 0 => Answer::Success,
        Ok(Ok(output)) => {
            let mut bytes = output.stdout;
            bytes.extend_from_slice(&output.stderr);
            bytes.truncate(MAX_OUTPUT);
            Answer::Failure { text: String::from_utf8_lossy(&bytes).into_owned(), refused: false }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_by_number_and_name() {
        let container = serde_json::from_value(json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}))
            .expect("json");
        let of = |value| port(&serde_json::from_value(value).expect("a port"), &container);
        assert_eq!(of(json!(80)), Ok(80));
        assert_eq!(of(json!("web")), Ok(8080));
        assert_eq!(of(json!("81")), Ok(81));
        assert_eq!(of(json!("none")), Err("couldn't find port: none".into()));
        assert_eq!(of(json!(70_000)), Err("invalid port number: 70000".into()));
    }
}
