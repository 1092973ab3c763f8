//! A file of kind `KubeletConfiguration`: what this kubelet goes by of it. What nobody knows is refused, and
//! so is a setting that would do nothing: it would be worse than none.

mod fixed;
pub mod observed;
mod reader;
mod shown;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use api::types::core::v1::Taint;
use machinery::quantity::Quantity;

use crate::cgroup::Driver;
use crate::node::thresholds::{Bounds, Graces, Thresholds};
use reader::Reader;
pub use shown::show;

/// What a file can say; `None` (and an empty list) where it does not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileConfig {
    pub address: Option<IpAddr>,
    pub allowed_unsafe_sysctls: Vec<String>,
    pub cgroup_driver: Option<Driver>,
    pub cgroup_root: Option<String>,
    pub cgroups_per_qos: Option<bool>,
    /// `authentication.x509.clientCAFile`.
    pub client_ca_file: Option<PathBuf>,
    pub cluster_dns: Vec<String>,
    pub cluster_domain: Option<String>,
    pub container_log_max_files: Option<usize>,
    pub container_log_max_size: Option<u64>,
    pub container_runtime_endpoint: Option<String>,
    /// `enableDebugFlagsHandler` and `enableProfilingHandler`.
    pub debug_flags: Option<bool>,
    pub profiling: Option<bool>,
    /// `enableSystemLogHandler`.
    pub system_log_handler: Option<bool>,
    /// `evictionHard` and `mergeDefaultEvictionSettings`.
    pub eviction_hard: Option<Bounds>,
    /// `evictionMaxPodGracePeriod`, in seconds.
    pub eviction_max_pod_grace: Option<u32>,
    pub eviction_minimum_reclaim: Option<Bounds>,
    pub eviction_pressure_transition_period: Option<Duration>,
    pub eviction_soft: Option<Bounds>,
    pub eviction_soft_grace_period: Option<Graces>,
    pub file_check_frequency: Option<Duration>,
    pub http_check_frequency: Option<Duration>,
    pub image_gc_high_threshold: Option<u64>,
    pub image_gc_low_threshold: Option<u64>,
    pub image_maximum_age: Option<Duration>,
    pub image_minimum_age: Option<Duration>,
    pub image_verification_policy: Option<String>,
    pub image_verification_allowlist: Vec<String>,
    /// `crashLoopBackOff.maxContainerRestartPeriod`.
    pub max_container_restart_period: Option<Duration>,
    /// From `serializeImagePulls` and `maxParallelImagePulls`.
    pub max_parallel_image_pulls: Option<u32>,
    pub logging: observed::Logging,
    pub max_pods: Option<u32>,
    pub pod_logs_dir: Option<PathBuf>,
    pub pod_pids_limit: Option<u64>,
    pub port: Option<u16>,
    pub register_with_taints: Vec<Taint>,
    pub registry_burst: Option<u32>,
    pub registry_pull_qps: Option<u32>,
    pub resolv_conf: Option<PathBuf>,
    pub static_pod_path: Option<PathBuf>,
    pub static_pod_url: Option<String>,
    /// `name:value`.
    pub static_pod_url_headers: Vec<String>,
    pub streaming_connection_idle_timeout: Option<Duration>,
    pub tls_cert_file: Option<PathBuf>,
    pub tls_private_key_file: Option<PathBuf>,
    pub tracing: Option<observed::Tracing>,
}

/// A duration in Go's words, not negative.
pub fn duration(text: &str) -> Result<Duration, String> {
    let nanos = machinery::time::read_duration(text)?;
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| format!("{text} is negative"))
}

/// An amount of bytes: `10Mi`.
pub fn bytes(text: &str) -> Result<u64, String> {
    let bytes = text.parse::<Quantity>().ok().and_then(|q| u64::try_from(q.value()).ok()).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "is no amount of bytes".to_owned())
}

