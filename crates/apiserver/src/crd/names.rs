//! Which of the names that a definition wants it can have: those that nobody else in its group has; pure.

use std::collections::HashSet;

use kinds::custom_resource_definition::{Definition, Names};

/// Names that others have in a group.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// Plurals, singulars and short names.
    resources: HashSet<String>,
    /// Kinds and kinds of lists.
    kinds: HashSet<String>,
}

impl Taken {
    /// Adds what somebody has.
    pub fn add(&mut self, names: &Names) {
        let resources = [&names.plural, &names.singular].into_iter().chain(&names.short_names);
        self.resources.extend(resources.filter(|name| !name.is_empty()).cloned());
        self.kinds.extend([&names.kind, &names.list_kind].into_iter().filter(|name| !name.is_empty()).cloned());
    }
}

/// What came of the wish.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub accepted: Names,
    /// Reason and message of the first refusals; `None` when every name is accepted.
    pub refused: Option<(&'static str, String)>,
}

/// Judges what a definition wants. What it has it keeps until it can have what it wants instead.
pub fn judge(definition: &Definition, taken: &Taken) -> Verdict {
    let wanted = &definition.spec.names;
    let has = definition.status.as_ref().map(|status| status.accepted_names.clone()).unwrap_or_default();
    let mut accepted = has.clone();
    let mut refused = None;
    let free = |wanted: &str, has: &str, taken: &HashSet<String>| match wanted == has || !taken.contains(wanted) {
        true => Ok(wanted.to_owned()),
        false => Err(format!("{wanted:?} is already in use")),
    };
    match free(&wanted.plural, &has.plural, &taken.resources) {
        Ok(name) => accepted.plural = name,
        Err(why) => refused = Some(("PluralConflict", why)),
    }
    match free(&wanted.singular, &has.singular, &taken.resources) {
        Ok(name) => accepted.singular = name,
        Err(why) => refused = Some(("SingularConflict", why)),
    }
    let short = wanted.short_names.iter().filter(|name| !has.short_names.contains(*name));
    let mut conflicts: Vec<String> = short.filter_map(|name| free(name, "", &taken.resources).err()).collect();
    conflicts.dedup();
    match conflicts.as_slice() {
        [] => accepted.short_names.clone_from(&wanted.short_names),
        [only] => refused = Some(("ShortNamesConflict", only.clone())),
        all => refused = Some(("ShortNamesConflict", format!("[{}]", all.join(", ")))),
    }
    match free(&wanted.kind, &has.kind, &taken.kinds) {
        Ok(name) => accepted.kind = name,
        Err(why) => refused = Some(("KindConflict", why)),
    }
    match free(&wanted.list_kind, &has.list_kind, &taken.kinds) {
        Ok(name) => accepted.list_kind = name,
        Err(why) => refused = Some(("ListKindConflict", why)),
    }
    accepted.categories.clone_from(&wanted.categories);
    Verdict { accepted, refused }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(wanted: Value, has: Value, others: &[Value], accepted: Value, refused: Option<(&str, &str)>) {
        let tree = json!({"metadata": {"name": "as.b.c"}, "spec": {"group": "b.c", "names": wanted},
            "status": {"acceptedNames": has}});
        let mut taken = Taken::default();
        others.iter().for_each(|names| taken.add(&serde_json::from_value(names.clone()).expect("names")));
        let verdict = judge(&serde_json::from_value(tree.clone()).expect("a definition"), &taken);
        assert_eq!(serde_json::to_value(&verdict.accepted).expect("JSON"), accepted, "{tree}");
        let got = verdict.refused.as_ref().map(|(reason, message)| (*reason, message.as_str()));
        assert_eq!(got, refused, "{tree}");
    }

    #[test]
    fn names_are_given_once_in_a_group() {
        let names = |plural: &str, kind: &str| json!({"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")});
        let none = || json!({});
        check(names("as", "A"), none(), &[], names("as", "A"), None);
        check(names("as", "A"), none(), &[names("bs", "B")], names("as", "A"), None);
        // Its own names are no conflict.
        check(names("as", "A"), names("as", "A"), &[names("bs", "B")], names("as", "A"), None);
        let kind = json!({"plural": "as", "singular": "a", "kind": "", });
        check(
            names("as", "A"),
            none(),
            &[json!({"plural": "bs", "kind": "A", "listKind": "AList"})],
            kind,
            Some(("ListKindConflict", "\"AList\" is already in use")),
        );
        let mut short = names("as", "A");
        short["shortNames"] = json!(["x", "y"]);
        let mut without = names("as", "A");
        without["shortNames"] = json!(["z"]);
        check(
            short.clone(),
            without.clone(),
            &[json!({"plural": "x", "singular": "y", "kind": "B"})],
            without,
            Some(("ShortNamesConflict", "[\"x\" is already in use, \"y\" is already in use]")),
        );
        let mut taken = names("as", "A");
        taken["plural"] = json!("old");
        check(
            names("as", "A"),
            taken.clone(),
            &[json!({"plural": "as", "kind": "B"})],
            taken,
            Some(("PluralConflict", "\"as\" is already in use")),
        );
    }
}
