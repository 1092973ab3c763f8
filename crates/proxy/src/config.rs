//! A file of kind `KubeProxyConfiguration`: what the proxy goes by of it. A name that nobody knows is
//! refused; what is upstream's and changes nothing here is told.

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::options::{DetectLocal, NodePorts, interface};

/// What a file can say; `None` (and an empty text or list) where it does not.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct FileConfig {
    api_version: String,
    kind: String,
    pub client_connection: Option<ClientConnection>,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: Option<String>,
    pub detect_local_mode: Option<String>,
    pub detect_local: Option<DetectLocalFields>,
    pub healthz_bind_address: Option<String>,
    pub hostname_override: Option<String>,
    pub iptables: Option<Plane>,
    pub metrics_bind_address: Option<String>,
    pub mode: Option<String>,
    pub nftables: Option<Plane>,
    pub node_port_addresses: Option<Vec<String>>,
    pub enable_profiling: bool,
    pub logging: Logging,
    // Known, and without effect here.
    bind_address: Value,
    bind_address_hard_fail: Value,
    config_sync_period: Value,
    conntrack: Value,
    feature_gates: Value,
    ipvs: Value,
    linux: Value,
    min_sync_period: Value,
    oom_score_adj: Value,
    port_range: Value,
    show_hidden_metrics_for_version: Value,
    sync_period: Value,
    udp_idle_timeout: Value,
    windows_run_as_service: Value,
    winkernel: Value,
}

/// What is logged, and how.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Logging {
    /// Empty for the usual one.
    pub format: String,
    pub verbosity: i32,
    pub vmodule: Option<Vec<Module>>,
    flush_frequency: Value,
    options: Value,
}

/// How much is logged of what is in files of that name.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Module {
    pub file_pattern: String,
    pub verbosity: i32,
}

/// How the API server is reached.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientConnection {
    pub kubeconfig: String,
    accept_content_types: Value,
    content_type: Value,
    qps: Value,
    burst: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct DetectLocalFields {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
    #[serde(rename = "clusterCIDRs")]
    pub cluster_cidrs: Option<Vec<String>>,
}

/// The settings of one mode.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Plane {
    pub masquerade_all: bool,
    pub masquerade_bit: Option<u8>,
    localhost_node_ports: Value,
    sync_period: Value,
    min_sync_period: Value,
}

/// Reads a file's text, YAML or JSON.
///
/// # Errors
/// Says what is wrong with it, by the field's name.
pub fn parse(text: &[u8]) -> Result<FileConfig, String> {
    let tree = machinery::yaml::read(text).map_err(|e| e.to_string())?;
    let file: FileConfig = serde_json::from_value(tree).map_err(|e| e.to_string())?;
    let (version, kind) = ("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration");
    if (file.api_version.as_str(), file.kind.as_str()) != (version, kind) {
        return Err(format!("it is of kind {} in {}, not {kind} in {version}", file.kind, file.api_version));
    }
    Ok(file)
}

fn is_said(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !matches!(text.as_str(), "" | "0" | "0s" | "0.0.0.0" | "::"),
        Value::Array(list) => list.iter().any(is_said),
        Value::Object(map) => map.values().any(is_said),
    }
}

impl FileConfig {
    /// The names of what is said and changes nothing here.
    pub fn idle(&self) -> Vec<&'static str> {
        let all = [
            ("bindAddress", &self.bind_address),
            ("bindAddressHardFail", &self.bind_address_hard_fail),
            ("configSyncPeriod", &self.config_sync_period),
            ("conntrack", &self.conntrack),
            ("featureGates", &self.feature_gates),
            ("ipvs", &self.ipvs),
            ("linux", &self.linux),
            ("logging.flushFrequency", &self.logging.flush_frequency),
            ("logging.options", &self.logging.options),
            ("minSyncPeriod", &self.min_sync_period),
            ("oomScoreAdj", &self.oom_score_adj),
            ("portRange", &self.port_range),
            ("showHiddenMetricsForVersion", &self.show_hidden_metrics_for_version),
            ("syncPeriod", &self.sync_period),
            ("udpIdleTimeout", &self.udp_idle_timeout),
            ("windowsRunAsService", &self.windows_run_as_service),
            ("winkernel", &self.winkernel),
        ];
        all.into_iter().filter(|(_, value)| is_said(value)).map(|(name, _)| name).collect()
    }

    /// How pods of this node are told from everybody else.
    ///
    /// # Errors
    /// Says which field is wrong.
    pub fn local(&self) -> Result<Option<DetectLocal>, String> {
        let fields = self.detect_local.clone().unwrap_or_default();
        let named = |name: &str, value: &str| interface(value).map_err(|why| format!("detectLocal.{name}: {why}"));
        match self.detect_local_mode.as_deref().unwrap_or_default() {
            "" => Ok(None),
            "ClusterCIDR" => Ok(Some(DetectLocal::ClusterCidr)),
            "NodeCIDR" => Ok(Some(DetectLocal::NodeCidr)),
            "BridgeInterface" => {
                named("bridgeInterface", &fields.bridge_interface).map(|n| Some(DetectLocal::Bridge(n)))
            }
            "InterfaceNamePrefix" => {
                named("interfaceNamePrefix", &fields.interface_name_prefix).map(|n| Some(DetectLocal::Interfaces(n)))
            }
            other => Err(format!("detectLocalMode: {other:?} is none of them")),
        }
    }

    /// Where pod addresses come from.
    ///
    /// # Errors
    /// Says which range is none.
    pub fn cluster_cidrs(&self) -> Result<Vec<IpNet>, String> {
        let listed = self.detect_local.as_ref().and_then(|d| d.cluster_cidrs.clone()).unwrap_or_default();
        let texts = self.cluster_cidr.iter().flat_map(|t| t.split(',')).map(str::trim).map(str::to_owned);
        let all = texts.chain(listed).filter(|t| !t.is_empty());
        all.map(|t| t.parse().map_err(|_| format!("clusterCIDR: {t:?} is no range of addresses"))).collect()
    }

    /// At which of the node's addresses node ports answer.
    ///
    /// # Errors
    /// Says which range is none.
    pub fn node_ports(&self) -> Result<Option<NodePorts>, String> {
        let listed = self.node_port_addresses.clone().unwrap_or_default();
        if listed.is_empty() { Ok(None) } else { NodePorts::parse(&listed).map(Some) }
    }
}

