//! Messages as RFC 1035 and RFC 6891 write them: questions in, answers out, and what other servers say.
//!
//! This is not a library for DNS: it knows what a server of a cluster needs, makes no copy on the way of a
//! question that it can answer, and reads nothing without a bound.

mod name;
mod query;
mod read;
mod record;
mod write;

pub use name::{BadName, Lower, Name};
pub use query::{Edns, Query, Refusal};
pub use read::{BadMessage, Message, is_bare_refusal, question_matches, read};
pub use record::{Data, Record, Soa};
pub use write::{Reply, ask, encode, refuse};

/// Answer codes (RFC 1035 §4.1.1, RFC 6891 §9).
pub mod rcode {
    /// What was asked for, or that there is none of it.
    pub const NOERROR: u16 = 0;
    /// The question could not be read.
    pub const FORMERR: u16 = 1;
    /// It cannot be answered now.
    pub const SERVFAIL: u16 = 2;
    /// There is no such name.
    pub const NXDOMAIN: u16 = 3;
    /// That kind of message is not known here.
    pub const NOTIMP: u16 = 4;
    /// It is not answered.
    pub const REFUSED: u16 = 5;
    /// An extension of a version that is not known here.
    pub const BADVERS: u16 = 16;

    /// As metrics and logs name it.
    pub fn text(code: u16) -> &'static str {
        match code {
            NOERROR => "NOERROR",
            FORMERR => "FORMERR",
            SERVFAIL => "SERVFAIL",
            NXDOMAIN => "NXDOMAIN",
            NOTIMP => "NOTIMP",
            REFUSED => "REFUSED",
            BADVERS => "BADVERS",
            _ => "other",
        }
    }
}

/// Types of records.
pub mod kind {
    pub const A: u16 = 1;
    pub const NS: u16 = 2;
    pub const CNAME: u16 = 5;
    pub const SOA: u16 = 6;
    pub const PTR: u16 = 12;
    pub const HINFO: u16 = 13;
    pub const MX: u16 = 15;
    pub const TXT: u16 = 16;
    pub const AAAA: u16 = 28;
    pub const SRV: u16 = 33;
    pub const OPT: u16 = 41;
    pub const DS: u16 = 43;
    pub const RRSIG: u16 = 46;
    pub const NSEC: u16 = 47;
    pub const DNSKEY: u16 = 48;
    pub const NSEC3: u16 = 50;
    pub const HTTPS: u16 = 65;
    pub const IXFR: u16 = 251;
    pub const AXFR: u16 = 252;
    pub const ANY: u16 = 255;

    /// As metrics name it: those that CoreDNS tells apart.
    pub fn text(kind: u16) -> &'static str {
        match kind {
            A => "A",
            AAAA => "AAAA",
            MX => "MX",
            SOA => "SOA",
            CNAME => "CNAME",
            PTR => "PTR",
            TXT => "TXT",
            NS => "NS",
            SRV => "SRV",
            DS => "DS",
            DNSKEY => "DNSKEY",
            RRSIG => "RRSIG",
            NSEC => "NSEC",
            NSEC3 => "NSEC3",
            HTTPS => "HTTPS",
            IXFR => "IXFR",
            AXFR => "AXFR",
            ANY => "ANY",
            _ => "other",
        }
    }
}

/// The class of the Internet; no other is answered.
pub const IN: u16 = 1;
/// What a message over UDP may hold when its reader says nothing (RFC 1035 §4.2.1).
pub const CLASSIC: usize = 512;
/// What a message over UDP holds at most, whatever its reader says: beyond that it could be cut into fragments,
/// which are lost, and can be forged.
pub const DATAGRAM: usize = 1232;
