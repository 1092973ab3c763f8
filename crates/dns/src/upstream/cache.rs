//! Answers of others, for as long as they may be kept.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use stdx::clock::Instant;

use super::Question;
use crate::wire::{Data, Record, Reply, kind, rcode};

/// How much is kept, and for how long at most.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Answers.
    pub entries: usize,
    /// Bytes, as far as they are counted.
    pub bytes: usize,
    /// Seconds for what is there.
    pub positive: u32,
    /// Seconds for what is not.
    pub negative: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        // kubeadm's Corefile says `cache 30`; the number of entries is that of CoreDNS' cache.
        Self { entries: 9984, bytes: 32 << 20, positive: 30, negative: 30 }
    }
}

/// A question as the cache finds it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Box<[u8]>);

impl Key {
    /// Of a question: the name in small letters, the type, and what was wanted.
    pub fn of(question: &Question) -> Self {
        let flags = u8::from(question.signatures) | u8::from(question.unchecked) << 1;
        let name = question.name.bytes();
        let mut bytes = Vec::with_capacity(name.len() + 3);
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(&question.kind.to_be_bytes());
        bytes.push(flags);
        Self(bytes.into())
    }
}

struct Entry {
    reply: Arc<Reply>,
    since: Instant,
    until: Instant,
    size: usize,
    /// Which of the places in the order is its own.
    turn: u64,
}

/// What is kept.
pub struct Cache {
    bounds: Bounds,
    entries: HashMap<Key, Entry>,
    /// The oldest first; some are gone, or have been told anew.
    order: VecDeque<(u64, Key)>,
    bytes: usize,
    positive: usize,
    turn: u64,
}

/// How much memory a record takes, about.
fn size(record: &Record) -> usize {
    let data = match &record.data {
        Data::Other { data, .. } => data.len(),
        Data::Txt(text) => text.len(),
        Data::Cname(name) | Data::Ns(name) | Data::Ptr(name) => name.bytes().len(),
        Data::Srv { target, .. } => target.bytes().len(),
        Data::Soa(soa) => soa.primary.bytes().len() + soa.mailbox.bytes().len(),
        Data::A(_) | Data::Aaaa(_) => 0,
    };
    size_of::<Record>() + record.name.bytes().len() + 32 + data
}

/// Seconds for which a reply may be kept; `None` when it may not.
fn lifetime(reply: &Reply, bounds: &Bounds) -> Option<u32> {
    if !matches!(reply.code, rcode::NOERROR | rcode::NXDOMAIN) {
        return None;
    }
    let ttl = |records: &[Record]| records.iter().map(|record| record.ttl).min();
    let says_what = reply.answers.iter().any(|record| !matches!(record.kind(), kind::CNAME | kind::RRSIG));
    let seconds = if says_what && reply.code == rcode::NOERROR {
        ttl(&reply.answers)?.min(bounds.positive)
    } else {
        // Who says that there is nothing says for how long (RFC 2308 §5).
        let soa = reply.authority.iter().find_map(|record| match &record.data {
            Data::Soa(soa) => Some(record.ttl.min(soa.minimum)),
            _ => None,
        })?;
        soa.min(bounds.negative).min(ttl(&reply.answers).unwrap_or(u32::MAX))
    };
    (seconds > 0).then_some(seconds)
}

