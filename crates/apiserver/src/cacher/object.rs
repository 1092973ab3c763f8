//! One object as the cache keeps it: the bytes clients get, and what selectors and indexes read.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use kinds::AnyKind;
use machinery::schema::Type;
use machinery::status::{self, Status};
use machinery::{encode, meta, proto};
use parking_lot::Mutex;
use serde_json::Value;
use storage::Entry;

use super::pairs::{Marks, Pairs};
use crate::encode::json;

/// An object at one revision. Its JSON is complete: what a client gets, `resourceVersion` included.
#[derive(Debug)]
pub struct CachedObject {
    /// `namespace/name`, or `name` at cluster scope: the storage key without the kind's prefix.
    pub key: Arc<str>,
    /// The commit that wrote it, which is its resourceVersion; of a deleted one the commit that did.
    pub revision: u64,
    /// The commit that created it.
    pub create_revision: u64,
    pub uid: String,
    pub labels: Arc<Pairs>,
    /// What field selectors read.
    pub fields: Arc<Pairs>,
    /// The uids of its owners.
    pub owners: Vec<String>,
    pub json: Bytes,
    /// How many bytes of it say kind and version, which a list says once for all; 0 when they do not
    /// stand at its beginning.
    head: usize,
    /// The same in protobuf, without an envelope: made for the first reader that wants it.
    protobuf: OnceLock<Bytes>,
    /// The same in other versions of a custom resource, for those who have asked.
    forms: OnceLock<Box<Forms>>,
    /// Why the stored bytes could not be read. Such an object is there all the same: reading it is
    /// an error, never "not found", and nothing may take it for deleted.
    pub damage: Option<String>,
}

/// Forms of an object by their version.
type Forms = Mutex<Vec<(String, Arc<CachedObject>)>>;

/// The same object at the same revision; its content follows.
impl PartialEq for CachedObject {
    fn eq(&self, other: &Self) -> bool {
        self.revision == other.revision && self.key == other.key
    }
}

impl CachedObject {
    /// Empty at cluster scope.
    pub fn namespace(&self) -> &str {
        self.key.rsplit_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.key.rsplit_once('/').map_or(&self.key, |(_, name)| name)
    }

    /// The object as a tree; 500 when its stored bytes are damaged.
    pub fn value(&self) -> status::Result<Value> {
        if let Some(damage) = &self.damage {
            return Err(Status::internal(damage));
        }
        serde_json::from_slice(&self.json).map_err(Status::internal)
    }

    /// The object as an item of a list of its kind: what follows the `{` that its own head is cut down to.
    pub fn item(&self) -> Option<&[u8]> {
        self.json.get(self.head..).filter(|_| self.head > 0)
    }

    /// The object in protobuf, without an envelope, as its own kind's schema says; made once.
    ///
    /// # Errors
    /// 500 when the stored bytes are damaged.
    pub fn protobuf(&self, schema: &Type) -> status::Result<&Bytes> {
        if let Some(made) = self.protobuf.get() {
            return Ok(made);
        }
        if let Some(damage) = &self.damage {
            return Err(Status::internal(damage));
        }
        let made = proto::transcode(&self.json, schema)?;
        // It is kept for as long as the object: not a byte more than it needs.
        Ok(self.protobuf.get_or_init(|| made.into_boxed_slice().into()))
    }

    /// The same if some reader has wanted it.
    pub fn protobuf_if_made(&self) -> Option<&Bytes> {
        self.protobuf.get()
    }

    /// The object in another version, if somebody has asked for it.
    pub fn other_form(&self, version: &str) -> Option<Arc<Self>> {
        let forms = self.forms.get()?.lock();
        forms.iter().find(|(of, _)| of == version).map(|(_, form)| form.clone())
    }

    /// Keeps the object in another version, which is the kind's, as a tree and as JSON.
    pub fn keep_form(&self, version: &str, kind: &dyn AnyKind, tree: &Value, json: Vec<u8>) -> Arc<Self> {
        let pairs =
            |pairs: BTreeMap<String, String>| Arc::new(Pairs::new(pairs.iter().map(|(k, v)| (k.as_str(), v.as_str()))));
        let form = Arc::new(Self {
            key: self.key.clone(),
            revision: self.revision,
            create_revision: self.create_revision,
            uid: self.uid.clone(),
            labels: pairs(meta::labels(tree)),
            fields: pairs(kind.fields(tree)),
            owners: self.owners.clone(),
            json: json.into(),
            head: 0,
            protobuf: OnceLock::new(),
            forms: OnceLock::new(),
            damage: None,
        });
        let mut forms = self.forms.get_or_init(Box::default).lock();
        if forms.iter().all(|(of, _)| of != version) {
            forms.push((version.to_owned(), form.clone()));
        }
        form
    }

