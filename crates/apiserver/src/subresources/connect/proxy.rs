//! `pods/proxy`, `services/proxy`, `nodes/proxy`: HTTP requests passed on to what runs in the cluster.

use std::net::IpAddr;

use http::header::LOCATION;
use http::{HeaderValue, StatusCode};
use machinery::meta;
use machinery::status::{self, Status};
use serde_json::Value;
use transport::once::Secure;
use transport::{Response, tls};

use super::{Destination, authorize_upgrade, pass};
use crate::chain::Call;
use crate::registry::catalogue::Resource;
use crate::subresources::{Endpoint, Responding, kubelet};

const fn endpoint(resource: &'static str, run: for<'a> fn(&'a Call) -> Responding<'a>) -> Endpoint {
    Endpoint { group: "", resource, subresource: "proxy", verb: "*", run }
}

pub static POD: Endpoint = endpoint("pods", |call| -> Responding<'_> { Box::pin(pod(call)) });
pub static SERVICE: Endpoint = endpoint("services", |call| -> Responding<'_> { Box::pin(service(call)) });
pub static NODE: Endpoint = endpoint("nodes", |call| -> Responding<'_> { Box::pin(node(call)) });

/// `name`, `name:port` or `scheme:name:port`.
#[derive(Debug, PartialEq, Eq)]
struct Named<'a> {
    secure: bool,
    scheme: &'a str,
    name: &'a str,
    port: &'a str,
}

impl<'a> Named<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let (scheme, name, port) = match parts[..] {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme @ ("" | "http" | "https"), name, port] => (scheme, name, port),
            _ => return None,
        };
        (!name.is_empty()).then_some(Self { secure: scheme == "https", scheme, name, port })
    }
}

/// The part of a request's path that comes after the subresource, as it was written, and what comes before.
fn split(call: &Call) -> (String, Option<String>) {
    let raw = call.uri.path();
    let parts = if call.info.namespace.is_empty() { 5 } else { 7 };
    let mut end = 0;
    for _ in 0..parts {
        match raw[end + 1..].find('/') {
            Some(next) => end += next + 1,
            None => return (raw.to_owned(), None),
        }
    }
    (raw[..end].to_owned(), Some(raw[end..].to_owned()))
}

/// Passes the request on to `address`.
async fn to(call: &Call, address: String, secure: Option<Secure<'_>>) -> status::Result<Response> {
    let (prefix, rest) = split(call);
    let query = call.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let upgrade = super::is_upgrade(&call.headers);
    if rest.is_none() && !upgrade && matches!(call.method.as_str(), "GET" | "HEAD") {
        // Relative links of the page would lead elsewhere.
        let mut response = http::Response::new(transport::empty());
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        let here = HeaderValue::from_str(&format!("{prefix}/{query}")).map_err(Status::internal)?;
        response.headers_mut().insert(LOCATION, here);
        return Ok(response);
    }
    let path = format!("{}{query}", rest.unwrap_or_else(|| "/".to_owned()));
    pass(call, Destination { address, secure, path, upgrade_only: false, prefix: Some(prefix), user: None, node: None })
        .await
}

/// Addresses that are of this machine or of nobody in particular lead nowhere.
pub(crate) fn allowed(address: &str) -> status::Result<IpAddr> {
    let refused = || Status::bad_request("address not allowed");
    let ip: IpAddr = address.parse().map_err(|_| refused())?;
    // One of IPv4 in the clothes of IPv6 leads where it leads without them.
    let ip = ip.to_canonical();
    let local = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || local {
        return Err(refused());
    }
    Ok(ip)
}

/// As part of a URL.
pub(crate) fn host_port(ip: &str, port: &str) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

async fn find(call: &Call, resource: &Resource, name: &str) -> status::Result<Value> {
    resource.settle(None).await?;
    let missing = || Status::not_found(&resource.group_resource(), name);
    resource.cached(&call.info.namespace, name).ok_or_else(missing)?.value()
}

