//! Expressions from the loosest operator to the tightest: conditions, operators, signs, members, and what
//! stands alone.

use std::sync::Arc;

use super::words::{AND, OR, STARTS, continues, operator, starts};
use super::{Parser, Stop};
use crate::ast::{Expr, Kind, Literal, op};
use crate::lexer::{self, Kind as Word, Token};
use crate::macros;
use crate::nodes::MAX_NODES;

impl<'s> Parser<'s> {
    pub(super) fn expr(&mut self) -> Result<Expr, Stop> {
        self.enter()?;
        let condition = self.binary(OR)?;
        let out = if self.is("?") {
            let place = self.bump().offset;
            let mut height = self.height;
            let yes = self.binary(OR)?;
            height = height.max(self.height);
            self.expect(":", "':'", starts)?;
            let no = self.expr()?;
            height = height.max(self.height);
            self.raise(height)?;
            self.nodes.call(place, op::CONDITIONAL, vec![condition, yes, no])
        } else {
            condition
        };
        self.expr_depth -= 1;
        Ok(out)
    }

    /// Operators that bind at least as tightly as `least`. A chain of `&&` or `||` becomes a balanced tree:
    /// the order of its terms is kept.
    fn binary(&mut self, least: u8) -> Result<Expr, Stop> {
        let mut left = self.unary()?;
        while let Some((level, function)) = operator(self.peek().kind).filter(|(level, _)| *level >= least) {
            let mut height = self.height;
            if level <= AND {
                let mut terms = vec![left];
                let mut places = Vec::new();
                while operator(self.peek().kind).is_some_and(|(own, _)| own == level) {
                    places.push(self.bump().offset);
                    terms.push(self.binary(level + 1)?);
                    height = height.max(self.height);
                }
                self.height = height;
                left = self.balance(function, &mut terms.into_iter(), &places);
            } else {
                let place = self.bump().offset;
                let right = self.binary(level + 1)?;
                self.raise(height.max(self.height))?;
                left = self.nodes.call(place, function, vec![left, right]);
            }
        }
        Ok(left)
    }

    fn balance(&mut self, function: &str, terms: &mut dyn Iterator<Item = Expr>, places: &[u32]) -> Expr {
        let middle = places.len() / 2;
        let Some(place) = places.get(middle) else {
            return terms.next().unwrap_or(Expr { id: 0, kind: Kind::Broken });
        };
        let left = self.balance(function, terms, places.get(..middle).unwrap_or(&[]));
        let right = self.balance(function, terms, places.get(middle + 1..).unwrap_or(&[]));
        self.nodes.call(*place, function, vec![left, right])
    }

    fn unary(&mut self) -> Result<Expr, Stop> {
        let first = self.peek();
        let (sign, function) = match first.kind {
            Word::Op("!") => ("!", op::NOT),
            Word::Op("-") if !self.signed() => ("-", op::NEGATE),
            _ => return self.member(),
        };
        let mut count = 0;
        while self.is(sign) {
            self.bump();
            count += 1;
        }
        let operand = self.member()?;
        if count % 2 == 0 {
            return Ok(operand);
        }
        Ok(self.nodes.call(first.offset, function, vec![operand]))
    }

    /// Does a number with its sign begin here?
    fn signed(&self) -> bool {
        self.is("-") && matches!(self.tokens.get(self.at + 1).map(|t| t.kind), Some(Word::Int | Word::Float))
    }

    fn member(&mut self) -> Result<Expr, Stop> {
        let mut out = self.primary()?;
        loop {
            out = if self.is(".") {
                self.dot(out)?
            } else if self.is("[") {
                self.index(out)?
            } else {
                return Ok(out);
            };
        }
    }

    fn dot(&mut self, operand: Expr) -> Result<Expr, Stop> {
        let dot = self.bump();
        let optional = self.eat("?");
        let name = self.peek();
        let height = self.height;
        let field: Arc<str> = match name.kind {
            Word::Ident => name.text.into(),
            Word::EscapedIdent => name.text.trim_matches('`').into(),
            Word::True | Word::False | Word::Null if !optional => return self.unexpected("mismatched", "IDENTIFIER"),
            _ if optional => return self.unexpected("mismatched", "{IDENTIFIER, ESC_IDENTIFIER}"),
            // What follows a dot is one alternative with the dot, so both are named.
            _ => return self.no_viable(dot),
        };
        self.bump();
        if optional {
            self.raise(height)?;
            let literal = self.nodes.at(name.offset, Kind::Literal(Literal::String(field)));
            return Ok(self.nodes.call(dot.offset, op::OPT_SELECT, vec![operand, literal]));
        }
        if name.kind == Word::Ident && self.is("(") {
            let open = self.bump().offset;
            let args = self.args()?;
            self.raise(height.max(self.height))?;
            return self.expand(open, &field, Some(operand), args);
        }
        self.raise(height)?;
        Ok(self.nodes.at(dot.offset, Kind::Select { operand: Box::new(operand), field, test: false }))
    }

    fn index(&mut self, operand: Expr) -> Result<Expr, Stop> {
        let height = self.height;
        let open = self.bump().offset;
        self.admit(&STARTS.replace("'!', ", "'!', '?', "), |kind| kind == Word::Op("?"))?;
        let function = if self.eat("?") { op::OPT_INDEX } else { op::INDEX };
        let index = self.expr()?;
        self.expect("]", "']'", continues)?;
        self.raise(height.max(self.height))?;
        Ok(self.nodes.call(open, function, vec![operand, index]))
    }

