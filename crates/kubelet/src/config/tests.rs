//! What a KubeletConfiguration may say, and what is refused.

use super::*;
use serde_json::Value;
use std::collections::BTreeMap;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn of(rest: &str) -> Result<FileConfig, String> {
    parse(format!("{HEAD}{rest}").as_bytes())
}

#[test]
fn everything_a_file_can_say() {
    let text = "
address: 127.0.0.1
allowedUnsafeSysctls: ['net.core.*']
authentication: {anonymous: {enabled: false}, webhook: {enabled: true, cacheTTL: 2m}, x509: {clientCAFile: /ca}}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 5m0s, cacheUnauthorizedTTL: 0s}}
cgroupDriver: systemd
cgroupRoot: /n1
cgroupsPerQOS: true
clusterDNS: [10.96.0.10]
clusterDomain: example.org
containerLogMaxFiles: 3
containerLogMaxSize: 1Mi
containerRuntimeEndpoint: unix:///run/other.sock
crashLoopBackOff: {maxContainerRestartPeriod: 1m30s}
enableSystemLogHandler: false
evictionHard: {memory.available: 200Mi, pid.available: 10%}
evictionMaxPodGracePeriod: 60
evictionMinimumReclaim: {nodefs.available: 1Gi}
enableDebugFlagsHandler: false
enableProfilingHandler: true
evictionPressureTransitionPeriod: 30s
evictionSoft: {memory.available: 1Gi}
evictionSoftGracePeriod: {memory.available: 1m30s}
fileCheckFrequency: 5s
httpCheckFrequency: 0s
imageGCHighThresholdPercent: 90
imageGCLowThresholdPercent: 0
imageMaximumGCAge: 24h
imageMinimumGCAge: 1m
imagePullCredentialsVerificationPolicy: AlwaysVerify
logging: {format: json, verbosity: 4}
maxParallelImagePulls: 7
maxPods: 30
podLogsDir: /logs
podPidsLimit: 100
port: 10251
preloadedImagesVerificationAllowlist: [a.example/*]
registryBurst: 20
registryPullQPS: 0
registerWithTaints: [{key: k, value: v, effect: NoSchedule}]
resolvConf: /resolv.conf
serializeImagePulls: false
staticPodPath: /manifests
staticPodURL: https://example.org/pods
staticPodURLHeader: {X-Token: [a, b]}
streamingConnectionIdleTimeout: 2h
tlsCertFile: /crt
tlsPrivateKeyFile: /key
tracing: {samplingRatePerMillion: 7}
";
    let found = of(text).expect("read");
    let bounds = |text: &str| Some(Bounds::limits(text).expect("bounds"));
    let want = FileConfig {
        address: "127.0.0.1".parse().ok(),
        allowed_unsafe_sysctls: vec!["net.core.*".into()],
        cgroup_driver: Some(Driver::Systemd),
        cgroup_root: Some("/n1".into()),
        cgroups_per_qos: Some(true),
        client_ca_file: Some("/ca".into()),
        cluster_dns: vec!["10.96.0.10".into()],
        cluster_domain: Some("example.org".into()),
        container_log_max_files: Some(3),
        container_log_max_size: Some(1 << 20),
        container_runtime_endpoint: Some("unix:///run/other.sock".into()),
        debug_flags: Some(false),
        profiling: Some(true),
        system_log_handler: Some(false),
        eviction_hard: bounds("memory.available<200Mi,pid.available<10%"),
        eviction_max_pod_grace: Some(60),
        eviction_minimum_reclaim: Some(Bounds::reclaims("nodefs.available=1Gi").expect("bounds")),
        eviction_pressure_transition_period: Some(Duration::from_secs(30)),
        eviction_soft: bounds("memory.available<1Gi"),
        eviction_soft_grace_period: Some(Graces::graces("memory.available=1m30s").expect("graces")),
        file_check_frequency: Some(Duration::from_secs(5)),
        http_check_frequency: None,
        image_gc_high_threshold: Some(90),
        image_gc_low_threshold: Some(0),
        image_maximum_age: Some(Duration::from_secs(86_400)),
        image_minimum_age: Some(Duration::from_secs(60)),
        image_verification_policy: Some("AlwaysVerify".into()),
        image_verification_allowlist: vec!["a.example/*".into()],
        max_container_restart_period: Some(Duration::from_secs(90)),
        max_parallel_image_pulls: Some(7),
        logging: observed::Logging { format: Some("json".into()), verbosity: Some(4), modules: Vec::new() },
        max_pods: Some(30),
        pod_logs_dir: Some("/logs".into()),
        pod_pids_limit: Some(100),
        port: Some(10251),
        register_with_taints: vec![Taint {
            key: "k".into(),
            value: Some("v".into()),
            effect: "NoSchedule".into(),
            time_added: None,
        }],
        registry_burst: Some(20),
        registry_pull_qps: Some(0),
        resolv_conf: Some("/resolv.conf".into()),
        static_pod_path: Some("/manifests".into()),
        static_pod_url: Some("https://example.org/pods".into()),
        static_pod_url_headers: vec!["X-Token:a".into(), "X-Token:b".into()],
        streaming_connection_idle_timeout: Some(Duration::from_secs(7200)),
        tls_cert_file: Some("/crt".into()),
        tls_private_key_file: Some("/key".into()),
        tracing: Some(observed::Tracing { endpoint: None, per_million: 7 }),
    };
    assert_eq!(found, want);
}

/// A field that only says what is so may say that, or nothing, and nothing else.
#[test]
fn fixed_fields_say_what_is_so() {
    use crate::node::{keeper, status};
    use crate::server::Route;
    let has = |path: &str| serde_json::json!(Route::parse(path).is_some());
    let time = |time: Duration| serde_json::json!(format!("{}s", time.as_secs()));
    let shown = show(&crate::Options { address: "127.0.0.1:1".parse().ok(), ..Default::default() });
    let mut so: BTreeMap<&str, Value> = BTreeMap::from([
        ("containerLogMonitorInterval", time(crate::upkeep::ROTATE)),
        ("enableDebuggingHandlers", has("/containerLogs/ns/p/c")),
        ("enableSystemLogHandler", has("/logs/")),
        ("nodeStatusMaxImages", status::MAX_IMAGES.into()),
        ("nodeStatusReportFrequency", time(keeper::REPORT)),
        ("nodeStatusUpdateFrequency", time(keeper::LOOK)),
    ]);
    so.extend(shown.as_object().expect("an object").iter().map(|(name, value)| (name.as_str(), value.clone())));
    let mut checked = Vec::new();
    for (name, accepted) in fixed::FIXED {
        let Some(value) = so.get(name) else { continue };
        checked.push(*name);
        assert_eq!(of(&format!("{name}: {value}")), Ok(FileConfig::default()), "{name}");
        let is_nothing = |text: &&&str| !["", "0", "0s"].contains(*text);
        for text in accepted.iter().filter(is_nothing) {
            let tree = serde_json::json!({ *name: value });
            let mut reader = Reader::new("", &tree).expect("an object");
            assert_eq!(reader.only(name, &[text]), Ok(()), "{name} is taken as {text}, but is {value}");
        }
    }
    assert!(checked.contains(&"enableDebuggingHandlers") && checked.contains(&"readOnlyPort"), "{checked:?}");
    assert_eq!(of("enableSystemLogHandler: true").map(|c| c.system_log_handler), Ok(Some(true)));
}

/// What kubeadm writes sets most fields to nothing.
#[test]
fn nothing_is_nothing() {
    let text = "
address: ''
clusterDNS: []
containerRuntimeEndpoint: ''
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
evictionHard: {}
featureGates: {}
imageMaximumGCAge: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: '0'}}, verbosity: 0}
memorySwap: {}
maxPods: 0
nodeStatusReportFrequency: 0s
podPidsLimit: -1
port: 0
readOnlyPort: 0
shutdownGracePeriod: 0s
staticPodPath: ''
streamingConnectionIdleTimeout: 0s
syncFrequency: 1m0s
tlsCipherSuites: null
";
    assert_eq!(of(text), Ok(FileConfig::default()));
    assert_eq!(of(""), Ok(FileConfig::default()));
}

#[test]
fn defaults_stay_where_they_are_merged() {
    let eviction = |rest: &str| of(rest).expect("read").eviction_hard;
    let given = "evictionHard: {memory.available: 1Gi, nodefs.available: 0%}";
    let alone = eviction(given).expect("given");
    assert_eq!(alone, Bounds::limits("memory.available<1Gi").expect("bounds"));
    let merged = eviction(&format!("{given}\nmergeDefaultEvictionSettings: true")).expect("given");
    let rest = "nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%";
    assert_eq!(Ok(merged), Bounds::limits(&format!("memory.available<1Gi,{rest}")));
}

#[test]
fn pulls() {
    let pulls = |rest: &str| of(rest).map(|c| c.max_parallel_image_pulls);
    assert_eq!(pulls(""), Ok(None));
    assert_eq!(pulls("serializeImagePulls: true"), Ok(Some(1)));
    assert_eq!(pulls("{serializeImagePulls: true, maxParallelImagePulls: 1}").ok(), None, "not YAML");
    assert_eq!(pulls("serializeImagePulls: true\nmaxParallelImagePulls: 1"), Ok(Some(1)));
    assert!(pulls("serializeImagePulls: true\nmaxParallelImagePulls: 2").is_err());
    assert_eq!(pulls("serializeImagePulls: false"), Ok(None));
    assert_eq!(pulls("maxParallelImagePulls: 3"), Ok(Some(3)));
}

#[test]
fn what_is_refused_is_named() {
    for (rest, part) in [
        ("maxPodz: 3", "unknown field \"maxPodz\""),
        ("crashLoopBackOff: {other: 1}", "unknown field \"crashLoopBackOff.other\""),
        ("authentication: {x509: {other: 1}}", "unknown field \"authentication.x509.other\""),
        ("crashLoopBackOff: {maxContainerRestartPeriod: 500ms}", "must be between 1s and 300s"),
        ("crashLoopBackOff: {maxContainerRestartPeriod: 10m}", "must be between 1s and 300s"),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: soon}",
            "crashLoopBackOff.maxContainerRestartPeriod (got: \"soon\")",
        ),
        ("crashLoopBackOff: 1", "crashLoopBackOff (got: 1) must be an object"),
        ("maxPods: many", "maxPods (got: \"many\") must be a number"),
        ("maxPods: -1", "maxPods (got: -1)"),
        ("clusterDNS: 10.96.0.10", "clusterDNS (got: \"10.96.0.10\")"),
        ("address: here", "address (got: here)"),
        ("evictionHard: {memory.free: 1Gi}", "evictionHard: unsupported eviction signal \"memory.free\""),
        (
            "evictionSoft: {memory.available: 1Gi}",
            "grace period must be specified for the soft eviction threshold memory.available",
        ),
        ("evictionMinimumReclaim: {memory.available: '-1'}", "evictionMinimumReclaim: invalid eviction threshold"),
        ("evictionSoftGracePeriod: {memory.available: -1s}", "evictionSoftGracePeriod: invalid eviction threshold"),
        ("registryPullQPS: -1", "registryPullQPS (got: -1)"),
        ("containerLogMaxSize: much", "containerLogMaxSize (got: much)"),
        ("containerLogMaxFiles: 1", "must be a number from 2"),
        ("fileCheckFrequency: 10ms", "less than a second"),
        ("imageMinimumGCAge: -1s", "must not be negative"),
        ("podPidsLimit: 0", "-1 is without limit"),
        ("tlsCertFile: /crt", "go together"),
        (
            "readOnlyPort: 10255",
            "readOnlyPort (got: 10255) is not supported by this kubelet: leave it out, or set it to 0",
        ),
        ("shutdownGracePeriod: 30s", "shutdownGracePeriod (got: \"30s\") is not supported"),
        ("featureGates: {NodeSwap: true}", "featureGates"),
        ("logging: {format: xml}", "logging.format (got: \"xml\")"),
        ("logging: {options: {json: {splitStream: true}}}", "logging.options"),
        ("logging: {vmodule: [{filePattern: '', verbosity: 1}]}", "logging.vmodule"),
        ("tracing: {samplingRatePerMillion: 1000001}", "tracing.samplingRatePerMillion"),
        ("tracing: {samplingRate: 1}", "unknown field \"tracing.samplingRate\""),
        ("failSwapOn: true", "or set it to false"),
        ("authentication: {anonymous: {enabled: true}}", "authentication.anonymous.enabled (got: true)"),
        ("authorization: {mode: AlwaysAllow}", "authorization.mode (got: \"AlwaysAllow\")"),
    ] {
        let why = of(rest).expect_err(rest);
        assert!(why.contains(part), "{part:?} in {why}");
    }
    for (text, part) in
        [("apiVersion: v1\nkind: Pod\n", "it is of kind Pod in v1"), ("{", ""), ("- a", "must be an object")]
    {
        let why = parse(text.as_bytes()).expect_err(text);
        assert!(why.contains(part), "{part:?} in {why}");
    }
}
