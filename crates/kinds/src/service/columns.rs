//! How a Service looks in `kubectl get services`.

use api::types::core::v1::{LoadBalancerStatus, Service, ServiceSpec};
use jiff::Timestamp;

use super::type_of;
use crate::cells;
use crate::kind::{Cell, Column, RowConditions};

pub const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Type", "How the Service can be reached."),
    Column::text("Cluster-IP", "Its address inside the cluster."),
    Column::text("External-IP", "Its address outside the cluster."),
    Column::text("Port(s)", "Its ports, with the node's port where there is one."),
    Column::AGE,
    Column::text("Selector", "Which pods serve it.").wide(),
];

/// One row.
pub fn row(service: &Service, now: Timestamp) -> (Vec<Cell>, RowConditions) {
    let spec = service.spec.clone().unwrap_or_default();
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ip = spec.cluster_ips.as_ref().and_then(|ips| ips.first()).or(spec.cluster_ip.as_ref());
    let row = vec![
        cells::name(&service.metadata),
        type_of(&spec).into(),
        cells::or_none(ip.cloned().unwrap_or_default()),
        external(&spec, balancer).into(),
        cells::or_none(ports(&spec)),
        cells::of(&service.metadata, now),
        cells::labels(spec.selector.as_ref()),
    ];
    (row, Vec::new())
}

fn external(spec: &ServiceSpec, balancer: Option<&LoadBalancerStatus>) -> String {
    let own = spec.external_ips.as_deref().unwrap_or_default();
    match type_of(spec) {
        "ExternalName" => spec.external_name.clone().unwrap_or_default(),
        "LoadBalancer" => {
            let ingress = balancer.iter().flat_map(|balancer| balancer.ingress.iter().flatten());
            let mut seen: Vec<String> = Vec::new();
            for entry in ingress {
                let address = entry.ip.clone().filter(|ip| !ip.is_empty()).or_else(|| entry.hostname.clone());
                seen.extend(address.filter(|address| !address.is_empty()));
            }
            seen.sort();
            seen.dedup();
            seen.extend(own.iter().cloned());
            if seen.is_empty() { "<pending>".into() } else { seen.join(",") }
        }
        _ if own.is_empty() => "<none>".into(),
        _ => own.join(","),
    }
}

fn ports(spec: &ServiceSpec) -> String {
    let ports = spec.ports.iter().flatten().map(|port| {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        match port.node_port.filter(|number| *number != 0) {
            Some(node) => format!("{}:{node}/{protocol}", port.port),
            None => format!("{}/{protocol}", port.port),
        }
    });
    ports.collect::<Vec<_>>().join(",")
}
