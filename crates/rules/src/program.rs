//! Evaluates a planned expression.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::checker::Checked;
use crate::cost;
use crate::library;
use crate::meter::{Error, Meter};
use crate::plan::{self, Attribute, Call, Named, Node, Root, Step, StepKey, Walk};
use crate::value::{Key, List, Map, Out, Text, Val, equal};

/// An expression that is ready to be evaluated, any number of times and by many at once.
pub struct Program {
    node: Node,
    slots: usize,
    names: Vec<String>,
}

/// What an evaluation gave, and what it cost.
pub struct Outcome<'a> {
    pub value: Out<'a>,
    pub cost: u64,
}

impl Program {
    /// Makes a program of a checked expression. `names` are the variables, for messages.
    pub fn new(checked: &Checked, names: Vec<String>) -> Result<Self, Error> {
        let (node, slots) = plan::plan(checked)?;
        Ok(Self { node, slots, names })
    }

    /// Evaluates it. A variable that has no value here is `None`.
    pub fn run<'a>(&'a self, variables: &'a [Option<Val<'a>>], limit: u64) -> Outcome<'a> {
        let mut run = Run {
            program: self,
            variables,
            locals: (0..self.slots).map(|_| Local::Empty).collect(),
            meter: Meter::new(limit),
        };
        let value = run.eval(&self.node);
        Outcome { value, cost: run.meter.cost() }
    }
}

/// A place for a local.
enum Local<'a> {
    Empty,
    /// Found when it is first asked for.
    Lazy(&'a Node),
    Value(Val<'a>),
    Failed(Error),
}

impl<'a> Local<'a> {
    fn of(value: Out<'a>) -> Self {
        match value {
            Ok(value) => Self::Value(value),
            Err(error) => Self::Failed(error),
        }
    }
}

struct Run<'a> {
    program: &'a Program,
    variables: &'a [Option<Val<'a>>],
    locals: Vec<Local<'a>>,
    meter: Meter,
}

