//! Whether the components beside the API server are well: what ComponentStatus tells.
//!
//! ```text
//!  runs in this process   ──► its task runs
//!  runs elsewhere         ──► GET https://127.0.0.1:PORT/healthz, as upstream's would be asked
//!  the store (etcd-0)     ──► a read of it
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::ClockExt;
use transport::once::{self, Secure};
use transport::tls;

use crate::server::ApiServer;

/// Their names and the ports they serve their health on, in the order they are told.
pub const ASKED: &[(&str, u16)] = &[("controller-manager", 10257), ("scheduler", 10259)];
/// What the store is called.
pub const STORE: &str = "etcd-0";
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How much of an answer is told.
const LONGEST: usize = 10 << 10;

/// Those that run in this process.
#[derive(Default)]
pub struct Components {
    here: Mutex<BTreeMap<String, Arc<AtomicBool>>>,
}

/// Held by a component as long as it runs.
pub struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Components {
    /// A component of this process runs until what is given is dropped.
    #[must_use]
    pub fn begin(&self, name: &str) -> Running {
        let runs = Arc::new(AtomicBool::new(true));
        self.here.lock().insert(name.to_owned(), runs.clone());
        Running(runs)
    }

    fn runs(&self, name: &str) -> Option<bool> {
        self.here.lock().get(name).map(|runs| runs.load(Ordering::Acquire))
    }
}

/// What somebody answered who was asked for their health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Well(String),
    /// What they said, or why they were not reached.
    Ill(String),
    /// They could not be asked.
    Failed(String),
}

impl Health {
    /// As a ComponentStatus.
    pub fn to_object(&self, name: &str) -> Value {
        let mut condition = json!({"type": "Healthy", "status": "False"});
        match self {
            Self::Well(text) => {
                condition["status"] = "True".into();
                condition["message"] = text.as_str().into();
            }
            Self::Ill(text) => condition["message"] = text.as_str().into(),
            Self::Failed(text) => condition["error"] = text.as_str().into(),
        }
        json!({"kind": "ComponentStatus", "apiVersion": "v1", "metadata": {"name": name}, "conditions": [condition]})
    }
}

/// Every component's name, sorted.
pub fn names() -> impl Iterator<Item = &'static str> {
    ASKED.iter().map(|(name, _)| *name).take(1).chain([STORE]).chain(ASKED.iter().map(|(name, _)| *name).skip(1))
}

/// Asks one; `None` when there is none of the name.
pub async fn ask(server: &ApiServer, name: &str) -> Option<Health> {
    if name == STORE {
        return Some(store(server).await);
    }
    let (name, port) = *ASKED.iter().find(|(known, _)| *known == name)?;
    Some(match server.components.runs(name) {
        Some(true) => Health::Well("ok".to_owned()),
        // Its task ended while the process goes on: what its own endpoint would answer.
        Some(false) => Health::Ill("HTTP probe failed with statuscode: 500".to_owned()),
        None => healthz(server, port).await,
    })
}

async fn store(server: &ApiServer) -> Health {
    let Some(resource) = server.catalogue.find("", "v1", "namespaces") else {
        return Health::Failed("nothing is stored".to_owned());
    };
    let read = async { resource.store().ok()?.get(b"/registry/health").await.err().map(|error| error.to_string()) };
    match server.clock.timeout(PATIENCE, read).await {
        Ok(None) => Health::Well("ok".to_owned()),
        Ok(Some(error)) => Health::Failed(error),
        Err(_) => Health::Failed("context deadline exceeded".to_owned()),
    }
}

/// Asks a server on this host, whose certificate nobody vouches for and to whom nothing is told.
async fn healthz(server: &ApiServer, port: u16) -> Health {
    let address = format!("127.0.0.1:{port}");
    let url = format!("https://{address}/healthz");
    match server.clock.timeout(PATIENCE, Box::pin(get(server, &address, &url))).await {
        Ok(Ok((code, text))) => judged(code, text),
        Ok(Err(error)) => Health::Ill(format!("Get {url:?}: {error}")),
        Err(_) => {
            let why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
            Health::Ill(format!("Get {url:?}: {why}"))
        }
    }
}

async fn get(server: &ApiServer, address: &str, url: &str) -> Result<(u16, String), transport::Error> {
    let config = tls::trusting(None).map_err(|error| transport::Error::Invalid(error.to_string()))?;
    let secure = Secure { config: &config, server_name: "127.0.0.1" };
    let io = once::connect(server.dialer(), address, Some(secure), &server.clock).await?;
    let request = http::Request::get("/healthz")
        .header(http::header::HOST, address)
        .header(http::header::USER_AGENT, "kube-probe/1.37")
        .header(http::header::ACCEPT, "*/*")
        .body(transport::full(""))
        .map_err(|error| transport::Error::Invalid(format!("{url}: {error}")))?;
    let response = once::send(io, request).await?;
    let code = response.status().as_u16();
    let body = transport::read(response.into_body(), LONGEST).await;
    let body = body.map_err(|error| transport::Error::Broken(error.to_string()))?;
    Ok((code, String::from_utf8_lossy(&body).into_owned()))
}

fn judged(code: u16, text: String) -> Health {
    if (200..400).contains(&code) {
        return Health::Well(text);
    }
    Health::Ill(format!("HTTP probe failed with statuscode: {code}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_each_is_asked() {
        assert!(names().is_sorted());
        assert_eq!(names().count(), ASKED.len() + 1);
    }

    #[test]
    fn a_component_runs_until_it_lets_go() {
        let components = Components::default();
        assert_eq!(components.runs("scheduler"), None);
        let first = components.begin("scheduler");
        assert_eq!(components.runs("scheduler"), Some(true));
        drop(first);
        assert_eq!(components.runs("scheduler"), Some(false));
        let _again = components.begin("scheduler");
        assert_eq!(components.runs("scheduler"), Some(true));
    }

    #[test]
    fn health_in_the_words_of_a_component_status() {
        for (health, status, message, error) in [
            (judged(200, "ok".into()), "True", json!("ok"), json!(null)),
            (judged(500, "no".into()), "False", json!("HTTP probe failed with statuscode: 500"), json!(null)),
            (Health::Failed("lost".into()), "False", json!(null), json!("lost")),
        ] {
            let object = health.to_object("x");
            let condition = &object["conditions"][0];
            assert_eq!((&condition["status"], &object["metadata"]["name"]), (&json!(status), &json!("x")));
            assert_eq!((&condition["message"], &condition["error"]), (&message, &error));
        }
    }
}
