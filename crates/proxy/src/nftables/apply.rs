//! Remembers what the kernel has and sends it only the difference. What the kernel refuses is found
//! among the rest and left out, so that one Service starves no other.

use std::collections::BTreeSet;
use std::sync::Arc;

use client::Key;
use net::nft::{Error, Kernel};
use net::ruleset::{Family, Ruleset, Step, Transaction};

use super::names::{FORMER_TABLE, TABLE};
use super::table::{Change, Table};
use super::{affinity, base};
use crate::dataplane::{Refused, sift};
use crate::model::{Model, ServiceRules, Settings};

/// One table in the kernel.
pub struct Applied {
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) family: Family,
    /// `None` before the first load and after a failure: the next one replaces the whole table.
    pub(crate) table: Option<Table>,
    /// Services of which a difference was refused although everything was loaded anew: it is their own fault.
    doubted: BTreeSet<Key>,
}

/// So many endpoints with session affinity a Service may have, over all its ports: each is three rules of its own, all of
/// which are written when one of them changes, and of which each new connection passes some.
const STICKY: usize = 2_000;

/// Why a Service is not even tried.
fn is_too_much(rules: &ServiceRules, family: Family) -> Option<String> {
    let sticky = rules.of(family).iter().filter(|(_, port)| port.affinity.is_some());
    let count: usize = sticky.map(|(_, port)| port.endpoints.all().len()).sum();
    (count > STICKY).then(|| format!("{count} endpoints with session affinity, of {STICKY} at most"))
}

impl Applied {
    /// Nothing is known of the kernel's state yet; what an earlier process left keeps working until
    /// the first load replaces it in one transaction.
    pub fn new(kernel: Arc<dyn Kernel>, family: Family) -> Self {
        Self { kernel, family, table: None, doubted: BTreeSet::new() }
    }

    /// Does the next change need every Service?
    pub fn needs_load(&self, settings: &Settings) -> bool {
        self.table.as_ref().is_none_or(|t| !t.can_adapt(settings))
    }

    /// Replaces the whole table by that of `model`, in one transaction.
    pub async fn load(&mut self, settings: &Settings, model: &Model) -> Result<Refused, Error> {
        self.table = None;
        self.doubted.retain(|key| model.contains_key(key));
        let mut refused = Refused::new();
        let mut all: Vec<Change> = Vec::with_capacity(model.len());
        for (key, rules) in model {
            match is_too_much(rules, self.family) {
                Some(why) => drop(refused.insert(key.clone(), why)),
                None => all.push((key.clone(), Some(rules.clone()))),
            }
        }
        let table = Table::with(self.family, settings.clone(), all.iter().cloned());
        let error = match self.replace(&table).await {
            Ok(()) => {
                self.table = Some(table);
                return Ok(refused);
            }
            Err(Error::Refused(error)) => Error::Refused(error),
            Err(error) => return Err(error),
        };
        let empty = Table::new(self.family, settings.clone());
        if all.is_empty() || self.kernel.check(&empty.whole().load()).await.is_err() {
            return Err(error);
        }
        // Only the whole is wrong: which Services is found by halves, without changing anything.
        let (kernel, family) = (&self.kernel, self.family);
        let check = |group: Vec<Change>| {
            let text = Table::with(family, settings.clone(), group).whole().load();
            async move { kernel.check(&text).await }
        };
        let (taken, sifted) = sift(&all, check).await?;
        let table = Table::with(self.family, settings.clone(), taken);
        self.replace(&table).await?;
        self.table = Some(table);
        refused.extend(sifted);
        Ok(refused)
    }

