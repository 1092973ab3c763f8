//! One call of the runtime: what the environment says, what is done, what is answered.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::config::{self, Config, LIMIT, NEWEST, VERSIONS};
use crate::error::{ENVIRONMENT, Error, INCOMPATIBLE_VERSION, NOT_AVAILABLE};
use crate::records::Records;
use crate::{LOOPBACK, PLUGIN, attach, collect, loopback};

/// The names under which this program is a plugin.
pub const NAMES: [&str; 2] = [PLUGIN, LOOPBACK];
/// How long a name of a file may be that holds both names.
const LONGEST: usize = 230;

/// What a call may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

/// What the environment says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    pub command: Command,
    pub container_id: String,
    pub netns: PathBuf,
    pub ifname: String,
    /// `CNI_ARGS`, of which the runtime's names of the pod are used.
    pub args: BTreeMap<String, String>,
}

fn is_container_id(text: &str) -> bool {
    let rest = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(rest)
}

fn is_ifname(text: &str) -> bool {
    let good = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':' | ',' | '%');
    !matches!(text, "." | "..") && (1..=15).contains(&text.len()) && text.chars().all(good)
}

impl Environment {
    /// Reads it, by a function that knows variables.
    ///
    /// # Errors
    /// Names the variable that is missing or wrong.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let of = |name: &str| variable(name).unwrap_or_default();
        let wrong = |what: String| Err(Error::new(ENVIRONMENT, what));
        let command = match of("CNI_COMMAND").as_str() {
            "ADD" => Command::Add,
            "DEL" => Command::Del,
            "CHECK" => Command::Check,
            "GC" => Command::Gc,
            "STATUS" => Command::Status,
            "VERSION" => Command::Version,
            "" => return wrong("CNI_COMMAND is not set".into()),
            other => return wrong(format!("CNI_COMMAND {other:?} is not known")),
        };
        let (container_id, ifname, netns) = (of("CNI_CONTAINERID"), of("CNI_IFNAME"), of("CNI_NETNS"));
        if matches!(command, Command::Add | Command::Del | Command::Check) {
            if !is_container_id(&container_id) || container_id.len() + ifname.len() > LONGEST {
                return wrong(format!("CNI_CONTAINERID {container_id:?} is no name of a container"));
            }
            if !is_ifname(&ifname) {
                return wrong(format!("CNI_IFNAME {ifname:?} is no name of a link"));
            }
            if netns.is_empty() && command != Command::Del {
                return wrong("CNI_NETNS is not set".into());
            }
        }
        let args = of("CNI_ARGS");
        let args = args.split(';').filter_map(|pair| pair.split_once('='));
        let args = args.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(Self { command, container_id, netns: netns.into(), ifname, args })
    }

    /// What the runtime says of the pod.
    pub fn pod(&self, name: &str) -> String {
        self.args.get(name).cloned().unwrap_or_default()
    }
}

/// Answers one call: the plugin's name, its environment, what comes in, where the answer goes, and the time
/// in nanoseconds since 1970. The exit code.
pub fn run(
    plugin: &str,
    variable: impl Fn(&str) -> Option<String>,
    input: impl Read,
    output: &mut impl Write,
    now: u64,
) -> u8 {
    let mut text = Vec::new();
    let read = input.take(LIMIT).read_to_end(&mut text);
    let result = match read {
        Ok(_) => Environment::read(variable).and_then(|environment| answer(plugin, &environment, &text, now)),
        Err(error) => Err(Error::io("standard input")(error)),
    };
    let (value, code) = match result {
        Ok(value) => (value, 0),
        Err(error) => (Some(error.to_json(&config::version_of(&text).unwrap_or_else(|| NEWEST.into()))), 1),
    };
    match value.map_or(Ok(()), |value| told(output, &value)) {
        Ok(()) => code,
        // Nobody listens any more.
        Err(_) => 1,
    }
}

fn told(output: &mut impl Write, value: &Value) -> io::Result<()> {
    writeln!(output, "{value}")?;
    output.flush()
}

