//! What the repair says of claims, as events on the Services and IPAddresses concerned.

use kinds::ClaimKind;
use machinery::{names, time};
use serde_json::{Value, json};

use super::key;
use super::plan::{About, Tale};
use super::repair::Repair;
use crate::bootstrap;

/// Writes one event. What cannot be told is in the log.
pub(super) async fn tell(repair: &Repair, tale: &Tale, services: &str) {
    let (at, fallback) = match &tale.about {
        About::Service(owner) => (
            Some(format!("{services}{}/{}", owner.namespace, owner.name).into()),
            json!({"apiVersion": "v1", "kind": "Service", "namespace": owner.namespace, "name": owner.name}),
        ),
        About::Address(name) => (
            key(&ClaimKind::ClusterIp { v6: name.contains(':') }, name),
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "name": name}),
        ),
    };
    let mut regarding = fallback;
    let found = match at {
        Some(at) => repair.claims.store.get(&at).await.ok().flatten(),
        None => None,
    };
    if let Some(entry) = found {
        let object: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        regarding["uid"] = object["metadata"]["uid"].clone();
        regarding["resourceVersion"] = entry.mod_revision.to_string().into();
    }
    let name = regarding["name"].as_str().unwrap_or_default().to_owned();
    let namespace = regarding["namespace"].as_str().unwrap_or("default").to_owned();
    let unique = repair.claims.rng.uuid();
    let mut event_name = format!("{name}.{}", &unique[..8]);
    if !names::dns1123_subdomain(&event_name).is_empty() {
        // An IPv6 address is no part of a name.
        event_name = unique;
    }
    let controller = match tale.action {
        "PortAllocation" => "portallocator-repair-controller",
        _ => "ipallocator-repair-controller",
    };
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": event_name, "namespace": namespace},
        "eventTime": time::rfc3339_micro(repair.claims.clock.wall()),
        "reportingController": controller,
        "reportingInstance": format!("{controller}-pintle"),
        "action": tale.action,
        "reason": tale.reason,
        "type": "Warning",
        "regarding": regarding,
        "note": tale.note,
    });
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let written = bootstrap::send(&repair.door, "POST", &path, "application/json", Some(&event)).await;
    match written {
        Ok(_) => tracing::warn!(reason = tale.reason, note = tale.note, "told"),
        Err(status) => tracing::warn!(%status, reason = tale.reason, note = tale.note, "not told"),
    }
}
