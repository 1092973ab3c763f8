//! What is wrong with an expression although its types fit: literals that convert to nothing, lists of
//! mixed types, templates that do not match their arguments.

use crate::ast::{Expr, Kind, Literal};
use crate::checker::Checked;
use crate::library;
use crate::source::Issues;
use crate::time::Timestamp;
use crate::types::Type;

/// The mistakes in a checked expression.
pub fn validate(checked: &Checked) -> Issues {
    let mut validator = Validator { checked, issues: Issues::default() };
    validator.visit(&checked.expr, false);
    validator.issues
}

struct Validator<'c> {
    checked: &'c Checked,
    issues: Issues,
}

impl Validator<'_> {
    fn tell(&mut self, at: &Expr, message: String) {
        self.issues.add(self.checked.places.get(at.id as usize).copied(), message);
    }

    /// `mixed`: within the arguments of `format`, where lists may hold anything.
    fn visit(&mut self, expr: &Expr, mixed: bool) {
        match &expr.kind {
            Kind::Literal(_) | Kind::Ident(_) | Kind::Broken => {}
            Kind::Select { operand, .. } => self.visit(operand, mixed),
            Kind::Call { function, target, args } => {
                self.literal(function, args);
                if &**function == "format" {
                    self.template(expr, target.as_deref(), args);
                }
                let mixed = mixed || &**function == "format";
                for part in target.iter().map(|t| &**t).chain(args) {
                    self.visit(part, mixed);
                }
            }
            Kind::List(items) => {
                if !mixed {
                    let types = items.iter().map(|i| {
                        let t = self.checked.type_of(i.value.id);
                        (&i.value, if i.optional { t.unwrap_optional().0 } else { t })
                    });
                    if let Some((at, message)) = first_other(types) {
                        self.tell(at, message);
                    }
                }
                for item in items {
                    self.visit(&item.value, mixed);
                }
            }
            Kind::Map(entries) => {
                if !mixed {
                    let type_of = |e: &Expr| self.checked.type_of(e.id);
                    let mut wrong = Vec::new();
                    if let Some(first) = entries.first() {
                        let (key, value) = (type_of(&first.key), type_of(&first.value));
                        let value = if first.optional { value.unwrap_optional().0 } else { value };
                        for entry in entries.iter().skip(1) {
                            wrong.extend(other(key, &entry.key, type_of(&entry.key)));
                            let own = type_of(&entry.value);
                            let own = if entry.optional { own.unwrap_optional().0 } else { own };
                            wrong.extend(other(value, &entry.value, own));
                        }
                    }
                    for (at, message) in wrong {
                        self.tell(at, message);
                    }
                }
                for entry in entries {
                    self.visit(&entry.key, mixed);
                    self.visit(&entry.value, mixed);
                }
            }
            Kind::Struct { fields, .. } => {
                for field in fields {
                    self.visit(&field.value, mixed);
                }
            }
            Kind::Fold(fold) => {
                for part in [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result] {
                    self.visit(part, mixed);
                }
            }
        }
    }

    fn literal(&mut self, function: &str, args: &[Expr]) {
        let Some(arg) = args.first() else { return };
        let Kind::Literal(literal) = &arg.kind else { return };
        let wrong = match (function, literal) {
            ("duration", Literal::String(s)) => machinery::time::read_duration(s).is_err(),
            ("timestamp", Literal::String(s)) => Timestamp::parse(s).is_err(),
            ("timestamp", Literal::Int(i)) => Timestamp::from_seconds(*i).is_err(),
            ("matches", Literal::String(s)) => machinery::regexp::check(s).is_err(),
            _ => false,
        };
        if wrong {
            self.tell(arg, format!("invalid {function} argument"));
        }
    }

    fn template(&mut self, call: &Expr, target: Option<&Expr>, args: &[Expr]) {
        let (Some(target), [list]) = (target, args) else { return };
        let (Kind::Literal(Literal::String(template)), Kind::List(items)) = (&target.kind, &list.kind) else { return };
        let items: Vec<&Expr> = items.iter().map(|i| &i.value).collect();
        if let Some((id, message)) = library::check_format(self.checked, call.id, template, &items) {
            self.issues.add(self.checked.places.get(id as usize).copied(), message);
        }
    }
}

fn other<'e>(expected: &Type, at: &'e Expr, found: &Type) -> Option<(&'e Expr, String)> {
    (expected != found).then(|| (at, format!("expected type '{expected}' but found '{found}'")))
}

fn first_other<'e, 't>(mut types: impl Iterator<Item = (&'e Expr, &'t Type)>) -> Option<(&'e Expr, String)> {
    let (_, first) = types.next()?;
    types.find_map(|(at, t)| other(first, at, t))
}
