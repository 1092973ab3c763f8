//! A controller that other people could have written (`tests/controller`): two of it stand for election, one
//! makes Deployments of Sites, tells their status, outlives the server and hands over when it ends.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use e2e::clients;
use e2e::cluster::{Cluster, PATIENCE};
use serde_json::Value;
use stdx::ClockExt;
use tokio::process::{Child, Command};

/// A server that can be started again where it was, and the controllers beside it.
struct World {
    server: Cluster,
    flags: [String; 3],
}

impl World {
    async fn start() -> Result<Self> {
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let flags = [
            "--disable=kubelet,kube-proxy,kube-scheduler,dns".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
        ];
        let mut world = Self { server: Cluster::prepare_server()?, flags };
        world.up().await?;
        let definition = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/controller/site.yaml");
        world.server.kubectl(&["apply", "-f", &definition.display().to_string()]).await?;
        world.server.kubectl(&["wait", "--for=condition=Established", "crd/sites.sample.example.com"]).await?;
        Ok(world)
    }

    async fn up(&mut self) -> Result<()> {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        self.server.up(&flags).await
    }

    /// A controller under a name, whose output is a file of the name.
    fn controller(&self, name: &str) -> Result<Child> {
        let out = File::create(self.server.root().join(name))?;
        let mut command = Command::new(clients::tool("controller")?);
        command.arg(self.server.kubeconfig()).arg(name).kill_on_drop(true).env("HOME", self.server.root());
        Ok(command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).spawn()?)
    }

    /// What the controllers have said, for messages.
    fn said(&self) -> String {
        ["one", "two"].map(|name| format!("{name}:\n{}", self.server.tail(name))).join("\n")
    }

    /// Waits until kubectl prints this.
    async fn prints(&self, args: &[&str], wanted: &str) -> Result<()> {
        let asked = async || {
            let got = self.server.kubectl(args).await?;
            ensure!(got == wanted, "{got:?}");
            Ok(())
        };
        self.server.eventually(&args.join(" "), asked).await.with_context(|| self.said())
    }

    /// Applies a Site.
    async fn site(&self, name: &str, image: &str, replicas: u8) -> Result<()> {
        let manifest = format!(
            "apiVersion: sample.example.com/v1\nkind: Site\nmetadata: {{name: {name}}}\n\
             spec: {{deploymentName: {name}, image: \"example.invalid/{image}\", replicas: {replicas}}}\n"
        );
        self.server.apply(&manifest).await.map(drop)
    }

    /// Says of every pod of a Site that it runs and is ready, as a kubelet would.
    async fn run_pods(&self, site: &str) -> Result<()> {
        let selector = format!("--selector=site={site}");
        let pods = self.server.kubectl(&["get", "pods", &selector, "-o", "name"]).await?;
        let ready = r#"{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}"#;
        for pod in pods.lines() {
            self.server.kubectl(&["patch", pod, "--subresource=status", "--type=merge", "-p", ready]).await?;
        }
        Ok(())
    }

    /// Waits until a Site has so many pods that run, and says so.
    async fn available(&self, site: &str, replicas: usize) -> Result<()> {
        let told = async || {
            self.run_pods(site).await?;
            let status = self.server.json(&["get", "site", site]).await?["status"].take();
            ensure!(status["availableReplicas"] == replicas, "{status}");
            ensure!(status["conditions"][0]["reason"] == "Enough", "{status}");
            Ok(())
        };
        self.server.eventually(&format!("{replicas} replicas of {site}"), told).await.with_context(|| self.said())
    }

    async fn leader(&self) -> Result<String> {
        let lease = self.server.json(&["get", "lease", "sample-controller"]).await?;
        lease["spec"]["holderIdentity"].as_str().map(str::to_owned).context("nobody leads")
    }

    async fn ends(&self, child: &mut Child) -> Result<bool> {
        let ended = self.server.clock.timeout(PATIENCE, child.wait()).await.context("it does not end")??;
        Ok(ended.success())
    }
}

