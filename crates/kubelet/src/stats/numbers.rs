//! What the kernel counts of one cgroup, read from its files: version 1, version 2 and both mounted.

use std::path::{Path, PathBuf};

use crate::cgroup::Hierarchies;

/// The kernel counts processor time for programs in hundredths of a second, on every machine.
const TICK: u64 = 10_000_000;
/// What version 1 shows of memory that has no limit is about this or more.
const NO_LIMIT: u64 = 1 << 60;
/// No file of a cgroup that is read here is larger.
const MAX_FILE: usize = 64 << 10;

/// How much is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// What is used of processors and memory.
    Usage,
    /// Everything.
    All,
}

/// A cgroup's numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Numbers {
    pub cpu: Option<Cpu>,
    pub memory: Option<Memory>,
    pub processes: Option<u64>,
    pub pressure: Pressures,
    /// Bytes read and written, by device (`8:0`).
    pub io: Vec<(String, u64, u64)>,
    /// What it may use; only when all is read.
    pub limits: Limits,
}

/// Processor time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    pub used: u64,
    pub user: u64,
    pub system: u64,
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled: u64,
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub used: u64,
    pub inactive_file: u64,
    pub rss: u64,
    pub cache: u64,
    pub mapped: u64,
    pub swap: u64,
    /// `None` without a limit.
    pub limit: Option<u64>,
    pub swap_limit: Option<u64>,
    pub most: u64,
    pub refused: u64,
    pub faults: u64,
    pub major_faults: u64,
}

impl Memory {
    /// What cannot be given back without pain.
    pub fn working_set(&self) -> u64 {
        self.used.saturating_sub(self.inactive_file)
    }

    /// What may still be used, where there is a limit.
    pub fn available(&self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_sub(self.working_set()))
    }
}

/// What a cgroup may use. `None` is without limit, or not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub shares: Option<u64>,
    /// Microseconds per period.
    pub quota: Option<u64>,
    pub period: Option<u64>,
    pub processes: Option<u64>,
}

/// How much tasks were held up, as the kernel's pressure files tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Shares in percent over 10, 60 and 300 seconds.
    pub averages: [f64; 3],
    /// Microseconds since the beginning.
    pub total: u64,
}

/// Some tasks, and all of them, waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waiting {
    pub some: Pressure,
    pub full: Pressure,
}

/// By what they waited for. `None` where the kernel does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressures {
    pub cpu: Option<Waiting>,
    pub memory: Option<Waiting>,
    pub io: Option<Waiting>,
}

/// Reads `some avg10=0.00 avg60=0.00 avg300=0.00 total=0` and `full …`.
pub fn pressure(text: &str) -> Option<Waiting> {
    let mut out = Waiting::default();
    let mut seen = false;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let place = match words.next() {
            Some("some") => &mut out.some,
            Some("full") => &mut out.full,
            _ => continue,
        };
        for (name, value) in words.filter_map(|w| w.split_once('=')) {
            let average = || value.parse::<f64>().ok().filter(|v| v.is_finite()).unwrap_or(0.0);
            match name {
                "avg10" => place.averages[0] = average(),
                "avg60" => place.averages[1] = average(),
                "avg300" => place.averages[2] = average(),
                "total" => place.total = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        seen = true;
    }
    seen.then_some(out)
}

/// Where a cgroup's files are.
struct Files {
    cpu: Option<PathBuf>,
    account: Option<PathBuf>,
    memory: Option<PathBuf>,
    processes: Option<PathBuf>,
    io: Option<PathBuf>,
    unified: Option<PathBuf>,
}

fn read(dir: Option<&Path>, file: &str) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    let opened = std::fs::File::open(dir?.join(file)).ok()?;
    opened.take(MAX_FILE as u64).read_to_string(&mut text).ok()?;
    Some(text)
}

fn number(dir: Option<&Path>, file: &str) -> Option<u64> {
    read(dir, file)?.trim().parse().ok()
}

/// The values of lines `name value`, in the order of `names`.
fn values<const N: usize>(text: &str, names: [&str; N]) -> [u64; N] {
    let mut out = [0; N];
    for line in text.lines() {
        let Some((name, value)) = line.split_once(' ') else { continue };
        if let Some(at) = names.iter().position(|n| *n == name) {
            out[at] = value.trim().parse().unwrap_or(0);
        }
    }
    out
}

