//! What the `portmap` CNI plugin leaves behind: it makes chains of its own the first time a pod has a
//! `hostPort`, takes a pod's rules out again with the pod, and never the chains.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use net::nft;

/// The plugin's chains.
const CHAINS: [&str; 3] = ["CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ"];

/// One family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// As nft names it.
    pub name: &'static str,
    program: &'static str,
    /// Where the kernel names the tables of the older iptables.
    names: &'static str,
}

/// Both.
pub const FAMILIES: [Family; 2] = [
    Family { name: "ip", program: "iptables", names: "/proc/net/ip_tables_names" },
    Family { name: "ip6", program: "ip6tables", names: "/proc/net/ip6_tables_names" },
];

impl Family {
    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        FAMILIES.into_iter().find(|family| family.name == name)
    }

    /// Whether nftables has the table that the plugin writes to.
    fn is_in(self, tables: &str) -> bool {
        let wanted = format!("table {} nat", self.name);
        tables.lines().any(|line| line.trim() == wanted)
    }

    /// The rules, as arguments of the program; none without a table, for asking would make one.
    fn rules(self, tables: &str) -> io::Result<String> {
        let is_older = || std::fs::read_to_string(Path::new(self.names)).is_ok_and(|t| t.lines().any(|l| l == "nat"));
        if !self.is_in(tables) && !is_older() {
            return Ok(String::new());
        }
        match Command::new(self.program).args(["-w", "5", "-t", "nat", "-S"]).output() {
            Ok(out) if out.status.success() => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
            Ok(out) => {
                let said = String::from_utf8_lossy(&out.stderr);
                // A table with what iptables cannot say is somebody's own, and iptables writes nothing to it.
                if said.contains("incompatible") {
                    Ok(String::new())
                } else {
                    Err(io::Error::other(said.trim().to_owned()))
                }
            }
            // Without it the plugin has made nothing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    /// Takes the chains away unless somebody's pod still uses them; with them the table, where that was made
    /// for them and nothing else is in it.
    pub fn remove(self, with_table: bool) -> io::Result<()> {
        let tables = tables()?;
        if let Some(changes) = plan(&self.rules(&tables)?) {
            self.restore(&changes)?;
        }
        if with_table && self.is_in(&tables) && is_empty(&self.rules(&tables)?) {
            let table = format!("table {} nat\n", self.name);
            nft::run(&format!("{table}delete {table}"), nft::Mode::Apply).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn restore(self, changes: &str) -> io::Result<()> {
        let mut child = Command::new(format!("{}-restore", self.program))
            .args(["-w", "5", "--noflush"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(changes.as_bytes())?;
        }
        let out = child.wait_with_output()?;
        let said = || String::from_utf8_lossy(&out.stderr).trim().to_owned();
        if out.status.success() { Ok(()) } else { Err(io::Error::other(said())) }
    }
}

/// The families in which the plugin has made nothing yet, and whether its table is there all the same.
pub fn untouched() -> io::Result<Vec<(Family, bool)>> {
    let tables = tables()?;
    let mut found = Vec::new();
    for family in FAMILIES {
        let rules = match family.rules(&tables) {
            Ok(rules) => rules,
            Err(error) => {
                // Nothing is recorded, so nothing is taken away later.
                tracing::warn!(family = family.name, %error, "the rules of host ports cannot be read");
                continue;
            }
        };
        if !CHAINS.iter().any(|chain| has_chain(&rules, chain)) {
            found.push((family, family.is_in(&tables)));
        }
    }
    Ok(found)
}

/// The tables that nftables has; without it there are none.
fn tables() -> io::Result<String> {
    match Command::new("nft").args(["list", "tables"]).output() {
        Ok(out) => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

fn has_chain(rules: &str, chain: &str) -> bool {
    rules.lines().any(|line| line.strip_prefix("-N ") == Some(chain))
}

/// Nothing but the kernel's own hooks.
fn is_empty(rules: &str) -> bool {
    rules.lines().all(|line| line.starts_with("-P "))
}

/// What removes the plugin's chains and what leads to them, as input of `iptables-restore`; `None` where there
/// is nothing to remove, or a pod still has a port. Pure.
fn plan(rules: &str) -> Option<String> {
    let there: Vec<&str> = CHAINS.into_iter().filter(|chain| has_chain(rules, chain)).collect();
    let is_in_use = rules.lines().any(|line| line.starts_with("-A CNI-HOSTPORT-DNAT "));
    if there.is_empty() || is_in_use {
        return None;
    }
    let leads_there = |line: &&str| {
        let mut words = line.split_whitespace();
        let own = words.nth(1).is_some_and(|chain| there.contains(&chain));
        !own && words.skip_while(|word| *word != "-j").nth(1).is_some_and(|chain| there.contains(&chain))
    };
    let mut out = String::from("*nat\n");
    for line in rules.lines().filter(|line| line.starts_with("-A ")).filter(leads_there) {
        out += &line.replacen("-A", "-D", 1);
        out.push('\n');
    }
    for verb in ["-F", "-X"] {
        there.iter().for_each(|chain| out += &format!("{verb} {chain}\n"));
    }
    Some(out + "COMMIT\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: &str = "-P PREROUTING ACCEPT\n-P INPUT ACCEPT\n-P OUTPUT ACCEPT\n-P POSTROUTING ACCEPT\n\
        -N CNI-HOSTPORT-DNAT\n-N CNI-HOSTPORT-MASQ\n-N CNI-HOSTPORT-SETMARK\n-N DOCKER\n\
        -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n-A PREROUTING -j DOCKER\n\
        -A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
        -A POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ\n\
        -A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE\n\
        -A CNI-HOSTPORT-SETMARK -m comment --comment \"CNI portfwd masquerade mark\" -j MARK --set-xmark 0x2000/0x2000\n";

    #[test]
    fn what_the_plugin_leaves_goes_and_nothing_else() {
        let want = "*nat\n-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
            -D OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
            -D POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ\n\
            -F CNI-HOSTPORT-DNAT\n-F CNI-HOSTPORT-SETMARK\n-F CNI-HOSTPORT-MASQ\n\
            -X CNI-HOSTPORT-DNAT\n-X CNI-HOSTPORT-SETMARK\n-X CNI-HOSTPORT-MASQ\nCOMMIT\n";
        assert_eq!(plan(LEFT).as_deref(), Some(want));
        assert_eq!(plan("-P PREROUTING ACCEPT\n-N DOCKER\n-A PREROUTING -j DOCKER\n"), None);
        assert_eq!(plan(""), None);
        let in_use = format!("{LEFT}-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 80 -j CNI-DN-0a1b\n");
        assert_eq!(plan(&in_use), None, "somebody's pod has a port");
        assert!(!is_empty(LEFT) && is_empty("-P PREROUTING ACCEPT\n") && is_empty(""));
    }
}
