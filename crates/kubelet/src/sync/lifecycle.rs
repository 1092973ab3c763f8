//! The life of a pod on this node: `Running → Terminating → Terminated`, never backwards.
//!
//! ```text
//!           deleted, gone from the API, evicted, over its deadline, all its containers are done
//!  Running ───────────────────────────────────────────────────────────────► Terminating
//!     │ containers are started and kept                                       │ containers end in their grace
//!     │                                                                       │ no process is left
//!     │            rejected by admission (nothing ever ran)                   ▼
//!     └─────────────────────────────────────────────────────────────────► Terminated
//!                                                                             volumes, cgroups go; the final
//!                                                                             status is written, then a deleted
//!                                                                             pod leaves the API
//! ```

/// Where the pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its containers are to run.
    Running,
    /// Its containers are to end. Legal from `Running`; nothing may be started any more.
    Terminating {
        /// Seconds its containers have, from when the kubelet first learned of it. Only ever shrinks.
        grace: i64,
        /// Why, for the status, when the pod did not end by itself and was not deleted.
        cause: Option<Cause>,
    },
    /// No process of it is left, and none will be. Volumes and cgroups may be removed.
    Terminated {
        /// As in `Terminating`.
        cause: Option<Cause>,
    },
}

/// Why the node itself ended or refused a pod: its phase becomes Failed with this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    pub reason: String,
    pub message: String,
    /// Of a pod that ends for others: what its condition DisruptionTarget says.
    pub disruption: Option<String>,
}

/// What the machine looks at.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// `deletionTimestamp` is set; the seconds granted.
    pub deleted: Option<i64>,
    /// The object is gone from the API server.
    pub gone: bool,
    /// The recorded or generated phase is Succeeded or Failed, or the plan has nothing more to run.
    pub done: bool,
    /// The node wants it gone.
    pub eviction: Option<(Cause, i64)>,
    /// Admission refused it and nothing of it ever ran.
    pub rejected: Option<Cause>,
    /// Something of it has or may have processes.
    pub may_run: bool,
    /// Seconds the spec grants.
    pub spec_grace: i64,
}

impl Phase {
    /// The phase after looking at `facts`.
    #[must_use]
    pub fn next(self, facts: &Facts) -> Self {
        match self {
            Self::Running => match facts {
                Facts { rejected: Some(cause), may_run: false, .. } => Self::Terminated { cause: Some(cause.clone()) },
                // Nobody can read its end any more: it ends in the grace of its spec.
                Facts { deleted: Some(grace), .. } => Self::Terminating { grace: *grace, cause: None },
                Facts { gone: true, spec_grace, .. } => Self::Terminating { grace: *spec_grace, cause: None },
                Facts { eviction: Some((cause, grace)), .. } => {
                    Self::Terminating { grace: *grace, cause: Some(cause.clone()) }
                }
                Facts { done: true, spec_grace, .. } => Self::Terminating { grace: *spec_grace, cause: None },
                _ => Self::Running,
            }
            .settle(facts),
            Self::Terminating { grace, cause } => {
                let grace = facts.deleted.map_or(grace, |asked| asked.min(grace));
                Self::Terminating { grace, cause }.settle(facts)
            }
            terminated @ Self::Terminated { .. } => terminated,
        }
    }

    fn settle(self, facts: &Facts) -> Self {
        match self {
            Self::Terminating { cause, .. } if !facts.may_run => Self::Terminated { cause },
            other => other,
        }
    }

    /// True while containers may be started.
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running)
    }

    /// True once nothing runs.
    pub fn is_terminated(&self) -> bool {
        matches!(self, Self::Terminated { .. })
    }

    /// Why the node ended it.
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Running => None,
            Self::Terminating { cause, .. } | Self::Terminated { cause } => cause.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts { may_run: true, spec_grace: 30, ..Facts::default() }
    }

    #[test]
    fn transitions() {
        let terminating = |grace| Phase::Terminating { grace, cause: None };
        let rows = [
            (Phase::Running, facts(), Phase::Running),
            (Phase::Running, Facts { deleted: Some(5), ..facts() }, terminating(5)),
            (Phase::Running, Facts { gone: true, ..facts() }, terminating(30)),
            (Phase::Running, Facts { done: true, ..facts() }, terminating(30)),
            (Phase::Running, Facts { done: true, may_run: false, ..facts() }, Phase::Terminated { cause: None }),
            (Phase::Running, Facts { may_run: false, ..facts() }, Phase::Running),
            (terminating(30), Facts { deleted: Some(0), ..facts() }, terminating(0)),
            (terminating(5), Facts { deleted: Some(60), ..facts() }, terminating(5)),
            (terminating(5), Facts { may_run: false, ..facts() }, Phase::Terminated { cause: None }),
            (Phase::Terminated { cause: None }, facts(), Phase::Terminated { cause: None }),
        ];
        for (from, facts, to) in rows {
            assert_eq!(from.clone().next(&facts), to, "{from:?} {facts:?}");
        }
    }

    #[test]
    fn a_rejection_counts_only_while_nothing_runs() {
        let cause = Cause { reason: "OutOfcpu".into(), message: "m".into(), disruption: None };
        let rejected = Facts { rejected: Some(cause.clone()), may_run: false, ..facts() };
        assert_eq!(Phase::Running.next(&rejected), Phase::Terminated { cause: Some(cause.clone()) });
        assert_eq!(Phase::Running.next(&Facts { may_run: true, ..rejected }), Phase::Running);
    }
}
