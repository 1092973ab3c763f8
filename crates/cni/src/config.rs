//! What comes in: the network's configuration as JSON, read strictly where it matters and bounded.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{CONFIGURATION, DECODING, Error, INCOMPATIBLE_VERSION};

/// The versions of the specification that are spoken, oldest first.
pub const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// The newest of them.
pub const NEWEST: &str = "1.1.0";
/// How much is read of it.
pub const LIMIT: u64 = 1 << 20;
/// How many ranges and ports one pod may have.
const MOST: usize = 4096;

/// A version of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(&'static str);

impl Version {
    /// One of [`VERSIONS`].
    ///
    /// # Errors
    /// When it is none of them.
    pub fn parse(text: &str) -> Result<Self, Error> {
        VERSIONS.into_iter().find(|v| *v == text).map(Self).ok_or_else(|| Error {
            code: INCOMPATIBLE_VERSION,
            message: format!("CNI version {text:?} is not supported"),
            details: format!("supported: {}", VERSIONS.join(", ")),
        })
    }

    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// Results name the family of each address.
    pub fn names_families(self) -> bool {
        self.0 < "1.0.0"
    }
}

/// A port of the host that leads to one of the pod's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortMapping {
    pub host_port: u16,
    pub container_port: u16,
    pub protocol: String,
    /// The address of the host; of every one where it is empty or unspecified.
    #[serde(rename = "hostIP", default, skip_serializing_if = "String::is_empty")]
    pub host_ip: String,
}

impl PortMapping {
    /// The one address of the host it is at; `None` where it is at every one.
    pub fn only_at(&self) -> Option<IpAddr> {
        self.host_ip.parse::<IpAddr>().ok().filter(|ip| !ip.is_unspecified())
    }

    /// Whether it is reached at addresses of that family.
    pub fn is_of(&self, v4: bool) -> bool {
        self.host_ip.parse::<IpAddr>().map_or(true, |ip| ip.is_ipv4() == v4)
    }
}

/// How fast the pod may receive (`ingress`) and send, in bits a second; bursts in bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bandwidth {
    #[serde(alias = "IngressRate")]
    pub ingress_rate: u64,
    #[serde(alias = "IngressBurst")]
    pub ingress_burst: u64,
    #[serde(alias = "EgressRate")]
    pub egress_rate: u64,
    #[serde(alias = "EgressBurst")]
    pub egress_burst: u64,
}

/// An attachment the runtime knows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Attachment {
    #[serde(rename = "containerID")]
    pub container_id: String,
    pub ifname: String,
}

/// The configuration of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub version: Version,
    /// The network's name.
    pub name: String,
    /// Where records are kept.
    pub data_dir: PathBuf,
    /// Where addresses come from: at most one range of each family.
    pub ranges: Vec<IpNet>,
    /// How large packets may be; as on the way out of the host unless set.
    pub mtu: Option<u32>,
    /// Who is asked before a pod gets its network.
    pub gate: Option<PathBuf>,
    /// Wrong ones are refused by an ADD only: they are nothing to a DEL.
    pub ports: Result<Vec<PortMapping>, Error>,
    pub bandwidth: Option<Bandwidth>,
    /// What ADD answered.
    pub previous: Option<Value>,
    /// Of GC: what is to stay; `None` where nobody says.
    pub valid: Option<Vec<Attachment>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(default)]
    cni_version: String,
    #[serde(default)]
    name: String,
    data_dir: Option<PathBuf>,
    #[serde(default)]
    ranges: Vec<String>,
    mtu: Option<u32>,
    gate: Option<PathBuf>,
    #[serde(default)]
    runtime_config: RuntimeConfig,
    prev_result: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments", default, deserialize_with = "said")]
    valid: Option<Vec<Attachment>>,
    // The specification before 1.1.0 was final wrote it so.
    #[serde(rename = "cni.dev/attachments", default, deserialize_with = "said")]
    attachments: Option<Vec<Attachment>>,
}

/// A list that is there: `null` is how some write an empty one.
fn said<'de, D: serde::Deserializer<'de>>(list: D) -> Result<Option<Vec<Attachment>>, D::Error> {
    Ok(Some(Option::deserialize(list)?.unwrap_or_default()))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    port_mappings: Option<Vec<RawPort>>,
    bandwidth: Option<Bandwidth>,
}

