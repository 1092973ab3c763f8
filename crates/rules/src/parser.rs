//! Text to expression, with the operators' places and the macros written out.

use std::sync::Arc;

use crate::ast::{Element, Entry, Expr, Field, Kind, Literal, op};
use crate::lexer::{self, Kind as Word, Token};
use crate::macros;
use crate::nodes::{MAX_NODES, Nodes};
use crate::source::Issues;

/// Expressions nest at most this deep, by each rule of the grammar and as a whole.
const MAX_DEPTH: u32 = 250;

/// Longer texts are not looked at.
const MAX_CHARS: usize = 100_000;

/// What may begin an expression, as it is listed to users.
const STARTS: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, \
                      BYTES, IDENTIFIER}";

/// Words that name nothing, though a field may be called so.
const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "null",
    "return",
    "true",
    "var",
    "void",
    "while",
];

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

const OR: u8 = 0;
const AND: u8 = 1;

/// How tightly an operator binds, and its function.
fn operator(kind: Word) -> Option<(u8, &'static str)> {
    Some(match kind {
        Word::Op("||") => (OR, op::OR),
        Word::Op("&&") => (AND, op::AND),
        Word::Op("==") => (2, op::EQUALS),
        Word::Op("!=") => (2, op::NOT_EQUALS),
        Word::Op("<") => (2, op::LESS),
        Word::Op("<=") => (2, op::LESS_EQUALS),
        Word::Op(">") => (2, op::GREATER),
        Word::Op(">=") => (2, op::GREATER_EQUALS),
        Word::In => (2, op::IN),
        Word::Op("+") => (3, op::ADD),
        Word::Op("-") => (3, op::SUBTRACT),
        Word::Op("*") => (4, op::MULTIPLY),
        Word::Op("/") => (4, op::DIVIDE),
        Word::Op("%") => (4, op::MODULO),
        _ => return None,
    })
}

/// May an expression begin with this?
fn starts(kind: Word) -> bool {
    match kind {
        Word::Op(op) => matches!(op, "[" | "{" | "(" | "." | "-" | "!"),
        Word::In | Word::EscapedIdent | Word::End => false,
        _ => true,
    }
}

/// May this follow an expression?
fn continues(kind: Word) -> bool {
    match kind {
        Word::Op(op) => !matches!(op, "{" | "(" | "!"),
        Word::In | Word::End => true,
        _ => false,
    }
}

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

    fn expr(&mut self) -> Result<Expr, Stop> {
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
    fn args(&mut self) -> Result<Vec<Expr>, Stop> {
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
    fn admit(&mut self, expecting: &str, also: fn(Word) -> bool) -> Result<(), Stop> {
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

    fn number(&mut self, place: u32, sign: &str, token: Token<'s>) -> Result<Expr, Stop> {
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

    /// Items between commas up to `close`, which is read too. One comma more may stand at the end.
    fn items(&mut self, close: &'static str, mut item: impl FnMut(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        let mut height = 0;
        let mut comma = self.eat(",");
        while !comma && !self.is(close) {
            self.height = 0;
            item(self)?;
            height = height.max(self.height);
            comma = self.eat(",");
            if !comma {
                break;
            }
            comma = !(starts(self.peek().kind) || self.is("?"));
        }
        self.height = height;
        if comma {
            self.expect(close, &format!("'{close}'"), continues)
        } else {
            self.expect(close, &format!("{{'{close}', ','}}"), |_| false)
        }
    }

    fn list(&mut self) -> Result<Expr, Stop> {
        let open = self.bump().offset;
        let mut items = Vec::new();
        self.items("]", |parser| {
            let optional = parser.eat("?");
            items.push(Element { value: parser.expr()?, optional });
            Ok(())
        })?;
        Ok(self.nodes.at(open, Kind::List(items)))
    }

    fn map(&mut self) -> Result<Expr, Stop> {
        let open = self.bump().offset;
        let mut entries = Vec::new();
        self.items("}", |parser| {
            let optional = parser.eat("?");
            let key = parser.expr()?;
            let height = parser.height;
            parser.expect(":", "':'", starts)?;
            let value = parser.expr()?;
            parser.height = height.max(parser.height);
            entries.push(Entry { key, value, optional });
            Ok(())
        })?;
        Ok(self.nodes.at(open, Kind::Map(entries)))
    }

    /// A name, a call of a global function, or a struct.
    fn name(&mut self) -> Result<Expr, Stop> {
        let first = self.peek();
        let dot = if self.eat(".") { "." } else { "" };
        let token = self.peek();
        if token.kind != Word::Ident {
            return self.no_viable(first);
        }
        if let Some(end) = self.struct_name() {
            return self.structure(dot, end);
        }
        self.bump();
        if RESERVED.contains(&token.text) {
            self.issues.add(Some(first.offset), format!("reserved identifier: {}", token.text));
            if self.eat("(") {
                self.args()?;
            }
            return Ok(self.nodes.at(first.offset, Kind::Broken));
        }
        let name = format!("{dot}{}", token.text);
        if self.is("(") {
            let open = self.bump().offset;
            let args = self.args()?;
            return self.expand(open, &name, None, args);
        }
        Ok(self.nodes.at(token.offset, Kind::Ident(name.into())))
    }

    /// If `a.b.c {` is here: where the brace is.
    fn struct_name(&self) -> Option<usize> {
        let mut at = self.at;
        loop {
            (self.tokens.get(at)?.kind == Word::Ident).then_some(())?;
            match self.tokens.get(at + 1)?.kind {
                Word::Op("{") => return Some(at + 1),
                Word::Op(".") => at += 2,
                _ => return None,
            }
        }
    }

    fn structure(&mut self, dot: &str, brace: usize) -> Result<Expr, Stop> {
        let mut name = dot.to_owned();
        while self.at < brace {
            name.push_str(self.bump().text);
        }
        let open = self.bump().offset;
        let mut fields = Vec::new();
        self.items("}", |parser| {
            parser.eat("?");
            let token = parser.peek();
            if !matches!(token.kind, Word::Ident | Word::EscapedIdent) {
                return parser.unexpected("mismatched", "{'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}");
            }
            parser.bump();
            parser.expect(":", "':'", starts)?;
            fields.push(Field { name: token.text.trim_matches('`').into(), value: parser.expr()? });
            Ok(())
        })?;
        Ok(self.nodes.at(open, Kind::Struct { name: name.into(), fields }))
    }

    /// A call, or what the macro of this name makes of it.
    fn expand(&mut self, open: u32, name: &str, target: Option<Expr>, args: Vec<Expr>) -> Result<Expr, Stop> {
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
