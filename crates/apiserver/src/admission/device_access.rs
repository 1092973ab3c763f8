//! Who may ask for devices as an administrator, say which a claim was given, and speak for a driver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use kinds::Verb;
use machinery::field::{FieldErrors, Path};
use machinery::meta;
use machinery::status::{self, Status};
use serde_json::Value;

use super::{Attributes, Plugin};
use crate::authz::Authorizer;
use crate::objects::{self, Objects, Resource};
use crate::request::RequestInfo;

const CLAIMS: Resource = Resource { group: "resource.k8s.io", plural: "resourceclaims" };
const TEMPLATES: Resource = Resource { group: "resource.k8s.io", plural: "resourceclaimtemplates" };
/// A namespace with it may have claims with an administrator's access.
const LABEL: &str = "resource.kubernetes.io/admin-access";
const NODE: &str = "authentication.kubernetes.io/node-name";

/// The plugin. Upstream judges this where it validates: the refusal is one of validation.
pub struct DeviceAccess {
    pub objects: Arc<dyn Objects>,
    pub authorizer: Arc<dyn Authorizer>,
}

/// Where a list asks for an administrator's access.
fn admin(list: Option<&Value>, field: &str) -> Option<usize> {
    let asks = |item: &Value| item.pointer(field) == Some(&Value::Bool(true));
    list.and_then(Value::as_array)?.iter().position(asks)
}

impl DeviceAccess {
    async fn admin(&self, namespace: &str, path: &Path, errors: &mut FieldErrors) -> status::Result<()> {
        let found = self.objects.find(objects::NAMESPACES, "", namespace).await?;
        if found.is_none_or(|namespace| namespace["metadata"]["labels"][LABEL] != "true") {
            let why = format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
            errors.forbidden(path, why);
        }
        Ok(())
    }

    /// Why the user may not do this to a part of claims.
    fn refusal(&self, attributes: &Attributes<'_>, verb: &str, part: &str, at: (&str, &str)) -> Option<String> {
        let (namespace, name) = at;
        let request = RequestInfo {
            is_resource: true,
            verb: verb.to_owned(),
            group: CLAIMS.group.to_owned(),
            version: "v1".to_owned(),
            namespace: namespace.to_owned(),
            resource: CLAIMS.plural.to_owned(),
            subresource: part.to_owned(),
            name: name.to_owned(),
            ..RequestInfo::default()
        };
        let decision = self.authorizer.authorize(attributes.user, &request);
        (!decision.is_allowed())
            .then(|| crate::chain::denial(&attributes.user.name, &request, decision.reason()).message)
    }

