//! What a name may look like, and how names are made up; messages are what clients see.
//!
//! Every check returns the complaints; none means the name is fine.

use stdx::Rng;

/// The letters of made-up suffixes: no vowels, nothing that is easily confused.
pub const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS1035: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const HTTP_PATH: &str = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+";
const CONFIG_KEY: &str = "[-._a-zA-Z0-9]+";

/// The complaint about a text longer than `max`.
pub fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// The same about labels and what looks like them.
fn too_many_bytes(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// The complaint about an empty text.
pub const EMPTY: &str = "must be non-empty";

fn shape(what: &str, examples: &[&str], regex: &str) -> String {
    let mut out = format!("{what} (");
    for (i, example) in examples.iter().enumerate() {
        out.push_str(if i == 0 { "e.g. " } else { " or " });
        out.push_str(&format!("'{example}', "));
    }
    out.push_str(&format!("regex used for validation is '{regex}')"));
    out
}

fn is_label(s: &str) -> bool {
    let b = s.as_bytes();
    let edge = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    b.first().is_some_and(edge) && b.last().is_some_and(edge) && b.iter().all(|c| edge(c) || *c == b'-')
}

fn is_qualified_part(s: &str) -> bool {
    let b = s.as_bytes();
    b.first().is_some_and(u8::is_ascii_alphanumeric)
        && b.last().is_some_and(u8::is_ascii_alphanumeric)
        && b.iter().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))
}

/// A lowercase RFC 1123 label: names of namespaces, containers, volumes.
pub fn dns1123_label(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    if s.len() > 63 {
        out.push(too_long(63));
    }
    if s.contains('.') && s.split('.').all(is_label) {
        out.push("must not contain dots".to_owned());
    } else if !is_label(s) {
        let what = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
                    start and end with an alphanumeric character";
        out.push(shape(what, &["my-name", "123-abc"], LABEL));
    }
    out
}

/// The longest subdomain.
const SUBDOMAIN_LENGTH: usize = 253;

/// A lowercase RFC 1123 subdomain: names of most objects.
pub fn dns1123_subdomain(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    if s.len() > SUBDOMAIN_LENGTH {
        out.push(too_long(SUBDOMAIN_LENGTH));
    }
    if !s.split('.').all(is_label) {
        let what = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                    and must start and end with an alphanumeric character";
        out.push(shape(what, &["example.com"], SUBDOMAIN));
    }
    out
}

/// A subdomain whose first label stands for any: `*.example.com`.
pub fn wildcard_subdomain(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    if s.len() > SUBDOMAIN_LENGTH {
        out.push(too_long(SUBDOMAIN_LENGTH));
    }
    if !s.strip_prefix("*.").is_some_and(|rest| rest.split('.').all(is_label)) {
        let what = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
                    consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
        out.push(shape(what, &["*.example.com"], &format!(r"\*\.{SUBDOMAIN}")));
    }
    out
}

/// A path below a domain: `example.com/controller`. What is complained about comes with each complaint.
pub fn domain_prefixed_path(s: &str) -> Vec<(&str, String)> {
    let Some((host, path)) = s.split_once('/').filter(|(host, path)| !host.is_empty() && !path.is_empty()) else {
        return vec![(s, "must be a domain-prefixed path (such as \"acme.io/foo\")".to_owned())];
    };
    let mut out: Vec<(&str, String)> = dns1123_subdomain(host).into_iter().map(|wrong| (host, wrong)).collect();
    if !path.bytes().all(|c| c.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&c)) {
        out.push((path, shape("Invalid path", &[], HTTP_PATH)));
    }
    out
}

/// An RFC 1035 label: a label that starts with a letter.
pub fn dns1035_label(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    if s.len() > 63 {
        out.push(too_long(63));
    }
    if !is_label(s) || !s.as_bytes().first().is_some_and(u8::is_ascii_lowercase) {
        let what = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
                    alphabetic character, and end with an alphanumeric character";
        out.push(shape(what, &["my-name", "abc-123"], DNS1035));
    }
    out
}

