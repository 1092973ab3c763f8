//! A disk that loses power: what was not synced survives in part, in any order, or not at all.
//!
//! Each file has the bytes a reader sees and the bytes that are durable. A crash keeps the durable
//! ones and, of every later write, each sector or not as the seed decides; of renames, creations and
//! removals a prefix. A failed sync leaves pages that look clean and are not on disk, as Linux does.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use stdx::Rng;

use super::files::{File, Files};

const SECTOR: usize = 512;

#[derive(Clone, Default)]
pub(crate) struct Disk {
    inner: Arc<Mutex<Inner>>,
    gate: Arc<Condvar>,
}

#[derive(Default)]
struct Inner {
    nodes: Vec<Node>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    pending_names: Vec<Rename>,
    /// Operations left before the power fails; `None` for never.
    left: Option<u64>,
    off: bool,
    fail_sync: bool,
    fail_write: bool,
    hold_syncs: bool,
    syncs: u64,
}

#[derive(Clone, Default)]
struct Node {
    seen: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Size(usize),
}

#[derive(Clone)]
enum Rename {
    Set(String, usize),
    Unset(String),
}

fn power_lost() -> io::Error {
    io::Error::other("the power is off")
}

impl Inner {
    /// Counts one operation; false when the power fails in it.
    fn step(&mut self) -> io::Result<bool> {
        if self.off {
            return Err(power_lost());
        }
        match &mut self.left {
            Some(0) => self.off = true,
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(!self.off)
    }

    fn rename(&mut self, change: Rename) -> io::Result<()> {
        let on = self.step()?;
        match &change {
            Rename::Set(name, node) => drop(self.names.insert(name.clone(), *node)),
            Rename::Unset(name) => drop(self.names.remove(name)),
        }
        self.pending_names.push(change);
        if on { Ok(()) } else { Err(power_lost()) }
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

fn write(bytes: &mut Vec<u8>, at: usize, data: &[u8]) {
    if bytes.len() < at + data.len() {
        bytes.resize(at + data.len(), 0);
    }
    bytes[at..at + data.len()].copy_from_slice(data);
}

impl Disk {
    /// The power fails in the operation after the next `operations`.
    pub fn lose_power_after(&self, operations: u64) {
        self.inner.lock().left = Some(operations);
    }

    pub fn is_off(&self) -> bool {
        self.inner.lock().off
    }

    /// The next syncs fail.
    pub fn fail_syncs(&self, fail: bool) {
        self.inner.lock().fail_sync = fail;
    }

    /// The next writes fail halfway, as on a full disk.
    pub fn fail_writes(&self, fail: bool) {
        self.inner.lock().fail_write = fail;
    }

    /// Syncs wait until they are let go again.
    pub fn hold_syncs(&self, hold: bool) {
        self.inner.lock().hold_syncs = hold;
        self.gate.notify_all();
    }

    pub fn syncs(&self) -> u64 {
        self.inner.lock().syncs
    }

    /// Changes one bit of a file, durably.
    pub fn flip(&self, name: &str, bit: usize) {
        let mut inner = self.inner.lock();
        let node = inner.names[name];
        inner.nodes[node].seen[bit / 8] ^= 1 << (bit % 8);
        inner.nodes[node].durable[bit / 8] ^= 1 << (bit % 8);
    }

    /// A file's size.
    pub fn size(&self, name: &str) -> usize {
        let inner = self.inner.lock();
        inner.nodes[inner.names[name]].seen.len()
    }

    /// An independent copy, as it is seen now.
    pub fn copy(&self) -> Self {
        let inner = self.inner.lock();
        let nodes = inner.nodes.clone();
        let (names, durable_names) = (inner.names.clone(), inner.durable_names.clone());
        let pending_names = inner.pending_names.clone();
        let inner = Inner { nodes, names, durable_names, pending_names, ..Inner::default() };
        Self { inner: Arc::new(Mutex::new(inner)), gate: Arc::default() }
    }

    /// What the disk holds when the power is back.
    pub fn after_power_loss(&self, rng: &Rng) -> Self {
        let inner = self.inner.lock();
        let mut names = inner.durable_names.clone();
        let kept = rng.below(inner.pending_names.len() as u64 + 1) as usize;
        for change in &inner.pending_names[..kept] {
            match change {
                Rename::Set(name, node) => drop(names.insert(name.clone(), *node)),
                Rename::Unset(name) => drop(names.remove(name)),
            }
        }
        // Nothing, everything, or a mixture of what was not synced.
        let odds = [0, 50, 100][rng.below(3) as usize];
        let survives = || rng.below(100) < odds;
        let mut nodes = Vec::new();
        for node in &inner.nodes {
            let mut bytes = node.durable.clone();
            for change in &node.pending {
                match change {
                    Change::Size(size) => {
                        if survives() {
                            bytes.resize(*size, 0);
                        }
                    }
                    Change::Write(at, data) => {
                        let mut from = 0;
                        while from < data.len() {
                            let to = data.len().min(from + SECTOR - (at + from) % SECTOR);
                            if survives() {
                                write(&mut bytes, at + from, &data[from..to]);
                            }
                            from = to;
                        }
                    }
                }
            }
            nodes.push(Node { seen: bytes.clone(), durable: bytes, pending: Vec::new() });
        }
        let inner = Inner { nodes, names: names.clone(), durable_names: names, ..Inner::default() };
        Self { inner: Arc::new(Mutex::new(inner)), gate: Arc::default() }
    }
}

impl Files for Disk {
    fn list(&self) -> io::Result<Vec<String>> {
        let inner = self.inner.lock();
        if inner.off { Err(power_lost()) } else { Ok(inner.names.keys().cloned().collect()) }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let mut inner = self.inner.lock();
        inner.nodes.push(Node::default());
        let node = inner.nodes.len() - 1;
        inner.rename(Rename::Set(name.to_owned(), node))?;
        Ok(Arc::new(Open { disk: self.clone(), node }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let node = self.inner.lock().find(name)?;
        Ok(Arc::new(Open { disk: self.clone(), node }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let node = inner.find(from)?;
        // One operation of two steps; the new name first, so that a prefix of both is legal.
        inner.pending_names.push(Rename::Set(to.to_owned(), node));
        inner.names.insert(to.to_owned(), node);
        inner.rename(Rename::Unset(from.to_owned()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.find(name)?;
        inner.rename(Rename::Unset(name.to_owned()))
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if !inner.step()? {
            return Err(power_lost());
        }
        inner.durable_names = inner.names.clone();
        inner.pending_names.clear();
        Ok(())
    }
}

struct Open {
    disk: Disk,
    node: usize,
}

impl File for Open {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let inner = self.disk.inner.lock();
        let bytes = &inner.nodes[self.node].seen;
        let from = bytes.len().min(offset as usize);
        let length = buffer.len().min(bytes.len() - from);
        buffer[..length].copy_from_slice(&bytes[from..from + length]);
        Ok(length)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut inner = self.disk.inner.lock();
        let on = inner.step()?;
        let full = inner.fail_write;
        let data = if full || !on { &data[..data.len() / 2] } else { data };
        let node = &mut inner.nodes[self.node];
        write(&mut node.seen, offset as usize, data);
        node.pending.push(Change::Write(offset as usize, data.to_vec()));
        match (on, full) {
            (false, _) => Err(power_lost()),
            (true, true) => Err(io::Error::from(io::ErrorKind::StorageFull)),
            (true, false) => Ok(()),
        }
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.inner.lock().nodes[self.node].seen.len() as u64)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        let mut inner = self.disk.inner.lock();
        let on = inner.step()?;
        let node = &mut inner.nodes[self.node];
        node.seen.resize(size as usize, 0);
        node.pending.push(Change::Size(size as usize));
        if on { Ok(()) } else { Err(power_lost()) }
    }

    fn sync(&self) -> io::Result<()> {
        let mut inner = self.disk.inner.lock();
        while inner.hold_syncs {
            self.disk.gate.wait(&mut inner);
        }
        inner.syncs += 1;
        if !inner.step()? {
            return Err(power_lost());
        }
        let fail = inner.fail_sync;
        let node = &mut inner.nodes[self.node];
        if fail {
            node.pending.clear();
            return Err(io::Error::other("the disk failed to sync"));
        }
        // Only what is pending: pages that a failed sync marked clean stay off the disk.
        for change in std::mem::take(&mut node.pending) {
            match change {
                Change::Write(at, data) => write(&mut node.durable, at, &data),
                Change::Size(size) => node.durable.resize(size, 0),
            }
        }
        Ok(())
    }
}
