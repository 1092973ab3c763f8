//! An API server in memory, small and scriptable: enough of the API for tests of clients and
//! controllers, with faults on demand. It keeps objects as JSON, knows no kinds beyond what it is
//! told, validates nothing.
//!
//! What it does as the real one does: revisions, conflicts, generateName, generation, status as a
//! subresource, finalizers and the three propagation policies, uid preconditions, streaming lists,
//! bookmarks, 410, discovery.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use machinery::labels::Selector;
use machinery::status::Status;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use stdx::{Rng, SharedClock};
use tokio::sync::mpsc;
use transport::{Handler, Request, Responding, Response};

use crate::resource::Resource;

/// `plural.group` and key to object.
type Objects = BTreeMap<(String, String, String), Value>;
type Answer = Result<Value, Box<Status>>;

struct State {
    revision: u64,
    oldest: u64,
    objects: Objects,
    log: Vec<(u64, &'static str, String, Value)>,
    watches: Vec<Watch>,
    /// Refusals to come, by method and a part of the path.
    faults: Vec<(String, String, Box<Status>)>,
    requests: Vec<String>,
    plain_lists: bool,
}

struct Watch {
    resource: String,
    namespace: String,
    labels: Selector,
    send: mpsc::UnboundedSender<Bytes>,
}

/// The server. Clones share it.
#[derive(Clone)]
pub struct Fake {
    state: Arc<Mutex<State>>,
    resources: Arc<Vec<Resource>>,
    clock: SharedClock,
    rng: Rng,
}

impl Fake {
    /// A server of these resources, with the namespaces a new cluster has.
    pub fn new(resources: Vec<Resource>, clock: SharedClock, rng: Rng) -> Self {
        let state = State {
            revision: 1,
            oldest: 0,
            objects: Objects::new(),
            log: Vec::new(),
            watches: Vec::new(),
            faults: Vec::new(),
            requests: Vec::new(),
            plain_lists: false,
        };
        Self { state: Arc::new(Mutex::new(state)), resources: Arc::new(resources), clock, rng }
    }

    /// A handler over this server.
    pub fn handler(&self) -> transport::SharedHandler {
        Arc::new(self.clone())
    }

    /// The next request with this method whose path contains `part` fails with `status`.
    pub fn fail(&self, method: &str, part: &str, status: Box<Status>) {
        self.state.lock().faults.push((method.into(), part.into(), status));
    }

    /// Refuse streaming lists, as servers before 1.34 do.
    pub fn refuse_streaming_lists(&self) {
        self.state.lock().plain_lists = true;
    }

    /// Ends every watch.
    pub fn drop_watches(&self) {
        self.state.lock().watches.clear();
    }

    /// Forgets every past event: watches that begin before now get 410.
    pub fn compact(&self) {
        let mut state = self.state.lock();
        state.oldest = state.revision;
        state.log.clear();
    }

    /// The current revision.
    pub fn revision(&self) -> u64 {
        self.state.lock().revision
    }

    /// `METHOD path?query` of every request so far, taken.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().requests)
    }

    /// Every object of a resource.
    pub fn objects(&self, resource: &str) -> Vec<Value> {
        let state = self.state.lock();
        state.objects.iter().filter(|((r, ..), _)| r == resource).map(|(_, o)| o.clone()).collect()
    }

