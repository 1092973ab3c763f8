//! What is true of one kind: names, storage prefix, scope, subresources, defaults, validation,
//! spec and status rules, allocation claims, table columns. One file per kind, one list: [`ALL`].
//!
//! Kind files know no verbs, no HTTP and no storage. They see a typed view of the object and change
//! it; the write path (in `apiserver`) works on one JSON tree and calls them through [`AnyKind`].

pub mod kind;
pub mod shape;
pub mod view;

pub use kind::{
    AnyKind, Cell, Claim, ClaimKind, Claims, Column, Columns, Ctx, Fields, Finished, Kind, RowConditions, Selectable,
    User, Verb,
};
pub use shape::{Keep, Scope, Shape};
