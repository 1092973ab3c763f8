//! Random work on a disk that loses power: every acknowledged write is there afterwards, nothing is
//! half there, the start always succeeds, and no published revision comes to mean something else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use stdx::Rng;
use stdx::clock::Instant;

use super::disk::Disk;
use super::engine::{Engine, Outcome, Sizes};
use super::place::Place;
use crate::mvcc::holds;
use crate::watch::Source;
use crate::{Committed, Entry, Event, Expect, HistoryBounds, Op, Revision, Urgency};

const SIZES: Sizes = Sizes { log: 4 << 10, garbage: 8 << 10 };
const BOUNDS: HistoryBounds = HistoryBounds { bytes: 6 << 10, age: Duration::MAX };

/// What the store should hold.
#[derive(Clone, Default)]
struct Model {
    entries: BTreeMap<Bytes, Entry>,
    events: Vec<Event>,
    revision: Revision,
}

impl Model {
    fn commit(&mut self, op: &Op) -> Option<Committed> {
        let found = self.entries.get(op.key()).cloned();
        if !holds(op.expect(), found.as_ref().map(|e| e.mod_revision)) {
            return None;
        }
        let revision = self.revision + 1;
        let create_revision = found.as_ref().map_or(revision, |e| e.create_revision);
        let version = found.as_ref().map_or(0, |e| e.version);
        let key = op.key().clone();
        let (entry, version) = match op {
            Op::Put { value, .. } => {
                let (value, version) = (value.clone(), version + 1);
                (Some(Entry { key: key.clone(), value, create_revision, mod_revision: revision, version }), version)
            }
            Op::Delete { .. } => {
                found.as_ref()?;
                (None, version)
            }
        };
        self.revision = revision;
        match &entry {
            Some(entry) => drop(self.entries.insert(key.clone(), entry.clone())),
            None => drop(self.entries.remove(&key)),
        }
        self.events.push(Event { revision, key, entry, previous: found });
        Some(Committed { revision, create_revision, version })
    }
}

struct Run {
    rng: Rng,
    disk: Disk,
    /// Acknowledged.
    known: Model,
    /// With the batch that was being written when the power failed.
    perhaps: Option<Model>,
}

impl Run {
    fn open(&mut self) -> Option<Engine> {
        let salt = self.rng.below(u64::MAX);
        let opened = Engine::open(Arc::new(self.disk.clone()), BOUNDS, SIZES, salt, Instant::default());
        match opened {
            Ok(engine) => {
                self.check(&engine);
                Some(engine)
            }
            Err(error) => {
                assert!(self.disk.is_off(), "the start failed: {error}");
                None
            }
        }
    }

    /// Compares everything a client can see with the model.
    fn check(&mut self, engine: &Engine) {
        let shared = engine.shared();
        let state = shared.state.read();
        if let Some(perhaps) = self.perhaps.take() {
            if state.revision() != self.known.revision {
                self.known = perhaps;
            }
        }
        assert_eq!(state.revision(), self.known.revision);
        let entries: Vec<_> = state.current().iter().map(|(k, v)| Place::entry(k.clone(), v).expect("reads")).collect();
        assert_eq!(entries, self.known.entries.values().cloned().collect::<Vec<_>>());
        let floor = state.floor();
        drop(state);
        let mut events = Vec::new();
        let mut after = floor;
        while after < self.known.revision {
            let batch = shared.read(b"", after).expect("reads");
            after = batch.reached;
            events.extend(batch.events);
        }
        assert_eq!(events, self.known.events[floor as usize..]);
    }

    fn op(&self) -> Op {
        let key = Bytes::from(format!("key/{}", self.rng.below(12)));
        let found = self.known.entries.get(&key).map(|e| e.mod_revision);
        let expect = match found {
            Some(revision) if self.rng.below(10) > 0 => Expect::At(revision),
            None if self.rng.below(10) > 0 => Expect::Absent,
            _ => Expect::At(self.rng.below(self.known.revision + 1)),
        };
        if found.is_some() && self.rng.below(4) == 0 {
            return Op::Delete { key, expect };
        }
        let length = [0, 10, 300, 2000][self.rng.below(4) as usize];
        let mut value = vec![0; length];
        self.rng.fill(&mut value);
        Op::Put { key, value: value.into(), expect, urgency: Urgency::Now }
    }

    /// One step; false when the engine is gone.
    fn step(&mut self, engine: &mut Engine) -> bool {
        if self.rng.below(5) == 0 {
            if let Some(job) = engine.job(self.rng.below(u64::MAX)) {
                let written = job.run(&AtomicBool::new(false));
                return engine.adopt(written).is_ok();
            }
        }
        let ops: Vec<_> = (0..=self.rng.below(4)).map(|_| self.op()).collect();
        let mut next = self.known.clone();
        let expected: Vec<_> = ops.iter().map(|op| next.commit(op)).collect();
        self.perhaps = Some(next);
        match engine.commit(ops, Instant::default(), self.rng.below(u64::MAX)) {
            Outcome::Done(results) => {
                assert_eq!(results.into_iter().map(Result::ok).collect::<Vec<_>>(), expected);
                self.known = self.perhaps.take().expect("was set");
                true
            }
            Outcome::Refused(_) => {
                // Nothing of it may ever appear, unless the power failed before that was sure.
                if !self.disk.is_off() {
                    self.perhaps = None;
                }
                !self.disk.is_off()
            }
            Outcome::Fatal(_) => false,
        }
    }

    /// A life of the process and its end.
    fn live(&mut self) {
        if self.rng.below(3) > 0 {
            self.disk.lose_power_after(self.rng.below(60));
        }
        if let Some(mut engine) = self.open() {
            let mut alive = true;
            for _ in 0..self.rng.below(40) {
                match self.rng.below(100) {
                    0 => self.disk.fail_syncs(true),
                    1 => self.disk.fail_writes(true),
                    _ => {}
                }
                alive = self.step(&mut engine);
                self.disk.fail_writes(false);
                if !alive {
                    break;
                }
            }
            if alive && self.rng.below(3) == 0 {
                drop(engine.close());
            }
        }
        self.disk.fail_syncs(false);
        // Killed with the power on: what was written stays visible, durable or not.
        if self.disk.is_off() || self.rng.below(2) == 0 {
            self.disk = self.disk.after_power_loss(&self.rng);
        }
    }
}

#[test]
fn power_loss_at_any_instant() {
    for seed in 0..100 {
        let rng = Rng::seeded(seed);
        let mut run = Run { rng, disk: Disk::default(), known: Model::default(), perhaps: None };
        let lives = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..12 {
                run.live();
            }
            run.disk = run.disk.after_power_loss(&run.rng);
            run.open().expect("starts");
        }));
        assert!(lives.is_ok(), "seed {seed}");
    }
}
