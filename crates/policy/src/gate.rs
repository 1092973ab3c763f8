//! Where the node's network plugin asks whether a new pod's rules are in the kernel: one line of JSON on a
//! socket, one line back.
//!
//! ```text
//!  {"op":"add","containerID":"c1","namespace":"shop","name":"web-1","uid":"…","addresses":["10.244.0.7"]}
//!     │ claim: container c1 of that pod has 10.244.0.7, whatever its status says yet
//!     │ the pod is known, and what its address changes in the kernel is there
//!     ▼
//!  {"ok":true}
//! ```
//!
//! A pod whose address changes nothing in the kernel is answered without a transaction. What takes longer
//! than [`LIMIT`] is answered with an error: the runtime tries again. Only this process' own user is heard.
//!
//! A pod is known once the API says that it is bound to this node: its labels are then what they are. Of a
//! static pod that is its mirror, which the kubelet makes before the sandbox; without an API server static pods
//! with a network of their own wait, for nobody knows what isolates them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::Key;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use stdx::shutdown::Stage;
use stdx::{ClockExt, SharedClock};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};

use crate::metrics::Metrics;

/// How long a plugin is kept waiting.
pub const LIMIT: Duration = Duration::from_secs(4);
/// A question may be so long.
const LONGEST: u64 = 16 << 10;
/// So many are asked at a time; who comes then waits to be heard.
const AT_A_TIME: usize = 256;
/// So many sandboxes of this node are known at a time: more than a node has. At the bound the answer is an
/// error.
const CLAIMS: usize = 20_000;
/// A pod has one address of each family; a plugin may give it some more.
const ADDRESSES: usize = 16;

/// A sandbox and what it was given.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    #[serde(rename = "containerID")]
    pub container: String,
    pub namespace: String,
    pub name: String,
    #[serde(default)]
    pub uid: String,
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
}

impl Record {
    /// Whose it is.
    pub fn key(&self) -> Key {
        Key::new(self.namespace.clone(), self.name.clone())
    }
}

/// What is asked.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Question {
    Add(Record),
    Del(Record),
}

/// What was told of this node's sandboxes.
#[derive(Debug, Default)]
pub struct Claims {
    pods: BTreeMap<String, Key>,
    /// By pod and container, in the order in which they were told.
    by_pod: BTreeMap<Key, BTreeMap<String, (u64, Record)>>,
    count: u64,
}

impl Claims {
    /// Takes a word in. False at the bound.
    pub fn add(&mut self, record: Record) -> bool {
        if self.pods.len() >= CLAIMS && !self.pods.contains_key(&record.container) {
            return false;
        }
        self.remove(&record.container);
        self.count += 1;
        let (container, key) = (record.container.clone(), record.key());
        self.pods.insert(container.clone(), key.clone());
        self.by_pod.entry(key).or_default().insert(container, (self.count, record));
        true
    }

    /// The sandbox is gone; whose it was.
    pub fn remove(&mut self, container: &str) -> Option<Key> {
        let key = self.pods.remove(container)?;
        if let Some(all) = self.by_pod.get_mut(&key) {
            all.remove(container);
            if all.is_empty() {
                self.by_pod.remove(&key);
            }
        }
        Some(key)
    }

    /// How many words there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Forgets sandboxes that are gone by the word of whoever told what there is: earlier, and, after `count` words
    /// had come here, now. Of what was never among them (another network's) nothing is known. Whose they were.
    pub fn keep(&mut self, earlier: &BTreeSet<String>, now: &BTreeSet<String>, count: u64) -> BTreeSet<Key> {
        let is_gone = |(container, (number, _)): (&String, &(u64, Record))| {
            let is_gone = *number <= count && earlier.contains(container) && !now.contains(container);
            is_gone.then(|| container.clone())
        };
        let gone: Vec<String> = self.by_pod.values().flatten().filter_map(is_gone).collect();
        gone.iter().filter_map(|container| self.remove(container)).collect()
    }

    fn at(&self, key: &Key) -> impl Iterator<Item = &(u64, Record)> {
        self.by_pod.get(key).into_iter().flat_map(BTreeMap::values)
    }

    /// The last word on a pod, whose uid is one for which `is_own` holds: its number, and the addresses.
    pub fn of(&self, key: &Key, is_own: impl Fn(&str) -> bool) -> Option<(u64, &[IpAddr])> {
        let all = self.at(key).filter(|(_, record)| is_own(&record.uid));
        all.max_by_key(|(number, _)| *number).map(|(number, record)| (*number, &*record.addresses))
    }

