//! What a cluster of several nodes promises across them: NetworkPolicies of every form between pods of different
//! nodes, names from every node, load balancers from outside, while a node changes its address and another vanishes.
//! Every component of a node runs alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dns::wire::{Name, Query, Record, Reply, encode, kind, rcode};
use e2e::cluster::PATIENCE;
use e2e::images;
use e2e::nodes::{Nodes, Spec};
use futures::future::try_join_all;
use stdx::ClockExt;
use tokio::net::UdpSocket;

const BUSYBOX: &str = "pintle.invalid/busybox:1";
const GLIBC: &str = "pintle.invalid/glibc:1";
/// Where the page is served, by its name `http` at the first.
const PORTS: [&str; 3] = ["8080", "8081", "9000"];
/// Every one of them, and none.
const ALL: &str = "8080 8081 9000";
const NONE: &str = "";

fn pod(namespace: &str, name: &str, app: &str, node: &str, image: &str, script: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{app: {app}}}}}\n\
         spec:\n  nodeName: {node}\n  terminationGracePeriodSeconds: 0\n  containers:\n  - name: main\n    \
         image: {image}\n    command: [sh, -c, {script:?}]\n"
    )
}

/// Pods of three nodes, two namespaces, and a Service whose only pod is on the first node.
fn objects() -> String {
    let serve = "mkdir -p /w/cgi-bin; echo web > /w/index.html; printf '#!/bin/sh\\necho; echo $REMOTE_ADDR\\n' > /w/cgi-bin/who; \
                 chmod 755 /w/cgi-bin/who; cd /w/cgi-bin; for p in 8081 9000; do httpd -p $p -h /w; done; \
                 sleep 100000 | nc -l -p 7000 > /w/heard & exec httpd -f -p 8080 -h /w";
    let ports = "    ports: [{name: http, containerPort: 8080}]\n    readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}\n";
    let sleep = "exec sleep 100000";
    [
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: other, labels: {team: other}}\n".to_owned(),
        pod("default", "web", "web", "n1", BUSYBOX, serve) + ports,
        pod("default", "friend", "friend", "n2", BUSYBOX, sleep),
        pod("default", "stranger", "stranger", "n2", BUSYBOX, sleep),
        pod("default", "far", "friend", "f1", BUSYBOX, sleep),
        pod("other", "guest", "friend", "f1", BUSYBOX, sleep),
        pod("default", "glibc", "client", "f1", GLIBC, sleep),
        "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  selector: {app: web}\n  ports: [{name: http, port: 80, targetPort: http}]\n".to_owned(),
    ]
    .concat()
}

/// Who asks for the page, in which namespace: of the second node and of the one behind the router.
const CLIENTS: [(&str, &str); 4] =
    [("default", "friend"), ("default", "stranger"), ("default", "far"), ("other", "guest")];

struct World {
    nodes: Nodes,
    /// The address of the pod that serves.
    web: String,
}

impl World {
    async fn run(&self, (namespace, pod): (&str, &str), script: &str) -> Result<String> {
        let output =
            self.nodes.cluster.kubectl_output(&["exec", "-n", namespace, pod, "--", "sh", "-c", script]).await?;
        Ok(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
    }

    /// Of which ports each client gets the page, all asked at once.
    async fn reached(&self) -> Result<BTreeMap<&'static str, String>> {
        let ask = |client: (&'static str, &'static str)| async move {
            let one = format!("timeout 2 wget -q -O - http://{}:$p/ | grep -q web && echo $p", self.web);
            let script = format!("for p in {}; do ({one}) & done; wait", PORTS.join(" "));
            let said = self.run(client, &script).await?;
            let ports: BTreeSet<&str> = said.lines().filter(|line| PORTS.contains(line)).collect();
            Ok::<_, anyhow::Error>((client.1, ports.into_iter().collect::<Vec<_>>().join(" ")))
        };
        Ok(try_join_all(CLIENTS.map(ask)).await?.into_iter().collect())
    }

