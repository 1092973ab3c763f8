//! How times and durations are written for clients.

use std::time::Duration;

use jiff::Timestamp;

/// The age of things as tables show it: `45s`, `3m20s`, `5h12m`, `2d4h`, `90d`, `2y15d`.
pub fn human_duration(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days, years) = (seconds / 60, seconds / 3600, seconds / 86_400, seconds / 86_400 / 365);
    let with = |big: u64, unit: &str, small: u64, rest: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{rest}") }
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => with(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => with(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 192 => with(days, "d", hours % 24, "h"),
        () if hours < 24 * 365 * 2 => format!("{days}d"),
        () if hours < 24 * 365 * 8 => with(years, "y", days % 365, "d"),
        () => format!("{years}y"),
    }
}

/// The age at `now` of something that began at `since`; clocks that disagree give `<invalid>` beyond a second.
pub fn age(since: Timestamp, now: Timestamp) -> String {
    let passed = now.as_second() - since.as_second();
    match u64::try_from(passed) {
        Ok(seconds) => human_duration(Duration::from_secs(seconds)),
        Err(_) if passed >= -1 => "0s".to_owned(),
        Err(_) => "<invalid>".to_owned(),
    }
}

/// `metav1.Time`: whole seconds, UTC.
pub fn rfc3339(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// `metav1.MicroTime`: six digits of the second, UTC.
pub fn rfc3339_micro(time: Timestamp) -> String {
    jiff::fmt::strtime::format("%Y-%m-%dT%H:%M:%S%.6fZ", time).unwrap_or_else(|_| time.to_string())
}

/// Reads either form.
pub fn parse(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_upstreams_grain() {
        for (seconds, want) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * 3600 - 1, "179m"),
            (3 * 3600, "3h"),
            (5 * 3600 + 12 * 60, "5h12m"),
            (8 * 3600, "8h"),
            (48 * 3600 - 1, "47h"),
            (52 * 3600, "2d4h"),
            (7 * 86_400, "7d"),
            (8 * 86_400, "8d"),
            (729 * 86_400, "729d"),
            (730 * 86_400, "2y"),
            (745 * 86_400, "2y15d"),
            (8 * 365 * 86_400, "8y"),
        ] {
            assert_eq!(human_duration(Duration::from_secs(seconds)), want, "{seconds}");
        }
    }

    #[test]
    fn times_are_written_as_upstream_does() {
        let time: Timestamp = "2026-07-01T12:30:45.123456789Z".parse().expect("a time");
        assert_eq!(rfc3339(time), "2026-07-01T12:30:45Z");
        assert_eq!(rfc3339_micro(time), "2026-07-01T12:30:45.123456Z");
        assert_eq!(parse("2026-07-01T12:30:45Z").map(rfc3339).as_deref(), Some("2026-07-01T12:30:45Z"));
        assert_eq!(age(time, time), "0s");
        let earlier = time - jiff::SignedDuration::from_secs(10);
        assert_eq!(age(time, earlier), "<invalid>");
        assert_eq!(age(earlier, time), "10s");
    }
}
