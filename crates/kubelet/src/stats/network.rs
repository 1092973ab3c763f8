//! What went over the interfaces of a network namespace, as the kernel counts it for any process in it.

use std::path::Path;

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub received: Direction,
    pub sent: Direction,
}

/// One way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// More interfaces than this of one namespace are not told.
const MAX_INTERFACES: usize = 256;

/// The interfaces but the loopback, the one with the default route first; `proc` is `/proc`, and `process`
/// one in the namespace (`self`, or a number).
pub fn read(proc: &Path, process: &str) -> Option<Vec<Interface>> {
    let folder = proc.join(process).join("net");
    let mut found = parse(&std::fs::read_to_string(folder.join("dev")).ok()?);
    let routes = std::fs::read_to_string(folder.join("route")).unwrap_or_default();
    let first = default_interface(&routes).unwrap_or("eth0");
    // Stable: the others stay in their order.
    found.sort_by_key(|i| i.name != first);
    Some(found)
}

fn parse(dev: &str) -> Vec<Interface> {
    let line = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let n: Vec<u64> = rest.split_whitespace().map(|w| w.parse().unwrap_or(0)).collect();
        let way = |at: usize| {
            Some(Direction {
                bytes: *n.get(at)?,
                packets: *n.get(at + 1)?,
                errors: *n.get(at + 2)?,
                dropped: *n.get(at + 3)?,
            })
        };
        let name = name.trim();
        (name != "lo").then_some(())?;
        Some(Interface { name: name.to_owned(), received: way(0)?, sent: way(8)? })
    };
    dev.lines().filter_map(line).take(MAX_INTERFACES).collect()
}

/// The interface of the route to everywhere.
fn default_interface(routes: &str) -> Option<&str> {
    routes.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace();
        let (name, destination) = (words.next()?, words.next()?);
        (destination == "00000000").then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_column() {
        let dir = tempfile::tempdir().expect("a directory");
        let net = dir.path().join("7/net");
        std::fs::create_dir_all(&net).expect("made");
        let dev = "Inter-|   Receive                |  Transmit\n face |bytes packets errs drop\n    \
                   lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  tap: 5 0 0 0 0 0 0 0 6 0 0 0 0 0 0 0\n\
                   eth1:1024 8 1 2 0 0 0 0 2048 9 3 4 0 0 0 0\nbad: 1 2\n";
        std::fs::write(net.join("dev"), dev).expect("written");
        std::fs::write(net.join("route"), "Iface Destination Gateway\ntap 0A000000 0\neth1\t00000000\t1\n")
            .expect("written");
        let found = read(dir.path(), "7").expect("read");
        assert_eq!(found.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), ["eth1", "tap"]);
        assert_eq!(found[0].received, Direction { bytes: 1024, packets: 8, errors: 1, dropped: 2 });
        assert_eq!(found[0].sent, Direction { bytes: 2048, packets: 9, errors: 3, dropped: 4 });
        assert_eq!(read(dir.path(), "8"), None);
    }
}
