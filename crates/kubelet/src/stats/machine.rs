//! What the whole machine uses, as the kernel counts it.

use std::path::Path;

use super::network::{self, Interface};
use super::numbers::{Cpu, Memory, Numbers, Pressures, pressure};

/// The kernel counts processor time for programs in hundredths of a second, on every machine.
const TICK: u64 = 10_000_000;

/// The machine's numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    pub numbers: Numbers,
    /// Bytes there are.
    pub memory: u64,
    /// Bytes that may be swapped out.
    pub swap: u64,
    pub cpus: u64,
    pub interfaces: Vec<Interface>,
    /// The most processes there may be.
    pub most_processes: Option<u64>,
    /// When it started, in seconds since 1970.
    pub booted: Option<i64>,
}

/// Reads what is beneath `root`, which is `/` outside of tests.
pub fn read(root: &Path) -> Machine {
    let text = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let (stat, info, faults) = (text("proc/stat"), text("proc/meminfo"), text("proc/vmstat"));
    let bytes = |name: &str| first(&info, name).unwrap_or(0).saturating_mul(1024);
    let total = bytes("MemTotal:");
    let memory = Memory {
        used: total.saturating_sub(bytes("MemFree:")),
        inactive_file: bytes("Inactive(file):"),
        rss: bytes("AnonPages:"),
        cache: bytes("Cached:"),
        mapped: bytes("Mapped:"),
        swap: bytes("SwapTotal:").saturating_sub(bytes("SwapFree:")),
        limit: Some(total),
        swap_limit: Some(bytes("SwapTotal:")),
        faults: first(&faults, "pgfault ").unwrap_or(0),
        major_faults: first(&faults, "pgmajfault ").unwrap_or(0),
        ..Memory::default()
    };
    let waiting = |what: &str| pressure(&text(&format!("proc/pressure/{what}")));
    let pressure = Pressures { cpu: waiting("cpu"), memory: waiting("memory"), io: waiting("io") };
    let processes = text("proc/loadavg").split_whitespace().nth(3).and_then(|w| w.split_once('/')?.1.parse().ok());
    let numbers =
        Numbers { cpu: cpu(&stat), memory: (total > 0).then_some(memory), processes, pressure, ..Numbers::default() };
    Machine {
        numbers,
        memory: total,
        swap: bytes("SwapTotal:"),
        cpus: stat.lines().filter(|l| l.starts_with("cpu") && !l.starts_with("cpu ")).count() as u64,
        interfaces: network::read(&root.join("proc"), "self").unwrap_or_default(),
        most_processes: text("proc/sys/kernel/pid_max").trim().parse().ok(),
        booted: first(&stat, "btime ").and_then(|s| i64::try_from(s).ok()),
    }
}

/// The number after a name at the beginning of a line.
fn first(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// `cpu user nice system idle iowait irq softirq steal guest guest_nice`; a guest's time is the user's, too.
fn cpu(stat: &str) -> Option<Cpu> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let n: Vec<u64> = line.split_whitespace().map(|w| w.parse().unwrap_or(0)).collect();
    let at = |at: usize| n.get(at).copied().unwrap_or(0);
    let user = (at(0) + at(1)).saturating_mul(TICK);
    let system = (at(2) + at(5) + at(6) + at(7)).saturating_mul(TICK);
    Some(Cpu { used: user.saturating_add(system), user, system, ..Cpu::default() })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A machine's files below a folder.
    pub fn write(root: &Path, ticks: u64) {
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("inside")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        let stat = format!("cpu  {ticks} 0 100 900 5 0 0 0 0 0\ncpu0 1 1 1\ncpu1 1 1 1\nbtime 1700000000\n");
        write("proc/stat", &stat);
        write(
            "proc/meminfo",
            "MemTotal: 100 kB\nMemFree: 40 kB\nInactive(file): 10 kB\nAnonPages: 20 kB\nSwapTotal: 8 kB\nSwapFree: 6 kB\n",
        );
        write("proc/vmstat", "pgfault 11\npgmajfault 2\n");
        write("proc/loadavg", "0.1 0.2 0.3 2/43 999\n");
        write("proc/sys/kernel/pid_max", "100\n");
        write("proc/pressure/cpu", "some avg10=1.00 avg60=0.00 avg300=0.00 total=5\n");
        write("proc/self/net/dev", "h\nh\neth0: 1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n");
    }

    #[test]
    fn a_machine_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), 200);
        let found = read(dir.path());
        assert_eq!(
            (found.cpus, found.memory, found.most_processes, found.booted),
            (2, 102_400, Some(100), Some(1_700_000_000))
        );
        let memory = found.numbers.memory.expect("memory");
        assert_eq!((memory.working_set(), memory.available(), memory.swap), (51_200, Some(51_200), 2048));
        assert_eq!((found.numbers.cpu.map(|c| c.used), found.numbers.processes), (Some(3_000_000_000), Some(43)));
        assert_eq!(found.numbers.pressure.cpu.map(|p| p.some.total), Some(5));
        assert_eq!(found.interfaces[0].sent.bytes, 3);
        assert_eq!(read(&dir.path().join("none")), Machine::default());
    }
}
