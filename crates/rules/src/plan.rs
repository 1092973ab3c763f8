//! A checked expression as it is evaluated: names are places, constants are values, and what is looked
//! up in one go is one attribute.
//!
//! ```text
//! self.spec.ports[0].name  →  Attribute { root: Variable(self), steps: [.spec, .ports, [0], .name] }
//! ```
//!
//! Attributes are kept apart because that is how upstream counts: an attribute costs one, each of its
//! steps costs one, and a branch of a conditional that is an attribute costs its steps only.

use std::collections::BTreeSet;
use std::sync::Arc;

use machinery::regexp::{self, Regexp};

use crate::ast::{Expr, Fold, Id, Kind, Literal, op};
use crate::checker::{Checked, Ref};
use crate::cost::Rule;
use crate::library::{Function, Overload};
use crate::meter::{Error, Meter};
use crate::value::{Key, Map, Text, Val};

/// What is evaluated.
pub enum Node {
    Const(Val<'static>),
    Attribute(Attribute),
    /// Is the last step there?
    Has(Attribute),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    Equal(Box<[Node; 2]>, bool),
    NotFalse(Box<Node>),
    /// The optional, or what stands in for it; `bare` when that is no optional.
    OrElse {
        parts: Box<[Node; 2]>,
        bare: bool,
    },
    Call(Box<Call>),
    /// Is the value one of these?
    InSet {
        value: Box<Node>,
        keys: BTreeSet<Key>,
        doubles: Vec<f64>,
    },
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    Fold(Box<Walk>),
    /// A value with a name, found when the name is first used.
    Bind(Box<Named>),
    /// `@result + [value]`, in place.
    Append {
        slot: usize,
        value: Box<Node>,
        optional: bool,
    },
    /// `cel.@mapInsert(@result, …)`, in place.
    Insert {
        slot: usize,
        args: Vec<Node>,
    },
}

/// Something looked up.
pub struct Attribute {
    pub root: Root,
    pub steps: Vec<Step>,
}

/// Where a look-up begins.
pub enum Root {
    Variable(usize),
    Local(usize),
    Node(Box<Node>),
    Conditional(Box<[Node; 3]>),
}

/// One step of a look-up.
pub struct Step {
    pub key: StepKey,
    /// A missing value is none, not a mistake.
    pub optional: bool,
}

/// What a step asks for.
pub enum StepKey {
    Field(Arc<str>),
    Const(Val<'static>),
    Attribute(Attribute),
    Node(Node),
}

/// A call.
pub struct Call {
    pub function: &'static Function,
    /// The form, when only one fits.
    pub single: Option<&'static Overload>,
    pub args: Vec<Node>,
    pub rule: Rule,
    /// A pattern that was known beforehand.
    pub pattern: Option<Arc<Regexp>>,
}

impl Call {
    /// Are all arguments looked at, also behind one that failed? So it is where the form is known, and
    /// for operators, which have one for all.
    pub fn is_strict(&self) -> bool {
        self.pattern.is_none() && (self.single.is_some() || self.function.overloads.first().is_some_and(|o| o.open))
    }
}

/// A fold.
pub struct Walk {
    pub range: Node,
    pub accu: usize,
    pub init: Node,
    pub var: usize,
    pub var2: Option<usize>,
    pub condition: Node,
    pub step: Node,
    pub result: Node,
}

/// A value with a name.
pub struct Named {
    pub slot: usize,
    pub init: Node,
    pub result: Node,
}

/// Plans a checked expression: the node, and how many places for locals it needs.
pub fn plan(checked: &Checked) -> Result<(Node, usize), Error> {
    let mut planner = Planner { checked, locals: Vec::new(), slots: 0, step_of: None };
    let node = planner.plan(&checked.expr)?;
    Ok((node, planner.slots))
}

struct Planner<'c> {
    checked: &'c Checked,
    locals: Vec<(Arc<str>, usize)>,
    slots: usize,
    /// The accumulator whose step is being planned: only there may it be changed in place.
    step_of: Option<usize>,
}

impl Planner<'_> {
    fn plan(&mut self, expr: &Expr) -> Result<Node, Error> {
        let tail = self.step_of.take();
        Ok(match &expr.kind {
            Kind::Literal(literal) => Node::Const(constant(literal)),
            Kind::Ident(name) => self.name(expr.id, name)?,
            Kind::Select { operand, field, test } => {
                if self.checked.reference(expr.id).is_some() {
                    return self.name(expr.id, field);
                }
                let node = self.plan(operand)?;
                let mut attribute = attribute(node);
                attribute.steps.push(Step { key: StepKey::Field(Arc::clone(field)), optional: false });
                if *test { Node::Has(attribute) } else { Node::Attribute(attribute) }
            }
            Kind::Call { function, target, args } => self.call(expr.id, function, target.as_deref(), args, tail)?,
            Kind::List(items) => {
                let mut out = Vec::with_capacity(items.len());
                for item in items {
                    out.push((self.plan(&item.value)?, item.optional));
                }
                fold_list(out)
            }
            Kind::Map(entries) => {
                let mut out = Vec::with_capacity(entries.len());
                for entry in entries {
                    out.push((self.plan(&entry.key)?, self.plan(&entry.value)?, entry.optional));
                }
                fold_map(out)
            }
            Kind::Fold(fold) => self.fold(fold)?,
            Kind::Struct { name, .. } => return Err(Error::new(format!("unknown type: {name}"))),
            Kind::Broken => return Err(Error::new("unsupported expr")),
        })
    }

