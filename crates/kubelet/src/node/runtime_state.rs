//! Why the runtime keeps the node from being ready, in upstream's words. Pure.

use std::time::Duration;

use stdx::clock::Instant;

use crate::runtime::{Health, Result};

/// A runtime that answered within this time is not down yet: it may be restarting.
const PATIENCE: Duration = Duration::from_secs(30);

/// The last that was heard of the runtime.
#[derive(Debug, Default)]
pub struct RuntimeState {
    last: Option<(Instant, Health)>,
    failing: bool,
}

/// One reason why the node is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What a Wait calls it.
    pub code: &'static str,
    pub text: String,
}

impl RuntimeState {
    /// Takes an answer in.
    pub fn observe(&mut self, health: Result<Health>, now: Instant) {
        match health {
            Ok(health) => (self.last, self.failing) = (Some((now, health)), false),
            Err(error) => {
                if !self.failing {
                    tracing::warn!(%error, "the container runtime does not tell how it is");
                }
                self.failing = true;
            }
        }
    }

    /// What the runtime last said of itself.
    pub fn health(&self) -> Option<&Health> {
        self.last.as_ref().map(|(_, health)| health)
    }

    /// True while nothing keeps pods from starting, as far as is known.
    pub fn problems(&self, now: Instant) -> Vec<Problem> {
        let runtime = |text: String| Problem { code: "RuntimeNotReady", text };
        let Some((at, health)) = &self.last else {
            return vec![runtime("container runtime status check may not have completed yet".into())];
        };
        let mut found = Vec::new();
        if now.since(*at) >= PATIENCE && self.failing {
            found.push(runtime("container runtime is down".into()));
        }
        if let Some(why) = &health.runtime_problem {
            found.push(runtime(format!("container runtime not ready: {why}")));
        }
        if let Some(why) = &health.network_problem {
            let text = format!("container runtime network not ready: {why}");
            found.push(Problem { code: "NetworkNotReady", text });
        }
        found
    }
}

/// Several reasons as one message.
pub fn join(problems: &[Problem]) -> String {
    match problems {
        [one] => one.text.clone(),
        many => format!("[{}]", many.iter().map(|p| p.text.as_str()).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Error;

    #[test]
    fn texts() {
        let at = |seconds| Instant(Duration::from_secs(seconds));
        let mut state = RuntimeState::default();
        let down = || Err(Error::Unavailable("x".into()));
        state.observe(down(), at(0));
        assert_eq!(join(&state.problems(at(0))), "container runtime status check may not have completed yet");
        let network = "NetworkReady=false reason:NetworkPluginNotReady message:none yet";
        state.observe(Ok(Health { network_problem: Some(network.into()), ..Health::default() }), at(1));
        let problems = state.problems(at(1));
        assert_eq!(problems[0].code, "NetworkNotReady");
        assert_eq!(join(&problems), format!("container runtime network not ready: {network}"));
        let runtime = Some("RuntimeReady=false reason:R message:m".to_owned());
        state.observe(
            Ok(Health { network_problem: Some(network.into()), runtime_problem: runtime, ..Health::default() }),
            at(1),
        );
        assert_eq!(
            join(&state.problems(at(1))),
            format!(
                "[container runtime not ready: RuntimeReady=false reason:R message:m, container runtime network not ready: {network}]"
            )
        );
        state.observe(Ok(Health::default()), at(2));
        assert!(state.problems(at(100)).is_empty(), "nobody asked meanwhile");
        state.observe(down(), at(20));
        assert!(state.problems(at(31)).is_empty());
        assert_eq!(join(&state.problems(at(32))), "container runtime is down");
    }
}
