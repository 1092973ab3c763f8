//! OpenMetrics: the other text form of a page, for who asks for it, and how that is asked.
//!
//! ```text
//!  0.0.4                               OpenMetrics 1.0.0
//!  # TYPE asked_total counter          # TYPE asked counter
//!  asked_total 3                       asked_total 3.0
//!  depth{le="1"} 2 1700000000123       depth{le="1.0"} 2.0 1700000000.123
//!                                      # EOF
//! ```
//!
//! A counter whose name does not end in `_total` is of no known type there, as Go's library writes it, and so is
//! one whose shortened name another family has.

use std::collections::BTreeSet;

use super::text;

const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores";

/// In which form a page goes out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    #[default]
    Text,
    Open,
}

impl Form {
    /// What the header `accept` asks for. What is not understood gets the older form, which all can read.
    pub fn asked(accept: Option<&str>) -> Self {
        let mut best = (0.0, Self::Text);
        for (at, wish) in accept.unwrap_or_default().split(',').enumerate() {
            let mut parts = wish.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let (mut quality, mut version) = (1.0_f64, None);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim() {
                    "q" => quality = value.trim().parse().unwrap_or(0.0),
                    "version" => version = Some(value.trim()),
                    _ => {}
                }
            }
            let form = match (media, version) {
                ("application/openmetrics-text", None | Some("1.0.0" | "0.0.1")) => Self::Open,
                ("text/plain", None | Some("0.0.4")) | ("*/*" | "text/*", _) => Self::Text,
                _ => continue,
            };
            // Of what is asked for equally the first is taken; a header is no reason to look at more than these.
            if at < 64 && quality > best.0 {
                best = (quality, form);
            }
        }
        best.1
    }

    /// The media type of a page in this form.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Text => text::MEDIA_TYPE,
            Self::Open => OPEN,
        }
    }

    /// The page in this form, from one in the older form.
    pub fn write(self, page: String) -> String {
        match self {
            Self::Text => page,
            Self::Open => open(&page),
        }
    }
}

fn open(page: &str) -> String {
    let mut out = String::with_capacity(page.len() + page.len() / 8);
    // What is told of a family comes with its name, which its type may shorten.
    let mut help: Option<(&str, &str)> = None;
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let taken: BTreeSet<&str> = types.map(|(name, _)| name).collect();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let short = name.strip_suffix("_total").filter(|short| kind == "counter" && !taken.contains(short));
            let kind = if kind == "counter" && short.is_none() { "unknown" } else { kind };
            let shown = short.unwrap_or(name);
            if let Some((_, text)) = help.take().filter(|(named, _)| *named == name) {
                // Quotation marks are escaped here, too.
                out.push_str(&format!("# HELP {shown} {}\n", text.replace('"', "\\\"")));
            }
            out.push_str(&format!("# TYPE {shown} {kind}\n"));
        } else if !line.is_empty() && !line.starts_with('#') {
            sample(&mut out, line);
        }
    }
    out.push_str("# EOF\n");
    out
}

/// A line with a value, and maybe a time.
fn sample(out: &mut String, line: &str) {
    // Behind the labels, in which there may be anything, is no brace.
    let (head, numbers) = match line.rfind('}') {
        Some(at) => line.split_at(at + 1),
        None => line.split_at(line.find(' ').unwrap_or(line.len())),
    };
    match end_of_bucket(head) {
        Some((before, end)) => {
            out.push_str(before);
            out.push_str(&canonical(end));
            out.push_str("\"}");
        }
        None => out.push_str(head),
    }
    let mut numbers = numbers.split_whitespace();
    out.push(' ');
    number(out, numbers.next().unwrap_or("NaN"));
    if let Some(milliseconds) = numbers.next().and_then(|at| at.parse::<i64>().ok()) {
        let (seconds, rest) = (milliseconds.div_euclid(1000), milliseconds.rem_euclid(1000));
        out.push_str(&format!(" {seconds}.{rest:03}"));
    }
    out.push('\n');
}

