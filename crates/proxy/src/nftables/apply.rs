//! Remembers what the kernel has and sends it only the difference.

use std::sync::Arc;

use net::nft::{Error, Kernel};
use net::ruleset::{Ruleset, transaction};

/// One table in the kernel.
pub struct Applied {
    kernel: Arc<dyn Kernel>,
    /// `None` before the first load and after a failure: the next apply replaces the whole table.
    state: Option<Ruleset>,
}

impl Applied {
    /// Nothing is known of the kernel's state yet; what an earlier process left keeps working until
    /// the first apply replaces it in one transaction.
    pub fn new(kernel: Arc<dyn Kernel>) -> Self {
        Self { kernel, state: None }
    }

    /// Brings the kernel to `wanted`; true when something was sent.
    pub async fn apply(&mut self, wanted: Ruleset) -> Result<bool, Error> {
        let text = match &self.state {
            None => wanted.load(),
            Some(state) => match transaction(state, &wanted) {
                None => return Ok(false),
                Some(text) => text,
            },
        };
        // A cancelled or failed call leaves the state unknown until the next success.
        self.state = None;
        self.kernel.apply(&text).await?;
        self.state = Some(wanted);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::ruleset::{Chain, Family};
    use std::sync::Mutex;

    /// Fails while `broken`, else records.
    #[derive(Default)]
    struct Recorder {
        broken: Mutex<bool>,
        seen: Mutex<Vec<String>>,
    }

    #[async_trait::async_trait]
    impl Kernel for Recorder {
        async fn apply(&self, transaction: &str) -> Result<(), Error> {
            if *self.broken.lock().expect("not poisoned") {
                return Err(Error::Refused("no".into()));
            }
            self.seen.lock().expect("not poisoned").push(transaction.to_owned());
            Ok(())
        }
    }

    fn rules(rule: &str) -> Ruleset {
        let mut rules = Ruleset::new(Family::Ip, "t");
        rules.chains.insert("c".into(), Chain { hook: String::new(), rules: vec![rule.into()] });
        rules
    }

    #[tokio::test]
    async fn after_a_failure_the_whole_table_is_loaded_again() {
        let kernel = Arc::new(Recorder::default());
        let mut applied = Applied::new(kernel.clone());
        assert!(applied.apply(rules("a")).await.expect("applied"));
        assert!(!applied.apply(rules("a")).await.expect("nothing to do"));
        *kernel.broken.lock().expect("not poisoned") = true;
        assert!(applied.apply(rules("b")).await.is_err());
        *kernel.broken.lock().expect("not poisoned") = false;
        assert!(applied.apply(rules("b")).await.expect("applied"));
        let seen = kernel.seen.lock().expect("not poisoned");
        assert_eq!(seen.len(), 2);
        assert!(seen[1].starts_with("table ip t\ndelete table ip t\n"));
    }
}
