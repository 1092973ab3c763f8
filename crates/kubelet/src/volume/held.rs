//! Who works on what, by a name: so that nothing is removed under somebody's hands, nor done twice at
//! a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Names and how many hold each.
#[derive(Clone, Default)]
pub struct Holds(Arc<(Mutex<BTreeMap<String, usize>>, Notify)>);

/// A name is held until this is dropped.
pub struct Held {
    holds: Holds,
    name: String,
}

impl Holds {
    /// Holds a name beside whoever holds it.
    pub fn hold(&self, name: &str) -> Held {
        *self.0.0.lock().entry(name.to_owned()).or_default() += 1;
        Held { holds: self.clone(), name: name.to_owned() }
    }

    /// Holds a name that nobody holds.
    pub fn hold_alone(&self, name: &str) -> Option<Held> {
        let mut names = self.0.0.lock();
        if names.contains_key(name) {
            return None;
        }
        names.insert(name.to_owned(), 1);
        Some(Held { holds: self.clone(), name: name.to_owned() })
    }

    /// Waits until nobody holds it.
    pub async fn free(&self, name: &str) {
        loop {
            let mut notified = std::pin::pin!(self.0.1.notified());
            notified.as_mut().enable();
            if !self.0.0.lock().contains_key(name) {
                return;
            }
            notified.await;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (names, freed) = &*self.holds.0;
        let mut names = names.lock();
        if let Some(count) = names.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                names.remove(&self.name);
                freed.notify_waiters();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn a_name_is_free_once_all_let_go() {
        let holds = Holds::default();
        let (a, b) = (holds.hold("u"), holds.hold("u"));
        assert!(holds.hold_alone("u").is_none());
        assert!(holds.free("other").now_or_never().is_some());
        let mut free = Box::pin(holds.free("u"));
        drop(a);
        assert!((&mut free).now_or_never().is_none());
        drop(b);
        free.await;
        let alone = holds.hold_alone("u").expect("free");
        assert!(holds.hold_alone("u").is_none());
        drop(alone);
        assert!(holds.hold_alone("u").is_some());
    }
}
