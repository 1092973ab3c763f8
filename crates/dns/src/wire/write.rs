//! Answers, and questions to others, as bytes.

use super::query::{Edns, HEADER, Query, Refusal};
use super::{DATAGRAM, Data, Name, Record, Soa, kind, rcode};

/// Places in a message that a name can point to; what is beyond is written out.
const PLACES: usize = 64;
/// The size of an OPT record that says nothing more.
const OPT_SIZE: usize = 11;

/// What is answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub code: u16,
    /// We are who knows.
    pub authoritative: bool,
    /// Whom we asked has checked signatures.
    pub authentic: bool,
    pub answers: Vec<Record>,
    pub authority: Vec<Record>,
    /// Left out first when there is no room.
    pub additional: Vec<Record>,
}

impl Reply {
    /// A code and nothing else.
    pub fn code(code: u16) -> Self {
        Self { code, ..Self::default() }
    }
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
    /// How long the message may become.
    limit: usize,
    places: [u16; PLACES],
    used: usize,
}

impl Writer<'_> {
    fn word(&mut self, word: u16) {
        self.out.extend_from_slice(&word.to_be_bytes());
    }

    fn long(&mut self, long: u32) {
        self.out.extend_from_slice(&long.to_be_bytes());
    }

    /// Remembers where the labels of a name lie that begins at `at` and is written out from there.
    fn remember(&mut self, mut at: usize) {
        while let Some(size) = self.out.get(at).copied().filter(|size| *size != 0 && *size < 64) {
            let Ok(place) = u16::try_from(at) else { return };
            if place >= 0x4000 || self.used == PLACES {
                return;
            }
            self.places[self.used] = place;
            self.used += 1;
            at += 1 + usize::from(size);
        }
    }

    /// True when the name that lies at `at` is this one.
    fn lies(&self, mut at: usize, mut name: &[u8]) -> bool {
        loop {
            let Some(size) = self.out.get(at).copied() else { return false };
            if size >= 0xc0 {
                // What we have written points back only.
                at = usize::from(size & 0x3f) << 8 | usize::from(self.out.get(at + 1).copied().unwrap_or_default());
                continue;
            }
            let length = 1 + usize::from(size);
            let same = self.out.get(at..at + length).zip(name.get(..length));
            if !same.is_some_and(|(there, here)| there.eq_ignore_ascii_case(here)) {
                return false;
            }
            if size == 0 {
                return true;
            }
            at += length;
            name = &name[length..];
        }
    }

    /// Writes a name, as short as it can be.
    fn name(&mut self, name: &Name) {
        let (start, mut rest) = (self.out.len(), name.bytes());
        while let Some(size) = rest.first().copied().filter(|size| *size != 0) {
            if let Some(place) = self.places[..self.used].iter().find(|at| self.lies(usize::from(**at), rest)) {
                let place = *place;
                self.word(0xc000 | place);
                self.remember(start);
                return;
            }
            let (label, after) = rest.split_at(1 + usize::from(size));
            self.out.extend_from_slice(label);
            rest = after;
        }
        self.out.push(0);
        self.remember(start);
    }

    /// Writes a record, or nothing when there is no room for it.
    fn record(&mut self, record: &Record) -> bool {
        let (start, used) = (self.out.len(), self.used);
        self.name(&record.name);
        self.word(record.kind());
        self.word(super::IN);
        self.long(record.ttl);
        let length = self.out.len();
        self.word(0);
        self.data(&record.data);
        let size = u16::try_from(self.out.len() - length - 2);
        if let Ok(size) = size
            && self.out.len() <= self.limit
        {
            self.out[length..length + 2].copy_from_slice(&size.to_be_bytes());
            return true;
        }
        self.out.truncate(start);
        self.used = used;
        false
    }

    fn data(&mut self, data: &Data) {
        match data {
            Data::A(address) => self.out.extend_from_slice(&address.octets()),
            Data::Aaaa(address) => self.out.extend_from_slice(&address.octets()),
            Data::Cname(name) | Data::Ns(name) | Data::Ptr(name) => self.name(name),
            Data::Soa(soa) => self.soa(soa),
            Data::Srv { priority, weight, port, target } => {
                [*priority, *weight, *port].into_iter().for_each(|word| self.word(word));
                // Not shortened (RFC 2782).
                self.out.extend_from_slice(target.bytes());
            }
            Data::Txt(text) => {
                let text = &text.as_bytes()[..text.len().min(255)];
                self.out.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
                self.out.extend_from_slice(text);
            }
            Data::Other { data, .. } => self.out.extend_from_slice(data),
        }
    }

    fn soa(&mut self, soa: &Soa) {
        self.name(&soa.primary);
        self.name(&soa.mailbox);
        [soa.serial, soa.refresh, soa.retry, soa.expire, soa.minimum].into_iter().for_each(|long| self.long(long));
    }

    /// Writes records while there is room; how many, and whether all.
    fn records(&mut self, records: &[Record]) -> (u16, bool) {
        let written = records.iter().take(usize::from(u16::MAX)).take_while(|record| self.record(record)).count();
        (u16::try_from(written).unwrap_or(u16::MAX), written == records.len())
    }

    fn opt(&mut self, code: u16, signatures: bool) {
        self.out.push(0);
        self.word(kind::OPT);
        self.word(u16::try_from(DATAGRAM).unwrap_or(u16::MAX));
        self.out.extend_from_slice(&[u8::try_from(code >> 4).unwrap_or_default(), 0]);
        self.word(if signatures { 0x8000 } else { 0 });
        self.word(0);
    }
}

