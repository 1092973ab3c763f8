//! `pintle kube-apiserver`: the API server alone, over its own embedded store.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apiserver::authn::request_header::Headers;
use apiserver::authn::service_account;
use apiserver::bootstrap::authentication::Authorities;
use apiserver::{ApiServer, aggregation};
use clap::{ArgAction, Args};
use ipnet::IpNet;
use pki::{PublicKey, SigningKey};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::{ClientConfig, ServerConfig};
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use storage::Store;
use transport::files::FileIdentity;
use transport::tls;
use transport::trust::Trust;

use crate::cluster::address;
use crate::cluster::identities::Identities;
use crate::cluster::run::{Api, start_api};
use crate::logging::{FromFile, Logging, Profiling, Tracing};
use crate::signals::Signals;

/// Run the API server alone.
#[derive(Args, Debug)]
pub struct KubeApiServer {
    /// Where the embedded store is kept.
    #[arg(long, default_value = "/var/lib/pintle/store", value_name = "DIR")]
    data_dir: PathBuf,
    /// Keys and certificates; what is missing is made there.
    #[arg(long, default_value = "/var/lib/pintle/pki", value_name = "DIR")]
    cert_dir: PathBuf,
    /// The address to listen on.
    #[arg(long, default_value = "0.0.0.0", value_name = "IP")]
    bind_address: IpAddr,
    /// The address members of the cluster reach this server by.
    #[arg(long, value_name = "IP")]
    advertise_address: Option<IpAddr>,
    /// The port to listen on.
    #[arg(long, default_value_t = 6443, value_name = "PORT")]
    secure_port: u16,
    /// Where Service addresses come from: one range, or one of each family.
    #[arg(long, default_value = "10.96.0.0/12", value_name = "CIDR", value_delimiter = ',')]
    service_cluster_ip_range: Vec<IpNet>,
    /// Where node ports come from: FIRST-LAST.
    #[arg(long, default_value = "30000-32767", value_name = "RANGE")]
    service_node_port_range: String,
    /// A serving certificate of your own, with its key.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Who may sign client certificates.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// The issuer of ServiceAccount tokens.
    #[arg(long, value_name = "URL")]
    service_account_issuer: Option<String>,
    /// The key that signs ServiceAccount tokens.
    #[arg(long, value_name = "FILE")]
    service_account_signing_key_file: Option<PathBuf>,
    /// Keys whose ServiceAccount tokens are good too, beside those of the key that signs.
    #[arg(long, value_name = "FILE")]
    service_account_key_file: Vec<PathBuf>,
    /// Whom ServiceAccount tokens must be for; the issuer unless set (comma separated).
    #[arg(long, value_name = "AUDIENCE", value_delimiter = ',')]
    api_audiences: Vec<String>,
    /// Who decides what a user may do: Node and RBAC, and no other.
    #[arg(long, value_name = "MODE", value_delimiter = ',', default_value = "Node,RBAC")]
    authorization_mode: Vec<String>,
    /// Who may sign kubelets' serving certificates.
    #[arg(long, value_name = "FILE")]
    kubelet_certificate_authority: Option<PathBuf>,
    /// What this server shows kubelets, with its key.
    #[arg(long, value_name = "FILE", requires = "kubelet_client_key")]
    kubelet_client_certificate: Option<PathBuf>,
    #[arg(long, value_name = "FILE", requires = "kubelet_client_certificate")]
    kubelet_client_key: Option<PathBuf>,
    /// What this server shows servers that answer for APIs of their own, with its key.
    #[arg(long, value_name = "FILE", requires = "proxy_client_key_file")]
    proxy_client_cert_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    proxy_client_key_file: Option<PathBuf>,
    #[command(flatten)]
    front_proxies: FrontProxies,
    /// Dial endpoints of the Services of such servers, not the Services' own addresses.
    #[arg(long)]
    enable_aggregator_routing: bool,
    /// Keep flow schemas and priority levels, as what requests are shared out by.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set, num_args = 0..=1,
        default_missing_value = "true")]
    enable_priority_and_fairness: bool,
    /// The domain of the cluster's names.
    #[arg(long, default_value = "cluster.local", value_name = "DOMAIN")]
    cluster_domain: String,
    #[command(flatten)]
    logging: Logging,
    #[command(flatten)]
    profiling: Profiling,
    #[command(flatten)]
    tracing: Tracing,
}

/// Whom this server believes when headers say who asks; servers that extend the API are told to believe the same.
#[derive(Args, Debug, Default)]
struct FrontProxies {
    /// Who may sign certificates of front proxies. Without it no header says who asks.
    #[arg(long, value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// The common names such a certificate may have; any, unless set (comma separated).
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    requestheader_allowed_names: Vec<String>,
    /// The headers that name the user: X-Remote-User (comma separated).
    #[arg(long, value_name = "HEADER", value_delimiter = ',')]
    requestheader_username_headers: Vec<String>,
    /// The headers with the user's UID: X-Remote-Uid (comma separated).
    #[arg(long, value_name = "HEADER", value_delimiter = ',')]
    requestheader_uid_headers: Vec<String>,
    /// The headers that name the user's groups: X-Remote-Group (comma separated).
    #[arg(long, value_name = "HEADER", value_delimiter = ',')]
    requestheader_group_headers: Vec<String>,
    /// How the headers begin that tell what else is known of the user: X-Remote-Extra- (comma separated).
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    requestheader_extra_headers_prefix: Vec<String>,
}

