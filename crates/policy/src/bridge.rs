//! Packets that the rules never see: those between pods behind one bridge, unless the kernel is told to show them to
//! the rules of IPv4 and IPv6, too. The project's own plugin makes no bridge; others do, and whoever writes policies
//! must learn that they hold nothing there.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use net::rtnl::Rtnl;

/// Where the kernel says whether packets of bridges are shown.
const SETTINGS: &str = "/proc/sys/net/bridge";

fn setting(v4: bool) -> &'static str {
    if v4 { "bridge-nf-call-iptables" } else { "bridge-nf-call-ip6tables" }
}

/// What is to be told of a pod whose packets go by this link. `shown` is what the kernel says, if it says anything.
fn why(address: IpAddr, link: &str, kind: &str, shown: Option<&str>) -> Option<String> {
    let name = setting(address.is_ipv4());
    if kind != "bridge" || shown.is_some_and(|value| value.trim() != "0") {
        return None;
    }
    let mend = match shown {
        Some(_) => format!("`sysctl -w net.bridge.{name}=1`"),
        None => format!("`modprobe br_netfilter` and `sysctl -w net.bridge.{name}=1`"),
    };
    Some(format!(
        "pods of this node are behind the bridge {link}: what they say to each other passes no NetworkPolicy; {mend} lets it"
    ))
}

/// Why rules of this node see not all of what the pod with this address gets; `None`: they do, or nobody can say.
pub fn unseen(address: IpAddr) -> Option<String> {
    let look = || -> io::Result<Option<String>> {
        let rtnl = Rtnl::open()?;
        let (index, _) = rtnl.route_to(address)?;
        let Some(link) = rtnl.link_of(index)? else { return Ok(None) };
        let path: PathBuf = Path::new(SETTINGS).join(setting(address.is_ipv4()));
        let shown = match std::fs::read_to_string(path) {
            Ok(value) => Some(value),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(why(address, &link.name, &link.kind, shown.as_deref()))
    };
    look().unwrap_or_else(|error| {
        tracing::debug!(%error, %address, "whether rules see all of a pod's packets cannot be told");
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_whose_packets_are_not_shown_is_named_with_the_mend() {
        let of = |address: &str, kind: &str, shown: Option<&str>| {
            why(address.parse().expect("an address"), "cni0", kind, shown).unwrap_or_default()
        };
        for (kind, shown) in [("veth", None), ("veth", Some("0\n")), ("bridge", Some("1\n"))] {
            assert_eq!(of("10.244.0.2", kind, shown), "", "{kind} {shown:?}");
        }
        let off = of("10.244.0.2", "bridge", Some("0\n"));
        assert!(
            off.contains("the bridge cni0") && off.contains("`sysctl -w net.bridge.bridge-nf-call-iptables=1`"),
            "{off}"
        );
        assert!(!off.contains("modprobe"), "{off}");
        let absent = of("fd00::2", "bridge", None);
        assert!(absent.contains("modprobe br_netfilter") && absent.contains("ip6tables=1"), "{absent}");
    }
}
