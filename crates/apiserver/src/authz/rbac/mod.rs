//! Role based access control: allowed when a rule of a role bound to the user, or to one of its
//! groups, matches. Nothing else allows, nothing denies.
//!
//! The index is brought up to date from the watch cache at the start of each question, so an answer
//! is exactly as fresh as a read: who sees a RoleBinding may already use it.

use std::sync::Arc;

use kinds::User;
use parking_lot::Mutex;

use super::{Authorizer, Decision};
use crate::objects::{self, Change, Objects, Resource, Seen};
use crate::request::RequestInfo;

pub mod index;
pub mod rule;

pub use index::{Index, RoleRef};
pub use rule::Rule;

const FOLLOWED: [Resource; 4] =
    [objects::CLUSTER_ROLES, objects::ROLES, objects::CLUSTER_ROLE_BINDINGS, objects::ROLE_BINDINGS];

/// RBAC over the watch cache.
pub struct Rbac {
    objects: Arc<dyn Objects>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    index: Index,
    seen: [Seen; FOLLOWED.len()],
}

impl Rbac {
    /// Over the objects given; reads them when first asked.
    pub fn new(objects: Arc<dyn Objects>) -> Arc<Self> {
        Arc::new(Self { objects, state: Mutex::default() })
    }

    /// Reads the index, brought up to date.
    pub fn with_index<T>(&self, read: impl FnOnce(&Index) -> T) -> T {
        let mut state = self.state.lock();
        let State { index, seen } = &mut *state;
        for (resource, seen) in FOLLOWED.into_iter().zip(seen) {
            let role = resource == objects::ROLES || resource == objects::CLUSTER_ROLES;
            for change in self.objects.changes(resource, seen) {
                match (role, change) {
                    (true, Change::Put(object)) => index.put_role(&object),
                    (true, Change::Gone { namespace, name }) => index.remove_role(&namespace, &name),
                    (false, Change::Put(object)) => index.put_binding(&object),
                    (false, Change::Gone { namespace, name }) => index.remove_binding(&namespace, &name),
                }
            }
        }
        index.refresh();
        read(index)
    }

    /// Every rule that counts for a user in a namespace (empty: cluster-wide ones only), and what
    /// could not be resolved.
    pub fn rules_for(&self, user: &User, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        self.with_index(|index| {
            let (mut rules, mut errors) = (Vec::new(), Vec::new());
            for grant in index.grants(&user.name, &user.groups, namespace) {
                match index.rules(&grant.role, &grant.namespace) {
                    Ok(found) => rules.extend(found.iter().cloned()),
                    Err(error) => errors.push(error),
                }
            }
            (rules, errors)
        })
    }

    /// The rules of a role that a binding in `namespace` names.
    pub fn role_rules(&self, role: &RoleRef, namespace: &str) -> Result<Vec<Rule>, String> {
        self.with_index(|index| index.rules(role, namespace).map(|rules| rules.to_vec()))
    }
}

impl Authorizer for Rbac {
    fn authorize(&self, user: &User, request: &RequestInfo) -> Decision {
        self.with_index(|index| decide(index, user, request))
    }
}

