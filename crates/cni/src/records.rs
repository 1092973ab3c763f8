//! What is remembered between calls, in files below the network's folder:
//!
//! ```text
//!  attachments/CONTAINER,IFNAME   the record; its lock is held by whoever works on that attachment
//!  addresses/10.244.0.5           a link whose target is the attachment that has the address
//!  last.4, last.6                 the address given out last
//! ```
//!
//! Beside the folders of networks is `ports.lock`, which is held while the rules of host ports are written: one
//! table has those of all networks beside each other; `ports.own` says that it is theirs alone.
//!
//! Nothing is synced to the disk: after a power loss there are no pods, and what is left of records is
//! collected. A record is there before any address is its attachment's, and goes after all of them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ipnet::IpNet;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::allocate;
use crate::config::PortMapping;

/// How many addresses in a row may be somebody's before the range counts as given out.
const ATTEMPTS: usize = 1 << 17;
/// How much of a record is read.
const LONGEST: u64 = 1 << 20;

/// What names an attachment: the container and the name of the link in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// The parts are checked already: neither holds a slash or a comma.
    pub fn new(container_id: &str, ifname: &str) -> Self {
        Self(format!("{container_id},{ifname}"))
    }

    /// The container.
    pub fn container_id(&self) -> &str {
        self.0.split_once(',').map_or(&self.0, |(id, _)| id)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    #[serde(rename = "containerID")]
    pub container_id: String,
    pub ifname: String,
    /// Where its network namespace is.
    pub netns: PathBuf,
    /// The pod, where the runtime says which.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    pub addresses: Vec<IpAddr>,
    /// The host's end.
    pub link: String,
    pub mtu: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortMapping>,
    /// When it was made, in nanoseconds: of two with the same port of the host the later one has it.
    #[serde(default)]
    pub made: u64,
    /// The ADD came to its end.
    #[serde(default)]
    pub complete: bool,
    /// It is being taken away: its ports lead nowhere any more, and are known until what went there is forgotten.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves: bool,
}

/// The records of one network.
#[derive(Clone, Debug)]
pub struct Records {
    dir: PathBuf,
}

/// An attachment that is worked on: nobody else does until this is dropped.
#[derive(Debug)]
pub struct Held {
    pub key: Key,
    path: PathBuf,
    file: File,
}

/// Why there is no address.
#[derive(Debug, thiserror::Error)]
pub enum Claim {
    /// All of them are given out.
    #[error("no address is left in {0}: all {1} are given out")]
    Exhausted(IpNet, u128),
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn absent<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Records {
    /// Those of a network; nothing is made yet.
    pub fn of(data_dir: &Path, network: &str) -> Self {
        Self { dir: data_dir.join(network) }
    }

    /// The folder that this network's is in.
    pub fn place(&self) -> &Path {
        self.dir.parent().unwrap_or(&self.dir)
    }

    fn own_ports(&self) -> PathBuf {
        self.place().join("ports.own")
    }

    /// True once the ports of this place have tables of their own.
    pub fn has_own_ports(&self) -> bool {
        self.own_ports().exists()
    }

    /// From now on they have.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn set_own_ports(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc_nofollow());
        options.open(self.own_ports()).map(drop)
    }

