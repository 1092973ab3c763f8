//! Whether a quota has room for a write; pure.

use api::resources::{self, Resources};
use api::types::core::v1::ResourceQuota;
use machinery::{meta, status};
use serde::Deserialize;
use serde_json::{Value, json};

use super::usage::{Counted, Scope};

/// A quota as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    pub name: String,
    scopes: Vec<Scope>,
    /// What was found at the last count: the limits that are in force, and what is used of them.
    pub hard: Resources,
    pub used: Resources,
    /// The limits that are wanted.
    pub wanted: Resources,
}

impl Quota {
    /// Reads one.
    pub fn read(object: &Value) -> status::Result<Self> {
        let quota = ResourceQuota::deserialize(object).map_err(machinery::status::Status::internal)?;
        let list = |list: Option<&kinds::resources::List>| list.map(resources::parse).unwrap_or_default();
        let (spec, status) = (quota.spec.unwrap_or_default(), quota.status.unwrap_or_default());
        let bare = spec.scopes.into_iter().flatten();
        let bare = bare.map(|name| Scope { name, operator: "Exists".into(), values: Vec::new() });
        let chosen = spec.scope_selector.and_then(|selector| selector.match_expressions).into_iter().flatten();
        let chosen = chosen.map(|term| Scope {
            name: term.scope_name,
            operator: term.operator,
            values: term.values.unwrap_or_default(),
        });
        Ok(Self {
            name: meta::name(object).to_owned(),
            scopes: bare.chain(chosen).collect(),
            hard: list(status.hard.as_ref()),
            used: list(status.used.as_ref()),
            wanted: list(spec.hard.as_ref()),
        })
    }

    /// True when the object is in every scope.
    pub fn covers(&self, counted: &Counted, object: &Value) -> bool {
        self.scopes.iter().all(|scope| counted.is_in(scope, object))
    }
}

/// A write that takes something.
#[derive(Clone, Debug)]
pub struct Request {
    pub counted: Counted,
    pub new: Value,
    pub usage: Resources,
    /// The object before, and what it took.
    pub old: Option<(Value, Resources)>,
}

/// What of it is charged to a quota: nothing for a quota that does not care.
///
/// # Errors
/// The text of the refusal.
pub fn delta(quota: &Quota, request: &Request) -> Result<Resources, String> {
    let tracked: Vec<&String> = quota.hard.keys().filter(|name| request.counted.tracks(name)).collect();
    if tracked.is_empty() || !quota.covers(&request.counted, &request.new) {
        return Ok(Resources::new());
    }
    let limits = quota.hard.iter().filter(|(name, _)| tracked.contains(name));
    let limits = limits.map(|(name, amount)| (name.clone(), *amount)).collect();
    let named = request.counted.demand(&limits, &request.new);
    named.map_err(|why| format!("failed quota: {}: {why}", quota.name))?;
    if tracked.iter().any(|name| !quota.used.contains_key(*name)) {
        let names = tracked.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(",");
        return Err(format!("status unknown for quota: {}, resources: {names}", quota.name));
    }
    let mut asked = request.usage.clone();
    asked.retain(|name, _| quota.hard.contains_key(name));
    if let Some((_, before)) = request.old.as_ref().filter(|(old, _)| quota.covers(&request.counted, old)) {
        for (name, amount) in &mut asked {
            *amount = amount.sub(&before.get(name).copied().unwrap_or_default());
        }
    }
    asked.retain(|_, amount| !amount.is_zero() && !amount.is_negative());
    Ok(asked)
}

/// Charges what is asked for.
///
/// # Errors
/// The text of the refusal when there is no room.
pub fn charge(quota: &mut Quota, asked: &Resources) -> Result<(), String> {
    let mut used = quota.used.clone();
    resources::add(&mut used, asked);
    let over: Vec<&String> =
        asked.keys().filter(|name| quota.hard.get(*name).is_some_and(|hard| used[*name] > *hard)).collect();
    if over.is_empty() {
        quota.used = used;
        return Ok(());
    }
    let show = |list: &Resources| {
        let amount = |name: &&String| list.get(*name).copied().unwrap_or_default();
        over.iter().map(|name| format!("{name}={}", amount(name))).collect::<Vec<_>>().join(",")
    };
    let (name, asked, used, hard) = (&quota.name, show(asked), show(&quota.used), show(&quota.hard));
    Err(format!("exceeded quota: {name}, requested: {asked}, used: {used}, limited: {hard}"))
}

