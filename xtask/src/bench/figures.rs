//! A table of what was measured, what was promised, and whether it holds.

use std::time::Duration;

/// One line each, in the order they were measured.
#[derive(Default)]
pub struct Figures(Vec<Row>);

struct Row {
    what: String,
    measured: String,
    budget: String,
    met: Option<bool>,
}

impl Figures {
    /// Adds a line and prints it at once, so that a long run can be followed.
    pub fn add(&mut self, what: &str, measured: String, budget: &str, met: Option<bool>) {
        println!("{what}: {measured}");
        self.0.push(Row { what: what.into(), measured, budget: budget.into(), met });
    }

    /// The table, in Markdown.
    pub fn table(&self) -> String {
        let mut out = String::from("\n| what | measured | budget | met |\n|---|---|---|---|\n");
        for row in &self.0 {
            let met = match row.met {
                Some(true) => "yes",
                Some(false) => "no",
                None => "–",
            };
            out.push_str(&format!("| {} | {} | {} | {met} |\n", row.what, row.measured, row.budget));
        }
        out
    }
}

/// The median; zero for none.
pub fn median(times: &mut [Duration]) -> Duration {
    percentile(times, 50)
}

/// The percentile by nearest rank; zero for none.
pub fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    let rank = (times.len() * percent).div_ceil(100).max(1) - 1;
    times.get(rank).copied().unwrap_or_default()
}

/// In milliseconds with two digits.
pub fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}
