//! What the kubelet has fetched and with whose credentials, on disk, so that a restart knows it.
//!
//! ```text
//!  <root>/image_manager/pulling/sha256-<hash of the name>        a fetch that has begun
//!                      /pulled/sha256-<hash of the image's id>   who has fetched it, by name
//! ```
//!
//! A fetch that had begun when the process ended may have come to its end: what it left counts as
//! fetched by us, by nobody in particular. What cannot be read counts likewise. One that was given up
//! may, too: until a later one of the same name succeeds, nobody has the image without fetching it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::credentials::{Origin, sha256};
use super::reference;
use super::verify::{Facts, Known, Verification, must_fetch};
use crate::durable;
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
    /// Names whose fetches have begun and are not known to have ended, with those fetches' numbers.
    pulling: HashMap<String, BTreeSet<u64>>,
    /// The number of the next fetch.
    next: u64,
}

/// A fetch that has begun. One that is dropped without [`Records::end`] was given up: what became of
/// it nobody knows, and its record stays.
#[derive(Debug)]
#[must_use]
pub struct Begun {
    name: String,
    number: u64,
}

/// The records. What changes them blocks until it is on disk; what asks does not.
pub struct Records {
    root: Option<PathBuf>,
    policy: Verification,
    /// Held by the one that writes.
    writing: Mutex<()>,
    state: Mutex<State>,
}

impl Records {
    /// Records in memory only, for a kubelet whose images nobody else may use without asking.
    pub fn in_memory(policy: Verification) -> Self {
        Self { root: None, policy, writing: Mutex::default(), state: Mutex::default() }
    }

