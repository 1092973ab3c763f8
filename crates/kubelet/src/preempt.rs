//! Which pods end so that a critical one has room. Pure.

use api::pod as ask;
use api::pod::QosClass;

use crate::admit::{self, Ground, Lack};
use crate::pod::BoundPod;
use crate::resize::allocations::Others;
use crate::sync::lifecycle::Cause;

/// Why a pod ends for another, in its status and in an event.
pub const REASON: &str = "Preempting";
pub const MESSAGE: &str = "Preempted in order to admit critical pod";

/// What an ended pod's status says.
pub fn cause() -> Cause {
    let disruption = Some("Pod was preempted by Kubelet to accommodate a critical pod.".into());
    Cause { reason: REASON.into(), message: MESSAGE.into(), disruption }
}

/// Whether `pod` may begin beside `others`, and the uids of those that have to end first. Where upstream waits
/// for that and admits nobody meanwhile, a pod that fits only once those that end already have ended is
/// admitted and waits for them.
///
/// # Errors
/// Why it is refused.
pub fn judge(pod: &BoundPod, ground: Ground<'_>, others: &Others<'_>) -> Result<Vec<String>, Cause> {
    let stay = || others.stay.iter().copied();
    let now = || stay().chain(others.yielding.iter().copied());
    let (mut ends, fits_now) = if pod.is_critical() {
        let lacks = admit::refuse_critical(pod, ground, stay())?;
        let lacks_now = admit::refuse_critical(pod, ground, now());
        (victims(pod, &others.stay, &lacks)?, lacks_now.is_ok_and(|lacks| lacks.is_empty()))
    } else {
        if let Some(cause) = admit::refuse(pod, ground, stay()) {
            return Err(cause);
        }
        (Vec::new(), admit::refuse(pod, ground, now()).is_none())
    };
    if !fits_now {
        ends.extend(&others.yielding);
    }
    Ok(ends.iter().map(|pod| pod.uid.clone()).collect())
}

/// A resource and how much of it has to become free.
type Needs = Vec<(String, i128)>;

/// The pods among `others` that end for `critical`, which lacks `lacks`: as few as possible, and of those
/// with guarantees as few as possible first, then of those with requests.
///
/// # Errors
/// When what may be ended would not free enough: why the critical pod is refused.
pub fn victims<'a>(critical: &BoundPod, others: &[&'a BoundPod], lacks: &[Lack]) -> Result<Vec<&'a BoundPod>, Cause> {
    let needs: Needs = lacks.iter().map(|lack| (lack.name.clone(), lack.amount())).collect();
    let of = |class: QosClass| -> Vec<&'a BoundPod> {
        others.iter().copied().filter(|other| may_preempt(critical, other) && other.qos() == class).collect()
    };
    let (idle, burstable, guaranteed) = (of(QosClass::BestEffort), of(QosClass::Burstable), of(QosClass::Guaranteed));
    let all: Vec<&BoundPod> = idle.iter().chain(&burstable).chain(&guaranteed).copied().collect();
    let missing = without(&needs, &all);
    if !missing.is_empty() {
        let list: String = missing.iter().map(|(name, amount)| format!("(res: {name}, q: {amount}), ")).collect();
        let message = format!(
            "Pod was rejected: Unexpected error while attempting to recover from admission failure: preemption: error \
             finding a set of pods to preempt: no set of running pods found to reclaim resources: [{list}]"
        );
        return Err(Cause { reason: "UnexpectedAdmissionError".into(), message, disruption: None });
    }
    let guaranteed = nearest(guaranteed, without(&without(&needs, &idle), &burstable));
    let burstable = nearest(burstable, without(&without(&needs, &idle), &guaranteed));
    let mut ends = nearest(idle, without(&without(&needs, &burstable), &guaranteed));
    ends.extend(burstable);
    ends.extend(guaranteed);
    Ok(ends)
}

/// Critical pods come before others, and more urgent ones before less urgent ones.
fn may_preempt(critical: &BoundPod, other: &BoundPod) -> bool {
    let urgency = |pod: &BoundPod| pod.spec().priority;
    let is_more_urgent = urgency(critical).zip(urgency(other)).is_some_and(|(own, theirs)| own > theirs);
    (critical.is_critical() && !other.is_critical()) || is_more_urgent
}

