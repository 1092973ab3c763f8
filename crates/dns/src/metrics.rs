//! What the DNS counts, under CoreDNS' names: dashboards know them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stdx::metrics::hot::Hot;
use stdx::metrics::{Counter, Gauge, Histogram, Page, Registry, Type};

use crate::wire::{kind, rcode};

/// How CoreDNS names a server that listens everywhere on the usual port.
const SERVER: &str = "dns://:53";
/// Seconds that answers take: CoreDNS' buckets.
const SECONDS: [f64; 16] = [
    0.000_25, 0.000_5, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192,
];
/// Types that are told apart; the last is for all others.
const KINDS: [u16; 19] = [
    kind::A,
    kind::AAAA,
    kind::MX,
    kind::SOA,
    kind::CNAME,
    kind::PTR,
    kind::TXT,
    kind::NS,
    kind::SRV,
    kind::DS,
    kind::DNSKEY,
    kind::RRSIG,
    kind::NSEC,
    kind::NSEC3,
    kind::HTTPS,
    kind::IXFR,
    kind::AXFR,
    kind::ANY,
    0,
];
/// Codes that are told apart; the last is for all others.
const CODES: [u16; 8] = [
    rcode::NOERROR,
    rcode::FORMERR,
    rcode::SERVFAIL,
    rcode::NXDOMAIN,
    rcode::NOTIMP,
    rcode::REFUSED,
    rcode::BADVERS,
    u16::MAX,
];

/// Whose a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The cluster's own domain, or its addresses'.
    Cluster = 0,
    Others = 1,
}

/// Where a question came from.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub tcp: bool,
    pub v6: bool,
}

/// The counters.
pub struct Metrics {
    hot: std::sync::Arc<Counts>,
    lookups: Lookups,
    asked: Histogram,
    forwarded: Counter,
    heard: Counter,
    down: Counter,
    broken: Counter,
    rejects: Counter,
    loops: Counter,
    entries: Gauge,
}

struct Lookups {
    hits: Counter,
    misses: Counter,
    requests: Counter,
}

/// What is counted at every question, without a lock.
struct Counts {
    /// By who owns the name, protocol and family, and type.
    requests: [[[AtomicU64; KINDS.len()]; 4]; 2],
    /// By who owns the name, and code.
    responses: [[AtomicU64; CODES.len()]; 2],
    took: [Hot; 2],
    /// Messages without an answer, by the reason.
    dropped: [AtomicU64; 3],
}

/// Why a message gets no answer.
#[derive(Clone, Copy, Debug)]
pub enum Dropped {
    /// It comes from outside of the cluster.
    Stranger = 0,
    /// It is no question.
    NoQuestion = 1,
    /// It was a mistake of ours.
    Panic = 2,
}

fn place<const N: usize>(known: &[u16; N], value: u16) -> usize {
    known.iter().position(|k| *k == value).unwrap_or(N - 1)
}

impl Metrics {
    /// Counters in that registry; `domain` is how the cluster's own zone is labelled.
    pub fn new(registry: &Registry, domain: &str) -> Self {
        let zero = || AtomicU64::new(0);
        let counts = std::sync::Arc::new(Counts {
            requests: std::array::from_fn(|_| std::array::from_fn(|_| std::array::from_fn(|_| zero()))),
            responses: std::array::from_fn(|_| std::array::from_fn(|_| zero())),
            took: std::array::from_fn(|_| Hot::new(&SECONDS)),
            dropped: std::array::from_fn(|_| zero()),
        });
        let (shown, zones) = (counts.clone(), [domain.to_owned(), ".".to_owned()]);
        registry.collect(move |page| shown.render(page, &zones));
        let cache = ["server", "type", "zones", "view"];
        Self {
            hot: counts,
            lookups: Lookups {
                hits: registry.counter("coredns_cache_hits_total", "The count of cache hits.", &cache),
                misses: registry.counter(
                    "coredns_cache_misses_total",
                    "The count of cache misses.",
                    &["server", "zones", "view"],
                ),
                requests: registry.counter(
                    "coredns_cache_requests_total",
                    "The count of cache requests.",
                    &["server", "zones", "view"],
                ),
            },
            asked: registry.histogram(
                "coredns_proxy_request_duration_seconds",
                "Histogram of the time each request took.",
                &["proxy_name", "to", "rcode"],
                &SECONDS,
            ),
            forwarded: registry.counter(
                "coredns_forward_requests_total",
                "Counter of requests made per upstream.",
                &["to"],
            ),
            heard: registry.counter(
                "coredns_forward_responses_total",
                "Counter of responses received per upstream.",
                &["to", "rcode"],
            ),
            down: registry.counter(
                "coredns_proxy_healthcheck_failures_total",
                "Counter of the number of failed healthchecks.",
                &["proxy_name", "to"],
            ),
            broken: registry.counter(
                "coredns_forward_healthcheck_broken_total",
                "Counter of the number of complete failures of the healthchecks.",
                &[],
            ),
            rejects: registry.counter(
                "coredns_forward_max_concurrent_rejects_total",
                "Counter of the number of queries rejected because the concurrent queries were at maximum.",
                &[],
            ),
            loops: registry.counter(
                "pintle_dns_forward_loops_total",
                "Servers for other names that ask us, and are not asked any more.",
                &["to"],
            ),
            entries: registry.gauge("coredns_cache_entries", "The number of elements in the cache.", &cache),
        }
    }

