//! What the patches of MutatingAdmissionPolicies are made of: values that an expression writes out by itself, and
//! the types that they have. Of the objects themselves no schema is asked, as upstream asks none when it compiles:
//!
//! ```text
//! Object{spec: Object.spec{replicas: 2}}                        any field, of any type
//! [JSONPatch{op: "add", path: "/spec/replicas", value: 2}]      these fields and "from", of these types
//! ```

use std::sync::{Arc, LazyLock};

use crate::schema::{Decl, Shape};
use crate::types::Type;

/// The type of the whole object; that of a part is its path after it: `Object.spec.template`.
pub const OBJECT: &str = "Object";

/// The functions that only patches have.
const ESCAPE_KEY: &str = "jsonpatch.escapeKey";

/// One operation of a JSON patch (RFC 6902).
static OPERATION: LazyLock<Type> = LazyLock::new(|| {
    Type::object(
        "JSONPatch",
        [("op", Type::String), ("path", Type::String), ("from", Type::String), ("value", Type::Dyn)],
    )
});

/// Is this function for patches only?
pub fn is_ours(function: &str) -> bool {
    function == ESCAPE_KEY
}

/// The object of this name, or a part of it.
pub fn object(name: &str) -> Type {
    Arc::new(Decl::plain(Shape::Open(name.into()), 0)).type_of()
}

/// Operations, one after another.
pub fn operations() -> Type {
    Type::list(OPERATION.clone())
}

/// The type of patches that has this name.
pub fn type_named(name: &str) -> Option<Type> {
    if name == OPERATION.runtime_name() {
        return Some(OPERATION.clone());
    }
    let part = name.strip_prefix(OBJECT)?;
    (part.is_empty() || part.starts_with('.')).then(|| object(name))
}