/// Reads a cgroup; everything is `None` where it is not there.
pub fn read_cgroup(hierarchies: &Hierarchies, cgroup: &str, detail: Detail) -> Numbers {
    let below = |point: &Path| point.join(cgroup.trim_start_matches('/'));
    let of = |controller: &str| hierarchies.of(controller).map(below);
    let files = Files {
        cpu: of("cpu"),
        account: of("cpuacct"),
        memory: of("memory"),
        processes: of("pids"),
        io: of("blkio"),
        unified: hierarchies.v2.as_deref().map(below),
    };
    let mut out = if hierarchies.is_unified() { version_2(&files, detail) } else { version_1(&files, detail) };
    let unified = files.unified.as_deref();
    let of = |file: &str| read(unified, file).as_deref().and_then(pressure);
    out.pressure = Pressures { cpu: of("cpu.pressure"), memory: of("memory.pressure"), io: of("io.pressure") };
    out
}

/// The ids of the processes in a cgroup itself.
pub fn processes(hierarchies: &Hierarchies, cgroup: &str) -> Vec<u32> {
    let point = hierarchies.of("memory").or(hierarchies.v2.as_deref());
    let dir = point.map(|point| point.join(cgroup.trim_start_matches('/')));
    let text = read(dir.as_deref(), "cgroup.procs").unwrap_or_default();
    text.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

fn version_1(files: &Files, detail: Detail) -> Numbers {
    let account = files.account.as_deref();
    let mut cpu = number(account, "cpuacct.usage").map(|used| Cpu { used, ..Cpu::default() });
    let memory = files.memory.as_deref();
    let mut memory_found = number(memory, "memory.usage_in_bytes").map(|used| {
        let text = read(memory, "memory.stat").unwrap_or_default();
        let [inactive_file, rss, cache, mapped, swap, faults, major_faults] = values(
            &text,
            [
                "total_inactive_file",
                "total_rss",
                "total_cache",
                "total_mapped_file",
                "total_swap",
                "total_pgfault",
                "total_pgmajfault",
            ],
        );
        let limit = number(memory, "memory.limit_in_bytes").filter(|l| *l < NO_LIMIT);
        Memory { used, inactive_file, rss, cache, mapped, swap, limit, faults, major_faults, ..Memory::default() }
    });
    let mut out = Numbers { processes: number(files.processes.as_deref(), "pids.current"), ..Numbers::default() };
    if detail == Detail::All {
        if let Some(cpu) = &mut cpu {
            let [user, system] = values(&read(account, "cpuacct.stat").unwrap_or_default(), ["user", "system"]);
            (cpu.user, cpu.system) = (user.saturating_mul(TICK), system.saturating_mul(TICK));
            let text = read(files.cpu.as_deref(), "cpu.stat").unwrap_or_default();
            [cpu.periods, cpu.throttled_periods, cpu.throttled] =
                values(&text, ["nr_periods", "nr_throttled", "throttled_time"]);
        }
        if let Some(found) = &mut memory_found {
            found.most = number(memory, "memory.max_usage_in_bytes").unwrap_or(0);
            found.refused = number(memory, "memory.failcnt").unwrap_or(0);
            let both = number(memory, "memory.memsw.limit_in_bytes").filter(|l| *l < NO_LIMIT);
            found.swap_limit = both.zip(found.limit).map(|(both, memory)| both.saturating_sub(memory));
        }
        out.io = operations(&read(files.io.as_deref(), "blkio.throttle.io_service_bytes").unwrap_or_default());
        out.limits = Limits {
            shares: number(files.cpu.as_deref(), "cpu.shares"),
            quota: number(files.cpu.as_deref(), "cpu.cfs_quota_us"),
            period: number(files.cpu.as_deref(), "cpu.cfs_period_us"),
            processes: number(files.processes.as_deref(), "pids.max"),
        };
    }
    Numbers { cpu, memory: memory_found, ..out }
}

fn version_2(files: &Files, detail: Detail) -> Numbers {
    let dir = files.unified.as_deref();
    let cpu = read(dir, "cpu.stat").map(|text| {
        let micros = |n: u64| n.saturating_mul(1000);
        let [used, user, system, periods, throttled_periods, throttled] =
            values(&text, ["usage_usec", "user_usec", "system_usec", "nr_periods", "nr_throttled", "throttled_usec"]);
        let (used, user, system) = (micros(used), micros(user), micros(system));
        Cpu { used, user, system, periods, throttled_periods, throttled: micros(throttled) }
    });
    let mut memory = number(dir, "memory.current").map(|used| {
        let text = read(dir, "memory.stat").unwrap_or_default();
        let [inactive_file, rss, cache, mapped, faults, major_faults] =
            values(&text, ["inactive_file", "anon", "file", "file_mapped", "pgfault", "pgmajfault"]);
        let limit = number(dir, "memory.max");
        let swap = number(dir, "memory.swap.current").unwrap_or(0);
        Memory { used, inactive_file, rss, cache, mapped, swap, limit, faults, major_faults, ..Memory::default() }
    });
    let mut out = Numbers { processes: number(dir, "pids.current"), ..Numbers::default() };
    if detail == Detail::All {
        if let Some(memory) = &mut memory {
            memory.most = number(dir, "memory.peak").unwrap_or(0);
            memory.swap_limit = number(dir, "memory.swap.max");
            [memory.refused] = values(&read(dir, "memory.events").unwrap_or_default(), ["max"]);
        }
        out.io = keyed(&read(dir, "io.stat").unwrap_or_default());
        let text = read(dir, "cpu.max").unwrap_or_default();
        let mut words = text.split_whitespace().map(|w| w.parse().ok());
        out.limits = Limits {
            shares: number(dir, "cpu.weight").map(shares),
            quota: words.next().flatten(),
            period: words.next().flatten(),
            processes: number(dir, "pids.max"),
        };
    }
    Numbers { cpu, memory, ..out }
}

/// The shares of version 1 that a weight of version 2 was made from.
fn shares(weight: u64) -> u64 {
    2 + weight.saturating_sub(1).saturating_mul(262_142) / 9999
}

/// Lines `8:0 Read 4096`.
fn operations(text: &str) -> Vec<(String, u64, u64)> {
    let mut out: Vec<(String, u64, u64)> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(device), Some(what), Some(bytes)) = (words.next(), words.next(), words.next()) else { continue };
        if !device.contains(':') {
            continue;
        }
        let bytes = bytes.parse().unwrap_or(0);
        if out.last().is_none_or(|last| last.0 != device) {
            out.push((device.to_owned(), 0, 0));
        }
        match (what, out.last_mut()) {
            ("Read", Some(last)) => last.1 = bytes,
            ("Write", Some(last)) => last.2 = bytes,
            _ => {}
        }
    }
    out
}

