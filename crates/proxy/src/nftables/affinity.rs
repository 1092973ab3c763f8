//! Which client had which endpoint: dynamic elements that the kernel adds by itself. A table that
//! is loaded anew takes them along, so that a restart moves nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use net::ruleset::Family;
use serde::Deserialize;

use super::names::TABLE;

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

fn sets(listing: &str) -> impl Iterator<Item = Set> {
    let listing: Listing = serde_json::from_str(listing).unwrap_or(Listing { nftables: Vec::new() });
    listing.nftables.into_iter().filter_map(|o| o.set).filter(|s| s.table == TABLE)
}

/// The texts that put what `listing` (of `nft -j list sets`) has into those sets that are wanted, each with the numbers
/// of its endpoints: one text a set. What cannot be read is left out: it is a client who is sent anywhere. Of two
/// endpoints that are there a client keeps the one whose entry ends last: the one to which it came last, as long as the
/// time-out is the same.
pub(super) fn carried(listing: &str, wanted: &BTreeMap<String, BTreeSet<u32>>, family: Family) -> Vec<String> {
    let mut out = Vec::new();
    for set in sets(listing) {
        let Some(numbers) = wanted.get(&set.name) else { continue };
        let mut clients: BTreeMap<IpAddr, Element> = BTreeMap::new();
        for element in set.elem.iter().filter_map(element).filter(|e| numbers.contains(&e.val.concat.1)) {
            let known = clients.entry(element.val.concat.0).or_insert_with(|| element.clone());
            if known.expires < element.expires {
                *known = element;
            }
        }
        let texts = clients.into_values().map(|Element { val: Value { concat: (ip, number) }, timeout, expires }| {
            // An entry that was made for less, and has more since the time-out was raised, says still what it was made for.
            format!("{ip} . {number} timeout {}s expires {expires}s", timeout.max(expires))
        });
        let elements: Vec<String> = texts.collect();
        if !elements.is_empty() {
            let (family, elements) = (family.as_str(), elements.join(", "));
            out.push(format!("add element {family} {TABLE} {} {{ {elements} }}\n", set.name));
        }
    }
    out
}

/// The keys of those elements of a set of `listing` whose endpoints have these numbers. Who ends in a moment is left to
/// that: what is removed must be there.
pub(super) fn of_left(listing: &str, set: &str, numbers: &BTreeSet<u32>) -> Vec<String> {
    const MOMENT: u64 = 5;
    let elements = sets(listing).filter(|s| s.name == set).flat_map(|s| s.elem);
    let elements = elements.filter_map(|json| element(&json));
    let left = elements.filter(|e| e.expires > MOMENT && numbers.contains(&e.val.concat.1));
    left.map(|e| format!("{} . {}", e.val.concat.0, e.val.concat.1)).collect()
}

fn element(json: &serde_json::Value) -> Option<Element> {
    let element = Element::deserialize(json.get("elem")?).ok()?;
    (element.expires > 0 && element.timeout > 0).then_some(element)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
        {"set": {"family": "ip", "name": "affinity-a", "table": "kube-proxy", "type": ["ipv4_addr", "integer"], "elem": [
            {"elem": {"val": {"concat": ["192.0.2.1", 7]}, "timeout": 10800, "expires": 76}},
            {"elem": {"val": {"concat": ["192.0.2.1", 4294967295]}, "timeout": 10800, "expires": 77}},
            {"elem": {"val": {"concat": ["192.0.2.1", 9]}, "timeout": 10800, "expires": 78}},
            {"elem": {"val": {"concat": ["192.0.2.4", 4294967296]}, "timeout": 10800, "expires": 77}},
            {"elem": {"val": {"concat": ["192.0.2.2 ; flush ruleset", 7]}, "timeout": 10800, "expires": 77}},
            {"elem": {"val": {"concat": ["192.0.2.6", 7]}, "timeout": 60, "expires": 10799}},
            {"elem": {"val": {"concat": ["192.0.2.7", 9]}, "timeout": 60, "expires": 5}},
            {"elem": {"val": "192.0.2.5", "timeout": 10800, "expires": 77}},
            "192.0.2.3"]}},
        {"set": {"family": "ip", "name": "affinity-gone", "table": "kube-proxy", "elem": [
            {"elem": {"val": {"concat": ["192.0.2.1", 7]}, "timeout": 10800, "expires": 77}}]}},
        {"set": {"family": "ip", "name": "affinity-a", "table": "other", "elem": [
            {"elem": {"val": {"concat": ["192.0.2.9", 7]}, "timeout": 10800, "expires": 77}}]}}]}"#;

    #[test]
    fn clients_of_endpoints_that_stay_are_taken_along() {
        // The endpoint of number 9 is gone, whoever came to it last.
        let wanted = [("affinity-a".to_owned(), BTreeSet::from([7, u32::MAX])), ("affinity-b".to_owned(), [7].into())];
        let want = "add element ip kube-proxy affinity-a { 192.0.2.1 . 4294967295 timeout 10800s expires 77s, \
                    192.0.2.6 . 7 timeout 10799s expires 10799s }\n";
        assert_eq!(carried(LISTING, &wanted.clone().into(), Family::Ip), [want]);
        assert_eq!(carried("damage", &wanted.into(), Family::Ip), [""; 0]);
    }

    #[test]
    fn clients_of_endpoints_that_left_are_found() {
        assert_eq!(of_left(LISTING, "affinity-a", &[9].into()), ["192.0.2.1 . 9"]);
        assert_eq!(of_left(LISTING, "affinity-b", &[9].into()), [""; 0]);
    }
}
