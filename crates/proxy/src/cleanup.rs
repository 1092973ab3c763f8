//! Taking away what a mode has put into the kernel: for `--cleanup`, and for what the other mode left before
//! this one began.

use net::iptables::Iptables;
use net::nft::{Error, Kernel};
use net::ruleset::{Family, Ruleset};

use crate::options::Mode;

/// The text of every nftables table of ours, removed.
fn tables() -> String {
    let outside = |family| Ruleset::new(family, net::egress::TABLE).remove();
    [Family::Ip, Family::Ip6].map(|family| crate::nftables::apply::remove(family) + &outside(family)).concat()
}

/// Removes the rules of a mode, and nobody else's. What has none of its tools has no rules by them.
///
/// # Errors
/// The kernel keeps some.
pub async fn cleanup(mode: Mode, kernel: &dyn Kernel, iptables: &dyn Iptables) -> Result<(), Error> {
    if mode == Mode::Nftables {
        return match kernel.apply(&tables()).await {
            Ok(()) | Err(Error::Program(_)) => Ok(()),
            Err(error) => Err(error),
        };
    }
    for family in [Family::Ip, Family::Ip6] {
        let saved = match iptables.save(family).await {
            Ok(saved) => saved,
            Err(Error::Program(_)) => continue,
            Err(error) => return Err(error),
        };
        if let Some(text) = crate::iptables::apply::remove(&saved) {
            iptables.restore(family, &text).await?;
        }
    }
    Ok(())
}
