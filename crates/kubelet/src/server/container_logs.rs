//! `GET /containerLogs/{namespace}/{pod}/{container}`.

use std::path::PathBuf;
use std::time::Duration;

use api::types::core::v1::{ContainerState, ContainerStatus, PodStatus};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use transport::Response;

use super::{Server, text};
use crate::logs::follow::{self, Reader};
use crate::logs::line::{Options, Stream};
use crate::runtime::PodState;
use crate::sync::worker::View;

/// Pieces of a log that wait to be sent; at the bound reading waits.
const PIECES: usize = 8;

/// Answers with a stream of the log.
pub async fn answer(
    server: &Server,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &[(String, String)],
) -> Response {
    let (options, previous) = match options(query, server.clock.wall()) {
        Ok(options) => options,
        Err(bad) => return bad.response(),
    };
    let Some(view) = server.pods.find(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod \"{pod}\" does not exist\n"));
    };
    let found = {
        let view = view.borrow();
        if view.pod.container(container).is_none() {
            let why = format!("container \"{container}\" not found in pod \"{pod}\"\n");
            return text(StatusCode::NOT_FOUND, why);
        }
        locate(pod, container, previous, &view.status, &view.seen)
    };
    let (id, path) = match found {
        Ok(found) => found,
        Err(why) => return text(StatusCode::BAD_REQUEST, why),
    };
    // What cannot be opened is said before the answer begins.
    let (root, wanted, shown) = (server.log_root.clone(), options.clone(), path.display().to_string());
    let opened = tokio::task::spawn_blocking(move || Reader::open(&root, &path, &wanted)).await;
    let reader = match opened.map_err(std::io::Error::other).and_then(|opened| opened) {
        Ok(reader) => reader,
        Err(error) => {
            let why = format!("failed to try resolving symlinks in path \"{shown}\": {error}");
            return text(StatusCode::BAD_REQUEST, why);
        }
    };
    let (pieces, body) = mpsc::channel::<Bytes>(PIECES);
    let (clock, stopped) = (server.clock.clone(), server.stage.stopped());
    let ended = async move {
        tokio::select! {
            () = ended(view, id) => {}
            () = stopped => {}
        }
    };
    tokio::spawn(async move {
        if let Err(error) = follow::send(reader, ended, &clock, pieces).await {
            tracing::warn!(log = shown, %error, "a log could not be read to its end");
        }
    });
    let frames = futures::stream::unfold(body, |mut body| async move { Some((Ok(body.recv().await?), body)) });
    let mut response = Response::new(transport::stream(frames));
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// Ends when the container no longer runs.
async fn ended(mut view: watch::Receiver<View>, id: String) {
    let over = |view: &View| !view.seen.by_id(&id).is_some_and(crate::runtime::Container::may_run);
    // The sender goes with the pod.
    drop(view.wait_for(over).await);
}

/// What is wrong with a query, in upstream's two sorts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bad {
    /// A value cannot be read.
    Unreadable,
    /// A value makes no sense.
    Invalid,
}

