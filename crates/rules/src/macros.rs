//! The macros: what looks like a call and is written out before it is checked.
//!
//! ```text
//! l.all(x, p)     fold l as x into @result = true  while @not_strictly_false(@result) by @result && p
//! l.filter(x, p)  fold l as x into @result = []    by p ? @result + [x] : @result
//! o.optMap(x, e)  o.hasValue() ? optional.of(fold [] into x = o.value() giving e) : optional.none()
//! ```

use std::sync::Arc;

use crate::ast::{ACCU, Element, Expr, Fold, Kind, Literal, op};
use crate::nodes::Nodes;

/// Where a macro's arguments are wrong, and how.
type Mistake = (u32, String);

const NO_NAME: &str = "argument must be a simple name";

/// The call, or what it stands for. `place` is the opening parenthesis.
pub fn expand(
    nodes: &mut Nodes,
    place: u32,
    name: &str,
    target: Option<Expr>,
    args: Vec<Expr>,
) -> Result<Expr, Mistake> {
    match target {
        None if name == "has" && args.len() == 1 => has(nodes, place, args),
        None => Ok(nodes.call(place, name, args)),
        Some(target) => member(nodes, place, name, target, args),
    }
}

fn mistake<T>(place: u32, message: &str) -> Result<T, Mistake> {
    Err((place, message.to_owned()))
}

fn member(nodes: &mut Nodes, place: u32, name: &str, target: Expr, args: Vec<Expr>) -> Result<Expr, Mistake> {
    let two = args.len();
    match (name, two) {
        ("all" | "exists" | "exists_one", 2 | 3) | ("existsOne", 3) => quantifier(nodes, place, name, target, args),
        ("map", 2 | 3) => map(nodes, place, target, args),
        ("filter", 2) => filter(nodes, place, target, args),
        ("transformList" | "transformMap" | "transformMapEntry", 3 | 4) => transform(nodes, place, name, target, args),
        ("optMap" | "optFlatMap", 2) => opt_map(nodes, place, name, target, args),
        ("sortBy", 2) => sort_by(nodes, place, target, args),
        ("bind", 3) if nodes.bind && matches!(&target.kind, Kind::Ident(cel) if &**cel == "cel") => {
            bind(nodes, place, args)
        }
        _ => Ok(nodes.member_call(place, name, target, args)),
    }
}

fn has(nodes: &mut Nodes, place: u32, args: Vec<Expr>) -> Result<Expr, Mistake> {
    let Some(arg) = args.into_iter().next() else { return mistake(place, "invalid argument to has() macro") };
    match arg.kind {
        Kind::Select { operand, field, .. } => Ok(nodes.at(place, Kind::Select { operand, field, test: true })),
        _ => mistake(nodes.place(arg.id), "invalid argument to has() macro"),
    }
}

/// The name that an argument is.
fn ident(nodes: &Nodes, arg: &Expr, otherwise: &'static str) -> Result<Arc<str>, Mistake> {
    let Kind::Ident(name) = &arg.kind else { return mistake(nodes.place(arg.id), otherwise) };
    if matches!(&**name, ACCU | "__result__") {
        return mistake(nodes.place(arg.id), "iteration variable overwrites accumulator variable");
    }
    Ok(Arc::clone(name))
}

/// The two names that the first arguments are; the rest follows.
fn two_names(nodes: &Nodes, args: &[Expr]) -> Result<(Arc<str>, Arc<str>), Mistake> {
    let [first, second, ..] = args else { return mistake(0, NO_NAME) };
    let names = (ident(nodes, first, NO_NAME)?, ident(nodes, second, NO_NAME)?);
    if names.0 == names.1 {
        return Err((nodes.place(second.id), format!("duplicate variable name: {}", names.0)));
    }
    Ok(names)
}

struct Loop {
    range: Expr,
    var: Arc<str>,
    var2: Option<Arc<str>>,
}

impl Loop {
    fn fold(self, nodes: &mut Nodes, place: u32, init: Kind, condition: Expr, step: Expr, result: Expr) -> Expr {
        let init = nodes.at(place, init);
        let Self { range, var, var2 } = self;
        nodes.at(
            place,
            Kind::Fold(Box::new(Fold { range, var, var2, accu: ACCU.into(), init, condition, step, result })),
        )
    }