/// Plugins in Go read names whatever their case is, and containerd relies on it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct RawPort {
    #[serde(alias = "HostPort")]
    host_port: i64,
    #[serde(alias = "ContainerPort")]
    container_port: i64,
    #[serde(alias = "Protocol")]
    protocol: String,
    #[serde(rename = "hostIP", alias = "HostIP")]
    host_ip: String,
}

fn port(raw: RawPort) -> Result<Option<PortMapping>, Error> {
    // A port of the pod that is none of the host's.
    if raw.host_port == 0 {
        return Ok(None);
    }
    let number = |value: i64, what: &str| {
        u16::try_from(value)
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| Error::new(CONFIGURATION, format!("portMappings: {what} {value} is none of 1 to 65535")))
    };
    let protocol = match raw.protocol.to_ascii_lowercase().as_str() {
        "" | "tcp" => "tcp",
        "udp" => "udp",
        "sctp" => "sctp",
        other => return Err(Error::new(CONFIGURATION, format!("portMappings: protocol {other:?} is not known"))),
    };
    if !raw.host_ip.is_empty() && raw.host_ip.parse::<IpAddr>().is_err() {
        return Err(Error::new(CONFIGURATION, format!("portMappings: hostIP {:?} is no address", raw.host_ip)));
    }
    Ok(Some(PortMapping {
        host_port: number(raw.host_port, "hostPort")?,
        container_port: number(raw.container_port, "containerPort")?,
        protocol: protocol.to_owned(),
        host_ip: raw.host_ip,
    }))
}

/// The version a configuration names, whatever else is wrong with it: errors are told in it.
pub fn version_of(text: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(text).ok()?;
    value.get("cniVersion")?.as_str().map(str::to_owned)
}

/// Reads the version only: `loopback` and VERSION need no more.
///
/// # Errors
/// When it is no JSON, or names a version that is not spoken.
pub fn parse_version(text: &[u8]) -> Result<Version, Error> {
    let value: Value =
        serde_json::from_slice(text).map_err(|e| Error::new(DECODING, format!("the configuration is no JSON: {e}")))?;
    // A configuration without one is of the first version.
    Version::parse(value.get("cniVersion").and_then(Value::as_str).unwrap_or("0.1.0"))
}

