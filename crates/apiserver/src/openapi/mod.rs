//! `/openapi/v2` and `/openapi/v3`, from the schema: what clients validate, merge and explain by.
//!
//! ```text
//!  kinds ─► paths.rs (operations, as data) ─┐
//!  schema ─► model.rs (definitions)        ─┼─► v3.rs   a document per group and version
//!  texts.rs (what things are for)          ─┘   v2.rs   one document      ─► gnostic/ (protobuf)
//! ```
//!
//! Documents are large and asked for seldom, by all clients at once when they are: each is written when
//! first asked for, one at a time, and kept compressed, as most clients take it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use kinds::SharedKind;
use machinery::schema::Type;
use parking_lot::{Mutex, RwLock};
use serde_json::{Map, Value, json};
use stdx::SharedClock;

use self::foreign::Written;
use self::model::{Reach, Registered};
use self::paths::Path;
use self::texts::Texts;
use crate::discovery::{self, Group, Version, answer};

mod converted;
mod foreign;
mod gnostic;
pub mod model;
mod parameters;
mod paths;
pub mod texts;
mod v2;
mod v3;

pub use foreign::{Foreign, Made};

const JSON: &str = "application/json";
/// The protobuf forms under their valid names, in which they are answered, and those old clients ask for.
const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const V2_PROTOBUF_OLD: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
const V3_PROTOBUF_OLD: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

/// How well documents are compressed: once, for all who ask.
const LEVEL: u32 = 6;
/// How long a document under its hash may be kept.
const YEAR: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);

/// What one document of v3 is about.
enum About {
    /// `/api`.
    Core,
    /// `/apis`.
    Groups,
    Group(String),
    /// A group and one of its versions.
    Version(String, Version),
    Server,
    Issuer,
    Keys,
}

impl About {
    fn kinds(&self) -> &[SharedKind] {
        if let Self::Version(_, version) = self { &version.kinds } else { &[] }
    }

    /// True when the same is to be said of both, which are at one path.
    fn is_as(&self, other: &Self) -> bool {
        let (own, others) = (self.kinds(), other.kinds());
        own.len() == others.len() && own.iter().zip(others).all(|(a, b)| a.is(b))
    }
}

/// One document of v3.
struct Document {
    /// `api/v1`, `apis/apps/v1`.
    path: String,
    about: About,
    kept: Kept,
}

/// What is kept of a document. Both forms have one hash: they say the same, and caches tell them apart
/// by `Vary`.
#[derive(Default)]
struct Kept {
    hash: OnceLock<String>,
    /// Compressed.
    json: OnceLock<Bytes>,
    protobuf: OnceLock<Bytes>,
}

/// OpenAPI over a list of kinds.
pub struct OpenApi {
    served: RwLock<Arc<Served>>,
    /// The server's version, which the documents carry.
    version: String,
    /// Held while a document is written, which takes many times its size.
    writing: Mutex<()>,
    clock: SharedClock,
}

/// The documents of one time.
struct Served {
    documents: Vec<Arc<Document>>,
    /// What other servers say of what they answer for.
    foreign: Vec<Arc<Foreign>>,
    v2: Kept,
    /// As HTTP writes it: since when the documents are what they are.
    since: String,
}

/// What documents are written from, while they are written.
struct Source {
    texts: Texts,
    /// The types by the names of their definitions.
    types: HashMap<String, Type>,
}

impl Source {
    fn new() -> Self {
        let types = api::schema::all().map(|t| (model::name(t.get()), t)).collect();
        Self { texts: Texts::unpack(), types }
    }

    /// What the operations of paths name, and what that is made of.
    fn reach<'a>(&'a self, paths: &[Path], kinds: &'a [SharedKind]) -> Reach<'a> {
        let operations = paths.iter().flat_map(|p| &p.operations);
        let named = operations.flat_map(|o| o.body.iter().map(|(name, _)| name).chain(&o.reply));
        let names: BTreeSet<&String> = named.collect();
        let custom = kinds.iter().filter(|kind| kind.is_custom());
        let meta = custom.clone().flat_map(|_| [model::OBJECT_META, model::LIST_META]);
        let types = names.iter().map(|name| name.as_str()).chain(meta).filter_map(|name| self.types.get(name));
        Reach::of(types).and(names.iter().map(|name| (*name).clone())).and_custom(custom)
    }
}

