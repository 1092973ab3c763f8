//! What every server shows of its own process below `/debug`, to whom it allows it: how much is logged, which
//! can be changed there, and where the process spends its time.
//!
//! What holds its memory this program does not know: to ask every allocation who makes it would cost all of them.
//! The answer says so and names what can be asked from outside.

use std::fmt;
use std::sync::Arc;

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};

use crate::{Body, Response};

/// No longer body is read.
const LONGEST: usize = 1024;
const LEVEL: &str = "/debug/flags/v";
/// Where the time goes.
pub const PROFILE: &str = "/debug/pprof/profile";
/// How long is looked where nobody says how long, and at most.
const LOOK: Duration = Duration::from_secs(30);
const LONGEST_LOOK: Duration = Duration::from_secs(300);

type Set = dyn Fn(&str) -> Result<(), String> + Send + Sync;
type Take = dyn Fn(Duration) -> BoxFuture<'static, Result<Vec<u8>, String>> + Send + Sync;

/// What is shown, and what can be changed. Clones share it.
#[derive(Clone, Default)]
pub struct Debug {
    /// Changes how much is logged, from what was sent; `None`: nobody may.
    level: Option<Arc<Set>>,
    /// What is below `/debug/pprof/` is there.
    profiling: bool,
    /// Looks where the time goes, for so long.
    take: Option<Arc<Take>>,
    arguments: Arc<[String]>,
}

impl fmt::Debug for Debug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Debug {{ level: {}, profiling: {} }}", self.level.is_some(), self.profiling)
    }
}

impl Debug {
    /// Nothing is below `/debug`.
    pub fn none() -> Self {
        Self::default()
    }

    /// The level of the log can be changed: `set` takes what was sent.
    #[must_use]
    pub fn with_level(mut self, set: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.level = Some(Arc::new(set));
        self
    }

    /// The pages of profiles are there; the process was started like that.
    #[must_use]
    pub fn with_profiling(mut self, arguments: impl IntoIterator<Item = String>) -> Self {
        self.profiling = true;
        self.arguments = arguments.into_iter().collect();
        self
    }

    /// A profile of the processors can be had: `take` looks for so long and gives it in the form of `pprof`,
    /// zipped, or says why not.
    #[must_use]
    pub fn with_profile(
        mut self,
        take: impl Fn(Duration) -> BoxFuture<'static, Result<Vec<u8>, String>> + Send + Sync + 'static,
    ) -> Self {
        self.take = Some(Arc::new(take));
        self
    }

    /// The same without what can be changed.
    #[must_use]
    pub fn without_level(mut self) -> Self {
        self.level = None;
        self
    }

    /// The same without profiles.
    #[must_use]
    pub fn without_profiling(mut self) -> Self {
        self.profiling = false;
        self
    }

    /// Whether the level of the log can be changed.
    pub fn has_level(&self) -> bool {
        self.level.is_some()
    }

    /// Whether the pages of profiles are there.
    pub fn has_profiling(&self) -> bool {
        self.profiling
    }

    /// Whether what is sent to that path is read.
    pub fn reads(path: &str) -> bool {
        path == LEVEL
    }

    /// What is at a path, if there is anything. Who asks may; `body` is read at most to its bound.
    pub async fn answer(&self, method: &Method, uri: &Uri, body: Body) -> Option<Response> {
        let path = uri.path();
        if let Some(take) = self.take.as_ref().filter(|_| path == PROFILE && self.profiling) {
            return Some(profile(&**take, uri.query().unwrap_or_default()).await);
        }
        if path == LEVEL && method == Method::PUT && self.level.is_some() {
            let body = match crate::read(body, LONGEST).await {
                Ok(body) => body,
                Err(error) => return Some(bad(&format!("error reading request body: {error}"))),
            };
            return self.respond(method, path, &body);
        }
        self.respond(method, path, &Bytes::new())
    }

