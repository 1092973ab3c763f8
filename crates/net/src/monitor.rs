//! Who else changes our tables: the kernel tells every change of its rules and whose it was.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::UnixDatagram;

use crate::netlink::{Message, attribute, listen, messages};

const SUBSYSTEM: u8 = 10;
/// A table is made.
const NEW_TABLE: u8 = 0;
/// The end of a transaction, and which process made it.
const GENERATION: u8 = 15;
const PROCESS: u16 = 2;
/// The group that is told.
const GROUP: u32 = 7;
/// Of so many of our own transactions it is remembered that they were ours.
const REMEMBERED: usize = 256;

/// The processes that made our own transactions.
#[derive(Clone, Debug, Default)]
pub struct Own(Arc<Mutex<Numbers>>);

#[derive(Debug, Default)]
struct Numbers {
    pids: VecDeque<u32>,
    /// The kernel has named one of them: its numbers are ours. They are not where this process is in
    /// a namespace of processes, and nobody can be told apart there.
    known: bool,
}

impl Own {
    /// This process is about to make one.
    pub fn begin(&self, pid: u32) {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if numbers.pids.len() >= REMEMBERED {
            numbers.pids.pop_front();
        }
        numbers.pids.push_back(pid);
    }

    /// Was it certainly somebody else?
    fn is_other(&self, pid: u32) -> bool {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = numbers.pids.contains(&pid);
        numbers.known |= own;
        numbers.known && !own
    }
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
        let socket = UnixDatagram::from_std(listen(GROUP)?.into())?;
        Ok(Self { socket, ear: Ear { own, ..Ear::default() } })
    }

    /// Waits until somebody else changes one of these tables, or may have: what comes too fast is lost.
    pub async fn changed(&mut self, tables: &[&str]) -> io::Result<()> {
        self.hear(tables, |heard| heard.other).await
    }

    /// Waits until one of these tables changes otherwise than as a whole, or may have: who always writes a table whole
    /// knows by that, whichever of its processes did it, that somebody else has removed or changed it.
    pub async fn disturbed(&mut self, tables: &[&str]) -> io::Result<()> {
        self.hear(tables, |heard| heard.piecemeal).await
    }

    async fn hear(&mut self, tables: &[&str], is_it: impl Fn(Heard) -> bool) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 18];
        loop {
            match self.socket.recv(&mut buffer).await {
                Ok(length) => {
                    if is_it(self.ear.hear(buffer.get(..length).unwrap_or_default(), tables)) {
                        return Ok(());
                    }
                }
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
                    (self.ear.touched, self.ear.made) = (false, false);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Ear {
    fn hear(&mut self, datagram: &[u8], tables: &[&str]) -> Heard {
        let mut heard = Heard::default();
        for message in messages(datagram) {
            let Message::Body { subsystem: SUBSYSTEM, number, attributes } = message else { continue };
            if number == GENERATION {
                let pid = attribute(attributes, PROCESS).and_then(|v| Some(u32::from_be_bytes(v.try_into().ok()?)));
                let other = pid.is_some_and(|pid| self.own.is_other(pid));
                let (touched, made) = (std::mem::take(&mut self.touched), std::mem::take(&mut self.made));
                heard.other |= touched && other;
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
        let mut attributes = Vec::new();
        put(&mut attributes, 1, format!("{table}\0").as_bytes());
        let mut out = request(SUBSYSTEM, 6, 0, 2, &attributes);
        let mut attributes = Vec::new();
        put(&mut attributes, 1, &[0, 0, 0, 1]);
        put(&mut attributes, PROCESS, &pid.to_be_bytes());
        out.extend(request(SUBSYSTEM, GENERATION, 0, 0, &attributes));
        out
    }

    #[test]
    fn only_others_changes_of_our_tables_are_told() {
        let own = Own::default();
        own.begin(7);
        let mut monitor = Ear { own, ..Ear::default() };
        assert!(!monitor.hear(&change("ours", 9), &["ours"]).other, "nothing is known of whose numbers these are");
        assert!(!monitor.hear(&change("ours", 7), &["ours"]).other, "our own");
        assert!(!monitor.hear(&change("theirs", 9), &["ours"]).other, "another table");
        assert!(monitor.hear(&change("ours", 9), &["ours"]).other);
        assert!(!monitor.hear(&change("theirs", 9), &["ours"]).other, "what was told is over");
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
