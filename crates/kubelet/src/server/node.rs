//! What the kubelet tells of itself and its node: health, configuration, what is used, what was counted,
//! what runs, the node's logs; and checkpoints of containers.

use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderValue, Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use stdx::clock::{Instant, SharedClock};
use stdx::metrics::{Form, Gauge, Histogram, Page, Type};
use transport::Response;
use transport::debug::Debug;

use super::{Server, node_logs, query, stat_pages, text};
use crate::context::Context;
use crate::metrics::Metrics;
use crate::node::facts;
use crate::relist;
use crate::stats::numbers::Detail;
use crate::stats::summary::{self, Disks};
use crate::stats::{Stats, disk};

/// What is answered from.
pub struct About {
    pub ctx: Arc<Context>,
    pub stats: Stats,
    /// What `/configz` shows.
    pub config: Value,
    /// What `/logs` shows.
    pub log_folder: Option<PathBuf>,
    /// What is below `/debug`.
    pub debug: Debug,
    /// Whether the runtime is still being listed.
    pub listed: Arc<Mutex<relist::Health>>,
}

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// All checks, or one.
    Healthz(Option<String>),
    Configz,
    Pods,
    RunningPods,
    Summary,
    Metrics,
    Resource,
    Cadvisor,
    Probes,
    Logs(String),
    Checkpoint {
        namespace: String,
        pod: String,
        container: String,
    },
}

impl Route {
    /// Reads the decoded parts of a path.
    pub fn parse(first: &str, rest: &[String]) -> Option<Self> {
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        Some(match (first, rest.as_slice()) {
            ("healthz", [] | [""]) => Self::Healthz(None),
            ("healthz", [name]) => Self::Healthz(Some((*name).to_owned())),
            ("configz", []) => Self::Configz,
            ("pods", []) => Self::Pods,
            ("runningpods", [] | [""]) => Self::RunningPods,
            ("stats", ["summary"]) => Self::Summary,
            ("metrics", []) => Self::Metrics,
            ("metrics", ["resource"]) => Self::Resource,
            ("metrics", ["cadvisor"]) => Self::Cadvisor,
            ("metrics", ["probes"]) => Self::Probes,
            ("logs", path) => Self::Logs(path.join("/")),
            ("checkpoint", [namespace, pod, container]) => Self::Checkpoint {
                namespace: (*namespace).to_owned(),
                pod: (*pod).to_owned(),
                container: (*container).to_owned(),
            },
            _ => return None,
        })
    }

    /// The method it wants.
    pub fn method(&self) -> Method {
        if matches!(self, Self::Checkpoint { .. }) { Method::POST } else { Method::GET }
    }
}

/// The subresources of the node that allow a path, the narrowest first. Of paths, not of routes: who may not
/// look learns nothing of what there is.
pub fn subresources(path: &str) -> &'static [&'static str] {
    match path.trim_start_matches('/').split('/').next().unwrap_or_default() {
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "configz" => &["configz", "proxy"],
        // As upstream: who may do everything else may not do these by that.
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "checkpoint" => &["checkpoint"],
        _ => &["proxy"],
    }
}

/// Answers.
pub async fn answer(server: &Server, route: Route, asked: Option<&str>, form: Form) -> Response {
    let page_answer = |page: String| page_answer(page, form);
    let about = &*server.about;
    match route {
        Route::Healthz(name) => health(about, name.as_deref(), asked),
        Route::Configz => json_answer(&json!({"kubeletconfig": about.config})),
        Route::Pods => super::list(&server.pods.all()),
        Route::RunningPods => running(server),
        Route::Summary => summary(server, asked).await,
        Route::Metrics => {
            let mut page = Page::new();
            about.ctx.metrics.registry.render(&mut page);
            volumes(&mut page, server).await;
            page_answer(page.finish())
        }
        Route::Resource => match about.stats.gather(server.pods.all(), Detail::Usage).await {
            Ok(gathered) => page_answer(stat_pages::resource(Some(&gathered))),
            Err(error) => {
                tracing::warn!(%error, "what is used could not be gathered");
                page_answer(stat_pages::resource(None))
            }
        },
        Route::Cadvisor => match about.stats.gather(server.pods.all(), Detail::All).await {
            Ok(gathered) => page_answer(stat_pages::cadvisor(&gathered)),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        },
        Route::Probes => page_answer(about.ctx.metrics.probes.page()),
        Route::Logs(path) => match &about.log_folder {
            Some(folder) => node_logs::answer(folder, &path).await,
            None => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        },
        Route::Checkpoint { namespace, pod, container } => {
            checkpoint(server, &namespace, &pod, &container, asked).await
        }
    }
}

