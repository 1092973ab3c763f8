//! The facts of a kind that are data, not code: what every upstream strategy retypes.

/// Whether objects live in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
}

/// Where a kind's objects live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// In the durable store.
    Durable,
    /// In the durable store, acknowledged with the next group commit (Leases, Events).
    Relaxed,
    /// In the memory store: gone with the process.
    Memory,
    /// Nowhere: the request is answered by a handler (reviews, Binding).
    Virtual,
}

/// A subresource beside `status` and `scale`, as discovery shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subresource {
    pub name: &'static str,
    /// Group, version and kind of what is sent; the empty group and version are the parent's.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    /// Sorted, as discovery prints them.
    pub verbs: &'static [&'static str],
}

/// Where the `scale` subresource reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    /// JSON pointers.
    pub spec_replicas: &'static str,
    pub status_replicas: &'static str,
    pub selector: &'static str,
}

/// What a delete does with dependents when the client does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Orphan,
    /// The garbage collector does not know the kind; whatever the client says, nothing waits for it.
    Uncollected,
}

/// Every verb of an ordinary resource, sorted.
pub const ALL_VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// A kind's data. Built by `const` chaining, for example
/// `Shape::namespaced("apps", "v1", "Deployment", "deployments").short(&["deploy"]).status()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub scope: Scope,
    pub keep: Keep,
    /// Storage key prefix below `/registry/`, upstream's own (`services/specs`, `minions`, …).
    pub prefix: &'static str,
    pub verbs: &'static [&'static str],
    /// Has a `status` subresource: create drops status, PUT keeps the old status, `/status` keeps
    /// everything else.
    pub has_status: bool,
    pub scale: Option<ScalePaths>,
    pub subresources: &'static [Subresource],
    /// `metadata.generation` starts at 1 and grows when anything but metadata and status changed.
    pub has_generation: bool,
    /// Create keeps the status that was sent (Node).
    pub status_on_create: bool,
    /// Fields of `metadata` whose change moves the generation too (annotations of a Deployment).
    pub metadata_counts: &'static [&'static str],
    /// What of `metadata` a write to `/status` may not change, beside what no write may.
    pub status_keeps: &'static [&'static str],
    /// Paths of field names that a write to `/status` does not own.
    pub status_resets: &'static [&'static [&'static str]],
    /// Other versions that the same objects are served in (`events.k8s.io/v1` of Event).
    pub also_in: &'static [&'static str],
    /// PUT on an absent object creates it.
    pub create_on_update: bool,
    /// PUT without a resourceVersion overwrites.
    pub unconditional_update: bool,
    pub propagation: Propagation,
    /// A delete that ends the object answers with it as it was, not with a Status.
    pub answers_deleted: bool,
    /// Sent as a warning with every answer about this resource; empty for those without.
    pub deprecation: &'static str,
    /// Selectable fields that the watch cache indexes: lists and watches that name one do not look
    /// at all objects.
    pub indexed: &'static [&'static str],
}

impl Shape {
    const fn base(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        scope: Scope,
    ) -> Self {
        Self {
            group,
            version,
            kind,
            plural,
            singular: "",
            short_names: &[],
            categories: &[],
            scope,
            keep: Keep::Durable,
            prefix: plural,
            verbs: ALL_VERBS,
            has_status: false,
            scale: None,
            subresources: &[],
            has_generation: false,
            status_on_create: false,
            metadata_counts: &[],
            status_keeps: &[],
            status_resets: &[&["spec"]],
            also_in: &[],
            create_on_update: false,
            unconditional_update: true,
            propagation: Propagation::Background,
            answers_deleted: false,
            deprecation: "",
            indexed: &[],
        }
    }

