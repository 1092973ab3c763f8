//! What stands in sets, from the words of `nft` to the kernel's bytes; pure.
//!
//! Values of several parts fill each up to four bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::netlink::{put, put_nested};

/// Attributes of an element.
const KEY: u16 = 1;
const DATA: u16 = 2;
const FLAGS: u16 = 3;
const USER_DATA: u16 = 6;
/// The flag of an element that says that a range ended before it.
const INTERVAL_END: u32 = 1;
/// How `nft` is to show a range that ends nowhere.
const OPEN: &[u8] = &[1, 4, 1, 0, 0, 0];
/// Attributes of a value.
const VALUE: u16 = 1;
const VERDICT: u16 = 2;

/// A part of a key or value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    V4,
    V6,
    Protocol,
    Port,
    /// Of this machine's byte order.
    Number,
}

impl Part {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "ipv4_addr" | "ip daddr" | "ip saddr" => Self::V4,
            "ipv6_addr" | "ip6 daddr" | "ip6 saddr" => Self::V6,
            "inet_proto" | "meta l4proto" => Self::Protocol,
            "inet_service" | "tcp dport" | "udp dport" | "sctp dport" => Self::Port,
            _ if word.starts_with("numgen ") => Self::Number,
            _ => return None,
        })
    }

    pub(super) fn bytes(self, text: &str) -> Option<Vec<u8>> {
        Some(match self {
            Self::V4 => text.parse::<Ipv4Addr>().ok()?.octets().to_vec(),
            Self::V6 => text.parse::<Ipv6Addr>().ok()?.octets().to_vec(),
            Self::Protocol => vec![protocol(text)?],
            Self::Port => text.parse::<u16>().ok()?.to_be_bytes().to_vec(),
            Self::Number => text.parse::<u32>().ok()?.to_ne_bytes().to_vec(),
        })
    }

    fn length(self) -> u32 {
        match self {
            Self::V4 | Self::Number => 4,
            Self::V6 => 16,
            Self::Protocol => 1,
            Self::Port => 2,
        }
    }

    /// The number that `nft` knows the type by.
    fn kind(self) -> u32 {
        match self {
            Self::Number => 4,
            Self::V4 => 7,
            Self::V6 => 8,
            Self::Protocol => 12,
            Self::Port => 13,
        }
    }
}

/// How `nft` is to show the keys of a set of clients and numbers: it knows no type of numbers, and is told by what
/// expressions they come about instead. Each of these attributes is a type, a length and so many bytes.
pub(super) fn shown(key: &str) -> Option<Vec<u8>> {
    const EXPRESSION: u8 = 0;
    const INSIDE: u8 = 1;
    let (ip, source) = match key {
        "ip saddr . numgen inc mod 2" => (12_u32, 11_u32),
        "ip6 saddr . numgen inc mod 2" => (13, 8),
        _ => return None,
    };
    let attribute = |kind: u8, value: &[u8]| {
        let length = u8::try_from(value.len()).unwrap_or(u8::MAX);
        [&[kind, length], value].concat()
    };
    let number = |kind: u8, value: u32| attribute(kind, &value.to_ne_bytes());
    let expression = |what: u32, inside: &[u8]| [number(EXPRESSION, what), attribute(INSIDE, inside)].concat();
    // A part of a packet: of which protocol, and which one there.
    let address = expression(7, &[number(0, ip), number(1, source)].concat());
    // A counter: one after the other, how many, beginning where.
    let counter = expression(23, &[number(0, 0), number(1, 2), number(2, 0)].concat());
    let joined = expression(13, &[attribute(0, &address), attribute(1, &counter)].concat());
    Some([number(0, 0), attribute(3, &joined)].concat())
}

/// The number of a transport protocol.
pub(super) fn protocol(word: &str) -> Option<u8> {
    match word {
        "tcp" => Some(6),
        "udp" => Some(17),
        "sctp" => Some(132),
        _ => None,
    }
}

/// The value behind one, as the network orders it; `None` behind the last.
fn next(value: &[u8]) -> Option<Vec<u8>> {
    let mut out = value.to_vec();
    for byte in out.iter_mut().rev() {
        let (sum, is_over) = byte.overflowing_add(1);
        *byte = sum;
        if !is_over {
            return Some(out);
        }
    }
    None
}

/// What a map leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Data {
    Verdict,
    Parts(Vec<Part>),
}

/// What elements of one set look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    key: Vec<Part>,
    pub(super) data: Option<Data>,
    /// Elements are ranges, of one part each.
    pub(super) interval: bool,
}

fn parts(text: &str) -> Option<Vec<Part>> {
    text.split(" . ").map(|word| Part::parse(word.trim())).collect()
}

fn length(parts: &[Part]) -> u32 {
    match parts {
        [one] => one.length(),
        many => many.iter().map(|p| p.length().next_multiple_of(4)).sum(),
    }
}

