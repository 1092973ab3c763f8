//! What is believed of another server's answer: the records of the name that was asked for and of those it
//! stands for, and who says that there are none. Whatever else it brings along is dropped, so that nobody can
//! say anything of names that nobody asked them about.

use super::Question;
use crate::wire::{Data, Message, Name, Record, Reply, kind};

/// Names that one name may stand for.
const CHAIN: usize = 16;

/// The reply that an answer is worth.
pub fn sift(question: &Question, message: Message) -> Reply {
    let (mut names, mut kept) = (vec![question.name.clone()], Vec::new());
    let signs =
        |record: &Record, name: &Name| question.signatures && record.kind() == kind::RRSIG && record.name == *name;
    let answers = message.answers;
    // The chain comes in any order.
    while let Some(name) = names.last().cloned().filter(|_| names.len() <= CHAIN && question.kind != kind::CNAME) {
        let alias = answers.iter().find_map(|record| match &record.data {
            Data::Cname(target) if record.name == name => Some((record, target.lower())),
            _ => None,
        });
        let Some((record, target)) = alias.filter(|(_, target)| !names.contains(target)) else { break };
        kept.push(record.clone());
        kept.extend(answers.iter().filter(|record| signs(record, &name)).cloned());
        names.push(target);
    }
    let last = names.last().cloned().unwrap_or_else(Name::root);
    let is_asked_for = |record: &&Record| {
        record.name == last && (record.kind() == question.kind || question.kind == kind::ANY || signs(record, &last))
    };
    kept.extend(answers.iter().filter(is_asked_for).cloned());
    // Who says that there is nothing must be responsible for one of the names.
    let soa =
        message.authority.iter().find(|r| r.kind() == kind::SOA && names.iter().any(|name| name.is_within(&r.name)));
    // An answer that was made of a wildcard comes with the proof that nothing stands nearer, and without an SOA: it is
    // of the zone that signed the answer.
    let zone = soa.map(|soa| soa.name.clone()).or_else(|| kept.iter().find_map(signer));
    let proves = |record: &&Record| {
        question.signatures
            && matches!(record.kind(), kind::NSEC | kind::NSEC3 | kind::RRSIG)
            && zone.as_ref().is_some_and(|zone| record.name.is_within(zone))
    };
    let proofs = message.authority.iter().filter(proves).cloned();
    let authority = soa.cloned().into_iter().chain(proofs).collect();
    Reply { code: message.code, authentic: message.authentic, answers: kept, authority, ..Reply::default() }
}

