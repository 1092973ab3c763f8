//! One line of a container's log file. Pure.
//!
//! ```text
//! 2026-11-29T11:23:11.687484462Z stdout F a whole line
//! 2026-11-29T11:23:11.687484462Z stderr P the first part of a long one
//! ```

use jiff::Timestamp;

/// Which stream a process wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A line in its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The time as it is written.
    pub time: &'a str,
    pub stream: Stream,
    /// The process has not ended this line yet.
    pub partial: bool,
    pub text: &'a [u8],
}

/// Reads a line without its newline; `None` for what is none.
pub fn parse(raw: &[u8]) -> Option<Line<'_>> {
    let (time, rest) = raw.split_at_checked(memchr::memchr(b' ', raw)?)?;
    let time = std::str::from_utf8(time).ok()?;
    let (stream, rest) = match rest.strip_prefix(b" stdout ") {
        Some(rest) => (Stream::Stdout, rest),
        None => (Stream::Stderr, rest.strip_prefix(b" stderr ")?),
    };
    let (tags, text) = match memchr::memchr(b' ', rest) {
        Some(at) => (rest.get(..at)?, rest.get(at + 1..)?),
        None => (rest, &[][..]),
    };
    let partial = match tags {
        [b'P'] | [b'P', b':', ..] => true,
        [b'F'] | [b'F', b':', ..] => false,
        _ => return None,
    };
    Some(Line { time, stream, partial, text })
}

/// What of a log is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub follow: bool,
    pub timestamps: bool,
    /// Only lines at or after this.
    pub since: Option<Timestamp>,
    /// Only the last so many lines.
    pub tail: Option<u64>,
    /// At most so many bytes.
    pub limit: Option<u64>,
    /// Only what was written to this stream.
    pub stream: Option<Stream>,
}

/// Turns raw lines into what a reader sees.
#[derive(Debug)]
pub struct Printer {
    options: Options,
    left: Option<u64>,
    /// The last line printed was a part; the next part goes on without a time.
    amid_line: bool,
}

impl Printer {
    /// Starts with nothing printed.
    pub fn new(options: Options) -> Self {
        Self { left: options.limit, options, amid_line: false }
    }

    /// Appends one raw line to `out`. Lines that are none are left out.
    pub fn print(&mut self, raw: &[u8], out: &mut Vec<u8>) {
        let Some(line) = parse(raw) else { return };
        if self.options.stream.is_some_and(|s| s != line.stream) {
            return;
        }
        if let Some(since) = self.options.since {
            if line.time.parse::<Timestamp>().is_ok_and(|t| t < since) {
                return;
            }
        }
        if self.options.timestamps && !self.amid_line {
            self.push(line.time.as_bytes(), out);
            self.push(b" ", out);
        }
        self.push(line.text, out);
        if !line.partial {
            self.push(b"\n", out);
        }
        self.amid_line = line.partial;
    }

    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(left) = &mut self.left else {
            out.extend_from_slice(bytes);
            return;
        };
        let take = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
        out.extend_from_slice(&bytes[..take]);
        *left -= take as u64;
    }

    /// True once nothing more may be printed.
    pub fn is_full(&self) -> bool {
        self.left == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
2026-01-01T00:00:01Z stdout F one
2026-01-01T00:00:02Z stderr P tw
2026-01-01T00:00:02.5Z stderr F o
garbage
2026-01-01T00:00:03Z stdout F 
2026-01-01T00:00:04Z stdout P:x th ree
2026-01-01T00:00:05Z stdout F !
";

    fn check(options: Options, want: &str) {
        let mut printer = Printer::new(options);
        let mut out = Vec::new();
        LOG.lines().for_each(|l| printer.print(l.as_bytes(), &mut out));
        assert_eq!(String::from_utf8_lossy(&out), want);
    }

    #[test]
    fn what_a_line_is() {
        let line = |stream, partial, text: &'static str| Some((stream, partial, text.as_bytes()));
        for (raw, want) in [
            ("t stdout F text", line(Stream::Stdout, false, "text")),
            ("t stderr P  two  spaces ", line(Stream::Stderr, true, " two  spaces ")),
            ("t stdout F:x:y z", line(Stream::Stdout, false, "z")),
            ("t stdout F", line(Stream::Stdout, false, "")),
            ("t stdout F ", line(Stream::Stdout, false, "")),
            ("t stdout FP x", None),
            ("t stdout  x", None),
            ("t stdout", None),
            ("t stdin F x", None),
            ("t", None),
            ("", None),
        ] {
            assert_eq!(parse(raw.as_bytes()).map(|l| (l.stream, l.partial, l.text)), want, "{raw}");
        }
        assert_eq!(parse(b"\xff stdout F x"), None);
    }

    #[test]
    fn options() {
        check(Options::default(), "one\ntwo\n\nth ree!\n");
        check(
            Options { timestamps: true, ..Options::default() },
            "2026-01-01T00:00:01Z one\n2026-01-01T00:00:02Z two\n2026-01-01T00:00:03Z \n2026-01-01T00:00:04Z th ree!\n",
        );
        let since = "2026-01-01T00:00:03Z".parse().ok();
        check(Options { since, ..Options::default() }, "\nth ree!\n");
        check(Options { limit: Some(6), ..Options::default() }, "one\ntw");
        check(Options { stream: Some(Stream::Stderr), ..Options::default() }, "two\n");
    }
}
