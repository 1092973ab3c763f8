//! Objects by key, and the indexes over them. No I/O; the reflector writes, readers read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use machinery::labels::Selector;

use super::{Cached, Indexer};
use crate::object::Key;

/// Keys by value.
type Values = HashMap<String, BTreeSet<Key>>;

struct Index<V> {
    name: &'static str,
    values: Indexer<V>,
    keys: Values,
}

pub(super) struct Cache<V> {
    objects: BTreeMap<Key, Arc<Cached<V>>>,
    indexes: Vec<Index<V>>,
    /// `namespace/label=value` to keys, when asked for.
    labels: Option<Values>,
}

impl<V> Default for Cache<V> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), indexes: Vec::new(), labels: None }
    }
}

fn label_key(namespace: &str, label: &str, value: &str) -> String {
    format!("{namespace}/{label}={value}")
}

fn take(values: &mut Values, value: &str, key: &Key) {
    if let Some(keys) = values.get_mut(value) {
        keys.remove(key);
        if keys.is_empty() {
            values.remove(value);
        }
    }
}

impl<V> Cache<V> {
    pub(super) fn add_index(&mut self, name: &'static str, values: Indexer<V>) {
        self.indexes.push(Index { name, values, keys: HashMap::new() });
    }

    pub(super) fn index_labels(&mut self) {
        self.labels = Some(HashMap::new());
    }

    /// Puts an object in; the one it replaces comes out.
    pub(super) fn insert(&mut self, object: Arc<Cached<V>>) -> Option<Arc<Cached<V>>> {
        let key = object.meta.key();
        let old = self.remove(&key);
        for index in &mut self.indexes {
            for value in (index.values)(&object.meta, &object.view) {
                index.keys.entry(value).or_default().insert(key.clone());
            }
        }
        if let Some(labels) = &mut self.labels {
            for (label, value) in &object.meta.labels {
                labels.entry(label_key(&key.namespace, label, value)).or_default().insert(key.clone());
            }
        }
        self.objects.insert(key, object);
        old
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Arc<Cached<V>>> {
        let old = self.objects.remove(key)?;
        for index in &mut self.indexes {
            for value in (index.values)(&old.meta, &old.view) {
                take(&mut index.keys, &value, key);
            }
        }
        if let Some(labels) = &mut self.labels {
            for (label, value) in &old.meta.labels {
                take(labels, &label_key(&key.namespace, label, value), key);
            }
        }
        Some(old)
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<Cached<V>>> {
        self.objects.get(key).cloned()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Cached<V>>> {
        self.objects.values()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.objects.keys()
    }

    pub(super) fn namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<Cached<V>>> {
        let from = Bound::Included(Key::new(namespace, ""));
        self.objects.range((from, Bound::Unbounded)).take_while(move |(k, _)| k.namespace == namespace).map(|(_, o)| o)
    }

    pub(super) fn select(&self, namespace: &str, selector: &Selector) -> Vec<Arc<Cached<V>>> {
        let matches = |object: &&Arc<Cached<V>>| selector.matches(&object.meta.labels);
        if let Some(labels) = &self.labels {
            // The rarest label the selector demands says where to look.
            let demanded = selector.requirements().iter().filter_map(|r| {
                let value = selector.requires_exact(&r.key)?;
                Some(labels.get(&label_key(namespace, &r.key, value)))
            });
            let rarest = demanded.min_by_key(|keys| keys.map_or(0, BTreeSet::len));
            if let Some(keys) = rarest {
                let keys = keys.into_iter().flatten();
                return keys.filter_map(|k| self.objects.get(k)).filter(matches).cloned().collect();
            }
        }
        self.namespace(namespace).filter(matches).cloned().collect()
    }

    pub(super) fn by_index(&self, name: &str, value: &str) -> Vec<Arc<Cached<V>>> {
        let index = self.indexes.iter().find(|i| i.name == name);
        let keys = index.and_then(|i| i.keys.get(value)).into_iter().flatten();
        keys.filter_map(|k| self.objects.get(k)).cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }
}