/// The zone that made a signature, where it may have: what it signed is of that zone.
fn signer(record: &Record) -> Option<Name> {
    /// What stands before the name: type, algorithm, labels, three times, and the key's number.
    const BEFORE: usize = 18;
    let Data::Other { kind: kind::RRSIG, data } = &record.data else { return None };
    let (name, end) = Name::read(data, BEFORE).ok()?;
    let name = name.lower();
    // It is never compressed, and the root signs no answers.
    (end <= data.len() && name != Name::root() && record.name.lower().is_within(&name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Soa, rcode};
    use crate::zone::tests_text as text;

    fn record(line: &str) -> Record {
        let words: Vec<&str> = line.split(' ').collect();
        let name = |text: &str| Name::parse(text).expect("a name");
        let data = match words[1] {
            "A" => Data::A(words[2].parse().expect("an address")),
            "CNAME" => Data::Cname(name(words[2])),
            "NS" => Data::Ns(name(words[2])),
            "SOA" => Data::Soa(Soa {
                primary: name("ns"),
                mailbox: name("me"),
                serial: 1,
                refresh: 1,
                retry: 1,
                expire: 1,
                minimum: 9,
            }),
            "RRSIG" if words.len() > 2 && words[2] != "x" => {
                let data = [&[0; 18][..], Name::parse(words[2]).expect("a name").bytes(), &[7; 9]].concat();
                Data::Other { kind: kind::RRSIG, data: data.into() }
            }
            "RRSIG" => Data::Other { kind: kind::RRSIG, data: Box::from([]) },
            "NSEC" => Data::Other { kind: kind::NSEC, data: Box::from([]) },
            other => panic!("{other}"),
        };
        Record { name: name(words[0]), ttl: 60, data }
    }

    #[test]
    fn only_what_was_asked_for_is_believed() {
        // Answers, authority, what is kept of either; and with signatures.
        type Row = (&'static [&'static str], &'static [&'static str], bool, &'static [&'static str]);
        let rows: &[Row] = &[
            (&["a.org A 1.1.1.1", "a.org A 1.1.1.2"], &[], false, &["a.org. A 1.1.1.1", "a.org. A 1.1.1.2"]),
            // Another name's address, in the same answer.
            (&["a.org A 1.1.1.1", "bank.org A 6.6.6.6"], &[], false, &["a.org. A 1.1.1.1"]),
            (&["bank.org A 6.6.6.6"], &[], false, &[]),
            (&["a.org NS ns.evil.org", "a.org A 1.1.1.1"], &["org NS ns.evil.org"], false, &["a.org. A 1.1.1.1"]),
            // A chain, in any order, and what is beside it.
            (
                &["c.org A 1.1.1.1", "b.org CNAME C.org", "A.org CNAME b.org", "d.org CNAME bank.org"],
                &[],
                false,
                &["a.org. CNAME b.org.", "b.org. CNAME c.org.", "c.org. A 1.1.1.1"],
            ),
            // A name that stands for itself, at once and in the end.
            (&["a.org CNAME a.org"], &[], false, &[]),
            (&["a.org CNAME b.org", "b.org CNAME a.org"], &[], false, &["a.org. CNAME b.org."]),
            // Who is not responsible says nothing.
            (&[], &["org SOA x"], false, &["org. SOA ns. me. 9"]),
            (&[], &["evil.org SOA x"], false, &[]),
            (&["a.org CNAME b.net"], &["net SOA x"], false, &["a.org. CNAME b.net.", "net. SOA ns. me. 9"]),
            // Signatures, where they are wanted.
            (&["a.org A 1.1.1.1", "a.org RRSIG x"], &["org NSEC x"], false, &["a.org. A 1.1.1.1"]),
            (
                &["a.org A 1.1.1.1", "a.org RRSIG x", "bank.org RRSIG x"],
                &["org SOA x", "b.org NSEC x", "b.net NSEC x"],
                true,
                &["a.org. A 1.1.1.1", "a.org. TYPE46 ", "org. SOA ns. me. 9", "b.org. TYPE47 "],
            ),
            // Made of a wildcard: the proof comes with the answer, from whoever signed it and nobody else.
            (
                &["a.org A 1.1.1.1", "a.org RRSIG org"],
                &["0.org NSEC x", "0.org RRSIG org", "b.net NSEC x"],
                true,
                &["a.org. A 1.1.1.1", "a.org. TYPE46 ", "0.org. TYPE47 ", "0.org. TYPE46 "],
            ),
            (&["a.org A 1.1.1.1", "a.org RRSIG net"], &["b.net NSEC x"], true, &["a.org. A 1.1.1.1", "a.org. TYPE46 "]),
            (&["a.org A 1.1.1.1", "a.org RRSIG org"], &["0.org NSEC x"], false, &["a.org. A 1.1.1.1"]),
        ];
        for (answers, authority, signatures, want) in rows {
            let name = Name::parse("a.org").expect("a name");
            let question = Question { name, kind: kind::A, signatures: *signatures, unchecked: false };
            let records = |lines: &[&str]| lines.iter().map(|line| record(line)).collect::<Vec<_>>();
            let message = Message {
                code: rcode::NOERROR,
                answers: records(answers),
                authority: records(authority),
                ..Message::default()
            };
            let reply = sift(&question, message);
            // What a signature holds is no text.
            let shown = |record: &Record| match record.kind() {
                kind::RRSIG => format!("{} TYPE46 ", record.name),
                _ => text(record),
            };
            let got: Vec<String> = reply.answers.iter().chain(&reply.authority).map(shown).collect();
            let got: Vec<String> =
                got.iter().map(|line| line.replacen("A.org.", "a.org.", 1).replace("C.org", "c.org")).collect();
            assert_eq!(got, *want, "{answers:?} {authority:?}");
        }
    }

    #[test]
    fn chains_end() {
        let answers = (0..100).map(|n| record(&format!("n{n} CNAME n{}", n + 1))).collect();
        let name = Name::parse("n0").expect("a name");
        let question = Question { name, kind: kind::A, signatures: false, unchecked: false };
        let reply = sift(&question, Message { answers, ..Message::default() });
        assert_eq!(reply.answers.len(), CHAIN);
    }
}
