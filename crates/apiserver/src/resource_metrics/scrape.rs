//! Asking every node's kubelet what is used there, each by its identity and with a limit of its own: a node
//! that is gone or slow costs only what it would have told.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use serde_json::Value;
use stdx::ClockExt;
use stdx::metrics::read;
use transport::Handler;
use transport::dial::{Https, Target};

use super::usage::{NodeSample, Sample};
use crate::cacher::CachedObject;
use crate::server::ApiServer;
use crate::subresources::kubelet;

const PATH: &str = "/metrics/resource";
/// Nodes that are asked at a time.
const AT_ONCE: usize = 32;
/// One that takes longer tells nothing.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for one that is not ready: most likely it is not there.
const LITTLE_PATIENCE: Duration = Duration::from_secs(2);
/// No longer answer is read: some hundred bytes for each container of a node.
const LONGEST: usize = 8 << 20;

/// What the nodes tell now that are wanted. Those that are not ready are asked last: they may keep silent, and
/// are not waited for long.
pub async fn nodes(server: &ApiServer, is_wanted: impl Fn(&str) -> bool) -> Sample {
    let Some(nodes) = server.cachers.find("", "nodes") else { return Sample::default() };
    let snapshot = nodes.snapshot();
    let wanted = snapshot.objects().values().map(|slot| slot.object.clone()).filter(|o| is_wanted(o.name()));
    let mut found: Vec<(bool, Arc<CachedObject>)> = wanted.map(|object| (is_ready(&object), object)).collect();
    found.sort_by_key(|(is_ready, _)| !is_ready);
    let ask = found.into_iter().map(|(is_ready, object)| {
        let patience = if is_ready { PATIENCE } else { LITTLE_PATIENCE };
        one_node(server, object, patience)
    });
    let mut asked = stream::iter(ask).buffer_unordered(AT_ONCE);
    let mut told = Sample::new();
    while let Some(one) = asked.next().await {
        told.extend(one);
    }
    told
}

fn is_ready(object: &CachedObject) -> bool {
    let Ok(node) = object.value() else { return false };
    let conditions = node["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// What a node tells, with its name.
async fn one_node(server: &ApiServer, object: Arc<CachedObject>, patience: Duration) -> Option<(String, NodeSample)> {
    let name = object.name().to_owned();
    let node = object.value().ok()?;
    match server.clock.timeout(patience, Box::pin(node_sample(server, &name, &node))).await {
        Ok(Ok(sample)) => Some((name, sample)),
        Ok(Err(why)) => {
            tracing::debug!(node = name, why, "what is used on a node is not known");
            None
        }
        Err(_) => {
            tracing::debug!(node = name, "a node does not tell in time what is used there");
            None
        }
    }
}

async fn node_sample(server: &ApiServer, name: &str, node: &Value) -> Result<NodeSample, String> {
    let address = kubelet::address(node).ok_or("it has no address")?;
    let tls = server.kubelet_client().ok_or("kubelets cannot be reached")?;
    let target = Target { address, server_name: name.to_owned() };
    let client = Https::http1(&target, tls, &server.clock).map_err(|e| e.to_string())?;
    let mut request = http::Request::new(transport::empty());
    *request.uri_mut() = http::Uri::from_static(PATH);
    let response = client.call(request).await.map_err(|e| e.to_string())?;
    if response.status() != http::StatusCode::OK {
        return Err(format!("it answers {}", response.status()));
    }
    let body = transport::read(response.into_body(), LONGEST).await.map_err(|e| e.to_string())?;
    let text = std::str::from_utf8(&body).map_err(|e| e.to_string())?;
    let samples = read::read(text).map_err(|bad| bad.to_string())?;
    Ok(NodeSample::of(&samples))
}
