//! What a write was caused by, as the client says it, and a bounded journal of the writes that happened.

use std::collections::VecDeque;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;

/// How many causes one write may name; the rest is cut.
const MAX_CAUSES: usize = 8;
/// How long one cause may be, in bytes.
const MAX_CAUSE: usize = 512;
/// How many writes the journal remembers.
const JOURNAL: usize = 16_384;

/// One cause: the object whose processing made the client write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// `deployments.apps`, `pods`.
    pub resource: String,
    /// `namespace/name`, or the name alone at cluster scope.
    pub name: String,
    pub revision: u64,
}

/// The causes of one write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Causes {
    /// The W3C trace the write belongs to (`00-<trace>-<span>-<flags>`), empty when there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trace: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub list: Vec<Cause>,
    /// True when one of our own components says so: then it is a fact, else a claim.
    pub trusted: bool,
}

/// Reads `Pintle-Cause: <resource>/[<namespace>/]<name>@<revision>[, …]`. What cannot be read is
/// skipped: a cause never fails a write.
pub fn parse(header: &str) -> Vec<Cause> {
    header.split(',').map(str::trim).filter(|part| part.len() <= MAX_CAUSE).filter_map(one).take(MAX_CAUSES).collect()
}

fn one(text: &str) -> Option<Cause> {
    let (object, revision) = text.rsplit_once('@')?;
    let (resource, name) = object.split_once('/')?;
    if resource.is_empty() || name.split('/').any(str::is_empty) || name.matches('/').count() > 1 {
        return None;
    }
    Some(Cause { resource: resource.to_owned(), name: name.to_owned(), revision: revision.parse().ok()? })
}

/// One write that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    pub revision: u64,
    pub actor: String,
    pub verb: String,
    /// `deployments.apps/<namespace>/<name>`, with `/status` and the like appended.
    pub key: String,
    #[serde(flatten)]
    pub causes: Causes,
    pub time: Timestamp,
}

/// The last writes, oldest first; when full the oldest is forgotten.
#[derive(Debug, Default)]
pub struct Journal {
    records: Mutex<VecDeque<Record>>,
}

/// Which records a reader wants; all that match every given part.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// A part of the key, for example `pods/default/web-1`.
    pub key: String,
    /// Only this revision (0: any).
    pub revision: u64,
    /// Only after this revision.
    pub after: u64,
    /// At most so many, the newest.
    pub limit: usize,
}

impl Journal {
    /// Adds a write.
    pub fn add(&self, record: Record) {
        let mut records = self.records.lock();
        if records.len() >= JOURNAL {
            records.pop_front();
        }
        records.push_back(record);
    }

    /// The newest records that answer `question`, oldest first.
    pub fn query(&self, question: &Question) -> Vec<Record> {
        let records = self.records.lock();
        let mut found: Vec<Record> = records
            .iter()
            .rev()
            .take_while(|r| r.revision > question.after)
            .filter(|r| question.revision == 0 || r.revision == question.revision)
            .filter(|r| r.key.contains(&question.key))
            .take(question.limit)
            .cloned()
            .collect();
        found.reverse();
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_read_and_nonsense_is_skipped() {
        let cause =
            |resource: &str, name: &str, revision| Cause { resource: resource.into(), name: name.into(), revision };
        let cases: &[(&str, Vec<Cause>)] = &[
            ("", vec![]),
            ("replicasets.apps/default/web@7", vec![cause("replicasets.apps", "default/web", 7)]),
            ("nodes/n1@3, x, pods/a/b@", vec![cause("nodes", "n1", 3)]),
            (
                "roles.rbac.authorization.k8s.io/ns/system:a@1",
                vec![cause("roles.rbac.authorization.k8s.io", "ns/system:a", 1)],
            ),
            ("pods/a/b/c@1, pods//a@1, /a@1", vec![]),
            ("@@@///,,,", vec![]),
        ];
        for (header, want) in cases {
            assert_eq!(&parse(header), want, "{header}");
        }
        assert_eq!(parse(&"a/b/c@1,".repeat(100)).len(), MAX_CAUSES);
    }

    #[test]
    fn the_journal_is_bounded_and_answers_by_key_and_revision() {
        let journal = Journal::default();
        for revision in 1..=(JOURNAL as u64 + 10) {
            journal.add(Record {
                revision,
                actor: "me".into(),
                verb: "create".into(),
                key: format!("pods/default/p{revision}"),
                causes: Causes::default(),
                time: Timestamp::UNIX_EPOCH,
            });
        }
        let all = journal.query(&Question { limit: usize::MAX, ..Question::default() });
        assert_eq!((all.len(), all[0].revision), (JOURNAL, 11));
        let one = journal.query(&Question { key: "default/p12".into(), revision: 12, limit: 5, ..Question::default() });
        assert_eq!(one.len(), 1);
        let newest = journal.query(&Question { after: JOURNAL as u64, limit: 2, ..Question::default() });
        assert_eq!(newest.iter().map(|r| r.revision).collect::<Vec<_>>(), [JOURNAL as u64 + 9, JOURNAL as u64 + 10]);
    }
}
