//! Gives every node of an expression a type, or says why it has none.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ast::{Entry, Expr, Field, Fold, Id, Kind, Literal, op};
use crate::env::Env;
use crate::library::{self, Function, Overload};
use crate::parser::Parsed;
use crate::source::Issues;
use crate::types::{Type, Unifier, instantiate};

/// An expression whose nodes have types.
pub struct Checked {
    pub expr: Expr,
    pub places: Vec<u32>,
    types: Vec<Type>,
    refs: HashMap<Id, Ref>,
}

/// What a name or a call means.
#[derive(Clone)]
pub enum Ref {
    /// The name of a type.
    Type(Type),
    /// A variable of the environment.
    Variable(usize),
    /// A function, and those of its forms that fit.
    Call(&'static Function, Vec<&'static Overload>),
}

impl Checked {
    /// The type of a node.
    pub fn type_of(&self, id: Id) -> &Type {
        self.types.get(id as usize).unwrap_or(&Type::Dyn)
    }

    /// What a node refers to, if it does.
    pub fn reference(&self, id: Id) -> Option<&Ref> {
        self.refs.get(&id)
    }

    /// Is the variable of this index mentioned?
    pub fn mentions(&self, variable: usize) -> bool {
        self.refs.values().any(|r| matches!(r, Ref::Variable(index) if *index == variable))
    }
}

/// Checks a parsed expression.
pub fn check(env: &Env, parsed: Parsed) -> Result<Checked, Issues> {
    let Parsed { mut expr, places } = parsed;
    let mut checker = Checker {
        env,
        types: vec![None; places.len()],
        refs: HashMap::new(),
        locals: Vec::new(),
        unifier: Unifier::default(),
        issues: Issues::default(),
        places: &places,
    };
    checker.check(&mut expr);
    if checker.unifier.exhausted() {
        checker.issues = Issues::default();
        checker.issues.add(None, "the types of the expression are too large");
    }
    let Checker { types, refs, mut unifier, issues, .. } = checker;
    if !issues.is_empty() {
        return Err(issues);
    }
    let types = types.into_iter().map(|t| t.map_or(Type::Dyn, |t| unifier.resolve(&t, true))).collect();
    if unifier.exhausted() {
        let mut issues = Issues::default();
        issues.add(None, "the types of the expression are too large");
        return Err(issues);
    }
    Ok(Checked { expr, places, types, refs })
}

struct Checker<'e> {
    env: &'e Env,
    types: Vec<Option<Type>>,
    refs: HashMap<Id, Ref>,
    locals: Vec<(Arc<str>, Type)>,
    unifier: Unifier,
    issues: Issues,
    places: &'e [u32],
}

