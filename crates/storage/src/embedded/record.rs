//! The bytes on disk. Pure: encode and parse.
//!
//! ```text
//!  log-<first revision>       header │ batch │ batch │ … │ close        one file per 8 MiB
//!    batch                    header (length, count, first revision, checksum) │ records │ padding to 8
//!    close                    a batch of no records, written by an orderly close
//!  base-<revision>            header │ records: the state at that revision │ footer
//!    record                   checksum │ kind, lengths, revision, create, version │ key │ value
//! ```
//!
//! A batch is what one fsync made durable, and the next one is written only after that fsync. So a
//! damaged batch with another one behind it was acknowledged and is corruption; a damaged batch with
//! nothing behind it is a write that power loss tore, and is cut. Checksums of batch headers begin
//! with the file's random salt: no value a client stores, and no old block the file system hands
//! back, can look like a batch of this file.

use crate::{MAX_KEY, MAX_VALUE, Revision};

/// What this build writes and the newest it reads.
pub(crate) const FORMAT: u32 = 1;

/// Bytes of a file header.
pub(crate) const FILE_HEADER: usize = 48;
/// Bytes of a batch header; batches begin at multiples of [`ALIGN`].
pub(crate) const BATCH_HEADER: usize = 24;
/// Bytes of a record before its key.
pub(crate) const RECORD_HEADER: usize = 40;
/// Bytes at the end of a base.
pub(crate) const FOOTER: usize = 16;
pub(crate) const ALIGN: usize = 8;
/// The largest record.
pub(crate) const MAX_RECORD: usize = RECORD_HEADER + MAX_KEY + MAX_VALUE;
/// The largest batch: what one write to the log holds.
pub(crate) const MAX_BATCH: usize = 2 * MAX_RECORD;

const BATCH_MAGIC: u32 = 0x6274_6e50;
const FOOTER_MAGIC: u32 = 0x656e_6450;
const PUT: u8 = 1;
const DELETE: u8 = 2;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Log,
    Base,
}

/// How many bytes say what a file is.
pub(crate) const MAGIC: usize = 8;

impl FileKind {
    /// True when `start`, the first bytes of a file, are those of this kind.
    pub fn begins(self, start: &[u8]) -> bool {
        start.starts_with(self.magic())
    }

    fn magic(self) -> &'static [u8; MAGIC] {
        match self {
            Self::Log => b"PintLog\0",
            Self::Base => b"PintBase",
        }
    }
}

/// The start of every file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub kind: FileKind,
    pub format: u32,
    /// Of a log the first revision that may be in it; of a base the revision whose state it is.
    pub revision: Revision,
    pub salt: u64,
    /// Records of a base; 0 in a log.
    pub count: u64,
}

/// The start of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    /// Bytes of its records, without padding.
    pub length: u32,
    /// Records; 0 for a close.
    pub count: u32,
    /// The first record's revision; of a close the revision that would come next.
    pub first: Revision,
}

