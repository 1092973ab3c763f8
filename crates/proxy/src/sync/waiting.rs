//! Services whose present rules the kernel does not have, as Waits.

use std::collections::BTreeMap;
use std::convert::Infallible;

use client::events::Reference;
use client::waits::Publisher;
use client::{Key, Resource};

use super::caches::{Caches, Dirty};
use crate::dataplane::Refused;
use crate::model::{Here, Model, ServiceRules};

/// At most so many Services are named at a time as waiting for the kernel.
const NAMED: usize = 100;
/// The code of the Wait.
const NOT_IN_KERNEL: &str = "RulesNotInKernel";
/// What is waited for while the kernel has refused nothing.
pub(super) const NOT_YET: &str = "the kernel does not have this Service's present rules yet";

/// Each is published when it changes, and withdrawn with the transaction that carries it. One that
/// takes less than a Wait needs to be seen is never shown.
pub(super) struct Waiting {
    pub(super) waits: Publisher,
    pub(super) resource: Resource,
    /// What it waits for: the mode's name.
    pub(super) on: &'static str,
    pub(super) services: BTreeMap<Key, Reference>,
}

impl Waiting {
    pub(super) fn publish(&mut self, caches: &Caches, key: &Key, text: &str) {
        if self.services.len() >= NAMED && !self.services.contains_key(key) {
            return;
        }
        // Of a Service that is gone there is nobody left to tell.
        let Some(service) = caches.services.get(key) else { return };
        let reference = Reference::of(&self.resource, &service.meta);
        self.waits.publish(&reference, NOT_IN_KERNEL, self.on, text);
        if let Some(former) = self.services.insert(key.clone(), reference.clone())
            && former.uid != reference.uid
        {
            self.waits.withdraw(&former, NOT_IN_KERNEL);
        }
    }

    /// Says of all of them what the kernel said.
    pub(super) fn refused(&self, error: &str) {
        for reference in self.services.values() {
            self.waits.publish(reference, NOT_IN_KERNEL, self.on, format!("the kernel refused the rules: {error}"));
        }
    }

    /// The kernel has taken everything but what it refused, what has changed meanwhile, and what it `lacks` of a family
    /// of which it took nothing, with what it said then.
    pub(super) fn is_over<'s>(
        &mut self,
        caches: &Caches,
        refused: &Refused,
        dirty: &Dirty,
        lacks: impl Fn(&Key) -> Option<&'s str>,
    ) {
        for (key, error) in refused {
            self.publish(caches, key, &format!("the kernel refused the rules: {error}"));
        }
        let changed = dirty.peek();
        self.services.retain(|key, reference| {
            let lacks = lacks(key);
            if let Some(said) = lacks {
                let text = format!("the kernel refused the rules of one family: {said}");
                self.waits.publish(reference, NOT_IN_KERNEL, self.on, text);
            }
            let waits = lacks.is_some() || refused.contains_key(key) || changed.contains(key);
            if !waits {
                self.waits.withdraw(reference, NOT_IN_KERNEL);
            }
            waits
        });
    }

    /// Publishes what changes while the kernel is busy with, or waits for, an earlier state.
    pub(super) async fn follow(&mut self, caches: &Caches, dirty: &Dirty, model: &Model, here: &Here) -> Infallible {
        loop {
            dirty.wake.notified().await;
            // Who is named is named; and no more are than there is room for.
            let unnamed = dirty.peek().into_iter().filter(|key| !self.services.contains_key(key)).collect::<Vec<Key>>();
            for key in unnamed {
                if self.services.len() >= NAMED {
                    break;
                }
                let present = caches.rules(&key, here);
                let nothing = ServiceRules::default();
                if present != *model.get(&key).map_or(&nothing, |rules| rules) {
                    self.publish(caches, &key, NOT_YET);
                }
            }
        }
    }
}
