//! A difference of a table as the kernel takes it: one batch of netlink messages. `nft` says the same,
//! but reads every chain and set there is before it does.
//!
//! ```text
//!  Transaction ─► encode ─► Batch ─► send ─► kernel: all of it, or the step that it refuses
//!                   └► None: a rule nobody here knows how to say; `nft` knows
//! ```

mod rules;
mod values;

use std::collections::BTreeSet;
use std::io;

use crate::monitor::{Maker, Own};
use crate::netlink::{ACKNOWLEDGE, Message, Socket, answers, attribute, messages, put, put_nested, request, sequenced};
use crate::ruleset::{Family, Step, Transaction};
use values::Layout;

const SUBSYSTEM: u8 = 10;
const BEGIN: u8 = 16;
const END: u8 = 17;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
/// Messages.
const GET_TABLE: u8 = 1;
const GENERATION: u8 = 15;
const GET_GENERATION: u8 = 16;
const NEW_CHAIN: u8 = 3;
const DELETE_CHAIN: u8 = 5;
const NEW_RULE: u8 = 6;
const DELETE_RULE: u8 = 8;
const NEW_SET: u8 = 9;
const DELETE_SET: u8 = 11;
const NEW_ELEMENT: u8 = 12;
const DELETE_ELEMENT: u8 = 14;
/// Attributes of whatever is in a list.
const ITEM: u16 = 1;
/// Flags of sets.
const ANONYMOUS: u32 = 0x1;
const CONSTANT: u32 = 0x2;
const INTERVAL: u32 = 0x4;
const TIMEOUT: u32 = 0x10;
const DYNAMIC: u32 = 0x20;
/// So many bytes of elements go into one message. The length of an attribute has 16 bits, of a longer one the kernel
/// takes a part and says nothing; and its no repeats the message, which must be read whole.
const ELEMENTS: usize = 32 << 10;
/// A batch that is longer is left to `nft`: it is a load, not a change.
const LONGEST: usize = 8 << 20;

/// What is sent at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Which step each message is of, by its number less one.
    steps: Vec<At>,
}

/// A step: the change's place among those that are sent together, and its own in that change.
type At = (usize, usize);

/// The kernel's no.
#[derive(Debug)]
pub struct Refused {
    step: At,
    error: io::Error,
}

impl Refused {
    /// What was refused, of what was to be changed, and why.
    pub fn told(&self, change: &Transaction) -> String {
        self.told_of(std::slice::from_ref(change))
    }

    /// The same of several that were sent together.
    pub fn told_of(&self, changes: &[Transaction]) -> String {
        const WORDS: usize = 160;
        let (change, step) = self.step;
        let line = changes.get(change).and_then(|change| Some(change.line(change.steps.get(step)?)));
        let cut: String = line.unwrap_or_default().trim_end().chars().take(WORDS).collect();
        format!("{}: {cut}", self.error)
    }
}

/// `None` where the change says something that is not known here.
pub fn encode(change: &Transaction) -> Option<Batch> {
    encode_all(std::slice::from_ref(change))
}

/// Changes of several tables, which the kernel makes together or not at all.
pub fn encode_all(changes: &[Transaction]) -> Option<Batch> {
    let mut writer = Writer { bytes: border(BEGIN), steps: Vec::new(), at: (0, 0), last: 0, sets: 0, too_long: false };
    for (number, change) in changes.iter().enumerate() {
        // Sets of this change that hold intervals: those that were there before are left to `nft`.
        let mut fresh = BTreeSet::new();
        for (step, what) in change.steps.iter().enumerate() {
            writer.at = (number, step);
            writer.write(change, what, &mut fresh)?;
        }
    }
    let too_long = writer.too_long;
    let batch = writer.end();
    (batch.bytes.len() <= LONGEST && !too_long).then_some(batch)
}

