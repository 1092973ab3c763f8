//! Reads a container's log from where it is wanted, and goes on while the container writes, also
//! when the file is rotated.
//!
//! ```text
//!  0.log.20260701-120000   0.log.20260702-120000   0.log
//!       (oldest)                                  (written now)
//!  read to its end ───────► its successor ───────► wait for more, or for the container's end
//! ```
//!
//! Files are opened beneath the directory of all logs without following any link: a container that
//! can write to its log directory cannot make the kubelet read another file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags, ResolveFlags, inotify};
use stdx::{ClockExt, SharedClock};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::line::{Options, Printer};
use super::tail::{self, Tail};
use crate::volume::beneath::Dir;

/// How much is read at a time.
const CHUNK: usize = 64 << 10;
/// More of one line is left out: the runtime cuts lines far earlier.
const MAX_LINE: usize = 1 << 20;
/// How often a log is looked at where the kernel cannot tell of changes.
const RECHECK: Duration = Duration::from_secs(1);
/// How often otherwise, should the kernel have kept something to itself.
const RECHECK_WATCHED: Duration = Duration::from_secs(10);

/// A log being read.
#[derive(Debug)]
pub struct Reader {
    dir: Dir,
    name: OsString,
    file: File,
    /// Only so much of the file is read; what is written later is for those who follow.
    left: Option<u64>,
    /// The file to go on with: `file` has a successor, so what it has now is all it will have.
    next: Option<File>,
    follow: bool,
    printer: Printer,
    /// The begin of a line that has no end yet.
    rest: Vec<u8>,
    /// The rest of a line that is too long is skipped.
    skipping: bool,
    /// What was read last; without room while there is nothing to read: thousands may follow what is silent.
    chunk: Vec<u8>,
}

/// What a step found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There may be more.
    More,
    /// Nothing more for now.
    End,
    /// Nothing more ever: as many bytes as were wanted are printed.
    Full,
}

impl Reader {
    /// Opens the log at `path`, which must be beneath `root`, where its wanted part begins.
    ///
    /// # Errors
    /// When it is not there, not beneath the root, behind a link, or no file.
    pub fn open(root: &Path, path: &Path, options: &Options) -> io::Result<Self> {
        let outside = || io::Error::new(io::ErrorKind::NotFound, format!("{} is no container log", path.display()));
        let relative = path.strip_prefix(root).map_err(|_| outside())?;
        let name = relative.file_name().ok_or_else(outside)?.to_owned();
        let root = Dir::open(root)?;
        let dir = match relative.parent() {
            Some(parent) if parent != Path::new("") => root.sub(parent)?,
            _ => root,
        };
        let mut file = open(&dir, &name)?;
        let size = file.metadata()?.len();
        let mut from = 0;
        if let Some(lines) = options.tail {
            let tail = Tail { lines, stream: options.stream };
            from = tail::start(|buffer, at| file.read_exact_at(buffer, at), size, tail, tail::BLOCK)?;
            file.seek(SeekFrom::Start(from))?;
        }
        Ok(Self {
            dir,
            name,
            file,
            left: (!options.follow).then_some(size.saturating_sub(from)),
            next: None,
            follow: options.follow,
            printer: Printer::new(options.clone()),
            rest: Vec::new(),
            skipping: false,
            chunk: Vec::new(),
        })
    }

    /// Reads a little further; appends what is to be printed.
    pub fn step(&mut self, out: &mut Vec<u8>) -> io::Result<Step> {
        if self.printer.is_full() {
            return Ok(Step::Full);
        }
        let mut chunk = std::mem::take(&mut self.chunk);
        chunk.resize(CHUNK, 0);
        let wanted = self.left.map_or(CHUNK, |left| usize::try_from(left).unwrap_or(CHUNK).min(CHUNK));
        let size = self.file.read(&mut chunk[..wanted])?;
        if let Some(left) = &mut self.left {
            *left -= size as u64;
        }
        if size > 0 {
            // Where much is read, more follows in the same piece.
            out.reserve(if size == CHUNK { 2 * CHUNK } else { size });
            self.take(&chunk[..size], out);
            self.chunk = chunk;
            return Ok(if self.printer.is_full() { Step::Full } else { Step::More });
        }
        if !self.follow {
            self.finish(out);
            return Ok(Step::End);
        }
        if let Some(next) = self.next.take() {
            self.finish(out);
            self.file = next;
            return Ok(Step::More);
        }
        // Its last words may have been written between the read above and now: it is read once more.
        self.next = self.successor()?;
        if self.next.is_none() && self.file.metadata()?.len() < self.file.stream_position()? {
            // Cut by somebody in place.
            self.file.seek(SeekFrom::Start(0))?;
            self.rest.clear();
            return Ok(Step::More);
        }
        Ok(if self.next.is_some() { Step::More } else { Step::End })
    }

    fn take(&mut self, mut chunk: &[u8], out: &mut Vec<u8>) {
        while let Some(at) = memchr::memchr(b'\n', chunk) {
            let (line, after) = (&chunk[..at], &chunk[at + 1..]);
            chunk = after;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if self.rest.is_empty() {
                self.printer.print(line, out);
            } else {
                self.rest.extend_from_slice(line);
                self.printer.print(&std::mem::take(&mut self.rest), out);
            }
            if self.printer.is_full() {
                return;
            }
        }
        if self.skipping {
            return;
        }
        self.rest.extend_from_slice(chunk);
        if self.rest.len() > MAX_LINE {
            self.printer.print(&std::mem::take(&mut self.rest), out);
            self.skipping = true;
        }
    }

