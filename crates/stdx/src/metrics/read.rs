//! Reading pages in Prometheus' text form, strictly: what any reader of that form would stumble over is an
//! error that names its line.

use std::collections::{BTreeMap, BTreeSet};

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
    /// Milliseconds since 1970.
    pub at: Option<i64>,
}

impl Sample {
    /// A label's value; empty where there is none, which is the same to Prometheus.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// What is wrong with a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bad {
    pub line: usize,
    pub why: String,
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for Bad {}

#[derive(Default)]
struct Reader {
    /// The families that were begun, and their types.
    families: BTreeMap<String, Option<String>>,
    /// The one whose samples may come.
    current: String,
    series: BTreeSet<(String, Vec<(String, String)>)>,
    samples: Vec<Sample>,
}

/// Reads a page.
///
/// # Errors
/// Names the first line that is wrong.
pub fn read(text: &str) -> Result<Vec<Sample>, Bad> {
    let mut reader = Reader::default();
    let at = |line: usize| move |why: String| Bad { line: line + 1, why };
    if !text.is_empty() && !text.ends_with('\n') {
        return Err(at(text.lines().count())("the last line does not end".into()));
    }
    for (number, line) in text.split_terminator('\n').enumerate() {
        reader.line(line).map_err(at(number))?;
    }
    histograms(&reader).map_err(at(0))?;
    Ok(reader.samples)
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let name = rest.split(' ').next().unwrap_or_default();
            is_name(name, true)?;
            if self.families.insert(name.to_owned(), None).is_some() {
                return Err(format!("{name} begins a second time"));
            }
            self.current = name.to_owned();
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or("a type without a name")?;
            is_name(name, true)?;
            if !["counter", "gauge", "histogram", "summary", "untyped"].contains(&kind) {
                return Err(format!("{kind} is no type"));
            }
            let known = self.families.get(name);
            if known.is_some_and(|k| k.is_some() || self.current != name) {
                return Err(format!("{name} begins a second time"));
            }
            self.families.insert(name.to_owned(), Some(kind.to_owned()));
            self.current = name.to_owned();
            return Ok(());
        }
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let sample = sample(line)?;
        let family = &self.current;
        let kind = self.families.get(family).cloned().flatten();
        let belongs = match kind.as_deref() {
            Some("histogram") => {
                ["_bucket", "_sum", "_count"].iter().any(|part| sample.name == format!("{family}{part}"))
            }
            Some(_) => sample.name == *family,
            None => false,
        };
        if !belongs {
            return Err(format!("{} stands in the family {family:?}", sample.name));
        }
        if kind.as_deref() == Some("counter") && (sample.value.is_nan() || sample.value < 0.0) {
            return Err(format!("{} counts {}", sample.name, sample.value));
        }
        let key = (sample.name.clone(), sample.labels.clone().into_iter().collect());
        if !self.series.insert(key) {
            return Err(format!("{} has a series twice", sample.name));
        }
        self.samples.push(sample);
        Ok(())
    }
}

/// Buckets grow, and the last one has everything.
fn histograms(reader: &Reader) -> Result<(), String> {
    for (name, _) in reader.families.iter().filter(|(_, kind)| kind.as_deref() == Some("histogram")) {
        let mut last: BTreeMap<BTreeMap<String, String>, (f64, f64)> = BTreeMap::new();
        let [bucket, count] = ["bucket", "count"].map(|part| format!("{name}_{part}"));
        for sample in reader.samples.iter().filter(|s| s.name == bucket) {
            let mut labels = sample.labels.clone();
            let end = labels.remove("le").ok_or_else(|| format!("{bucket} without an end"))?;
            let end = number(&end)?;
            if let Some((before, below)) = last.insert(labels, (end, sample.value))
                && (end <= before || sample.value < below)
            {
                return Err(format!("{bucket} does not grow at {end}"));
            }
        }
        for sample in reader.samples.iter().filter(|s| s.name == count) {
            if last.get(&sample.labels) != Some(&(f64::INFINITY, sample.value)) {
                return Err(format!("{count} is not what the last bucket has"));
            }
        }
    }
    Ok(())
}

fn is_name(name: &str, with_colon: bool) -> Result<(), String> {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || (with_colon && c == ':');
    let well = name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit());
    if well { Ok(()) } else { Err(format!("{name:?} is no name")) }
}

