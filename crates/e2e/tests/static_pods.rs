//! Pods that a manifest on the node describes: shown by mirror pods, followed live, and independent of
//! an API server.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use cri::v1::ContainerState;
use e2e::cluster::{Cluster, guard};
use e2e::registry::Registry;
use e2e::{images, manifests, runtime};
use host::layout::Layout;
use host::reset::{self, Step};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const IMAGE: &str = "pintle.test/kube-scheduler:1";

fn scheduler(kubeconfig: &Path) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: kube-scheduler
  namespace: kube-system
  labels: {{component: kube-scheduler, tier: control-plane}}
spec:
  hostNetwork: true
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 10
  containers:
  - name: kube-scheduler
    image: {IMAGE}
    args: [--kubeconfig=/etc/kubernetes/scheduler.conf]
    volumeMounts:
    - {{name: kubeconfig, mountPath: /etc/kubernetes/scheduler.conf, readOnly: true}}
  volumes:
  - name: kubeconfig
    hostPath: {{path: {}, type: File}}
",
        kubeconfig.display()
    )
}

/// The experiment: the scheduler of the cluster is a static pod.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_scheduler_is_a_static_pod() -> Result<()> {
    let registry = Registry::start(&[images::busybox("busybox:1")?]).await?;
    let mut cluster = Cluster::start(&["--disable=kube-scheduler"]).await?;
    cluster.trust_registry(&registry)?;
    let archive = cluster.root().join("kube-scheduler.tar");
    std::fs::write(&archive, images::program(IMAGE, cluster.binary(), &["kube-scheduler"])?.archive()?)?;
    let layout = Layout::below(cluster.root());
    host::containerd::import(&layout.containerd_socket(), IMAGE, &archive).await?;

    let busybox = registry.reference("busybox:1");
    let runs = async |name: &str| {
        cluster.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=90s"]).await
    };
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]).await?;
    let name = format!("kube-scheduler-{}", node.to_lowercase());
    let show = async |what: &str| {
        cluster.kubectl(&["get", "pod", "-n", "kube-system", &name, "-o", &format!("jsonpath={what}")]).await
    };
    let ready = async || {
        let what = "{.status.conditions[?(@.type==\"Ready\")].status}";
        let state = show(what).await?;
        ensure!(state == "True", "{name} is not Ready: {state}");
        show("{.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}")
            .await
    };
    let manifest = layout.manifests().join("kube-scheduler.yaml");
    std::fs::write(&manifest, scheduler(&layout.config.join("scheduler.kubeconfig")))?;
    let first = cluster.eventually("the scheduler is shown", &ready).await?;
    ensure!(first.ends_with(" 0"), "{first}");
    cluster.apply(&manifests::script("one", &busybox, "sleep 1000")).await?;
    runs("one").await?;
    let priority = show("{.spec.priority} {.metadata.annotations.kubernetes\\.io/config\\.source}").await?;
    ensure!(priority == "2000001000 file", "{priority}");
    cluster.kubectl(&["logs", "-n", "kube-system", &name]).await.context("its log is read by the mirror's name")?;

    // The mirror comes back, and the pod does not notice.
    let (uid, container) = first.split_once(' ').context("a uid")?;
    // kubectl looks whether the old object is there and only then lists what it follows: it ends because the
    // mirror stays away for longer than that takes.
    cluster.kubectl(&["delete", "pod", "-n", "kube-system", &name]).await?;
    let back = async || {
        let again = ready().await?;
        ensure!(again.split_once(' ').is_some_and(|(u, c)| u != uid && c == container), "{first} became {again}");
        Ok(again)
    };
    let again = cluster.eventually("its mirror is back", &back).await?;

    // A damaged manifest ends nothing, and is told.
    let whole = std::fs::read_to_string(&manifest)?;
    std::fs::write(&manifest, whole.replace("containers:", "containers: ["))?;
    cluster
        .eventually("somebody says that the manifest is damaged", || async {
            let waits = cluster.kubectl(&["get", "waits", "-A"]).await?;
            ensure!(waits.contains("kube-scheduler.yaml"), "{waits}");
            Ok(())
        })
        .await?;
    std::fs::write(&manifest, &whole)?;
    ensure!(ready().await? == again, "it was touched");

    // Without its manifest it ends, and new pods stay Pending.
    let away = cluster.root().join("kube-scheduler.yaml");
    std::fs::rename(&manifest, &away)?;
    cluster
        .eventually("the mirror is gone", || async {
            let list = cluster.kubectl(&["get", "pods", "-n", "kube-system", "-o", "name"]).await?;
            ensure!(!list.contains(&name), "{list}");
            Ok(())
        })
        .await?;
    cluster.apply(&manifests::script("two", &busybox, "sleep 1000")).await?;
    cluster
        .eventually("somebody says that nobody schedules", || async {
            let waits = cluster.kubectl(&["get", "waits"]).await?;
            let row = waits.lines().find(|l| l.contains("two") && l.contains("scheduler default-scheduler"));
            ensure!(row.is_some(), "{waits}");
            Ok(())
        })
        .await?;
    let state = cluster.kubectl(&["get", "pod", "two", "-o", "jsonpath={.status.phase}/{.spec.nodeName}"]).await?;
    ensure!(state == "Pending/", "{state}");
    std::fs::rename(&away, &manifest)?;
    runs("two").await?;

    // The process stops and starts: the scheduler runs on.
    let before = cluster.eventually("the scheduler is shown again", &ready).await?;
    cluster.stop().await?;
    cluster.up(&["--disable=kube-scheduler"]).await?;
    let now = cluster
        .kubectl(&["get", "pod", "-n", "kube-system", &name, "-o", "jsonpath={.metadata.uid} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}"])
        .await?;
    ensure!(now == before, "{before} became {now}");
    Ok(())
}

