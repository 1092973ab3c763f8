//! Custom resources: how long many definitions take until they are established, and what each costs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use client::client::Call;
use client::{Client, ListParams, Resource};
use serde_json::{Value, json};
use stdx::clock::Instant;
use stdx::{ClockExt, SharedClock};

use super::figures::Figures;
use super::process;

const DEFINITIONS: usize = 500;
/// Fields of each schema: some 20 KB, like those of operators.
const FIELDS: usize = 100;

/// Defines them, waits, and takes them away again.
pub async fn run(client: &Client, pid: u32, clock: &SharedClock, figures: &mut Figures) -> Result<()> {
    let resource =
        Resource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", false);
    let definitions = client.dynamic(resource);
    let before = process::usage(pid)?;
    let begin = clock.now();
    for index in 0..DEFINITIONS {
        definitions.create(&definition(index)).await?;
    }
    let created = clock.now().since(begin);
    wait(clock, begin, || async {
        let all = definitions.list_all(&ListParams::all()).await?.items;
        Ok(all.iter().filter(|d| is_established(d)).count() >= DEFINITIONS)
    })
    .await
    .context("not all are established")?;
    let all = clock.now().since(begin);
    // Each of them is answered.
    client.send(Call::get("/apis/bench.example.com/v1/namespaces/default/benches499")).await?;
    let after = process::usage(pid)?;
    let each = (after.rss_mb() - before.rss_mb()) / DEFINITIONS as f64;
    let (a, c) = (all.as_secs_f64(), created.as_secs_f64());
    figures.add(
        "500 definitions, created one after another, all established",
        format!("{a:.1} s (created after {c:.1} s)"),
        "≤ 10 s",
        Some(a <= 10.0),
    );
    figures.add("RSS of a definition with 100 fields", format!("{each:.2} MB"), "≤ 1 MB", Some(each <= 1.0));
    for index in 0..DEFINITIONS {
        definitions.delete(&format!("benches{index}.bench.example.com"), &client::DeleteParams::default()).await?;
    }
    wait(clock, clock.now(), || async { Ok(definitions.list_all(&ListParams::all()).await?.items.is_empty()) })
        .await
        .context("definitions stay")
}

async fn wait<F>(clock: &SharedClock, begin: Instant, mut done: impl FnMut() -> F) -> Result<()>
where
    F: Future<Output = Result<bool>>,
{
    while !done().await? {
        ensure!(clock.now().since(begin) < Duration::from_secs(120), "it takes too long");
        clock.sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn is_established(definition: &Value) -> bool {
    let conditions = definition.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == "Established" && c["status"] == "True")
}

fn definition(index: usize) -> Value {
    let fields: serde_json::Map<String, Value> = (0..FIELDS)
        .map(|field| {
            let text =
                format!("What field {field} is for, in as many words as such texts usually have, and a few more.");
            let schema = json!({"type": "object", "description": text, "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 63, "description": text},
                "count": {"type": "integer", "minimum": 0},
            }});
            (format!("field{field}"), schema)
        })
        .collect();
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}});
    json!({
        "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
        "metadata": {"name": format!("benches{index}.bench.example.com")},
        "spec": {"group": "bench.example.com", "scope": "Namespaced",
            "names": {"plural": format!("benches{index}"), "kind": format!("Bench{index}")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
    })
}
