//! `apply`: a patch that says what its manager wants; other managers' fields stay, and what the manager
//! no longer wants goes unless someone else does.

use kinds::Shape;
use machinery::managed::{self, Manager};
use machinery::{decode, meta, status};
use serde_json::Value;
use transport::Response;

use super::options::{Validation, WriteOptions};
use super::{body, check_names, write, written};
use crate::chain::Call;
use crate::encode::negotiate::Offer;
use crate::registry::catalogue::Resource;
use crate::registry::store;

/// The content type.
pub const TYPE: &str = "application/apply-patch+yaml";

/// How often an object may come and go while it is applied.
const ATTEMPTS: usize = 4;

/// Serves the request.
///
/// # Errors
/// 409 when other managers own what would change, and what decoding, admission, validation and the
/// store say.
pub async fn run(call: &Call, resource: &Resource, subresource: &str) -> status::Result<Response> {
    let accepted = call.accept(Offer::Objects { list: false })?;
    let options = WriteOptions::parse(&call.query, "PatchOptions", true, call.user_agent())?;
    let schema = resource.kind.schema();
    // A field nobody knows cannot be owned.
    let strictness = match options.validation {
        Validation::Ignore => decode::Strictness::Ignore,
        Validation::Warn | Validation::Strict => decode::Strictness::Strict,
    };
    let decoded = decode::decode(&call.body, decode::Format::Yaml, &schema, strictness)?;
    body::check_version(&decoded.value, resource.kind)?;
    let name = call.info.name.as_str();
    check_names(&decoded.value, resource, name, &call.info.namespace)?;
    let config = own_part(resource.shape(), subresource, decoded.value);
    let manager = Manager {
        name: options.manager.clone(),
        api_version: resource.shape().api_version(),
        subresource: subresource.to_owned(),
        now: call.server.clock.wall(),
    };
    let merged = |live: Option<&Value>| {
        managed::apply(live, &config, &schema, &manager, options.force).map(|applied| applied.value)
    };
    // Apply has noted whose fields these are.
    let unmanaged = WriteOptions { manager: String::new(), ..options.clone() };
    let write = write(call, resource, name, subresource, &unmanaged);
    let mut done = store::update(&write, |live| merged(Some(live))).await;
    for _ in 0..ATTEMPTS {
        done = match done {
            Err(status) if status.code == 404 && subresource.is_empty() && is_about(&status, resource, name) => {
                call.authorize("create").await?;
                store::create(&write, merged(None)?).await
            }
            Err(status) if status.is("AlreadyExists") => store::update(&write, |live| merged(Some(live))).await,
            settled => {
                done = settled;
                break;
            }
        };
    }
    written(call, resource, accepted, &done?, &[]).await
}

fn is_about(status: &status::Status, resource: &Resource, name: &str) -> bool {
    status.details.as_ref().is_some_and(|d| d.name == name && d.kind == resource.shape().plural)
}

/// The part of what was sent that this door lets in: what a write cannot change it does not own.
fn own_part(shape: &Shape, subresource: &str, mut config: Value) -> Value {
    let Some(map) = config.as_object_mut() else { return config };
    match subresource {
        "status" => map.retain(|key, _| matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status")),
        _ if shape.has_status => drop(map.remove("status")),
        _ => {}
    }
    if meta::namespace(&config).is_empty() || shape.is_namespaced() {
        return config;
    }
    meta::set_namespace(&mut config, "");
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_door_lets_its_part_in() {
        const POD: Shape = Shape::namespaced("", "v1", "Pod", "pods").status();
        let sent = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": 1, "status": 2});
        let main = own_part(&POD, "", sent.clone());
        assert_eq!(main, json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": 1}));
        let status = own_part(&POD, "status", sent);
        assert_eq!(status, json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}, "status": 2}));
    }
}
