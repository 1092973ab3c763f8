//! Volumes of a pod that are storage elsewhere: what a PersistentVolume of that kind must have right, and what
//! differs where a pod names it itself.

use api::types::core::v1::{
    AzureFilePersistentVolumeSource, CSIVolumeSource, CephFSPersistentVolumeSource, CinderPersistentVolumeSource,
    EphemeralVolumeSource, FlexPersistentVolumeSource, GitRepoVolumeSource, GlusterfsPersistentVolumeSource,
    ISCSIVolumeSource, LocalObjectReference, PersistentVolumeSpec, RBDPersistentVolumeSource,
    ScaleIOPersistentVolumeSource, StorageOSPersistentVolumeSource, Volume,
};
use machinery::field::{FieldErrors, Path};
use machinery::names;
use serde_json::Value;

use super::validate_volume;
use crate::check;
use crate::metadata;
use crate::persistent_volume::sources;
use crate::persistent_volume_claim;
use crate::storage;

/// The mistakes in the one source that counts.
pub fn one(volume: &Volume, source: &str, path: &Path, errors: &mut FieldErrors) {
    sources::old_sources(&as_persistent(volume), source, path, errors);
    let at = path.child(source);
    let secret = |secret: &Option<LocalObjectReference>, errors: &mut FieldErrors| {
        if secret.as_ref().is_some_and(|secret| secret.name.is_empty()) {
            errors.required(&at.child("secretRef").child("name"), "");
        }
    };
    match source {
        "iscsi" => {
            let Some(iscsi) = &volume.iscsi else { return };
            self::iscsi(iscsi, &at, errors);
            if iscsi.initiator_name.is_some() && sources::is_iscsi_too_long(&volume.name, &iscsi.target_portal) {
                errors.invalid(&path.child("name"), volume.name.as_str(), sources::ISCSI_TOO_LONG);
            }
        }
        "fc" => {
            let Some(fc) = &volume.fc else { return };
            sources::fc(fc, &at, errors);
        }
        "cinder" => secret(&volume.cinder.as_ref().and_then(|cinder| cinder.secret_ref.clone()), errors),
        "storageos" => secret(&volume.storageos.as_ref().and_then(|os| os.secret_ref.clone()), errors),
        "gitRepo" => {
            let Some(repository) = &volume.git_repo else { return };
            git(repository, &at, errors);
        }
        "csi" => {
            let Some(csi) = &volume.csi else { return };
            self::csi(csi, &at, errors);
        }
        "ephemeral" => {
            let Some(ephemeral) = &volume.ephemeral else { return };
            self::ephemeral(ephemeral, &at, errors);
        }
        _ => {}
    }
}

/// The same as a PersistentVolume's, where both have the same parts; secrets differ and are left out.
fn as_persistent(volume: &Volume) -> PersistentVolumeSpec {
    PersistentVolumeSpec {
        gce_persistent_disk: volume.gce_persistent_disk.clone(),
        aws_elastic_block_store: volume.aws_elastic_block_store.clone(),
        flocker: volume.flocker.clone(),
        quobyte: volume.quobyte.clone(),
        vsphere_volume: volume.vsphere_volume.clone(),
        photon_persistent_disk: volume.photon_persistent_disk.clone(),
        portworx_volume: volume.portworx_volume.clone(),
        azure_disk: volume.azure_disk.clone(),
        glusterfs: volume.glusterfs.as_ref().map(|gluster| GlusterfsPersistentVolumeSource {
            endpoints: gluster.endpoints.clone(),
            path: gluster.path.clone(),
            ..GlusterfsPersistentVolumeSource::default()
        }),
        rbd: volume.rbd.as_ref().map(|rbd| RBDPersistentVolumeSource {
            monitors: rbd.monitors.clone(),
            image: rbd.image.clone(),
            ..RBDPersistentVolumeSource::default()
        }),
        cephfs: volume.cephfs.as_ref().map(|ceph| CephFSPersistentVolumeSource {
            monitors: ceph.monitors.clone(),
            ..CephFSPersistentVolumeSource::default()
        }),
        cinder: volume.cinder.as_ref().map(|cinder| CinderPersistentVolumeSource {
            volume_id: cinder.volume_id.clone(),
            ..CinderPersistentVolumeSource::default()
        }),
        flex_volume: volume.flex_volume.as_ref().map(|flex| FlexPersistentVolumeSource {
            driver: flex.driver.clone(),
            options: flex.options.clone(),
            ..FlexPersistentVolumeSource::default()
        }),
        azure_file: volume.azure_file.as_ref().map(|file| AzureFilePersistentVolumeSource {
            secret_name: file.secret_name.clone(),
            share_name: file.share_name.clone(),
            ..AzureFilePersistentVolumeSource::default()
        }),
        scale_io: volume.scale_io.as_ref().map(|scale| ScaleIOPersistentVolumeSource {
            gateway: scale.gateway.clone(),
            system: scale.system.clone(),
            volume_name: scale.volume_name.clone(),
            ..ScaleIOPersistentVolumeSource::default()
        }),
        storageos: volume.storageos.as_ref().map(|os| StorageOSPersistentVolumeSource {
            volume_name: os.volume_name.clone(),
            volume_namespace: os.volume_namespace.clone(),
            ..StorageOSPersistentVolumeSource::default()
        }),
        ..PersistentVolumeSpec::default()
    }
}

