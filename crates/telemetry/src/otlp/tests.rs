//! Spans, and a collector of our own: what arrives there.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use stdx::ClockExt;
use stdx::clock::RealClock;
use stdx::shutdown::Stage;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tracing_subscriber::layer::SubscriberExt;

use super::message::Request;
use super::*;

const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Takes requests as a collector does: a message of gRPC, answered with an empty one.
async fn collect(listener: TcpListener, arrived: Sender<Request>) {
    while let Ok((stream, _)) = listener.accept().await {
        let arrived = arrived.clone();
        let answer = service_fn(move |request: http::Request<Incoming>| {
            let arrived = arrived.clone();
            async move {
                assert_eq!(request.uri().path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
                let body = request.into_body().collect().await.expect("a body").to_bytes();
                arrived.send(Request::decode(&body[5..]).expect("a message")).await.expect("somebody listens");
                let trailers = http::HeaderMap::from_iter([(
                    http::HeaderName::from_static("grpc-status"),
                    http::HeaderValue::from_static("0"),
                )]);
                let frames = [Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from_static(&[0; 5])))];
                let frames = frames.into_iter().chain([Ok(Frame::trailers(trailers))]);
                let body = StreamBody::new(tokio_stream(frames));
                let mut response = http::Response::new(body);
                response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        tokio::spawn(async move {
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            drop(server.serve_connection(TokioIo::new(stream), answer).await);
        });
    }
}

/// An iterator as a stream.
fn tokio_stream<T: Send + 'static>(
    items: impl Iterator<Item = T> + Send + 'static,
) -> impl futures::Stream<Item = T> + Send {
    futures::stream::iter(items)
}

fn options(endpoint: String, per_million: u32) -> Options {
    Options { endpoint, sampler: Sampler { per_million }, service: "kube-apiserver".to_owned() }
}

async fn first(clock: &SharedClock, arrived: &mut Receiver<Request>) -> Vec<Span> {
    let request = clock.timeout(Duration::from_secs(60), arrived.recv()).await.expect("in time").expect("spans");
    let of = &request.resource_spans[0];
    let service = of.resource.as_ref().expect("a resource").attributes[0].clone();
    assert_eq!(service, KeyValue::new("service.name", Value::Text("kube-apiserver".to_owned())));
    of.scope_spans[0].spans.clone()
}

#[tokio::test]
async fn spans_arrive_at_a_collector() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, clock) = (listener.local_addr().expect("an address"), RealClock::shared());
    let (sender, mut arrived) = channel(4);
    tokio::spawn(collect(listener, sender));
    let (spans, exporter) = open(options(address.to_string(), 0), Rng::seeded(1), &clock);
    let (counts, stage) = (exporter.counts(), Stage::new());
    let caller = Place::parse(CALLER).expect("a place");
    let own = caller.child(&Rng::seeded(2));
    tracing::subscriber::with_default(tracing_subscriber::registry().with(spans), || {
        use tracing::field::Empty;
        let request = tracing::info_span!(target: crate::TRACE, "request", "otel.context" = Empty, "otel.caller" = Empty, code = Empty, "otel.kind" = "server", "otel.name" = Empty);
        request.record("otel.context", own.to_string());
        request.record("otel.caller", CALLER);
        request.record("otel.name", "GET /api/v1/pods");
        request.in_scope(|| {
            // What is no part of a trace is passed over.
            tracing::info_span!("other").in_scope(|| {
                tracing::debug_span!(target: crate::TRACE, "store", error = "gone", keys = 3_u64).in_scope(|| {});
            });
        });
        request.record("code", 200);
        drop(request);
        // Nobody asks for these to be recorded.
        let silent = tracing::info_span!(target: crate::TRACE, "request", "otel.context" = Empty);
        silent.in_scope(|| tracing::debug_span!(target: crate::TRACE, "within").in_scope(|| {}));
        tracing::debug_span!(target: crate::TRACE, "syncPod").in_scope(|| {});
    });
    let run = tokio::spawn(exporter.run(stage.clone()));
    stage.stop();
    let found = first(&clock, &mut arrived).await;
    run.await.expect("it ends");
    assert_eq!(found.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["store", "GET /api/v1/pods"]);
    let (store, request) = (&found[0], &found[1]);
    assert_eq!(request.trace_id, caller.trace.to_be_bytes());
    assert_eq!(
        (request.parent_span_id.as_slice(), request.span_id.as_slice()),
        (&caller.span.to_be_bytes()[..], &own.span.to_be_bytes()[..])
    );
    assert_eq!((&store.trace_id, &store.parent_span_id), (&request.trace_id, &request.span_id));
    assert_eq!((request.kind, store.kind), (Kind::Server as i32, Kind::Internal as i32));
    assert_eq!(request.attributes, [KeyValue::new("code", Value::Whole(200))]);
    assert_eq!(store.status, Some(Status { message: "gone".to_owned(), code: 2 }));
    assert!(
        request.start_time_unix_nano <= store.start_time_unix_nano
            && store.end_time_unix_nano <= request.end_time_unix_nano
    );
    assert_eq!((counts.sent.load(Ordering::Relaxed), counts.dropped.load(Ordering::Relaxed)), (2, 0));
}

#[tokio::test]
async fn a_collector_that_is_gone_costs_its_spans() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, clock) = (listener.local_addr().expect("an address"), RealClock::shared());
    drop(listener);
    let (spans, exporter) = open(options(address.to_string(), 1_000_000), Rng::seeded(1), &clock);
    let (counts, stage) = (exporter.counts(), Stage::new());
    tracing::subscriber::with_default(tracing_subscriber::registry().with(spans), || {
        for _ in 0..WAITING + 10 {
            tracing::debug_span!(target: crate::TRACE, "syncPod").in_scope(|| {});
        }
    });
    assert_eq!(counts.dropped.load(Ordering::Relaxed), 10);
    stage.stop();
    exporter.run(stage).await;
    assert_eq!(counts.dropped.load(Ordering::Relaxed), (WAITING + 10) as u64);
}
