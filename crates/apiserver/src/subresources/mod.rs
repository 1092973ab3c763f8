//! What is not plain create, read, update, delete: one file per subresource or answered kind, one list.

use std::future::Future;
use std::pin::Pin;

use machinery::status::Result;

use crate::chain::Call;
use connect::{pod_stream, proxy};

pub mod answers;
pub mod certificate_approval;
pub mod component_status;
pub mod connect;
pub mod kubelet;
pub mod namespace_finalize;
pub mod pod_binding;
pub mod pod_eviction;
pub mod pod_log;
pub mod pod_parts;
pub mod resource_metrics;
pub mod reviews;
pub mod scale;
pub mod status;
pub mod token;

/// What an endpoint returns.
pub type Responding<'a> = Pin<Box<dyn Future<Output = Result<transport::Response>> + Send + 'a>>;

/// One subresource (or, with an empty `subresource`, one kind that is answered and not stored) and
/// the verb it answers.
pub struct Endpoint {
    /// Empty for the core group.
    pub group: &'static str,
    /// The plural of the parent.
    pub resource: &'static str,
    pub subresource: &'static str,
    /// As in [`RequestInfo::verb`](crate::request::RequestInfo::verb); `*` for every one.
    pub verb: &'static str,
    pub run: for<'a> fn(&'a Call) -> Responding<'a>,
}

/// Every endpoint. `status` and `scale` are generic and follow the kinds' shapes instead.
pub static ALL: &[&Endpoint] = &[
    &certificate_approval::GET,
    &certificate_approval::PATCH,
    &certificate_approval::UPDATE,
    &component_status::GET,
    &component_status::LIST,
    &namespace_finalize::UPDATE,
    &pod_binding::CREATE,
    &pod_binding::CREATE_BINDING,
    &pod_eviction::CREATE,
    &pod_log::GET,
    &pod_parts::EPHEMERAL_CONTAINERS,
    &pod_parts::RESIZE,
    &pod_stream::ATTACH,
    &pod_stream::ATTACH_GET,
    &pod_stream::EXEC,
    &pod_stream::EXEC_GET,
    &pod_stream::PORT_FORWARD,
    &pod_stream::PORT_FORWARD_GET,
    &proxy::NODE,
    &proxy::POD,
    &proxy::SERVICE,
    &resource_metrics::NODE,
    &resource_metrics::NODES,
    &resource_metrics::POD,
    &resource_metrics::PODS,
    &answers::TOKEN,
];

/// The endpoint for a request, if there is one.
pub fn find(group: &str, resource: &str, subresource: &str, verb: &str) -> Option<&'static Endpoint> {
    let matches = |e: &&&Endpoint| {
        let verbs = e.verb == verb || e.verb == "*";
        e.group == group && e.resource == resource && e.subresource == subresource && verbs
    };
    ALL.iter().find(matches).copied()
}

/// True when there is such a subresource, whatever its verbs.
pub fn exists(group: &str, resource: &str, subresource: &str) -> bool {
    ALL.iter().any(|e| e.group == group && e.resource == resource && e.subresource == subresource)
}
