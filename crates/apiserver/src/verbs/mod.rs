//! What can be done to any resource: one file per verb. Verb files know no kinds.

use machinery::status::{self, Status};
use serde_json::Value;

use crate::chain::Call;
use crate::encode;
use crate::registry::catalogue::Resource;
use crate::registry::store::{Depth, Write, Written};

pub mod apply;
pub mod body;
pub mod continue_token;
pub mod create;
pub mod delete;
pub mod deletecollection;
pub mod get;
pub mod list;
pub mod options;
pub mod patch;
pub mod update;
pub mod watch;

use self::options::WriteOptions;

/// The write a call asks for.
pub fn write<'a>(
    call: &'a Call,
    resource: &'a Resource,
    name: &'a str,
    subresource: &'a str,
    options: &'a WriteOptions,
) -> Write<'a> {
    Write {
        server: &call.server,
        resource,
        request: &call.info,
        user: &call.user,
        causes: &call.causes,
        namespace: if resource.shape().is_namespaced() { &call.info.namespace } else { "" },
        name,
        subresource,
        dry_run: options.dry_run,
        manager: &options.manager,
        depth: Depth::Full,
    }
}

/// Answers with what was written.
///
/// # Errors
/// 400 for a query that asks for a Table in an unknown form.
pub async fn written(
    call: &Call,
    resource: &Resource,
    accepted: encode::negotiate::Accepted,
    written: &Written,
) -> status::Result<transport::Response> {
    let code = if written.created { 201 } else { 200 };
    call.warn(written.warnings.iter().cloned());
    match &written.json {
        Some(json) => {
            let revision = machinery::meta::revision(&written.object).unwrap_or_default();
            encode::one(call, &*resource.kind, accepted, code, json, Some(revision)).await
        }
        None => encode::value(call, &*resource.kind, accepted, code, &written.object).await,
    }
}

/// What an object says of itself must be what the URL says.
///
/// # Errors
/// 400.
pub fn check_names(object: &Value, resource: &Resource, name: &str, namespace: &str) -> status::Result<()> {
    let (its_name, its_namespace) = (machinery::meta::name(object), machinery::meta::namespace(object));
    if its_name.is_empty() {
        return Err(Status::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    if its_name != name {
        return Err(Status::bad_request(format!(
            "the name of the object ({its_name}) does not match the name on the URL ({name})"
        )));
    }
    if resource.shape().is_namespaced() && !its_namespace.is_empty() && its_namespace != namespace {
        return Err(Status::bad_request(format!(
            "the namespace of the object ({its_namespace}) does not match the namespace on the request ({namespace})"
        )));
    }
    Ok(())
}
