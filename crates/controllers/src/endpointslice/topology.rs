//! Hints in proportion to zones: who asks for topology mode `Auto` has each zone's connections go to as many
//! endpoints as it has of the cluster's processors, those of its own zone first. Pure.
//!
//! ```text
//!  nodes: zone a 6 CPUs, zone b 3      endpoints: 6 in a, 0 in b
//!  shares       a 4 of 6, b 2 of 6     hints: four for a, two for b
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use client::Cached;
use client::events::Type;
use machinery::quantity::Quantity;

use super::ZONE;
use crate::views::NodeView;

/// No endpoint is to have more than so much beyond its share.
const OVERLOAD: f64 = 0.2;
/// Nodes with one of these labels count for nothing.
const EXCLUDED: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// By family of addresses: whether there are hints, or why not.
pub(super) type Hinted = BTreeMap<String, Result<(), String>>;

/// The share of the cluster's processors that each zone has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Zones(BTreeMap<String, f64>);

impl Zones {
    /// Of the nodes that are ready. `None` where one of them has no zone or says nothing of its processors, and
    /// where there is only one zone.
    pub fn of<'a>(nodes: impl Iterator<Item = &'a Arc<Cached<NodeView>>>) -> Option<Self> {
        let mut zones: BTreeMap<String, f64> = BTreeMap::new();
        for node in nodes {
            let is_ready = node.view.condition("Ready").is_some_and(|c| c.status == "True");
            if !is_ready || EXCLUDED.iter().any(|label| node.meta.labels.contains_key(*label)) {
                continue;
            }
            let zone = node.meta.labels.get(ZONE).filter(|zone| !zone.is_empty())?;
            *zones.entry(zone.clone()).or_default() += cpus(&node.view).filter(|cpus| *cpus > 0.0)?;
        }
        let total: f64 = zones.values().sum();
        if zones.len() < 2 {
            return None;
        }
        zones.values_mut().for_each(|cpus| *cpus /= total);
        Some(Self(zones))
    }
}

/// Do two states of a Node give its zone the same share?
pub(super) fn is_same(one: &Arc<Cached<NodeView>>, other: &Arc<Cached<NodeView>>) -> bool {
    let face = |node: &Arc<Cached<NodeView>>| {
        let ready = node.view.condition("Ready").map(|c| c.status.clone());
        (ready, node.meta.labels.clone(), node.view.status.allocatable.clone())
    };
    // One that is deleted is told with itself as it was.
    !Arc::ptr_eq(one, other) && face(one) == face(other)
}

fn cpus(node: &NodeView) -> Option<f64> {
    let quantity: Quantity = node.status.allocatable.cpu.as_deref()?.parse().ok()?;
    Some(quantity.milli() as f64 / 1000.0)
}

/// An endpoint that takes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub zone: Option<&'a str>,
    /// For which zone it is until now.
    pub hint: Option<&'a str>,
}

/// How many endpoints a zone is to have.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Share {
    least: usize,
    most: usize,
    wanted: f64,
}

/// For which zone each endpoint is, or why there are no hints, in upstream's words.
///
/// # Errors
/// There are too few endpoints or too little is known of nodes or endpoints.
pub(super) fn assign(zones: Option<&Zones>, endpoints: &[Place]) -> Result<Vec<String>, String> {
    let Some(Zones(zones)) = zones else {
        return Err("Insufficient Node information: allocatable CPU or zone not specified on one or more nodes".into());
    };
    let shares = shares(zones, endpoints.len())?;
    if endpoints.iter().any(|e| e.zone.is_none_or(str::is_empty)) {
        return Err("One or more endpoints do not have a zone specified".into());
    }
    // What is as it may be stays as it is; only where that leaves a zone with too little all begins anew.
    let kept = keep(&shares, endpoints);
    let hints = spread(&shares, endpoints, kept);
    let count = |zone: &String| hints.iter().filter(|hint| *hint == zone).count();
    if shares.iter().all(|(zone, share)| count(zone) >= share.least) {
        return Ok(hints);
    }
    Ok(spread(&shares, endpoints, vec![None; endpoints.len()]))
}

