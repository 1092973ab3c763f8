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
pub struct ScalePaths<'a> {
    /// JSON pointers.
    pub spec_replicas: &'a str,
    pub status_replicas: &'a str,
    pub selector: &'a str,
}

/// Names that a kind brings along: written in the program, or read from a custom resource's definition.
#[derive(Clone, Copy, Debug)]
pub enum Names<'a> {
    Written(&'static [&'static str]),
    Read(&'a [String]),
}

impl<'a> Names<'a> {
    /// Each of them, in order.
    pub fn iter(self) -> impl Iterator<Item = &'a str> {
        let (written, read): (&[&str], &[String]) = match self {
            Self::Written(names) => (names, &[]),
            Self::Read(names) => (&[], names),
        };
        written.iter().copied().chain(read.iter().map(String::as_str))
    }
}

impl PartialEq for Names<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Names<'_> {}

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

/// Every verb of a request that is passed on, sorted.
pub const PROXIED: &[&str] = &["create", "delete", "get", "patch", "update"];

/// The data of a kind that is written in the program. Built by `const` chaining, for example
/// `Shape::namespaced("apps", "v1", "Deployment", "deployments").short(&["deploy"]).status()`.
pub type Shape = AnyShape<'static>;

/// The data of any kind; what a custom resource's definition says is borrowed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnyShape<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    pub plural: &'a str,
    pub singular: &'a str,
    /// What lists of it are; empty for the kind with `List` behind it.
    pub list_kind: &'a str,
    pub short_names: Names<'a>,
    pub categories: Names<'a>,
    pub scope: Scope,
    pub keep: Keep,
    /// Storage key prefix below `/registry/`, upstream's own (`services/specs`, `minions`, …).
    pub prefix: &'a str,
    pub verbs: &'static [&'static str],
    /// Its definition is being deleted: nothing is created any more.
    pub is_ending: bool,
    /// Has a `status` subresource: create drops status, PUT keeps the old status, `/status` keeps
    /// everything else.
    pub has_status: bool,
    pub scale: Option<ScalePaths<'a>>,
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
    /// The same for each door by its subresource (empty: the main one), for kinds whose doors differ from
    /// what is usual; a door that is not named is as usual.
    pub door_resets: &'static [(&'static str, &'static [&'static [&'static str]])],
    /// Other versions that the same objects are served in (`events.k8s.io/v1` of Event).
    pub also_in: Names<'a>,
    /// PUT on an absent object creates it.
    pub create_on_update: bool,
    /// An object without a name, and without what one could be made of, gets one that nobody has: a UUID.
    pub names_the_nameless: bool,
    /// PUT without a resourceVersion overwrites.
    pub unconditional_update: bool,
    pub propagation: Propagation,
    /// A delete that ends the object answers with it as it was, not with a Status.
    pub answers_deleted: bool,
    /// Sent as a warning with every answer about this resource; empty for those without.
    pub deprecation: &'a str,
    /// Selectable fields that the watch cache indexes: lists and watches that name one do not look
    /// at all objects.
    pub indexed: &'static [&'static str],
}

impl<'a> AnyShape<'a> {
    const fn base(group: &'a str, version: &'a str, kind: &'a str, plural: &'a str, scope: Scope) -> Self {
        Self {
            group,
            version,
            kind,
            plural,
            singular: "",
            list_kind: "",
            short_names: Names::Written(&[]),
            categories: Names::Written(&[]),
            scope,
            keep: Keep::Durable,
            prefix: plural,
            verbs: ALL_VERBS,
            is_ending: false,
            has_status: false,
            scale: None,
            subresources: &[],
            has_generation: false,
            status_on_create: false,
            metadata_counts: &[],
            status_keeps: &[],
            status_resets: &[&["spec"]],
            also_in: Names::Written(&[]),
            door_resets: &[],
            create_on_update: false,
            names_the_nameless: false,
            unconditional_update: true,
            propagation: Propagation::Background,
            answers_deleted: false,
            deprecation: "",
            indexed: &[],
        }
    }

    /// A kind whose objects live in namespaces.
    pub const fn namespaced(group: &'a str, version: &'a str, kind: &'a str, plural: &'a str) -> Self {
        Self::base(group, version, kind, plural, Scope::Namespaced)
    }

    /// A kind whose objects belong to the cluster.
    pub const fn cluster(group: &'a str, version: &'a str, kind: &'a str, plural: &'a str) -> Self {
        Self::base(group, version, kind, plural, Scope::Cluster)
    }

    /// The singular name, as discovery prints it.
    #[must_use]
    pub const fn singular(mut self, name: &'a str) -> Self {
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

    /// What each door does not let in.
    #[must_use]
    pub const fn resets_by(mut self, doors: &'static [(&'static str, &'static [&'static [&'static str]])]) -> Self {
        self.door_resets = doors;
        self
    }

    /// Other versions that the same objects are served in.
    #[must_use]
    pub const fn also_in(mut self, versions: &'static [&'static str]) -> Self {
        self.also_in = Names::Written(versions);
        self
    }

    #[must_use]
    pub const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short_names = Names::Written(names);
        self
    }

    #[must_use]
    pub const fn categories(mut self, names: &'static [&'static str]) -> Self {
        self.categories = Names::Written(names);
        self
    }

    #[must_use]
    pub const fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    #[must_use]
    pub const fn prefix(mut self, prefix: &'a str) -> Self {
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
    pub const fn scale(mut self, paths: ScalePaths<'a>) -> Self {
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
    pub const fn deprecated(mut self, warning: &'a str) -> Self {
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

    #[must_use]
    pub const fn names_the_nameless(mut self) -> Self {
        self.names_the_nameless = true;
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
        if let Some((_, paths)) = self.door_resets.iter().find(|(door, _)| *door == subresource) {
            return paths;
        }
        match (self.has_status, subresource) {
            (false, _) => &[],
            (true, "status") => self.status_resets,
            (true, _) => &[&["status"]],
        }
    }

    /// What a list of it says it is: `PodList`.
    pub fn list_kind(&self) -> String {
        if self.list_kind.is_empty() { format!("{}List", self.kind) } else { self.list_kind.to_owned() }
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
