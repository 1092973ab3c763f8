//! How times and durations are read from clients and written for them.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;

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

/// Reads either form, leniently.
pub fn parse(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Which of the two layouts a client must write a time in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// RFC 3339; a fraction of a second is read and dropped.
    Seconds,
    /// RFC 3339 with exactly six digits of the second.
    Micros,
}

impl Layout {
    fn text(self) -> &'static str {
        match self {
            Self::Seconds => "2006-01-02T15:04:05Z07:00",
            Self::Micros => "2006-01-02T15:04:05.000000Z07:00",
        }
    }
}

/// Reads a time as Go reads it: the hour may have one digit, a fraction may follow a comma, and nothing
/// else is forgiven.
///
/// # Errors
/// Go's text, as clients see it.
pub fn read(text: &str, layout: Layout) -> Result<Timestamp, String> {
    let moment = read_moment(text, layout)?;
    let nanos = i32::try_from(moment.nanos).unwrap_or(0);
    Timestamp::new(moment.seconds, nanos)
        .map_err(|_| format!("parsing time {}: year out of range", crate::go::quote(text)))
}

/// A moment with the offset it was written with, in any year of four digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Since 1970.
    pub seconds: i64,
    pub nanos: u32,
    /// Seconds east of UTC.
    pub offset: i32,
}

/// The same, without a bound to the years.
///
/// # Errors
/// As [`read`].
pub fn read_moment(text: &str, layout: Layout) -> Result<Moment, String> {
    let mut reader = TimeReader { text, rest: text, layout };
    let year = reader.digits(4, "2006")?;
    reader.literal("-")?;
    let month = reader.digits(2, "01")?;
    reader.within("month", month, 1, 12)?;
    reader.literal("-")?;
    let day = reader.digits(2, "02")?;
    reader.literal("T")?;
    let hour = reader.hour()?;
    reader.within("hour", hour, 0, 23)?;
    reader.literal(":")?;
    let minute = reader.digits(2, "04")?;
    reader.within("minute", minute, 0, 59)?;
    reader.literal(":")?;
    let second = reader.digits(2, "05")?;
    reader.within("second", second, 0, 59)?;
    let nanos = u32::try_from(reader.fraction()?).unwrap_or(0);
    let offset = reader.zone()?;
    if !reader.rest.is_empty() {
        return Err(format!("parsing time {}: extra text: {}", crate::go::quote(text), crate::go::quote(reader.rest)));
    }
    let small = |n: i32| i8::try_from(n).unwrap_or(0);
    let date = Date::new(i16::try_from(year).unwrap_or(0), small(month), small(day));
    let date = date.map_err(|_| format!("parsing time {}: day out of range", crate::go::quote(text)))?;
    let days = date.duration_since(jiff::civil::date(1970, 1, 1)).as_secs();
    let seconds = days + i64::from(hour * 3600 + minute * 60 + second) - i64::from(offset);
    Ok(Moment { seconds, nanos, offset })
}

/// Reads `2006-01-02`, a date that there is.
pub fn read_date(text: &str) -> Option<Date> {
    let shape = text.bytes().enumerate().all(|(i, b)| if matches!(i, 4 | 7) { b == b'-' } else { b.is_ascii_digit() });
    let number = |at: std::ops::Range<usize>| text.get(at).and_then(|part| part.parse::<i16>().ok());
    let small = |at| number(at).and_then(|n| i8::try_from(n).ok());
    let whole = shape && text.len() == 10;
    Date::new(number(0..4)?, small(5..7)?, small(8..10)?).ok().filter(|_| whole)
}

struct TimeReader<'t> {
    text: &'t str,
    rest: &'t str,
    layout: Layout,
}

