//! What the machine says of itself. The parsers are pure; [`read`] opens the files.

use std::path::Path;

/// Facts that stay while the machine runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub cpus: u64,
    pub memory_kib: u64,
    /// Huge pages by size in KiB, in KiB.
    pub huge_pages: Vec<(u64, u64)>,
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel: String,
    pub os_image: String,
    pub architecture: String,
}

/// What changes from minute to minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    pub memory_available: u64,
    pub disk_total: u64,
    pub disk_available: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    pub pids: u64,
    pub max_pids: u64,
}

/// A value of `/proc/meminfo` in KiB.
pub fn meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|l| l.strip_prefix(key).is_some_and(|rest| rest.starts_with(':')))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// How many processors `/proc/cpuinfo` lists.
pub fn cpus(text: &str) -> u64 {
    text.lines().filter(|l| l.split(':').next().is_some_and(|k| k.trim() == "processor")).count() as u64
}

/// The name of the system in `/etc/os-release`.
pub fn os_image(text: &str) -> String {
    let value = text.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="));
    value.map_or_else(|| "Linux".to_owned(), |v| v.trim_matches(['"', '\'']).to_owned())
}

/// Processes in `/proc/loadavg` (`0.1 0.2 0.3 2/345 6789`).
pub fn processes(text: &str) -> u64 {
    let field = text.split_whitespace().nth(3).and_then(|f| f.split_once('/'));
    field.and_then(|(_, total)| total.parse().ok()).unwrap_or(0)
}

/// The architecture as Kubernetes names it.
pub fn architecture(machine: &str) -> &str {
    match machine {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "armv7l" | "armv6l" => "arm",
        "ppc64le" => "ppc64le",
        other => other,
    }
}

fn text(path: &str) -> String {
    std::fs::read_to_string(path).map(|t| t.trim().to_owned()).unwrap_or_default()
}

/// Reads the machine's facts.
pub fn read() -> Machine {
    let memory = text("/proc/meminfo");
    let uname = rustix::system::uname();
    let mut huge_pages = Vec::new();
    for entry in std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let size = name.strip_prefix("hugepages-").and_then(|n| n.strip_suffix("kB")).and_then(|n| n.parse().ok());
        let count = text(&entry.path().join("nr_hugepages").to_string_lossy()).parse::<u64>().unwrap_or(0);
        huge_pages.extend(size.map(|size: u64| (size, size.saturating_mul(count))));
    }
    huge_pages.sort_unstable();
    let machine_id = text("/etc/machine-id");
    let system_uuid = text("/sys/class/dmi/id/product_uuid");
    Machine {
        cpus: cpus(&text("/proc/cpuinfo")).max(1),
        memory_kib: meminfo(&memory, "MemTotal").unwrap_or(0),
        huge_pages,
        system_uuid: if system_uuid.is_empty() { machine_id.clone() } else { system_uuid },
        machine_id,
        boot_id: text("/proc/sys/kernel/random/boot_id"),
        kernel: uname.release().to_string_lossy().into_owned(),
        os_image: os_image(&text("/etc/os-release")),
        architecture: architecture(&uname.machine().to_string_lossy()).to_owned(),
    }
}

/// Reads what changes; `root` is the directory whose disk counts.
pub fn pressure(root: &Path) -> Pressure {
    let disk = rustix::fs::statvfs(root).ok();
    let blocks =
        |count: fn(&rustix::fs::StatVfs) -> u64| disk.as_ref().map_or(0, |d| count(d).saturating_mul(d.f_frsize));
    Pressure {
        memory_available: meminfo(&text("/proc/meminfo"), "MemAvailable").unwrap_or(0).saturating_mul(1024),
        disk_total: blocks(|d| d.f_blocks),
        disk_available: blocks(|d| d.f_bavail),
        inodes: disk.as_ref().map_or(0, |d| d.f_files),
        inodes_free: disk.as_ref().map_or(0, |d| d.f_favail),
        pids: processes(&text("/proc/loadavg")),
        max_pids: text("/proc/sys/kernel/pid_max").parse().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel() {
        let memory = "MemTotal:       24681824 kB\nMemFree:        1 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(meminfo(memory, "MemTotal"), Some(24_681_824));
        assert_eq!(meminfo(memory, "Mem"), None);
        assert_eq!(cpus("processor\t: 0\nmodel name\t: processor x\nprocessor\t: 1\n"), 2);
        assert_eq!(
            os_image("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            "Debian GNU/Linux 12 (bookworm)"
        );
        assert_eq!(processes("0.00 0.01 0.05 2/345 6789\n"), 345);
        assert_eq!(architecture("x86_64"), "amd64");
    }

    #[test]
    fn this_machine_has_something() {
        let machine = read();
        assert!(machine.cpus > 0 && machine.memory_kib > 0 && !machine.kernel.is_empty());
        assert!(pressure(Path::new("/")).disk_total > 0);
    }
}
