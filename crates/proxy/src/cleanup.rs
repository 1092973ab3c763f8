//! Taking away what a mode has put into the kernel: for `--cleanup`, and for what the other mode left before
//! this one began.

use net::iptables::Iptables;
use net::nft::{Error, Kernel};
use net::ruleset::{Family, Ruleset};

use crate::options::Mode;

const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];

/// Removes everything of ours, and nothing of anybody else's. What has none of its tools has no rules by them.
///
/// # Errors
/// The kernel keeps some.
pub async fn cleanup(kernel: &dyn Kernel, iptables: &dyn Iptables) -> Result<(), Error> {
    let outside = FAMILIES.map(|family| Ruleset::new(family, net::egress::TABLE).remove()).concat();
    match kernel.apply(&outside).await {
        Ok(()) | Err(Error::Program(_)) => {}
        Err(error) => return Err(error),
    }
    remove(Mode::Nftables, kernel, iptables).await?;
    remove(Mode::Iptables, kernel, iptables).await
}

/// Removes the rules of a mode. What masquerades on the way out is of both.
///
/// # Errors
/// The kernel keeps some.
pub async fn remove(mode: Mode, kernel: &dyn Kernel, iptables: &dyn Iptables) -> Result<(), Error> {
    if mode == Mode::Nftables {
        return match kernel.apply(&FAMILIES.map(crate::nftables::apply::remove).concat()).await {
            Ok(()) | Err(Error::Program(_)) => Ok(()),
            Err(error) => Err(error),
        };
    }
    for family in FAMILIES {
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
