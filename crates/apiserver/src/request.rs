//! What a request asks for, parsed once from method, path and query; pure.

/// What a request asks for, in the words of authorization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// False for `/healthz`, `/openapi/v2`, discovery and the like.
    pub is_resource: bool,
    /// The path without the query, decoded.
    pub path: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for a
    /// non-resource path the HTTP method in lower case.
    pub verb: String,
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    /// Empty at cluster scope or for all namespaces.
    pub namespace: String,
    /// The plural.
    pub resource: String,
    pub subresource: String,
    pub name: String,
}
