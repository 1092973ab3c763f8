//! A list that matches nothing among very many objects: in this process, over a store in memory that was
//! filled beforehand.

use std::sync::Arc;

use anyhow::{Result, ensure};
use bytes::Bytes;
use stdx::SharedClock;
use stdx::shutdown::Stage;
use storage::{Expect, Op, Store as _, Urgency};

use super::chain;
use super::figures::{Figures, median, ms};

/// Lists that are measured.
const ROUNDS: usize = 21;

/// Measures with so many objects of 1 KB.
///
/// # Errors
/// When the server does not start, or finds what is not there.
pub async fn run(clock: &SharedClock, count: usize, figures: &mut Figures) -> Result<()> {
    let store = storage::Memory::new(clock.clone());
    for index in 0..count {
        let name = format!("object-{index:06}");
        let object = serde_json::json!({ "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": { "name": name, "namespace": "default", "uid": name, "labels": { "app": "web", "shard": (index % 16).to_string() } },
            "data": { "k": "x".repeat(830) } });
        let key = Bytes::from(format!("/registry/configmaps/default/{name}"));
        let value = Bytes::from(object.to_string());
        store.commit(Op::Put { key, value, expect: Expect::Absent, urgency: Urgency::Now }).await?;
    }
    let stage = Stage::new();
    let handler = chain::server(clock, Arc::new(store), &stage).await?;
    for (name, selector) in
        [("labels", "labelSelector=app%3Dnothing"), ("fields", "fieldSelector=metadata.name%3Dnothing")]
    {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let begin = clock.now();
            let uri = format!("/api/v1/configmaps?{selector}");
            let found = chain::send(&handler, "GET", &uri, "application/json", String::new()).await?;
            times.push(clock.now().since(begin));
            ensure!(found.len() < 500, "something was found");
        }
        let p50 = median(&mut times);
        let what = format!("list by {name} that matches nothing in {count} × 1 KB");
        figures.add(&what, ms(p50), "≤ 50 ms", Some(p50.as_millis() < 50));
    }
    stage.stop();
    Ok(())
}
