//! The ConfigMap by which servers that extend the API learn whom to believe: who signs clients'
//! certificates, who signs those of front proxies, and in which headers these say who asks. It is kept:
//! what is taken away comes back, and authorities that change are added.
//!
//! ```text
//!  in the map      this server has      written
//!  A, expired B    A, C                 A, C          several servers may each add their own
//! ```

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use machinery::status;
use serde_json::{Value, json};
use stdx::{ClockExt, SharedClock};
use transport::SharedHandler;
use x509_parser::pem::Pem;

use crate::authn::request_header::Headers;
use crate::cacher::{Cachers, Filter, WatchItem, WatchOptions, Watcher};
use crate::objects::{CONFIG_MAPS, Objects};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
/// How often authorities are read again.
const LOOK: Duration = Duration::from_secs(60);
/// After a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an authority stays after its end, in seconds.
const AFTER_END: i64 = 300;
/// The bundles.
const CLIENT_CA: &str = "client-ca-file";
const FRONT_PROXY_CA: &str = "requestheader-client-ca-file";

/// Who signs client certificates, and those of front proxies: PEM, which may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authorities {
    pub client_ca: String,
    pub front_proxy_ca: String,
}

/// Reads them again; what cannot be read is `None` and changes nothing.
pub type Read = Arc<dyn Fn() -> Option<Authorities> + Send + Sync>;

/// Those who may be front proxies, and their headers.
fn lists(headers: &Headers) -> [(&'static str, &[String]); 5] {
    [
        ("requestheader-allowed-names", &headers.allowed_names),
        ("requestheader-extra-headers-prefix", &headers.extra_prefixes),
        ("requestheader-group-headers", &headers.group),
        ("requestheader-uid-headers", &headers.uid),
        ("requestheader-username-headers", &headers.username),
    ]
}

/// The map as it should be; `None` when it is so already, or nothing needs to be said.
fn plan(existing: Option<&Value>, own: &Authorities, headers: &Headers, now: Timestamp) -> Option<Value> {
    let fresh = || json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}, "data": {}});
    let mut next = existing.cloned().unwrap_or_else(fresh);
    if !next["data"].is_object() {
        next["data"] = json!({});
    }
    let said = |key: &str| existing.and_then(|map| map["data"][key].as_str()).unwrap_or_default();
    for (key, own) in [(CLIENT_CA, &own.client_ca), (FRONT_PROXY_CA, &own.front_proxy_ca)] {
        let all = combined(said(key), own, now);
        if !all.is_empty() {
            next["data"][key] = all.into();
        } else if let Some(data) = next["data"].as_object_mut() {
            data.remove(key);
        }
    }
    if next["data"].get(FRONT_PROXY_CA).is_some() {
        for (key, own) in lists(headers) {
            let mut names: Vec<String> = serde_json::from_str(said(key)).unwrap_or_default();
            for name in own {
                if !names.contains(name) {
                    names.push(name.clone());
                }
            }
            next["data"][key] = json!(names).to_string().into();
        }
    }
    let empty = next["data"].as_object().is_none_or(serde_json::Map::is_empty);
    match existing {
        Some(existing) if *existing == next => None,
        None if empty => None,
        _ => Some(next),
    }
}

/// The certificates of both bundles, each once, without those that have ended. What is none is dropped.
fn combined(said: &str, own: &str, now: Timestamp) -> String {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let blocks = [said, own].into_iter().flat_map(|bundle| Pem::iter_from_buffer(bundle.as_bytes()));
    for block in blocks.flatten().filter(|block| block.label == "CERTIFICATE") {
        let lives = block.parse_x509().is_ok_and(|certificate| {
            certificate.validity().not_after.timestamp() > now.as_second().saturating_sub(AFTER_END)
        });
        if lives && !kept.contains(&block.contents) {
            kept.push(block.contents);
        }
    }
    kept.iter().map(|certificate| pem(certificate)).collect()
}

