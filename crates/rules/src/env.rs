//! What an expression may refer to: variables, and whether `cel.bind` is known.

use crate::checker::{self, Checked};
use crate::library::{self, Function};
use crate::parser;
use crate::patches;
use crate::source::Issues;
use crate::types::Type;
use crate::validators;

/// The world of an expression. Which variables there are is data: rules of custom resources see `self`
/// and `oldSelf`, policies see `object`, `request` and more.
#[derive(Clone, Debug, Default)]
pub struct Env {
    variables: Vec<(String, Type)>,
    bind: bool,
    patches: bool,
}

impl Env {
    /// Functions and no variables.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more variable. Its values are given in the order in which they were declared.
    #[must_use]
    pub fn with(mut self, name: &str, t: Type) -> Self {
        self.variables.push((name.to_owned(), t));
        self
    }

    /// With the macro `cel.bind`.
    #[must_use]
    pub fn with_bind(mut self) -> Self {
        self.bind = true;
        self
    }

    /// With what patches are made of: the types `Object…` and `JSONPatch`, and `jsonpatch.escapeKey`.
    #[must_use]
    pub fn with_patches(mut self) -> Self {
        self.patches = true;
        self
    }

    /// The type that an expression may name so.
    pub fn type_named(&self, name: &str) -> Option<Type> {
        self.patches.then(|| patches::type_named(name)).flatten().or_else(|| library::type_named(name))
    }

    /// The place and type of a variable.
    pub fn variable(&self, name: &str) -> Option<(usize, &Type)> {
        self.variables.iter().enumerate().find(|(_, (n, _))| n == name).map(|(i, (_, t))| (i, t))
    }

    /// The name of a variable.
    pub fn name(&self, variable: usize) -> &str {
        self.variables.get(variable).map_or("", |(name, _)| name)
    }

    /// A function.
    pub fn function(&self, name: &str) -> Option<&'static Function> {
        library::function(name).filter(|_| self.patches || !patches::is_ours(name))
    }

    /// Parses and checks an expression. The mistakes are those of upstream, as one text.
    pub fn compile(&self, text: &str) -> Result<Checked, String> {
        let checked = || -> Result<Checked, Issues> {
            let checked = checker::check(self, parser::parse(text, self.bind)?)?;
            let issues = validators::validate(&checked);
            if issues.is_empty() { Ok(checked) } else { Err(issues) }
        };
        checked().map_err(|issues| issues.show(text))
    }
}
