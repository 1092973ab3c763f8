//! Pod: containers that run together on one node.

pub mod columns;
pub mod defaults;
mod prepare;
pub mod template;
pub mod validate;
mod validate_annotations;
mod validate_app_armor;
mod validate_claims;
pub mod validate_container;
mod validate_ephemeral;
mod validate_os;
mod validate_projected;
mod validate_resize;
mod validate_restart;
pub mod validate_scheduling;
mod validate_seccomp;
mod validate_sources;
mod validate_status;
mod validate_update;
mod validate_volume;
mod warnings;
mod warnings_volume;

use api::types::core::v1 as core;
use machinery::field::FieldErrors;
use machinery::names;
use machinery::status;
use serde::Deserialize;
use serde_json::Value;

use crate::kind::{Columns, Ctx, Kind, Selectable, Verb};
use crate::only::Part;
use crate::shape::{PROXIED, Shape, Subresource};
use crate::tree::Tree;
use crate::view;

/// What is done to a part of a pod.
const CHANGED: &[&str] = &["get", "patch", "update"];

pub struct Pod;

/// Reads a pod, without `metadata.managedFields`. One function, because what reads a pod is large, and would
/// otherwise be in the binary once for every crate that does.
///
/// # Errors
/// When the tree is no pod.
pub fn read(tree: &Value) -> serde_json::Result<core::Pod> {
    core::Pod::deserialize(Tree::new(tree))
}

impl Kind for Pod {
    type Object = core::Pod;
    const SHAPE: Shape = Shape::namespaced("", "v1", "Pod", "pods")
        .singular("pod")
        .short(&["po"])
        .categories(&["all"])
        .status()
        .status_keeps(&["ownerReferences"])
        .status_resets(&[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]])
        .answers_deleted()
        // A node lists and watches its own pods, among those of all others.
        .indexed(&["spec.nodeName"])
        .subresources(&[
            Subresource { name: "attach", group: "", version: "", kind: "PodAttachOptions", verbs: &["create", "get"] },
            Subresource { name: "binding", group: "", version: "", kind: "Binding", verbs: &["create"] },
            Subresource { name: "ephemeralcontainers", group: "", version: "", kind: "Pod", verbs: CHANGED },
            Subresource { name: "eviction", group: "policy", version: "v1", kind: "Eviction", verbs: &["create"] },
            Subresource { name: "exec", group: "", version: "", kind: "PodExecOptions", verbs: &["create", "get"] },
            Subresource { name: "log", group: "", version: "", kind: "Pod", verbs: &["get"] },
            Subresource {
                name: "portforward",
                group: "",
                version: "",
                kind: "PodPortForwardOptions",
                verbs: &["create", "get"],
            },
            Subresource { name: "proxy", group: "", version: "", kind: "PodProxyOptions", verbs: PROXIED },
            Subresource { name: "resize", group: "", version: "", kind: "Pod", verbs: CHANGED },
        ]);
    const SELECTABLE: &'static [Selectable] = &[
        Selectable::at("spec.nodeName", &["/spec/nodeName"]),
        Selectable::at("spec.host", &["/spec/nodeName"]),
        Selectable::at("spec.restartPolicy", &["/spec/restartPolicy"]),
        Selectable::at("spec.schedulerName", &["/spec/schedulerName"]),
        Selectable::at("spec.serviceAccountName", &["/spec/serviceAccountName"]),
        Selectable::at("spec.hostNetwork", &["/spec/hostNetwork"]).or("false"),
        Selectable::at("status.phase", &["/status/phase"]),
        Selectable::at("status.podIP", &["/status/podIPs/0/ip", "/status/podIP"]),
        Selectable::at("status.podIPs", &[]),
        Selectable::at("status.nominatedNodeName", &["/status/nominatedNodeName"]),
    ];

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, pod: &mut Self::Object) {
        defaults::pod(pod);
    }

    fn prepare_create(ctx: &Ctx, pod: &mut Self::Object) {
        prepare::create(pod, ctx.now);
    }

    fn prepare_update(ctx: &Ctx, new: &mut Self::Object, old: &Self::Object) {
        prepare::update(ctx.subresource, new, old);
    }

    fn validate(ctx: &Ctx, pod: &Self::Object, errors: &mut FieldErrors) {
        validate::pod(pod, ctx.verb == Verb::Create, errors);
        if ctx.verb == Verb::Create {
            validate::new_pod(pod, errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        validate_annotations::update(new, old, errors);
        validate_update::pod(new, old, errors);
    }

    fn validate_subresource(ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        match ctx.subresource {
            "ephemeralcontainers" => {
                validate::pod(new, false, errors);
                validate_ephemeral::ephemeral(new, old, errors);
            }
            "resize" => {
                validate::pod(new, false, errors);
                validate_resize::resize(new, old, errors);
            }
            _ => {}
        }
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        validate_status::update(new, old, errors);
    }

    /// What is read from annotations is told before it is.
    fn early_warnings(_ctx: &Ctx, new: &Self::Object) -> Vec<String> {
        validate_app_armor::warnings(new)
    }

    /// People create pods; those who update them are programs, which read no warnings.
    fn warnings(_ctx: &Ctx, new: &Self::Object, old: Option<&Self::Object>) -> Vec<String> {
        if old.is_none() { warnings::pod(new) } else { Vec::new() }
    }

    fn status_warnings(_ctx: &Ctx, new: &Self::Object) -> Vec<String> {
        warnings::status(new)
    }

    /// What the client asks, else what the pod says; nothing for a pod that no kubelet runs.
    fn grace(pod: &Value, asked: Option<i64>) -> Option<i64> {
        let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        if text("/spec/nodeName").is_empty() || matches!(text("/status/phase"), "Failed" | "Succeeded") {
            return Some(0);
        }
        let own = pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
        let seconds = asked.or(own).unwrap_or(0);
        Some(if seconds < 0 { 1 } else { seconds })
    }

    const SHOWN: &'static [Part] = columns::SHOWN;

    fn shown(json: &[u8]) -> status::Result<Self::Object> {
        view::read_parts(json, Self::SHOWN)
    }

    fn columns() -> Columns<Self::Object> {
        Columns { columns: columns::COLUMNS, row: columns::row }
    }
}

/// The names of the sources a volume has, in the order they are looked at; one that is right has exactly one.
pub fn volume_sources(volume: &core::Volume) -> Vec<&'static str> {
    let sources = [
        ("emptyDir", volume.empty_dir.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("secret", volume.secret.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("projected", volume.projected.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("csi", volume.csi.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("image", volume.image.is_some()),
    ];
    sources.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
}
