//! PrioritySort: which waiting pod is tried next.

use std::cmp::Reverse;

use crate::pod::{PodInfo, Uid};

/// Pods in this order: higher priority first, then who has waited longer, then a fixed order.
pub type Place = (Reverse<i32>, u64, Uid);

/// The place of a pod that entered the queue as its `entered`th.
pub fn place(pod: &PodInfo, entered: u64) -> Place {
    (Reverse(pod.priority), entered, pod.uid.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_then_age() {
        let pod = |uid: &str, priority| PodInfo { uid: uid.into(), priority, ..PodInfo::default() };
        let mut places = [place(&pod("late", 5), 3), place(&pod("low", 1), 1), place(&pod("early", 5), 2)];
        places.sort();
        let order: Vec<&str> = places.iter().map(|(_, _, uid)| uid.as_str()).collect();
        assert_eq!(order, ["early", "late", "low"]);
    }
}
