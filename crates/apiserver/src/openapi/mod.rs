//! `/openapi/v2` and `/openapi/v3`, from the schema: what clients validate, merge and explain by.
//!
//! ```text
//!  kinds ─► paths.rs (operations, as data) ─┐
//!  schema ─► model.rs (definitions)        ─┴─► v3.rs   a document per group and version
//!                                               v2.rs   one document ─► gnostic.rs (protobuf)
//! ```
//!
//! Documents are large and asked for seldom: they are written anew each time, and only their hash is
//! kept, by which clients keep them.

use std::sync::OnceLock;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use kinds::AnyKind;
use machinery::status::{self, Status};
use serde_json::{Map, Value, json};

use crate::discovery::{self, Group, answer};

mod gnostic;
pub mod model;
mod paths;
mod v2;
mod v3;

const JSON: &str = "application/json";
/// The protobuf form of v2 under its valid name and the one old clients ask for.
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const PROTOBUF_OLD: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// One document of v3.
struct Document {
    /// `api/v1`, `apis/apps/v1`.
    path: String,
    group: usize,
    version: usize,
    hash: OnceLock<String>,
}

/// OpenAPI over a list of kinds.
pub struct OpenApi {
    groups: Vec<Group>,
    documents: Vec<Document>,
    /// The server's version, which the documents carry.
    version: String,
    v2_json: OnceLock<HeaderValue>,
    v2_protobuf: OnceLock<HeaderValue>,
}

impl OpenApi {
    /// Of the kinds given; `version` is the server's.
    pub fn new(kinds: &[&'static dyn AnyKind], version: impl Into<String>) -> Self {
        let groups = discovery::groups(kinds);
        let documents = groups.iter().enumerate().flat_map(|(g, group)| {
            group.versions.iter().enumerate().map(move |(v, version)| {
                let root = if group.name.is_empty() { "api".to_owned() } else { format!("apis/{}", group.name) };
                Document { path: format!("{root}/{}", version.name), group: g, version: v, hash: OnceLock::new() }
            })
        });
        let documents = documents.collect();
        let version = version.into();
        Self { groups, documents, version, v2_json: OnceLock::new(), v2_protobuf: OnceLock::new() }
    }

    /// Answers a GET below `/openapi`; `hash` is that of the query. `None` for paths not served.
    pub fn respond(
        &self,
        path: &str,
        hash: Option<&str>,
        headers: &HeaderMap,
    ) -> Option<status::Result<transport::Response>> {
        Some(match path.trim_end_matches('/') {
            "/openapi/v2" => self.answer_v2(headers),
            "/openapi/v3" => self.accepting(headers, |_| self.index(headers)),
            path => {
                let rest = path.strip_prefix("/openapi/v3/")?;
                let document = self.documents.iter().find(|d| d.path == rest)?;
                self.accepting(headers, |_| self.answer_v3(document, hash, headers))
            }
        })
    }

    fn accepting(
        &self,
        headers: &HeaderMap,
        answer: impl FnOnce(usize) -> transport::Response,
    ) -> status::Result<transport::Response> {
        answer::choose(headers, &[JSON]).map(answer).ok_or_else(|| Status::not_acceptable(&[JSON]))
    }

    fn answer_v2(&self, headers: &HeaderMap) -> status::Result<transport::Response> {
        let offers = [PROTOBUF, PROTOBUF_OLD, JSON];
        match answer::choose(headers, &offers) {
            Some(2) => Ok(tagged(headers, JSON, &self.v2_json, || v2::json(&self.groups, &self.version))),
            Some(_) => Ok(tagged(headers, PROTOBUF, &self.v2_protobuf, || v2::protobuf(&self.groups, &self.version))),
            None => Err(Status::not_acceptable(&offers)),
        }
    }

    fn write(&self, document: &Document) -> Vec<u8> {
        let group = &self.groups[document.group];
        v3::document(group.name, &group.versions[document.version], &self.version)
    }

    fn hash<'a>(&self, document: &'a Document) -> &'a str {
        document.hash.get_or_init(|| answer::hash(&self.write(document)))
    }

    fn url(&self, document: &Document) -> String {
        format!("/openapi/v3/{}?hash={}", document.path, self.hash(document))
    }

    fn index(&self, headers: &HeaderMap) -> transport::Response {
        let entry = |d: &Document| (d.path.clone(), json!({"serverRelativeURL": self.url(d)}));
        let paths: Map<String, Value> = self.documents.iter().map(entry).collect();
        let body = Bytes::from(json!({"paths": paths}).to_string());
        answer::cached(headers, JSON, &body, &answer::etag(&body))
    }

    fn answer_v3(&self, document: &Document, hash: Option<&str>, headers: &HeaderMap) -> transport::Response {
        let current = self.hash(document);
        let known = hash.filter(|h| !h.is_empty());
        if known.is_some_and(|h| h != current) {
            let mut response = Response::new(transport::empty());
            *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
            if let Ok(url) = HeaderValue::from_str(&self.url(document)) {
                response.headers_mut().insert(header::LOCATION, url);
            }
            return response;
        }
        let tag = HeaderValue::from_str(&format!("\"{current}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"\""));
        let mut response = answer::cached_with(headers, JSON, &tag, || Bytes::from(self.write(document)));
        // A document under its hash never changes.
        let caching = if known.is_some() { "public, max-age=31536000, immutable" } else { "no-cache, private" };
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
        response
    }
}

/// A body whose tag is kept and which is itself written when it must be sent.
fn tagged(
    headers: &HeaderMap,
    media: &'static str,
    tag: &OnceLock<HeaderValue>,
    write: impl Fn() -> Vec<u8>,
) -> transport::Response {
    let mut written = None;
    let tag = tag.get_or_init(|| {
        let body = write();
        let tag = answer::etag(&body);
        written = Some(body);
        tag
    });
    answer::cached_with(headers, media, tag, || written.unwrap_or_else(write).into())
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

    use super::*;

    fn openapi() -> OpenApi {
        OpenApi::new(kinds::ALL, "v1.37.1")
    }

    async fn body(response: transport::Response) -> Vec<u8> {
        response.into_body().collect().await.unwrap().to_bytes().to_vec()
    }

    async fn get(openapi: &OpenApi, url: &str) -> (u16, Value) {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let hash = query.strip_prefix("hash=");
        let response = openapi.respond(path, hash, &HeaderMap::new()).unwrap().unwrap();
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
            let schemas = document["components"]["schemas"].as_object().unwrap();
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
        assert_eq!(spec["containers"]["items"]["$ref"], "#/components/schemas/io.k8s.api.core.v1.Container");
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
        headers.insert(header::ACCEPT, HeaderValue::from_static(PROTOBUF_OLD));
        let response = openapi.respond("/openapi/v2", None, &headers).unwrap().unwrap();
        assert_eq!(response.headers()[header::CONTENT_TYPE], PROTOBUF);
        let tag = response.headers()[header::ETAG].clone();
        assert!(body(response).await.starts_with(b"\x0a\x032.0"), "the swagger version comes first");
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let zipped = openapi.respond("/openapi/v2", None, &headers).unwrap().unwrap();
        assert_eq!(zipped.headers()[header::CONTENT_ENCODING], "gzip");
        assert!(body(zipped).await.starts_with(&[0x1f, 0x8b]));
        headers.insert(header::IF_NONE_MATCH, tag);
        assert_eq!(openapi.respond("/openapi/v2", None, &headers).unwrap().unwrap().status(), 304);
    }
}
