//! What a request asks for, parsed once from method, path and query; pure.
//!
//! ```text
//! GET  /api/v1/namespaces/default/pods/web/log → get pods/log "web" in default
//! GET  /apis/apps/v1/deployments?watch=1       → watch deployments.apps in all namespaces
//! PUT  /api/v1/namespaces/x/finalize           → update namespaces/finalize "x"
//! GET  /healthz                                → get, not a resource
//! ```

use http::Method;
use machinery::status::{self, Status};
use percent_encoding::percent_decode;

/// No path is longer; names have 253 bytes and there are at most four of them in a path.
const MAX_PATH: usize = 4096;

/// What a request asks for, in the words of authorization.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// False for `/healthz`, `/openapi/v2`, discovery and the like.
    pub is_resource: bool,
    /// The path without the query, decoded.
    pub path: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for a
    /// non-resource path the HTTP method in lower case.
    pub verb: String,
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    /// Empty at cluster scope or for all namespaces.
    pub namespace: String,
    /// The plural.
    pub resource: String,
    pub subresource: String,
    pub name: String,
    /// What a list, watch or deletecollection selects by field, as the client wrote it.
    pub field_selector: String,
    /// The path goes on behind the subresource, which means something to other servers only.
    pub goes_on: bool,
}

impl RequestInfo {
    /// True when the field selector demands that `field` is `value`.
    pub fn selects(&self, field: &str, value: &str) -> bool {
        machinery::fields::Selector::parse(&self.field_selector)
            .is_ok_and(|selector| selector.requires_exact(field) == Some(value))
    }
}

/// Parses a request line. Fails on paths that no client means: bad escapes, `..`, NUL, over-long.
pub fn parse(method: &Method, path: &str, query: &Query) -> status::Result<RequestInfo> {
    if path.len() > MAX_PATH {
        return Err(Status::bad_request("the request path is too long"));
    }
    let path = decode(path).ok_or_else(|| Status::bad_request("the request path is not properly encoded"))?;
    if path.bytes().any(|b| b < b' ' || b == 0x7f) {
        return Err(Status::bad_request("the request path contains control characters"));
    }
    let mut info = RequestInfo { verb: method.as_str().to_ascii_lowercase(), path: path.clone(), ..Default::default() };
    let trimmed = path.strip_prefix('/').unwrap_or(&path);
    let trimmed = trimmed.strip_suffix('/').unwrap_or(trimmed);
    let mut parts: &[&str] = &trimmed.split('/').collect::<Vec<_>>();
    // What lies behind a proxy is another server's, which may have empty parts.
    let own = own_parts(parts);
    if parts.len() > 1 && parts.iter().enumerate().any(|(i, p)| matches!(*p, "." | "..") || (p.is_empty() && i < own))
        || matches!(parts, ["." | ".."])
    {
        return Err(Status::no_such_path());
    }
    match parts {
        ["api", rest @ ..] if rest.len() >= 2 => parts = rest,
        ["apis", group, rest @ ..] if rest.len() >= 2 => {
            info.group = (*group).to_owned();
            parts = rest;
        }
        _ => return Ok(info),
    }
    info.is_resource = true;
    info.version = parts[0].to_owned();
    parts = &parts[1..];
    info.verb = match (parts, method.as_str()) {
        (["watch" | "proxy"], _) => return Err(Status::no_such_path()),
        ([special @ ("watch" | "proxy"), rest @ ..], method) => {
            parts = rest;
            if matches!(method, "GET" | "HEAD") { (*special).to_owned() } else { String::new() }
        }
        (_, "POST") => "create".into(),
        (_, "GET" | "HEAD") => "get".into(),
        (_, "PUT") => "update".into(),
        (_, "PATCH") => "patch".into(),
        (_, "DELETE") => "delete".into(),
        _ => String::new(),
    };
    if let ["namespaces", namespace, rest @ ..] = parts {
        info.namespace = (*namespace).to_owned();
        // `status` and `finalize` belong to the namespace itself; anything else is a resource in it.
        if !matches!(rest, [] | ["status" | "finalize", ..]) {
            parts = rest;
        }
        // A namespace is in no namespace: who may do something in `a` may not do it to `b`.
        if matches!(rest, ["namespaces", ..]) {
            return Err(Status::no_such_path());
        }
    }
    let part = |i: usize| parts.get(i).copied().unwrap_or_default().to_owned();
    (info.resource, info.name, info.subresource) = (part(0), part(1), part(2));
    info.goes_on = parts.len() > 3 && !matches!(info.subresource.as_str(), "proxy");
    let mut named_by_selector = false;
    if info.name.is_empty() {
        match info.verb.as_str() {
            "get" => {
                info.verb = if query.flag("watch") { "watch" } else { "list" }.into();
                named_by_selector = true;
            }
            "delete" => info.verb = "deletecollection".into(),
            _ => {}
        }
        if matches!(info.verb.as_str(), "list" | "watch" | "deletecollection") {
            info.field_selector = query.get("fieldSelector").unwrap_or_default().to_owned();
        }
    }
    if named_by_selector {
        info.name = selected_name(&info.field_selector).unwrap_or_default();
    }
    Ok(info)
}

