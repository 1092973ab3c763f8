//! The mistakes in the volumes of a pod, and in references to fields of a pod.

use std::collections::BTreeSet;

use api::types::core::v1::{
    DownwardAPIVolumeFile, KeyToPath, ObjectFieldSelector, PodSpec, ProjectedVolumeSource, ResourceFieldSelector,
    Volume,
};
use machinery::field::{FieldErrors, Path};
use machinery::names;

use super::{validate_projected, validate_sources, volume_sources};
use crate::check;
use crate::resources;

/// Fields an environment variable can take.
pub const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields a file can take.
const FILE_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const HOST_PATH: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

/// All volumes of a spec.
pub fn all(spec: &PodSpec, path: &Path, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = path.index(i);
        let wrong = names::dns1123_label(&volume.name);
        if volume.name.is_empty() {
            errors.required(&path.child("name"), "");
        } else if !wrong.is_empty() {
            check::all(wrong, &path.child("name"), &volume.name, errors);
        } else if !seen.insert(volume.name.as_str()) {
            errors.duplicate(&path.child("name"), volume.name.as_str());
        }
        source(volume, &path, errors);
    }
}

fn source(volume: &Volume, path: &Path, errors: &mut FieldErrors) {
    let given = volume_sources(volume);
    let Some((first, rest)) = given.split_first() else {
        return errors.required(path, "must specify a volume type");
    };
    for name in rest {
        // Two of them are told by names of their own.
        let name = match *name {
            "cephfs" => "cephFS",
            "downwardAPI" => "downwarAPI",
            name => name,
        };
        errors.forbidden(&path.child(name), "may not specify more than 1 volume type");
    }
    validate_sources::one(volume, first, path, errors);
    if let Some(empty) = volume.empty_dir.as_ref().filter(|_| *first == "emptyDir") {
        if empty.size_limit.as_ref().and_then(resources::parse).is_some_and(|limit| limit.is_negative()) {
            let path = path.child("emptyDir").child("sizeLimit");
            errors.forbidden(&path, "SizeLimit field must be a valid resource quantity");
        }
    }
    if let Some(host) = volume.host_path.as_ref().filter(|_| *first == "hostPath") {
        let path = path.child("hostPath");
        if host.path.is_empty() {
            return errors.required(&path.child("path"), "");
        }
        if host.path.split('/').any(|part| part == "..") {
            errors.invalid(&path.child("path"), host.path.as_str(), "must not contain '..'");
        }
        check::one_of_or_absent(host.type_.as_deref(), HOST_PATH, &path.child("type"), errors);
    }
    if let Some(secret) = volume.secret.as_ref().filter(|_| *first == "secret") {
        let path = path.child("secret");
        if secret.secret_name.as_deref().unwrap_or_default().is_empty() {
            errors.required(&path.child("secretName"), "");
        }
        mode(secret.default_mode, &path.child("defaultMode"), errors);
        items(secret.items.as_deref().unwrap_or_default(), &path.child("items"), errors);
    }
    if let Some(map) = volume.config_map.as_ref().filter(|_| *first == "configMap") {
        let path = path.child("configMap");
        if map.name.is_empty() {
            errors.required(&path.child("name"), "");
        }
        mode(map.default_mode, &path.child("defaultMode"), errors);
        items(map.items.as_deref().unwrap_or_default(), &path.child("items"), errors);
    }
    if let Some(claim) = volume.persistent_volume_claim.as_ref().filter(|_| *first == "persistentVolumeClaim") {
        if claim.claim_name.is_empty() {
            errors.required(&path.child("persistentVolumeClaim").child("claimName"), "");
        }
    }
    if let Some(downward) = volume.downward_api.as_ref().filter(|_| *first == "downwardAPI") {
        let path = path.child("downwardAPI");
        mode(downward.default_mode, &path.child("defaultMode"), errors);
        for item in downward.items.iter().flatten() {
            // The list index is not part of these paths.
            downward_file(item, &path, errors);
        }
    }
    if let Some(projected) = volume.projected.as_ref().filter(|_| *first == "projected") {
        self::projected(projected, &path.child("projected"), errors);
    }
    if let Some(nfs) = volume.nfs.as_ref().filter(|_| *first == "nfs") {
        let path = path.child("nfs");
        for (text, field) in [(&nfs.server, "server"), (&nfs.path, "path")] {
            if text.is_empty() {
                errors.required(&path.child(field), "");
            }
        }
        if !nfs.path.starts_with('/') {
            errors.invalid(&path.child("path"), nfs.path.as_str(), "must be an absolute path");
        }
    }
    if let Some(image) = volume.image.as_ref().filter(|_| *first == "image") {
        let path = path.child("image");
        if image.reference.as_deref().unwrap_or_default().is_empty() {
            errors.required(&path.child("reference"), "");
        }
        let policies = ["Always", "IfNotPresent", "Never"];
        check::one_of(image.pull_policy.as_deref(), &policies, &path.child("pullPolicy"), errors);
    }
}

