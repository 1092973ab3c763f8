//! What the kubelet asks of the API server for one pod, behind a trait so that tests can answer.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use api::leaving;
use api::types::coordination::v1::Lease;
use api::types::core::v1::{self as core, ConfigMap, Pod, Secret, ServiceAccount};
use api::types::node::v1::RuntimeClass;
use async_trait::async_trait;
use client::{Client, DeleteParams, Error, Informer, Key, Patch, Resource};
use futures::future::try_join_all;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use tokio::sync::watch;

use crate::container::env::Objects;
use crate::container::service_links::Service;
use crate::image::provider::Accounts;
use crate::pod::BoundPod;
use crate::shared::Shared;
use crate::shown::ShownStatus;
use crate::volume::files::{Needs, TokenKey};

/// A token and when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub token: String,
    pub expires: Timestamp,
}

/// The API server.
#[async_trait]
pub trait Cluster: Send + Sync + 'static {
    /// The objects a pod refers to that exist. From now on changes to them are told to the pod.
    async fn objects(&self, pod: &BoundPod, needs: &Needs) -> Result<Objects, Error>;
    /// The pod refers to nothing any more.
    fn release(&self, uid: &str);
    /// A token for the pod's service account, bound to the pod.
    async fn token(&self, pod: &BoundPod, key: &TokenKey) -> Result<Token, Error>;
    /// Changes the pod's status; what became of it, or `None` when the pod is gone (a namesake is not the pod).
    async fn patch_status(&self, pod: &BoundPod, patch: &Value) -> Result<Option<Box<ShownStatus>>, Error>;
    /// Removes a pod that ended from the API.
    async fn delete(&self, pod: &BoundPod) -> Result<(), Error>;
    /// The handler of a RuntimeClass; `None` when there is no such class.
    async fn runtime_handler(&self, class: &str) -> Result<Option<String>, Error>;
    /// The Services there are.
    fn services(&self) -> Vec<Service>;
    /// The names of the Services whose rules on this node the pod's endpoint is to leave before the pod ends.
    fn leaves_first(&self, pod: &BoundPod) -> Vec<String>;
    /// Ends once this node's service proxy says that it has left those of all `services`.
    async fn has_left(&self, pod: &BoundPod, services: &[String]);
}

/// What is done for a pod whose objects changed.
pub type OnChange = Arc<dyn Fn(&str) + Send + Sync>;

/// There is none: only static pods run, and they need nothing of it.
pub struct NoCluster;

/// Why nothing can be had.
fn nobody<T>() -> Result<T, Error> {
    Err(Error::Interrupted("this kubelet runs without an API server".into()))
}

#[async_trait]
impl Cluster for NoCluster {
    async fn objects(&self, _: &BoundPod, needs: &Needs) -> Result<Objects, Error> {
        if *needs == Needs::default() { Ok(Objects::default()) } else { nobody() }
    }

    fn release(&self, _: &str) {}

    async fn token(&self, _: &BoundPod, _: &TokenKey) -> Result<Token, Error> {
        nobody()
    }

    async fn patch_status(&self, _: &BoundPod, _: &Value) -> Result<Option<Box<ShownStatus>>, Error> {
        nobody()
    }

    async fn delete(&self, _: &BoundPod) -> Result<(), Error> {
        nobody()
    }

    async fn runtime_handler(&self, _: &str) -> Result<Option<String>, Error> {
        nobody()
    }

    fn services(&self) -> Vec<Service> {
        Vec::new()
    }

    fn leaves_first(&self, _: &BoundPod) -> Vec<String> {
        Vec::new()
    }

    async fn has_left(&self, _: &BoundPod, _: &[String]) {}
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    ConfigMap,
    Secret,
}

enum Follower {
    ConfigMap(Informer<Shared<ConfigMap>>),
    Secret(Informer<Shared<Secret>>),
    /// It says of itself that it never changes: nobody watches it.
    FixedConfigMap(Arc<ConfigMap>),
    FixedSecret(Arc<Secret>),
}

/// One object that pods refer to, followed while any does.
struct Followed {
    users: HashSet<String>,
    follower: Follower,
    stage: Stage,
}

type Table = Arc<Mutex<HashMap<(Kind, Key), Followed>>>;

/// What this node's service proxy tells.
struct Leaving {
    lease: Informer<Shared<Lease>>,
    /// Goes up with every change.
    changes: watch::Receiver<u64>,
}

