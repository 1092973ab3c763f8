//! What the DNS is told at its start.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;
use stdx::metrics::Registry;

use crate::upstream::{Bounds, parse_server};
use crate::wire::Name;

/// The port that is tried first: 53 belongs to the host's own resolver on many machines. The Service has 53.
pub const PORT: u16 = 10053;
/// The port of metrics that is tried first, CoreDNS'.
pub const METRICS_PORT: u16 = 9153;

/// What the DNS is told at its start.
pub struct Options {
    /// The Node it serves on, to which its slice belongs.
    pub node_name: String,
    /// Where it listens: an address of this node that pods reach.
    pub address: IpAddr,
    /// Tried first for UDP and TCP; where it is taken, any other is.
    pub port: u16,
    /// Tried first for health and metrics; where it is taken, any other is. `None`: they are not served.
    pub metrics_port: Option<u16>,
    /// The address that the Service `kube-dns` is to have. `None`: no Service and no slice are written.
    pub cluster_ip: Option<IpAddr>,
    /// The domain of the cluster's names.
    pub domain: Name,
    /// Seconds for which the cluster's names may be kept.
    pub ttl: u32,
    /// Where addresses of pods and Services come from.
    pub pod_ranges: Vec<IpNet>,
    pub service_ranges: Vec<IpNet>,
    /// The servers for other names; where there are none, those of `resolv_conf`.
    pub upstreams: Vec<SocketAddr>,
    /// Domains with servers of their own.
    pub stubs: BTreeMap<String, Vec<SocketAddr>>,
    pub resolv_conf: PathBuf,
    pub cache: Bounds,
    /// Where it counts what it does.
    pub registry: Registry,
}

/// Seconds for which the cluster's names may be kept: an answer costs microseconds, and a pod that moved is found
/// so much sooner than with the 30 of kubeadm's Corefile.
pub const TTL: u32 = 5;

/// A file that says where other names are asked for. The two fields for servers are those of kube-dns' ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct FileConfig {
    /// `{"acme.local": ["1.2.3.4"]}`
    pub stub_domains: BTreeMap<String, Vec<String>>,
    pub upstream_nameservers: Vec<String>,
    pub ttl: Option<u32>,
    /// Seconds for which others' answers are kept at most.
    pub cache: Option<u32>,
}

/// Reads a file's text, YAML or JSON.
///
/// # Errors
/// Says what is wrong with it.
pub fn parse_config(text: &[u8]) -> Result<FileConfig, String> {
    let tree = machinery::yaml::read(text).map_err(|e| e.to_string())?;
    if tree.is_null() {
        return Ok(FileConfig::default());
    }
    serde_json::from_value(tree).map_err(|e| e.to_string())
}

/// The most of one list, of domains and servers, that is taken.
const MOST: usize = 64;

impl FileConfig {
    /// Puts what flags say before what the file says. A stub domain is written `domain=server`, once for each
    /// server.
    ///
    /// # Errors
    /// Says what is no server, domain or time.
    pub fn apply(&self, upstreams: &[String], stubs: &[String], options: &mut Options) -> Result<(), String> {
        let servers = |texts: &[String]| -> Result<Vec<SocketAddr>, String> {
            if texts.len() > MOST {
                return Err(format!("more than {MOST} servers"));
            }
            texts.iter().map(|text| parse_server(text)).collect()
        };
        let domain = |text: &str| match Name::parse(text) {
            Ok(name) if name.bytes().len() > 1 => Ok(name.to_string()),
            _ => Err(format!("{text:?} is no domain")),
        };
        options.upstreams = servers(if upstreams.is_empty() { &self.upstream_nameservers } else { upstreams })?;
        let mut all: BTreeMap<String, Vec<SocketAddr>> = BTreeMap::new();
        for (name, texts) in &self.stub_domains {
            all.insert(domain(name)?, servers(texts)?);
        }
        let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for stub in stubs {
            let (name, server) = stub.split_once('=').ok_or_else(|| format!("{stub:?} is not domain=server"))?;
            told.entry(domain(name)?).or_default().push(server.to_owned());
        }
        for (name, texts) in told {
            all.insert(name, servers(&texts)?);
        }
        if all.len() > MOST {
            return Err(format!("more than {MOST} stub domains"));
        }
        options.stubs = all;
        for (name, value) in [("ttl", self.ttl), ("cache", self.cache)] {
            if value.is_some_and(|seconds| seconds > 3600) {
                return Err(format!("{name}: more than an hour"));
            }
        }
        options.ttl = self.ttl.unwrap_or(options.ttl);
        let most = self.cache.unwrap_or(options.cache.positive);
        (options.cache.positive, options.cache.negative) = (most, most);
        Ok(())
    }
}

