//! `update`: PUT of a whole object, or of a subresource of the same form.

use machinery::meta;
use machinery::status;
use transport::Response;

use super::options::WriteOptions;
use super::{body, check_names, write, written};
use crate::chain::Call;
use crate::encode::negotiate::Offer;
use crate::registry::catalogue::Resource;
use crate::registry::{metadata, store};

/// Serves the request.
///
/// # Errors
/// What decoding, admission, validation and the store say.
pub async fn run(call: &Call, resource: &Resource, subresource: &str) -> status::Result<Response> {
    let accepted = call.accept(Offer::Objects { list: false })?;
    let options = WriteOptions::parse(&call.query, "UpdateOptions", false, call.user_agent())?;
    let decoded = body::decode(call, &*resource.kind, options.validation)?;
    let name = call.info.name.as_str();
    check_names(&decoded.value, resource, name, &call.info.namespace)?;
    let write = write(call, resource, name, subresource, &options);
    let done = match store::update(&write, |_| Ok(decoded.value.clone())).await {
        // Only an object of which no version was demanded may come to be by an update.
        Err(status)
            if status.code == 404
                && subresource.is_empty()
                && resource.shape().create_on_update
                && meta::resource_version(&decoded.value).is_empty()
                && status.details.as_ref().is_some_and(|d| d.name == name && d.kind == resource.shape().plural) =>
        {
            // It is not the object that was meant.
            match meta::uid(&decoded.value) {
                "" => {}
                wanted => {
                    return Err(metadata::other_uid(resource, write.namespace, name, wanted, ""));
                }
            }
            call.authorize("create").await?;
            store::create(&write, decoded.value).await?
        }
        other => other?,
    };
    written(call, resource, accepted, &done).await
}
