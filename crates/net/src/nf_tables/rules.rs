//! One rule, from the words of `nft` to the kernel's expressions; pure. Only what rules of Services and of
//! NetworkPolicies are made of is known: of anything else `nft` must be asked.

use std::net::SocketAddr;

use ipnet::IpNet;

use super::values::{Part, protocol, verdict};
use crate::netlink::{put, put_nested};
use crate::ruleset::Family;

/// What a set without a name is called until the kernel numbers it.
pub(super) const SET_NAME: &str = "__set%d";

/// Attributes of an expression.
const NAME: u16 = 1;
const DATA: u16 = 2;
/// The attribute of a value.
const VALUE: u16 = 1;
/// Registers: that of verdicts, two of 16 bytes, and the first of 4 bytes.
const VERDICT: u32 = 0;
const FIRST: u32 = 1;
const SECOND: u32 = 2;
const WORDS: u32 = 8;
/// What is loaded of a packet.
const MARK: u32 = 3;
const INPUT_NAME: u32 = 6;
const L4_PROTOCOL: u32 = 16;
/// Comparisons.
const EQUAL: u32 = 0;
const OTHER: u32 = 1;
const NOT_ABOVE: u32 = 3;
const NOT_BELOW: u32 = 5;
/// An address of this host, as `fib` says it.
const LOCAL: u32 = 2;
/// Where a translation has its destination's port from.
const PORT_SAID: u32 = 2;

/// One expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expression {
    name: &'static str,
    attributes: Vec<u8>,
    /// The attribute that names, by number, the set that the rule brings along.
    own: Option<u16>,
}

impl Expression {
    /// Its attributes, with the number of the rule's own set.
    pub fn bytes(&self, set: Option<u32>) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, NAME, &super::name(self.name));
        put_nested(&mut out, DATA, |out| {
            out.extend(&self.attributes);
            if let (Some(kind), Some(id)) = (self.own, set) {
                put(out, kind, &id.to_be_bytes());
            }
        });
        out
    }
}

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Compiled {
    pub expressions: Vec<Expression>,
    /// What its own set holds: ports, and ranges of them.
    pub ports: Option<Vec<String>>,
}

/// `None` where it says something that is not known here.
pub(super) fn compile(rule: &str, family: Family) -> Option<Compiled> {
    let mut compiler = Compiler { family, out: Compiled::default() };
    let mut rest = rule;
    while !rest.is_empty() {
        rest = compiler.statement(rest)?.trim_start();
    }
    Some(compiler.out)
}

struct Compiler {
    family: Family,
    out: Compiled,
}

fn word(text: &str) -> (&str, &str) {
    text.split_once(' ').unwrap_or((text, ""))
}

/// `!=` turns a comparison round.
fn negated(text: &str) -> (u32, &str) {
    match text.strip_prefix("!= ") {
        Some(rest) => (OTHER, rest),
        None => (EQUAL, text),
    }
}

impl Compiler {
    fn add(&mut self, name: &'static str, numbers: &[(u16, u32)], more: impl FnOnce(&mut Vec<u8>)) {
        let mut attributes = Vec::new();
        for (kind, number) in numbers {
            put(&mut attributes, *kind, &number.to_be_bytes());
        }
        more(&mut attributes);
        self.out.expressions.push(Expression { name, attributes, own: None });
    }

    fn load(&mut self, what: u32) {
        self.add("meta", &[(2, what), (1, FIRST)], |_| {});
    }

    fn payload(&mut self, base: u32, offset: u32, length: u32, register: u32) {
        self.add("payload", &[(1, register), (2, base), (3, offset), (4, length)], |_| {});
    }

    fn compare(&mut self, how: u32, value: &[u8]) {
        self.add("cmp", &[(1, FIRST), (2, how)], |out| put_nested(out, 3, |out| put(out, VALUE, value)));
    }

    fn immediate(&mut self, register: u32, value: &[u8]) {
        self.add("immediate", &[(1, register)], |out| put_nested(out, 2, |out| put(out, VALUE, value)));
    }

    fn bits(&mut self, mask: &[u8], xor: &[u8]) {
        let length = u32::try_from(mask.len()).unwrap_or(0);
        self.add("bitwise", &[(1, FIRST), (2, FIRST), (3, length), (6, 0)], |out| {
            put_nested(out, 4, |out| put(out, VALUE, mask));
            put_nested(out, 5, |out| put(out, VALUE, xor));
        });
    }

    /// The same number each time: what a counter that begins there and has one step says.
    fn constant(&mut self, number: u32, register: u32) {
        self.add("numgen", &[(1, register), (2, 1), (3, 0), (4, number)], |_| {});
    }

