//! Whose an object is: adoption of orphans that match, release of objects that no longer do.

use client::{Meta, OwnerRef, Patch};
use machinery::labels::Selector;
use serde_json::json;

use crate::templates;

/// What an owner does about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
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
pub(crate) fn judge(owner: &Meta, selector: &Selector, object: &Meta) -> Claim {
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
pub(crate) fn adopt(owner: &OwnerRef, object: &Meta) -> Patch {
    Patch::Strategic(json!({"metadata": {"ownerReferences": [templates::reference(owner)], "uid": object.uid}}))
}

/// The patch that lets an object go.
pub(crate) fn release(owner: &Meta, object: &Meta) -> Patch {
    let gone = json!({"$patch": "delete", "uid": owner.uid});
    Patch::Strategic(json!({"metadata": {"ownerReferences": [gone], "uid": object.uid}}))
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
