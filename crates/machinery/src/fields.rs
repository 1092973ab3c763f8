//! Field selectors: `metadata.name=a,status.phase!=Running`.

use std::fmt;

use crate::labels::Lookup;

/// One comparison of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub field: String,
    pub value: String,
    /// True for `=` and `==`, false for `!=`.
    pub equals: bool,
}

/// All terms must hold. None: everything matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    terms: Vec<Term>,
}

impl Selector {
    /// Matches every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// One field with one value.
    pub fn exact(field: &str, value: &str) -> Self {
        Self { terms: vec![Term { field: field.to_owned(), value: value.to_owned(), equals: true }] }
    }

    /// Parses the text form of the `fieldSelector` parameter.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut terms = Vec::new();
        let mut parts = split(text);
        // Of several mistakes the first in this order is told.
        parts.sort_unstable();
        for part in parts {
            if part.is_empty() {
                continue;
            }
            let found = part
                .char_indices()
                .find_map(|(i, _)| ["!=", "==", "="].iter().find(|op| part[i..].starts_with(**op)).map(|op| (i, *op)));
            let Some((at, operator)) = found else {
                return Err(format!("invalid selector: '{text}'; can't understand '{part}'"));
            };
            let value = unescape(&part[at + operator.len()..])?;
            terms.push(Term { field: part[..at].to_owned(), value, equals: operator != "!=" });
        }
        Ok(Self { terms })
    }

    /// Does an object with these field values match? A field it does not have is the empty text.
    pub fn matches<L: Lookup + ?Sized>(&self, fields: &L) -> bool {
        self.terms.iter().all(|t| (fields.text(&t.field).unwrap_or_default() == t.value) == t.equals)
    }

    /// The same conditions on fields that have other names.
    #[must_use]
    pub fn renamed(&self, name: impl Fn(&str) -> String) -> Self {
        let terms = self.terms.iter().map(|t| Term { field: name(&t.field), ..t.clone() });
        Self { terms: terms.collect() }
    }

    /// The value it demands of `field`, if it demands one.
    pub fn requires_exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|t| t.equals && t.field == field).map(|t| t.value.as_str())
    }

    /// The fields it looks at.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.terms.iter().map(|t| t.field.as_str())
    }

    /// The terms.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// True when it restricts nothing.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{}{}{}", term.field, if term.equals { "=" } else { "!=" }, escape(&term.value))?;
        }
        Ok(())
    }
}

/// Writes `value` so that it survives inside a selector.
pub fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '\\' | ',' | '=') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The terms between commas that no backslash hides.
fn split(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let (mut start, mut hidden) = (0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if hidden => hidden = false,
            '\\' => hidden = true,
            ',' => {
                out.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out
}

fn unescape(value: &str) -> Result<String, String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(next @ ('\\' | ',' | '=')) => out.push(next),
                Some(next) => return Err(format!("invalid field selector: invalid escape sequence: \\{next}")),
                None => return Err("invalid field selector: invalid escape sequence: \\".to_owned()),
            },
            ',' | '=' => {
                return Err(format!("invalid field selector: unescaped character in value: {}", u32::from(c)));
            }
            _ => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn selectors_parse_print_and_match() {
        let pod: BTreeMap<String, String> =
            [("metadata.name", "a"), ("status.phase", "Running")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for (text, printed, matches) in [
            ("", "", true),
            ("metadata.name=a", "metadata.name=a", true),
            ("metadata.name==a,", "metadata.name=a", true),
            ("status.phase!=Running", "status.phase!=Running", false),
            ("spec.nodeName=", "spec.nodeName=", true),
            ("status.phase=Running,metadata.name=a", "metadata.name=a,status.phase=Running", true),
            (r"metadata.name=a\,b\=\\", r"metadata.name=a\,b\=\\", false),
        ] {
            let selector = Selector::parse(text).expect(text);
            assert_eq!(selector.to_string(), printed);
            assert_eq!(selector.matches(&pod), matches, "{text}");
        }
        let selector = Selector::parse("metadata.name=a,status.phase!=b").expect("parses");
        assert_eq!(selector.requires_exact("metadata.name"), Some("a"));
        assert_eq!(selector.requires_exact("status.phase"), None);
        assert_eq!(selector.fields().collect::<Vec<_>>(), ["metadata.name", "status.phase"]);
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(
            Selector::parse("a=b,c").expect_err("no operator"),
            "invalid selector: 'a=b,c'; can't understand 'c'"
        );
        assert_eq!(
            Selector::parse(r"a=\x").expect_err("escape"),
            r"invalid field selector: invalid escape sequence: \x"
        );
        assert_eq!(
            Selector::parse("a=b=c").expect_err("unescaped"),
            "invalid field selector: unescaped character in value: 61"
        );
    }

    proptest! {
        #[test]
        fn escaping_round_trips(value in "\\PC{0,16}") {
            let text = format!("f={}", escape(&value));
            prop_assert_eq!(Selector::parse(&text).map(|s| s.requires_exact("f").map(str::to_owned)), Ok(Some(value)));
        }

        #[test]
        fn any_text_is_answered(text in "\\PC{0,24}") {
            let _ = Selector::parse(&text);
        }
    }
}
