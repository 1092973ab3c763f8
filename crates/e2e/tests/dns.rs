//! Names as pods see them, through the Service `kube-dns` and the service proxy: by busybox' resolver and by
//! glibc's, with a server for other names that is our own.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use dns::wire::{Data, Edns, Message, Name, Query, Record, Reply, ask, encode, kind, rcode, read};
use e2e::cluster::Cluster;
use e2e::images;
use e2e::registry::Registry;
use serde_json::Value;
use stdx::ClockExt;
use tokio::net::UdpSocket;

/// What pods and Services there are. Two pods as those of a StatefulSet are named, one that is not ready in a
/// Service that tells of it all the same.
const OBJECTS: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec:
  clusterIP: None
  selector: {app: db}
  ports: [{name: pg, port: 5432}]
---
apiVersion: v1
kind: Service
metadata: {name: early}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {app: early}
---
apiVersion: v1
kind: Service
metadata: {name: late}
spec:
  clusterIP: None
  selector: {app: early}
---
apiVersion: v1
kind: Service
metadata: {name: out}
spec: {type: ExternalName, externalName: www.outside.test}
"#;

fn pod(name: &str, app: &str, image: &str, script: &str, more: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels: {{app: {app}}}\nspec:\n  \
         terminationGracePeriodSeconds: 1\n{more}  containers:\n  - name: main\n    image: {image}\n    \
         command: [sh, -c, {script:?}]\n"
    )
}

/// A server that knows `*.outside.test`, for as long as the test runs.
async fn outside() -> Result<SocketAddr> {
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").await?);
    let address = socket.local_addr()?;
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let Ok(query) = Query::read(&buffer[..length]) else { continue };
            let name = query.name.name();
            let known = Name::parse("outside.test").is_ok_and(|zone| name.is_within(&zone));
            let reply = match (known, query.kind) {
                (true, kind::A) => {
                    let answers = vec![Record::address(name, 60, [192, 0, 2, 7].into())];
                    Reply { answers, ..Reply::default() }
                }
                (true, _) => Reply::code(rcode::NOERROR),
                (false, _) => Reply::code(rcode::NXDOMAIN),
            };
            let mut out = Vec::new();
            encode(&query, &reply, 1232, &mut out);
            let _ = socket.send_to(&out, from).await;
        }
    });
    Ok(address)
}

struct World {
    cluster: Cluster,
}