/// Reads a file's text, YAML or JSON.
pub fn parse(text: &[u8]) -> Result<FileConfig, String> {
    let tree = machinery::yaml::read(text).map_err(|e| e.to_string())?;
    let mut file = Reader::new("", &tree)?;
    let (version, kind) = ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration");
    let found = (file.text("apiVersion")?.unwrap_or_default(), file.text("kind")?.unwrap_or_default());
    if found != (version.to_owned(), kind.to_owned()) {
        return Err(format!("it is of kind {} in {}, not {kind} in {version}", found.1, found.0));
    }
    authentication(&mut file)?;
    let client_ca_file = client_ca(&mut file)?;
    let most = i64::from(i32::MAX);
    let config = FileConfig {
        address: file.parsed("address")?,
        allowed_unsafe_sysctls: file.texts("allowedUnsafeSysctls")?,
        cgroup_driver: file.text("cgroupDriver")?.map(|t| Driver::parse(&t)).transpose()?,
        cgroup_root: file.text("cgroupRoot")?,
        cgroups_per_qos: file.truth("cgroupsPerQOS")?,
        client_ca_file,
        cluster_dns: file.texts("clusterDNS")?,
        cluster_domain: file.text("clusterDomain")?,
        container_log_max_files: file.number("containerLogMaxFiles", 2..=10_000)?,
        container_log_max_size: log_size(&mut file)?,
        container_runtime_endpoint: file.text("containerRuntimeEndpoint")?,
        debug_flags: file.truth("enableDebugFlagsHandler")?,
        profiling: file.truth("enableProfilingHandler")?,
        system_log_handler: file.truth("enableSystemLogHandler")?,
        eviction_hard: eviction(&mut file)?,
        eviction_max_pod_grace: file.number("evictionMaxPodGracePeriod", 0..=i64::from(u32::MAX))?,
        eviction_minimum_reclaim: signals(&mut file, "evictionMinimumReclaim", Bounds::reclaims_of)?,
        eviction_pressure_transition_period: file.duration("evictionPressureTransitionPeriod")?,
        eviction_soft: signals(&mut file, "evictionSoft", Bounds::limits_of)?,
        eviction_soft_grace_period: signals(&mut file, "evictionSoftGracePeriod", Graces::graces_of)?,
        file_check_frequency: frequency(&mut file, "fileCheckFrequency")?,
        http_check_frequency: frequency(&mut file, "httpCheckFrequency")?,
        image_gc_high_threshold: file.number("imageGCHighThresholdPercent", 0..=100)?,
        image_gc_low_threshold: file.number("imageGCLowThresholdPercent", 0..=100)?,
        image_maximum_age: file.duration("imageMaximumGCAge")?,
        image_minimum_age: file.duration("imageMinimumGCAge")?,
        image_verification_policy: file.text("imagePullCredentialsVerificationPolicy")?,
        image_verification_allowlist: file.texts("preloadedImagesVerificationAllowlist")?,
        max_container_restart_period: restart_period(&mut file)?,
        max_parallel_image_pulls: parallel_pulls(&mut file)?,
        logging: observed::logging(&mut file)?,
        max_pods: file.number("maxPods", 0..=100_000)?.filter(|n| *n > 0),
        pod_logs_dir: file.path("podLogsDir")?,
        pod_pids_limit: pids(&mut file)?,
        port: file.number("port", 0..=65_535)?.filter(|n| *n > 0),
        register_with_taints: file.typed("registerWithTaints")?.unwrap_or_default(),
        registry_burst: file.number("registryBurst", 0..=most)?.filter(|n| *n > 0),
        registry_pull_qps: file.number("registryPullQPS", 0..=most)?,
        resolv_conf: file.path("resolvConf")?,
        static_pod_path: file.path("staticPodPath")?,
        static_pod_url: file.text("staticPodURL")?,
        static_pod_url_headers: headers(&mut file)?,
        streaming_connection_idle_timeout: file.duration("streamingConnectionIdleTimeout")?,
        tls_cert_file: file.path("tlsCertFile")?,
        tls_private_key_file: file.path("tlsPrivateKeyFile")?,
        tracing: observed::tracing(&mut file)?,
    };
    if config.tls_cert_file.is_some() != config.tls_private_key_file.is_some() {
        return Err("tlsCertFile and tlsPrivateKeyFile go together".to_owned());
    }
    let soft = config.eviction_soft.unwrap_or(Bounds::none());
    let soft_grace = config.eviction_soft_grace_period.unwrap_or(Graces::none());
    Thresholds { soft, soft_grace, ..Thresholds::none() }.check()?;
    fixed::check(&mut file)?;
    file.end()?;
    Ok(config)
}

/// Who may ask is decided by the API server, and nobody is believed without a certificate or a token.
fn authentication(file: &mut Reader) -> Result<(), String> {
    if let Some(mut authorization) = file.object("authorization")? {
        authorization.only("mode", &["", "Webhook"])?;
        if let Some(mut webhook) = authorization.object("webhook")? {
            webhook.only("cacheAuthorizedTTL", &["0s", "5m"])?;
            webhook.only("cacheUnauthorizedTTL", &["0s", "30s"])?;
            webhook.end()?;
        }
        authorization.end()?;
    }
    Ok(())
}