/// The documents of what is served.
fn documents(groups: Vec<Group>) -> Vec<Document> {
    let mut about = vec![
        (".well-known/openid-configuration".to_owned(), About::Issuer),
        ("api".to_owned(), About::Core),
        ("apis".to_owned(), About::Groups),
        ("openid/v1/jwks".to_owned(), About::Keys),
        ("version".to_owned(), About::Server),
    ];
    for group in groups {
        let root = if group.name.is_empty() { "api".to_owned() } else { format!("apis/{}", group.name) };
        for version in group.versions {
            about.push((format!("{root}/{}", version.name), About::Version(group.name.clone(), version)));
        }
        if !group.name.is_empty() {
            about.push((root, About::Group(group.name)));
        }
    }
    about.into_iter().map(|(path, about)| Document { path, about, kept: Kept::default() }).collect()
}

impl OpenApi {
    /// Of the kinds given; `version` is the server's.
    pub fn new(kinds: impl IntoIterator<Item = SharedKind>, version: impl Into<String>, clock: SharedClock) -> Self {
        let documents = documents(discovery::groups(kinds)).into_iter().map(Arc::new).collect();
        let since = http_date(clock.wall());
        let served = Served { documents, foreign: Vec::new(), v2: Kept::default(), since };
        Self { served: RwLock::new(Arc::new(served)), version: version.into(), writing: Mutex::new(()), clock }
    }

    /// Describes these kinds from now on. Of documents that stay the same what is written is kept.
    pub fn show(&self, kinds: impl IntoIterator<Item = SharedKind>) {
        let new = documents(discovery::groups(kinds));
        let since = http_date(self.clock.wall());
        let mut served = self.served.write();
        let old: HashMap<&str, &Arc<Document>> = served.documents.iter().map(|d| (d.path.as_str(), d)).collect();
        let keep = |document: Document| match old.get(document.path.as_str()) {
            Some(old) if old.about.is_as(&document.about) => (*old).clone(),
            _ => Arc::new(document),
        };
        let documents = new.into_iter().map(keep).collect();
        let foreign = served.foreign.clone();
        *served = Arc::new(Served { documents, foreign, v2: Kept::default(), since });
    }

    /// Adds from now on what other servers say of what they answer for.
    pub fn show_foreign(&self, foreign: Vec<Arc<Foreign>>) {
        let mut served = self.served.write();
        let same = |(old, new): (&Arc<Foreign>, &Arc<Foreign>)| old.is_as(new);
        if served.foreign.len() == foreign.len() && served.foreign.iter().zip(&foreign).all(same) {
            return;
        }
        let (documents, since) = (served.documents.clone(), http_date(self.clock.wall()));
        *served = Arc::new(Served { documents, foreign, v2: Kept::default(), since });
    }

    /// Answers a GET below `/openapi`; `hash` is that of the query. `None` for paths not served. What is
    /// asked for the first time takes its time to write: call it where that holds up nobody.
    pub fn respond(&self, path: &str, hash: Option<&str>, headers: &HeaderMap) -> Option<transport::Response> {
        let served = self.served.read().clone();
        let mut response = match path.trim_end_matches('/') {
            "/openapi/v2" => self.answer_v2(&served, headers),
            "/openapi/v3" => self.index(&served, headers),
            path => {
                let rest = path.strip_prefix("/openapi/v3/")?;
                match served.foreign.iter().find(|foreign| foreign.path() == rest) {
                    Some(foreign) => {
                        let made = foreign.made.as_ref()?;
                        let json = |_: &Source| self.made(made);
                        let protobuf = |_: &Source| made.protobuf(&v3::head(&self.version), &security());
                        self.answer_v3(rest, &made.kept, hash, headers, json, protobuf)
                    }
                    None => {
                        let document = served.documents.iter().find(|d| d.path == rest)?;
                        let json = |source: &Source| self.json(document, source);
                        let protobuf = |source: &Source| self.protobuf(document, source);
                        self.answer_v3(rest, &document.kept, hash, headers, json, protobuf)
                    }
                }
            }
        };
        let has_body = !response.status().is_redirection() || response.status() == StatusCode::NOT_MODIFIED;
        if let Ok(since) = HeaderValue::from_str(&served.since)
            && has_body
            && response.status() != StatusCode::NOT_ACCEPTABLE
        {
            response.headers_mut().insert(header::LAST_MODIFIED, since);
        }
        Some(response)
    }

