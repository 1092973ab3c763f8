//! What the caches tell the loop: the newest state of each node and pod that changed.
//!
//! Told faster than the loop listens, states of one object replace each other: the mailbox is
//! bounded by the number of objects, and the loop works on what is, not on what was.

use std::collections::HashMap;
use std::sync::Arc;

use client::{Change, Informer};
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Notify;

use crate::core::Event;
use crate::node::NodeFacts;
use crate::pod::{PodInfo, Uid};

/// A pod as the cache keeps it: shared with the queue and the snapshot.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Pod")]
pub struct PodView(pub Arc<PodInfo>);

impl From<Pod> for PodView {
    fn from(pod: Pod) -> Self {
        Self(Arc::new(PodInfo::from(&pod)))
    }
}

#[derive(Default)]
struct News {
    nodes: HashMap<String, Option<NodeFacts>>,
    pods: HashMap<Uid, Option<Arc<PodInfo>>>,
}

/// See the module.
#[derive(Default)]
pub struct Mailbox {
    news: Mutex<News>,
    wake: Notify,
}

impl Mailbox {
    /// Delivers what the caches hold, and then every change.
    pub fn subscribe(self: &Arc<Self>, nodes: &Informer<NodeFacts>, pods: &Informer<PodView>) {
        let to = self.clone();
        nodes.subscribe(move |change| to.node(change));
        let to = self.clone();
        pods.subscribe(move |change| to.pod(change));
    }

    fn node(&self, change: &Change<NodeFacts>) {
        let name = change.object().meta.name.clone();
        let news = match change {
            Change::Applied { new, .. } => Some(new.view.clone()),
            Change::Deleted(_) => None,
        };
        self.news.lock().nodes.insert(name, news);
        self.wake.notify_one();
    }

    fn pod(&self, change: &Change<PodView>) {
        let mut news = self.news.lock();
        match change {
            Change::Applied { old, new } => {
                // Under the same name another pod may have taken the place of one that went.
                if let Some(old) = old.as_ref().filter(|o| o.view.0.uid != new.view.0.uid) {
                    news.pods.insert(old.view.0.uid.clone(), None);
                }
                news.pods.insert(new.view.0.uid.clone(), Some(new.view.0.clone()));
            }
            Change::Deleted(old) => {
                news.pods.insert(old.view.0.uid.clone(), None);
            }
        }
        drop(news);
        self.wake.notify_one();
    }

    /// What has come in, nodes before pods.
    pub fn take(&self) -> Vec<Event> {
        let News { nodes, pods } = std::mem::take(&mut *self.news.lock());
        let mut nodes: Vec<_> = nodes.into_iter().collect();
        nodes.sort_by(|a, b| a.0.cmp(&b.0));
        let mut pods: Vec<_> = pods.into_iter().collect();
        // In the order they were created, as far as the queue goes by arrival.
        pods.sort_by_cached_key(|(uid, pod)| (pod.as_ref().map(|p| (p.created, p.revision)), uid.clone()));
        let nodes = nodes.into_iter().map(|(name, facts)| facts.map_or(Event::NodeGone(name), Event::Node));
        let pods = pods.into_iter().map(|(uid, pod)| pod.map_or(Event::PodGone(uid), Event::Pod));
        nodes.chain(pods).collect()
    }

    /// Ends when something has come in.
    pub async fn news(&self) {
        self.wake.notified().await;
    }
}
