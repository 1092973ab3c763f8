//! Reading the files from which a container's variables come.

use std::io::{self, Read as _};
use std::path::Path;

use api::types::core::v1::Container;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use super::Start;
use crate::container::env::Files;
use crate::container::env_file::MAX_SIZE;
use crate::context::blocking;
use crate::volume::beneath::Dir;

impl Start {
    /// The files that the container's environment refers to; one that cannot be read has no text. Who
    /// writes them may do as it likes with its volume: nothing is read from beyond it.
    pub(super) async fn env_files(&self, container: &Container) -> Files {
        let sources = container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()?.file_key_ref.as_ref());
        let wanted: Vec<_> = sources.map(|r| (r.volume_name.clone(), r.path.clone())).collect();
        if wanted.is_empty() {
            return Files::new();
        }
        let volumes = self.pod.spec().volumes.as_deref().unwrap_or_default();
        let place = |name: &String| volumes.iter().find(|v| v.name == *name);
        let places: Vec<_> = wanted
            .into_iter()
            .filter_map(|key| place(&key.0).map(|v| (self.ctx.layout.volume(&self.pod.uid, v), key)))
            .collect();
        let all = move || {
            places
                .into_iter()
                .map(|(root, key)| {
                    let bytes = Dir::open(&root).and_then(|dir| read(&dir, key.1.as_ref()));
                    (key, bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()))
                })
                .collect()
        };
        blocking(all).await.unwrap_or_default()
    }
}

/// A file that is one, beneath `dir`, and not longer than it may be.
fn read(dir: &Dir, path: &Path) -> io::Result<Vec<u8>> {
    // A pipe would keep us waiting for whoever writes into it.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = std::fs::File::from(openat2(dir.fd(), path, flags, Mode::empty(), within)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut out = Vec::new();
    file.take(MAX_SIZE + 1).read_to_end(&mut out)?;
    if out.len() as u64 > MAX_SIZE {
        return Err(io::Error::other("too long"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_volume_are_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("volume")).expect("made");
        std::fs::write(at("secret"), "x").expect("written");
        std::fs::write(at("volume/ok"), "A='1'").expect("written");
        std::fs::write(at("volume/long"), vec![b'#'; (64 << 10) + 1]).expect("written");
        std::os::unix::fs::symlink(at("secret"), at("volume/link")).expect("linked");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("volume/pipe"),
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .expect("made");
        let volume = Dir::open(&at("volume")).expect("opened");
        assert_eq!(read(&volume, Path::new("ok")).expect("read"), b"A='1'");
        for path in ["long", "link", "pipe", ".", "../secret", "none"] {
            assert!(read(&volume, Path::new(path)).is_err(), "{path}");
        }
    }
}
