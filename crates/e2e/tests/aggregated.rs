//! A server written with Kubernetes' own libraries (`tests/aggregated`) that answers for an API of its own, used
//! with real kubectl through a Pintle API server.

use std::net::{IpAddr, UdpSocket};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use e2e::clients;
use e2e::cluster::Cluster;
use serde_json::json;
use stdx::ClockExt;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// The program, behind a Service without a selector.
struct Sample {
    cluster: Cluster,
    process: Child,
}

/// An address of this machine that an endpoint may have. Nothing is sent.
fn address() -> Result<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect(("192.0.2.1", 9)).context("this machine has no address but loopback's")?;
    Ok(socket.local_addr()?.ip())
}

async fn sample() -> Result<Sample> {
    let cluster = clients::server().await?;
    let ip = address()?.to_string();
    let mut process = Command::new(clients::tool("aggregated")?)
        .arg(cluster.kubeconfig())
        .args([&ip, "default/sample"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(process.stdout.take().context("piped")?).lines();
    let line = cluster.clock.timeout(clients::LIMIT, lines.next_line()).await??.context("the sample ended")?;
    let (port, authority) = line.split_once(' ').context("a port and an authority")?;
    let port: u16 = port.parse()?;
    let labels = json!({"kubernetes.io/service-name": "sample"});
    for object in [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "sample", "namespace": "default"},
            "spec": {"ports": [{"name": "https", "port": 443}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "sample", "namespace": "default", "labels": labels},
            "ports": [{"name": "https", "port": port}], "endpoints": [{"addresses": [ip]}]}),
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": "v1.sample.example.com"}, "spec": {"group": "sample.example.com", "version": "v1",
                "groupPriorityMinimum": 2000, "versionPriority": 10, "caBundle": authority,
                "service": {"namespace": "default", "name": "sample"}}}),
    ] {
        cluster.apply(&object.to_string()).await?;
    }
    cluster
        .kubectl(&["wait", "--for=condition=Available", "apiservice/v1.sample.example.com", "--timeout=60s"])
        .await?;
    Ok(Sample { cluster, process })
}