    /// One object.
    pub fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.state.lock().objects.get(&(resource.into(), namespace.into(), name.into())).cloned()
    }

    /// Changes an object behind everybody's back (as a kubelet would); panics when it is absent.
    pub fn change(&self, resource: &str, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.state.lock();
        let key = (resource.to_owned(), namespace.to_owned(), name.to_owned());
        let mut object = state.objects.get(&key).cloned().unwrap_or_else(|| panic!("{key:?} is absent"));
        change(&mut object);
        state.store("MODIFIED", key, object);
    }

    /// Removes an object whatever its finalizers say.
    pub fn remove(&self, resource: &str, namespace: &str, name: &str) {
        self.state.lock().erase((resource.to_owned(), namespace.to_owned(), name.to_owned()));
    }

    fn answer(&self, method: &str, path: &str, query: &BTreeMap<String, String>, content: &str, body: &[u8]) -> Answer {
        let mut state = self.state.lock();
        state.requests.push(format!("{method} {path}"));
        let hit = state.faults.iter().position(|(m, p, _)| m == method && path.contains(p.as_str()));
        if let Some(at) = hit {
            return Err(state.faults.remove(at).2);
        }
        if let Some(found) = self.discovery(path) {
            return Ok(found);
        }
        let at = self.parse(path).ok_or_else(Status::no_such_path)?;
        let parsed = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(body).map_err(|e| Status::bad_request(e.to_string()))?
        };
        let gr = at.resource.group_resource();
        match (method, at.name.as_str()) {
            ("GET", "") => state.list(&at, query),
            ("GET", _) => state.objects.get(&at.key()).cloned().ok_or_else(|| Status::not_found(&gr, &at.name)),
            ("POST", "") => self.create(&mut state, &at, parsed),
            ("PUT", _) => self.update(&mut state, &at, |_| Ok(parsed)),
            ("PATCH", _) => self.update(&mut state, &at, |old| patch(old, &parsed, content)),
            ("DELETE", "") => {
                let selector = selector(query)?;
                let keys: Vec<_> = state.matching(&at, &selector).map(|(k, _)| k.clone()).collect();
                for (_, namespace, name) in keys {
                    let one = At { namespace, name, ..at.clone() };
                    self.delete(&mut state, &one, &parsed)?;
                }
                Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
            }
            ("DELETE", _) => self.delete(&mut state, &at, &parsed),
            ("POST", _) if at.subresource == "binding" => {
                let node = parsed.pointer("/target/name").cloned().unwrap_or_default();
                self.update(&mut state, &At { subresource: String::new(), ..at.clone() }, |old| {
                    let mut new = old.clone();
                    new["spec"]["nodeName"] = node;
                    Ok(new)
                })
            }
            _ => Err(Status::method_not_allowed(&gr, method)),
        }
    }

    fn create(&self, state: &mut State, at: &At, mut object: Value) -> Answer {
        if !object.is_object() {
            return Err(Status::bad_request("no object"));
        }
        let meta = object["metadata"].as_object_mut().map(std::mem::take).unwrap_or_default();
        let mut meta: Map<String, Value> = meta.into_iter().filter(|(_, v)| !v.is_null()).collect();
        let text =
            |meta: &Map<String, Value>, key: &str| meta.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
        let mut name = text(&meta, "name");
        if name.is_empty() {
            name = machinery::names::generate(&text(&meta, "generateName"), &self.rng);
            meta.insert("name".into(), json!(name));
        }
        let namespace = if at.resource.namespaced && at.namespace.is_empty() {
            text(&meta, "namespace")
        } else {
            at.namespace.clone()
        };
        if at.resource.namespaced {
            meta.insert("namespace".into(), json!(namespace));
        }
        let key = (at.resource.to_string(), namespace, name.clone());
        if state.objects.contains_key(&key) {
            return Err(Status::already_exists(&at.resource.group_resource(), &name));
        }
        meta.insert("uid".into(), json!(self.rng.uuid()));
        meta.insert("generation".into(), json!(1));
        meta.insert("creationTimestamp".into(), json!(machinery::time::rfc3339(self.clock.wall())));
        object["metadata"] = Value::Object(meta);
        object["kind"] = json!(*at.resource.kind);
        object["apiVersion"] = json!(at.resource.api_version());
        if let ("namespaces", Some(map)) = (&*at.resource.plural, object.as_object_mut()) {
            map.insert("spec".into(), json!({"finalizers": ["kubernetes"]}));
            map.insert("status".into(), json!({"phase": "Active"}));
        }
        Ok(state.store("ADDED", key, object))
    }

    fn update(&self, state: &mut State, at: &At, change: impl FnOnce(&Value) -> Answer) -> Answer {
        let gr = at.resource.group_resource();
        let old = state.objects.get(&at.key()).cloned().ok_or_else(|| Status::not_found(&gr, &at.name))?;
        let mut new = change(&old)?;
        let asked = new.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
        if !asked.is_empty() && Some(asked.as_str()) != old.pointer("/metadata/resourceVersion").and_then(Value::as_str)
        {
            return Err(Status::modified(&gr, &at.name));
        }
        match at.subresource.as_str() {
            "status" => {
                let status = new.get("status").cloned().unwrap_or_default();
                new = old.clone();
                new["status"] = status;
            }
            "finalize" => {
                let spec = new.get("spec").cloned().unwrap_or_default();
                new = old.clone();
                new["spec"] = spec;
            }
            _ if old.get("status").is_some() => new["status"] = old["status"].clone(),
            _ => drop(new.as_object_mut().map(|o| o.remove("status"))),
        }
        for kept in ["uid", "name", "namespace", "creationTimestamp", "deletionTimestamp", "generation"] {
            new["metadata"][kept] = old["metadata"][kept].clone();
        }
        if new.get("spec") != old.get("spec") && at.subresource != "finalize" {
            new["metadata"]["generation"] = json!(old["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        if new == old {
            return Ok(old);
        }
        if is_finished(&new) {
            state.erase(at.key());
            return Ok(new);
        }
        Ok(state.store("MODIFIED", at.key(), new))
    }

    fn delete(&self, state: &mut State, at: &At, options: &Value) -> Answer {
        let gr = at.resource.group_resource();
        let mut object = state.objects.get(&at.key()).cloned().ok_or_else(|| Status::not_found(&gr, &at.name))?;
        for (key, pointer) in [("uid", "/metadata/uid"), ("resourceVersion", "/metadata/resourceVersion")] {
            let wanted = options.pointer(&format!("/preconditions/{key}"));
            if wanted.is_some_and(|w| Some(w) != object.pointer(pointer)) {
                return Err(Status::conflict(&gr, &at.name, "Precondition failed"));
            }
        }
        let finalizer = match options.get("propagationPolicy").and_then(Value::as_str) {
            Some("Foreground") => Some("foregroundDeletion"),
            Some("Orphan") => Some("orphan"),
            _ => None,
        };
        let mut finalizers: Vec<Value> = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        if let Some(finalizer) = finalizer.filter(|f| !finalizers.contains(&json!(f))) {
            finalizers.push(json!(finalizer));
        }
        let grace = options.get("gracePeriodSeconds").and_then(Value::as_i64);
        // A pod on a node is deleted by its kubelet, after its time.
        let waits = &*at.resource.plural == "pods"
            && grace != Some(0)
            && object.pointer("/spec/nodeName").is_some_and(|n| n.as_str().is_some_and(|n| !n.is_empty()));
        let is_namespace = &*at.resource.plural == "namespaces";
        if finalizers.is_empty() && !waits && !is_namespace {
            state.erase(at.key());
            return Ok(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}));
        }
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!(machinery::time::rfc3339(self.clock.wall()));
            object["metadata"]["deletionGracePeriodSeconds"] = json!(if waits { grace.unwrap_or(30) } else { 0 });
        }
        if !finalizers.is_empty() {
            object["metadata"]["finalizers"] = json!(finalizers);
        }
        if is_namespace {
            object["status"]["phase"] = json!("Terminating");
        }
        Ok(state.store("MODIFIED", at.key(), object))
    }

    fn discovery(&self, path: &str) -> Option<Value> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let list = |group: &str, version: &str| {
            let mine = self.resources.iter().filter(|r| *r.group == *group && *r.version == *version);
            let entries: Vec<_> = mine
                .map(|r| {
                    let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
                    json!({"name": *r.plural, "kind": *r.kind, "namespaced": r.namespaced, "verbs": verbs})
                })
                .collect();
            json!({"kind": "APIResourceList", "resources": entries})
        };
        match parts.as_slice() {
            ["api"] => Some(json!({"versions": ["v1"]})),
            ["apis"] => {
                let mut groups: BTreeMap<&str, &str> = BTreeMap::new();
                for r in self.resources.iter().filter(|r| !r.group.is_empty()) {
                    groups.insert(&r.group, &r.version);
                }
                let one = |(g, v): (&&str, &&str)| json!({"name": g, "versions": [{"version": v}], "preferredVersion": {"version": v}});
                Some(json!({"groups": groups.iter().map(one).collect::<Vec<_>>()}))
            }
            ["api", version] => Some(list("", version)),
            ["apis", group, version] => Some(list(group, version)),
            _ => None,
        }
    }

    fn parse(&self, path: &str) -> Option<At> {
        let decode = |s: &str| percent_encoding::percent_decode_str(s).decode_utf8_lossy().into_owned();
        let parts: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
        let (group, version, mut rest) = match parts.first().map(String::as_str) {
            Some("api") => (String::new(), parts.get(1)?.clone(), parts.get(2..)?),
            Some("apis") => (parts.get(1)?.clone(), parts.get(2)?.clone(), parts.get(3..)?),
            _ => return None,
        };
        let mut namespace = String::new();
        if rest.len() > 2 && rest[0] == "namespaces" && self.resources.iter().any(|r| *r.plural == *rest[2]) {
            namespace = rest[1].clone();
            rest = &rest[2..];
        }
        let plural = rest.first()?;
        let resource =
            self.resources.iter().find(|r| *r.group == *group && *r.version == *version && *r.plural == **plural)?;
        let part = |n: usize| rest.get(n).cloned().unwrap_or_default();
        Some(At { resource: resource.clone(), namespace, name: part(1), subresource: part(2) })
    }

    fn watch(&self, path: &str, query: &BTreeMap<String, String>) -> Result<transport::Body, Box<Status>> {
        let mut state = self.state.lock();
        state.requests.push(format!("WATCH {path}"));
        let hit = state.faults.iter().position(|(m, p, _)| m == "WATCH" && path.contains(p.as_str()));
        if let Some(at) = hit {
            return Err(state.faults.remove(at).2);
        }
        let at = self.parse(path).ok_or_else(Status::no_such_path)?;
        let labels = selector(query)?;
        let (send, receive) = mpsc::unbounded_channel();
        let initial = query.get("sendInitialEvents").is_some_and(|v| v == "true");
        if initial && state.plain_lists {
            return Err(Status::new(422, "Invalid", "sendInitialEvents is forbidden for watch"));
        }
        if initial {
            for (_, object) in state.matching(&at, &labels) {
                let _ = send.send(frame("ADDED", object));
            }
            let mark = json!({"kind": *at.resource.kind, "metadata": {
                "resourceVersion": state.revision.to_string(), "annotations": {"k8s.io/initial-events-end": "true"}}});
            let _ = send.send(frame("BOOKMARK", &mark));
        } else {
            let after: u64 = query.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
            if after < state.oldest {
                let status = Status::expired(format!("too old resource version: {after} ({})", state.oldest));
                let _ = send.send(frame("ERROR", &status.to_value()));
                let body = tokio_stream(receive, Some(send));
                return Ok(body);
            }
            for (revision, kind, resource, object) in &state.log {
                let fits = *revision > after && *resource == at.resource.to_string();
                if fits && (at.namespace.is_empty() || namespace_of(object) == at.namespace) {
                    let _ = send.send(frame(kind, object));
                }
            }
        }
        state.watches.push(Watch { resource: at.resource.to_string(), namespace: at.namespace, labels, send });
        Ok(tokio_stream(receive, None))
    }
}

