//! The static pods that are wanted, from what was last read everywhere. Pure.
//!
//! ```text
//!  a.yaml reads well         → its pod
//!  a.yaml is damaged later   → its pod as it was, and a problem
//!  a.yaml is gone            → nothing
//!  a.yaml, b.yaml, one name  → a's pod, and a problem with b
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::manifest::{Origin, SEEN};
use crate::pod::BoundPod;

/// One manifest as it was read; the error says why it cannot be used.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub origin: Origin,
    pub pods: Result<Vec<Arc<BoundPod>>, String>,
}

/// One place that manifests come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Folder,
    Url,
}

/// A manifest that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub origin: String,
    pub why: String,
}

/// What every place holds.
#[derive(Debug, Default)]
pub struct Set {
    read: BTreeMap<Place, BTreeMap<Origin, Vec<Arc<BoundPod>>>>,
    problems: BTreeMap<Place, Vec<Problem>>,
}

impl Set {
    /// Takes in all that a place holds now. A pod whose manifest is damaged stays as it was.
    pub fn put(&mut self, place: Place, manifests: Vec<Manifest>) {
        let mut before = self.read.remove(&place).unwrap_or_default();
        let (mut now, mut problems) = (BTreeMap::new(), Vec::new());
        for Manifest { origin, pods } in manifests {
            let known = before.remove(&origin).unwrap_or_default();
            match pods {
                Ok(pods) => drop(now.insert(origin, pods.into_iter().map(|pod| same(&known, pod)).collect())),
                Err(why) => {
                    problems.push(Problem { origin: origin.to_string(), why });
                    now.insert(origin, known);
                }
            }
        }
        self.read.insert(place, now);
        self.problems.insert(place, problems);
    }

    /// A place cannot be read: what it held last stays.
    pub fn fail(&mut self, place: Place, origin: String, why: String) {
        self.problems.insert(place, vec![Problem { origin, why }]);
    }

    /// The pods that are wanted, each name once, and what is wrong.
    pub fn wanted(&self) -> (Vec<Arc<BoundPod>>, Vec<Problem>) {
        let (mut names, mut uids, mut pods) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let mut problems: Vec<Problem> = self.problems.values().flatten().cloned().collect();
        for (origin, pod) in self.read.values().flatten().flat_map(|(o, pods)| pods.iter().map(move |p| (o, p))) {
            if names.insert((&pod.namespace, &pod.name)) && uids.insert(&pod.uid) {
                pods.push(pod.clone());
                continue;
            }
            let why = format!("another manifest describes the pod {}/{} or its uid", pod.namespace, pod.name);
            problems.push(Problem { origin: origin.to_string(), why });
        }
        (pods, problems)
    }
}

/// The pod as it was known, when nothing but the time it was read at differs.
fn same(known: &[Arc<BoundPod>], pod: Arc<BoundPod>) -> Arc<BoundPod> {
    let without_time = |pod: &BoundPod| {
        let mut object = api::types::core::v1::Pod::clone(pod.object());
        object.metadata.annotations.get_or_insert_default().remove(SEEN);
        object
    };
    let new = without_time(&pod);
    known.iter().find(|k| without_time(k) == new).cloned().unwrap_or(pod)
}

#[cfg(test)]
mod tests {
    use super::super::manifest::parse;
    use super::*;
    use jiff::Timestamp;

    fn manifest(file: &str, name: &str, image: &str, second: i64) -> Manifest {
        let origin = Origin::File(file.into());
        let text =
            format!("kind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n");
        let pods = parse(text.as_bytes(), &origin, "n", Timestamp::from_second(second).expect("a time"));
        Manifest { origin, pods }
    }

    fn render(set: &Set) -> Vec<String> {
        let (pods, problems) = set.wanted();
        let image = |pod: &BoundPod| pod.containers()[0].image.clone().unwrap_or_default();
        let pods = pods.iter().map(|p| format!("{} {}", p.name, image(p)));
        pods.chain(problems.iter().map(|p| format!("{}: {}", p.origin, p.why))).collect()
    }

    #[test]
    fn damage_keeps_a_pod_and_absence_ends_it() {
        let mut set = Set::default();
        set.put(Place::Folder, vec![manifest("a", "web", "x:1", 1), manifest("b", "db", "x:1", 1)]);
        assert_eq!(render(&set), ["web-n x:1", "db-n x:1"]);
        let first = set.wanted().0[0].clone();
        let damaged = Manifest { origin: Origin::File("a".into()), pods: Err("no pod".into()) };
        set.put(Place::Folder, vec![damaged]);
        assert_eq!(render(&set), ["web-n x:1", "a: no pod"]);
        set.put(Place::Folder, vec![manifest("a", "web", "x:1", 9)]);
        assert!(Arc::ptr_eq(&first, &set.wanted().0[0]), "read again, it is the same pod");
        set.fail(Place::Folder, "/m".into(), "input/output error".into());
        assert_eq!(render(&set), ["web-n x:1", "/m: input/output error"]);
        set.put(Place::Folder, vec![manifest("a", "web", "x:2", 10)]);
        assert_eq!(render(&set), ["web-n x:2"]);
        set.put(Place::Folder, vec![]);
        assert_eq!(render(&set), Vec::<String>::new());
    }

    #[test]
    fn a_name_belongs_to_one_manifest() {
        let mut set = Set::default();
        set.put(Place::Url, vec![manifest("u", "web", "x:3", 1)]);
        set.put(Place::Folder, vec![manifest("b", "web", "x:2", 1), manifest("a", "web", "x:1", 1)]);
        let why = "another manifest describes the pod default/web-n or its uid";
        assert_eq!(render(&set), ["web-n x:1".to_owned(), format!("b: {why}"), format!("u: {why}")]);
    }
}
