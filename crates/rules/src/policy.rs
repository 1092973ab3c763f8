//! Expressions of admission policies and of match conditions, checked when they are written: what does not compile,
//! or gives something else than what is wanted, is told in upstream's words.
//!
//! Of `object`, `oldObject`, `params`, `request` and `namespaceObject` nothing is declared here: what fields they
//! have is found out when they are there. Expressions that ask the authorizer or make patches use libraries that are
//! not known here, and are not checked.

use crate::env::Env;
use crate::lexer::{Kind, Token, tokens};
use crate::source::Issues;
use crate::types::Type;

/// What an expression may refer to beside the objects.
#[derive(Clone, Copy, Debug)]
pub struct World<'w> {
    pub params: bool,
    pub authorizer: bool,
    /// The variables of the policy that are known at this place; `None` where there are none at all.
    pub variables: Option<&'w [&'w str]>,
}

/// What an expression is to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Bool,
    Text,
    TextOrNull,
    Anything,
}

/// Names that stand for what other libraries bring.
const ELSEWHERE: &[&str] = &["authorizer", "Object", "JSONPatch", "jsonpatch"];
const VARIABLES: &str = "variables";

/// Checks an expression.
///
/// # Errors
/// What is wrong with it, as one text.
pub fn check(text: &str, world: World<'_>, wanted: Wanted) -> Result<(), String> {
    let words = tokens(text, &mut Issues::default());
    let stands_alone =
        |at: usize| at.checked_sub(1).and_then(|at| words.get(at)).is_none_or(|before| before.text != ".");
    let names =
        |name: &str, at: usize, word: &Token<'_>| word.kind == Kind::Ident && word.text == name && stands_alone(at);
    let goes_elsewhere = words.iter().enumerate().any(|(at, word)| {
        ELSEWHERE.iter().any(|name| (*name != "authorizer" || world.authorizer) && names(name, at, word))
    });
    if goes_elsewhere {
        return Ok(());
    }
    let mut env = Env::new().with_bind();
    for name in ["object", "oldObject", "request", "namespaceObject"] {
        env = env.with(name, Type::Dyn);
    }
    if world.params {
        env = env.with("params", Type::Dyn);
    }
    let mut unknown = Issues::default();
    if let Some(known) = world.variables {
        env = env.with(VARIABLES, Type::Dyn);
        for (at, _) in words.iter().enumerate().filter(|(at, word)| names(VARIABLES, *at, word)) {
            if let (Some(dot), Some(name)) = (words.get(at + 1), words.get(at + 2))
                && dot.text == "."
                && name.kind == Kind::Ident
                && !known.contains(&name.text)
            {
                unknown.add(Some(dot.offset), format!("undefined field '{}'", name.text));
            }
        }
    }
    let checked = env.compile(text).map_err(|wrong| format!("compilation failed: {wrong}"))?;
    if !unknown.is_empty() {
        return Err(format!("compilation failed: {}", unknown.show(text)));
    }
    let given = checked.type_of(checked.expr.id);
    let fits = match wanted {
        Wanted::Bool => *given == Type::Bool,
        Wanted::Text => *given == Type::String,
        Wanted::TextOrNull => matches!(given, Type::String | Type::Null),
        Wanted::Anything => true,
    };
    let words = match wanted {
        Wanted::Bool => "bool",
        Wanted::Text => "string",
        _ => "one of [string null_type]",
    };
    if fits { Ok(()) } else { Err(format!("must evaluate to {words} but got {}", shown(given))) }
}

/// A type by the name its values give, also within others.
fn shown(t: &Type) -> String {
    match t {
        Type::List(items) => format!("list({})", shown(items)),
        Type::Map(entry) => format!("map({}, {})", shown(&entry.0), shown(&entry.1)),
        Type::Optional(inner) => format!("optional_type({})", shown(inner)),
        other => other.runtime_name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_checked() {
        let world = World { params: false, authorizer: true, variables: Some(&["image", "x"]) };
        let with_params = World { params: true, ..world };
        let condition = World { variables: None, ..world };
        let message = World { authorizer: false, ..world };
        for (text, world, wanted, want) in [
            ("object.spec.replicas <= 5", world, Wanted::Bool, ""),
            ("has(object.spec) && variables.image.startsWith('a')", world, Wanted::Bool, ""),
            ("request.operation == 'DELETE' || namespaceObject.metadata.name != 'x'", condition, Wanted::Bool, ""),
            ("object.spec.replicas <= params.most", with_params, Wanted::Bool, ""),
            ("authorizer.group('').resource('pods').check('get').allowed()", world, Wanted::Bool, ""),
            ("'no ' + string(object.spec.replicas)", message, Wanted::Text, ""),
            ("null", world, Wanted::TextOrNull, ""),
            ("[1, 2]", world, Wanted::Anything, ""),
            ("object.spec.on", world, Wanted::Bool, "must evaluate to bool but got dyn"),
            ("[duration('1s')]", world, Wanted::Bool, "must evaluate to bool but got list(google.protobuf.Duration)"),
            ("1", world, Wanted::TextOrNull, "must evaluate to one of [string null_type] but got int"),
            (
                "params.most > 1",
                world,
                Wanted::Bool,
                "compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')\n | params.most > 1\n | ^",
            ),
            (
                "variables.other == 1",
                world,
                Wanted::Bool,
                "compilation failed: ERROR: <input>:1:10: undefined field 'other'\n | variables.other == 1\n | .........^",
            ),
            (
                "variables.x == 1",
                condition,
                Wanted::Bool,
                "compilation failed: ERROR: <input>:1:1: undeclared reference to 'variables' (in container '')\n | variables.x == 1\n | ^",
            ),
            (
                "authorizer.path('/a')",
                message,
                Wanted::Text,
                "compilation failed: ERROR: <input>:1:1: undeclared reference to 'authorizer' (in container '')\n | authorizer.path('/a')\n | ^\nERROR: <input>:1:16: undeclared reference to 'path' (in container '')\n | authorizer.path('/a')\n | ...............^",
            ),
            (
                "object.spec.",
                world,
                Wanted::Bool,
                "compilation failed: ERROR: <input>:1:13: Syntax error: no viable alternative at input '.'\n | object.spec.\n | ............^",
            ),
            ("object.variables.other == object.authorizer", world, Wanted::Bool, ""),
        ] {
            let found = check(text, world, wanted).err().unwrap_or_default();
            assert_eq!(found, want, "{text}");
        }
    }
}