/// Lines `8:0 rbytes=4096 wbytes=0 rios=1`.
fn keyed(text: &str) -> Vec<(String, u64, u64)> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let device = words.next().filter(|d| d.contains(':'))?.to_owned();
        let (mut read, mut written) = (0, 0);
        for (name, value) in words.filter_map(|w| w.split_once('=')) {
            match name {
                "rbytes" => read = value.parse().unwrap_or(0),
                "wbytes" => written = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        Some((device, read, written))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Writes files of a cgroup: the hierarchy's folder, the cgroup, and `file=text` lines.
    pub fn write(root: &Path, hierarchy: &str, cgroup: &str, files: &[(&str, &str)]) {
        let dir = root.join(hierarchy).join(cgroup.trim_start_matches('/'));
        std::fs::create_dir_all(&dir).expect("made");
        for (file, text) in files {
            std::fs::write(dir.join(file), text).expect("written");
        }
    }

    /// Version 1 below a folder.
    pub fn version_1_at(root: &Path) -> Hierarchies {
        let names: [&[&str]; 4] = [&["cpu", "cpuacct"], &["memory"], &["pids"], &["blkio"]];
        let point = |names: &&[&str]| (root.join(names.join(",")), names.iter().map(|n| (*n).to_owned()).collect());
        Hierarchies { v1: names.iter().map(point).collect(), v2: None }
    }

    #[test]
    fn version_1() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |hierarchy: &str, files: &[(&str, &str)]| write(dir.path(), hierarchy, "/kubepods/c", files);
        at(
            "cpu,cpuacct",
            &[
                ("cpuacct.usage", "5000000000\n"),
                ("cpuacct.stat", "user 300\nsystem 200\n"),
                ("cpu.stat", "nr_periods 9\nnr_throttled 2\nthrottled_time 77\n"),
                ("cpu.shares", "512\n"),
                ("cpu.cfs_quota_us", "-1\n"),
                ("cpu.cfs_period_us", "100000\n"),
            ],
        );
        at(
            "memory",
            &[
                ("memory.usage_in_bytes", "1000\n"),
                ("memory.limit_in_bytes", "4000\n"),
                ("memory.memsw.limit_in_bytes", "4500\n"),
                ("memory.max_usage_in_bytes", "1500\n"),
                ("memory.failcnt", "3\n"),
                ("memory.stat", "cache 1\ntotal_cache 300\ntotal_rss 600\ntotal_inactive_file 100\ntotal_pgfault 8\n"),
            ],
        );
        at("pids", &[("pids.current", "4\n"), ("pids.max", "max\n")]);
        at("blkio", &[("blkio.throttle.io_service_bytes", "8:0 Read 10\n8:0 Write 20\n8:0 Total 30\nTotal 30\n")]);
        let found = read_cgroup(&version_1_at(dir.path()), "/kubepods/c", Detail::All);
        let memory = found.memory.expect("memory");
        assert_eq!((memory.working_set(), memory.available(), memory.rss, memory.cache), (900, Some(3100), 600, 300));
        assert_eq!((memory.most, memory.refused, memory.swap_limit, memory.faults), (1500, 3, Some(500), 8));
        let cpu = Cpu {
            used: 5_000_000_000,
            user: 3_000_000_000,
            system: 2_000_000_000,
            periods: 9,
            throttled_periods: 2,
            throttled: 77,
        };
        assert_eq!((found.cpu, found.processes), (Some(cpu), Some(4)));
        assert_eq!(found.io, [("8:0".to_owned(), 10, 20)]);
        let limits = Limits { shares: Some(512), quota: None, period: Some(100_000), processes: None };
        assert_eq!((found.limits, found.pressure), (limits, Pressures::default()));
        let less = read_cgroup(&version_1_at(dir.path()), "kubepods/c", Detail::Usage);
        assert_eq!((less.cpu.map(|c| c.user), less.io.len()), (Some(0), 0));
        assert_eq!(read_cgroup(&version_1_at(dir.path()), "/kubepods/gone", Detail::All), Numbers::default());
    }

    #[test]
    fn version_2() {
        let dir = tempfile::tempdir().expect("a directory");
        let hierarchies = Hierarchies { v1: Vec::new(), v2: Some(dir.path().into()) };
        write(
            dir.path(),
            "",
            "/a",
            &[
                (
                    "cpu.stat",
                    "usage_usec 7\nuser_usec 4\nsystem_usec 3\nnr_periods 1\nnr_throttled 1\nthrottled_usec 2\n",
                ),
                ("cpu.max", "20000 100000\n"),
                ("cpu.weight", "100\n"),
                ("memory.current", "1000\n"),
                ("memory.max", "max\n"),
                ("memory.swap.current", "5\n"),
                ("memory.swap.max", "9\n"),
                ("memory.peak", "2000\n"),
                ("memory.events", "low 0\nmax 6\noom 1\n"),
                ("memory.stat", "anon 600\nfile 300\ninactive_file 2000\n"),
                ("pids.current", "4\n"),
                ("pids.max", "64\n"),
                ("io.stat", "8:0 rbytes=10 wbytes=20 rios=1\n7:0 \n"),
                ("cpu.pressure", "some avg10=1.50 avg60=0.50 avg300=0.10 total=12\nfull avg10=0.00 total=3\n"),
                ("cgroup.procs", "12\n13\n"),
            ],
        );
        let found = read_cgroup(&hierarchies, "/a", Detail::All);
        let memory = found.memory.expect("memory");
        assert_eq!((memory.working_set(), memory.available(), memory.swap, memory.swap_limit), (0, None, 5, Some(9)));
        assert_eq!((memory.most, memory.refused), (2000, 6));
        assert_eq!(found.cpu.map(|c| (c.used, c.user, c.throttled)), Some((7000, 4000, 2000)));
        assert_eq!(found.io, [("8:0".to_owned(), 10, 20), ("7:0".to_owned(), 0, 0)]);
        let limits = Limits { shares: Some(2597), quota: Some(20_000), period: Some(100_000), processes: Some(64) };
        assert_eq!(found.limits, limits);
        let waited = found.pressure.cpu.expect("pressure");
        assert_eq!((waited.some.averages, waited.some.total, waited.full.total), ([1.5, 0.5, 0.1], 12, 3));
        assert_eq!(processes(&hierarchies, "/a"), [12, 13]);
    }

    #[test]
    fn what_is_no_pressure_is_none() {
        assert_eq!(pressure(""), None);
        assert_eq!(pressure("some avg10=NaN total=x\n"), Some(Waiting::default()));
    }
}
