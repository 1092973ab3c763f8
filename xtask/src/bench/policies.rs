//! Network policies: how long a change takes from its event to the kernel, in a network namespace of its own.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::types::networking::v1::NetworkPolicy;
use client::Key;
use net::nft::Nft;
use policy::model::policy::read;
use policy::model::{Labels, Pod, Rank};
use policy::nftables::apply::Applied;
use policy::nftables::table::Change;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::json;
use stdx::SharedClock;

use super::figures::{Figures, median, ms, percentile};

const PODS: usize = 1000;
const POLICIES: usize = 200;
const NAMESPACES: usize = 20;
const SPACE: &str = "pintle-bench";

/// Measures in a namespace that goes afterwards.
pub fn run(clock: &SharedClock, quick: bool, figures: &mut Figures) -> Result<()> {
    let ip = |args: &[&str]| Command::new("ip").args(args).output();
    let _left = ip(&["netns", "del", SPACE])?;
    ensure!(ip(&["netns", "add", SPACE])?.status.success(), "no network namespace can be made");
    let result = std::thread::scope(|scope| {
        let inside = scope.spawn(|| -> Result<()> {
            let space = File::open(format!("/run/netns/{SPACE}"))?;
            move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network))?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(measure(clock, if quick { 10 } else { 100 }, figures))
        });
        inside.join().map_err(|_| anyhow::anyhow!("the measurement panicked"))
    });
    ip(&["netns", "del", SPACE])?;
    result?
}

fn labels(pairs: &[(&str, String)]) -> Labels {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect()
}

fn pod(index: usize, round: usize) -> Change {
    let [a, b] = [index / 250, index % 250 + 1];
    let pod = Pod {
        labels: labels(&[("app", format!("a{}", index % 50)), ("round", round.to_string())]),
        addresses: vec![std::net::IpAddr::from([10, 244, u8::try_from(a).unwrap_or(0), u8::try_from(b).unwrap_or(0)])],
        ports: Vec::new(),
        is_here: true,
        rank: Rank::default(),
    };
    Change::Pod(Key::new(format!("n{}", index % NAMESPACES), format!("p{index}")), Some(Arc::new(pod)))
}

/// As its event brings it: it is read, too.
fn policy(index: usize, round: usize) -> Result<Change> {
    let namespace = format!("n{}", index % NAMESPACES);
    let app = |n: usize| json!({"matchLabels": {"app": format!("a{}", n % 50)}});
    let policy: NetworkPolicy = serde_json::from_value(json!({"spec": {
        "podSelector": if index.is_multiple_of(10) { json!({}) } else { app(index) },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": app(index + 1 + round)}, {"namespaceSelector": {}, "podSelector": app(index + 2)}],
            "ports": [{"port": 8080 + i32::try_from(round % 100)?}]}],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": [format!("10.{}.0.0/16", index % 200)]}}]}],
    }}))?;
    let read = read(&namespace, &policy);
    Ok(Change::Policy(Key::new(namespace, format!("np{index}")), Some(Arc::new(read))))
}

async fn measure(clock: &SharedClock, rounds: usize, figures: &mut Figures) -> Result<()> {
    let mut applied = Applied::new(Arc::new(Nft::new(clock.clone())));
    let namespaces = (0..NAMESPACES).map(|n| Change::Namespace(format!("n{n}"), Some(Labels::new())));
    let mut all: Vec<Change> = namespaces.chain((0..PODS).map(|i| pod(i, 0))).collect();
    for index in 0..POLICIES {
        all.push(policy(index, 0)?);
    }
    let begin = clock.now();
    applied.change(&all).await.context("the load")?;
    let load = clock.now().since(begin);
    let about = format!("{PODS} pods of one node and {POLICIES} NetworkPolicies");
    figures.add(&format!("rules of {about}, loaded whole"), ms(load), "", None);
    let (mut policies, mut pods) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let begin = clock.now();
        applied.change(&[policy(round * 7 % POLICIES, round)?]).await.context("a policy")?;
        policies.push(clock.now().since(begin));
        let begin = clock.now();
        applied.change(&[pod(round * 13 % PODS, round)]).await.context("a pod")?;
        let none = clock.now().since(begin);
        ensure!(none < Duration::from_secs(60), "a pod's change took {none:?}");
        let Change::Pod(key, Some(pod)) = pod(round * 13 % PODS, round) else { continue };
        let other = Pod { labels: labels(&[("app", format!("a{}", (round + 17) % 50))]), ..Pod::clone(&pod) };
        let begin = clock.now();
        applied.change(&[Change::Pod(key, Some(Arc::new(other)))]).await.context("a pod's labels")?;
        pods.push(clock.now().since(begin));
    }
    ensure!(applied.refused().is_empty(), "{:?}", applied.refused());
    let (half, most) = (median(&mut policies), percentile(&mut policies, 99));
    let what = format!("a policy's change among {about}: event → kernel, p50 / p99");
    let met = half <= Duration::from_millis(20);
    figures.add(&what, format!("{} / {}", ms(half), ms(most)), "≤ 20 ms", Some(met));
    let what = "a pod's labels change there: event → kernel, p50 / p99";
    figures.add(what, format!("{} / {}", ms(median(&mut pods)), ms(percentile(&mut pods, 99))), "", None);
    Ok(())
}