    /// It comes to be so that friend, stranger, far and guest get the page at these ports and no others.
    async fn get(&self, why: &str, wanted: [&str; 4]) -> Result<()> {
        let names = CLIENTS.map(|(_, pod)| pod);
        let wanted: BTreeMap<&str, String> = names.into_iter().zip(wanted.map(str::to_owned)).collect();
        let check = || async {
            let reached = self.reached().await?;
            ensure!(reached == wanted, "{reached:?}, not {wanted:?}");
            Ok(())
        };
        self.nodes.cluster.eventually(why, check).await
    }

    async fn apply(&self, policies: &[(&str, String)]) -> Result<()> {
        let one = |(name, spec): &(&str, String)| {
            format!(
                "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}}}\nspec: {spec}\n"
            )
        };
        self.nodes.cluster.apply(&policies.iter().map(one).collect::<String>()).await.map(drop)
    }

    async fn without_policies(&self) -> Result<()> {
        self.nodes.cluster.kubectl(&["delete", "networkpolicy", "--all"]).await.map(drop)
    }

    async fn field(&self, what: &str, path: &str) -> Result<String> {
        self.nodes.cluster.kubectl(&["get", what, "-o", &format!("jsonpath={{{path}}}")]).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_names_and_load_balancers_across_nodes() -> Result<()> {
    let upstream = outside().await?;
    let spec = |spec: Spec| Spec { kubelet: vec!["--cluster-dns=10.96.0.10".into()], ..spec };
    // Two nodes answer names; pods of the third ask these.
    let with_dns = |of: Spec| Spec { dns: Some(vec![format!("--dns-upstream={upstream}")]), ..spec(of) };
    let specs = [with_dns(Spec::near("n1", 1)), with_dns(Spec::near("n2", 2)), spec(Spec::far("f1", 1))];
    let nodes =
        Nodes::start(&[], &specs, &[(BUSYBOX, images::busybox(BUSYBOX)?), (GLIBC, images::glibc(GLIBC)?)]).await?;
    let mut world = World { nodes, web: String::new() };
    let result = journey(&mut world).await;
    let logs = world.nodes.nodes.iter().map(|node| world.nodes.logs(node)).collect::<String>();
    result.with_context(|| logs)
}

async fn journey(world: &mut World) -> Result<()> {
    let cluster = &world.nodes.cluster;
    let objects = objects();
    cluster.eventually("the objects are accepted", || cluster.apply(&objects)).await?;
    for namespace in ["default", "other"] {
        let wait = ["wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s", "-n", namespace];
        cluster.kubectl(&wait).await?;
    }
    world.web = world.field("pod/web", ".status.podIP").await?;
    policies_of_every_form(world).await.context("policies of every form")?;
    connections_that_are_there(world).await.context("connections that are there")?;
    names_from_every_node(world).await.context("names from every node")?;
    somebody_outside(world).await.context("somebody outside")?;
    a_node_moves(world).await.context("a node moves")?;
    a_node_vanishes(world).await.context("a node vanishes")
}

/// What is about to be tried: why, the policies, and what friend, stranger, far and guest get then.
type Row = (&'static str, Vec<(&'static str, String)>, [&'static str; 4]);

/// Every row of this table is judged at the page's node (ingress), or at the client's (egress), while the other end
/// is on another node.
fn rows(web: &str, friend: &str) -> Vec<Row> {
    let ingress = |rule: &str| format!("{{podSelector: {{matchLabels: {{app: web}}}}, ingress: [{rule}]}}");
    let egress = |rule: &str| {
        format!("{{podSelector: {{matchLabels: {{app: friend}}}}, policyTypes: [Egress], egress: [{rule}]}}")
    };
    let one = |name: &'static str, spec: String| vec![(name, spec)];
    let friends = "{podSelector: {matchLabels: {app: friend}}}";
    vec![
        ("nobody is let in", one("in", ingress("").replace(", ingress: []", "")), [NONE, NONE, NONE, NONE]),
        ("pods by labels", one("in", ingress(&format!("{{from: [{friends}]}}"))), [ALL, NONE, ALL, NONE]),
        (
            "pods by expressions",
            one(
                "in",
                ingress("{from: [{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [friend]}]}}]}"),
            ),
            [NONE, ALL, NONE, NONE],
        ),
        (
            "namespaces by labels",
            one("in", ingress("{from: [{namespaceSelector: {matchLabels: {team: other}}}]}")),
            [NONE, NONE, NONE, ALL],
        ),
        (
            "pods of namespaces",
            one("in", ingress("{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: friend}}}]}")),
            [ALL, NONE, ALL, ALL],
        ),
        (
            "networks but for a part of them",
            one("in", ingress(&format!("{{from: [{{ipBlock: {{cidr: 10.244.0.0/16, except: [{friend}/32]}}}}]}}"))),
            [NONE, ALL, ALL, ALL],
        ),
        (
            "peers of both kinds at one port",
            one(
                "in",
                ingress(&format!(
                    "{{from: [{friends}, {{namespaceSelector: {{matchLabels: {{team: other}}}}}}], ports: [{{port: 9000}}]}}"
                )),
            ),
            ["9000", NONE, "9000", "9000"],
        ),
        ("a port by its name", one("in", ingress("{ports: [{port: http}]}")), ["8080"; 4]),
        ("ports up to another", one("in", ingress("{ports: [{port: 8080, endPort: 8081}]}")), ["8080 8081"; 4]),
        ("ports of another protocol", one("in", ingress("{ports: [{protocol: UDP, port: 8080}]}")), [NONE; 4]),
        (
            "two policies let in what either does",
            vec![
                ("in", ingress("{from: [{podSelector: {matchLabels: {app: stranger}}}]}")),
                ("more", ingress(&format!("{{from: [{friends}], ports: [{{port: 8081}}]}}"))),
            ],
            ["8081", ALL, "8081", NONE],
        ),
        ("nobody is let out", one("out", egress("")), [NONE, ALL, NONE, ALL]),
        (
            "out to pods at a port that these name",
            one("out", egress("{to: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: http}]}")),
            ["8080", ALL, "8080", ALL],
        ),
        (
            "out to namespaces",
            one("out", egress("{to: [{namespaceSelector: {matchLabels: {team: other}}}]}")),
            [NONE, ALL, NONE, ALL],
        ),
        (
            "out to a network",
            one(
                "out",
                egress(&format!("{{to: [{{ipBlock: {{cidr: {web}/32}}}}], ports: [{{port: 8081, endPort: 9000}}]}}")),
            ),
            ["8081 9000", ALL, "8081 9000", ALL],
        ),
        (
            "out to a network but for a part of it",
            one("out", egress(&format!("{{to: [{{ipBlock: {{cidr: 10.244.0.0/16, except: [{web}/32]}}}}]}}"))),
            [NONE, ALL, NONE, ALL],
        ),
        (
            "both ends decide",
            vec![("in", ingress(&format!("{{from: [{friends}]}}"))), ("out", egress("{ports: [{port: 8081}]}"))],
            ["8081", NONE, "8081", NONE],
        ),
    ]
}

async fn policies_of_every_form(world: &World) -> Result<()> {
    world.get("without policies everybody gets it", [ALL; 4]).await?;
    let friend = world.field("pod/friend", ".status.podIP").await?;
    for (why, policies, wanted) in rows(&world.web, &friend) {
        world.apply(&policies).await.context(why)?;
        world.get(why, wanted).await?;
        let names: Vec<&str> = policies.iter().map(|(name, _)| *name).collect();
        world.nodes.cluster.kubectl(&[&["delete", "networkpolicy"], &names[..]].concat()).await?;
    }
    world.get("and again without them", [ALL; 4]).await
}

/// A connection from another node goes on under a policy that lets it, stands still under one that does not, and what
/// answers always passes.
async fn connections_that_are_there(world: &World) -> Result<()> {
    let heard = || async {
        let said = world.run(("default", "web"), "wc -l < /w/heard").await?;
        said.trim().parse::<u64>().with_context(|| said.clone())
    };
    let ticks = format!("(while sleep 0.1; do echo tick; done) | nc {} 7000", world.web);
    // What runs on holds none of the streams of the command that began it.
    let speak = format!("{{ {ticks}; }} > /dev/null 2>&1 < /dev/null & echo begun");
    ensure!(world.run(("default", "friend"), &speak).await?.contains("begun"));
    let goes_on = async |why: &str| -> Result<()> {
        let before = heard().await?;
        let check = || async {
            let now = heard().await?;
            ensure!(now > before + 3, "{now} after {before}");
            Ok(())
        };
        world.nodes.cluster.eventually(why, check).await
    };
    goes_on("it begins").await?;
    // The page's pod may begin nothing, and answers.
    let silent = "{podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]}".to_owned();
    world.apply(&[("silent", silent)]).await?;
    world.get("who may begin nothing answers", [ALL; 4]).await?;
    goes_on("what answers passes").await?;
    let web = |rule: &str| format!("{{podSelector: {{matchLabels: {{app: web}}}}, ingress: [{rule}]}}");
    let allowed = web("{from: [{podSelector: {matchLabels: {app: friend}}}], ports: [{port: 7000}]}");
    world.apply(&[("in", allowed)]).await?;
    world.get("only that port is let in", [NONE; 4]).await?;
    goes_on("it is let in").await?;
    world.apply(&[("in", web("").replace(", ingress: []", ""))]).await?;
    let stands_still = || async {
        let before = heard().await?;
        // As long as packets that are refused take.
        let reached = world.reached().await?;
        ensure!(reached.values().all(String::is_empty), "{reached:?}");
        let now = heard().await?;
        ensure!(now == before, "{now} after {before}");
        Ok(())
    };
    world.nodes.cluster.eventually("it stands still", stands_still).await?;
    world.without_policies().await?;
    goes_on("it goes on when it may again").await
}

/// A server of names outside of the cluster, which knows `*.outside.test`, for as long as the test runs.
async fn outside() -> Result<SocketAddr> {
    // The bridge of the nodes is not there yet.
    let socket = UdpSocket::bind("0.0.0.0:0").await?;
    let address = SocketAddr::new([10, 88, 0, 254].into(), socket.local_addr()?.port());
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

impl World {
    /// A command in a pod comes to print all of these.
    async fn says(&self, pod: &str, command: &str, parts: &[&str]) -> Result<()> {
        let check = || async {
            let text = self.run(("default", pod), command).await?;
            ensure!(parts.iter().all(|part| text.contains(part)), "not {parts:?}: {text}");
            Ok(())
        };
        self.nodes.cluster.eventually(&format!("{command} in {pod}"), check).await
    }
}

/// By the Service of the DNS, which leads to two nodes: from a pod beside one of them, and from pods of a node that
/// has none, by both resolvers.
async fn names_from_every_node(world: &World) -> Result<()> {
    let slices = || async {
        let selector = "-l=kubernetes.io/service-name=kube-dns";
        let slices = world.nodes.cluster.json(&["get", "endpointslices", "-n", "kube-system", selector]).await?;
        let items = slices["items"].as_array().context("a list")?;
        let ready = items.iter().filter(|slice| slice["endpoints"][0]["conditions"]["ready"] == true);
        let of: BTreeSet<&str> = ready.filter_map(|slice| slice["endpoints"][0]["nodeName"].as_str()).collect();
        ensure!(of == BTreeSet::from(["n1", "n2"]), "{slices}");
        Ok(())
    };
    world.nodes.cluster.eventually("two nodes answer", slices).await?;
    let service = world.field("service/web", ".spec.clusterIP").await?;
    let by_address = format!("{}.default.pod.cluster.local", world.web.replace('.', "-"));
    for (pod, command, parts) in [
        ("friend", "wget -q -O - http://web".to_owned(), vec!["web"]),
        ("far", "wget -q -O - http://web.default.svc".into(), vec!["web"]),
        ("friend", "nslookup web.default.svc.cluster.local".into(), vec![&*service]),
        ("far", "nslookup web.default.svc.cluster.local".into(), vec![&*service]),
        ("far", format!("nslookup {by_address}"), vec![&*world.web]),
        ("far", "nslookup www.outside.test".into(), vec!["192.0.2.7"]),
        ("far", "nslookup nobody.default.svc.cluster.local".into(), vec!["NXDOMAIN"]),
        ("far", "nslookup -type=srv _http._tcp.web.default.svc.cluster.local".into(), vec!["80 web.default.svc"]),
        ("glibc", "getent ahosts web".into(), vec![&*service]),
        ("glibc", "getent ahosts www.outside.test".into(), vec!["192.0.2.7"]),
        ("glibc", format!("getent hosts {service}"), vec!["web.default.svc.cluster.local"]),
    ] {
        world.says(pod, &command, &parts).await?;
    }
    // Whichever of both nodes is asked answers: fifty questions, of which none is lost.
    let script = "n=0; for i in $(seq 50); do getent ahosts web >/dev/null || n=$((n+1)); done; echo lost $n";
    world.says("glibc", script, &["lost 0\n"]).await?;
    // To policies the DNS is what it is upstream: port 53, pods with a label in a namespace.
    let out = |rule: &str| {
        format!("{{podSelector: {{matchLabels: {{app: friend}}}}, policyTypes: [Egress], egress: [{rule}]}}")
    };
    let lookup = "nslookup web.default.svc.cluster.local || echo refused";
    for (why, rule, finds) in [
        ("nothing is let out", "", false),
        ("one port is", "{ports: [{protocol: UDP, port: 53}]}", true),
        ("another port is", "{ports: [{protocol: UDP, port: 54}]}", false),
        ("the DNS is, by its labels and its port's name", NAMES, true),
    ] {
        world.apply(&[("names", out(rule))]).await?;
        world.get("names are all that is let out", [NONE, ALL, NONE, ALL]).await.context(why)?;
        for pod in ["friend", "far"] {
            let wanted = if finds { &*service } else { "refused" };
            world.says(pod, lookup, &[wanted]).await.context(why)?;
        }
    }
    world.without_policies().await
}

/// What everybody writes who lets pods ask for names.
const NAMES: &str = "{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{protocol: UDP, port: dns}, {protocol: TCP, port: dns-tcp}]}";

/// A load balancer is reached at every node, wherever its pod is, and at its pod's alone where the source is to be
/// kept; its ranges and policies see who is outside.
async fn somebody_outside(world: &World) -> Result<()> {
    let cluster = &world.nodes.cluster;
    let balancer = |policy: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: balanced}}\nspec:\n  type: LoadBalancer\n  \
             externalTrafficPolicy: {policy}\n  selector: {{app: web}}\n  ports: [{{port: 8088, targetPort: http}}]\n"
        )
    };
    cluster.apply(&balancer("Cluster")).await?;
    let addresses = |wanted: &'static [&'static str]| async move {
        let check = || async {
            let said = world.field("service/balanced", ".status.loadBalancer.ingress[*].ip").await?;
            let said: BTreeSet<&str> = said.split_whitespace().collect();
            ensure!(said == wanted.iter().copied().collect(), "{said:?}");
            Ok(())
        };
        cluster.eventually("the load balancer has addresses", check).await
    };
    let reached = |address: &'static str| async move {
        let check = || async {
            let page = world.nodes.get("out", &format!("http://{address}:8088/")).await?;
            ensure!(page.trim() == "web", "{page:?}");
            Ok(())
        };
        cluster.eventually(&format!("{address} leads to the page"), check).await
    };
    let refused = || async {
        ensure!(world.nodes.get("out", "http://10.88.0.1:8088/").await.is_err(), "it is reached");
        Ok(())
    };
    addresses(&["10.88.0.1", "10.88.0.2", "10.89.0.1"]).await?;
    for address in ["10.88.0.1", "10.88.0.2", "10.89.0.1"] {
        reached(address).await?;
    }
    cluster.apply(&balancer("Local")).await?;
    addresses(&["10.88.0.1"]).await?;
    reached("10.88.0.1").await?;
    let seen = || async {
        let seen = world.nodes.get("out", "http://10.88.0.1:8088/cgi-bin/who").await?;
        ensure!(seen.trim().trim_end_matches(']').ends_with("10.88.0.100"), "{seen:?}");
        Ok(())
    };
    cluster.eventually("who is outside is seen as they are", seen).await?;
    let block = |cidr: &str| {
        format!("{{podSelector: {{matchLabels: {{app: web}}}}, ingress: [{{from: [{{ipBlock: {{cidr: {cidr}}}}}]}}]}}")
    };
    world.apply(&[("outside", block("203.0.113.0/24"))]).await?;
    cluster.eventually("a policy keeps it out", refused).await?;
    world.apply(&[("outside", block("10.88.0.100/32"))]).await?;
    reached("10.88.0.1").await?;
    world.without_policies().await?;
    let ranges = |cidr: &str| format!("{{\"spec\":{{\"loadBalancerSourceRanges\":[\"{cidr}\"]}}}}");
    cluster.kubectl(&["patch", "service", "balanced", "-p", &ranges("203.0.113.0/24")]).await?;
    cluster.eventually("its ranges keep it out", refused).await?;
    cluster.kubectl(&["patch", "service", "balanced", "-p", &ranges("10.88.0.100/32")]).await?;
    reached("10.88.0.1").await?;
    cluster.apply(&balancer("Cluster")).await?;
    reached("10.89.0.1").await
}

