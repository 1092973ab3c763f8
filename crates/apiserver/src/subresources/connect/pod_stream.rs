//! `pods/exec`, `pods/attach`, `pods/portforward`: streams between a client and the kubelet of the pod's
//! node.

use machinery::status::{self, Status};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use transport::Response;
use transport::once::Secure;

use super::{Destination, authorize_upgrade, pass};
use crate::chain::Call;
use crate::request::Query;
use crate::subresources::{Endpoint, Responding, kubelet};

const fn endpoint(subresource: &'static str, verb: &'static str) -> Endpoint {
    Endpoint { group: "", resource: "pods", subresource, verb, run: |call| -> Responding<'_> { Box::pin(run(call)) } }
}

pub static EXEC_GET: Endpoint = endpoint("exec", "get");
pub static EXEC: Endpoint = endpoint("exec", "create");
pub static ATTACH_GET: Endpoint = endpoint("attach", "get");
pub static ATTACH: Endpoint = endpoint("attach", "create");
pub static PORT_FORWARD_GET: Endpoint = endpoint("portforward", "get");
pub static PORT_FORWARD: Endpoint = endpoint("portforward", "create");

async fn run(call: &Call) -> status::Result<Response> {
    authorize_upgrade(call).await?;
    let info = &call.info;
    let pods = call.resource()?;
    pods.settle(None).await?;
    let missing = || Status::not_found(&pods.group_resource(), &info.name);
    let pod = pods.cached(&info.namespace, &info.name).ok_or_else(missing)?.value()?;
    if info.subresource == "exec" && Query::has_unreadable(call.uri.query().unwrap_or_default(), "command") {
        return Err(Status::bad_request("the command contains bytes that are no UTF-8"));
    }
    let container = match info.subresource.as_str() {
        "portforward" => None,
        _ => Some(kubelet::container(&pod, call.query.text("container"))?),
    };
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    if node.is_empty() {
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", info.name)));
    }
    let target = kubelet::target(call, node).await?;
    let tls = call.server.kubelet_client().ok_or_else(|| Status::unavailable("kubelets cannot be reached"))?;
    let to = Destination {
        path: path(&info.subresource, &info.namespace, &info.name, container.as_deref(), &call.query)?,
        address: target.address,
        secure: Some(Secure { config: tls, server_name: &target.server_name }),
        upgrade_only: true,
        prefix: None,
        user: None,
        node: Some(node),
    };
    let response = pass(call, to).await?;
    let code = response.status().as_u16();
    if code == 101 {
        return Ok(response);
    }
    // Nobody is sent elsewhere, and what is neither a stream nor a refusal makes no sense.
    if code < 400 {
        let why = match response.status().is_redirection() {
            true => "the backend attempted to redirect this request, which is not permitted".to_owned(),
            false => format!("the kubelet has answered {code} instead of switching protocols"),
        };
        return Err(Status::new(502, "", why));
    }
    // What a kubelet refuses is told in the API's words.
    let what = format!("pods/{}", info.subresource);
    Err(kubelet::refusal_to_upgrade(code, response.into_body(), &what, &info.name).await)
}

/// What stands in a query as it is; a script that goes with the words of a command stays as short as it can.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// Path and query as kubelets know them.
fn path(
    subresource: &str,
    namespace: &str,
    pod: &str,
    container: Option<&str>,
    query: &Query,
) -> status::Result<String> {
    let escaped = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let mut path = format!(
        "/{}/{}/{}",
        if subresource == "portforward" { "portForward" } else { subresource },
        escaped(namespace),
        escaped(pod)
    );
    let mut pairs = Vec::new();
    match container {
        Some(container) => {
            path.push('/');
            path.push_str(&escaped(container));
            if subresource == "exec" {
                pairs.extend(
                    query
                        .all("command")
                        .into_iter()
                        .map(|word| format!("command={}", utf8_percent_encode(word, PLAIN))),
                );
            }
            for (flag, name) in [("stderr", "error"), ("stdin", "input"), ("stdout", "output"), ("tty", "tty")] {
                if query.flag(flag) {
                    pairs.push(format!("{name}=1"));
                }
            }
        }
        None => {
            let mut ports = Vec::new();
            for port in query.all("ports").into_iter().flat_map(|list| list.split(',')) {
                let number: i32 = port
                    .parse()
                    .map_err(|_| Status::bad_request(format!("strconv.ParseInt: parsing {port:?}: invalid syntax")))?;
                ports.push(number.to_string());
            }
            if !ports.is_empty() {
                pairs.push(format!("port={}", escaped(&ports.join(","))));
            }
        }
    }
    if !pairs.is_empty() {
        path.push('?');
        path.push_str(&pairs.join("&"));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_know_it_by_other_names() {
        for (subresource, container, query, want) in [
            (
                "exec",
                Some("c"),
                "command=ls&command=-l%20%2F&stdout=true&stderr=1&container=c",
                Ok("/exec/ns/p/c?command=ls&command=-l%20/&error=1&output=1"),
            ),
            ("attach", Some("c"), "stdin=true&tty=true&command=x", Ok("/attach/ns/p/c?input=1&tty=1")),
            ("portforward", None, "ports=80&ports=443", Ok("/portForward/ns/p?port=80%2C443")),
            ("portforward", None, "", Ok("/portForward/ns/p")),
            ("portforward", None, "ports=x", Err("strconv.ParseInt: parsing \"x\": invalid syntax")),
        ] {
            let got = path(subresource, "ns", "p", container, &Query::parse(query)).map_err(|s| s.message);
            assert_eq!(got.as_deref().map_err(String::as_str), want, "{subresource} {query}");
        }
    }
}
