//! Why a write happened: the objects whose processing produced it, sent along with every write.
//!
//! ```text
//!   traceparent:  00-<32 hex trace>-<16 hex span>-01
//!   Pintle-Cause: replicasets.apps/default/web-5d9c@812, pods/default/web-5d9c-x2x9z@817
//! ```
//!
//! A cause is `<plural>[.<group>]/<namespace>/<name>@<revision>`; the namespace is empty for cluster
//! scope. The controller runner opens a
//! [`scope`] around each pass; whatever the pass writes carries the scope's causes by itself.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use http::HeaderValue;
use stdx::Rng;

/// The header that carries causes.
pub const HEADER: &str = "pintle-cause";
/// A write carries at most this many causes; the latest win.
pub const MAX: usize = 8;

/// One object at one revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cause {
    /// `pods`, `deployments.apps`.
    pub resource: Arc<str>,
    /// Empty for cluster scope.
    pub namespace: String,
    pub name: String,
    pub revision: u64,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}@{}", self.resource, self.namespace, self.name, self.revision)
    }
}

/// Adds a cause to a bounded list: the newest revision of an object wins, the oldest entry goes.
pub fn push(causes: &mut Vec<Cause>, cause: Cause) {
    causes.retain(|c| !(c.resource == cause.resource && c.namespace == cause.namespace && c.name == cause.name));
    if causes.len() >= MAX {
        causes.remove(0);
    }
    causes.push(cause);
}

/// The headers of one pass.
#[derive(Clone, Debug)]
pub struct Scope {
    pub(crate) traceparent: HeaderValue,
    pub(crate) causes: Option<HeaderValue>,
}

tokio::task_local! {
    static CURRENT: Scope;
}

impl Scope {
    /// A scope with a trace of its own.
    pub fn new(causes: &[Cause], rng: &Rng) -> Self {
        let mut id = [0u8; 24];
        rng.fill(&mut id);
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let trace = format!("00-{}-{}-01", hex(&id[..16]), hex(&id[16..]));
        let list = causes.iter().map(Cause::to_string).collect::<Vec<_>>().join(", ");
        Self {
            traceparent: HeaderValue::from_str(&trace).unwrap_or(HeaderValue::from_static("")),
            causes: (!list.is_empty()).then(|| HeaderValue::from_str(&list).ok()).flatten(),
        }
    }

    /// The scope the calling task runs in, to be re-entered by a task that acts for it later.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok()
    }

    /// Runs `future` in this scope.
    pub fn enter<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, future)
    }
}

/// Runs `future` with `causes` attached to every write it makes.
pub fn scope<F: Future>(causes: &[Cause], rng: &Rng, future: F) -> impl Future<Output = F::Output> {
    Scope::new(causes, rng).enter(future)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(name: &str, revision: u64) -> Cause {
        Cause { resource: "pods".into(), namespace: "default".into(), name: name.into(), revision }
    }

    #[test]
    fn causes_are_bounded_and_the_newest_revision_wins() {
        let mut causes = Vec::new();
        for n in 0..20 {
            push(&mut causes, cause(&format!("p{n}"), n));
        }
        push(&mut causes, cause("p15", 99));
        assert_eq!(causes.len(), MAX);
        assert_eq!(causes.last().map(|c| c.to_string()), Some("pods/default/p15@99".into()));
        assert_eq!(causes.iter().filter(|c| c.name == "p15").count(), 1);
    }
}
