//! A claim of storage, or an Ingress, that names no class gets the cluster's default one.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use kinds::Verb;
use machinery::{meta, status};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Attributes, Plugin};
use crate::objects::{self, Change, Objects, Resource, Seen};

/// What one of the two plugins is about.
struct About {
    name: &'static str,
    classes: Resource,
    /// Annotations that make a class the default.
    marks: &'static [&'static str],
    of: Resource,
    field: &'static str,
    /// How classes were named before there was a field for it.
    older: &'static str,
}

const STORAGE: About = About {
    name: "DefaultStorageClass",
    classes: objects::STORAGE_CLASSES,
    marks: &["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"],
    of: objects::PERSISTENT_VOLUME_CLAIMS,
    field: "storageClassName",
    older: "volume.beta.kubernetes.io/storage-class",
};

const INGRESS: About = About {
    name: "DefaultIngressClass",
    classes: Resource { group: "networking.k8s.io", plural: "ingressclasses" },
    marks: &["ingressclass.kubernetes.io/is-default-class"],
    of: Resource { group: "networking.k8s.io", plural: "ingresses" },
    field: "ingressClassName",
    older: "kubernetes.io/ingress.class",
};

#[derive(Default)]
struct Classes {
    /// When those were made that say they are the default.
    defaults: BTreeMap<String, String>,
    seen: Seen,
}

/// The plugin, for either kind.
pub struct DefaultClass {
    objects: Arc<dyn Objects>,
    about: &'static About,
    classes: Mutex<Classes>,
}

impl DefaultClass {
    /// For claims of storage.
    pub fn storage(objects: Arc<dyn Objects>) -> Self {
        Self { objects, about: &STORAGE, classes: Mutex::default() }
    }

    /// For Ingresses.
    pub fn ingress(objects: Arc<dyn Objects>) -> Self {
        Self { objects, about: &INGRESS, classes: Mutex::default() }
    }

    /// The default class, of several the newest.
    fn default_class(&self) -> Option<String> {
        let mut classes = self.classes.lock();
        let mut seen = std::mem::take(&mut classes.seen);
        for change in self.objects.changes(self.about.classes, &mut seen) {
            match change {
                Change::Put(class) => {
                    let is_default = self.about.marks.iter().any(|m| meta::annotation(&class, m) == Some("true"));
                    let (name, made) = (meta::name(&class), super::text(&class, "/metadata/creationTimestamp"));
                    match is_default {
                        true => drop(classes.defaults.insert(name.to_owned(), made.to_owned())),
                        false => drop(classes.defaults.remove(name)),
                    }
                }
                Change::Gone { name, .. } => drop(classes.defaults.remove(&name)),
            }
        }
        classes.seen = seen;
        newest(&classes.defaults)
    }
}

/// The newest, of those made in the same second the first by name.
fn newest(classes: &BTreeMap<String, String>) -> Option<String> {
    let newest = classes.values().max()?;
    classes.iter().find(|(_, made)| *made == newest).map(|(name, _)| name.clone())
}

#[async_trait]
impl Plugin for DefaultClass {
    fn name(&self) -> &'static str {
        self.about.name
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Value>) -> status::Result<()> {
        let Some(object) = object.filter(|_| attributes.verb == Verb::Create) else { return Ok(()) };
        if !attributes.is_for(self.about.of, "") || meta::annotation(object, self.about.older).is_some() {
            return Ok(());
        }
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
        if spec.get(self.about.field).is_none_or(Value::is_null) {
            if let Some(class) = self.default_class() {
                spec.insert(self.about.field.into(), json!(class));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::fixed::Fixed;

    #[test]
    fn of_several_defaults_the_newest() {
        let objects = Arc::new(Fixed::default());
        let plugin = DefaultClass::storage(objects.clone());
        let class = |name: &str, made: &str, mark: &str| json!({"metadata": {"name": name, "creationTimestamp": made, "annotations": {STORAGE.marks[0]: mark}}});
        assert_eq!(plugin.default_class(), None);
        objects.put(objects::STORAGE_CLASSES, class("b", "2026-01-01T00:00:00Z", "true"));
        objects.put(objects::STORAGE_CLASSES, class("a", "2026-01-01T00:00:00Z", "true"));
        assert_eq!(plugin.default_class().as_deref(), Some("a"));
        objects.put(objects::STORAGE_CLASSES, class("c", "2026-01-02T00:00:00Z", "true"));
        assert_eq!(plugin.default_class().as_deref(), Some("c"));
        objects.put(objects::STORAGE_CLASSES, class("c", "2026-01-02T00:00:00Z", "false"));
        objects.remove(objects::STORAGE_CLASSES, "", "a");
        assert_eq!(plugin.default_class().as_deref(), Some("b"));
    }
}
