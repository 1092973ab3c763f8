//! How fast a link sends: the token bucket of bandwidth annotations.

use std::io;

use super::{CREATE, REPLACE, Rtnl, zero_ended};
use crate::netlink::{put, put_nested};

const NEW: u16 = 36;
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const PARAMETERS: u16 = 1;
const RATE64: u16 = 4;
const BURST: u16 = 6;
/// The parent of what a link sends.
const ROOT: u32 = 0xffff_ffff;
const ETHERNET: u8 = 1;
/// The kernel counts in 64 nanoseconds.
const TICK: u64 = 64;
/// How long a packet may wait, in milliseconds, before later ones are dropped.
const LATENCY: u64 = 25;
/// A bucket below this lets no packet through.
const LEAST_BURST: u64 = 16 << 10;

/// A limit to what a link sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// In bytes a second.
    pub rate: u64,
    /// What may be sent at once, in bytes.
    pub burst: u64,
}

fn body(link: u32, bucket: Bucket) -> Vec<u8> {
    let rate = bucket.rate.max(1);
    let burst = bucket.burst.clamp(LEAST_BURST, u64::from(u32::MAX / 2));
    let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX).to_ne_bytes();
    let waiting = rate.saturating_mul(LATENCY) / 1000 + burst;
    let ticks = burst.saturating_mul(1_000_000_000) / rate / TICK;
    let mut parameters = vec![0, ETHERNET, 0, 0, 0, 0, 0, 0];
    parameters.extend(small(rate));
    // No peak rate.
    parameters.extend([0; 12]);
    parameters.extend(small(waiting));
    parameters.extend(small(ticks));
    parameters.extend([0; 4]);
    let mut out = vec![0; 4];
    out.extend(link.to_ne_bytes());
    out.extend(0x1_0000_u32.to_ne_bytes());
    out.extend(ROOT.to_ne_bytes());
    out.extend([0; 4]);
    put(&mut out, KIND, &zero_ended("tbf"));
    put_nested(&mut out, OPTIONS, |out| {
        put(out, PARAMETERS, &parameters);
        if rate > u64::from(u32::MAX) {
            put(out, RATE64, &rate.to_ne_bytes());
        }
        put(out, BURST, &small(burst));
    });
    out
}

impl Rtnl {
    /// Limits what a link sends.
    ///
    /// # Errors
    /// When the link is gone, or the kernel has no token buckets.
    pub fn limit(&self, link: u32, bucket: Bucket) -> io::Result<()> {
        self.change(NEW, CREATE | REPLACE, &body(link, bucket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;
    use crate::rtnl::four;

    #[test]
    fn rates_are_told_in_bytes_and_bursts_have_a_least() {
        let body = body(3, Bucket { rate: 1_250_000, burst: 10 });
        let options = attribute(&body[20..], OPTIONS).expect("options");
        let parameters = attribute(options, PARAMETERS).expect("parameters");
        assert_eq!((parameters.len(), four(parameters, 8)), (36, Some(1_250_000)));
        assert_eq!(four(parameters, 24), Some(1_250_000 / 40 + (16 << 10)), "what may wait");
        assert_eq!(attribute(options, BURST).and_then(|v| four(v, 0)), Some(16 << 10));
    }
}
