//! Which client had which endpoint: dynamic elements that the kernel adds by itself. A table that
//! is loaded anew takes them along, so that a restart moves nobody.

use std::collections::BTreeMap;
use std::net::IpAddr;

use net::ruleset::Ruleset;
use serde::Deserialize;

use super::names::{AFFINITY, TABLE};

#[derive(Deserialize)]
struct Listing {
    #[serde(default)]
    nftables: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    set: Option<Set>,
}

#[derive(Deserialize)]
struct Set {
    name: String,
    table: String,
    #[serde(default)]
    elem: Vec<serde_json::Value>,
}

#[derive(Clone, Deserialize)]
struct Element {
    val: Value,
    timeout: u64,
    expires: u64,
}

/// A client, and the number of its endpoint.
#[derive(Clone, Copy, Deserialize)]
struct Value {
    concat: (IpAddr, u32),
}

/// The text that puts what `listing` (of `nft -j list sets`) has into those sets that `wanted` has
/// too. What cannot be read is left out: it is a client who is sent anywhere. Of two endpoints that a client had, it
/// keeps the one to which it came last.
pub(super) fn carried(listing: &str, wanted: &Ruleset) -> String {
    let listing: Listing = serde_json::from_str(listing).unwrap_or(Listing { nftables: Vec::new() });
    let sets = listing.nftables.into_iter().filter_map(|o| o.set);
    let mut out = String::new();
    for set in sets.filter(|s| s.table == TABLE && s.name.starts_with(AFFINITY) && wanted.sets.contains_key(&s.name)) {
        let mut clients: BTreeMap<IpAddr, Element> = BTreeMap::new();
        for element in set.elem.iter().filter_map(element) {
            let known = clients.entry(element.val.concat.0).or_insert_with(|| element.clone());
            if known.expires < element.expires {
                *known = element;
            }
        }
        let texts = clients.into_values().map(|Element { val: Value { concat: (ip, number) }, timeout, expires }| {
            format!("{ip} . {number} timeout {timeout}s expires {expires}s")
        });
        let elements: Vec<String> = texts.collect();
        if !elements.is_empty() {
            let family = wanted.family.as_str();
            out += &format!("add element {family} {TABLE} {} {{ {} }}\n", set.name, elements.join(", "));
        }
    }
    out
}

fn element(json: &serde_json::Value) -> Option<Element> {
    let element = Element::deserialize(json.get("elem")?).ok()?;
    (element.expires > 0 && element.timeout > 0).then_some(element)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::base;
    use net::ruleset::Family;

    #[test]
    fn clients_of_endpoints_that_stay_are_taken_along() {
        let mut wanted = Ruleset::new(Family::Ip, TABLE);
        wanted.sets.insert("affinity-a".into(), base::set("affinity-a", Family::Ip));
        let listing = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"set": {"family": "ip", "name": "affinity-a", "table": "kube-proxy", "type": ["ipv4_addr", "integer"], "elem": [
                {"elem": {"val": {"concat": ["192.0.2.1", 7]}, "timeout": 10800, "expires": 76}},
                {"elem": {"val": {"concat": ["192.0.2.1", 4294967295]}, "timeout": 10800, "expires": 77}},
                {"elem": {"val": {"concat": ["192.0.2.1", 9]}, "timeout": 10800, "expires": 75}},
                {"elem": {"val": {"concat": ["192.0.2.4", 4294967296]}, "timeout": 10800, "expires": 77}},
                {"elem": {"val": {"concat": ["192.0.2.2 ; flush ruleset", 7]}, "timeout": 10800, "expires": 77}},
                {"elem": {"val": "192.0.2.5", "timeout": 10800, "expires": 77}},
                "192.0.2.3"]}},
            {"set": {"family": "ip", "name": "affinity-gone", "table": "kube-proxy", "elem": [
                {"elem": {"val": {"concat": ["192.0.2.1", 7]}, "timeout": 10800, "expires": 77}}]}},
            {"set": {"family": "ip", "name": "affinity-a", "table": "other", "elem": [
                {"elem": {"val": {"concat": ["192.0.2.9", 7]}, "timeout": 10800, "expires": 77}}]}}]}"#;
        let want = "add element ip kube-proxy affinity-a { 192.0.2.1 . 4294967295 timeout 10800s expires 77s }\n";
        assert_eq!(carried(listing, &wanted), want);
        assert_eq!(carried("damage", &wanted), "");
    }
}