/// The stream of a watch. `last` is a sender that is dropped at once, which ends the stream after
/// what it has sent.
fn tokio_stream(
    receive: mpsc::UnboundedReceiver<Bytes>,
    last: Option<mpsc::UnboundedSender<Bytes>>,
) -> transport::Body {
    drop(last);
    transport::stream(futures::stream::unfold(receive, |mut receive| async move {
        receive.recv().await.map(|bytes| (Ok(bytes), receive))
    }))
}

#[derive(Clone, Debug)]
struct At {
    resource: Resource,
    namespace: String,
    name: String,
    subresource: String,
}

impl At {
    fn key(&self) -> (String, String, String) {
        (self.resource.to_string(), self.namespace.clone(), self.name.clone())
    }
}

impl State {
    fn matching<'a>(
        &'a self,
        at: &'a At,
        labels: &'a Selector,
    ) -> impl Iterator<Item = (&'a (String, String, String), &'a Value)> {
        let resource = at.resource.to_string();
        self.objects.iter().filter(move |((r, namespace, _), object)| {
            *r == resource
                && (at.namespace.is_empty() || *namespace == at.namespace)
                && labels.matches(&machinery::meta::labels(object))
        })
    }

    fn list(&self, at: &At, query: &BTreeMap<String, String>) -> Answer {
        let labels = selector(query)?;
        let items: Vec<_> = self.matching(at, &labels).map(|(_, o)| o.clone()).collect();
        Ok(
            json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": self.revision.to_string()}, "items": items}),
        )
    }

    fn store(&mut self, kind: &'static str, key: (String, String, String), mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.retain(|_, v| !v.is_null());
        }
        self.objects.insert(key.clone(), object.clone());
        self.tell(kind, key.0, &object);
        object
    }

    fn erase(&mut self, key: (String, String, String)) {
        let Some(mut object) = self.objects.remove(&key) else { return };
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.tell("DELETED", key.0, &object);
    }

    fn tell(&mut self, kind: &'static str, resource: String, object: &Value) {
        let bytes = frame(kind, object);
        let namespace = namespace_of(object);
        self.watches.retain(|watch| {
            let fits = watch.resource == resource
                && (watch.namespace.is_empty() || watch.namespace == namespace)
                && watch.labels.matches(&machinery::meta::labels(object));
            !fits && !watch.send.is_closed() || fits && watch.send.send(bytes.clone()).is_ok()
        });
        self.log.push((self.revision, kind, resource, object.clone()));
    }
}

