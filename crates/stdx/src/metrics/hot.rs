//! A histogram for what happens at every request: counted without a lock and without looking labels up.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Page;

/// One label set of a histogram. Whoever has it knows its labels.
#[derive(Debug)]
pub struct Hot {
    /// The upper ends of the buckets.
    ends: &'static [f64],
    /// How many fell into each bucket; the last is for what is longer than all of them.
    buckets: Box<[AtomicU64]>,
    /// The sum's bits.
    sum: AtomicU64,
}

impl Hot {
    /// One with buckets up to these ends.
    pub fn new(ends: &'static [f64]) -> Self {
        let buckets = (0..=ends.len()).map(|_| AtomicU64::new(0)).collect();
        Self { ends, buckets, sum: AtomicU64::new(0f64.to_bits()) }
    }

    /// An amount was seen.
    pub fn observe(&self, amount: f64) {
        let at = self.ends.partition_point(|end| *end < amount);
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        let add = |bits: u64| Some((f64::from_bits(bits) + amount).to_bits());
        // It never gives up.
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// How many amounts were seen.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// Writes its samples into the family of that name, which has been begun.
    pub fn render(&self, page: &mut Page, name: &str, labels: &[(&str, &str)]) {
        let buckets: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        page.histogram(name, labels, self.ends, &buckets, f64::from_bits(self.sum.load(Ordering::Relaxed)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Type;

    #[test]
    fn nothing_is_lost_between_threads() {
        let hot = Hot::new(&[0.5, 1.0]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| hot.observe(0.5)));
            }
        });
        hot.observe(7.0);
        assert_eq!(hot.count(), 4001);
        let mut page = Page::new();
        page.family("took", Type::Histogram, "Took.");
        hot.render(&mut page, "took", &[("a", "b")]);
        assert_eq!(
            page.finish(),
            "# HELP took Took.\n# TYPE took histogram\ntook_bucket{a=\"b\",le=\"0.5\"} 4000\n\
             took_bucket{a=\"b\",le=\"1\"} 4000\ntook_bucket{a=\"b\",le=\"+Inf\"} 4001\n\
             took_sum{a=\"b\"} 2007\ntook_count{a=\"b\"} 4001\n"
        );
    }
}
