//! Where a volume's bytes are: one of many kinds of storage, most of them of the past.

use api::types::core::v1 as core;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::check;
use crate::storage;

const BYTE_RANGE: &str = "must be between 0 and 255, inclusive";
const HOST_PATH_TYPES: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
pub(crate) const ISCSI_FORMAT: &str = "must be valid format";
pub(crate) const ISCSI_TOO_LONG: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 \
    characters if iscsi.initiatorName is specified.";
/// How long a volume's name with its portal may be when the initiator has a name.
const MAX_ISCSI_NAME: usize = 64;
const MAX_TENANT: usize = 64;
const REGISTRY: &str = "must be a host:port pair or multiple pairs separated by commas";

/// Kinds of storage that nothing serves any more: field, since when, and since when not at all.
const GONE: &[(&str, &str, &str, &str)] = &[
    ("cephfs", "cephfs", "v1.28", "v1.31"),
    ("photonPersistentDisk", "photonPersistentDisk", "v1.11", "v1.16"),
    ("rbd", "rbd", "v1.28", "v1.31"),
    ("scaleIO", "scaleIO", "v1.16", "v1.22"),
    ("storageos", "storageOS", "v1.22", "v1.25"),
    ("glusterfs", "glusterfs", "v1.25", "v1.26"),
];

/// The sources that are given, in the order they are looked at.
fn given(spec: &core::PersistentVolumeSpec) -> Vec<&'static str> {
    let all = [
        (spec.host_path.is_some(), "hostPath"),
        (spec.gce_persistent_disk.is_some(), "gcePersistentDisk"),
        (spec.aws_elastic_block_store.is_some(), "awsElasticBlockStore"),
        (spec.glusterfs.is_some(), "glusterfs"),
        (spec.flocker.is_some(), "flocker"),
        (spec.nfs.is_some(), "nfs"),
        (spec.rbd.is_some(), "rbd"),
        (spec.quobyte.is_some(), "quobyte"),
        (spec.cephfs.is_some(), "cephfs"),
        (spec.iscsi.is_some(), "iscsi"),
        (spec.cinder.is_some(), "cinder"),
        (spec.fc.is_some(), "fc"),
        (spec.flex_volume.is_some(), "flexVolume"),
        (spec.azure_file.is_some(), "azureFile"),
        (spec.vsphere_volume.is_some(), "vsphereVolume"),
        (spec.photon_persistent_disk.is_some(), "photonPersistentDisk"),
        (spec.portworx_volume.is_some(), "portworxVolume"),
        (spec.azure_disk.is_some(), "azureDisk"),
        (spec.scale_io.is_some(), "scaleIO"),
        (spec.local.is_some(), "local"),
        (spec.storageos.is_some(), "storageos"),
        (spec.csi.is_some(), "csi"),
    ];
    all.iter().filter(|(given, _)| *given).map(|(_, name)| *name).collect()
}

/// Of what a volume is, only where its bytes are.
pub fn only(spec: &core::PersistentVolumeSpec) -> core::PersistentVolumeSpec {
    core::PersistentVolumeSpec {
        access_modes: None,
        capacity: None,
        claim_ref: None,
        mount_options: None,
        node_affinity: None,
        persistent_volume_reclaim_policy: None,
        storage_class_name: None,
        volume_attributes_class_name: None,
        volume_mode: None,
        ..spec.clone()
    }
}

/// Fills what a source does not say.
pub fn defaults(spec: &mut core::PersistentVolumeSpec) {
    let text = |field: &mut Option<String>, value: &str| {
        if field.as_deref().unwrap_or_default().is_empty() {
            *field = Some(value.to_owned());
        }
    };
    if let Some(host) = &mut spec.host_path {
        host.type_.get_or_insert_default();
    }
    if let Some(iscsi) = &mut spec.iscsi {
        text(&mut iscsi.iscsi_interface, "default");
    }
    if let Some(rbd) = &mut spec.rbd {
        text(&mut rbd.pool, "rbd");
        text(&mut rbd.user, "admin");
        text(&mut rbd.keyring, "/etc/ceph/keyring");
    }
    if let Some(disk) = &mut spec.azure_disk {
        disk.caching_mode.get_or_insert_with(|| "ReadWrite".into());
        disk.fs_type.get_or_insert_with(|| "ext4".into());
        disk.read_only.get_or_insert(false);
        disk.kind.get_or_insert_with(|| "Shared".into());
    }
    if let Some(scale) = &mut spec.scale_io {
        text(&mut scale.storage_mode, "ThinProvisioned");
        text(&mut scale.fs_type, "xfs");
    }
}

