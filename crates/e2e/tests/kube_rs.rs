//! A program written with kube-rs: typed and untyped objects, watchers, reflectors, a controller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::clients;
use e2e::cluster::{Cluster, PATIENCE};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{Event as Finalizer, finalizer};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{Config as Watch, Event, watcher};
use kube::runtime::{Controller, WatchStreamExt, reflector};
use kube::{Api, Client, Config, Discovery, Resource, ResourceExt};
use serde_json::json;
use stdx::ClockExt;

async fn client(server: &Cluster) -> Result<Client> {
    let file = Kubeconfig::read_from(server.kubeconfig())?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

fn config_map(name: &str, labels: &[(&str, &str)], data: &[(&str, &str)]) -> ConfigMap {
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    let mut object = ConfigMap { data: Some(map(data)), ..ConfigMap::default() };
    object.metadata.name = Some(name.to_owned());
    object.metadata.labels = Some(map(labels));
    object
}

/// The message of the Status an error carries.
fn message<T>(result: kube::Result<T>) -> String {
    match result {
        Err(kube::Error::Api(status)) => format!("{} {}: {}", status.code, status.reason, status.message),
        Err(other) => other.to_string(),
        Ok(_) => "no error".to_owned(),
    }
}

#[tokio::test]
async fn objects_with_and_without_a_type() -> Result<()> {
    let server = clients::server().await?;
    let client = client(&server).await?;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let post = PostParams { field_manager: Some("kube-rs".into()), ..PostParams::default() };
    let made = maps.create(&post, &config_map("a", &[("n", "1")], &[("k", "v")])).await?;
    ensure!(made.managed_fields()[0].manager.as_deref() == Some("kube-rs"), "{made:?}");
    let mut changed = made.clone();
    changed.data.get_or_insert_default().insert("k".into(), "w".into());
    let replaced = maps.replace("a", &post, &changed).await?;
    ensure!(replaced.data.as_ref().is_some_and(|d| d["k"] == "w"), "{replaced:?}");
    let stale = message(maps.replace("a", &post, &changed).await);
    ensure!(stale.starts_with(r#"409 Conflict: Operation cannot be fulfilled on configmaps "a": "#), "{stale}");
    let missing = message(maps.get("b").await);
    ensure!(missing == r#"404 NotFound: configmaps "b" not found"#, "{missing}");
    ensure!(maps.get_opt("b").await?.is_none());
    let merged = maps.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"l": "1"}}))).await?;
    let labelled = Patch::Strategic(json!({"metadata": {"labels": {"m": "2"}}}));
    let labelled = maps.patch("a", &PatchParams::default(), &labelled).await?;
    ensure!(merged.data.as_ref().is_some_and(|d| d.len() == 2), "{merged:?}");
    ensure!(labelled.labels().len() == 2, "{labelled:?}");

    let apply = PatchParams::apply("applier");
    let wish = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "x"}});
    let conflict = message(maps.patch("a", &apply, &Patch::Apply(&wish)).await);
    let want = r#"409 Conflict: Apply failed with 1 conflict: conflict with "kube-rs" using v1: .data.k"#;
    ensure!(conflict == want, "{conflict}");
    let applied = maps.patch("a", &apply.clone().force(), &Patch::Apply(&wish)).await?;
    ensure!(applied.data.as_ref().is_some_and(|d| d["k"] == "x" && d["l"] == "1"), "{applied:?}");
    let typo = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "dat": {}}));
    let strict = message(maps.patch("a", &PatchParams::apply("applier").validation_strict(), &typo).await);
    ensure!(strict.ends_with("(/a; /v1, Kind=ConfigMap): .dat: field not declared in schema"), "{strict}");

    for n in 0..7 {
        maps.create(&post, &config_map(&format!("page-{n}"), &[("of", "pages")], &[])).await?;
    }
    let mut params = ListParams::default().labels("of=pages").limit(3);
    let mut names = Vec::new();
    loop {
        let page = maps.list(&params).await?;
        names.extend(page.items.iter().map(ResourceExt::name_any));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    ensure!(names == (0..7).map(|n| format!("page-{n}")).collect::<Vec<_>>(), "{names:?}");
    let partial = maps.list_metadata(&ListParams::default().labels("of=pages")).await?;
    ensure!(partial.items.len() == 7 && partial.items[0].types.is_some(), "{partial:?}");
    maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("of=pages")).await?;
    ensure!(maps.list(&ListParams::default().labels("of=pages")).await?.items.is_empty());

    let discovery = Discovery::new(client.clone()).run_aggregated().await?;
    let (kind, capabilities) = discovery
        .groups()
        .flat_map(|g| g.recommended_resources())
        .find(|(k, _)| k.kind == "Deployment")
        .context("apps")?;
    ensure!(capabilities.supports_operation("patch") && kind.plural == "deployments", "{kind:?}");
    let untyped: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &kind);
    let web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "selector": {"matchLabels": {"app": "web"}}, "replicas": 0, "template": {"metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "example.invalid/web:1"}]}}}});
    let web = untyped.patch("web", &PatchParams::apply("applier"), &Patch::Apply(web)).await?;
    ensure!(web.data["spec"]["strategy"]["type"] == "RollingUpdate", "{web:?}");
    let typed: Api<Deployment> = Api::default_namespaced(client);
    let scale = Patch::Merge(json!({"spec": {"replicas": 2}}));
    typed.patch_scale("web", &PatchParams::default(), &scale).await?;
    let scale = typed.get_scale("web").await?;
    ensure!(scale.spec.as_ref().and_then(|s| s.replicas) == Some(2), "{scale:?}");
    let deleted = typed.delete("web", &DeleteParams::foreground()).await?;
    ensure!(deleted.left().is_some_and(|d| d.finalizers() == ["foregroundDeletion"]), "it waits for what it owns");
    Ok(())
}

