//! What a stream carries, as the query says it.

use ::cri::v1;

/// Which streams of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

impl Options {
    /// Reads a query as the API server writes it.
    pub fn parse(query: &[(String, String)]) -> Result<Self, &'static str> {
        let set = |name: &str| query.iter().find(|(key, _)| key == name).is_some_and(|(_, value)| value == "1");
        let tty = set("tty");
        // A terminal has one output.
        let found = Self { stdin: set("input"), stdout: set("output"), stderr: set("error") && !tty, tty };
        if !found.stdin && !found.stdout && !found.stderr {
            return Err("you must specify at least 1 of stdin, stdout, stderr");
        }
        Ok(found)
    }

    /// The request to run a command.
    pub fn exec(self, container: &str, cmd: Vec<String>) -> v1::ExecRequest {
        let Self { stdin, stdout, stderr, tty } = self;
        v1::ExecRequest { container_id: container.to_owned(), cmd, tty, stdin, stdout, stderr }
    }

    /// The request to reach what runs already.
    pub fn attach(self, container: &str, tty: bool) -> v1::AttachRequest {
        let Self { stdin, stdout, stderr, .. } = self;
        v1::AttachRequest { container_id: container.to_owned(), stdin, tty, stdout, stderr: stderr && !tty }
    }
}

/// The ports that a WebSocket is for: each has its channels.
pub fn ports(query: &[(String, String)]) -> Result<Vec<i32>, String> {
    let lists = query.iter().filter(|(key, _)| key == "port").map(|(_, value)| value);
    let mut ports = Vec::new();
    for text in lists.flat_map(|list| list.split(',')) {
        match text.parse::<u16>() {
            Ok(0) => return Err(format!("port {text:?} must be > 0")),
            Ok(port) => ports.push(i32::from(port)),
            Err(why) => return Err(format!("unable to parse {text:?} as a port: {why}")),
        }
    }
    // A channel's number is a byte, and a port has two.
    match ports.len() {
        0 => Err("query parameter \"port\" is required".to_owned()),
        1..=127 => Ok(ports),
        many => Err(format!("{many} ports are more than a connection has channels for")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(query: &str) -> Result<String, &'static str> {
        let Options { stdin, stdout, stderr, tty } = Options::parse(&super::super::super::query(Some(query)))?;
        let named = [(stdin, "in"), (stdout, "out"), (stderr, "err"), (tty, "tty")];
        Ok(named.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn what_a_query_asks_for() {
        for (query, want) in [
            ("input=1&output=1&error=1", Ok("in out err")),
            ("output=1&error=1&tty=1", Ok("out tty")),
            ("output=true&error=1", Ok("err")),
            ("tty=1&error=1", Err("you must specify at least 1 of stdin, stdout, stderr")),
            ("", Err("you must specify at least 1 of stdin, stdout, stderr")),
        ] {
            assert_eq!(options(query), want.map(str::to_owned), "{query}");
        }
    }

    #[test]
    fn which_ports() {
        let many = (1..200).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        for (query, want) in [
            ("port=80&port=443,8080".to_owned(), Ok(vec![80, 443, 8080])),
            ("port=0".to_owned(), Err("must be > 0")),
            ("port=x".to_owned(), Err("unable to parse \"x\" as a port")),
            ("port=65536".to_owned(), Err("unable to parse \"65536\" as a port")),
            (String::new(), Err("query parameter \"port\" is required")),
            (format!("port={many}"), Err("199 ports are more")),
        ] {
            match (ports(&super::super::super::query(Some(&query))), want) {
                (Ok(got), Ok(want)) => assert_eq!(got, want),
                (Err(got), Err(want)) => assert!(got.contains(want), "{got}"),
                (got, want) => panic!("{query}: {got:?}, not {want:?}"),
            }
        }
    }
}
