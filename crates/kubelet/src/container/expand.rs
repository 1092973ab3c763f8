//! `$(NAME)` in commands, arguments, environment values and sub-paths.

/// Replaces `$(NAME)` by what `lookup` gives; what it does not know stays as it is written, and
/// `$$` is a plain dollar that starts nothing.
pub fn expand<'a>(text: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|t| t.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

/// The first name in `text` that `lookup` does not know.
pub fn first_unknown(text: &str, lookup: impl Fn(&str) -> bool) -> Option<String> {
    let unknown = std::cell::RefCell::new(None);
    expand(text, |name| {
        if !lookup(name) {
            unknown.borrow_mut().get_or_insert_with(|| name.to_owned());
        }
        None
    });
    unknown.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules() {
        let lookup = |name: &str| match name {
            "A" => Some("a"),
            "EMPTY" => Some(""),
            "DOLLAR" => Some("$(A)"),
            _ => None,
        };
        for (text, want) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "a"),
            ("x-$(A)-$(A)-y", "x-a-a-y"),
            ("$(EMPTY)!", "!"),
            ("$(NONE)", "$(NONE)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$$$(A)", "$$(A)"),
            ("$(DOLLAR)", "$(A)"),
            ("$A", "$A"),
            ("$", "$"),
            ("$(A", "$(A"),
            ("$()", "$()"),
            ("$(A)$", "a$"),
            ("ü$(A)ü", "üaü"),
        ] {
            assert_eq!(expand(text, lookup), want, "{text}");
        }
    }

    #[test]
    fn unknown_names_are_found() {
        let known = |name: &str| name == "A";
        assert_eq!(first_unknown("$(A)/$(B)/$(C)", known).as_deref(), Some("B"));
        assert_eq!(first_unknown("$$(B)", known), None);
    }
}
