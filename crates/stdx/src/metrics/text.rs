//! Prometheus' text form (version 0.0.4): what a page of metrics looks like on the wire.

use std::fmt::Write as _;

/// What a family counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Counter,
    Gauge,
    Histogram,
}

impl Type {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The media type of a page.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// A page that is being written. Families are to be written one after another, each once.
#[derive(Default)]
pub struct Page {
    out: String,
}

impl Page {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a family: its samples come next.
    pub fn family(&mut self, name: &str, kind: Type, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {}", kind.name()));
    }

    /// A sample of the family that was begun last.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.write(name, labels, value, None);
    }

    /// A sample of that time, in milliseconds since 1970.
    pub fn sample_at(&mut self, name: &str, labels: &[(&str, &str)], value: f64, milliseconds: i64) {
        self.write(name, labels, value, Some(milliseconds));
    }

    /// A family of one sample without labels.
    pub fn single(&mut self, name: &str, kind: Type, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// The samples of a histogram with those ends of buckets; the last bucket is for what is beyond.
    pub fn histogram(&mut self, name: &str, labels: &[(&str, &str)], ends: &[f64], buckets: &[u64], total: f64) {
        let [bucket, sum, count] = ["bucket", "sum", "count"].map(|part| format!("{name}_{part}"));
        let mut below = 0;
        let shown = ends.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (end, here) in shown.zip(buckets) {
            below += here;
            let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", end.as_str())]).collect();
            self.sample(&bucket, &labels, below as f64);
        }
        self.sample(&sum, labels, total);
        self.sample(&count, labels, below as f64);
    }

    fn write(&mut self, name: &str, labels: &[(&str, &str)], value: f64, at: Option<i64>) {
        self.out.push_str(name);
        if !labels.is_empty() {
            self.out.push('{');
            for (at, (label, value)) in labels.iter().enumerate() {
                let comma = if at > 0 { "," } else { "" };
                self.part(format_args!("{comma}{label}=\""));
                escape(&mut self.out, value);
                self.out.push('"');
            }
            self.out.push('}');
        }
        match value {
            f64::INFINITY => self.out.push_str(" +Inf"),
            f64::NEG_INFINITY => self.out.push_str(" -Inf"),
            value => self.part(format_args!(" {value}")),
        }
        if let Some(at) = at {
            self.part(format_args!(" {at}"));
        }
        self.out.push('\n');
    }

    fn part(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing into a String does not fail.
        let _ = self.out.write_fmt(text);
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        self.part(text);
        self.out.push('\n');
    }

    /// The page's text.
    pub fn finish(self) -> String {
        self.out
    }
}

fn escape(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cannot_break_out_of_their_label() {
        let mut page = Page::new();
        page.family("a", Type::Gauge, "Of\nwhat \\ is.");
        page.sample("a", &[("x", "1\"} 2\n\\"), ("y", "")], 0.5);
        page.sample_at("a", &[], f64::INFINITY, 7);
        page.single("b_total", Type::Counter, "B.", 3.0);
        assert_eq!(
            page.finish(),
            "# HELP a Of\\nwhat \\\\ is.\n# TYPE a gauge\na{x=\"1\\\"} 2\\n\\\\\",y=\"\"} 0.5\na +Inf 7\n\
             # HELP b_total B.\n# TYPE b_total counter\nb_total 3\n"
        );
    }
}
