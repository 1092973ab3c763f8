//! The webhook that converts custom resources between the versions of their definition: asked over TLS, in
//! time, and not believed when it changes what it may not.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use kinds::custom_resource_definition::WebhookConversion;
use machinery::{meta, names};
use parking_lot::Mutex;
use rustls::RootCertStore;
use serde_json::{Map, Value, json};
use stdx::ClockExt;
use transport::Handler;
use transport::dial::{Https, Target};

use crate::objects::Resource;
use crate::server::ApiServer;

const SERVICES: Resource = Resource { group: "", plural: "services" };
/// How long one review may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest answer: what is asked is at most [`AT_ONCE`] objects, or one large one.
const LONGEST: usize = 64 << 20;
/// How many objects are sent in one review.
pub(super) const AT_ONCE: usize = 250;

/// A webhook as a definition names it.
pub struct Webhook {
    /// Of the definition.
    name: String,
    review: Review,
    place: Place,
    path: String,
    roots: Arc<RootCertStore>,
    /// The connections to where it was last.
    connection: Mutex<Option<(String, Arc<Https>)>>,
}

/// The versions of a review that are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Review {
    V1,
    V1Beta1,
}

impl Review {
    fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "apiextensions.k8s.io/v1",
            Self::V1Beta1 => "apiextensions.k8s.io/v1beta1",
        }
    }
}

enum Place {
    /// `host:port`, and the host.
    Url(String, String),
    Service {
        namespace: String,
        name: String,
        port: u16,
    },
}

impl Webhook {
    /// As the definition of this name says.
    ///
    /// # Errors
    /// When it cannot be asked at all.
    pub fn new(name: &str, webhook: &WebhookConversion) -> Result<Self, String> {
        let config = webhook.client_config.clone().unwrap_or_default();
        let spoken = |version: &String| match version.as_str() {
            "v1" => Some(Review::V1),
            "v1beta1" => Some(Review::V1Beta1),
            _ => None,
        };
        let review = webhook.conversion_review_versions.iter().find_map(spoken);
        let review = review.ok_or_else(|| "no supported conversion review versions".to_owned())?;
        let (place, path) = match (&config.url, &config.service) {
            (Some(url), _) => {
                let uri: http::Uri = url.parse().map_err(|e| format!("{url}: {e}"))?;
                let host = uri.host().ok_or_else(|| format!("{url} names no host"))?;
                let address = format!("{host}:{}", uri.port_u16().unwrap_or(443));
                let path = uri.path_and_query().map_or("/", |path| path.as_str());
                (Place::Url(address, host.trim_matches(['[', ']']).to_owned()), path.to_owned())
            }
            (None, Some(service)) => {
                let place = Place::Service {
                    namespace: service.namespace.clone(),
                    name: service.name.clone(),
                    port: service.port.and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
                };
                let path = service.path.clone().unwrap_or_else(|| "/".to_owned());
                (place, if path.starts_with('/') { path } else { format!("/{path}") })
            }
            (None, None) => return Err("the conversion webhook has neither url nor service".to_owned()),
        };
        let roots = match config.ca_bundle.as_ref().filter(|bundle| !bundle.0.is_empty()) {
            None => RootCertStore::empty(),
            Some(pem) => transport::tls::roots(&pem.0).map_err(|e| format!("unable to load root certificates: {e}"))?,
        };
        let (name, connection) = (name.to_owned(), Mutex::default());
        Ok(Self { name, review, place, path, roots: Arc::new(roots), connection })
    }

    /// Objects in the version wanted, in their order.
    ///
    /// # Errors
    /// Why there are none.
    pub async fn convert(&self, server: &ApiServer, objects: &[Value], wanted: &str) -> Result<Vec<Value>, String> {
        let uid = server.rng.uuid();
        let request = json!({"kind": "ConversionReview", "apiVersion": self.review.api_version(),
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": objects}});
        let asked = self.ask(server, &request);
        let answer = server.clock.timeout(PATIENCE, asked).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("Post {:?}: context deadline exceeded", self.url())));
        let kind = || {
            let first = objects.first().unwrap_or(&Value::Null);
            format!("{}, Kind={}", meta::api_version(first), meta::kind(first))
        };
        let converted = answer.and_then(|answer| taken(self.review, &uid, answer));
        let converted = converted.map_err(|why| format!("conversion webhook for {} failed: {why}", kind()))?;
        judged(objects, converted, wanted).map_err(|why| format!("conversion webhook for {} {why}", kind()))
    }

    fn url(&self) -> String {
        let place = match &self.place {
            Place::Url(address, _) => address.clone(),
            Place::Service { namespace, name, port } => format!("{name}.{namespace}.svc:{port}"),
        };
        format!("https://{place}{}", self.path)
    }

