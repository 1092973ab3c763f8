//! Users: they create, change and delete what they like, at any time.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, DeleteParams, Error, ListParams, Patch, Propagation, Resource};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use machinery::meta;
use serde_json::{Value, json};
use stdx::clock::Clock;

use super::recorder::Objects;
use super::view::{self, at, text};
use super::world::World;

/// What users do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    CreateDeployment,
    CreateService,
    CreatePod,
    CreateUrgentPod,
    CreateNamespace,
    Apply,
    ChangeService,
    Hold,
    DeleteNode,
    Scale,
    SetImage,
    Pause,
    Resume,
    Undo,
    Relabel,
    DeletePod,
    CrashContainer,
    EvictPod,
    DeleteDeployment,
    DeleteReplicaSet,
    DeleteService,
    DeleteNamespace,
}

/// What leaves every promise about surge and availability in force.
pub const GENTLE: &[Act] = &[
    Act::CreateDeployment,
    Act::CreateService,
    Act::Scale,
    Act::SetImage,
    Act::SetImage,
    Act::SetImage,
    Act::Pause,
    Act::Resume,
    Act::Undo,
];

/// Everything.
pub const ROUGH: &[Act] = &[
    Act::CreateDeployment,
    Act::CreateDeployment,
    Act::CreateService,
    Act::CreatePod,
    Act::CreateUrgentPod,
    Act::CreateNamespace,
    Act::Apply,
    Act::ChangeService,
    Act::Hold,
    Act::DeleteNode,
    Act::Scale,
    Act::Scale,
    Act::SetImage,
    Act::SetImage,
    Act::Pause,
    Act::Resume,
    Act::Undo,
    Act::Relabel,
    Act::DeletePod,
    Act::CrashContainer,
    Act::EvictPod,
    Act::DeleteDeployment,
    Act::DeleteReplicaSet,
    Act::DeleteService,
    Act::DeleteNamespace,
];

/// A finalizer of a user's own.
const HOLD: &str = "example.com/hold";

/// The resources users put finalizers on.
fn resource(plural: &str) -> Option<Resource> {
    Some(match plural {
        "pods" => Resource::of::<Pod>(),
        "replicasets" => Resource::of::<ReplicaSet>(),
        "deployments" => Resource::of::<Deployment>(),
        "services" => Resource::of::<Service>(),
        _ => return None,
    })
}

/// Why a Wait should not be there; `None` when it tells the truth.
fn idle_wait(wait: &Value, objects: &Objects) -> Option<String> {
    let part = |name: &str| text(wait, &format!("/object/{name}"));
    let told = format!("{} {} of {} {}", text(wait, "/layer"), text(wait, "/code"), part("kind"), part("name"));
    let Some(object) = objects.values().find(|o| meta::uid(o) == part("uid")) else {
        return Some(format!("it is said to wait, and is gone: {told}"));
    };
    let is_starved = |o: &Value| {
        let namespace = meta::namespace(o);
        let pods = view::all(objects, "pods").filter(|p| meta::namespace(p) == namespace);
        pods.into_iter().any(|p| view::is_active(p) && text(p, "/spec/nodeName").is_empty())
    };
    (!is_starved(object)).then(|| format!("it is said to wait, and does not: {told}: {}", text(wait, "/text")))
}

/// A user at the keyboard.
pub struct User {
    world: Arc<World>,
    client: Client,
}

/// An object as the store has it.
type Found = Arc<Value>;

impl User {
    /// A user of this world.
    pub fn new(world: Arc<World>) -> Self {
        let client = world.admin();
        Self { world, client }
    }

    fn below(&self, bound: u64) -> u64 {
        self.world.rng.below(bound)
    }

    fn pick<T: Clone>(&self, from: &[T]) -> Option<T> {
        let length = u64::try_from(from.len()).ok().filter(|l| *l > 0)?;
        from.get(usize::try_from(self.below(length)).ok()?).cloned()
    }

    fn pick_from(&self, objects: &Objects, plural: &str, wanted: impl Fn(&Value) -> bool) -> Option<Found> {
        let all: Vec<Found> =
            objects.iter().filter(|(k, o)| k.plural == plural && wanted(o)).map(|(_, o)| o.clone()).collect();
        self.pick(&all)
    }

    fn any(&self, objects: &Objects, plural: &str) -> Option<Found> {
        self.pick_from(objects, plural, |_| true)
    }

