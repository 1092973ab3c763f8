//! The table that masquerades what pods send out of the cluster: loaded once, and again when
//! somebody else changed it.

use std::sync::Arc;

use ipnet::IpNet;
use net::egress;
use net::nft::{Error, Kernel};
use net::ruleset::Family;

/// One family's.
pub(super) struct Egress {
    pub(super) family: Family,
    pub(super) kernel: Arc<dyn Kernel>,
    /// The kernel has it.
    pub(super) loaded: bool,
}

impl Egress {
    pub(super) async fn apply(&mut self, cluster: &[IpNet]) -> Result<(), Error> {
        if !self.loaded {
            self.kernel.apply(&egress::render(self.family, cluster, cluster).load()).await?;
            self.loaded = true;
        }
        Ok(())
    }
}