/// The answer, from the index alone.
pub fn decide(index: &Index, user: &User, request: &RequestInfo) -> Decision {
    let namespace = if request.is_resource { request.namespace.as_str() } else { "" };
    let mut errors: Vec<String> = Vec::new();
    for grant in index.grants(&user.name, &user.groups, namespace) {
        match index.rules(&grant.role, &grant.namespace) {
            Ok(rules) if rules.iter().any(|rule| rule.matches(request)) => {
                return Decision::Allow { reason: format!("RBAC: allowed by {}", grant.describe()) };
            }
            Ok(_) => {}
            Err(error) if errors.contains(&error) => {}
            Err(error) => errors.push(error),
        }
    }
    let reason = match errors.as_slice() {
        [] => String::new(),
        [one] => format!("RBAC: {one}"),
        several => format!("RBAC: [{}]", several.join(", ")),
    };
    Decision::NoOpinion { reason }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::fixed::Fixed;

    fn role(namespace: &str, name: &str, verbs: &[&str], resources: &[&str]) -> serde_json::Value {
        json!({"metadata": {"namespace": namespace, "name": name},
               "rules": [{"apiGroups": [""], "verbs": verbs, "resources": resources}]})
    }

    fn binding(namespace: &str, name: &str, kind: &str, role: &str, subjects: serde_json::Value) -> serde_json::Value {
        json!({"metadata": {"namespace": namespace, "name": name},
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}, "subjects": subjects})
    }

    fn user(name: &str, groups: &[&str]) -> User {
        User { name: name.into(), groups: groups.iter().map(|g| (*g).into()).collect(), ..User::default() }
    }

    fn ask(verb: &str, resource: &str, namespace: &str) -> RequestInfo {
        RequestInfo {
            is_resource: true,
            verb: verb.into(),
            version: "v1".into(),
            resource: resource.into(),
            namespace: namespace.into(),
            ..RequestInfo::default()
        }
    }

    #[test]
    fn bindings_allow_their_subjects_in_their_place() {
        let objects = Arc::new(Fixed::default());
        objects
            .put(objects::CLUSTER_ROLES, role("", "reader", &["get", "list"], &["pods"]))
            .put(objects::ROLES, role("a", "writer", &["create"], &["pods"]))
            .put(
                objects::CLUSTER_ROLE_BINDINGS,
                binding("", "all", "ClusterRole", "reader", json!([{"kind": "Group", "name": "devs"}])),
            )
            .put(
                objects::ROLE_BINDINGS,
                binding("a", "w", "Role", "writer", json!([{"kind": "ServiceAccount", "name": "bot"}])),
            )
            .put(
                objects::ROLE_BINDINGS,
                binding("a", "r", "ClusterRole", "reader", json!([{"kind": "User", "name": "jane"}])),
            )
            .put(
                objects::ROLE_BINDINGS,
                binding("b", "gone", "Role", "nowhere", json!([{"kind": "User", "name": "jane"}])),
            );
        let rbac = Rbac::new(objects.clone());
        let dev = user("dan", &["devs"]);
        let jane = user("jane", &[]);
        let bot = user("system:serviceaccount:a:bot", &[]);
        for (who, request, want) in [
            (
                &dev,
                ask("list", "pods", ""),
                "RBAC: allowed by ClusterRoleBinding \"all\" of ClusterRole \"reader\" to Group \"devs\"",
            ),
            (&dev, ask("create", "pods", "a"), ""),
            (
                &jane,
                ask("get", "pods", "a"),
                "RBAC: allowed by RoleBinding \"r/a\" of ClusterRole \"reader\" to User \"jane\"",
            ),
            (&jane, ask("list", "pods", ""), ""),
            (&jane, ask("get", "pods", "b"), "RBAC: role.rbac.authorization.k8s.io \"nowhere\" not found"),
            (
                &bot,
                ask("create", "pods", "a"),
                "RBAC: allowed by RoleBinding \"w/a\" of Role \"writer\" to ServiceAccount \"bot/a\"",
            ),
            (&bot, ask("create", "pods", "b"), ""),
        ] {
            let decision = rbac.authorize(who, &request);
            assert_eq!(decision.reason(), want, "{} {request:?}", who.name);
            assert_eq!(decision.is_allowed(), want.starts_with("RBAC: allowed"), "{} {request:?}", who.name);
        }
        objects.remove(objects::ROLE_BINDINGS, "a", "r");
        assert!(!rbac.authorize(&jane, &ask("get", "pods", "a")).is_allowed(), "a binding that is gone");
    }

    #[test]
    fn aggregated_roles_follow_labels() {
        let objects = Arc::new(Fixed::default());
        let aggregated = |name: &str, label: &str| {
            json!({"metadata": {"name": name}, "rules": [],
                   "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}})
        };
        let mut edit = aggregated("edit", "to-edit");
        edit["metadata"]["labels"] = json!({"to-admin": "true", "to-edit": "true"});
        let mut part = role("", "part", &["create"], &["pods"]);
        part["metadata"]["labels"] = json!({"to-edit": "true"});
        objects
            .put(objects::CLUSTER_ROLES, aggregated("admin", "to-admin"))
            .put(objects::CLUSTER_ROLES, edit)
            .put(objects::CLUSTER_ROLES, part);
        let rbac = Rbac::new(objects.clone());
        let admin = RoleRef { cluster: true, name: "admin".into() };
        let rules = rbac.role_rules(&admin, "").unwrap();
        assert_eq!(
            rules.iter().map(Rule::compact).collect::<Vec<_>>(),
            [r#"{APIGroups:[""], Resources:["pods"], Verbs:["create"]}"#]
        );
        objects.put(objects::CLUSTER_ROLES, role("", "part", &["create"], &["pods"]));
        assert!(rbac.role_rules(&admin, "").unwrap().is_empty(), "the label is gone");
    }
}
