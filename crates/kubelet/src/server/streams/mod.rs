//! `/exec`, `/attach` and `/portForward`: streams between a client and what runs in a pod. The runtime
//! serves them on a place of its own, which it names when it is asked for one; this is the way there.
//!
//! ```text
//!  SPDY/3.1                         ═══ bytes as they are ═══════════► runtime (SPDY)
//!  WebSocket channel.k8s.io … v5    ─── exec.rs: messages ◄► streams ► runtime (SPDY)
//!  WebSocket SPDY/3.1+portforward…  ─── tunnel.rs: messages ◄► bytes ► runtime (SPDY)
//!  WebSocket v4 of port-forward     ═══ bytes as they are ═══════════► runtime (WebSocket)
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
        Verb::PortForward => {
            let sandbox = view.seen.sandboxes.iter().find(|s| s.ready).ok_or_else(|| {
                Refused::internal(format!("failed to find sandboxID for pod {}", view.pod.full_name()))
            })?;
            server.runtime.port_forward(&sandbox.id, ports).await?
        }
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
