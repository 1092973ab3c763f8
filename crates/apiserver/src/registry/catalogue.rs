//! Which resources are served: group, version and plural to the kind, its cache and its store.

use std::collections::HashMap;
use std::sync::Arc;

use kinds::{AnyKind, Shape};
use machinery::status::GroupResource;

/// One served resource.
#[derive(Clone)]
pub struct Resource {
    pub kind: &'static dyn AnyKind,
    /// Where its objects are written; `None` for kinds that are answered, not stored.
    pub store: Option<Arc<dyn storage::Store>>,
}

impl Resource {
    /// The kind's data.
    pub fn shape(&self) -> &'static Shape {
        self.kind.shape()
    }

    /// As error texts name it.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.shape().group, self.shape().plural)
    }
}

/// Every served resource.
#[derive(Default)]
pub struct Catalogue {
    by_name: HashMap<(String, String, String), Arc<Resource>>,
}

impl Catalogue {
    /// The resource a path names.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.by_name.get(&(group.to_owned(), version.to_owned(), plural.to_owned())).cloned()
    }

    /// True when the group and version are served at all.
    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.by_name.keys().any(|(g, v, _)| g == group && v == version)
    }

    /// Adds a resource.
    pub fn add(&mut self, resource: Resource) {
        let shape = resource.shape();
        let name = (shape.group.to_owned(), shape.version.to_owned(), shape.plural.to_owned());
        self.by_name.insert(name, Arc::new(resource));
    }
}
