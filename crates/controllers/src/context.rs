//! What controllers share: caches that start when the first controller asks for them, clocks, and
//! the publisher of Waits.

use std::sync::{Arc, OnceLock};

use client::events::Source;
use client::informer::{Informer, View};
use client::waits::Publisher;
use client::{Change, Client, Meta, Resource};
use futures::future::BoxFuture;
use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage as volumes;
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};

use crate::service_pods;
use crate::views::{
    ApiServiceView, BareView, BudgetView, DefinitionView, LeaseView, NodeView, PodView, RangeView, SelectorView,
    ServiceView,
};
use crate::writer::Writer;
use crate::{Identities, Options};

/// Shared by all controllers of a process.
#[derive(Clone)]
pub(crate) struct Context {
    pub clock: SharedClock,
    pub rng: Rng,
    pub options: Arc<Options>,
    pub stage: Stage,
    shared: Arc<Shared>,
}

struct Shared {
    identities: Arc<dyn Identities>,
    reader: Client,
    pods: OnceLock<Informer<PodView>>,
    nodes: OnceLock<Informer<NodeView>>,
    deployments: OnceLock<Informer<SelectorView>>,
    replica_sets: OnceLock<Informer<SelectorView>>,
    services: OnceLock<Informer<ServiceView>>,
    slices: OnceLock<Informer<BareView>>,
    endpoints: OnceLock<Informer<BareView>>,
    namespaces: OnceLock<Informer<BareView>>,
    service_accounts: OnceLock<Informer<BareView>>,
    config_maps: OnceLock<Informer<BareView>>,
    leases: OnceLock<Informer<LeaseView>>,
    budgets: OnceLock<Informer<BudgetView>>,
    definitions: OnceLock<Informer<DefinitionView>>,
    api_services: OnceLock<Informer<ApiServiceView>>,
    claims: OnceLock<Informer<BareView>>,
    volumes: OnceLock<Informer<BareView>>,
    attributes_classes: OnceLock<Informer<BareView>>,
    service_cidrs: OnceLock<Informer<RangeView>>,
    ip_addresses: OnceLock<Informer<BareView>>,
    waits: OnceLock<Publisher>,
}

/// Pods by the node they are bound to.
pub(crate) const NODE: &str = "node";
/// Services by one label their selector demands.
pub(crate) const SELECTOR: &str = "selector";

impl Context {
    pub(crate) fn new(
        identities: Arc<dyn Identities>,
        clock: SharedClock,
        rng: Rng,
        options: Options,
        stage: Stage,
    ) -> Self {
        let reader = identities.component();
        let shared = Shared {
            identities,
            reader,
            pods: OnceLock::new(),
            nodes: OnceLock::new(),
            deployments: OnceLock::new(),
            replica_sets: OnceLock::new(),
            services: OnceLock::new(),
            slices: OnceLock::new(),
            endpoints: OnceLock::new(),
            namespaces: OnceLock::new(),
            service_accounts: OnceLock::new(),
            config_maps: OnceLock::new(),
            leases: OnceLock::new(),
            budgets: OnceLock::new(),
            definitions: OnceLock::new(),
            api_services: OnceLock::new(),
            claims: OnceLock::new(),
            volumes: OnceLock::new(),
            attributes_classes: OnceLock::new(),
            service_cidrs: OnceLock::new(),
            ip_addresses: OnceLock::new(),
            waits: OnceLock::new(),
        };
        Self { clock, rng, options: Arc::new(options), stage, shared: Arc::new(shared) }
    }

    fn builder<V: View>(&self, resource: Resource) -> client::informer::Builder<V> {
        Informer::builder(self.shared.reader.clone(), resource)
    }

    fn begin<V: View>(&self, builder: client::informer::Builder<V>) -> Informer<V> {
        builder.start(self.clock.clone(), self.rng.clone(), &self.stage)
    }

    /// The client caches read with.
    pub(crate) fn reader(&self) -> &Client {
        &self.shared.reader
    }

    /// Pods, by owner, node and label. Their bytes are not kept: no controller needs more than the view.
    pub(crate) fn pods(&self) -> Informer<PodView> {
        let start = || {
            let builder = self.builder::<PodView>(Resource::of::<core::Pod>());
            self.begin(
                builder.index_owners().index_labels().index(NODE, |_, v| vec![v.spec.node_name.clone()]).without_json(),
            )
        };
        self.shared.pods.get_or_init(start).clone()
    }

