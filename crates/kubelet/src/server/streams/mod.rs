//! `/exec`, `/attach` and `/portForward`: streams between a client and what runs in a pod. The runtime
//! serves them on a place of its own, which it names when it is asked for one; this is the way there.
//!
//! ```text
//!  exec, attach
//!    SPDY/3.1                         ═══ bytes as they are ═══════════► runtime (SPDY)
//!    WebSocket channel.k8s.io … v5    ─── exec.rs: messages ◄► streams ► runtime (SPDY)
//!  port-forward
//!    SPDY/3.1                         ─── forward: streams ◄► sockets ─► in the pod's network
//!    WebSocket SPDY/3.1+portforward…  ─── tunnel.rs: messages ◄► bytes ─► forward, as above
//!    WebSocket v4                     ═══ bytes as they are ═══════════► runtime (WebSocket)
//!  port-forward where the pod's network cannot be entered: SPDY's bytes as they are ► runtime (SPDY)
//! ```
//!
//! A runtime's WebSocket cannot end one direction alone, so it is spoken to in SPDY wherever a client can.
//! Each stream has a connection of its own on both sides, which is used for nothing else, and both end
//! together. What the runtime answers is not followed anywhere.
//!
//! # Invariants
//!
//! * Nothing is opened in the runtime for who does not ask for a stream, or for no stream that is spoken.
//!   [tests.rs: what_is_no_stream_opens_nothing]
//! * When one end is gone so is the other, and nothing of the stream is left. [tests.rs:
//!   when_one_end_is_gone_so_is_the_other]

mod exec;
mod forward;
mod options;
pub mod run;
mod runtime;
mod tunnel;

use http::request::Parts;
use http::{HeaderValue, StatusCode};
use transport::splice::Patience;
use transport::websocket::{self, Protocols, Takeover};
use transport::{Response, channels, once};

use super::{Server, text};
use crate::sync::worker::View;
use options::Options;

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Exec,
    Attach,
    PortForward,
}

/// Whose stream is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    pub namespace: String,
    pub pod: String,
    pub uid: Option<String>,
    /// Empty for port-forward.
    pub container: String,
}

impl Whose {
    /// From the rest of a path: `{namespace}/{pod}[/{uid}]/{container}`.
    pub fn container(rest: &[String]) -> Option<Self> {
        let (namespace, pod, uid, container) = match rest {
            [namespace, pod, container] => (namespace, pod, None, container),
            [namespace, pod, uid, container] => (namespace, pod, Some(uid.clone()), container),
            _ => return None,
        };
        Some(Self { namespace: namespace.clone(), pod: pod.clone(), uid, container: container.clone() })
    }

    /// From the rest of a path: `{namespace}/{pod}[/{uid}]`.
    pub fn pod(rest: &[String]) -> Option<Self> {
        let (namespace, pod, uid) = match rest {
            [namespace, pod] => (namespace, pod, None),
            [namespace, pod, uid] => (namespace, pod, Some(uid.clone())),
            _ => return None,
        };
        Some(Self { namespace: namespace.clone(), pod: pod.clone(), uid, container: String::new() })
    }
}

/// Why there is no stream; said as plain text.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    status: StatusCode,
    why: String,
}

