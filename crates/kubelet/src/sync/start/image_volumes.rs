//! Volumes that are images: fetched once the sandbox is there, for those that mount them.
//!
//! Runtimes mount images themselves. containerd does since 2.1; from an older one the image's files
//! are had as a snapshot, which is mounted here, where the pod's volumes are.

use std::collections::BTreeMap;

use api::types::core::v1::{Container as Spec, ImageVolumeSource};
use client::events::Type;

use super::{Outcome, Place, Retry, Start};
use crate::context::blocking;
use crate::image::policy::Policy;
use crate::image::puller::{Problem, Ready};

/// An image that can be mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImageVolume {
    /// What the runtime knows it by.
    pub reference: String,
    /// Its files are mounted where the pod's volumes are.
    pub is_mounted: bool,
}

impl Start {
    /// Fetches the images among the pod's volumes. One that cannot be had keeps only those containers
    /// from starting that mount it.
    pub(super) async fn image_volumes(
        &self,
        place: &Place,
    ) -> Result<BTreeMap<String, Result<ImageVolume, Problem>>, Retry> {
        let mut out = BTreeMap::new();
        for volume in self.pod.spec().volumes.iter().flatten() {
            let (Some(image), Some(_)) = (&volume.image, place.made.get(&volume.name)) else { continue };
            out.insert(volume.name.clone(), self.image_volume(&volume.name, image, place).await?);
        }
        Ok(out)
    }

    async fn image_volume(
        &self,
        volume: &str,
        source: &ImageVolumeSource,
        place: &Place,
    ) -> Result<Result<ImageVolume, Problem>, Retry> {
        let name = source.reference.as_deref().unwrap_or_default();
        let policy = Policy::named(source.pull_policy.as_deref(), name);
        let ready = match self.pull(None, name, policy, place).await? {
            Ok(ready) => ready,
            Err(problem) => return Ok(Err(problem)),
        };
        let mounted = self.mounted(volume, &ready, place).await;
        Ok(mounted.map(|is_mounted| ImageVolume { reference: ready.reference, is_mounted }).map_err(|message| {
            let text = format!("MountVolume.SetUp failed for volume \"{volume}\" : {message}");
            self.event(None, Type::Warning, "FailedMount", text);
            Problem { reason: "CreateContainerError", message, retry: None }
        }))
    }

    /// Mounts the image's files, unless the runtime does that itself. True when they are mounted here.
    async fn mounted(&self, volume: &str, ready: &Ready, place: &Place) -> Result<bool, String> {
        let Some(made) = place.made.get(volume) else { return Ok(false) };
        let (layout, at) = (self.ctx.layout.clone(), made.host.clone());
        if blocking(move || layout.mounts.is_mounted(&at)).await.unwrap_or(false) {
            return Ok(true);
        }
        let view = self.ctx.runtime.view(&ready.reference, &self.pod.uid, volume).await;
        let Some(mounts) = view.map_err(|e| e.to_string())? else { return Ok(false) };
        let (layout, at) = (self.ctx.layout.clone(), made.host.clone());
        let held = layout.work.hold(&self.pod.uid);
        let work = move || {
            // To the end, even if nobody waits for that any more.
            let _held = held;
            mounts.iter().try_for_each(|m| layout.mounts.mount(&m.kind, &m.source, &at, &m.options))
        };
        blocking(work).await.and_then(|done| done).map(|()| true).map_err(|e| e.to_string())
    }

    /// Every image that the container mounts is here.
    pub(super) fn images_mounted(&self, spec: &Spec, place: &Place) -> Outcome {
        for mount in spec.volume_mounts.iter().flatten() {
            let Some(Err(problem)) = place.images.get(&mount.name) else { continue };
            let text = format!("Error: {}", problem.reason);
            self.event(Some(&spec.name), Type::Warning, "Failed", text);
            self.mail.waiting(&spec.name, Some((problem.reason, problem.message.clone())));
            return Err(problem.retry.map_or(Retry::BackOff, Retry::At));
        }
        Ok(())
    }
}
