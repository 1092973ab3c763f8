//! `componentstatuses`: every component beside the API server is asked when somebody wants to know.

use std::sync::Arc;

use futures::future::join_all;
use kinds::SharedKind;
use machinery::encode as encoder;
use machinery::status::{self, GroupResource, Status};
use transport::Response;

use super::{Endpoint, Responding};
use crate::cacher::{CachedObject, Filter};
use crate::chain::Call;
use crate::components;
use crate::encode;
use crate::encode::json::ListMeta;
use crate::encode::negotiate::Offer;
use crate::verbs::options::ListOptions;

pub static GET: Endpoint = Endpoint {
    group: "",
    resource: "componentstatuses",
    subresource: "",
    verb: "get",
    run: |call| -> Responding<'_> { Box::pin(get(call)) },
};

pub static LIST: Endpoint = Endpoint { verb: "list", run: |call| -> Responding<'_> { Box::pin(list(call)) }, ..GET };

fn kind(call: &Call) -> status::Result<SharedKind> {
    let found = call.server.catalogue.find("", "v1", "componentstatuses");
    found.map(|resource| resource.kind.clone()).ok_or_else(|| Status::internal("ComponentStatus is not served"))
}

async fn get(call: &Call) -> status::Result<Response> {
    let accepted = call.accept(Offer::Objects { list: false })?;
    let (kind, name) = (kind(call)?, call.info.name.as_str());
    let health = components::ask(&call.server, name).await;
    // It is called by its singular there, unlike everything else.
    let health = health.ok_or_else(|| Status::not_found(&GroupResource::new("", "componentstatus"), name))?;
    let json = encoder::json(&health.to_object(name), &kind.schema());
    encode::one(call, &*kind, accepted, 200, &json, None).await
}

async fn list(call: &Call) -> status::Result<Response> {
    let accepted = call.accept(Offer::Objects { list: true })?;
    let (kind, options) = (kind(call)?, ListOptions::parse(&call.query, false)?);
    if let Some(field) = options.fields.fields().find(|field| !kind.is_selectable(field)) {
        return Err(Status::bad_request(kind.unknown_field(field)));
    }
    let asked = components::names().map(|name| async move { (name, components::ask(&call.server, name).await) });
    let filter = Filter { labels: options.labels, fields: options.fields, ..Filter::default() };
    let told = join_all(asked).await.into_iter().filter_map(|(name, health)| {
        let object = Arc::new(CachedObject::computed(&*kind, name, &health?.to_object(name)));
        filter.passes(&object).then_some(object)
    });
    let objects = told.collect();
    encode::list(call, kind.clone(), accepted, &ListMeta::default(), objects).await
}
