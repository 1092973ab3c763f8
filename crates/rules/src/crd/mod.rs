//! The rules of a custom resource: `x-kubernetes-validations` of its schema, checked when the definition
//! is written, and applied to every object.
//!
//! ```text
//! spec:                                   rules of spec see spec as self,
//!   x-kubernetes-validations:             and what it was as oldSelf
//!   - rule: self.min <= self.max
//!     messageExpression: "'min is ' + string(self.min)"
//!     fieldPath: .min
//!     reason: FieldValueForbidden
//! ```

mod check;
mod correlate;
mod path;

use std::collections::BTreeMap;
use std::sync::Arc;

use machinery::field::{ErrorType, FieldError, FieldErrors, Path};
use serde_json::Value as Json;

pub use check::check;
use correlate::Correlation;
pub use path::field_path;

use crate::env::Env;
use crate::meter::Error;
use crate::program::Program;
use crate::schema::{self, Decl, Shape};
use crate::types::Type;
use crate::value::{ListType, Val};

/// What one evaluation of one rule may cost.
pub const CALL_LIMIT: u64 = 1_000_000;

/// What all rules of one object may cost together.
pub const BUDGET: i64 = 10_000_000;

/// The longest message that an expression may give, in bytes.
const MAX_MESSAGE: usize = 5 * 1024;

const SELF: &str = "self";
const OLD_SELF: &str = "oldSelf";

/// One rule, as it is written.
#[derive(Clone, Debug, Default)]
struct Written {
    rule: String,
    message: String,
    message_expression: String,
    reason: Option<String>,
    field_path: String,
    optional_old_self: Option<bool>,
}

/// The rules written at a place of a schema.
fn written(schema: &Json) -> Vec<Written> {
    let rules = schema.get("x-kubernetes-validations").and_then(Json::as_array);
    let read = |rule: &Json| {
        let text = |key: &str| rule.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
        Written {
            rule: text("rule"),
            message: text("message"),
            message_expression: text("messageExpression"),
            reason: rule.get("reason").and_then(Json::as_str).map(str::to_owned),
            field_path: text("fieldPath"),
            optional_old_self: rule.get("optionalOldSelf").and_then(Json::as_bool),
        }
    };
    rules.into_iter().flatten().map(read).collect()
}

impl Written {
    /// How the rule is called in a message.
    fn name(&self) -> &str {
        let own = if self.message.is_empty() { &self.rule } else { &self.message };
        own.trim()
    }

    fn message(&self) -> String {
        if self.message.is_empty() { format!("failed rule: {}", self.name()) } else { self.message.trim().to_owned() }
    }

    /// Is `oldSelf` an optional in it?
    fn has_optional_old(&self) -> bool {
        self.optional_old_self == Some(true)
    }

    fn env(&self, decl: &Arc<Decl>) -> Env {
        let t = decl.type_of();
        let old = if self.has_optional_old() { Type::optional(t.clone()) } else { t.clone() };
        Env::new().with(SELF, t).with(OLD_SELF, old)
    }
}

/// A rule that is ready.
struct Rule {
    written: Written,
    /// Where the mistake is said to be, relative to the rule.
    field: Option<String>,
    uses_old: bool,
    program: Result<Program, String>,
    message: Option<Program>,
}

fn names() -> Vec<String> {
    vec![SELF.to_owned(), OLD_SELF.to_owned()]
}

impl Rule {
    fn compile(written: Written, decl: &Arc<Decl>, schema: &Json) -> Self {
        let env = written.env(decl);
        let mut uses_old = false;
        let program = env.compile(&written.rule).map_err(|text| format!("compilation failed: {text}")).and_then(|c| {
            uses_old = c.mentions(1);
            if *c.type_of(c.expr.id) != Type::Bool {
                return Err("cel expression must evaluate to a bool".to_owned());
            }
            Program::new(&c, names()).map_err(|error| format!("program instantiation failed: {error}"))
        });
        // A message that cannot be made is a matter of the definition; objects get the plain one.
        let message = (!written.message_expression.is_empty())
            .then(|| env.compile(&written.message_expression).ok())
            .flatten()
            .filter(|c| *c.type_of(c.expr.id) == Type::String)
            .and_then(|c| Program::new(&c, names()).ok());
        let field = (!written.field_path.is_empty()).then(|| field_path(&written.field_path, schema).ok()).flatten();
        Self { written, field, uses_old, program, message }
    }
}

