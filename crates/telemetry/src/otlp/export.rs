//! The way to a collector: spans go in batches, one after another, over gRPC in plain text. A batch that a
//! collector does not take is tried once more and then dropped and counted: traces are no reason to hold memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use stdx::ClockExt;
use stdx::shutdown::Stage;
use tokio::net::TcpStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;

use super::message::{KeyValue, Request, Resource, ResourceSpans, Response, Scope, ScopeSpans, Span, Value};
use super::{ENDPOINT, Exporter};

/// Spans that go at once.
const BATCH: usize = 512;
/// They wait for others so long.
const GATHER: Duration = Duration::from_secs(5);
/// A collector may take so long to take a batch.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for what is sent while the process ends.
const LAST: Duration = Duration::from_secs(2);
/// Before the second attempt.
const AGAIN: Duration = Duration::from_secs(1);
const PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

impl Exporter {
    /// Sends until the stage stops; what is there then is sent as well, once.
    pub async fn run(mut self, stage: Stage) {
        let channel = Endpoint::from_static("http://localhost")
            .connect_with_connector_lazy(Dial(address(&self.options.endpoint)));
        loop {
            let mut batch = Vec::new();
            tokio::select! {
                () = stage.stopped() => {}
                _ = self.queue.recv_many(&mut batch, BATCH) => {}
            }
            if !stage.is_stopped() {
                // Few are as welcome as many.
                tokio::select! {
                    () = stage.stopped() => {}
                    _ = self.clock.timeout(GATHER, gather(&mut self.queue, &mut batch)) => {}
                }
            }
            while batch.len() < BATCH {
                let Ok(span) = self.queue.try_recv() else { break };
                batch.push(span);
            }
            let is_last = stage.is_stopped() && self.queue.is_empty();
            self.send(&channel, batch, &stage).await;
            if is_last || (self.queue.is_closed() && self.queue.is_empty()) {
                return;
            }
        }
    }

    async fn send(&self, channel: &Channel, batch: Vec<Span>, stage: &Stage) {
        let count = batch.len() as u64;
        if count == 0 {
            return;
        }
        let request = self.request(batch);
        for attempt in 0..2 {
            let patience = if stage.is_stopped() { LAST } else { PATIENCE };
            let outcome = self.clock.timeout(patience, Box::pin(call(channel.clone(), request.clone()))).await;
            match outcome {
                Ok(Ok(())) => {
                    self.counts.sent.fetch_add(count, Ordering::Relaxed);
                    return;
                }
                Ok(Err(error)) => tracing::debug!(endpoint = self.options.endpoint, %error, "spans were not taken"),
                Err(error) => tracing::debug!(endpoint = self.options.endpoint, %error, "spans were not taken in time"),
            }
            if attempt == 0 && !stage.is_stopped() {
                self.clock.sleep(AGAIN).await;
            } else {
                break;
            }
        }
        self.counts.dropped.fetch_add(count, Ordering::Relaxed);
    }

    fn request(&self, spans: Vec<Span>) -> Request {
        let service = KeyValue::new("service.name", Value::Text(self.options.service.clone()));
        Request {
            resource_spans: vec![ResourceSpans {
                resource: Some(Resource { attributes: vec![service] }),
                scope_spans: vec![ScopeSpans { scope: Some(Scope { name: self.options.service.clone() }), spans }],
            }],
        }
    }
}

/// Ends when the batch is full.
async fn gather(queue: &mut tokio::sync::mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
    while batch.len() < BATCH {
        let room = BATCH - batch.len();
        if queue.recv_many(batch, room).await == 0 {
            return;
        }
    }
}

async fn call(channel: Channel, request: Request) -> Result<(), tonic::Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let path = http::uri::PathAndQuery::from_static(PATH);
    let codec: ProstCodec<Request, Response> = ProstCodec::default();
    client.unary(tonic::Request::new(request), path, codec).await.map(drop)
}

/// `host:port` of an endpoint as users write it.
fn address(endpoint: &str) -> String {
    let bare = endpoint.rsplit("//").next().unwrap_or(endpoint).trim_matches('/');
    if bare.is_empty() { ENDPOINT.to_owned() } else { bare.to_owned() }
}

#[derive(Clone)]
struct Dial(String);

impl tower_service::Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let address = self.0.clone();
        Box::pin(async move { TcpStream::connect(address).await.map(TokioIo::new) })
    }
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn endpoints_name_a_host() {
        for (endpoint, want) in [
            ("collector:4317", "collector:4317"),
            ("dns:///collector:4317", "collector:4317"),
            ("dns://collector:4317/", "collector:4317"),
            ("", "localhost:4317"),
        ] {
            assert_eq!(address(endpoint), want, "{endpoint}");
        }
    }
}
