//! Seccomp: profiles in fields, and in annotations, where they were before and which no kubelet reads any
//! more. Where both say something, they say the same.

use std::collections::BTreeMap;

use api::types::core::v1::{PodSpec, SeccompProfile};
use machinery::field::{FieldErrors, Path};

use super::{validate_volume, warnings};
use crate::check;

const OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const OF_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const LOCALHOST: &str = "localhost/";
/// The runtime's own profile, by its name of today and by that of the past.
const RUNTIME: &[&str] = &["runtime/default", "docker/default"];
const UNCONFINED: &str = "unconfined";

type Annotations = BTreeMap<String, String>;

/// The mistakes in a profile and where it lies.
pub fn field(profile: &SeccompProfile, path: &Path, errors: &mut FieldErrors) {
    let supported = ["Localhost", "RuntimeDefault", "Unconfined"];
    match profile.type_.as_str() {
        "" => errors.required(&path.child("type"), "type is required when seccompProfile is set"),
        other => check::one_of(Some(other), &supported, &path.child("type"), errors),
    }
    let local = profile.localhost_profile.as_deref();
    let path = path.child("localhostProfile");
    match (profile.type_ == "Localhost", local) {
        (true, None) => errors.required(&path, "must be set when seccomp type is Localhost"),
        (true, Some(local)) => validate_volume::inner_path(local, &path, errors),
        (false, Some(local)) => errors.invalid(&path, local, "can only be set when seccomp type is Localhost"),
        (false, None) => {}
    }
}

/// The mistakes in annotations.
pub fn annotations(annotations: Option<&Annotations>, path: &Path, errors: &mut FieldErrors) {
    let ours = |key: &str| key == OF_POD || key.starts_with(OF_CONTAINER);
    for (key, said) in annotations.into_iter().flatten().filter(|(key, _)| ours(key)) {
        let path = path.child(key);
        if let Some(file) = said.strip_prefix(LOCALHOST) {
            validate_volume::inner_path(file, &path, errors);
        } else if !RUNTIME.contains(&said.as_str()) && said != UNCONFINED {
            errors.invalid(&path, said.as_str(), "must be a valid seccomp profile");
        }
    }
}

/// What the annotations of a new pod say is what its fields say.
pub fn alike(annotations: Option<&Annotations>, spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let said = |key: &str| annotations.and_then(|annotations| annotations.get(key));
    if let Some(profile) = spec.security_context.as_ref().and_then(|context| context.seccomp_profile.as_ref())
        && let Some(said) = said(OF_POD)
    {
        same(said, profile, &path.child("securityContext").child("seccompProfile"), errors);
    }
    let own = warnings::containers(spec, path).into_iter().map(|(container, path)| {
        let profile = container.security_context.and_then(|context| context.seccomp_profile);
        (container.name, profile, path)
    });
    let ephemeral = spec.ephemeral_containers.iter().flatten().enumerate().map(|(i, container)| {
        let profile = container.security_context.as_ref().and_then(|context| context.seccomp_profile.clone());
        (container.name.clone(), profile, path.child("ephemeralContainers").index(i))
    });
    for (name, profile, path) in own.chain(ephemeral) {
        if let (Some(profile), Some(said)) = (profile, said(&format!("{OF_CONTAINER}{name}"))) {
            same(said, &profile, &path.child("securityContext").child("seccompProfile"), errors);
        }
    }
}

fn same(said: &str, profile: &SeccompProfile, path: &Path, errors: &mut FieldErrors) {
    let file = said.strip_prefix(LOCALHOST);
    let same_type = match profile.type_.as_str() {
        "Unconfined" => said == UNCONFINED,
        "RuntimeDefault" => RUNTIME.contains(&said),
        "Localhost" => file.is_some(),
        _ => true,
    };
    if !same_type {
        errors.forbidden(&path.child("type"), "seccomp type in annotation and field must match");
    } else if profile.type_ == "Localhost" && file != profile.localhost_profile.as_deref() {
        errors.forbidden(&path.child("localhostProfile"), "seccomp profile in annotation and field must match");
    }
}