fn json_answer(value: &Value) -> Response {
    let mut response = Response::new(transport::full(value.to_string()));
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn page_answer(page: String, form: Form) -> Response {
    let mut response = Response::new(transport::full(form.write(page)));
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static(form.media_type()));
    response
}

/// The checks by name, and whether each is well.
fn checks(about: &About) -> [(&'static str, bool); 3] {
    let now = about.ctx.clock.now();
    [("ping", true), ("log", true), ("syncloop", about.listed.lock().is_recent(now))]
}

fn health(about: &About, name: Option<&str>, asked: Option<&str>) -> Response {
    let checks = checks(about);
    if let Some(name) = name {
        return match checks.iter().find(|(known, _)| *known == name) {
            Some((_, true)) => text(StatusCode::OK, "ok"),
            Some(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "internal server error: reason withheld\n"),
            None => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        };
    }
    let line = |(name, well): &(&str, bool)| match well {
        true => format!("[+]{name} ok\n"),
        false => format!("[-]{name} failed: reason withheld\n"),
    };
    let lines: String = checks.iter().map(line).collect();
    if checks.iter().any(|(_, well)| !well) {
        return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}healthz check failed\n"));
    }
    match query(asked).iter().any(|(key, _)| key == "verbose") {
        true => text(StatusCode::OK, format!("{lines}healthz check passed\n")),
        false => text(StatusCode::OK, "ok"),
    }
}

/// What the runtime runs, as far as it knows: names and images.
fn running(server: &Server) -> Response {
    let pod = |view: &crate::sync::worker::View| {
        let running = || view.seen.containers.iter().filter(|c| c.may_run());
        running().next()?;
        let containers = running().map(|c| json!({"name": c.name, "image": c.image, "resources": {}}));
        let containers: Vec<Value> = containers.collect();
        let (name, namespace, uid) = (&view.pod.name, &view.pod.namespace, &view.pod.uid);
        let metadata = json!({"name": name, "namespace": namespace, "uid": uid});
        Some(json!({"metadata": metadata, "spec": {"containers": containers}, "status": {}}))
    };
    let items: Vec<Value> = server.pods.all().iter().filter_map(pod).collect();
    json_answer(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

async fn summary(server: &Server, asked: Option<&str>) -> Response {
    let about = &*server.about;
    let views = server.pods.all();
    let pods: Vec<_> = views.iter().map(|v| v.pod.clone()).collect();
    let gathered = match about.stats.gather(views, Detail::Usage).await {
        Ok(gathered) => gathered,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let only_usage = query(asked).iter().any(|(key, value)| key == "only_cpu_and_memory" && value == "true");
    let disks = if only_usage {
        None
    } else {
        let (pods, images) =
            tokio::join!(about.stats.disks.of(&about.ctx, &pods), disk::images(&about.ctx, &about.ctx.clock));
        Some(Disks { pods, node: facts::disk(&about.ctx.layout.root).ok(), images })
    };
    json_answer(&summary::render(&about.stats.node_name, &gathered, disks.as_ref()))
}

/// What is used of volumes that come from claims.
async fn volumes(page: &mut Page, server: &Server) {
    let about = &*server.about;
    let views = server.pods.all();
    let with = |pod: &crate::pod::BoundPod| {
        let volumes = pod.spec().volumes.iter().flatten();
        volumes.into_iter().any(|v| v.persistent_volume_claim.is_some() || v.ephemeral.is_some())
    };
    if !views.iter().any(|v| with(&v.pod)) {
        return;
    }
    let pods: Vec<_> = views.iter().map(|v| v.pod.clone()).collect();
    let known = about.stats.disks.of(&about.ctx, &pods).await;
    // A claim that several pods use is one.
    let mut claims = std::collections::BTreeMap::new();
    for pod in &pods {
        for volume in known.get(&pod.uid).iter().flat_map(|d| &d.volumes) {
            if let Some(claim) = &volume.claim {
                claims.insert((pod.namespace.clone(), claim.clone()), volume.clone());
            }
        }
    }
    type Part = (&'static str, &'static str, fn(&disk::Volume) -> u64);
    let parts: [Part; 6] = [
        ("available_bytes", "Number of available bytes in the volume", |v| v.of.available),
        ("capacity_bytes", "Capacity in bytes of the volume", |v| v.of.capacity),
        ("inodes", "Maximum number of inodes in the volume", |v| v.of.inodes),
        ("inodes_free", "Number of free inodes in the volume", |v| v.of.inodes_free),
        ("inodes_used", "Number of used inodes in the volume", |v| v.used.inodes),
        ("used_bytes", "Number of used bytes in the volume", |v| v.used.bytes),
    ];
    for (part, help, value) in parts.into_iter().filter(|_| !claims.is_empty()) {
        let name = format!("kubelet_volume_stats_{part}");
        page.family(&name, Type::Gauge, help);
        for ((namespace, claim), volume) in &claims {
            let labels = [("namespace", namespace.as_str()), ("persistentvolumeclaim", claim)];
            page.sample(&name, &labels, value(volume) as f64);
        }
    }
}

async fn checkpoint(server: &Server, namespace: &str, pod: &str, container: &str, asked: Option<&str>) -> Response {
    let about = &*server.about;
    let Some(view) = server.pods.find(namespace, pod).map(|v| v.borrow().clone()) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist");
    };
    if view.pod.container(container).is_none() {
        return text(StatusCode::NOT_FOUND, format!("container {container} does not exist"));
    }
    let query = query(asked);
    let timeout = match query.iter().rev().find(|(key, _)| key == "timeout").map(|(_, v)| v.parse::<i64>()) {
        None => 0,
        Some(Ok(seconds)) => seconds,
        Some(Err(_)) => return text(StatusCode::NOT_FOUND, "cannot parse value of timeout parameter"),
    };
    let failed = |why: &str| {
        let why = format!("checkpointing of {namespace}/{pod}/{container} failed ({why})");
        text(StatusCode::INTERNAL_SERVER_ERROR, why)
    };
    let Some(id) = view.seen.container(container).filter(|c| c.may_run()).map(|c| c.id.clone()) else {
        return failed(&format!("container {container} not found"));
    };
    let folder = about.ctx.layout.root.join("checkpoints");
    let made = folder.clone();
    let made = crate::context::blocking(move || {
        use std::os::unix::fs::PermissionsExt;
        std::fs::create_dir_all(&made)?;
        // What is in it is the memory of containers.
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o700))
    });
    if let Err(error) = made.await.and_then(|done| done) {
        return failed(&error.to_string());
    }
    let at = machinery::time::rfc3339(about.ctx.clock.wall());
    let file = folder.join(format!("checkpoint-{pod}_{namespace}-{container}-{at}.tar"));
    let file = file.display().to_string();
    match about.ctx.runtime.checkpoint(&id, &file, timeout).await {
        Ok(()) => json_answer(&json!({"items": [file]})),
        Err(error) => failed(&error.to_string()),
    }
}