    /// What a walk over many objects knows it by. A damaged one passes everywhere.
    pub(super) fn marks(&self) -> Marks {
        if self.damage.is_some() { Marks::ALL } else { Marks::of(&self.labels, &self.fields) }
    }

    /// Reads a stored entry. What `previous` has the same is shared with it.
    pub(super) fn read(kind: &dyn AnyKind, key: Arc<str>, entry: &Entry, previous: Option<&Self>) -> Self {
        let (revision, create_revision) = (entry.mod_revision, entry.create_revision);
        let mut tree: Value = match kind.sketch(&entry.value) {
            Ok(tree @ Value::Object(_)) => tree,
            other => {
                let why = other.err().map_or("it is not an object".to_owned(), |e| e.to_string());
                let damage = format!("unable to decode the stored object {key}: {why}");
                tracing::error!(kind = kind.shape().kind, revision, "{damage}");
                return Self::damaged(key, revision, create_revision, damage);
            }
        };
        let refreshed = kind.is_custom().then(|| refreshed(kind, &mut tree, &entry.value)).flatten();
        let (tree, stored) = (&tree, refreshed.as_deref().unwrap_or(&entry.value));
        let share = |pairs: BTreeMap<String, String>, old: Option<&Arc<Pairs>>| {
            let pairs = Pairs::new(pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())));
            match old {
                Some(old) if **old == pairs => old.clone(),
                _ => Arc::new(pairs),
            }
        };
        let shape = kind.shape();
        let head = json::head(shape.kind, &shape.api_version());
        Self {
            head: if stored.starts_with(head.as_bytes()) { head.len() } else { 0 },
            revision,
            create_revision,
            uid: meta::uid(tree).to_owned(),
            labels: share(meta::labels(tree), previous.map(|p| &p.labels)),
            fields: share(kind.fields(tree), previous.map(|p| &p.fields)),
            owners: meta::owner_references(tree).iter().map(|owner| owner.uid.to_owned()).collect(),
            json: encode::splice_resource_version(stored, revision).into(),
            protobuf: OnceLock::new(),
            forms: OnceLock::new(),
            damage: None,
            key,
        }
    }

    /// What is answered and stored nowhere, of the kind: it has no revision.
    pub fn computed(kind: &dyn AnyKind, key: &str, tree: &Value) -> Self {
        let pairs =
            |pairs: BTreeMap<String, String>| Arc::new(Pairs::new(pairs.iter().map(|(k, v)| (k.as_str(), v.as_str()))));
        Self {
            key: key.into(),
            revision: 0,
            create_revision: 0,
            uid: meta::uid(tree).to_owned(),
            labels: pairs(meta::labels(tree)),
            fields: pairs(kind.fields(tree)),
            owners: Vec::new(),
            json: encode::json(tree, &kind.schema()).into(),
            head: 0,
            protobuf: OnceLock::new(),
            forms: OnceLock::new(),
            damage: None,
        }
    }

    fn damaged(key: Arc<str>, revision: u64, create_revision: u64, damage: String) -> Self {
        Self {
            key,
            revision,
            create_revision,
            uid: String::new(),
            labels: Arc::default(),
            fields: Arc::default(),
            owners: Vec::new(),
            json: Bytes::new(),
            head: 0,
            protobuf: OnceLock::new(),
            forms: OnceLock::new(),
            damage: Some(damage),
        }
    }

    /// The same object under a later revision: what a DELETED event shows.
    pub(super) fn at(&self, revision: u64) -> Self {
        Self {
            key: self.key.clone(),
            revision,
            create_revision: self.create_revision,
            uid: self.uid.clone(),
            labels: self.labels.clone(),
            fields: self.fields.clone(),
            owners: self.owners.clone(),
            json: encode::splice_resource_version(&self.json, revision).into(),
            head: self.head,
            protobuf: OnceLock::new(),
            forms: OnceLock::new(),
            damage: self.damage.clone(),
        }
    }
}

/// Brings a stored custom resource into the form of its schema today; its JSON, `None` when it had that
/// form already. What does not fit stays as it is.
fn refreshed(kind: &dyn AnyKind, tree: &mut Value, stored: &[u8]) -> Option<Vec<u8>> {
    let mut today = tree.clone();
    kind.refresh(&mut today).ok()?;
    *tree = today;
    let json = encode::json(tree, &kind.schema());
    (json != stored).then_some(json)
}
