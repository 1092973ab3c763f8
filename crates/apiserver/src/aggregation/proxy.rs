//! Requests for an API that another server answers for: passed on as they came, in the name of who asks.

use std::sync::Arc;

use futures::StreamExt;
use http::StatusCode;
use http_body_util::BodyExt;
use machinery::status;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use transport::Response;

use super::remote::Remote;
use super::resolve;
use crate::chain::Call;
use crate::encode;
use crate::request::Query;
use crate::subresources::connect::{self, Destination};

/// Passes the request on, and the answer back. Refusals are of text: which form the client wants only the
/// other server knows.
///
/// # Errors
/// 400 for a request that would be upgraded where that is not possible.
pub async fn pass(call: &Call, remote: &Arc<Remote>) -> status::Result<Response> {
    if !remote.is_available() {
        return Ok(unavailable());
    }
    let secure = match remote.secure() {
        Ok(secure) => secure,
        Err(why) => return Ok(encode::text(500, format!("{why}\n"))),
    };
    let address = match resolve::address(&call.server, &remote.place).await {
        Ok(address) => address,
        Err(why) => {
            tracing::warn!(name = remote.name, why, "an aggregated API cannot be reached");
            return Ok(unavailable());
        }
    };
    let to = Destination {
        address,
        secure: Some(secure),
        path: place(&call.info.path, &call.query),
        upgrade_only: false,
        prefix: Some(String::new()),
        user: Some(&call.user),
        node: None,
    };
    match connect::pass(call, to).await {
        Err(status) if status.code != 400 => Ok(encode::text(503, format!("{}\n", status.message))),
        Ok(answer) if answer.status() != StatusCode::SWITCHING_PROTOCOLS => Ok(ending(answer, call)),
        answer => answer,
    }
}

/// The same answer, which ends with this server: a watch would hold it up.
fn ending(answer: Response, call: &Call) -> Response {
    let stopped = call.server.stopped();
    answer.map(|body| transport::stream(body.into_data_stream().take_until(stopped)))
}

/// What a path keeps as it is; the rest is escaped.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');
/// What the parts of a query keep.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Path and query as they were understood when the request was authorized, so that nobody understands
/// something else.
fn place(path: &str, query: &Query) -> String {
    let mut out = utf8_percent_encode(path, PATH).to_string();
    for (at, (key, value)) in query.pairs().iter().enumerate() {
        out.push(if at == 0 { '?' } else { '&' });
        out.extend(utf8_percent_encode(key, QUERY));
        out.push('=');
        out.extend(utf8_percent_encode(value, QUERY));
    }
    out
}

fn unavailable() -> Response {
    encode::text(503, "service unavailable\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_authorized_is_what_is_asked() {
        for (path, query, want) in [
            ("/apis/g/v1/foos/a b", "x=1%2F2&watch", "/apis/g/v1/foos/a%20b?x=1%2F2&watch="),
            // A slash that was escaped has counted as one.
            ("/apis/g/v1/foos/a/b", "", "/apis/g/v1/foos/a/b"),
            // What is no pair here must not be one there.
            ("/apis/g/v1/foos", "a=1;watch=1&b=%zz&c=+", "/apis/g/v1/foos?c=%20"),
            ("/apis/g/v1/foos/é?#%", "", "/apis/g/v1/foos/%C3%A9%3F%23%25"),
        ] {
            assert_eq!(place(path, &Query::parse(query)), want, "{path} {query}");
        }
    }
}