/// A name with an optional DNS prefix, as label keys are: `app`, `example.com/app`.
pub fn qualified_name(s: &str) -> Vec<String> {
    let what = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                alphanumeric character";
    let examples = ["MyName", "my.name", "123-abc"];
    let mut out = Vec::new();
    let mut parts = s.split('/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => name,
        (Some(prefix), Some(name), None) => {
            if prefix.is_empty() {
                out.push(format!("prefix part {EMPTY}"));
            } else {
                let wrong = dns1123_subdomain(prefix).into_iter();
                let wrong =
                    wrong.map(|m| if m == too_long(SUBDOMAIN_LENGTH) { too_many_bytes(SUBDOMAIN_LENGTH) } else { m });
                out.extend(wrong.map(|m| format!("prefix part {m}")));
            }
            name
        }
        _ => {
            let shape = shape(&format!("a valid label key {what}"), &examples, QUALIFIED);
            return vec![format!("{shape} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')")];
        }
    };
    if name.is_empty() {
        out.push(format!("name part {EMPTY}"));
    } else if name.len() > 63 {
        out.push(format!("name part {}", too_many_bytes(63)));
    }
    if !is_qualified_part(name) {
        out.push(format!("name part {}", shape(what, &examples, QUALIFIED)));
    }
    out
}

/// The value of a label.
pub fn label_value(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    if s.len() > 63 {
        out.push(too_many_bytes(63));
    }
    if !s.is_empty() && !is_qualified_part(s) {
        let what = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
                    and must start and end with an alphanumeric character";
        out.push(shape(what, &["MyValue", "my_value", "12345"], LABEL_VALUE));
    }
    out
}

fn no_directory_jump(s: &str, out: &mut Vec<String>) {
    match s {
        "." => out.push("must not be '.'".to_owned()),
        ".." => out.push("must not be '..'".to_owned()),
        _ if s.starts_with("..") => out.push("must not start with '..'".to_owned()),
        _ => {}
    }
}

/// A key of a ConfigMap or Secret; it becomes a file name.
pub fn config_map_key(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    if s.len() > 253 {
        out.push(too_long(253));
    }
    if s.is_empty() || !s.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._".contains(&c)) {
        let what = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        out.push(shape(what, &["key.name", "KEY_NAME", "key-name"], CONFIG_KEY));
    }
    no_directory_jump(s, &mut out);
    out
}

/// The name of an environment variable: printable ASCII without `=`.
pub fn env_var_name(s: &str) -> Vec<String> {
    if s.is_empty() {
        return vec![format!("environment variable name {EMPTY}")];
    }
    if s.bytes().all(|c| (b' '..=b'~').contains(&c) && c != b'=') {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()]
}

/// The name of a port: an IANA service name.
pub fn port_name(s: &str) -> Vec<String> {
    let mut out = Vec::new();
    if s.len() > 15 {
        out.push(too_long(15));
    }
    if s.is_empty() || !s.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-') {
        out.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !s.bytes().any(|c| c.is_ascii_lowercase()) {
        out.push("must contain at least one letter (a-z)".to_owned());
    }
    if s.contains("--") {
        out.push("must not contain consecutive hyphens".to_owned());
    }
    if s.starts_with('-') || s.ends_with('-') {
        out.push("must not begin or end with a hyphen".to_owned());
    }
    out
}

/// A name that is only required to be one segment of a path: RBAC roles.
pub fn path_segment(s: &str) -> Vec<String> {
    if s == "." || s == ".." {
        return vec![format!("may not be '{s}'")];
    }
    let mut wrong: Vec<String> =
        ["/", "%"].iter().filter(|c| s.contains(**c)).map(|c| format!("may not contain '{c}'")).collect();
    // What no path can carry could never be read or deleted again.
    if s.chars().any(char::is_control) {
        wrong.push("may not contain control characters".to_owned());
    }
    if s.len() > SEGMENT {
        wrong.push(format!("must be no more than {SEGMENT} bytes"));
    }
    wrong
}

/// The longest [`path_segment`]; escaped it still fits into a path.
const SEGMENT: usize = 1024;

/// `base` and five random letters, at most 63 long: what `generateName` asks for.
pub fn generate(base: &str, rng: &Rng) -> String {
    const LENGTH: usize = 63;
    const RANDOM: usize = 5;
    let cut = (0..=base.len().min(LENGTH - RANDOM)).rev().find(|i| base.is_char_boundary(*i)).unwrap_or(0);
    format!("{}{}", &base[..cut], rng.text(ALPHABET, RANDOM))
}