/// What a pod asks for of a resource; `cpu` in thousandths.
pub(crate) fn request(pod: &BoundPod, name: &str) -> i128 {
    let [requests, _] = ask::by_spec(pod.object());
    if name == "pods" { 1 } else { requests.get(name).map_or(0, |q| admit::number(name, q)) }
}

/// What is still needed when `pods` have ended.
fn without(needs: &Needs, pods: &[&BoundPod]) -> Needs {
    let rest = needs.iter().map(|(name, amount)| {
        let freed: i128 = pods.iter().map(|pod| request(pod, name)).sum();
        (name.clone(), amount.saturating_sub(freed))
    });
    rest.filter(|(_, amount)| *amount > 0).collect()
}

/// Of the pods those that together free what is needed, always the one that frees the largest part of the
/// rest, and of equal ones the smallest. They are known to suffice.
fn nearest(mut pods: Vec<&BoundPod>, mut needs: Needs) -> Vec<&BoundPod> {
    let mut ends = Vec::new();
    while !needs.is_empty() && !pods.is_empty() {
        let distance = |pod: &BoundPod| -> f64 {
            let parts = needs.iter().map(|(name, amount)| {
                let rest = amount.saturating_sub(request(pod, name)).max(0);
                // Amounts are compared as parts of the whole: the last bits do not matter.
                (rest as f64 / *amount as f64).powi(2)
            });
            parts.sum()
        };
        let size = |pod: &BoundPod| (request(pod, "memory"), request(pod, "cpu"));
        let order = |a: &&BoundPod, b: &&BoundPod| {
            distance(a).total_cmp(&distance(b)).then_with(|| size(a).cmp(&size(b))).then_with(|| a.uid.cmp(&b.uid))
        };
        let Some(at) = (0..pods.len()).min_by(|a, b| order(&pods[*a], &pods[*b])) else { break };
        let pod = pods.swap_remove(at);
        needs = without(&needs, &[pod]);
        ends.push(pod);
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::{Kernel, Place};
    use crate::node::pressure::Pressure;
    use crate::pod::tests::pod;
    use serde_json::json;
    use std::sync::Arc;

    /// `name[!] cpu/memory` asks for so much (`!`: of a system class); `=` also limits it to that.
    fn parse(text: &str) -> Arc<BoundPod> {
        let (name, amounts) = text.split_once(' ').expect("a name");
        let (uid, critical) = name.strip_suffix('!').map_or((name, false), |name| (name, true));
        let (amounts, guaranteed) = amounts.strip_prefix('=').map_or((amounts, false), |rest| (rest, true));
        let mut resources = json!({});
        if let Some((cpu, memory)) = amounts.split_once('/') {
            let amounts = json!({"cpu": cpu, "memory": memory});
            resources["requests"] = amounts.clone();
            if guaranteed {
                resources["limits"] = amounts;
            }
        }
        let priority = if critical { 2_000_000_000 } else { 0 };
        pod(json!({"metadata": {"uid": uid}, "spec": {"priority": priority,
            "containers": [{"name": "c", "resources": resources}]}}))
    }

    fn check(lacks: &[(&str, i128)], others: &[&str], want: &str) {
        let critical = parse("u! 1/1Mi");
        let others: Vec<_> = others.iter().map(|text| parse(text)).collect();
        let others: Vec<&BoundPod> = others.iter().map(|p| &**p).collect();
        let lack = |(name, amount): &(&str, i128)| Lack {
            name: (*name).to_owned(),
            requested: *amount,
            used: 10,
            capacity: 10,
        };
        let lacks: Vec<Lack> = lacks.iter().map(lack).collect();
        let found = match victims(&critical, &others, &lacks) {
            Ok(found) => found.iter().map(|p| p.uid.clone()).collect::<Vec<_>>().join(" "),
            Err(cause) => format!("{}: {}", cause.reason, cause.message),
        };
        assert_eq!(found, want, "{lacks:?}");
    }

    /// A pod beside others, on a node of four processors; those in brackets end already.
    #[test]
    fn nobody_begins_where_another_still_is() {
        let amounts = [("cpu", "4"), ("memory", "1Gi"), ("pods", "3")];
        let quantity = |(name, amount): &(&str, &str)| ((*name).to_owned(), amount.parse().expect("an amount"));
        let place = Place { allocatable: amounts.iter().map(quantity).collect(), ..Place::default() };
        for (own, others, want) in [
            ("u 1/1Mi", &["a 3/1Mi"][..], ""),
            ("u 2/1Mi", &["a 3/1Mi"], "OutOfcpu"),
            ("u! 2/1Mi", &["a 3/1Mi"], "a"),
            // What others leave is given at once, and what they end for once they have.
            ("u 1/1Mi", &["a! 1/1Mi", "(b 2/1Mi"], ""),
            ("u 1/1Mi", &["a! 2/1Mi", "(b 3/1Mi"], "b"),
            ("u 3/1Mi", &["a! 2/1Mi", "(b 3/1Mi"], "OutOfcpu"),
            ("u! 1/1Mi", &["a! 2/1Mi", "(b 3/1Mi"], "b"),
            ("u! 2/1Mi", &["a! 1/1Mi", "(b 2/1Mi", "c 2/1Mi"], "c b"),
            ("u! 3/1Mi", &["a! 2/1Mi", "(b 3/1Mi"], "UnexpectedAdmissionError"),
        ] {
            let read = |text: &&str| (parse(text.trim_start_matches('(')), text.starts_with('('));
            let pods: Vec<_> = others.iter().map(read).collect();
            let of = |yields: bool| pods.iter().filter(|(_, y)| *y == yields).map(|(pod, _)| &**pod).collect();
            let known = Others { stay: of(false), yielding: of(true) };
            let ground = Ground { place: &place, pressure: Pressure::default(), kernel: &Kernel::default() };
            let found = match judge(&parse(own), ground, &known) {
                Ok(uids) => uids.join(" "),
                Err(cause) => cause.reason,
            };
            assert_eq!(found, want, "{own} beside {others:?}");
        }
    }

    #[test]
    fn few_end_and_the_least_guaranteed_first() {
        check(&[], &["a 1/1Mi"], "");
        check(&[("cpu", 500)], &["a 500m/1Mi", "b 1/1Mi"], "a");
        check(&[("cpu", 500)], &["a 400m/1Mi", "b 1/1Mi"], "b");
        check(&[("cpu", 1500)], &["a 1/1Mi", "b 1/2Mi", "c 200m/1Mi"], "a b");
        check(&[("cpu", 500)], &["g =500m/1Mi", "b 500m/1Mi", "e -"], "b");
        check(&[("cpu", 1000)], &["g =500m/1Mi", "b 500m/1Mi", "e -"], "b g");
        check(&[("pods", 1)], &["g =500m/1Mi", "b 500m/1Mi", "e -"], "e");
        check(&[("pods", 1), ("memory", 1 << 20)], &["g =500m/1Mi", "b 500m/1Mi", "e -"], "b");
        check(&[("cpu", 500), ("memory", 3 << 20)], &["a 500m/1Mi", "b 100m/3Mi", "c 100m/1Mi"], "a b");
    }

    #[test]
    fn critical_ones_stay() {
        let refused = "UnexpectedAdmissionError: Pod was rejected: Unexpected error while attempting to recover from \
                       admission failure: preemption: error finding a set of pods to preempt: no set of running pods \
                       found to reclaim resources: [(res: cpu, q: 300), (res: example.com/x, q: 1), ]";
        check(&[("cpu", 500), ("example.com/x", 1)], &["a! 1/1Mi", "b 200m/1Mi"], refused);
    }

    #[test]
    fn the_more_urgent_of_two_critical_ones_stays() {
        let (urgent, other) = (parse("u! 1/1Mi"), parse("o! 1/1Mi"));
        assert!(!may_preempt(&urgent, &other));
        let mut object = api::types::core::v1::Pod::clone(urgent.object());
        object.spec.get_or_insert_default().priority = Some(2_000_001_000);
        let urgent = BoundPod::parse(Arc::new(object)).expect("a pod");
        assert!(may_preempt(&urgent, &other) && !may_preempt(&other, &urgent));
    }
}