/// Do connections come to the pod by this Service, and does it want the pod's endpoint to leave first?
fn leaves_first(service: &core::Service, pod: &BoundPod) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    let Some(spec) = &service.spec else { return false };
    let labels = pod.meta().labels.as_ref();
    let selects = |(key, value): (&String, &String)| labels.and_then(|l| l.get(key)) == Some(value);
    let has_rules = spec.type_.as_deref() != Some("ExternalName")
        && !matches!(spec.cluster_ip.as_deref(), None | Some("" | "None"));
    leaving::is_wanted(annotations.and_then(|a| a.get(leaving::WANTED)).map(String::as_str))
        && has_rules
        // Connections go to all of its endpoints for as long as there are any.
        && spec.publish_not_ready_addresses != Some(true)
        && spec.selector.as_ref().is_some_and(|s| !s.is_empty() && s.iter().all(selects))
}

/// The real one.
pub struct ApiCluster {
    client: Client,
    clock: SharedClock,
    rng: Rng,
    stage: Stage,
    services: Informer<core::Service>,
    /// Followed from the first pod on that wants one.
    runtime_classes: OnceLock<Informer<RuntimeClass>>,
    /// Followed from the first pod on whose endpoints leave before it ends.
    leaving: OnceLock<Leaving>,
    followed: Table,
    on_change: OnChange,
}

impl ApiCluster {
    /// `stage` ends the watches; `on_change` is called with the uid of each pod whose objects changed.
    pub fn start(client: Client, clock: SharedClock, rng: Rng, stage: &Stage, on_change: OnChange) -> Self {
        let services = Informer::builder(client.clone(), Resource::of::<core::Service>()).without_json().start(
            clock.clone(),
            rng.clone(),
            stage,
        );
        Self {
            client,
            clock,
            rng,
            stage: stage.clone(),
            services,
            runtime_classes: OnceLock::new(),
            leaving: OnceLock::new(),
            followed: Table::default(),
            on_change,
        }
    }

    /// Ends once the Services are known.
    pub async fn synced(&self) {
        self.services.synced().await;
    }

    /// Follows an object from now on, for one more user.
    fn follow(&self, kind: Kind, key: &Key, uid: &str) {
        let mut followed = self.followed.lock();
        let id = (kind, key.clone());
        if let Some(known) = followed.get_mut(&id) {
            known.users.insert(uid.to_owned());
            return;
        }
        // A stage of its own: this watch ends when its last user goes.
        let stage = Stage::new();
        let (inner, outer) = (stage.clone(), self.stage.clone());
        self.stage.spawn(async move {
            tokio::select! {
                () = outer.stopped() => inner.stop(),
                () = inner.stopped() => {}
            }
        });
        let fields = format!("metadata.name={}", key.name);
        let (table, on_change, told) = (Arc::downgrade(&self.followed), self.on_change.clone(), id.clone());
        let tell = move || {
            let Some(table) = table.upgrade() else { return };
            let users: Vec<String> =
                table.lock().get(&told).map(|f| f.users.iter().cloned().collect()).unwrap_or_default();
            users.iter().for_each(|uid| on_change(uid));
        };
        // Subscribed only after the table is free again: the handler reads it.
        match kind {
            Kind::ConfigMap => {
                let informer = Informer::<Shared<ConfigMap>>::builder(self.client.clone(), Resource::of::<ConfigMap>())
                    .namespace(&key.namespace)
                    .fields(fields)
                    .without_json()
                    .start(self.clock.clone(), self.rng.clone(), &stage);
                let follower = Follower::ConfigMap(informer.clone());
                followed.insert(id, Followed { users: HashSet::from([uid.to_owned()]), follower, stage });
                drop(followed);
                informer.subscribe(move |_| tell());
            }
            Kind::Secret => {
                let informer = Informer::<Shared<Secret>>::builder(self.client.clone(), Resource::of::<Secret>())
                    .namespace(&key.namespace)
                    .fields(fields)
                    .without_json()
                    .start(self.clock.clone(), self.rng.clone(), &stage);
                let follower = Follower::Secret(informer.clone());
                followed.insert(id, Followed { users: HashSet::from([uid.to_owned()]), follower, stage });
                drop(followed);
                informer.subscribe(move |_| tell());
            }
        }
    }

    fn known_config_map(&self, key: &Key) -> Option<Arc<ConfigMap>> {
        match &self.followed.lock().get(&(Kind::ConfigMap, key.clone()))?.follower {
            Follower::ConfigMap(informer) => informer.get(key).map(|c| c.view.0.clone()),
            Follower::FixedConfigMap(map) => Some(map.clone()),
            Follower::Secret(_) | Follower::FixedSecret(_) => None,
        }
    }