/// Writes the answer to a question, no longer than `limit`: what does not fit is left out, and the client told to
/// ask again over TCP. As much as fits is sent, because some clients never do.
pub fn encode(query: &Query<'_>, reply: &Reply, limit: usize, out: &mut Vec<u8>) {
    out.clear();
    let room = if query.edns.is_some() { OPT_SIZE } else { 0 };
    let mut writer = Writer { out, limit: limit.saturating_sub(room), places: [0; PLACES], used: 0 };
    writer.out.extend_from_slice(&[0; HEADER]);
    writer.out.extend_from_slice(query.question);
    writer.remember(HEADER);
    let (answers, all) = writer.records(&reply.answers);
    let (authority, enough) = if all { writer.records(&reply.authority) } else { (0, true) };
    let truncated = !all || !enough;
    let (mut additional, _) = if truncated { (0, true) } else { writer.records(&reply.additional) };
    if let Some(edns) = query.edns {
        writer.opt(reply.code, edns.signatures);
        additional += 1;
    }
    let bits = [
        (true, 0x8000),
        (reply.authoritative, 0x0400),
        (truncated, 0x0200),
        (query.recursion, 0x0100),
        (true, 0x0080),
        (reply.authentic, 0x0020),
        (query.unchecked, 0x0010),
    ];
    let flags = bits.iter().filter(|(set, _)| *set).fold(reply.code & 0xf, |flags, (_, bit)| flags | bit);
    let header = [query.id, flags, 1, answers, authority, additional];
    for (at, word) in header.into_iter().enumerate() {
        out[2 * at..2 * at + 2].copy_from_slice(&word.to_be_bytes());
    }
}

/// Writes what a message that was no question gets. False when it gets nothing.
pub fn refuse(refusal: Refusal, out: &mut Vec<u8>) -> bool {
    out.clear();
    let Refusal::Code { id, flags, code, edns } = refusal else { return false };
    // The operation and the wish for recursion are told back.
    let flags = 0x8000 | (flags & 0x7900) | (code & 0xf);
    let mut writer = Writer { out, limit: DATAGRAM, places: [0; PLACES], used: 0 };
    [id, flags, 0, 0, 0, u16::from(edns)].into_iter().for_each(|word| writer.word(word));
    if edns {
        writer.opt(code, false);
    }
    true
}

/// Writes a question to somebody else.
pub fn ask(id: u16, name: &Name, kind: u16, unchecked: bool, edns: Option<Edns>, out: &mut Vec<u8>) {
    out.clear();
    let mut writer = Writer { out, limit: DATAGRAM, places: [0; PLACES], used: 0 };
    let flags = 0x0100 | if unchecked { 0x0010 } else { 0 };
    [id, flags, 1, 0, 0, u16::from(edns.is_some())].into_iter().for_each(|word| writer.word(word));
    writer.out.extend_from_slice(name.bytes());
    writer.word(kind);
    writer.word(super::IN);
    if let Some(edns) = edns {
        writer.opt(rcode::NOERROR, edns.signatures);
    }
}
