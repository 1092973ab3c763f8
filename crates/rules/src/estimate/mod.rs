//! What an expression may cost at most, from the sizes that the schema allows. The numbers decide which
//! rules may be written into a definition, so they are upstream's to the last one.
//!
//! ```text
//! self.names.all(n, n.size() < 64)    names: at most 10 elements
//!   range: self 1 + .names 1, per element: what the condition and the step cost, times 10
//! ```

mod functions;

use std::collections::HashMap;
use std::sync::Arc;

use crate::ast::{Expr, Fold, Id, Kind, Literal, op};
use crate::checker::{Checked, Ref};
use crate::cost::{LIST, MAP, PER_CHAR, PER_PATTERN_CHAR};
use crate::schema::{Decl, Shape};
use crate::types::Type;

/// A least and a most: of a cost or a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub min: u64,
    pub max: u64,
}

/// A size that nothing bounds.
const UNKNOWN: Range = Range { min: 0, max: u64::MAX };

impl Range {
    /// Exactly this much.
    pub const fn fixed(n: u64) -> Self {
        Self { min: n, max: n }
    }

    const fn new(min: u64, max: u64) -> Self {
        Self { min, max }
    }

    fn add(self, other: Self) -> Self {
        Self::new(self.min.saturating_add(other.min), self.max.saturating_add(other.max))
    }

    fn times(self, other: Self) -> Self {
        Self::new(self.min.saturating_mul(other.min), self.max.saturating_mul(other.max))
    }

    fn scale(self, factor: f64) -> Self {
        let scale = |n: u64| {
            let scaled = (n as f64 * factor).ceil();
            if scaled >= 18_446_744_073_709_551_616.0 { u64::MAX } else { scaled as u64 }
        };
        Self::new(scale(self.min), scale(self.max))
    }

    fn union(self, other: Self) -> Self {
        Self::new(self.min.min(other.min), self.max.max(other.max))
    }
}

/// The variables that have a declaration, by name.
pub type Roots<'d> = &'d [(&'d str, &'d Arc<Decl>)];

/// What the expression may cost, given what its variables are declared as.
pub fn estimate(checked: &Checked, roots: Roots<'_>) -> Range {
    let mut estimator = Estimator {
        checked,
        roots,
        paths: HashMap::new(),
        locals: Vec::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
    };
    estimator.cost(&checked.expr)
}

/// Where a value lies: the variable, then fields, `@items`, `@keys`, `@values`.
type Place = Arc<Vec<Arc<str>>>;

/// The sizes of the keys and values of a list or map that the expression makes.
#[derive(Clone, Copy)]
struct Entries {
    list: bool,
    key: Range,
    value: Range,
}

struct Local {
    name: Arc<str>,
    place: Place,
    size: Option<Range>,
    entries: Option<Entries>,
}

/// A value as calls look at it.
struct Arg<'e> {
    expr: Option<&'e Expr>,
    place: Place,
    t: Type,
    size: Option<Range>,
}

/// What a call costs by itself, and how large its result is.
struct Called {
    cost: Range,
    size: Option<Range>,
}

impl From<Range> for Called {
    fn from(cost: Range) -> Self {
        Self { cost, size: None }
    }
}

struct Estimator<'c> {
    checked: &'c Checked,
    roots: Roots<'c>,
    paths: HashMap<Id, Place>,
    locals: Vec<Local>,
    sizes: HashMap<Id, Range>,
    entries: HashMap<Id, Entries>,
}

fn longer(place: &Place, step: &str) -> Place {
    let mut own = (**place).clone();
    own.push(step.into());
    Arc::new(own)
}