    fn known_secret(&self, key: &Key) -> Option<Arc<Secret>> {
        match &self.followed.lock().get(&(Kind::Secret, key.clone()))?.follower {
            Follower::Secret(informer) => informer.get(key).map(|c| c.view.0.clone()),
            Follower::FixedSecret(secret) => Some(secret.clone()),
            Follower::ConfigMap(_) | Follower::FixedConfigMap(_) => None,
        }
    }

    /// What says that it never changes is followed no more; it is kept while pods use it.
    fn fix(&self, kind: Kind, key: &Key, immutable: Option<bool>, fixed: Follower) {
        if immutable != Some(true) {
            return;
        }
        if let Some(followed) = self.followed.lock().get_mut(&(kind, key.clone())) {
            followed.follower = fixed;
            followed.stage.stop();
        }
    }

    /// Drops what the pod no longer needs.
    fn unfollow(&self, uid: &str, needs: &Needs, namespace: &str) {
        self.followed.lock().retain(|(kind, key), followed| {
            let wanted = key.namespace == namespace
                && match kind {
                    Kind::ConfigMap => needs.config_maps.contains(&key.name),
                    Kind::Secret => needs.secrets.contains(&key.name),
                };
            if !wanted {
                followed.users.remove(uid);
            }
            if followed.users.is_empty() {
                followed.stage.stop();
            }
            !followed.users.is_empty()
        });
    }
}

#[async_trait]
impl Cluster for ApiCluster {
    async fn objects(&self, pod: &BoundPod, needs: &Needs) -> Result<Objects, Error> {
        // What the watch does not show (yet) may exist all the same: ask. For all of them at once.
        let config_maps = needs.config_maps.iter().map(|name| async move {
            let key = Key::new(&pod.namespace, name);
            self.follow(Kind::ConfigMap, &key, &pod.uid);
            let found = match self.known_config_map(&key) {
                Some(found) => Some(found),
                None => self.client.api::<ConfigMap>().namespace(&pod.namespace).find(name).await?.map(Arc::new),
            };
            if let Some(map) = &found {
                self.fix(Kind::ConfigMap, &key, map.immutable, Follower::FixedConfigMap(map.clone()));
            }
            Ok::<_, Error>(found.map(|f| (name.clone(), f)))
        });
        let secrets = needs.secrets.iter().map(|name| async move {
            let key = Key::new(&pod.namespace, name);
            self.follow(Kind::Secret, &key, &pod.uid);
            let found = match self.known_secret(&key) {
                Some(found) => Some(found),
                None => self.client.api::<Secret>().namespace(&pod.namespace).find(name).await?.map(Arc::new),
            };
            if let Some(secret) = &found {
                self.fix(Kind::Secret, &key, secret.immutable, Follower::FixedSecret(secret.clone()));
            }
            Ok(found.map(|f| (name.clone(), f)))
        });
        let (config_maps, secrets) = tokio::try_join!(try_join_all(config_maps), try_join_all(secrets))?;
        let out = Objects {
            config_maps: config_maps.into_iter().flatten().collect(),
            secrets: secrets.into_iter().flatten().collect(),
        };
        self.unfollow(&pod.uid, needs, &pod.namespace);
        Ok(out)
    }

    fn release(&self, uid: &str) {
        self.unfollow(uid, &Needs::default(), "");
    }