impl FrontProxies {
    /// What headers say, where any say anything.
    fn headers(&self) -> Result<Option<Headers>> {
        let lists = [
            ("requestheader-allowed-names", &self.requestheader_allowed_names, ""),
            ("requestheader-username-headers", &self.requestheader_username_headers, "X-Remote-User"),
            ("requestheader-uid-headers", &self.requestheader_uid_headers, "X-Remote-Uid"),
            ("requestheader-group-headers", &self.requestheader_group_headers, "X-Remote-Group"),
            ("requestheader-extra-headers-prefix", &self.requestheader_extra_headers_prefix, "X-Remote-Extra-"),
        ];
        for (flag, list, standard) in lists {
            if let Some(empty) = list.iter().find(|text| text.trim().is_empty()) {
                bail!("empty value in {flag:?}: {empty:?}");
            }
            let has_standard = list.iter().any(|text| text.trim().eq_ignore_ascii_case(standard));
            if !list.is_empty() && !standard.is_empty() && !has_standard {
                tracing::warn!("--{flag} does not name {standard}: servers that extend the API will not know who asks");
            }
        }
        if self.requestheader_client_ca_file.is_none() {
            return Ok(None);
        }
        let trimmed = |list: &[String]| list.iter().map(|text| text.trim().to_owned()).collect();
        let [allowed_names, username, uid, group, extra_prefixes] = lists.map(|(_, list, _)| trimmed(list));
        Ok(Some(Headers { allowed_names, username, uid, group, extra_prefixes }))
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| path.display().to_string())
}

fn trust(path: &Path) -> Result<Trust> {
    Trust::file(path).map_err(anyhow::Error::msg)
}

fn ports(range: &str) -> Result<(u16, u16)> {
    let (first, last) = range.split_once('-').context("a port range is FIRST-LAST")?;
    let (first, last) = (first.parse()?, last.parse()?);
    if first == 0 || last < first {
        bail!("{range} is no range of ports");
    }
    Ok((first, last))
}

impl KubeApiServer {
    fn tls(&self, identities: &Identities, clock: &SharedClock, address: IpAddr) -> Result<ServerConfig> {
        if let (Some(certificate), Some(key)) = (&self.tls_cert_file, &self.tls_private_key_file) {
            let identity = FileIdentity::pair(certificate, key).map_err(anyhow::Error::msg)?;
            return Ok(tls::server(clock, identity)?);
        }
        let range = self.service_cluster_ip_range.first();
        let service = range.and_then(|range| range.hosts().next()).context("an empty Service range")?;
        identities.api_server(&self.cluster_domain, service, vec![address, self.bind_address])
    }

    fn aggregation(&self, identities: &Identities) -> Result<aggregation::Options> {
        let identity: Arc<dyn ResolvesClientCert> = match (&self.proxy_client_cert_file, &self.proxy_client_key_file) {
            (Some(certificate), Some(key)) => FileIdentity::pair(certificate, key).map_err(anyhow::Error::msg)?,
            _ => identities.front_proxy_client()?,
        };
        Ok(aggregation::Options { identity: Some(identity), to_endpoints: self.enable_aggregator_routing })
    }

