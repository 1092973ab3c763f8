//! Dialling: requests over TLS to one server, on pooled connections, HTTP/2 where the server speaks it.

use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::RwLock;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use stdx::{ClockExt, SharedClock};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::ahead::Ahead;
use crate::files::FileIdentity;
use crate::serve::keep_alive;
use crate::time::HyperTimer;
use crate::trust::Trust;
use crate::{Body, Error, Handler, Request, Responding};

/// Which server, and how it proves to be the one.
#[derive(Clone, Debug)]
pub struct Target {
    /// `host:port` to connect to.
    pub address: String,
    /// The name its certificate must carry: a DNS name or an address. It need not be the host that
    /// is dialled: identity is not an address.
    pub server_name: String,
}

/// Connections at rest that are kept.
const IDLE_PER_HOST: usize = 8;
/// How long a connection at rest is kept.
const IDLE: Duration = Duration::from_secs(90);
/// How long connecting and the TLS handshake may take together.
const CONNECT: Duration = Duration::from_secs(10);

/// A handler whose answers come from a server.
pub struct Https {
    connector: Connector,
    authority: Authority,
    /// What is shown and whom is believed, when that may change.
    watched: Option<(Option<Arc<FileIdentity>>, Trust)>,
    /// The connections, and for which of those they were made.
    pool: RwLock<(u64, Client<Connector, Body>)>,
}

impl Https {
    /// Does not connect yet.
    pub fn new(target: &Target, tls: &ClientConfig, clock: &SharedClock) -> Result<Self, Error> {
        Self::with_protocols(target, tls, clock, &[b"h2", b"http/1.1"])
    }

    /// The same over HTTP/1.1 only, which protocol upgrades need.
    pub fn http1(target: &Target, tls: &ClientConfig, clock: &SharedClock) -> Result<Self, Error> {
        Self::with_protocols(target, tls, clock, &[b"http/1.1"])
    }

    fn with_protocols(
        target: &Target,
        tls: &ClientConfig,
        clock: &SharedClock,
        protocols: &[&[u8]],
    ) -> Result<Self, Error> {
        let authority = target.address.parse().map_err(|e| Error::Invalid(format!("{}: {e}", target.address)))?;
        let name = ServerName::try_from(target.server_name.clone())
            .map_err(|e| Error::Invalid(format!("{}: {e}", target.server_name)))?;
        let mut tls = tls.clone();
        tls.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
        let connector =
            Connector { address: target.address.clone().into(), name, tls: Arc::new(tls), clock: clock.clone() };
        let pool = RwLock::new((0, pool(&connector)));
        Ok(Self { connector, authority, watched: None, pool })
    }

    /// Dials anew when the identity that the TLS configuration shows, or whom it believes, has
    /// changed. What runs on the connections before goes on there.
    #[must_use]
    pub fn redialling(self, identity: Option<Arc<FileIdentity>>, trust: Trust) -> Self {
        Self { watched: Some((identity, trust)), ..self }
    }

    fn client(&self) -> Client<Connector, Body> {
        let generation = self.watched.as_ref().map_or(0, |(identity, trust)| {
            identity.as_ref().map_or(0, |identity| identity.generation()) + trust.generation()
        });
        let (of, client) = { self.pool.read().clone() };
        if of == generation {
            return client;
        }
        let mut tls = (*self.connector.tls).clone();
        // A resumed session would speak for the identity it began with, and believe whom it believed.
        tls.resumption = Resumption::in_memory_sessions(SESSIONS);
        let client = pool(&Connector { tls: Arc::new(tls), ..self.connector.clone() });
        *self.pool.write() = (generation, client.clone());
        client
    }
}

/// TLS sessions that are remembered.
const SESSIONS: usize = 32;

fn pool(connector: &Connector) -> Client<Connector, Body> {
    let timer = HyperTimer::new(connector.clock.clone());
    Client::builder(TokioExecutor::new())
        .pool_timer(timer.clone())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(IDLE_PER_HOST)
        .timer(timer)
        // A reader that does not read holds up its own stream only.
        .http2_initial_stream_window_size(2 << 20)
        .http2_initial_connection_window_size(16 << 20)
        // Long answers come in few frames.
        .http2_max_frame_size(256 * 1024)
        .http2_keep_alive_interval(Duration::from_secs(30))
        .http2_keep_alive_timeout(Duration::from_secs(15))
        .build(connector.clone())
}

impl Handler for Https {
    fn call(&self, request: Request) -> Responding {
        let client = self.client();
        let (mut head, body) = request.into_parts();
        let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let uri = Uri::builder().scheme(Scheme::HTTPS).authority(self.authority.clone()).path_and_query(path).build();
        Box::pin(async move {
            head.uri = uri.map_err(|e| Error::Invalid(e.to_string()))?;
            // The pool speaks what ALPN chose; the caller's version means nothing here.
            head.version = http::Version::HTTP_11;
            let response = client.request(http::Request::from_parts(head, body)).await;
            match response {
                Ok(response) => Ok(response.map(|body| body.map_err(Into::into).boxed_unsync())),
                Err(error) if error.is_connect() => Err(Error::Connect(chain(&error))),
                Err(error) => Err(Error::Broken(chain(&error))),
            }
        })
    }
}

/// An error with its causes, outermost first.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

#[derive(Clone)]
struct Connector {
    address: Arc<str>,
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
    clock: SharedClock,
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let Self { address, name, tls, clock } = self.clone();
        Box::pin(async move {
            let connect = async {
                let stream = TcpStream::connect(&*address).await?;
                keep_alive(&stream)?;
                TlsConnector::from(tls).connect(name, Ahead::new(stream)).await
            };
            let late =
                || std::io::Error::new(std::io::ErrorKind::TimedOut, format!("dialling {address} took too long"));
            let stream = clock.timeout(CONNECT, connect).await.map_err(|_| late())??;
            Ok(TokioIo::new(Stream(stream)))
        })
    }
}

/// A TLS stream that tells hyper whether HTTP/2 was agreed on.
struct Stream(TlsStream<Ahead<TcpStream>>);

impl Connection for Stream {
    fn connected(&self) -> Connected {
        let connected = Connected::new();
        if self.0.get_ref().1.alpn_protocol() == Some(b"h2") { connected.negotiated_h2() } else { connected }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
