//! Serving: TLS, HTTP/1.1 and HTTP/2 by ALPN, everything bounded, an orderly end.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustix::net::sockopt;
use rustls::pki_types::CertificateDer;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::ahead::Ahead;
use crate::gather::gather;
use crate::leftover::Leftover;
use crate::time::HyperTimer;
use crate::usage::Usage;
use crate::{Body, Response, SharedHandler};

/// What a server allows. At a bound the connection is closed or refused.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once; more wait in the kernel's queue.
    pub connections: usize,
    /// Streams of one HTTP/2 connection at once.
    pub streams: u32,
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For the head of a request, and for the first request of a connection.
    pub head: Duration,
    /// How long a connection may be without requests, at least; it ends before twice that.
    pub idle: Duration,
    /// Bytes of headers.
    pub head_bytes: u32,
    /// For requests under way once the server stops.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            streams: 250,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(32),
            idle: Duration::from_secs(90),
            head_bytes: 64 * 1024,
            drain: Duration::from_secs(10),
        }
    }
}

/// What is known of the other end of a connection; in the extensions of each of its requests.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// The certificates the client showed, its own first, with proof that it holds the key of the
    /// first. Whether a trusted authority signed them is for the authenticator to say.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

/// A connection's place among those the server allows; in the extensions of each of its requests, for
/// those that take the connection over.
#[derive(Clone)]
pub(crate) struct Place(#[allow(dead_code, reason = "held for its drop")] Arc<OwnedSemaphorePermit>);

/// How many connections the kernel keeps that nobody has accepted yet.
const BACKLOG: u32 = 1024;

/// Listens at an address. Every address (`0.0.0.0` or `::`) means those of both families, as far as the host has
/// both: who says it wants to be reached, and a cluster may have IPv6 first or alone.
///
/// # Errors
/// When the address is not to be had.
pub async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return TcpListener::bind(address).await;
    }
    // The error is that of what was asked.
    match of_both(address.port()) {
        Ok(listener) => Ok(listener),
        Err(why) => {
            let listener = TcpListener::bind(address).await?;
            // Of a host without IPv6 nothing is to be said.
            if why.kind() == std::io::ErrorKind::AddrInUse {
                tracing::warn!(%address, "somebody else listens there by the other family: it is heard by one only");
            }
            Ok(listener)
        }
    }
}

fn of_both(port: u16) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    socket.set_reuseaddr(true)?;
    // Whatever the host's own setting is.
    sockopt::set_ipv6_v6only(&socket, false)?;
    socket.bind((Ipv6Addr::UNSPECIFIED, port).into())?;
    socket.listen(BACKLOG)
}

/// Accepts connections until the stage stops, then lets requests under way end.
///
/// # Errors
/// Never once it accepts; the listener's own failures (descriptors exhausted) are waited out.
pub async fn serve(
    listener: TcpListener,
    tls: rustls::ServerConfig,
    handler: SharedHandler,
    limits: Limits,
    clock: SharedClock,
    stage: &Stage,
) -> std::io::Result<()> {
    run(listener, Some(tokio_rustls::TlsAcceptor::from(Arc::new(tls))), handler, limits, clock, stage).await
}

/// The same without TLS: for health endpoints on loopback.
///
/// # Errors
/// As [`serve`].
pub async fn serve_plain(
    listener: TcpListener,
    handler: SharedHandler,
    limits: Limits,
    clock: SharedClock,
    stage: &Stage,
) -> std::io::Result<()> {
    run(listener, None, handler, limits, clock, stage).await
}

async fn run(
    listener: TcpListener,
    acceptor: Option<tokio_rustls::TlsAcceptor>,
    handler: SharedHandler,
    limits: Limits,
    clock: SharedClock,
    stage: &Stage,
) -> std::io::Result<()> {
    let slots = Arc::new(Semaphore::new(limits.connections));
    let connections = Stage::new();
    let mut stopped = std::pin::pin!(stage.stopped());
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stopped => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let (stream, address, slot) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept connections");
                clock.sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let connection = Connection {
            acceptor: acceptor.clone(),
            handler: handler.clone(),
            limits,
            clock: clock.clone(),
            stopping: connections.clone(),
            place: Place(Arc::new(slot)),
        };
        connections.spawn(connection.run(stream, address));
    }
    drop(listener);
    if !connections.finish(&clock, limits.drain).await {
        tracing::warn!("requests were still under way when the server stopped");
    }
    Ok(())
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    // IPv4 is told as such where one socket hears both families.
    Ok((stream, SocketAddr::new(address.ip().to_canonical(), address.port()), slot))
}

