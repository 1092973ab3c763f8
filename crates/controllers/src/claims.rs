//! Whose an object is: adoption of orphans that match, release of objects that no longer do.

use std::sync::Arc;

use client::controller::Pass;
use client::informer::{OWNER, View};
use client::{Cached, Change, Informer, Key, Meta, OwnerRef, Patch, Resource, Result};
use machinery::labels::Selector;
use serde_json::{Value, json};

use crate::templates;
use crate::views::SelectorView;
use crate::writer::{Writer, revision};

/// What an owner does about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// It is ours.
    Keep,
    /// It is nobody's and matches: make it ours.
    Adopt,
    /// It is ours but no longer matches: let it go.
    Release,
    /// It is another's, or nothing to us.
    Ignore,
}

/// Decides about one object.
fn judge(owner: &Meta, selector: &Selector, object: &Meta) -> Claim {
    let matches = selector.matches(&object.labels);
    match object.controller() {
        Some(controller) if controller.uid != owner.uid => Claim::Ignore,
        Some(_) if matches => Claim::Keep,
        // An owner that is going away changes nothing: the garbage collector decides.
        Some(_) if owner.is_deleting() => Claim::Ignore,
        Some(_) => Claim::Release,
        None if owner.is_deleting() || !matches || object.is_deleting() => Claim::Ignore,
        None => Claim::Adopt,
    }
}

/// The patch that makes an object ours. Its uid guards against a namesake.
fn adopt(owner: &OwnerRef, object: &Meta) -> Patch {
    Patch::Strategic(json!({"metadata": {"ownerReferences": [templates::reference(owner)], "uid": object.uid}}))
}

/// The patch that lets an object go.
fn release(owner: &Meta, object: &Meta) -> Patch {
    let gone = json!({"$patch": "delete", "uid": owner.uid});
    Patch::Strategic(json!({"metadata": {"ownerReferences": [gone], "uid": object.uid}}))
}

/// An object that is the owner's.
pub(crate) struct Claimed<V> {
    pub cached: Arc<Cached<V>>,
    /// As the server answered, when it was adopted just now.
    pub adopted: Option<Value>,
}

/// Brings claims about: one owner, and the kind of what it owns.
pub(crate) struct Claimer<'a, V> {
    pub writer: &'a Writer,
    pub kind: &'a Resource,
    pub owner: &'a Meta,
    pub objects: &'a Informer<V>,
}

