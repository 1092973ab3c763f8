//! VolumeAttachment: the wish that a volume be attached to a node, and what came of it.

use api::types::storage::v1 as storage;
use machinery::field::{FieldErrors, Path};
use machinery::names;

use crate::cells;
use crate::check;
use crate::kind::{Column, Columns, Ctx, Kind};
use crate::persistent_volume;
use crate::shape::Shape;
use crate::storage as rules;

const ONE_SOURCE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
/// Of keys and values together, in bytes.
const MAX_METADATA: usize = 256 * 1024;
/// Of a message, in bytes.
const MAX_MESSAGE: usize = 1024;

pub struct VolumeAttachment;

impl Kind for VolumeAttachment {
    type Object = storage::VolumeAttachment;
    const SHAPE: Shape = Shape::cluster("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments")
        .singular("volumeattachment")
        .conditional_update()
        .status_without_generation()
        .status_keeps(&["labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp"])
        .status_resets(&[&["spec"], &["metadata"]]);

    fn name_rule(name: &str) -> Vec<String> {
        names::dns1123_subdomain(name)
    }

    fn defaults(_ctx: &Ctx, attachment: &mut Self::Object) {
        if let Some(volume) = &mut attachment.spec.source.inline_volume_spec {
            persistent_volume::defaults(volume);
        }
    }

    fn validate(_ctx: &Ctx, attachment: &Self::Object, errors: &mut FieldErrors) {
        let spec = &attachment.spec;
        let path = Path::new("spec");
        let source = path.child("source");
        if spec.attacher.is_empty() {
            errors.required(&path.child("attacher"), "");
        }
        let named = source.child("persistentVolumeName");
        match (&spec.source.inline_volume_spec, spec.source.persistent_volume_name.as_deref()) {
            (None, None) => errors.required(&source, ONE_SOURCE),
            (Some(_), Some(_)) => errors.forbidden(&source, ONE_SOURCE),
            (None, Some("")) => errors.required(&named, "must specify non empty persistentVolumeName"),
            (None, Some(_)) => {}
            (Some(volume), None) => {
                persistent_volume::spec(volume, "", true, &source.child("inlineVolumeSpec"), errors);
            }
        }
        check::all(names::dns1123_subdomain(&spec.node_name), &path.child("nodeName"), &spec.node_name, errors);
        if let Some(status) = &attachment.status {
            self::status(status, errors);
        }
        rules::driver_name(&spec.attacher, &path.child("attacher"), errors);
        if let Some(name) = &spec.source.persistent_volume_name {
            check::all(names::dns1123_subdomain(name), &named, name, errors);
        }
    }

    fn validate_update(_ctx: &Ctx, new: &Self::Object, old: &Self::Object, errors: &mut FieldErrors) {
        check::immutable(&new.spec, &old.spec, &Path::new("spec"), errors);
    }

    fn validate_status(_ctx: &Ctx, new: &Self::Object, _old: &Self::Object, errors: &mut FieldErrors) {
        if let Some(status) = &new.status {
            self::status(status, errors);
        }
    }

    fn columns() -> Columns<Self::Object> {
        Columns {
            columns: const {
                &[
                    Column::NAME,
                    Column { format: "name", ..Column::text("Attacher", "The driver that attaches it.") },
                    Column::text("PV", "The volume."),
                    Column::text("Node", "The node it is to be attached to."),
                    Column { kind: "boolean", ..Column::text("Attached", "Whether it is attached.") },
                    Column::AGE,
                ]
            },
            row: |attachment, now| {
                let spec = &attachment.spec;
                let row = vec![
                    cells::name(&attachment.metadata),
                    spec.attacher.clone().into(),
                    spec.source.persistent_volume_name.clone().unwrap_or_default().into(),
                    spec.node_name.clone().into(),
                    attachment.status.as_ref().is_some_and(|status| status.attached).into(),
                    cells::of(&attachment.metadata, now),
                ];
                (row, Vec::new())
            },
        }
    }
}

fn status(status: &storage::VolumeAttachmentStatus, errors: &mut FieldErrors) {
    let path = Path::new("status");
    let size: usize = status.attachment_metadata.iter().flatten().map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_METADATA {
        errors.too_long(&path.child("attachmentMetadata"), MAX_METADATA);
    }
    for (error, field) in [(&status.attach_error, "attachError"), (&status.detach_error, "detachError")] {
        let Some(error) = error else { continue };
        let path = path.child(field);
        if error.message.as_ref().is_some_and(|message| message.len() > MAX_MESSAGE) {
            // The number in the message is that of another limit; clients know it so.
            errors.too_long(&path.child("message"), MAX_METADATA);
        }
        if let Some(code) = error.error_code.filter(|code| *code < 0) {
            errors.invalid(&path.child("errorCode"), code, check::ID_RANGE);
        }
    }
}