    /// Creates what clusters have from the beginning, when nobody else did.
    pub async fn prepare(&self) {
        for name in ["default", "kube-system", "kube-node-lease", "kube-public"] {
            let namespace = json!({"metadata": {"name": name}});
            let made = self.client.dynamic(Resource::of::<Namespace>()).create(&namespace).await;
            if let Err(error) = made.map(drop).or_else(|e| if e.is_already_exists() { Ok(()) } else { Err(e) }) {
                self.world.trace.broken(format_args!("namespace {name}: {error}"));
            }
        }
    }

    /// Does it, if there is anything to do it to.
    pub async fn act(&self, act: Act) {
        let objects = self.world.recorder.objects();
        let done = self.attempt(act, &objects).await;
        let outcome = match &done {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        self.world.trace.line(format_args!("user {act:?} {outcome}"));
    }

    async fn attempt(&self, act: Act, objects: &Objects) -> Result<(), Error> {
        match act {
            Act::CreateDeployment => self.create_deployment(objects).await,
            Act::CreateService => self.create_service(objects).await,
            Act::CreatePod => self.create_pod(objects).await,
            Act::CreateUrgentPod => self.create_urgent_pod().await,
            Act::Apply => self.apply(objects).await,
            Act::ChangeService => self.change_service(objects).await,
            Act::Hold => self.hold(objects).await,
            Act::DeleteNode => {
                let Some(node) = self.any(objects, "nodes") else { return Ok(()) };
                self.world.recorder.tell(|safety, objects| safety.disturb_all(objects));
                self.delete::<Node>(&node, DeleteParams::default()).await
            }
            Act::CreateNamespace => {
                let namespace = json!({"metadata": {"name": format!("team-{}", self.below(2))}});
                self.client.dynamic(Resource::of::<Namespace>()).create(&namespace).await.map(drop)
            }
            Act::Scale => {
                let replicas = self.below(6);
                let patch = json!({"spec": {"replicas": replicas}});
                let Some(deployment) = self.any(objects, "deployments") else { return Ok(()) };
                if self.below(2) == 0 {
                    return self.patch::<Deployment>(&deployment, patch).await;
                }
                let path = Resource::of::<Deployment>().path(
                    meta::namespace(&deployment),
                    Some(meta::name(&deployment)),
                    Some("scale"),
                );
                let mut call = client::client::Call::write(http::Method::PATCH, path, patch.to_string());
                call.content_type = "application/merge-patch+json";
                self.client.send(call).await.map(drop)
            }
            Act::SetImage => {
                let image = format!("registry.example/app:{}", self.below(4));
                self.patch_template(objects, json!({"containers": [{"name": "app", "image": image}]})).await
            }
            Act::Pause => self.patch_any::<Deployment>(objects, "deployments", json!({"spec": {"paused": true}})).await,
            Act::Resume => {
                self.patch_any::<Deployment>(objects, "deployments", json!({"spec": {"paused": null}})).await
            }
            Act::Undo => self.undo(objects).await,
            Act::Relabel => self.relabel(objects).await,
            Act::DeletePod => {
                let Some(pod) = self.any(objects, "pods") else { return Ok(()) };
                self.disturb(&pod);
                let params = match self.below(3) {
                    0 => DeleteParams::default(),
                    1 => DeleteParams::default().grace(5),
                    _ => DeleteParams::default().grace(0),
                };
                self.delete::<Pod>(&pod, params).await
            }
            Act::CrashContainer => {
                let Some(pod) = self.pick_from(objects, "pods", |p| view::has_condition(p, "Ready")) else {
                    return Ok(());
                };
                let until = self.world.clock.now() + Duration::from_secs(1 + self.below(20));
                self.on_machine(&pod, |machine| machine.crash(meta::uid(&pod), until));
                Ok(())
            }
            Act::EvictPod => {
                let Some(pod) = self.pick_from(objects, "pods", |p| view::has_condition(p, "Ready")) else {
                    return Ok(());
                };
                self.on_machine(&pod, |machine| machine.evict(meta::uid(&pod)));
                Ok(())
            }
            Act::DeleteDeployment => {
                let Some(deployment) = self.any(objects, "deployments") else { return Ok(()) };
                // Its pods may lose their owner, and find another.
                self.world.recorder.tell(|safety, objects| safety.disturb_all(objects));
                let params = self.propagation();
                self.delete::<Deployment>(&deployment, params).await
            }
            Act::DeleteReplicaSet => {
                let Some(set) = self.any(objects, "replicasets") else { return Ok(()) };
                self.disturb(&set);
                let params = self.propagation();
                self.delete::<ReplicaSet>(&set, params).await
            }
            Act::DeleteService => {
                let ours = |s: &Value| meta::name(s).starts_with("web-");
                let Some(service) = self.pick_from(objects, "services", ours) else { return Ok(()) };
                self.delete::<Service>(&service, DeleteParams::default()).await
            }
            Act::DeleteNamespace => {
                let Some(namespace) = self.pick_from(objects, "namespaces", |n| meta::name(n).starts_with("team-"))
                else {
                    return Ok(());
                };
                self.world.recorder.tell(|safety, objects| safety.disturb_all(objects));
                self.delete::<Namespace>(&namespace, DeleteParams::default()).await
            }
        }
    }

    /// Nothing stays paused or held for ever.
    pub async fn resume_all(&self) {
        let objects = self.world.recorder.objects();
        let is_held = |o: &Value| meta::finalizers(o).contains(&HOLD);
        for (key, object) in objects.iter().filter(|(_, o)| is_held(o)) {
            let Some(resource) = resource(key.plural) else { continue };
            let left: Vec<&str> = meta::finalizers(object).into_iter().filter(|f| *f != HOLD).collect();
            let patch = Patch::Merge(json!({"metadata": {"uid": meta::uid(object), "finalizers": left}}));
            let api = self.client.dynamic(resource).namespace(&key.namespace);
            match api.patch(&key.name, &patch).await {
                Err(error) if !error.is_not_found() => self.world.trace.broken(format_args!("let {key} go: {error}")),
                _ => {}
            }
        }
        for deployment in view::all(&objects, "deployments").filter(|d| at(d, "/spec/paused") == true) {
            let resumed = self.patch::<Deployment>(deployment, json!({"spec": {"paused": null}})).await;
            if let Err(error) = resumed {
                self.world.trace.broken(format_args!("resume {}: {error}", meta::name(deployment)));
            }
        }
    }

    /// What reads say once nothing happens any more: lists in pages are what is stored, and nothing
    /// is said to wait that does not.
    pub async fn look(&self, objects: &Objects) -> Vec<String> {
        let mut broken = Vec::new();
        let pods = self.client.dynamic(Resource::of::<Pod>());
        match pods.list_all(&ListParams::all().limit(1 + u32::try_from(self.below(5)).unwrap_or(0))).await {
            Ok(list) => {
                let names =
                    |o: &Value| (meta::namespace(o).to_owned(), meta::name(o).to_owned(), meta::uid(o).to_owned());
                let listed: Vec<_> = list.items.iter().map(names).collect();
                let stored: Vec<_> = view::all(objects, "pods").map(names).collect();
                if listed != stored {
                    broken.push(format!("pods in pages are {listed:?}, stored are {stored:?}"));
                }
            }
            Err(error) => broken.push(format!("pods in pages: {error}")),
        }
        match self.client.dynamic(client::waits::resource()).list_all(&ListParams::all()).await {
            Ok(list) => broken.extend(list.items.iter().filter_map(|wait| idle_wait(wait, objects))),
            Err(error) => broken.push(format!("waits: {error}")),
        }
        broken
    }

    fn disturb(&self, object: &Value) {
        self.world.recorder.tell(|safety, objects| safety.disturb_owner(object, objects));
    }

    fn on_machine(&self, pod: &Value, act: impl FnOnce(&super::kubelet::Machine) -> bool) {
        self.disturb(pod);
        if let Some(machine) = self.world.machines.iter().find(|m| m.name == text(pod, "/spec/nodeName")) {
            let happened = act(machine);
            self.world.trace.line(format_args!("on {}: {happened}", machine.name));
        }
    }

    fn propagation(&self) -> DeleteParams {
        let params = DeleteParams::default();
        match self.below(4) {
            0 => params,
            1 => params.propagation(Propagation::Background),
            2 => params.propagation(Propagation::Foreground),
            _ => params.propagation(Propagation::Orphan),
        }
    }

    fn namespace(&self, objects: &Objects) -> String {
        let teams = self.pick_from(objects, "namespaces", |n| meta::name(n).starts_with("team-"));
        let team = teams.filter(|_| self.below(2) == 0);
        team.map_or("default".to_owned(), |n| meta::name(&n).to_owned())
    }

    fn app(&self) -> String {
        format!("web-{}", self.below(3))
    }

    fn spec(&self, cpu: &str) -> Value {
        let image = format!("registry.example/app:{}", self.below(4));
        json!({
            "terminationGracePeriodSeconds": 10,
            "containers": [{"name": "app", "image": image, "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}],
        })
    }

    async fn create_deployment(&self, objects: &Objects) -> Result<(), Error> {
        let (namespace, app) = (self.namespace(objects), self.app());
        let strategy = match self.below(5) {
            0 => json!({"type": "Recreate"}),
            1 => json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
            2 => json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
            3 => json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "50%", "maxUnavailable": "50%"}}),
            _ => json!({}),
        };
        let settle = [0, 0, 5, 20][usize::try_from(self.below(4)).unwrap_or_default()];
        let cpu = ["50m", "100m", "250m"][usize::try_from(self.below(3)).unwrap_or_default()];
        let deployment = json!({
            "metadata": {"name": app, "labels": {"app": app}},
            "spec": {
                "replicas": self.below(6), "strategy": strategy, "minReadySeconds": settle,
                "selector": {"matchLabels": {"app": app}},
                "template": {"metadata": {"labels": {"app": app}}, "spec": self.spec(cpu)},
            },
        });
        // Where a Deployment of this name was, pods without an owner may be adopted.
        let api = self.client.dynamic(Resource::of::<Deployment>()).namespace(&namespace);
        let made = api.create(&deployment).await?;
        let stray = |p: &Value| meta::namespace(p) == namespace && view::selects(&made, p);
        if ["pods", "replicasets"].iter().any(|plural| view::all(objects, plural).any(stray)) {
            self.world.recorder.tell(|safety, _| safety.disturb(meta::uid(&made)));
        }
        Ok(())
    }

