//! One HTTP GET, as probes and hooks make it: no pooling, no certificate check, no proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::types::core::v1::{Container, HTTPGetAction};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use stdx::{ClockExt, SharedClock};
use tokio::net::TcpStream;

use super::Answer;

/// How much of a body is read.
const MAX_BODY: usize = 10 << 10;
const MAX_REDIRECTS: usize = 10;

/// What to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    /// Path and query.
    pub path: String,
    pub headers: Vec<(String, String)>,
    /// As whom it asks unless a header says otherwise: `kube-probe`.
    pub agent: &'static str,
}

impl Get {
    /// The request that an action means for a container whose pod has the address `ip`.
    pub fn of(action: &HTTPGetAction, container: &Container, ip: &str) -> Result<Self, String> {
        let path = action.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/");
        Ok(Self {
            tls: action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
            host: action.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| ip.to_owned()),
            port: super::port(&action.port, container)?,
            path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
            headers: action.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect(),
            agent: "kube-probe",
        })
    }

    /// The host and port as URLs and dialling write them.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The URL as texts print it.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.path)
    }
}

/// A reply, as far as it is looked at.
struct Reply {
    status: u16,
    location: Option<String>,
    body: Bytes,
}

/// Asks; 200–399 is success, whatever does not answer in time a failure.
pub async fn probe(get: &Get, limit: Duration, clock: &SharedClock) -> Answer {
    // Boxed: the state of a TLS connection is large, and every task that may probe would carry it.
    match clock.timeout(limit, Box::pin(follow(get))).await {
        Ok(answer) => answer,
        Err(_) => {
            let why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
            Answer::Failure { text: format!("Get \"{}\": {why}", get.url()), refused: false }
        }
    }
}

/// Asks as a hook does: any reply is one. A server that answers TLS in plain text is asked in plain text.
pub async fn call(get: &Get, limit: Duration, clock: &SharedClock) -> Result<(), String> {
    let once = |get: Get| async move {
        let reply = clock.timeout(limit, Box::pin(ask(&get))).await;
        let late = || Failed { text: "context deadline exceeded".into(), refused: false, plain: false };
        reply.unwrap_or_else(|_| Err(late())).map(drop)
    };
    match once(get.clone()).await {
        Err(failed) if failed.plain => once(Get { tls: false, ..get.clone() }).await,
        other => other,
    }
    .map_err(|failed| format!("Get \"{}\": {}", get.url(), failed.text))
}

/// Replies that send elsewhere.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

async fn follow(first: &Get) -> Answer {
    let mut get = first.clone();
    for _ in 0..=MAX_REDIRECTS {
        let reply = match ask(&get).await {
            Ok(reply) => reply,
            Err(Failed { text, refused, .. }) => {
                return Answer::Failure { text: format!("Get \"{}\": {text}", get.url()), refused };
            }
        };
        let target = reply.location.as_deref().filter(|_| REDIRECTS.contains(&reply.status));
        match target.map(|to| redirect(&get, to)) {
            Some(Some(next)) if next.host == first.host => get = next,
            _ if (300..400).contains(&reply.status) => {
                let body = String::from_utf8_lossy(&reply.body).into_owned();
                return Answer::Warning(format!("Probe terminated redirects, Response body: {body}"));
            }
            _ if (200..300).contains(&reply.status) => return Answer::Success,
            _ => {
                let text = format!("HTTP probe failed with statuscode: {}", reply.status);
                return Answer::Failure { text, refused: false };
            }
        }
    }
    let text = format!("Get \"{}\": stopped after {MAX_REDIRECTS} redirects", get.url());
    Answer::Failure { text, refused: false }
}

/// Where a redirect leads; `None` when it cannot be told.
fn redirect(from: &Get, location: &str) -> Option<Get> {
    if location.starts_with('/') && !location.starts_with("//") {
        return Some(Get { path: location.to_owned(), ..from.clone() });
    }
    // A place beside where we are.
    let is_whole = location.split(['/', '?']).next().is_some_and(|start| start.contains(':'));
    if !is_whole && !location.starts_with("//") && !location.starts_with('#') {
        let here = from.path.split('?').next().unwrap_or_default();
        let folder = here.rsplit_once('/').map_or("", |(folder, _)| folder);
        let path = if location.starts_with('?') { format!("{here}{location}") } else { format!("{folder}/{location}") };
        return Some(Get { path, ..from.clone() });
    }
    let uri: http::Uri = location.parse().ok()?;
    let tls = uri.scheme_str()? == "https";
    Some(Get {
        tls,
        host: uri.host()?.trim_matches(['[', ']']).to_owned(),
        port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
        path: uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string),
        headers: from.headers.clone(),
        agent: from.agent,
    })
}

