//! `status`: the same object through another door, which lets only status (and some metadata) in.

use machinery::status;
use transport::Response;

use crate::chain::Call;
use crate::registry::catalogue::Resource;
use crate::verbs;

/// Serves the request.
///
/// # Errors
/// As the verb; 405 for verbs that status has not.
pub async fn run(call: &Call, resource: &Resource) -> status::Result<Response> {
    match call.info.verb.as_str() {
        "get" => verbs::get::run(call, resource).await,
        "update" => verbs::update::run(call, resource, "status").await,
        "patch" => verbs::patch::run(call, resource, "status").await,
        verb => Err(resource.refuses(verb)),
    }
}
