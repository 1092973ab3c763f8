//! Mounting, as far as volumes need it; tests put a recorder in its place.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

/// What volumes ask of the kernel.
pub trait Mounts: Send + Sync + 'static {
    /// A file system in memory at `target`.
    fn tmpfs(&self, target: &Path, size: Option<u64>) -> io::Result<()>;
    /// What is open as `source` also at `target`.
    fn bind(&self, source: BorrowedFd<'_>, target: &Path) -> io::Result<()>;
    /// Removes what is mounted at `target`, now or as soon as nobody uses it.
    fn unmount(&self, target: &Path) -> io::Result<()>;
    /// What is mounted beneath `root`, the deepest first.
    fn beneath(&self, root: &Path) -> io::Result<Vec<PathBuf>>;
}

/// The kernel's mounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelMounts;

impl Mounts for KernelMounts {
    fn tmpfs(&self, target: &Path, size: Option<u64>) -> io::Result<()> {
        let options = match size {
            Some(size) => format!("mode=0777,size={size}"),
            None => "mode=0777".into(),
        };
        let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
        Ok(rustix::mount::mount("tmpfs", target, "tmpfs", MountFlags::empty(), options.as_c_str())?)
    }

    fn bind(&self, source: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
        // By descriptor: the path that led to it may mean something else by now.
        let source = format!("/proc/self/fd/{}", source.as_raw_fd());
        Ok(rustix::mount::mount_bind(source, target)?)
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        match rustix::mount::unmount(target, UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::BUSY) => {
                Ok(rustix::mount::unmount(target, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn beneath(&self, root: &Path) -> io::Result<Vec<PathBuf>> {
        let text = std::fs::read_to_string("/proc/self/mountinfo")?;
        let mut found: Vec<PathBuf> = text
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .map(unescape)
            .filter(|path| path.starts_with(root) && path != root)
            .collect();
        found.sort_by_key(|p| std::cmp::Reverse(p.components().count()));
        Ok(found)
    }
}

/// The kernel writes blanks and backslashes of paths in octal.
fn unescape(text: &str) -> PathBuf {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|c| u8::from_str_radix(c, 8).ok());
        match code {
            Some(code) => {
                out.push(char::from(code));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    PathBuf::from(out)
}

/// Records what was asked and mounts nothing.
#[cfg(test)]
#[derive(Clone, Default)]
pub struct FakeMounts {
    mounted: std::sync::Arc<parking_lot::Mutex<Vec<PathBuf>>>,
}

#[cfg(test)]
impl Mounts for FakeMounts {
    fn tmpfs(&self, target: &Path, _: Option<u64>) -> io::Result<()> {
        self.mounted.lock().push(target.to_owned());
        Ok(())
    }

    fn bind(&self, _: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
        self.mounted.lock().push(target.to_owned());
        Ok(())
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        self.mounted.lock().retain(|p| p != target);
        Ok(())
    }

    fn beneath(&self, root: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found: Vec<_> = self.mounted.lock().iter().filter(|p| p.starts_with(root)).cloned().collect();
        found.sort_by_key(|p| std::cmp::Reverse(p.components().count()));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_mount_table() {
        assert_eq!(unescape("/a\\040b\\134c"), PathBuf::from("/a b\\c"));
        assert_eq!(unescape("/plain"), PathBuf::from("/plain"));
    }
}