    /// Prints a last line that has no end.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.skipping = false;
        if !self.rest.is_empty() {
            self.printer.print(&std::mem::take(&mut self.rest), out);
        }
    }

    /// The file that was begun after the one that is open; `None` while that is the newest. One that nothing is
    /// in yet does not count: who writes may have made it and still be at the old one.
    fn successor(&self) -> io::Result<Option<File>> {
        let id = |file: &File| file.metadata().map(|m| (m.dev(), m.ino()));
        let ours = id(&self.file)?;
        let current = match open(&self.dir, &self.name) {
            Ok(file) if id(&file)? == ours => return Ok(None),
            Ok(file) => Some(file).filter(|file| file.metadata().is_ok_and(|found| found.len() > 0)),
            // Moved away, and nothing is there yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mut prefix = self.name.clone();
        prefix.push(".");
        let starts = |name: &OsStr| name.as_encoded_bytes().starts_with(prefix.as_encoded_bytes());
        let mut moved: Vec<OsString> =
            self.dir.list()?.into_iter().map(|(name, _)| name).filter(|n| starts(n)).collect();
        // Their names sort as their times do.
        moved.sort();
        // One that vanishes meanwhile was the oldest.
        let mut files = moved.iter().filter_map(|name| open(&self.dir, name).ok()).collect::<Vec<_>>();
        // If ours is gone, all that are left are newer.
        let newer = files.iter().position(|f| id(f).is_ok_and(|i| i == ours)).map_or(0, |at| at + 1);
        Ok(if newer < files.len() { Some(files.swap_remove(newer)) } else { current })
    }
}

fn open(dir: &Dir, name: &OsStr) -> io::Result<File> {
    // Not blocking: a pipe in the log's place must not hold us up.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = File::from(rustix::fs::openat2(dir.fd(), Path::new(name), flags, Mode::empty(), within)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is no file", name.display())));
    }
    Ok(file)
}

/// The kernel's word that something in a directory changed.
struct Changes {
    fd: AsyncFd<OwnedFd>,
}

impl Changes {
    fn of(dir: &Dir) -> io::Result<Self> {
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let flags = inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::ONLYDIR;
        // The directory that is open, whatever has its path now.
        inotify::add_watch(&fd, format!("/proc/self/fd/{}", dir.fd().as_raw_fd()), flags)?;
        Ok(Self { fd: registered(fd)? })
    }

    /// Ends when something changed since it last ended.
    async fn next(&self) -> io::Result<()> {
        let mut ready = self.fd.readable().await?;
        let mut buffer = [0u8; 4096];
        loop {
            match rustix::io::read(self.fd.get_ref(), &mut buffer) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        ready.clear_ready();
        Ok(())
    }
}

/// Sends the log in pieces. Ends when all is sent; for one who follows, when `ended` has ended (the
/// container, or this server) and what was written until then is sent; and when nobody takes the
/// pieces any more. The channel's bound is the bound of what waits to be sent.
///
/// # Errors
/// When the log cannot be read on.
pub async fn send(
    mut reader: Reader,
    ended: impl Future<Output = ()> + Send,
    clock: &SharedClock,
    out: mpsc::Sender<Bytes>,
) -> io::Result<()> {
    // Watching begins before reading: what is written in between is not missed.
    let changes = if reader.follow { watch(&reader.dir) } else { None };
    let recheck = if changes.is_some() { RECHECK_WATCHED } else { RECHECK };
    let mut ended = std::pin::pin!(ended);
    let mut is_over = !reader.follow;
    loop {
        loop {
            let work = move || {
                let mut piece = Vec::new();
                let mut step = reader.step(&mut piece);
                // Threads are changed for no less.
                while piece.len() < CHUNK && matches!(step, Ok(Step::More)) {
                    step = reader.step(&mut piece);
                }
                (reader, piece, step)
            };
            let (back, piece, step) = tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?;
            reader = back;
            if !piece.is_empty() && out.send(piece.into()).await.is_err() {
                return Ok(());
            }
            match step? {
                Step::More => {}
                Step::Full => return Ok(()),
                Step::End => break,
            }
        }
        if is_over {
            let mut last = Vec::new();
            reader.finish(&mut last);
            if !last.is_empty() {
                // A reader who is gone misses nothing.
                let _ = out.send(last.into()).await;
            }
            return Ok(());
        }
        let changed = async {
            match &changes {
                Some(changes) => changes.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changed => changed?,
            () = clock.sleep(recheck) => {}
            () = &mut ended => is_over = true,
            () = out.closed() => return Ok(()),
        }
    }
}

#[allow(unsafe_code, reason = "the event loop must be promised that a descriptor stays open")]
pub(crate) fn registered(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is an open descriptor that nothing else closes; it is moved in, always
    // answers with the same number, and is closed only when the `AsyncFd` gives it up or is dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(Into::into)
}

fn watch(dir: &Dir) -> Option<Changes> {
    match Changes::of(dir) {
        Ok(changes) => Some(changes),
        Err(error) => {
            tracing::debug!(%error, "the kernel does not tell when logs change; looking now and then");
            None
        }
    }
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
