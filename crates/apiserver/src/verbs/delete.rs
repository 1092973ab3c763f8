//! `delete`: preconditions, grace, propagation; what holds the object is the write path's concern.

use machinery::{meta, status};
use serde_json::{Value, json};
use transport::Response;

use super::options::{DeleteOptions, WriteOptions};
use super::{body, write};
use crate::chain::Call;
use crate::encode;
use crate::encode::negotiate::Offer;
use crate::registry::catalogue::Resource;
use crate::registry::store::{self, Deleted};

/// Serves the request.
///
/// # Errors
/// 404, 409 when the preconditions do not hold, and what admission says.
pub async fn run(call: &Call, resource: &Resource) -> status::Result<Response> {
    let accepted = call.accept(Offer::Objects { list: false })?;
    let options = DeleteOptions::parse(&call.query, body::delete_options(call)?.as_ref())?;
    let how = WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() };
    let write = write(call, resource, &call.info.name, "", &how);
    if options.unreadable {
        call.authorize("unsafe-delete-ignore-read-errors").await?;
        store::delete_unreadable(&write).await?;
        let details = json!({ "name": call.info.name, "kind": resource.shape().kind });
        return Ok(encode::success(call, call.accept(Offer::Plain).unwrap_or_default(), 200, &details).await);
    }
    match store::delete(&write, &options).await? {
        Deleted::Marked(object) => {
            let code = if options.not_orphan { 202 } else { 200 };
            encode::value(call, &*resource.kind, accepted, code, &object).await
        }
        Deleted::Gone(object) if resource.shape().answers_deleted => {
            encode::value(call, &*resource.kind, accepted, 200, &object).await
        }
        Deleted::Gone(object) => {
            let accepted = call.accept(Offer::Plain).unwrap_or_default();
            Ok(encode::success(call, accepted, 200, &details(resource, &object)).await)
        }
    }
}

/// What the Status of a delete says about the object that went.
fn details(resource: &Resource, object: &Value) -> Value {
    let shape = resource.shape();
    let mut details = json!({ "name": meta::name(object), "kind": shape.plural, "uid": meta::uid(object) });
    if !shape.group.is_empty() {
        details["group"] = json!(shape.group);
    }
    details
}