    /// A question came.
    pub fn asked_for(&self, whose: Whose, way: Way, kind: u16) {
        let way = usize::from(way.tcp) << 1 | usize::from(way.v6);
        self.hot.requests[whose as usize][way][place(&KINDS, kind)].fetch_add(1, Ordering::Relaxed);
    }

    /// It was answered.
    pub fn answered(&self, whose: Whose, code: u16, took: Duration) {
        self.hot.responses[whose as usize][place(&CODES, code)].fetch_add(1, Ordering::Relaxed);
        self.hot.took[whose as usize].observe(took.as_secs_f64());
    }

    /// A message got no answer.
    pub fn dropped(&self, why: Dropped) {
        self.hot.dropped[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The cache was asked, and knew something, that there is nothing, or nothing.
    pub fn looked_up(&self, found: Option<bool>) {
        self.lookups.requests.inc(&[SERVER, ".", ""]);
        match found {
            Some(true) => self.lookups.hits.inc(&[SERVER, "success", ".", ""]),
            Some(false) => self.lookups.hits.inc(&[SERVER, "denial", ".", ""]),
            None => self.lookups.misses.inc(&[SERVER, ".", ""]),
        }
    }

    /// How many entries the cache has is asked for when a page is.
    pub fn entries(&self, count: impl Fn(bool) -> Option<usize> + Clone + Send + Sync + 'static) {
        for (label, positive) in [("success", true), ("denial", false)] {
            let count = count.clone();
            self.entries.watch(&[SERVER, label, ".", ""], move || count(positive).map(|n| n as f64));
        }
    }

    /// A server was asked; the code is empty when it gave no answer.
    pub fn asked(&self, to: SocketAddr, code: &str, took: Duration) {
        let to = to.to_string();
        self.asked.took(&["forward", &to, code], took);
        self.forwarded.inc(&[&to]);
        if !code.is_empty() {
            self.heard.inc(&[&to, code]);
        }
    }

    /// A server counts as down.
    pub fn down(&self, to: SocketAddr) {
        self.down.inc(&["forward", &to.to_string()]);
    }

    /// There was nobody to ask.
    pub fn broken(&self) {
        self.broken.inc(&[]);
    }

    /// Too much was asked at once.
    pub fn rejected(&self) {
        self.rejects.inc(&[]);
    }

    /// A server asks us.
    pub fn looping(&self, to: SocketAddr) {
        self.loops.inc(&[&to.to_string()]);
    }
}

impl Counts {
    fn render(&self, page: &mut Page, zones: &[String; 2]) {
        let name = "coredns_dns_requests_total";
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        page.family(name, Type::Counter, "Counter of DNS requests made per zone, protocol and family.");
        for (zone, ways) in zones.iter().zip(&self.requests) {
            for (way, kinds) in ways.iter().enumerate() {
                let (protocol, family) = (["udp", "tcp"][way >> 1], ["1", "2"][way & 1]);
                for (kind, count) in KINDS.iter().zip(kinds).filter(|(_, count)| value(count) > 0.0) {
                    let labels = [
                        ("server", SERVER),
                        ("zone", zone),
                        ("view", ""),
                        ("proto", protocol),
                        ("family", family),
                        ("type", kind::text(*kind)),
                    ];
                    page.sample(name, &labels, value(count));
                }
            }
        }
        let name = "coredns_dns_responses_total";
        page.family(name, Type::Counter, "Counter of response status codes.");
        for ((zone, codes), plugin) in zones.iter().zip(&self.responses).zip(["kubernetes", "forward"]) {
            for (code, count) in CODES.iter().zip(codes).filter(|(_, count)| value(count) > 0.0) {
                let labels = [
                    ("server", SERVER),
                    ("zone", zone),
                    ("view", ""),
                    ("rcode", rcode::text(*code)),
                    ("plugin", plugin),
                ];
                page.sample(name, &labels, value(count));
            }
        }
        let name = "coredns_dns_request_duration_seconds";
        page.family(name, Type::Histogram, "Histogram of the time (in seconds) each request took per zone.");
        for (zone, took) in zones.iter().zip(&self.took) {
            took.render(page, name, &[("server", SERVER), ("zone", zone), ("view", "")]);
        }
        let name = "pintle_dns_dropped_total";
        page.family(
            name,
            Type::Counter,
            "Messages that get no answer: of strangers, such as are no questions, and those that we fail at.",
        );
        for (why, count) in ["stranger", "no_question", "panic"].iter().zip(&self.dropped) {
            page.sample(name, &[("reason", why)], value(count));
        }
    }
}
