//! Remembers what the kernel has and sends it only the difference. What the kernel refuses is found
//! among the rest and left out, so that one Service starves no other.

use std::sync::Arc;

use net::nft::{Error, Kernel};
use net::ruleset::{Family, Ruleset};

use super::affinity;
use super::names::{FORMER_TABLE, TABLE};
use super::table::{Change, Table};
use crate::dataplane::{Refused, sift};
use crate::model::{Model, Settings};

/// One table in the kernel.
pub struct Applied {
    kernel: Arc<dyn Kernel>,
    pub(crate) family: Family,
    /// `None` before the first load and after a failure: the next one replaces the whole table.
    pub(crate) table: Option<Table>,
}

impl Applied {
    /// Nothing is known of the kernel's state yet; what an earlier process left keeps working until
    /// the first load replaces it in one transaction.
    pub fn new(kernel: Arc<dyn Kernel>, family: Family) -> Self {
        Self { kernel, family, table: None }
    }

    /// Does the next change need every Service?
    pub fn needs_load(&self, settings: &Settings) -> bool {
        self.table.as_ref().is_none_or(|t| !t.can_adapt(settings))
    }

    /// Replaces the whole table by that of `model`, in one transaction.
    pub async fn load(&mut self, settings: &Settings, model: &Model) -> Result<Refused, Error> {
        self.table = None;
        let all: Vec<Change> = model.iter().map(|(key, rules)| (key.clone(), Some(rules.clone()))).collect();
        let table = Table::with(self.family, settings.clone(), all.iter().cloned());
        let error = match self.replace(&table).await {
            Ok(()) => {
                self.table = Some(table);
                return Ok(Refused::new());
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
        let (taken, refused) = sift(&all, check).await?;
        let table = Table::with(self.family, settings.clone(), taken);
        self.replace(&table).await?;
        self.table = Some(table);
        Ok(refused)
    }

    async fn replace(&self, table: &Table) -> Result<(), Error> {
        let whole = table.whole();
        let mut text = whole.load();
        if whole.sets.keys().any(|name| name.starts_with(super::names::AFFINITY)) {
            // Without them clients are sent anywhere once more: no reason to stop.
            match self.kernel.sets(self.family).await {
                Ok(listing) => text += &affinity::carried(&listing, &whole),
                Err(error) => tracing::warn!(%error, "who had which endpoint is not known"),
            }
        }
        text += &Ruleset::new(self.family, FORMER_TABLE).remove();
        self.kernel.apply(&text).await
    }

    /// Brings the kernel up to date with what changed since the load. What is refused is as it was.
    pub async fn change(&mut self, settings: &Settings, changes: &[Change]) -> Result<Refused, Error> {
        let Some(mut table) = self.table.take() else { return Ok(Refused::new()) };
        // A cancelled call leaves the state unknown until the next load.
        if table.settings() != settings {
            let Some(text) = table.adapt(settings) else { return Ok(Refused::new()) };
            if !text.is_empty() {
                self.kernel.apply(&text).await?;
            }
        }
        let mut refused = Refused::new();
        let mut groups: Vec<&[Change]> = vec![changes];
        while let Some(group) = groups.pop() {
            let before = table.inverse(group);
            let change = table.change(group);
            if change.is_empty() {
                continue;
            }
            match self.kernel.change(change).await {
                Ok(()) => {}
                Err(Error::Refused(error)) => {
                    table.change(&before);
                    match group {
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
