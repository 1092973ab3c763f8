//! The JSONPath that columns and selectable fields of custom resources are written in: Kubernetes' own
//! dialect, of which a missing key finds nothing.
//!
//! ```text
//!  .spec.replicas                                  field after field
//!  .metadata.annotations.example\.com/owner        a dot that belongs to the name
//!  .status.conditions[?(@.type=="Ready")].status   elements that pass a comparison
//!  .items[0]  [-1]  [1:3]  [*]  ['a','b']          elements, fields by name
//!  ..name                                          everywhere below
//! ```

use std::cmp::Ordering;

use serde_json::Value;

/// Filters may stand in filters, so deep.
const DEPTH: usize = 8;
/// No path is longer.
const LENGTH: usize = 4096;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    /// Every element or field.
    All,
    /// The value itself and everything below it.
    Descend,
    Slice {
        from: Option<i64>,
        to: Option<i64>,
        step: i64,
    },
    Index(i64),
    /// What each of them finds, in turn.
    Union(Vec<Step>),
    /// Elements for which it holds.
    Filter(Box<Filter>),
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Operand,
    /// Without one, what is on the left must be there.
    comparison: Option<(Operator, Operand)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(JsonPath),
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    /// Reads a path such as `.spec.replicas`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LENGTH {
            return Err(format!("a path may not be longer than {LENGTH} bytes"));
        }
        Parser { rest: text }.path(DEPTH)
    }

    /// What it finds in a value, in order.
    pub fn find<'v>(&self, value: &'v Value) -> Vec<&'v Value> {
        self.0.iter().fold(vec![value], |found, step| {
            let mut next = Vec::new();
            found.into_iter().for_each(|value| step.take(value, &mut next));
            next
        })
    }
}

impl Step {
    fn take<'v>(&self, value: &'v Value, out: &mut Vec<&'v Value>) {
        match (self, value) {
            (Self::Field(name), Value::Object(fields)) => out.extend(fields.get(name)),
            (Self::All, Value::Object(fields)) => out.extend(fields.values()),
            (Self::All, Value::Array(items)) => out.extend(items),
            (Self::Descend, _) => descend(value, out),
            (Self::Index(at), Value::Array(items)) => {
                let at = if *at < 0 { at.saturating_add_unsigned(items.len() as u64) } else { *at };
                out.extend(usize::try_from(at).ok().and_then(|at| items.get(at)));
            }
            (Self::Slice { from, to, step }, Value::Array(items)) => {
                let place = |at: i64| {
                    let at = if at < 0 { at.saturating_add_unsigned(items.len() as u64) } else { at };
                    usize::try_from(at.max(0)).unwrap_or(usize::MAX).min(items.len())
                };
                let (from, to) = (from.map_or(0, place), to.map_or(items.len(), place));
                let step = usize::try_from(*step).unwrap_or(1).max(1);
                out.extend(items.get(from..to).unwrap_or_default().iter().step_by(step));
            }
            (Self::Union(steps), _) => steps.iter().for_each(|step| step.take(value, out)),
            (Self::Filter(filter), Value::Array(items)) => out.extend(items.iter().filter(|item| filter.holds(item))),
            _ => {}
        }
    }
}

fn descend<'v>(value: &'v Value, out: &mut Vec<&'v Value>) {
    out.push(value);
    match value {
        Value::Object(fields) => fields.values().for_each(|value| descend(value, out)),
        Value::Array(items) => items.iter().for_each(|value| descend(value, out)),
        _ => {}
    }
}

impl Filter {
    fn holds(&self, item: &Value) -> bool {
        let Some(left) = self.left.read(item) else { return false };
        let Some((operator, right)) = &self.comparison else { return true };
        let Some(right) = right.read(item) else { return false };
        match operator {
            Operator::Equal => left == right,
            Operator::NotEqual => left != right,
            Operator::Less => compare(left, right) == Some(Ordering::Less),
            Operator::LessOrEqual => compare(left, right).is_some_and(Ordering::is_le),
            Operator::Greater => compare(left, right) == Some(Ordering::Greater),
            Operator::GreaterOrEqual => compare(left, right).is_some_and(Ordering::is_ge),
        }
    }
}

fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (Value::Number(left), Value::Number(right)) => left.as_f64()?.partial_cmp(&right.as_f64()?),
        _ => None,
    }
}

impl Operand {
    /// The one value that it stands for.
    fn read<'v>(&'v self, item: &'v Value) -> Option<&'v Value> {
        match self {
            Self::Literal(value) => Some(value),
            Self::Path(path) => path.find(item).into_iter().next(),
        }
    }
}

