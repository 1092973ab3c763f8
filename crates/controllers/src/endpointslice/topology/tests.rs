//! Shares of zones as tables.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::views::cached;

/// `a:2 b:1` as zones with so many processors.
fn zones(text: &str) -> Zones {
    let all: BTreeMap<String, f64> = text
        .split(' ')
        .filter_map(|part| part.split_once(':'))
        .map(|(zone, cpus)| (zone.to_owned(), cpus.parse().expect("a number")))
        .collect();
    let total: f64 = all.values().sum();
    Zones(all.into_iter().map(|(zone, cpus)| (zone, cpus / total)).collect())
}

/// `a a/b c/`: the zone of each endpoint, and for which it is until now.
fn places(text: &str) -> Vec<Place<'_>> {
    text.split_whitespace()
        .map(|word| {
            let (zone, hint) = word.split_once('/').map_or((word, None), |(zone, hint)| (zone, Some(hint)));
            Place { zone: Some(zone).filter(|z| *z != "-"), hint }
        })
        .collect()
}

#[test]
fn who_is_for_which_zone() {
    for (nodes, endpoints, want) in [
        // Each for its own zone where there are enough everywhere.
        ("a:1 b:1", "a a b b", "a a b b"),
        ("a:1 b:1 c:1", "a b c", "a b c"),
        // Those there are too many of are for others.
        ("a:2 b:1", "a a a a a a", "b b a a a a"),
        ("a:1 b:1", "a a a b", "b a a b"),
        // What may stay stays, though another would do as well.
        ("a:1 b:1", "a/a a/b a/a b/b", "a b a b"),
        ("a:1 b:1", "a/a a/a a/b b/b a b", "a a b b a b"),
        // One zone has too many of those that were: what is too much goes.
        ("a:1 b:1", "a/a a/a a/a b/b", "a a b b"),
        // A zone that is no more.
        ("a:1 b:1", "a/a b/b c/c c/c", "a b a b"),
        // A zone that is new.
        ("a:1 b:1 c:1", "a/a a/a b/b b/b c c", "a a b b c c"),
        ("a:1 b:1 c:1", "a/a a/a a/b a/b a/a a/b", "a a b b c c"),
        // Each has what it may have at most, and one too little: all begins anew.
        ("a:1 b:1 c:1", "a/a a/a a/a a/a b/b b/b b/b b/b a/c a/c", "c c a a c b b b a a"),
    ] {
        let got = assign(Some(&zones(nodes)), &places(endpoints)).expect("hints");
        assert_eq!(got.join(" "), want, "{nodes}: {endpoints}");
        // Nothing changes of what has become of it.
        let again: Vec<String> =
            endpoints.split_whitespace().zip(&got).map(|(e, hint)| format!("{}/{hint}", &e[..1])).collect();
        let again = again.join(" ");
        assert_eq!(assign(Some(&zones(nodes)), &places(&again)).expect("hints"), got, "{nodes}: {endpoints}");
    }
}

#[test]
fn why_there_are_none() {
    let few = "Insufficient number of endpoints (2 endpoints, 3 zones)";
    let threshold = "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold \
                     (3 endpoints, 2 zones)";
    let nodes = "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
    for (zones_there, endpoints, want) in [
        (Some(zones("a:1 b:1 c:1")), "a b", few),
        (Some(zones("a:1 b:1")), "a b b", threshold),
        (Some(zones("a:1 b:1")), "a b -", threshold),
        (Some(zones("a:1 b:1")), "a b - b", "One or more endpoints do not have a zone specified"),
        (None, "a a a a", nodes),
    ] {
        assert_eq!(assign(zones_there.as_ref(), &places(endpoints)), Err(want.to_owned()), "{endpoints}");
    }
}

#[test]
fn shares_are_those_of_processors_that_are_ready() {
    let node = |name: &str, zone: &str, cpu: &str, ready: &str, label: &str| {
        let mut labels = json!({ZONE: zone});
        if !label.is_empty() {
            labels[label] = json!("");
        }
        let status = json!({"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": ready}]});
        Arc::new(cached::<NodeView>(&json!({"metadata": {"name": name, "labels": labels}, "status": status})))
    };
    let master = "node-role.kubernetes.io/control-plane";
    let (a, b) = (node("a", "a", "1500m", "True", ""), node("b", "b", "500m", "True", ""));
    let shares = |nodes: &[&Arc<Cached<NodeView>>]| Zones::of(nodes.iter().copied()).map(|Zones(zones)| zones);
    let want = Some([("a".to_owned(), 0.75), ("b".to_owned(), 0.25)].into());
    assert_eq!(shares(&[&a, &b]), want);
    let (gone, head) = (node("c", "", "9", "False", ""), node("d", "", "9", "True", master));
    assert_eq!(shares(&[&a, &b, &gone, &head]), want, "who is not ready, and who runs no pods, counts for nothing");
    for bad in [node("e", "", "1", "True", ""), node("f", "a", "", "True", ""), node("g", "a", "0", "True", "")] {
        assert_eq!(shares(&[&a, &b, &bad]), None, "{:?}", bad.meta.name);
    }
    assert_eq!(shares(&[&a]), None, "there is one zone");
    assert_eq!(shares(&[]), None);
}

#[test]
fn what_changes_is_told_once() {
    let (on, few, none) = (Ok(()), Err("few".to_owned()), None);
    let enabled = "Normal TopologyAwareHintsEnabled Topology Aware Hints has been enabled, addressType: IPv4";
    for (before, now, want) in [
        (None, Some(&on), enabled),
        (Some(&on), Some(&on), ""),
        (Some(&on), Some(&few), "Warning TopologyAwareHintsDisabled few, addressType: IPv4"),
        (Some(&few), Some(&few), ""),
        (Some(&few), Some(&on), enabled),
        (
            Some(&on),
            none,
            "Warning TopologyAwareHintsDisabled Topology Aware Hints has been disabled, addressType: IPv4",
        ),
        (Some(&few), none, ""),
        (none, none, ""),
    ] {
        let told = news(before, now, "IPv4").map(|(kind, reason, text)| {
            let kind = if matches!(kind, Type::Warning) { "Warning" } else { "Normal" };
            format!("{kind} {reason} {text}")
        });
        assert_eq!(told.unwrap_or_default(), want);
    }
}