struct Failed {
    text: String,
    refused: bool,
    /// The server does not speak TLS.
    plain: bool,
}

fn failed(text: impl std::fmt::Display) -> Failed {
    Failed { text: text.to_string(), refused: false, plain: false }
}

fn handshake(error: std::io::Error) -> Failed {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let plain = matches!(inner, Some(rustls::Error::InvalidMessage(_)));
    Failed { plain, ..failed(error) }
}

async fn ask(get: &Get) -> Result<Reply, Failed> {
    let stream = dial(&get.host, get.port).await?;
    if get.tls {
        let name = rustls::pki_types::ServerName::try_from(get.host.clone()).map_err(failed)?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(transport::tls::trusting(None).map_err(failed)?));
        let stream = connector.connect(name, stream).await.map_err(handshake)?;
        exchange(get, TokioIo::new(stream)).await
    } else {
        exchange(get, TokioIo::new(stream)).await
    }
}

/// Opens a connection; errors read as Go's.
async fn dial(host: &str, port: u16) -> Result<TcpStream, Failed> {
    TcpStream::connect((host, port)).await.map_err(|error| {
        let refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
        Failed { text: super::dial_error(host, port, &error), refused, plain: false }
    })
}

async fn exchange<S>(get: &Get, io: TokioIo<S>) -> Result<Reply, Failed>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let gone = |error: hyper::Error| {
        let text = if error.is_incomplete_message() { "EOF".to_owned() } else { error.to_string() };
        failed(text)
    };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(gone)?;
    let mut request = http::Request::get(&get.path);
    let named = |name: &str| get.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    let host = get.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case("host"));
    if host.is_none_or(|(_, value)| value.is_empty()) {
        request = request.header("Host", get.authority());
    }
    if !named("user-agent") {
        request = request.header("User-Agent", format!("{}/1.37", get.agent));
    }
    if !named("accept") {
        request = request.header("Accept", "*/*");
    }
    request = request.header("Connection", "close");
    // One of these that is empty is not sent at all.
    let is_sent = |(name, value): &&(String, String)| {
        !value.is_empty() || !["accept", "user-agent", "host"].iter().any(|n| n.eq_ignore_ascii_case(name))
    };
    for (name, value) in get.headers.iter().filter(is_sent) {
        request = request.header(name, value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(failed)?;
    let answer = async {
        let reply = sender.send_request(request).await.map_err(gone)?;
        let status = reply.status().as_u16();
        let location = reply.headers().get("location").and_then(|v| v.to_str().ok()).map(str::to_owned);
        // A body that is too long is not read on; the status has said enough.
        let body = Limited::new(reply.into_body(), MAX_BODY).collect().await;
        Ok(Reply { status, location, body: body.map(|b| b.to_bytes()).unwrap_or_default() })
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        ended = connection => match ended {
            Ok(()) => answer.await,
            Err(error) => match futures::poll!(&mut answer) {
                std::task::Poll::Ready(answer) => answer,
                std::task::Poll::Pending => Err(gone(error)),
            },
        },
    }
}

/// Resolves nothing: true when the host is an address.
pub fn is_address(host: &str) -> bool {
    host.parse::<std::net::IpAddr>().is_ok() || host.parse::<SocketAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stdx::clock::RealClock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A server that gives each connection the next reply and keeps what it was asked.
    async fn server(replies: Vec<&'static str>) -> (u16, tokio::task::JoinHandle<Vec<String>>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let task = tokio::spawn(async move {
            let mut asked = Vec::new();
            for reply in replies {
                let (mut stream, _) = listener.accept().await.expect("accepted");
                let mut buffer = vec![0; 4096];
                let n = stream.read(&mut buffer).await.expect("read");
                asked.push(String::from_utf8_lossy(&buffer[..n]).into_owned());
                stream.write_all(reply.as_bytes()).await.expect("written");
            }
            asked
        });
        (port, task)
    }

    fn get(port: u16) -> Get {
        let action = serde_json::from_value(
            json!({"port": "web", "path": "ok?x=1", "httpHeaders": [{"name": "X-A", "value": "b"}]}),
        )
        .expect("an action");
        let container = serde_json::from_value(json!({"name": "c", "ports": [{"name": "web", "containerPort": port}]}))
            .expect("a container");
        Get::of(&action, &container, "127.0.0.1").expect("a request")
    }

    async fn answer(replies: Vec<&'static str>) -> (Answer, Vec<String>) {
        let (port, task) = server(replies).await;
        let clock = RealClock::shared();
        let answer = probe(&get(port), Duration::from_secs(5), &clock).await;
        (answer, task.await.expect("served"))
    }

    #[tokio::test]
    async fn replies_are_judged_by_their_status() {
        let (found, asked) = answer(vec!["HTTP/1.1 204 No Content\r\n\r\n"]).await;
        assert_eq!(found, Answer::Success);
        assert!(asked[0].starts_with("GET /ok?x=1 HTTP/1.1\r\n"), "{asked:?}");
        assert!(asked[0].to_lowercase().contains("user-agent: kube-probe/1.37") && asked[0].contains("b\r\n"));
        let (found, _) = answer(vec!["HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno"]).await;
        let text = "HTTP probe failed with statuscode: 503".to_owned();
        assert_eq!(found, Answer::Failure { text, refused: false });
        let (found, asked) =
            answer(vec!["HTTP/1.1 302 F\r\nLocation: /next\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"])
                .await;
        assert_eq!(found, Answer::Success);
        assert!(asked[1].starts_with("GET /next "));
        let (found, _) = answer(vec!["HTTP/1.1 302 F\r\nLocation: http://other/x\r\nContent-Length: 1\r\n\r\nb"]).await;
        assert_eq!(found, Answer::Warning("Probe terminated redirects, Response body: b".into()));
        let (found, _) = answer(vec!["HTTP/1.1 304 N\r\nLocation: /next\r\n\r\n"]).await;
        assert_eq!(found, Answer::Warning("Probe terminated redirects, Response body: ".into()));
    }

    #[test]
    fn where_a_redirect_leads() {
        let from = Get { path: "/a/b?c=d".into(), ..get(80) };
        let url = |location: &str| redirect(&from, location).map(|to| to.url());
        for (location, want) in [
            ("/x", Some("http://127.0.0.1:80/x")),
            ("x/y", Some("http://127.0.0.1:80/a/x/y")),
            ("?e", Some("http://127.0.0.1:80/a/b?e")),
            ("https://127.0.0.1/x?y", Some("https://127.0.0.1:443/x?y")),
            ("http://[::1]:81", Some("http://[::1]:81/")),
            ("//other/x", None),
        ] {
            assert_eq!(url(location).as_deref(), want, "{location}");
        }
    }

    #[tokio::test]
    async fn an_empty_header_takes_the_usual_one_away() {
        let (port, task) = server(vec!["HTTP/1.1 200 OK\r\n\r\n"]).await;
        let headers = ["Accept", "User-Agent", "Host"].map(|n| (n.to_owned(), String::new())).into();
        let get = Get { headers, ..get(port) };
        assert_eq!(probe(&get, Duration::from_secs(5), &RealClock::shared()).await, Answer::Success);
        let asked = task.await.expect("served").remove(0).to_lowercase();
        assert!(!asked.contains("accept:") && !asked.contains("user-agent:"), "{asked}");
        assert!(asked.contains(&format!("host: 127.0.0.1:{port}\r\n")), "{asked}");
    }

    #[tokio::test]
    async fn a_hook_takes_any_reply_and_plain_text_for_tls() {
        let clock = RealClock::shared();
        let (port, task) = server(vec!["HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"]).await;
        let hook = Get { agent: "kube-lifecycle", ..get(port) };
        assert_eq!(call(&hook, Duration::from_secs(5), &clock).await, Ok(()));
        assert!(task.await.expect("served")[0].to_lowercase().contains("user-agent: kube-lifecycle/1.37\r\n"));
        let refusal = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
        let (port, task) = server(vec![refusal, "HTTP/1.1 200 OK\r\n\r\n"]).await;
        let hook = Get { tls: true, ..get(port) };
        assert_eq!(call(&hook, Duration::from_secs(5), &clock).await, Ok(()));
        assert!(task.await.expect("served")[1].starts_with("GET /ok?x=1 "));
    }

    #[tokio::test]
    async fn nobody_there_is_told_as_go_tells_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let found = probe(&get(port), Duration::from_secs(5), &RealClock::shared()).await;
        let text =
            format!("Get \"http://127.0.0.1:{port}/ok?x=1\": dial tcp 127.0.0.1:{port}: connect: connection refused");
        assert_eq!(found, Answer::Failure { text, refused: true });
    }

    #[tokio::test]
    async fn silence_is_a_failure() {
        let (port, task) = server(vec![""]).await;
        let (get, clock) = (get(port), RealClock::shared());
        let (found, _) = tokio::join!(probe(&get, Duration::from_secs(5), &clock), task);
        let Answer::Failure { text, refused: false } = found else { panic!("{found:?}") };
        assert!(text.ends_with(": EOF"), "{text}");
    }
}