impl<'a> Run<'a> {
    fn eval(&mut self, node: &'a Node) -> Out<'a> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Attribute(attribute) => self.attribute(attribute),
            Node::Has(attribute) => self.has(attribute),
            Node::And(parts) => self.logic(parts, false),
            Node::Or(parts) => self.logic(parts, true),
            Node::Equal(parts, wanted) => self.equal(parts, *wanted),
            Node::NotFalse(part) => self.not_false(part),
            Node::OrElse { parts, bare } => self.or_else(parts, *bare),
            Node::Call(call) => self.call(call),
            Node::InSet { value, keys, doubles } => {
                let value = self.eval(value)?;
                let found = match (&value, Key::of(&value)) {
                    (_, Some(key)) => keys.contains(&key),
                    (Val::Double(d), None) => doubles.contains(d),
                    _ => false,
                };
                Ok(Val::Bool(found))
            }
            Node::List(items) => self.list(items),
            Node::Map(entries) => self.map(entries),
            Node::Fold(walk) => self.fold(walk),
            Node::Bind(named) => self.bind(named),
            Node::Append { slot, value, optional } => self.append(*slot, value, *optional),
            Node::Insert { slot, args } => self.insert(*slot, args),
        }
    }

    fn attribute(&mut self, attribute: &'a Attribute) -> Out<'a> {
        let value = self.resolve(attribute);
        if !matches!(attribute.root, Root::Conditional(_)) {
            self.meter.charge(1)?;
        }
        value
    }

    /// The value, without what the attribute itself costs.
    fn resolve(&mut self, attribute: &'a Attribute) -> Out<'a> {
        let root = self.root(&attribute.root)?;
        if attribute.steps.is_empty() {
            return Ok(root);
        }
        let (mut value, mut optional) = match root {
            Val::Optional(None) => return Ok(Val::Optional(None)),
            Val::Optional(Some(inner)) => ((*inner).clone(), true),
            other => (other, false),
        };
        for step in &attribute.steps {
            optional |= step.optional;
            match self.step(&value, step, optional)? {
                Some(next) => value = next,
                None => return Ok(Val::Optional(None)),
            }
        }
        Ok(if optional { Val::some(value) } else { value })
    }

    fn root(&mut self, root: &'a Root) -> Out<'a> {
        match root {
            Root::Variable(index) => match self.variables.get(*index) {
                Some(Some(value)) => Ok(value.clone()),
                _ => {
                    let name = self.program.names.get(*index).map_or("", String::as_str);
                    Err(Error::new(format!("no such attribute(s): {name}")))
                }
            },
            Root::Local(slot) => self.local(*slot),
            Root::Node(node) => self.eval(node),
            Root::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                let branch = match self.eval(condition)? {
                    Val::Bool(true) => yes,
                    Val::Bool(false) => no,
                    _ => return Err(Error::no_such_overload()),
                };
                match branch {
                    Node::Attribute(attribute) => self.resolve(attribute),
                    other => self.eval(other),
                }
            }
        }
    }

    fn local(&mut self, slot: usize) -> Out<'a> {
        match self.locals.get(slot) {
            Some(Local::Value(value)) => Ok(value.clone()),
            Some(Local::Lazy(init)) => {
                let init = *init;
                let value = self.settle(init)?;
                self.put(slot, Local::of(value.clone()));
                value
            }
            Some(Local::Failed(error)) => Err(error.clone()),
            _ => Err(Error::new("no such attribute(s)")),
        }
    }

    fn put(&mut self, slot: usize, local: Local<'a>) {
        if let Some(place) = self.locals.get_mut(slot) {
            *place = local;
        }
    }

    /// What is one step further. `None`: nothing, which only an optional step may find.
    fn step(&mut self, value: &Val<'a>, step: &'a Step, optional: bool) -> Result<Option<Val<'a>>, Error> {
        let found = self.look(value, step);
        match found {
            // An optional step that finds nothing, or fails, costs nothing.
            Err(_) | Ok(Err(_)) if optional => {}
            _ => self.meter.charge(1)?,
        }
        match found? {
            Ok(found) => Ok(Some(found)),
            Err(_) if optional => Ok(None),
            Err(key) => Err(missing(value, &key.show())),
        }
    }

    /// What a step finds, or the key that it does not find.
    fn look(&mut self, value: &Val<'a>, step: &'a Step) -> Result<Result<Val<'a>, Val<'a>>, Error> {
        let key = match &step.key {
            StepKey::Field(name) => Ok(Val::String(Text::Borrowed(name))),
            StepKey::Const(key) => Ok(key.clone()),
            StepKey::Attribute(attribute) => self.resolve(attribute),
            StepKey::Node(node) => self.eval(node),
        };
        key.and_then(|key| Ok(library::index(value, &key)?.ok_or(key)))
    }

    fn has(&mut self, attribute: &'a Attribute) -> Out<'a> {
        let Some((last, before)) = attribute.steps.split_last() else { return Err(Error::no_such_overload()) };
        let root = self.root(&attribute.root)?;
        let (mut value, mut optional) = match root {
            Val::Optional(None) => return Ok(Val::Bool(false)),
            Val::Optional(Some(inner)) => ((*inner).clone(), true),
            other => (other, false),
        };
        for step in before {
            optional |= step.optional;
            match self.step(&value, step, optional)? {
                Some(next) => value = next,
                None => return Ok(Val::Bool(false)),
            }
        }
        let found = self.look(&value, last);
        self.meter.charge(1)?;
        Ok(Val::Bool(found?.is_ok()))
    }

    fn logic(&mut self, parts: &'a [Node; 2], or: bool) -> Out<'a> {
        let mut failed = None;
        for part in parts {
            match self.eval(part) {
                Ok(Val::Bool(b)) if b == or => return Ok(Val::Bool(or)),
                Ok(Val::Bool(_)) => {}
                Ok(_) => failed = failed.or(Some(Error::no_such_overload())),
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(Val::Bool(!or)), Err)
    }

    fn equal(&mut self, parts: &'a [Node; 2], wanted: bool) -> Out<'a> {
        let [left, right] = parts;
        let left = self.settle(left)?;
        let right = self.settle(right)?;
        let rule = cost::Rule::Shorter;
        self.meter.charge(rule.cost(&[left.as_ref().ok(), right.as_ref().ok()], None))?;
        let (left, right) = (left?, right?);
        let same = equal(&left, &right, &mut self.meter);
        if wanted {
            return same.map(Val::Bool);
        }
        // What cannot be compared is different.
        match same {
            Err(Error::Cancelled) => Err(Error::Cancelled),
            other => Ok(Val::Bool(!other.unwrap_or(false))),
        }
    }

    /// A value or why there is none; only running out of budget ends the evaluation here.
    fn settle(&mut self, node: &'a Node) -> Result<Out<'a>, Error> {
        match self.eval(node) {
            Err(Error::Cancelled) => Err(Error::Cancelled),
            other => Ok(other),
        }
    }

    fn not_false(&mut self, part: &'a Node) -> Out<'a> {
        let value = self.settle(part)?;
        self.meter.charge(1)?;
        Ok(match value {
            Ok(Val::Bool(b)) => Val::Bool(b),
            _ => Val::Bool(true),
        })
    }

    fn or_else(&mut self, parts: &'a [Node; 2], bare: bool) -> Out<'a> {
        let [first, second] = parts;
        match self.eval(first)? {
            Val::Optional(Some(value)) if bare => Ok((*value).clone()),
            value @ Val::Optional(Some(_)) => Ok(value),
            Val::Optional(None) => self.eval(second),
            _ => Err(Error::no_such_overload()),
        }
    }

    fn call(&mut self, call: &'a Call) -> Out<'a> {
        match call.args.as_slice() {
            [arg] if call.is_strict() => {
                let arg = self.settle(arg)?;
                self.charge_early(call, &[arg.as_ref().ok()])?;
                let args = [arg?];
                self.apply(call, &args)
            }
            [left, right] if call.is_strict() => {
                let left = self.settle(left)?;
                let right = self.settle(right)?;
                self.charge_early(call, &[left.as_ref().ok(), right.as_ref().ok()])?;
                let args = [left?, right?];
                self.apply(call, &args)
            }
            nodes => {
                let mut args = Vec::with_capacity(nodes.len());
                for (i, node) in nodes.iter().enumerate() {
                    match self.settle(node)? {
                        Ok(value) => args.push(value),
                        Err(error) => {
                            // The cost is counted once all arguments are there.
                            if i + 1 == nodes.len() {
                                let known: Vec<Option<&Val<'_>>> =
                                    args.iter().map(Some).chain(std::iter::once(None)).collect();
                                self.charge_early(call, &known)?;
                            }
                            return Err(error);
                        }
                    }
                }
                let known: Vec<Option<&Val<'_>>> = args.iter().map(Some).collect();
                self.charge_early(call, &known)?;
                drop(known);
                self.apply(call, &args)
            }
        }
    }

    fn charge_early(&mut self, call: &Call, args: &[Option<&Val<'a>>]) -> Result<(), Error> {
        if call.rule.is_late() && args.iter().all(Option::is_some) {
            return Ok(());
        }
        self.meter.charge(call.rule.cost(args, None))
    }

    fn apply(&mut self, call: &'a Call, args: &[Val<'a>]) -> Out<'a> {
        let result = self.perform(call, args);
        if call.rule.is_late() && !matches!(result, Err(Error::Cancelled)) {
            self.meter.charge(call.rule.cost(&[], result.as_ref().ok()))?;
        }
        result
    }

    fn perform(&mut self, call: &'a Call, args: &[Val<'a>]) -> Out<'a> {
        if let Some(pattern) = &call.pattern {
            return library::run_with(call.function.name, pattern, args, &mut self.meter);
        }
        match call.single {
            Some(overload) => {
                if !overload.open && !overload.params.iter().zip(args).all(|(t, v)| library::is_instance(t, v)) {
                    return Err(library::no_such_overload(call.function.name, args));
                }
                (overload.run)(&mut self.meter, args)
            }
            None => {
                let overloads = call.function.overloads.iter();
                let fits = |o: &&library::Overload| {
                    o.params.len() == args.len()
                        && (o.open || o.params.iter().zip(args).all(|(t, v)| library::is_instance(t, v)))
                };
                match overloads.filter(|o| o.params.len() == args.len()).find(fits) {
                    Some(overload) => (overload.run)(&mut self.meter, args),
                    None => Err(library::no_such_overload(call.function.name, args)),
                }
            }
        }
    }

    fn list(&mut self, items: &'a [(Node, bool)]) -> Out<'a> {
        let made = self.items(items);
        if !matches!(made, Err(Error::Cancelled)) {
            self.meter.charge(cost::LIST)?;
        }
        let made = made?;
        self.meter.allocate(made.len().saturating_mul(size_of::<Val<'_>>()))?;
        Ok(Val::list(made))
    }

    fn items(&mut self, items: &'a [(Node, bool)]) -> Result<Vec<Val<'a>>, Error> {
        let mut out = Vec::with_capacity(items.len());
        for (node, optional) in items {
            let value = self.eval(node)?;
            out.extend(unless_missing(value, *optional, list_mistake)?);
        }
        Ok(out)
    }

    fn map(&mut self, entries: &'a [(Node, Node, bool)]) -> Out<'a> {
        let made = self.entries(entries);
        if !matches!(made, Err(Error::Cancelled)) {
            self.meter.charge(cost::MAP)?;
        }
        let made = made?;
        self.meter.allocate(made.len().saturating_mul(2 * size_of::<Val<'_>>()))?;
        Ok(Val::Map(Map::made(made)))
    }

    fn entries(&mut self, entries: &'a [(Node, Node, bool)]) -> Result<BTreeMap<Key, (Val<'a>, Val<'a>)>, Error> {
        let mut out = BTreeMap::new();
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let value = self.eval(value)?;
            let Some(place) = Key::of(&key) else { return Err(Error::new("unsupported key type")) };
            let value = unless_missing(value, *optional, || {
                format!("cannot initialize optional entry '{}' from non-optional value", key.show())
            })?;
            match value {
                Some(value) => out.insert(place, (key, value)),
                None => out.remove(&place),
            };
        }
        Ok(out)
    }

    fn bind(&mut self, named: &'a Named) -> Out<'a> {
        self.put(named.slot, Local::Lazy(&named.init));
        let value = self.eval(&named.result);
        self.put(named.slot, Local::Empty);
        value
    }

    fn fold(&mut self, walk: &'a Walk) -> Out<'a> {
        let range = self.eval(&walk.range)?;
        self.put(walk.accu, Local::Lazy(&walk.init));
        match &range {
            Val::List(list) => {
                for index in 0..list.len() {
                    let Some(item) = list.get(index) else { break };
                    let first = Val::Int(i64::try_from(index).unwrap_or(i64::MAX));
                    let go_on = match walk.var2 {
                        Some(_) => self.round(walk, Ok(first), Some(item))?,
                        None => self.round(walk, item, None)?,
                    };
                    if !go_on {
                        break;
                    }
                }
            }
            Val::Map(map) => {
                for key in map.keys() {
                    let value = walk.var2.map(|_| map.find(&key).unwrap_or_else(|| Err(Error::no_such_overload())));
                    if !self.round(walk, Ok(key), value)? {
                        break;
                    }
                }
            }
            other => {
                let name = other.type_of();
                return Err(Error::new(format!("got '{}', expected iterable type", name.runtime_name())));
            }
        }
        self.put(walk.var, Local::Empty);
        if let Some(slot) = walk.var2 {
            self.put(slot, Local::Empty);
        }
        let result = self.eval(&walk.result);
        self.put(walk.accu, Local::Empty);
        result
    }

    /// One element. False: the walk is over.
    fn round(&mut self, walk: &'a Walk, first: Out<'a>, second: Option<Out<'a>>) -> Result<bool, Error> {
        self.meter.step(1)?;
        self.put(walk.var, Local::of(first));
        if let (Some(slot), Some(value)) = (walk.var2, second) {
            self.put(slot, Local::of(value));
        }
        if matches!(self.settle(&walk.condition)?, Ok(Val::Bool(false))) {
            return Ok(false);
        }
        let accu = self.settle(&walk.step)?;
        self.put(walk.accu, Local::of(accu));
        Ok(true)
    }

    /// The accumulator, taken out of its place.
    fn take(&mut self, slot: usize) -> Out<'a> {
        let value = self.local(slot)?;
        self.put(slot, Local::Empty);
        Ok(value)
    }

    /// Counts as what it stands for: a name, a list unless that is constant, a sum.
    fn append(&mut self, slot: usize, node: &'a Node, optional: bool) -> Out<'a> {
        let constant = matches!(node, Node::Const(_)) && !optional;
        let value = self.settle(node)?;
        self.meter.charge(if constant { 2 } else { 2 + cost::LIST })?;
        if let Some(Local::Failed(error)) = self.locals.get(slot) {
            return Err(error.clone());
        }
        let value = unless_missing(value?, optional, list_mistake)?;
        let Val::List(list) = self.take(slot)? else { return Err(Error::no_such_overload()) };
        let mut items = match list {
            List::Made(items) => items,
            other => Arc::new(other.iter().collect::<Result<_, _>>()?),
        };
        self.meter.allocate(size_of::<Val<'_>>())?;
        if let Some(value) = value {
            if Arc::strong_count(&items) > 1 {
                self.meter.allocate(items.len().saturating_mul(size_of::<Val<'_>>()))?;
            }
            Arc::make_mut(&mut items).push(value);
        }
        Ok(Val::List(List::Made(items)))
    }

    /// Counts as what it stands for: a name and a call.
    fn insert(&mut self, slot: usize, nodes: &'a [Node]) -> Out<'a> {
        self.meter.charge(1)?;
        let failed = match self.locals.get(slot) {
            Some(Local::Failed(error)) => Some(error.clone()),
            _ => None,
        };
        let mut args = Vec::with_capacity(nodes.len());
        for (i, node) in nodes.iter().enumerate() {
            // Of three arguments, those behind one that failed are not looked at.
            if let (Some(error), 2) = (&failed, nodes.len()) {
                return Err(error.clone());
            }
            match self.settle(node)? {
                Ok(value) => args.push(value),
                Err(error) => {
                    if i + 1 == nodes.len() {
                        self.meter.charge(1)?;
                    }
                    return Err(failed.unwrap_or(error));
                }
            }
        }
        self.meter.charge(1)?;
        if let Some(error) = failed {
            return Err(error);
        }
        let accu = self.take(slot)?;
        library::insert(&mut self.meter, accu, &args)
    }
}

fn list_mistake() -> String {
    "cannot initialize optional list element from non-optional value".to_owned()
}

fn unless_missing<'a>(value: Val<'a>, optional: bool, message: impl Fn() -> String) -> Result<Option<Val<'a>>, Error> {
    match value {
        value if !optional => Ok(Some(value)),
        Val::Optional(inner) => Ok(inner.map(|v| (*v).clone())),
        other => Err(Error::new(format!("{} {}", message(), other.show()))),
    }
}

fn missing(value: &Val<'_>, key: &str) -> Error {
    match value {
        Val::List(_) => Error::new(format!("index out of bounds: {key}")),
        _ => Error::new(format!("no such key: {key}")),
    }
}