impl World {
    /// What a command in a pod prints; whatever becomes of it.
    async fn run(&self, pod: &str, command: &str) -> Result<String> {
        let output = self.cluster.kubectl_output(&["exec", pod, "--", "sh", "-c", command]).await?;
        Ok(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
    }

    /// A command in a pod comes to print all of these.
    async fn says(&self, pod: &str, command: &str, parts: &[&str]) -> Result<()> {
        self.cluster
            .eventually(&format!("{command} in {pod}"), async || {
                let text = self.run(pod, command).await?;
                ensure!(parts.iter().all(|part| text.contains(part)), "not {parts:?}: {text}");
                Ok(())
            })
            .await
    }

    async fn field(&self, what: &[&str], pointer: &str) -> Result<String> {
        let object = self.cluster.json(&[&["get"], what].concat()).await?;
        let found = object.pointer(pointer).and_then(Value::as_str);
        found.map(str::to_owned).with_context(|| format!("{pointer} of {what:?}: {object}"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_in_pods() -> Result<()> {
    let registry = Registry::start(&[images::busybox("busybox:1")?, images::glibc("glibc:1")?]).await?;
    let upstream = format!("--dns-upstream={}", outside().await?);
    let cluster = Cluster::start(&[&upstream]).await?;
    cluster.trust_registry(&registry)?;
    let (busybox, glibc) = (registry.reference("busybox:1"), registry.reference("glibc:1"));
    // A lookup is sent once and waited for, so that one that was lost is a failure and not a pause.
    let once = "  dnsConfig: {options: [{name: attempts, value: '1'}]}\n";
    let unready = "  readinessGates: [{conditionType: example.com/never}]\n";
    let of_set = |n: u8| format!("  hostname: db-{n}\n  subdomain: db\n");
    let wait = "sleep 100000";
    let serve = "mkdir -p /www && echo hello > /www/index.html && httpd -f -p 8080 -h /www";
    let pods = [
        pod("web", "web", &busybox, serve, ""),
        pod("db-0", "db", &busybox, wait, &of_set(0)),
        pod("db-1", "db", &busybox, wait, &of_set(1)),
        pod("early", "early", &busybox, wait, unready),
        pod("busybox", "client", &busybox, wait, ""),
        pod("glibc", "client", &glibc, wait, once),
        pod("host", "client", &busybox, wait, "  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet\n"),
    ];
    cluster.apply(&format!("{OBJECTS}{}", pods.concat())).await?;
    let world = World { cluster };
    for pod in ["web", "db-0", "db-1", "busybox", "glibc", "host"] {
        world.cluster.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=90s"]).await?;
    }
    what_leads_there(&world).await.context("what leads there")?;
    resolvers_find(&world).await.context("resolvers find")?;
    nothing_is_lost(&world).await.context("nothing is lost")?;
    the_host_may_ask(&world).await.context("the host may ask")?;
    without_it(world, &busybox).await.context("without it")
}

/// An orderly stop takes the slice away; a cluster without the DNS says to pods that it has none.
async fn without_it(mut world: World, busybox: &str) -> Result<()> {
    world.cluster.stop().await?;
    world.cluster.up(&["--disable=dns"]).await?;
    let selector = ["-n", "kube-system", "endpointslices", "-l", "kubernetes.io/service-name=kube-dns"];
    let slices = world.cluster.json(&[&["get"], &selector[..]].concat()).await?;
    ensure!(slices["items"].as_array().is_some_and(Vec::is_empty), "{slices}");
    world.cluster.apply(&pod("without", "client", busybox, "sleep 100000", "")).await?;
    world.cluster.kubectl(&["wait", "--for=condition=Ready", "pod/without", "--timeout=90s"]).await?;
    let text = world.run("without", "cat /etc/resolv.conf").await?;
    ensure!(!text.contains("10.96.0.10"), "{text}");
    world
        .cluster
        .eventually("the pod is told", async || {
            let events = world.cluster.kubectl(&["get", "events", "-o", "wide"]).await?;
            ensure!(events.contains("MissingClusterDNS"), "{events}");
            Ok(())
        })
        .await?;
    // And with it again, the slice is there and pods that were there all the time find names.
    world.cluster.stop().await?;
    world.cluster.up(&[]).await?;
    world.says("busybox", "wget -qO- http://web", &["hello"]).await
}

/// The Service, its slice, and what pods are told.
async fn what_leads_there(world: &World) -> Result<()> {
    let service = ["-n", "kube-system", "service", "kube-dns"];
    ensure!(world.field(&service, "/spec/clusterIP").await? == "10.96.0.10");
    ensure!(world.field(&service, "/metadata/labels/k8s-app").await? == "kube-dns");
    let slices = world
        .cluster
        .json(&["get", "-n", "kube-system", "endpointslices", "-l", "kubernetes.io/service-name=kube-dns"])
        .await?;
    let items = slices["items"].as_array().context("a list")?;
    ensure!(items.len() == 1, "{slices}");
    let slice = &items[0];
    ensure!(slice["endpoints"][0]["conditions"]["ready"] == true, "{slice}");
    ensure!(slice["metadata"]["ownerReferences"][0]["kind"] == "Node", "{slice}");
    world
        .says(
            "busybox",
            "cat /etc/resolv.conf",
            &["nameserver 10.96.0.10", "search default.svc.cluster.local svc.cluster.local cluster.local", "ndots:5"],
        )
        .await?;
    let events = world.cluster.kubectl(&["get", "events", "-A", "-o", "wide"]).await?;
    ensure!(!events.contains("MissingClusterDNS"), "{events}");
    Ok(())
}

async fn resolvers_find(world: &World) -> Result<()> {
    let web = world.field(&["service", "web"], "/spec/clusterIP").await?;
    let [db0, db1, early] = [
        world.field(&["pod", "db-0"], "/status/podIP").await?,
        world.field(&["pod", "db-1"], "/status/podIP").await?,
        world.field(&["pod", "early"], "/status/podIP").await?,
    ];
    let (by_web, by_db1) = (reversed(&web), format!("{}.default.pod.cluster.local", db1.replace('.', "-")));
    for (pod, command, parts) in [
        // By the search list, as far as it goes, and whole.
        ("busybox", "wget -qO- http://web".to_owned(), vec!["hello"]),
        ("busybox", "wget -qO- http://web.default".into(), vec!["hello"]),
        ("busybox", "wget -qO- http://web.default.svc.cluster.local".into(), vec!["hello"]),
        ("busybox", "nslookup web.default.svc.cluster.local".into(), vec![&web]),
        ("busybox", "nslookup db.default.svc.cluster.local".into(), vec![&db0, &db1]),
        ("busybox", "nslookup db-1.db.default.svc.cluster.local".into(), vec![&db1]),
        ("busybox", format!("nslookup {by_db1}"), vec![&db1]),
        // Who is not ready is told of where that is wanted, and nowhere else.
        ("busybox", "nslookup early.default.svc.cluster.local".into(), vec![&early]),
        ("busybox", "nslookup late.default.svc.cluster.local".into(), vec!["NXDOMAIN"]),
        ("busybox", "nslookup out.default.svc.cluster.local".into(), vec!["www.outside.test", "192.0.2.7"]),
        ("busybox", "nslookup www.outside.test".into(), vec!["192.0.2.7"]),
        ("busybox", "nslookup nobody.example".into(), vec!["NXDOMAIN"]),
        ("busybox", format!("nslookup -type=ptr {by_web}"), vec!["web.default.svc.cluster.local"]),
        (
            "busybox",
            "nslookup -type=srv _pg._tcp.db.default.svc.cluster.local".into(),
            vec!["5432 db-0.db.default.svc.cluster.local", "5432 db-1.db.default.svc.cluster.local"],
        ),
        ("glibc", "getent ahosts web".into(), vec![&web]),
        ("glibc", "getent hosts db-0.db".into(), vec![&db0, "db-0.db.default.svc.cluster.local"]),
        ("glibc", "getent ahosts db".into(), vec![&db0, &db1]),
        ("glibc", "getent ahosts out".into(), vec!["192.0.2.7"]),
        ("glibc", format!("getent hosts {web}"), vec!["web.default.svc.cluster.local"]),
        // A pod knows itself by the name that others know it by.
        ("db-0", "hostname -f".into(), vec!["db-0.db.default.svc.cluster.local"]),
        // A pod in the host's own network asks through the Service, too.
        ("host", "nslookup web.default.svc.cluster.local".into(), vec![&web]),
    ] {
        world.says(pod, &command, &parts.iter().map(|part| part.as_ref()).collect::<Vec<&str>>()).await?;
    }
    Ok(())
}

/// `10.96.0.7` as `7.0.96.10.in-addr.arpa`.
fn reversed(address: &str) -> String {
    let parts: Vec<&str> = address.split('.').rev().collect();
    format!("{}.in-addr.arpa", parts.join("."))
}

/// glibc asks for both families at once, from one socket: none of the answers may be lost on its way, which
/// would be five seconds for whoever waits, and is a failure here.
async fn nothing_is_lost(world: &World) -> Result<()> {
    let script = "n=0; for i in $(seq 300); do getent ahosts web >/dev/null || n=$((n+1)); \
                  getent ahosts www.outside.test. >/dev/null || n=$((n+1)); done; echo lost $n";
    let text = world.run("glibc", script).await?;
    ensure!(text.contains("lost 0\n"), "{text}");
    Ok(())
}

/// The node asks at the Service's address and gets what pods get, over both protocols of the page, too.
async fn the_host_may_ask(world: &World) -> Result<()> {
    let clock = world.cluster.clock.clone();
    let asked = async |name: &str, kind: u16| -> Result<Message> {
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        let mut out = Vec::new();
        ask(1, &Name::parse(name)?, kind, false, Some(Edns { size: 1232, signatures: false }), &mut out);
        socket.send_to(&out, "10.96.0.10:53").await?;
        let mut buffer = [0; 2048];
        let wait = std::time::Duration::from_secs(10);
        let length = clock.timeout(wait, socket.recv(&mut buffer)).await.context("no answer")??;
        Ok(read(&buffer[..length])?)
    };
    let slice = format!("kube-dns-{}", world.field(&["nodes"], "/items/0/metadata/name").await?);
    let slice = world.cluster.json(&["get", "-n", "kube-system", "endpointslice", &slice]).await?;
    // Made, and ready once: whoever keeps it does not write it again and again.
    ensure!(slice["metadata"]["generation"].as_i64().is_some_and(|n| n <= 2), "{slice}");
    let version = asked("dns-version.cluster.local", kind::TXT).await?;
    let text = version.answers.first().map(|record| &record.data);
    let Some(Data::Other { data, .. }) = text else { bail!("no version: {version:?}") };
    ensure!(&**data == b"\x051.1.0", "{data:?}");
    let none = asked("nope.default.svc.cluster.local", kind::A).await?;
    ensure!(none.code == rcode::NXDOMAIN && none.authority.len() == 1, "{none:?}");
    for (path, part) in
        [("ready", "OK"), ("metrics", "coredns_dns_requests_total{server=\"dns://:53\",zone=\"cluster.local.\"")]
    {
        let page = world.cluster.http_get(&format!("http://10.96.0.10:9153/{path}")).await?;
        ensure!(page.contains(part), "{path}: {page}");
    }
    Ok(())
}