/// An end whose host has vanished without a word is noticed within two minutes, whatever is spoken: what has
/// been upgraded, or follows a log, may rightly be silent for hours.
pub(crate) fn keep_alive(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

struct Connection {
    acceptor: Option<tokio_rustls::TlsAcceptor>,
    handler: SharedHandler,
    limits: Limits,
    clock: SharedClock,
    stopping: Stage,
    place: Place,
}

impl Connection {
    async fn run(self, stream: TcpStream, address: SocketAddr) {
        if let Err(error) = keep_alive(&stream) {
            tracing::debug!(%error, "a connection's options cannot be set");
        }
        let Some(acceptor) = &self.acceptor else {
            let peer = Peer { address, certificates: Arc::new([]) };
            return self.speak(stream, peer).await;
        };
        let handshake = self.clock.timeout(self.limits.handshake, acceptor.accept(Ahead::new(stream)));
        let stream = match handshake.await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%address, %error, "TLS handshake failed"),
            Err(_) => return tracing::debug!(%address, "TLS handshake took too long"),
        };
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let peer = Peer { address, certificates: shown.to_vec().into() };
        self.speak(stream, peer).await;
    }

    async fn speak<I>(&self, stream: I, peer: Peer)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let address = peer.address;
        let (handler, clock, place) = (self.handler.clone(), self.clock.clone(), self.place.clone());
        let usage = Arc::new(Usage::default());
        let used = usage.clone();
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            let (handler, clock, turn) = (handler.clone(), clock.clone(), used.begin());
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(place.clone());
            async move { Ok::<_, crate::Error>(answer(handler, clock, request).await?.map(|b| turn.answered(b))) }
        });
        let builder = self.builder();
        let (stream, turns) = gather(stream);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let mut stopping = std::pin::pin!(self.stopping.stopped());
        let end = tokio::select! {
            end = turns.run(connection.as_mut()) => end,
            () = &mut stopping => {
                connection.as_mut().graceful_shutdown();
                let drained = self.clock.timeout(self.limits.drain, turns.run(connection)).await;
                drained.unwrap_or(Ok(()))
            }
            () = usage.forgotten(&self.clock, self.limits.head, self.limits.idle) => {
                connection.as_mut().graceful_shutdown();
                loop {
                    match self.clock.timeout(self.limits.drain, turns.run(connection.as_mut())).await {
                        Ok(end) => break end,
                        // Asked in the moment of parting: served to its end.
                        Err(_) if usage.busy() => {}
                        Err(_) => break Ok(()),
                    }
                }
            }
        };
        if let Err(error) = end {
            tracing::debug!(%address, %error, "connection ended");
        }
    }

    fn builder(&self) -> auto::Builder<TokioExecutor> {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        let timer = HyperTimer::new(self.clock.clone());
        builder
            .http1()
            .timer(timer.clone())
            .header_read_timeout(self.limits.head)
            .max_buf_size(self.limits.head_bytes.max(8192) as usize);
        builder
            .http2()
            .timer(timer)
            .max_concurrent_streams(self.limits.streams)
            // What waits in the server for one client is bounded by streams times this.
            .max_send_buf_size(128 * 1024)
            .max_header_list_size(self.limits.head_bytes)
            .keep_alive_interval(Some(Duration::from_secs(30)))
            .keep_alive_timeout(Duration::from_secs(15));
        builder
    }
}

/// hyper takes an error as "close the connection"; that is what a handler's failure means.
async fn answer(
    handler: SharedHandler,
    clock: SharedClock,
    request: hyper::Request<Incoming>,
) -> Result<Response, crate::Error> {
    // HTTP/2 can stop one stream and keep the others.
    let one_at_a_time = request.version() < http::Version::HTTP_2;
    let request = request.map(|body| -> Body {
        if one_at_a_time && !body.is_end_stream() {
            Leftover::new(body, clock).map_err(Into::into).boxed_unsync()
        } else {
            body.map_err(Into::into).boxed_unsync()
        }
    });
    handler.call(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_address_is_that_of_either_family() {
        for (every, reached) in [("0.0.0.0:0", [true, true]), ("[::]:0", [true, true]), ("127.0.0.1:0", [true, false])]
        {
            let listener = listen(every.parse().expect("an address")).await.expect("bound");
            let (port, places) = (listener.local_addr().expect("an address").port(), Arc::new(Semaphore::new(9)));
            for (ip, is_reached) in ["127.0.0.1", "::1"].into_iter().zip(reached) {
                let near = TcpStream::connect((ip, port)).await;
                assert_eq!(near.is_ok(), is_reached, "{every} at {ip}");
                if is_reached {
                    let (_, from, _) = accept(&listener, &places).await.expect("accepted");
                    assert_eq!(from.ip().to_string(), ip, "{every}");
                }
            }
        }
        // What somebody has in one family is refused as what it is.
        let theirs = TcpListener::bind("127.0.0.1:0").await.expect("bound").local_addr().map(|a| a.port());
        let port = theirs.expect("an address");
        let _theirs = TcpListener::bind(("0.0.0.0", port)).await.expect("bound");
        let error = listen(SocketAddr::from(([0, 0, 0, 0], port))).await.expect_err("taken");
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn clients_that_vanish_are_asked_after() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let _near = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
        let (far, _) = listener.accept().await.expect("accepted");
        keep_alive(&far).expect("set");
        assert!(sockopt::socket_keepalive(&far).expect("read") && far.nodelay().expect("read"));
        let asked = (sockopt::tcp_keepidle(&far), sockopt::tcp_keepintvl(&far), sockopt::tcp_keepcnt(&far));
        assert_eq!(asked, (Ok(Duration::from_secs(60)), Ok(Duration::from_secs(15)), Ok(4)));
    }
}
