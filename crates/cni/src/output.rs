//! What goes out: results as each version of the specification writes them.

use std::net::IpAddr;
use std::path::Path;

use net::rtnl::link::Mac;
use serde_json::{Value, json};

use crate::config::Version;

/// An Ethernet address as text.
pub fn mac(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// What a pod got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made<'a> {
    pub link: &'a str,
    pub link_mac: Mac,
    pub ifname: &'a str,
    pub mac: Mac,
    pub namespace: &'a Path,
    pub addresses: &'a [IpAddr],
    pub mtu: u32,
}

/// The gateway of a family: an address that nobody has.
pub fn gateway(v4: bool) -> IpAddr {
    if v4 { [169, 254, 1, 1].into() } else { [0xfe80, 0, 0, 0, 0, 0, 0, 1].into() }
}

/// The result of ADD.
pub fn result(version: Version, made: &Made) -> Value {
    let with_mtu = |mut interface: Value| {
        if version.as_str() >= "1.1.0" {
            interface["mtu"] = made.mtu.into();
        }
        interface
    };
    let ips: Vec<Value> = made
        .addresses
        .iter()
        .map(|address| {
            let (bits, family) = if address.is_ipv4() { (32, "4") } else { (128, "6") };
            let mut ip = json!({
                "address": format!("{address}/{bits}"),
                "gateway": gateway(address.is_ipv4()),
                "interface": 1,
            });
            if version.names_families() {
                ip["version"] = family.into();
            }
            ip
        })
        .collect();
    let default = |v4: bool| if v4 { "0.0.0.0/0" } else { "::/0" };
    let routes: Vec<Value> =
        made.addresses.iter().map(|a| json!({ "dst": default(a.is_ipv4()), "gw": gateway(a.is_ipv4()) })).collect();
    json!({
        "cniVersion": version.as_str(),
        "interfaces": [
            with_mtu(json!({ "name": made.link, "mac": mac(made.link_mac) })),
            with_mtu(json!({ "name": made.ifname, "mac": mac(made.mac), "sandbox": made.namespace })),
        ],
        "ips": ips,
        "routes": routes,
        "dns": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_form() {
        let addresses = [IpAddr::from([10, 244, 0, 5]), "fd00::5".parse().expect("an address")];
        let made = Made {
            link: "veth1",
            link_mac: [2, 0, 0, 0, 0, 1],
            ifname: "eth0",
            mac: [2, 0, 0, 0, 0, 2],
            namespace: Path::new("/run/netns/a"),
            addresses: &addresses,
            mtu: 1500,
        };
        let of = |version: &str| result(Version::parse(version).expect("a version"), &made);
        assert_eq!(of("0.4.0")["ips"][1]["version"], "6");
        assert_eq!(of("1.0.0")["ips"][1].get("version"), None);
        assert_eq!(of("1.0.0")["interfaces"][1].get("mtu"), None);
        assert_eq!(of("1.1.0")["interfaces"][1]["mtu"], 1500);
        assert_eq!(of("1.1.0")["ips"][0]["address"], "10.244.0.5/32");
        assert_eq!(of("1.1.0")["interfaces"][0]["mac"], "02:00:00:00:00:01");
        assert_eq!(of("1.1.0")["routes"][0], json!({"dst": "0.0.0.0/0", "gw": "169.254.1.1"}));
    }
}