/// What a client is told about storage that is no more.
pub fn warnings(spec: &core::PersistentVolumeSpec, path: &Path) -> Vec<String> {
    let given = given(spec);
    let gone = GONE.iter().filter(|(name, ..)| given.contains(name));
    gone.map(|(_, shown, since, end)| format!("{}: deprecated in {since}, non-functional in {end}+", path.child(shown)))
        .collect()
}

/// True for a path that is all of the host.
pub fn is_root(path: &str) -> bool {
    let mut depth = 0_usize;
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => depth = depth.saturating_sub(1),
            _ => depth += 1,
        }
    }
    path.starts_with('/') && depth == 0
}

/// Exactly one source, and that one sound.
pub fn validate(spec: &core::PersistentVolumeSpec, name: &str, path: &Path, errors: &mut FieldErrors) {
    let given = given(spec);
    if given.is_empty() {
        errors.required(path, "must specify a volume type");
    }
    for (i, source) in given.iter().enumerate() {
        if i == 0 || *source == "flexVolume" {
            old_sources(spec, source, path, errors);
            sources(spec, source, name, path, errors);
        } else {
            let shown = if *source == "cephfs" { "cephFS" } else { source };
            errors.forbidden(&path.child(shown), "may not specify more than 1 volume type");
        }
    }
}

/// Each of the fields must say something.
fn filled(fields: &[(&str, &str)], path: &Path, errors: &mut FieldErrors) {
    for (_, field) in fields.iter().filter(|(text, _)| text.is_empty()) {
        errors.required(&path.child(field), "");
    }
}

fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

fn no_steps_back(text: &str, path: &Path, errors: &mut FieldErrors) {
    if text.split('/').any(|part| part == "..") {
        errors.invalid(path, text, "must not contain '..'");
    }
}

pub(crate) fn byte(number: Option<i32>, path: &Path, errors: &mut FieldErrors) {
    if let Some(number) = number.filter(|number| !(0..=255).contains(number)) {
        errors.invalid(path, number, BYTE_RANGE);
    }
}

fn secret(secret: &Option<core::SecretReference>, field: &str, path: &Path, errors: &mut FieldErrors) {
    if let Some(secret) = secret {
        filled(&[(text(&secret.name), "name"), (text(&secret.namespace), "namespace")], &path.child(field), errors);
    }
}

/// The sources in use.
fn sources(spec: &core::PersistentVolumeSpec, source: &str, name: &str, path: &Path, errors: &mut FieldErrors) {
    let at = path.child(source);
    match source {
        "hostPath" => {
            let Some(host) = &spec.host_path else { return };
            if host.path.is_empty() {
                errors.required(&at.child("path"), "");
                return;
            }
            no_steps_back(&host.path, &at.child("path"), errors);
            check::one_of_or_absent(host.type_.as_deref(), HOST_PATH_TYPES, &at.child("type"), errors);
        }
        "nfs" => {
            let Some(nfs) = &spec.nfs else { return };
            filled(&[(&nfs.server, "server"), (&nfs.path, "path")], &at, errors);
            if !nfs.path.starts_with('/') {
                errors.invalid(&at.child("path"), nfs.path.as_str(), "must be an absolute path");
            }
        }
        "iscsi" => {
            let Some(iscsi) = &spec.iscsi else { return };
            self::iscsi(iscsi, name, &at, errors);
        }
        "fc" => {
            let Some(fc) = &spec.fc else { return };
            self::fc(fc, &at, errors);
        }
        "local" => {
            let Some(local) = &spec.local else { return };
            filled(&[(&local.path, "path")], &at, errors);
            no_steps_back(&local.path, &at.child("path"), errors);
            if spec.node_affinity.is_none() {
                errors.required(&path.child("nodeAffinity"), "Local volume requires node affinity");
            }
        }
        "csi" => {
            let Some(csi) = &spec.csi else { return };
            self::csi(csi, &at, errors);
        }
        _ => {}
    }
}

