//! Remembers what the kernel has and sends it only the difference. A table of the kernel's changes at
//! once, but not both of ours together: rules that refuse come before those that translate.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use client::Key;
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
    /// Services that a load has left out: they are asked for before anything is said again for their sake.
    doubted: BTreeSet<Key>,
    /// How many rules the last call wrote.
    last: Counts,
    /// Differences that were refused.
    failed: u64,
}

impl Restored {
    /// Nothing is known of the kernel's state yet; what an earlier process left keeps working until
    /// the first load replaces it.
    pub fn new(kernel: Arc<dyn Iptables>, family: Family) -> Self {
        Self { kernel, family, rules: None, doubted: BTreeSet::new(), last: Counts::new(), failed: 0 }
    }

    async fn restore(&mut self, text: &str) -> Result<(), Error> {
        self.last = written(text);
        self.kernel.restore(self.family, text).await
    }

    async fn load(&mut self, settings: &Settings, model: &Model) -> Result<Refused, Error> {
        self.rules = None;
        self.doubted.retain(|key| model.contains_key(key));
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
        self.doubted.extend(refused.keys().cloned());
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
        let (mut refused, mut fit) = (Refused::new(), Vec::with_capacity(changes.len()));
        for change in changes {
            if self.doubted.contains(&change.0) {
                let text = rules.clone().change(std::slice::from_ref(change));
                match self.kernel.check(self.family, &text).await {
                    Err(Error::Refused(error)) => {
                        refused.insert(change.0.clone(), error);
                        continue;
                    }
                    _ => self.doubted.retain(|key| *key != change.0),
                }
            }
            fit.push(change.clone());
        }
        let text = rules.change(&fit);
        self.last = Counts::new();
        if !text.is_empty() && self.restore(&text).await.is_err() {
            self.failed += 1;
            // One table may have changed and the other not: everything is said again.
            return self.load(settings, model).await;
        }
        self.rules = Some(rules);
        Ok(refused)
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

#[cfg(test)]
mod tests {
    use serde_json::json;
    use std::sync::Mutex;

    use super::*;
    use crate::cases;

    /// Takes what does not name a port; counts what it is asked to write.
    #[derive(Default)]
    struct Recorder {
        hated: Mutex<Option<&'static str>>,
        written: Mutex<Vec<String>>,
    }

    impl Recorder {
        fn judge(&self, text: &str) -> Result<(), Error> {
            let hated = *self.hated.lock().expect("not poisoned");
            if hated.is_some_and(|hated| text.contains(hated)) { Err(Error::Refused("no".into())) } else { Ok(()) }
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut *self.written.lock().expect("not poisoned"))
        }
    }

    #[async_trait]
    impl Iptables for Recorder {
        async fn save(&self, _: Family) -> Result<String, Error> {
            Ok(String::new())
        }

        async fn restore(&self, _: Family, text: &str) -> Result<(), Error> {
            self.written.lock().expect("not poisoned").push(text.to_owned());
            self.judge(text)
        }

        async fn check(&self, _: Family, text: &str) -> Result<(), Error> {
            self.judge(text)
        }
    }

    #[tokio::test]
    async fn a_service_that_is_refused_costs_one_load() {
        let kernel = Arc::new(Recorder::default());
        *kernel.hated.lock().expect("not poisoned") = Some("10.96.0.2/32");
        let mut plane = Restored::new(kernel.clone(), Family::Ip);
        let service = |name: &str, byte: u8| -> Change {
            let spec = json!({"clusterIP": format!("10.96.0.{byte}"), "ports": [{"port": 80}]});
            let slice = json!({"endpoints": [{"addresses": ["10.244.0.2"]}], "ports": [{"port": 80}]});
            (Key::new("default", name), Some(cases::rules(name, spec, json!({}), slice)))
        };
        let all = [service("a", 1), service("b", 2), service("c", 3)];
        let model: Model = all.iter().filter_map(|(key, rules)| Some((key.clone(), rules.clone()?))).collect();
        let settings = cases::settings();
        let refused = plane.apply(&settings, &model, &all).await.expect("loaded");
        assert_eq!(refused.keys().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["b"]);
        kernel.take();
        // It is tried again beside another: that is written, and nothing anew.
        let again = [all[1].clone(), (all[2].0.clone(), None)];
        let refused = plane.apply(&settings, &model, &again).await.expect("taken");
        assert_eq!(refused.len(), 1);
        let texts = kernel.take();
        assert!(
            texts.len() == 1 && texts[0].contains("10.96.0.3/32") && !texts[0].contains("10.96.0.1/32"),
            "{texts:?}"
        );
        // Its time comes.
        *kernel.hated.lock().expect("not poisoned") = None;
        assert!(plane.apply(&settings, &model, &all[1..2]).await.expect("taken").is_empty());
        assert!(kernel.take().concat().contains("10.96.0.2/32"));
    }
}
