//! Several nodes: pods reach pods and Services of other nodes, by plain routes and by VXLAN, while nodes change
//! their address and vanish; and a node that was joined by hand leaves nothing when it is reset.

use anyhow::{Context, Result, ensure};
use e2e::images;
use e2e::nodes::{Nodes, Spec};

const IMAGE: &str = "pintle.invalid/busybox:1";

/// A pod on a node that says its name on port 8080, which is one of its node's, too.
fn pod(name: &str, node: &str, host_port: u16) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: web}}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: {IMAGE}
    command: [sh, -c, 'mkdir -p /w/cgi-bin; echo {name} > /w/index.html; cd /w/cgi-bin; echo \"#!/bin/sh\" > who; echo \"echo; echo \\$REMOTE_ADDR\" >> who; chmod 755 who; exec httpd -f -p 8080 -h /w']
    ports: [{{containerPort: 8080, hostPort: {host_port}}}]
    readinessProbe: {{httpGet: {{port: 8080, path: /}}, periodSeconds: 1}}
"
    )
}

const SERVICE: &str = "apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30090}]
";

async fn field(nodes: &Nodes, what: &str, path: &str) -> Result<String> {
    nodes.cluster.kubectl(&["get", what, "-o", &format!("jsonpath={{{path}}}")]).await
}

/// A page, asked for by a pod.
async fn asks(nodes: &Nodes, pod: &str, url: &str) -> Result<String> {
    let get = ["exec", pod, "--", "timeout", "5", "wget", "-q", "-O", "-", url];
    Ok(nodes.cluster.kubectl(&get).await?.trim().to_owned())
}

