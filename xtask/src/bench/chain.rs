//! What one write costs: the CPU of a create and of an apply through the whole chain, in this process,
//! over stores in memory, on one thread; and what the parts of it cost that work on the object.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use apiserver::{ApiServer, Config, authn};
use bytes::Bytes;
use http_body_util::BodyExt;
use kinds::kind::ClusterOptions;
use kinds::{Ctx, User, Verb};
use machinery::managed::{self, Manager};
use machinery::{decode, encode};
use serde_json::{Value, json};
use stdx::shutdown::Stage;
use stdx::{Rng, SharedClock};
use transport::SharedHandler;

use super::figures::Figures;

const PODS: &str = "/api/v1/namespaces/default/pods";
/// The length of the body that is measured.
const LENGTH: usize = 2048;

/// Measures on a thread of its own.
///
/// # Errors
/// When the server does not start or refuses a write.
pub fn run(clock: &SharedClock, count: usize, figures: &mut Figures) -> Result<()> {
    let clock = clock.clone();
    let measured = std::thread::scope(|scope| {
        let measure = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let parts = parts(&clock, count)?;
            runtime.block_on(whole(&clock, count)).map(|whole| (parts, whole))
        };
        scope.spawn(measure).join().map_err(|_| anyhow::anyhow!("the measuring thread panicked"))?
    });
    let (parts, whole) = measured?;
    let sum: f64 = parts.iter().map(|(_, cost)| cost).sum();
    let list: Vec<String> = parts.iter().map(|(name, cost)| format!("{name} {cost:.0}")).collect();
    let [create, applied, changed] = whole;
    let us = |cost: f64| format!("{cost:.0} µs");
    figures.add("CPU of one create of a 2 KB Pod, whole chain", us(create), "≤ 250 µs", Some(create <= 250.0));
    let shown = format!("{sum:.0} µs ({})", list.join(", "));
    figures.add("of which on the object", shown, "≤ 150 µs", Some(sum <= 150.0));
    let shown = format!("{} (creates) / {} (changes a label)", us(applied), us(changed));
    figures.add("CPU of one server-side apply of it", shown, "≤ 400 µs", Some(applied.max(changed) <= 400.0));
    Ok(())
}

/// Microseconds that this thread has worked.
fn worked() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").context("the kernel counts")?;
    let nanoseconds: u64 = text.split_whitespace().next().context("a number")?.parse()?;
    Ok(nanoseconds as f64 / 1e3)
}

