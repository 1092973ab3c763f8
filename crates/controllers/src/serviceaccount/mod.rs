//! The ServiceAccount `default` in every namespace that is not going away.

use std::sync::Arc;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::{Informer, Key, Queue, Resource, Result};
use k8s_openapi::api::core::v1::ServiceAccount;
use serde_json::json;

use crate::context::Context;
use crate::views::BareView;
use crate::writer::{Writer, revision};

const NAME: &str = "default";

struct Controller {
    namespaces: Informer<BareView>,
    accounts: Informer<BareView>,
    writer: Writer,
    resource: Resource,
}

pub(crate) fn start(context: &Context) {
    let queue = Queue::<String>::new(context.clock.clone());
    let controller = Arc::new(Controller {
        namespaces: context.namespaces(),
        accounts: context.service_accounts(),
        writer: context.writer("service-account-controller", "service-account-controller"),
        resource: Resource::of::<ServiceAccount>(),
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.namespaces.subscribe(move |change| {
        let meta = &change.object().meta;
        keys.add_caused(meta.name.clone(), own.namespaces.cause(change.object()));
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.accounts.subscribe(move |change| {
        if matches!(change, client::Change::Deleted(_)) {
            keys.add_caused(change.object().meta.namespace.clone(), own.accounts.cause(change.object()));
        }
    });
    let own = controller.clone();
    let ready = async move {
        own.namespaces.synced().await;
        own.accounts.synced().await;
    };
    controller::run(context.runner("serviceaccount", 1), queue, controller, ready, &context.stage);
}

#[async_trait]
impl Reconcile for Controller {
    type Key = String;

    async fn reconcile(&self, namespace: &String, pass: &Pass) -> Result<Next> {
        let is_alive = self.namespaces.find("", namespace).is_some_and(|n| !n.meta.is_deleting());
        if !is_alive || self.accounts.get(&Key::new(namespace, NAME)).is_some() {
            return Ok(Next::Done);
        }
        let object = json!({
            "kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": NAME, "namespace": namespace},
        });
        match self.writer.create(&self.resource, namespace, &object).await {
            Ok(written) => pass.hold(self.accounts.reached(revision(&written))),
            Err(error) if error.is_already_exists() || error.is_namespace_terminating() || error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        Ok(Next::Done)
    }

    fn all(&self) -> Vec<String> {
        self.namespaces.list().iter().map(|n| n.meta.name.clone()).collect()
    }
}
