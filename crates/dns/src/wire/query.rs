//! Questions, read where they lie.

use super::name::{LONGEST, Lower, Name};
use super::rcode;

/// What a client says of itself beyond the question (RFC 6891).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edns {
    /// The longest datagram it takes.
    pub size: u16,
    /// It wants signatures.
    pub signatures: bool,
}

/// A question that can be answered.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    pub id: u16,
    /// Somebody else may be asked.
    pub recursion: bool,
    /// Signatures need not be checked.
    pub unchecked: bool,
    /// The bytes of the question, as they are told back.
    pub question: &'a [u8],
    /// The name in small letters.
    pub name: Lower,
    pub kind: u16,
    pub edns: Option<Edns>,
}

/// A message that is not answered as a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Too short, or itself an answer: silence.
    Silent,
    /// This code, under this id, operation and bit for recursion, and with an OPT record where one came.
    Code { id: u16, flags: u16, code: u16, edns: bool },
}

/// The size of a header.
pub const HEADER: usize = 12;
const QR: u16 = 0x8000;
const RD: u16 = 0x0100;
const CD: u16 = 0x0010;
const OPCODE: u16 = 0x7800;

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

impl<'a> Query<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// Says how it is refused: unread (format), of another operation than a question, of another class or of a
    /// version that is not known.
    pub fn read(message: &'a [u8]) -> Result<Self, Refusal> {
        let header = |n: usize| word(message, 2 * n).unwrap_or_default();
        if message.len() < HEADER || header(1) & QR != 0 {
            return Err(Refusal::Silent);
        }
        let (id, flags) = (header(0), header(1));
        let refused = |code, edns| Refusal::Code { id, flags, code, edns };
        let broken = refused(rcode::FORMERR, false);
        if flags & OPCODE != 0 {
            return Err(refused(rcode::NOTIMP, false));
        }
        // One question, nothing answered, and no more beside it than an OPT record and a signature.
        if header(2) != 1 || header(3) != 0 || header(4) != 0 || header(5) > 2 {
            return Err(broken);
        }
        // A question comes first: there is nothing that a pointer could lead back to.
        let mut end = HEADER;
        loop {
            let size = usize::from(*message.get(end).ok_or(broken)?);
            end += 1 + size;
            if size > 63 || end - HEADER > LONGEST {
                return Err(broken);
            }
            if size == 0 {
                break;
            }
        }
        let name = Lower::of(message.get(HEADER..end).ok_or(broken)?);
        let kind = word(message, end).ok_or(broken)?;
        let class = word(message, end + 2).ok_or(broken)?;
        let question = message.get(HEADER..end + 4).ok_or(broken)?;
        let edns = options(message, end + 4, header(5)).ok_or(broken)?;
        if let Some((_, version)) = edns.filter(|(_, version)| *version != 0) {
            tracing::trace!(version, "a version that is not known");
            return Err(refused(rcode::BADVERS, true));
        }
        if class != super::IN {
            return Err(refused(rcode::REFUSED, edns.is_some()));
        }
        let edns = edns.map(|(edns, _)| edns);
        Ok(Self { id, recursion: flags & RD != 0, unchecked: flags & CD != 0, question, name, kind, edns })
    }

    /// The longest answer over UDP.
    pub fn limit(&self) -> usize {
        self.edns.map_or(super::CLASSIC, |edns| usize::from(edns.size).clamp(super::CLASSIC, super::DATAGRAM))
    }
}

