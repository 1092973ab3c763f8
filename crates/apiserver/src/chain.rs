//! The handler chain: what happens to a request, in order, on one screen.

use std::sync::Arc;

use bytes::Bytes;
use kinds::User;

use crate::audit::causes::Causes;
use crate::request::{Query, RequestInfo};
use crate::server::ApiServer;

/// One request after authentication, authorization and reading of the body.
pub struct Call {
    pub server: Arc<ApiServer>,
    pub info: RequestInfo,
    pub user: User,
    pub query: Query,
    pub headers: http::HeaderMap,
    /// Read whole, at most 3 MiB.
    pub body: Bytes,
    pub causes: Causes,
}

/// Answers one request.
pub async fn handle(server: Arc<ApiServer>, request: transport::Request) -> transport::Response {
    drop((server, request));
    let mut response = http::Response::new(transport::full("404 page not found\n"));
    *response.status_mut() = http::StatusCode::NOT_FOUND;
    response
}