/// Every pod's page from every other pod, also the largest that fits in no packet of a tunnel.
async fn all_reach_all(nodes: &Nodes, pods: &[&str]) -> Result<()> {
    for to in pods {
        let ip = field(nodes, &format!("pod/{to}"), ".status.podIP").await?;
        for from in pods {
            nodes
                .cluster
                .eventually(&format!("{from} reaches {to}"), || async {
                    let said = asks(nodes, from, &format!("http://{ip}:8080/")).await?;
                    ensure!(said == *to, "{said}");
                    Ok(())
                })
                .await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_and_services_across_nodes() -> Result<()> {
    let specs = [Spec::near("n1", 1), Spec::near("n2", 2), Spec::far("f1", 1)];
    let mut nodes = Nodes::start(&[], &specs, &[(IMAGE, images::busybox(IMAGE)?)]).await?;
    let result = journey(&mut nodes).await;
    let logs = nodes.nodes.iter().map(|node| nodes.logs(node)).collect::<String>();
    result.with_context(|| logs)
}

async fn journey(nodes: &mut Nodes) -> Result<()> {
    for (name, node) in [("p1", "n1"), ("p2", "n2"), ("p3", "f1")] {
        let manifest = pod(name, node, 8085);
        nodes.cluster.eventually("the pod is accepted", || nodes.cluster.apply(&manifest)).await?;
    }
    nodes.cluster.apply(SERVICE).await?;
    let ready = ["wait", "--for=condition=Ready", "pod/p1", "pod/p2", "pod/p3", "--timeout=90s"];
    nodes.cluster.kubectl(&ready).await?;
    all_reach_all(nodes, &["p1", "p2", "p3"]).await.context("from pod to pod")?;
    // Plain routes on one network, VXLAN to the node behind the router.
    let routes = nodes.says("n1", &["ip", "route", "show", "proto", "113"]).await?;
    let lines: Vec<&str> = routes.lines().collect();
    ensure!(lines.len() == 2, "{routes}");
    ensure!(lines.iter().any(|l| l.contains("via 10.88.0.2 dev eth0")), "{routes}");
    ensure!(lines.iter().any(|l| l.contains("dev pintle-vx")), "{routes}");
    // The address a pod is seen with is its own, on its node and across both kinds of routes.
    sources_are_kept(nodes).await?;

    // The Service, from pods of every node, from nodes, and from outside by any node.
    let service = field(nodes, "service/web", ".spec.clusterIP").await?;
    for from in ["p1", "p2", "p3"] {
        all_answer(nodes, |nodes| Box::pin(asks_service(nodes, from, &service))).await.context(from)?;
    }
    for (from, url) in [
        ("n1", format!("http://{service}/")),
        ("f1", format!("http://{service}/")),
        ("out", "http://10.88.0.1:30090/".to_owned()),
        ("out", "http://10.89.0.1:30090/".to_owned()),
    ] {
        let url = url.as_str();
        all_answer(nodes, |nodes| Box::pin(async move { Ok(nodes.get(from, url).await?.trim().to_owned()) }))
            .await
            .with_context(|| format!("{from} {url}"))?;
    }
    // Ports of the host: from outside, from another node, from the node itself on 127.0.0.1.
    for (from, url, want) in [
        ("out", "http://10.88.0.1:8085/", "p1"),
        ("n2", "http://10.88.0.1:8085/", "p1"),
        ("n1", "http://127.0.0.1:8085/", "p1"),
        ("f1", "http://10.88.0.2:8085/", "p2"),
    ] {
        let said = nodes.get(from, url).await.with_context(|| format!("{from} {url}"))?;
        ensure!(said.trim() == want, "{from} {url}: {said}");
    }
    // Somebody flushes the rules of a node: what pods need comes back by itself.
    nodes.says("n1", &["nft", "flush", "ruleset"]).await?;
    let mended = || async {
        let said = nodes.get("out", "http://10.88.0.1:8085/").await?;
        ensure!(said.trim() == "p1", "{said}");
        Ok(())
    };
    nodes.cluster.eventually("ports of the host come back", mended).await?;
    // More than one packet each way, through the tunnel.
    let ip = field(nodes, "pod/p3", ".status.podIP").await?;
    nodes.cluster.kubectl(&["exec", "p3", "--", "sh", "-c", "dd if=/dev/zero of=/w/big bs=1M count=8"]).await?;
    let script = format!("timeout 20 wget -q -O - http://{ip}:8080/big | wc -c");
    let bytes = nodes.cluster.kubectl(&["exec", "p1", "--", "sh", "-c", &script]).await?;
    ensure!(bytes.trim() == (8 << 20).to_string(), "{bytes}");

    // A node with another address: its pods go on, and the others find it.
    nodes.readdress("n2", 22).await?;
    let moved = || async {
        let address = field(nodes, "node/n2", ".status.addresses[?(@.type==\"InternalIP\")].address").await?;
        ensure!(address == "10.88.0.22", "{address}");
        Ok(())
    };
    nodes.cluster.eventually("the Node tells its new address", moved).await?;
    all_reach_all(nodes, &["p1", "p2", "p3"]).await.context("after a node was given another address")?;
    let routes = nodes.says("n1", &["ip", "route", "show", "proto", "113"]).await?;
    ensure!(routes.contains("via 10.88.0.22 dev eth0") && !routes.contains("via 10.88.0.2 "), "{routes}");

    // A node that vanishes takes nobody with it, and when its Node is gone nothing leads there.
    nodes.kill("n2").await?;
    nodes.cluster.kubectl(&["delete", "node", "n2"]).await?;
    nodes.cluster.kubectl(&["delete", "pod", "p2", "--force", "--grace-period=0", "--ignore-not-found"]).await?;
    let gone = || async {
        let routes = nodes.says("n1", &["ip", "route", "show", "proto", "113"]).await?;
        ensure!(routes.lines().count() == 1, "{routes}");
        Ok(())
    };
    nodes.cluster.eventually("nothing leads to the node that is gone", gone).await?;
    all_reach_all(nodes, &["p1", "p3"]).await?;

    // Reset leaves a node as it was.
    let left = nodes.reset("f1").await?;
    ensure!(left.trim().is_empty(), "{left}");
    Ok(())
}

/// What answers when a pod asks the Service.
async fn asks_service(nodes: &Nodes, from: &str, service: &str) -> Result<String> {
    asks(nodes, from, &format!("http://{service}/")).await
}

type Answer<'a> = std::pin::Pin<Box<dyn Future<Output = Result<String>> + Send + 'a>>;

/// Asks until each of the three pods has answered.
async fn all_answer<'a>(nodes: &'a Nodes, ask: impl Fn(&'a Nodes) -> Answer<'a>) -> Result<()> {
    let seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
    nodes
        .cluster
        .eventually("all three pods answer", || async {
            let said = ask(nodes).await?;
            let mut seen = seen.lock().map_err(|_| anyhow::anyhow!("a panic"))?;
            seen.insert(said);
            ensure!(["p1", "p2", "p3"].iter().all(|p| seen.contains(*p)), "{seen:?}");
            Ok(())
        })
        .await
}

/// A pod sees another pod's own address, whatever is between them.
async fn sources_are_kept(nodes: &Nodes) -> Result<()> {
    for (from, to) in [("p1", "p2"), ("p1", "p3"), ("p3", "p1")] {
        let own = field(nodes, &format!("pod/{from}"), ".status.podIP").await?;
        let ip = field(nodes, &format!("pod/{to}"), ".status.podIP").await?;
        let seen = asks(nodes, from, &format!("http://{ip}:8080/cgi-bin/who")).await?;
        ensure!(seen.trim_end_matches(']').ends_with(&format!(":{own}")), "{to} sees {seen:?}, not {own}");
    }
    Ok(())
}
