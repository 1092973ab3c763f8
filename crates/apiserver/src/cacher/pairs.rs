//! Labels and selectable fields of an object: one piece of memory instead of a tree of texts, and the
//! marks by which a walk over many objects tells most of those that do not match without looking at them.
//!
//! ```text
//!  {app: web, tier: a}  ──►  text "appwebtiera", ends [3, 6, 10, 11]
//!                       ──►  marks: a bit for `app`, two for `app=web`, a bit for `tier`, two for `tier=a`
//!  app=db               ──►  marks wanted: a bit for `app`, two for `app=db`; all there? then look
//! ```

use std::hash::{DefaultHasher, Hash, Hasher};

use machinery::fields;
use machinery::labels::{self, Lookup, Operator};

/// Texts by key, in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    text: Box<str>,
    /// Where each key and each value ends.
    ends: Box<[u32]>,
}

impl Pairs {
    /// Of pairs in key order. What does not fit into 4 GiB is left out; no object is that large.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let (mut text, mut ends) = (String::new(), Vec::new());
        for (key, value) in pairs {
            let (Ok(key_end), Ok(end)) =
                (u32::try_from(text.len() + key.len()), u32::try_from(text.len() + key.len() + value.len()))
            else {
                break;
            };
            text.push_str(key);
            text.push_str(value);
            ends.extend([key_end, end]);
        }
        Self { text: text.into(), ends: ends.into() }
    }

    /// The pairs, in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut start = 0;
        self.ends.chunks_exact(2).filter_map(move |ends| {
            let (middle, end) = (ends[0] as usize, ends[1] as usize);
            let pair = (self.text.get(start..middle)?, self.text.get(middle..end)?);
            start = end;
            Some(pair)
        })
    }
}

impl Lookup for Pairs {
    fn text(&self, key: &str) -> Option<&str> {
        self.iter().find(|(k, _)| *k == key).map(|(_, value)| value)
    }
}

/// Bits that are set for what an object has. Two objects may share them: they only ever say "no".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    labels: u64,
    fields: u64,
}

fn hash(key: &str, value: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, value).hash(&mut hasher);
    hasher.finish()
}

fn key(key: &str) -> u64 {
    1 << (hash(key, None) & 63)
}

fn pair(key: &str, value: &str) -> u64 {
    let hash = hash(key, Some(value));
    (1 << (hash & 63)) | (1 << ((hash >> 6) & 63))
}

/// Where a namespace is asked for there are better ways than marks.
fn is_marked(field: &str) -> bool {
    field != "metadata.namespace"
}

impl Marks {
    /// Of an object that has everything, for all that is known.
    pub const ALL: Self = Self { labels: u64::MAX, fields: u64::MAX };

    /// Of an object.
    pub fn of(labels: &Pairs, fields: &Pairs) -> Self {
        let labels = labels.iter().fold(0, |marks, (k, v)| marks | key(k) | pair(k, v));
        let fields = fields.iter().filter(|(k, v)| is_marked(k) && !v.is_empty());
        Self { labels, fields: fields.fold(0, |marks, (k, v)| marks | pair(k, v)) }
    }

    /// Those that every object has which the selectors let through.
    pub fn wanted(labels: &labels::Selector, fields: &fields::Selector) -> Self {
        let label = |requirement: &labels::Requirement| match (requirement.operator, requirement.values.as_slice()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [value]) => {
                key(&requirement.key) | pair(&requirement.key, value)
            }
            (
                Operator::Equals
                | Operator::DoubleEquals
                | Operator::In
                | Operator::Exists
                | Operator::GreaterThan
                | Operator::LessThan,
                _,
            ) => key(&requirement.key),
            (Operator::NotIn | Operator::NotEquals | Operator::DoesNotExist, _) => 0,
        };
        let field = |term: &fields::Term| {
            let tells = term.equals && !term.value.is_empty() && is_marked(&term.field);
            if tells { pair(&term.field, &term.value) } else { 0 }
        };
        Self {
            labels: labels.requirements().iter().fold(0, |marks, r| marks | label(r)),
            fields: fields.terms().iter().fold(0, |marks, t| marks | field(t)),
        }
    }

    /// False when the object surely does not match.
    pub fn may_match(self, wanted: Self) -> bool {
        self.labels & wanted.labels == wanted.labels && self.fields & wanted.fields == wanted.fields
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some_pairs() -> impl Strategy<Value = std::collections::BTreeMap<String, String>> {
        prop::collection::btree_map("[a-c]{1,2}", "[x-z]{0,2}", 0..5)
    }

    fn packed(map: &std::collections::BTreeMap<String, String>) -> Pairs {
        Pairs::new(map.iter().map(|(k, v)| (k.as_str(), v.as_str())))
    }

    proptest! {
        #[test]
        fn pairs_are_what_they_were_made_of(map in prop::collection::btree_map("\\PC{0,4}", "\\PC{0,4}", 0..6)) {
            let pairs = packed(&map);
            let again: Vec<_> = pairs.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
            prop_assert_eq!(again, map.clone().into_iter().collect::<Vec<_>>());
            for (key, value) in &map {
                prop_assert_eq!(pairs.text(key), Some(value.as_str()));
            }
            prop_assert_eq!(pairs.text("no such key"), None);
        }

        #[test]
        fn marks_never_hide_a_match(
            labels in some_pairs(),
            fields in some_pairs(),
            by_label in "([a-c]{1,2}(=|==|!=| in )\\(?[x-z]{1,2}\\)?|!?[a-c]{1,2})(,[a-c]{1,2}=[x-z]{0,2})?",
            by_field in "([a-c]{1,2}(=|!=)[x-z]{0,2})(,[a-c]=[x-z])?",
        ) {
            let (Ok(by_label), Ok(by_field)) = (labels::Selector::parse(&by_label), fields::Selector::parse(&by_field))
            else { return Ok(()) };
            let (labels, fields) = (packed(&labels), packed(&fields));
            let matches = by_label.matches(&labels) && by_field.matches(&fields);
            let may = Marks::of(&labels, &fields).may_match(Marks::wanted(&by_label, &by_field));
            prop_assert!(may || !matches);
            prop_assert!(Marks::ALL.may_match(Marks::wanted(&by_label, &by_field)));
        }
    }
}
