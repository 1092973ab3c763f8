//! An operator's bundle in the hands of kubectl: two dozen definitions with large schemas and rules, objects
//! of them, an upgrade that moves the stored version, and an end that leaves nothing (`operator/session.txt`).

#[path = "operator/bundle.rs"]
mod bundle;
#[path = "operator/converter.rs"]
mod converter;
#[path = "../../kinds/tests/bundle/mod.rs"]
mod definitions;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use e2e::cluster::Cluster;
use e2e::{clients, transcript};
use serde_json::Value;
use storage::{RangeOptions, Store};

/// Documents one after another, as `kubectl apply -f` takes them.
fn write(cluster: &Cluster, name: &str, documents: &[Value]) -> Result<()> {
    let folder = cluster.root().join("work");
    std::fs::create_dir_all(&folder)?;
    let lines: Vec<String> = documents.iter().map(Value::to_string).collect();
    std::fs::write(folder.join(name), lines.join("\n")).context("a file of the bundle")
}

#[tokio::test]
async fn a_bundle_comes_is_upgraded_and_goes() -> Result<()> {
    let mut server = clients::server().await?;
    let converter = converter::Converter::start(server.clock.clone()).await?;
    let first = bundle::first(&converter);
    ensure!(first.len() >= 20, "as many as operators bring");
    write(&server, "bundle-1.json", &first)?;
    write(&server, "bundle-2.json", &bundle::second(&first, true))?;
    write(&server, "bundle-3.json", &bundle::second(&first, false))?;
    let objects: Vec<Value> = first.iter().map(|definition| definitions::object_of(definition, "a")).collect();
    write(&server, "objects.json", &objects)?;
    transcript::play(&server, &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/operator/session.txt")).await?;
    ensure!(converter.asked() > 0, "nobody asked the webhook");
    server.stop().await?;
    let left = keys_with(&server, "operator.example").await?;
    ensure!(left.is_empty(), "in the store: {left:?}");
    converter.stop().await;
    Ok(())
}

/// The keys in the store of a server that was stopped that contain a text.
async fn keys_with(server: &Cluster, text: &str) -> Result<Vec<String>> {
    let folder = server.root().join("state/store");
    let options = storage::Options::new(folder, server.clock.clone(), stdx::Rng::seeded(1));
    let store = storage::Embedded::open(options)?;
    let page = store.range(b"/registry/", RangeOptions::default()).await?;
    ensure!(!page.entries.is_empty(), "this is not the store");
    let keys = page.entries.iter().map(|entry| String::from_utf8_lossy(&entry.key).into_owned());
    let found = keys.filter(|key| key.contains(text)).collect();
    store.close().await;
    Ok(found)
}