    fn name(&mut self, id: Id, name: &str) -> Result<Node, Error> {
        let root = match self.checked.reference(id) {
            Some(Ref::Type(t)) => return Ok(Node::Const(Val::Type(t.clone()))),
            Some(Ref::Variable(index)) => Root::Variable(*index),
            _ => match self.locals.iter().rev().find(|(n, _)| &**n == name) {
                Some((_, slot)) => Root::Local(*slot),
                None => return Err(Error::new(format!("no such attribute(s): {name}"))),
            },
        };
        Ok(Node::Attribute(Attribute { root, steps: Vec::new() }))
    }

    fn call(
        &mut self,
        id: Id,
        name: &str,
        target: Option<&Expr>,
        args: &[Expr],
        tail: Option<usize>,
    ) -> Result<Node, Error> {
        if let Some(slot) = tail
            && let Some(node) = self.in_place(slot, name, args)?
        {
            return Ok(node);
        }
        let mut nodes = Vec::with_capacity(args.len() + 1);
        for (i, part) in target.into_iter().chain(args).enumerate() {
            if name == op::CONDITIONAL && i > 0 {
                self.step_of = tail;
            }
            nodes.push(self.plan(part)?);
        }
        self.step_of = None;
        let count = nodes.len();
        let mut parts = nodes.into_iter();
        let mut next = || parts.next().unwrap_or(Node::Const(Val::Null));
        match (name, count) {
            (op::AND, 2) => return Ok(Node::And(Box::new([next(), next()]))),
            (op::OR, 2) => return Ok(Node::Or(Box::new([next(), next()]))),
            (op::EQUALS, 2) => return Ok(Node::Equal(Box::new([next(), next()]), true)),
            (op::NOT_EQUALS, 2) => return Ok(Node::Equal(Box::new([next(), next()]), false)),
            (op::NOT_STRICTLY_FALSE, 1) => return Ok(Node::NotFalse(Box::new(next()))),
            (op::CONDITIONAL, 3) => {
                let root = Root::Conditional(Box::new([next(), next(), next()]));
                return Ok(Node::Attribute(Attribute { root, steps: Vec::new() }));
            }
            (op::INDEX | op::OPT_INDEX | op::OPT_SELECT, 2) => {
                let mut attribute = attribute(next());
                let key = match next() {
                    Node::Const(value) => StepKey::Const(value),
                    Node::Attribute(inner) => StepKey::Attribute(inner),
                    other => StepKey::Node(other),
                };
                attribute.steps.push(Step { key, optional: name != op::INDEX });
                return Ok(Node::Attribute(attribute));
            }
            ("or" | "orValue", 2) if target.is_some() => {
                return Ok(Node::OrElse { parts: Box::new([next(), next()]), bare: name == "orValue" });
            }
            _ => {}
        }
        let Some(Ref::Call(function, overloads)) = self.checked.reference(id) else {
            return Err(Error::no_overload_of(name));
        };
        let single = match overloads.as_slice() {
            [single] => Some(*single),
            _ => None,
        };
        let args: Vec<Node> = parts.collect();
        finish_call(function, single, args)
    }

    /// A step that adds to the accumulator does so without a copy.
    fn in_place(&mut self, slot: usize, name: &str, args: &[Expr]) -> Result<Option<Node>, Error> {
        let [first, rest @ ..] = args else { return Ok(None) };
        let is_accu = matches!(&first.kind, Kind::Ident(n)
            if self.locals.iter().rev().find(|(own, _)| own == n).is_some_and(|(_, s)| *s == slot));
        if !is_accu {
            return Ok(None);
        }
        match (name, rest) {
            (op::ADD, [Expr { kind: Kind::List(items), .. }]) => {
                let [item] = items.as_slice() else { return Ok(None) };
                let value = Box::new(self.plan(&item.value)?);
                Ok(Some(Node::Append { slot, value, optional: item.optional }))
            }
            (op::MAP_INSERT, rest) => {
                let mut args = Vec::with_capacity(rest.len());
                for arg in rest {
                    args.push(self.plan(arg)?);
                }
                Ok(Some(Node::Insert { slot, args }))
            }
            _ => Ok(None),
        }
    }

