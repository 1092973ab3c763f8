//! AppArmor: profiles in fields, and in annotations, where they were before and where old clients still write
//! them. Both are kept equal.

use std::collections::BTreeMap;

use api::types::core::v1::{AppArmorProfile, Container, Pod, PodSpec};
use machinery::field::{FieldErrors, Path};

use super::warnings::containers;

/// What the annotation of a container begins with.
pub const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const LOCALHOST: &str = "localhost/";
const TYPES: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];
/// No path is longer.
const LONGEST: usize = 4095;

type Annotations = BTreeMap<String, String>;

/// The mistakes in a profile.
pub fn field(profile: &AppArmorProfile, path: &Path, errors: &mut FieldErrors) {
    let (local, place) = (profile.localhost_profile.as_deref(), path.child("localhostProfile"));
    let missing = "must be set when AppArmor type is Localhost";
    match (profile.type_.as_str(), local) {
        ("Localhost", None | Some("")) => errors.required(&place, missing),
        ("Localhost", Some(name)) => {
            if name.trim() != name {
                errors.invalid(&place, name, "must not be padded with whitespace");
            }
            if name.len() > LONGEST {
                errors.too_long(&place, LONGEST);
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            errors.invalid(&place, name, "can only be set when AppArmor type is Localhost");
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => errors.required(&path.child("type"), "type is required when appArmorProfile is set"),
        (other, _) => errors.not_supported(&path.child("type"), other, TYPES),
    }
}

/// The mistakes in annotations: each names a container, and a profile.
pub fn annotations(annotations: Option<&Annotations>, spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let names = containers(spec, path);
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| container.name.as_str());
    let names: Vec<&str> = names.iter().map(|(container, _)| container.name.as_str()).chain(ephemeral).collect();
    for (key, said) in annotations.into_iter().flatten() {
        let Some(name) = key.strip_prefix(ANNOTATION) else { continue };
        if !names.contains(&name) {
            errors.invalid(&path.key(key), name, "container not found");
        }
        if !matches!(said.as_str(), "" | "runtime/default" | "unconfined") && !said.starts_with(LOCALHOST) {
            errors.invalid(&path.key(key), said.as_str(), format!("invalid AppArmor profile name: {said:?}"));
        }
    }
}

/// Where both say something, they say the same.
pub fn alike(annotations: Option<&Annotations>, spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    if is_windows(spec) {
        return;
    }
    let of_pod = of_pod(spec);
    for (container, path) in containers(spec, path) {
        let own = of_container(&container).or(of_pod);
        let said = annotations.and_then(|annotations| annotations.get(&key(&container)));
        let (Some(own), Some(said)) = (own, said) else { continue };
        let path = path.child("securityContext").child("appArmorProfile");
        let same_type = match own.type_.as_str() {
            "Unconfined" => said == "unconfined",
            "RuntimeDefault" => said == "runtime/default",
            "Localhost" => said.starts_with(LOCALHOST),
            _ => true,
        };
        if !same_type {
            errors.forbidden(&path.child("type"), "apparmor type in annotation and field must match");
        } else if own.type_ == "Localhost" && said.strip_prefix(LOCALHOST) != own.localhost_profile.as_deref() {
            errors.forbidden(&path.child("localhostProfile"), "apparmor profile in annotation and field must match");
        }
    }
}

/// What an annotation says, as a profile; `None` when it says nothing that is known.
pub fn said(text: &str) -> Option<AppArmorProfile> {
    let (kind, file) = match text {
        "unconfined" => ("Unconfined", None),
        "runtime/default" => ("RuntimeDefault", None),
        other => ("Localhost", Some(other.strip_prefix(LOCALHOST).filter(|file| !file.is_empty())?.to_owned())),
    };
    Some(AppArmorProfile { localhost_profile: file, type_: kind.to_owned() })
}

/// The same, if it could stand in a field.
fn usable(text: &str) -> Option<AppArmorProfile> {
    let mut errors = FieldErrors::new();
    said(text).filter(|profile| {
        field(profile, &Path::root(), &mut errors);
        errors.is_empty()
    })
}

/// What annotations of a new pod say that its fields do not say becomes a field.
pub fn adopt(pod: &mut Pod) {
    let Some(spec) = pod.spec.as_mut().filter(|spec| !is_windows(spec)) else { return };
    let of_pod = of_pod(spec).cloned();
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let said = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(&key(container)));
        if of_container(container).is_some() {
            continue;
        }
        if let Some(profile) = said.and_then(|said| usable(said)).filter(|profile| Some(profile) != of_pod.as_ref()) {
            container.security_context.get_or_insert_default().app_armor_profile = Some(profile);
        }
    }
}

/// What is told of such annotations, before they are adopted.
pub fn warnings(pod: &Pod) -> Vec<String> {
    let Some(spec) = pod.spec.as_ref().filter(|spec| !is_windows(spec)) else { return Vec::new() };
    let (of_pod, mut out) = (of_pod(spec), Vec::new());
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        let key = key(container);
        let Some(said) = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(&key)) else {
            continue;
        };
        let profile = usable(said);
        if of_container(container).is_none() && (profile.is_none() || profile.as_ref() != of_pod) {
            let path = Path::new("metadata").child("annotations").key(&key);
            out.push(format!("{path}: deprecated since v1.30; use the \"appArmorProfile\" field instead"));
        }
    }
    out
}

fn key(container: &Container) -> String {
    format!("{ANNOTATION}{}", container.name)
}

fn of_pod(spec: &PodSpec) -> Option<&AppArmorProfile> {
    spec.security_context.as_ref()?.app_armor_profile.as_ref()
}

fn of_container(container: &Container) -> Option<&AppArmorProfile> {
    container.security_context.as_ref()?.app_armor_profile.as_ref()
}

fn is_windows(spec: &PodSpec) -> bool {
    spec.os.as_ref().is_some_and(|os| os.name == "windows")
}