fn iscsi(iscsi: &ISCSIVolumeSource, at: &Path, errors: &mut FieldErrors) {
    if iscsi.target_portal.is_empty() {
        errors.required(&at.child("targetPortal"), "");
    }
    let name = |name: &str, field: &str, errors: &mut FieldErrors| {
        let path = at.child(field);
        if !["iqn", "eui", "naa"].iter().any(|start| name.starts_with(start)) {
            errors.invalid(&path, name, "must be valid format starting with iqn, eui, or naa");
        } else if !sources::is_iscsi_name(name) {
            errors.invalid(&path, name, sources::ISCSI_FORMAT);
        }
    };
    match iscsi.iqn.as_str() {
        "" => errors.required(&at.child("iqn"), ""),
        iqn => name(iqn, "iqn", errors),
    }
    sources::byte(Some(iscsi.lun), &at.child("lun"), errors);
    let authenticates = iscsi.chap_auth_discovery == Some(true) || iscsi.chap_auth_session == Some(true);
    if authenticates && iscsi.secret_ref.is_none() {
        errors.required(&at.child("secretRef"), "");
    }
    if let Some(initiator) = iscsi.initiator_name.as_deref() {
        name(initiator, "initiatorname", errors);
    }
}

fn git(repository: &GitRepoVolumeSource, at: &Path, errors: &mut FieldErrors) {
    if repository.repository.is_empty() {
        errors.required(&at.child("repository"), "");
    }
    let directory = repository.directory.as_deref().unwrap_or_default();
    validate_volume::inner_path(directory, &at.child("directory"), errors);
}

fn csi(csi: &CSIVolumeSource, at: &Path, errors: &mut FieldErrors) {
    storage::driver_name(&csi.driver, &at.child("driver"), errors);
    let Some(secret) = &csi.node_publish_secret_ref else { return };
    match secret.name.as_str() {
        "" => errors.required(&at.child("nodePublishSecretRef").child("name"), ""),
        // Of the path, only the end is told.
        name => check::all(names::dns1123_subdomain(name), &at.child("name"), name, errors),
    }
}

/// The claim that is made for the pod, of which the template says only labels, annotations and what is wanted.
fn ephemeral(ephemeral: &EphemeralVolumeSource, at: &Path, errors: &mut FieldErrors) {
    let at = at.child("volumeClaimTemplate");
    let Some(template) = &ephemeral.volume_claim_template else { return errors.required(&at, "") };
    if let Some(meta) = &template.metadata {
        let path = at.child("metadata");
        metadata::validate_annotations(pairs(meta.annotations.as_ref()), &path.child("annotations"), errors);
        metadata::validate_labels(pairs(meta.labels.as_ref()), &path.child("labels"), errors);
        let all = check::value(meta);
        let set = all.as_object().into_iter().flatten().filter(|(_, value)| !matches!(value, Value::Null));
        for (field, _) in set.filter(|(field, _)| !["annotations", "labels"].contains(&field.as_str())) {
            errors.forbidden(&path.child(field), "cannot be set");
        }
    }
    persistent_volume_claim::spec(&template.spec, &at.child("spec"), errors);
}

fn pairs(map: Option<&std::collections::BTreeMap<String, String>>) -> impl Iterator<Item = (&str, &str)> {
    map.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()))
}
