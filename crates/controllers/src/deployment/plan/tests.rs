//! Rollouts as tables: a Deployment and its ReplicaSets in, what is written out.

use super::*;
use crate::deployment::model::{DESIRED, MAX};
use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::Deployment;

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).expect("in range")
}

fn at(seconds_ago: i64) -> String {
    machinery::time::rfc3339(now() - SignedDuration::from_secs(seconds_ago))
}

/// `key=value` words.
fn words(line: &str) -> impl Fn(&str) -> Option<String> {
    let pairs: Vec<(String, String)> = line
        .split_whitespace()
        .map(|w| w.split_once('=').map_or((w.to_owned(), String::new()), |(k, v)| (k.to_owned(), v.to_owned())))
        .collect();
    move |key: &str| pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone())
}

fn template(name: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": name}]}})
}

/// `replicas=3 surge=1 unavailable=0 template=b [recreate] [paused] [deadline=600] [history=10] [progress=reason@seconds]
/// [replicas-seen=.. updated-seen=.. available-seen=..]`
fn deployment(line: &str) -> Rollout {
    let word = words(line);
    let number = |key: &str, default: i64| word(key).map_or(default, |v| v.parse().expect("a number"));
    let percent = |key: &str| match word(key) {
        Some(v) if v.ends_with('%') => json!(v),
        Some(v) => json!(v.parse::<i64>().expect("a number")),
        None => json!("25%"),
    };
    let strategy = if word("recreate").is_some() {
        json!({"type": "Recreate"})
    } else {
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": percent("surge"), "maxUnavailable": percent("unavailable")}})
    };
    let mut status = json!({
        "replicas": number("replicas-seen", 0), "updatedReplicas": number("updated-seen", 0),
        "availableReplicas": number("available-seen", 0), "readyReplicas": number("available-seen", 0),
    });
    if let Some(progress) = word("progress") {
        let (reason, ago) = progress.split_once('@').expect("reason@seconds");
        let ago = at(ago.parse().expect("seconds"));
        let state = match reason {
            "ProgressDeadlineExceeded" => "False",
            "DeploymentPaused" => "Unknown",
            _ => "True",
        };
        status["conditions"] = json!([{"type": "Progressing", "status": state, "reason": reason,
            "lastUpdateTime": ago, "lastTransitionTime": ago}]);
    }
    let object = json!({
        "kind": "Deployment", "apiVersion": "apps/v1",
        "metadata": {"name": "web", "namespace": "default", "uid": "d", "generation": 2,
            "annotations": {"kubernetes.io/change-cause": "why", REVISION: word("revision").unwrap_or_default()}},
        "spec": {
            "replicas": number("replicas", 3), "selector": {"matchLabels": {"app": "web"}},
            "template": template(&word("template").unwrap_or("b".into())), "strategy": strategy,
            "paused": word("paused").is_some(), "revisionHistoryLimit": number("history", 10),
            "progressDeadlineSeconds": number("deadline", 600),
        },
        "status": status,
    });
    let typed: Deployment = serde_json::from_value(object.clone()).expect("a Deployment");
    Rollout::of(object, &typed)
}

