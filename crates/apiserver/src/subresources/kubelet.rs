//! The kubelet of a pod's node: where it is, who it must prove to be, and what its refusals are called.

use machinery::meta;
use machinery::status::{self, GroupResource, Status};
use serde_json::Value;
use transport::Body;
use transport::dial::Target;

use crate::chain::Call;

/// Where kubelets listen unless their Node says otherwise.
const PORT: i64 = 10250;
/// How much of a kubelet's refusal is read.
const MAX_REFUSAL: usize = 2048;

/// The container that is meant; a pod with one container need not name it.
pub fn container(pod: &Value, asked: Option<&str>) -> status::Result<String> {
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
pub async fn target(call: &Call, node: &str) -> status::Result<Target> {
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
pub fn address(node: &Value) -> Option<String> {
    let addresses = node.pointer("/status/addresses")?.as_array()?;
    let of = |kind: &str| {
        let found = addresses.iter().find(|a| a.get("type").and_then(Value::as_str) == Some(kind))?;
        found.get("address")?.as_str()
    };
    let host = ["InternalIP", "ExternalIP", "Hostname"].into_iter().find_map(of)?;
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_i64);
    let port = port.filter(|p| (1..=65535).contains(p)).unwrap_or(PORT);
    Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

/// A kubelet's refusal in the words the client gets.
pub async fn refusal(code: u16, body: Body, what: &str, pod: &str) -> Box<Status> {
    refused(code, said(body).await, what, pod)
}

/// A kubelet's refusal to switch protocols.
pub async fn refusal_to_upgrade(code: u16, body: Body, what: &str, pod: &str) -> Box<Status> {
    refused(code, format!("unable to upgrade connection: {}", said(body).await), what, pod)
}

async fn said(body: Body) -> String {
    let text = transport::read(body, MAX_REFUSAL).await.unwrap_or_default();
    String::from_utf8_lossy(&text).trim_end().to_owned()
}

fn refused(code: u16, text: String, what: &str, pod: &str) -> Box<Status> {
    let resource = GroupResource::new("", what);
    match code {
        400 => Status::bad_request(text),
        404 => {
            let message = format!("the server could not find the requested resource ( {what} {pod})");
            Status::new(404, "NotFound", message).about(&resource, pod).cause("UnexpectedServerResponse", text, "")
        }
        500 => Status::internal(text),
        _ => {
            let message = format!("the server rejected our request for an unknown reason ( {what} {pod})");
            Status::new(code, "", message).about(&resource, pod).cause("UnexpectedServerResponse", text, "")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
