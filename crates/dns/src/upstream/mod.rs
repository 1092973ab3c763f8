//! Names that are not the cluster's: asked of other servers, kept for a while, and believed as far as they
//! answer what was asked.
//!
//! ```text
//!   question ─► cache ─► one flight a question ─► routes: stub domain or default ─► server in order of the list
//!                 ▲                                                                │ UDP, then TCP
//!                 └──────────────── sift: the chain that begins at the name ◄──────┘
//! ```

mod cache;
mod exchange;
mod resolv_conf;
mod routes;
mod sift;

pub use cache::{Bounds, Cache};
pub use exchange::Failure;
pub use resolv_conf::nameservers;
pub use routes::{Routes, Server, Source, parse_server};
pub use sift::sift;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdx::backoff::Policy;
use stdx::shutdown::Stage;
use stdx::{ClockExt, Rng, SharedClock};
use tokio::sync::{Notify, watch};

use crate::metrics::Metrics;
use crate::wire::{Edns, Name, Reply, rcode};
use cache::Key;
use exchange::Exchange;

/// Times a question is asked before it is given up: together less than the five seconds for which glibc waits.
const ATTEMPTS: usize = 3;
/// How long a server is waited for.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Questions that are asked of others at once; one more is refused, as CoreDNS does with `max_concurrent`.
const FLIGHTS: usize = 1000;
/// How often a server that is down is asked whether it is back.
const PROBE: Policy = Policy { initial: Duration::from_millis(500), max: Duration::from_secs(5) };

/// What is asked of others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// In small letters.
    pub name: Name,
    pub kind: u16,
    pub signatures: bool,
    pub unchecked: bool,
}

type Flight = watch::Receiver<Option<Arc<Reply>>>;

/// Asks others. Clones share everything.
#[derive(Clone)]
pub struct Forwarder {
    shared: Arc<Shared>,
}

struct Shared {
    source: Source,
    cache: Mutex<Cache>,
    flights: Mutex<HashMap<Question, Flight>>,
    exchange: Exchange,
    clock: SharedClock,
    rng: Rng,
    metrics: Arc<Metrics>,
    /// There is something to find out about a server.
    look: Notify,
}

/// Takes a flight off the list, also when whoever flies is dropped.
struct Landing<'a>(&'a Shared, &'a Question);

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.0.flights.lock().remove(self.1);
    }
}

impl Forwarder {
    /// A forwarder, which looks after its servers until the stage stops.
    pub fn start(
        source: Source,
        bounds: Bounds,
        metrics: Arc<Metrics>,
        clock: SharedClock,
        rng: Rng,
        stage: &Stage,
    ) -> Self {
        let shared = Shared {
            source,
            cache: Mutex::new(Cache::new(bounds)),
            flights: Mutex::default(),
            exchange: Exchange { clock: clock.clone(), rng: rng.clone(), patience: PATIENCE },
            clock,
            rng,
            metrics,
            look: Notify::new(),
        };
        let this = Self { shared: Arc::new(shared) };
        let (own, cached) = (this.clone(), Arc::downgrade(&this.shared));
        this.shared.metrics.entries(move |positive| Some(cached.upgrade()?.cache.lock().len(positive)));
        stage.run(async move {
            let clock = own.shared.clock.clone();
            crate::ready::tend("looking after other servers", None, &clock, || own.look_after()).await;
        });
        this
    }

    /// Finds out anew which servers ask us: more questions may lead here than before.
    pub fn look_again(&self) {
        self.routes().all().for_each(|server| server.is_unproved());
        self.shared.look.notify_one();
    }

    /// What is known of it already.
    pub fn known(&self, question: &Question) -> Option<Reply> {
        let now = self.shared.clock.now();
        let found = self.shared.cache.lock().get(&Key::of(question), now);
        self.shared.metrics.looked_up(found.as_ref().map(|reply| !reply.answers.is_empty()));
        found
    }

    /// Asks. An answer always comes: that it failed (SERVFAIL), or that there is too much to do (REFUSED).
    pub async fn resolve(&self, question: &Question) -> Arc<Reply> {
        let shared = &*self.shared;
        let told = {
            let mut flights = shared.flights.lock();
            if let Some(flight) = flights.get(question) {
                Err(flight.clone())
            } else if flights.len() >= FLIGHTS {
                shared.metrics.rejected();
                return Arc::new(Reply::code(rcode::REFUSED));
            } else {
                let (told, flight) = watch::channel(None);
                flights.insert(question.clone(), flight);
                Ok(told)
            }
        };
        match told {
            Ok(told) => {
                let _landing = Landing(shared, question);
                let reply = Arc::new(self.ask(question).await);
                told.send_replace(Some(reply.clone()));
                reply
            }
            Err(mut flight) => match flight.wait_for(Option::is_some).await {
                Ok(reply) => reply.clone().unwrap_or_else(|| Arc::new(Reply::code(rcode::SERVFAIL))),
                // Whoever asked went away; their question with them.
                Err(_) => Arc::new(Reply::code(rcode::SERVFAIL)),
            },
        }
    }

