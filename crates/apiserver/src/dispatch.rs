//! From a request that may be served to the one who serves it: health, discovery, subresources, verbs.

use kinds::Keep;
use machinery::status::{self, Status};
use transport::Response;

use crate::chain::Call;
use crate::registry::catalogue::Resource;
use crate::subresources::{answers, scale, status as status_subresource};
use crate::{aggregation, audit, encode, index, metrics, subresources, verbs, version};

/// Serves a request.
///
/// # Errors
/// Whatever the one who serves it says; 405 when nobody does.
pub async fn dispatch(call: &Call) -> status::Result<Response> {
    let info = &call.info;
    if let Some(remote) = &call.remote {
        return aggregation::proxy::pass(call, remote).await;
    }
    if !info.is_resource {
        return non_resource(call).await;
    }
    if info.goes_on {
        return Err(Status::no_such_path());
    }
    let Some(resource) = call.server.catalogue.find(&info.group, &info.version, &info.resource) else {
        return Ok(not_found());
    };
    let deprecation = resource.shape().deprecation;
    if !deprecation.is_empty() {
        call.warn([deprecation.to_owned()]);
        call.server.metrics.asked_for_deprecated(info);
    }
    serve(call, &resource).await
}

async fn serve(call: &Call, resource: &Resource) -> status::Result<Response> {
    let info = &call.info;
    if resource.shape().is_namespaced() && info.namespace.is_empty() {
        // Without a namespace all can be listed and watched; nothing can be named or written.
        match info.verb.as_str() {
            "list" | "watch" if info.subresource.is_empty() => {}
            "create" | "deletecollection" => return not_allowed(call, resource),
            _ => return Ok(not_found()),
        }
    }
    if !resource.shape().is_namespaced() && !info.namespace.is_empty() && info.resource != "namespaces" {
        return Ok(not_found());
    }
    if let Some(endpoint) = subresources::find(&info.group, &info.resource, &info.subresource, &info.verb) {
        return (endpoint.run)(call).await;
    }
    match info.subresource.as_str() {
        "" => main(call, resource).await,
        "status" if resource.shape().has_status => status_subresource::run(call, resource).await,
        "scale" if resource.shape().scale.is_some() => scale::run(call, resource).await,
        _ if subresources::exists(&info.group, &info.resource, &info.subresource) => not_allowed(call, resource),
        _ => Ok(not_found()),
    }
}

async fn main(call: &Call, resource: &Resource) -> status::Result<Response> {
    let verb = call.info.verb.as_str();
    let needs_name = matches!(verb, "get" | "update" | "patch" | "delete");
    let named = !call.info.name.is_empty();
    // What is being deleted together with its definition can still be changed, so that finalizers end.
    let ends = resource.shape().is_ending;
    if ends && verb == "create" {
        return Err(resource.ending());
    }
    let changes = ends && matches!(verb, "update" | "patch");
    let known = changes || resource.shape().verbs.contains(&verb);
    // A custom resource can be created at its own path too.
    let is_elsewhere = verb == "create" && named && !resource.kind.is_custom();
    if !known || (needs_name && !named) || is_elsewhere {
        return not_allowed(call, resource);
    }
    match verb {
        "get" => verbs::get::run(call, resource).await,
        "list" => verbs::list::run(call, resource).await,
        "watch" => verbs::watch::run(call, resource).await,
        "create" if resource.shape().keep == Keep::Virtual => answers::run(call, resource).await,
        "create" => verbs::create::run(call, resource).await,
        "update" => verbs::update::run(call, resource, "").await,
        "patch" => verbs::patch::run(call, resource, "").await,
        "delete" => verbs::delete::run(call, resource).await,
        "deletecollection" => verbs::deletecollection::run(call, resource).await,
        _ => not_allowed(call, resource),
    }
}

fn not_allowed(call: &Call, resource: &Resource) -> status::Result<Response> {
    let verb = if call.info.verb.is_empty() { "the method" } else { call.info.verb.as_str() };
    Err(resource.refuses(verb))
}

/// A path nobody answers to. Clients know it by not being a Status.
pub fn not_found() -> Response {
    encode::text(404, "404 page not found\n")
}

/// Documents are written on a thread where that holds up nobody.
async fn openapi(call: &Call) -> status::Result<Response> {
    let (server, path, headers) = (call.server.clone(), call.info.path.clone(), call.headers.clone());
    let hash = call.query.get("hash").map(str::to_owned);
    let written = tokio::task::spawn_blocking(move || server.openapi.respond(&path, hash.as_deref(), &headers));
    Ok(written.await.map_err(Status::internal)?.unwrap_or_else(not_found))
}

/// How well the server is, as those see it who measure whether it keeps its promises.
const SLIS: &str = "/metrics/slis";

fn slis(call: &Call) -> Response {
    let health = &call.server.health;
    if call.info.verb == "delete" {
        health.reset();
        return encode::text(200, "metrics reset\n");
    }
    metrics::text(call, health.indicators() + &metrics::start_time())
}

async fn non_resource(call: &Call) -> status::Result<Response> {
    let path = call.info.path.as_str();
    if path.trim_end_matches('/') == SLIS {
        return Ok(slis(call));
    }
    if let Some(response) = call.server.debug.answer(&call.method, &call.uri, transport::full(call.body.clone())).await
    {
        return Ok(response);
    }
    if !matches!(call.info.verb.as_str(), "get" | "head") {
        return Ok(not_found());
    }
    if let Some(response) = call.server.health.respond(path, &call.query) {
        return Ok(response);
    }
    match path.trim_end_matches('/') {
        "" | "/index.html" => return Ok(index::respond(call)),
        "/metrics" => return Ok(metrics::respond(call)),
        "/version" => return Ok(version::respond(&call.server.version)),
        audit::PATH => return audit::respond(call),
        _ => {}
    }
    if let Some(response) = call.server.discovery.respond(path, &call.headers) {
        return response;
    }
    if path.starts_with("/openapi/") {
        return openapi(call).await;
    }
    if let Some(response) = call.server.security.tokens.discover(path) {
        return Ok(response);
    }
    Ok(not_found())
}