fn ship(name: &str, masts: u32) -> String {
    json!({"apiVersion": "sample.example.com/v1", "kind": "Ship", "metadata": {"name": name}, "spec": {"masts": masts}})
        .to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_uses_an_api_of_another_server() -> Result<()> {
    let Sample { cluster, mut process } = sample().await?;
    let listed = cluster
        .eventually("its resources are discovered", || async {
            let listed = cluster.kubectl(&["api-resources", "--api-group=sample.example.com"]).await?;
            ensure!(listed.contains("ships"), "{listed}");
            Ok(listed)
        })
        .await?;
    let row = listed.lines().find(|line| line.starts_with("ships")).context("ships")?;
    ensure!(row.split_whitespace().eq(["ships", "sh", "sample.example.com/v1", "true", "Ship"]), "{listed}");
    let made = cluster.kubectl_with_input(&["create", "-f", "-"], &ship("victory", 3)).await?;
    ensure!(made == "ship.sample.example.com/victory created\n", "{made}");
    let got = cluster.json(&["get", "sh", "victory"]).await?;
    ensure!(got["spec"]["masts"] == 3, "{got}");
    // Who asks is told there as it is known here.
    let who = cluster.json(&["auth", "whoami"]).await?;
    let (maker, name) =
        (&got["metadata"]["annotations"]["sample.example.com/made-by"], &who["status"]["userInfo"]["username"]);
    ensure!(maker.is_string() && maker == name, "{maker} {name}");
    let mut watch = cluster
        .kubectl_command(&["get", "ships", "--watch", "--output-watch-events", "-o", "name"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut events = BufReader::new(watch.stdout.take().context("piped")?).lines();
    let mut next = async || -> Result<String> {
        cluster.clock.timeout(clients::LIMIT, events.next_line()).await??.context("the watch ended")
    };
    ensure!(next().await?.contains("ship.sample.example.com/victory"));
    cluster.kubectl_with_input(&["create", "-f", "-"], &ship("bounty", 2)).await?;
    ensure!(next().await?.contains("ship.sample.example.com/bounty"));
    watch.kill().await?;
    let explained = cluster
        .eventually("its kinds are explained", || async { cluster.kubectl(&["explain", "ships.spec.masts"]).await })
        .await?;
    ensure!(explained.contains("How many masts it has."), "{explained}");
    let gone = cluster.kubectl(&["delete", "ship", "victory"]).await?;
    ensure!(gone.starts_with("ship.sample.example.com \"victory\" deleted"), "{gone}");
    let left = cluster.kubectl(&["get", "ships", "-o", "name"]).await?;
    ensure!(left == "ship.sample.example.com/bounty\n", "{left}");
    let refused = cluster.kubectl_fails(&["get", "ships", "--as=somebody"]).await?;
    ensure!(refused.contains("Forbidden"), "{refused}");

    // A server that is gone takes nothing with it.
    process.kill().await?;
    cluster
        .eventually("the server is missed", || async {
            let complaint = cluster.kubectl_fails(&["get", "ships"]).await?;
            ensure!(complaint.contains("ServiceUnavailable"), "{complaint}");
            Ok(())
        })
        .await?;
    // No object tells that it is gone: it is asked now and then.
    let missed = ["wait", "--for=condition=Available=False", "apiservice/v1.sample.example.com", "--timeout=60s"];
    cluster.kubectl(&missed).await?;
    let services = cluster.kubectl(&["get", "apiservices"]).await?;
    let row = services.lines().find(|line| line.starts_with("v1.sample")).context("an APIService")?;
    ensure!(row.contains("default/sample") && row.contains("False (FailedDiscoveryCheck)"), "{services}");
    ensure!(services.lines().any(|line| line.starts_with("v1.apps ") && line.contains("Local")), "{services}");
    cluster.kubectl(&["create", "deployment", "web", "--image=web"]).await?;
    cluster.kubectl(&["get", "deployments,replicasets"]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_reach_what_another_server_keeps() -> Result<()> {
    let Sample { cluster, mut process } = sample().await?;
    cluster.kubectl(&["create", "namespace", "harbour"]).await?;
    cluster.kubectl_with_input(&["create", "-n", "harbour", "-f", "-"], &ship("victory", 3)).await?;
    cluster.kubectl_with_input(&["create", "-f", "-"], &ship("bounty", 2)).await?;
    // A namespace is emptied there too.
    cluster.kubectl(&["delete", "namespace", "harbour", "--timeout=60s"]).await?;
    let left = cluster.kubectl(&["get", "ships", "-A", "-o", "name"]).await?;
    ensure!(left == "ship.sample.example.com/bounty\n", "{left}");
    // What a ship owns goes with it.
    let owner = cluster.json(&["get", "ship", "bounty"]).await?;
    let cargo = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cargo", "ownerReferences": [
        {"apiVersion": "sample.example.com/v1", "kind": "Ship", "name": "bounty", "uid": owner["metadata"]["uid"]}]}});
    cluster.apply(&cargo.to_string()).await?;
    cluster.kubectl(&["delete", "ship", "bounty"]).await?;
    cluster.kubectl(&["wait", "--for=delete", "configmap/cargo", "--timeout=60s"]).await?;
    // While the server is away nothing is deleted for want of an owner there, and garbage elsewhere is collected.
    cluster.kubectl_with_input(&["create", "-f", "-"], &ship("beagle", 3)).await?;
    let owner = cluster.json(&["get", "ship", "beagle"]).await?;
    process.kill().await?;
    cluster
        .kubectl(&["wait", "--for=condition=Available=False", "apiservice/v1.sample.example.com", "--timeout=60s"])
        .await?;
    let mut cargo = cargo;
    let reference = json!([{"apiVersion": "sample.example.com/v1", "kind": "Ship", "name": "beagle",
        "uid": owner["metadata"]["uid"]}]);
    cargo["metadata"]["ownerReferences"] = reference;
    cluster.apply(&cargo.to_string()).await?;
    cluster.kubectl(&["create", "deployment", "web", "--image=web"]).await?;
    cluster
        .eventually("a ReplicaSet is there", || async {
            let sets = cluster.kubectl(&["get", "replicasets", "-o", "name"]).await?;
            ensure!(sets.starts_with("replicaset.apps/web-"), "{sets}");
            Ok(())
        })
        .await?;
    cluster.kubectl(&["delete", "deployment", "web"]).await?;
    cluster.kubectl(&["wait", "--for=delete", "replicasets", "--all", "--timeout=60s"]).await?;
    cluster.kubectl(&["get", "configmap", "cargo"]).await?;
    Ok(())
}
