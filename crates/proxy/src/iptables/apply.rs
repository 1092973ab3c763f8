//! Remembers what the kernel has and sends it only the difference. A table of the kernel's changes at
//! once, but not both of ours together: rules that refuse come before those that translate.

use std::sync::Arc;

use async_trait::async_trait;
use net::iptables::Iptables;
use net::nft::Error;
use net::ruleset::Family;

use super::rules::{Counts, Present, Rules, Table, written};
use crate::dataplane::{self, Dataplane, Refused, Written, sift};
use crate::model::{Model, Settings};
use crate::nftables::table::Change;

/// One family's rules in the kernel.
pub struct Restored {
    kernel: Arc<dyn Iptables>,
    family: Family,
    /// `None` before the first load and after a failure: the next one replaces everything of ours.
    rules: Option<Rules>,
    /// How many rules the last call wrote.
    last: Counts,
    /// Differences that were refused.
    failed: u64,
}

impl Restored {
    /// Nothing is known of the kernel's state yet; what an earlier process left keeps working until
    /// the first load replaces it.
    pub fn new(kernel: Arc<dyn Iptables>, family: Family) -> Self {
        Self { kernel, family, rules: None, last: Counts::new(), failed: 0 }
    }

    async fn restore(&mut self, text: &str) -> Result<(), Error> {
        self.last = written(text);
        self.kernel.restore(self.family, text).await
    }

    async fn load(&mut self, settings: &Settings, model: &Model) -> Result<Refused, Error> {
        self.rules = None;
        let all: Vec<Change> = model.iter().map(|(key, rules)| (key.clone(), Some(rules.clone()))).collect();
        let present = Present::read(&self.kernel.save(self.family).await?);
        let (family, kernel) = (self.family, self.kernel.clone());
        let of = |changes: &[Change]| Rules::with(family, settings.clone(), changes.iter().cloned());
        let rules = of(&all);
        let error = match self.restore(&rules.whole(&present)).await {
            Ok(()) => {
                self.rules = Some(rules);
                return Ok(Refused::new());
            }
            Err(error @ Error::Refused(_)) => error,
            Err(error) => return Err(error),
        };
        if all.is_empty() || kernel.check(family, &of(&[]).whole(&present)).await.is_err() {
            return Err(error);
        }
        let check = |group: Vec<Change>| {
            let (text, kernel) = (of(&group).whole(&present), kernel.clone());
            async move { kernel.check(family, &text).await }
        };
        let (taken, refused) = sift(&all, check).await?;
        let rules = of(&taken);
        self.restore(&rules.whole(&present)).await?;
        self.rules = Some(rules);
        Ok(refused)
    }
}

/// Where other nodes' pods are makes no difference to any rule here.
fn relevant(settings: &Settings) -> Settings {
    Settings { remote_pod_cidrs: Vec::new(), ..settings.clone() }
}

#[async_trait]
impl Dataplane for Restored {
    fn family(&self) -> Family {
        self.family
    }

    fn needs_load(&self, settings: &Settings) -> bool {
        self.rules.as_ref().is_none_or(|rules| *rules.settings() != relevant(settings))
    }

    async fn apply(&mut self, settings: &Settings, model: &Model, changes: &[Change]) -> Result<Refused, Error> {
        let settings = &relevant(settings);
        let known = self.rules.take().filter(|rules| rules.settings() == settings);
        let Some(mut rules) = known else { return self.load(settings, model).await };
        let text = rules.change(changes);
        self.last = Counts::new();
        if !text.is_empty() && self.restore(&text).await.is_err() {
            self.failed += 1;
            // One table may have changed and the other not: everything is said again.
            return self.load(settings, model).await;
        }
        self.rules = Some(rules);
        Ok(Refused::new())
    }

    fn forget(&mut self) {
        self.rules = None;
    }

    fn written(&mut self) -> Option<Written> {
        let rules = self.rules.as_ref()?;
        let of = |table: Table| dataplane::Rules {
            table: table.as_str(),
            total: rules.total(table),
            last: self.last.get(&table).copied().unwrap_or_default(),
        };
        let tables = [Table::Filter, Table::Nat].map(of).into();
        Some(Written { tables, failed: std::mem::take(&mut self.failed) })
    }

    async fn is_intact(&mut self) -> Result<bool, Error> {
        let Some(rules) = &self.rules else { return Ok(true) };
        let present = Present::read(&self.kernel.save(self.family).await?);
        Ok(rules.is_in(&present))
    }
}

/// What removes everything of ours that `saved` (of `iptables-save`) shows; `None` when it shows nothing.
pub fn remove(saved: &str) -> Option<String> {
    let present = Present::read(saved);
    (present != Present::default()).then(|| super::rules::remove(&present))
}