/// Reads a configuration.
///
/// # Errors
/// Says what is wrong with it.
pub fn parse(text: &[u8]) -> Result<Config, Error> {
    let version = parse_version(text)?;
    let raw: Raw = serde_json::from_slice(text)
        .map_err(|e| Error::new(CONFIGURATION, format!("the configuration cannot be read: {e}")))?;
    let refused = |message: &str| Error::new(CONFIGURATION, message);
    let wrong = |message: &str| Err(refused(message));
    debug_assert_eq!(raw.cni_version, version.as_str());
    if raw.name.is_empty() || raw.name.len() > 200 || raw.name.contains(['/', '\0']) || raw.name.starts_with('.') {
        return wrong("name: it must name the network, without slashes");
    }
    let Some(data_dir) = raw.data_dir.filter(|d| d.is_absolute()) else {
        return wrong("dataDir: it must be an absolute path");
    };
    let ranges: Result<Vec<IpNet>, _> = raw.ranges.iter().take(MOST).map(|r| r.parse()).collect();
    let Ok(ranges) = ranges else { return wrong("ranges: each must be a network, such as 10.244.0.0/24") };
    let of = |v4: bool| ranges.iter().filter(|r| r.addr().is_ipv4() == v4).count();
    if ranges.is_empty() || of(true) > 1 || of(false) > 1 {
        return wrong("ranges: there must be one, or one of each family");
    }
    if raw.mtu.is_some_and(|mtu| !(576..=65535).contains(&mtu)) {
        return wrong("mtu: it must be 576 to 65535");
    }
    let asked = raw.runtime_config.port_mappings.unwrap_or_default();
    let ports = if asked.len() > MOST {
        Err(refused("portMappings: there are too many"))
    } else {
        asked.into_iter().map(port).filter_map(Result::transpose).collect()
    };
    Ok(Config {
        version,
        name: raw.name,
        data_dir,
        ranges: ranges.iter().map(IpNet::trunc).collect(),
        mtu: raw.mtu,
        gate: raw.gate,
        ports,
        bandwidth: raw.runtime_config.bandwidth.filter(|b| b.ingress_rate > 0 || b.egress_rate > 0),
        previous: raw.prev_result,
        valid: raw.valid.or(raw.attachments),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn good() -> Value {
        json!({
            "cniVersion": "1.1.0", "name": "pintle", "type": "pintle-cni", "dataDir": "/s",
            "ranges": ["10.244.3.7/24", "fd00::/64"], "gate": "/run/p.sock",
            "runtimeConfig": {
                "portMappings": [
                    {"hostPort": 8080, "containerPort": 80, "protocol": "TCP", "hostIP": ""},
                    {"hostPort": 0, "containerPort": 81, "protocol": "TCP"},
                ],
                "bandwidth": {"ingressRate": 1000, "ingressBurst": 10},
            },
        })
    }

    fn of(change: impl FnOnce(&mut Value)) -> Result<Config, u32> {
        let mut value = good();
        change(&mut value);
        let config = parse(value.to_string().as_bytes()).map_err(|e| e.code)?;
        config.ports.clone().map_err(|e| e.code)?;
        Ok(config)
    }

    #[test]
    fn a_configuration_is_read() {
        let config = of(|_| {}).expect("good");
        assert_eq!(config.ranges, ["10.244.3.0/24", "fd00::/64"].map(|r| r.parse::<IpNet>().expect("a range")));
        let ports = config.ports.expect("good");
        assert_eq!(ports.len(), 1, "a port that is none of the host's is left out");
        assert_eq!(ports[0].protocol, "tcp");
        // As containerd writes them.
        let capitals = json!([{"HostPort": 1, "ContainerPort": 2, "Protocol": "udp", "HostIP": "::"}]);
        let config = of(|v| v["runtimeConfig"]["portMappings"] = capitals).expect("good");
        let port = &config.ports.expect("good")[0];
        assert_eq!((port.host_port, port.container_port, port.host_ip.as_str()), (1, 2, "::"));
        assert_eq!(config.bandwidth.map(|b| b.ingress_rate), Some(1000));
    }

    #[test]
    fn a_list_that_is_absent_is_not_an_empty_one() {
        let one = json!([{"containerID": "c", "ifname": "eth0"}]);
        for (lists, want) in [
            (json!({}), None),
            (json!({"cni.dev/valid-attachments": null}), Some(0)),
            (json!({"cni.dev/valid-attachments": []}), Some(0)),
            (json!({"cni.dev/attachments": one}), Some(1)),
            (json!({"cni.dev/valid-attachments": one, "cni.dev/attachments": []}), Some(1)),
        ] {
            let add =
                |v: &mut Value| v.as_object_mut().expect("an object").extend(lists.as_object().expect("one").clone());
            assert_eq!(of(add).expect("good").valid.map(|list| list.len()), want, "{lists}");
        }
    }

    #[test]
    fn what_is_wrong_has_its_code() {
        for (field, value, code) in [
            ("cniVersion", json!("0.2.0"), INCOMPATIBLE_VERSION),
            ("cniVersion", json!("2.0.0"), INCOMPATIBLE_VERSION),
            ("cniVersion", Value::Null, INCOMPATIBLE_VERSION),
            ("name", json!("a/b"), CONFIGURATION),
            ("name", json!(".."), CONFIGURATION),
            ("dataDir", json!("relative"), CONFIGURATION),
            ("ranges", json!([]), CONFIGURATION),
            ("ranges", json!(["10.0.0.0/24", "10.0.1.0/24"]), CONFIGURATION),
            ("ranges", json!(["nonsense"]), CONFIGURATION),
            ("mtu", json!(68), CONFIGURATION),
            ("runtimeConfig", json!({"portMappings": [{"hostPort": 70000, "containerPort": 1}]}), CONFIGURATION),
            ("runtimeConfig", json!({"portMappings": [{"hostPort": 1, "containerPort": 0}]}), CONFIGURATION),
            (
                "runtimeConfig",
                json!({"portMappings": [{"hostPort": 1, "containerPort": 1, "protocol": "x\ny"}]}),
                CONFIGURATION,
            ),
            (
                "runtimeConfig",
                json!({"portMappings": [{"hostPort": 1, "containerPort": 1, "hostIP": "; flush"}]}),
                CONFIGURATION,
            ),
        ] {
            assert_eq!(of(|v| v[field] = value.clone()).expect_err("refused"), code, "{field} {value}");
        }
        assert_eq!(parse(b"{").expect_err("no JSON").code, DECODING);
    }

    proptest! {
        #[test]
        fn any_text_is_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (parse(&bytes), version_of(&bytes));
        }

        #[test]
        fn any_change_of_a_good_one_is_answered(at in 0_usize..600, with in any::<u8>()) {
            let mut text = good().to_string().into_bytes();
            let length = text.len();
            text[at % length] = with;
            let _ = parse(&text);
        }
    }
}