struct Parser<'t> {
    rest: &'t str,
}

impl<'t> Parser<'t> {
    fn eat(&mut self, text: &str) -> bool {
        let found = self.rest.strip_prefix(text);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn path(&mut self, depth: usize) -> Result<JsonPath, String> {
        let mut steps = Vec::new();
        while !self.rest.is_empty() {
            if self.eat("..") {
                steps.push(Step::Descend);
                if !self.rest.is_empty() && !self.rest.starts_with('[') {
                    steps.push(self.field()?);
                }
            } else if self.eat(".") {
                // A dot alone is the value itself.
                if !self.rest.is_empty() && !self.rest.starts_with('[') {
                    steps.push(self.field()?);
                }
            } else if self.eat("[") {
                steps.push(self.bracket(depth)?);
            } else {
                return Err(format!("unrecognized character in path: {:?}", self.rest));
            }
        }
        Ok(JsonPath(steps))
    }

    fn field(&mut self) -> Result<Step, String> {
        let (mut name, mut chars) = (String::new(), self.rest.char_indices());
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => name.extend(chars.next().map(|(_, c)| c)),
                '.' | '[' | ']' | '(' | ')' | ' ' | '{' | '}' | '=' | '!' | '<' | '>' | '"' | '\'' => {
                    end = at;
                    break;
                }
                c => name.push(c),
            }
        }
        self.rest = &self.rest[end..];
        match name.as_str() {
            "" => Err("a field has no name".to_owned()),
            "*" => Ok(Step::All),
            _ => Ok(Step::Field(name)),
        }
    }

    /// What stands in brackets; the first is eaten.
    fn bracket(&mut self, depth: usize) -> Result<Step, String> {
        if self.eat("?(") {
            let Some(depth) = depth.checked_sub(1) else { return Err("filters are nested too deep".to_owned()) };
            let inside = self.until(")")?;
            if !self.eat("]") {
                return Err("unterminated array".to_owned());
            }
            return Ok(Step::Filter(Box::new(filter(inside, depth)?)));
        }
        let inside = self.until("]")?;
        let mut steps = inside_brackets(inside)?;
        Ok(match (steps.pop(), steps.is_empty()) {
            (Some(only), true) => only,
            (Some(last), false) => {
                steps.push(last);
                Step::Union(steps)
            }
            (None, _) => return Err("nothing stands in brackets".to_owned()),
        })
    }

    /// What comes before the closing mark that belongs to the opening one eaten before; eats that too.
    fn until(&mut self, close: &str) -> Result<&'t str, String> {
        let (mut quote, mut open, mut escaped) = (None, 0usize, false);
        for (at, c) in self.rest.char_indices() {
            match (quote, c) {
                _ if escaped => escaped = false,
                (_, '\\') => escaped = true,
                (Some(q), c) if c == q => quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') => quote = Some(c),
                (None, '[' | '(') => open += 1,
                (None, ']' | ')') if open > 0 => open -= 1,
                (None, c) if close.starts_with(c) => {
                    let inside = &self.rest[..at];
                    self.rest = &self.rest[at + close.len()..];
                    return Ok(inside);
                }
                _ => {}
            }
        }
        Err("unterminated array".to_owned())
    }
}

fn inside_brackets(text: &str) -> Result<Vec<Step>, String> {
    split_outside_quotes(text, ',').into_iter().map(|part| one_in_brackets(part.trim())).collect()
}

fn one_in_brackets(text: &str) -> Result<Step, String> {
    if text == "*" {
        return Ok(Step::All);
    }
    if let Some(name) = unquoted(text) {
        return Ok(Step::Field(name));
    }
    let number = |text: &str| match text.trim() {
        "" => Ok(None),
        text => text.parse::<i64>().map(Some).map_err(|_| format!("invalid array index {text}")),
    };
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        [at] => number(at)?.map(Step::Index).ok_or_else(|| format!("invalid array index {text}")),
        [from, to] => Ok(Step::Slice { from: number(from)?, to: number(to)?, step: 1 }),
        [from, to, step] => match number(step)?.unwrap_or(1) {
            step if step > 0 => Ok(Step::Slice { from: number(from)?, to: number(to)?, step }),
            _ => Err("step must be > 0".to_owned()),
        },
        _ => Err(format!("invalid array index {text}")),
    }
}

