//! What fields a type has: one form for built-in kinds and custom resources.

/// A handle to one type of a schema table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type {
    index: u32,
}
