//! One API that another server answers for: where that server is, how it proves who it is, and how it is
//! asked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::k8s::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, HOST, IF_NONE_MATCH, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use kinds::User;
use kinds::api_service::{GROUP, PORT};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::client::Resumption;
use stdx::ClockExt;
use tokio::sync::Notify;
use transport::once::{self, Secure};
use transport::{Response, tls};

use super::availability::Condition;
use super::resolve;
use crate::server::ApiServer;
use crate::subresources::connect::front_proxy;

/// The Service of the server that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub namespace: String,
    pub name: String,
    pub port: u16,
}

/// An API that another server answers for.
pub struct Remote {
    /// Of its APIService.
    pub name: String,
    pub group: String,
    pub version: String,
    pub group_priority: i32,
    pub version_priority: i32,
    pub place: Place,
    /// The name that the server's certificate must carry.
    pub server_name: String,
    tls: Result<ClientConfig, String>,
    available: AtomicBool,
    /// What the condition should be, once that is known.
    should: Mutex<Option<Condition>>,
    /// Whether the server is there is to be looked at again.
    pub(super) look: Notify,
    /// What it serves is to be fetched again.
    pub(super) fetch: Notify,
}

/// An answer, read whole.
pub struct Fetched {
    pub code: u16,
    pub media: String,
    pub tag: String,
    pub body: Bytes,
}

/// How a document is asked for.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    pub path: &'a str,
    pub accept: &'a str,
    /// The tag of what is known already.
    pub known: Option<&'a str>,
    /// No longer answer is read.
    pub limit: usize,
    /// No later answer is waited for.
    pub patience: Duration,
}

/// In whose name this server asks for itself.
pub fn myself() -> User {
    let groups = vec!["system:masters".into()];
    User { name: "system:kube-aggregator".into(), groups, ..User::default() }
}

impl Remote {
    /// As the APIService says.
    pub fn new(
        name: &str,
        spec: &apiregistration::APIServiceSpec,
        service: &apiregistration::ServiceReference,
        server: &ApiServer,
    ) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let place = Place {
            namespace: text(&service.namespace),
            name: text(&service.name),
            port: u16::try_from(service.port.unwrap_or(PORT)).unwrap_or_default(),
        };
        Self {
            name: name.to_owned(),
            group: text(&spec.group),
            version: text(&spec.version),
            group_priority: spec.group_priority_minimum,
            version_priority: spec.version_priority,
            server_name: format!("{}.{}.svc", place.name, place.namespace),
            place,
            tls: tls(spec, server),
            available: AtomicBool::new(false),
            should: Mutex::default(),
            look: Notify::new(),
            fetch: Notify::new(),
        }
    }

    /// True for a version of the group of APIServices: whether that server is there is said, but this server's own
    /// registration is nobody else's to answer for.
    pub fn is_nobodys(&self) -> bool {
        self.group == GROUP
    }

    /// True when requests are passed on.
    pub fn is_available(&self) -> bool {
        self.available.load(Ordering::Acquire)
    }

    /// Looks at once whether the server is there.
    pub(super) fn look_again(&self) {
        self.look.notify_one();
    }

    /// What the condition of the APIService is now.
    pub(super) fn said(&self, condition: Option<&Condition>) {
        let is_available = condition.is_some_and(Condition::is_true);
        if self.available.swap(is_available, Ordering::AcqRel) != is_available {
            self.fetch.notify_one();
        }
        // Somebody else has changed it.
        if self.should.lock().as_ref().is_some_and(|should| Some(should) != condition) {
            self.look_again();
        }
    }

    /// What the condition should be.
    pub(super) fn should_say(&self, condition: &Condition) {
        *self.should.lock() = Some(condition.clone());
    }

    /// How the server proves who it is.
    ///
    /// # Errors
    /// Why it cannot be asked at all.
    pub fn secure(&self) -> Result<Secure<'_>, String> {
        let config = self.tls.as_ref().map_err(Clone::clone)?;
        Ok(Secure { config, server_name: &self.server_name })
    }

    /// The path below which everything of this API is.
    pub fn path(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        }
    }

    /// Asks for the head of an answer, in this server's own name; the URL is for messages.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn ask(&self, server: &ApiServer, ask: Ask<'_>) -> Result<(String, Response), String> {
        let address = resolve::address(server, &self.place).await?;
        let url = format!("https://{address}{}", ask.path);
        let failed = |why: String| format!("failing or missing response from {url}: Get {url:?}: {why}");
        let answer = async {
            let io = once::connect(server.dialer(), &address, Some(self.secure()?), &server.clock);
            let io = io.await.map_err(|error| error.to_string())?;
            let mut request = http::Request::new(transport::empty());
            *request.uri_mut() = ask.path.parse().map_err(|error| format!("{error}"))?;
            *request.headers_mut() = headers(&address, ask)?;
            once::send(io, request).await.map_err(|error| error.to_string())
        };
        let answer = server.clock.timeout(ask.patience, answer).await;
        let answer = answer.unwrap_or_else(|_| {
            Err("context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_owned())
        });
        match answer {
            Ok(answer) => Ok((url, answer)),
            Err(why) => Err(failed(why)),
        }
    }

    /// Asks for a document.
    ///
    /// # Errors
    /// Why there is none; also when it is too long or too late.
    pub async fn fetch(&self, server: &ApiServer, ask: Ask<'_>) -> Result<Fetched, String> {
        let whole = async {
            let (url, response) = self.ask(server, ask).await?;
            let (head, body) = response.into_parts();
            let code = head.status.as_u16();
            let (media, tag) = (text(&head.headers, CONTENT_TYPE), text(&head.headers, ETAG));
            let body = transport::read(body, ask.limit).await;
            let body = body.map_err(|error| format!("{url}: {error}"))?;
            Ok(Fetched { code, media, tag, body })
        };
        let fetched = server.clock.timeout(ask.patience, whole).await;
        fetched.unwrap_or_else(|_| Err(format!("{}: request timed out", ask.path)))
    }
}

fn text(headers: &HeaderMap, name: HeaderName) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

fn headers(address: &str, ask: Ask<'_>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let value = |text: &str| HeaderValue::from_str(text).map_err(|error| error.to_string());
    headers.insert(HOST, value(address)?);
    headers.insert(ACCEPT, value(ask.accept)?);
    headers.insert(USER_AGENT, HeaderValue::from_static("kube-apiserver"));
    if let Some(known) = ask.known.filter(|known| !known.is_empty()) {
        headers.insert(IF_NONE_MATCH, value(known)?);
    }
    front_proxy::speak_for(&mut headers, &myself()).map_err(|status| status.message.clone())?;
    Ok(headers)
}

/// Whom to believe, and what to show.
fn tls(spec: &apiregistration::APIServiceSpec, server: &ApiServer) -> Result<ClientConfig, String> {
    let identity = server.aggregation.options.identity.clone();
    let mut config = match spec.ca_bundle.as_ref().filter(|bundle| !bundle.0.is_empty()) {
        _ if spec.insecure_skip_tls_verify == Some(true) => tls::trusting(identity),
        Some(pem) => {
            let roots = tls::roots(&pem.0).map_err(|error| format!("unable to load root certificates: {error}"))?;
            tls::client(&server.clock, roots, identity)
        }
        // No authority of the host's is asked: a server of the cluster has one of the cluster's.
        None => tls::client(&server.clock, rustls::RootCertStore::empty(), identity),
    }
    .map_err(|error| error.to_string())?;
    // A resumed session would speak for the certificate it began with.
    config.resumption = Resumption::disabled();
    Ok(config)
}