/// Is there a table of that name?
///
/// # Errors
/// When the kernel does not tell.
pub fn has_table(family: Family, table: &str) -> io::Result<bool> {
    let socket = Socket::open()?;
    let mut attributes = Vec::new();
    put(&mut attributes, 1, &name(table));
    socket.send(&request(SUBSYSTEM, GET_TABLE, 0, number(family), &attributes))?;
    let mut buffer = vec![0; 1 << 12];
    for message in messages(socket.receive(&mut buffer)?) {
        match message {
            Message::Body { subsystem: SUBSYSTEM, .. } => return Ok(true),
            Message::Answer(error) if error != 0 => {
                let error = io::Error::from_raw_os_error(-error);
                return if error.kind() == io::ErrorKind::NotFound { Ok(false) } else { Err(error) };
            }
            _ => {}
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// The number of the last transaction that the kernel has made, whoever asked for it.
///
/// # Errors
/// When the kernel does not tell.
pub fn generation() -> io::Result<u32> {
    let socket = Socket::open()?;
    socket.send(&request(SUBSYSTEM, GET_GENERATION, 0, 0, &[]))?;
    let mut buffer = vec![0; 1 << 12];
    for message in messages(socket.receive(&mut buffer)?) {
        match message {
            Message::Body { subsystem: SUBSYSTEM, number: GENERATION, attributes } => {
                let id = attribute(attributes, 1).and_then(|id| id.try_into().ok());
                return id.map(u32::from_be_bytes).ok_or_else(|| io::ErrorKind::InvalidData.into());
            }
            Message::Answer(error) if error != 0 => return Err(io::Error::from_raw_os_error(-error)),
            _ => {}
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

struct Writer {
    bytes: Vec<u8>,
    steps: Vec<At>,
    at: At,
    /// Where the last message began.
    last: usize,
    /// How many sets there are: each has a number in its batch.
    sets: u32,
    /// A message is longer than can be said.
    too_long: bool,
}

fn name(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn number(family: Family) -> u8 {
    match family {
        Family::Ip => 2,
        Family::Ip6 => 10,
    }
}

/// The message that begins or ends a batch.
fn border(message: u8) -> Vec<u8> {
    let mut out = request(0, message, 0, 0, &[]);
    // The subsystem, as the network orders it.
    out.splice(18..20, u16::from(SUBSYSTEM).to_be_bytes());
    out
}

/// How `nft` is to show keys of a set: as the network orders them.
const ORDERED: &[u8] = &[0, 4, 2, 0, 0, 0];
/// The same where they are of several parts, each of which has its own order.
const JOINED: &[u8] = &[0, 4, 0, 0, 0, 0, 3, 8, 0, 4, 13, 0, 0, 0, 1, 0];

impl Writer {
    fn message(&mut self, of: &Transaction, message: u8, flags: u16, attributes: &[u8]) {
        self.steps.push(self.at);
        let mut whole = Vec::new();
        put(&mut whole, 1, &name(&of.table));
        whole.extend(attributes);
        self.too_long |= whole.len() > 2 * ELEMENTS - 4096;
        self.last = self.bytes.len();
        let request = request(SUBSYSTEM, message, flags, number(of.family), &whole);
        self.bytes.extend(sequenced(request, u32::try_from(self.steps.len()).unwrap_or(u32::MAX)));
    }

    fn write<'a>(&mut self, of: &'a Transaction, step: &'a Step, fresh: &mut BTreeSet<&'a str>) -> Option<()> {
        let mut out = Vec::new();
        match step {
            Step::AddSet { name: set, keyword: "set", declaration } => {
                let layout = Layout::parse(declaration).filter(|layout| layout.data.is_none())?;
                let (mut flags, mut size) = (0, None);
                for said in declaration.split("; ").skip(1) {
                    match said.split_once(' ')? {
                        ("flags", "interval") => flags = INTERVAL,
                        ("flags", "dynamic,timeout") => flags = DYNAMIC | TIMEOUT,
                        ("size", number) => size = Some(number.parse::<u32>().ok()?),
                        _ => return None,
                    }
                }
                if layout.interval {
                    fresh.insert(set);
                }
                self.sets += 1;
                put(&mut out, 2, &name(set));
                put(&mut out, 3, &flags.to_be_bytes());
                put(&mut out, 4, &layout.key_type()?.to_be_bytes());
                put(&mut out, 5, &layout.key_length().to_be_bytes());
                put(&mut out, 10, &self.sets.to_be_bytes());
                if let Some(size) = size {
                    put_nested(&mut out, 9, |out| put(out, 1, &size.to_be_bytes()));
                }
                let shown = match declaration.strip_prefix("typeof ") {
                    Some(of_what) => values::shown(of_what.split(';').next()?)?,
                    None if layout.is_joined() => JOINED.to_vec(),
                    None => ORDERED.to_vec(),
                };
                put(&mut out, 13, &shown);
                self.message(of, NEW_SET, CREATE, &out);
            }
            Step::AddChain { name: chain, hook } if hook.is_empty() => {
                put(&mut out, 3, &name(chain));
                self.message(of, NEW_CHAIN, CREATE, &out);
            }
            Step::AddSet { .. } | Step::AddChain { .. } => return None,
            Step::DeleteElements { set, declaration, keys } => {
                let layout = Layout::parse(declaration).filter(|layout| !layout.interval)?;
                let items: Option<Vec<Vec<u8>>> = keys.iter().map(|key| layout.element(key, "")).collect();
                self.elements(of, (DELETE_ELEMENT, 0), (set, None), &items?);
            }
            Step::AddElements { set, declaration, elements } => {
                let layout = Layout::parse(declaration)?;
                let items = if layout.interval {
                    // Where others end must be known.
                    fresh.remove(&**set).then_some(())?;
                    layout.intervals(elements.iter().map(|(key, _)| &**key))?
                } else {
                    elements.iter().map(|(key, value)| layout.element(key, value)).collect::<Option<_>>()?
                };
                self.elements(of, (NEW_ELEMENT, CREATE), (set, None), &items);
            }
            Step::FlushChain(chain) => {
                put(&mut out, 2, &name(chain));
                self.message(of, DELETE_RULE, 0, &out);
            }
            Step::AddRule { chain, rule } => {
                let compiled = rules::compile(rule, of.family)?;
                let id = match &compiled.ports {
                    Some(ports) => Some(self.ports(of, ports)?),
                    None => None,
                };
                put(&mut out, 2, &name(chain));
                put_nested(&mut out, 4, |out| {
                    for expression in &compiled.expressions {
                        put_nested(out, ITEM, |out| out.extend(expression.bytes(id)));
                    }
                });
                self.message(of, NEW_RULE, CREATE | APPEND, &out);
            }
            Step::DeleteChain(chain) => {
                put(&mut out, 3, &name(chain));
                self.message(of, DELETE_CHAIN, 0, &out);
            }
            Step::DeleteSet { name: set, .. } => {
                put(&mut out, 2, &name(set));
                self.message(of, DELETE_SET, 0, &out);
            }
        }
        Some(())
    }

    fn elements(
        &mut self,
        of: &Transaction,
        (message, flags): (u8, u16),
        (set, id): (&str, Option<u32>),
        items: &[Vec<u8>],
    ) {
        let mut rest = items;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |item: &&Vec<u8>| {
                // With its head, and filled up.
                bytes += (item.len() + 4).next_multiple_of(4);
                bytes <= ELEMENTS
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (items, later) = rest.split_at(count);
            rest = later;
            let mut out = Vec::new();
            put(&mut out, 2, &name(set));
            if let Some(id) = id {
                put(&mut out, 4, &id.to_be_bytes());
            }
            put_nested(&mut out, 3, |out| {
                for item in items {
                    put_nested(out, ITEM, |out| out.extend(item));
                }
            });
            self.message(of, message, flags, &out);
        }
    }

    /// A set without a name of ports and ranges of them, for the rule that comes next.
    fn ports(&mut self, of: &Transaction, ports: &[String]) -> Option<u32> {
        self.sets += 1;
        let (id, layout) = (self.sets, Layout::ports(ports.iter().any(|port| port.contains('-'))));
        let items: Vec<Vec<u8>> = if layout.interval {
            layout.intervals(ports.iter().map(String::as_str))?
        } else {
            ports.iter().map(|port| layout.element(port, "")).collect::<Option<_>>()?
        };
        let flags = ANONYMOUS | CONSTANT | if layout.interval { INTERVAL } else { 0 };
        let mut out = Vec::new();
        put(&mut out, 2, &name(rules::SET_NAME));
        put(&mut out, 3, &flags.to_be_bytes());
        put(&mut out, 4, &layout.key_type()?.to_be_bytes());
        put(&mut out, 5, &layout.key_length().to_be_bytes());
        put(&mut out, 10, &id.to_be_bytes());
        put_nested(&mut out, 9, |out| put(out, 1, &u32::try_from(items.len()).unwrap_or(u32::MAX).to_be_bytes()));
        put(&mut out, 13, ORDERED);
        self.message(of, NEW_SET, CREATE, &out);
        self.elements(of, (NEW_ELEMENT, CREATE), (rules::SET_NAME, Some(id)), &items);
        Some(id)
    }

    fn end(mut self) -> Batch {
        // The kernel answers in order, so that the last answer says that all went well.
        if let Some(flags) = self.bytes.get_mut(self.last + 6) {
            *flags |= ACKNOWLEDGE.to_le_bytes()[0];
        }
        self.bytes.extend(border(END));
        Batch { bytes: self.bytes, steps: self.steps }
    }
}

/// Where batches are sent. The socket stays open: when one closes, the kernel first does away with everything that
/// earlier batches have removed, which takes tens of milliseconds.
#[derive(Default)]
pub struct Sender(Option<Socket>);

impl Sender {
    /// Sends a batch and waits for the kernel's answer. After an error of the outer kind it is not known
    /// what the kernel has.
    pub fn send(&mut self, batch: &Batch, own: &Own) -> io::Result<Result<(), Refused>> {
        let socket = match self.0.take() {
            Some(socket) => socket,
            None => Socket::open()?,
        };
        let answer = batch.send(&socket, own)?;
        // After a refusal there may be more to hear.
        if answer.is_ok() {
            self.0 = Some(socket);
        }
        Ok(answer)
    }
}

impl Batch {
    fn send(&self, socket: &Socket, own: &Own) -> io::Result<Result<(), Refused>> {
        let Ok(last) = u32::try_from(self.steps.len()) else { return Err(io::ErrorKind::InvalidInput.into()) };
        if last == 0 {
            return Ok(Ok(()));
        }
        socket.reserve(self.bytes.len())?;
        // The kernel names the thread.
        let turn = own.begin(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(), Maker::Thread).unknown();
        socket.send(&self.bytes)?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            for (sequence, error) in answers(socket.receive(&mut buffer)?) {
                let step = sequence.checked_sub(1).and_then(|at| self.steps.get(at as usize));
                match (error, step) {
                    (0, _) if sequence == last => {
                        turn.made();
                        return Ok(Ok(()));
                    }
                    (0, _) => {}
                    (error, Some(step)) => {
                        turn.nothing();
                        return Ok(Err(Refused { step: *step, error: io::Error::from_raw_os_error(-error) }));
                    }
                    // Nothing of it was refused by itself: it was the whole.
                    (error, None) => return Err(io::Error::from_raw_os_error(-error)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
