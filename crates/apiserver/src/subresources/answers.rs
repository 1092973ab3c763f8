//! What is asked like a create and answered at once, and never stored: reviews, and tokens for
//! ServiceAccounts. Decoding, defaults, validation and the form of the answer are as for any kind.

use kinds::{AnyKind, Ctx, Verb};
use machinery::status::{self, Status};
use machinery::{encode as encoder, meta};
use serde_json::Value;
use transport::Response;

use super::{Endpoint, Responding, reviews, token};
use crate::chain::Call;
use crate::encode;
use crate::encode::negotiate::Offer;
use crate::registry::catalogue::Resource;
use crate::verbs::body;
use crate::verbs::options::WriteOptions;

pub static TOKEN: Endpoint = Endpoint {
    group: "",
    resource: "serviceaccounts",
    subresource: "token",
    verb: "create",
    run: |call| -> Responding<'_> { Box::pin(answer_token(call)) },
};

/// Answers a review.
///
/// # Errors
/// 405 for a kind that is not answered either; what decoding, validation and the answer say.
pub async fn run(call: &Call, resource: &Resource) -> status::Result<Response> {
    let accepted = call.accept(Offer::Plain)?;
    let options = WriteOptions::parse(&call.query, "CreateOptions", false, call.user_agent())?;
    let decoded = body::decode(call, &*resource.kind, options.validation)?;
    let sent = checked(call, &*resource.kind, decoded.value, options.dry_run)?;
    let answer = reviews::answer(&call.server.security, &call.user, &call.info.resource, sent).await;
    let not_answered = || Status::method_not_allowed(&resource.group_resource(), "create");
    let json = encoder::json(&answer.ok_or_else(not_answered)??, &resource.kind.schema());
    Ok(encode::body(call, accepted, 201, &json).await)
}

fn checked(call: &Call, kind: &dyn AnyKind, mut sent: Value, dry_run: bool) -> status::Result<Value> {
    let ctx = Ctx {
        user: &call.user,
        verb: Verb::Create,
        subresource: "",
        dry_run,
        now: call.server.clock.wall(),
        options: &call.server.options,
    };
    kind.defaults(&ctx, &mut sent)?;
    let finished = kind.finish(&ctx, &mut sent, None)?;
    if finished.errors.is_empty() {
        call.warn(finished.warnings);
        return Ok(sent);
    }
    let shape = kind.shape();
    Err(Status::invalid(shape.group, shape.kind, meta::name(&sent), &finished.errors))
}

async fn answer_token(call: &Call) -> status::Result<Response> {
    let accepted = call.accept(Offer::Plain)?;
    let options = WriteOptions::parse(&call.query, "CreateOptions", false, call.user_agent())?;
    let schema = api::schema::of("authentication.k8s.io", "v1", "TokenRequest")
        .ok_or_else(|| Status::internal("TokenRequest has no schema"))?;
    let sent = body::read(call, &schema, options.validation)?;
    let info = &call.info;
    let answer = token::answer(&call.server.security, &call.user, &info.namespace, &info.name, sent.value).await?;
    Ok(encode::body(call, accepted, 201, &encoder::json(&answer, &schema)).await)
}
