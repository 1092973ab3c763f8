//! `deletecollection`: every object that a list with the same options would show, each deleted as
//! `delete` does.

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use machinery::status;
use transport::Response;

use super::options::{DeleteOptions, ListOptions, WriteOptions};
use super::{body, list, write};
use crate::cacher::CachedObject;
use crate::chain::Call;
use crate::crd::convert;
use crate::encode;
use crate::encode::negotiate::Offer;
use crate::registry::catalogue::Resource;
use crate::registry::store;

/// How many are deleted at once: enough that one fsync serves several.
const AT_ONCE: usize = 16;

/// Serves the request.
///
/// # Errors
/// What listing says, or the first failure of a delete; objects that went meanwhile are no failure.
pub async fn run(call: &Call, resource: &Resource) -> status::Result<Response> {
    let accepted = call.accept(Offer::Objects { list: true })?;
    let options = DeleteOptions::parse_collection(&call.query, body::delete_options(call)?.as_ref())?;
    let how = WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() };
    let page = list::page(call, resource, &ListOptions::parse(&call.query, false)?).await?;
    let deletes: Vec<BoxFuture<'_, status::Result<()>>> =
        page.objects.iter().map(|object| one(call, resource, object, &how, &options).boxed()).collect();
    stream::iter(deletes).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    let objects = convert::objects(&call.server, resource, page.objects).await?;
    encode::list(call, resource.kind.clone(), accepted, &page.meta, objects).await
}

async fn one(
    call: &Call,
    resource: &Resource,
    object: &CachedObject,
    how: &WriteOptions,
    options: &DeleteOptions,
) -> status::Result<()> {
    let mut write = write(call, resource, object.name(), "", how);
    write.namespace = object.namespace();
    match store::delete(&write, options).await {
        Err(status) if status.code != 404 => Err(status),
        _ => Ok(()),
    }
}
