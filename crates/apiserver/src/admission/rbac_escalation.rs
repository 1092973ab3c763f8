//! Nobody grants what they do not hold: a role's rules, and those a binding gives, must be covered
//! by the writer's own, unless it may `escalate` or `bind`.

use std::sync::Arc;

use async_trait::async_trait;
use kinds::{User, Verb};
use machinery::meta;
use machinery::status::{self, GroupResource, Status};
use serde_json::Value;

use super::{Attributes, Plugin};
use crate::authz::rbac::{RoleRef, Rule, rule};
use crate::authz::{Authorizer, Rbac, masters};
use crate::objects::{CLUSTER_ROLES, Objects};
use crate::request::RequestInfo;

const GROUP: &str = "rbac.authorization.k8s.io";

/// The plugin.
pub struct RbacEscalation {
    rbac: Arc<Rbac>,
    authorizer: Arc<dyn Authorizer>,
    objects: Arc<dyn Objects>,
}

impl RbacEscalation {
    /// Judges by the rules in `rbac`; `authorizer` answers whether the verbs are allowed.
    pub fn new(rbac: Arc<Rbac>, authorizer: Arc<dyn Authorizer>, objects: Arc<dyn Objects>) -> Self {
        Self { rbac, authorizer, objects }
    }

    fn may(&self, user: &User, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let request = RequestInfo {
            is_resource: true,
            verb: verb.to_owned(),
            group: GROUP.to_owned(),
            version: "*".to_owned(),
            namespace: namespace.to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            ..RequestInfo::default()
        };
        self.authorizer.authorize(user, &request).is_allowed()
    }

    fn confirm(&self, user: &User, namespace: &str, wanted: &[Rule]) -> Result<(), String> {
        let (held, errors) = self.rbac.rules_for(user, namespace);
        let mut missing: Vec<String> = rule::missing(&held, wanted).iter().map(Rule::compact).collect();
        if missing.is_empty() {
            return Ok(());
        }
        missing.sort();
        missing.dedup();
        let mut text = format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            rule::quoted(&user.groups),
            missing.join("\n")
        );
        if !errors.is_empty() {
            text.push_str(&format!("; resolution errors: [{}]", errors.join(" ")));
        }
        Err(text)
    }

    fn judge(&self, write: &Write<'_>) -> Result<(), Refusal> {
        if masters::is_member(write.user) {
            return Ok(());
        }
        let object = write.object;
        match write.plural {
            "roles" | "clusterroles" => self.judge_role(write, object),
            "rolebindings" | "clusterrolebindings" => self.judge_binding(write, object),
            _ => Ok(()),
        }
    }

    fn judge_role(&self, write: &Write<'_>, role: &Value) -> Result<(), Refusal> {
        let unchanged = |key: &str| write.old.is_some_and(|old| old.get(key) == role.get(key));
        if unchanged("rules") && unchanged("aggregationRule") {
            return Ok(());
        }
        if self.may(write.user, "escalate", write.plural, write.namespace, meta::name(role)) {
            return Ok(());
        }
        let aggregates = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
        if aggregates.is_some_and(|s| !s.is_empty())
            && self.confirm(write.user, write.namespace, &Rule::full_authority()).is_err()
        {
            return Err(Refusal::Forbidden("must have cluster-admin privileges to use an aggregationRule".into()));
        }
        self.confirm(write.user, write.namespace, &Rule::all_of(role)).map_err(Refusal::Forbidden)
    }

    fn judge_binding(&self, write: &Write<'_>, binding: &Value) -> Result<(), Refusal> {
        let unchanged = |key: &str| write.old.is_some_and(|old| old.get(key) == binding.get(key));
        if unchanged("roleRef") && unchanged("subjects") {
            return Ok(());
        }
        // Validation refuses any other reference.
        let Some(role) = RoleRef::of(binding) else { return Ok(()) };
        let resource = if role.cluster { "clusterroles" } else { "roles" };
        if self.may(write.user, "bind", resource, write.namespace, &role.name) {
            return Ok(());
        }
        let rules = self.rbac.role_rules(&role, write.namespace).map_err(|_| Refusal::NoRole(role))?;
        self.confirm(write.user, write.namespace, &rules).map_err(Refusal::Forbidden)
    }
}

/// The write that is judged.
struct Write<'a> {
    user: &'a User,
    plural: &'a str,
    namespace: &'a str,
    object: &'a Value,
    old: Option<&'a Value>,
}

#[derive(Debug, PartialEq)]
enum Refusal {
    Forbidden(String),
    NoRole(RoleRef),
}

