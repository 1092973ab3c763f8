//! Manifests behind an URL: fetched now and then.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, LOCATION};
use http::uri::Scheme;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use machinery::decode::MAX_BYTES;
use stdx::{ClockExt, SharedClock};
use transport::once::{self, Secure, Tcp};
use transport::trust::Trust;
use transport::{Request, tls};

/// How long one answer may take, redirections and all.
const LIMIT: Duration = Duration::from_secs(10);
const MAX_REDIRECTS: usize = 10;
/// Where distributions keep the authorities that this machine believes.
const AUTHORITIES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// What is asked for, and how.
#[derive(Clone, Debug)]
pub struct Url {
    uri: Uri,
    headers: HeaderMap,
}

impl Url {
    /// `http://…` or `https://…` with headers as `--manifest-url-header` gives them: `name:value`.
    pub fn parse(text: &str, headers: &[String]) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|e| format!("{text}: {e}"))?;
        let is_http = uri.scheme() == Some(&Scheme::HTTP) || uri.scheme() == Some(&Scheme::HTTPS);
        if !is_http || uri.host().is_none_or(str::is_empty) {
            return Err(format!("{text}: neither http://HOST/… nor https://HOST/…"));
        }
        let mut map = HeaderMap::new();
        for header in headers.iter().filter(|h| !h.trim().is_empty()) {
            let (name, value) = header.split_once(':').ok_or(format!("{header}: not of the form name:value"))?;
            let name: HeaderName = name.trim().parse().map_err(|e| format!("{header}: {e}"))?;
            let value: HeaderValue = value.trim().parse().map_err(|e| format!("{header}: {e}"))?;
            map.append(name, value);
        }
        Ok(Self { uri, headers: map })
    }

    /// The URL as manifests of it are named.
    pub fn text(&self) -> String {
        self.uri.to_string()
    }

    /// Fetches it.
    ///
    /// # Errors
    /// For anything but a body with status 200.
    pub async fn fetch(&self, clock: &SharedClock) -> Result<Bytes, String> {
        match clock.timeout(LIMIT, self.follow(clock)).await {
            Ok(done) => done,
            Err(_) => Err(format!("no answer within {} s", LIMIT.as_secs())),
        }
    }

    async fn follow(&self, clock: &SharedClock) -> Result<Bytes, String> {
        let mut uri = self.uri.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = Request::new(transport::empty());
            *request.method_mut() = Method::GET;
            // What may be a password goes to the host it was meant for only.
            if uri.authority() == self.uri.authority() {
                *request.headers_mut() = self.headers.clone();
            }
            let response = self::send(&uri, request, clock).await?;
            let (status, location) = (response.status(), response.headers().get(LOCATION).cloned());
            if let Some(location) = location.filter(|_| status.is_redirection()) {
                uri = redirect(&uri, &location).ok_or("it redirects to what is no URL")?;
                continue;
            }
            if status != StatusCode::OK {
                return Err(format!("{uri}: {status}"));
            }
            return transport::read(response.into_body(), MAX_BYTES).await.map_err(|e| e.to_string());
        }
        Err(format!("stopped after {MAX_REDIRECTS} redirects"))
    }
}

/// Where a redirection leads.
fn redirect(from: &Uri, location: &HeaderValue) -> Option<Uri> {
    let text = location.to_str().ok()?;
    let to: Uri = text.parse().ok()?;
    if to.scheme().is_some() {
        let is_http = to.scheme() == Some(&Scheme::HTTP) || to.scheme() == Some(&Scheme::HTTPS);
        return (is_http && to.host().is_some()).then_some(to);
    }
    let path = if text.starts_with('/') {
        text.to_owned()
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{folder}/{text}")
    };
    Uri::builder().scheme(from.scheme()?.clone()).authority(from.authority()?.clone()).path_and_query(path).build().ok()
}