    async fn status(
        &self,
        attributes: &Attributes<'_>,
        old: &Value,
        new: &Value,
        errors: &mut FieldErrors,
    ) -> status::Result<()> {
        let results = |claim: &'_ Value| claim.pointer("/status/allocation/devices/results").cloned();
        if admin(results(old).as_ref(), "/adminAccess").is_none() {
            if let Some(i) = admin(results(new).as_ref(), "/adminAccess") {
                let path = Path::new("status.allocation.devices.results").index(i).child("adminAccess");
                self.admin(attributes.namespace, &path, errors).await?;
            }
        }
        let changed = |pointer: &str| old.pointer(pointer) != new.pointer(pointer);
        let verb = attributes.request.verb.as_str();
        if changed("/status/allocation") || changed("/status/reservedFor") {
            if let Some(why) = self.refusal(attributes, verb, "binding", ("", "")) {
                let what = "changing status.allocation or status.reservedFor requires";
                let why = format!(r#"{what} resource="resourceclaims/binding", verb="{verb}" permission: {why}"#);
                errors.forbidden(&Path::new("status.allocation"), why);
            }
        }
        if new.pointer("/status/allocation").is_none_or(Value::is_null) {
            return Ok(());
        }
        let mut verbs = vec![format!("arbitrary-node:{verb}")];
        let its_node = attributes.user.extra.get(NODE).map(Vec::as_slice);
        let is_account = attributes.user.name.starts_with("system:serviceaccount:");
        if let ([node], true) = (its_node.unwrap_or_default(), is_account) {
            if allocated_node(new) == Some(node.as_str()) {
                verbs.insert(0, format!("associated-node:{verb}"));
            }
        }
        for driver in changed_drivers(old, new) {
            let refusals =
                verbs.iter().map(|verb| self.refusal(attributes, verb, "driver", (attributes.namespace, &driver)));
            let refusals: Option<Vec<String>> = refusals.collect();
            if let Some(why) = refusals.and_then(|all| all.into_iter().next()) {
                let what = "changing status.devices requires";
                let verbs = verbs.join(" ");
                let why = format!(r#"{what} resource="resourceclaims/driver", verb="[{verbs}]" permission: {why}"#);
                errors.forbidden(&Path::new("status.devices"), why);
            }
        }
        Ok(())
    }
}

/// The one node an allocation is for.
fn allocated_node(claim: &Value) -> Option<&str> {
    let terms = claim.pointer("/status/allocation/nodeSelector/nodeSelectorTerms")?.as_array()?;
    let [term] = terms.as_slice() else { return None };
    let none = |list: Option<&Value>| list.and_then(Value::as_array).is_none_or(Vec::is_empty);
    let fields = term.get("matchFields")?.as_array()?;
    let [field] = fields.as_slice() else { return None };
    let values = field.get("values")?.as_array()?;
    let is_name = field["key"] == "metadata.name" && field["operator"] == "In" && values.len() == 1;
    values.first()?.as_str().filter(|_| is_name && none(term.get("matchExpressions")))
}

/// The drivers of whose devices something else is said.
fn changed_drivers(old: &Value, new: &Value) -> BTreeSet<String> {
    let devices = |claim: &Value| -> BTreeMap<Vec<String>, Value> {
        let list = claim.pointer("/status/devices").and_then(Value::as_array).cloned().unwrap_or_default();
        let key = |device: &Value| {
            let part = |field: &&str| device.get(*field).and_then(Value::as_str).unwrap_or_default().to_owned();
            ["driver", "pool", "device", "shareID"].iter().map(part).collect()
        };
        list.into_iter().map(|device| (key(&device), device)).collect()
    };
    let (old, new) = (devices(old), devices(new));
    let keys = old.keys().chain(new.keys()).filter(|key| old.get(*key) != new.get(*key));
    keys.filter_map(|key| key.first().cloned()).collect()
}

#[async_trait]
impl Plugin for DeviceAccess {
    fn name(&self) -> &'static str {
        "DeviceAccess"
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Value>) -> status::Result<()> {
        let Some(new) = object else { return Ok(()) };
        let mut errors = FieldErrors::new();
        let create = attributes.verb == Verb::Create;
        let requests = match (attributes.is_for(CLAIMS, ""), attributes.is_for(TEMPLATES, "")) {
            (true, _) if create => new.pointer("/spec/devices/requests"),
            (_, true) if create => new.pointer("/spec/spec/devices/requests"),
            _ => None,
        };
        if let Some(i) = admin(requests, "/exactly/adminAccess") {
            let path = Path::new("spec.devices.requests").index(i).child("adminAccess");
            self.admin(attributes.namespace, &path, &mut errors).await?;
        }
        if let Some(old) = attributes.old.filter(|_| attributes.is_for(CLAIMS, "status")) {
            self.status(attributes, old, new, &mut errors).await?;
        }
        if errors.is_empty() {
            return Ok(());
        }
        let shape = attributes.kind.shape();
        Err(Status::invalid(shape.group, shape.kind, meta::name(new), &errors))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn drivers_answer_for_their_devices() {
        let claim = |devices: Value| json!({"status": {"devices": devices}});
        let a = json!({"driver": "a", "pool": "p", "device": "d"});
        let told = json!({"driver": "a", "pool": "p", "device": "d", "conditions": []});
        let b = json!({"driver": "b", "pool": "p", "device": "d"});
        for (old, new, want) in [
            (json!([a, b]), json!([b, a]), vec![]),
            (json!([a]), json!([a, b]), vec!["b"]),
            (json!([a, b]), json!([told]), vec!["a", "b"]),
        ] {
            let found: Vec<String> = changed_drivers(&claim(old), &claim(new)).into_iter().collect();
            assert_eq!(found, want);
        }
    }

    #[test]
    fn an_allocation_may_be_for_one_node() {
        let field = json!({"key": "metadata.name", "operator": "In", "values": ["n"]});
        let claim = |term: Value| json!({"status": {"allocation": {"nodeSelector": {"nodeSelectorTerms": [term]}}}});
        assert_eq!(allocated_node(&claim(json!({"matchFields": [field]}))), Some("n"));
        let more = json!({"matchFields": [field], "matchExpressions": [{"key": "a", "operator": "Exists"}]});
        assert_eq!(allocated_node(&claim(more)), None);
        assert_eq!(allocated_node(&json!({})), None);
    }
}