/// The OPT record among the `count` records at `at`, and its version. `None` when they cannot be read or there
/// are two of it.
fn options(message: &[u8], mut at: usize, count: u16) -> Option<Option<(Edns, u8)>> {
    let mut found = None;
    for _ in 0..count {
        let is_root = message.get(at) == Some(&0);
        // The OPT record belongs to the root, and nearly always there is no other.
        let after = if is_root { at + 1 } else { Name::read(message, at).ok()?.1 };
        let kind = word(message, after)?;
        let length = usize::from(word(message, after + 8)?);
        message.get(after + 10..after + 10 + length)?;
        if kind == super::kind::OPT {
            if found.is_some() || !is_root {
                return None;
            }
            let signatures = word(message, after + 6)? & 0x8000 != 0;
            found = Some((Edns { size: word(message, after + 2)?, signatures }, *message.get(after + 5)?));
        }
        at = after + 10 + length;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(flags: u16, counts: [u16; 4], rest: &[u8]) -> Vec<u8> {
        let words = [0x1234, flags].into_iter().chain(counts);
        words.flat_map(u16::to_be_bytes).chain(rest.iter().copied()).collect()
    }

    const ASKED: &[u8] = b"\x03wEb\x00\x00\x01\x00\x01";
    const OPT: &[u8] = b"\x00\x00\x29\x04\xd0\x00\x00\x80\x00\x00\x00";

    #[test]
    fn what_is_read_and_what_is_refused() {
        let with = |tail: &[u8]| [ASKED, tail].concat();
        let code = |code| Err(Refusal::Code { id: 0x1234, flags: 0x0100, code, edns: false });
        type Read = Result<(&'static str, u16, usize), Refusal>;
        let rows: Vec<(Vec<u8>, Read)> = vec![
            (message(0x0100, [1, 0, 0, 0], ASKED), Ok(("web.", 1, 512))),
            (message(0x0100, [1, 0, 0, 1], &with(OPT)), Ok(("web.", 1, 1232))),
            // A client that takes less than is sent to everybody, and one that takes more than is sent to anybody.
            (message(0x0100, [1, 0, 0, 1], &with(b"\0\0\x29\0\x10\0\0\0\0\0\0")), Ok(("web.", 1, 512))),
            (message(0x0100, [1, 0, 0, 1], &with(b"\0\0\x29\xff\xff\0\0\0\0\0\0")), Ok(("web.", 1, 1232))),
            (message(0x0100, [1, 0, 0, 1], &with(b"\x01a\0\0\x01\0\x01\0\0\0\0\0\0")), Ok(("web.", 1, 512))),
            (message(0x0100, [1, 0, 0, 0], b"\0\0\x02\0\x01"), Ok((".", 2, 512))),
            (message(0x8100, [1, 0, 0, 0], ASKED), Err(Refusal::Silent)),
            (b"\x12\x34\x01".to_vec(), Err(Refusal::Silent)),
            (message(0x0100, [0, 0, 0, 0], b""), code(rcode::FORMERR)),
            (message(0x0100, [2, 0, 0, 0], &with(ASKED)), code(rcode::FORMERR)),
            (message(0x0100, [1, 1, 0, 0], ASKED), code(rcode::FORMERR)),
            (message(0x0100, [1, 0, 0, 1], ASKED), code(rcode::FORMERR)),
            (message(0x0100, [1, 0, 0, 2], &with(&[OPT, OPT].concat())), code(rcode::FORMERR)),
            (message(0x0100, [1, 0, 0, 3], ASKED), code(rcode::FORMERR)),
            (message(0x0100, [1, 0, 0, 0], b"\xc0\x0c\x00\x01\x00\x01"), code(rcode::FORMERR)),
            (message(0x0100, [1, 0, 0, 0], b"\x03we"), code(rcode::FORMERR)),
            (message(0x0100, [1, 0, 0, 0], &[0x01, b'a'].repeat(128)), code(rcode::FORMERR)),
            (message(0x0100, [1, 0, 0, 0], b"\x03web\x00\x00\x01\x00\x03"), code(rcode::REFUSED)),
            (
                message(0x0100, [1, 0, 0, 1], &with(b"\0\0\x29\x04\xd0\0\x01\0\0\0\0")),
                Err(Refusal::Code { id: 0x1234, flags: 0x0100, code: rcode::BADVERS, edns: true }),
            ),
            (
                message(0x2900, [1, 0, 0, 0], ASKED),
                Err(Refusal::Code { id: 0x1234, flags: 0x2900, code: rcode::NOTIMP, edns: false }),
            ),
        ];
        for (message, want) in rows {
            let got = Query::read(&message).map(|q| (q.name.name().to_string(), q.kind, q.limit()));
            assert_eq!(got, want.map(|(name, kind, limit)| (name.to_owned(), kind, limit)), "{message:?}");
        }
    }
}
