//! What a cluster holds before anybody asked: namespaces, roles, priority classes, the Service
//! `kubernetes`. Created at start where missing, completed where incomplete, by the usual write path.
//!
//! ```text
//!  namespaces ─► roles, bindings, priority classes, ServiceCIDR ─► priority levels
//!     ─► flow schemas ─► Service ─► its endpoints
//! ```

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::stream::{self, TryStreamExt};
use http_body_util::BodyExt;
use ipnet::IpNet;
use kinds::{Shape, User};
use machinery::meta;
use machinery::status::{self, Status};
use serde_json::Value;
use transport::SharedHandler;

use crate::authz::masters;
use crate::objects::{Objects, Resource};

pub mod aggregation;
pub mod authentication;
pub mod flow_control;
mod flow_schema;
pub mod objects;
pub mod roles;

pub use roles::Mend;

/// What the objects depend on.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where Service addresses come from; the Service `kubernetes` takes the first of each.
    pub service_cidrs: Vec<IpNet>,
    /// Where the API server is reached by pods; `None` when that is not known: then nothing answers
    /// for the Service.
    pub endpoint: Option<SocketAddr>,
    /// When conditions became true that are written now.
    pub now: jiff::Timestamp,
}

/// How many writes are under way at once: enough to share group commits.
const AT_ONCE: usize = 32;
/// How often an object that somebody else changes at the same time is tried.
const ATTEMPTS: usize = 5;

/// The server itself, as it writes these objects.
pub fn myself() -> User {
    User { name: "system:apiserver".into(), groups: vec![masters::GROUP.into()], ..User::default() }
}

/// Creates and completes everything. `handler` is the server's own door for [`myself`].
///
/// # Errors
/// The first write that failed for another reason than a race.
pub async fn run(handler: &SharedHandler, read: &Arc<dyn Objects>, options: &Options) -> status::Result<()> {
    let writer = Writer { handler, read };
    // One cache shows what all do: they follow one sequence.
    read.settle(crate::objects::NAMESPACES).await?;
    writer.ensure_all(objects::namespaces()).await?;
    let mut all: Vec<(Value, Completing)> =
        roles::all().iter().map(|o| (o.clone(), roles::mend as Completing)).collect();
    all.extend(objects::priority_classes());
    all.extend(objects::service_cidr(&options.service_cidrs, options.now));
    writer.ensure_all(all).await?;
    let (schemas, levels) =
        flow_control::wanted().into_iter().partition(|(object, _)| meta::kind(object) == "FlowSchema");
    writer.ensure_all(levels).await?;
    writer.ensure_all(schemas).await?;
    if let Some(address) = options.service_cidrs.first().and_then(first_address) {
        let port = options.endpoint.map_or(6443, |e| e.port());
        writer.ensure_all(vec![objects::service(address, port)]).await?;
        if let Some(endpoint) = options.endpoint.filter(|e| is_reachable(e.ip())) {
            writer.ensure_all(objects::endpoints(endpoint)).await?;
        }
    }
    Ok(())
}

/// True for addresses an endpoint can have: those that mean something to a pod.
fn is_reachable(address: IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// The first address of a range that a Service can have.
pub fn first_address(range: &IpNet) -> Option<IpAddr> {
    match range {
        IpNet::V4(range) => Some(IpAddr::V4(u32::from(range.network()).checked_add(1)?.into())),
        IpNet::V6(range) => Some(IpAddr::V6(u128::from(range.network()).checked_add(1)?.into())),
    }
}

/// What to do about an existing object: existing, wanted.
pub type Completing = fn(&Value, &Value) -> Mend;

struct Writer<'a> {
    handler: &'a SharedHandler,
    read: &'a Arc<dyn Objects>,
}

