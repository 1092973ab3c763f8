//! Is a value what its schema says? With upstream's words, and as tolerant as upstream of what an update
//! leaves as it was.
//!
//! ```text
//! {"spec":{"replicas":"3"}}  ──►  spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer: "string"
//! ```
//!
//! **Ratcheting**: a mistake inside a value that the update did not change is no mistake of the update.
//! Values are paired by field name, and by key in lists of type `map`.

mod found;
mod number;
mod pairs;

use serde_json::{Map, Value};

use self::found::{Found, What};
use self::pairs::Pair;
use super::{Additional, Node, Structural, Type, Validation, formats};
use crate::field::{FieldErrors, Path};
use crate::{go, regexp};

/// The most checks of one value; no object that means something comes near.
const MAX_STEPS: usize = 500_000;

impl Structural {
    /// Adds what is wrong with an object, or with its change from `old`.
    pub fn validate(&self, new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
        validate(self.root(), &Path::root(), new, old, errors);
    }

    /// The same of its status alone, whose paths then start at `status`.
    pub fn validate_status(&self, new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
        let Some(node) = self.root().properties.get("status") else { return };
        if let Some(new) = new.get("status") {
            validate(node, &Path::new("status"), new, old.and_then(|old| old.get("status")), errors);
        }
    }
}

/// Adds what is wrong with a value at `base`.
pub(super) fn validate(node: &Node, base: &Path, new: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
    let mut walk = Walk { steps: 0 };
    let outcome = walk.ratcheted(node, new, &At::Root, old.map(|old| Pair { node, new, old }));
    if walk.steps >= MAX_STEPS {
        errors.internal(base, "the object has too many parts to be checked against this schema");
    }
    let mut seen = std::collections::HashSet::new();
    for found in outcome.found {
        if seen.insert(found.message.clone()) {
            found.tell(base, errors);
        }
    }
}

/// Where a value is, as a list that lives on the stack; its text is made when a mistake is found.
enum At<'a> {
    Root,
    Field(&'a At<'a>, &'a str),
    /// A field that no schema names: its path starts with a dot even at the root.
    Other(&'a At<'a>, &'a str),
    Index(&'a At<'a>, usize),
}

impl At<'_> {
    fn text(&self) -> String {
        match self {
            At::Root => String::new(),
            At::Field(parent, name) => {
                let parent = parent.text();
                if parent.is_empty() { (*name).to_owned() } else { format!("{parent}.{name}") }
            }
            At::Other(parent, name) => format!("{}.{name}", parent.text()),
            At::Index(parent, index) => format!("{}[{index}]", parent.text()),
        }
    }
}

/// What one schema says of one value.
#[derive(Default)]
struct Outcome {
    found: Vec<Found>,
    /// How many checks applied: of several alternatives that fail, the one with the most is told.
    matched: usize,
}

impl Outcome {
    fn merge(&mut self, other: Outcome) {
        let room = crate::field::MAX_ERRORS.saturating_sub(self.found.len());
        self.found.extend(other.found.into_iter().take(room));
        self.matched += other.matched;
    }

    fn add(&mut self, found: Found) {
        if self.found.len() < crate::field::MAX_ERRORS {
            self.found.push(found);
        }
    }

    fn is_valid(&self) -> bool {
        self.found.is_empty()
    }
}

struct Walk {
    steps: usize,
}

impl Walk {
    /// A value that may be the same as before.
    fn ratcheted(&mut self, node: &Node, value: &Value, at: &At<'_>, pair: Option<Pair<'_>>) -> Outcome {
        let mut outcome = self.value(node, value, at, pair);
        if !outcome.is_valid() && pair.is_some_and(|pair| pair.is_same()) {
            outcome.found.clear();
        }
        outcome
    }

    fn value(&mut self, node: &Node, value: &Value, at: &At<'_>, pair: Option<Pair<'_>>) -> Outcome {
        let mut out = Outcome::default();
        self.steps += 1;
        if self.steps >= MAX_STEPS {
            return out;
        }
        if value.is_null() {
            kind_of_null(node, at, &mut out);
            enumeration(node, value, at, &mut out);
            return out;
        }
        let format = formats::effective(node);
        if !kinds(node).is_empty() || !format.is_empty() {
            kind(node, format, value, at, &mut out);
            out.matched += 1;
        }
        if let Some(validation) = &node.validation {
            self.junctors(validation, value, at, &mut out);
        }
        out.matched += 2;
        match value {
            Value::String(text) => {
                string(node, text, at, &mut out);
                out.matched += 1;
                if formats::is_known(format) {
                    if !formats::holds(format, text) {
                        out.add(Found::misfit(at.text(), format, text));
                    }
                    out.matched += 1;
                }
            }
            Value::Number(number) => {
                number::check(node, format, number, at, &mut out);
                out.matched += 1;
            }
            Value::Array(items) => self.items(node, items, at, pair, &mut out),
            _ => {}
        }
        enumeration(node, value, at, &mut out);
        out.matched += 1;
        if let Value::Object(map) = value {
            self.object(node, map, at, pair, &mut out);
            out.matched += 1;
        }
        out.matched += 1;
        out
    }