    fn all_of(self, nodes: &mut Nodes, place: u32, init: Kind, step: Expr) -> Expr {
        let condition = nodes.at(place, Kind::Literal(Literal::Bool(true)));
        let result = nodes.accu(place);
        self.fold(nodes, place, init, condition, step, result)
    }
}

fn quantifier(nodes: &mut Nodes, place: u32, name: &str, range: Expr, args: Vec<Expr>) -> Result<Expr, Mistake> {
    let (var, var2) = if args.len() == 3 {
        let (first, second) = two_names(nodes, &args)?;
        (first, Some(second))
    } else {
        (args.first().map_or_else(|| mistake(place, NO_NAME), |a| ident(nodes, a, NO_NAME))?, None)
    };
    let Some(predicate) = args.into_iter().next_back() else { return mistake(place, NO_NAME) };
    let walk = Loop { range, var, var2 };
    let accu = nodes.accu(place);
    Ok(match name {
        "all" => {
            let condition = nodes.call(place, op::NOT_STRICTLY_FALSE, vec![accu]);
            let accu = nodes.accu(place);
            let step = nodes.call(place, op::AND, vec![accu, predicate]);
            let result = nodes.accu(place);
            walk.fold(nodes, place, Kind::Literal(Literal::Bool(true)), condition, step, result)
        }
        "exists" => {
            let not = nodes.call(place, op::NOT, vec![accu]);
            let condition = nodes.call(place, op::NOT_STRICTLY_FALSE, vec![not]);
            let accu = nodes.accu(place);
            let step = nodes.call(place, op::OR, vec![accu, predicate]);
            let result = nodes.accu(place);
            walk.fold(nodes, place, Kind::Literal(Literal::Bool(false)), condition, step, result)
        }
        _ => {
            let one = nodes.at(place, Kind::Literal(Literal::Int(1)));
            let more = nodes.call(place, op::ADD, vec![accu, one]);
            let same = nodes.accu(place);
            let step = nodes.call(place, op::CONDITIONAL, vec![predicate, more, same]);
            let condition = nodes.at(place, Kind::Literal(Literal::Bool(true)));
            let accu = nodes.accu(place);
            let one = nodes.at(place, Kind::Literal(Literal::Int(1)));
            let result = nodes.call(place, op::EQUALS, vec![accu, one]);
            walk.fold(nodes, place, Kind::Literal(Literal::Int(0)), condition, step, result)
        }
    })
}

/// `@result + [value]`.
fn append(nodes: &mut Nodes, place: u32, value: Expr) -> Expr {
    let accu = nodes.accu(place);
    let list = nodes.at(place, Kind::List(vec![Element { value, optional: false }]));
    nodes.call(place, op::ADD, vec![accu, list])
}

/// `filter ? step : @result`.
fn only_if(nodes: &mut Nodes, place: u32, filter: Option<Expr>, step: Expr) -> Expr {
    match filter {
        Some(filter) => {
            let accu = nodes.accu(place);
            nodes.call(place, op::CONDITIONAL, vec![filter, step, accu])
        }
        None => step,
    }
}

fn map(nodes: &mut Nodes, place: u32, range: Expr, args: Vec<Expr>) -> Result<Expr, Mistake> {
    let mut args = args.into_iter();
    let var =
        args.next().map_or_else(|| mistake(place, NO_NAME), |a| ident(nodes, &a, "argument is not an identifier"))?;
    let Some(value) = args.next_back() else { return mistake(place, NO_NAME) };
    let step = append(nodes, place, value);
    let step = only_if(nodes, place, args.next(), step);
    Ok(Loop { range, var, var2: None }.all_of(nodes, place, Kind::List(Vec::new()), step))
}

fn filter(nodes: &mut Nodes, place: u32, range: Expr, args: Vec<Expr>) -> Result<Expr, Mistake> {
    let mut args = args.into_iter();
    let (Some(name), Some(predicate)) = (args.next(), args.next()) else { return mistake(place, NO_NAME) };
    let var = ident(nodes, &name, "argument is not an identifier")?;
    let step = append(nodes, place, name);
    let step = only_if(nodes, place, Some(predicate), step);
    Ok(Loop { range, var, var2: None }.all_of(nodes, place, Kind::List(Vec::new()), step))
}