impl<V: View> Claimer<'_, V> {
    /// The owner's objects, after adoption and release. Of the orphans only those that are `wanted`
    /// are adopted.
    pub(crate) async fn settle(
        &self,
        selector: &Selector,
        wanted: impl Fn(&V) -> bool + Send,
        pass: &Pass,
    ) -> Result<Vec<Claimed<V>>> {
        let (namespace, resource) = (&self.owner.namespace, self.objects.resource());
        let mut candidates = self.objects.by_index(OWNER, &self.owner.uid);
        let matching = self.objects.select(namespace, selector).into_iter();
        candidates.extend(matching.filter(|o| o.meta.controller().is_none()));
        let mut claimed = Vec::new();
        let mut may_adopt = None;
        for cached in candidates {
            let name = &cached.meta.name;
            match judge(self.owner, selector, &cached.meta) {
                Claim::Keep => claimed.push(Claimed { cached, adopted: None }),
                Claim::Ignore => {}
                Claim::Adopt if !wanted(&cached.view) => {}
                Claim::Adopt => {
                    // The cache may not know yet that the owner is going: ask once.
                    let allowed = match may_adopt {
                        Some(allowed) => allowed,
                        None => *may_adopt.insert(self.is_alive().await?),
                    };
                    if !allowed {
                        continue;
                    }
                    let patch = adopt(&templates::controller(self.kind, self.owner), &cached.meta);
                    match self.writer.patch(resource, namespace, name, &patch).await {
                        Ok(object) => {
                            pass.hold(self.objects.reached(revision(&object)));
                            claimed.push(Claimed { cached, adopted: Some(object) });
                        }
                        Err(error) if error.is_not_found() => {}
                        Err(error) => return Err(error),
                    }
                }
                Claim::Release => {
                    let patch = release(self.owner, &cached.meta);
                    match self.writer.patch(resource, namespace, name, &patch).await {
                        Ok(object) => pass.hold(self.objects.reached(revision(&object))),
                        // Gone, or replaced by a namesake.
                        Err(error) if error.is_not_found() || error.is_invalid() => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(claimed)
    }

    async fn is_alive(&self) -> Result<bool> {
        let api = self.writer.client.dynamic(self.kind.clone()).namespace(&self.owner.namespace);
        let fresh = api.find(&self.owner.name).await?;
        Ok(fresh.is_some_and(|f| machinery::meta::uid(&f) == self.owner.uid && !machinery::meta::is_deleting(&f)))
    }
}

/// The owner an object names as its controller, if it is one of `owners` and no namesake.
pub(crate) fn owner_of<V: View>(owners: &Informer<SelectorView>, object: &Cached<V>) -> Option<Key> {
    let owner = object.meta.controller().filter(|o| *o.kind == *owners.resource().kind)?;
    let cached = owners.find(&object.meta.namespace, &owner.name)?;
    (cached.meta.uid == owner.uid).then(|| cached.meta.key())
}

/// Which owners a changed object concerns: the one it has, the one it had, and, for an orphan that
/// came or changed its labels, each whose selector matches it.
pub(crate) fn concerned<V: View>(owners: &Informer<SelectorView>, change: &Change<V>) -> Vec<Key> {
    let sides = [Some(change.object()), change.old()];
    let mut keys: Vec<Key> = sides.into_iter().flatten().filter_map(|side| owner_of(owners, side)).collect();
    if let (None, Change::Applied { old, new }) = (change.object().meta.controller(), change) {
        let is_news = old.as_ref().is_none_or(|o| o.meta.labels != new.meta.labels || o.meta.controller().is_some());
        if is_news && !new.meta.is_deleting() {
            let matches = |owner: &Arc<Cached<SelectorView>>| {
                let selector = api::selector_or_nothing(owner.view.spec.selector.as_ref());
                selector.is_ok_and(|s| s.matches(&new.meta.labels))
            };
            let there = owners.list_namespace(&new.meta.namespace).into_iter();
            keys.extend(there.filter(matches).map(|owner| owner.meta.key()));
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn meta(uid: &str, label: &str, controller: Option<&str>, deleting: bool) -> Meta {
        let owner = |uid: &str| OwnerRef { uid: uid.into(), controller: true, ..OwnerRef::default() };
        Meta {
            uid: uid.into(),
            labels: [("app".to_owned(), label.to_owned())].into(),
            owner_references: controller.map(owner).into_iter().collect(),
            deletion_timestamp: deleting.then_some(Timestamp::UNIX_EPOCH),
            ..Meta::default()
        }
    }

    #[test]
    fn who_keeps_adopts_and_releases() {
        let selector = Selector::parse("app=web").expect("valid");
        let (owner, going) = (meta("o", "", None, false), meta("o", "", None, true));
        for (who, label, controller, deleting, claim) in [
            (&owner, "web", Some("o"), false, Claim::Keep),
            (&owner, "web", Some("o"), true, Claim::Keep),
            (&owner, "other", Some("o"), false, Claim::Release),
            (&owner, "web", Some("x"), false, Claim::Ignore),
            (&owner, "web", None, false, Claim::Adopt),
            (&owner, "web", None, true, Claim::Ignore),
            (&owner, "other", None, false, Claim::Ignore),
            (&going, "web", None, false, Claim::Ignore),
            (&going, "other", Some("o"), false, Claim::Ignore),
            (&going, "web", Some("o"), false, Claim::Keep),
        ] {
            assert_eq!(judge(who, &selector, &meta("p", label, controller, deleting)), claim, "{label} {controller:?}");
        }
    }
}
