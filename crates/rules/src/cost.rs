//! What calls cost when they are evaluated: upstream's numbers.

use crate::value::{List, Map, Val};

/// What a list costs to make.
pub const LIST: u64 = 10;
/// What a map costs to make.
pub const MAP: u64 = 30;
/// The cost of a character that is looked at once.
pub const PER_CHAR: f64 = 0.1;
/// The cost of a character of a pattern.
pub const PER_PATTERN_CHAR: f64 = 0.25;

/// How the cost of a call is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    One,
    /// A fixed cost.
    Fixed(u64),
    /// All of the first argument, elements and all.
    Traversal,
    /// So many times the characters of an argument.
    Chars(usize, u8),
    /// Twice the characters of the result.
    Result,
    /// A pattern over a text.
    Pattern,
    /// One text within another.
    Contains,
    /// The shorter of two.
    Shorter,
    /// Both together.
    Both,
    /// Each element of the second.
    Elements,
    /// A network and an address; as text when set.
    Address(bool),
    /// A network and a network; as text when set.
    Network(bool),
    /// A text of a named format.
    Format,
    /// A list that is made: as long as the result.
    Made,
    /// A list that is flattened.
    Flatten,
    /// Each element of an argument with each other.
    Pairs(usize),
    /// Each element of one with each of the other, so many times.
    Sets(u64),
}

impl Rule {
    /// The rule of a function; the form is known when only one fits.
    pub fn of(function: &str, overload: Option<&str>) -> Self {
        match overload.unwrap_or("") {
            "list_slice" | "lists_range" | "list_reverse" => return Self::Made,
            "list_flatten" | "list_flatten_int" => return Self::Flatten,
            "list_distinct" => return Self::Pairs(0),
            "list_sets_contains_list" | "list_sets_intersects_list" => return Self::Sets(1),
            "list_sets_equivalent_list" => return Self::Sets(2),
            id if id.starts_with("list_") && id.ends_with("_sort") => return Self::Pairs(0),
            id if id.ends_with("_sortByAssociatedKeys") => return Self::Pairs(1),
            _ => {}
        }
        match function {
            "check" => return Self::Fixed(350_000),
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" | "includes" => return Self::Traversal,
            "url" | "lowerAscii" | "upperAscii" | "substring" | "trim" | "cidr" | "isIP" | "isCIDR" | "quantity"
            | "isQuantity" | "semver" | "isSemver" => return Self::Chars(0, 1),
            "ip" if overload == Some("cidr_ip") => return Self::One,
            "ip" => return Self::Chars(0, 1),
            "replace" | "split" | "ip.isCanonical" => return Self::Chars(0, 2),
            "join" => return Self::Result,
            "find" | "findAll" => return Self::Pattern,
            "containsIP" => return Self::Address(overload == Some("cidr_contains_ip_string")),
            "containsCIDR" => return Self::Network(overload == Some("cidr_contains_cidr_string")),
            "validate" => return Self::Format,
            "masked"
            | "prefixLength"
            | "family"
            | "isUnspecified"
            | "isLoopback"
            | "isLinkLocalMulticast"
            | "isLinkLocalUnicast"
            | "isGlobalUnicast"
            | "format.named"
            | "sign"
            | "asInteger"
            | "isInteger"
            | "asApproximateFloat"
            | "isGreaterThan"
            | "isLessThan"
            | "compareTo"
            | "add"
            | "sub"
            | "major"
            | "minor"
            | "patch"
            | "getScheme"
            | "getHostname"
            | "getHost"
            | "getPort"
            | "getEscapedPath"
            | "getQuery" => {
                return Self::One;
            }
            _ => {}
        }
        match overload.unwrap_or("") {
            "starts_with_string" | "ends_with_string" => Self::Chars(1, 1),
            "string_to_bytes" | "bytes_to_string" | "strings_quote" | "string_format" => Self::Chars(0, 1),
            "in_list" => Self::Elements,
            "less_string"
            | "greater_string"
            | "less_equals_string"
            | "greater_equals_string"
            | "less_bytes"
            | "greater_bytes"
            | "less_equals_bytes"
            | "greater_equals_bytes"
            | "equals"
            | "not_equals" => Self::Shorter,
            "add_string" | "add_bytes" => Self::Both,
            "matches" | "matches_string" => Self::Pattern,
            "contains_string" => Self::Contains,
            _ => Self::One,
        }
    }