    async fn token(&self, pod: &BoundPod, key: &TokenKey) -> Result<Token, Error> {
        let account = pod.spec().service_account_name.as_deref().unwrap_or("default");
        let audiences: Vec<&str> = if key.audience.is_empty() { Vec::new() } else { vec![&key.audience] };
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": audiences, "expirationSeconds": key.seconds,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}},
        });
        let accounts = self.client.api::<ServiceAccount>().namespace(&pod.namespace);
        let answer = accounts.create_subresource(account, "token", &body).await?;
        let text = |pointer: &str| answer.pointer(pointer).and_then(Value::as_str);
        let token = text("/status/token").filter(|t| !t.is_empty());
        let expires = text("/status/expirationTimestamp").and_then(machinery::time::parse);
        match (token, expires) {
            (Some(token), Some(expires)) => Ok(Token { token: token.to_owned(), expires }),
            _ => Err(Error::Decode(format!("the token for service account {account} is incomplete"))),
        }
    }

    async fn patch_status(&self, pod: &BoundPod, patch: &Value) -> Result<Option<Box<ShownStatus>>, Error> {
        let pods = self.client.api::<Pod>().namespace(&pod.namespace);
        match pods.patch_status_as(&pod.name, &Patch::Strategic(patch.clone())).await {
            Ok(status) => Ok(Some(status)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) if error.is_conflict() => match pods.find(&pod.name).await? {
                Some(found) if found.metadata.uid.as_deref() == Some(&pod.uid) => Err(error),
                _ => Ok(None),
            },
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, pod: &BoundPod) -> Result<(), Error> {
        let pods = self.client.api::<Pod>().namespace(&pod.namespace);
        match pods.delete(&pod.name, &DeleteParams::of_uid(&pod.uid).grace(0)).await {
            // A conflict says that the name belongs to another pod by now.
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }

    async fn runtime_handler(&self, class: &str) -> Result<Option<String>, Error> {
        let classes = self.runtime_classes.get_or_init(|| {
            Informer::builder(self.client.clone(), Resource::of::<RuntimeClass>()).without_json().start(
                self.clock.clone(),
                self.rng.clone(),
                &self.stage,
            )
        });
        // What the watch does not show (yet) may exist all the same.
        if let Some(found) = classes.get(&Key::new("", class)) {
            return Ok(Some(found.view.handler.clone()));
        }
        Ok(self.client.api::<RuntimeClass>().find(class).await?.map(|class| class.handler))
    }

    fn services(&self) -> Vec<Service> {
        let services = self.services.list();
        services
            .iter()
            .filter_map(|cached| {
                let spec = cached.view.spec.as_ref()?;
                let ports = spec.ports.iter().flatten();
                Some(Service {
                    namespace: cached.meta.namespace.clone(),
                    name: cached.meta.name.clone(),
                    cluster_ip: spec.cluster_ip.clone()?,
                    ports: ports
                        .map(|p| {
                            let protocol = p.protocol.clone().unwrap_or_else(|| "TCP".into());
                            (p.name.clone().unwrap_or_default(), protocol, p.port)
                        })
                        .collect(),
                })
            })
            .collect()
    }

    fn leaves_first(&self, pod: &BoundPod) -> Vec<String> {
        let services = self.services.list_namespace(&pod.namespace);
        services.iter().filter(|s| leaves_first(&s.view, pod)).map(|s| s.meta.name.clone()).collect()
    }

    async fn has_left(&self, pod: &BoundPod, services: &[String]) {
        let node = pod.spec().node_name.as_deref().unwrap_or_default();
        let Leaving { lease, changes } = self.leaving(node);
        let (key, mut changes) = (Key::new(leaving::NAMESPACE, leaving::lease(node)), changes.clone());
        let left = |service: &String| leaving::Left {
            namespace: pod.namespace.clone(),
            service: service.clone(),
            uid: pod.uid.clone(),
        };
        let wanted: Vec<leaving::Left> = services.iter().map(left).collect();
        loop {
            changes.mark_unchanged();
            let lease = lease.get(&key);
            let annotations = lease.as_ref().and_then(|lease| lease.view.0.metadata.annotations.as_ref());
            let told = annotations.and_then(|a| a.get(leaving::LEFT)).map(String::as_str).unwrap_or_default();
            if wanted.iter().all(|left| left.is_in(told)) {
                return;
            }
            if changes.changed().await.is_err() {
                // Nobody will tell any more: the node stops.
                return std::future::pending().await;
            }
        }
    }
}

impl ApiCluster {
    /// The Lease by which the service proxy of a node speaks, followed from now on.
    fn leaving(&self, node: &str) -> &Leaving {
        self.leaving.get_or_init(|| {
            let lease = Informer::<Shared<Lease>>::builder(self.client.clone(), Resource::of::<Lease>())
                .namespace(leaving::NAMESPACE)
                .fields(format!("metadata.name={}", leaving::lease(node)))
                .without_json()
                .start(self.clock.clone(), self.rng.clone(), &self.stage);
            let (tell, changes) = watch::channel(0);
            lease.subscribe(move |_| tell.send_modify(|changes| *changes += 1));
            Leaving { lease, changes }
        })
    }
}

#[async_trait]
impl Accounts for ApiCluster {
    async fn account(&self, pod: &BoundPod) -> Result<Option<ServiceAccount>, Error> {
        let name = pod.spec().service_account_name.as_deref().unwrap_or("default");
        self.client.api::<ServiceAccount>().namespace(&pod.namespace).find(name).await
    }

    async fn account_token(&self, pod: &BoundPod, audience: &str) -> Result<String, Error> {
        let key = TokenKey { audience: audience.to_owned(), seconds: 3600 };
        Ok(self.token(pod, &key).await?.token)
    }
}
