//! Who else changes our tables: the kernel tells every change of its rules and whose it was.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tokio::net::UnixDatagram;
use tokio::sync::Notify;

use crate::netlink::{Message, attribute, listen, messages};
use crate::nf_tables;

const SUBSYSTEM: u8 = 10;
/// A table is made.
const NEW_TABLE: u8 = 0;
/// The end of a transaction, and which process made it.
const GENERATION: u8 = 15;
const NUMBER: u16 = 1;
const PROCESS: u16 = 2;
/// The group that is told.
const GROUP: u32 = 7;
/// Of so many threads and processes of our own it is remembered that they were ours.
const REMEMBERED: usize = 256;
/// So much of what the kernel tells may wait to be read.
const WAITING: usize = 32 << 20;

/// The transactions of our own: who made them, and how many there were.
#[derive(Clone, Debug, Default)]
pub struct Own(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    numbers: Mutex<Numbers>,
    /// One has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Numbers {
    /// Threads, and processes, which make one each.
    pids: VecDeque<(u32, Maker)>,
    /// The kernel has named one of them: its numbers are ours. They are not where this process is in
    /// a namespace of processes, and nobody can be told apart there.
    known: bool,
    /// How many changed something.
    made: u32,
    /// How many may be about to.
    under_way: usize,
    /// Of so many it is not known whether they did.
    unknown: u32,
}

/// Who makes a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// A thread of this process, which may make more.
    Thread,
    /// A process that ends with it; its number may be somebody else's then.
    Process,
}

/// A transaction of our own that is under way. One that is let go of without a word changed nothing.
#[derive(Debug)]
pub struct Turn {
    own: Own,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Nothing,
    Made,
    Unknown,
}

impl Turn {
    /// It was made.
    pub fn made(mut self) {
        self.outcome = Outcome::Made;
    }

    /// Until something else is said it is not known what became of it.
    #[must_use]
    pub fn unknown(mut self) -> Self {
        self.outcome = Outcome::Unknown;
        self
    }

    /// It changed nothing.
    pub fn nothing(mut self) {
        self.outcome = Outcome::Nothing;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut numbers = self.own.numbers();
        numbers.under_way = numbers.under_way.saturating_sub(1);
        match self.outcome {
            Outcome::Nothing => {}
            Outcome::Made => numbers.made = numbers.made.wrapping_add(1),
            Outcome::Unknown => numbers.unknown = numbers.unknown.wrapping_add(1),
        }
        drop(numbers);
        self.own.0.ended.notify_waiters();
    }
}

impl Own {
    fn numbers(&self) -> std::sync::MutexGuard<'_, Numbers> {
        self.0.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of this process: of all who make some there, so that nobody takes another's for somebody's.
    pub fn of_process() -> Self {
        static OWN: LazyLock<Own> = LazyLock::new(Own::default);
        OWN.clone()
    }

    /// This thread or process is about to make one.
    pub fn begin(&self, pid: u32, maker: Maker) -> Turn {
        let mut numbers = self.numbers();
        // Each stands there once, those of late at the end: threads make many, and say nothing new.
        numbers.pids.retain(|(known, _)| *known != pid);
        if numbers.pids.len() >= REMEMBERED {
            numbers.pids.pop_front();
        }
        numbers.pids.push_back((pid, maker));
        numbers.under_way += 1;
        drop(numbers);
        Turn { own: self.clone(), outcome: Outcome::Nothing }
    }

    /// Whose was it?
    fn whose(&self, pid: Option<u32>) -> Whose {
        let mut numbers = self.numbers();
        let own = pid.is_some_and(|pid| numbers.pids.iter().any(|(known, _)| *known == pid));
        numbers.pids.retain(|(known, maker)| *maker == Maker::Thread || Some(*known) != pid);
        numbers.known |= own;
        match (own, numbers.known && pid.is_some()) {
            (true, _) => Whose::Own,
            (false, true) => Whose::Others,
            (false, false) => Whose::Unknown,
        }
    }