    /// The uids of pods of that name that have sandboxes.
    pub fn uids(&self, key: &Key) -> impl Iterator<Item = &str> {
        self.at(key).map(|(_, record)| &*record.uid)
    }
}

/// Somebody who waits for a pod's rules.
#[derive(Debug)]
pub struct Waiter {
    pub key: Key,
    pub uid: String,
    pub answer: oneshot::Sender<Result<(), String>>,
}

/// What the loop and the socket share.
pub trait Desk: Send + Sync + 'static {
    /// What was told.
    fn claims(&self) -> &Mutex<Claims>;
    /// The pod's rules are to be looked at again, and `waiter` be answered once the kernel has them.
    fn look(&self, key: Key, waiter: Option<Waiter>);
    /// There are too many: those that are gone are to be forgotten.
    fn is_full(&self);
}

/// Makes the socket, before any pod may begin: who asks from now on waits for [`serve`]. One that is there
/// already is replaced at once, so that nobody ever finds none. Within a runtime.
///
/// # Errors
/// The socket cannot be made.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = Path::new(&name);
    match std::fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(new)?;
    std::fs::set_permissions(new, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(new, path)?;
    Ok(listener)
}

/// Serves the socket until the stage stops.
pub fn serve(listener: UnixListener, desk: Arc<dyn Desk>, metrics: Arc<Metrics>, clock: &SharedClock, stage: &Stage) {
    let (clock, own) = (clock.clone(), stage.clone());
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    stage.spawn(async move {
        let accept = async {
            loop {
                let Ok(place) = places.clone().acquire_owned().await else { return };
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let (desk, metrics, clock) = (desk.clone(), metrics.clone(), clock.clone());
                        own.spawn(async move {
                            talk(stream, &*desk, &metrics, &clock).await;
                            drop(place);
                        });
                    }
                    // Out of descriptors: somebody will give some back.
                    Err(_) => clock.sleep(Duration::from_millis(100)).await,
                }
            }
        };
        tokio::select! {
            () = accept => {}
            () = own.stopped() => {}
        }
    });
}

async fn talk(stream: UnixStream, desk: &dyn Desk, metrics: &Metrics, clock: &SharedClock) {
    let own = rustix::process::geteuid().as_raw();
    if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0) {
        return;
    }
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut reader = BufReader::new(read.take(LONGEST));
    let began = clock.now();
    let result = match clock.timeout(LIMIT, reader.read_line(&mut line)).await {
        Ok(Ok(_)) if line.ends_with('\n') => answer(&line, desk, clock).await,
        Ok(Ok(0)) | Ok(Err(_)) | Err(_) => return,
        Ok(Ok(_)) => Err("the question has no end".to_owned()),
    };
    metrics.answered(clock.now().since(began), result.is_ok());
    let text = match &result {
        Ok(()) => json!({"ok": true}),
        Err(error) => json!({"error": error}),
    };
    // Who went away is told nothing.
    let _ = clock.timeout(LIMIT, write.write_all(format!("{text}\n").as_bytes())).await;
}

async fn answer(line: &str, desk: &dyn Desk, clock: &SharedClock) -> Result<(), String> {
    match serde_json::from_str(line).map_err(|error| format!("the question cannot be read: {error}"))? {
        // What is no pod of the cluster is selected by nothing.
        Question::Add(record) if record.name.is_empty() => Ok(()),
        // Which pod of that name it is decides what isolates it.
        Question::Add(record) if record.uid.is_empty() => Err(format!("which pod {} it is, is not told", record.key())),
        Question::Add(record) => {
            if record.addresses.is_empty() || record.addresses.len() > ADDRESSES || record.container.is_empty() {
                return Err(format!("a sandbox with 1 to {ADDRESSES} addresses is asked about"));
            }
            let (send, receive) = oneshot::channel();
            let (key, uid) = (record.key(), record.uid.clone());
            if !desk.claims().lock().add(record) {
                desk.is_full();
                return Err(format!("more than {CLAIMS} sandboxes"));
            }
            desk.look(key.clone(), Some(Waiter { key: key.clone(), uid, answer: send }));
            match clock.timeout(LIMIT, receive).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err("the network policies end".to_owned()),
                Err(_) => Err(format!("the rules of pod {key} were not in the kernel in time")),
            }
        }
        Question::Del(record) => {
            if let Some(key) = desk.claims().lock().remove(&record.container) {
                desk.look(key, None);
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