impl Options {
    /// Usual ones, for a cluster with these ranges.
    pub fn new(node_name: &str, address: IpAddr, domain: Name) -> Self {
        Self {
            node_name: node_name.to_owned(),
            address,
            port: PORT,
            metrics_port: Some(METRICS_PORT),
            cluster_ip: None,
            domain,
            ttl: TTL,
            pod_ranges: Vec::new(),
            service_ranges: Vec::new(),
            upstreams: Vec::new(),
            stubs: BTreeMap::new(),
            resolv_conf: "/etc/resolv.conf".into(),
            cache: Bounds::default(),
            registry: Registry::default(),
        }
    }
}

/// The address of the cluster's DNS: the tenth of the Service range, as kubeadm chooses it.
pub fn cluster_ip(range: IpNet) -> Option<IpAddr> {
    let address = match range.network() {
        IpAddr::V4(first) => IpAddr::V4(u32::from(first).checked_add(10)?.into()),
        IpAddr::V6(first) => IpAddr::V6(u128::from(first).checked_add(10)?.into()),
    };
    range.contains(&address).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenth_address() {
        for (range, want) in [
            ("10.96.0.0/12", Some("10.96.0.10")),
            ("10.96.0.5/24", Some("10.96.0.10")),
            ("fd00::/108", Some("fd00::a")),
            ("10.96.0.0/29", None),
        ] {
            let got = cluster_ip(range.parse().expect("a range")).map(|ip| ip.to_string());
            assert_eq!(got.as_deref(), want, "{range}");
        }
    }

    #[test]
    fn files_and_flags() {
        let told = |text: &str, upstreams: &[&str], stubs: &[&str]| -> Result<String, String> {
            let domain = Name::parse("cluster.local").expect("a name");
            let mut options = Options::new("a", [127, 0, 0, 1].into(), domain);
            let texts = |list: &[&str]| list.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
            parse_config(text.as_bytes())?.apply(&texts(upstreams), &texts(stubs), &mut options)?;
            let stubs: Vec<String> = options.stubs.iter().map(|(name, to)| format!("{name}={to:?}")).collect();
            let Options { upstreams, ttl, cache, .. } = options;
            Ok(format!("{upstreams:?} {} {ttl} {}", stubs.join(" "), cache.negative))
        };
        let file =
            "stubDomains:\n  acme.local: [1.2.3.4, '1.2.3.5:5353']\nupstreamNameservers: [8.8.8.8]\nttl: 7\ncache: 9";
        for (text, upstreams, stubs, want) in [
            ("", &[][..], &[][..], Ok("[]  5 30")),
            (file, &[], &[], Ok("[8.8.8.8:53] acme.local.=[1.2.3.4:53, 1.2.3.5:5353] 7 9")),
            (
                file,
                &["fd00::1"],
                &["ACME.local=9.9.9.9", "b.=9.9.9.9:54", "b=9.9.9.8"],
                Ok("[[fd00::1]:53] acme.local.=[9.9.9.9:53] b.=[9.9.9.9:54, 9.9.9.8:53] 7 9"),
            ),
            ("upstreamNameservers: [a]", &[], &[], Err("\"a\" is no address, and no address and port")),
            ("stubDomains: {'a..b': []}", &[], &[], Err("\"a..b\" is no domain")),
            ("", &[], &["a"], Err("\"a\" is not domain=server")),
            ("", &[], &[".=1.1.1.1"], Err("\".\" is no domain")),
            ("ttl: 99999", &[], &[], Err("ttl: more than an hour")),
        ] {
            assert_eq!(told(text, upstreams, stubs), want.map(str::to_owned).map_err(str::to_owned), "{text}");
        }
        assert!(parse_config(b"stubDomain: {}").is_err_and(|error| error.contains("stubDomain")));
    }
}