    fn junctors(&mut self, validation: &Validation, value: &Value, at: &At<'_>, out: &mut Outcome) {
        if !validation.any_of.is_empty() {
            let mut best: Option<Outcome> = None;
            for node in &validation.any_of {
                let outcome = self.value(node, value, at, None);
                let valid = outcome.is_valid();
                if valid || best.as_ref().is_none_or(|best| outcome.matched > best.matched) {
                    best = Some(outcome);
                }
                if valid {
                    break;
                }
            }
            if let Some(best) = best {
                if !best.is_valid() {
                    let text = format!("{} must validate at least one schema (anyOf)", go::quote(&at.text()));
                    out.add(Found::plain(text));
                }
                out.merge(best);
            }
        }
        self.one_of(validation, value, at, out);
        if !validation.all_of.is_empty() {
            let mut valid = 0;
            for node in &validation.all_of {
                let outcome = self.value(node, value, at, None);
                valid += usize::from(outcome.is_valid());
                out.merge(outcome);
            }
            if valid != validation.all_of.len() {
                let none = if valid == 0 { ". None validated" } else { "" };
                out.add(Found::plain(format!("{} must validate all the schemas (allOf){none}", go::quote(&at.text()))));
            }
        }
        if let Some(not) = &validation.not
            && self.value(not, value, at, None).is_valid()
        {
            out.add(Found::plain(format!("{} must not validate the schema (not)", go::quote(&at.text()))));
        }
    }

    fn one_of(&mut self, validation: &Validation, value: &Value, at: &At<'_>, out: &mut Outcome) {
        if validation.one_of.is_empty() {
            return;
        }
        let (mut best, mut first, mut valid) = (None::<Outcome>, None, 0);
        for node in &validation.one_of {
            let outcome = self.value(node, value, at, None);
            if outcome.is_valid() {
                valid += 1;
                best = None;
                first.get_or_insert(outcome);
            } else if valid == 0 && best.as_ref().is_none_or(|best| outcome.matched > best.matched) {
                best = Some(outcome);
            }
        }
        if valid == 1 {
            out.merge(first.unwrap_or_default());
            return;
        }
        let how = match valid {
            0 => "Found none valid".to_owned(),
            many => format!("Found {many} valid alternatives"),
        };
        let text = format!("{} must validate one and only one schema (oneOf). {how}", go::quote(&at.text()));
        out.add(Found::plain(text));
        out.merge(best.unwrap_or_default());
    }

    fn items(&mut self, node: &Node, items: &[Value], at: &At<'_>, pair: Option<Pair<'_>>, out: &mut Outcome) {
        if let Some(inner) = &node.items {
            let pairs = pair.map(Pair::items);
            for (i, item) in items.iter().enumerate() {
                let pair = pairs.as_ref().and_then(|pairs| pairs.get(i));
                let outcome = self.ratcheted(inner, item, &At::Index(at, i), pair);
                out.merge(outcome);
            }
        }
        out.matched += 2;
        let Some(validation) = &node.validation else { return };
        let size = i64::try_from(items.len()).unwrap_or(i64::MAX);
        if let Some(min) = validation.min_items.filter(|min| size < *min) {
            let message = format!("{} in body should have at least {min} items", at.text());
            out.add(Found::of(What::Other, at.text(), Some(size.into()), message));
        }
        if let Some(max) = validation.max_items.filter(|max| size > *max) {
            let message = format!("{} in body should have at most {max} items", at.text());
            out.add(Found::of(What::TooMany { actual: size, max }, at.text(), None, message));
        }
        if validation.unique_items {
            let mut seen = std::collections::HashSet::new();
            if !items.iter().all(|item| seen.insert(item.to_string())) {
                let message = format!("{} in body shouldn't contain duplicates", at.text());
                out.add(Found::of(What::Other, at.text(), None, message));
            }
        }
    }

