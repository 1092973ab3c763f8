//! User namespaces: which ids of the node stand for the users of a pod that has its own.
//!
//! ```text
//!  hostUsers: false   users 0 … 65535 of the pod are, on the node, N·65536 … N·65536 + 65535
//! ```
//!
//! Block 0 is the node's own users'. Each pod has a block to itself, written down beside its volumes,
//! so that a kubelet that starts again gives nobody's away.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::cri::v1;
use parking_lot::Mutex;

use crate::durable;
use crate::pod::BoundPod;
use crate::runtime::Features;

/// Ids in a block: what POSIX programs expect to find.
pub const BLOCK: u32 = 1 << 16;
const LAST_BLOCK: u32 = u32::MAX / BLOCK;
/// The file with the pod's block, in its directory.
const FILE: &str = "users";

/// The ids of the node that a pod's users are: a block's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block(u32);

impl Block {
    /// As the runtime takes it.
    pub fn mapping(self) -> v1::IdMapping {
        v1::IdMapping { host_id: self.0 * BLOCK, container_id: 0, length: BLOCK }
    }
}

/// Whose users a pod has. Pure; the error is the message of `FailedCreatePodSandBox`.
pub fn wants_own(pod: &BoundPod, handler: &str, features: &Features) -> Result<bool, String> {
    if pod.spec().host_users != Some(false) {
        return Ok(false);
    }
    match features.handler(handler) {
        Some(found) if found.user_namespaces => Ok(true),
        _ if handler.is_empty() => {
            Err("can't set `spec.hostUsers: false`, runtime does not support user namespaces".to_owned())
        }
        _ => Err(format!(
            "can't set `spec.hostUsers: false`, RuntimeClass handler {handler:?} does not support user namespaces"
        )),
    }
}

/// The blocks of the pods of one node. Clones are the same.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// Where the directories of pods are.
    pods: PathBuf,
    taken: Arc<Mutex<BTreeMap<String, u32>>>,
    taking: Arc<Mutex<()>>,
}

impl Blocks {
    /// The blocks that pods beneath `pods` have.
    pub fn open(pods: &Path) -> Self {
        let entries = std::fs::read_dir(pods).into_iter().flatten().flatten();
        let read = |uid: &str| {
            let text = std::fs::read_to_string(pods.join(uid).join(FILE)).ok()?;
            text.trim().parse().ok().filter(|n| (1..=LAST_BLOCK).contains(n))
        };
        let taken = entries.filter_map(|e| e.file_name().into_string().ok());
        let taken = taken.filter_map(|uid| read(&uid).map(|n| (uid, n))).collect();
        Self { pods: pods.to_owned(), taken: Arc::new(Mutex::new(taken)), taking: Arc::default() }
    }

    /// The block of a pod that has one.
    pub fn of(&self, uid: &str) -> Option<Block> {
        self.taken.lock().get(uid).copied().map(Block)
    }

    /// The pod's block: the one it has, or the first that is free. Blocks the thread: what is taken is
    /// on disk first.
    pub fn take(&self, uid: &str) -> io::Result<Block> {
        // One at a time; who only asks does not wait for the disk.
        let _one = self.taking.lock();
        if let Some(known) = self.of(uid) {
            return Ok(known);
        }
        let used: std::collections::BTreeSet<u32> = self.taken.lock().values().copied().collect();
        let free = (1..=LAST_BLOCK).find(|n| !used.contains(n));
        let free = free.ok_or_else(|| io::Error::other("no block of user ids is free"))?;
        // A block that is in use but not on disk would be another's after a restart.
        durable::write(&self.pods.join(uid).join(FILE), free.to_string().as_bytes())?;
        self.taken.lock().insert(uid.to_owned(), free);
        Ok(Block(free))
    }

    /// The pod is over: its directory goes, its block is another's.
    pub fn give_back(&self, uid: &str) {
        self.taken.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use crate::runtime::Handler;
    use serde_json::json;

    #[test]
    fn blocks_are_one_pods_each_also_after_a_restart() {
        let dir = tempfile::tempdir().expect("a directory");
        let blocks = Blocks::open(dir.path());
        let host = |blocks: &Blocks, uid: &str| blocks.take(uid).expect("taken").mapping().host_id;
        assert_eq!([host(&blocks, "a"), host(&blocks, "b"), host(&blocks, "a")], [65_536, 131_072, 65_536]);
        std::fs::write(dir.path().join("b/users"), "0").expect("written");
        std::fs::hard_link(dir.path().join("b/users"), dir.path().join("b/before")).expect("linked");
        let again = Blocks::open(dir.path());
        assert_eq!((again.of("a"), again.of("b")), (Some(Block(1)), None), "the node's own block is nobody's");
        assert_eq!(host(&again, "c"), 131_072);
        assert_eq!(host(&again, "b"), 196_608);
        let before = std::fs::read_to_string(dir.path().join("b/before")).expect("read");
        assert_eq!(before, "0", "a file is replaced: one written in place is empty when power fails");
        again.give_back("a");
        assert_eq!(host(&again, "d"), 65_536);
    }

    #[test]
    fn only_where_the_handler_can() {
        let features = Features {
            handlers: vec![
                Handler { name: "can".into(), user_namespaces: true, ..Handler::default() },
                Handler { name: "cannot".into(), ..Handler::default() },
            ],
            ..Features::default()
        };
        let of = |users, handler| {
            wants_own(&pod(json!({"spec": {"hostUsers": users, "containers": []}})), handler, &features)
        };
        assert_eq!((of(None, "cannot"), of(Some(true), ""), of(Some(false), "can")), (Ok(false), Ok(false), Ok(true)));
        let why = "can't set `spec.hostUsers: false`, RuntimeClass handler \"cannot\" does not support user namespaces";
        assert_eq!(of(Some(false), "cannot").err().as_deref(), Some(why));
        let why = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
        assert_eq!(of(Some(false), "").err().as_deref(), Some(why));
    }
}
