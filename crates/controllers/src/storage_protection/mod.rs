//! Volumes, claims and classes of attributes that are deleted stay until nothing uses them: each
//! carries a finalizer, which is taken away when nothing does.
//!
//! ```text
//!  claim   ◄─ pods that are bound to a node and name it
//!  volume  ◄─ its own phase: bound to a claim
//!  class   ◄─ claims and volumes that name it
//! ```

mod plan;

use std::sync::Arc;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::{Change, Informer, Key, ListParams, Queue, Resource, Result};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage as volumes;
use serde_json::Value;

use crate::context::Context;
use crate::views::BareView;
use crate::writer::{Writer, revision};

/// What is protected, and what could use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Claims,
    Volumes,
    Classes,
}

impl Of {
    fn finalizer(self) -> &'static str {
        match self {
            Self::Claims => "kubernetes.io/pvc-protection",
            Self::Volumes => "kubernetes.io/pv-protection",
            Self::Classes => "kubernetes.io/vac-protection",
        }
    }
}

struct Controller {
    of: Of,
    objects: Informer<BareView>,
    resource: Resource,
    /// Where users are looked for: in the object's namespace, where it has one.
    users: Vec<Resource>,
    writer: Writer,
}

pub(crate) fn start_claims(context: &Context) {
    let controller = Arc::new(Controller {
        of: Of::Claims,
        objects: context.claims(),
        resource: Resource::of::<PersistentVolumeClaim>(),
        users: vec![Resource::of::<Pod>()],
        writer: context.writer("pvc-protection-controller", "pvc-protection-controller"),
    });
    let queue = controller.queue(context);
    let pods = context.pods();
    let (own, keys, cause) = (controller.clone(), queue.clone(), pods.clone());
    // Only a pod that goes frees a claim.
    pods.subscribe(move |change| {
        if let Change::Deleted(pod) = change {
            for claim in own.leaving().filter(|claim| claim.namespace == pod.meta.namespace) {
                keys.add_caused(claim, cause.cause(pod));
            }
        }
    });
    let own = controller.clone();
    let ready = async move {
        own.objects.synced().await;
        pods.synced().await;
    };
    controller::run(context.runner("pvc-protection", 1), queue, controller, ready, &context.stage);
}

pub(crate) fn start_volumes(context: &Context) {
    let controller = Arc::new(Controller {
        of: Of::Volumes,
        objects: context.volumes(),
        resource: Resource::of::<PersistentVolume>(),
        users: Vec::new(),
        writer: context.writer("pv-protection-controller", "pv-protection-controller"),
    });
    let queue = controller.queue(context);
    let own = controller.clone();
    let ready = async move { own.objects.synced().await };
    controller::run(context.runner("pv-protection", 1), queue, controller, ready, &context.stage);
}

pub(crate) fn start_classes(context: &Context) {
    let account = "volumeattributesclass-protection-controller";
    let controller = Arc::new(Controller {
        of: Of::Classes,
        objects: context.attributes_classes(),
        resource: Resource::of::<volumes::v1::VolumeAttributesClass>(),
        users: vec![Resource::of::<PersistentVolumeClaim>(), Resource::of::<PersistentVolume>()],
        writer: context.writer(account, account),
    });
    let queue = controller.queue(context);
    for users in [context.claims(), context.volumes()] {
        let (own, keys, cause) = (controller.clone(), queue.clone(), users.clone());
        users.subscribe(move |change| {
            for class in own.leaving() {
                keys.add_caused(class, cause.cause(change.object()));
            }
        });
    }
    let own = controller.clone();
    let ready = async move { own.objects.synced().await };
    controller::run(context.runner("vac-protection", 1), queue, controller, ready, &context.stage);
}

impl Controller {
    /// A queue that every change of the objects themselves is put into.
    fn queue(self: &Arc<Self>, context: &Context) -> Arc<Queue<Key>> {
        let queue = Queue::<Key>::new(context.clock.clone());
        let (own, keys) = (self.clone(), queue.clone());
        self.objects.subscribe(move |change| {
            if let Change::Applied { new, .. } = change {
                keys.add_caused(new.meta.key(), own.objects.cause(new));
            }
        });
        queue
    }

    /// The objects that are being deleted.
    fn leaving(&self) -> impl Iterator<Item = Key> + use<> {
        let leaving: Vec<Key> =
            self.objects.list().iter().filter(|object| object.meta.is_deleting()).map(|o| o.meta.key()).collect();
        leaving.into_iter()
    }

    /// Asked of the API server, not of a cache: what is let go cannot be taken back.
    async fn is_used(&self, object: &Value) -> Result<bool> {
        if self.of == Of::Volumes {
            return Ok(plan::is_bound(object));
        }
        for users in &self.users {
            let api = self.writer.client.dynamic(users.clone());
            let api = match users.namespaced && self.of == Of::Claims {
                true => api.namespace(machinery::meta::namespace(object)),
                false => api,
            };
            let found = api.list_all(&ListParams::all()).await?.items;
            let uses = |user: &Value| match self.of {
                Of::Claims => plan::pod_uses(user, object),
                _ => plan::names_class(user, machinery::meta::name(object)),
            };
            if found.iter().any(uses) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[async_trait]
impl Reconcile for Controller {
    type Key = Key;

    async fn reconcile(&self, key: &Key, pass: &Pass) -> Result<Next> {
        let Some(cached) = self.objects.get(key) else { return Ok(Next::Done) };
        let object: Value = cached.decode()?;
        let finalizer = self.of.finalizer();
        let wanted = match (cached.meta.is_deleting(), plan::has(&object, finalizer)) {
            (false, false) => plan::with(&object, finalizer),
            (true, true) if !self.is_used(&object).await? => plan::without(&object, finalizer),
            _ => return Ok(Next::Done),
        };
        match self.writer.update(&self.resource, &wanted).await {
            Ok(object) => pass.hold(self.objects.reached(revision(&object))),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        Ok(Next::Done)
    }

    fn all(&self) -> Vec<Key> {
        self.objects.list().iter().map(|object| object.meta.key()).collect()
    }
}