fn namespace_of(object: &Value) -> String {
    machinery::meta::namespace(object).to_owned()
}

fn is_finished(object: &Value) -> bool {
    let has = |pointer: &str| object.pointer(pointer).and_then(Value::as_array).is_some_and(|a| !a.is_empty());
    let is_deleting = machinery::meta::is_deleting(object);
    let waits = object.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0) > 0;
    is_deleting && !waits && !has("/metadata/finalizers") && !has("/spec/finalizers")
}

fn frame(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": kind, "object": object})))
}

fn selector(query: &BTreeMap<String, String>) -> Result<Selector, Box<Status>> {
    Selector::parse(query.get("labelSelector").map_or("", String::as_str)).map_err(Status::bad_request)
}

fn patch(old: &Value, patch: &Value, content: &str) -> Answer {
    let mut new = old.clone();
    if content.contains("json-patch") {
        return Err(Status::unsupported_media_type("json patches are not served by the fake"));
    }
    merge(&mut new, patch, content.contains("strategic"));
    Ok(new)
}

/// RFC 7396; with `lists`, lists of objects are merged by uid, type, key or name.
fn merge(old: &mut Value, patch: &Value, lists: bool) {
    let Value::Object(fields) = patch else {
        *old = patch.clone();
        return;
    };
    if !old.is_object() {
        *old = json!({});
    }
    for (key, value) in fields {
        if key.starts_with('$') {
            continue;
        }
        match value {
            Value::Null => drop(old.as_object_mut().map(|o| o.remove(key))),
            Value::Array(items) if lists && items.iter().any(Value::is_object) => merge_list(&mut old[key], items),
            _ => merge(&mut old[key], value, lists),
        }
    }
}

