//! One request on a connection of its own, which is never used for another: for requests that are passed on
//! to servers that others run, and that may turn the connection into something else.
//!
//! ```text
//!  dial ─► (TLS) ─► request ─► response ─► body, then closed
//!                        └─ 101 ─► splice: bytes both ways until either end is done
//! ```

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use stdx::{ClockExt, SharedClock};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::ahead::Ahead;
use crate::dial::chain;
use crate::serve::keep_alive;
use crate::splice::{self, Patience};
use crate::websocket::Takeover;
use crate::{Error, Request, Response};

/// How long connecting and the TLS handshake may take together.
const CONNECT: Duration = Duration::from_secs(30);

/// Opens connections.
pub trait Dialer: Send + Sync + 'static {
    /// Connects to `host:port`.
    fn dial(&self, address: &str) -> BoxFuture<'static, io::Result<TcpStream>>;
}

/// Over the network of this host.
pub struct Tcp;

impl Dialer for Tcp {
    fn dial(&self, address: &str) -> BoxFuture<'static, io::Result<TcpStream>> {
        let address = address.to_owned();
        Box::pin(async move { TcpStream::connect(&*address).await })
    }
}

/// How a server proves who it is.
pub struct Secure<'a> {
    pub config: &'a ClientConfig,
    /// The name its certificate must carry.
    pub server_name: &'a str,
}

/// A connection, secured or not.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// Connects.
///
/// # Errors
/// When nobody answers, or it is somebody else.
pub async fn connect(
    dialer: &dyn Dialer,
    address: &str,
    secure: Option<Secure<'_>>,
    clock: &SharedClock,
) -> Result<Box<dyn Io>, Error> {
    let failed = |error: io::Error| Error::Connect(format!("dial tcp {address}: {}", go(&error)));
    let connecting = async {
        let stream = dialer.dial(address).await.map_err(failed)?;
        keep_alive(&stream).map_err(failed)?;
        let Some(Secure { config, server_name }) = secure else { return Ok(Box::new(stream) as Box<dyn Io>) };
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|error| Error::Invalid(format!("{server_name}: {error}")))?;
        let mut config = config.clone();
        // What is not HTTP/1.1 cannot be upgraded.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let stream = TlsConnector::from(Arc::new(config)).connect(name, Ahead::new(stream)).await;
        Ok(Box::new(stream.map_err(|error| Error::Connect(chain(&error)))?) as Box<dyn Io>)
    };
    clock
        .timeout(CONNECT, connecting)
        .await
        .unwrap_or_else(|_| Err(Error::Connect(format!("dial tcp {address}: i/o timeout"))))
}

/// What went wrong in the words that people know from Go's programs.
pub fn go(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        _ => chain(error),
    }
}

/// Sends the request; the response comes with its body still to be read. The connection ends with it.
///
/// # Errors
/// When the connection breaks before an answer.
pub async fn send(io: Box<dyn Io>, request: Request) -> Result<Response, Error> {
    let broken = |error: hyper::Error| Error::Broken(chain(&error));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(broken)?;
    // It ends with the response's body, or with what it was upgraded to.
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection that was passed on did not end in order");
        }
    });
    let response = sender.send_request(request).await.map_err(broken)?;
    Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
}

/// Both ends of a connection that two sides have agreed to use otherwise.
pub struct Spliced {
    client: Takeover,
    server: OnUpgrade,
}

/// The two ends, once a response says 101; `None` for any other.
pub fn upgraded(client: &Takeover, response: &mut Response) -> Option<Spliced> {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return None;
    }
    let server = response.extensions_mut().remove::<OnUpgrade>()?;
    Some(Spliced { client: client.clone(), server })
}

/// The connection below a response that says 101: what was asked for is spoken on it from now on.
///
/// # Errors
/// For any other response, and when the connection is broken.
pub async fn taken(response: &mut Response) -> Result<Box<dyn Io>, Error> {
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let server = response.extensions_mut().remove::<OnUpgrade>().filter(|_| switched);
    let server = server.ok_or_else(|| Error::Invalid(format!("not switched: {}", response.status())))?;
    let connection = server.await.map_err(|error| Error::Broken(chain(&error)))?;
    Ok(Box::new(TokioIo::new(connection)))
}

impl Spliced {
    /// Carries bytes both ways until both ends are done, one breaks, or both are silent for too long. Until
    /// then the client's connection counts among the server's.
    pub async fn run(self, patience: Patience, clock: &SharedClock) {
        let (client, server) = match futures::future::try_join(self.client.connection(), self.server).await {
            Ok(both) => both,
            Err(error) => return tracing::debug!(%error, "a connection was not handed over"),
        };
        if let Err(error) = splice::run(TokioIo::new(client), TokioIo::new(server), patience, clock).await {
            tracing::debug!(%error, "a connection that was passed on did not end in order");
        }
    }
}