    /// The arguments and the closing parenthesis.
    pub(super) fn args(&mut self) -> Result<Vec<Expr>, Stop> {
        let mut args = Vec::new();
        let mut height = 0;
        self.height = 0;
        self.admit(&STARTS.replace("'(', ", "'(', ')', "), |kind| kind == Word::Op(")"))?;
        if !self.is(")") {
            loop {
                args.push(self.expr()?);
                height = height.max(self.height);
                if !self.eat(",") {
                    break;
                }
            }
        }
        self.height = height;
        self.expect(")", "')'", continues).map(|()| args)
    }

    fn primary(&mut self) -> Result<Expr, Stop> {
        let token = self.peek();
        self.height = 0;
        match token.kind {
            Word::Op("(") => {
                self.bump();
                let inner = self.expr()?;
                self.expect(")", "')'", continues)?;
                Ok(inner)
            }
            Word::Op("[") => self.list(),
            Word::Op("{") => self.map(),
            Word::Op(".") | Word::Ident => self.name(),
            Word::Op("-") if self.signed() => {
                self.bump();
                let number = self.bump();
                self.number(token.offset, "-", number)
            }
            Word::Int | Word::Uint | Word::Float => {
                self.bump();
                self.number(token.offset, "", token)
            }
            Word::String | Word::Bytes => {
                self.bump();
                let bytes = token.kind == Word::Bytes;
                let literal = match lexer::unquote(token.text, bytes) {
                    Ok(value) if bytes => Literal::Bytes(value.into()),
                    Ok(value) => Literal::String(String::from_utf8_lossy(&value).into()),
                    Err(message) => {
                        self.issues.add(Some(token.offset), message);
                        Literal::Null
                    }
                };
                Ok(self.nodes.at(token.offset, Kind::Literal(literal)))
            }
            Word::True | Word::False => {
                self.bump();
                Ok(self.nodes.at(token.offset, Kind::Literal(Literal::Bool(token.kind == Word::True))))
            }
            Word::Null => {
                self.bump();
                Ok(self.nodes.at(token.offset, Kind::Literal(Literal::Null)))
            }
            // Signs of two kinds do not follow each other.
            Word::Op("-") => {
                self.bump();
                self.no_viable(token)
            }
            Word::Op("!") => {
                let before = self.at.checked_sub(1).and_then(|at| self.tokens.get(at)).copied();
                self.no_viable(before.unwrap_or(token))
            }
            _ => {
                self.enter()?;
                self.admit(STARTS, |_| false)?;
                let operand = self.unary()?;
                self.expr_depth -= 1;
                Ok(operand)
            }
        }
    }

    /// An expression, or what `also` allows, must begin here. One word too many is skipped.
    pub(super) fn admit(&mut self, expecting: &str, also: fn(Word) -> bool) -> Result<(), Stop> {
        let fits = |kind: Word| starts(kind) || also(kind);
        if fits(self.peek().kind) {
            return Ok(());
        }
        let next = self.tokens.get(self.at + 1).map(|t| t.kind);
        if next.is_some_and(fits) {
            let _: Result<(), Stop> = self.unexpected("extraneous", expecting);
            self.bump();
            return Ok(());
        }
        let _: Result<(), Stop> = self.unexpected("mismatched", expecting);
        if next == Some(Word::End) && self.expr_depth == 2 && expecting == STARTS {
            self.bump();
            return self.unexpected("mismatched", expecting);
        }
        Err(Stop)
    }

    pub(super) fn number(&mut self, place: u32, sign: &str, token: Token<'s>) -> Result<Expr, Stop> {
        let hex = token.text.strip_prefix("0x");
        let literal = match token.kind {
            Word::Int => {
                let digits = format!("{sign}{}", hex.unwrap_or(token.text));
                i64::from_str_radix(&digits, if hex.is_some() { 16 } else { 10 }).map(Literal::Int).map_err(|_| "int")
            }
            Word::Uint => {
                let digits = hex.unwrap_or(token.text).trim_end_matches(['u', 'U']);
                u64::from_str_radix(digits, if hex.is_some() { 16 } else { 10 }).map(Literal::Uint).map_err(|_| "uint")
            }
            _ => match format!("{sign}{}", token.text).parse::<f64>() {
                Ok(value) if value.is_finite() => Ok(Literal::Double(value)),
                _ => Err("double"),
            },
        };
        let literal = literal.unwrap_or_else(|what| {
            self.issues.add(Some(place), format!("invalid {what} literal"));
            Literal::Null
        });
        Ok(self.nodes.at(place, Kind::Literal(literal)))
    }

    /// A call, or what the macro of this name makes of it.
    pub(super) fn expand(
        &mut self,
        open: u32,
        name: &str,
        target: Option<Expr>,
        args: Vec<Expr>,
    ) -> Result<Expr, Stop> {
        match macros::expand(&mut self.nodes, open, name, target, args) {
            Ok(_) if self.nodes.full() => {
                self.issues
                    .add(None, format!("expression grows beyond {MAX_NODES} nodes when its macros are written out"));
                Err(Stop)
            }
            Ok(expr) => Ok(expr),
            Err((place, message)) => {
                self.issues.add(Some(place), message);
                Ok(self.nodes.at(place, Kind::Broken))
            }
        }
    }
}
