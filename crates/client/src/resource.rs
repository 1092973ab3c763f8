//! Where a kind's objects are reached: group, version, plural, scope.

use std::fmt;
use std::sync::Arc;

use machinery::status::GroupResource;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// A resource of the API, known at compile time or found by discovery.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    /// Empty for the core group.
    pub group: Arc<str>,
    pub version: Arc<str>,
    pub plural: Arc<str>,
    pub kind: Arc<str>,
    pub namespaced: bool,
}

/// Which scopes of `k8s-openapi` live in a namespace.
pub trait ScopeOf: k8s_openapi::ResourceScope {
    const NAMESPACED: bool;
}

impl ScopeOf for k8s_openapi::NamespaceResourceScope {
    const NAMESPACED: bool = true;
}

impl ScopeOf for k8s_openapi::ClusterResourceScope {
    const NAMESPACED: bool = false;
}

impl Resource {
    /// A resource from its parts.
    pub fn new(group: &str, version: &str, plural: &str, kind: &str, namespaced: bool) -> Self {
        let (group, version, plural, kind) = (group.into(), version.into(), plural.into(), kind.into());
        Self { group, version, plural, kind, namespaced }
    }

    /// The resource of a typed view.
    pub fn of<K>() -> Self
    where
        K: k8s_openapi::Resource,
        K::Scope: ScopeOf,
    {
        Self::new(K::GROUP, K::VERSION, K::URL_PATH_SEGMENT, K::KIND, <K::Scope as ScopeOf>::NAMESPACED)
    }

    /// `apps/v1`, `v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_string() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `deployments.apps`, `pods`.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(&*self.group, &*self.plural)
    }

    /// The path of the collection (`name` is `None`), an object, or a subresource of it. An empty
    /// namespace means all of them.
    pub fn path(&self, namespace: &str, name: Option<&str>, subresource: Option<&str>) -> String {
        let mut path = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if self.namespaced && !namespace.is_empty() {
            path.push_str("/namespaces/");
            path.extend(utf8_percent_encode(namespace, SEGMENT));
        }
        path.push('/');
        path.push_str(&self.plural);
        if let Some(name) = name {
            path.push('/');
            path.extend(utf8_percent_encode(name, SEGMENT));
        }
        if let Some(subresource) = subresource {
            path.push('/');
            path.push_str(subresource);
        }
        path
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.group_resource().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::Deployment;
    use k8s_openapi::api::core::v1::Node;

    #[test]
    fn paths() {
        let deployments = Resource::of::<Deployment>();
        assert_eq!(deployments.path("", None, None), "/apis/apps/v1/deployments");
        assert_eq!(
            deployments.path("default", Some("web"), Some("status")),
            "/apis/apps/v1/namespaces/default/deployments/web/status"
        );
        assert_eq!(Resource::of::<Node>().path("", Some("a/../b"), None), "/api/v1/nodes/a%2F..%2Fb");
    }
}