/// All rules of a schema, ready to be applied. None: nothing to do.
#[derive(Default)]
pub struct Rules {
    root: Option<Box<Node>>,
    schema: Json,
}

/// The rules at one place of a schema and below it.
struct Node {
    decl: Arc<Decl>,
    /// The `type` of the schema, which stands for the value in some messages.
    type_name: String,
    rules: Vec<Rule>,
    items: Option<Box<Node>>,
    values: Option<Box<Node>>,
    properties: BTreeMap<String, Node>,
    all_of: Vec<Node>,
}

impl Rules {
    /// Compiles the rules of a version's schema (`openAPIV3Schema`). A rule that does not compile fails
    /// every object that it would be applied to.
    pub fn compile(schema: &Json) -> Self {
        if !has_rules(schema) {
            return Self::default();
        }
        let decl = schema::declare(schema, true);
        Self { root: node(schema, schema, &decl).map(Box::new), schema: schema.clone() }
    }

    /// Is there anything to apply?
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Applies the rules to an object that is created, or that was `old`. `path` is where the object is;
    /// `budget` is what all of it may cost and is spent, negative once it is exceeded. What is wrong but
    /// was so before, unchanged, is a warning.
    pub fn validate(
        &self,
        object: &Json,
        old: Option<&Json>,
        path: &Path,
        budget: &mut i64,
        warnings: &mut Vec<String>,
    ) -> FieldErrors {
        let mut errors = FieldErrors::new();
        if let Some(root) = &self.root {
            let correlation = Correlation::root(object, old, &self.schema);
            let mut walk = Walk { budget, warnings, errors: &mut errors };
            walk.visit(root, path, object, old, &correlation);
        }
        errors
    }
}

/// Where rules stand only within `allOf`, upstream applies none.
fn has_rules(schema: &Json) -> bool {
    let own = schema.get("x-kubernetes-validations").and_then(Json::as_array).is_some_and(|r| !r.is_empty());
    let within = |key: &str| schema.get(key).filter(|s| s.is_object()).is_some_and(has_rules);
    let properties = schema.get("properties").and_then(Json::as_object);
    own || within("items") || within("additionalProperties") || properties.is_some_and(|p| p.values().any(has_rules))
}

/// The rules of `schema`, whose values are declared by `spine`: within `allOf` a schema may say more of
/// a field that the spine declares.
fn node(schema: &Json, spine: &Json, decl: &Arc<Decl>) -> Option<Node> {
    let rules: Vec<Rule> = written(schema).into_iter().map(|w| Rule::compile(w, decl, spine)).collect();
    let child = |key: &str| -> Option<Box<Node>> {
        let (own, spine) = (schema.get(key)?, spine.get(key)?);
        (own.is_object() && spine.is_object()).then_some(())?;
        node(own, spine, decl.elements()?).map(Box::new)
    };
    let items = child("items");
    let values = child("additionalProperties");
    let mut properties = BTreeMap::new();
    if let Some(own) = schema.get("properties").and_then(Json::as_object) {
        for (name, property) in own {
            let Some(spine) = spine.get("properties").and_then(|p| p.get(name)) else { continue };
            let Shape::Object { fields, .. } = &decl.shape else { continue };
            let Some(field) = fields.get(name.as_str()).filter(|f| f.decl.is_visible()) else { continue };
            if let Some(node) = node(property, spine, &field.decl) {
                properties.insert(name.clone(), node);
            }
        }
    }
    let all_of: Vec<Node> = schema
        .get("allOf")
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
        .filter_map(|part| node(part, spine, decl))
        .collect();
    let any = !rules.is_empty() || items.is_some() || values.is_some() || !properties.is_empty() || !all_of.is_empty();
    any.then(|| Node {
        decl: Arc::clone(decl),
        type_name: spine.get("type").and_then(Json::as_str).unwrap_or_default().to_owned(),
        rules,
        items,
        values,
        properties,
        all_of,
    })
}

