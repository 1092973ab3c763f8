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
use machinery::meta;
use machinery::status::{self, GroupResource, Status};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use transport::dial::{Https, Target};
use transport::websocket::{self, Protocols, Said};
use transport::{Body, Handler, Response};

use super::{Endpoint, Responding};
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

/// Where kubelets listen unless their Node says otherwise.
const KUBELET_PORT: i64 = 10250;
/// What a log over a WebSocket may be: pieces as they are, or in base64 for those who take only text.
const PROTOCOLS: Protocols = Protocols::Of(&["", "binary.k8s.io", BASE64]);
const BASE64: &str = "base64.binary.k8s.io";
/// How much of a kubelet's refusal is read.
const MAX_REFUSAL: usize = 2048;

async fn run(call: &Call) -> status::Result<Response> {
    let (namespace, name) = (call.info.namespace.as_str(), call.info.name.as_str());
    let options = options(&call.query, name)?;
    let pods = call.resource()?;
    pods.settle(None).await?;
    let missing = || Status::not_found(&pods.group_resource(), name);
    let pod = pods.cached(namespace, name).ok_or_else(missing)?.value()?;
    let container = container(&pod, call.query.text("container"))?;
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    if node.is_empty() {
        // Nothing has run, so nothing was said.
        return Ok(encode::text(200, ""));
    }
    let target = target(call, node).await?;
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
        errors.forbidden(&Path::new("sinceSeconds"), "at most one of `sinceTime` or `sinceSeconds` may be specified");
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
    if let Some(lines) = query.number("tailLines")? {
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
        Some(stream @ ("Stdout" | "Stderr")) => pairs.push(format!("stream={stream}")),
        Some(other) => errors.not_supported(&Path::new("stream"), other, &["All", "Stdout", "Stderr"]),
    }
    if !errors.is_empty() {
        return Err(Status::invalid("", "PodLogOptions", pod, &errors));
    }
    Ok(if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) })
}

/// The container that is meant; a pod with one container need not name it.
fn container(pod: &Value, asked: Option<&str>) -> status::Result<String> {
    let names = |list: &str| -> Vec<&str> {
        let list = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(|c| c.get("name")?.as_str()).collect()
    };
    let (containers, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    let pod = meta::name(pod);
    match asked {
        Some(asked) if containers.iter().chain(&init).chain(&ephemeral).any(|n| *n == asked) => Ok(asked.to_owned()),
        Some(asked) => Err(Status::bad_request(format!("container {asked} is not valid for pod {pod}"))),
        None => match containers.as_slice() {
            [one] => Ok((*one).to_owned()),
            [] => Err(Status::bad_request(format!("a container name must be specified for pod {pod}"))),
            many => {
                let mut text =
                    format!("a container name must be specified for pod {pod}, choose one of: [{}]", many.join(" "));
                if !init.is_empty() {
                    text.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
                }
                if !ephemeral.is_empty() {
                    text.push_str(&format!(" or one of the ephemeral containers: [{}]", ephemeral.join(" ")));
                }
                Err(Status::bad_request(text))
            }
        },
    }
}

/// Where a node's kubelet is, and who it must prove to be.
async fn target(call: &Call, node: &str) -> status::Result<Target> {
    let nodes = call.server.catalogue.find("", "v1", "nodes").ok_or_else(Status::no_such_path)?;
    nodes.settle(None).await?;
    let missing = || Status::not_found(&nodes.group_resource(), node);
    let object = nodes.cached("", node).ok_or_else(missing)?.value()?;
    let address = address(&object).ok_or_else(|| {
        Status::internal(format!("no preferred addresses found; known addresses: {}", object["status"]["addresses"]))
    })?;
    Ok(Target { address, server_name: node.to_owned() })
}

/// `address:port` of a Node's kubelet.
fn address(node: &Value) -> Option<String> {
    let addresses = node.pointer("/status/addresses")?.as_array()?;
    let of = |kind: &str| {
        let found = addresses.iter().find(|a| a.get("type").and_then(Value::as_str) == Some(kind))?;
        found.get("address")?.as_str()
    };
    let host = ["InternalIP", "ExternalIP", "Hostname"].into_iter().find_map(of)?;
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_i64);
    let port = port.filter(|p| (1..=65535).contains(p)).unwrap_or(KUBELET_PORT);
    Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
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
        return Err(refusal(code, response.into_body(), pod).await);
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

/// A kubelet's refusal in the words the client gets.
async fn refusal(code: u16, body: Body, pod: &str) -> Box<Status> {
    let text = transport::read(body, MAX_REFUSAL).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim_end().to_owned();
    let resource = GroupResource::new("", "pods/log");
    match code {
        400 => Status::bad_request(text),
        404 => {
            let message = format!("the server could not find the requested resource ( pods/log {pod})");
            Status::new(404, "NotFound", message).about(&resource, pod).cause("UnexpectedServerResponse", text, "")
        }
        500 => Status::internal(text),
        _ => {
            let message = format!("the server rejected our request for an unknown reason ( pods/log {pod})");
            Status::new(code, "", message).about(&resource, pod).cause("UnexpectedServerResponse", text, "")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
            ("sinceTime=yesterday", 400),
            ("tailLines=x", 400),
        ] {
            assert_eq!(check(query).map_err(|(code, _)| code), Err(code), "{query}");
        }
    }

    #[test]
    fn the_container_is_chosen_or_asked_for() {
        let one = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}});
        let two = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}],
            "initContainers": [{"name": "i"}]}});
        let check = |pod: &Value, asked| container(pod, asked).map_err(|s| s.message);
        assert_eq!(check(&one, None), Ok("a".into()));
        assert_eq!(check(&two, Some("i")), Ok("i".into()));
        assert_eq!(check(&one, Some("z")), Err("container z is not valid for pod p".into()));
        assert_eq!(
            check(&two, None),
            Err(
                "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]"
                    .into()
            )
        );
    }

    #[test]
    fn a_kubelet_is_where_its_node_says() {
        let node = |addresses: Value, port: Value| json!({"status": {"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
        let ip = |kind: &str, address: &str| json!({"type": kind, "address": address});
        for (node, want) in [
            (node(json!([ip("Hostname", "h"), ip("InternalIP", "10.0.0.1")]), json!(10251)), Some("10.0.0.1:10251")),
            (node(json!([ip("InternalIP", "fd00::1")]), json!(null)), Some("[fd00::1]:10250")),
            (node(json!([ip("Hostname", "h")]), json!(0)), Some("h:10250")),
            (node(json!([]), json!(1)), None),
            (json!({}), None),
        ] {
            assert_eq!(address(&node).as_deref(), want, "{node}");
        }
    }
}