fn pem(certificate: &[u8]) -> String {
    let text = STANDARD.encode(certificate);
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    for at in (0..text.len()).step_by(64) {
        out.push_str(&text[at..text.len().min(at + 64)]);
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}

/// What keeps the map: the server's own door, its caches and its clock.
pub struct Keeper {
    pub handler: SharedHandler,
    pub objects: Arc<dyn Objects>,
    pub cachers: Arc<Cachers>,
    pub clock: SharedClock,
    pub read: Read,
    /// In which headers front proxies say who asks.
    pub headers: Headers,
}

/// Why the keeper looks.
enum Event {
    /// The map was written or taken away.
    Map,
    /// The authorities may be others.
    Look,
    /// The watch has ended.
    Ended,
}

impl Keeper {
    /// Keeps it for ever.
    pub async fn run(self) {
        loop {
            self.follow().await;
            self.clock.sleep(PAUSE).await;
        }
    }

    /// Until the watch ends or a write fails.
    async fn follow(&self) {
        let Some(cacher) = self.cachers.find(CONFIG_MAPS.group, CONFIG_MAPS.plural) else { return };
        let filter = Filter { namespace: NAMESPACE.to_owned(), name: NAME.to_owned(), ..Filter::default() };
        let Ok(mut watch) = cacher.watch(WatchOptions { filter, ..WatchOptions::default() }) else { return };
        loop {
            if let Err(status) = self.settle().await {
                tracing::warn!(%status, "{NAMESPACE}/{NAME} is not as it should be");
                return;
            }
            match self.next(&mut watch).await {
                Event::Map | Event::Look => {}
                Event::Ended => return,
            }
        }
    }

    async fn next(&self, watch: &mut Watcher) -> Event {
        tokio::select! {
            item = watch.next() => match item {
                Some(WatchItem::Event(_) | WatchItem::Bookmark { .. }) => Event::Map,
                Some(WatchItem::Error(_)) | None => Event::Ended,
            },
            () = self.clock.sleep(LOOK) => Event::Look,
        }
    }

    /// Brings the map up to date once.
    ///
    /// # Errors
    /// When it cannot be read or written; somebody who wrote it at the same time is no failure.
    pub async fn settle(&self) -> status::Result<()> {
        let Some(own) = (self.read)() else { return Ok(()) };
        self.objects.settle(CONFIG_MAPS).await?;
        let existing = self.objects.get(CONFIG_MAPS, NAMESPACE, NAME);
        let Some(next) = plan(existing.as_deref(), &own, &self.headers, self.clock.wall()) else { return Ok(()) };
        let collection = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
        let (method, path) = match &existing {
            None => ("POST", collection),
            Some(_) => ("PUT", format!("{collection}/{NAME}")),
        };
        match super::send(&self.handler, method, &path, "application/json", Some(&next)).await {
            Ok(_) => Ok(()),
            // What is too large begins anew: every server adds its own again.
            Err(status) if existing.is_some() && matches!(status.code, 413 | 422) => {
                super::send(&self.handler, "DELETE", &path, "application/json", None).await?;
                Err(status)
            }
            Err(status) => Err(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use pki::Authority;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn authorities_are_added_and_end() {
        let (old, now) = (at("2020-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"));
        let authority =
            |name: &str, at: Timestamp| Authority::generate(name, at).expect("authority").certificate().to_owned();
        let (a, b) = (authority("a", now), authority("b", now));
        let own = |client_ca: &str, front_proxy_ca: &str| Authorities {
            client_ca: client_ca.into(),
            front_proxy_ca: front_proxy_ca.into(),
        };
        let plan = |existing: Option<&Value>, own: &Authorities, now| plan(existing, own, &Headers::standard(), now);
        assert_eq!(plan(None, &own("", ""), now), None, "nobody is to be believed");
        let made = plan(None, &own(&a, &b), now).expect("is written");
        assert_eq!(made["data"].as_object().map(serde_json::Map::len), Some(7));
        assert_eq!(made["data"]["requestheader-uid-headers"], "[\"X-Remote-Uid\"]");
        assert_eq!(combined(&a, "", now), made["data"][CLIENT_CA].as_str().expect("text"));
        assert_eq!(plan(Some(&made), &own(&a, &b), now), None, "it is so already");
        // Another authority is added; those of others stay, and so do other keys and names.
        let mut others = made.clone();
        others["data"]["mine"] = json!("x");
        others["data"]["requestheader-allowed-names"] = json!("[\"other\"]");
        let next = plan(Some(&others), &own(&b, &b), now).expect("is written");
        assert_eq!(next["data"][CLIENT_CA], format!("{}{}", combined(&a, "", now), combined(&b, "", now)));
        assert_eq!(
            (&next["data"]["mine"], &next["data"]["requestheader-allowed-names"]),
            (&json!("x"), &json!("[\"other\",\"front-proxy-client\"]"))
        );
        // What has ended goes, what is no certificate too.
        let ended = authority("old", old);
        let end = at("2099-01-01T00:00:00Z");
        assert_eq!(combined(&ended, "", end), "");
        assert_eq!(combined("nonsense", &a, now), combined(&a, &a, now));
        others["data"][CLIENT_CA] = json!("nonsense");
        assert_eq!(
            plan(Some(&others), &own(&a, &b), now).expect("is written")["data"][CLIENT_CA],
            combined(&a, "", now)
        );
    }
}
