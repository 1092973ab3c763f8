//! The record of what was changed on the host, written before the change is made.
//!
//! One JSON object a line, fsynced: `{"sysctl":{"name":"net.ipv4.ip_forward","old":"0"}}`. A torn
//! last line (power loss) is dropped: its change was not made yet.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One change that `reset` must undo.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mutation {
    /// A kernel setting and the value it had.
    Sysctl { name: String, old: String },
    /// A folder that did not exist before.
    Folder { path: PathBuf },
    /// A folder of ours that existed before, and the names that were in it: they are not ours.
    Entered { path: PathBuf, foreign: Vec<String> },
    /// A cgroup that pods or the runtime live in, below every hierarchy.
    Cgroup { path: PathBuf },
    /// One that was there before, and so may hold pods of another kubelet.
    SharedCgroup { path: PathBuf },
    /// An nftables table of ours: family and name.
    NftTable { family: String, name: String },
    /// Routes to other nodes' pods: all that carry this number of who made them.
    Routes { protocol: u8 },
    /// A link of ours that no pod takes with it.
    Link { name: String },
    /// A file of ours in a folder that is somebody else's; a symbolic link where `target` says where it leads.
    ForeignFile {
        path: PathBuf,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<PathBuf>,
    },
    /// A mount point of ours.
    Mount { path: PathBuf },
    /// The context we merged into a user's kubeconfig.
    Kubeconfig { path: PathBuf, context: String },
}

/// The journal of one installation.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    entries: Vec<Mutation>,
    /// The last line has no end: what is appended must not become a part of it.
    torn: bool,
}

impl Journal {
    /// Reads the journal at `path`; an absent file is an empty journal.
    pub fn open(path: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let torn = !text.is_empty() && !text.ends_with('\n');
        Ok(Self { path: path.to_owned(), entries: parse(&text), torn })
    }

    /// What was changed, oldest first.
    pub fn entries(&self) -> &[Mutation] {
        &self.entries
    }

    /// Records a change, durably, before the caller makes it. A change recorded already is kept as
    /// it is: the first old value is the host's own.
    pub fn record(&mut self, mutation: Mutation) -> io::Result<()> {
        if self.entries.iter().any(|e| same_target(e, &mutation)) {
            return Ok(());
        }
        if let Some(parent) = self.path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut line = if self.torn { vec![b'\n'] } else { Vec::new() };
        serde_json::to_writer(&mut line, &mutation).map_err(io::Error::other)?;
        line.push(b'\n');
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        file.write_all(&line)?;
        file.sync_data()?;
        if self.entries.is_empty() {
            if let Some(parent) = self.path.parent() {
                File::open(parent)?.sync_all()?;
            }
        }
        self.torn = false;
        self.entries.push(mutation);
        Ok(())
    }

    /// Makes a folder and those above it that are not there, recording each first. Of one that is
    /// there already is recorded what is in it.
    pub fn make_folder(&mut self, path: &Path) -> io::Result<()> {
        let absent: Vec<PathBuf> = path.ancestors().take_while(|p| !p.exists()).map(PathBuf::from).collect();
        if absent.is_empty() && !self.entries.contains(&Mutation::Folder { path: path.to_owned() }) {
            self.enter(path)?;
        }
        for folder in absent.into_iter().rev() {
            self.record(Mutation::Folder { path: folder.clone() })?;
            if !folder.exists() {
                fs::create_dir(&folder)?;
            }
        }
        Ok(())
    }

    fn enter(&mut self, path: &Path) -> io::Result<()> {
        let mut foreign = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.path() != self.path {
                foreign.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        foreign.sort_unstable();
        self.record(Mutation::Entered { path: path.to_owned(), foreign })
    }
}

fn parse(text: &str) -> Vec<Mutation> {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn same_target(a: &Mutation, b: &Mutation) -> bool {
    match (a, b) {
        (Mutation::Sysctl { name: a, .. }, Mutation::Sysctl { name: b, .. }) => a == b,
        (
            Mutation::Cgroup { path: a } | Mutation::SharedCgroup { path: a },
            Mutation::Cgroup { path: b } | Mutation::SharedCgroup { path: b },
        ) => a == b,
        (Mutation::Entered { path: a, .. }, Mutation::Entered { path: b, .. }) => a == b,
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_old_value_is_kept_and_a_torn_line_is_dropped() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("journal");
        let sysctl = |old: &str| Mutation::Sysctl { name: "net.ipv4.ip_forward".into(), old: old.into() };
        let mut journal = Journal::open(&path).expect("an absent journal is empty");
        journal.record(sysctl("0")).expect("recorded");
        journal.record(sysctl("1")).expect("recorded");
        fs::write(&path, [fs::read(&path).expect("the journal"), b"{\"mount\":{\"pa".to_vec()].concat()).expect("torn");
        let mut journal = Journal::open(&path).expect("reads");
        assert_eq!(journal.entries(), [sysctl("0")]);
        let mount = Mutation::Mount { path: "/m".into() };
        journal.record(mount.clone()).expect("recorded");
        assert_eq!(Journal::open(&path).expect("reads").entries(), [sysctl("0"), mount]);
    }

    #[test]
    fn the_folder_the_journal_is_in_is_recorded_too() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let state = dir.path().join("state");
        let path = state.join("journal");
        Journal::open(&path).and_then(|mut j| j.make_folder(&state)).expect("made");
        Journal::open(&path).and_then(|mut j| j.make_folder(&state)).expect("made once");
        assert_eq!(Journal::open(&path).expect("reads").entries(), [Mutation::Folder { path: state }]);
    }

    #[test]
    fn what_was_in_a_folder_before_is_recorded_once_and_folders_above_are_too() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (state, deep) = (dir.path().join("state"), dir.path().join("a/b"));
        fs::create_dir(&state).and_then(|()| fs::write(state.join("theirs"), "")).expect("made");
        let path = state.join("journal");
        let mut journal = Journal::open(&path).expect("opens");
        journal.make_folder(&state).expect("entered");
        fs::write(state.join("ours"), "").expect("written");
        journal.make_folder(&state).expect("entered once");
        journal.make_folder(&deep).expect("made");
        assert!(deep.is_dir());
        assert_eq!(
            Journal::open(&path).expect("reads").entries(),
            [
                Mutation::Entered { path: state, foreign: vec!["theirs".into()] },
                Mutation::Folder { path: dir.path().join("a") },
                Mutation::Folder { path: deep },
            ]
        );
    }
}