fn merge_list(old: &mut Value, items: &[Value]) {
    let mut list = old.as_array().cloned().unwrap_or_default();
    for item in items {
        let by = ["uid", "type", "key", "name"].into_iter().find(|k| item.get(*k).is_some());
        let Some(by) = by else { continue };
        let at = list.iter().position(|o| o.get(by) == item.get(by));
        let is_removal = item.get("$patch").and_then(Value::as_str) == Some("delete");
        match (at, is_removal) {
            (Some(at), true) => drop(list.remove(at)),
            (Some(at), false) => merge(&mut list[at], item, true),
            (None, true) => {}
            (None, false) => list.push(item.clone()),
        }
    }
    *old = Value::Array(list);
}

impl Handler for Fake {
    fn call(&self, request: Request) -> Responding {
        let fake = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = match body.collect().await {
                Ok(body) => body.to_bytes(),
                Err(error) => return Err(transport::Error::Broken(error.to_string())),
            };
            let path = parts.uri.path().to_owned();
            let decode = |s: &str| percent_encoding::percent_decode_str(s).decode_utf8_lossy().into_owned();
            let pairs = parts.uri.query().unwrap_or_default().split('&').filter_map(|p| p.split_once('='));
            let query: BTreeMap<String, String> = pairs.map(|(k, v)| (decode(k), decode(v))).collect();
            let content = parts.headers.get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default();
            let (code, body) = if query.contains_key("watch") {
                match fake.watch(&path, &query) {
                    Ok(body) => (200, body),
                    Err(status) => (status.code, transport::full(status.to_value().to_string())),
                }
            } else {
                match fake.answer(parts.method.as_str(), &path, &query, content, &body) {
                    Ok(value) => (200, transport::full(value.to_string())),
                    Err(status) => (status.code, transport::full(status.to_value().to_string())),
                }
            };
            let mut response = Response::new(body);
            *response.status_mut() =
                http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
            Ok(response)
        })
    }
}
