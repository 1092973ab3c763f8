//! Asking the runtime's streaming server, on a connection that serves one stream.

use std::time::Duration;

use http::header::{CONNECTION, HOST, HeaderName, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use stdx::{ClockExt, SharedClock};
use transport::once::{self, Tcp};
use transport::{Request, Response};

use super::Refused;

/// How long the runtime may take to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// How much of a refusal is read.
const MAX_REFUSAL: usize = 2048;
/// Which protocols are spoken on the streams.
pub const VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// How the runtime is asked.
pub struct Asked {
    pub method: Method,
    pub headers: HeaderMap,
}

/// For SPDY with this protocol on its streams.
pub fn spdy(protocol: &'static str) -> Asked {
    let headers = [
        (CONNECTION, HeaderValue::from_static("Upgrade")),
        (UPGRADE, HeaderValue::from_static("SPDY/3.1")),
        (VERSION, HeaderValue::from_static(protocol)),
    ];
    Asked { method: Method::POST, headers: headers.into_iter().collect() }
}

/// What a client's headers say about what it wants to speak, and nothing else of them.
pub fn about_upgrade(headers: &HeaderMap) -> HeaderMap {
    let mut out = HeaderMap::new();
    for (name, value) in headers {
        if *name == UPGRADE || *name == VERSION || name.as_str().starts_with("sec-websocket-") {
            out.append(name.clone(), value.clone());
        }
    }
    out.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    out
}

/// Asks at the place that the runtime has named; gives its 101.
///
/// # Errors
/// When it cannot be reached, or answers otherwise: then with what it says.
pub async fn ask(url: &str, asked: Asked, clock: &SharedClock) -> Result<Response, Refused> {
    let strange = || Refused::internal(format!("the runtime has named no place that is understood: {url}"));
    let uri: Uri = url.parse().map_err(|_| strange())?;
    let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(strange)?.as_str();
    let address = if uri.port().is_some() { authority.to_owned() } else { format!("{authority}:80") };
    let mut request: Request = http::Request::new(transport::empty());
    *request.method_mut() = asked.method;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse().map_err(|_| strange())?;
    *request.headers_mut() = asked.headers;
    request.headers_mut().insert(HOST, HeaderValue::from_str(authority).map_err(|_| strange())?);
    let failed = |error: transport::Error| Refused::internal(format!("error dialing backend: {error}"));
    let answer = async {
        let io = once::connect(&Tcp, &address, None, clock).await.map_err(failed)?;
        once::send(io, request).await.map_err(failed)
    };
    let late = |_| Refused::internal("error dialing backend: i/o timeout");
    let response = clock.timeout(ANSWER, answer).await.map_err(late)??;
    let status = response.status();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response);
    }
    let why = clock.timeout(ANSWER, transport::read(response.into_body(), MAX_REFUSAL)).await;
    let why = String::from_utf8_lossy(&why.ok().and_then(Result::ok).unwrap_or_default()).into_owned();
    // Nobody is sent elsewhere.
    let refused = status.is_client_error() || status.is_server_error();
    Err(Refused::new(if refused { status } else { StatusCode::INTERNAL_SERVER_ERROR }, why))
}