/// Sources that drivers have taken the place of.
pub(crate) fn old_sources(spec: &core::PersistentVolumeSpec, source: &str, path: &Path, errors: &mut FieldErrors) {
    let at = path.child(source);
    if let Some(disk) = spec.gce_persistent_disk.as_ref().filter(|_| source == "gcePersistentDisk") {
        let at = path.child("persistentDisk");
        filled(&[(&disk.pd_name, "pdName")], &at, errors);
        byte(disk.partition, &at.child("partition"), errors);
    }
    if let Some(disk) = spec.aws_elastic_block_store.as_ref().filter(|_| source == "awsElasticBlockStore") {
        filled(&[(&disk.volume_id, "volumeID")], &at, errors);
        byte(disk.partition, &at.child("partition"), errors);
    }
    if let Some(gluster) = spec.glusterfs.as_ref().filter(|_| source == "glusterfs") {
        filled(&[(&gluster.endpoints, "endpoints"), (&gluster.path, "path")], &at, errors);
        let path = at.child("endpointsNamespace");
        match gluster.endpoints_namespace.as_deref() {
            None => {}
            Some("") => {
                errors.invalid(&path, "", "if the endpointnamespace is set, it must be a valid namespace name");
            }
            Some(namespace) => check::all(names::dns1123_label(namespace), &path, namespace, errors),
        }
    }
    if let Some(flocker) = spec.flocker.as_ref().filter(|_| source == "flocker") {
        let (name, id) = (text(&flocker.dataset_name), text(&flocker.dataset_uuid));
        match (name, id) {
            ("", "") => errors.required(&at, "one of datasetName and datasetUUID is required"),
            ("", _) | (_, "") => {}
            _ => errors.invalid(&at, "resource", "datasetName and datasetUUID can not be specified simultaneously"),
        }
        if name.contains('/') {
            errors.invalid(&at.child("datasetName"), name, "must not contain '/'");
        }
    }
    if let Some(rbd) = spec.rbd.as_ref().filter(|_| source == "rbd") {
        if rbd.monitors.is_empty() {
            errors.required(&at.child("monitors"), "");
        }
        filled(&[(&rbd.image, "image")], &at, errors);
    }
    if let Some(quobyte) = spec.quobyte.as_ref().filter(|_| source == "quobyte") {
        self::quobyte(quobyte, &at, errors);
    }
    if spec.cephfs.as_ref().is_some_and(|ceph| source == "cephfs" && ceph.monitors.is_empty()) {
        errors.required(&at.child("monitors"), "");
    }
    if let Some(cinder) = spec.cinder.as_ref().filter(|_| source == "cinder") {
        filled(&[(&cinder.volume_id, "volumeID")], &at, errors);
        secret(&cinder.secret_ref, "secretRef", &at, errors);
    }
    if let Some(flex) = spec.flex_volume.as_ref().filter(|_| source == "flexVolume") {
        filled(&[(&flex.driver, "driver")], &at, errors);
        for key in flex.options.iter().flatten().map(|(key, _)| key) {
            let domain = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
            if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
                let wrong = "kubernetes.io and k8s.io namespaces are reserved";
                errors.invalid(&at.child("options").key(key), key.as_str(), wrong);
            }
        }
    }
    if let Some(file) = spec.azure_file.as_ref().filter(|_| source == "azureFile") {
        let namespace = file.secret_namespace.as_deref().unwrap_or("-");
        let fields =
            [(&*file.secret_name, "secretName"), (&*file.share_name, "shareName"), (namespace, "secretNamespace")];
        filled(&fields, &at, errors);
    }
    if let Some(disk) = spec.vsphere_volume.as_ref().filter(|_| source == "vsphereVolume") {
        filled(&[(&disk.volume_path, "volumePath")], &at, errors);
    }
    if let Some(disk) = spec.photon_persistent_disk.as_ref().filter(|_| source == "photonPersistentDisk") {
        filled(&[(&disk.pd_id, "pdID")], &at, errors);
    }
    if let Some(disk) = spec.portworx_volume.as_ref().filter(|_| source == "portworxVolume") {
        filled(&[(&disk.volume_id, "volumeID")], &at, errors);
    }
    if let Some(disk) = spec.azure_disk.as_ref().filter(|_| source == "azureDisk") {
        azure_disk(disk, &at, errors);
    }
    if let Some(scale) = spec.scale_io.as_ref().filter(|_| source == "scaleIO") {
        let fields =
            [(&*scale.gateway, "gateway"), (&*scale.system, "system"), (text(&scale.volume_name), "volumeName")];
        filled(&fields, &at, errors);
    }
    if let Some(os) = spec.storageos.as_ref().filter(|_| source == "storageos") {
        filled(&[(text(&os.volume_name), "volumeName")], &at, errors);
        for (name, field) in [(text(&os.volume_name), "volumeName"), (text(&os.volume_namespace), "volumeNamespace")] {
            if !name.is_empty() {
                check::all(names::dns1123_label(name), &at.child(field), name, errors);
            }
        }
        if let Some(secret) = &os.secret_ref {
            let fields = [(text(&secret.name), "name"), (text(&secret.namespace), "namespace")];
            filled(&fields, &at.child("secretRef"), errors);
        }
    }
}