fn number(text: &str) -> Result<f64, String> {
    match text {
        "+Inf" => Ok(f64::INFINITY),
        "-Inf" => Ok(f64::NEG_INFINITY),
        "NaN" => Ok(f64::NAN),
        text if text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) => {
            text.parse().map_err(|_| format!("{text:?} is no number"))
        }
        _ => Err(format!("{text:?} is no number")),
    }
}

fn sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("a sample without a value")?;
    let (name, mut rest) = line.split_at(end);
    is_name(name, true)?;
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (label, after) = rest.split_once("=\"").ok_or("a label without a value")?;
            is_name(label, false)?;
            let (value, after) = quoted(after)?;
            if labels.insert(label.to_owned(), value).is_some() {
                return Err(format!("the label {label} stands twice"));
            }
            rest = after.strip_prefix(',').unwrap_or(after);
            if rest.len() == after.len() && !rest.starts_with('}') {
                return Err("labels without a comma between them".into());
            }
        }
    }
    let rest = rest.strip_prefix(' ').ok_or("no space before the value")?;
    let (value, at) = match rest.split_once(' ') {
        Some((value, at)) => (value, Some(at.parse::<i64>().map_err(|_| format!("{at:?} is no time"))?)),
        None => (rest, None),
    };
    Ok(Sample { name: name.to_owned(), labels, value: number(value)?, at })
}

/// A value up to its closing quote, and what comes after.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((out, &text[at + 1..])),
            '\\' => match chars.next() {
                Some((_, 'n')) => out.push('\n'),
                Some((_, c @ ('\\' | '"'))) => out.push(c),
                _ => return Err("a backslash that stands for nothing".into()),
            },
            c => out.push(c),
        }
    }
    Err("a value without an end".into())
}

#[cfg(test)]
mod tests {
    use super::super::{Page, Registry, Type};
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let registry = Registry::default();
        registry.counter("a_total", "A.", &["x"]).add(&["1\"\\\n,} 2"], 3.0);
        let took = registry.histogram("b_seconds", "B.", &["x"], &[0.5, 1.0]);
        [0.1, 0.7, 9.0].iter().for_each(|s| took.observe(&["y"], *s));
        took.observe(&["z"], 0.6);
        registry.standard("a_build_info", "v1.37.1");
        let samples = read(&registry.page()).expect("a page");
        assert_eq!((samples[0].label("x"), samples[0].value), ("1\"\\\n,} 2", 3.0));
        assert_eq!(samples.iter().filter(|s| s.name == "b_seconds_bucket").count(), 6);
        let mut page = Page::new();
        page.family("c", Type::Gauge, "C.");
        page.sample_at("c", &[], f64::NEG_INFINITY, -5);
        let read = read(&page.finish()).expect("a page");
        assert_eq!((read[0].value, read[0].at), (f64::NEG_INFINITY, Some(-5)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let head = "# HELP a A.\n# TYPE a counter\n";
        let histogram = "# TYPE h histogram\nh_bucket{le=\"1\"} 2\n";
        for (text, line, why) in [
            ("a 1\n".to_owned(), 1, "stands in the family"),
            (format!("{head}a 1"), 4, "does not end"),
            (format!("{head}a -1\n"), 3, "counts -1"),
            (format!("{head}a 1\na 1\n"), 4, "a series twice"),
            (format!("{head}a{{x=\"1\",x=\"2\"}} 1\n"), 3, "stands twice"),
            (format!("{head}a{{x=\"1\"y=\"2\"}} 1\n"), 3, "comma"),
            (format!("{head}a{{x=\"1}} 1\n"), 3, "without an end"),
            (format!("{head}a{{x=\"\\t\"}} 1\n"), 3, "backslash"),
            (format!("{head}a{{1=\"\"}} 1\n"), 3, "is no name"),
            (format!("{head}a one\n"), 3, "is no number"),
            (format!("{head}a inf\n"), 3, "is no number"),
            (format!("{head}a 1 soon\n"), 3, "is no time"),
            (format!("{head}b 1\n"), 3, "b stands in the family \"a\""),
            (format!("{head}# HELP b B.\n# TYPE b gauge\nb 1\n{head}a 1\n"), 6, "a second time"),
            (format!("{histogram}h_bucket{{le=\"2\"}} 1\n"), 1, "does not grow"),
            (format!("{histogram}h_count 2\n"), 1, "the last bucket"),
            ("# TYPE a thing\n".to_owned(), 1, "no type"),
        ] {
            let bad = read(&text).expect_err(&text);
            assert!(bad.line == line && bad.why.contains(why), "{bad} for {text}");
        }
    }
}
