//! A base: the whole state at one revision in one file. It is what old logs are replaced by, and what
//! a snapshot is.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::files::{File, Files};
use super::place::{DataFile, Place, Window, damaged};
use super::record::{Damage, FILE_HEADER, FOOTER, FORMAT, FileHeader, FileKind, RECORD_HEADER, Record, encode_footer};
use crate::mvcc::{Entries, Versioned};
use crate::{Error, Revision};

/// Bytes written, and synced, in one go: a large base must not hold up the log's own syncs.
const CHUNK: usize = 1 << 20;

pub(crate) fn name(revision: Revision) -> String {
    format!("base-{revision:020}")
}

/// The revision in the name of a base.
pub(crate) fn parse_name(name: &str) -> Option<Revision> {
    name.strip_prefix("base-").filter(|digits| digits.len() == 20)?.parse().ok()
}

/// A base that lies on disk.
#[derive(Debug)]
pub(crate) struct Base {
    pub data: Arc<DataFile>,
    pub revision: Revision,
    pub bytes: u64,
}

/// Where a new base put an entry.
pub(crate) struct Moved {
    pub key: Bytes,
    pub modified: Revision,
    pub place: Place,
}

struct Writer<'a> {
    file: &'a dyn File,
    buffer: Vec<u8>,
    flushed: u64,
}

impl Writer<'_> {
    fn offset(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.flushed)?;
        self.file.sync()?;
        self.flushed += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

/// Writes `entries`, read back from where they lie and checked, as the state at `revision` to a new
/// file of this `name`. `seen` is told where each entry went, and false from it gives up.
pub(crate) fn write(
    files: &dyn Files,
    name: &str,
    entries: &Entries<Place>,
    (revision, salt): (Revision, u64),
    mut seen: impl FnMut(Moved) -> bool,
) -> Result<Base, Error> {
    let temporary = format!("tmp-{name}");
    let file = files.create(&temporary)?;
    let data = Arc::new(DataFile { name: name.to_owned(), file: file.clone() });
    let header = FileHeader { kind: FileKind::Base, format: FORMAT, revision, salt, count: entries.len() as u64 };
    let mut out = Writer { file: &*file, buffer: header.encode().to_vec(), flushed: 0 };
    let mut checksum = 0;
    for (key, versioned) in entries {
        let value = versioned.value.read(key, versioned)?;
        let record = Record {
            revision: versioned.modified,
            create: versioned.create,
            version: versioned.version,
            key,
            value: Some(&value),
        };
        let offset = out.offset();
        checksum = crc32c::crc32c_append(checksum, &record.encode(&mut out.buffer).to_le_bytes());
        let length = record.encoded_len() as u32;
        let place = Place { file: data.clone(), offset, length };
        if !seen(Moved { key: key.clone(), modified: versioned.modified, place }) {
            return Err(Error::Closed("told to give up".into()));
        }
        if out.buffer.len() >= CHUNK {
            out.flush()?;
        }
    }
    out.buffer.extend_from_slice(&encode_footer(entries.len() as u64, checksum));
    out.flush()?;
    let bytes = out.flushed;
    files.rename(&temporary, name)?;
    files.sync_folder()?;
    Ok(Base { data, revision, bytes })
}

/// Reads and checks all of a base.
pub(crate) fn read(files: &dyn Files, name: &str) -> Result<(Base, Entries<Place>), Error> {
    let file = files.open(name)?;
    let data = Arc::new(DataFile { name: name.to_owned(), file: file.clone() });
    let mut window = Window::new(&*file);
    let header = FileHeader::parse(FileKind::Base, window.get(0, FILE_HEADER)?)
        .map_err(|damage| damaged(name, 0, damage, "the header"))?;
    let mut entries = Entries::new();
    let mut offset = FILE_HEADER as u64;
    let mut checksum = 0;
    let mut previous: Option<Bytes> = None;
    for number in 0..header.count {
        let broken = |damage| damaged(name, offset, damage, &format!("entry {number} of {}", header.count));
        let length = Record::length(window.get(offset, RECORD_HEADER)?).map_err(broken)?;
        let (record, sum) = Record::parse(window.get(offset, length)?).map_err(broken)?;
        let ordered = previous.as_deref().is_none_or(|previous| previous < record.key);
        if !ordered || record.value.is_none() || record.revision > header.revision {
            return Err(broken(Damage::Other));
        }
        checksum = crc32c::crc32c_append(checksum, &sum.to_le_bytes());
        let key = Bytes::copy_from_slice(record.key);
        let value = Place { file: data.clone(), offset, length: length as u32 };
        let versioned = Versioned { value, create: record.create, modified: record.revision, version: record.version };
        entries.insert(key.clone(), versioned);
        previous = Some(key);
        offset += length as u64;
    }
    if window.get(offset, FOOTER + 1)? != encode_footer(header.count, checksum) {
        return Err(damaged(name, offset, Damage::Checksum, "the footer"));
    }
    Ok((Base { data, revision: header.revision, bytes: offset + FOOTER as u64 }, entries))
}