fn iscsi(iscsi: &core::ISCSIPersistentVolumeSource, volume: &str, at: &Path, errors: &mut FieldErrors) {
    filled(&[(&iscsi.target_portal, "targetPortal")], at, errors);
    if iscsi.initiator_name.is_some() && is_iscsi_too_long(volume, &iscsi.target_portal) {
        errors.invalid(&at.child("targetportal"), iscsi.target_portal.as_str(), ISCSI_TOO_LONG);
    }
    if iscsi.iqn.is_empty() {
        errors.required(&at.child("iqn"), "");
    } else if !is_iscsi_name(&iscsi.iqn) {
        errors.invalid(&at.child("iqn"), iscsi.iqn.as_str(), ISCSI_FORMAT);
    }
    byte(Some(iscsi.lun), &at.child("lun"), errors);
    let authenticates = iscsi.chap_auth_discovery == Some(true) || iscsi.chap_auth_session == Some(true);
    match &iscsi.secret_ref {
        None if authenticates => errors.required(&at.child("secretRef"), ""),
        None => {}
        Some(secret) => filled(&[(text(&secret.name), "name")], &at.child("secretRef"), errors),
    }
    if let Some(name) = iscsi.initiator_name.as_deref().filter(|name| !is_iscsi_name(name)) {
        errors.invalid(&at.child("initiatorname"), name, ISCSI_FORMAT);
    }
}

/// True for a name that, with its portal, is longer than the initiator's may be.
pub(crate) fn is_iscsi_too_long(volume: &str, portal: &str) -> bool {
    volume.len() + 1 + portal.len() > MAX_ISCSI_NAME
}

/// `iqn.2015-02.example.com:disk`, `eui.` with 16 letters and digits, `naa.` with 32.
pub(crate) fn is_iscsi_name(name: &str) -> bool {
    let id = |rest: &str, length: usize| {
        // Whatever stands between the kind and the number counts as the dot.
        let mut letters = rest.chars();
        letters.next().is_some() && letters.as_str().len() == length && letters.all(|c| c.is_ascii_alphanumeric())
    };
    if let Some(rest) = name.strip_prefix("eui") {
        return id(rest, 16);
    }
    if let Some(rest) = name.strip_prefix("naa") {
        return id(rest, 32);
    }
    let Some((authority, disk)) = name.strip_prefix("iqn.").and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    let digit = |i: usize| authority.as_bytes().get(i).is_some_and(u8::is_ascii_digit);
    let is = |i: usize, c: u8| authority.as_bytes().get(i) == Some(&c);
    let dated = [0, 1, 2, 3, 5, 6].into_iter().all(digit) && is(4, b'-') && is(7, b'.');
    let owner = authority.as_bytes().get(8..).unwrap_or_default();
    dated
        && !owner.is_empty()
        && owner.iter().all(|c| c.is_ascii_alphanumeric() || b"-.".contains(c))
        && !disk.is_empty()
        && !disk.chars().any(|c| ",;*&$|".contains(c) || c.is_ascii_whitespace())
}

