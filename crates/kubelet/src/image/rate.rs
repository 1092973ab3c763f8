//! How often images are fetched.

use std::time::Duration;

use parking_lot::Mutex;
use stdx::clock::Instant;

/// What a fetch that came too soon says.
pub const EXCEEDED: &str = "pull QPS exceeded";

/// So many in a second, and so many at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub per_second: u32,
    pub burst: u32,
}

impl Rate {
    /// Upstream's.
    pub const USUAL: Self = Self { per_second: 5, burst: 10 };

    /// The same, or `None` for what means any number: none in a second.
    pub fn limited(self) -> Option<Self> {
        (self.per_second > 0).then_some(self)
    }
}

/// Keeps to a rate: a bucket with `burst` fetches that fills again. Remembered is when it will be full.
#[derive(Debug)]
pub struct Bucket {
    rate: Option<Rate>,
    full: Mutex<Instant>,
}

impl Bucket {
    /// A full one; without a rate it is never empty.
    pub fn new(rate: Option<Rate>) -> Self {
        Self { rate, full: Mutex::new(Instant(Duration::ZERO)) }
    }

    /// Takes one out, if there is one at `now`.
    pub fn take(&self, now: Instant) -> bool {
        let Some(rate) = self.rate.and_then(Rate::limited) else { return true };
        let each = Duration::from_secs(1) / rate.per_second;
        let mut full = self.full.lock();
        let next = (*full).max(now) + each;
        let has = next.since(now) <= each.saturating_mul(rate.burst);
        if has {
            *full = next;
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of the fetches at these milliseconds are let through.
    fn check(per_second: u32, burst: u32, at: &[u64], want: &[bool]) {
        let bucket = Bucket::new(Some(Rate { per_second, burst }));
        let took: Vec<bool> = at.iter().map(|ms| bucket.take(Instant(Duration::from_millis(*ms)))).collect();
        assert_eq!(took, want, "{per_second} a second, {burst} at once, at {at:?}");
    }

    #[test]
    fn a_bucket_empties_and_fills() {
        check(
            5,
            2,
            &[0, 0, 0, 199, 200, 200, 1000, 1000, 1000],
            &[true, true, false, false, true, false, true, true, false],
        );
        check(1, 1, &[5000, 5001, 6000], &[true, false, true]);
        check(1, 0, &[0, 9000], &[false, false]);
        check(0, 0, &[0, 0, 0], &[true, true, true]);
        assert!(Bucket::new(None).take(Instant(Duration::ZERO)));
    }
}
