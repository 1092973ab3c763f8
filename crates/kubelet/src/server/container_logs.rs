//! `GET /containerLogs/{namespace}/{pod}/{container}`.

use std::path::PathBuf;

use api::types::core::v1::{ContainerStatus, PodStatus};
use bytes::Bytes;
use futures::StreamExt;
use http::StatusCode;
use stdx::SharedClock;
use tokio::sync::{mpsc, watch};
use transport::Response;

use super::text;
use crate::logs::line::{Options, Stream};
use crate::logs::read;
use crate::pods::Pods;
use crate::runtime::PodState;
use crate::sync::worker::View;

/// Pieces of a log that wait to be sent; at the bound reading waits.
const PIECES: usize = 8;

/// Answers with a stream of the log.
pub async fn answer(
    pods: &Pods,
    clock: &SharedClock,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &[(String, String)],
) -> Response {
    let Some(view) = pods.find(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod \"{namespace}/{pod}\" not found\n"));
    };
    let (options, previous) = match options(query, clock) {
        Ok(options) => options,
        Err(why) => return text(StatusCode::BAD_REQUEST, why),
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
    if let Err(error) = tokio::fs::metadata(&path).await {
        let why = format!("failed to try resolving symlinks in path \"{}\": {error}", path.display());
        return text(StatusCode::INTERNAL_SERVER_ERROR, why);
    }
    let (pieces, body) = mpsc::channel::<Bytes>(PIECES);
    let ended = ended(view, id);
    tokio::spawn(async move {
        if let Err(error) = read::send(path, options, ended, pieces).await {
            tracing::warn!(%error, "a log could not be read to its end");
        }
    });
    let frames = futures::stream::unfold(body, |mut body| async move { Some((Ok(body.recv().await?), body)) });
    let mut response = Response::new(transport::stream(frames.boxed()));
    let plain = http::HeaderValue::from_static("text/plain");
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
}

/// Ends when the container no longer runs.
async fn ended(mut view: watch::Receiver<View>, id: String) {
    let over = |view: &View| !view.seen.by_id(&id).is_some_and(crate::runtime::Container::may_run);
    // The sender goes with the pod.
    drop(view.wait_for(over).await);
}

/// Reads the query.
fn options(query: &[(String, String)], clock: &SharedClock) -> Result<(Options, bool), String> {
    let get = |key: &str| query.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str()).filter(|v| !v.is_empty());
    let flag = |key: &str| get(key).is_some_and(|v| v == "true" || v == "1");
    let number = |key: &str| {
        let bad = |_| format!("{key} is not a number");
        get(key).map(|v| v.parse::<u64>().map_err(bad)).transpose()
    };
    let mut since = None;
    if let Some(text) = get("sinceTime") {
        since = Some(machinery::time::parse(text).ok_or_else(|| format!("sinceTime {text:?} is not a time"))?);
    }
    if let Some(seconds) = number("sinceSeconds")? {
        let back = std::time::Duration::from_secs(seconds);
        since = clock.wall().checked_sub(back).ok();
    }
    let stream = match get("stream") {
        None | Some("All") => None,
        Some("Stdout") => Some(Stream::Stdout),
        Some("Stderr") => Some(Stream::Stderr),
        Some(other) => return Err(format!("stream {other:?} is neither All, Stdout nor Stderr")),
    };
    let options = Options {
        follow: flag("follow"),
        timestamps: flag("timestamps"),
        since,
        tail: number("tailLines")?,
        limit: number("limitBytes")?,
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
    let statuses = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
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
            Self::NoLogs => format!("container \"{container}\" in pod \"{pod}\" is waiting to start - no logs yet"),
        }
    }
}

/// The id of the container whose log is meant.
fn choose(status: &ContainerStatus, previous: bool) -> Result<String, Missing> {
    let bare = |id: &String| id.split_once("://").map_or(id.as_str(), |(_, id)| id).to_owned();
    let ended = |state: &Option<api::types::core::v1::ContainerState>| {
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
    }

    #[test]
    fn queries_are_checked() {
        let clock = stdx::clock::RealClock::shared();
        let query = |pairs: &[(&str, &str)]| {
            let pairs: Vec<_> = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            options(&pairs, &clock)
        };
        let (found, previous) =
            query(&[("follow", "true"), ("tailLines", "5"), ("previous", "true"), ("limitBytes", "9")])
                .expect("options");
        assert!(found.follow && previous && found.tail == Some(5) && found.limit == Some(9));
        assert!(query(&[("tailLines", "-1")]).is_err());
        assert!(query(&[("sinceTime", "yesterday")]).is_err());
        assert!(query(&[("stream", "x")]).is_err());
    }
}
