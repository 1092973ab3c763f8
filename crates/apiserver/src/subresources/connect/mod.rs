//! What is passed on: to kubelets (exec, attach, port-forward, `nodes/proxy`), to pods and to Services. One
//! connection a request, which is used for nothing else; no redirect is followed.
//!
//! ```text
//!  POST pods/web/exec, Upgrade ─► https://node:10250/exec/…  (the node's own certificate) ─► 101, bytes both ways
//!  GET  pods/web/proxy/x       ─► http://pod:port/x
//!  GET  services/web:http/proxy/x ─► http://endpoint:port/x
//!  any  /apis/GROUP/VERSION/…  ─► https://service:port/apis/GROUP/VERSION/…  (in the name of who asks)
//! ```

pub mod front_proxy;
mod links;
pub mod pod_stream;
pub mod proxy;

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, HeaderName, LOCATION, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Method};
use kinds::User;
use machinery::status::{self, Status};
use transport::once::{self, Secure};
use transport::splice::Patience;
use transport::websocket::{self, Takeover};
use transport::{Error, Request, Response};

use crate::chain::Call;

/// Headers that are about one connection.
const HOP: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Where a request goes.
pub struct Destination<'a> {
    /// `host:port`.
    pub address: String,
    pub secure: Option<Secure<'a>>,
    /// Path and query, as they are sent.
    pub path: String,
    /// Only a request that wants to be upgraded makes sense there.
    pub upgrade_only: bool,
    /// The path of this server under which the destination's own paths are reached.
    pub prefix: Option<String>,
    /// In whose name the request is passed on, for those who believe this server about that.
    pub user: Option<&'a User>,
    /// The node whose kubelet it is: one of this process gets the client's connection itself.
    pub node: Option<&'a str>,
}

/// True when a request wants to become something else.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    let mut words = lines.flat_map(|line| line.split(','));
    words.any(|word| word.trim().eq_ignore_ascii_case("upgrade")) && headers.contains_key(UPGRADE)
}

/// A GET that opens a WebSocket does what a POST does: who may only read may not.
///
/// # Errors
/// 403.
pub async fn authorize_upgrade(call: &Call) -> status::Result<()> {
    if call.info.verb == "get" && (websocket::is_asked(&call.headers) || is_upgrade(&call.headers)) {
        call.authorize("create").await?;
    }
    Ok(())
}

/// What follows such a request belongs to it: after an upgrade it would be taken for the new protocol's.
fn has_body(headers: &HeaderMap) -> bool {
    let lengths = headers.get_all(CONTENT_LENGTH).iter();
    headers.contains_key(TRANSFER_ENCODING) || lengths.into_iter().any(|length| length != "0")
}

/// The headers of the request that is passed on.
fn passed_on(call: &Call, to: &Destination<'_>, upgrade: bool) -> status::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    let named: Vec<String> = call
        .headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .map(|word| word.trim().to_ascii_lowercase())
        .collect();
    for (name, value) in &call.headers {
        let of_connection = HOP.contains(&name.as_str()) || named.iter().any(|n| n == name.as_str());
        // Whom the client is to us is nobody else's business.
        let is_about_user = front_proxy::is_about_user(name) || call.server.front_proxy_headers().has(name);
        if !of_connection && *name != HOST && *name != AUTHORIZATION && !is_about_user {
            headers.append(name.clone(), value.clone());
        }
    }
    if upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.extend(call.headers.get(UPGRADE).map(|value| (UPGRADE, value.clone())));
    }
    headers.extend(HeaderValue::from_str(&to.address).ok().map(|host| (HOST, host)));
    call.trace.pass_on(&mut headers);
    if to.prefix.is_some() {
        // Said by us, not by the client.
        let set = |headers: &mut HeaderMap, name: &'static str, value: &str| {
            headers.remove(name);
            headers.extend(HeaderValue::from_str(value).ok().map(|value| (HeaderName::from_static(name), value)));
        };
        set(&mut headers, "x-forwarded-uri", call.uri.path());
        if let Some(host) = call.header(HOST).map(str::to_owned) {
            set(&mut headers, "x-forwarded-host", &host);
        }
        set(&mut headers, "x-forwarded-proto", "https");
    }
    if let Some(user) = to.user {
        front_proxy::speak_for(&mut headers, user)?;
    }
    Ok(headers)
}

