//! EndpointSlice: a part of the addresses behind a Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::types::discovery::v1 as discovery;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::addresses;
use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::only::Part;
use crate::shape::Shape;

const TYPES: &[&str] = &["FQDN", "IPv4", "IPv6"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const MAX_HINTS: usize = 8;
/// How many addresses and ports a cell shows.
const SHOWN: usize = 3;

const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const CONTROLLERS: &[&str] = &["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"];

pub struct EndpointSlice;

impl Kind for EndpointSlice {
    type Object = discovery::EndpointSlice;
    const SHAPE: Shape = Shape::namespaced("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
        .singular("endpointslice")
        .generation()
        .metadata_counts(&["labels"]);

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, slice: &mut Self::Object) {
        for port in slice.ports.iter_mut().flatten() {
            port.name.get_or_insert_default();
            if port.protocol.is_none() {
                port.protocol = Some("TCP".into());
            }
        }
    }

    fn prepare_create(_ctx: &Ctx, slice: &mut Self::Object) {
        for endpoint in slice.endpoints.iter_mut().flatten() {
            endpoint.deprecated_topology = None;
        }
    }

    fn prepare_update(_ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        if new.endpoints == old.endpoints {
            return;
        }
        for endpoint in new.endpoints.iter_mut().flatten() {
            endpoint.deprecated_topology = None;
        }
    }

    fn validate(_ctx: &Ctx, slice: &Self::Object, errors: &mut FieldErrors) {
        check::one_of(Some(&slice.address_type), TYPES, &Path::new("addressType"), errors);
        let endpoints = slice.endpoints.as_deref().unwrap_or_default();
        let path = Path::new("endpoints");
        if endpoints.len() > MAX_ENDPOINTS {
            errors.too_many(&path, endpoints.len(), MAX_ENDPOINTS);
            return;
        }
        for (i, endpoint) in endpoints.iter().enumerate() {
            self::endpoint(endpoint, &slice.address_type, &path.index(i), errors);
        }
        ports(slice.ports.as_deref().unwrap_or_default(), &Path::new("ports"), errors);
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        check::immutable(&new.address_type, &old.address_type, &Path::new("addressType"), errors);
    }

    const SHOWN: &'static [Part] = &[
        Part::METADATA,
        Part::whole("addressType"),
        Part::whole("ports"),
        Part("endpoints", &[Part::whole("addresses")]),
    ];

    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        let mut out = Vec::new();
        if old.is_none() && new.address_type == "FQDN" {
            out.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
        }
        // What controllers of ours write is written as it should be.
        let manager = new.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY));
        if manager.is_some_and(|manager| CONTROLLERS.contains(&manager.as_str())) {
            return out;
        }
        for (i, endpoint) in new.endpoints.iter().flatten().enumerate() {
            let path = Path::new("endpoints").index(i).child("addresses");
            let told = |(j, address): (usize, &String)| addresses::address_warnings(address, &path.index(j));
            out.extend(endpoint.addresses.iter().enumerate().filter_map(told));
        }
        out
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column::text("AddressType", "Of which family the addresses are."),
                    Column::text("Ports", "The ports they are served at."),
                    Column::text("Endpoints", "The addresses."),
                    Column::AGE,
                ]
            },
            row: |slice, now| {
                let ports: Vec<String> = slice
                    .ports
                    .iter()
                    .flatten()
                    .map(|port| match (port.port, port.name.as_deref()) {
                        (Some(number), _) => number.to_string(),
                        (None, Some(name)) if !name.is_empty() => name.to_owned(),
                        _ => "*".to_owned(),
                    })
                    .collect();
                let addresses: Vec<String> =
                    slice.endpoints.iter().flatten().flat_map(|endpoint| endpoint.addresses.clone()).collect();
                let shown = |all: &[String]| {
                    if all.is_empty() { "<unset>".to_owned() } else { cells::first(all, SHOWN) }
                };
                let row = vec![
                    cells::name(&slice.metadata),
                    slice.address_type.clone().into(),
                    shown(&ports).into(),
                    shown(&addresses).into(),
                    cells::of(&slice.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn endpoint(endpoint: &discovery::Endpoint, family: &str, path: &Path, errors: &mut FieldErrors) {
    let addresses = path.child("addresses");
    match endpoint.addresses.len() {
        0 => errors.required(&addresses, "must contain at least 1 address"),
        n if n > MAX_ADDRESSES => errors.too_many(&addresses, n, MAX_ADDRESSES),
        _ => {}
    }
    for (i, address) in endpoint.addresses.iter().enumerate() {
        let path = addresses.index(i);
        match (family, address.parse::<IpAddr>()) {
            ("FQDN", _) => check::all(names::dns1123_subdomain(address), &path, address, errors),
            ("IPv4", Ok(ip @ IpAddr::V4(_))) | ("IPv6", Ok(ip @ IpAddr::V6(_))) => {
                check::routable(ip, address, &path, errors);
            }
            ("IPv4", _) => errors.invalid(&path, address.as_str(), "must be an IPv4 address"),
            ("IPv6", _) => errors.invalid(&path, address.as_str(), "must be an IPv6 address"),
            _ => {}
        }
    }
    if let Some(name) = endpoint.node_name.as_deref() {
        check::all(names::dns1123_subdomain(name), &path.child("nodeName"), name, errors);
    }
    if let Some(zone) = endpoint.zone.as_deref() {
        check::all(names::label_value(zone), &path.child("zone"), zone, errors);
    }
    if let Some(name) = endpoint.hostname.as_deref() {
        check::all(names::dns1123_label(name), &path.child("hostname"), name, errors);
    }
    let zones = endpoint.hints.as_ref().and_then(|hints| hints.for_zones.as_deref()).unwrap_or_default();
    let path = path.child("hints").child("forZones");
    if zones.len() > MAX_HINTS {
        errors.too_many(&path, zones.len(), MAX_HINTS);
    }
    let mut seen = BTreeSet::new();
    for (i, zone) in zones.iter().enumerate() {
        let path = path.index(i).child("name");
        if !seen.insert(&zone.name) {
            errors.duplicate(&path, zone.name.as_str());
        }
        check::all(names::label_value(&zone.name), &path, &zone.name, errors);
    }
}

fn ports(ports: &[discovery::EndpointPort], path: &Path, errors: &mut FieldErrors) {
    if ports.len() > MAX_PORTS {
        errors.too_many(path, ports.len(), MAX_PORTS);
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = port.name.as_deref().unwrap_or_default();
        if !name.is_empty() {
            check::all(names::dns1123_label(name), &path.child("name"), name, errors);
        }
        if !seen.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
        check::one_of(port.protocol.as_deref(), PROTOCOLS, &path.child("protocol"), errors);
        if let Some(number) = port.port {
            check::port(number, &path.child("port"), errors);
        }
        if let Some(protocol) = port.app_protocol.as_deref() {
            check::all(names::qualified_name(protocol), &path.child("appProtocol"), protocol, errors);
        }
    }
}
