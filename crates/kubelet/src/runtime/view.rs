//! Images as volumes on runtimes that do not mount them themselves.
//!
//! containerd mounts images into containers since 2.1; what an older one is told of them it passes
//! over. From it the image's files are had as a read-only snapshot.

use ::cri::{Client, Snapshots};
use serde_json::Value;
use tokio::sync::OnceCell;

use super::{Result, ViewMount};

/// Looks at images.
pub struct Views {
    snapshots: Snapshots,
    /// The snapshotter, when views are needed at all; asked for once.
    snapshotter: OnceCell<Option<String>>,
}

impl Views {
    /// With that service.
    pub fn new(snapshots: Snapshots) -> Self {
        Self { snapshots, snapshotter: OnceCell::new() }
    }

    /// What is to be mounted to see the image; `None` when the runtime mounts images.
    pub async fn view(&self, client: &Client, image: &str, pod: &str, volume: &str) -> Result<Option<Vec<ViewMount>>> {
        let Some(snapshotter) = self.snapshotter(client).await? else { return Ok(None) };
        let details = client.image_details(image).await?;
        let Some(top) = top_layer(&details) else {
            let text = format!("the runtime does not tell the layers of image {image}");
            return Err(super::Error::Failed { code: "Unknown", message: text });
        };
        let mounts = self.snapshots.view(snapshotter, &format!("{pod}-{volume}"), &top, pod).await?;
        let mount = |m: ::cri::Mount| ViewMount { kind: m.kind, source: m.source, options: m.options };
        Ok(Some(mounts.into_iter().map(mount).collect()))
    }

    /// The pod's views are needed no more.
    pub async fn remove(&self, client: &Client, pod: &str) -> Result<()> {
        match self.snapshotter(client).await? {
            Some(snapshotter) => self.snapshots.remove(snapshotter, pod).await,
            None => Ok(()),
        }
    }

    async fn snapshotter(&self, client: &Client) -> Result<Option<&str>> {
        let asked = async {
            let version = client.version().await?;
            if !is_needed(&version.runtime_name, &version.runtime_version) {
                return Ok::<_, super::Error>(None);
            }
            Ok(Some(snapshotter(&client.details().await?)))
        };
        Ok(self.snapshotter.get_or_try_init(|| asked).await?.as_deref())
    }
}

/// Whether this runtime leaves images of volumes to us.
fn is_needed(name: &str, version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+', '~']).map(|n| n.parse::<u32>().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    let (Some(major), Some(minor)) = version else { return false };
    name == "containerd" && (major, minor) < (2, 1)
}

type Details = std::collections::HashMap<String, String>;

fn top_layer(details: &Details) -> Option<String> {
    let info: Value = serde_json::from_str(details.get("info")?).ok()?;
    info["chainID"].as_str().filter(|c| !c.is_empty()).map(str::to_owned)
}

fn snapshotter(details: &Details) -> String {
    let config = details.get("config").and_then(|c| serde_json::from_str::<Value>(c).ok()).unwrap_or_default();
    let named = config.pointer("/containerd/snapshotter").and_then(Value::as_str).filter(|s| !s.is_empty());
    named.unwrap_or("overlayfs").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_mounts_images_itself() {
        let rows = [
            ("containerd", "1.6.20~ds1", true),
            ("containerd", "v1.7.0", true),
            ("containerd", "2.0.4", true),
            ("containerd", "v2.1.0-rc.1", false),
            ("containerd", "2.10.0", false),
            ("containerd", "unknown", false),
            ("cri-o", "1.31.0", false),
        ];
        for (name, version, want) in rows {
            assert_eq!(is_needed(name, version), want, "{name} {version}");
        }
    }

    #[test]
    fn what_is_told_beyond_the_protocol() {
        let of = |name: &str, text: &str| Details::from([(name.to_owned(), text.to_owned())]);
        assert_eq!(top_layer(&of("info", r#"{"chainID": "sha256:1"}"#)).as_deref(), Some("sha256:1"));
        assert_eq!((top_layer(&of("info", "{}")), top_layer(&of("x", "{}"))), (None, None));
        assert_eq!(snapshotter(&of("config", r#"{"containerd": {"snapshotter": "native"}}"#)), "native");
        assert_eq!(snapshotter(&of("config", "broken")), "overlayfs");
    }
}