    async fn ask(&self, question: &Question) -> Reply {
        let shared = &*self.shared;
        let routes = self.routes();
        let servers = routes.servers(&question.name);
        for attempt in 0..ATTEMPTS {
            // In the order of the list, as a resolver of the host would; a server that failed comes last.
            let mut up: Vec<&Arc<Server>> = servers.iter().filter(|server| server.is_up()).collect();
            if up.is_empty() && attempt == 0 {
                // Probes may be wrong: one is asked all the same, and once.
                up.extend(servers.iter().find(|server| !server.is_looping()));
            }
            let Some(server) = up.get(attempt % up.len().max(1)) else { break };
            match self.once(server, question).await {
                Ok(reply) => {
                    if server.answered() {
                        shared.look.notify_one();
                    }
                    shared.cache.lock().put(&Key::of(question), &reply, shared.clock.now());
                    return reply;
                }
                Err(failure) => {
                    tracing::debug!(server = %server.address, name = %question.name, %failure, "no answer");
                    // One name that nobody answers takes no server away from all others: a probe decides.
                    if failure.is_of_the_server() && !server.suspect.swap(true, std::sync::atomic::Ordering::Relaxed) {
                        shared.look.notify_one();
                    }
                }
            }
        }
        if servers.iter().all(|server| !server.is_up()) {
            shared.metrics.broken();
        }
        Reply::code(rcode::SERVFAIL)
    }

    async fn once(&self, server: &Server, question: &Question) -> Result<Reply, Failure> {
        let shared = &*self.shared;
        let began = shared.clock.now();
        let edns = Some(Edns { size: 1232, signatures: question.signatures });
        let mut asked = shared.exchange.ask(server.address, question, edns).await;
        // A server of long ago knows nothing of extensions.
        if let Ok(message) = &asked
            && matches!(message.code, rcode::FORMERR | rcode::NOTIMP)
            && !question.signatures
        {
            asked = shared.exchange.ask(server.address, question, None).await;
        }
        let code = asked.as_ref().map_or("", |message| rcode::text(message.code));
        shared.metrics.asked(server.address, code, shared.clock.now().since(began));
        let message = asked?;
        match message.code {
            rcode::NOERROR | rcode::NXDOMAIN => Ok(sift(question, message)),
            code => Err(Failure::Code(code)),
        }
    }

    fn routes(&self) -> Arc<Routes> {
        let (routes, are_new) = self.shared.source.routes(self.shared.clock.now());
        if are_new {
            self.shared.cache.lock().clear();
            self.shared.look.notify_one();
        }
        routes
    }

    /// True when the question is one that we asked to find a loop: the server it was sent to leads back here.
    pub fn is_own_probe(&self, name: &Name) -> bool {
        let routes = self.routes();
        let found = routes.all().find(|server| server.is_found_out(name)).cloned();
        let Some(server) = found else { return false };
        if !server.loops.swap(true, std::sync::atomic::Ordering::Relaxed) {
            tracing::error!(server = %server.address, "this server for other names asks us: it is not asked any more");
            self.shared.metrics.looping(server.address);
        }
        true
    }

    /// Looks for loops, and asks those that are down whether they are back.
    async fn look_after(&self) {
        let shared = &*self.shared;
        let mut tries = 0;
        loop {
            let routes = self.routes();
            for server in routes.all().filter(|server| server.unproved_in(shared.clock.now()).is_zero()) {
                let token = || shared.rng.text(b"0123456789abcdef", 16);
                let Ok(name) = Name::parse(&format!("{}.{}", token(), token())) else { continue };
                server.begin_proof(name.clone(), shared.clock.now());
                if self.probe(server, name, crate::wire::kind::HINFO).await && server.end_proof() {
                    tracing::info!(server = %server.address, "this server for other names asks us no more");
                }
            }
            for server in routes.all().filter(|server| server.is_to_be_probed()) {
                self.probe(server, Name::root(), crate::wire::kind::NS).await;
            }
            let now = shared.clock.now();
            let next = routes.all().map(|server| server.unproved_in(now)).min();
            let pause = if routes.all().any(|server| server.is_to_be_probed()) {
                tries += 1;
                Some(next.unwrap_or_default().min(PROBE.delay(tries)))
            } else {
                tries = 0;
                next
            };
            tokio::select! {
                () = async { match pause {
                    Some(pause) => shared.clock.sleep(pause).await,
                    None => std::future::pending().await,
                } } => {}
                () = shared.look.notified() => {}
            }
        }
    }

    /// Asks a server to see whether it is there; true when it is.
    async fn probe(&self, server: &Server, name: Name, kind: u16) -> bool {
        let question = Question { name, kind, signatures: false, unchecked: false };
        // Whatever it says, it is there.
        match self.shared.exchange.ask(server.address, &question, None).await {
            Ok(_) => {
                server.answered();
                return true;
            }
            Err(failure) if failure.is_of_the_server() => {
                if server.failed() {
                    tracing::warn!(server = %server.address, %failure, "a server for other names is down");
                    self.shared.metrics.down(server.address);
                }
            }
            Err(_) => {}
        }
        false
    }
}

#[cfg(test)]
pub mod tests;
