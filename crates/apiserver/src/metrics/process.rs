//! What the process takes of the machine, as the kernel counts it.

use std::fs;

use super::{head, line};

/// The kernel counts processor time for programs in hundredths of a second, on every machine.
const TICKS: f64 = 100.0;

/// Writes `process_…`. What cannot be read is left out.
pub(super) fn render(out: &mut String) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let (used, started) = times(&stat, &boot).unzip();
    let bytes = |name: &str| number(&status, name).map(|kilobytes| kilobytes * 1024.0);
    let open = fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64);
    for (name, kind, help, value) in [
        ("process_cpu_seconds_total", "counter", "User and system CPU time spent, in seconds.", used),
        ("process_max_fds", "gauge", "The most file descriptors that may be open.", number(&limits, "Max open files")),
        ("process_open_fds", "gauge", "File descriptors that are open.", open),
        ("process_resident_memory_bytes", "gauge", "Resident memory in bytes.", bytes("VmRSS:")),
        ("process_start_time_seconds", "gauge", "When the process started, in seconds since 1970.", started),
        ("process_virtual_memory_bytes", "gauge", "Virtual memory in bytes.", bytes("VmSize:")),
    ] {
        let Some(value) = value else { continue };
        head(out, name, kind, help);
        line(out, format_args!("{name} {value}"));
    }
}

/// The number after a name at the beginning of a line.
fn number(text: &str, name: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Processor time spent, and when the process started.
fn times(stat: &str, boot: &str) -> Option<(f64, f64)> {
    // The program's name stands in parentheses and may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let field = |at: usize| fields.get(at)?.parse::<f64>().ok();
    let used = (field(11)? + field(12)?) / TICKS;
    Some((used, number(boot, "btime ")? + field(19)? / TICKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_the_program_is_called() {
        let stat = "7 (a ) (b) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 1000 5 6";
        assert_eq!(times(stat, "cpu 1\nbtime 1700000000\n"), Some((3.0, 1_700_000_010.0)));
        assert_eq!(number("VmSize:\t  10 kB\nVmRSS:\t 7 kB\n", "VmRSS:"), Some(7.0));
        assert_eq!(times("", ""), None);
    }
}
