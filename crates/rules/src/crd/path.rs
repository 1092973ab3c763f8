//! `fieldPath` of a rule: `.spec.containers` or `.labels['a.b']`, and whether the schema has it.

use machinery::structural;
use serde_json::Value as Json;

/// The path as messages write it, if the schema has it; else what is wrong with it.
pub fn field_path(text: &str, schema: &Json) -> Result<String, String> {
    let root = structural::build(schema)?;
    let (path, _) = root.at_path(text, true)?;
    Ok(path.to_string())
}
