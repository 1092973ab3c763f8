//! Where the last lines of a log begin, found from its end. Pure but for the reads.
//!
//! A line of the process may be several lines of the file: parts (`P`) that a last one (`F`) ends.
//! Only the head of each is looked at, so that neither long logs nor long lines cost memory.

use std::io;

use super::line::{self, Stream};

/// How much is read at a time.
pub const BLOCK: usize = 64 << 10;
/// As much of a line as tells what it is.
const HEAD: usize = 128;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Lines of the process.
    pub lines: u64,
    /// Only those written to this stream count.
    pub stream: Option<Stream>,
}

/// Where the last lines of a file of `end` bytes begin. `read_at(buffer, offset)` fills the buffer.
pub fn start(
    read_at: impl Fn(&mut [u8], u64) -> io::Result<()>,
    end: u64,
    tail: Tail,
    block: usize,
) -> io::Result<u64> {
    let mut scan = Scan { tail, counted: 0, from: end };
    if tail.lines == 0 {
        return Ok(end);
    }
    let (mut line_end, mut block_end) = (end, end);
    // The block with the first bytes of the one after it, where a head may go on.
    let mut buffer: Vec<u8> = Vec::new();
    while block_end > 0 {
        let size = usize::try_from(block_end).unwrap_or(usize::MAX).min(block.max(1));
        let begin = block_end - size as u64;
        buffer.truncate(HEAD);
        let mut joined = vec![0; size];
        read_at(&mut joined, begin)?;
        joined.append(&mut buffer);
        buffer = joined;
        for index in (0..size).rev().filter(|i| buffer[*i] == b'\n') {
            let line_start = begin + index as u64 + 1;
            if scan.line(&buffer[index + 1..], line_start, line_end) {
                return Ok(scan.from);
            }
            line_end = line_start - 1;
        }
        block_end = begin;
    }
    Ok(if scan.line(&buffer, 0, line_end) { scan.from } else { 0 })
}

struct Scan {
    tail: Tail,
    counted: u64,
    /// Where the earliest line begins that is wanted so far.
    from: u64,
}

impl Scan {
    /// Takes the next line of the file, going backwards; true when it is one too many.
    fn line(&mut self, at: &[u8], start: u64, end: u64) -> bool {
        let length = usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
        let head = &at[..at.len().min(length).min(HEAD)];
        let Some(line) = line::parse(head) else { return false };
        if self.tail.stream.is_some_and(|s| s != line.stream) {
            return false;
        }
        // The very last line may lack its end yet.
        if !line.partial || self.counted == 0 {
            self.counted += 1;
        }
        if self.counted > self.tail.lines {
            return true;
        }
        self.from = start;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn find(log: &[u8], tail: Tail, block: usize) -> usize {
        let read = |buffer: &mut [u8], at: u64| {
            let at = usize::try_from(at).expect("a position");
            buffer.copy_from_slice(&log[at..at + buffer.len()]);
            Ok(())
        };
        let start = start(read, log.len() as u64, tail, block).expect("read");
        usize::try_from(start).expect("a position")
    }

    fn raw(stream: &str, tag: &str, text: &str) -> String {
        format!("2026-01-01T00:00:00Z {stream} {tag} {text}\n")
    }

    #[test]
    fn parts_are_one_line() {
        let lines = [
            raw("stdout", "F", "one"),
            raw("stdout", "P", "tw"),
            raw("stdout", "F", "o"),
            "garbage\n".into(),
            raw("stderr", "F", "three"),
            raw("stdout", "P", "fo"),
        ];
        let at = |n: usize| lines[..n].iter().map(String::len).sum::<usize>();
        let log = lines.concat();
        for block in [1, 7, 64, 4096] {
            for (wanted, stream, want) in [
                (0, None, at(6)),
                (1, None, at(5)),
                (2, None, at(4)),
                (3, None, at(1)),
                (4, None, at(0)),
                (9, None, at(0)),
                (1, Some(Stream::Stderr), at(0)),
                (2, Some(Stream::Stdout), at(1)),
            ] {
                let got = find(log.as_bytes(), Tail { lines: wanted, stream }, block);
                // Lines of the other stream and garbage in between make no difference.
                assert_eq!(got, want, "{wanted} {stream:?} {block}");
            }
        }
        assert_eq!(find(b"", Tail { lines: 1, stream: None }, 8), 0);
    }

    /// The same by reading everything.
    fn by_reading(log: &str, tail: Tail) -> usize {
        let mut starts = Vec::new();
        let (mut at, mut amid) = (0, false);
        for line in log.split_inclusive('\n') {
            let parsed = line::parse(line.trim_end_matches('\n').as_bytes());
            if let Some(parsed) = parsed.filter(|p| tail.stream.is_none_or(|s| s == p.stream)) {
                if !amid {
                    starts.push(at);
                }
                amid = parsed.partial;
            }
            at += line.len();
        }
        let lines = usize::try_from(tail.lines).expect("small");
        if lines == 0 {
            return log.len();
        }
        if starts.len() <= lines { 0 } else { starts[starts.len() - lines] }
    }

    proptest! {
        #[test]
        fn from_the_end_is_as_from_the_begin(
            lines in proptest::collection::vec((0u8..8, "[a-z ]{0,40}"), 0..40),
            wanted in 0u64..12,
            block in 1usize..200,
            cut in 0usize..30,
            one_stream in any::<bool>(),
        ) {
            let mut log: String = lines
                .iter()
                .map(|(kind, text)| match kind {
                    0 => format!("{text}\n"),
                    1 | 2 => raw("stdout", "P", text),
                    3 if !one_stream => raw("stderr", "F", text),
                    _ => raw("stdout", "F", text),
                })
                .collect();
            // The end may be missing.
            log.truncate(log.len().saturating_sub(cut));
            let tail = Tail { lines: wanted, stream: one_stream.then_some(Stream::Stdout) };
            let (got, want) = (find(log.as_bytes(), tail, block), by_reading(&log, tail));
            // What lies between is no line of the process.
            let print = |from: usize| -> Vec<&str> {
                let wanted = |l: &&str| line::parse(l.as_bytes()).is_some_and(|p| tail.stream.is_none_or(|s| s == p.stream));
                log[from..].lines().filter(wanted).collect()
            };
            prop_assert_eq!(print(got), print(want));
        }
    }
}
