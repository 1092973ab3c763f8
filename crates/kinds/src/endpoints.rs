//! Endpoints: the older list of addresses behind a Service, kept for those who still read it.

use std::net::IpAddr;

use api::types::core::v1 as core;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::addresses;
use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::shape::Shape;

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
/// How many addresses a cell shows.
const SHOWN: usize = 3;

/// Who writes objects of the kind itself.
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpoint-controller";

pub struct Endpoints;

impl Kind for Endpoints {
    type Object = core::Endpoints;
    const SHAPE: Shape = Shape::namespaced("", "v1", "Endpoints", "endpoints")
        .singular("endpoints")
        .short(&["ep"])
        .prefix("services/endpoints")
        .deprecated("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
        .create_on_update();

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, endpoints: &mut Self::Object) {
        let subsets = endpoints.subsets.iter_mut().flatten();
        for port in subsets.flat_map(|subset| subset.ports.iter_mut().flatten()) {
            if port.protocol.as_deref().unwrap_or_default().is_empty() {
                port.protocol = Some("TCP".into());
            }
        }
    }

    fn validate(_ctx: &Ctx, endpoints: &Self::Object, errors: &mut FieldErrors) {
        for (i, subset) in endpoints.subsets.iter().flatten().enumerate() {
            let path = Path::new("subsets").index(i);
            let ready = subset.addresses.as_deref().unwrap_or_default();
            let not_ready = subset.not_ready_addresses.as_deref().unwrap_or_default();
            if ready.is_empty() && not_ready.is_empty() {
                errors.required(&path, "must specify `addresses` or `notReadyAddresses`");
            }
            for (list, field) in [(ready, "addresses"), (not_ready, "notReadyAddresses")] {
                for (j, address) in list.iter().enumerate() {
                    self::address(address, &path.child(field).index(j), errors);
                }
            }
            let ports = subset.ports.as_deref().unwrap_or_default();
            for (j, port) in ports.iter().enumerate() {
                let path = path.child("ports").index(j);
                match port.name.as_deref().unwrap_or_default() {
                    "" if ports.len() > 1 => errors.required(&path.child("name"), ""),
                    "" => {}
                    name => check::all(names::dns1123_label(name), &path.child("name"), name, errors),
                }
                check::port(port.port, &path.child("port"), errors);
                check::one_of(port.protocol.as_deref(), PROTOCOLS, &path.child("protocol"), errors);
                if let Some(protocol) = port.app_protocol.as_deref() {
                    check::all(names::qualified_name(protocol), &path.child("appProtocol"), protocol, errors);
                }
            }
        }
    }

    fn warnings(_ctx: &Ctx, new: &Self::Object, _old: Option<&Self::Object>) -> Vec<String> {
        let manager = new.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY));
        if manager.is_some_and(|manager| manager == CONTROLLER) {
            return Vec::new();
        }
        let mut out = Vec::new();
        for (i, subset) in new.subsets.iter().flatten().enumerate() {
            let path = Path::new("subsets").index(i);
            for (list, field) in [(&subset.addresses, "addresses"), (&subset.not_ready_addresses, "notReadyAddresses")]
            {
                let path = path.child(field);
                let told = |(j, address): (usize, &core::EndpointAddress)| {
                    addresses::address_warnings(&address.ip, &path.index(j).child("ip"))
                };
                out.extend(list.iter().flatten().enumerate().filter_map(told));
            }
        }
        out
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const { &[Column::NAME, Column::text("Endpoints", "Addresses that are ready."), Column::AGE] },
            row: |endpoints, now| {
                let row =
                    vec![cells::name(&endpoints.metadata), list(endpoints).into(), cells::of(&endpoints.metadata, now)];
                (row, Vec::new())
            },
        }
    }
}

fn address(address: &core::EndpointAddress, path: &Path, errors: &mut FieldErrors) {
    match address.ip.parse::<IpAddr>() {
        Err(_) => errors.invalid(&path.child("ip"), address.ip.as_str(), check::IP_ADDRESS),
        Ok(ip) => check::routable(ip, &address.ip, &path.child("ip"), errors),
    }
    if let Some(name) = address.hostname.as_deref().filter(|name| !name.is_empty()) {
        check::all(names::dns1123_label(name), &path.child("hostname"), name, errors);
    }
    if let Some(name) = address.node_name.as_deref() {
        check::all(names::dns1123_subdomain(name), &path.child("nodeName"), name, errors);
    }
}

fn list(endpoints: &core::Endpoints) -> String {
    let Some(subsets) = endpoints.subsets.as_ref().filter(|subsets| !subsets.is_empty()) else {
        return "<none>".into();
    };
    let mut all = Vec::new();
    for subset in subsets {
        let ports = subset.ports.as_deref().unwrap_or_default();
        for address in subset.addresses.iter().flatten() {
            let host = if address.ip.contains(':') { format!("[{}]", address.ip) } else { address.ip.clone() };
            if ports.is_empty() {
                all.push(address.ip.clone());
            }
            all.extend(ports.iter().map(|port| format!("{host}:{}", port.port)));
        }
    }
    cells::first(&all, SHOWN)
}
