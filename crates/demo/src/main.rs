//! What `./dev up` shows: a cluster starts, a Deployment becomes Ready behind a Service, and a page
//! comes back through the Service's address.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use demo::images;
use host::containerd;
use host::layout::Layout;
use host::process::ProcessId;

/// No registry has it: it is made here and imported.
const IMAGE: &str = "pintle.invalid/demo/nginx:1";

const MANIFEST: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata:
  name: demo
spec:
  replicas: 3
  selector:
    matchLabels: {app: demo}
  template:
    metadata:
      labels: {app: demo}
    spec:
      containers:
      - name: nginx
        image: pintle.invalid/demo/nginx:1
        ports:
        - {name: http, containerPort: 80}
        readinessProbe:
          httpGet: {path: /, port: http}
          periodSeconds: 1
---
apiVersion: v1
kind: Service
metadata:
  name: demo
spec:
  selector: {app: demo}
  ports:
  - {name: http, port: 80, targetPort: http}
"#;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.split_first() {
        Some((command, rest)) if command == "image" => image(rest),
        _ => run(&args),
    }
}

/// The repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Starts the cluster unless it runs, then the demo.
fn run(args: &[String]) -> Result<()> {
    let layout = Layout::default();
    let pintle = root().join("target/release/pintle");
    if ProcessId::load_alive(&layout.pid()).is_none() {
        step("pintle up");
        let status = Command::new(&pintle).arg("up").args(args).status().context("pintle up")?;
        if !status.success() {
            bail!("pintle up failed");
        }
    }
    import(&layout)?;
    step("kubectl apply -f demo.yaml     # a Deployment of three nginx pods, and a Service");
    kubectl(&layout, &["apply", "-f", "-"], Some(MANIFEST))?;
    step("kubectl rollout status deployment/demo");
    kubectl(&layout, &["rollout", "status", "deployment/demo", "--timeout=120s"], None)?;
    step("kubectl get pods,service,endpointslices -o wide");
    kubectl(&layout, &["get", "pods,service,endpointslices", "-o", "wide"], None)?;
    step("kubectl get events");
    kubectl(&layout, &["get", "events", "--sort-by=.metadata.creationTimestamp"], None)?;
    let output = command(&layout, &["get", "service", "demo", "-o", "jsonpath={.spec.clusterIP}"]).output()?;
    let address = String::from_utf8(output.stdout)?;
    step(&format!("curl http://{address}/"));
    let curl = ["--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", "5", "--retry", "20"];
    let page = Command::new("curl")
        .args(curl)
        .args(["--retry-all-errors", "--retry-delay", "0", "--retry-max-time", "20"])
        .arg(format!("http://{address}/"))
        .output()
        .context("curl")?;
    if !page.status.success() {
        bail!("the Service does not answer: {}", String::from_utf8_lossy(&page.stderr));
    }
    let text = String::from_utf8_lossy(&page.stdout).into_owned();
    let title = text.lines().find(|l| l.contains("<title>")).unwrap_or_default().trim();
    println!("{title}");
    println!("\nThe demo runs. Look at it:  kubectl --context pintle get all");
    println!("Stop the cluster:           ./dev down          (pods keep running)");
    println!("Remove every trace:         ./dev reset");
    Ok(())
}

/// Writes a test image as an archive: `image nginx NAME FILE`.
fn image(args: &[String]) -> Result<()> {
    let [which, name, file] = args else { bail!("image nginx|busybox NAME FILE") };
    let image = match which.as_str() {
        "nginx" => images::nginx(name)?,
        "busybox" => images::busybox(name)?,
        other => bail!("no such image: {other}"),
    };
    std::fs::write(file, image.archive()?).with_context(|| file.clone())
}

fn step(text: &str) {
    println!("\n\x1b[1m$ {text}\x1b[0m");
    // A reader that went away is no error.
    let _ = std::io::stdout().flush();
}

fn import(layout: &Layout) -> Result<()> {
    let path: PathBuf = root().join("target/images/demo.tar");
    let archive = images::nginx(IMAGE)?.archive()?;
    std::fs::write(&path, archive)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let socket = layout.containerd_socket();
    runtime.block_on(async {
        containerd::import(&socket, IMAGE, &path).await?;
        // No registry has it.
        containerd::pin(&socket, IMAGE).await
    })?;
    Ok(())
}

fn command(layout: &Layout, args: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    command.arg("--kubeconfig").arg(layout.admin_kubeconfig()).args(args);
    command
}

fn kubectl(layout: &Layout, args: &[&str], input: Option<&str>) -> Result<()> {
    let mut command = command(layout, args);
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().context("kubectl")?;
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(text.as_bytes())?;
    }
    if !child.wait()?.success() {
        bail!("kubectl {} failed", args.join(" "));
    }
    Ok(())
}