    fn object(
        &mut self,
        node: &Node,
        map: &Map<String, Value>,
        at: &At<'_>,
        pair: Option<Pair<'_>>,
        out: &mut Outcome,
    ) {
        if let Some(validation) = &node.validation {
            let size = i64::try_from(map.len()).unwrap_or(i64::MAX);
            if let Some(min) = validation.min_properties.filter(|min| size < *min) {
                let message = format!("{} in body should have at least {min} properties", at.text());
                out.add(Found::of(What::Other, at.text(), Some(size.into()), message));
            }
            if let Some(max) = validation.max_properties.filter(|max| size > *max) {
                let message = format!("{} in body should have at most {max} properties", at.text());
                out.add(Found::of(What::TooMany { actual: size, max }, at.text(), None, message));
            }
        }
        // `kind` and `apiVersion` of the whole object are never what they were.
        let is_head = |name: &str| matches!(at, At::Root) && matches!(name, "kind" | "apiVersion");
        let pair_of = |name: &str| pair.filter(|_| !is_head(name)).and_then(|pair| pair.field(name));
        for (name, value) in map.iter().filter(|(name, _)| node.properties.get(name).is_none()) {
            match &node.additional_properties {
                Some(Additional::Allowed(false)) => {
                    let message = format!("{}.{name} in body is a forbidden property", at.text());
                    out.add(Found::of(What::Other, at.text(), Some(name.as_str().into()), message));
                }
                Some(Additional::Schema(inner)) => {
                    let outcome = self.ratcheted(inner, value, &At::Other(at, name), pair_of(name));
                    out.merge(outcome);
                }
                _ => {}
            }
        }
        for (name, inner) in node.properties.iter() {
            if let Some(value) = map.get(name) {
                let outcome = self.ratcheted(inner, value, &At::Field(at, name), pair_of(name));
                out.merge(outcome);
            }
        }
        let required = node.validation.as_ref().map_or(&[][..], |v| &v.required);
        for name in required.iter().filter(|name| !map.contains_key(&***name)) {
            let path = format!("{}.{name}", at.text());
            let message = format!("{path} in body is required");
            out.add(Found::of(What::Required, path, None, message));
        }
    }
}

/// The types that a value may have; none: any.
fn kinds(node: &Node) -> &[Type] {
    match &node.kind {
        _ if node.int_or_string => &[Type::Integer, Type::String],
        Some(kind) => std::slice::from_ref(kind),
        None => &[],
    }
}

fn words(node: &Node) -> String {
    kinds(node).iter().map(|kind| kind.word()).collect::<Vec<_>>().join(",")
}

fn kind_of_null(node: &Node, at: &At<'_>, out: &mut Outcome) {
    if !kinds(node).is_empty() && !node.nullable {
        out.add(Found::misfit(at.text(), &words(node), "null"));
    } else {
        out.matched += 1;
    }
}

fn kind(node: &Node, format: &str, value: &Value, at: &At<'_>, out: &mut Outcome) {
    let wanted = kinds(node);
    let (found, found_format) = match value {
        Value::Null => return,
        Value::Bool(_) => (Type::Boolean, ""),
        Value::String(_) => (Type::String, ""),
        Value::Array(_) => (Type::Array, ""),
        Value::Object(_) => (Type::Object, ""),
        Value::Number(number) if number.is_i64() => (Type::Integer, "int64"),
        Value::Number(_) => (Type::Number, "float64"),
    };
    let has = |kind| wanted.contains(&kind);
    let whole = found == Type::Number && has(Type::Integer) && value.as_f64().is_some_and(number::is_whole);
    let fits = has(found) || whole || (found == Type::Integer && has(Type::Number));
    let is_text = matches!(found, Type::String | Type::Array);
    if !is_text && !format.is_empty() && !fits && found_format != format {
        out.add(Found::misfit(at.text(), format, found_format));
    } else if !has(Type::Number) && !has(Type::Integer) && !format.is_empty() && is_text || fits {
        out.matched += 1;
    } else {
        out.add(Found::misfit(at.text(), &words(node), found.word()));
    }
}

fn string(node: &Node, text: &str, at: &At<'_>, out: &mut Outcome) {
    let Some(validation) = &node.validation else { return };
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(max) = validation.max_length.filter(|max| length > *max) {
        let message = format!("{} in body should be at most {max} chars long", at.text());
        out.add(Found::of(What::TooLong(max), at.text(), None, message));
    } else if let Some(min) = validation.min_length.filter(|min| length < *min) {
        let message = format!("{} in body should be at least {min} chars long", at.text());
        out.add(Found::of(What::Other, at.text(), Some(text.into()), message));
    } else if !validation.pattern.is_empty() {
        let pattern = &validation.pattern;
        let shown = match regexp::compile(pattern) {
            Ok(program) if program.is_match(text) => return,
            Ok(_) => pattern.to_string(),
            Err(error) => format!("{pattern}, but pattern is invalid: {error}"),
        };
        let message = format!("{} in body should match '{shown}'", at.text());
        out.add(Found::of(What::Other, at.text(), Some(text.into()), message));
    }
}

fn enumeration(node: &Node, value: &Value, at: &At<'_>, out: &mut Outcome) {
    let Some(validation) = node.validation.as_ref().filter(|v| !v.enumeration.is_empty()) else { return };
    if !validation.enumeration.iter().any(|allowed| number::is_equal(value, allowed)) {
        let shown = validation.enumeration.iter().map(|allowed| match allowed {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        let values: Vec<String> = shown.collect();
        let printed: Vec<String> = validation.enumeration.iter().map(go::print).collect();
        let message = format!("{} in body should be one of [{}]", at.text(), printed.join(" "));
        out.add(Found::of(What::Enum(values), at.text(), Some(value.clone()), message));
    }
}
