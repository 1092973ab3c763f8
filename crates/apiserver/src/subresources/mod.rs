//! What is not plain create, read, update, delete: one file per subresource or answered kind, one list.

use std::future::Future;
use std::pin::Pin;

use machinery::status;

use crate::chain::Call;

pub mod reviews;
pub mod token;

/// What an endpoint returns.
pub type Responding<'a> = Pin<Box<dyn Future<Output = status::Result<transport::Response>> + Send + 'a>>;

/// One subresource (or, with an empty `subresource`, one kind that is answered and not stored) and
/// the verb it answers.
pub struct Endpoint {
    /// Empty for the core group.
    pub group: &'static str,
    /// The plural of the parent.
    pub resource: &'static str,
    pub subresource: &'static str,
    /// As in [`RequestInfo::verb`](crate::request::RequestInfo::verb).
    pub verb: &'static str,
    pub run: for<'a> fn(&'a Call) -> Responding<'a>,
}

/// Every endpoint. `status` and `scale` are generic and follow the kinds' shapes instead.
pub static ALL: &[&Endpoint] = &[];

/// The endpoint for a request, if there is one.
pub fn find(group: &str, resource: &str, subresource: &str, verb: &str) -> Option<&'static Endpoint> {
    let matches =
        |e: &&&Endpoint| e.group == group && e.resource == resource && e.subresource == subresource && e.verb == verb;
    ALL.iter().find(matches).copied()
}