fn split_outside_quotes(text: &str, at: char) -> Vec<&str> {
    let (mut parts, mut quote, mut start) = (Vec::new(), None, 0);
    for (i, c) in text.char_indices() {
        match quote {
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == at => {
                parts.push(&text[start..i]);
                start = i + c.len_utf8();
            }
            None => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn unquoted(text: &str) -> Option<String> {
    let inside = ['"', '\''].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote))?;
    let (mut out, mut chars) = (String::new(), inside.chars());
    while let Some(c) = chars.next() {
        out.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    Some(out)
}

fn filter(text: &str, depth: usize) -> Result<Filter, String> {
    const OPERATORS: [(&str, Operator); 6] = [
        ("==", Operator::Equal),
        ("!=", Operator::NotEqual),
        ("<=", Operator::LessOrEqual),
        (">=", Operator::GreaterOrEqual),
        ("<", Operator::Less),
        (">", Operator::Greater),
    ];
    let (mut quote, mut open) = (None, 0usize);
    for (at, c) in text.char_indices() {
        match quote {
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == '[' || c == '(' => open += 1,
            None if c == ']' || c == ')' => open = open.saturating_sub(1),
            None if open == 0 => {
                if let Some((sign, operator)) = OPERATORS.iter().find(|(sign, _)| text[at..].starts_with(sign)) {
                    let right = operand(&text[at + sign.len()..], depth)?;
                    return Ok(Filter { left: operand(&text[..at], depth)?, comparison: Some((*operator, right)) });
                }
            }
            None => {}
        }
    }
    Ok(Filter { left: operand(text, depth)?, comparison: None })
}

fn operand(text: &str, depth: usize) -> Result<Operand, String> {
    let text = text.trim();
    if let Some(literal) = unquoted(text) {
        return Ok(Operand::Literal(literal.into()));
    }
    match text {
        "true" | "false" => return Ok(Operand::Literal((text == "true").into())),
        _ => {}
    }
    if let Ok(number) = serde_json::from_str::<serde_json::Number>(text) {
        return Ok(Operand::Literal(number.into()));
    }
    let path = text.strip_prefix('@').or_else(|| text.starts_with('.').then_some(text));
    let path = path.ok_or_else(|| format!("unrecognized operand {text:?}"))?;
    Parser { rest: path }.path(depth).map(Operand::Path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn check(path: &str, want: &[Value]) {
        let object = json!({
            "metadata": {"name": "a", "annotations": {"example.com/owner": "me"}},
            "spec": {"replicas": 3, "ports": [{"name": "x", "port": 80}, {"name": "y", "port": 443}], "list": [1, 2, 3]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Good", "status": "False"}]},
        });
        let found = JsonPath::parse(path).unwrap_or_else(|why| panic!("{path}: {why}"));
        let found: Vec<Value> = found.find(&object).into_iter().cloned().collect();
        assert_eq!(found, want, "{path}");
    }

    #[test]
    fn paths_find_what_they_name() {
        check(".spec.replicas", &[json!(3)]);
        check(".spec.none.deeper", &[]);
        check(r".metadata.annotations.example\.com/owner", &[json!("me")]);
        check(".metadata.annotations['example.com/owner']", &[json!("me")]);
        check(r#".status.conditions[?(@.type=="Ready")].status"#, &[json!("True")]);
        check(r#".status.conditions[?(@.type == 'Good')].status"#, &[json!("False")]);
        check(r#".status.conditions[?(@.type != "Ready")].type"#, &[json!("Good")]);
        check(".spec.ports[?(@.port > 80)].name", &[json!("y")]);
        check(".spec.ports[?(@.port <= 80)].name", &[json!("x")]);
        check(".spec.ports[?(@.none)].name", &[]);
        check(".spec.ports[*].port", &[json!(80), json!(443)]);
        check(".spec.list[-1]", &[json!(3)]);
        check(".spec.list[7]", &[]);
        check(".spec.list[0:2]", &[json!(1), json!(2)]);
        check(".spec.list[::2]", &[json!(1), json!(3)]);
        check(".spec.list[0,2]", &[json!(1), json!(3)]);
        check(".spec.ports[0]['name','port']", &[json!("x"), json!(80)]);
        check(".spec..port", &[json!(80), json!(443)]);
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for path in ["spec", ".spec[", ".spec[?(@.a", ".spec[a]", ".spec[0:1:0]", ".a.[?(b==c)]", ".spec }", "[]"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
        let deep = ".a[?(@".repeat(20) + ".b" + &")]".repeat(20);
        assert!(JsonPath::parse(&deep).is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in r#"[.\[\]?()@'"a0:*,=!<> \\-]{0,40}"#) {
            if let Ok(path) = JsonPath::parse(&text) {
                path.find(&json!({"a": [{"a": 1}, "a", [0, 1]]}));
            }
        }
    }
}
