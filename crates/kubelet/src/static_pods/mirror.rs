//! Mirror pods: objects in the API that show static pods. Their makers decide nothing by them: one that
//! somebody deletes is made again, one whose pod is gone or another goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::meta::apis::meta::v1::OwnerReference;
use api::types::core::v1::Pod;
use client::{Client, DeleteParams};
use stdx::SharedClock;
use stdx::backoff::Policy;
use stdx::clock::Instant;
use stdx::shutdown::Stage;

use super::manifest::{HASH, MIRROR};
use crate::pod::BoundPod;
use crate::pods::Pods;
use crate::report::{Report, Wait};

const RETRY: Policy = Policy { initial: Duration::from_millis(200), max: Duration::from_secs(30) };
/// So long after somebody else took a mirror pod away there is none. Whoever deletes one and waits for its
/// end looks it up, lists and then watches: one that is back in between is taken for the one that is to go
/// (kubectl 1.32 then waits for ever).
const ABSENCE: Duration = Duration::from_secs(1);

/// One name that a static pod has, or had.
#[derive(Clone, Debug)]
pub struct Mirrored {
    pub namespace: String,
    pub name: String,
    /// The static pod that is wanted.
    pub wanted: Option<Arc<BoundPod>>,
    /// The mirror pod in the API.
    pub shown: Option<Arc<Pod>>,
    /// A pod of that name that is not wanted any more has not ended yet.
    pub ending: bool,
    /// Every manifest was read.
    pub all_read: bool,
}

/// What is to be done about a mirror pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    Create,
    /// At once, whatever grace somebody granted; then look again.
    Delete {
        uid: String,
    },
}

fn hash(pod: &Pod, key: &str) -> Option<String> {
    pod.metadata.annotations.as_ref()?.get(key).cloned()
}

/// True when `mirror` shows `pod` as it is.
pub fn shows(mirror: &Pod, pod: &BoundPod) -> bool {
    let own = hash(pod.object(), HASH);
    own.is_some() && hash(mirror, MIRROR) == own && mirror.metadata.deletion_timestamp.is_none()
}

/// Decides. `node` is the uid of the Node, the mirror's owner.
pub fn decide(state: &Mirrored, node: &str) -> Action {
    if state.ending {
        // What it shows still runs.
        return Action::Nothing;
    }
    let owned = |pod: &Pod| pod.metadata.owner_references.iter().flatten().any(|o| o.kind == "Node" && o.uid == node);
    match (&state.wanted, &state.shown) {
        (None, None) => Action::Nothing,
        (Some(_), None) if node.is_empty() => Action::Nothing,
        (Some(_), None) => Action::Create,
        (Some(pod), Some(mirror)) if shows(mirror, pod) && (owned(mirror) || node.is_empty()) => Action::Nothing,
        // Its manifest may be one that is not read yet.
        (None, Some(_)) if !state.all_read => Action::Nothing,
        (_, Some(mirror)) => Action::Delete { uid: mirror.metadata.uid.clone().unwrap_or_default() },
    }
}

/// The mirror pod of a static pod.
pub fn render(pod: &BoundPod, node_name: &str, node_uid: &str) -> Pod {
    let mut mirror = Pod::clone(pod.object());
    let meta = &mut mirror.metadata;
    meta.uid = None;
    let annotations = meta.annotations.get_or_insert_default();
    let own = annotations.get(HASH).cloned().unwrap_or_default();
    annotations.insert(MIRROR.to_owned(), own);
    meta.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node_name.to_owned(),
        uid: node_uid.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    }]);
    mirror.status = None;
    mirror
}

/// Keeps the mirror pods of one node as its static pods are.
pub struct Mirrors {
    pub pods: Arc<Pods>,
    pub client: Client,
    pub report: Arc<dyn Report>,
    pub clock: SharedClock,
    pub node_name: String,
    failures: BTreeMap<Key, Failure>,
    absences: Absences,
}

/// A namespace and a name in it.
type Key = (String, String);

/// Which mirror pods others took away, and until when they stay away. Pure.
#[derive(Debug, Default)]
struct Absences {
    /// Those that were shown, and that nobody was deleting.
    shown: BTreeSet<Key>,
    /// Made again not before.
    until: BTreeMap<Key, Instant>,
}

impl Absences {
    /// Looks at one; until when it is to stay away, where somebody else took it away.
    fn observe(&mut self, key: &Key, state: &Mirrored, now: Instant) -> Option<Instant> {
        let alive = state.shown.as_ref().is_some_and(|m| m.metadata.deletion_timestamp.is_none());
        if alive {
            self.until.remove(key);
            self.shown.insert(key.clone());
            return None;
        }
        if state.shown.is_some() || self.shown.contains(key) {
            self.shown.remove(key);
            self.until.entry(key.clone()).or_insert(now + ABSENCE);
        }
        let until = self.until.get(key).copied().filter(|until| now < *until);
        if until.is_none() {
            self.until.remove(key);
        }
        until
    }