/// What a watcher tells of three objects, one change and one delete.
async fn follow(config: Watch) -> Result<()> {
    let server = clients::server().await?;
    let client = client(&server).await?;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    for name in ["a", "b", "c"] {
        maps.create(&PostParams::default(), &config_map(name, &[("of", "watch")], &[])).await?;
    }
    let mut events = std::pin::pin!(watcher(maps.clone(), config.labels("of=watch")));
    let mut told = Vec::new();
    let watched = async {
        while let Some(event) = events.try_next().await? {
            told.push(match event {
                Event::Init => "init".to_owned(),
                Event::InitApply(object) => format!("has {}", object.name_any()),
                Event::InitDone => "done".to_owned(),
                Event::Apply(object) => format!("apply {}", object.name_any()),
                Event::Delete(object) => format!("delete {}", object.name_any()),
            });
            match told.last().map(String::as_str) {
                Some("done") => {
                    let patch = Patch::Merge(json!({"data": {"k": "v"}}));
                    maps.patch("b", &PatchParams::default(), &patch).await?;
                    maps.delete("a", &DeleteParams::default()).await?;
                    // Leaving the selector is leaving.
                    let patch = Patch::Merge(json!({"metadata": {"labels": {"of": "other"}}}));
                    maps.patch("c", &PatchParams::default(), &patch).await?;
                }
                Some("delete c") => return Ok(()),
                _ => {}
            }
        }
        bail!("the watch ended")
    };
    server.clock.timeout(PATIENCE, watched).await.context("events are missing")??;
    let want = ["init", "has a", "has b", "has c", "done", "apply b", "delete a", "delete c"];
    ensure!(told == want, "{told:?}");
    Ok(())
}

#[tokio::test]
async fn a_watcher_that_streams_its_list() -> Result<()> {
    follow(Watch::default().streaming_lists()).await
}

#[tokio::test]
async fn a_watcher_that_lists_in_pages() -> Result<()> {
    follow(Watch::default().page_size(2)).await
}

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("no owner can be named")]
    Nameless,
}

const DONE: &str = "tests.invalid/done";

