//! What may change in a running pod through `pods/resize`: amounts of cpu and memory, of its containers and of
//! the pod as a whole.

use api::types::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use machinery::field::{FieldErrors, Path};

use crate::resources::List;

const RESIZABLE: [&str; 2] = ["cpu", "memory"];
type ListOf = fn(&ResourceRequirements) -> Option<&List>;

const ONLY: &str = "only cpu and memory resources are mutable";

/// The mistakes in a resize.
pub fn resize(new_pod: &Pod, old_pod: &Pod, errors: &mut FieldErrors) {
    let refuse = |errors: &mut FieldErrors, why: &str| {
        *errors = FieldErrors::new();
        errors.forbidden(&Path::new("[]"), why);
    };
    if api::pod::is_mirror(old_pod) {
        return refuse(errors, "static pods cannot be resized");
    }
    let none = PodSpec::default();
    let (new, old) = (new_pod.spec.as_ref().unwrap_or(&none), old_pod.spec.as_ref().unwrap_or(&none));
    if old.os.as_ref().is_some_and(|os| os.name == "windows") {
        return refuse(errors, "windows pods cannot be resized");
    }
    let path = Path::new("spec");
    let stored = |pod: &Pod| pod.status.as_ref().and_then(|status| status.qos_class.clone());
    let before = stored(old_pod).unwrap_or_else(|| api::pod::qos_class(old_pod).as_str().to_owned());
    if api::pod::qos_class(new_pod).as_str() != before {
        // The class shown is the one that is stored: what is asked for has none yet.
        let shown = stored(new_pod).unwrap_or_default();
        errors.invalid(&path, shown, "Pod QOS Class may not change as a result of resizing");
    }
    if !node_can_resize(old_pod) {
        errors.forbidden(&path, "Pod running on node without support for resize");
    }
    let mut rest = new.clone();
    whole(new, old, &mut rest, &path, errors);
    if !is_ordered(new, old, &path, errors) {
        return;
    }
    let (new_inits, old_inits) = (inits(new), inits(old));
    for (field, new, old) in
        [("initContainers", new_inits, old_inits), ("containers", &new.containers, &old.containers)]
    {
        for (i, (new, old)) in new.iter().zip(old).enumerate() {
            let path = path.child(field).index(i).child("resources");
            for list in removed(new.resources.as_ref(), old.resources.as_ref()) {
                errors.forbidden(&path.child(list), format!("resource {list} cannot be removed"));
            }
        }
    }
    for (new, old) in rest.containers.iter_mut().zip(&old.containers) {
        mask(new, old);
        if new != old {
            errors.forbidden(&path, ONLY);
        }
    }
    for (i, (new, old)) in rest.init_containers.iter_mut().flatten().zip(old_inits).enumerate() {
        let path = path.child("initContainers").index(i);
        let resized = resources(new) != resources(old) || new.resize_policy != old.resize_policy;
        mask(new, old);
        if new != old {
            errors.forbidden(&path, "only cpu and memory resources for init or sidecar containers are mutable");
        }
        let restarts = |container: &Container| {
            container.resize_policy.iter().flatten().any(|policy| policy.restart_policy == "RestartContainer")
        };
        if resized && !api::pod::is_sidecar(new) && restarts(new) {
            let wrong = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            errors.forbidden(&path, wrong);
        }
    }
    if errors.is_empty() && rest != *old {
        errors.forbidden(&path, ONLY);
    }
}

fn inits(spec: &PodSpec) -> &[Container] {
    spec.init_containers.as_deref().unwrap_or_default()
}

fn resources(container: &Container) -> ResourceRequirements {
    container.resources.clone().unwrap_or_default()
}

/// What the pod is given as a whole; `rest` gets the old amounts, so that what else differs shows.
fn whole(new: &PodSpec, old: &PodSpec, rest: &mut PodSpec, path: &Path, errors: &mut FieldErrors) {
    let some = |list: &Option<List>| list.as_ref().is_some_and(|list| !list.is_empty());
    let given = |spec: &PodSpec| spec.resources.as_ref().is_some_and(|r| some(&r.requests) || some(&r.limits));
    if !given(new) && !given(old) {
        return;
    }
    if old.resources.is_some() && new.resources.is_none() {
        errors.forbidden(&path.child("resources"), "pod-level resources cannot be removed");
        return;
    }
    if old.resources.is_some() {
        for list in removed(new.resources.as_ref(), old.resources.as_ref()) {
            let path = path.child("resources").child(list);
            errors.forbidden(&path, format!("pod-level resource {list} cannot be removed"));
        }
    }
    rest.resources = masked(new.resources.as_ref(), old.resources.as_ref());
    if rest.resources != old.resources {
        errors.forbidden(path, "only cpu and memory resources are mutable at pod-level");
    }
}

/// Which of the two lists has lost a name.
fn removed(new: Option<&ResourceRequirements>, old: Option<&ResourceRequirements>) -> Vec<&'static str> {
    let gone = |of: ListOf| {
        let after = new.and_then(of);
        old.and_then(of).into_iter().flatten().any(|(name, _)| after.is_none_or(|after| !after.contains_key(name)))
    };
    let lists: [(&str, ListOf); 2] = [("requests", |r| r.requests.as_ref()), ("limits", |r| r.limits.as_ref())];
    lists.into_iter().filter(|(_, of)| gone(*of)).map(|(name, _)| name).collect()
}

/// The containers are those there were, in their order.
fn is_ordered(new: &PodSpec, old: &PodSpec, path: &Path, errors: &mut FieldErrors) -> bool {
    let found = errors.len();
    for (field, new, old) in
        [("containers", &new.containers[..], &old.containers[..]), ("initContainers", inits(new), inits(old))]
    {
        if new.len() != old.len() {
            errors.forbidden(&path.child(field), format!("{field} may not be added or removed on resize"));
            continue;
        }
        for (i, _) in new.iter().zip(old).enumerate().filter(|(_, (new, old))| new.name != old.name) {
            let path = path.child(field).index(i).child("name");
            errors.forbidden(&path, format!("{field} may not be renamed or reordered on resize"));
        }
    }
    errors.len() == found
}

/// Gives a container the cpu and memory it had, and says nothing where both say nothing.
fn mask(new: &mut Container, old: &Container) {
    new.resources = masked(new.resources.as_ref(), old.resources.as_ref());
}

fn masked(new: Option<&ResourceRequirements>, old: Option<&ResourceRequirements>) -> Option<ResourceRequirements> {
    let list = |of: ListOf| {
        let mut after = new.and_then(of).cloned().unwrap_or_default();
        let before = old.and_then(of);
        for name in RESIZABLE {
            match before.and_then(|before| before.get(name)) {
                Some(amount) => drop(after.insert(name.to_owned(), amount.clone())),
                None => drop(after.remove(name)),
            }
        }
        // Empty and absent are the same; what was said before is said again.
        if after.is_empty() { before.filter(|before| before.is_empty()).cloned() } else { Some(after) }
    };
    let masked = ResourceRequirements {
        claims: new.and_then(|new| new.claims.clone()),
        requests: list(|r| r.requests.as_ref()),
        limits: list(|r| r.limits.as_ref()),
    };
    if masked == ResourceRequirements::default() && old.is_none() { None } else { Some(masked) }
}

/// A kubelet that reports the resources of what it runs can change them.
fn node_can_resize(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let mut running = statuses.filter(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()));
    running.next().is_none_or(|status| status.resources.is_some())
}