/// Answers every request with a list of one pod.
async fn serve(image: String) -> Result<String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let url = format!("http://{}/pods", listener.local_addr()?);
    let body = format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"PodList\",\"items\":[{{\"metadata\":{{\"name\":\"listed\"}},\"spec\":\
         {{\"terminationGracePeriodSeconds\":1,\"containers\":[{{\"name\":\"main\",\"image\":\"{image}\",\
         \"command\":[\"sleep\",\"1000\"]}}]}}}}]}}"
    );
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap_or(0);
            let allowed = String::from_utf8_lossy(&request[..read]).to_lowercase().contains("x-token: t\r\n");
            let status = if allowed { "200 OK" } else { "403 Forbidden" };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            // Who asked may be gone.
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    Ok(url)
}

/// How many processes pods without requests may have.
fn pids_limits() -> Result<Vec<String>> {
    let mut out = Vec::new();
    for class in reset::below_hierarchies(Path::new("/kubepods/besteffort"))? {
        let pods = std::fs::read_dir(class).into_iter().flatten().flatten();
        let limits = pods.filter_map(|pod| std::fs::read_to_string(pod.path().join("pids.max")).ok());
        out.extend(limits.map(|limit| limit.trim().to_owned()));
    }
    Ok(out)
}

/// A kubelet without a kubeconfig runs what its folder and its URL say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_alone_runs_static_pods() -> Result<()> {
    let registry = Registry::start(&[images::busybox("busybox:1")?]).await?;
    guard().await?;
    let cluster = Cluster::prepare()?;
    cluster.trust_registry(&registry)?;
    let image = registry.reference("busybox:1");
    let endpoint = runtime::start(cluster.root(), &cluster.clock).await?;
    let runtime = cri::Client::new(&endpoint, cluster.clock.clone())?;
    let manifests = cluster.root().join("static");
    std::fs::create_dir_all(&manifests)?;
    let path = |name: &str| cluster.root().join(name).display().to_string();
    let url = serve(image.clone()).await?;
    // What a flag does not say, a file does.
    let config = cluster.root().join("kubelet.yaml");
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let said = format!(
        "{head}podLogsDir: {}\nstaticPodPath: {}\nhttpCheckFrequency: 1h\nstaticPodURL: {url}\n\
         staticPodURLHeader: {{X-Token: [t]}}\npodPidsLimit: 77\n",
        path("state/pod-logs"),
        path("static")
    );
    std::fs::write(&config, format!("{head}maxPodz: 3\n"))?;
    let config = config.display().to_string();
    let refused = cluster.pintle_command(&["kubelet", "--config", &config]).output().await?;
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && why.contains("kubelet.yaml: unknown field \"maxPodz\""), "{why}");
    std::fs::write(&config, said)?;
    let start = || -> Result<tokio::process::Child> {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(cluster.root().join("kubelet.log"))?;
        let child = cluster
            .pintle_command(&["kubelet", "--container-runtime-endpoint", &endpoint, "--hostname-override=alone"])
            .args(["--root-dir", &path("state/kubelet"), "--config", &config, "--http-check-frequency=1s"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        Ok(child)
    };
    let running = async || -> Result<Vec<String>> {
        let mut found: Vec<String> = runtime
            .list_containers(None)
            .await?
            .into_iter()
            .filter(|c| c.state() == ContainerState::ContainerRunning)
            .map(|c| format!("{} {}", c.labels.get("io.kubernetes.pod.name").cloned().unwrap_or_default(), c.id))
            .collect();
        found.sort();
        Ok(found)
    };
    let are = async |names: &[&str]| {
        let now = running().await?;
        let found: Vec<&str> = now.iter().filter_map(|c| Some(c.split_once(' ')?.0)).collect();
        ensure!(found == names, "{found:?} run; {}", cluster.tail("kubelet.log"));
        Ok(now)
    };
    std::fs::write(manifests.join("web.yaml"), e2e::manifests::script("web", &image, "sleep 1000"))?;
    let mut child = start()?;
    let works = async {
        let first = cluster.eventually("both run", || are(&["listed-alone", "web-alone"])).await?;
        ensure!(pids_limits()?.contains(&"77".to_owned()), "{:?}", pids_limits()?);
        child.kill().await?;
        std::fs::write(manifests.join("db.yaml"), e2e::manifests::script("db", &image, "sleep 1000"))?;
        child = start()?;
        let now = cluster.eventually("one more runs", || are(&["db-alone", "listed-alone", "web-alone"])).await?;
        ensure!(first.iter().all(|c| now.contains(c)), "a container was restarted: {first:?} became {now:?}");
        for name in ["web.yaml", "db.yaml"] {
            std::fs::remove_file(manifests.join(name))?;
        }
        cluster.eventually("what has no manifest ends", || are(&["listed-alone"])).await?;
        // containerd 1.6 may not find the way back from a stop of a sandbox whose caller is killed.
        cluster
            .eventually("and its sandboxes", || async {
                let left = runtime.list_pod_sandbox(None).await?;
                ensure!(left.len() == 1, "{left:?}");
                Ok(())
            })
            .await
    };
    let works = works.await;
    // Until it has ended it goes on making and removing what is taken away here.
    child.kill().await?;
    let cleans = async {
        let stopped = cluster.pintle(&["down", "--pods"]).await?;
        ensure!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
        reset::apply(&Step::RemoveCgroup("/kubepods".into())).context("the cgroups of pods")
    };
    let cleans = cleans.await;
    // Said at once: the traces of what failed would be all that is told of.
    works.as_ref().err().into_iter().chain(cleans.as_ref().err()).for_each(|error| eprintln!("{error:#}"));
    works.and(cleans)
}
