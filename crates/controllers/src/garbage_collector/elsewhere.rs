//! APIs that other servers answer for come and go while the collector runs: their APIServices say which can be
//! asked at present.
//!
//! An API that cannot be asked is not gone: what is known of its objects stays, and nothing is deleted for
//! want of an owner there, as owners are read anew before that.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use client::controller::{self, Next, Pass, Reconcile};
use client::discovery::{self, Discovered, Served};
use client::{Bounds, Informer, Meta, Queue, Resource, Result};
use parking_lot::Mutex;
use stdx::shutdown::Stage;

use super::Controller;
use crate::context::Context;
use crate::views::ApiServiceView;

/// Lists of one server that are read at a time.
const AT_ONCE: usize = 2;

/// Group and version.
type Api = (String, String);

/// The APIs that are followed, by the names of their APIServices.
#[derive(Default)]
pub(super) struct Elsewhere(Mutex<HashMap<String, Followed>>);

struct Followed {
    api: Api,
    resources: Vec<Resource>,
    /// Ends their caches.
    stage: Stage,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.stage.stop();
    }
}

/// True where the API server knows APIServices.
pub(super) fn is_known(found: &Discovered) -> bool {
    let is_it = |s: &Served| *s.resource.group == *"apiregistration.k8s.io" && *s.resource.plural == *"apiservices";
    found.resources.iter().any(is_it)
}

/// The version another server answers for, and whether that can be asked; `None` for one of the API server's own.
fn elsewhere(view: &ApiServiceView) -> Option<(Api, bool)> {
    view.spec.service.as_ref()?;
    let mut conditions = view.status.conditions.iter().flatten();
    let is_available = conditions.any(|c| c.kind == "Available" && c.status == "True");
    Some(((view.spec.group.clone(), view.spec.version.clone()), is_available))
}

/// All of them, once it is known which there are.
pub(crate) async fn of(found: &Discovered, context: &Context) -> HashMap<Api, bool> {
    if !is_known(found) {
        return HashMap::new();
    }
    let api_services = context.api_services();
    api_services.synced().await;
    all(&api_services)
}

fn all(api_services: &Informer<ApiServiceView>) -> HashMap<Api, bool> {
    api_services.list().iter().filter_map(|cached| elsewhere(&cached.view)).collect()
}

/// Brings what is followed of one APIService up to date; each waits for its own server only.
struct Follower {
    controller: Arc<Controller>,
    context: Context,
    api_services: Informer<ApiServiceView>,
}

/// Follows them from now on.
pub(super) fn follow(controller: &Arc<Controller>, context: &Context) {
    let (api_services, queue) = (context.api_services(), Queue::<String>::new(context.clock.clone()));
    let keys = queue.clone();
    api_services.subscribe(move |change| {
        keys.add(change.object().meta.name.clone());
    });
    let ready = api_services.synced();
    let follower = Follower { controller: controller.clone(), context: context.clone(), api_services };
    controller::run(
        context.runner("garbage-collector-elsewhere", 10),
        queue,
        Arc::new(follower),
        ready,
        &context.stage,
    );
    let (own, stage) = (controller.clone(), context.stage.clone());
    context.stage.spawn(async move {
        stage.stopped().await;
        own.elsewhere.0.lock().clear();
    });
}

#[async_trait]
impl Reconcile for Follower {
    type Key = String;

    async fn reconcile(&self, name: &String, _pass: &Pass) -> Result<Next> {
        let found = self.api_services.find("", name);
        let wanted = found
            .and_then(|cached| elsewhere(&cached.view))
            .and_then(|(api, is_available)| is_available.then_some(api));
        let followed = self.controller.elsewhere.0.lock().get(name).map(|followed| followed.api.clone());
        if followed == wanted {
            return Ok(Next::Done);
        }
        self.leave(name);
        if let Some(api) = wanted {
            let served = discovery::discover_version(self.context.reader(), &api.0, &api.1).await?;
            self.join(name, api, served);
        }
        Ok(Next::Done)
    }
}

impl Follower {
    /// Owners there can no longer be looked for: nobody may think that they are gone.
    fn leave(&self, name: &str) {
        let Some(followed) = self.controller.elsewhere.0.lock().remove(name) else { return };
        for resource in &followed.resources {
            self.controller.kinds.lock().remove(&(resource.group.to_string(), resource.kind.to_string()));
        }
    }

    fn join(&self, name: &str, api: Api, served: Vec<Served>) {
        let mut followed = Followed { api, resources: Vec::new(), stage: Stage::new() };
        let client = self.context.reader().clone().with_bounds(Bounds::FOREIGN).taking_turns(AT_ONCE);
        for served in served {
            let resource = served.resource.clone();
            let kind = (resource.group.to_string(), resource.kind.to_string());
            self.controller.kinds.lock().insert(kind, resource.clone());
            if served.can(&["list", "watch", "delete"]) {
                let (own, of) = (self.controller.clone(), resource.clone());
                let tell = move |meta: &Meta, is_gone| own.heard(&of, meta, is_gone);
                // Nobody waits for another server's objects.
                drop(self.context.follow_with(client.clone(), &resource, &followed.stage, tell));
            }
            followed.resources.push(resource);
        }
        self.controller.elsewhere.0.lock().insert(name.to_owned(), followed);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(object: Value, want: Option<bool>) {
        let view: ApiServiceView = serde_json::from_value(object.clone()).expect("a view");
        let got = elsewhere(&view);
        assert_eq!(got, want.map(|is_available| (("g".to_owned(), "v1".to_owned()), is_available)), "{object}");
    }

    #[test]
    fn an_api_is_asked_while_it_is_available() {
        let spec = json!({"group": "g", "version": "v1", "service": {"namespace": "n", "name": "s"}});
        let status = |status: &str| json!({"conditions": [{"type": "Available", "status": status}]});
        check(json!({"spec": spec, "status": status("True")}), Some(true));
        check(json!({"spec": spec, "status": status("False")}), Some(false));
        check(json!({"spec": spec}), Some(false));
        check(json!({"spec": {"group": "g", "version": "v1"}, "status": status("True")}), None);
    }
}