/// `a template=a spec=3 pods=3 available=3 rev=1 desired=3 max=4 age=100`
fn set(line: &str) -> Set {
    let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
    let word = words(rest);
    let number = |key: &str, default: i64| word(key).map_or(default, |v| v.parse().expect("a number"));
    let spec = number("spec", 0);
    let pods = number("pods", spec);
    let mut template = template(&word("template").unwrap_or(name.into()));
    template["metadata"]["labels"][HASH_LABEL] = json!(name);
    let mut annotations = json!({REVISION: number("rev", 1).to_string(), "kubernetes.io/change-cause": "why"});
    if spec > 0 || word("desired").is_some() {
        annotations[DESIRED] = json!(number("desired", 3).to_string());
        annotations[MAX] = json!(number("max", 4).to_string());
    }
    let conditions = word("failure")
        .map(|m| json!([{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": m}]));
    Set::of(json!({
        "metadata": {"name": format!("web-{name}"), "namespace": "default", "uid": name, "generation": 1,
            "creationTimestamp": at(number("age", 100)), "annotations": annotations},
        "spec": {"replicas": spec, "template": template},
        "status": {"replicas": pods, "readyReplicas": number("available", pods), "availableReplicas": number("available", pods),
            "observedGeneration": 1, "conditions": conditions.unwrap_or_else(|| json!([]))},
    }))
}

fn run(d: &str, sets: &[&str], pods: &[&str]) -> Plan {
    let sets = sets.iter().map(|s| set(s)).collect();
    let pod_owners = pods.iter().map(|p| (*p).to_owned()).collect();
    plan(Seen { deployment: deployment(d), sets, pod_owners, now: now() })
}

/// The writes: `+size` for a new set, `name from>to` for a resize, `~name` for other changes, `-name`.
fn writes(plan: &Plan) -> String {
    let mut out = Vec::new();
    if let Some(set) = &plan.create {
        out.push(format!("+{}", set.replicas));
    }
    for (set, scaled) in &plan.update {
        match scaled {
            Some(s) => out.push(format!("{} {}>{}", s.set.trim_start_matches("web-"), s.from, s.to)),
            None => out.push(format!("~{}", set.name.trim_start_matches("web-"))),
        }
    }
    out.extend(plan.delete.iter().map(|(name, _)| format!("-{}", name.trim_start_matches("web-"))));
    out.join(", ")
}

fn condition(plan: &Plan, kind: &str) -> String {
    super::super::model::condition(&plan.status, kind).map_or("none".into(), |c| {
        format!(
            "{} {} {}",
            c.status.clone().unwrap_or_default(),
            c.reason.clone().unwrap_or_default(),
            c.message.clone().unwrap_or_default()
        )
    })
}

#[test]
fn rolling_updates_step_by_step() {
    for (what, d, sets, expected) in [
        ("first", "replicas=3", vec![], "+3"),
        ("zero", "replicas=0", vec![], "+0"),
        ("a new template", "replicas=3", vec!["a spec=3"], "+1"),
        ("surge 0 makes room first", "replicas=3 surge=0 unavailable=1", vec!["a spec=3 max=3"], "+0, a 3>2"),
        (
            "then fills it",
            "replicas=3 surge=0 unavailable=1",
            vec!["a spec=2 max=3", "b spec=0 rev=2 desired=3 max=3"],
            "b 0>1",
        ),
        ("wait for the new pod", "replicas=3", vec!["a spec=3", "b spec=1 available=0 rev=2"], ""),
        ("one old goes for one new", "replicas=3", vec!["a spec=3", "b spec=1 rev=2"], "a 3>2"),
        ("then one new for one old", "replicas=3", vec!["a spec=2", "b spec=1 rev=2"], "b 1>2"),
        ("the last old goes", "replicas=3", vec!["a spec=1", "b spec=3 rev=2"], "a 1>0"),
        ("done", "replicas=3", vec!["a spec=0", "b spec=3 rev=2"], ""),
        (
            "broken old replicas go first",
            "replicas=4 unavailable=1",
            vec!["a spec=4 available=2 desired=4 max=5", "b spec=1 available=0 rev=2 desired=4 max=5"],
            "a 4>3",
        ),
        (
            "what was told to go does not serve, though its status still counts it",
            "replicas=2 unavailable=0",
            vec!["a spec=2 pods=3 available=3 desired=2 max=3", "b spec=1 rev=2 desired=2 max=3"],
            "a 2>1",
        ),
        ("large steps", "replicas=10", vec!["a spec=10 desired=10 max=13"], "+3, a 10>8"),
        ("undo finds the old set", "replicas=3 template=a", vec!["a spec=0 rev=1", "b spec=3 rev=2"], "a 0>1"),
        (
            "a resize in the middle keeps proportions",
            "replicas=6 surge=2 unavailable=0",
            vec!["a spec=2 desired=3 max=5", "b spec=3 rev=2 desired=3 max=5"],
            "a 2>3, b 3>5",
        ),
        ("a plain resize", "replicas=5", vec!["b spec=3 rev=1"], "b 3>5"),
        (
            "a resize the one set left fits already, after the newest was deleted, is noted",
            "replicas=2",
            vec!["a spec=2 desired=3 max=4"],
            "~a",
        ),
        ("shrink to nothing", "replicas=0", vec!["a spec=2", "b spec=1 rev=2"], "a 2>0, b 1>0"),
        ("paused does not roll", "replicas=3 paused", vec!["a spec=3"], ""),
        ("but resizes", "replicas=4 paused", vec!["a spec=3"], "a 3>4"),
    ] {
        assert_eq!(writes(&run(d, &sets, &[])), expected, "{what}");
    }
}

#[test]
fn recreate_waits_for_the_old_pods() {
    for (what, sets, pods, expected) in [
        ("scale the old down", vec!["a spec=3"], vec!["a"], "a 3>0"),
        ("its pods still run", vec!["a spec=0 pods=1"], vec!["a"], ""),
        ("they still stop", vec!["a spec=0 pods=0"], vec!["a"], ""),
        ("now the new one", vec!["a spec=0"], vec![], "+3"),
        ("finish one that was cut off", vec!["a spec=0", "b spec=0 rev=2"], vec![], "b 0>3"),
        ("done", vec!["a spec=0", "b spec=3 rev=2"], vec!["b"], ""),
    ] {
        assert_eq!(writes(&run("replicas=3 recreate", &sets, &pods)), expected, "{what}");
    }
}

#[test]
fn history_is_cut_at_the_oldest_revision() {
    let sets = ["a spec=0 rev=3", "c spec=0 rev=1", "d spec=0 rev=2", "b spec=3 rev=4"];
    let done = "replicas=3 history=1 replicas-seen=3 updated-seen=3 available-seen=3";
    assert_eq!(writes(&run(done, &sets, &[])), "-c, -d");
    let busy = ["a spec=0 rev=3", "c spec=0 pods=1 rev=1", "d spec=0 rev=2", "b spec=3 rev=4"];
    assert_eq!(writes(&run("replicas=3 history=1", &busy, &[])), "", "not while pods are left");
}

#[test]
fn revisions_and_annotations() {
    let plan = run("replicas=3", &["a spec=3 rev=7"], &[]);
    let new = plan.create.as_ref().expect("a new set");
    assert_eq!(new.annotation(REVISION), Some("8"));
    assert_eq!(plan.revision.as_deref(), Some("8"));
    assert_eq!((new.annotation(DESIRED), new.annotation(MAX)), (Some("3"), Some("4")));
    assert_eq!(new.annotation("kubernetes.io/change-cause"), Some("why"));
    assert!(new.name.starts_with("web-"));
    let hash = &new.name[4..];
    assert_eq!(new.object["spec"]["selector"]["matchLabels"][HASH_LABEL], hash);
    assert_eq!(new.object["spec"]["template"]["metadata"]["labels"][HASH_LABEL], hash);
    // Undone: the old set becomes the newest revision and remembers its old number.
    let plan = run("replicas=3 template=a", &["a spec=0 rev=1", "b spec=3 rev=2"], &[]);
    let (a, _) = plan.update.first().expect("the old set");
    assert_eq!(a.annotation(REVISION), Some("3"));
    assert_eq!(a.annotation("deployment.kubernetes.io/revision-history"), Some("1"));
    assert_eq!(plan.revision.as_deref(), Some("3"));
    let settled = run("replicas=3 revision=2", &["a spec=0 rev=1", "b spec=3 rev=2"], &[]);
    assert_eq!(settled.revision, None);
}

#[test]
fn conditions_tell_the_progress() {
    let available = "True MinimumReplicasAvailable Deployment has minimum availability.";
    let lacking = "False MinimumReplicasUnavailable Deployment does not have minimum availability.";
    let set_b = "ReplicaSet \"web-b\"";
    let hash = templates::hash(&template("b"), 0);
    let seen = "replicas-seen=3 updated-seen=1 available-seen=3";
    for (what, d, sets, progress, is_available) in [
        (
            "created",
            "replicas=3".to_owned(),
            vec![],
            format!("True NewReplicaSetCreated Created new replica set \"web-{hash}\""),
            lacking,
        ),
        (
            "found",
            "replicas=3".to_owned(),
            vec!["b spec=3 available=0 pods=0"],
            "True FoundNewReplicaSet Found new replica set \"web-b\"".to_owned(),
            lacking,
        ),
        (
            "moving",
            format!("replicas=3 progress=NewReplicaSetCreated@60 {seen}"),
            vec!["a spec=2", "b spec=2 rev=2"],
            format!("True ReplicaSetUpdated {set_b} is progressing."),
            available,
        ),
        (
            "complete",
            "replicas=3 progress=ReplicaSetUpdated@5".to_owned(),
            vec!["a spec=0", "b spec=3 rev=2"],
            format!("True NewReplicaSetAvailable {set_b} has successfully progressed."),
            available,
        ),
        (
            "stuck",
            "replicas=3 progress=ReplicaSetUpdated@601 replicas-seen=4 updated-seen=1 available-seen=3".to_owned(),
            vec!["a spec=3", "b spec=1 available=0 rev=2"],
            format!("False ProgressDeadlineExceeded {set_b} has timed out progressing."),
            available,
        ),
        (
            "not yet stuck",
            "replicas=3 progress=ReplicaSetUpdated@599 replicas-seen=4 updated-seen=1 available-seen=3".to_owned(),
            vec!["a spec=3", "b spec=1 available=0 rev=2"],
            "True ReplicaSetUpdated ".to_owned(),
            available,
        ),
        (
            "a complete one that loses a pod is not late",
            "replicas=3 progress=NewReplicaSetAvailable@9999 replicas-seen=3 updated-seen=3 available-seen=3"
                .to_owned(),
            vec!["b spec=3 available=2 rev=2"],
            "True NewReplicaSetAvailable ".to_owned(),
            lacking,
        ),
        (
            "paused",
            "replicas=3 paused progress=ReplicaSetUpdated@5".to_owned(),
            vec!["a spec=3"],
            "Unknown DeploymentPaused Deployment is paused".to_owned(),
            available,
        ),
        (
            "resumed",
            "replicas=3 progress=DeploymentPaused@5 replicas-seen=4 updated-seen=1 available-seen=3".to_owned(),
            vec!["a spec=3", "b spec=1 available=0 rev=2"],
            "Unknown DeploymentResumed Deployment is resumed".to_owned(),
            available,
        ),
        (
            "no deadline",
            "replicas=3 deadline=2147483647 progress=ReplicaSetUpdated@5".to_owned(),
            vec!["b spec=3 rev=2"],
            "none".to_owned(),
            available,
        ),
    ] {
        let plan = run(&d, &sets, &[]);
        assert_eq!(condition(&plan, "Progressing"), progress, "{what}");
        assert_eq!(condition(&plan, "Available"), is_available, "{what}");
    }
}

#[test]
fn a_failing_set_shows_on_the_deployment() {
    let plan = run("replicas=3", &["b spec=3 pods=1 rev=1 failure=quota"], &[]);
    assert_eq!(condition(&plan, "ReplicaFailure"), "True FailedCreate quota");
    assert_eq!(plan.check_at, Some(now() + SignedDuration::from_secs(601)));
    let plan = run("replicas=3", &["b spec=3 rev=1"], &[]);
    assert_eq!(condition(&plan, "ReplicaFailure"), "none");
    assert_eq!(plan.check_at, None, "complete: no deadline runs");
}

#[test]
fn counts() {
    let status = run("replicas=3", &["a spec=3 available=2", "b spec=1 pods=1 available=1 rev=2"], &[]).status;
    let n = |v: Option<i32>| v.unwrap_or(-1);
    assert_eq!(
        [status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas].map(n),
        [4, 1, 3, 3]
    );
    assert_eq!(status.observed_generation, Some(2));
}

#[test]
fn a_rollout_converges_whatever_the_numbers() {
    // Drives plans against a world where every pod becomes available at once, and checks the
    // promises on the way: never fewer available than allowed, never more pods than allowed.
    for replicas in [1, 2, 3, 5, 10, 17] {
        for (surge, unavailable) in [(1, 0), (0, 1), (2, 3), (1, 1)] {
            let line = format!("replicas={replicas} surge={surge} unavailable={unavailable}");
            let mut sets = vec![set(&format!("a spec={replicas} desired={replicas} max={}", replicas + surge))];
            for step in 0..200 {
                let made =
                    plan(Seen { deployment: deployment(&line), sets: sets.clone(), pod_owners: vec![], now: now() });
                if writes(&made).is_empty() {
                    break;
                }
                assert!(step < 199, "{line}: does not end");
                if let Some(mut new) = made.create {
                    new.uid = "b".into();
                    new.object["metadata"]["uid"] = json!("b");
                    new.created = now();
                    sets.push(new);
                }
                for (changed, _) in made.update {
                    if let Some(old) = sets.iter_mut().find(|s| s.uid == changed.uid) {
                        *old = changed;
                    }
                }
                let total: i32 = sets.iter().map(|s| s.replicas).sum();
                assert!(total <= replicas + surge, "{line}: {total} pods");
                // Deletions first, then the new pods come up.
                let left: i32 = sets.iter().map(|s| s.replicas.min(s.status.available_replicas)).sum();
                assert!(left >= replicas - unavailable.max(i32::from(surge == 0)), "{line}: {left} available");
                for set in &mut sets {
                    let n = set.replicas;
                    (set.status.replicas, set.status.ready_replicas, set.status.available_replicas) = (n, n, n);
                    set.object["status"] =
                        json!({"replicas": n, "readyReplicas": n, "availableReplicas": n, "observedGeneration": 1});
                }
            }
            let sizes: Vec<i32> = sets.iter().map(|s| s.replicas).collect();
            assert_eq!(sizes, [0, replicas], "{line}");
        }
    }
}
