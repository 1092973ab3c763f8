//! Overlays of more layers than `mount(2)` can be told: it takes one page of options, and what is
//! longer it cuts off.
//!
//! ```text
//!  mount(2)    "index=off,lowerdir=/…/1/fs:/…/2/fs:…"       4095 bytes
//!  fsconfig    index=off   lowerdir+=/…/1/fs   lowerdir+=/…/2/fs   …   one call each, Linux 6.8
//! ```

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

/// The longest options that `mount(2)` takes whole on every machine.
const LONGEST: usize = 4095;

/// True where `mount(2)` does not cut the options off.
pub fn fits(options: &str) -> bool {
    options.len() <= LONGEST
}

/// Why a mount whose options are too long is not tried.
pub fn too_long(kind: &str, options: &str) -> io::Error {
    let length = options.len();
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "{length} bytes of options for a file system of type {kind} are more than the {LONGEST} that the kernel takes"
        ),
    )
}

/// Mounts an overlay option by option and layer by layer. Nothing is at `target` before all is told.
pub fn mount(source: &str, target: &Path, flags: MountFlags, options: &[&str]) -> io::Result<()> {
    let old = |error: Errno| match error {
        // The call, or the word, is newer than the kernel.
        Errno::NOSYS | Errno::INVAL => {
            let why = too_long("overlay", &options.join(","));
            io::Error::new(why.kind(), format!("{why}; Linux 6.8 and newer take the layers one by one"))
        }
        error => error.into(),
    };
    let made = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).map_err(old)?;
    let fs = made.as_fd();
    fsconfig_set_string(fs, "source", source)?;
    for option in options {
        match option.split_once('=') {
            Some(("lowerdir", all)) => {
                for layer in layers(all)? {
                    fsconfig_set_string(fs, "lowerdir+", layer).map_err(old)?;
                }
            }
            Some((key, value)) => fsconfig_set_string(fs, key, value)?,
            None => fsconfig_set_flag(fs, *option)?,
        }
    }
    if flags.contains(MountFlags::RDONLY) {
        fsconfig_set_flag(fs, "ro")?;
    }
    fsconfig_create(fs)?;
    let mount = fsmount(fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes(flags))?;
    Ok(move_mount(&mount, "", rustix::fs::CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// The paths in a `lowerdir`: a colon separates them, unless a backslash is before it.
fn layers(text: &str) -> io::Result<Vec<String>> {
    let mut all = vec![String::new()];
    let mut rest = text.chars();
    while let Some(next) = rest.next() {
        let part = match next {
            ':' => {
                all.push(String::new());
                continue;
            }
            '\\' => rest.next(),
            other => Some(other),
        };
        all.last_mut().map(|last| last.extend(part)).unwrap_or_default();
    }
    if all.iter().any(String::is_empty) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a layer of an overlay has no path"));
    }
    Ok(all)
}

fn attributes(flags: MountFlags) -> MountAttrFlags {
    let known = [
        (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
        (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ];
    known.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, attribute)| *attribute).collect()
}

#[cfg(test)]
mod tests {
    use super::super::mounts::{KernelMounts, Mounts};
    use super::*;

    #[test]
    fn layers_are_told_apart() {
        assert_eq!(layers("/a").expect("layers"), ["/a"]);
        assert_eq!(layers(r"/a:/b\:c:/d\\e").expect("layers"), ["/a", "/b:c", r"/d\e"]);
        for bad in ["", "/a::/b", "/a:", r"\"] {
            assert!(layers(bad).is_err(), "{bad:?}");
        }
        let flags = MountFlags::RDONLY | MountFlags::NODEV;
        assert_eq!(attributes(flags), MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV);
    }

    #[test]
    fn options_that_would_be_cut_are_refused() {
        let target = tempfile::tempdir().expect("a directory");
        // Cut off, this would be a file system in memory of the size that is first.
        let options = vec!["size=4096".to_owned(); 500];
        let error = KernelMounts.mount("tmpfs", "tmpfs", target.path(), &options).expect_err("too long");
        let text = "4999 bytes of options for a file system of type tmpfs are more than the 4095 that the kernel takes";
        assert_eq!(error.to_string(), text);
    }

    /// `cargo test -p kubelet real -- --ignored`
    #[test]
    #[ignore = "needs root"]
    fn real_overlays_have_many_layers() {
        let root = tempfile::tempdir().expect("a directory");
        let paths: Vec<_> = (0..100).map(|n| root.path().join(format!("{n}-{}", "x".repeat(60)))).collect();
        for (n, path) in paths.iter().enumerate() {
            std::fs::create_dir(path).expect("made");
            std::fs::write(path.join("top"), n.to_string()).expect("written");
            std::fs::write(path.join(n.to_string()), "").expect("written");
        }
        let target = root.path().join("target");
        std::fs::create_dir(&target).expect("made");
        let all: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
        let options = ["index=off".to_owned(), format!("lowerdir={}", all.join(":")), "ro".to_owned()];
        match KernelMounts.mount("overlay", "overlay", &target, &options) {
            // An older kernel, which is said.
            Err(error) if error.to_string().contains("; Linux 6.8 and newer take") => return,
            mounted => mounted.expect("mounted"),
        }
        let seen = std::fs::read_dir(&target).expect("read").count();
        let top = std::fs::read_to_string(target.join("top")).expect("read");
        let written = std::fs::write(target.join("new"), "").map_err(|e| e.kind());
        for mount in KernelMounts.beneath(root.path()).expect("read") {
            KernelMounts.unmount(&mount).expect("unmounted");
        }
        assert_eq!((seen, top.as_str(), written), (101, "0", Err(io::ErrorKind::ReadOnlyFilesystem)));
    }
}
