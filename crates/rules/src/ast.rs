//! What an expression is once it is parsed and its macros are written out.

use std::sync::Arc;

/// Names an expression within one text; its position and, once checked, its type and overloads are
/// kept by it.
pub type Id = u32;

/// One expression.
#[derive(Clone, Debug)]
pub struct Expr {
    pub id: Id,
    pub kind: Kind,
}

/// The forms of an expression.
#[derive(Clone, Debug)]
pub enum Kind {
    Literal(Literal),
    Ident(Arc<str>),
    /// `operand.field`, or with `test` whether it is there: `has(operand.field)`.
    Select {
        operand: Box<Expr>,
        field: Arc<str>,
        test: bool,
    },
    Call {
        function: Arc<str>,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    List(Vec<Element>),
    Map(Vec<Entry>),
    Struct {
        name: Arc<str>,
        fields: Vec<Field>,
    },
    Fold(Box<Fold>),
    /// Stands where a mistake was found.
    Broken,
}

/// A value written in the text.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
}

/// One element of a list; `?e` is left out when it has no value.
#[derive(Clone, Debug)]
pub struct Element {
    pub value: Expr,
    pub optional: bool,
}

/// One entry of a map.
#[derive(Clone, Debug)]
pub struct Entry {
    pub key: Expr,
    pub value: Expr,
    pub optional: bool,
}

/// One field of a struct; `?f` is left out when it has no value. Its id is the place of its colon.
#[derive(Clone, Debug)]
pub struct Field {
    pub id: Id,
    pub name: Arc<str>,
    pub value: Expr,
    pub optional: bool,
}

/// What every comprehension macro becomes: a walk over `range` that folds each element into `accu`.
#[derive(Clone, Debug)]
pub struct Fold {
    pub range: Expr,
    pub var: Arc<str>,
    pub var2: Option<Arc<str>>,
    pub accu: Arc<str>,
    pub init: Expr,
    pub condition: Expr,
    pub step: Expr,
    pub result: Expr,
}

impl Fold {
    /// A fold over nothing that only names a value: `cel.bind`, `optMap`, `sortBy`.
    pub fn is_bind(&self) -> bool {
        matches!(&self.range.kind, Kind::List(items) if items.is_empty())
            && matches!(self.condition.kind, Kind::Literal(Literal::Bool(false)))
            && &*self.accu != ACCU
    }
}

/// The variable that the comprehension macros fold into. No text can name it.
pub const ACCU: &str = "@result";

/// The operators, as functions.
pub mod op {
    pub const CONDITIONAL: &str = "_?_:_";
    pub const AND: &str = "_&&_";
    pub const OR: &str = "_||_";
    pub const NOT: &str = "!_";
    pub const EQUALS: &str = "_==_";
    pub const NOT_EQUALS: &str = "_!=_";
    pub const LESS: &str = "_<_";
    pub const LESS_EQUALS: &str = "_<=_";
    pub const GREATER: &str = "_>_";
    pub const GREATER_EQUALS: &str = "_>=_";
    pub const IN: &str = "@in";
    pub const ADD: &str = "_+_";
    pub const SUBTRACT: &str = "_-_";
    pub const MULTIPLY: &str = "_*_";
    pub const DIVIDE: &str = "_/_";
    pub const MODULO: &str = "_%_";
    pub const NEGATE: &str = "-_";
    pub const INDEX: &str = "_[_]";
    pub const OPT_INDEX: &str = "_[?_]";
    pub const OPT_SELECT: &str = "_?._";
    pub const NOT_STRICTLY_FALSE: &str = "@not_strictly_false";
    pub const MAP_INSERT: &str = "cel.@mapInsert";
}
