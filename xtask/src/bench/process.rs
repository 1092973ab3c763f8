//! What a process has used so far, as the kernel counts it.

use anyhow::{Context, Result};

/// Totals since the process started.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Resident memory, in bytes.
    pub rss: u64,
    /// Seconds of a core, all threads.
    pub cpu: f64,
    /// Bytes sent to the disk.
    pub written: u64,
}

impl Usage {
    pub fn rss_mb(&self) -> f64 {
        self.rss as f64 / 1e6
    }
}

/// Reads `/proc`.
pub fn usage(pid: u32) -> Result<Usage> {
    // The kernel's clock tick, 100 Hz on every architecture Linux supports today.
    const TICKS: f64 = 100.0;
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).context("the process runs");
    let number = |text: &str, key: &str| -> Result<u64> {
        let line = text.lines().find_map(|l| l.strip_prefix(key)).with_context(|| key.to_owned())?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
    };
    let rss = number(&read("status")?, "VmRSS:")? * 1024;
    let written = number(&read("io")?, "write_bytes:")?;
    let stat = read("stat")?;
    let fields: Vec<&str> = stat.rsplit_once(')').context("stat")?.1.split_whitespace().collect();
    let ticks = fields.get(11).context("utime")?.parse::<u64>()? + fields.get(12).context("stime")?.parse::<u64>()?;
    Ok(Usage { rss, cpu: ticks as f64 / TICKS, written })
}