fn shares(zones: &BTreeMap<String, f64>, endpoints: usize) -> Result<BTreeMap<String, Share>, String> {
    let of = |what: &str| format!("{what} ({endpoints} endpoints, {} zones)", zones.len());
    if zones.len() > endpoints {
        return Err(of("Insufficient number of endpoints"));
    }
    let mut out = BTreeMap::new();
    for (zone, ratio) in zones {
        let wanted = ratio * endpoints as f64;
        let least = (wanted / (1.0 + OVERLOAD)).ceil() as usize;
        out.insert(zone.clone(), Share { least, most: 0, wanted: wanted.max(least as f64) });
    }
    let least: usize = out.values().map(|share| share.least).sum();
    let Some(free) = endpoints.checked_sub(least) else {
        let what = "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold";
        return Err(of(what));
    };
    out.values_mut().for_each(|share| share.most = share.least + free);
    Ok(out)
}

/// The hints that may stay.
fn keep(shares: &BTreeMap<String, Share>, endpoints: &[Place]) -> Vec<Option<String>> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut stays = |endpoint: &Place| {
        let (zone, share) = shares.get_key_value(endpoint.hint?)?;
        let count = counts.entry(zone).or_default();
        *count += 1;
        (*count <= share.most).then(|| zone.clone())
    };
    endpoints.iter().map(&mut stays).collect()
}

/// Who has no hint gets one for its own zone; then zones with too many give to those with too few.
fn spread(shares: &BTreeMap<String, Share>, endpoints: &[Place], kept: Vec<Option<String>>) -> Vec<String> {
    let fixed: Vec<bool> = kept.iter().map(Option::is_some).collect();
    let own = |(hint, endpoint): (Option<String>, &Place)| {
        hint.unwrap_or_else(|| endpoint.zone.unwrap_or_default().to_owned())
    };
    let mut hints: Vec<String> = kept.into_iter().zip(endpoints).map(own).collect();
    let have = |zone: &String| hints.iter().filter(|hint| *hint == zone).count() as f64;
    let mut over: BTreeMap<&String, f64> =
        shares.iter().map(|(zone, share)| (zone, have(zone) - share.wanted)).collect();
    let mut moves: Vec<(String, String)> = Vec::new();
    // Endpoints in zones that have no nodes any more are for anybody.
    let homeless: Vec<usize> = (0..hints.len()).filter(|i| !shares.contains_key(&hints[*i])).collect();
    for at in homeless {
        let Some((zone, _)) = over.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(zone, n)| ((*zone).clone(), *n))
        else {
            break;
        };
        if let Some(count) = over.get_mut(&zone) {
            *count += 1.0;
        }
        hints[at] = zone;
    }
    loop {
        let most = over.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(zone, n)| ((*zone).clone(), *n));
        let least = over.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(zone, n)| ((*zone).clone(), -*n));
        let (Some((giver, gives)), Some((taker, takes))) = (most, least) else { break };
        // Less than half an endpoint is none.
        if gives < 0.5 || takes < 0.5 || (gives < 1.0 && takes < 1.0) {
            break;
        }
        for (zone, by) in [(&giver, -1.0), (&taker, 1.0)] {
            if let Some(count) = over.get_mut(zone) {
                *count += by;
            }
        }
        moves.push((giver, taker));
    }
    for (giver, taker) in moves {
        let free = (0..hints.len()).find(|i| !fixed[*i] && hints[*i] == giver);
        if let Some(at) = free {
            hints[at] = taker;
        }
    }
    hints
}

/// What is to be told of a Service, in one family: an event where what is true of it has changed. `None` stands
/// for a Service that asks for no hints in proportion.
pub(super) fn news(
    before: Option<&Result<(), String>>,
    now: Option<&Result<(), String>>,
    family: &str,
) -> Option<(Type, &'static str, String)> {
    const DISABLED: &str = "TopologyAwareHintsDisabled";
    let said = |text: &str| format!("{text}, addressType: {family}");
    if before == now {
        return None;
    }
    match (before, now) {
        (_, Some(Ok(()))) => {
            let text = said("Topology Aware Hints has been enabled");
            Some((Type::Normal, "TopologyAwareHintsEnabled", text))
        }
        (_, Some(Err(why))) => Some((Type::Warning, DISABLED, said(why))),
        (Some(Ok(())), None) => Some((Type::Warning, DISABLED, said("Topology Aware Hints has been disabled"))),
        (_, None) => None,
    }
}

#[cfg(test)]
mod tests;
