//! Patterns, what they match and what is said of them.

use proptest::prelude::*;

use super::*;

#[test]
fn patterns_are_gos() {
    for (pattern, yes, no) in [
        (r"^\d+$", &["12"][..], &["", "١", "a"][..]),
        (r"^\w+\z", &["aZ_9"], &["ä"]),
        (r"^[\w.-]+$", &["a.b-c"], &["a b"]),
        (r"^[^\d]$", &["a", "\n"], &["1"]),
        (r"^\Qa.b\E$", &["a.b"], &["acb"]),
        (r"^[[:alpha:]]+$", &["ab"], &["a1"]),
        (r"^[[a]$", &["[", "a"], &["b"]),
        (r"^[a&&b]{3}$", &["a&b"], &["abc"]),
        (r"^[+--]+$", &["+,-"], &["."]),
        (r"^[]a]+$", &["]a"], &["b"]),
        (r"^a{2}$", &["aa"], &["a{2}"]),
        (r"^a{,2}$", &["a{,2}"], &["aa"]),
        (r"^(?i)straße$", &["STRAßE"], &["strasse"]),
        (r"^(?:a|b)*?c$", &["abac"], &["d"]),
        (r"^\pL+$", &["äб"], &["1"]),
        (r"^\p{Greek}$", &["α"], &["a"]),
        (r"^\x41\x{42}\103$", &["ABC"], &["abc"]),
        (r"^a#b c$", &["a#b c"], &["ab"]),
        (r"\bfoo\b", &["a foo b"], &["afoo"]),
        (r"(?s).", &["\n"], &[""]),
        (r"^.$", &["ä"], &["\n"]),
        (r"", &["", "a"], &[]),
    ] {
        let program = compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        for text in yes {
            assert!(program.is_match(text), "{pattern} {text:?}");
        }
        for text in no {
            assert!(!program.is_match(text), "{pattern} {text:?}");
        }
    }
}

#[test]
fn mistakes_are_told_as_go_tells_them() {
    for (pattern, want) in [
        ("[a", "missing closing ]: `[a`"),
        ("(a", "missing closing ): `(a`"),
        ("a)", "unexpected ): `a)`"),
        ("*a", "missing argument to repetition operator: `*`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("a{3,2}", "invalid repeat count: `{3,2}`"),
        ("(a{50}){50}", "invalid repeat count: `{50}`"),
        ("[a--b]", "invalid character class range: `a--`"),
        ("[z-a]", "invalid character class range: `z-a`"),
        (r"\p{Foo}", "invalid character class range: `\\p{Foo}`"),
        ("[[:foo:]]", "invalid character class range: `[:foo:]`"),
        (r"\y", "invalid escape sequence: `\\y`"),
        (r"\1", "invalid escape sequence: `\\1`"),
        (r"a\", "trailing backslash at end of expression: ``"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ("(?<=a)", "invalid named capture: `(?<=a)`"),
        ("(?P<n", "invalid named capture: `(?P<n`"),
    ] {
        assert_eq!(compile(pattern).expect_err(pattern), format!("error parsing regexp: {want}"), "{pattern}");
    }
}

#[test]
fn programs_are_of_bounded_size() {
    let error = compile(r"(\pL{100}\pS{100}){10}").expect_err("too large");
    assert!(error.starts_with("error parsing regexp: expression too large"), "{error}");
    let deep = format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(compile(&deep).is_err());
}

proptest! {
    #[test]
    fn any_pattern_is_answered(pattern in r"[\[\](){}*+?|^$.\\a-c0-9:,<>P=!i-]{0,24}|\PC{0,16}") {
        if let Ok(program) = compile(&pattern) {
            program.is_match("abc");
        }
    }
}
