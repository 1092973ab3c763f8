//! Services that ask for a load balancer and have no address of one: nobody else could say so,
//! because the provider that would is the one that is missing.

use client::Change;
use client::events::Reference;
use k8s_openapi::api::core::v1::Service;

use crate::context::Context;
use crate::views::ServiceView;

/// The code of the Wait.
const WAIT: &str = "NoLoadBalancer";

pub(crate) fn start(context: &Context) {
    let (waits, resource) = (context.waits(), client::Resource::of::<Service>());
    context.services().subscribe(move |change| {
        let service = change.object();
        let about = || Reference::of(&resource, &service.meta);
        match change {
            Change::Applied { .. } if is_pending(&service.view) && !service.meta.is_deleting() => {
                let (on, text) = say(&service.view);
                waits.publish(&about(), WAIT, on, text);
            }
            Change::Applied { old: Some(old), .. } if !is_pending(&old.view) => {}
            _ => waits.withdraw(&about(), WAIT),
        }
    });
}

/// Asks for a load balancer and has no address of one.
fn is_pending(service: &ServiceView) -> bool {
    service.spec.kind == "LoadBalancer" && service.status.load_balancer.ingress.is_empty()
}

/// On what it waits, and what that means.
fn say(service: &ServiceView) -> (String, String) {
    let ports = if service.spec.allocate_load_balancer_node_ports == Some(false) { "" } else { " and node ports" };
    let (on, who) = match service.spec.load_balancer_class.as_deref() {
        None | Some("") => ("load balancer provider".to_owned(), "no load balancer provider".to_owned()),
        Some(class) => (format!("load balancer class {class}"), format!("no provider of the class {class}")),
    };
    (on, format!("{who} has given the Service an address; its cluster address{ports} work meanwhile"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(spec: serde_json::Value, status: serde_json::Value) -> ServiceView {
        serde_json::from_value(json!({"spec": spec, "status": status})).expect("fits the view")
    }

    #[test]
    fn it_waits_until_it_has_an_address() {
        let pending = service(json!({"type": "LoadBalancer"}), json!({"loadBalancer": {}}));
        assert!(is_pending(&pending));
        assert_eq!(
            say(&pending),
            (
                "load balancer provider".to_owned(),
                "no load balancer provider has given the Service an address; its cluster address and node ports work \
                 meanwhile"
                    .to_owned()
            )
        );
        let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "x.example/y",
            "allocateLoadBalancerNodePorts": false});
        let (on, text) = say(&service(spec, json!({})));
        assert_eq!(on, "load balancer class x.example/y");
        assert!(text.starts_with("no provider of the class x.example/y has given"), "{text}");
        assert!(!text.contains("node ports"), "{text}");
        let served = json!({"loadBalancer": {"ingress": [{"hostname": "lb.example"}]}});
        assert!(!is_pending(&service(json!({"type": "LoadBalancer"}), served)));
        assert!(!is_pending(&service(json!({"type": "NodePort"}), json!({}))));
    }
}