/// A node with another address: pods, policies, names and load balancers go on.
async fn a_node_moves(world: &mut World) -> Result<()> {
    let deny = "{podSelector: {matchLabels: {app: friend}}, policyTypes: [Egress], egress: [{ports: [{port: 8081}]}]}";
    world.apply(&[("out", deny.to_owned())]).await?;
    world.get("only that port", ["8081", ALL, "8081", ALL]).await?;
    world.nodes.readdress("n2", 22).await?;
    world.get("the policy holds, and pods are reached", ["8081", ALL, "8081", ALL]).await?;
    world.without_policies().await?;
    world.get("policies change on the node that moved", [ALL; 4]).await?;
    let slice = || async {
        let path = ".endpoints[0].addresses[0]";
        let args = ["get", "-n", "kube-system", "endpointslice/kube-dns-n2", "-o", &format!("jsonpath={{{path}}}")];
        let address = world.nodes.cluster.kubectl(&args).await?;
        ensure!(address == "10.88.0.22", "{address}");
        Ok(())
    };
    world.nodes.cluster.eventually("its names are asked for at its new address", slice).await?;
    world.says("far", "nslookup web.default.svc.cluster.local", &["Name:"]).await?;
    let reached = || async {
        let page = world.nodes.get("out", "http://10.88.0.22:8088/").await?;
        ensure!(page.trim() == "web", "{page:?}");
        Ok(())
    };
    world.nodes.cluster.eventually("the load balancer is at its new address", reached).await
}