async fn pod(call: &Call) -> status::Result<Response> {
    let wrong = || Status::bad_request(format!("invalid pod request {:?}", call.info.name));
    let named = Named::parse(&call.info.name).ok_or_else(wrong)?;
    let pods = call.resource()?;
    let pod = find(call, &pods, named.name).await?;
    let first = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
    let first = first.filter_map(|container| container.pointer("/ports/0/containerPort")?.as_i64()).next();
    let default = first.map_or_else(|| if named.secure { "443" } else { "80" }.to_owned(), |port| port.to_string());
    let port = if named.port.is_empty() { &default } else { named.port };
    let ip = pod.pointer("/status/podIP").and_then(Value::as_str).unwrap_or_default();
    allowed(ip)?;
    anybody(call, host_port(ip, port), named.secure, ip).await
}

/// Passes the request on to one of whom only the address is known.
async fn anybody(call: &Call, address: String, secure: bool, ip: &str) -> status::Result<Response> {
    let config = if secure { Some(tls::trusting(None).map_err(Status::internal)?) } else { None };
    let secure = config.as_ref().map(|config| Secure { config, server_name: ip });
    to(call, address, secure).await
}

async fn service(call: &Call) -> status::Result<Response> {
    let wrong = || Status::bad_request(format!("invalid service request {:?}", call.info.name));
    let named = Named::parse(&call.info.name).ok_or_else(wrong)?;
    let services = call.resource()?;
    let service = find(call, &services, named.name).await?;
    let mut port = named.port.to_owned();
    if let Ok(number) = port.parse::<i64>() {
        let mut ports = service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
        let found = ports.rfind(|p| p["port"].as_i64() == Some(number));
        let none = || Status::unavailable(format!("no service port {number} found for service {:?}", named.name));
        port = found.ok_or_else(none)?["name"].as_str().unwrap_or_default().to_owned();
    }
    let slices = call.server.catalogue.find("discovery.k8s.io", "v1", "endpointslices");
    let slices = slices.ok_or_else(Status::no_such_path)?;
    slices.settle(None).await?;
    let pods = call.server.catalogue.find("", "v1", "pods").ok_or_else(Status::no_such_path)?;
    pods.settle(None).await?;
    let space = call.info.namespace.as_str();
    let mut all = Vec::new();
    for slot in slices.cacher()?.snapshot().range(space, "") {
        let slice = slot.object.value()?;
        if meta::labels(&slice).get("kubernetes.io/service-name").is_none_or(|name| name != named.name) {
            continue;
        }
        for endpoint in endpoints(&slice, &port, space) {
            let pod = pods.cached(space, &endpoint.pod).map(|pod| pod.value()).transpose()?;
            if allowed(&endpoint.ip).is_ok() && pod.is_some_and(|pod| has_address(&pod, &endpoint.ip)) {
                all.push(endpoint);
            }
        }
    }
    let none = || Status::unavailable(format!("no endpoints available for service {:?}", named.name));
    let chosen = usize::try_from(call.server.rng.below(all.len().max(1) as u64)).unwrap_or(0);
    let ServingPod { ip, port, .. } = all.into_iter().nth(chosen).ok_or_else(none)?;
    anybody(call, host_port(&ip, &port.to_string()), named.secure, &ip).await
}

/// A pod that a slice says to serve a port.
#[derive(Debug, PartialEq, Eq)]
struct ServingPod {
    pod: String,
    ip: String,
    port: i64,
}

/// Is this an address of the pod? Whoever may write slices could otherwise lead us anywhere.
fn has_address(pod: &Value, ip: &str) -> bool {
    let all = pod.pointer("/status/podIPs").and_then(Value::as_array).into_iter().flatten();
    all.filter_map(|of| of["ip"].as_str()).any(|own| own == ip)
}