    /// The same with a body that was read.
    fn respond(&self, method: &Method, path: &str, body: &Bytes) -> Option<Response> {
        let below = path.strip_prefix("/debug/")?;
        let (flags, profiles) = (below.strip_prefix("flags"), below.strip_prefix("pprof"));
        if let (Some(rest), Some(set)) = (flags, &self.level) {
            return match rest {
                "/v" if method == Method::PUT => Some(level(&**set, body)),
                "/v" => Some(plain(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n")),
                "" | "/" => Some(index("/debug/flags/", "flags", &["v"])),
                _ => None,
            };
        }
        if let Some(rest) = profiles.filter(|_| self.profiling) {
            return match rest {
                "" => Some(moved("/debug/pprof/")),
                "/" => {
                    let names = ["cmdline", "profile"];
                    let known = if self.take.is_some() { &names[..] } else { &names[..1] };
                    Some(index("/debug/pprof/", "profiles", known))
                }
                "/cmdline" => Some(plain(StatusCode::OK, self.arguments.join("\0"))),
                "/profile" | "/heap" | "/allocs" | "/goroutine" | "/threadcreate" | "/block" | "/mutex" | "/symbol"
                | "/trace" => Some(plain(
                    StatusCode::NOT_IMPLEMENTED,
                    format!(
                        "this process does not know that of itself: perf record --call-graph=dwarf --pid={} tells where \
                         its time goes, /proc/{0}/smaps where its memory is\n",
                        std::process::id()
                    ),
                )),
                _ => None,
            };
        }
        None
    }
}

/// Looks where the time goes, as long as the query says.
async fn profile(take: &Take, query: &str) -> Response {
    let seconds = query.split('&').find_map(|pair| pair.strip_prefix("seconds=")).unwrap_or_default();
    // As upstream: what is no number of seconds is the usual one.
    let length = match seconds.parse::<u64>() {
        Ok(0) | Err(_) => LOOK,
        Ok(seconds) => Duration::from_secs(seconds),
    };
    if length > LONGEST_LOOK {
        return plain(
            StatusCode::BAD_REQUEST,
            format!("no profile is longer than {} seconds\n", LONGEST_LOOK.as_secs()),
        );
    }
    match take(length).await {
        Ok(zipped) => {
            let mut response = answer(StatusCode::OK, "application/octet-stream", zipped);
            let name = HeaderValue::from_static("attachment; filename=\"profile\"");
            response.headers_mut().insert(http::header::CONTENT_DISPOSITION, name);
            response
        }
        Err(why) => {
            let mut response =
                plain(StatusCode::INTERNAL_SERVER_ERROR, format!("Could not enable CPU profiling: {why}\n"));
            response.headers_mut().insert(HeaderName::from_static("x-go-pprof"), HeaderValue::from_static("1"));
            response
        }
    }
}

fn level(set: &Set, body: &Bytes) -> Response {
    if body.len() > LONGEST {
        return bad("error reading request body: it is too long");
    }
    let text = String::from_utf8_lossy(body);
    match set(&text) {
        Ok(()) => plain(StatusCode::OK, format!("successfully set klog.logging.verbosity to {text}\n")),
        Err(why) => bad(&format!("failed set klog.logging.verbosity {text}: {why}")),
    }
}

fn bad(why: &str) -> Response {
    plain(StatusCode::BAD_REQUEST, format!("{why}\n"))
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response {
    answer(status, "text/plain", text)
}

fn moved(to: &'static str) -> Response {
    let mut response = answer(StatusCode::FOUND, "text/plain", Bytes::new());
    response.headers_mut().insert(http::header::LOCATION, HeaderValue::from_static(to));
    response
}

fn index(path: &str, what: &str, names: &[&str]) -> Response {
    let rows: String = names.iter().map(|name| format!("<li><a href=\"{path}{name}\">{name}</a></li>\n")).collect();
    let page = format!(
        "<html>\n<head>\n<title>{path}</title>\n</head>\n<body>\n{what}:\n<ul>\n{rows}</ul>\n</body>\n</html>\n"
    );
    answer(StatusCode::OK, "text/html; charset=utf-8", page)
}

fn answer(status: StatusCode, media: &'static str, text: impl Into<Bytes>) -> Response {
    let mut response = Response::new(crate::full(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static(media));
    // What was sent is in some of these answers.
    headers.insert(http::header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use parking_lot::Mutex;

    async fn ask(debug: &Debug, method: Method, path: &str, body: &str) -> Option<(u16, String)> {
        let uri: Uri = path.parse().expect("a path");
        let response = debug.answer(&method, &uri, crate::full(body.to_owned())).await?;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        Some((code, String::from_utf8(bytes.to_vec()).expect("text")))
    }

    #[tokio::test]
    async fn the_level_is_changed_where_that_is_there() {
        let set = Arc::new(Mutex::new(Vec::new()));
        let to = set.clone();
        let take = move |text: &str| {
            let level: i32 = text.parse().map_err(|_| "no number".to_owned())?;
            to.lock().push(level);
            Ok(())
        };
        let debug = Debug::none().with_level(take).with_profiling(["pintle".to_owned(), "up".to_owned()]);
        for (method, path, body, want) in [
            (Method::PUT, LEVEL, "4", Some((200, "successfully set klog.logging.verbosity to 4\n"))),
            (Method::PUT, LEVEL, "x", Some((400, "failed set klog.logging.verbosity x: no number\n"))),
            (Method::GET, LEVEL, "", Some((406, "unsupported http method\n"))),
            (Method::GET, "/debug/pprof/cmdline", "", Some((200, "pintle\0up"))),
            (Method::GET, "/debug/flags/other", "", None),
            (Method::GET, "/debug/pprof/other", "", None),
            (Method::GET, "/debugs", "", None),
        ] {
            let want = want.map(|(code, text)| (code, text.to_owned()));
            assert_eq!(ask(&debug, method, path, body).await, want, "{path} {body}");
        }
        assert_eq!(*set.lock(), [4]);
        let code = async |debug: &Debug, path: &str| ask(debug, Method::GET, path, "").await.map(|(code, _)| code);
        assert_eq!(code(&debug, "/debug/pprof/profile").await, Some(501));
        assert_eq!(code(&debug, "/debug/pprof/heap").await, Some(501));
        assert_eq!(code(&debug, "/debug/pprof/").await, Some(200));
        assert_eq!(code(&debug, "/debug/pprof").await, Some(302));
        assert_eq!(code(&debug, "/debug/flags").await, Some(200));
        let long = "1".repeat(LONGEST + 1);
        assert_eq!(ask(&debug, Method::PUT, LEVEL, &long).await.map(|(code, _)| code), Some(400));
        for (debug, path) in [
            (debug.clone().without_level(), LEVEL),
            (debug.clone().without_profiling(), "/debug/pprof/"),
            (Debug::none(), "/debug/flags"),
        ] {
            assert_eq!(ask(&debug, Method::PUT, path, "1").await, None, "{path}");
        }
        assert_eq!(*set.lock(), [4]);
    }

    #[tokio::test]
    async fn a_profile_is_taken_for_as_long_as_is_said() {
        let take = |length: Duration| -> BoxFuture<'static, Result<Vec<u8>, String>> {
            let told = if length == Duration::from_secs(7) {
                Err("busy".to_owned())
            } else {
                Ok(length.as_secs().to_string().into())
            };
            Box::pin(std::future::ready(told))
        };
        let debug = Debug::none().with_profiling([]).with_profile(take);
        for (query, code, text) in [
            ("", 200, "30"),
            ("?seconds=5&debug=1", 200, "5"),
            ("?seconds=x", 200, "30"),
            ("?seconds=0", 200, "30"),
            ("?seconds=301", 400, "no profile is longer than 300 seconds\n"),
            ("?seconds=7", 500, "Could not enable CPU profiling: busy\n"),
        ] {
            let got = ask(&debug, Method::GET, &format!("{PROFILE}{query}"), "").await;
            assert_eq!(got, Some((code, text.to_owned())), "{query}");
        }
        assert_eq!(ask(&debug.clone().without_profiling(), Method::GET, PROFILE, "").await, None);
        let (_, index) = ask(&debug, Method::GET, "/debug/pprof/", "").await.expect("an index");
        assert!(index.contains("/debug/pprof/profile"));
    }
}
