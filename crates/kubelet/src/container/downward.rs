//! Fields of the pod itself as text: for environment variables and files. Pure.

use std::collections::BTreeMap;

use api::types::core::v1::{Container, ResourceFieldSelector};
use machinery::go::quote;
use machinery::quantity::Quantity;

use crate::pod::{self, BoundPod};

/// What is not in the pod's object.
#[derive(Clone, Debug, Default)]
pub struct Place {
    pub pod_ips: Vec<String>,
    pub host_ips: Vec<String>,
    /// What stands in for a limit that a container does not have.
    pub allocatable: BTreeMap<String, Quantity>,
}

/// The text of a `fieldRef`.
pub fn field(pod: &BoundPod, place: &Place, path: &str) -> Result<String, String> {
    let meta = pod.meta();
    let first = |list: &[String]| list.first().cloned().unwrap_or_default();
    let subscript = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default()
    };
    if let Some(key) = in_brackets(path, "metadata.labels") {
        return Ok(subscript(&meta.labels, key));
    }
    if let Some(key) = in_brackets(path, "metadata.annotations") {
        return Ok(subscript(&meta.annotations, key));
    }
    Ok(match path {
        "metadata.name" => pod.name.clone(),
        "metadata.namespace" => pod.namespace.clone(),
        "metadata.uid" => pod.uid.clone(),
        "metadata.labels" => format_map(meta.labels.as_ref()),
        "metadata.annotations" => format_map(meta.annotations.as_ref()),
        "spec.nodeName" => pod.spec().node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => pod.spec().service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => first(&place.host_ips),
        "status.hostIPs" => place.host_ips.join(","),
        "status.podIP" => first(&place.pod_ips),
        "status.podIPs" => place.pod_ips.join(","),
        _ => return Err(format!("unsupported fieldPath: {path}")),
    })
}

/// `metadata.labels['key']` → `key`.
fn in_brackets<'a>(path: &'a str, base: &str) -> Option<&'a str> {
    path.strip_prefix(base)?.strip_prefix("['")?.strip_suffix("']")
}

/// Labels and annotations as a file: `key="value"`, one a line, the value escaped as Go does.
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(k, v)| format!("{k}={}", quote(v)));
    lines.collect::<Vec<_>>().join("\n")
}

/// The text of a `resourceFieldRef`. `own` is the container whose environment it is for.
pub fn resource(
    pod: &BoundPod,
    place: &Place,
    selector: &ResourceFieldSelector,
    own: Option<&Container>,
) -> Result<String, String> {
    let container = match selector.container_name.as_deref() {
        None | Some("") => own.ok_or("containerName is required")?,
        Some(name) => pod.container(name).ok_or_else(|| format!("container {name} not found"))?,
    };
    let (kind, name) = selector.resource.split_once('.').unwrap_or(("", ""));
    let amount = match kind {
        "requests" => {
            let list = container.resources.as_ref().and_then(|r| r.requests.as_ref());
            pod::amount(list, name).unwrap_or(Quantity::ZERO)
        }
        "limits" => {
            pod.limit(container, name).or_else(|| place.allocatable.get(name).copied()).unwrap_or(Quantity::ZERO)
        }
        _ => return Err(format!("unsupported container resource : {}", selector.resource)),
    };
    let divisor = selector.divisor.as_ref().and_then(|d| d.0.parse::<Quantity>().ok()).filter(|d| !d.is_zero());
    let ceil = |a: i128, b: i128| if a <= 0 { 0 } else { (a - 1) / b.max(1) + 1 };
    let number = if name == "cpu" {
        ceil(amount.milli(), divisor.map_or(1000, |d| d.milli()))
    } else {
        ceil(amount.value(), divisor.map_or(1, |d| d.value()))
    };
    Ok(number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn fields() {
        let pod = pod(json!({
            "metadata": {"labels": {"b": "2", "a": "x\"y\n"}, "annotations": {"k/d": "v\u{200b}"}},
            "spec": {"nodeName": "n1", "serviceAccountName": "sa", "containers": []}}));
        let place = Place {
            pod_ips: vec!["10.0.0.2".into(), "fd00::2".into()],
            host_ips: vec!["192.0.2.1".into()],
            ..Place::default()
        };
        for (path, want) in [
            ("metadata.name", "web"),
            ("metadata.namespace", "default"),
            ("metadata.uid", "u-1"),
            ("metadata.labels", "a=\"x\\\"y\\n\"\nb=\"2\""),
            ("metadata.labels['b']", "2"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations['k/d']", "v\u{200b}"),
            // As Go quotes what it does not print.
            ("metadata.annotations", "k/d=\"v\\u200b\""),
            ("spec.nodeName", "n1"),
            ("spec.serviceAccountName", "sa"),
            ("status.hostIP", "192.0.2.1"),
            ("status.podIP", "10.0.0.2"),
            ("status.podIPs", "10.0.0.2,fd00::2"),
        ] {
            assert_eq!(field(&pod, &place, path).as_deref(), Ok(want), "{path}");
        }
        assert!(field(&pod, &place, "spec.hostname").is_err());
    }

    #[test]
    fn every_sort_of_resource() {
        let pod = pod(json!({"spec": {"resources": {"limits": {"cpu": "3", "memory": "2Gi"}}, "containers": [
            {"name": "c", "resources": {
                "requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi"},
                "limits": {"ephemeral-storage": "3Gi", "hugepages-2Mi": "4Mi"}}}]}}));
        for (resource_name, divisor, want) in [
            ("requests.hugepages-2Mi", "1Mi", "4"),
            ("limits.hugepages-2Mi", "1", "4194304"),
            ("requests.ephemeral-storage", "1Gi", "1"),
            ("limits.ephemeral-storage", "2Gi", "2"),
            // What the whole pod may have stands in for a container's own limit.
            ("limits.cpu", "1m", "3000"),
            ("limits.memory", "1Gi", "2"),
            ("requests.memory", "1M", "1074"),
        ] {
            let selector =
                serde_json::from_value(json!({"containerName": "c", "resource": resource_name, "divisor": divisor}))
                    .expect("a selector");
            let found = resource(&pod, &Place::default(), &selector, None);
            assert_eq!(found.as_deref(), Ok(want), "{resource_name} {divisor}");
        }
    }

    #[test]
    fn resources_round_up() {
        let pod = pod(json!({"spec": {"containers": [{"name": "c", "resources":
            {"requests": {"cpu": "250m", "memory": "64Mi"}, "limits": {"cpu": "1500m"}}}]}}));
        let memory = "1Gi".parse().expect("a quantity");
        let place = Place { allocatable: [("memory".to_owned(), memory)].into(), ..Place::default() };
        for (resource_name, divisor, want) in [
            ("requests.cpu", None, "1"),
            ("requests.cpu", Some("1m"), "250"),
            ("limits.cpu", None, "2"),
            ("requests.memory", Some("1Mi"), "64"),
            ("limits.memory", Some("1Mi"), "1024"),
            ("limits.memory", Some("0"), "1073741824"),
            ("requests.ephemeral-storage", None, "0"),
        ] {
            let selector =
                serde_json::from_value(json!({"containerName": "c", "resource": resource_name, "divisor": divisor}))
                    .expect("a selector");
            assert_eq!(resource(&pod, &place, &selector, None).as_deref(), Ok(want), "{resource_name} {divisor:?}");
        }
    }
}
