//! The pod network's configuration: the distribution's `ptp` plugin with addresses from the node's
//! podCIDR. No bridge and no masquerade here: egress masquerade is the service proxy's table.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde_json::json;

/// Where distributions put the standard plugins.
pub const PLUGIN_FOLDERS: &[&str] = &["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];
/// The plugins the configuration names.
pub const PLUGINS: &[&str] = &["ptp", "host-local", "portmap", "loopback"];

/// The network's name: the host-local plugin keeps what it gave out in a folder of that name.
pub const NETWORK: &str = "pintle";

/// The folder that holds all plugins needed, or the plugins no folder has.
pub fn find_plugins(folders: &[&str]) -> Result<PathBuf, Vec<&'static str>> {
    let missing_in =
        |folder: &&str| PLUGINS.iter().copied().filter(|p| !Path::new(folder).join(p).is_file()).collect::<Vec<_>>();
    let mut best = PLUGINS.to_vec();
    for folder in folders {
        let missing = missing_in(folder);
        if missing.is_empty() {
            return Ok(PathBuf::from(folder));
        }
        if missing.len() < best.len() {
            best = missing;
        }
    }
    Err(best)
}

/// The network configuration list, pure.
pub fn render(pod_cidr: IpNet, state: &Path) -> String {
    let default = if pod_cidr.addr().is_ipv4() { "0.0.0.0/0" } else { "::/0" };
    let list = json!({
        "cniVersion": "0.4.0",
        "name": NETWORK,
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "dataDir": state,
                    "ranges": [[{ "subnet": pod_cidr.to_string() }]],
                    "routes": [{ "dst": default }],
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    });
    format!("{list:#}\n")
}

/// Writes the configuration in place. containerd watches for writes and ignores a file that is
/// renamed into the folder, so this is the one file that is not replaced atomically; a torn one is
/// written again at the next start.
pub fn write(folder: &Path, text: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let path = folder.join("10-pintle.conflist");
    if fs::read_to_string(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_the_range_and_no_masquerade() {
        let text = render("10.244.3.0/24".parse().expect("a network"), Path::new("/s"));
        let list: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(list["plugins"][0]["ipam"]["ranges"][0][0]["subnet"], "10.244.3.0/24");
        assert_eq!(list["plugins"][0]["ipMasq"], false);
        assert_eq!(list["plugins"][1]["type"], "portmap");
    }

    #[test]
    fn missing_plugins_are_named() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for plugin in ["ptp", "host-local", "loopback"] {
            fs::write(dir.path().join(plugin), "").expect("a plugin");
        }
        let folder = dir.path().to_str().expect("UTF-8");
        assert_eq!(find_plugins(&["/nonexistent", folder]), Err(vec!["portmap"]));
        fs::write(dir.path().join("portmap"), "").expect("a plugin");
        assert_eq!(find_plugins(&["/nonexistent", folder]), Ok(dir.path().to_owned()));
    }
}