    fn answer_v2(&self, served: &Served, headers: &HeaderMap) -> transport::Response {
        let offers = [V2_PROTOBUF, V2_PROTOBUF_OLD, JSON];
        let Some(chosen) = answer::choose(headers, &offers) else { return not_acceptable() };
        let kinds: Vec<SharedKind> = served.documents.iter().flat_map(|d| d.about.kinds()).cloned().collect();
        let own = |source: &Source| v2::json(source, &served.paths(&source.texts), &kinds, &self.version);
        let merged = |source: &Source| Written::of(&own(source), &served.foreign);
        let json = |source: &Source| merged(source).map_or_else(|| own(source), |written| written.json());
        let protobuf = |source: &Source| {
            let own = || v2::protobuf(source, &served.paths(&source.texts), &kinds, &self.version);
            merged(source).map_or_else(own, |written| written.protobuf())
        };
        if chosen == 2 {
            self.answer(&served.v2, headers, JSON, &served.v2.json, json, json)
        } else {
            self.answer(&served.v2, headers, V2_PROTOBUF, &served.v2.protobuf, json, protobuf)
        }
    }

    /// One form of a document; `json` and `form` write it, once.
    fn answer(
        &self,
        kept: &Kept,
        headers: &HeaderMap,
        media: &'static str,
        body: &OnceLock<Bytes>,
        json: impl Fn(&Source) -> Vec<u8>,
        form: impl Fn(&Source) -> Vec<u8>,
    ) -> transport::Response {
        let tag = quoted(self.hash(kept, json));
        answer::cached_zipped(headers, media, &tag, || self.zipped(body, form))
    }

    fn hash<'k>(&self, kept: &'k Kept, json: impl Fn(&Source) -> Vec<u8>) -> &'k str {
        if let Some(hash) = kept.hash.get() {
            return hash;
        }
        let _one = self.writing.lock();
        kept.hash.get_or_init(|| {
            let body = json(&Source::new());
            kept.json.get_or_init(|| answer::zip(&body, LEVEL).unwrap_or_default());
            answer::hash(&body)
        })
    }

    fn zipped(&self, body: &OnceLock<Bytes>, form: impl Fn(&Source) -> Vec<u8>) -> Bytes {
        if let Some(body) = body.get() {
            return body.clone();
        }
        let _one = self.writing.lock();
        body.get_or_init(|| answer::zip(&form(&Source::new()), LEVEL).unwrap_or_default()).clone()
    }

    fn json(&self, document: &Document, source: &Source) -> Vec<u8> {
        let (paths, registered) = (document.paths(&source.texts), document.registered());
        v3::json(source, &paths, document.about.kinds(), &registered, &self.version)
    }

    fn protobuf(&self, document: &Document, source: &Source) -> Vec<u8> {
        let (paths, registered) = (document.paths(&source.texts), document.registered());
        v3::protobuf(source, &paths, document.about.kinds(), &registered, &self.version)
    }

    /// A document that is made of one of v2.
    fn made(&self, made: &Made) -> Vec<u8> {
        made.json(v3::head(&self.version), &security())
    }

    fn url(path: &str, hash: &str) -> String {
        format!("/openapi/v3/{path}?hash={hash}")
    }

    /// Where each document is. Whatever the client accepts, it is JSON.
    fn index(&self, served: &Served, headers: &HeaderMap) -> transport::Response {
        if served.documents.iter().any(|d| d.kept.hash.get().is_none()) {
            let _one = self.writing.lock();
            let source = Source::new();
            for document in &served.documents {
                document.kept.hash.get_or_init(|| answer::hash(&self.json(document, &source)));
            }
        }
        let own = served.documents.iter().filter(|d| !served.is_foreign(&d.path));
        let hashes = own.filter_map(|d| Some((d, d.kept.hash.get()?)));
        let own = hashes.map(|(d, hash)| (d.path.clone(), Self::url(&d.path, hash)));
        let foreign = served.foreign.iter().filter_map(|foreign| {
            let path = foreign.path();
            let made = || {
                let made = foreign.made.as_ref()?;
                Some(Self::url(&path, self.hash(&made.kept, |_| self.made(made))))
            };
            let url = foreign.v3.clone().or_else(made)?;
            Some((path, url))
        });
        let paths: Map<String, Value> =
            own.chain(foreign).map(|(path, url)| (path, json!({"serverRelativeURL": url}))).collect();
        let body = Bytes::from(json!({ "paths": paths }).to_string());
        answer::cached(headers, JSON, &body, &answer::etag(&body))
    }

    fn answer_v3(
        &self,
        path: &str,
        kept: &Kept,
        asked: Option<&str>,
        headers: &HeaderMap,
        json: impl Fn(&Source) -> Vec<u8>,
        protobuf: impl Fn(&Source) -> Vec<u8>,
    ) -> transport::Response {
        let Some(chosen) = answer::choose(headers, &[V3_PROTOBUF, V3_PROTOBUF_OLD, JSON]) else {
            return not_acceptable();
        };
        let current = self.hash(kept, &json);
        let asked = asked.filter(|hash| !hash.is_empty());
        if asked.is_some_and(|hash| hash != current) {
            let mut response = Response::new(transport::empty());
            *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
            if let Ok(url) = HeaderValue::from_str(&Self::url(path, current)) {
                response.headers_mut().insert(header::LOCATION, url);
            }
            return response;
        }
        let mut response = if chosen == 2 {
            self.answer(kept, headers, JSON, &kept.json, &json, &json)
        } else {
            self.answer(kept, headers, V3_PROTOBUF, &kept.protobuf, json, protobuf)
        };
        if asked.is_some() {
            // A document under its hash never changes.
            let caching = HeaderValue::from_static("public, immutable");
            response.headers_mut().insert(header::CACHE_CONTROL, caching);
            let expires = http_date(self.clock.wall().checked_add(YEAR).unwrap_or(self.clock.wall()));
            if let Ok(expires) = HeaderValue::from_str(&expires) {
                response.headers_mut().insert(header::EXPIRES, expires);
            }
        }
        response
    }
}

