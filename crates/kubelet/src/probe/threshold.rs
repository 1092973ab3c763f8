//! When a run of equal answers becomes a verdict: pure counting.
//!
//! ```text
//! readiness, failureThreshold 3:  ok ─► Success · bad · bad · ok · bad · bad · bad ─► Failure
//! ```

/// Which question a probe asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    /// As events print it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }

    /// What holds until the first verdict: alive, not ready, not started.
    pub fn initial(self) -> Option<Verdict> {
        match self {
            Self::Startup => None,
            Self::Liveness => Some(Verdict::Success),
            Self::Readiness => Some(Verdict::Failure),
        }
    }
}

/// What a probe has established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    Success,
    Failure,
}

/// Counts answers.
#[derive(Clone, Debug)]
pub struct Threshold {
    success: u32,
    failure: u32,
    last: Option<Verdict>,
    run: u32,
}

impl Threshold {
    /// Thresholds below one count as upstream's defaults: one success, three failures.
    pub fn new(success: Option<i32>, failure: Option<i32>) -> Self {
        let at_least_one =
            |n: Option<i32>, default| n.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(default);
        Self { success: at_least_one(success, 1), failure: at_least_one(failure, 3), last: None, run: 0 }
    }

    /// Counts one answer; a verdict when the run is long enough (again and again while it lasts).
    pub fn count(&mut self, answer: Verdict) -> Option<Verdict> {
        if self.last == Some(answer) {
            self.run = self.run.saturating_add(1);
        } else {
            self.last = Some(answer);
            self.run = 1;
        }
        let needed = match answer {
            Verdict::Success => self.success,
            Verdict::Failure => self.failure,
        };
        (self.run >= needed).then_some(answer)
    }

    /// Failures in a row so far.
    pub fn failures(&self) -> u32 {
        if self.last == Some(Verdict::Failure) { self.run } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(success: i32, failure: i32, answers: &str, verdicts: &str) {
        let mut threshold = Threshold::new(Some(success), Some(failure));
        let got: String = answers
            .chars()
            .map(|c| match threshold.count(if c == '+' { Verdict::Success } else { Verdict::Failure }) {
                None => '.',
                Some(Verdict::Success) => 'S',
                Some(Verdict::Failure) => 'F',
            })
            .collect();
        assert_eq!(got, verdicts, "{answers}");
    }

    #[test]
    fn runs_of_equal_answers_become_verdicts() {
        check(1, 3, "+--+---+", "S..S..FS");
        check(1, 1, "-+-+", "FSFS");
        check(3, 1, "++-+++", "..F..S");
        check(0, 0, "+---", "S..F");
        check(1, 3, "----", "..FF");
    }
}
