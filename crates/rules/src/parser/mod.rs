//! Text to expression, with the operators' places and the macros written out.
//!
//! ```text
//!  parse ─► start ─► expressions.rs ─► composites.rs ─► expressions.rs …
//!                    a ? b : c, a + b   [a, b], {a: b}, T{f: a}
//! ```

mod composites;
mod expressions;
mod words;

use crate::ast::Expr;
use crate::lexer::{self, Kind as Word, Token};
use crate::nodes::{MAX_NODES, Nodes};
use crate::source::Issues;

/// Expressions nest at most this deep, by each rule of the grammar and as a whole.
const MAX_DEPTH: u32 = 250;

/// Longer texts are not looked at.
const MAX_CHARS: usize = 100_000;

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Parsed {
    pub expr: Expr,
    /// Characters before each node, by its id.
    pub places: Vec<u32>,
}

/// Parses `text`. With `bind` the macro `cel.bind` is known.
pub fn parse(text: &str, bind: bool) -> Result<Parsed, Issues> {
    let mut issues = Issues::default();
    let chars = text.chars().count();
    if chars > MAX_CHARS {
        issues.add(None, format!("expression code point size exceeds limit: size: {chars}, limit {MAX_CHARS}"));
        return Err(issues);
    }
    let tokens = lexer::tokens(text, &mut issues);
    let mut parser = Parser { text, tokens, at: 0, nodes: Nodes::new(bind), issues, expr_depth: 0, height: 0 };
    let expr = match parser.start() {
        Ok(expr) => expr,
        Err(Stop) => return Err(parser.issues),
    };
    if parser.issues.is_empty() { Ok(Parsed { expr, places: parser.nodes.into_places() }) } else { Err(parser.issues) }
}

/// A mistake after which the rest of the text cannot be understood; it is in the issues.
struct Stop;

struct Parser<'s> {
    text: &'s str,
    tokens: Vec<Token<'s>>,
    at: usize,
    nodes: Nodes,
    issues: Issues,
    expr_depth: u32,
    /// How high the tree is that was parsed last.
    height: u32,
}

impl<'s> Parser<'s> {
    fn peek(&self) -> Token<'s> {
        self.tokens.get(self.at).or(self.tokens.last()).copied().unwrap_or(Token::END)
    }

    fn bump(&mut self) -> Token<'s> {
        let token = self.peek();
        self.at = (self.at + 1).min(self.tokens.len().saturating_sub(1));
        token
    }

    fn is(&self, op: &str) -> bool {
        matches!(self.peek().kind, Word::Op(o) if o == op)
    }

    fn eat(&mut self, op: &str) -> bool {
        let yes = self.is(op);
        if yes {
            self.bump();
        }
        yes
    }

    fn syntax<T>(&mut self, message: &str) -> Result<T, Stop> {
        let place = self.peek().offset;
        self.issues.add(Some(place), format!("Syntax error: {message}"));
        Err(Stop)
    }

    fn unexpected<T>(&mut self, verb: &str, expecting: &str) -> Result<T, Stop> {
        let found = self.peek().text;
        self.syntax(&format!("{verb} input '{}' expecting {expecting}", lexer::escape(found)))
    }

    /// `op` must follow. One word too many is skipped, and where only `op` is missing the rest is read on:
    /// so that other mistakes are told as well. `after` says what may follow `op`.
    fn expect(&mut self, op: &'static str, expecting: &str, after: fn(Word) -> bool) -> Result<(), Stop> {
        if self.eat(op) {
            return Ok(());
        }
        if matches!(self.tokens.get(self.at + 1), Some(next) if matches!(next.kind, Word::Op(o) if o == op)) {
            let _: Result<(), Stop> = self.unexpected("extraneous", expecting);
            self.bump();
            self.bump();
            return Ok(());
        }
        if after(self.peek().kind) {
            let found = lexer::escape(self.peek().text);
            let _: Result<(), Stop> = self.syntax(&format!("missing '{op}' at '{found}'"));
            return Ok(());
        }
        self.unexpected("mismatched", expecting)
    }

    /// A node above trees of these heights.
    fn raise(&mut self, height: u32) -> Result<(), Stop> {
        self.height = height + 1;
        if self.height > MAX_DEPTH {
            return self.too_deep("max recursion depth exceeded".to_owned());
        }
        Ok(())
    }

    fn too_deep<T>(&mut self, message: String) -> Result<T, Stop> {
        self.issues = Issues::default();
        self.issues.add(None, message);
        Err(Stop)
    }

    fn start(&mut self) -> Result<Expr, Stop> {
        let expr = self.expr()?;
        if self.peek().kind != Word::End {
            let verb = if self.at + 2 == self.tokens.len() { "extraneous" } else { "mismatched" };
            return self.unexpected(verb, "<EOF>");
        }
        if self.nodes.full() {
            self.issues.add(None, format!("expression grows beyond {MAX_NODES} nodes when its macros are written out"));
            return Err(Stop);
        }
        Ok(expr)
    }

    /// One level deeper.
    fn enter(&mut self) -> Result<(), Stop> {
        self.expr_depth += 1;
        if self.expr_depth > MAX_DEPTH {
            return self.too_deep(format!("expression recursion limit exceeded: {MAX_DEPTH}"));
        }
        Ok(())
    }

    /// From `first` to here there is no reading of the words.
    fn no_viable<T>(&mut self, first: Token<'s>) -> Result<T, Stop> {
        let shown = lexer::escape(first.through(&self.peek(), self.text));
        self.syntax(&format!("no viable alternative at input '{shown}'"))
    }
}
