//! Which servers know a name: those of its stub domain, or those of the host.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use stdx::clock::Instant;

use super::resolv_conf;
use crate::wire::Name;

/// Failures in a row after which a server is asked nothing but whether it is back.
const FAILURES: u32 = 2;
/// How long the file is believed to be as it was.
const FRESH: Duration = Duration::from_secs(1);
/// Bytes of the file that are read.
const LONGEST: u64 = 64 * 1024;

/// A server, and how it is.
#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    /// Probes in a row that failed.
    failures: AtomicU32,
    /// A question got no answer: a probe is to say whether the server is there.
    pub(super) suspect: AtomicBool,
    /// The name that it was asked for to see whether it asks us; when; and whether the name came here.
    pub(super) probe: Mutex<Probe>,
    pub(super) loops: AtomicBool,
}

/// How it was found out whether a server asks us.
#[derive(Debug, Default)]
pub(super) struct Probe {
    pub name: Option<Name>,
    at: Option<Instant>,
    came: bool,
}

/// How often it is found out whether a server asks us: its settings change, and so does what leads questions here.
const LOOPS: Duration = Duration::from_secs(60);

impl Server {
    fn new(address: SocketAddr) -> Arc<Self> {
        let (failures, suspect, loops) = (AtomicU32::new(0), AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { address, failures, suspect, probe: Mutex::default(), loops })
    }

    /// May it be asked?
    pub fn is_up(&self) -> bool {
        !self.is_down() && !self.loops.load(Ordering::Relaxed)
    }

    /// It has failed too often.
    pub fn is_down(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES
    }

    /// How long until it is to be found out whether it asks us.
    pub(super) fn unproved_in(&self, now: Instant) -> Duration {
        self.probe.lock().at.map_or(Duration::ZERO, |at| LOOPS.saturating_sub(now.since(at)))
    }

    /// It is to be found out anew.
    pub(super) fn is_unproved(&self) {
        self.probe.lock().at = None;
    }

    /// It is asked for that name.
    pub(super) fn begin_proof(&self, name: Name, now: Instant) {
        *self.probe.lock() = Probe { name: Some(name), at: Some(now), came: false };
    }

    /// Somebody asks us for that name: true when that was this server's.
    pub(super) fn is_found_out(&self, name: &Name) -> bool {
        let mut probe = self.probe.lock();
        let is_own = probe.name.as_ref() == Some(name);
        probe.came |= is_own;
        is_own
    }

    /// It has answered, and is asked again when the name has not come here meanwhile; true when that is new.
    pub(super) fn end_proof(&self) -> bool {
        !self.probe.lock().came && self.loops.swap(false, Ordering::Relaxed)
    }

    /// It has answered. One that comes back may be another one: true when it was down.
    pub(super) fn answered(&self) -> bool {
        self.suspect.store(false, Ordering::Relaxed);
        let is_back = self.failures.swap(0, Ordering::Relaxed) >= FAILURES;
        if is_back {
            self.is_unproved();
        }
        is_back
    }

    /// It asks us: it is not asked.
    pub(super) fn is_looping(&self) -> bool {
        self.loops.load(Ordering::Relaxed)
    }

    /// A probe is to say whether it is there.
    pub(super) fn is_to_be_probed(&self) -> bool {
        self.is_down() || self.suspect.load(Ordering::Relaxed)
    }

    /// It has not; true when it counts as down from now on.
    pub(super) fn failed(&self) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1) == FAILURES
    }
}

/// Servers by the names they know.
#[derive(Debug, Default)]
pub struct Routes {
    usual: Vec<Arc<Server>>,
    /// The longest domain first.
    stubs: Vec<(Name, Vec<Arc<Server>>)>,
}

