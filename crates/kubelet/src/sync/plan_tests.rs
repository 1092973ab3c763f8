//! Plans as text: what is seen, and what is done about it.

use super::*;
use crate::pod::tests::pod;
use crate::runtime::Sandbox as Found;
use jiff::Timestamp;
use serde_json::json;
use std::sync::Arc;

fn two(policy: &str) -> Arc<BoundPod> {
    pod(json!({"spec": {"restartPolicy": policy, "containers": [
        {"name": "a", "image": "i", "livenessProbe": {"tcpSocket": {"port": 1}}},
        {"name": "b", "image": "i", "startupProbe": {"tcpSocket": {"port": 1}}}]}}))
}

fn with_init() -> Arc<BoundPod> {
    pod(json!({"spec": {"restartPolicy": "Always", "initContainers": [
        {"name": "x", "image": "i"},
        {"name": "w", "image": "i", "restartPolicy": "Always", "startupProbe": {"tcpSocket": {"port": 1}}},
        {"name": "y", "image": "i"}], "containers": [{"name": "a", "image": "i"}]}}))
}

/// `"S0 a+ b:1"`: sandbox attempt 0 ready (`s0` not ready), a runs, b exited with 1, `c*` created, `d?` unknown.
fn seen(pod: &BoundPod, text: &str) -> PodState {
    let mut state = PodState::default();
    for word in text.split_whitespace() {
        if let Some(attempt) = word.strip_prefix(['S', 's']) {
            let attempt: u32 = attempt.parse().expect("a number");
            state.sandboxes.insert(
                0,
                Found {
                    id: format!("sb{attempt}"),
                    attempt,
                    ready: word.starts_with('S'),
                    created_at: Timestamp::UNIX_EPOCH,
                    ips: vec!["10.0.0.1".into()],
                    host_network: false,
                },
            );
            continue;
        }
        let (name, state_text) = word.split_at(1);
        let (container_state, code) = match state_text {
            "+" => (ContainerState::Running, 0),
            "*" => (ContainerState::Created, 0),
            "?" => (ContainerState::Unknown, 0),
            code => (ContainerState::Exited, code[1..].parse().expect("a code")),
        };
        let spec = pod.container(name).expect("a container of the pod");
        let sandbox_id = state.sandboxes.first().map(|s| s.id.clone()).unwrap_or_default();
        state.containers.insert(0, crate::runtime::fake::container(spec, &sandbox_id, container_state, code));
    }
    state
}

/// `"keep sb0 kill a start 0 1"`.
fn render(plan: &Plan) -> String {
    let mut out = match &plan.sandbox {
        Sandbox::Keep(id) => format!("keep {id}"),
        Sandbox::Create { attempt, changed } => {
            format!("create {attempt}{}", if *changed { " changed" } else { "" })
        }
        Sandbox::Finish => "finish".into(),
    };
    for kill in &plan.kill {
        out += &format!(" kill {}", kill.name);
    }
    for id in &plan.reset {
        out += &format!(" reset {}", id.split('-').next().unwrap_or_default());
    }
    for update in &plan.update {
        out += &format!(" update {}", update.name);
    }
    if plan.whole {
        out += " whole";
    }
    for index in &plan.ephemeral {
        out += &format!(" ephemeral {index}");
    }
    for index in &plan.init {
        out += &format!(" init {index}");
    }
    for index in &plan.start {
        out += &format!(" start {index}");
    }
    out
}

fn check(pod: &BoundPod, text: &str, verdicts: &[(&str, Kind, Verdict)], want: &str) {
    let state = seen(pod, text);
    let verdicts =
        verdicts.iter().filter_map(|(name, kind, v)| Some(((state.container(name)?.id.clone(), *kind), *v))).collect();
    assert_eq!(render(&plan(pod, &state, &verdicts, &Actuated::new())), want, "{text}");
}

#[test]
fn containers_start_stay_and_restart() {
    let always = two("Always");
    check(&always, "", &[], "create 0 start 0 start 1");
    check(&always, "S0", &[], "keep sb0 start 0 start 1");
    check(&always, "S0 a+", &[], "keep sb0 start 1");
    check(&always, "S0 a+ b+", &[], "keep sb0");
    check(&always, "S0 a:0 b+", &[], "keep sb0 start 0");
    check(&always, "S0 a* b+", &[], "keep sb0 start 0");
    check(&always, "S0 a? b+", &[], "keep sb0 kill a start 0");
    let failure = two("OnFailure");
    check(&failure, "S0 a:0 b+", &[], "keep sb0");
    check(&failure, "S0 a:1 b+", &[], "keep sb0 start 0");
    check(&failure, "S0 a:0 b:0", &[], "finish");
    let never = two("Never");
    check(&never, "S0 a:1 b+", &[], "keep sb0");
    check(&never, "S0 a:1 b:0", &[], "finish");
    check(&never, "S0 a:1", &[], "keep sb0 start 1");
}

