//! A kind as those hold it who outlive one request: a built-in one, which is there for ever, or a custom
//! one, which lasts as long as somebody holds it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::kind::AnyKind;

/// A handle to a kind. Cheap to clone.
#[derive(Clone)]
pub enum SharedKind {
    BuiltIn(&'static dyn AnyKind),
    Custom(Arc<dyn AnyKind>),
}

impl Deref for SharedKind {
    type Target = dyn AnyKind;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::BuiltIn(kind) => *kind,
            Self::Custom(kind) => &**kind,
        }
    }
}

impl SharedKind {
    /// True when both are handles to one kind.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::BuiltIn(a), Self::BuiltIn(b)) => a.shape() == b.shape(),
            (Self::Custom(a), Self::Custom(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl From<&'static dyn AnyKind> for SharedKind {
    fn from(kind: &'static dyn AnyKind) -> Self {
        Self::BuiltIn(kind)
    }
}

impl fmt::Debug for SharedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = self.shape();
        write!(f, "{} {}", shape.api_version(), shape.kind)
    }
}