impl Routes {
    /// Routes to these servers; those that are among `before` keep their state.
    pub fn new(usual: &[SocketAddr], stubs: &BTreeMap<String, Vec<SocketAddr>>, before: &Routes) -> Self {
        let known = |address: &SocketAddr| {
            let known = before.all().find(|server| server.address == *address).cloned();
            known.unwrap_or_else(|| Server::new(*address))
        };
        let servers = |addresses: &[SocketAddr]| addresses.iter().map(known).collect();
        let mut stubs: Vec<(Name, Vec<Arc<Server>>)> =
            stubs.iter().filter_map(|(domain, to)| Some((Name::parse(domain).ok()?, servers(to)))).collect();
        stubs.sort_by_key(|(domain, _)| std::cmp::Reverse(domain.bytes().len()));
        Self { usual: servers(usual), stubs }
    }

    /// Who knows a name.
    pub fn servers(&self, name: &Name) -> &[Arc<Server>] {
        self.stubs.iter().find(|(domain, _)| name.is_within(domain)).map_or(&self.usual, |(_, servers)| servers)
    }

    /// Every server there is.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.usual.iter().chain(self.stubs.iter().flat_map(|(_, servers)| servers))
    }
}

/// Where servers are read from.
pub struct Source {
    /// Instead of the file, when there are any.
    upstreams: Vec<SocketAddr>,
    stubs: BTreeMap<String, Vec<SocketAddr>>,
    resolv_conf: PathBuf,
    /// Addresses at which we are reached ourselves.
    own: Box<dyn Fn() -> Vec<SocketAddr> + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    routes: Arc<Routes>,
    looked: Option<Instant>,
    /// The file as it was read: its time, and what it said.
    stamp: Option<SystemTime>,
    servers: Option<Vec<SocketAddr>>,
}

impl Source {
    /// Servers that are told, or those of the file; never ourselves.
    pub fn new(
        upstreams: Vec<SocketAddr>,
        stubs: BTreeMap<String, Vec<SocketAddr>>,
        resolv_conf: PathBuf,
        own: impl Fn() -> Vec<SocketAddr> + Send + Sync + 'static,
    ) -> Self {
        Self { upstreams, stubs, resolv_conf, own: Box::new(own), state: Mutex::default() }
    }

    /// The routes as they are now; true when they have changed. The file is looked at when somebody asks, and
    /// not every time.
    pub fn routes(&self, now: Instant) -> (Arc<Routes>, bool) {
        let mut state = self.state.lock();
        let is_fresh = state.looked.is_some_and(|at| now.since(at) < FRESH);
        let is_told = !self.upstreams.is_empty() && state.servers.is_some();
        if is_fresh || is_told {
            return (state.routes.clone(), false);
        }
        state.looked = Some(now);
        let servers = if self.upstreams.is_empty() { self.file(&mut state) } else { Some(self.upstreams.clone()) };
        // A file that cannot be read now changes nothing.
        let servers = match servers {
            Some(servers) => servers,
            // Stub domains need no file.
            None if state.servers.is_none() => Vec::new(),
            None => return (state.routes.clone(), false),
        };
        let own = (self.own)();
        let is_other = |server: &SocketAddr| !own.contains(server);
        let servers: Vec<SocketAddr> = servers.into_iter().filter(is_other).collect();
        if state.servers.as_ref() == Some(&servers) {
            return (state.routes.clone(), false);
        }
        let stubs =
            self.stubs.iter().map(|(domain, to)| (domain.clone(), to.iter().copied().filter(is_other).collect()));
        state.routes = Arc::new(Routes::new(&servers, &stubs.collect(), &state.routes));
        tracing::info!(?servers, "servers for other names");
        state.servers = Some(servers);
        (state.routes.clone(), true)
    }

    /// What the file says now; `None` when it says what it said, or nothing can be read.
    fn file(&self, state: &mut State) -> Option<Vec<SocketAddr>> {
        use std::io::Read;
        let stamp = std::fs::metadata(&self.resolv_conf).and_then(|meta| meta.modified());
        let stamp = match stamp {
            Ok(stamp) => stamp,
            Err(error) => {
                tracing::debug!(path = %self.resolv_conf.display(), %error, "no servers can be read");
                return None;
            }
        };
        if state.stamp == Some(stamp) {
            return None;
        }
        let mut text = String::new();
        let read = std::fs::File::open(&self.resolv_conf).and_then(|file| file.take(LONGEST).read_to_string(&mut text));
        if let Err(error) = read {
            tracing::debug!(path = %self.resolv_conf.display(), %error, "no servers can be read");
            return None;
        }
        state.stamp = Some(stamp);
        Some(resolv_conf::nameservers(&text))
    }
}