    async fn target(&self, server: &ApiServer) -> Result<Target, String> {
        let (namespace, name, port) = match &self.place {
            Place::Url(address, host) => return Ok(Target { address: address.clone(), server_name: host.clone() }),
            Place::Service { namespace, name, port } => (namespace, name, port),
        };
        let found =
            server.security.objects.find(SERVICES, namespace, name).await.map_err(|status| status.message.clone())?;
        let service = found.ok_or_else(|| format!("service {name:?} not found"))?;
        let ip = service.pointer("/spec/clusterIP").and_then(Value::as_str).filter(|ip| !matches!(*ip, "" | "None"));
        let ports = service.pointer("/spec/ports").and_then(Value::as_array);
        let has = ports.into_iter().flatten().any(|p| p.get("port").and_then(Value::as_u64) == Some((*port).into()));
        if !has {
            return Err(format!("no service port {port} found for service {name:?}"));
        }
        let ip = ip.ok_or_else(|| format!("service {name:?} has no cluster address"))?;
        let address = if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") };
        Ok(Target { address, server_name: format!("{name}.{namespace}.svc") })
    }

    async fn ask(&self, server: &ApiServer, review: &Value) -> Result<Value, String> {
        let target = self.target(server).await?;
        let failed = |error: String| format!("Post {:?}: {error}", self.url());
        let client = {
            let mut connection = self.connection.lock();
            match &*connection {
                Some((address, client)) if *address == target.address => client.clone(),
                _ => {
                    let tls = transport::tls::client(&server.clock, self.roots.clone(), None);
                    let tls = tls.map_err(|e| failed(e.to_string()))?;
                    let client = Https::new(&target, &tls, &server.clock).map_err(|e| failed(e.to_string()))?;
                    let client = Arc::new(client);
                    *connection = Some((target.address, client.clone()));
                    client
                }
            }
        };
        let request = http::Request::post(self.path.as_str())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "kube-apiserver")
            .body(transport::full(review.to_string()))
            .map_err(|e| failed(e.to_string()))?;
        let response = client.call(request).await.map_err(|e| failed(e.to_string()))?;
        let code = response.status();
        let body = transport::read(response.into_body(), LONGEST).await.map_err(|e| failed(e.to_string()))?;
        if !code.is_success() {
            return Err(format!("the server answered {code} for the definition {}", self.name));
        }
        serde_json::from_slice(&body).map_err(|error| format!("the answer cannot be read: {error}"))
    }
}

/// The objects in an answer, if it answers what was asked.
fn taken(review: Review, uid: &str, mut answer: Value) -> Result<Vec<Value>, String> {
    let (api_version, kind) = (meta::api_version(&answer), meta::kind(&answer));
    if review == Review::V1 && (api_version != review.api_version() || kind != "ConversionReview") {
        let wanted = format!("{}, Kind=ConversionReview", review.api_version());
        return Err(format!("expected webhook response of {wanted}, got {api_version}, Kind={kind}"));
    }
    let response = answer.get_mut("response").filter(|response| response.is_object());
    let response = response.ok_or("no response provided")?;
    let text = |pointer: &str| response.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if review == Review::V1 && text("/uid") != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", text("/uid")));
    }
    match (text("/result/status"), text("/result/message")) {
        ("Success", _) => {}
        (status, "") => return Err(format!("response.result.status was '{status}', not 'Success'")),
        (_, message) => return Err(message.to_owned()),
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// The converted objects with the metadata of the originals, of which only labels and annotations may have
/// been changed.
fn judged(originals: &[Value], converted: Vec<Value>, wanted: &str) -> Result<Vec<Value>, String> {
    if converted.len() != originals.len() {
        return Err(format!("returned {} objects, expected {}", converted.len(), originals.len()));
    }
    let mut out = Vec::with_capacity(converted.len());
    for (at, (original, mut converted)) in originals.iter().zip(converted).enumerate() {
        let place = format!("returned invalid converted object at index {at}");
        if meta::api_version(&converted) != wanted {
            let got = meta::api_version(&converted);
            return Err(format!("{place}: invalid groupVersion (expected {wanted}, received {got})"));
        }
        if meta::kind(&converted) != meta::kind(original) {
            let (want, got) = (meta::kind(original), meta::kind(&converted));
            return Err(format!("{place}: invalid kind (expected {want}, received {got})"));
        }
        for (what, read) in
            [("name", meta::name as fn(&Value) -> &str), ("namespace", meta::namespace), ("UID", meta::uid)]
        {
            let (want, got) = (read(original), read(&converted));
            if want != got {
                return Err(format!("{place}: must have the same {what}: {want} != {got}"));
            }
        }
        restore(original, &mut converted)
            .map_err(|why| format!("returned invalid metadata in object at index {at}: {why}"))?;
        out.push(converted);
    }
    Ok(out)
}

fn restore(original: &Value, converted: &mut Value) -> Result<(), String> {
    let said = match converted.get_mut("metadata").map(Value::take) {
        None => return Err("missing metadata in converted object".to_owned()),
        Some(Value::Object(said)) => said,
        Some(_) => return Err("invalid metadata in converted object".to_owned()),
    };
    let mut metadata = original.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        match said.get(field) {
            None | Some(Value::Null) => drop(metadata.remove(field)),
            Some(Value::Object(pairs)) => {
                check(field, pairs)?;
                metadata.insert(field.to_owned(), Value::Object(pairs.clone()));
            }
            Some(_) => return Err(format!("invalid metadata.{field} in converted object")),
        }
    }
    converted["metadata"] = Value::Object(metadata);
    Ok(())
}

