//! What is sent to the kernel, and what is done when it refuses.

use std::collections::BTreeSet;
use std::sync::Mutex;

use client::Key;
use serde_json::json;

use super::*;
use crate::cases;

/// Records what it takes; says no to everything while `broken`, and to what names one of `hated`.
#[derive(Default)]
struct Recorder {
    broken: Mutex<bool>,
    hated: Mutex<BTreeSet<String>>,
    seen: Mutex<Vec<String>>,
    sets: Mutex<String>,
    /// How often a set was listed.
    listed: Mutex<usize>,
}

impl Recorder {
    fn judge(&self, text: &str) -> Result<(), Error> {
        let hated = self.hated.lock().expect("not poisoned");
        let no = *self.broken.lock().expect("not poisoned") || hated.iter().any(|h| text.contains(h.as_str()));
        if no { Err(Error::Refused("no".into())) } else { Ok(()) }
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock().expect("not poisoned"))
    }
}

#[async_trait::async_trait]
impl Kernel for Recorder {
    async fn apply(&self, transaction: &str) -> Result<(), Error> {
        self.judge(transaction)?;
        self.seen.lock().expect("not poisoned").push(transaction.to_owned());
        Ok(())
    }

    async fn check(&self, transaction: &str) -> Result<(), Error> {
        self.judge(transaction)
    }

    async fn sets(&self, _: Family) -> Result<String, Error> {
        Ok(self.sets.lock().expect("not poisoned").clone())
    }

    async fn elements(&self, _: Family, _: &str, _: &str) -> Result<String, Error> {
        *self.listed.lock().expect("not poisoned") += 1;
        Ok(self.sets.lock().expect("not poisoned").clone())
    }

    async fn changed(&self, _: &[&str]) -> std::io::Result<()> {
        std::future::pending().await
    }
}

fn service(name: &str, byte: u8, more: serde_json::Value) -> Change {
    let mut spec = json!({"clusterIP": format!("10.96.0.{byte}"), "ports": [{"port": 80}]});
    for (key, value) in more.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    let slice = json!({"endpoints": [{"addresses": ["10.244.0.2"]}], "ports": [{"port": 80}]});
    (Key::new("default", name), Some(cases::rules(name, spec, json!({}), slice)))
}

fn model(services: &[Change]) -> Model {
    services.iter().filter_map(|(key, rules)| Some((key.clone(), rules.clone()?))).collect()
}

fn applied() -> (Arc<Recorder>, Applied) {
    let kernel = Arc::new(Recorder::default());
    (kernel.clone(), Applied::new(kernel, Family::Ip))
}

#[tokio::test]
async fn after_a_failure_the_whole_table_is_loaded_again() {
    let (kernel, mut applied) = applied();
    let settings = cases::settings();
    let all = [service("a", 1, json!({})), service("b", 2, json!({}))];
    assert!(applied.needs_load(&settings));
    applied.load(&settings, &model(&all)).await.expect("loaded");
    let texts = kernel.take();
    assert!(texts.len() == 1 && texts[0].starts_with("table ip kube-proxy\ndelete table ip kube-proxy\n"), "{texts:?}");
    assert!(!applied.needs_load(&settings));
    applied.change(&settings, &model(&all), &all).await.expect("nothing to do");
    assert_eq!(kernel.take(), [""; 0]);
    *kernel.broken.lock().expect("not poisoned") = true;
    assert!(applied.load(&settings, &model(&all)).await.is_err());
    assert!(applied.needs_load(&settings));
    *kernel.broken.lock().expect("not poisoned") = false;
    applied.load(&settings, &model(&all)).await.expect("loaded");
    assert!(kernel.take()[0].contains("10.96.0.2 . tcp"));
    let others = crate::model::Settings { masquerade_all: true, ..settings };
    assert!(applied.needs_load(&others));
}