struct Walk<'w> {
    budget: &'w mut i64,
    warnings: &'w mut Vec<String>,
    errors: &'w mut FieldErrors,
}

impl Walk<'_> {
    /// False: the budget is spent, and nothing more is looked at.
    fn visit<'a>(
        &mut self,
        node: &Node,
        path: &Path,
        value: &'a Json,
        old: Option<&'a Json>,
        correlation: &Correlation<'a>,
    ) -> bool {
        if value.is_null() {
            return true;
        }
        let old = old.filter(|o| !o.is_null());
        if !self.apply(node, path, value, old, correlation) {
            return false;
        }
        for part in &node.all_of {
            if !self.visit(part, path, value, old, &correlation.uncorrelated()) {
                return false;
            }
        }
        match value {
            Json::Array(list) => {
                let Some(items) = &node.items else { return true };
                let old = old.and_then(Json::as_array);
                let known = correlate::ByKey::new(node.decl.list_type(), old.map_or(&[], Vec::as_slice));
                for (i, item) in list.iter().enumerate() {
                    let old = known.get(item);
                    if !self.visit(items, &path.index(i), item, old, &correlation.item(i, old)) {
                        return false;
                    }
                }
                true
            }
            Json::Object(fields) => {
                let old = old.and_then(Json::as_object);
                for (name, field) in fields {
                    let old = old.and_then(|o| o.get(name));
                    let (child, path) = match (&node.values, node.properties.get(name)) {
                        (Some(values), _) => (&**values, path.key(name)),
                        (None, Some(property)) => (property, path.child(name)),
                        (None, None) => continue,
                    };
                    if !self.visit(child, &path, field, old, &correlation.field(name)) {
                        return false;
                    }
                }
                true
            }
            _ => true,
        }
    }

    fn apply(
        &mut self,
        node: &Node,
        path: &Path,
        value: &Json,
        old: Option<&Json>,
        correlation: &Correlation<'_>,
    ) -> bool {
        if node.rules.is_empty() {
            return true;
        }
        let type_name = || Json::String(node.type_name.clone());
        if *self.budget <= 0 {
            return self.out_of_budget(node, path);
        }
        let own = node.decl.read(value);
        let before = old.map(|o| node.decl.read(o));
        for rule in &node.rules {
            let program = match &rule.program {
                Ok(program) => program,
                Err(text) => {
                    self.errors.invalid(path, type_name(), format!("rule compile error: {text}"));
                    continue;
                }
            };
            let optional = rule.written.has_optional_old();
            if rule.uses_old && old.is_none() && !optional {
                continue;
            }
            let name = rule.written.name();
            let variables = variables(own.as_ref(), before.as_ref(), optional);
            let variables = match variables {
                Ok(variables) => variables,
                Err(error) => {
                    self.errors.invalid(path, type_name(), format!("{error} evaluating rule: {name}"));
                    continue;
                }
            };
            let outcome = program.run(&variables, CALL_LIMIT);
            if !self.spend(outcome.cost) {
                return self.out_of_budget(node, path);
            }
            match outcome.value {
                Ok(Val::Bool(true)) => continue,
                Ok(_) => {}
                Err(Error::Cancelled) => {
                    let text = format!(
                        "'{}': no further validation rules will be run due to call cost exceeds limit for rule: {name}",
                        Error::Cancelled
                    );
                    self.errors.invalid(path, type_name(), text);
                    *self.budget = -1;
                    return false;
                }
                Err(error) => {
                    let text = match &error {
                        Error::NoOverload(what) => format!(
                            "'{what}': call arguments did not match a supported operator, function or macro signature \
                             for rule: {name}"
                        ),
                        other => format!("{other} evaluating rule: {name}"),
                    };
                    self.errors.invalid(path, type_name(), text);
                    continue;
                }
            }
            if !self.fail(node, rule, path, value, &variables, correlation) {
                return false;
            }
        }
        true
    }

    /// Takes a cost out of the budget, if it is there.
    fn spend(&mut self, cost: u64) -> bool {
        match i64::try_from(cost) {
            Ok(cost) if cost <= *self.budget => {
                *self.budget -= cost;
                true
            }
            _ => false,
        }
    }

    fn out_of_budget(&mut self, node: &Node, path: &Path) -> bool {
        let text = "validation failed due to running out of cost budget, no further validation rules will be run";
        self.errors.invalid(path, Json::String(node.type_name.clone()), text);
        *self.budget = -1;
        false
    }

    /// Tells that a rule does not hold. False: telling it spent the budget.
    fn fail(
        &mut self,
        node: &Node,
        rule: &Rule,
        path: &Path,
        value: &Json,
        variables: &[Option<Val<'_>>],
        correlation: &Correlation<'_>,
    ) -> bool {
        let path = rule.field.as_ref().map_or_else(|| path.clone(), |field| path.child(field));
        let mut go_on = true;
        let mut own_text = None;
        if let Some(program) = &rule.message {
            let outcome = program.run(variables, CALL_LIMIT);
            if !self.spend(outcome.cost) {
                go_on = false;
                own_text = Some(
                    "messageExpression evaluation failed due to running out of cost budget, no further validation rules \
                     will be run"
                        .to_owned(),
                );
            } else if matches!(outcome.value, Err(Error::Cancelled)) {
                go_on = false;
                own_text = Some(format!(
                    "no further validation rules will be run due to call cost exceeds limit for messageExpression: {}",
                    machinery::go::quote(&rule.written.message_expression)
                ));
            } else if let Ok(Val::String(text)) = &outcome.value {
                let text = text.trim();
                if !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n') {
                    own_text = Some(text.to_owned());
                }
            }
        }
        let hidden = matches!(node.type_name.as_str(), "object" | "array");
        let shown = (!hidden).then(|| value.clone());
        let error = if go_on {
            let detail = own_text.unwrap_or_else(|| rule.written.message());
            match rule.written.reason.as_deref() {
                Some("FieldValueForbidden") => FieldError { kind: ErrorType::Forbidden, path, value: None, detail },
                Some("FieldValueRequired") => FieldError { kind: ErrorType::Required, path, value: None, detail },
                Some("FieldValueDuplicate") => {
                    FieldError { kind: ErrorType::Duplicate, path, value: shown, detail: String::new() }
                }
                _ => FieldError { kind: ErrorType::Invalid, path, value: shown, detail },
            }
        } else {
            *self.budget = -1;
            let value = Some(Json::String(node.type_name.clone()));
            FieldError { kind: ErrorType::Invalid, path, value, detail: own_text.unwrap_or_default() }
        };
        if !rule.uses_old && correlation.is_unchanged() {
            self.warnings.push(error.to_string());
        } else {
            self.errors.extend(FieldErrors(vec![error]));
        }
        go_on
    }
}

type Read<'r, 'a> = Result<&'r Val<'a>, &'r Error>;

/// The values of `self` and `oldSelf`.
fn variables<'a>(
    own: Read<'_, 'a>,
    old: Option<&Result<Val<'a>, Error>>,
    optional: bool,
) -> Result<Vec<Option<Val<'a>>>, Error> {
    let own = own.map_err(Clone::clone)?.clone();
    let old = old.map(|o| o.as_ref().map_err(Clone::clone)).transpose()?.cloned();
    let old = match (optional, old) {
        (true, Some(old)) => Some(Val::some(old)),
        (true, None) => Some(Val::Optional(None)),
        (false, old) => old,
    };
    Ok(vec![Some(own), old])
}

/// Can the elements of a list be told from what they were?
fn is_map_list(t: &ListType) -> bool {
    matches!(t, ListType::Map(keys) if !keys.is_empty())
}