impl Checker<'_> {
    fn set(&mut self, id: Id, t: Type) {
        if let Some(slot) = self.types.get_mut(id as usize) {
            *slot = Some(t);
        }
    }

    fn get(&self, expr: &Expr) -> Type {
        self.types.get(expr.id as usize).cloned().flatten().unwrap_or(Type::Error)
    }

    fn tell(&mut self, id: Id, message: String) {
        self.issues.add(self.places.get(id as usize).copied(), message);
    }

    fn undeclared(&mut self, id: Id, name: &str) {
        self.set(id, Type::Error);
        self.tell(id, format!("undeclared reference to '{name}' (in container '')"));
    }

    fn mismatch(&mut self, id: Id, expected: &Type, found: &Type) {
        self.tell(id, format!("expected type '{expected}' but found '{found}'"));
    }

    fn check(&mut self, expr: &mut Expr) {
        let id = expr.id;
        match &mut expr.kind {
            Kind::Literal(literal) => {
                let t = match literal {
                    Literal::Null => Type::Null,
                    Literal::Bool(_) => Type::Bool,
                    Literal::Int(_) => Type::Int,
                    Literal::Uint(_) => Type::Uint,
                    Literal::Double(_) => Type::Double,
                    Literal::String(_) => Type::String,
                    Literal::Bytes(_) => Type::Bytes,
                };
                self.set(id, t);
            }
            Kind::Ident(name) => {
                let name = Arc::clone(name);
                self.ident(id, &name);
            }
            Kind::Select { .. } => self.select(expr),
            Kind::Call { function, .. } if &**function == op::OPT_SELECT => self.opt_select(expr),
            Kind::Call { .. } => self.call(expr),
            Kind::List(items) => {
                let mut joined = None;
                for item in items {
                    self.check(&mut item.value);
                    let t = self.element_type(&item.value, item.optional);
                    joined = Some(self.join(joined, t));
                }
                let items = joined.unwrap_or_else(|| self.unifier.fresh());
                self.set(id, Type::list(items));
            }
            Kind::Map(entries) => self.map(id, entries),
            Kind::Struct { name, fields } => self.structure(id, &Arc::clone(name), fields),
            Kind::Fold(fold) => self.fold(id, fold),
            Kind::Broken => self.set(id, Type::Error),
        }
    }

    /// The type of an element, unwrapped when it may be left out.
    fn element_type(&mut self, value: &Expr, optional: bool) -> Type {
        let t = self.get(value);
        if !optional {
            return t;
        }
        match t {
            Type::Optional(inner) => (*inner).clone(),
            Type::Dyn => Type::Dyn,
            other => {
                self.mismatch(value.id, &Type::optional(other.clone()), &other);
                other
            }
        }
    }

    fn join(&mut self, previous: Option<Type>, current: Type) -> Type {
        let Some(previous) = previous else { return current };
        if self.unifier.assignable(&previous, &current) { Unifier::general(&previous, &current) } else { Type::Dyn }
    }

    fn map(&mut self, id: Id, entries: &mut [Entry]) {
        let (mut keys, mut values) = (None, None);
        for entry in entries {
            self.check(&mut entry.key);
            let key = self.get(&entry.key);
            keys = Some(self.join(keys, key));
            self.check(&mut entry.value);
            let value = self.element_type(&entry.value, entry.optional);
            values = Some(self.join(values, value));
        }
        let (key, value) = match (keys, values) {
            (Some(key), Some(value)) => (key, value),
            _ => (self.unifier.fresh(), self.unifier.fresh()),
        };
        self.set(id, Type::map(key, value));
    }

    /// A value that is written out field by field.
    fn structure(&mut self, id: Id, name: &str, fields: &mut [Field]) {
        let plain = name.strip_prefix('.').unwrap_or(name);
        let t = match self.env.type_named(plain) {
            Some(t @ Type::Object(_)) => t,
            Some(other) => {
                self.tell(id, format!("'{}' is not a message type", other.runtime_name()));
                Type::Error
            }
            None if self.env.variable(plain).is_some() => {
                self.tell(id, format!("'{plain}' is not a type"));
                Type::Error
            }
            None => return self.undeclared(id, name),
        };
        self.set(id, t.clone());
        for field in fields {
            self.check(&mut field.value);
            let wanted = self.field(field.id, &t, &field.name, false);
            let given = self.element_type(&field.value, field.optional);
            if !self.unifier.assignable(&wanted, &given) {
                let given = self.unifier.resolve(&given, true);
                let name = &field.name;
                let wrong = format!("expected type of field '{name}' is '{wanted}' but provided type is '{given}'");
                self.tell(field.id, wrong);
            }
        }
    }

    fn local(&self, name: &str) -> Option<&Type> {
        self.locals.iter().rev().find(|(n, _)| &**n == name).map(|(_, t)| t)
    }

    fn ident(&mut self, id: Id, name: &str) {
        if let Some(t) = self.local(name) {
            let t = t.clone();
            self.set(id, t);
        } else if !self.global(id, name.strip_prefix('.').unwrap_or(name)) {
            self.undeclared(id, name);
        }
    }

    /// Is this a variable of the environment, or the name of a type?
    fn global(&mut self, id: Id, name: &str) -> bool {
        if let Some((index, t)) = self.env.variable(name) {
            self.set(id, t.clone());
            self.refs.insert(id, Ref::Variable(index));
            return true;
        }
        if let Some(t) = self.env.type_named(name) {
            self.set(id, Type::Type(Some(Arc::new(t.clone()))));
            self.refs.insert(id, Ref::Type(t));
            return true;
        }
        false
    }

    fn select(&mut self, expr: &mut Expr) {
        let id = expr.id;
        if let Some(name) = qualified(expr)
            && self.local(name.split('.').next().unwrap_or("")).is_none()
            && self.global(id, name.strip_prefix('.').unwrap_or(&name))
        {
            return;
        }
        let Kind::Select { operand, field, test } = &mut expr.kind else { return };
        self.check(operand);
        let (field, test) = (Arc::clone(field), *test);
        let operand = self.get(operand);
        let selected = self.field(id, &operand, &field, false);
        let t = if test { Type::Bool } else { self.unifier.resolve(&selected, false) };
        self.set(id, t);
    }

    fn opt_select(&mut self, expr: &mut Expr) {
        let id = expr.id;
        let Kind::Call { args, .. } = &mut expr.kind else { return };
        let [operand, field] = args.as_mut_slice() else { return };
        let Kind::Literal(Literal::String(name)) = &field.kind else { return };
        let name = Arc::clone(name);
        self.set(field.id, Type::String);
        self.check(operand);
        let operand = self.get(operand);
        let selected = self.field(id, &operand, &name, true);
        let t = self.unifier.resolve(&selected, false);
        self.set(id, t);
        if let Some(function) = library::function(op::OPT_SELECT) {
            self.refs.insert(id, Ref::Call(function, function.overloads.iter().collect()));
        }
    }

    fn field(&mut self, id: Id, operand: &Type, field: &str, optional: bool) -> Type {
        let operand = self.unifier.resolve(operand, false);
        let (target, was_optional) = operand.unwrap_optional();
        let result = match target {
            Type::Map(entry) => entry.1.clone(),
            Type::Object(object) => match object.0.field(field) {
                Some(t) => t,
                None => {
                    self.tell(id, format!("undefined field '{field}'"));
                    Type::Error
                }
            },
            Type::Named(name) => {
                self.tell(id, format!("unexpected failed resolution of '{name}'"));
                Type::Error
            }
            Type::Param(_) => {
                self.unifier.assignable(&Type::Dyn, target);
                Type::Dyn
            }
            Type::Dyn | Type::Error => Type::Dyn,
            other => {
                self.tell(id, format!("type '{other}' does not support field selection"));
                Type::Dyn
            }
        };
        if optional || was_optional { Type::optional(result) } else { result }
    }

    fn call(&mut self, expr: &mut Expr) {
        let id = expr.id;
        let Kind::Call { function, target, args } = &mut expr.kind else { return };
        for arg in args.iter_mut() {
            self.check(arg);
        }
        let Some(receiver) = target else {
            let name = function.strip_prefix('.').unwrap_or(&**function);
            return match self.env.function(name) {
                Some(found) => {
                    *function = found.name.into();
                    let args: Vec<Type> = args.iter().map(|a| self.get(a)).collect();
                    self.resolve(id, found, &args, false, expr)
                }
                None => {
                    let name = Arc::clone(function);
                    self.undeclared(id, &name);
                }
            };
        };
        // a.b.c() is the function a.b.c if there is one, else c called on a.b.
        if let Some(prefix) = qualified(receiver) {
            let name = format!("{prefix}.{function}");
            if let Some(found) = self.env.function(name.strip_prefix('.').unwrap_or(&name)) {
                *function = found.name.into();
                *target = None;
                let args: Vec<Type> = args.iter().map(|a| self.get(a)).collect();
                return self.resolve(id, found, &args, false, expr);
            }
        }
        self.check(receiver);
        let Some(found) = self.env.function(function) else {
            let name = Arc::clone(function);
            return self.undeclared(id, &name);
        };
        let types: Vec<Type> = std::iter::once(self.get(receiver)).chain(args.iter().map(|a| self.get(a))).collect();
        self.resolve(id, found, &types, true, expr);
    }

    fn resolve(&mut self, id: Id, function: &'static Function, args: &[Type], member: bool, expr: &Expr) {
        let overloads = function.overloads.iter().filter(|o| o.member == member);
        if matches!(function.name, op::AND | op::OR) {
            let Kind::Call { args: nodes, .. } = &expr.kind else { return };
            let mut fits = true;
            for (t, node) in args.iter().zip(nodes) {
                if !self.unifier.assignable(t, &Type::Bool) {
                    let t = self.unifier.resolve(t, true);
                    self.mismatch(node.id, &Type::Bool, &t);
                    fits = false;
                }
            }
            self.set(id, if fits { Type::Bool } else { Type::Error });
            self.refs.insert(id, Ref::Call(function, overloads.collect()));
            return;
        }
        let mut found: Vec<&'static Overload> = Vec::new();
        let mut result: Option<Type> = None;
        for overload in overloads {
            if overload.params.len() != args.len() {
                continue;
            }
            let first = self.unifier.reserve(overload.variables);
            let params: Vec<Type> = overload.params.iter().map(|p| instantiate(p, first)).collect();
            if !self.unifier.assignable_all(args, &params) {
                continue;
            }
            found.push(overload);
            let own = self.unifier.resolve(&instantiate(&overload.result, first), false);
            result = Some(match result {
                None => own,
                Some(Type::Dyn) => Type::Dyn,
                Some(known) if known == own => known,
                Some(_) => Type::Dyn,
            });
        }
        match result {
            Some(t) => {
                self.set(id, t);
                self.refs.insert(id, Ref::Call(function, found));
            }
            None => {
                let shown: Vec<String> = args.iter().map(|t| self.unifier.resolve(t, true).to_string()).collect();
                let signature = match shown.split_first() {
                    Some((receiver, rest)) if member => format!("{receiver}.({})", rest.join(", ")),
                    _ => format!("({})", shown.join(", ")),
                };
                self.set(id, Type::Error);
                self.tell(id, format!("found no matching overload for '{}' applied to '{signature}'", function.name));
            }
        }
    }

    fn fold(&mut self, id: Id, fold: &mut Fold) {
        self.check(&mut fold.range);
        self.check(&mut fold.init);
        let range = self.get(&fold.range);
        let range = self.unifier.resolve(&range, false);
        let accu = self.get(&fold.init);
        self.locals.push((Arc::clone(&fold.accu), accu.clone()));
        let two = fold.var2.is_some();
        let (var, var2) = match &range {
            Type::List(items) if two => (Type::Int, (**items).clone()),
            Type::List(items) => ((**items).clone(), Type::Dyn),
            Type::Map(entry) => (entry.0.clone(), entry.1.clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.unifier.assignable(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                self.tell(
                    fold.range.id,
                    format!(
                        "expression of type '{other}' cannot be range of a comprehension (must be list, map, or \
                         dynamic)"
                    ),
                );
                (Type::Error, Type::Error)
            }
        };
        self.locals.push((Arc::clone(&fold.var), var));
        if let Some(name) = &fold.var2 {
            self.locals.push((Arc::clone(name), var2));
        }
        self.check(&mut fold.condition);
        self.assert(&fold.condition, &Type::Bool);
        self.check(&mut fold.step);
        self.assert(&fold.step, &accu);
        self.locals.truncate(self.locals.len() - if two { 2 } else { 1 });
        self.check(&mut fold.result);
        self.locals.pop();
        let result = self.get(&fold.result);
        let result = self.unifier.resolve(&result, false);
        self.set(id, result);
    }

    fn assert(&mut self, expr: &Expr, t: &Type) {
        let found = self.get(expr);
        if !self.unifier.assignable(t, &found) {
            self.mismatch(expr.id, t, &found);
        }
    }
}

/// `a.b.c` as a name, if it can be one.
pub fn qualified(expr: &Expr) -> Option<String> {
    match &expr.kind {
        Kind::Ident(name) => Some(name.to_string()),
        Kind::Select { operand, field, test: false } => Some(format!("{}.{field}", qualified(operand)?)),
        _ => None,
    }
}