/// How many of the parts are this server's own: those up to the subresource `proxy`, or all.
fn own_parts(parts: &[&str]) -> usize {
    match parts {
        ["api", _, "namespaces", _, "pods" | "services", _, "proxy", ..] => 7,
        ["api", _, "nodes", _, "proxy", ..] => 5,
        all => all.len(),
    }
}

/// The name that `fieldSelector=metadata.name=X` asks for, so that authorization can know it. It is read
/// by the parser that the verb uses: what is authorized is what is selected. A selector that is wrong is
/// refused later, by the verb.
fn selected_name(selector: &str) -> Option<String> {
    let selector = machinery::fields::Selector::parse(selector).ok()?;
    let name = selector.requires_exact("metadata.name")?.to_owned();
    (!matches!(name.as_str(), "" | "." | "..") && !name.contains(['/', '%', '\\'])).then_some(name)
}

fn decode(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let whole = |i: usize| bytes.get(i + 1..i + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    let sound = bytes.iter().enumerate().all(|(i, b)| *b != b'%' || whole(i));
    if !sound {
        return None;
    }
    percent_decode(bytes).decode_utf8().ok().map(|t| t.into_owned())
}

/// The query of a request: pairs in order. Pairs that cannot be decoded are dropped, as Go does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// Is there a value of this key that is no text? Whoever would do something else without it must not go on.
    pub fn has_unreadable(text: &str, key: &str) -> bool {
        let field = |s: &str| decode(&s.replace('+', " "));
        let mut pairs = text.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.any(|(name, value)| field(name).is_some_and(|name| name == key) && field(value).is_none())
    }

    /// Reads what follows the `?`.
    pub fn parse(text: &str) -> Self {
        let field = |s: &str| decode(&s.replace('+', " "));
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((field(key)?, field(value)?))
        };
        Self { pairs: text.split('&').filter(|p| !p.is_empty() && !p.contains(';')).filter_map(pair).collect() }
    }

    /// The first value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The first value of `key`; `None` also when it is empty.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.get(key).filter(|v| !v.is_empty())
    }

    /// Every value of `key`.
    pub fn all(&self, key: &str) -> Vec<&str> {
        self.pairs.iter().filter(|(k, _)| k == key).map(|(_, v)| v.as_str()).collect()
    }

    /// True unless absent, `false` or `0`.
    pub fn flag(&self, key: &str) -> bool {
        self.optional_flag(key).unwrap_or(false)
    }

    /// The same, knowing whether it was given.
    pub fn optional_flag(&self, key: &str) -> Option<bool> {
        self.get(key).map(|v| !v.eq_ignore_ascii_case("false") && v != "0")
    }

    /// A whole number; 400 when it is none.
    pub fn number(&self, key: &str) -> status::Result<Option<i64>> {
        let Some(text) = self.text(key) else { return Ok(None) };
        text.parse().map(Some).map_err(|error: std::num::ParseIntError| {
            use std::num::IntErrorKind::{NegOverflow, PosOverflow};
            let range = matches!(error.kind(), PosOverflow | NegOverflow);
            let why = if range { "value out of range" } else { "invalid syntax" };
            Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
        })
    }

    /// The pairs in order.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(method: &str, uri: &str, want: &str) {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let method = Method::from_bytes(method.as_bytes()).expect("method");
        let got = match parse(&method, path, &Query::parse(query)) {
            Err(status) => format!("{} {}", status.code, status.reason),
            Ok(i) if !i.is_resource => format!("{} {}", i.verb, i.path),
            Ok(i) => {
                let sub = if i.subresource.is_empty() { String::new() } else { format!("/{}", i.subresource) };
                let more = if i.goes_on { " …" } else { "" };
                let (verb, api) = (i.verb, format!("{}/{}", i.group, i.version));
                format!("{verb} {api} {}{sub} ns={} name={}{more}", i.resource, i.namespace, i.name)
            }
        };
        assert_eq!(got, want, "{method} {uri}");
    }

    #[test]
    fn paths_become_requests() {
        for (method, uri, want) in [
            ("GET", "/", "get /"),
            ("GET", "/healthz", "get /healthz"),
            ("POST", "/api", "post /api"),
            ("GET", "/api/v1", "get /api/v1"),
            ("GET", "/api/v1/", "get /api/v1/"),
            ("GET", "/apis/apps/v1", "get /apis/apps/v1"),
            ("GET", "/apis/apps/v1/deployments", "list apps/v1 deployments ns= name="),
            ("HEAD", "/api/v1/pods", "list /v1 pods ns= name="),
            ("GET", "/api/v1/pods?watch", "watch /v1 pods ns= name="),
            ("GET", "/api/v1/pods?watch=false", "list /v1 pods ns= name="),
            ("GET", "/api/v1/watch/pods", "watch /v1 pods ns= name="),
            ("GET", "/api/v1/watch/namespaces/a/pods/b", "watch /v1 pods ns=a name=b"),
            ("GET", "/api/v1/watch", "404 NotFound"),
            ("GET", "/api/v1/namespaces", "list /v1 namespaces ns= name="),
            ("GET", "/api/v1/namespaces/a", "get /v1 namespaces ns=a name=a"),
            ("PUT", "/api/v1/namespaces/a/finalize", "update /v1 namespaces/finalize ns=a name=a"),
            ("PATCH", "/api/v1/namespaces/a/status", "patch /v1 namespaces/status ns=a name=a"),
            ("POST", "/api/v1/namespaces/a/pods", "create /v1 pods ns=a name="),
            ("POST", "/api/v1/namespaces/a/pods/b/binding", "create /v1 pods/binding ns=a name=b"),
            ("GET", "/api/v1/namespaces/a/pods/b/log?follow=1", "get /v1 pods/log ns=a name=b"),
            ("GET", "/api/v1/namespaces/a/pods/b/proxy/x/y", "get /v1 pods/proxy ns=a name=b"),
            ("GET", "/api/v1/namespaces/a/services/b/proxy/probe/http://x/", "get /v1 services/proxy ns=a name=b"),
            ("GET", "/api/v1/nodes/b/proxy//x", "get /v1 nodes/proxy ns= name=b"),
            ("GET", "/api/v1/namespaces/a/pods/b/log/c", "get /v1 pods/log ns=a name=b …"),
            ("DELETE", "/api/v1/namespaces/a/pods/b", "delete /v1 pods ns=a name=b"),
            ("DELETE", "/api/v1/namespaces/a/pods", "deletecollection /v1 pods ns=a name="),
            ("DELETE", "/api/v1/namespaces/a/pods/", "deletecollection /v1 pods ns=a name="),
            ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dx", "list /v1 pods ns= name=x"),
            ("GET", "/api/v1/pods?fieldSelector=metadata.name=x&watch=1", "watch /v1 pods ns= name=x"),
            ("GET", "/api/v1/pods?fieldSelector=metadata.name%3D..", "list /v1 pods ns= name="),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.namespace!%3D%5C,metadata.name%3Dx",
                "list /v1 pods ns= name=",
            ),
            ("GET", "/api/v1/namespaces/a/namespaces/b", "404 NotFound"),
            ("PUT", "/api/v1/namespaces/a/namespaces/b/finalize", "404 NotFound"),
            ("GET", "/api/v1/watch/namespaces/a/namespaces/b", "404 NotFound"),
            ("DELETE", "/api/v1/watch/namespaces/a/pods/b", " /v1 pods ns=a name=b"),
            ("OPTIONS", "/api/v1/pods", " /v1 pods ns= name="),
            ("GET", "/api/v1/nodes/a%20b", "get /v1 nodes ns= name=a b"),
        ] {
            check(method, uri, want);
        }
    }

    #[test]
    fn path_tricks_are_refused() {
        let long = format!("/api/v1/pods/{}", "a".repeat(5000));
        for (uri, want) in [
            ("/api/v1/namespaces/%2e%2e/pods", "404 NotFound"),
            ("/api/v1/namespaces/../pods", "404 NotFound"),
            ("/api/v1/namespaces//pods", "404 NotFound"),
            ("//api/v1/pods", "404 NotFound"),
            ("/api/v1/nodes/..%2f..%2fetc", "404 NotFound"),
            ("/..", "404 NotFound"),
            ("/api/v1/nodes/a%00b", "400 BadRequest"),
            ("/api/v1/nodes/a%0ab", "400 BadRequest"),
            ("/api/v1/nodes/%zz", "400 BadRequest"),
            ("/api/v1/nodes/%ff", "400 BadRequest"),
            ("/api/v1/nodes/%", "400 BadRequest"),
            (long.as_str(), "400 BadRequest"),
        ] {
            check("GET", uri, want);
        }
    }

    #[test]
    fn flags_follow_go() {
        let query = Query::parse("a&b=&c=false&d=FALSE&e=0&f=1&g=x+y&h=%zz&i=a;b&limit=5&bad=x");
        let flags: Vec<bool> = ["a", "b", "c", "d", "e", "f", "h", "i"].iter().map(|k| query.flag(k)).collect();
        assert_eq!(flags, [true, true, false, false, false, true, false, false]);
        assert_eq!(query.get("g"), Some("x y"));
        assert_eq!(query.number("limit").expect("number"), Some(5));
        assert_eq!(query.number("bad").expect_err("no number").code, 400);
    }

    proptest! {
        #[test]
        fn no_input_panics_and_no_part_hides_a_separator(method in "[A-Z]{1,8}", path in "/\\PC{0,80}", query in "\\PC{0,60}") {
            let method = Method::from_bytes(method.as_bytes()).expect("method");
            if let Ok(info) = parse(&method, &path, &Query::parse(&query)) {
                for part in [&info.group, &info.version, &info.namespace, &info.resource, &info.subresource] {
                    prop_assert!(!part.contains('/') && part != "..");
                }
                prop_assert!(info.is_resource || info.resource.is_empty());
            }
        }

        #[test]
        fn ordinary_paths_round_trip(ns in "[a-z][a-z0-9-]{0,10}", name in "[a-z][a-z0-9.-]{0,10}") {
            let path = format!("/apis/apps/v1/namespaces/{ns}/deployments/{name}/scale");
            let info = parse(&Method::GET, &path, &Query::default()).expect("parses");
            prop_assert_eq!((info.namespace, info.name, info.subresource), (ns, name, "scale".to_owned()));
        }
    }
}
