//! The formats of strings that a schema may ask for, each as strict as upstream.

use std::net::Ipv6Addr;

use super::{Node, Type};
use crate::{names, regexp, time};

/// The formats of strings, by their names without dashes.
const KNOWN: &[(&str, Check)] = &[
    ("bsonobjectid", |s| s.len() == 24 && s.bytes().all(|b| b.is_ascii_hexdigit())),
    ("byte", is_base64),
    ("cidr", is_cidr),
    ("creditcard", is_credit_card),
    ("date", is_date),
    ("datetime", is_date_time),
    ("duration", is_duration),
    ("email", super::address::is_email),
    ("hexcolor", is_hex_color),
    ("hostname", is_hostname),
    ("ipv4", is_ipv4),
    ("ipv6", |s| s.parse::<Ipv6Addr>().is_ok()),
    ("isbn", |s| is_isbn10(s) || is_isbn13(s)),
    ("isbn10", is_isbn10),
    ("isbn13", is_isbn13),
    ("k8slongname", |s| s.len() <= 253 && names::dns1123_subdomain(s).is_empty()),
    ("k8sshortname", |s| s.len() <= 63 && names::dns1123_label(s).is_empty()),
    ("mac", is_mac),
    ("password", |_| true),
    ("rgbcolor", is_rgb_color),
    ("ssn", is_ssn),
    ("uri", super::address::is_request_uri),
    ("uuid", |s| is_uuid(s, None, false)),
    ("uuid3", |s| is_uuid(s, Some('3'), false)),
    ("uuid4", |s| is_uuid(s, Some('4'), true)),
    ("uuid5", |s| is_uuid(s, Some('5'), true)),
];

/// Says whether a text has a format.
type Check = fn(&str) -> bool;

fn checker(format: &str) -> Option<Check> {
    let find = |name: &str| KNOWN.binary_search_by(|(known, _)| (*known).cmp(name)).ok().map(|i| KNOWN[i].1);
    if format.contains('-') { find(&format.replace('-', "")) } else { find(format) }
}

/// True for a format of strings that is checked.
pub fn is_known(format: &str) -> bool {
    checker(format).is_some()
}

/// True when a text has the format; a text has every format that is not known.
pub fn holds(format: &str, text: &str) -> bool {
    checker(format).is_none_or(|check| check(text))
}

/// True when values of this type (`None`: of any, or of several) can have the format; others are as if
/// they were not there.
pub fn applies(kind: Option<Type>, format: &str) -> bool {
    match kind {
        None | Some(Type::String) => is_known(format),
        Some(Type::Integer) => matches!(format, "int32" | "int64"),
        Some(Type::Number) => matches!(format, "float" | "double"),
        Some(Type::Object | Type::Array | Type::Boolean) => false,
    }
}

/// The format of a node that counts; empty when there is none.
pub(super) fn effective(node: &Node) -> &str {
    let format = node.validation.as_ref().map_or("", |validation| &validation.format);
    let kind = node.kind.filter(|_| !node.int_or_string);
    if !format.is_empty() && applies(kind, format) { format } else { "" }
}

fn is_base64(s: &str) -> bool {
    let plain = s.trim_end_matches('=');
    let padding = s.len() - plain.len();
    let alphabet = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    !s.is_empty() && s.len().is_multiple_of(4) && padding <= 2 && plain.bytes().all(alphabet)
}

/// Leading zeros are tolerated, as they were once.
fn is_plain_ipv4(s: &str) -> bool {
    let part = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        digits && part.trim_start_matches('0').parse::<u16>().map_or(part.bytes().all(|b| b == b'0'), |n| n < 256)
    };
    s.split('.').count() == 4 && s.split('.').all(part)
}

fn is_ipv4(s: &str) -> bool {
    is_plain_ipv4(s) || (s.contains('.') && is_sloppy_ipv6(s))
}

fn is_sloppy_ipv6(s: &str) -> bool {
    match s.rsplit_once(':') {
        Some((head, tail)) if tail.contains('.') => {
            is_plain_ipv4(tail) && format!("{head}:0.0.0.0").parse::<Ipv6Addr>().is_ok()
        }
        _ => s.parse::<Ipv6Addr>().is_ok(),
    }
}