impl Cache {
    /// An empty one.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, entries: HashMap::new(), order: VecDeque::new(), bytes: 0, positive: 0, turn: 0 }
    }

    /// How many answers there are that say what there is, or that there is nothing.
    pub fn len(&self, positive: bool) -> usize {
        if positive { self.positive } else { self.entries.len() - self.positive }
    }

    /// What is known at this time; its records have become older.
    pub fn get(&mut self, key: &Key, now: Instant) -> Option<Reply> {
        let entry = self.entries.get(key)?;
        if entry.until <= now {
            self.remove(key);
            return None;
        }
        let age = u32::try_from(now.since(entry.since).as_secs()).unwrap_or(u32::MAX);
        let left = u32::try_from(entry.until.since(now).as_millis().div_ceil(1000)).unwrap_or(u32::MAX).max(1);
        let mut reply = (*entry.reply).clone();
        for record in reply.answers.iter_mut().chain(&mut reply.authority) {
            record.ttl = record.ttl.saturating_sub(age).clamp(1, left);
        }
        Some(reply)
    }

    /// Keeps a reply, if it may be kept; what is oldest goes when there is no room.
    pub fn put(&mut self, key: &Key, reply: &Reply, now: Instant) {
        self.remove(key);
        let Some(seconds) = lifetime(reply, &self.bounds) else { return };
        let records = reply.answers.iter().chain(&reply.authority);
        let size = records.map(size).sum::<usize>() + 2 * key.0.len() + 256;
        if size > self.bounds.bytes / 8 {
            return;
        }
        self.turn += 1;
        let until = now + Duration::from_secs(seconds.into());
        let entry = Entry { reply: Arc::new(reply.clone()), since: now, until, size, turn: self.turn };
        self.bytes += size;
        self.positive += usize::from(!entry.reply.answers.is_empty());
        self.entries.insert(key.clone(), entry);
        self.order.push_back((self.turn, key.clone()));
        while self.entries.len() > self.bounds.entries
            || self.bytes > self.bounds.bytes
            || self.order.len() > 2 * self.bounds.entries
        {
            let Some((turn, key)) = self.order.pop_front() else { break };
            if self.entries.get(&key).is_some_and(|entry| entry.turn == turn) {
                self.remove(&key);
            }
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.size;
            self.positive -= usize::from(!entry.reply.answers.is_empty());
        }
    }

    /// Forgets everything: others are asked from now on.
    pub fn clear(&mut self) {
        *self = Self { turn: self.turn, ..Self::new(self.bounds) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Name, Soa};

    fn key(n: usize) -> Key {
        let name = Name::parse(&format!("n{n}.org")).expect("a name");
        Key::of(&Question { name, kind: kind::A, signatures: false, unchecked: false })
    }

    fn at(seconds: u64) -> Instant {
        Instant(Duration::from_secs(seconds))
    }

    fn name() -> Name {
        Name::parse("a.org").expect("a name")
    }

    fn found(ttl: u32) -> Reply {
        Reply { answers: vec![Record::address(name(), ttl, [1, 1, 1, 1].into())], ..Reply::default() }
    }

    fn missing(code: u16, ttl: u32, minimum: u32) -> Reply {
        let soa = Soa { primary: name(), mailbox: name(), serial: 0, refresh: 0, retry: 0, expire: 0, minimum };
        Reply { authority: vec![Record { name: name(), ttl, data: Data::Soa(soa) }], ..Reply::code(code) }
    }

    #[test]
    fn what_is_kept_and_for_how_long() {
        let alias = Record { name: name(), ttl: 3, data: Data::Cname(name()) };
        let rows = [
            (found(7), Some(7)),
            (found(300), Some(30)),
            (found(0), None),
            (missing(rcode::NXDOMAIN, 300, 4), Some(4)),
            (missing(rcode::NXDOMAIN, 4, 300), Some(4)),
            (missing(rcode::NOERROR, 300, 300), Some(30)),
            (missing(rcode::SERVFAIL, 300, 300), None),
            (Reply::code(rcode::NXDOMAIN), None),
            (Reply::code(rcode::NOERROR), None),
            // A chain that ends in nothing is as good as its weakest part.
            (Reply { answers: vec![alias.clone()], ..missing(rcode::NOERROR, 20, 20) }, Some(3)),
            (Reply { answers: vec![alias], ..Reply::default() }, None),
        ];
        for (reply, want) in rows {
            assert_eq!(lifetime(&reply, &Bounds::default()), want, "{reply:?}");
        }
    }

    #[test]
    fn records_grow_old_by_our_clock() {
        let mut cache = Cache::new(Bounds::default());
        cache.put(&key(1), &found(300), at(100));
        let ttl = |cache: &mut Cache, second| Some(cache.get(&key(1), at(second))?.answers[0].ttl);
        assert_eq!([ttl(&mut cache, 100), ttl(&mut cache, 110), ttl(&mut cache, 129)], [Some(30), Some(20), Some(1)]);
        assert_eq!((ttl(&mut cache, 130), cache.entries.len(), cache.bytes), (None, 0, 0));
        assert!(cache.get(&key(2), at(100)).is_none());
    }

    #[test]
    fn the_cache_is_bounded() {
        let mut cache = Cache::new(Bounds { entries: 10, ..Bounds::default() });
        (0..1000).for_each(|n| cache.put(&key(n), &found(30), at(0)));
        assert_eq!((cache.entries.len(), cache.len(true), cache.len(false)), (10, 10, 0));
        assert!(cache.get(&key(999), at(1)).is_some() && cache.get(&key(900), at(1)).is_none());
        // One that is told again and again does not grow.
        (0..1000).for_each(|_| cache.put(&key(1), &found(30), at(0)));
        assert!(cache.order.len() <= 20 && cache.entries.len() <= 10, "{}", cache.order.len());
        let mut cache = Cache::new(Bounds { bytes: 10_000, ..Bounds::default() });
        (0..1000).for_each(|n| cache.put(&key(n), &missing(rcode::NXDOMAIN, 30, 30), at(0)));
        assert!(cache.bytes <= 10_000 && cache.len(false) > 5, "{} {}", cache.bytes, cache.len(false));
        let long = Reply { answers: vec![found(30).answers[0].clone(); 100], ..found(30) };
        cache.put(&key(1), &long, at(0));
        assert!(cache.get(&key(1), at(0)).is_none(), "what is too long is not kept");
        cache.clear();
        assert_eq!((cache.bytes, cache.len(false), cache.order.len()), (0, 0, 0));
    }
}
