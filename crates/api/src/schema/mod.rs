//! The schema table of the built-in kinds: read once, when first asked.
//!
//! `builtin.table` is generated (`cargo xtask schema`); `own.table` holds the kinds of this project.

#[cfg(test)]
mod golden;
#[cfg(test)]
mod owners;
#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

use machinery::schema::{Table, Type};

const TEXT: &str = concat!(include_str!("builtin.table"), include_str!("own.table"));

#[expect(clippy::expect_used, reason = "the tables are part of the program; a test reads them")]
static TABLE: LazyLock<Arc<Table>> = LazyLock::new(|| Arc::new(Table::parse(TEXT).expect("the schema table parses")));

/// The schema of a kind: `of("apps", "v1", "Deployment")`. List kinds have one too, and so do the
/// types every group knows (`DeleteOptions`, `Status`, `Table`, …).
pub fn of(group: &str, version: &str, kind: &str) -> Option<Type> {
    TABLE.of(group, version, kind)
}

/// The schema of any type by its package and name: `find("core/v1", "PodSpec")`.
pub fn find(package: &str, name: &str) -> Option<Type> {
    TABLE.find(package, name)
}

/// Every type of the table.
pub fn all() -> impl Iterator<Item = Type> {
    TABLE.types()
}