fn kind(parts: &[Part]) -> Option<u32> {
    // Six bits each are all there is.
    (parts.len() <= 5).then(|| parts.iter().fold(0, |all, part| all << 6 | part.kind()))
}

fn bytes(parts: &[Part], text: &str) -> Option<Vec<u8>> {
    let words: Vec<&str> = text.split(" . ").collect();
    let (mut out, single) = (Vec::new(), parts.len() == 1);
    if words.len() != parts.len() {
        return None;
    }
    for (part, word) in parts.iter().zip(words) {
        out.extend(part.bytes(word)?);
        if !single {
            out.resize(out.len().next_multiple_of(4), 0);
        }
    }
    Some(out)
}

impl Layout {
    /// From a declaration; `None` of types that are not known here, and of intervals of more than one part.
    pub fn parse(declaration: &str) -> Option<Self> {
        let (first, flags) = declaration.split_once(';').unwrap_or((declaration, ""));
        let interval = flags.contains("interval");
        let types = first.trim().strip_prefix("type ").or_else(|| first.trim().strip_prefix("typeof "))?;
        let (key, data) = match types.split_once(" : ") {
            Some((key, "verdict")) => (key, Some(Data::Verdict)),
            Some((key, data)) => (key, Some(Data::Parts(parts(data)?))),
            None => (types, None),
        };
        let key = parts(key)?;
        (!interval || (key.len() == 1 && data.is_none())).then_some(Self { key, data, interval })
    }

    /// Of ports, or of ranges of them.
    pub fn ports(interval: bool) -> Self {
        Self { key: vec![Part::Port], data: None, interval }
    }

    /// Keys of several parts.
    pub fn is_joined(&self) -> bool {
        self.key.len() > 1
    }

    /// The attributes of the elements that make these ranges (`a` or `a-b`), none of which touches another, in a
    /// set that holds nothing else: where each begins, and where what belongs to none begins.
    pub fn intervals<'t>(&self, keys: impl Iterator<Item = &'t str>) -> Option<Vec<Vec<u8>>> {
        let part = *self.key.first()?;
        let mut ranges = Vec::new();
        for key in keys {
            let (first, last) = key.split_once('-').unwrap_or((key, key));
            ranges.push((part.bytes(first)?, part.bytes(last)?));
        }
        ranges.sort();
        let element = |key: &[u8], more: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            more(&mut out);
            put_nested(&mut out, KEY, |out| put(out, VALUE, key));
            out
        };
        let ends = |out: &mut Vec<u8>| put(out, FLAGS, &INTERVAL_END.to_be_bytes());
        let (mut out, zero) = (Vec::new(), vec![0; part.length() as usize]);
        if ranges.first().is_some_and(|(first, _)| *first != zero) {
            out.push(element(&zero, &ends));
        }
        for (first, last) in &ranges {
            match next(last) {
                Some(behind) => out.extend([element(first, &|_| {}), element(&behind, &ends)]),
                None => {
                    let mut open = element(first, &|_| {});
                    put(&mut open, USER_DATA, OPEN);
                    out.push(open);
                }
            }
        }
        Some(out)
    }

    /// The attributes of one element; of one that goes, without its value.
    pub fn element(&self, key: &str, value: &str) -> Option<Vec<u8>> {
        let key = bytes(&self.key, key)?;
        let mut out = Vec::new();
        put_nested(&mut out, KEY, |out| put(out, VALUE, &key));
        if value.is_empty() {
            return Some(out);
        }
        match self.data.as_ref()? {
            Data::Verdict => {
                let verdict = verdict(value)?;
                put_nested(&mut out, DATA, |out| out.extend(verdict));
            }
            Data::Parts(parts) => {
                let value = bytes(parts, value)?;
                put_nested(&mut out, DATA, |out| put(out, VALUE, &value));
            }
        }
        Some(out)
    }

    pub fn key_type(&self) -> Option<u32> {
        kind(&self.key)
    }

    pub fn key_length(&self) -> u32 {
        length(&self.key)
    }
}

/// A verdict as the attribute of a value.
pub(super) fn verdict(text: &str) -> Option<Vec<u8>> {
    let (code, chain): (i32, Option<&str>) = match text.split_once(' ') {
        None if text == "drop" => (0, None),
        None if text == "accept" => (1, None),
        None if text == "return" => (-5, None),
        Some(("goto", chain)) => (-4, Some(chain)),
        Some(("jump", chain)) => (-3, Some(chain)),
        _ => return None,
    };
    let mut out = Vec::new();
    put_nested(&mut out, VERDICT, |out| {
        put(out, 1, &code.to_be_bytes());
        if let Some(chain) = chain {
            put(out, 2, &super::name(chain));
        }
    });
    Some(out)
}
