//! The network between a component and the API server: it loses requests, answers and watches, and
//! answers for the server when that is overloaded.

use std::sync::Arc;
use std::time::Duration;

use apiserver::ApiServer;
use bytes::Bytes;
use futures::StreamExt;
use http::Method;
use http_body_util::BodyExt;
use kinds::User;
use machinery::status::Status;
use parking_lot::Mutex;
use stdx::Rng;
use stdx::clock::{ClockExt, ManualClock};
use tokio_util::sync::CancellationToken;
use transport::{Body, Error, Handler, Request, Responding, Response};

use super::trace::Trace;

/// How often each thing goes wrong: chances in a thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    /// The connection is refused.
    pub refused: u64,
    /// The connection breaks, and the server never saw the request.
    pub lost_request: u64,
    /// The connection breaks after the server has done what was asked.
    pub lost_answer: u64,
    /// The answer breaks off in its middle.
    pub torn_answer: u64,
    /// 429, 500, 503 or 504 instead of doing anything.
    pub refusal: u64,
    /// 500 or 504 after everything was done.
    pub false_refusal: u64,
    /// A 409 that the server did not send, for updates.
    pub conflict: u64,
    /// The request, or its answer, takes up to two seconds.
    pub slow: u64,
    /// Per frame: the watch ends in order.
    pub watch_end: u64,
    /// Per frame: the watch breaks, perhaps within an event.
    pub watch_break: u64,
    /// Per frame: what comes next comes up to five seconds later.
    pub watch_stall: u64,
}

impl Rates {
    /// Something of everything, now and then.
    pub const LIGHT: Self = Self {
        refused: 5,
        lost_request: 5,
        lost_answer: 10,
        torn_answer: 5,
        refusal: 15,
        false_refusal: 5,
        conflict: 15,
        slow: 60,
        watch_end: 4,
        watch_break: 8,
        watch_stall: 15,
    };
    /// Hardly anything works at the first try.
    pub const HEAVY: Self = Self {
        refused: 30,
        lost_request: 40,
        lost_answer: 60,
        torn_answer: 30,
        refusal: 60,
        false_refusal: 40,
        conflict: 60,
        slow: 200,
        watch_end: 20,
        watch_break: 40,
        watch_stall: 60,
    };
}

/// The API server as it runs now; none while it is down.
#[derive(Default)]
pub struct Door {
    pub current: Mutex<Option<(Arc<ApiServer>, CancellationToken)>>,
}

/// What all links share.
pub struct Network {
    pub clock: ManualClock,
    pub trace: Arc<Trace>,
    pub door: Door,
    pub rates: Mutex<Rates>,
}

/// One component's way to the API server, for one of its lives.
pub struct Link {
    pub network: Arc<Network>,
    pub name: String,
    pub user: User,
    pub rng: Rng,
    /// Cancelled when the component is killed: nothing it does reaches the server any more.
    pub killed: CancellationToken,
    /// False: nothing ever goes wrong here but the server itself.
    pub faulty: bool,
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fine,
    Refused,
    LostRequest,
    LostAnswer,
    TornAnswer,
    Refusal(u16),
    FalseRefusal(u16),
}

fn choose(rates: &Rates, rng: &Rng, method: &Method) -> Fate {
    let dice = rng.below(1000);
    let is_write = method != Method::GET;
    let conflict = if matches!(*method, Method::PUT | Method::PATCH) { rates.conflict } else { 0 };
    let table = [
        (rates.refused, Fate::Refused),
        (rates.lost_request, Fate::LostRequest),
        (if is_write { rates.lost_answer } else { 0 }, Fate::LostAnswer),
        (rates.torn_answer, Fate::TornAnswer),
        (rates.refusal, Fate::Refusal([429, 500, 503, 504][rng.below(4) as usize])),
        (if is_write { rates.false_refusal } else { 0 }, Fate::FalseRefusal([500, 504][rng.below(2) as usize])),
        (conflict, Fate::Refusal(409)),
    ];
    let mut below = 0;
    for (chance, fate) in table {
        below += chance;
        if dice < below {
            return fate;
        }
    }
    Fate::Fine
}

