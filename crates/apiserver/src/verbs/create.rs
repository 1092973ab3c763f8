//! `create`.

use machinery::meta;
use machinery::status::{self, Status};
use transport::Response;

use super::options::WriteOptions;
use super::{body, write, written};
use crate::chain::Call;
use crate::encode::negotiate::Offer;
use crate::registry::catalogue::Resource;
use crate::registry::store;

/// Serves the request.
///
/// # Errors
/// What decoding, admission, validation and the store say.
pub async fn run(call: &Call, resource: &Resource) -> status::Result<Response> {
    let accepted = call.accept(Offer::Objects { list: false })?;
    let options = WriteOptions::parse(&call.query, "CreateOptions", false, call.user_agent())?;
    let decoded = body::decode(call, &*resource.kind, options.validation)?;
    // Who may create what has this name was asked of the path.
    let (asked, name) = (call.info.name.as_str(), meta::name(&decoded.value));
    if !asked.is_empty() && asked != name {
        let why = format!("the name of the object ({name}) does not match the name on the URL ({asked})");
        return Err(Status::bad_request(why));
    }
    let done = store::create(&write(call, resource, "", "", &options), decoded.value).await?;
    written(call, resource, accepted, &done).await
}
