//! What is said of a pod that ends because the node is short of something: upstream's words. Pure.

use machinery::quantity::Quantity;

use super::rank::{Candidate, ContainerUsage};
use crate::node::facts::Levels;
use crate::node::status::{binary, count};
use crate::node::thresholds::{Signal, Threshold};
use crate::pod;

/// The text, and what the event's annotations say beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub text: String,
    pub annotations: Vec<(String, String)>,
}

/// Of a node that is short of what `signal` is about, with `due` crossed.
pub fn render(signal: Signal, due: &[Threshold], levels: &Levels, candidate: &Candidate) -> Message {
    let resource = signal.resource();
    let mut text = format!("The node was low on resource: {resource}. ");
    let mut annotations = Vec::new();
    if let Some((threshold, (free, all))) = due
        .iter()
        .filter(|threshold| threshold.signal.resource() == resource)
        .find_map(|threshold| Some((threshold, threshold.signal.level(levels)?)))
    {
        let amount = |number| if matches!(resource, "inodes" | "pids") { count(number) } else { binary(number) };
        let (bound, free) = (amount(threshold.bound.of(all)), amount(free));
        text += &format!("Threshold quantity: {bound}, available: {free}. ");
    }
    let Some(usage) = &candidate.usage else { return Message { text, annotations } };
    let pod = &candidate.pod;
    let mut note = |name: &str, value: String| annotations.push((name.to_owned(), value));
    let whole = pod.spec().resources.as_ref().and_then(|r| pod::amount(r.requests.as_ref(), resource));
    if let Some(request) = whole.filter(|_| resource == "memory") {
        let used = binary(usage.memory);
        text += &larger("Pod", &pod.name, &used, &request, resource);
        note("offending_pod", pod.name.clone());
        note("offending_pod_usage", used.to_string());
    }
    let (mut names, mut amounts) = (Vec::new(), Vec::new());
    for container in usage.containers.iter().filter(|c| !pod.is_ephemeral(&c.name)) {
        let Some(used) = used(container, resource) else { continue };
        let own =
            pod.container(&container.name).and_then(|c| pod::amount(c.resources.as_ref()?.requests.as_ref(), resource));
        if i128::from(used) > own.as_ref().map_or(0, Quantity::value) {
            let used = binary(used);
            text += &larger("Container", &container.name, &used, &own.unwrap_or_else(|| count(0)), resource);
            names.push(container.name.clone());
            amounts.push(used.to_string());
        }
    }
    note("offending_containers", names.join(","));
    note("offending_containers_usage", amounts.join(","));
    note("starved_resource", resource.to_owned());
    Message { text, annotations }
}

fn larger(what: &str, name: &str, used: &Quantity, request: &Quantity, resource: &str) -> String {
    format!("{what} {name} was using {used}, request is {request}, has larger consumption of {resource}. ")
}

fn used(container: &ContainerUsage, resource: &str) -> Option<u64> {
    match resource {
        "memory" => container.memory,
        "ephemeral-storage" => Some(container.layer?.bytes.saturating_add(container.logs?.bytes)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::rank::tests::read;
    use super::*;
    use crate::node::facts::Disk;
    use crate::node::thresholds::{Bounds, Thresholds};

    fn check(bounds: &str, levels: &Levels, pod: &str, want: &str) -> Vec<(String, String)> {
        let thresholds = Thresholds::hard(Bounds::limits(bounds).expect("bounds"));
        let due: Vec<Threshold> = thresholds.all().collect();
        let found = render(due[0].signal, &due, levels, &read(pod));
        assert_eq!(found.text, want, "{bounds} {pod}");
        found.annotations
    }

    #[test]
    fn words() {
        let disk = Some(Disk { capacity: 1000 << 20, available: 10 << 20, inodes: 2000, inodes_free: 7 });
        let levels = Levels {
            memory: 4 << 30,
            memory_available: Some(50 << 20),
            data: disk,
            pids: 100,
            pids_free: Some(3),
            ..Levels::default()
        };
        let low = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. ";
        let more = "Container c was using 2Mi, request is 1Mi, has larger consumption of memory. ";
        let notes = check("memory.available<100Mi", &levels, "a 0 1Mi 2097152", &format!("{low}{more}"));
        let note = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            notes,
            [
                note("offending_containers", "c"),
                note("offending_containers_usage", "2Mi"),
                note("starved_resource", "memory")
            ]
        );
        check("memory.available<100Mi", &levels, "a 0 4Mi 2097152", low);
        assert_eq!(check("memory.available<100Mi", &levels, "a 0 4Mi -", low), []);
        check(
            "nodefs.available<10%",
            &levels,
            "a 0 0 0/1024/1024",
            "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 10Mi. Container c was \
             using 2Ki, request is 0, has larger consumption of ephemeral-storage. ",
        );
        let inodes = "The node was low on resource: inodes. Threshold quantity: 100, available: 7. ";
        check("nodefs.inodesFree<5%", &levels, "a 0 0 0/1024/1024", inodes);
        let pids = "The node was low on resource: pids. Threshold quantity: 10, available: 3. ";
        check("pid.available<10", &levels, "a 0 0 9", pids);
    }
}
