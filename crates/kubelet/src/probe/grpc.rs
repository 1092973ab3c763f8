//! The gRPC health question: one unary call of `grpc.health.v1.Health/Check`.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use stdx::{ClockExt, SharedClock};
use tokio::net::TcpStream;

use super::Answer;

/// Asks whether `service` (empty: the server as a whole) is serving.
pub async fn probe(host: &str, port: u16, service: &str, limit: Duration, clock: &SharedClock) -> Answer {
    let place = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let within = crate::image::policy::go_duration(limit);
    let fail = |text: String, refused: bool| Answer::Failure { text, refused };
    let stream = match clock.timeout(limit, TcpStream::connect((host, port))).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            let refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
            let why = super::dial_error(host, port, &error);
            return fail(format!("error: failed to connect service at \"{place}\": {why}"), refused);
        }
        Err(_) => {
            let why = "context deadline exceeded";
            return fail(format!("timeout: failed to connect service \"{place}\" within {within}: {why}"), false);
        }
    };
    match clock.timeout(limit, check(stream, &place, service)).await {
        Ok(Ok(Checked::Status(1))) => Answer::Success,
        Ok(Ok(Checked::Status(status))) => {
            let name =
                ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"].get(status as usize).unwrap_or(&"UNKNOWN");
            fail(format!("service unhealthy (responded with \"{name}\")"), false)
        }
        Ok(Ok(Checked::Refused(12, message))) => fail(
            format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
            ),
            false,
        ),
        Ok(Ok(Checked::Refused(_, message))) | Ok(Err(message)) => {
            fail(format!("error: health rpc probe failed: {message}"), false)
        }
        Err(_) => fail(format!("timeout: health rpc did not complete within {within}"), false),
    }
}

enum Checked {
    /// What the server says of the service.
    Status(u64),
    /// gRPC's code and message.
    Refused(u32, String),
}

async fn check(stream: TcpStream, place: &str, service: &str) -> Result<Checked, String> {
    let text = |error: hyper::Error| error.to_string();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(text)?;
    let request = http::Request::post(format!("http://{place}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "kube-probe/1.37")
        .body(Full::new(Bytes::from(message(service))))
        .map_err(|e| e.to_string())?;
    let answer = async {
        let reply = sender.send_request(request).await.map_err(text)?;
        let head = reply.headers().clone();
        let body = reply.into_body().collect().await.map_err(text)?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        let bytes = body.to_bytes();
        let field = |name: &str| {
            let value = trailers.get(name).or_else(|| head.get(name));
            value.and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
        };
        match field("grpc-status").parse::<u32>() {
            Ok(0) | Err(_) => Ok(Checked::Status(status(&bytes))),
            Ok(code) => Ok(Checked::Refused(code, field("grpc-message"))),
        }
    };
    tokio::select! {
        answer = answer => answer,
        ended = connection => Err(ended.err().map_or_else(|| "EOF".to_owned(), |e| e.to_string())),
    }
}

/// `HealthCheckRequest{service = 1}` in gRPC's frame.
fn message(service: &str) -> Vec<u8> {
    let mut inner = Vec::new();
    if !service.is_empty() {
        inner.push(0x0a);
        varint(service.len() as u64, &mut inner);
        inner.extend_from_slice(service.as_bytes());
    }
    let mut out = vec![0];
    out.extend_from_slice(&u32::try_from(inner.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(&inner);
    out
}

fn varint(mut n: u64, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push((n as u8 & 0x7f) | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// `HealthCheckResponse{status = 1}`; a field that is not there is 0.
fn status(frame: &[u8]) -> u64 {
    match frame.get(5..) {
        Some([0x08, n, ..]) if *n < 0x80 => u64::from(*n),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames() {
        assert_eq!(message(""), [0, 0, 0, 0, 0]);
        assert_eq!(message("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(message(&"x".repeat(200))[5..8], [0x0a, 0xc8, 0x01]);
        assert_eq!(status(&[0, 0, 0, 0, 2, 8, 2]), 2);
        assert_eq!(status(&[0, 0, 0, 0, 0]), 0);
        assert_eq!(status(b""), 0);
    }
}
