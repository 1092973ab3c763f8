//! Label selectors: the text form clients send, the requirement list both forms become, matching.
//!
//! ```text
//! "app=web,tier in (a,b),!old"  ──►  [app = web] [!old] [tier in (a b)]  ──►  matches(labels)
//! ```

use std::collections::BTreeMap;
use std::fmt;

use crate::field::{FieldErrors, Path};
use crate::names;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// What selectors read: texts by key, however they are kept.
pub trait Lookup {
    /// The text of `key`; `None` when there is none.
    fn text(&self, key: &str) -> Option<&str>;
}

impl Lookup for BTreeMap<String, String> {
    fn text(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

/// How a requirement compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    In,
    NotIn,
    Equals,
    DoubleEquals,
    NotEquals,
    GreaterThan,
    LessThan,
    Exists,
    DoesNotExist,
}

const ALL_OPERATORS: [&str; 9] = ["in", "notin", "=", "==", "!=", "gt", "lt", "exists", "!"];

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    /// Sorted, without duplicates.
    pub values: Vec<String>,
}

impl Requirement {
    /// A requirement whose key and values have been checked.
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Self, FieldErrors> {
        let mut errors = FieldErrors::new();
        check_key(&Path::new("key"), key, &mut errors);
        let path = Path::new("values");
        let list = || serde_json::Value::from(values.clone());
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                errors.invalid(&path, list(), "for 'in', 'notin' operators, values set can't be empty");
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
                errors.invalid(&path, list(), "exact-match compatibility requires one single value");
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                errors.invalid(&path, list(), "values set must be empty for exists and does not exist");
            }
            Operator::GreaterThan | Operator::LessThan => {
                if values.len() != 1 {
                    errors.invalid(&path, list(), "for 'Gt', 'Lt' operators, exactly one value is required");
                }
                for (i, value) in values.iter().enumerate().filter(|(_, v)| v.parse::<i64>().is_err()) {
                    let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                    errors.invalid(&path.index(i), value.as_str(), detail);
                }
            }
            _ => {}
        }
        for (i, value) in values.iter().enumerate() {
            let complaints = names::label_value(value);
            if !complaints.is_empty() {
                errors.invalid(&path.index(i).key(key), value.as_str(), complaints.join("; "));
            }
        }
        let mut values = values;
        values.sort();
        values.dedup();
        if errors.is_empty() { Ok(Self { key: key.to_owned(), operator, values }) } else { Err(errors) }
    }

    /// Does an object with these labels satisfy it?
    pub fn matches<L: Lookup + ?Sized>(&self, labels: &L) -> bool {
        let value = labels.text(&self.key);
        let listed = |v: &str| self.values.iter().any(|wanted| wanted == v);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => value.is_some_and(listed),
            Operator::NotIn | Operator::NotEquals => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan | Operator::LessThan => {
                let numbers =
                    value.and_then(|v| v.parse::<i64>().ok()).zip(self.values.first().map(|v| v.parse::<i64>()));
                match numbers {
                    Some((have, Ok(want))) if self.operator == Operator::GreaterThan => have > want,
                    Some((have, Ok(want))) => have < want,
                    _ => false,
                }
            }
        }
    }
}

fn check_key(path: &Path, key: &str, errors: &mut FieldErrors) {
    let complaints = names::qualified_name(key);
    if !complaints.is_empty() {
        errors.invalid(path, key, complaints.join("; "));
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.join(",");
        match self.operator {
            Operator::DoesNotExist => write!(f, "!{}", self.key),
            Operator::Exists => f.write_str(&self.key),
            Operator::Equals => write!(f, "{}={values}", self.key),
            Operator::DoubleEquals => write!(f, "{}=={values}", self.key),
            Operator::NotEquals => write!(f, "{}!={values}", self.key),
            Operator::GreaterThan => write!(f, "{}>{values}", self.key),
            Operator::LessThan => write!(f, "{}<{values}", self.key),
            Operator::In => write!(f, "{} in ({values})", self.key),
            Operator::NotIn => write!(f, "{} notin ({values})", self.key),
        }
    }
}

/// All requirements must hold. None: everything matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl Default for Selector {
    fn default() -> Self {
        Self::everything()
    }
}

impl Selector {
    /// Matches every object.
    pub fn everything() -> Self {
        Self { requirements: Vec::new(), nothing: false }
    }

    /// Matches no object: what an absent `LabelSelector` means.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// A selector of these requirements.
    pub fn new(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self { requirements, nothing: false }
    }

    /// Equality with each of `labels`, unchecked: they come from an object that was.
    pub fn from_labels(labels: &Labels) -> Self {
        let one = |(key, value): (&String, &String)| Requirement {
            key: key.clone(),
            operator: Operator::Equals,
            values: vec![value.clone()],
        };
        Self::new(labels.iter().map(one).collect())
    }

