//! What other servers answer, read whole: names are written out, so that records can be kept and told again.

use super::query::HEADER;
use super::{Data, Name, Record, Soa, kind};

/// Records that are read of one message.
const RECORDS: usize = 4096;

/// A message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is damaged")]
pub struct BadMessage;

/// An answer of another server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub code: u16,
    /// There was no room for all.
    pub truncated: bool,
    /// Whoever answers has checked signatures.
    pub authentic: bool,
    pub answers: Vec<Record>,
    pub authority: Vec<Record>,
}

struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn word(&mut self) -> Result<u16, BadMessage> {
        let bytes = self.message.get(self.at..self.at + 2).ok_or(BadMessage)?;
        self.at += 2;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn long(&mut self) -> Result<u32, BadMessage> {
        Ok(u32::from(self.word()?) << 16 | u32::from(self.word()?))
    }

    fn name(&mut self) -> Result<Name, BadMessage> {
        let (name, after) = Name::read(self.message, self.at).map_err(|_| BadMessage)?;
        self.at = after;
        Ok(name)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], BadMessage> {
        let bytes = self.message.get(self.at..self.at + N).ok_or(BadMessage)?;
        self.at += N;
        bytes.try_into().map_err(|_| BadMessage)
    }

    /// A record; `None` for one of another class, and for OPT.
    fn record(&mut self) -> Result<Option<Record>, BadMessage> {
        let name = self.name()?;
        let (kind, class, ttl, length) = (self.word()?, self.word()?, self.long()?, usize::from(self.word()?));
        let end = self.at + length;
        if end > self.message.len() {
            return Err(BadMessage);
        }
        if class != super::IN || kind == kind::OPT {
            self.at = end;
            return Ok(None);
        }
        let data = match kind {
            kind::A => Data::A(self.bytes::<4>()?.into()),
            kind::AAAA => Data::Aaaa(self.bytes::<16>()?.into()),
            kind::CNAME => Data::Cname(self.name()?),
            kind::NS => Data::Ns(self.name()?),
            kind::PTR => Data::Ptr(self.name()?),
            kind::SOA => Data::Soa(Soa {
                primary: self.name()?,
                mailbox: self.name()?,
                serial: self.long()?,
                refresh: self.long()?,
                retry: self.long()?,
                expire: self.long()?,
                minimum: self.long()?,
            }),
            kind::SRV => {
                Data::Srv { priority: self.word()?, weight: self.word()?, port: self.word()?, target: self.name()? }
            }
            _ => Data::Other { kind, data: self.other(kind, end)? },
        };
        if self.at != end {
            return Err(BadMessage);
        }
        // The highest bit says that it may not be kept (RFC 2181 §8).
        let ttl = if ttl > i32::MAX as u32 { 0 } else { ttl };
        Ok(Some(Record { name, ttl, data }))
    }

    /// The data of a type that is not looked into. In those of RFC 1035, and in no others of today, names may
    /// be shortened (RFC 3597 §4).
    fn other(&mut self, kind: u16, end: usize) -> Result<Box<[u8]>, BadMessage> {
        let (before, names): (usize, usize) = match kind {
            // MD MF MB MG MR
            3 | 4 | 7 | 8 | 9 => (0, 1),
            // MINFO RP
            14 | 17 => (0, 2),
            // MX AFSDB RT KX
            kind::MX | 18 | 21 | 36 => (2, 1),
            // PX
            26 => (2, 2),
            _ => (end - self.at, 0),
        };
        let mut out = self.message.get(self.at..self.at + before).ok_or(BadMessage)?.to_vec();
        self.at += before;
        for _ in 0..names {
            out.extend_from_slice(self.name()?.bytes());
        }
        Ok(out.into())
    }

    fn records(&mut self, count: usize) -> Result<Vec<Record>, BadMessage> {
        let mut out = Vec::new();
        for _ in 0..count {
            if out.len() >= RECORDS {
                return Err(BadMessage);
            }
            out.extend(self.record()?);
        }
        Ok(out)
    }
}

/// Reads an answer, but for what stands in its additional section: nothing there was asked for.
///
/// # Errors
/// It is no answer, or damaged.
pub fn read(message: &[u8]) -> Result<Message, BadMessage> {
    let mut reader = Reader { message, at: 2 };
    let (flags, questions, answers, authority) = (reader.word()?, reader.word()?, reader.word()?, reader.word()?);
    reader.at = HEADER;
    if flags & 0x8000 == 0 || questions > 1 {
        return Err(BadMessage);
    }
    for _ in 0..questions {
        reader.name()?;
        reader.long()?;
    }
    let truncated = flags & 0x0200 != 0;
    let mut out = Message { code: flags & 0xf, truncated, authentic: flags & 0x20 != 0, ..Message::default() };
    if truncated {
        // It may end anywhere, and all of it is asked for again.
        return Ok(out);
    }
    out.answers = reader.records(usize::from(answers))?;
    out.authority = reader.records(usize::from(authority))?;
    Ok(out)
}

/// True when `message` answers the question that was asked as `asked`: by its id, and by the question as it was.
pub fn question_matches(asked: &[u8], message: &[u8]) -> bool {
    let Ok((_, after)) = Name::read(asked, HEADER) else { return false };
    let part = |from: usize, to: usize| asked.get(from..to).zip(message.get(from..to));
    part(0, 2).is_some_and(|(a, b)| a == b)
        // An answer to a question, of which there is one.
        && message.get(2).is_some_and(|flags| flags & 0xf8 == 0x80)
        && message.get(4..6) == Some(&[0, 1])
        && part(HEADER, after).is_some_and(|(a, b)| a.eq_ignore_ascii_case(b))
        && part(after, after + 4).is_some_and(|(a, b)| a == b)
}