fn client_ca(file: &mut Reader) -> Result<Option<PathBuf>, String> {
    let Some(mut authentication) = file.object("authentication")? else { return Ok(None) };
    if let Some(mut anonymous) = authentication.object("anonymous")? {
        anonymous.only("enabled", &["false"])?;
        anonymous.end()?;
    }
    if let Some(mut webhook) = authentication.object("webhook")? {
        webhook.only("enabled", &["true"])?;
        webhook.only("cacheTTL", &["0s", "2m"])?;
        webhook.end()?;
    }
    let mut authority = None;
    if let Some(mut x509) = authentication.object("x509")? {
        authority = x509.path("clientCAFile")?;
        x509.end()?;
    }
    authentication.end()?;
    Ok(authority)
}

fn log_size(file: &mut Reader) -> Result<Option<u64>, String> {
    let Some(text) = file.text("containerLogMaxSize")? else { return Ok(None) };
    bytes(&text).map(Some).map_err(|why| format!("containerLogMaxSize (got: {text}) {why}"))
}

fn eviction(file: &mut Reader) -> Result<Option<Bounds>, String> {
    let merged = file.truth("mergeDefaultEvictionSettings")?.unwrap_or(false);
    let hard = file.map("evictionHard")?;
    if hard.is_empty() {
        return Ok(None);
    }
    let mut bounds = Bounds::limits_of(&hard).map_err(|why| format!("evictionHard: {why}"))?;
    let missing = Bounds::USUAL.iter().filter(|(signal, _)| merged && !hard.contains_key(signal.name()));
    for (signal, bound) in missing {
        bounds = bounds.with(signal, bound);
    }
    Ok(Some(bounds))
}

/// Something for each signal, of a field that may be missing.
fn signals<T>(
    file: &mut Reader,
    name: &str,
    read: impl Fn(&std::collections::BTreeMap<String, String>) -> Result<T, String>,
) -> Result<Option<T>, String> {
    let given = file.map(name)?;
    let found = (!given.is_empty()).then(|| read(&given)).transpose();
    found.map_err(|why| format!("{name}: {why}"))
}

fn frequency(file: &mut Reader, name: &str) -> Result<Option<Duration>, String> {
    let found = file.duration(name)?;
    match found {
        Some(found) if found < Duration::from_secs(1) => Err(format!("{name} (got: {found:?}) is less than a second")),
        found => Ok(found),
    }
}

fn restart_period(file: &mut Reader) -> Result<Option<Duration>, String> {
    let Some(mut back_off) = file.object("crashLoopBackOff")? else { return Ok(None) };
    let found = back_off.duration("maxContainerRestartPeriod")?;
    back_off.end()?;
    match found {
        Some(found) if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&found) => {
            Err(format!("crashLoopBackOff.maxContainerRestartPeriod (got: {found:?}) must be between 1s and 300s"))
        }
        found => Ok(found),
    }
}

/// As upstream, pulls are one at a time unless a number says otherwise; a file that says neither leaves it
/// to us.
fn parallel_pulls(file: &mut Reader) -> Result<Option<u32>, String> {
    let serial = file.truth("serializeImagePulls")?;
    let parallel: Option<u32> = file.number("maxParallelImagePulls", 1..=1000)?;
    match (serial, parallel) {
        (Some(true), Some(2..)) => {
            Err("maxParallelImagePulls cannot be larger than 1 unless serializeImagePulls is false".to_owned())
        }
        (Some(true), _) => Ok(Some(1)),
        (_, parallel) => Ok(parallel),
    }
}

fn pids(file: &mut Reader) -> Result<Option<u64>, String> {
    let limit: Option<i64> = file.number("podPidsLimit", i64::MIN..=i64::MAX)?;
    match limit {
        Some(0) => Err("podPidsLimit (got: 0) would let no pod run: -1 is without limit".to_owned()),
        limit => Ok(limit.and_then(|limit| u64::try_from(limit).ok())),
    }
}

fn headers(file: &mut Reader) -> Result<Vec<String>, String> {
    let all: Option<std::collections::BTreeMap<String, Vec<String>>> = file.typed("staticPodURLHeader")?;
    let of = |(name, values): (String, Vec<String>)| values.into_iter().map(move |value| format!("{name}:{value}"));
    Ok(all.unwrap_or_default().into_iter().flat_map(of).collect())
}

#[cfg(test)]
mod tests;
