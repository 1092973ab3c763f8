//! What a volume of a pod is made of on this node, once everything it refers to is known.

use std::path::PathBuf;

use api::types::core::v1 as core;

use super::atomic::Payload;
use super::empty_dir::Medium;

/// A volume to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its name in the pod.
    pub volume: String,
    /// Its directory's name, which messages call it by, too: a persistent volume has a name of its own.
    pub shown: String,
    pub source: Source,
    /// No container may write to it, whatever its mount says.
    pub read_only: bool,
}

/// Where its contents come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Files that the kubelet writes; private ones never reach a disk.
    Files { kind: &'static str, payload: Payload, private: bool },
    /// An empty directory of the pod's own, with those permission bits.
    Empty { medium: Medium, mode: u32 },
    /// A path of the node as it is, and what must be there.
    Host { path: PathBuf, kind: String },
    /// A directory of the node, as a mount of the pod's own.
    Local { path: PathBuf },
    /// What a server exports.
    Nfs { server: String, path: String, options: Vec<String> },
    /// An image's files; the runtime mounts them, or they are mounted here.
    Image(core::ImageVolumeSource),
}

impl Source {
    /// The plugin's name, as upstream's directories have it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Files { kind, .. } => kind,
            Self::Empty { .. } => "empty-dir",
            Self::Host { .. } => "host-path",
            Self::Local { .. } => "local-volume",
            Self::Nfs { .. } => "nfs",
            Self::Image(_) => "image",
        }
    }

    /// The pod's group gets its files: upstream gives it what is the pod's alone.
    pub fn takes_group(&self) -> bool {
        matches!(self, Self::Empty { .. } | Self::Local { .. })
    }
}

/// The kind of a pod's volume, as upstream's directories have it.
pub fn kind(volume: &core::Volume) -> &'static str {
    match volume {
        v if v.config_map.is_some() => "configmap",
        v if v.secret.is_some() => "secret",
        v if v.projected.is_some() => "projected",
        v if v.downward_api.is_some() => "downward-api",
        v if v.empty_dir.is_some() => "empty-dir",
        v if v.host_path.is_some() => "host-path",
        v if v.persistent_volume_claim.is_some() => "persistentVolumeClaim",
        v if v.ephemeral.is_some() => "ephemeral",
        v if v.nfs.is_some() => "nfs",
        v if v.image.is_some() => "image",
        v if v.csi.is_some() => "csi",
        v if v.iscsi.is_some() => "iscsi",
        v if v.fc.is_some() => "fc",
        v if v.flex_volume.is_some() => "flexvolume",
        v if v.git_repo.is_some() => "git-repo",
        v if v.rbd.is_some() => "rbd",
        v if v.cephfs.is_some() => "cephfs",
        v if v.glusterfs.is_some() => "glusterfs",
        v if v.aws_elastic_block_store.is_some() => "aws-ebs",
        v if v.azure_disk.is_some() => "azure-disk",
        v if v.azure_file.is_some() => "azure-file",
        v if v.gce_persistent_disk.is_some() => "gce-pd",
        v if v.vsphere_volume.is_some() => "vsphere-volume",
        v if v.portworx_volume.is_some() => "portworx-volume",
        v if v.cinder.is_some() => "cinder",
        // A volume without a source is an emptyDir: the API server has filled that in.
        _ => "unknown",
    }
}

/// A server's export as a source.
pub fn nfs(nfs: &core::NFSVolumeSource, options: &[String], read_only: bool) -> Source {
    let mut options = options.to_vec();
    if read_only && !options.iter().any(|o| o == "ro") {
        options.push("ro".into());
    }
    Source::Nfs { server: nfs.server.clone(), path: nfs.path.clone(), options }
}
