//! What is wrong with the rules of a schema when its definition is written: with how they are written,
//! what they refer to, and what they may cost.

use std::sync::Arc;

use machinery::field::{ErrorType, FieldError, FieldErrors, Path};
use serde_json::Value as Json;

use super::{Written, field_path, names, written};
use crate::estimate::{self, Roots};
use crate::program::Program;
use crate::schema::{self, Decl, MAX_REQUEST, Shape};
use crate::types::Type;

/// What one rule may cost at most, by estimate, in one object.
const RULE_LIMIT: u64 = 10_000_000;

/// What all rules of a schema may cost at most, by estimate, in one object.
const TOTAL_LIMIT: u64 = 100_000_000;

const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Checks the rules of a version's schema, which is at `path`. An unchanged schema keeps rules that are
/// dear (`unchanged`): upstream once estimated lower.
pub fn check(schema: &Json, path: &Path, unchanged: bool) -> FieldErrors {
    let decl = schema::declare(schema, true);
    let mut checker =
        Checker { unchanged, total: 0, dear: Vec::new(), form: FieldErrors::new(), rules: FieldErrors::new() };
    checker.visit(schema, path, &Place { decl: Some(decl), count: Some(1), uncorrelated: None });
    if checker.total > TOTAL_LIMIT {
        for (path, _) in std::mem::take(&mut checker.dear) {
            checker.rules.forbidden(
                &path,
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
            );
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        checker.rules.forbidden(path, too_dear(what, checker.total, TOTAL_LIMIT));
    }
    let Checker { mut form, rules, .. } = checker;
    form.extend(rules);
    form
}

/// A place in the schema.
struct Place {
    decl: Option<Arc<Decl>>,
    /// How often it may be in one object.
    count: Option<u64>,
    /// The list above, whose elements cannot be told from what they were.
    uncorrelated: Option<Path>,
}

struct Checker {
    unchanged: bool,
    total: u64,
    /// The dearest rules.
    dear: Vec<(Path, u64)>,
    form: FieldErrors,
    rules: FieldErrors,
}

impl Checker {
    fn visit(&mut self, schema: &Json, path: &Path, place: &Place) {
        let before = self.form.len();
        let count = match (place.count, most(schema)) {
            (Some(count), Some(most)) => Some(count.saturating_mul(most)),
            _ => None,
        };
        let elements = || place.decl.as_ref().and_then(|d| d.elements()).cloned();
        if let Some(values) = schema.get("additionalProperties").filter(|s| s.is_object()) {
            let inner = Place { decl: elements(), count, uncorrelated: place.uncorrelated.clone() };
            self.visit(values, &path.child("additionalProperties"), &inner);
        }
        if let Some(properties) = schema.get("properties").and_then(Json::as_object) {
            for (name, property) in properties {
                let decl = match place.decl.as_deref().map(|d| &d.shape) {
                    Some(Shape::Object { fields, .. }) => fields.get(name.as_str()).map(|f| Arc::clone(&f.decl)),
                    _ => None,
                };
                let inner = Place { decl, count, uncorrelated: place.uncorrelated.clone() };
                self.visit(property, &path.child("properties").key(name), &inner);
            }
        }
        if let Some(items) = schema.get("items").filter(|s| s.is_object()) {
            let is_map = schema.get("x-kubernetes-list-type").and_then(Json::as_str) == Some("map");
            let uncorrelated = if is_map { None } else { Some(path.clone()) };
            // The highest list is named.
            let uncorrelated = place.uncorrelated.clone().or(uncorrelated);
            self.visit(items, &path.child("items"), &Place { decl: elements(), count, uncorrelated });
        }
        for key in ["allOf", "anyOf", "oneOf"] {
            for (i, part) in schema.get(key).and_then(Json::as_array).into_iter().flatten().enumerate() {
                self.forms(part, &path.child(key).index(i));
            }
        }
        let rules = written(schema);
        for (i, rule) in rules.iter().enumerate() {
            self.form(rule, schema, &path.child("x-kubernetes-validations").index(i));
        }
        if self.form.len() > before || rules.is_empty() {
            return;
        }
        let Some(decl) = place.decl.as_ref().filter(|d| d.is_visible()) else {
            self.rules.internal(
                &path.child("x-kubernetes-validations"),
                "internal error: failed to construct type information for x-kubernetes-validations rules: unable to \
                 convert structural schema to CEL declarations",
            );
            return;
        };
        for (i, rule) in rules.iter().enumerate() {
            self.rule(rule, decl, place, &path.child("x-kubernetes-validations").index(i));
        }
    }

    /// Within `allOf` and its like, only how rules are written is looked at.
    fn forms(&mut self, schema: &Json, path: &Path) {
        for (i, rule) in written(schema).iter().enumerate() {
            self.form(rule, schema, &path.child("x-kubernetes-validations").index(i));
        }
        if let Some(properties) = schema.get("properties").and_then(Json::as_object) {
            for (name, property) in properties {
                self.forms(property, &path.child("properties").key(name));
            }
        }
        for key in ["additionalProperties", "items"] {
            if let Some(inner) = schema.get(key).filter(|s| s.is_object()) {
                self.forms(inner, &path.child(key));
            }
        }
    }

    fn form(&mut self, rule: &Written, schema: &Json, path: &Path) {
        let errors = &mut self.form;
        let lines = |text: &str| text.contains(['\n', '\r']);
        let (text, message) = (rule.rule.trim(), rule.message.trim());
        if text.is_empty() {
            errors.required(&path.child("rule"), "rule is not specified");
        } else if !rule.message.is_empty() && message.is_empty() {
            errors.invalid(&path.child("message"), rule.message.clone(), "must be non-empty if specified");
        } else if lines(message) {
            errors.invalid(&path.child("message"), rule.message.clone(), "must not contain line breaks");
        } else if lines(text) && message.is_empty() {
            errors.required(&path.child("message"), "message must be specified if rule contains line breaks");
        }
        if !rule.message_expression.is_empty() && rule.message_expression.trim().is_empty() {
            errors.required(&path.child("messageExpression"), "messageExpression must be non-empty if specified");
        }
        if let Some(reason) = &rule.reason
            && !REASONS.contains(&reason.as_str())
        {
            errors.not_supported(&path.child("reason"), reason.clone(), &REASONS);
        }
        if !rule.field_path.is_empty() {
            let path = path.child("fieldPath");
            let value = || rule.field_path.clone();
            if rule.field_path.trim().is_empty() {
                errors.invalid(&path, value(), "must be non-empty if specified");
            }
            if lines(&rule.field_path) {
                errors.invalid(&path, value(), "must not contain line breaks");
            }
            if field_path(&rule.field_path, schema).is_err() {
                errors.invalid(&path, value(), "must be a valid path");
            }
        }
    }

    fn rule(&mut self, rule: &Written, decl: &Arc<Decl>, place: &Place, path: &Path) {
        let env = rule.env(decl);
        let roots: Roots<'_> = &[(super::SELF, decl), (super::OLD_SELF, decl)];
        let mut uses_old = false;
        let compiled = env.compile(&rule.rule).map_err(|text| format!("compilation failed: {text}")).and_then(|c| {
            if *c.type_of(c.expr.id) != Type::Bool {
                return Err("cel expression must evaluate to a bool".to_owned());
            }
            uses_old = c.mentions(1);
            Program::new(&c, names()).map_err(|error| format!("program instantiation failed: {error}"))?;
            Ok(estimate::estimate(&c, roots).max)
        });
        let at = path.child("rule");
        match compiled {
            Ok(each) => {
                // Without a bound, as often as the smallest value fits into a request.
                let count = place.count.unwrap_or(MAX_REQUEST / (decl.min_size + 1));
                let cost = each.saturating_mul(count);
                if !self.unchanged && cost > RULE_LIMIT {
                    self.rules.forbidden(&at, too_dear("estimated rule cost", cost, RULE_LIMIT));
                }
                self.observe(&at, cost);
                self.message(rule, decl, path);
            }
            Err(text) => self.invalid(&at, rule, &text),
        }
        if uses_old {
            if let Some(list) = &place.uncorrelated {
                let text = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}");
                self.rules.invalid(&at, rule.rule.clone(), text);
            }
        } else if let Some(optional) = rule.optional_old_self {
            self.rules.invalid(
                &path.child("optionalOldSelf"),
                optional,
                "may not be set if oldSelf is not used in rule",
            );
        }
    }

    fn message(&mut self, rule: &Written, decl: &Arc<Decl>, path: &Path) {
        if rule.message_expression.is_empty() {
            return;
        }
        let env = rule.env(decl);
        let roots: Roots<'_> = &[(super::SELF, decl), (super::OLD_SELF, decl)];
        let compiled = env
            .compile(&rule.message_expression)
            .map_err(|text| format!("messageExpression compilation failed: {text}"))
            .and_then(|c| {
                if *c.type_of(c.expr.id) != Type::String {
                    return Err("messageExpression must evaluate to a string".to_owned());
                }
                Program::new(&c, names())
                    .map_err(|error| format!("messageExpression instantiation failed: {error}"))?;
                Ok(estimate::estimate(&c, roots).max)
            });
        let at = path.child("messageExpression");
        match compiled {
            Ok(cost) => {
                if !self.unchanged && cost > RULE_LIMIT {
                    self.rules.forbidden(&at, too_dear("estimated messageExpression cost", cost, RULE_LIMIT));
                }
                self.observe(&at, cost);
            }
            Err(text) => self.invalid(&at, rule, &text),
        }
    }

    /// The rule is shown as upstream's own form of it, whose fields are in an order of their own.
    fn invalid(&mut self, path: &Path, rule: &Written, text: &str) {
        let quoted = |text: &str| {
            let shown = Json::String(text.to_owned()).to_string();
            shown.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
        };
        let detail = format!(
            "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}: \
             {text}",
            quoted(&rule.rule),
            quoted(&rule.message),
            quoted(&rule.message_expression),
            rule.reason.as_deref().map_or_else(|| "null".to_owned(), quoted),
            quoted(&rule.field_path),
            rule.optional_old_self.map_or_else(|| "null".to_owned(), |b| b.to_string()),
        );
        let error = FieldError { kind: ErrorType::Invalid, path: path.clone(), value: None, detail };
        self.rules.extend(FieldErrors(vec![error]));
    }

    fn observe(&mut self, path: &Path, cost: u64) {
        self.total = self.total.saturating_add(cost);
        if cost >= TOTAL_LIMIT / 100 {
            self.dear.push((path.clone(), cost));
            self.dear.sort_by_key(|rule| std::cmp::Reverse(rule.1));
            self.dear.truncate(4);
        }
    }
}

/// How many elements a value has at most, if that is bounded.
fn most(schema: &Json) -> Option<u64> {
    let bound = |key: &str| schema.get(key).and_then(Json::as_i64).map(|n| n.max(0) as u64);
    match schema.get("type").and_then(Json::as_str) {
        Some("object") if schema.get("additionalProperties").is_some() => bound("maxProperties"),
        Some("array") => bound("maxItems"),
        _ => Some(1),
    }
}

fn too_dear(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and \
         maxLength where arrays, maps, and strings are declared)"
    )
}