/// What a head that ends with a bucket's upper end is made of: its writer puts that last.
fn end_of_bucket(head: &str) -> Option<(&str, f64)> {
    let inner = head.strip_suffix("\"}")?;
    let at = inner.rfind("le=\"").filter(|at| matches!(inner.as_bytes().get(at.wrapping_sub(1)), Some(b'{' | b',')))?;
    let (before, end) = inner.split_at(at + 4);
    Some((before, end.parse().ok()?))
}

/// The one form that the end of a bucket has there: as Go writes numbers, with a point or an exponent.
fn canonical(end: f64) -> String {
    if end.is_infinite() {
        return if end > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() };
    }
    let scientific = format!("{end:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent @ (..-4 | 6..)) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        _ => {
            let mut out = String::new();
            number(&mut out, &end.to_string());
            out
        }
    }
}

/// Every number has a point or an exponent.
fn number(out: &mut String, text: &str) {
    out.push_str(text);
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
        out.push_str(".0");
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Page, Registry, Type};
    use super::*;

    #[test]
    fn what_is_asked_for_is_found() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, want) in [
            (None, Form::Text),
            (Some(""), Form::Text),
            (Some("*/*"), Form::Text),
            (Some(prometheus), Form::Open),
            (Some("application/openmetrics-text"), Form::Open),
            (Some("application/openmetrics-text; version=2.0.0"), Form::Text),
            (Some("text/plain;version=0.0.4, application/openmetrics-text;q=0.9"), Form::Text),
            (Some("application/openmetrics-text;q=nonsense"), Form::Text),
            (Some("application/openmetrics-text;q=0"), Form::Text),
            (Some(";;=,,q=1"), Form::Text),
        ] {
            assert_eq!(Form::asked(accept), want, "{accept:?}");
        }
    }

    #[test]
    fn ends_of_buckets_have_one_form() {
        for (end, want) in [
            (1e-8, "1e-08"),
            (1.5e-5, "1.5e-05"),
            (1e-4, "0.0001"),
            (0.5, "0.5"),
            (0.0, "0.0"),
            (60.0, "60.0"),
            (131_072.0, "131072.0"),
            (1e6, "1e+06"),
            (1_048_576.0, "1.048576e+06"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(canonical(end), want);
        }
    }

    #[test]
    fn a_page_is_rewritten() {
        let registry = Registry::default();
        registry.counter("asked_total", "Who \"asked\".", &["who"]).inc(&["x} 1 le=\"2\""]);
        registry.counter("evictions", "Evictions.", &[]).inc(&[]);
        registry.gauge("gone", "Gone.", &[]).set(&[], 0.0);
        registry.counter("gone_total", "Gone so far.", &[]).inc(&[]);
        registry.histogram("took_seconds", "Took.", &[], &[0.5, 1.0]).observe(&[], 0.25);
        registry.collect(|page: &mut Page| {
            page.family("at", Type::Gauge, "At.");
            page.sample_at("at", &[], 3.0, 1_700_000_000_007);
        });
        assert_eq!(
            Form::Open.write(registry.page()),
            "# HELP asked Who \\\"asked\\\".\n# TYPE asked counter\nasked_total{who=\"x} 1 le=\\\"2\\\"\"} 1.0\n\
             # HELP evictions Evictions.\n# TYPE evictions unknown\nevictions 1.0\n\
             # HELP gone Gone.\n# TYPE gone gauge\ngone 0.0\n\
             # HELP gone_total Gone so far.\n# TYPE gone_total unknown\ngone_total 1.0\n\
             # HELP took_seconds Took.\n# TYPE took_seconds histogram\n\
             took_seconds_bucket{le=\"0.5\"} 1.0\ntook_seconds_bucket{le=\"1.0\"} 1.0\n\
             took_seconds_bucket{le=\"+Inf\"} 1.0\ntook_seconds_sum 0.25\ntook_seconds_count 1.0\n\
             # HELP at At.\n# TYPE at gauge\nat 3.0 1700000000.007\n# EOF\n"
        );
        assert_eq!(Form::Text.write("a 1\n".to_owned()), "a 1\n");
    }
}