    /// A kind whose objects live in namespaces.
    pub const fn namespaced(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Self {
        Self::base(group, version, kind, plural, Scope::Namespaced)
    }

    /// A kind whose objects belong to the cluster.
    pub const fn cluster(group: &'static str, version: &'static str, kind: &'static str, plural: &'static str) -> Self {
        Self::base(group, version, kind, plural, Scope::Cluster)
    }

    /// The singular name, as discovery prints it.
    #[must_use]
    pub const fn singular(mut self, name: &'static str) -> Self {
        self.singular = name;
        self
    }

    /// Tracks generation without a status subresource (EndpointSlice), or beside one.
    #[must_use]
    pub const fn generation(mut self) -> Self {
        self.has_generation = true;
        self
    }

    /// Create keeps the status that was sent.
    #[must_use]
    pub const fn status_on_create(mut self) -> Self {
        self.status_on_create = true;
        self
    }

    /// Metadata fields whose change moves the generation.
    #[must_use]
    pub const fn metadata_counts(mut self, fields: &'static [&'static str]) -> Self {
        self.metadata_counts = fields;
        self
    }

    /// Metadata fields that a write to `/status` takes from the stored object.
    #[must_use]
    pub const fn status_keeps(mut self, fields: &'static [&'static str]) -> Self {
        self.status_keeps = fields;
        self
    }

    /// Paths that a write to `/status` does not own, when they are more than `spec`.
    #[must_use]
    pub const fn status_resets(mut self, paths: &'static [&'static [&'static str]]) -> Self {
        self.status_resets = paths;
        self
    }

    /// Other versions that the same objects are served in.
    #[must_use]
    pub const fn also_in(mut self, versions: &'static [&'static str]) -> Self {
        self.also_in = versions;
        self
    }

    #[must_use]
    pub const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short_names = names;
        self
    }

    #[must_use]
    pub const fn categories(mut self, names: &'static [&'static str]) -> Self {
        self.categories = names;
        self
    }

    #[must_use]
    pub const fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    #[must_use]
    pub const fn prefix(mut self, prefix: &'static str) -> Self {
        self.prefix = prefix;
        self
    }

    #[must_use]
    pub const fn verbs(mut self, verbs: &'static [&'static str]) -> Self {
        self.verbs = verbs;
        self
    }

    /// Adds the `status` subresource and generation tracking.
    #[must_use]
    pub const fn status(mut self) -> Self {
        self.has_status = true;
        self.has_generation = true;
        self
    }

    /// Has a status subresource but no generation (Namespace, Node, Service, …).
    #[must_use]
    pub const fn status_without_generation(mut self) -> Self {
        self.has_status = true;
        self
    }

    #[must_use]
    pub const fn scale(mut self, paths: ScalePaths) -> Self {
        self.scale = Some(paths);
        self
    }

    #[must_use]
    pub const fn subresources(mut self, list: &'static [Subresource]) -> Self {
        self.subresources = list;
        self
    }

    /// A delete answers with the object as it was.
    #[must_use]
    pub const fn answers_deleted(mut self) -> Self {
        self.answers_deleted = true;
        self
    }

    /// Warns whoever asks for the resource.
    #[must_use]
    pub const fn deprecated(mut self, warning: &'static str) -> Self {
        self.deprecation = warning;
        self
    }

    /// Selectable fields by which objects are found without a walk over all.
    #[must_use]
    pub const fn indexed(mut self, fields: &'static [&'static str]) -> Self {
        self.indexed = fields;
        self
    }

    #[must_use]
    pub const fn create_on_update(mut self) -> Self {
        self.create_on_update = true;
        self
    }

    /// The garbage collector does not know the kind.
    #[must_use]
    pub const fn uncollected(mut self) -> Self {
        self.propagation = Propagation::Uncollected;
        self
    }

    /// A delete that does not say otherwise leaves the dependents.
    #[must_use]
    pub const fn orphans(mut self) -> Self {
        self.propagation = Propagation::Orphan;
        self
    }

    #[must_use]
    pub const fn conditional_update(mut self) -> Self {
        self.unconditional_update = false;
        self
    }

    /// The paths of field names that a write of the object, or of one of its subresources, does not own:
    /// what that door does not let in.
    pub fn resets(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        match (self.has_status, subresource) {
            (false, _) => &[],
            (true, "status") => self.status_resets,
            (true, _) => &[&["status"]],
        }
    }

    /// `apps/v1`, `v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// True when objects live in a namespace.
    pub fn is_namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    /// The storage key of an object. `namespace` is ignored for cluster scope.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        match self.scope {
            Scope::Namespaced => format!("/registry/{}/{namespace}/{name}", self.prefix),
            Scope::Cluster => format!("/registry/{}/{name}", self.prefix),
        }
    }
}
