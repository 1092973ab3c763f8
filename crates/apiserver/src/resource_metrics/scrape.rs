//! Asking every node's kubelet what is used there, each by its identity and with a limit of its own: a node
//! that is gone or slow costs only what it would have told.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stdx::metrics::read;
use transport::Handler;
use transport::dial::{Https, Target};

use super::usage::NodeSample;
use crate::cacher::CachedObject;
use crate::server::ApiServer;
use crate::subresources::kubelet;

const PATH: &str = "/metrics/resource";
/// Nodes that are asked at a time.
pub const AT_ONCE: usize = 32;
/// One that takes longer tells nothing.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for one that is not ready: most likely it is not there.
const LITTLE_PATIENCE: Duration = Duration::from_secs(3);
/// No longer answer is read: some hundred bytes for each container of a node.
const LONGEST: usize = 8 << 20;

/// A node that is to be asked.
pub struct Found {
    object: Arc<CachedObject>,
    is_ready: bool,
}

/// Every node. Those that are not ready are last: they may keep silent, and are not waited for long.
pub fn nodes(server: &ApiServer) -> Vec<Found> {
    let Some(nodes) = server.cachers.find("", "nodes") else { return Vec::new() };
    let snapshot = nodes.snapshot();
    let objects = snapshot.objects().values().map(|slot| slot.object.clone());
    let mut found: Vec<Found> = objects.map(|object| Found { is_ready: is_ready(&object), object }).collect();
    found.sort_by_key(|node| !node.is_ready);
    found
}

impl Found {
    pub fn name(&self) -> &str {
        self.object.name()
    }

    /// It may take so long, two samples included.
    pub fn patience(&self) -> Duration {
        if self.is_ready { PATIENCE } else { LITTLE_PATIENCE }
    }

    /// What the node tells now.
    ///
    /// # Errors
    /// Why it tells nothing.
    pub async fn sample(&self, server: &ApiServer) -> Result<NodeSample, String> {
        let node = self.object.value().map_err(|status| status.to_string())?;
        node_sample(server, self.name(), &node).await
    }
}

fn is_ready(object: &CachedObject) -> bool {
    let Ok(node) = object.value() else { return false };
    let conditions = node["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
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