async fn send(uri: &Uri, mut request: Request, clock: &SharedClock) -> Result<transport::Response, String> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_secure = uri.scheme() == Some(&Scheme::HTTPS);
    let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    *request.uri_mut() = uri.path_and_query().map_or("/", |p| p.as_str()).parse().map_err(|e| format!("{uri}: {e}"))?;
    let authority = uri.authority().map(|a| a.as_str().rsplit('@').next().unwrap_or_default().to_owned());
    let authority = HeaderValue::from_str(&authority.unwrap_or_default()).map_err(|e| format!("{uri}: {e}"))?;
    request.headers_mut().insert(HOST, authority);
    let config = if is_secure { Some(believing(clock).await?) } else { None };
    let secure = config.as_ref().map(|config| Secure { config, server_name: host });
    let io = once::connect(&Tcp, &address, secure, clock).await.map_err(|e| e.to_string())?;
    once::send(io, request).await.map_err(|e| e.to_string())
}

/// TLS that believes whom this machine believes.
async fn believing(clock: &SharedClock) -> Result<rustls::ClientConfig, String> {
    let read = || {
        let path = AUTHORITIES.iter().map(Path::new).find(|p| p.is_file());
        Trust::file(path.ok_or("this machine believes no certificate authority")?).map_err(|e| e.to_string())
    };
    let trust = crate::context::blocking(read).await.map_err(|e| e.to_string())??;
    tls::client(clock, trust, None).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdx::clock::RealClock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[test]
    fn urls_and_headers() {
        let rows = [
            ("http://h/x", "", Ok("http://h/x")),
            ("https://h:8443/x?y=1", "a:b", Ok("https://h:8443/x?y=1")),
            ("ftp://h/x", "", Err("ftp://h/x: neither http://HOST/… nor https://HOST/…")),
            ("/x", "", Err("/x: neither http://HOST/… nor https://HOST/…")),
            ("http://h/x", "nonsense", Err("nonsense: not of the form name:value")),
        ];
        for (text, header, want) in rows {
            let got = Url::parse(text, &[header.to_owned()]).map(|u| u.text());
            assert_eq!(got.as_deref().map_err(String::as_str), want, "{text}");
        }
        let from: Uri = "http://h:1/a/b".parse().expect("an URL");
        for (to, want) in [("/c", "http://h:1/c"), ("c", "http://h:1/a/c"), ("https://i/x", "https://i/x")] {
            let got = redirect(&from, &HeaderValue::from_static(to)).map(|u| u.to_string());
            assert_eq!(got.as_deref(), Some(want), "{to}");
        }
        assert_eq!(redirect(&from, &HeaderValue::from_static("file:///etc/passwd")), None);
    }

    /// Answers each request with what `answer` makes of it.
    async fn serve(answer: fn(&str) -> String) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut text = Vec::new();
                while !text.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    if stream.read_exact(&mut byte).await.is_err() {
                        break;
                    }
                    text.push(byte[0]);
                }
                let answer = answer(&String::from_utf8_lossy(&text));
                // The client may have seen enough.
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        port
    }

    #[tokio::test]
    async fn bodies_are_fetched_with_headers_and_over_redirections() {
        let port = serve(|request| {
            let body = |text: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
            match request.split(' ').nth(1) {
                Some("/moved") => "HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n".into(),
                Some("/there") if request.contains("x-key: secret") => body("pods"),
                Some("/round") => "HTTP/1.1 302 Found\r\nLocation: /round\r\nContent-Length: 0\r\n\r\n".into(),
                Some("/elsewhere") => {
                    let port = request.lines().find_map(|l| l.strip_prefix("host: 127.0.0.1:")).unwrap_or("1");
                    format!(
                        "HTTP/1.1 302 Found\r\nLocation: http://localhost:{port}/there\r\nContent-Length: 0\r\n\r\n"
                    )
                }
                _ => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".into(),
            }
        })
        .await;
        let clock = RealClock::shared();
        let fetch = |path: &str| {
            let url = Url::parse(&format!("http://127.0.0.1:{port}{path}"), &["X-Key: secret".into()]).expect("an URL");
            let clock = clock.clone();
            async move { url.fetch(&clock).await.map(|b| String::from_utf8_lossy(&b).into_owned()) }
        };
        assert_eq!(fetch("/moved").await.as_deref(), Ok("pods"));
        assert!(fetch("/none").await.expect_err("no body").contains("404"));
        assert!(fetch("/round").await.expect_err("no body").contains("10 redirects"));
        let elsewhere = fetch("/elsewhere").await;
        assert!(elsewhere.as_ref().is_err_and(|e| !e.contains("pods")), "no header goes elsewhere: {elsewhere:?}");
    }
}
