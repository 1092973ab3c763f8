//! W3C trace contexts: of which trace a piece of work is a part, as the header `traceparent` says it.
//!
//! ```text
//!  00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
//!  version, trace, span (who called), flags: 01 when it is recorded
//! ```

use std::fmt;

use crate::Rng;

/// The name of the header.
pub const HEADER: &str = "traceparent";

/// A place in a trace. Neither number is nought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub trace: u128,
    pub span: u64,
    /// Whoever takes part records.
    pub sampled: bool,
}

impl Context {
    /// Reads the header. What is damaged says nothing; of later versions only what is known is read.
    pub fn parse(text: &str) -> Option<Self> {
        let part = |range: std::ops::Range<usize>| {
            let part = text.get(range)?;
            part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)).then_some(part)
        };
        let dashes = text.is_ascii() && [2, 35, 52].iter().all(|at| text.as_bytes().get(*at) == Some(&b'-'));
        let ends = match (part(0..2)?, text.len()) {
            ("ff", _) => false,
            ("00", length) => length == 55,
            (_, length) => length == 55 || text.as_bytes().get(55) == Some(&b'-'),
        };
        if !dashes || !ends {
            return None;
        }
        let trace = u128::from_str_radix(part(3..35)?, 16).ok().filter(|trace| *trace != 0)?;
        let span = u64::from_str_radix(part(36..52)?, 16).ok().filter(|span| *span != 0)?;
        let flags = u8::from_str_radix(part(53..55)?, 16).ok()?;
        Some(Self { trace, span, sampled: flags & 1 == 1 })
    }

    /// What is done on behalf of this one.
    #[must_use]
    pub fn child(self, rng: &Rng) -> Self {
        Self { span: number(rng), ..self }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

/// Which of the traces that begin here are recorded; those that began elsewhere are when their beginning is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampler {
    /// So many of a million.
    pub per_million: u32,
}

impl Sampler {
    /// A piece of work, for `caller` if there is one.
    pub fn begin(self, caller: Option<Context>, rng: &Rng) -> Context {
        if let Some(caller) = caller {
            return caller.child(rng);
        }
        let trace = u128::from(number(rng)) << 64 | u128::from(number(rng));
        Context { trace, span: number(rng), sampled: rng.below(1_000_000) < u64::from(self.per_million) }
    }
}

fn number(rng: &Rng) -> u64 {
    let mut bytes = [0; 8];
    rng.fill(&mut bytes);
    u64::from_le_bytes(bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_or_say_nothing() {
        const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = Context::parse(GOOD).expect("a context");
        assert_eq!((context.span, context.sampled, context.to_string().as_str()), (0xb7ad_6b71_6920_3331, true, GOOD));
        for (text, known) in [
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", true),
            ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-follows", true),
            ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.what", false),
            ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", false),
            ("00-00000000000000000000000000000000-b7ad6b7169203331-01", false),
            ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false),
            ("00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
            ("00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
            ("00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b71692033é1-1", false),
            ("", false),
            ("00", false),
        ] {
            assert_eq!(Context::parse(text).is_some(), known, "{text}");
        }
    }

    #[test]
    fn what_began_elsewhere_decides_whether_it_is_recorded() {
        let rng = Rng::seeded(7);
        let caller = Context { trace: 1, span: 2, sampled: true };
        let never = Sampler::default();
        let here = never.begin(Some(caller), &rng);
        assert!(here.sampled && here.trace == 1 && here.span != 2);
        assert!(!never.begin(None, &rng).sampled);
        let all = Sampler { per_million: 1_000_000 };
        assert!(all.begin(None, &rng).sampled && !all.begin(Some(Context { sampled: false, ..caller }), &rng).sampled);
        let half = Sampler { per_million: 500_000 };
        let count = (0..1000).filter(|_| half.begin(None, &rng).sampled).count();
        assert!((400..600).contains(&count), "{count}");
    }
}
