//! Names of the domain system, as their bytes in a message.

use std::fmt;
use std::sync::Arc;

/// The most bytes a name has, with the length of each label and the root's (RFC 1035 §2.3.4).
pub const LONGEST: usize = 255;
/// Pointers that are followed within one name: a name of 255 bytes has at most 127 labels.
const JUMPS: usize = 127;

/// A text or a part of a message is no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a domain name")]
pub struct BadName;

/// A name: labels, each after its length, and the root's zero. Clones share the bytes.
#[derive(Clone)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// The name that has no labels.
    pub fn root() -> Self {
        Self(Arc::from([0u8]))
    }

    /// A name from its labels.
    ///
    /// # Errors
    /// A label is empty or longer than 63 bytes, or all are longer than a name.
    pub fn of<'a>(labels: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, BadName> {
        let mut bytes = Vec::with_capacity(64);
        for label in labels {
            if label.is_empty() || label.len() > 63 {
                return Err(BadName);
            }
            bytes.push(u8::try_from(label.len()).map_err(|_| BadName)?);
            bytes.extend_from_slice(label);
        }
        bytes.push(0);
        if bytes.len() > LONGEST { Err(BadName) } else { Ok(Self(bytes.into())) }
    }

    /// A name as people write it, with or without the dot at its end, in small letters.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let text = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if text.is_empty() {
            return Ok(Self::root());
        }
        Self::of(text.split('.').map(str::as_bytes))
    }

    /// Reads the name that begins at `at`, following pointers; also where the message goes on after it.
    ///
    /// # Errors
    /// The message ends within it, it is too long, or a pointer does not lead back.
    pub fn read(message: &[u8], at: usize) -> Result<(Self, usize), BadName> {
        let mut bytes = [0u8; LONGEST];
        let (mut length, mut here, mut after, mut jumps) = (0, at, None, 0);
        loop {
            let size = usize::from(*message.get(here).ok_or(BadName)?);
            match size & 0xc0 {
                0x00 => {
                    let label = message.get(here..=here + size).ok_or(BadName)?;
                    bytes.get_mut(length..length + label.len()).ok_or(BadName)?.copy_from_slice(label);
                    length += label.len();
                    here += label.len();
                    if size == 0 {
                        return Ok((Self(Arc::from(&bytes[..length])), after.unwrap_or(here)));
                    }
                }
                0xc0 => {
                    let low = usize::from(*message.get(here + 1).ok_or(BadName)?);
                    let target = (size & 0x3f) << 8 | low;
                    jumps += 1;
                    // Only back, so that there is no loop; and not for ever back.
                    if target >= here || jumps > JUMPS {
                        return Err(BadName);
                    }
                    after.get_or_insert(here + 2);
                    here = target;
                }
                _ => return Err(BadName),
            }
        }
    }

    /// Its bytes in a message.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// True when it is `parent` or below it.
    pub fn is_within(&self, parent: &Name) -> bool {
        is_within(&self.0, &parent.0)
    }

    /// The same name in small letters.
    #[must_use]
    pub fn lower(&self) -> Self {
        Self(self.0.to_ascii_lowercase().into())
    }

    /// The labels, the first first.
    pub fn labels(&self) -> impl Iterator<Item = &[u8]> {
        labels(&self.0)
    }
}

/// The labels of a name's bytes.
pub fn labels(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (size, rest) = bytes.split_first()?;
        let (label, rest) = rest.split_at_checked(usize::from(*size)).filter(|(label, _)| !label.is_empty())?;
        bytes = rest;
        Some(label)
    })
}

/// True when the name is `parent` or below it, whatever the case of its letters.
pub fn is_within(mut name: &[u8], parent: &[u8]) -> bool {
    while name.len() >= parent.len() {
        if name.len() == parent.len() {
            return name.eq_ignore_ascii_case(parent);
        }
        let step = 1 + usize::from(name[0]);
        if step == 1 || step > name.len() {
            return false;
        }
        name = &name[step..];
    }
    false
}

