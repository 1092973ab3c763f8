//! `pintle kube-apiserver`: the API server alone, over its own embedded store.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apiserver::authn::service_account;
use apiserver::bootstrap::authentication::{self, Authorities};
use apiserver::{ApiServer, aggregation};
use clap::Args;
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
use crate::logging;
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
    /// Where Service addresses come from.
    #[arg(long, default_value = "10.96.0.0/12", value_name = "CIDR")]
    service_cluster_ip_range: IpNet,
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
    /// By whom such servers know what is shown to them: who signed it.
    #[arg(long, value_name = "FILE", requires = "proxy_client_cert_file")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Dial endpoints of the Services of such servers, not the Services' own addresses.
    #[arg(long)]
    enable_aggregator_routing: bool,
    /// The domain of the cluster's names.
    #[arg(long, default_value = "cluster.local", value_name = "DOMAIN")]
    cluster_domain: String,
    /// Verbosity of the log.
    #[arg(short, default_value_t = 2, value_name = "LEVEL")]
    v: u8,
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
        let service = self.service_cluster_ip_range.hosts().next().context("an empty Service range")?;
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
    logging::start(args.v);
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
    let front_proxy_ca_pem = match &args.requestheader_client_ca_file {
        Some(path) => String::from_utf8(read(path)?)?,
        None => identities.front_proxy.certificate().to_owned(),
    };
    let stage = Stage::new();
    let api = Api {
        store: args.data_dir.clone(),
        listen: SocketAddr::new(args.bind_address, args.secure_port),
        advertised: SocketAddr::new(advertised, args.secure_port),
        service_cidr: args.service_cluster_ip_range,
        node_ports: ports(&args.service_node_port_range)?,
        client_ca,
        client_ca_pem,
        front_proxy_ca_pem: front_proxy_ca_pem.clone(),
        read_authorities: args.client_ca_file.clone().map(|file| {
            let front_proxy_ca = front_proxy_ca_pem.clone();
            let read: authentication::Read = Arc::new(move || {
                let client_ca = std::fs::read_to_string(&file).ok()?;
                Some(Authorities { client_ca, front_proxy_ca: front_proxy_ca.clone() })
            });
            read
        }),
        aggregation: args.aggregation(&identities)?,
        service_accounts,
        kubelet_client: args.kubelet_client(&identities, &clock)?,
        tls: args.tls(&identities, &clock, advertised)?,
    };
    let (server, store): (Arc<ApiServer>, _) = start_api(api, &clock, &Rng::from_os(), &stage).await?;
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
    fn port_ranges() {
        assert_eq!(ports("30000-32767").expect("valid"), (30000, 32767));
        for refused in ["", "1", "0-5", "9-8", "1-70000"] {
            assert!(ports(refused).is_err(), "{refused}");
        }
    }
}
