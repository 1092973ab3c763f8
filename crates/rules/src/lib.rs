//! CEL as Kubernetes uses it: the language of the rules in custom resource definitions, policies, match
//! conditions and device selectors.
//!
//! ```text
//! text ─parser─► tree ─checker─► tree with types ─┬─plan─► Program ─run─► value, cost
//!        macros           env, schema, library    └─estimate─► what it may cost at most
//! ```
//!
//! An [`env::Env`] says which variables there are; their types come from a [`schema`], so that a typo in
//! a field's name is a mistake when the rule is written, not when it is applied. Functions are tables of
//! signatures in [`library`]. [`crd`] is the whole of `x-kubernetes-validations`; [`policy`] checks what
//! policies say.
//!
//! Types, messages and costs are upstream's: a rule that is accepted there is accepted here, fails with
//! the same text, and is cut off at the same cost. Beneath that lie bounds of our own on depth, on the
//! size of types and on the steps and bytes of one evaluation.
//!
//! # Invariants
//!
//! * Any text is answered: it is parsed, checked and evaluated within bounds of depth, size and time.
//!   [tests/any.rs: any_text_is_answered; tests/bounds.rs: nothing_runs_without_end]
//! * Results, messages and costs are upstream's. [tests/table.rs: expressions_are_as_upstream_has_them]

mod ast;
mod checker;
mod cost;
pub mod crd;
pub mod env;
mod estimate;
mod lexer;
pub mod library;
mod macros;
mod meter;
mod nodes;
mod number;
mod parser;
mod patches;
mod plan;
pub mod policy;
mod program;
pub mod schema;
pub mod selector;
mod source;
mod time;
pub mod types;
mod validators;
pub mod value;

pub use ast::Expr;
pub use checker::Checked;
pub use estimate::{Range, estimate};
pub use meter::{Error, Meter};
pub use program::{Outcome, Program};