impl Served {
    /// True for what another server answers for.
    fn is_foreign(&self, path: &str) -> bool {
        self.foreign.iter().any(|foreign| foreign.path() == path)
    }

    /// Everything that can be asked for, in the order of paths.
    fn paths(&self, texts: &Texts) -> Vec<Path> {
        let mut all: Vec<Path> = self.documents.iter().flat_map(|d| d.paths(texts)).collect();
        all.sort_by(|a, b| a.path.cmp(&b.path));
        all
    }
}

impl Document {
    fn paths(&self, texts: &Texts) -> Vec<Path> {
        match &self.about {
            About::Core => vec![paths::of_roots(None, true)],
            About::Groups => vec![paths::of_roots(None, false)],
            About::Group(group) => vec![paths::of_roots(Some(group), false)],
            About::Version(group, version) => paths::of(group, version, texts),
            About::Server => vec![paths::of_version()],
            About::Issuer => vec![paths::of_issuer(false)],
            About::Keys => vec![paths::of_issuer(true)],
        }
    }

    fn registered(&self) -> Registered {
        match &self.about {
            About::Version(group, version) => Registered::only(group, &version.name),
            _ => Registered::only("", "v1"),
        }
    }
}

/// How clients show who they are, in both documents.
fn bearer_token() -> Value {
    json!({"type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication"})
}

fn security() -> Value {
    json!({"BearerToken": bearer_token()})
}

fn quoted(hash: &str) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{hash}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

