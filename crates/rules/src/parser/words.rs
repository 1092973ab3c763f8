//! What words of the grammar mean by themselves: operators and how tightly they bind, what may begin an
//! expression and what may follow one, words that name nothing.

use crate::ast::op;
use crate::lexer::Kind as Word;

/// What may begin an expression, as it is listed to users.
pub(super) const STARTS: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, \
                      BYTES, IDENTIFIER}";

/// Words that name nothing, though a field may be called so.
pub(super) const RESERVED: [&str; 21] = [
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

pub(super) const OR: u8 = 0;
pub(super) const AND: u8 = 1;

/// How tightly an operator binds, and its function.
pub(super) fn operator(kind: Word) -> Option<(u8, &'static str)> {
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
pub(super) fn starts(kind: Word) -> bool {
    match kind {
        Word::Op(op) => matches!(op, "[" | "{" | "(" | "." | "-" | "!"),
        Word::In | Word::EscapedIdent | Word::End => false,
        _ => true,
    }
}

/// May this follow an expression?
pub(super) fn continues(kind: Word) -> bool {
    match kind {
        Word::Op(op) => !matches!(op, "{" | "(" | "!"),
        Word::In | Word::End => true,
        _ => false,
    }
}