impl TimeReader<'_> {
    fn wrong<T>(&self, element: &str) -> Result<T, String> {
        Err(format!(
            "parsing time {} as {}: cannot parse {} as {}",
            crate::go::quote(self.text),
            crate::go::quote(self.layout.text()),
            crate::go::quote(self.rest),
            crate::go::quote(element)
        ))
    }

    fn within(&self, what: &str, number: i32, low: i32, high: i32) -> Result<(), String> {
        if (low..=high).contains(&number) {
            return Ok(());
        }
        Err(format!("parsing time {}: {what} out of range", crate::go::quote(self.text)))
    }

    fn literal(&mut self, literal: &str) -> Result<(), String> {
        match self.rest.strip_prefix(literal) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => self.wrong(literal),
        }
    }

    fn digits(&mut self, count: usize, element: &str) -> Result<i32, String> {
        let Some((digits, rest)) = self.rest.split_at_checked(count) else { return self.wrong(element) };
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return self.wrong(element);
        }
        self.rest = rest;
        Ok(digits.parse().unwrap_or(0))
    }

    /// One or two digits.
    fn hour(&mut self) -> Result<i32, String> {
        let count = self.rest.bytes().take(2).take_while(u8::is_ascii_digit).count();
        if count == 0 { self.wrong("15") } else { self.digits(count, "15") }
    }

    fn fraction(&mut self) -> Result<i32, String> {
        let marked = self.rest.starts_with(['.', ',']);
        let count = self.rest.bytes().skip(1).take_while(u8::is_ascii_digit).count();
        let wanted = match self.layout {
            Layout::Seconds if marked && count > 0 => count,
            Layout::Seconds => return Ok(0),
            Layout::Micros if marked && count >= 6 => 6,
            Layout::Micros => return self.wrong(".000000"),
        };
        let nanos = self.rest[1..=wanted].bytes().chain(std::iter::repeat(b'0')).take(9);
        self.rest = &self.rest[wanted + 1..];
        Ok(nanos.fold(0, |n, digit| n * 10 + i32::from(digit - b'0')))
    }

    /// Seconds east of Greenwich.
    fn zone(&mut self) -> Result<i32, String> {
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let parts = match self.rest.as_bytes() {
            [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2, ..] if [h1, h2, m1, m2].iter().all(|b| b.is_ascii_digit()) => {
                let two = |a: &u8, b: &u8| i32::from(a - b'0') * 10 + i32::from(b - b'0');
                (*sign, two(h1, h2), two(m1, m2))
            }
            _ => return self.wrong("Z07:00"),
        };
        self.within("time zone offset hour", parts.1, 0, 24)?;
        self.within("time zone offset minute", parts.2, 0, 60)?;
        self.rest = &self.rest[6..];
        let seconds = parts.1 * 3600 + parts.2 * 60;
        Ok(if parts.0 == b'-' { -seconds } else { seconds })
    }
}

/// Nanoseconds as Go prints them: `1h2m3.5s`.
pub fn go_duration(nanos: i64) -> String {
    if nanos == 0 {
        return "0s".to_owned();
    }
    let (sign, total) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let fraction = |value: u64, unit: u64, name: &str| {
        let rest = format!("{:09}", value % unit * (1_000_000_000 / unit));
        let rest = rest.trim_end_matches('0');
        let dot = if rest.is_empty() { "" } else { "." };
        format!("{}{dot}{rest}{name}", value / unit)
    };
    let text = match total {
        0..1_000 => format!("{total}ns"),
        1_000..1_000_000 => fraction(total, 1_000, "µs"),
        1_000_000..1_000_000_000 => fraction(total, 1_000_000, "ms"),
        _ => {
            let seconds = total / 1_000_000_000;
            let tail = fraction(total % 60_000_000_000, 1_000_000_000, "s");
            match (seconds / 3600, seconds / 60 % 60) {
                (0, 0) => tail,
                (0, minutes) => format!("{minutes}m{tail}"),
                (hours, minutes) => format!("{hours}h{minutes}m{tail}"),
            }
        }
    };
    format!("{sign}{text}")
}