#[tokio::test]
async fn what_is_refused_is_found_and_left_out() {
    let (kernel, mut applied) = applied();
    let settings = cases::settings();
    let all: Vec<Change> = "abcdefg".chars().zip(1..).map(|(c, i)| service(&c.to_string(), i, json!({}))).collect();
    // What names it in a text: its address.
    let at = |name: &str| format!("10.96.0.{} . tcp", name.as_bytes()[0] - b'a' + 1);
    let hate = |names: &[&str]| {
        *kernel.hated.lock().expect("not poisoned") = names.iter().map(|n| at(n)).collect();
    };
    hate(&["c", "f"]);
    // At the load …
    let refused = applied.load(&settings, &model(&all)).await.expect("loaded");
    let names = |refused: &Refused| refused.keys().map(|k| k.name.clone()).collect::<Vec<_>>().join(" ");
    assert_eq!(names(&refused), "c f");
    let texts = kernel.take();
    assert!(texts.len() == 1 && texts[0].contains(&at("g")) && !texts[0].contains(&at("c")), "{texts:?}");
    // … and after it.
    hate(&["d"]);
    let gone: Vec<Change> = all.iter().map(|(key, _)| (key.clone(), None)).collect();
    let refused = applied.change(&settings, &model(&[]), &gone).await.expect("all is taken");
    // What cannot be taken away by a difference goes with a load.
    assert_eq!(names(&refused), "");
    assert!(applied.table.as_ref().expect("known").services().is_empty());
    let texts = kernel.take();
    assert!(texts.last().is_some_and(|text| text.starts_with("table ip kube-proxy\ndelete table")), "{texts:?}");
    // What is refused by itself costs one load, and is left out from then on.
    for loads in [1, 0] {
        let some = &all[2..5];
        let refused = applied.change(&settings, &model(some), some).await.expect("the rest is taken");
        assert_eq!(names(&refused), "d");
        let texts = kernel.take();
        let count = texts.iter().filter(|text| text.starts_with("table ip kube-proxy\ndelete table")).count();
        assert_eq!(count, loads, "{texts:?}");
        let table = applied.table.as_ref().expect("known");
        assert_eq!(table.services().keys().map(|k| k.name.as_str()).collect::<Vec<_>>(), ["c", "e"]);
    }
    hate(&[]);
    assert!(applied.change(&settings, &model(&all[2..5]), &all[2..5]).await.expect("taken").is_empty());
    assert!(kernel.take().concat().contains(&at("d")));
}

#[tokio::test]
async fn a_service_with_too_many_clients_to_remember_is_refused_alone() {
    let (kernel, mut applied) = applied();
    let ports: Vec<_> = (1..=41).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    let spec = json!({"clusterIP": "10.96.0.1", "ports": ports, "sessionAffinity": "ClientIP"});
    let endpoints: Vec<_> = (0..50).map(|i| json!({"addresses": [format!("10.244.0.{i}")]})).collect();
    let slice = json!({"endpoints": endpoints, "ports": ports});
    let big: Change = (Key::new("default", "big"), Some(cases::rules("big", spec, json!({}), slice)));
    let all = [big, service("a", 2, json!({"sessionAffinity": "ClientIP"}))];
    let refused = applied.load(&cases::settings(), &model(&all)).await.expect("loaded");
    assert_eq!(refused.values().collect::<Vec<_>>(), ["2050 endpoints with session affinity, of 2000 at most"]);
    let refused = applied.change(&cases::settings(), &model(&all), &all).await.expect("taken");
    assert_eq!(refused.keys().map(|key| key.name.as_str()).collect::<Vec<_>>(), ["big"]);
    let texts = kernel.take().concat();
    assert!(texts.contains("10.96.0.2 ") && !texts.contains("10.96.0.1 "), "{texts}");
}

