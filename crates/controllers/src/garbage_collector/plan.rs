//! What happens to an object, given what its owners are right now. Pure.

use client::Propagation;

/// What a fresh read said of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// It lives.
    Solid,
    /// It does not exist, or is not what the reference says.
    Dangling,
    /// It is being deleted in the foreground and waits for its dependents.
    Waiting,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Keep,
    /// Somebody still owns it: only drop the references to these owners, by uid.
    Drop(Vec<String>),
    Delete {
        propagation: Propagation,
        /// First stop blocking the owners: they may be waiting for each other in a circle.
        unblock: bool,
    },
}

/// What is known of the object.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    pub has_dependents: bool,
    pub has_waiting_dependent: bool,
    /// The finalizers that say how it would go.
    pub orphans: bool,
    pub foreground: bool,
}

pub(super) fn judge(owners: &[(String, Owner)], facts: Facts) -> Verdict {
    let with = |what: Owner| owners.iter().filter(move |(_, o)| *o == what);
    if owners.is_empty() {
        return Verdict::Keep;
    }
    if with(Owner::Solid).next().is_some() {
        let gone: Vec<String> = owners.iter().filter(|(_, o)| *o != Owner::Solid).map(|(uid, _)| uid.clone()).collect();
        return if gone.is_empty() { Verdict::Keep } else { Verdict::Drop(gone) };
    }
    if with(Owner::Waiting).next().is_some() && facts.has_dependents {
        return Verdict::Delete { propagation: Propagation::Foreground, unblock: facts.has_waiting_dependent };
    }
    let propagation = match (facts.orphans, facts.foreground) {
        (true, _) => Propagation::Orphan,
        (_, true) => Propagation::Foreground,
        _ => Propagation::Background,
    };
    Verdict::Delete { propagation, unblock: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Owner::{Dangling, Solid, Waiting};

    #[test]
    fn verdicts() {
        let delete = |propagation, unblock| Verdict::Delete { propagation, unblock };
        let none = Facts::default();
        let parent = Facts { has_dependents: true, ..none };
        let circle = Facts { has_waiting_dependent: true, ..parent };
        for (owners, facts, verdict) in [
            (vec![], none, Verdict::Keep),
            (vec![Solid], none, Verdict::Keep),
            (vec![Solid, Dangling], none, Verdict::Drop(vec!["1".into()])),
            (vec![Waiting, Solid], parent, Verdict::Drop(vec!["0".into()])),
            (vec![Dangling], none, delete(Propagation::Background, false)),
            (vec![Dangling, Dangling], parent, delete(Propagation::Background, false)),
            (vec![Waiting], none, delete(Propagation::Background, false)),
            (vec![Waiting], parent, delete(Propagation::Foreground, false)),
            (vec![Waiting, Dangling], circle, delete(Propagation::Foreground, true)),
            (vec![Dangling], Facts { orphans: true, ..none }, delete(Propagation::Orphan, false)),
            (vec![Dangling], Facts { foreground: true, ..none }, delete(Propagation::Foreground, false)),
        ] {
            let owners: Vec<_> = owners.into_iter().enumerate().map(|(i, o)| (i.to_string(), o)).collect();
            assert_eq!(judge(&owners, facts), verdict, "{owners:?}");
        }
    }
}
