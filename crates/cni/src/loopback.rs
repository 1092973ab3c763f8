//! The plugin `loopback`: takes `lo` up in a pod.

use std::io;
use std::path::Path;

use net::namespace::Namespace;
use net::rtnl::Rtnl;
use serde_json::{Value, json};

use crate::config::Version;
use crate::error::{Error, NOT_AS_MADE};

fn refused(netns: &Path) -> impl FnOnce(io::Error) -> Error {
    Error::io(format!("the loopback of {}", netns.display()))
}

/// ADD: its result.
///
/// # Errors
/// When there is no such namespace, or the kernel refuses.
pub fn add(version: Version, netns: &Path, ifname: &str) -> Result<Value, Error> {
    let up = || {
        let rtnl = Rtnl::open()?;
        let link = rtnl.link("lo")?.ok_or(io::ErrorKind::NotFound)?;
        rtnl.set_up(link.index)?;
        Ok(rtnl.addresses()?.into_iter().filter(|a| a.link == link.index).map(|a| a.net).collect::<Vec<_>>())
    };
    let addresses = Namespace::open(netns).and_then(|n| n.run(up)).map_err(refused(netns))?;
    let ips: Vec<Value> = addresses
        .iter()
        .map(|net| {
            let mut ip = json!({ "address": net.to_string(), "interface": 0 });
            if version.names_families() {
                ip["version"] = if net.addr().is_ipv4() { "4" } else { "6" }.into();
            }
            ip
        })
        .collect();
    Ok(json!({
        "cniVersion": version.as_str(),
        "interfaces": [{ "name": ifname, "mac": "00:00:00:00:00:00", "sandbox": netns }],
        "ips": ips,
        "dns": {},
    }))
}

/// CHECK.
///
/// # Errors
/// When it is not up.
pub fn check(netns: &Path) -> Result<(), Error> {
    let is_up = || Ok(Rtnl::open()?.link("lo")?.is_some_and(|l| l.up));
    match Namespace::open(netns).and_then(|n| n.run(is_up)).map_err(refused(netns))? {
        true => Ok(()),
        false => Err(Error::new(NOT_AS_MADE, "the loopback is not up")),
    }
}
