//! What the four RBAC kinds share: rules, subjects, references to roles.

use api::types::rbac::v1 as rbac;
use machinery::field::{FieldErrors, Path};
use machinery::names;
use serde_json::Value;

use crate::cells;
use crate::check;
use crate::kind::Column;

/// The API group of the kinds themselves.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The columns of both bindings.
pub const BINDING_COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Role", "The role it gives."),
    Column::AGE,
    Column::text("Users", "The users it gives it to.").wide(),
    Column::text("Groups", "The groups it gives it to.").wide(),
    Column::text("ServiceAccounts", "The service accounts it gives it to.").wide(),
];

/// The mistakes in the rules of a role.
pub fn rules(rules: &[rbac::PolicyRule], namespaced: bool, errors: &mut FieldErrors) {
    let given = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| !list.is_empty());
    for (i, rule) in rules.iter().enumerate() {
        let path = Path::new("rules").index(i);
        if rule.verbs.is_empty() {
            errors.required(&path.child("verbs"), "verbs must contain at least one value");
        }
        if given(&rule.non_resource_urls) {
            let path = path.child("nonResourceURLs");
            let urls = check::value(&rule.non_resource_urls);
            if namespaced {
                errors.invalid(&path, urls.clone(), "namespaced rules cannot apply to non-resource URLs");
            }
            if given(&rule.api_groups) || given(&rule.resources) || given(&rule.resource_names) {
                errors.invalid(&path, urls, "rules cannot apply to both regular resources and non-resource URLs");
            }
            continue;
        }
        if !given(&rule.api_groups) {
            errors.required(&path.child("apiGroups"), "resource rules must supply at least one api group");
        }
        if !given(&rule.resources) {
            errors.required(&path.child("resources"), "resource rules must supply at least one resource");
        }
    }
}

/// Fills the API groups of a binding.
pub fn default_groups(role: &mut rbac::RoleRef, subjects: &mut Option<Vec<rbac::Subject>>) {
    if role.api_group.as_deref().unwrap_or_default().is_empty() {
        role.api_group = Some(GROUP.into());
    }
    for subject in subjects.iter_mut().flatten() {
        if subject.api_group.as_deref().unwrap_or_default().is_empty()
            && matches!(subject.kind.as_str(), "User" | "Group")
        {
            subject.api_group = Some(GROUP.into());
        }
    }
}

/// The mistakes in a binding.
pub fn binding(
    role: &rbac::RoleRef,
    roles: &[&str],
    subjects: Option<&Vec<rbac::Subject>>,
    namespaced: bool,
    errors: &mut FieldErrors,
) {
    let path = Path::new("roleRef");
    let group = role.api_group.as_deref().unwrap_or_default();
    if group != GROUP {
        errors.not_supported(&path.child("apiGroup"), group, &[GROUP]);
    }
    if !roles.contains(&role.kind.as_str()) {
        errors.not_supported(&path.child("kind"), role.kind.as_str(), roles);
    }
    if role.name.is_empty() {
        errors.required(&path.child("name"), "");
    } else {
        check::all(names::path_segment(&role.name), &path.child("name"), &role.name, errors);
    }
    for (i, subject) in subjects.into_iter().flatten().enumerate() {
        self::subject(subject, namespaced, &Path::new("subjects").index(i), errors);
    }
}

fn subject(subject: &rbac::Subject, namespaced: bool, path: &Path, errors: &mut FieldErrors) {
    if subject.name.is_empty() {
        errors.required(&path.child("name"), "");
    }
    let group = subject.api_group.as_deref().unwrap_or_default();
    let of_group = |wanted: &str, errors: &mut FieldErrors| {
        if group != wanted {
            errors.not_supported(&path.child("apiGroup"), group, &[wanted]);
        }
    };
    match subject.kind.as_str() {
        "ServiceAccount" => {
            if !subject.name.is_empty() {
                check::all(names::dns1123_subdomain(&subject.name), &path.child("name"), &subject.name, errors);
            }
            of_group("", errors);
            if !namespaced && subject.namespace.as_deref().unwrap_or_default().is_empty() {
                errors.required(&path.child("namespace"), "");
            }
        }
        "User" | "Group" => of_group(GROUP, errors),
        other => errors.not_supported(&path.child("kind"), other, &["ServiceAccount", "User", "Group"]),
    }
}

/// A binding is for one role, for good.
pub fn same_role(new: &rbac::RoleRef, old: &rbac::RoleRef, errors: &mut FieldErrors) {
    if new != old {
        errors.invalid(&Path::new("roleRef"), check::value(new), "cannot change roleRef");
    }
}

/// The wide cells of a binding.
pub fn subject_cells(subjects: Option<&Vec<rbac::Subject>>) -> [Value; 3] {
    let (mut users, mut groups, mut accounts) = (Vec::new(), Vec::new(), Vec::new());
    for subject in subjects.into_iter().flatten() {
        match subject.kind.as_str() {
            "User" => users.push(subject.name.clone()),
            "Group" => groups.push(subject.name.clone()),
            "ServiceAccount" => {
                accounts.push(format!("{}/{}", subject.namespace.as_deref().unwrap_or_default(), subject.name));
            }
            _ => {}
        }
    }
    [users, groups, accounts].map(|names| Value::from(names.join(", ")))
}

/// The role cell of a binding.
pub fn role_cell(role: &rbac::RoleRef) -> Value {
    cells::or_none(format!("{}/{}", role.kind, role.name))
}