#[test]
fn probes_kill_and_only_their_own_probe_counts() {
    let always = two("Always");
    check(&always, "S0 a+ b+", &[("a", Kind::Liveness, Verdict::Failure)], "keep sb0 kill a start 0");
    check(&always, "S0 a+ b+", &[("b", Kind::Startup, Verdict::Failure)], "keep sb0 kill b start 1");
    check(&always, "S0 a+ b+", &[("a", Kind::Readiness, Verdict::Failure)], "keep sb0");
    let never = two("Never");
    check(&never, "S0 a+ b+", &[("a", Kind::Liveness, Verdict::Failure)], "keep sb0 kill a");
}

#[test]
fn a_lost_sandbox_is_replaced() {
    let always = two("Always");
    check(&always, "s0 a:137 b:137", &[], "create 1 changed start 0 start 1");
    check(&always, "S0 S1 a+ b+", &[], "create 2 changed start 0 start 1");
    check(&two("Never"), "s0 a:137 b:137", &[], "finish");
    check(&two("Never"), "s0", &[], "create 1 changed start 0 start 1");
    check(&two("OnFailure"), "s0 a:0 b:137", &[], "create 1 changed start 1");
    check(&two("OnFailure"), "s0 a:0 b:0", &[], "finish");
}

#[test]
fn a_deleted_pod_starts_nothing() {
    let pod = pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "a", "image": "i"}]}}));
    check(&pod, "S0 a:1", &[], "finish");
}

#[test]
fn init_containers_run_in_order_and_sidecars_stay() {
    let pod = with_init();
    let started = [("w", Kind::Startup, Verdict::Success)];
    check(&pod, "", &[], "create 0 init 0");
    check(&pod, "S0", &[], "keep sb0 init 0");
    check(&pod, "S0 x+", &[], "keep sb0");
    check(&pod, "S0 x:1", &[], "keep sb0 init 0");
    check(&pod, "S0 x:0", &[], "keep sb0 init 1");
    check(&pod, "S0 x:0 w+", &[], "keep sb0");
    check(&pod, "S0 x:0 w+", &started, "keep sb0 init 2");
    check(&pod, "S0 x:0 w:1", &[], "keep sb0 init 1");
    check(&pod, "S0 x:0 w+ y+", &started, "keep sb0");
    check(&pod, "S0 x:0 w:1 y+", &[], "keep sb0 init 1");
    check(&pod, "S0 x:0 w+ y:0", &started, "keep sb0 start 0");
    check(&pod, "S0 x:0 w+ y:0 a+", &started, "keep sb0");
    check(&pod, "S0 x:0 w:0 y:0 a+", &[], "keep sb0 init 1");
    check(&pod, "S0 w+ a+", &started, "keep sb0");
    check(&pod, "S0 a+", &[], "keep sb0 init 1");
    check(&pod, "S0 x:0 w+ y:0 a:1", &started, "keep sb0 start 0");
}

#[test]
fn a_failed_init_container_ends_a_pod_that_never_restarts() {
    let pod = pod(json!({"spec": {"restartPolicy": "Never", "initContainers": [{"name": "x", "image": "i"}],
        "containers": [{"name": "a", "image": "i"}]}}));
    check(&pod, "S0 x:1", &[], "finish");
    check(&pod, "S0 x:0", &[], "keep sb0 start 0");
}

#[test]
fn containers_of_an_earlier_sandbox_do_not_count_as_initialization() {
    let pod = pod(json!({"spec": {"restartPolicy": "Always", "initContainers": [{"name": "x", "image": "i"}],
        "containers": [{"name": "a", "image": "i"}]}}));
    check(&pod, "s0 x:0 a:137 S1", &[], "keep sb1 init 0");
}

