//! The ConfigMap `kube-root-ca.crt` in every namespace: how pods know the API server.

use std::sync::Arc;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::{Informer, Key, Queue, Resource, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use crate::context::Context;
use crate::views::BareView;
use crate::writer::{Writer, revision};

pub(crate) const NAME: &str = "kube-root-ca.crt";
const DESCRIPTION_KEY: &str = "kubernetes.io/description";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

struct Controller {
    namespaces: Informer<BareView>,
    maps: Informer<BareView>,
    writer: Writer,
    ca: String,
    resource: Resource,
}

pub(crate) fn start(context: &Context) {
    if context.options.root_ca_pem.is_empty() {
        tracing::info!("no root CA is given; none is published");
        return;
    }
    let queue = Queue::<String>::new(context.clock.clone());
    let controller = Arc::new(Controller {
        namespaces: context.namespaces(),
        maps: context.config_maps(),
        writer: context.writer("root-ca-cert-publisher", "root-ca-cert-publisher"),
        ca: context.options.root_ca_pem.clone(),
        resource: Resource::of::<ConfigMap>(),
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.namespaces.subscribe(move |change| {
        keys.add_caused(change.object().meta.name.clone(), own.namespaces.cause(change.object()));
    });
    let (own, keys) = (controller.clone(), queue.clone());
    controller.maps.subscribe(move |change| {
        keys.add_caused(change.object().meta.namespace.clone(), own.maps.cause(change.object()));
    });
    let own = controller.clone();
    let ready = async move {
        own.namespaces.synced().await;
        own.maps.synced().await;
    };
    controller::run(context.runner("root-ca-publisher", 1), queue, controller, ready, &context.stage);
}

/// What the ConfigMap of a namespace should be; `None` when it is.
fn plan(current: Option<&Value>, namespace: &str, ca: &str) -> Option<Value> {
    let data = json!({"ca.crt": ca});
    let mut object = current.cloned().unwrap_or_else(
        || json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": NAME, "namespace": namespace}}),
    );
    let described = machinery::meta::annotation(&object, DESCRIPTION_KEY) == Some(DESCRIPTION);
    if current.is_some() && object.get("data") == Some(&data) && described {
        return None;
    }
    object["data"] = data;
    machinery::meta::set_annotation(&mut object, DESCRIPTION_KEY, Some(DESCRIPTION));
    Some(object)
}

#[async_trait]
impl Reconcile for Controller {
    type Key = String;

    async fn reconcile(&self, namespace: &String, pass: &Pass) -> Result<Next> {
        if self.namespaces.find("", namespace).is_none_or(|n| n.meta.is_deleting()) {
            return Ok(Next::Done);
        }
        let current = self.maps.get(&Key::new(namespace, NAME));
        let object: Option<Value> = current.as_ref().map(|c| c.decode()).transpose()?;
        let Some(wanted) = plan(object.as_ref(), namespace, &self.ca) else { return Ok(Next::Done) };
        let written = match current {
            None => self.writer.create(&self.resource, namespace, &wanted).await,
            Some(_) => self.writer.update(&self.resource, &wanted).await,
        };
        match written {
            Ok(object) => pass.hold(self.maps.reached(revision(&object))),
            Err(error) if error.is_namespace_terminating() || error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        Ok(Next::Done)
    }

    fn all(&self) -> Vec<String> {
        self.namespaces.list().iter().map(|n| n.meta.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_mended_and_left_alone() {
        let made = plan(None, "default", "CA").expect("missing");
        assert_eq!(made["data"], json!({"ca.crt": "CA"}));
        assert_eq!(plan(Some(&made), "default", "CA"), None);
        let mut changed = made.clone();
        changed["data"]["more"] = json!("x");
        assert_eq!(plan(Some(&changed), "default", "CA"), Some(made.clone()));
        assert!(plan(Some(&made), "default", "NEW").is_some());
    }
}