/// Upstream says it with the code alone.
fn not_acceptable() -> transport::Response {
    let mut response = Response::new(transport::empty());
    *response.status_mut() = StatusCode::NOT_ACCEPTABLE;
    response
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(at: jiff::Timestamp) -> String {
    at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// An object written piece by piece, so that no tree of a whole document is ever in memory.
struct Pieces {
    out: Vec<u8>,
}

impl Pieces {
    /// Starts with the fields of `head`; the braces stay open.
    fn start(head: &Value) -> Self {
        let mut out = head.to_string().into_bytes();
        out.pop();
        Self { out }
    }

    fn key(&mut self, name: &str) {
        if !matches!(self.out.last(), Some(b'{' | b'[')) {
            self.out.push(b',');
        }
        self.out.extend_from_slice(Value::from(name).to_string().as_bytes());
        self.out.push(b':');
    }

    fn open(&mut self, name: &str) {
        self.key(name);
        self.out.push(b'{');
    }

    fn field(&mut self, name: &str, value: &Value) {
        self.key(name);
        self.out.extend_from_slice(value.to_string().as_bytes());
    }

    fn close(&mut self) {
        self.out.push(b'}');
    }

    fn finish(mut self) -> Vec<u8> {
        self.close();
        self.out
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use stdx::clock::RealClock;

    use super::*;

    fn openapi() -> OpenApi {
        OpenApi::new(kinds::ALL.iter().copied().map(SharedKind::from), "v1.37.1", RealClock::shared())
    }

    async fn body(response: transport::Response) -> Vec<u8> {
        response.into_body().collect().await.unwrap().to_bytes().to_vec()
    }

    async fn get(openapi: &OpenApi, url: &str) -> (u16, Value) {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let hash = query.strip_prefix("hash=");
        let response = openapi.respond(path, hash, &HeaderMap::new()).unwrap();
        let code = response.status().as_u16();
        (code, serde_json::from_slice(&body(response).await).unwrap_or_default())
    }

    #[tokio::test]
    async fn every_document_of_the_index_is_served_and_closed() {
        let openapi = openapi();
        let (_, index) = get(&openapi, "/openapi/v3").await;
        let paths = index["paths"].as_object().unwrap();
        assert!(paths.contains_key("api/v1") && paths.contains_key("apis/apps/v1"), "{index}");
        for entry in paths.values() {
            let url = entry["serverRelativeURL"].as_str().unwrap();
            let (code, document) = get(&openapi, url).await;
            assert_eq!(code, 200, "{url}");
            let text = document.to_string();
            let schemas = document["components"]["schemas"].as_object().cloned().unwrap_or_default();
            for part in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
                let name = part.split('"').next().unwrap();
                assert!(schemas.contains_key(name), "{url}: {name} is named but not there");
            }
            assert!(!document["paths"].as_object().unwrap().is_empty(), "{url}");
        }
        assert_eq!(get(&openapi, "/openapi/v3/api/v1?hash=old").await.0, 301);
        assert!(openapi.respond("/openapi/v3/apis/none/v1", None, &HeaderMap::new()).is_none());
    }

    #[tokio::test]
    async fn what_kubectl_looks_for_is_there() {
        let (_, apps) = get(&openapi(), "/openapi/v3/apis/apps/v1").await;
        let patch = &apps["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
        let names: Vec<&str> =
            patch["parameters"].as_array().unwrap().iter().filter_map(|p| p["name"].as_str()).collect();
        assert!(names.contains(&"fieldValidation") && names.contains(&"dryRun"), "{names:?}");
        assert_eq!(
            patch["x-kubernetes-group-version-kind"],
            json!({"group": "apps", "version": "v1", "kind": "Deployment"})
        );
        let schemas = &apps["components"]["schemas"];
        let spec = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"];
        assert_eq!(spec["containers"]["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(spec["containers"]["x-kubernetes-list-map-keys"], json!(["name"]));
        assert_eq!(
            spec["containers"]["items"]["allOf"][0]["$ref"],
            "#/components/schemas/io.k8s.api.core.v1.Container"
        );
        assert_eq!(spec["containers"]["items"]["default"], json!({}));
        assert!(spec["containers"]["description"].as_str().is_some_and(|text| text.contains("containers")));
        let deployment = &schemas["io.k8s.api.apps.v1.Deployment"];
        assert_eq!(deployment["properties"]["kind"]["type"], "string");
        assert_eq!(
            schemas["io.k8s.api.apps.v1.DeploymentSpec"]["properties"]["strategy"]["x-kubernetes-patch-strategy"],
            "retainKeys"
        );
    }

    #[tokio::test]
    async fn v2_is_closed_in_both_forms() {
        let openapi = openapi();
        let (_, v2) = get(&openapi, "/openapi/v2").await;
        let definitions = v2["definitions"].as_object().unwrap();
        for part in v2.to_string().split("\"$ref\":\"#/definitions/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(definitions.contains_key(name), "{name} is named but not there");
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(V2_PROTOBUF_OLD));
        let response = openapi.respond("/openapi/v2", None, &headers).unwrap();
        assert_eq!(response.headers()[header::CONTENT_TYPE], V2_PROTOBUF);
        let tag = response.headers()[header::ETAG].clone();
        assert!(body(response).await.starts_with(b"\x0a\x032.0"), "the swagger version comes first");
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let zipped = openapi.respond("/openapi/v2", None, &headers).unwrap();
        assert_eq!(zipped.headers()[header::CONTENT_ENCODING], "gzip");
        assert!(body(zipped).await.starts_with(&[0x1f, 0x8b]));
        headers.insert(header::IF_NONE_MATCH, tag);
        assert_eq!(openapi.respond("/openapi/v2", None, &headers).unwrap().status(), 304);
    }
}