    /// Those of every network whose records are kept in the same place, this one's included.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn beside(&self) -> io::Result<Vec<Self>> {
        let mut out = Vec::new();
        for entry in absent(fs::read_dir(self.place()))?.into_iter().flatten() {
            let dir = entry?.path();
            if dir.join("attachments").is_dir() {
                out.push(Self { dir });
            }
        }
        Ok(out)
    }

    fn attachments(&self) -> PathBuf {
        self.dir.join("attachments")
    }

    fn addresses(&self) -> PathBuf {
        self.dir.join("addresses")
    }

    /// Makes the folders.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn prepare(&self) -> io::Result<()> {
        let addresses = self.addresses();
        if addresses.is_dir() {
            return Ok(());
        }
        let mut folder = fs::DirBuilder::new();
        folder.recursive(true).mode(0o700);
        folder.create(self.attachments())?;
        folder.create(addresses)
    }

    /// Takes the attachment of that key, which is there from now on; waits while somebody else has it.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn hold(&self, key: Key) -> io::Result<Held> {
        let path = self.attachments().join(key.as_str());
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.custom_flags(libc_nofollow()).open(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            if is_at(&file, &path)? {
                return Ok(Held { key, path, file });
            }
        }
    }

    /// The same of one that is there.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn hold_existing(&self, key: Key) -> io::Result<Option<Held>> {
        if self.attachments().join(key.as_str()).symlink_metadata().is_err() {
            return Ok(None);
        }
        // One that goes meanwhile is made again, empty, and taken away by whoever holds it.
        self.hold(key).map(Some)
    }

    /// The same, but `None` also where somebody works on it: who holds one and wants others may not wait.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn hold_idle(&self, key: Key) -> io::Result<Option<Held>> {
        let path = self.attachments().join(key.as_str());
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc_nofollow());
        let Some(file) = absent(options.open(&path))? else { return Ok(None) };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(is_at(&file, &path)?.then_some(Held { key, path, file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes an attachment that is not there; `None` where it is. It is there until what is returned is removed.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn hold_absent(&self, key: Key) -> io::Result<Option<Held>> {
        let path = self.attachments().join(key.as_str());
        let file = match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
            other => other?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(is_at(&file, &path)?.then_some(Held { key, path, file })),
            // An ADD that began just now has it.
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the lock of host ports, of all networks.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn hold_ports(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc_nofollow());
        let file = options.open(self.place().join("ports.lock"))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    /// Every attachment there is, and when its record was written last.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn keys(&self) -> io::Result<Vec<(Key, SystemTime)>> {
        let mut out = Vec::new();
        let Some(entries) = absent(fs::read_dir(self.attachments()))? else { return Ok(out) };
        for entry in entries {
            let entry = entry?;
            // One that goes meanwhile is none.
            let Some(metadata) = absent(entry.metadata())? else { continue };
            out.push((Key(entry.file_name().to_string_lossy().into_owned()), metadata.modified()?));
        }
        Ok(out)
    }

    /// Every record there is. One that is being written just now may be left out: whoever writes it looks
    /// again afterwards.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn all(&self) -> io::Result<Vec<Record>> {
        let mut out = Vec::new();
        for (key, _) in self.keys()? {
            let Some(file) = absent(File::open(self.attachments().join(key.as_str())))? else { continue };
            out.extend(parse(&file));
        }
        Ok(out)
    }

    /// Every address that is given out, and to whom.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn given(&self) -> io::Result<Vec<(IpAddr, Key)>> {
        let mut out = Vec::new();
        let Some(entries) = absent(fs::read_dir(self.addresses()))? else { return Ok(out) };
        for entry in entries {
            let entry = entry?;
            let Some(target) = absent(fs::read_link(entry.path()))? else { continue };
            if let Ok(address) = entry.file_name().to_string_lossy().parse() {
                out.push((address, Key(target.to_string_lossy().into_owned())));
            }
        }
        Ok(out)
    }

    /// Gives a free address of `range` to the attachment that is held: one that is nobody's by the records, nor
    /// `is_taken` by what they do not know of (pods of another plugin, of before an upgrade).
    ///
    /// # Errors
    /// When there is none, or the disk refuses.
    pub fn claim(&self, held: &Held, range: IpNet, is_taken: impl Fn(IpAddr) -> bool) -> Result<IpAddr, Claim> {
        let cursor = self.dir.join(if range.addr().is_ipv4() { "last.4" } else { "last.6" });
        let last = fs::read_to_string(&cursor).ok().and_then(|text| text.trim().parse().ok());
        for address in allocate::candidates(range, last).take(ATTEMPTS) {
            let path = self.addresses().join(address.to_string());
            match std::os::unix::fs::symlink(held.key.as_str(), &path) {
                Ok(()) if is_taken(address) => {
                    absent(fs::remove_file(path))?;
                }
                Ok(()) => {
                    // Without it the search begins elsewhere.
                    let _ = point(&cursor, address);
                    return Ok(address);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Claim::Exhausted(range, allocate::size(range)))
    }

    /// Takes back every address of an attachment.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn release(&self, key: &Key, known: &[IpAddr]) -> io::Result<()> {
        for address in known {
            let path = self.addresses().join(address.to_string());
            if fs::read_link(&path).is_ok_and(|target| target.as_os_str() == key.as_str()) {
                absent(fs::remove_file(path))?;
            }
        }
        Ok(())
    }

    /// The same where no record says which: all are looked through.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn release_all(&self, key: &Key) -> io::Result<()> {
        let own: Vec<IpAddr> = self.given()?.into_iter().filter(|(_, k)| k == key).map(|(a, _)| a).collect();
        self.release(key, &own)
    }

    /// True while an address of `range` is free.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn has_room(&self, range: IpNet) -> io::Result<bool> {
        let given = self.given()?.into_iter().filter(|(address, _)| range.contains(address)).count();
        Ok((given as u128) < allocate::size(range))
    }
}

/// Writes the cursor in one step, of one length: a call that is killed leaves the old one or the new one.
fn point(cursor: &Path, address: IpAddr) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc_nofollow());
    options.open(cursor)?.write_all_at(format!("{:<45}\n", address.to_string()).as_bytes(), 0)
}

/// Opens no link: what is in the folder is made by nobody else.
fn libc_nofollow() -> i32 {
    i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default()
}

/// False where the file was removed while its lock was waited for.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    Ok(absent(path.symlink_metadata())?.is_some_and(|found| (found.dev(), found.ino()) == (held.dev(), held.ino())))
}