    /// Those beneath `root`. `images` is what the runtime has now: records of others are dropped.
    pub fn open(root: &Path, policy: Verification, images: &[Image], now: Timestamp) -> io::Result<Self> {
        let root = root.join("image_manager");
        for folder in ["pulling", "pulled"] {
            std::fs::create_dir_all(root.join(folder))?;
        }
        let records = Self { root: Some(root.clone()), ..Self::in_memory(policy) };
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
            let image = images.iter().find(|image| is_called(image, &intent.image));
            if image.is_none_or(|image| records.note(&image.id, &intent.image, None, now)) {
                durable::remove(&root.join("pulling").join(path))?;
            }
        }
        Ok(records)
    }

    fn pulled_path(&self, id: &str) -> String {
        format!("sha256-{}", sha256(id.as_bytes()))
    }

    /// Whether an image that is here must be fetched by who has these credentials, before it is used.
    pub fn must_fetch(&self, name: &str, image: &Image, credentials: Option<&[Origin]>) -> Option<bool> {
        let state = self.state.lock();
        let record = state.pulled.get(&image.id);
        // Under whatever name it is asked for: it is here under that of the fetch, too.
        let is_pulling = || state.pulling.keys().any(|pulling| pulling == name || is_called(image, pulling));
        let facts = Facts {
            name: &bare(name),
            fetched_by_us: record.is_some() || is_pulling(),
            known: record.map(|r| &r.credential_mapping),
        };
        must_fetch(&self.policy, &facts, credentials)
    }

    /// A fetch begins: without this on disk it may not.
    pub fn begin(&self, name: &str) -> io::Result<Begun> {
        let _one = self.writing.lock();
        let intent = Intent { kind: "ImagePullIntent".into(), api_version: VERSION.into(), image: name.to_owned() };
        self.write("pulling", name, &intent)?;
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.pulling.entry(name.to_owned()).or_default().insert(number);
        Ok(Begun { name: name.to_owned(), number })
    }

    /// It has ended: with what image, and whose credentials fetched it. One that succeeded settles
    /// those before it that were given up.
    pub fn end(&self, begun: &Begun, fetched: Option<(&str, &Origin)>, now: Timestamp) {
        let (name, number) = (begun.name.as_str(), begun.number);
        let _one = self.writing.lock();
        if let Some((id, origin)) = fetched {
            if !self.note(id, name, Some(origin), now) {
                // The intent stays, and says so to the next process.
                return;
            }
        }
        let mut state = self.state.lock();
        if let Some(left) = state.pulling.get_mut(name) {
            left.retain(|other| *other > number || (fetched.is_none() && *other < number));
            if !left.is_empty() {
                return;
            }
            state.pulling.remove(name);
        }
        drop(state);
        if let Some(root) = &self.root {
            let path = root.join("pulling").join(format!("sha256-{}", sha256(name.as_bytes())));
            if let Err(error) = durable::remove(&path) {
                tracing::warn!(name, %error, "the intent to fetch an image is not removed");
            }
        }
    }

    /// The image is gone: whoever fetches it next is who could.
    pub fn forget(&self, id: &str) {
        let _one = self.writing.lock();
        if self.state.lock().pulled.remove(id).is_none() {
            return;
        }
        if let Some(root) = &self.root {
            if let Err(error) = durable::remove(&root.join("pulled").join(self.pulled_path(id))) {
                tracing::warn!(image = id, %error, "the record of an image that is gone is not removed");
            }
        }
    }

    /// Notes who could fetch an image. False when that is not on disk.
    fn note(&self, id: &str, name: &str, origin: Option<&Origin>, now: Timestamp) -> bool {
        let known = self.state.lock().pulled.get(id).cloned();
        let is_known = known.is_some();
        let mut record = known.unwrap_or_default();
        let news = match origin {
            Some(origin) => record.credential_mapping.entry(bare(name)).or_default().merge(Known::of(origin)),
            None => false,
        };
        if is_known && !news {
            return true;
        }
        (record.kind, record.api_version) = ("ImagePulledRecord".into(), VERSION.into());
        record.image_ref = id.to_owned();
        record.last_updated_time = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
        let written = self.write("pulled", id, &record);
        self.state.lock().pulled.insert(id.to_owned(), record);
        if let Err(error) = &written {
            tracing::warn!(image = id, %error, "who has fetched an image is not written down");
        }
        written.is_ok()
    }

    fn write(&self, folder: &str, key: &str, what: &impl Serialize) -> io::Result<()> {
        let Some(root) = &self.root else { return Ok(()) };
        let path = root.join(folder).join(format!("sha256-{}", sha256(key.as_bytes())));
        durable::write(&path, &serde_json::to_vec(what)?)
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
pub(super) fn is_called(image: &Image, name: &str) -> bool {
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
        if name.ends_with(durable::UNFINISHED) {
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
        let ask = |r: &Records, mine: &[Origin]| r.must_fetch("reg.io/x:1", &all[0], Some(mine));
        assert_eq!(ask(&records, &[]), Some(false), "it was here before: for all");
        let begun = records.begin("reg.io/x:1").expect("noted");
        assert_eq!(ask(&records, &[]), Some(true), "it is being fetched");
        records.end(&begun, Some(("sha256:1", &secret())), now);
        let _given_up = records.begin("half:1").expect("noted");
        drop(records);
        let records = open(&all);
        assert_eq!((ask(&records, &[]), ask(&records, &[secret()])), (Some(true), Some(false)));
        assert_eq!(records.must_fetch("reg.io/y:1", &all[0], Some(&[secret()])), Some(true), "another name");
        assert_eq!(records.must_fetch("half:1", &all[1], Some(&[])), Some(true), "a fetch that was broken off");
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
    fn what_was_given_up_is_nobodys_until_it_is_fetched() {
        let root = tempfile::tempdir().expect("a directory");
        let now = Timestamp::UNIX_EPOCH;
        let all = [image("sha256:1", "reg.io/x:1")];
        let records = Records::open(root.path(), Verification::default(), &all, now).expect("opened");
        let ask = |mine: &[Origin]| records.must_fetch("reg.io/x:1", &all[0], Some(mine));
        let intents = || std::fs::read_dir(root.path().join("image_manager/pulling")).expect("read").count();
        let begin = || records.begin("reg.io/x:1").expect("noted");
        drop(begin());
        // Another's failure says nothing about the one that was given up.
        records.end(&begin(), None, now);
        assert_eq!((ask(&[]), intents()), (Some(true), 1));
        assert_eq!(records.must_fetch("reg.io/x@sha256:aa", &all[0], Some(&[])), Some(true), "another name of it");
        let (second, third) = (begin(), begin());
        records.end(&second, Some(("sha256:1", &secret())), now);
        assert_eq!((ask(&[]), ask(&[secret()]), intents()), (Some(true), Some(false), 1), "the third goes on");
        records.end(&third, None, now);
        assert_eq!((ask(&[]), ask(&[secret()]), intents()), (Some(true), Some(false), 0));
        // A failure of one that nobody else tries leaves what was here before as it was.
        let other = "reg.io/y:1";
        records.end(&records.begin(other).expect("noted"), None, now);
        assert_eq!(records.must_fetch(other, &image("sha256:2", other), Some(&[])), Some(false));
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