impl Bad {
    fn response(self) -> Response {
        match self {
            Self::Unreadable => text(StatusCode::BAD_REQUEST, r#"{"message": "Unable to decode query."}"#),
            Self::Invalid => text(StatusCode::UNPROCESSABLE_ENTITY, r#"{"message": "Invalid request."}"#),
        }
    }
}

/// Reads the query.
fn options(query: &[(String, String)], now: Timestamp) -> Result<(Options, bool), Bad> {
    let get = |key: &str| query.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
    // A flag without a value is set, as everywhere in Kubernetes.
    let flag = |key: &str| get(key).is_some_and(|v| v != "0" && !v.eq_ignore_ascii_case("false"));
    let number = |key: &str, least: i64| -> Result<Option<u64>, Bad> {
        let Some(text) = get(key).filter(|v| !v.is_empty()) else { return Ok(None) };
        let value: i64 = text.parse().map_err(|_| Bad::Unreadable)?;
        if value < least { Err(Bad::Invalid) } else { Ok(u64::try_from(value).ok()) }
    };
    let seconds = number("sinceSeconds", 1)?;
    let mut since = None;
    if let Some(text) = get("sinceTime").filter(|v| !v.is_empty()) {
        since = Some(machinery::time::parse(text).ok_or(Bad::Unreadable)?);
        if seconds.is_some() {
            return Err(Bad::Invalid);
        }
    }
    if let Some(seconds) = seconds {
        since = Some(now.checked_sub(Duration::from_secs(seconds)).unwrap_or(Timestamp::MIN));
    }
    let stream = match get("stream") {
        None | Some("" | "All") => None,
        Some("Stdout") => Some(Stream::Stdout),
        Some("Stderr") => Some(Stream::Stderr),
        Some(_) => return Err(Bad::Invalid),
    };
    let tail = number("tailLines", 0)?;
    // The last lines of one stream alone: nobody may ask for them, as upstream has it.
    if tail.is_some() && stream.is_some() {
        return Err(Bad::Invalid);
    }
    let options = Options {
        follow: flag("follow"),
        timestamps: flag("timestamps"),
        since,
        tail,
        limit: number("limitBytes", 1)?,
        stream,
    };
    Ok((options, flag("previous")))
}

/// Which container's log is meant, and where it is. Pure; the errors are what clients see.
fn locate(
    pod: &str,
    container: &str,
    previous: bool,
    status: &PodStatus,
    seen: &PodState,
) -> Result<(String, PathBuf), String> {
    let statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
    let statuses = statuses.chain(&status.ephemeral_container_statuses).flatten();
    let Some(status) = statuses.into_iter().find(|s| s.name == container) else {
        return Err(format!("container \"{container}\" in pod \"{pod}\" is not available"));
    };
    let id = match choose(status, previous) {
        Ok(id) => id,
        Err(why) => return Err(why.text(pod, container)),
    };
    let missing = || Missing::Previous.text(pod, container);
    let found = seen.by_id(&id).filter(|c| !c.log_path.is_empty()).ok_or_else(|| match previous {
        true => missing(),
        false => format!("unable to retrieve container logs for {}", status.container_id.clone().unwrap_or_default()),
    })?;
    Ok((id, PathBuf::from(&found.log_path)))
}

#[derive(Debug, PartialEq, Eq)]
enum Missing {
    Previous,
    Waiting(String),
    /// It ended, and the runtime has nothing of it.
    Terminated,
    NoLogs,
}

impl Missing {
    fn text(&self, pod: &str, container: &str) -> String {
        match self {
            Self::Previous => format!("previous terminated container \"{container}\" in pod \"{pod}\" not found"),
            Self::Waiting(reason) => {
                let why = match reason.as_str() {
                    "ErrImagePull" => "image can't be pulled",
                    "ImagePullBackOff" => "trying and failing to pull image",
                    other => other,
                };
                format!("container \"{container}\" in pod \"{pod}\" is waiting to start: {why}")
            }
            Self::Terminated => format!("container \"{container}\" in pod \"{pod}\" is terminated"),
            Self::NoLogs => format!("container \"{container}\" in pod \"{pod}\" is waiting to start - no logs yet"),
        }
    }
}

/// The id of the container whose log is meant.
fn choose(status: &ContainerStatus, previous: bool) -> Result<String, Missing> {
    let bare = |id: &String| id.split_once("://").map_or(id.as_str(), |(_, id)| id).to_owned();
    let ended = |state: &Option<ContainerState>| {
        let terminated = state.as_ref().and_then(|s| s.terminated.as_ref());
        terminated.and_then(|t| t.container_id.as_ref()).filter(|id| !id.is_empty()).map(bare)
    };
    let last = ended(&status.last_state);
    if previous {
        return last.ok_or(Missing::Previous);
    }
    let state = status.state.clone().unwrap_or_default();
    if state.running.is_some() {
        return status.container_id.as_ref().map(bare).ok_or(Missing::NoLogs);
    }
    if let Some(id) = ended(&status.state).or(last) {
        return Ok(id);
    }
    if state.terminated.is_some() || status.last_state.as_ref().is_some_and(|s| s.terminated.is_some()) {
        return Err(Missing::Terminated);
    }
    match state.waiting.and_then(|w| w.reason) {
        Some(reason) => Err(Missing::Waiting(reason)),
        None => Err(Missing::NoLogs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(state: Value, last: Value, previous: bool, want: Result<&str, &str>) {
        let status: ContainerStatus = serde_json::from_value(json!({"name": "c", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "containerID": "containerd://now", "state": state, "lastState": last}))
        .expect("a status");
        let got = choose(&status, previous).map_err(|m| m.text("p", "c"));
        assert_eq!(got.as_deref().map_err(String::as_str), want);
    }

    #[test]
    fn which_log_is_meant() {
        let ended = |id: &str| json!({"terminated": {"exitCode": 1, "containerID": format!("containerd://{id}")}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let running = || json!({"running": {}});
        check(running(), json!({}), false, Ok("now"));
        check(running(), ended("old"), true, Ok("old"));
        check(running(), json!({}), true, Err("previous terminated container \"c\" in pod \"p\" not found"));
        check(ended("e"), json!({}), false, Ok("e"));
        check(waiting("CrashLoopBackOff"), ended("old"), false, Ok("old"));
        check(
            waiting("ErrImagePull"),
            json!({}),
            false,
            Err("container \"c\" in pod \"p\" is waiting to start: image can't be pulled"),
        );
        check(
            waiting("ImagePullBackOff"),
            json!({}),
            false,
            Err("container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image"),
        );
        check(
            waiting("ContainerCreating"),
            json!({}),
            false,
            Err("container \"c\" in pod \"p\" is waiting to start: ContainerCreating"),
        );
        check(json!({}), json!({}), false, Err("container \"c\" in pod \"p\" is waiting to start - no logs yet"));
        let lost = json!({"terminated": {"exitCode": 137}});
        check(lost.clone(), ended("old"), false, Ok("old"));
        check(lost.clone(), json!({}), false, Err("container \"c\" in pod \"p\" is terminated"));
        check(running(), lost, true, Err("previous terminated container \"c\" in pod \"p\" not found"));
    }

    #[test]
    fn queries_are_checked() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().expect("a time");
        let query = |text: &str| options(&crate::server::query(Some(text)), now);
        let (found, previous) =
            query("follow=true&tailLines=5&previous=true&limitBytes=9&stream=All&timestamps").expect("options");
        assert!(found.follow && previous && found.timestamps);
        assert_eq!((found.tail, found.limit, found.stream), (Some(5), Some(9), None));
        assert!(query("stream=Stderr").is_ok_and(|(o, _)| o.stream == Some(Stream::Stderr)));
        let (found, previous) = query("follow=false&previous=0&tailLines=0&sinceSeconds=60").expect("options");
        assert!(!found.follow && !previous);
        assert_eq!((found.tail, found.since), (Some(0), "2026-01-01T00:00:00Z".parse().ok()));
        assert!(query("sinceSeconds=9223372036854775807").is_ok_and(|(o, _)| o.since == Some(Timestamp::MIN)));
        for (text, want) in [
            ("tailLines=-1", Bad::Invalid),
            ("limitBytes=0", Bad::Invalid),
            ("sinceSeconds=0", Bad::Invalid),
            ("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", Bad::Invalid),
            ("stream=x", Bad::Invalid),
            ("stream=Stdout&tailLines=1", Bad::Invalid),
            ("tailLines=many", Bad::Unreadable),
            ("sinceTime=yesterday", Bad::Unreadable),
        ] {
            assert_eq!(query(text), Err(want), "{text}");
        }
    }
}