    fn slot(&mut self, name: &Arc<str>) -> usize {
        // Folds nest: a place is taken for as long as its name is known.
        let slot = self.locals.len();
        self.locals.push((Arc::clone(name), slot));
        self.slots = self.slots.max(self.locals.len());
        slot
    }

    fn fold(&mut self, fold: &Fold) -> Result<Node, Error> {
        let init = self.plan(&fold.init)?;
        let range = self.plan(&fold.range)?;
        let accu = self.slot(&fold.accu);
        if fold.is_bind() {
            let result = self.plan(&fold.result)?;
            self.locals.pop();
            return Ok(Node::Bind(Box::new(Named { slot: accu, init, result })));
        }
        let var = self.slot(&fold.var);
        let var2 = fold.var2.as_ref().map(|name| self.slot(name));
        let condition = self.plan(&fold.condition)?;
        self.step_of = Some(accu);
        let step = self.plan(&fold.step)?;
        self.locals.truncate(accu + 1);
        let result = self.plan(&fold.result)?;
        self.locals.pop();
        Ok(Node::Fold(Box::new(Walk { range, accu, init, var, var2, condition, step, result })))
    }
}

fn constant(literal: &Literal) -> Val<'static> {
    match literal {
        Literal::Null => Val::Null,
        Literal::Bool(b) => Val::Bool(*b),
        Literal::Int(i) => Val::Int(*i),
        Literal::Uint(u) => Val::Uint(*u),
        Literal::Double(d) => Val::Double(*d),
        Literal::String(s) => Val::String(Text::Made(Arc::clone(s))),
        Literal::Bytes(b) => Val::Bytes(Arc::clone(b)),
    }
}

/// What is looked up further: an attribute goes on, anything else begins one.
fn attribute(node: Node) -> Attribute {
    match node {
        Node::Attribute(attribute) => attribute,
        other => Attribute { root: Root::Node(Box::new(other)), steps: Vec::new() },
    }
}

fn fold_list(items: Vec<(Node, bool)>) -> Node {
    if items.iter().all(|(node, optional)| matches!(node, Node::Const(_)) && !optional) {
        let values = items.into_iter().filter_map(|(node, _)| match node {
            Node::Const(value) => Some(value),
            _ => None,
        });
        return Node::Const(Val::list(values.collect()));
    }
    Node::List(items)
}

fn fold_map(entries: Vec<(Node, Node, bool)>) -> Node {
    let all = entries.iter().all(|(key, value, optional)| match (key, value) {
        (Node::Const(key), Node::Const(_)) => !optional && Key::of(key).is_some(),
        _ => false,
    });
    if !all {
        return Node::Map(entries);
    }
    let constants = entries.into_iter().filter_map(|(key, value, _)| match (key, value) {
        (Node::Const(key), Node::Const(value)) => Some((Key::of(&key)?, (key, value))),
        _ => None,
    });
    Node::Const(Val::Map(Map::made(constants.collect())))
}

/// Conversions of constants are made now, and so are patterns; a mistake in them is one of the program.
fn finish_call(function: &'static Function, single: Option<&'static Overload>, args: Vec<Node>) -> Result<Node, Error> {
    let rule = Rule::of(function.name, single.map(|o| o.id));
    let constant = |i: usize| match args.get(i) {
        Some(Node::Const(value)) => Some(value),
        _ => None,
    };
    let conversion = matches!(
        function.name,
        "bool" | "bytes" | "double" | "duration" | "dyn" | "int" | "string" | "timestamp" | "type" | "uint"
    );
    if conversion
        && args.len() == 1
        && let (Some(value), Some(single)) = (constant(0), single)
    {
        let mut meter = Meter::new(u64::MAX);
        return (single.run)(&mut meter, std::slice::from_ref(value)).map(Node::Const);
    }
    if single.is_some_and(|o| o.id == "in_list")
        && let Some(Val::List(list)) = constant(1)
        && let Some((keys, doubles)) = set_of(list)
    {
        if list.is_empty() {
            return Ok(Node::Const(Val::Bool(false)));
        }
        let value = Box::new(args.into_iter().next().unwrap_or(Node::Const(Val::Null)));
        return Ok(Node::InSet { value, keys, doubles });
    }
    let pattern = match (function.name, constant(1)) {
        ("matches" | "find" | "findAll", Some(Val::String(text))) => Some(regexp::compile(text).map_err(Error::new)?),
        _ => None,
    };
    Ok(Node::Call(Box::new(Call { function, single, args, rule, pattern })))
}

/// A constant list as a set, if its elements are simple.
fn set_of(list: &crate::value::List<'static>) -> Option<(BTreeSet<Key>, Vec<f64>)> {
    let (mut keys, mut doubles) = (BTreeSet::new(), Vec::new());
    for item in list.iter() {
        let item = item.ok()?;
        match (&item, Key::of(&item)) {
            (_, Some(key)) => {
                keys.insert(key);
            }
            (Val::Double(d), None) => doubles.push(*d),
            _ => return None,
        }
    }
    Some((keys, doubles))
}
