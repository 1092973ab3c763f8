//! The pod network's configuration, and the folder of plugins that the runtime executes: this very program
//! under the plugin's name, and beside it what distributions have, for networks that the user configures.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde_json::json;

/// Where distributions put the standard plugins.
pub const PLUGIN_FOLDERS: &[&str] = &["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];

/// The network's name, and that of the folder in which its records are.
pub const NETWORK: &str = "pintle";

/// What the network's configuration depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network<'a> {
    /// The plugin's name.
    pub plugin: &'a str,
    /// Where pods' addresses come from: one range of each family at most.
    pub ranges: &'a [IpNet],
    /// Where the plugin keeps its records.
    pub state: &'a Path,
    /// Who is asked before a pod gets its network.
    pub gate: Option<&'a Path>,
    /// How large packets may be, where that is less than on the way out of the host.
    pub mtu: Option<u32>,
}

/// The network configuration list, pure.
pub fn render(network: &Network) -> String {
    let ranges: Vec<String> = network.ranges.iter().map(ToString::to_string).collect();
    let mut plugin = json!({
        "type": network.plugin,
        "dataDir": network.state,
        "ranges": ranges,
        "capabilities": { "portMappings": true, "bandwidth": true },
    });
    if let Some(gate) = network.gate {
        plugin["gate"] = json!(gate);
    }
    if let Some(mtu) = network.mtu {
        plugin["mtu"] = mtu.into();
    }
    // The version that containerd 1.6 takes, and every runtime after it.
    let list = json!({ "cniVersion": "1.0.0", "name": NETWORK, "plugins": [plugin] });
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

/// Fills the folder of plugins: `names` lead to `program`, and every other plugin that one of `folders` has
/// leads there. Links that are right already stay.
pub fn link_plugins(folder: &Path, program: &Path, names: &[&str], folders: &[&str]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut wanted: Vec<(String, PathBuf)> =
        names.iter().map(|name| ((*name).to_owned(), program.to_owned())).collect();
    for theirs in folders {
        for entry in fs::read_dir(theirs).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if wanted.iter().all(|(n, _)| *n != name) {
                wanted.push((name, entry.path()));
            }
        }
    }
    for (name, target) in wanted {
        link(&folder.join(name), &target)?;
    }
    Ok(())
}

/// A link that a runtime may execute at any moment: it is replaced in one step.
fn link(path: &Path, target: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|old| old == target) {
        return Ok(());
    }
    let part = path.with_extension("part");
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(target, &part)?;
    fs::rename(part, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_names_ranges_and_gate() {
        let ranges = ["10.244.3.0/24", "fd00:3::/64"].map(|r| r.parse().expect("a network"));
        let network = Network {
            plugin: "p",
            ranges: &ranges,
            state: Path::new("/s"),
            gate: Some(Path::new("/run/g.sock")),
            mtu: Some(1450),
        };
        let list: serde_json::Value = serde_json::from_str(&render(&network)).expect("JSON");
        let plugin = &list["plugins"][0];
        assert_eq!(plugin["ranges"], json!(["10.244.3.0/24", "fd00:3::/64"]));
        assert_eq!((&plugin["gate"], &plugin["mtu"]), (&json!("/run/g.sock"), &json!(1450)));
        let without = render(&Network { gate: None, mtu: None, ..network });
        assert!(!without.contains("gate") && !without.contains("mtu"), "{without}");
    }

    #[test]
    fn plugins_of_the_distribution_stay_usable_and_never_hide_ours() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (theirs, bin) = (dir.path().join("theirs"), dir.path().join("bin"));
        fs::create_dir(&theirs).expect("made");
        for plugin in ["bridge", "loopback"] {
            fs::write(theirs.join(plugin), "").expect("a plugin");
        }
        let folders = ["/nonexistent", theirs.to_str().expect("UTF-8")];
        for program in ["/old", "/new", "/new"] {
            link_plugins(&bin, Path::new(program), &["ours", "loopback"], &folders).expect("linked");
        }
        let target = |name: &str| fs::read_link(bin.join(name)).expect("a link");
        assert_eq!([target("ours"), target("loopback")], [PathBuf::from("/new"), "/new".into()]);
        assert_eq!(target("bridge"), theirs.join("bridge"));
        assert_eq!(fs::read_dir(&bin).expect("read").count(), 3);
    }
}