/// Passes the request on, and the answer back.
///
/// # Errors
/// 400 for a request that is not upgraded where it must be, 500 and 503 when nobody is reached.
pub async fn pass(call: &Call, to: Destination<'_>) -> status::Result<Response> {
    let upgrade = is_upgrade(&call.headers);
    if upgrade && has_body(&call.headers) {
        return Err(Status::bad_request("a request to upgrade the connection cannot have a body"));
    }
    let takeover = call.takeover.as_ref().filter(|_| upgrade);
    if (to.upgrade_only || upgrade) && takeover.is_none() {
        return Err(Status::bad_request("Upgrade request required"));
    }
    let failed = |error: Error| match (upgrade, error) {
        (true, error) => Status::new(500, "", format!("error dialing backend: {error}")),
        (false, error) => Status::unavailable(format!("error trying to reach service: {error}")),
    };
    let headers = passed_on(call, &to, upgrade)?;
    let body = if upgrade { None } else { call.stream.lock().take() };
    let mut request: Request = http::Request::new(body.unwrap_or_else(transport::empty));
    *request.method_mut() = call.method.clone();
    *request.uri_mut() = to.path.parse().map_err(Status::internal)?;
    *request.headers_mut() = headers;
    if let (Some(node), Some(takeover)) = (to.node, takeover) {
        request = match nearby(call, node, takeover, request) {
            Ok(answered) => return taken_over(call, takeover, answered.await.map_err(failed)?),
            Err(request) => *request,
        };
    }
    let io = once::connect(call.server.dialer(), &to.address, to.secure, &call.server.clock).await.map_err(failed)?;
    let mut response = once::send(io, request).await.map_err(failed)?;
    let spliced = takeover.and_then(|takeover| Some((takeover, once::upgraded(takeover, &mut response)?)));
    if let Some((takeover, spliced)) = spliced {
        let (slot, stopped) = (call.slot.lock().take(), call.server.stopped());
        let clock = call.server.clock.clone();
        // How long a stream may be silent is for who serves it to say: a kubelet, by its own setting. Here it ends
        // with either of its ends, also with one whose host has vanished.
        let patience = Patience { idle: None, ..Patience::default() };
        call.server.stage().spawn(async move {
            tokio::select! {
                () = stopped => {}
                () = spliced.run(patience, &clock) => {}
            }
            drop(slot);
        });
        if to.node.is_some() {
            count(call, "network");
        }
        return Ok(switched(response, takeover));
    }
    if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
        return Err(Status::new(500, "", "the server switched protocols without being asked to"));
    }
    let place = to.prefix.map(|prefix| links::Place {
        prefix,
        hosts: [Some(to.address), call.header(HOST).map(str::to_owned)].into_iter().flatten().collect(),
    });
    Ok(returned(response, &call.method, place.as_ref()))
}

/// Asks the node's kubelet, if it is in this process: as the same user as over the network, with the same checks.
fn nearby(
    call: &Call,
    node: &str,
    takeover: &Takeover,
    request: Request,
) -> Result<transport::Responding, Box<Request>> {
    match (call.server.kubelet_nearby(), call.server.kubelet_client()) {
        (Some(near), Some(caller)) => near.call(node, request, caller, takeover),
        _ => Err(Box::new(request)),
    }
}

/// What a kubelet of this process has answered, which serves the client's own connection from now on if it has
/// switched protocols, and ends what it serves before this server does.
fn taken_over(call: &Call, takeover: &Takeover, response: Response) -> status::Result<Response> {
    if response.status() != http::StatusCode::SWITCHING_PROTOCOLS {
        return Ok(returned(response, &call.method, None));
    }
    takeover.keep(call.slot.lock().take());
    count(call, "process");
    Ok(switched(response, takeover))
}

/// Counts a stream that has begun at a kubelet.
fn count(call: &Call, way: &str) {
    let text = "Streams (exec, attach, port-forward) begun at kubelets, in this process or over the network.";
    call.server.metrics.registry.counter("pintle_kubelet_streams_total", text, &["way"]).inc(&[way]);
}

/// The 101 as the client gets it.
fn switched(response: Response, takeover: &Takeover) -> Response {
    let (head, _) = response.into_parts();
    let mut answer = http::Response::new(transport::empty());
    *answer.status_mut() = head.status;
    *answer.headers_mut() = head.headers;
    takeover.last(&mut answer);
    answer
}

/// Any other answer: without what is about the connection, and with redirections and links that lead here.
fn returned(mut response: Response, method: &Method, place: Option<&links::Place>) -> Response {
    let headers = response.headers_mut();
    for name in HOP {
        headers.remove(*name);
    }
    let foreign: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("access-control-")).cloned().collect();
    for name in foreign {
        headers.remove(name);
    }
    let Some(place) = place else { return response };
    let moved = headers.get(LOCATION).and_then(|to| to.to_str().ok()).and_then(|to| place.lead(to));
    if let Some(to) = moved.and_then(|to| HeaderValue::from_str(&to).ok()) {
        headers.insert(LOCATION, to);
    }
    links::rewritten(response, method, place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_known_by_its_headers() {
        for (name, value, want) in
            [("content-length", "0", false), ("content-length", "56", true), ("transfer-encoding", "chunked", true)]
        {
            let headers = HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
            assert_eq!(has_body(&headers), want, "{name}: {value}");
        }
        assert!(!has_body(&HeaderMap::new()));
    }

    #[test]
    fn an_upgrade_is_known_by_two_headers() {
        let headers = |pairs: &[(&'static str, &'static str)]| -> HeaderMap {
            let header =
                |(n, v): &(&'static str, &'static str)| (HeaderName::from_static(n), HeaderValue::from_static(v));
            pairs.iter().map(header).collect()
        };
        for (pairs, want) in [
            (&[("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")][..], true),
            (&[("connection", "Upgrade")], false),
            (&[("upgrade", "websocket")], false),
            (&[], false),
        ] {
            assert_eq!(is_upgrade(&headers(pairs)), want, "{pairs:?}");
        }
    }
}
