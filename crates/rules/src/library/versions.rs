//! Semantic versions.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Imp, no_such_overload};
use crate::meter::{Error, Meter};
use crate::value::{Out, Val};

pub const TABLE: &[(&str, Imp)] = &[
    ("string_to_semver: semver(string) -> Semver", semver),
    ("string_bool_to_semver: semver(string, bool) -> Semver", semver),
    ("is_semver_string: isSemver(string) -> bool", is_semver),
    ("is_semver_string_bool: isSemver(string, bool) -> bool", is_semver),
    ("semver_is_greater_than: <Semver>.isGreaterThan(Semver) -> bool", is_greater),
    ("semver_is_less_than: <Semver>.isLessThan(Semver) -> bool", is_less),
    ("semver_compare_to: <Semver>.compareTo(Semver) -> int", compare_to),
    ("semver_major: <Semver>.major() -> int", major),
    ("semver_minor: <Semver>.minor() -> int", minor),
    ("semver_patch: <Semver>.patch() -> int", patch),
];

/// A version: `1.2.3-alpha.1+build`.
#[derive(Clone, Debug)]
pub struct Semver {
    core: [u64; 3],
    pre: Vec<Part>,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Number(u64),
    Text(String),
}

impl Semver {
    /// Reads a version; the mistakes are told as the library that upstream uses tells them.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        let [major, minor, rest] = parts.as_slice() else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let number = |text: &str, what: &str| -> Result<u64, String> {
            let quoted = machinery::go::quote(text);
            if !text.bytes().all(|b| b.is_ascii_digit()) {
                return Err(format!("Invalid character(s) found in {what} number {quoted}"));
            }
            if text.len() > 1 && text.starts_with('0') {
                return Err(format!("{} number must not contain leading zeroes {quoted}", capital(what)));
            }
            text.parse().map_err(|_| {
                let why = if text.is_empty() { "invalid syntax" } else { "value out of range" };
                format!("strconv.ParseUint: parsing {quoted}: {why}")
            })
        };
        let (major, minor) = (number(major, "major")?, number(minor, "minor")?);
        let (rest, build) = match rest.split_once('+') {
            Some((rest, build)) => (rest, Some(build)),
            None => (*rest, None),
        };
        let (patch, pre) = match rest.split_once('-') {
            Some((patch, pre)) => (patch, Some(pre)),
            None => (rest, None),
        };
        let patch = number(patch, "patch")?;
        let mut own = Vec::new();
        for part in pre.into_iter().flat_map(|p| p.split('.')) {
            let quoted = machinery::go::quote(part);
            if part.is_empty() {
                return Err("prerelease is empty".to_owned());
            }
            own.push(if part.bytes().all(|b| b.is_ascii_digit()) {
                if part.len() > 1 && part.starts_with('0') {
                    return Err(format!("Numeric PreRelease version must not contain leading zeroes {quoted}"));
                }
                Part::Number(
                    part.parse().map_err(|_| format!("strconv.ParseUint: parsing {quoted}: value out of range"))?,
                )
            } else if part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
                Part::Text(part.to_owned())
            } else {
                return Err(format!("Invalid character(s) found in prerelease {quoted}"));
            });
        }
        for part in build.into_iter().flat_map(|b| b.split('.')) {
            if part.is_empty() {
                return Err("Build meta data is empty".to_owned());
            }
            if !part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
                let quoted = machinery::go::quote(part);
                return Err(format!("Invalid character(s) found in build meta data {quoted}"));
            }
        }
        Ok(Self { core: [major, minor, patch], pre: own, text: text.to_owned() })
    }

    /// Reads what people write: `v1.2`, `01.2.3`.
    fn lenient(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(str::to_owned).collect();
        for part in &mut parts {
            if part.len() > 1 {
                let trimmed = part.trim_start_matches('0');
                *part = if trimmed.starts_with(|c: char| c.is_ascii_digit()) {
                    trimmed.to_owned()
                } else {
                    format!("0{trimmed}")
                };
            }
        }
        if parts.len() < 3 {
            if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
                return Err("short version cannot contain PreRelease/Build meta data".to_owned());
            }
            parts.resize(3, "0".to_owned());
        }
        Self::parse(&parts.join("."))
    }

    /// The order of versions; what was built does not count.
    pub fn order(&self, other: &Self) -> Ordering {
        self.core.cmp(&other.core).then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self
                .pre
                .iter()
                .zip(&other.pre)
                .map(|(a, b)| match (a, b) {
                    (Part::Number(a), Part::Number(b)) => a.cmp(b),
                    (Part::Number(_), Part::Text(_)) => Ordering::Less,
                    (Part::Text(_), Part::Number(_)) => Ordering::Greater,
                    (Part::Text(a), Part::Text(b)) => a.cmp(b),
                })
                .find(|o| o.is_ne())
                .unwrap_or_else(|| self.pre.len().cmp(&other.pre.len())),
        })
    }
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |c| c.to_ascii_uppercase().to_string() + chars.as_str())
}

fn read(args: &[Val<'_>], name: &str) -> Result<Result<Semver, String>, Error> {
    match args {
        [Val::String(text)] | [Val::String(text), Val::Bool(false)] => Ok(Semver::parse(text)),
        [Val::String(text), Val::Bool(true)] => Ok(Semver::lenient(text)),
        _ => Err(no_such_overload(name, args)),
    }
}

fn semver<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    read(args, "semver")?.map(|v| Val::Semver(Arc::new(v))).map_err(Error::new)
}

fn is_semver<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    Ok(Val::Bool(read(args, "isSemver")?.is_ok()))
}

fn order(args: &[Val<'_>], name: &str) -> Result<Ordering, Error> {
    let [Val::Semver(a), Val::Semver(b)] = args else { return Err(no_such_overload(name, args)) };
    Ok(a.order(b))
}

fn is_greater<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    Ok(Val::Bool(order(args, "isGreaterThan")?.is_gt()))
}

fn is_less<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    Ok(Val::Bool(order(args, "isLessThan")?.is_lt()))
}

fn compare_to<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    Ok(Val::Int(order(args, "compareTo")? as i64))
}

fn number<'a>(args: &[Val<'a>], place: usize, name: &str) -> Out<'a> {
    let [Val::Semver(version)] = args else { return Err(no_such_overload(name, args)) };
    Ok(Val::Int(version.core.get(place).copied().unwrap_or(0) as i64))
}

fn major<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    number(args, 0, "major")
}

fn minor<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    number(args, 1, "minor")
}

fn patch<'a>(_: &mut Meter, args: &[Val<'a>]) -> Out<'a> {
    number(args, 2, "patch")
}