/// Takes a charge back. What a count has taken off in the meantime is not taken off twice.
pub fn refund(quota: &mut Quota, charged: &Resources) {
    for (name, amount) in charged {
        if let Some(used) = quota.used.get_mut(name) {
            let left = used.sub(amount);
            *used = if left.is_negative() { Default::default() } else { left };
        }
    }
}

/// The stored quota with what is used now.
pub fn written(object: &Value, hard: Option<&Resources>, used: &Resources) -> Value {
    let mut new = object.clone();
    if !new["status"].is_object() {
        new["status"] = json!({});
    }
    if let Some(hard) = hard {
        new["status"]["hard"] = json!(resources::print(hard));
    }
    new["status"]["used"] = json!(resources::print(used));
    new
}

#[cfg(test)]
mod tests {
    use super::super::usage::counted;
    use super::*;

    fn quota(hard: Value, used: Value, scopes: Value) -> Quota {
        let object = json!({"metadata": {"name": "q"}, "spec": {"hard": hard, "scopes": scopes},
            "status": {"hard": hard, "used": used}});
        Quota::read(&object).expect("a quota")
    }

    fn request(plural: &str, new: Value, old: Option<Value>) -> Request {
        let counted = counted("", plural).expect("counted");
        let of = |object: &Value| counted.usage(object, jiff::Timestamp::UNIX_EPOCH);
        Request { usage: of(&new), old: old.map(|old| (old.clone(), of(&old))), counted, new }
    }

    fn check(quota: &mut Quota, request: &Request) -> Result<String, String> {
        let asked = delta(quota, request)?;
        charge(quota, &asked)?;
        Ok(quota.used.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(","))
    }

    fn pod(cpu: &str) -> Value {
        json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
    }

    #[test]
    fn a_quota_gives_what_it_has() {
        let mut q = quota(
            json!({"pods": "2", "cpu": "1", "secrets": "1"}),
            json!({"pods": "0", "cpu": "0", "secrets": "0"}),
            json!([]),
        );
        assert_eq!(check(&mut q, &request("pods", pod("600m"), None)), Ok("cpu=600m,pods=1,secrets=0".into()));
        assert_eq!(
            check(&mut q, &request("pods", pod("500m"), None)),
            Err("exceeded quota: q, requested: cpu=500m, used: cpu=600m, limited: cpu=1".into())
        );
        assert_eq!(check(&mut q, &request("pods", pod("400m"), None)), Ok("cpu=1,pods=2,secrets=0".into()));
        assert_eq!(
            check(&mut q, &request("pods", pod("1"), None)),
            Err("exceeded quota: q, requested: cpu=1,pods=1, used: cpu=1,pods=2, limited: cpu=1,pods=2".into())
        );
        refund(&mut q, &[("pods".to_owned(), Default::default())].into());
        assert_eq!(check(&mut q, &request("configmaps", json!({}), None)), Ok("cpu=1,pods=2,secrets=0".into()));
    }

    #[test]
    fn an_update_is_charged_for_what_it_adds() {
        let mut q = quota(json!({"services.nodeports": "3"}), json!({"services.nodeports": "1"}), json!([]));
        let service = |ports: usize| json!({"spec": {"type": "NodePort", "ports": vec![json!({}); ports]}});
        let grown = request("services", service(3), Some(service(1)));
        assert_eq!(check(&mut q, &grown), Ok("services.nodeports=3".into()));
        let shrunk = request("services", service(1), Some(service(3)));
        assert_eq!(check(&mut q, &shrunk), Ok("services.nodeports=3".into()));
    }

    #[test]
    fn what_is_not_known_or_not_named_is_refused() {
        let mut q = quota(json!({"pods": "1"}), json!({}), json!([]));
        assert_eq!(
            check(&mut q, &request("pods", pod("1"), None)),
            Err("status unknown for quota: q, resources: pods".into())
        );
        let mut q = quota(json!({"limits.cpu": "1"}), json!({"limits.cpu": "0"}), json!([]));
        assert_eq!(
            check(&mut q, &request("pods", pod("1"), None)),
            Err("failed quota: q: must specify limits.cpu for: c".into())
        );
        let mut q = quota(json!({"pods": "0"}), json!({"pods": "0"}), json!(["BestEffort"]));
        assert_eq!(check(&mut q, &request("pods", pod("1"), None)), Ok("pods=0".into()));
    }
}
