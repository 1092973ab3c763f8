//! `pods/log`: the log of a container, streamed from the kubelet that runs it. The kubelet is dialled
//! at its node's address and must prove to be that node.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::ready;
use futures::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use http_body_util::BodyExt;
use machinery::field::{FieldErrors, Path};
use machinery::status::{self, Status};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use transport::dial::{Https, Target};
use transport::websocket::{self, Protocols, Said};
use transport::{Body, Handler, Response};

use super::{Endpoint, Responding, kubelet};
use crate::chain::Call;
use crate::encode;
use crate::request::Query;
use crate::verbs::watch;

pub static GET: Endpoint = Endpoint {
    group: "",
    resource: "pods",
    subresource: "log",
    verb: "get",
    run: |call| -> Responding<'_> { Box::pin(run(call)) },
};

/// What a log over a WebSocket may be: pieces as they are, or in base64 for those who take only text.
const PROTOCOLS: Protocols = Protocols::Of(&["", "binary.k8s.io", BASE64]);
const BASE64: &str = "base64.binary.k8s.io";

async fn run(call: &Call) -> status::Result<Response> {
    let (namespace, name) = (call.info.namespace.as_str(), call.info.name.as_str());
    let options = options(&call.query, name)?;
    let pods = call.resource()?;
    pods.settle(None).await?;
    let missing = || Status::not_found(&pods.group_resource(), name);
    let pod = pods.cached(namespace, name).ok_or_else(missing)?.value()?;
    let container = kubelet::container(&pod, call.query.text("container"))?;
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    if node.is_empty() {
        // Nothing has run, so nothing was said.
        return Ok(encode::text(200, ""));
    }
    let target = kubelet::target(call, node).await?;
    let escaped = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let path = format!("/containerLogs/{}/{}/{}{options}", escaped(namespace), escaped(name), escaped(&container));
    answer(call, &target, &path, name).await
}

/// The options, checked, as the kubelet's query.
fn options(query: &Query, pod: &str) -> status::Result<String> {
    let mut errors = FieldErrors::new();
    let mut pairs: Vec<String> = Vec::new();
    for flag in ["follow", "previous"] {
        if query.flag(flag) {
            pairs.push(format!("{flag}=true"));
        }
    }
    let since_seconds = query.number("sinceSeconds")?;
    let since_time = query.text("sinceTime");
    if let (Some(_), Some(_)) = (since_seconds, since_time) {
        errors.forbidden(&Path::new(""), "at most one of `sinceTime` or `sinceSeconds` may be specified");
    }
    if let Some(seconds) = since_seconds {
        if seconds < 1 {
            errors.invalid(&Path::new("sinceSeconds"), seconds, "must be greater than 0");
        }
        pairs.push(format!("sinceSeconds={seconds}"));
    }
    if let Some(time) = since_time {
        if machinery::time::parse(time).is_none() {
            return Err(Status::bad_request(format!("parsing time {time:?}: it is not of the form RFC 3339")));
        }
        pairs.push(format!("sinceTime={}", utf8_percent_encode(time, NON_ALPHANUMERIC)));
    }
    if query.flag("timestamps") {
        pairs.push("timestamps=true".into());
    }
    let lines = query.number("tailLines")?;
    if let Some(lines) = lines {
        if lines < 0 {
            errors.invalid(&Path::new("tailLines"), lines, "must be greater than or equal to 0");
        }
        pairs.push(format!("tailLines={lines}"));
    }
    if let Some(bytes) = query.number("limitBytes")? {
        if bytes < 1 {
            errors.invalid(&Path::new("limitBytes"), bytes, "must be greater than 0");
        }
        pairs.push(format!("limitBytes={bytes}"));
    }
    match query.text("stream") {
        None | Some("All") => {}
        Some("Stdout" | "Stderr") if lines.is_some() => {
            errors.forbidden(&Path::new(""), "`tailLines` and specific `stream` are mutually exclusive for now");
        }
        Some(stream @ ("Stdout" | "Stderr")) => pairs.push(format!("stream={stream}")),
        Some(other) => errors.not_supported(&Path::new("stream"), other, &["All", "Stdout", "Stderr"]),
    }
    if !errors.is_empty() {
        return Err(Status::invalid("", "PodLogOptions", pod, &errors));
    }
    Ok(if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) })
}

async fn answer(call: &Call, target: &Target, path: &str, pod: &str) -> status::Result<Response> {
    let tls = call.server.kubelet_client().ok_or_else(|| Status::unavailable("kubelets cannot be reached"))?;
    let failed =
        |error: transport::Error| Status::internal(format!("Get \"https://{}{path}\": {error}", target.address));
    let client = Https::http1(target, tls, &call.server.clock).map_err(failed)?;
    let mut request = http::Request::new(transport::empty());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = path.parse().map_err(Status::internal)?;
    let response = client.call(request).await.map_err(failed)?;
    let code = response.status().as_u16();
    if !(200..=206).contains(&code) {
        return Err(kubelet::refusal(code, response.into_body(), "pods/log", pod).await);
    }
    let stopped = call.server.stopped();
    let said = response.into_body().into_data_stream().take_until(stopped);
    if let Some(takeover) = call.takeover.clone().filter(|_| websocket::is_asked(&call.headers)) {
        let (response, protocol) = watch::upgrade(&takeover, call, PROTOCOLS)?;
        let base64 = protocol == BASE64;
        let message = move |bytes: Bytes| {
            if base64 { Said::Text(STANDARD.encode(&bytes).into()) } else { Said::Binary(bytes) }
        };
        // The empty one shows that the log is open, also when nothing is said for long.
        let pieces = said.take_while(|piece| ready(piece.is_ok())).filter_map(|piece| ready(piece.ok()));
        let messages = stream::iter([Bytes::new()]).chain(pieces).map(message);
        let sending = websocket::send(takeover, messages, call.server.clock.clone(), watch::UNREAD);
        call.server.stage().spawn(sending);
        return Ok(response);
    }
    let body: Body = transport::stream(said);
    let mut response = http::Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked_and_passed_on() {
        let check = |query: &str| options(&Query::parse(query), "p").map_err(|s| (s.code, s.message));
        assert_eq!(check(""), Ok(String::new()));
        assert_eq!(
            check("follow=true&previous=false&timestamps=1&tailLines=5&limitBytes=9&sinceSeconds=3&container=x"),
            Ok("?follow=true&sinceSeconds=3&timestamps=true&tailLines=5&limitBytes=9".into())
        );
        for (query, code) in [
            ("tailLines=-1", 422),
            ("limitBytes=0", 422),
            ("sinceSeconds=0", 422),
            ("sinceSeconds=1&sinceTime=2020-01-01T00:00:00Z", 422),
            ("stream=Both", 422),
            ("stream=Stderr&tailLines=1", 422),
            ("sinceTime=yesterday", 400),
            ("tailLines=x", 400),
        ] {
            assert_eq!(check(query).map_err(|(code, _)| code), Err(code), "{query}");
        }
        assert_eq!(check("stream=All&tailLines=1"), Ok("?tailLines=1".into()));
        assert_eq!(check("stream=Stderr"), Ok("?stream=Stderr".into()));
        let told = check("stream=Stdout&tailLines=1").expect_err("refused").1;
        assert!(
            told.ends_with(": Forbidden: `tailLines` and specific `stream` are mutually exclusive for now"),
            "{told}"
        );
    }
}