    async fn create_service(&self, objects: &Objects) -> Result<(), Error> {
        let (namespace, app) = (self.namespace(objects), self.app());
        let kind = ["ClusterIP", "NodePort"][usize::try_from(self.below(2)).unwrap_or_default()];
        let service = json!({
            "metadata": {"name": app},
            "spec": {"type": kind, "selector": {"app": app}, "ports": [{"port": 80, "targetPort": 8080}]},
        });
        self.client.dynamic(Resource::of::<Service>()).namespace(namespace).create(&service).await.map(drop)
    }

    async fn create_pod(&self, objects: &Objects) -> Result<(), Error> {
        // With the labels of a Deployment's pods but for their hash: a Service selects it, nobody adopts it.
        let (namespace, app) = (self.namespace(objects), self.app());
        let pod = json!({"metadata": {"generateName": "lone-", "labels": {"app": app}}, "spec": self.spec("300m")});
        self.client.dynamic(Resource::of::<Pod>()).namespace(namespace).create(&pod).await.map(drop)
    }

    /// So important that others must make room.
    async fn create_urgent_pod(&self) -> Result<(), Error> {
        self.world.recorder.tell(|safety, objects| safety.disturb_all(objects));
        let mut spec = self.spec("700m");
        spec["priorityClassName"] = json!("system-cluster-critical");
        let pod = json!({"metadata": {"generateName": "urgent-", "labels": {"app": "urgent"}}, "spec": spec});
        self.client.dynamic(Resource::of::<Pod>()).namespace("kube-system").create(&pod).await.map(drop)
    }

