//! Which client had which endpoint: dynamic elements that the kernel adds by itself. A table that
//! is loaded anew takes them along, so that a restart moves nobody.

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

#[derive(Deserialize)]
struct Element {
    val: String,
    timeout: u64,
    expires: u64,
}

/// The text that puts what `listing` (of `nft -j list sets`) has into those sets that `wanted` has
/// too. What cannot be read is left out: it is a client who is sent anywhere.
pub(super) fn carried(listing: &str, wanted: &Ruleset) -> String {
    let listing: Listing = serde_json::from_str(listing).unwrap_or(Listing { nftables: Vec::new() });
    let sets = listing.nftables.into_iter().filter_map(|o| o.set);
    let mut out = String::new();
    for set in sets.filter(|s| s.table == TABLE && s.name.starts_with(AFFINITY) && wanted.sets.contains_key(&s.name)) {
        let elements: Vec<String> = set.elem.iter().filter_map(element).collect();
        if !elements.is_empty() {
            let family = wanted.family.as_str();
            out += &format!("add element {family} {TABLE} {} {{ {} }}\n", set.name, elements.join(", "));
        }
    }
    out
}

fn element(json: &serde_json::Value) -> Option<String> {
    let Element { val, timeout, expires } = Element::deserialize(json.get("elem")?).ok()?;
    let ip: std::net::IpAddr = val.parse().ok()?;
    (expires > 0 && timeout > 0).then(|| format!("{ip} timeout {timeout}s expires {expires}s"))
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
            {"set": {"family": "ip", "name": "affinity-a", "table": "kube-proxy", "type": "ipv4_addr", "elem": [
                {"elem": {"val": "192.0.2.1", "timeout": 10800, "expires": 77}},
                {"elem": {"val": "192.0.2.2 ; flush ruleset", "timeout": 10800, "expires": 77}}, "192.0.2.3"]}},
            {"set": {"family": "ip", "name": "affinity-gone", "table": "kube-proxy", "elem": [
                {"elem": {"val": "192.0.2.1", "timeout": 10800, "expires": 77}}]}},
            {"set": {"family": "ip", "name": "affinity-a", "table": "other", "elem": [
                {"elem": {"val": "192.0.2.9", "timeout": 10800, "expires": 77}}]}}]}"#;
        let want = "add element ip kube-proxy affinity-a { 192.0.2.1 timeout 10800s expires 77s }\n";
        assert_eq!(carried(listing, &wanted), want);
        assert_eq!(carried("damage", &wanted), "");
    }
}