    pub(crate) fn nodes(&self) -> Informer<NodeView> {
        let start = || self.begin(self.builder(Resource::of::<core::Node>()));
        self.shared.nodes.get_or_init(start).clone()
    }

    pub(crate) fn deployments(&self) -> Informer<SelectorView> {
        let start = || self.begin(self.builder(Resource::of::<apps::Deployment>()));
        self.shared.deployments.get_or_init(start).clone()
    }

    pub(crate) fn replica_sets(&self) -> Informer<SelectorView> {
        let start = || {
            let builder = self.builder::<SelectorView>(Resource::of::<apps::ReplicaSet>());
            self.begin(builder.index_owners().index_labels())
        };
        self.shared.replica_sets.get_or_init(start).clone()
    }

    pub(crate) fn services(&self) -> Informer<ServiceView> {
        let start = || {
            let builder = self.builder::<ServiceView>(Resource::of::<core::Service>());
            self.begin(builder.index(SELECTOR, |meta, view| service_pods::index(&meta.namespace, &view.spec.selector)))
        };
        self.shared.services.get_or_init(start).clone()
    }

    pub(crate) fn slices(&self) -> Informer<BareView> {
        let start = || self.begin(self.builder(Resource::of::<EndpointSlice>()).index_labels());
        self.shared.slices.get_or_init(start).clone()
    }

    pub(crate) fn endpoints(&self) -> Informer<BareView> {
        let start = || self.begin(self.builder(Resource::of::<core::Endpoints>()));
        self.shared.endpoints.get_or_init(start).clone()
    }

    pub(crate) fn namespaces(&self) -> Informer<BareView> {
        let start = || self.begin(self.builder(Resource::of::<core::Namespace>()));
        self.shared.namespaces.get_or_init(start).clone()
    }

    pub(crate) fn service_accounts(&self) -> Informer<BareView> {
        let start = || {
            let builder = self.builder(Resource::of::<core::ServiceAccount>()).fields("metadata.name=default");
            self.begin(builder.without_json())
        };
        self.shared.service_accounts.get_or_init(start).clone()
    }

    pub(crate) fn config_maps(&self) -> Informer<BareView> {
        let start = || {
            let builder = self.builder(Resource::of::<core::ConfigMap>());
            self.begin(builder.fields(format!("metadata.name={}", crate::root_ca_publisher::NAME)))
        };
        self.shared.config_maps.get_or_init(start).clone()
    }

    pub(crate) fn leases(&self) -> Informer<LeaseView> {
        let start = || {
            let builder = self.builder(Resource::of::<Lease>()).namespace("kube-node-lease");
            self.begin(builder.without_json())
        };
        self.shared.leases.get_or_init(start).clone()
    }

    pub(crate) fn budgets(&self) -> Informer<BudgetView> {
        let start = || self.begin(self.builder(Resource::of::<PodDisruptionBudget>()));
        self.shared.budgets.get_or_init(start).clone()
    }

    pub(crate) fn claims(&self) -> Informer<BareView> {
        let start = || self.begin(self.builder(Resource::of::<core::PersistentVolumeClaim>()));
        self.shared.claims.get_or_init(start).clone()
    }

    pub(crate) fn volumes(&self) -> Informer<BareView> {
        let start = || self.begin(self.builder(Resource::of::<core::PersistentVolume>()));
        self.shared.volumes.get_or_init(start).clone()
    }

    pub(crate) fn attributes_classes(&self) -> Informer<BareView> {
        let start = || self.begin(self.builder(Resource::of::<volumes::v1::VolumeAttributesClass>()));
        self.shared.attributes_classes.get_or_init(start).clone()
    }

    pub(crate) fn service_cidrs(&self) -> Informer<RangeView> {
        let start = || self.begin(self.builder(Resource::of::<ServiceCIDR>()).without_json());
        self.shared.service_cidrs.get_or_init(start).clone()
    }

    pub(crate) fn ip_addresses(&self) -> Informer<BareView> {
        let start = || self.begin(self.builder(Resource::of::<IPAddress>()).without_json());
        self.shared.ip_addresses.get_or_init(start).clone()
    }

