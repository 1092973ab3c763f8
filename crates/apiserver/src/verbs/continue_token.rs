//! The token with which a list goes on: where its next part begins, and in which state. Opaque to
//! clients, and believed no more than anything else they send.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use machinery::status::{self, Status};
use serde::{Deserialize, Serialize};

const VERSION: &str = "meta.k8s.io/v1";

/// Where a list goes on, and in which state; opaque to clients.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Token {
    v: String,
    /// -1: the newest.
    pub rv: i64,
    /// What the first key of the next part has after the prefix of the collection.
    pub start: String,
}

impl Token {
    /// The part that begins behind the object of this key.
    pub fn after(revision: u64, key: &str) -> Self {
        let rv = i64::try_from(revision).unwrap_or(i64::MAX);
        Self { v: VERSION.into(), rv, start: format!("{key}\0") }
    }

    /// As clients get it.
    pub fn write(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::json!({ "v": self.v, "rv": self.rv, "start": self.start }).to_string())
    }

    /// As clients send it back. `revision` is the resourceVersion they send beside it.
    ///
    /// # Errors
    /// 400.
    pub fn read(text: &str, revision: Option<u64>) -> status::Result<Self> {
        let wrong =
            |why: &str| Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|error| wrong(&error.to_string()))?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|error| wrong(&error.to_string()))?;
        if token.v != VERSION {
            return Err(wrong(&format!("server does not recognize this encoded version {}", token.v)));
        }
        if token.rv == 0 {
            return Err(wrong("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
        }
        if token.start.is_empty() {
            return Err(wrong("encoded start key empty (version meta.k8s.io/v1)"));
        }
        // A key that means something else once it is cleaned might leave the collection.
        let inside = token.start.strip_prefix('/').unwrap_or(&token.start);
        if inside.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(wrong(&token.start));
        }
        if revision.is_some_and(|revision| revision > 0) {
            let why = "specifying resource version is not allowed when using continue";
            return Err(Status::bad_request(why));
        }
        Ok(Self { start: inside.to_owned(), ..token })
    }

    /// A 410 lets the client go on in the newest state, if it can live with the inconsistency.
    pub fn expired(&self, status: Box<Status>) -> Box<Status> {
        if status.code != 410 {
            return status;
        }
        let mut expired = Status::expired(CONTINUE_EXPIRED);
        expired.continue_token = Some(Self { rv: -1, ..self.clone() }.write());
        expired
    }
}

const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. \
    You can start a new list without the continue parameter, or use the continue token in this response to retrieve \
    the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that \
    were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tokens_survive_the_way_and_nonsense_is_refused() {
        let token = Token { v: VERSION.into(), rv: 7, start: "default/a\0".into() };
        assert_eq!(Token::read(&token.write(), None), Ok(token.clone()));
        assert_eq!(Token::read(&token.write(), Some(0)), Ok(token.clone()));
        assert_eq!(Token::read(&token.write(), Some(1)).map_err(|s| s.code), Err(400));
        let encoded = |text: &str| URL_SAFE_NO_PAD.encode(text);
        for bad in [
            "!".to_owned(),
            encoded("{"),
            encoded(r#"{"v":"v2","rv":1,"start":"a"}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":1,"start":""}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../x"}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"a/./x"}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"a//x"}"#),
            encoded(r#"{"v":"meta.k8s.io/v1","rv":1.5,"start":"a"}"#),
            encoded("[1]"),
        ] {
            assert_eq!(Token::read(&bad, None).map_err(|s| s.code), Err(400), "{bad}");
        }
        let expired = token.expired(Status::expired("x"));
        let next = Token::read(expired.continue_token.as_deref().expect("token"), None).expect("reads");
        assert_eq!((next.rv, next.start), (-1, token.start));
    }

    proptest! {
        /// A token goes on exactly behind the object it was made for, wherever that is.
        #[test]
        fn tokens_go_on_where_they_were_made(revision in 1u64.., key in "([a-z0-9.:-]{1,20}/)?[a-z0-9.:-]{1,40}") {
            prop_assume!(!key.split('/').any(|part| matches!(part, "." | "..")));
            let token = Token::after(revision, &key);
            let read = Token::read(&token.write(), None).expect("it is one of ours");
            prop_assert_eq!(&read, &token);
            let next = format!("{key}0");
            prop_assert!(read.start.as_str() > key.as_str() && read.start.as_str() < next.as_str());
        }

        /// Whatever a client makes of one: it is refused, or begins inside its collection.
        #[test]
        fn no_token_leads_out(version in "(meta.k8s.io/v1|v1)", rv in any::<i64>(), start in ".{0,20}", cut in any::<usize>(), raw in any::<bool>()) {
            let json = serde_json::json!({"v": version, "rv": rv, "start": start}).to_string();
            let mut text = URL_SAFE_NO_PAD.encode(json);
            if raw {
                text.truncate(cut % (text.len() + 1));
            }
            match Token::read(&text, None) {
                Ok(token) => {
                    prop_assert!(token.rv != 0 && !token.start.is_empty() && !token.start.starts_with('/'));
                    prop_assert!(token.start.split('/').all(|part| !matches!(part, "" | "." | "..")));
                }
                Err(status) => prop_assert_eq!(status.code, 400),
            }
        }
    }
}