#[tokio::test]
async fn clients_stay_with_their_endpoints_across_a_load() {
    let (kernel, mut applied) = applied();
    let all = [service("a", 1, json!({"sessionAffinity": "ClientIP"}))];
    let table = Table::with(Family::Ip, cases::settings(), all.iter().cloned());
    let (set, numbers) = table.numbers().pop_first().expect("there is one");
    let number = *numbers.first().expect("an endpoint");
    *kernel.sets.lock().expect("not poisoned") = json!({"nftables": [{"set": {"family": "ip", "name": set,
        "table": "kube-proxy", "elem": [{"elem": {"val": {"concat": ["192.0.2.1", number]}, "timeout": 10800, "expires": 77}}]}}]})
    .to_string();
    applied.load(&cases::settings(), &model(&all)).await.expect("loaded");
    let texts = kernel.take();
    assert!(texts[0].contains(&format!("{set} {{ 192.0.2.1 . {number} timeout 10800s expires 77s }}")), "{texts:?}");
}

#[tokio::test]
async fn what_clients_had_holds_up_no_load() {
    let (kernel, mut applied) = applied();
    let all = [service("a", 1, json!({"sessionAffinity": "ClientIP"}))];
    let table = Table::with(Family::Ip, cases::settings(), all.iter().cloned());
    let (set, numbers) = table.numbers().pop_first().expect("there is one");
    let number = *numbers.first().expect("an endpoint");
    *kernel.sets.lock().expect("not poisoned") = json!({"nftables": [{"set": {"family": "ip", "name": set,
        "table": "kube-proxy", "elem": [{"elem": {"val": {"concat": ["192.0.2.1", number]}, "timeout": 10800, "expires": 77}}]}}]})
    .to_string();
    *kernel.hated.lock().expect("not poisoned") = ["timeout 10800s expires".to_owned()].into();
    assert!(applied.load(&cases::settings(), &model(&all)).await.expect("loaded").is_empty());
    assert!(kernel.take().concat().contains("10.96.0.1 . tcp . 80"));
}

#[tokio::test]
async fn clients_of_endpoints_that_left_are_forgotten() {
    let (kernel, mut applied) = applied();
    let (settings, sticky) = (cases::settings(), |ips: &[&str]| {
        let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}], "sessionAffinity": "ClientIP"});
        let endpoints: Vec<_> = ips.iter().map(|ip| json!({"addresses": [ip]})).collect();
        let slice = json!({"endpoints": endpoints, "ports": [{"port": 80}]});
        [(Key::new("default", "a"), Some(cases::rules("a", spec, json!({}), slice)))]
    });
    let all = sticky(&["10.244.0.2", "10.244.0.3"]);
    applied.load(&settings, &model(&all)).await.expect("loaded");
    let (set, _) = applied.table.as_ref().expect("known").numbers().pop_first().expect("there is one");
    let (name, _) = &all[0].1.as_ref().expect("rules").v4[0];
    let number = |ip: &str| super::super::names::number(name, &format!("{ip}:80").parse().expect("an address"));
    let client =
        |ip: &str| json!({"elem": {"val": {"concat": ["192.0.2.1", number(ip)]}, "timeout": 60, "expires": 50}});
    let elements = [client("10.244.0.2"), client("10.244.0.3")];
    *kernel.sets.lock().expect("not poisoned") =
        json!({"nftables": [{"set": {"family": "ip", "name": set, "table": "kube-proxy", "elem": elements}}]})
            .to_string();
    assert!(!applied.is_untidy());
    // One that comes back in time has its clients still.
    for (ips, untidy) in [(&["10.244.0.3"][..], true), (&["10.244.0.2", "10.244.0.3"], false), (&["10.244.0.3"], true)]
    {
        let changes = sticky(ips);
        applied.change(&settings, &model(&changes), &changes).await.expect("taken");
        assert_eq!(applied.is_untidy(), untidy, "{ips:?}");
    }
    kernel.take();
    applied.tidy().await;
    let want = format!("delete element ip kube-proxy {set} {{ 192.0.2.1 . {} }}\n", number("10.244.0.2"));
    assert_eq!(kernel.take(), [want]);
    assert!(!applied.is_untidy());
    applied.tidy().await;
    // With the set everything goes.
    applied.change(&settings, &model(&[]), &sticky(&[])).await.expect("taken");
    assert!(!applied.is_untidy());
    assert_eq!(*kernel.listed.lock().expect("not poisoned"), 1);
}