fn answer(plugin: &str, environment: &Environment, text: &[u8], now: u64) -> Result<Option<Value>, Error> {
    let command = environment.command;
    if command == Command::Version {
        return Ok(Some(json!({ "cniVersion": NEWEST, "supportedVersions": VERSIONS })));
    }
    let version = config::parse_version(text)?;
    let since = match command {
        Command::Check => "0.4.0",
        Command::Gc | Command::Status => "1.1.0",
        _ => "",
    };
    if version.as_str() < since {
        let message = format!("version {} of the specification has no such command", version.as_str());
        return Err(Error::new(INCOMPATIBLE_VERSION, message));
    }
    if plugin == LOOPBACK {
        return match command {
            Command::Add => loopback::add(version, &environment.netns, &environment.ifname).map(Some),
            Command::Check => loopback::check(&environment.netns).map(|()| None),
            // It goes with its namespace.
            _ => Ok(None),
        };
    }
    let config = config::parse(text)?;
    match command {
        Command::Add => attach::add(&config, environment, now).map(Some),
        Command::Del => attach::delete(&config, &environment.container_id, &environment.ifname).map(|()| None),
        Command::Check => attach::check(&config, environment).map(|()| None),
        Command::Gc => collect::named(&config).map(|()| None),
        _ => status(&config).map(|()| None),
    }
}

/// STATUS: whether an ADD could succeed.
fn status(config: &Config) -> Result<(), Error> {
    let records = Records::of(&config.data_dir, &config.name);
    let refused = |error: io::Error| Error::new(NOT_AVAILABLE, format!("{}: {error}", config.data_dir.display()));
    records.prepare().map_err(refused)?;
    for range in &config.ranges {
        if !records.has_room(*range).map_err(refused)? {
            return Err(Error::new(NOT_AVAILABLE, format!("no address is left in {range}")));
        }
    }
    match &config.gate {
        Some(gate) if gate.symlink_metadata().is_err() => {
            Err(Error::new(NOT_AVAILABLE, format!("nobody keeps network policies at {}", gate.display())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Result<Environment, u32> {
        let of = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Environment::read(of).map_err(|e| e.code)
    }

    #[test]
    fn variables_are_checked() {
        let good = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "a1-b.c_d"),
            ("CNI_NETNS", "/run/netns/a"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web;K8S_POD_UID="),
        ];
        let read = environment(&good).expect("good");
        assert_eq!((read.pod("K8S_POD_NAME"), read.pod("K8S_POD_UID")), ("web".into(), String::new()));
        let long = "a".repeat(300);
        for (name, value) in [
            ("CNI_COMMAND", ""),
            ("CNI_COMMAND", "add"),
            ("CNI_CONTAINERID", ""),
            ("CNI_CONTAINERID", "../etc"),
            ("CNI_CONTAINERID", "-a"),
            ("CNI_CONTAINERID", &long),
            ("CNI_IFNAME", ""),
            ("CNI_IFNAME", ".."),
            ("CNI_IFNAME", "a/b"),
            ("CNI_IFNAME", "sixteen-letters-"),
            ("CNI_NETNS", ""),
        ] {
            let with: Vec<(&str, &str)> =
                good.iter().map(|(n, v)| if *n == name { (*n, value) } else { (*n, *v) }).collect();
            assert_eq!(environment(&with), Err(ENVIRONMENT), "{name}={value}");
        }
    }

    fn answers(plugin: &str, pairs: &[(&str, &str)], text: &str) -> (Value, u8) {
        let mut out = Vec::new();
        let of = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let code = run(plugin, of, text.as_bytes(), &mut out, 0);
        (serde_json::from_slice(&out).unwrap_or(Value::Null), code)
    }

    #[test]
    fn versions_and_failures_are_told_as_the_specification_says() {
        let (said, code) = answers(PLUGIN, &[("CNI_COMMAND", "VERSION")], "{}");
        assert_eq!((code, said["supportedVersions"].as_array().map(Vec::len)), (0, Some(5)));
        let add =
            [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "a"), ("CNI_NETNS", "/nonexistent"), ("CNI_IFNAME", "eth0")];
        let of =
            |version: &str| json!({"cniVersion": version, "name": "n", "dataDir": "/d", "ranges": ["10.0.0.0/24"]});
        let (said, code) = answers(PLUGIN, &add, &of("1.0.0").to_string());
        assert_eq!((code, &said["code"], &said["cniVersion"]), (1, &json!(3), &json!("1.0.0")), "{said}");
        let (said, _) = answers(PLUGIN, &add, &of("9.0.0").to_string());
        assert_eq!((&said["code"], &said["cniVersion"]), (&json!(1), &json!("9.0.0")));
        let status = [("CNI_COMMAND", "STATUS")];
        assert_eq!(answers(PLUGIN, &status, &of("1.0.0").to_string()).0["code"], 1, "there was none in that version");
        assert_eq!(answers(PLUGIN, &[], "").0["code"], 4);
        assert_eq!(answers(PLUGIN, &add, "{").0["code"], 6);
        assert_eq!(answers(LOOPBACK, &[("CNI_COMMAND", "STATUS")], &of("1.1.0").to_string()), (Value::Null, 0));
    }
}
