//! `get`: one object, as the cache has it once it is as new as the client demands.

use machinery::status::{self, Status};
use transport::Response;

use super::options;
use crate::chain::Call;
use crate::crd::convert;
use crate::encode;
use crate::encode::negotiate::Offer;
use crate::registry::catalogue::Resource;

/// Serves the request.
///
/// # Errors
/// 404, and 504 for a resourceVersion that has not come.
pub async fn run(call: &Call, resource: &Resource) -> status::Result<Response> {
    let accepted = call.accept(Offer::Objects { list: false })?;
    let asked = call.query.text("resourceVersion").map(options::revision).transpose()?;
    resource.settle(asked).await?;
    let missing = || Status::not_found(&resource.group_resource(), &call.info.name);
    let object = resource.cached(&call.info.namespace, &call.info.name).ok_or_else(missing)?;
    let object = convert::object(&call.server, resource, object).await?;
    encode::cached(call, &*resource.kind, accepted, &object).await
}
