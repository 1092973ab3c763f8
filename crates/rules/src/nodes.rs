//! Makes the nodes of an expression.

use std::sync::Arc;

use crate::ast::{ACCU, Element, Entry, Expr, Field, Fold, Id, Kind};

/// Macros may not blow an expression up to more nodes than this.
pub const MAX_NODES: usize = 200_000;

/// Gives ids to nodes.
pub struct Nodes {
    places: Vec<u32>,
    /// Is `cel.bind` a macro here?
    pub bind: bool,
}

impl Nodes {
    /// No nodes yet.
    pub fn new(bind: bool) -> Self {
        Self { places: Vec::new(), bind }
    }

    /// Characters before each node, by its id.
    pub fn into_places(self) -> Vec<u32> {
        self.places
    }

    /// A node at a place.
    pub fn at(&mut self, place: u32, kind: Kind) -> Expr {
        Expr { id: self.id(place), kind }
    }

    /// The id of something at a place that is no node by itself.
    pub fn id(&mut self, place: u32) -> Id {
        self.places.push(place);
        Id::try_from(self.places.len() - 1).unwrap_or(Id::MAX)
    }

    /// Where a node is.
    pub fn place(&self, id: Id) -> u32 {
        self.places.get(id as usize).copied().unwrap_or(0)
    }

    /// Did macros make too many nodes?
    pub fn full(&self) -> bool {
        self.places.len() > MAX_NODES
    }

    /// A copy with ids of its own.
    pub fn copy(&mut self, expr: &Expr) -> Expr {
        if self.full() {
            return Expr { id: expr.id, kind: Kind::Broken };
        }
        let place = self.place(expr.id);
        let kind = match &expr.kind {
            Kind::Select { operand, field, test } => {
                Kind::Select { operand: Box::new(self.copy(operand)), field: Arc::clone(field), test: *test }
            }
            Kind::Call { function, target, args } => Kind::Call {
                function: Arc::clone(function),
                target: target.as_ref().map(|t| Box::new(self.copy(t))),
                args: args.iter().map(|a| self.copy(a)).collect(),
            },
            Kind::List(items) => {
                Kind::List(items.iter().map(|e| Element { value: self.copy(&e.value), optional: e.optional }).collect())
            }
            Kind::Map(entries) => Kind::Map(
                entries
                    .iter()
                    .map(|e| Entry { key: self.copy(&e.key), value: self.copy(&e.value), optional: e.optional })
                    .collect(),
            ),
            Kind::Struct { name, fields } => Kind::Struct {
                name: Arc::clone(name),
                fields: fields
                    .iter()
                    .map(|f| {
                        let place = self.place(f.id);
                        let (id, value) = (self.id(place), self.copy(&f.value));
                        Field { id, name: Arc::clone(&f.name), value, optional: f.optional }
                    })
                    .collect(),
            },
            Kind::Fold(fold) => Kind::Fold(Box::new(Fold {
                range: self.copy(&fold.range),
                var: Arc::clone(&fold.var),
                var2: fold.var2.clone(),
                accu: Arc::clone(&fold.accu),
                init: self.copy(&fold.init),
                condition: self.copy(&fold.condition),
                step: self.copy(&fold.step),
                result: self.copy(&fold.result),
            })),
            other => other.clone(),
        };
        self.at(place, kind)
    }

    /// The accumulator of a comprehension.
    pub fn accu(&mut self, place: u32) -> Expr {
        self.at(place, Kind::Ident(ACCU.into()))
    }

    /// A call of a global function.
    pub fn call(&mut self, place: u32, function: &str, args: Vec<Expr>) -> Expr {
        self.at(place, Kind::Call { function: function.into(), target: None, args })
    }

    /// A call on a value.
    pub fn member_call(&mut self, place: u32, function: &str, target: Expr, args: Vec<Expr>) -> Expr {
        self.at(place, Kind::Call { function: function.into(), target: Some(Box::new(target)), args })
    }
}
