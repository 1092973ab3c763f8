//! Volumes of kinds that are gone, and paths in volumes that get in each other's way.

use api::types::core::v1::{
    DownwardAPIVolumeFile, KeyToPath, PodSpec, ProjectedVolumeSource, Volume, VolumeProjection,
};
use machinery::field::Path;

use crate::persistent_volume_claim;

/// Adds the warnings for the volumes of a pod, whose spec is at `path`.
pub(super) fn volumes(spec: &PodSpec, path: &Path, out: &mut Vec<String>) {
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    for (i, volume) in volumes.iter().enumerate() {
        let path = path.child("volumes").index(i);
        for (is_set, field, told) in [
            (
                volume.photon_persistent_disk.is_some(),
                "photonPersistentDisk",
                "deprecated in v1.11, non-functional in v1.16+",
            ),
            (volume.git_repo.is_some(), "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
            (volume.scale_io.is_some(), "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
            (volume.flocker.is_some(), "flocker", "deprecated in v1.22, non-functional in v1.25+"),
            (volume.storageos.is_some(), "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
            (volume.quobyte.is_some(), "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
            (volume.glusterfs.is_some(), "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
        ] {
            if is_set {
                out.push(format!("{}: {told}", path.child(field)));
            }
        }
        if let Some(template) = volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.as_ref()) {
            let path = path.child("ephemeral").child("volumeClaimTemplate").child("spec");
            out.extend(persistent_volume_claim::amount_warnings(&template.spec, &path));
        }
        for (is_set, field) in [(volume.cephfs.is_some(), "cephfs"), (volume.rbd.is_some(), "rbd")] {
            if is_set {
                out.push(format!("{}: deprecated in v1.28, non-functional in v1.31+", path.child(field)));
            }
        }
    }
    volumes.iter().for_each(|volume| overlaps(volume, out));
}

/// A file of a volume, and where it comes from when there are several sources.
#[derive(Clone, PartialEq)]
struct File {
    path: String,
    source: String,
}

impl File {
    fn new(path: &str, source: &str) -> Self {
        Self { path: path.trim_end_matches('/').to_owned(), source: source.to_owned() }
    }

    fn shown(&self) -> String {
        if self.source.is_empty() { format!("{:?}", self.path) } else { format!("{:?} ({})", self.path, self.source) }
    }

    /// One is the other, or in the other's way.
    fn meets(&self, other: &Self) -> bool {
        let (mine, others) = (format!("{}/", self.path), format!("{}/", other.path));
        !self.path.is_empty() && !other.path.is_empty() && (mine.starts_with(&others) || others.starts_with(&mine))
    }
}

fn of_keys(items: &[KeyToPath], source: &str) -> Vec<File> {
    items.iter().map(|item| File::new(&item.path, source)).collect()
}

fn of_fields(items: &[DownwardAPIVolumeFile], source: &str) -> Vec<File> {
    items.iter().map(|item| File::new(&item.path, source)).collect()
}

/// Files that meet an earlier one, as `"a/b" with "a"`.
fn collisions(files: Vec<File>, before: &mut Vec<File>) -> Vec<String> {
    let mut out = Vec::new();
    for file in files {
        let met = before.iter().filter(|other| file.meets(other));
        out.extend(met.map(|other| format!("{} with {}", file.shown(), other.shown())));
        before.push(file);
    }
    out
}

fn overlaps(volume: &Volume, out: &mut Vec<String>) {
    let name = &volume.name;
    let mut tell = |what: &str, files: Vec<File>| {
        let met = collisions(files, &mut Vec::new());
        out.extend(met.into_iter().map(|met| format!("volume {name:?} ({what}): overlapping paths: {met}")));
    };
    if let Some(map) = &volume.config_map {
        tell(&format!("ConfigMap {:?}", map.name), of_keys(map.items.as_deref().unwrap_or_default(), ""));
    }
    if let Some(secret) = &volume.secret {
        let named = secret.secret_name.as_deref().unwrap_or_default();
        tell(&format!("Secret {named:?}"), of_keys(secret.items.as_deref().unwrap_or_default(), ""));
    }
    if let Some(downward) = &volume.downward_api {
        tell("DownwardAPI", of_fields(downward.items.as_deref().unwrap_or_default(), ""));
    }
    if let Some(projected) = &volume.projected {
        self::projected(name, projected, out);
    }
}

fn projected(name: &str, volume: &ProjectedVolumeSource, out: &mut Vec<String>) {
    let mut before = Vec::new();
    for source in volume.sources.iter().flatten() {
        if *source == VolumeProjection::default() {
            out.push(format!("volume {name:?} (Projected) has no sources provided"));
            continue;
        }
        let met = collisions(files(source), &mut before);
        out.extend(met.into_iter().map(|met| format!("volume {name:?} (Projected): overlapping paths: {met}")));
    }
}

/// The files of one source; only the first kind that it is counts.
fn files(source: &VolumeProjection) -> Vec<File> {
    if let Some((map, items)) = source.config_map.as_ref().and_then(|map| Some((map, map.items.as_ref()?))) {
        return of_keys(items, &format!("ConfigMap {:?}", map.name));
    }
    if let Some((secret, items)) = source.secret.as_ref().and_then(|secret| Some((secret, secret.items.as_ref()?))) {
        return of_keys(items, &format!("Secret {:?}", secret.name));
    }
    if let Some(items) = source.downward_api.as_ref().and_then(|downward| downward.items.as_ref()) {
        return of_fields(items, "DownwardAPI");
    }
    if let Some(token) = &source.service_account_token {
        return vec![File::new(&token.path, "ServiceAccountToken")];
    }
    if let Some(bundle) = &source.cluster_trust_bundle {
        let name = bundle.name.as_deref().or(bundle.signer_name.as_deref()).unwrap_or_default();
        return vec![File::new(&bundle.path, &format!("ClusterTrustBundle {name:?}"))];
    }
    let Some(certificate) = &source.pod_certificate else { return Vec::new() };
    let parts = [
        (&certificate.certificate_chain_path, "PodCertificate chain"),
        (&certificate.key_path, "PodCertificate key"),
        (&certificate.credential_bundle_path, "PodCertificate credential bundle"),
    ];
    let set = parts.into_iter().filter_map(|(path, what)| Some((path.as_deref().filter(|p| !p.is_empty())?, what)));
    set.map(|(path, what)| File::new(path, what)).collect()
}