pub(crate) fn fc(fc: &core::FCVolumeSource, at: &Path, errors: &mut FieldErrors) {
    let names = fc.target_wwns.as_deref().unwrap_or_default();
    let ids = fc.wwids.as_deref().unwrap_or_default();
    let path = at.child("targetWWNs");
    match (names.is_empty(), ids.is_empty()) {
        (true, true) => errors.required(&path, "must specify either targetWWNs or wwids, but not both"),
        (false, false) => {
            errors.invalid(&path, check::value(&names), "targetWWNs and wwids can not be specified simultaneously");
        }
        _ => {}
    }
    if !names.is_empty() {
        match fc.lun {
            None => errors.required(&at.child("lun"), "lun is required if targetWWNs is specified"),
            lun => byte(lun, &at.child("lun"), errors),
        }
    }
}

fn csi(csi: &core::CSIPersistentVolumeSource, at: &Path, errors: &mut FieldErrors) {
    storage::driver_name(&csi.driver, &at.child("driver"), errors);
    filled(&[(&csi.volume_handle, "volumeHandle")], at, errors);
    let secrets = [
        (&csi.controller_publish_secret_ref, "controllerPublishSecretRef"),
        (&csi.controller_expand_secret_ref, "controllerExpandSecretRef"),
        (&csi.node_publish_secret_ref, "nodePublishSecretRef"),
        (&csi.node_expand_secret_ref, "nodeExpandSecretRef"),
    ];
    for (reference, field) in secrets {
        secret(reference, field, at, errors);
        let Some(reference) = reference else { continue };
        let (name, namespace) = (text(&reference.name), text(&reference.namespace));
        if !name.is_empty() {
            check::all(names::dns1123_subdomain(name), &at.child(field).child("name"), name, errors);
        }
        if !namespace.is_empty() {
            check::all(names::dns1123_label(namespace), &at.child(field).child("namespace"), namespace, errors);
        }
    }
}

fn quobyte(quobyte: &core::QuobyteVolumeSource, at: &Path, errors: &mut FieldErrors) {
    let pair = |text: &str| text.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
    if quobyte.registry.is_empty() {
        errors.required(&at.child("registry"), REGISTRY);
    } else if text(&quobyte.tenant).len() > MAX_TENANT {
        errors.required(&at.child("tenant"), "must be a UUID and may not exceed a length of 64 characters");
    } else if !quobyte.registry.split(',').all(pair) {
        errors.invalid(&at.child("registry"), quobyte.registry.as_str(), REGISTRY);
    }
    filled(&[(&quobyte.volume, "volume")], at, errors);
}

fn azure_disk(disk: &core::AzureDiskVolumeSource, at: &Path, errors: &mut FieldErrors) {
    filled(&[(&disk.disk_name, "diskName"), (&disk.disk_uri, "diskURI")], at, errors);
    let modes = ["None", "ReadOnly", "ReadWrite"];
    check::one_of_or_absent(disk.caching_mode.as_deref(), &modes, &at.child("cachingMode"), errors);
    check::one_of_or_absent(disk.kind.as_deref(), &["Dedicated", "Managed", "Shared"], &at.child("kind"), errors);
    let (start, form) = match disk.kind.as_deref() {
        None => return,
        Some("Managed") => (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        ),
        Some(_) => ("https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"),
    };
    if !disk.disk_uri.starts_with(start) {
        errors.not_supported(&at.child("diskURI"), disk.disk_uri.as_str(), &[form]);
    }
}