impl Estimator<'_> {
    fn cost(&mut self, expr: &Expr) -> Range {
        match &expr.kind {
            Kind::Literal(_) | Kind::Broken => Range::fixed(0),
            Kind::Ident(name) => {
                let place = match self.local(name) {
                    Some(local) => Arc::clone(&local.place),
                    None => Arc::new(vec![Arc::clone(name)]),
                };
                self.paths.insert(expr.id, place);
                Range::fixed(1)
            }
            Kind::Select { operand, field, test } => {
                if let Some(Ref::Type(_) | Ref::Variable(_)) = self.checked.reference(expr.id) {
                    self.paths.insert(expr.id, Arc::new(vec![Arc::clone(field)]));
                    return Range::fixed(1);
                }
                let mut sum = self.cost(operand);
                if *test {
                    return sum;
                }
                if matches!(self.checked.type_of(operand.id), Type::Map(_) | Type::Object(_) | Type::Named(_)) {
                    sum = sum.add(Range::fixed(1));
                }
                let place = longer(&self.place(operand), field);
                self.paths.insert(expr.id, place);
                sum
            }
            Kind::Call { function, target, args } => self.call(expr, function, target.as_deref(), args),
            Kind::List(items) => {
                let mut sum = Range::fixed(0);
                let mut item = if items.is_empty() { Range::fixed(0) } else { Range::new(u64::MAX, 0) };
                for element in items {
                    sum = sum.add(self.cost(&element.value));
                    item = item.union(self.size_or_unknown(&element.value));
                }
                self.entries.insert(expr.id, Entries { list: true, key: Range::fixed(1), value: item });
                sum.add(Range::fixed(LIST))
            }
            Kind::Map(entries) => {
                let mut sum = Range::fixed(0);
                let none = if entries.is_empty() { Range::fixed(0) } else { Range::new(u64::MAX, 0) };
                let (mut key, mut value) = (none, none);
                for entry in entries {
                    sum = sum.add(self.cost(&entry.key));
                    sum = sum.add(self.cost(&entry.value));
                    key = key.union(self.size_or_unknown(&entry.key));
                    value = value.union(self.size_or_unknown(&entry.value));
                }
                self.entries.insert(expr.id, Entries { list: false, key, value });
                sum.add(Range::fixed(MAP))
            }
            Kind::Struct { fields, .. } => {
                let sum = fields.iter().fold(Range::fixed(0), |sum, f| sum.add(self.cost(&f.value)));
                sum.add(Range::fixed(40))
            }
            Kind::Fold(fold) if fold.is_bind() => self.bind(expr, fold),
            Kind::Fold(fold) => self.fold(expr, fold),
        }
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|l| &*l.name == name)
    }

    fn place(&self, expr: &Expr) -> Place {
        if let Kind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return Arc::clone(&local.place);
        }
        self.paths.get(&expr.id).cloned().unwrap_or_default()
    }

    /// The size that the declarations give a place.
    fn declared(&self, place: &[Arc<str>]) -> Option<Range> {
        let (root, steps) = place.split_first()?;
        // What begins nowhere begins where the first variable does: upstream looks no closer.
        let mut decl = self.roots.iter().find(|(name, _)| **name == **root).or(self.roots.first())?.1;
        let mut key = None;
        for step in steps {
            if key.is_some() {
                return None;
            }
            match &**step {
                "@items" | "@values" => decl = decl.elements()?,
                "@keys" => {
                    let Shape::Map { keys, .. } = decl.shape else { return None };
                    key = Some(keys);
                }
                field => decl = decl.visible_field(field).or_else(|| decl.attribute())?,
            }
        }
        // A key is a text that nothing bounds in a definition: its declaration says 0.
        Some(Range::new(0, key.unwrap_or(decl.max_elements)))
    }

    fn size(&mut self, expr: &Expr) -> Option<Range> {
        if let Some(size) = self.sizes.get(&expr.id) {
            return Some(*size);
        }
        match &expr.kind {
            Kind::Literal(literal) => {
                return Some(Range::fixed(match literal {
                    Literal::String(s) => s.chars().count() as u64,
                    Literal::Bytes(b) => b.len() as u64,
                    _ => 1,
                }));
            }
            Kind::List(items) => return Some(Range::fixed(items.len() as u64)),
            Kind::Map(entries) => return Some(Range::fixed(entries.len() as u64)),
            _ => {}
        }
        let place = self.place(expr);
        if let Some(size) = self.declared(&place) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if self.checked.type_of(expr.id).is_scalar() {
            return Some(Range::fixed(1));
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|l| l.size),
            _ => None,
        }
    }

    fn size_or_unknown(&mut self, expr: &Expr) -> Range {
        self.size(expr).unwrap_or(UNKNOWN)
    }

    fn entries_of(&self, expr: &Expr) -> Option<Entries> {
        if let Some(entries) = self.entries.get(&expr.id) {
            return Some(*entries);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|l| l.entries),
            _ => None,
        }
    }

    fn push(&mut self, name: &Arc<str>, place: Place, size: Option<Range>, entries: Option<Entries>) {
        self.locals.push(Local { name: Arc::clone(name), place, size, entries });
    }

    fn push_named(&mut self, name: &Arc<str>, value: &Expr) {
        let (place, size, entries) = (self.place(value), self.size(value), self.entries_of(value));
        self.push(name, place, size, entries);
    }

    fn bind(&mut self, expr: &Expr, fold: &Fold) -> Range {
        let sum = self.cost(&fold.range).add(self.cost(&fold.init));
        self.push_named(&fold.accu, &fold.init);
        let sum = sum.add(self.cost(&fold.result));
        // What it names is out of sight behind it, its size is not.
        let (size, entries) = (self.size(&fold.result), self.entries_of(&fold.result));
        self.locals.pop();
        if let Some(size) = size {
            self.sizes.insert(expr.id, size);
        }
        if let Some(entries) = entries {
            self.entries.insert(expr.id, entries);
        }
        sum
    }

    fn fold(&mut self, expr: &Expr, fold: &Fold) -> Range {
        let mut sum = self.cost(&fold.range).add(self.cost(&fold.init));
        self.push_named(&fold.accu, &fold.init);
        let entries = self.entries_of(&fold.range);
        let is_list = entries.map_or_else(|| matches!(self.checked.type_of(fold.range.id), Type::List(_)), |e| e.list);
        let place = self.place(&fold.range);
        if let Some(var2) = &fold.var2 {
            let step = if is_list { "@indices" } else { "@keys" };
            self.push(&fold.var, longer(&place, step), entries.map(|e| e.key), None);
            let step = if is_list { "@items" } else { "@values" };
            self.push(var2, longer(&place, step), entries.map(|e| e.value), None);
        } else if is_list {
            self.push(&fold.var, longer(&place, "@items"), entries.map(|e| e.value), None);
        } else {
            self.push(&fold.var, longer(&place, "@keys"), entries.map(|e| e.key), None);
        }
        let condition = self.cost(&fold.condition);
        let step = self.cost(&fold.step);
        let step_entries = self.entries_of(&fold.step);
        self.locals.truncate(self.locals.len() - if fold.var2.is_some() { 2 } else { 1 });
        sum = sum.add(self.cost(&fold.result));
        self.locals.pop();
        let count = self.size_or_unknown(&fold.range);
        sum = sum.add(count.times(step.add(condition)));
        match &fold.init.kind {
            Kind::Literal(_) => {
                if let Some(size) = self.size(&fold.init) {
                    self.sizes.insert(expr.id, size);
                }
            }
            Kind::List(_) | Kind::Map(_) => {
                self.sizes.insert(expr.id, count);
                if let Some(entries) = step_entries {
                    self.entries.insert(expr.id, entries);
                }
            }
            _ => {}
        }
        sum
    }

    fn arg<'e>(&mut self, expr: &'e Expr) -> Arg<'e> {
        let mut place = self.place(expr);
        if place.first().is_some_and(|root| matches!(&**root, "@result" | "__result__")) {
            place = Place::default();
        }
        Arg { expr: Some(expr), place, t: self.checked.type_of(expr.id).clone(), size: self.size(expr) }
    }

    /// The size of an argument where libraries ask for it.
    fn arg_size(&self, arg: &Arg<'_>) -> Range {
        arg.size.or_else(|| self.declared(&arg.place)).unwrap_or(UNKNOWN)
    }

    fn call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) -> Range {
        if function == "dyn"
            && let [arg] = args
        {
            let cost = self.cost(arg);
            if let Some(size) = self.size(arg) {
                self.sizes.insert(expr.id, size);
            }
            if let Some(entries) = self.entries_of(arg) {
                self.entries.insert(expr.id, entries);
            }
            return cost.add(Range::fixed(1));
        }
        let mut costs = Vec::with_capacity(args.len());
        let mut nodes = Vec::with_capacity(args.len());
        for arg in args {
            costs.push(self.cost(arg));
            nodes.push(self.arg(arg));
        }
        let Some(Ref::Call(_, overloads)) = self.checked.reference(expr.id) else { return Range::fixed(0) };
        let ids: Vec<&'static str> = if function == op::OPT_SELECT {
            vec!["select_optional_field"]
        } else {
            overloads.iter().map(|o| o.id).collect()
        };
        let mut sum = Range::fixed(0);
        let target = target.map(|t| {
            sum = self.cost(t);
            self.arg(t)
        });
        let mut total = Range::new(u64::MAX, 0);
        let mut size: Option<Range> = None;
        for id in ids {
            let called = self.function(expr, function, id, target.as_ref(), &nodes, &costs);
            total = total.union(called.cost);
            if let Some(own) = called.size {
                size = Some(size.map_or(own, |s| s.union(own)));
            }
            if let (Some(first), "index_list" | "index_map") = (args.first(), id) {
                size = self.entries_of(first).map(|e| e.value);
                let step = if id == "index_list" { "@items" } else { "@values" };
                let place = longer(&self.place(first), step);
                self.paths.insert(expr.id, place);
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        if let Some(size) = size {
            self.sizes.insert(expr.id, size);
        }
        sum.add(total)
    }

    fn function(
        &mut self,
        expr: &Expr,
        function: &str,
        id: &str,
        target: Option<&Arg<'_>>,
        args: &[Arg<'_>],
        costs: &[Range],
    ) -> Called {
        let all = costs.iter().fold(Range::fixed(0), |sum, c| sum.add(*c));
        let own = self.extension(id, target, args).or_else(|| self.kubernetes(function, id, target, args));
        if let Some(called) = own {
            return Called { cost: called.cost.add(all), size: called.size };
        }
        let size = |arg: &Arg<'_>| arg.size.unwrap_or(UNKNOWN);
        let chars = |range: Range| range.scale(PER_CHAR);
        let plain = |cost: Range, size: Option<Range>| Called { cost: cost.add(all), size };
        match (id, target, args) {
            ("string_format", Some(target), _) => plain(chars(size(target)), None),
            ("string_to_bytes", _, [arg]) => {
                let own = size(arg);
                plain(chars(own), Some(Range::new(own.min, own.max.wrapping_mul(4))))
            }
            ("bytes_to_string", _, [arg]) => {
                let own = size(arg);
                plain(chars(own), Some(Range::new(own.min / 4, own.max)))
            }
            ("strings_quote", _, [arg]) => {
                let own = size(arg);
                let quoted = Range::new(own.min.wrapping_add(2), own.max.wrapping_mul(2).wrapping_add(2));
                plain(chars(own), Some(quoted))
            }
            ("starts_with_string" | "ends_with_string", _, [arg]) => plain(chars(size(arg)), None),
            ("in_list", _, [_, list]) => plain(size(list).scale(1.0), None),
            ("matches_string", Some(text), [pattern]) | ("matches", None, [text, pattern]) => {
                let text = chars(size(text).add(Range::fixed(1)));
                plain(text.times(size(pattern).scale(PER_PATTERN_CHAR)), None)
            }
            ("contains_string", Some(text), [part]) => plain(chars(size(text)).times(chars(size(part))), None),
            ("logical_or" | "logical_and", ..) => {
                let (left, right) = pair(costs);
                Range::new(left.min, left.add(right).max).into()
            }
            ("conditional", _, [_, yes, no]) => {
                let result = size(yes).union(size(no));
                let entries = |arg: &Arg<'_>| arg.expr.and_then(|e| self.entries_of(e));
                if let (Some(a), Some(b)) = (entries(yes), entries(no)) {
                    let joined = Entries { list: a.list, key: a.key.union(b.key), value: a.value.union(b.value) };
                    self.entries.insert(expr.id, joined);
                }
                let cost = |i: usize| costs.get(i).copied().unwrap_or(Range::fixed(0));
                Called { cost: cost(0).add(cost(1).union(cost(2))), size: Some(result) }
            }
            ("add_string" | "add_bytes" | "add_list", _, [left, right]) => {
                let sum = size(left).add(size(right));
                let entries = |arg: &Arg<'_>| arg.expr.and_then(|e| self.entries_of(e));
                if let (Some(a), Some(b)) = (entries(left), entries(right)) {
                    let joined = Entries { list: a.list, key: a.key.union(b.key), value: a.value.union(b.value) };
                    self.entries.insert(expr.id, joined);
                }
                plain(if id == "add_list" { Range::fixed(1) } else { chars(sum) }, Some(sum))
            }
            (
                "less_string"
                | "greater_string"
                | "less_equals_string"
                | "greater_equals_string"
                | "less_bytes"
                | "greater_bytes"
                | "less_equals_bytes"
                | "greater_equals_bytes"
                | "equals"
                | "not_equals",
                _,
                [left, right],
            ) => {
                let max = size(left).max.min(size(right).max);
                plain(chars(Range::new(u64::from(max > 0), max)), None)
            }
            _ => plain(Range::fixed(1), None),
        }
    }
}

fn pair(costs: &[Range]) -> (Range, Range) {
    match costs {
        [left, right, ..] => (*left, *right),
        _ => (Range::fixed(0), Range::fixed(0)),
    }
}