fn is_cidr(s: &str) -> bool {
    let Some((address, bits)) = s.split_once('/') else { return false };
    let max = match address {
        _ if is_plain_ipv4(address) => 32,
        _ if is_sloppy_ipv6(address) => 128,
        _ => return false,
    };
    !bits.is_empty()
        && bits.bytes().all(|b| b.is_ascii_digit())
        && bits.trim_start_matches('0').parse::<u32>().map_or(bits.bytes().all(|b| b == b'0'), |n| n <= max)
}

fn is_mac(s: &str) -> bool {
    let groups = |separator: char, size: usize| {
        let parts: Vec<&str> = s.split(separator).collect();
        let bytes = parts.len() * size / 2;
        matches!(bytes, 6 | 8 | 20)
            && parts.iter().all(|part| part.len() == size && part.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    groups(':', 2) || groups('-', 2) || groups('.', 4)
}

fn is_uuid(s: &str, version: Option<char>, variant: bool) -> bool {
    let mut rest = s;
    for (i, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if i > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some((part, after)) = rest.split_at_checked(length) else { return false };
        let starts = |wanted: &[char]| part.starts_with(wanted);
        let fits = match (i, version) {
            (2, Some(version)) => starts(&[version]),
            (3, _) if variant => starts(&['8', '9', 'a', 'b', 'A', 'B']),
            _ => true,
        };
        if !fits || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}

/// The digits of an ISBN, without blanks and dashes.
fn isbn(s: &str) -> Vec<u32> {
    let blank = |c: char| matches!(c, '\t' | '\n' | '\u{c}' | '\r' | ' ' | '-');
    let digit = |c: char| if c == 'X' { 10 } else { c.to_digit(10).filter(|_| c.is_ascii()).unwrap_or(99) };
    s.chars().filter(|c| !blank(*c)).map(digit).collect()
}

fn is_isbn10(s: &str) -> bool {
    let digits = isbn(s);
    digits.len() == 10
        && digits[..9].iter().all(|d| *d < 10)
        && digits[9] <= 10
        && digits.iter().zip(1..).map(|(d, i)| d * i).sum::<u32>() % 11 == 0
}

fn is_isbn13(s: &str) -> bool {
    let digits = isbn(s);
    digits.len() == 13
        && digits.iter().all(|d| *d < 10)
        && digits.iter().zip([1, 3].into_iter().cycle()).map(|(d, i)| d * i).sum::<u32>() % 10 == 0
}

/// The numbers that the large issuers give out, and their check digit.
fn is_credit_card(s: &str) -> bool {
    let digits: String = s.chars().filter(char::is_ascii_digit).collect();
    let starts = |prefixes: &[&str]| prefixes.iter().any(|p| digits.starts_with(p));
    let issued = match digits.len() {
        13 => starts(&["4"]),
        14 => starts(&["300", "301", "302", "303", "304", "305", "36", "38"]),
        15 => starts(&["34", "37", "2131", "1800"]),
        16 => starts(&["4", "51", "52", "53", "54", "55", "6011", "65", "35"]),
        _ => false,
    };
    let doubled = |(i, digit): (usize, u8)| match u32::from(digit - b'0') {
        digit if i % 2 == 0 => digit,
        digit if digit > 4 => digit * 2 - 9,
        digit => digit * 2,
    };
    issued && digits.bytes().rev().enumerate().map(doubled).sum::<u32>() % 10 == 0
}

fn is_ssn(s: &str) -> bool {
    let shape: String = s.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    matches!(shape.as_str(), "000-00-0000" | "000 00-0000" | "000-00 0000" | "000 00 0000")
}

fn is_hex_color(s: &str) -> bool {
    let s = s.strip_prefix('#').unwrap_or(s);
    matches!(s.len(), 3 | 6) && s.bytes().all(|b| b.is_ascii_hexdigit())
}

fn is_rgb_color(s: &str) -> bool {
    let Some(inner) = s.strip_prefix("rgb(").and_then(|s| s.strip_suffix(')')) else { return false };
    let blank = |c: char| matches!(c, '\t' | '\n' | '\u{c}' | '\r' | ' ');
    let part = |part: &str| {
        let part = part.trim_matches(blank);
        let digits = !part.is_empty() && part.len() <= 3 && part.bytes().all(|b| b.is_ascii_digit());
        digits && (part == "0" || !part.starts_with('0')) && part.parse::<u16>().is_ok_and(|n| n < 256)
    };
    inner.split(',').count() == 3 && inner.split(',').all(part)
}

fn is_date(s: &str) -> bool {
    time::read_date(s).is_some()
}

fn is_date_time(s: &str) -> bool {
    let s = s.to_lowercase();
    let mut parts = s.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    let two = |at: usize, max: &str| {
        let part = time.get(at..at + 2).filter(|part| part.bytes().all(|b| b.is_ascii_digit()));
        part.is_some_and(|part| part <= max)
    };
    let clock = two(0, "23") && two(3, "59") && two(6, "59");
    let colons = |text: &str, places: &[usize]| places.iter().all(|at| text.as_bytes().get(*at) == Some(&b':'));
    if !is_date(date) || !clock || !colons(time, &[2, 5]) {
        return false;
    }
    let mut rest = &time[8..];
    // A fraction begins with whatever is no zone.
    let mut chars = rest.chars();
    if chars.next().is_some() {
        let after = chars.as_str();
        let zone = after.trim_start_matches(|c: char| c.is_ascii_digit());
        if zone.len() < after.len() && is_zone(zone) {
            rest = zone;
        }
    }
    is_zone(rest)
}

fn is_zone(s: &str) -> bool {
    let shape: String = s.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    matches!(shape.as_str(), "z" | "+00:00" | "-00:00")
}

fn is_duration(s: &str) -> bool {
    read_duration(s).is_some()
}

/// Reads a duration as Go writes them, or numbers with units as people write them (`3 days 4 hours`), in
/// nanoseconds. One that is too long to count is one all the same, and as long as can be counted.
pub fn read_duration(s: &str) -> Option<i64> {
    /// Short forms, then the word that longer ones begin with.
    const UNITS: [(&[&str], &str, i64); 8] = [
        (&["ns"], "nano", 1),
        (&["us", "µs"], "micro", 1_000),
        (&["ms"], "milli", 1_000_000),
        (&["s"], "sec", 1_000_000_000),
        (&["m"], "min", 60_000_000_000),
        (&["h", "hr"], "hour", 3_600_000_000_000),
        (&["d"], "day", 86_400_000_000_000),
        (&["w", "wk"], "week", 604_800_000_000_000),
    ];
    if let Ok(nanos) = time::read_duration(s) {
        return Some(nanos);
    }
    let (mut rest, mut total) = (s, None::<i64>);
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let number = &rest[start..];
        let after = number.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits = &number[..number.len() - after.len()];
        let unit = after.trim_start_matches(['\t', '\n', '\u{c}', '\r', ' ']);
        let end = unit.find(|c: char| !c.is_ascii_alphabetic() && c != 'µ').unwrap_or(unit.len());
        if end > 0 {
            let digits: i64 = digits.parse().ok()?;
            let unit = unit[..end].to_lowercase();
            let known = UNITS.iter().find(|(short, word, _)| short.contains(&unit.as_str()) || unit.starts_with(word));
            if let Some((_, _, scale)) = known {
                total = Some(total.unwrap_or(0).saturating_add(digits.saturating_mul(*scale)));
            }
        }
        rest = &unit[end..];
    }
    total
}

/// Letters, digits and symbols of any script; the last of several labels is of letters.
fn is_hostname(s: &str) -> bool {
    if s.len() > 255 || s.split('.').any(|label| label.len() > 63) {
        return false;
    }
    let matches = |c: char, pattern: &str| {
        regexp::compile(pattern).is_ok_and(|program| program.is_match(c.encode_utf8(&mut [0; 4])))
    };
    let is_letter = |c: char| if c.is_ascii() { c.is_ascii_alphabetic() } else { matches(c, r"\pL") };
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches(c, r"[\p{S}\p{L}]");
    let labels: Vec<Vec<char>> = s.split('.').map(|label| label.chars().collect()).collect();
    match labels.as_slice() {
        [label] => {
            let Some((first, rest)) = label.split_first() else { return false };
            let rest = rest.strip_prefix(&['-']).unwrap_or(rest);
            is_part(*first) && rest.len() <= 62 && rest.iter().all(|c| is_part(*c))
        }
        [labels @ .., top] => {
            let is_label = |label: &Vec<char>| match label.as_slice() {
                [] => false,
                [one] => is_part(*one),
                [first, middle @ .., last] => {
                    let middle = middle.len() <= 61 && middle.iter().all(|c| *c == '-' || is_part(*c));
                    middle && is_part(*first) && is_part(*last)
                }
            };
            labels.iter().all(is_label) && (2..=63).contains(&top.len()) && top.iter().all(|c| is_letter(*c))
        }
        [] => false,
    }
}
