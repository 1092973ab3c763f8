//! The few file operations the log needs, as a trait, so that tests can put a disk underneath that
//! loses power.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One folder of files. Creating, renaming and removing are durable after [`Files::sync_folder`].
pub(crate) trait Files: Send + Sync + 'static {
    /// The names of all files, in no order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// A new or emptied file.
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>>;
    /// An existing file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn File>>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    fn sync_folder(&self) -> io::Result<()>;
}

/// One file. What was written is durable after [`File::sync`].
pub(crate) trait File: Send + Sync + 'static {
    /// Reads up to `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    fn size(&self) -> io::Result<u64>;
    fn set_size(&self, size: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
}

/// A folder of the machine, held by a lock so that no second process opens it.
pub(crate) struct Folder {
    path: PathBuf,
    /// Released by the kernel when the process ends, however it ends.
    _lock: Option<fs::File>,
}

const LOCK: &str = "lock";

impl Folder {
    /// Creates the folder if need be (its parents too) and takes its lock.
    pub fn lock(path: &Path) -> io::Result<Self> {
        if !path.is_dir() {
            fs::create_dir_all(path)?;
            // The new name must outlive a power loss as well as what will be in the folder.
            if let Some(parent) = path.parent() {
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                fs::File::open(parent)?.sync_all()?;
            }
        }
        let lock = fs::OpenOptions::new().create(true).truncate(false).write(true).open(path.join(LOCK))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: Some(lock) }),
            Err(fs::TryLockError::WouldBlock) => {
                let text = format!("{} is in use by another process", path.display());
                Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
            }
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Folder {
    /// An existing folder that is not a store: where snapshots lie.
    pub fn unlocked(path: &Path) -> io::Result<Self> {
        if !path.is_dir() {
            let text = format!("{} is not a folder", path.display());
            return Err(io::Error::new(io::ErrorKind::NotADirectory, text));
        }
        Ok(Self { path: path.to_owned(), _lock: None })
    }

    /// A store's folder that another process may be using: it is read, and every change to it is
    /// left out. What recovery would change is what a crash left, which reads the same either way.
    pub fn watched(path: &Path) -> io::Result<Watched> {
        Self::unlocked(path).map(Watched)
    }
}

/// A folder that is only looked at.
pub(crate) struct Watched(Folder);

impl Files for Watched {
    fn list(&self) -> io::Result<Vec<String>> {
        self.0.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is not there", self.0.path.join(name).display())))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(WatchedFile(fs::File::open(self.0.path.join(name))?)))
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        Ok(())
    }
}

struct WatchedFile(fs::File);

impl File for WatchedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        File::read_at(&self.0, buffer, offset)
    }

    fn write_all_at(&self, _data: &[u8], _offset: u64) -> io::Result<()> {
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn set_size(&self, _size: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Files for Folder {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            // Names that are not text are not ours.
            if let Ok(name) = entry?.file_name().into_string() {
                if name != LOCK {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        Ok(Arc::new(options.open(self.path.join(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(fs::OpenOptions::new().read(true).write(true).open(self.path.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }
}

impl File for fs::File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match FileExt::read_at(self, &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, data, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
