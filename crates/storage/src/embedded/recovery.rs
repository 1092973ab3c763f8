//! Opening a folder: which files count, what a crash left behind, what is corruption.
//!
//! ```text
//!  format │ base-4 │ log-1 (revisions 1…3) │ log-4 (4…9) │ log-10 (10…, open)
//!           state     not needed any more,    4 is in the   its tail may be torn
//!           at 4      removed                 base: skipped
//! ```
//!
//! Everything was synced before something later was written, so only the last batch of the last log
//! can be half there after a crash. All other damage is corruption: the start is refused, and nothing
//! is changed.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use stdx::clock::Instant;

use super::base::{self, Base};
use super::files::Files;
use super::place::{DataFile, Place, Window, damaged};
use super::record::{
    ALIGN, BATCH_HEADER, BatchHeader, Damage, FILE_HEADER, FORMAT, FileHeader, FileKind, MAX_BATCH, Record,
};
use crate::mvcc::{Entries, Mvcc, Versioned};
use crate::{Error, HistoryBounds, Revision};

const FORMAT_FILE: &str = "format";
const TEMPORARY: &str = "tmp-";

/// One log file.
#[derive(Debug)]
pub(crate) struct Log {
    pub data: Arc<DataFile>,
    /// The first revision that may be in it.
    pub first: Revision,
    pub salt: u64,
    /// Bytes that count; the file ends here.
    pub end: u64,
}

/// What a folder holds.
pub(crate) struct Recovered {
    pub state: Mvcc<Place>,
    pub base: Option<Base>,
    /// Oldest first; the last one is written to. Never empty.
    pub logs: Vec<Log>,
}

fn log_name(first: Revision) -> String {
    format!("log-{first:020}")
}

fn parse_log_name(name: &str) -> Option<Revision> {
    name.strip_prefix("log-").filter(|digits| digits.len() == 20)?.parse().ok()
}

/// A new, empty log. It is durable, and batches may follow.
pub(crate) fn create_log(files: &dyn Files, first: Revision, salt: u64) -> Result<Log, Error> {
    let name = log_name(first);
    let temporary = format!("{TEMPORARY}{name}");
    let file = files.create(&temporary)?;
    let header = FileHeader { kind: FileKind::Log, format: FORMAT, revision: first, salt, count: 0 };
    file.write_all_at(&header.encode(), 0)?;
    file.sync()?;
    files.rename(&temporary, &name)?;
    files.sync_folder()?;
    Ok(Log { data: Arc::new(DataFile { name, file }), first, salt, end: FILE_HEADER as u64 })
}

/// Makes the folder a store that continues after `revision`. The format file comes last: a folder
/// without it has never been used.
pub(crate) fn create_store(files: &dyn Files, revision: Revision, salt: u64) -> Result<Log, Error> {
    let log = create_log(files, revision + 1, salt)?;
    let temporary = format!("{TEMPORARY}{FORMAT_FILE}");
    let file = files.create(&temporary)?;
    file.write_all_at(format!("pintle store, format {FORMAT}\n").as_bytes(), 0)?;
    file.sync()?;
    files.rename(&temporary, FORMAT_FILE)?;
    files.sync_folder()?;
    Ok(log)
}

/// True when the folder has been used as a store.
pub(crate) fn is_store(files: &dyn Files) -> Result<bool, Error> {
    Ok(files.list()?.iter().any(|name| name == FORMAT_FILE))
}

