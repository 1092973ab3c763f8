//! Roles and bindings by who they are about, so that a request looks only at bindings of its own
//! user and groups.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use machinery::{labels, meta};
use serde_json::Value;

use super::rule::Rule;

/// Who a binding is about. A ServiceAccount is the user it authenticates as.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    User(String),
    Group(String),
}

/// Which role a binding gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleRef {
    pub cluster: bool,
    pub name: String,
}

impl RoleRef {
    /// Reads `roleRef`; `None` when it is none of RBAC's.
    pub fn of(binding: &Value) -> Option<Self> {
        let text = |key: &str| binding.get("roleRef")?.get(key)?.as_str();
        let cluster = match text("kind")? {
            "ClusterRole" => true,
            "Role" => false,
            _ => return None,
        };
        Some(Self { cluster, name: text("name")?.to_owned() })
    }

    fn kind(&self) -> &'static str {
        if self.cluster { "ClusterRole" } else { "Role" }
    }
}

/// One subject of one binding.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Empty for a ClusterRoleBinding.
    pub namespace: String,
    pub binding: String,
    pub role: RoleRef,
    /// As reasons print the subject: `Group "system:masters"`.
    subject: String,
}

impl Grant {
    /// As reasons print it.
    pub fn describe(&self) -> String {
        let (kind, name) = if self.namespace.is_empty() {
            ("ClusterRoleBinding", self.binding.clone())
        } else {
            ("RoleBinding", format!("{}/{}", self.binding, self.namespace))
        };
        format!("{kind} {name:?} of {} {:?} to {}", self.role.kind(), self.role.name, self.subject)
    }
}

#[derive(Clone, Debug, Default)]
struct Role {
    rules: Arc<[Rule]>,
    labels: BTreeMap<String, String>,
    /// Selectors of an aggregated role; empty for an ordinary one.
    aggregates: Option<Vec<labels::Selector>>,
}

/// Everything RBAC knows. Names are unique per kind and namespace, so maps are keyed by both.
#[derive(Default)]
pub struct Index {
    roles: HashMap<(String, String), Role>,
    cluster_roles: BTreeMap<String, Role>,
    /// The rules of aggregated roles; emptied when a ClusterRole changes.
    aggregated: HashMap<String, Arc<[Rule]>>,
    /// True when `aggregated` has been emptied.
    stale: bool,
    grants: HashMap<Subject, Vec<Arc<Grant>>>,
    /// Which subjects a binding is filed under: (namespace, name) → subjects.
    subjects: HashMap<(String, String), Vec<Subject>>,
}

impl Index {
    /// Adds or replaces a Role or ClusterRole (no namespace).
    pub fn put_role(&mut self, role: &Value) {
        let entry =
            Role { rules: Rule::all_of(role).into(), labels: meta::labels(role), aggregates: aggregation(role) };
        let (namespace, name) = (meta::namespace(role).to_owned(), meta::name(role).to_owned());
        if namespace.is_empty() {
            self.cluster_roles.insert(name, entry);
            self.stale = true;
        } else {
            self.roles.insert((namespace, name), entry);
        }
    }

    /// Forgets a Role or ClusterRole.
    pub fn remove_role(&mut self, namespace: &str, name: &str) {
        if namespace.is_empty() {
            self.cluster_roles.remove(name);
            self.stale = true;
        } else {
            self.roles.remove(&(namespace.to_owned(), name.to_owned()));
        }
    }

    /// Adds or replaces a RoleBinding or ClusterRoleBinding (no namespace).
    pub fn put_binding(&mut self, binding: &Value) {
        let (namespace, name) = (meta::namespace(binding).to_owned(), meta::name(binding).to_owned());
        self.remove_binding(&namespace, &name);
        let Some(role) = RoleRef::of(binding) else { return };
        let mut filed = Vec::new();
        for subject in binding.get("subjects").and_then(Value::as_array).into_iter().flatten() {
            let Some((key, text)) = subject_of(subject, &namespace) else { continue };
            let grant =
                Grant { namespace: namespace.clone(), binding: name.clone(), role: role.clone(), subject: text };
            self.grants.entry(key.clone()).or_default().push(Arc::new(grant));
            filed.push(key);
        }
        self.subjects.insert((namespace, name), filed);
    }

    /// Forgets a RoleBinding or ClusterRoleBinding.
    pub fn remove_binding(&mut self, namespace: &str, name: &str) {
        let Some(filed) = self.subjects.remove(&(namespace.to_owned(), name.to_owned())) else { return };
        for subject in filed {
            if let Some(grants) = self.grants.get_mut(&subject) {
                grants.retain(|g| g.namespace != namespace || g.binding != name);
                if grants.is_empty() {
                    self.grants.remove(&subject);
                }
            }
        }
    }

    /// The bindings about a user or its groups that count in `namespace`: cluster-wide ones first.
    pub fn grants<'a>(
        &'a self,
        user: &'a str,
        groups: &'a [String],
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Grant>> {
        let mine = move || {
            let groups = groups.iter().map(|g| Subject::Group(g.clone()));
            std::iter::once(Subject::User(user.to_owned()))
                .chain(groups)
                .filter_map(|subject| self.grants.get(&subject))
                .flatten()
        };
        let cluster = mine().filter(|g| g.namespace.is_empty());
        let local = mine().filter(move |g| !namespace.is_empty() && g.namespace == namespace);
        cluster.chain(local)
    }

