//! How long admission takes, by plugin and all together, under upstream's names.

use std::time::Duration;

use kinds::Verb;
use stdx::SharedClock;
use stdx::clock::Instant;
use stdx::metrics::hot::Hot;
use stdx::metrics::{Page, Type};

/// As upstream cuts the durations, in seconds.
const ENDS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];

/// What a plugin is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// What it changes.
    Admit,
    /// What it refuses.
    Validate,
}

const PHASES: [(Phase, &str); 2] = [(Phase::Admit, "admit"), (Phase::Validate, "validate")];
const OPERATIONS: [&str; 3] = ["CREATE", "UPDATE", "DELETE"];

/// Every phase with every operation, let through and refused.
struct Set([[[Hot; 2]; OPERATIONS.len()]; PHASES.len()]);

impl Set {
    fn new() -> Self {
        Self(std::array::from_fn(|_| std::array::from_fn(|_| std::array::from_fn(|_| Hot::new(&ENDS)))))
    }

    fn of(&self, phase: Phase, verb: Verb, refused: bool) -> &Hot {
        let operation = match verb {
            Verb::Create => 0,
            Verb::Delete | Verb::DeleteCollection => 2,
            // A patch is an update, and nothing else is asked about.
            _ => 1,
        };
        &self.0[phase as usize][operation][usize::from(refused)]
    }

    fn render(&self, page: &mut Page, name: &str, plugin: Option<&str>) {
        for (phase, kind) in PHASES {
            for (operation, both) in OPERATIONS.iter().zip(&self.0[phase as usize]) {
                for (rejected, hot) in ["false", "true"].iter().zip(both).filter(|(_, hot)| hot.count() > 0) {
                    let mut labels = vec![("operation", *operation), ("rejected", *rejected), ("type", kind)];
                    labels.extend(plugin.map(|plugin| ("name", plugin)));
                    hot.render(page, name, &labels);
                }
            }
        }
    }
}

/// What is counted of the plugins of a server.
#[derive(Default)]
pub struct Admission {
    steps: Option<Box<Set>>,
    plugins: Vec<(&'static str, Box<Set>)>,
}

impl Admission {
    /// Of these plugins, in their order.
    pub fn new(plugins: impl Iterator<Item = &'static str>) -> Self {
        let set = || Box::new(Set::new());
        Self { steps: Some(set()), plugins: plugins.map(|name| (name, set())).collect() }
    }

    /// A step begins: the plugins are asked, one after another.
    pub fn begin(&self, phase: Phase, verb: Verb, clock: &SharedClock) -> Step<'_> {
        let began = clock.now();
        Step { admission: self, phase, verb, clock: clock.clone(), began, last: began }
    }

    /// Writes both families.
    pub fn render(&self, page: &mut Page) {
        let name = "apiserver_admission_controller_admission_duration_seconds";
        page.family(name, Type::Histogram, "Admission controller latency histogram in seconds, identified by name.");
        for (plugin, set) in &self.plugins {
            set.render(page, name, Some(plugin));
        }
        let name = "apiserver_admission_step_admission_duration_seconds";
        page.family(name, Type::Histogram, "Admission sub-step latency histogram in seconds.");
        if let Some(steps) = &self.steps {
            steps.render(page, name, None);
        }
    }
}

/// A step that goes on.
pub struct Step<'a> {
    admission: &'a Admission,
    phase: Phase,
    verb: Verb,
    clock: SharedClock,
    began: Instant,
    last: Instant,
}

impl Step<'_> {
    /// The plugin at that place has answered.
    pub fn asked(&mut self, at: usize, refused: bool) {
        let now = self.clock.now();
        if let Some((_, set)) = self.admission.plugins.get(at) {
            observe(set.of(self.phase, self.verb, refused), now.since(self.last));
        }
        self.last = now;
    }

    /// All that were asked have answered.
    pub fn end(self, refused: bool) {
        if let Some(steps) = &self.admission.steps {
            observe(steps.of(self.phase, self.verb, refused), self.clock.now().since(self.began));
        }
    }
}

fn observe(hot: &Hot, took: Duration) {
    hot.observe(took.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use stdx::clock::ManualClock;

    #[test]
    fn plugins_and_steps_are_told_apart() {
        let manual = ManualClock::new(jiff::Timestamp::UNIX_EPOCH);
        let clock: SharedClock = Arc::new(manual.clone());
        let admission = Admission::new(["Priority", "LimitRanger"].into_iter());
        let mut step = admission.begin(Phase::Admit, Verb::Create, &clock);
        manual.advance(Duration::from_millis(20));
        step.asked(0, false);
        manual.advance(Duration::from_secs(2));
        step.asked(1, true);
        step.end(true);
        let mut page = Page::new();
        admission.render(&mut page);
        let text = page.finish();
        const OF: &str = "apiserver_admission_controller_admission_duration_seconds";
        const STEP: &str = "apiserver_admission_step_admission_duration_seconds";
        for wanted in [
            format!(
                "{OF}_bucket{{operation=\"CREATE\",rejected=\"false\",type=\"admit\",name=\"Priority\",le=\"0.025\"}} 1"
            ),
            format!("{OF}_sum{{operation=\"CREATE\",rejected=\"true\",type=\"admit\",name=\"LimitRanger\"}} 2"),
            format!("{STEP}_sum{{operation=\"CREATE\",rejected=\"true\",type=\"admit\"}} 2.02"),
        ] {
            assert!(text.lines().any(|line| line == wanted), "{wanted} is not in\n{text}");
        }
        assert!(!text.contains("UPDATE") && !text.contains("validate"), "{text}");
    }
}