    /// Is the cost known only afterwards?
    pub fn is_late(self) -> bool {
        matches!(self, Self::Result | Self::Made)
    }

    /// The cost of a call. Failed arguments and results count as one.
    pub fn cost(self, args: &[Option<&Val<'_>>], result: Option<&Val<'_>>) -> u64 {
        let arg = |i: usize| args.get(i).copied().flatten();
        let size = |i: usize| arg(i).map_or(1, Val::cost_size);
        match self {
            Self::One => 1,
            Self::Fixed(cost) => cost,
            Self::Traversal => arg(0).map_or(1, traversal),
            Self::Chars(i, times) => chars(size(i), f64::from(times)),
            Self::Result => chars(result.map_or(1, Val::cost_size), 2.0),
            Self::Pattern => pattern(size(0), size(1)),
            Self::Contains => chars(size(0), 1.0).saturating_mul(chars(size(1), 1.0)),
            Self::Shorter => {
                if matches!(
                    arg(0),
                    Some(Val::Quantity(_) | Val::Ip(_) | Val::Cidr(_) | Val::Format(_) | Val::Url(_) | Val::Semver(_))
                ) {
                    return 1;
                }
                chars(size(0).min(size(1)), 1.0)
            }
            Self::Both => chars(size(0).saturating_add(size(1)), 1.0),
            Self::Elements => size(1),
            Self::Address(text) => chars(size(0).saturating_mul(2), 1.0) + if text { chars(size(1), 1.0) } else { 0 },
            Self::Network(text) => {
                chars(size(0).saturating_mul(2), 1.0)
                    + chars(size(0), 1.0)
                    + 1
                    + if text { chars(size(1), 1.0) } else { 0 }
            }
            Self::Format => match arg(0) {
                Some(Val::Format(format)) => pattern(size(1), format.pattern_size),
                _ => 1,
            },
            Self::Made => result.map_or(1, Val::cost_size).saturating_add(1 + LIST),
            Self::Flatten => {
                let depth = match arg(1) {
                    Some(Val::Int(depth)) if *depth >= 0 => *depth as f64,
                    _ => 1.0,
                };
                ((size(0) as f64 * depth) as u64).saturating_add(1 + LIST)
            }
            Self::Pairs(i) => {
                let Some(Val::List(list)) = arg(i) else { return 1 + LIST };
                let text = matches!(list.get(0), Some(Ok(Val::String(_) | Val::Bytes(_))));
                let factor = if text { 2.0 + PER_CHAR } else { 2.0 };
                let pairs = (list.len() as u64).saturating_mul(list.len() as u64);
                ((pairs as f64 * factor) as u64).saturating_add(1 + LIST)
            }
            Self::Sets(times) => size(0).saturating_mul(size(1)).saturating_mul(times).saturating_add(1),
        }
    }
}

fn chars(size: u64, times: f64) -> u64 {
    (size as f64 * (times * PER_CHAR)).ceil() as u64
}

fn pattern(text: u64, pattern: u64) -> u64 {
    let text = ((1.0 + text as f64) * PER_CHAR).ceil() as u64;
    text.saturating_mul((pattern as f64 * PER_PATTERN_CHAR).ceil() as u64)
}

/// What it costs to look at a value whole.
fn traversal(value: &Val<'_>) -> u64 {
    match value {
        Val::String(text) => (text.len() as f64 * PER_CHAR) as u64,
        Val::Bytes(bytes) => (bytes.len() as f64 * PER_CHAR) as u64,
        Val::List(list) => traversal_list(list),
        Val::Map(map) => traversal_map(map),
        _ => 1,
    }
}

fn traversal_list(list: &List<'_>) -> u64 {
    list.iter().fold(0, |sum: u64, item| sum.saturating_add(item.as_ref().map_or(1, traversal)))
}

fn traversal_map(map: &Map<'_>) -> u64 {
    map.keys().iter().fold(0, |sum: u64, key| {
        let value = match map.find(key) {
            Some(Ok(value)) => traversal(&value),
            _ => 1,
        };
        sum.saturating_add(traversal(key)).saturating_add(value)
    })
}
