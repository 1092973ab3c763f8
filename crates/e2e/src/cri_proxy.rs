//! Stands between a kubelet and its runtime: writes down every call, and holds one at a moment that the
//! test chooses, so that the kubelet can be killed just there.

use std::path::Path;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// One moment: the `nth` call of that name, before the runtime hears of it or after it has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    pub call: String,
    pub nth: usize,
    pub answered: bool,
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let when = if self.answered { "after" } else { "before" };
        write!(f, "{when} {} #{}", self.call, self.nth)
    }
}

#[derive(Default)]
struct State {
    calls: Vec<String>,
    armed: Option<Moment>,
}

/// The proxy; it ends when it is dropped.
pub struct Proxy {
    state: Arc<Mutex<State>>,
    reached: watch::Sender<bool>,
    _task: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Listens on `socket` for who calls the runtime at `runtime`.
    pub fn start(runtime: &Path, socket: &Path) -> std::io::Result<Self> {
        let listener = UnixListener::bind(socket)?;
        let (state, reached) = (Arc::<Mutex<State>>::default(), watch::Sender::new(false));
        let (runtime, shared, told) = (runtime.to_owned(), state.clone(), reached.clone());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (runtime, shared, told) = (runtime.clone(), shared.clone(), told.clone());
                tokio::spawn(async move {
                    // A connection that breaks is the kubelet's end, or the runtime's.
                    let Ok(to) = UnixStream::connect(&runtime).await else { return };
                    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(to));
                    let Ok((sender, connection)) = handshake.await else { return };
                    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
                    let service =
                        service_fn(move |request| pass(request, sender.clone(), shared.clone(), told.clone()));
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self { state, reached, _task: AbortOnDropHandle::new(task) })
    }

    /// Begins a new record; the call at `moment` is held when it comes.
    pub fn arm(&self, moment: Option<Moment>) {
        *self.state.lock() = State { calls: Vec::new(), armed: moment };
        self.reached.send_replace(false);
    }

    /// Ends when the moment has come. Its call is never answered.
    pub async fn reached(&self) {
        // The sender is ours: it cannot be gone.
        let _ = self.reached.subscribe().wait_for(|reached| *reached).await;
    }

    /// The calls since the record began.
    pub fn calls(&self) -> Vec<String> {
        self.state.lock().calls.clone()
    }
}

/// The name of a call that has one answer; `None` for streams, and for what is not CRI.
fn name(path: &str) -> Option<&str> {
    let (service, name) = path.trim_start_matches('/').split_once('/')?;
    let is_cri = matches!(service, "runtime.v1.RuntimeService" | "runtime.v1.ImageService");
    (is_cri && name != "GetContainerEvents").then_some(name)
}

async fn pass(
    request: Request<Incoming>,
    mut to: SendRequest<Incoming>,
    state: Arc<Mutex<State>>,
    reached: watch::Sender<bool>,
) -> hyper::Result<Response<Incoming>> {
    let moment = name(request.uri().path()).and_then(|name| {
        let mut state = state.lock();
        let nth = state.calls.iter().filter(|c| *c == name).count();
        state.calls.push(name.to_owned());
        state.armed.clone().filter(|m| m.call == name && m.nth == nth)
    });
    let Some(moment) = moment else { return to.send_request(request).await };
    if moment.answered {
        // Whether it succeeded is for the next kubelet to find out.
        let _ = to.send_request(request).await;
    }
    reached.send_replace(true);
    std::future::pending().await
}