    /// What `kubectl apply --server-side` does, with a file that says replicas and image.
    async fn apply(&self, objects: &Objects) -> Result<(), Error> {
        let Some(deployment) = self.any(objects, "deployments") else { return Ok(()) };
        let image = format!("registry.example/app:{}", self.below(4));
        let file = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": meta::name(&deployment)},
            "spec": {
                "replicas": self.below(6),
                "template": {"spec": {"containers": [{"name": "app", "image": image}]}},
            },
        });
        let manager = ["alice", "bob"][usize::from(self.below(2) == 1)].to_owned();
        let patch = Patch::Apply { value: file, manager, force: self.below(3) > 0 };
        let api = self.client.dynamic(Resource::of::<Deployment>()).namespace(meta::namespace(&deployment));
        api.patch(meta::name(&deployment), &patch).await.map(drop)
    }

    async fn change_service(&self, objects: &Objects) -> Result<(), Error> {
        let ours = |s: &Value| meta::name(s).starts_with("web-");
        let Some(service) = self.pick_from(objects, "services", ours) else { return Ok(()) };
        let patch = match self.below(4) {
            0 => json!({"spec": {"type": "NodePort"}}),
            1 => json!({"spec": {"type": "ClusterIP"}}),
            2 => json!({"spec": {"selector": {"app": self.app()}}}),
            _ => json!({"spec": {"publishNotReadyAddresses": self.below(2) == 0}}),
        };
        self.patch::<Service>(&service, patch).await
    }

    /// Something of a user's own must happen before the object goes.
    async fn hold(&self, objects: &Objects) -> Result<(), Error> {
        let plural = ["pods", "replicasets", "deployments", "services"][usize::try_from(self.below(4)).unwrap_or(0)];
        let free = |o: &Value| !meta::finalizers(o).contains(&HOLD);
        let Some(object) = self.pick_from(objects, plural, free) else { return Ok(()) };
        let Some(resource) = resource(plural) else { return Ok(()) };
        let mut finalizers = meta::finalizers(&object);
        finalizers.push(HOLD);
        let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": meta::resource_version(&object)}});
        let api = self.client.dynamic(resource).namespace(meta::namespace(&object));
        api.patch(meta::name(&object), &Patch::Merge(patch)).await.map(drop)
    }

    async fn patch<K>(&self, object: &Value, patch: Value) -> Result<(), Error>
    where
        K: k8s_openapi::Resource,
        K::Scope: client::resource::ScopeOf,
    {
        let api = self.client.dynamic(Resource::of::<K>()).namespace(meta::namespace(object));
        api.patch(meta::name(object), &Patch::Strategic(patch)).await.map(drop)
    }

    async fn patch_any<K>(&self, objects: &Objects, plural: &str, patch: Value) -> Result<(), Error>
    where
        K: k8s_openapi::Resource,
        K::Scope: client::resource::ScopeOf,
    {
        match self.any(objects, plural) {
            Some(object) => self.patch::<K>(&object, patch).await,
            None => Ok(()),
        }
    }

    async fn patch_template(&self, objects: &Objects, spec: Value) -> Result<(), Error> {
        let patch = json!({"spec": {"template": {"spec": spec}}});
        self.patch_any::<Deployment>(objects, "deployments", patch).await
    }

    /// The template of an older ReplicaSet becomes the Deployment's again.
    async fn undo(&self, objects: &Objects) -> Result<(), Error> {
        let Some(deployment) = self.any(objects, "deployments") else { return Ok(()) };
        let own = |s: &Value| view::controller(s) == Some(meta::uid(&deployment));
        let Some(set) = self.pick_from(objects, "replicasets", own) else { return Ok(()) };
        let mut template = at(&set, "/spec/template").clone();
        if let Some(labels) = template.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
            labels.remove("pod-template-hash");
        }
        let patch = json!([{"op": "replace", "path": "/spec/template", "value": template}]);
        let api = self.client.dynamic(Resource::of::<Deployment>()).namespace(meta::namespace(&deployment));
        api.patch(meta::name(&deployment), &Patch::Json(patch)).await.map(drop)
    }

    /// Takes a pod out of its ReplicaSet and Service, or gives it to another.
    async fn relabel(&self, objects: &Objects) -> Result<(), Error> {
        let Some(pod) = self.any(objects, "pods") else { return Ok(()) };
        self.world.recorder.tell(|safety, objects| safety.disturb_all(objects));
        let label = match self.below(3) {
            0 => json!("nothing"),
            1 => Value::Null,
            _ => json!(self.app()),
        };
        self.patch::<Pod>(&pod, json!({"metadata": {"labels": {"app": label}}})).await
    }

    async fn delete<K>(&self, object: &Value, params: DeleteParams) -> Result<(), Error>
    where
        K: k8s_openapi::Resource,
        K::Scope: client::resource::ScopeOf,
    {
        let api = self.client.dynamic(Resource::of::<K>()).namespace(meta::namespace(object));
        api.delete(meta::name(object), &params).await.map(drop)
    }
}