    /// Follows the metadata of a resource, on the shared cache where there is one. The future ends
    /// when the cache is filled.
    pub(crate) fn follow(
        &self,
        resource: &Resource,
        tell: impl Fn(&Meta, bool) + Send + Sync + 'static,
    ) -> BoxFuture<'static, ()> {
        fn attach<V: View>(
            informer: &Informer<V>,
            tell: impl Fn(&Meta, bool) + Send + Sync + 'static,
        ) -> BoxFuture<'static, ()> {
            informer.subscribe(move |change| tell(&change.object().meta, matches!(change, Change::Deleted(_))));
            Box::pin(informer.synced())
        }
        match (&*resource.group, &*resource.plural) {
            ("", "pods") => attach(&self.pods(), tell),
            ("", "nodes") => attach(&self.nodes(), tell),
            ("", "services") => attach(&self.services(), tell),
            ("", "endpoints") => attach(&self.endpoints(), tell),
            ("", "namespaces") => attach(&self.namespaces(), tell),
            ("", "persistentvolumeclaims") => attach(&self.claims(), tell),
            ("", "persistentvolumes") => attach(&self.volumes(), tell),
            ("storage.k8s.io", "volumeattributesclasses") => attach(&self.attributes_classes(), tell),
            ("apps", "deployments") => attach(&self.deployments(), tell),
            ("apps", "replicasets") => attach(&self.replica_sets(), tell),
            ("networking.k8s.io", "servicecidrs") => attach(&self.service_cidrs(), tell),
            ("networking.k8s.io", "ipaddresses") => attach(&self.ip_addresses(), tell),
            ("policy", "poddisruptionbudgets") => attach(&self.budgets(), tell),
            ("discovery.k8s.io", "endpointslices") => attach(&self.slices(), tell),
            ("apiextensions.k8s.io", "customresourcedefinitions") => attach(&self.definitions(), tell),
            ("apiregistration.k8s.io", "apiservices") => attach(&self.api_services(), tell),
            _ => attach(&self.begin(self.builder::<BareView>(resource.clone()).without_json()), tell),
        }
    }

    /// Follows the metadata of a custom resource until the stage ends, which ends with the resource. The future
    /// ends when the cache is filled.
    pub(crate) fn follow_custom(
        &self,
        resource: &Resource,
        stage: &Stage,
        tell: impl Fn(&Meta, bool) + Send + Sync + 'static,
    ) -> BoxFuture<'static, ()> {
        self.follow_with(self.shared.reader.clone(), resource, stage, tell)
    }

    /// The same, reading with this client.
    pub(crate) fn follow_with(
        &self,
        client: Client,
        resource: &Resource,
        stage: &Stage,
        tell: impl Fn(&Meta, bool) + Send + Sync + 'static,
    ) -> BoxFuture<'static, ()> {
        let builder = Informer::<BareView>::builder(client, resource.clone()).metadata_only().without_json();
        let informer = builder.start(self.clock.clone(), self.rng.clone(), stage);
        informer.subscribe(move |change| tell(&change.object().meta, matches!(change, Change::Deleted(_))));
        Box::pin(informer.synced())
    }

    /// The definitions of custom resources.
    pub(crate) fn definitions(&self) -> Informer<DefinitionView> {
        let resource =
            Resource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", false);
        let start = || self.begin(self.builder::<DefinitionView>(resource).without_json());
        self.shared.definitions.get_or_init(start).clone()
    }

    /// Who answers for which version of a group.
    pub(crate) fn api_services(&self) -> Informer<ApiServiceView> {
        let resource = Resource::new("apiregistration.k8s.io", "v1", "apiservices", "APIService", false);
        let start = || self.begin(self.builder::<ApiServiceView>(resource).without_json());
        self.shared.api_services.get_or_init(start).clone()
    }

    /// Publishes what controllers wait for.
    pub(crate) fn waits(&self) -> Publisher {
        let start = || Publisher::start(&self.shared.reader, "controllers", |_| true, self.clock.clone(), &self.stage);
        self.shared.waits.get_or_init(start).clone()
    }

    /// The writer of a controller: `account` names its service account, `component` its events.
    pub(crate) fn writer(&self, account: &str, component: &str) -> Writer {
        let client = self.shared.identities.service_account(account);
        let source = Source::Core { component: component.to_owned(), host: String::new() };
        Writer::new(client, source, self)
    }

    /// How a controller of this name and width runs.
    pub(crate) fn runner(&self, name: &'static str, workers: usize) -> client::controller::Options {
        let metrics = self.options.registry.clone();
        client::controller::Options { name, workers, clock: self.clock.clone(), rng: self.rng.clone(), metrics }
    }
}