    /// Parses the text form of the `labelSelector` parameter.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser { tokens: lex(text), at: 0 };
        parser.selector().map(Self::new)
    }

    /// Does an object with these labels match?
    pub fn matches<L: Lookup + ?Sized>(&self, labels: &L) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.matches(labels))
    }

    /// True when it restricts nothing.
    pub fn is_empty(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// The requirements, by key.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// The value it demands of `key`, if it demands exactly one.
    pub fn requires_exact(&self, key: &str) -> Option<&str> {
        self.requirements.iter().find_map(|r| match (r.operator, r.values.as_slice()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [value]) if r.key == key => Some(value.as_str()),
            _ => None,
        })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Error,
    End,
    Open,
    Close,
    Comma,
    Not,
    Word,
    Compare(Operator),
}

/// `in` and `notin` are words wherever a name or value may stand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expect {
    Values,
    Operator,
}

fn is_symbol(c: char) -> bool {
    "=!(),><".contains(c)
}

fn symbol(text: &str) -> Option<Token> {
    Some(match text {
        ")" => Token::Close,
        "(" => Token::Open,
        "," => Token::Comma,
        "!" => Token::Not,
        "==" => Token::Compare(Operator::DoubleEquals),
        "=" => Token::Compare(Operator::Equals),
        "!=" => Token::Compare(Operator::NotEquals),
        ">" => Token::Compare(Operator::GreaterThan),
        "<" => Token::Compare(Operator::LessThan),
        _ => return None,
    })
}

fn lex(text: &str) -> Vec<(Token, String)> {
    let chars: Vec<char> = text.chars().collect();
    let mut out = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        if matches!(chars[at], ' ' | '\t' | '\r' | '\n') {
            at += 1;
        } else if is_symbol(chars[at]) {
            let two: String = chars[at..].iter().take(2).take_while(|c| is_symbol(**c)).collect();
            let one = chars[at].to_string();
            let (token, text) = [two, one]
                .into_iter()
                .find_map(|t| symbol(&t).map(|token| (token, t)))
                .unwrap_or((Token::Error, String::new()));
            at += text.chars().count().max(1);
            out.push((token, text));
        } else {
            let word: String =
                chars[at..].iter().take_while(|c| !is_symbol(**c) && !matches!(c, ' ' | '\t' | '\r' | '\n')).collect();
            at += word.chars().count();
            let token = match word.as_str() {
                "in" => Token::Compare(Operator::In),
                "notin" => Token::Compare(Operator::NotIn),
                _ => Token::Word,
            };
            out.push((token, word));
        }
    }
    out.push((Token::End, String::new()));
    out
}

struct Parser {
    tokens: Vec<(Token, String)>,
    at: usize,
}

impl Parser {
    fn peek(&self, expect: Expect) -> (Token, String) {
        // The list ends with `End`, and `take` never passes it.
        let (token, text) = self.tokens.get(self.at).cloned().unwrap_or((Token::End, String::new()));
        match (expect, token) {
            (Expect::Values, Token::Compare(Operator::In | Operator::NotIn)) => (Token::Word, text),
            _ => (token, text),
        }
    }

