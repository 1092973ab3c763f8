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
    by_name: BTreeMap<String, Vec<IpNet>>,
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
        self.objects.settle(SERVICE_CIDRS).await?;
        let mut added = self.added.lock();
        let mut seen = std::mem::take(&mut added.seen);
        for change in self.objects.changes(SERVICE_CIDRS, &mut seen) {
            match change {
                Change::Put(object) if is_ready(&object) => {
                    added.by_name.insert(meta::name(&object).to_owned(), networks(&object));
                }
                Change::Put(object) => drop(added.by_name.remove(meta::name(&object))),
                Change::Gone { name, .. } => drop(added.by_name.remove(&name)),
            }
        }
        added.seen = seen;
        let mut out: Vec<IpNet> = Vec::new();
        for network in self.own.iter().chain(added.by_name.values().flatten()) {
            if network.addr().is_ipv6() == v6 && !out.contains(network) {
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