fn parse(file: &File) -> Option<Record> {
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

impl Held {
    /// The record; `None` of a new one, and of one whose writer was killed.
    pub fn read(&self) -> Option<Record> {
        let mut text = vec![0; usize::try_from(self.file.metadata().ok()?.len().min(LONGEST)).ok()?];
        self.file.read_exact_at(&mut text, 0).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// True of one that nobody has written yet: no address is its own.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn is_new(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.len() == 0)
    }

    /// Writes the record, in place: whoever waits for the lock waits at this very file.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        let text = serde_json::to_vec(record).map_err(io::Error::other)?;
        self.file.write_all_at(&text, 0)?;
        self.file.set_len(text.len() as u64)?;
        self.file.flush()
    }

    /// Takes the record away, and with it the attachment.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn remove(self) -> io::Result<()> {
        absent(fs::remove_file(&self.path)).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> (tempfile::TempDir, Records) {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let records = Records::of(dir.path(), "n");
        records.prepare().expect("made");
        (dir, records)
    }

    #[test]
    fn an_address_is_given_once_and_given_back() {
        let (_dir, records) = records();
        let range: IpNet = "10.0.0.0/29".parse().expect("a range");
        let held: Vec<Held> = (0..5).map(|n| records.hold(Key::new(&format!("c{n}"), "eth0")).expect("held")).collect();
        let given: Vec<IpAddr> = held.iter().map(|h| records.claim(h, range, |_| false).expect("an address")).collect();
        let mut different = given.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), 5);
        assert!(!records.has_room(range).expect("read"));
        let error = records.claim(&held[0], range, |_| false).expect_err("none is left");
        assert_eq!(error.to_string(), "no address is left in 10.0.0.0/29: all 5 are given out");
        records.release(&held[1].key, &given).expect("released");
        assert_eq!(records.given().expect("read").len(), 4, "only its own");
        assert_eq!(records.claim(&held[0], range, |_| false).expect("free again"), given[1]);
        records.release_all(&held[0].key).expect("released");
        assert_eq!(records.given().expect("read").len(), 3);
    }

    #[test]
    fn the_cursor_is_never_half_written() {
        let (dir, records) = records();
        let cursor = dir.path().join("n/last.4");
        let range: IpNet = "10.0.0.0/16".parse().expect("a range");
        let held = records.hold(Key::new("c", "eth0")).expect("held");
        fs::write(&cursor, "10.0.200.200").expect("as an earlier version wrote it");
        let file = File::open(&cursor).expect("it is there");
        assert_eq!(records.claim(&held, range, |_| false).expect("an address"), IpAddr::from([10, 0, 200, 201]));
        // It is the same file, and was never cut: longer and shorter ones take as much.
        point(&cursor, [10, 0, 0, 9].into()).expect("written");
        let length = file.metadata().expect("it is there").len();
        assert_eq!((length, records.claim(&held, range, |_| false).expect("one")), (46, [10, 0, 0, 10].into()));
        assert_eq!(file.metadata().expect("it is there").len(), length);
    }

    #[test]
    fn an_address_that_leads_elsewhere_is_left_out() {
        let (_dir, records) = records();
        let range: IpNet = "10.0.0.0/29".parse().expect("a range");
        let held = records.hold(Key::new("c", "eth0")).expect("held");
        let theirs: [IpAddr; 2] = [[10, 0, 0, 2].into(), [10, 0, 0, 3].into()];
        let claimed = records.claim(&held, range, |a| theirs.contains(&a)).expect("an address");
        assert_eq!(claimed, IpAddr::from([10, 0, 0, 4]));
        assert_eq!(records.given().expect("read").len(), 1, "and is nobody's by the records");
        assert!(matches!(records.claim(&held, range, |_| true), Err(Claim::Exhausted(..))));
    }

    #[test]
    fn an_attachment_that_is_there_is_not_taken_for_one_that_is_gone() {
        let (_dir, records) = records();
        let key = || Key::new("c", "eth0");
        let held = records.hold(key()).expect("held");
        assert!(records.hold_absent(key()).expect("looked").is_none());
        held.remove().expect("removed");
        let gone = records.hold_absent(key()).expect("looked").expect("it is gone");
        assert!(records.hold_idle(key()).expect("looked").is_none(), "whoever comes waits");
        gone.remove().expect("removed");
        assert_eq!(records.keys().expect("read"), []);
    }

    #[test]
    fn a_record_that_was_removed_while_its_lock_was_waited_for_is_made_anew() {
        let (_dir, records) = records();
        let key = Key::new("c", "eth0");
        let held = records.hold(key.clone()).expect("held");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let held = records.hold(Key::new("c", "eth0")).expect("held");
                assert!(records.attachments().join("c,eth0").exists(), "it is the one that is there");
                held.read()
            });
            held.remove().expect("removed");
            assert_eq!(other.join().expect("no panic"), None);
        });
    }

    #[test]
    fn what_is_written_is_read_and_half_a_record_is_none() {
        let (_dir, records) = records();
        let mut held = records.hold(Key::new("c", "eth0")).expect("held");
        assert_eq!(held.read(), None);
        let mut record = Record { container_id: "c".into(), name: "a long name".into(), ..Record::default() };
        held.write(&record).expect("written");
        record.name = "b".into();
        held.write(&record).expect("written");
        assert_eq!(held.read(), Some(record.clone()));
        assert_eq!(records.all().expect("read"), [record]);
        held.file.set_len(20).expect("cut");
        assert_eq!(held.read(), None);
        assert_eq!(records.all().expect("read"), []);
    }
}
