//! Custom resources come and go while the collector runs: their definitions say which there are.

use std::collections::HashMap;
use std::sync::Arc;

use client::{Change, Resource};
use futures::future::BoxFuture;
use machinery::version;
use parking_lot::Mutex;
use stdx::shutdown::Stage;

use super::Controller;
use crate::context::Context;
use crate::views::DefinitionView;

/// The custom resources that are followed, by group and plural.
#[derive(Default)]
pub(super) struct Custom(Mutex<HashMap<(String, String), Followed>>);

struct Followed {
    resource: Resource,
    /// Ends the cache.
    stage: Stage,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.stage.stop();
    }
}

impl Custom {
    /// True when the resource is one of them.
    pub(super) fn has(&self, resource: &Resource) -> bool {
        self.0.lock().contains_key(&key(resource))
    }
}

fn key(resource: &Resource) -> (String, String) {
    (resource.group.to_string(), resource.plural.to_string())
}

/// True for the resource of definitions.
pub(super) fn is_definition(resource: &Resource) -> bool {
    *resource.group == *"apiextensions.k8s.io" && *resource.plural == *"customresourcedefinitions"
}

/// The resource that a definition brings, in the version clients prefer; `None` while it is not served.
fn resource(view: &DefinitionView) -> Option<Resource> {
    let spec = &view.spec;
    let established = view.status.conditions.iter().flatten().any(|c| c.kind == "Established" && c.status == "True");
    let served = spec.versions.iter().filter(|v| v.served).map(|v| v.name.as_str());
    let preferred = served.max_by_key(|name| version::rank(name)).filter(|_| established)?;
    let namespaced = spec.scope == "Namespaced";
    Some(Resource::new(&spec.group, preferred, &spec.names.plural, &spec.names.kind, namespaced))
}

impl Controller {
    /// Follows the definitions; what the caches of those that are there are filled by.
    pub(super) async fn follow_definitions(self: &Arc<Self>, context: &Context) -> Vec<BoxFuture<'static, ()>> {
        let definitions = context.definitions();
        let filled = Arc::new(Mutex::new(Some(Vec::new())));
        let (own, of, begun) = (self.clone(), context.clone(), filled.clone());
        definitions.subscribe(move |change| {
            let view = &change.object().view;
            match change {
                Change::Deleted(_) => own.leave(&view.spec.group, &view.spec.names.plural),
                Change::Applied { .. } => {
                    let Some(resource) = resource(view) else { return };
                    if let Some(synced) = own.join(&of, resource)
                        && let Some(all) = &mut *begun.lock()
                    {
                        all.push(synced);
                    }
                }
            }
        });
        let (stage, own) = (context.stage.clone(), self.clone());
        context.stage.spawn(async move {
            stage.stopped().await;
            own.custom.0.lock().clear();
        });
        definitions.synced().await;
        filled.lock().take().unwrap_or_default()
    }

    fn join(self: &Arc<Self>, context: &Context, resource: Resource) -> Option<BoxFuture<'static, ()>> {
        let mut custom = self.custom.0.lock();
        if custom.get(&key(&resource)).is_some_and(|followed| followed.resource == resource) {
            return None;
        }
        let kind = (resource.group.to_string(), resource.kind.to_string());
        self.kinds.lock().insert(kind, resource.clone());
        let (stage, own, of) = (Stage::new(), self.clone(), resource.clone());
        let synced = context.follow_custom(&resource, &stage, move |meta, is_gone| own.heard(&of, meta, is_gone));
        custom.insert(key(&resource), Followed { resource, stage });
        Some(synced)
    }

    /// A custom resource is gone, and its objects with it.
    fn leave(&self, group: &str, plural: &str) {
        let Some(followed) = self.custom.0.lock().remove(&(group.to_owned(), plural.to_owned())) else { return };
        let kind = (followed.resource.group.to_string(), followed.resource.kind.to_string());
        self.kinds.lock().remove(&kind);
        let uids = self.graph.lock().of_resource(group, plural);
        for uid in uids {
            let work = self.graph.lock().deleted(&uid);
            self.enqueue(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(versions: Value, conditions: Value, want: Option<&str>) {
        let view = json!({"spec": {"group": "b.c", "scope": "Namespaced", "names": {"plural": "as", "kind": "A"},
            "versions": versions}, "status": {"conditions": conditions}});
        let view: DefinitionView = serde_json::from_value(view).expect("a view");
        let got = resource(&view).map(|r| format!("{} {} {}", r.api_version(), r.plural, r.kind));
        assert_eq!(got.as_deref(), want);
    }

    #[test]
    fn a_definition_brings_its_best_served_version_once_established() {
        let established = json!([{"type": "Established", "status": "True"}]);
        let versions = json!([{"name": "v1alpha1", "served": true}, {"name": "v1", "served": true}, {"name": "v2"}]);
        check(versions.clone(), established.clone(), Some("b.c/v1 as A"));
        check(versions.clone(), json!([{"type": "Established", "status": "False"}]), None);
        check(versions, json!(null), None);
        check(json!([{"name": "v1", "served": false}]), established, None);
    }
}