    fn take(&mut self, expect: Expect) -> (Token, String) {
        let token = self.peek(expect);
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut out = Vec::new();
        loop {
            let (token, text) = self.peek(Expect::Values);
            match token {
                Token::Word | Token::Not => {
                    out.push(self.requirement().map_err(|e| format!("unable to parse requirement: {e}"))?);
                    let (token, text) = self.take(Expect::Values);
                    match token {
                        Token::End => return Ok(out),
                        Token::Comma => {
                            let (token, text) = self.peek(Expect::Values);
                            if !matches!(token, Token::Word | Token::Not) {
                                return Err(format!("found '{text}', expected: identifier after ','"));
                            }
                        }
                        _ => return Err(format!("found '{text}', expected: ',' or 'end of string'")),
                    }
                }
                Token::End => return Ok(out),
                _ => return Err(format!("found '{text}', expected: !, identifier, or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let (mut token, mut key) = self.take(Expect::Values);
        let mut operator = None;
        if token == Token::Not {
            operator = Some(Operator::DoesNotExist);
            (token, key) = self.take(Expect::Values);
        }
        if token != Token::Word {
            return Err(format!("found '{key}', expected: identifier"));
        }
        let mut errors = FieldErrors::new();
        // A key in a text has no place in an object; that is how clients are told so.
        check_key(&Path::new("<nil>"), &key, &mut errors);
        if !errors.is_empty() {
            return Err(errors.to_string());
        }
        if matches!(self.peek(Expect::Values).0, Token::End | Token::Comma) {
            operator = operator.or(Some(Operator::Exists));
        }
        let (operator, values) = match operator {
            Some(operator) => (operator, Vec::new()),
            None => {
                let operator = self.operator()?;
                let values = match operator {
                    Operator::In | Operator::NotIn => self.values()?,
                    _ => vec![self.exact_value()?],
                };
                (operator, values)
            }
        };
        Requirement::new(&key, operator, values).map_err(|e| e.to_string())
    }

    fn operator(&mut self) -> Result<Operator, String> {
        match self.take(Expect::Operator) {
            (Token::Compare(operator), _) => Ok(operator),
            (_, text) => Err(format!("found '{text}', expected: {}", ALL_OPERATORS[..7].join(", "))),
        }
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        let (token, text) = self.take(Expect::Values);
        if token != Token::Open {
            return Err(format!("found '{text}' expected: '('"));
        }
        let (token, text) = self.peek(Expect::Values);
        match token {
            Token::Word | Token::Comma => {
                let values = self.value_list()?;
                let (token, text) = self.take(Expect::Values);
                if token == Token::Close { Ok(values) } else { Err(format!("found '{text}', expected: ')'")) }
            }
            Token::Close => {
                self.take(Expect::Values);
                Ok(vec![String::new()])
            }
            _ => Err(format!("found '{text}', expected: ',', ')' or identifier")),
        }
    }

    /// A list in which an empty place is the empty value: `(,a)`, `(a,,b)`, `(a,)`.
    fn value_list(&mut self) -> Result<Vec<String>, String> {
        let mut out = Vec::new();
        loop {
            let (token, text) = self.take(Expect::Values);
            match token {
                Token::Word => {
                    out.push(text);
                    let (token, text) = self.peek(Expect::Values);
                    match token {
                        Token::Comma => {}
                        Token::Close => return Ok(out),
                        _ => return Err(format!("found '{text}', expected: ',' or ')'")),
                    }
                }
                Token::Comma => {
                    if out.is_empty() {
                        out.push(String::new());
                    }
                    match self.peek(Expect::Values).0 {
                        Token::Close => {
                            out.push(String::new());
                            return Ok(out);
                        }
                        Token::Comma => {
                            self.take(Expect::Values);
                            out.push(String::new());
                        }
                        _ => {}
                    }
                }
                _ => return Err(format!("found '{text}', expected: ',', or identifier")),
            }
        }
    }

    fn exact_value(&mut self) -> Result<String, String> {
        if matches!(self.peek(Expect::Values).0, Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.take(Expect::Values) {
            (Token::Word, text) => Ok(text),
            (_, text) => Err(format!("found '{text}', expected: identifier")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn selectors_parse_print_and_match() {
        let web = labels(&[("app", "web"), ("n", "5"), ("tier", "a")]);
        for (text, printed, matches) in [
            ("", "", true),
            ("app=web", "app=web", true),
            ("app==web", "app==web", true),
            ("app = web , tier in (b, a)", "app=web,tier in (a,b)", true),
            ("app!=web", "app!=web", false),
            ("old!=x", "old!=x", true),
            ("app", "app", true),
            ("!app", "!app", false),
            ("! old", "!old", true),
            ("tier notin (a)", "tier notin (a)", false),
            ("old notin (a)", "old notin (a)", true),
            ("n>4", "n>4", true),
            ("n<5", "n<5", false),
            ("app>4", "app>4", false),
            ("in in (in,notin)", "in in (in,notin)", false),
            ("app=", "app=", false),
            ("app in (,web)", "app in (,web)", true),
            ("app in (x,)", "app in (,x)", false),
            ("app in ()", "app in ()", false),
            ("app notin ()", "app notin ()", true),
            ("example.com/app=web", "example.com/app=web", false),
        ] {
            let selector = Selector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(selector.to_string(), printed, "{text}");
            assert_eq!(selector.matches(&web), matches, "{text}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, want) in [
            (",", "found ',', expected: !, identifier, or 'end of string'"),
            ("a,", "found '', expected: identifier after ','"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
            ("!", "unable to parse requirement: found '', expected: identifier"),
        ] {
            assert_eq!(Selector::parse(text).expect_err(text), want, "{text}");
        }
        let error = Selector::parse("a/b/c=d").expect_err("bad key");
        assert!(
            error.starts_with("unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a valid label key must"),
            "{error}"
        );
        let error = Selector::parse("a=-").expect_err("bad value");
        assert!(
            error.starts_with("unable to parse requirement: values[0][a]: Invalid value: \"-\": a valid label"),
            "{error}"
        );
    }

    #[test]
    fn nothing_and_everything() {
        assert!(!Selector::nothing().matches(&labels(&[])));
        assert!(!Selector::nothing().is_empty());
        assert!(Selector::everything().matches(&labels(&[("a", "b")])));
        assert!(Selector::everything().is_empty());
        let exact = Selector::parse("a=b,c in (d,e)").expect("parses");
        assert_eq!((exact.requires_exact("a"), exact.requires_exact("c")), (Some("b"), None));
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "[a-z=!(),<> \\PC]{0,24}") {
            if let Ok(selector) = Selector::parse(&text) {
                let printed = selector.to_string();
                prop_assert_eq!(Selector::parse(&printed).map(|s| s.to_string()), Ok(printed));
            }
        }
    }
}
