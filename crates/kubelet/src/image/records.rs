//! What the kubelet has fetched and with whose credentials, on disk, so that a restart knows it.
//!
//! ```text
//!  <root>/image_manager/pulling/sha256-<hash of the name>        a fetch that has begun
//!                      /pulled/sha256-<hash of the image's id>   who has fetched it, by name
//! ```
//!
//! A fetch that had begun when the process ended may have come to its end: what it left counts as
//! fetched by us, by nobody in particular. What cannot be read counts likewise.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::credentials::{Origin, sha256};
use super::reference;
use super::verify::{Facts, Known, Verification, must_fetch};
use crate::runtime::Image;

const VERSION: &str = "kubelet.config.k8s.io/v1beta1";

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Record {
    kind: String,
    api_version: String,
    last_updated_time: String,
    image_ref: String,
    credential_mapping: BTreeMap<String, Known>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Intent {
    kind: String,
    api_version: String,
    image: String,
}

#[derive(Default)]
struct State {
    pulled: HashMap<String, Record>,
    /// Names that are being fetched, and by how many.
    pulling: HashMap<String, usize>,
}

/// The records.
pub struct Records {
    root: Option<PathBuf>,
    policy: Verification,
    state: Mutex<State>,
}

impl Records {
    /// Records in memory only, for a kubelet whose images nobody else may use without asking.
    pub fn in_memory(policy: Verification) -> Self {
        Self { root: None, policy, state: Mutex::default() }
    }

    /// Those beneath `root`. `images` is what the runtime has now: records of others are dropped.
    pub fn open(root: &Path, policy: Verification, images: &[Image], now: Timestamp) -> io::Result<Self> {
        let root = root.join("image_manager");
        for folder in ["pulling", "pulled"] {
            std::fs::create_dir_all(root.join(folder))?;
        }
        let records = Self { root: Some(root.clone()), policy, state: Mutex::default() };
        for (path, bytes) in files(&root.join("pulled"))? {
            // One that cannot be read admits nobody: its image is found by its name below, or is
            // fetched anew by whoever wants it.
            let record = serde_json::from_slice::<Record>(&bytes).unwrap_or_default();
            if images.iter().any(|image| image.id == record.image_ref) {
                records.state.lock().pulled.insert(record.image_ref.clone(), record);
            } else if let Some(image) = images.iter().find(|image| path == records.pulled_path(&image.id)) {
                records.note(&image.id, "", None, now);
            } else {
                std::fs::remove_file(root.join("pulled").join(path))?;
            }
        }
        for (path, bytes) in files(&root.join("pulling"))? {
            let intent = serde_json::from_slice::<Intent>(&bytes).unwrap_or_default();
            if let Some(image) = images.iter().find(|image| is_called(image, &intent.image)) {
                records.note(&image.id, &intent.image, None, now);
            }
            std::fs::remove_file(root.join("pulling").join(path))?;
        }
        Ok(records)
    }

    fn pulled_path(&self, id: &str) -> String {
        format!("sha256-{}", sha256(id.as_bytes()))
    }

    /// Whether an image that is here must be fetched by who has these credentials, before it is used.
    pub fn must_fetch(&self, name: &str, id: &str, credentials: Option<&[Origin]>) -> Option<bool> {
        let state = self.state.lock();
        let record = state.pulled.get(id);
        let facts = Facts {
            name: &bare(name),
            fetched_by_us: record.is_some() || state.pulling.contains_key(name),
            known: record.map(|r| &r.credential_mapping),
        };
        must_fetch(&self.policy, &facts, credentials)
    }

    /// A fetch begins: without this on disk it may not.
    pub fn begin(&self, name: &str) -> io::Result<()> {
        let intent = Intent { kind: "ImagePullIntent".into(), api_version: VERSION.into(), image: name.to_owned() };
        self.write("pulling", name, &intent)?;
        *self.state.lock().pulling.entry(name.to_owned()).or_default() += 1;
        Ok(())
    }

    /// It has ended: with what image, and whose credentials fetched it.
    pub fn end(&self, name: &str, fetched: Option<(&str, &Origin)>, now: Timestamp) {
        if let Some((id, origin)) = fetched {
            if !self.note(id, name, Some(origin), now) {
                // The intent stays, and says so to the next process.
                return;
            }
        }
        let mut state = self.state.lock();
        let left = state.pulling.get_mut(name).map(|n| {
            *n = n.saturating_sub(1);
            *n
        });
        if left.is_none_or(|n| n == 0) {
            state.pulling.remove(name);
            drop(state);
            if let Some(root) = &self.root {
                let path = root.join("pulling").join(format!("sha256-{}", sha256(name.as_bytes())));
                if let Err(error) = std::fs::remove_file(path) {
                    tracing::warn!(name, %error, "the intent to fetch an image is not removed");
                }
            }
        }
    }

    /// Notes who could fetch an image. False when that is not on disk.
    fn note(&self, id: &str, name: &str, origin: Option<&Origin>, now: Timestamp) -> bool {
        let mut state = self.state.lock();
        let known = state.pulled.get(id);
        let mut record = known.cloned().unwrap_or_default();
        let news = match origin {
            Some(origin) => record.credential_mapping.entry(bare(name)).or_default().merge(Known::of(origin)),
            None => false,
        };
        if known.is_some() && !news {
            return true;
        }
        (record.kind, record.api_version) = ("ImagePulledRecord".into(), VERSION.into());
        record.image_ref = id.to_owned();
        record.last_updated_time = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
        let written = self.write("pulled", id, &record);
        state.pulled.insert(id.to_owned(), record);
        if let Err(error) = &written {
            tracing::warn!(image = id, %error, "who has fetched an image is not written down");
        }
        written.is_ok()
    }

    fn write(&self, folder: &str, key: &str, what: &impl Serialize) -> io::Result<()> {
        let Some(root) = &self.root else { return Ok(()) };
        let path = root.join(folder).join(format!("sha256-{}", sha256(key.as_bytes())));
        let next = path.with_extension("next");
        std::fs::write(&next, serde_json::to_vec(what)?)?;
        std::fs::rename(next, path)
    }
}

/// A name without tag and digest.
fn bare(name: &str) -> String {
    let name = name.split_once('@').map_or(name, |(name, _)| name);
    match name.rsplit_once(':') {
        Some((bare, tag)) if !tag.contains('/') => bare.to_owned(),
        _ => name.to_owned(),
    }
}

/// The runtime shows names in full.
fn is_called(image: &Image, name: &str) -> bool {
    let full = |name: &str| reference::parse(name).ok();
    let Some(wanted) = full(name) else { return false };
    image.tags.iter().chain(&image.digests).filter_map(|known| full(known)).any(|known| {
        let tag = known.tag.is_some() && known.tag == wanted.tag;
        let digest = known.digest.is_some() && known.digest == wanted.digest;
        known.host == wanted.host && known.path == wanted.path && (tag || digest)
    })
}

/// The files of a folder by name; what was being written when the process ended goes.
fn files(folder: &Path) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".next") {
            std::fs::remove_file(entry.path())?;
        } else {
            out.push((name, std::fs::read(entry.path())?));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, tag: &str) -> Image {
        Image { id: id.into(), tags: vec![tag.into()], ..Image::default() }
    }

    fn secret() -> Origin {
        let text = String::from;
        Origin::Secret { uid: text("u"), namespace: text("ns"), name: text("s"), hash: text("h") }
    }

    #[test]
    fn a_restart_knows_who_fetched_what() {
        let root = tempfile::tempdir().expect("a directory");
        let now = Timestamp::UNIX_EPOCH;
        let open = |images: &[Image]| Records::open(root.path(), Verification::default(), images, now).expect("opened");
        let all = [image("sha256:1", "reg.io/x:1"), image("sha256:2", "docker.io/library/half:1")];
        let records = open(&all);
        let ask = |r: &Records, mine: &[Origin]| r.must_fetch("reg.io/x:1", "sha256:1", Some(mine));
        assert_eq!(ask(&records, &[]), Some(false), "it was here before: for all");
        records.begin("reg.io/x:1").expect("noted");
        assert_eq!(ask(&records, &[]), Some(true), "it is being fetched");
        records.end("reg.io/x:1", Some(("sha256:1", &secret())), now);
        records.begin("half:1").expect("noted");
        drop(records);
        let records = open(&all);
        assert_eq!((ask(&records, &[]), ask(&records, &[secret()])), (Some(true), Some(false)));
        assert_eq!(records.must_fetch("reg.io/y:1", "sha256:1", Some(&[secret()])), Some(true), "another name");
        assert_eq!(records.must_fetch("half:1", "sha256:2", Some(&[])), Some(true), "a fetch that was broken off");
        assert_eq!(std::fs::read_dir(root.path().join("image_manager/pulling")).expect("read").count(), 0);
        drop(records);
        // What the runtime no longer has is forgotten; what is damaged admits nobody.
        for entry in std::fs::read_dir(root.path().join("image_manager/pulled")).expect("read") {
            std::fs::write(entry.expect("an entry").path(), "{").expect("written");
        }
        let records = open(&all[..1]);
        assert_eq!(ask(&records, &[secret()]), Some(true));
        assert_eq!(std::fs::read_dir(root.path().join("image_manager/pulled")).expect("read").count(), 1);
    }

    #[test]
    fn names_without_tag() {
        let rows = [
            ("nginx", "nginx"),
            ("nginx:1", "nginx"),
            ("reg.io:5000/x", "reg.io:5000/x"),
            ("reg.io:5000/x:1@sha256:aa", "reg.io:5000/x"),
        ];
        for (name, want) in rows {
            assert_eq!(bare(name), want);
        }
    }
}