    /// How many there were, when none is under way: those that changed something, and those of which that is not known.
    fn made(&self) -> Option<(u32, u32)> {
        let numbers = self.numbers();
        (numbers.under_way == 0).then_some((numbers.made, numbers.unknown))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Own,
    Others,
    Unknown,
}

/// Hears of changes.
pub struct Monitor {
    /// Datagrams are datagrams: that this socket's other end is the kernel makes no difference to how
    /// they are waited for.
    socket: UnixDatagram,
    ear: Ear,
}

/// What has been heard.
#[derive(Debug, Default)]
struct Ear {
    own: Own,
    /// A table of ours was named in the transaction whose end is still to come.
    touched: bool,
    /// It was made in it, with everything in it.
    made: bool,
    /// Something was lost, and it is not settled what: of transactions whose ends are heard it is not known what they
    /// touched.
    doubt: bool,
    /// What there was besides.
    others: Others,
}

/// How many transactions of others there were: the kernel counts all, and we count ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Others {
    /// The kernel's number less ours, as it should be by what was heard; `None` where that is not known.
    count: Option<u32>,
    /// Of so many of ours it was not known, when that was reckoned, whether they changed something.
    unknown: u32,
    /// Those up to this number are in it, whenever they are heard.
    until: Option<u32>,
}

impl Others {
    fn heard(&mut self, generation: Option<u32>) {
        // The numbers begin anew behind the last: what is less than half of them away is later.
        let is_in = |generation: u32| self.until.is_some_and(|until| generation.wrapping_sub(until) > u32::MAX / 2);
        let is_it = |generation: u32| self.until == Some(generation);
        if !generation.is_some_and(|generation| is_in(generation) || is_it(generation)) {
            self.count = self.count.map(|count| count.wrapping_add(1));
        }
    }

    /// Goes by the kernel's number and ours from here on. Was there any that was not heard, or may there have been?
    fn reckon(&mut self, generation: u32, (made, unknown): (u32, u32)) -> bool {
        let before = *self;
        *self = Self { count: Some(generation.wrapping_sub(made)), unknown, until: Some(generation) };
        (before.count, before.unknown) != (self.count, self.unknown)
    }
}

/// What a datagram told of our tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Heard {
    /// Somebody else changed one.
    other: bool,
    /// Something of one went, or came, by a transaction that did not make it anew.
    piecemeal: bool,
}

impl Monitor {
    /// From now on.
    pub fn start(own: Own) -> io::Result<Self> {
        Self::with_room(own, WAITING)
    }

    /// One for which so many bytes may wait to be read; what comes then is lost.
    pub fn with_room(own: Own, bytes: usize) -> io::Result<Self> {
        let socket = UnixDatagram::from_std(listen(GROUP, bytes)?.into())?;
        let mut ear = Ear { own, ..Ear::default() };
        if let Some(made) = ear.own.made() {
            ear.others.reckon(nf_tables::generation()?, made);
        }
        Ok(Self { socket, ear })
    }