    /// The rules of a role as seen from `namespace`; the error says what is missing.
    pub fn rules(&self, role: &RoleRef, namespace: &str) -> Result<Arc<[Rule]>, String> {
        let found = if role.cluster {
            self.cluster_roles.get(&role.name)
        } else {
            self.roles.get(&(namespace.to_owned(), role.name.clone()))
        };
        let Some(found) = found else {
            let resource = if role.cluster { "clusterrole" } else { "role" };
            return Err(format!("{resource}.rbac.authorization.k8s.io {:?} not found", role.name));
        };
        if found.aggregates.is_none() {
            return Ok(found.rules.clone());
        }
        Ok(self.aggregated.get(&role.name).cloned().unwrap_or_default())
    }

    /// Computes the rules of aggregated roles anew after ClusterRoles changed. To be called before
    /// questions are asked.
    pub fn refresh(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let aggregated = self.cluster_roles.iter().filter_map(|(name, role)| {
            let selectors = role.aggregates.as_ref()?;
            Some((name.clone(), self.aggregate(name, selectors).into()))
        });
        self.aggregated = aggregated.collect();
    }

    /// Aggregated ClusterRoles with the rules they should have and whether they have them.
    pub fn aggregations(&self) -> impl Iterator<Item = (&str, &[Rule], bool)> {
        self.aggregated.iter().filter_map(|(name, rules)| {
            let stored = &self.cluster_roles.get(name)?.rules;
            Some((name.as_str(), &**rules, stored == rules))
        })
    }

    /// The union of the selected roles' own rules, in name order, each rule once. Roles that are
    /// aggregated themselves contribute what they aggregate, each role at most once.
    fn aggregate(&self, name: &str, selectors: &[labels::Selector]) -> Vec<Rule> {
        let mut out: Vec<Rule> = Vec::new();
        let mut visited = BTreeSet::from([name.to_owned()]);
        self.gather(selectors, &mut visited, &mut out);
        out
    }

    fn gather(&self, selectors: &[labels::Selector], visited: &mut BTreeSet<String>, out: &mut Vec<Rule>) {
        for selector in selectors {
            for (name, role) in &self.cluster_roles {
                if !selector.matches(&role.labels) || !visited.insert(name.clone()) {
                    continue;
                }
                match &role.aggregates {
                    Some(inner) => self.gather(inner, visited, out),
                    None => {
                        for rule in role.rules.iter() {
                            if !out.contains(rule) {
                                out.push(rule.clone());
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The selectors of `aggregationRule`; a selector that cannot be read selects nothing.
fn aggregation(role: &Value) -> Option<Vec<labels::Selector>> {
    let list = role.pointer("/aggregationRule/clusterRoleSelectors")?.as_array()?;
    let selectors = list.iter().filter_map(|s| selector(s).ok()).collect();
    Some(selectors)
}

/// A `metav1.LabelSelector` as a selector.
fn selector(value: &Value) -> Result<labels::Selector, String> {
    let mut terms = Vec::new();
    for (key, wanted) in value.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        terms.push((key.as_str(), labels::Operator::In, vec![wanted.as_str().unwrap_or_default().to_owned()]));
    }
    for term in value.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
        let text = |key: &str| term.get(key).and_then(Value::as_str).unwrap_or_default();
        let values = term.get("values").and_then(Value::as_array).into_iter().flatten();
        let operator = match text("operator") {
            "In" => labels::Operator::In,
            "NotIn" => labels::Operator::NotIn,
            "Exists" => labels::Operator::Exists,
            "DoesNotExist" => labels::Operator::DoesNotExist,
            other => return Err(format!("{other:?} is not a valid label selector operator")),
        };
        terms.push((text("key"), operator, values.filter_map(Value::as_str).map(str::to_owned).collect()));
    }
    let requirement = |(key, operator, values)| labels::Requirement::new(key, operator, values);
    let requirements: Result<Vec<_>, _> = terms.into_iter().map(requirement).collect();
    requirements.map(labels::Selector::new).map_err(|e| e.to_string())
}

fn subject_of(subject: &Value, namespace: &str) -> Option<(Subject, String)> {
    let text = |key: &str| subject.get(key).and_then(Value::as_str).filter(|s| !s.is_empty());
    let (kind, name) = (text("kind")?, text("name")?);
    match kind {
        "User" => Some((Subject::User(name.to_owned()), format!("User {name:?}"))),
        "Group" => Some((Subject::Group(name.to_owned()), format!("Group {name:?}"))),
        "ServiceAccount" => {
            let namespace = text("namespace").or(Some(namespace).filter(|n| !n.is_empty()))?;
            let user = format!("system:serviceaccount:{namespace}:{name}");
            Some((Subject::User(user), format!("ServiceAccount {:?}", format!("{name}/{namespace}"))))
        }
        _ => None,
    }
}
