//! One question through everything that may know the answer: the cluster's zone first, then what is kept of
//! others' answers, then the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::metrics::Whose;
use crate::ready::Ready;
use crate::upstream::{Forwarder, Question};
use crate::wire::{Data, Query, Record, Reply, kind, rcode};
use crate::zone::{Asked, Found, Zone};

/// Names that stand for names, one after another.
const CHAIN: usize = 8;

/// What is known of a question at once.
#[derive(Debug)]
pub enum Begun {
    Done(Whose, Reply),
    /// Somebody else is to be asked; these records come first.
    Ask(Whose, Pending),
}

/// What is left to be done for a question.
#[derive(Debug)]
pub struct Pending {
    before: Vec<Record>,
    question: Question,
}

/// Knows who knows.
pub struct Resolver {
    zone: Arc<RwLock<Zone>>,
    ready: Arc<Ready>,
    forwarder: Forwarder,
    turn: AtomicUsize,
}

impl Resolver {
    /// A resolver; what it says of the cluster is that it cannot say, until names are known.
    pub fn new(zone: Arc<RwLock<Zone>>, ready: Arc<Ready>, forwarder: Forwarder) -> Self {
        Self { zone, ready, forwarder, turn: AtomicUsize::new(0) }
    }

    /// Answers what can be answered without waiting; `room` is how long the answer may be.
    pub fn begin(&self, query: &Query<'_>, room: usize) -> Begun {
        if matches!(query.kind, kind::AXFR | kind::IXFR) {
            return Begun::Done(Whose::Others, Reply::code(rcode::REFUSED));
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        // No record is shorter than sixteen bytes.
        let (kind, most) = (query.kind, room / 16 + 1);
        let (mut whose, mut before) = (None, Vec::new());
        let mut name = None;
        for _ in 0..CHAIN {
            let found = match &name {
                None => self.zone.read().find(Asked { name: query.name.bytes(), kind, turn, most }),
                Some(name) => self.zone.read().find(Asked { name: crate::wire::Name::bytes(name), kind, turn, most }),
            };
            let own = if matches!(found, Found::NotOurs) { Whose::Others } else { Whose::Cluster };
            let whose = *whose.get_or_insert(own);
            if own == Whose::Cluster && !self.ready.is_synced() {
                return Begun::Done(whose, Reply::code(rcode::SERVFAIL));
            }
            match found {
                Found::Reply(reply) => return Begun::Done(whose, joined(before, reply)),
                Found::Alias(record, target) => {
                    before.push(record);
                    name = Some(target);
                }
                Found::NotOurs => {
                    let name = name.unwrap_or_else(|| query.name.name());
                    return self.others(query, whose, Pending { before, question: asked(query, name) });
                }
            }
        }
        Begun::Done(whose.unwrap_or(Whose::Cluster), Reply::code(rcode::SERVFAIL))
    }

    /// What is known of a name that is not ours.
    fn others(&self, query: &Query<'_>, whose: Whose, pending: Pending) -> Begun {
        let question = &pending.question;
        if question.kind == kind::ANY {
            // RFC 8482: nobody needs everything, but for attacks.
            let data = Data::Other { kind: kind::HINFO, data: Box::from(&b"\x07RFC8482\x00"[..]) };
            let answers = vec![Record { name: question.name.clone(), ttl: 3600, data }];
            return Begun::Done(whose, joined(pending.before, Reply { answers, ..Reply::default() }));
        }
        if question.kind == kind::HINFO && self.forwarder.is_own_probe(&question.name) {
            return Begun::Done(whose, Reply::code(rcode::SERVFAIL));
        }
        if let Some(reply) = self.forwarder.known(question) {
            return Begun::Done(whose, joined(pending.before, reply));
        }
        if !query.recursion {
            // What a name of ours stands for is told all the same.
            let code = if pending.before.is_empty() { rcode::REFUSED } else { rcode::NOERROR };
            return Begun::Done(whose, joined(pending.before, Reply::code(code)));
        }
        Begun::Ask(whose, pending)
    }

    /// Asks somebody else.
    pub async fn finish(&self, pending: Pending) -> Reply {
        let reply = self.forwarder.resolve(&pending.question).await;
        joined(pending.before, (*reply).clone())
    }
}

fn asked(query: &Query<'_>, name: crate::wire::Name) -> Question {
    let signatures = query.edns.is_some_and(|edns| edns.signatures);
    Question { name, kind: query.kind, signatures, unchecked: query.unchecked }
}

/// What a name stands for, and what that answers.
fn joined(mut before: Vec<Record>, mut reply: Reply) -> Reply {
    if !before.is_empty() {
        before.append(&mut reply.answers);
        reply.answers = before;
        // Of the name that was asked for it is we who know.
        reply.authoritative = true;
        // Nobody has signed that.
        reply.authentic = false;
    }
    reply
}
