//! Reading a log file from where it is wanted, and following it while its container writes, also
//! across rotations.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::line::{Options, Printer};
use crate::context::blocking;

/// How much is read at a time.
const CHUNK: usize = 64 << 10;
/// A line longer than this is passed on in pieces.
const MAX_LINE: usize = 1 << 20;

/// Where the last `lines` lines of a file begin.
pub fn tail_start(file: &mut File, lines: u64) -> io::Result<u64> {
    let end = file.seek(SeekFrom::End(0))?;
    if lines == 0 {
        return Ok(end);
    }
    let (mut position, mut left) = (end, lines);
    let mut buffer = vec![0; CHUNK];
    while position > 0 {
        let size = CHUNK.min(usize::try_from(position).unwrap_or(CHUNK));
        position -= size as u64;
        file.seek(SeekFrom::Start(position))?;
        file.read_exact(&mut buffer[..size])?;
        for (index, byte) in buffer[..size].iter().enumerate().rev() {
            // The newline that ends the file ends its last line; it does not begin another.
            if *byte == b'\n' && position + index as u64 + 1 != end {
                left -= 1;
                if left == 0 {
                    return Ok(position + index as u64 + 1);
                }
            }
        }
    }
    Ok(0)
}

/// A file that is read line by line.
struct Reader {
    file: File,
    /// The begin of a line that has no end yet.
    rest: Vec<u8>,
    printer: Printer,
}

impl Reader {
    /// Reads one chunk into `out`; false at the end of the file.
    fn step(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        let mut buffer = vec![0; CHUNK];
        let size = self.file.read(&mut buffer)?;
        if size == 0 {
            return Ok(false);
        }
        self.rest.extend_from_slice(&buffer[..size]);
        let mut begin = 0;
        while let Some(length) = self.rest[begin..].iter().position(|b| *b == b'\n') {
            self.printer.print(&self.rest[begin..begin + length], out);
            begin += length + 1;
        }
        self.rest.drain(..begin);
        if self.rest.len() > MAX_LINE {
            let line = std::mem::take(&mut self.rest);
            self.printer.print(&line, out);
        }
        Ok(true)
    }
}

/// Changes in the directory of a log.
struct Changes {
    fd: AsyncFd<OwnedFd>,
}

impl Changes {
    fn of(directory: &Path) -> io::Result<Self> {
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let flags = inotify::WatchFlags::MODIFY | inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        inotify::add_watch(&fd, directory, flags)?;
        // SAFETY: the descriptor is owned by the AsyncFd from here on; it stays open and the same
        // until that is dropped, which deregisters it first.
        #[allow(unsafe_code, reason = "tokio asks for a promise about the descriptor that only its owner can give")]
        let fd = unsafe { AsyncFd::register(fd) }?;
        Ok(Self { fd })
    }