/// Refuses a store of a newer format, and one whose format cannot be read. A folder that has never
/// been used as a store is fine.
pub(crate) fn check_format(files: &dyn Files) -> Result<(), Error> {
    let mut bytes = [0; 64];
    let length = match files.open(FORMAT_FILE) {
        Ok(file) => file.read_at(&mut bytes, 0)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let text = String::from_utf8_lossy(&bytes[..length]);
    let number = text.trim_end().strip_prefix("pintle store, format ").and_then(|n| n.parse().ok());
    match number {
        Some(found) if found > FORMAT => Err(Error::Format { found, known: FORMAT }),
        Some(_) => Ok(()),
        None => Err(damaged(FORMAT_FILE, 0, Damage::Other, "the format of the store")),
    }
}

/// Opens the folder, creating the store if it has never been used.
pub(crate) fn recover(files: &dyn Files, bounds: HistoryBounds, salt: u64, now: Instant) -> Result<Recovered, Error> {
    let mut names = files.list()?;
    names.sort_unstable();
    for name in names.iter().filter(|n| n.starts_with(TEMPORARY)) {
        files.remove(name)?;
    }
    let firsts: Vec<_> = names.iter().filter_map(|n| parse_log_name(n)).collect();
    let bases: Vec<_> = names.iter().filter_map(|n| base::parse_name(n)).collect();
    if !names.iter().any(|n| n == FORMAT_FILE) {
        let unused = bases.is_empty() && (firsts.is_empty() || firsts == [1]);
        if !unused || (firsts == [1] && files.open(&log_name(1))?.size()? > FILE_HEADER as u64) {
            return Err(damaged(FORMAT_FILE, 0, Damage::Short, "the format of the store"));
        }
        let log = create_store(files, 0, salt)?;
        return Ok(Recovered { state: Mvcc::new(Entries::new(), 0, bounds), base: None, logs: vec![log] });
    }
    check_format(files)?;

    let (base, entries) = match bases.last() {
        Some(&revision) => {
            let (base, entries) = base::read(files, &base::name(revision))?;
            if base.revision != revision {
                return Err(damaged(&base.data.name, 0, Damage::Other, "the header"));
            }
            (Some(base), entries)
        }
        None => (None, Entries::new()),
    };
    let start = base.as_ref().map_or(0, |b| b.revision);
    let mut state = Mvcc::new(entries, start, bounds);

    // A log is needed unless all of its revisions are in the base.
    let needed = firsts.iter().rposition(|first| *first <= start + 1);
    let Some(needed) = needed else {
        let what = format!("revision {}", start + 1);
        return Err(damaged(&log_name(start + 1), 0, Damage::Short, &what));
    };
    let mut logs: Vec<Log> = Vec::new();
    let mut next = firsts[needed];
    for (index, &first) in firsts.iter().enumerate().skip(needed) {
        let log = replay(files, first, &mut next, index + 1 == firsts.len(), &mut |record, place| {
            if record.revision > start {
                take(&mut state, record, place, now);
            }
        })?;
        logs.push(log);
    }
    if next <= start {
        let name = logs.last().map_or(String::new(), |l| l.data.name.clone());
        return Err(damaged(&name, 0, Damage::Short, &format!("revision {start}")));
    }
    for name in firsts[..needed].iter().map(|first| log_name(*first)) {
        files.remove(&name)?;
    }
    for name in bases.iter().rev().skip(1).map(|revision| base::name(*revision)) {
        files.remove(&name)?;
    }
    Ok(Recovered { state, base, logs })
}

fn take(state: &mut Mvcc<Place>, record: &Record<'_>, place: Place, now: Instant) {
    let cost = record.value.map_or(0, <[u8]>::len);
    let key = state.current().get_key_value(record.key).map(|(key, _)| key.clone());
    let key = key.unwrap_or_else(|| Bytes::copy_from_slice(record.key));
    let after = record.value.is_some().then_some(Versioned {
        value: place,
        create: record.create,
        modified: record.revision,
        version: record.version,
    });
    state.apply(key, after, record.revision, now, cost);
}

/// What lies at a place of a log where a batch may begin.
enum Found {
    Batch(BatchHeader),
    End,
    Bad(Damage),
}

fn look(window: &mut Window<'_>, log: (&Log, u64), next: Revision) -> Result<Found, Error> {
    let (log, size) = log;
    if log.end == size {
        return Ok(Found::End);
    }
    let header = match BatchHeader::parse(window.get(log.end, BATCH_HEADER)?, log.salt) {
        Ok(header) if header.first != next => return Ok(Found::Bad(Damage::Other)),
        Ok(header) if header.length as usize > MAX_BATCH => return Ok(Found::Bad(Damage::Lengths)),
        Ok(header) => header,
        Err(damage) => return Ok(Found::Bad(damage)),
    };
    let span = header.span() as usize;
    let bytes = window.get(log.end, span)?;
    if bytes.len() < span {
        return Ok(Found::Bad(Damage::Short));
    }
    let mut rest = &bytes[BATCH_HEADER..BATCH_HEADER + header.length as usize];
    for number in 0..header.count {
        match Record::parse(rest) {
            Ok((record, _)) if record.revision == next + u64::from(number) => rest = &rest[record.encoded_len()..],
            Ok(_) => return Ok(Found::Bad(Damage::Other)),
            Err(damage) => return Ok(Found::Bad(damage)),
        }
    }
    Ok(if rest.is_empty() { Found::Batch(header) } else { Found::Bad(Damage::Lengths) })
}

/// Reads a log that begins with revision `next` and moves `next` on. Only the last one may be torn;
/// it is cut and made durable.
fn replay(
    files: &dyn Files,
    first: Revision,
    next: &mut Revision,
    last: bool,
    apply: &mut dyn FnMut(&Record<'_>, Place),
) -> Result<Log, Error> {
    let name = log_name(first);
    let file = files.open(&name)?;
    let mut window = Window::new(&*file);
    let header = FileHeader::parse(FileKind::Log, window.get(0, FILE_HEADER)?)
        .map_err(|damage| damaged(&name, 0, damage, "the header"))?;
    if header.revision != first || first != *next {
        return Err(damaged(&name, 0, Damage::Other, &format!("revision {next}")));
    }
    let data = Arc::new(DataFile { name: name.clone(), file: file.clone() });
    let mut log = Log { data, first, salt: header.salt, end: FILE_HEADER as u64 };
    let size = file.size()?;
    let mut tail = None;
    loop {
        match look(&mut window, (&log, size), *next)? {
            Found::Batch(batch) => {
                let bytes = window.get(log.end, batch.span() as usize)?;
                let mut at = BATCH_HEADER;
                for _ in 0..batch.count {
                    let broken = |damage| damaged(&name, log.end, damage, &format!("revision {next}"));
                    let (record, _) = Record::parse(&bytes[at..]).map_err(broken)?;
                    let length = record.encoded_len();
                    apply(
                        &record,
                        Place { file: log.data.clone(), offset: log.end + at as u64, length: length as u32 },
                    );
                    at += length;
                }
                *next += u64::from(batch.count);
                tail = Some((log.end, batch));
                log.end += batch.span();
            }
            Found::End => break,
            Found::Bad(damage) => {
                if !last || followed(&mut window, &log, size)? {
                    return Err(damaged(&name, log.end, damage, &format!("revision {next}")));
                }
                tracing::warn!(file = %name, at = log.end, bytes = size - log.end, "cut a write that a crash tore");
                file.set_size(log.end)?;
                break;
            }
        }
    }
    if last {
        settle(&mut window, &log, tail)?;
        files.sync_folder()?;
    }
    Ok(log)
}

/// True when a batch of this log begins anywhere after the damage at its end.
fn followed(window: &mut Window<'_>, log: &Log, size: u64) -> Result<bool, Error> {
    let mut at = log.end + ALIGN as u64;
    while at + BATCH_HEADER as u64 <= size {
        if BatchHeader::parse(window.get(at, BATCH_HEADER)?, log.salt).is_ok() {
            return Ok(true);
        }
        at += ALIGN as u64;
    }
    Ok(false)
}

/// Makes what was read durable before anybody acts on it. The last batch (or
/// mark of a close) may never have been synced; or its sync failed, and the kernel now shows pages as clean that are not on disk: writing the same
/// bytes once more makes this sync answer for them.
fn settle(window: &mut Window<'_>, log: &Log, tail: Option<(u64, BatchHeader)>) -> Result<(), Error> {
    if let Some((at, batch)) = tail {
        let bytes = window.get(at, batch.span() as usize)?.to_vec();
        log.data.file.write_all_at(&bytes, at)?;
    }
    log.data.file.sync()?;
    Ok(())
}
