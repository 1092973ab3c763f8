//! What the machine has and what of it is free, read from the kernel.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::runtime::Runtime;

/// Where to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// `/`, or a directory that looks like it.
    pub root: PathBuf,
    /// A directory on the file system that holds volumes and logs.
    pub data: PathBuf,
    pub images: ImagePlace,
}

/// Where images are, as far as the runtime has told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImagePlace {
    /// Nobody has asked, or it has not answered: nothing is known of their disk.
    #[default]
    Unknown,
    /// It tells of no place of their own: they share the disk of everything else.
    Shared,
    /// A directory on the file system that holds them, which may be that of everything else.
    Folder(PathBuf),
}

/// The disk that holds images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageDisk {
    /// Which it is, or what is free on it, is not known: whoever acts on it does nothing.
    #[default]
    Unknown,
    /// That of everything else.
    Shared,
    Own(Disk),
}

/// What does not change while the machine runs. Amounts are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub cpus: u64,
    pub memory: u64,
    pub swap: u64,
    pub storage: u64,
    /// Bytes in huge pages by the size of the page.
    pub huge_pages: BTreeMap<u64, u64>,
    pub kernel: String,
    /// The kernel enforces AppArmor profiles.
    pub apparmor: bool,
    pub os_image: String,
    pub boot_id: String,
    /// Empty where the firmware names none.
    pub system_uuid: String,
    /// As Go names it: `amd64`.
    pub architecture: &'static str,
    /// As Go names it: `linux`.
    pub operating_system: &'static str,
}

/// A file system's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    pub capacity: u64,
    pub available: u64,
    /// Zero where the file system does not count them.
    pub inodes: u64,
    pub inodes_free: u64,
}

/// What is free now. `None` where the kernel did not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// What there is, free or not; zero where the kernel did not tell.
    pub memory: u64,
    pub memory_available: Option<u64>,
    pub data: Option<Disk>,
    pub images: ImageDisk,
    /// As `memory`.
    pub pids: u64,
    pub pids_free: Option<u64>,
}

impl Levels {
    /// The disk that holds images, where it is known.
    pub fn image_disk(&self) -> Option<Disk> {
        match self.images {
            ImageDisk::Unknown => None,
            ImageDisk::Shared => self.data,
            ImageDisk::Own(disk) => Some(disk),
        }
    }
}

impl Places {
    /// Asks the runtime where images are, unless it has told.
    pub async fn find_images(&mut self, runtime: &dyn Runtime) {
        if matches!(self.images, ImagePlace::Folder(_)) {
            return;
        }
        // One that does not answer now may do so later; until then what was known holds.
        if let Ok(folder) = runtime.image_folder().await {
            self.images = folder.map_or(ImagePlace::Shared, ImagePlace::Folder);
        }
    }

    fn text(&self, path: &str) -> io::Result<String> {
        std::fs::read_to_string(self.root.join(path))
    }

    fn line(&self, path: &str) -> String {
        self.text(path).unwrap_or_default().trim().to_owned()
    }

    /// Reads what stays.
    ///
    /// # Errors
    /// When the amount of memory or of storage cannot be learned: a Node without them would draw
    /// no pods, or too many.
    pub fn machine(&self) -> io::Result<Machine> {
        let text = self.text("proc/meminfo")?;
        let memory = memory(&text);
        let total = memory.get("MemTotal").copied().filter(|t| *t > 0);
        let total = total.ok_or_else(|| io::Error::other("/proc/meminfo tells no MemTotal"))?;
        let cpus = count_ranges(&self.line("sys/devices/system/cpu/online"));
        let here = || std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        Ok(Machine {
            cpus: if cpus == 0 { here() } else { cpus },
            memory: total,
            swap: memory.get("SwapTotal").copied().unwrap_or(0),
            storage: disk(&self.data)?.capacity,
            huge_pages: self.huge_pages(),
            kernel: self.line("proc/sys/kernel/osrelease"),
            apparmor: self.line("sys/module/apparmor/parameters/enabled").starts_with('Y'),
            os_image: os_image(
                &self.text("etc/os-release").or_else(|_| self.text("usr/lib/os-release")).unwrap_or_default(),
            ),
            boot_id: self.line("proc/sys/kernel/random/boot_id"),
            system_uuid: self.line("sys/class/dmi/id/product_uuid").to_ascii_lowercase(),
            architecture: go_architecture(std::env::consts::ARCH),
            operating_system: std::env::consts::OS,
        })
    }

    /// Reads what is free.
    pub fn levels(&self) -> Levels {
        let text = self.text("proc/meminfo").unwrap_or_default();
        let memory = memory(&text);
        let limit: Option<u64> = self.line("proc/sys/kernel/pid_max").parse().ok();
        let used = tasks(&self.line("proc/loadavg"));
        Levels {
            memory: memory.get("MemTotal").copied().unwrap_or(0),
            memory_available: memory.get("MemAvailable").copied(),
            data: disk(&self.data).ok(),
            images: match &self.images {
                ImagePlace::Unknown => ImageDisk::Unknown,
                ImagePlace::Folder(path) if self.images_are_apart() => {
                    disk(path).map_or_else(|_| ImageDisk::Unknown, ImageDisk::Own)
                }
                ImagePlace::Shared | ImagePlace::Folder(_) => ImageDisk::Shared,
            },
            pids: limit.unwrap_or(0),
            pids_free: limit.zip(used).map(|(limit, used)| limit.saturating_sub(used)),
        }
    }

