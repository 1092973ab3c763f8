//! Remembers what the kernel has and sends it only the difference. A policy that the kernel refuses isolates
//! whom it selects and lets nothing through, and no other policy waits for it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use client::Key;
use net::nft::{Error, Kernel};
use net::ruleset::Transaction;

use super::table::{Change, Table};

/// Policies that the kernel refuses, and what it said.
pub type Refused = BTreeMap<Key, String>;

/// So many changes are worked in before anybody else has a turn.
const AT_A_TIME: usize = 128;

/// The tables in the kernel.
pub struct Applied {
    kernel: Arc<dyn Kernel>,
    table: Table,
    /// The kernel has what `table` says. Not before the first load and after a failure: what an earlier
    /// process left keeps working until the next load replaces it in one transaction.
    is_loaded: bool,
    /// Policies that `table` holds closed.
    refused: Refused,
}

impl Applied {
    /// Nothing is known of the kernel's state yet.
    pub fn new(kernel: Arc<dyn Kernel>) -> Self {
        Self::with_names(kernel, &[])
    }

    /// The same where the cluster's DNS is no pod, and has these addresses ([`Table::new`]).
    pub fn with_names(kernel: Arc<dyn Kernel>, names: &[IpAddr]) -> Self {
        Self { kernel, table: Table::new(names), is_loaded: false, refused: Refused::new() }
    }

    /// What the kernel has, or should have.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Somebody else has changed the rules: the next change loads everything.
    pub fn forget(&mut self) {
        self.is_loaded = false;
    }

    /// Would [`change`](Self::change) load everything?
    pub fn needs_load(&self) -> bool {
        !self.is_loaded
    }

    /// The policies that are closed until they are changed, or tried again, and are not refused then.
    pub fn refused(&self) -> &Refused {
        &self.refused
    }

    /// Brings the kernel up to date with what changed; of one object there is one change.
    ///
    /// # Errors
    /// What is not a policy's fault: the changes are known and carried out by the next load.
    pub async fn change(&mut self, changes: &[Change]) -> Result<(), Error> {
        for change in changes {
            if let Change::Policy(key, _) = change {
                self.refused.remove(key);
            }
        }
        if !self.is_loaded {
            // The first time that is all there is: others of this node have a turn meanwhile.
            for part in changes.chunks(AT_A_TIME) {
                self.table.change(part);
                tokio::task::yield_now().await;
            }
            return self.load().await;
        }
        // A cancelled call leaves the state unknown until the next load.
        self.is_loaded = false;
        let mut groups: Vec<Vec<Change>> = vec![changes.to_vec()];
        while let Some(group) = groups.pop() {
            let before = self.table.inverse(&group);
            let changes = self.table.change(&group);
            if changes.is_empty() {
                continue;
            }
            let error = match self.twice(changes).await {
                Ok(()) => continue,
                Err(error) => error,
            };
            match (error, group.as_slice()) {
                (Error::Refused(error), [Change::Policy(key, Some(policy))]) if !self.refused.contains_key(key) => {
                    self.table.change(&before);
                    self.refused.insert(key.clone(), error);
                    groups.push(vec![Change::Policy(key.clone(), Some(Arc::new(policy.closed())))]);
                }
                (Error::Refused(_), [_, _, ..]) => {
                    self.table.change(&before);
                    let (left, right) = group.split_at(group.len() / 2);
                    groups.extend([right.to_vec(), left.to_vec()]);
                }
                (error, _) => {
                    self.finish(groups);
                    return Err(error);
                }
            }
        }
        self.is_loaded = true;
        Ok(())
    }

    /// Another table's transaction at the same instant may be in the way: what is refused is tried once more.
    async fn twice(&self, changes: Vec<Transaction>) -> Result<(), Error> {
        match self.kernel.change_all(changes.clone()).await {
            Err(Error::Refused(_)) => self.kernel.change_all(changes).await,
            result => result,
        }
    }

    /// What was not tried any more is carried out by the next load.
    fn finish(&mut self, groups: Vec<Vec<Change>>) {
        for group in groups.into_iter().rev() {
            self.table.change(&group);
        }
    }

    /// Replaces both tables whole, in one transaction.
    async fn load(&mut self) -> Result<(), Error> {
        let error = match self.kernel.apply(&self.table.load()).await {
            Ok(()) => {
                self.is_loaded = true;
                return Ok(());
            }
            Err(Error::Refused(error)) => error,
            Err(error) => return Err(error),
        };
        let (policies, others): (Vec<Change>, Vec<Change>) =
            self.table.everything().into_iter().partition(|change| matches!(change, Change::Policy(..)));
        let closed = |change: &Change| match change {
            Change::Policy(key, Some(policy)) => Change::Policy(key.clone(), Some(Arc::new(policy.closed()))),
            other => other.clone(),
        };
        let mut table = self.table.begun_again();
        table.change(&others);
        table.change(&policies.iter().map(closed).collect::<Vec<_>>());
        if policies.is_empty() || self.kernel.check(&table.load()).await.is_err() {
            return Err(Error::Refused(error));
        }
        // Only the whole is wrong: which policies is found by halves, without changing anything.
        let mut refused = Refused::new();
        let mut groups: Vec<&[Change]> = vec![&policies];
        while let Some(group) = groups.pop() {
            let before = table.inverse(group);
            table.change(group);
            match self.kernel.check(&table.load()).await {
                Ok(()) => {}
                Err(Error::Refused(error)) => {
                    table.change(&before);
                    match group {
                        [Change::Policy(key, _)] => drop(refused.insert(key.clone(), error)),
                        _ => {
                            let (left, right) = group.split_at(group.len() / 2);
                            groups.extend([right, left]);
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
        self.kernel.apply(&table.load()).await?;
        self.table = table;
        self.refused.extend(refused);
        self.is_loaded = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