    /// Ends when something changed since it last ended.
    async fn next(&self) -> io::Result<()> {
        let mut ready = self.fd.readable().await?;
        let mut buffer = [0u8; 4096];
        loop {
            match rustix::io::read(self.fd.get_ref(), &mut buffer) {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        ready.clear_ready();
        Ok(())
    }
}

/// Sends what is wanted of the log at `path`, in pieces, until all is sent, the reader goes away,
/// or, following, `ended` ends and everything has been read.
pub async fn send(
    path: PathBuf,
    options: Options,
    ended: impl Future<Output = ()> + Send,
    out: mpsc::Sender<Bytes>,
) -> io::Result<()> {
    let directory = path.parent().map(Path::to_path_buf).unwrap_or_default();
    // Watching begins before reading: what is written in between is not missed.
    let changes = if options.follow { Some(Changes::of(&directory)?) } else { None };
    let (first, tail) = (path.clone(), options.tail);
    let opened = move || {
        let mut file = File::open(first)?;
        let start = match tail {
            Some(lines) => tail_start(&mut file, lines)?,
            None => 0,
        };
        file.seek(SeekFrom::Start(start))?;
        io::Result::Ok(file)
    };
    let file = blocking(opened).await??;
    let mut reader = Reader { file, rest: Vec::new(), printer: Printer::new(options) };
    let mut ended = std::pin::pin!(ended);
    let mut over = false;
    loop {
        // To the end of the file.
        loop {
            let step = move || {
                let mut piece = Vec::new();
                let more = reader.step(&mut piece);
                (reader, piece, more)
            };
            let (back, piece, more) = blocking(step).await?;
            reader = back;
            if !piece.is_empty() && out.send(Bytes::from(piece)).await.is_err() {
                return Ok(());
            }
            if reader.printer.is_full() {
                return Ok(());
            }
            if !more? {
                break;
            }
        }
        if let Some(next) = reopened(&path, &reader.file)? {
            reader.file = next;
            reader.rest.clear();
            continue;
        }
        let Some(changes) = &changes else { return Ok(()) };
        if over {
            return Ok(());
        }
        tokio::select! {
            changed = changes.next() => changed?,
            () = &mut ended => over = true,
            () = out.closed() => return Ok(()),
        }
    }
}

/// The file that has the path now, if it is another than the one that is open.
fn reopened(path: &Path, open: &File) -> io::Result<Option<File>> {
    let file = match File::open(path) {
        Ok(file) => file,
        // It was moved away and its successor is not there yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (new, old) = (file.metadata()?, open.metadata()?);
    Ok((new.ino() != old.ino() || new.dev() != old.dev()).then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn line(text: &str) -> String {
        format!("2026-01-01T00:00:00Z stdout F {text}\n")
    }

    #[test]
    fn tails() {
        let mut file = tempfile::tempfile().expect("a file");
        let lines: String = (0..3000).map(|n| line(&format!("{n}"))).collect();
        file.write_all(lines.as_bytes()).expect("written");
        let mut from = |n| {
            let start = tail_start(&mut file, n).expect("read");
            lines[usize::try_from(start).expect("a position")..].lines().count()
        };
        assert_eq!([from(0), from(1), from(2500), from(3000), from(9999)], [0, 1, 2500, 3000, 3000]);
    }

    #[tokio::test]
    async fn a_log_is_followed_across_a_rotation() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("0.log");
        std::fs::write(&path, line("one")).expect("written");
        let (tx, mut rx) = mpsc::channel(8);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let options = Options { follow: true, ..Options::default() };
        let ended = async move { drop(stopped.await) };
        let task = tokio::spawn(send(path.clone(), options, ended, tx));
        let mut next = async || rx.recv().await.map(|b| String::from_utf8_lossy(&b).into_owned());
        assert_eq!(next().await.as_deref(), Some("one\n"));
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).expect("opened");
        file.write_all(line("two").as_bytes()).expect("written");
        assert_eq!(next().await.as_deref(), Some("two\n"));
        std::fs::rename(&path, dir.path().join("0.log.1")).expect("moved");
        std::fs::write(&path, line("three")).expect("written");
        assert_eq!(next().await.as_deref(), Some("three\n"));
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).expect("opened");
        file.write_all(line("last").as_bytes()).expect("written");
        drop(stop);
        assert_eq!(next().await.as_deref(), Some("last\n"));
        assert_eq!(next().await, None);
        task.await.expect("ended").expect("read");
    }

    #[tokio::test]
    async fn a_log_is_read_to_its_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("0.log");
        std::fs::write(&path, [line("a"), line("b"), line("c")].concat()).expect("written");
        let (tx, mut rx) = mpsc::channel(8);
        let options = Options { tail: Some(2), ..Options::default() };
        send(path, options, std::future::pending(), tx).await.expect("read");
        assert_eq!(rx.recv().await.as_deref(), Some(&b"b\nc\n"[..]));
        assert_eq!(rx.recv().await, None);
        let (tx, _rx) = mpsc::channel(8);
        assert!(send(dir.path().join("none"), Options::default(), std::future::pending(), tx).await.is_err());
    }
}
