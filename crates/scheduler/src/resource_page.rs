//! `/metrics/resources`: what pods that have not ended ask for and may use, under upstream's names. Nothing is kept
//! for it: who asks has the pods read.

use api::pod;
use api::resources::Resources;
use client::{Client, ListParams, Result};
use k8s_openapi::api::core::v1::Pod;
use stdx::metrics::{Page, Type};

/// Pods that are read at once.
const AT_ONCE: u32 = 500;

/// What is told of one pod.
struct Told {
    namespace: String,
    name: String,
    node: String,
    scheduler: String,
    priority: String,
    requests: Resources,
    limits: Resources,
}

impl Told {
    fn of(pod: &Pod) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let spec = pod.spec.clone().unwrap_or_default();
        Self {
            namespace: text(&pod.metadata.namespace),
            name: text(&pod.metadata.name),
            node: text(&spec.node_name),
            scheduler: text(&spec.scheduler_name),
            priority: spec.priority.map(|priority| priority.to_string()).unwrap_or_default(),
            requests: pod::effective_requests(pod),
            limits: pod::effective_limits(pod),
        }
    }

    fn write(&self, page: &mut Page, name: &str, amounts: &Resources) {
        for (resource, amount) in amounts {
            let value = amount.approximate();
            // What asks for nothing of something says nothing.
            if value == 0.0 {
                continue;
            }
            let labels = [
                ("namespace", self.namespace.as_str()),
                ("pod", &self.name),
                ("node", &self.node),
                ("scheduler", &self.scheduler),
                ("priority", &self.priority),
                ("resource", resource),
                ("unit", unit(resource)),
            ];
            page.sample(name, &labels, value);
        }
    }
}

/// In what a resource is told.
fn unit(resource: &str) -> &'static str {
    match resource {
        "cpu" => "cores",
        "memory" | "storage" | "ephemeral-storage" => "bytes",
        other if other.starts_with("hugepages-") => "bytes",
        _ => "integer",
    }
}

fn render(all: &[Told]) -> String {
    type Side = (&'static str, &'static str, fn(&Told) -> &Resources);
    let sides: [Side; 2] = [
        ("kube_pod_resource_limit", "Resources limit for workloads on the cluster, broken down by pod.", |told| {
            &told.limits
        }),
        ("kube_pod_resource_request", "Resources requested by workloads on the cluster, broken down by pod.", |told| {
            &told.requests
        }),
    ];
    let mut page = Page::new();
    for (name, help, amounts) in sides {
        if all.iter().any(|told| !amounts(told).is_empty()) {
            page.family(name, Type::Gauge, help);
            all.iter().for_each(|told| told.write(&mut page, name, amounts(told)));
        }
    }
    page.finish()
}

/// The page, as the API server knows the pods now.
///
/// # Errors
/// When they cannot be read.
pub async fn page(client: &Client) -> Result<String> {
    let pods = client.api::<Pod>();
    let mut params = ListParams { limit: Some(AT_ONCE), ..ListParams::all() };
    let mut all = Vec::new();
    loop {
        let list = pods.list(&params).await?;
        all.extend(list.items.iter().filter(|pod| !pod::is_terminal(pod)).map(Told::of));
        if list.continue_token.is_empty() {
            return Ok(render(&all));
        }
        params.continue_token = list.continue_token;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_pods_ask_for_is_told_in_its_unit() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "web"},
            "spec": {"nodeName": "n1", "schedulerName": "default-scheduler", "priority": 5, "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "1500m", "memory": "1Ki", "x.io/gpu": "0"}}},
                {"name": "b", "resources": {"requests": {"cpu": "1", "hugepages-2Mi": "2Mi", "x.io/fpga": "3"},
                    "limits": {"memory": "4"}}},
            ]},
        }))
        .expect("a pod");
        let page = render(&[Told::of(&pod)]);
        let labels = |resource: &str, unit: &str| {
            format!(
                "{{namespace=\"ns\",pod=\"web\",node=\"n1\",scheduler=\"default-scheduler\",priority=\"5\",\
                 resource=\"{resource}\",unit=\"{unit}\"}}"
            )
        };
        let samples: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        let (request, limit) = ("kube_pod_resource_request", "kube_pod_resource_limit");
        let want = [
            format!("{limit}{} 4", labels("memory", "bytes")),
            format!("{request}{} 2.5", labels("cpu", "cores")),
            format!("{request}{} 2097152", labels("hugepages-2Mi", "bytes")),
            format!("{request}{} 1024", labels("memory", "bytes")),
            format!("{request}{} 3", labels("x.io/fpga", "integer")),
        ];
        assert_eq!(samples, want);
        assert_eq!(unit("ephemeral-storage"), "bytes");
    }
}