    async fn replace(&self, table: &Table) -> Result<(), Error> {
        let whole = table.whole();
        let (load, former) = (whole.load(), Ruleset::new(self.family, FORMER_TABLE).remove());
        let wanted = table.numbers();
        if wanted.is_empty() {
            return self.kernel.apply(&(load + &former)).await;
        }
        // Without them clients are sent anywhere once more: no reason to stop.
        let carried = match self.kernel.sets(self.family).await {
            Ok(listing) => affinity::carried(&listing, &wanted, self.family),
            Err(error) => {
                tracing::warn!(%error, "who had which endpoint is not known");
                Vec::new()
            }
        };
        match self.kernel.apply(&format!("{load}{}{former}", carried.concat())).await {
            Err(Error::Refused(error)) if !carried.is_empty() => {
                tracing::warn!(error, "who had which endpoint is not taken along at once");
                self.kernel.apply(&(load + &former)).await?;
                for text in carried {
                    if let Err(error) = self.kernel.apply(&text).await {
                        tracing::warn!(%error, "who had which endpoint of a Service is not taken along");
                    }
                }
                Ok(())
            }
            result => result,
        }
    }

    /// Are there clients of endpoints that have left?
    pub fn is_untidy(&self) -> bool {
        self.table.as_ref().is_some_and(Table::has_left)
    }

    /// Forgets who had endpoints that have left, of a few Services: their entries would keep others out for hours.
    pub async fn tidy(&mut self) {
        const SETS: usize = 8;
        const TOGETHER: usize = 1000;
        let left = self.table.as_mut().map(|table| table.take_left(SETS)).unwrap_or_default();
        for (set, numbers) in left {
            let listing = match self.kernel.elements(self.family, TABLE, &set).await {
                Ok(listing) => listing,
                Err(error) => {
                    tracing::debug!(%error, set, "who had endpoints that have left is not known");
                    continue;
                }
            };
            let declaration = base::set(&set, self.family).declaration;
            for keys in affinity::of_left(&listing, &set, &numbers).chunks(TOGETHER) {
                let step =
                    Step::DeleteElements { set: set.clone(), declaration: declaration.clone(), keys: keys.into() };
                let change = Transaction { family: self.family, table: TABLE.into(), steps: vec![step] };
                // Somebody else's flush among them; they end by themselves.
                if let Err(error) = self.kernel.change(change).await {
                    tracing::debug!(%error, set, "who had endpoints that have left is not forgotten yet");
                }
            }
        }
    }

    /// Brings the kernel up to date with what changed since the load. What is refused is as it was.
    /// The first time that one is, everything is loaded anew: it may be the table that is not as it is thought to be.
    pub async fn change(&mut self, settings: &Settings, model: &Model, changes: &[Change]) -> Result<Refused, Error> {
        let Some(mut table) = self.table.take() else { return Ok(Refused::new()) };
        // A cancelled call leaves the state unknown until the next load.
        if table.settings() != settings {
            let Some(text) = table.adapt(settings) else { return Ok(Refused::new()) };
            if !text.is_empty() {
                self.kernel.apply(&text).await?;
            }
        }
        let mut refused = Refused::new();
        let mut fit: Vec<Change> = Vec::with_capacity(changes.len());
        for (key, rules) in changes {
            match rules.as_ref().and_then(|rules| is_too_much(rules, self.family)) {
                Some(why) => drop(refused.insert(key.clone(), why)),
                None => fit.push((key.clone(), rules.clone())),
            }
        }
        let mut groups: Vec<&[Change]> = vec![&fit];
        while let Some(group) = groups.pop() {
            let before = table.inverse(group);
            let change = table.change(group);
            if change.is_empty() {
                continue;
            }
            match self.kernel.change(change).await {
                Ok(()) => self.doubted.retain(|doubted| group.iter().all(|(key, _)| key != doubted)),
                Err(Error::Refused(error)) => {
                    table.change(&before);
                    match group {
                        [(key, _)] if self.doubted.insert(key.clone()) => {
                            tracing::warn!(%key, error, "the kernel refused a change: loading everything anew");
                            return self.load(settings, model).await;
                        }
                        [(key, _)] => drop(refused.insert(key.clone(), error)),
                        _ => {
                            let (left, right) = group.split_at(group.len() / 2);
                            groups.extend([right, left]);
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
        self.table = Some(table);
        Ok(refused)
    }
}

/// The text that removes every table of ours of one family.
pub fn remove(family: Family) -> String {
    [TABLE, FORMER_TABLE].map(|name| Ruleset::new(family, name).remove()).concat()
}

#[cfg(test)]
mod tests;
