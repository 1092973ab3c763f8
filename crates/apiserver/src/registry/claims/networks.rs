//! The ranges that Service addresses are taken from: those of the server's flags first, then those that
//! ServiceCIDRs add while they are ready and stay.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use machinery::{meta, status};
use parking_lot::Mutex;
use serde_json::Value;

use crate::objects::{Change, Objects, SERVICE_CIDRS, Seen};

/// The ranges, as far as the cache shows.
pub(super) struct Networks {
    own: Vec<IpNet>,
    objects: Arc<dyn Objects>,
    added: Mutex<Added>,
}

#[derive(Default)]
struct Added {
    /// Every ServiceCIDR, and whether addresses may be taken from it.
    by_name: BTreeMap<String, (Vec<IpNet>, bool)>,
    seen: Seen,
}

impl Networks {
    pub(super) fn new(own: Vec<IpNet>, objects: Arc<dyn Objects>) -> Self {
        Self { own, objects, added: Mutex::default() }
    }

    /// The ranges of a family, each once, in the order in which they are used up.
    ///
    /// # Errors
    /// When the cache does not catch up.
    pub(super) async fn of(&self, v6: bool) -> status::Result<Vec<IpNet>> {
        self.select(|network, ready| ready && network.addr().is_ipv6() == v6).await
    }

    /// Every range there is, of both families, also those that are not ready or are to go: an address
    /// in one of them is not a lost one.
    ///
    /// # Errors
    /// When the cache does not catch up.
    pub(super) async fn every(&self) -> status::Result<Vec<IpNet>> {
        self.select(|_, _| true).await
    }

    async fn select(&self, wanted: impl Fn(&IpNet, bool) -> bool) -> status::Result<Vec<IpNet>> {
        self.objects.settle(SERVICE_CIDRS).await?;
        let mut added = self.added.lock();
        let mut seen = std::mem::take(&mut added.seen);
        for change in self.objects.changes(SERVICE_CIDRS, &mut seen) {
            match change {
                Change::Put(object) => {
                    added.by_name.insert(meta::name(&object).to_owned(), (networks(&object), is_ready(&object)));
                }
                Change::Gone { name, .. } => drop(added.by_name.remove(&name)),
            }
        }
        added.seen = seen;
        let own = self.own.iter().map(|network| (network, true));
        let others = added.by_name.values().flat_map(|(networks, ready)| networks.iter().map(|n| (n, *ready)));
        let mut out: Vec<IpNet> = Vec::new();
        for (network, ready) in own.chain(others) {
            if wanted(network, ready) && !out.contains(network) {
                out.push(*network);
            }
        }
        Ok(out)
    }
}

fn is_ready(object: &Value) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True");
    ready && !meta::is_deleting(object)
}

fn networks(object: &Value) -> Vec<IpNet> {
    let cidrs = object.pointer("/spec/cidrs").and_then(Value::as_array);
    cidrs.into_iter().flatten().filter_map(|cidr| cidr.as_str()?.parse().ok()).collect()
}