/// Pods of the namespace that serve the port of this name, if the slice is right.
fn endpoints(slice: &Value, port: &str, namespace: &str) -> Vec<ServingPod> {
    let list = |field: &str| slice[field].as_array().map(Vec::as_slice).unwrap_or_default();
    let number = list("ports").iter().find(|p| p["name"].as_str().unwrap_or_default() == port);
    let Some(number) = number.and_then(|p| p["port"].as_i64()) else { return Vec::new() };
    let ready = list("endpoints").iter().filter(|e| e.pointer("/conditions/ready") != Some(&Value::Bool(false)));
    let of_pods = ready.filter(|e| e["targetRef"]["kind"] == "Pod" && e["targetRef"]["namespace"] == namespace);
    let read = |e: &Value| {
        let (pod, ip) = (e.pointer("/targetRef/name")?.as_str()?, e.pointer("/addresses/0")?.as_str()?);
        Some(ServingPod { pod: pod.to_owned(), ip: ip.to_owned(), port: number })
    };
    of_pods.filter_map(read).collect()
}

async fn node(call: &Call) -> status::Result<Response> {
    let wrong = || Status::bad_request(format!("invalid node request {:?}", call.info.name));
    let named = Named::parse(&call.info.name).ok_or_else(wrong)?;
    // A kubelet runs commands for who gets a WebSocket of it.
    authorize_upgrade(call).await?;
    let target = kubelet::target(call, named.name).await?;
    let (host, own) = target.address.rsplit_once(':').unwrap_or((&target.address, ""));
    if named.port.is_empty() || named.port == own {
        let tls = call.server.kubelet_client().ok_or_else(|| Status::unavailable("kubelets cannot be reached"))?;
        let secure = Secure { config: tls, server_name: &target.server_name };
        return to(call, target.address.clone(), Some(secure)).await;
    }
    let ip = host.trim_matches(['[', ']']);
    allowed(ip)?;
    anybody(call, host_port(ip, named.port), named.secure, ip).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_carry_scheme_and_port() {
        let named = |text| Named::parse(text).map(|n| format!("{} {} {}", n.scheme, n.name, n.port));
        for (text, want) in [
            ("a", Some(" a ")),
            ("a:80", Some(" a 80")),
            ("https:a:http", Some("https a http")),
            (":a:80", Some(" a 80")),
            ("ftp:a:80", None),
            ("", None),
            (":80", None),
            ("a:b:c:d", None),
        ] {
            assert_eq!(named(text).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn addresses_of_this_machine_are_not_reached() {
        for (address, want) in [
            ("10.244.0.5", true),
            ("fd00::5", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("169.254.169.254", false),
            ("fe80::1", false),
            ("224.0.0.1", false),
            ("0.0.0.0", false),
            ("", false),
            ("name", false),
        ] {
            assert_eq!(allowed(address).is_ok(), want, "{address}");
        }
    }

    #[test]
    fn only_ready_pods_serve() {
        let slice = json!({"ports": [{"name": "http", "port": 8080}], "endpoints": [
            {"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": "a", "namespace": "n"}, "conditions": {"ready": true}},
            {"addresses": ["10.0.0.2"], "targetRef": {"kind": "Pod", "name": "b", "namespace": "n"}, "conditions": {"ready": false}},
            {"addresses": ["10.0.0.4"], "targetRef": {"kind": "Pod", "name": "c", "namespace": "m"}},
            {"addresses": ["10.0.0.5"], "targetRef": {"kind": "Node", "name": "d", "namespace": "n"}},
            {"addresses": ["10.0.0.3"]}]});
        let want = ServingPod { pod: "a".into(), ip: "10.0.0.1".into(), port: 8080 };
        assert_eq!(endpoints(&slice, "http", "n"), [want]);
        assert!(endpoints(&slice, "other", "n").is_empty());
        let pod = json!({"status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}});
        assert!(has_address(&pod, "fd00::1") && !has_address(&pod, "10.0.0.9") && !has_address(&json!({}), "10.0.0.1"));
    }
}