    fn kubelet_client(&self, identities: &Identities, clock: &SharedClock) -> Result<Arc<ClientConfig>> {
        let Some(authority) = &self.kubelet_certificate_authority else { return identities.kubelet_client() };
        let identity = match (&self.kubelet_client_certificate, &self.kubelet_client_key) {
            (Some(certificate), Some(key)) => {
                Some(FileIdentity::pair(certificate, key).map_err(anyhow::Error::msg)? as _)
            }
            _ => None,
        };
        let mut config = tls::client(clock, trust(authority)?, identity)?;
        // A resumed session would speak for the certificate it began with.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// Anything else would decide otherwise than the user said.
fn check_authorization(modes: &[String]) -> Result<()> {
    let mut modes: Vec<&str> = modes.iter().map(String::as_str).collect();
    modes.sort_unstable();
    if modes == ["Node", "RBAC"] {
        return Ok(());
    }
    bail!("--authorization-mode={} is not there; only Node,RBAC is", modes.join(","))
}

/// Runs the command.
pub async fn run(args: KubeApiServer, clock: SharedClock) -> Result<()> {
    let traces = args.tracing.read("kube-apiserver")?;
    let mut started = args.logging.start(FromFile { tracing: traces, ..FromFile::default() }, &clock);
    check_authorization(&args.authorization_mode)?;
    let mut signals = Signals::listen()?;
    let identities = Identities::open(&args.cert_dir, &clock)?;
    let advertised = args.advertise_address.unwrap_or_else(address::outward);
    let key = match &args.service_account_signing_key_file {
        Some(path) => Arc::new(SigningKey::from_pem(&String::from_utf8(read(path)?)?)?),
        None => identities.tokens.clone(),
    };
    let mut service_accounts = service_account::Options::standard(&args.cluster_domain, key);
    if let Some(issuer) = &args.service_account_issuer {
        service_accounts.audiences = vec![issuer.clone()];
        service_accounts.issuer.clone_from(issuer);
    }
    if !args.api_audiences.is_empty() {
        service_accounts.audiences.clone_from(&args.api_audiences);
    }
    for path in &args.service_account_key_file {
        let key = PublicKey::from_pem(&String::from_utf8(read(path)?)?).with_context(|| path.display().to_string())?;
        service_accounts.further.push(key);
    }
    let (client_ca, client_ca_pem) = match &args.client_ca_file {
        Some(path) => (trust(path)?, String::from_utf8(read(path)?)?),
        None => (identities.client_trust()?, identities.cluster.certificate().to_owned()),
    };
    let headers = args.front_proxies.headers()?;
    let front_proxy_ca_file = args.front_proxies.requestheader_client_ca_file.clone();
    let own_front_proxy = identities.front_proxy.certificate().to_owned();
    // Without a certificate of its own for others, this server shows them one that it has signed itself.
    let shows_own = args.proxy_client_cert_file.is_none() || front_proxy_ca_file.is_none();
    let front_proxy_ca = move || -> std::io::Result<String> {
        let theirs = front_proxy_ca_file.as_ref().map(std::fs::read_to_string).transpose()?.unwrap_or_default();
        Ok(if shows_own { theirs + &own_front_proxy } else { theirs })
    };
    let (client_ca_file, own_client_ca) = (args.client_ca_file.clone(), client_ca_pem.clone());
    let stage = Stage::new();
    let api = Api {
        store: args.data_dir.clone(),
        listen: SocketAddr::new(args.bind_address, args.secure_port),
        advertised: SocketAddr::new(advertised, args.secure_port),
        service_cidrs: args.service_cluster_ip_range.clone(),
        node_ports: ports(&args.service_node_port_range)?,
        client_ca,
        client_ca_pem,
        front_proxy_ca_pem: front_proxy_ca().context("--requestheader-client-ca-file")?,
        front_proxies: match (&args.front_proxies.requestheader_client_ca_file, headers) {
            (Some(path), Some(headers)) => Some((trust(path)?, headers)),
            _ => None,
        },
        read_authorities: Some(Arc::new(move || {
            let client_ca = match &client_ca_file {
                Some(file) => std::fs::read_to_string(file).ok()?,
                None => own_client_ca.clone(),
            };
            Some(Authorities { client_ca, front_proxy_ca: front_proxy_ca().ok()? })
        })),
        priority_and_fairness: args.enable_priority_and_fairness,
        debug: args.profiling.debug(&started),
        tracing: started.sampler,
        aggregation: args.aggregation(&identities)?,
        service_accounts,
        kubelet_client: args.kubelet_client(&identities, &clock)?,
        kubelet_nearby: None,
        tls: args.tls(&identities, &clock, advertised)?,
    };
    let (server, store): (Arc<ApiServer>, _) = start_api(api, &clock, &Rng::from_os(), &stage).await?;
    started.export(&server.metrics.registry, &stage);
    tracing::info!(address = %args.bind_address, port = args.secure_port, version = server.version, "API server is ready");
    signals.told().await;
    stage.finish(&clock, Duration::from_secs(20)).await;
    store.close().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_decides_may_be_named() {
        let modes = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        assert!(check_authorization(&modes("RBAC,Node")).is_ok());
        for refused in ["AlwaysAllow", "RBAC", "Node,RBAC,Webhook"] {
            assert!(check_authorization(&modes(refused)).is_err(), "{refused}");
        }
    }

    #[test]
    fn headers_say_something_only_where_somebody_signs() {
        let one = |text: &str| vec![text.to_owned()];
        let file = Some(PathBuf::from("ca.crt"));
        let flags = |file: &Option<PathBuf>, names: Vec<String>| FrontProxies {
            requestheader_client_ca_file: file.clone(),
            requestheader_username_headers: names,
            ..FrontProxies::default()
        };
        assert_eq!(flags(&None, one("X-Remote-User")).headers().expect("read"), None);
        assert!(flags(&file, one(" ")).headers().is_err());
        let headers = flags(&file, one(" X-User ")).headers().expect("read").expect("headers");
        assert_eq!((headers.username, headers.allowed_names.len(), headers.uid.len()), (one("X-User"), 0, 0));
    }

    #[test]
    fn port_ranges() {
        assert_eq!(ports("30000-32767").expect("valid"), (30000, 32767));
        for refused in ["", "1", "0-5", "9-8", "1-70000"] {
            assert!(ports(refused).is_err(), "{refused}");
        }
    }
}