impl Refused {
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }

    fn bad(why: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, why)
    }

    fn internal(why: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, why)
    }

    /// As an answer.
    pub fn response(self) -> Response {
        let mut response = text(self.status, self.why);
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<::cri::Error> for Refused {
    fn from(error: ::cri::Error) -> Self {
        let status = match &error {
            ::cri::Error::NotFound(_) => StatusCode::NOT_FOUND,
            ::cri::Error::Failed { code: "ResourceExhausted", .. } => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<websocket::Refused> for Refused {
    fn from(refused: websocket::Refused) -> Self {
        match refused {
            websocket::Refused::Wrong(why) => Self::bad(why),
            websocket::Refused::Protocol(why) => Self::new(StatusCode::FORBIDDEN, why),
        }
    }
}

/// The protocol of port-forward in SPDY, in a WebSocket.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// How a client wants to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoken {
    /// In a way that the runtime speaks, too: its bytes are passed on.
    AsIs,
    /// In channels of a WebSocket.
    Channels,
    /// In SPDY within a WebSocket.
    Tunnel,
}

impl Spoken {
    fn of(verb: Verb, headers: &http::HeaderMap) -> Option<Self> {
        if websocket::is_asked(headers) {
            return Some(match verb {
                Verb::PortForward if websocket::protocols(headers).contains(&TUNNEL) => Self::Tunnel,
                Verb::PortForward => Self::AsIs,
                Verb::Exec | Verb::Attach => Self::Channels,
            });
        }
        let says = |name: http::HeaderName, word: &str| {
            let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
            lines.flat_map(|line| line.split(',')).any(|said| said.trim().eq_ignore_ascii_case(word))
        };
        let spdy = says(http::header::CONNECTION, "upgrade") && says(http::header::UPGRADE, "SPDY/3.1");
        spdy.then_some(Self::AsIs)
    }
}

/// Answers with a stream, or why there is none.
pub async fn answer(server: &Server, request: &Parts, verb: Verb, whose: &Whose) -> Response {
    match open(server, request, verb, whose).await {
        Ok(response) => response,
        Err(refused) => refused.response(),
    }
}

async fn open(server: &Server, request: &Parts, verb: Verb, whose: &Whose) -> Result<Response, Refused> {
    let query = super::query(request.uri.query());
    let spoken = Spoken::of(verb, &request.headers);
    let options = match verb {
        Verb::PortForward => Options::default(),
        Verb::Exec | Verb::Attach => Options::parse(&query).map_err(Refused::bad)?,
    };
    if verb == Verb::Exec && super::has_unreadable(request.uri.query(), "command") {
        return Err(Refused::bad("the command contains bytes that are no UTF-8"));
    }
    let ports = match (verb, spoken) {
        (Verb::PortForward, Some(Spoken::AsIs)) if websocket::is_asked(&request.headers) => {
            options::ports(&query).map_err(Refused::bad)?
        }
        _ => Vec::new(),
    };
    let (Some(spoken), Some(takeover)) = (spoken, Takeover::of(&request.extensions)) else {
        return Err(Refused::bad("Upgrade request required"));
    };
    // What is wrong with the client's handshake costs the runtime nothing.
    let accepted = match spoken {
        Spoken::AsIs => None,
        Spoken::Channels => Some(websocket::accept(&takeover, &request.headers, Protocols::Of(channels::ALL))?),
        Spoken::Tunnel => Some(websocket::accept(&takeover, &request.headers, Protocols::Of(&[TUNNEL]))?),
    };
    let view = find(server, whose)?;
    if verb == Verb::PortForward && !(spoken == Spoken::AsIs && websocket::is_asked(&request.headers)) {
        if let Some(to) = reached(server, &view).await? {
            return forwarded(server, request, takeover, accepted.map(|(response, _)| response), to);
        }
    }
    let url = match verb {
        Verb::Exec => {
            let command = query.into_iter().filter(|(key, _)| key == "command").map(|(_, word)| word);
            server.runtime.exec_stream(options.exec(&container(&view, whose)?, command.collect())).await?
        }
        Verb::Attach => {
            let id = container(&view, whose)?;
            // A terminal is there from the start or not at all.
            let tty = view.pod.container(&whose.container).is_some_and(|c| c.tty == Some(true));
            server.runtime.attach_stream(options.attach(&id, tty)).await?
        }
        Verb::PortForward => server.runtime.port_forward(sandbox(&view)?, ports).await?,
    };
    let (response, protocol) = match accepted {
        None => return pass_on(server, request, takeover, &url).await,
        Some(accepted) => accepted,
    };
    let upgrade = if spoken == Spoken::Tunnel { "portforward.k8s.io" } else { "v4.channel.k8s.io" };
    let mut answered = runtime::ask(&url, runtime::spdy(upgrade), &server.clock).await?;
    let io = once::taken(&mut answered).await.map_err(|error| Refused::internal(error.to_string()))?;
    let clock = server.clock.clone();
    let task: futures::future::BoxFuture<'static, ()> = match (spoken, channels::Spoken::of(&protocol)) {
        (Spoken::Channels, Some(spoken)) => {
            let wanted =
                exec::Wanted { stdin: options.stdin, stdout: options.stdout, stderr: options.stderr, tty: options.tty };
            Box::pin(exec::carry(takeover, io, wanted, spoken, server.stream_idle, clock))
        }
        _ => Box::pin(tunnel::carry(takeover, io, server.stream_idle, clock)),
    };
    // It ends with the kubelet.
    server.stage.run(task);
    Ok(response)
}

/// The pod that is meant, as it is now.
fn find(server: &Server, whose: &Whose) -> Result<View, Refused> {
    let found = server.pods.find(&whose.namespace, &whose.pod);
    let missing = || Refused::new(StatusCode::NOT_FOUND, "pod does not exist");
    let view = found.ok_or_else(missing)?.borrow().clone();
    if whose.uid.as_ref().is_some_and(|uid| *uid != view.pod.uid) {
        return Err(Refused::new(StatusCode::NOT_FOUND, "pod not found"));
    }
    Ok(view)
}

/// The id of the sandbox that the pod runs in.
fn sandbox(view: &View) -> Result<&str, Refused> {
    let ready = view.seen.sandboxes.iter().find(|sandbox| sandbox.ready);
    let missing = || Refused::internal(format!("failed to find sandboxID for pod {}", view.pod.full_name()));
    Ok(ready.ok_or_else(missing)?.id.as_str())
}

/// The pod's network, where connections can be made in it from here.
async fn reached(server: &Server, view: &View) -> Result<Option<forward::To>, Refused> {
    let network = match server.runtime.network(sandbox(view)?).await {
        Ok(network) => network,
        Err(error) if error.is_not_found() => return Err(error.into()),
        Err(error) => {
            tracing::debug!(%error, "the runtime does not tell of a pod's network");
            None
        }
    };
    match network {
        Some(network) if forward::reaches(&network).await => {
            Ok(Some(forward::To { network, pod: view.pod.full_name(), uid: view.pod.uid.clone() }))
        }
        _ => Ok(None),
    }
}

/// Serves the client's connections to the pod's ports; `accepted` is the answer to a WebSocket.
fn forwarded(
    server: &Server,
    request: &Parts,
    takeover: Takeover,
    accepted: Option<Response>,
    to: forward::To,
) -> Result<Response, Refused> {
    let (idle, clock) = (server.stream_idle, server.clock.clone());
    let Some(response) = accepted else {
        let response = spdy_accepted(&request.headers)?;
        server.stage.run(async move {
            match takeover.io().await {
                Ok(io) => forward::serve(io, to, idle, clock).await,
                Err(error) => tracing::debug!(%error, "a connection was not handed over"),
            }
        });
        return Ok(response);
    };
    server.stage.run(async move {
        let (near, far) = tokio::io::duplex(TUNNELLED);
        let carrying = tunnel::carry(takeover, Box::new(near), idle, clock.clone());
        tokio::join!(carrying, forward::serve(Box::new(far), to, idle, clock));
    });
    Ok(response)
}

/// What a tunnel holds each way: one message.
const TUNNELLED: usize = tunnel::PIECE;

/// The answer to a client that wants to speak SPDY of port-forward, if that is what it wants.
fn spdy_accepted(headers: &http::HeaderMap) -> Result<Response, Refused> {
    let lines = headers.get_all(runtime::VERSION).iter().filter_map(|line| line.to_str().ok());
    let offered: Vec<&str> = lines.flat_map(|line| line.split(',')).map(str::trim).filter(|p| !p.is_empty()).collect();
    if offered.is_empty() {
        return Err(Refused::bad(format!("unable to upgrade: {} is required", runtime::VERSION)));
    }
    if !offered.contains(&forward::PROTOCOL) {
        let why = format!(
            "unable to upgrade: unable to negotiate protocol: client supports [{}], server accepts [{}]",
            offered.join(" "),
            forward::PROTOCOL
        );
        return Err(Refused::new(StatusCode::FORBIDDEN, why));
    }
    let mut response = Response::new(transport::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = response.headers_mut();
    answer.insert(http::header::CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.insert(http::header::UPGRADE, HeaderValue::from_static("SPDY/3.1"));
    answer.insert(runtime::VERSION, HeaderValue::from_static(forward::PROTOCOL));
    Ok(response)
}

/// The running container that is meant.
fn container(view: &View, whose: &Whose) -> Result<String, Refused> {
    let found = view.seen.container(&whose.container).filter(|container| container.may_run());
    let missing = || Refused::internal(format!("container not found ({:?})", whose.container));
    Ok(found.ok_or_else(missing)?.id.clone())
}

/// Passes the client's bytes on as they are.
async fn pass_on(server: &Server, request: &Parts, takeover: Takeover, url: &str) -> Result<Response, Refused> {
    let asked = runtime::Asked { method: request.method.clone(), headers: runtime::about_upgrade(&request.headers) };
    let mut answered = runtime::ask(url, asked, &server.clock).await?;
    let spliced = once::upgraded(&takeover, &mut answered)
        .ok_or_else(|| Refused::internal("the runtime has switched protocols, but not the connection"))?;
    let (clock, patience) = (server.clock.clone(), Patience { idle: Some(server.stream_idle), ..Patience::default() });
    server.stage.run(async move { spliced.run(patience, &clock).await });
    let mut response = Response::new(transport::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = answered.headers().clone();
    Ok(response)
}

#[cfg(test)]
mod tests;