fn transform(nodes: &mut Nodes, place: u32, name: &str, range: Expr, args: Vec<Expr>) -> Result<Expr, Mistake> {
    let (var, var2) = two_names(nodes, &args)?;
    let mut args = args.into_iter().skip(2);
    let Some(value) = args.next_back() else { return mistake(place, NO_NAME) };
    let filter = args.next();
    let step = match name {
        "transformList" => append(nodes, place, value),
        "transformMap" => {
            let accu = nodes.accu(place);
            let key = nodes.at(place, Kind::Ident(Arc::clone(&var)));
            nodes.call(place, op::MAP_INSERT, vec![accu, key, value])
        }
        _ => {
            let accu = nodes.accu(place);
            nodes.call(place, op::MAP_INSERT, vec![accu, value])
        }
    };
    let step = only_if(nodes, place, filter, step);
    let init = if name == "transformList" { Kind::List(Vec::new()) } else { Kind::Map(Vec::new()) };
    Ok(Loop { range, var, var2: Some(var2) }.all_of(nodes, place, init, step))
}

/// `fold [] into name = value giving body`.
fn named(nodes: &mut Nodes, place: u32, name: Arc<str>, value: Expr, body: Expr) -> Expr {
    let range = nodes.at(place, Kind::List(Vec::new()));
    let condition = nodes.at(place, Kind::Literal(Literal::Bool(false)));
    let step = nodes.at(place, Kind::Ident(Arc::clone(&name)));
    let fold =
        Fold { range, var: "#unused".into(), var2: None, accu: name, init: value, condition, step, result: body };
    nodes.at(place, Kind::Fold(Box::new(fold)))
}

fn bind(nodes: &mut Nodes, place: u32, args: Vec<Expr>) -> Result<Expr, Mistake> {
    let mut args = args.into_iter();
    let (Some(name), Some(value), Some(body)) = (args.next(), args.next(), args.next()) else {
        return mistake(place, NO_NAME);
    };
    let Kind::Ident(var) = &name.kind else {
        return mistake(nodes.place(name.id), "cel.bind() variable names must be simple identifiers");
    };
    let var = Arc::clone(var);
    Ok(named(nodes, place, var, value, body))
}

fn opt_map(nodes: &mut Nodes, place: u32, name: &str, target: Expr, args: Vec<Expr>) -> Result<Expr, Mistake> {
    let mut args = args.into_iter();
    let (Some(var), Some(body)) = (args.next(), args.next()) else { return mistake(place, NO_NAME) };
    let flat = name == "optFlatMap";
    let Kind::Ident(var_name) = &var.kind else {
        let message = if flat {
            "optFlatMap() variable name must be a simple identifier"
        } else {
            "optMap() variable name must be a simple identifier"
        };
        return mistake(nodes.place(var.id), message);
    };
    let copy = nodes.copy(&target);
    let has = nodes.member_call(place, "hasValue", target, Vec::new());
    let value = nodes.member_call(place, "value", copy, Vec::new());
    let mut result = named(nodes, place, Arc::clone(var_name), value, body);
    if !flat {
        result = nodes.call(place, "optional.of", vec![result]);
    }
    let none = nodes.call(place, "optional.none", Vec::new());
    Ok(nodes.call(place, op::CONDITIONAL, vec![has, result, none]))
}

fn sort_by(nodes: &mut Nodes, place: u32, target: Expr, args: Vec<Expr>) -> Result<Expr, Mistake> {
    if matches!(target.kind, Kind::Literal(_) | Kind::Map(_) | Kind::Struct { .. }) {
        return mistake(
            nodes.place(target.id),
            "sortBy can only be applied to a list, identifier, comprehension, call or select expression",
        );
    }
    let input: Arc<str> = "@__sortBy_input__".into();
    let range = nodes.at(place, Kind::Ident(Arc::clone(&input)));
    let keys = map(nodes, place, range, args)?;
    let list = nodes.at(place, Kind::Ident(Arc::clone(&input)));
    let sorted = nodes.member_call(place, "@sortByAssociatedKeys", list, vec![keys]);
    Ok(named(nodes, place, input, target, sorted))
}
