//! Why things were written: the journal of causes, and the path that reads it.

use machinery::status;
use serde_json::json;
use transport::Response;

use self::causes::Question;
use crate::chain::Call;
use crate::encode;

pub mod causes;

/// Where the journal is read; a non-resource path, so that RBAC guards it (`get`).
pub const PATH: &str = "/debug/pintle/causes";

/// No answer has more records.
const MAX_RECORDS: i64 = 1000;

/// Answers `?key=<part>&revision=<n>&after=<n>&limit=<n>`: the newest records that match, oldest first.
///
/// # Errors
/// 400 for numbers that are none.
pub fn respond(call: &Call) -> status::Result<Response> {
    let number = |key: &str| call.query.number(key).map(|n| n.unwrap_or(0).max(0));
    let limit = match number("limit")? {
        0 => MAX_RECORDS,
        n => n.min(MAX_RECORDS),
    };
    let question = Question {
        key: call.query.get("key").unwrap_or_default().to_owned(),
        revision: number("revision")?.unsigned_abs(),
        after: number("after")?.unsigned_abs(),
        limit: usize::try_from(limit).unwrap_or(0),
    };
    let records = call.server.journal.query(&question);
    Ok(encode::with_type(200, "application/json", json!({ "records": records }).to_string()))
}
