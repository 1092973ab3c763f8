//! What an unset field of a Service means.

use api::meta::util::intstr::IntOrString;
use api::types::core::v1::Service;

use super::{is_external, type_of};

/// How long a client stays with its pod.
const AFFINITY_SECONDS: i32 = 10_800;

fn text(field: &mut Option<String>, default: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(default.to_owned());
    }
}

/// The defaults of a Service.
pub fn service(service: &mut Service) {
    let spec = service.spec.get_or_insert_default();
    text(&mut spec.session_affinity, "None");
    if spec.session_affinity.as_deref() == Some("None") {
        spec.session_affinity_config = None;
    }
    if spec.session_affinity.as_deref() == Some("ClientIP") {
        let client = spec.session_affinity_config.get_or_insert_default().client_ip.get_or_insert_default();
        client.timeout_seconds.get_or_insert(AFFINITY_SECONDS);
    }
    text(&mut spec.type_, "ClusterIP");
    for port in spec.ports.iter_mut().flatten() {
        text(&mut port.protocol, "TCP");
        let unset = match &port.target_port {
            None => true,
            Some(IntOrString::Int(number)) => *number == 0,
            Some(IntOrString::String(name)) => name.is_empty(),
        };
        if unset {
            port.target_port = Some(IntOrString::Int(port.port));
        }
    }
    if is_external(spec) {
        text(&mut spec.external_traffic_policy, "Cluster");
    }
    if type_of(spec) != "ExternalName" {
        spec.internal_traffic_policy.get_or_insert_with(|| "Cluster".into());
    }
    if type_of(spec) != "LoadBalancer" {
        return;
    }
    spec.allocate_load_balancer_node_ports.get_or_insert(true);
    let balancer = service.status.as_mut().and_then(|status| status.load_balancer.as_mut());
    for ingress in balancer.into_iter().flat_map(|balancer| balancer.ingress.iter_mut().flatten()) {
        if ingress.ip.as_deref().is_some_and(|ip| !ip.is_empty()) {
            ingress.ip_mode.get_or_insert_with(|| "VIP".into());
        }
    }
}
