//! Network namespaces: naming one by its path, and doing something in it.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The kernel's number of the file system that namespaces are on.
const NSFS: i64 = 0x6e73_6673;

/// A network namespace that stays as long as this is held.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// The one at `path`.
    ///
    /// # Errors
    /// `NotFound` when there is none: also where a file is left whose namespace went with its machine.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        #[allow(clippy::unnecessary_cast, reason = "how wide the number is depends on the machine")]
        let kind = rustix::fs::fstatfs(&file)?.f_type as i64;
        if kind != NSFS {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is no namespace", path.display())));
        }
        Ok(Self(file))
    }

    /// The one this thread is in.
    ///
    /// # Errors
    /// When `/proc` is not there.
    pub fn own() -> io::Result<Self> {
        Ok(Self(File::open("/proc/thread-self/ns/net")?))
    }

    /// Runs something in it, on a thread of its own: this one stays where it is.
    ///
    /// # Errors
    /// When the namespace cannot be entered, and what `run` fails with.
    pub fn run<T: Send>(&self, run: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, || {
                move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
                run()
            })?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread in a network namespace panicked")))
        })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_namespace() {
        let error = Namespace::open(Path::new("/proc/self/status")).expect_err("a file");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        Namespace::open(Path::new("/proc/self/ns/net")).expect("this thread's own");
        Namespace::own().expect("this thread's own");
    }
}