fn pod(name: &str, note: &str) -> Value {
    let container = |name: &str, port: u16| {
        json!({ "name": name, "image": "registry.example/app:1.2.3", "command": ["/app", "--serve"],
            "ports": [{ "name": "http", "containerPort": port }],
            "env": [{ "name": "A", "value": "1" }, { "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
            "resources": { "requests": { "cpu": "10m", "memory": "16Mi" }, "limits": { "memory": "64Mi" } },
            "readinessProbe": { "httpGet": { "path": "/ready", "port": port }, "periodSeconds": 5 },
            "volumeMounts": [{ "name": "data", "mountPath": "/data" }, { "name": "settings", "mountPath": "/etc/app" }] })
    };
    json!({ "kind": "Pod", "apiVersion": "v1",
        "metadata": { "name": name, "namespace": "default", "labels": { "app": "web", "tier": "front" },
            "annotations": { "note": note } },
        "spec": { "schedulerName": "nobody", "automountServiceAccountToken": false,
            "containers": [container("main", 8080), container("side", 9090)],
            "volumes": [{ "name": "data", "emptyDir": {} }, { "name": "settings", "configMap": { "name": "settings" } }],
            "tolerations": [{ "key": "spot", "operator": "Exists", "effect": "NoSchedule" }],
            "terminationGracePeriodSeconds": 10 } })
}

/// A Pod of the length that is measured.
fn body(name: &str, note: &str) -> String {
    let empty = pod(name, note).to_string().len();
    pod(name, &format!("{note}{}", "x".repeat(LENGTH.saturating_sub(empty)))).to_string()
}

/// What each step on the object costs.
fn parts(clock: &SharedClock, count: usize) -> Result<Vec<(&'static str, f64)>> {
    let kind = kinds::ALL.iter().find(|k| k.shape().kind == "Pod").context("there are Pods")?;
    let (schema, shape) = (kind.schema(), kind.shape());
    let sent = body("pod-00000", "");
    let options = options();
    let user = User { name: "bench".into(), ..User::default() };
    let now = clock.wall();
    let ctx = Ctx { user: &user, verb: Verb::Create, subresource: "", dry_run: false, now, options: &options };
    let manager = Manager {
        name: "bench".into(),
        api_version: shape.api_version(),
        also: Vec::new(),
        subresource: String::new(),
        reset: shape.resets(""),
        now,
    };
    let mut costs = [0.0; 5];
    for _ in 0..count {
        let mut last = worked()?;
        let mut lap = |cost: &mut f64| -> Result<()> {
            let at = worked()?;
            *cost += at - last;
            last = worked()?;
            Ok(())
        };
        let format = decode::Format::Json;
        let decoded = decode::decode(sent.as_bytes(), format, &schema, decode::Strictness::Warn);
        let mut object = decoded.map_err(|status| anyhow::anyhow!(status.message))?.value;
        lap(&mut costs[0])?;
        kind.defaults(&ctx, &mut object).map_err(|status| anyhow::anyhow!(status.message))?;
        lap(&mut costs[1])?;
        managed::update(None, &mut object, &schema, &manager);
        lap(&mut costs[2])?;
        let finished = kind.finish(&ctx, &mut object, None).map_err(|status| anyhow::anyhow!(status.message))?;
        ensure!(finished.errors.is_empty(), "the Pod is refused: {}", finished.errors);
        lap(&mut costs[3])?;
        std::hint::black_box(encode::json(&object, &schema));
        lap(&mut costs[4])?;
    }
    let names = ["decode", "defaults", "managed fields", "preparation and validation", "encode"];
    Ok(names.into_iter().zip(costs.map(|cost| cost / count as f64)).collect())
}

fn options() -> ClusterOptions {
    ClusterOptions { service_cidrs: Vec::new(), node_ports: (30000, 32767) }
}

/// A server over stores in memory, and the way in for one who may everything.
///
/// # Errors
/// When it does not start.
pub async fn server(clock: &SharedClock, store: Arc<dyn storage::Store>, stage: &Stage) -> Result<SharedHandler> {
    let key = Arc::new(pki::SigningKey::from_pem(&pki::SigningKey::generate()?)?);
    let accounts = authn::service_account::Options::standard("cluster.local", key);
    let config = Config::new(store, clock.clone(), Rng::seeded(1), accounts);
    let api = ApiServer::start(config, stage).await?;
    let user = User { name: "bench".into(), groups: vec!["system:masters".into()], ..User::default() };
    Ok(api.handler(user))
}

/// A create, an apply that creates, and an apply that changes a label, through the whole chain.
async fn whole(clock: &SharedClock, count: usize) -> Result<[f64; 3]> {
    let stage = Stage::new();
    let handler = server(clock, Arc::new(storage::Memory::new(clock.clone())), &stage).await?;
    let account = json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "default"}});
    send(&handler, "POST", "/api/v1/namespaces/default/serviceaccounts", "application/json", account.to_string())
        .await?;
    let mut costs = [0.0; 3];
    for (step, cost) in costs.iter_mut().enumerate() {
        let bodies: Vec<(String, String)> = (0..count)
            .map(|i| {
                let name = format!("pod-{}-{i:06}", step.min(1));
                let body = body(&name, if step == 2 { "changed" } else { "" });
                (name, body)
            })
            .collect();
        let before = worked()?;
        for (name, body) in bodies {
            if step == 0 {
                send(&handler, "POST", PODS, "application/json", body).await?;
            } else {
                let uri = format!("{PODS}/{name}?fieldManager=bench");
                send(&handler, "PATCH", &uri, "application/apply-patch+yaml", body).await?;
            }
        }
        *cost = (worked()? - before) / count as f64;
    }
    stage.stop();
    Ok(costs)
}

/// Sends a request and reads its answer.
///
/// # Errors
/// When the answer is a failure.
pub async fn send(handler: &SharedHandler, method: &str, uri: &str, media: &str, body: String) -> Result<Bytes> {
    let request = http::Request::builder().method(method).uri(uri).header("content-type", media);
    let request = request.header("user-agent", "bench/1").body(transport::full(body))?;
    let response = handler.call(request).await.map_err(|error| anyhow::anyhow!("{error}"))?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
    ensure!(head.status.is_success(), "{method} {uri}: {}", String::from_utf8_lossy(&body));
    Ok(body)
}
