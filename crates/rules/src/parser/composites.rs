//! What has parts between brackets and commas: lists, maps, structures, and the names that begin these.

use super::words::{RESERVED, continues, starts};
use super::{Parser, Stop};
use crate::ast::{Element, Entry, Expr, Field, Kind};
use crate::lexer::Kind as Word;

impl Parser<'_> {
    /// Items between commas up to `close`, which is read too. One comma more may stand at the end.
    pub(super) fn items(
        &mut self,
        close: &'static str,
        mut item: impl FnMut(&mut Self) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
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

    pub(super) fn list(&mut self) -> Result<Expr, Stop> {
        let open = self.bump().offset;
        let mut items = Vec::new();
        self.items("]", |parser| {
            let optional = parser.eat("?");
            items.push(Element { value: parser.expr()?, optional });
            Ok(())
        })?;
        Ok(self.nodes.at(open, Kind::List(items)))
    }

    pub(super) fn map(&mut self) -> Result<Expr, Stop> {
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
    pub(super) fn name(&mut self) -> Result<Expr, Stop> {
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
            let optional = parser.eat("?");
            let token = parser.peek();
            if !matches!(token.kind, Word::Ident | Word::EscapedIdent) {
                return parser.unexpected("mismatched", "{'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}");
            }
            parser.bump();
            let colon = parser.peek().offset;
            parser.expect(":", "':'", starts)?;
            let id = parser.nodes.id(colon);
            fields.push(Field { id, name: token.text.trim_matches('`').into(), value: parser.expr()?, optional });
            Ok(())
        })?;
        Ok(self.nodes.at(open, Kind::Struct { name: name.into(), fields }))
    }
}