/// A request that is being answered: it is counted as such for as long as this lives, also where whoever
/// asked goes away in the middle.
pub struct InFlight {
    labels: [String; 4],
    running: Gauge,
    duration: Histogram,
    clock: SharedClock,
    began: Instant,
    /// What is answered is made while it is being sent.
    pub is_stream: bool,
}

impl InFlight {
    /// Counts a request that begins.
    pub fn begin(metrics: &Metrics, clock: &SharedClock, method: &Method, path: &str) -> Self {
        const KNOWN: [&str; 19] = [
            "attach",
            "checkpoint",
            "configz",
            "containerLogs",
            "debug/flags/v",
            "debug/pprof",
            "exec",
            "healthz",
            "logs",
            "metrics",
            "metrics/cadvisor",
            "metrics/probes",
            "metrics/resource",
            "pods",
            "portForward",
            "run",
            "runningpods",
            "stats",
            "cri",
        ];
        let path = path.trim_matches('/');
        let first = path.split('/').next().unwrap_or_default();
        let known = KNOWN.iter().find(|k| **k == path).or_else(|| KNOWN.iter().find(|k| **k == first));
        let method = if [Method::GET, Method::POST].contains(method) { method.to_string() } else { "other".to_owned() };
        let is_long = ["attach", "containerLogs", "exec", "portForward", "run"].contains(&first);
        let labels =
            [method, known.copied().unwrap_or("other").to_owned(), "readwrite".to_owned(), is_long.to_string()];
        metrics.http_inflight.add(&labels.each_ref().map(String::as_str), 1.0);
        metrics.http_requests.inc(&labels.each_ref().map(String::as_str));
        Self {
            labels,
            running: metrics.http_inflight.clone(),
            duration: metrics.http_duration.clone(),
            clock: clock.clone(),
            began: clock.now(),
            is_stream: ["containerLogs", "logs"].contains(&first),
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let labels = self.labels.each_ref().map(String::as_str);
        self.running.add(&labels, -1.0);
        self.duration.took(&labels, self.clock.now().since(self.began));
    }
}