/// Reads a duration as Go reads it, in nanoseconds: `-1h2.5m`.
///
/// # Errors
/// Go's text, as clients see it.
pub fn read_duration(text: &str) -> Result<i64, String> {
    let invalid = |what: Cow<'_, str>| Err(format!("time: {what} {}", crate::go::quote(text)));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return invalid("invalid duration".into());
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (digits, tail) = rest.split_at(number);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return invalid("invalid duration".into());
        }
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (name, tail) = tail.split_at(end);
        let unit: u128 = match name {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "" => return invalid("missing unit in duration".into()),
            _ => return invalid(format!("unknown unit {} in duration", crate::go::quote(name)).into()),
        };
        let Some(whole) = (if whole.is_empty() { Some(0) } else { whole.parse::<u64>().ok() }) else {
            return invalid("invalid duration".into());
        };
        // No unit has more than 13 digits of nanoseconds.
        let fraction = &fraction[..fraction.len().min(18)];
        let scale = 10u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
        total += u128::from(whole) * unit + fraction.parse::<u128>().unwrap_or(0) * unit / scale;
        rest = tail;
        if total > 1 << 63 {
            return invalid("invalid duration".into());
        }
    }
    let signed = i128::try_from(total).unwrap_or(i128::MAX);
    i64::try_from(if negative { -signed } else { signed }).or_else(|_| invalid("invalid duration".into()))
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

    #[test]
    fn times_are_read_as_go_reads_them() {
        let seconds = |text: &str| read(text, Layout::Seconds).map(rfc3339).unwrap_or_else(|e| e);
        let layout = "2006-01-02T15:04:05Z07:00";
        for (text, want) in [
            ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z".to_owned()),
            ("2026-01-02T3:04:05Z", "2026-01-02T03:04:05Z".to_owned()),
            ("2026-02-03T03:04:05,5Z", "2026-02-03T03:04:05Z".to_owned()),
            ("2026-02-03T03:04:05.999999999+01:30", "2026-02-03T01:34:05Z".to_owned()),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z".to_owned()),
            ("2026-13-02T03:04:05Z", "parsing time \"2026-13-02T03:04:05Z\": month out of range".to_owned()),
            ("2026-02-30T03:04:05Z", "parsing time \"2026-02-30T03:04:05Z\": day out of range".to_owned()),
            ("2026-02-03T03:04:60Z", "parsing time \"2026-02-03T03:04:60Z\": second out of range".to_owned()),
            ("2026-02-03T03:04:05Zx", "parsing time \"2026-02-03T03:04:05Zx\": extra text: \"x\"".to_owned()),
            (
                "2026-02-03T03:04:05+25:00",
                "parsing time \"2026-02-03T03:04:05+25:00\": time zone offset hour out of range".to_owned(),
            ),
            ("x", format!("parsing time \"x\" as \"{layout}\": cannot parse \"x\" as \"2006\"")),
            ("2026-02-03", format!("parsing time \"2026-02-03\" as \"{layout}\": cannot parse \"\" as \"T\"")),
            (
                "2026-01-02 03:04:05Z",
                format!("parsing time \"2026-01-02 03:04:05Z\" as \"{layout}\": cannot parse \" 03:04:05Z\" as \"T\""),
            ),
        ] {
            assert_eq!(seconds(text), want);
        }
        let micros = |text: &str| read(text, Layout::Micros).map(rfc3339_micro);
        assert_eq!(micros("2026-01-02T03:04:05.000006Z").as_deref(), Ok("2026-01-02T03:04:05.000006Z"));
        assert!(micros("2026-01-02T03:04:05Z").is_err() && micros("2026-01-02T03:04:05.0000001Z").is_err());
    }

    #[test]
    fn durations_are_read_and_printed_as_go_does() {
        for (text, want) in [
            ("60s", "1m0s"),
            ("1h2m3.5s", "1h2m3.5s"),
            ("-1.5h", "-1h30m0s"),
            ("0", "0s"),
            ("+5us", "5µs"),
            ("1.000001ms", "1.000001ms"),
            ("2562047h47m16.854775807s", "2562047h47m16.854775807s"),
            ("", "time: invalid duration \"\""),
            ("5", "time: missing unit in duration \"5\""),
            ("5d", "time: unknown unit \"d\" in duration \"5d\""),
            (".s", "time: invalid duration \".s\""),
            ("x", "time: invalid duration \"x\""),
            ("2562048h", "time: invalid duration \"2562048h\""),
        ] {
            assert_eq!(read_duration(text).map(go_duration).unwrap_or_else(|e| e), want);
        }
    }
}