impl NodePorts {
    /// Ranges, or `primary` alone.
    ///
    /// # Errors
    /// Says which range is none.
    pub fn parse(texts: &[String]) -> Result<Self, String> {
        match texts {
            [one] if one == "primary" => Ok(Self::Primary),
            ranges => {
                let parse = |t: &String| {
                    t.trim().parse().map_err(|_| format!("nodePortAddresses: {t:?} is no range of addresses"))
                };
                Ok(Self::Ranges(ranges.iter().map(parse).collect::<Result<_, String>>()?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<FileConfig, String> {
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        parse(format!("{head}{body}").as_bytes())
    }

    /// As kubeadm writes it.
    const USUAL: &str = "bindAddress: 0.0.0.0\nbindAddressHardFail: false\n\
        clientConnection:\n  acceptContentTypes: \"\"\n  burst: 0\n  contentType: \"\"\n  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf\n  qps: 0\n\
        clusterCIDR: 10.244.0.0/16,fd00::/56\nconfigSyncPeriod: 0s\n\
        conntrack:\n  maxPerCore: null\n  min: null\n  tcpBeLiberal: false\n  udpTimeout: 0s\n\
        detectLocal:\n  bridgeInterface: \"\"\n  interfaceNamePrefix: cali\ndetectLocalMode: InterfaceNamePrefix\n\
        enableProfiling: false\nhealthzBindAddress: \"\"\nhostnameOverride: \"\"\n\
        iptables:\n  localhostNodePorts: null\n  masqueradeAll: true\n  masqueradeBit: 13\n  minSyncPeriod: 0s\n  syncPeriod: 0s\n\
        ipvs:\n  excludeCIDRs: null\n  strictARP: false\nlogging:\n  flushFrequency: 0\n  options:\n    json:\n      infoBufferSize: \"0\"\n  verbosity: 0\n\
        metricsBindAddress: \"\"\nmode: nftables\nnftables:\n  masqueradeAll: false\n  masqueradeBit: null\n\
        nodePortAddresses: null\noomScoreAdj: null\nportRange: \"\"\nshowHiddenMetricsForVersion: \"\"\nwinkernel:\n  sourceVip: \"\"\n";

    #[test]
    fn what_kubeadm_writes_is_read() {
        let file = read(USUAL).expect("read");
        assert_eq!(file.cluster_cidrs().map(|c| c.len()), Ok(2));
        assert_eq!(file.local(), Ok(Some(DetectLocal::Interfaces("cali".into()))));
        assert_eq!(file.node_ports(), Ok(None));
        let plane = file.iptables.clone().expect("there");
        assert_eq!((plane.masquerade_all, plane.masquerade_bit), (true, Some(13)));
        assert_eq!(
            file.client_connection.as_ref().map(|c| c.kubeconfig.as_str()),
            Some("/var/lib/kube-proxy/kubeconfig.conf")
        );
        assert_eq!(file.idle(), [""; 0]);
        assert_eq!((file.enable_profiling, file.logging.verbosity), (false, 0));
        let file = read(
            "enableProfiling: true\nlogging:\n  format: json\n  verbosity: 4\n  vmodule:\n  - filePattern: sync\n    verbosity: 6\n",
        );
        let file = file.expect("read");
        let module = Module { file_pattern: "sync".into(), verbosity: 6 };
        assert_eq!((file.logging.format.as_str(), file.logging.verbosity), ("json", 4));
        assert_eq!((file.enable_profiling, file.logging.vmodule), (true, Some(vec![module])));
        assert_eq!(read("oomScoreAdj: -999\n").expect("read").idle(), ["oomScoreAdj"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, part) in [
            ("colour: red\n", "colour"),
            ("iptables:\n  masqueradeEverything: true\n", "masqueradeEverything"),
            ("kind2: x\n", "kind2"),
        ] {
            let why = read(body).expect_err("refused");
            assert!(why.contains(part), "{why}");
        }
        assert!(parse(b"kind: KubeletConfiguration\napiVersion: v1\n").is_err());
        assert!(read("clusterCIDR: nonsense\n").and_then(|f| f.cluster_cidrs()).is_err());
        assert!(read("detectLocalMode: Guess\n").and_then(|f| f.local()).is_err());
        assert!(read("detectLocalMode: BridgeInterface\n").and_then(|f| f.local()).is_err());
        assert!(read("nodePortAddresses: [\"10.0.0.0/8\", x]\n").and_then(|f| f.node_ports()).is_err());
    }
}
