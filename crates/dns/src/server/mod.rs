//! Messages in, messages out.
//!
//! ```text
//!   datagram or framed message ─► may they ask? ─► Query ─► Resolver ─► answered at once
//!                                                              └─► a task of its own, of which there are so many
//! ```

mod allow;
mod own;
mod tcp;
mod udp;

pub use allow::Allow;
pub use own::look as own_addresses;
pub use tcp::{Bounds, serve as serve_tcp};
pub use udp::serve as serve_udp;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use stdx::SharedClock;
use stdx::clock::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::{Dropped, Metrics, Way, Whose};
use crate::resolver::{Begun, Pending, Resolver};
use crate::wire::{self, Query, Reply, rcode};

/// Questions that wait for others' answers; more get SERVFAIL.
const PENDING: usize = 4096;
/// How long the host's addresses are believed to be what they were.
const FRESH: Duration = Duration::from_secs(1);

/// What both ways in share.
pub struct Front {
    resolver: Resolver,
    allow: Arc<RwLock<Allow>>,
    own: Own,
    metrics: Arc<Metrics>,
    clock: SharedClock,
    slots: Arc<Semaphore>,
}

/// Addresses of this host: of all, not only of that which its Node tells. They are looked at when somebody comes
/// who is not known otherwise, and not every time.
pub struct Own {
    look: Box<dyn Fn() -> BTreeSet<IpAddr> + Send + Sync>,
    known: Mutex<(Option<Instant>, BTreeSet<IpAddr>)>,
}

impl Own {
    /// Addresses as `look` tells them.
    pub fn new(look: impl Fn() -> BTreeSet<IpAddr> + Send + Sync + 'static) -> Self {
        Self { look: Box::new(look), known: Mutex::default() }
    }

    fn has(&self, address: IpAddr, now: Instant) -> bool {
        let mut known = self.known.lock();
        if known.0.is_none_or(|at| now.since(at) >= FRESH) {
            *known = (Some(now), (self.look)());
        }
        known.1.contains(&address)
    }
}

/// What becomes of a message.
pub enum Taken {
    /// Nothing.
    Dropped,
    /// The answer is written.
    Answered,
    /// The answer comes later.
    Later(Later),
}

/// A question that somebody else must be asked about.
pub struct Later {
    message: Vec<u8>,
    limit: Option<usize>,
    pending: Pending,
    whose: Whose,
    began: Instant,
    _slot: OwnedSemaphorePermit,
}

impl Front {
    /// A server's inside.
    pub fn new(
        resolver: Resolver,
        (allow, own): (Arc<RwLock<Allow>>, Own),
        metrics: Arc<Metrics>,
        clock: SharedClock,
    ) -> Self {
        Self { resolver, allow, own, metrics, clock, slots: Arc::new(Semaphore::new(PENDING)) }
    }

    /// True when whoever has that address may ask.
    pub fn is_allowed(&self, from: IpAddr) -> bool {
        let allowed = self.allow.read().is_allowed(from) || self.own.has(from.to_canonical(), self.clock.now());
        if !allowed {
            self.metrics.dropped(Dropped::Stranger);
        }
        allowed
    }

    /// Takes a message, when who sent it may ask. What panics is lost, and told.
    pub fn hear(&self, (from, way): (IpAddr, Way), message: &[u8], limit: Option<usize>, out: &mut Vec<u8>) -> Taken {
        let take = || if self.is_allowed(from) { self.take(message, limit, way, out) } else { Taken::Dropped };
        catch_unwind(AssertUnwindSafe(take)).unwrap_or_else(|_| {
            tracing::error!(%from, "a message was lost by a panic");
            self.metrics.dropped(Dropped::Panic);
            Taken::Dropped
        })
    }

    /// Takes a message of somebody who may ask. `limit`: how long an answer may be, unless the question says so.
    fn take(&self, message: &[u8], limit: Option<usize>, way: Way, out: &mut Vec<u8>) -> Taken {
        let began = self.clock.now();
        let query = match Query::read(message) {
            Ok(query) => query,
            Err(refusal) => {
                if !wire::refuse(refusal, out) {
                    self.metrics.dropped(Dropped::NoQuestion);
                    return Taken::Dropped;
                }
                if let wire::Refusal::Code { code, .. } = refusal {
                    self.metrics.answered(Whose::Others, code, self.clock.now().since(began));
                }
                return Taken::Answered;
            }
        };
        let room = limit.unwrap_or_else(|| query.limit());
        match self.resolver.begin(&query, room) {
            Begun::Done(whose, reply) => {
                self.metrics.asked_for(whose, way, query.kind);
                self.write(&query, &reply, room, (whose, began), out);
                Taken::Answered
            }
            Begun::Ask(whose, pending) => {
                self.metrics.asked_for(whose, way, query.kind);
                let Ok(slot) = self.slots.clone().try_acquire_owned() else {
                    self.metrics.rejected();
                    self.write(&query, &Reply::code(rcode::SERVFAIL), room, (whose, began), out);
                    return Taken::Answered;
                };
                Taken::Later(Later { message: message.to_vec(), limit, pending, whose, began, _slot: slot })
            }
        }
    }

    /// Waits for the others, and writes what they say.
    pub async fn finish(&self, later: Later, out: &mut Vec<u8>) {
        let Later { message, limit, pending, whose, began, _slot } = later;
        let reply = self.resolver.finish(pending).await;
        // It was read before.
        if let Ok(query) = Query::read(&message) {
            self.write(&query, &reply, limit.unwrap_or_else(|| query.limit()), (whose, began), out);
        }
    }

    fn write(
        &self,
        query: &Query<'_>,
        reply: &Reply,
        limit: usize,
        (whose, began): (Whose, Instant),
        out: &mut Vec<u8>,
    ) {
        wire::encode(query, reply, limit, out);
        self.metrics.answered(whose, reply.code, self.clock.now().since(began));
    }
}

#[cfg(test)]
mod tests;
