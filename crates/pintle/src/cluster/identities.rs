//! Every key and certificate of a cluster, made on first start and renewed while it runs.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use kinds::User;
use pki::layout::Purpose;
use pki::{Authority, Keeper, Layout, Request, SigningKey};
use rustls::{ClientConfig, ServerConfig};
use stdx::SharedClock;
use transport::tls;
use transport::trust::Trust;

/// The authorities and the identities they issued.
pub struct Identities {
    pub cluster: Arc<Authority>,
    pub front_proxy: Arc<Authority>,
    pub tokens: Arc<SigningKey>,
    layout: Layout,
    clock: SharedClock,
}

impl Identities {
    /// Loads what is in `directory`, and makes what is not.
    pub fn open(directory: &Path, clock: &SharedClock) -> Result<Self> {
        let layout = Layout::open(directory).context("the folder of keys")?;
        let now = clock.wall();
        Ok(Self {
            cluster: Arc::new(layout.authority(Purpose::Cluster, now)?),
            front_proxy: Arc::new(layout.authority(Purpose::FrontProxy, now)?),
            tokens: Arc::new(layout.token_key()?),
            layout,
            clock: clock.clone(),
        })
    }

    fn keeper(&self, name: &str, request: Request) -> Result<Arc<Keeper>> {
        self.keeper_of(&self.cluster, name, request)
    }

    fn keeper_of(&self, authority: &Arc<Authority>, name: &str, request: Request) -> Result<Arc<Keeper>> {
        let files = Some((self.layout.clone(), name.to_owned()));
        Ok(Keeper::start(authority.clone(), request, files, self.clock.clone())?)
    }

    /// What the API server shows servers that answer for APIs of their own: by this they believe for whom it
    /// speaks.
    pub fn front_proxy_client(&self) -> Result<Arc<Keeper>> {
        self.keeper_of(&self.front_proxy, "front-proxy-client", Request::client("front-proxy-client", ""))
    }

    /// Who may sign client certificates.
    pub fn client_trust(&self) -> Result<Trust> {
        Ok(self.cluster.roots()?.into())
    }

    /// The API server's side of TLS.
    pub fn api_server(&self, domain: &str, service: IpAddr, addresses: Vec<IpAddr>) -> Result<ServerConfig> {
        let keeper = self.keeper("apiserver", Request::api_server(domain, Some(service), addresses))?;
        Ok(tls::server(&self.clock, keeper)?)
    }

    /// The kubelet's side of TLS, and what keeps its certificate.
    pub fn kubelet_server(&self, node: &str, addresses: &[IpAddr]) -> Result<(ServerConfig, Arc<Keeper>)> {
        let mut request =
            Request::server(format!("system:node:{node}"), [node]).with_addresses(addresses.iter().copied());
        request.organization = "system:nodes".into();
        let keeper = self.keeper("kubelet-server", request)?;
        Ok((tls::server(&self.clock, keeper.clone())?, keeper))
    }

    /// How the API server dials kubelets.
    pub fn kubelet_client(&self) -> Result<Arc<ClientConfig>> {
        let request = Request::client("kube-apiserver-kubelet-client", "system:masters");
        let keeper = self.keeper("apiserver-kubelet-client", request)?;
        Ok(Arc::new(tls::client(&self.clock, self.cluster.roots()?, Some(keeper))?))
    }

    /// A client certificate for a user of this cluster.
    pub fn client(&self, user: &str, group: &str) -> Result<Arc<Keeper>> {
        self.keeper(&user.replace(':', "-"), Request::client(user, group))
    }

    /// A user's kubeconfig, but for the certificate.
    pub fn entry(&self, user: &str, group: &str, server: &str) -> client::kubeconfig::Entry {
        client::kubeconfig::Entry {
            cluster: "pintle".into(),
            user: if group == "system:masters" { "pintle".into() } else { user.into() },
            context: "pintle".into(),
            server: server.into(),
            ca_pem: self.cluster.certificate().to_owned(),
            ..client::kubeconfig::Entry::default()
        }
    }
}

/// The identity of a component in this process.
pub fn component(name: &str) -> User {
    User { name: name.to_owned(), ..User::default() }
}

/// The identity of a kubelet.
pub fn node(name: &str) -> User {
    User { name: format!("system:node:{name}"), groups: vec!["system:nodes".into()], ..User::default() }
}

/// The identity of a controller: a ServiceAccount of `kube-system`.
pub fn service_account(name: &str) -> User {
    User {
        name: format!("system:serviceaccount:kube-system:{name}"),
        groups: vec!["system:serviceaccounts".into(), "system:serviceaccounts:kube-system".into()],
        ..User::default()
    }
}
