//! The headers by which a front proxy says for whom it speaks. They are this server's to say: what a client
//! sends under their names goes nowhere.

use http::{HeaderMap, HeaderName, HeaderValue};
use kinds::User;
use machinery::status::{self, Status};

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const EXTRA: &str = "x-remote-extra-";
const IMPERSONATE: &str = "impersonate-";

/// True for a header that says who asks.
pub fn is_about_user(name: &HeaderName) -> bool {
    let name = name.as_str();
    name == USER || name == UID || name == GROUP || name.starts_with(EXTRA) || name.starts_with(IMPERSONATE)
}

/// Says who asks.
///
/// # Errors
/// 500 for a user whose name no header can carry: nothing is sent then, as without it they would be somebody
/// else.
pub fn speak_for(headers: &mut HeaderMap, user: &User) -> status::Result<()> {
    let value = |text: &str| {
        let wrong = |_| Status::internal("what is known of the user cannot be passed on");
        HeaderValue::from_bytes(text.as_bytes()).map_err(wrong)
    };
    headers.insert(USER, value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert(UID, value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append(GROUP, value(group)?);
    }
    for (key, values) in &user.extra {
        let name = HeaderName::from_bytes(format!("{EXTRA}{}", escaped(key)).as_bytes()).map_err(Status::internal)?;
        for text in values {
            headers.append(name.clone(), value(text)?);
        }
    }
    Ok(())
}

/// A key as part of a header's name: what cannot stand there is written as in a URL.
fn escaped(key: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_told_whole_or_not_at_all() {
        let mut user =
            User { name: "a b".into(), uid: "7".into(), groups: vec!["x".into(), "y".into()], ..User::default() };
        user.extra.insert("example.com/scopes".into(), vec!["one".into(), "two".into()]);
        let mut headers = HeaderMap::new();
        speak_for(&mut headers, &user).expect("it can be told");
        let mut lines: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}={}", value.to_str().expect("text"))).collect();
        lines.sort();
        assert_eq!(
            lines,
            [
                "x-remote-extra-example.com%2fscopes=one",
                "x-remote-extra-example.com%2fscopes=two",
                "x-remote-group=x",
                "x-remote-group=y",
                "x-remote-uid=7",
                "x-remote-user=a b"
            ]
        );
        assert!(headers.keys().all(is_about_user));
        assert!(speak_for(&mut HeaderMap::new(), &User { name: "a\nb".into(), ..User::default() }).is_err());
    }
}