#[async_trait]
impl Plugin for RbacEscalation {
    fn name(&self) -> &'static str {
        "RBACEscalation"
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Value>) -> status::Result<()> {
        let shape = attributes.kind.shape();
        let Some(object) = object.filter(|_| shape.group == GROUP && attributes.verb != Verb::Delete) else {
            return Ok(());
        };
        let write = Write {
            user: attributes.user,
            plural: shape.plural,
            namespace: attributes.namespace,
            object,
            old: attributes.old,
        };
        let mut verdict = self.judge(&write);
        if verdict.is_err() {
            // What the writer holds may have been given a moment ago.
            self.objects.settle(CLUSTER_ROLES).await?;
            verdict = self.judge(&write);
        }
        match verdict {
            Ok(()) => Ok(()),
            Err(Refusal::Forbidden(why)) => Err(attributes.forbidden(Some(object), why)),
            Err(Refusal::NoRole(role)) => {
                let resource = if role.cluster { "clusterroles" } else { "roles" };
                Err(Status::not_found(&GroupResource::new(GROUP, resource), &role.name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::{self, fixed::Fixed};

    fn rule(verbs: &[&str], resources: &[&str]) -> Value {
        json!({"apiGroups": [""], "verbs": verbs, "resources": resources})
    }

    #[test]
    fn only_what_is_held_can_be_granted() {
        let objects = Arc::new(Fixed::default());
        let role = |name: &str, rules: Value| json!({"metadata": {"name": name}, "rules": rules});
        let rbac_rule =
            |verb: &str, resource: &str| json!({"apiGroups": [GROUP], "verbs": [verb], "resources": [resource]});
        objects
            .put(objects::CLUSTER_ROLES, role("reader", json!([rule(&["get", "list"], &["pods"])])))
            .put(objects::CLUSTER_ROLES, role("escalator", json!([rbac_rule("escalate", "roles")])))
            .put(objects::CLUSTER_ROLES, role("binder", json!([rbac_rule("bind", "clusterroles")])))
            .put(objects::CLUSTER_ROLES, role("admin", json!([rule(&["*"], &["*"])])));
        for name in ["reader", "escalator", "binder"] {
            objects.put(
                objects::CLUSTER_ROLE_BINDINGS,
                json!({"metadata": {"name": name}, "roleRef": {"kind": "ClusterRole", "name": name},
                       "subjects": [{"kind": "User", "name": name}]}),
            );
        }
        let rbac = Rbac::new(objects.clone());
        let plugin = RbacEscalation::new(rbac.clone(), rbac, objects);
        let judge = |user: &str, plural: &str, object: Value, old: Option<&Value>| {
            let user = User { name: user.into(), groups: vec!["g".into()], ..User::default() };
            let write = Write { user: &user, plural, namespace: "ns", object: &object, old };
            match plugin.judge(&write) {
                Ok(()) => "ok".to_owned(),
                Err(Refusal::Forbidden(why)) => why.lines().last().unwrap_or_default().to_owned(),
                Err(Refusal::NoRole(role)) => format!("no role {}", role.name),
            }
        };
        let give = |verbs: &[&str]| role("new", json!([rule(verbs, &["pods"])]));
        let bind = |kind: &str, name: &str| json!({"metadata": {"name": "b"}, "roleRef": {"kind": kind, "name": name}, "subjects": []});
        let missing = r#"{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}"#;
        let everything = r#"{APIGroups:[""], Resources:["*"], Verbs:["*"]}"#;
        let old = give(&["get", "delete"]);
        let mut relabelled = old.clone();
        relabelled["metadata"]["labels"] = json!({"a": "b"});
        let mut aggregated = role("agg", json!([]));
        aggregated["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
        for (user, plural, object, old, want) in [
            ("reader", "roles", give(&["get"]), None, "ok"),
            ("reader", "roles", give(&["get", "delete"]), None, missing),
            ("reader", "roles", give(&["get", "delete"]), Some(&give(&["get"])), missing),
            ("reader", "roles", relabelled, Some(&old), "ok"),
            ("escalator", "roles", give(&["delete"]), None, "ok"),
            ("escalator", "clusterroles", give(&["delete"]), None, missing),
            (
                "reader",
                "clusterroles",
                aggregated,
                None,
                "must have cluster-admin privileges to use an aggregationRule",
            ),
            ("reader", "rolebindings", bind("ClusterRole", "reader"), None, "ok"),
            ("reader", "rolebindings", bind("ClusterRole", "admin"), None, everything),
            ("reader", "rolebindings", bind("ClusterRole", "nothing"), None, "no role nothing"),
            ("reader", "rolebindings", bind("Role", "nothing"), None, "no role nothing"),
            ("binder", "rolebindings", bind("ClusterRole", "admin"), None, "ok"),
            ("binder", "clusterrolebindings", bind("ClusterRole", "admin"), None, "ok"),
        ] {
            assert_eq!(judge(user, plural, object.clone(), old), want, "{user} {plural} {object}");
        }
        let why = |groups: &[&str]| {
            let user =
                User { name: "x".into(), groups: groups.iter().map(|g| (*g).into()).collect(), ..User::default() };
            plugin.confirm(&user, "", &[Rule::of(&rule(&["get"], &["pods"]))]).unwrap_err()
        };
        assert_eq!(
            why(&["a", "b"]).lines().next(),
            Some(r#"user "x" (groups=["a" "b"]) is attempting to grant RBAC permissions not currently held:"#)
        );
    }
}
