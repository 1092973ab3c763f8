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

/// What names of tables of host ports begin with, and one that every cluster of a host shared once.
pub const HOST_PORTS: &str = "pintle-hostports";

/// The configuration's name in the runtime's folder.
pub const CONFIGURATION: &str = "10-pintle.conflist";

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

/// True of a configuration that was written for this very network and whose ranges are of the cluster's: what
/// the Node said since (its ranges, how large packets may be) is better known than what `network` says.
pub fn is_kept(old: &str, network: &Network, cluster: &[IpNet]) -> bool {
    let list: serde_json::Value = serde_json::from_str(old).unwrap_or_default();
    let plugin = &list["plugins"][0];
    let ranges = plugin["ranges"].as_array().cloned().unwrap_or_default();
    let is_in = |text: &serde_json::Value| {
        let range = text.as_str().and_then(|text| text.parse::<IpNet>().ok());
        range.is_some_and(|range| cluster.iter().any(|c| c.contains(&range)))
    };
    list["name"] == NETWORK
        && plugin["type"] == network.plugin
        && plugin["dataDir"] == json!(network.state)
        && plugin["gate"] == json!(network.gate)
        && ranges.iter().any(is_in)
}

/// True while the runtime takes our configuration: it takes the first by name, and users may put their own before.
pub fn is_used(folder: &Path) -> bool {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let is_configuration = |name: &std::ffi::OsString| {
        let kind = Path::new(name).extension().and_then(|e| e.to_str());
        matches!(kind, Some("conf" | "conflist" | "json"))
    };
    names.filter(is_configuration).min().is_none_or(|first| first == CONFIGURATION)
}

/// Writes the configuration in place. containerd watches for writes and ignores a file that is
/// renamed into the folder, so this is the one file that is not replaced atomically; a torn one is
/// written again at the next start.
pub fn write(folder: &Path, text: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let path = folder.join(CONFIGURATION);
    if fs::read_to_string(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

/// Fills our own folder of plugins: `names` lead to `program`, and every other plugin that one of `folders` has
/// leads there. Links that are right already stay, and what is no link is somebody's: it stays, too.
pub fn link_plugins(folder: &Path, program: &Path, names: &[&str], folders: &[&str]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut wanted: Vec<(String, PathBuf)> =
        names.iter().map(|name| ((*name).to_owned(), program.to_owned())).collect();
    let own = fs::canonicalize(folder)?;
    for theirs in folders {
        // Links to themselves would be all that is left of it.
        if fs::canonicalize(theirs).is_ok_and(|theirs| theirs == own) {
            continue;
        }
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

/// What is to be linked to `program` in a folder of plugins that is somebody else's: the plugin named `own`, unless
/// a file of that name is there, and those of `others` of which there is none, not even a link.
pub fn foreign_links(folder: &Path, own: &str, others: &[&str]) -> Vec<PathBuf> {
    let is_file = |path: &Path| path.symlink_metadata().is_ok_and(|found| !found.is_symlink());
    let mut out: Vec<PathBuf> = others
        .iter()
        .filter(|name| **name != own)
        .map(|name| folder.join(name))
        .filter(|path| path.symlink_metadata().is_err())
        .collect();
    out.extend(Some(folder.join(own)).filter(|path| !is_file(path)));
    out
}

/// A link that a runtime may execute at any moment: it is replaced in one step. What is no link stays.
pub fn link(path: &Path, target: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|old| old == target) {
        return Ok(());
    }
    if path.symlink_metadata().is_ok_and(|found| !found.is_symlink()) {
        return Ok(());
    }
    let part = path.with_extension("pintle-part");
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
    fn a_configuration_that_comes_before_ours_is_the_users() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let add = |name: &str| fs::write(dir.path().join(name), "{}").expect("written");
        assert!(is_used(&dir.path().join("none")) && is_used(dir.path()));
        for other in [CONFIGURATION, "87-podman.conflist", "05-README", ".swp"] {
            add(other);
            assert!(is_used(dir.path()), "{other}");
        }
        add("05-mine.conf");
        assert!(!is_used(dir.path()));
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

    #[test]
    fn plugins_of_the_user_are_never_replaced() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (theirs, by_link) = (dir.path().join("theirs"), dir.path().join("link"));
        fs::create_dir(&theirs).and_then(|()| symlink(&theirs, &by_link)).expect("made");
        for plugin in ["bridge", "loopback"] {
            fs::write(theirs.join(plugin), "a program").expect("a plugin");
        }
        // The folder that is filled is the distribution's own, also by another name.
        for folder in [&theirs, &by_link] {
            let folders = [theirs.to_str().expect("UTF-8")];
            link_plugins(folder, Path::new("/new"), &["ours", "loopback"], &folders).expect("linked");
        }
        for plugin in ["bridge", "loopback"] {
            assert_eq!(fs::read_to_string(theirs.join(plugin)).expect("a file"), "a program", "{plugin}");
        }
        assert_eq!(fs::read_link(theirs.join("ours")).expect("a link"), PathBuf::from("/new"));
    }

    #[test]
    fn in_folders_of_others_only_what_is_not_there_is_linked() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let names = |folder: &Path| {
            let links = foreign_links(folder, "ours", &["ours", "loopback"]);
            let name = |p: &PathBuf| p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            links.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names(dir.path()), ["loopback", "ours"]);
        symlink("/somewhere", dir.path().join("loopback")).expect("linked");
        symlink("/an/older/one", dir.path().join("ours")).expect("linked");
        assert_eq!(names(dir.path()), ["ours"], "their link stays, ours is led on");
        fs::remove_file(dir.path().join("ours")).and_then(|()| fs::write(dir.path().join("ours"), "")).expect("a file");
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn a_configuration_that_the_node_said_is_kept() {
        let net = |text: &str| text.parse::<IpNet>().expect("a network");
        let (first, said) = ([net("10.244.0.0/24")], [net("10.244.7.0/24"), net("fd00:7::/64")]);
        let first = Network {
            plugin: "p",
            ranges: &first,
            state: Path::new("/s"),
            gate: Some(Path::new("/run/g.sock")),
            mtu: None,
        };
        let old = render(&Network { ranges: &said, mtu: Some(1450), ..first.clone() });
        let cluster = [net("10.244.0.0/16")];
        assert!(is_kept(&old, &first, &cluster));
        for (text, network, cluster, why) in [
            (old.as_str(), first.clone(), net("10.99.0.0/16"), "another cluster's"),
            (&old, Network { state: Path::new("/t"), ..first.clone() }, cluster[0], "records elsewhere"),
            (&old, Network { gate: None, ..first.clone() }, cluster[0], "nobody is asked any more"),
            (&old, Network { plugin: "q", ..first.clone() }, cluster[0], "another plugin"),
            (&old[..old.len() / 2], first.clone(), cluster[0], "torn"),
        ] {
            assert!(!is_kept(text, &network, &[cluster]), "{why}");
        }
    }
}