#[test]
fn an_ephemeral_container_runs_once_and_holds_nothing_up() {
    let pod = pod(json!({"spec": {"restartPolicy": "OnFailure", "initContainers": [{"name": "x", "image": "i"}],
        "containers": [{"name": "a", "image": "i"}],
        "ephemeralContainers": [{"name": "e", "image": "i"}, {"name": "f", "image": "i"}]},
        "status": {"ephemeralContainerStatuses": [{"name": "f", "image": "i", "imageID": "", "ready": false,
            "restartCount": 0, "containerID": "containerd://1"}]}}));
    check(&pod, "", &[], "create 0 init 0");
    check(&pod, "S0 x+", &[], "keep sb0 ephemeral 0");
    check(&pod, "S0 x:0 a+", &[], "keep sb0 ephemeral 0");
    check(&pod, "S0 x:0 a+ e*", &[], "keep sb0 ephemeral 0");
    check(&pod, "S0 x:0 a+ e+", &[], "keep sb0");
    check(&pod, "S0 x:0 a+ e:1", &[], "keep sb0");
    check(&pod, "S0 x:0 a+ e?", &[], "keep sb0");
    // A pod is over when its own containers are.
    check(&pod, "S0 x:0 a:0 e+", &[], "finish");
    check(&pod, "s0 x:0 e:137 a:137 S1", &[], "keep sb1 init 0");
}

#[test]
fn resized_containers_are_updated_or_restarted() {
    let of = |cpu: &str, memory: &str| json!({"limits": {"cpu": cpu, "memory": memory}});
    let pod = pod(json!({"spec": {"restartPolicy": "Always",
        "initContainers": [{"name": "w", "image": "i", "restartPolicy": "Always", "resources": of("1", "2Gi")}],
        "containers": [
            {"name": "a", "image": "i", "resources": of("1", "2Gi")},
            {"name": "b", "image": "i", "resources": of("1", "1Gi")},
            {"name": "c", "image": "i", "resources": of("1", "1Gi"), "resizePolicy": [
                {"resourceName": "memory", "restartPolicy": "RestartContainer"}]}]}}));
    let state = seen(&pod, "S0 w+ a+ b+ c+");
    let had = |name: &str, cpu: &str, memory: &str| {
        let id = state.container(name).expect("a container").id.clone();
        (id, serde_json::from_value(of(cpu, memory)).expect("resources"))
    };
    let rows = [
        (vec![], "keep sb0"),
        (vec![had("a", "1", "2Gi")], "keep sb0"),
        // What becomes less goes first.
        (vec![had("w", "1", "1Gi"), had("a", "2", "2Gi"), had("b", "1", "2Gi")], "keep sb0 update b update w update a"),
        (vec![had("c", "2", "1Gi")], "keep sb0 update c"),
        (vec![had("c", "1", "2Gi"), had("a", "1", "1Gi")], "keep sb0 kill c update a start 2"),
        (vec![(change::POD.to_owned(), Default::default())], "keep sb0 whole"),
    ];
    for (actuated, want) in rows {
        let plan = plan(&pod, &state, &Verdicts::new(), &actuated.into_iter().collect());
        assert_eq!(render(&plan), want);
        let texts: Vec<_> = plan.kill.iter().map(|k| k.message.as_str()).collect();
        assert!(texts.iter().all(|t| *t == "Container c resize requires restart"), "{texts:?}");
    }
}

#[test]
fn an_end_may_restart_the_whole_pod() {
    let rule =
        |code: i32| json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [code]}}]);
    let pod = pod(json!({"spec": {"restartPolicy": "Never",
        "initContainers": [{"name": "x", "image": "i", "restartPolicy": "Never", "restartPolicyRules": rule(8)}],
        "containers": [{"name": "a", "image": "i"},
            {"name": "b", "image": "i", "restartPolicy": "Never", "restartPolicyRules": rule(7)}],
        "ephemeralContainers": [{"name": "e", "image": "i"}]}}));
    check(&pod, "S0 x:0 a+ b:7 e+", &[], "keep sb0 reset a reset x reset b");
    check(&pod, "S0 x:0 b:7 e+", &[], "keep sb0 reset x reset b");
    check(&pod, "S0 b:7 e+", &[], "keep sb0 reset b");
    check(&pod, "S0 e+", &[], "keep sb0 init 0");
    check(&pod, "S0 x:8 e+", &[], "keep sb0 reset x");
    check(&pod, "S0 x:1 e+", &[], "finish");
    check(&pod, "S0 x:0 a:0 b:1 e+", &[], "finish");
}

#[test]
fn texts() {
    let always = two("Always");
    let state = seen(&always, "S0 a+ b+");
    let id = state.container("a").expect("a").id.clone();
    let verdicts = [((id, Kind::Liveness), Verdict::Failure)].into_iter().collect();
    let plan = plan(&always, &state, &verdicts, &Actuated::new());
    assert_eq!(plan.kill[0].message, "Container a failed liveness probe, will be restarted");
}
