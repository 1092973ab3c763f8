//! `certificatesigningrequests/approval`: the same object through another door, which lets conditions in.

use machinery::status;

use super::{Endpoint, Responding};
use crate::chain::Call;
use crate::verbs;

pub static GET: Endpoint = Endpoint {
    group: "certificates.k8s.io",
    resource: "certificatesigningrequests",
    subresource: "approval",
    verb: "get",
    run: |call| -> Responding<'_> { Box::pin(run(call)) },
};

pub static UPDATE: Endpoint = Endpoint { verb: "update", ..GET };
pub static PATCH: Endpoint = Endpoint { verb: "patch", ..GET };

async fn run(call: &Call) -> status::Result<transport::Response> {
    let resource = call.resource()?;
    match call.info.verb.as_str() {
        "update" => verbs::update::run(call, &resource, "approval").await,
        "patch" => verbs::patch::run(call, &resource, "approval").await,
        _ => verbs::get::run(call, &resource).await,
    }
}
