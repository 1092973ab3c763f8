//! Which object a key of the store names.

use kinds::{Keep, Shape};

/// A key of the store, taken apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The plural, `pods`; events and endpoint slices included.
    pub plural: &'static str,
    /// Empty for cluster scope.
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.plural, self.namespace, self.name)
    }
}

/// The shape whose objects live under `key`.
fn shape(key: &str) -> Option<(Shape, &str)> {
    let rest = key.strip_prefix("/registry/")?;
    kinds::stored()
        .map(|kind| kind.shape())
        .filter(|shape| shape.keep != Keep::Virtual)
        .filter_map(|shape| Some((shape, rest.strip_prefix(shape.prefix)?.strip_prefix('/')?)))
        .max_by_key(|(shape, _)| shape.prefix.len())
}

/// Takes a key apart; `None` for keys that hold no object.
pub fn parse(key: &str) -> Option<ObjectKey> {
    let (shape, rest) = shape(key)?;
    let (namespace, name) = match shape.scope {
        kinds::Scope::Namespaced => rest.split_once('/')?,
        kinds::Scope::Cluster => ("", rest),
    };
    Some(ObjectKey { plural: shape.plural, namespace: namespace.to_owned(), name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_objects() {
        let read = |key| parse(key).map(|k| k.to_string());
        assert_eq!(read("/registry/pods/default/web"), Some("pods default/web".into()));
        assert_eq!(read("/registry/minions/a"), Some("nodes /a".into()));
        assert_eq!(read("/registry/services/specs/default/web"), Some("services default/web".into()));
        assert_eq!(read("/registry/services/endpoints/default/web"), Some("endpoints default/web".into()));
        assert_eq!(read("/registry/unknown/x"), None);
    }
}
