//! Where a record lies, and reading it back with its checksum.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::files::File;
use super::record::{Damage, FORMAT, RECORD_HEADER, Record};
use crate::mvcc::Versioned;
use crate::{Entry, Error};

/// An open log or base. It can be read as long as somebody holds it, also after it was removed.
pub(crate) struct DataFile {
    pub name: String,
    pub file: Arc<dyn File>,
}

impl fmt::Debug for DataFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A record's place.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub file: Arc<DataFile>,
    pub offset: u64,
    pub length: u32,
}

/// The error for a record that cannot be read; it names the record and what to do.
pub(crate) fn damaged(name: &str, offset: u64, damage: Damage, what: &str) -> Error {
    match damage {
        Damage::Newer(found) => Error::Format { found, known: FORMAT },
        _ => Error::Corrupt(format!(
            "the record at byte {offset} of {name} ({what}) is damaged: {damage}; \
             restore the last good snapshot with `pintle snapshot restore`"
        )),
    }
}

impl Place {
    /// The record's bytes, checked to be of `key` and this version of it.
    pub fn read(&self, key: &[u8], versioned: &Versioned<Place>) -> Result<Bytes, Error> {
        let broken = |damage| {
            let what = format!("revision {} of {}", versioned.modified, String::from_utf8_lossy(key));
            damaged(&self.file.name, self.offset, damage, &what)
        };
        let mut bytes = vec![0; self.length as usize];
        if self.file.file.read_at(&mut bytes, self.offset)? < bytes.len() {
            return Err(broken(Damage::Short));
        }
        let (record, _) = Record::parse(&bytes).map_err(broken)?;
        if record.key != key || record.revision != versioned.modified || record.value.is_none() {
            return Err(broken(Damage::Other));
        }
        let value_at = RECORD_HEADER + key.len();
        Ok(Bytes::from(bytes).slice(value_at..))
    }

    /// The whole entry.
    pub fn entry(key: Bytes, versioned: &Versioned<Place>) -> Result<Entry, Error> {
        let value = versioned.value.read(&key, versioned)?;
        let (create_revision, mod_revision, version) = (versioned.create, versioned.modified, versioned.version);
        Ok(Entry { key, value, create_revision, mod_revision, version })
    }
}

/// Reads a file from front to back through one buffer.
pub(crate) struct Window<'a> {
    file: &'a dyn File,
    start: u64,
    buffer: Vec<u8>,
}

/// Bytes read from a file in one go.
const CHUNK: usize = 256 << 10;

impl<'a> Window<'a> {
    pub fn new(file: &'a dyn File) -> Self {
        Self { file, start: 0, buffer: Vec::new() }
    }

    /// `length` bytes at `offset`; fewer only at the end of the file.
    pub fn get(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let within = offset.checked_sub(self.start).map(|skip| skip as usize);
        let skip = match within {
            Some(skip) if skip + length <= self.buffer.len() => skip,
            _ => {
                self.buffer.resize(length.max(CHUNK), 0);
                let got = self.file.read_at(&mut self.buffer, offset)?;
                self.buffer.truncate(got);
                self.start = offset;
                0
            }
        };
        let end = self.buffer.len().min(skip + length);
        Ok(&self.buffer[skip..end])
    }
}