    /// True when images have a disk of their own.
    pub fn images_are_apart(&self) -> bool {
        let device = |path: &Path| path.ancestors().find_map(|p| rustix::fs::stat(p).ok()).map(|stat| stat.st_dev);
        matches!(&self.images, ImagePlace::Folder(images) if device(images) != device(&self.data))
    }

    fn huge_pages(&self) -> BTreeMap<u64, u64> {
        let mut found = BTreeMap::new();
        let base = self.root.join("sys/kernel/mm/hugepages");
        for entry in std::fs::read_dir(&base).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(size) = name.to_str().and_then(huge_page_size) else { continue };
            let count = std::fs::read_to_string(entry.path().join("nr_hugepages")).unwrap_or_default();
            found.insert(size, size.saturating_mul(count.trim().parse().unwrap_or(0)));
        }
        found
    }
}

/// `hugepages-2048kB`.
fn huge_page_size(name: &str) -> Option<u64> {
    let kilobytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Amounts in bytes by name.
fn memory(text: &str) -> BTreeMap<&str, u64> {
    let line = |line: &'_ str| -> Option<(usize, u64)> {
        let colon = line.find(':')?;
        let amount = line[colon + 1..].trim().strip_suffix("kB")?.trim();
        Some((colon, amount.parse::<u64>().ok()?.checked_mul(1024)?))
    };
    text.lines().filter_map(|l| line(l).map(|(colon, amount)| (&l[..colon], amount))).collect()
}

/// How many numbers `0-3,5` names; 0 for anything else.
fn count_ranges(text: &str) -> u64 {
    let part = |part: &str| -> Option<u64> {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high): (u64, u64) = (low.parse().ok()?, high.parse().ok()?);
        high.checked_sub(low)?.checked_add(1)
    };
    text.split(',').try_fold(0u64, |sum, p| sum.checked_add(part(p)?)).unwrap_or(0)
}

/// The number of tasks in `/proc/loadavg`: `0.1 0.2 0.3 2/543 999`.
fn tasks(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

fn os_image(os_release: &str) -> String {
    let value = |key: &str| {
        let line = os_release.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('='))?;
        Some(line.trim().trim_matches(['"', '\'']).to_owned())
    };
    value("PRETTY_NAME").or_else(|| value("NAME")).unwrap_or_else(|| "Linux".into())
}

fn go_architecture(rust: &'static str) -> &'static str {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// The file system that holds `path`, or the nearest directory above it that exists.
pub fn disk(path: &Path) -> io::Result<Disk> {
    let mut at = path;
    let stat = loop {
        match (rustix::fs::statvfs(at), at.parent()) {
            (Err(rustix::io::Errno::NOENT), Some(parent)) => at = parent,
            (result, _) => break result?,
        }
    };
    Ok(Disk {
        capacity: stat.f_blocks.saturating_mul(stat.f_frsize),
        available: stat.f_bavail.saturating_mul(stat.f_frsize),
        inodes: stat.f_files,
        inodes_free: stat.f_ffree,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_read_from_its_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("inside")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let places = Places { root: dir.path().into(), data: dir.path().join("not/yet"), images: ImagePlace::Unknown };
        assert!(places.machine().is_err(), "no memory, no machine");
        write("proc/meminfo", "MemTotal:  2048 kB\nMemAvailable: 1024 kB\nSwapTotal: 4 kB\nHugePages_Total: 3\n");
        write("sys/devices/system/cpu/online", "0-3,6\n");
        write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "2\n");
        write("etc/os-release", "NAME=x\nPRETTY_NAME=\"Some Linux 1\"\n");
        write("proc/sys/kernel/random/boot_id", "b\n");
        write("proc/sys/kernel/pid_max", "100\n");
        write("proc/loadavg", "0.1 0.2 0.3 2/43 999\n");
        write("sys/module/apparmor/parameters/enabled", "Y\n");
        let machine = places.machine().expect("read");
        assert_eq!((machine.cpus, machine.memory, machine.swap), (5, 2 << 20, 4096));
        assert!(machine.apparmor);
        assert_eq!(machine.huge_pages, [(2 << 20, 4 << 20)].into());
        assert_eq!((machine.os_image.as_str(), machine.boot_id.as_str()), ("Some Linux 1", "b"));
        assert!(machine.storage > 0);
        let levels = places.levels();
        assert_eq!((levels.memory_available, levels.pids_free), (Some(1 << 20), Some(57)));
        assert!(levels.data.is_some_and(|d| d.capacity == machine.storage));
    }

    #[test]
    fn ranges() {
        for (text, want) in [("0", 1), ("0-1", 2), ("0,2-4", 4), ("", 0), ("x", 0), ("4-2", 0)] {
            assert_eq!(count_ranges(text), want, "{text}");
        }
    }

    #[test]
    fn the_disk_of_images() {
        let dir = tempfile::tempdir().expect("a directory");
        let of = |images| Places { root: "/".into(), data: dir.path().into(), images }.levels();
        assert_eq!(of(ImagePlace::Unknown).images, ImageDisk::Unknown);
        assert_eq!(of(ImagePlace::Unknown).image_disk(), None);
        for shared in [ImagePlace::Shared, ImagePlace::Folder(dir.path().join("images"))] {
            let levels = of(shared);
            assert_eq!(levels.images, ImageDisk::Shared);
            assert!(levels.image_disk().is_some_and(|disk| Some(disk) == levels.data));
        }
        // The kernel's own file system has no room at all.
        let apart = of(ImagePlace::Folder("/proc".into()));
        assert_eq!(apart.image_disk().map(|disk| disk.capacity), Some(0));
        assert!(matches!(apart.images, ImageDisk::Own(_)));
    }
}