fn answer(code: u16) -> Response {
    let status = match code {
        409 => Status::new(409, "Conflict", "injected: the object has been modified"),
        429 => Status::too_many_requests("injected: too many requests", 1),
        503 => Status::unavailable("injected: unavailable"),
        504 => Status::timeout("injected: timeout"),
        _ => Status::internal("injected"),
    };
    let mut response = http::Response::new(transport::full(status.to_value().to_string()));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

fn broken(why: &str) -> Error {
    Error::Broken(format!("injected: {why}"))
}

/// A moment up to `limit`.
fn moment(rng: &Rng, limit: Duration) -> Duration {
    limit.mul_f64(rng.unit())
}

impl Handler for Link {
    fn call(&self, request: Request) -> Responding {
        let way = Way {
            network: self.network.clone(),
            user: self.user.clone(),
            rng: self.rng.clone(),
            killed: self.killed.clone(),
            faulty: self.faulty,
            what: format!("{} {} {}", self.name, request.method(), request.uri()),
            is_watch: request.uri().query().is_some_and(|q| q.contains("watch=1")),
        };
        Box::pin(way.go(request))
    }
}

/// One request on its way.
struct Way {
    network: Arc<Network>,
    user: User,
    rng: Rng,
    killed: CancellationToken,
    faulty: bool,
    what: String,
    is_watch: bool,
}

impl Way {
    /// How likely what is by now: a watch outlives the mood it was begun in.
    fn rates(&self) -> Rates {
        if self.faulty { *self.network.rates.lock() } else { Rates::default() }
    }

    async fn go(self, request: Request) -> Result<Response, Error> {
        let killed = self.killed.clone();
        let (network, what) = (self.network.clone(), self.what.clone());
        let outcome = tokio::select! {
            biased;
            () = killed.cancelled() => Err(Error::Connect("the component is dead".into())),
            outcome = self.pass(request) => outcome,
        };
        match &outcome {
            Ok(response) => network.trace.line(format_args!("{what} {}", response.status().as_u16())),
            Err(error) => network.trace.line(format_args!("{what} {error}")),
        }
        outcome
    }

    async fn slow(&self) {
        if self.rng.below(1000) < self.rates().slow {
            self.network.clock.sleep(moment(&self.rng, Duration::from_secs(2))).await;
        }
    }

    async fn pass(self, request: Request) -> Result<Response, Error> {
        let fate = choose(&self.rates(), &self.rng, request.method());
        self.slow().await;
        match fate {
            Fate::Refused => return Err(Error::Connect("injected: connection refused".into())),
            Fate::LostRequest => return Err(broken("the request was lost")),
            Fate::Refusal(code) => return Ok(answer(code)),
            Fate::Fine | Fate::LostAnswer | Fate::TornAnswer | Fate::FalseRefusal(_) => {}
        }
        let server = self.network.door.current.lock().clone();
        let Some((server, gone)) = server else { return Err(Error::Connect("the server is down".into())) };
        let response = tokio::select! {
            biased;
            () = gone.cancelled() => return Err(broken("the server died")),
            response = server.handler(self.user.clone()).call(request) => response?,
        };
        if response.status() == 500 {
            self.refuse_to_accept(response).await;
            return Err(broken("the server failed"));
        }
        self.slow().await;
        match fate {
            Fate::LostAnswer => return Err(broken("the answer was lost")),
            Fate::FalseRefusal(code) => return Ok(answer(code)),
            Fate::TornAnswer if !self.is_watch => return Ok(response.map(|body| torn(body, &self.rng))),
            _ => {}
        }
        if self.is_watch && response.status().is_success() {
            return Ok(response.map(|body| self.watch(body, gone)));
        }
        Ok(response)
    }

    /// The server itself never fails: nothing is wrong with its store.
    async fn refuse_to_accept(&self, response: Response) {
        let body = response.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
        let text = String::from_utf8_lossy(&body);
        self.network.trace.broken(format_args!("{}: the server answered 500: {text}", self.what));
    }

    /// A watch that may end, break or stall at any frame, and breaks when either side dies.
    fn watch(self, body: Body, gone: CancellationToken) -> Body {
        let frames = body.into_data_stream();
        let stream =
            futures::stream::unfold((frames, self, gone, false), |(mut frames, way, gone, ended)| async move {
                if ended {
                    return None;
                }
                let next = tokio::select! {
                    biased;
                    () = way.killed.cancelled() => Some(Err("the component is dead".into())),
                    () = gone.cancelled() => Some(Err("the server died".into())),
                    next = frames.next() => next,
                };
                let Some(Ok(frame)) = next else { return next.map(|n| (n, (frames, way, gone, true))) };
                let dice = way.rng.below(1000);
                let Rates { watch_end, watch_break, watch_stall, .. } = way.rates();
                if dice < watch_end {
                    return None;
                }
                if dice < watch_end + watch_break {
                    let cut = way.rng.below(frame.len() as u64 + 1) as usize;
                    return match cut {
                        0 => Some((Err("injected: the watch broke".into()), (frames, way, gone, true))),
                        // What was sent of the event, and then the end of the stream without a word.
                        cut => Some((Ok(frame.slice(..cut)), (frames, way, gone, true))),
                    };
                }
                if dice < watch_end + watch_break + watch_stall {
                    let stall = moment(&way.rng, Duration::from_secs(5));
                    tokio::select! {
                        biased;
                        () = way.killed.cancelled() => {}
                        () = way.network.clock.sleep(stall) => {}
                    }
                }
                Some((Ok(frame), (frames, way, gone, false)))
            });
        transport::stream(stream)
    }
}

/// A body that breaks off.
fn torn(body: Body, rng: &Rng) -> Body {
    let rng = rng.clone();
    let stream = futures::stream::once(async move {
        let whole = body.collect().await.map(|b| b.to_bytes())?;
        let cut = rng.below(whole.len() as u64) as usize;
        Ok::<Bytes, transport::BodyError>(whole.slice(..cut))
    });
    let end = futures::stream::once(async { Err(transport::BodyError::from("injected: the answer broke off")) });
    transport::stream(stream.chain(end))
}
