//! Who this node is. Its name and an id of ours are written down when it first registers, and win
//! over whatever hostname or address the machine has later.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stdx::Rng;

const FILE: &str = "node.json";

/// What is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    pub name: String,
    pub machine_id: String,
}

/// The identity beneath `root`; a new one named `name` where there is none yet.
pub fn load_or_create(root: &Path, name: &str, rng: &Rng) -> io::Result<Identity> {
    std::fs::create_dir_all(root)?;
    let path = root.join(FILE);
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| {
            let text = format!("{} cannot be read as this node's identity: {e}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let identity = Identity { name: name.to_owned(), machine_id: rng.uuid() };
            write(&path, &identity)?;
            Ok(identity)
        }
        Err(error) => Err(error),
    }
}

/// Whole or not at all, also after a power loss.
fn write(path: &Path, identity: &Identity) -> io::Result<()> {
    use std::io::Write as _;
    let next = path.with_extension("json.new");
    let mut file = std::fs::File::create(&next)?;
    file.write_all(&serde_json::to_vec(identity)?)?;
    file.sync_all()?;
    std::fs::rename(&next, path)?;
    std::fs::File::open(path.parent().unwrap_or(path))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_stays() {
        let root = tempfile::tempdir().expect("a directory");
        let rng = Rng::seeded(1);
        let first = load_or_create(root.path(), "one", &rng).expect("made");
        let again = load_or_create(root.path(), "two", &rng).expect("read");
        assert_eq!(first, again);
        assert_eq!(first.name, "one");
        std::fs::write(root.path().join(FILE), "{").expect("written");
        assert!(load_or_create(root.path(), "one", &rng).is_err(), "a broken file is not replaced in silence");
    }
}