fn mode(mode: Option<i32>, path: &Path, errors: &mut FieldErrors) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        errors.invalid(path, mode, MODE);
    }
}

/// Each item names a key and a file below the volume.
fn items(items: &[KeyToPath], path: &Path, errors: &mut FieldErrors) {
    for (i, item) in items.iter().enumerate() {
        let path = path.index(i);
        if item.key.is_empty() {
            errors.required(&path.child("key"), "");
        }
        if item.path.is_empty() {
            errors.required(&path.child("path"), "");
        }
        if !item.path.is_empty() {
            unreserved_path(&item.path, &path.child("path"), errors);
        }
        mode(item.mode, &path.child("mode"), errors);
    }
}

/// A path below something, that never leaves it.
pub fn inner_path(text: &str, path: &Path, errors: &mut FieldErrors) {
    if text.starts_with('/') {
        errors.invalid(path, text, "must be a relative path");
    }
    if text.split('/').any(|part| part == "..") {
        errors.invalid(path, text, "must not contain '..'");
    }
}

/// The same, and not one of the names a volume keeps for itself.
pub(super) fn unreserved_path(text: &str, path: &Path, errors: &mut FieldErrors) {
    inner_path(text, path, errors);
    if text.starts_with("..") && !text.starts_with("../") && text != ".." {
        errors.invalid(path, text, "must not start with '..'");
    }
}

fn downward_file(file: &DownwardAPIVolumeFile, path: &Path, errors: &mut FieldErrors) {
    if file.path.is_empty() {
        errors.required(&path.child("path"), "");
    } else {
        unreserved_path(&file.path, &path.child("path"), errors);
    }
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), resource) => {
            field_ref(field, FILE_FIELDS, &path.child("fieldRef"), errors);
            if resource.is_some() {
                let wrong = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.invalid(path, "resource", wrong);
            }
        }
        (None, Some(resource)) => resource_ref(resource, true, &path.child("resourceFieldRef"), errors),
        (None, None) => errors.required(path, "one of fieldRef and resourceFieldRef is required"),
    }
    mode(file.mode, &path.child("mode"), errors);
}

