//! What of the host a container sees: its volumes, its `/etc/hosts` and the file for its last words.

use std::path::PathBuf;

use api::types::core::v1::{Container as Spec, VolumeMount};

use super::{Place, Start};
use crate::container::config::{Mount, MountSource};
use crate::container::env::Environment;
use crate::container::{expand, hosts, read_only};
use crate::context::blocking;

/// A mount of a volume, before anything on disk is touched.
struct Ask {
    mount: VolumeMount,
    /// Where the volume is; `None` for one that the runtime mounts.
    host: Option<PathBuf>,
    image: Option<String>,
    sub_path: Option<String>,
    read_only: bool,
    recursive: bool,
}

impl Start {
    /// Everything that is mounted into a container; the error is the message of
    /// CreateContainerConfigError.
    pub(super) async fn mounts(
        &self,
        spec: &Spec,
        place: &Place,
        attempt: u32,
        environment: &Environment,
        pod_ips: &[String],
    ) -> Result<Vec<Mount>, String> {
        let (ctx, pod) = (&self.ctx, self.pod.clone());
        let asks = self.asks(spec, place, environment).await?;
        let (layout, settings) = (ctx.layout.clone(), ctx.settings.clone());
        let log_directory = ctx.log_directory(&pod).join(&spec.name);
        let (spec, ips) = (spec.clone(), pod_ips.to_vec());
        let unique = ctx.rng.below(u64::from(u32::MAX));
        let held = layout.work.hold(&pod.uid);
        let work = move || {
            // To the end, even if nobody waits for that any more.
            let _held = held;
            let text = |error: std::io::Error| error.to_string();
            std::fs::create_dir_all(&log_directory).map_err(text)?;
            let mut out = Vec::new();
            for (index, ask) in asks.into_iter().enumerate() {
                let name = &ask.mount.name;
                let source = match (ask.host, ask.image, ask.sub_path) {
                    (Some(host), _, None) => MountSource::Host(host),
                    (Some(root), _, Some(sub)) => {
                        let bound = layout.sub_path(&pod.uid, name, &root, &sub, &format!("{}/{index}", spec.name));
                        // What exactly is wrong could tell the user about the node's files.
                        MountSource::Host(bound.map_err(|error| {
                            tracing::warn!(pod = %pod.full_name(), volume = name, %error, "no subPath");
                            let container = &spec.name;
                            format!("failed to prepare subPath for volumeMount \"{name}\" of container \"{container}\"")
                        })?)
                    }
                    (None, image, sub) => {
                        let (image, sub_path) = (image.unwrap_or_default(), sub.unwrap_or_default());
                        MountSource::Image { image, sub_path }
                    }
                };
                out.push(Mount {
                    source,
                    container: ask.mount.mount_path.clone(),
                    read_only: ask.read_only,
                    recursive: ask.recursive,
                    propagation: ask.mount.mount_propagation.clone(),
                });
            }
            let has = |out: &[Mount], path: &str| out.iter().any(|m: &Mount| m.container == path);
            if !has(&out, "/etc/hosts") {
                let node_hosts = std::fs::read_to_string(&settings.hosts).unwrap_or_default();
                let content = hosts::render(&pod, &ips, &settings.cluster_dns.domain, &node_hosts);
                out.push(Mount::plain(layout.hosts(&pod.uid, &content).map_err(text)?, "/etc/hosts"));
            }
            let path = spec.termination_message_path.clone().unwrap_or_else(|| "/dev/termination-log".into());
            if !path.is_empty() && !has(&out, &path) {
                let name = format!("{attempt}-{unique:08x}");
                let host = layout.termination_log(&pod.uid, &spec.name, &name).map_err(text)?;
                out.push(Mount::plain(host, &path));
            }
            Ok(out)
        };
        blocking(work).await.unwrap_or_else(|e| Err(e.to_string()))
    }

    /// What each of the container's mounts asks for.
    async fn asks(&self, spec: &Spec, place: &Place, environment: &Environment) -> Result<Vec<Ask>, String> {
        let mounts = || spec.volume_mounts.iter().flatten();
        let supported = match mounts().any(read_only::asks) {
            true => self.handles_recursive_read_only().await,
            false => false,
        };
        let mut out = Vec::new();
        for mount in mounts() {
            let (name, container) = (&mount.name, &spec.name);
            let Some(made) = place.made.get(name) else {
                return Err(format!("cannot find volume \"{name}\" to mount into container \"{container}\""));
            };
            let image = place.images.get(name).and_then(|image| image.as_ref().ok());
            let recursive = read_only::recursive(mount, supported)
                .map_err(|why| format!("failed to resolve recursive read-only mode: {why}"))?;
            out.push(Ask {
                mount: mount.clone(),
                host: image.is_none_or(|i| i.is_mounted).then(|| made.host.clone()),
                image: image.map(|i| i.reference.clone()),
                sub_path: sub_path(mount, environment)?,
                read_only: mount.read_only == Some(true) || made.read_only,
                recursive,
            });
        }
        Ok(out)
    }

    /// Whether the runtime can make whatever is mounted beneath a mount read-only, too.
    async fn handles_recursive_read_only(&self) -> bool {
        let (ctx, class) = (&self.ctx, self.pod.spec().runtime_class_name.as_deref().filter(|c| !c.is_empty()));
        let handler = match class {
            None => String::new(),
            Some(class) => match ctx.cluster.runtime_handler(class).await {
                Ok(Some(handler)) => handler,
                _ => return false,
            },
        };
        ctx.features.read().handler(&handler).is_some_and(|h| h.recursive_read_only)
    }
}

/// The piece of its volume that a mount shows.
fn sub_path(mount: &VolumeMount, environment: &Environment) -> Result<Option<String>, String> {
    let expression = mount.sub_path_expr.as_deref().filter(|e| !e.is_empty());
    let path = match expression {
        Some(expression) => {
            if let Some(name) = expand::first_unknown(expression, |name| environment.get(name).is_some()) {
                return Err(format!("missing value for \"{name}\""));
            }
            expand::expand(expression, |name| environment.get(name))
        }
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    if path.starts_with('/') {
        return Err(format!("error SubPath `{path}` must not be an absolute path"));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(format!("unable to provision SubPath `{path}`: must not contain '..'"));
    }
    Ok(Some(path).filter(|p| !p.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn sub_paths() {
        let environment =
            Environment { variables: vec![("A".into(), "x".into()), ("UP".into(), "..".into())], skipped: vec![] };
        let check = |mount: Value, want: Result<Option<&str>, &str>| {
            let mut value = mount.clone();
            (value["name"], value["mountPath"]) = (json!("v"), json!("/v"));
            let found = sub_path(&serde_json::from_value(value).expect("a mount"), &environment);
            assert_eq!(found, want.map(|w| w.map(str::to_owned)).map_err(str::to_owned), "{mount}");
        };
        check(json!({}), Ok(None));
        check(json!({"subPath": ""}), Ok(None));
        check(json!({"subPath": "a/b"}), Ok(Some("a/b")));
        check(json!({"subPathExpr": "$(A)/y"}), Ok(Some("x/y")));
        check(json!({"subPathExpr": "$(NO)/y"}), Err("missing value for \"NO\""));
        check(
            json!({"subPathExpr": "a/$(UP)/$(UP)"}),
            Err("unable to provision SubPath `a/../..`: must not contain '..'"),
        );
        check(json!({"subPath": "/etc"}), Err("error SubPath `/etc` must not be an absolute path"));
        check(json!({"subPath": "..x/y.."}), Ok(Some("..x/y..")));
    }
}
