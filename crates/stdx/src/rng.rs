//! Seeded randomness, shared by the parts of one component.

use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};

/// A source of random numbers that is an argument, never a global. Clones share one stream.
#[derive(Clone)]
pub struct Rng {
    inner: Arc<Mutex<StdRng>>,
}

impl Rng {
    /// Seeded by the operating system; fit for names, uids and jitter. Keys come from `ring`.
    pub fn from_os() -> Self {
        Self { inner: Arc::new(Mutex::new(StdRng::from_os_rng())) }
    }

    /// The same seed gives the same stream: simulations print it.
    pub fn seeded(seed: u64) -> Self {
        Self { inner: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))) }
    }

    /// Fills `bytes`.
    pub fn fill(&self, bytes: &mut [u8]) {
        self.inner.lock().fill(bytes);
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.inner.lock().random_range(0..bound) }
    }

    /// A number in `[0, 1)`.
    pub fn unit(&self) -> f64 {
        self.inner.lock().random()
    }

    /// A random (version 4) UUID in its usual text form.
    pub fn uuid(&self) -> String {
        let mut bytes = [0u8; 16];
        self.fill(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }

    /// `length` characters drawn from `alphabet`, which must not be empty.
    pub fn text(&self, alphabet: &[u8], length: usize) -> String {
        let mut rng = self.inner.lock();
        (0..length).map(|_| char::from(alphabet[rng.random_range(0..alphabet.len())])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_stream() {
        let (a, b) = (Rng::seeded(7), Rng::seeded(7));
        assert_eq!(a.uuid(), b.uuid());
        assert_eq!(a.text(b"abc", 8), b.text(b"abc", 8));
        assert_ne!(a.uuid(), Rng::seeded(8).uuid());
    }
}