/// Spells bytes in [`ALPHABET`], one letter each: hashes in names.
pub fn safe_encode(text: &str) -> String {
    text.bytes().map(|b| char::from(ALPHABET[usize::from(b) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_names_pass() {
        let long = "a".repeat(63);
        for (check, names) in [
            (dns1123_label as fn(&str) -> Vec<String>, vec!["a", "0", "my-name", long.as_str()]),
            (dns1123_subdomain, vec!["a", "a.b", "0.9-x"]),
            (dns1035_label, vec!["a", "a-1"]),
            (qualified_name, vec!["a", "A.b_c-d", "example.com/A"]),
            (label_value, vec!["", "a", "A_b"]),
            (config_map_key, vec!["a", ".a", "a..b"]),
            (env_var_name, vec!["A", "a b", "1%"]),
            (port_name, vec!["http", "a-1"]),
            (path_segment, vec!["system:node", "a b", ""]),
        ] {
            for name in names {
                assert_eq!(check(name), Vec::<String>::new(), "{name:?}");
            }
        }
    }

    #[test]
    fn bad_names_are_told_what_would_be_right() {
        let bad = dns1123_label("A");
        assert_eq!(
            bad,
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert_eq!(
            dns1123_subdomain("a..b"),
            [
                r"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ]
        );
        assert_eq!(qualified_name("/a"), ["prefix part must be non-empty"]);
        assert_eq!(qualified_name("a/b/c").len(), 1);
        assert_eq!(qualified_name("")[0], "name part must be non-empty");
        assert_eq!(dns1123_label(&"a".repeat(64)), ["must be no more than 63 characters"]);
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(label_value(&"a".repeat(64)), ["must be no more than 63 bytes"]);
        let long = "a".repeat(300);
        assert_eq!(qualified_name(&format!("{long}/b")), ["prefix part must be no more than 253 bytes"]);
        assert_eq!(qualified_name(&long), ["name part must be no more than 63 bytes"]);
        assert!(dns1035_label("1a")[0].starts_with("a DNS-1035 label must consist of"));
        assert_eq!(config_map_key(".."), ["must not be '..'"]);
        assert_eq!(config_map_key("..a"), ["must not start with '..'"]);
        assert_eq!(path_segment("a/b%"), ["may not contain '/'", "may not contain '%'"]);
        assert_eq!(path_segment(".."), ["may not be '..'"]);
        assert_eq!(path_segment("a\0"), ["may not contain control characters"]);
        assert_eq!(path_segment(&"a".repeat(1025)), ["must be no more than 1024 bytes"]);
        assert_eq!(wildcard_subdomain("*.example.com"), [""; 0]);
        assert!(wildcard_subdomain("*.*.com")[0].starts_with("a wildcard DNS-1123 subdomain must start with '*.'"));
        assert!(wildcard_subdomain("example.com")[0].ends_with(
            "'*.example.com', regex used for validation is \
            '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
        ));
        assert_eq!(domain_prefixed_path("example.com/a"), []);
        assert_eq!(domain_prefixed_path("example.com/").len(), 1);
        let wrong = domain_prefixed_path("A/ä");
        assert_eq!(wrong.iter().map(|(part, _)| *part).collect::<Vec<_>>(), ["A", "ä"]);
        assert_eq!(wrong[1].1, "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')");
        assert_eq!(port_name("1"), ["must contain at least one letter (a-z)"]);
        assert_eq!(port_name("-a--b").len(), 2);
        assert_eq!(env_var_name("a=b").len(), 1);
        assert_eq!(env_var_name("ä").len(), 1);
    }

    #[test]
    fn generated_names_fit_a_label() {
        let rng = Rng::seeded(1);
        let name = generate("web-", &rng);
        assert!(name.starts_with("web-") && name.len() == 9);
        assert_eq!(generate(&"a".repeat(80), &rng).len(), 63);
        assert!(generate(&"ä".repeat(40), &rng).len() <= 63);
        assert_eq!(safe_encode("0123").len(), 4);
    }
}
