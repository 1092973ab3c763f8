//! What the host lacks, found and said before anything is changed.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use net::nft;
use net::rtnl::Rtnl;
use net::rtnl::route::PROTOCOL;
use stdx::SharedClock;

use crate::forwarding::{self, Dropping};
use crate::routes::{self, Route};
use crate::{cni, reset, sysctl};

/// One thing that is missing, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub what: String,
    pub mend: String,
}

/// What was seen of the host. Looking is [`look`]; judging is [`judge`], which is pure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub is_root: bool,
    /// Programs that were looked for and not found.
    pub missing_programs: Vec<String>,
    /// Ports wanted for listening that another process has, with what for.
    pub ports_in_use: Vec<(SocketAddr, String)>,
    /// Why the kernel refuses a small nftables ruleset (checked without applying it).
    pub nftables_refused: Option<String>,
    /// `overlay` is among the file systems the kernel knows.
    pub overlay: bool,
    /// cgroup hierarchies are mounted.
    pub cgroups: bool,
    /// The container runtime of others that was named, and why it does not answer.
    pub runtime_silent: Option<(String, String)>,
    /// Addresses of the pod network that lead to somebody else's pods.
    pub foreign_routes: Vec<Route>,
    /// Ranges of the cluster that overlap what is this host's or its networks': the flag that names the range,
    /// the range, and what it overlaps.
    pub overlaps: Vec<(&'static str, IpNet, String)>,
    /// The cluster is there already: it has run with what is found, and does not stop for what it cannot change.
    pub is_known: bool,
    /// Firewalls that would drop packets of pods.
    pub dropping: Vec<Dropping>,
    /// Kernel settings that are to be changed and cannot be, and why.
    pub fixed_settings: Vec<(&'static str, String)>,
    /// Kinds of links that the kernel does not have.
    pub missing_links: Vec<&'static str>,
    /// How many files a process may have open at most, where that is too few.
    pub few_files: Option<u64>,
}

/// What to look for.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub programs: Vec<&'static str>,
    pub ports: Vec<(SocketAddr, String)>,
    /// The service proxy will run.
    pub nftables: bool,
    /// Containers will run.
    pub containers: bool,
    /// The container runtime of others that is to be used.
    pub runtime_endpoint: Option<String>,
    /// The addresses that pods will get, and where the plugin that gives them out keeps its records.
    pub pod_network: Option<(Vec<IpNet>, PathBuf)>,
    /// There is a cluster already.
    pub is_known: bool,
    /// The ranges of the cluster, with the flags that name them.
    pub ranges: Vec<(&'static str, IpNet)>,
    /// Kernel settings that are to be changed: names and values.
    pub settings: Vec<(&'static str, &'static str)>,
}

/// Fewer open files than this let no runtime and no API server run.
const FILES: u64 = 1024;

/// Kinds of links that pods need.
const LINKS: [&str; 1] = ["veth"];

/// What of this host's addresses and routes a range of the cluster overlaps. Routes to single addresses are
/// pods', which are looked at apart; those of ours are no others'.
fn overlaps(ranges: &[(&'static str, IpNet)]) -> std::io::Result<Vec<(&'static str, IpNet, String)>> {
    let rtnl = Rtnl::open()?;
    let links = rtnl.links()?;
    let name = |index: u32| links.iter().find(|l| l.index == index).map_or("", |l| l.name.as_str());
    let mut taken = Vec::new();
    for address in rtnl.addresses()?.iter().filter(|a| a.global && !is_ours(name(a.link))) {
        taken.push((address.net.trunc(), format!("the address {} of {}", address.net, name(address.link))));
    }
    for route in rtnl.routes()? {
        let single = route.destination.prefix_len() == route.destination.max_prefix_len();
        if single
            || route.destination.prefix_len() == 0
            || route.leads_to_node(PROTOCOL, None)
            || is_ours(name(route.link))
        {
            continue;
        }
        taken.push((route.destination, format!("the route to {} by {}", route.destination, name(route.link))));
    }
    Ok(judge_overlaps(ranges, &taken))
}

/// Pods' links, and the device to other nodes.
fn is_ours(link: &str) -> bool {
    link.starts_with("veth") || link == reset::DEVICE
}

fn judge_overlaps(ranges: &[(&'static str, IpNet)], taken: &[(IpNet, String)]) -> Vec<(&'static str, IpNet, String)> {
    let overlap = |a: &IpNet, b: &IpNet| a.contains(&b.network()) || b.contains(&a.network());
    let mut out: Vec<(&'static str, IpNet, String)> = Vec::new();
    for (at, (flag, range)) in ranges.iter().enumerate() {
        let other = ranges[..at].iter().find(|(_, o)| overlap(range, o));
        let other = other.map(|(flag, other)| format!("the range {other} of {flag}"));
        // An address is told before the route that comes with it.
        let found = other.or_else(|| taken.iter().find(|(net, _)| overlap(range, net)).map(|(_, what)| what.clone()));
        out.extend(found.map(|what| (*flag, *range, what)));
    }
    out
}

/// The flag that names where pods' addresses come from.
pub const POD_RANGE: &str = "--cluster-cidr";
/// And Services'.
pub const SERVICE_RANGE: &str = "--service-cluster-ip-range";

/// Every folder programs are looked for in: what PATH says and the system folders.
fn find_program(name: &str, path: &str) -> Option<PathBuf> {
    path.split(':')
        .chain(["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/bin"])
        .map(|folder| Path::new(folder).join(name))
        .find(|p| p.is_file())
}

/// The first of `names` that is installed: which OCI runtime to use.
pub fn first_program(names: &[&'static str], path: &str) -> Option<&'static str> {
    names.iter().copied().find(|name| find_program(name, path).is_some())
}

/// The OCI runtime to use: crun, which starts containers in half the time, unless this is a hybrid
/// host (cgroups of both versions, with controllers on version 2), which crun refuses.
pub fn oci_runtime(path: &str) -> Option<&'static str> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let preferred: &[&str] = if crun_refuses(&mounts, |p| fs::read_to_string(p).unwrap_or_default()) {
        &["runc"]
    } else {
        &["crun", "runc"]
    };
    first_program(preferred, path)
}

fn crun_refuses(mountinfo: &str, read: impl Fn(&Path) -> String) -> bool {
    let of_kind = |kind: &str| {
        let wanted = format!(" - {kind} ");
        mountinfo.lines().find(|l| l.contains(&wanted)).and_then(|l| l.split(' ').nth(4)).map(PathBuf::from)
    };
    match (of_kind("cgroup"), of_kind("cgroup2")) {
        (Some(_), Some(unified)) => !read(&unified.join("cgroup.controllers")).trim().is_empty(),
        _ => false,
    }
}

/// How long a runtime may take to say who it is.
const ANSWER: Duration = Duration::from_secs(5);

/// Why the container runtime at `endpoint` cannot be used; `None` when it answers.
pub async fn ask_runtime(endpoint: &str, clock: &SharedClock) -> Option<String> {
    let dialled = cri::Client::new(endpoint, clock.clone()).and_then(|c| Ok((c, cri::socket_path(endpoint)?)));
    let (client, path) = match dialled {
        Ok(dialled) => dialled,
        Err(error) => return Some(error.to_string()),
    };
    if let Err(error) = tokio::net::UnixStream::connect(&path).await {
        let path = path.display();
        return Some(match error.kind() {
            ErrorKind::NotFound => format!("there is no socket {path}"),
            ErrorKind::ConnectionRefused => format!("nobody listens on {path}"),
            _ => format!("{path}: {error}"),
        });
    }
    let client = client.with_limits(cri::Limits { short: ANSWER, ..cri::Limits::default() });
    match client.version().await {
        Ok(_) => None,
        Err(cri::Error::DeadlineExceeded(_)) => Some(format!("no answer within {} s", ANSWER.as_secs())),
        Err(error) => Some(error.to_string()),
    }
}

/// What to do about a runtime that does not answer.
pub fn silent_runtime(endpoint: &str, why: &str) -> Problem {
    Problem {
        what: format!("the container runtime {endpoint} does not answer: {why}"),
        mend: "start it (systemctl start containerd, with its CRI plugin enabled), or name its socket with \
               --container-runtime-endpoint=unix:///path"
            .into(),
    }
}

/// Looks at the host and changes nothing.
pub async fn look(wanted: &Wanted, path: &str, clock: &SharedClock) -> Facts {
    let missing_programs: Vec<String> =
        wanted.programs.iter().filter(|p| find_program(p, path).is_none()).map(ToString::to_string).collect();
    let ports_in_use =
        wanted.ports.iter().filter(|(address, _)| std::net::TcpListener::bind(address).is_err()).cloned().collect();
    let is_root = rustix::process::geteuid().is_root();
    // The kernel refuses everybody but root; that says nothing about the kernel.
    let check = wanted.nftables && is_root && !missing_programs.iter().any(|p| p == "nft");
    let nftables_refused = if check { nft::run(PROBE, nft::Mode::Check).err().map(|e| e.to_string()) } else { None };
    let overlay = fs::read_to_string("/proc/filesystems").is_ok_and(|t| t.lines().any(|l| l.ends_with("overlay")));
    let cgroups = fs::read_to_string("/proc/self/mountinfo").is_ok_and(|t| t.contains(" - cgroup"));
    let runtime_silent = match &wanted.runtime_endpoint {
        Some(endpoint) => ask_runtime(endpoint, clock).await.map(|why| (endpoint.clone(), why)),
        None => None,
    };
    // With records there are pods of our own, and one that is half gone may have a route without its record.
    let fresh = wanted.pod_network.as_ref().filter(|(_, state)| !state.join(cni::NETWORK).exists());
    let foreign_routes =
        fresh.map(|(ranges, state)| ranges.iter().flat_map(|range| routes::foreign(*range, state)).collect());
    let foreign_routes = foreign_routes.unwrap_or_default();
    let of_pods = wanted.ranges.iter().filter(|(flag, _)| *flag == POD_RANGE).map(|(_, range)| *range);
    let missing_links = match Rtnl::open() {
        Ok(rtnl) if is_root && wanted.containers => {
            LINKS.into_iter().filter(|kind| matches!(rtnl.knows_kind(kind), Ok(false))).collect()
        }
        _ => Vec::new(),
    };
    Facts {
        is_root,
        is_known: wanted.is_known,
        overlaps: overlaps(&wanted.ranges).unwrap_or_default(),
        dropping: if is_root { forwarding::look(&of_pods.collect::<Vec<_>>()) } else { Vec::new() },
        fixed_settings: if is_root { sysctl::fixed(&wanted.settings) } else { Vec::new() },
        missing_links,
        few_files: rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.filter(|most| *most < FILES),
        runtime_silent,
        foreign_routes,
        missing_programs,
        ports_in_use,
        nftables_refused,
        overlay: overlay || !wanted.containers,
        cgroups: cgroups || !wanted.containers,
    }
}

/// Rules with everything that those of Services need.
const PROBE: &str = "table ip pintle-check {\n\tmap m {\n\t\ttype ipv4_addr . inet_proto . inet_service : verdict\n\t}\n\
    \tchain c {\n\t\ttype nat hook output priority -100\n\t\tip daddr . meta l4proto . th dport vmap @m\n\t}\n}\n";

/// The packages of Debian and its kin that bring a program.
fn package(program: &str) -> &str {
    match program {
        "nft" => "nftables",
        "containerd" | "ctr" => "containerd",
        "setsid" => "util-linux",
        other => other,
    }
}

/// What networks and firewalls of this host may do to pods, and whether it is certain that they do.
fn of_networks(facts: &Facts) -> Vec<(Problem, bool)> {
    let overlaps = facts.overlaps.iter().map(|(flag, range, what)| Problem {
        what: format!("the range {range} of {flag} overlaps {what}: whatever is there could not be reached"),
        mend: format!("choose another range with {flag}"),
    });
    let dropping = facts.dropping.iter().map(|Dropping { chain, mend, is_certain }| {
        let what = if *is_certain {
            format!("{chain} drops what it does not name, and so what pods send")
        } else {
            format!("{chain} drops what no rule lets pass, and none names the pods' addresses")
        };
        (Problem { what, mend: mend.clone() }, *is_certain)
    });
    overlaps.map(|problem| (problem, true)).chain(dropping).collect()
}

/// What is told and hinders nothing: what is not certain, and what an existing cluster has run with.
pub fn warnings(facts: &Facts) -> Vec<Problem> {
    let all = of_networks(facts).into_iter();
    all.filter(|(_, is_certain)| facts.is_known || !is_certain).map(|(problem, _)| problem).collect()
}

/// Everything that stands in the way, worst first.
pub fn judge(facts: &Facts) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |what: String, mend: String| problems.push(Problem { what, mend });
    if !facts.is_root {
        add(
            "pintle up needs root: it makes network namespaces, cgroups and firewall rules".into(),
            "run it with sudo".into(),
        );
    }
    for program in &facts.missing_programs {
        add(format!("{program} is not installed"), format!("apt-get install {}", package(program)));
    }
    for (address, what) in &facts.ports_in_use {
        add(
            format!("{address} is in use; the {what} needs it"),
            format!("stop what listens there (ss -ltnp 'sport = :{}') or choose another port", address.port()),
        );
    }
    if let Some(why) = &facts.nftables_refused {
        add(
            format!("the kernel refuses nftables rules: {why}"),
            "use a kernel with nf_tables and nft_nat (5.13 or newer)".into(),
        );
    }
    if let Some((endpoint, why)) = &facts.runtime_silent {
        let Problem { what, mend } = silent_runtime(endpoint, why);
        add(what, mend);
    }
    if let Some(route) = facts.foreign_routes.first() {
        let others = match facts.foreign_routes.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        add(
            format!(
                "the link {} has {}{others}, which is an address of the pod network: pods of another cluster are on \
                 this host, and new pods with their addresses would not be reached",
                route.link, route.address
            ),
            format!(
                "end that cluster's pods (pintle reset with the folders it was started with), delete what is left of \
                 them (ip link delete {}), or choose another network with --cluster-cidr",
                route.link
            ),
        );
    }
    for (problem, is_certain) in of_networks(facts) {
        if is_certain && !facts.is_known {
            add(problem.what, problem.mend);
        }
    }
    for (name, why) in &facts.fixed_settings {
        add(
            format!("the kernel setting {name} is to be changed and cannot be: {why}"),
            "mount /proc/sys writable (a container needs --privileged), or set it before".into(),
        );
    }
    for kind in &facts.missing_links {
        add(
            format!("the kernel has no {kind} links, by which pods reach the network"),
            format!("modprobe {kind}, or use a kernel with CONFIG_{}", kind.to_uppercase()),
        );
    }
    if let Some(most) = facts.few_files {
        add(
            format!("a process may have {most} files open at most, which is too few"),
            format!("raise the limit (ulimit -n {FILES}, LimitNOFILE= of systemd)"),
        );
    }
    if !facts.overlay {
        add(
            "the kernel has no overlay file system".into(),
            "modprobe overlay, or use a kernel with CONFIG_OVERLAY_FS".into(),
        );
    }
    if !facts.cgroups {
        add("no cgroup hierarchy is mounted".into(), "mount -t cgroup2 none /sys/fs/cgroup".into());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crun_is_not_used_where_it_would_refuse() {
        let v1 = "30 1 0:20 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let v2 = "31 1 0:21 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let controllers = |text: &'static str| move |_: &Path| text.to_owned();
        assert!(crun_refuses(&format!("{v1}{v2}"), controllers("hugetlb\n")));
        assert!(!crun_refuses(&format!("{v1}{v2}"), controllers("\n")));
        assert!(!crun_refuses(v2, controllers("cpu memory\n")));
        assert!(!crun_refuses(v1, controllers("")));
    }

    #[test]
    fn a_fit_host_has_no_problems_and_each_lack_is_named_with_its_mend() {
        let fit = Facts { is_root: true, overlay: true, cgroups: true, ..Facts::default() };
        assert_eq!(judge(&fit), []);
        let address: SocketAddr = "127.0.0.1:6443".parse().expect("an address");
        let bad = Facts {
            is_root: false,
            missing_programs: vec!["nft".into()],
            ports_in_use: vec![(address, "API server".into())],
            nftables_refused: Some("Operation not supported".into()),
            overlay: false,
            cgroups: false,
            runtime_silent: Some(("unix:///x.sock".into(), "there is no socket /x.sock".into())),
            foreign_routes: vec![
                Route { link: "veth1".into(), address: [10, 244, 0, 2].into() },
                Route { link: "veth2".into(), address: [10, 244, 0, 3].into() },
            ],
            overlaps: vec![(POD_RANGE, range("10.0.0.0/8"), "the address 10.0.0.5/24 of eth0".into())],
            dropping: vec![Dropping {
                chain: "the chain FORWARD".into(),
                mend: "nft insert rule".into(),
                is_certain: true,
            }],
            is_known: false,
            fixed_settings: vec![("net.ipv4.ip_forward", "Read-only file system".into())],
            missing_links: vec!["veth"],
            few_files: Some(256),
        };
        let problems = judge(&bad);
        assert_eq!((problems.len(), warnings(&bad)), (13, vec![]));
        // A cluster that is there already is not stopped by what it has run with.
        let known = Facts { is_known: true, ..bad.clone() };
        assert_eq!((judge(&known).len(), warnings(&known).len()), (11, 2));
        assert!(warnings(&known)[0].what.starts_with("the range 10.0.0.0/8"), "{:?}", warnings(&known));
        // Nor is a new one by a firewall that may let pods pass.
        let mut perhaps = bad.clone();
        perhaps.dropping[0].is_certain = false;
        assert_eq!((judge(&perhaps).len(), warnings(&perhaps).len()), (12, 1));
        assert!(problems[5].what.starts_with("the link veth1 has 10.244.0.2 (and 1 more), which is"), "{problems:?}");
        assert!(problems[5].mend.contains("ip link delete veth1"), "{problems:?}");
        assert_eq!(problems[1].mend, "apt-get install nftables");
        assert_eq!(problems[2].what, "127.0.0.1:6443 is in use; the API server needs it");
        assert_eq!(problems[6].mend, "choose another range with --cluster-cidr");
        let silent = "the container runtime unix:///x.sock does not answer: there is no socket /x.sock";
        assert_eq!(problems[4].what, silent);
    }

    fn range(text: &str) -> IpNet {
        text.parse().expect("a range")
    }

    #[test]
    fn ranges_that_are_somebodys_are_found() {
        let taken = [
            (range("192.168.1.0/24"), "the address 192.168.1.5/24 of eth0".to_owned()),
            (range("10.96.7.0/24"), "the route to 10.96.7.0/24 by tun0".to_owned()),
        ];
        let of = |pods: &str, services: &str| {
            let found = judge_overlaps(&[(POD_RANGE, range(pods)), (SERVICE_RANGE, range(services))], &taken);
            found.into_iter().map(|(flag, _, what)| format!("{flag}: {what}")).collect::<Vec<_>>()
        };
        assert_eq!(of("10.244.0.0/16", "10.97.0.0/16"), [""; 0]);
        assert_eq!(of("192.168.0.0/16", "10.97.0.0/16"), ["--cluster-cidr: the address 192.168.1.5/24 of eth0"]);
        assert_eq!(
            of("10.244.0.0/16", "10.96.0.0/12"),
            ["--service-cluster-ip-range: the route to 10.96.7.0/24 by tun0"]
        );
        let both = of("10.244.0.0/16", "10.244.8.0/24");
        assert_eq!(both, ["--service-cluster-ip-range: the range 10.244.0.0/16 of --cluster-cidr"]);
    }

    #[tokio::test]
    async fn a_runtime_that_is_not_there_or_says_nothing_is_named() {
        let clock = stdx::clock::RealClock::shared();
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("x.sock");
        let endpoint = format!("unix://{}", path.display());
        let said = ask_runtime(&endpoint, &clock).await.expect("not there");
        assert_eq!(said, format!("there is no socket {}", path.display()));
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        let said = ask_runtime(&endpoint, &clock).await.expect("nobody there");
        assert_eq!(said, format!("nobody listens on {}", path.display()));
        // Somebody takes the connection and hangs up: no runtime.
        std::fs::remove_file(&path).expect("removed");
        let listener = tokio::net::UnixListener::bind(&path).expect("bound");
        let other = tokio::spawn(async move {
            loop {
                drop(listener.accept().await);
            }
        });
        assert!(ask_runtime(&endpoint, &clock).await.is_some());
        other.abort();
        assert!(ask_runtime("nonsense", &clock).await.is_some());
    }
}