/// Servers as users write them: an address, or one with a port.
///
/// # Errors
/// Names what is none.
pub fn parse_server(text: &str) -> Result<SocketAddr, String> {
    let alone = || text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53));
    text.parse().or_else(|_| alone()).map_err(|_| format!("{text:?} is no address, and no address and port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        parse_server(text).expect("an address")
    }

    #[test]
    fn the_longest_domain_knows() {
        let stubs = [("example.org", "10.0.0.1"), ("a.example.org.", "10.0.0.2:5353")];
        let stubs = stubs.into_iter().map(|(domain, to)| (domain.to_owned(), vec![address(to)])).collect();
        let routes = Routes::new(&[address("10.0.0.3")], &stubs, &Routes::default());
        for (name, want) in [
            ("example.org", "10.0.0.1:53"),
            ("b.EXAMPLE.org", "10.0.0.1:53"),
            ("x.a.example.org", "10.0.0.2:5353"),
            ("xexample.org", "10.0.0.3:53"),
            ("org", "10.0.0.3:53"),
        ] {
            let found = routes.servers(&Name::parse(name).expect("a name"));
            assert_eq!(found.iter().map(|s| s.address.to_string()).collect::<Vec<_>>(), [want], "{name}");
        }
    }

    #[test]
    fn the_file_is_read_again_when_it_has_changed_and_never_names_ourselves() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("resolv.conf");
        let source =
            Source::new(Vec::new(), BTreeMap::new(), path.clone(), || vec![address("10.0.0.9"), address("10.0.0.10")]);
        let at = |second| Instant(Duration::from_secs(second));
        let shown = |second| {
            let (routes, is_new) = source.routes(at(second));
            (routes.all().map(|s| s.address.ip().to_string()).collect::<Vec<_>>().join(" "), is_new)
        };
        assert_eq!(shown(0), (String::new(), true), "there is no file");
        let write = |text: &str, stamp: u64| {
            let mut file = std::fs::File::create(&path).expect("a file");
            std::io::Write::write_all(&mut file, text.as_bytes()).expect("written");
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(stamp)).expect("a time");
        };
        write("nameserver 10.0.0.1\nnameserver 10.0.0.9\n", 1);
        assert_eq!(shown(0), (String::new(), false), "not looked at yet");
        assert_eq!(shown(2), ("10.0.0.1".into(), true));
        let (routes, _) = source.routes(at(2));
        routes.all().for_each(|server| assert!(!server.failed() && server.failed() && server.is_down()));
        write("nameserver 10.0.0.2\nnameserver 10.0.0.1\n", 2);
        assert_eq!(shown(4), ("10.0.0.2 10.0.0.1".into(), true));
        let (routes, _) = source.routes(at(4));
        let down: Vec<bool> = routes.all().map(|server| server.is_down()).collect();
        assert_eq!(down, [false, true], "who is known keeps its state");
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(shown(6), ("10.0.0.2 10.0.0.1".into(), false), "what cannot be read changes nothing");
    }

    #[test]
    fn a_server_is_written_in_two_ways() {
        for (text, want) in [
            ("10.0.0.1", Some("10.0.0.1:53")),
            ("10.0.0.1:5353", Some("10.0.0.1:5353")),
            ("fd00::1", Some("[fd00::1]:53")),
            ("[fd00::1]:54", Some("[fd00::1]:54")),
            ("example.org", None),
            ("10.0.0.1:99999", None),
        ] {
            assert_eq!(parse_server(text).ok().map(|a| a.to_string()).as_deref(), want, "{text}");
        }
    }
}
