//! Developer tool: generate, tidy, bench and fixtures.
fn main() {}