#[tokio::test]
async fn a_controller_does_its_work_whatever_happens() -> Result<()> {
    let mut world = World::start().await?;
    let mut one = world.controller("one")?;
    world.prints(&["get", "lease", "sample-controller", "-o", "jsonpath={.spec.holderIdentity}"], "one").await?;
    let mut two = world.controller("two")?;

    // What is asked for is made, is the Site's, and its state is told.
    world.site("shop", "shop:1", 2).await?;
    world.available("shop", 2).await?;
    let shown = "NAME   WANTED   AVAILABLE   REASON\nshop   2        2           Enough\n";
    world.prints(&["get", "sites"], shown).await?;
    let site = world.server.json(&["get", "site", "shop"]).await?;
    let deployment = world.server.json(&["get", "deployment", "shop"]).await?;
    let owner = &deployment["metadata"]["ownerReferences"][0];
    let told = (&owner["uid"], &owner["kind"], &owner["controller"], &owner["blockOwnerDeletion"]);
    ensure!(told == (&site["metadata"]["uid"], &"Site".into(), &true.into(), &true.into()), "{owner}");
    ensure!(site["status"]["observedGeneration"] == site["metadata"]["generation"], "{site}");
    ensure!(site["metadata"]["generation"] == 1, "a status moved the generation: {site}");
    world.prints(&["events", "--for=site/shop", "-o", "jsonpath={.items[*].reason}"], "Created").await?;

    // What drifts is brought back, what changes is carried over, and what is not ours stays.
    world.server.kubectl(&["scale", "deployment/shop", "--replicas=7"]).await?;
    world.prints(&["get", "deployment", "shop", "-o", "jsonpath={.spec.replicas}"], "2").await?;
    world.server.kubectl(&["delete", "deployment", "shop"]).await?;
    world.available("shop", 2).await?;
    world.site("shop", "shop:2", 3).await?;
    world.available("shop", 3).await?;
    world.prints(&["get", "deployment", "shop", "-o", "jsonpath={..image}"], "example.invalid/shop:2").await?;
    world.server.kubectl(&["create", "deployment", "taken", "--image=example.invalid/other:1"]).await?;
    world.site("taken", "shop:1", 1).await?;
    let reason = "jsonpath={.items[0].type} {.items[0].reason} {.items[0].message}";
    let wanted = "Warning ErrResourceExists Deployment taken is not managed by the Site";
    world.prints(&["events", "--for=site/taken", "-o", reason], wanted).await?;
    world.prints(&["get", "deployment", "taken", "-o", "jsonpath={..image}"], "example.invalid/other:1").await?;
    let renamed = ["patch", "site", "shop", "--type=merge", "-p", r#"{"spec":{"deploymentName":"other"}}"#];
    let refused = world.server.kubectl_fails(&renamed).await?;
    let wanted = "The Site \"shop\" is invalid: spec: Invalid value: the name of the Deployment cannot be changed\n";
    ensure!(refused == wanted, "{refused}");

    // The server is started again under everybody's watches.
    world.server.stop().await?;
    world.up().await?;
    world.site("shop", "shop:3", 1).await?;
    world.available("shop", 1).await?;
    world.prints(&["get", "deployment", "shop", "-o", "jsonpath={..image}"], "example.invalid/shop:3").await?;
    ensure!(one.try_wait()?.is_none() && two.try_wait()?.is_none(), "one ended: {}", world.said());

    // Who leads ends, and the other goes on.
    let (first, leading, other) =
        if world.leader().await? == "one" { ("one", &mut one, "two") } else { ("two", &mut two, "one") };
    Command::new("kill").arg(leading.id().context("it runs")?.to_string()).status().await?;
    ensure!(world.ends(leading).await?, "{first} did not end well: {}", world.said());
    world.prints(&["get", "lease", "sample-controller", "-o", "jsonpath={.spec.holderIdentity}"], other).await?;
    world.site("late", "late:1", 1).await?;
    world.available("late", 1).await?;

    // With a Site goes all that is its own.
    world.server.kubectl(&["delete", "site", "shop", "--cascade=foreground"]).await?;
    let nothing = |value: Value| value["items"].as_array().is_some_and(Vec::is_empty);
    let left = world.server.json(&["get", "deployments,replicasets,pods", "--selector=site=shop"]).await?;
    ensure!(nothing(left), "a foreground deletion waits for what is below");
    world.server.kubectl(&["delete", "site", "late"]).await?;
    let gone = async || {
        let left = world.server.json(&["get", "replicasets,pods", "--selector=site=late"]).await?;
        ensure!(nothing(left), "something is left");
        world.server.kubectl_fails(&["get", "deployment", "late"]).await.map(drop)
    };
    world.server.eventually("all below the Site is gone", gone).await?;
    world.server.kubectl(&["get", "deployment", "taken"]).await?;
    Ok(())
}
