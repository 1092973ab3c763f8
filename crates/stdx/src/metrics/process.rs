//! What the process takes of the machine, as the kernel counts it, and what was built.

use std::fs;

use super::{Page, Type};

/// The kernel counts processor time for programs in hundredths of a second, on every machine.
const TICKS: f64 = 100.0;

/// Writes, under that name, which version runs.
pub fn build(page: &mut Page, name: &str, version: &str) {
    let bare = version.trim_start_matches('v');
    let mut parts = bare.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let labels = [("major", major), ("minor", minor), ("git_version", version), ("platform", PLATFORM)];
    page.family(name, Type::Gauge, "A metric with a constant '1' value: what was built.");
    page.sample(name, &labels, 1.0);
}

const PLATFORM: &str = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };

/// Writes `process_…`. What cannot be read is left out.
pub fn render(page: &mut Page) {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let (used, started) = own_times().unzip();
    let bytes = |name: &str| number(&status, name).map(|kilobytes| kilobytes * 1024.0);
    let open = fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64);
    use Type::{Counter, Gauge};
    for (name, kind, help, value) in [
        ("process_cpu_seconds_total", Counter, "User and system CPU time spent, in seconds.", used),
        ("process_max_fds", Gauge, "The most file descriptors that may be open.", number(&limits, "Max open files")),
        ("process_open_fds", Gauge, "File descriptors that are open.", open),
        ("process_resident_memory_bytes", Gauge, "Resident memory in bytes.", bytes("VmRSS:")),
        ("process_start_time_seconds", Gauge, START, started),
        ("process_virtual_memory_bytes", Gauge, "Virtual memory in bytes.", bytes("VmSize:")),
    ] {
        if let Some(value) = value {
            page.single(name, kind, help, value);
        }
    }
}

const START: &str = "When the process started, in seconds since 1970.";

/// Writes only when the process started.
pub fn start_time(page: &mut Page) {
    if let Some((_, started)) = own_times() {
        page.single("process_start_time_seconds", Type::Gauge, START, started);
    }
}

fn own_times() -> Option<(f64, f64)> {
    times(&fs::read_to_string("/proc/self/stat").ok()?, &fs::read_to_string("/proc/stat").ok()?)
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

    #[test]
    fn this_process_is_there() {
        let mut page = Page::new();
        build(&mut page, "a_build_info", "v1.37.1+pintle.0");
        render(&mut page);
        let text = page.finish();
        assert!(
            text.contains("git_version=\"v1.37.1+pintle.0\"") && text.contains("major=\"1\",minor=\"37\""),
            "{text}"
        );
        assert!(text.contains("\nprocess_resident_memory_bytes ") && text.contains("\nprocess_open_fds "), "{text}");
    }
}
