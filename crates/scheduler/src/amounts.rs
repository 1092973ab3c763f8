//! Amounts of resources as plain integers, for the arithmetic every decision repeats.

use std::collections::BTreeMap;

use api::resources::Resources;
use machinery::quantity::Quantity;

/// What a pod asks for, what a node has, what is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Thousandths of a core.
    pub cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Bytes.
    pub ephemeral: i64,
    /// How many pods; only of nodes.
    pub pods: i64,
    /// Extended resources and huge pages.
    pub others: BTreeMap<String, i64>,
}

fn fit(amount: i128) -> i64 {
    i64::try_from(amount).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX })
}

impl Amounts {
    /// From a resource list; fractions round up.
    pub fn of(resources: &Resources) -> Self {
        let mut out = Self::default();
        for (name, amount) in resources {
            let whole = |q: &Quantity| fit(q.value());
            match name.as_str() {
                "cpu" => out.cpu = fit(amount.milli()),
                "memory" => out.memory = whole(amount),
                "ephemeral-storage" => out.ephemeral = whole(amount),
                "pods" => out.pods = whole(amount),
                _ => {
                    out.others.insert(name.clone(), whole(amount));
                }
            }
        }
        out
    }

    /// Adds `more`.
    pub fn add(&mut self, more: &Self) {
        self.change(more, i64::saturating_add);
    }

    /// Takes `less` away.
    pub fn sub(&mut self, less: &Self) {
        self.change(less, i64::saturating_sub);
    }

    fn change(&mut self, by: &Self, how: fn(i64, i64) -> i64) {
        self.cpu = how(self.cpu, by.cpu);
        self.memory = how(self.memory, by.memory);
        self.ephemeral = how(self.ephemeral, by.ephemeral);
        self.pods = how(self.pods, by.pods);
        for (name, amount) in &by.others {
            match self.others.get_mut(name) {
                Some(have) => *have = how(*have, *amount),
                None => {
                    self.others.insert(name.clone(), how(0, *amount));
                }
            }
        }
    }

    /// The amount of one of the `others`.
    pub fn other(&self, name: &str) -> i64 {
        self.others.get(name).copied().unwrap_or_default()
    }

    /// True when some amount of `self` is less than that of `of`.
    pub fn is_less_somewhere(&self, of: &Self) -> bool {
        self.cpu < of.cpu
            || self.memory < of.memory
            || self.ephemeral < of.ephemeral
            || self.pods < of.pods
            || of.others.iter().any(|(name, amount)| self.other(name) < *amount)
    }
}
