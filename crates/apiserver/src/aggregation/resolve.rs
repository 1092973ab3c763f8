//! Where the server behind a Service is dialled.

use machinery::meta;
use serde_json::Value;

use super::remote::Place;
use super::{OF_SERVICE, SERVICES};
use crate::server::ApiServer;
use crate::subresources::connect::proxy::{allowed, host_port};

/// `host:port` of who answers for a Service.
///
/// # Errors
/// Why there is nobody.
pub(super) async fn address(server: &ApiServer, place: &Place) -> Result<String, String> {
    let found = server.security.objects.find(SERVICES, &place.namespace, &place.name).await;
    let service = found.map_err(|status| status.message.clone())?;
    let service = service.ok_or_else(|| format!("service {:?} not found", place.name))?;
    if !server.aggregation.options.to_endpoints {
        return of_service(&service, place);
    }
    let all = of_endpoints(&service, &slices(server, place), place)?;
    let chosen = usize::try_from(server.rng.below(all.len().max(1) as u64)).unwrap_or(0);
    all.into_iter().nth(chosen).ok_or_else(|| format!("no endpoints available for service {:?}", place.name))
}

/// The slices of a Service.
pub(super) fn slices(server: &ApiServer, place: &Place) -> Vec<Value> {
    let Some(resource) = server.catalogue.find("discovery.k8s.io", "v1", "endpointslices") else { return Vec::new() };
    let Ok(cacher) = resource.cacher() else { return Vec::new() };
    let snapshot = cacher.snapshot();
    let all = snapshot.range(&place.namespace, "").filter_map(|slot| slot.object.value().ok());
    all.filter(|slice| meta::labels(slice).get(OF_SERVICE).is_some_and(|name| *name == place.name)).collect()
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The Service's port of the number.
pub(super) fn port<'v>(service: &'v Value, place: &Place) -> Option<&'v Value> {
    let mut ports = service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
    ports.find(|port| port["port"].as_u64() == Some(place.port.into()))
}

fn no_port(place: &Place) -> String {
    format!("no service port {} found for service {:?}", place.port, place.name)
}

/// The address of the Service itself.
fn of_service(service: &Value, place: &Place) -> Result<String, String> {
    let number = place.port.to_string();
    let ip = text(service, "/spec/clusterIP");
    match text(service, "/spec/type") {
        "ExternalName" => {
            let name = text(service, "/spec/externalName");
            // A number is judged; a name is looked up by who dials.
            if name.parse::<std::net::IpAddr>().is_ok() {
                allowed(name).map_err(|status| status.message.clone())?;
            }
            Ok(host_port(name, &number))
        }
        "" | "ClusterIP" if ip == "None" => Err("cannot route to service with ClusterIP \"None\"".to_owned()),
        "" | "ClusterIP" | "NodePort" | "LoadBalancer" => {
            port(service, place).ok_or_else(|| no_port(place))?;
            allowed(ip).map_err(|status| status.message.clone())?;
            Ok(host_port(ip, &number))
        }
        other => Err(format!("unsupported service type {other:?}")),
    }
}

/// The addresses of the endpoints that are ready.
fn of_endpoints(service: &Value, slices: &[Value], place: &Place) -> Result<Vec<String>, String> {
    let kind = text(service, "/spec/type");
    if !matches!(kind, "" | "ClusterIP" | "NodePort" | "LoadBalancer") {
        return Err(format!("unsupported service type {kind:?}"));
    }
    let name = port(service, place).ok_or_else(|| no_port(place))?["name"].as_str().unwrap_or_default();
    let mut found = Vec::new();
    for slice in slices {
        let list = |field: &str| slice[field].as_array().map(Vec::as_slice).unwrap_or_default();
        let number = list("ports").iter().find(|p| p["name"].as_str().unwrap_or_default() == name);
        let Some(number) = number.and_then(|p| p["port"].as_u64()) else { continue };
        let ready = list("endpoints").iter().filter(|e| e.pointer("/conditions/ready") != Some(&Value::Bool(false)));
        let addresses = ready.filter_map(|e| e.pointer("/addresses/0")?.as_str());
        found.extend(addresses.filter(|ip| allowed(ip).is_ok()).map(|ip| host_port(ip, &number.to_string())));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn place() -> Place {
        Place { namespace: "n".into(), name: "s".into(), port: 443 }
    }

    #[test]
    fn a_service_is_dialled_at_its_address() {
        let ports = json!([{"name": "https", "port": 443}]);
        for (spec, want) in [
            (json!({"clusterIP": "10.96.0.9", "ports": ports}), Ok("10.96.0.9:443")),
            (json!({"clusterIP": "fd00::9", "type": "NodePort", "ports": ports}), Ok("[fd00::9]:443")),
            (json!({"clusterIP": "None", "ports": ports}), Err("cannot route to service with ClusterIP \"None\"")),
            (json!({"clusterIP": "10.96.0.9"}), Err("no service port 443 found for service \"s\"")),
            (json!({"type": "ExternalName", "externalName": "a.b"}), Ok("a.b:443")),
            (json!({"type": "ExternalName", "externalName": "127.0.0.1"}), Err("address not allowed")),
            (json!({"type": "Other"}), Err("unsupported service type \"Other\"")),
        ] {
            let got = of_service(&json!({"spec": spec}), &place());
            assert_eq!(got.as_deref().map_err(String::as_str), want, "{spec}");
        }
    }

    #[test]
    fn endpoints_that_are_ready_are_dialled() {
        let service = json!({"spec": {"ports": [{"name": "https", "port": 443}]}});
        let slice = json!({"ports": [{"name": "https", "port": 8443}], "endpoints": [
            {"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
            {"addresses": ["169.254.169.254"]}]});
        assert_eq!(of_endpoints(&service, &[slice], &place()), Ok(vec!["10.0.0.1:8443".to_owned()]));
        assert_eq!(of_endpoints(&service, &[], &place()), Ok(Vec::new()));
    }
}
