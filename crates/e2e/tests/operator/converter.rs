//! The operator's webhook that converts its objects between versions: `spec.count` of `v1beta1` is
//! `spec.replicas` of every other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use pki::{Authority, Request};
use serde_json::{Value, json};
use stdx::SharedClock;
use stdx::shutdown::Stage;
use transport::serve::{Limits, serve};
use transport::tls::{self, Identity};
use transport::{Handler, Responding};

pub const OLD: &str = "count";
pub const NEW: &str = "replicas";
const LONGEST: usize = 16 << 20;

/// The webhook, which serves on a port of 127.0.0.1 under a certificate of its own authority.
pub struct Converter {
    asked: Arc<AtomicUsize>,
    port: u16,
    authority: String,
    serving: Stage,
    clock: SharedClock,
}

struct Webhook(Arc<AtomicUsize>);

impl Converter {
    /// Serves.
    pub async fn start(clock: SharedClock) -> Result<Self> {
        let authority = Authority::generate("the operator's", clock.wall())?;
        let issued = authority.issue(&Request::server("converter", ["127.0.0.1"]), clock.wall())?;
        let identity = Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes())?;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let config = tls::server(&clock, identity)?;
        let (serving, asked) = (Stage::new(), Arc::new(AtomicUsize::new(0)));
        let (stage, handler, own_clock) = (serving.clone(), Arc::new(Webhook(asked.clone())), clock.clone());
        serving.spawn(async move {
            if let Err(error) = serve(listener, config, handler, Limits::default(), own_clock, &stage).await {
                tracing::error!(%error, "the webhook stopped serving");
            }
        });
        Ok(Self { asked, port, authority: authority.certificate().to_owned(), serving, clock })
    }

    /// Where it is asked.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}/convert", self.port)
    }

    /// Who vouches for it, PEM.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Serves no longer.
    pub async fn stop(self) {
        self.serving.finish(&self.clock, Duration::from_secs(5)).await;
    }
}

/// An object in the version wanted.
fn converted(mut object: Value, wanted: &str) -> Value {
    let is_old = |version: &str| version.ends_with("/v1beta1");
    let from = if is_old(object["apiVersion"].as_str().unwrap_or_default()) { OLD } else { NEW };
    let to = if is_old(wanted) { OLD } else { NEW };
    object["apiVersion"] = json!(wanted);
    if let Some(spec) = object["spec"].as_object_mut()
        && let Some(value) = spec.remove(from)
    {
        spec.insert(to.to_owned(), value);
    }
    object
}

fn answer(mut review: Value) -> Value {
    let request = review["request"].take();
    let wanted = request["desiredAPIVersion"].as_str().unwrap_or_default();
    let objects = request["objects"].as_array().cloned().unwrap_or_default();
    let objects: Vec<Value> = objects.into_iter().map(|object| converted(object, wanted)).collect();
    json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": {
        "uid": request["uid"], "convertedObjects": objects, "result": {"status": "Success"},
    }})
}

impl Handler for Webhook {
    fn call(&self, request: transport::Request) -> Responding {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let invalid = |error: anyhow::Error| transport::Error::Invalid(error.to_string());
            let body = transport::read(request.into_body(), LONGEST).await.map_err(|e| invalid(anyhow!("{e}")))?;
            let review: Value = serde_json::from_slice(&body).map_err(|e| invalid(e.into()))?;
            Ok(http::Response::new(transport::full(answer(review).to_string())))
        })
    }
}
