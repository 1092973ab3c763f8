//! Trees of the small objects that the server itself reads at every write: the namespace, the service
//! account. Each is parsed once a revision, and few are kept.

use std::collections::HashMap;
use std::sync::Arc;

use machinery::status;
use parking_lot::Mutex;
use serde_json::Value;

use super::object::CachedObject;

/// So many trees are kept for a kind; at the next one all are forgotten.
const MOST: usize = 64;
/// Of objects whose JSON is no longer than this: a tree is some five times as large.
const LONGEST: usize = 4096;

/// A tree and the revision it is of.
type Tree = (u64, Arc<Value>);

/// The trees of one kind by the object's key.
#[derive(Default)]
pub(super) struct Trees(Mutex<HashMap<Arc<str>, Tree>>);

impl Trees {
    /// The object as a tree.
    ///
    /// # Errors
    /// 500 when its stored bytes are damaged.
    pub(super) fn of(&self, object: &CachedObject) -> status::Result<Arc<Value>> {
        if let Some((revision, tree)) = self.0.lock().get(&object.key)
            && *revision == object.revision
        {
            return Ok(tree.clone());
        }
        let tree = Arc::new(object.value()?);
        if object.json.len() <= LONGEST {
            let mut trees = self.0.lock();
            if trees.len() >= MOST && !trees.contains_key(&object.key) {
                trees.clear();
            }
            trees.insert(object.key.clone(), (object.revision, tree.clone()));
        }
        Ok(tree)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;
    use storage::Entry;

    use super::*;

    fn object(name: &str, revision: u64, note: &str) -> CachedObject {
        let kind = kinds::ALL.iter().find(|kind| kind.shape().kind == "Namespace").expect("a kind");
        let value = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name, "uid": note}});
        let entry = Entry {
            key: Bytes::from(format!("/registry/namespaces/{name}")),
            value: Bytes::from(value.to_string()),
            create_revision: 1,
            mod_revision: revision,
            version: 1,
        };
        CachedObject::read(*kind, name.into(), &entry, None)
    }

    #[test]
    fn a_tree_is_of_the_revision_that_is_asked_for_and_few_are_kept() {
        let trees = Trees::default();
        let uid = |tree: &Value| tree.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned);
        let first = trees.of(&object("a", 1, "x")).expect("read");
        assert!(Arc::ptr_eq(&first, &trees.of(&object("a", 1, "x")).expect("kept")));
        let second = trees.of(&object("a", 2, "y")).expect("read");
        assert_eq!((uid(&first).as_deref(), uid(&second).as_deref()), (Some("x"), Some("y")));
        trees.of(&object("long", 1, &"x".repeat(LONGEST))).expect("read");
        assert_eq!(trees.0.lock().len(), 1, "one that is long is not kept");
        for n in 0..2 * MOST {
            trees.of(&object(&format!("n{n}"), 1, "z")).expect("read");
            assert!(trees.0.lock().len() <= MOST);
        }
    }
}
