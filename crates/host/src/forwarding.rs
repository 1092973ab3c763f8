//! Who drops what this machine passes on for others: a firewall whose default is to drop packets between pods
//! and nodes, unless it says that pods' may pass.

use std::process::Command;

use ipnet::IpNet;
use serde_json::Value;

/// A chain that drops what it does not name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropping {
    /// The program whose chain it is, and how it names it.
    pub chain: String,
    /// Lets pods' packets pass.
    pub mend: String,
    /// No rule of it lets anything new pass, by whatever way: pods' packets do not.
    pub is_certain: bool,
}

/// The chains of this machine that drop packets of pods in `ranges`. What cannot be asked drops nothing that
/// is known.
pub fn look(ranges: &[IpNet]) -> Vec<Dropping> {
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().ok().filter(|o| o.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let mut out = Vec::new();
    for (family, table, chain) in chains(&run("nft", &["-j", "list", "chains"]).unwrap_or_default()) {
        let text = run("nft", &["list", "chain", &family, &table, &chain]).unwrap_or_default();
        for range in ranges.iter().filter(|r| concerns(&family, r) && !allows(&text, r)) {
            let word = if range.addr().is_ipv4() { "ip" } else { "ip6" };
            let rule = |side: &str| format!("nft insert rule {family} {table} {chain} {word} {side} {range} accept");
            out.push(Dropping {
                chain: format!("the chain {chain} of the nftables table {family} {table}"),
                mend: format!("{}; {}", rule("saddr"), rule("daddr")),
                is_certain: is_certain(&text),
            });
        }
    }
    for (program, names, v4) in [
        ("iptables-legacy", "/proc/net/ip_tables_names", true),
        ("ip6tables-legacy", "/proc/net/ip6_tables_names", false),
    ] {
        // To ask for a table that is not there would make it.
        let is_there = std::fs::read_to_string(names).is_ok_and(|t| t.lines().any(|l| l == "filter"));
        let text =
            if is_there { run(program, &["-w", "5", "-S", "FORWARD"]).unwrap_or_default() } else { String::new() };
        if !text.lines().any(|l| l == "-P FORWARD DROP") {
            continue;
        }
        for range in ranges.iter().filter(|r| r.addr().is_ipv4() == v4 && !allows(&text.to_lowercase(), r)) {
            let rule = |side: &str| format!("{program} -I FORWARD {side} {range} -j ACCEPT");
            out.push(Dropping {
                chain: format!("the chain FORWARD of {program}"),
                mend: format!("{}; {}", rule("-s"), rule("-d")),
                is_certain: is_certain(&text.to_lowercase()),
            });
        }
    }
    out
}

fn concerns(family: &str, range: &IpNet) -> bool {
    match family {
        "ip" => range.addr().is_ipv4(),
        "ip6" => range.addr().is_ipv6(),
        // What a bridge passes from port to port is none of the pods': theirs is routed.
        "inet" => true,
        _ => false,
    }
}

/// Somebody has said that packets of the range may pass, both ways.
fn allows(text: &str, range: &IpNet) -> bool {
    let holds = |word: &str| word.parse::<IpNet>().is_ok_and(|net| net.contains(range));
    let says = |from: &[&str]| {
        text.lines().filter(|line| line.contains("accept")).any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.windows(2).any(|pair| from.contains(&pair[0]) && holds(pair[1]))
        })
    };
    says(&["saddr", "-s"]) && says(&["daddr", "-d"])
}

/// True where no rule leads elsewhere or lets anything pass but what is known already: whatever other rules say
/// (by link, by mark, in a set, in another chain) may be about pods, and only a packet would tell.
fn is_certain(text: &str) -> bool {
    let rules = text.lines().map(str::trim).filter(|line| !line.starts_with("-p ") && !line.contains("policy "));
    let may_pass = |line: &str| {
        let is_known = line.contains("established") && !line.contains("new");
        let leads = ["accept", "jump ", "goto ", "queue", "vmap", "-j ", "-g "];
        // A rule that only drops or counts lets nothing pass.
        let ends = ["-j drop", "-j reject", "-j log"].iter().any(|w| line.contains(w));
        !is_known && !ends && leads.iter().any(|w| line.contains(w))
    };
    !rules.into_iter().any(may_pass)
}

/// The chains in nft's list that are asked about what is passed on, and drop it unless they name it.
fn chains(json: &str) -> Vec<(String, String, String)> {
    let list: Value = serde_json::from_str(json).unwrap_or_default();
    let items = list["nftables"].as_array().cloned().unwrap_or_default();
    let chains = items.iter().map(|item| &item["chain"]);
    let dropping = chains.filter(|c| c["hook"] == "forward" && c["policy"] == "drop" && c["type"] == "filter");
    dropping
        .filter_map(|c| {
            let text = |field: &str| c[field].as_str().map(str::to_owned);
            Some((text("family")?, text("table")?, text("name")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_drops_is_found_and_who_was_told_is_not() {
        let json = r#"{"nftables": [{"metainfo": {}},
            {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "type": "filter", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "DOCKER"}},
            {"chain": {"family": "inet", "table": "f", "name": "in", "type": "filter", "hook": "input", "policy": "drop"}},
            {"chain": {"family": "inet", "table": "f", "name": "fwd", "type": "filter", "hook": "forward", "policy": "accept"}}]}"#;
        assert_eq!(chains(json), [("ip".into(), "filter".into(), "FORWARD".into())]);
        assert_eq!(chains("nonsense"), []);
        let range: IpNet = "10.244.0.0/16".parse().expect("a range");
        let mut text =
            "type filter hook forward priority filter; policy drop;\nip saddr 10.244.0.0/16 accept\n".to_owned();
        assert!(!allows(&text, &range), "one way only");
        text += "ip daddr 10.244.0.0/16 counter packets 0 bytes 0 accept\n";
        assert!(allows(&text, &range));
        assert!(allows(
            "-P FORWARD DROP\n-a forward -s 10.244.0.0/16 -j accept\n-a forward -d 10.244.0.0/16 -j accept",
            &range
        ));
        assert!(allows("ip saddr 10.0.0.0/8 accept\nip daddr 10.0.0.0/8 accept", &range), "a larger range");
        assert!(!allows("ip saddr 10.244.0.0/24 accept\nip daddr 10.244.0.0/24 accept", &range), "a part of it");
        assert!(concerns("inet", &range) && concerns("ip", &range) && !concerns("ip6", &range));
        assert!(!concerns("bridge", &range) && !concerns("netdev", &range));
    }

    #[test]
    fn only_what_lets_nothing_pass_is_certain() {
        let chain = |rule: &str| {
            format!(
                "table inet f {{\n\tchain fwd {{\n\t\ttype filter hook forward priority filter; policy drop;\n\t\t{rule}\n\t}}\n}}\n"
            )
        };
        for (rule, certain) in [
            ("", true),
            ("ct state established,related accept", true),
            ("counter packets 0 bytes 0 drop", true),
            ("jump DOCKER-USER", false),
            ("iifname \"veth*\" accept", false),
            ("ip saddr @inside accept", false),
            ("ct state vmap { established : accept, new : jump more }", false),
        ] {
            assert_eq!(is_certain(&chain(rule)), certain, "{rule}");
        }
        for (rule, certain) in [
            ("", true),
            ("-a forward -m conntrack --ctstate related,established -j accept", true),
            ("-a forward -j log", true),
            ("-a forward -j ufw-before-forward", false),
            ("-a forward -i docker0 -j accept", false),
        ] {
            assert_eq!(is_certain(&format!("-p forward drop\n{rule}\n")), certain, "{rule}");
        }
    }
}
