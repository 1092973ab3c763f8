//! What carries the model out: one for each mode, one table (or its like) a family.

use std::collections::BTreeMap;

use async_trait::async_trait;
use client::Key;
use net::nft::Error;
use net::ruleset::Family;

use crate::model::{Model, Settings};
use crate::nftables::TABLE;
use crate::nftables::apply::Applied;
use crate::nftables::table::Change;

/// What the kernel said no to, Service by Service; empty when it took everything.
pub type Refused = BTreeMap<Key, String>;

/// The rules of one of iptables' tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// `filter` or `nat`.
    pub table: &'static str,
    /// Those that are ours.
    pub total: usize,
    /// Those that the last call wrote.
    pub last: usize,
}

/// What a dataplane that writes rules one by one has written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub tables: Vec<Rules>,
    /// Differences that were refused since the last time, whereupon everything was written anew.
    pub failed: u64,
}

/// Brings one family's rules in the kernel to what they should be.
#[async_trait]
pub trait Dataplane: Send {
    /// Which one.
    fn family(&self) -> Family;

    /// Will the next call bring everything, with these settings?
    fn needs_load(&self, settings: &Settings) -> bool;

    /// Brings the kernel up to date: `changes` is what `model` has different since the last call
    /// that went well. After an error, and at first, everything is loaded anew.
    async fn apply(&mut self, settings: &Settings, model: &Model, changes: &[Change]) -> Result<Refused, Error>;

    /// Somebody else has changed the rules, or may have: the next call loads everything.
    fn forget(&mut self);

    /// Is there something left of what has gone, which is in nobody's way at once?
    fn is_untidy(&self) -> bool {
        false
    }

    /// Removes a part of that.
    async fn tidy(&mut self) {}

    /// What was written, where that is counted; `None` elsewhere.
    fn written(&mut self) -> Option<Written> {
        None
    }

    /// Looks whether the kernel still has what it was given, as far as that can be seen in passing.
    async fn is_intact(&mut self) -> Result<bool, Error> {
        Ok(true)
    }
}

/// Finds what is refused among `all`, by halves, without changing anything: what may stay, and what
/// was said of the rest.
pub(crate) async fn sift<F: Future<Output = Result<(), Error>> + Send>(
    all: &[Change],
    check: impl Fn(Vec<Change>) -> F + Send,
) -> Result<(Vec<Change>, Refused), Error> {
    let (mut refused, mut taken) = (Refused::new(), Vec::new());
    let mut groups: Vec<&[Change]> = vec![all];
    while let Some(group) = groups.pop() {
        match (check(group.to_vec()).await, group) {
            (Ok(()), _) => taken.extend_from_slice(group),
            (Err(Error::Refused(error)), [(key, _)]) => drop(refused.insert(key.clone(), error)),
            (Err(Error::Refused(_)), _) => {
                let (left, right) = group.split_at(group.len() / 2);
                groups.extend([right, left]);
            }
            (Err(error), _) => return Err(error),
        }
    }
    Ok((taken, refused))
}

#[async_trait]
impl Dataplane for Applied {
    fn family(&self) -> Family {
        self.family
    }

    fn needs_load(&self, settings: &Settings) -> bool {
        Applied::needs_load(self, settings)
    }

    async fn apply(&mut self, settings: &Settings, model: &Model, changes: &[Change]) -> Result<Refused, Error> {
        if Applied::needs_load(self, settings) {
            self.load(settings, model).await
        } else {
            self.change(settings, model, changes).await
        }
    }

    fn forget(&mut self) {
        self.table = None;
    }

    fn is_untidy(&self) -> bool {
        Applied::is_untidy(self)
    }

    async fn tidy(&mut self) {
        Applied::tidy(self).await;
    }

    /// Who changes the table is heard of, but not from within a container, whose processes have other numbers than
    /// the kernel's; that somebody has taken it away is seen from anywhere.
    async fn is_intact(&mut self) -> Result<bool, Error> {
        Ok(self.table.is_none() || self.kernel.has_table(self.family, TABLE).await?)
    }
}