    /// `. numgen inc mod 1 offset 7` behind an address of a packet: a client and a number.
    fn client<'t>(&mut self, text: &'t str, offset: u32) -> Option<&'t str> {
        let (number, rest) = word(text.strip_prefix(". numgen inc mod 1 offset ")?);
        let number = number.parse().ok()?;
        self.payload(1, offset, self.address().0, FIRST);
        self.constant(number, self.behind_address());
        Some(rest)
    }

    fn random(&mut self, of: u32, register: u32) {
        self.add("numgen", &[(1, register), (2, of), (3, 1), (4, 0)], |_| {});
    }

    fn lookup(&mut self, set: &str, into: Option<u32>) {
        let registers: &[(u16, u32)] = match into {
            Some(into) => &[(2, FIRST), (3, into)],
            None => &[(2, FIRST)],
        };
        self.add("lookup", registers, |out| put(out, 1, &super::name(set)));
    }

    fn family_number(&self) -> u32 {
        u32::from(super::number(self.family))
    }

    /// The length of an address, and where source and destination stand in a packet's head.
    fn address(&self) -> (u32, u32, u32) {
        match self.family {
            Family::Ip => (4, 12, 16),
            Family::Ip6 => (16, 8, 24),
        }
    }

    /// The register behind an address in the first one.
    fn behind_address(&self) -> u32 {
        WORDS + self.address().0 / 4
    }

    /// Takes one statement off; what is left.
    fn statement<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        let ip = self.family.as_str();
        let (first, rest) = word(text);
        match first {
            "accept" | "drop" | "return" => {
                let verdict = verdict(first)?;
                self.verdict(&verdict);
                Some(rest)
            }
            "goto" | "jump" => {
                let (chain, rest) = word(rest);
                let verdict = verdict(&format!("{first} {chain}"))?;
                self.verdict(&verdict);
                Some(rest)
            }
            "tcp" | "udp" | "sctp" => self.ports(first, rest.strip_prefix("dport ")?),
            "iifname" => self.interface(rest),
            "numgen" => {
                let (of, rest) = word(rest.strip_prefix("random mod ")?);
                let (which, rest) = word(rest);
                let which: u32 = which.parse().ok()?;
                self.random(of.parse().ok()?, FIRST);
                self.compare(EQUAL, &which.to_ne_bytes());
                Some(rest)
            }
            "fib" => {
                self.add("fib", &[(3, 1), (2, 3), (1, FIRST)], |_| {});
                self.compare(EQUAL, &LOCAL.to_ne_bytes());
                rest.strip_prefix("saddr type local").map(str::trim_start)
            }
            "meta" => self.meta(rest),
            "update" => self.update(rest),
            "dnat" => self.translate(rest),
            _ if first == ip => self.match_address(rest),
            _ => None,
        }
    }

    fn verdict(&mut self, verdict: &[u8]) {
        self.add("immediate", &[(1, VERDICT)], |out| put_nested(out, 2, |out| out.extend(verdict)));
    }

    fn interface<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        let (how, text) = negated(text);
        let (name, rest) = text.strip_prefix('"')?.split_once('"')?;
        self.load(INPUT_NAME);
        match name.strip_suffix('*') {
            Some(prefix) => self.compare(how, prefix.as_bytes()),
            None => {
                let mut whole = name.as_bytes().to_vec();
                whole.resize(16, 0);
                self.compare(how, &whole);
            }
        }
        Some(rest.trim_start())
    }

    fn meta<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        if let Some(rest) = text.strip_prefix("l4proto ") {
            let (name, rest) = word(rest);
            let number = protocol(name)?;
            self.load(L4_PROTOCOL);
            self.compare(EQUAL, &[number]);
            return Some(rest);
        }
        let (mark, rest) = word(text.strip_prefix("mark set meta mark | ")?);
        let mark = u32::from_str_radix(mark.strip_prefix("0x")?, 16).ok()?;
        self.load(MARK);
        self.bits(&(!mark).to_ne_bytes(), &mark.to_ne_bytes());
        self.add("meta", &[(2, MARK), (3, FIRST)], |_| {});
        Some(rest)
    }

    fn match_address<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        let (length, source, destination) = self.address();
        let (side, rest) = word(text);
        let offset = match side {
            "saddr" => source,
            "daddr" => destination,
            _ => return None,
        };
        if let Some(joined) = rest.strip_prefix(". th dport @").filter(|_| side == "daddr") {
            let (set, rest) = word(joined);
            self.payload(1, offset, length, FIRST);
            self.payload(2, 2, 2, self.behind_address());
            self.lookup(set, None);
            return Some(rest);
        }
        if rest.starts_with(". numgen ") && side == "saddr" {
            let rest = self.client(rest, offset)?;
            let (set, rest) = word(rest.strip_prefix('@')?);
            self.lookup(set, None);
            return Some(rest);
        }
        let (how, rest) = negated(rest);
        let (value, rest) = word(rest);
        if let Some(set) = value.strip_prefix('@') {
            self.payload(1, offset, length, FIRST);
            self.lookup(set, None);
            return (how == EQUAL).then_some(rest);
        }
        let network: IpNet = match value.parse() {
            Ok(network) => network,
            Err(_) => IpNet::from(value.parse::<std::net::IpAddr>().ok()?),
        };
        let octets = |ip: std::net::IpAddr| match ip {
            std::net::IpAddr::V4(ip) => ip.octets().to_vec(),
            std::net::IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let (address, bits) = (octets(network.network()), usize::from(network.prefix_len()));
        if address.len() != length as usize || bits == 0 {
            return None;
        }
        let whole = bits / 8;
        if bits % 8 == 0 {
            self.payload(1, offset, u32::try_from(whole).ok()?, FIRST);
            self.compare(how, address.get(..whole)?);
        } else {
            self.payload(1, offset, length, FIRST);
            self.bits(&octets(network.netmask()), &vec![0; length as usize]);
            self.compare(how, &address);
        }
        Some(rest)
    }

    /// `80`, `80-90` or `{ 80, 443-445 }` of one protocol.
    fn ports<'t>(&mut self, name: &str, text: &'t str) -> Option<&'t str> {
        self.load(L4_PROTOCOL);
        self.compare(EQUAL, &[protocol(name)?]);
        self.payload(2, 2, 2, FIRST);
        if let Some(list) = text.strip_prefix("{ ") {
            let (list, rest) = list.split_once(" }")?;
            // One rule has one of them.
            let ports = list.split(", ").map(str::to_owned).collect();
            self.out.ports.replace(ports).is_none().then_some(())?;
            self.lookup(SET_NAME, None);
            self.out.expressions.last_mut()?.own = Some(4);
            return Some(rest.trim_start());
        }
        let (ports, rest) = word(text);
        match ports.split_once('-') {
            None => self.compare(EQUAL, &Part::Port.bytes(ports)?),
            Some((first, last)) => {
                self.compare(NOT_BELOW, &Part::Port.bytes(first)?);
                self.compare(NOT_ABOVE, &Part::Port.bytes(last)?);
            }
        }
        Some(rest)
    }

    /// `@set { ip saddr . numgen inc mod 1 offset 7 timeout 10s }`
    fn update<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        let (set, rest) = word(text.strip_prefix('@')?);
        let client = rest.strip_prefix(&format!("{{ {} saddr ", self.family.as_str()))?;
        let (_, source, _) = self.address();
        let seconds = self.client(client, source)?.strip_prefix("timeout ")?;
        let (seconds, rest) = seconds.split_once("s }")?;
        let milliseconds = seconds.parse::<u64>().ok()?.checked_mul(1000)?;
        self.add("dynset", &[(4, FIRST), (3, 1)], |out| {
            put(out, 6, &milliseconds.to_be_bytes());
            put(out, 1, &super::name(set));
        });
        Some(rest.trim_start())
    }

    /// `ip to 10.0.0.1:80`, or `ip addr . port to` what a map says of where a packet goes and a number drawn.
    fn translate<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        let ip = self.family.as_str();
        if let Some(address) = text.strip_prefix(&format!("{ip} to ")) {
            let (address, rest) = word(address);
            let address: SocketAddr = address.parse().ok()?;
            let part = if address.is_ipv4() { Part::V4 } else { Part::V6 };
            let value = part.bytes(&address.ip().to_string()).filter(|v| v.len() == self.address().0 as usize)?;
            self.immediate(FIRST, &value);
            self.immediate(SECOND, &address.port().to_be_bytes());
            let numbers = [(1, 1), (2, self.family_number()), (3, FIRST), (5, SECOND), (7, PORT_SAID)];
            self.add("nat", &numbers, |_| {});
            return Some(rest);
        }
        let text = text.strip_prefix(&format!("{ip} addr . port to "))?;
        let (text, next) = match text.strip_prefix(&format!("{ip} daddr . ")) {
            Some(rest) => {
                let (length, _, destination) = self.address();
                self.payload(1, destination, length, FIRST);
                (rest, self.behind_address())
            }
            None => (text, WORDS),
        };
        let (protocol_word, text) = word(text);
        protocol(protocol_word)?;
        let (of, text) = text.strip_prefix("dport . numgen random mod ")?.split_once(" map @")?;
        let (set, rest) = word(text);
        self.payload(2, 2, 2, next);
        self.random(of.parse().ok()?, next + 1);
        self.lookup(set, Some(FIRST));
        let numbers = [(1, 1), (2, self.family_number()), (3, FIRST), (5, self.behind_address())];
        self.add("nat", &numbers, |_| {});
        Some(rest)
    }
}
