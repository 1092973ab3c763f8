//! Clients that hang up in the middle of a write: it goes to its end, and keeps nothing that no object has.

mod common;

use std::sync::Arc;

use common::{Server, config};
use serde_json::json;
use stdx::clock::RealClock;
use storage::{Committed, Entry, Error, Op, Page, RangeOptions, Revision, Store, WatchStream};

/// A store that takes its time, as a disk does.
struct Unhurried(Arc<dyn Store>);

#[async_trait::async_trait]
impl Store for Unhurried {
    async fn get(&self, key: &[u8]) -> Result<Option<Entry>, Error> {
        self.0.get(key).await
    }

    async fn range(&self, prefix: &[u8], options: RangeOptions) -> Result<Page, Error> {
        self.0.range(prefix, options).await
    }

    async fn commit(&self, op: Op) -> Result<Committed, Error> {
        let done = self.0.commit(op).await;
        tokio::task::yield_now().await;
        done
    }

    fn watch(&self, prefix: &[u8], after: Revision) -> Result<WatchStream, Error> {
        self.0.watch(prefix, after)
    }

    fn revision(&self) -> Revision {
        self.0.revision()
    }

    async fn compact(&self, before: Revision) -> Result<(), Error> {
        self.0.compact(before).await
    }

    fn compacted(&self) -> Revision {
        self.0.compacted()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

#[tokio::test]
async fn a_write_whose_client_is_gone_is_done_whole() {
    let clock = RealClock::shared();
    let mut config = config(&clock, 1);
    let store = config.store.clone();
    config.store = Arc::new(Unhurried(store.clone()));
    let server = Server::from(config, clock).await;
    let services = "/api/v1/namespaces/default/services";
    for polls in 0..24 {
        let ask =
            json!({"metadata": {"name": format!("s{polls}")}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
        let mut call = Box::pin(server.root.post(services, &ask));
        for _ in 0..=polls {
            if futures::poll!(call.as_mut()).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    let count = async |prefix: &str| {
        let page = store.range(prefix.as_bytes(), RangeOptions::default()).await.unwrap();
        page.entries.len()
    };
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    let made = count("/registry/services/specs/").await;
    assert!(made > 1);
    // The Service `kubernetes` has no port of the node.
    let held = (count("/registry/ipaddresses/").await, count("/registry/pintle/nodeports/").await);
    assert_eq!(held, (made, made - 1));
}
