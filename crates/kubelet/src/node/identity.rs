//! Who this node is: chosen once, kept on disk, and stronger than a later hostname or address.

use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use stdx::Rng;

use crate::durable;

/// The file under the kubelet's root.
const FILE: &str = "node.json";
/// No identity is longer.
const MAX_FILE: u64 = 64 * 1024;

/// The Node's name and a machine id of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    pub node_name: String,
    /// 32 hexadecimal digits, as `/etc/machine-id` has; ours, because images of machines are copied.
    pub machine_id: String,
}

impl Identity {
    /// The identity kept under `root`, else a new one named `wanted`, which is not kept until
    /// [`Identity::keep`]: a name that the API server refuses must not stick.
    ///
    /// # Errors
    /// When there is a file that cannot be read: going on under another name would make a second
    /// Node of this machine.
    pub fn open(root: &Path, wanted: &str, rng: &Rng) -> io::Result<Self> {
        let path = root.join(FILE);
        let mut text = String::new();
        match std::fs::File::open(&path) {
            Ok(file) => file.take(MAX_FILE).read_to_string(&mut text).map_err(|e| named(&path, &e))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { node_name: wanted.to_owned(), machine_id: rng.uuid().replace('-', "") });
            }
            Err(error) => return Err(named(&path, &error)),
        };
        let identity: Self = serde_json::from_str(&text).map_err(|e| named(&path, &e))?;
        if identity.node_name.is_empty() || identity.machine_id.is_empty() {
            return Err(named(&path, &"nodeName and machineId must not be empty"));
        }
        Ok(identity)
    }

    /// Keeps it, durably, for every later start.
    pub fn keep(&self, root: &Path) -> io::Result<()> {
        let path = root.join(FILE);
        let text = serde_json::to_vec_pretty(self).map_err(|e| named(&path, &e))?;
        if std::fs::read(&path).is_ok_and(|old| old == text) {
            return Ok(());
        }
        durable::write(&path, &text)
    }
}

fn named(path: &Path, why: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("node identity {}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().join("kubelet");
        let rng = Rng::seeded(1);
        let first = Identity::open(&root, "one", &rng).expect("new");
        assert_eq!((first.node_name.as_str(), first.machine_id.len()), ("one", 32));
        assert_ne!(Identity::open(&root, "one", &rng).expect("not kept yet"), first);
        first.keep(&root).expect("kept");
        first.keep(&root).expect("kept again");
        assert_eq!(Identity::open(&root, "two", &rng).expect("the same"), first);
        for bad in ["", "{}", r#"{"nodeName":"","machineId":"x"}"#] {
            std::fs::write(root.join(FILE), bad).expect("written");
            assert!(Identity::open(&root, "two", &rng).is_err(), "{bad:?}");
        }
    }
}
