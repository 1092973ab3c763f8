//! Front proxies: who has a certificate of theirs says in headers who asks. Without that certificate the same
//! headers say nothing.

use std::collections::BTreeMap;

use async_trait::async_trait;
use http::{HeaderMap, HeaderName};
use kinds::User;
use percent_encoding::percent_decode_str;
use stdx::SharedClock;
use transport::trust::Trust;

use super::x509::X509;
use super::{Authenticator, Verdict};

/// Who may be a front proxy, and in which headers it says who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Common names of certificates; all are good when there are none.
    pub allowed_names: Vec<String>,
    /// The first with a value counts.
    pub username: Vec<String>,
    pub uid: Vec<String>,
    /// All values of all of them count.
    pub group: Vec<String>,
    /// What follows one of these is the key of what else is known.
    pub extra_prefixes: Vec<String>,
}

impl Headers {
    /// Those in which this server itself says who asks, under the name it has as a front proxy.
    pub fn standard() -> Self {
        let one = |name: &str| vec![name.to_owned()];
        Self {
            allowed_names: one("front-proxy-client"),
            username: one("X-Remote-User"),
            uid: one("X-Remote-Uid"),
            group: one("X-Remote-Group"),
            extra_prefixes: one("X-Remote-Extra-"),
        }
    }

    /// True for a header in which a front proxy says who asks.
    pub fn has(&self, name: &HeaderName) -> bool {
        let mut all = [&self.username, &self.uid, &self.group].into_iter().flatten();
        all.any(|own| name.as_str().eq_ignore_ascii_case(own))
            || self.extra_prefixes.iter().any(|prefix| key(name, prefix).is_some())
    }

    /// Who they say asks; `None` when they say nothing.
    fn user(&self, headers: &HeaderMap) -> Option<User> {
        let first = |names: &[String]| {
            let values = names.iter().flat_map(|name| headers.get(name.as_str()));
            values.map(text).find(|value| !value.is_empty())
        };
        let name = first(&self.username)?;
        let groups = self.group.iter().flat_map(|name| headers.get_all(name.as_str())).map(text);
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for prefix in &self.extra_prefixes {
            for (name, value) in headers {
                if let Some(key) = key(name, prefix) {
                    extra.entry(unescaped(key)).or_default().push(text(value));
                }
            }
        }
        let groups = groups.filter(|group| !group.is_empty()).collect();
        Some(User { name, uid: first(&self.uid).unwrap_or_default(), groups, extra })
    }
}

/// What is no text says something else than anybody meant; it is kept apart from every text.
fn text(value: &http::HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// What follows the prefix; names of headers are in lower case.
fn key<'n>(name: &'n HeaderName, prefix: &str) -> Option<&'n str> {
    let (start, rest) = name.as_str().split_at_checked(prefix.len())?;
    (!prefix.is_empty() && start.eq_ignore_ascii_case(prefix)).then_some(rest)
}

/// A key that is not escaped as in a URL is taken as it is.
fn unescaped(key: &str) -> String {
    let bytes = key.as_bytes();
    let is_hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    let whole = key.match_indices('%').all(|(at, _)| is_hex(at + 1) && is_hex(at + 2));
    let decoded = percent_decode_str(key).decode_utf8();
    decoded.ok().filter(|_| whole).map_or_else(|| key.to_owned(), |key| key.into_owned())
}

/// Believes front proxies.
pub struct RequestHeader {
    proxies: X509,
    headers: Headers,
}

impl RequestHeader {
    /// Believes those whose certificates `trust` believes.
    pub fn new(trust: Trust, headers: Headers, clock: SharedClock) -> Self {
        Self { proxies: X509::new(trust, clock), headers }
    }
}

#[async_trait]
impl Authenticator for RequestHeader {
    /// Whose certificate is no front proxy's may still be somebody, by that certificate.
    async fn authenticate(&self, request: &http::request::Parts) -> Verdict {
        let Verdict::User(proxy) = self.proxies.authenticate(request).await else { return Verdict::Unknown };
        let allowed = &self.headers.allowed_names;
        if !allowed.is_empty() && !allowed.contains(&proxy.name) {
            tracing::debug!(name = proxy.name, "a front proxy's certificate has no name that is allowed");
            return Verdict::Unknown;
        }
        self.headers.user(&request.headers).map_or(Verdict::Unknown, Verdict::User)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().expect("a name"), value.parse().expect("a value"))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn headers_say_who_asks() {
        let own = Headers {
            username: vec!["X-User".into(), "X-Remote-User".into()],
            extra_prefixes: vec!["X-Remote-Extra-".into(), "X-More-".into()],
            ..Headers::standard()
        };
        assert_eq!(own.user(&headers(&[("x-remote-group", "system:masters")])), None, "nobody is named");
        assert_eq!(own.user(&headers(&[("x-user", ""), ("x-remote-user", "")])), None);
        let said = headers(&[
            ("x-remote-user", "second"),
            ("x-user", "first"),
            ("x-remote-uid", "u-1"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b, c"),
            ("x-remote-group", ""),
            ("x-remote-extra-example.com%2fscopes", "one"),
            ("x-remote-extra-example.com%2fscopes", "two"),
            ("x-more-example.com%2fscopes", "three"),
            ("x-more-odd%zz", "x"),
            ("x-other", "y"),
        ]);
        let user = own.user(&said).expect("a user");
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("first", "u-1"));
        assert_eq!(user.groups, ["a", "b, c"]);
        let extra: Vec<(&str, Vec<&str>)> =
            user.extra.iter().map(|(key, all)| (key.as_str(), all.iter().map(String::as_str).collect())).collect();
        assert_eq!(extra, [("example.com/scopes", vec!["one", "two", "three"]), ("odd%zz", vec!["x"])]);
        for (name, _) in &said {
            assert_eq!(own.has(name), name != "x-other", "{name}");
        }
    }
}