fn projected(volume: &ProjectedVolumeSource, whole: &Path, errors: &mut FieldErrors) {
    mode(volume.default_mode, &whole.child("defaultMode"), errors);
    let mut paths: BTreeSet<&str> = BTreeSet::new();
    for (i, source) in volume.sources.iter().flatten().enumerate() {
        let path = whole.child("sources").index(i);
        let mut given = 0;
        // Each with what a conflict names.
        let mut files: Vec<(&str, &str)> = Vec::new();
        if let Some(secret) = &source.secret {
            given += 1;
            let path = path.child("secret");
            if secret.name.is_empty() {
                errors.required(&path.child("name"), "");
            }
            items(secret.items.as_deref().unwrap_or_default(), &path.child("items"), errors);
            files.extend(secret.items.iter().flatten().map(|item| (item.path.as_str(), secret.name.as_str())));
        }
        if let Some(map) = &source.config_map {
            given += 1;
            let path = path.child("configMap");
            if map.name.is_empty() {
                errors.required(&path.child("name"), "");
            }
            items(map.items.as_deref().unwrap_or_default(), &path.child("items"), errors);
            files.extend(map.items.iter().flatten().map(|item| (item.path.as_str(), map.name.as_str())));
        }
        if let Some(downward) = &source.downward_api {
            given += 1;
            for item in downward.items.iter().flatten() {
                downward_file(item, &path.child("downwardAPI"), errors);
                files.push((&item.path, &item.path));
            }
        }
        if let Some(token) = &source.service_account_token {
            given += 1;
            let path = path.child("serviceAccountToken");
            let seconds = token.expiration_seconds.unwrap_or(3600);
            if seconds < 600 {
                let wrong = "may not specify a duration less than 10 minutes";
                errors.invalid(&path.child("expirationSeconds"), seconds, wrong);
            }
            if seconds > 1 << 32 {
                let wrong = "may not specify a duration larger than 2^32 seconds";
                errors.invalid(&path.child("expirationSeconds"), seconds, wrong);
            }
            if token.path.is_empty() {
                errors.required(&whole.child("path"), "");
            } else {
                unreserved_path(&token.path, &whole.child("path"), errors);
            }
        }
        if let Some(bundle) = &source.cluster_trust_bundle {
            given += 1;
            validate_projected::bundle(bundle, &path.child("clusterTrustBundle"), errors);
            files.push((&bundle.path, &bundle.path));
        }
        if let Some(certificate) = &source.pod_certificate {
            given += 1;
            validate_projected::certificate(certificate, &path.child("podCertificate"), errors);
            files.extend(validate_projected::paths(certificate).into_iter().map(|(_, path)| (path, path)));
        }
        if given > 1 {
            errors.forbidden(&path, "may not specify more than 1 volume type per source");
        }
        for (file, named) in files {
            if !file.is_empty() && !paths.insert(file) {
                errors.invalid(whole, named, "conflicting duplicate paths");
            }
        }
    }
}

/// A reference to a field of the pod.
pub fn field_ref(field: &ObjectFieldSelector, supported: &[&str], path: &Path, errors: &mut FieldErrors) {
    if field.api_version.as_deref().unwrap_or_default().is_empty() {
        errors.required(&path.child("apiVersion"), "");
        return;
    }
    let text = field.field_path.as_str();
    let path = path.child("fieldPath");
    if text.is_empty() {
        errors.required(&path, "");
        return;
    }
    let subscript = text.strip_suffix("']").and_then(|text| text.split_once("['"));
    match subscript {
        Some(("metadata.labels", key)) => check::all(names::qualified_name(key), &path, key, errors),
        Some(("metadata.annotations", key)) => {
            check::all(names::qualified_name(&key.to_lowercase()), &path, key, errors);
        }
        Some(_) => errors.invalid(&path, text, "does not support subscript"),
        None if supported.contains(&text) => {}
        None if ENV_FIELDS.contains(&text) || FILE_FIELDS.contains(&text) => {
            errors.not_supported(&path, text, supported);
        }
        None => {
            let wrong = format!("error converting fieldPath: field label not supported: {text}");
            errors.invalid(&path, text, wrong);
        }
    }
}

/// A reference to a resource of a container.
pub fn resource_ref(resource: &ResourceFieldSelector, in_volume: bool, path: &Path, errors: &mut FieldErrors) {
    let name = resource.resource.as_str();
    if in_volume && resource.container_name.as_deref().unwrap_or_default().is_empty() {
        errors.required(&path.child("containerName"), "");
    } else if name.is_empty() {
        errors.required(&path.child("resource"), "");
    } else if !RESOURCES.contains(&name)
        && !name.starts_with("requests.hugepages-")
        && !name.starts_with("limits.hugepages-")
    {
        errors.not_supported(&path.child("resource"), name, RESOURCES);
    }
    let Some(divisor) = resource.divisor.as_ref().filter(|divisor| divisor.0 != "0" && !divisor.0.is_empty()) else {
        return;
    };
    let units: &[&str] = if name.ends_with(".cpu") {
        &["1m", "1"]
    } else {
        &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"]
    };
    if !units.contains(&divisor.0.as_str()) {
        let kind = if name.ends_with(".cpu") {
            "cpu"
        } else if name.ends_with(".memory") {
            "memory"
        } else if name.ends_with(".ephemeral-storage") {
            "local ephemeral storage"
        } else {
            "hugepages"
        };
        let wrong = if kind == "cpu" {
            "only divisor's values 1m and 1 are supported with the cpu resource".to_owned()
        } else {
            format!(
                "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the {kind} resource"
            )
        };
        errors.invalid(&path.child("divisor"), name, wrong);
    }
}