    /// Waits until somebody else changes one of these tables. What comes too fast is lost: then until somebody else
    /// has changed any table, and it was not heard which.
    pub async fn changed(&mut self, tables: &[&str]) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 18];
        loop {
            match self.socket.recv(&mut buffer).await {
                Ok(length) => {
                    if self.ear.hear(buffer.get(..length).unwrap_or_default(), tables).other {
                        return Ok(());
                    }
                }
                Err(error) if is_lost(&error) => {
                    if self.is_drift(tables, &mut buffer).await? {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Something was lost. Was it somebody else's?
    async fn is_drift(&mut self, tables: &[&str], buffer: &mut [u8]) -> io::Result<bool> {
        /// Where the rules of the host change all the time, it is not gone into any further.
        const TRIES: usize = 5;
        let (mut drift, own) = (false, self.ear.own.clone());
        self.ear.doubt = true;
        for _ in 0..TRIES {
            let made = loop {
                let mut ended = std::pin::pin!(own.0.ended.notified());
                ended.as_mut().enable();
                match own.made() {
                    Some(made) => break made,
                    None => ended.await,
                }
            };
            drift |= self.rest(tables, buffer)?;
            // The end of what was begun there is among what was lost, or comes while there is doubt.
            (self.ear.touched, self.ear.made) = (false, false);
            let generation = nf_tables::generation()?;
            // What came meanwhile is in that number, or it is not.
            drift |= self.rest(tables, buffer)?;
            if own.made() == Some(made) && nf_tables::generation()? == generation {
                // Whatever comes later has a later number, and is heard from its beginning.
                self.ear.doubt = false;
                return Ok(self.ear.others.reckon(generation, made) || drift);
            }
        }
        (self.ear.others, self.ear.doubt) = (Others::default(), false);
        Ok(true)
    }

    /// Reads what is there. Did somebody else change one of these tables?
    fn rest(&mut self, tables: &[&str], buffer: &mut [u8]) -> io::Result<bool> {
        let mut drift = false;
        loop {
            match self.socket.try_recv(buffer) {
                Ok(length) => drift |= self.ear.hear(buffer.get(..length).unwrap_or_default(), tables).other,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(drift),
                Err(error) if is_lost(&error) => (self.ear.touched, self.ear.made) = (false, false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until one of these tables changes otherwise than as a whole, or may have: who always writes a table whole
    /// knows by that, whichever of its processes did it, that somebody else has removed or changed it.
    pub async fn disturbed(&mut self, tables: &[&str]) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 18];
        loop {
            match self.socket.recv(&mut buffer).await {
                Ok(length) => {
                    if self.ear.hear(buffer.get(..length).unwrap_or_default(), tables).piecemeal {
                        return Ok(());
                    }
                }
                Err(error) if is_lost(&error) => {
                    (self.ear.touched, self.ear.made) = (false, false);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// More came than there was room for.
fn is_lost(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

impl Ear {
    fn hear(&mut self, datagram: &[u8], tables: &[&str]) -> Heard {
        let mut heard = Heard::default();
        for message in messages(datagram) {
            let Message::Body { subsystem: SUBSYSTEM, number, attributes } = message else { continue };
            if number == GENERATION {
                let pid = attribute(attributes, PROCESS).and_then(|v| Some(u32::from_be_bytes(v.try_into().ok()?)));
                let whose = self.own.whose(pid);
                let generation =
                    attribute(attributes, NUMBER).and_then(|v| Some(u32::from_be_bytes(v.try_into().ok()?)));
                let (touched, made) = (std::mem::take(&mut self.touched), std::mem::take(&mut self.made));
                heard.other |= (touched || self.doubt) && whose == Whose::Others;
                if whose == Whose::Others || (whose == Whose::Unknown && !touched && !self.doubt) {
                    self.others.heard(generation);
                }
                heard.piecemeal |= touched && !made;
            } else {
                // The first attribute of whatever is in a table is the table's name.
                let table = attribute(attributes, 1).map(|v| v.strip_suffix(&[0]).unwrap_or(v));
                let is_ours = table.is_some_and(|name| tables.iter().any(|t| t.as_bytes() == name));
                self.touched |= is_ours;
                self.made |= is_ours && number == NEW_TABLE;
            }
        }
        heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{put, request};

    fn change(table: &str, pid: u32) -> Vec<u8> {
        numbered(table, pid, 1)
    }

    /// The transaction of that number.
    fn numbered(table: &str, pid: u32, generation: u32) -> Vec<u8> {
        let mut attributes = Vec::new();
        put(&mut attributes, 1, format!("{table}\0").as_bytes());
        let mut out = request(SUBSYSTEM, 6, 0, 2, &attributes);
        let mut attributes = Vec::new();
        put(&mut attributes, NUMBER, &generation.to_be_bytes());
        put(&mut attributes, PROCESS, &pid.to_be_bytes());
        out.extend(request(SUBSYSTEM, GENERATION, 0, 0, &attributes));
        out
    }

    #[test]
    fn only_others_changes_of_our_tables_are_told() {
        let own = Own::default();
        own.begin(7, Maker::Thread).made();
        let mut monitor = Ear { own, ..Ear::default() };
        assert!(!monitor.hear(&change("ours", 9), &["ours"]).other, "nothing is known of whose numbers these are");
        assert!(!monitor.hear(&change("ours", 7), &["ours"]).other, "our own");
        assert!(!monitor.hear(&change("theirs", 9), &["ours"]).other, "another table");
        assert!(monitor.hear(&change("ours", 9), &["ours"]).other);
        assert!(!monitor.hear(&change("theirs", 9), &["ours"]).other, "what was told is over");
    }

    #[test]
    fn who_made_many_is_known_and_nobody_is_forgotten_for_it() {
        let own = Own::default();
        own.begin(8, Maker::Thread).made();
        (0..1000).for_each(|_| own.begin(7, Maker::Thread).made());
        let mut ear = Ear { own, ..Ear::default() };
        for (pid, other) in [(7, false), (8, false), (9, true)] {
            assert_eq!(ear.hear(&change("ours", pid), &["ours"]).other, other, "{pid}");
        }
        (1000..1000 + u32::try_from(REMEMBERED).expect("few"))
            .for_each(|pid| ear.own.begin(pid, Maker::Thread).nothing());
        assert!(ear.hear(&change("ours", 8), &["ours"]).other, "at the bound the first is forgotten");
    }

    #[test]
    fn while_there_is_doubt_it_is_not_known_what_others_touched() {
        let own = Own::default();
        own.begin(7, Maker::Thread).made();
        own.begin(8, Maker::Process).made();
        let mut ear = Ear { own, doubt: true, ..Ear::default() };
        assert!(!ear.hear(&change("theirs", 7), &["ours"]).other, "it was our own");
        assert!(ear.hear(&change("theirs", 9), &["ours"]).other, "what was lost of it may have been of our table");
        ear.doubt = false;
        assert!(!ear.hear(&change("theirs", 9), &["ours"]).other);
        // A process makes one; then its number is anybody's.
        assert!(!ear.hear(&change("ours", 8), &["ours"]).other);
        assert!(ear.hear(&change("ours", 8), &["ours"]).other);
    }

    #[test]
    fn what_was_lost_is_told_apart_by_how_many_there_were() {
        let own = Own::default();
        own.begin(7, Maker::Thread).made();
        let mut ear = Ear { own: own.clone(), ..Ear::default() };
        let made = |own: &Own| own.made().expect("none is under way");
        assert!(ear.others.reckon(100, made(&own)), "nothing was known");
        // Three of ours were lost.
        (0..3).for_each(|_| own.begin(7, Maker::Thread).made());
        own.begin(7, Maker::Thread).nothing();
        assert!(!ear.others.reckon(103, made(&own)));
        // One of ours, and one of somebody's.
        own.begin(7, Maker::Thread).made();
        assert!(ear.others.reckon(105, made(&own)));
        assert!(!ear.others.reckon(105, made(&own)), "that is over");
        // What was heard was not lost: another table, our own, and ours by somebody.
        ear.hear(&numbered("theirs", 9, 105), &["ours"]);
        ear.hear(&numbered("theirs", 9, 106), &["ours"]);
        ear.hear(&numbered("ours", 7, 108), &["ours"]);
        assert!(ear.hear(&numbered("ours", 9, 107), &["ours"]).other);
        own.begin(7, Maker::Thread).made();
        assert!(!ear.others.reckon(108, made(&own)));
        // Of one it is not known what became of it; the kernel's numbers begin anew behind the last.
        drop(own.begin(7, Maker::Thread).unknown());
        assert!(ear.others.reckon(108, made(&own)));
        let turn = own.begin(7, Maker::Thread);
        assert_eq!(own.made(), None, "one is under way");
        turn.made();
        ear.others.reckon(u32::MAX, made(&own));
        own.begin(7, Maker::Thread).made();
        assert!(!ear.others.reckon(0, made(&own)));
    }

    /// A transaction of these messages of a table.
    fn transaction(table: &str, numbers: &[u8]) -> Vec<u8> {
        let mut attributes = Vec::new();
        put(&mut attributes, 1, format!("{table}\0").as_bytes());
        let mut out: Vec<u8> = numbers.iter().flat_map(|n| request(SUBSYSTEM, *n, 0, 2, &attributes)).collect();
        let mut end = Vec::new();
        put(&mut end, PROCESS, &7_u32.to_be_bytes());
        out.extend(request(SUBSYSTEM, GENERATION, 0, 0, &end));
        out
    }

    #[test]
    fn a_table_that_is_written_whole_is_not_disturbed() {
        const DELETE_TABLE: u8 = 2;
        let mut ear = Ear::default();
        for (table, numbers, wanted, why) in [
            ("ours", &[DELETE_TABLE, NEW_TABLE, 3, 6][..], false, "written whole"),
            ("ours", &[DELETE_TABLE], true, "removed"),
            ("ours", &[8, 8], true, "flushed"),
            ("theirs", &[DELETE_TABLE], false, "another"),
            ("ours", &[DELETE_TABLE, NEW_TABLE], false, "and what was told is over"),
        ] {
            assert_eq!(ear.hear(&transaction(table, numbers), &["ours"]).piecemeal, wanted, "{why}");
        }
    }
}