/// One entry as it was written, or one delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub revision: Revision,
    pub create: Revision,
    pub version: u64,
    pub key: &'a [u8],
    /// `None` for a delete.
    pub value: Option<&'a [u8]>,
}

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Damage {
    #[error("it ends too early")]
    Short,
    #[error("its checksum does not match")]
    Checksum,
    #[error("its lengths are impossible")]
    Lengths,
    #[error("it is not the record that belongs there")]
    Other,
    #[error("it has format {0}, newer than the {FORMAT} this version knows; use a newer pintle")]
    Newer(u32),
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

impl FileHeader {
    pub fn encode(&self) -> [u8; FILE_HEADER] {
        let mut out = [0; FILE_HEADER];
        out[..MAGIC].copy_from_slice(self.kind.magic());
        out[8..12].copy_from_slice(&self.format.to_le_bytes());
        out[16..24].copy_from_slice(&self.revision.to_le_bytes());
        out[24..32].copy_from_slice(&self.salt.to_le_bytes());
        out[32..40].copy_from_slice(&self.count.to_le_bytes());
        let checksum = crc32c::crc32c(&out[..40]);
        out[40..44].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    pub fn parse(kind: FileKind, bytes: &[u8]) -> Result<Self, Damage> {
        if bytes.len() < FILE_HEADER {
            return Err(Damage::Short);
        }
        if !kind.begins(bytes) {
            return Err(Damage::Other);
        }
        if crc32c::crc32c(&bytes[..40]) != u32_at(bytes, 40) {
            return Err(Damage::Checksum);
        }
        // Every format keeps these first 44 bytes, so that an older build can say this.
        let format = u32_at(bytes, 8);
        if format > FORMAT {
            return Err(Damage::Newer(format));
        }
        Ok(Self { kind, format, revision: u64_at(bytes, 16), salt: u64_at(bytes, 24), count: u64_at(bytes, 32) })
    }
}

impl BatchHeader {
    pub fn encode(&self, salt: u64) -> [u8; BATCH_HEADER] {
        let mut out = [0; BATCH_HEADER];
        out[..4].copy_from_slice(&BATCH_MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.length.to_le_bytes());
        out[8..12].copy_from_slice(&self.count.to_le_bytes());
        out[16..24].copy_from_slice(&self.first.to_le_bytes());
        let checksum = Self::checksum(&out, salt);
        out[12..16].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    pub fn parse(bytes: &[u8], salt: u64) -> Result<Self, Damage> {
        if bytes.len() < BATCH_HEADER {
            return Err(Damage::Short);
        }
        if u32_at(bytes, 0) != BATCH_MAGIC {
            return Err(Damage::Other);
        }
        if Self::checksum(bytes, salt) != u32_at(bytes, 12) {
            return Err(Damage::Checksum);
        }
        Ok(Self { length: u32_at(bytes, 4), count: u32_at(bytes, 8), first: u64_at(bytes, 16) })
    }

    fn checksum(bytes: &[u8], salt: u64) -> u32 {
        let salted = crc32c::crc32c(&salt.to_le_bytes());
        crc32c::crc32c_append(crc32c::crc32c_append(salted, &bytes[..12]), &bytes[16..24])
    }

    /// Bytes from its header to the next batch.
    pub fn span(&self) -> u64 {
        (BATCH_HEADER + (self.length as usize).next_multiple_of(ALIGN)) as u64
    }
}

impl<'a> Record<'a> {
    pub fn encoded_len(&self) -> usize {
        RECORD_HEADER + self.key.len() + self.value.map_or(0, <[u8]>::len)
    }

    /// Appends the record and tells its checksum. Key and value are within the store's bounds.
    pub fn encode(&self, out: &mut Vec<u8>) -> u32 {
        let start = out.len();
        let value = self.value.unwrap_or_default();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&[if self.value.is_some() { PUT } else { DELETE }, 0, 0, 0]);
        out.extend_from_slice(&(self.key.len() as u32).to_le_bytes());
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.revision.to_le_bytes());
        out.extend_from_slice(&self.create.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(self.key);
        out.extend_from_slice(value);
        let checksum = crc32c::crc32c(&out[start + 4..]);
        out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
        checksum
    }

    /// The whole length of the record that begins with `header` ([`RECORD_HEADER`] bytes).
    pub fn length(header: &[u8]) -> Result<usize, Damage> {
        if header.len() < RECORD_HEADER {
            return Err(Damage::Short);
        }
        let (key, value) = (u32_at(header, 8) as usize, u32_at(header, 12) as usize);
        if key > MAX_KEY || value > MAX_VALUE || !matches!(header[4], PUT | DELETE) {
            return Err(Damage::Lengths);
        }
        Ok(RECORD_HEADER + key + value)
    }

    /// Reads and checks the record that `bytes` begins with; tells its checksum too.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, u32), Damage> {
        let length = Self::length(bytes)?;
        if bytes.len() < length {
            return Err(Damage::Short);
        }
        let checksum = u32_at(bytes, 0);
        if crc32c::crc32c(&bytes[4..length]) != checksum {
            return Err(Damage::Checksum);
        }
        let value_at = RECORD_HEADER + u32_at(bytes, 8) as usize;
        let (revision, create, version) = (u64_at(bytes, 16), u64_at(bytes, 24), u64_at(bytes, 32));
        let value = (bytes[4] == PUT).then(|| &bytes[value_at..length]);
        Ok((Self { revision, create, version, key: &bytes[RECORD_HEADER..value_at], value }, checksum))
    }
}

/// The end of a base: how many records, and a checksum over theirs.
pub(crate) fn encode_footer(count: u64, checksum: u32) -> [u8; FOOTER] {
    let mut out = [0; FOOTER];
    out[..4].copy_from_slice(&FOOTER_MAGIC.to_le_bytes());
    out[4..12].copy_from_slice(&count.to_le_bytes());
    out[12..16].copy_from_slice(&checksum.to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_any_flipped_bit_is_found() {
        for value in [Some(&b"value"[..]), Some(&b""[..]), None] {
            let record = Record { revision: 7, create: 5, version: 2, key: b"/registry/a", value };
            let mut bytes = Vec::new();
            let checksum = record.encode(&mut bytes);
            assert_eq!(bytes.len(), record.encoded_len());
            assert_eq!(Record::parse(&bytes), Ok((record, checksum)));
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(Record::parse(&damaged).is_err(), "bit {bit}");
            }
            for length in 0..bytes.len() {
                assert!(Record::parse(&bytes[..length]).is_err(), "cut at {length}");
            }
        }
    }

    #[test]
    fn batch_headers_belong_to_their_file() {
        let header = BatchHeader { length: 41, count: 1, first: 9 };
        let bytes = header.encode(1);
        assert_eq!(BatchHeader::parse(&bytes, 1), Ok(header));
        assert_eq!(BatchHeader::parse(&bytes, 2), Err(Damage::Checksum));
        assert_eq!(header.span(), 24 + 48);
    }

    #[test]
    fn a_newer_format_is_refused_with_its_number() {
        let header = FileHeader { kind: FileKind::Log, format: FORMAT, revision: 3, salt: 4, count: 0 };
        assert_eq!(FileHeader::parse(FileKind::Log, &header.encode()), Ok(header));
        assert_eq!(FileHeader::parse(FileKind::Base, &header.encode()), Err(Damage::Other));
        let newer = FileHeader { format: FORMAT + 1, ..header };
        assert_eq!(FileHeader::parse(FileKind::Log, &newer.encode()), Err(Damage::Newer(FORMAT + 1)));
    }
}