    /// We take it away, or make it, ourselves.
    fn ours(&mut self, key: &Key) {
        self.shown.remove(key);
        self.until.remove(key);
    }

    fn keep_only(&mut self, known: impl Fn(&Key) -> bool) {
        self.shown.retain(&known);
        self.until.retain(|key, _| known(key));
    }
}

/// What went wrong last with one mirror pod.
struct Failure {
    count: u32,
    /// Not tried again before.
    until: Instant,
    why: String,
}

impl Mirrors {
    /// None are known to be in trouble.
    pub fn new(
        pods: Arc<Pods>,
        client: Client,
        report: Arc<dyn Report>,
        clock: SharedClock,
        node_name: String,
    ) -> Self {
        Self { pods, client, report, clock, node_name, failures: BTreeMap::new(), absences: Absences::default() }
    }

    /// Keeps them until the stage stops.
    pub async fn run(mut self, stage: Stage) {
        let mut stopped = std::pin::pin!(stage.stopped());
        loop {
            let absent = self.absences.until.values().copied();
            let again = self.failures.values().map(|f| f.until).chain(absent).min();
            let clock = self.clock.clone();
            let time = async move {
                match again {
                    Some(at) => clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = &mut stopped => return,
                () = self.pods.mirrors_due() => {}
                () = time => {}
            }
            tokio::select! {
                () = &mut stopped => return,
                () = self.pass() => {}
            }
        }
    }

    /// Looks at every name once.
    async fn pass(&mut self) {
        let all = self.pods.mirrored();
        let known = |(ns, name): &Key| all.iter().any(|m| m.namespace == *ns && m.name == *name);
        self.failures.retain(|key, _| known(key));
        self.absences.keep_only(known);
        for state in all {
            let key = (state.namespace.clone(), state.name.clone());
            let away = self.absences.observe(&key, &state, self.clock.now()).is_some();
            if self.failures.get(&key).is_some_and(|f| self.clock.now() < f.until) {
                continue;
            }
            match self.settle(state, &key, away).await {
                Ok(()) => drop(self.failures.remove(&key)),
                Err(why) => {
                    let count = self.failures.get(&key).map_or(1, |f| f.count.saturating_add(1));
                    tracing::warn!(namespace = key.0, name = key.1, why, "the mirror pod is not as it should be");
                    let until = self.clock.now() + RETRY.delay(count);
                    self.failures.insert(key, Failure { count, until, why });
                }
            }
        }
        let waits = self.failures.iter().map(|((namespace, name), failure)| Wait {
            code: "MirrorPod",
            on: format!("mirror pod {namespace}/{name}"),
            text: failure.why.clone(),
        });
        self.report.node_waits_beside("mirrors", waits.collect());
    }

    /// Makes one as it should be; `away`: it is not made now.
    async fn settle(&mut self, mut state: Mirrored, key: &Key, away: bool) -> Result<(), String> {
        let node = self.pods.node_uid();
        let api = self.client.api::<Pod>().namespace(&state.namespace);
        // Deleted and made again is two steps; a third would be somebody else's doing.
        for _ in 0..2 {
            match decide(&state, &node) {
                Action::Nothing => return Ok(()),
                Action::Delete { uid } => {
                    match api.delete(&state.name, &DeleteParams::of_uid(&uid).grace(0)).await {
                        Ok(_) => {}
                        // A conflict says that the name is another object's by now: the watch shows it.
                        Err(error) if error.is_not_found() || error.is_conflict() => {}
                        Err(error) => return Err(error.to_string()),
                    }
                    state.shown = None;
                    if away {
                        return Ok(());
                    }
                    self.absences.ours(key);
                }
                Action::Create if away => return Ok(()),
                Action::Create => {
                    let Some(pod) = &state.wanted else { return Ok(()) };
                    match api.create(&render(pod, &self.node_name, &node)).await {
                        Ok(_) => return Ok(()),
                        Err(error) if error.is_already_exists() => {
                            let found = api.find(&state.name).await.map_err(|e| e.to_string())?;
                            match found {
                                Some(found) if hash(&found, MIRROR).is_none() => {
                                    return Err("a pod that is not static has this name".to_owned());
                                }
                                // It is older than what is wanted, or the watch is late.
                                Some(found) => state.shown = Some(Arc::new(found)),
                                None => {}
                            }
                        }
                        Err(error) => return Err(error.to_string()),
                    }
                }
            }
        }
        match decide(&state, &node) {
            Action::Nothing => Ok(()),
            _ => Err("it changes while it is being made".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::manifest::{Origin, parse};
    use super::*;
    use jiff::Timestamp;

    fn pod(image: &str) -> Arc<BoundPod> {
        let text = format!("kind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n");
        let pods = parse(text.as_bytes(), &Origin::File("/m/web".into()), "n", Timestamp::UNIX_EPOCH);
        pods.expect("a pod").remove(0)
    }

    #[test]
    fn a_mirror_shows_its_pod_and_nothing_else() {
        let (old, new) = (pod("x:1"), pod("x:2"));
        let mirror = |of: &BoundPod, node: &str, deleted: bool| {
            let mut mirror = render(of, "n", node);
            mirror.metadata.uid = Some("m".into());
            if deleted {
                mirror.metadata.deletion_timestamp = Some(api::meta::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
            }
            Some(Arc::new(mirror))
        };
        let delete = || Action::Delete { uid: "m".into() };
        let rows = [
            (None, None, false, Action::Nothing),
            (Some(&old), None, false, Action::Create),
            (Some(&old), mirror(&old, "u", false), false, Action::Nothing),
            (Some(&old), mirror(&old, "u", true), false, delete()),
            (Some(&new), mirror(&old, "u", false), false, delete()),
            (Some(&new), mirror(&old, "u", false), true, Action::Nothing),
            (Some(&old), mirror(&old, "another node of this name", false), false, delete()),
            (None, mirror(&old, "u", false), false, delete()),
            (None, mirror(&old, "u", false), true, Action::Nothing),
        ];
        for (wanted, shown, ending, want) in rows {
            let all_read = true;
            let state = Mirrored {
                namespace: "default".into(),
                name: "web-n".into(),
                wanted: wanted.cloned(),
                shown,
                ending,
                all_read,
            };
            assert_eq!(decide(&state, "u"), want, "{state:?}");
        }
        let nowhere = Mirrored {
            namespace: "d".into(),
            name: "w".into(),
            wanted: Some(old.clone()),
            shown: None,
            ending: false,
            all_read: true,
        };
        assert_eq!(decide(&nowhere, ""), Action::Nothing, "not before the node is registered");
        let early = Mirrored { wanted: None, shown: mirror(&old, "u", false), all_read: false, ..nowhere };
        assert_eq!(decide(&early, "u"), Action::Nothing, "its manifest may be read yet");
    }

    #[test]
    fn one_that_others_take_away_stays_away_a_moment() {
        let web = pod("x:1");
        let mut object = render(&web, "n", "u");
        let alive = Some(Arc::new(object.clone()));
        object.metadata.deletion_timestamp = Some(api::meta::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        let deleted = Some(Arc::new(object));
        let key = ("default".to_owned(), "web-n".to_owned());
        let state = |shown: &Option<Arc<Pod>>| Mirrored {
            namespace: key.0.clone(),
            name: key.1.clone(),
            wanted: Some(web.clone()),
            shown: shown.clone(),
            ending: false,
            all_read: true,
        };
        let at = |millis| Instant(Duration::from_millis(millis));
        let mut absences = Absences::default();
        let mut look = |shown: &Option<Arc<Pod>>, millis| absences.observe(&key, &state(shown), at(millis));
        assert_eq!(look(&None, 0), None, "the first one is made at once");
        // Deleted with grace: from when that is seen on, however often.
        assert_eq!(look(&alive, 10), None);
        assert_eq!(look(&deleted, 5_000), Some(at(6_000)));
        assert_eq!(look(&deleted, 5_500), Some(at(6_000)));
        assert_eq!(look(&None, 5_900), Some(at(6_000)));
        assert_eq!(look(&None, 6_000), None);
        assert_eq!(look(&None, 6_001), None, "once only");
        // Deleted by force.
        assert_eq!(look(&alive, 7_000), None);
        assert_eq!(look(&None, 8_000), Some(at(9_000)));
        assert_eq!(look(&alive, 8_500), None, "it is there");
        // Taken away by us, to be made as it should be.
        absences.ours(&key);
        assert_eq!(absences.observe(&key, &state(&None), at(9_000)), None);
    }

    #[test]
    fn a_mirror_is_the_nodes() {
        let pod = pod("x:1");
        let mirror = serde_json::to_value(render(&pod, "n", "u")).expect("a tree");
        let metadata = &mirror["metadata"];
        assert_eq!(metadata["annotations"][MIRROR], pod.uid);
        assert_eq!(metadata["annotations"]["kubernetes.io/config.source"], "file");
        assert_eq!(metadata["uid"], serde_json::Value::Null);
        let owner =
            serde_json::json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true}]);
        assert_eq!(metadata["ownerReferences"], owner);
    }
}
