//! Who asks the kubelet, and may they? Certificates are judged here, tokens and permissions by the
//! API server.

use std::sync::Arc;

use client::delegated::{Delegate, User, Wish};
use http::{Method, StatusCode};
use stdx::SharedClock;
use transport::Response;
use transport::serve::Peer;
use transport::trust::Trust;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::text;

/// The check before every answer.
#[derive(Clone)]
pub struct Gate {
    delegate: Arc<Delegate>,
    /// Judges client certificates; without one none is believed.
    trust: Option<Trust>,
    node: Arc<str>,
    clock: SharedClock,
}

/// A refusal; responses are large.
type Refused = Box<Response>;

fn refuse(status: StatusCode, why: impl Into<String>) -> Refused {
    Box::new(text(status, why))
}

impl Gate {
    /// A gate of the node `node` that believes certificates `trust` believes.
    pub fn new(delegate: Delegate, trust: Option<Trust>, node: &str, clock: SharedClock) -> Self {
        Self { delegate: Arc::new(delegate), trust, node: node.into(), clock }
    }

    /// Who asks: by the connection's certificate, else by a token.
    pub async fn authenticate(&self, request: &http::request::Parts) -> Result<User, Refused> {
        if let Some(user) = request.extensions.get::<Peer>().and_then(|peer| self.by_certificate(peer)) {
            return Ok(user);
        }
        let header = request.headers.get(http::header::AUTHORIZATION).and_then(|v| v.to_str().ok());
        let token = header.and_then(|h| h.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
        let Some((_, token)) = token else { return Err(refuse(StatusCode::UNAUTHORIZED, "Unauthorized")) };
        match self.delegate.authenticate(token.trim()).await {
            Ok(Some(user)) => Ok(user),
            Ok(None) => Err(refuse(StatusCode::UNAUTHORIZED, "Unauthorized")),
            Err(error) => {
                tracing::warn!(%error, "the API server cannot be asked whose token it is");
                Err(refuse(StatusCode::UNAUTHORIZED, "Unauthorized"))
            }
        }
    }

    fn by_certificate(&self, peer: &Peer) -> Option<User> {
        let (own, others) = peer.certificates.split_first()?;
        let now = transport::tls::unix_time(&self.clock)?;
        self.trust.as_ref()?.judge_client(own, others, now).ok()?;
        subject(own)
    }

    /// May the user do that to this node?
    pub async fn authorize(&self, user: &User, method: &Method, subresources: &[&str]) -> Result<(), Refused> {
        let verb = verb(method);
        for subresource in subresources {
            let wish = Wish::Resource {
                verb: verb.to_owned(),
                group: String::new(),
                resource: "nodes".to_owned(),
                subresource: (*subresource).to_owned(),
                namespace: String::new(),
                name: self.node.to_string(),
            };
            match self.delegate.authorize(user, &wish).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "the API server cannot be asked who may");
                    let name = &user.name;
                    let why = format!(
                        "Authorization error (user={name}, verb={verb}, resource=nodes, subresource={subresource})"
                    );
                    return Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, why));
                }
            }
        }
        let list = subresources.join(" ");
        let why = format!("Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{list}])\n", user.name);
        Err(refuse(StatusCode::FORBIDDEN, why))
    }
}

fn verb(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "get",
    }
}

/// The user a certificate names: common name and organizations.
fn subject(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().last()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned));
    let mut groups: Vec<String> = groups.collect();
    groups.push("system:authenticated".into());
    (!name.is_empty()).then(|| User { name, groups, ..User::default() })
}