/// True when `message` says of what was asked as `asked` that it cannot be read, and does not even repeat it.
pub fn is_bare_refusal(asked: &[u8], message: &[u8]) -> bool {
    let counts_nothing = message.get(4..HEADER).is_some_and(|counts| counts.iter().all(|byte| *byte == 0));
    counts_nothing
        && message.get(..2) == asked.get(..2)
        && message.get(2).is_some_and(|flags| flags & 0xf8 == 0x80)
        && message.get(3).is_some_and(|flags| u16::from(flags & 0xf) == super::rcode::FORMERR)
}

#[cfg(test)]
mod tests {
    use super::super::{Edns, Query, Reply, ask, encode};
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        Name::parse(text).expect("a name")
    }

    fn asked() -> Vec<u8> {
        let mut out = Vec::new();
        let edns = Some(Edns { size: 1232, signatures: true });
        ask(7, &name("web.example.org"), kind::A, false, edns, &mut out);
        out
    }

    /// Every kind of record there is, so that names point into each other.
    fn reply() -> Reply {
        let soa = Soa {
            primary: name("ns.example.org"),
            mailbox: name("me.example.org"),
            serial: 1,
            refresh: 2,
            retry: 3,
            expire: 4,
            minimum: 5,
        };
        let mx = [&[0, 5][..], name("mail.example.org").bytes()].concat();
        let data = [
            Data::Cname(name("other.example.org")),
            Data::A([10, 0, 0, 1].into()),
            Data::Aaaa("fd00::1".parse().expect("an address")),
            Data::Ns(name("ns.example.org")),
            Data::Ptr(name("other.example.org")),
            Data::Srv { priority: 1, weight: 2, port: 3, target: name("other.example.org") },
            Data::Other { kind: kind::TXT, data: Box::from(&b"\x02hi"[..]) },
            Data::Other { kind: kind::MX, data: mx.into() },
        ];
        let answers = data.into_iter().map(|data| Record { name: name("web.example.org"), ttl: 60, data }).collect();
        let authority = vec![Record { name: name("example.org"), ttl: 9, data: Data::Soa(soa) }];
        Reply { code: 3, authentic: true, answers, authority, ..Reply::default() }
    }

    #[test]
    fn what_is_written_is_read() {
        let asked = asked();
        let query = Query::read(&asked).expect("a question");
        let (reply, mut out) = (reply(), Vec::new());
        encode(&query, &reply, 1232, &mut out);
        assert!(question_matches(&asked, &out));
        let read = read(&out).expect("an answer");
        assert_eq!((read.code, read.truncated, read.authentic), (3, false, true));
        assert_eq!((read.answers, read.authority), (reply.answers, reply.authority));
        // A name is written out once.
        assert_eq!(out.windows(8).filter(|w| w == b"\x07example").count(), 3, "but in SRV and in what is not known");
    }

    #[test]
    fn what_does_not_fit_is_asked_for_again() {
        let asked = asked();
        let query = Query::read(&asked).expect("a question");
        let answers: Vec<Record> =
            (0..100).map(|n| Record::address(name("web.example.org"), 5, [10, 0, 0, n].into())).collect();
        let reply = Reply { answers, ..Reply::default() };
        for limit in [512, 513, 1232, 65_535] {
            let mut out = Vec::new();
            encode(&query, &reply, limit, &mut out);
            let (records, cut) = (u16::from_be_bytes([out[6], out[7]]), out[2] & 2 != 0);
            assert!(out.len() <= limit && out.len() + 16 > limit.min(12 + 21 + 11 + 1600), "{limit}: {}", out.len());
            assert_eq!((records == 100, cut), (limit == 65_535, limit != 65_535), "{limit}");
            // The rest says how to ask again, and the OPT record is there.
            assert_eq!((out[11], out[out.len() - 10..out.len() - 8].to_vec()), (1, vec![0, 41]), "{limit}");
        }
    }

    #[test]
    fn an_answer_to_something_else_is_none() {
        let (asked, mut out) = (asked(), Vec::new());
        encode(&Query::read(&asked).expect("a question"), &reply(), 1232, &mut out);
        assert!(question_matches(&asked, &out));
        let changed = |at: usize, byte: u8| {
            let mut other = out.clone();
            other[at] ^= byte;
            question_matches(&asked, &other)
        };
        // Another case is the same name; another id, a question, another name, type or class is not it.
        assert!(changed(13, 0x20));
        for (at, byte) in [(1, 1), (2, 0x80), (5, 1), (13, 1), (12 + 18, 3), (12 + 20, 2)] {
            assert!(!changed(at, byte), "{at}");
        }
        assert!(!question_matches(&asked, &out[..20]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = read(&bytes);
            let mut out = Vec::new();
            match Query::read(&bytes) {
                Ok(query) => {
                    encode(&query, &reply(), query.limit(), &mut out);
                    prop_assert!(out.len() <= query.limit());
                }
                Err(refusal) => {
                    // No more is sent than came, but for an OPT record.
                    if super::super::refuse(refusal, &mut out) {
                        prop_assert!(out.len() <= bytes.len() + 11);
                    }
                }
            }
        }

        #[test]
        fn damage_is_found_or_harmless(at in 0usize..400, byte in any::<u8>()) {
            let (asked, mut out) = (asked(), Vec::new());
            encode(&Query::read(&asked).expect("a question"), &reply(), 1232, &mut out);
            let at = at % out.len();
            out[at] ^= byte;
            if let Ok(message) = read(&out) {
                let reply = Reply { answers: message.answers, authority: message.authority, ..Reply::default() };
                let mut again = Vec::new();
                encode(&Query::read(&asked).expect("a question"), &reply, 65_535, &mut again);
                prop_assert!(read(&again).is_ok());
            }
        }
    }
}
