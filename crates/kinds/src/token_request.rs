//! TokenRequest: the body of `serviceaccounts/token`. It is no resource of its own.

use api::types::authentication::v1::TokenRequest;
use machinery::field::{FieldErrors, Path};

/// How long a token lives when nothing else is asked for.
pub const SECONDS: i64 = 3600;
const SHORTEST: i64 = 600;
const LONGEST: i64 = 1 << 32;

/// Fills what the client left open.
pub fn defaults(request: &mut TokenRequest) {
    request.spec.get_or_insert_default().expiration_seconds.get_or_insert(SECONDS);
}

/// The mistakes in a request.
pub fn validate(request: &TokenRequest, errors: &mut FieldErrors) {
    let path = Path::new("spec").child("expirationSeconds");
    let seconds = request.spec.as_ref().and_then(|spec| spec.expiration_seconds).unwrap_or(SECONDS);
    if seconds < SHORTEST {
        errors.invalid(&path, seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > LONGEST {
        errors.invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seconds: Option<i64>) -> String {
        let mut request = TokenRequest::default();
        request.spec.get_or_insert_default().expiration_seconds = seconds;
        defaults(&mut request);
        let mut errors = FieldErrors::new();
        validate(&request, &mut errors);
        errors.to_string()
    }

    #[test]
    fn a_token_lives_neither_too_short_nor_too_long() {
        assert_eq!(check(None), "[]");
        assert_eq!(check(Some(600)), "[]");
        assert_eq!(
            check(Some(599)),
            "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"
        );
        assert_eq!(
            check(Some(1 << 33)),
            "spec.expirationSeconds: Invalid value: 8589934592: may not specify a duration larger than 2^32 seconds"
        );
    }
}