impl Writer<'_> {
    async fn ensure_all(&self, wanted: Vec<(Value, Completing)>) -> status::Result<()> {
        let each = wanted.into_iter().map(Ok::<_, Box<Status>>);
        stream::iter(each)
            .try_for_each_concurrent(AT_ONCE, |(object, mend)| async move { self.ensure(&object, mend).await })
            .await
    }

    async fn ensure(&self, wanted: &Value, mend: Completing) -> status::Result<()> {
        let Some(place) = Place::of(wanted) else {
            // A kind that is not served needs no objects.
            return Ok(());
        };
        for _ in 0..ATTEMPTS {
            let existing = self.read.find(place.resource(), meta::namespace(wanted), meta::name(wanted)).await?;
            let outcome = match existing.as_deref() {
                None => self.send("POST", &place.collection, Some(wanted)).await,
                Some(existing) => match mend(existing, wanted) {
                    Mend::Keep => return self.settle_status(&place, existing, wanted).await,
                    Mend::Update(object) => self.send("PUT", &place.object, Some(&object)).await,
                    Mend::Recreate => match self.send("DELETE", &place.object, None).await {
                        Ok(_) => self.send("POST", &place.collection, Some(wanted)).await,
                        Err(status) => Err(status),
                    },
                },
            };
            match outcome {
                Ok(written) => return self.settle_status(&place, &written, wanted).await,
                Err(status) if matches!(status.code, 404 | 409) => {
                    // Somebody was faster. What is there now is looked at once it can be seen.
                    self.read.settle(place.resource()).await?;
                }
                Err(status) => return Err(status),
            }
        }
        Err(Status::internal(format!("{} keeps changing", place.object)))
    }

    /// Writes the wanted status where there is none yet.
    async fn settle_status(&self, place: &Place, existing: &Value, wanted: &Value) -> status::Result<()> {
        let Some(status) = wanted.get("status").filter(|_| place.shape.has_status) else { return Ok(()) };
        if existing.get("status").is_some_and(|s| s.as_object().is_none_or(|s| !s.is_empty())) {
            return Ok(());
        }
        let mut object = existing.clone();
        object["status"] = status.clone();
        match self.send("PUT", &format!("{}/status", place.object), Some(&object)).await {
            Ok(_) => Ok(()),
            // Whoever wrote it in the meantime is right as well.
            Err(status) if status.code == 409 => Ok(()),
            Err(status) => Err(status),
        }
    }

    async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> status::Result<Value> {
        send(self.handler, method, path, "application/json", body).await
    }
}

/// One request through a door of this process.
pub(crate) async fn send(
    handler: &SharedHandler,
    method: &str,
    path: &str,
    media: &str,
    body: Option<&Value>,
) -> status::Result<Value> {
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, media)
        .header(http::header::ACCEPT, "application/json")
        .header(http::header::USER_AGENT, "kube-apiserver")
        .body(transport::full(body))
        .map_err(Status::internal)?;
    let response = handler.call(request).await.map_err(Status::internal)?;
    let ok = response.status().is_success();
    let bytes = response.into_body().collect().await.map_err(Status::internal)?.to_bytes();
    let value: Value = serde_json::from_slice(&bytes).map_err(Status::internal)?;
    if ok {
        return Ok(value);
    }
    Err(Status::from_value(&value).unwrap_or_else(|| Status::internal(format!("{method} {path} failed"))))
}

/// Where an object is written and read.
struct Place {
    shape: Shape,
    collection: String,
    object: String,
}

impl Place {
    fn of(object: &Value) -> Option<Self> {
        let (group, version) = meta::api_version(object).rsplit_once('/').unwrap_or(("", meta::api_version(object)));
        let shape = kinds::by_kind(group, version, meta::kind(object))?.shape();
        let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
        let namespace = match meta::namespace(object) {
            "" => String::new(),
            namespace => format!("/namespaces/{namespace}"),
        };
        let collection = format!("{root}/{version}{namespace}/{}", shape.plural);
        let object = format!("{collection}/{}", meta::name(object));
        Some(Self { shape, collection, object })
    }

    fn resource(&self) -> Resource {
        Resource { group: self.shape.group, plural: self.shape.plural }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_address_of_a_range() {
        for (range, want) in [("10.96.0.0/12", "10.96.0.1"), ("fd00::/108", "fd00::1")] {
            assert_eq!(first_address(&range.parse().unwrap()), Some(want.parse().unwrap()));
        }
    }
}