/// Labels and annotations must be such as a client may set.
fn check(field: &str, pairs: &Map<String, Value>) -> Result<(), String> {
    let mut size = 0;
    for (key, value) in pairs {
        let Some(text) = value.as_str() else {
            return Err(format!("metadata.{field}[{key}] must be a string in converted object"));
        };
        size += key.len() + text.len();
        let mut wrong = names::qualified_name(&key.to_lowercase());
        if field == "labels" {
            wrong = names::qualified_name(key);
            wrong.extend(names::label_value(text));
        }
        if let Some(why) = wrong.first() {
            return Err(format!("metadata.{field}: Invalid value: {key:?}: {why}"));
        }
    }
    if field == "annotations" && size > kinds::metadata::ANNOTATIONS_LIMIT {
        return Err(format!("metadata.annotations: Too long: may not be more than {size} bytes"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn original() -> Value {
        json!({"kind": "A", "apiVersion": "b.c/v1", "metadata": {"name": "x", "namespace": "n", "uid": "u",
            "labels": {"a": "b"}, "generation": 3}})
    }

    fn check_answer(change: impl Fn(&mut Value), want: &str) {
        let mut converted = original();
        converted["apiVersion"] = json!("b.c/v2");
        let mut answer = json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response":
            {"uid": "1", "result": {"status": "Success"}, "convertedObjects": [converted]}});
        change(&mut answer);
        let got = taken(Review::V1, "1", answer).and_then(|objects| judged(&[original()], objects, "b.c/v2"));
        match got {
            Ok(objects) => assert_eq!(objects[0]["metadata"].to_string(), want),
            Err(why) => assert_eq!(why, want),
        }
    }

    #[test]
    fn lies_are_refused() {
        let kept = r#"{"generation":3,"labels":{"a":"b"},"name":"x","namespace":"n","uid":"u"}"#;
        check_answer(|_| {}, kept);
        // Of the metadata only labels and annotations are heard.
        check_answer(|a| a["response"]["convertedObjects"][0]["metadata"]["generation"] = json!(7), kept);
        check_answer(
            |a| a["response"]["convertedObjects"][0]["metadata"]["labels"] = json!({"c": "d"}),
            r#"{"generation":3,"labels":{"c":"d"},"name":"x","namespace":"n","uid":"u"}"#,
        );
        let at = "returned invalid converted object at index 0";
        for (pointer, value, want) in [
            ("/response/uid", json!("2"), "expected response.uid=\"1\", got \"2\"".to_owned()),
            ("/response/result/status", json!("Failure"), "response.result.status was 'Failure', not 'Success'".to_owned()),
            ("/response/result", json!({"status": "Failure", "message": "no"}), "no".to_owned()),
            ("/response", json!(null), "no response provided".to_owned()),
            (
                "/kind",
                json!("Pod"),
                "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got \
                 apiextensions.k8s.io/v1, Kind=Pod"
                    .to_owned(),
            ),
            ("/response/convertedObjects", json!([]), "returned 0 objects, expected 1".to_owned()),
            (
                "/response/convertedObjects/0/apiVersion",
                json!("b.c/v1"),
                format!("{at}: invalid groupVersion (expected b.c/v2, received b.c/v1)"),
            ),
            ("/response/convertedObjects/0/kind", json!("B"), format!("{at}: invalid kind (expected A, received B)")),
            ("/response/convertedObjects/0/metadata/name", json!("y"), format!("{at}: must have the same name: x != y")),
            ("/response/convertedObjects/0/metadata/uid", json!("v"), format!("{at}: must have the same UID: u != v")),
            (
                "/response/convertedObjects/0/metadata/labels",
                json!({"a": 1}),
                "returned invalid metadata in object at index 0: metadata.labels[a] must be a string in converted object"
                    .to_owned(),
            ),
        ] {
            check_answer(|a| *a.pointer_mut(pointer).expect("is there") = value.clone(), &want);
        }
    }

    #[test]
    fn a_webhook_is_where_its_definition_says() {
        let of = |config: Value| {
            let webhook = json!({"clientConfig": config, "conversionReviewVersions": ["v9", "v1beta1", "v1"]});
            Webhook::new("x", &serde_json::from_value(webhook).expect("a webhook")).map(|w| (w.url(), w.review))
        };
        let beta = Review::V1Beta1;
        assert_eq!(of(json!({"url": "https://h:1/p?q=1"})), Ok(("https://h:1/p?q=1".into(), beta)));
        assert_eq!(of(json!({"url": "https://[::1]/p"})), Ok(("https://[::1]:443/p".into(), beta)));
        let service = json!({"service": {"namespace": "n", "name": "s", "path": "/c"}});
        assert_eq!(of(service), Ok(("https://s.n.svc:443/c".into(), beta)));
        assert!(of(json!({})).is_err());
        assert!(of(json!({"url": "https://h", "caBundle": "bm8="})).is_err());
    }
}