/// A node that vanishes with its DNS: nobody is led there for longer than it takes to miss it.
async fn a_node_vanishes(world: &mut World) -> Result<()> {
    world.nodes.kill("n2").await?;
    // Its Lease has to run out first, and then nobody goes there again.
    let (clock, begun) = (world.nodes.clock().clone(), world.nodes.clock().now());
    let script =
        "n=0; for i in $(seq 20); do busybox timeout 2 getent ahosts web >/dev/null || n=$((n+1)); done; echo lost $n";
    loop {
        let said = world.run(("default", "glibc"), script).await?;
        if said.contains("lost 0\n") {
            break;
        }
        ensure!(clock.now().since(begun) < PATIENCE * 2, "names are lost for ever: {said}");
        clock.sleep(Duration::from_millis(200)).await;
    }
    for url in ["http://10.88.0.1:8088/", "http://10.89.0.1:8088/"] {
        let page = world.nodes.get("out", url).await?;
        ensure!(page.trim() == "web", "{url}: {page:?}");
    }
    let addresses = || async {
        let said = world.field("service/balanced", ".status.loadBalancer.ingress[*].ip").await?;
        ensure!(
            said.split_whitespace().collect::<BTreeSet<_>>() == BTreeSet::from(["10.88.0.1", "10.89.0.1"]),
            "{said}"
        );
        Ok(())
    };
    world.nodes.cluster.eventually("the load balancer is where nodes are", addresses).await?;
    // Policies of who is left are carried out.
    let deny = "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}".to_owned();
    world.apply(&[("in", deny)]).await?;
    let page = format!("timeout 2 wget -q -O - http://{}:8080/ || echo refused", world.web);
    world.says("far", &page, &["refused"]).await?;
    world.without_policies().await?;
    world.says("far", &page, &["web"]).await
}