// A length is below 64 and no letter: bytes of names are equal as names when they are equal but for case.
impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.0.eq_ignore_ascii_case(&other.0)
    }
}

impl Eq for Name {}

impl std::hash::Hash for Name {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_ascii_lowercase().hash(state);
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for label in self.labels() {
            for byte in label {
                match byte {
                    b'.' | b'\\' => write!(f, "\\{}", char::from(*byte))?,
                    0x21..=0x7e => write!(f, "{}", char::from(*byte))?,
                    _ => write!(f, "\\{byte:03}")?,
                }
            }
            f.write_str(".")?;
        }
        if self.0.len() == 1 { f.write_str(".") } else { Ok(()) }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The name of a question in small letters, on the stack.
#[derive(Clone, Copy)]
pub struct Lower {
    bytes: [u8; LONGEST],
    length: u8,
}

impl Lower {
    /// Of a name's bytes, which are no longer than a name.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut out = Self { bytes: [0; LONGEST], length: 0 };
        for (to, from) in out.bytes.iter_mut().zip(bytes) {
            *to = from.to_ascii_lowercase();
            out.length += 1;
        }
        out
    }

    /// Its bytes in a message.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The same, to keep.
    pub fn name(&self) -> Name {
        Name(Arc::from(self.bytes()))
    }
}

impl fmt::Debug for Lower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for (text, want) in [
            ("Web.default.SVC.cluster.local", Some("web.default.svc.cluster.local.")),
            ("a.", Some("a.")),
            (".", Some(".")),
            ("", Some(".")),
            ("a..b", None),
            ("..", None),
            (&"a".repeat(64), None),
            (&"abcdefg.".repeat(32), None),
        ] {
            assert_eq!(Name::parse(text).ok().map(|n| n.to_string()).as_deref(), want, "{text}");
        }
        assert!(Name::parse(&"abcdefg.".repeat(31)).is_ok());
    }

    #[test]
    fn bytes_of_messages() {
        let pointer = b"\x01a\x00\x01b\xc0\x00\xc0\x03";
        for (message, at, want) in [
            (&pointer[..], 3, Ok(("b.a.", 7))),
            (pointer, 7, Ok(("b.a.", 9))),
            (pointer, 9, Err(BadName)),
            // Onto itself, ahead, out of the message, of a kind that is not known, ended early.
            (b"\xc0\x00", 0, Err(BadName)),
            (b"\xc0\x02\x01a\x00", 0, Err(BadName)),
            (b"\x01a\xc0\x00", 0, Err(BadName)),
            (b"\x41a\x00", 0, Err(BadName)),
            (b"\x05ab\x00", 0, Err(BadName)),
            (b"\x01a", 0, Err(BadName)),
            (b"\x01.\x00", 0, Ok(("\\..", 3))),
        ] {
            let got = Name::read(message, at).map(|(name, after)| (name.to_string(), after));
            assert_eq!(got, want.map(|(text, after)| (text.to_owned(), after)), "{message:?}");
        }
        // The longest there is, and one byte more.
        let long = |last: usize| {
            let mut message: Vec<u8> = [63u8].into_iter().chain([b'x'; 63]).cycle().take(192).collect();
            message.push(u8::try_from(last).expect("short"));
            message.extend(vec![b'x'; last]);
            message.push(0);
            message
        };
        assert_eq!(Name::read(&long(61), 0).map(|(name, _)| name.bytes().len()), Ok(255));
        assert_eq!(Name::read(&long(62), 0).map(|(name, _)| name.bytes().len()), Err(BadName));
    }

    #[test]
    fn whose_names_are_whose() {
        let name = |text: &str| Name::parse(text).expect("a name");
        for (child, parent, want) in [
            ("a.cluster.local", "Cluster.local", true),
            ("cluster.local", "cluster.local", true),
            ("xcluster.local", "cluster.local", false),
            ("local", "cluster.local", false),
            ("a.b", ".", true),
        ] {
            assert_eq!(name(child).is_within(&name(parent)), want, "{child} {parent}");
        }
    }
}