async fn reconcile(
    source: Arc<ConfigMap>,
    client: Arc<Client>,
) -> Result<Action, kube::runtime::finalizer::Error<Failed>> {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.as_ref().clone());
    let log = config_map("log", &[], &[]);
    finalizer(&maps.clone(), DONE, source, |event| async move {
        match event {
            Finalizer::Apply(source) => {
                let mut copy = config_map(&format!("{}-copy", source.name_any()), &[("is", "copy")], &[]);
                copy.data = source.data.clone();
                copy.metadata.owner_references = Some(vec![source.controller_owner_ref(&()).ok_or(Failed::Nameless)?]);
                let apply = PatchParams::apply("copier").force();
                maps.patch(&copy.name_any(), &apply, &Patch::Apply(&copy)).await?;
            }
            Finalizer::Cleanup(source) => {
                let told = Patch::Merge(json!({"data": {source.name_any(): "cleaned up"}}));
                maps.patch(&log.name_any(), &PatchParams::default(), &told).await?;
            }
        }
        Ok(Action::await_change())
    })
    .await
}

/// A source is copied, the copy is kept as it should be, and both go together.
#[tokio::test]
async fn a_controller_copies_what_it_is_shown() -> Result<()> {
    let server = clients::server().await?;
    let client = client(&server).await?;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    maps.create(&PostParams::default(), &config_map("log", &[], &[])).await?;
    let sources = Watch::default().labels("is=source").streaming_lists();
    let copies = Watch::default().labels("is=copy").streaming_lists();
    let controller = Controller::new(maps.clone(), sources).owns(maps.clone(), copies);
    let policy = |_: Arc<ConfigMap>, _: &kube::runtime::finalizer::Error<Failed>, _: Arc<Client>| {
        Action::requeue(Duration::from_millis(100))
    };
    let running = controller.run(reconcile, policy, Arc::new(client)).for_each(|result| async {
        if let Err(error) = result {
            eprintln!("{error:?}");
        }
    });
    let task = tokio::spawn(running);

    let copy = |want: Option<&'static str>| {
        let (maps, server) = (maps.clone(), &server);
        async move {
            let holds = || async {
                let found = maps.get_opt("one-copy").await?;
                let value = found.as_ref().and_then(|c| c.data.as_ref()).and_then(|d| d.get("k"));
                ensure!(value.map(String::as_str) == want, "{found:?}");
                Ok(())
            };
            server.eventually("the copy", holds).await
        }
    };
    maps.create(&PostParams::default(), &config_map("one", &[("is", "source")], &[("k", "v")])).await?;
    copy(Some("v")).await?;
    maps.patch("one", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "w"}}))).await?;
    copy(Some("w")).await?;
    maps.patch("one-copy", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "stray"}}))).await?;
    copy(Some("w")).await?;
    maps.delete("one-copy", &DeleteParams::default()).await?;
    copy(Some("w")).await?;
    maps.delete("one", &DeleteParams::default()).await?;
    copy(None).await?;
    let log = maps.get("log").await?;
    ensure!(log.data.is_some_and(|d| d["one"] == "cleaned up"), "the finalizer ran");
    task.abort();
    Ok(())
}

#[tokio::test]
async fn a_reflector_holds_what_exists() -> Result<()> {
    let server = clients::server().await?;
    let client = client(&server).await?;
    let pods: Api<Pod> = Api::default_namespaced(client);
    let (reader, writer) = reflector::store();
    let stream = reflector(writer, watcher(pods.clone(), Watch::default().streaming_lists()));
    let task = tokio::spawn(stream.default_backoff().touched_objects().for_each(|_| async {}));
    server.clock.timeout(PATIENCE, reader.wait_until_ready()).await.context("the reflector is ready")??;
    ensure!(reader.is_empty());
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"schedulerName": "nobody",
        "containers": [{"name": "main", "image": "example.invalid/app:1"}]}}))?;
    server.eventually("a pod", || async { Ok(pods.create(&PostParams::default(), &pod).await?) }).await?;
    let patch = Patch::Merge(json!({"status": {"phase": "Running"}}));
    pods.patch_status("p", &PatchParams::default(), &patch).await?;
    let seen = || async {
        let pod = reader.get(&ObjectRef::new("p").within("default")).context("it is not there")?;
        ensure!(pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running"), "{:?}", pod.status);
        Ok(())
    };
    server.eventually("the store shows the status", seen).await?;
    task.abort();
    Ok(())
}
